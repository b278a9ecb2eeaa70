// c++ -std=c++20 -O2 -I. examples/own_loop.cpp -o own_loop
//
// An echo service inside somebody else's event loop:
//
//     own_loop [--listen 0.0.0.0:7000] [--tick-ms N] [--memory BYTES] [--drain-ms N]
//
// The program's own epoll waits for a timerfd of its own and for netio's handle, for as long as
// `wait_ms` says, and calls `run_once` when either tells so. Each tick prints how often netio woke
// the loop since the last one: 0 while nothing happens. SIGTERM drains, SIGINT stops.
#include "netio.hpp"

#include "examples/options.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

namespace {

struct echo {
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return peer.write(in);
    }
};

/// The foreign loop: it knows netio only as a handle to wait for.
class own_loop {
public:
    explicit own_loop(netio::server<echo>& server) noexcept : server_(server) {}
    own_loop(const own_loop&) = delete;
    own_loop& operator=(const own_loop&) = delete;
    ~own_loop() {
        ::close(timer_);
        ::close(epoll_);
    }

    bool open(std::uint32_t tick_ms) noexcept {
        const netio::socket_handle handle = server_.wait_handle();
        epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
        timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        itimerspec every = {};
        every.it_interval = {tick_ms / 1000, static_cast<long>(tick_ms % 1000) * 1'000'000};
        every.it_value = every.it_interval;
        return handle != netio::no_handle && watch(static_cast<int>(handle)) && watch(timer_) &&
               ::timerfd_settime(timer_, 0, &every, nullptr) == 0;
    }

    void run() noexcept {
        // The first turn starts what was listened for; after that only the handle or time says so.
        bool more = server_.run_once();
        while (more) {
            epoll_event ready[2];
            const std::int64_t sleep_ms = server_.wait_ms();
            const int count = ::epoll_wait(epoll_, ready, 2, static_cast<int>(sleep_ms));
            bool tick = false;
            for (int at = 0; at < count; ++at) {
                tick = tick || ready[at].data.fd == timer_;
            }
            // Not the tick alone: readable, due, or a signal that asked for an end.
            if (!tick || count > 1) {
                ++wake_count_;
                more = server_.run_once();
            }
            if (tick) {
                on_tick();
            }
        }
    }

private:
    bool watch(int what) noexcept {
        epoll_event wanted = {};
        wanted.events = EPOLLIN;
        wanted.data.fd = what;
        return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, what, &wanted) == 0;
    }

    void on_tick() noexcept {
        std::uint64_t passed = 0;
        if (::read(timer_, &passed, sizeof(passed)) == sizeof(passed)) {
            std::printf("wake-ups %llu\n", static_cast<unsigned long long>(wake_count_));
            std::fflush(stdout);
            wake_count_ = 0;
        }
    }

    netio::server<echo>& server_;
    int epoll_ = -1;
    int timer_ = -1;
    std::uint64_t wake_count_ = 0;
};

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::any_ipv4(7000);
    std::uint32_t tick_ms = 1000;
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--tick-ms", .number = &tick_ms, .least = 1, .most = 3'600'000},
        {.flag = "--memory", .number = &memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("own_loop", count, words, settings)) {
        return 2;
    }
    echo handler;
    netio::server server{example::memory_for({}, memory_bytes), handler};
    char address[netio::endpoint_text_max];
    netio::listen_options where;
    where.address = netio::format_address(at, address);
    where.port = at.port;
    if (server.listen(where) == netio::error::none) {
        own_loop loop{server};
        if (!loop.open(tick_ms)) {
            std::perror("own_loop: epoll or timerfd");
            return 1;
        }
        example::signals<netio::server<echo>>::watch(server, drain_ms);
        example::announce("own_loop", server, server.local());
        loop.run();
    }
    return netio::report("own_loop", server);
}
