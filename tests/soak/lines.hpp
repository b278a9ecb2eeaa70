// A backend under random operations: what is outstanding, what must come of it, what was seen.
#ifndef NETIO_TESTS_SOAK_LINES_HPP
#define NETIO_TESTS_SOAK_LINES_HPP

#include "tests/soak/far_ends.hpp"

#include <cstddef>
#include <utility>

namespace soak {

using netio::event;
using netio::event_kind;
using netio::none_index;
using netio::operation;
using netio::side;
using netio::token;

inline constexpr std::uint32_t slots = 96;
inline constexpr std::uint32_t doors_count = 2;
inline constexpr std::uint32_t mailboxes_count = 2;
inline constexpr std::uint32_t mails_count = 4;
inline constexpr netio::backend_limits sizes{slots, doors_count, mailboxes_count, mails_count};
inline constexpr std::size_t pool_bytes = std::size_t{1} << 19;
inline constexpr std::uint32_t buffers_most = 512;

enum class stage : std::uint8_t { none, connecting, refused, open, closing };

/// A connection as its user knows it.
struct line {
    stage at = stage::none;
    bool connect_out = false;
    bool silent = false;      // nobody answers its connect
    bool refusable = false;   // nobody listens there
    bool receiving = false;
    bool into_memory = false;
    bool stopping = false;
    bool receive_over = false;
    bool send_over = false;
    bool aborted = false;
    bool unsure = false;      // closed while bytes were on their way
    std::uint32_t generation = 1;
    std::uint32_t credit = 0;
    std::uint32_t came = 0;
    std::size_t sending = 0;
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    endpoint to{};
    far_end peer{};
    std::byte memory[2048];
};

struct door {
    netio::socket_handle handle = netio::no_handle;
    std::uint16_t port = 0;
    std::uint32_t generation = 0;
    bool accepting = false;
    std::uint64_t stopped_in = 0;    // the wait
    std::uint32_t late[64] = {};     // still allowed, by generation
};

struct mailbox {
    netio::socket_handle handle = netio::no_handle;
    std::uint32_t generation = 0;
    bool receiving = false;
    bool closing = false;
    std::uint64_t seen = 0;          // the last number that arrived
};

struct mail {
    std::uint32_t generation = 1;
    std::size_t sending = 0;
    bool outstanding = false;
    std::uint32_t from = 0;  // the mailbox
    std::byte text[600];
};

/// What a datagram holds is known by the number it begins with.
inline std::size_t mail_bytes(std::uint64_t number, std::uint32_t most) {
    return 8 + (number * 2654435761u >> 7) % (most - 8);
}
inline void write_mail(std::byte* to, std::uint64_t number, std::size_t count) {
    std::memcpy(to, &number, 8);
    std::memcpy(to + 8, text_at(number * 977, 0), count - 8);
}
/// The number, or 0 if it is not as it was written.
inline std::uint64_t read_mail(const std::byte* from, std::size_t count) {
    std::uint64_t number = 0;
    std::memcpy(&number, from, 8);
    return std::memcmp(from + 8, text_at(number * 977, 0), count - 8) == 0 ? number : 0;
}

struct held {
    std::uint32_t buffer;
    std::uint32_t byte_count;
};

struct counts_of_run {
    std::uint64_t waits = 0, events = 0, opened = 0, accepted = 0, connected = 0, bytes_in = 0,
                  bytes_out = 0, mails_in = 0, mails_out = 0, refused = 0, rounds = 0;
};

/// The plain sockets that a backend's connections and datagrams go to.
struct surroundings {
    int outside = plain_listener(4096);
    int refusing = plain_listener(-1);
    int silent = plain_listener(0);
    int queued[2] = {-1, -1};
    int paths = -1;
    char path[64] = {};
    int post = -1;

    surroundings() {
        for (int& each : queued) {  // a full line in front of a door that is never opened
            each = plain::open(SOCK_STREAM);
            plain::set_non_blocking(each);
            plain::connect(each, netio::loopback_ipv4(plain::local_of(silent).port));
        }
        std::snprintf(path, sizeof(path), "@netio-soak-%d", static_cast<int>(::getpid()));
        sockaddr_un where{};
        where.sun_family = AF_UNIX;
        const std::size_t count = std::strlen(path);
        std::memcpy(where.sun_path + 1, path + 1, count - 1);
        paths = plain::open(AF_UNIX, SOCK_STREAM);
        ::bind(paths, reinterpret_cast<const sockaddr*>(&where),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + count));
        ::listen(paths, 128);
        plain::set_non_blocking(paths);
        post = plain::open(SOCK_DGRAM);
        plain::bind_loopback(post);
        plain::set_non_blocking(post);
    }
};

}  // namespace soak

#include "tests/soak/world.hpp"

#endif
