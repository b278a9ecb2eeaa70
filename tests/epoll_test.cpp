// What only the epoll backend can show: its system calls counted and failed one by one, the edges it
// relies on, stale events, running out of descriptors, wake-ups.
#include "netio.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

namespace {

using netio::event;
using netio::event_kind;
using netio::operation;
using netio::token;

enum class epoll_call {
    socket, accept, send, send_message, send_to, bind, listen, connect, setsockopt, getsockopt,
    getsockname, receive, receive_message, shutdown, close, epoll_create, epoll_ctl, epoll_wait,
    open_wake, write_wake, open_spare, get_limit, set_limit, count_
};

/// Counts every call; one planned call fails instead of being made.
struct epoll_counting_sys : netio::linux_sys {
    using real = netio::linux_sys;
    static inline std::atomic<int> counts[static_cast<int>(epoll_call::count_)] = {};
    static inline epoll_call fail_call = epoll_call::count_;
    static inline int fail_at = 0;     // the n-th such call from now fails
    static inline int fail_until = 0;  // and all up to this one
    static inline int fail_code = 0;
    static inline int last_timeout_ms = 0;

    static bool enter(epoll_call which) noexcept {
        ++counts[static_cast<int>(which)];
        if (which == fail_call) {
            --fail_until;
            if (--fail_at <= 0 && fail_until >= 0) {
                errno = fail_code;
                return false;
            }
        }
        return true;
    }
    static void plan(epoll_call which, int code, int nth = 1, int times = 1) {
        fail_call = which;
        fail_code = code;
        fail_at = nth;
        fail_until = nth + times - 1;
    }
    static void reset() {
        for (auto& each : counts) {
            each = 0;
        }
        fail_call = epoll_call::count_;
        fail_at = fail_until = 0;
    }
    static int of(epoll_call which) { return counts[static_cast<int>(which)]; }
    static int total() {
        int all = 0;
        for (auto& each : counts) {
            all += each;
        }
        return all;
    }

    static int open_socket(int family, int type) noexcept {
        return enter(epoll_call::socket) ? real::open_socket(family, type) : -1;
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        return enter(epoll_call::accept) ? real::accept(from, peer, size) : -1;
    }
    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        return enter(epoll_call::send) ? real::send(to, from, count) : -1;
    }
    static ssize_t send_message(int to, const msghdr* what) noexcept {
        return enter(epoll_call::send_message) ? real::send_message(to, what) : -1;
    }
    static ssize_t send_to(int to, const void* from, std::size_t count, const sockaddr* peer,
                           socklen_t size) noexcept {
        return enter(epoll_call::send_to) ? real::send_to(to, from, count, peer, size) : -1;
    }
    static int bind(int what, const sockaddr* where, socklen_t size) noexcept {
        return enter(epoll_call::bind) ? real::bind(what, where, size) : -1;
    }
    static int listen(int what, int backlog) noexcept {
        return enter(epoll_call::listen) ? real::listen(what, backlog) : -1;
    }
    static int connect(int what, const sockaddr* where, socklen_t size) noexcept {
        return enter(epoll_call::connect) ? real::connect(what, where, size) : -1;
    }
    static int setsockopt(int of, int level, int option, const void* value,
                          socklen_t size) noexcept {
        return enter(epoll_call::setsockopt) ? real::setsockopt(of, level, option, value, size)
                                             : -1;
    }
    static int getsockopt(int of, int level, int option, void* value, socklen_t* size) noexcept {
        return enter(epoll_call::getsockopt) ? real::getsockopt(of, level, option, value, size)
                                             : -1;
    }
    static int getsockname(int of, sockaddr* where, socklen_t* size) noexcept {
        return enter(epoll_call::getsockname) ? real::getsockname(of, where, size) : -1;
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        return enter(epoll_call::receive) ? real::receive(from, into, count) : -1;
    }
    static ssize_t receive_message(int from, msghdr* what) noexcept {
        return enter(epoll_call::receive_message) ? real::receive_message(from, what) : -1;
    }
    static int shutdown_sending(int of) noexcept {
        return enter(epoll_call::shutdown) ? real::shutdown_sending(of) : -1;
    }
    static int close(int what) noexcept {
        enter(epoll_call::close);  // Linux closes even when it reports an error
        return real::close(what);
    }
    static int epoll_create() noexcept {
        return enter(epoll_call::epoll_create) ? real::epoll_create() : -1;
    }
    static int epoll_ctl(int in, int change, int what, epoll_event* wanted) noexcept {
        return enter(epoll_call::epoll_ctl) ? real::epoll_ctl(in, change, what, wanted) : -1;
    }
    static int epoll_wait(int in, epoll_event* out, int count_max, int timeout_ms) noexcept {
        last_timeout_ms = timeout_ms;
        return enter(epoll_call::epoll_wait) ? real::epoll_wait(in, out, count_max, timeout_ms)
                                             : -1;
    }
    static int open_wake() noexcept {
        return enter(epoll_call::open_wake) ? real::open_wake() : -1;
    }
    static ssize_t write_wake(int to) noexcept {
        return enter(epoll_call::write_wake) ? real::write_wake(to) : -1;
    }
    static int open_spare() noexcept {
        return enter(epoll_call::open_spare) ? real::open_spare() : -1;
    }
    static int get_descriptor_limit(rlimit& out) noexcept {
        return enter(epoll_call::get_limit) ? real::get_descriptor_limit(out) : -1;
    }
    static int set_descriptor_limit(const rlimit& wanted) noexcept {
        return enter(epoll_call::set_limit) ? real::set_descriptor_limit(wanted) : -1;
    }
};

using epoll_sys = epoll_counting_sys;
using epoll_backend = netio::basic_epoll<epoll_sys>;
static_assert(netio::backend<epoll_backend>);

int epoll_open_descriptors() {
    int count = 0;
    DIR* folder = ::opendir("/proc/self/fd");
    while (::readdir(folder) != nullptr) {
        ++count;
    }
    ::closedir(folder);
    return count;
}

constexpr netio::backend_limits epoll_sizes{300, 2, 2, 4};
constexpr std::uint64_t epoll_long_ns = 2'000'000'000;

/// An open backend with a pool; on the way out nothing may be left of either.
struct epoll_rig {
    static constexpr std::uint32_t buffers = 160;
    static constexpr std::uint32_t buffer_bytes = 1024;
    static constexpr std::size_t memory_bytes = epoll_backend::bytes_needed(epoll_sizes);

    std::vector<std::byte> pool_bytes = std::vector<std::byte>(buffers * buffer_bytes);
    std::vector<std::uint32_t> pool_links = std::vector<std::uint32_t>(buffers);
    std::vector<std::byte> raw = std::vector<std::byte>(memory_bytes + 64);
    netio::buffer_pool pool;
    epoll_backend backend;
    int descriptors_before;
    event out[32];
    std::vector<event> seen;

    explicit epoll_rig(std::uint32_t input_quota = buffers / 2) {
        epoll_sys::reset();
        descriptors_before = epoll_open_descriptors();
        pool.attach(pool_bytes.data(), pool_links.data(), buffers, buffer_bytes, input_quota,
                    buffers - buffers / 2, false);
        REQUIRE(backend.open(memory(), epoll_sizes, pool));
    }
    ~epoll_rig() {
        epoll_sys::reset();
        backend.close();
        CHECK(epoll_open_descriptors() == descriptors_before);
        CHECK(pool.in_use(netio::side::input) == 0);
    }
    netio::mutable_bytes memory() {
        const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
        return {raw.data() + (64 - at % 64) % 64, memory_bytes};
    }

    /// One wait; its events are kept in `seen` too.
    std::uint32_t wait(std::uint64_t timeout_ns = 0, std::size_t room = 32) {
        const std::uint32_t count = backend.wait({out, room}, timeout_ns);
        seen.insert(seen.end(), out, out + count);
        return count;
    }
    /// Waits until such an event comes; the ones before it are dropped from `seen`.
    event until(event_kind kind) {
        for (int turn = 0; turn < 1000; ++turn) {
            for (std::size_t at = 0; at < seen.size(); ++at) {
                if (seen[at].kind == kind) {
                    const event found = seen[at];
                    seen.erase(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(at) + 1);
                    return found;
                }
            }
            wait(epoll_long_ns);
        }
        FAIL("the event never came");
        return {};
    }
    /// Nothing more comes.
    void quiet() {
        for (int turn = 0; turn < 4; ++turn) {
            wait(0);
        }
        CHECK(seen.empty());
        seen.clear();
    }
    std::string text_of(const event& received) {
        std::string text(reinterpret_cast<const char*>(pool.data(received.buffer_index)),
                         received.byte_count);
        pool.give(received.buffer_index, netio::side::input, received.byte_count);
        return text;
    }
    void send(token who, std::string_view text) {
        const netio::bytes slice = netio::as_bytes(text);
        backend.start_send(who, {&slice, 1});
    }
    void receive(token who, std::uint32_t credit = 1) { backend.start_receive(who, {}, credit); }
    void close(token who, bool abort = false) {
        backend.start_close(who, abort);
        CHECK(until(event_kind::closed).who == who);
    }
};

constexpr token epoll_who(std::uint32_t index, std::uint32_t generation = 1) {
    return token::of(index, generation);
}

/// A plain blocking client.
struct epoll_client {
    int descriptor = -1;

    epoll_client() = default;
    explicit epoll_client(std::uint16_t port) {
        descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        REQUIRE(::connect(descriptor, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
        const int one = 1;
        ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        const timeval bound{5, 0};
        ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof(bound));
    }
    epoll_client(epoll_client&& other) noexcept : descriptor(other.descriptor) {
        other.descriptor = -1;
    }
    epoll_client& operator=(epoll_client&& other) noexcept {
        std::swap(descriptor, other.descriptor);
        return *this;
    }
    ~epoll_client() { close(); }
    void close() {
        if (descriptor >= 0) {
            ::close(descriptor);
            descriptor = -1;
        }
    }
    void reset() {
        const linger at_once{1, 0};
        ::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        close();
    }
    void finish() { ::shutdown(descriptor, SHUT_WR); }
    void send(std::string_view text) {
        REQUIRE(::send(descriptor, text.data(), text.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(text.size()));
    }
    /// Up to so many bytes; empty at the end, "!" and the errno on failure.
    std::string receive(std::size_t count) {
        std::string text(count, '\0');
        std::size_t got = 0;
        while (got < count) {
            const ssize_t step = ::recv(descriptor, text.data() + got, count - got, 0);
            if (step < 0) {
                return "!" + std::to_string(errno);
            }
            if (step == 0) {
                break;
            }
            got += static_cast<std::size_t>(step);
        }
        text.resize(got);
        return text;
    }
};

/// A listener on a port of the system's choice, accepting.
struct epoll_door {
    epoll_rig& rig;
    netio::os_handle handle;
    std::uint16_t port = 0;
    token who;

    explicit epoll_door(epoll_rig& of, std::uint32_t index = 0) : rig(of), who(epoll_who(index)) {
        handle = epoll_backend::listen({netio::loopback_ipv4(0), {}}, {});
        REQUIRE(handle);
        port = epoll_backend::local_of(handle.handle).value.port;
        REQUIRE(rig.backend.start_accept(handle.handle, who));
    }
    ~epoll_door() {
        if (accepting) {
            rig.backend.stop_accept(who);
        }
        epoll_backend::close_handle(handle.handle);
    }
    /// A client and its connection, attached as `as`.
    epoll_client connect(token as) {
        epoll_client client(port);
        const event accepted = rig.until(event_kind::accepted);
        REQUIRE(rig.backend.attach(accepted.handle, as));
        return client;
    }
    bool accepting = true;
};

/// Lets the loopback settle: what the peer did has reached our socket.
[[maybe_unused]] void epoll_settle(int descriptor) {
    pollfd ready{descriptor, POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 2000) == 1);
}

}  // namespace

TEST_CASE("epoll echoes to a lone client with three system calls a round trip") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    rig.receive(epoll_who(0));
    rig.quiet();
    epoll_sys::reset();
    for (int round = 0; round < 10; ++round) {
        client.send("hello");
        const event received = rig.until(event_kind::received);
        CHECK(received.disarmed);
        CHECK(received.who == epoll_who(0));
        const std::string text = rig.text_of(received);
        CHECK(text == "hello");
        rig.send(epoll_who(0), text);
        rig.receive(epoll_who(0));
        CHECK(rig.until(event_kind::sent).byte_count == 5);
        CHECK(client.receive(5) == "hello");
    }
    CHECK(epoll_sys::of(epoll_call::epoll_wait) == 10);
    CHECK(epoll_sys::of(epoll_call::receive) == 10);
    CHECK(epoll_sys::of(epoll_call::send) == 10);
    CHECK(epoll_sys::total() == 30);
    rig.close(epoll_who(0));
}

#endif
