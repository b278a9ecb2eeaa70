// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/rpc_kernel_fuzz.cpp -o fuzz.out
//
// The capability kernel against its slow model: bytes are a program of mint, attenuate, call,
// revoke, dispatch and the rest, and both must agree after each step (tests/rpc_model.hpp). Behind
// a first byte of 0xFD they are a program of all its functions, from outside and inside of what it
// calls, of which it is only looked at what always holds (tests/rpc_free_play.hpp).
#include "tests/rpc_free_play.hpp"
#include "tests/rpc_model.hpp"
#include "tests/trial_runs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    constexpr std::uint8_t free_play = 0xFD;
    if (size != 0 && *data == free_play) {
        netio_test::run_or_abort(rpc_free_play::trial({data + 1, size - 1}));
    } else {
        netio_test::run_or_abort(rpc_model::trial({data, size}));
    }
    return 0;
}
