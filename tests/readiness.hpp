// What backends over readiness show alike, call by call, where the contract's suite is too far
// away: the rig with its peers, and the cases that are the same on each of them. An instantiation
// is one line:
//     const netio_test::readiness_cases<epoll_sys, epoll_call, epoll_backend> epoll_cases;
#ifndef NETIO_TESTS_READINESS_HPP
#define NETIO_TESTS_READINESS_HPP

#include "tests/sockets.hpp"

#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <array>
#include <poll.h>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <utility>
#include <vector>

namespace netio_test {

using namespace netio;
using plain::open_handles;

inline constexpr backend_limits readiness_sizes{300, 2, 2, 4};
inline constexpr std::uint64_t readiness_long_ns = 2'000'000'000;

/// An open backend with a pool; on the way out nothing may be left of either.
template <class Counts, class Backend>
struct readiness_rig {
    using counts = Counts;
    using backend_type = Backend;

    static constexpr std::uint32_t buffers = 160;
    static constexpr std::size_t memory_bytes = Backend::bytes_needed(readiness_sizes);

    std::vector<std::byte> pool_bytes;
    std::vector<std::uint32_t> pool_links = std::vector<std::uint32_t>(buffers);
    std::vector<std::byte> raw = std::vector<std::byte>(memory_bytes + 64);
    buffer_pool pool;
    Backend backend;
    std::size_t descriptors_before;
    event out[32];
    std::vector<event> seen;

    explicit readiness_rig(std::uint32_t input_quota = buffers / 2,
                           std::uint32_t buffer_bytes = 1024)
        : pool_bytes(std::size_t{buffers} * buffer_bytes) {
        Counts::reset();
        descriptors_before = open_handles();
        pool.attach(pool_bytes.data(), pool_links.data(), buffers, buffer_bytes, input_quota,
                    buffers - buffers / 2, false);
        REQUIRE(backend.open(memory(), readiness_sizes, pool));
    }
    ~readiness_rig() {
        Counts::reset();
        backend.close();
        CHECK(open_handles() == descriptors_before);
        CHECK(pool.in_use(side::input) == 0);
    }
    mutable_bytes memory() {
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
        const std::uint64_t until_ns = Counts::now_ns() + 2 * readiness_long_ns;
        while (Counts::now_ns() < until_ns) {
            for (std::size_t at = 0; at < seen.size(); ++at) {
                if (seen[at].kind == kind) {
                    const event found = seen[at];
                    seen.erase(seen.begin() + static_cast<std::ptrdiff_t>(at));
                    return found;
                }
            }
            wait(readiness_long_ns);
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
        pool.give(received.buffer_index, side::input, received.byte_count);
        return text;
    }
    void send(token who, std::string_view text) {
        const bytes slice = as_bytes(text);
        backend.start_send(who, {&slice, 1});
    }
    void receive(token who, std::uint32_t credit = 1) { backend.start_receive(who, {}, credit); }
    void close(token who, bool abort = false) {
        backend.start_close(who, abort);
        CHECK(until(event_kind::closed).who == who);
    }
};

constexpr token who_of(std::uint32_t index, std::uint32_t generation = 1) {
    return token::of(index, generation);
}

/// A plain blocking client.
struct readiness_client {
    int descriptor = -1;

    readiness_client() = default;
    explicit readiness_client(std::uint16_t port) {
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
    readiness_client(readiness_client&& other) noexcept : descriptor(other.descriptor) {
        other.descriptor = -1;
    }
    readiness_client& operator=(readiness_client&& other) noexcept {
        std::swap(descriptor, other.descriptor);
        return *this;
    }
    ~readiness_client() { close(); }
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
template <class Rig>
struct readiness_door {
    Rig& rig;
    os_handle handle;
    std::uint16_t port = 0;
    token who;

    explicit readiness_door(Rig& of, std::uint32_t index = 0)
        : rig(of), who(who_of(index)) {
        handle = Rig::backend_type::listen({loopback_ipv4(0), {}}, {});
        REQUIRE(handle);
        port = Rig::backend_type::local_of(handle.handle).value.port;
        REQUIRE(rig.backend.start_accept(handle.handle, who));
    }
    ~readiness_door() {
        if (accepting) {
            rig.backend.stop_accept(who);
        }
        Rig::backend_type::close_handle(handle.handle, false);
    }
    /// A client and its connection, attached as `as`.
    readiness_client connect(token as) {
        readiness_client client(port);
        const event accepted = rig.until(event_kind::accepted);
        REQUIRE(rig.backend.attach(accepted.handle, as));
        accepted_last = accepted.handle;
        return client;
    }
    bool accepting = true;
    socket_handle accepted_last = no_handle;
};

template <class Rig>
struct readiness_mailbox {
    Rig& rig;
    os_handle handle;
    endpoint there;
    token who;

    explicit readiness_mailbox(Rig& of, std::uint32_t index = 0)
        : rig(of), who(who_of(index)) {
        handle = Rig::backend_type::open_datagram(loopback_ipv4(0), {});
        REQUIRE(handle);
        there = Rig::backend_type::local_of(handle.handle).value;
        REQUIRE(rig.backend.start_receive_from(handle.handle, who));
    }
    ~readiness_mailbox() {
        rig.backend.stop_receive_from(who);
        const event last = rig.until(event_kind::closed);
        CHECK(last.op == operation::receive_from);
        CHECK(last.who == who);
        Rig::backend_type::close_handle(handle.handle, false);
    }
    void post(std::string_view text, const endpoint& to, std::uint32_t send = 0) {
        rig.backend.start_send_to(handle.handle, who_of(send), as_bytes(text), to);
    }
};

/// A port of loopback that nobody listens on.
template <class Backend>
std::uint16_t readiness_dead_port() {
    const os_handle made = Backend::listen({loopback_ipv4(0), {}}, {});
    const std::uint16_t port = Backend::local_of(made.handle).value.port;
    Backend::close_handle(made.handle, false);
    return port;
}

/// Runs `body` in a child, where a descriptor limit or a user may be changed; its exit code.
template <class Body>
int readiness_in_child(Body body) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        ::_exit(body());
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// The cases. `Counts` is the policy of system calls that counts and fails those of `Call`.
template <class Counts, class Call, class Backend>
struct readiness_suite {
    using counts = Counts;
    using call_type = Call;
    using backend_type = Backend;
    using rig_type = readiness_rig<Counts, Backend>;
    using door_type = readiness_door<rig_type>;
    using mailbox_type = readiness_mailbox<rig_type>;

    /// In a child with 64 descriptors: fills them, then lets a client wait for 200 ms.
    static int run_out_of_descriptors() {
        rig_type rig;
        door_type door(rig);
        const rlimit bound{64, 64};
        if (::setrlimit(RLIMIT_NOFILE, &bound) != 0) {
            return 1;
        }
        std::vector<readiness_client> clients;
        clients.emplace_back(door.port);
        clients.emplace_back(door.port);
        std::vector<int> fill;
        for (int made = ::dup(2); made >= 0; made = ::dup(2)) {
            fill.push_back(made);
        }
        counts::reset();
        const event failed = rig.until(event_kind::failed);
        if (failed.why != error::descriptors_empty || failed.os_code != EMFILE) {
            return 2;
        }
        const std::uint64_t until_ns = counts::now_ns() + 200'000'000;
        while (counts::now_ns() < until_ns) {
            if (rig.wait(20'000'000) != 0) {
                return 3;
            }
        }
        if (counts::of(call_type::accept) > 2 || counts::of(call_type::wait) > 15) {
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
        backend_type::close_handle(accepted.handle, false);
        return 0;
    }

    static void echo_alone() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        rig.receive(who_of(0));
        rig.quiet();
        counts::reset();
        for (int round = 0; round < 10; ++round) {
            client.send("hello");
            const event received = rig.until(event_kind::received);
            CHECK(bool{received.disarmed});
            CHECK(received.who == who_of(0));
            const std::string text = rig.text_of(received);
            CHECK(text == "hello");
            rig.send(who_of(0), text);
            rig.receive(who_of(0));
            CHECK(rig.until(event_kind::sent).byte_count == 5);
            CHECK(client.receive(5) == "hello");
        }
        CHECK(counts::of(call_type::wait) == 10);
        CHECK(counts::of(call_type::receive) == 10);
        CHECK(counts::of(call_type::send) == 10);
        CHECK(counts::total() == 30);
        rig.close(who_of(0));
    }

    static void hundred_ready() {
        rig_type rig;
        door_type door(rig);
        std::vector<readiness_client> clients;
        for (std::uint32_t index = 0; index < 100; ++index) {
            clients.push_back(door.connect(who_of(index)));
            rig.receive(who_of(index));
        }
        rig.quiet();
        for (int round = 0; round < 3; ++round) {
            for (readiness_client& client : clients) {
                client.send("ping");
            }
            counts::reset();
            int sent = 0;
            while (sent < 100) {
                rig.wait(readiness_long_ns);
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
            CHECK(counts::of(call_type::receive) == 100);
            CHECK(counts::of(call_type::send) == 100);
            CHECK(counts::of(call_type::wait) == 1);
            CHECK(counts::total() == 201);
            for (readiness_client& client : clients) {
                CHECK(client.receive(4) == "ping");
            }
        }
        for (std::uint32_t index = 0; index < 100; ++index) {
            rig.close(who_of(index));
        }
    }

    static void accepts_over_waits() {
        rig_type rig;
        door_type door(rig);
        std::vector<readiness_client> clients;
        for (int count = 0; count < 40; ++count) {
            clients.emplace_back(door.port);
        }
        while (rig.seen.size() < 40) {
            CHECK(rig.wait(readiness_long_ns, 4) <= 4);
        }
        for (const event& each : rig.seen) {
            CHECK(each.kind == event_kind::accepted);
            CHECK(each.who == door.who);
            CHECK(each.peer.family == address_family::ipv4);
            CHECK(each.peer.address[0] == 127);
            backend_type::close_handle(each.handle, false);
        }
        rig.seen.clear();
        rig.quiet();
    }

    static void accepted_options() {
        rig_type rig;
        listen_options options;
        options.socket.receive_bytes = 65536;
        options.socket.keepalive_idle_s = 77;
        options.socket.user_timeout_ms = 4321;
        const os_handle made =
            backend_type::listen({loopback_ipv4(0), {}}, options);
        REQUIRE(made);
        REQUIRE(rig.backend.start_accept(made.handle, who_of(0)));
        readiness_client client(backend_type::local_of(made.handle).value.port);
        counts::reset();
        const int accepted = static_cast<int>(rig.until(event_kind::accepted).handle);
        CHECK(counts::of(call_type::setsockopt) == 0);
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
        backend_type::close_handle(accepted, false);
        rig.backend.stop_accept(who_of(0));
        backend_type::close_handle(made.handle, false);
    }

    static void short_read_at_end() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.send("last words");
        client.finish();
        for (int turn = 0; turn < 3; ++turn) {
            rig.wait(0);  // the edge comes while nobody receives, and only once
        }
        CHECK(rig.seen.empty());
        rig.receive(who_of(0));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "last words");
        rig.receive(who_of(0));
        CHECK(rig.until(event_kind::ended).who == who_of(0));
        rig.send(who_of(0), "reply");  // half-closed: sending goes on
        rig.until(event_kind::sent);
        CHECK(client.receive(5) == "reply");
        rig.close(who_of(0));
    }

    static void urgent_data() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.send("before");
        REQUIRE(::send(client.descriptor, "!", 1, MSG_OOB) == 1);
        client.send("behind");
        std::string all;
        while (all.size() < 12) {
            rig.receive(who_of(0));
            all += rig.text_of(rig.until(event_kind::received));
        }
        CHECK(all == "beforebehind");
        rig.close(who_of(0));
    }

    static void received_before_reset() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.send("data");
        client.reset();
        rig.receive(who_of(0));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "data");
        rig.receive(who_of(0));
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.op == operation::receive);
        CHECK(failed.why == error::connection_reset);
        CHECK(failed.os_code == ECONNRESET);
        rig.close(who_of(0));
    }

    static void idle_reset() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.reset();
        counts::reset();
        const std::uint64_t until_ns = counts::now_ns() + 30'000'000;
        while (counts::now_ns() < until_ns) {
            rig.wait(10'000'000);
        }
        CHECK(rig.seen.empty());
        CHECK(counts::of(call_type::wait) <= 6);
        rig.close(who_of(0));
    }

    static void one_buffer_a_wait() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.send(std::string(8000, 'x'));
        rig.receive(who_of(0), 3000);
        std::uint32_t byte_count = 0;
        for (int turn = 0; turn < 3; ++turn) {
            CHECK(rig.wait(readiness_long_ns) == 1);
            CHECK(rig.out[0].kind == event_kind::received);
            CHECK(bool{rig.out[0].disarmed} == (turn == 2));
            byte_count += rig.out[0].byte_count;
            rig.text_of(rig.out[0]);
        }
        CHECK(byte_count == 3072);
        rig.seen.clear();
        rig.quiet();
        rig.close(who_of(0));
    }

    static void receive_into_memory() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        std::byte into[16];
        rig.backend.start_receive(who_of(0), into, 1);
        rig.quiet();
        client.send("to your memory");
        const event received = rig.until(event_kind::received);
        CHECK(received.buffer_index == none_index);
        CHECK(bool{received.disarmed});
        CHECK(as_text({into, received.byte_count}) == "to your memory");
        CHECK(rig.pool.in_use(side::input) == 0);
        client.close();
        rig.backend.start_receive(who_of(0), into, 1);
        rig.until(event_kind::ended);
        rig.close(who_of(0));
    }

    static void stopped_receive() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        rig.receive(who_of(0));
        rig.backend.stop_receive(who_of(0));
        client.send("kept");
        const event last = rig.until(event_kind::received);
        CHECK(bool{last.disarmed});
        CHECK(last.byte_count == 0);
        CHECK(last.buffer_index == none_index);
        rig.quiet();
        rig.receive(who_of(0));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "kept");
        rig.backend.stop_receive(who_of(0));  // as if that event were still unread
        rig.quiet();
        rig.close(who_of(0));
    }

    static void reused_descriptor() {
        rig_type rig;
        door_type door(rig);
        std::vector<readiness_client> clients;
        for (std::uint32_t index = 0; index < 8; ++index) {
            clients.push_back(door.connect(who_of(index)));
            rig.receive(who_of(index));
        }
        rig.quiet();
        for (readiness_client& client : clients) {
            client.send("x");
        }
        CHECK(rig.wait(readiness_long_ns, 4) == 4);  // four more wait in the ready array
        for (const event& each : rig.seen) {
            rig.text_of(each);
        }
        rig.seen.clear();
        const token old = who_of(7);
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
        REQUIRE(rig.backend.attach(reused, who_of(7, 2)));
        rig.receive(who_of(7, 2));
        for (int turn = 0; turn < 4; ++turn) {
            rig.wait(0);
        }
        CHECK(rig.backend.stale_count() == 1);
        for (const event& each : rig.seen) {
            CHECK(each.who != who_of(7, 2));
            CHECK(each.who != old);
            rig.text_of(each);
        }
        rig.seen.clear();
        REQUIRE(::write(pair[1], "mine", 4) == 4);
        const event own = rig.until(event_kind::received);
        CHECK(own.who == who_of(7, 2));
        CHECK(rig.text_of(own) == "mine");
        ::close(pair[1]);
        rig.close(who_of(7, 2));
        for (std::uint32_t index = 0; index < 7; ++index) {
            rig.close(who_of(index));
        }
    }

    static void several_slices() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        const bytes slices[] = {as_bytes("ab"), as_bytes("cde"),
                                       as_bytes("f")};
        rig.backend.start_send(who_of(0), slices);
        CHECK(rig.until(event_kind::sent).byte_count == 6);
        CHECK(client.receive(6) == "abcdef");
        counts::plan(call_type::send_message, EAGAIN);
        rig.backend.start_send(who_of(0), slices);
        // Writable all the time: the edge is there.
        CHECK(rig.until(event_kind::sent).byte_count == 2);
        CHECK(client.receive(2) == "ab");
        rig.close(who_of(0));
    }

    static void send_to_gone_peer() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.reset();
        rig.quiet();
        rig.send(who_of(0), "x");
        const event first = rig.until(event_kind::failed);
        CHECK(first.op == operation::send);
        CHECK(first.why == error::connection_reset);
        const bytes slices[] = {as_bytes("a"), as_bytes("b")};
        rig.backend.start_send(who_of(0), slices);
        CHECK(rig.until(event_kind::failed).why == error::broken_pipe);
        rig.close(who_of(0));
    }

    static void send_ended_by_reset() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        const std::string big(16 * 1024 * 1024, 'x');
        event last = {};
        do {  // fill both socket buffers until a send has to wait
            rig.send(who_of(0), big);
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
        CHECK(failed.why == error::connection_reset);
        rig.close(who_of(0));
    }

    static void orderly_and_abort() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        rig.send(who_of(0), "bye");
        rig.close(who_of(0));
        CHECK(client.receive(10) == "bye");
        readiness_client aborted = door.connect(who_of(0, 2));
        rig.receive(who_of(0, 2));
        rig.close(who_of(0, 2), true);
        CHECK(aborted.receive(1) == "!" + std::to_string(ECONNRESET));
        readiness_client half = door.connect(who_of(0, 3));
        rig.backend.end_send(who_of(0, 3));
        CHECK(half.receive(1).empty());
        half.send("reply");
        rig.receive(who_of(0, 3));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "reply");
        rig.close(who_of(0, 3));
    }

    static void closed_alone() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.send("unread");
        rig.quiet();
        rig.receive(who_of(0));
        rig.send(who_of(0), "x");
        rig.backend.start_close(who_of(0), false);
        CHECK(rig.wait(0) == 1);
        CHECK(rig.out[0].kind == event_kind::closed);
        CHECK(rig.out[0].op == operation::close);
        rig.seen.clear();
        rig.quiet();
    }

    static void first_come_first_served() {
        rig_type rig(1);
        door_type door(rig);
        std::vector<readiness_client> clients;
        for (std::uint32_t index = 0; index < 5; ++index) {
            clients.push_back(door.connect(who_of(index)));
            rig.receive(who_of(index));
        }
        rig.quiet();
        rig.seen.clear();
        const std::uint32_t order[] = {3, 0, 4, 1, 2};
        for (const std::uint32_t index : order) {
            clients[index].send(std::to_string(index));
            rig.wait(readiness_long_ns);
        }
        REQUIRE(rig.seen.size() == 1);  // the one buffer went to the first
        CHECK_FALSE(rig.backend.ready());
        rig.close(who_of(4));  // taken out of the middle
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
            rig.close(who_of(index));
        }
    }

    static void nobody_overtakes() {
        rig_type rig(4);
        door_type door(rig);
        std::vector<readiness_client> clients;
        for (std::uint32_t index = 0; index < 4; ++index) {
            clients.push_back(door.connect(who_of(index)));
            rig.receive(who_of(index));
        }
        std::vector<std::uint32_t> taken;
        while (rig.pool.room(side::input) != 0) {
            taken.push_back(rig.pool.take(side::input));
        }
        for (std::uint32_t index = 0; index < 3; ++index) {
            clients[index].send("x");
            rig.quiet();
        }
        for (const std::uint32_t buffer : taken) {
            rig.pool.give(buffer, side::input, 0);
        }
        // Seen in the second wait, which serves the second one of those three.
        clients[3].send("x");
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
            rig.close(who_of(index));
        }
    }

    static void starved_without_spin() {
        rig_type rig(1);
        const os_handle socket = backend_type::open_datagram(loopback_ipv4(0), {});
        REQUIRE(socket);
        const endpoint there = backend_type::local_of(socket.handle).value;
        REQUIRE(rig.backend.start_receive_from(socket.handle, who_of(0)));
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        client.send("taken");
        rig.receive(who_of(0));
        const event taken = rig.until(event_kind::received);
        rig.backend.start_send_to(socket.handle, who_of(0), as_bytes("datagram"), there);
        rig.until(event_kind::sent);
        rig.wait(0);
        client.send("bytes");
        rig.receive(who_of(0));
        rig.quiet();
        counts::reset();
        const std::uint64_t begin_ns = counts::now_ns();
        rig.wait(5'000'000);
        rig.wait(5'000'000);
        CHECK(counts::now_ns() - begin_ns >= 10'000'000);  // it really slept both times
        CHECK(counts::of(call_type::wait) == 2);
        CHECK(rig.seen.empty());
        rig.text_of(taken);
        const event datagram = rig.until(event_kind::received);
        CHECK(datagram.op == operation::receive_from);
        CHECK(rig.text_of(datagram) == "datagram");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "bytes");
        rig.backend.start_send_to(socket.handle, who_of(0), as_bytes("again"), there);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "again");
        rig.backend.stop_receive_from(who_of(0));
        rig.until(event_kind::closed);
        backend_type::close_handle(socket.handle, false);
        rig.close(who_of(0));
    }

    static void connects() {
        rig_type rig;
        door_type door(rig);
        REQUIRE(rig.backend.start_connect({loopback_ipv4(door.port), {}}, {}, who_of(5)));
        const event connected = rig.until(event_kind::connected);
        CHECK(connected.who == who_of(5));
        CHECK(connected.op == operation::connect);
        CHECK(connected.handle >= 0);
        const event accepted = rig.until(event_kind::accepted);
        REQUIRE(rig.backend.attach(accepted.handle, who_of(6)));
        rig.send(who_of(6), "first word");
        rig.receive(who_of(5));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "first word");
        rig.close(who_of(5));
        rig.close(who_of(6));
    }

    static void mapped_address() {
        rig_type rig;
        door_type door(rig);
        const endpoint to = mapped(loopback_ipv4(door.port));
        REQUIRE(rig.backend.start_connect({to, {}}, {}, who_of(0)));
        rig.until(event_kind::connected);
        rig.close(who_of(0));
        backend_type::close_handle(rig.until(event_kind::accepted).handle, false);
    }

    static void refused_connect() {
        rig_type rig;
        const std::uint16_t port = readiness_dead_port<Backend>();
        const std::size_t before = open_handles();
        for (std::uint32_t round = 1; round < 4; ++round) {
            const token who = who_of(0, round);
            REQUIRE(rig.backend.start_connect({loopback_ipv4(port), {}}, {}, who));
            const event failed = rig.until(event_kind::failed);
            CHECK(failed.who == who);
            CHECK(failed.op == operation::connect);
            CHECK(failed.why == error::connection_refused);
            CHECK(failed.os_code == ECONNREFUSED);
            rig.quiet();
            rig.close(who);  // the slot is taken until then
            CHECK(open_handles() == before);
        }
    }

    static void closed_while_connecting() {
        rig_type rig;
        const std::uint16_t port = readiness_dead_port<Backend>();
        REQUIRE(rig.backend.start_connect({loopback_ipv4(port), {}}, {}, who_of(0)));
        rig.close(who_of(0), true);
        rig.quiet();
        CHECK(rig.seen.empty());
    }

    static void unix_listeners() {
        rig_type rig;
        const std::string path = "@netio-X-test-" + std::to_string(::getpid());
        listen_options options;
        options.backlog = 1;
        const os_handle made = backend_type::listen({{}, path}, options);
        REQUIRE(made);
        os_status status{};
        std::uint32_t connected = 0;
        for (; connected < 10; ++connected) {
            status = rig.backend.start_connect({{}, path}, {}, who_of(connected));
            if (!status) {
                break;
            }
            CHECK(rig.until(event_kind::connected).who == who_of(connected));
        }
        CHECK(connected == 2);
        CHECK(status.why == error::address_in_use);
        CHECK(status.os_code == EAGAIN);
        REQUIRE(rig.backend.start_accept(made.handle, who_of(1)));
        for (std::uint32_t index = 0; index < connected; ++index) {
            const event accepted = rig.until(event_kind::accepted);
            CHECK(accepted.peer.family == address_family::unix_path);
#if defined(__linux__)
            CHECK(accepted.peer.scope_id == static_cast<std::uint32_t>(::getpid()));
#endif
            REQUIRE(rig.backend.attach(accepted.handle, who_of(10 + index)));
            rig.send(who_of(10 + index), "hello");
            rig.receive(who_of(index));
            CHECK(rig.text_of(rig.until(event_kind::received)) == "hello");
            rig.close(who_of(index));
            rig.receive(who_of(10 + index));
            rig.until(event_kind::ended);
            rig.close(who_of(10 + index));
        }
        rig.backend.stop_accept(who_of(1));
        backend_type::close_handle(made.handle, false);
        CHECK(rig.backend.start_connect({{}, path}, {}, who_of(0)).why ==
              error::connection_refused);
    }

    static void accept_errors_of_one_client() {
        const int codes[] = {ECONNABORTED, EPROTO,       EINTR,      ENETDOWN,     EPERM,
                             ENOPROTOOPT,  EHOSTDOWN,    ENONET,     EHOSTUNREACH, EOPNOTSUPP,
                             ENETUNREACH,  ETIMEDOUT,    ECONNRESET};
        rig_type rig;
        door_type door(rig);
        for (const int code : codes) {
            CAPTURE(code);
            readiness_client client(door.port);
            counts::plan(call_type::accept, code);
            backend_type::close_handle(rig.until(event_kind::accepted).handle, false);
            rig.quiet();
        }
    }

    static void accept_off() {
        rig_type rig;
        door_type door(rig);
        readiness_client client(door.port);
        counts::plan(call_type::accept, EINVAL);
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.who == door.who);
        CHECK(failed.op == operation::accept);
        CHECK(failed.why == error::os_failure);
        CHECK(failed.os_code == EINVAL);
        rig.backend.stop_accept(door.who);  // as if that event were still unread
        rig.quiet();
        REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
        backend_type::close_handle(rig.until(event_kind::accepted).handle, false);
    }

    static void spare_descriptor() {
        for (const int code : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
            CAPTURE(code);
            rig_type rig;
            door_type door(rig);
            readiness_client client(door.port);
            counts::plan(call_type::accept, code);
            const event failed = rig.until(event_kind::failed);
            CHECK(failed.who == door.who);
            CHECK(failed.why == error::descriptors_empty);
            CHECK(failed.os_code == code);
            CHECK(client.receive(1).empty());
            readiness_client next(door.port);
            rig.quiet();  // off, though somebody waits
            counts::reset();
            REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
            backend_type::close_handle(rig.until(event_kind::accepted).handle, false);
            CHECK(counts::of(call_type::open_spare) == 0);  // it was taken back at once
        }
    }

    static void without_spare() {
        rig_type rig;
        door_type door(rig);
        readiness_client client(door.port);
        counts::plan(call_type::accept, EMFILE, 1, 1);
        rig.until(event_kind::failed);
        CHECK(client.receive(1).empty());
        readiness_client second(door.port);
        REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
        counts::plan(call_type::accept, EMFILE, 1, 2);  // the spare one helps nothing
        CHECK(rig.until(event_kind::failed).why == error::descriptors_empty);
        REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
        backend_type::close_handle(rig.until(event_kind::accepted).handle, false);
    }

    static void out_of_descriptors() {
        CHECK(readiness_in_child(run_out_of_descriptors) == 0);
    }

    static void empty_and_cut_datagrams() {
        rig_type rig;
        mailbox_type mailbox(rig);
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

    static void datagram_burst() {
        rig_type rig;
        mailbox_type mailbox(rig);
        std::string all;
        for (int burst = 0; burst < 3; ++burst) {
            counts::reset();
            for (int count = 0; count < 10; ++count) {
                const std::string text(1, static_cast<char>('a' + count));
                mailbox.post(text, mailbox.there);
                rig.wait(0, 4);  // the first one is given along with its `sent`
            }
            counts::plan(call_type::receive_message, ECONNREFUSED);
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
        counts::plan(call_type::send_to, ECONNREFUSED);
        mailbox.post("after an error", mailbox.there);
        CHECK(rig.text_of(rig.until(event_kind::received)) == "after an error");
    }

    static void datagrams_without_room() {
        rig_type rig;
        for (const bool receiving : {true, false}) {
            CAPTURE(receiving);
            mailbox_type mailbox(rig, 0);
            const os_handle other = backend_type::open_datagram(loopback_ipv4(0), {});
            const socket_handle from = receiving ? mailbox.handle.handle : other.handle;
            counts::plan(call_type::send_to, EAGAIN, 1, 2);
            rig.backend.start_send_to(from, who_of(0), as_bytes("one"), mailbox.there);
            rig.backend.start_send_to(from, who_of(1), as_bytes("two"), mailbox.there);
            CHECK(rig.text_of(rig.until(event_kind::received)) == "one");
            CHECK(rig.text_of(rig.until(event_kind::received)) == "two");
            rig.seen.clear();
            counts::reset();
            rig.quiet();
            CHECK(counts::of(call_type::wait) == 4);
            mailbox.post("three", mailbox.there);
            CHECK(rig.text_of(rig.until(event_kind::received)) == "three");
            backend_type::close_handle(other.handle, false);
        }
    }

    static void stopped_with_sends_waiting() {
        rig_type rig;
        mailbox_type there(rig, 0);
        const os_handle made = backend_type::open_datagram(loopback_ipv4(0), {});
        REQUIRE(rig.backend.start_receive_from(made.handle, who_of(1)));
        counts::plan(call_type::send_to, EAGAIN, 1, 1);
        rig.backend.start_send_to(made.handle, who_of(0), as_bytes("late"), there.there);
        rig.backend.stop_receive_from(who_of(1));
        CHECK(rig.until(event_kind::closed).who == who_of(1));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "late");
        REQUIRE(rig.backend.start_receive_from(made.handle, who_of(1, 2)));
        readiness_client peer;
        there.post("back", backend_type::local_of(made.handle).value, 1);
        const event back = rig.until(event_kind::received);
        CHECK(back.who == who_of(1, 2));
        rig.text_of(back);
        rig.backend.stop_receive_from(who_of(1, 2));
        rig.until(event_kind::closed);
        backend_type::close_handle(made.handle, false);
    }

    static void datagram_errors() {
        rig_type rig;
        mailbox_type mailbox(rig);
        mailbox.post("nowhere", {});
        const event failed = rig.until(event_kind::failed);
        CHECK(failed.op == operation::send_to);
        CHECK(failed.why == error::address_invalid);
        const std::string huge(70'000, 'x');
        mailbox.post(huge, mailbox.there, 1);
        CHECK(rig.until(event_kind::failed).why == error::too_long);
    }

    static void coalesced_wakes() {
        rig_type rig;
        counts::reset();
        rig.backend.wake();
        rig.backend.wake();
        CHECK(rig.backend.ready());
        CHECK(counts::total() == 0);
        CHECK(rig.wait(readiness_long_ns) == 1);
        CHECK(rig.out[0].kind == event_kind::woken);
        CHECK(rig.out[0].op == operation::wake);
        CHECK_FALSE(rig.backend.ready());
        CHECK(counts::total() == 0);
        CHECK(rig.wait(0) == 0);
    }

    static void no_interruption_shown() {
        rig_type rig;
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        for (const call_type call :
             {call_type::receive, call_type::send, call_type::send_message}) {
            rig.receive(who_of(0));
            client.send("x");
            counts::plan(call, EINTR, 1, 3);
            CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
            rig.send(who_of(0), "y");
            CHECK(rig.until(event_kind::sent).byte_count == 1);
            const bytes slices[] = {as_bytes("a"), as_bytes("b")};
            rig.backend.start_send(who_of(0), slices);
            CHECK(rig.until(event_kind::sent).byte_count == 2);
            CHECK(client.receive(3) == "yab");
        }
        rig.receive(who_of(0));
        client.send("z");
        counts::plan(call_type::receive, EAGAIN);
        rig.wait(readiness_long_ns);
        CHECK(rig.pool.in_use(side::input) == 0);
        client.send("z");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "zz");
        rig.close(who_of(0));
    }

    static void open_without_spare() {
        counts::reset();
        std::vector<std::byte> raw(rig_type::memory_bytes + 64);
        const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
        buffer_pool pool;
        backend_type backend;
        counts::plan(call_type::open_spare, EMFILE);
        const mutable_bytes memory(raw.data() + (64 - at % 64) % 64, rig_type::memory_bytes);
        CHECK(backend.open(memory, readiness_sizes, pool));
        backend.close();
    }

    static void close_ends_all() {
        rig_type rig;
        readiness_client client;
        {
            door_type door(rig);
            client = door.connect(who_of(0));
        }
        REQUIRE(rig.backend.start_connect({loopback_ipv4(readiness_dead_port<Backend>()), {}}, {},
                                          who_of(1)));
        rig.backend.close();
        CHECK(client.receive(1).empty());
    }

    static void stopped_starved() {
        rig_type rig(1);
        mailbox_type mailbox(rig);
        door_type door(rig);
        readiness_client first = door.connect(who_of(0));
        readiness_client second = door.connect(who_of(1));
        rig.receive(who_of(0));
        first.send("taken");
        const event taken = rig.until(event_kind::received);
        rig.receive(who_of(1));
        second.send("kept");
        rig.wait(readiness_long_ns);
        {
            mailbox_type other(rig, 1);  // stopped while its datagram waits
            other.post("lost", other.there);
            rig.until(event_kind::sent);
            rig.wait(0);
            CHECK(rig.seen.empty());
        }
        rig.backend.stop_receive(who_of(1));
        CHECK(rig.until(event_kind::received).byte_count == 0);
        rig.text_of(taken);
        rig.quiet();
        CHECK_FALSE(rig.backend.ready());
        rig.receive(who_of(1));
        CHECK(rig.text_of(rig.until(event_kind::received)) == "kept");
        rig.close(who_of(0));
        rig.close(who_of(1));
    }

    static void starved_much_credit() {
        rig_type rig(1);
        door_type door(rig);
        readiness_client client = door.connect(who_of(0));
        const std::uint32_t buffer = rig.pool.take(side::input);
        client.send(std::string(3000, 'x'));
        rig.receive(who_of(0), 3000);
        rig.quiet();
        rig.pool.give(buffer, side::input, 0);
        std::size_t got = 0;
        while (got < 3000) {
            got += rig.text_of(rig.until(event_kind::received)).size();
        }
        CHECK(got == 3000);
        rig.close(who_of(0));
    }

    static void kept_for_next_wait() {
        rig_type rig;
        door_type door(rig);
        std::vector<readiness_client> clients;
        for (std::uint32_t index = 0; index < 6; ++index) {
            clients.push_back(door.connect(who_of(index)));
            clients[index].send("x");
        }
        rig.quiet();
        for (std::uint32_t index = 0; index < 6; ++index) {
            rig.send(who_of(index), "y");
            if (index != 0) {  // an odd number of events, so that some connection is cut in two
                rig.receive(who_of(index));
            }
            if (index % 2 == 0 && index != 0) {
                rig.backend.stop_receive(who_of(index));
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
            if (each.buffer_index != none_index) {
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
            rig.close(who_of(index));
        }
    }

    static void stopped_events_dropped() {
        rig_type rig;
        door_type door(rig);
        std::vector<readiness_client> clients;
        for (std::uint32_t index = 0; index < 4; ++index) {
            clients.push_back(door.connect(who_of(index)));
            rig.receive(who_of(index));
        }
        rig.quiet();
        {
            mailbox_type mailbox(rig);
            for (readiness_client& client : clients) {
                client.send("x");
            }
            readiness_client late(door.port);
            // Its `sent` takes no room from the first four.
            mailbox.post("datagram", mailbox.there);
            CHECK(rig.wait(readiness_long_ns, 4) == 1);
            CHECK(rig.until(event_kind::sent).byte_count == 8);
            CHECK(rig.wait(readiness_long_ns, 4) == 4);
            rig.backend.stop_accept(door.who);
            door.accepting = false;
            for (std::uint32_t index = 0; index < 4; ++index) {
                CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
            }
        }
        rig.quiet();
        CHECK(rig.backend.stale_count() == 2);
        for (std::uint32_t index = 0; index < 4; ++index) {
            rig.close(who_of(index));
        }
    }
};

/// Makes a doctest case of each: "epoll connects, and the connection is attached at once".
template <class Counts, class Call, class Backend>
class readiness_cases {
    using suite = readiness_suite<Counts, Call, Backend>;
    struct one {
        const char* says;
        void (*run)();
    };

public:
    readiness_cases() {
        static std::array<std::string, all.size()> names;
        for (std::size_t at = 0; at < all.size(); ++at) {
            names[at] = std::string(Backend::name) + " " + all[at].says;
            doctest::detail::regTest(doctest::detail::TestCase(all[at].run, __FILE__, __LINE__,
                                                               doctest::detail::TestSuite{} * "") *
                                     names[at].c_str());
        }
    }

private:
    static constexpr std::array all{
        one{"echoes to a lone client with three system calls a round trip", suite::echo_alone},
        one{"serves 100 ready connections with two system calls each and one wait",
            suite::hundred_ready},
        one{"accepts more than a wait has room for over several waits", suite::accepts_over_waits},
        one{"hands on the listener's options and makes accepted sockets fit to serve",
            suite::accepted_options},
        one{"reads on after a short read that came with the end of stream",
            suite::short_read_at_end},
        one{"reads on behind urgent data, which splits a read", suite::urgent_data},
        one{"gives what was received before a reset, then the reset", suite::received_before_reset},
        one{"does not spin on a reset connection that neither reads nor writes", suite::idle_reset},
        one{"takes at most one buffer of a connection in one wait, until the credit is used",
            suite::one_buffer_a_wait},
        one{"receives into the caller's memory without a buffer of the pool",
            suite::receive_into_memory},
        one{"stops a receive with one disarmed event and keeps what comes meanwhile",
            suite::stopped_receive},
        one{"keeps events of a batch apart from a new connection with the same descriptor",
            suite::reused_descriptor},
        one{"sends several slices with one call and keeps only the first where it must wait",
            suite::several_slices},
        one{"reports a send to a peer that is gone and gets no SIGPIPE", suite::send_to_gone_peer},
        one{"ends a send that waits for room when the peer resets", suite::send_ended_by_reset},
        one{"closes in order with FIN and aborts with a reset", suite::orderly_and_abort},
        one{"gives closed alone where results were not taken yet", suite::closed_alone},
        one{"serves receives without a buffer first come first served",
            suite::first_come_first_served},
        one{"lets nobody who comes later have a buffer before those who wait",
            suite::nobody_overtakes},
        one{"does not spin while datagrams and bytes wait for a buffer",
            suite::starved_without_spin},
        one{"connects, and the connection is attached at once", suite::connects},
        one{"reaches an IPv4 listener by its mapped address", suite::mapped_address},
        one{"reports a refused connect once and holds nothing of it", suite::refused_connect},
        one{"closes a connection that is still being made", suite::closed_while_connecting},
        one{"connects to unix listeners, and a full one is an error at once",
            suite::unix_listeners},
        one{"goes on accepting after every error that belongs to one client",
            suite::accept_errors_of_one_client},
        one{"turns accepting off with one failed event on any other error", suite::accept_off},
        one{"closes the waiting client by its spare descriptor when descriptors run out",
            suite::spare_descriptor},
        one{"lives without a spare descriptor and takes one back later", suite::without_spare},
        one{"without descriptors makes two accept calls in 200 ms and recovers",
            suite::out_of_descriptors},
        one{"delivers empty datagrams and says where one was cut", suite::empty_and_cut_datagrams},
        one{"takes a burst of datagrams in order and skips errors of earlier sends",
            suite::datagram_burst},
        one{"keeps datagrams that find no room until the socket has some",
            suite::datagrams_without_room},
        one{"stops receiving from a socket whose datagrams still wait to be sent",
            suite::stopped_with_sends_waiting},
        one{"fails a datagram without an address or too large to send", suite::datagram_errors},
        one{"wakes coalesce and cost no system call while the loop is awake",
            suite::coalesced_wakes},
        one{"shows no interruption and no would-block to anybody", suite::no_interruption_shown},
        one{"opens without a spare descriptor too", suite::open_without_spare},
        one{"close ends everything that is still attached", suite::close_ends_all},
        one{"stops receives that wait for a buffer", suite::stopped_starved},
        one{"goes on with a receive of much credit that had waited for a buffer",
            suite::starved_much_credit},
        one{"keeps for the next wait what has no room in this one", suite::kept_for_next_wait},
        one{"drops events of listeners and datagram sockets that were stopped meanwhile",
            suite::stopped_events_dropped},
    };
};

}  // namespace netio_test

#endif
