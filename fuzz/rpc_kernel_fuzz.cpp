// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/rpc_kernel_fuzz.cpp -o fuzz.out
//
// The capability kernel against its slow model: bytes are a program of mint, attenuate, call,
// revoke, dispatch and the rest, and both must agree after each step (tests/rpc_model.hpp).
#include "tests/rpc_model.hpp"

#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    rpc_model::trial trial({data, size});
    if (!trial.run()) {
        std::fprintf(stderr, "%s\n", trial.wrong.c_str());
        std::abort();
    }
    return 0;
}
