// Control: door, lockdown, shedding, reserved lanes, live listeners, ends by id, a drain's report.
#include "tests/server_world.hpp"

namespace {

using netio::close_kind;
using netio::control_state;
using netio::refusal_cause;
using netio_test::on_both_kernels;
using netio_test::scripted;
using netio_test::sim_peer;

/// The client's port says its lane.
struct lane_gate {
    netio::verdict admit(const netio::connection& c) noexcept {
        return netio::verdict::allow(static_cast<std::uint8_t>(c.source().port % 100));
    }
};
using plain_world = netio_test::server_world<>;
using lane_world = netio_test::server_world<scripted, lane_gate>;

netio::endpoint in_lane(std::uint16_t lane) {
    static std::uint16_t serial = 0;
    ++serial;
    return netio::ipv4(198, 51, 100, 7, static_cast<std::uint16_t>(10'000 + serial % 400 * 100 +
                                                                   lane));
}
template <class World>
std::uint64_t refused_by(const World& w, refusal_cause cause) {
    return w.server->stats().counts.refused_by[static_cast<std::size_t>(cause)];
}
template <class World>
std::uint64_t closed_by(const World& w, close_kind kind) {
    return w.server->stats().counts.closed_by[static_cast<std::size_t>(kind)];
}

}  // namespace

TEST_CASE("door: shut until the first run, then open, and clients wait outside while it is shut") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
        CHECK_FALSE(w.server->door_is_open());
        w.listen();
        CHECK(w.server->door_is_open());
        sim_peer inside = w.connect();
        CHECK(w.handler.opened == 1);
        w.server->close_door();
        CHECK_FALSE(w.server->door_is_open());
        w.pump();
        const std::uint64_t late = w.server->stats().counts.refused;
        sim_peer outside = w.connect();
        outside.send("hello");
        w.pump();
        CHECK(w.handler.opened == 1);
        CHECK_FALSE(outside.was_reset());
        inside.send("served");
        w.pump();
        CHECK(inside.take_text() == "served");
        CHECK(w.server->stats().counts.refused == late);
        w.server->open_door();
        w.pump();
        CHECK(w.handler.opened == 2);
        CHECK(outside.take_text() == "hello");
    });
}

TEST_CASE("door: one that is shut before the first run stays shut until it is opened") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        w.server->close_door();
        w.listen();
        sim_peer peer = w.connect();
        CHECK(w.handler.opened == 0);
        CHECK_FALSE(peer.was_reset());
        CHECK(w.server->wait_ms() == -1);  // nothing keeps the loop awake
        w.server->open_door();
        CHECK(w.server->wait_ms() == 0);
        w.pump();
        CHECK(w.handler.opened == 1);
    });
}

TEST_CASE("door: opened and shut in one turn, as often as you like, it is as it was left") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        w.listen();
        for (int round = 0; round < 50; ++round) {
            w.server->close_door();
            w.server->open_door();
            if (round % 3 == 0) {
                w.pump(2);
            }
            sim_peer peer = w.connect();
            CHECK_FALSE(peer.was_reset());
            peer.close();
            w.pump();
        }
        CHECK(w.handler.opened == 50);
        w.server->open_door();
        w.server->close_door();
        w.pump();
        w.connect();
        CHECK(w.handler.opened == 50);
    });
}

TEST_CASE("lockdown: nobody is let in but by an exempt listener, who is in stays in") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        w.listen();
        const std::uint16_t usual = w.port;
        w.listen({.lockdown_exempt = true});
        const std::uint16_t exempt = w.port;
        w.port = usual;
        sim_peer before = w.connect();
        CHECK(w.server->control() == control_state::normal);
        CHECK(w.server->control(control_state::lockdown) == netio::error::none);
        CHECK(w.server->control() == control_state::lockdown);
        w.pump();
        sim_peer during = w.connect();
        CHECK(during.was_reset());
        CHECK(refused_by(w, refusal_cause::lockdown) == 1);
        CHECK(w.events.all.back().reason.cause() == refusal_cause::lockdown);
        w.port = exempt;
        CHECK_FALSE(w.connect().was_reset());
        CHECK(before.open());
        CHECK_FALSE(before.was_reset());
        CHECK(w.server->control(control_state::normal) == netio::error::none);
        w.pump();
        w.port = usual;
        CHECK_FALSE(w.connect().was_reset());
        CHECK(w.handler.opened == 3);
    });
}

TEST_CASE("shed: a lane and those above it are refused, and end where they are idle") {
    on_both_kernels([](bool proactor) {
        lane_world w(proactor);
        bool busy = true;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            c.phase(busy ? netio::phase::exchange : netio::phase::idle);
            return in.size();
        };
        w.listen();
        sim_peer important = w.connect(in_lane(2));
        sim_peer idle = w.connect(in_lane(3));
        sim_peer working = w.connect(in_lane(9));
        working.send("request");
        w.pump();
        CHECK(w.server->control(control_state::shed, 3) == netio::error::none);
        w.pump();
        CHECK_FALSE(important.finished());
        CHECK(idle.finished());
        CHECK_FALSE(idle.was_reset());
        CHECK_FALSE(working.finished());
        idle.close();
        w.pump();
        CHECK(closed_by(w, close_kind::shed) == 1);
        CHECK(w.connect(in_lane(3)).was_reset());
        CHECK(w.connect(in_lane(99)).was_reset());
        CHECK_FALSE(w.connect(in_lane(2)).was_reset());
        CHECK(refused_by(w, refusal_cause::shed) == 2);
        busy = false;
        working.send("more");  // its exchange ends
        w.pump();
        CHECK(working.finished());
        working.close();
        w.pump();
        CHECK(closed_by(w, close_kind::shed) == 2);
        CHECK(w.server->control(control_state::normal) == netio::error::none);
        w.pump();
        sim_peer again = w.connect(in_lane(9));
        w.pass(2000);
        CHECK_FALSE(again.finished());
        CHECK_FALSE(again.was_reset());
    });
}

TEST_CASE("shed: from lane 0 on everybody, and dialled connections by their lane as well") {
    on_both_kernels([](bool proactor) {
        lane_world w(proactor);
        w.net.remote(netio::ipv4(198, 51, 100, 1, 80), netio_test::sim_answer::accept);
        w.listen();
        sim_peer idle = w.connect(in_lane(0));
        CHECK(w.server->control(control_state::shed, 0) == netio::error::none);
        w.pass(2100);  // it does not close, so linger ends it
        CHECK(idle.finished());
        CHECK(w.server->connect(netio::ipv4(198, 51, 100, 1, 80), 1).why == netio::error::full);
        CHECK(w.server->stats().open == 0);
    });
}

TEST_CASE("control: states that have calls of their own are refused, and are told") {
    plain_world w(false);
    CHECK(w.server->control(control_state::draining) == netio::error::option_invalid);
    CHECK(w.server->control(control_state::stopping) == netio::error::option_invalid);
    CHECK(w.server->control() == control_state::normal);
    w.listen();
    w.connect();
    w.server->drain(1000);
    CHECK(w.server->control() == control_state::draining);
    w.server->stop();
    CHECK(w.server->control() == control_state::stopping);
}

TEST_CASE("lanes: reserved places are for their lane alone, exactly") {
    on_both_kernels([](bool proactor) {
        lane_world w(proactor);  // 16 connections
        CHECK(w.server->reserve_lane(0, 3) == netio::error::none);
        CHECK(w.server->reserve_lane(7, 2) == netio::error::none);
        CHECK(w.server->reserve_lane(8, 1) == netio::error::option_invalid);
        CHECK(w.server->reserve_lane(1, 12) == netio::error::option_invalid);
        CHECK(w.server->reserve_lane(0, 4) == netio::error::none);  // the last word counts
        w.listen();
        std::vector<sim_peer> peers;
        for (int each = 0; each < 10; ++each) {  // 16 - 4 - 2
            peers.push_back(w.connect(in_lane(5)));
            CHECK_FALSE(peers.back().was_reset());
        }
        CHECK(w.connect(in_lane(5)).was_reset());
        CHECK(refused_by(w, refusal_cause::lane_reserve) == 1);
        for (int each = 0; each < 4; ++each) {
            peers.push_back(w.connect(in_lane(0)));
            CHECK_FALSE(peers.back().was_reset());
        }
        CHECK(w.connect(in_lane(0)).was_reset());
        CHECK(refused_by(w, refusal_cause::lane_reserve) == 2);
        for (int each = 0; each < 2; ++each) {
            peers.push_back(w.connect(in_lane(7)));
            CHECK_FALSE(peers.back().was_reset());
        }
        CHECK(w.connect(in_lane(7)).was_reset());  // no slot at all
        CHECK(refused_by(w, refusal_cause::global_cap) == 1);
        peers[0].close();  // a common place
        w.pump();
        peers.push_back(w.connect(in_lane(0)));
        CHECK_FALSE(peers.back().was_reset());
        peers[10].close();  // a reserved one of lane 0
        w.pump();
        CHECK(w.connect(in_lane(5)).was_reset());
        CHECK_FALSE(w.connect(in_lane(0)).was_reset());
        CHECK(w.server->stats().open == 16);
    });
}

TEST_CASE("lanes: whoever changes lanes behind PROXY gives its first place back") {
    struct relane {
        netio::verdict admit(const netio::connection&) noexcept { return netio::verdict::allow(1); }
        netio::verdict readmit(const netio::connection&) noexcept {
            return netio::verdict::allow(2);
        }
    };
    on_both_kernels([](bool proactor) {
        netio_test::server_world<scripted, relane> w(proactor);
        CHECK(w.server->reserve_lane(1, 1) == netio::error::none);
        CHECK(w.server->reserve_lane(2, 14) == netio::error::none);
        w.listen({.proxy = netio::proxy_mode::required});
        std::vector<sim_peer> peers;
        for (int each = 0; each < 15; ++each) {  // 14 and the common one
            peers.push_back(w.connect());
            peers.back().send("PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n");
            w.pump();
            CHECK_FALSE(peers.back().was_reset());
        }
        peers.push_back(w.connect());
        CHECK_FALSE(peers.back().was_reset());  // lane 1 has its place for it
        peers.back().send("PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n");
        w.pump();
        CHECK(peers.back().was_reset());
        CHECK(refused_by(w, refusal_cause::lane_reserve) == 1);
        CHECK(w.handler.opened == 15);
        CHECK_FALSE(w.connect().was_reset());
    });
}

TEST_CASE("remove_listener: nobody comes in by it any more, who is in stays, its place is free") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        for (int round = 0; round < 30; ++round) {  // more than listeners_max
            const auto added = w.server->add_listener({.trusted = "10.0.0.0/8"});
            REQUIRE(added.why == netio::error::none);
            w.port = w.server->local(added.value).port;
            w.pump();
            sim_peer peer = w.connect();
            CHECK(w.server->remove_listener(added.value));
            CHECK_FALSE(w.server->remove_listener(added.value));
            w.pump();
            CHECK(w.server->local(added.value).port == 0);
            const sim_peer late = w.connect();
            CHECK_FALSE(late.open());
            CHECK(peer.open());
            CHECK(w.server->stats().open == 1);
            peer.close();
            w.pump();
        }
        CHECK(w.handler.opened == 30);
        CHECK_FALSE(w.server->remove_listener({4}));
        CHECK_FALSE(w.server->remove_listener({0xFFFFFFFF}));
    });
}

TEST_CASE("remove_listener: its place is kept while somebody who came in by it is there") {
    plain_world w(false);
    std::vector<netio::listener_id> ids;
    for (int each = 0; each < 4; ++each) {
        const auto added = w.server->add_listener({});
        REQUIRE(added.why == netio::error::none);
        ids.push_back(added.value);
    }
    w.port = w.server->local(ids[2]).port;
    w.pump();
    sim_peer peer = w.connect();
    CHECK(w.server->remove_listener(ids[2]));
    w.pump();
    CHECK(w.server->add_listener({}).why == netio::error::full);
    peer.close();
    w.pump();
    const auto again = w.server->add_listener({});
    CHECK(again.why == netio::error::none);
    CHECK(again.value == ids[2]);
    w.port = w.server->local(again.value).port;
    w.pump();
    CHECK_FALSE(w.connect().was_reset());
    CHECK(w.handler.opened == 2);
}

TEST_CASE("remove_listener: before any worker runs the socket is closed at once") {
    plain_world w(false);
    const auto added = w.server->add_listener({});
    CHECK(w.net.descriptors_open() == 4);
    CHECK(w.server->remove_listener(added.value));
    CHECK(w.net.descriptors_open() == 3);
}

TEST_CASE("remove_listener: who was on the way to it is not let in by the next one in its place") {
    for (std::uint64_t seed = 1; seed < 20; ++seed) {
        netio::limits sizes = netio_test::small_limits;
        sizes.events_per_turn = 4;  // so that not all that is on its way comes in one turn
        plain_world w(true, sizes, {}, seed);
        const auto kept = w.server->add_listener({});
        const auto gone = w.server->add_listener({});
        REQUIRE(gone.why == netio::error::none);
        std::uint32_t came_in[2] = {};
        w.handler.open = [&](netio::connection& c) { ++came_in[c.listener()]; };
        w.pump();
        std::vector<sim_peer> late;
        for (int each = 0; each < 12; ++each) {
            w.net.connect(w.server->local(kept.value).port);
            late.push_back(w.net.connect(w.server->local(gone.value).port));
        }
        CHECK(w.server->remove_listener(gone.value));
        w.server->run_once(0);
        const auto next = w.server->add_listener({.lockdown_exempt = true});
        REQUIRE(next.why == netio::error::none);
        CHECK(next.value == gone.value);
        w.pump();
        CHECK(came_in[kept.value.index] == 12);
        CHECK(came_in[next.value.index] == 0);
        for (const sim_peer& each : late) {
            CHECK(each.was_reset());
        }
        w.port = w.server->local(next.value).port;
        CHECK_FALSE(w.connect().was_reset());
        CHECK(came_in[next.value.index] == 1);
    }
}

TEST_CASE("kill by id: a reset with the killer's reason, whatever the connection is doing") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        std::vector<netio::connection_id> ids;
        w.handler.open = [&](netio::connection& c) { ids.push_back(c.id()); };
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            if (in[0] == std::byte{'p'}) {
                c.park();
            } else if (in[0] == std::byte{'c'}) {
                c.close();
            } else {
                c.write(std::string(3000, 'x'));
            }
            return in.size();
        };
        w.listen();
        sim_peer idle = w.connect();
        sim_peer parked = w.connect();
        parked.send("p");
        sim_peer slow = w.connect();
        slow.window(10);
        slow.send("x");
        sim_peer lingering = w.connect();
        lingering.send("c");
        w.pump();
        REQUIRE(ids.size() == 4);
        std::uint16_t reason = 100;
        for (const netio::connection_id id : ids) {
            CHECK(w.server->kill(id, reason++));
            CHECK_FALSE(w.server->kill(id, 1));
            CHECK_FALSE(w.server->close(id, 1));
        }
        CHECK(w.server->wait_ms() == 0);
        w.pump();
        for (const sim_peer* each : {&idle, &parked, &slow, &lingering}) {
            CHECK(each->was_reset());
        }
        CHECK(w.server->stats().open == 0);
        REQUIRE(w.handler.reasons.size() == 4);
        for (const netio::close_reason& each : w.handler.reasons) {
            CHECK(each.kind == close_kind::killed);
            CHECK(each.detail >= 100);
        }
        for (const netio::connection_id id : ids) {
            CHECK_FALSE(w.server->kill(id));
        }
        CHECK(w.server->stats().counts.kills_stale == 4);
        CHECK_FALSE(w.server->kill({}));
        CHECK_FALSE(w.server->kill({~std::uint64_t{0}}));
    });
}

TEST_CASE("kill by id: the next life of a slot is never meant") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        netio::connection_id last{};
        w.handler.open = [&](netio::connection& c) { last = c.id(); };
        w.listen();
        for (int round = 0; round < 20; ++round) {
            sim_peer peer = w.connect();
            const netio::connection_id id = last;
            if (round % 2 == 0) {  // the wish and the peer's own end at once
                CHECK(w.server->kill(id));
            }
            peer.reset();
            sim_peer next = w.net.connect(w.port);
            w.pump();
            CHECK_FALSE(w.server->kill(id));
            CHECK(w.handler.opened == 2u * static_cast<unsigned>(round) + 2);
            CHECK_FALSE(next.was_reset());
            next.close();
            w.pump();
        }
    });
}

TEST_CASE("kill by id: more at once than one turn takes are all killed") {
    netio::limits sizes = netio_test::small_limits;
    sizes.connections_max = 600;
    plain_world w(false, sizes);
    std::vector<netio::connection_id> ids;
    w.handler.open = [&](netio::connection& c) { ids.push_back(c.id()); };
    w.listen();
    std::vector<sim_peer> peers;
    for (int each = 0; each < 600; ++each) {
        peers.push_back(w.net.connect(w.port));
        w.pump(3);
    }
    w.pump(400);
    REQUIRE(ids.size() == 600);
    for (const netio::connection_id id : ids) {
        CHECK(w.server->kill(id));
    }
    w.pump(400);
    CHECK(w.server->stats().open == 0);
    CHECK(closed_by(w, close_kind::killed) == 600);
}

TEST_CASE("kill by id: in the preface, while connecting, and before on_open of an adopted socket") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        w.net.remote(netio::ipv4(198, 51, 100, 1, 80), netio_test::sim_answer::silent);
        w.listen({.proxy = netio::proxy_mode::required});
        sim_peer silent = w.connect();
        REQUIRE(w.events.all.back().kind == netio::server_event_kind::accepted);
        CHECK(w.server->kill(w.events.all.back().id, 1));
        const auto dialled = w.server->connect(netio::ipv4(198, 51, 100, 1, 80), 5);
        CHECK(w.server->kill(dialled.value, 2));
        const auto adopted = w.server->adopt(w.net.connected_pair().handle);
        CHECK(w.server->kill(adopted.value, 3));
        w.pump();
        CHECK(silent.was_reset());
        CHECK(w.handler.opened <= 1);  // the adopted one may have been opened first
        CHECK(w.handler.connect_failures.size() == 1);
        CHECK(w.server->stats().open == 0);
        CHECK(closed_by(w, close_kind::killed) == 3);
    });
}

TEST_CASE("close by id: flushed, ended, and not longer than was said") {
    on_both_kernels([](bool proactor) {
        for (const bool reads : {true, false}) {
            CAPTURE(reads);
            plain_world w(proactor);
            netio::connection_id id{};
            w.handler.open = [&](netio::connection& c) { id = c.id(); };
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.write(std::string(2000, 'x'));
                return in.size();
            };
            w.listen();
            sim_peer peer = w.connect();
            peer.window(100);
            peer.send("x");
            w.pump();
            CHECK(w.server->close(id, 500));
            CHECK_FALSE(w.server->close(id, 500));
            CHECK_FALSE(w.server->close(id, 501));
            w.pump();
            peer.send("no more input");
            w.pump();
            CHECK(w.handler.count("data 13") == 0);
            if (reads) {
                std::string got;
                for (int round = 0; round < 100; ++round) {
                    got += peer.take_text();
                    w.pump();
                }
                CHECK(got.size() == 2000);
                CHECK(peer.finished());
                CHECK_FALSE(peer.was_reset());
                peer.close();
                w.pump();
                CHECK(w.handler.reasons.at(0).kind == close_kind::handler_closed);
            } else {
                w.pass(498);
                CHECK(w.handler.closed == 0);
                w.pass(5);
                CHECK(peer.was_reset());
                CHECK(w.handler.reasons.at(0).kind == close_kind::exchange_deadline);
            }
        }
    });
}

TEST_CASE("close by id: who asks for the end grants no time beyond a deadline that runs already") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        netio::connection_id id{};
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            c.deadline(200);
        };
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string(2000, 'x'));
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.window(100);
        peer.send("x");
        w.pump();
        CHECK(w.server->close(id, 60'000));
        w.pass(190);
        CHECK(w.handler.closed == 0);
        w.pass(15);
        CHECK(peer.was_reset());
        CHECK(w.handler.reasons.at(0).kind == close_kind::exchange_deadline);
    });
}

TEST_CASE("close by id: a shorter time counts, and a linger is cut by it, too") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        netio::connection_id id{};
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        w.listen();
        sim_peer peer = w.connect();
        CHECK(w.server->close(id, 0xFFFFFFFF));
        w.pump();
        CHECK(peer.finished());
        CHECK(w.server->close(id, 100));
        w.pass(98);
        CHECK(w.server->stats().open == 1);
        w.pass(4);
        CHECK(w.server->stats().open == 0);
    });
}

TEST_CASE("drain: the report adds up") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        bool done = false;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            c.phase(done ? netio::phase::idle : netio::phase::exchange);
            return in.size();
        };
        w.listen();
        std::vector<sim_peer> idle;
        for (int each = 0; each < 4; ++each) {
            idle.push_back(w.connect());
        }
        sim_peer finishes = w.connect();
        finishes.send("x");
        sim_peer leaves = w.connect();
        leaves.send("x");
        sim_peer never = w.connect();
        never.send("x");
        w.pump();
        w.server->drain(300);
        w.pump();
        for (sim_peer& each : idle) {
            CHECK(each.finished());
            each.close();
        }
        leaves.reset();
        done = true;
        finishes.send("y");
        w.pump();
        finishes.close();
        while (w.server->run_once(1)) {
        }
        CHECK(never.was_reset());
        const netio::drain_report report = w.server->drained();
        CHECK(report.open_at_begin == 7);
        CHECK(report.idle == 5);
        CHECK(report.finished == 1);
        CHECK(report.cut == 1);
        CHECK(report.took_ms >= 300);
        CHECK(report.took_ms < 340);
    });
}

TEST_CASE("shed: an answer that was just given to the kernel arrives") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            w.server->control(control_state::shed, 0);
            c.write(std::string(900, 'x'));
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("question");
        w.pump();
        CHECK(peer.take_text().size() == 900);
        CHECK(peer.finished());
        CHECK_FALSE(peer.was_reset());
    });
}

TEST_CASE("lockdown, shed: who waits in the preface meanwhile is not let in by its header") {
    on_both_kernels([](bool proactor) {
        for (const control_state state : {control_state::lockdown, control_state::shed}) {
            for (const std::string_view header :
                 {std::string_view("PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n"),
                  std::string_view("PROXY UNKNOWN\r\n")}) {
                plain_world w(proactor);
                w.listen({.proxy = netio::proxy_mode::required});
                sim_peer peer = w.connect();
                w.server->control(state, 0);
                w.pump();
                peer.send(header);
                w.pump();
                CHECK(peer.was_reset());
                CHECK(w.handler.opened == 0);
                CHECK(refused_by(w, state == control_state::shed ? refusal_cause::shed
                                                                 : refusal_cause::lockdown) == 1);
                w.listen({.lockdown_exempt = true, .proxy = netio::proxy_mode::required});
                sim_peer exempt = w.connect();
                exempt.send(header);
                w.pump();
                CHECK(exempt.was_reset() == (state == control_state::shed));
            }
        }
    });
}

TEST_CASE("lanes: refusals that are answered take no reserved place") {
    struct picky {
        netio::verdict admit(const netio::connection& c) noexcept {
            return c.source().port == 1 ? netio::verdict::allow(1)
                                        : netio::verdict::refuse(1, "no");
        }
    };
    on_both_kernels([](bool proactor) {
        netio_test::server_world<scripted, picky> w(proactor);  // 16 connections
        CHECK(w.server->reserve_lane(1, 8) == netio::error::none);
        w.listen();
        std::vector<sim_peer> refused;
        for (std::uint16_t each = 0; each < 16; ++each) {
            refused.push_back(w.connect(netio::ipv4(198, 51, 100, 7, 2000 + each)));
        }
        std::uint32_t answered = 0;
        for (sim_peer& each : refused) {
            answered += each.take_text() == "no" ? 1 : 0;
        }
        CHECK(answered == 8);
        CHECK(w.server->stats().open == 8);
        CHECK_FALSE(w.connect(netio::ipv4(198, 51, 100, 7, 1)).was_reset());
        CHECK(w.handler.opened == 1);
        w.pass(1100);
        CHECK(w.server->stats().open == 1);
    });
}

TEST_CASE("close: an exchange deadline does not cut the linger of an answer that is out") {
    on_both_kernels([](bool proactor) {
        plain_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.deadline(100);
            c.write("answer");
            c.close();
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("x");
        w.pass(1500);
        CHECK(peer.take_text() == "answer");
        CHECK_FALSE(peer.was_reset());
        CHECK(w.server->stats().open == 1);
        w.pass(600);  // linger is 2 s
        CHECK(w.server->stats().open == 0);
        CHECK(w.handler.reasons.at(0).kind == close_kind::handler_closed);
    });
}

TEST_CASE("the server's end reaches every connection of many") {
    netio::limits sizes = netio_test::small_limits;
    sizes.connections_max = 4200;  // more than a turn's sweep
    plain_world w(false, sizes);
    w.listen({.times = {.idle_ms = 0}});
    std::vector<sim_peer> peers;
    for (int each = 0; each < 4200; ++each) {
        peers.push_back(w.net.connect(w.port));
        w.server->run_once(0);
    }
    w.pump(2000);
    CHECK(w.server->stats().open == 4200);
    w.server.reset();
    CHECK(w.handler.closed == 4200);
    CHECK(w.net.descriptors_open() == 3);
    w.memory.~fresh_memory();
    ::new (&w.memory) netio_test::fresh_memory(netio::bytes_needed<netio_test::simulator>(sizes));
    w.events.all.clear();
    w.server = std::make_unique<plain_world::server_type>(
        netio::storage_view{w.memory.all(), sizes}, w.handler, w.events);  // for the world's end
}

TEST_CASE("drain: what a stop cuts in the midst of it is in the report") {
    plain_world w(false);
    w.handler.data = [](netio::connection& c, netio::bytes in) {
        c.phase(netio::phase::exchange);
        return in.size();
    };
    w.listen();
    sim_peer busy = w.connect();
    busy.send("x");
    w.pump();
    w.server->drain(10'000);
    w.pump();
    w.server->stop();
    while (w.server->run_once(1)) {
    }
    CHECK(busy.was_reset());
    CHECK(w.server->drained().open_at_begin == 1);
    CHECK(w.server->drained().cut == 1);
    CHECK(w.server->drained().finished == 0);
}
