// g++ -std=c++20 -O2 -DNDEBUG -I. bench/micro/rpc_bench.cpp -lbenchmark_main -lbenchmark -lpthread -o rpc_bench
//
// A call through the capability kernel: three arguments written, checked, charged, queued,
// dispatched, its result charged, kept and read. Eight of them one after the other, and in one
// batch. The floor is what no kernel can save: the arguments copied in, the provider called through
// a pointer, its result copied out. And what it costs to keep bytes beyond a call.
#include "bench/rpc_calls.hpp"
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

namespace {

namespace rpc = netio::rpc;
using rpc_bench::calling;

void rpc_call_dispatch(benchmark::State& state) {
    calling setup;
    std::int64_t number = 0;
    for (auto turn : state) {
        benchmark::DoNotOptimize(setup.read(setup.call(++number)));
    }
}

void rpc_eight_calls_sequential(benchmark::State& state) {
    calling setup;
    for (auto turn : state) {
        benchmark::DoNotOptimize(setup.one_by_one(8));
    }
}

void rpc_eight_calls_batched(benchmark::State& state) {
    calling setup;
    for (auto turn : state) {
        benchmark::DoNotOptimize(setup.in_a_batch());
    }
}

/// An argument of each is the promise before it.
void rpc_eight_calls_pipelined(benchmark::State& state) {
    calling setup;
    for (auto turn : state) {
        rpc::promise_id last{};
        for (std::int64_t number = 0; number < 8; ++number) {
            last = setup.call(number, last);
        }
        benchmark::DoNotOptimize(setup.read(last));
    }
}

void rpc_call_dispatch_floor(benchmark::State& state) {
    std::byte from[34] = {};
    std::byte held[64];
    std::byte result[16];
    std::int64_t calls = 0;
    void (*invoke)(std::int64_t&, const std::byte*, std::byte*) =
        [](std::int64_t& counted, const std::byte* in, std::byte* out) {
            ++counted;
            std::memcpy(out, in, 10);
        };
    for (auto turn : state) {
        benchmark::DoNotOptimize(invoke);
        std::memcpy(held, from, sizeof(from));
        benchmark::ClobberMemory();
        invoke(calls, held, result);
        benchmark::DoNotOptimize(result);
    }
}

/// Bytes that outlive a call: copied into a piece, and the piece given back, wiped.
void rpc_piece(benchmark::State& state) {
    calling setup;
    const std::span<const rpc::piece_class> classes = rpc::detail::classes_of(setup.sizes);
    std::vector<std::byte> memory(rpc::detail::piece_store::bytes_needed(classes) + 64);
    std::byte* at = memory.data();
    at += netio::detail::bytes_to_aligned(at, 64);
    rpc::detail::piece_store store;
    store.attach(at, classes);
    const std::vector<std::byte> content(static_cast<std::size_t>(state.range(0)));
    for (auto turn : state) {
        netio::bytes from = content;
        benchmark::DoNotOptimize(from);
        const std::uint32_t piece = store.keep(from);
        benchmark::DoNotOptimize(piece);
        store.give(piece, static_cast<std::uint32_t>(from.size()));
    }
}

void rpc_piece_floor(benchmark::State& state) {
    std::vector<std::byte> room(64 * 1024);
    const std::vector<std::byte> content(static_cast<std::size_t>(state.range(0)));
    for (auto turn : state) {
        netio::bytes from = content;
        benchmark::DoNotOptimize(from);
        std::memcpy(room.data(), from.data(), from.size());
        benchmark::ClobberMemory();
        std::memset(room.data(), 0, from.size());
        benchmark::ClobberMemory();
    }
}

BENCHMARK(rpc_piece)->Arg(34)->Arg(3'000)->Arg(60'000);
BENCHMARK(rpc_piece_floor)->Arg(34)->Arg(3'000)->Arg(60'000);
BENCHMARK(rpc_call_dispatch);
BENCHMARK(rpc_eight_calls_sequential);
BENCHMARK(rpc_eight_calls_batched);
BENCHMARK(rpc_eight_calls_pipelined);
BENCHMARK(rpc_call_dispatch_floor);

}  // namespace
