// What only the io_uring backend can show: its system calls counted and failed one by one, what is
// lent to the kernel, a queue of completions that overflows, kernels that refuse.
#include "netio.hpp"
#include "tests/io_uring_offered.hpp"
#include "tests/readiness.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_IO_URING

#include <algorithm>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <memory>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <thread>
#include <vector>

namespace {

using netio::event;
using netio::event_kind;
using netio::operation;
using netio::token;

enum class ring_call {
    socket, accept, send, receive, setsockopt, getsockopt, shutdown, disconnect, close, setup,
    enter, reg, map, open_wake, write_wake, open_spare, count_
};

/// Counts every call; one planned call fails instead of being made.
struct ring_counting_sys : netio::io_uring_sys {
    using real = netio::io_uring_sys;
    static inline std::atomic<int> counts[static_cast<int>(ring_call::count_)] = {};
    static inline ring_call fail_call = ring_call::count_;
    static inline int fail_at = 0;  // the n-th such call from now fails
    static inline int fail_code = 0;
    static inline std::uint32_t completions = 0;  // room for so many, if not 0
    static inline int overflows = 0;              // told by the kernel
    static inline volatile std::uint32_t* queues = nullptr;
    static inline std::uint32_t flags_offset = 0;
    static constexpr std::uint32_t overflow_flag = netio::detail::uring::submission_overflow;
    static inline netio::detail::uring::submission* submissions = nullptr;
    static inline std::size_t submission_count = 0;
    static inline bool patient = false;  // no wait has an end of its own
    static inline bool knows_no_total = false;      // an old kernel: no bound of multishot receives
    static inline bool knows_no_batches = false;    // an old kernel: no wait for several
    static inline int misses = 0;                   // so many cancels find nothing
    static inline std::uint32_t tail_offset = 0;
    static inline int pushed[64] = {};              // submissions by opcode
    static inline int multishots = 0;               // receives among them
    static inline int timed_waits = 0;              // with an end of their own
    static inline std::uint32_t least_most = 0;     // the longest batch waited for
    static inline std::uint32_t batch_us_most = 0;

    static bool made(ring_call which) noexcept {
        ++counts[static_cast<int>(which)];
        if (which == fail_call && --fail_at == 0) {
            errno = fail_code;
            return false;
        }
        return true;
    }
    static void plan(ring_call which, int code, int nth = 1) {
        fail_call = which;
        fail_code = code;
        fail_at = nth;
    }
    static void reset() {
        for (auto& each : counts) {
            each = 0;
        }
        fail_call = ring_call::count_;
        fail_at = 0;
        patient = knows_no_total = knows_no_batches = false;
        for (int& each : pushed) {
            each = 0;
        }
        multishots = timed_waits = misses = overflows = 0;
        least_most = batch_us_most = 0;
    }
    static int of(ring_call which) { return counts[static_cast<int>(which)]; }
    static int total() {
        int all = 0;
        for (auto& each : counts) {
            all += each;
        }
        return all;
    }

    static int open_socket(int family, int type) noexcept {
        return made(ring_call::socket) ? real::open_socket(family, type) : -1;
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        return made(ring_call::accept) ? real::accept(from, peer, size) : -1;
    }
    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        return made(ring_call::send) ? real::send(to, from, count) : -1;
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        return made(ring_call::receive) ? real::receive(from, into, count) : -1;
    }
    static int setsockopt(int of, int level, int option, const void* value,
                          socklen_t size) noexcept {
        return made(ring_call::setsockopt) ? real::setsockopt(of, level, option, value, size) : -1;
    }
    static int getsockopt(int of, int level, int option, void* value, socklen_t* size) noexcept {
        return made(ring_call::getsockopt) ? real::getsockopt(of, level, option, value, size) : -1;
    }
    static bool disconnect(int of) noexcept {
        return made(ring_call::disconnect) && real::disconnect(of);
    }
    static int shutdown_sending(int of) noexcept {
        return made(ring_call::shutdown) ? real::shutdown_sending(of) : -1;
    }
    static int close(int what) noexcept {
        made(ring_call::close);  // Linux closes even when it reports an error
        return real::close(what);
    }
    static int ring_setup(std::uint32_t entries, netio::detail::uring::parameters& how) noexcept {
        if (completions != 0 && how.completion_entries != 0) {
            entries = completions / 2;
            how.completion_entries = completions;
        }
        const int ring = made(ring_call::setup) ? real::ring_setup(entries, how) : -1;
        flags_offset = how.submissions.flags;
        tail_offset = how.submissions.tail;
        if (knows_no_batches) {
            how.features &= ~netio::detail::uring::feature_wait_at_least;
        }
        return ring;
    }
    static int ring_enter(int ring, std::uint32_t submitted, std::uint32_t least,
                          std::uint32_t flags,
                          const netio::detail::uring::wait_argument& how) noexcept {
        netio::detail::uring::wait_argument asked = how;
        asked.timeout = patient ? 0 : how.timeout;
        timed_waits += how.timeout != 0 ? 1 : 0;
        least_most = least > least_most ? least : least_most;
        batch_us_most = std::max(batch_us_most, how.wait_at_least_us);
        look_at_pushed(submitted);
        stop_timers();
        if (!made(ring_call::enter)) {
            return -1;
        }
        const int taken = real::ring_enter(ring, submitted, least, flags, asked);
        overflows += queues != nullptr && (queues[flags_offset / 4] & overflow_flag) != 0 ? 1 : 0;
        return taken;
    }
    static void look_at_pushed(std::uint32_t count) noexcept {
        const std::uint32_t tail = queues != nullptr ? queues[tail_offset / 4] : 0;
        for (std::uint32_t at = tail - count; submission_count != 0 && at != tail; ++at) {
            netio::detail::uring::submission& each = submissions[at % submission_count];
            ++pushed[each.opcode % 64];
            if (each.opcode == netio::detail::uring::op_cancel && each.address != 0 && misses > 0) {
                --misses;
                each.address = ~std::uint64_t{0};  // nothing is called so
            }
            if (each.opcode == netio::detail::uring::op_receive &&
                each.priority == netio::detail::uring::receive_multishot) {
                ++multishots;
                each.opcode = knows_no_total ? 255 : each.opcode;  // refused as one of them would
            }
        }
    }
    /// Timers that a patient ring is handed don't go off.
    static void stop_timers() noexcept {
        static constexpr netio::detail::uring::time_span hour{3600, 0};
        for (std::size_t at = 0; patient && at < submission_count; ++at) {
            netio::detail::uring::submission& each = submissions[at];
            if (each.opcode == netio::detail::uring::op_timeout) {
                each.address = netio::detail::address_of(&hour);
                each.operation_flags &= ~netio::detail::uring::timeout_absolute;
            } else if (each.opcode == netio::detail::uring::op_timeout_remove) {
                each.second_address = netio::detail::address_of(&hour);
                each.operation_flags &= ~netio::detail::uring::timeout_absolute;
            }
        }
    }
    static int ring_register(int ring, std::uint32_t what,
                             const netio::detail::uring::buffer_ring_registration& which) noexcept {
        return made(ring_call::reg) ? real::ring_register(ring, what, which) : -1;
    }
    static std::byte* ring_map(int ring, std::size_t byte_count, std::int64_t offset) noexcept {
        std::byte* const at =
            made(ring_call::map) ? real::ring_map(ring, byte_count, offset) : nullptr;
        if (offset == netio::detail::uring::offset_rings) {
            queues = reinterpret_cast<volatile std::uint32_t*>(at);
        } else {
            submissions = reinterpret_cast<netio::detail::uring::submission*>(at);
            submission_count = byte_count / sizeof(netio::detail::uring::submission);
        }
        return at;
    }
    static void ring_unmap(std::byte* at, std::size_t byte_count) noexcept {
        queues = nullptr;
        submission_count = 0;
        real::ring_unmap(at, byte_count);
    }
    static int open_wake() noexcept { return made(ring_call::open_wake) ? real::open_wake() : -1; }
    static ssize_t write_wake(int to) noexcept {
        return made(ring_call::write_wake) ? real::write_wake(to) : -1;
    }
    static int open_spare() noexcept {
        return made(ring_call::open_spare) ? real::open_spare() : -1;
    }
};

using ring_sys = ring_counting_sys;
using ring_backend = netio::basic_io_uring<ring_sys>;
static_assert(netio::backend<ring_backend>);

using ring_rig = netio_test::readiness_rig<ring_sys, ring_backend>;
using ring_door = netio_test::readiness_door<ring_rig>;
using ring_mailbox = netio_test::readiness_mailbox<ring_rig>;
using ring_client = netio_test::readiness_client;
using netio_test::readiness_in_child;
using netio_test::readiness_long_ns;
using netio_test::who_of;

/// What a backend is opened with, for a test whose backend is no rig's.
struct ring_memory {
    std::vector<std::byte> bytes = std::vector<std::byte>(64 * 1024);
    std::vector<std::uint32_t> links = std::vector<std::uint32_t>(16);
    std::vector<std::byte> raw = std::vector<std::byte>(ring_rig::memory_bytes + 64);
    netio::buffer_pool pool;

    netio::os_status open(ring_backend& backend) {
        pool.attach(bytes.data(), links.data(), 16, 1024, 8, 8, false);
        const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
        return backend.open({raw.data() + (64 - at % 64) % 64, ring_rig::memory_bytes},
                            netio_test::readiness_sizes, pool);
    }
};

const netio::availability ring_offered = netio_test::io_uring_offered();
#define NETIO_RING_CASE(says) TEST_CASE("io_uring " says * doctest::skip(!ring_offered.offered))

}  // namespace

NETIO_RING_CASE("accepts, serves one message and closes with four enters alone") {
    ring_rig rig;
    ring_door door(rig);
    rig.quiet();
    ring_sys::reset();
    ring_client client = door.connect(who_of(0));
    rig.receive(who_of(0));
    client.send("one");
    const std::string text = rig.text_of(rig.until(event_kind::received));
    rig.send(who_of(0), text);
    rig.receive(who_of(0));
    client.finish();
    rig.until(event_kind::ended);
    CHECK(client.receive(3) == "one");
    rig.close(who_of(0));
    CHECK(ring_sys::of(ring_call::enter) == 4);
    CHECK(ring_sys::total() == 4);
    client.close();
}

NETIO_RING_CASE("echoes to a lone client with one call a round trip") {
    ring_rig rig;
    ring_door door(rig);
    const int rounds = 200;
    ring_client client = door.connect(who_of(0));
    std::thread other([&client] {
        const std::string text(64, 'x');
        for (int round = 0; round < rounds; ++round) {
            client.send(text);
            client.receive(text.size());
        }
    });
    rig.receive(who_of(0));
    std::vector<std::string> texts(1);  // the bytes of a send stay until its event
    int received = 0;
    ring_sys::patient = true;
    while (received < rounds) {
        rig.wait(readiness_long_ns);
        const std::vector<event> now = std::move(rig.seen);
        rig.seen.clear();
        for (const event& each : now) {
            if (each.kind != event_kind::received) {
                CHECK(each.kind == event_kind::sent);
                CHECK(each.byte_count == 64);
                continue;
            }
            if (received++ == 0) {
                ring_sys::reset();
                ring_sys::patient = true;
            }
            texts[0] = rig.text_of(each);
            const netio::bytes slice = netio::as_bytes(texts[0]);
            rig.backend.send_quietly(who_of(0), {&slice, 1});
            rig.receive(who_of(0));
        }
    }
    CHECK(ring_sys::of(ring_call::enter) == rounds - 1);
    CHECK(ring_sys::total() == rounds - 1);
    rig.wait(0);
    rig.until(event_kind::sent);
    other.join();
    rig.close(who_of(0));
}

namespace {

struct ring_echo {
    std::uint32_t bytes = 0;
    std::uint32_t closed = 0;
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        bytes += static_cast<std::uint32_t>(in.size());
        return peer.write(in);
    }
    void on_close(netio::connection&, netio::close_reason) noexcept { ++closed; }
};
constexpr netio::limits ring_limits{.connections_max = 16, .input_buffers_max = 8};

}  // namespace

NETIO_RING_CASE("serves a lone client of a server with one call a round trip, three a visit") {
    const auto memory = std::make_unique<netio::storage<ring_limits, ring_backend>>();
    ring_echo handler;
    netio::server<ring_echo, ring_backend> server{*memory, handler};
    REQUIRE(server.listen({.address = "127.0.0.1"}) == netio::error::none);
    const std::uint16_t port = server.local().port;
    const std::uint32_t rounds = 100;
    server.run_once(0);
    std::thread other([port] {
        const std::string text(64, 'x');
        ring_client client(port);
        for (std::uint32_t round = 0; round < rounds; ++round) {
            client.send(text);
            client.receive(text.size());
        }
    });
    while (handler.bytes < 64) {
        server.run_once(1000);
    }
    ring_sys::reset();
    ring_sys::patient = true;
    while (handler.bytes < 64 * rounds) {
        server.run_once(1000);
    }
    CHECK(ring_sys::of(ring_call::enter) == rounds - 1);
    CHECK(ring_sys::total() == rounds - 1);
    ring_sys::patient = false;
    while (handler.closed == 0) {
        server.run_once(1000);
    }
    other.join();
    server.run_once(0);
    ring_sys::reset();
    ring_sys::patient = true;
    const std::uint32_t visits = 20;
    std::thread visitor([port] {
        for (std::uint32_t visit = 0; visit < visits; ++visit) {
            ring_client client(port);
            client.send("hello");
            client.receive(5);
        }
        ring_client last(port);  // the end of a visit is told with the begin of the next
    });
    while (handler.closed < 1 + visits) {
        server.run_once(1000);
    }
    CHECK(ring_sys::total() <= static_cast<int>(3 * visits + 1));
    ring_sys::patient = false;
    visitor.join();
    ring_sys::reset();
}

namespace {

/// Echoes to clients that are all ready at once, until each has its answer; how many calls of the
/// kernel that took, but for waits that the timer behind quiet sends ended.
int ring_echo_to_all(ring_rig& rig, std::vector<ring_client>& clients) {
    std::vector<std::string> texts(clients.size());
    for (ring_client& client : clients) {
        client.send("ping");
    }
    ring_sys::reset();
    std::size_t sent = 0;
    int empty = 0;
    while (sent < clients.size()) {
        empty += rig.wait(readiness_long_ns) == 0 ? 1 : 0;
        const std::vector<event> now = std::move(rig.seen);
        rig.seen.clear();
        for (const event& each : now) {
            if (each.kind == event_kind::received) {
                std::string& text = texts[each.who.index()];
                text = rig.text_of(each);
                const netio::bytes slice = netio::as_bytes(text);
                rig.backend.send_quietly(each.who, {&slice, 1});
                if (each.disarmed) {
                    rig.receive(each.who, 1024);
                }
            } else {
                CHECK(each.kind == event_kind::sent);
                ++sent;
            }
        }
    }
    const int calls = ring_sys::of(ring_call::enter) - empty;
    CHECK(ring_sys::total() == ring_sys::of(ring_call::enter));
    for (ring_client& client : clients) {
        CHECK(client.receive(4) == "ping");
    }
    return calls;
}

/// So many clients, each with a receive outstanding.
std::vector<ring_client> ring_clients(ring_rig& rig, ring_door& door, std::uint32_t count) {
    std::vector<ring_client> clients;
    for (std::uint32_t index = 0; index < count; ++index) {
        clients.push_back(door.connect(who_of(index)));
        rig.receive(who_of(index), 1024);
    }
    rig.quiet();
    return clients;
}

}  // namespace

NETIO_RING_CASE("serves 100 ready connections with at most five calls") {
    ring_rig rig;
    ring_door door(rig);
    std::vector<ring_client> clients = ring_clients(rig, door, 100);
    for (int round = 0; round < 3; ++round) {
        CHECK(ring_echo_to_all(rig, clients) <= 5);
    }
    for (std::uint32_t index = 0; index < 100; ++index) {
        rig.close(who_of(index));
    }
}

namespace {

constexpr netio::limits ring_thousand_limits{.connections_max = 1'000};

/// Descriptors for so many connections, both ends; false where the system has fewer.
bool ring_may_open(rlim_t count) {
    rlimit allowed{};
    ::getrlimit(RLIMIT_NOFILE, &allowed);
    allowed.rlim_cur = allowed.rlim_max;
    return ::setrlimit(RLIMIT_NOFILE, &allowed) == 0 && allowed.rlim_cur >= count;
}

bool ring_answered(const ring_client& client) {
    char byte = 0;
    return ::recv(client.descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

}  // namespace

NETIO_RING_CASE("serves 1,000 ready connections of a server with at most ten calls") {
    if (!ring_may_open(2'100)) {
        MESSAGE("SKIPPED: fewer than 2,100 descriptors");
        return;
    }
    const auto memory = std::make_unique<netio::storage<ring_thousand_limits, ring_backend>>();
    ring_echo handler;
    netio::server<ring_echo, ring_backend> server{*memory, handler};
    REQUIRE(server.listen({.address = "127.0.0.1", .backlog = 1'000}) == netio::error::none);
    std::vector<ring_client> clients;
    while (clients.size() < 1'000) {
        clients.emplace_back(server.local().port);
        server.run_once(0);
    }
    const std::string text(64, 'x');
    for (std::uint32_t round = 1; round <= 3; ++round) {
        for (int turns = 0; turns < 20; ++turns) {
            server.run_once(0);
        }
        for (ring_client& client : clients) {
            client.send(text);
        }
        ring_sys::reset();
        const auto all_answered = [&] {
            return std::all_of(clients.begin(), clients.end(), ring_answered);
        };
        for (int turns = 0; turns < 1'000 && !all_answered(); ++turns) {
            server.run_once(1'000);
        }
        CHECK(handler.bytes == 64'000 * round);
        CHECK(ring_sys::of(ring_call::enter) <= 10);
        CHECK(ring_sys::total() == ring_sys::of(ring_call::enter));
        for (ring_client& client : clients) {
            CHECK(client.receive(64) == text);
        }
    }
    CHECK(server.stats().pools[2].refused == 0);
    CHECK(server.stats().pools[1].refused == 0);
}

NETIO_RING_CASE("waits for a batch after a batch, and at once after a lone message") {
    ring_rig rig;
    ring_door door(rig);
    rig.backend.wait_for_batches(10'000);
    std::vector<ring_client> clients = ring_clients(rig, door, 6);
    ring_sys::reset();
    clients[0].send("lone");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "lone");
    clients[1].send("lone");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "lone");
    CHECK(ring_sys::batch_us_most == 0);
    CHECK(ring_sys::least_most == 1);
    for (ring_client& client : clients) {
        client.send("many");
    }
    for (int count = 0; count < 6; ++count) {
        CHECK(rig.text_of(rig.until(event_kind::received)) == "many");
    }
    CHECK(ring_sys::batch_us_most == 0);
    clients[0].send("next");  // comes when the time for a batch is over
    CHECK(rig.text_of(rig.until(event_kind::received)) == "next");
    CHECK(ring_sys::batch_us_most == 10'000);
    CHECK(ring_sys::least_most == 2);  // fewer than came, so that nobody waits for the slowest
    ring_sys::reset();
    clients[0].send("lone");
    CHECK(rig.text_of(rig.until(event_kind::received)) == "lone");
    CHECK(ring_sys::batch_us_most == 0);
    rig.backend.wait_for_batches(0);
    for (ring_client& client : clients) {
        client.send("many");
    }
    for (int count = 0; count < 6; ++count) {
        rig.text_of(rig.until(event_kind::received));
    }
    clients[0].send("next");
    rig.text_of(rig.until(event_kind::received));
    CHECK(ring_sys::batch_us_most == 0);
    for (std::uint32_t index = 0; index < 6; ++index) {
        rig.close(who_of(index));
    }
}

NETIO_RING_CASE("waits for three quarters of a large batch, and for none after a small one") {
    struct expected {
        std::uint32_t came, waited_for;
    };
    ring_rig rig;
    ring_door door(rig);
    rig.backend.wait_for_batches(1'000);
    std::vector<ring_client> clients = ring_clients(rig, door, 20);
    for (const expected each : {expected{20, 15}, expected{5, 1}, expected{16, 12}}) {
        for (std::uint32_t at = 0; at < each.came; ++at) {
            clients[at].send("many");
        }
        for (std::uint32_t at = 0; at < each.came; ++at) {
            CHECK(rig.text_of(rig.until(event_kind::received)) == "many");
        }
        ring_sys::reset();
        rig.wait(1'000'000);
        CHECK(ring_sys::least_most == each.waited_for);
    }
    for (std::uint32_t index = 0; index < 20; ++index) {
        rig.close(who_of(index));
    }
}

NETIO_RING_CASE("hands over many bytes before it waits for more, and few together with the wait") {
    for (const std::size_t size : {std::size_t{32 * 1024}, std::size_t{1024}}) {
        ring_rig rig(8, 32 * 1024);
        ring_door door(rig);
        std::vector<ring_client> clients = ring_clients(rig, door, 2);
        const std::string text(size, 'x');
        for (ring_client& client : clients) {
            client.send(text);
        }
        for (int count = 0; count < 2; ++count) {
            const event received = rig.until(event_kind::received);
            CHECK(rig.text_of(received) == text);
            const netio::bytes slice = netio::as_bytes(text);
            rig.backend.send_quietly(received.who, {&slice, 1});
        }
        ring_sys::reset();
        rig.wait(1'000'000);
        CHECK(ring_sys::of(ring_call::enter) == 1);
        CHECK(ring_sys::least_most == (size == 1024 ? 1 : 0));
        CHECK(rig.seen.size() == 2);
        for (ring_client& client : clients) {
            CHECK(client.receive(size) == text);
        }
        for (std::uint32_t index = 0; index < 2; ++index) {
            CHECK(rig.until(event_kind::sent).byte_count == size);
            rig.close(who_of(index));
        }
    }
}

NETIO_RING_CASE("hands over much once before it looks for more, whoever keeps writing (P2)") {
    ring_rig rig(8, 32 * 1024);
    ring_door door(rig);
    rig.backend.wait_for_batches(1'000);
    std::vector<ring_client> clients = ring_clients(rig, door, 3);
    const std::string text(32 * 1024, 'x');
    clients[0].send(text);
    clients[1].send(text);
    for (int count = 0; count < 2; ++count) {
        rig.text_of(rig.until(event_kind::received));
    }
    clients[2].send("hear me");
    const netio::bytes byte = netio::as_bytes(text).first(1);
    for (int turn = 0; turn < 5; ++turn) {
        rig.backend.send_quietly(who_of(0), {&byte, 1});
        rig.wait(0);
        std::erase_if(rig.seen, [](const event& e) { return e.kind == event_kind::sent; });
    }
    REQUIRE(rig.seen.size() == 1);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "hear me");
    for (std::uint32_t index = 0; index < 3; ++index) {
        rig.close(who_of(index));
    }
}

NETIO_RING_CASE("hears a client though more than a queue of others write again and again (P2)") {
    ring_rig rig;
    ring_door door(rig);
    rig.backend.wait_for_batches(1'000);
    std::vector<ring_client> clients = ring_clients(rig, door, 280);
    clients[0].send("many");
    clients[1].send("many");
    for (int count = 0; count < 2; ++count) {
        CHECK(rig.text_of(rig.until(event_kind::received)) == "many");
    }
    const netio::bytes byte = netio::as_bytes(std::string_view("x"));
    for (std::uint32_t index = 0; index < 280; ++index) {
        rig.backend.send_quietly(who_of(index), {&byte, 1});
    }
    clients[2].send("hear me");
    for (int turn = 0; turn < 200; ++turn) {
        rig.wait(0);
        std::erase_if(rig.seen, [&](const event& e) {
            if (e.kind == event_kind::sent) {
                rig.backend.send_quietly(e.who, {&byte, 1});
            }
            return e.kind == event_kind::sent;
        });
    }
    REQUIRE(rig.seen.size() == 1);
    CHECK(rig.text_of(rig.until(event_kind::received)) == "hear me");
    for (std::uint32_t index = 0; index < 280; ++index) {
        rig.close(who_of(index));
    }
}

NETIO_RING_CASE("waits for no batch where the kernel can't (before Linux 6.12)") {
    ring_sys::reset();
    ring_sys::knows_no_batches = true;
    ring_memory memory;
    ring_backend backend;
    REQUIRE(memory.open(backend));
    backend.wait_for_batches(10'000);
    CHECK(backend.batch_us() == 0);
    backend.close();
    ring_sys::reset();
}

NETIO_RING_CASE("one receive serves many small messages, each with a buffer of its own") {
    ring_rig rig;
    ring_door door(rig);
    ring_client client = door.connect(who_of(0));
    rig.receive(who_of(0), 1024);
    rig.quiet();
    ring_sys::reset();
    for (int count = 0; count < 10; ++count) {
        client.send("ping");
        const event received = rig.until(event_kind::received);
        CHECK(rig.text_of(received) == "ping");
        CHECK(!received.disarmed);
    }
    CHECK(ring_sys::pushed[netio::detail::uring::op_receive] == 0);
    rig.close(who_of(0));
}

NETIO_RING_CASE("receives one by one where the kernel can't bound them (P2, before Linux 6.16)") {
    ring_rig rig;
    ring_sys::knows_no_total = true;
    ring_door door(rig);
    std::vector<ring_client> clients = ring_clients(rig, door, 3);
    for (int round = 0; round < 3; ++round) {
        for (ring_client& client : clients) {
            client.send("ping");
        }
        for (int count = 0; count < 3; ++count) {
            CHECK(rig.text_of(rig.until(event_kind::received)) == "ping");
        }
    }
    CHECK(ring_sys::multishots == 3);  // until the first of them received in another way
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    clients[0].finish();
    rig.until(event_kind::ended);
    for (std::uint32_t index = 0; index < 3; ++index) {
        rig.close(who_of(index));
    }
}

NETIO_RING_CASE("fails a receive that the socket refuses, and no other one (P2)") {
    ring_rig rig;
    ring_door door(rig);
    const int unconnected = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    REQUIRE(rig.backend.attach(unconnected, who_of(9)));
    rig.receive(who_of(9));
    CHECK(rig.until(event_kind::failed).os_code == EINVAL);
    rig.close(who_of(9));
    std::vector<ring_client> clients = ring_clients(rig, door, 1);
    ring_sys::reset();
    for (int count = 0; count < 3; ++count) {
        clients[0].send("ping");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "ping");
    }
    CHECK(ring_sys::pushed[netio::detail::uring::op_receive] == 0);
    rig.close(who_of(0));
}

NETIO_RING_CASE("waits for a batch no longer than the wait itself, and 10 ms at most") {
    ring_rig rig;
    ring_door door(rig);
    rig.backend.wait_for_batches(1'000'000);
    CHECK(rig.backend.batch_us() == 10'000);
    std::vector<ring_client> clients = ring_clients(rig, door, 6);
    for (ring_client& client : clients) {
        client.send("many");
    }
    for (int count = 0; count < 6; ++count) {
        rig.text_of(rig.until(event_kind::received));
    }
    ring_sys::reset();
    rig.wait(1'000'000);
    CHECK(ring_sys::least_most > 1);
    CHECK(ring_sys::batch_us_most == 1'000);
    for (std::uint32_t index = 0; index < 6; ++index) {
        rig.close(who_of(index));
    }
}

NETIO_RING_CASE("does not sleep before the event of a quiet send that somebody waits for by now") {
    ring_rig rig;
    ring_door door(rig);
    std::vector<ring_client> clients = ring_clients(rig, door, 1);
    const netio::bytes byte = netio::as_bytes(std::string_view("x"));
    for (const bool waited_for : {true, false}) {
        rig.backend.send_quietly(who_of(0), {&byte, 1});
        if (waited_for) {
            rig.backend.hurry(who_of(0));
        }
        ring_sys::reset();
        rig.wait(1'000'000);
        CHECK(ring_sys::least_most == (waited_for ? 0 : 1));
        CHECK(rig.until(event_kind::sent).byte_count == 1);
    }
    rig.backend.start_send(who_of(0), {&byte, 1});
    rig.backend.hurry(who_of(0));  // nothing to do: this one ends its wait anyhow
    CHECK(rig.until(event_kind::sent).byte_count == 1);
    rig.close(who_of(0));
}

namespace {

/// Whatever anybody says is passed on to the first of them.
struct ring_first_hears {
    netio::connection_id first{};
    std::uint32_t heard = 0;
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        first = first == netio::connection_id{} ? peer.id() : first;
        heard += static_cast<std::uint32_t>(in.size());
        return peer.find(first)->write(in);
    }
};

}  // namespace

NETIO_RING_CASE("sends what another writes later in a turn without waiting for a timer") {
    const auto memory = std::make_unique<netio::storage<ring_limits, ring_backend>>();
    ring_first_hears handler;
    netio::server<ring_first_hears, ring_backend> server{*memory, handler};
    REQUIRE(server.listen({.address = "127.0.0.1"}) == netio::error::none);
    server.run_once(0);
    ring_client first(server.local().port);
    ring_client second(server.local().port);
    const auto turn_until = [&](std::uint32_t heard) {
        for (int turns = 0; turns < 1'000 && handler.heard < heard; ++turns) {
            server.run_once(1);
        }
        CHECK(handler.heard == heard);
    };
    first.send("1");
    turn_until(1);
    second.send("2");
    turn_until(2);
    server.run_once(0);
    server.run_once(0);
    CHECK(first.receive(2) == "12");
    first.send("a");
    second.send("b");
    server.run_once(1'000);
    REQUIRE(handler.heard == 4);  // in one turn: the second found the first one's send under way
    ring_sys::reset();
    server.run_once(1'000);
    CHECK(ring_sys::least_most == 0);
    server.run_once(0);
    CHECK(first.receive(2) == "ab");
    server.stop();
    for (int turns = 0; turns < 1'000 && server.run_once(1); ++turns) {
    }
}

NETIO_RING_CASE("leaves a timer standing for what it may tell late, and another for closes") {
    ring_rig rig;
    ring_sys::patient = true;  // none of them goes off, however slow this machine is
    ring_door door(rig);
    std::vector<ring_client> clients = ring_clients(rig, door, 2);
    const std::string text(64, 'x');
    const netio::bytes slice = netio::as_bytes(text);
    ring_sys::reset();
    ring_sys::patient = true;
    for (int round = 0; round < 5; ++round) {
        clients[0].send("ping");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "ping");
        rig.backend.send_quietly(who_of(0), {&slice, 1});
        CHECK(clients[0].receive(round == 0 ? 0 : 64).size() == (round == 0 ? 0 : 64));
    }
    const auto timers = [] { return ring_sys::pushed[netio::detail::uring::op_timeout]; };
    CHECK(timers() == 1);
    rig.backend.start_close(who_of(0), false);
    for (int round = 0; round < 3; ++round) {
        clients[1].send("pong");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "pong");
    }
    CHECK(timers() == 2);
    CHECK(rig.until(event_kind::closed).who == who_of(0));
    rig.seen.clear();
    rig.backend.start_close(who_of(1), false);
    for (int turn = 0; turn < 4; ++turn) {
        rig.wait(0);
    }
    CHECK(rig.until(event_kind::closed).who == who_of(1));
}

NETIO_RING_CASE("leaves one timer standing for the end of its waits, and moves it if need be") {
    constexpr std::uint64_t second = 1'000'000'000;
    ring_rig rig;
    ring_door door(rig);
    std::vector<ring_client> clients = ring_clients(rig, door, 1);
    ring_sys::reset();
    for (int round = 0; round < 5; ++round) {
        clients[0].send("ping");
        while (rig.seen.empty()) {
            rig.wait(60 * second);
        }
        rig.text_of(rig.until(event_kind::received));
    }
    // What the door waited with stands already, and comes in time.
    CHECK(ring_sys::pushed[netio::detail::uring::op_timeout] == 0);
    CHECK(ring_sys::pushed[netio::detail::uring::op_timeout_remove] == 0);
    CHECK(ring_sys::timed_waits == 0);
    rig.wait(3'000'000);
    CHECK(rig.seen.empty());
    CHECK(ring_sys::pushed[netio::detail::uring::op_timeout] == 0);
    CHECK(ring_sys::pushed[netio::detail::uring::op_timeout_remove] == 1);
    rig.wait(3'000'000);  // it went off
    CHECK(ring_sys::pushed[netio::detail::uring::op_timeout] == 1);
    CHECK(ring_sys::timed_waits == 0);
    rig.close(who_of(0));
}

NETIO_RING_CASE("lends at most what can be asked for, and only while it is inside (P7)") {
    ring_rig rig;
    ring_door door(rig);
    std::vector<ring_client> clients;
    for (std::uint32_t index = 0; index < 100; ++index) {
        clients.push_back(door.connect(who_of(index)));
    }
    rig.quiet();
    for (std::uint32_t index = 0; index < 3; ++index) {
        rig.receive(who_of(index));
    }
    rig.quiet();
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    CHECK(rig.pool.stats(netio::side::input).high_water == 0);
    for (std::uint32_t index = 3; index < 100; ++index) {
        rig.receive(who_of(index));
    }
    rig.quiet();
    CHECK(rig.pool.in_use(netio::side::input) == 0);
    CHECK(rig.pool.stats(netio::side::input).high_water == 0);
    CHECK(rig.pool.stats(netio::side::input).refused == 0);
    clients[1].send("x");
    clients[2].send("y");
    const event first = rig.until(event_kind::received);
    const event second = rig.until(event_kind::received);
    CHECK(rig.pool.in_use(netio::side::input) == 2);
    CHECK(rig.pool.stats(netio::side::input).high_water == 2);
    CHECK(rig.text_of(first).size() + rig.text_of(second).size() == 2);
    for (std::uint32_t index = 0; index < 100; ++index) {
        rig.close(who_of(index));
    }
}

NETIO_RING_CASE("keeps a flooding peer to one buffer until the others have theirs (P8)") {
    ring_rig rig(4);
    ring_door door(rig);
    std::vector<ring_client> clients;
    for (std::uint32_t index = 0; index < 4; ++index) {
        clients.push_back(door.connect(who_of(index)));
        rig.receive(who_of(index), 1'000'000);
    }
    rig.quiet();
    clients[0].send(std::string(60'000, 'f'));
    for (std::uint32_t index = 1; index < 4; ++index) {
        clients[index].send("x");
    }
    while (rig.seen.size() < 4) {
        rig.wait(readiness_long_ns);
    }
    std::size_t flood = 0;
    for (const event& each : rig.seen) {
        flood += each.who == who_of(0) ? 1 : 0;
        rig.text_of(each);
    }
    CHECK(flood == 1);
    rig.seen.clear();
    for (std::uint32_t index = 1; index < 4; ++index) {
        rig.backend.start_close(who_of(index), false);
    }
    for (std::size_t bytes = 1024; bytes < 60'000;) {
        const event received = rig.until(event_kind::received);
        CHECK(received.who == who_of(0));
        bytes += rig.text_of(received).size();
    }
    for (std::uint32_t index = 1; index < 4; ++index) {
        rig.until(event_kind::closed);
    }
    rig.close(who_of(0));
}

NETIO_RING_CASE("loses nothing where the ring overflows with completions (P2)") {
    ring_sys::completions = 4;
    {
        ring_rig rig;
        ring_door door(rig);
        std::vector<ring_client> clients;
        std::vector<std::string> texts(60);
        for (std::uint32_t index = 0; index < 60; ++index) {
            clients.push_back(door.connect(who_of(index)));
            rig.receive(who_of(index));
        }
        rig.quiet();
        for (int round = 0; round < 3; ++round) {
            for (std::uint32_t index = 0; index < 60; ++index) {
                clients[index].send(std::to_string(index));
            }
            for (int count = 0; count < 60; ++count) {
                const event received = rig.until(event_kind::received);
                std::string& text = texts[received.who.index()];
                text = rig.text_of(received);
                CHECK(text == std::to_string(received.who.index()));
                const netio::bytes slice = netio::as_bytes(text);
                rig.backend.send_quietly(received.who, {&slice, 1});
                rig.receive(received.who);
            }
            for (std::uint32_t index = 0; index < 60; ++index) {
                CHECK(rig.until(event_kind::sent).byte_count != 0);
                CHECK(clients[index].receive(texts[index].size()) == texts[index]);
            }
        }
        CHECK(ring_sys::overflows != 0);
        CHECK(rig.seen.empty());
        for (std::uint32_t index = 0; index < 60; ++index) {
            rig.backend.start_close(who_of(index), index % 2 == 0);
        }
        for (std::uint32_t index = 0; index < 60; ++index) {
            rig.until(event_kind::closed);
        }
    }
    ring_sys::completions = 0;
}

NETIO_RING_CASE("tells of parts of quiet sends though their completions find no room (P2, P10)") {
    ring_sys::completions = 4;
    {
        ring_rig rig;
        ring_door door(rig);
        std::vector<ring_client> clients = ring_clients(rig, door, 12);
        const std::string text(8'000'000, 'a');
        const netio::bytes much = netio::as_bytes(text);
        for (std::uint32_t index = 0; index < 12; ++index) {
            rig.backend.send_quietly(who_of(index), {&much, 1});
        }
        for (std::uint32_t count = 0; count < 12; ++count) {
            const event sent = rig.until(event_kind::sent);
            CHECK(sent.byte_count < text.size());
            const std::string got = clients[sent.who.index()].receive(sent.byte_count);
            CHECK(got.size() == sent.byte_count);
        }
        CHECK(ring_sys::overflows != 0);
        for (std::uint32_t index = 0; index < 12; ++index) {
            rig.close(who_of(index), true);
        }
    }
    ring_sys::completions = 0;
}

namespace {

/// Sends to a client that reads nothing, until one waits for room; what was told of them.
std::size_t ring_fill(ring_rig& rig, std::span<const netio::bytes> slices, bool quietly) {
    std::size_t told = 0;
    for (int tries = 0; tries < 100; ++tries) {
        quietly ? rig.backend.send_quietly(who_of(0), slices)
                : rig.backend.start_send(who_of(0), slices);
        rig.wait(20'000'000);
        if (rig.seen.empty()) {
            return told;
        }
        CHECK(rig.seen[0].kind == event_kind::sent);
        told += rig.seen[0].byte_count;
        rig.seen.clear();
    }
    FAIL("there was always room");
    return told;
}
std::size_t ring_fill(ring_rig& rig, std::string_view text) {
    const netio::bytes slice = netio::as_bytes(text);
    return ring_fill(rig, {&slice, 1}, true);
}

}  // namespace

NETIO_RING_CASE("waits for room where a quiet send finds none, and tells how much went (P10)") {
    ring_rig rig;
    ring_door door(rig);
    ring_client client = door.connect(who_of(0));
    const std::string text = std::string(300'000, 'a') + std::string(300'000, 'b');
    const std::size_t told = ring_fill(rig, text);
    CHECK(client.receive(told).size() == told);
    const std::size_t rest = rig.until(event_kind::sent).byte_count;
    CHECK(rest != 0);
    CHECK(client.receive(rest).size() == rest);
    rig.close(who_of(0));
    CHECK(client.receive(1).empty());
}

NETIO_RING_CASE("aborts during a send that waits for room: it ends, closed is last (P3, P12)") {
    ring_rig rig;
    ring_door door(rig);
    ring_client client = door.connect(who_of(0));
    rig.receive(who_of(0), 100'000);
    const std::string text(600'000, 'a');
    ring_fill(rig, text);
    rig.close(who_of(0), true);
    rig.quiet();
    for (std::string got; !got.starts_with('!');) {
        got = client.receive(100'000);
        REQUIRE(!got.empty());
    }
}

namespace {

/// Quiet sends of which the last, to client 4, has no room for all; a wait too short for its step
/// in the run list gives its event. How much of `text` went.
std::size_t ring_send_part(ring_rig& rig, std::string_view text) {
    const netio::bytes little = netio::as_bytes("x"), much = netio::as_bytes(text);
    for (std::uint32_t index = 0; index < 4; ++index) {
        rig.backend.send_quietly(who_of(index), {&little, 1});
    }
    rig.backend.send_quietly(who_of(4), {&much, 1});
    std::size_t told = 0;
    rig.wait(0, 4);
    for (const event& each : rig.seen) {
        told += each.who == who_of(4) ? each.byte_count : 0;
    }
    rig.seen.clear();
    return told;
}

}  // namespace

NETIO_RING_CASE("tells of the rest of a quiet send only what the kernel has (P2, P10)") {
    ring_rig rig;
    ring_door door(rig);
    std::vector<ring_client> clients = ring_clients(rig, door, 5);
    const std::string text(20'000'000, 'a');
    const std::size_t told = ring_send_part(rig, text);
    REQUIRE(told != 0);
    REQUIRE(told < text.size());
    const netio::bytes rest = netio::as_bytes(text).subspan(told);
    rig.backend.send_quietly(who_of(4), {&rest, 1});
    rig.wait(0, 4);
    for (const event& each : rig.seen) {
        CHECK(each.who != who_of(4));
    }
    rig.seen.clear();
    for (std::uint32_t index = 0; index < 5; ++index) {
        rig.close(who_of(index), true);
    }
}

NETIO_RING_CASE("releases a connection whose quiet send told, and loses no event of others (P2)") {
    ring_rig rig;
    ring_door door(rig);
    std::vector<ring_client> clients;
    for (std::uint32_t index = 0; index < 6; ++index) {
        clients.push_back(door.connect(who_of(index)));
    }
    rig.quiet();
    const std::string text(20'000'000, 'a');
    REQUIRE(ring_send_part(rig, text) != 0);
    const netio::bytes little = netio::as_bytes("y");
    rig.backend.send_quietly(who_of(5), {&little, 1});
    ::close(static_cast<int>(rig.backend.release(who_of(4))));
    rig.wait(0);
    rig.wait(0);
    std::size_t sent = 0;
    for (const event& each : rig.seen) {
        sent += each.who == who_of(5) ? 1 : 0;
    }
    CHECK(sent == 1);
    rig.seen.clear();
    for (const std::uint32_t index : {0u, 1u, 2u, 3u, 5u}) {
        rig.close(who_of(index), true);
    }
}

namespace {

struct ring_slow_echo {
    static inline const std::string large = std::string(8 << 20, 'z');
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        if (in[0] == std::byte{'B'}) {
            peer.write_static(netio::as_bytes(large));
        } else {
            peer.write(in);
        }
        return in.size();
    }
};
constexpr netio::limits ring_slow_limits{.connections_max = 200, .input_buffers_max = 200};

}  // namespace

NETIO_RING_CASE("gives slow clients every byte while many others are served (P10)") {
    const auto memory = std::make_unique<netio::storage<ring_slow_limits, ring_backend>>();
    ring_slow_echo handler;
    netio::server<ring_slow_echo, ring_backend> server{*memory, handler};
    REQUIRE(server.listen({.address = "127.0.0.1"}) == netio::error::none);
    std::vector<ring_client> clients;
    while (clients.size() < 150) {
        clients.emplace_back(server.local().port);
        server.run_once(0);
    }
    const auto is_slow = [](std::size_t index) { return index % 10 == 9; };
    const auto turns = [&server](int count) {
        for (int turn = 0; turn < count; ++turn) {
            server.run_once(0);
        }
    };
    for (int round = 0; round < 20; ++round) {
        for (std::size_t index = 0; index < clients.size(); ++index) {
            clients[index].send(is_slow(index) && round == 10 ? "B" : "a");
        }
        turns(30);
        for (std::size_t index = 0; index < clients.size(); ++index) {
            if (!is_slow(index) || round < 10) {
                CHECK(clients[index].receive(1) == "a");
            }
        }
    }
    std::atomic<bool> done = false;
    std::size_t whole = 0;
    std::thread reader([&] {
        for (std::size_t index = 9; index < clients.size(); index += 10) {
            const std::string got = clients[index].receive(ring_slow_echo::large.size() + 9);
            whole += got.starts_with(ring_slow_echo::large) ? 1 : 0;
        }
        done = true;
    });
    while (!done) {
        server.run_once(1);
    }
    reader.join();
    CHECK(whole == 15);
}

NETIO_RING_CASE("closes behind a quiet send that the kernel has not seen yet (P10)") {
    ring_rig rig;
    ring_door door(rig);
    ring_client client = door.connect(who_of(0));
    const netio::bytes slice = netio::as_bytes("last words");
    rig.backend.send_quietly(who_of(0), {&slice, 1});
    rig.close(who_of(0));
    rig.quiet();
    CHECK(client.receive(100) == "last words");
}

namespace {

/// From here on the kernel answers `call` of this process with `code`.
bool ring_forbid(long call, std::uint32_t code) {
    sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the number of the call
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(rules), rules};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// What `available` misses in a child whose kernel answers `call` with `code`: 0 the text begins
/// with `says`, 1 it does not, 2 no such filter can be set here.
int ring_missed(long call, std::uint32_t code, std::string_view says) {
    return readiness_in_child([&] {
        if (!ring_forbid(call, code)) {
            return 2;
        }
        const netio::availability found = netio::io_uring::available();
        return !found.offered && std::string_view(found.missing).starts_with(says) ? 0 : 1;
    });
}

}  // namespace

NETIO_RING_CASE("says which call a filter forbids") {
    using namespace netio::detail;
    if (ring_missed(uring::setup_call, ENOSYS, "io_uring_setup") == 2) {
        MESSAGE("SKIPPED: no filter of system calls can be set here");
        return;
    }
    CHECK(ring_missed(uring::setup_call, ENOSYS, "io_uring_setup") == 0);
    CHECK(ring_missed(uring::setup_call, EPERM, "io_uring_setup: ") == 0);
    CHECK(ring_missed(uring::register_call, EPERM, "io_uring_register: ") == 0);
    CHECK(ring_missed(uring::enter_call, EPERM, "io_uring_enter: ") == 0);
}

NETIO_RING_CASE("falls back to the next backend where a filter forbids it, and says why") {
    using netio::detail::uring::setup_call;
    const int failed = readiness_in_child([] {
        if (!ring_forbid(setup_call, EPERM)) {
            return 2;
        }
        const auto any = netio::choose_backend<netio::io_uring, netio::epoll>("auto");
        const auto named = netio::choose_backend<netio::io_uring, netio::epoll>("io_uring");
        const bool right = any && any.index == 1 && std::string_view(any.name) == "epoll" &&
                           std::string_view(any.refused) == "io_uring" &&
                           std::string_view(any.missing).starts_with("io_uring_setup: ") &&
                           !named && std::string_view(named.missing) == any.missing;
        return right ? 0 : 1;
    });
    if (failed == 2) {
        MESSAGE("SKIPPED: no filter of system calls can be set here");
        return;
    }
    CHECK(failed == 0);
}

NETIO_RING_CASE("is chosen by name, or first of a list, for its type") {
    const auto any = netio::choose_backend<netio::io_uring, netio::epoll>("auto");
    CHECK(std::string_view(any.name) == "io_uring");
    CHECK(std::string_view(any.missing).empty());
    const auto second = netio::choose_backend<netio::io_uring, netio::epoll>("epoll");
    REQUIRE(second.index == 1);
    CHECK(std::string_view(second.refused).empty());
    const auto none = netio::choose_backend<netio::io_uring, netio::epoll>("iocp");
    CHECK(!none);
    CHECK(std::string_view(none.missing).empty());
    std::string_view ran;
    netio::on_backend<netio::io_uring, netio::epoll>(second, [&ran]<class Backend>(Backend*) {
        ran = Backend::name;
    });
    CHECK(ran == "epoll");
}

NETIO_RING_CASE("says what an old kernel lacks, and a lack of descriptors is none of it") {
    const auto missed = [](ring_call which, int code) {
        ring_sys::reset();
        ring_sys::plan(which, code);
        return std::string_view(ring_backend::available().missing);
    };
    const std::size_t before = netio_test::plain::open_handles();
    CHECK(missed(ring_call::setup, ENOSYS) == "io_uring_setup");
    CHECK(missed(ring_call::setup, EINVAL) == "IORING_SETUP_DEFER_TASKRUN (Linux 6.1)");
    CHECK(missed(ring_call::reg, EINVAL) == "provided buffer rings (Linux 5.19)");
    CHECK(missed(ring_call::setup, EMFILE).empty());
    CHECK(missed(ring_call::count_, 0).empty());
    CHECK(netio_test::plain::open_handles() == before);
}

NETIO_RING_CASE("holds nothing where it does not open") {
    const std::size_t before = netio_test::plain::open_handles();
    const auto fails = [](ring_call which, int nth = 1) {
        ring_sys::reset();
        ring_sys::plan(which, ENOMEM, nth);
        ring_memory memory;
        ring_backend backend;
        return memory.open(backend).os_code;
    };
    CHECK(fails(ring_call::setup) == ENOMEM);
    CHECK(fails(ring_call::map, 1) == ENOMEM);
    CHECK(fails(ring_call::map, 2) == ENOMEM);
    CHECK(fails(ring_call::reg) == ENOMEM);
    CHECK(fails(ring_call::open_wake) == ENOMEM);
    CHECK(netio_test::plain::open_handles() == before);
    ring_sys::reset();
}

NETIO_RING_CASE("sockets are closed by the ring, with a reset where it is asked for") {
    for (const bool undone : {true, false}) {  // false: the kernel would not undo the connection
        ring_rig rig;
        ring_door door(rig);
        ring_client clients[2] = {door.connect(who_of(0)), door.connect(who_of(1))};
        ring_sys::reset();
        if (!undone) {
            ring_sys::plan(ring_call::disconnect, EINVAL);
        }
        rig.close(who_of(0));
        rig.close(who_of(1), true);
        CHECK(ring_sys::of(ring_call::close) == 0);
        CHECK(ring_sys::of(ring_call::disconnect) == 1);
        CHECK(ring_sys::of(ring_call::setsockopt) == (undone ? 0 : 1));
        CHECK(clients[0].receive(1).empty());
        CHECK(clients[1].receive(1) == "!" + std::to_string(ECONNRESET));
    }
}

NETIO_RING_CASE("a reset leaves at once, while the kernel still has a receive and a send of it") {
    ring_rig rig;
    ring_door door(rig);
    ring_client client = door.connect(who_of(0));
    rig.receive(who_of(0));
    rig.wait(0);
    rig.backend.start_close(who_of(0), true);
    CHECK(client.receive(1) == "!" + std::to_string(ECONNRESET));
    CHECK(rig.until(event_kind::closed).who == who_of(0));
}

NETIO_RING_CASE("close closes what was started to close and not handed over yet") {
    ring_rig rig;
    ring_door door(rig);
    ring_client clients[2] = {door.connect(who_of(0)), door.connect(who_of(1))};
    rig.receive(who_of(0));
    rig.wait(0);
    rig.backend.start_close(who_of(0), false);  // ends its receive first
    rig.backend.start_close(who_of(1), false);
    rig.backend.close();
    door.accepting = false;
    CHECK(clients[0].receive(1).empty());
    CHECK(clients[1].receive(1).empty());
}

namespace {

/// Connections that wait: a receive into the pool and one into memory, a send, a connect.
struct ring_waiting {
    ring_rig& rig;
    std::vector<ring_client> clients;
    const std::string text = std::string(4'000'000, 'w');
    std::array<std::byte, 64> memory{};
    std::array<ring_client, 2> queued;  // nobody takes them, so who comes next gets no answer
    netio::os_handle silent;

    ring_waiting(ring_rig& of, ring_door& door) : rig(of) {
        for (std::uint32_t index = 0; index < 3; ++index) {
            clients.push_back(door.connect(who_of(index)));
        }
        rig.receive(who_of(0), 10'000);
        rig.backend.start_receive(who_of(1), memory, 0);
        fill(who_of(2));
        silent = ring_backend::listen({netio::loopback_ipv4(0), {}}, {.backlog = 1});
        const netio::endpoint there = ring_backend::local_of(silent.handle).value;
        for (ring_client& each : queued) {
            each = ring_client(there.port);
        }
        REQUIRE(rig.backend.start_connect({there, {}}, {}, who_of(3)));
        rig.quiet();
    }
    ~ring_waiting() { ring_backend::close_handle(silent.handle, false); }

    /// Sends until one waits for room: the kernel may grow what it holds for a peer a few times.
    void fill(token who) {
        bool went = true;
        while (went) {
            rig.send(who, text);
            went = false;
            for (int turn = 0; turn < 30 && !went; ++turn) {
                rig.wait(1'000'000);
                went = !rig.seen.empty();
            }
            for (const event& each : rig.seen) {
                CHECK(each.kind == event_kind::sent);
            }
            rig.seen.clear();
        }
    }
};

}  // namespace

NETIO_RING_CASE("asks again where a cancel races with an operation and misses it (P12)") {
    ring_rig rig;
    ring_door door(rig);
    ring_mailbox mailbox(rig);
    {
        ring_waiting waiting(rig, door);
        for (const bool stop : {true, false}) {
            CAPTURE(stop);
            ring_sys::misses = 5;
            if (stop) {
                rig.backend.stop_receive(who_of(0));
                rig.backend.stop_receive(who_of(1));
                CHECK(rig.until(event_kind::received).disarmed);
                CHECK(rig.until(event_kind::received).disarmed);
                rig.receive(who_of(0), 10'000);
                rig.backend.start_receive(who_of(1), waiting.memory, 0);
                rig.quiet();
                continue;
            }
            for (std::uint32_t index = 0; index < 4; ++index) {
                rig.backend.start_close(who_of(index), index % 2 == 0);
            }
            for (std::uint32_t index = 0; index < 4; ++index) {
                rig.until(event_kind::closed);
            }
        }
        CHECK(ring_sys::misses == 0);
        ring_sys::misses = 1;
        rig.backend.stop_receive_from(mailbox.who);
        CHECK(rig.until(event_kind::closed).op == operation::receive_from);
        CHECK(ring_sys::misses == 0);
        CHECK(rig.pool.in_use(netio::side::input) == 0);
        REQUIRE(rig.backend.start_receive_from(mailbox.handle.handle, mailbox.who));
    }
}

NETIO_RING_CASE("a wait returns though its cancels miss and submissions find no room (P12)") {
    ring_sys::completions = 8;
    {
        ring_rig rig;
        ring_door door(rig);
        std::vector<ring_client> clients = ring_clients(rig, door, 8);
        ring_sys::misses = 10'000;
        for (std::uint32_t index = 0; index < 8; ++index) {
            rig.backend.start_close(who_of(index), true);
        }
        for (int turns = 0; turns < 20; ++turns) {
            rig.wait(0, 4);
        }
        CHECK(ring_sys::misses > 9'000);
        ring_sys::misses = 0;
        for (std::uint32_t index = 0; index < 8; ++index) {
            rig.until(event_kind::closed);
        }
    }
    ring_sys::completions = 0;
}

NETIO_RING_CASE("frees a listener's port behind stop_accept though cancels miss (P12, P13)") {
    ring_rig rig;
    ring_door door(rig);
    rig.quiet();
    ring_sys::misses = 7;
    rig.backend.stop_accept(door.who);
    CHECK(ring_sys::misses == 0);
    REQUIRE(rig.backend.start_accept(door.handle.handle, who_of(0, 2)));
    const int entered = ring_sys::of(ring_call::enter);
    rig.backend.stop_accept(who_of(0, 2));
    CHECK(ring_sys::of(ring_call::enter) == entered);  // there was nothing left to cancel
    ring_backend::close_handle(door.handle.handle, false);
    door.handle = ring_backend::listen({netio::loopback_ipv4(door.port), {}}, {});
    CHECK(door.handle);
    door.who = who_of(0, 3);
    REQUIRE(rig.backend.start_accept(door.handle.handle, door.who));
    ring_client client = door.connect(who_of(0));
    rig.close(who_of(0));
    rig.quiet();
}

NETIO_RING_CASE("closes with everything outstanding, and the kernel keeps nothing (P3, P12)") {
    for (const bool by_hand : {false, true}) {
        CAPTURE(by_hand);
        ring_rig rig;
        ring_door door(rig);
        const netio::os_handle letters =
            ring_backend::open_datagram(netio::loopback_ipv4(0), {});
        ring_waiting waiting(rig, door);
        REQUIRE(rig.backend.start_receive_from(letters.handle, who_of(0)));
        std::vector<ring_client> crowd;
        while (crowd.size() < 6) {
            crowd.emplace_back(door.port);
        }
        rig.wait(0, 4);  // four are told of, and accepts for the others armed
        rig.backend.start_send_to(letters.handle, who_of(0), netio::as_bytes("on its way"),
                                  netio::loopback_ipv4(1));
        waiting.clients[0].send(std::string(3'000, 'x'));
        ring_client late(door.port);
        for (std::uint32_t index = 0; by_hand && index < 4; ++index) {
            rig.backend.start_close(who_of(index), index % 2 == 0);
        }
        rig.backend.close();
        door.accepting = false;
        CHECK(rig.pool.in_use(netio::side::input) == 0);
        CHECK(waiting.clients[1].receive(1).empty());
        ring_backend::close_handle(door.handle.handle, false);
        door.handle = ring_backend::listen({netio::loopback_ipv4(0), {}}, {});
        const std::string told = late.receive(1);
        CHECK((told.empty() || told == "!" + std::to_string(ECONNRESET)));
        ring_backend::close_handle(letters.handle, false);
        for (const event& each : rig.seen) {
            CHECK(each.kind == event_kind::accepted);
            ring_backend::close_handle(each.handle, true);
        }
    }
}

NETIO_RING_CASE("gives back the buffers of what came and was not told of before a close (P12)") {
    for (const bool by_hand : {false, true}) {
        CAPTURE(by_hand);
        ring_rig rig;
        ring_door door(rig);
        std::vector<ring_client> clients = ring_clients(rig, door, 6);
        for (ring_client& client : clients) {
            client.send("x");
        }
        rig.wait(0, 4);
        REQUIRE(rig.seen.size() == 4);
        for (const event& each : rig.seen) {
            CHECK(rig.text_of(each) == "x");
        }
        rig.seen.clear();
        CHECK(rig.pool.in_use(netio::side::input) == 2);
        for (std::uint32_t index = 0; by_hand && index < 6; ++index) {
            rig.backend.start_close(who_of(index), false);
        }
        for (std::uint32_t index = 0; by_hand && index < 6; ++index) {
            rig.until(event_kind::closed);
        }
        if (!by_hand) {
            rig.backend.close();
            door.accepting = false;
        }
        CHECK(rig.pool.in_use(netio::side::input) == 0);
    }
}

NETIO_RING_CASE("starts more between two waits than its queue of submissions holds (P2, P5)") {
    ring_rig rig;
    ring_door door(rig);
    constexpr std::uint32_t count = 290;
    std::vector<ring_client> clients;
    for (std::uint32_t index = 0; index < count; ++index) {
        clients.push_back(door.connect(who_of(index)));
    }
    rig.quiet();
    std::vector<std::string> texts;
    for (std::uint32_t index = 0; index < count; ++index) {
        texts.push_back(std::to_string(10'000 + index));
    }
    for (std::uint32_t index = 0; index < count; ++index) {
        const netio::bytes all = netio::as_bytes(texts[index]);
        const netio::bytes halves[] = {all.first(2), all.subspan(2)};
        rig.receive(who_of(index));
        rig.backend.start_send(who_of(index), halves);
    }
    for (std::uint32_t index = 0; index < count; ++index) {
        CHECK(rig.until(event_kind::sent).byte_count == 5);
    }
    for (std::uint32_t index = 0; index < count; ++index) {
        CHECK(clients[index].receive(5) == texts[index]);
        clients[index].send("x");
        CHECK(rig.text_of(rig.until(event_kind::received)) == "x");
    }
    for (std::uint32_t index = 0; index < count; ++index) {
        rig.backend.start_close(who_of(index), index % 2 == 0);
    }
    for (std::uint32_t index = 0; index < count; ++index) {
        rig.until(event_kind::closed);
    }
    rig.quiet();
}

namespace {

/// In a child without a descriptor left, and a client that waits. 0 if all is as promised.
int ring_out_of_descriptors() {
    const rlimit bound{64, 64};  // the kernel notes it when an accept is started
    if (::setrlimit(RLIMIT_NOFILE, &bound) != 0) {
        return 1;
    }
    ring_rig rig;
    ring_door door(rig);
    rig.quiet();
    ring_client clients[2] = {ring_client(door.port), ring_client(door.port)};
    std::vector<int> fill;
    for (int made = ::dup(2); made >= 0; made = ::dup(2)) {
        fill.push_back(made);
    }
    const event failed = rig.until(event_kind::failed);
    if (failed.op != operation::accept || failed.why != netio::error::descriptors_empty) {
        return 2;
    }
    if (rig.wait(20'000'000) != 0) {
        return 3;  // it is off
    }
    // One of the two was closed by way of the spare descriptor.
    if (!clients[0].receive(1).empty()) {
        return 4;
    }
    for (const int each : fill) {
        ::close(each);
    }
    if (!rig.backend.start_accept(door.handle.handle, door.who)) {
        return 5;
    }
    ring_backend::close_handle(rig.until(event_kind::accepted).handle, false);
    return 0;
}

/// Threads of this process, those of the kernel that work for it among them.
std::size_t ring_threads() {
    std::size_t count = 0;
    DIR* const folder = ::opendir("/proc/self/task");
    while (folder != nullptr && ::readdir(folder) != nullptr) {
        ++count;
    }
    ::closedir(folder);
    return count;
}

}  // namespace

NETIO_RING_CASE("fails an accept without descriptors, and no client is left hanging (P13)") {
    CHECK(readiness_in_child(ring_out_of_descriptors) == 0);
}

NETIO_RING_CASE("waits for room for a peer that has ended its stream, without a thread (P10)") {
    const std::string text(300'000, 'a');
    const netio::bytes slices[] = {netio::as_bytes(text), netio::as_bytes(text)};
    for (const std::size_t slice_count : {1u, 2u}) {
        for (const bool ended_before : {true, false}) {
            CAPTURE(slice_count);
            CAPTURE(ended_before);
            ring_rig rig;
            ring_door door(rig);
            ring_client client = door.connect(who_of(0));
            if (ended_before) {
                client.finish();
            }
            ring_fill(rig, std::span(slices).first(slice_count), false);
            client.finish();
            const std::size_t threads = ring_threads();
            rig.quiet();
            CHECK(ring_threads() == threads);
            ring_sys::reset();
            rig.wait(5'000'000);
            CHECK(ring_sys::pushed[netio::detail::uring::op_poll_add] == 0);  // it does not spin
            ring_sys::misses = 1;  // the end of that wait is asked for twice
            std::size_t sent = 0;
            while (sent == 0) {
                REQUIRE(client.receive(100'000).size() == 100'000);
                rig.wait(20'000'000);
                for (const event& each : rig.seen) {
                    REQUIRE(each.kind == event_kind::sent);
                    sent += each.byte_count;
                }
            }
            rig.seen.clear();
            rig.close(who_of(0), true);
        }
    }
}

NETIO_RING_CASE("tells nothing of a quiet send before the kernel has it (P2, P10)") {
    for (const bool moves : {false, true}) {
        CAPTURE(moves);
        ring_rig rig;
        ring_door door(rig);
        std::vector<ring_client> clients = ring_clients(rig, door, 39);
        const token last = who_of(38);
        const std::string text(8'000'000, 'a');
        const netio::bytes few = netio::as_bytes("few"), much = netio::as_bytes(text);
        rig.backend.stop_receive(last);
        CHECK(rig.until(event_kind::received).disarmed);
        for (std::uint32_t index = 0; index < 39; ++index) {
            rig.backend.send_quietly(who_of(index), {index == 38 ? &much : &few, 1});
        }
        rig.wait(0, 4);  // tells of the part that went, and of few others
        std::size_t part = 0;
        for (const event& each : rig.seen) {
            part += each.who == last ? each.byte_count : 0;
        }
        REQUIRE(part != 0);
        token again = last;
        if (moves) {
            again = who_of(38, 2);
            REQUIRE(rig.backend.attach(rig.backend.release(last), again));
        }
        rig.seen.clear();
        rig.backend.send_quietly(again, {&much, 1});
        for (int turns = 0; turns < 40; ++turns) {
            rig.wait(0, 4);
        }
        for (const event& each : rig.seen) {
            CHECK(each.who.index() != 38);
        }
        rig.seen.clear();
        CHECK(clients[38].receive(part).size() == part);
        CHECK(rig.until(event_kind::sent).who == again);
        rig.close(again, true);
        for (std::uint32_t index = 0; index < 38; ++index) {
            rig.close(who_of(index));
        }
    }
}

#endif
