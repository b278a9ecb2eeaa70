// Peers by seed against models of what they must hear. NETIO_LONG=1 tries many more.
#include "tests/rpc_peer_trial.hpp"

#include "tests/rpc_caller_trial.hpp"
#include "tests/rpc_session_trial.hpp"
#include "tests/trial_runs.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

namespace {

template <class Trial>
void rpc_trial_by_seeds() {
    const std::uint32_t programs = std::getenv("NETIO_LONG") != nullptr ? 100'000 : 500;
    std::uint64_t state = 1;
    for (std::uint32_t seed = 1; seed <= programs; ++seed) {
        const auto program = netio_test::random_program(state, 60 + seed % 400);
        Trial trial(program);
        CAPTURE(seed);
        trial.run();
        CHECK(trial.wrong == "");
    }
}

}  // namespace

TEST_CASE("rpc peer trial: programs of requests, promises and junk agree with the model") {
    rpc_trial_by_seeds<rpc_peer_trial::trial>();
}

TEST_CASE("rpc peer trial: a caller hears answers to its calls alone, whatever comes") {
    rpc_trial_by_seeds<rpc_peer_trial::caller_trial>();
}

TEST_CASE("rpc peer trial: both ends with little room between them") {
    rpc_trial_by_seeds<rpc_peer_trial::session_trial>();
}
