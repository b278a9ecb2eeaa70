// g++ -std=c++20 -O2 -I. bench/micro/pool_bench.cpp -o pool_bench -lbenchmark_main -lbenchmark -lpthread
//
// What it costs to take a buffer and give it back: with wiping against memset of the same bytes,
// and without either. Beside them the slab and the post queue.
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

namespace {

constexpr std::uint32_t pool_bench_bytes = 16 * 1024;
constexpr std::uint32_t pool_bench_count = 64;

struct pool_bench_setup {
    std::vector<std::byte> data{std::size_t{pool_bench_bytes} * pool_bench_count};
    std::vector<std::uint32_t> links = std::vector<std::uint32_t>(pool_bench_count);
    netio::buffer_pool pool;

    explicit pool_bench_setup(bool wipe) {
        pool.attach(data.data(), links.data(), pool_bench_count, pool_bench_bytes,
                    pool_bench_count / 2, pool_bench_count / 2, wipe);
    }
};

void take_give(benchmark::State& state, bool wipe) {
    pool_bench_setup setup(wipe);
    const auto dirty_bytes = static_cast<std::uint32_t>(state.range(0));
    for (auto turn : state) {
        const std::uint32_t index = setup.pool.take(netio::side::input);
        benchmark::DoNotOptimize(setup.pool.data(index));
        setup.pool.give(index, netio::side::input, dirty_bytes);
    }
}

void plain_memset(benchmark::State& state) {
    std::vector<std::byte> data(pool_bench_bytes);
    const auto dirty_bytes = static_cast<std::size_t>(state.range(0));
    for (auto turn : state) {
        std::byte* at = data.data();
        benchmark::DoNotOptimize(at);
        std::memset(at, 0, dirty_bytes);
        benchmark::ClobberMemory();
    }
}

void slab_take_give(benchmark::State& state) {
    std::vector<std::uint64_t> slots(128 / 8 * 1024);
    netio::slab slab;
    slab.attach(reinterpret_cast<std::byte*>(slots.data()), 128, 1024);
    for (auto turn : state) {
        const std::uint32_t index = slab.take();
        benchmark::DoNotOptimize(index);
        slab.give(index);
    }
}

void post_push_pop(benchmark::State& state) {
    std::vector<std::uint64_t> cells(netio::post_queue::cell_bytes / 8 * 1024);
    netio::post_queue queue;
    queue.attach(reinterpret_cast<std::byte*>(cells.data()), 1024);
    netio::post out{};
    for (auto turn : state) {
        queue.push({1, 2});
        queue.pop(out);
        benchmark::DoNotOptimize(out);
    }
}

BENCHMARK(plain_memset)->Arg(0)->Arg(2048)->Arg(16384);
BENCHMARK_CAPTURE(take_give, wiped, true)->Arg(0)->Arg(2048)->Arg(16384);
BENCHMARK_CAPTURE(take_give, kept, false)->Arg(16384);
BENCHMARK(slab_take_give);
BENCHMARK(post_push_pop);

}  // namespace
