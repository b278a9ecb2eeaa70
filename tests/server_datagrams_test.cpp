// Budgets of UDP sources, what an address gets before it is proven, and tables that fill up: what
// happens at n and at n + 1.
#include "tests/server_world.hpp"

#include <algorithm>

namespace {

using netio_test::on_both_kernels;
using netio_test::text_of;

/// A server with one UDP socket, and peers of any address: strangers can put down any sender.
struct mail_world : netio_test::server_world<> {
    netio::datagram_id socket{};
    netio::endpoint here{};
    std::uint32_t heard = 0;

    explicit mail_world(bool proactor, netio::datagram_options how = {},
                        const netio::limits& chosen = netio_test::small_limits)
        : server_world(proactor, chosen) {
        handler.packet = [this](netio::datagram_socket&, const netio::datagram&) { ++heard; };
        how.address = "127.0.0.1";
        const auto made = server->open_datagram(how);
        REQUIRE(static_cast<bool>(made));
        socket = made.value;
        pump();
        here = server->local(socket);
    }
    std::uint32_t peer(std::uint32_t number, std::uint16_t from = 4000) {
        return net.datagram_peer(netio::ipv4(10, 0, static_cast<std::uint8_t>(number >> 8),
                                             static_cast<std::uint8_t>(number), from));
    }
    void send(std::uint32_t from, std::string_view text, int times = 1) {
        for (int each = 0; each < times; ++each) {
            CHECK(net.send_datagram(from, here, netio::as_bytes(text)));
        }
        pump(20);
    }
    std::size_t got_bytes(std::uint32_t of) {
        std::size_t sum = 0;
        for (const netio_test::sim_datagram& each : net.datagrams(of)) {
            sum += each.payload.size();
        }
        return sum;
    }
    auto counts() const { return server->stats().counts; }
    netio::pool_stats pool(std::string_view name) const {
        for (const netio::pool_stats& each : server->stats().pools) {
            if (each.name == name) {
                return each;
            }
        }
        FAIL("no such pool");
        return {};
    }
};

/// And one a second: what the turns of a test take makes no difference.
constexpr netio::datagram_rates five_at_once{.rate_max = 1, .burst_max = 5};

std::string mail_header(std::uint8_t client, bool local = false) {
    netio::proxy::header is;
    is.cmd = local ? netio::proxy::command::local : netio::proxy::command::proxy;
    is.proto = netio::proxy::transport::datagram;
    is.fam = netio::proxy::family::ipv4;
    is.source = netio::ipv4(192, 0, 2, client, 1000);
    is.destination = netio::ipv4(192, 0, 2, 255, 53);
    std::byte out[64];
    const std::size_t count = netio::proxy::encode_v2(is, {}, out, false);
    REQUIRE(count != 0);
    return std::string(reinterpret_cast<const char*>(out), count);
}

}  // namespace

TEST_CASE("UDP budget: of one source's flood the handler sees n, others are heard as before") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor, {.source = five_at_once});
        const std::uint32_t flooder = w.peer(1);
        w.send(flooder, "x", 5);
        CHECK(w.heard == 5);
        CHECK(w.counts().datagrams_over_source == 0);
        w.send(flooder, "x");
        CHECK(w.heard == 5);
        CHECK(w.counts().datagrams_over_source == 1);
        w.send(w.peer(1, 4001), "another port is the same source", 10);
        CHECK(w.heard == 5);
        w.send(flooder, "x", 200);
        CHECK(w.heard == 5);
        w.send(w.peer(2), "x", 5);
        CHECK(w.heard == 10);
        CHECK(w.counts().datagrams_over_source == 211);
        CHECK(w.counts().datagrams_in == 221);
        CHECK(w.pool("input_buffers").in_use == 0);
        w.pass(1'000);
        w.send(flooder, "x", 3);
        CHECK(w.heard == 11);
    });
}

TEST_CASE("UDP budget: a flood is told as some and a count, with whose it was") {
    on_both_kernels([](bool proactor) {
        using what = netio::server_event_kind;
        mail_world w(proactor, {.source = five_at_once});
        w.send(w.peer(7), "x", 5 + 100);
        CHECK(w.events.count(what::datagram_dropped) == netio::burst_events_max);
        CHECK(w.events.all.back().source == netio::ipv4(10, 0, 0, 7, 4000));
        CHECK(w.events.all.back().listener == w.socket.index);
        w.pass(1'100);
        REQUIRE(w.events.count(what::coalesced) == 1);
        CHECK(w.events.all.back().of == what::datagram_dropped);
        CHECK(w.events.all.back().count == 100 - netio::burst_events_max);
    });
}

TEST_CASE("UDP budget: bytes count, too, and so does what all sources send together") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor, {.source = {.bytes_rate_max = 1, .bytes_burst_max = 1'500},
                                .total = {.rate_max = 1, .burst_max = 10}});
        const std::string large(1'000, 'x');
        w.send(w.peer(1), large);
        w.send(w.peer(1), std::string_view(large).substr(0, 501));
        CHECK(w.heard == 1);
        w.send(w.peer(1), std::string_view(large).substr(0, 500));
        CHECK(w.heard == 2);
        w.send(w.peer(1), "x", 50);
        CHECK(w.counts().datagrams_over_source == 51);
        for (std::uint32_t number = 2; number < 22; ++number) {
            w.send(w.peer(number), "x");
        }
        CHECK(w.heard == 10);
        CHECK(w.counts().datagrams_over_total == 12);
    });
}

TEST_CASE("UDP reflection: a spoofed address gets no more than was sent in its name") {
    for (const std::uint32_t factor : {1u, 3u}) {
        on_both_kernels([&](bool proactor) {
            mail_world w(proactor, {.amplification = factor});
            std::uint32_t sent = 0;
            w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
                for (int each = 0; each < 4; ++each) {
                    sent += via.send_to(in.peer, in.payload) ? 1 : 0;
                }
            };
            const std::uint32_t victim = w.peer(1);
            for (int each = 0; each < 10; ++each) {
                w.send(victim, "ten bytes.");
            }
            CHECK(sent == 10 * factor);
            CHECK(w.got_bytes(victim) == 100 * factor);
            CHECK(w.counts().datagram_sends_denied == 10 * (4 - factor));
            CHECK(w.counts().datagrams_out == sent);
            CHECK(w.pool("output_buffers").in_use == 0);
            CHECK(w.pool("datagram_sends").in_use == 0);
        });
    }
}

TEST_CASE("UDP reflection: one large answer to a small question is held back, to the byte") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor);
        std::size_t wanted = 0;
        bool sent = false;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            sent = via.send_to(in.peer, netio::as_bytes(std::string(wanted, 'x')));
        };
        const std::uint32_t peer = w.peer(1);
        wanted = 11;
        w.send(peer, "ten bytes.");
        CHECK_FALSE(sent);
        wanted = 20;  // those of before are there yet
        w.send(peer, "ten bytes.");
        CHECK(sent);
        wanted = 0;
        w.send(peer, "");
        CHECK(sent);
        w.send(peer, "");
        wanted = 1'000;
        w.send(peer, "x");
        CHECK_FALSE(sent);
        w.pass(20'000);  // what was earned is over
        wanted = 2;
        w.send(peer, "x");
        CHECK_FALSE(sent);
    });
}

TEST_CASE("UDP reflection: who never wrote gets nothing until the program says who it is") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor, {.proven_ms = 5'000});
        const netio::endpoint server_of_another = netio::ipv4(10, 0, 0, 1, 4000);
        const std::uint32_t peer = w.peer(1);
        const auto ask = [&] { return w.server->send_to(w.socket, server_of_another, {}); };
        CHECK_FALSE(ask());
        CHECK_FALSE(w.server->prove(netio::datagram_id{1}, server_of_another));
        CHECK(w.server->prove(w.socket, server_of_another));
        CHECK(ask());
        CHECK_FALSE(w.server->send_to(w.socket, netio::ipv4(10, 0, 0, 1, 4001), {}));
        w.pass(4'900);
        CHECK(ask());
        w.pass(101);
        CHECK_FALSE(ask());
        CHECK(w.net.datagrams(peer).size() == 2);
    });
}

TEST_CASE("UDP reflection: a socket of a client writes first, by one option") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor, {.amplification = 0});
        const std::uint32_t server_of_another = w.peer(1);
        CHECK(w.server->send_to(w.socket, netio::ipv4(10, 0, 0, 1, 4000),
                                netio::as_bytes("a question")));
        w.pump();
        CHECK(w.got_bytes(server_of_another) == 10);
        w.send(server_of_another, "an answer");
        CHECK(w.heard == 1);
    });
}

TEST_CASE("UDP reflection: a handler proves whom it knows, and only that address") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor);
        std::uint32_t sent = 0;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            if (text_of(in.payload) == "token") {
                CHECK(via.prove(in.peer));
            }
            sent += via.send_to(in.peer, netio::as_bytes(std::string(500, 'x'))) ? 1 : 0;
        };
        w.send(w.peer(1), "question");
        CHECK(sent == 0);
        w.send(w.peer(1), "token");
        w.send(w.peer(1), "question");
        CHECK(sent == 2);
        w.send(w.peer(1, 4001), "question");
        CHECK(sent == 2);
    });
}

TEST_CASE("UDP reflection: what is not sent for want of room costs the address nothing") {
    mail_world w(false);
    std::vector<bool> sent;
    w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
        for (int each = 0; each < 6; ++each) {
            sent.push_back(via.send_to(in.peer, netio::as_bytes("x")));
        }
    };
    w.send(w.peer(1), "6 here");
    // Four places for sends: the others are refused for that, and not counted as denied.
    CHECK(sent == std::vector<bool>{true, true, true, true, false, false});
    CHECK(w.counts().datagram_sends_denied == 0);
    sent.clear();
    w.send(w.peer(1), "1");
    CHECK(sent == std::vector<bool>{true, true, true, false, false, false});
    CHECK(w.counts().datagram_sends_denied == 3);
}

TEST_CASE("UDP behind a proxy: one client's flood is its own, and the proxy is none") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor, {.proxy = netio::proxy_mode::required,
                                .trusted = "10.0.0.1",
                                .source = five_at_once});
        const std::uint32_t proxy = w.peer(1);
        w.send(proxy, mail_header(1) + "flood", 50);
        CHECK(w.heard == 5);
        CHECK(w.counts().datagrams_over_source == 45);
        CHECK(w.events.all.back().source == netio::ipv4(192, 0, 2, 1, 1000));
        w.send(proxy, mail_header(2) + "other", 5);
        CHECK(w.heard == 10);
        w.send(proxy, mail_header(1, true) + "health check", 30);  // LOCAL: nobody's budget
        CHECK(w.heard == 40);
        // Who is not in the list is turned away before anything is parsed or remembered.
        w.send(w.peer(9), mail_header(3) + "forged", 20);
        CHECK(w.heard == 40);
        CHECK(w.counts().datagrams_refused == 20);
        CHECK(w.pool("datagram_sources").in_use == 2);
        CHECK(w.pool("datagram_addresses").in_use == 0);
    });
}

TEST_CASE("UDP behind a proxy: answers to a listed one are proven, an unlisted one earns them") {
    on_both_kernels([](bool proactor) {
        for (const bool listed : {true, false}) {
            CAPTURE(listed);
            mail_world w(proactor, {.proxy = netio::proxy_mode::required,
                                    .trusted = listed ? "10.0.0.0/24" : ""});
            bool sent = false;
            std::size_t wanted = mail_header(1).size() + 2;  // all that came, the header too
            w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
                sent = via.send_to(in.peer, netio::as_bytes(std::string(wanted, 'x')));
                CHECK_FALSE(via.send_to(in.source, netio::as_bytes("x")));
            };
            w.send(w.peer(1), mail_header(1) + "hi");
            CHECK(sent);
            wanted = 1'000;
            w.send(w.peer(1), mail_header(1) + "hi");
            CHECK(sent == listed);
        }
    });
}

TEST_CASE("UDP table: a flood of spoofed sources takes nothing from those who are in it") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = netio_test::small_limits;
        sizes.datagram_sources_max = 16;
        mail_world w(proactor, {.source = five_at_once}, sizes);
        std::uint32_t answered = 0;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            ++w.heard;
            if (in.payload.size() == 4) {
                answered += via.send_to(in.peer, in.payload) ? 1 : 0;
            }
        };
        const std::uint32_t known = w.peer(1);
        w.send(known, "x");
        w.send(known, "x");
        CHECK(w.pool("datagram_sources").in_use == 1);
        for (std::uint32_t number = 1'000; number < 1'500; ++number) {
            CHECK(w.net.send_datagram(w.peer(number), w.here, netio::as_bytes("spoofed")));
        }
        w.pump(200);
        // Those without a place were five together; nobody found more than sixteen places.
        CHECK(w.pool("datagram_sources").capacity == 16);
        CHECK(w.pool("datagram_sources").in_use <= 16);
        CHECK(w.pool("datagram_sources").refused >= 485);
        CHECK(w.heard <= 2 + 15 + 5);
        w.heard = 0;
        w.send(known, "ping", 5);
        CHECK(w.heard == 3);  // two of five it had used
        CHECK(answered == 3);
        w.pass(6'000);
        w.heard = 0;
        w.send(known, "ping", 7);
        CHECK(w.heard == 5);
    });
}

TEST_CASE("UDP table: without one nothing that depends on it is bounded, the total is") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = netio_test::small_limits;
        sizes.datagram_sources_max = 0;
        mail_world w(proactor,
                     {.source = five_at_once, .total = {.rate_max = 1, .burst_max = 50}},
                     sizes);
        w.send(w.peer(1), "x", 60);
        CHECK(w.heard == 50);
        CHECK(w.counts().datagrams_over_total == 10);
        CHECK(w.server->send_to(w.socket, netio::ipv4(10, 0, 0, 1, 9), netio::as_bytes("x")));
        CHECK(w.pool("datagram_sources").capacity == 0);
        const auto bytes = [](std::uint32_t sources) {
            netio::limits of = netio_test::small_limits;
            of.datagram_sources_max = sources;
            return netio::bytes_needed<netio_test::simulator>(of);
        };
        static_assert(netio::limits{}.datagram_sources_max == 4096);
        CHECK(bytes(4096) - bytes(0) == 4096 * 64);
    });
}

TEST_CASE("UDP table: no key, no socket that would need one") {
    netio_test::sim_options how;
    how.gives_random = false;
    netio_test::server_world<> w(false, netio_test::small_limits, how);
    CHECK(w.server->open_datagram({}).why == netio::error::os_failure);
    CHECK(w.server->failure().subject == std::string("datagram_sources_max"));
}

TEST_CASE("UDP table: a server that is destroyed without a stop leaves none of it behind") {
    using netio_test::simulator;
    on_both_kernels([](bool proactor) {
        const netio::limits sizes = netio_test::small_limits;
        const netio_test::fresh_memory memory(netio::bytes_needed<simulator>(sizes));
        netio_test::sim_network net(netio_test::sim_chooser(1),
                                    netio_test::server_world<>::personality({}, proactor));
        net.enter();
        const auto place = netio::detail::storage_layout<simulator>::of(sizes);
        const auto tables = memory.all().subspan(
            place.workers + place.worker.sources,
            sizes.datagram_sources_max * netio::detail::datagram_sources::source_bytes);
        const auto bytes_left = [&] {
            return tables.size() - static_cast<std::size_t>(std::count(
                                       tables.begin(), tables.end(), std::byte{0}));
        };
        {
            netio_test::scripted handler;
            netio::server<netio_test::scripted, simulator> server(
                netio::storage_view{memory.all(), sizes}, handler);
            const auto socket = server.open_datagram({.address = "127.0.0.1"});
            REQUIRE(static_cast<bool>(socket));
            server.run_once(0);
            CHECK(net.send_datagram(net.datagram_peer(netio::ipv4(10, 0, 0, 1, 4000)),
                                    server.local(socket.value), netio::as_bytes("x")));
            for (int turn = 0; turn < 20; ++turn) {
                server.run_once(0);
            }
            CHECK(bytes_left() != 0);
        }
        CHECK(bytes_left() == 0);
    });
}

TEST_CASE("UDP options out of range are refused by name, and the limits of the range are not") {
    netio_test::server_world<> w(false);
    const auto refused = [&](const netio::datagram_options& how, std::string_view field) {
        CAPTURE(field);
        CHECK(w.server->open_datagram(how).why == netio::error::option_invalid);
        CHECK(w.server->failure().subject == field);
    };
    refused({.source = {.rate_max = 1}}, "source.burst_max");
    refused({.source = {.bytes_rate_max = 1, .bytes_burst_max = 1'023}}, "source.bytes_burst_max");
    refused({.total = {.rate_max = 1}}, "total.burst_max");
    refused({.total = {.bytes_rate_max = 1, .bytes_burst_max = 1'023}}, "total.bytes_burst_max");
    refused({.amplification = 4}, "amplification");
    refused({.window_ms = 999}, "window_ms");
    refused({.window_ms = 3'600'001}, "window_ms");
    refused({.proven_ms = 999}, "proven_ms");
    refused({.proven_ms = 86'400'001}, "proven_ms");
    CHECK(static_cast<bool>(w.server->open_datagram(
        {.source = {.rate_max = 1, .burst_max = 1, .bytes_rate_max = 1, .bytes_burst_max = 1'024},
         .amplification = 3,
         .window_ms = 1'000,
         .proven_ms = 1'000})));
    CHECK(static_cast<bool>(w.server->open_datagram(
        {.source = {}, .amplification = 0, .window_ms = 3'600'000, .proven_ms = 86'400'000})));
    CHECK(w.server->open_datagram({}).why == netio::error::full);
}

TEST_CASE("UDP budget: a datagram larger than any buffer fits a budget's bytes") {
    on_both_kernels([](bool proactor) {
        mail_world w(proactor, {.source = {.bytes_rate_max = 1, .bytes_burst_max = 1'024}});
        w.send(w.peer(1), std::string(3'000, 'x'));
        CHECK(w.heard == 1);
        w.send(w.peer(1), "x");
        CHECK(w.heard == 1);
    });
}
