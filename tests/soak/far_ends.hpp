// The other ends of a backend's soak: plain non-blocking sockets, and bytes that tell their place.
#ifndef NETIO_TESTS_SOAK_FAR_ENDS_HPP
#define NETIO_TESTS_SOAK_FAR_ENDS_HPP

#include "tests/sockets.hpp"

#include <cstdlib>
#include <sys/un.h>

namespace soak {

using netio::bytes;
using netio::endpoint;
namespace plain = netio_test::plain;

/// Where it was and what with, for whoever repeats it.
struct run_state {
    const char* backend = "";
    std::uint64_t seed = 0;
    std::uint64_t operations = 0;
};
inline run_state run;

[[noreturn]] inline void broken(const char* rule, std::uint64_t detail = 0) {
    std::printf("not ok soak: %s: %s (%llu), seed %llu, operation %llu\n", run.backend, rule,
                static_cast<unsigned long long>(detail),
                static_cast<unsigned long long>(run.seed),
                static_cast<unsigned long long>(run.operations));
    std::fflush(stdout);
    std::abort();
}
inline void holds(bool what, const char* rule, std::uint64_t detail = 0) {
    if (!what) {
        broken(rule, detail);
    }
}

struct chance {
    std::uint64_t state = 1;
    std::uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state * 0x2545F4914F6CDD1Du;
    }
    std::uint32_t below(std::uint32_t count) {
        return static_cast<std::uint32_t>((next() >> 32) * count >> 32);
    }
    bool one_in(std::uint32_t count) { return below(count) == 0; }
};
inline chance luck;

/// The bytes of every stream: which one they belong to is a key, where in it a position.
inline constexpr std::size_t period = 65'521;
inline constexpr std::size_t longest = 300'000;
inline std::byte pattern[period + longest];

inline void make_pattern() {
    for (std::size_t at = 0; at < period; ++at) {
        pattern[at] = static_cast<std::byte>(luck.next() >> 40);
    }
    for (std::size_t at = period; at < sizeof(pattern); ++at) {
        pattern[at] = pattern[at - period];
    }
}
inline const std::byte* text_at(std::uint64_t key, std::uint64_t position) {
    return pattern + (key + position) % period;
}
/// Mostly small, now and then more than a socket holds.
inline std::size_t some_bytes() {
    switch (luck.below(32)) {
    case 0: return 1 + luck.below(longest);
    case 1:
    case 2: return 1 + luck.below(40'000);
    default: return 1 + luck.below(luck.one_in(3) ? 5'000 : 100);
    }
}

/// Any of many loopback addresses, so that ports in TIME_WAIT are never used up.
inline endpoint somewhere(std::uint16_t port) {
    const auto part = [] { return static_cast<std::uint8_t>(1 + luck.below(250)); };
    return netio::ipv4(127, part(), part(), part(), port);
}

inline int plain_listener(int backlog) {
    const int made = plain::open(SOCK_STREAM);
    const sockaddr_in where = plain::address_of(netio::any_ipv4(0));
    ::bind(made, reinterpret_cast<const sockaddr*>(&where), sizeof(where));
    if (backlog >= 0) {
        ::listen(made, backlog);
    }
    plain::set_non_blocking(made);
    return made;
}

/// The other end of a connection.
struct far_end {
    int socket = -1;
    bool local = false;  // a unix socket
    bool ended = false;  // sends no more
    bool dirty = false;  // was closed or reset, so anything may be lost
    std::uint64_t sent = 0;
    std::uint64_t got = 0;
    std::uint64_t key_to = 0;    // of the bytes to the backend
    std::uint64_t key_from = 0;  // of those it sends

    enum class outcome { waiting, end, error };

    bool is_here() const { return socket >= 0; }

    void send(std::size_t count) {
        if (!is_here() || ended) {
            return;
        }
        const ssize_t done =
            ::send(socket, text_at(key_to, sent), count, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += done > 0 ? static_cast<std::size_t>(done) : 0;
    }
    /// Reads at most so many bytes; no more than `most_sent` can have been sent.
    outcome read(std::size_t most, std::uint64_t most_sent) {
        static std::byte into[65536];
        while (most != 0) {
            const std::size_t asked = most < sizeof(into) ? most : sizeof(into);
            const ssize_t count = ::recv(socket, into, asked, MSG_DONTWAIT);
            if (count < 0) {
                return errno == EAGAIN ? outcome::waiting : outcome::error;
            }
            if (count == 0) {
                return outcome::end;
            }
            const auto came = static_cast<std::size_t>(count);
            holds(got + came <= most_sent, "P10: a peer has bytes that were never sent", came);
            holds(std::memcmp(into, text_at(key_from, got), came) == 0,
                  "P4: a peer has other bytes than were sent", got);
            got += came;
            most -= came;
        }
        return outcome::waiting;
    }
    void finish() {
        if (is_here() && !ended) {
            ended = true;
            ::shutdown(socket, SHUT_WR);
        }
    }
    void leave(bool with_reset) {
        if (is_here()) {
            with_reset && !local ? plain::reset(socket) : plain::close(socket);
            socket = -1;
            dirty = true;
        }
    }
};

/// Connections on their way, known by the port of the one end and the address of the other.
struct stranger {
    int socket = -1;
    std::uint16_t port = 0;
    endpoint to{};
    std::uint32_t door = 0;
    bool lost = false;  // its listener is gone
};

inline bool same_address(const endpoint& a, const endpoint& b) {
    return std::memcmp(a.address.data(), b.address.data(), 4) == 0;
}

/// A bounded list of them; the oldest goes first.
struct strangers {
    static constexpr std::size_t most = 48;
    stranger all[most];
    std::size_t count = 0;

    bool full() const { return count == most; }
    void add(const stranger& one) {
        if (full()) {
            drop(0);
        }
        all[count++] = one;
    }
    stranger take(std::size_t at) {
        const stranger out = all[at];
        --count;
        for (; at < count; ++at) {
            all[at] = all[at + 1];
        }
        return out;
    }
    void drop(std::size_t at) {
        const int socket = take(at).socket;
        if (socket >= 0) {
            plain::reset(socket);
        }
    }
    void drop_all() {
        while (count != 0) {
            drop(0);
        }
    }
    /// `most` if there is none.
    std::size_t find(std::uint16_t port, const endpoint& to) const {
        for (std::size_t at = 0; at < count; ++at) {
            if (all[at].port == port && same_address(all[at].to, to)) {
                return at;
            }
        }
        return most;
    }
};

}  // namespace soak

#endif
