#include "netio.hpp"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace {

/// Bit by bit, as RFC 9260 appendix A defines it.
std::uint32_t crc32c_by_bit(netio::bytes in, std::uint32_t seed = 0) {
    std::uint32_t state = ~seed;
    for (const std::byte byte : in) {
        state ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            state = (state & 1) != 0 ? state >> 1 ^ 0x82F63B78U : state >> 1;
        }
    }
    return ~state;
}

std::uint32_t crc32c_by_table(netio::bytes in, std::uint32_t seed = 0) {
    return ~netio::detail::crc32c_portable(in.data(), in.size(), ~seed);
}

std::vector<std::byte> crc32c_noise(std::size_t count) {
    std::vector<std::byte> out(count);
    std::uint32_t state = 12345;
    for (std::byte& byte : out) {
        state = state * 1664525U + 1013904223U;
        byte = static_cast<std::byte>(state >> 24);
    }
    return out;
}

}  // namespace

TEST_CASE("crc32c: published check values, by instruction and by table") {
    std::vector<std::byte> counting(32);
    for (std::size_t at = 0; at < counting.size(); ++at) {
        counting[at] = static_cast<std::byte>(at);
    }
    std::vector<std::byte> zeros(32);
    std::vector<std::byte> ones(32, std::byte{0xFF});
    for (auto* crc : {+[](netio::bytes in) { return netio::crc32c(in); },
                      +[](netio::bytes in) { return crc32c_by_table(in); }}) {
        CHECK(crc({}) == 0);
        CHECK(crc(netio::as_bytes("a")) == 0xC1D04330U);
        CHECK(crc(netio::as_bytes("123456789")) == 0xE3069283U);
        CHECK(crc(zeros) == 0x8A9136AAU);
        CHECK(crc(counting) == 0x46DD794EU);
        CHECK(crc(ones) == 0x62A8AB43U);
    }
}

TEST_CASE("crc32c: every length agrees with the definition, at every alignment") {
    const std::vector<std::byte> noise = crc32c_noise(700);
    for (std::size_t count = 0; count <= 680; ++count) {
        const netio::bytes in = netio::bytes(noise).subspan(count % 9, count);
        const std::uint32_t expected = crc32c_by_bit(in, 77);
        REQUIRE(netio::crc32c(in, 77) == expected);
        REQUIRE(crc32c_by_table(in, 77) == expected);
    }
}

TEST_CASE("crc32c: long inputs cross the widest blocks") {
    const std::vector<std::byte> noise = crc32c_noise(70000);
    for (const std::size_t count :
         {4079U, 4080U, 4081U, 4096U, 4176U, 8159U, 8160U, 9000U, 65551U}) {
        const netio::bytes in = netio::bytes(noise).subspan(3, count);
        CHECK(netio::crc32c(in) == crc32c_by_bit(in));
        CHECK(crc32c_by_table(in) == crc32c_by_bit(in));
    }
}

TEST_CASE("crc32c: pieces chain at every cut") {
    const std::vector<std::byte> noise = crc32c_noise(300);
    const netio::bytes whole(noise);
    const std::uint32_t expected = crc32c_by_bit(whole);
    for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
        const std::uint32_t first = netio::crc32c(whole.first(cut));
        CHECK(netio::crc32c(whole.subspan(cut), first) == expected);
        CHECK(crc32c_by_table(whole.subspan(cut), first) == expected);
    }
}

TEST_CASE("crc32c: the processor is asked once, the answer stays in one byte") {
    static_assert(sizeof(netio::detail::cpu_features) == 1);
    netio::detail::cpu_features.store(0);
    CHECK(netio::crc32c(netio::as_bytes("123456789")) == 0xE3069283U);
    const std::uint8_t asked = netio::detail::cpu_features.load();
    CHECK((asked & netio::detail::cpu_asked) != 0);
    CHECK(netio::detail::crc32c_machine_present() ==
          ((asked & netio::detail::cpu_crc32c) != 0));
    // As on a processor without the instruction.
    netio::detail::cpu_features.store(netio::detail::cpu_asked);
    CHECK(netio::crc32c(netio::as_bytes("123456789")) == 0xE3069283U);
    netio::detail::cpu_features.store(asked);
}

TEST_CASE("crc32c: threads that ask first at the same time agree") {
    netio::detail::cpu_features.store(0);
    std::uint32_t got[2] = {};
    std::thread first([&] { got[0] = netio::crc32c(netio::as_bytes("a")); });
    std::thread second([&] { got[1] = netio::crc32c(netio::as_bytes("a")); });
    first.join();
    second.join();
    CHECK(got[0] == 0xC1D04330U);
    CHECK(got[1] == 0xC1D04330U);
}
