// Caps of sources, minimum rates, deadlines under pressure: what happens at n and at n + 1.
#include "tests/server_world.hpp"

namespace {

using netio::close_kind;
using netio::refusal_cause;
using netio_test::on_both_kernels;
using netio_test::sim_peer;
using caps_world = netio_test::server_world<>;

std::uint64_t refused_for_source(const caps_world& w) {
    return w.server->stats()
        .counts.refused_by[static_cast<std::size_t>(refusal_cause::source_cap)];
}
std::uint64_t sources_counted(const caps_world& w) { return w.server->stats().pools[8].in_use; }
netio::endpoint host(std::uint8_t last, std::uint16_t port = 0) {
    static std::uint16_t serial = 1000;
    return netio::ipv4(198, 51, 100, last, port == 0 ? ++serial : port);
}
std::string v1_of(std::string_view address) {
    return "PROXY TCP4 " + std::string(address) + " 192.0.2.1 5000 80\r\n";
}

}  // namespace

TEST_CASE("source cap: n connections of one address, the next is reset, others are not concerned") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        w.listen({.source_connections_max = 3});
        std::vector<sim_peer> peers;
        for (int each = 0; each < 3; ++each) {
            peers.push_back(w.connect(host(1)));
            CHECK_FALSE(peers.back().was_reset());
        }
        for (int again = 0; again < 20; ++again) {
            CHECK(w.connect(host(1)).was_reset());
        }
        CHECK(w.events.all.back().reason.cause() == refusal_cause::source_cap);
        CHECK(refused_for_source(w) == 20);
        CHECK_FALSE(w.connect(host(2)).was_reset());
        CHECK(sources_counted(w) == 2);
        peers[1].reset();
        w.pump();
        CHECK_FALSE(w.connect(host(1)).was_reset());
        CHECK(w.connect(host(1)).was_reset());
        CHECK(w.server->stats().open == 4);
    });
}

TEST_CASE("source cap: an IPv6 /64 is one source, and a mapped IPv4 address is that address") {
    caps_world w(false);
    w.listen({.dual_stack = true, .source_connections_max = 1});
    const auto ipv6 = [](std::string_view text, std::uint16_t port) {
        netio::endpoint at = netio::parse_address(text).value;
        at.port = port;
        return at;
    };
    CHECK_FALSE(w.connect(ipv6("2001:db8::1", 1)).was_reset());
    CHECK(w.connect(ipv6("2001:db8::ffff:2", 2)).was_reset());
    CHECK_FALSE(w.connect(ipv6("2001:db8:0:1::1", 3)).was_reset());
    CHECK_FALSE(w.connect(ipv6("::ffff:198.51.100.4", 4)).was_reset());
    CHECK(w.connect(ipv6("::ffff:198.51.100.4", 5)).was_reset());
    CHECK_FALSE(w.connect(ipv6("::ffff:198.51.100.5", 6)).was_reset());
}

TEST_CASE("source cap: behind PROXY the named client counts, not the proxy, and LOCAL does not") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        w.listen({.source_connections_max = 2, .proxy = netio::proxy_mode::required});
        std::vector<sim_peer> peers;
        const auto come = [&](const std::string& header) {
            peers.push_back(w.connect(host(250)));  // one proxy for all
            peers.back().send(header);
            w.pump();
            return !peers.back().was_reset();
        };
        CHECK(come(v1_of("203.0.113.1")));
        CHECK(come(v1_of("203.0.113.1")));
        CHECK_FALSE(come(v1_of("203.0.113.1")));
        CHECK(come(v1_of("203.0.113.2")));
        CHECK(refused_for_source(w) == 1);
        for (int each = 0; each < 5; ++each) {
            CHECK(come("PROXY UNKNOWN\r\n"));
        }
        for (int silent = 0; silent < 5; ++silent) {
            CHECK(come(""));  // not named yet: nobody's
        }
        CHECK(sources_counted(w) == 2);
        CHECK(w.handler.opened == 8);
        peers[0].close();
        w.pump();
        CHECK(come(v1_of("203.0.113.1")));
    });
}

TEST_CASE("source cap: unix sockets have no source") {
    caps_world w(false);
    netio::listener_id id;
    REQUIRE(w.server->listen({.unix_path = "/s", .source_connections_max = 1}, &id) ==
            netio::error::none);
    w.pump();
    std::vector<sim_peer> peers;
    for (int each = 0; each < 4; ++each) {
        peers.push_back(w.net.connect(std::string_view("/s")));
        w.pump();
        CHECK_FALSE(peers.back().was_reset());
    }
    CHECK(sources_counted(w) == 0);
}

TEST_CASE("source cap: listeners count together, each by its own bound") {
    caps_world w(false);
    w.listen({.source_connections_max = 2});
    const std::uint16_t narrow = w.port;
    w.listen({.source_connections_max = 4});
    const std::uint16_t wide = w.port;
    w.listen();
    CHECK_FALSE(w.connect(host(1)).was_reset());  // not counted there
    w.port = wide;
    CHECK_FALSE(w.connect(host(1)).was_reset());
    CHECK_FALSE(w.connect(host(1)).was_reset());
    w.port = narrow;
    CHECK(w.connect(host(1)).was_reset());
    w.port = wide;
    CHECK_FALSE(w.connect(host(1)).was_reset());
    CHECK_FALSE(w.connect(host(1)).was_reset());
    CHECK(w.connect(host(1)).was_reset());
}

TEST_CASE("source cap: it holds over all workers") {
    netio::limits sizes = netio_test::small_limits;
    sizes.workers_max = 2;
    caps_world w(false, sizes);
    const auto both = [&] {
        for (int turn = 0; turn < 40; ++turn) {
            w.server->run_once(0, 0);
            w.server->run_once(0, 1);
        }
    };
    w.listen({.source_connections_max = 5});
    std::vector<sim_peer> peers;
    for (int each = 0; each < 12; ++each) {
        peers.push_back(w.net.connect(w.port, host(1)));
        both();
    }
    std::uint32_t in = 0;
    for (const sim_peer& each : peers) {
        in += each.was_reset() ? 0 : 1;
    }
    CHECK(in == 5);
    w.server->stop();
    both();
}

TEST_CASE("source cap: with more sources than places the rest share one bound, and all leave") {
    netio::limits sizes = netio_test::small_limits;
    sizes.connections_max = 100;
    sizes.sources_max = 1;  // sixteen places, the least there are
    caps_world w(false, sizes);
    w.listen({.source_connections_max = 2});
    std::vector<sim_peer> peers;
    std::uint32_t in = 0;
    for (std::uint8_t each = 0; each < 60; ++each) {
        peers.push_back(w.connect(host(each)));
        in += peers.back().was_reset() ? 0 : 1;
    }
    CHECK(in == 16 + 2);
    for (sim_peer& each : peers) {
        each.close();
    }
    w.pump(200);
    CHECK(sources_counted(w) == 0);
    CHECK_FALSE(w.connect(host(61)).was_reset());
}

TEST_CASE("source cap: what can't be had is refused with the field named") {
    netio::limits sizes = netio_test::small_limits;
    sizes.sources_max = 0;
    {
        caps_world none(false, sizes);
        CHECK(none.server->listen({.source_connections_max = 1}) == netio::error::option_invalid);
        CHECK(none.server->failure().subject == std::string_view("sources_max"));
    }
    caps_world w(false);
    CHECK(w.server->listen({.source_connections_max = 1u << 24}) == netio::error::option_invalid);
    CHECK(w.server->failure().subject == std::string_view("source_connections_max"));
    w.net.options.gives_random = false;  // no key, no table that strangers can't fill on purpose
    CHECK(w.server->listen({.source_connections_max = 1}) == netio::error::os_failure);
    CHECK(w.net.descriptors_open() == 3);
    w.net.options.gives_random = true;
    w.listen({.source_connections_max = (1u << 24) - 1});
    CHECK_FALSE(w.connect(host(1)).was_reset());
}

TEST_CASE("source cap: 20,000 sources one after another leave an empty table") {
    caps_world w(false);
    w.listen({.source_connections_max = 1});
    for (std::uint32_t each = 0; each < 20'000; ++each) {
        sim_peer peer = w.net.connect(
            w.port, netio::ipv4(20, static_cast<std::uint8_t>(each >> 8 & 0xFF),
                                static_cast<std::uint8_t>(each), 1,
                                static_cast<std::uint16_t>(1 + each)));
        w.pump(3);
        peer.reset();
        w.pump(3);
    }
    w.pump();
    CHECK(w.handler.opened + refused_for_source(w) >= 19'000);
    CHECK(refused_for_source(w) == 0);
    CHECK(sources_counted(w) == 0);
}

// ---- rates

TEST_CASE("rates: a request that trickles in is ended between 15 and 20 seconds, and as slow") {
    on_both_kernels([](bool proactor) {
        for (const std::size_t a_second : {1u, 100u, 200u}) {
            CAPTURE(a_second);
            caps_world w(proactor);
            w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
            w.listen({.times = {.read_ms = 60'000}});
            sim_peer peer = w.connect();
            std::uint32_t seconds = 0;
            // The window of 1,024 bytes is taken and offered again by a handler that consumes.
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.phase(netio::phase::exchange);
                return in.size();
            };
            for (; seconds < 60 && !peer.was_reset(); ++seconds) {
                peer.send(std::string(a_second, 'b'));
                w.pass(1000);
            }
            CHECK(seconds >= 15);
            CHECK(seconds <= 21);
            REQUIRE(w.handler.reasons.size() == 1);
            CHECK(w.handler.reasons[0].kind == close_kind::slow_peer_in);
        }
    });
}

TEST_CASE("rates: at the bound a request may take as long as it likes") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.phase(netio::phase::exchange);
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        for (int second = 0; second < 120; ++second) {
            peer.send(std::string(257, 'b'));
            w.pass(1000);
        }
        CHECK_FALSE(peer.was_reset());
    });
}

TEST_CASE("rates: unconsumed bytes that hardly grow are slow without a word of the handler") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
        w.listen();
        sim_peer peer = w.connect();  // a header, a byte every nine seconds
        std::uint32_t sent = 0;
        while (!peer.was_reset() && sent < 10) {
            peer.send("x");
            ++sent;
            w.pass(9000);
        }
        CHECK(sent <= 3);
        REQUIRE(w.handler.reasons.size() == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::slow_peer_in);
    });
}

TEST_CASE("rates: who sends nothing is the read deadline's, and short exchanges are never judged") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        w.handler.deadline = [](netio::connection& c, netio::deadline_kind which) {
            CHECK(which == netio::deadline_kind::read);
            c.kill(1);
        };
        bool whole = false;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            c.phase(whole ? netio::phase::idle : netio::phase::exchange);
            return in.size();
        };
        w.listen();
        sim_peer silent = w.connect();
        silent.send("x");
        w.pass(29'900);
        CHECK_FALSE(silent.was_reset());
        w.pass(200);
        CHECK(silent.was_reset());
        sim_peer brisk = w.connect();
        for (int round = 0; round < 40; ++round) {  // two bytes every three seconds, but whole
            whole = false;
            brisk.send("a");
            w.pass(1500);
            whole = true;
            brisk.send("b");
            w.pass(1500);
        }
        CHECK_FALSE(brisk.was_reset());
    });
}

TEST_CASE("rates: what the server itself holds up is not the peer's fault") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        netio::connection_id id{};
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.phase(netio::phase::exchange);
            c.pause();
            return in.size() > 1 ? in.size() : 0;
        };
        w.handler.deadline = [](netio::connection& c, netio::deadline_kind) { c.deadline(0); };
        w.listen({.times = {.read_ms = 0}});
        sim_peer peer = w.connect();
        peer.send("ab");
        for (int second = 0; second < 60; ++second) {
            peer.send("x");
            w.pass(1000);
        }
        CHECK_FALSE(peer.was_reset());
    });
}

TEST_CASE("rates: a reader that takes a little, again and again, is ended as slow") {
    on_both_kernels([](bool proactor) {
        for (const std::uint32_t a_second : {50u, 400u}) {
            CAPTURE(a_second);
            netio::limits sizes = netio_test::small_limits;
            sizes.buffer_bytes = 16'384;
            caps_world w(proactor, sizes);
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.write(std::string(60'000, 'x'));
                return in.size();
            };
            w.listen();
            sim_peer peer = w.connect();
            peer.window(100);
            peer.send("x");
            w.pump();
            std::uint32_t seconds = 0;
            for (; seconds < 60 && !peer.was_reset(); ++seconds) {
                for (std::uint32_t took = 0; took < a_second && !peer.was_reset(); took += 50) {
                    peer.take(50);
                    w.pass(50);
                }
                w.pass(1000 - a_second);
            }
            if (a_second < 256) {
                CHECK(seconds >= 15);
                CHECK(seconds <= 21);
                REQUIRE(w.handler.reasons.size() == 1);
                CHECK(w.handler.reasons[0].kind == close_kind::slow_peer_out);
            } else {
                CHECK(seconds == 60);
            }
        }
    });
}

TEST_CASE("rates: neither grace nor window is shorter by a part of a millisecond") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        const std::uint64_t epoch_ns = w.net.now_ns();
        std::uint64_t tick = 0;
        w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
        w.handler.deadline = [](netio::connection&, netio::deadline_kind) {};
        w.handler.open = [&](netio::connection& c) {
            c.deadline(50);  // brings the wheel by just as the request begins
            tick = (w.net.now_ns() - epoch_ns + 999'999) / 1'000'000 + 50;
        };
        w.listen({.times = {.idle_ms = 0,
                            .read_ms = 0,
                            .rate_in = 1'000'000,
                            .rate_window_ms = 10,
                            .rate_grace_ms = 10}});
        sim_peer peer = w.connect();
        const auto at_us = [&](std::uint64_t us) {
            w.net.advance_to(epoch_ns + tick * 1'000'000 + us * 1'000);
            w.pump(3);
        };
        w.net.advance_to(epoch_ns + tick * 1'000'000 + 850'000);
        peer.send("a");
        at_us(850);
        CHECK(w.handler.count("data 1") == 1);
        at_us(10'200);
        at_us(11'200);
        peer.send("b");
        at_us(15'000);
        at_us(20'600);
        CHECK_FALSE(peer.was_reset());
        at_us(21'200);
        at_us(22'200);
        CHECK(peer.was_reset());
        REQUIRE(w.handler.reasons.size() == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::slow_peer_in);
    });
}

TEST_CASE("rates: they can be turned off, and windows and graces be others") {
    on_both_kernels([](bool proactor) {
        for (const bool off : {true, false}) {
            caps_world w(proactor);
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.phase(netio::phase::exchange);
                return in.size();
            };
            w.listen({.times = {.rate_in = off ? 0u : 1000u, .rate_window_ms = 200,
                                .rate_grace_ms = 100}});
            sim_peer peer = w.connect();
            for (int step = 0; step < 100 && !peer.was_reset(); ++step) {
                peer.send("12345");
                w.pass(10);  // 500 a second
            }
            CHECK(peer.was_reset() == !off);
        }
    });
}

TEST_CASE("rates: in phase::answer a ping now and then is no slow request, and nothing idles") {
    on_both_kernels([](bool proactor) {
        for (const bool answers : {true, false}) {
            caps_world w(proactor);
            w.handler.data = [&](netio::connection& c, netio::bytes in) {
                c.phase(answers ? netio::phase::answer : netio::phase::exchange);
                return in.size();
            };
            w.listen();
            sim_peer peer = w.connect();
            for (int second = 0; second < 200 && !peer.was_reset(); second += 4) {
                peer.send("ping");
                w.pass(4000);
            }
            CHECK(peer.was_reset() == !answers);
            if (answers) {
                w.pass(100'000);  // silence, too: it is the handler's turn
                CHECK_FALSE(peer.was_reset());
            }
        }
    });
}

TEST_CASE("rates: windows of nothing and of for ever are refused") {
    caps_world w(false);
    for (const std::uint32_t window : {0u, (1u << 30) + 1}) {
        CHECK(w.server->listen({.times = {.rate_window_ms = window}}) ==
              netio::error::option_invalid);
        CHECK(w.server->failure().subject == std::string_view("rate_window_ms"));
    }
    CHECK(w.server->listen({.times = {.rate_grace_ms = 0xFFFFFFFF}}) ==
          netio::error::option_invalid);
    w.listen({.times = {.rate_window_ms = 1u << 30, .rate_grace_ms = 1u << 30}});
}

// ---- pressure

TEST_CASE("pressure: a connection that comes and goes at the bound makes nobody look again") {
    netio::limits sizes = netio_test::small_limits;
    sizes.connections_max = 100;
    caps_world w(false, sizes);
    w.listen({.times = {.idle_ms = 0}});
    std::vector<sim_peer> peers;
    while (peers.size() < 74) {
        peers.push_back(w.connect());
    }
    const auto turns_of = [&] {
        const std::uint64_t before = w.server->stats().counts.turns;
        w.net.connect(w.port).close();
        w.pass(10);
        return w.server->stats().counts.turns - before;
    };
    turns_of();  // 75 and 74 again
    w.pass(100);
    CHECK(w.server->wait_ms() == -1);
    w.net.connect(w.port).close();
    w.server->run_once(0);
    w.server->run_once(0);
    w.pump();
    CHECK(w.server->wait_ms() == -1);  // nobody is to be looked at
}

TEST_CASE("pressure: deadlines are halved from 75 percent on, quartered from 90 on") {
    on_both_kernels([](bool proactor) {
        for (const bool tighten : {true, false}) {
            CAPTURE(tighten);
            netio::limits sizes = netio_test::small_limits;
            sizes.connections_max = 20;
            caps_world w(proactor, sizes);
            w.handler.deadline = [](netio::connection& c, netio::deadline_kind) { c.kill(1); };
            w.listen({.times = {.idle_ms = 4000, .tighten = tighten}});
            std::vector<sim_peer> peers;
            const auto fill = [&](std::uint32_t count) {
                while (w.server->stats().open < count) {
                    peers.push_back(w.net.connect(w.port));
                    w.pump(4);
                }
            };
            fill(14);
            w.pass(1990);
            CHECK(w.server->stats().open == 14);
            fill(15);  // the fourteen have been idle for nearly two seconds
            CHECK(w.server->stats().open == 15);
            w.pass(30);
            CHECK((w.server->stats().open < 15) == tighten);  // until there is room again
            CHECK(w.server->stats().open >= 1);
            fill(18);
            w.pass(1010);
            CHECK((w.server->stats().open < 18) == tighten);
        }
    });
}

TEST_CASE("pressure: a connection sees how scarce it is") {
    netio::limits sizes = netio_test::small_limits;
    sizes.connections_max = 10;
    caps_world w(false, sizes);
    std::vector<std::uint32_t> seen;
    w.handler.open = [&](netio::connection& c) { seen.push_back(c.pressure()); };
    w.handler.data = [&](netio::connection& c, netio::bytes in) {
        c.write(std::string(4096, 'x'));
        seen.push_back(c.pressure());
        return in.size();
    };
    w.listen();
    sim_peer first = w.connect();
    w.connect();
    first.window(0);
    first.send("x");
    w.pump();
    CHECK(seen == std::vector<std::uint32_t>{10, 20, 50});  // four of eight buffers
}

// ---- events

TEST_CASE("events: a flood of refusals is told as some and a count, everything else one by one") {
    on_both_kernels([](bool proactor) {
        caps_world w(proactor);
        w.listen({.connections_max = 1});
        w.connect();  // and stays
        const auto flood = [&](int count) {
            for (int each = 0; each < count; ++each) {
                w.connect().close();
            }
        };
        using what = netio::server_event_kind;
        flood(100);
        CHECK(w.server->stats().counts.refused == 100);
        CHECK(w.events.count(what::refused) == netio::burst_events_max);
        CHECK(w.events.count(what::coalesced) == 0);
        w.pass(1100);  // told without another event
        REQUIRE(w.events.count(what::coalesced) == 1);
        const netio::server_event told = w.events.all.back();
        CHECK(told.of == what::refused);
        CHECK(told.count == 100 - netio::burst_events_max);
        CHECK(told.reason.cause() == refusal_cause::listener_cap);
        CHECK(told.listener == 0);
        w.pass(5000);
        CHECK(w.events.count(what::coalesced) == 1);  // and never again
        flood(netio::burst_events_max);
        w.pass(1100);
        CHECK(w.events.count(what::coalesced) == 1);  // that many need no summary
        flood(50);
        w.server->stop();  // what is held back is told at the end at the latest
        w.pump();
        std::uint64_t sum = w.events.count(what::refused);
        for (const netio::server_event& each : w.events.all) {
            sum += each.kind == what::coalesced ? each.count : 0;
        }
        CHECK(sum == 100 + 50 + netio::burst_events_max);
    });
}
