// g++ -std=c++20 -O2 -I. bench/micro/source_bench.cpp -o source_bench -lbenchmark_main -lbenchmark -lpthread
//
// What it costs to count a connection of a source and to forget it again, beside as many sources
// as are connected already, by one worker of several and by the only one; the floor is two atomic
// additions to a word that is known.
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <vector>

namespace {

constexpr std::uint32_t source_bench_connections = 10'000;

struct source_bench_setup {
    std::vector<std::uint64_t> words;
    netio::source_table table;

    source_bench_setup(std::uint32_t connected, bool one_thread)
        : words(netio::source_table::words_for(source_bench_connections)) {
        table.attach(reinterpret_cast<std::byte*>(words.data()),
                     static_cast<std::uint32_t>(words.size()), 0x0123456789abcdef, 77,
                     one_thread);
        for (std::uint32_t number = 0; number < connected; ++number) {
            table.acquire(from(number), 10);
        }
    }
    static netio::source from(std::uint32_t number) {
        return {std::uint64_t{number} * 2654435761u % 4294967296u, netio::address_family::ipv4};
    }
};

void source_acquire_release(benchmark::State& state, bool one_thread) {
    const auto connected = static_cast<std::uint32_t>(state.range(0));
    source_bench_setup setup(connected, one_thread);
    std::uint32_t number = 0;
    for (auto turn : state) {
        const std::uint32_t place = setup.table.acquire(source_bench_setup::from(number), 10);
        benchmark::DoNotOptimize(place);
        setup.table.release(place);
        number = number + 1 < connected + 100 ? number + 1 : 0;
    }
}

void source_acquire_release_floor(benchmark::State& state) {
    netio::detail::atomic<std::uint64_t> word;
    for (auto turn : state) {
        benchmark::DoNotOptimize(word.fetch_add(1));
        benchmark::DoNotOptimize(word.fetch_sub(1));
    }
}

BENCHMARK_CAPTURE(source_acquire_release, of_several, false)->Arg(1)->Arg(5'000)->Arg(9'000);
BENCHMARK_CAPTURE(source_acquire_release, the_only, true)->Arg(1)->Arg(5'000)->Arg(9'000);
BENCHMARK(source_acquire_release_floor);

}  // namespace
