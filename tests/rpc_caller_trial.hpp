// A caller against a peer whose every envelope bytes choose, and a slow model of what the caller
// may say: for the suite by seeds and for the fuzz target. Test code: uses heap.
#ifndef NETIO_TESTS_RPC_CALLER_TRIAL_HPP
#define NETIO_TESTS_RPC_CALLER_TRIAL_HPP

#include "tests/rpc_peer_trial.hpp"

#include <deque>
#include <iterator>
#include <optional>

namespace rpc_peer_trial {

/// Answers go only to calls that were made, each once, with the word of the call.
class caller_trial : public steps {
public:
    explicit caller_trial(std::span<const std::uint8_t> program)
        : steps(program), there_(there_bytes / 8), back_(back_bytes / 8),
          calls_max_(1u << next() % 4), memory_(rpc::caller_bytes_needed(calls_max_)),
          caller_(memory_, options()) {
        to_.attach(reinterpret_cast<std::byte*>(there_.data()), there_bytes);
        from_.attach(reinterpret_cast<std::byte*>(back_.data()), back_bytes);
    }
    bool run() {
        refuse_small_memory();
        while (left() && wrong.empty()) {
            step();
            check(caller_.outstanding() == calls_.size(), "outstanding calls are counted");
            check(caller_.why() == why_, "why nothing is taken any more");
            check(caller_.knows_root() == knows_root_ && caller_.root() == root_, "the root");
        }
        end();
        return wrong.empty();
    }

private:
    static constexpr std::uint32_t there_bytes = 512;
    static constexpr std::uint32_t back_bytes = 2048;
    using frame = std::vector<std::byte>;

    struct made {
        std::uint64_t word = 0;
        bool is_forgotten = false;
    };
    /// What is to be said of an envelope that answers a call.
    struct told {
        rpc::envelope in;
        std::uint64_t word = 0;
    };

    rpc::caller_options options() const {
        rpc::caller_options how;
        how.calls_max = calls_max_;
        return how;
    }
    rpc::ring_link link() { return {to_, from_}; }
    void refuse_small_memory() {
        rpc::ring_link over = link();
        const std::span<std::byte> memory(memory_);
        rpc::caller small(memory.first(calls_max_ * 16), options());
        check(small.begin(over, 1) == netio::error::limits_invalid, "a hello without memory");
        check(small.call(over, "m").why == netio::error::limits_invalid, "a call without memory");
        check(!small.forget(1), "there is no call without memory");
    }
    void step() {
        switch (next() % 8) {
        case 0:
        case 1: make_call(); break;
        case 2: answer_one(); break;
        case 3: take(); break;
        case 4: forget_one(); break;
        case 5: begin_or_end(); break;
        case 6: send_other(); break;
        default: read_requests(); break;
        }
    }

    // ---- what the caller does

    void fill(rpc::writer& out, std::uint32_t what) const {
        for (std::uint32_t more = what % 4; more != 0; --more) {
            out.value_int(what);
        }
        if ((what & 4) != 0) {
            out.promise(what);
        }
        if (what >= 0xF0) {
            out.value_list();  // nobody ends it
        }
    }
    void make_call() {
        static constexpr std::uint32_t rooms[] = {128, 64, 1024, 31, 248, 249, 32, 96};
        rpc::ring_link over = link();
        rpc::call_options how;
        how.bytes_max = rooms[next() % 8];
        const std::uint32_t what = next();
        const std::byte content[64] = {};
        const rpc::capability_id target{{std::byte{9}}};
        how.payload = netio::bytes(content).first(what / 4 % 64);
        how.target = (what & 8) != 0 ? &target : nullptr;
        how.flags = static_cast<std::uint16_t>(what / 64);
        how.word = ++words_;
        const netio::error wanted = refusal(how, what);
        const auto got = caller_.call(over, "m", how, [&](rpc::writer& out) { fill(out, what); });
        check(got.why == wanted, "a call is made, or refused for this");
        if (!got) {
            return;
        }
        const std::uint64_t id = got.value;
        check(id != 0, "no call has the id 0");
        for (const auto& [other, _] : calls_) {
            check(other % calls_max_ != id % calls_max_, "no two calls have one place");
        }
        calls_[id] = {how.word, false};
        requests_.push_back(expected_request(id, how, what));
    }
    frame expected_request(std::uint64_t id, const rpc::call_options& how,
                           std::uint32_t what) const {
        frame out(512);
        rpc::writer to(out, rpc::wire_limits::strict());
        out.resize(write_request(to, id, how, what));
        return out;
    }
    std::size_t write_request(rpc::writer& to, std::uint64_t id, const rpc::call_options& how,
                              std::uint32_t what) const {
        to.begin(rpc::envelope_kind::request, id, "m", how.flags);
        if (how.target != nullptr) {
            to.capability(*how.target);
        }
        fill(to, what);
        return to.payload(how.payload).finish();
    }
    netio::error refusal(const rpc::call_options& how, std::uint32_t what) {
        const std::uint32_t most = to_.record_max();
        if (why_ != netio::error::none) {
            return why_;
        }
        if (how.bytes_max < 32 || how.bytes_max > most) {
            return netio::error::too_long;
        }
        if (calls_.size() == calls_max_ || !to_.claim(how.bytes_max)) {
            return netio::error::full;
        }
        frame room(how.bytes_max);
        rpc::writer to(room, rpc::wire_limits::strict());
        write_request(to, 1, how, what);
        return to.why() == netio::error::full ? netio::error::too_long : to.why();
    }
    void forget_one() {
        const std::uint64_t id = some_id();
        const auto found = calls_.find(id);
        check(caller_.forget(id) == (found != calls_.end()), "what was called can be forgotten");
        if (found != calls_.end()) {
            found->second.is_forgotten = true;
        }
    }
    void begin_or_end() {
        const std::uint32_t what = next();
        if (what % 4 == 0) {
            end();
            return;
        }
        rpc::ring_link over = link();
        const netio::error wanted = !calls_.empty()  ? netio::error::already_open
                                    : !to_.claim(32) ? netio::error::full
                                                     : netio::error::none;
        check(caller_.begin(over, what) == wanted, "a hello is sent, or refused for this");
        if (calls_.empty()) {  // answers to nobody's calls are out of the way
            const std::size_t most = calls_max_ + 1;
            sent_.erase(sent_.begin(), sent_.begin() + static_cast<std::ptrdiff_t>(
                                                           std::min(most, sent_.size())));
        }
        if (wanted == netio::error::none) {
            frame hello(32);
            rpc::writer(hello).begin(rpc::envelope_kind::hello, what).finish();
            requests_.push_back(hello);
            number_ = what;
            awaits_ = true;
            knows_root_ = false;
            why_ = netio::error::none;
        }
    }
    void end() {
        rpc::ring_link over = link();
        std::uint32_t wanted = 0;
        for (const auto& [id, one] : calls_) {
            wanted += one.is_forgotten ? 0 : 1;
        }
        why_ = why_ != netio::error::none ? why_ : netio::error::rpc_transport;
        const std::uint32_t heard = caller_.end([&](const rpc::reply& got) {
            const auto found = calls_.find(got.request_id);
            check(found != calls_.end() && !found->second.is_forgotten, "the end of a call");
            if (found != calls_.end()) {
                check(got.word == found->second.word, "its word");
                calls_.erase(found);
            }
            check(!got.resolved && got.code == rpc::rpc_code::transport, "by rpc/transport");
            check(got.text == "rpc/transport", "by its name");
            check(caller_.call(over, "m").why == why_, "nothing is called at the end");
        });
        check(heard == wanted && caller_.outstanding() == 0, "each call ends");
        calls_.clear();
    }

    // ---- what it hears

    void take() {
        const bool calls_more = next() % 4 == 0;
        rpc::ring_link over = link();
        looks_left_ = calls_max_ + 1;
        std::uint32_t heard = 0;
        const std::uint32_t taken = caller_.take(over, [&](const rpc::reply& got) {
            ++heard;
            const std::optional<told> wanted = advance();
            check(wanted.has_value(), "an answer to a call");
            if (wanted) {
                compare(got, *wanted);
            }
            if (calls_more) {
                make_call();
            }
        });
        check(!advance().has_value(), "every answer is heard");
        check(taken == heard, "answers are counted");
        check(from_.peek().empty() == sent_.empty(), "it looks at so many and no more");
    }
    void compare(const rpc::reply& got, const told& wanted) {
        const bool resolved = wanted.in.kind == rpc::envelope_kind::response;
        check(got.request_id == wanted.in.request_id && got.word == wanted.word, "whose it is");
        check(got.resolved == resolved && got.flags == wanted.in.flags, "a value, or a code");
        if (resolved) {
            const netio::bytes theirs = wanted.in.arguments.front().as_value().wire();
            const netio::bytes ours = got.value.wire();
            check(std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end()), "the value");
        } else {
            check(got.text == wanted.in.method, "the code as it was spelled");
            check(got.code == rpc::code_from(wanted.in.method), "the code");
        }
    }
    /// Goes over what was sent to the next answer that is to be heard.
    std::optional<told> advance() {
        while (looks_left_ != 0 && why_ == netio::error::none && !sent_.empty()) {
            --looks_left_;
            current_ = sent_.front();
            sent_.pop_front();
            const auto got = rpc::decode(current_, rpc::wire_limits::strict());
            const bool is_whole = got.status == netio::parse_status::complete;
            if (is_whole && got.value.kind == rpc::envelope_kind::hello) {
                greet(got.value);
                continue;
            }
            if (awaits_) {
                continue;
            }
            const auto found = calls_.find(got.value.request_id);
            const bool is_answer = is_whole && got.value.kind != rpc::envelope_kind::request;
            if (!is_answer || found == calls_.end()) {
                why_ = is_whole ? netio::error::rpc_wire : got.why;
                continue;
            }
            const made one = found->second;
            calls_.erase(found);
            if (!one.is_forgotten) {
                return told{got.value, one.word};
            }
        }
        return std::nullopt;
    }
    void greet(const rpc::envelope& in) {
        if (awaits_ && in.request_id != number_) {
            return;
        }
        awaits_ = false;
        knows_root_ = !in.capabilities.empty();
        root_ = knows_root_ ? in.capabilities.front().id() : rpc::capability_id{};
    }

    // ---- what the peer does

    std::uint64_t some_id() {
        const std::uint32_t what = next();
        if (what % 4 == 0 || calls_.empty()) {
            return what / 4;
        }
        return std::next(calls_.begin(), what / 4 % calls_.size())->first;
    }
    void send(const frame& envelope) {
        const auto count = static_cast<std::uint32_t>(envelope.size());
        const netio::ring_claim claim = from_.claim(count);
        if (claim) {
            std::memcpy(claim.room.data(), envelope.data(), count);
            from_.commit(claim, count);
            sent_.push_back(envelope);
        }
    }
    frame answer() {
        const std::uint64_t id = some_id();
        const std::uint32_t what = next();
        frame out(128);
        rpc::writer to(out);
        if (what % 4 == 0) {
            const char* const code = what % 8 == 0 ? "no" : rpc::code_text(rpc::rpc_code::revoked);
            to.begin(rpc::envelope_kind::error, id, code, static_cast<std::uint16_t>(what / 64));
        } else {
            to.begin(rpc::envelope_kind::response, id, {}, static_cast<std::uint16_t>(what / 64));
            to.value_list().value_int(what).value_text("x").end();
        }
        out.resize(to.finish());
        return out;
    }
    void answer_one() { send(answer()); }
    /// A hello, a request, an answer with some bits flipped, or what stands in the bytes.
    void send_other() {
        const std::uint32_t what = next();
        if (what % 4 == 0) {
            send(hello(what));
            return;
        }
        frame out = answer();
        if (what % 4 == 1) {
            rpc::writer to(out);
            out.resize(to.begin(rpc::envelope_kind::request, 1 + what / 4).finish());
        } else if (what % 4 == 2) {
            for (std::uint32_t flips = 1 + what / 4 % 3; flips != 0; --flips) {
                out[next() % out.size()] ^= static_cast<std::byte>(1u << next() % 8);
            }
        } else {
            out.resize(1 + what / 4);
            for (std::byte& octet : out) {
                octet = static_cast<std::byte>(next());
            }
        }
        send(out);
    }
    frame hello(std::uint32_t what) {
        static constexpr std::string_view names[] = {"m"};
        frame out(256);
        rpc::writer to(out);
        to.begin(rpc::envelope_kind::hello, (what & 4) != 0 ? number_ : next()).payload({});
        if ((what & 8) != 0) {
            rpc::descriptor_fields root;
            root.id.octets[0] = static_cast<std::byte>(what);
            root.methods = names;
            to.descriptor(root);
        }
        out.resize(to.finish());
        return out;
    }
    void read_requests() {
        for (std::uint32_t more = 1 + next() % 8; more != 0; --more) {
            const netio::bytes record = to_.peek();
            check(record.empty() == requests_.empty(), "what was called is there");
            if (record.empty() || requests_.empty()) {
                return;
            }
            const frame& wanted = requests_.front();
            check(std::equal(record.begin(), record.end(), wanted.begin(), wanted.end()),
                  "a request is what was called");
            requests_.pop_front();
            to_.release();
        }
    }

    std::vector<std::uint64_t> there_, back_;
    netio::spsc_ring to_, from_;
    std::uint32_t calls_max_;
    std::vector<std::byte> memory_;
    rpc::caller caller_;
    std::map<std::uint64_t, made> calls_;
    std::deque<frame> requests_, sent_;
    frame current_;
    std::uint32_t looks_left_ = 0;
    std::uint64_t words_ = 0, number_ = 0;
    netio::error why_ = netio::error::none;
    rpc::capability_id root_{};
    bool awaits_ = false, knows_root_ = false;
};

}  // namespace rpc_peer_trial

#endif
