// What only the kqueue backend can show: its system calls counted and failed one by one, changes
// that ride on the wait, events that say how much there is. On Linux over tests/kqueue_double.
#include "netio.hpp"
#include "tests/readiness.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_KQUEUE

#include <arpa/inet.h>
#include <atomic>
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

using kqueue_rig = netio_test::readiness_rig<kqueue_counts, kqueue_backend>;
using kqueue_door = netio_test::readiness_door<kqueue_rig>;
using kqueue_mailbox = netio_test::readiness_mailbox<kqueue_rig>;
using kqueue_client = netio_test::readiness_client;
using netio_test::readiness_dead_port;
using netio_test::readiness_in_child;
using netio_test::readiness_long_ns;
using netio_test::readiness_sizes;
using netio_test::who_of;

const netio_test::readiness_cases<kqueue_counts, kqueue_call, kqueue_backend> kqueue_cases;

}  // namespace

TEST_CASE("kqueue moves 16 KiB in three calls, four with the wait that finds nothing more") {
    kqueue_rig rig(8, 16 * 1024);
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    rig.receive(who_of(0));
    rig.quiet();
    const std::string much(16 * 1024, 'm');
    for (int round = 0; round < 10; ++round) {
        client.send(much);
        int there = 0;
        const std::uint64_t until_ns = kqueue_counts::now_ns() + readiness_long_ns;
        while (there < 16 * 1024 && kqueue_counts::now_ns() < until_ns) {
            ::ioctl(static_cast<int>(door.accepted_last), FIONREAD, &there);
        }
        REQUIRE(there == 16 * 1024);  // all of it has come, so that one read can take it
        kqueue_counts::reset();
        const event received = rig.until(event_kind::received);
        CHECK(received.byte_count == 16 * 1024);
        const netio::bytes slice{rig.pool.data(received.buffer_index), received.byte_count};
        rig.backend.start_send(who_of(0), {&slice, 1});
        rig.receive(who_of(0));
        CHECK(rig.until(event_kind::sent).byte_count == 16 * 1024);
        CHECK(kqueue_counts::total() == 3);  // wait, receive, send
        CHECK(rig.wait(0) == 0);
        CHECK(kqueue_counts::total() == 4);
        rig.pool.give(received.buffer_index, netio::side::input, received.byte_count);
        CHECK(client.receive(much.size()) == much);
    }
    rig.close(who_of(0));
}

TEST_CASE("kqueue accepts, serves one message and sees the peer close with eight calls alone") {
    kqueue_rig rig;
    kqueue_door door(rig);
    rig.quiet();
    kqueue_counts::reset();
    kqueue_client client = door.connect(who_of(0));
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

// ---- edges

TEST_CASE("kqueue needs no read too many where the count is known and no event after a full one") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    rig.receive(who_of(0));
    client.send(std::string(1024, 'x'));  // the buffer full to the last byte, and no more
    rig.text_of(rig.until(event_kind::received));
    rig.receive(who_of(0));
    kqueue_counts::reset();
    rig.quiet();
    CHECK(kqueue_counts::of(kqueue_call::receive) == 0);
    client.send(std::string(3000, 'x'));
    rig.text_of(rig.until(event_kind::received));
    for (const std::uint32_t byte_count : {1024u, 3000u - 2048u}) {
        kqueue_counts::reset();
        rig.receive(who_of(0));
        const event received = rig.until(event_kind::received);
        CHECK(received.byte_count == byte_count);
        // It is known that there is more; but the kernel is left out once in a row at most.
        CHECK(kqueue_counts::of(kqueue_call::wait) == (byte_count == 1024 ? 0 : 1));
        CHECK(kqueue_counts::of(kqueue_call::receive) == 1);
        rig.text_of(received);
    }
    kqueue_counts::reset();
    rig.receive(who_of(0));
    rig.quiet();
    CHECK(kqueue_counts::of(kqueue_call::receive) == 1);  // it had no count any more
    rig.close(who_of(0));
}

TEST_CASE("kqueue knows an error from the event, whoever took it from the socket") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    rig.wait(0);
    client.reset();
    rig.wait(readiness_long_ns);
    int code = 0;
    socklen_t size = sizeof(code);
    ::getsockopt(static_cast<int>(door.accepted_last), SOL_SOCKET, SO_ERROR, &code, &size);
    CHECK(code == ECONNRESET);
    rig.receive(who_of(0));
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::receive);
    CHECK(failed.os_code == ECONNRESET);
    rig.close(who_of(0));
    kqueue_counts::error_is_gone = true;
    const std::uint16_t dead_port = readiness_dead_port<kqueue_backend>();
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(dead_port), {}}, {}, who_of(1)));
    CHECK(rig.until(event_kind::failed).op == operation::connect);
    rig.close(who_of(1));
}

// ---- stale events

TEST_CASE("kqueue is not disturbed by a duplicate of a closed socket") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client(door.port);
    const event accepted = rig.until(event_kind::accepted);
    const int duplicate = ::fcntl(static_cast<int>(accepted.handle), F_DUPFD_CLOEXEC, 0);
    REQUIRE(rig.backend.attach(accepted.handle, who_of(0)));
    rig.receive(who_of(0));
    rig.close(who_of(0));
    kqueue_client next = door.connect(who_of(0, 2));  // the same slot, used anew
    rig.receive(who_of(0, 2));
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
    rig.close(who_of(0, 2));
}

TEST_CASE("kqueue drops by its generation what is told of a closed one after all") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    rig.quiet();
    const int number = static_cast<int>(door.accepted_last);
    const int duplicate = ::fcntl(number, F_DUPFD_CLOEXEC, 0);
    kqueue_counts::close_unseen = true;
    rig.close(who_of(0));
    kqueue_counts::close_unseen = false;
    const int filler = ::fcntl(duplicate, F_DUPFD_CLOEXEC, number);  // the number stays taken
    REQUIRE(filler == number);
    kqueue_client next = door.connect(who_of(0, 2));
    rig.receive(who_of(0, 2));
    rig.quiet();
    kqueue_counts::reset();
    client.send("to the duplicate");
    rig.wait(20'000'000);
    rig.quiet();
    // 32 bits of udata have no room for a generation: there it is read in vain, and no more.
    const bool generation_told = sizeof(kqueue_counts::udata_word) > 4;
    CHECK(rig.backend.stale_count() == (generation_told ? 1u : 0u));
    CHECK(kqueue_counts::of(kqueue_call::receive) == (generation_told ? 0 : 1));
    CHECK(rig.seen.empty());
    next.send("mine");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "mine");
    ::close(filler);
    ::close(duplicate);
    rig.close(who_of(0, 2));
}

TEST_CASE("kqueue gives a released handle back unclosed and forgets it") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    rig.quiet();  // the kernel has heard of it
    const netio::socket_handle handle = rig.backend.release(who_of(0));
    client.send("still open");
    rig.wait(20'000'000);
    rig.quiet();
    CHECK(rig.backend.stale_count() == 0);
    REQUIRE(rig.backend.attach(handle, who_of(1)));
    rig.receive(who_of(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "still open");
    rig.close(who_of(1));
}

// ---- sending

TEST_CASE("kqueue sends 8 MiB to a slow reader whole without a call for the registration") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    std::string big(8 * 1024 * 1024, '\0');
    for (std::size_t at = 0; at < big.size(); ++at) {
        big[at] = static_cast<char>(at * 2654435761u >> 13);
    }
    kqueue_counts::reset();
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
    CHECK(kqueue_counts::of(kqueue_call::change) + kqueue_counts::of(kqueue_call::flush) == 0);
    rig.close(who_of(0));
}

TEST_CASE("kqueue lets a busy sender skip the kernel at most once in a row") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    kqueue_counts::reset();
    for (int round = 0; round < 10; ++round) {
        rig.send(who_of(0), "x");
        CHECK(rig.wait(readiness_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::sent);
    }
    CHECK(kqueue_counts::of(kqueue_call::wait) == 5);
    CHECK(kqueue_counts::last_timeout_ns == 0);
    rig.seen.clear();
    rig.close(who_of(0));
}

// ---- buffers

// ---- connecting

// ---- accepting under stress

// ---- datagrams

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

// ---- waking

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
    CHECK(rig.wait(readiness_long_ns) == 1);
    CHECK(kqueue_counts::now_ns() - begin_ns < readiness_long_ns);
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
        const std::uint32_t count = rig.backend.wait(rig.out, 10 * readiness_long_ns);
        if (kqueue_counts::now_ns() - begin_ns >= 10 * readiness_long_ns) {
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

TEST_CASE("kqueue holds nothing when any call of a start fails") {
    kqueue_rig rig;
    const netio::os_handle door = kqueue_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const netio::os_handle box = kqueue_backend::open_datagram(netio::loopback_ipv4(0), {});
    const netio::endpoint to = kqueue_backend::local_of(door.handle).value;
    const std::size_t before = open_handles();
    kqueue_counts::plan(kqueue_call::change, ENOMEM, 1, 2);
    CHECK(rig.backend.start_accept(door.handle, who_of(0)).os_code == ENOMEM);
    CHECK(rig.backend.start_receive_from(box.handle, who_of(0)).why ==
          netio::error::kernel_memory_empty);
    kqueue_counts::plan(kqueue_call::hush, EINVAL);
    CHECK(rig.backend.attach(door.handle, who_of(0)).os_code == EINVAL);
    for (const kqueue_call call :
         {kqueue_call::socket, kqueue_call::setsockopt, kqueue_call::connect}) {
        kqueue_counts::plan(call, ENOBUFS);
        CHECK(rig.backend.start_connect({to, {}}, {}, who_of(0)).os_code == ENOBUFS);
    }
    kqueue_counts::plan(kqueue_call::connect, EINTR);  // as good as in progress
    REQUIRE(rig.backend.start_connect({to, {}}, {}, who_of(0)));
    kqueue_counts::plan(kqueue_call::getsockopt, EIO);
    CHECK(rig.until(event_kind::failed).os_code == EIO);
    rig.close(who_of(0));
    rig.quiet();
    CHECK(open_handles() == before);
    REQUIRE(rig.backend.start_accept(door.handle, who_of(0)));  // all slots are free still
    REQUIRE(rig.backend.start_receive_from(box.handle, who_of(0)));
    rig.backend.stop_accept(who_of(0));
    rig.backend.stop_receive_from(who_of(0));
    rig.until(event_kind::closed);
    kqueue_backend::close_handle(door.handle, false);
    kqueue_backend::close_handle(box.handle, false);
}

TEST_CASE("kqueue reports a send that can't be waited for as failed") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    struct full_sys_guard {
        ~full_sys_guard() { kqueue_counts::reset(); }
    } guard;
    const std::string big(16 * 1024 * 1024, 'x');
    kqueue_counts::refuse(EVFILT_WRITE, ENOMEM);
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
    kqueue_client client = door.connect(who_of(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send("x");
    rig.receive(who_of(0));
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
    rig.close(who_of(0));
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
    REQUIRE(rig.backend.attach(handles[0], who_of(0)));
    REQUIRE(rig.backend.attach(handles[1], who_of(1)));
    REQUIRE(rig.backend.attach(handles[2], who_of(2)));
    CHECK(rig.backend.ready());  // a foreign loop must not sleep on them
    CHECK(kqueue_counts::total() == 0);
    rig.backend.start_close(who_of(0), true);
    CHECK(rig.backend.release(who_of(2)) == handles[2]);
    CHECK(kqueue_counts::of(kqueue_call::change) == 0);  // nobody had heard of it
    rig.wait(0);
    rig.wait(0);
    CHECK(kqueue_counts::change_count == 1);
    CHECK(kqueue_counts::of(kqueue_call::wait) == 1);
    CHECK_FALSE(rig.backend.ready());
    CHECK(rig.until(event_kind::closed).who == who_of(0));
    kqueue_backend::close_handle(handles[2], false);
    rig.close(who_of(1));
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
            REQUIRE(rig.backend.attach(pair[0], who_of(index)));
            rig.receive(who_of(index));
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
            REQUIRE(rig.wait(readiness_long_ns) != 0);
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
        REQUIRE(rig.backend.attach(pair[0], who_of(index)));
    }
    // The wait for room is one change too many; by the answers to the others the send is tried
    // again and done, but the change is kept.
    kqueue_counts::reset();
    kqueue_counts::plan(kqueue_call::send, EAGAIN);
    kqueue_counts::refuse(EVFILT_READ, ENOMEM);
    rig.send(who_of(255), "late");
    CHECK(kqueue_counts::of(kqueue_call::flush) == 1);
    CHECK(kqueue_counts::of(kqueue_call::send) == 2);
    kqueue_counts::reset();
    CHECK(rig.until(event_kind::sent).byte_count == 4);
    CHECK(kqueue_counts::of(kqueue_call::wait) == 0);
    const netio::socket_handle handle = rig.backend.release(who_of(255));
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
        REQUIRE(rig.backend.attach(pair[0], who_of(index)));
        rig.receive(who_of(index));
    }
    rig.backend.start_close(who_of(50), true);
    kqueue_counts::reset();
    rig.wait(0);  // closed, without the kernel
    rig.wait(0);
    CHECK(kqueue_counts::change_count == 99);
    CHECK(kqueue_counts::of(kqueue_call::wait) == 1);
    CHECK(rig.until(event_kind::closed).who == who_of(50));
    CHECK(rig.until(event_kind::failed).who == who_of(7));
    for (std::uint32_t index = 0; index < 100; ++index) {
        if (index != 50 && index != 7) {
            REQUIRE(::write(peers[index], "x", 1) == 1);
            const event received = rig.until(event_kind::received);
            CHECK(received.who == who_of(index));
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
            rig.receive(who_of(index));
            REQUIRE(::write(crowd.peers[index], "y", 1) == 1);
        }
        CHECK(crowd.told(event_kind::received, 0) == crowd.count);
        for (std::uint32_t index = 0; index < 256; ++index) {
            rig.receive(who_of(index));
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
    kqueue_client client = door.connect(who_of(0));
    rig.receive(who_of(0));
    kqueue_counts::interrupted = true;
    CHECK(rig.wait(readiness_long_ns) == 0);
    CHECK(kqueue_counts::change_count == 1);
    rig.quiet();
    CHECK(kqueue_counts::change_count == 0);
    client.send("x");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
    rig.close(who_of(0));
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
        kqueue_client idle = door.connect(who_of(0));
        spoil(EVFILT_READ);
        rig.wait(0);
        kqueue_counts::reset();
        CHECK(rig.seen.empty());  // nobody had asked yet
        rig.receive(who_of(0));
        CHECK(rig.until(event_kind::failed).who == who_of(0));
        // The door's own address, so that nothing but the registration fails.
        const netio::endpoint there = netio::loopback_ipv4(door.port);
        REQUIRE(rig.backend.start_connect({there, {}}, {}, who_of(1)));
        spoil(EVFILT_WRITE);
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.op == operation::connect);
        CHECK(failed.os_code == ENOMEM);
        kqueue_counts::reset();
        rig.close(who_of(0));
        rig.close(who_of(1));
        kqueue_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        rig.quiet();
    }
}

TEST_CASE("kqueue releases a connection that the kernel would not watch") {
    for (const bool whole_call : {true, false}) {
        CAPTURE(whole_call);
        kqueue_rig rig;
        kqueue_door door(rig);
        kqueue_client client = door.connect(who_of(0));
        if (whole_call) {
            kqueue_counts::plan(kqueue_call::wait, ENOMEM);
        } else {
            kqueue_counts::refuse(EVFILT_READ, ENOMEM);
        }
        rig.wait(0);
        kqueue_counts::reset();
        const netio::socket_handle handle = rig.backend.release(who_of(0));
        CHECK(::write(static_cast<int>(handle), "x", 1) == 1);
        CHECK(client.receive(1) == "x");
        rig.quiet();
        kqueue_backend::close_handle(handle, false);
    }
}

TEST_CASE("kqueue serves a receive without a buffer once though a change of it is refused") {
    kqueue_rig rig(1);
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send("x");
    rig.receive(who_of(0));
    rig.quiet();
    kqueue_counts::plan(kqueue_call::send, EAGAIN);
    rig.send(who_of(0), "y");
    kqueue_counts::refuse(EVFILT_WRITE, ENOMEM);
    CHECK(rig.until(event_kind::sent).byte_count == 1);
    kqueue_counts::reset();
    rig.pool.give(buffer, netio::side::input, 0);
    const event received = rig.until(event_kind::received);
    CHECK(received.disarmed);
    CHECK(rig.text_of(received) == "x");
    const netio::socket_handle handle = rig.backend.release(who_of(0));
    rig.quiet();
    kqueue_backend::close_handle(handle, false);
}

TEST_CASE("kqueue waits on when there is less room than it was told of") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client client = door.connect(who_of(0));
    kqueue_counts::reset();
    kqueue_counts::plan(kqueue_call::send, EAGAIN, 1, 3);
    rig.send(who_of(0), "late");
    CHECK(rig.until(event_kind::sent).byte_count == 4);
    CHECK(kqueue_counts::of(kqueue_call::send) == 4);
    CHECK(kqueue_counts::of(kqueue_call::change) == 0);
    CHECK(client.receive(4) == "late");
    kqueue_counts::plan(kqueue_call::send, EAGAIN);
    rig.send(who_of(0), "never");
    rig.close(who_of(0));  // its change goes with it
    CHECK(kqueue_counts::change_count == 0);
}

TEST_CASE("kqueue closes a client that comes without an address, for it was reset in the queue") {
    kqueue_rig rig;
    kqueue_door door(rig);
    kqueue_client gone(door.port);
    kqueue_counts::peer_is_gone = true;
    rig.wait(readiness_long_ns);
    CHECK(rig.seen.empty());
    CHECK(gone.receive(1).empty());
    kqueue_client next = door.connect(who_of(0));
    rig.close(who_of(0));
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
        REQUIRE(backend.attach(pairs[index][0], who_of(index)));
        backend.start_receive(who_of(index), {}, 1);
        REQUIRE(::write(pairs[index][1], "x", 1) == 1);
    }
    event out[4];
    REQUIRE(backend.wait(out, readiness_long_ns) == 4);  // four more are told of and not looked at
    std::uint32_t left = 0;
    for (const event& each : out) {
        left += each.who.index();
        pool.give(each.buffer_index, netio::side::input, 1);
    }
    const std::uint32_t last = left > 14 ? 0 : 7;  // of the other half
    backend.start_close(who_of(last), true);
    event closed[4];
    const std::uint32_t count = backend.wait(closed, 0);  // a part of the four, and the closed
    REQUIRE(count >= 1);
    CHECK(closed[0].kind == event_kind::closed);
    CHECK(closed[0].who == who_of(last));
    for (std::uint32_t one = 1; one < count; ++one) {
        CHECK(closed[one].who != who_of(last));
        pool.give(closed[one].buffer_index, netio::side::input, 1);
    }
    // The slot and the descriptor's number have a new owner before the old event is looked at.
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pairs[8]) == 0);
    REQUIRE(backend.attach(pairs[8][0], who_of(last, 2)));
    backend.start_receive(who_of(last, 2), {}, 1);
    for (int turn = 0; turn < 4; ++turn) {
        const std::uint32_t more = backend.wait(out, 0);
        for (std::uint32_t one = 0; one < more; ++one) {
            CHECK(out[one].who != who_of(last, 2));
            pool.give(out[one].buffer_index, netio::side::input, 1);
        }
    }
    CHECK(backend.stale_count() == 1);
    REQUIRE(::write(pairs[8][1], "y", 1) == 1);
    REQUIRE(backend.wait(out, readiness_long_ns) == 1);
    CHECK(out[0].who == who_of(last, 2));
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
        attach(who_of(index));
    }
    event out[4];
    REQUIRE(backend.wait(out, 0) == 0);
    for (const int each : peers) {
        ::close(each);
    }
    peers.clear();
    REQUIRE(backend.wait(out, readiness_long_ns) == 4);  // four more are told of and not looked at
    std::uint32_t told = 0;
    for (const event& each : out) {
        told |= 1u << each.who.index();
    }
    const std::uint32_t last = (told & 1u << 7) != 0 ? 0 : 7;  // of the other half
    REQUIRE((told & 1u << last) == 0);
    backend.start_close(who_of(last), true);
    REQUIRE(backend.wait(out, 0) == 4);  // three of the four, so the last one is still there
    CHECK(out[0].kind == event_kind::closed);
    CHECK(out[0].who == who_of(last));
    // The slot has a new owner, and more are attached than there is room for changes.
    attach(who_of(last, 2));
    for (std::uint32_t index = 8; index < 300; ++index) {
        attach(who_of(index));
    }
    for (int turn = 0; turn < 8; ++turn) {
        const std::uint32_t more = backend.wait(out, 0);
        for (std::uint32_t one = 0; one < more; ++one) {
            CHECK(out[one].who != who_of(last, 2));
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
