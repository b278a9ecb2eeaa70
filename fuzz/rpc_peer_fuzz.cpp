// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/rpc_peer_fuzz.cpp -o fuzz.out
//
// The first byte chooses: who answers calls, against a peer whose requests, promises and junk the
// bytes choose; who makes them, against a peer whose answers they choose; or both ends, with little
// room between them. Each against a slow model (tests/rpc_peer_trial.hpp and its neighbours).
#include "tests/rpc_caller_trial.hpp"
#include "tests/rpc_peer_trial.hpp"
#include "tests/rpc_session_trial.hpp"

#include <cstdlib>

namespace {

template <class Trial>
void rpc_peer_fuzz_try(std::span<const std::uint8_t> program) {
    Trial trial(program);
    if (!trial.run()) {
        std::fprintf(stderr, "%s\n", trial.wrong.c_str());
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::span<const std::uint8_t> program(data + 1, size - 1);
    switch (data[0] % 3) {
    case 0: rpc_peer_fuzz_try<rpc_peer_trial::trial>(program); break;
    case 1: rpc_peer_fuzz_try<rpc_peer_trial::caller_trial>(program); break;
    default: rpc_peer_fuzz_try<rpc_peer_trial::session_trial>(program); break;
    }
    return 0;
}
