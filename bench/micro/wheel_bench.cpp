// g++ -std=c++20 -O2 -I. bench/micro/wheel_bench.cpp -o wheel_bench -lbenchmark_main -lbenchmark -lpthread
//
// 1,000,000 timers due within a minute, in ticks of a millisecond. Two patterns: `steady`, where
// timers are armed in the order in which they come due (one time-out for all, the way a server
// arms them), and `random`, where every neighbour in a list is a cache miss. Two layouts: `dense`,
// nodes of 16 bytes side by side, and `slots`, one node in each slot of 128 bytes. A row's floor is
// a chain of links through the same memory in the order in which the row visits the timers, and no
// work: what merely reaching each timer costs. Expire visits in the order of ticks, the others in
// the order of indexes. A million timers: milliseconds of an iteration are nanoseconds a timer.
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <vector>

#include <time.h>

namespace {

constexpr std::uint32_t wheel_bench_count = 1'000'000;
constexpr std::uint64_t wheel_bench_span = 60'000;

struct wheel_bench_setup {
    std::size_t stride;
    std::vector<std::uint64_t> heads;
    std::vector<std::uint64_t> memory;
    std::vector<std::uint64_t> dues;
    netio::wheel wheel;

    wheel_bench_setup(std::size_t stride_bytes, bool steady)
        : stride(stride_bytes),
          heads(netio::wheel::heads_bytes / 8 + 1),
          memory(stride_bytes / 8 * wheel_bench_count),
          dues(wheel_bench_count) {
        std::mt19937_64 random(7);
        for (std::uint32_t index = 0; index < wheel_bench_count; ++index) {
            dues[index] = 1 + (steady ? index * wheel_bench_span / wheel_bench_count
                                      : random() % wheel_bench_span);
        }
        reset();
    }
    void reset() {
        std::fill(heads.begin(), heads.end(), 0);
        std::fill(memory.begin(), memory.end(), 0);
        wheel.attach(reinterpret_cast<std::byte*>(heads.data()),
                     reinterpret_cast<std::byte*>(memory.data()), stride, wheel_bench_count, 0);
    }
    void arm_all() {
        for (std::uint32_t index = 0; index < wheel_bench_count; ++index) {
            wheel.arm(index, dues[index]);
        }
    }
};

/// Processor time of this thread, so that neighbours on the machine count less.
double wheel_bench_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Times `timed` alone, once an iteration, after `prepare`.
template <class Prepare, class Timed>
void wheel_bench_run(benchmark::State& state, Prepare&& prepare, Timed&& timed) {
    for (auto turn : state) {
        prepare();
        const double start = wheel_bench_seconds();
        timed();
        state.SetIterationTime(wheel_bench_seconds() - start);
    }
}

void insert(benchmark::State& state, std::size_t stride, bool steady) {
    wheel_bench_setup setup(stride, steady);
    wheel_bench_run(state, [&] { setup.reset(); }, [&] { setup.arm_all(); });
}

/// What an owner does to extend: one store, no call.
void lazy_extend(benchmark::State& state, std::size_t stride, bool steady) {
    wheel_bench_setup setup(stride, steady);
    std::vector<std::uint64_t> deadlines(stride == 16 ? wheel_bench_count : 0);
    std::uint64_t* const first = stride == 16 ? deadlines.data() : setup.memory.data() + 2;
    const std::size_t step = stride == 16 ? 1 : stride / 8;
    setup.arm_all();
    wheel_bench_run(state, [] {}, [&] {
        for (std::uint32_t index = 0; index < wheel_bench_count; ++index) {
            first[step * index] = setup.dues[index];
            benchmark::ClobberMemory();
        }
    });
}

void move_later(benchmark::State& state, std::size_t stride, bool steady) {
    wheel_bench_setup setup(stride, steady);
    wheel_bench_run(state, [&] { setup.reset(); setup.arm_all(); }, [&] {
        for (std::uint32_t index = 0; index < wheel_bench_count; ++index) {
            setup.wheel.arm(index, setup.dues[index] + 1000);
        }
    });
}

void cancel(benchmark::State& state, std::size_t stride, bool steady) {
    wheel_bench_setup setup(stride, steady);
    wheel_bench_run(state, [&] { setup.reset(); setup.arm_all(); }, [&] {
        for (std::uint32_t index = 0; index < wheel_bench_count; ++index) {
            setup.wheel.cancel(index);
        }
    });
}

void expire(benchmark::State& state, std::size_t stride, bool steady) {
    wheel_bench_setup setup(stride, steady);
    std::uint64_t fired = 0;
    wheel_bench_run(state, [&] { setup.reset(); setup.arm_all(); }, [&] {
        for (std::uint64_t now = 1; now <= wheel_bench_span; ++now) {
            fired += setup.wheel.expire(now, wheel_bench_count,
                                        [](std::uint32_t) noexcept { return netio::wheel::done; });
        }
    });
    if (setup.wheel.count() != 0 || fired % wheel_bench_count != 0) {
        state.SkipWithError("a timer was lost");
    }
}

/// A link in place of each node, in the order of ticks or of indexes.
void chase(benchmark::State& state, std::size_t stride, bool steady, bool by_tick) {
    wheel_bench_setup setup(stride, steady);
    std::vector<std::uint32_t> order(wheel_bench_count);
    for (std::uint32_t index = 0; index < wheel_bench_count; ++index) {
        order[index] = index;
    }
    if (by_tick) {
        std::stable_sort(order.begin(), order.end(), [&](std::uint32_t one, std::uint32_t other) {
            return setup.dues[one] < setup.dues[other];
        });
    }
    const std::size_t step = stride / 8;
    for (std::uint32_t at = 0; at < wheel_bench_count; ++at) {
        setup.memory[step * order[at]] = order[(at + 1) % wheel_bench_count];
    }
    std::uint64_t at = order[0];
    wheel_bench_run(state, [] {}, [&] {
        for (std::uint32_t more = wheel_bench_count; more > 0; --more) {
            at = setup.memory[step * at];
        }
        benchmark::DoNotOptimize(at);
    });
}

void insert_floor(benchmark::State& state, std::size_t stride, bool steady) {
    chase(state, stride, steady, false);
}
void cancel_floor(benchmark::State& state, std::size_t stride, bool steady) {
    chase(state, stride, steady, false);
}
void expire_floor(benchmark::State& state, std::size_t stride, bool steady) {
    chase(state, stride, steady, true);
}

#define NETIO_WHEEL_ROW(what, name, ...)                                                           \
    BENCHMARK_CAPTURE(what, name, __VA_ARGS__)->UseManualTime()->Unit(benchmark::kMillisecond)
#define NETIO_WHEEL_ROWS(what)                                                                     \
    NETIO_WHEEL_ROW(what, dense/steady, 16, true);                                                 \
    NETIO_WHEEL_ROW(what, dense/random, 16, false);                                                \
    NETIO_WHEEL_ROW(what, slots/steady, 128, true);                                                \
    NETIO_WHEEL_ROW(what, slots/random, 128, false)

NETIO_WHEEL_ROWS(insert);
NETIO_WHEEL_ROWS(lazy_extend);
NETIO_WHEEL_ROWS(move_later);
NETIO_WHEEL_ROWS(cancel);
NETIO_WHEEL_ROWS(expire);
NETIO_WHEEL_ROWS(insert_floor);
NETIO_WHEEL_ROWS(cancel_floor);
NETIO_WHEEL_ROWS(expire_floor);

}  // namespace
