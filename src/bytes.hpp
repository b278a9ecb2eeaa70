// floor 2 · bytes.hpp · views of bytes, wire integers, wiping
#ifndef NETIO_BYTES_HPP
#define NETIO_BYTES_HPP

#include "src/error.hpp"

#include <bit>
#include <cstring>

NETIO_BEGIN

/// Bytes somebody else owns. Never null-terminated, never stored past the call that got it unless
/// the callee says so.
using bytes = std::span<const std::byte>;
using mutable_bytes = std::span<std::byte>;

/// The bytes of a text, without its terminating NUL.
inline bytes as_bytes(std::string_view text) noexcept {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
/// The text of some bytes; not checked for any encoding.
inline std::string_view as_text(bytes in) noexcept {
    return {reinterpret_cast<const char*>(in.data()), in.size()};
}

namespace detail {

/// Written out without a loop, so that every compiler sees the one swap instruction in it.
template <class T>
NETIO_WRAPS constexpr T swap_bytes(T value) noexcept {
    if constexpr (sizeof(T) == 1) {
        return value;
    } else if constexpr (sizeof(T) == 2) {
        return static_cast<T>(value << 8 | value >> 8);
    } else if constexpr (sizeof(T) == 4) {
        return value << 24 | (value & 0xFF00) << 8 | (value >> 8 & 0xFF00) | value >> 24;
    } else {
        const T halves = value << 32 | value >> 32;
        const T pairs = (halves & 0x0000FFFF0000FFFF) << 16 | (halves >> 16 & 0x0000FFFF0000FFFF);
        return (pairs & 0x00FF00FF00FF00FF) << 8 | (pairs >> 8 & 0x00FF00FF00FF00FF);
    }
}

/// Loads and stores through memcpy: any alignment, one instruction where the machine has one.
template <class T>
T load_native(const std::byte* from) noexcept {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
}
template <class T>
T load_little(const std::byte* from) noexcept {
    const T value = load_native<T>(from);
    return std::endian::native == std::endian::little ? value : swap_bytes(value);
}
template <class T>
T load_big(const std::byte* from) noexcept {
    const T value = load_native<T>(from);
    return std::endian::native == std::endian::big ? value : swap_bytes(value);
}
template <class T>
void store_little(std::byte* to, T value) noexcept {
    const T out = std::endian::native == std::endian::little ? value : swap_bytes(value);
    std::memcpy(to, &out, sizeof(T));
}
template <class T>
void store_big(std::byte* to, T value) noexcept {
    const T out = std::endian::native == std::endian::big ? value : swap_bytes(value);
    std::memcpy(to, &out, sizeof(T));
}

}  // namespace detail

/// Overwrites `count` bytes with zeros in a way the optimiser may not drop. Any thread.
inline void wipe(void* at, std::size_t count) noexcept {
    std::memset(at, 0, count);
    NETIO_KEEP_STORES(at);
}

/// Where a record of a ring may be written. Empty `room`: there is none.
struct ring_claim {
    mutable_bytes room{};
    std::size_t at = 0;    // the ring's own

    constexpr explicit operator bool() const noexcept { return !room.empty(); }
};

NETIO_END

#endif
