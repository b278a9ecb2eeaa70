// c++ -std=c++20 -O2 -I. examples/gateway.cpp -o gateway
//
// A TCP reverse proxy:
//
//     gateway --listen 127.0.0.1:7000 --to 127.0.0.1:8000 [--proxy-in off|required]
//             [--trusted 10.0.0.0/8] [--proxy-out off|v2] [--connections N] [--workers N]
//             [--buffers N] [--idle-ms N] [--write-ms N] [--memory BYTES] [--drain-ms N]
//             [--backend NAME, or auto: the first that the system offers]
//
// Pairs. At most `--connections`, divided equally among the workers. Each client that comes gets
// one connection to `--to`, on the same worker, so both ends are touched by one thread. The client
// is paused until the other end is there; if that fails it is reset. The state of each end names
// the other one; an id that outlived its connection finds nothing, so neither end can be mistaken
// for another.
//
// Bytes. A received buffer is not read here: `move_input_to` hands it to the other end's output,
// and it goes back to the pool when the kernel took its last byte. The exception are at most 536
// bytes that came in one segment with a PROXY header.
//
// Backpressure. An end whose output is full refuses the move. The bytes stay where they are, and
// the end they came from is paused: nothing is received from it, its kernel buffer fills, and TCP
// slows its peer down. When the slow end has room, `on_writable` resumes the other. So each
// direction holds at most connection_output_buffers_max buffers and one more, whoever is slow.
//
// Half-close. The end of one stream comes after its last byte (`on_end`), and `end` on the other
// side flushes what was moved before it sends its FIN: order is kept, and the other direction goes
// on. A pair is gone when both have ended. A reset is passed on as a close behind everything
// received, for a peer that answers and resets has still answered; what broke a deadline is reset.
//
// PROXY. `--proxy-in required` takes versions 1 and 2 (from `--trusted` networks only, if given),
// and `--proxy-out v2` writes a header that names the client: LOCAL for LOCAL, both addresses in
// one family, no TLVs.
//
// SIGTERM drains: no new pairs; those under way have until `--drain-ms`, and end sooner if they are
// quiet for a second, for only their peers know whether they are done. SIGINT stops at once.
#include "netio.hpp"

#include "examples/options.hpp"

namespace {

struct pair {
    netio::connection_id other;
    std::uint64_t moved_before;  // bytes either way when the quiet second began
    bool was_local;
};

constexpr std::uint32_t quiet_ms = 1000;
constexpr std::uint16_t connect_failed = 1;

template <class Backend>
struct gateway {
    netio::endpoint to;
    bool proxy_out = false;
    netio::server<gateway, Backend>* server = nullptr;

    void on_open(netio::connection& peer) noexcept {
        if (peer.origin() == netio::origin::connected) {
            join(peer);
            return;
        }
        const netio::proxy::header* header = peer.proxy_header();
        pair& mine = peer.state<pair>();
        mine.was_local = header != nullptr && header->cmd == netio::proxy::command::local;
        peer.pause();
        const netio::result<netio::connection_id> other = peer.connect(to, peer.id().bits);
        if (!other) {
            peer.kill(connect_failed);
            return;
        }
        mine.other = other.value;
    }

    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        netio::connection* other = other_of(peer);
        if (other == nullptr) {
            return in.size();
        }
        const std::size_t moved = peer.move_input_to(*other);
        if (moved == 0) {
            peer.pause();
        }
        return moved;
    }

    void on_writable(netio::connection& peer) noexcept {
        if (netio::connection* other = other_of(peer)) {
            other->resume();
        }
    }

    void on_end(netio::connection& peer) noexcept {
        if (netio::connection* other = other_of(peer)) {
            other->end();
        }
    }

    /// The client is not at hand here, so it is told by post.
    void on_connect_failed(std::uint64_t client, netio::error) noexcept {
        server->post({client}, connect_failed);
    }
    void on_post(netio::connection& client, std::uint64_t) noexcept { client.kill(connect_failed); }

    /// Inside an exchange the read deadline applies: a quiet second.
    void on_drain(netio::connection& peer) noexcept { peer.phase(netio::phase::exchange); }

    void on_deadline(netio::connection& peer, netio::deadline_kind which) noexcept {
        netio::connection* other = other_of(peer);
        if (which == netio::deadline_kind::idle && other != nullptr && other->output_bytes() != 0) {
            return;  // it only waits for the other one, which has a write deadline
        }
        if (which != netio::deadline_kind::read) {
            peer.kill();
            return;
        }
        pair& mine = peer.state<pair>();
        const std::uint64_t moved = peer.bytes_in() + peer.bytes_out();
        if (moved != mine.moved_before) {
            mine.moved_before = moved;
            return;
        }
        peer.close();
    }

    void on_close(netio::connection& peer, netio::close_reason reason) noexcept {
        netio::connection* other = other_of(peer);
        if (other == nullptr) {
            return;
        }
        const bool by_force = netio::resets(reason.kind) && reason.kind != netio::close_kind::io;
        if (by_force || other->state_kind() == netio::connection_state_kind::connecting) {
            other->kill();
        } else {
            other->close();
        }
    }

private:
    static netio::connection* other_of(netio::connection& of) noexcept {
        return of.find(of.state<pair>().other);
    }

    void join(netio::connection& upstream) noexcept {
        netio::connection* client = upstream.find({upstream.connect_word()});
        if (client == nullptr) {
            upstream.kill();
            return;
        }
        upstream.state<pair>().other = client->id();
        if (proxy_out) {
            netio::proxy::header header;  // LOCAL until it names somebody
            if (!client->state<pair>().was_local) {
                header = netio::proxy::between(client->source(), client->destination());
            }
            std::byte line[64];
            const std::size_t count = netio::proxy::encode_v2(header, {}, line, false);
            upstream.write({line, count});
        }
        client->resume();
    }
};

struct choice {
    netio::endpoint at = netio::any_ipv4(7000);
    netio::endpoint to = netio::loopback_ipv4(8000);
    std::string_view proxy_in = "off";
    std::string_view proxy_out = "off";
    std::string_view trusted;
    std::string_view backend = netio::default_backend::name;
    std::uint32_t connections = 1024;
    std::uint32_t workers = 1;
    std::uint32_t buffers = 512;
    std::uint32_t idle_ms = 60'000;
    std::uint32_t write_ms = 30'000;
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
};

bool read_choice(int count, char** words, choice& out) noexcept {
    const example::setting settings[] = {
        {.flag = "--listen", .address = &out.at},
        {.flag = "--to", .address = &out.to},
        {.flag = "--proxy-in", .text = &out.proxy_in},
        {.flag = "--trusted", .text = &out.trusted},
        {.flag = "--proxy-out", .text = &out.proxy_out},
        {.flag = "--backend", .text = &out.backend},
        {.flag = "--connections", .number = &out.connections, .least = 1, .most = 1'000'000},
        {.flag = "--workers", .number = &out.workers, .least = 1, .most = 255},
        {.flag = "--buffers", .number = &out.buffers, .least = 2, .most = 1'000'000},
        {.flag = "--idle-ms", .number = &out.idle_ms, .least = 0, .most = 86'400'000},
        {.flag = "--write-ms", .number = &out.write_ms, .least = 0, .most = 86'400'000},
        {.flag = "--memory", .number = &out.memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &out.drain_ms, .least = 0, .most = 3'600'000},
    };
    return example::parse("gateway", count, words, settings);
}

netio::limits limits_for(const choice& of) noexcept {
    netio::limits sizes;
    // Two ends a pair, and some that linger after their other end is gone and its place taken.
    sizes.connections_max = of.connections * 2 + 64 * of.workers;
    sizes.workers_max = of.workers;
    sizes.input_buffers_max = of.buffers / 2;
    sizes.output_buffers_max = of.buffers - of.buffers / 2;
    sizes.posts_max = sizes.connections_max;
    sizes.listeners_max = 1;
    sizes.datagram_sockets_max = 0;
    sizes.datagram_sends_max = 0;
    sizes.timers_max = 0;
    return sizes;
}

void print_counts(const netio::server_stats& now) noexcept {
    std::printf("gateway: accepted %llu, connected %llu, refused %llu, bytes in %llu, out %llu, "
                "copied %llu, still open %u\n",
                static_cast<unsigned long long>(now.counts.accepted),
                static_cast<unsigned long long>(now.counts.connected),
                static_cast<unsigned long long>(now.counts.refused),
                static_cast<unsigned long long>(now.counts.bytes_in),
                static_cast<unsigned long long>(now.counts.bytes_out),
                static_cast<unsigned long long>(now.counts.bytes_copied), now.open);
}

template <class Backend>
int serve(const choice& chosen, bool proxy_in, bool proxy_out) noexcept {
    using server_type = netio::server<gateway<Backend>, Backend>;
    gateway<Backend> handler{chosen.to, proxy_out};
    server_type server{example::memory_for<Backend>(limits_for(chosen), chosen.memory_bytes),
                       handler};
    handler.server = &server;

    netio::deadlines times;
    times.read_ms = quiet_ms;
    times.idle_ms = chosen.idle_ms;
    times.write_ms = chosen.write_ms;
    times.rate_in = 0;  // what goes through is not ours to judge: a person may be typing
    server.outgoing({.times = times});
    char address[netio::endpoint_text_max];
    netio::listen_options where;
    where.address = netio::format_address(chosen.at, address);
    where.port = chosen.at.port;
    where.connections_max = chosen.connections;
    where.proxy = proxy_in ? netio::proxy_mode::required : netio::proxy_mode::off;
    where.trusted = chosen.trusted;
    where.times = times;
    if (server.listen(where) == netio::error::none) {
        example::signals<server_type>::watch(server, chosen.drain_ms);
        example::announce("gateway", server, server.local());
        example::run(server);
        print_counts(server.stats());
    }
    return netio::report("gateway", server);
}

/// Serves over the backend that was chosen from these, or says why that can't be.
template <class... Backends>
int serve_over(const choice& chosen, bool proxy_in, bool proxy_out) noexcept {
    const netio::backend_choice over = netio::choose_backend<Backends...>(chosen.backend);
    const int name_bytes = static_cast<int>(chosen.backend.size());
    if (!over) {
        std::fprintf(stderr, "gateway: --backend %.*s: %s\n", name_bytes, chosen.backend.data(),
                     *over.missing != '\0' ? over.missing : "there is none of that name here");
        return 2;
    }
    if (*over.missing != '\0') {
        std::fprintf(stderr, "gateway: over %s, for there is no %s: %s\n", over.name,
                     over.refused, over.missing);
    }
    int code = 0;
    netio::on_backend<Backends...>(over, [&]<class Backend>(Backend*) {
        code = serve<Backend>(chosen, proxy_in, proxy_out);
    });
    return code;
}

}  // namespace

int main(int count, char** words) {
    choice chosen;
    bool good = read_choice(count, words, chosen);
    const bool proxy_in = good && example::choose("gateway", "--proxy-in", chosen.proxy_in, "off",
                                                  "required", good);
    const bool proxy_out =
        good && example::choose("gateway", "--proxy-out", chosen.proxy_out, "off", "v2", good);
    if (!good) {
        return 2;
    }
#if NETIO_HAS_IO_URING && !defined(NETIO_BACKEND_HEADER)
    return serve_over<netio::io_uring, netio::epoll>(chosen, proxy_in, proxy_out);
#else
    return serve_over<netio::default_backend>(chosen, proxy_in, proxy_out);
#endif
}
