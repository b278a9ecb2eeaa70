// A whole service without an allocation: accept, PROXY, echo, caps, kill, post, timers, datagrams,
// outgoing connections, drain and 10,000 connections, over real sockets of this process.
#include "netio.hpp"
#include "tests/no_heap/trap.hpp"

#include <arpa/inet.h>
#include <cstring>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

struct service {
    std::uint32_t opened = 0;
    std::uint32_t closed = 0;
    std::uint32_t posts = 0;
    std::uint32_t timers = 0;
    std::uint32_t datagrams = 0;
    std::uint32_t killed = 0;
    std::uint32_t proxied = 0;
    netio::connection_id last{};

    void on_open(netio::connection& c) noexcept {
        ++opened;
        last = c.id();
        proxied += c.proxied() && c.tlvs().find(0xE3).present() ? 1 : 0;
        if (c.origin() == netio::origin::connected) {
            c.write(std::string_view("hello"));
        }
    }
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        if (netio::as_text(in) == "kill me") {
            c.kill(3);
            return in.size();
        }
        return opened % 2 == 0 ? c.write(in) : c.move_input_to(c);
    }
    void on_post(netio::connection& c, std::uint64_t word) noexcept {
        ++posts;
        if (word == 0) {
            c.kill();
        } else {
            c.write_static("posted");
        }
    }
    void on_timer(std::uint64_t) noexcept { ++timers; }
    void on_datagram(netio::datagram_socket& via, const netio::datagram& in) noexcept {
        datagrams += via.send_to(in.peer, in.payload) ? 1 : 0;
    }
    void on_close(netio::connection&, netio::close_reason reason) noexcept {
        ++closed;
        killed += reason.kind == netio::close_kind::killed ? 1 : 0;
    }
};

constexpr std::uint32_t at_once = 500;
constexpr std::uint32_t rounds = 20;

constinit netio::storage<netio::limits{.connections_max = at_once,
                                       .buffer_bytes = 2048,
                                       .input_buffers_max = 64,
                                       .output_buffers_max = 64}>
    memory;

using server_type = netio::server<service>;

/// A blocking client of this process, non-blocking where it must wait: it lets the server turn.
class client {
public:
    explicit client(std::uint16_t port, int type = SOCK_STREAM) noexcept
        : socket_(::socket(AF_INET, type, 0)) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        good_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
    }
    client(const client&) = delete;
    client& operator=(const client&) = delete;
    ~client() { ::close(socket_); }
    bool good() const noexcept { return good_; }
    void send(std::string_view text) noexcept {
        good_ = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(text.size());
    }
    /// True if exactly `text` comes back within a bounded number of turns.
    bool receives(std::string_view text, server_type& server) noexcept {
        char got[2048];
        std::size_t count = 0;
        for (int turn = 0; turn < 2000 && count < text.size(); ++turn) {
            server.run_once(1);
            const ssize_t more = ::recv(socket_, got + count, sizeof(got) - count, MSG_DONTWAIT);
            count += more > 0 ? static_cast<std::size_t>(more) : 0;
        }
        return std::string_view(got, count) == text;
    }
    /// True if the server ended it: a reset, or the end of the stream.
    bool ends(server_type& server) noexcept {
        char got[64];
        for (int turn = 0; turn < 2000; ++turn) {
            server.run_once(1);
            const ssize_t more = ::recv(socket_, got, sizeof(got), MSG_DONTWAIT);
            if (more == 0 || (more < 0 && errno != EAGAIN)) {
                return true;
            }
        }
        return false;
    }

private:
    int socket_;
    bool good_ = false;
};

std::uint16_t port_of(server_type& server, netio::listener_id id) noexcept {
    return server.local(id).port;
}

bool many_connections(server_type& server, std::uint16_t port) noexcept {
    static int sockets[at_once];
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (std::uint32_t round = 0; round < rounds; ++round) {
        for (int& each : sockets) {
            each = ::socket(AF_INET, SOCK_STREAM, 0);
            if (::connect(each, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
                return false;
            }
            ::send(each, "ping", 4, MSG_NOSIGNAL);
            server.run_once(0);
        }
        for (int each : sockets) {
            char got[8];
            ssize_t count = -1;
            for (int turn = 0; turn < 2000 && count < 0; ++turn) {
                count = ::recv(each, got, sizeof(got), MSG_DONTWAIT);
                if (count < 0) {
                    server.run_once(1);
                }
            }
            if (count != 4 || std::memcmp(got, "ping", 4) != 0) {
                return false;
            }
        }
        for (int each : sockets) {
            const linger at_once_linger{1, 0};  // no TIME_WAIT left behind
            ::setsockopt(each, SOL_SOCKET, SO_LINGER, &at_once_linger, sizeof(at_once_linger));
            ::close(each);
        }
        for (int turn = 0; turn < 5000 && server.stats().open != 0; ++turn) {
            server.run_once(1);
        }
        if (server.stats().open != 0) {
            return false;
        }
    }
    return true;
}

bool turns(server_type& server) noexcept {
    for (int turn = 0; turn < 20; ++turn) {
        server.run_once(0);
    }
    return true;
}

bool full_and_refused(server_type& server, std::uint16_t port) noexcept {
    client one(port);
    client two(port);
    client three(port);
    one.send("a");
    two.send("b");
    return one.receives("a", server) && two.receives("b", server) && three.ends(server);
}

bool pools_full(const server_type& server) noexcept {
    for (const netio::pool_stats& pool : server.stats().pools) {
        if (pool.in_use != 0) {
            return false;
        }
    }
    return true;
}

int talk(server_type& server, service& handler, std::uint16_t plain, std::uint16_t capped,
         std::uint16_t behind, std::uint16_t udp) noexcept {
    int failed_count = 0;
    {
        client peer(plain);
        peer.send("some bytes");
        failed_count += no_heap::check("no_heap: echo", peer.receives("some bytes", server));
        failed_count += no_heap::check("no_heap: post",
                                       server.post(handler.last, 1) &&
                                           peer.receives("posted", server));
        peer.send("kill me");
        failed_count += no_heap::check("no_heap: kill",
                                       peer.ends(server) && turns(server) &&
                                           handler.killed == 1);
    }
    {
        client peer(behind);
        using namespace std::string_view_literals;
        peer.send("\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x12\xC0\x00\x02\x01\xC0\x00\x02\x02"
                  "\xDC\x04\x01\xBB\xE3\x00\x03xyz" "payload"sv);
        failed_count += no_heap::check("no_heap: PROXY with a TLV",
                                       peer.receives("payload", server) && handler.proxied == 1);
        client direct(behind);
        direct.send("GET / HTTP/1.1\r\n");
        failed_count += no_heap::check("no_heap: a direct client is refused", direct.ends(server));
    }
    {
        client peer(udp, SOCK_DGRAM);
        peer.send("datagram");
        failed_count += no_heap::check("no_heap: datagrams",
                                       peer.receives("datagram", server) &&
                                           handler.datagrams == 1);
    }
    failed_count += no_heap::check("no_heap: a cap", full_and_refused(server, capped));
    const auto out = server.connect(netio::loopback_ipv4(plain), 5);
    server.connect(netio::loopback_ipv4(1), 6);  // refused, at once or a little later
    const auto timer = server.after(1, 9);
    for (int turn = 0; turn < 200'000 && handler.timers == 0; ++turn) {
        server.run_once(5);
    }
    failed_count += no_heap::check("no_heap: outgoing connections and timers",
                                   out && timer && handler.timers == 1);
    netio::connection_id greeted = handler.last;
    for (int turn = 0; turn < 200 && server.stats().open != 0; ++turn) {
        server.post(greeted, 0);
        server.run_once(1);
    }
    return failed_count;
}

}  // namespace

int scenario() noexcept {
    service handler;
    server_type server(memory, handler);
    netio::listener_id plain;
    netio::listener_id capped;
    netio::listener_id behind;
    int failed_count = no_heap::check(
        "no_heap: listening",
        server.listen({.address = "127.0.0.1"}, &plain) == netio::error::none &&
            server.listen({.address = "127.0.0.1", .connections_max = 2}, &capped) ==
                netio::error::none &&
            server.listen({.address = "127.0.0.1", .proxy = netio::proxy_mode::required},
                          &behind) == netio::error::none);
    failed_count += no_heap::check(
        "no_heap: a failure in a line",
        server.listen({.address = "localhost"}) == netio::error::host_name_given &&
            netio::report("no_heap", server) == 1);
    const auto udp = server.open_datagram({.address = "127.0.0.1"});
    failed_count += talk(server, handler, port_of(server, plain), port_of(server, capped),
                         port_of(server, behind), server.local(udp.value).port);
    server.run_once(0);
    server.run_once(1);
    failed_count += no_heap::check("no_heap: 10,000 connections",
                                   many_connections(server, port_of(server, plain)));
    server.drain(100);
    failed_count += no_heap::check("no_heap: drain ends the run",
                                   server.run() == netio::error::none);
    failed_count += no_heap::check("no_heap: every pool is full again", pools_full(server));
    failed_count += no_heap::check("no_heap: each opened connection closed once",
                                   handler.opened == handler.closed &&
                                       handler.opened > at_once * rounds);
    return failed_count;
}
