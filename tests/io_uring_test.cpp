// What only the io_uring backend can show: its system calls counted and failed one by one, what is
// lent to the kernel, a queue of completions that overflows, kernels that refuse.
#include "netio.hpp"
#include "tests/readiness.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_IO_URING

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <thread>
#include <vector>

namespace {

using netio::event;
using netio::event_kind;
using netio::operation;
using netio::token;

enum class ring_call {
    socket, accept, send, receive, setsockopt, getsockopt, shutdown, close, setup, enter, reg, map,
    open_wake, write_wake, open_spare, count_
};

/// Counts every call; one planned call fails instead of being made.
struct ring_counting_sys : netio::io_uring_sys {
    using real = netio::io_uring_sys;
    static inline std::atomic<int> counts[static_cast<int>(ring_call::count_)] = {};
    static inline ring_call fail_call = ring_call::count_;
    static inline int fail_at = 0;  // the n-th such call from now fails
    static inline int fail_code = 0;
    static inline std::uint32_t completions = 0;  // room for so many, if not 0
    static inline std::uint64_t last_timeout = 0;

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
        return made(ring_call::setup) ? real::ring_setup(entries, how) : -1;
    }
    static int ring_enter(int ring, std::uint32_t submitted, std::uint32_t least,
                          std::uint32_t flags,
                          const netio::detail::uring::wait_argument& how) noexcept {
        last_timeout = how.timeout;
        return made(ring_call::enter) ? real::ring_enter(ring, submitted, least, flags, how) : -1;
    }
    static int ring_register(int ring, std::uint32_t what,
                             const netio::detail::uring::buffer_ring_registration& which) noexcept {
        return made(ring_call::reg) ? real::ring_register(ring, what, which) : -1;
    }
    static std::byte* ring_map(int ring, std::size_t byte_count, std::int64_t offset) noexcept {
        return made(ring_call::map) ? real::ring_map(ring, byte_count, offset) : nullptr;
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

const netio::availability ring_offered = netio::io_uring::available();
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

/// Opens a backend that must not open; why.
netio::os_status ring_opens_not() {
    std::vector<std::byte> bytes(64 * 1024);
    std::vector<std::uint32_t> links(16);
    std::vector<std::byte> raw(ring_rig::memory_bytes + 64);
    netio::buffer_pool pool;
    pool.attach(bytes.data(), links.data(), 16, 1024, 8, 8, false);
    const auto at = reinterpret_cast<std::uintptr_t>(raw.data());
    ring_backend backend;
    return backend.open({raw.data() + (64 - at % 64) % 64, ring_rig::memory_bytes},
                        netio_test::readiness_sizes, pool);
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
        return ring_opens_not().os_code;
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
    ring_rig rig;
    ring_door door(rig);
    ring_client clients[2] = {door.connect(who_of(0)), door.connect(who_of(1))};
    ring_sys::reset();
    rig.close(who_of(0));
    rig.close(who_of(1), true);
    CHECK(ring_sys::of(ring_call::close) == 0);
    CHECK(ring_sys::of(ring_call::setsockopt) == 1);
    CHECK(clients[0].receive(1).empty());
    CHECK(clients[1].receive(1) == "!" + std::to_string(ECONNRESET));
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

#endif
