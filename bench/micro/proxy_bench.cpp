// g++ -std=c++20 -O2 -DNDEBUG -I. bench/micro/proxy_bench.cpp -lbenchmark_main -lbenchmark -lpthread -o proxy_bench
#include "netio.hpp"

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

namespace {

namespace proxy = netio::proxy;

const netio::endpoint source_four = netio::ipv4(192, 0, 2, 1, 56324);
const netio::endpoint destination_four = netio::ipv4(192, 0, 2, 2, 443);

std::vector<std::byte> line(std::string_view text) {
    const netio::bytes all = netio::as_bytes(text);
    return {all.begin(), all.end()};
}

/// ALPN, AUTHORITY, UNIQUE_ID and SSL with version and cipher; the CRC32C makes five.
std::vector<std::byte> with_tlvs(bool crc) {
    const std::vector<std::byte> id(16, std::byte{7});
    const std::vector<std::byte> ssl =
        line(std::string_view("\x01\0\0\0\0\x21\0\x07TLSv1.3\x23\0\x16TLS_AES_128_GCM_SHA256", 40));
    const proxy::tlv tlvs[] = {{proxy::tlv_alpn, netio::as_bytes("h2")},
                               {proxy::tlv_authority, netio::as_bytes("www.example.com")},
                               {proxy::tlv_unique_id, id},
                               {proxy::tlv_ssl, ssl}};
    std::vector<std::byte> out(512);
    out.resize(proxy::encode_v2(proxy::between(source_four, destination_four), tlvs, out, crc));
    return out;
}

void parse(benchmark::State& state, const std::vector<std::byte>& in) {
    if (proxy::parse(in).consumed != in.size()) {
        state.SkipWithError("not parsed");
    }
    const std::byte* at = in.data();
    for (auto _ : state) {
        benchmark::DoNotOptimize(at);
        const netio::parsed<proxy::header> got = proxy::parse({at, in.size()});
        benchmark::DoNotOptimize(&got);
        benchmark::ClobberMemory();
    }
    state.counters["bytes"] = static_cast<double>(in.size());
}

void v1_tcp4(benchmark::State& state) {
    parse(state, line("PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n"));
}
void v1_tcp4_longest(benchmark::State& state) {
    parse(state, line("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"));
}
void v1_tcp6(benchmark::State& state) {
    parse(state, line("PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n"));
}
void v1_unknown(benchmark::State& state) { parse(state, line("PROXY UNKNOWN\r\n")); }
void v2_local(benchmark::State& state) {
    std::vector<std::byte> out(16);
    proxy::encode_v2({}, {}, out, false);
    parse(state, out);
}
void v2_ipv4(benchmark::State& state) {
    std::vector<std::byte> out(28);
    proxy::encode_v2(proxy::between(source_four, destination_four), {}, out, false);
    parse(state, out);
}
void v2_ipv6(benchmark::State& state) {
    std::vector<std::byte> out(52);
    proxy::encode_v2(proxy::between(netio::any_ipv6(1), netio::any_ipv6(2)), {}, out, false);
    parse(state, out);
}
void v2_4_tlvs(benchmark::State& state) { parse(state, with_tlvs(false)); }
void v2_5_tlvs_crc32c(benchmark::State& state) { parse(state, with_tlvs(true)); }

void encode_v1_tcp4(benchmark::State& state) {
    const proxy::header of = proxy::between(source_four, destination_four);
    std::byte out[128];
    for (auto _ : state) {
        benchmark::DoNotOptimize(proxy::encode_v1(of, out));
        benchmark::ClobberMemory();
    }
}
void encode_v2_ipv4(benchmark::State& state) {
    const proxy::header of = proxy::between(source_four, destination_four);
    std::byte out[128];
    for (auto _ : state) {
        benchmark::DoNotOptimize(proxy::encode_v2(of, {}, out, state.range(0) != 0));
        benchmark::ClobberMemory();
    }
}

BENCHMARK(v1_tcp4);
BENCHMARK(v1_tcp4_longest);
BENCHMARK(v1_tcp6);
BENCHMARK(v1_unknown);
BENCHMARK(v2_local);
BENCHMARK(v2_ipv4);
BENCHMARK(v2_ipv6);
BENCHMARK(v2_4_tlvs);
BENCHMARK(v2_5_tlvs_crc32c);
BENCHMARK(encode_v1_tcp4);
BENCHMARK(encode_v2_ipv4)->Arg(0)->Arg(1);

}  // namespace
