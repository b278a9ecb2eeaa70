// The rows `gate`, `kill`, `control` and `caps` of the service's suite: who gets in, what gets out,
// who is ended, on a real kernel. What needs no kernel is in tests/server_gate_test.cpp and its
// neighbours.
#ifndef NETIO_TESTS_SERVICE_LIMITS_HPP
#define NETIO_TESTS_SERVICE_LIMITS_HPP

#include "tests/service_world.hpp"

#include <atomic>
#include <functional>
#include <random>
#include <thread>

namespace netio_test {

/// Says what a case puts there, and counts who is in.
struct service_gate {
    std::function<netio::verdict(const netio::connection&)> enters =
        [](const netio::connection&) { return netio::verdict::allow(); };
    std::function<netio::egress(const netio::connection&)> leaves =
        [](const netio::connection&) { return netio::egress::allow(); };
    std::int64_t inside = 0;
    std::uint32_t ends = 0;

    netio::verdict admit(const netio::connection& c) noexcept {
        const netio::verdict said = enters(c);
        inside += said.allowed() ? 1 : 0;
        return said;
    }
    netio::egress check(const netio::connection& c, const netio::write_facts&) noexcept {
        return leaves(c);
    }
    void closed(const netio::connection&, netio::close_reason) noexcept {
        --inside;
        ++ends;
    }
};

template <class Backend>
struct service_limits_of {
    using world = service_world<Backend>;
    using gate_world = service_world<Backend, service_gate>;
    using kernel = service_kernel<Backend>;
    using kind = netio::close_kind;
    using cause = netio::refusal_cause;

    template <class World>
    static std::uint64_t refused_by(World& w, cause why) {
        return w.server().stats().counts.refused_by[static_cast<std::size_t>(why)];
    }
    template <class World>
    static bool served(World& w, client_socket& client, std::string_view text = "hello") {
        return w.exchange(client, text) == text;
    }
    /// Reset, or ended without a byte, or refused by the system.
    template <class World>
    static bool turned_away(World& w, client_socket& client) {
        return !client.connected() ||
               (w.until([&] { return client.over(); }) && client.arrived().empty());
    }

    // ---- gate

    static void gate_refuses() {
        gate_world w;
        int round = 0;
        w.gate.enters = [&](const netio::connection&) {
            return round % 2 == 0 ? netio::verdict::refuse(9)
                                  : netio::verdict::refuse(9, "not you\n");
        };
        const netio::endpoint at = w.listen();
        for (; round < 10; ++round) {
            CAPTURE(round);
            client_socket client(at);
            client.send("anybody there?");
            CHECK(w.until([&] { return client.over(); }));
            CHECK(client.was_reset() == (round % 2 == 0));
            CHECK(client.arrived() == (round % 2 == 0 ? "" : "not you\n"));
            client.close();
            CHECK(w.until([&] { return w.server().stats().open == 0; }));
        }
        CHECK(refused_by(w, cause::gate) == 10);
        CHECK(w.handler.opened == 0);
        CHECK(w.gate.ends == 0);
    }

    static void gate_denies() {
        for (const bool answers : {false, true}) {
            CAPTURE(answers);
            gate_world w;
            service_echo(w.handler);
            bool may = true;
            w.gate.leaves = [&](const netio::connection&) {
                return may       ? netio::egress::allow()
                       : answers ? netio::egress::deny(8, "revoked\n")
                                 : netio::egress::deny(8);
            };
            const netio::endpoint at = w.listen();
            client_socket client(at);
            CHECK(served(w, client, "first "));
            may = false;
            client.send("second");
            CHECK(w.until([&] { return client.over(); }));
            CHECK(client.arrived() == (answers ? "first revoked\n" : "first "));
            CHECK(client.was_reset() == !answers);
            client.close();
            CHECK(w.until_closed(1));
            CHECK(w.handler.reasons[0].kind == kind::egress_denied);
            CHECK(w.handler.count("denied 8") == 1);
            CHECK(w.gate.ends == 1);
        }
    }

    static void gate_of_others() {
        gate_world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen();
        w.gate.enters = [](const netio::connection& c) {
            return c.origin() == netio::origin::connected ? netio::verdict::refuse(1)
                                                          : netio::verdict::allow(4, 44);
        };
        w.server().run_once(1);
        CHECK(w.server().connect(at, 1).why == netio::error::refused_by_gate);
        w.gate.enters = [](const netio::connection&) { return netio::verdict::allow(4, 44); };
        w.handler.open = [](netio::connection& c) {
            CHECK(c.lane() == 4);
            CHECK(c.tag() == 44);
        };
        CHECK(w.server().connect(at, 1).why == netio::error::none);
        CHECK(w.until([&] { return w.handler.opened == 2; }));  // both ends are ours
        CHECK(w.gate.inside == 2);
        w.check_nothing_held();
        CHECK(w.gate.inside == 0);
    }

    // ---- kill

    static void kill_by_id() {
        for (const char doing : {'i', 'w', 'p', 'l'}) {
            CAPTURE(doing);
            world w;
            netio::connection_id id{};
            w.handler.open = [&](netio::connection& c) { id = c.id(); };
            w.handler.data = [&](netio::connection& c, netio::bytes in) {
                if (doing == 'w') {
                    c.write(std::string(4096, 'x'));
                } else if (doing == 'p') {
                    c.park();
                } else if (doing == 'l') {
                    c.close();
                }
                return in.size();
            };
            client_socket client(w.listen());
            client.send("x");
            CHECK(w.until([&] { return w.handler.count("data 1") == 1; }));
            CHECK(w.server().kill(id, 77));
            CHECK_FALSE(w.server().kill(id, 78));
            CHECK(w.until_closed(1));
            CHECK(w.handler.reasons[0].kind == kind::killed);
            CHECK(w.handler.reasons[0].detail == 77);
            CHECK(w.until([&] { return client.over(); }));
            CHECK_FALSE(w.server().kill(id, 77));
            CHECK(w.server().stats().counts.kills_stale == 1);
        }
    }

    /// Ids of connections that are gone, whose slots and descriptors belong to others by then.
    static void kill_from_threads() {
        world w;
        std::array<std::atomic<std::uint64_t>, 16> ids{};
        std::uint32_t next = 0;
        w.handler.open = [&](netio::connection& c) { ids[next++ % 16].store(c.id().bits); };
        w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
        const netio::endpoint at = w.listen();
        std::atomic<bool> over = false;
        std::atomic<std::uint32_t> yes = 0;
        std::thread killer([&] {
            std::minstd_rand choose(7);
            while (!over.load()) {
                const netio::connection_id id{ids[choose() % 16].load()};
                yes += id && w.server().kill(id, 5) ? 1u : 0u;
                std::this_thread::yield();
            }
        });
        constexpr std::uint32_t rounds = 300;
        for (std::uint32_t round = 0; round < rounds; ++round) {
            client_socket client(at);
            client.send("x");
            w.until([&] { return client.over() || client.arrived() == "x"; });
            round % 2 == 0 ? client.close() : client.reset();
        }
        CHECK(w.until_closed(rounds));
        over = true;
        killer.join();
        std::uint32_t killed = 0;
        for (const netio::close_reason& each : w.handler.reasons) {
            killed += each.kind == kind::killed ? 1 : 0;
        }
        CHECK(killed <= yes.load());
        CHECK(w.handler.opened == rounds);
    }

    static void close_by_id() {
        world w;
        netio::connection_id id{};
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
        client_socket client(w.listen());
        CHECK(served(w, client));
        CHECK(w.server().close(id, 60'000));
        CHECK(w.until([&] { return client.over(); }));
        CHECK_FALSE(client.was_reset());
        client.close();
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons[0].kind == kind::handler_closed);
        CHECK_FALSE(w.server().close(id, 1));
    }

    /// By calls that are made for other threads. What they cost is counted in tests/epoll_test.cpp.
    static void kill_from_a_callback() {
        world w;
        netio::connection_id id{};
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            id = c.id();
            for (std::uint64_t word = 0; word < 10; ++word) {
                CHECK(w.server().post(id, word));
            }
            return in.size();
        };
        w.handler.posted = [&](netio::connection&, std::uint64_t word) {
            if (word == 9) {
                CHECK(w.server().kill(id));
            }
        };
        client_socket client(w.listen());
        client.send("x");
        CHECK(w.until_closed(1));
        CHECK(w.handler.count("post 9") == 1);
    }

    // ---- control

    static void door_of_a_server() {
        world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen();
        client_socket inside(at);
        CHECK(served(w, inside));
        w.server().close_door();
        for (int turn = 0; turn < 5; ++turn) {
            w.server().run_once(1);
        }
        const std::uint32_t opened = w.handler.opened;
        client_socket outside(at);
        outside.send("later");
        CHECK(served(w, inside, "again") == false);  // it keeps what came before
        CHECK(inside.arrived() == "helloagain");
        for (int turn = 0; turn < 5; ++turn) {
            w.server().run_once(1);
        }
        // A ring or a completion port has accepts on their way: those are refused, the rest waits.
        const bool refused = refused_by(w, cause::door_closed) != 0;
        CHECK(w.handler.opened == opened);
        w.server().open_door();
        if (refused) {
            outside = client_socket(at);
            outside.send("later");
        }
        CHECK(w.until([&] { return outside.arrived() == "later" || outside.over(); }));
        CHECK(outside.arrived() == "later");
    }

    static void lockdown_and_shedding() {
        gate_world w;
        service_echo(w.handler);
        w.gate.enters = [&](const netio::connection& c) {
            return netio::verdict::allow(static_cast<std::uint8_t>(c.listener()));
        };
        const netio::endpoint first = w.listen();
        const netio::endpoint second = w.listen({.lockdown_exempt = true});
        client_socket in_lane_0(first);
        client_socket in_lane_1(second);
        CHECK(served(w, in_lane_0));
        CHECK(served(w, in_lane_1));
        w.server().control(netio::control_state::shed, 1);
        CHECK(w.until([&] { return in_lane_1.over(); }));
        CHECK_FALSE(in_lane_1.was_reset());
        client_socket shed(second);
        CHECK(turned_away(w, shed));
        CHECK(refused_by(w, cause::shed) == 1);
        CHECK(w.exchange(in_lane_0, "!") == "hello!");
        w.server().control(netio::control_state::lockdown);
        w.server().run_once(1);
        client_socket locked_out(first);
        CHECK(turned_away(w, locked_out));
        CHECK(refused_by(w, cause::lockdown) == 1);
        client_socket exempt(second);
        CHECK(served(w, exempt));
        w.server().control(netio::control_state::normal);
        w.server().run_once(1);
        client_socket again(first);
        CHECK(served(w, again));
    }

    static void live_listeners() {
        world w;
        service_echo(w.handler);
        for (int round = 0; round < 12; ++round) {
            const auto added = w.server().add_listener({.address = "127.0.0.1"});
            REQUIRE(added.why == netio::error::none);
            const netio::endpoint at = w.server().local(added.value);
            client_socket client(at);
            CHECK(served(w, client));
            CHECK(w.server().remove_listener(added.value));
            w.server().run_once(1);
            client_socket late(at);
            CHECK(turned_away(w, late));
            CHECK(w.exchange(client, "!") == "hello!");
            client.close();
            CHECK(w.until([&] { return w.server().stats().open == 0; }));
        }
    }

    // ---- caps

    static void source_cap() {
        world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen({.source_connections_max = 2});
        client_socket first(at);
        client_socket second(at);
        CHECK(served(w, first));
        CHECK(served(w, second));
        client_socket third(at);
        CHECK(turned_away(w, third));
        CHECK(refused_by(w, cause::source_cap) == 1);
        first.close();
        CHECK(w.until_closed(1));
        client_socket fourth(at);
        CHECK(served(w, fourth));
    }

    static void source_cap_of_workers() {
        struct echo {
            std::atomic<std::uint32_t> now = 0;
            std::atomic<std::uint32_t> most = 0;
            void on_open(netio::connection&) noexcept {
                const std::uint32_t count = ++now;
                std::uint32_t seen = most.load();
                while (count > seen && !most.compare_exchange_weak(seen, count)) {
                }
            }
            std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
                return c.write(in);
            }
            void on_close(netio::connection&, netio::close_reason) noexcept { --now; }
        };
        client_os::start();
        netio::limits sizes = service_limits;
        sizes.workers_max = 2;
        echo handler;
        fresh_memory memory(netio::bytes_needed<Backend>(sizes));
        netio::server<echo, Backend> server({memory.all(), sizes}, handler);
        netio::listen_options how;
        how.address = "127.0.0.1";
        how.source_connections_max = 3;
        REQUIRE(server.listen(how) == netio::error::none);
        const netio::endpoint at = server.local();
        std::thread workers[2];
        for (std::uint32_t each = 0; each < 2; ++each) {
            workers[each] = std::thread([&server, each] { server.run(each); });
        }
        for (int round = 0; round < 20; ++round) {
            std::vector<client_socket> clients(8);
            for (client_socket& each : clients) {
                each = client_socket(at);
                each.send("x");
            }
            std::uint32_t in = 0;
            for (client_socket& each : clients) {
                settle(each, [&] { return each.over() || each.arrived() == "x"; });
                in += each.arrived() == "x" ? 1 : 0;
            }
            CHECK(in <= 3);
            CHECK((round != 0 || in == 3));
        }
        server.drain(10'000);
        for (std::thread& each : workers) {
            each.join();
        }
        CHECK(handler.most.load() <= 3);
        CHECK(server.stats().open == 0);
        CHECK(server.stats().pools[8].in_use == 0);
    }

    static void slow_sender() {
        world w(service_limits, 100'000'000);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.phase(netio::phase::exchange);
            return in.size();
        };
        netio::listen_options how;
        how.times.read_ms = 0;
        client_socket client(w.listen(how));
        int turn = 0;
        CHECK(w.until([&] {
            if (++turn % 10 == 0) {  // in the others time jumps
                client.send("x");
            }
            return w.handler.closed == 1;
        }));
        REQUIRE(w.handler.reasons.size() == 1);
        CHECK(w.handler.reasons[0].kind == kind::slow_peer_in);
    }
};

}  // namespace netio_test

#endif
