// Trials play a program of bytes and keep what went wrong in `wrong`: where the suite has its bytes
// from, and what a fuzz target does with its own. Test code: uses heap.
#ifndef NETIO_TESTS_TRIAL_RUNS_HPP
#define NETIO_TESTS_TRIAL_RUNS_HPP

#include "netio.hpp"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace netio_test {

/// The next program of so many bytes; the same ones follow the same state.
inline std::vector<std::uint8_t> random_program(std::uint64_t& state, std::size_t byte_count) {
    std::vector<std::uint8_t> out(byte_count);
    for (std::uint8_t& each : out) {
        each = static_cast<std::uint8_t>(netio::detail::next_random(state) >> 32);
    }
    return out;
}

/// For fuzz targets.
template <class Trial>
void run_or_abort(Trial&& trial) {
    if (!trial.run()) {
        std::fprintf(stderr, "%s\n", trial.wrong.c_str());
        std::abort();
    }
}

}  // namespace netio_test

#endif
