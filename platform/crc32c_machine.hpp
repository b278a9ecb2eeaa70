// floor 1 · crc32c_machine.hpp · CRC32C by the processor's own instruction, where it has one
#ifndef NETIO_CRC32C_MACHINE_HPP
#define NETIO_CRC32C_MACHINE_HPP

#include "src/base.hpp"

#include <array>
#include <cstring>

#if NETIO_HAS_ARM_CRC32
#include <arm_acle.h>
#endif

NETIO_BEGIN

namespace detail {

#if NETIO_HAS_X86_CRC32

/// True if this processor has the crc32 (SSE 4.2) and the carry-less multiply instructions.
inline bool crc32c_machine_present() noexcept {
    std::uint32_t eax = 1;
    std::uint32_t ebx = 0;
    std::uint32_t ecx = 0;
    std::uint32_t edx = 0;
    __asm__ __volatile__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    constexpr std::uint32_t both = 1U << 20 | 1U << 1;
    return (ecx & both) == both;
}

/// The longest of three streams that run side by side, in words of 8 bytes.
inline constexpr std::size_t crc32c_stream_max = 170;

/// Entry d - 1 is x^(64 d - 33) modulo the polynomial, bits reflected: what a state is multiplied
/// by to stand d words further left. The 33 are paid back by the last crc32 step (32) and by the
/// product of two reflected 32-bit values, which sits one bit too low in 64.
inline constexpr auto crc32c_shifts = [] {
    std::array<std::uint32_t, 2 * crc32c_stream_max> out{};
    std::uint32_t value = 1;
    for (auto& entry : out) {
        entry = value;
        for (int bit = 0; bit < 64; ++bit) {
            value = value >> 1 ^ ((value & 1) != 0 ? 0x82F63B78U : 0U);
        }
    }
    return out;
}();

__attribute__((target("sse4.2,pclmul,crc32"))) inline std::uint64_t crc32c_shifted(
    std::uint64_t state, std::size_t words) noexcept {
    using pair = long long __attribute__((vector_size(16)));
    const pair left = {static_cast<long long>(state), 0};
    const pair right = {static_cast<long long>(crc32c_shifts[words - 1]), 0};
    return static_cast<std::uint64_t>(__builtin_ia32_pclmulqdq128(left, right, 0)[0]);
}

/// One crc32 step takes 3 cycles but a new one can start each cycle: three streams side by side,
/// joined by carry-less products folded into the last word of the third.
__attribute__((target("sse4.2,pclmul,crc32"))) inline std::uint64_t crc32c_three(
    const std::byte* at, std::size_t words, std::uint64_t state) noexcept {
    const auto word = [](const std::byte* from) noexcept {
        std::uint64_t value;
        std::memcpy(&value, from, 8);
        return value;
    };
    const std::size_t stream_bytes = 8 * words;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t step = 1; step < words; ++step, at += 8) {
        state = __builtin_ia32_crc32di(state, word(at));
        second = __builtin_ia32_crc32di(second, word(at + stream_bytes));
        third = __builtin_ia32_crc32di(third, word(at + 2 * stream_bytes));
    }
    state = __builtin_ia32_crc32di(state, word(at));
    second = __builtin_ia32_crc32di(second, word(at + stream_bytes));
    const std::uint64_t joined = crc32c_shifted(state, 2 * words) ^ crc32c_shifted(second, words);
    return __builtin_ia32_crc32di(third, word(at + 2 * stream_bytes) ^ joined);
}

/// The raw state after `count` bytes, neither inverted before nor after.
__attribute__((target("sse4.2,pclmul,crc32"))) inline std::uint32_t crc32c_machine(
    const std::byte* at, std::size_t count, std::uint32_t before) noexcept {
    std::uint64_t state = before;
    while (count >= 96) {
        const std::size_t words = count / 24 < crc32c_stream_max ? count / 24 : crc32c_stream_max;
        state = crc32c_three(at, words, state);
        at += 24 * words;
        count -= 24 * words;
    }
    for (; count >= 8; count -= 8, at += 8) {
        std::uint64_t word;
        std::memcpy(&word, at, 8);
        state = __builtin_ia32_crc32di(state, word);
    }
    std::uint32_t out = static_cast<std::uint32_t>(state);
    if ((count & 4) != 0) {
        std::uint32_t word;
        std::memcpy(&word, at, 4);
        out = __builtin_ia32_crc32si(out, word);
        at += 4;
    }
    for (count &= 3; count != 0; --count, ++at) {
        out = __builtin_ia32_crc32qi(out, std::to_integer<unsigned char>(*at));
    }
    return out;
}

#elif NETIO_HAS_ARM_CRC32

inline bool crc32c_machine_present() noexcept { return true; }

inline std::uint32_t crc32c_machine(const std::byte* at, std::size_t count,
                                    std::uint32_t state) noexcept {
    for (; count >= 8; count -= 8, at += 8) {
        std::uint64_t word;
        std::memcpy(&word, at, 8);
        state = __crc32cd(state, word);
    }
    for (; count != 0; --count, ++at) {
        state = __crc32cb(state, std::to_integer<std::uint8_t>(*at));
    }
    return state;
}

#else

inline bool crc32c_machine_present() noexcept { return false; }

inline std::uint32_t crc32c_machine(const std::byte*, std::size_t, std::uint32_t state) noexcept {
    return state;
}

#endif

}  // namespace detail

NETIO_END

#endif
