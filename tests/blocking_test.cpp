// What only the blocking backend can show: its system calls counted and failed, when it takes its
// short cut, what a receive that waits does to a socket, and how wakes reach it.
#include "netio.hpp"

#if NETIO_HAS_POLL

#include "tests/service_world.hpp"

#include <atomic>
#include <signal.h>

namespace {

using netio::event;
using netio::event_kind;
using netio::token;
using netio_test::client_socket;

/// Counts the calls of a connection's life; planned ones fail instead of being made.
struct blocking_spy : netio::blocking_sys {
    using real = netio::blocking_sys;
    enum call { accept_, send_, receive_, waiting_, set_, get_flags_, set_flags_, poll_, close_,
                write_, read_, kinds };
    static inline std::atomic<int> counts[kinds] = {};
    static inline call fail_call = kinds;
    static inline int fail_code = 0;
    static inline int fail_times = 0;
    static inline int last_timeout_ms = 0;
    static inline int (*on_waiting)() = nullptr;  // gives the errno of the receive, or 0

    static void reset() {
        for (auto& each : counts) {
            each = 0;
        }
        fail_call = kinds;
        on_waiting = nullptr;
    }
    static int total() {
        int all = 0;
        for (auto& each : counts) {
            all += each;
        }
        return all;
    }
    static void plan(call which, int code, int times = 1) {
        fail_call = which;
        fail_code = code;
        fail_times = times;
    }
    template <class Call>
    static auto via(call which, Call body) noexcept -> decltype(body()) {
        ++counts[which];
        if (which == fail_call && fail_times != 0) {
            --fail_times;
            errno = fail_code;
            return -1;
        }
        return body();
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        return via(accept_, [&] { return real::accept(from, peer, size); });
    }
    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        return via(send_, [&] { return real::send(to, from, count); });
    }
    static ssize_t send_message(int to, const msghdr* what) noexcept {
        return via(send_, [&] { return real::send_message(to, what); });
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        return via(receive_, [&] { return real::receive(from, into, count); });
    }
    static ssize_t receive_waiting(int from, void* into, std::size_t count) noexcept {
        return via(waiting_, [&]() -> ssize_t {
            if (const int code = on_waiting != nullptr ? on_waiting() : 0; code != 0) {
                errno = code;
                return -1;
            }
            return real::receive_waiting(from, into, count);
        });
    }
    static int setsockopt(int of, int level, int option, const void* value,
                          socklen_t size) noexcept {
        return via(set_, [&] { return real::setsockopt(of, level, option, value, size); });
    }
    static int get_flags(int of) noexcept {
        return via(get_flags_, [&] { return real::get_flags(of); });
    }
    static int set_flags(int of, int flags) noexcept {
        return via(set_flags_, [&] { return real::set_flags(of, flags); });
    }
    static int poll(pollfd* all, std::uint32_t count, int timeout_ms) noexcept {
        last_timeout_ms = timeout_ms;
        return via(poll_, [&] { return real::poll(all, count, timeout_ms); });
    }
    static int close(int what) noexcept {
        ++counts[close_];
        return real::close(what);
    }
    static ssize_t write_wake(int to) noexcept {
        return via(write_, [&] { return real::write_wake(to); });
    }
    static ssize_t read_wake(int from) noexcept {
        return via(read_, [&] { return real::read_wake(from); });
    }
};
using blocking_backend = netio::basic_blocking<blocking_spy>;
static_assert(netio::backend<blocking_backend>);
static_assert(netio::backend_blocks<blocking_backend>);
static_assert(!netio::backend_blocks<netio::poll>);
static_assert(blocking_backend::connection_bytes == 40);

constexpr netio::backend_limits blocking_sizes{2, 1, 1, 1};
constexpr token blocking_who = token::of(0, 1);
constexpr std::uint64_t blocking_long_ns = 5'000'000'000;

/// An open backend with a connection at index 0; on the way out nothing may be left of either.
template <class Backend>
struct blocking_rig_of {
    static constexpr std::uint32_t buffer_bytes = 1024;
    std::size_t handles_before = (blocking_spy::reset(), netio_test::client_os::start(),
                                  netio_test::client_os::open_handles());
    netio_test::fresh_memory memory{Backend::bytes_needed(blocking_sizes)};
    netio_test::fresh_memory data{4 * buffer_bytes};
    std::uint32_t links[4] = {};
    netio::buffer_pool pool;
    Backend backend;
    client_socket client;
    event out[4];
    bool attached = true;

    blocking_rig_of() {
        pool.attach(data.all().data(), links, 4, buffer_bytes, 2, 2, true);
        REQUIRE(backend.open(memory.all(), blocking_sizes, pool));
        auto [near, far] = client_socket::pair();
        client = std::move(near);
        REQUIRE(backend.attach(far, blocking_who));
        blocking_spy::reset();
    }
    ~blocking_rig_of() {
        blocking_spy::reset();
        if (attached) {
            backend.start_close(blocking_who, true);
            CHECK(until(event_kind::closed).who == blocking_who);
        }
        backend.close();
        client.close();
        CHECK(netio_test::client_os::open_handles() == handles_before);
        CHECK(pool.in_use(netio::side::input) == 0);
    }
    event until(event_kind kind) {
        for (int turn = 0; turn < 100; ++turn) {
            const std::uint32_t count = backend.wait(out, blocking_long_ns);
            for (std::uint32_t at = 0; at < count; ++at) {
                if (out[at].kind == kind) {
                    return out[at];
                }
            }
        }
        FAIL("the event never came");
        return {};
    }
    void receive() { backend.start_receive(blocking_who, {}, 1); }
    std::string text_of(const event& got) {
        const std::string text(netio::as_text({pool.data(got.buffer_index), got.byte_count}));
        pool.give(got.buffer_index, netio::side::input, got.byte_count);
        return text;
    }
    bool send(std::string_view text) {
        const netio::bytes slice = netio::as_bytes(text);
        return backend.send_now(blocking_who, {&slice, 1});
    }
    int descriptor_flags(netio::socket_handle of) {
        return ::fcntl(static_cast<int>(of), F_GETFL);
    }
};
using blocking_rig = blocking_rig_of<blocking_backend>;

/// Ten round trips of 64 bytes, and nothing else.
void blocking_echo(blocking_rig& rig, int rounds = 10) {
    const std::string asked(64, 'x');
    for (int round = 0; round < rounds; ++round) {
        rig.receive();
        rig.client.send(asked);
        const event got = rig.until(event_kind::received);
        CHECK(bool{got.disarmed});
        CHECK(got.who == blocking_who);
        CHECK(rig.send(rig.text_of(got)));
    }
    CHECK(rig.client.arrived().size() == 64u * static_cast<std::size_t>(rounds));
}

}  // namespace

// ---- system calls

TEST_CASE("blocking echoes 64 bytes to a lone client with two system calls a round trip") {
    blocking_rig rig;
    blocking_echo(rig, 1);
    CHECK(blocking_spy::total() == 5);  // three make the socket one that waits
    blocking_spy::reset();
    rig.client.take_some(0);
    const std::string asked(64, 'x');
    for (int round = 0; round < 10; ++round) {
        rig.receive();
        rig.client.send(asked);
        CHECK(rig.send(rig.text_of(rig.until(event_kind::received))));
    }
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 10);
    CHECK(blocking_spy::counts[blocking_spy::send_] == 10);
    CHECK(blocking_spy::total() == 20);
}

TEST_CASE("blocking echoes with three system calls a round trip where wakes are heard at once") {
    blocking_rig rig;
    rig.backend.wake_at_once(true);
    blocking_echo(rig);
    CHECK(blocking_spy::counts[blocking_spy::poll_] == 10);
    CHECK(blocking_spy::counts[blocking_spy::receive_] == 10);
    CHECK(blocking_spy::counts[blocking_spy::send_] == 10);
    CHECK(blocking_spy::total() == 30);
}

TEST_CASE("blocking takes the short cut for a receive alone, and for nothing else") {
    blocking_rig rig;
    const netio::os_handle door = blocking_backend::listen({netio::loopback_ipv4(0), {}}, {});
    REQUIRE(door);
    const auto waited = [&](std::uint64_t timeout_ns = blocking_long_ns) {
        blocking_spy::reset();
        rig.receive();
        rig.client.send("x");
        event got{};
        while (got.kind != event_kind::received) {
            rig.backend.wait(rig.out, timeout_ns);
            got = rig.out[0];
        }
        rig.text_of(got);
        return blocking_spy::counts[blocking_spy::waiting_] != 0;
    };
    CHECK(waited());
    CHECK(waited(netio::forever_ns));
    CHECK(waited(blocking_backend::late_wake_ns));
    CHECK_FALSE(waited(blocking_backend::late_wake_ns - 1));
    CHECK_FALSE(waited(0));

    REQUIRE(rig.backend.start_accept(door.handle, blocking_who));
    CHECK_FALSE(waited());
    rig.backend.stop_accept(blocking_who);
    CHECK(waited());

    const netio::os_handle udp = blocking_backend::open_datagram(netio::loopback_ipv4(0), {});
    REQUIRE(udp);
    REQUIRE(rig.backend.start_receive_from(udp.handle, blocking_who));
    CHECK_FALSE(waited());
    rig.backend.stop_receive_from(blocking_who);
    rig.until(event_kind::closed);
    CHECK(waited());

    auto [near, far] = client_socket::pair();
    const token second = token::of(1, 1);
    REQUIRE(rig.backend.attach(far, second));
    CHECK(waited());  // attached, and waited for by nobody
    rig.backend.start_receive(second, {}, 1);
    CHECK_FALSE(waited());
    rig.backend.start_close(second, true);
    rig.until(event_kind::closed);
    CHECK(waited());

    blocking_backend::close_handle(udp.handle, false);
    blocking_backend::close_handle(door.handle, false);
}

TEST_CASE("blocking receives into the caller's memory the same way") {
    blocking_rig rig;
    std::byte into[16];
    rig.backend.start_receive(blocking_who, into, 0);
    rig.client.send("hello");
    const event got = rig.until(event_kind::received);
    CHECK(got.byte_count == 5);
    CHECK(got.buffer_index == netio::none_index);
    CHECK(bool{got.disarmed});
    CHECK(netio::as_text({into, 5}) == "hello");
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 1);
    CHECK(blocking_spy::counts[blocking_spy::poll_] == 0);
    // Nobody has asked for more.
    rig.client.send("more");
    blocking_spy::plan(blocking_spy::poll_, EINTR);
    CHECK(rig.backend.wait(rig.out, blocking_long_ns) == 0);
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 1);
}

TEST_CASE("blocking tells the end and a reset from a receive that waits") {
    for (const bool reset : {false, true}) {
        CAPTURE(reset);
        blocking_rig rig;
        rig.receive();
        reset ? rig.client.reset() : rig.client.shutdown();
        const event got = rig.until(reset ? event_kind::failed : event_kind::ended);
        CHECK(got.why == (reset ? netio::error::connection_reset : netio::error::none));
        CHECK(got.who == blocking_who);
        CHECK(blocking_spy::counts[blocking_spy::waiting_] == 1);
    }
}

// ---- a receive that finds nothing

TEST_CASE("blocking leaves the rest of a wait to poll when a tick brought nothing") {
    blocking_rig rig;
    rig.receive();
    blocking_spy::plan(blocking_spy::waiting_, EAGAIN);
    CHECK(rig.backend.wait(rig.out, blocking_backend::late_wake_ns + 3'000'000) == 0);
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 1);
    CHECK(blocking_spy::counts[blocking_spy::poll_] == 1);
    CHECK(blocking_spy::last_timeout_ms == 3);
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    CHECK(rig.pool.stats(netio::side::input).high_water == 0);  // taken in case, and not needed

    blocking_spy::plan(blocking_spy::waiting_, EAGAIN);
    rig.client.send("late");
    CHECK(rig.backend.wait(rig.out, netio::forever_ns) == 1);
    CHECK(blocking_spy::last_timeout_ms == -1);
    CHECK(rig.text_of(rig.out[0]) == "late");
    CHECK(rig.pool.stats(netio::side::input).high_water == 1);
}

TEST_CASE("blocking hears a wake when the tick is over, without a system call of the waker") {
    static blocking_rig* at = nullptr;
    blocking_rig rig;
    at = &rig;
    rig.receive();
    blocking_spy::on_waiting = [] {
        at->backend.wake();
        return EAGAIN;
    };
    CHECK(rig.until(event_kind::woken).op == netio::operation::wake);
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 1);
    CHECK(blocking_spy::counts[blocking_spy::write_] == 0);
    // One that came before is heard before anything waits.
    rig.backend.wake();
    CHECK(rig.until(event_kind::woken).op == netio::operation::wake);
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 1);
}

TEST_CASE("blocking hears a signal handler's wake at once") {
    static blocking_rig* at = nullptr;
    blocking_rig rig;
    at = &rig;
    rig.receive();
    struct sigaction handle {};
    struct sigaction before {};
    handle.sa_handler = [](int) { at->backend.wake(); };
    REQUIRE(::sigaction(SIGUSR1, &handle, &before) == 0);
    blocking_spy::on_waiting = [] {
        ::raise(SIGUSR1);
        return EINTR;
    };
    CHECK(rig.until(event_kind::woken).op == netio::operation::wake);
    ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_CASE("blocking goes on after an interrupted receive, for the whole of its time-out") {
    blocking_rig rig;
    rig.receive();
    blocking_spy::plan(blocking_spy::waiting_, EINTR);
    rig.client.send("x");
    const event got = rig.until(event_kind::received);
    CHECK(rig.text_of(got) == "x");
    CHECK(blocking_spy::last_timeout_ms == 5000);
    CHECK(blocking_spy::counts[blocking_spy::receive_] == 1);
}

TEST_CASE("blocking waits in line for a buffer like any other, and takes the short cut after it") {
    blocking_rig rig;
    const std::uint32_t first = rig.pool.take(netio::side::input);
    const std::uint32_t second = rig.pool.take(netio::side::input);
    const std::uint64_t refused = rig.pool.stats(netio::side::input).refused;
    rig.receive();
    rig.client.send("x");
    CHECK(rig.backend.wait(rig.out, 1'000'000) == 0);
    CHECK(rig.backend.wait(rig.out, blocking_backend::late_wake_ns) == 0);
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 0);
    CHECK(rig.pool.stats(netio::side::input).refused == refused + 1);
    rig.pool.give(first, netio::side::input, 0);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
    rig.pool.give(second, netio::side::input, 0);
    rig.receive();
    rig.client.send("y");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "y");
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 1);
}

// ---- the socket

TEST_CASE("blocking sends to a slow reader without waiting in the send") {
    blocking_rig rig;
    blocking_echo(rig, 1);  // the socket is one that waits from here on
    const std::string much = netio_test::service_pattern(8u << 20);
    const std::size_t before = rig.client.arrived().size();
    std::string_view left = much;
    CHECK_FALSE(rig.send(left));
    while (!left.empty()) {
        left.remove_prefix(rig.until(event_kind::sent).byte_count);
        rig.client.arrived();
        const netio::bytes slice = netio::as_bytes(left);
        if (!left.empty()) {
            rig.backend.start_send(blocking_who, {&slice, 1});
        }
    }
    CHECK(blocking_spy::counts[blocking_spy::poll_] != 0);
    const std::size_t whole = before + much.size();
    for (int turn = 0; turn < 10'000 && rig.client.arrived().size() < whole; ++turn) {
        netio_test::client_os::wait_readable(rig.client.handle(), 10);
    }
    CHECK(rig.client.arrived().substr(before) == much);
}

TEST_CASE("blocking gives a released socket back as it came: it waits for nothing") {
    blocking_rig rig;
    blocking_echo(rig, 1);
    rig.attached = false;
    const netio::socket_handle handle = rig.backend.release(blocking_who);
    CHECK((rig.descriptor_flags(handle) & O_NONBLOCK) != 0);
    timeval most{1, 1};
    socklen_t size = sizeof(most);
    REQUIRE(::getsockopt(static_cast<int>(handle), SOL_SOCKET, SO_RCVTIMEO, &most, &size) == 0);
    CHECK(most.tv_sec == 0);
    CHECK(most.tv_usec == 0);
    blocking_backend::close_handle(handle, false);
}

TEST_CASE("blocking is poll where the system does not let a socket wait, and asks it once") {
    for (const auto call : {blocking_spy::set_, blocking_spy::get_flags_,
                            blocking_spy::set_flags_}) {
        CAPTURE(static_cast<int>(call));
        blocking_rig rig;
        blocking_spy::plan(call, EINVAL);
        blocking_echo(rig);
        CHECK(blocking_spy::counts[call] == 1);
        CHECK(blocking_spy::counts[blocking_spy::waiting_] == 0);
        CHECK(blocking_spy::counts[blocking_spy::poll_] == 10);
        CHECK(blocking_spy::counts[blocking_spy::receive_] == 10);
    }
}

namespace {

/// As where MSG_DONTWAIT is not heard by a send.
struct blocking_never_sys : blocking_spy {
    static constexpr bool may_block = false;
};

}  // namespace

TEST_CASE("blocking never waits in a receive where a send could then wait, too") {
    blocking_rig_of<netio::basic_blocking<blocking_never_sys>> rig;
    rig.receive();
    rig.client.send("x");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
    CHECK(blocking_spy::counts[blocking_spy::waiting_] == 0);
    CHECK(blocking_spy::counts[blocking_spy::set_] == 0);
    CHECK(blocking_spy::counts[blocking_spy::poll_] == 1);
}

TEST_CASE("blocking forgets what it did to a socket with its connection") {
    blocking_rig rig;
    blocking_echo(rig, 1);
    rig.backend.start_close(blocking_who, true);
    rig.until(event_kind::closed);
    auto [near, far] = client_socket::pair();
    rig.client = std::move(near);
    REQUIRE(rig.backend.attach(far, blocking_who));
    blocking_spy::reset();
    blocking_echo(rig, 1);
    CHECK(blocking_spy::counts[blocking_spy::set_flags_] == 1);
}

// ---- under a server

namespace {

template <class Handler>
int blocking_calls_of_ten_round_trips(Handler& handler, const netio::wait_options& how) {
    constexpr netio::limits sizes{.connections_max = 1, .buffer_bytes = 1024};
    blocking_spy::reset();
    netio_test::client_os::start();
    netio_test::fresh_memory memory(netio::bytes_needed<blocking_backend>(sizes));
    netio::blocking_pool<Handler, blocking_backend> pool{
        netio::storage_view{memory.all(), sizes}, handler};
    pool.waiting(how);
    netio::listener_id id;
    REQUIRE(pool.listen({.address = "127.0.0.1"}, &id) == netio::error::none);
    client_socket client(pool.local(id));
    const std::string asked(64, 'x');
    // Each wait is for bytes that are there already; the last one is for the client's end.
    int rounds = -2;
    std::size_t sent = 0;
    int counted = 0;
    const auto next = [&] {
        client.arrived();
        if (++rounds == 0) {
            blocking_spy::reset();
        }
        if (rounds == 10) {
            counted = blocking_spy::total();
            client.shutdown();
            pool.drain(60'000);
        } else {
            sent += client.send(asked);
        }
    };
    handler.before = next;
    next();
    CHECK(pool.run() == netio::error::none);
    CHECK(client.arrived().size() == sent);
    CHECK(sent == 11 * 64);
    return counted;
}

struct blocking_streams {
    std::function<void()> before;
    void on_connection(netio::stream& s) noexcept {
        std::byte into[64];
        while (s.recv_exact(into) && s.send_all({into, 64})) {
            before();
        }
    }
};
/// The next request is there before the answer leaves, so that it is the wait that finds it.
struct blocking_callbacks {
    std::function<void()> before;
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        c.write(in);
        before();
        return in.size();
    }
};
struct blocking_callbacks_with_posts : blocking_callbacks {
    void on_post(netio::connection&, std::uint64_t) noexcept {}
};

}  // namespace

TEST_CASE("blocking pool: a round trip is two system calls, or three where wakes are prompt") {
    const netio::wait_options prompt{.wake_at_once = true};
    blocking_streams streams;
    CHECK(blocking_calls_of_ten_round_trips(streams, {}) == 20);
    CHECK(blocking_calls_of_ten_round_trips(streams, prompt) == 30);
    blocking_callbacks callbacks;
    CHECK(blocking_calls_of_ten_round_trips(callbacks, {}) == 20);
    CHECK(blocking_calls_of_ten_round_trips(callbacks, prompt) == 30);
    blocking_callbacks_with_posts with_posts;
    CHECK(blocking_calls_of_ten_round_trips(with_posts, {}) == 30);
}

#endif
