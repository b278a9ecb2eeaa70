// The sockets a test plays its peers with: the few calls they need, on POSIX systems and Windows.
#ifndef NETIO_TESTS_SOCKETS_HPP
#define NETIO_TESTS_SOCKETS_HPP

#include "netio.hpp"

#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

#if NETIO_HAS_IOCP
#include <winsock2.h>
#include <ws2tcpip.h>

#include <windows.h>
#undef near  // names that a test may want
#undef far
#else
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

namespace netio_test {

/// Calls of the system on a socket; what fails answers with -1, `no_socket` or false. Nothing in
/// here allocates, but for `open_handles` and `lingers`.
namespace plain {

/// Does the kernel keep a connection between these ports in TIME_WAIT? A `peer_port` of 0 is any.
/// Nothing where it has no table to look into.
inline std::optional<bool> lingers(std::uint16_t port, std::uint16_t peer_port) noexcept {
    std::FILE* const table = std::fopen("/proc/net/tcp", "r");
    if (table == nullptr) {
        return std::nullopt;
    }
    bool found = false;
    char line[256];
    while (!found && std::fgets(line, sizeof(line), table) != nullptr) {
        unsigned local = 0, remote = 0, state = 0;
        found = std::sscanf(line, " %*d: %*[^:]:%x %*[^:]:%x %x", &local, &remote, &state) == 3 &&
                local == port && (peer_port == 0 || remote == peer_port) && state == 6;
    }
    std::fclose(table);
    return found;
}

#if NETIO_HAS_IOCP
using socket_type = SOCKET;
inline constexpr socket_type no_socket = INVALID_SOCKET;

/// Winsock, for as long as the program runs.
inline bool begin() noexcept {
    static WSADATA data;
    static const bool begun = ::WSAStartup(MAKEWORD(2, 2), &data) == 0;
    return begun;
}
inline socket_type open(int family, int type) noexcept {
    begin();
    return ::WSASocketW(family, type, 0, nullptr, 0,
                        WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT);
}
inline void close(socket_type what) noexcept { ::closesocket(what); }
inline void set_non_blocking(socket_type of) noexcept {
    unsigned long on = 1;
    ::ioctlsocket(of, static_cast<long>(FIONBIO), &on);
}
inline bool failed_by_reset() noexcept { return ::WSAGetLastError() == WSAECONNRESET; }
inline bool on_wine() noexcept {
    const HMODULE system = ::GetModuleHandleA("ntdll.dll");
    return system != nullptr && ::GetProcAddress(system, "wine_get_version") != nullptr;
}
/// Wine tells an end of stream where the peer has reset: its server fetches the error before
/// anybody can read it. The kernel below knows: a socket without a peer was reset, or is in
/// TIME_WAIT. Others may linger on the same port of ours: `peer_port` says which one is meant; 0,
/// where nobody knows, is any.
inline int told_by_wine(SOCKET from, int count, std::uint16_t peer_port) noexcept {
    sockaddr_in here{}, there{};
    int here_bytes = sizeof(here), there_bytes = sizeof(there);
    if (count != 0 || !on_wine() ||
        ::getpeername(from, reinterpret_cast<sockaddr*>(&there), &there_bytes) == 0) {
        return count;
    }
    ::getsockname(from, reinterpret_cast<sockaddr*>(&here), &here_bytes);
    const bool is_end = lingers(ntohs(here.sin_port), peer_port).value_or(true);
    ::WSASetLastError(WSAECONNRESET);
    return is_end ? 0 : -1;
}
inline bool failed_by_waiting() noexcept { return ::WSAGetLastError() == WSAEWOULDBLOCK; }
inline bool readable(socket_type one, int timeout_ms) noexcept {
    fd_set of;
    FD_ZERO(&of);
    FD_SET(one, &of);
    timeval most{timeout_ms / 1000, timeout_ms % 1000 * 1000};
    return ::select(0, &of, nullptr, nullptr, &most) == 1;
}
inline std::size_t open_handles() noexcept {
    DWORD count = 0;
    ::GetProcessHandleCount(::GetCurrentProcess(), &count);
    return count;
}
using size_type = int;
using count_type = int;
inline constexpr int send_flags = 0;
inline constexpr int no_more_sends = SD_SEND;
#else
using socket_type = int;
inline constexpr socket_type no_socket = -1;

inline bool begin() noexcept { return true; }  // what a process must do before its first socket
/// A socket that children do not inherit and that raises no signal.
inline socket_type open(int family, int type) noexcept {
    const socket_type made = ::socket(family, type, 0);
    ::fcntl(made, F_SETFD, FD_CLOEXEC);
#if defined(SO_NOSIGPIPE)
    const int yes = 1;
    ::setsockopt(made, SOL_SOCKET, SO_NOSIGPIPE, &yes, sizeof(yes));
#endif
    return made;
}
inline void close(socket_type what) noexcept { ::close(what); }
inline void set_non_blocking(socket_type of) noexcept { ::fcntl(of, F_SETFL, O_NONBLOCK); }
inline bool failed_by_reset() noexcept { return errno == ECONNRESET; }
inline bool failed_by_waiting() noexcept { return errno == EAGAIN; }
inline bool readable(socket_type one, int timeout_ms) noexcept {
    pollfd of{one, POLLIN, 0};
    return ::poll(&of, 1, timeout_ms) == 1;
}
inline std::int64_t told_by_wine(int, std::int64_t count, std::uint16_t) noexcept { return count; }
/// Handles that this process holds, to compare two moments.
inline std::size_t open_handles() noexcept {
    std::size_t count = 0;
    DIR* const folder = ::opendir("/dev/fd");
    while (folder != nullptr && ::readdir(folder) != nullptr) {
        ++count;
    }
    if (folder != nullptr) {
        ::closedir(folder);
    }
    return count;
}
using size_type = std::size_t;
using count_type = ssize_t;
#if defined(MSG_NOSIGNAL)
inline constexpr int send_flags = MSG_NOSIGNAL;
#else
inline constexpr int send_flags = 0;
#endif
inline constexpr int no_more_sends = SHUT_WR;
#endif

inline socket_type open(int type) noexcept { return open(AF_INET, type); }

inline sockaddr_in address_of(const netio::endpoint& of) noexcept {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(of.port);
    std::memcpy(&out.sin_addr, of.address.data(), 4);
    return out;
}
inline netio::endpoint local_of(socket_type of) noexcept {
    sockaddr_in where{};
    socklen_t size = sizeof(where);
    if (::getsockname(of, reinterpret_cast<sockaddr*>(&where), &size) != 0) {
        return {};
    }
    netio::endpoint out;
    out.family = netio::address_family::ipv4;
    out.port = ntohs(where.sin_port);
    std::memcpy(out.address.data(), &where.sin_addr, 4);
    return out;
}
/// 0 where there is no peer, or none with a port.
inline std::uint16_t peer_port_of(socket_type of) noexcept {
    sockaddr_in where{};
    socklen_t size = sizeof(where);
    const bool known = ::getpeername(of, reinterpret_cast<sockaddr*>(&where), &size) == 0;
    // IPv6 has its port at the same place.
    return known && where.sin_family != AF_UNIX ? ntohs(where.sin_port) : std::uint16_t{0};
}
inline void bind_loopback(socket_type what) noexcept {
    const sockaddr_in where = address_of(netio::loopback_ipv4(0));
    ::bind(what, reinterpret_cast<const sockaddr*>(&where), sizeof(where));
}
inline bool connect(socket_type what, const netio::endpoint& to) noexcept {
    const sockaddr_in where = address_of(to);
    return ::connect(what, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0;
}
inline socket_type accept(socket_type from) noexcept { return ::accept(from, nullptr, nullptr); }
inline std::int64_t send(socket_type to, std::string_view text) noexcept {
    return ::send(to, text.data(), static_cast<size_type>(text.size()), send_flags);
}
inline std::int64_t send_to(socket_type to, std::string_view text,
                            const netio::endpoint& peer) noexcept {
    const sockaddr_in where = address_of(peer);
    return ::sendto(to, text.data(), static_cast<size_type>(text.size()), send_flags,
                    reinterpret_cast<const sockaddr*>(&where), sizeof(where));
}
inline std::int64_t receive(socket_type from, char* into, std::size_t count,
                            std::uint16_t peer_port) noexcept {
    return told_by_wine(from, ::recv(from, into, static_cast<size_type>(count), 0), peer_port);
}
/// An empty one is no end.
inline std::int64_t receive_datagram(socket_type from, char* into, std::size_t count) noexcept {
    return ::recv(from, into, static_cast<size_type>(count), 0);
}
inline void end_sending(socket_type of) noexcept { ::shutdown(of, no_more_sends); }
/// From now on its close is a reset.
inline void reset_at_close(socket_type of) noexcept {
    linger at_once{};
    at_once.l_onoff = 1;
    ::setsockopt(of, SOL_SOCKET, SO_LINGER, reinterpret_cast<const char*>(&at_once),
                 sizeof(at_once));
}
inline void reset(socket_type what) noexcept {
    reset_at_close(what);
    close(what);
}
/// What the peer may send before anything is read; before the connect.
inline void set_receive_bytes(socket_type of, int count) noexcept {
    ::setsockopt(of, SOL_SOCKET, SO_RCVBUF, reinterpret_cast<const char*>(&count), sizeof(count));
}
inline bool no_delay(socket_type of) noexcept {
    int on = 0;
    socklen_t size = sizeof(on);
    ::getsockopt(of, IPPROTO_TCP, TCP_NODELAY, reinterpret_cast<char*>(&on), &size);
    return on != 0;
}

}  // namespace plain

}  // namespace netio_test

#endif
