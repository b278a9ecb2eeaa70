// floor 5 · socket_posix.hpp · sockets of POSIX systems: errors, addresses, options, making them
#ifndef NETIO_SOCKET_POSIX_HPP
#define NETIO_SOCKET_POSIX_HPP

#include "platform/contract.hpp"
#include "platform/socket_file.hpp"

#if NETIO_HAS_POSIX

#include <cerrno>
#include <climits>
#include <cstddef>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#if NETIO_HAS_EPOLL || NETIO_HAS_IO_URING
#include <sys/eventfd.h>
#endif
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/random.h>
#include <sys/sysctl.h>
#endif

NETIO_BEGIN

namespace detail {

/// Options of sockets that not every system has: -1 where it has none.
struct posix_options {
#ifdef TCP_QUICKACK
    static constexpr int quick_ack_option = TCP_QUICKACK;
#else
    static constexpr int quick_ack_option = -1;
#endif
#ifdef TCP_USER_TIMEOUT
    static constexpr int user_timeout_option = TCP_USER_TIMEOUT;
#else
    static constexpr int user_timeout_option = -1;
#endif
#if defined(TCP_KEEPIDLE)
    static constexpr int keepalive_idle_option = TCP_KEEPIDLE;
#elif defined(__APPLE__)
    static constexpr int keepalive_idle_option = TCP_KEEPALIVE;
#else
    static constexpr int keepalive_idle_option = -1;
#endif
#ifdef TCP_KEEPINTVL
    static constexpr int keepalive_interval_option = TCP_KEEPINTVL;
#else
    static constexpr int keepalive_interval_option = -1;
#endif
#ifdef TCP_KEEPCNT
    static constexpr int keepalive_probes_option = TCP_KEEPCNT;
#else
    static constexpr int keepalive_probes_option = -1;
#endif
#ifdef TCP_DEFER_ACCEPT
    static constexpr int defer_accept_option = TCP_DEFER_ACCEPT;
#else
    static constexpr int defer_accept_option = -1;
#endif
    // macOS has the name for sockets that listen already, and for 1 alone.
#if defined(TCP_FASTOPEN) && !defined(__APPLE__)
    static constexpr int fast_open_option = TCP_FASTOPEN;
#else
    static constexpr int fast_open_option = -1;
#endif
#ifdef SO_BINDTODEVICE
    static constexpr int bind_device_option = SO_BINDTODEVICE;
#else
    static constexpr int bind_device_option = -1;
#endif
    // Several listeners of one port. Linux and DragonFly share connections out among them; FreeBSD
    // does so under a name of its own. On macOS and elsewhere the port is shared, but one of them
    // may get every connection.
#if defined(SO_REUSEPORT_LB)
    static constexpr int reuse_port_option = SO_REUSEPORT_LB;
#elif defined(SO_REUSEPORT)
    static constexpr int reuse_port_option = SO_REUSEPORT;
#else
    static constexpr int reuse_port_option = -1;
#endif
    // Out of descriptors, macOS takes the client out of the queue and closes it; others leave it.
#ifdef __APPLE__
    static constexpr bool full_accept_drops_client = true;
#else
    static constexpr bool full_accept_drops_client = false;
#endif
    // Linux alone lets a socket of IPv6 be marked for the IPv4 it carries; elsewhere it is EINVAL.
#ifdef __linux__
    static constexpr bool abstract_names = true;
    static constexpr bool ipv6_takes_ip_tos = true;
#else
    static constexpr bool abstract_names = false;
    static constexpr bool ipv6_takes_ip_tos = false;
#endif
};

}  // namespace detail

/// The system calls that backends over POSIX sockets share, one function each: what the system
/// returned, the reason in errno. A backend adds its own; tests put theirs in place of them to
/// count calls and to let the n-th one fail.
///
/// Systems differ in three things: flags at creation, SIGPIPE, and what accept hands down.
struct posix_sys : detail::posix_options, socket_file_sys {
#if defined(SOCK_NONBLOCK) && defined(SOCK_CLOEXEC)
    static int open_socket(int family, int type) noexcept {
        return ::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        return ::accept4(from, peer, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    }
#else
    // macOS sets them one by one: a child forked in between inherits the descriptor.
    static int open_socket(int family, int type) noexcept {
        return prepared(::socket(family, type, 0));
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        const int made = ::accept(from, peer, size);
        if (made < 0 || (::fcntl(made, F_SETFD, FD_CLOEXEC) == 0 && hand_down(from, made) == 0)) {
            return made;
        }
        return dropped(made);
    }
    static int prepared(int made) noexcept {
        if (made < 0 || (::fcntl(made, F_SETFD, FD_CLOEXEC) == 0 &&
                         ::fcntl(made, F_SETFL, O_NONBLOCK) == 0 && hush(made) == 0)) {
            return made;
        }
        return dropped(made);
    }
    static int dropped(int made) noexcept {
        const int code = errno;
        ::close(made);
        errno = code;
        return -1;
    }
#ifdef __APPLE__
    /// Accepted sockets have O_NONBLOCK of their listener here, its SO_NOSIGPIPE, and all it wants
    /// of keepalive but the idle time. Fails for nobody: who is gone already needs none.
    static int hand_down(int from, int made) noexcept {
        int value = 0;
        socklen_t size = sizeof(value);
        if (::getsockopt(from, SOL_SOCKET, SO_KEEPALIVE, &value, &size) != 0 || value == 0) {
            return 0;
        }
        size = sizeof(value);
        if (::getsockopt(from, IPPROTO_TCP, TCP_KEEPALIVE, &value, &size) == 0) {
            ::setsockopt(made, IPPROTO_TCP, TCP_KEEPALIVE, &value, sizeof(value));
        }
        return 0;
    }
#else
    /// POSIX lets accepted sockets have nothing of their listener's O_NONBLOCK.
    static int hand_down(int, int made) noexcept { return ::fcntl(made, F_SETFL, O_NONBLOCK); }
#endif
#endif

#ifdef __APPLE__
    static constexpr int send_flags = 0;
    /// Makes a socket raise no SIGPIPE. One whose both directions are over refuses every option
    /// with EINVAL, but an accepted one has this of its listener: so it is asked first.
    static int hush(int what) noexcept {
        int value = 0;
        socklen_t size = sizeof(value);
        if (::getsockopt(what, SOL_SOCKET, SO_NOSIGPIPE, &value, &size) == 0 && value != 0) {
            return 0;
        }
        value = 1;
        return ::setsockopt(what, SOL_SOCKET, SO_NOSIGPIPE, &value, sizeof(value));
    }
#elif !defined(MSG_NOSIGNAL)
#error "netio: this system has neither MSG_NOSIGNAL nor macOS's way to keep SIGPIPE off"
#else
    static constexpr int send_flags = MSG_NOSIGNAL;
    static int hush(int) noexcept { return 0; }  // each send says so
#endif

    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        return ::send(to, from, count, send_flags);
    }
    static ssize_t send_message(int to, const msghdr* what) noexcept {
        return ::sendmsg(to, what, send_flags);
    }
    static ssize_t send_to(int to, const void* from, std::size_t count, const sockaddr* peer,
                           socklen_t size) noexcept {
        return ::sendto(to, from, count, send_flags, peer, size);
    }
    static int bind(int what, const sockaddr* where, socklen_t size) noexcept {
        return ::bind(what, where, size);
    }
    static int listen(int what, int backlog) noexcept { return ::listen(what, backlog); }
    static int connect(int what, const sockaddr* where, socklen_t size) noexcept {
        return ::connect(what, where, size);
    }
    static int setsockopt(int of, int level, int option, const void* value,
                          socklen_t size) noexcept {
        return ::setsockopt(of, level, option, value, size);
    }
    static int getsockopt(int of, int level, int option, void* value, socklen_t* size) noexcept {
        return ::getsockopt(of, level, option, value, size);
    }
    static int getsockname(int of, sockaddr* where, socklen_t* size) noexcept {
        return ::getsockname(of, where, size);
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        return ::recv(from, into, count, 0);
    }
    static ssize_t receive_message(int from, msghdr* what) noexcept {
        return ::recvmsg(from, what, 0);
    }
    /// What a receive would find, also where that one would wait.
    static ssize_t peek(int from) noexcept {
        char next = 0;
        return ::recv(from, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    }
    static int shutdown_sending(int of) noexcept { return ::shutdown(of, SHUT_WR); }
    /// See eventfd_sys. Elsewhere there is no such call.
    static bool disconnect(int) noexcept { return false; }
    static int close(int what) noexcept { return ::close(what); }
    static int control(int of, int command, int value) noexcept {
        return ::fcntl(of, command, value);
    }
    static int open_spare() noexcept { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
    static int get_descriptor_limit(rlimit& out) noexcept {
        return ::getrlimit(RLIMIT_NOFILE, &out);
    }
    static int set_descriptor_limit(const rlimit& wanted) noexcept {
        return ::setrlimit(RLIMIT_NOFILE, &wanted);
    }
#ifdef __APPLE__
    /// More than this no process has here, though the limit may say so, even "infinite".
    static std::uint64_t descriptors_max() noexcept {
        int most = 0;
        std::size_t size = sizeof(most);
        return ::sysctlbyname("kern.maxfilesperproc", &most, &size, nullptr, 0) == 0 && most > 0
                   ? static_cast<std::uint64_t>(most)
                   : std::uint64_t{OPEN_MAX};
    }
#else
    static std::uint64_t descriptors_max() noexcept { return UINT64_MAX; }  // the limit says all
#endif
    /// getentropy(3): at most 256 bytes a call, never less than asked for.
    static bool fill_random(mutable_bytes out) noexcept {
        return ::getentropy(out.data(), out.size()) == 0;
    }
    static void yield() noexcept { ::sched_yield(); }
    static std::uint64_t now_ns() noexcept {
        timespec now{};
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
               static_cast<std::uint64_t>(now.tv_nsec);
    }
};

#if NETIO_HAS_EPOLL || NETIO_HAS_IO_URING
/// And those of Linux by which a worker is woken.
struct eventfd_sys : posix_sys {
    static int open_wake() noexcept { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); }
    static ssize_t write_wake(int to) noexcept {
        const std::uint64_t one = 1;
        return ::write(to, &one, sizeof(one));
    }
    /// Undoes the connection of a TCP socket (connect(2), AF_UNSPEC): the peer gets its reset
    /// within this call, whoever else holds the socket and whatever the kernel still has to do with
    /// it. False: it is no such socket.
    static bool disconnect(int of) noexcept {
        sockaddr nobody{};
        nobody.sa_family = AF_UNSPEC;
        return ::connect(of, &nobody, sizeof(nobody)) == 0;
    }
};
#endif

namespace detail {

/// One answer of the system: its number, its name, and what it means here.
struct errno_row {
    int code;
    const char* name;
    error why;
};

/// Every errno a call of a backend is documented to give; looked through on failures only. Where
/// two names share a number the first one counts.
inline constexpr errno_row errno_table[] = {
    {ECONNRESET, "ECONNRESET", error::connection_reset},
    {EPIPE, "EPIPE", error::broken_pipe},
    {ECONNREFUSED, "ECONNREFUSED", error::connection_refused},
    {ECONNABORTED, "ECONNABORTED", error::connection_aborted},
    {ETIMEDOUT, "ETIMEDOUT", error::timed_out},
    {EHOSTUNREACH, "EHOSTUNREACH", error::host_unreachable},
    {EHOSTDOWN, "EHOSTDOWN", error::host_unreachable},
    {ENETUNREACH, "ENETUNREACH", error::network_unreachable},
    {ENETDOWN, "ENETDOWN", error::network_down},
    {ENETRESET, "ENETRESET", error::connection_reset},
    {EADDRINUSE, "EADDRINUSE", error::address_in_use},
    // Only a unix connect to a listener whose queue is full shows this one to a user.
    {EAGAIN, "EAGAIN", error::address_in_use},
    {EADDRNOTAVAIL, "EADDRNOTAVAIL", error::address_unavailable},
    {EDESTADDRREQ, "EDESTADDRREQ", error::address_invalid},
    {ENODEV, "ENODEV", error::address_unavailable},
    {ENXIO, "ENXIO", error::address_unavailable},
    {ENOENT, "ENOENT", error::address_unavailable},
    {ENOTDIR, "ENOTDIR", error::address_unavailable},
    {EACCES, "EACCES", error::permission_denied},
    {EPERM, "EPERM", error::permission_denied},
    {EROFS, "EROFS", error::permission_denied},
    {ENAMETOOLONG, "ENAMETOOLONG", error::path_too_long},
    {EMFILE, "EMFILE", error::descriptors_empty},
    {ENFILE, "ENFILE", error::descriptors_empty},
    {ENOBUFS, "ENOBUFS", error::kernel_memory_empty},
    {ENOMEM, "ENOMEM", error::kernel_memory_empty},
    {ENOSPC, "ENOSPC", error::kernel_memory_empty},
    {EMSGSIZE, "EMSGSIZE", error::too_long},
    {EAFNOSUPPORT, "EAFNOSUPPORT", error::not_supported},
    {EPROTONOSUPPORT, "EPROTONOSUPPORT", error::not_supported},
    {EPROTOTYPE, "EPROTOTYPE", error::not_supported},
    {EOPNOTSUPP, "EOPNOTSUPP", error::not_supported},
    {ENOPROTOOPT, "ENOPROTOOPT", error::not_supported},
    {ENOSYS, "ENOSYS", error::not_supported},
    {EDOM, "EDOM", error::option_invalid},
    {EINVAL, "EINVAL", error::os_failure},
    {EBADF, "EBADF", error::os_failure},
    {ENOTSOCK, "ENOTSOCK", error::os_failure},
    {ENOTCONN, "ENOTCONN", error::os_failure},
    {EISCONN, "EISCONN", error::os_failure},
    {EALREADY, "EALREADY", error::os_failure},
    {EINPROGRESS, "EINPROGRESS", error::os_failure},
    {EEXIST, "EEXIST", error::os_failure},
    {EFAULT, "EFAULT", error::os_failure},
    {EINTR, "EINTR", error::os_failure},
    {EIO, "EIO", error::os_failure},
    {ELOOP, "ELOOP", error::os_failure},
    {EPROTO, "EPROTO", error::os_failure},
};

NETIO_COLD inline error error_of(int code) noexcept {
    for (const errno_row& row : errno_table) {
        if (row.code == code) {
            return row.why;
        }
    }
    return error::os_failure;
}

NETIO_COLD inline const char* errno_name(int code) noexcept {
    for (const errno_row& row : errno_table) {
        if (row.code == code) {
            return row.name;
        }
    }
    return "";
}

NETIO_COLD inline os_status status_of(int code) noexcept {
    NETIO_ASSERT(code != 0);
    return {error_of(code), code};
}

/// Room for every address a backend handles.
union socket_address {
    sockaddr any;
    sockaddr_in ipv4;
    sockaddr_in6 ipv6;
    sockaddr_un path;
};

/// Longest path of a unix socket: one byte of the system's field is the terminating NUL (or the
/// leading one of the abstract namespace). 107 on Linux, 103 on the BSDs.
inline constexpr std::size_t unix_path_max = sizeof(sockaddr_un::sun_path) - 1;

/// The endpoint in the system's form; its size, 0 where the endpoint is no IP address.
inline socklen_t to_socket_address(const endpoint& from, socket_address& to) noexcept {
    if (from.family == address_family::ipv4) {
        to.ipv4 = {};
        to.ipv4.sin_family = AF_INET;
        to.ipv4.sin_port = htons(from.port);
        std::memcpy(&to.ipv4.sin_addr, from.address.data(), 4);
        return sizeof(to.ipv4);
    }
    if (from.family == address_family::ipv6) {
        to.ipv6 = {};
        to.ipv6.sin6_family = AF_INET6;
        to.ipv6.sin6_port = htons(from.port);
        to.ipv6.sin6_flowinfo = htonl(from.flow_info);
        to.ipv6.sin6_scope_id = from.scope_id;
        std::memcpy(&to.ipv6.sin6_addr, from.address.data(), 16);
        return sizeof(to.ipv6);
    }
    return 0;
}

/// What the system reported; family none if it reported nothing netio knows.
inline endpoint to_endpoint(const socket_address& from, socklen_t size) noexcept {
    endpoint out;
    if (size < offsetof(sockaddr, sa_family) + sizeof(sa_family_t)) {
        return out;
    }
    if (from.any.sa_family == AF_INET && size >= sizeof(from.ipv4)) {
        std::memcpy(out.address.data(), &from.ipv4.sin_addr, 4);
        out.port = ntohs(from.ipv4.sin_port);
        out.family = address_family::ipv4;
    } else if (from.any.sa_family == AF_INET6 && size >= sizeof(from.ipv6)) {
        std::memcpy(out.address.data(), &from.ipv6.sin6_addr, 16);
        out.port = ntohs(from.ipv6.sin6_port);
        out.flow_info = ntohl(from.ipv6.sin6_flowinfo);
        out.scope_id = from.ipv6.sin6_scope_id;
        out.family = address_family::ipv6;
    } else if (from.any.sa_family == AF_UNIX) {
        out.family = address_family::unix_path;
    }
    return out;
}

/// A path, or a name of Linux's abstract namespace after '@', in the system's form. Never cut: too
/// long is an error, and so is a NUL inside a path, where the system would cut.
inline error to_unix_address(std::string_view path, bool abstract_names, socket_address& to,
                             socklen_t& size) noexcept {
    NETIO_ASSERT(!path.empty());
    if (path.size() > unix_path_max) {
        return error::path_too_long;
    }
    const bool abstract = path[0] == '@';
    if (abstract && !abstract_names) {
        return error::not_supported;
    }
    if (path.find('\0') != std::string_view::npos) {
        return error::address_invalid;
    }
    to.path = {};
    to.path.sun_family = AF_UNIX;
    std::memcpy(to.path.sun_path, path.data(), path.size());
    if (abstract) {
        to.path.sun_path[0] = '\0';
    }
    // A path's terminating NUL counts; an abstract name ends where its size says.
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + !abstract);
    return error::none;
}

/// Sets options one after another and keeps the first failure.
template <class Sys>
class option_setter {
public:
    explicit option_setter(int descriptor) noexcept : descriptor_(descriptor) {}

    void set(int level, int option, const void* value, std::size_t value_bytes) noexcept {
        if (!status) {
            return;
        }
        if (option < 0) {  // this system has no such option
            status.why = error::not_supported;
        } else if (Sys::setsockopt(descriptor_, level, option, value,
                                   static_cast<socklen_t>(value_bytes)) != 0) {
            status = status_of(errno);
        }
    }
    void set(int level, int option, std::uint32_t value) noexcept {
        if (value > INT_MAX) {
            fail(error::option_invalid);
            return;
        }
        const int number = static_cast<int>(value);
        set(level, option, &number, sizeof(number));
    }
    /// Only where the user asked for it.
    void set_unless_zero(int level, int option, std::uint32_t value) noexcept {
        if (value != 0) {
            set(level, option, value);
        }
    }
    void fail(error why) noexcept {
        if (status) {
            status.why = why;
        }
    }

    os_status status{};

private:
    int descriptor_;
};

template <class Sys>
void set_traffic_class(option_setter<Sys>& to, int family, bool dual_stack,
                       std::uint8_t dscp) noexcept {
    if (dscp > 63) {
        to.fail(error::option_invalid);
    }
    const std::uint32_t octet = std::uint32_t{dscp} << 2;
    if (family == AF_INET6) {
        to.set_unless_zero(IPPROTO_IPV6, IPV6_TCLASS, octet);
    }
    if (family == AF_INET || (dual_stack && Sys::ipv6_takes_ip_tos)) {
        to.set_unless_zero(IPPROTO_IP, IP_TOS, octet);
    }
}

/// What TCP alone has; unix sockets have none of it and ignore the wish.
template <class Sys>
void set_tcp_options(option_setter<Sys>& to, const socket_options& options) noexcept {
    to.set_unless_zero(IPPROTO_TCP, TCP_NODELAY, options.no_delay);
    to.set_unless_zero(IPPROTO_TCP, Sys::quick_ack_option, options.quick_ack);
    to.set_unless_zero(IPPROTO_TCP, Sys::user_timeout_option, options.user_timeout_ms);
    const bool keepalive = (options.keepalive_idle_s | options.keepalive_interval_s |
                            options.keepalive_probes) != 0;
    to.set_unless_zero(SOL_SOCKET, SO_KEEPALIVE, keepalive);
    to.set_unless_zero(IPPROTO_TCP, Sys::keepalive_idle_option, options.keepalive_idle_s);
    to.set_unless_zero(IPPROTO_TCP, Sys::keepalive_interval_option, options.keepalive_interval_s);
    to.set_unless_zero(IPPROTO_TCP, Sys::keepalive_probes_option, options.keepalive_probes);
}

template <class Sys>
void set_socket_options(option_setter<Sys>& to, int family, bool tcp, bool dual_stack,
                        const socket_options& options) noexcept {
    to.set_unless_zero(SOL_SOCKET, SO_RCVBUF, options.receive_bytes);
    to.set_unless_zero(SOL_SOCKET, SO_SNDBUF, options.send_bytes);
    if (family != AF_UNIX) {
        set_traffic_class(to, family, dual_stack, options.dscp);
        if (!options.bind_device.empty()) {
            to.set(SOL_SOCKET, Sys::bind_device_option, options.bind_device.data(),
                   options.bind_device.size());
        }
    }
    if (tcp) {
        set_tcp_options(to, options);
    }
    for (const raw_option& each : options.raw) {
        to.set(each.level, each.option, each.value.data(), each.value.size());
    }
}

/// Closes what was made so far: a call that fails holds nothing. The reason is read before.
template <class Sys>
os_handle give_up(int descriptor, os_status why) noexcept {
    NETIO_ASSERT(!why);
    if (descriptor >= 0) {
        Sys::close(descriptor);
    }
    return {no_handle, why};
}

template <class Sys>
error to_stream_address(const stream_address& from, socket_address& to, socklen_t& size) noexcept {
    if (!from.unix_path.empty()) {
        return to_unix_address(from.unix_path, Sys::abstract_names, to, size);
    }
    size = to_socket_address(from.ip, to);
    return size != 0 ? error::none : error::address_invalid;
}

/// Binds to a name in the file system and listens. Two that start at once take turns, by a lock on
/// the folder: else one could take the other's file, which refuses connects until it listens, for a
/// stale one. Where the folder can't be locked nothing is replaced.
template <class Sys>
os_handle listen_with_file(int made, const socket_address& where, socklen_t size, int backlog,
                           const listen_options& options) noexcept {
    if (options.unix_mode > unix_mode_most) {
        return give_up<Sys>(made, {error::option_invalid, 0});
    }
    const folder_lock<Sys> lock(where.path.sun_path);
    if (lock.busy()) {
        return give_up<Sys>(made, status_of(EADDRINUSE));
    }
    os_handle out{made, {}};
    int code = bind_file<Sys>(made, &where.any, size, options.unix_mode,
                              options.unix_stale_removal && lock.held(), out.file);
    if (code == 0 && Sys::listen(made, backlog) != 0) {
        code = errno;
        remove_file_of<Sys>(made, out.file);
    }
    return code == 0 ? out : give_up<Sys>(made, status_of(code));
}

/// A bound, listening, non-blocking stream socket that no child inherits.
template <class Sys>
os_handle listen_stream(const stream_address& address, const listen_options& options) noexcept {
    if (!options.pipe_access.empty()) {
        return {no_handle, {error::not_supported, 0}};
    }
    socket_address where;
    socklen_t size = 0;
    if (const error why = to_stream_address<Sys>(address, where, size); why != error::none) {
        return {no_handle, {why, 0}};
    }
    const int family = where.any.sa_family;
    const bool tcp = family != AF_UNIX;
    const int made = Sys::open_socket(family, SOCK_STREAM);
    if (made < 0) {
        return {no_handle, status_of(errno)};
    }
    option_setter<Sys> to(made);
    if (tcp) {
        to.set_unless_zero(SOL_SOCKET, SO_REUSEADDR, options.reuse_address);
        to.set_unless_zero(SOL_SOCKET, Sys::reuse_port_option, options.reuse_port);
        to.set_unless_zero(IPPROTO_TCP, Sys::defer_accept_option, options.defer_accept_s);
        to.set_unless_zero(IPPROTO_TCP, Sys::fast_open_option, options.fast_open);
    }
    if (family == AF_INET6) {
        to.set(IPPROTO_IPV6, IPV6_V6ONLY, options.dual_stack ? 0U : 1U);
    }
    set_socket_options(to, family, tcp, options.dual_stack, options.socket);
    if (!to.status) {
        return give_up<Sys>(made, to.status);
    }
    // The system cuts a backlog to its own maximum, so the largest number asks for just that.
    const int backlog = options.backlog == 0 || options.backlog > INT_MAX
                            ? INT_MAX
                            : static_cast<int>(options.backlog);
    if (!tcp && where.path.sun_path[0] != '\0') {
        return listen_with_file<Sys>(made, where, size, backlog, options);
    }
    if (Sys::bind(made, &where.any, size) != 0 || Sys::listen(made, backlog) != 0) {
        return give_up<Sys>(made, status_of(errno));
    }
    return {made, {}};
}

/// A bound UDP socket, non-blocking, that no child inherits.
template <class Sys>
os_handle open_bound_datagram(const endpoint& address, const datagram_options& options) noexcept {
    socket_address where;
    const socklen_t size = to_socket_address(address, where);
    if (size == 0) {
        return {no_handle, {error::address_invalid, 0}};
    }
    const int family = where.any.sa_family;
    const int made = Sys::open_socket(family, SOCK_DGRAM);
    if (made < 0) {
        return {no_handle, status_of(errno)};
    }
    option_setter<Sys> to(made);
    to.set_unless_zero(SOL_SOCKET, Sys::reuse_port_option, options.reuse_port);
    if (family == AF_INET6) {
        to.set(IPPROTO_IPV6, IPV6_V6ONLY, options.dual_stack ? 0U : 1U);
    }
    set_socket_options(to, family, false, options.dual_stack, options.socket);
    if (!to.status) {
        return give_up<Sys>(made, to.status);
    }
    if (Sys::bind(made, &where.any, size) != 0) {
        return give_up<Sys>(made, status_of(errno));
    }
    return {made, {}};
}

/// A stream socket whose connection is under way or already there.
template <class Sys>
os_handle connect_stream(const stream_address& address, const socket_options& options) noexcept {
    socket_address where;
    socklen_t size = 0;
    // A mapped address goes out as plain IPv4: a socket of its own family needs no V6ONLY.
    const stream_address plain{unmapped(address.ip), address.unix_path};
    if (const error why = to_stream_address<Sys>(plain, where, size); why != error::none) {
        return {no_handle, {why, 0}};
    }
    const int family = where.any.sa_family;
    const int made = Sys::open_socket(family, SOCK_STREAM);
    if (made < 0) {
        return {no_handle, status_of(errno)};
    }
    option_setter<Sys> to(made);
    set_socket_options(to, family, family != AF_UNIX, false, options);
    if (!to.status) {
        return give_up<Sys>(made, to.status);
    }
    // After EINTR a non-blocking connect goes on by itself, as after EINPROGRESS.
    if (Sys::connect(made, &where.any, size) != 0 && errno != EINPROGRESS && errno != EINTR) {
        return give_up<Sys>(made, status_of(errno));
    }
    return {made, {}};
}

template <class Sys>
result<endpoint> local_endpoint(socket_handle handle) noexcept {
    socket_address where;
    socklen_t size = sizeof(where);
    if (Sys::getsockname(static_cast<int>(handle), &where.any, &size) != 0) {
        return error_of(errno);
    }
    return to_endpoint(where, size);
}

/// A listening socket that somebody else made, as it is: where it is bound, or what it is instead.
struct listener_facts {
    os_status status{};
    const char* wrong = "";  // static text
    endpoint local{};
    socket_address address{};
    socklen_t address_bytes = 0;
    constexpr explicit operator bool() const noexcept { return status.why == error::none; }
};

/// Looks at a descriptor of any kind and changes nothing: a stream socket of TCP or a unix one that
/// listens?
template <class Sys>
listener_facts facts_of_listener(int of) noexcept {
    listener_facts out;
    const auto is_not = [&out](const char* wrong, int code) {
        out.status = {error::not_a_listener, code};
        out.wrong = wrong;
        return out;
    };
    const auto option = [of](int name) {
        int value = -1;
        socklen_t size = sizeof(value);
        return Sys::getsockopt(of, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
    };
    const int type = option(SO_TYPE);
    if (type < 0) {
        return is_not(errno == EBADF ? "not open" : "no socket", errno);
    }
    if (type != SOCK_STREAM) {
        return is_not("no stream", 0);
    }
    if (option(SO_ACCEPTCONN) != 1) {
        return is_not("does not listen", 0);
    }
    out.address_bytes = sizeof(out.address);
    if (Sys::getsockname(of, &out.address.any, &out.address_bytes) != 0) {
        return is_not("no address", errno);
    }
    out.local = to_endpoint(out.address, out.address_bytes);
    if (out.local.family == address_family::none) {
        return is_not("of another family", 0);
    }
    return out;
}

/// Where a unix socket is bound: a path, or '@' and a name without a file; in `room`.
inline std::string_view path_of(const listener_facts& facts, std::span<char> room) noexcept {
    constexpr std::size_t begin = offsetof(sockaddr_un, sun_path);
    const char* const at = facts.address.path.sun_path;
    std::size_t count = facts.address_bytes > begin ? facts.address_bytes - begin : 0;
    count = count < sizeof(facts.address.path.sun_path) ? count
                                                        : sizeof(facts.address.path.sun_path);
    if (count != 0 && at[0] != '\0') {
        const void* const end = std::memchr(at, '\0', count);
        count = end != nullptr ? static_cast<std::size_t>(static_cast<const char*>(end) - at)
                               : count;
    }
    NETIO_ASSERT(count <= room.size());
    std::memcpy(room.data(), at, count);
    if (count != 0 && at[0] == '\0') {
        room[0] = '@';
    }
    return {room.data(), count};
}

/// A listener that somebody else made gets what ours have: not blocking, not inherited, and the
/// options that connections inherit from it. On an error it stays the caller's, though some options
/// may be set.
template <class Sys>
os_handle take_listener(socket_handle handle, const listen_options& options) noexcept {
    const int of = static_cast<int>(handle);
    const listener_facts facts = facts_of_listener<Sys>(of);
    if (!facts) {
        return {no_handle, facts.status};
    }
    const int flags = Sys::control(of, F_GETFL, 0);
    if (flags < 0 || Sys::control(of, F_SETFL, flags | O_NONBLOCK) < 0 ||
        Sys::control(of, F_SETFD, FD_CLOEXEC) < 0 || Sys::hush(of) != 0) {
        return {no_handle, status_of(errno)};
    }
    option_setter<Sys> to(of);
    const int family = facts.address.any.sa_family;
    set_socket_options(to, family, family != AF_UNIX, false, options.socket);
    if (to.status && options.backlog != 0 &&
        Sys::listen(of, options.backlog > INT_MAX ? INT_MAX : static_cast<int>(options.backlog))) {
        to.status = status_of(errno);
    }
    return to.status ? os_handle{handle, {}} : os_handle{no_handle, to.status};
}

/// Raises the soft limit of descriptors to `count` or as near as the hard limit and the system let;
/// what holds afterwards.
template <class Sys>
std::uint64_t raise_descriptor_limit(std::uint64_t count) noexcept {
    rlimit bound{};
    if (Sys::get_descriptor_limit(bound) != 0) {
        return 0;
    }
    const std::uint64_t most = Sys::descriptors_max();
    const auto allowed = [most](rlim_t limit) {
        const auto told = static_cast<std::uint64_t>(limit);
        return told < most ? told : most;
    };
    const std::uint64_t hard = allowed(bound.rlim_max);
    const std::uint64_t target = hard < count ? hard : count;
    if (static_cast<std::uint64_t>(bound.rlim_cur) < target) {
        rlimit wanted = bound;
        wanted.rlim_cur = static_cast<rlim_t>(target);
        // Some systems cut what they take, so it is read again; if that fails the old one counts.
        if (Sys::set_descriptor_limit(wanted) == 0) {
            Sys::get_descriptor_limit(bound);
        }
    }
    return allowed(bound.rlim_cur);
}

// ---- what a backend does with a socket; after EINTR each call is made again

inline std::uint32_t clipped(std::size_t count) noexcept {
    return count < INT_MAX ? static_cast<std::uint32_t>(count) : INT_MAX;
}
inline std::uint64_t address_of(const void* at) noexcept {
    return reinterpret_cast<std::uintptr_t>(at);
}
inline std::byte* pointer_of(std::uint64_t address) noexcept {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

template <class Sys>
ssize_t receive_bytes(int from, std::byte* into, std::size_t count) noexcept {
    ssize_t got = 0;
    do {
        got = Sys::receive(from, into, count);
    } while (got < 0 && errno == EINTR);
    return got;
}

template <class Sys>
ssize_t send_one(int to, bytes what) noexcept {
    NETIO_ASSERT(!what.empty());
    ssize_t sent = 0;
    do {
        sent = Sys::send(to, what.data(), clipped(what.size()));
    } while (sent < 0 && errno == EINTR);
    return sent;
}

/// One call for all of them; short where the socket's buffer takes no more.
template <class Sys>
ssize_t send_slices(int to, std::span<const bytes> slices) noexcept {
    NETIO_ASSERT(!slices.empty() && slices.size() <= slices_max);
    if (slices.size() == 1) {
        return send_one<Sys>(to, slices[0]);
    }
    iovec pieces[slices_max];
    for (std::size_t index = 0; index < slices.size(); ++index) {
        NETIO_ASSERT(!slices[index].empty());
        pieces[index].iov_base = const_cast<std::byte*>(slices[index].data());
        pieces[index].iov_len = slices[index].size();
    }
    msghdr what{};
    what.msg_iov = pieces;
    what.msg_iovlen = static_cast<decltype(what.msg_iovlen)>(slices.size());
    ssize_t sent = 0;
    do {
        sent = Sys::send_message(to, &what);
    } while (sent < 0 && errno == EINTR);
    return sent;
}

/// Did that call take every byte?
inline bool is_whole(ssize_t sent, std::span<const bytes> slices) noexcept {
    return sent >= 0 && static_cast<std::uint64_t>(sent) == bytes_of(slices);
}

/// How a connect ended: 0, or its errno.
template <class Sys>
int connect_code(int descriptor) noexcept {
    int code = 0;
    socklen_t size = sizeof(code);
    return Sys::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &code, &size) == 0 ? code : errno;
}

template <class Sys>
void close_socket(int descriptor, bool abort) noexcept {
    if (abort && !Sys::disconnect(descriptor)) {
        // Without a shutdown before, so the reset leaves no TIME_WAIT on this side.
        const linger at_once{1, 0};
        Sys::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    Sys::close(descriptor);
}

/// Errors that accept hands on from a connection that died in the queue (accept(2) of Linux).
inline bool of_one_client(int code) noexcept {
    switch (code) {
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case EPERM:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
#ifdef ENONET
    case ENONET:
#endif
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case ETIMEDOUT:
    case ECONNRESET: return true;
    default: return false;
    }
}

/// What a receive would find (recv(2) with MSG_PEEK).
template <class Sys>
NETIO_COLD probe_result probe_stream(int of) noexcept {
    ssize_t got = 0;
    do {
        got = Sys::peek(of);
    } while (got < 0 && errno == EINTR);
    if (got >= 0) {
        return {got == 0 ? probed::peer_closed : probed::readable};
    }
    return errno == EAGAIN || errno == EWOULDBLOCK
               ? probe_result{}
               : probe_result{probed::failed, error_of(errno)};
}

/// Who is at the other end of a unix socket, as far as the system tells.
template <class Sys>
peer_credentials credentials_of(int peer) noexcept {
    peer_credentials out;
#if defined(__linux__)
    struct {
        int process;
        unsigned user, group;
    } told{0, no_user, no_user};
    socklen_t size = sizeof(told);
    if (Sys::getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &told, &size) == 0) {
        out = {static_cast<std::uint32_t>(told.process), told.user, told.group};
    }
#elif defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) ||                        \
    defined(__OpenBSD__) || defined(__DragonFly__)
    uid_t user = 0;
    gid_t group = 0;
    if (::getpeereid(peer, &user, &group) == 0) {
        out.user_id = static_cast<std::uint32_t>(user);
        out.group_id = static_cast<std::uint32_t>(group);
    }
#if defined(LOCAL_PEERPID)  // of macOS
    pid_t process = 0;
    socklen_t size = sizeof(process);
    if (Sys::getsockopt(peer, SOL_LOCAL, LOCAL_PEERPID, &process, &size) == 0) {
        out.process_id = static_cast<std::uint32_t>(process);
    }
#endif
#else
    static_cast<void>(peer);
#endif
    return out;
}

/// Its process; 0 where the system does not tell.
template <class Sys>
std::uint32_t peer_process(int of) noexcept {
    return credentials_of<Sys>(of).process_id;
}

/// The next client of a listener; below 0 where there is none, or none that lives.
template <class Sys>
int accept_client(int from, endpoint& peer) noexcept {
    socket_address where;
    socklen_t size = sizeof(where);
    const int accepted = Sys::accept(from, &where.any, &size);
    if (accepted >= 0 && size == 0) {  // macOS: it was reset while it waited, and has no address
        Sys::close(accepted);
        errno = ECONNABORTED;
        return -1;
    }
    if (accepted >= 0) {
        peer = to_endpoint(where, size);
        if (peer.family == address_family::unix_path) {
            peer.scope_id = peer_process<Sys>(accepted);
        }
    }
    return accepted;
}

/// A descriptor that is given up when there is no other, so that the client who waits in the queue
/// learns at once that nobody serves it. None is kept where the system drops that client itself: a
/// second one would go with it.
template <class Sys>
class spare_descriptor {
public:
    void refill() noexcept {
        if (spare_ == 0 && !Sys::full_accept_drops_client) {
            spare_ = Sys::open_spare() + 1;  // 0 where there is none
        }
    }
    void close() noexcept {
        if (spare_ != 0) {
            Sys::close(spare_ - 1);
            spare_ = 0;
        }
    }
    /// An accept failed with `code`, which is of no single client: what to tell of it.
    NETIO_COLD os_status accept_failed(int listener, int code) noexcept {
        const bool exhausted =
            code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
        if (exhausted && spare_ != 0) {
            close();
            const int accepted = Sys::accept(listener, nullptr, nullptr);
            if (accepted >= 0) {
                Sys::close(accepted);
            }
            refill();
        }
        return {exhausted ? error::descriptors_empty : error_of(code), code};
    }

private:
    int spare_ = 0;  // plus one
};

/// One datagram, told in `out`; below 0 if there was none. Errors but EAGAIN are those of earlier
/// sends and concern nobody any more.
template <class Sys>
ssize_t receive_message(int from, std::byte* into, std::uint32_t count, event& out) noexcept {
    socket_address peer;
    iovec piece{into, count};
    msghdr what{};
    what.msg_name = &peer;
    what.msg_namelen = sizeof(peer);
    what.msg_iov = &piece;
    what.msg_iovlen = 1;
    const ssize_t got = Sys::receive_message(from, &what);
    if (got >= 0) {
        out.byte_count = static_cast<std::uint32_t>(got);
        out.truncated = (what.msg_flags & MSG_TRUNC) != 0;
        out.peer = to_endpoint(peer, what.msg_namelen);
    }
    return got;
}

template <class Sys>
ssize_t send_datagram(int from, bytes payload, const endpoint& to) noexcept {
    socket_address peer;
    const socklen_t size = to_socket_address(to, peer);
    ssize_t sent = -1;
    errno = EDESTADDRREQ;
    // An error of an earlier datagram is fetched by the first call; the second one sends.
    for (int refused = 0; size != 0 && sent < 0 && refused < 3;) {
        sent = Sys::send_to(from, payload.data(), payload.size(), &peer.any, size);
        if (sent < 0 && errno == ECONNREFUSED) {
            ++refused;
        } else if (sent < 0 && errno != EINTR) {
            break;
        }
    }
    return sent;
}

/// The calls of a backend over POSIX sockets that need no open one.
template <class Sys>
class posix_sockets {
public:
    static const char* os_name(int code) noexcept { return errno_name(code); }
    static os_handle listen(const stream_address& address,
                            const listen_options& options) noexcept {
        return listen_stream<Sys>(address, options);
    }
    static os_handle take_listener(socket_handle handle, const listen_options& options) noexcept {
        return detail::take_listener<Sys>(handle, options);
    }
    static os_handle open_datagram(const endpoint& address,
                                   const datagram_options& options) noexcept {
        return open_bound_datagram<Sys>(address, options);
    }
    static result<endpoint> local_of(socket_handle handle) noexcept {
        return local_endpoint<Sys>(handle);
    }
    static void close_handle(socket_handle handle, bool abort) noexcept {
        NETIO_ASSERT(handle >= 0);
        close_socket<Sys>(static_cast<int>(handle), abort);
    }
    static std::uint64_t reserve_descriptors(std::uint64_t count) noexcept {
        return raise_descriptor_limit<Sys>(count);
    }
    static bool fill_random(mutable_bytes out) noexcept { return Sys::fill_random(out); }
    static std::uint64_t process_id() noexcept {
        return static_cast<std::uint64_t>(Sys::process_id());
    }
    static peer_credentials peer_credentials_of(socket_handle handle) noexcept {
        return credentials_of<Sys>(static_cast<int>(handle));
    }
    static probe_result probe(socket_handle handle) noexcept {
        return probe_stream<Sys>(static_cast<int>(handle));
    }
    static void remove_file_of(socket_handle handle, const socket_file& file) noexcept {
        detail::remove_file_of<Sys>(static_cast<int>(handle), file);
    }
    std::uint64_t now_ns() const noexcept { return Sys::now_ns(); }
};

}  // namespace detail

NETIO_END

#endif

#endif
