// What only the epoll backend can show: its system calls counted and failed one by one, the edges
// it relies on, stale events, running out of descriptors, wake-ups.
#include "netio.hpp"
#include "tests/sockets.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <vector>

namespace {

using netio_test::plain::open_handles;
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
    static inline bool fail_changes = false;      // of the registration
    static inline void (*on_receive)() = nullptr;  // just before it
    static inline void (*on_write_wake)() = nullptr;
    static inline std::atomic<int> yields = 0;

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
        fail_changes = false;
        on_receive = nullptr;
        on_write_wake = nullptr;
        yields = 0;
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
        if (on_receive != nullptr) {
            on_receive();
        }
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
        if (fail_changes) {
            errno = ENOSPC;
            return -1;
        }
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
        if (on_write_wake != nullptr) {
            on_write_wake();
        }
        return enter(epoll_call::write_wake) ? real::write_wake(to) : -1;
    }
    static void yield() noexcept {
        ++yields;
        real::yield();
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
    std::size_t descriptors_before;
    event out[32];
    std::vector<event> seen;

    explicit epoll_rig(std::uint32_t input_quota = buffers / 2) {
        epoll_sys::reset();
        descriptors_before = open_handles();
        pool.attach(pool_bytes.data(), pool_links.data(), buffers, buffer_bytes, input_quota,
                    buffers - buffers / 2, false);
        REQUIRE(backend.open(memory(), epoll_sizes, pool));
    }
    ~epoll_rig() {
        epoll_sys::reset();
        backend.close();
        CHECK(open_handles() == descriptors_before);
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
    /// Waits until such an event comes and takes it out of `seen`.
    event until(event_kind kind) {
        const std::uint64_t until_ns = epoll_sys::now_ns() + 2 * epoll_long_ns;
        while (epoll_sys::now_ns() < until_ns) {
            for (std::size_t at = 0; at < seen.size(); ++at) {
                if (seen[at].kind == kind) {
                    const event found = seen[at];
                    seen.erase(seen.begin() + static_cast<std::ptrdiff_t>(at));
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
        epoll_backend::close_handle(handle.handle, false);
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
        epoll_backend::close_handle(each.handle, false);
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
    epoll_backend::close_handle(accepted, false);
    rig.backend.stop_accept(epoll_who(0));
    epoll_backend::close_handle(made.handle, false);
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
    rig.backend.stop_receive(epoll_who(0));  // as if that event were still unread
    rig.quiet();
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
    CHECK(rig.backend.stale_count() == 1);
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
    rig.seen.clear();
    const std::uint32_t order[] = {3, 0, 4, 1, 2};
    for (const std::uint32_t index : order) {
        clients[index].send(std::to_string(index));
        rig.wait(epoll_long_ns);
    }
    REQUIRE(rig.seen.size() == 1);  // the one buffer went to the first
    CHECK_FALSE(rig.backend.ready());
    rig.close(epoll_who(4));  // taken out of the middle
    CHECK_FALSE(rig.backend.ready());
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

TEST_CASE("epoll lets nobody who comes later have a buffer before those who wait") {
    epoll_rig rig(4);
    epoll_door door(rig);
    std::vector<epoll_client> clients;
    for (std::uint32_t index = 0; index < 4; ++index) {
        clients.push_back(door.connect(epoll_who(index)));
        rig.receive(epoll_who(index));
    }
    std::vector<std::uint32_t> taken;
    while (rig.pool.room(netio::side::input) != 0) {
        taken.push_back(rig.pool.take(netio::side::input));
    }
    for (std::uint32_t index = 0; index < 3; ++index) {
        clients[index].send("x");
        rig.quiet();
    }
    for (const std::uint32_t buffer : taken) {
        rig.pool.give(buffer, netio::side::input, 0);
    }
    clients[3].send("x");  // seen in the second wait, which serves the second one of those three
    for (int turn = 0; turn < 6; ++turn) {
        rig.wait(0, 4);
    }
    std::string order;
    for (const event& each : rig.seen) {
        if (each.kind == event_kind::received) {
            order += std::to_string(each.who.index());
            rig.text_of(each);
        }
    }
    CHECK(order == "0123");
    rig.seen.clear();
    for (std::uint32_t index = 0; index < 4; ++index) {
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
    const std::uint64_t begin_ns = epoll_sys::now_ns();
    rig.wait(5'000'000);
    rig.wait(5'000'000);
    CHECK(epoll_sys::now_ns() - begin_ns >= 10'000'000);  // it really slept both times
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
    epoll_backend::close_handle(socket.handle, false);
    rig.close(epoll_who(0));
}

// ---- connecting

namespace {

/// A port of loopback that nobody listens on.
std::uint16_t epoll_dead_port() {
    const netio::os_handle made = epoll_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const std::uint16_t port = epoll_backend::local_of(made.handle).value.port;
    epoll_backend::close_handle(made.handle, false);
    return port;
}

}  // namespace

TEST_CASE("epoll connects, and the connection is attached at once") {
    epoll_rig rig;
    epoll_door door(rig);
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(door.port), {}}, {}, epoll_who(5)));
    const event connected = rig.until(event_kind::connected);
    CHECK(connected.who == epoll_who(5));
    CHECK(connected.op == operation::connect);
    CHECK(connected.handle >= 0);
    const event accepted = rig.until(event_kind::accepted);
    REQUIRE(rig.backend.attach(accepted.handle, epoll_who(6)));
    rig.send(epoll_who(6), "first word");
    rig.receive(epoll_who(5));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "first word");
    rig.close(epoll_who(5));
    rig.close(epoll_who(6));
}

TEST_CASE("epoll reaches an IPv4 listener by its mapped address") {
    epoll_rig rig;
    epoll_door door(rig);
    const netio::endpoint to = netio::mapped(netio::loopback_ipv4(door.port));
    REQUIRE(rig.backend.start_connect({to, {}}, {}, epoll_who(0)));
    rig.until(event_kind::connected);
    rig.close(epoll_who(0));
    epoll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

TEST_CASE("epoll reports a refused connect once and holds nothing of it") {
    epoll_rig rig;
    const std::uint16_t port = epoll_dead_port();
    const std::size_t before = open_handles();
    for (std::uint32_t round = 1; round < 4; ++round) {
        const token who = epoll_who(0, round);
        REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(port), {}}, {}, who));
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.who == who);
        CHECK(failed.op == operation::connect);
        CHECK(failed.why == netio::error::connection_refused);
        CHECK(failed.os_code == ECONNREFUSED);
        rig.quiet();
        rig.close(who);  // the slot is taken until then
        CHECK(open_handles() == before);
    }
}

TEST_CASE("epoll closes a connection that is still being made") {
    epoll_rig rig;
    const std::uint16_t port = epoll_dead_port();
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(port), {}}, {}, epoll_who(0)));
    rig.close(epoll_who(0), true);
    rig.quiet();
    CHECK(rig.seen.empty());
}

TEST_CASE("epoll connects to unix listeners, and a full one is an error at once") {
    epoll_rig rig;
    const std::string path = "@netio-epoll-test-" + std::to_string(::getpid());
    netio::listen_options options;
    options.backlog = 1;
    const netio::os_handle made = epoll_backend::listen({{}, path}, options);
    REQUIRE(made);
    netio::os_status status{};
    std::uint32_t connected = 0;
    for (; connected < 10; ++connected) {
        status = rig.backend.start_connect({{}, path}, {}, epoll_who(connected));
        if (!status) {
            break;
        }
        CHECK(rig.until(event_kind::connected).who == epoll_who(connected));
    }
    CHECK(connected == 2);
    CHECK(status.why == netio::error::address_in_use);
    CHECK(status.os_code == EAGAIN);
    REQUIRE(rig.backend.start_accept(made.handle, epoll_who(1)));
    for (std::uint32_t index = 0; index < connected; ++index) {
        const event accepted = rig.until(event_kind::accepted);
        CHECK(accepted.peer.family == netio::address_family::unix_path);
        REQUIRE(rig.backend.attach(accepted.handle, epoll_who(10 + index)));
        rig.send(epoll_who(10 + index), "hello");
        rig.receive(epoll_who(index));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "hello");
        rig.close(epoll_who(index));
        rig.receive(epoll_who(10 + index));
        rig.until(event_kind::ended);
        rig.close(epoll_who(10 + index));
    }
    rig.backend.stop_accept(epoll_who(1));
    epoll_backend::close_handle(made.handle, false);
    CHECK(rig.backend.start_connect({{}, path}, {}, epoll_who(0)).why ==
          netio::error::connection_refused);
}

// ---- accepting under stress

TEST_CASE("epoll goes on accepting after every error that belongs to one client") {
    const int codes[] = {ECONNABORTED, EPROTO,       EINTR,      ENETDOWN,     EPERM,
                         ENOPROTOOPT,  EHOSTDOWN,    ENONET,     EHOSTUNREACH, EOPNOTSUPP,
                         ENETUNREACH,  ETIMEDOUT,    ECONNRESET};
    epoll_rig rig;
    epoll_door door(rig);
    for (const int code : codes) {
        CAPTURE(code);
        epoll_client client(door.port);
        epoll_sys::plan(epoll_call::accept, code);
        epoll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        rig.quiet();
    }
}

TEST_CASE("epoll turns accepting off with one failed event on any other error") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client(door.port);
    epoll_sys::plan(epoll_call::accept, EINVAL);
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.who == door.who);
    CHECK(failed.op == operation::accept);
    CHECK(failed.why == netio::error::os_failure);
    CHECK(failed.os_code == EINVAL);
    rig.backend.stop_accept(door.who);  // as if that event were still unread
    rig.quiet();
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    epoll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

TEST_CASE("epoll closes the waiting client by its spare descriptor when descriptors run out") {
    for (const int code : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
        CAPTURE(code);
        epoll_rig rig;
        epoll_door door(rig);
        epoll_client client(door.port);
        epoll_sys::plan(epoll_call::accept, code);
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.who == door.who);
        CHECK(failed.why == netio::error::descriptors_empty);
        CHECK(failed.os_code == code);
        CHECK(client.receive(1).empty());
        epoll_client next(door.port);
        rig.quiet();  // off, though somebody waits
        epoll_sys::reset();
        REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
        epoll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        CHECK(epoll_sys::of(epoll_call::open_spare) == 0);  // it was taken back at once
    }
}

TEST_CASE("epoll lives without a spare descriptor and takes one back later") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client(door.port);
    epoll_sys::plan(epoll_call::accept, EMFILE, 1, 1);
    rig.until(event_kind::failed);
    CHECK(client.receive(1).empty());
    epoll_client second(door.port);
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    epoll_sys::plan(epoll_call::accept, EMFILE, 1, 2);  // the spare one helps nothing
    CHECK(rig.until(event_kind::failed).why == netio::error::descriptors_empty);
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    epoll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

namespace {

/// Runs `body` in a child, where a descriptor limit or a user may be changed; its exit code.
template <class Body>
int epoll_in_child(Body body) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        ::_exit(body());
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// In a child with 64 descriptors: fills them, then lets a client wait for 200 ms.
int epoll_run_out_of_descriptors() {
    epoll_rig rig;
    epoll_door door(rig);
    const rlimit bound{64, 64};
    if (::setrlimit(RLIMIT_NOFILE, &bound) != 0) {
        return 1;
    }
    std::vector<epoll_client> clients;
    clients.emplace_back(door.port);
    clients.emplace_back(door.port);
    std::vector<int> fill;
    for (int made = ::dup(2); made >= 0; made = ::dup(2)) {
        fill.push_back(made);
    }
    epoll_sys::reset();
    const event failed = rig.until(event_kind::failed);
    if (failed.why != netio::error::descriptors_empty || failed.os_code != EMFILE) {
        return 2;
    }
    const std::uint64_t until_ns = epoll_sys::now_ns() + 200'000'000;
    while (epoll_sys::now_ns() < until_ns) {
        if (rig.wait(20'000'000) != 0) {
            return 3;
        }
    }
    if (epoll_sys::of(epoll_call::accept) > 2 || epoll_sys::of(epoll_call::epoll_wait) > 15) {
        return 4;
    }
    if (!clients[0].receive(1).empty()) {
        return 5;
    }
    for (const int each : fill) {
        ::close(each);
    }
    if (!rig.backend.start_accept(door.handle.handle, door.who)) {
        return 6;
    }
    const event accepted = rig.until(event_kind::accepted);
    epoll_backend::close_handle(accepted.handle, false);
    return 0;
}

}  // namespace

TEST_CASE("epoll without descriptors makes two accept calls in 200 ms and recovers") {
    CHECK(epoll_in_child(epoll_run_out_of_descriptors) == 0);
}

// ---- datagrams

namespace {

struct epoll_mailbox {
    epoll_rig& rig;
    netio::os_handle handle;
    netio::endpoint there;
    token who;

    explicit epoll_mailbox(epoll_rig& of, std::uint32_t index = 0)
        : rig(of), who(epoll_who(index)) {
        handle = epoll_backend::open_datagram(netio::loopback_ipv4(0), {});
        REQUIRE(handle);
        there = epoll_backend::local_of(handle.handle).value;
        REQUIRE(rig.backend.start_receive_from(handle.handle, who));
    }
    ~epoll_mailbox() {
        rig.backend.stop_receive_from(who);
        const event last = rig.until(event_kind::closed);
        CHECK(last.op == operation::receive_from);
        CHECK(last.who == who);
        epoll_backend::close_handle(handle.handle, false);
    }
    void post(std::string_view text, const netio::endpoint& to, std::uint32_t send = 0) {
        rig.backend.start_send_to(handle.handle, epoll_who(send), netio::as_bytes(text), to);
    }
};

}  // namespace

TEST_CASE("epoll answers a lone datagram with three system calls") {
    epoll_rig rig;
    epoll_mailbox mailbox(rig);
    epoll_client peer;
    peer.descriptor = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    netio::detail::socket_address to;
    const socklen_t size = netio::detail::to_socket_address(mailbox.there, to);
    REQUIRE(::connect(peer.descriptor, &to.any, size) == 0);
    rig.quiet();
    for (int round = 0; round < 80; ++round) {
        if (round == 16) {
            epoll_sys::reset();  // it has learnt by now that nobody queues
        }
        peer.send("question");
        const event asked = rig.until(event_kind::received);
        CHECK(asked.op == operation::receive_from);
        CHECK_FALSE(bool{asked.truncated});
        CHECK(asked.peer.port != 0);
        CHECK(rig.text_of(asked) == "question");
        mailbox.post("answer", asked.peer);
        const event sent = rig.until(event_kind::sent);
        CHECK(sent.op == operation::send_to);
        CHECK(sent.byte_count == 6);
        CHECK(peer.receive(6) == "answer");
    }
    CHECK(epoll_sys::of(epoll_call::receive_message) <= 64 + 3);
    CHECK(epoll_sys::total() <= 64 * 3 + 3);
}

TEST_CASE("epoll delivers empty datagrams and says where one was cut") {
    epoll_rig rig;
    epoll_mailbox mailbox(rig);
    mailbox.post("", mailbox.there);
    const event empty = rig.until(event_kind::received);
    CHECK(empty.byte_count == 0);
    CHECK(rig.text_of(empty).empty());
    mailbox.post(std::string(1024, 'f'), mailbox.there, 1);
    const event fitting = rig.until(event_kind::received);
    CHECK(fitting.byte_count == 1024);
    CHECK_FALSE(bool{fitting.truncated});
    rig.text_of(fitting);
    const std::string long_one(1025, 'l');
    mailbox.post(long_one, mailbox.there, 2);
    const event cut = rig.until(event_kind::received);
    CHECK(cut.byte_count == 1024);
    CHECK(bool{cut.truncated});
    rig.text_of(cut);
}

TEST_CASE("epoll takes a burst of datagrams in order and skips errors of earlier sends") {
    epoll_rig rig;
    epoll_mailbox mailbox(rig);
    std::string all;
    for (int burst = 0; burst < 3; ++burst) {
        epoll_sys::reset();
        for (int count = 0; count < 10; ++count) {
            const std::string text(1, static_cast<char>('a' + count));
            mailbox.post(text, mailbox.there);
            rig.wait(0, 4);  // the first one is given along with its `sent`
        }
        epoll_sys::plan(epoll_call::receive_message, ECONNREFUSED);
        for (int turn = 0; turn < 20; ++turn) {
            rig.wait(0);
        }
        for (const event& each : rig.seen) {
            if (each.kind == event_kind::received) {
                all += rig.text_of(each);
            } else {
                CHECK(each.kind == event_kind::sent);
            }
        }
        rig.seen.clear();
    }
    CHECK(all == "abcdefghijabcdefghijabcdefghij");
    epoll_sys::plan(epoll_call::send_to, ECONNREFUSED);
    mailbox.post("after an error", mailbox.there);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "after an error");
}

TEST_CASE("epoll keeps datagrams that find no room until the socket has some") {
    epoll_rig rig;
    for (const bool receiving : {true, false}) {
        CAPTURE(receiving);
        epoll_mailbox mailbox(rig, 0);
        const netio::os_handle other = epoll_backend::open_datagram(netio::loopback_ipv4(0), {});
        const netio::socket_handle from = receiving ? mailbox.handle.handle : other.handle;
        epoll_sys::plan(epoll_call::send_to, EAGAIN, 1, 2);
        rig.backend.start_send_to(from, epoll_who(0), netio::as_bytes("one"), mailbox.there);
        rig.backend.start_send_to(from, epoll_who(1), netio::as_bytes("two"), mailbox.there);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "one");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "two");
        rig.seen.clear();
        epoll_sys::reset();
        rig.quiet();
        CHECK(epoll_sys::of(epoll_call::epoll_wait) == 4);
        mailbox.post("three", mailbox.there);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "three");
        epoll_backend::close_handle(other.handle, false);
    }
}

TEST_CASE("epoll stops receiving from a socket whose datagrams still wait to be sent") {
    epoll_rig rig;
    epoll_mailbox there(rig, 0);
    const netio::os_handle made = epoll_backend::open_datagram(netio::loopback_ipv4(0), {});
    REQUIRE(rig.backend.start_receive_from(made.handle, epoll_who(1)));
    epoll_sys::plan(epoll_call::send_to, EAGAIN, 1, 1);
    rig.backend.start_send_to(made.handle, epoll_who(0), netio::as_bytes("late"), there.there);
    rig.backend.stop_receive_from(epoll_who(1));
    CHECK(rig.until(event_kind::closed).who == epoll_who(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "late");
    REQUIRE(rig.backend.start_receive_from(made.handle, epoll_who(1, 2)));
    epoll_client peer;
    there.post("back", epoll_backend::local_of(made.handle).value, 1);
    const event back = rig.until(event_kind::received);
    CHECK(back.who == epoll_who(1, 2));
    rig.text_of(back);
    rig.backend.stop_receive_from(epoll_who(1, 2));
    rig.until(event_kind::closed);
    epoll_backend::close_handle(made.handle, false);
}

TEST_CASE("epoll fails a datagram without an address or too large to send") {
    epoll_rig rig;
    epoll_mailbox mailbox(rig);
    mailbox.post("nowhere", {});
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::send_to);
    CHECK(failed.why == netio::error::address_invalid);
    const std::string huge(70'000, 'x');
    mailbox.post(huge, mailbox.there, 1);
    CHECK(rig.until(event_kind::failed).why == netio::error::too_long);
}

// ---- waking

TEST_CASE("epoll wakes coalesce and cost no system call while the loop is awake") {
    epoll_rig rig;
    epoll_sys::reset();
    rig.backend.wake();
    rig.backend.wake();
    CHECK(rig.backend.ready());
    CHECK(epoll_sys::total() == 0);
    CHECK(rig.wait(epoll_long_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    CHECK(rig.out[0].op == operation::wake);
    CHECK_FALSE(rig.backend.ready());
    CHECK(epoll_sys::total() == 0);
    CHECK(rig.wait(0) == 0);
}

TEST_CASE("epoll wake ends a wait of another thread with one write") {
    epoll_rig rig;
    epoll_sys::reset();
    std::thread waker([&] {
        while (epoll_sys::of(epoll_call::epoll_wait) == 0) {
        }
        rig.backend.wake();  // the loop announced its sleep before it made the call
        rig.backend.wake();
    });
    const std::uint64_t begin_ns = epoll_sys::now_ns();
    CHECK(rig.wait(epoll_long_ns) == 1);
    CHECK(epoll_sys::now_ns() - begin_ns < epoll_long_ns);
    CHECK(rig.out[0].kind == event_kind::woken);
    waker.join();
    CHECK(epoll_sys::of(epoll_call::write_wake) == 1);
    rig.wait(0);  // the second wake may have come after the sleep
    rig.wait(0);
    CHECK(rig.wait(3'000'000) == 0);  // nothing spins although the counter is never read
    rig.seen.clear();
}

TEST_CASE("epoll loses no wake-up of a million posts of four threads [threads]") {
    epoll_rig rig;
    constexpr std::uint64_t posts_each = 250'000;
    std::atomic<std::uint64_t> posted = 0;
    std::uint64_t taken = 0;
    std::vector<std::thread> posters;
    for (int count = 0; count < 4; ++count) {
        posters.emplace_back([&] {
            for (std::uint64_t post = 0; post < posts_each; ++post) {
                posted.fetch_add(1, std::memory_order_relaxed);
                rig.backend.wake();
            }
        });
    }
    int early = 0;
    while (taken < 4 * posts_each) {
        const std::uint64_t begin_ns = epoll_sys::now_ns();
        const std::uint32_t count = rig.backend.wait(rig.out, 10 * epoll_long_ns);
        if (epoll_sys::now_ns() - begin_ns >= 10 * epoll_long_ns) {
            FAIL("a wake-up was lost");
        }
        if (count == 0) {
            ++early;
            continue;
        }
        taken = posted.load(std::memory_order_relaxed);
    }
    for (std::thread& each : posters) {
        each.join();
    }
    CHECK(taken == 4 * posts_each);
    CHECK(epoll_sys::of(epoll_call::write_wake) <= epoll_sys::of(epoll_call::epoll_wait));
}

TEST_CASE("epoll writes no wake-up after close, whoever still posts [threads]") {
    for (int round = 0; round < 20; ++round) {
        std::atomic<bool> stop = false;
        std::atomic<int> posting = 0;
        std::vector<std::thread> posters;
        int pipes[2];
        REQUIRE(::pipe2(pipes, O_CLOEXEC | O_NONBLOCK) == 0);
        {
            epoll_rig rig;
            for (int count = 0; count < 4; ++count) {
                posters.emplace_back([&] {
                    ++posting;
                    while (!stop) {
                        rig.backend.wake();
                        ::sched_yield();  // or two cores are busy with waking alone
                    }
                });
            }
            while (posting < 4) {
                ::sched_yield();
            }
            for (int turn = 0; turn < 10; ++turn) {
                rig.wait(1'000'000);
            }
            rig.seen.clear();
            rig.backend.close();
            // Whoever opens a descriptor now may get the number of the closed wake-up one.
            std::vector<int> reused;
            for (int count = 0; count < 4; ++count) {
                reused.push_back(::fcntl(pipes[1], F_DUPFD_CLOEXEC, 0));
            }
            for (int turn = 0; turn < 100; ++turn) {
                ::sched_yield();
            }
            stop = true;
            for (std::thread& each : posters) {
                each.join();
            }
            for (const int each : reused) {
                ::close(each);
            }
        }
        char letter = 0;
        CHECK(::read(pipes[0], &letter, 1) == -1);
        ::close(pipes[0]);
        ::close(pipes[1]);
    }
}

namespace {

std::atomic<int> epoll_closes_seen = -1;

}  // namespace

TEST_CASE("epoll close waits for a waker that is just writing [threads]") {
    epoll_rig rig;
    rig.backend.wait_handle();  // asleep, so a wake writes
    epoll_sys::reset();
    epoll_closes_seen = -1;
    epoll_sys::on_write_wake = [] {
        epoll_closes_seen = 0;
        while (epoll_sys::yields == 0 && epoll_sys::of(epoll_call::close) == 0) {
        }
        epoll_closes_seen = epoll_sys::of(epoll_call::close);
    };
    std::thread waker([&] { rig.backend.wake(); });
    while (epoll_closes_seen == -1) {
    }
    rig.backend.close();
    waker.join();
    CHECK(epoll_closes_seen == 0);  // nothing was closed before it had written
}

namespace {

epoll_backend* epoll_signalled = nullptr;

}  // namespace

TEST_CASE("epoll can be woken by a signal handler, which keeps errno") {
    epoll_rig rig;
    epoll_signalled = &rig.backend;
    struct sigaction action{};
    action.sa_handler = [](int) { epoll_signalled->wake(); };
    struct sigaction before{};
    ::sigaction(SIGUSR1, &action, &before);
    errno = 12345;
    ::raise(SIGUSR1);  // just before the wait: it must not sleep
    CHECK(errno == 12345);
    CHECK(rig.wait(netio::forever_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    rig.backend.wait_handle();  // asleep from now on: this one writes
    ::raise(SIGUSR1);
    CHECK(errno == 12345);
    CHECK(rig.wait(netio::forever_ns) == 1);
    rig.seen.clear();
    ::sigaction(SIGUSR1, &before, nullptr);
    epoll_signalled = nullptr;
}

TEST_CASE("epoll signals a foreign loop when it is woken, and is quiet otherwise") {
    epoll_rig rig;
    pollfd foreign{static_cast<int>(rig.backend.wait_handle()), POLLIN, 0};
    CHECK(::poll(&foreign, 1, 0) == 0);
    for (int round = 0; round < 3; ++round) {
        epoll_sys::reset();
        rig.backend.wake();
        rig.backend.wake();
        CHECK(epoll_sys::of(epoll_call::write_wake) == 1);
        CHECK(rig.backend.ready());
        CHECK(::poll(&foreign, 1, 1000) == 1);
        int turns = 0;
        std::uint32_t woken = 0;
        while (::poll(&foreign, 1, 0) == 1 || rig.backend.ready()) {
            woken += rig.wait(0);
            REQUIRE(++turns < 4);
        }
        CHECK(woken == 1);
        rig.seen.clear();
    }
    epoll_door door(rig);
    CHECK(::poll(&foreign, 1, 0) == 0);
    epoll_client client(door.port);
    CHECK(::poll(&foreign, 1, 1000) == 1);
    epoll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

// ---- time-outs and failures

TEST_CASE("epoll rounds time-outs up and never blocks for zero") {
    epoll_rig rig;
    rig.wait(0);
    CHECK(epoll_sys::last_timeout_ms == 0);
    rig.wait(1);
    CHECK(epoll_sys::last_timeout_ms == 1);
    rig.wait(1'000'000);
    CHECK(epoll_sys::last_timeout_ms == 1);
    rig.wait(1'000'001);
    CHECK(epoll_sys::last_timeout_ms == 2);
    epoll_sys::plan(epoll_call::epoll_wait, EINTR, 1, 2);
    CHECK(rig.wait(netio::forever_ns) == 0);  // interrupted: early, without an event
    CHECK(epoll_sys::last_timeout_ms == -1);
    CHECK(rig.wait(netio::forever_ns - 1) == 0);
    CHECK(epoll_sys::last_timeout_ms == INT_MAX);
}

TEST_CASE("epoll shows no interruption and no would-block to anybody") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    for (const epoll_call call :
         {epoll_call::receive, epoll_call::send, epoll_call::send_message}) {
        rig.receive(epoll_who(0));
        client.send("x");
        epoll_sys::plan(call, EINTR, 1, 3);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
        rig.send(epoll_who(0), "y");
        CHECK(rig.until(event_kind::sent).byte_count == 1);
        const netio::bytes slices[] = {netio::as_bytes("a"), netio::as_bytes("b")};
        rig.backend.start_send(epoll_who(0), slices);
        CHECK(rig.until(event_kind::sent).byte_count == 2);
        CHECK(client.receive(3) == "yab");
    }
    rig.receive(epoll_who(0));
    client.send("z");
    epoll_sys::plan(epoll_call::receive, EAGAIN);
    rig.wait(epoll_long_ns);
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    client.send("z");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "zz");
    rig.close(epoll_who(0));
}

TEST_CASE("epoll holds nothing when any call of open fails") {
    for (const epoll_call call :
         {epoll_call::epoll_create, epoll_call::open_wake, epoll_call::epoll_ctl}) {
        std::vector<std::byte> raw(epoll_rig::memory_bytes + 64);
        const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
        const netio::mutable_bytes memory{raw.data() + (64 - at % 64) % 64,
                                          epoll_rig::memory_bytes};
        netio::buffer_pool pool;
        epoll_backend backend;
        epoll_sys::reset();
        const std::size_t before = open_handles();
        epoll_sys::plan(call, EMFILE);
        const netio::os_status status = backend.open(memory, epoll_sizes, pool);
        CHECK(status.why == netio::error::descriptors_empty);
        CHECK(status.os_code == EMFILE);
        CHECK(open_handles() == before);
        backend.close();  // of one that is not open: nothing
        REQUIRE(backend.open(memory, epoll_sizes, pool));  // and now it works
        backend.close();
        CHECK(open_handles() == before);
    }
}

TEST_CASE("epoll opens without a spare descriptor too") {
    epoll_sys::reset();
    std::vector<std::byte> raw(epoll_rig::memory_bytes + 64);
    const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
    netio::buffer_pool pool;
    epoll_backend backend;
    epoll_sys::plan(epoll_call::open_spare, EMFILE);
    CHECK(backend.open({raw.data() + (64 - at % 64) % 64, epoll_rig::memory_bytes}, epoll_sizes,
                       pool));
    backend.close();
}

TEST_CASE("epoll holds nothing when any call of a start fails") {
    epoll_rig rig;
    const netio::os_handle door = epoll_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const netio::os_handle box = epoll_backend::open_datagram(netio::loopback_ipv4(0), {});
    const netio::endpoint to = epoll_backend::local_of(door.handle).value;
    const std::size_t before = open_handles();
    epoll_sys::plan(epoll_call::epoll_ctl, ENOSPC, 1, 4);
    CHECK(rig.backend.start_accept(door.handle, epoll_who(0)).os_code == ENOSPC);
    CHECK(rig.backend.attach(door.handle, epoll_who(0)).os_code == ENOSPC);
    CHECK(rig.backend.start_receive_from(box.handle, epoll_who(0)).os_code == ENOSPC);
    CHECK(rig.backend.start_connect({to, {}}, {}, epoll_who(0)).why ==
          netio::error::kernel_memory_empty);
    for (const epoll_call call :
         {epoll_call::socket, epoll_call::setsockopt, epoll_call::connect}) {
        epoll_sys::plan(call, ENOBUFS);
        CHECK(rig.backend.start_connect({to, {}}, {}, epoll_who(0)).os_code == ENOBUFS);
    }
    epoll_sys::plan(epoll_call::connect, EINTR);  // as good as in progress
    REQUIRE(rig.backend.start_connect({to, {}}, {}, epoll_who(0)));
    epoll_sys::plan(epoll_call::getsockopt, EIO);
    CHECK(rig.until(event_kind::failed).os_code == EIO);
    rig.close(epoll_who(0));
    rig.quiet();
    CHECK(open_handles() == before);
    REQUIRE(rig.backend.start_accept(door.handle, epoll_who(0)));  // all slots are free still
    REQUIRE(rig.backend.start_receive_from(box.handle, epoll_who(0)));
    rig.backend.stop_accept(epoll_who(0));
    rig.backend.stop_receive_from(epoll_who(0));
    rig.until(event_kind::closed);
    epoll_backend::close_handle(door.handle, false);
    epoll_backend::close_handle(box.handle, false);
}

TEST_CASE("epoll reports a send that can't be waited for as failed") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    struct full_sys_guard {
        ~full_sys_guard() { epoll_sys::reset(); }
    } guard;
    const std::string big(16 * 1024 * 1024, 'x');
    epoll_sys::plan(epoll_call::epoll_ctl, ENOMEM);
    for (;;) {  // until both socket buffers are full
        rig.send(epoll_who(0), big);
        while (rig.wait(epoll_long_ns) == 0) {
        }
        rig.seen.clear();
        if (rig.out[0].kind == event_kind::failed) {
            break;
        }
    }
    CHECK(rig.out[0].op == operation::send);
    CHECK(rig.out[0].os_code == ENOMEM);
    rig.close(epoll_who(0), true);
}

TEST_CASE("epoll close ends everything that is still attached") {
    epoll_rig rig;
    epoll_client client;
    {
        epoll_door door(rig);
        client = door.connect(epoll_who(0));
    }
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(epoll_dead_port()), {}}, {},
                                      epoll_who(1)));
    rig.backend.close();
    CHECK(client.receive(1).empty());
}

TEST_CASE("epoll is there on this kernel") {
    CHECK(epoll_backend::available().offered);
    epoll_sys::plan(epoll_call::epoll_create, ENOSYS);
    const netio::availability missing = epoll_backend::available();
    CHECK_FALSE(missing.offered);
    CHECK(std::string_view(missing.missing) == "epoll_create1");
    epoll_sys::plan(epoll_call::epoll_create, EMFILE);
    CHECK(epoll_backend::available().offered);
    epoll_sys::reset();
    CHECK(epoll_backend::connection_bytes == 40);
}

// ---- corners

TEST_CASE("epoll stops receives that wait for a buffer") {
    epoll_rig rig(1);
    epoll_mailbox mailbox(rig);
    epoll_door door(rig);
    epoll_client first = door.connect(epoll_who(0));
    epoll_client second = door.connect(epoll_who(1));
    rig.receive(epoll_who(0));
    first.send("taken");
    const event taken = rig.until(event_kind::received);
    rig.receive(epoll_who(1));
    second.send("kept");
    rig.wait(epoll_long_ns);
    {
        epoll_mailbox other(rig, 1);  // stopped while its datagram waits
        other.post("lost", other.there);
        rig.until(event_kind::sent);
        rig.wait(0);
        CHECK(rig.seen.empty());
    }
    rig.backend.stop_receive(epoll_who(1));
    CHECK(rig.until(event_kind::received).byte_count == 0);
    rig.text_of(taken);
    rig.quiet();
    CHECK_FALSE(rig.backend.ready());
    rig.receive(epoll_who(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "kept");
    rig.close(epoll_who(0));
    rig.close(epoll_who(1));
}

TEST_CASE("epoll goes on with a receive of much credit that had waited for a buffer") {
    epoll_rig rig(1);
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send(std::string(3000, 'x'));
    rig.receive(epoll_who(0), 3000);
    rig.quiet();
    rig.pool.give(buffer, netio::side::input, 0);
    std::size_t got = 0;
    while (got < 3000) {
        got += rig.text_of(rig.until(event_kind::received)).size();
    }
    CHECK(got == 3000);
    rig.close(epoll_who(0));
}

TEST_CASE("epoll keeps for the next wait what has no room in this one") {
    epoll_rig rig;
    epoll_door door(rig);
    std::vector<epoll_client> clients;
    for (std::uint32_t index = 0; index < 6; ++index) {
        clients.push_back(door.connect(epoll_who(index)));
        clients[index].send("x");
    }
    rig.quiet();
    for (std::uint32_t index = 0; index < 6; ++index) {
        rig.send(epoll_who(index), "y");
        if (index != 0) {  // an odd number of events, so that some connection is cut in two
            rig.receive(epoll_who(index));
        }
        if (index % 2 == 0 && index != 0) {
            rig.backend.stop_receive(epoll_who(index));
        }
    }
    while (rig.seen.size() < 11) {
        CHECK(rig.wait(0, 4) != 0);
    }
    std::uint32_t sent = 0;
    std::string text;
    std::uint32_t stopped = 0;
    for (const event& each : rig.seen) {
        sent += each.kind == event_kind::sent;
        if (each.buffer_index != netio::none_index) {
            text += rig.text_of(each);
        } else {
            stopped += each.kind == event_kind::received && each.disarmed;
        }
    }
    rig.seen.clear();
    rig.quiet();
    CHECK(sent == 6);
    CHECK(text == "xxx");
    CHECK(stopped == 2);
    for (std::uint32_t index = 0; index < 6; ++index) {
        rig.close(epoll_who(index));
    }
}

TEST_CASE("epoll drops events of listeners and datagram sockets that were stopped meanwhile") {
    epoll_rig rig;
    epoll_door door(rig);
    std::vector<epoll_client> clients;
    for (std::uint32_t index = 0; index < 4; ++index) {
        clients.push_back(door.connect(epoll_who(index)));
        rig.receive(epoll_who(index));
    }
    rig.quiet();
    {
        epoll_mailbox mailbox(rig);
        for (epoll_client& client : clients) {
            client.send("x");
        }
        epoll_client late(door.port);
        mailbox.post("datagram", mailbox.there);  // its `sent` takes no room from the first four
        CHECK(rig.wait(epoll_long_ns, 4) == 1);
        CHECK(rig.until(event_kind::sent).byte_count == 8);
        CHECK(rig.wait(epoll_long_ns, 4) == 4);
        rig.backend.stop_accept(door.who);
        door.accepting = false;
        for (std::uint32_t index = 0; index < 4; ++index) {
            CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
        }
    }
    rig.quiet();
    CHECK(rig.backend.stale_count() == 2);
    for (std::uint32_t index = 0; index < 4; ++index) {
        rig.close(epoll_who(index));
    }
}

TEST_CASE("epoll keeps datagrams in order when there is no room again, and fails what it must") {
    epoll_rig rig;
    epoll_mailbox mailbox(rig);
    epoll_sys::plan(epoll_call::send_to, EAGAIN, 1, 4);
    mailbox.post("one", mailbox.there, 0);
    mailbox.post("two", mailbox.there, 1);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "one");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "two");
    rig.seen.clear();
    rig.quiet();
    epoll_sys::plan(epoll_call::send_to, EAGAIN);
    epoll_sys::fail_changes = true;
    mailbox.post("never", mailbox.there, 0);
    epoll_sys::fail_changes = false;
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::send_to);
    CHECK(failed.os_code == ENOSPC);
    rig.quiet();
}

TEST_CASE("epoll does not sleep when it is woken between two looks") {
    epoll_rig rig(1);
    epoll_door door(rig);
    epoll_client client = door.connect(epoll_who(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send("x");
    rig.receive(epoll_who(0));
    rig.quiet();
    rig.pool.give(buffer, netio::side::input, 0);
    epoll_signalled = &rig.backend;
    epoll_sys::on_receive = [] { epoll_signalled->wake(); };
    epoll_sys::plan(epoll_call::receive, EAGAIN);
    CHECK(rig.wait(netio::forever_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    CHECK(epoll_sys::of(epoll_call::write_wake) == 0);
    epoll_sys::on_receive = nullptr;
    epoll_signalled = nullptr;
    rig.seen.clear();
    rig.close(epoll_who(0));
}

#endif
