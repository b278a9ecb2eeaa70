// What the echo servers of this folder share: the command line of floor_epoll and its listener.
#ifndef NETIO_BENCH_PEER_HPP
#define NETIO_BENCH_PEER_HPP

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace peer {

// One byte more than 16 KiB: a message of exactly 16 KiB is then a short read, as in the floor.
constexpr std::size_t buffer_bytes = 16 * 1024 + 1;

struct options {
    std::uint16_t port = 0;
    std::size_t workers = 1;
};

[[noreturn]] inline void die(const char* what) {
    std::fprintf(stderr, "peer: %s: %s\n", what, std::strerror(errno));
    std::exit(1);
}

inline long number_of(const char* flag, const char* text, long most) {
    char* end = nullptr;
    const long value = text != nullptr ? std::strtol(text, &end, 10) : -1;
    if (end == nullptr || end == text || *end != '\0' || value < 0 || value > most) {
        std::fprintf(stderr, "peer: %s wants a number from 0 to %ld\n", flag, most);
        std::exit(2);
    }
    return value;
}

inline options parse(int argument_count, char** arguments) {
    options chosen;
    for (int index = 1; index < argument_count; index += 2) {
        const char* flag = arguments[index];
        const char* value = arguments[index + 1];  // a null pointer after the last
        if (std::strcmp(flag, "--port") == 0) {
            chosen.port = static_cast<std::uint16_t>(number_of(flag, value, 65535));
        } else if (std::strcmp(flag, "--workers") == 0) {
            chosen.workers = static_cast<std::size_t>(number_of(flag, value, 256));
        } else {
            std::fprintf(stderr, "peer: unknown option %s; --port P --workers N\n", flag);
            std::exit(2);
        }
    }
    chosen.workers = chosen.workers > 0 ? chosen.workers : 1;
    return chosen;
}

/// A listener of a worker's own. What it is set to (no delay) its connections inherit.
inline int listen_on(std::uint16_t port, int type) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | type, 0);
    if (listener < 0) { die("socket"); }
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    ::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        die("bind");
    }
    if (::listen(listener, 4096) != 0) { die("listen"); }
    return listener;
}

inline std::uint16_t port_of(int listener) {
    sockaddr_in address{};
    socklen_t address_bytes = sizeof address;
    if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &address_bytes) != 0) {
        die("getsockname");
    }
    return ntohs(address.sin_port);
}

inline void say_listening(std::uint16_t port) {
    std::printf("listening %u\n", port);
    std::fflush(stdout);
}

}  // namespace peer

#endif
