// g++ -std=c++20 -O2 -I. bench/micro/datagram_bench.cpp -o datagram_bench -lbenchmark_main -lbenchmark -lpthread
//
// What the guard of a UDP socket costs a datagram that comes in and its answer, of so many sources
// in turn; the floor is the same without a table. Over: a flood of one source, all of it dropped.
// Spoofed: each datagram from a source never seen before, in a table that is full.
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <vector>

namespace {

namespace detail = netio::detail;

constexpr std::uint32_t datagram_bench_sources = 4'096;

struct datagram_bench_setup {
    std::vector<std::uint64_t> memory;
    detail::datagram_sources sources;
    detail::datagram_guard guard{};
    std::uint64_t now_ns = 0;

    explicit datagram_bench_setup(std::uint32_t most = datagram_bench_sources)
        : memory(std::size_t{detail::datagram_sources::places_for(most)} *
                 detail::datagram_sources::source_bytes / 8) {
        sources.attach(reinterpret_cast<std::byte*>(memory.data()),
                       detail::datagram_sources::places_for(most));
        const std::uint64_t key[2] = {0x0123456789abcdef, 77};
        sources.set_key(key);
        guard.set({{detail::token_rate::of(netio::datagram_source_rate,
                                           netio::datagram_source_burst),
                    detail::token_rate::of(netio::datagram_source_bytes_rate,
                                           netio::datagram_source_bytes_burst)},
                   {},
                   1,
                   10'000'000'000,
                   60'000'000'000},
                  0);
    }
    static netio::endpoint from(std::uint32_t number) {
        const std::uint32_t mixed = number * 2654435761u;
        return netio::ipv4(static_cast<std::uint8_t>(mixed >> 24),
                           static_cast<std::uint8_t>(mixed >> 16),
                           static_cast<std::uint8_t>(mixed >> 8), static_cast<std::uint8_t>(mixed),
                           4000);
    }
    bool comes(const netio::endpoint& who) {
        if (guard.admit(sources, who, 64, now_ns) != detail::datagram_word::welcome) {
            return false;
        }
        guard.received(sources, who, 64, now_ns);
        return true;
    }
};

void datagram_in_and_out(benchmark::State& state) {
    const auto count = static_cast<std::uint32_t>(state.range(0));
    datagram_bench_setup setup;
    std::uint32_t number = 0;
    for (auto turn : state) {
        const netio::endpoint who = datagram_bench_setup::from(number);
        setup.now_ns += 1'000'000;
        bool went = setup.comes(who);
        went = setup.guard.may_send(setup.sources, who, 64, setup.now_ns) && went;
        benchmark::DoNotOptimize(went);
        number = number + 1 < count ? number + 1 : 0;
    }
}

void datagram_over(benchmark::State& state) {
    datagram_bench_setup setup;
    const netio::endpoint who = datagram_bench_setup::from(1);
    for (auto turn : state) {
        benchmark::DoNotOptimize(setup.comes(who));
    }
}

void datagram_spoofed(benchmark::State& state) {
    datagram_bench_setup setup;
    std::uint32_t number = 0;
    for (auto turn : state) {
        benchmark::DoNotOptimize(setup.comes(datagram_bench_setup::from(++number)));
    }
}

void datagram_in_and_out_floor(benchmark::State& state) {
    datagram_bench_setup setup(0);
    std::uint32_t number = 0;
    for (auto turn : state) {
        const netio::endpoint who = datagram_bench_setup::from(++number);
        bool went = setup.comes(who);
        went = setup.guard.may_send(setup.sources, who, 64, setup.now_ns) && went;
        benchmark::DoNotOptimize(went);
    }
}

BENCHMARK(datagram_in_and_out)->Arg(1)->Arg(100)->Arg(2'000);
BENCHMARK(datagram_over);
BENCHMARK(datagram_spoofed);
BENCHMARK(datagram_in_and_out_floor);

}  // namespace
