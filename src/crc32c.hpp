// floor 2 · crc32c.hpp · the Castagnoli checksum (RFC 9260 appendix A), by instruction or table
#ifndef NETIO_CRC32C_HPP
#define NETIO_CRC32C_HPP

#include "platform/atomic.hpp"
#include "platform/crc32c_machine.hpp"
#include "src/error.hpp"

#include <array>

NETIO_BEGIN

namespace detail {

/// What the processor can do, asked once. The only global of netio; every thread that asks first
/// writes the same value, so relaxed order suffices.
inline detail::atomic<std::uint8_t> cpu_features{};
inline constexpr std::uint8_t cpu_asked = 1;
inline constexpr std::uint8_t cpu_crc32c = 2;

NETIO_COLD inline std::uint8_t ask_cpu_features() noexcept {
    const std::uint8_t found = crc32c_machine_present() ? cpu_asked | cpu_crc32c : cpu_asked;
    cpu_features.store(found, detail::ordering::relaxed);
    return found;
}

/// Table 0 advances a state by one byte; table n does the same n zero bytes further on.
inline constexpr auto crc32c_tables = [] {
    std::array<std::array<std::uint32_t, 256>, 4> out{};
    for (std::uint32_t at = 0; at < 256; ++at) {
        std::uint32_t value = at;
        for (int bit = 0; bit < 8; ++bit) {
            value = value >> 1 ^ ((value & 1) != 0 ? 0x82F63B78U : 0U);
        }
        out[0][at] = value;
    }
    for (std::size_t table = 1; table < 4; ++table) {
        for (std::size_t at = 0; at < 256; ++at) {
            const std::uint32_t value = out[table - 1][at];
            out[table][at] = value >> 8 ^ out[0][value & 0xFF];
        }
    }
    return out;
}();

/// The raw state after `count` bytes on any processor, four bytes a step.
inline std::uint32_t crc32c_portable(const std::byte* at, std::size_t count,
                                     std::uint32_t state) noexcept {
    const auto byte = [](const std::byte* from, int index) noexcept {
        return std::to_integer<std::uint32_t>(from[index]);
    };
    const auto& tables = crc32c_tables;
    for (; count >= 4; count -= 4, at += 4) {
        state ^= byte(at, 0) | byte(at, 1) << 8 | byte(at, 2) << 16 | byte(at, 3) << 24;
        state = tables[3][state & 0xFF] ^ tables[2][state >> 8 & 0xFF] ^
                tables[1][state >> 16 & 0xFF] ^ tables[0][state >> 24];
    }
    for (; count != 0; --count, ++at) {
        state = state >> 8 ^ tables[0][(state ^ byte(at, 0)) & 0xFF];
    }
    return state;
}

}  // namespace detail

/// CRC32C of `in`. Pieces chain: crc32c(b, crc32c(a)) is the checksum of a followed by b. Any
/// thread; the first call asks the processor what it can do.
inline std::uint32_t crc32c(std::span<const std::byte> in, std::uint32_t seed = 0) noexcept {
    std::uint8_t features = detail::cpu_features.load(detail::ordering::relaxed);
    if (NETIO_UNLIKELY(features == 0)) {
        features = detail::ask_cpu_features();
    }
    if (NETIO_LIKELY((features & detail::cpu_crc32c) != 0)) {
        return ~detail::crc32c_machine(in.data(), in.size(), ~seed);
    }
    return ~detail::crc32c_portable(in.data(), in.size(), ~seed);
}

NETIO_END

#endif
