// Streams of a blocking pool without an allocation: receives that wait, whole and cut messages, a
// peer that resets, a PROXY header, a stop. The handler plays its client, so one thread is enough.
#include "netio.hpp"

#include "tests/client_socket.hpp"
#include "tests/no_heap/trap.hpp"

namespace {

namespace client_os = netio_test::client_os;
using netio::error;

constexpr netio::limits sizes{.connections_max = 1, .buffer_bytes = 1024};
constinit netio::pool_storage<sizes> memory{};

struct client {
    client_os::socket_type socket = client_os::no_socket;

    void connect(std::uint16_t port) noexcept {
        const netio_test::client_address to(netio::loopback_ipv4(port));
        socket = client_os::open(AF_INET, SOCK_STREAM);
        ::connect(socket, to.get(), to.size);
    }
    bool says(std::string_view text) noexcept {
        return client_os::send(socket, text) == static_cast<std::int64_t>(text.size());
    }
    bool hears(std::string_view text) noexcept {
        char got[64];
        const auto count = client_os::receive(socket, got, sizeof(got), 0);
        return count == static_cast<std::int64_t>(text.size()) &&
               std::string_view(got, text.size()) == text;
    }
    void close(bool reset) noexcept {
        if (reset) {
            client_os::reset_at_close(socket);
        }
        client_os::close(socket);
    }
};

/// Serves one connection after the other, each another part of the trial.
struct trial {
    netio::blocking_pool<trial>* pool = nullptr;
    std::uint16_t plain = 0;
    std::uint16_t behind = 0;
    client peer;
    int part = 0;
    int failed_count = 0;

    void check(const char* name, bool holds) noexcept {
        failed_count += no_heap::check(name, holds);
    }
    void on_connection(netio::stream& s) noexcept {
        using namespace std::string_view_literals;
        std::byte into[64];
        const auto first = [&](std::size_t count) { return netio::mutable_bytes(into, count); };
        if (part == 0) {
            const bool heard = peer.says("some bytes") && s.recv(into).count == 10;
            check("no_heap: a stream echoes.blocking",
                  heard && s.send_all({into, 10}) && peer.hears("some bytes"));
            s.phase(netio::phase::exchange);
            s.deadline(10'000);
            check("no_heap: a whole message.blocking",
                  peer.says("12345678") && s.recv_exact(first(8)));
            peer.says("123");
            peer.close(false);
            const netio::transfer cut = s.recv_exact(first(8));
            check("no_heap: a cut one.blocking",
                  cut.why == error::end_of_stream && cut.count == 3);
            peer.connect(behind);
            peer.says("\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x12\xC0\x00\x02\x01\xC0\x00\x02\x02"
                      "\xDC\x04\x01\xBB\xE3\x00\x03xyz" "payload"sv);
        } else if (part == 1) {
            check("no_heap: behind a proxy.blocking",
                  s.recv_exact(first(7)) && s.proxied() && s.tlvs().find(0xE3).present());
            peer.close(true);
            check("no_heap: a reset.blocking", s.recv(into).why == error::connection_reset);
            peer.connect(plain);
        } else {
            pool->stop();
            check("no_heap: stop.blocking", s.recv(into).why == error::stopped);
            peer.close(false);
        }
        ++part;
    }
};

}  // namespace

int scenario() noexcept {
    client_os::start();
    trial handler;
    netio::blocking_pool pool{memory, handler};
    netio::listener_id plain{}, behind{};
    handler.check(
        "no_heap: a pool listens.blocking",
        pool.listen({.address = "127.0.0.1"}, &plain) == error::none &&
            pool.listen({.address = "127.0.0.1", .proxy = netio::proxy_mode::required}, &behind) ==
                error::none);
    handler.pool = &pool;
    handler.plain = pool.local(plain).port;
    handler.behind = pool.local(behind).port;
    handler.peer.connect(handler.plain);
    handler.check("no_heap: a pool runs to its stop.blocking",
                  pool.run() == error::none && handler.part == 3);
    for (const netio::pool_stats& each : pool.stats().pools) {
        handler.check("no_heap: a pool is full again.blocking", each.in_use == 0);
    }
    return handler.failed_count;
}
