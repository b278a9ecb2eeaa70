// floor 2 · stats.hpp · what every pool tells of itself
#ifndef NETIO_STATS_HPP
#define NETIO_STATS_HPP

#include "src/base.hpp"

NETIO_BEGIN

/// The index that stands for "there is none" in every part of floor 3.
inline constexpr std::uint32_t none_index = 0xFFFFFFFF;

/// One line of the table of pools. A pool whose high water stands at its capacity, or that refused
/// anything, was too small at least once.
struct pool_stats {
    const char* name = "";           // static text
    std::uint32_t capacity = 0;
    std::uint32_t in_use = 0;
    std::uint32_t high_water = 0;    // the most that were in use at once
    std::uint64_t refused = 0;       // asked for while all were in use
};

NETIO_END

#endif
