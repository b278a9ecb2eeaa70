// c++ -std=c++20 -O2 -I. -pthread tests/soak/soak.cpp -o soak
//
// Real loopback connections with random FIN, RST and stalls against an echo server of several
// workers: soak CONNECTIONS WORKERS CLIENTS SEED. Prints a line `ok name` or `not ok name: why` for
// each thing that must hold at the end.
#include "netio.hpp"

#include <arpa/inet.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace {

struct service {
    std::atomic<std::uint64_t> accepted{0};
    std::atomic<std::uint64_t> opened{0};
    std::atomic<std::uint64_t> closed{0};
    std::atomic<std::uint64_t> posts{0};

    void on_open(netio::connection&) noexcept { opened.fetch_add(1); }
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        switch (static_cast<unsigned>(in[0]) % 4) {
        case 0:
            return c.move_input_to(c);
        case 1:
            c.post(1);
            return c.write(in);
        default:
            return c.write(in);
        }
    }
    void on_post(netio::connection&, std::uint64_t) noexcept { posts.fetch_add(1); }
    void on_close(netio::connection&, netio::close_reason) noexcept { closed.fetch_add(1); }
    void on_event(const netio::server_event& e) noexcept {
        accepted.fetch_add(e.kind == netio::server_event_kind::accepted ? 1 : 0);
    }
};

using server_type = netio::server<service, netio::default_backend, netio::allow_all, service>;

std::uint64_t next(std::uint64_t& state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int open_descriptors() {
    DIR* folder = ::opendir("/proc/self/fd");
    int count = 0;
    while (::readdir(folder) != nullptr) {
        ++count;
    }
    ::closedir(folder);
    return count;
}

struct client_run {
    std::uint16_t port;
    std::uint64_t seed;
    std::uint64_t connections;
    std::uint64_t wrong = 0;    // bytes that came back otherwise than sent
    std::uint64_t refused = 0;  // the server was full, or killed it
};

/// Sends `count` numbered bytes and takes back what comes, never more unread than fits; false when
/// something came back wrong.
bool talk(int socket, std::size_t count, std::uint64_t& random) {
    std::size_t sent = 0;
    std::size_t got = 0;
    unsigned char out[4096];
    unsigned char in[4096];
    while (got < count) {
        pollfd ready{socket, static_cast<short>(POLLIN | (sent < count ? POLLOUT : 0)), 0};
        if (::poll(&ready, 1, 20'000) <= 0) {
            return false;
        }
        if ((ready.revents & POLLOUT) != 0) {
            const std::size_t most = 1 + next(random) % sizeof(out);
            const std::size_t piece = most < count - sent ? most : count - sent;
            for (std::size_t at = 0; at < piece; ++at) {
                out[at] = static_cast<unsigned char>((sent + at) * 31);
            }
            const ssize_t done = ::send(socket, out, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += done > 0 ? static_cast<std::size_t>(done) : 0;
        }
        const ssize_t more = ::recv(socket, in, sizeof(in), MSG_DONTWAIT);
        if (more == 0 || (more < 0 && errno != EAGAIN)) {
            return false;
        }
        for (ssize_t at = 0; at < more; ++at) {
            if (in[at] != static_cast<unsigned char>((got + static_cast<std::size_t>(at)) * 31)) {
                return false;
            }
        }
        got += more > 0 ? static_cast<std::size_t>(more) : 0;
    }
    return true;
}

void reset(int socket) {
    const linger now{1, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    ::close(socket);
}

void one_connection(client_run& run, std::uint64_t& random) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(run.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
        ++run.refused;
        ::close(socket);
        return;
    }
    switch (next(random) % 8) {
    case 0:  // nothing said
        break;
    case 1:  // something sent, nothing taken
        ::send(socket, "abandoned", 9, MSG_NOSIGNAL);
        break;
    case 2: {  // half-close, then everything comes back and the end
        if (!talk(socket, 1 + next(random) % 3000, random)) {
            ++run.wrong;
        }
        ::shutdown(socket, SHUT_WR);
        char rest[16];
        if (::recv(socket, rest, sizeof(rest), 0) != 0) {
            ++run.wrong;
        }
        break;
    }
    case 3:  // a flood that nobody reads, then gone
        for (int at = 0; at < 20; ++at) {
            static const char flood[8192] = {4};
            ::send(socket, flood, sizeof(flood), MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        break;
    default:
        if (!talk(socket, 1 + next(random) % 20'000, random)) {
            ++run.wrong;
        }
        break;
    }
    // FIN of this side first leaves TIME_WAIT here: only now and then, or the ports run out.
    if (next(random) % 16 == 0) {
        ::close(socket);
    } else {
        reset(socket);
    }
}

void client(client_run& run) {
    std::uint64_t random = run.seed;
    for (std::uint64_t at = 0; at < run.connections; ++at) {
        one_connection(run, random);
    }
}

constexpr std::size_t stack_bytes = std::size_t{1} << 20;
constexpr unsigned char stack_mark = 0xA5;

struct worker_run {
    server_type* server;
    std::uint32_t worker;
    unsigned char* stack;
};

void* work(void* argument) {
    auto& run = *static_cast<worker_run*>(argument);
    run.server->run(run.worker);
    return nullptr;
}

/// Bytes of a painted stack that were written to. Stacks grow down: the first changed byte counts.
std::size_t stack_used(const worker_run& run) {
    std::size_t untouched = 0;
    while (untouched < stack_bytes && run.stack[untouched] == stack_mark) {
        ++untouched;
    }
    return stack_bytes - untouched;
}

int failed_count = 0;
void check(const char* name, bool holds, std::uint64_t value = 0) {
    if (holds) {
        std::printf("ok soak: %s\n", name);
    } else {
        ++failed_count;
        std::printf("not ok soak: %s: %llu\n", name, static_cast<unsigned long long>(value));
    }
}

void start_worker(worker_run& run, pthread_t& thread) {
    void* stack = ::mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    run.stack = static_cast<unsigned char*>(stack);
    std::memset(run.stack, stack_mark, stack_bytes);
    pthread_attr_t how;
    pthread_attr_init(&how);
    pthread_attr_setstack(&how, stack, stack_bytes);
    pthread_create(&thread, &how, &work, &run);
    pthread_attr_destroy(&how);
}

/// Whether the workers accept that many in all, given a minute.
bool accepts(const service& handler, std::uint64_t count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (handler.accepted < count) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

/// Slots for all that clients can have opened and left before a slow server sees it, so that any
/// refusal is a fault.
netio::limits limits_for(std::uint32_t workers) {
    netio::limits sizes{.connections_max = 4096, .buffer_bytes = 4096};
    sizes.workers_max = workers;
    sizes.input_buffers_max = 16 * workers;
    sizes.output_buffers_max = 16 * workers;
    return sizes;
}

std::uint64_t number(char** words, int at) { return std::strtoull(words[at], nullptr, 10); }

}  // namespace

int main(int count, char** words) {
    if (count != 5) {
        std::fprintf(stderr, "usage: soak CONNECTIONS WORKERS CLIENTS SEED\n");
        return 2;
    }
    const auto workers = static_cast<std::uint32_t>(number(words, 2));
    const std::uint64_t clients = number(words, 3);
    const netio::limits sizes = limits_for(workers);
    const std::size_t needed = netio::bytes_needed<netio::default_backend>(sizes);
    void* memory = ::mmap(nullptr, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                          -1, 0);
    const int descriptors_before = open_descriptors();
    service handler;
    {
        server_type server({{static_cast<std::byte*>(memory), needed}, sizes}, handler, handler);
        netio::listener_id id;
        server.listen({.address = "127.0.0.1"}, &id);
        worker_run runs[64] = {};
        pthread_t threads[64] = {};
        for (std::uint32_t at = 0; at < workers; ++at) {
            runs[at] = {&server, at, nullptr};
            start_worker(runs[at], threads[at]);
        }
        client_run client_runs[64] = {};
        std::thread client_threads[64];
        for (std::uint64_t at = 0; at < clients; ++at) {
            client_runs[at] = {server.local(id).port, number(words, 4) * 977 + at + 1,
                               number(words, 1) / clients};
            client_threads[at] = std::thread(client, std::ref(client_runs[at]));
        }
        std::uint64_t wrong = 0;
        std::uint64_t refused = 0;
        for (std::uint64_t at = 0; at < clients; ++at) {
            client_threads[at].join();
            wrong += client_runs[at].wrong;
            refused += client_runs[at].refused;
        }
        // Clients are done before a slow server has seen the last of them; a drain refuses those.
        check("the server saw every connection within a minute",
              accepts(handler, number(words, 1) / clients * clients));
        server.drain(3'000);
        std::size_t deepest = 0;
        for (std::uint32_t at = 0; at < workers; ++at) {
            pthread_join(threads[at], nullptr);
            deepest = stack_used(runs[at]) > deepest ? stack_used(runs[at]) : deepest;
        }
        const netio::server_stats stats = server.stats();
        check("no byte came back wrong or was missing", wrong == 0, wrong);
        check("no client was refused", refused == 0 && stats.counts.refused == 0, refused);
        check("every connection was accepted", stats.counts.accepted ==
                                                   number(words, 1) / clients * clients,
              stats.counts.accepted);
        check("each opened connection closed once", handler.opened == handler.closed,
              handler.closed);
        check("nothing is open", stats.open == 0, stats.open);
        for (const netio::pool_stats& pool : stats.pools) {
            check(pool.name, pool.in_use == 0, pool.in_use);
        }
        // Sanitizers make frames larger; the bound is for the code as it ships.
        std::printf("# deepest stack of a worker: %zu bytes\n", deepest);
        if (std::getenv("NETIO_STACK_MAX") != nullptr) {
            const auto most = std::strtoull(std::getenv("NETIO_STACK_MAX"), nullptr, 10);
            check("the stack of a worker stays in its bound", deepest <= most, deepest);
        }
    }
    check("no descriptor is left", open_descriptors() == descriptors_before,
          static_cast<std::uint64_t>(open_descriptors()));
    return failed_count == 0 ? 0 : 1;
}
