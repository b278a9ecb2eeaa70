// A peer that does what bytes say, against a callee, and a slow model of what it must hear: for the
// suite by seeds and for the fuzz target. Test code: uses heap.
#ifndef NETIO_TESTS_RPC_PEER_TRIAL_HPP
#define NETIO_TESTS_RPC_PEER_TRIAL_HPP

#include "netio.hpp"

#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace rpc_peer_trial {

namespace rpc = netio::rpc;

/// `add` sums its integers; `late` is answered when the trial says so, known by its argument.
struct provider {
    static constexpr rpc::method methods[] = {{"add"}, {"fail"}, {"late"}};
    std::map<std::uint64_t, rpc::promise_id> late;

    void invoke(rpc::invocation& call) noexcept {
        if (call.method_index() == 0) {
            std::uint64_t sum = 0;
            for (std::uint32_t at = 0; at < call.argument_count(); ++at) {
                sum += static_cast<std::uint64_t>(call.value_at(at).as_int());
            }
            call.reply().value_int(static_cast<std::int64_t>(sum));
        } else if (call.method_index() == 1) {
            call.reject("no");
        } else {
            late[static_cast<std::uint64_t>(call.value_at(0).as_int())] = call.later();
        }
    }
};

inline rpc::rpc_limits sizes() {
    rpc::rpc_limits out;
    out.providers_max = 1;
    out.capabilities_max = 2;
    out.lanes_max = 2;
    out.channels_max = 0;
    out.messages_max = 0;
    out.promises_max = 64;    // more than are ever under way or can be named
    out.settled_max = 63;
    out.edges_max = 64;
    out.events_max = 16;
    out.pieces[0] = {64, 96};
    out.pieces[1] = {256, 16};
    out.pieces[2] = {0, 0};
    return out;
}

/// Takes small numbers off the front of the bytes, and keeps the first thing that went wrong.
class steps {
public:
    std::string wrong;

    explicit steps(std::span<const std::uint8_t> program) : program_(program) {}

protected:
    std::uint32_t next() {
        if (at_ == program_.size()) {
            return 0;
        }
        return program_[at_++];
    }
    bool left() const { return at_ != program_.size(); }
    void check(bool holds, const char* what) {
        if (!holds && wrong.empty()) {
            wrong = std::string(what) + ", at byte " + std::to_string(at_);
        }
    }

private:
    std::span<const std::uint8_t> program_;
    std::size_t at_ = 0;
};

/// No request between the one that is named and `now` has its place at the callee.
template <class Request>
bool in_window(const std::map<std::uint64_t, Request>& requests, std::uint32_t calls_max,
               std::uint64_t named, std::uint64_t now) {
    for (auto each = requests.upper_bound(named); each != requests.end(); ++each) {
        if (each->first < now && each->first % calls_max == named % calls_max) {
            return false;
        }
    }
    return true;
}

/// What a request must come to.
struct expected {
    std::vector<std::uint64_t> needs;
    std::int64_t sum = 0;        // of its own integers
    std::string code;            // refused, or rejected
    bool settled = false;
    bool answered = false;
    bool waits = false;          // for the trial
};

class trial : public steps {
public:
    explicit trial(std::span<const std::uint8_t> program)
        : steps(program), memory_(rpc::bytes_needed(sizes())), kernel_(memory_, sizes(), secret),
          there_(1 << 13), back_(1 << 15), calls_max_(1u << (next() % 4)),
          callee_memory_(rpc::callee_bytes_needed(calls_max_)),
          callee_(kernel_, callee_memory_, options()) {
        to_.attach(reinterpret_cast<std::byte*>(there_.data()), 1 << 13);
        from_.attach(reinterpret_cast<std::byte*>(back_.data()), 1 << 15);
        static constexpr std::string_view names[] = {"add", "fail", "late"};
        rpc::grant what;
        what.methods = names;
        what.spend = rpc::unbounded_budget;
        root_ = kernel_.mint(kernel_.add_provider(provider_).value, 1, what).value;
    }
    bool run() {
        open();
        while (left() && wrong.empty()) {
            step();
        }
        finish();
        return wrong.empty();
    }

private:
    static constexpr std::uint64_t secret[2] = {3, 4};

    rpc::callee_options options() const {
        rpc::callee_options how;
        how.calls_max = calls_max_;
        return how;
    }
    void open() {
        check(static_cast<bool>(callee_.open(root_)), "it opens");
        made_.clear();
        refused_.clear();
        last_id_ = 0;
    }
    /// Nothing of a session is left when it is closed.
    void close() {
        callee_.close();
        kernel_.dispatch();
        provider_.late.clear();
        check(kernel_.promises().in_use == 0, "promises are left");
        check(kernel_.lanes().in_use == 0, "a lane is left");
        check(kernel_.edges().in_use == 0, "edges are left");
        check(kernel_.pieces(0).in_use == 0 && kernel_.pieces(1).in_use == 0, "pieces are left");
        check(!kernel_.next_reporting(), "a lane still reports");
        for (netio::bytes record = from_.peek(); !record.empty(); record = from_.peek()) {
            from_.release();
        }
    }
    void step() {
        switch (next() % 8) {
        case 0:
        case 1:
        case 2:
            request("add");
            break;
        case 3:
            request("late");
            break;
        case 4:
            request("fail");
            break;
        case 5:
            turn();
            break;
        case 6:
            settle_one();
            break;
        default:
            if (next() % 4 == 0) {
                send_misplaced();
            } else {
                send_junk();
            }
        }
    }

    // ---- what is sent

    void request(std::string_view method) {
        if (callee_.under_way() == calls_max_) {
            turn();
            return;
        }
        const std::uint32_t gap = next();
        const std::uint64_t id = last_id_ + 1 + (gap % 8 == 7 ? gap : 0);
        std::byte room[512];
        rpc::writer out(room);
        expected made;
        out.begin(rpc::envelope_kind::request, id, method);
        if (method == "late") {
            out.value_int(static_cast<std::int64_t>(id));
        }
        for (std::uint32_t more = method == "add" ? next() % 4 : 0; more != 0; --more) {
            const std::uint32_t what = next();
            if (what % 2 == 0) {
                out.value_int(what);
                made.sum += what;
            } else {
                const std::uint64_t named = id - what / 2 % 16;  // its own id, before the first
                out.promise(named);
                made.needs.push_back(named);
            }
        }
        send(netio::bytes(room).first(out.payload({}).finish()));
        last_id_ = id;
        expect(id, method, made);
        check(callee_.why() == netio::error::none, "a good request is taken");
    }
    void send(netio::bytes envelope) {
        put(envelope);
        take_one();
    }
    void take_one() {
        rpc::ring_link link(from_, to_);
        check(callee_.take(link) == 1, "it takes one");
    }
    void put(netio::bytes envelope) {
        const netio::ring_claim claim = to_.claim(static_cast<std::uint32_t>(envelope.size()));
        check(static_cast<bool>(claim), "there is room for a request");
        if (!claim) {
            return;
        }
        std::memcpy(claim.room.data(), envelope.data(), envelope.size());
        to_.commit(claim, static_cast<std::uint32_t>(envelope.size()));
    }
    /// Bytes that are an envelope by accident only: the session ends, and a new one begins.
    void send_junk() {
        std::byte room[64];
        std::size_t count = 32 + next() % 32;
        rpc::writer out(room);
        out.begin(rpc::envelope_kind::request, last_id_ + 1, "add").payload({}).finish();
        for (std::size_t at = 35; at < count; ++at) {
            room[at] = static_cast<std::byte>(next());
        }
        for (std::uint32_t flips = 1 + next() % 3; flips != 0; --flips) {
            room[next() % count] ^= static_cast<std::byte>(1u << next() % 8);
        }
        if (rpc::decode(netio::bytes(room).first(count), rpc::wire_limits::strict()).status !=
            netio::parse_status::complete) {
            send_bad(netio::bytes(room).first(count));
        }
    }
    /// An envelope that is one, but not what a callee takes now.
    void send_misplaced() {
        static constexpr rpc::envelope_kind kinds[] = {
            rpc::envelope_kind::request, rpc::envelope_kind::response, rpc::envelope_kind::error,
            rpc::envelope_kind::hello};
        const rpc::envelope_kind kind = kinds[next() % 4];
        if (last_id_ == 0 && (kind == kinds[0] || kind == kinds[3])) {
            return;  // the first request, or the first hello: both are good
        }
        std::byte room[64];
        rpc::writer out(room);
        out.begin(kind, 1 + next() % (last_id_ + 1), kind == kinds[2] ? "no" : "");
        if (kind == kinds[0]) {
            out.begin(kind, 1 + next() % last_id_, "add");
        } else if (kind == kinds[1]) {
            out.value_null();
        }
        send_bad(netio::bytes(room).first(out.payload({}).finish()));
    }
    void send_bad(netio::bytes envelope) {
        if (callee_.under_way() == calls_max_) {
            return;
        }
        put(envelope);
        if (callee_.has_settled()) {
            rpc::ring_link link(from_, to_);
            check(callee_.take(link) == 0, "what was settled before is answered first");
            check(callee_.why() == netio::error::none, "it goes on until then");
            turn();
        }
        take_one();
        check(callee_.why() != netio::error::none, "a bad envelope ends the session");
        close();
        open();
    }

    // ---- the model

    void expect(std::uint64_t id, std::string_view method, expected& made) {
        for (const std::uint64_t named : made.needs) {
            const auto found = made_.find(named);
            const bool known = named != 0 && found != made_.end() &&
                               in_window(made_, calls_max_, named, id);
            const bool refused = known && refused_.count(named) != 0;
            if (made.code.empty() && (!known || refused)) {
                made.code = refused ? found->second.code : "rpc/unknown-promise";
            }
        }
        // A refused one that is named counts, wherever an unknown one stands.
        for (const std::uint64_t named : made.needs) {
            if (made.code == "rpc/unknown-promise" && refused_.count(named) != 0 &&
                in_window(made_, calls_max_, named, id)) {
                made.code = made_[named].code;
            }
        }
        if (!made.code.empty()) {
            made.settled = true;
            refused_.insert(id);
        } else {
            made.waits = method == "late";
            if (method == "fail") {
                made.code = "no";
            }
        }
        made_[id] = made;
        hear();
    }
    /// What a dispatch settles: all that does not wait for the trial, in the order of ids.
    void settle_ready() {
        for (auto& [id, made] : made_) {
            if (made.settled || made.waits) {
                continue;
            }
            bool ready = true;
            for (const std::uint64_t named : made.needs) {
                ready = ready && made_[named].settled;
            }
            if (!ready) {
                continue;
            }
            for (const std::uint64_t named : made.needs) {
                if (made.code.empty() && !made_[named].code.empty()) {
                    made.code = made_[named].code;
                }
                made.sum += made_[named].sum;
            }
            made.settled = true;
        }
    }
    void settle_one() {
        if (provider_.late.empty()) {
            return;
        }
        auto one = provider_.late.begin();
        for (std::uint32_t skip = next() % 4; skip != 0 && std::next(one) != provider_.late.end();
             --skip) {
            ++one;
        }
        expected& made = made_[one->first];
        const std::uint32_t what = next();
        if (what % 4 == 0) {
            check(static_cast<bool>(kernel_.reject(one->second, rpc::rpc_code::domain)),
                  "a late one is rejected");
            made.code = "rpc/domain";
        } else {
            std::byte room[16];
            rpc::writer out(room);
            out.begin_arguments().value_int(what);
            const auto value = out.finish_arguments();
            check(static_cast<bool>(kernel_.resolve(one->second, value.value.front().as_value())),
                  "a late one is resolved");
            made.sum = what;
        }
        made.settled = true;
        made.waits = false;
        provider_.late.erase(one);
    }

    // ---- what comes back

    void turn() {
        kernel_.dispatch();
        settle_ready();
        rpc::ring_link link(from_, to_);
        callee_.answer_settled(link);
        hear();
        for (const auto& [id, made] : made_) {
            check(made.answered == made.settled, "answered once settled, and not before");
        }
    }
    void hear() {
        for (netio::bytes record = from_.peek(); !record.empty(); record = from_.peek()) {
            const auto got = rpc::decode(record);
            check(got.status == netio::parse_status::complete, "answers are envelopes");
            const auto found = made_.find(got.value.request_id);
            check(found != made_.end(), "answers are to requests");
            if (found != made_.end() && got.status == netio::parse_status::complete) {
                expected& made = found->second;
                check(!made.answered && made.settled, "answered once, when it is settled");
                made.answered = true;
                const bool resolved = got.value.kind == rpc::envelope_kind::response;
                check(resolved == made.code.empty(), "a value, or a code");
                if (resolved) {
                    check(got.value.arguments.front().as_value().as_int() == made.sum, "the sum");
                } else {
                    check(got.value.method == made.code, "the code");
                }
            }
            from_.release();
        }
    }
    void finish() {
        for (int more = 0; more < 64 && wrong.empty(); ++more) {
            turn();
            settle_one();
        }
        turn();
        for (const auto& [id, made] : made_) {
            check(made.answered, "every request is answered");
        }
        close();
    }

    std::vector<std::byte> memory_;
    rpc::kernel kernel_;
    provider provider_;
    rpc::capability root_{};
    std::vector<std::uint64_t> there_, back_;
    netio::spsc_ring to_, from_;
    std::uint32_t calls_max_;
    std::vector<std::byte> callee_memory_;
    rpc::callee callee_;
    std::map<std::uint64_t, expected> made_;
    std::set<std::uint64_t> refused_;
    std::uint64_t last_id_ = 0;
};

}  // namespace rpc_peer_trial

#endif
