// A whole service without an allocation: accept, PROXY, echo, caps, kill, post, timers, datagrams,
// outgoing connections, drain and 10,000 connections (20,000 in the long form), over real sockets
// of this process. A program of one backend is its scenario: `scenario_of<netio::epoll>()`.
#ifndef NO_HEAP_SERVICE_HPP
#define NO_HEAP_SERVICE_HPP

#include "netio.hpp"
#include "tests/client_socket.hpp"
#include "tests/no_heap/trap.hpp"

#include <cstdlib>
#include <cstring>

namespace no_heap {

namespace client_os = netio_test::client_os;

/// Turns away who asks for it by its listener, and counts what leaves.
struct gate {
    static constexpr std::uint32_t nobody = 1000;
    std::uint32_t listener_refused = nobody;
    std::uint32_t listener_answered = nobody;
    std::uint32_t listener_denied = nobody;
    std::uint32_t inside = 0;
    std::uint64_t bytes_out = 0;

    netio::verdict admit(const netio::connection& c) noexcept {
        return c.listener() == listener_refused    ? netio::verdict::refuse(1)
               : c.listener() == listener_answered ? netio::verdict::refuse(2, "not you")
                                                   : entered(1);
    }
    netio::verdict readmit(const netio::connection&) noexcept {
        return netio::verdict::allow(1, inside);
    }
    netio::egress check(const netio::connection& c, const netio::write_facts& facts) noexcept {
        bytes_out += facts.byte_count;
        return c.listener() == listener_denied ? netio::egress::deny(3, "no more")
                                               : netio::egress::allow();
    }
    void closed(const netio::connection&, netio::close_reason) noexcept { --inside; }

private:
    netio::verdict entered(std::uint8_t lane) noexcept {
        ++inside;
        return netio::verdict::allow(lane, inside);
    }
};

struct service {
    std::uint32_t opened = 0;
    std::uint32_t closed = 0;
    std::uint32_t posts = 0;
    std::uint32_t timers = 0;
    std::uint32_t datagrams = 0;
    std::uint32_t killed = 0;
    std::uint32_t proxied = 0;
    std::uint32_t greeted = 0;  // the greeting of an outgoing connection came back
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
        greeted += c.origin() == netio::origin::connected ? 1 : 0;
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

inline constexpr std::uint32_t at_once = 500;
inline constexpr netio::limits sizes{.connections_max = at_once,
                                     .buffer_bytes = 2048,
                                     .input_buffers_max = 64,
                                     .output_buffers_max = 64};

template <class Backend>
constinit inline netio::storage<sizes, Backend> memory{};

/// A client of this process that lets the server turn while it waits.
class client {
public:
    explicit client(std::uint16_t port, int type = SOCK_STREAM) noexcept
        : socket_(client_os::open(AF_INET, type)) {
        const netio_test::client_address to(netio::loopback_ipv4(port));
        good_ = ::connect(socket_, to.get(), to.size) == 0;
        client_os::set_non_blocking(socket_);
    }
    client() noexcept = default;
    client(const client&) = delete;
    client& operator=(const client&) = delete;
    ~client() { close(); }

    bool good() const noexcept { return good_; }
    void send(std::string_view text) noexcept {
        good_ = client_os::send(socket_, text) == static_cast<std::int64_t>(text.size()) && good_;
    }
    /// True if exactly `text` comes back within a bounded number of turns.
    template <class Server>
    bool receives(std::string_view text, Server& server) noexcept {
        char got[2048];
        std::size_t count = 0;
        for (int turn = 0; turn < turns_max && count < text.size(); ++turn) {
            const auto more = client_os::receive(socket_, got + count, sizeof(got) - count, 0);
            count += more > 0 ? static_cast<std::size_t>(more) : 0;
            if (more <= 0) {
                server.run_once(1);
            }
        }
        return std::string_view(got, count) == text;
    }
    /// True if the server ended it: a reset, or the end of the stream.
    template <class Server>
    bool ends(Server& server) noexcept {
        char got[64];
        for (int turn = 0; turn < turns_max; ++turn) {
            server.run_once(1);
            const auto more = client_os::receive(socket_, got, sizeof(got), 0);
            if (more == 0 || (more < 0 && !client_os::would_block())) {
                return true;
            }
        }
        return false;
    }
    /// By reset: no TIME_WAIT is left behind.
    void close() noexcept {
        if (socket_ != client_os::no_socket) {
            client_os::reset_at_close(socket_);
            client_os::close(socket_);
        }
        socket_ = client_os::no_socket;
    }

private:
    static constexpr int turns_max = 2000;
    client_os::socket_type socket_ = client_os::no_socket;
    bool good_ = false;
};

template <class Server>
bool turns_until_empty(Server& server) noexcept {
    for (int turn = 0; turn < 5000 && server.stats().open != 0; ++turn) {
        server.run_once(1);
    }
    return server.stats().open == 0;
}

/// `rounds` times as many connections as there are slots.
template <class Server>
bool many_connections(Server& server, std::uint16_t port, std::uint32_t rounds) noexcept {
    alignas(client) static std::byte room[at_once][sizeof(client)];
    for (std::uint32_t round = 0; round < rounds; ++round) {
        client* clients[at_once];
        bool good = true;
        for (std::uint32_t each = 0; each < at_once; ++each) {
            clients[each] = ::new (static_cast<void*>(room[each])) client(port);
            clients[each]->send("ping");
            server.run_once(0);
        }
        for (client* each : clients) {
            good = each->receives("ping", server) && each->good() && good;
            each->~client();
        }
        if (!good || !turns_until_empty(server)) {
            return false;
        }
    }
    return true;
}

template <class Server>
bool full_and_refused(Server& server, std::uint16_t port) noexcept {
    client one(port);
    client two(port);
    client three(port);
    one.send("a");
    two.send("b");
    return one.receives("a", server) && two.receives("b", server) && three.ends(server);
}

template <class Server>
bool pools_full(const Server& server) noexcept {
    for (const netio::pool_stats& pool : server.stats().pools) {
        if (pool.in_use != 0) {
            return false;
        }
    }
    return true;
}

/// One backend's service with its listeners, and what is tried on it.
template <class Backend>
class trial {
public:
    /// How many checks failed.
    int run() noexcept {
        listen();
        talk();
        behind_a_proxy();
        datagrams();
        check("a cap", full_and_refused(server_, port_of(capped_)));
        outgoing();
        past_the_gate();
        controlled();
        server_.run_once(0);
        server_.run_once(1);
        const std::uint32_t rounds = std::getenv("NETIO_LONG") != nullptr ? 40 : 20;
        check(rounds == 40 ? "20,000 connections" : "10,000 connections",
              many_connections(server_, port_of(plain_), rounds));
        server_.drain(100);
        check("drain ends the run", server_.run() == netio::error::none);
        check("every pool is full again", pools_full(server_));
        check("each opened connection closed once",
              handler_.opened == handler_.closed && handler_.opened > at_once * rounds);
        return failed_count_;
    }

private:
    void check(const char* name, bool holds) noexcept {
        char line[128] = "no_heap: ";
        std::strncat(line, name, 80);
        std::strncat(std::strcat(line, "."), Backend::name, 20);
        failed_count_ += no_heap::check(line, holds);
    }
    std::uint16_t port_of(netio::listener_id id) const noexcept { return server_.local(id).port; }

    void listen() noexcept {
        check("listening",
              server_.listen({.address = "127.0.0.1"}, &plain_) == netio::error::none &&
                  server_.listen({.address = "127.0.0.1", .connections_max = 2}, &capped_) ==
                      netio::error::none &&
                  server_.listen({.address = "127.0.0.1", .proxy = netio::proxy_mode::required},
                                 &behind_) == netio::error::none);
        check("a failure in a line",
              server_.listen({.address = "localhost"}) == netio::error::host_name_given &&
                  netio::report("no_heap", server_) == 1);
    }
    void talk() noexcept {
        client peer(port_of(plain_));
        peer.send("some bytes");
        check("echo", peer.receives("some bytes", server_));
        check("post", server_.post(handler_.last, 1) && peer.receives("posted", server_));
        peer.send("kill me");
        check("kill", peer.ends(server_) && turns_until_empty(server_) && handler_.killed == 1);
        client other(port_of(plain_));
        other.send("some bytes");
        check("kill by id", other.receives("some bytes", server_) &&
                                server_.kill(handler_.last, 4) && other.ends(server_) &&
                                turns_until_empty(server_) && handler_.killed == 2 &&
                                !server_.close(handler_.last, 1));
    }
    /// A listener each for who is refused, who is answered and whose answer is held back.
    void past_the_gate() noexcept {
        netio::listener_id id;
        const bool listens = server_.listen({.address = "127.0.0.1",
                                             .source_connections_max = 2}, &id) ==
                             netio::error::none;
        gate_.listener_refused = id.index;
        client refused(port_of(id));
        check("the gate refuses", listens && refused.ends(server_));
        gate_.listener_refused = gate::nobody;
        gate_.listener_answered = id.index;
        client answered(port_of(id));
        check("the gate answers", answered.receives("not you", server_) &&
                                      answered.ends(server_));
        answered.close();
        gate_.listener_answered = gate::nobody;
        gate_.listener_denied = id.index;
        client denied(port_of(id));
        denied.send("question");
        check("the gate holds back", denied.receives("no more", server_) && denied.ends(server_));
        denied.close();
        gate_.listener_denied = gate::nobody;
        turns_until_empty(server_);
        client first(port_of(id));
        client second(port_of(id));
        client third(port_of(id));
        check("source cap", third.ends(server_) && server_.stats().open == 2);
        first.close();
        second.close();
        check("a listener is removed", turns_until_empty(server_) && server_.remove_listener(id) &&
                                           gate_.inside == 0 && gate_.bytes_out != 0);
    }
    void controlled() noexcept {
        server_.close_door();
        server_.run_once(1);
        server_.open_door();
        server_.control(netio::control_state::lockdown);
        server_.run_once(1);
        client locked_out(port_of(plain_));
        check("lockdown", locked_out.ends(server_));
        server_.control(netio::control_state::shed, 1);
        server_.run_once(1);
        client shed(port_of(plain_));
        check("shedding", shed.ends(server_));
        server_.control(netio::control_state::normal);
        server_.run_once(1);
        static char page[netio::server_stats::prometheus_bytes_max];
        check("a page for Prometheus", server_.stats().write_prometheus(page) != 0);
    }
    void behind_a_proxy() noexcept {
        using namespace std::string_view_literals;
        client peer(port_of(behind_));
        peer.send("\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x12\xC0\x00\x02\x01\xC0\x00\x02\x02"
                  "\xDC\x04\x01\xBB\xE3\x00\x03xyz" "payload"sv);
        check("PROXY with a TLV", peer.receives("payload", server_) && handler_.proxied == 1);
        client direct(port_of(behind_));
        direct.send("GET / HTTP/1.1\r\n");
        check("a direct client is refused", direct.ends(server_));
    }
    void datagrams() noexcept {
        const auto udp = server_.open_datagram({.address = "127.0.0.1"});
        client peer(server_.local(udp.value).port, SOCK_DGRAM);
        peer.send("datagram");
        check("datagrams", peer.receives("datagram", server_) && handler_.datagrams == 1);
    }
    void outgoing() noexcept {
        const auto out = server_.connect(netio::loopback_ipv4(port_of(plain_)), 5);
        const bool greeted = out && [&] {
            for (int turn = 0; turn < 2000 && handler_.greeted == 0; ++turn) {
                server_.run_once(1);
            }
            return handler_.greeted >= 1;
        }();
        server_.post(out.value, 0);
        server_.connect(netio::loopback_ipv4(1), 6);  // refused, at once or a little later
        const auto timer = server_.after(1, 9);
        for (int turn = 0; turn < 2000 && handler_.timers == 0; ++turn) {
            server_.run_once(1);
        }
        check("outgoing connections and timers",
              greeted && timer && handler_.timers == 1 && turns_until_empty(server_));
    }

    service handler_{};
    gate gate_{};
    netio::server<service, Backend, gate> server_{memory<Backend>, handler_, gate_};
    netio::listener_id plain_{};
    netio::listener_id capped_{};
    netio::listener_id behind_{};
    int failed_count_ = 0;
};

/// Runs a service over `Backend`; how many checks failed. Where the kernel does not offer it that
/// is said, and nothing else done.
template <class Backend>
int scenario_of() noexcept {
    const netio::availability kernel = Backend::available();
    if (!kernel.offered) {
        char line[160] = "no_heap: ";
        std::strncat(std::strcat(std::strncat(line, Backend::name, 20), " # SKIP no "),
                     kernel.missing, 100);
        return check(line, true);
    }
    client_os::start();
    return trial<Backend>{}.run();
}

}  // namespace no_heap

#endif
