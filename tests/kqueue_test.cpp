// What only the kqueue backend can show: its system calls counted and failed one by one, changes
// that ride on the wait, events that say how much there is. On Linux over tests/kqueue_double.
#include "netio.hpp"
#include "tests/sockets.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_KQUEUE

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <vector>

namespace {

using netio_test::plain::open_handles;
using netio::event;
using netio::event_kind;
using netio::operation;
using netio::token;

enum class kqueue_call {
    socket, accept, hush, send, send_message, send_to, connect, setsockopt, getsockopt, receive,
    receive_message, shutdown, close, create, wait, change, trigger, flush, open_spare, count_
};

/// Counts every call; one planned call fails instead of being made.
struct kqueue_counting_sys : netio::kqueue_sys {
    using real = netio::kqueue_sys;
    using kernel_event = netio::detail::kqueue_event;
    static inline std::atomic<int> counts[static_cast<int>(kqueue_call::count_)] = {};
    static inline kqueue_call fail_call = kqueue_call::count_;
    static inline int fail_at = 0;     // the n-th such call from now fails
    static inline int fail_until = 0;  // and all up to this one
    static inline int fail_code = 0;
    static inline int refused_filter = 0;  // the kernel refuses kept changes of this filter
    static inline int refused_code = 0;
    static inline int change_count = 0;  // that the last wait made
    static inline int most_changes = 0;  // that one wait made
    static inline bool close_unseen = false;  // the queue keeps the knote, as some emulations do
    static inline bool interrupted = false;  // the next wait, when it has made its changes
    static inline bool peer_is_gone = false;  // accept tells no address
    static inline bool error_is_gone = false;  // somebody asked for the socket's error before
    static inline std::int64_t last_timeout_ns = 0;  // -1 for one without end
    static inline void (*on_receive)() = nullptr;    // just before it
    static inline void (*on_trigger)() = nullptr;
    static inline std::atomic<int> yields = 0;

    static bool enter(kqueue_call which) noexcept {
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
    static void plan(kqueue_call which, int code, int nth = 1, int times = 1) {
        fail_call = which;
        fail_code = code;
        fail_at = nth;
        fail_until = nth + times - 1;
    }
    static void refuse(int filter, int code) {
        refused_filter = filter;
        refused_code = code;
    }
    static void reset() {
        for (auto& each : counts) {
            each = 0;
        }
        fail_call = kqueue_call::count_;
        fail_at = fail_until = 0;
        refused_filter = refused_code = 0;
        on_receive = nullptr;
        on_trigger = nullptr;
        close_unseen = interrupted = peer_is_gone = error_is_gone = false;
        most_changes = 0;
        yields = 0;
    }
    static int of(kqueue_call which) { return counts[static_cast<int>(which)]; }
    static int total() {
        int all = 0;
        for (auto& each : counts) {
            all += each;
        }
        return all;
    }

    static int open_socket(int family, int type) noexcept {
        return enter(kqueue_call::socket) ? real::open_socket(family, type) : -1;
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        const int made = enter(kqueue_call::accept) ? real::accept(from, peer, size) : -1;
        if (peer_is_gone && size != nullptr) {
            *size = 0;
            peer_is_gone = false;
        }
        return made;
    }
    static int hush(int what) noexcept {
        // No call of its own but on macOS; a failure can be planned all the same.
        if (fail_call == kqueue_call::hush) {
            return enter(kqueue_call::hush) ? real::hush(what) : -1;
        }
        return real::hush(what);
    }
    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        return enter(kqueue_call::send) ? real::send(to, from, count) : -1;
    }
    static ssize_t send_message(int to, const msghdr* what) noexcept {
        return enter(kqueue_call::send_message) ? real::send_message(to, what) : -1;
    }
    static ssize_t send_to(int to, const void* from, std::size_t count, const sockaddr* peer,
                           socklen_t size) noexcept {
        return enter(kqueue_call::send_to) ? real::send_to(to, from, count, peer, size) : -1;
    }
    static int connect(int what, const sockaddr* where, socklen_t size) noexcept {
        return enter(kqueue_call::connect) ? real::connect(what, where, size) : -1;
    }
    static int setsockopt(int of, int level, int option, const void* value,
                          socklen_t size) noexcept {
        return enter(kqueue_call::setsockopt) ? real::setsockopt(of, level, option, value, size)
                                              : -1;
    }
    static int getsockopt(int of, int level, int option, void* value, socklen_t* size) noexcept {
        if (error_is_gone) {
            real::getsockopt(of, level, option, value, size);
        }
        return enter(kqueue_call::getsockopt) ? real::getsockopt(of, level, option, value, size)
                                              : -1;
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        if (on_receive != nullptr) {
            on_receive();
        }
        return enter(kqueue_call::receive) ? real::receive(from, into, count) : -1;
    }
    static ssize_t receive_message(int from, msghdr* what) noexcept {
        return enter(kqueue_call::receive_message) ? real::receive_message(from, what) : -1;
    }
    static int shutdown_sending(int of) noexcept {
        return enter(kqueue_call::shutdown) ? real::shutdown_sending(of) : -1;
    }
    static int close(int what) noexcept {
        enter(kqueue_call::close);  // it closes even when it reports an error
        return close_unseen ? static_cast<int>(::syscall(SYS_close, what)) : real::close(what);
    }
    static int kqueue_create() noexcept {
        return enter(kqueue_call::create) ? real::kqueue_create() : -1;
    }
    static int kevent(int in, const kernel_event* changes, int count, kernel_event* out,
                      int count_max, const timespec* timeout) noexcept {
        if (count_max != 0 && out != changes) {
            return wait(in, changes, count, out, count_max, timeout);
        }
        const bool triggers = count_max == 0 && changes[0].fflags == NOTE_TRIGGER;
        if (triggers && on_trigger != nullptr) {
            on_trigger();
        }
        const kqueue_call which = count_max != 0 ? kqueue_call::flush
                                  : triggers     ? kqueue_call::trigger
                                                 : kqueue_call::change;
        const int told =
            enter(which) ? real::kevent(in, changes, count, out, count_max, timeout) : -1;
        for (int at = 0; which == kqueue_call::flush && at < told; ++at) {
            out[at].data = out[at].filter == refused_filter ? refused_code : out[at].data;
        }
        return told;
    }
    static int wait(int in, const kernel_event* changes, int count, kernel_event* out,
                    int count_max, const timespec* timeout) noexcept {
        change_count = count;
        most_changes = count > most_changes ? count : most_changes;
        last_timeout_ns = timeout == nullptr
                              ? -1
                              : std::int64_t{timeout->tv_sec} * 1'000'000'000 + timeout->tv_nsec;
        if (!enter(kqueue_call::wait)) {
            return -1;
        }
        if (interrupted) {
            interrupted = false;
            real::kevent(in, changes, count, nullptr, 0, nullptr);
            errno = EINTR;
            return -1;
        }
        if (refused_code == 0) {
            return real::kevent(in, changes, count, out, count_max, timeout);
        }
        int refused = 0;  // answers for the refused, and nothing else, as the kernel does
        for (int at = 0; at < count; ++at) {
            if (changes[at].filter == refused_filter) {
                out[refused] = changes[at];
                out[refused].flags = EV_ERROR;
                out[refused++].data = refused_code;
            } else {
                real::kevent(in, &changes[at], 1, nullptr, 0, nullptr);
            }
        }
        return refused != 0 ? refused
                            : real::kevent(in, nullptr, 0, out, count_max, timeout);
    }
    static void yield() noexcept {
        ++yields;
        real::yield();
    }
    static int open_spare() noexcept {
        return enter(kqueue_call::open_spare) ? real::open_spare() : -1;
    }
};

using kqueue_counts = kqueue_counting_sys;
using kqueue_backend = netio::basic_kqueue<kqueue_counts>;
static_assert(netio::backend<kqueue_backend>);

constexpr netio::backend_limits kqueue_sizes{300, 2, 2, 4};
constexpr std::uint64_t kqueue_long_ns = 2'000'000'000;

/// An open backend with a pool; on the way out nothing may be left of either.
struct kqueue_rig {
    static constexpr std::uint32_t buffers = 160;
    static constexpr std::size_t memory_bytes = kqueue_backend::bytes_needed(kqueue_sizes);

    std::vector<std::byte> pool_bytes;
    std::vector<std::uint32_t> pool_links = std::vector<std::uint32_t>(buffers);
    std::vector<std::byte> raw = std::vector<std::byte>(memory_bytes + 64);
    netio::buffer_pool pool;
    kqueue_backend backend;
    std::size_t descriptors_before;
    event out[32];
    std::vector<event> seen;

    explicit kqueue_rig(std::uint32_t input_quota = buffers / 2,
                        std::uint32_t buffer_bytes = 1024)
        : pool_bytes(std::size_t{buffers} * buffer_bytes) {
        kqueue_counts::reset();
        descriptors_before = open_handles();
        pool.attach(pool_bytes.data(), pool_links.data(), buffers, buffer_bytes, input_quota,
                    buffers - buffers / 2, false);
        REQUIRE(backend.open(memory(), kqueue_sizes, pool));
    }
    ~kqueue_rig() {
        kqueue_counts::reset();
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
        const std::uint64_t until_ns = kqueue_counts::now_ns() + 2 * kqueue_long_ns;
        while (kqueue_counts::now_ns() < until_ns) {
            for (std::size_t at = 0; at < seen.size(); ++at) {
                if (seen[at].kind == kind) {
                    const event found = seen[at];
                    seen.erase(seen.begin() + static_cast<std::ptrdiff_t>(at));
                    return found;
                }
            }
            wait(kqueue_long_ns);
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

constexpr token kqueue_who(std::uint32_t index, std::uint32_t generation = 1) {
    return token::of(index, generation);
}

/// A plain blocking client.
struct kqueue_client {
    int descriptor = -1;

    kqueue_client() = default;
    explicit kqueue_client(std::uint16_t port) {
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
    kqueue_client(kqueue_client&& other) noexcept : descriptor(other.descriptor) {
        other.descriptor = -1;
    }
    kqueue_client& operator=(kqueue_client&& other) noexcept {
        std::swap(descriptor, other.descriptor);
        return *this;
    }
    ~kqueue_client() { close(); }
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
struct kqueue_door {
    kqueue_rig& rig;
    netio::os_handle handle;
    std::uint16_t port = 0;
    token who;

    explicit kqueue_door(kqueue_rig& of, std::uint32_t index = 0)
        : rig(of), who(kqueue_who(index)) {
        handle = kqueue_backend::listen({netio::loopback_ipv4(0), {}}, {});
        REQUIRE(handle);
        port = kqueue_backend::local_of(handle.handle).value.port;
        REQUIRE(rig.backend.start_accept(handle.handle, who));
    }
    ~kqueue_door() {
        if (accepting) {
            rig.backend.stop_accept(who);
        }
        kqueue_backend::close_handle(handle.handle, false);
    }
    /// A client and its connection, attached as `as`.
    kqueue_client connect(token as) {
        kqueue_client client(port);
        const event accepted = rig.until(event_kind::accepted);
        REQUIRE(rig.backend.attach(accepted.handle, as));
        accepted_last = accepted.handle;
        return client;
    }
    bool accepting = true;
    netio::socket_handle accepted_last = netio::no_handle;
};

}  // namespace

TEST_CASE("kqueue echoes to a lone client with three system calls a round trip") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.receive(kqueue_who(0));
    rig.quiet();
    kqueue_counts::reset();
    for (int round = 0; round < 10; ++round) {
        client.send("hello");
        const event received = rig.until(event_kind::received);
        CHECK(bool{received.disarmed});
        CHECK(received.who == kqueue_who(0));
        const std::string text = rig.text_of(received);
        CHECK(text == "hello");
        rig.send(kqueue_who(0), text);
        rig.receive(kqueue_who(0));
        CHECK(rig.until(event_kind::sent).byte_count == 5);
        CHECK(client.receive(5) == "hello");
    }
    CHECK(kqueue_counts::of(kqueue_call::wait) == 10);
    CHECK(kqueue_counts::of(kqueue_call::receive) == 10);
    CHECK(kqueue_counts::of(kqueue_call::send) == 10);
    CHECK(kqueue_counts::total() == 30);
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue serves 100 ready connections with two system calls each and one wait") {
    kqueue_rig rig;
    kqueue_door door(rig);
    std::vector<kqueue_client> clients;
    for (std::uint32_t index = 0; index < 100; ++index) {
        clients.push_back(door.connect(kqueue_who(index)));
        rig.receive(kqueue_who(index));
    }
    rig.quiet();
    for (int round = 0; round < 3; ++round) {
        for (kqueue_client& client : clients) {
            client.send("ping");
        }
        kqueue_counts::reset();
        int sent = 0;
        while (sent < 100) {
            rig.wait(kqueue_long_ns);
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
        CHECK(kqueue_counts::of(kqueue_call::receive) == 100);
        CHECK(kqueue_counts::of(kqueue_call::send) == 100);
        CHECK(kqueue_counts::of(kqueue_call::wait) == 1);
        CHECK(kqueue_counts::total() == 201);
        for (kqueue_client& client : clients) {
            CHECK(client.receive(4) == "ping");
        }
    }
    for (std::uint32_t index = 0; index < 100; ++index) {
        rig.close(kqueue_who(index));
    }
}

TEST_CASE("kqueue moves 16 KiB in three calls, four with the wait that finds nothing more") {
    kqueue_rig rig(8, 16 * 1024);
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.receive(kqueue_who(0));
    rig.quiet();
    const std::string much(16 * 1024, 'm');
    for (int round = 0; round < 10; ++round) {
        client.send(much);
        int there = 0;
        const std::uint64_t until_ns = kqueue_counts::now_ns() + kqueue_long_ns;
        while (there < 16 * 1024 && kqueue_counts::now_ns() < until_ns) {
            ::ioctl(static_cast<int>(door.accepted_last), FIONREAD, &there);
        }
        REQUIRE(there == 16 * 1024);  // all of it has come, so that one read can take it
        kqueue_counts::reset();
        const event received = rig.until(event_kind::received);
        CHECK(received.byte_count == 16 * 1024);
        const netio::bytes slice{rig.pool.data(received.buffer_index), received.byte_count};
        rig.backend.start_send(kqueue_who(0), {&slice, 1});
        rig.receive(kqueue_who(0));
        CHECK(rig.until(event_kind::sent).byte_count == 16 * 1024);
        CHECK(kqueue_counts::total() == 3);  // wait, receive, send
        CHECK(rig.wait(0) == 0);
        CHECK(kqueue_counts::total() == 4);
        rig.pool.give(received.buffer_index, netio::side::input, received.byte_count);
        CHECK(client.receive(much.size()) == much);
    }
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue accepts, serves one message and sees the peer close with eight calls alone") {
    kqueue_rig rig;
    kqueue_door door(rig);
    rig.quiet();
    kqueue_counts::reset();
    kqueue_client client = door.connect(kqueue_who(0));
    rig.receive(kqueue_who(0));
    client.send("one");
    const std::string text = rig.text_of(rig.until(event_kind::received));
    rig.send(kqueue_who(0), text);
    rig.receive(kqueue_who(0));
    rig.until(event_kind::sent);
    CHECK(client.receive(3) == "one");
    client.close();
    rig.until(event_kind::ended);
    rig.close(kqueue_who(0));
    CHECK(kqueue_counts::of(kqueue_call::accept) == 1);
    CHECK(kqueue_counts::of(kqueue_call::change) == 0);  // it rode on the second wait
    CHECK(kqueue_counts::of(kqueue_call::wait) == 3);
    CHECK(kqueue_counts::total() == 8);
}

namespace {

/// Accepts `count` clients that are all in the queue, echoes one message and sees them close; the
/// system calls it took.
int kqueue_lockstep(kqueue_rig& rig, kqueue_door& door, std::uint32_t count) {
    std::vector<kqueue_client> clients;
    for (std::uint32_t index = 0; index < count; ++index) {
        clients.emplace_back(door.port);
    }
    kqueue_counts::reset();
    std::uint32_t accepted = 0;
    std::uint32_t sent = 0;
    std::uint32_t closed = 0;
    bool asked = false;
    while (closed < count) {
        rig.wait(kqueue_long_ns);
        const std::vector<event> now = std::move(rig.seen);
        rig.seen.clear();
        for (const event& each : now) {
            switch (each.kind) {
            case event_kind::accepted:
                REQUIRE(rig.backend.attach(each.handle, kqueue_who(accepted)));
                rig.receive(kqueue_who(accepted++));
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
            for (kqueue_client& client : clients) {
                client.send("one");
            }
        }
        if (sent == count && clients[0].descriptor >= 0) {
            for (kqueue_client& client : clients) {
                CHECK(client.receive(3) == "one");
                client.close();
            }
        }
    }
    return kqueue_counts::total();
}

}  // namespace

TEST_CASE("kqueue accepts as many as wait: a burst and a lone client cost no call too many") {
    kqueue_rig rig;
    kqueue_door door(rig);
    for (int burst = 0; burst < 3; ++burst) {
        CHECK(kqueue_lockstep(rig, door, 16) <= 16 * 5 + 4);
        CHECK(kqueue_counts::of(kqueue_call::accept) == 16);
        CHECK(kqueue_counts::of(kqueue_call::change) == 0);
        CHECK(kqueue_lockstep(rig, door, 1) == 8);
    }
}

TEST_CASE("kqueue accepts more than a wait has room for over several waits") {
    kqueue_rig rig;
    kqueue_door door(rig);
    std::vector<kqueue_client> clients;
    for (int count = 0; count < 40; ++count) {
        clients.emplace_back(door.port);
    }
    while (rig.seen.size() < 40) {
        CHECK(rig.wait(kqueue_long_ns, 4) <= 4);
    }
    for (const event& each : rig.seen) {
        CHECK(each.kind == event_kind::accepted);
        CHECK(each.who == door.who);
        CHECK(each.peer.family == netio::address_family::ipv4);
        CHECK(each.peer.address[0] == 127);
        kqueue_backend::close_handle(each.handle, false);
    }
    rig.seen.clear();
    rig.quiet();
}

TEST_CASE("kqueue hands on the listener's options and makes accepted sockets fit to serve") {
    kqueue_rig rig;
    netio::listen_options options;
    options.socket.receive_bytes = 65536;
    options.socket.keepalive_idle_s = 77;
    options.socket.user_timeout_ms = 4321;
    const netio::os_handle made =
        kqueue_backend::listen({netio::loopback_ipv4(0), {}}, options);
    REQUIRE(made);
    REQUIRE(rig.backend.start_accept(made.handle, kqueue_who(0)));
    kqueue_client client(kqueue_backend::local_of(made.handle).value.port);
    kqueue_counts::reset();
    const int accepted = static_cast<int>(rig.until(event_kind::accepted).handle);
    CHECK(kqueue_counts::of(kqueue_call::setsockopt) == 0);
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
    kqueue_backend::close_handle(accepted, false);
    rig.backend.stop_accept(kqueue_who(0));
    kqueue_backend::close_handle(made.handle, false);
}

// ---- edges

namespace {

/// A port of loopback that nobody listens on.
std::uint16_t kqueue_dead_port() {
    const netio::os_handle made = kqueue_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const std::uint16_t port = kqueue_backend::local_of(made.handle).value.port;
    kqueue_backend::close_handle(made.handle, false);
    return port;
}

}  // namespace

TEST_CASE("kqueue reads on after a short read that came with the end of stream") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.send("last words");
    client.finish();
    for (int turn = 0; turn < 3; ++turn) {
        rig.wait(0);  // the edge comes while nobody receives, and only once
    }
    CHECK(rig.seen.empty());
    rig.receive(kqueue_who(0));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "last words");
    rig.receive(kqueue_who(0));
    CHECK(rig.until(event_kind::ended).who == kqueue_who(0));
    rig.send(kqueue_who(0), "reply");  // half-closed: sending goes on
    rig.until(event_kind::sent);
    CHECK(client.receive(5) == "reply");
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue needs no read too many where the count is known and no event after a full one") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.receive(kqueue_who(0));
    client.send(std::string(1024, 'x'));  // the buffer full to the last byte, and no more
    rig.text_of(rig.until(event_kind::received));
    rig.receive(kqueue_who(0));
    kqueue_counts::reset();
    rig.quiet();
    CHECK(kqueue_counts::of(kqueue_call::receive) == 0);
    client.send(std::string(3000, 'x'));
    rig.text_of(rig.until(event_kind::received));
    for (const std::uint32_t byte_count : {1024u, 3000u - 2048u}) {
        kqueue_counts::reset();
        rig.receive(kqueue_who(0));
        const event received = rig.until(event_kind::received);
        CHECK(received.byte_count == byte_count);
        // It is known that there is more; but the kernel is left out once in a row at most.
        CHECK(kqueue_counts::of(kqueue_call::wait) == (byte_count == 1024 ? 0 : 1));
        CHECK(kqueue_counts::of(kqueue_call::receive) == 1);
        rig.text_of(received);
    }
    kqueue_counts::reset();
    rig.receive(kqueue_who(0));
    rig.quiet();
    CHECK(kqueue_counts::of(kqueue_call::receive) == 1);  // it had no count any more
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue reads on behind urgent data, which splits a read") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.send("before");
    REQUIRE(::send(client.descriptor, "!", 1, MSG_OOB) == 1);
    client.send("behind");
    std::string all;
    while (all.size() < 12) {
        rig.receive(kqueue_who(0));
        all += rig.text_of(rig.until(event_kind::received));
    }
    CHECK(all == "beforebehind");
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue gives what was received before a reset, then the reset") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.send("data");
    client.reset();
    rig.receive(kqueue_who(0));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "data");
    rig.receive(kqueue_who(0));
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::receive);
    CHECK(failed.why == netio::error::connection_reset);
    CHECK(failed.os_code == ECONNRESET);
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue knows an error from the event, whoever took it from the socket") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.wait(0);
    client.reset();
    rig.wait(kqueue_long_ns);
    int code = 0;
    socklen_t size = sizeof(code);
    ::getsockopt(static_cast<int>(door.accepted_last), SOL_SOCKET, SO_ERROR, &code, &size);
    CHECK(code == ECONNRESET);
    rig.receive(kqueue_who(0));
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::receive);
    CHECK(failed.os_code == ECONNRESET);
    rig.close(kqueue_who(0));
    kqueue_counts::error_is_gone = true;
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(kqueue_dead_port()), {}}, {},
                                      kqueue_who(1)));
    CHECK(rig.until(event_kind::failed).op == operation::connect);
    rig.close(kqueue_who(1));
}

TEST_CASE("kqueue does not spin on a reset connection that neither reads nor writes") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.reset();
    kqueue_counts::reset();
    const std::uint64_t until_ns = kqueue_counts::now_ns() + 30'000'000;
    while (kqueue_counts::now_ns() < until_ns) {
        rig.wait(10'000'000);
    }
    CHECK(rig.seen.empty());
    CHECK(kqueue_counts::of(kqueue_call::wait) <= 6);
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue takes at most one buffer of a connection in one wait, until the credit is used") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.send(std::string(8000, 'x'));
    rig.receive(kqueue_who(0), 3000);
    std::uint32_t byte_count = 0;
    for (int turn = 0; turn < 3; ++turn) {
        CHECK(rig.wait(kqueue_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::received);
        CHECK(bool{rig.out[0].disarmed} == (turn == 2));
        byte_count += rig.out[0].byte_count;
        rig.text_of(rig.out[0]);
    }
    CHECK(byte_count == 3072);
    rig.seen.clear();
    rig.quiet();
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue receives into the caller's memory without a buffer of the pool") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    std::byte into[16];
    rig.backend.start_receive(kqueue_who(0), into, 1);
    rig.quiet();
    client.send("to your memory");
    const event received = rig.until(event_kind::received);
    CHECK(received.buffer_index == netio::none_index);
    CHECK(bool{received.disarmed});
    CHECK(netio::as_text({into, received.byte_count}) == "to your memory");
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    client.close();
    rig.backend.start_receive(kqueue_who(0), into, 1);
    rig.until(event_kind::ended);
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue stops a receive with one disarmed event and keeps what comes meanwhile") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.receive(kqueue_who(0));
    rig.backend.stop_receive(kqueue_who(0));
    client.send("kept");
    const event last = rig.until(event_kind::received);
    CHECK(bool{last.disarmed});
    CHECK(last.byte_count == 0);
    CHECK(last.buffer_index == netio::none_index);
    rig.quiet();
    rig.receive(kqueue_who(0));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "kept");
    rig.backend.stop_receive(kqueue_who(0));  // as if that event were still unread
    rig.quiet();
    rig.close(kqueue_who(0));
}

// ---- stale events

TEST_CASE("kqueue keeps events of a batch apart from a new connection with the same descriptor") {
    kqueue_rig rig;
    kqueue_door door(rig);
    std::vector<kqueue_client> clients;
    for (std::uint32_t index = 0; index < 8; ++index) {
        clients.push_back(door.connect(kqueue_who(index)));
        rig.receive(kqueue_who(index));
    }
    rig.quiet();
    for (kqueue_client& client : clients) {
        client.send("x");
    }
    CHECK(rig.wait(kqueue_long_ns, 4) == 4);  // four more wait in the ready array
    for (const event& each : rig.seen) {
        rig.text_of(each);
    }
    rig.seen.clear();
    const token old = kqueue_who(7);
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
    REQUIRE(rig.backend.attach(reused, kqueue_who(7, 2)));
    rig.receive(kqueue_who(7, 2));
    for (int turn = 0; turn < 4; ++turn) {
        rig.wait(0);
    }
    CHECK(rig.backend.stale_count() == 1);
    for (const event& each : rig.seen) {
        CHECK(each.who != kqueue_who(7, 2));
        CHECK(each.who != old);
        rig.text_of(each);
    }
    rig.seen.clear();
    REQUIRE(::write(pair[1], "mine", 4) == 4);
    const event own = rig.until(event_kind::received);
    CHECK(own.who == kqueue_who(7, 2));
    CHECK(rig.text_of(own) == "mine");
    ::close(pair[1]);
    rig.close(kqueue_who(7, 2));
    for (std::uint32_t index = 0; index < 7; ++index) {
        rig.close(kqueue_who(index));
    }
}

TEST_CASE("kqueue is not disturbed by a duplicate of a closed socket") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client(door.port);
    const event accepted = rig.until(event_kind::accepted);
    const int duplicate = ::fcntl(static_cast<int>(accepted.handle), F_DUPFD_CLOEXEC, 0);
    REQUIRE(rig.backend.attach(accepted.handle, kqueue_who(0)));
    rig.receive(kqueue_who(0));
    rig.close(kqueue_who(0));
    kqueue_client next = door.connect(kqueue_who(0, 2));  // the same slot, used anew
    rig.receive(kqueue_who(0, 2));
    rig.quiet();
    kqueue_counts::reset();
    for (int count = 0; count < 5; ++count) {
        client.send("to the duplicate");
        rig.wait(10'000'000);
    }
    rig.quiet();
    CHECK(rig.backend.stale_count() == 0);  // closed is forgotten, whoever else has the socket
    CHECK(kqueue_counts::of(kqueue_call::wait) <= 9);
    CHECK(kqueue_counts::of(kqueue_call::receive) == 0);
    ::close(duplicate);
    rig.close(kqueue_who(0, 2));
}

TEST_CASE("kqueue drops by its generation what is told of a closed one after all") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.quiet();
    const int number = static_cast<int>(door.accepted_last);
    const int duplicate = ::fcntl(number, F_DUPFD_CLOEXEC, 0);
    kqueue_counts::close_unseen = true;
    rig.close(kqueue_who(0));
    kqueue_counts::close_unseen = false;
    const int filler = ::fcntl(duplicate, F_DUPFD_CLOEXEC, number);  // the number stays taken
    REQUIRE(filler == number);
    kqueue_client next = door.connect(kqueue_who(0, 2));
    rig.receive(kqueue_who(0, 2));
    rig.quiet();
    kqueue_counts::reset();
    client.send("to the duplicate");
    rig.wait(20'000'000);
    rig.quiet();
    CHECK(rig.backend.stale_count() == 1);
    CHECK(kqueue_counts::of(kqueue_call::receive) == 0);
    next.send("mine");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "mine");
    ::close(filler);
    ::close(duplicate);
    rig.close(kqueue_who(0, 2));
}

TEST_CASE("kqueue gives a released handle back unclosed and forgets it") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.quiet();  // the kernel has heard of it
    const netio::socket_handle handle = rig.backend.release(kqueue_who(0));
    client.send("still open");
    rig.wait(20'000'000);
    rig.quiet();
    CHECK(rig.backend.stale_count() == 0);
    REQUIRE(rig.backend.attach(handle, kqueue_who(1)));
    rig.receive(kqueue_who(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "still open");
    rig.close(kqueue_who(1));
}

// ---- sending

TEST_CASE("kqueue sends 8 MiB to a slow reader whole without a call for the registration") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    std::string big(8 * 1024 * 1024, '\0');
    for (std::size_t at = 0; at < big.size(); ++at) {
        big[at] = static_cast<char>(at * 2654435761u >> 13);
    }
    kqueue_counts::reset();
    std::string got;
    std::size_t sent = 0;
    std::thread reader([&] {
        got = client.receive(big.size());
    });
    int waited = 0;
    while (sent < big.size()) {
        const std::string_view rest = std::string_view(big).substr(sent);
        rig.send(kqueue_who(0), rest);
        const event done = rig.until(event_kind::sent);
        CHECK(done.byte_count >= 1);
        sent += done.byte_count;
        waited += done.byte_count < rest.size();
    }
    reader.join();
    CHECK(got == big);
    CHECK(waited > 0);
    CHECK(kqueue_counts::of(kqueue_call::change) + kqueue_counts::of(kqueue_call::flush) == 0);
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue sends several slices with one call and keeps only the first where it must wait") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    const netio::bytes slices[] = {netio::as_bytes("ab"), netio::as_bytes("cde"),
                                   netio::as_bytes("f")};
    rig.backend.start_send(kqueue_who(0), slices);
    CHECK(rig.until(event_kind::sent).byte_count == 6);
    CHECK(client.receive(6) == "abcdef");
    kqueue_counts::plan(kqueue_call::send_message, EAGAIN);
    rig.backend.start_send(kqueue_who(0), slices);
    CHECK(rig.until(event_kind::sent).byte_count == 2);  // writable all the time: the edge is there
    CHECK(client.receive(2) == "ab");
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue reports a send to a peer that is gone and gets no SIGPIPE") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.reset();
    rig.quiet();
    rig.send(kqueue_who(0), "x");
    const event first = rig.until(event_kind::failed);
    CHECK(first.op == operation::send);
    CHECK(first.why == netio::error::connection_reset);
    const netio::bytes slices[] = {netio::as_bytes("a"), netio::as_bytes("b")};
    rig.backend.start_send(kqueue_who(0), slices);
    CHECK(rig.until(event_kind::failed).why == netio::error::broken_pipe);
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue ends a send that waits for room when the peer resets") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    const std::string big(16 * 1024 * 1024, 'x');
    event last = {};
    do {  // fill both socket buffers until a send has to wait
        rig.send(kqueue_who(0), big);
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
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue lets a busy sender skip the kernel at most once in a row") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    kqueue_counts::reset();
    for (int round = 0; round < 10; ++round) {
        rig.send(kqueue_who(0), "x");
        CHECK(rig.wait(kqueue_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::sent);
    }
    CHECK(kqueue_counts::of(kqueue_call::wait) == 5);
    CHECK(kqueue_counts::last_timeout_ns == 0);
    rig.seen.clear();
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue closes in order with FIN and aborts with a reset") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.send(kqueue_who(0), "bye");
    rig.close(kqueue_who(0));
    CHECK(client.receive(10) == "bye");
    kqueue_client aborted = door.connect(kqueue_who(0, 2));
    rig.receive(kqueue_who(0, 2));
    rig.close(kqueue_who(0, 2), true);
    CHECK(aborted.receive(1) == "!" + std::to_string(ECONNRESET));
    kqueue_client half = door.connect(kqueue_who(0, 3));
    rig.backend.end_send(kqueue_who(0, 3));
    CHECK(half.receive(1).empty());
    half.send("reply");
    rig.receive(kqueue_who(0, 3));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "reply");
    rig.close(kqueue_who(0, 3));
}

TEST_CASE("kqueue gives closed alone where results were not taken yet") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.send("unread");
    rig.quiet();
    rig.receive(kqueue_who(0));
    rig.send(kqueue_who(0), "x");
    rig.backend.start_close(kqueue_who(0), false);
    CHECK(rig.wait(0) == 1);
    CHECK(rig.out[0].kind == event_kind::closed);
    CHECK(rig.out[0].op == operation::close);
    rig.seen.clear();
    rig.quiet();
}

// ---- buffers

TEST_CASE("kqueue serves receives without a buffer first come first served") {
    kqueue_rig rig(1);
    kqueue_door door(rig);
    std::vector<kqueue_client> clients;
    for (std::uint32_t index = 0; index < 5; ++index) {
        clients.push_back(door.connect(kqueue_who(index)));
        rig.receive(kqueue_who(index));
    }
    rig.quiet();
    rig.seen.clear();
    const std::uint32_t order[] = {3, 0, 4, 1, 2};
    for (const std::uint32_t index : order) {
        clients[index].send(std::to_string(index));
        rig.wait(kqueue_long_ns);
    }
    REQUIRE(rig.seen.size() == 1);  // the one buffer went to the first
    CHECK_FALSE(rig.backend.ready());
    rig.close(kqueue_who(4));  // taken out of the middle
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
        rig.close(kqueue_who(index));
    }
}

TEST_CASE("kqueue lets nobody who comes later have a buffer before those who wait") {
    kqueue_rig rig(4);
    kqueue_door door(rig);
    std::vector<kqueue_client> clients;
    for (std::uint32_t index = 0; index < 4; ++index) {
        clients.push_back(door.connect(kqueue_who(index)));
        rig.receive(kqueue_who(index));
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
        rig.close(kqueue_who(index));
    }
}

TEST_CASE("kqueue does not spin while datagrams and bytes wait for a buffer") {
    kqueue_rig rig(1);
    const netio::os_handle socket = kqueue_backend::open_datagram(netio::loopback_ipv4(0), {});
    REQUIRE(socket);
    const netio::endpoint there = kqueue_backend::local_of(socket.handle).value;
    REQUIRE(rig.backend.start_receive_from(socket.handle, kqueue_who(0)));
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    client.send("taken");
    rig.receive(kqueue_who(0));
    const event taken = rig.until(event_kind::received);
    rig.backend.start_send_to(socket.handle, kqueue_who(0), netio::as_bytes("datagram"), there);
    rig.until(event_kind::sent);
    rig.wait(0);
    client.send("bytes");
    rig.receive(kqueue_who(0));
    rig.quiet();
    kqueue_counts::reset();
    const std::uint64_t begin_ns = kqueue_counts::now_ns();
    rig.wait(5'000'000);
    rig.wait(5'000'000);
    CHECK(kqueue_counts::now_ns() - begin_ns >= 10'000'000);  // it really slept both times
    CHECK(kqueue_counts::of(kqueue_call::wait) == 2);
    CHECK(rig.seen.empty());
    rig.text_of(taken);
    const event datagram = rig.until(event_kind::received);
    CHECK(datagram.op == operation::receive_from);
    CHECK(rig.text_of(datagram) == "datagram");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "bytes");
    rig.backend.start_send_to(socket.handle, kqueue_who(0), netio::as_bytes("again"), there);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "again");
    rig.backend.stop_receive_from(kqueue_who(0));
    rig.until(event_kind::closed);
    kqueue_backend::close_handle(socket.handle, false);
    rig.close(kqueue_who(0));
}

// ---- connecting

TEST_CASE("kqueue connects, and the connection is attached at once") {
    kqueue_rig rig;
    kqueue_door door(rig);
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(door.port), {}}, {}, kqueue_who(5)));
    const event connected = rig.until(event_kind::connected);
    CHECK(connected.who == kqueue_who(5));
    CHECK(connected.op == operation::connect);
    CHECK(connected.handle >= 0);
    const event accepted = rig.until(event_kind::accepted);
    REQUIRE(rig.backend.attach(accepted.handle, kqueue_who(6)));
    rig.send(kqueue_who(6), "first word");
    rig.receive(kqueue_who(5));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "first word");
    rig.close(kqueue_who(5));
    rig.close(kqueue_who(6));
}

TEST_CASE("kqueue reaches an IPv4 listener by its mapped address") {
    kqueue_rig rig;
    kqueue_door door(rig);
    const netio::endpoint to = netio::mapped(netio::loopback_ipv4(door.port));
    REQUIRE(rig.backend.start_connect({to, {}}, {}, kqueue_who(0)));
    rig.until(event_kind::connected);
    rig.close(kqueue_who(0));
    kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

TEST_CASE("kqueue reports a refused connect once and holds nothing of it") {
    kqueue_rig rig;
    const std::uint16_t port = kqueue_dead_port();
    const std::size_t before = open_handles();
    for (std::uint32_t round = 1; round < 4; ++round) {
        const token who = kqueue_who(0, round);
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

TEST_CASE("kqueue closes a connection that is still being made") {
    kqueue_rig rig;
    const std::uint16_t port = kqueue_dead_port();
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(port), {}}, {}, kqueue_who(0)));
    rig.close(kqueue_who(0), true);
    rig.quiet();
    CHECK(rig.seen.empty());
}

TEST_CASE("kqueue connects to unix listeners, and a full one is an error at once") {
    kqueue_rig rig;
    const std::string path = "@netio-kqueue-test-" + std::to_string(::getpid());
    netio::listen_options options;
    options.backlog = 1;
    const netio::os_handle made = kqueue_backend::listen({{}, path}, options);
    REQUIRE(made);
    netio::os_status status{};
    std::uint32_t connected = 0;
    for (; connected < 10; ++connected) {
        status = rig.backend.start_connect({{}, path}, {}, kqueue_who(connected));
        if (!status) {
            break;
        }
        CHECK(rig.until(event_kind::connected).who == kqueue_who(connected));
    }
    CHECK(connected == 2);
    CHECK(status.why == netio::error::address_in_use);
    CHECK(status.os_code == EAGAIN);
    REQUIRE(rig.backend.start_accept(made.handle, kqueue_who(1)));
    for (std::uint32_t index = 0; index < connected; ++index) {
        const event accepted = rig.until(event_kind::accepted);
        CHECK(accepted.peer.family == netio::address_family::unix_path);
        REQUIRE(rig.backend.attach(accepted.handle, kqueue_who(10 + index)));
        rig.send(kqueue_who(10 + index), "hello");
        rig.receive(kqueue_who(index));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "hello");
        rig.close(kqueue_who(index));
        rig.receive(kqueue_who(10 + index));
        rig.until(event_kind::ended);
        rig.close(kqueue_who(10 + index));
    }
    rig.backend.stop_accept(kqueue_who(1));
    kqueue_backend::close_handle(made.handle, false);
    CHECK(rig.backend.start_connect({{}, path}, {}, kqueue_who(0)).why ==
          netio::error::connection_refused);
}

// ---- accepting under stress

TEST_CASE("kqueue goes on accepting after every error that belongs to one client") {
    const int codes[] = {ECONNABORTED, EPROTO,       EINTR,      ENETDOWN,     EPERM,
                         ENOPROTOOPT,  EHOSTDOWN,    ENONET,     EHOSTUNREACH, EOPNOTSUPP,
                         ENETUNREACH,  ETIMEDOUT,    ECONNRESET};
    kqueue_rig rig;
    kqueue_door door(rig);
    for (const int code : codes) {
        CAPTURE(code);
        kqueue_client client(door.port);
        kqueue_counts::plan(kqueue_call::accept, code);
        kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        rig.quiet();
    }
}

TEST_CASE("kqueue turns accepting off with one failed event on any other error") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client(door.port);
    kqueue_counts::plan(kqueue_call::accept, EINVAL);
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.who == door.who);
    CHECK(failed.op == operation::accept);
    CHECK(failed.why == netio::error::os_failure);
    CHECK(failed.os_code == EINVAL);
    rig.backend.stop_accept(door.who);  // as if that event were still unread
    rig.quiet();
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

TEST_CASE("kqueue closes the waiting client by its spare descriptor when descriptors run out") {
    for (const int code : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
        CAPTURE(code);
        kqueue_rig rig;
        kqueue_door door(rig);
        kqueue_client client(door.port);
        kqueue_counts::plan(kqueue_call::accept, code);
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.who == door.who);
        CHECK(failed.why == netio::error::descriptors_empty);
        CHECK(failed.os_code == code);
        CHECK(client.receive(1).empty());
        kqueue_client next(door.port);
        rig.quiet();  // off, though somebody waits
        kqueue_counts::reset();
        REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
        kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        CHECK(kqueue_counts::of(kqueue_call::open_spare) == 0);  // it was taken back at once
    }
}

TEST_CASE("kqueue lives without a spare descriptor and takes one back later") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client(door.port);
    kqueue_counts::plan(kqueue_call::accept, EMFILE, 1, 1);
    rig.until(event_kind::failed);
    CHECK(client.receive(1).empty());
    kqueue_client second(door.port);
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    kqueue_counts::plan(kqueue_call::accept, EMFILE, 1, 2);  // the spare one helps nothing
    CHECK(rig.until(event_kind::failed).why == netio::error::descriptors_empty);
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

namespace {

/// Runs `body` in a child, where a descriptor limit or a user may be changed; its exit code.
template <class Body>
int kqueue_in_child(Body body) {
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
int kqueue_run_out_of_descriptors() {
    kqueue_rig rig;
    kqueue_door door(rig);
    const rlimit bound{64, 64};
    if (::setrlimit(RLIMIT_NOFILE, &bound) != 0) {
        return 1;
    }
    std::vector<kqueue_client> clients;
    clients.emplace_back(door.port);
    clients.emplace_back(door.port);
    std::vector<int> fill;
    for (int made = ::dup(2); made >= 0; made = ::dup(2)) {
        fill.push_back(made);
    }
    kqueue_counts::reset();
    const event failed = rig.until(event_kind::failed);
    if (failed.why != netio::error::descriptors_empty || failed.os_code != EMFILE) {
        return 2;
    }
    const std::uint64_t until_ns = kqueue_counts::now_ns() + 200'000'000;
    while (kqueue_counts::now_ns() < until_ns) {
        if (rig.wait(20'000'000) != 0) {
            return 3;
        }
    }
    if (kqueue_counts::of(kqueue_call::accept) > 2 || kqueue_counts::of(kqueue_call::wait) > 15) {
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
    kqueue_backend::close_handle(accepted.handle, false);
    return 0;
}

}  // namespace

TEST_CASE("kqueue without descriptors makes two accept calls in 200 ms and recovers") {
    CHECK(kqueue_in_child(kqueue_run_out_of_descriptors) == 0);
}

// ---- datagrams

namespace {

struct kqueue_mailbox {
    kqueue_rig& rig;
    netio::os_handle handle;
    netio::endpoint there;
    token who;

    explicit kqueue_mailbox(kqueue_rig& of, std::uint32_t index = 0)
        : rig(of), who(kqueue_who(index)) {
        handle = kqueue_backend::open_datagram(netio::loopback_ipv4(0), {});
        REQUIRE(handle);
        there = kqueue_backend::local_of(handle.handle).value;
        REQUIRE(rig.backend.start_receive_from(handle.handle, who));
    }
    ~kqueue_mailbox() {
        rig.backend.stop_receive_from(who);
        const event last = rig.until(event_kind::closed);
        CHECK(last.op == operation::receive_from);
        CHECK(last.who == who);
        kqueue_backend::close_handle(handle.handle, false);
    }
    void post(std::string_view text, const netio::endpoint& to, std::uint32_t send = 0) {
        rig.backend.start_send_to(handle.handle, kqueue_who(send), netio::as_bytes(text), to);
    }
};

}  // namespace

TEST_CASE("kqueue answers a lone datagram with three system calls") {
    kqueue_rig rig;
    kqueue_mailbox mailbox(rig);
    kqueue_client peer;
    peer.descriptor = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    netio::detail::socket_address to;
    const socklen_t size = netio::detail::to_socket_address(mailbox.there, to);
    REQUIRE(::connect(peer.descriptor, &to.any, size) == 0);
    rig.quiet();
    kqueue_counts::reset();
    for (int round = 0; round < 64; ++round) {
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
    CHECK(kqueue_counts::of(kqueue_call::receive_message) == 64);
    CHECK(kqueue_counts::total() == 64 * 3);
}

TEST_CASE("kqueue delivers empty datagrams and says where one was cut") {
    kqueue_rig rig;
    kqueue_mailbox mailbox(rig);
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

TEST_CASE("kqueue takes a burst of datagrams in order and skips errors of earlier sends") {
    kqueue_rig rig;
    kqueue_mailbox mailbox(rig);
    std::string all;
    for (int burst = 0; burst < 3; ++burst) {
        kqueue_counts::reset();
        for (int count = 0; count < 10; ++count) {
            const std::string text(1, static_cast<char>('a' + count));
            mailbox.post(text, mailbox.there);
            rig.wait(0, 4);  // the first one is given along with its `sent`
        }
        kqueue_counts::plan(kqueue_call::receive_message, ECONNREFUSED);
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
    kqueue_counts::plan(kqueue_call::send_to, ECONNREFUSED);
    mailbox.post("after an error", mailbox.there);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "after an error");
}

TEST_CASE("kqueue keeps datagrams that find no room until the socket has some") {
    kqueue_rig rig;
    for (const bool receiving : {true, false}) {
        CAPTURE(receiving);
        kqueue_mailbox mailbox(rig, 0);
        const netio::os_handle other = kqueue_backend::open_datagram(netio::loopback_ipv4(0), {});
        const netio::socket_handle from = receiving ? mailbox.handle.handle : other.handle;
        kqueue_counts::plan(kqueue_call::send_to, EAGAIN, 1, 2);
        rig.backend.start_send_to(from, kqueue_who(0), netio::as_bytes("one"), mailbox.there);
        rig.backend.start_send_to(from, kqueue_who(1), netio::as_bytes("two"), mailbox.there);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "one");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "two");
        rig.seen.clear();
        kqueue_counts::reset();
        rig.quiet();
        CHECK(kqueue_counts::of(kqueue_call::wait) == 4);
        mailbox.post("three", mailbox.there);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "three");
        kqueue_backend::close_handle(other.handle, false);
    }
}

TEST_CASE("kqueue stops receiving from a socket whose datagrams still wait to be sent") {
    kqueue_rig rig;
    kqueue_mailbox there(rig, 0);
    const netio::os_handle made = kqueue_backend::open_datagram(netio::loopback_ipv4(0), {});
    REQUIRE(rig.backend.start_receive_from(made.handle, kqueue_who(1)));
    kqueue_counts::plan(kqueue_call::send_to, EAGAIN, 1, 1);
    rig.backend.start_send_to(made.handle, kqueue_who(0), netio::as_bytes("late"), there.there);
    rig.backend.stop_receive_from(kqueue_who(1));
    CHECK(rig.until(event_kind::closed).who == kqueue_who(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "late");
    REQUIRE(rig.backend.start_receive_from(made.handle, kqueue_who(1, 2)));
    kqueue_client peer;
    there.post("back", kqueue_backend::local_of(made.handle).value, 1);
    const event back = rig.until(event_kind::received);
    CHECK(back.who == kqueue_who(1, 2));
    rig.text_of(back);
    rig.backend.stop_receive_from(kqueue_who(1, 2));
    rig.until(event_kind::closed);
    kqueue_backend::close_handle(made.handle, false);
}

TEST_CASE("kqueue fails a datagram without an address or too large to send") {
    kqueue_rig rig;
    kqueue_mailbox mailbox(rig);
    mailbox.post("nowhere", {});
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::send_to);
    CHECK(failed.why == netio::error::address_invalid);
    const std::string huge(70'000, 'x');
    mailbox.post(huge, mailbox.there, 1);
    CHECK(rig.until(event_kind::failed).why == netio::error::too_long);
}

// ---- waking

TEST_CASE("kqueue wakes coalesce and cost no system call while the loop is awake") {
    kqueue_rig rig;
    kqueue_counts::reset();
    rig.backend.wake();
    rig.backend.wake();
    CHECK(rig.backend.ready());
    CHECK(kqueue_counts::total() == 0);
    CHECK(rig.wait(kqueue_long_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    CHECK(rig.out[0].op == operation::wake);
    CHECK_FALSE(rig.backend.ready());
    CHECK(kqueue_counts::total() == 0);
    CHECK(rig.wait(0) == 0);
}

TEST_CASE("kqueue wake ends a wait of another thread with one trigger") {
    kqueue_rig rig;
    kqueue_counts::reset();
    std::thread waker([&] {
        while (kqueue_counts::of(kqueue_call::wait) == 0) {
        }
        rig.backend.wake();  // the loop announced its sleep before it made the call
        rig.backend.wake();
    });
    const std::uint64_t begin_ns = kqueue_counts::now_ns();
    CHECK(rig.wait(kqueue_long_ns) == 1);
    CHECK(kqueue_counts::now_ns() - begin_ns < kqueue_long_ns);
    CHECK(rig.out[0].kind == event_kind::woken);
    waker.join();
    CHECK(kqueue_counts::of(kqueue_call::trigger) == 1);
    rig.wait(0);  // the second wake may have come after the sleep
    rig.wait(0);
    CHECK(rig.wait(3'000'000) == 0);  // nothing spins
    rig.seen.clear();
}

TEST_CASE("kqueue loses no wake-up of a million posts of four threads [threads]") {
    kqueue_rig rig;
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
        const std::uint64_t begin_ns = kqueue_counts::now_ns();
        const std::uint32_t count = rig.backend.wait(rig.out, 10 * kqueue_long_ns);
        if (kqueue_counts::now_ns() - begin_ns >= 10 * kqueue_long_ns) {
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
    CHECK(kqueue_counts::of(kqueue_call::trigger) <= kqueue_counts::of(kqueue_call::wait));
}

TEST_CASE("kqueue triggers nothing after close, whoever still posts [threads]") {
    for (int round = 0; round < 20; ++round) {
        std::atomic<bool> stop = false;
        std::atomic<int> posting = 0;
        std::vector<std::thread> posters;
        kqueue_rig rig;
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
        // A queue that is made now has the number of the closed one.
        const int reused = ::kqueue();
        netio::detail::kqueue_event user{};
        user.filter = EVFILT_USER;
        user.flags = EV_ADD;
        CHECK(::kevent(reused, &user, 1, nullptr, 0, nullptr) == 0);
        for (int turn = 0; turn < 100; ++turn) {
            ::sched_yield();
        }
        stop = true;
        for (std::thread& each : posters) {
            each.join();
        }
        const timespec at_once{};
        CHECK(::kevent(reused, nullptr, 0, &user, 1, &at_once) == 0);
        ::close(reused);
    }
}

namespace {

std::atomic<int> kqueue_closes_seen = -1;

}  // namespace

TEST_CASE("kqueue close waits for a waker that is just triggering [threads]") {
    kqueue_rig rig;
    rig.backend.wait_handle();  // asleep, so a wake triggers
    kqueue_counts::reset();
    kqueue_closes_seen = -1;
    kqueue_counts::on_trigger = [] {
        kqueue_closes_seen = 0;
        while (kqueue_counts::yields == 0 && kqueue_counts::of(kqueue_call::close) == 0) {
        }
        kqueue_closes_seen = kqueue_counts::of(kqueue_call::close);
    };
    std::thread waker([&] { rig.backend.wake(); });
    while (kqueue_closes_seen == -1) {
    }
    rig.backend.close();
    waker.join();
    CHECK(kqueue_closes_seen == 0);  // nothing was closed before it had triggered
}

namespace {

kqueue_backend* kqueue_signalled = nullptr;

}  // namespace

TEST_CASE("kqueue can be woken by a signal handler, which keeps errno") {
    kqueue_rig rig;
    kqueue_signalled = &rig.backend;
    struct sigaction action{};
    action.sa_handler = [](int) { kqueue_signalled->wake(); };
    struct sigaction before{};
    ::sigaction(SIGUSR1, &action, &before);
    errno = 12345;
    ::raise(SIGUSR1);  // just before the wait: it must not sleep
    CHECK(errno == 12345);
    CHECK(rig.wait(netio::forever_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    rig.backend.wait_handle();  // asleep from now on: this one triggers
    ::raise(SIGUSR1);
    CHECK(errno == 12345);
    CHECK(rig.wait(netio::forever_ns) == 1);
    rig.seen.clear();
    ::sigaction(SIGUSR1, &before, nullptr);
    kqueue_signalled = nullptr;
}

TEST_CASE("kqueue signals a foreign loop when it is woken, and is quiet otherwise") {
    kqueue_rig rig;
    pollfd foreign{static_cast<int>(rig.backend.wait_handle()), POLLIN, 0};
    CHECK(::poll(&foreign, 1, 0) == 0);
    for (int round = 0; round < 3; ++round) {
        kqueue_counts::reset();
        rig.backend.wake();
        rig.backend.wake();
        CHECK(kqueue_counts::of(kqueue_call::trigger) == 1);
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
    kqueue_door door(rig);
    CHECK(::poll(&foreign, 1, 0) == 0);
    kqueue_client client(door.port);
    CHECK(::poll(&foreign, 1, 1000) == 1);
    kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

// ---- time-outs and failures

TEST_CASE("kqueue hands time-outs over to the nanosecond and never blocks for zero") {
    kqueue_rig rig;
    for (const std::uint64_t span_ns : {0u, 1u, 1'000'000u, 1'000'001u}) {
        rig.wait(span_ns);
        CHECK(kqueue_counts::last_timeout_ns == static_cast<std::int64_t>(span_ns));
    }
    kqueue_counts::plan(kqueue_call::wait, EINTR, 1, 3);
    CHECK(rig.wait(netio::forever_ns) == 0);  // interrupted: early, without an event
    CHECK(kqueue_counts::last_timeout_ns == -1);
    CHECK(rig.wait(netio::forever_ns - 1) == 0);
    CHECK(kqueue_counts::last_timeout_ns / 1'000'000'000 == 24 * 60 * 60);
    CHECK(rig.wait(2'000'000'003) == 0);
    CHECK(kqueue_counts::last_timeout_ns == 2'000'000'003);
}

TEST_CASE("kqueue shows no interruption and no would-block to anybody") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    for (const kqueue_call call :
         {kqueue_call::receive, kqueue_call::send, kqueue_call::send_message}) {
        rig.receive(kqueue_who(0));
        client.send("x");
        kqueue_counts::plan(call, EINTR, 1, 3);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
        rig.send(kqueue_who(0), "y");
        CHECK(rig.until(event_kind::sent).byte_count == 1);
        const netio::bytes slices[] = {netio::as_bytes("a"), netio::as_bytes("b")};
        rig.backend.start_send(kqueue_who(0), slices);
        CHECK(rig.until(event_kind::sent).byte_count == 2);
        CHECK(client.receive(3) == "yab");
    }
    rig.receive(kqueue_who(0));
    client.send("z");
    kqueue_counts::plan(kqueue_call::receive, EAGAIN);
    rig.wait(kqueue_long_ns);
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    client.send("z");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "zz");
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue holds nothing when any call of open fails") {
    for (const kqueue_call call :
         {kqueue_call::create, kqueue_call::change}) {
        std::vector<std::byte> raw(kqueue_rig::memory_bytes + 64);
        const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
        const netio::mutable_bytes memory{raw.data() + (64 - at % 64) % 64,
                                          kqueue_rig::memory_bytes};
        netio::buffer_pool pool;
        kqueue_backend backend;
        kqueue_counts::reset();
        const std::size_t before = open_handles();
        kqueue_counts::plan(call, EMFILE);
        const netio::os_status status = backend.open(memory, kqueue_sizes, pool);
        CHECK(status.why == netio::error::descriptors_empty);
        CHECK(status.os_code == EMFILE);
        CHECK(open_handles() == before);
        backend.close();  // of one that is not open: nothing
        REQUIRE(backend.open(memory, kqueue_sizes, pool));  // and now it works
        backend.close();
        CHECK(open_handles() == before);
    }
}

TEST_CASE("kqueue opens without a spare descriptor too") {
    kqueue_counts::reset();
    std::vector<std::byte> raw(kqueue_rig::memory_bytes + 64);
    const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
    netio::buffer_pool pool;
    kqueue_backend backend;
    kqueue_counts::plan(kqueue_call::open_spare, EMFILE);
    CHECK(backend.open({raw.data() + (64 - at % 64) % 64, kqueue_rig::memory_bytes}, kqueue_sizes,
                       pool));
    backend.close();
}

TEST_CASE("kqueue holds nothing when any call of a start fails") {
    kqueue_rig rig;
    const netio::os_handle door = kqueue_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const netio::os_handle box = kqueue_backend::open_datagram(netio::loopback_ipv4(0), {});
    const netio::endpoint to = kqueue_backend::local_of(door.handle).value;
    const std::size_t before = open_handles();
    kqueue_counts::plan(kqueue_call::change, ENOMEM, 1, 2);
    CHECK(rig.backend.start_accept(door.handle, kqueue_who(0)).os_code == ENOMEM);
    CHECK(rig.backend.start_receive_from(box.handle, kqueue_who(0)).why ==
          netio::error::kernel_memory_empty);
    kqueue_counts::plan(kqueue_call::hush, EINVAL);
    CHECK(rig.backend.attach(door.handle, kqueue_who(0)).os_code == EINVAL);
    for (const kqueue_call call :
         {kqueue_call::socket, kqueue_call::setsockopt, kqueue_call::connect}) {
        kqueue_counts::plan(call, ENOBUFS);
        CHECK(rig.backend.start_connect({to, {}}, {}, kqueue_who(0)).os_code == ENOBUFS);
    }
    kqueue_counts::plan(kqueue_call::connect, EINTR);  // as good as in progress
    REQUIRE(rig.backend.start_connect({to, {}}, {}, kqueue_who(0)));
    kqueue_counts::plan(kqueue_call::getsockopt, EIO);
    CHECK(rig.until(event_kind::failed).os_code == EIO);
    rig.close(kqueue_who(0));
    rig.quiet();
    CHECK(open_handles() == before);
    REQUIRE(rig.backend.start_accept(door.handle, kqueue_who(0)));  // all slots are free still
    REQUIRE(rig.backend.start_receive_from(box.handle, kqueue_who(0)));
    rig.backend.stop_accept(kqueue_who(0));
    rig.backend.stop_receive_from(kqueue_who(0));
    rig.until(event_kind::closed);
    kqueue_backend::close_handle(door.handle, false);
    kqueue_backend::close_handle(box.handle, false);
}

TEST_CASE("kqueue reports a send that can't be waited for as failed") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    struct full_sys_guard {
        ~full_sys_guard() { kqueue_counts::reset(); }
    } guard;
    const std::string big(16 * 1024 * 1024, 'x');
    kqueue_counts::refuse(EVFILT_WRITE, ENOMEM);
    for (;;) {  // until both socket buffers are full
        rig.send(kqueue_who(0), big);
        while (rig.wait(kqueue_long_ns) == 0) {
        }
        rig.seen.clear();
        if (rig.out[0].kind == event_kind::failed) {
            break;
        }
    }
    CHECK(rig.out[0].op == operation::send);
    CHECK(rig.out[0].os_code == ENOMEM);
    rig.close(kqueue_who(0), true);
}

TEST_CASE("kqueue close ends everything that is still attached") {
    kqueue_rig rig;
    kqueue_client client;
    {
        kqueue_door door(rig);
        client = door.connect(kqueue_who(0));
    }
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(kqueue_dead_port()), {}}, {},
                                      kqueue_who(1)));
    rig.backend.close();
    CHECK(client.receive(1).empty());
}

TEST_CASE("kqueue is there on this kernel") {
    CHECK(kqueue_backend::available().offered);
    kqueue_counts::plan(kqueue_call::create, ENOSYS);
    const netio::availability missing = kqueue_backend::available();
    CHECK_FALSE(missing.offered);
    CHECK(std::string_view(missing.missing) == "kqueue");
    kqueue_counts::plan(kqueue_call::create, EMFILE);
    CHECK(kqueue_backend::available().offered);
    kqueue_counts::reset();
    CHECK(kqueue_backend::connection_bytes == 40);
}

// ---- corners

TEST_CASE("kqueue stops receives that wait for a buffer") {
    kqueue_rig rig(1);
    kqueue_mailbox mailbox(rig);
    kqueue_door door(rig);
    kqueue_client first = door.connect(kqueue_who(0));
    kqueue_client second = door.connect(kqueue_who(1));
    rig.receive(kqueue_who(0));
    first.send("taken");
    const event taken = rig.until(event_kind::received);
    rig.receive(kqueue_who(1));
    second.send("kept");
    rig.wait(kqueue_long_ns);
    {
        kqueue_mailbox other(rig, 1);  // stopped while its datagram waits
        other.post("lost", other.there);
        rig.until(event_kind::sent);
        rig.wait(0);
        CHECK(rig.seen.empty());
    }
    rig.backend.stop_receive(kqueue_who(1));
    CHECK(rig.until(event_kind::received).byte_count == 0);
    rig.text_of(taken);
    rig.quiet();
    CHECK_FALSE(rig.backend.ready());
    rig.receive(kqueue_who(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "kept");
    rig.close(kqueue_who(0));
    rig.close(kqueue_who(1));
}

TEST_CASE("kqueue goes on with a receive of much credit that had waited for a buffer") {
    kqueue_rig rig(1);
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send(std::string(3000, 'x'));
    rig.receive(kqueue_who(0), 3000);
    rig.quiet();
    rig.pool.give(buffer, netio::side::input, 0);
    std::size_t got = 0;
    while (got < 3000) {
        got += rig.text_of(rig.until(event_kind::received)).size();
    }
    CHECK(got == 3000);
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue keeps for the next wait what has no room in this one") {
    kqueue_rig rig;
    kqueue_door door(rig);
    std::vector<kqueue_client> clients;
    for (std::uint32_t index = 0; index < 6; ++index) {
        clients.push_back(door.connect(kqueue_who(index)));
        clients[index].send("x");
    }
    rig.quiet();
    for (std::uint32_t index = 0; index < 6; ++index) {
        rig.send(kqueue_who(index), "y");
        if (index != 0) {  // an odd number of events, so that some connection is cut in two
            rig.receive(kqueue_who(index));
        }
        if (index % 2 == 0 && index != 0) {
            rig.backend.stop_receive(kqueue_who(index));
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
        rig.close(kqueue_who(index));
    }
}

TEST_CASE("kqueue drops events of listeners and datagram sockets that were stopped meanwhile") {
    kqueue_rig rig;
    kqueue_door door(rig);
    std::vector<kqueue_client> clients;
    for (std::uint32_t index = 0; index < 4; ++index) {
        clients.push_back(door.connect(kqueue_who(index)));
        rig.receive(kqueue_who(index));
    }
    rig.quiet();
    {
        kqueue_mailbox mailbox(rig);
        for (kqueue_client& client : clients) {
            client.send("x");
        }
        kqueue_client late(door.port);
        mailbox.post("datagram", mailbox.there);  // its `sent` takes no room from the first four
        CHECK(rig.wait(kqueue_long_ns, 4) == 1);
        CHECK(rig.until(event_kind::sent).byte_count == 8);
        CHECK(rig.wait(kqueue_long_ns, 4) == 4);
        rig.backend.stop_accept(door.who);
        door.accepting = false;
        for (std::uint32_t index = 0; index < 4; ++index) {
            CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
        }
    }
    rig.quiet();
    CHECK(rig.backend.stale_count() == 2);
    for (std::uint32_t index = 0; index < 4; ++index) {
        rig.close(kqueue_who(index));
    }
}

TEST_CASE("kqueue keeps datagrams in order when there is no room again, and fails what it must") {
    kqueue_rig rig;
    kqueue_mailbox mailbox(rig);
    kqueue_counts::plan(kqueue_call::send_to, EAGAIN, 1, 4);
    mailbox.post("one", mailbox.there, 0);
    mailbox.post("two", mailbox.there, 1);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "one");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "two");
    rig.seen.clear();
    rig.quiet();
    kqueue_counts::plan(kqueue_call::send_to, EAGAIN);
    mailbox.post("room by now", mailbox.there, 0);
    kqueue_counts::refuse(EVFILT_WRITE, ENOMEM);  // but it is tried once more before it fails
    CHECK(rig.until(event_kind::sent).byte_count == 11);
    rig.text_of(rig.until(event_kind::received));
    kqueue_counts::plan(kqueue_call::send_to, EAGAIN, 1, 2);
    mailbox.post("never", mailbox.there, 0);
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::send_to);
    CHECK(failed.os_code == ENOMEM);
    rig.quiet();
}

TEST_CASE("kqueue does not sleep when it is woken between two looks") {
    kqueue_rig rig(1);
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send("x");
    rig.receive(kqueue_who(0));
    rig.quiet();
    rig.pool.give(buffer, netio::side::input, 0);
    kqueue_signalled = &rig.backend;
    kqueue_counts::on_receive = [] { kqueue_signalled->wake(); };
    kqueue_counts::plan(kqueue_call::receive, EAGAIN);
    CHECK(rig.wait(netio::forever_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    CHECK(kqueue_counts::of(kqueue_call::trigger) == 0);
    kqueue_counts::on_receive = nullptr;
    kqueue_signalled = nullptr;
    rig.seen.clear();
    rig.close(kqueue_who(0));
}

// ---- changes

TEST_CASE("kqueue makes the changes of connections by the wait, and forgets those of closed ones") {
    kqueue_rig rig;
    kqueue_door door(rig);
    rig.quiet();
    kqueue_client clients[3] = {kqueue_client(door.port), kqueue_client(door.port),
                                kqueue_client(door.port)};
    netio::socket_handle handles[3];
    for (netio::socket_handle& each : handles) {
        each = rig.until(event_kind::accepted).handle;
    }
    kqueue_counts::reset();
    REQUIRE(rig.backend.attach(handles[0], kqueue_who(0)));
    REQUIRE(rig.backend.attach(handles[1], kqueue_who(1)));
    REQUIRE(rig.backend.attach(handles[2], kqueue_who(2)));
    CHECK(rig.backend.ready());  // a foreign loop must not sleep on them
    CHECK(kqueue_counts::total() == 0);
    rig.backend.start_close(kqueue_who(0), true);
    CHECK(rig.backend.release(kqueue_who(2)) == handles[2]);
    CHECK(kqueue_counts::of(kqueue_call::change) == 0);  // nobody had heard of it
    rig.wait(0);
    rig.wait(0);
    CHECK(kqueue_counts::change_count == 1);
    CHECK(kqueue_counts::of(kqueue_call::wait) == 1);
    CHECK_FALSE(rig.backend.ready());
    CHECK(rig.until(event_kind::closed).who == kqueue_who(0));
    kqueue_backend::close_handle(handles[2], false);
    rig.close(kqueue_who(1));
}

namespace {

/// 300 connections attached before the first wait: more than the list of changes holds.
struct kqueue_crowd {
    static constexpr std::uint32_t count = 300;
    kqueue_rig& rig;
    std::vector<int> peers;

    explicit kqueue_crowd(kqueue_rig& of) : rig(of) {
        for (std::uint32_t index = 0; index < count; ++index) {
            int pair[2];
            REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) ==
                    0);
            peers.push_back(pair[1]);
            REQUIRE(rig.backend.attach(pair[0], kqueue_who(index)));
            rig.receive(kqueue_who(index));
        }
    }
    ~kqueue_crowd() {
        for (int each : peers) {
            ::close(each);
        }
    }
    /// One event each; how many of them were of this kind and code.
    std::uint32_t told(event_kind kind, int code) {
        std::uint32_t found = 0;
        for (std::uint32_t all = 0; all < count;) {
            REQUIRE(rig.wait(kqueue_long_ns) != 0);
            for (const event& each : rig.seen) {
                CHECK(each.op == operation::receive);
                found += each.kind == kind && each.os_code == code;
                if (each.buffer_index != netio::none_index) {
                    rig.text_of(each);
                }
                ++all;
            }
            rig.seen.clear();
        }
        return found;
    }
};

}  // namespace

TEST_CASE("kqueue forgets the changes of a released connection that was registered before") {
    kqueue_rig rig;
    std::vector<int> peers;
    for (std::uint32_t index = 0; index < 256; ++index) {  // as many as are kept
        int pair[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        peers.push_back(pair[1]);
        REQUIRE(rig.backend.attach(pair[0], kqueue_who(index)));
    }
    // The wait for room is one change too many; by the answers to the others the send is tried
    // again and done, but the change is kept.
    kqueue_counts::reset();
    kqueue_counts::plan(kqueue_call::send, EAGAIN);
    kqueue_counts::refuse(EVFILT_READ, ENOMEM);
    rig.send(kqueue_who(255), "late");
    CHECK(kqueue_counts::of(kqueue_call::flush) == 1);
    CHECK(kqueue_counts::of(kqueue_call::send) == 2);
    kqueue_counts::reset();
    CHECK(rig.until(event_kind::sent).byte_count == 4);
    CHECK(kqueue_counts::of(kqueue_call::wait) == 0);
    const netio::socket_handle handle = rig.backend.release(kqueue_who(255));
    CHECK(kqueue_counts::of(kqueue_call::change) == 1);
    rig.quiet();
    CHECK(kqueue_counts::of(kqueue_call::wait) > 0);
    CHECK(kqueue_counts::most_changes == 0);
    kqueue_backend::close_handle(handle, false);
    for (const int each : peers) {
        ::close(each);
    }
}

TEST_CASE("kqueue enters the kernel for changes alone only when there are too many to keep") {
    kqueue_rig rig;
    kqueue_counts::reset();
    kqueue_crowd crowd(rig);
    CHECK(kqueue_counts::of(kqueue_call::flush) == 1);
    CHECK(kqueue_counts::total() == 1);
    for (int each : crowd.peers) {
        REQUIRE(::write(each, "x", 1) == 1);
    }
    CHECK(crowd.told(event_kind::received, 0) == crowd.count);
    CHECK(kqueue_counts::of(kqueue_call::flush) == 1);
}

TEST_CASE("kqueue makes every change of a batch though one is taken back and one fails") {
    kqueue_rig rig;
    std::vector<int> peers;
    for (std::uint32_t index = 0; index < 100; ++index) {
        int pair[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        if (index == 7) {  // what no kqueue watches, in place of a socket
            ::close(pair[0]);
            pair[0] = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        }
        peers.push_back(pair[1]);
        REQUIRE(rig.backend.attach(pair[0], kqueue_who(index)));
        rig.receive(kqueue_who(index));
    }
    rig.backend.start_close(kqueue_who(50), true);
    kqueue_counts::reset();
    rig.wait(0);  // closed, without the kernel
    rig.wait(0);
    CHECK(kqueue_counts::change_count == 99);
    CHECK(kqueue_counts::of(kqueue_call::wait) == 1);
    CHECK(rig.until(event_kind::closed).who == kqueue_who(50));
    CHECK(rig.until(event_kind::failed).who == kqueue_who(7));
    for (std::uint32_t index = 0; index < 100; ++index) {
        if (index != 50 && index != 7) {
            REQUIRE(::write(peers[index], "x", 1) == 1);
            const event received = rig.until(event_kind::received);
            CHECK(received.who == kqueue_who(index));
            rig.text_of(received);
        }
        ::close(peers[index]);
    }
    rig.quiet();
}

TEST_CASE("kqueue tells of each connection that the kernel would not watch") {
    for (const bool whole_call : {true, false}) {
        CAPTURE(whole_call);
        kqueue_rig rig;
        kqueue_counts::reset();
        if (whole_call) {
            kqueue_counts::plan(kqueue_call::flush, ENOMEM);
        } else {
            kqueue_counts::refuse(EVFILT_READ, ENOMEM);  // by the wait as well
        }
        kqueue_crowd crowd(rig);
        for (int each : crowd.peers) {
            REQUIRE(::write(each, "x", 1) == 1);
        }
        CHECK(crowd.told(event_kind::received, 0) == crowd.count);  // what is there, first
        kqueue_counts::reset();
        for (std::uint32_t index = 0; index < crowd.count; ++index) {
            rig.receive(kqueue_who(index));
            REQUIRE(::write(crowd.peers[index], "y", 1) == 1);
        }
        CHECK(crowd.told(event_kind::received, 0) == crowd.count);
        for (std::uint32_t index = 0; index < 256; ++index) {
            rig.receive(kqueue_who(index));
        }
        for (std::uint32_t all = 0; all < 256; ++all) {
            const event failed = rig.until(event_kind::failed);
            CHECK(failed.op == operation::receive);
            CHECK(failed.why == netio::error::kernel_memory_empty);
            CHECK(failed.os_code == ENOMEM);
        }
        rig.quiet();
    }
}

TEST_CASE("kqueue takes the changes of an interrupted wait as made") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    rig.receive(kqueue_who(0));
    kqueue_counts::interrupted = true;
    CHECK(rig.wait(kqueue_long_ns) == 0);
    CHECK(kqueue_counts::change_count == 1);
    rig.quiet();
    CHECK(kqueue_counts::change_count == 0);
    client.send("x");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
    rig.close(kqueue_who(0));
}

TEST_CASE("kqueue fails what it can't be told about: receives, sends and connects") {
    for (const bool whole_call : {true, false}) {
        CAPTURE(whole_call);
        kqueue_rig rig;
        kqueue_door door(rig);
        const auto spoil = [whole_call](int filter) {
            kqueue_counts::reset();
            if (whole_call) {
                kqueue_counts::plan(kqueue_call::wait, ENOMEM);
            } else {
                kqueue_counts::refuse(filter, ENOMEM);
            }
        };
        kqueue_client idle = door.connect(kqueue_who(0));
        spoil(EVFILT_READ);
        rig.wait(0);
        kqueue_counts::reset();
        CHECK(rig.seen.empty());  // nobody had asked yet
        rig.receive(kqueue_who(0));
        CHECK(rig.until(event_kind::failed).who == kqueue_who(0));
        // The door's own address, so that nothing but the registration fails.
        const netio::endpoint there = netio::loopback_ipv4(door.port);
        REQUIRE(rig.backend.start_connect({there, {}}, {}, kqueue_who(1)));
        spoil(EVFILT_WRITE);
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.op == operation::connect);
        CHECK(failed.os_code == ENOMEM);
        kqueue_counts::reset();
        rig.close(kqueue_who(0));
        rig.close(kqueue_who(1));
        kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        rig.quiet();
    }
}

TEST_CASE("kqueue releases a connection that the kernel would not watch") {
    for (const bool whole_call : {true, false}) {
        CAPTURE(whole_call);
        kqueue_rig rig;
        kqueue_door door(rig);
        kqueue_client client = door.connect(kqueue_who(0));
        if (whole_call) {
            kqueue_counts::plan(kqueue_call::wait, ENOMEM);
        } else {
            kqueue_counts::refuse(EVFILT_READ, ENOMEM);
        }
        rig.wait(0);
        kqueue_counts::reset();
        const netio::socket_handle handle = rig.backend.release(kqueue_who(0));
        CHECK(::write(static_cast<int>(handle), "x", 1) == 1);
        CHECK(client.receive(1) == "x");
        rig.quiet();
        kqueue_backend::close_handle(handle, false);
    }
}

TEST_CASE("kqueue serves a receive without a buffer once though a change of it is refused") {
    kqueue_rig rig(1);
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send("x");
    rig.receive(kqueue_who(0));
    rig.quiet();
    kqueue_counts::plan(kqueue_call::send, EAGAIN);
    rig.send(kqueue_who(0), "y");
    kqueue_counts::refuse(EVFILT_WRITE, ENOMEM);
    CHECK(rig.until(event_kind::sent).byte_count == 1);
    kqueue_counts::reset();
    rig.pool.give(buffer, netio::side::input, 0);
    const event received = rig.until(event_kind::received);
    CHECK(received.disarmed);
    CHECK(rig.text_of(received) == "x");
    const netio::socket_handle handle = rig.backend.release(kqueue_who(0));
    rig.quiet();
    kqueue_backend::close_handle(handle, false);
}

TEST_CASE("kqueue waits on when there is less room than it was told of") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(kqueue_who(0));
    kqueue_counts::reset();
    kqueue_counts::plan(kqueue_call::send, EAGAIN, 1, 3);
    rig.send(kqueue_who(0), "late");
    CHECK(rig.until(event_kind::sent).byte_count == 4);
    CHECK(kqueue_counts::of(kqueue_call::send) == 4);
    CHECK(kqueue_counts::of(kqueue_call::change) == 0);
    CHECK(client.receive(4) == "late");
    kqueue_counts::plan(kqueue_call::send, EAGAIN);
    rig.send(kqueue_who(0), "never");
    rig.close(kqueue_who(0));  // its change goes with it
    CHECK(kqueue_counts::change_count == 0);
}

TEST_CASE("kqueue closes a client that comes without an address, for it was reset in the queue") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client gone(door.port);
    kqueue_counts::peer_is_gone = true;
    rig.wait(kqueue_long_ns);
    CHECK(rig.seen.empty());
    CHECK(gone.receive(1).empty());
    kqueue_client next = door.connect(kqueue_who(0));
    rig.close(kqueue_who(0));
}

// ---- 32 bits

namespace {

struct kqueue_narrow_sys : netio::kqueue_sys {
    using udata_word = std::uint32_t;
};

}  // namespace

TEST_CASE("kqueue drops stale events where udata has no room for a generation") {
    using narrow = netio::basic_kqueue<kqueue_narrow_sys>;
    constexpr netio::backend_limits sizes{8, 1, 1, 1};
    std::vector<std::byte> raw(narrow::bytes_needed(sizes) + 64);
    std::vector<std::byte> bytes(16 * 64);
    std::vector<std::uint32_t> links(16);
    netio::buffer_pool pool;
    pool.attach(bytes.data(), links.data(), 16, 64, 8, 8, false);
    narrow backend;
    const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
    REQUIRE(backend.open({raw.data() + (64 - at % 64) % 64, narrow::bytes_needed(sizes)}, sizes,
                         pool));
    int pairs[9][2];
    for (std::uint32_t index = 0; index < 8; ++index) {
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
                             pairs[index]) == 0);
        REQUIRE(backend.attach(pairs[index][0], kqueue_who(index)));
        backend.start_receive(kqueue_who(index), {}, 1);
        REQUIRE(::write(pairs[index][1], "x", 1) == 1);
    }
    event out[4];
    REQUIRE(backend.wait(out, kqueue_long_ns) == 4);  // four more are told of and not looked at
    std::uint32_t left = 0;
    for (const event& each : out) {
        left += each.who.index();
        pool.give(each.buffer_index, netio::side::input, 1);
    }
    const std::uint32_t last = left > 14 ? 0 : 7;  // of the other half
    backend.start_close(kqueue_who(last), true);
    event closed[4];
    const std::uint32_t count = backend.wait(closed, 0);  // a part of the four, and the closed
    REQUIRE(count >= 1);
    CHECK(closed[0].kind == event_kind::closed);
    CHECK(closed[0].who == kqueue_who(last));
    for (std::uint32_t one = 1; one < count; ++one) {
        CHECK(closed[one].who != kqueue_who(last));
        pool.give(closed[one].buffer_index, netio::side::input, 1);
    }
    // The slot and the descriptor's number have a new owner before the old event is looked at.
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pairs[8]) == 0);
    REQUIRE(backend.attach(pairs[8][0], kqueue_who(last, 2)));
    backend.start_receive(kqueue_who(last, 2), {}, 1);
    for (int turn = 0; turn < 4; ++turn) {
        const std::uint32_t more = backend.wait(out, 0);
        for (std::uint32_t one = 0; one < more; ++one) {
            CHECK(out[one].who != kqueue_who(last, 2));
            pool.give(out[one].buffer_index, netio::side::input, 1);
        }
    }
    CHECK(backend.stale_count() == 1);
    REQUIRE(::write(pairs[8][1], "y", 1) == 1);
    REQUIRE(backend.wait(out, kqueue_long_ns) == 1);
    CHECK(out[0].who == kqueue_who(last, 2));
    pool.give(out[0].buffer_index, netio::side::input, 1);
    CHECK(pool.in_use(netio::side::input) == 0);
    backend.close();
    for (const auto& pair : pairs) {
        ::close(pair[1]);
    }
}

TEST_CASE("kqueue drops stale events without a generation though changes outgrow their list") {
    using narrow = netio::basic_kqueue<kqueue_narrow_sys>;
    constexpr netio::backend_limits sizes{300, 1, 1, 1};
    std::vector<std::byte> raw(narrow::bytes_needed(sizes) + 64);
    std::vector<std::byte> bytes(16 * 64);
    std::vector<std::uint32_t> links(16);
    netio::buffer_pool pool;
    pool.attach(bytes.data(), links.data(), 16, 64, 8, 8, false);
    narrow backend;
    const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
    REQUIRE(backend.open({raw.data() + (64 - at % 64) % 64, narrow::bytes_needed(sizes)}, sizes,
                         pool));
    std::vector<int> peers;
    const auto attach = [&](token who) {
        int pair[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        peers.push_back(pair[1]);
        REQUIRE(::write(pair[0], "x", 1) == 1);  // a peer that closes without reading it resets
        REQUIRE(backend.attach(pair[0], who));
        backend.start_receive(who, {}, 1);
    };
    for (std::uint32_t index = 0; index < 8; ++index) {
        attach(kqueue_who(index));
    }
    event out[4];
    REQUIRE(backend.wait(out, 0) == 0);
    for (const int each : peers) {
        ::close(each);
    }
    peers.clear();
    REQUIRE(backend.wait(out, kqueue_long_ns) == 4);  // four more are told of and not looked at
    std::uint32_t told = 0;
    for (const event& each : out) {
        told |= 1u << each.who.index();
    }
    const std::uint32_t last = (told & 1u << 7) != 0 ? 0 : 7;  // of the other half
    REQUIRE((told & 1u << last) == 0);
    backend.start_close(kqueue_who(last), true);
    REQUIRE(backend.wait(out, 0) == 4);  // three of the four, so the last one is still there
    CHECK(out[0].kind == event_kind::closed);
    CHECK(out[0].who == kqueue_who(last));
    // The slot has a new owner, and more are attached than there is room for changes.
    attach(kqueue_who(last, 2));
    for (std::uint32_t index = 8; index < 300; ++index) {
        attach(kqueue_who(index));
    }
    for (int turn = 0; turn < 8; ++turn) {
        const std::uint32_t more = backend.wait(out, 0);
        for (std::uint32_t one = 0; one < more; ++one) {
            CHECK(out[one].who != kqueue_who(last, 2));
        }
    }
    CHECK(backend.stale_count() == 1);
    CHECK(pool.in_use(netio::side::input) == 0);
    backend.close();
    for (const int each : peers) {
        ::close(each);
    }
}

#endif
