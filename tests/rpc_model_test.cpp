// The capability kernel against its slow model: random programs, the same for the same seed.
// NETIO_LONG=1 runs a million.
#include "tests/rpc_model.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

namespace {

/// The bytes of a program, as a seed makes them (xorshift64*).
std::vector<std::uint8_t> rpc_model_bytes(std::uint64_t seed, std::size_t count) {
    std::vector<std::uint8_t> out(count);
    std::uint64_t state = seed * 0x9E3779B97F4A7C15u | 1;
    for (std::uint8_t& each : out) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        each = static_cast<std::uint8_t>(state * 0x2545F4914F6CDD1Du >> 56);
    }
    return out;
}

TEST_CASE("rpc kernel: random programs end as a slow model of it does, tables empty again") {
    const char* const wanted = std::getenv("NETIO_LONG");
    const std::uint64_t programs = wanted != nullptr && *wanted == '1' ? 1'000'000 : 2'000;
    std::uint64_t agreed = 0;
    for (std::uint64_t seed = 1; seed <= programs; ++seed, ++agreed) {
        const auto bytes = rpc_model_bytes(seed, 64 + seed % 512);
        rpc_model::trial trial({bytes.data(), bytes.size()});
        if (!trial.run()) {
            CAPTURE(seed);
            FAIL_CHECK(trial.wrong);
            break;
        }
    }
    CHECK(agreed == programs);
}

}  // namespace
