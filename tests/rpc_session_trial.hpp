// A caller and a callee over small rings, in steps that bytes choose, and what each call must come
// to, known when it is made: for the suite by seeds and for the fuzz target. Test code: uses heap.
#ifndef NETIO_TESTS_RPC_SESSION_TRIAL_HPP
#define NETIO_TESTS_RPC_SESSION_TRIAL_HPP

#include "tests/rpc_peer_trial.hpp"

namespace rpc_peer_trial {

/// `add` sums its integers and the bytes of the payload, `text` answers with so many letters.
struct session_provider {
    static constexpr rpc::method methods[] = {{"add"}, {"fail"}, {"late"}, {"text"}};
    std::vector<std::pair<std::int64_t, rpc::promise_id>> late;

    void invoke(rpc::invocation& call) noexcept {
        if (call.method_index() == 1) {
            call.reject("no");
        } else if (call.method_index() == 2) {
            late.push_back({call.value_at(0).as_int(), call.later()});
        } else if (call.method_index() == 3) {
            const std::string letters(static_cast<std::size_t>(call.value_at(0).as_int()), 'x');
            call.reply().value_text(letters);
        } else {
            auto sum = static_cast<std::int64_t>(call.payload().size());
            for (std::uint32_t at = 0; at < call.argument_count(); ++at) {
                sum += call.value_at(at).as_int();
            }
            call.reply().value_int(sum);
        }
    }
};

/// Every call is answered once and with what it must be, whatever waits for room, and after a
/// caller died and another took its place.
class session_trial : public steps {
public:
    explicit session_trial(std::span<const std::uint8_t> program)
        : steps(program), resumes_(next() % 2 != 0), memory_(rpc::bytes_needed(limits())),
          kernel_(memory_, limits(), secret), there_(there_bytes / 8),
          back_bytes_(128u << next() % 5), back_(back_bytes_ / 8), calls_max_(1u << next() % 4),
          callee_memory_(rpc::callee_bytes_needed(calls_max_)),
          callee_(kernel_, callee_memory_, options()),
          caller_memory_(rpc::caller_bytes_needed(calls_max_)),
          caller_(caller_memory_, caller_limits()) {
        to_.attach(reinterpret_cast<std::byte*>(there_.data()), there_bytes);
        from_.attach(reinterpret_cast<std::byte*>(back_.data()), back_bytes_);
        const rpc::provider_id of = kernel_.add_provider(provider_).value;
        static constexpr std::string_view all[] = {"add", "fail", "late", "text"};
        root_ = mint(of, all);
        narrow_ = mint(of, std::span(all).first(1));
        root_id_ = name_of(root_);
        narrow_id_ = name_of(narrow_);
    }
    bool run() {
        refuse_to_open();
        check(static_cast<bool>(callee_.open(root_, 5, this)), "it opens");
        if (back_bytes_ < 256) {
            refuse_small_link();
            return wrong.empty();
        }
        while (left() && wrong.empty()) {
            step();
            check(caller_.outstanding() == outstanding_, "outstanding calls are counted");
            check(callee_.under_way() <= calls_max_, "no more than that are under way");
            check(callee_.refused() <= callee_.requests(), "requests are counted");
        }
        settle_all();
        callee_.close();
        callee_.close();
        check(!callee_.is_open() && !callee_.can_take(), "it is closed");
        check(kernel_.promises().in_use == 0 && kernel_.lanes().in_use == 0, "nothing is left");
        return wrong.empty();
    }

private:
    static constexpr std::uint64_t secret[2] = {3, 4};
    static constexpr std::uint32_t there_bytes = 1024;
    static constexpr std::uint32_t hello_bytes = 32 + 16 + 4 + 56 + 1 + 4 + 4 * 4 + 3 + 4 + 4 + 4;

    /// What a call must come to.
    struct wanted {
        std::string code;
        std::int64_t number = 0;
        std::size_t letters = 0;    // of a text
        std::uint64_t word = 0;
        std::uint16_t flags = 0;
        bool is_refused = false, is_forgotten = false, is_over = false;
    };

    static rpc::rpc_limits limits() {
        rpc::rpc_limits out = sizes();
        out.capabilities_max = 4;
        out.pieces[0] = {64, 128};
        out.pieces[1] = {320, 128};
        return out;
    }
    rpc::callee_options options() const {
        rpc::callee_options how;
        how.calls_max = calls_max_;
        how.resumes = resumes_;
        return how;
    }
    rpc::caller_options caller_limits() const {
        rpc::caller_options how;
        how.calls_max = calls_max_;
        return how;
    }
    rpc::capability mint(rpc::provider_id of, std::span<const std::string_view> methods) {
        rpc::grant what;
        what.methods = methods;
        what.spend = rpc::unbounded_budget;
        return kernel_.mint(of, 1, what).value;
    }
    rpc::capability_id name_of(rpc::capability of) {
        std::string_view names[rpc::provider_methods_max];
        return kernel_.describe(of, names).value.id;
    }
    rpc::ring_link here() { return {to_, from_}; }
    rpc::ring_link yonder() { return {from_, to_}; }

    void refuse_to_open() {
        rpc::callee_options how = options();
        how.spend.calls_max = 0;
        std::vector<std::byte> memory(callee_memory_.size());
        rpc::callee poor(kernel_, memory, how);
        check(poor.open(root_).why == rpc::rpc_code::budget_exceeded, "nothing may be spent");
        rpc::callee other(kernel_, memory, options());
        check(other.open({}).why == rpc::rpc_code::unknown_capability, "nobody's root");
        check(static_cast<bool>(other.open(root_)), "it opens after all");
        check(other.open(root_).why == rpc::rpc_code::invalid_argument, "it is open already");
        other.close();
        rpc::callee small(kernel_, std::span(memory).first(calls_max_ * 16 - 1), options());
        check(small.open(root_).why == rpc::rpc_code::invalid_argument, "memory is too small");
    }
    void refuse_small_link() {
        rpc::ring_link link = yonder();
        check(callee_.take(link) == 0 && callee_.why() == netio::error::rpc_transport,
              "no room for a refusal, ever");
        callee_.close();
        check(kernel_.lanes().in_use == 0, "nothing is left");
    }
    void step() {
        const std::uint32_t what = next();
        switch (what % 8) {
        case 0:
        case 1:
        case 2: make_call(what / 8 % 8); break;
        case 3: turn(next()); break;
        case 4: listen(); break;
        case 5: forget_one(); break;
        case 6: settle_late(); break;
        default:
            if (what >= 128) {
                begin_or_die(what / 8 % 4 == 0);
            }
        }
    }

    // ---- calls

    void make_call(std::uint32_t kind) {
        static constexpr std::string_view names[] = {"add", "add", "add", "add",
                                                     "late", "text", "fail", "none"};
        const std::uint32_t what = next();
        const std::uint32_t more = next();
        const std::byte content[64] = {};
        const rpc::capability_id nobody{};
        rpc::call_options how;
        how.word = ++words_;
        how.bytes_max = 256;
        how.flags = (what & 128) != 0 ? rpc::flag_redact : 0;
        if (kind < 4) {
            how.payload = netio::bytes(content).first(what % 64);
        }
        how.target = more % 8 == 1   ? &root_id_
                     : more % 8 == 2 ? &narrow_id_
                     : more % 8 == 3 ? &nobody
                                     : nullptr;
        wanted one;
        one.word = how.word;
        one.flags = how.flags;
        std::vector<std::uint64_t> needs;
        const std::uint32_t promises = kind < 4 && more % 8 < 2 ? more / 8 % 4 : 0;
        rpc::ring_link link = here();
        const bool has_room = static_cast<bool>(to_.claim(how.bytes_max));
        const auto got = caller_.call(link, names[kind], how, [&](rpc::writer& out) {
            out.value_int(what);
            for (std::uint32_t at = 0; at < promises; ++at) {
                needs.push_back(last_id_ < at + what % 4 ? 0 : last_id_ - at - what % 4);
                out.promise(needs.back());
            }
        });
        const bool may = caller_.why() == netio::error::none && has_room &&
                         outstanding_ != calls_max_;
        check(static_cast<bool>(got) == may, "a call is made where there is room");
        if (got) {
            foresee(one, got.value, kind, what, how.payload.size(), needs);
            refuse_by_target(one, kind, more % 8);
            last_id_ = got.value;
            calls_[got.value] = one;
            ++outstanding_;
            any_sent_ = true;
        }
    }
    /// What it comes to, as far as that is not the target's.
    void foresee(wanted& one, std::uint64_t id, std::uint32_t kind, std::uint32_t what,
                 std::size_t payload_bytes, const std::vector<std::uint64_t>& needs) {
        one.number = kind == 5 ? 0 : static_cast<std::int64_t>(what + payload_bytes);
        one.letters = kind == 5 ? what : 0;
        one.code = kind == 6 ? "no" : kind == 7 ? "rpc/method-not-granted" : "";
        one.is_refused = kind == 7;
        std::string failed, refused;
        bool is_unknown = false;
        for (const std::uint64_t named : needs) {
            const auto found = calls_.find(named);
            if (found == calls_.end() || !in_window(calls_, calls_max_, named, id)) {
                is_unknown = true;
                continue;
            }
            const wanted& other = found->second;
            one.number += other.number;
            std::string& to = other.is_refused ? refused : failed;
            to = to.empty() ? other.code : to;
        }
        if (is_unknown || !refused.empty()) {
            one.code = !refused.empty() ? refused : "rpc/unknown-promise";
            one.is_refused = true;
        } else if (!failed.empty()) {
            one.code = failed;
        }
    }
    static void refuse_by_target(wanted& one, std::uint32_t kind, std::uint32_t target) {
        if (target == 3 || (target == 2 && kind >= 4)) {
            one.code = target == 3 ? "rpc/unknown-capability" : "rpc/method-not-granted";
            one.is_refused = true;
        }
    }
    void forget_one() {
        const std::uint64_t id = last_id_ - next() % 8 % (last_id_ + 1);
        const auto found = calls_.find(id);
        const bool may = found != calls_.end() && !found->second.is_over;
        check(caller_.forget(id) == may, "what waits can be forgotten");
        if (may) {
            found->second.is_forgotten = true;
        }
    }

    // ---- turns

    void turn(std::uint32_t what) {
        rpc::ring_link link = yonder();
        if (what % 4 != 1) {
            const std::uint32_t most = what / 16 + 1;
            const std::uint32_t before = callee_.under_way();
            const std::uint32_t taken = callee_.take(link, most);
            check(taken <= most && callee_.under_way() <= before + taken, "so many are taken");
        }
        if (what % 4 != 2) {
            kernel_.dispatch();
        }
        if (what % 4 != 3) {
            const std::uint32_t before = callee_.under_way();
            const std::uint32_t answered = callee_.answer_settled(link);
            check(callee_.under_way() == before - answered, "so many are answered");
        }
    }
    void settle_late() {
        if (provider_.late.empty()) {
            return;
        }
        const auto one = provider_.late.begin() + next() % provider_.late.size();
        std::byte room[16];
        rpc::writer out(room);
        out.begin_arguments().value_int(one->first);
        const auto value = out.finish_arguments();
        // Those of a caller that died may be gone.
        static_cast<void>(kernel_.resolve(one->second, value.value.front().as_value()));
        provider_.late.erase(one);
    }
    void listen() {
        rpc::ring_link link = here();
        caller_.take(link, [&](const rpc::reply& got) { hear(got); });
        check(caller_.why() == netio::error::none || is_dead_, "the callee keeps to the rules");
        std::uint32_t waiting = 0;
        for (auto& [id, one] : calls_) {
            waiting += one.is_over || one.is_forgotten ? 0 : 1;
        }
        check(waiting <= caller_.outstanding(), "none is outstanding that was heard");
        outstanding_ = caller_.outstanding();  // less the forgotten ones, which nobody hears of
        if (outstanding_ == 0) {
            for (auto& [id, one] : calls_) {
                check(one.is_over || one.is_forgotten, "each call is answered");
                one.is_over = true;
            }
        } else {
            find_forgotten();
        }
    }
    /// A forgotten call that came back is over; the caller alone knows which.
    void find_forgotten() {
        for (auto& [id, one] : calls_) {
            if (one.is_forgotten && !one.is_over) {
                one.is_over = !caller_.forget(id);
            }
        }
    }
    void hear(const rpc::reply& got) {
        const auto found = calls_.find(got.request_id);
        check(found != calls_.end(), "an answer to a call");
        if (found == calls_.end()) {
            return;
        }
        wanted& one = found->second;
        check(!one.is_over && !one.is_forgotten && got.word == one.word, "once, with its word");
        one.is_over = true;
        const bool fits = one.letters == 0 || 32 + 6 + one.letters <= from_.record_max();
        const std::string code = one.code.empty() && !fits ? "rpc/transport" : one.code;
        check(got.resolved == code.empty() && got.text == code, "the code");
        check(got.flags == (code.empty() ? one.flags : 0), "its flags");
        if (got.resolved) {
            check(got.value.as_text().size() == one.letters, "the letters");
            check(got.value.as_int() == one.number, "the sum");
        }
    }

    // ---- another session

    void begin_or_die(bool dies) {
        if (dies) {
            die();
        }
        rpc::ring_link link = here();
        const std::uint64_t number = ++greetings_;
        netio::error why = caller_.begin(link, number);
        if (outstanding_ != 0) {
            check(why == netio::error::already_open, "calls are outstanding");
            return;
        }
        // Who comes after another may have to wait for room, which `begin` makes.
        for (int more = 0; more < 64 && why == netio::error::full; ++more) {
            turn(0xF0);
            settle_late();
            why = caller_.begin(link, number);
        }
        check(why == netio::error::none && !caller_.knows_root(), "a hello is sent");
        const bool is_good = resumes_ || !any_sent_;
        const bool fits = hello_bytes <= from_.record_max();
        any_sent_ = true;
        is_dead_ = false;
        calls_.clear();
        last_id_ = 0;
        for (int more = 0; more < 64 && !caller_.knows_root() && wrong.empty(); ++more) {
            turn(0xF0);
            settle_late();
            listen();
        }
        check(caller_.knows_root() == (is_good && fits), "the root is told where it may be");
        if (is_good && fits) {
            check(caller_.root() == root_id_, "it is the root");
            return;
        }
        check(callee_.why() == (is_good ? netio::error::rpc_transport : netio::error::rpc_wire),
              "a hello out of place, or that is too large, is the end");
        die();
        connect_anew();
    }
    void die() {
        std::uint32_t told = 0;
        for (const auto& [id, one] : calls_) {
            told += one.is_over || one.is_forgotten ? 0 : 1;
        }
        const std::uint32_t heard = caller_.end([&](const rpc::reply& got) {
            check(got.code == rpc::rpc_code::transport, "the end of a call");
            const auto found = calls_.find(got.request_id);
            check(found != calls_.end() && !found->second.is_over, "of one that waited");
        });
        check(heard == told && caller_.why() != netio::error::none, "each hears of the end");
        outstanding_ = 0;
        is_dead_ = true;
        calls_.clear();
        last_id_ = 0;
        if (!resumes_) {
            connect_anew();
        }
    }
    /// New rings, a new session at both ends.
    void connect_anew() {
        callee_.close();
        kernel_.dispatch();
        provider_.late.clear();
        check(kernel_.promises().in_use == 0 && kernel_.lanes().in_use == 0, "nothing is left");
        to_.attach(reinterpret_cast<std::byte*>(there_.data()), there_bytes);
        from_.attach(reinterpret_cast<std::byte*>(back_.data()), back_bytes_);
        check(static_cast<bool>(callee_.open(root_, 5, this)), "it opens again");
        check(callee_.requests() == 0 && callee_.why() == netio::error::none, "it begins");
        any_sent_ = false;
    }
    void settle_all() {
        for (int more = 0; more < 256 && outstanding_ != 0 && wrong.empty(); ++more) {
            turn(0xF0);
            settle_late();
            listen();
        }
        check(outstanding_ == 0, "every call is answered");
    }

    bool resumes_;
    std::vector<std::byte> memory_;
    rpc::kernel kernel_;
    session_provider provider_;
    std::vector<std::uint64_t> there_;
    std::uint32_t back_bytes_;
    std::vector<std::uint64_t> back_;
    netio::spsc_ring to_, from_;
    std::uint32_t calls_max_;
    std::vector<std::byte> callee_memory_;
    rpc::callee callee_;
    std::vector<std::byte> caller_memory_;
    rpc::caller caller_;
    rpc::capability root_{}, narrow_{};
    rpc::capability_id root_id_{}, narrow_id_{};
    std::map<std::uint64_t, wanted> calls_;
    std::uint64_t last_id_ = 0, words_ = 0, greetings_ = 0;
    std::uint32_t outstanding_ = 0;
    bool any_sent_ = false, is_dead_ = false;
};

}  // namespace rpc_peer_trial

#endif
