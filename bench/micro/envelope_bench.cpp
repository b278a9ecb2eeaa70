// g++ -std=c++20 -O2 -DNDEBUG -I. bench/micro/envelope_bench.cpp -lbenchmark_main -lbenchmark -lpthread -o envelope_bench
//
// An 868-byte request with a module as payload and six arguments, written anew and decoded with
// every check. Beside them a copy of 868 bytes.
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>

namespace {

namespace rpc = netio::rpc;

constexpr std::size_t envelope_bench_bytes = 868;
constexpr std::size_t envelope_bench_payload = 709;

std::byte envelope_bench_module[envelope_bench_payload];
std::byte envelope_bench_room[4096];

std::size_t envelope_bench_write(rpc::writer& out, netio::bytes module_content) {
    const rpc::capability_id target{};
    out.begin(rpc::envelope_kind::request, 41, "module.compile", rpc::flag_redact);
    out.capability(target).value_text("src/main.module").value_int(1'234'567).value_bool(true);
    out.value_map().key("level").value_int(3).key("name").value_text("release").end();
    out.value_path("project.core");
    return out.payload(module_content).finish();
}

void envelope_bench_prepare(std::size_t expected, std::size_t got) {
    if (expected != got) {
        std::fprintf(stderr, "envelope_bench: the fixture has %zu bytes, not %zu\n", got, expected);
        std::exit(1);
    }
}

void envelope_encode_868(benchmark::State& state) {
    rpc::writer out(envelope_bench_room);
    netio::bytes content = envelope_bench_module;
    envelope_bench_prepare(envelope_bench_bytes, envelope_bench_write(out, content));
    for (auto turn : state) {
        benchmark::DoNotOptimize(content);    // a module's size is not known to the compiler
        rpc::writer fresh(envelope_bench_room);
        std::size_t size = envelope_bench_write(fresh, content);
        benchmark::DoNotOptimize(size);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(envelope_bench_bytes));
}

void envelope_decode_868(benchmark::State& state) {
    rpc::writer out(envelope_bench_room);
    const std::size_t size = envelope_bench_write(out, envelope_bench_module);
    envelope_bench_prepare(envelope_bench_bytes, size);
    for (auto turn : state) {
        benchmark::ClobberMemory();
        auto got = rpc::decode({envelope_bench_room, size});
        if (got.status != netio::parse_status::complete) {
            std::abort();
        }
        benchmark::DoNotOptimize(got);
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(envelope_bench_bytes));
}

void envelope_copy_868_floor(benchmark::State& state) {
    netio::bytes content = envelope_bench_module;
    for (auto turn : state) {
        benchmark::DoNotOptimize(content);
        std::memcpy(envelope_bench_room + 159, content.data(), content.size());
        std::memset(envelope_bench_room, 1, 159);
        benchmark::DoNotOptimize(envelope_bench_room);
    }
}

/// Arguments to decode: time per argument must not depend on their number.
void envelope_decode_arguments(benchmark::State& state) {
    static std::byte room[1 << 18];
    rpc::writer out(room);
    out.begin(rpc::envelope_kind::request, 1, "many");
    for (std::int64_t index = 0; index < state.range(0); ++index) {
        out.value_map().key("a").value_int(index).key("b").value_text("some text").end();
    }
    const std::size_t size = out.finish();
    for (auto turn : state) {
        benchmark::ClobberMemory();
        auto got = rpc::decode({room, size});
        benchmark::DoNotOptimize(got);
    }
    state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// UTF-8 alone: 4,096 bytes of ASCII, of mixed Latin text, of three-byte letters.
void envelope_utf8_4096(benchmark::State& state) {
    static char text[4096];
    constexpr std::string_view patterns[] = {"plain text, sixteen ",
                                             "caf\xC3\xA9 au lait, d\xC3\xA9j\xC3\xA0 ",
                                             "\xE4\xB8\xAD\xE6\x96\x87"};
    const std::string_view pattern = patterns[state.range(0)];
    std::size_t used = 0;
    while (used + pattern.size() <= sizeof(text)) {
        std::memcpy(text + used, pattern.data(), pattern.size());
        used += pattern.size();
    }
    for (auto turn : state) {
        benchmark::ClobberMemory();
        bool valid = rpc::detail::utf8_valid({text, used});
        if (!valid) {
            std::abort();
        }
        benchmark::DoNotOptimize(valid);
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(used));
}

BENCHMARK(envelope_encode_868);
BENCHMARK(envelope_decode_868);
BENCHMARK(envelope_copy_868_floor);
BENCHMARK(envelope_decode_arguments)->Arg(100)->Arg(2'000);
BENCHMARK(envelope_utf8_4096)->Arg(0)->Arg(1)->Arg(2);

}  // namespace
