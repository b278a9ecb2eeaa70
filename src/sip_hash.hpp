// floor 2 · sip_hash.hpp · a hash whose values nobody can foretell without its key
#ifndef NETIO_SIP_HASH_HPP
#define NETIO_SIP_HASH_HPP

#include "src/base.hpp"

#include <bit>
#include <initializer_list>

NETIO_BEGIN

namespace detail {

/// The state of SipHash, and its round.
struct sip_state {
    std::uint64_t a, b, c, d;

    NETIO_WRAPS constexpr void round() noexcept {
        a += b;
        b = std::rotl(b, 13) ^ a;
        a = std::rotl(a, 32);
        c += d;
        d = std::rotl(d, 16) ^ c;
        a += d;
        d = std::rotl(d, 21) ^ a;
        c += b;
        b = std::rotl(b, 17) ^ c;
        c = std::rotl(c, 32);
    }
};

/// SipHash (Aumasson and Bernstein) of 8-byte blocks: 1-3 for tables, 2-4 where somebody may try to
/// forge a value. What is hashed under one key has one length, or its last block begins with the
/// length, as theirs does.
template <unsigned BlockRounds = 1, unsigned EndRounds = 3>
constexpr std::uint64_t sip_hash(std::initializer_list<std::uint64_t> blocks,
                                 const std::uint64_t (&key)[2]) noexcept {
    sip_state now{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d,
                  key[0] ^ 0x6c7967656e657261, key[1] ^ 0x7465646279746573};
    for (const std::uint64_t block : blocks) {
        now.d ^= block;
        for (unsigned left = BlockRounds; left != 0; --left) {
            now.round();
        }
        now.a ^= block;
    }
    now.c ^= 0xff;
    for (unsigned left = EndRounds; left != 0; --left) {
        now.round();
    }
    return now.a ^ now.b ^ now.c ^ now.d;
}

}  // namespace detail

NETIO_END

#endif
