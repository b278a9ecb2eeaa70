// PROXY headers as a server meets them: required, split, late, forged, long, and their quota.
#include "tests/server_world.hpp"

namespace {

using netio_test::sim_peer;
using netio_test::small_limits;
using netio_test::on_both_kernels;
using netio_test::text_of;
using world = netio_test::server_world<>;

constexpr netio::listen_options server_proxy_required{.proxy = netio::proxy_mode::required};
constexpr std::string_view server_proxy_v1 =
    "PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n";

/// A v2 IPv4 header of exactly `total` bytes: the rest of it is one TLV of type E0.
std::string server_proxy_v2(std::size_t total, char fill = 't') {
    std::string out("\r\n\r\n\0\r\nQUIT\n", 12);
    const std::size_t after = total - 16;
    out += '\x21';
    out += '\x11';
    out += static_cast<char>(after >> 8);
    out += static_cast<char>(after & 0xFF);
    out += std::string("\xC0\x00\x02\x01\xC6\x33\x64\x02\xDC\x04\x01\xBB", 12);
    if (total > 28) {
        const std::size_t value = total - 31;
        out += '\xE0';
        out += static_cast<char>(value >> 8);
        out += static_cast<char>(value & 0xFF);
        out += std::string(value, fill);
    }
    REQUIRE(out.size() == total);
    return out;
}

}  // namespace

TEST_CASE("behind a proxy the handler sees the real client, and the payload untouched") {
    on_both_kernels([](bool proactor) {
        for (const std::string& header :
             {std::string(server_proxy_v1), server_proxy_v2(28), server_proxy_v2(90)}) {
            world w(proactor);
            std::string got;
            w.handler.open = [&](netio::connection& c) {
                CHECK(c.proxied());
                CHECK(c.source() == netio::ipv4(192, 0, 2, 1, 56324));
                CHECK(c.destination() == netio::ipv4(198, 51, 100, 2, 443));
                CHECK(c.tlvs().find(0xE0).present() == (header.size() == 90));
                CHECK(c.proxy_header() != nullptr);
            };
            w.handler.data = [&](netio::connection& c, netio::bytes in) {
                CHECK(c.proxy_header() == nullptr);
                CHECK(c.tlvs().begin() == c.tlvs().end());
                got += text_of(in);
                return in.size();
            };
            w.listen(server_proxy_required);
            sim_peer peer = w.net.connect(w.port);
            peer.send(header + "GET /");
            w.pump();
            CHECK(got == "GET /");
            CHECK(w.handler.opened == 1);
        }
    });
}

TEST_CASE("a header may come in any two pieces, or byte by byte, with or without payload behind") {
    on_both_kernels([](bool proactor) {
        for (const std::string& header : {std::string(server_proxy_v1), server_proxy_v2(40)}) {
            const std::string whole = header + "HELLO";
            for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
                CAPTURE(cut);
                world w(proactor);
                std::string got;
                w.handler.data = [&](netio::connection&, netio::bytes in) {
                    got += text_of(in);
                    return in.size();
                };
                w.listen(server_proxy_required);
                sim_peer peer = w.connect();
                if (cut == whole.size()) {  // byte by byte
                    for (const char each : whole) {
                        peer.send(std::string_view(&each, 1));
                        w.pump(4);
                    }
                } else {
                    peer.send(std::string_view(whole).substr(0, cut));
                    w.pump(8);
                    CHECK(w.handler.opened == (cut >= header.size() ? 1 : 0));
                    peer.send(std::string_view(whole).substr(cut));
                }
                w.pump(10);
                CHECK(got == "HELLO");
                CHECK(w.handler.opened == 1);
            }
        }
    });
}

TEST_CASE("a direct client on a PROXY port is refused as proxy_missing, and never opens") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.listen(server_proxy_required);
        sim_peer peer = w.connect();
        peer.send("GET / HTTP/1.1\r\n\r\n");
        w.pump();
        CHECK(peer.was_reset());
        CHECK(w.handler.opened == 0);
        CHECK(w.handler.closed == 0);
        CHECK(w.events.all.back().reason.kind == netio::close_kind::proxy_missing);
    });
}

TEST_CASE("where PROXY is off the header is payload") {
    world w(false);
    std::string got;
    w.handler.data = [&](netio::connection& c, netio::bytes in) {
        CHECK_FALSE(c.proxied());
        got += text_of(in);
        return in.size();
    };
    w.listen();
    sim_peer peer = w.connect();
    peer.send(server_proxy_v1);
    w.pump();
    CHECK(got == server_proxy_v1);
}

TEST_CASE("a broken header ends in proxy_invalid with the rule it broke") {
    world w(false);
    w.listen(server_proxy_required);
    sim_peer peer = w.connect();
    peer.send("PROXY TCP4 192.0.2.1 192.0.2.2 56324 065\r\n");
    w.pump();
    CHECK(peer.was_reset());
    CHECK(w.events.all.back().reason.kind == netio::close_kind::proxy_invalid);
    CHECK(w.events.all.back().reason.why() == netio::error::v1_port);
}

TEST_CASE("only listed proxies are believed, and strangers are not read at all") {
    on_both_kernels([](bool proactor) {
        netio::listen_options how = server_proxy_required;
        how.trusted = "203.0.113.0/24, 2001:db8::/32";
        how.dual_stack = true;
        world w(proactor);
        w.listen(how);
        sim_peer stranger = w.connect(netio::ipv4(192, 0, 2, 7, 5000));
        w.pump();
        CHECK(stranger.was_reset());
        CHECK(w.events.all.back().reason.kind == netio::close_kind::proxy_untrusted);
        sim_peer proxy = w.connect(netio::ipv4(203, 0, 113, 9, 5000));
        proxy.send(server_proxy_v1);
        w.pump();
        CHECK(w.handler.opened == 1);
        sim_peer mapped =
            w.connect(netio::mapped(netio::ipv4(203, 0, 113, 10, 5001)));
        mapped.send(server_proxy_v1);
        w.pump();
        CHECK(w.handler.opened == 2);
    });
}

TEST_CASE("LOCAL keeps the real addresses and goes on; silent health checks end quietly") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.open = [](netio::connection& c) {
            CHECK_FALSE(c.proxied());
            CHECK(c.source() == netio::ipv4(203, 0, 113, 9, 5000));
        };
        w.listen(server_proxy_required);
        std::string local("\r\n\r\n\0\r\nQUIT\n\x20\x11\x00\x0C", 16);
        local += std::string(12, '\0');
        sim_peer check = w.connect(netio::ipv4(203, 0, 113, 9, 5000));
        check.send(local + "hi");
        w.pump();
        CHECK(w.handler.opened == 1);
        CHECK(w.handler.count("data 2") == 1);

        sim_peer empty = w.connect();
        empty.shutdown();
        w.pump();
        CHECK(w.events.all.back().reason.kind == netio::close_kind::peer_closed);
        CHECK_FALSE(empty.was_reset());

        sim_peer half = w.connect();
        half.send("PROXY");
        half.shutdown();
        w.pump();
        CHECK(w.events.all.back().reason.kind == netio::close_kind::proxy_invalid);
        CHECK(w.events.all.back().reason.why() == netio::error::header_unfinished);

        sim_peer gone = w.connect();
        gone.send("PROXY");
        gone.reset();
        w.pump();
        CHECK(w.events.all.back().reason.kind == netio::close_kind::peer_reset);
    });
}

TEST_CASE("the header deadline is absolute: silence, a trickle and a late byte all end there") {
    on_both_kernels([](bool proactor) {
        netio::listen_options how = server_proxy_required;
        how.times.preface_ms = 3000;
        for (const int pattern : {0, 1, 2}) {
            world w(proactor);
            w.listen(how);
            sim_peer peer = w.connect();
            for (int at = 1; at <= 5; ++at) {
                w.pass(pattern == 0 ? 0 : 500);
                if (pattern == 1) {
                    peer.send(server_proxy_v1.substr(static_cast<std::size_t>(at - 1), 1));
                }
            }
            if (pattern == 2) {
                w.pass(400);
                peer.send("P");
            }
            w.pass(pattern == 0 ? 2990 : pattern == 1 ? 490 : 90);
            CHECK(w.server->stats().open == 1);
            w.pass(20);
            CHECK(w.server->stats().open == 0);
            CHECK(w.events.all.back().reason.kind == netio::close_kind::preface_timeout);
            CHECK(peer.was_reset());
        }
    });
}

TEST_CASE("versions can be restricted") {
    netio::listen_options how = server_proxy_required;
    how.versions = netio::proxy_accept::v2;
    world w(false);
    w.listen(how);
    sim_peer first = w.connect();
    first.send(server_proxy_v1);
    w.pump();
    CHECK(first.was_reset());
    sim_peer second = w.connect();
    second.send(server_proxy_v2(28));
    w.pump();
    CHECK(w.handler.opened == 1);
}

TEST_CASE("536 bytes of header need no buffer; more needs a listener that allows it") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = small_limits;
        sizes.buffer_bytes = 8192;
        for (const std::uint32_t header_max : {536u, 4096u}) {
            for (const std::size_t total : {535u, 536u, 537u, 4096u, 4097u}) {
                CAPTURE(header_max);
                CAPTURE(total);
                netio::listen_options how = server_proxy_required;
                how.trusted = "0.0.0.0/0";
                how.header_max = header_max;
                world w(proactor, sizes);
                std::string got;
                std::size_t value = 0;
                w.handler.open = [&](netio::connection& c) {
                    value = c.tlvs().find(0xE0).value.size();
                };
                w.handler.data = [&](netio::connection&, netio::bytes in) {
                    got += text_of(in);
                    return in.size();
                };
                w.listen(how);
                sim_peer peer = w.net.connect(w.port);
                peer.send(server_proxy_v2(total) + "payload");
                w.pump();
                CHECK(w.handler.opened == (total <= header_max ? 1 : 0));
                CHECK(got == (total <= header_max ? "payload" : ""));
                CHECK(value == (total <= header_max ? total - 31 : 0));
                CHECK(peer.was_reset() == (total > header_max));
                if (total > header_max) {
                    CHECK(w.events.all.back().reason.why() == netio::error::v2_too_big);
                }
            }
        }
    });
}

TEST_CASE("long prefaces have a quota of their own, and give it back") {
    netio::limits sizes = small_limits;
    sizes.buffer_bytes = 8192;
    netio::listen_options how = server_proxy_required;
    how.trusted = "0.0.0.0/0";
    how.header_max = 4096;
    world w(false, sizes);
    w.listen(how);
    const std::string header = server_proxy_v2(4000);
    sim_peer peers[3];
    for (sim_peer& each : peers) {
        each = w.connect();
        each.send(std::string_view(header).substr(0, 536));
        w.pump();
    }
    CHECK(peers[2].was_reset());  // two preface buffers only
    CHECK(w.events.all.back().reason.kind == netio::close_kind::refused);
    CHECK(w.events.all.back().reason.cause() == netio::refusal_cause::busy);
    peers[0].send(std::string_view(header).substr(536));
    peers[1].reset();
    w.pump();
    CHECK(w.handler.opened == 1);
    CHECK(w.server->stats().pools[1].in_use == 0);
    sim_peer again = w.net.connect(w.port);
    again.send(header);
    w.pump();
    CHECK(w.handler.opened == 2);
}

TEST_CASE("bytes behind the header wait in the inline memory while no pool buffer is free") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = small_limits;
        sizes.input_buffers_max = 1;
        world w(proactor, sizes);
        netio::connection_id holder;
        bool release = false;
        std::string got;
        w.handler.open = [&](netio::connection& c) {
            if (!holder) {
                holder = c.id();
            }
        };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            if (c.id() == holder) {
                return release ? in.size() : std::size_t{0};
            }
            if (in.size() < 900) {
                return std::size_t{0};  // wants 900 in one piece, more than the inline bytes
            }
            got = text_of(in);
            return in.size();
        };
        w.listen(server_proxy_required);
        sim_peer first = w.connect();
        first.send(std::string(server_proxy_v1) + "kept");
        w.pump();
        CHECK(w.server->stats().pools[1].in_use == 1);
        sim_peer second = w.net.connect(w.port);
        const std::string body(900, 'b');
        second.send(std::string(server_proxy_v1) + body.substr(0, 300));
        w.pump();
        second.send(std::string_view(body).substr(300));
        w.pump();
        CHECK(got == "");
        release = true;
        first.send("!");
        w.pump();
        CHECK(got == body);
    });
}

TEST_CASE("a proxied datagram names its client; one without a header is dropped and counted") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        std::vector<std::string> got;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            CHECK(in.proxied);
            CHECK(in.source == netio::ipv4(192, 0, 2, 1, 56324));
            got.push_back(text_of(in.payload));
            via.send_to(in.peer, netio::as_bytes("ok"));
        };
        const auto id = w.server->open_datagram(
            {.address = "127.0.0.1", .proxy = netio::proxy_mode::required});
        REQUIRE(static_cast<bool>(id));
        w.pump();
        const netio::endpoint here = w.server->local(id.value);
        const std::uint32_t peer = w.net.datagram_peer(netio::ipv4(127, 0, 0, 1, 40'000));
        std::string header = server_proxy_v2(28);
        header[13] = '\x12';
        w.net.send_datagram(peer, here, netio::as_bytes(header + "data"));
        w.net.send_datagram(peer, here, netio::as_bytes("no header"));
        w.net.send_datagram(peer, here, netio::as_bytes(header.substr(0, 20)));
        w.pump();
        CHECK(got == std::vector<std::string>{"data"});
        CHECK(w.server->stats().counts.datagrams_refused == 2);
        CHECK(w.net.datagrams(peer).size() == 1);
    });
}

TEST_CASE("ten thousand health checks that connect and close disturb nobody and leave nothing") {
    world w(false);
    w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
    w.listen(server_proxy_required);
    sim_peer client = w.connect();
    client.send(server_proxy_v1);
    w.pump();
    for (int at = 0; at < 10'000; ++at) {
        sim_peer check = w.net.connect(w.port);
        check.close();
        w.pump(3);
        if (at % 1000 == 0) {
            client.send("ping");
            w.pump(3);
            CHECK(client.take_text() == "ping");
        }
    }
    w.pump();
    CHECK(w.server->stats().open == 1);
    CHECK(w.handler.opened == 1);
    CHECK(w.server->stats().counts.accepted == 10'001);
    CHECK(w.server->stats().counts.refused == 0);
}
