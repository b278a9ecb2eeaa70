// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/rpc_peer_fuzz.cpp -o fuzz.out
//
// Who answers calls, against a peer whose requests, promises and junk the bytes choose, and a slow
// model of what it must hear (tests/rpc_peer_trial.hpp).
#include "tests/rpc_peer_trial.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    rpc_peer_trial::trial trial({data, size});
    if (!trial.run()) {
        std::fprintf(stderr, "%s\n", trial.wrong.c_str());
        std::abort();
    }
    return 0;
}
