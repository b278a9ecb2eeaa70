// c++ -std=c++20 -O2 -I. -pthread examples/rpc_stats.cpp -o rpc_stats
//
// A provider of sums that tells of itself, and clients that ask it, over each transport:
//
//     rpc_stats --over memory     two threads, a ring each way
//     rpc_stats --over queue      two clients and one ring to the server, a ring back to each
//     rpc_stats --over shared     two processes and a segment of memory (not on Windows)
//     rpc_stats --over tcp        a connection of a server to itself
//     rpc_stats --listen 127.0.0.1:7100                       serves until SIGTERM or SIGINT
//     rpc_stats --connect 127.0.0.1:7100 [--calls 1000]       asks a server
//
// Each client prints one line. Exit code 0 if all its calls were answered.
#include "netio.hpp"

#include "examples/rpc_parts.hpp"

#if !defined(_WIN32)
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdlib>

namespace {

namespace rpc = netio::rpc;

constexpr std::uint32_t ring_bytes = 1u << 16;

void rest() noexcept {
#if defined(_WIN32)
    ::SwitchToThread();
#else
    ::sched_yield();
#endif
}

/// The serving side of one client.
class served {
public:
    explicit served(example::calculating& of) noexcept : of_(of), callee_(of.kernel(), memory_) {
        callee_.open(of.root());
    }
    ~served() { callee_.close(); }
    /// True if anything moved.
    template <rpc::link Link>
    bool step(Link& link) noexcept {
        std::uint32_t moved = callee_.take(link);
        moved += of_.kernel().dispatch();
        moved += callee_.answer_settled(link);
        link.flush();
        return moved != 0;
    }
#if !defined(_WIN32)
    /// For a record only if it could be taken: else this would be no sleep.
    netio::shm_event wait(netio::shm_link& link) noexcept {
        return link.wait(5000, callee_.can_take() ? netio::shm_wants::both
                                                  : netio::shm_wants::room);
    }
#endif

private:
    alignas(8) std::byte memory_[rpc::callee_bytes_needed(64)] = {};
    example::calculating& of_;
    rpc::callee callee_;
};

/// A ring in memory of its own.
template <class Ring>
struct ring {
    Ring of;
    alignas(64) std::byte memory[ring_bytes] = {};
    ring() noexcept { of.attach(memory, ring_bytes); }
};

/// A thread that asks over its link until it is done.
template <class Link>
struct client {
    Link link;
    example::asking asks;
    std::atomic<bool> done = false;
    void run() noexcept {
        while (!asks.step(link)) {
            rest();
        }
        done.store(true, std::memory_order_release);
    }
};

bool over_memory(example::calculating& of, std::uint32_t calls) noexcept {
    ring<netio::spsc_ring> there, back;
    client<rpc::ring_link> asks{{there.of, back.of}, example::asking(calls)};
    rpc::ring_link link(back.of, there.of);
    served serves(of);
    example::thread made{};
    if (!example::start(made, asks)) {
        return false;
    }
    while (!asks.done.load(std::memory_order_acquire)) {
        if (!serves.step(link)) {
            rest();
        }
    }
    example::join(made);
    return asks.asks.report("memory");
}

bool over_queue(example::calculating& of, std::uint32_t calls) noexcept {
    ring<netio::mpsc_ring> there;
    ring<netio::spsc_ring> back[2];
    client<rpc::shared_link> asks[2] = {{{there.of, 0, back[0].of}, example::asking(calls)},
                                        {{there.of, 1, back[1].of}, example::asking(calls)}};
    rpc::served_link links[2] = {{there.of, 0, back[0].of}, {there.of, 1, back[1].of}};
    served serves[2] = {served(of), served(of)};
    example::thread made[2] = {};
    std::uint32_t started = 0;
    while (started < 2 && example::start(made[started], asks[started])) {
        ++started;
    }
    for (bool done = started == 0; !done;) {
        const rpc::front_sender front = rpc::sender_in_front(there.of);
        if (!front.there || !serves[front.number].step(links[front.number])) {
            rest();
        }
        done = true;
        for (std::uint32_t at = 0; at < started; ++at) {
            done = done && asks[at].done.load(std::memory_order_acquire);
        }
    }
    bool good = started == 2;
    for (std::uint32_t at = 0; at < started; ++at) {
        example::join(made[at]);
        good = asks[at].asks.report("queue") && good;
    }
    return good;
}

#if !defined(_WIN32)
/// The client is a child, which opens the segment that it inherits.
int ask_shared(netio::shm_link& made, std::uint32_t calls) noexcept {
    static std::byte inbox[netio::shm_layout{}.longest()];
    const int handle = ::dup(static_cast<int>(made.handle()));
    netio::shm_link link;
    if (const netio::os_status opened = link.open(handle, inbox); !opened) {
        std::fprintf(stderr, "rpc_stats: open: %s\n", netio::text(opened.why));
        return 1;
    }
    example::asking asks(calls);
    while (!asks.step(link)) {
        if (const netio::shm_event came = link.wait(5000);
            came != netio::shm_event::record && came != netio::shm_event::room) {
            break;  // the server has gone, or says nothing
        }
    }
    return asks.report("shared") ? 0 : 1;
}

bool over_shared(example::calculating& of, std::uint32_t calls) noexcept {
    static std::byte inbox[netio::shm_layout{}.longest()];
    netio::shm_link link;
    if (const netio::os_status made = link.create(inbox); !made) {
        std::fprintf(stderr, "rpc_stats: create: %s\n", netio::text(made.why));
        return false;
    }
    const pid_t child = ::fork();
    if (child == 0) {
        std::exit(ask_shared(link, calls));
    }
    if (child < 0 || !link.watch(static_cast<std::uint32_t>(child))) {
        std::perror("rpc_stats: fork");
        return false;
    }
    served serves(of);
    for (netio::shm_event came = netio::shm_event::none; came != netio::shm_event::peer_gone &&
                                                         came != netio::shm_event::broken;) {
        came = serves.step(link) ? netio::shm_event::record : serves.wait(link);
    }
    int status = 1;
    ::waitpid(child, &status, 0);
    return status == 0;
}
#endif

// ---- TCP

/// Connects, asks, and stops its server once it has heard everything.
struct tcp_client {
    example::asking asks;
    netio::server<tcp_client>* server = nullptr;
    std::byte room[4096] = {};
    bool good = false;

    std::size_t step(netio::connection& peer, netio::bytes in) noexcept {
        rpc::tcp_link link(peer, in, room);
        if (asks.step(link)) {
            good = asks.report("tcp");
            peer.close();
        }
        return link.used();
    }
    void on_open(netio::connection& peer) noexcept { step(peer, {}); }
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return step(peer, in);
    }
    void on_writable(netio::connection& peer) noexcept { step(peer, {}); }
    void on_connect_failed(std::uint64_t, netio::error why) noexcept {
        std::fprintf(stderr, "rpc_stats: connect: %s\n", netio::text(why));
        server->stop();
    }
    void on_close(netio::connection&, netio::close_reason) noexcept { server->stop(); }
};

bool ask_tcp(const netio::endpoint& at, std::uint32_t calls) noexcept {
    static netio::storage<netio::limits{.connections_max = 1}> memory;
    tcp_client handler{example::asking(calls)};
    netio::server<tcp_client> server{memory, handler};
    handler.server = &server;
    if (const auto made = server.connect(at, 0); !made) {
        std::fprintf(stderr, "rpc_stats: connect: %s\n", netio::text(made.why));
        return false;
    }
    server.run();
    return handler.good;
}

bool over_tcp(example::calculating& of, std::uint32_t calls) noexcept {
    static netio::storage<netio::limits{.connections_max = 4}> memory;
    example::calculator_service serves(of);
    netio::server<rpc::tcp_service> server{memory, serves.service};
    netio::listener_id listener;
    netio::listen_options where;
    where.address = "127.0.0.1";
    if (server.listen(where, &listener) != netio::error::none) {
        return netio::report("rpc_stats", server) == 0;
    }
    struct asks_it {
        netio::endpoint at;
        std::uint32_t calls;
        netio::server<rpc::tcp_service>& server;
        bool good = false;
        void run() noexcept {
            good = ask_tcp(at, calls);
            server.stop();
        }
    } asks{server.local(listener), calls, server};
    example::thread made{};
    if (!example::start(made, asks)) {
        return false;
    }
    server.run();
    example::join(made);
    return asks.good;
}

}  // namespace

int main(int count, char** words) {
    std::string_view over;
    netio::endpoint at = netio::ipv4(127, 0, 0, 1, 7100);
    netio::endpoint to;
    std::uint32_t calls = 1000;
    const example::setting settings[] = {
        {.flag = "--over", .text = &over},
        {.flag = "--listen", .address = &at},
        {.flag = "--connect", .address = &to},
        {.flag = "--calls", .number = &calls, .least = 1, .most = 100'000'000},
    };
    if (!example::parse("rpc_stats", count, words, settings)) {
        return 2;
    }
    if (to.port != 0) {
        return ask_tcp(to, calls) ? 0 : 1;
    }
    if (over.empty()) {
        return example::serve_calculator("rpc_stats", at);
    }
    example::calculating calculates;
    if (over == "memory") {
        return over_memory(calculates, calls) ? 0 : 1;
    }
    if (over == "queue") {
        return over_queue(calculates, calls) ? 0 : 1;
    }
#if !defined(_WIN32)
    if (over == "shared") {
        return over_shared(calculates, calls) ? 0 : 1;
    }
#endif
    if (over == "tcp") {
        return over_tcp(calculates, calls) ? 0 : 1;
    }
    example::refuse("rpc_stats", "--over", over, "none of memory, queue, shared, tcp");
    return 2;
}
