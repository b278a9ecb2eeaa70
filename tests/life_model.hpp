// What the lifecycle driver knows of each connection: which bytes belong where, what was promised,
// and what was counted. Test code: uses heap.
#ifndef NETIO_TESTS_LIFE_MODEL_HPP
#define NETIO_TESTS_LIFE_MODEL_HPP

#include "tests/simulator.hpp"

namespace netio_test {

/// One text for all streams: any stretch of it differs from any other, no byte is 0, and it is
/// twice as long as its period, so that every stretch is contiguous.
inline constexpr std::uint32_t life_text_period = 1u << 16;
inline const std::byte* life_text(std::uint32_t from) noexcept {
    static const std::vector<std::byte> all = [] {
        sim_chooser choose(0xA11CE);
        std::vector<std::byte> made(life_text_period);
        for (std::byte& each : made) {
            each = static_cast<std::byte>(1 + choose.below(255));
        }
        made.insert(made.end(), made.begin(), made.end());
        return made;
    }();
    return all.data() + from % life_text_period;
}
inline bytes life_text(std::uint32_t from, std::size_t count) noexcept {
    return {life_text(from), count};
}

/// The bytes that must come out of one direction of a connection, in order: stretches of the text.
class life_flow {
public:
    void push(std::uint32_t from, std::size_t count) noexcept {
        left_ += count;
        from %= life_text_period;
        if (parts_.size() != head_) {
            part& last = parts_.back();
            if ((last.from + last.count) % life_text_period == from &&
                last.count + count < life_text_period) {
                last.count += static_cast<std::uint32_t>(count);
                return;
            }
        }
        if (count != 0) {
            parts_.push_back({from, static_cast<std::uint32_t>(count)});
        }
    }
    /// Do the next bytes look like these?
    bool matches(bytes found) const noexcept {
        std::uint32_t used = used_;
        std::size_t at = head_;
        while (!found.empty()) {
            if (at == parts_.size()) {
                return false;
            }
            const std::size_t count = std::min<std::size_t>(parts_[at].count - used, found.size());
            if (std::memcmp(life_text(parts_[at].from + used), found.data(), count) != 0) {
                return false;
            }
            found = found.subspan(count);
            ++at;
            used = 0;
        }
        return true;
    }
    /// For a replay: where in the text these bytes are, and where the next parts should be.
    void explain(bytes found) const noexcept {
        for (std::size_t at = 0; at < found.size();) {
            std::size_t best = 0;
            std::uint32_t where = 0;
            for (std::uint32_t from = 0; from < life_text_period; ++from) {
                std::size_t same = 0;
                while (at + same < found.size() &&
                       found[at + same] ==
                           *life_text(from + static_cast<std::uint32_t>(same))) {
                    ++same;
                }
                where = same > best ? from : where;
                best = std::max(best, same);
            }
            std::fprintf(stderr, "found: %zu bytes from %u\n", best, where);
            at += std::max<std::size_t>(best, 1);
        }
        for (std::size_t at = head_; at < parts_.size(); ++at) {
            std::fprintf(stderr, "due: %u bytes from %u\n", parts_[at].count, parts_[at].from);
        }
        std::fprintf(stderr, "used of the first: %u\n", used_);
    }
    /// The next `count` bytes went by, and came into `to` if there is one.
    void pass(std::size_t count, life_flow* to = nullptr) noexcept {
        while (count != 0 && head_ != parts_.size()) {
            const part front = parts_[head_];  // `to` may be this flow
            const std::size_t now = std::min<std::size_t>(front.count - used_, count);
            if (to != nullptr) {
                to->push(front.from + used_, now);
            }
            used_ += static_cast<std::uint32_t>(now);
            left_ -= now;
            passed_ += now;
            count -= now;
            if (used_ == front.count) {
                used_ = 0;
                ++head_;
            }
        }
        if (head_ == parts_.size()) {
            parts_.clear();
            head_ = 0;
        }
    }
    /// What was pushed beyond the first `most` bytes, counted from the begin, never comes.
    void cut(std::uint64_t most) noexcept {
        while (total() > most && head_ != parts_.size()) {
            part& last = parts_.back();
            const std::uint32_t gone = parts_.size() - head_ == 1 ? used_ : 0;
            const std::uint64_t count = std::min<std::uint64_t>(last.count - gone, total() - most);
            last.count -= static_cast<std::uint32_t>(count);
            left_ -= count;
            if (last.count == gone) {
                used_ = parts_.size() - head_ == 1 ? 0 : used_;
                parts_.pop_back();
            }
        }
        if (head_ == parts_.size()) {
            parts_.clear();
            head_ = 0;
        }
    }
    std::uint64_t left() const noexcept { return left_; }
    std::uint64_t passed() const noexcept { return passed_; }
    std::uint64_t total() const noexcept { return passed_ + left_; }

private:
    struct part {
        std::uint32_t from;
        std::uint32_t count;
    };
    std::vector<part> parts_;
    std::size_t head_ = 0;
    std::uint32_t used_ = 0;
    std::uint64_t left_ = 0;
    std::uint64_t passed_ = 0;
};

/// Both directions of one connection: `up` from the side that connected or the test's.
struct life_link {
    life_flow up;
    life_flow down;
    std::uint64_t sent_ns = 0;  // the peer's last bytes
    std::uint64_t allowed = forever_ns;  // bytes of `down` that the gate let out so far
    bool ours_on_both = false;  // the server connected to itself
    bool gone = false;          // its peer is
    bool unknown = false;       // the other side went before anybody saw who it was
};

/// What a peer puts in front of its bytes.
enum class life_preface : std::uint8_t {
    none,
    v1,
    v2,
    with_tlvs,
    too_long,   // more than 536 bytes
    local,
    unnamed,    // v1 UNKNOWN
    bad,
    cut,        // ends inside
    late,       // stops inside
    missing
};

/// How a peer behaves.
struct life_peer {
    sim_peer at;
    std::uint32_t link = 0;
    std::uint32_t listener = 0;      // of the test's listeners; 255: it was connected to
    std::uint32_t serial = 0;        // of the listener: its index may be another's later
    life_preface preface = life_preface::none;
    bool acceptable = true;          // the listener takes such a header
    bool trusted = true;
    bool names = false;              // `named` is what the handler must see
    bool silent = false;             // does nothing but wait
    bool shut = false;
    endpoint named{};
    std::vector<std::byte> header;
    std::size_t header_sent = 0;
    std::size_t header_most = 0;     // bytes of it that are sent before the peer stops
    std::uint32_t text_at = 0;
    std::uint32_t left = 0;          // bytes still to send
    std::uint32_t piece_max = 1;
    std::uint32_t take_max = 1;
    std::uint8_t ending = 0;
};

/// Bytes moved one way, and when that was seen.
struct life_sample {
    std::uint64_t at_ns;
    std::uint64_t byte_count;
};

/// What a meter of rates may have seen: every change since `since_ns`, when its stretch can have
/// begun at the earliest.
struct life_stretch {
    static constexpr std::size_t samples_max = 200;
    std::uint64_t since_ns = 0;
    bool too_many = false;
    std::vector<life_sample> seen;

    void begin(std::uint64_t now_ns, std::uint64_t byte_count) noexcept {
        since_ns = now_ns;
        too_many = false;
        seen.clear();
        add(now_ns, byte_count);
    }
    void add(std::uint64_t now_ns, std::uint64_t byte_count) noexcept {
        if (!seen.empty() && seen.back().byte_count == byte_count) {
            return;
        }
        if (seen.size() == samples_max) {
            too_many = true;
            return;
        }
        seen.push_back({now_ns, byte_count});
    }
    /// For a replay.
    void show(const char* way, std::uint64_t end_count, std::uint64_t now_ns) const noexcept {
        std::fprintf(stderr, "%s: from %llu us", way,
                     static_cast<unsigned long long>(since_ns / 1000));
        for (const life_sample& each : seen) {
            std::fprintf(stderr, ", %llu at %llu", static_cast<unsigned long long>(each.byte_count),
                         static_cast<unsigned long long>(each.at_ns / 1000));
        }
        std::fprintf(stderr, ", %llu at %llu\n", static_cast<unsigned long long>(end_count),
                     static_cast<unsigned long long>(now_ns / 1000));
    }
    /// Is there a window in it, at least so long and after the grace, in which something moved,
    /// but less than the rate? Where it is not known, yes.
    bool has_slow_window(std::uint64_t end_ns, std::uint64_t end_count, std::uint32_t rate,
                         std::uint32_t window_ms, std::uint32_t grace_ms) const noexcept {
        constexpr std::uint64_t ms = 1'000'000;
        const std::uint64_t first_ns = since_ns + grace_ms * ms;
        if (too_many || seen.empty()) {
            return end_ns >= first_ns + window_ms * ms;
        }
        const auto count_at = [&](std::size_t at) noexcept {
            return at < seen.size() ? seen[at].byte_count : end_count;
        };
        for (std::size_t from = 0; from < seen.size(); ++from) {
            const std::uint64_t begun_ns = std::max(seen[from].at_ns, first_ns);
            for (std::size_t to = from; to < seen.size() + 1; ++to) {
                // As long as the count stands where the sample `to` put it.
                const std::uint64_t over_ns = to + 1 < seen.size() ? seen[to + 1].at_ns : end_ns;
                const std::uint64_t moved = count_at(to) - seen[from].byte_count;
                const std::uint64_t ran_ns = over_ns > begun_ns ? over_ns - begun_ns : 0;
                if (ran_ns >= window_ms * ms && moved != 0 &&
                    moved * 1000 * ms < rate * ran_ns) {
                    return true;
                }
            }
        }
        return false;
    }
};

/// What the gate of a life said of whoever is in a slot, and where that is counted.
struct life_entry {
    enum class place_kind : std::uint8_t { none, own, common, refused };
    connection_id id{};
    bool in = false;           // and `closed` is owed
    bool refused = false;
    bool answered = false;     // with some last words
    bool asked_again = false;
    std::uint8_t lane = 0;
    place_kind place = place_kind::none;
    bool may_find_none = false;  // a common place: refusals may have them
    refusal_cause expects = refusal_cause::count_;  // it can't come in for this
    std::uint32_t tag = 0;
    std::uint8_t code = 0;
};

/// Something that must have ended by then.
struct life_promise {
    connection_id id{};
    std::uint64_t due_ns = 0;
    std::uint64_t seen_ns = 0;  // a turn of its worker began after that, and is over
    std::uint32_t turns = 0;    // since
    const char* what = "";
};

/// One connection of the server, from its first event to its last.
struct life_record {
    connection_id id{};
    const deadlines* times = nullptr;
    std::uint32_t link = none_index;
    std::uint32_t peer = none_index;
    std::uint8_t style = 0;
    bool ours_called = false;  // the connecting side of a link of ours: reads `down`
    bool by_connect = false;
    bool accepted = false;
    bool opened = false;
    bool opened_told = false;
    bool closed = false;
    bool closed_told = false;
    bool end_told = false;     // on_end
    bool end_called = false;
    bool close_called = false;
    bool kill_called = false;
    bool cut = false;          // from outside: nothing may come but on_close
    bool denied = false;       // by the gate
    bool denied_told = false;
    bool paused = false;
    bool parked = false;
    bool refused = false;      // output was, since on_writable
    bool blocked = false;      // or since on_data
    bool recall = true;        // on_data may come without new bytes
    bool state_used = false;
    bool in_exchange = false;
    bool fresh_exchange = false;  // nothing was let out in it
    bool served = false;       // on_connection
    bool receives = false;     // in one of a stream's calls
    bool output_waits = false;
    std::uint32_t end_index = 0;
    std::uint16_t kill_reason = 0;
    std::uint16_t wish_reason = 0;  // of a kill by id
    std::uint16_t denied_code = 0;
    kill_kind wish = kill_kind::live;  // what was asked for by id
    std::uint32_t wish_ms = 0;
    std::uint64_t wish_due_ns = forever_ns;
    std::uint32_t source = 0;  // counted for this address
    std::uint64_t allowed = 0;  // its output up to there passed the gate
    std::uint64_t replied = 0;  // and last words of the gate's own
    close_reason told_reason{};
    life_stretch rate_in;
    life_stretch rate_out;
    std::uint32_t listener = 255;
    std::uint32_t left = 0;    // bytes offered and not consumed
    close_reason reason{};
    connection_id waiter{};    // who could not move its input here
    std::uint64_t word = 0;    // of connect
    std::uint64_t begun_ns = 0;
    std::uint64_t in_ns = 0;   // the last bytes in, or what counts like them
    std::uint64_t out_ns = 0;  // the first of the bytes that wait
    std::uint64_t close_ns = 0;
    std::uint64_t park_ns = 0;
    std::uint64_t exchange_ns = 0;
    std::uint32_t park_ms = 0;
    std::uint32_t exchange_ms = 0;
};

enum class life_hook : std::uint8_t {
    on_open,
    on_data,
    on_end,
    on_writable,
    on_post,
    on_timer,
    on_deadline,
    on_connect_failed,
    on_drain,
    on_denied,
    on_datagram,
    on_close,
    on_connection,
    count_
};
inline const char* name(life_hook hook) noexcept {
    constexpr const char* names[] = {"on_open",     "on_data",     "on_end",   "on_writable",
                                     "on_post",     "on_timer",    "on_deadline",
                                     "on_connect_failed", "on_drain", "on_denied",
                                     "on_datagram", "on_close",    "on_connection"};
    static_assert(sizeof(names) / sizeof(names[0]) == static_cast<std::size_t>(life_hook::count_));
    return names[static_cast<std::size_t>(hook)];
}

/// Calls from outside and what the gate said.
enum class life_act : std::uint8_t {
    kill,
    kill_refused,
    close,
    close_refused,
    door_shut,
    door_opened,
    control_normal,
    control_shed,
    control_lockdown,
    remove_listener,
    listen_again,
    listen_full,
    let_in_during_lockdown,
    readmitted,
    refused_silently,
    refused_with_answer,
    refused_when_named,
    denied_silently,
    denied_with_answer,
    tightened_once,
    tightened_twice,
    count_
};
inline const char* name(life_act act) noexcept {
    constexpr const char* names[] = {
        "kill",           "kill refused",     "close",           "close refused",
        "door shut",      "door opened",      "control normal",  "control shed",
        "control lockdown", "remove_listener", "listen again",    "listen: full",
        "in during lockdown", "readmitted",   "refused silently", "refused with answer",
        "refused when named", "denied silently", "denied with answer", "tightened once",
        "tightened twice"};
    static_assert(sizeof(names) / sizeof(names[0]) == static_cast<std::size_t>(life_act::count_));
    return names[static_cast<std::size_t>(act)];
}

/// Sums over lives.
struct life_counts {
    template <class Kind>
    using table = std::array<std::uint64_t, static_cast<std::size_t>(Kind::count_)>;
    table<close_kind> reasons{};
    table<refusal_cause> causes{};
    table<server_event_kind> told{};
    table<life_hook> hooks{};
    table<life_act> acts{};
    table<error> own_errors{};  // of calls that answered at once
    std::array<std::uint64_t, 8> deadlines{};
    sim_counts sim;
    std::uint64_t connections = 0;
    std::uint64_t lives = 0;
    std::uint64_t bytes_checked = 0;
    std::uint64_t moved = 0;
    std::uint64_t moved_to_others = 0;
    std::uint64_t complete_streams = 0;

    template <class Kind>
    static void count(table<Kind>& in, Kind what) noexcept {
        ++in[static_cast<std::size_t>(what)];
    }
    void add(const life_counts& other) noexcept {
        const auto sum = [](auto& to, const auto& from) {
            for (std::size_t at = 0; at < to.size(); ++at) {
                to[at] += from[at];
            }
        };
        sum(reasons, other.reasons);
        sum(causes, other.causes);
        sum(told, other.told);
        sum(hooks, other.hooks);
        sum(acts, other.acts);
        sum(own_errors, other.own_errors);
        sum(deadlines, other.deadlines);
        sim.add(other.sim);
        connections += other.connections;
        lives += other.lives;
        bytes_checked += other.bytes_checked;
        moved += other.moved;
        moved_to_others += other.moved_to_others;
        complete_streams += other.complete_streams;
    }
};

}  // namespace netio_test

#endif
