// g++ -std=c++20 -O2 -DNDEBUG -I. bench/micro/crc32c_bench.cpp -lbenchmark_main -lbenchmark -lpthread -o crc32c_bench
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <vector>

namespace {

std::vector<std::byte> sample(std::int64_t count) {
    std::vector<std::byte> out(static_cast<std::size_t>(count));
    for (std::size_t at = 0; at < out.size(); ++at) {
        out[at] = static_cast<std::byte>(at * 7);
    }
    return out;
}

void crc32c_best(benchmark::State& state) {
    const std::vector<std::byte> in = sample(state.range(0));
    for (auto _ : state) {
        benchmark::DoNotOptimize(netio::crc32c(in));
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

void crc32c_portable(benchmark::State& state) {
    const std::vector<std::byte> in = sample(state.range(0));
    for (auto _ : state) {
        benchmark::DoNotOptimize(netio::detail::crc32c_portable(in.data(), in.size(), 0));
    }
    state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(crc32c_best)->Arg(8)->Arg(64)->Arg(100)->Arg(256)->Arg(536)->Arg(4096)->Arg(65536);
BENCHMARK(crc32c_portable)->Arg(64)->Arg(256)->Arg(4096);

}  // namespace
