// The client's end in tests on real sockets: plain non-blocking sockets of the test's own thread,
// on loopback. With tests/sockets.hpp the only header of the service's suite that knows system
// calls: another system adds its part of `client_os` here, and what comes after stays as it is.
#ifndef NETIO_TESTS_CLIENT_SOCKET_HPP
#define NETIO_TESTS_CLIENT_SOCKET_HPP

#include "tests/sockets.hpp"

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#if NETIO_HAS_IOCP
#include <afunix.h>
#else
#include <arpa/inet.h>
#include <sys/un.h>
#endif

namespace netio_test {

/// What differs from system to system, beside the calls of tests/sockets.hpp.
namespace client_os {

using plain::close;
using plain::no_socket;
using plain::open;
using plain::open_handles;
using plain::receive;
using plain::receive_datagram;
using plain::reset_at_close;
using plain::send;
using plain::set_non_blocking;
using plain::set_receive_bytes;
using plain::socket_type;

inline void start() noexcept { plain::begin(); }
inline bool would_block() noexcept { return plain::failed_by_waiting(); }
/// Waits until something can be read, at most `ms`.
inline bool wait_readable(netio::socket_handle handle, int ms) noexcept {
    return plain::readable(static_cast<socket_type>(handle), ms);
}

#if NETIO_HAS_IOCP

inline bool was_reset() noexcept {
    const int why = ::WSAGetLastError();
    return why == WSAECONNRESET || why == WSAECONNABORTED || why == WSAESHUTDOWN;
}
inline std::string unix_name(const char* of) {
    return "netio-" + std::string(of) + "-" + std::to_string(::GetCurrentProcessId());
}
inline void remove_unix_name(const std::string& name) noexcept { ::DeleteFileA(name.c_str()); }

#else

inline bool was_reset() noexcept { return errno == ECONNRESET || errno == EPIPE; }

/// A name for a unix socket of this process that nobody else has.
inline std::string unix_name(const char* of) {
    std::string out = "netio-" + std::string(of) + "-" + std::to_string(::getpid());
#if defined(__linux__)
    return "@" + out;
#else
    return "/tmp/" + out;
#endif
}
/// What is left of it in the file system.
inline void remove_unix_name(const std::string& name) noexcept {
    if (name[0] != '@') {
        ::unlink(name.c_str());
    }
}

#endif

}  // namespace client_os

/// An address in the system's form.
struct client_address {
    sockaddr_storage raw{};
    socklen_t size = 0;

    explicit client_address(const netio::endpoint& of) noexcept {
        if (of.family == netio::address_family::ipv6) {
            auto& to = reinterpret_cast<sockaddr_in6&>(raw);
            to.sin6_family = AF_INET6;
            to.sin6_port = htons(of.port);
            std::memcpy(&to.sin6_addr, of.address.data(), 16);
            size = sizeof(to);
        } else {
            auto& to = reinterpret_cast<sockaddr_in&>(raw);
            to.sin_family = AF_INET;
            to.sin_port = htons(of.port);
            std::memcpy(&to.sin_addr, of.address.data(), 4);
            size = sizeof(to);
        }
    }
    /// A unix path; a leading '@' is Linux's abstract namespace.
    explicit client_address(const std::string& path) noexcept {
        auto& to = reinterpret_cast<sockaddr_un&>(raw);
        to.sun_family = AF_UNIX;
        std::memcpy(to.sun_path, path.data(), path.size());
        if (path[0] == '@') {
            to.sun_path[0] = '\0';
        }
        size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() +
                                      (path[0] == '@' ? 0 : 1));
    }
    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&raw); }
    int family() const noexcept { return raw.ss_family; }
};

/// Where a socket of ours is bound.
inline netio::endpoint client_local(client_os::socket_type of) noexcept {
    sockaddr_storage raw{};
    socklen_t size = sizeof(raw);
    netio::endpoint out;
    if (::getsockname(of, reinterpret_cast<sockaddr*>(&raw), &size) != 0) {
        return out;
    }
    if (raw.ss_family == AF_INET) {
        const auto& from = reinterpret_cast<const sockaddr_in&>(raw);
        out = netio::loopback_ipv4(ntohs(from.sin_port));
        std::memcpy(out.address.data(), &from.sin_addr, 4);
    } else if (raw.ss_family == AF_INET6) {
        const auto& from = reinterpret_cast<const sockaddr_in6&>(raw);
        out = netio::any_ipv6(ntohs(from.sin6_port));
        std::memcpy(out.address.data(), &from.sin6_addr, 16);
    }
    return out;
}

/// One end of a stream, or a datagram socket, that the test owns. Nothing blocks but the connect,
/// which the kernel of a loopback answers by itself.
class client_socket {
public:
    client_socket() = default;
    explicit client_socket(const netio::endpoint& to) { connect(client_address(to), SOCK_STREAM); }
    explicit client_socket(const std::string& path) { connect(client_address(path), SOCK_STREAM); }
    client_socket(client_socket&& other) noexcept { swap(other); }
    client_socket& operator=(client_socket&& other) noexcept {
        client_socket taken(std::move(other));
        swap(taken);
        return *this;
    }
    ~client_socket() { close(); }

    /// One that takes little before it is read. Not less than this: a window of one segment has
    /// the kernel's timers in every step.
    static client_socket slow_reader(const netio::endpoint& to) {
        client_socket out;
        out.connect(client_address(to), SOCK_STREAM, 16 * 1024);
        return out;
    }
    /// A datagram socket with one peer.
    static client_socket datagrams(const netio::endpoint& to) {
        client_socket out;
        out.connect(client_address(to), SOCK_DGRAM);
        return out;
    }
    /// A connected pair of non-blocking streams; `.second` is released to whoever adopts it.
    static std::pair<client_socket, netio::socket_handle> pair() {
        client_socket listener;
        listener.bind(SOCK_STREAM);
        ::listen(listener.socket_, 1);
        client_socket near(client_local(listener.socket_));
        const auto far = ::accept(listener.socket_, nullptr, nullptr);
        client_os::set_non_blocking(far);
        return {std::move(near), static_cast<netio::socket_handle>(far)};
    }
    /// A bound port that refuses whoever connects.
    static client_socket refusing() {
        client_socket out;
        out.bind(SOCK_STREAM);
        return out;
    }

    bool connected() const noexcept { return connected_; }
    netio::endpoint local() const noexcept { return client_local(socket_); }
    netio::socket_handle handle() const noexcept {
        return static_cast<netio::socket_handle>(socket_);
    }

    /// Bytes the kernel took now.
    std::size_t send(std::string_view text) noexcept {
        const auto count = client_os::send(socket_, text);
        if (count < 0 && client_os::was_reset()) {
            reset_ = true;
        }
        return count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    /// All that came so far.
    const std::string& arrived() {
        pull(~std::size_t{0});
        return arrived_;
    }
    /// Takes at most `count` more bytes; how many there are now.
    std::size_t take_some(std::size_t count) {
        pull(count);
        return arrived_.size();
    }
    /// The next datagram. False: none is there.
    bool next_datagram(std::string& out) {
        char part[65'536];
        const auto count = client_os::receive_datagram(socket_, part, sizeof(part));
        out.assign(part, count > 0 ? static_cast<std::size_t>(count) : 0);
        return count >= 0;
    }
    /// The server's end of stream was seen, or its reset.
    bool ended() {
        pull(~std::size_t{0});
        return ended_;
    }
    bool was_reset() {
        pull(~std::size_t{0});
        return reset_;
    }
    bool over() { return ended() || reset_; }

    void shutdown() noexcept { ::shutdown(socket_, 1); }  // SHUT_WR, SD_SEND
    void reset() noexcept {
        if (socket_ != client_os::no_socket) {
            client_os::reset_at_close(socket_);
        }
        close();
    }
    void close() noexcept {
        if (socket_ != client_os::no_socket) {
            client_os::close(socket_);
        }
        socket_ = client_os::no_socket;
    }

private:
    void swap(client_socket& other) noexcept {
        std::swap(socket_, other.socket_);
        std::swap(peer_port_, other.peer_port_);
        std::swap(arrived_, other.arrived_);
        std::swap(connected_, other.connected_);
        std::swap(ended_, other.ended_);
        std::swap(reset_, other.reset_);
    }
    void connect(const client_address& to, int type, int receive_bytes = 0) {
        client_os::start();
        socket_ = client_os::open(to.family(), type);
        if (receive_bytes != 0) {
            client_os::set_receive_bytes(socket_, receive_bytes);
        }
        connected_ = ::connect(socket_, to.get(), to.size) == 0;
        peer_port_ = plain::peer_port_of(socket_);
        client_os::set_non_blocking(socket_);
    }
    void bind(int type) {
        client_os::start();
        const client_address anywhere(netio::loopback_ipv4(0));
        socket_ = client_os::open(AF_INET, type);
        ::bind(socket_, anywhere.get(), anywhere.size);
    }
    void pull(std::size_t most) {
        char part[65'536];
        while (socket_ != client_os::no_socket && most != 0 && !ended_ && !reset_) {
            const auto count =
                client_os::receive(socket_, part, most < sizeof(part) ? most : sizeof(part),
                                   peer_port_);
            if (count > 0) {
                arrived_.append(part, static_cast<std::size_t>(count));
                most -= static_cast<std::size_t>(count);
            } else if (count == 0) {
                ended_ = true;
            } else {
                reset_ = client_os::was_reset();
                return;
            }
        }
    }

    client_os::socket_type socket_ = client_os::no_socket;
    std::uint16_t peer_port_ = 0;
    std::string arrived_;
    bool connected_ = false;
    bool ended_ = false;
    bool reset_ = false;
};

}  // namespace netio_test

#endif
