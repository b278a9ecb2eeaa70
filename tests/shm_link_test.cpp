// Two processes and the memory between them: seals, system calls, sleep, death in mid-record.
#include "netio.hpp"
#include "tests/local_folder.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <csignal>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace {

using namespace netio_test;
using netio::error;
using netio::shm_event;
using netio::shm_options;

/// Counts every system call; the n-th from now on fails.
struct shm_counting_sys : netio::shm_sys {
    using real = netio::shm_sys;
    static inline int made = 0;
    static inline int fail_at = 0;
    static inline int fail_code = 0;

    static void plan(int nth, int code) {
        made = 0;
        fail_at = nth;
        fail_code = code;
    }
    static bool enter() noexcept {
        errno = fail_code;
        return ++made != fail_at;
    }
    static int open_memory() noexcept { return enter() ? real::open_memory() : -1; }
    static int set_size(int of, off_t count) noexcept {
        return enter() ? real::set_size(of, count) : -1;
    }
    static int seal(int of) noexcept { return enter() ? real::seal(of) : -1; }
    static int keeps_size(int of) noexcept { return enter() ? real::keeps_size(of) : -1; }
    static off_t size_of(int of) noexcept { return enter() ? real::size_of(of) : -1; }
    static void* map(int of, std::size_t count) noexcept {
        return enter() ? real::map(of, count) : MAP_FAILED;
    }
    static bool sleep(netio::shm_word& on, std::uint32_t seen, std::uint64_t time_ns) noexcept {
        enter();
        return real::sleep(on, seen, time_ns);
    }
    static void wake(netio::shm_word& on) noexcept {
        enter();
        real::wake(on);
    }
    static int open_process(int id) noexcept { return enter() ? real::open_process(id) : -1; }
    static bool has_ended(int process) noexcept {
        enter();
        return real::has_ended(process);
    }
};

/// As on a system without seals, futexes and descriptors of processes.
using shm_plain_sys =
    netio::detail::shm_asks_for_process<netio::detail::shm_naps<netio::detail::shm_named_memory>>;

template <class Sys>
using shm_link_of = netio::basic_shm_link<netio::shm_posix<Sys>>;
using shm_link = netio::shm_link;
using shm_counted_link = shm_link_of<shm_counting_sys>;
using shm_plain_link = shm_link_of<shm_plain_sys>;

constexpr netio::shm_layout shm_small{4096, 1000};

/// Options of tests: a small segment, and no peer's process looked for unless it is told.
shm_options shm_made(std::uint32_t side = 1, bool borrow = false) {
    shm_options out;
    out.layout = shm_small;
    out.side = side;
    out.borrow = borrow;
    return out;
}

struct shm_inbox {
    std::byte at[1000];
    operator netio::mutable_bytes() { return at; }
};

template <class Link>
bool shm_put(Link& to, std::string_view text) {
    const netio::ring_claim where = to.claim(static_cast<std::uint32_t>(text.size()));
    if (!where) {
        return false;
    }
    std::memcpy(where.room.data(), text.data(), text.size());
    to.commit(where, static_cast<std::uint32_t>(text.size()));
    return true;
}
template <class Link>
std::string shm_get(Link& from) {
    const std::string text(netio::as_text(from.peek()));
    if (!text.empty()) {
        from.release();
    }
    return text;
}

/// A copy of a handle, for a second end in the same process.
int shm_copy(netio::socket_handle of) { return ::fcntl(static_cast<int>(of), F_DUPFD_CLOEXEC, 0); }

/// Runs `body` in a process of its own, which is killed at the end if it is still there.
class shm_child {
public:
    template <class Body>
    explicit shm_child(Body body) : id_(::fork()) {
        if (id_ == 0) {
            ::alarm(60);  // whatever happens to the parent
            ::_exit(body());
        }
    }
    shm_child(const shm_child&) = delete;
    shm_child& operator=(const shm_child&) = delete;
    ~shm_child() { kill(); }
    std::uint32_t id() const { return static_cast<std::uint32_t>(id_); }
    void kill() {
        if (id_ > 0) {
            ::kill(id_, SIGKILL);
            ::waitpid(id_, nullptr, 0);
            id_ = -1;
        }
    }
    /// Its exit code.
    int join() {
        int status = -1;
        ::waitpid(id_, &status, 0);
        id_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    }

private:
    pid_t id_;
};

/// One process tells another that it has come to a place. (Not named `raise`: that is what doctest
/// calls in each check, unqualified, where it knows no instruction to stop a debugger.)
struct shm_flag {
    int ends[2];
    shm_flag() { REQUIRE(::pipe2(ends, O_CLOEXEC) == 0); }
    shm_flag(const shm_flag&) = delete;
    ~shm_flag() {
        ::close(ends[0]);
        ::close(ends[1]);
    }
    void tell() const { static_cast<void>(!::write(ends[1], "!", 1)); }
    bool await() const {
        pollfd look{ends[0], POLLIN, 0};
        char sign = 0;
        return ::poll(&look, 1, 20'000) == 1 && ::read(ends[0], &sign, 1) == 1;
    }
    /// Stays there until it is killed.
    int tell_and_stop() const {
        tell();
        for (;;) {
            ::pause();
        }
    }
};

}  // namespace

TEST_CASE_TEMPLATE("shm link: records both ways, and everything is given back", Link, shm_link,
                   shm_plain_link) {
    const std::size_t handles = plain::open_handles();
    shm_inbox inbox[2];
    {
        Link near;
        Link far;
        CHECK(near.why() == error::not_open);
        CHECK_FALSE(near.claim(1));
        CHECK(near.peek().empty());
        CHECK(near.wait(0) == shm_event::broken);
        REQUIRE(near.create(inbox[0], shm_made()));
        CHECK(near.record_max() == 1000);
        REQUIRE(far.open(shm_copy(near.handle()), inbox[1], shm_made()));
        CHECK(near.peer_epoch() == 1);
        CHECK(far.record_max() == 1000);
        REQUIRE(shm_put(near, "to far"));
        REQUIRE(shm_put(far, "to near"));
        CHECK(near.wait(1000) == shm_event::record);
        CHECK(far.wait(1000) == shm_event::record);
        CHECK(shm_get(near) == "to near");
        CHECK(shm_get(far) == "to far");
        CHECK(near.wait(0) == shm_event::none);
        CHECK(near.wait(1) == shm_event::none);
        while (shm_put(near, std::string(1000, 'x'))) {
        }
        CHECK(near.wait(0) == shm_event::none);
        CHECK(shm_get(far).size() == 1000);
        CHECK(near.wait(1000) == shm_event::room);
        CHECK(near.wait(0) == shm_event::none);  // told once
        CHECK(shm_put(near, std::string(1000, 'y')));
        CHECK(near.why() == error::none);
        far.close();
        CHECK(near.wait(1000) == shm_event::peer_gone);
        CHECK(near.peer_gone());
        CHECK(near.why() == error::none);
    }
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("shm link: what was committed before the peer left is read before it is gone") {
    shm_inbox inbox[2];
    shm_link near;
    shm_link far;
    REQUIRE(near.create(inbox[0], shm_made()));
    REQUIRE(far.open(shm_copy(near.handle()), inbox[1], shm_made()));
    REQUIRE(shm_put(far, "last word"));
    far.close();
    CHECK(near.wait(0) == shm_event::record);
    CHECK(shm_get(near) == "last word");
    CHECK(near.wait(0) == shm_event::peer_gone);
    CHECK(near.watch(0));  // another may come
    CHECK(near.wait(0) == shm_event::none);
    REQUIRE(far.open(shm_copy(near.handle()), inbox[1], shm_made()));
    CHECK(near.peer_epoch() == 3);
    CHECK(shm_put(near, "welcome"));
    CHECK(shm_get(far) == "welcome");
}

TEST_CASE("shm link: options that contradict each other are refused") {
    shm_inbox inbox;
    shm_link link;
    shm_options options = shm_made();
    CHECK(link.create({}, options).why == error::option_invalid);
    CHECK(link.open(0, {}, options).why == error::option_invalid);
    CHECK(link.create(netio::mutable_bytes(inbox).first(999), options).why ==
          error::memory_too_small);
    options.borrow = true;
    CHECK(link.create(inbox, options).why == error::option_invalid);
    options = shm_made(2);
    CHECK(link.open(0, inbox, options).why == error::option_invalid);
    options = shm_made();
    for (const std::uint32_t size : {0u, 32u, 4095u, 1u << 31}) {
        options.layout.ring_bytes = size;
        CHECK(link.create(inbox, options).why == error::option_invalid);
    }
    options.layout = {4096, 2041};
    CHECK(link.create(inbox, options).why == error::option_invalid);
    REQUIRE(link.create(inbox, shm_made()));
    CHECK(link.create(inbox, shm_made()).why == error::already_open);
    CHECK(link.open(0, inbox, shm_made()).why == error::already_open);
}

TEST_CASE("shm link: memory that could be taken away, or that is none, is not opened") {
    shm_inbox inbox;
    shm_link link;
    const std::size_t handles = plain::open_handles();
    const auto refused = [&](int memory) {
        const netio::os_status got = link.open(memory, inbox, shm_made());
        return got.why == error::rpc_transport && ::fcntl(memory, F_GETFD) >= 0 &&
               ::close(memory) == 0;  // it stayed the caller's
    };
    const auto made = [](off_t size, int seals) {
        const int memory = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        REQUIRE(::ftruncate(memory, size) == 0);
        REQUIRE(::fcntl(memory, F_ADD_SEALS, seals) == 0);
        return memory;
    };
    const auto laid_out = [&](off_t cut, int seals) {
        const int memory = made(4096 + 2 * 4096, 0);
        void* const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        REQUIRE(at != MAP_FAILED);
        netio::shm_side::lay_out(static_cast<std::byte*>(at), shm_small);
        ::munmap(at, 4096);
        REQUIRE(::ftruncate(memory, 4096 + 2 * 4096 - cut) == 0);
        REQUIRE(::fcntl(memory, F_ADD_SEALS, seals) == 0);
        return memory;
    };
    CHECK(refused(laid_out(0, 0)));
    CHECK(refused(laid_out(0, F_SEAL_GROW | F_SEAL_SEAL)));
    CHECK(refused(laid_out(1, F_SEAL_SHRINK)));     // shorter than it says
    CHECK(refused(laid_out(8192, F_SEAL_SHRINK)));
    CHECK(refused(made(0, F_SEAL_SHRINK)));
    CHECK(refused(made(100, F_SEAL_SHRINK)));
    CHECK(refused(made(1 << 20, F_SEAL_SHRINK)));   // nothing in it
    CHECK(refused(made(off_t{0x7FFFFFFF}, F_SEAL_SHRINK)));
    CHECK(refused(::open("/dev/null", O_RDWR | O_CLOEXEC)));
    CHECK_FALSE(link.open(-1, inbox, shm_made()));
    const int good = laid_out(0, F_SEAL_SHRINK);
    CHECK(link.open(good, inbox, shm_made()));
    link.close();
    CHECK(::fcntl(good, F_GETFD) < 0);  // the link's since then
    const int unwritable = laid_out(0, F_SEAL_SHRINK | F_SEAL_WRITE);
    CHECK_FALSE(link.open(unwritable, inbox, shm_made()));
    ::close(unwritable);
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("shm link: a segment of one's own cannot be cut by whoever has it") {
    shm_inbox inbox;
    shm_link link;
    REQUIRE(link.create(inbox, shm_made()));
    const auto memory = static_cast<int>(link.handle());
    CHECK(::ftruncate(memory, 0) != 0);
    CHECK(::ftruncate(memory, 1 << 20) != 0);
    CHECK(::fcntl(memory, F_ADD_SEALS, F_SEAL_WRITE) != 0);
    CHECK((::fcntl(memory, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("shm link: whichever system call of its making fails, nothing is held") {
    shm_inbox inbox[2];
    const std::size_t handles = plain::open_handles();
    const auto mapped = [] {
        std::size_t count = 0;
        std::FILE* const maps = std::fopen("/proc/self/maps", "r");
        char line[512];
        while (maps != nullptr && std::fgets(line, sizeof(line), maps) != nullptr) {
            count += std::strstr(line, "memfd:netio") != nullptr;
        }
        if (maps != nullptr) {
            std::fclose(maps);
        }
        return count;
    };
    {
        shm_link owner;
        REQUIRE(owner.create(inbox[0], shm_made()));
        const std::size_t held = plain::open_handles();
        for (const bool creates : {true, false}) {
            int failed = 0;
            for (int nth = 1; nth < 20; ++nth) {
                shm_counted_link link;
                const int copy = creates ? -1 : shm_copy(owner.handle());
                shm_options options = shm_made();
                options.peer_process = static_cast<std::uint32_t>(::getpid());
                shm_counting_sys::plan(nth, EMFILE);
                const netio::os_status made =
                    creates ? link.create(inbox[1], options) : link.open(copy, inbox[1], options);
                if (made) {
                    break;
                }
                ++failed;
                CHECK_FALSE(link.is_open());
                CHECK(link.why() != error::none);
                if (!creates) {
                    CHECK(::close(copy) == 0);
                }
                CHECK(plain::open_handles() == held);
                CHECK(mapped() == 1);
            }
            CHECK(failed == (creates ? 5 : 4));
            shm_counting_sys::plan(0, 0);
        }
    }
    CHECK(mapped() == 0);
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("shm link: no system call while both sides are awake, and one to wake a sleeper") {
    shm_inbox inbox[2];
    shm_counted_link near;
    shm_counted_link far;
    REQUIRE(near.create(inbox[0], shm_made()));
    REQUIRE(far.open(shm_copy(near.handle()), inbox[1], shm_made()));
    shm_counting_sys::plan(0, 0);
    for (int trip = 0; trip < 1000; ++trip) {
        REQUIRE(shm_put(near, std::string(868, 'c')));
        near.flush();
        REQUIRE(far.wait(1000) == shm_event::record);
        REQUIRE(shm_get(far).size() == 868);
        REQUIRE(shm_put(far, std::string(40, 'r')));
        far.flush();
        REQUIRE(near.wait(1000) == shm_event::record);
        REQUIRE(shm_get(near).size() == 40);
    }
    CHECK(shm_counting_sys::made == 0);
    CHECK(far.wait(1) == shm_event::none);  // a sleep, and a look for the peer's process
    CHECK(shm_counting_sys::made == 2);
}

TEST_CASE("shm link: a link that is not open has nothing, and nobody at its other end") {
    shm_link link;
    CHECK(link.why() == error::not_open);
    CHECK(link.record_max() == 0);
    CHECK_FALSE(link.claim(1));
    CHECK(link.peek().empty());
    CHECK(link.wait(1000) == shm_event::broken);
    CHECK(link.peer_gone());
    CHECK(link.peer_epoch() == 0);
    CHECK(link.watch(1).why == error::not_open);
    link.flush();
    link.close();
    CHECK(link.why() == error::not_open);
}

TEST_CASE("shm link: a wait looks as often as it was told before it sleeps, and may have no end") {
    shm_inbox inbox[2];
    shm_counted_link near;
    shm_options options = shm_made();
    options.spin_count = 1000;
    REQUIRE(near.create(inbox[0], options));
    shm_counting_sys::plan(0, 0);
    CHECK(near.wait(0) == shm_event::none);
    CHECK(shm_counting_sys::made == 0);
    CHECK_FALSE(near.claim(near.record_max() + 1));  // not refused for want of room
    CHECK(near.wait(1) == shm_event::none);
    const int memory = shm_copy(near.handle());
    shm_child child([&] {
        shm_link far;
        if (!far.open(memory, inbox[1], shm_made())) {
            return 1;
        }
        const timespec pause{0, 20'000'000};
        ::nanosleep(&pause, nullptr);
        if (!shm_put(far, "late")) {
            return 2;
        }
        far.flush();
        return far.wait(~0u) == shm_event::room || far.why() != error::none ? 3 : 0;
    });
    ::close(memory);
    CHECK(near.wait(~0u) == shm_event::record);
    CHECK(shm_get(near) == "late");
    REQUIRE(shm_put(near, "thanks"));
    near.flush();
    CHECK(child.join() == 0);
}

TEST_CASE("shm link: a peer asleep in another process is woken by one call") {
    shm_counted_link near;
    shm_options options = shm_made();
    options.layout = {};
    std::vector<std::byte> large(options.layout.longest());
    REQUIRE(near.create(large, options));
    shm_child child([&] {
        shm_link far;
        const bool opened =
            static_cast<bool>(far.open(shm_copy(near.handle()), large, shm_made()));
        for (int trip = 0; opened && trip < 200; ++trip) {
            if (far.wait(20'000) != shm_event::record || shm_get(far).size() != 868 ||
                !shm_put(far, std::string(40, 'r'))) {
                return 1;
            }
            far.flush();
        }
        return opened ? 0 : 2;
    });
    REQUIRE(near.watch(child.id()));
    shm_counting_sys::plan(0, 0);
    bool right = true;
    for (int trip = 0; right && trip < 200; ++trip) {
        right = shm_put(near, std::string(868, 'c')) && near.wait(20'000) == shm_event::record &&
                shm_get(near).size() == 40;
    }
    CHECK(right);
    // At most a wake and a sleep each, and what the system's own early returns cost.
    CHECK(shm_counting_sys::made <= 200 * 3 + 100);
    CHECK(child.join() == 0);
    CHECK(near.wait(20'000) == shm_event::peer_gone);
}

TEST_CASE_TEMPLATE("shm link: the end of a process is noticed, with and without a descriptor of it",
                   Link, shm_link, shm_plain_link) {
    shm_inbox inbox;
    for (const bool told : {true, false}) {
        Link near;
        REQUIRE(near.create(inbox, shm_made()));
        shm_flag opened;
        shm_child child([&] {
            Link far;
            static_cast<void>(far.open(shm_copy(near.handle()), inbox, shm_made()));
            return opened.tell_and_stop();
        });
        if (told) {
            REQUIRE(near.watch(child.id()));
        }
        REQUIRE(opened.await());
        CHECK_FALSE(near.peer_gone());
        CHECK(near.wait(1) == shm_event::none);
        child.kill();
        CHECK(near.wait(20'000) == shm_event::peer_gone);
        CHECK(near.wait(20'000) == shm_event::peer_gone);
        CHECK(near.peer_gone());
        CHECK(near.watch(0));
        CHECK_FALSE(near.peer_gone());
    }
}

TEST_CASE("shm link: a process that has ended already is gone, numbers of none are refused") {
    shm_inbox inbox;
    shm_link near;
    shm_child child([] { return 0; });
    const std::uint32_t id = child.id();
    CHECK(child.join() == 0);
    shm_options options = shm_made();
    options.peer_process = id;
    REQUIRE(near.create(inbox, options));
    CHECK(near.peer_gone());
    CHECK(near.wait(20'000) == shm_event::peer_gone);
    CHECK(near.watch(0x80000000).why == error::option_invalid);
    CHECK(near.watch(0xFFFFFFFF).why == error::option_invalid);
}

namespace {

std::string shm_numbered(int number) {
    return "record " + std::to_string(number) + std::string(static_cast<std::size_t>(number) % 50,
                                                            '.');
}

/// Writes three records and is in the middle of the fourth.
int shm_stopped_writer(netio::socket_handle memory, int first, const shm_flag& there) {
    shm_inbox inbox;
    shm_link self;
    if (!self.open(shm_copy(memory), inbox, shm_made())) {
        return 1;
    }
    for (int number = first; number < first + 3; ++number) {
        if (!shm_put(self, shm_numbered(number))) {
            return 2;
        }
    }
    const netio::ring_claim half = self.claim(900);
    std::memset(half.room.data(), 0xEE, 450);
    return there.tell_and_stop();
}

}  // namespace

TEST_CASE("shm link: 100 writers killed in mid-record lose none that was committed") {
    shm_inbox inbox;
    shm_link near;
    REQUIRE(near.create(inbox, shm_made()));
    const std::size_t handles = plain::open_handles();
    int next = 0;
    for (int round = 0; round < 100; ++round) {
        shm_flag there;
        const std::uint32_t epoch = near.peer_epoch();
        shm_child child([&] { return shm_stopped_writer(near.handle(), 3 * round, there); });
        REQUIRE(near.watch(child.id()));
        REQUIRE(there.await());
        REQUIRE(near.peer_epoch() == epoch + 1);
        child.kill();
        REQUIRE((round % 20 == 0 || near.peer_gone()));  // else the wait finds it out, later
        while (near.wait(20'000) == shm_event::record) {
            REQUIRE(shm_get(near) == shm_numbered(next));
            ++next;
        }
        REQUIRE(near.why() == error::none);
        REQUIRE(near.peer_gone());
        REQUIRE(next == 3 * (round + 1));
    }
    near.watch(0);
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("shm link: writers killed wherever they happen to be leave whole records, in order") {
    shm_inbox inbox;
    shm_link near;
    REQUIRE(near.create(inbox, shm_made()));
    int next = 0;
    for (int round = 0; round < 40; ++round) {
        shm_child child([&] {
            shm_inbox own;
            shm_link self;
            if (!self.open(shm_copy(near.handle()), own, shm_made())) {
                return 1;
            }
            for (int number = next;;) {
                number += shm_put(self, shm_numbered(number)) ? 1 : 0;
                self.wait(number % 7 == 0 ? 1 : 0);
            }
        });
        REQUIRE(near.watch(child.id()));
        for (const int enough = next + 50 + round; next < enough; ++next) {
            REQUIRE(near.wait(20'000) == shm_event::record);
            REQUIRE(shm_get(near) == shm_numbered(next));
        }
        child.kill();
        REQUIRE(near.peer_gone());
        for (; near.wait(20'000) == shm_event::record; ++next) {
            REQUIRE(shm_get(near) == shm_numbered(next));
        }
        REQUIRE(near.why() == error::none);
    }
}

TEST_CASE("shm link: a peer that wakes without end keeps a wait busy, not longer than its time") {
    shm_inbox inbox[2];
    shm_link near;
    REQUIRE(near.create(inbox[0], shm_made()));
    shm_flag there;
    shm_child child([&] {
        void* const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                                static_cast<int>(near.handle()), 0);
        if (at == MAP_FAILED) {
            return 1;
        }
        there.tell();
        auto& asleep = static_cast<netio::detail::shm_page<netio::detail::atomic>*>(at)
                           ->sides[0].asleep;
        for (std::uint32_t value = 0;; ++value) {
            asleep.store(value);
            netio::shm_sys::wake(asleep);
        }
    });
    REQUIRE(there.await());
    CHECK(near.wait(20) == shm_event::none);
    CHECK(near.why() == error::none);
}

namespace {

/// Reads two records and is in the middle of the third.
int shm_stopped_reader(netio::socket_handle memory, int first, const shm_flag& there) {
    shm_inbox inbox;
    shm_link self;
    if (!self.open(shm_copy(memory), inbox, shm_made())) {
        return 1;
    }
    for (int number = first; number < first + 2; ++number) {
        if (self.wait(20'000) != shm_event::record || shm_get(self) != shm_numbered(number)) {
            return 2;
        }
    }
    if (self.wait(20'000) != shm_event::record ||
        netio::as_text(self.peek()) != shm_numbered(first + 2)) {
        return 3;
    }
    return there.tell_and_stop();
}

}  // namespace

TEST_CASE("shm link: 100 readers killed in mid-record leave it to the next one") {
    shm_inbox inbox;
    shm_link near;
    REQUIRE(near.create(inbox, shm_made()));
    int written = 0;
    for (int round = 0; round < 100; ++round) {
        shm_flag there;
        shm_child child([&] { return shm_stopped_reader(near.handle(), 2 * round, there); });
        REQUIRE(near.watch(child.id()));
        for (; written < 2 * round + 3; ++written) {
            REQUIRE(shm_put(near, shm_numbered(written)));
        }
        near.flush();
        REQUIRE(there.await());
        child.kill();
        REQUIRE((round % 20 == 0 || near.peer_gone()));
        REQUIRE(near.wait(20'000) == shm_event::peer_gone);
        REQUIRE(near.why() == error::none);
    }
    shm_link last;
    REQUIRE(last.open(shm_copy(near.handle()), inbox, shm_made()));
    CHECK(shm_get(last) == shm_numbered(200));
    CHECK(shm_get(last).empty());
}

TEST_CASE("shm link: the creator is replaced, too") {
    shm_inbox inbox[2];
    std::optional<shm_link> first;
    first.emplace();
    shm_link far;
    REQUIRE(first->create(inbox[0], shm_made()));
    REQUIRE(far.open(shm_copy(first->handle()), inbox[1], shm_made()));
    REQUIRE(shm_put(*first, "one"));
    REQUIRE(shm_put(far, "two"));
    first.reset();
    CHECK(far.wait(0) == shm_event::record);
    shm_link second;
    REQUIRE(second.open(shm_copy(far.handle()), inbox[0], shm_made(0)));
    CHECK(shm_get(second) == "two");
    REQUIRE(shm_put(second, "three"));
    CHECK(shm_get(far) == "one");
    CHECK(shm_get(far) == "three");
    CHECK(far.wait(1) == shm_event::none);
}

TEST_CASE("shm link: a peer that breaks a rule ends the link, and closing it is all that is left") {
    shm_inbox inbox[2];
    shm_link near;
    shm_link far;
    REQUIRE(near.create(inbox[0], shm_made()));
    REQUIRE(far.open(shm_copy(near.handle()), inbox[1], shm_made()));
    REQUIRE(shm_put(far, "good"));
    void* const at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
                            static_cast<int>(near.handle()), 0);
    REQUIRE(at != MAP_FAILED);
    using page = netio::detail::shm_page<netio::detail::atomic>;
    static_cast<page*>(at)->rings[1].tail.store(4);
    ::munmap(at, 4096);
    CHECK(near.wait(1000) == shm_event::broken);
    CHECK(near.why() == error::rpc_transport);
    CHECK(near.peek().empty());
    CHECK_FALSE(near.claim(1));
    CHECK(near.wait(1000) == shm_event::broken);
    near.close();
    CHECK(near.why() == error::not_open);
    CHECK(far.wait(0) == shm_event::peer_gone);
    CHECK(near.create(inbox[0], shm_made()));
}

TEST_CASE("shm link: a process that forks has its link twice, and the child's end tells nothing") {
    shm_inbox inbox[2];
    shm_link near;
    std::optional<shm_link> far;
    far.emplace();
    REQUIRE(near.create(inbox[0], shm_made()));
    REQUIRE(far->open(shm_copy(near.handle()), inbox[1], shm_made()));
    CHECK(local_in_child([&] {
              far.reset();
              return 0;
          }) == 0);
    CHECK(near.wait(0) == shm_event::none);
    REQUIRE(shm_put(*far, "still there"));
    CHECK(shm_get(near) == "still there");
}

TEST_CASE("shm link: who can take no record waits for room alone, and sleeps") {
    shm_link near;
    shm_link far;
    REQUIRE(near.create({}, shm_made(0, true)));
    REQUIRE(far.open(shm_copy(near.handle()), {}, shm_made(1, true)));
    const netio::ring_claim to = near.claim(4);
    REQUIRE(to);
    std::memcpy(to.room.data(), "rest", 4);
    near.commit(to, 4);
    CHECK(far.wait(0, netio::shm_wants::room) == shm_event::none);
    CHECK(far.wait(1, netio::shm_wants::room) == shm_event::none);
    while (const netio::ring_claim more = far.claim(far.record_max())) {
        far.commit(more, far.record_max());
    }
    CHECK(far.wait(1, netio::shm_wants::room) == shm_event::none);
    for (int more = 0; more < 2; ++more) {
        REQUIRE(!near.peek().empty());
        near.release();
    }
    CHECK(far.wait(1, netio::shm_wants::room) == shm_event::room);
    CHECK(far.wait(0) == shm_event::record);
}

TEST_CASE("shm link: records can be lent where they lie") {
    shm_link near;
    shm_link far;
    REQUIRE(near.create({}, shm_made(0, true)));
    REQUIRE(far.open(shm_copy(near.handle()), {}, shm_made(1, true)));
    const netio::ring_claim to = near.claim(4);
    REQUIRE(to);
    std::memcpy(to.room.data(), "lent", 4);
    near.commit(to, 4);
    CHECK(netio::as_text(far.peek()) == "lent");
    std::memcpy(to.room.data(), "bent", 4);
    CHECK(netio::as_text(far.peek()) == "bent");
    far.release();
}

#endif
