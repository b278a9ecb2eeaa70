// What only the epoll backend can show: its system calls counted and failed one by one, the edges
// it relies on, stale events, running out of descriptors, wake-ups.
#include "netio.hpp"
#include "tests/client_socket.hpp"
#include "tests/readiness.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <arpa/inet.h>
#include <atomic>
#include <poll.h>
#include <memory>
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
    getsockname, receive, receive_message, shutdown, disconnect, close, epoll_create, epoll_ctl,
    wait, open_wake, open_timer, set_timer, write_wake, open_spare, get_limit, set_limit, count_
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
    static inline std::uint64_t last_timer_ns = 0;
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
    static bool disconnect(int of) noexcept {
        return enter(epoll_call::disconnect) && real::disconnect(of);
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
        return enter(epoll_call::wait) ? real::epoll_wait(in, out, count_max, timeout_ms)
                                             : -1;
    }
    static int open_wake() noexcept {
        return enter(epoll_call::open_wake) ? real::open_wake() : -1;
    }
    static int open_timer() noexcept {
        return enter(epoll_call::open_timer) ? real::open_timer() : -1;
    }
    static int set_timer(int which, std::uint64_t at_ns) noexcept {
        last_timer_ns = at_ns;
        return enter(epoll_call::set_timer) ? real::set_timer(which, at_ns) : -1;
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

using epoll_rig = netio_test::readiness_rig<epoll_sys, epoll_backend>;
using epoll_door = netio_test::readiness_door<epoll_rig>;
using epoll_mailbox = netio_test::readiness_mailbox<epoll_rig>;
using epoll_client = netio_test::readiness_client;
using netio_test::readiness_dead_port;
using netio_test::readiness_in_child;
using netio_test::readiness_long_ns;
using netio_test::readiness_sizes;
using netio_test::who_of;

const netio_test::readiness_cases<epoll_sys, epoll_call, epoll_backend> epoll_cases;

/// The one timer that stands for all time-outs, as it does in a server with deadlines.
void let_a_timer_stand(epoll_rig& rig) {
    epoll_sys::plan(epoll_call::wait, EINTR);
    rig.wait(readiness_long_ns);
    CHECK(epoll_sys::of(epoll_call::set_timer) == 1);
}

}  // namespace

TEST_CASE("epoll accepts, serves one message and sees the peer close with nine calls alone") {
    epoll_rig rig;
    epoll_door door(rig);
    rig.quiet();
    let_a_timer_stand(rig);
    epoll_sys::reset();
    epoll_client client = door.connect(who_of(0));
    rig.receive(who_of(0));
    client.send("one");
    const std::string text = rig.text_of(rig.until(event_kind::received));
    rig.send(who_of(0), text);
    rig.receive(who_of(0));
    rig.until(event_kind::sent);
    CHECK(client.receive(3) == "one");
    client.close();
    rig.until(event_kind::ended);
    rig.close(who_of(0));
    CHECK(epoll_sys::of(epoll_call::accept) == 1);
    CHECK(epoll_sys::of(epoll_call::epoll_ctl) == 1);
    CHECK(epoll_sys::of(epoll_call::wait) == 3);
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
        rig.wait(readiness_long_ns);
        const std::vector<event> now = std::move(rig.seen);
        rig.seen.clear();
        for (const event& each : now) {
            switch (each.kind) {
            case event_kind::accepted:
                REQUIRE(rig.backend.attach(each.handle, who_of(accepted)));
                rig.receive(who_of(accepted++));
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
    let_a_timer_stand(rig);
    CHECK(epoll_lockstep(rig, door, 16) <= 16 * 6 + 8);
    CHECK(epoll_sys::of(epoll_call::accept) <= 17);
    for (int burst = 0; burst < 3; ++burst) {
        CHECK(epoll_lockstep(rig, door, 16) <= 16 * 6 + 4);
        CHECK(epoll_sys::of(epoll_call::accept) == 16);
    }
    CHECK(epoll_lockstep(rig, door, 1) <= 10);  // one try too many, then it has learnt
    CHECK(epoll_lockstep(rig, door, 1) == 9);
}

// ---- edges

TEST_CASE("epoll needs no second read after a short one and no event after a full one") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(who_of(0));
    rig.receive(who_of(0));
    client.send(std::string(3000, 'x'));
    const event first = rig.until(event_kind::received);
    CHECK(first.byte_count == 1024);
    rig.text_of(first);
    epoll_sys::reset();
    rig.receive(who_of(0));
    rig.text_of(rig.until(event_kind::received));
    CHECK(epoll_sys::of(epoll_call::wait) == 0);
    CHECK(epoll_sys::of(epoll_call::receive) == 1);
    rig.receive(who_of(0));
    const event last = rig.until(event_kind::received);
    CHECK(last.byte_count == 3000 - 2048);
    rig.text_of(last);
    rig.receive(who_of(0));
    epoll_sys::reset();
    rig.quiet();
    CHECK(epoll_sys::of(epoll_call::receive) == 0);
    rig.close(who_of(0));
}

// ---- stale events

TEST_CASE("epoll is not disturbed by a duplicate of a closed socket") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client(door.port);
    const event accepted = rig.until(event_kind::accepted);
    const int duplicate = ::fcntl(static_cast<int>(accepted.handle), F_DUPFD_CLOEXEC, 0);
    REQUIRE(rig.backend.attach(accepted.handle, who_of(0)));
    rig.receive(who_of(0));
    rig.close(who_of(0));
    epoll_client next = door.connect(who_of(0, 2));  // the same slot, used anew
    rig.receive(who_of(0, 2));
    rig.quiet();
    epoll_sys::reset();
    for (int count = 0; count < 5; ++count) {
        client.send("to the duplicate");
        rig.wait(10'000'000);
    }
    rig.quiet();
    CHECK(rig.backend.stale_count() == 5);  // one dropped event an arrival, no more
    CHECK(epoll_sys::of(epoll_call::wait) <= 9);
    CHECK(epoll_sys::of(epoll_call::receive) == 0);
    ::close(duplicate);
    rig.close(who_of(0, 2));
}

TEST_CASE("epoll gives a released handle back unclosed and forgets it") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(who_of(0));
    const netio::socket_handle handle = rig.backend.release(who_of(0));
    client.send("still open");
    rig.quiet();
    REQUIRE(rig.backend.attach(handle, who_of(1)));
    rig.receive(who_of(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "still open");
    rig.close(who_of(1));
}

// ---- sending

TEST_CASE("epoll sends 8 MiB to a slow reader whole and registers for writing once") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(who_of(0));
    std::string big(8 * 1024 * 1024, '\0');
    for (std::size_t at = 0; at < big.size(); ++at) {
        big[at] = static_cast<char>(at * 2654435761u >> 13);
    }
    epoll_sys::reset();
    std::string got;
    std::size_t sent = 0;
    std::atomic<bool> reads = false;  // from the first short send on
    std::thread reader([&] {
        while (!reads) {
            std::this_thread::yield();
        }
        got = client.receive(big.size());
    });
    int waited = 0;
    while (sent < big.size()) {
        const std::string_view rest = std::string_view(big).substr(sent);
        rig.send(who_of(0), rest);
        const event done = rig.until(event_kind::sent);
        CHECK(done.byte_count >= 1);
        reads = true;
        sent += done.byte_count;
        waited += done.byte_count < rest.size();
    }
    reader.join();
    CHECK(got == big);
    CHECK(waited > 0);
    CHECK(epoll_sys::of(epoll_call::epoll_ctl) == 1);
    rig.close(who_of(0));
}

TEST_CASE("epoll lets a busy sender skip the kernel at most once in a row") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(who_of(0));
    epoll_sys::reset();
    for (int round = 0; round < 10; ++round) {
        rig.send(who_of(0), "x");
        CHECK(rig.wait(readiness_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::sent);
    }
    CHECK(epoll_sys::of(epoll_call::wait) == 5);
    CHECK(epoll_sys::last_timeout_ms == 0);
    rig.seen.clear();
    rig.close(who_of(0));
}

// ---- buffers

// ---- connecting

// ---- accepting under stress

// ---- datagrams

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

// ---- waking

TEST_CASE("epoll wake ends a wait of another thread with one write") {
    epoll_rig rig;
    epoll_sys::reset();
    std::thread waker([&] {
        while (epoll_sys::of(epoll_call::wait) == 0) {
        }
        rig.backend.wake();  // the loop announced its sleep before it made the call
        rig.backend.wake();
    });
    const std::uint64_t begin_ns = epoll_sys::now_ns();
    CHECK(rig.wait(readiness_long_ns) == 1);
    CHECK(epoll_sys::now_ns() - begin_ns < readiness_long_ns);
    CHECK(rig.out[0].kind == event_kind::woken);
    waker.join();
    CHECK(epoll_sys::of(epoll_call::write_wake) == 1);
    rig.wait(0);  // the second wake may have come after the sleep
    rig.wait(0);
    CHECK(rig.wait(3'000'000) == 0);  // nothing spins although the counter is never read
    rig.seen.clear();
}

TEST_CASE("epoll enters the kernel for no post, close or kill of a worker that is awake") {
    struct killer {
        netio::server<killer, netio::basic_epoll<epoll_sys>>* of = nullptr;
        std::uint64_t id = 0;
        int writes = -1;
        std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
            const int before = epoll_sys::of(epoll_call::write_wake);
            for (std::uint64_t word = 0; word < 10; ++word) {
                of->post(c.id(), word);
            }
            of->close(c.id(), 60'000);
            of->kill(c.id(), 1);
            writes = epoll_sys::of(epoll_call::write_wake) - before;
            return in.size();
        }
        void on_open(netio::connection& c) noexcept { id = c.id().bits; }
    };
    constexpr netio::limits sizes{.connections_max = 4};
    using kernel = netio::basic_epoll<epoll_sys>;
    static netio::storage<sizes, kernel> memory;
    killer handler;
    netio::server<killer, kernel> server(memory, handler);
    handler.of = &server;
    REQUIRE(server.listen({.address = "127.0.0.1"}) == netio::error::none);
    netio_test::client_socket first(server.local());
    for (int turn = 0; turn < 100 && handler.id == 0; ++turn) {
        server.run_once(1);
    }
    first.send("x");
    for (int turn = 0; turn < 100 && handler.writes < 0; ++turn) {
        server.run_once(1);
    }
    CHECK(handler.writes == 0);
    CHECK(server.stats().counts.posts_stale == 10);  // the kill came first
    server.stop();
    while (server.run_once(1)) {
    }
}

namespace {

struct epoll_signalled {
    using server_type = netio::server<epoll_signalled, netio::epoll>;
    static inline server_type* of = nullptr;
    int raises = 0;
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        if (raises != 0) {
            ::raise(raises);
        }
        return c.write(in);
    }
    static void shut(int) noexcept { of->close_door(); }
    static void drain(int) noexcept { of->drain(60'000); }
    static void stop(int) noexcept { of->stop(); }
};

}  // namespace

TEST_CASE("epoll: signal handlers shut the door, drain and stop, in turns and sleeps [threads]") {
    constexpr netio::limits sizes{.connections_max = 4};
    for (const bool in_a_turn : {true, false}) {
        for (const int what : {SIGUSR1, SIGUSR2, SIGHUP}) {
            CAPTURE(in_a_turn);
            CAPTURE(what);
            auto box = std::make_unique<netio::storage<sizes, netio::epoll>>();
            epoll_signalled handler;
            epoll_signalled::server_type server(*box, handler);
            epoll_signalled::of = &server;
            struct sigaction act = {};
            act.sa_handler = what == SIGUSR1   ? epoll_signalled::shut
                             : what == SIGUSR2 ? epoll_signalled::drain
                                               : epoll_signalled::stop;
            struct sigaction before = {};
            ::sigaction(what, &act, &before);
            REQUIRE(server.listen({.address = "127.0.0.1"}) == netio::error::none);
            const pthread_t worker = ::pthread_self();
            handler.raises = in_a_turn ? what : 0;
            std::thread client([&, at = server.local()] {
                netio_test::client_socket peer(at);
                peer.send("x");
                const auto until = [&](auto done) {
                    for (int tries = 0; tries < 20'000 && !done(); ++tries) {
                        netio_test::client_os::wait_readable(peer.handle(), 1);
                    }
                    return done();
                };
                CHECK(until([&] { return peer.arrived() == "x" || peer.over(); }));
                if (!in_a_turn) {
                    ::pthread_kill(worker, what);
                }
                if (what == SIGUSR1) {
                    CHECK(until([&] { return !server.door_is_open(); }));
                    server.stop();
                }
                CHECK(until([&] { return peer.over(); }));
                CHECK(peer.was_reset() == (what != SIGUSR2));
            });
            CHECK(server.run() == netio::error::none);
            client.join();
            ::sigaction(what, &before, nullptr);
            CHECK(server.control() == (what == SIGUSR2 ? netio::control_state::draining
                                                       : netio::control_state::stopping));
        }
    }
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
        const std::uint32_t count = rig.backend.wait(rig.out, 10 * readiness_long_ns);
        if (epoll_sys::now_ns() - begin_ns >= 10 * readiness_long_ns) {
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
    CHECK(epoll_sys::of(epoll_call::write_wake) <= epoll_sys::of(epoll_call::wait));
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
    epoll_sys::plan(epoll_call::wait, EINTR, 1, 2);
    CHECK(rig.wait(netio::forever_ns) == 0);  // interrupted: early, without an event
    CHECK(epoll_sys::last_timeout_ms == -1);
}

TEST_CASE("epoll leaves one timer standing for the time-outs of many waits") {
    epoll_rig rig;
    const auto interrupted = [&](std::uint64_t timeout_ns) {
        epoll_sys::plan(epoll_call::wait, EINTR);
        CHECK(rig.wait(timeout_ns) == 0);
    };
    const auto set = [] { return epoll_sys::of(epoll_call::set_timer); };
    const std::uint64_t second = 1'000'000'000;
    const std::uint64_t begin_ns = epoll_sys::now_ns();
    interrupted(60 * second);
    CHECK(epoll_sys::last_timeout_ms == -1);
    CHECK(epoll_sys::last_timer_ns >= begin_ns + 60 * second);
    CHECK(epoll_sys::last_timer_ns <= epoll_sys::now_ns() + 60 * second);
    CHECK(set() == 1);
    interrupted(60 * second);   // the same, later by as much as has passed
    interrupted(500 * second);  // it comes too early, which is an early return
    interrupted(netio::forever_ns);
    CHECK(set() == 1);
    CHECK(epoll_sys::last_timeout_ms == -1);
    interrupted(20 * second);  // it would come too late
    CHECK(set() == 2);
    CHECK(epoll_sys::last_timer_ns <= epoll_sys::now_ns() + 20 * second);
    CHECK(rig.wait(5'000'000) == 0);  // to the end
    CHECK(epoll_sys::now_ns() >= epoll_sys::last_timer_ns);
    CHECK(set() == 3);
    interrupted(netio::forever_ns - 1);  // what was set has passed
    CHECK(set() == 4);
    CHECK(epoll_sys::last_timer_ns / second < INT32_MAX);  // the seconds of 32-bit systems
    CHECK(epoll_sys::last_timer_ns / second > 1'000'000'000);
    CHECK(epoll_sys::last_timeout_ms == -1);
}

TEST_CASE("epoll waits with a time-out of its own where the timer can't be set") {
    epoll_rig rig;
    epoll_sys::plan(epoll_call::set_timer, EINVAL, 1, 2);
    for (const int ms : {5, 6}) {
        const std::uint64_t begin_ns = epoll_sys::now_ns();
        CHECK(rig.wait(static_cast<std::uint64_t>(ms) * 1'000'000) == 0);
        CHECK(epoll_sys::last_timeout_ms == ms);
        CHECK(epoll_sys::now_ns() - begin_ns >= static_cast<std::uint64_t>(ms) * 1'000'000);
    }
    CHECK(epoll_sys::of(epoll_call::set_timer) == 2);
}

TEST_CASE("epoll holds nothing when any call of open fails") {
    const std::pair<epoll_call, int> failing[] = {{epoll_call::epoll_create, 1},
                                                  {epoll_call::open_wake, 1},
                                                  {epoll_call::open_timer, 1},
                                                  {epoll_call::epoll_ctl, 1},
                                                  {epoll_call::epoll_ctl, 2}};
    for (const auto& [call, nth] : failing) {
        std::vector<std::byte> raw(epoll_rig::memory_bytes + 64);
        const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
        const netio::mutable_bytes memory{raw.data() + (64 - at % 64) % 64,
                                          epoll_rig::memory_bytes};
        netio::buffer_pool pool;
        epoll_backend backend;
        epoll_sys::reset();
        const std::size_t before = open_handles();
        epoll_sys::plan(call, EMFILE, nth);
        const netio::os_status status = backend.open(memory, readiness_sizes, pool);
        CHECK(status.why == netio::error::descriptors_empty);
        CHECK(status.os_code == EMFILE);
        CHECK(open_handles() == before);
        backend.close();  // of one that is not open: nothing
        REQUIRE(backend.open(memory, readiness_sizes, pool));  // and now it works
        backend.close();
        CHECK(open_handles() == before);
    }
}

TEST_CASE("epoll holds nothing when any call of a start fails") {
    epoll_rig rig;
    const netio::os_handle door = epoll_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const netio::os_handle box = epoll_backend::open_datagram(netio::loopback_ipv4(0), {});
    const netio::endpoint to = epoll_backend::local_of(door.handle).value;
    const std::size_t before = open_handles();
    epoll_sys::plan(epoll_call::epoll_ctl, ENOSPC, 1, 4);
    CHECK(rig.backend.start_accept(door.handle, who_of(0)).os_code == ENOSPC);
    CHECK(rig.backend.attach(door.handle, who_of(0)).os_code == ENOSPC);
    CHECK(rig.backend.start_receive_from(box.handle, who_of(0)).os_code == ENOSPC);
    CHECK(rig.backend.start_connect({to, {}}, {}, who_of(0)).why ==
          netio::error::kernel_memory_empty);
    for (const epoll_call call :
         {epoll_call::socket, epoll_call::setsockopt, epoll_call::connect}) {
        epoll_sys::plan(call, ENOBUFS);
        CHECK(rig.backend.start_connect({to, {}}, {}, who_of(0)).os_code == ENOBUFS);
    }
    epoll_sys::plan(epoll_call::connect, EINTR);  // as good as in progress
    REQUIRE(rig.backend.start_connect({to, {}}, {}, who_of(0)));
    epoll_sys::plan(epoll_call::getsockopt, EIO);
    CHECK(rig.until(event_kind::failed).os_code == EIO);
    rig.close(who_of(0));
    rig.quiet();
    CHECK(open_handles() == before);
    REQUIRE(rig.backend.start_accept(door.handle, who_of(0)));  // all slots are free still
    REQUIRE(rig.backend.start_receive_from(box.handle, who_of(0)));
    rig.backend.stop_accept(who_of(0));
    rig.backend.stop_receive_from(who_of(0));
    rig.until(event_kind::closed);
    epoll_backend::close_handle(door.handle, false);
    epoll_backend::close_handle(box.handle, false);
}

TEST_CASE("epoll reports a send that can't be waited for as failed") {
    epoll_rig rig;
    epoll_door door(rig);
    epoll_client client = door.connect(who_of(0));
    struct full_sys_guard {
        ~full_sys_guard() { epoll_sys::reset(); }
    } guard;
    const std::string big(16 * 1024 * 1024, 'x');
    epoll_sys::plan(epoll_call::epoll_ctl, ENOMEM);
    for (;;) {  // until both socket buffers are full
        rig.send(who_of(0), big);
        while (rig.wait(readiness_long_ns) == 0) {
        }
        rig.seen.clear();
        if (rig.out[0].kind == event_kind::failed) {
            break;
        }
    }
    CHECK(rig.out[0].op == operation::send);
    CHECK(rig.out[0].os_code == ENOMEM);
    rig.close(who_of(0), true);
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
    epoll_client client = door.connect(who_of(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send("x");
    rig.receive(who_of(0));
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
    rig.close(who_of(0));
}

namespace {

/// A clock that each look moves by 10 microseconds.
struct epoll_slow_clock_sys : epoll_counting_sys {
    static inline std::uint64_t clock_ns = 1'000'000'000;
    static std::uint64_t now_ns() noexcept { return clock_ns += 10'000; }
};

struct epoll_spinning_echo {
    std::uint32_t bytes = 0;
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        bytes += static_cast<std::uint32_t>(in.size());
        return peer.write(in);
    }
};
constexpr netio::limits epoll_spinning_limits{.connections_max = 4};

}  // namespace

TEST_CASE("epoll workers that may spin do so after something came, for so long, and then sleep") {
    using spinning_epoll = netio::basic_epoll<epoll_slow_clock_sys>;
    const auto memory = std::make_unique<netio::storage<epoll_spinning_limits, spinning_epoll>>();
    epoll_spinning_echo handler;
    netio::server<epoll_spinning_echo, spinning_epoll> server{*memory, handler};
    server.waiting({.spin_us = 500});
    REQUIRE(server.listen({.address = "127.0.0.1"}) == netio::error::none);
    const auto waits_of_turn = [&server] {
        const int before = epoll_sys::of(epoll_call::wait);
        server.run_once(1);
        return epoll_sys::of(epoll_call::wait) - before;
    };
    while (waits_of_turn() > 1) {
    }
    CHECK(waits_of_turn() == 1);  // idle: it sleeps at once
    epoll_client client(server.local().port);
    client.send("x");
    while (handler.bytes == 0) {
        server.run_once(1);
    }
    const int looks = waits_of_turn();  // 500 microseconds of 10, and the sleep
    CHECK(looks > 25);
    CHECK(looks <= 51);
    CHECK(waits_of_turn() == 1);
    CHECK(client.receive(1) == "x");
    epoll_sys::reset();
}

#endif
