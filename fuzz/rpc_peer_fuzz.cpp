// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/rpc_peer_fuzz.cpp -o fuzz.out
//
// The first byte chooses: who answers calls, against a peer whose requests, promises and junk the
// bytes choose; who makes them, against a peer whose answers they choose; or both ends, with little
// room between them. Each against a slow model (tests/rpc_peer_trial.hpp and its neighbours).
#include "tests/rpc_caller_trial.hpp"
#include "tests/rpc_peer_trial.hpp"
#include "tests/rpc_session_trial.hpp"
#include "tests/trial_runs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::span<const std::uint8_t> program(data + 1, size - 1);
    switch (data[0] % 3) {
    case 0: netio_test::run_or_abort(rpc_peer_trial::trial(program)); break;
    case 1: netio_test::run_or_abort(rpc_peer_trial::caller_trial(program)); break;
    default: netio_test::run_or_abort(rpc_peer_trial::session_trial(program)); break;
    }
    return 0;
}
