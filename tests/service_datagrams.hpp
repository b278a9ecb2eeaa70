// The rows `datagrams …` of the service's suite.
#ifndef NETIO_TESTS_SERVICE_DATAGRAMS_HPP
#define NETIO_TESTS_SERVICE_DATAGRAMS_HPP

#include "tests/service_proxy.hpp"
#include "tests/service_world.hpp"

namespace netio_test {

template <class Backend>
struct service_datagrams {
    using world = service_world<Backend>;

    static netio::datagram_id open(world& w, const netio::datagram_options& how) {
        const auto made = w.server().open_datagram(how);
        REQUIRE(static_cast<bool>(made));
        return made.value;
    }
    static void echo(world& w) {
        w.handler.packet = [](netio::datagram_socket& via, const netio::datagram& in) {
            CHECK(via.send_to(in.peer, in.payload));
        };
    }
    /// Turns until the next datagram is there.
    static std::string next(world& w, client_socket& client) {
        std::string out;
        REQUIRE(w.until([&] { return client.next_datagram(out); }));
        return out;
    }
    static void nothing_more(world& w, client_socket& client) {
        std::string out;
        for (int turn = 0; turn < 5; ++turn) {
            w.server().run_once(1);
        }
        CHECK_FALSE(client.next_datagram(out));
    }

    static void echo_of_sizes() {
        world w;
        echo(w);
        const auto id = open(w, {.address = "127.0.0.1"});
        client_socket client = client_socket::datagrams(w.server().local(id));
        std::uint64_t count = 0;
        for (const std::size_t size : {1u, 0u, 2u, 500u, 0u, 1023u, 1024u}) {
            CAPTURE(size);
            const std::string text = service_pattern(size);
            CHECK(client.send(text) == size);
            CHECK(next(w, client) == text);
            CHECK(w.server().stats().counts.datagrams_in == ++count);
        }
        CHECK(w.until([&] { return w.server().stats().counts.datagrams_out == count; }));
        nothing_more(w, client);
    }

    static void cut() {
        world w;
        std::vector<std::pair<std::string, bool>> got;
        w.handler.packet = [&](netio::datagram_socket&, const netio::datagram& in) {
            got.emplace_back(text_of(in.payload), in.truncated);
        };
        const auto id = open(w, {.address = "127.0.0.1"});
        client_socket client = client_socket::datagrams(w.server().local(id));
        const std::string text = service_pattern(service_limits.buffer_bytes + 1);
        CHECK(client.send(text) == text.size());
        CHECK(client.send("short") == 5);
        CHECK(w.until([&] { return got.size() == 2; }));
        REQUIRE(got.size() == 2);
        CHECK(got[0].first == text.substr(0, service_limits.buffer_bytes));
        CHECK(got[0].second);
        CHECK(got[1] == std::pair{std::string("short"), false});
    }

    static void burst() {
        world w;
        echo(w);
        const auto id = open(w, {.address = "127.0.0.1"});
        client_socket client = client_socket::datagrams(w.server().local(id));
        constexpr int count = 60;  // more than buffers, sends and events of a turn
        for (int each = 0; each < count; ++each) {
            client.send("datagram " + std::to_string(each));
        }
        for (int each = 0; each < count; ++each) {
            CHECK(next(w, client) == "datagram " + std::to_string(each));
        }
        nothing_more(w, client);
    }

    static void sends_used_up() {
        world w;
        std::uint32_t sent = 0;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            CHECK_FALSE(via.send_to(in.peer, netio::as_bytes(std::string(1025, 'x'))));
            for (int each = 0; each < 20; ++each) {
                sent += via.send_to(in.peer, in.payload) ? 1 : 0;
            }
        };
        const auto id = open(w, {.address = "127.0.0.1", .amplification = 0});
        client_socket client = client_socket::datagrams(w.server().local(id));
        for (std::uint32_t round = 1; round <= 2; ++round) {
            CHECK(client.send("many") == 4);
            for (std::uint32_t each = 0; each < service_limits.datagram_sends_max; ++each) {
                CHECK(next(w, client) == "many");
            }
            nothing_more(w, client);
            CHECK(sent == round * service_limits.datagram_sends_max);
        }
        CHECK(w.server().stats().pools[5].refused == 24);
    }

    static void families() {
        world w;
        echo(w);
        std::string source;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            char line[netio::endpoint_text_max];
            source = netio::format(in.source, line);
            CHECK(via.send_to(in.peer, in.payload));
        };
        const auto serves = [&](const netio::endpoint& to, const std::string& prefix) {
            CAPTURE(prefix);
            client_socket client = client_socket::datagrams(to);
            CHECK(client.send("hello") == 5);
            CHECK(next(w, client) == "hello");
            CHECK(source == prefix + std::to_string(client.local().port));
        };
        const auto six = w.server().local(open(w, {.address = "::1"})).port;
        const auto both = w.server().local(open(w, {.dual_stack = true})).port;
        serves(netio::loopback_ipv6(six), "[::1]:");
        serves(netio::loopback_ipv6(both), "[::1]:");
        serves(netio::loopback_ipv4(both), "[::ffff:127.0.0.1]:");
    }

    static void proxied() {
        world w;
        std::vector<std::string> got;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            CHECK(in.proxied);
            CHECK(in.source == netio::ipv4(192, 0, 2, 1, 56324));
            got.push_back(text_of(in.payload));
            CHECK(via.send_to(in.peer, netio::as_bytes("ok")));
        };
        const auto id = open(w, {.address = "127.0.0.1", .proxy = netio::proxy_mode::required});
        client_socket client = client_socket::datagrams(w.server().local(id));
        const std::string header = service_proxy_header(28, '\x12');
        client.send("no header");
        client.send(header.substr(0, 20));
        client.send(header + "data");
        client.send(header);
        CHECK(next(w, client) == "ok");
        CHECK(next(w, client) == "ok");
        CHECK(got == std::vector<std::string>{"data", ""});
        CHECK(w.server().stats().counts.datagrams_refused == 2);
    }

    /// A large answer to a small question: held back until the client is proven.
    static void reflection() {
        world w;
        std::vector<bool> sent;
        const std::string answer = service_pattern(100);
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            if (text_of(in.payload) == "token") {
                CHECK(via.prove(in.peer));
            }
            sent.push_back(via.send_to(in.peer, netio::as_bytes(answer)));
        };
        const auto id = open(w, {.address = "127.0.0.1"});
        client_socket client = client_socket::datagrams(w.server().local(id));
        client.send(service_pattern(99));
        CHECK(w.until([&] { return sent.size() == 1; }));
        nothing_more(w, client);
        CHECK(w.server().stats().counts.datagram_sends_denied == 1);
        CHECK_FALSE(w.server().send_to(id, client.local(), netio::as_bytes(answer)));
        client.send("x");  // 100 in all
        CHECK(next(w, client) == answer);
        client.send("token");
        CHECK(next(w, client) == answer);
        CHECK(w.server().send_to(id, client.local(), netio::as_bytes(answer)));
        CHECK(next(w, client) == answer);
        CHECK(sent == std::vector<bool>{false, true, true});
        CHECK(w.server().stats().counts.datagram_sends_denied == 2);
    }

    /// So slow a rate that how long the case takes makes no difference.
    static void flood() {
        world w;
        echo(w);
        const auto id = open(w, {.address = "127.0.0.1",
                                 .source = {.bytes_rate_max = 1, .bytes_burst_max = 40'000}});
        client_socket client = client_socket::datagrams(w.server().local(id));
        const std::string text = service_pattern(1'000);
        for (std::uint64_t count = 1; count <= 60; ++count) {
            CHECK(client.send(text) == text.size());
            if (count <= 40) {
                CHECK(next(w, client) == text);
            }
            CHECK(w.until([&] { return w.server().stats().counts.datagrams_in == count; }));
        }
        nothing_more(w, client);
        CHECK(w.server().stats().counts.datagrams_over_source == 20);
        CHECK(w.until([&] { return w.server().stats().counts.datagrams_out == 40; }));
    }

    /// What comes back of a datagram nobody wanted does not end the socket.
    static void nobody_there() {
        world w;
        echo(w);
        const auto id = open(w, {.address = "127.0.0.1", .amplification = 0});
        client_socket client = client_socket::datagrams(w.server().local(id));
        netio::endpoint closed;
        {
            const client_socket gone = client_socket::datagrams(w.server().local(id));
            closed = gone.local();
        }
        for (int each = 0; each < 3; ++each) {
            CHECK(w.server().send_to(id, closed, netio::as_bytes("hello?")));
            w.server().run_once(1);
        }
        CHECK(w.server().send_to(id, client.local(), netio::as_bytes("unasked")));
        CHECK(next(w, client) == "unasked");
        CHECK(client.send("still here") == 10);
        CHECK(next(w, client) == "still here");
    }

    static void address_in_use() {
        world w;
        const auto id = open(w, {.address = "127.0.0.1"});
        const std::uint16_t port = w.server().local(id).port;
        const auto again = w.server().open_datagram({.address = "127.0.0.1", .port = port});
        CHECK(again.why == netio::error::address_in_use);
        CHECK(std::string(w.server().failure().operation) == "open_datagram");
    }
};

}  // namespace netio_test

#endif
