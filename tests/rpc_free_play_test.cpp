// The capability kernel, played freely: random programs, the same for the same seed.
// NETIO_LONG=1 runs a million.
#include "tests/rpc_free_play.hpp"
#include "tests/trial_runs.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

TEST_CASE("rpc kernel: random programs of all functions keep its rules, tables empty again") {
    const char* const wanted = std::getenv("NETIO_LONG");
    const std::uint64_t programs = wanted != nullptr && *wanted == '1' ? 1'000'000 : 2'000;
    std::uint64_t state = 1;
    std::uint64_t held = 0;
    for (std::uint64_t seed = 1; seed <= programs; ++seed, ++held) {
        const auto program = netio_test::random_program(state, 64 + seed % 512);
        rpc_free_play::trial trial(program);
        if (!trial.run()) {
            CAPTURE(seed);
            FAIL_CHECK(trial.wrong);
            break;
        }
    }
    CHECK(held == programs);
}
