// floor 4 · dial.hpp · outgoing connections by the first of several addresses, tried again
#ifndef NETIO_DIAL_HPP
#define NETIO_DIAL_HPP

#include "src/backoff.hpp"
#include "src/endpoint.hpp"
#include "src/slab.hpp"
#include "src/wheel.hpp"

NETIO_BEGIN

/// Candidates of one dial.
inline constexpr std::uint32_t dial_candidates_max = 8;

/// What `dial_options::attempt_delay_ms` may be (RFC 8305, section 8).
inline constexpr std::uint32_t attempt_delay_ms_min = 100;
inline constexpr std::uint32_t attempt_delay_ms_max = 2'000;

/// How a dial goes about it. The defaults are those of RFC 8305, sections 5 and 8, and one round.
///
/// A round tries the candidates in their order: the next one when one has failed, or when nothing
/// was heard for `attempt_delay_ms`. The first that connects wins, the others are reset. A round
/// has failed when all of them have, or when `deadlines::connect_ms` of the server's
/// `connect_options` is over. Then comes the next round, after `backoff`, if there is to be one.
struct dial_options {
    std::uint32_t attempt_delay_ms = 250;
    /// Attempts under way at once, 1 to 8. Each holds a connection's slot and a descriptor; while
    /// as many are silent, the candidates after them wait.
    std::uint32_t attempts_max = 4;
    /// 1: no second try; 0: until something ends it.
    std::uint32_t rounds_max = 1;
    /// From the call to `on_open`, rounds and delays together; 0: no bound.
    std::uint32_t within_ms = 0;
    /// Before the second round, the third, and so on. A dial holds nothing but its place in the
    /// table while it waits.
    backoff_options backoff{};
};

/// Names a dial of `server::dial`, as long as it is under way. All-zero: none.
struct dial_id {
    std::uint64_t bits = 0;
    constexpr explicit operator bool() const noexcept { return bits != 0; }
    constexpr bool operator==(const dial_id&) const noexcept = default;
};

namespace detail {

/// Which of two failures says more: an answer of the peer, then silence, then what the system says
/// of the way there, then netio's own bounds.
constexpr std::uint32_t telling(error why) noexcept {
    switch (why) {
    case error::none:
        return 0;
    case error::full:
    case error::cancelled:
    case error::stopped:
    case error::refused_by_gate:
        return 1;
    case error::timed_out:
        return 3;
    case error::connection_refused:
    case error::connection_reset:
    case error::connection_aborted:
        return 4;
    default:
        return 2;
    }
}

/// none, or what is wrong with a dial.
constexpr error wrong_with(std::span<const endpoint> candidates, const dial_options& how) noexcept {
    if (candidates.empty() || candidates.size() > dial_candidates_max ||
        how.attempt_delay_ms < attempt_delay_ms_min ||
        how.attempt_delay_ms > attempt_delay_ms_max || how.attempts_max == 0 ||
        how.attempts_max > dial_candidates_max || !is_sane(how.backoff)) {
        return error::option_invalid;
    }
    for (const endpoint& each : candidates) {
        if (each.family != address_family::ipv4 && each.family != address_family::ipv6) {
            return error::address_invalid;
        }
    }
    return error::none;
}

/// One dial: what it wants, and how far it is. Decides when it may go on; the reactor does it.
struct dial_entry {
    slot_header header;
    std::uint64_t word;
    std::uint64_t over_ms;   // the end of everything, or never
    std::uint64_t round_ms;  // the end of this round, or never
    std::uint64_t next_ms;   // the next attempt may start; while it rests: the next round
    dial_options how;
    std::uint32_t rounds;    // begun
    std::uint32_t candidate_count;
    std::uint32_t next;      // candidate
    std::uint32_t attempt_count;
    std::uint32_t attempts[dial_candidates_max];  // their slots
    error why;               // the most telling failure of this round
    bool rests;              // between two rounds
    bool is_cancelled;       // and waits to be told so
    endpoint candidates[dial_candidates_max];

    void begin(std::span<const endpoint> to, std::uint64_t told, const dial_options& wanted,
               std::uint64_t now_ms) noexcept {
        NETIO_ASSERT(wrong_with(to, wanted) == error::none);
        word = told;
        how = wanted;
        over_ms = wanted.within_ms == 0 ? wheel::never : now_ms + wanted.within_ms;
        for (const endpoint& each : to) {
            candidates[candidate_count++] = each;
        }
    }
    /// `connect_ms` 0: a round has no end of its own.
    void begin_round(std::uint32_t connect_ms, std::uint64_t now_ms) noexcept {
        NETIO_ASSERT(attempt_count == 0);
        ++rounds;
        next = 0;
        why = error::none;
        rests = false;
        next_ms = 0;
        round_ms = connect_ms == 0 ? wheel::never : now_ms + connect_ms;
        round_ms = over_ms < round_ms ? over_ms : round_ms;
    }
    void rest_until(std::uint64_t at) noexcept {
        NETIO_ASSERT(attempt_count == 0);
        rests = true;
        next_ms = at;
    }
    bool has_room() const noexcept {
        return !rests && next < candidate_count && attempt_count < how.attempts_max;
    }
    bool may_start(std::uint64_t now_ms) const noexcept {
        return has_room() && (attempt_count == 0 || now_ms >= next_ms);
    }
    bool has_failed() const noexcept {
        return !rests && attempt_count == 0 && next == candidate_count;
    }
    /// When it wants to be looked at, if nothing happens before.
    std::uint64_t due() const noexcept {
        if (is_cancelled || rests) {
            return is_cancelled ? 0 : next_ms;
        }
        return has_room() && next_ms < round_ms ? next_ms : round_ms;
    }
    void started(std::uint32_t slot, std::uint64_t now_ms) noexcept {
        NETIO_ASSERT(attempt_count < dial_candidates_max);
        attempts[attempt_count++] = slot;
        next_ms = now_ms + how.attempt_delay_ms;
    }
    /// An attempt failed, or could not start: the next one need not wait.
    void failed(error reason) noexcept {
        why = telling(reason) > telling(why) ? reason : why;
        next_ms = 0;
    }
    void forget(std::uint32_t slot) noexcept {
        std::uint32_t at = 0;
        while (at < attempt_count && attempts[at] != slot) {
            ++at;
        }
        NETIO_ASSERT(at < attempt_count);
        attempts[at] = attempts[--attempt_count];
    }
};

}  // namespace detail

NETIO_END

#endif
