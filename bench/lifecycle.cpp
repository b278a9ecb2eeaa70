// c++ -std=c++20 -O2 -I. -pthread bench/lifecycle.cpp -o lifecycle
//
// What happens to connections that are not echoing, each beside the least that the system calls
// for it cost in the same rounds:
//   lifecycle wake    a post to a worker that sleeps, or that spins
//   lifecycle kill    from server::kill to the reset at the peer, worker asleep or awake
//   lifecycle drain   1,000, 5,000 and 10,000 idle connections
//   lifecycle flood   what a quiet connection waits beside one that floods
//   lifecycle pool    a round trip on a blocking pool, its thread asleep in its receive
// with --rounds N (9) and --samples N (1000; of a variant in a round). The variants of a round run
// one after the other, in an order that is rotated every round. Prints lines of
// `round TAB variant TAB metric TAB value` (latency, time and CPU in nanoseconds) and ends by
// itself. Loopback only. How it is measured, and why so: bench/README.md.
#include "netio.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr std::uint64_t us = 1'000;
constexpr std::uint64_t give_up_ns = 10'000'000'000;  // nothing here takes nearly so long
constexpr unsigned most_seconds = 900;                // the whole run

[[noreturn]] void die(const char* what) {
    std::fprintf(stderr, "lifecycle: %s (%s)\n", what, std::strerror(errno));
    std::exit(1);
}
int must(int result, const char* what) {
    if (result < 0) {
        die(what);
    }
    return result;
}

std::uint64_t clock_ns(clockid_t of) {
    timespec at{};
    must(clock_gettime(of, &at), "clock_gettime");
    return static_cast<std::uint64_t>(at.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(at.tv_nsec);
}
std::uint64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

void spin_until(std::uint64_t when) {
    while (now_ns() < when) {
    }
}
/// Spins until `done()`: whoever waits here is on a CPU of its own and sleeps for nobody's sake.
template <class Done>
void spin_for(const Done& done, const char* what) {
    for (const std::uint64_t until = now_ns() + give_up_ns; !done();) {
        if (now_ns() > until) {
            die(what);
        }
    }
}

/// Gaps that differ, so that nothing falls into step with a timer.
std::uint64_t random_below(std::uint64_t most) {
    static std::uint64_t state = 0x9E3779B97F4A7C15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % most;
}
/// When the next sample is meant to begin: its latency counts from there.
std::uint64_t soon() { return now_ns() + 5 * us + random_below(20 * us); }

// ---- CPUs and threads

int first_cpu = 0;
int last_cpu = 0;

void find_cpus() {
    cpu_set_t set;
    must(sched_getaffinity(0, sizeof(set), &set), "sched_getaffinity");
    first_cpu = -1;
    for (int at = 0; at < CPU_SETSIZE; ++at) {
        if (CPU_ISSET(at, &set)) {
            first_cpu = first_cpu < 0 ? at : first_cpu;
            last_cpu = at;
        }
    }
}
/// The calling thread.
void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    must(sched_setaffinity(0, sizeof(set), &set), "sched_setaffinity");
}
int thread_number() { return static_cast<int>(::syscall(SYS_gettid)); }

/// What the kernel says of a thread of this process.
class thread_watch {
public:
    explicit thread_watch(int thread)
        : stat_(open_file(thread, "stat")), status_(open_file(thread, "status")) {}
    ~thread_watch() {
        ::close(stat_);
        ::close(status_);
    }
    thread_watch(const thread_watch&) = delete;
    thread_watch& operator=(const thread_watch&) = delete;

    /// proc(5): the state follows the name, which is in parentheses; S is an interruptible sleep.
    bool asleep() const {
        const char* name_end = std::strrchr(read_all(stat_), ')');
        return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'S';
    }
    /// Until it is off its CPU and stays so; gives how often it went to sleep so far. The state
    /// alone may say S just before a thread leaves its CPU, and between two short sleeps.
    std::uint64_t wait_settled() const {
        std::uint64_t count = 0;
        spin_for([&] {
            count = sleeps();
            const bool before = asleep();
            const timespec a_while{0, 1'000'000};
            ::nanosleep(&a_while, nullptr);
            return before && asleep() && sleeps() == count;
        }, "a thread did not go to sleep");
        return count;
    }
    /// The same after a wake, by count: `before` sleeps have begun, and one more has to.
    std::uint64_t wait_asleep_again(std::uint64_t before) const {
        std::uint64_t count = 0;
        spin_for([&] {
            count = sleeps();
            return count > before && asleep();
        }, "a wake ended no sleep");
        return count;
    }
    /// A while later it still sleeps that sleep; else whatever sleep it is in by then.
    std::uint64_t wait_undisturbed(std::uint64_t count) const {
        for (;;) {
            spin_until(now_ns() + 20 * us + random_below(64 * us));
            const std::uint64_t found = sleeps();
            if (asleep() && found == count) {
                return count;
            }
            count = wait_settled();
        }
    }
    /// How often it went to sleep.
    std::uint64_t sleeps() const {
        constexpr const char* key = "\nvoluntary_ctxt_switches:";
        const char* at = std::strstr(read_all(status_), key);
        if (at == nullptr) {
            die("no voluntary_ctxt_switches in /proc/self/task/N/status");
        }
        return std::strtoull(at + std::strlen(key), nullptr, 10);
    }

private:
    static int open_file(int thread, const char* name) {
        char path[64];
        std::snprintf(path, sizeof(path), "/proc/self/task/%d/%s", thread, name);
        return must(::open(path, O_RDONLY | O_CLOEXEC), path);
    }
    const char* read_all(int from) const {
        const ssize_t count = ::pread(from, text_, sizeof(text_) - 1, 0);
        text_[count < 0 ? 0 : count] = '\0';
        return text_;
    }

    int stat_;
    int status_;
    mutable char text_[4096];
};

/// A thread that is the system's least: blocked in epoll_wait on one eventfd. Woken it takes the
/// time and, if it is given a socket, closes it; it doesn't even read the eventfd, whose edge comes
/// with each write.
class bare_thread {
public:
    bare_thread() {
        epoll_event wanted{};
        wanted.events = EPOLLIN | EPOLLET;
        must(epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &wanted), "epoll_ctl");
        thread_ = std::thread([this] { run(); });
        spin_for([this] { return number_.load() != 0; }, "a thread did not start");
    }
    ~bare_thread() {
        quits_.store(true);
        wake();
        thread_.join();
        ::close(epoll_);
        ::close(event_);
    }
    bare_thread(const bare_thread&) = delete;
    bare_thread& operator=(const bare_thread&) = delete;

    int number() const { return number_.load(); }
    void wake() const {
        const std::uint64_t one = 1;
        must(static_cast<int>(::write(event_, &one, sizeof(one))), "write to an eventfd");
    }
    void wake_to_close(int descriptor) {
        to_close_.store(descriptor, std::memory_order_release);
        wake();
    }
    std::uint64_t wake_count() const { return count_.load(std::memory_order_acquire); }
    std::uint64_t woke_at() const { return woke_at_; }

private:
    void run() {
        pin(first_cpu);
        number_.store(thread_number());
        for (epoll_event got{}; !quits_.load(std::memory_order_relaxed);) {
            must(epoll_wait(epoll_, &got, 1, -1), "epoll_wait");
            woke_at_ = now_ns();
            const int given = to_close_.exchange(-1, std::memory_order_acquire);
            if (given >= 0) {
                ::close(given);
            }
            count_.fetch_add(1, std::memory_order_release);
        }
    }

    const int event_ = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    const int epoll_ = must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    std::atomic<int> number_{0};
    std::atomic<int> to_close_{-1};
    std::atomic<bool> quits_{false};
    std::atomic<std::uint64_t> count_{0};
    std::uint64_t woke_at_ = 0;
    std::thread thread_;
};

// ---- sockets

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    return at;
}
int connect_to(std::uint16_t port) {
    const int made = must(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    const sockaddr_in at = loopback(port);
    must(::connect(made, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), "connect");
    const int yes = 1;
    must(::setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), "TCP_NODELAY");
    return made;
}

struct bare_listener {
    int descriptor = must(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    std::uint16_t port = 0;

    bare_listener() {
        sockaddr_in at = loopback(0);
        socklen_t size = sizeof(at);
        must(::bind(descriptor, reinterpret_cast<const sockaddr*>(&at), size), "bind");
        must(::listen(descriptor, SOMAXCONN), "listen");
        must(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&at), &size), "getsockname");
        port = ntohs(at.sin_port);
    }
    ~bare_listener() { ::close(descriptor); }
    bare_listener(const bare_listener&) = delete;
    bare_listener& operator=(const bare_listener&) = delete;

    int accept() const {
        return must(::accept4(descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC),
                    "accept");
    }
};

// ---- netio

/// Counts and times what the measurements wait for. What begins with 'q' is answered; anything
/// else is the flood, and swallowed.
struct life_handler {
    std::atomic<std::uint64_t> opened{0};
    std::atomic<std::uint64_t> last_opened{0};
    std::atomic<std::uint64_t> posted{0};
    std::atomic<std::uint64_t> swallowed{0};
    std::uint64_t posted_at = 0;

    void on_open(netio::connection& peer) noexcept {
        last_opened.store(peer.id().bits, std::memory_order_relaxed);
        opened.fetch_add(1, std::memory_order_release);
    }
    void on_post(netio::connection&, std::uint64_t word) noexcept {
        posted_at = now_ns();
        posted.store(word, std::memory_order_release);
    }
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        if (in[0] == std::byte{'q'}) {
            return peer.write(in);
        }
        swallowed.fetch_add(in.size(), std::memory_order_relaxed);
        return in.size();
    }
};

class mapped_memory {
public:
    explicit mapped_memory(std::size_t count)
        : count_(count), at_(::mmap(nullptr, count, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
        if (at_ == MAP_FAILED) {
            die("mmap");
        }
    }
    ~mapped_memory() { ::munmap(at_, count_); }
    mapped_memory(const mapped_memory&) = delete;
    mapped_memory& operator=(const mapped_memory&) = delete;
    netio::mutable_bytes all() const { return {static_cast<std::byte*>(at_), count_}; }

private:
    std::size_t count_;
    void* at_;
};

/// A server with one worker on the first CPU.
template <class Backend>
class served {
public:
    explicit served(std::uint32_t connections, netio::wait_options waiting)
        : sizes_{.connections_max = connections},
          memory_(netio::bytes_needed<Backend>(sizes_)),
          server_(netio::storage_view{memory_.all(), sizes_}, handler) {
        server_.waiting(waiting);
        if (server_.listen({.address = "127.0.0.1"}) != netio::error::none) {
            netio::report("lifecycle", server_);
            std::exit(1);
        }
        thread_ = std::thread([this] { run(); });
        spin_for([this] { return number_.load() != 0; }, "a worker did not start");
    }
    ~served() {
        server_.stop();
        join();
    }
    served(const served&) = delete;
    served& operator=(const served&) = delete;

    void join() {
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    netio::server<life_handler, Backend>& server() { return server_; }
    int number() const { return number_.load(); }
    std::uint16_t port() { return server_.local(netio::listener_id{}).port; }
    std::thread& thread() { return thread_; }
    std::uint64_t over_at() const { return over_at_; }
    std::uint64_t over_cpu() const { return over_cpu_; }

    /// A client of its own, and its name at the server.
    int connect(netio::connection_id& name) {
        const std::uint64_t before = handler.opened.load();
        const int made = connect_to(port());
        spin_for([&] { return handler.opened.load(std::memory_order_acquire) != before; },
                 "a connection was not opened");
        name.bits = handler.last_opened.load(std::memory_order_relaxed);
        return made;
    }

    life_handler handler;

private:
    void run() {
        pin(first_cpu);
        number_.store(thread_number());
        if (server_.run() != netio::error::none) {
            netio::report("lifecycle", server_);
            std::exit(1);
        }
        over_at_ = now_ns();
        over_cpu_ = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    }

    netio::limits sizes_;
    mapped_memory memory_;
    netio::server<life_handler, Backend> server_;
    std::atomic<int> number_{0};
    std::uint64_t over_at_ = 0;
    std::uint64_t over_cpu_ = 0;
    std::thread thread_;
};

// ---- rounds

struct settings {
    std::uint32_t rounds = 9;
    std::uint32_t samples = 1000;
};

struct variant {
    std::string name;
    std::function<void(const char* name, std::uint32_t round)> run;
};

void say(std::uint32_t round, const char* name, const char* metric, double value) {
    std::printf("%u\t%s\t%s\t%.6g\n", round, name, metric, value);
    std::fflush(stdout);
}
/// The value that `part` of the samples don't exceed.
double quantile(std::vector<std::uint64_t>& samples, double part) {
    std::sort(samples.begin(), samples.end());
    const auto at = static_cast<std::size_t>(part * static_cast<double>(samples.size()));
    return static_cast<double>(samples[std::min(at, samples.size() - 1)]);
}
void say_latency(std::uint32_t round, const char* name, std::vector<std::uint64_t>& samples) {
    say(round, name, "p50", quantile(samples, 0.50));
    say(round, name, "p99", quantile(samples, 0.99));
}
void run_rounds(const settings& chosen, const std::vector<variant>& variants) {
    for (std::uint32_t round = 0; round < chosen.rounds; ++round) {
        for (std::size_t at = 0; at < variants.size(); ++at) {
            const variant& one = variants[(round + at) % variants.size()];
            one.run(one.name.c_str(), round);
        }
    }
}

/// `add(name, Backend*)` for each backend of this kernel.
template <class Add>
void each_backend(const Add& add) {
    add(std::string("netio epoll"), static_cast<netio::epoll*>(nullptr));
#if NETIO_HAS_IO_URING
    const netio::availability found = netio::io_uring::available();
    if (found.offered) {
        add(std::string("netio io_uring"), static_cast<netio::io_uring*>(nullptr));
    } else {
        std::fprintf(stderr, "lifecycle: no io_uring: %s\n", found.missing);
    }
#endif
}

constexpr std::uint32_t warm_up = 50;  // samples that don't count, at the begin of each slice
constexpr netio::wait_options spins_50{.batch_us = 0, .spin_us = 50};

// ---- wake

struct bare_wake {
    bare_thread thread;

    int number() const { return thread.number(); }
    std::uint64_t fire() {
        const std::uint64_t before = thread.wake_count();
        thread.wake();
        spin_for([&] { return thread.wake_count() != before; }, "a wake got lost");
        return thread.woke_at();
    }
};

/// A thread that looks at a word and does nothing else: what a hand-over between the CPUs takes,
/// and what this machine puts into the way of it.
class bare_spin {
public:
    bare_spin() : thread_([this] { run(); }) {}
    ~bare_spin() {
        asked_.store(~std::uint64_t{0}, std::memory_order_release);
        thread_.join();
    }
    bare_spin(const bare_spin&) = delete;
    bare_spin& operator=(const bare_spin&) = delete;

    std::uint64_t fire() {
        asked_.store(++word_, std::memory_order_release);
        spin_for([&] { return seen_.load(std::memory_order_acquire) == word_; }, "a word got lost");
        return seen_at_;
    }

private:
    void run() {
        pin(first_cpu);
        for (std::uint64_t last = 0; last != ~std::uint64_t{0};) {
            const std::uint64_t asked = asked_.load(std::memory_order_acquire);
            if (asked != last) {
                last = asked;
                seen_at_ = now_ns();
                seen_.store(asked, std::memory_order_release);
            }
        }
    }

    alignas(64) std::atomic<std::uint64_t> asked_{0};
    alignas(64) std::atomic<std::uint64_t> seen_{0};
    std::uint64_t seen_at_ = 0;
    std::uint64_t word_ = 0;
    std::thread thread_;
};

template <class Backend>
struct netio_wake {
    served<Backend> service;
    netio::connection_id to{};
    std::uint64_t word = 0;
    int peer;

    explicit netio_wake(netio::wait_options waiting)
        : service(16, waiting), peer(service.connect(to)) {}
    ~netio_wake() { ::close(peer); }

    int number() const { return service.number(); }
    std::uint64_t fire() {
        ++word;
        if (!service.server().post(to, word)) {
            die("a post was refused");
        }
        spin_for([&] { return service.handler.posted.load(std::memory_order_acquire) == word; },
                 "a post got lost");
        return service.handler.posted_at;
    }
};

/// Each sample finds the thread asleep, and is checked to have ended that sleep. Latency is counted
/// from when it was meant to begin.
template <class Target>
void wake_asleep(Target& target, const settings& chosen, std::uint32_t round, const char* name) {
    const thread_watch watch(target.number());
    std::vector<std::uint64_t> samples;
    std::uint64_t slept = watch.wait_settled();
    for (std::uint32_t at = 0; at < warm_up + chosen.samples; ++at) {
        slept = watch.wait_undisturbed(slept);
        const std::uint64_t when = soon();
        spin_until(when);
        const std::uint64_t arrived = target.fire();
        if (at >= warm_up) {
            samples.push_back(arrived - when);
        }
        slept = watch.wait_asleep_again(slept);
    }
    say_latency(round, name, samples);
}

/// Bursts: a post that wakes the worker and is not counted, and more while it spins.
template <class Target>
void wake_spinning(Target& target, const settings& chosen, std::uint32_t round,
                   const char* name) {
    constexpr std::uint32_t burst = 8;
    const thread_watch watch(target.number());
    std::vector<std::uint64_t> samples;
    std::uint32_t bursts = 0;
    std::uint32_t bursts_with_sleep = 0;
    std::uint64_t slept = watch.wait_settled();
    while (samples.size() < chosen.samples) {
        target.fire();
        for (std::uint32_t at = 0; at < burst; ++at) {
            const std::uint64_t when = soon();
            spin_until(when);
            samples.push_back(target.fire() - when);
        }
        bursts_with_sleep += watch.sleeps() == slept ? 0 : 1;
        ++bursts;
        slept = watch.wait_asleep_again(slept);
    }
    say_latency(round, name, samples);
    say(round, name, "bursts in which it slept",
        static_cast<double>(bursts_with_sleep) / bursts);
}

void measure_wake(const settings& chosen) {
    std::vector<variant> variants;
    variants.push_back({"bare spin", [&](const char* name, std::uint32_t round) {
        bare_spin target;
        std::vector<std::uint64_t> samples;
        for (std::uint32_t at = 0; at < warm_up + chosen.samples; ++at) {
            const std::uint64_t when = soon();
            spin_until(when);
            const std::uint64_t took = target.fire() - when;
            if (at >= warm_up) {
                samples.push_back(took);
            }
        }
        say_latency(round, name, samples);
    }});
    variants.push_back({"bare eventfd", [&](const char* name, std::uint32_t round) {
        bare_wake target;
        wake_asleep(target, chosen, round, name);
    }});
    each_backend([&]<class Backend>(const std::string& backend, Backend*) {
        variants.push_back({backend, [&](const char* name, std::uint32_t round) {
            netio_wake<Backend> target({});
            wake_asleep(target, chosen, round, name);
        }});
        variants.push_back({backend + ", spins 50 us, asleep",
                            [&](const char* name, std::uint32_t round) {
            netio_wake<Backend> target(spins_50);
            wake_asleep(target, chosen, round, name);
        }});
        variants.push_back({backend + ", spins 50 us", [&](const char* name, std::uint32_t round) {
            netio_wake<Backend> target(spins_50);
            wake_spinning(target, chosen, round, name);
        }});
    });
    run_rounds(chosen, variants);
}

// ---- kill

/// A pair of connected sockets of which the served end resets when it is closed.
class bare_pair {
public:
    int connect() {
        const int peer = connect_to(listener_.port);
        served_ = listener_.accept();
        const linger at_once{1, 0};
        must(::setsockopt(served_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), "SO_LINGER");
        return peer;
    }
    int served_end() const { return served_; }

private:
    bare_listener listener_;
    int served_ = -1;
};

/// The thread that watches the peer closes the other end itself: nobody is woken.
struct bare_close {
    bare_pair pair;

    int connect() { return pair.connect(); }
    void fire() { ::close(pair.served_end()); }
};

/// A sleeping thread is woken to do that.
struct bare_close_and_wake {
    static constexpr bool connecting_wakes = false;
    bare_thread thread;
    bare_pair pair;

    int number() const { return thread.number(); }
    int connect() { return pair.connect(); }
    void fire() { thread.wake_to_close(pair.served_end()); }
};

template <class Backend>
struct netio_kill {
    static constexpr bool connecting_wakes = true;
    served<Backend> service;
    netio::connection_id name{};

    explicit netio_kill(netio::wait_options waiting) : service(64, waiting) {}
    int number() const { return service.number(); }
    int connect() { return service.connect(name); }
    void fire() {
        if (!service.server().kill(name, 1)) {
            die("a kill was refused");
        }
    }
};

/// Fires at the time it is meant to; gives how long from then the peer took to see the end. Looked
/// for with poll, which takes no lock of the socket.
template <class Target>
std::uint64_t time_of_reset(Target& target, int peer) {
    pollfd watched{peer, 0, 0};
    const std::uint64_t when = soon();
    spin_until(when);
    target.fire();
    spin_for([&] { return ::poll(&watched, 1, 0) == 1; }, "a reset did not come");
    const std::uint64_t seen = now_ns();
    char byte;
    const ssize_t count = ::recv(peer, &byte, 1, MSG_DONTWAIT);
    if ((watched.revents & (POLLHUP | POLLERR)) == 0 || count != -1 || errno != ECONNRESET) {
        die("the end was no reset");
    }
    ::close(peer);
    return seen - when;
}

template <class Target>
void kill_asleep(Target& target, const settings& chosen, std::uint32_t round, const char* name) {
    const thread_watch watch(target.number());
    std::vector<std::uint64_t> samples;
    std::uint64_t slept = watch.wait_settled();
    for (std::uint32_t at = 0; at < warm_up + chosen.samples; ++at) {
        const int peer = target.connect();
        if constexpr (Target::connecting_wakes) {
            slept = watch.wait_asleep_again(slept);
        }
        slept = watch.wait_undisturbed(slept);
        const std::uint64_t took = time_of_reset(target, peer);
        if (at >= warm_up) {
            samples.push_back(took);
        }
        slept = watch.wait_asleep_again(slept);
    }
    say_latency(round, name, samples);
}

/// The worker spins since the connection came. Whether it slept in between is counted.
template <class Target>
void kill_awake(Target& target, const settings& chosen, std::uint32_t round, const char* name) {
    const thread_watch watch(target.number());
    std::vector<std::uint64_t> samples;
    std::uint32_t slept_count = 0;
    for (std::uint32_t at = 0; at < warm_up + chosen.samples; ++at) {
        const int peer = target.connect();
        const std::uint64_t slept = watch.sleeps();
        const bool asleep = watch.asleep();
        const std::uint64_t took = time_of_reset(target, peer);
        if (at >= warm_up) {
            samples.push_back(took);
            slept_count += asleep || watch.sleeps() != slept ? 1 : 0;
        }
    }
    say_latency(round, name, samples);
    say(round, name, "samples in which it slept",
        static_cast<double>(slept_count) / chosen.samples);
}

void measure_kill(const settings& chosen) {
    std::vector<variant> variants;
    variants.push_back({"bare close", [&](const char* name, std::uint32_t round) {
        bare_close target;
        std::vector<std::uint64_t> samples;
        for (std::uint32_t at = 0; at < warm_up + chosen.samples; ++at) {
            const std::uint64_t took = time_of_reset(target, target.connect());
            if (at >= warm_up) {
                samples.push_back(took);
            }
        }
        say_latency(round, name, samples);
    }});
    variants.push_back({"close + wake", [&](const char* name, std::uint32_t round) {
        bare_close_and_wake target;
        kill_asleep(target, chosen, round, name);
    }});
    each_backend([&]<class Backend>(const std::string& backend, Backend*) {
        variants.push_back({backend + ", asleep", [&](const char* name, std::uint32_t round) {
            netio_kill<Backend> target({});
            kill_asleep(target, chosen, round, name);
        }});
        variants.push_back({backend + ", awake", [&](const char* name, std::uint32_t round) {
            netio_kill<Backend> target({.batch_us = 0, .spin_us = 5000});
            kill_awake(target, chosen, round, name);
        }});
    });
    run_rounds(chosen, variants);
}

// ---- drain

/// The clients of a drain, in a process of their own: it has descriptors enough, and the drained
/// side's clock counts nothing of theirs. Each closes when the other end has.
class peers_process {
public:
    /// Before any thread is started.
    peers_process() {
        int ends[2];
        must(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
        const pid_t parent = ::getpid();
        child_ = must(::fork(), "fork");
        if (child_ == 0) {
            ::close(ends[0]);
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() != parent) {
                std::_Exit(1);
            }
            ::alarm(most_seconds);  // a child inherits none
            serve(ends[1]);
            std::_Exit(0);
        }
        ::close(ends[1]);
        control_ = ends[0];
    }
    ~peers_process() {
        ::close(control_);  // its end of stream ends the child
        ::waitpid(child_, nullptr, 0);
    }
    peers_process(const peers_process&) = delete;
    peers_process& operator=(const peers_process&) = delete;

    void connect(std::uint16_t port, std::uint32_t count) {
        const order wanted{count, port};
        must(static_cast<int>(::write(control_, &wanted, sizeof(wanted))), "write to the peers");
    }
    /// Twice: all are connected; all are closed.
    void wait() {
        char said = 0;
        if (::read(control_, &said, 1) != 1) {
            die("the peers' process has ended");
        }
    }

private:
    struct order {
        std::uint32_t count;
        std::uint16_t port;
    };

    static void serve(int control) {
        pin(last_cpu);
        order wanted{};
        while (::read(control, &wanted, sizeof(wanted)) == sizeof(wanted)) {
            const int all = must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
            for (std::uint32_t at = 0; at < wanted.count; ++at) {
                epoll_event each{};
                each.events = EPOLLRDHUP;
                each.data.fd = connect_to(wanted.port);
                must(epoll_ctl(all, EPOLL_CTL_ADD, each.data.fd, &each), "epoll_ctl");
            }
            must(static_cast<int>(::write(control, "r", 1)), "write");
            for (std::uint32_t left = wanted.count; left != 0;) {
                epoll_event got[128];
                const int count = must(epoll_wait(all, got, 128, -1), "epoll_wait");
                for (int at = 0; at < count; ++at) {
                    ::close(got[at].data.fd);
                }
                left -= static_cast<std::uint32_t>(count);
            }
            ::close(all);
            must(static_cast<int>(::write(control, "d", 1)), "write");
        }
    }

    pid_t child_ = -1;
    int control_ = -1;
};

std::uint64_t cpu_of(std::thread& thread) {
    clockid_t clock{};
    if (pthread_getcpuclockid(thread.native_handle(), &clock) != 0) {
        die("pthread_getcpuclockid");
    }
    return clock_ns(clock);
}

/// What an orderly end of so many connections needs: a FIN each, then, as the peers' come, close.
class bare_drain {
public:
    explicit bare_drain(std::uint32_t count) : count_(count) {
        watch(event_, EPOLLIN);
        thread_ = std::thread([this] { run(); });
        spin_for([this] { return number_.load() != 0; }, "a thread did not start");
    }
    ~bare_drain() {
        ::close(event_);
        ::close(epoll_);
    }
    bare_drain(const bare_drain&) = delete;
    bare_drain& operator=(const bare_drain&) = delete;

    int number() const { return number_.load(); }
    std::uint16_t port() const { return listener_.port; }
    std::thread& thread() { return thread_; }
    bool all_open() const { return all_open_.load(); }
    void fire() {
        const std::uint64_t one = 1;
        must(static_cast<int>(::write(event_, &one, sizeof(one))), "write to an eventfd");
    }
    void join() { thread_.join(); }
    void check() const {}
    std::uint64_t over_at() const { return over_at_; }
    std::uint64_t over_cpu() const { return over_cpu_; }

private:
    void watch(int descriptor, std::uint32_t events) {
        epoll_event wanted{};
        wanted.events = events | EPOLLET;
        wanted.data.fd = descriptor;
        must(epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &wanted), "epoll_ctl");
    }
    void run() {
        pin(first_cpu);
        number_.store(thread_number());
        std::vector<int> open;
        while (open.size() < count_) {
            open.push_back(listener_.accept());
            watch(open.back(), EPOLLIN | EPOLLRDHUP);
        }
        all_open_.store(true);
        epoll_event got[128];
        must(epoll_wait(epoll_, got, 128, -1), "epoll_wait");
        if (got[0].data.fd != event_) {
            die("an idle connection has news");
        }
        for (const int each : open) {
            must(::shutdown(each, SHUT_WR), "shutdown");
        }
        for (std::size_t left = open.size(); left != 0;) {
            const int count = must(epoll_wait(epoll_, got, 128, -1), "epoll_wait");
            for (int at = 0; at < count; ++at) {
                if ((got[at].events & EPOLLHUP) != 0) {  // both directions are shut
                    ::close(got[at].data.fd);
                    --left;
                }
            }
        }
        over_at_ = now_ns();
        over_cpu_ = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    }

    const std::uint32_t count_;
    const int event_ = must(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    const int epoll_ = must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    bare_listener listener_;
    std::atomic<int> number_{0};
    std::atomic<bool> all_open_{false};
    std::uint64_t over_at_ = 0;
    std::uint64_t over_cpu_ = 0;
    std::thread thread_;
};

template <class Backend>
class netio_drain {
public:
    explicit netio_drain(std::uint32_t count) : count_(count), service_(count, {}) {}

    int number() const { return service_.number(); }
    std::uint16_t port() { return service_.port(); }
    std::thread& thread() { return service_.thread(); }
    bool all_open() const { return service_.handler.opened.load() == count_; }
    void fire() { service_.server().drain(60'000); }
    void join() { service_.join(); }
    void check() {
        const netio::drain_report how = service_.server().drained();
        if (how.open_at_begin != count_ || how.idle != count_ || how.cut != 0) {
            die("a drain did not end all idle connections in order");
        }
    }
    std::uint64_t over_at() const { return service_.over_at(); }
    std::uint64_t over_cpu() const { return service_.over_cpu(); }

private:
    std::uint32_t count_;
    served<Backend> service_;
};

template <class Target>
void drain_once(peers_process& peers, std::uint32_t count, std::uint32_t round,
                const char* name) {
    Target target(count);
    peers.connect(target.port(), count);
    peers.wait();
    spin_for([&] { return target.all_open(); }, "not all connections were opened");
    thread_watch(target.number()).wait_settled();
    const std::uint64_t cpu = cpu_of(target.thread());
    const std::uint64_t begun = now_ns();
    target.fire();
    target.join();
    say(round, name, "time", static_cast<double>(target.over_at() - begun));
    say(round, name, "CPU", static_cast<double>(target.over_cpu() - cpu));
    peers.wait();
    target.check();
}

void measure_drain(const settings& chosen) {
    rlimit most{};
    must(::getrlimit(RLIMIT_NOFILE, &most), "getrlimit");
    most.rlim_cur = most.rlim_max;
    must(::setrlimit(RLIMIT_NOFILE, &most), "setrlimit");
    peers_process peers;
    std::vector<variant> variants;
    for (const std::uint32_t count : {1'000u, 5'000u, 10'000u}) {
        if (count + 100 > most.rlim_max) {
            std::fprintf(stderr, "lifecycle: no %u connections: a process may have %llu "
                         "descriptors\n", count, static_cast<unsigned long long>(most.rlim_max));
            continue;
        }
        const std::string behind = " x " + std::to_string(count);
        variants.push_back({"bare loop" + behind,
                            [&peers, count](const char* name, std::uint32_t round) {
            drain_once<bare_drain>(peers, count, round, name);
        }});
        each_backend([&]<class Backend>(const std::string& backend, Backend*) {
            variants.push_back({backend + behind,
                                [&peers, count](const char* name, std::uint32_t round) {
                drain_once<netio_drain<Backend>>(peers, count, round, name);
            }});
        });
    }
    run_rounds(chosen, variants);
}

// ---- flood

/// A connection that sends 64 bytes at the times it is meant to and waits for each answer. Its
/// latency counts from those times, also where the answer before came late.
class quiet_client {
public:
    quiet_client(int descriptor, std::uint32_t wanted)
        : descriptor_(descriptor), wanted_(wanted) {
        plan();
    }
    bool done() const { return samples.size() == wanted_; }
    void step() {
        if (!waits_ && now_ns() >= due_) {
            std::memset(sent_, 'q', sizeof(sent_));
            std::memcpy(sent_ + 8, &due_, sizeof(due_));
            if (::send(descriptor_, sent_, sizeof(sent_), MSG_NOSIGNAL) != sizeof(sent_)) {
                die("send of the quiet connection");
            }
            waits_ = true;
        }
        if (waits_) {
            take();
        }
    }

    std::vector<std::uint64_t> samples;

private:
    static constexpr std::uint64_t every_ns = 500 * us;

    void plan() {
        slot_ += every_ns;
        due_ = slot_ + random_below(every_ns / 2);
    }
    void take() {
        const ssize_t count = ::recv(descriptor_, got_ + have_, sizeof(got_) - have_, MSG_DONTWAIT);
        if (count == 0 || (count < 0 && errno != EAGAIN)) {
            die("recv of the quiet connection");
        }
        have_ += count < 0 ? 0 : static_cast<std::size_t>(count);
        const std::uint64_t now = now_ns();
        if (have_ == sizeof(got_)) {
            if (std::memcmp(got_, sent_, sizeof(got_)) != 0) {
                die("an answer was not what was sent");
            }
            samples.push_back(now - due_);
            have_ = 0;
            waits_ = false;
            plan();
        } else if (now > due_ + give_up_ns) {
            die("an answer did not come");
        }
    }

    int descriptor_;
    std::uint32_t wanted_;
    std::uint64_t slot_ = now_ns();
    std::uint64_t due_ = 0;
    bool waits_ = false;
    std::size_t have_ = 0;
    char sent_[64];
    char got_[64];
};

/// Both clients are one thread, which never sleeps: so the flood takes no CPU from the quiet one
/// but the time of a send of 4 KiB.
template <class Backend>
void quiet_beside(bool floods, const settings& chosen, std::uint32_t round, const char* name) {
    static const std::vector<char> chunk(4096, 'f');
    served<Backend> service(16, {});
    netio::connection_id ignored;
    const int quiet = service.connect(ignored);
    const int flood = service.connect(ignored);
    quiet_client client(quiet, chosen.samples);
    std::uint64_t refused = 0;
    const std::uint64_t begun = now_ns();
    while (!client.done()) {
        if (floods && ::send(flood, chunk.data(), chunk.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
            if (errno != EAGAIN) {
                die("send of the flood");
            }
            ++refused;
        }
        client.step();
    }
    const std::uint64_t took = now_ns() - begun;
    say_latency(round, name, client.samples);
    if (floods) {
        const double swallowed = static_cast<double>(service.handler.swallowed.load());
        say(round, name, "flood", swallowed * 1e3 / static_cast<double>(took));
        say(round, name, "sends that met a full socket", static_cast<double>(refused));
    }
    ::close(quiet);
    ::close(flood);
}

void measure_flood(const settings& chosen) {
    std::vector<variant> variants;
    each_backend([&]<class Backend>(const std::string& backend, Backend*) {
        for (const bool floods : {false, true}) {
            variants.push_back({backend + (floods ? ", beside a flood" : ", alone"),
                                [&chosen, floods](const char* name, std::uint32_t round) {
                quiet_beside<Backend>(floods, chosen, round, name);
            }});
        }
    });
    run_rounds(chosen, variants);
}

// ---- pool

struct pool_echo {
    void on_connection(netio::stream& peer) noexcept {
        std::byte some[4096];
        for (;;) {
            const netio::transfer got = peer.recv(some);
            if (!got || !peer.send_all(netio::bytes(some, got.count))) {
                return;
            }
        }
    }
};

/// One thread of a pool, on the first CPU.
class netio_pool {
public:
    netio_pool() {
        if (pool_.listen({.address = "127.0.0.1"}) != netio::error::none) {
            netio::report("lifecycle", pool_);
            std::exit(1);
        }
        thread_ = std::thread([this] {
            pin(first_cpu);
            number_.store(thread_number());
            pool_.run();
        });
        spin_for([this] { return number_.load() != 0; }, "a thread did not start");
    }
    ~netio_pool() {
        pool_.stop();
        thread_.join();
    }
    netio_pool(const netio_pool&) = delete;
    netio_pool& operator=(const netio_pool&) = delete;
    int number() const { return number_.load(); }
    std::uint16_t port() { return pool_.local(netio::listener_id{}).port; }

private:
    static constexpr netio::limits sizes{.connections_max = 1, .workers_max = 1};
    mapped_memory memory_{netio::bytes_needed<netio::default_blocking_backend>(sizes)};
    pool_echo handler_;
    netio::blocking_pool<pool_echo> pool_{netio::storage_view{memory_.all(), sizes}, handler_};
    std::atomic<int> number_{0};
    std::thread thread_;
};

/// A thread that receives and sends, and does nothing else.
class bare_calls {
public:
    bare_calls() {
        thread_ = std::thread([this] { run(); });
        spin_for([this] { return number_.load() != 0; }, "a thread did not start");
    }
    ~bare_calls() { thread_.join(); }  // the client has closed
    bare_calls(const bare_calls&) = delete;
    bare_calls& operator=(const bare_calls&) = delete;
    int number() const { return number_.load(); }
    std::uint16_t port() const { return listener_.port; }

private:
    void run() {
        pin(first_cpu);
        number_.store(thread_number());
        const int served = must(::accept4(listener_.descriptor, nullptr, nullptr, SOCK_CLOEXEC),
                                "accept");
        const int yes = 1;
        must(::setsockopt(served, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), "TCP_NODELAY");
        char some[4096];
        for (ssize_t count; (count = ::recv(served, some, sizeof(some), 0)) > 0;) {
            if (::send(served, some, static_cast<std::size_t>(count), MSG_NOSIGNAL) != count) {
                die("send of the bare echo");
            }
        }
        ::close(served);
    }

    bare_listener listener_;
    std::atomic<int> number_{0};
    std::thread thread_;
};

/// From when 64 bytes were meant to be sent until they are back.
std::uint64_t time_of_echo(int peer, std::uint64_t number) {
    char sent[64] = {};
    char got[64];
    std::size_t have = 0;
    std::memcpy(sent, &number, sizeof(number));
    const std::uint64_t when = soon();
    spin_until(when);
    if (::send(peer, sent, sizeof(sent), MSG_NOSIGNAL) != sizeof(sent)) {
        die("send to the echo");
    }
    spin_for([&] {
        const ssize_t count = ::recv(peer, got + have, sizeof(got) - have, MSG_DONTWAIT);
        if (count == 0 || (count < 0 && errno != EAGAIN)) {
            die("recv of the echo");
        }
        have += count < 0 ? 0 : static_cast<std::size_t>(count);
        return have == sizeof(got);
    }, "an echo did not come");
    const std::uint64_t back = now_ns();
    if (std::memcmp(sent, got, sizeof(got)) != 0) {
        die("an echo was not what was sent");
    }
    return back - when;
}

template <class Target>
void echo_asleep(const settings& chosen, std::uint32_t round, const char* name) {
    Target target;
    const int peer = connect_to(target.port());
    const thread_watch watch(target.number());
    std::vector<std::uint64_t> samples;
    std::uint64_t slept = watch.wait_settled();
    for (std::uint32_t at = 0; at < warm_up + chosen.samples; ++at) {
        slept = watch.wait_undisturbed(slept);
        const std::uint64_t took = time_of_echo(peer, at);
        if (at >= warm_up) {
            samples.push_back(took);
        }
        slept = watch.wait_asleep_again(slept);
    }
    ::close(peer);
    say_latency(round, name, samples);
}

void measure_pool(const settings& chosen) {
    run_rounds(chosen, {{"bare recv and send", [&](const char* name, std::uint32_t round) {
                             echo_asleep<bare_calls>(chosen, round, name);
                         }},
                        {"netio blocking", [&](const char* name, std::uint32_t round) {
                             echo_asleep<netio_pool>(chosen, round, name);
                         }}});
}

[[noreturn]] void usage() {
    std::fputs("lifecycle wake|kill|drain|flood|pool [--rounds N] [--samples N]\n", stderr);
    std::exit(2);
}

std::uint32_t number(const char* text) {
    char* end = nullptr;
    const unsigned long value = std::strtoul(text, &end, 10);
    if (end == text || *end != '\0' || value == 0 || value > 1'000'000) {
        usage();
    }
    return static_cast<std::uint32_t>(value);
}

}  // namespace

int main(int count, char** words) {
    if (count < 2 || count % 2 != 0) {
        usage();
    }
    settings chosen;
    for (int at = 2; at < count; at += 2) {
        const std::string_view flag = words[at];
        if (flag != "--rounds" && flag != "--samples") {
            usage();
        }
        (flag == "--rounds" ? chosen.rounds : chosen.samples) = number(words[at + 1]);
    }
    ::alarm(most_seconds);
    find_cpus();
    pin(last_cpu);
    const std::string_view what = words[1];
    void (*measure)(const settings&) = what == "wake"    ? measure_wake
                                       : what == "kill"  ? measure_kill
                                       : what == "drain" ? measure_drain
                                       : what == "flood" ? measure_flood
                                       : what == "pool"  ? measure_pool
                                                         : nullptr;
    if (measure == nullptr) {
        usage();
    }
    measure(chosen);
    return 0;
}
