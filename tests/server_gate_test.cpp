// The gate: who gets in, as what, what gets out, and that it hears of each end once.
#include "tests/server_world.hpp"


namespace {

using netio::close_kind;
using netio::refusal_cause;
using netio_test::on_both_kernels;
using netio_test::scripted;
using netio_test::sim_peer;

/// Says what a test puts there; keeps the books of who is in.
struct scripted_gate : netio_test::gate_books {
    std::function<netio::verdict(const netio::connection&)> enters =
        [](const netio::connection&) { return netio::verdict::allow(); };
    std::function<netio::verdict(const netio::connection&)> named =
        [](const netio::connection&) { return netio::verdict::allow(); };
    std::function<netio::egress(const netio::connection&, const netio::write_facts&)> leaves =
        [](const netio::connection&, const netio::write_facts&) { return netio::egress::allow(); };
    std::uint32_t asked = 0;

    netio::verdict admit(const netio::connection& c) noexcept {
        ++asked;
        return noted(c, enters(c));
    }
    netio::verdict readmit(const netio::connection& c) noexcept {
        ++asked;
        CHECK(in[c.id().bits] == 1);
        return named(c);
    }
    netio::egress check(const netio::connection& c, const netio::write_facts& facts) noexcept {
        CHECK(in[c.id().bits] == 1);
        return leaves(c, facts);
    }
};

struct gate_world : netio_test::server_world<scripted, scripted_gate> {
    using netio_test::server_world<scripted, scripted_gate>::server_world;
    ~gate_world() {
        check_nothing_held();
        CHECK(gate.inside() == 0);
    }
    std::uint64_t denied() const { return server->stats().counts.egress_denied; }
};

constexpr std::string_view v1_header = "PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n";

}  // namespace

TEST_CASE("gate: what it says of a client becomes the connection's lane and tag") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        w.gate.enters = [](const netio::connection& c) {
            CHECK(c.origin() == netio::origin::accepted);
            CHECK(c.source() == netio::ipv4(198, 51, 100, 7, 4000));
            CHECK(c.local().port != 0);
            CHECK(c.bytes_in() == 0);
            CHECK(c.id().bits != 0);
            return netio::verdict::allow(3, 0xFFFFFFFF);
        };
        w.handler.open = [](netio::connection& c) {
            CHECK(c.lane() == 3);
            CHECK(c.tag() == 0xFFFFFFFF);
        };
        w.listen();
        sim_peer peer = w.connect(netio::ipv4(198, 51, 100, 7, 4000));
        CHECK(w.handler.opened == 1);
        CHECK(w.gate.inside() == 1);
        peer.close();
        w.pump();
        CHECK(w.gate.inside() == 0);
        REQUIRE(w.gate.ends.size() == 1);
        CHECK(w.gate.ends[0] == w.handler.reasons[0]);
    });
}

TEST_CASE("gate: who is refused gets a reset, is never read, and holds nothing") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        w.gate.enters = [](const netio::connection&) { return netio::verdict::refuse(201); };
        w.listen();
        for (int round = 0; round < 20; ++round) {
            sim_peer peer = w.net.connect(w.port);
            peer.send("hello");
            w.pump();
            CHECK(peer.was_reset());
        }
        CHECK(w.handler.log.empty());
        CHECK(w.server->stats().open == 0);
        CHECK(w.server->stats().counts.refused == 20);
        CHECK(w.server->stats().counts.bytes_in == 0);
        CHECK(w.server->stats()
                  .counts.refused_by[static_cast<std::size_t>(refusal_cause::gate)] == 20);
        CHECK(w.gate.ends.empty());  // it was never in
        const netio::close_reason told = w.events.all.back().reason;
        CHECK(told.kind == close_kind::refused);
        CHECK(told.cause() == refusal_cause::gate);
        CHECK(told.code() == 201);
    });
}

TEST_CASE("gate: a refusal with an answer reaches the peer, whatever that sends meanwhile") {
    on_both_kernels([](bool proactor) {
        static const std::string longest(512, 'n');
        for (const std::string_view reply : {std::string_view("no\r\n"),
                                             std::string_view(longest)}) {
            gate_world w(proactor);
            w.gate.enters = [&](const netio::connection&) {
                return netio::verdict::refuse(7, reply);
            };
            w.listen();
            sim_peer peer = w.net.connect(w.port);
            peer.send("a request that nobody reads");
            w.pump();
            CHECK(peer.take_text() == reply);
            CHECK(peer.finished());
            CHECK_FALSE(peer.was_reset());
            peer.close();
            w.pump();
            CHECK(w.handler.log.empty());
            CHECK(w.server->stats().open == 0);
            CHECK(w.server->stats().counts.refused == 1);
            CHECK(w.events.all.back().reason.code() == 7);
        }
    });
}

TEST_CASE("gate: an answered refusal ends within a second, though its peer does nothing") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        w.gate.enters = [](const netio::connection&) { return netio::verdict::refuse(7, "no"); };
        w.listen();
        w.connect();
        sim_peer deaf = w.connect();
        deaf.window(0);
        w.pass(990);
        CHECK(w.server->stats().open == 2);
        w.pass(30);
        CHECK(w.server->stats().open == 0);
        CHECK(w.server->stats().counts.closed == 2);
    });
}

TEST_CASE("gate: a close by id does not give an answered refusal more than its second") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        w.gate.enters = [](const netio::connection&) { return netio::verdict::refuse(7, "no"); };
        w.listen({.times = {.linger_ms = 60'000}});
        sim_peer deaf = w.connect();
        deaf.window(0);
        CHECK(w.server->close(w.events.all.back().id, 60'000));
        w.pass(990);
        CHECK(w.server->stats().open == 1);
        w.pass(30);
        CHECK(w.server->stats().open == 0);
        CHECK(w.events.all.back().reason.kind == close_kind::refused);
    });
}

TEST_CASE("gate: so many refusals are answered at once, the next is reset, a too long one too") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = netio_test::small_limits;
        sizes.refusals_max = 3;
        gate_world w(proactor, sizes);
        static const std::string too_long(513, 'n');
        w.gate.enters = [&](const netio::connection& c) {
            return c.source().port == 9 ? netio::verdict::refuse(7, too_long)
                                        : netio::verdict::refuse(7, "no");
        };
        w.listen();
        std::vector<sim_peer> peers;
        for (int each = 0; each < 4; ++each) {
            peers.push_back(w.connect());
        }
        for (int each = 0; each < 4; ++each) {
            CHECK(peers[static_cast<std::size_t>(each)].was_reset() == (each == 3));
        }
        CHECK(w.server->stats().pools[7].name == std::string("refusals"));
        CHECK(w.server->stats().pools[7].in_use == 3);
        CHECK(w.server->stats().pools[7].refused == 1);
        peers[0].close();
        w.pump();
        CHECK_FALSE(w.connect().was_reset());
        CHECK(w.connect(netio::ipv4(1, 2, 3, 4, 9)).was_reset());
        CHECK(w.server->stats().pools[7].in_use == 3);
        CHECK(w.server->stats().pools[7].refused == 1);
    });
}

TEST_CASE("gate: behind PROXY it is asked again, of the client that the header names") {
    on_both_kernels([](bool proactor) {
        for (const int may : {0, 1, 2}) {
            CAPTURE(may);
            gate_world w(proactor);
            w.gate.enters = [](const netio::connection& c) {
                CHECK(c.source() == netio::ipv4(10, 0, 0, 1, 99));
                return netio::verdict::allow(5, 55);
            };
            w.gate.named = [&](const netio::connection& c) {
                CHECK(c.source() == netio::ipv4(203, 0, 113, 9, 5000));
                CHECK(c.proxied());
                CHECK(c.lane() == 5);
                return may == 0   ? netio::verdict::allow(2, 22)
                       : may == 1 ? netio::verdict::refuse(9)
                                  : netio::verdict::refuse(9, "gone");
            };
            w.handler.open = [](netio::connection& c) {
                CHECK(c.lane() == 2);
                CHECK(c.tag() == 22);
            };
            w.listen({.proxy = netio::proxy_mode::required});
            sim_peer peer = w.connect(netio::ipv4(10, 0, 0, 1, 99));
            peer.send(std::string(v1_header) + "payload");
            w.pump();
            CHECK(w.gate.asked == 2);
            CHECK(w.handler.opened == (may == 0 ? 1 : 0));
            CHECK(peer.was_reset() == (may == 1));
            CHECK(peer.take_text() == (may == 2 ? "gone" : ""));
            peer.close();
            w.pump();
            REQUIRE(w.gate.ends.size() == 1);
            CHECK((w.gate.ends[0].kind == close_kind::refused) == (may != 0));
            CHECK(w.gate.ends[0].code() == (may != 0 ? 9 : w.gate.ends[0].detail));
        }
    });
}

TEST_CASE("gate: LOCAL headers name nobody, so it is not asked again") {
    gate_world w(false);
    w.listen({.proxy = netio::proxy_mode::required});
    sim_peer peer = w.connect();
    peer.send("PROXY UNKNOWN\r\n");
    w.pump();
    CHECK(w.handler.opened == 1);
    CHECK(w.gate.asked == 1);
}

TEST_CASE("gate: adopted and dialled connections pass it, or are refused before they begin") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        w.net.remote(netio::ipv4(198, 51, 100, 1, 80), netio_test::sim_answer::accept);
        bool open = false;
        std::vector<netio::origin> seen;
        w.gate.enters = [&](const netio::connection& c) {
            seen.push_back(c.origin());
            CHECK((c.origin() == netio::origin::adopted ||
                   c.source() == netio::ipv4(198, 51, 100, 1, 80)));
            return open ? netio::verdict::allow(1, 2) : netio::verdict::refuse(1, "unheard");
        };
        w.pump();
        const auto pair = w.net.connected_pair();
        CHECK(w.server->adopt(pair.handle).why == netio::error::refused_by_gate);
        CHECK(w.server->connect(netio::ipv4(198, 51, 100, 1, 80), 5).why ==
              netio::error::refused_by_gate);
        w.pump();
        CHECK(w.server->stats().open == 0);
        CHECK(w.net.connected_peers().empty());
        CHECK(w.gate.ends.empty());
        open = true;
        CHECK(w.server->adopt(pair.handle).why == netio::error::none);
        CHECK(w.server->connect(netio::ipv4(198, 51, 100, 1, 80), 5).why == netio::error::none);
        w.pass(50);
        CHECK(w.handler.opened == 2);
        CHECK(w.gate.inside() == 2);
        CHECK(seen == std::vector<netio::origin>{netio::origin::adopted, netio::origin::connected,
                                                 netio::origin::adopted, netio::origin::connected});
        w.server->stop();
        w.pump();
        CHECK(w.gate.inside() == 0);
        CHECK(w.gate.ends.size() == 2);
    });
}

TEST_CASE("gate: an admitted connection that comes to nothing is told as closed, too") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        w.net.remote(netio::ipv4(198, 51, 100, 1, 80), netio_test::sim_answer::refuse);
        w.pump();
        CHECK(w.server->connect(netio::ipv4(198, 51, 100, 1, 80), 5).why == netio::error::none);
        w.pass(50);
        CHECK(w.handler.connect_failures.size() == 1);
        REQUIRE(w.gate.ends.size() == 1);
        CHECK(w.gate.ends[0].kind == close_kind::connect_failed);
        // A system that lets no connection start, and a preface that never ends.
        w.net.options.with(netio_test::sim_fault::start_error, 1024);
        CHECK(w.server->connect(netio::ipv4(198, 51, 100, 1, 80), 5).why != netio::error::none);
        CHECK(w.gate.ends.size() == 2);
        w.net.options.with(netio_test::sim_fault::start_error, 0);
        w.listen({.proxy = netio::proxy_mode::required});
        sim_peer silent = w.connect();
        w.pass(6000);
        CHECK(silent.was_reset());
        REQUIRE(w.gate.ends.size() == 3);
        CHECK(w.gate.ends[2].kind == close_kind::preface_timeout);
    });
}

TEST_CASE("gate: no byte leaves once it says no, and the handler is told so once") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        bool may = true;
        std::uint64_t asked_bytes = 0;
        w.gate.leaves = [&](const netio::connection& c, const netio::write_facts& facts) {
            CHECK(facts.bytes_out == c.bytes_out());
            asked_bytes = facts.byte_count;
            return may ? netio::egress::allow() : netio::egress::deny(777);
        };
        w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
        w.handler.denied = [](netio::connection& c, std::uint16_t code) {
            CHECK(code == 777);
            CHECK(c.write("a last word") == 0);
            CHECK(c.room() == 0);
            CHECK_FALSE(c.write_static("another"));
            CHECK(c.output_bytes() == 0);
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("first");
        w.pump();
        CHECK(peer.take_text() == "first");
        CHECK(asked_bytes == 5);
        may = false;
        peer.send("second");
        w.pump();
        CHECK(peer.take_text() == "");
        CHECK(peer.was_reset());
        CHECK(w.handler.count("denied 777") == 1);
        CHECK(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::egress_denied);
        CHECK(w.handler.reasons[0].code() == 777);
        CHECK(w.gate.ends[0] == w.handler.reasons[0]);
        CHECK(w.denied() == 1);
        CHECK(w.events.count(netio::server_event_kind::egress_denied) == 1);
    });
}

TEST_CASE("gate: what was allowed and waits for a slow reader is stopped by a kill") {
    on_both_kernels([](bool proactor) {
        for (const bool killed : {false, true}) {
            CAPTURE(killed);
            gate_world w(proactor);
            bool may = true;
            w.gate.leaves = [&](const netio::connection&, const netio::write_facts&) {
                return may ? netio::egress::allow() : netio::egress::deny(1);
            };
            netio::connection_id id{};
            w.handler.open = [&](netio::connection& c) { id = c.id(); };
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.write(std::string(3000, 'x'));
                return in.size();
            };
            w.listen();
            sim_peer peer = w.connect();
            peer.window(100);
            peer.send("go");
            w.pump();
            const std::size_t held = peer.unread().size();
            CHECK(held >= 100);
            CHECK(held < 3000);
            may = false;
            CHECK(w.server->kill(id, 5) == true);
            if (killed) {
                w.pump();  // else it comes too late for what the kernel takes at once
            }
            peer.window(100'000);
            peer.take(held);
            w.pump();
            CHECK(w.server->stats().counts.bytes_out <= (killed ? held : 3000));
            REQUIRE(w.handler.reasons.size() == 1);
            CHECK(w.handler.reasons[0].kind == close_kind::killed);
            CHECK(w.denied() == 0);
        }
    });
}

TEST_CASE("gate: check is told where a response begins") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        std::string asked;
        w.gate.leaves = [&](const netio::connection&, const netio::write_facts& facts) {
            asked += facts.at_boundary ? 'b' : 'm';
            return netio::egress::allow();
        };
        // '(' and ')' begin and end an exchange, letters are answered, '.' goes on in a later turn.
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            for (const std::byte each : in) {
                const char what = static_cast<char>(each);
                if (what == '(' || what == ')') {
                    c.phase(what == '(' ? netio::phase::exchange : netio::phase::idle);
                } else {
                    c.write(std::string_view(&what, 1));
                }
            }
            return in.size();
        };
        w.listen();
        const auto asks = [&](std::initializer_list<const char*> turns) {
            sim_peer peer = w.connect();
            asked.clear();
            for (const char* each : turns) {
                peer.send(each);
                w.pump();
            }
            peer.close();
            w.pump();
            return asked;
        };
        CHECK(asks({"(a)", "(b)"}) == "bb");           // whole each
        CHECK(asks({"(a", "b", "c)", "(d)"}) == "bmmb");  // one in parts, then the next
        CHECK(asks({"(a)(b)(c", "d)", "(e)"}) == "bmb");   // several at once
        CHECK(asks({"(a", "b)(c", "d)", "(e)"}) == "bmmb");  // an end and a begin in between
        CHECK(asks({"(", "a", ")", "(b)"}) == "bb");
        CHECK(asks({"a", "b"}) == "bm");               // nobody says a phase: the first alone
        CHECK(asks({"a(b)", "(c)"}) == "bb");
    });
}

TEST_CASE("gate: a denial between responses can be answered") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        bool may = true;
        w.gate.leaves = [&](const netio::connection&, const netio::write_facts& facts) {
            if (may || facts.in_exchange) {
                return netio::egress::allow();
            }
            return netio::egress::deny(8, "revoked\n");
        };
        bool whole = false;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            c.write(in);
            c.phase(whole ? netio::phase::idle : netio::phase::exchange);
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("begun ");
        w.pump();
        may = false;
        peer.send("middle ");  // the response is whole before it is denied
        w.pump();
        CHECK(peer.take_text() == "begun middle ");
        whole = true;
        peer.send("next");
        w.pump();
        CHECK(peer.take_text() == "revoked\n");
        CHECK(peer.finished());
        CHECK_FALSE(peer.was_reset());
        CHECK(w.handler.count("denied 8") == 1);
        w.pass(1100);
        CHECK(w.handler.reasons.size() == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::egress_denied);
        CHECK(w.denied() == 1);
    });
}

TEST_CASE("gate: a denial after the stream's end is a reset, not an answer behind the end") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        w.gate.leaves = [](const netio::connection&, const netio::write_facts&) {
            return netio::egress::deny(8, "revoked");
        };
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(in);
            c.end();
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("x");
        w.pump();
        CHECK(peer.take_text() == "revoked");
        CHECK(peer.finished());
        w.pass(1100);
        CHECK(w.handler.closed == 1);
    });
}

TEST_CASE("gate: a denial without an answer of what was to be flushed before the end is a reset") {
    on_both_kernels([](bool proactor) {
        for (const bool closes : {false, true}) {
            CAPTURE(closes);
            gate_world w(proactor);
            w.gate.leaves = [](const netio::connection&, const netio::write_facts&) {
                return netio::egress::deny(9);
            };
            w.handler.data = [closes](netio::connection& c, netio::bytes in) {
                c.write(in);
                closes ? c.close() : c.end();
                return in.size();
            };
            w.listen();
            sim_peer peer = w.connect();
            peer.send("bye");
            w.pump();
            CHECK(peer.was_reset());  // and no end of stream is sent behind it
            CHECK(peer.unread().empty());
            REQUIRE(w.handler.reasons.size() == 1);
            CHECK(w.handler.reasons[0] == netio::close_reason{close_kind::egress_denied, 9});
            CHECK(w.handler.count("denied 9") == 1);
        }
    });
}

TEST_CASE("gate: a handler that kills, writes to others or dials in on_denied does no harm") {
    on_both_kernels([](bool proactor) {
        gate_world w(proactor);
        netio::connection_id other{};
        w.gate.leaves = [&](const netio::connection& c, const netio::write_facts&) {
            return c.id() == other ? netio::egress::allow() : netio::egress::deny(3);
        };
        w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
        w.handler.denied = [&](netio::connection& c, std::uint16_t) {
            netio::connection* found = c.find(other);
            REQUIRE(found != nullptr);
            found->write("told");
            c.kill(4);
            c.connect(netio::ipv4(198, 51, 100, 99, 1), 1);
        };
        w.handler.open = [&](netio::connection& c) { other = other ? other : c.id(); };
        w.listen();
        sim_peer first = w.connect();
        sim_peer second = w.connect();
        second.send("x");
        w.pump();
        CHECK(first.take_text() == "told");
        CHECK(second.was_reset());
        REQUIRE(w.handler.reasons.size() >= 1);
        CHECK(w.handler.reasons[0].kind == close_kind::egress_denied);
        CHECK(w.handler.count("denied 3") == 1);
    });
}

TEST_CASE("gate: one with admit alone is asked again behind PROXY, and lets everything out") {
    struct admits_only {
        std::uint32_t asked = 0;
        netio::verdict admit(const netio::connection& c) noexcept {
            ++asked;
            return c.source() == netio::ipv4(203, 0, 113, 9, 5000) ? netio::verdict::refuse(1)
                                                                    : netio::verdict::allow();
        }
    };
    netio_test::server_world<scripted, admits_only> w(false);
    w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
    w.listen();
    const std::uint16_t plain = w.port;
    w.listen({.proxy = netio::proxy_mode::required});
    sim_peer named = w.connect();
    named.send(v1_header);
    w.pump();
    CHECK(named.was_reset());
    CHECK(w.gate.asked == 2);
    w.port = plain;
    sim_peer peer = w.connect();
    peer.send("x");
    w.pump();
    CHECK(peer.take_text() == "x");
}
