// c++ -std=c++20 -O2 -I. -pthread bench/echo_server.cpp -o echo_server
//
// The echo service that benchmarks measure, with what can be switched on the command line:
//   --port P (0: any)  --workers N  --backend auto|epoll|io_uring|poll|blocking_pool
//   --mode copy|move|stream (stream: the blocking form, of blocking_pool)  --proxy off|required
//   --connections N  --no-wipe  --deadlines off
//   --listeners shared|each (worker)  --events N (in one turn)
//   --wait batch|latency|spin  --batch-us N  --spin-us N
// blocking_pool has one connection a worker, whatever --connections says: others wait.
// Prints `listening PORT` and serves until SIGTERM.
#include "netio.hpp"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <thread>

namespace {

struct settings;
template <class Backend>
int serve(const settings& chosen);
int serve_by_pool(const settings& chosen);

struct settings {
    int (*serve_over)(const settings&) = &serve<netio::default_backend>;
    netio::limits sizes{.connections_max = 10'000};
    netio::listen_options listen{.address = "127.0.0.1"};
    netio::wait_options waiting{};
    bool move = false;
    bool stream = false;
    bool wipe = true;
    bool listener_each = false;
};

struct echo {
    bool move;
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return move ? peer.move_input_to(peer) : peer.write(in);
    }
};

struct stream_echo {
    void on_connection(netio::stream& peer) noexcept {
        std::byte into[16 * 1024];
        while (const netio::transfer got = peer.recv(into)) {
            if (!peer.send_all(netio::bytes(into, got.count))) {
                return;
            }
        }
    }
};

[[noreturn]] void refuse(const char* what, const char* which) {
    std::fprintf(stderr, "echo_server: %s: %s\n", what, which);
    std::exit(2);
}

std::uint32_t number(const char* flag, const char* text) {
    char* end = nullptr;
    const unsigned long value = std::strtoul(text, &end, 10);
    if (end == text || *end != '\0' || value > 0xFFFFFFul) {
        refuse("not a number", flag);
    }
    return static_cast<std::uint32_t>(value);
}

/// "auto" takes the first of the list that this kernel offers.
template <class... Backends>
auto serve_over_one_of(const char* wanted) {
    int (*chosen)(const settings&) = nullptr;
    const netio::backend_choice choice = netio::choose_backend<Backends...>(wanted);
    if (!choice) {
        refuse(*choice.missing != '\0' ? choice.missing : "no such backend here", wanted);
    }
    if (*choice.missing != '\0') {
        std::fprintf(stderr, "echo_server: on %s, for there is no %s: %s\n", choice.name,
                     choice.refused, choice.missing);
    }
    netio::on_backend<Backends...>(choice, [&]<class Backend>(Backend*) {
        chosen = &serve<Backend>;
    });
    return chosen;
}

auto serve_over(const char* wanted) {
    if (std::strcmp(wanted, "blocking_pool") == 0) {
        return &serve_by_pool;
    }
#if NETIO_HAS_IO_URING
    return serve_over_one_of<netio::io_uring, netio::epoll, netio::poll>(wanted);
#elif NETIO_HAS_EPOLL
    return serve_over_one_of<netio::epoll, netio::poll>(wanted);
#else
    return serve_over_one_of<netio::poll>(wanted);
#endif
}

void take(settings& chosen, const char* flag, const char* value) {
    const auto is = [flag](const char* name) { return std::strcmp(flag, name) == 0; };
    const auto says = [value](const char* word) { return std::strcmp(value, word) == 0; };
    if (is("--port")) {
        chosen.listen.port = static_cast<std::uint16_t>(number(flag, value));
    } else if (is("--workers")) {
        chosen.sizes.workers_max = number(flag, value);
    } else if (is("--connections")) {
        chosen.sizes.connections_max = number(flag, value);
    } else if (is("--events")) {
        chosen.sizes.events_per_turn = number(flag, value);
    } else if (is("--batch-us")) {
        chosen.waiting.batch_us = number(flag, value);
    } else if (is("--spin-us")) {
        chosen.waiting.spin_us = number(flag, value);
    } else if (is("--wait") && says("batch")) {
        chosen.waiting = {};
    } else if (is("--wait") && says("latency")) {
        chosen.waiting = {.batch_us = 0};
    } else if (is("--wait") && says("spin")) {
        chosen.waiting = {.batch_us = 0, .spin_us = 50};
    } else if (is("--backend")) {
        chosen.serve_over = serve_over(value);
    } else if (is("--mode") && (says("copy") || says("move") || says("stream"))) {
        chosen.move = says("move");
        chosen.stream = says("stream");
    } else if (is("--listeners") && (says("shared") || says("each"))) {
        chosen.listener_each = says("each");
    } else if (is("--proxy") && (says("off") || says("required"))) {
        chosen.listen.proxy =
            says("off") ? netio::proxy_mode::off : netio::proxy_mode::required;
    } else if (is("--deadlines") && says("off")) {
        chosen.listen.times = {0, 0, 0, 0, 0, 0, 2000, 0};
    } else {
        refuse("unknown option or value", flag);
    }
}

settings parse(int count, char** words) {
    settings chosen;
    for (int at = 1; at < count; ++at) {
        if (std::strcmp(words[at], "--no-wipe") == 0) {
            chosen.wipe = false;
        } else if (at + 1 < count) {
            take(chosen, words[at], words[at + 1]);
            ++at;
        } else {
            refuse("missing value", words[at]);
        }
    }
    if (chosen.stream && chosen.serve_over != &serve_by_pool) {
        refuse("only with --backend blocking_pool", "--mode stream");
    }
    return chosen;
}

/// One listener for all workers, or as many as workers on one port.
template <class Server>
netio::error listen(Server& server, const settings& chosen) {
    netio::listen_options wanted = chosen.listen;
    if (!chosen.listener_each) {
        return server.listen(wanted);
    }
    wanted.reuse_port = true;
    for (wanted.worker = 0; wanted.worker < chosen.sizes.workers_max; ++wanted.worker) {
        if (const netio::error failed = server.listen(wanted); failed != netio::error::none) {
            return failed;
        }
        wanted.port = server.local(netio::listener_id{}).port;
    }
    return netio::error::none;
}

template <class Backend, class echo_server, class Handler>
int serve_with(const settings& chosen, Handler& handler) {
    static echo_server* running = nullptr;
    const std::size_t needed = netio::bytes_needed<Backend>(chosen.sizes);
    void* memory = ::mmap(nullptr, needed, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        refuse("no memory", "mmap");
    }
    echo_server server{{{static_cast<std::byte*>(memory), needed}, chosen.sizes}, handler};
    if (listen(server, chosen) != netio::error::none) {
        return netio::report("echo_server", server);
    }
    server.wipe_released(chosen.wipe);
    server.waiting(chosen.waiting);
    running = &server;
    std::signal(SIGTERM, [](int) { running->stop(); });
    std::printf("listening %u\n", server.local(netio::listener_id{}).port);
    std::fflush(stdout);
    std::thread others[255];
    for (std::uint32_t at = 1; at < chosen.sizes.workers_max; ++at) {
        others[at] = std::thread([&server, at] { server.run(at); });
    }
    server.run(0);
    for (std::uint32_t at = 1; at < chosen.sizes.workers_max; ++at) {
        others[at].join();
    }
    return netio::report("echo_server", server);
}

template <class Backend>
int serve(const settings& chosen) {
    echo handler{chosen.move};
    return serve_with<Backend, netio::server<echo, Backend>>(chosen, handler);
}

int serve_by_pool(const settings& chosen) {
    using backend = netio::default_blocking_backend;
    settings one_each = chosen;
    one_each.sizes.connections_max = chosen.sizes.workers_max;
    if (chosen.stream) {
        stream_echo handler;
        return serve_with<backend, netio::blocking_pool<stream_echo>>(one_each, handler);
    }
    echo handler{chosen.move};
    return serve_with<backend, netio::blocking_pool<echo>>(one_each, handler);
}

}  // namespace

int main(int count, char** words) {
    const settings chosen = parse(count, words);
    return chosen.serve_over(chosen);
}
