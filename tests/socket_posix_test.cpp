// Sockets of POSIX systems: addresses, options that are really set, errors by name, nothing held
// after a failure.
#include "netio.hpp"
#include "tests/local_folder.hpp"
#include "tests/sockets.hpp"

#include "tests/emulated.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <pwd.h>
#include <set>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <vector>

namespace {

using netio_test::plain::open_handles;

using netio::error;
using netio::os_handle;
namespace sockets = netio::detail;

/// The n-th call fails; and a system that lacks what only Linux has.
struct socket_posix_sys : netio::linux_sys {
    using real = netio::linux_sys;
    static inline int fail_at = 0;
    static inline int made = 0;

    static bool enter() noexcept {
        errno = ENOBUFS;
        return ++made != fail_at;
    }
    static void plan(int nth) {
        fail_at = nth;
        made = 0;
    }
    static int open_socket(int family, int type) noexcept {
        return enter() ? real::open_socket(family, type) : -1;
    }
    static int bind(int what, const sockaddr* where, socklen_t size) noexcept {
        return enter() ? real::bind(what, where, size) : -1;
    }
    static int listen(int what, int backlog) noexcept {
        return enter() ? real::listen(what, backlog) : -1;
    }
    static int connect(int what, const sockaddr* where, socklen_t size) noexcept {
        return enter() ? real::connect(what, where, size) : -1;
    }
    static int setsockopt(int of, int level, int option, const void* value,
                          socklen_t size) noexcept {
        return enter() ? real::setsockopt(of, level, option, value, size) : -1;
    }
    static int getsockname(int of, sockaddr* where, socklen_t* size) noexcept {
        return enter() ? real::getsockname(of, where, size) : -1;
    }
    static int get_descriptor_limit(rlimit& out) noexcept {
        return enter() ? real::get_descriptor_limit(out) : -1;
    }
    static int set_descriptor_limit(const rlimit& wanted) noexcept {
        return enter() ? real::set_descriptor_limit(wanted) : -1;
    }
};
struct socket_posix_limit_sys : netio::linux_sys {
    static inline rlimit now{};
    static inline std::uint64_t most = UINT64_MAX;  // of a process, whatever its limit says
    static inline rlim_t cut = RLIM_INFINITY;       // no limit is set above this; 0: none at all
    static std::uint64_t descriptors_max() noexcept { return most; }
    static int get_descriptor_limit(rlimit& out) noexcept {
        out = now;
        return now.rlim_max == 0 ? -1 : 0;
    }
    static int set_descriptor_limit(const rlimit& wanted) noexcept {
        if (cut == 0) {
            return -1;
        }
        now = wanted;
        now.rlim_cur = wanted.rlim_cur < cut ? wanted.rlim_cur : cut;
        return 0;
    }
};
struct socket_posix_poor_sys : netio::linux_sys {
    static constexpr bool abstract_names = false;
    static constexpr int quick_ack_option = -1;
    static constexpr bool ipv6_takes_ip_tos = false;
};

/// Each send_to of a datagram fails with the next of these codes; after them they are sent.
struct socket_posix_send_sys : netio::linux_sys {
    static inline std::vector<int> codes;
    static ssize_t send_to(int, const void*, std::size_t count, const sockaddr*,
                           socklen_t) noexcept {
        if (codes.empty()) {
            return static_cast<ssize_t>(count);
        }
        errno = codes.front();
        codes.erase(codes.begin());
        return -1;
    }
};

/// Out of descriptors; as on macOS, where the client who waited is gone then.
struct socket_posix_full_sys : netio::linux_sys {
    static constexpr bool full_accept_drops_client = true;
    static inline int calls = 0;
    static int accept(int, sockaddr*, socklen_t*) noexcept {
        ++calls;
        errno = EMFILE;
        return -1;
    }
    static int open_spare() noexcept {
        ++calls;
        return -1;
    }
};

/// Closes on the way out, so that a failing check leaks nothing into the next case.
struct socket_posix_handle : os_handle {
    socket_posix_handle(os_handle from) : os_handle(from) {}
    socket_posix_handle(const socket_posix_handle&) = delete;
    ~socket_posix_handle() {
        if (handle != netio::no_handle) {
            netio::epoll::close_handle(handle, false);
        }
    }
    int descriptor() const { return static_cast<int>(handle); }
    std::uint16_t port() const { return netio::epoll::local_of(handle).value.port; }
    int option(int level, int name) const {
        int value = -1;
        socklen_t size = sizeof(value);
        REQUIRE(::getsockopt(descriptor(), level, name, &value, &size) == 0);
        return value;
    }
};

socket_posix_handle socket_posix_listen(const netio::endpoint& at,
                                        const netio::listen_options& options = {}) {
    return netio::epoll::listen({at, {}}, options);
}

/// A path in a folder of exactly so many bytes.
std::string socket_posix_path(const netio_test::local_folder& folder, std::size_t bytes) {
    std::string out = folder.path() + "/";
    out.append(bytes - out.size(), 's');
    return out;
}

}  // namespace

TEST_CASE("socket_posix carries addresses to the system and back") {
    netio::endpoint six = netio::loopback_ipv6(443);
    six.scope_id = 7;
    six.flow_info = 0x12345;
    for (const netio::endpoint& each : {netio::ipv4(192, 0, 2, 1, 80), netio::any_ipv4(0), six}) {
        sockets::socket_address there{};
        const socklen_t size = sockets::to_socket_address(each, there);
        CHECK(size == (each.family == netio::address_family::ipv4 ? sizeof(sockaddr_in)
                                                                  : sizeof(sockaddr_in6)));
        CHECK(sockets::to_endpoint(there, size) == each);
        CHECK(sockets::to_endpoint(there, size - 1) == netio::endpoint{});
        CHECK(sockets::to_endpoint(there, 1) == netio::endpoint{});
    }
    sockets::socket_address there{};
    const socklen_t size = sockets::to_socket_address(netio::ipv4(192, 0, 2, 1, 0x1234), there);
    CHECK(size == sizeof(sockaddr_in));
    CHECK(there.ipv4.sin_family == AF_INET);
    const unsigned char wire[] = {0x12, 0x34, 192, 0, 2, 1};
    CHECK(std::memcmp(&there.ipv4.sin_port, wire, sizeof(wire)) == 0);
    CHECK(sockets::to_socket_address({}, there) == 0);
    there.any.sa_family = AF_UNIX;
    CHECK(sockets::to_endpoint(there, 2).family == netio::address_family::unix_path);
    there.any.sa_family = AF_NETLINK;
    CHECK(sockets::to_endpoint(there, sizeof(there)).family == netio::address_family::none);
}

TEST_CASE("socket_posix names every error and says what it means") {
    const struct {
        int code;
        const char* name;
        error why;
    } expected[] = {
        {EADDRINUSE, "EADDRINUSE", error::address_in_use},
        {EADDRNOTAVAIL, "EADDRNOTAVAIL", error::address_unavailable},
        {EACCES, "EACCES", error::permission_denied},
        {EPERM, "EPERM", error::permission_denied},
        {EMFILE, "EMFILE", error::descriptors_empty},
        {ENFILE, "ENFILE", error::descriptors_empty},
        {ENOMEM, "ENOMEM", error::kernel_memory_empty},
        {ENOBUFS, "ENOBUFS", error::kernel_memory_empty},
        {ECONNREFUSED, "ECONNREFUSED", error::connection_refused},
        {ECONNRESET, "ECONNRESET", error::connection_reset},
        {ECONNABORTED, "ECONNABORTED", error::connection_aborted},
        {EPIPE, "EPIPE", error::broken_pipe},
        {ETIMEDOUT, "ETIMEDOUT", error::timed_out},
        {EHOSTUNREACH, "EHOSTUNREACH", error::host_unreachable},
        {ENETUNREACH, "ENETUNREACH", error::network_unreachable},
        {ENETDOWN, "ENETDOWN", error::network_down},
        {EAFNOSUPPORT, "EAFNOSUPPORT", error::not_supported},
        {EMSGSIZE, "EMSGSIZE", error::too_long},
        {ENAMETOOLONG, "ENAMETOOLONG", error::path_too_long},
        {EINVAL, "EINVAL", error::os_failure},
    };
    for (const auto& each : expected) {
        CAPTURE(each.name);
        CHECK(std::string_view(netio::epoll::os_name(each.code)) == each.name);
        CHECK(sockets::error_of(each.code) == each.why);
        CHECK(sockets::status_of(each.code).os_code == each.code);
    }
    CHECK(std::string_view(netio::epoll::os_name(99'999)).empty());
    CHECK(sockets::error_of(99'999) == error::os_failure);
    std::set<int> codes;
    for (const sockets::errno_row& row : sockets::errno_table) {
        CHECK(codes.insert(row.code).second);  // each code once
        CHECK(row.why != error::none);
    }
}

TEST_CASE("socket_posix listens on a port of the system's choice, not inherited, not blocking") {
    for (const netio::endpoint& at : {netio::loopback_ipv4(0), netio::loopback_ipv6(0)}) {
        const socket_posix_handle made = socket_posix_listen(at);
        REQUIRE(made);
        const netio::endpoint local = netio::epoll::local_of(made.handle).value;
        CHECK(local.port != 0);
        CHECK(local.family == at.family);
        CHECK(local.address == at.address);
        CHECK((::fcntl(made.descriptor(), F_GETFL) & O_NONBLOCK) != 0);
        CHECK((::fcntl(made.descriptor(), F_GETFD) & FD_CLOEXEC) != 0);
        CHECK(made.option(SOL_SOCKET, SO_ACCEPTCONN) == 1);
        CHECK(made.option(SOL_SOCKET, SO_REUSEADDR) == 1);
        CHECK(made.option(IPPROTO_TCP, TCP_NODELAY) == 1);
    }
}

TEST_CASE("socket_posix sets every option it is asked for") {
    const int priority = 3;
    const netio::raw_option raw[] = {
        {SOL_SOCKET, SO_PRIORITY, {reinterpret_cast<const std::byte*>(&priority), 4}}};
    netio::listen_options options;
    options.reuse_address = false;
    options.reuse_port = true;
    options.defer_accept_s = 3;
    options.fast_open = 5;
    options.socket.no_delay = false;
    options.socket.quick_ack = true;
    options.socket.receive_bytes = 70'000;
    options.socket.send_bytes = 50'000;
    options.socket.keepalive_idle_s = 11;
    options.socket.keepalive_interval_s = 12;
    options.socket.keepalive_probes = 13;
    options.socket.user_timeout_ms = 14'000;
    options.socket.dscp = 46;
    options.socket.bind_device = "lo";
    options.socket.raw = raw;
    const socket_posix_handle made = socket_posix_listen(netio::loopback_ipv4(0), options);
    REQUIRE(made);
    CHECK(made.option(SOL_SOCKET, SO_REUSEADDR) == 0);
    CHECK(made.option(SOL_SOCKET, SO_REUSEPORT) == 1);
    CHECK(made.option(IPPROTO_TCP, TCP_DEFER_ACCEPT) >= 3);
    CHECK(made.option(IPPROTO_TCP, TCP_FASTOPEN) == 5);
    CHECK(made.option(IPPROTO_TCP, TCP_NODELAY) == 0);
    CHECK(made.option(SOL_SOCKET, SO_RCVBUF) == 140'000);
    CHECK(made.option(SOL_SOCKET, SO_SNDBUF) == 100'000);
    CHECK(made.option(SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(made.option(IPPROTO_TCP, TCP_KEEPIDLE) == 11);
    CHECK(made.option(IPPROTO_TCP, TCP_KEEPINTVL) == 12);
    CHECK(made.option(IPPROTO_TCP, TCP_KEEPCNT) == 13);
    CHECK(made.option(IPPROTO_TCP, TCP_USER_TIMEOUT) == 14'000);
    CHECK(made.option(IPPROTO_IP, IP_TOS) == 46 << 2);
    CHECK(made.option(SOL_SOCKET, SO_PRIORITY) == 3);
    char device[16] = {};
    socklen_t size = sizeof(device);
    if (!emulated()) {  // qemu-user sets this option and can't read it
        CHECK(::getsockopt(made.descriptor(), SOL_SOCKET, SO_BINDTODEVICE, device, &size) == 0);
        CHECK(std::string_view(device) == "lo");
    }
}

TEST_CASE("socket_posix marks IPv6 traffic too, on a dual-stack socket both kinds") {
    netio::listen_options options;
    options.socket.dscp = 10;
    const socket_posix_handle six = socket_posix_listen(netio::any_ipv6(0), options);
    REQUIRE(six);
    CHECK(six.option(IPPROTO_IPV6, IPV6_TCLASS) == 40);
    CHECK(six.option(IPPROTO_IP, IP_TOS) == 0);
    options.dual_stack = true;
    const socket_posix_handle dual = socket_posix_listen(netio::any_ipv6(0), options);
    REQUIRE(dual);
    CHECK(dual.option(IPPROTO_IPV6, IPV6_TCLASS) == 40);
    CHECK(dual.option(IPPROTO_IP, IP_TOS) == 40);
    const socket_posix_handle elsewhere = sockets::listen_stream<socket_posix_poor_sys>(
        {netio::any_ipv6(0), {}}, options);
    REQUIRE(elsewhere);
    CHECK(elsewhere.option(IPPROTO_IPV6, IPV6_TCLASS) == 40);
    CHECK(elsewhere.option(IPPROTO_IP, IP_TOS) == 0);
    const socket_posix_handle datagrams = sockets::open_bound_datagram<socket_posix_poor_sys>(
        netio::any_ipv6(0), {.dual_stack = true, .socket = options.socket});
    REQUIRE(datagrams);
    CHECK(datagrams.option(IPPROTO_IP, IP_TOS) == 0);
}

TEST_CASE("socket_posix refuses options out of range and options the system has not") {
    const std::size_t before = open_handles();
    netio::listen_options options;
    options.socket.dscp = 64;
    CHECK(socket_posix_listen(netio::loopback_ipv4(0), options).status.why ==
          error::option_invalid);
    options = {};
    options.socket.receive_bytes = 0x80000000u;
    CHECK(socket_posix_listen(netio::loopback_ipv4(0), options).status.why ==
          error::option_invalid);
    options = {};
    options.socket.bind_device = "no-such-device";
    const os_handle nowhere = netio::epoll::listen({netio::loopback_ipv4(0), {}}, options);
    CHECK(nowhere.status.why == error::address_unavailable);
    CHECK(nowhere.status.os_code == ENODEV);
    options = {};
    options.socket.quick_ack = true;
    const os_handle poor =
        sockets::listen_stream<socket_posix_poor_sys>({netio::loopback_ipv4(0), {}}, options);
    CHECK(poor.status.why == error::not_supported);
    CHECK(poor.status.os_code == 0);
    CHECK(sockets::listen_stream<socket_posix_poor_sys>({{}, "@name"}, {}).status.why ==
          error::not_supported);
    CHECK(socket_posix_listen({}).status.why == error::address_invalid);
    CHECK(open_handles() == before);
}

TEST_CASE("socket_posix makes IPv6 listeners that leave IPv4 alone, or take it: as asked") {
    const socket_posix_handle four = socket_posix_listen(netio::any_ipv4(0));
    REQUIRE(four);
    const socket_posix_handle six = socket_posix_listen(netio::any_ipv6(four.port()));
    REQUIRE(six);  // both families on one port
    CHECK(six.option(IPPROTO_IPV6, IPV6_V6ONLY) == 1);
    netio::listen_options both;
    both.dual_stack = true;
    const socket_posix_handle dual = socket_posix_listen(netio::any_ipv6(0), both);
    REQUIRE(dual);
    CHECK(dual.option(IPPROTO_IPV6, IPV6_V6ONLY) == 0);
    const socket_posix_handle taken = socket_posix_listen(netio::any_ipv4(dual.port()));
    CHECK(taken.status.why == error::address_in_use);
    const os_handle client = sockets::connect_stream<netio::linux_sys>(
        {netio::loopback_ipv4(dual.port()), {}}, {});
    REQUIRE(client);
    sockets::socket_address peer;
    socklen_t size = sizeof(peer);
    const int accepted = ::accept(dual.descriptor(), &peer.any, &size);
    REQUIRE(accepted >= 0);
    CHECK(netio::is_mapped(sockets::to_endpoint(peer, size)));
    ::close(accepted);
    netio::epoll::close_handle(client.handle, false);
}

TEST_CASE("socket_posix makes UDP sockets of both families") {
    netio::datagram_options options;
    options.reuse_port = true;
    options.socket.receive_bytes = 40'000;
    options.socket.dscp = 8;
    const socket_posix_handle four =
        netio::epoll::open_datagram(netio::loopback_ipv4(0), options);
    REQUIRE(four);
    CHECK(four.option(SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
    CHECK(four.option(SOL_SOCKET, SO_REUSEPORT) == 1);
    CHECK(four.option(SOL_SOCKET, SO_RCVBUF) == 80'000);
    CHECK(four.option(IPPROTO_IP, IP_TOS) == 32);
    CHECK((::fcntl(four.descriptor(), F_GETFL) & O_NONBLOCK) != 0);
    const socket_posix_handle six = netio::epoll::open_datagram(netio::any_ipv6(0), {});
    REQUIRE(six);
    CHECK(six.option(IPPROTO_IPV6, IPV6_V6ONLY) == 1);
    options.dual_stack = true;
    const socket_posix_handle dual = netio::epoll::open_datagram(netio::any_ipv6(0), options);
    REQUIRE(dual);
    CHECK(dual.option(IPPROTO_IPV6, IPV6_V6ONLY) == 0);
    CHECK(netio::epoll::open_datagram({}, {}).status.why == error::address_invalid);
    options.socket.dscp = 99;
    CHECK(netio::epoll::open_datagram(netio::loopback_ipv4(0), options).status.why ==
          error::option_invalid);
    const os_handle taken = netio::epoll::open_datagram(netio::loopback_ipv6(six.port()), {});
    CHECK(taken.status.why == error::address_in_use);
}

TEST_CASE("socket_posix refuses an access list, for there are no named pipes") {
    const netio_test::local_folder folder;
    netio::listen_options how;
    how.pipe_access = "D:P(A;;GA;;;OW)";
    const os_handle made = netio::epoll::listen({{}, socket_posix_path(folder, 100)}, how);
    CHECK(made.status.why == error::not_supported);
    CHECK(made.handle == netio::no_handle);
}

TEST_CASE("socket_posix takes unix paths of 107 bytes and refuses longer ones uncut") {
    CHECK(sockets::unix_path_max == 107);
    const netio_test::local_folder folder;
    const std::string longest = socket_posix_path(folder, 107);
    const socket_posix_handle made = netio::epoll::listen({{}, longest}, {});
    REQUIRE(made);
    struct stat found{};
    CHECK(::stat(longest.c_str(), &found) == 0);
    CHECK(S_ISSOCK(found.st_mode));
    CHECK(netio::epoll::local_of(made.handle).value.family == netio::address_family::unix_path);
    for (const std::size_t too_long : {108u, 109u, 300u}) {
        const std::string path = socket_posix_path(folder, too_long);
        const os_handle refused = netio::epoll::listen({{}, path}, {});
        CHECK(refused.status.why == error::path_too_long);
        CHECK(refused.handle == netio::no_handle);
    }
    const os_handle again = netio::epoll::listen({{}, longest}, {});
    CHECK(again.status.why == error::address_in_use);
    CHECK(::stat(longest.c_str(), &found) == 0);  // somebody's file is not removed
    const std::string cut("/tmp/a\0b", 8);
    CHECK(netio::epoll::listen({{}, cut}, {}).status.why == error::address_invalid);
    CHECK(netio::epoll::listen({{}, "/no/such/folder/socket"}, {}).status.why ==
          error::address_unavailable);
}

TEST_CASE("socket_posix makes abstract names that leave no file") {
    const std::string tail = "-" + std::to_string(::getpid());
    for (const std::size_t bytes : {tail.size() + 2, std::size_t{107}}) {
        const std::string name =
            "@" + std::string(bytes - 1 - tail.size(), 'n') + tail;
        const socket_posix_handle made = netio::epoll::listen({{}, name}, {});
        REQUIRE(made);
        sockaddr_un where{};
        socklen_t size = sizeof(where);
        CHECK(::getsockname(made.descriptor(), reinterpret_cast<sockaddr*>(&where), &size) == 0);
        CHECK(size == offsetof(sockaddr_un, sun_path) + bytes);  // no NUL at the end of the name
        CHECK(where.sun_path[0] == '\0');
        const os_handle client =
            sockets::connect_stream<netio::linux_sys>({{}, name}, {});
        CHECK(client);
        netio::epoll::close_handle(client.handle, false);
    }
    CHECK(netio::epoll::listen({{}, "@" + std::string(107, 'n')}, {}).status.why ==
          error::path_too_long);
}

TEST_CASE("socket_posix says why an address can't be had") {
    const socket_posix_handle first = socket_posix_listen(netio::loopback_ipv4(0));
    const os_handle taken = netio::epoll::listen({netio::loopback_ipv4(first.port()), {}}, {});
    CHECK(taken.status.why == error::address_in_use);
    CHECK(taken.status.os_code == EADDRINUSE);
    CHECK(std::string_view(netio::epoll::os_name(taken.status.os_code)) == "EADDRINUSE");
    const os_handle foreign = netio::epoll::listen({netio::ipv4(203, 0, 113, 1, 0), {}}, {});
    CHECK(foreign.status.why == error::address_unavailable);
    CHECK(foreign.status.os_code == EADDRNOTAVAIL);
}

TEST_CASE("socket_posix lets several listeners share a port only if all say so") {
    netio::listen_options shared;
    shared.reuse_port = true;
    const socket_posix_handle first = socket_posix_listen(netio::loopback_ipv4(0), shared);
    const socket_posix_handle second =
        socket_posix_listen(netio::loopback_ipv4(first.port()), shared);
    CHECK(second);
    const socket_posix_handle third = socket_posix_listen(netio::loopback_ipv4(first.port()));
    CHECK(third.status.why == error::address_in_use);
}

TEST_CASE("socket_posix is refused a privileged port as an unprivileged user") {
    const int outcome = netio_test::local_in_child([] {
        int lowest = 1024;
        if (FILE* from = std::fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r")) {
            if (std::fscanf(from, "%d", &lowest) != 1) {
                lowest = 1024;
            }
            std::fclose(from);
        }
        if (lowest <= 1) {
            return 77;  // no port is privileged here
        }
        if (::geteuid() == 0 && ::setuid(65534) != 0) {
            return errno == EINVAL ? 77 : 1;  // a user namespace without that user
        }
        const os_handle made = netio::epoll::listen({netio::loopback_ipv4(1), {}}, {});
        return made.status.why == error::permission_denied && made.status.os_code == EACCES ? 0
                                                                                            : 2;
    });
    if (outcome == 77) {
        MESSAGE("no port is privileged here, or root can't be given up");
    } else {
        CHECK(outcome == 0);
    }
}

TEST_CASE("socket_posix holds nothing after a failure of any of its calls") {
    netio::listen_options options;
    options.dual_stack = true;
    options.reuse_port = true;
    options.socket.dscp = 1;
    const std::size_t before = open_handles();
    for (int nth = 1; nth <= 12; ++nth) {
        socket_posix_sys::plan(nth);
        const os_handle made =
            sockets::listen_stream<socket_posix_sys>({netio::loopback_ipv6(0), {}}, options);
        const int calls = socket_posix_sys::made;
        if (made) {
            CHECK(calls < nth);
            CHECK(calls == 9);
            ::close(static_cast<int>(made.handle));
            break;
        }
        CHECK(calls == nth);
        CHECK(made.status.os_code == ENOBUFS);
        CHECK(open_handles() == before);
    }
    for (int nth = 1; nth <= 3; ++nth) {
        socket_posix_sys::plan(nth);
        CHECK(sockets::open_bound_datagram<socket_posix_sys>(netio::loopback_ipv6(0), {})
                  .status.os_code == ENOBUFS);
        socket_posix_sys::plan(nth);
        CHECK(sockets::connect_stream<socket_posix_sys>({netio::loopback_ipv6(1), {}}, {})
                  .status.os_code == ENOBUFS);
    }
    CHECK(sockets::connect_stream<netio::linux_sys>({{}, std::string(200, 'x')}, {}).status.why ==
          error::path_too_long);
    CHECK(open_handles() == before);
    socket_posix_sys::plan(1);
    CHECK(sockets::local_endpoint<socket_posix_sys>(0).why == error::kernel_memory_empty);
    CHECK(netio::epoll::local_of(987'654).why == error::os_failure);
}

TEST_CASE("socket_posix accepts no second client where the system has dropped one already") {
    socket_posix_full_sys::calls = 0;
    sockets::spare_descriptor<socket_posix_full_sys> spare;
    spare.refill();
    const netio::os_status told = spare.accept_failed(0, EMFILE);
    CHECK(told.why == error::descriptors_empty);
    CHECK(told.os_code == EMFILE);
    CHECK(socket_posix_full_sys::calls == 0);
    spare.close();
}

TEST_CASE("socket_posix sends a datagram whatever interrupts it, past errors of earlier ones") {
    using sys = socket_posix_send_sys;
    const auto sent = [](std::vector<int> codes) {
        sys::codes = std::move(codes);
        return sockets::send_datagram<sys>(0, netio::as_bytes("x"), netio::loopback_ipv4(9));
    };
    CHECK(sent({}) == 1);
    CHECK(sent({EINTR, EINTR, EINTR, EINTR}) == 1);
    CHECK(sent({ECONNREFUSED, EINTR, ECONNREFUSED, EINTR}) == 1);
    CHECK(sent({ECONNREFUSED, ECONNREFUSED, ECONNREFUSED}) == -1);
    CHECK(errno == ECONNREFUSED);
    CHECK(sent({EINTR, EAGAIN, EINTR}) == -1);
    CHECK(errno == EAGAIN);
    CHECK(sys::codes.size() == 1);
}

TEST_CASE("socket_posix raises the soft limit of descriptors up to the hard one") {
    using sys = socket_posix_limit_sys;
    sys::now = {100, 200};
    CHECK(sockets::raise_descriptor_limit<sys>(50) == 100);
    CHECK(sys::now.rlim_cur == 100);
    CHECK(sockets::raise_descriptor_limit<sys>(150) == 150);
    CHECK(sockets::raise_descriptor_limit<sys>(5'000) == 200);
    CHECK(sys::now.rlim_cur == 200);
    CHECK(sys::now.rlim_max == 200);
    sys::now = {};
    CHECK(sockets::raise_descriptor_limit<sys>(10) == 0);
    const std::uint64_t holds = netio::epoll::reserve_descriptors(1);
    CHECK(holds >= 1);
    socket_posix_sys::plan(2);
    CHECK(sockets::raise_descriptor_limit<socket_posix_sys>(holds + 1) == holds);
}

TEST_CASE("socket_posix says what limit of descriptors holds, not what it asked for") {
    using sys = socket_posix_limit_sys;
    sys::most = 10'000;
    sys::now = {100, RLIM_INFINITY};
    CHECK(sockets::raise_descriptor_limit<sys>(20'000) == 10'000);
    CHECK(sys::now.rlim_cur == 10'000);  // what the system refuses was not asked for
    CHECK(sys::now.rlim_max == RLIM_INFINITY);
    sys::now = {RLIM_INFINITY, RLIM_INFINITY};
    CHECK(sockets::raise_descriptor_limit<sys>(20'000) == 10'000);
    CHECK(sys::now.rlim_cur == RLIM_INFINITY);  // never lowered
    sys::most = UINT64_MAX;
    sys::cut = 5'000;
    sys::now = {100, RLIM_INFINITY};
    CHECK(sockets::raise_descriptor_limit<sys>(20'000) == 5'000);
    sys::cut = 0;
    sys::now = {100, 200};
    CHECK(sockets::raise_descriptor_limit<sys>(150) == 100);
    sys::cut = RLIM_INFINITY;
    rlimit own{};
    REQUIRE(netio::linux_sys::get_descriptor_limit(own) == 0);
    CHECK(netio::linux_sys::set_descriptor_limit(own) == 0);  // as it was
}

TEST_CASE("socket_posix raises the descriptor limit of a real process as far as it is allowed") {
    const int outcome = netio_test::local_in_child([] {
        const rlimit bound{100, 200};
        if (::setrlimit(RLIMIT_NOFILE, &bound) != 0) {
            return 1;
        }
        if (netio::epoll::reserve_descriptors(50) != 100) {
            return 2;
        }
        if (netio::epoll::reserve_descriptors(150) != 150) {
            return 3;
        }
        socket_posix_sys::plan(2);
        if (sockets::raise_descriptor_limit<socket_posix_sys>(160) != 150) {
            return 4;
        }
        if (netio::epoll::reserve_descriptors(5'000) != 200) {
            return 5;
        }
        rlimit now{};
        ::getrlimit(RLIMIT_NOFILE, &now);
        if (now.rlim_cur != 200 || now.rlim_max != 200) {
            return 6;
        }
        socket_posix_sys::plan(1);
        return sockets::raise_descriptor_limit<socket_posix_sys>(10) == 0 ? 0 : 7;
    });
    CHECK(outcome == 0);
}

#endif
