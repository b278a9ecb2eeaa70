// What only the completion port backend can show: its declarations against the system's headers,
// its calls counted and failed one by one, handles given back, loops that share a listener.
#include "netio.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_IOCP

#if defined(min) || defined(max) || defined(ERROR) || defined(WIN32_LEAN_AND_MEAN) ||              \
    defined(_WINDOWS_) || defined(_WINSOCK2API_)
#error "netio.hpp brings the system's macros"
#endif

#include "tests/conformance_sockets.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <thread>

#include <mswsock.h>

namespace {

using netio::event;
using netio::event_kind;
using netio::operation;
using netio::token;

// ---- the declarations are those of the headers

namespace windows = netio::detail::windows;
static_assert(sizeof(windows::overlapped) == sizeof(OVERLAPPED));
static_assert(offsetof(windows::overlapped, signal) == offsetof(OVERLAPPED, hEvent));
static_assert(sizeof(windows::completion) == sizeof(OVERLAPPED_ENTRY));
static_assert(offsetof(windows::completion, operation) ==
              offsetof(OVERLAPPED_ENTRY, lpOverlapped));
static_assert(offsetof(windows::completion, byte_count) ==
              offsetof(OVERLAPPED_ENTRY, dwNumberOfBytesTransferred));
static_assert(sizeof(windows::slice) == sizeof(WSABUF));
static_assert(offsetof(windows::slice, from) == offsetof(WSABUF, buf));
static_assert(sizeof(windows::address_ipv4) == sizeof(sockaddr_in));
static_assert(offsetof(windows::address_ipv4, address) == offsetof(sockaddr_in, sin_addr));
static_assert(sizeof(windows::address_ipv6) == sizeof(sockaddr_in6));
static_assert(offsetof(windows::address_ipv6, address) == offsetof(sockaddr_in6, sin6_addr));
static_assert(offsetof(windows::address_ipv6, scope_id) == offsetof(sockaddr_in6, sin6_scope_id));
static_assert(sizeof(windows::linger_time) == sizeof(linger));
static_assert(sizeof(windows::guid) == sizeof(GUID));
static_assert(windows::winsock_data_bytes >= sizeof(WSADATA));
static_assert(windows::protocol_info_bytes == sizeof(WSAPROTOCOL_INFOW));
static_assert(offsetof(WSAPROTOCOL_INFOW, dwServiceFlags1) == 0);
static_assert(!netio::backend_knows_peers<netio::iocp>);  // unix_required_uid is refused here
static_assert(!netio::backend_keeps_files<netio::iocp>);  // and unix_mode
static_assert(windows::no_socket == INVALID_SOCKET);
static_assert(windows::family_unix == AF_UNIX && windows::family_ipv4 == AF_INET);
static_assert(windows::family_ipv6 == AF_INET6);
static_assert(windows::type_stream == SOCK_STREAM && windows::type_datagram == SOCK_DGRAM);
static_assert(windows::level_socket == SOL_SOCKET && windows::level_tcp == IPPROTO_TCP);
static_assert(windows::level_ipv6 == IPPROTO_IPV6 && windows::option_v6_only == IPV6_V6ONLY);
static_assert(windows::option_listens == SO_ACCEPTCONN);
static_assert(windows::option_keepalive == SO_KEEPALIVE && windows::option_linger == SO_LINGER);
static_assert(windows::option_send_bytes == SO_SNDBUF);
static_assert(windows::option_receive_bytes == SO_RCVBUF && windows::option_type == SO_TYPE);
static_assert(windows::option_exclusive == SO_EXCLUSIVEADDRUSE);
static_assert(windows::option_protocol_info == SO_PROTOCOL_INFOW);
static_assert(windows::option_accepted_from == SO_UPDATE_ACCEPT_CONTEXT);
static_assert(windows::option_connected == SO_UPDATE_CONNECT_CONTEXT);
static_assert(windows::option_no_delay == TCP_NODELAY);
static_assert(windows::socket_overlapped == WSA_FLAG_OVERLAPPED);
static_assert(windows::socket_not_inherited == WSA_FLAG_NO_HANDLE_INHERIT);
static_assert(windows::get_extension == SIO_GET_EXTENSION_FUNCTION_POINTER);
static_assert(windows::set_non_blocking == static_cast<long>(FIONBIO));
static_assert(windows::flag_peek == MSG_PEEK && windows::shut_sending == SD_SEND);
static_assert(windows::provides_file_handles == XP1_IFS_HANDLES);
static_assert(windows::skip_port_on_success == FILE_SKIP_COMPLETION_PORT_ON_SUCCESS);
static_assert(windows::skip_event_on_handle == FILE_SKIP_SET_EVENT_ON_HANDLE);
static_assert(windows::operation_pending == WSA_IO_PENDING);
static_assert(windows::operation_aborted == WSA_OPERATION_ABORTED);
static_assert(windows::would_block == WSAEWOULDBLOCK && windows::handles_empty == WSAEMFILE);
static_assert(windows::message_too_long == WSAEMSGSIZE && windows::memory_empty == WSAENOBUFS);
static_assert(windows::connection_reset == WSAECONNRESET);
static_assert(windows::connection_aborted == WSAECONNABORTED);
static_assert(windows::network_reset == WSAENETRESET && windows::not_connected == WSAENOTCONN);
static_assert(windows::destination_missing == WSAEDESTADDRREQ);
static_assert(windows::parameter_wrong == ERROR_INVALID_PARAMETER);
static_assert(windows::backlog_max == SOMAXCONN);
static_assert(windows::status_pending == static_cast<std::uint32_t>(STATUS_PENDING));

// ---- calls, counted

enum class iocp_call {
    start_winsock, open_socket, set_non_blocking, bind, listen, setsockopt, getsockopt,
    getsockname, shutdown, close_socket, extension, receive_overlapped, send_overlapped,
    receive_from_overlapped, send_to_overlapped, accept, connect, receive, receive_from, send_to,
    port, skip, wait, post, cancel, count_
};

/// Counts every call; one planned call fails instead of being made.
struct iocp_counting_sys : netio_test::conformance_windows_sys {
    using real = netio_test::conformance_windows_sys;
    static inline std::atomic<int> counts[static_cast<int>(iocp_call::count_)] = {};
    static inline std::atomic<int> winsock_starts = 0;
    static inline std::atomic<int> sockets = 0;  // open ones that this policy knows of
    static inline iocp_call fail_call = iocp_call::count_;
    static inline int fail_at = 0;  // the n-th such call from now fails
    static inline int fail_code = 0;
    static inline bool never_skips = false;
    static inline bool never_room = false;  // for a datagram
    static inline bool one_by_one = false;  // completions
    static inline bool never_cancels = false;
    static inline std::vector<std::pair<socket_type, int>> options;  // that were set, in order
    static inline bool receive_came = false;  // the newest one's completion
    static inline overlapped* newest_receive = nullptr;  // of a connection
    static inline overlapped* newest_accept = nullptr;
    // As Windows does: a datagram that does not fit ends the receive at once, and yet a packet is
    // posted. Here those are kept until `post_late` lets them go.
    static inline bool cuts_at_once = false;
    static inline std::vector<std::pair<overlapped*, std::uint32_t>> late;
    static inline void* newest_port = nullptr;
    static inline std::vector<std::span<const char>> addresses;  // where they were asked for

    static void note(const void* where, std::size_t byte_count) {
        addresses.emplace_back(static_cast<const char*>(where), byte_count);
    }
    /// Is there nothing where the kernel was given room for an address?
    static bool addresses_wiped() {
        return std::all_of(addresses.begin(), addresses.end(), [](std::span<const char> each) {
            return std::count(each.begin(), each.end(), 0) == std::ssize(each);
        });
    }

    static void post_late() {
        for (const auto& [op, byte_count] : late) {
            real::post(newest_port, byte_count, 4, op);
        }
        late.clear();
    }
    static bool cut_at_once(socket_type from, slice into, unsigned long flags, void* peer,
                            int& size, overlapped* op) noexcept {
        static char all[65536];
        const int there = ::recvfrom(from, all, sizeof(all), MSG_PEEK, nullptr, nullptr);
        if (!cuts_at_once || there <= static_cast<int>(into.byte_count)) {
            return false;
        }
        ::recvfrom(from, all, sizeof(all), static_cast<int>(flags), static_cast<sockaddr*>(peer),
                   &size);
        std::memcpy(into.from, all, into.byte_count);
        op->status = windows::status_cut;
        op->byte_count = into.byte_count;
        late.emplace_back(op, static_cast<std::uint32_t>(into.byte_count));
        return true;
    }

    /// Was the last option set a linger time, and this one set before on the same socket?
    static bool lingers_after(int option) {
        return !options.empty() && options.back().second == windows::option_linger &&
               std::count(options.begin(), options.end(),
                          std::pair(options.back().first, option)) == 1;
    }

    static bool enter(iocp_call which) noexcept {
        ++counts[static_cast<int>(which)];
        if (which == fail_call && --fail_at == 0) {
            fail_call = iocp_call::count_;
            ::WSASetLastError(fail_code);
            return false;
        }
        return true;
    }
    static void plan(iocp_call which, int code, int nth = 1) {
        fail_call = which;
        fail_code = code;
        fail_at = nth;
    }
    static void reset() {
        for (auto& each : counts) {
            each = 0;
        }
        fail_call = iocp_call::count_;
        never_skips = false;
        never_room = false;
        one_by_one = false;
        never_cancels = false;
        options.clear();
        cuts_at_once = false;
        late.clear();
        addresses.clear();
    }
    static int of(iocp_call which) { return counts[static_cast<int>(which)]; }
    static int total() {
        int all = 0;
        for (auto& each : counts) {
            all += each;
        }
        return all;
    }

    static int start_winsock() noexcept {
        if (!enter(iocp_call::start_winsock)) {
            return fail_code;
        }
        ++winsock_starts;
        return real::start_winsock();
    }
    static void stop_winsock() noexcept {
        --winsock_starts;
        real::stop_winsock();
    }
    static socket_type open_socket(int family, int type) noexcept {
        const socket_type made =
            enter(iocp_call::open_socket) ? real::open_socket(family, type) : INVALID_SOCKET;
        sockets += made != INVALID_SOCKET;
        return made;
    }
    static int close_socket(socket_type what) noexcept {
        enter(iocp_call::close_socket);
        --sockets;
        return real::close_socket(what);
    }
    static int set_non_blocking(socket_type of) noexcept {
        return enter(iocp_call::set_non_blocking) ? real::set_non_blocking(of) : -1;
    }
    static int bind(socket_type what, const void* where, int size) noexcept {
        return enter(iocp_call::bind) ? real::bind(what, where, size) : -1;
    }
    static int listen(socket_type what, int backlog) noexcept {
        return enter(iocp_call::listen) ? real::listen(what, backlog) : -1;
    }
    static int setsockopt(socket_type of, int level, int option, const void* value,
                          int size) noexcept {
        options.emplace_back(of, option);
        return enter(iocp_call::setsockopt) ? real::setsockopt(of, level, option, value, size) : -1;
    }
    static int getsockopt(socket_type of, int level, int option, void* value, int* size) noexcept {
        return enter(iocp_call::getsockopt) ? real::getsockopt(of, level, option, value, size) : -1;
    }
    static int getsockname(socket_type of, void* where, int* size) noexcept {
        return enter(iocp_call::getsockname) ? real::getsockname(of, where, size) : -1;
    }
    static int shutdown_sending(socket_type of) noexcept {
        return enter(iocp_call::shutdown) ? real::shutdown_sending(of) : -1;
    }
    template <class Function>
    static int extension(socket_type of, windows::guid which, Function& out) noexcept {
        return enter(iocp_call::extension) ? real::extension(of, which, out) : -1;
    }
    static int receive_overlapped(socket_type from, slice into, unsigned long& got,
                                  overlapped* op) noexcept {
        newest_receive = op;
        receive_came = false;
        return enter(iocp_call::receive_overlapped)
                   ? real::receive_overlapped(from, into, got, op)
                   : fail_code;
    }
    static int send_overlapped(socket_type to, slice* slices, std::uint32_t count,
                               unsigned long& sent, overlapped* op) noexcept {
        return enter(iocp_call::send_overlapped)
                   ? real::send_overlapped(to, slices, count, sent, op)
                   : fail_code;
    }
    static int receive_from_overlapped(socket_type from, slice into, unsigned long& got,
                                       unsigned long& flags, void* peer, int& size,
                                       overlapped* op) noexcept {
        note(peer, static_cast<std::size_t>(size));
        if (cuts_at_once && cut_at_once(from, into, flags, peer, size, op)) {
            return WSAEMSGSIZE;
        }
        return enter(iocp_call::receive_from_overlapped)
                   ? real::receive_from_overlapped(from, into, got, flags, peer, size, op)
                   : fail_code;
    }
    static int send_to_overlapped(socket_type to, slice from, const void* peer, int size,
                                  unsigned long& sent, overlapped* op) noexcept {
        return enter(iocp_call::send_to_overlapped)
                   ? real::send_to_overlapped(to, from, peer, size, sent, op)
                   : fail_code;
    }
    static int accept_overlapped(windows::accept_ex how, socket_type listener, socket_type into,
                                 void* addresses_at, std::uint32_t address_bytes,
                                 overlapped* op) noexcept {
        newest_accept = op;
        note(addresses_at, 2 * std::size_t{address_bytes});
        return enter(iocp_call::accept)
                   ? real::accept_overlapped(how, listener, into, addresses_at, address_bytes, op)
                   : fail_code;
    }
    static int connect_overlapped(windows::connect_ex how, socket_type what, const void* where,
                                  int size, overlapped* op) noexcept {
        return enter(iocp_call::connect) ? real::connect_overlapped(how, what, where, size, op)
                                         : fail_code;
    }
    static int receive(socket_type from, void* into, int count) noexcept {
        return enter(iocp_call::receive) ? real::receive(from, into, count) : -1;
    }
    static int receive_from(socket_type from, void* into, int count, void* peer,
                            int* size) noexcept {
        return enter(iocp_call::receive_from) ? real::receive_from(from, into, count, peer, size)
                                              : -1;
    }
    static int send_to(socket_type to, const void* from, int count, const void* peer,
                       int size) noexcept {
        if (never_room) {
            ::WSASetLastError(WSAEWOULDBLOCK);
            return -1;
        }
        return enter(iocp_call::send_to) ? real::send_to(to, from, count, peer, size) : -1;
    }
    static void* port(void* what, void* to, std::uint32_t key) noexcept {
        void* const made = enter(iocp_call::port) ? real::port(what, to, key) : nullptr;
        newest_port = to == nullptr ? made : newest_port;
        return made;
    }
    static bool skip_on_success(socket_type of) noexcept {
        return enter(iocp_call::skip) && !never_skips && real::skip_on_success(of);
    }
    static bool wait(void* on, completion* out, std::uint32_t count_max, unsigned long& count,
                     unsigned long timeout_ms) noexcept {
        enter(iocp_call::wait);
        const bool some =
            real::wait(on, out, one_by_one ? 1 : count_max, count, timeout_ms);
        for (unsigned long at = 0; some && at < count; ++at) {
            receive_came = receive_came || out[at].operation == newest_receive;
        }
        return some;
    }
    static bool post(void* to, unsigned long byte_count, netio_ulong_pointer key,
                     overlapped* op) noexcept {
        enter(iocp_call::post);
        return real::post(to, byte_count, key, op);
    }
    static void cancel(socket_type of, overlapped* op) noexcept {
        enter(iocp_call::cancel);
        if (!never_cancels) {
            real::cancel(of, op);
        }
    }
};

using iocp_sys = iocp_counting_sys;
using iocp_backend = netio::basic_iocp<iocp_counting_sys>;
using iocp_world = netio_test::conformance_socket_world<iocp_backend>;
using iocp_suite = netio_test::conformance<iocp_world>;
using iocp_peer = netio_test::conformance_socket_peer;

/// Nothing of the policy's is left when a case ends.
struct iocp_held {
    iocp_held() { iocp_sys::reset(); }
    ~iocp_held() {
        iocp_sys::reset();
        CHECK(iocp_sys::sockets == 0);
        CHECK(iocp_sys::winsock_starts == 0);
    }
};

/// Reads until as much has come as was asked for.
bool iocp_reply(iocp_world& w, iocp_peer& client, std::size_t count) {
    return w.until([&] { return client.arrived().size() >= count; });
}

/// Round trips of `count` bytes on each of `peers`; the calls of one.
double iocp_calls_of_echo(iocp_world& w, std::span<iocp_peer> peers, std::size_t count,
                          std::byte* held) {
    const std::string text = netio_test::conformance_pattern(count);
    const auto listen_again = [&](token who) {
        if (held != nullptr) {
            iocp_suite::receive_into(w, who, {held, count});
        } else {
            w.kernel.start_receive(who, {}, 1);
        }
    };
    constexpr int rounds = 50;
    for (std::uint32_t at = 0; at < peers.size(); ++at) {
        listen_again(token::of(at, 1));
    }
    std::string reply;
    iocp_sys::reset();
    std::size_t echoed = 0;
    for (int round = 1; round <= rounds; ++round) {
        for (iocp_peer& each : peers) {
            each.send(text);
        }
        std::size_t left = peers.size();
        std::size_t seen = w.seen.size();
        while (left != 0) {
            w.turn(5'000'000'000);
            for (; seen < w.seen.size(); ++seen) {
                const event each = w.seen[seen];
                if (each.kind == event_kind::received) {
                    reply = w.text[each.who.index()];
                    w.text[each.who.index()].clear();
                    w.send(each.who, netio::as_bytes(reply));
                    listen_again(each.who);
                    echoed += reply.size();
                }
                left -= each.kind == event_kind::sent;
            }
        }
    }
    const double calls = iocp_sys::total();
    CHECK(echoed == count * peers.size() * rounds);
    return calls / rounds / static_cast<double>(peers.size());
}

void iocp_join(iocp_world& w, token who, iocp_peer& client) {
    const char* const broken = iocp_suite::join(w, who, client);
    CAPTURE(std::string(broken == nullptr ? "" : broken));
    REQUIRE(broken == nullptr);
}

TEST_CASE("iocp echoes 64 bytes with four calls a round trip") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    iocp_join(w, token::of(0, 1), client);
    const double calls = iocp_calls_of_echo(w, {&client, 1}, 64, nullptr);
    MESSAGE("calls of a round trip: " << calls);
    CHECK(calls <= 4.0);
}

TEST_CASE("iocp echoes 64 bytes with three calls where the buffer is held and posted") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    std::array<std::byte, 64> place{};
    iocp_join(w, token::of(0, 1), client);
    const double calls = iocp_calls_of_echo(w, {&client, 1}, 64, place.data());
    MESSAGE("calls of a round trip: " << calls);
    CHECK(calls <= 3.0);
}

TEST_CASE("iocp echoes where what ends at once is posted too") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    iocp_sys::never_skips = true;
    iocp_join(w, token::of(0, 1), client);
    CHECK(iocp_calls_of_echo(w, {&client, 1}, 64, nullptr) <= 5.0);
    CHECK(w.kernel.stale_count() == 0);
}

TEST_CASE("iocp shares a wait among the connections that are ready") {
    const iocp_held held;
    iocp_world w;
    std::array<iocp_peer, 8> clients;
    for (std::uint32_t at = 0; at < 8; ++at) {
        iocp_join(w, token::of(at, 1), clients[at]);
    }
    const double calls = iocp_calls_of_echo(w, clients, 64, nullptr);
    MESSAGE("calls of a round trip, eight at once: " << calls);
    CHECK(calls < 4.0);
}

TEST_CASE("iocp echoes a message as long as a buffer with at most one call more") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    iocp_join(w, token::of(0, 1), client);
    CHECK(iocp_calls_of_echo(w, {&client, 1}, w.buffer_bytes - 1, nullptr) <= 4.0);
}

TEST_CASE("iocp posts one completion for many wakes of a sleeping loop and none while awake") {
    const iocp_held held;
    iocp_world w;
    for (int times = 0; times < 1000; ++times) {
        w.kernel.wake();
    }
    CHECK(iocp_sys::of(iocp_call::post) == 0);
    CHECK(w.until([&] { return w.seen.size() == 1; }));
    std::thread other([&] {
        for (int times = 0; times < 1000; ++times) {
            w.kernel.wake();
        }
    });
    w.turn(5'000'000'000);
    other.join();
    CHECK(iocp_sys::of(iocp_call::post) <= 1);
}

TEST_CASE("iocp starts Winsock once for each handle and each open loop and stops it as often") {
    const iocp_held held;
    const netio::os_handle made = iocp_backend::listen({netio::loopback_ipv4(0), {}}, {});
    REQUIRE(made);
    CHECK(iocp_sys::winsock_starts == 1);
    const netio::os_handle bound = iocp_backend::open_datagram(netio::loopback_ipv4(0), {});
    REQUIRE(bound);
    CHECK(iocp_sys::winsock_starts == 2);
    iocp_backend::close_handle(made.handle, false);
    iocp_backend::close_handle(bound.handle, true);
    CHECK(iocp_sys::winsock_starts == 0);
    CHECK(iocp_backend::available().offered);
    iocp_sys::plan(iocp_call::start_winsock, WSASYSNOTREADY);
    CHECK(!iocp_backend::available().offered);
    iocp_sys::plan(iocp_call::start_winsock, WSASYSNOTREADY);
    CHECK(iocp_backend::listen({netio::loopback_ipv4(0), {}}, {}).status.why ==
          netio::error::network_down);
}

TEST_CASE("iocp holds nothing when a call of listen or open_datagram fails") {
    const iocp_held held;
    netio::listen_options how;
    how.socket.receive_bytes = 65536;
    const iocp_call calls[] = {iocp_call::open_socket, iocp_call::set_non_blocking,
                               iocp_call::setsockopt, iocp_call::bind, iocp_call::listen};
    for (const iocp_call each : calls) {
        iocp_sys::plan(each, WSAENOBUFS);
        const netio::os_handle made = iocp_backend::listen({netio::loopback_ipv4(0), {}}, how);
        CHECK(made.status.why == netio::error::kernel_memory_empty);
        CHECK(made.status.os_code == WSAENOBUFS);
        CHECK(made.handle == netio::no_handle);
        if (each != iocp_call::listen) {
            iocp_sys::plan(each, WSAENOBUFS);
            CHECK(!iocp_backend::open_datagram(netio::loopback_ipv4(0), {}));
        }
    }
    CHECK(iocp_sys::sockets == 0);
}

TEST_CASE("iocp refuses what Windows has not, rather than being silent about it") {
    const iocp_held held;
    const auto refused = [](auto set) {
        netio::listen_options how;
        set(how);
        const netio::os_handle made = iocp_backend::listen({netio::loopback_ipv4(0), {}}, how);
        return made.handle == netio::no_handle && made.status.why == netio::error::not_supported;
    };
    CHECK(refused([](auto& how) { how.reuse_port = true; }));
    CHECK(refused([](auto& how) { how.defer_accept_s = 1; }));
    CHECK(refused([](auto& how) { how.socket.quick_ack = true; }));
    CHECK(refused([](auto& how) { how.socket.user_timeout_ms = 1; }));
    CHECK(refused([](auto& how) { how.socket.dscp = 46; }));
    CHECK(refused([](auto& how) { how.socket.bind_device = "eth0"; }));
    netio::datagram_options shared;
    shared.reuse_port = true;
    CHECK(iocp_backend::open_datagram(netio::loopback_ipv4(0), shared).status.why ==
          netio::error::not_supported);
    CHECK(iocp_backend::listen({{}, "@abstract"}, {}).status.why == netio::error::not_supported);
    CHECK(iocp_backend::listen({{}, std::string(200, 'x')}, {}).status.why ==
          netio::error::path_too_long);
}

TEST_CASE("iocp lets nobody share a port it listens on") {
    const iocp_held held;
    iocp_world w;
    const SOCKET thief = netio_test::plain::open(SOCK_STREAM);
    const int on = 1;
    ::setsockopt(thief, SOL_SOCKET, SO_REUSEADDR, reinterpret_cast<const char*>(&on), sizeof(on));
    const sockaddr_in where =
        netio_test::plain::address_of(iocp_backend::local_of(w.listener).value);
    CHECK(::bind(thief, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0);
    netio_test::plain::close(thief);
}

TEST_CASE("iocp holds nothing when a call of open, start_accept, connect or attach fails") {
    const iocp_held held;
    iocp_world w;
    w.kernel.close();
    for (const iocp_call each : {iocp_call::extension, iocp_call::open_socket, iocp_call::port}) {
        const int before = iocp_sys::sockets;
        iocp_sys::plan(each, WSAENOBUFS, each == iocp_call::extension ? 3 : 1);
        if (each == iocp_call::open_socket) {
            continue;  // an address family that is missing: the other one is tried
        }
        CHECK(w.open().why == netio::error::kernel_memory_empty);
        CHECK(iocp_sys::sockets == before);
    }
    iocp_sys::reset();
    REQUIRE(w.open());
    const int before = iocp_sys::sockets;
    for (const iocp_call each : {iocp_call::open_socket, iocp_call::bind, iocp_call::port,
                                 iocp_call::connect}) {
        iocp_sys::plan(each, WSAENOBUFS);
        CHECK(w.kernel.start_connect({w.outside(), {}}, {}, token::of(0, 1)).why ==
              netio::error::kernel_memory_empty);
        CHECK(iocp_sys::sockets == before);
    }
    for (const int nth : {1, 4, 8}) {
        iocp_sys::plan(iocp_call::accept, WSAENOBUFS, nth);
        CHECK(w.kernel.start_accept(w.listener, token::of(0, 900)).why ==
              netio::error::descriptors_empty);
        CHECK(w.until([&] { return iocp_sys::sockets == before; }));
    }
}

TEST_CASE("iocp tries again where a client was gone before it was accepted") {
    const iocp_held held;
    iocp_world w;
    iocp_sys::plan(iocp_call::accept, WSAECONNRESET);
    iocp_peer client;
    iocp_join(w, token::of(0, 1), client);
    CHECK(w.seen.size() == 1);
}

TEST_CASE("iocp reports a failed send, and a failed receive into memory, in the next wait") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    const token who = token::of(0, 1);
    iocp_join(w, who, client);
    iocp_sys::plan(iocp_call::send_overlapped, WSAENOBUFS);
    w.send(who, netio::as_bytes(std::string_view("lost")));
    std::array<std::byte, 8> place{};
    REQUIRE(w.until([&] { return w.count(who) == 1; }));
    CHECK(w.last(who, operation::send)->why == netio::error::kernel_memory_empty);
    iocp_sys::plan(iocp_call::receive_overlapped, WSAECONNABORTED);
    iocp_suite::receive_into(w, who, place);
    REQUIRE(w.until([&] { return w.count(who) == 2; }));
    CHECK(w.last(who, operation::receive)->why == netio::error::connection_aborted);
}

TEST_CASE("iocp waits for room where a datagram finds none, and skips errors of earlier ones") {
    const iocp_held held;
    iocp_world w;
    const token one = token::of(0, 1), two = token::of(1, 1), socket = token::of(0, 7);
    REQUIRE(w.kernel.start_receive_from(w.datagrams, socket));
    iocp_sys::plan(iocp_call::send_to, WSAEWOULDBLOCK);
    w.kernel.start_send_to(w.datagrams, one, netio::as_bytes(std::string_view("late")),
                           w.udp_local());
    CHECK(iocp_sys::of(iocp_call::send_to_overlapped) == 1);
    CHECK(w.until([&] { return w.udp_arrived() == "late"; }));
    CHECK(w.until([&] { return w.count(one, operation::send_to, event_kind::sent) == 1; }));
    CHECK(w.last(one, operation::send_to)->byte_count == 4);
    iocp_sys::plan(iocp_call::send_to, WSAECONNRESET);
    w.kernel.start_send_to(w.datagrams, two, netio::as_bytes(std::string_view("again")),
                           w.udp_local());
    CHECK(w.until([&] { return w.udp_arrived() == "again"; }));
    CHECK(w.until([&] { return w.count(two, operation::send_to, event_kind::sent) == 1; }));
}

TEST_CASE("iocp fails a datagram whose socket cannot be tied to the port it would wait at") {
    const iocp_held held;
    iocp_world w;
    const token one = token::of(0, 1);
    iocp_sys::never_room = true;
    iocp_sys::plan(iocp_call::port, WSAENOBUFS);
    w.kernel.start_send_to(w.datagrams, one, netio::as_bytes(std::string_view("none")),
                           w.udp_local());
    CHECK(iocp_sys::of(iocp_call::send_to_overlapped) == 0);
    REQUIRE(w.until([&] { return w.count(one) == 1; }));
    CHECK(w.last(one, operation::send_to)->why == netio::error::kernel_memory_empty);
}

TEST_CASE("iocp skips a port-unreachable and goes on receiving") {
    const iocp_held held;
    iocp_world w;
    const token socket = token::of(0, 7);
    REQUIRE(w.kernel.start_receive_from(w.datagrams, socket));
    w.kernel.start_send_to(w.datagrams, token::of(0, 1),
                           netio::as_bytes(std::string_view("nobody")), w.refusing());
    iocp_sys::plan(iocp_call::receive_from_overlapped, WSAECONNRESET);
    w.udp_send("one");
    w.udp_send("two");
    CHECK(w.until([&] { return w.datagram == "two"; }));
    CHECK(w.count(socket, operation::receive_from, event_kind::failed) == 0);
}

TEST_CASE("iocp peeks for datagrams where the pool is scarce, and holds no buffer then") {
    const iocp_held held;
    iocp_world w;
    const token socket = token::of(0, 7);
    std::vector<std::uint32_t> taken;
    while (w.pool.room(netio::side::input) > 1) {
        taken.push_back(w.pool.take(netio::side::input));
    }
    REQUIRE(w.kernel.start_receive_from(w.datagrams, socket));
    w.quiet();
    CHECK(w.pool.room(netio::side::input) == 1);
    for (const std::string& text : {std::string("hello"), std::string(), std::string("x")}) {
        const std::uint32_t before = w.count(socket);
        w.udp_send(text);
        REQUIRE(w.until([&] { return w.count(socket) > before; }));
        CHECK(w.datagram == text);
        CHECK(w.last(socket, operation::receive_from)->peer == w.udp_local());
    }
    w.udp_send(std::string(w.buffer_bytes + 1, 'y'));
    REQUIRE(w.until([&] { return w.count(socket) == 4; }));
    CHECK(w.last(socket, operation::receive_from)->truncated);
    taken.push_back(w.pool.take(netio::side::input));
    w.udp_send("waits for a buffer");
    w.quiet();
    CHECK(w.count(socket) == 4);
    for (const std::uint32_t each : taken) {
        w.pool.give(each, netio::side::input, 0);
    }
    CHECK(w.until([&] { return w.datagram == "waits for a buffer"; }));
}

/// The pool has one buffer left, so datagrams are peeked at.
struct iocp_scarce {
    explicit iocp_scarce(iocp_world& of) : w(of) {
        while (w.pool.room(netio::side::input) > 1) {
            taken.push_back(w.pool.take(netio::side::input));
        }
    }
    ~iocp_scarce() {
        for (const std::uint32_t each : taken) {
            w.pool.give(each, netio::side::input, 0);
        }
    }
    iocp_world& w;
    std::vector<std::uint32_t> taken;
};

/// More of them than any number of blocks in turn would tell apart.
TEST_CASE("iocp takes late packets of receives that ended at once for nothing") {
    const iocp_held held;
    iocp_world w;
    const iocp_scarce few(w);
    const token socket = token::of(0, 7);
    iocp_sys::cuts_at_once = true;
    REQUIRE(w.kernel.start_receive_from(w.datagrams, socket));
    constexpr std::uint32_t rounds = 8;
    for (std::uint32_t round = 1; round <= rounds; ++round) {
        w.udp_send("one");
        w.udp_send("two");
        REQUIRE(w.until([&] { return w.count(socket) == 2 * round; }));
        CHECK(w.datagram == "two");
    }
    const std::size_t packets = iocp_sys::late.size();
    REQUIRE(packets >= rounds);
    w.quiet();
    const int armed = iocp_sys::of(iocp_call::receive_from_overlapped);
    iocp_sys::post_late();
    w.quiet();
    CHECK(w.count(socket) == 2 * rounds);
    CHECK(w.kernel.stale_count() == packets);
    CHECK(iocp_sys::of(iocp_call::receive_from_overlapped) == armed);
    w.udp_send("last");
    CHECK(w.until([&] { return w.datagram == "last"; }));
}

TEST_CASE("iocp gives a socket that receives again no packet of what it received before") {
    const iocp_held held;
    iocp_world w;
    const token before = token::of(0, 7), after = token::of(0, 8);
    w.udp_send(std::string(w.buffer_bytes + 1, 'y'));
    iocp_sys::cuts_at_once = true;
    REQUIRE(w.until([&] { return netio_test::plain::readable(SOCKET(w.datagrams), 1); }));
    REQUIRE(w.kernel.start_receive_from(w.datagrams, before));
    REQUIRE(iocp_sys::late.size() == 1);
    w.kernel.stop_receive_from(before);
    REQUIRE(w.until([&] {
        return w.count(before, operation::receive_from, event_kind::closed) == 1;
    }));
    REQUIRE(w.kernel.start_receive_from(w.datagrams, after));
    iocp_sys::post_late();
    w.quiet();
    CHECK(w.count(after) == 0);
    CHECK(w.kernel.stale_count() == 1);
    w.udp_send("fresh");
    CHECK(w.until([&] { return w.count(after) == 1; }));
    CHECK(w.datagram == "fresh");
}

TEST_CASE("iocp counts a late packet out when it closes, and waits for the receive itself") {
    const iocp_held held;
    iocp_world w;
    w.udp_send(std::string(w.buffer_bytes + 1, 'y'));
    iocp_sys::cuts_at_once = true;
    const token socket = token::of(0, 7);
    REQUIRE(w.kernel.start_receive_from(w.datagrams, socket));
    REQUIRE(w.until([&] { return w.count(socket) == 1; }));
    REQUIRE(w.pool.in_use(netio::side::input) == 1);  // of the receive that is outstanding
    iocp_sys::post_late();
    iocp_sys::late.clear();
    w.kernel.close();
    CHECK(w.pool.in_use(netio::side::input) == 0);
    REQUIRE(w.open());
}

TEST_CASE("iocp attaches what it released, and refuses what is tied to another port") {
    const iocp_held held;
    iocp_world w;
    auto other = std::make_unique<netio_test::conformance_rig<iocp_backend>>();
    REQUIRE(other->open());
    const token who = token::of(0, 1), again = token::of(1, 1);
    iocp_peer client;
    iocp_join(w, who, client);
    const netio::socket_handle handle = w.kernel.release(who);
    const netio::os_status elsewhere = other->kernel.attach(handle, again);
    CHECK(elsewhere.os_code == ERROR_INVALID_PARAMETER);
    REQUIRE(w.kernel.attach(handle, again));
    CHECK(iocp_suite::close(w, again, false) == nullptr);

    netio::socket_handle foreign = netio::no_handle;
    const iocp_peer far = w.adoptable(foreign);
    REQUIRE(::CreateIoCompletionPort(reinterpret_cast<HANDLE>(foreign),
                                     iocp_sys::newest_port, 2, 1) != nullptr);
    CHECK(w.kernel.attach(foreign, who).os_code == ERROR_INVALID_PARAMETER);
    // Whoever uses it all the same: its completions are nobody's.
    windows::overlapped of_somebody{};
    iocp_sys::real::post(iocp_sys::newest_port, 0, 2, &of_somebody);
    other->turn();
    CHECK(other->kernel.stale_count() == 1);
    iocp_sys::real::post(iocp_sys::newest_port, 0, 2, &of_somebody);
    other->kernel.close();
    netio_test::plain::close(SOCKET(foreign));
}

TEST_CASE("iocp reads an error away that a peek at a datagram met") {
    const iocp_held held;
    iocp_world w;
    const iocp_scarce few(w);
    const token socket = token::of(0, 7);
    iocp_sys::plan(iocp_call::receive_from_overlapped, WSAECONNRESET);
    REQUIRE(w.kernel.start_receive_from(w.datagrams, socket));
    w.quiet();
    CHECK(iocp_sys::of(iocp_call::receive_from) == 1);
    w.udp_send("one");
    CHECK(w.until([&] { return w.datagram == "one"; }));
    CHECK(w.count(socket) == 1);
}

TEST_CASE("iocp ends a receive that the kernel refuses to wait for, after what has come") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    const token who = token::of(0, 1);
    iocp_join(w, who, client);
    w.kernel.start_receive(who, {}, 1000);
    iocp_sys::plan(iocp_call::receive_overlapped, WSAENOBUFS);  // of the wait after the first read
    client.send("before");
    REQUIRE(w.until([&] { return w.receive_idle(who); }));
    CHECK(w.text[who.index()] == "before");
    CHECK(w.last(who, operation::receive)->why == netio::error::kernel_memory_empty);
}

TEST_CASE("iocp cuts a send to what one operation may take and says so") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    const token who = token::of(0, 1);
    iocp_join(w, who, client);
    const std::string text = netio_test::conformance_pattern(400'000);
    const netio::bytes slices[] = {netio::as_bytes(text).first(200'000),
                                   netio::as_bytes(text).subspan(200'000)};
    w.kernel.start_send(who, slices);
    REQUIRE(w.until([&] {
        client.arrived();
        return iocp_suite::sent(w, who);
    }));
    CHECK(w.last(who, operation::send)->byte_count == 256 * 1024);
    REQUIRE(iocp_reply(w, client, 256 * 1024));
    CHECK(client.arrived() == text.substr(0, 256 * 1024));
}

TEST_CASE("iocp gives back every handle and buffer of connections that are reset") {
    const iocp_held held;
    iocp_world w;
    const int before = iocp_sys::sockets;
    for (std::uint32_t round = 1; round <= 100; ++round) {
        const token who = token::of(round % 8, round);
        iocp_peer client;
        iocp_join(w, who, client);
        w.kernel.start_receive(who, {}, 1000);
        client.send("some");
        round % 2 == 0 ? client.reset() : client.shutdown();
        REQUIRE(w.until([&] { return w.receive_idle(who); }));
        REQUIRE(iocp_suite::close(w, who, round % 3 == 0) == nullptr);
        w.seen.clear();
    }
    CHECK(iocp_sys::sockets == before + static_cast<int>(netio::iocp::late_accepts_max));
    CHECK(w.pool.in_use(netio::side::input) == 0);
    CHECK(w.kernel.stale_count() == 0);
}

/// Two loops accept from one listener, the first one's port gets what belongs to both.
TEST_CASE("iocp loops share a listener, whichever of them ends first") {
    for (const bool owner_first : {true, false}) {
        CAPTURE(owner_first);
        const iocp_held held;
        iocp_world first;
        auto second = std::make_unique<netio_test::conformance_rig<iocp_backend>>();
        REQUIRE(second->open());
        const token acceptor = token::of(0, 900);
        REQUIRE(first.kernel.start_accept(first.listener, acceptor));
        REQUIRE(second->kernel.start_accept(first.listener, acceptor));
        constexpr std::uint32_t clients_max = 3 * netio::iocp::late_accepts_max;
        std::vector<iocp_peer> clients;
        for (std::uint32_t at = 0; at < clients_max; ++at) {
            clients.push_back(first.connect());
        }
        REQUIRE(first.until([&] {
            second->turn(0);
            return first.count(acceptor) + second->count(acceptor) == clients_max;
        }));
        CHECK(first.count(acceptor) != 0);
        CHECK(second->count(acceptor) != 0);
        first.close_accepted();
        second->close_accepted();
        if (owner_first) {
            first.kernel.close();
            continue;
        }
        std::atomic<bool> closed{false};
        std::thread other([&] {
            second->kernel.close();
            closed = true;
        });
        while (!closed) {
            first.turn();
        }
        other.join();
    }
}

TEST_CASE("iocp accepts again with the token that was stopped") {
    const iocp_held held;
    iocp_world w;
    const token acceptor = token::of(0, 900);
    REQUIRE(w.kernel.start_accept(w.listener, acceptor));
    w.kernel.stop_accept(acceptor);
    REQUIRE(w.kernel.start_accept(w.listener, acceptor));
    w.quiet();
    CHECK(w.count(acceptor) == 0);
    const iocp_peer client = w.connect();
    CHECK(w.until([&] {
        return w.count(acceptor, operation::accept, event_kind::accepted) == 1;
    }));
}

TEST_CASE("iocp keeps no address of a client it has told of, nor of a datagram's sender") {
    const iocp_held held;
    iocp_world w;
    const token acceptor = token::of(0, 900), socket = token::of(0, 7);
    REQUIRE(w.kernel.start_accept(w.listener, acceptor));
    REQUIRE(w.kernel.start_receive_from(w.datagrams, socket));
    const iocp_peer client = w.connect();
    w.udp_send("hello");
    REQUIRE(w.until([&] { return w.count(acceptor) == 1 && w.count(socket) == 1; }));
    CHECK(iocp_sys::addresses.size() > netio::iocp::late_accepts_max + 1);
    CHECK(iocp_sys::addresses_wiped());
}

TEST_CASE("iocp waits for its own when it closes, however much of others comes before") {
    const iocp_held held;
    iocp_world w;
    iocp_peer client;
    const token who = token::of(0, 1);
    iocp_join(w, who, client);
    std::array<std::byte, 8> place{};
    iocp_suite::receive_into(w, who, place);
    w.quiet();
    w.close_accepted();
    windows::overlapped of_somebody{};
    for (int times = 0; times < 1000; ++times) {
        iocp_sys::real::post(iocp_sys::newest_port, 0, 2, &of_somebody);
    }
    iocp_sys::one_by_one = true;
    w.kernel.close();
    CHECK(iocp_sys::receive_came);
}

TEST_CASE("iocp closes a client that cannot be told its listener, and accepts the next") {
    const iocp_held held;
    iocp_world w;
    const token acceptor = token::of(0, 900);
    REQUIRE(w.kernel.start_accept(w.listener, acceptor));
    iocp_sys::plan(iocp_call::setsockopt, WSAENOTSOCK);
    iocp_peer lost = w.connect();
    CHECK(w.until([&] { return lost.ended() || lost.was_reset(); }));
    CHECK(w.count(acceptor) == 0);
    const iocp_peer client = w.connect();
    CHECK(w.until([&] { return w.count(acceptor) == 1; }));
}

TEST_CASE("iocp tells a socket what it is before it is closed with a reset") {
    const iocp_held held;
    iocp_world w;
    const token acceptor = token::of(0, 900), who = token::of(0, 1);
    REQUIRE(w.kernel.start_accept(w.listener, acceptor));
    iocp_sys::plan(iocp_call::open_socket, WSAEMFILE);
    iocp_peer client = w.connect();
    REQUIRE(w.until([&] { return w.count(acceptor) == 1; }));
    CHECK(w.last(acceptor, operation::accept)->kind == event_kind::failed);
    CHECK(iocp_sys::lingers_after(windows::option_accepted_from));

    iocp_sys::never_cancels = true;  // so the connect succeeds
    REQUIRE(w.kernel.start_connect({w.outside(), {}}, {}, who));
    w.kernel.start_close(who, true);
    REQUIRE(w.until([&] { return w.count(who) == 1; }));
    CHECK(iocp_sys::lingers_after(windows::option_connected));

    iocp_sys::options.clear();
    REQUIRE(w.kernel.start_connect({w.outside(), {}}, {}, token::of(1, 1)));
    w.kernel.close();
    CHECK(iocp_sys::options.back().second == windows::option_connected);
}

TEST_CASE("iocp gives no connection of an accept whose start has failed") {
    const iocp_held held;
    iocp_world w;
    const token failing = token::of(0, 900), working = token::of(0, 901);
    iocp_peer early = w.connect();  // accepted by the first place, at once
    iocp_sys::plan(iocp_call::accept, WSAENOBUFS, netio::iocp::late_accepts_max);
    CHECK(!w.kernel.start_accept(w.listener, failing));
    REQUIRE(w.until([&] { return early.ended() || early.was_reset(); }));
    CHECK(w.count(failing) == 0);
    REQUIRE(w.kernel.start_accept(w.listener, working));
    const iocp_peer client = w.connect();
    CHECK(w.until([&] { return w.count(working) == 1; }));
    CHECK(w.count(failing) == 0);
}

/// As one sent on to a loop that closed and opened again meanwhile.
TEST_CASE("iocp drops a packet of an accept that still waits") {
    const iocp_held held;
    iocp_world w;
    const token acceptor = token::of(0, 900);
    REQUIRE(w.kernel.start_accept(w.listener, acceptor));
    iocp_sys::real::post(iocp_sys::newest_port, 0, 3, iocp_sys::newest_accept);
    w.quiet();
    CHECK(w.count(acceptor) == 0);
    CHECK(w.kernel.stale_count() == 1);
    const iocp_peer client = w.connect();
    CHECK(w.until([&] { return w.count(acceptor) == 1; }));
    iocp_sys::real::post(iocp_sys::newest_port, 0, 3, iocp_sys::newest_accept);
    w.close_accepted();
    w.kernel.close();
    CHECK(iocp_sys::sockets == 2);  // the world's own
}

/// As a server's workers do: each stops its accepts, then closes.
TEST_CASE("iocp closes without waiting for accepts whose completions nobody sends on") {
    const iocp_held held;
    iocp_world first;
    auto second = std::make_unique<netio_test::conformance_rig<iocp_backend>>();
    REQUIRE(second->open());
    const token acceptor = token::of(0, 900);
    REQUIRE(first.kernel.start_accept(first.listener, acceptor));
    REQUIRE(second->kernel.start_accept(first.listener, acceptor));
    first.kernel.stop_accept(acceptor);
    first.kernel.close();
    second->kernel.stop_accept(acceptor);
    const int waits = iocp_sys::of(iocp_call::wait);
    second->kernel.close();
    CHECK(iocp_sys::of(iocp_call::wait) - waits < 20);
}

TEST_CASE("iocp loop that stopped and started again still ends the accepts of others") {
    const iocp_held held;
    iocp_world first;
    auto second = std::make_unique<netio_test::conformance_rig<iocp_backend>>();
    REQUIRE(second->open());
    const token before = token::of(0, 900), after = token::of(0, 901);
    REQUIRE(first.kernel.start_accept(first.listener, before));
    REQUIRE(second->kernel.start_accept(first.listener, before));
    first.kernel.stop_accept(before);
    first.quiet();
    REQUIRE(first.kernel.start_accept(first.listener, after));
    first.kernel.close();
    CHECK(second->until([&] {
        return second->count(before, operation::accept, event_kind::failed) == 1;
    }));
}

}  // namespace

#endif
