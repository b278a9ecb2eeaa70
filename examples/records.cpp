// c++ -std=c++20 -O2 -I. -pthread examples/records.cpp -o records
//
// Blocking calls, a thread a connection: records of two bytes of length, most significant first,
// and so many bytes, each answered by the same record.
//
//     records [--listen 0.0.0.0:7000] [--workers 8] [--drain-ms N]
//
// Clients beyond the workers wait for their turn. Each connection is one line on standard output:
// the records it brought, and its reason. SIGTERM drains: between records a connection is closed, a
// record that was begun is still answered.
#include "netio.hpp"

#include "examples/options.hpp"

namespace {

struct records {
    void on_connection(netio::stream& peer) noexcept {
        std::byte record[2 + 65'535];
        unsigned count = 0;
        while (peer.recv_exact({record, 2})) {
            peer.phase(netio::phase::exchange);
            const std::size_t size = std::to_integer<std::size_t>(record[0]) << 8 |
                                     std::to_integer<std::size_t>(record[1]);
            if (!peer.recv_exact({record + 2, size}) ||
                !peer.send_all(netio::bytes(record, 2 + size))) {
                break;
            }
            peer.phase(netio::phase::idle);
            ++count;
        }
        char reason[96];
        netio::describe(peer.reason(), reason);
        std::printf("records %u: %s\n", count, peer.is_open() ? "peer_closed" : reason);
        std::fflush(stdout);
    }
};

struct choice {
    netio::endpoint at = netio::any_ipv4(7000);
    std::uint32_t workers = 8;
    std::uint32_t drain_ms = 10'000;
};

}  // namespace

int main(int count, char** words) {
    choice chosen;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &chosen.at},
        {.flag = "--workers", .number = &chosen.workers, .least = 1, .most = 255},
        {.flag = "--drain-ms", .number = &chosen.drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("records", count, words, settings)) {
        return 2;
    }
    using backend = netio::default_blocking_backend;
    netio::limits sizes;
    sizes.connections_max = sizes.workers_max = chosen.workers;
    records handler;
    netio::blocking_pool<records> pool{example::memory_for<backend>(sizes, 0), handler};

    char address[netio::endpoint_text_max];
    netio::listen_options where;
    where.address = netio::format_address(chosen.at, address);
    where.port = chosen.at.port;
    if (pool.listen(where) == netio::error::none) {
        example::signals<decltype(pool)>::watch(pool, chosen.drain_ms);
        example::announce("records", pool, pool.local(netio::listener_id{}));
        example::run(pool);
    }
    return netio::report("records", pool);
}
