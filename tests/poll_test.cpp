// What only the poll backend can show: its system calls counted and failed one by one, what it asks
// the kernel to look for, its line for buffers, wake-ups through a pipe.
#include "netio.hpp"
#include "tests/sockets.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_POLL

#include <atomic>
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

enum class poll_call {
    socket, accept, send, send_message, send_to, bind, listen, connect, setsockopt, getsockopt,
    getsockname, receive, receive_message, shutdown, close, poll, open_wake, write_wake, read_wake,
    open_spare, get_limit, set_limit, count_
};

/// Counts every call; planned ones fail instead of being made: the n-th of a kind, or the n-th of
/// all.
struct poll_counting_sys : netio::poll_sys {
    using real = netio::poll_sys;
    static inline std::atomic<int> counts[static_cast<int>(poll_call::count_)] = {};
    static inline poll_call fail_call = poll_call::count_;
    static inline int fail_at = 0;     // the n-th such call from now fails
    static inline int fail_until = 0;  // and all up to this one
    static inline int fail_code = 0;
    static inline int fail_any_at = 0;  // whatever call this is
    static inline int last_timeout_ms = 0;
    static inline std::uint32_t last_count = 0;  // entries shown to poll
    static inline std::uint64_t allowed = 0;     // descriptors, if not 0
    static inline bool peer_is_gone = false;     // accept tells no address
    static inline void (*on_receive)() = nullptr;
    static inline void (*on_poll)() = nullptr;
    static inline void (*on_write_wake)() = nullptr;
    static inline std::atomic<int> yields = 0;

    static bool enter(poll_call which) noexcept {
        ++counts[static_cast<int>(which)];
        bool failed = fail_any_at != 0 && --fail_any_at == 0;
        if (which == fail_call) {
            --fail_until;
            failed = failed || (--fail_at <= 0 && fail_until >= 0);
        }
        errno = failed ? fail_code : errno;
        return !failed;
    }
    template <class Call>
    static auto via(poll_call which, Call call) noexcept -> decltype(call()) {
        return enter(which) ? call() : -1;
    }
    static void plan(poll_call which, int code, int nth = 1, int times = 1) {
        fail_call = which;
        fail_code = code;
        fail_at = nth;
        fail_until = nth + times - 1;
    }
    static void reset() {
        for (auto& each : counts) {
            each = 0;
        }
        fail_call = poll_call::count_;
        fail_at = fail_until = fail_any_at = 0;
        allowed = 0;
        peer_is_gone = false;
        on_receive = on_poll = on_write_wake = nullptr;
        yields = 0;
    }
    static int of(poll_call which) { return counts[static_cast<int>(which)]; }
    static int total() {
        int all = 0;
        for (auto& each : counts) {
            all += each;
        }
        return all;
    }

    static int open_socket(int family, int type) noexcept {
        return via(poll_call::socket, [&] { return real::open_socket(family, type); });
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        const int made =
            via(poll_call::accept, [&] { return real::accept(from, peer, size); });
        if (peer_is_gone && size != nullptr) {
            *size = 0;
            peer_is_gone = false;
        }
        return made;
    }
    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        return via(poll_call::send, [&] { return real::send(to, from, count); });
    }
    static ssize_t send_message(int to, const msghdr* what) noexcept {
        return via(poll_call::send_message, [&] { return real::send_message(to, what); });
    }
    static ssize_t send_to(int to, const void* from, std::size_t count, const sockaddr* peer,
                           socklen_t size) noexcept {
        return via(poll_call::send_to, [&] { return real::send_to(to, from, count, peer, size); });
    }
    static int bind(int what, const sockaddr* where, socklen_t size) noexcept {
        return via(poll_call::bind, [&] { return real::bind(what, where, size); });
    }
    static int listen(int what, int backlog) noexcept {
        return via(poll_call::listen, [&] { return real::listen(what, backlog); });
    }
    static int connect(int what, const sockaddr* where, socklen_t size) noexcept {
        return via(poll_call::connect, [&] { return real::connect(what, where, size); });
    }
    static int setsockopt(int of, int level, int option, const void* value,
                          socklen_t size) noexcept {
        return via(poll_call::setsockopt,
                   [&] { return real::setsockopt(of, level, option, value, size); });
    }
    static int getsockopt(int of, int level, int option, void* value, socklen_t* size) noexcept {
        return via(poll_call::getsockopt,
                   [&] { return real::getsockopt(of, level, option, value, size); });
    }
    static int getsockname(int of, sockaddr* where, socklen_t* size) noexcept {
        return via(poll_call::getsockname, [&] { return real::getsockname(of, where, size); });
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        if (on_receive != nullptr) {
            on_receive();
        }
        return via(poll_call::receive, [&] { return real::receive(from, into, count); });
    }
    static ssize_t receive_message(int from, msghdr* what) noexcept {
        return via(poll_call::receive_message, [&] { return real::receive_message(from, what); });
    }
    static int shutdown_sending(int of) noexcept {
        return via(poll_call::shutdown, [&] { return real::shutdown_sending(of); });
    }
    static int close(int what) noexcept {
        enter(poll_call::close);  // closes even when it reports an error
        return real::close(what);
    }
    static int poll(pollfd* all, std::uint32_t count, int timeout_ms) noexcept {
        last_timeout_ms = timeout_ms;
        last_count = count;
        if (on_poll != nullptr) {
            on_poll();
        }
        return via(poll_call::poll, [&] { return real::poll(all, count, timeout_ms); });
    }
    static int open_wake(int (&ends)[2]) noexcept {
        return via(poll_call::open_wake, [&] { return real::open_wake(ends); });
    }
    static ssize_t write_wake(int to) noexcept {
        if (on_write_wake != nullptr) {
            on_write_wake();
        }
        return via(poll_call::write_wake, [&] { return real::write_wake(to); });
    }
    static ssize_t read_wake(int from) noexcept {
        return via(poll_call::read_wake, [&] { return real::read_wake(from); });
    }
    static void yield() noexcept {
        ++yields;
        real::yield();
    }
    static int open_spare() noexcept {
        return via(poll_call::open_spare, [&] { return real::open_spare(); });
    }
    static int get_descriptor_limit(rlimit& out) noexcept {
        if (allowed != 0) {
            out.rlim_cur = out.rlim_max = static_cast<rlim_t>(allowed);
            return 0;
        }
        return via(poll_call::get_limit, [&] { return real::get_descriptor_limit(out); });
    }
    static int set_descriptor_limit(const rlimit& wanted) noexcept {
        if (allowed != 0) {
            return 0;
        }
        return via(poll_call::set_limit, [&] { return real::set_descriptor_limit(wanted); });
    }
};

/// As where poll takes no more entries, here one too few.
struct poll_short_sys : netio::poll_sys {
    static constexpr std::uint32_t entries_max = 308;
};

using poll_spy = poll_counting_sys;
using poll_backend = netio::basic_poll<poll_spy>;
static_assert(netio::backend<poll_backend>);
static_assert(poll_backend::connection_bytes == 40);
static_assert(poll_backend::bytes_needed({1064, 2, 2, 4}) -
                  poll_backend::bytes_needed({64, 2, 2, 4}) == 1000 * 40);

constexpr netio::backend_limits poll_sizes{300, 2, 2, 4};
constexpr std::uint32_t poll_fixed_entries = 1 + 2 + 2 + 4;  // before the connections
constexpr std::uint64_t poll_long_ns = 2'000'000'000;

constexpr token poll_who(std::uint32_t index, std::uint32_t generation = 1) {
    return token::of(index, generation);
}

/// An open backend with a pool; on the way out nothing may be left of either.
struct poll_rig {
    static constexpr std::uint32_t buffers = 160;
    static constexpr std::uint32_t buffer_bytes = 1024;
    static constexpr std::size_t memory_bytes = poll_backend::bytes_needed(poll_sizes);

    std::vector<std::byte> pool_bytes = std::vector<std::byte>(buffers * buffer_bytes);
    std::vector<std::uint32_t> pool_links = std::vector<std::uint32_t>(buffers);
    std::vector<std::byte> raw = std::vector<std::byte>(memory_bytes + 64);
    netio::buffer_pool pool;
    poll_backend backend;
    std::size_t descriptors_before;
    event out[32];
    std::vector<event> seen;

    explicit poll_rig(std::uint32_t input_quota = buffers / 2, bool opened = true) {
        poll_spy::reset();
        descriptors_before = open_handles();
        pool.attach(pool_bytes.data(), pool_links.data(), buffers, buffer_bytes, input_quota,
                    buffers - buffers / 2, false);
        if (opened) {
            REQUIRE(open());
        }
    }
    ~poll_rig() {
        poll_spy::reset();
        backend.close();
        CHECK(open_handles() == descriptors_before);
        CHECK(pool.in_use(netio::side::input) == 0);
    }
    netio::os_status open() {
        std::fill(raw.begin(), raw.end(), std::byte{0});
        const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
        return backend.open({raw.data() + (64 - at % 64) % 64, memory_bytes}, poll_sizes, pool);
    }

    /// One wait; its events are kept in `seen` too.
    std::uint32_t wait(std::uint64_t timeout_ns = 0, std::size_t room = 32) {
        const std::uint32_t count = backend.wait({out, room}, timeout_ns);
        seen.insert(seen.end(), out, out + count);
        return count;
    }
    /// Waits until such an event comes and takes it out of `seen`.
    event until(event_kind kind) {
        const std::uint64_t until_ns = poll_spy::now_ns() + 2 * poll_long_ns;
        while (poll_spy::now_ns() < until_ns) {
            for (std::size_t at = 0; at < seen.size(); ++at) {
                if (seen[at].kind == kind) {
                    const event found = seen[at];
                    seen.erase(seen.begin() + static_cast<std::ptrdiff_t>(at));
                    return found;
                }
            }
            wait(poll_long_ns);
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

/// A plain blocking client.
struct poll_client {
    int descriptor = -1;

    explicit poll_client(std::uint16_t port, int type = SOCK_STREAM) {
        descriptor = ::socket(AF_INET, type | SOCK_CLOEXEC, 0);
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
    poll_client(poll_client&& other) noexcept : descriptor(other.descriptor) {
        other.descriptor = -1;
    }
    poll_client& operator=(poll_client&&) = delete;
    ~poll_client() { close(); }
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
struct poll_door {
    poll_rig& rig;
    netio::os_handle handle;
    std::uint16_t port = 0;
    token who;
    bool accepting = true;

    explicit poll_door(poll_rig& of, std::uint32_t index = 0) : rig(of), who(poll_who(index)) {
        handle = poll_backend::listen({netio::loopback_ipv4(0), {}}, {});
        REQUIRE(handle);
        port = poll_backend::local_of(handle.handle).value.port;
        REQUIRE(rig.backend.start_accept(handle.handle, who));
    }
    ~poll_door() {
        if (accepting) {
            rig.backend.stop_accept(who);
        }
        poll_backend::close_handle(handle.handle, false);
    }
    /// A client and its connection, attached as `as`.
    poll_client connect(token as) {
        poll_client client(port);
        const event accepted = rig.until(event_kind::accepted);
        REQUIRE(rig.backend.attach(accepted.handle, as));
        return client;
    }
};

struct poll_mailbox {
    poll_rig& rig;
    netio::os_handle handle;
    netio::endpoint there;
    token who;

    explicit poll_mailbox(poll_rig& of, std::uint32_t index = 0) : rig(of), who(poll_who(index)) {
        handle = poll_backend::open_datagram(netio::loopback_ipv4(0), {});
        REQUIRE(handle);
        there = poll_backend::local_of(handle.handle).value;
        REQUIRE(rig.backend.start_receive_from(handle.handle, who));
    }
    ~poll_mailbox() {
        rig.backend.stop_receive_from(who);
        const event last = rig.until(event_kind::closed);
        CHECK(last.op == operation::receive_from);
        CHECK(last.who == who);
        poll_backend::close_handle(handle.handle, false);
    }
    void post(std::string_view text, const netio::endpoint& to, std::uint32_t send = 0) {
        rig.backend.start_send_to(handle.handle, poll_who(send), netio::as_bytes(text), to);
    }
};

}  // namespace

// ---- system calls

TEST_CASE("poll echoes 64 bytes to a lone client with three system calls a round trip") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    rig.receive(poll_who(0));
    rig.quiet();
    poll_spy::reset();
    const std::string asked(64, 'x');
    for (int round = 0; round < 10; ++round) {
        client.send(asked);
        const event received = rig.until(event_kind::received);
        CHECK(bool{received.disarmed});
        CHECK(received.who == poll_who(0));
        const std::string text = rig.text_of(received);
        rig.send(poll_who(0), text);
        rig.receive(poll_who(0));
        CHECK(rig.until(event_kind::sent).byte_count == 64);
        CHECK(client.receive(64) == asked);
    }
    CHECK(poll_spy::of(poll_call::poll) == 10);
    CHECK(poll_spy::of(poll_call::receive) == 10);
    CHECK(poll_spy::of(poll_call::send) == 10);
    CHECK(poll_spy::total() == 30);
    rig.close(poll_who(0));
}

TEST_CASE("poll serves 100 ready connections with two system calls each and one look") {
    poll_rig rig;
    poll_door door(rig);
    std::vector<poll_client> clients;
    for (std::uint32_t index = 0; index < 100; ++index) {
        clients.push_back(door.connect(poll_who(index)));
        rig.receive(poll_who(index));
    }
    rig.quiet();
    for (int round = 0; round < 3; ++round) {
        for (poll_client& client : clients) {
            client.send("ping");
        }
        poll_spy::reset();
        int sent = 0;
        while (sent < 100) {
            rig.wait(poll_long_ns);
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
        CHECK(poll_spy::of(poll_call::receive) == 100);
        CHECK(poll_spy::of(poll_call::send) == 100);
        CHECK(poll_spy::of(poll_call::poll) == 1);
        CHECK(poll_spy::total() == 201);
        for (poll_client& client : clients) {
            CHECK(client.receive(4) == "ping");
        }
    }
    for (std::uint32_t index = 0; index < 100; ++index) {
        rig.close(poll_who(index));
    }
}

TEST_CASE("poll accepts, serves one message and sees the peer close with nine calls alone") {
    poll_rig rig;
    poll_door door(rig);
    rig.quiet();
    poll_spy::reset();
    poll_client client = door.connect(poll_who(0));
    rig.receive(poll_who(0));
    client.send("one");
    const std::string text = rig.text_of(rig.until(event_kind::received));
    rig.send(poll_who(0), text);
    rig.receive(poll_who(0));
    rig.until(event_kind::sent);
    CHECK(client.receive(3) == "one");
    client.close();
    rig.until(event_kind::ended);
    rig.close(poll_who(0));
    CHECK(poll_spy::of(poll_call::accept) == 2);  // the second one finds nobody
    CHECK(poll_spy::of(poll_call::poll) == 3);
    CHECK(poll_spy::total() == 9);
}

TEST_CASE("poll answers a lone datagram with four system calls") {
    poll_rig rig;
    poll_mailbox mailbox(rig);
    poll_client peer(mailbox.there.port, SOCK_DGRAM);
    rig.quiet();
    poll_spy::reset();
    for (int round = 0; round < 10; ++round) {
        peer.send("question");
        const event asked = rig.until(event_kind::received);
        CHECK(rig.text_of(asked) == "question");
        mailbox.post("answer", asked.peer);
        CHECK(rig.until(event_kind::sent).byte_count == 6);
        CHECK(peer.receive(6) == "answer");
    }
    CHECK(poll_spy::of(poll_call::receive_message) == 20);  // every other one finds nothing
    CHECK(poll_spy::total() == 40);
}

TEST_CASE("poll shows the kernel as many entries as are in use, whatever the capacity") {
    poll_rig rig;
    poll_door door(rig);
    rig.wait(0);
    CHECK(poll_spy::last_count == 2);  // the pipe and the listener
    poll_client first = door.connect(poll_who(3));
    poll_client second = door.connect(poll_who(200));
    rig.quiet();
    CHECK(poll_spy::last_count == poll_fixed_entries + 201);
    rig.close(poll_who(200));
    rig.quiet();
    CHECK(poll_spy::last_count == poll_fixed_entries + 4);
    rig.close(poll_who(3));
    rig.quiet();
    CHECK(poll_spy::last_count == 2);
}

TEST_CASE("poll asks about nobody who waits for nothing, and does not spin on a reset one") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    client.send("unread");
    client.reset();
    poll_spy::reset();
    const std::uint64_t until_ns = poll_spy::now_ns() + 30'000'000;
    while (poll_spy::now_ns() < until_ns) {
        rig.wait(10'000'000);
    }
    CHECK(rig.seen.empty());
    CHECK(poll_spy::of(poll_call::poll) <= 6);
    rig.close(poll_who(0));
}

TEST_CASE("poll lets a busy sender skip the kernel at most once in a row") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    poll_spy::reset();
    for (int round = 0; round < 10; ++round) {
        rig.send(poll_who(0), "x");
        CHECK(rig.wait(poll_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::sent);
    }
    CHECK(poll_spy::of(poll_call::poll) == 5);
    CHECK(poll_spy::last_timeout_ms == 0);
    rig.seen.clear();
    rig.close(poll_who(0));
}

TEST_CASE("poll goes on where a wait had no more room, and starves nobody") {
    poll_rig rig;
    poll_door door(rig);
    std::vector<poll_client> clients;
    for (std::uint32_t index = 0; index < 9; ++index) {
        clients.push_back(door.connect(poll_who(index)));
        rig.receive(poll_who(index), 1'000'000);
    }
    rig.quiet();
    int served[9] = {};
    for (int turn = 0; turn < 30; ++turn) {
        for (poll_client& client : clients) {
            client.send("more");  // always ready, all of them
        }
        rig.wait(poll_long_ns, 4);
        for (const event& each : rig.seen) {
            ++served[each.who.index()];
            rig.text_of(each);
        }
        rig.seen.clear();
    }
    for (const int each : served) {
        CHECK(each >= 9);
        CHECK(each <= 11);
    }
    door.accepting = false;
    rig.backend.close();
}

TEST_CASE("poll keeps what was ready apart from a new connection in the same slot") {
    poll_rig rig;
    poll_door door(rig);
    std::vector<poll_client> clients;
    for (std::uint32_t index = 0; index < 8; ++index) {
        clients.push_back(door.connect(poll_who(index)));
        rig.receive(poll_who(index));
    }
    rig.quiet();
    for (poll_client& client : clients) {
        client.send("x");
    }
    CHECK(rig.wait(poll_long_ns, 4) == 3);  // the others were reported ready and are still to come
    poll_spy::reset();
    rig.backend.start_close(poll_who(7), true);
    rig.wait(0, 32);
    CHECK(poll_spy::of(poll_call::poll) == 0);  // all of the same look at the kernel
    std::uint32_t received = 0;
    for (const event& each : rig.seen) {
        if (each.kind == event_kind::received) {
            rig.text_of(each);
            ++received;
        } else {
            CHECK(each.kind == event_kind::closed);
            CHECK(each.who == poll_who(7));
        }
    }
    CHECK(received == 7);
    rig.seen.clear();
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
    REQUIRE(rig.backend.attach(pair[0], poll_who(7, 2)));
    rig.receive(poll_who(7, 2));
    rig.quiet();
    REQUIRE(::write(pair[1], "mine", 4) == 4);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "mine");
    ::close(pair[1]);
    for (std::uint32_t index = 0; index < 7; ++index) {
        rig.close(poll_who(index));
    }
    rig.close(poll_who(7, 2));
}

// ---- sending

TEST_CASE("poll sends 8 MiB to a slow reader whole") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    std::string big(8 * 1024 * 1024, '\0');
    for (std::size_t at = 0; at < big.size(); ++at) {
        big[at] = static_cast<char>(at * 2654435761u >> 13);
    }
    std::string got;
    std::size_t sent = 0;
    int waited = 0;
    std::atomic<bool> reads = false;  // from the first short send on
    std::thread reader([&] {
        while (!reads) {
            std::this_thread::yield();
        }
        got = client.receive(big.size());
    });
    while (sent < big.size()) {
        const std::string_view rest = std::string_view(big).substr(sent);
        rig.send(poll_who(0), rest);
        const event done = rig.until(event_kind::sent);
        CHECK(done.byte_count >= 1);
        reads = true;
        sent += done.byte_count;
        waited += done.byte_count < rest.size();
    }
    reader.join();
    CHECK(got == big);
    CHECK(waited > 0);
    rig.close(poll_who(0));
}

TEST_CASE("poll sends several slices with one call and keeps only the first where it must wait") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    const netio::bytes slices[] = {netio::as_bytes("ab"), netio::as_bytes("cde"),
                                   netio::as_bytes("f")};
    rig.backend.start_send(poll_who(0), slices);
    CHECK(rig.until(event_kind::sent).byte_count == 6);
    CHECK(client.receive(6) == "abcdef");
    poll_spy::plan(poll_call::send_message, EAGAIN);
    rig.backend.start_send(poll_who(0), slices);
    CHECK(rig.until(event_kind::sent).byte_count == 2);
    CHECK(client.receive(2) == "ab");
    rig.close(poll_who(0));
}

TEST_CASE("poll ends a send that waits for room when the peer resets") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    const std::string big(16 * 1024 * 1024, 'x');
    std::uint32_t sent = 1;
    while (sent != 0) {  // fill both socket buffers until a send has to wait
        rig.send(poll_who(0), big);
        sent = 0;
        for (int turn = 0; turn < 3 && sent == 0; ++turn) {
            sent = rig.wait(0);
        }
        rig.seen.clear();
    }
    client.reset();
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::send);
    CHECK(failed.why == netio::error::connection_reset);
    rig.close(poll_who(0));
}

TEST_CASE("poll makes the one call that is ready, of a connection that waits for both") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    const std::string big(16 * 1024 * 1024, 'x');
    std::size_t sent = 0;
    bool waits = false;
    while (!waits) {
        rig.send(poll_who(0), big);
        waits = rig.wait(0) == 0 && rig.wait(0) == 0;
        sent += waits ? 0 : rig.out[0].byte_count;
        rig.seen.clear();
    }
    rig.receive(poll_who(0), 1'000'000);
    poll_spy::reset();
    client.send("in");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "in");
    CHECK(poll_spy::of(poll_call::send) == 0);
    CHECK(client.receive(sent).size() == sent);
    poll_spy::reset();
    rig.until(event_kind::sent);
    CHECK(poll_spy::of(poll_call::receive) == 0);
    rig.close(poll_who(0));
}

TEST_CASE("poll gives closed alone where results were not taken yet") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    client.send("unread");
    rig.quiet();
    rig.receive(poll_who(0));
    rig.send(poll_who(0), "x");
    rig.backend.start_close(poll_who(0), false);
    CHECK(rig.wait(0) == 1);
    CHECK(rig.out[0].kind == event_kind::closed);
    CHECK(rig.out[0].op == operation::close);
    CHECK_FALSE(rig.backend.ready());
    rig.seen.clear();
    rig.quiet();
}

TEST_CASE("poll keeps for the next wait what has no room in this one") {
    poll_rig rig;
    poll_door door(rig);
    std::vector<poll_client> clients;
    for (std::uint32_t index = 0; index < 6; ++index) {
        clients.push_back(door.connect(poll_who(index)));
    }
    for (std::uint32_t index = 0; index < 6; ++index) {
        rig.send(poll_who(index), "y");
        rig.receive(poll_who(index));
        rig.backend.stop_receive(poll_who(index));
    }
    while (rig.seen.size() < 12) {
        REQUIRE(rig.wait(0, 4) != 0);
        CHECK(rig.backend.ready() == (rig.seen.size() < 12));
    }
    std::uint32_t sent = 0;
    std::uint32_t stopped = 0;
    for (const event& each : rig.seen) {
        sent += each.kind == event_kind::sent;
        stopped += each.kind == event_kind::received && each.disarmed && each.byte_count == 0;
    }
    CHECK(sent == 6);
    CHECK(stopped == 6);
    rig.seen.clear();
    rig.quiet();
    for (std::uint32_t index = 0; index < 6; ++index) {
        rig.close(poll_who(index));
    }
}

// ---- buffers

TEST_CASE("poll takes one buffer of a connection in one wait, until the credit is used") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    client.send(std::string(8000, 'x'));
    rig.receive(poll_who(0), 3000);
    std::uint32_t byte_count = 0;
    for (int turn = 0; turn < 3; ++turn) {
        CHECK(rig.wait(poll_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::received);
        CHECK(bool{rig.out[0].disarmed} == (turn == 2));
        byte_count += rig.out[0].byte_count;
        rig.text_of(rig.out[0]);
    }
    CHECK(byte_count == 3072);
    rig.seen.clear();
    rig.quiet();
    rig.close(poll_who(0));
}

TEST_CASE("poll serves receives without a buffer first come first served") {
    poll_rig rig(1);
    poll_door door(rig);
    std::vector<poll_client> clients;
    for (std::uint32_t index = 0; index < 5; ++index) {
        clients.push_back(door.connect(poll_who(index)));
        rig.receive(poll_who(index));
    }
    rig.quiet();
    for (const std::uint32_t index : {3u, 0u, 4u, 1u, 2u}) {
        clients[index].send(std::to_string(index));
        rig.wait(poll_long_ns);
    }
    REQUIRE(rig.seen.size() == 1);  // the one buffer went to the first
    CHECK_FALSE(rig.backend.ready());
    rig.close(poll_who(4));  // out of the middle
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
        rig.close(poll_who(index));
    }
}

TEST_CASE("poll lets nobody who comes later have a buffer before those who wait") {
    poll_rig rig(4);
    poll_door door(rig);
    std::vector<poll_client> clients;
    for (std::uint32_t index = 0; index < 4; ++index) {
        clients.push_back(door.connect(poll_who(index)));
        rig.receive(poll_who(index));
    }
    std::vector<std::uint32_t> taken;
    while (rig.pool.room(netio::side::input) != 0) {
        taken.push_back(rig.pool.take(netio::side::input));
    }
    for (const std::uint32_t index : {3u, 2u, 1u}) {
        clients[index].send("x");
        rig.quiet();
    }
    for (const std::uint32_t buffer : taken) {
        rig.pool.give(buffer, netio::side::input, 0);
    }
    clients[0].send("x");  // seen when the first of those three has been served, no more
    for (int turn = 0; turn < 6; ++turn) {
        rig.wait(0, 4);
    }
    std::string order;
    for (const event& each : rig.seen) {
        order += std::to_string(each.who.index());
        rig.text_of(each);
    }
    CHECK(order == "3210");
    rig.seen.clear();
    for (std::uint32_t index = 0; index < 4; ++index) {
        rig.close(poll_who(index));
    }
}

TEST_CASE("poll stops receives that wait for a buffer, and forgets their places in the line") {
    poll_rig rig(1);
    poll_mailbox mailbox(rig);
    poll_door door(rig);
    poll_client first = door.connect(poll_who(0));
    poll_client second = door.connect(poll_who(1));
    rig.receive(poll_who(0));
    first.send("taken");
    const event taken = rig.until(event_kind::received);
    rig.receive(poll_who(1));
    second.send("kept");
    rig.wait(poll_long_ns);
    {
        poll_mailbox other(rig, 1);  // stopped while its datagram waits
        other.post("lost", other.there);
        rig.until(event_kind::sent);
        rig.wait(0);
        CHECK(rig.seen.empty());
    }
    rig.backend.stop_receive(poll_who(1));
    CHECK(rig.until(event_kind::received).byte_count == 0);
    rig.text_of(taken);
    CHECK_FALSE(rig.backend.ready());
    rig.quiet();
    rig.receive(poll_who(1));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "kept");
    rig.close(poll_who(0));
    rig.close(poll_who(1));
}

TEST_CASE("poll does not spin while datagrams and bytes wait for a buffer") {
    poll_rig rig(1);
    poll_mailbox mailbox(rig);
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    client.send("taken");
    rig.receive(poll_who(0));
    const event taken = rig.until(event_kind::received);
    mailbox.post("datagram", mailbox.there);
    rig.until(event_kind::sent);
    rig.wait(0);
    client.send("bytes");
    rig.receive(poll_who(0));
    rig.quiet();
    poll_spy::reset();
    const std::uint64_t begin_ns = poll_spy::now_ns();
    rig.wait(5'000'000);
    rig.wait(5'000'000);
    CHECK(poll_spy::now_ns() - begin_ns >= 10'000'000);  // it really slept both times
    CHECK(poll_spy::of(poll_call::poll) == 2);
    rig.text_of(taken);
    const event datagram = rig.until(event_kind::received);
    CHECK(datagram.op == operation::receive_from);
    CHECK(rig.text_of(datagram) == "datagram");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "bytes");
    rig.close(poll_who(0));
}

TEST_CASE("poll serves the line to its end though some find nothing, and does not sleep between") {
    poll_rig rig(2);
    poll_door door(rig);
    std::vector<poll_client> clients;
    for (std::uint32_t index = 0; index < 4; ++index) {
        clients.push_back(door.connect(poll_who(index)));
        rig.receive(poll_who(index), 3000);
    }
    const std::uint32_t buffers[] = {rig.pool.take(netio::side::input),
                                     rig.pool.take(netio::side::input)};
    for (poll_client& client : clients) {
        client.send("x");
    }
    rig.quiet();
    for (const std::uint32_t buffer : buffers) {
        rig.pool.give(buffer, netio::side::input, 0);
    }
    poll_spy::plan(poll_call::receive, EAGAIN, 1, 3);
    CHECK(rig.wait(netio::forever_ns, 4) == 1);  // the fourth has something
    CHECK(rig.out[0].who == poll_who(3));
    rig.text_of(rig.out[0]);
    rig.seen.clear();
    for (int count = 0; count < 3; ++count) {  // the first three are looked for again
        CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
    }
    for (std::uint32_t index = 0; index < 4; ++index) {
        rig.close(poll_who(index));
    }
}

// ---- connecting and accepting

TEST_CASE("poll connects, is refused once, and closes what is still being made") {
    poll_rig rig;
    poll_door door(rig);
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(door.port), {}}, {}, poll_who(5)));
    const event connected = rig.until(event_kind::connected);
    CHECK(connected.who == poll_who(5));
    CHECK(connected.handle >= 0);
    const event accepted = rig.until(event_kind::accepted);
    REQUIRE(rig.backend.attach(accepted.handle, poll_who(6)));
    rig.send(poll_who(6), "first word");
    rig.receive(poll_who(5));
    CHECK(rig.text_of(rig.until(event_kind::received)) == "first word");
    rig.until(event_kind::sent);
    rig.close(poll_who(5));
    rig.close(poll_who(6));
    const netio::os_handle gone = poll_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const std::uint16_t dead = poll_backend::local_of(gone.handle).value.port;
    poll_backend::close_handle(gone.handle, false);
    for (std::uint32_t round = 1; round < 4; ++round) {
        const token who = poll_who(0, round);
        REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(dead), {}}, {}, who));
        if (round < 3) {
            const event failed = rig.until(event_kind::failed);
            CHECK(failed.who == who);
            CHECK(failed.why == netio::error::connection_refused);
            rig.quiet();
        }
        rig.close(who, round == 3);
    }
    rig.quiet();
}

TEST_CASE("poll makes accepted sockets fit to serve") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client(door.port);
    const int accepted = static_cast<int>(rig.until(event_kind::accepted).handle);
    CHECK((::fcntl(accepted, F_GETFL) & O_NONBLOCK) != 0);
    CHECK((::fcntl(accepted, F_GETFD) & FD_CLOEXEC) != 0);
    poll_backend::close_handle(accepted, false);
}

TEST_CASE("poll goes on accepting after an error of one client, and stops after any other") {
    poll_rig rig;
    poll_door door(rig);
    for (const int code : {ECONNABORTED, EPROTO, EINTR, EPERM, ENETDOWN}) {
        CAPTURE(code);
        poll_client client(door.port);
        poll_spy::plan(poll_call::accept, code);
        poll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        rig.quiet();
    }
    poll_client client(door.port);
    poll_spy::plan(poll_call::accept, EINVAL);
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.who == door.who);
    CHECK(failed.op == operation::accept);
    CHECK(failed.os_code == EINVAL);
    rig.backend.stop_accept(door.who);  // as if that event were still unread
    rig.quiet();
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    poll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

TEST_CASE("poll closes a client that comes without an address, for it was reset in the queue") {
    poll_rig rig;
    poll_door door(rig);
    poll_client gone(door.port);
    poll_spy::peer_is_gone = true;
    rig.wait(poll_long_ns);
    CHECK(rig.seen.empty());
    CHECK(gone.receive(1).empty());
    poll_client next = door.connect(poll_who(0));
    rig.close(poll_who(0));
}

TEST_CASE("poll closes the waiting client by its spare descriptor when descriptors run out") {
    for (const int code : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
        CAPTURE(code);
        poll_rig rig;
        poll_door door(rig);
        poll_client client(door.port);
        poll_spy::plan(poll_call::accept, code);
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.why == netio::error::descriptors_empty);
        CHECK(failed.os_code == code);
        CHECK(client.receive(1).empty());
        poll_client next(door.port);
        rig.quiet();  // off, though somebody waits
        poll_spy::reset();
        REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
        poll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
        CHECK(poll_spy::of(poll_call::open_spare) == 0);  // it was taken back at once
        poll_spy::plan(poll_call::accept, code, 1, 2);    // the spare one helps nothing
        poll_client third(door.port);
        CHECK(rig.until(event_kind::failed).why == netio::error::descriptors_empty);
        REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
        poll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
    }
}

namespace {

/// Descriptor 0 is a connection like any other, hidden from poll and shown again.
int poll_with_descriptor_zero() {
    poll_rig rig;
    poll_door door(rig);
    poll_client client(door.port);
    ::close(0);
    const event accepted = rig.until(event_kind::accepted);
    if (accepted.handle != 0 || !rig.backend.attach(accepted.handle, poll_who(0))) {
        return 1;
    }
    for (int round = 0; round < 3; ++round) {
        rig.wait(0);
        client.send("zero");
        rig.receive(poll_who(0));
        if (rig.text_of(rig.until(event_kind::received)) != "zero") {
            return 2;
        }
    }
    client.reset();
    const std::uint64_t begin_ns = poll_spy::now_ns();
    for (int turn = 0; turn < 3; ++turn) {
        rig.wait(5'000'000);
    }
    if (poll_spy::now_ns() - begin_ns < 15'000'000) {
        return 3;  // the hangup of one that waits for nothing was told
    }
    rig.close(poll_who(0));
    return ::open("/dev/null", O_RDONLY) == 0 ? 0 : 4;
}

}  // namespace

TEST_CASE("poll serves a connection whose descriptor is 0") {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        ::_exit(poll_with_descriptor_zero());
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
}

// ---- datagrams

TEST_CASE("poll takes a burst of datagrams in order, empty and cut ones too, and skips errors") {
    poll_rig rig;
    poll_mailbox mailbox(rig);
    poll_client peer(mailbox.there.port, SOCK_DGRAM);
    poll_spy::plan(poll_call::receive_message, ECONNREFUSED);
    for (const std::size_t length : {5u, 0u, 1024u, 1025u}) {
        peer.send(std::string(length, 'd'));
    }
    for (const std::size_t length : {5u, 0u, 1024u, 1024u}) {
        const event got = rig.until(event_kind::received);
        CHECK(got.who == mailbox.who);
        CHECK(got.byte_count == length);
        CHECK(rig.text_of(got) == std::string(length, 'd'));
        CHECK(got.peer.family == netio::address_family::ipv4);
        CHECK(bool{got.truncated} == (rig.seen.empty() && length == 1024));
    }
    poll_spy::plan(poll_call::send_to, ECONNREFUSED);
    mailbox.post("after an error", mailbox.there);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "after an error");
}

TEST_CASE("poll keeps datagrams that find no room until the socket has some") {
    poll_rig rig;
    for (const bool receiving : {true, false}) {
        CAPTURE(receiving);
        poll_mailbox mailbox(rig);
        const netio::os_handle other = poll_backend::open_datagram(netio::loopback_ipv4(0), {});
        const netio::socket_handle from = receiving ? mailbox.handle.handle : other.handle;
        poll_spy::plan(poll_call::send_to, EAGAIN, 1, 4);
        rig.backend.start_send_to(from, poll_who(0), netio::as_bytes("one"), mailbox.there);
        rig.backend.start_send_to(from, poll_who(1), netio::as_bytes("two"), mailbox.there);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "one");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "two");
        CHECK(rig.until(event_kind::sent).who == poll_who(0));
        CHECK(rig.until(event_kind::sent).who == poll_who(1));
        poll_spy::reset();
        rig.quiet();
        CHECK(poll_spy::total() == 4);  // nobody asks for room any more
        poll_backend::close_handle(other.handle, false);
    }
}

TEST_CASE("poll fails a datagram without an address or too large to send") {
    poll_rig rig;
    poll_mailbox mailbox(rig);
    mailbox.post("nowhere", {});
    const event failed = rig.until(event_kind::failed);
    CHECK(failed.op == operation::send_to);
    CHECK(failed.why == netio::error::address_invalid);
    const std::string huge(70'000, 'x');
    mailbox.post(huge, mailbox.there, 1);
    CHECK(rig.until(event_kind::failed).why == netio::error::too_long);
}

// ---- waking

TEST_CASE("poll wakes coalesce and cost no system call while the loop is awake") {
    poll_rig rig;
    poll_spy::reset();
    rig.backend.wake();
    rig.backend.wake();
    CHECK(rig.backend.ready());
    CHECK(rig.wait(poll_long_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    CHECK(rig.out[0].op == operation::wake);
    CHECK_FALSE(rig.backend.ready());
    CHECK(poll_spy::total() == 0);
    CHECK(rig.wait(0) == 0);
    CHECK(rig.backend.wait_handle() == netio::no_handle);
    rig.backend.wake();  // no handle to signal, so still no system call
    CHECK(poll_spy::of(poll_call::write_wake) == 0);
    rig.wait(0);
    rig.seen.clear();
}

TEST_CASE("poll wake ends a wait of another thread with one write, and one read") {
    poll_rig rig;
    poll_spy::reset();
    std::thread waker([&] {
        while (poll_spy::of(poll_call::poll) == 0) {
        }
        rig.backend.wake();  // the loop announced its sleep before it made the call
        rig.backend.wake();
    });
    const std::uint64_t begin_ns = poll_spy::now_ns();
    CHECK(rig.wait(poll_long_ns) == 1);
    CHECK(poll_spy::now_ns() - begin_ns < poll_long_ns);
    CHECK(rig.out[0].kind == event_kind::woken);
    waker.join();
    CHECK(poll_spy::of(poll_call::write_wake) == 1);
    rig.wait(0);  // the second wake may have come after the sleep
    rig.wait(0);
    CHECK(poll_spy::of(poll_call::read_wake) == 1);
    CHECK(rig.wait(3'000'000) == 0);  // the pipe is empty: nothing spins
    rig.seen.clear();
}

TEST_CASE("poll loses no wake-up of 400,000 posts of four threads [threads]") {
    poll_rig rig;
    constexpr std::uint64_t posts_each = 100'000;
    std::atomic<std::uint64_t> posted = 0;
    std::uint64_t taken = 0;
    std::vector<std::thread> posters;
    for (int count = 0; count < 4; ++count) {
        posters.emplace_back([&] {
            for (std::uint64_t post = 0; post < posts_each; ++post) {
                posted.fetch_add(1, std::memory_order_relaxed);
                rig.backend.wake();
                if (post % 64 == 0) {
                    ::sched_yield();
                }
            }
        });
    }
    while (taken < 4 * posts_each) {
        const std::uint64_t begin_ns = poll_spy::now_ns();
        if (rig.backend.wait(rig.out, 10 * poll_long_ns) != 0) {
            taken = posted.load(std::memory_order_relaxed);
        }
        if (poll_spy::now_ns() - begin_ns >= 10 * poll_long_ns) {
            FAIL("a wake-up was lost");
        }
    }
    for (std::thread& each : posters) {
        each.join();
    }
    CHECK(poll_spy::of(poll_call::write_wake) <= poll_spy::of(poll_call::poll));
}

namespace {

std::atomic<int> poll_closes_seen = -1;
poll_backend* poll_signalled = nullptr;

}  // namespace

TEST_CASE("poll close waits for a waker that is just writing [threads]") {
    poll_rig rig;
    poll_closes_seen = -1;
    poll_spy::reset();
    poll_spy::on_write_wake = [] {
        poll_closes_seen = 0;
        while (poll_spy::yields == 0 && poll_spy::of(poll_call::close) == 0) {
        }
        poll_closes_seen = poll_spy::of(poll_call::close);
    };
    std::thread waker([&] {
        while (poll_spy::of(poll_call::poll) == 0) {
        }
        rig.backend.wake();
    });
    rig.wait(20'000'000);  // woken or not: the waker is held in its write until somebody closes
    while (poll_closes_seen == -1) {
        rig.wait(20'000'000);
    }
    rig.backend.close();
    waker.join();
    CHECK(poll_closes_seen == 0);  // nothing was closed before it had written
    rig.seen.clear();
}

TEST_CASE("poll can be woken by a signal handler, which keeps errno") {
    poll_rig rig;
    poll_signalled = &rig.backend;
    struct sigaction action{};
    action.sa_handler = [](int) { poll_signalled->wake(); };
    struct sigaction before{};
    ::sigaction(SIGUSR1, &action, &before);
    errno = 12345;
    ::raise(SIGUSR1);  // just before the wait: it must not sleep
    CHECK(errno == 12345);
    CHECK(rig.wait(netio::forever_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    rig.seen.clear();
    ::sigaction(SIGUSR1, &before, nullptr);
    poll_signalled = nullptr;
}

TEST_CASE("poll does not sleep when it is woken between two looks") {
    poll_rig rig(1);
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    const std::uint32_t buffer = rig.pool.take(netio::side::input);
    client.send("x");
    rig.receive(poll_who(0));
    rig.quiet();
    rig.pool.give(buffer, netio::side::input, 0);
    poll_signalled = &rig.backend;
    poll_spy::on_receive = [] { poll_signalled->wake(); };
    poll_spy::plan(poll_call::receive, EAGAIN);
    CHECK(rig.wait(netio::forever_ns) == 2);
    CHECK(poll_spy::last_timeout_ms == 0);
    CHECK(rig.out[0].kind == event_kind::woken);
    CHECK(rig.text_of(rig.out[1]) == "x");  // the same look said so again
    CHECK(poll_spy::of(poll_call::write_wake) == 0);
    poll_spy::on_receive = nullptr;
    poll_signalled = nullptr;
    rig.wait(0);  // the second receive woke it too
    rig.seen.clear();
    rig.close(poll_who(0));
}

// ---- time-outs and failures

TEST_CASE("poll rounds time-outs up, never blocks for zero and survives a failing look") {
    poll_rig rig;
    rig.wait(0);
    CHECK(poll_spy::last_timeout_ms == 0);
    rig.wait(1);
    CHECK(poll_spy::last_timeout_ms == 1);
    rig.wait(1'000'001);
    CHECK(poll_spy::last_timeout_ms == 2);
    poll_spy::plan(poll_call::poll, EINTR, 1, 2);
    CHECK(rig.wait(netio::forever_ns) == 0);  // early, without an event
    CHECK(poll_spy::last_timeout_ms == -1);
    CHECK(rig.wait(netio::forever_ns - 1) == 0);
    CHECK(poll_spy::last_timeout_ms == INT_MAX);
}

TEST_CASE("poll does not spin while the kernel refuses its table, and hears a wake-up") {
    poll_rig rig;
    poll_door door(rig);
    rig.wait(0);
    for (const int code : {EINVAL, ENOMEM}) {
        CAPTURE(code);
        poll_spy::reset();
        poll_spy::plan(poll_call::poll, code);
        CHECK(rig.wait(netio::forever_ns) == 0);
        CHECK(poll_spy::of(poll_call::poll) == 2);
        CHECK(poll_spy::last_timeout_ms == 10);
        CHECK(poll_spy::last_count == 1);  // the pipe
        poll_spy::plan(poll_call::poll, code);
        CHECK(rig.wait(1) == 0);
        CHECK(poll_spy::last_timeout_ms == 1);
        poll_spy::plan(poll_call::poll, code);
        CHECK(rig.wait(0) == 0);
        CHECK(poll_spy::last_timeout_ms == 0);
        CHECK(poll_spy::last_count != 1);
    }
    poll_spy::reset();
    poll_spy::plan(poll_call::poll, EINVAL);
    poll_signalled = &rig.backend;
    poll_spy::on_poll = [] {
        poll_spy::on_poll = nullptr;
        poll_signalled->wake();
    };
    CHECK(rig.wait(netio::forever_ns) == 1);
    CHECK(rig.out[0].kind == event_kind::woken);
    CHECK(poll_spy::of(poll_call::read_wake) == 1);
    poll_signalled = nullptr;
    rig.seen.clear();
    poll_client client(door.port);
    poll_backend::close_handle(rig.until(event_kind::accepted).handle, false);
}

TEST_CASE("poll opens no table of more entries than one call takes") {
    static std::vector<std::byte> raw(poll_backend::bytes_needed(poll_sizes) + 64);
    netio::buffer_pool pool;
    const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
    netio::basic_poll<poll_short_sys> backend;
    const netio::os_status opened = backend.open(
        {raw.data() + (64 - at % 64) % 64, raw.size() - 64}, poll_sizes, pool);
    CHECK(opened.why == netio::error::descriptors_limit);
    CHECK(opened.os_code == 0);
}

TEST_CASE("poll shows no interruption and no would-block to anybody") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    for (const poll_call call : {poll_call::receive, poll_call::send, poll_call::send_message}) {
        rig.receive(poll_who(0));
        client.send("x");
        poll_spy::plan(call, EINTR, 1, 3);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
        rig.send(poll_who(0), "y");
        CHECK(rig.until(event_kind::sent).byte_count == 1);
        const netio::bytes slices[] = {netio::as_bytes("a"), netio::as_bytes("b")};
        rig.backend.start_send(poll_who(0), slices);
        CHECK(rig.until(event_kind::sent).byte_count == 2);
        CHECK(client.receive(3) == "yab");
    }
    rig.receive(poll_who(0));
    client.send("z");
    poll_spy::plan(poll_call::receive, EAGAIN);
    rig.wait(poll_long_ns);
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "z");  // said again without a new byte
    rig.close(poll_who(0));
}

TEST_CASE("poll opens with nothing held or not at all") {
    poll_rig rig(4, false);
    poll_spy::plan(poll_call::open_wake, EMFILE);
    const netio::os_status no_pipe = rig.open();
    CHECK(no_pipe.why == netio::error::descriptors_empty);
    CHECK(no_pipe.os_code == EMFILE);
    CHECK(open_handles() == rig.descriptors_before);
    rig.backend.close();  // of one that is not open: nothing
    poll_spy::allowed = 308;  // the table has 309 entries, which poll would refuse
    CHECK(rig.open().why == netio::error::descriptors_limit);
    poll_spy::allowed = 309;
    CHECK(rig.open());
    rig.backend.close();
    poll_spy::allowed = 0;
    poll_spy::plan(poll_call::open_spare, EMFILE);
    CHECK(rig.open());  // without a spare descriptor too
    CHECK(poll_backend::available().offered);
}

TEST_CASE("poll holds nothing when any call of a connect fails") {
    poll_rig rig;
    poll_door door(rig);
    const netio::endpoint to = netio::loopback_ipv4(door.port);
    const std::size_t before = open_handles();
    for (const poll_call call : {poll_call::socket, poll_call::setsockopt, poll_call::connect}) {
        poll_spy::plan(call, ENOBUFS);
        CHECK(rig.backend.start_connect({to, {}}, {}, poll_who(0)).os_code == ENOBUFS);
    }
    poll_spy::plan(poll_call::connect, EINTR);  // as good as in progress
    REQUIRE(rig.backend.start_connect({to, {}}, {}, poll_who(0)));
    poll_spy::plan(poll_call::getsockopt, EIO);
    CHECK(rig.until(event_kind::failed).os_code == EIO);
    rig.close(poll_who(0));
    rig.quiet();
    CHECK(open_handles() == before);
}

namespace {

/// A little of everything, whatever fails; ends what it began.
void poll_scenario(poll_rig& rig) {
    const netio::os_handle door = poll_backend::listen({netio::loopback_ipv4(0), {}}, {});
    const netio::os_handle box = poll_backend::open_datagram(netio::loopback_ipv4(0), {});
    const bool bound = door && poll_backend::local_of(door.handle);
    const bool accepting = bound && rig.backend.start_accept(door.handle, poll_who(0));
    const bool receiving = box && rig.backend.start_receive_from(box.handle, poll_who(0));
    const bool connecting =
        bound && rig.backend.start_connect({poll_backend::local_of(door.handle).value, {}}, {},
                                           poll_who(0));
    if (receiving) {
        const netio::result<netio::endpoint> there = poll_backend::local_of(box.handle);
        rig.backend.start_send_to(box.handle, poll_who(0), netio::as_bytes("datagram"),
                                  there ? there.value : netio::endpoint{});
    }
    std::uint32_t attached = 1;  // slot 0 is the connecting one
    bool connected = false;
    bool off = false;
    for (int turn = 0; turn < 12; ++turn) {
        const std::uint32_t count = rig.backend.wait(rig.out, 1'000'000);
        for (const event& each : std::span(rig.out).first(count)) {
            off = off || (each.op == operation::accept && each.kind == event_kind::failed);
            if (each.kind == event_kind::accepted) {
                CHECK(rig.backend.attach(each.handle, poll_who(attached)));
                rig.receive(poll_who(attached), 100);
                const netio::bytes two[] = {netio::as_bytes("a"), netio::as_bytes("b")};
                rig.backend.start_send(poll_who(attached++), two);
            } else if (each.kind == event_kind::connected) {
                connected = true;
                rig.send(poll_who(0), "hello");
                rig.receive(poll_who(0), 100);
            } else if (each.buffer_index != netio::none_index) {
                rig.text_of(each);
            }
        }
    }
    for (std::uint32_t index = connecting ? 0 : 1; index < attached; ++index) {
        rig.backend.start_close(poll_who(index), index == 0 && connected);
    }
    if (receiving) {
        rig.backend.stop_receive_from(poll_who(0));
    }
    if (accepting && !off) {
        rig.backend.stop_accept(poll_who(0));
    }
    std::uint32_t closed = 0;
    for (int turn = 0; turn < 12; ++turn) {
        const std::uint32_t count = rig.backend.wait(rig.out, 1'000'000);
        for (const event& each : std::span(rig.out).first(count)) {
            closed += each.kind == event_kind::closed ? 1 : 0;
            if (each.buffer_index != netio::none_index) {
                rig.text_of(each);
            } else if (each.kind == event_kind::accepted) {
                poll_backend::close_handle(each.handle, false);
            }
        }
    }
    CHECK(closed == attached - (connecting ? 0 : 1) + (receiving ? 1 : 0));
    CHECK_FALSE(rig.backend.ready());
    for (const netio::os_handle& each : {door, box}) {
        if (each) {
            poll_backend::close_handle(each.handle, false);
        }
    }
}

}  // namespace

TEST_CASE("poll leaves nothing behind, whichever system call fails") {
    int calls = 0;
    {
        poll_rig rig(4, false);
        poll_spy::reset();
        REQUIRE(rig.open());
        poll_scenario(rig);
        calls = poll_spy::total();
    }
    CHECK(calls > 30);
    for (const int code : {ENOMEM, EIO, ECONNRESET}) {
        for (int nth = 1; nth <= calls; ++nth) {
            CAPTURE(code);
            CAPTURE(nth);
            poll_rig rig(4, false);
            poll_spy::fail_code = code;
            poll_spy::fail_any_at = nth;
            if (rig.open()) {
                poll_scenario(rig);
            }
        }
    }
}

TEST_CASE("poll close ends everything that is still attached") {
    poll_rig rig;
    poll_door door(rig);
    poll_client client = door.connect(poll_who(0));
    REQUIRE(rig.backend.start_connect({netio::loopback_ipv4(door.port), {}}, {}, poll_who(1)));
    door.accepting = false;
    rig.backend.close();
    CHECK(client.receive(1).empty());
}

#endif
