// What only the epoll backend can show: its system calls counted and failed one by one, the edges
// it relies on, stale events, running out of descriptors, wake-ups.
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
        CHECK(bool{received.disarmed});
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

TEST_CASE("epoll serves 100 ready connections with two system calls each and one wait") {
    epoll_rig rig;
    epoll_door door(rig);
    std::vector<epoll_client> clients;
    for (std::uint32_t index = 0; index < 100; ++index) {
        clients.push_back(door.connect(epoll_who(index)));
        rig.receive(epoll_who(index));
    }
    rig.quiet();
    for (int round = 0; round < 3; ++round) {
        for (epoll_client& client : clients) {
            client.send("ping");
        }
        epoll_sys::reset();
        int sent = 0;
        while (sent < 100) {
            rig.wait(epoll_long_ns);
            const std::vector<event> now = std::move(rig.seen);
            rig.seen.clear();
            for (const event& each : now) {
                if (each.kind == event_kind::received) {
                    rig.send(each.who, rig.text_of(each));
                    rig.receive(each.who);
                } else {
                    CHECK(each.kind == event_kind::sent);
                    ++sent;
                }
            }
        }
        CHECK(epoll_sys::of(epoll_call::receive) == 100);
        CHECK(epoll_sys::of(epoll_call::send) == 100);
        CHECK(epoll_sys::of(epoll_call::epoll_wait) == 1);
        CHECK(epoll_sys::total() == 201);
        for (epoll_client& client : clients) {
            CHECK(client.receive(4) == "ping");
        }
    }
    for (std::uint32_t index = 0; index < 100; ++index) {
        rig.close(epoll_who(index));
    }
}

TEST_CASE("epoll accepts, serves one message and sees the peer close with nine calls alone") {
    epoll_rig rig;
    epoll_door door(rig);
    rig.quiet();
    epoll_sys::reset();
    epoll_client client = door.connect(epoll_who(0));
    rig.receive(epoll_who(0));
    client.send("one");
    const std::string text = rig.text_of(rig.until(event_kind::received));
    rig.send(epoll_who(0), text);
    rig.receive(epoll_who(0));
    rig.until(event_kind::sent);
    CHECK(client.receive(3) == "one");
    client.close();
    rig.until(event_kind::ended);
    rig.close(epoll_who(0));
    CHECK(epoll_sys::of(epoll_call::accept) == 1);
    CHECK(epoll_sys::of(epoll_call::epoll_ctl) == 1);
    CHECK(epoll_sys::of(epoll_call::epoll_wait) == 3);
    CHECK(epoll_sys::total() == 9);
}

namespace {

/// Accepts `count` clients that are all in the queue, echoes one message and sees them close; the
/// system calls it took.
int epoll_lockstep(epoll_rig& rig, epoll_door& door, std::uint32_t count) {
    std::vector<epoll_client> clients;
    for (std::uint32_t index = 0; index < count; ++index) {
        clients.emplace_back(door.port);
    }
    epoll_sys::reset();
    std::uint32_t accepted = 0;
    std::uint32_t sent = 0;
    std::uint32_t closed = 0;
    bool asked = false;
    while (closed < count) {
        rig.wait(epoll_long_ns);
        const std::vector<event> now = std::move(rig.seen);
        rig.seen.clear();
        for (const event& each : now) {
            switch (each.kind) {
            case event_kind::accepted:
                REQUIRE(rig.backend.attach(each.handle, epoll_who(accepted)));
                rig.receive(epoll_who(accepted++));
                break;
            case event_kind::received:
                rig.send(each.who, rig.text_of(each));
                rig.receive(each.who);
                break;
            case event_kind::ended: rig.backend.start_close(each.who, false); break;
            case event_kind::closed: ++closed; break;
            default: ++sent; break;
            }
        }
        if (accepted == count && !asked) {
            asked = true;
            for (epoll_client& client : clients) {
                client.send("one");
            }
        }
        if (sent == count && clients[0].descriptor >= 0) {
            for (epoll_client& client : clients) {
                CHECK(client.receive(3) == "one");
                client.close();
            }
        }
    }
    return epoll_sys::total();
}

}  // namespace

TEST_CASE("epoll learns the size of bursts: 16 in lockstep cost at most 6.5 calls each") {
    epoll_rig rig;
    epoll_door door(rig);
    CHECK(epoll_lockstep(rig, door, 16) <= 16 * 6 + 8);
    CHECK(epoll_sys::of(epoll_call::accept) <= 17);
    for (int burst = 0; burst < 3; ++burst) {
        CHECK(epoll_lockstep(rig, door, 16) <= 16 * 6 + 4);
        CHECK(epoll_sys::of(epoll_call::accept) == 16);
    }
    CHECK(epoll_lockstep(rig, door, 1) <= 10);  // one try too many, then it has learnt
    CHECK(epoll_lockstep(rig, door, 1) == 9);
}

TEST_CASE("epoll accepts more than a wait has room for over several waits") {
    epoll_rig rig;
    epoll_door door(rig);
    std::vector<epoll_client> clients;
    for (int count = 0; count < 40; ++count) {
        clients.emplace_back(door.port);
    }
    while (rig.seen.size() < 40) {
        CHECK(rig.wait(epoll_long_ns, 4) <= 4);
    }
    for (const event& each : rig.seen) {
        CHECK(each.kind == event_kind::accepted);
        CHECK(each.who == door.who);
        CHECK(each.peer.family == netio::address_family::ipv4);
        CHECK(each.peer.address[0] == 127);
        epoll_backend::close_handle(each.handle);
    }
    rig.seen.clear();
    rig.quiet();
}

TEST_CASE("epoll hands on the listener's options and makes accepted sockets fit to serve") {
    epoll_rig rig;
    netio::listen_options options;
    options.socket.receive_bytes = 65536;
    options.socket.keepalive_idle_s = 77;
    options.socket.user_timeout_ms = 4321;
    const netio::os_handle made =
        epoll_backend::listen({netio::loopback_ipv4(0), {}}, options);
    REQUIRE(made);
    REQUIRE(rig.backend.start_accept(made.handle, epoll_who(0)));
    epoll_client client(epoll_backend::local_of(made.handle).value.port);
    epoll_sys::reset();
    const int accepted = static_cast<int>(rig.until(event_kind::accepted).handle);
    CHECK(epoll_sys::of(epoll_call::setsockopt) == 0);
    auto option_of = [accepted](int level, int option) {
        int value = -1;
        socklen_t size = sizeof(value);
        CHECK(::getsockopt(accepted, level, option, &value, &size) == 0);
        return value;
    };
    CHECK(option_of(IPPROTO_TCP, TCP_NODELAY) == 1);
    CHECK(option_of(SOL_SOCKET, SO_RCVBUF) == 2 * 65536);
    CHECK(option_of(SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(option_of(IPPROTO_TCP, TCP_KEEPIDLE) == 77);
    CHECK(option_of(IPPROTO_TCP, TCP_USER_TIMEOUT) == 4321);
    CHECK((::fcntl(accepted, F_GETFL) & O_NONBLOCK) != 0);
    CHECK((::fcntl(accepted, F_GETFD) & FD_CLOEXEC) != 0);
    epoll_backend::close_handle(accepted);
    rig.backend.stop_accept(epoll_who(0));
    epoll_backend::close_handle(made.handle);
}

// ---- edges

TEST_CASE("epoll reads on after a short read that came with the end of stream") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.send("last words");
    client.finish();
    for (int turn = 0; turn < 3; ++turn) {
        rig.wait(0);  // the edge comes while nobody receives, and only once
    }
    CHECK(rig.seen.empty());
    rig.receive(epoll_who(0));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "last words");
    rig.receive(epoll_who(0));
    CHECK(rig.until(event_kind::ended).who == epoll_who(0));
    rig.send(epoll_who(0), "reply");  // half-closed: sending goes on
    rig.until(event_kind::sent);
    CHECK(client.receive(5) == "reply");
    rig.close(epoll_who(0));
}

TEST_CASE("epoll needs no second read after a short one and no event after a full one") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    rig.receive(epoll_who(0));
    client.send(std::string(3000, 'x'));
    const event first = rig.until(event_kind::received);
    CHECK(first.byte_count == 1024);
    rig.text_of(first);
    epoll_sys::reset();
    rig.receive(epoll_who(0));
    rig.text_of(rig.until(event_kind::received));
    CHECK(epoll_sys::of(epoll_call::epoll_wait) == 0);
    CHECK(epoll_sys::of(epoll_call::receive) == 1);
    rig.receive(epoll_who(0));
    const event last = rig.until(event_kind::received);
    CHECK(last.byte_count == 3000 - 2048);
    rig.text_of(last);
    rig.receive(epoll_who(0));
    epoll_sys::reset();
    rig.quiet();
    CHECK(epoll_sys::of(epoll_call::receive) == 0);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll reads on behind urgent data, which splits a read") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.send("before");
    REQUIRE(::send(client.descriptor, "!", 1, MSG_OOB) == 1);
    client.send("behind");
    std::string all;
    while (all.size() < 12) {
        rig.receive(epoll_who(0));
        all += rig.text_of(rig.until(event_kind::received));
    }
    CHECK(all == "beforebehind");
    rig.close(epoll_who(0));
}

TEST_CASE("epoll gives what was received before a reset, then the reset") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.send("data");
    client.reset();
    rig.receive(epoll_who(0));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "data");
    rig.receive(epoll_who(0));
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::receive);
    CHECK(failed.why == netio::error::connection_reset);
    CHECK(failed.os_code == ECONNRESET);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll does not spin on a reset connection that neither reads nor writes") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.reset();
    epoll_sys::reset();
    const std::uint64_t until_ns = epoll_sys::now_ns() + 30'000'000;
    while (epoll_sys::now_ns() < until_ns) {
        rig.wait(10'000'000);
    }
    CHECK(rig.seen.empty());
    CHECK(epoll_sys::of(epoll_call::epoll_wait) <= 6);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll takes at most one buffer of a connection in one wait, until the credit is used") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.send(std::string(8000, 'x'));
    rig.receive(epoll_who(0), 3000);
    std::uint32_t byte_count = 0;
    for (int turn = 0; turn < 3; ++turn) {
        CHECK(rig.wait(epoll_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::received);
        CHECK(bool{rig.out[0].disarmed} == (turn == 2));
        byte_count += rig.out[0].byte_count;
        rig.text_of(rig.out[0]);
    }
    CHECK(byte_count == 3072);
    rig.seen.clear();
    rig.quiet();
    rig.close(epoll_who(0));
}

TEST_CASE("epoll receives into the caller's memory without a buffer of the pool") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    std::byte into[16];
    rig.backend.start_receive(epoll_who(0), into, 1);
    rig.quiet();
    client.send("to your memory");
    const event received = rig.until(event_kind::received);
    CHECK(received.buffer_index == netio::none_index);
    CHECK(bool{received.disarmed});
    CHECK(netio::as_text({into, received.byte_count}) == "to your memory");
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    client.close();
    rig.backend.start_receive(epoll_who(0), into, 1);
    rig.until(event_kind::ended);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll stops a receive with one disarmed event and keeps what comes meanwhile") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    rig.receive(epoll_who(0));
    rig.backend.stop_receive(epoll_who(0));
    client.send("kept");
    const event last = rig.until(event_kind::received);
    CHECK(bool{last.disarmed});
    CHECK(last.byte_count == 0);
    CHECK(last.buffer_index == netio::none_index);
    rig.quiet();
    rig.receive(epoll_who(0));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "kept");
    rig.close(epoll_who(0));
}

// ---- stale events

TEST_CASE("epoll keeps events of a batch apart from a new connection with the same descriptor") {
    epoll_rig rig;
    epoll_door door(rig);
    std::vector<epoll_client> clients;
    for (std::uint32_t index = 0; index < 8; ++index) {
        clients.push_back(door.connect(epoll_who(index)));
        rig.receive(epoll_who(index));
    }
    rig.quiet();
    for (epoll_client& client : clients) {
        client.send("x");
    }
    CHECK(rig.wait(epoll_long_ns, 4) == 4);  // four more wait in the ready array
    for (const event& each : rig.seen) {
        rig.text_of(each);
    }
    rig.seen.clear();
    const token old = epoll_who(7);
    rig.backend.start_close(old, true);
    // The lowest free number is the one just closed.
    const int reused = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool closed = false;
    while (!closed) {
        rig.wait(0, 4);
        for (const event& each : rig.seen) {
            if (each.kind == event_kind::closed) {
                CHECK(each.who == old);
                closed = true;
            } else {
                rig.text_of(each);
            }
        }
        rig.seen.clear();
    }
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    REQUIRE(::dup3(pair[0], reused, O_CLOEXEC) == reused);
    ::close(pair[0]);
    REQUIRE(rig.backend.attach(reused, epoll_who(7, 2)));
    rig.receive(epoll_who(7, 2));
    for (int turn = 0; turn < 4; ++turn) {
        rig.wait(0);
    }
    for (const event& each : rig.seen) {
        CHECK(each.who != epoll_who(7, 2));
        CHECK(each.who != old);
        rig.text_of(each);
    }
    rig.seen.clear();
    REQUIRE(::write(pair[1], "mine", 4) == 4);
    const event own = rig.until(event_kind::received);
    CHECK(own.who == epoll_who(7, 2));
    CHECK(rig.text_of(own) == "mine");
    ::close(pair[1]);
    rig.close(epoll_who(7, 2));
    for (std::uint32_t index = 0; index < 7; ++index) {
        rig.close(epoll_who(index));
    }
}

TEST_CASE("epoll is not disturbed by a duplicate of a closed socket") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client(door.port);
    const event accepted = rig.until(event_kind::accepted);
    const int duplicate = ::fcntl(static_cast<int>(accepted.handle), F_DUPFD_CLOEXEC, 0);
    REQUIRE(rig.backend.attach(accepted.handle, epoll_who(0)));
    rig.receive(epoll_who(0));
    rig.close(epoll_who(0));
    epoll_client next = door.connect(epoll_who(0, 2));  // the same slot, used anew
    rig.receive(epoll_who(0, 2));
    rig.quiet();
    epoll_sys::reset();
    for (int count = 0; count < 5; ++count) {
        client.send("to the duplicate");
        rig.wait(10'000'000);
    }
    rig.quiet();
    CHECK(rig.backend.stale_count() == 5);  // one dropped event an arrival, no more
    CHECK(epoll_sys::of(epoll_call::epoll_wait) <= 9);
    CHECK(epoll_sys::of(epoll_call::receive) == 0);
    ::close(duplicate);
    rig.close(epoll_who(0, 2));
}

TEST_CASE("epoll gives a released handle back unclosed and forgets it") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    const netio::socket_handle handle = rig.backend.release(epoll_who(0));
    client.send("still open");
    rig.quiet();
    REQUIRE(rig.backend.attach(handle, epoll_who(1)));
    rig.receive(epoll_who(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "still open");
    rig.close(epoll_who(1));
}

// ---- sending

TEST_CASE("epoll sends 8 MiB to a slow reader whole and registers for writing once") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    std::string big(8 * 1024 * 1024, '\0');
    for (std::size_t at = 0; at < big.size(); ++at) {
        big[at] = static_cast<char>(at * 2654435761u >> 13);
    }
    epoll_sys::reset();
    std::string got;
    std::size_t sent = 0;
    std::thread reader([&] {
        got = client.receive(big.size());
    });
    int waited = 0;
    while (sent < big.size()) {
        const std::string_view rest = std::string_view(big).substr(sent);
        rig.send(epoll_who(0), rest);
        const event done = rig.until(event_kind::sent);
        CHECK(done.byte_count >= 1);
        sent += done.byte_count;
        waited += done.byte_count < rest.size();
    }
    reader.join();
    CHECK(got == big);
    CHECK(waited > 0);
    CHECK(epoll_sys::of(epoll_call::epoll_ctl) == 1);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll sends several slices with one call and keeps only the first where it must wait") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    const netio::bytes slices[] = {netio::as_bytes("ab"), netio::as_bytes("cde"),
                                   netio::as_bytes("f")};
    rig.backend.start_send(epoll_who(0), slices);
    CHECK(rig.until(event_kind::sent).byte_count == 6);
    CHECK(client.receive(6) == "abcdef");
    epoll_sys::plan(epoll_call::send_message, EAGAIN);
    rig.backend.start_send(epoll_who(0), slices);
    CHECK(rig.until(event_kind::sent).byte_count == 2);  // writable all the time: the edge is there
    CHECK(client.receive(2) == "ab");
    rig.close(epoll_who(0));
}

TEST_CASE("epoll reports a send to a peer that is gone and gets no SIGPIPE") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.reset();
    rig.quiet();
    rig.send(epoll_who(0), "x");
    const event first = rig.until(event_kind::failed);
    CHECK(first.op == operation::send);
    CHECK(first.why == netio::error::connection_reset);
    const netio::bytes slices[] = {netio::as_bytes("a"), netio::as_bytes("b")};
    rig.backend.start_send(epoll_who(0), slices);
    CHECK(rig.until(event_kind::failed).why == netio::error::broken_pipe);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll ends a send that waits for room when the peer resets") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    const std::string big(16 * 1024 * 1024, 'x');
    event last = {};
    do {  // fill both socket buffers until a send has to wait
        rig.send(epoll_who(0), big);
        last = {};
        last.kind = event_kind::woken;
        for (int turn = 0; turn < 3 && last.kind != event_kind::sent; ++turn) {
            if (rig.wait(0) != 0) {
                last = rig.out[0];
            }
        }
        rig.seen.clear();
    } while (last.kind == event_kind::sent);
    client.reset();
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::send);
    CHECK(failed.why == netio::error::connection_reset);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll lets a busy sender skip the kernel at most once in a row") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    epoll_sys::reset();
    for (int round = 0; round < 10; ++round) {
        rig.send(epoll_who(0), "x");
        CHECK(rig.wait(epoll_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::sent);
    }
    CHECK(epoll_sys::of(epoll_call::epoll_wait) == 5);
    CHECK(epoll_sys::last_timeout_ms == 0);
    rig.seen.clear();
    rig.close(epoll_who(0));
}

TEST_CASE("epoll closes in order with FIN and aborts with a reset") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    rig.send(epoll_who(0), "bye");
    rig.close(epoll_who(0));
    CHECK(client.receive(10) == "bye");
    epoll_client aborted = door.connect(epoll_who(0, 2));
    rig.receive(epoll_who(0, 2));
    rig.close(epoll_who(0, 2), true);
    CHECK(aborted.receive(1) == "!" + std::to_string(ECONNRESET));
    epoll_client half = door.connect(epoll_who(0, 3));
    rig.backend.end_send(epoll_who(0, 3));
    CHECK(half.receive(1).empty());
    half.send("reply");
    rig.receive(epoll_who(0, 3));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "reply");
    rig.close(epoll_who(0, 3));
}

TEST_CASE("epoll gives closed alone where results were not taken yet") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.send("unread");
    rig.quiet();
    rig.receive(epoll_who(0));
    rig.send(epoll_who(0), "x");
    rig.backend.start_close(epoll_who(0), false);
    CHECK(rig.wait(0) == 1);
    CHECK(rig.out[0].kind == event_kind::closed);
    CHECK(rig.out[0].op == operation::close);
    rig.seen.clear();
    rig.quiet();
}

// ---- buffers

TEST_CASE("epoll serves receives without a buffer first come first served") {
    epoll_rig rig(1);
    epoll_door door(rig);
    std::vector<epoll_client> clients;
    for (std::uint32_t index = 0; index < 5; ++index) {
        clients.push_back(door.connect(epoll_who(index)));
        rig.receive(epoll_who(index));
    }
    rig.quiet();
    const std::uint32_t order[] = {3, 0, 4, 1, 2};
    for (const std::uint32_t index : order) {
        clients[index].send(std::to_string(index));
        rig.wait(epoll_long_ns);
    }
    REQUIRE(rig.seen.size() == 1);  // the one buffer went to the first
    CHECK_FALSE(rig.backend.ready());
    rig.backend.start_close(epoll_who(4), false);  // taken out of the middle
    CHECK(rig.backend.ready());
    std::vector<std::uint32_t> served;
    while (served.size() < 4) {
        const event received = rig.until(event_kind::received);
        served.push_back(received.who.index());
        CHECK(rig.text_of(received) == std::to_string(received.who.index()));
        CHECK(rig.backend.ready() == (served.size() < 4));
    }
    CHECK(served == std::vector<std::uint32_t>{3, 0, 1, 2});
    for (const std::uint32_t index : {0u, 1u, 2u, 3u}) {
        rig.close(epoll_who(index));
    }
}

TEST_CASE("epoll does not spin while datagrams and bytes wait for a buffer") {
    epoll_rig rig(1);
    const netio::os_handle socket = epoll_backend::open_datagram(netio::loopback_ipv4(0), {});
    REQUIRE(socket);
    const netio::endpoint there = epoll_backend::local_of(socket.handle).value;
    REQUIRE(rig.backend.start_receive_from(socket.handle, epoll_who(0)));
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    client.send("taken");
    rig.receive(epoll_who(0));
    const event taken = rig.until(event_kind::received);
    rig.backend.start_send_to(socket.handle, epoll_who(0), netio::as_bytes("datagram"), there);
    rig.until(event_kind::sent);
    rig.wait(0);
    client.send("bytes");
    rig.receive(epoll_who(0));
    rig.quiet();
    epoll_sys::reset();
    rig.wait(5'000'000);
    rig.wait(5'000'000);
    CHECK(epoll_sys::of(epoll_call::epoll_wait) == 2);
    CHECK(rig.seen.empty());
    rig.text_of(taken);
    const event datagram = rig.until(event_kind::received);
    CHECK(datagram.op == operation::receive_from);
    CHECK(rig.text_of(datagram) == "datagram");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "bytes");
    rig.backend.start_send_to(socket.handle, epoll_who(0), netio::as_bytes("again"), there);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "again");
    rig.backend.stop_receive_from(epoll_who(0));
    rig.until(event_kind::closed);
    epoll_backend::close_handle(socket.handle);
    rig.close(epoll_who(0));
}

#endif
