// floor 3 · backoff.hpp · how long to wait before the next try: doubling steps, drawn by chance
#ifndef NETIO_BACKOFF_HPP
#define NETIO_BACKOFF_HPP

#include "src/base.hpp"

NETIO_BEGIN

/// Delays between tries: `first_ms` at most before the second one, twice as long each time, never
/// longer than `most_ms`. Sane: 1 <= first_ms <= most_ms <= 2^31 - 1.
struct backoff_options {
    std::uint32_t first_ms = 100;
    std::uint32_t most_ms = 30'000;
};

namespace detail {

constexpr bool is_sane(const backoff_options& of) noexcept {
    return of.first_ms != 0 && of.first_ms <= of.most_ms && of.most_ms <= 0x7FFFFFFF;
}

/// The step after so many tries that failed (1: the first step); it stops growing at `most_ms`.
constexpr std::uint32_t backoff_step_ms(const backoff_options& of, std::uint32_t failed) noexcept {
    NETIO_ASSERT(is_sane(of));
    NETIO_ASSERT(failed != 0);
    const std::uint32_t doublings = failed - 1;
    if (doublings >= 31 || of.first_ms > (of.most_ms >> doublings)) {
        return of.most_ms;
    }
    return of.first_ms << doublings;
}

/// The delay itself: anywhere in the upper half of the step, both ends included. Whoever failed at
/// the same moment does not come back at the same moment, and none comes back at once. `random` has
/// 64 random bits, of which the upper ones decide.
constexpr std::uint32_t backoff_delay_ms(const backoff_options& of, std::uint32_t failed,
                                         std::uint64_t random) noexcept {
    const std::uint32_t step = backoff_step_ms(of, failed);
    const std::uint64_t choices = std::uint64_t{step} / 2 + 1;
    return step - static_cast<std::uint32_t>((random >> 32) * choices >> 32);
}

/// The next of a sequence of random words, by SplitMix64 (Steele, Lea, Flood 2014): each state is a
/// seed. For spreading load, not for secrets.
NETIO_WRAPS constexpr std::uint64_t next_random(std::uint64_t& state) noexcept {
    state += 0x9E3779B97F4A7C15u;
    std::uint64_t out = state;
    out = (out ^ (out >> 30)) * 0xBF58476D1CE4E5B9u;
    out = (out ^ (out >> 27)) * 0x94D049BB133111EBu;
    return out ^ (out >> 31);
}

}  // namespace detail

NETIO_END

#endif
