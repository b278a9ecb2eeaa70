// g++ -std=c++20 -O2 -DNDEBUG -I. bench/micro/rpc_bench.cpp -lbenchmark_main -lbenchmark -lpthread -o rpc_bench
//
// A call through the capability kernel: three arguments written, checked, charged, queued,
// dispatched, its result charged, kept and read. Eight of them one after the other, and in one
// batch. The floor is what no kernel can save: the arguments copied in, the provider called through
// a pointer, its result copied out. And what it costs to keep bytes beyond a call.
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

namespace {

namespace rpc = netio::rpc;

struct rpc_bench_provider {
    static constexpr rpc::method methods[] = {{"get"}, {"put", true}, {"stats"}};
    std::int64_t calls = 0;

    void invoke(rpc::invocation& call) noexcept {
        ++calls;
        call.reply().value_int(call.value_at(0).as_int() + call.value_at(1).as_int());
    }
};

struct rpc_bench_setup {
    rpc::rpc_limits sizes;
    std::vector<std::byte> memory = std::vector<std::byte>(rpc::bytes_needed(sizes));
    rpc::kernel kernel{memory, sizes, {1, 2}};
    rpc_bench_provider provider;
    rpc::lane_id lane;
    rpc::capability target;
    std::byte room[256];

    rpc_bench_setup() {
        static constexpr std::string_view names[] = {"get", "put", "stats"};
        rpc::grant what;
        what.methods = names;
        what.spend.calls_max = what.spend.bytes_max = ~std::uint64_t{0};
        lane = kernel.open_lane(what.spend).value;
        target = kernel.mint(kernel.add_provider(provider).value, 1, what).value;
    }
    rpc::promise_id call(std::int64_t number, rpc::promise_id before = {}) {
        rpc::writer out(room);
        out.begin_arguments().value_int(number);
        if (before.bits != 0) {
            out.promise(before.bits);
        } else {
            out.value_int(1);
        }
        out.value_text("some text");
        const auto made = kernel.call(lane, target, "stats",
                                      {out.finish_arguments(), {}, 0, rpc::own_promise});
        if (!made) {
            std::abort();
        }
        return made.value;
    }
    void read(rpc::promise_id from) {
        const auto held = kernel.await(from);
        if (held.value.state != rpc::promise_state::resolved) {
            std::abort();
        }
        auto number = held.value.value.as_int();
        benchmark::DoNotOptimize(number);
    }
};

void rpc_call_dispatch(benchmark::State& state) {
    rpc_bench_setup setup;
    std::int64_t number = 0;
    for (auto turn : state) {
        setup.read(setup.call(++number));
    }
}

/// An argument of each is the promise before it, in the batch; its value, one after the other.
void rpc_eight_calls_sequential(benchmark::State& state) {
    rpc_bench_setup setup;
    for (auto turn : state) {
        for (std::int64_t number = 0; number < 8; ++number) {
            setup.read(setup.call(number));
        }
    }
}

void rpc_eight_calls_batched(benchmark::State& state) {
    rpc_bench_setup setup;
    for (auto turn : state) {
        rpc::promise_id made[8];
        for (std::int64_t number = 0; number < 8; ++number) {
            made[number] = setup.call(number);
        }
        for (const rpc::promise_id each : made) {
            setup.read(each);
        }
    }
}

void rpc_eight_calls_pipelined(benchmark::State& state) {
    rpc_bench_setup setup;
    for (auto turn : state) {
        rpc::promise_id last{};
        for (std::int64_t number = 0; number < 8; ++number) {
            last = setup.call(number, last);
        }
        setup.read(last);
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
    rpc_bench_setup setup;
    const std::span<const rpc::piece_class> classes = rpc::detail::classes_of(setup.sizes);
    std::vector<std::byte> memory(rpc::detail::piece_store::bytes_needed(classes) + 64);
    std::byte* at = memory.data();
    at += (64 - reinterpret_cast<std::uintptr_t>(at) % 64) % 64;
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
