// Rules that a careless server breaks: each case was a fault once.
#include "tests/server_world.hpp"

namespace {

using netio_test::scripted;
using netio_test::sim_answer;
using netio_test::sim_peer;
using netio_test::small_limits;
using netio_test::on_both_kernels;
using netio_test::text_of;
using world = netio_test::server_world<>;

}  // namespace

TEST_CASE("moving another connection's input inside on_data does not count as this one's") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        netio::connection_id first;
        std::string got;
        w.handler.open = [&](netio::connection& c) {
            if (!first) {
                first = c.id();
            }
        };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            if (c.id() == first) {
                c.pause();
                return std::size_t{0};
            }
            got += text_of(in);
            if (netio::connection* other = c.find(first)) {
                other->move_input_to(c);
            }
            return in.size();
        };
        w.listen();
        sim_peer a = w.connect();
        sim_peer b = w.connect();
        a.send("aaaaa");
        w.pump();
        b.send("bbb");
        w.pump();
        b.send("c");
        w.pump();
        CHECK(got == "bbbc");
        CHECK(b.take_text() == "aaaaa");
    });
}

TEST_CASE("a long transfer is not cut by the read deadline while the peer takes it") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        std::uint64_t written = 0;
        const std::string block(1000, 'd');
        const auto fill = [&](netio::connection& c) {
            while (written < 200'000 && c.write(block) == block.size()) {
                written += block.size();
            }
        };
        w.handler.open = [](netio::connection& c) { c.phase(netio::phase::exchange); };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            fill(c);
            return in.size();
        };
        w.handler.writable = [&](netio::connection& c) { fill(c); };
        netio::listen_options how;
        how.times.read_ms = 300;
        w.listen(how);
        sim_peer peer = w.connect();
        peer.window(500);
        peer.send("get");
        w.pump();
        for (int at = 0; at < 20; ++at) {
            w.pass(100);
            peer.take(500);
        }
        CHECK(w.handler.closed == 0);
        peer.window(1'000'000);
        w.pump(400);
        peer.take(1'000'000);
        w.pass(320);
        CHECK(w.handler.log.back() == "close killed");  // by the scripted on_deadline
    });
}

TEST_CASE("a loop whose writers wait for buffers sleeps until one comes back") {
    world w(false);
    w.handler.data = [](netio::connection& c, netio::bytes in) {
        c.write(std::string(4096, 'w'));
        return in.size();
    };
    w.listen();
    sim_peer peers[3];
    for (sim_peer& each : peers) {
        each = w.connect();
        each.window(0);
        each.send("x");
        w.pump();
    }
    CHECK(w.server->stats().pools[2].in_use == 8);
    CHECK(w.server->wait_ms() > 1000);
    const std::uint64_t turns = w.server->stats().counts.turns;
    w.pass(1000);
    CHECK(w.server->stats().counts.turns - turns < 100);
}

TEST_CASE("a move that must wait for a receive is answered by on_writable") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        netio::connection_id from;
        netio::connection_id to;
        std::size_t moved = 0;
        w.handler.open = [&](netio::connection& c) { (from ? to : from) = c.id(); };
        w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
        const auto try_it = [&](netio::connection& c) {
            netio::connection* source = c.find(from);
            REQUIRE(source != nullptr);
            moved = source->move_input_to(c);
            if (moved == 0) {
                source->pause();
            }
        };
        w.handler.posted = [&](netio::connection& c, std::uint64_t) { try_it(c); };
        w.handler.writable = [&](netio::connection& c) { try_it(c); };
        w.listen();
        sim_peer a = w.connect();
        sim_peer b = w.connect();
        a.send("waiting bytes");
        w.pump();
        CHECK(w.server->post(to, 1));
        w.pump();
        CHECK(moved == 13);
        CHECK(b.take_text() == "waiting bytes");
    });
}

TEST_CASE("a server ends although its handler dials again whenever it loses a connection") {
    struct redialling {
        std::function<void()> call = [] {};
        int dials = 0;
        std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
        void on_close(netio::connection&, netio::close_reason) noexcept { dial(); }
        void on_connect_failed(std::uint64_t, netio::error) noexcept { dial(); }
        void dial() noexcept {
            ++dials;
            call();
        }
    };
    on_both_kernels([](bool proactor) {
        for (const int way : {0, 1, 2}) {
            netio_test::server_world<redialling> w(proactor);
            w.net.remote(netio::ipv4(198, 51, 100, 1, 80), sim_answer::accept);
            w.handler.call = [&w] { w.server->connect(netio::ipv4(198, 51, 100, 1, 80)); };
            w.handler.dial();
            w.pass(50);
            CHECK(w.server->stats().open == 1);
            if (way == 0) {
                w.server->stop();
            } else if (way == 1) {
                w.server->drain(10);
            }
            if (way != 2) {
                CHECK(w.server->run() == netio::error::none);
            }
            const auto pair = w.net.connected_pair();
            w.server->stop();
            CHECK(w.server->adopt(pair.handle).why == netio::error::stopped);
            netio_test::simulator::close_handle(pair.handle, true);
        }
    });
}

TEST_CASE("a peer that resets while its input waits for output room is let go") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
        netio::listen_options how;
        how.times.read_ms = 0;
        how.times.idle_ms = 0;
        how.times.write_ms = 0;
        w.listen(how);
        sim_peer peer = w.connect();
        peer.window(0);
        for (int at = 0; at < 100; ++at) {
            peer.send(std::string(500, 'f'));
            w.pump(3);
        }
        peer.reset();
        w.pass(100);
        CHECK(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == netio::close_kind::peer_reset);
    });
}

TEST_CASE("saying exchange while parked does not end the parking") {
    world w(false);
    w.handler.open = [](netio::connection& c) {
        c.park(60'000);
        c.phase(netio::phase::exchange);
    };
    w.listen();
    w.connect();
    w.pass(50'000);
    CHECK(w.handler.count("deadline") == 0);
    w.pass(10'100);
    CHECK(w.handler.count("deadline") == 1);
}

TEST_CASE("a stop before the first run is seen, and a second run returns at once") {
    world w(false);
    w.server->stop();
    CHECK(w.server->run() == netio::error::none);
    CHECK(w.server->run() == netio::error::none);
    CHECK_FALSE(w.server->run_once(1000));
}

TEST_CASE("no address of a client stays in the storage when it is gone") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.listen();
        const auto id = w.server->open_datagram({.address = "127.0.0.1"});
        w.pump();
        const netio::endpoint client = netio::ipv4(203, 7, 113, 77, 0xABCD);
        for (int at = 0; at < 20; ++at) {
            sim_peer peer = w.connect(client);
            peer.close();
            w.pump();
        }
        w.net.send_datagram(w.net.datagram_peer(client), w.server->local(id.value),
                            netio::as_bytes("x"));
        w.pump();
        const netio::mutable_bytes all = w.memory.all();
        std::size_t found = 0;
        for (std::size_t at = 0; at + 4 <= all.size(); ++at) {
            found += std::memcmp(all.data() + at, client.address.data(), 4) == 0 ? 1 : 0;
        }
        CHECK(found == 0);
    });
}

TEST_CASE("in on_close the window holds what came, and the descriptor is nobody's") {
    struct looking {
        std::size_t on_data(netio::connection&, netio::bytes) noexcept { return 0; }
        void on_close(netio::connection& c, netio::close_reason) noexcept {
            ++closed;
            CHECK(c.input().size() == 5);
            CHECK(c.native_handle() == netio::no_handle);
            CHECK(c.local() == netio::endpoint{});
        }
        int closed = 0;
    };
    on_both_kernels([](bool proactor) {
        netio_test::server_world<looking> w(proactor);
        w.listen();
        sim_peer peer = w.connect();
        peer.send("hello");
        w.pump();
        w.server->stop();
        w.server->run();
        CHECK(w.handler.closed == 1);
    });
}

TEST_CASE("listening that fails gives back its rows of trusted networks") {
    world w(false);
    w.listen({.port = 9000});
    for (int at = 0; at < 10; ++at) {
        w.server->listen({.port = 9000, .trusted = "10.0.0.0/8, 10.1.0.0/16, 10.2.0.0/16"});
        CHECK(w.server->failure().code == netio::error::address_in_use);
        CHECK(w.server->open_datagram({.address = "127.0.0.1",
                                       .port = 1,
                                       .trusted = "10.0.0.0/8, 10.1.0.0/16, 10.2.0.0/16"})
                  .why != netio::error::full);
    }
    CHECK(w.server->listen({.trusted = "10.0.0.0/8"}) == netio::error::none);
}

TEST_CASE("a drain without a bound waits, and a shorter one shortens it") {
    world w(false);
    w.handler.open = [](netio::connection& c) { c.phase(netio::phase::exchange); };
    netio::listen_options how;
    how.times.read_ms = 0;
    w.listen(how);
    sim_peer peer = w.connect();
    w.server->drain(~std::uint64_t{0});
    w.pass(100'000);
    CHECK(w.server->stats().open == 1);
    CHECK_FALSE(peer.was_reset());
    w.server->drain(50);
    CHECK(w.server->run() == netio::error::none);
    CHECK(peer.was_reset());
    CHECK(w.handler.reasons[0].kind == netio::close_kind::drain_deadline);
}

TEST_CASE("a listener added while draining neither accepts nor keeps the loop awake") {
    world w(false);
    w.handler.open = [](netio::connection& c) { c.phase(netio::phase::exchange); };
    w.listen();
    w.connect();
    w.server->drain(1'000);
    w.pump();
    CHECK(w.server->listen({}) == netio::error::none);
    w.pump();
    const std::uint64_t turns = w.server->stats().counts.turns;
    w.pass(500);
    CHECK(w.server->stats().counts.turns - turns < 200);
}

TEST_CASE("no hook but on_close is called after kill") {
    world w(false);
    netio::connection_id ids[2];
    std::size_t known = 0;
    w.handler.open = [&](netio::connection& c) {
        ids[known++] = c.id();
        c.deadline(1000);
    };
    w.handler.deadline = [&](netio::connection& c, netio::deadline_kind) {
        for (const netio::connection_id each : ids) {
            if (netio::connection* other = c.find(each)) {
                other->kill(1);
            }
        }
    };
    w.listen();
    w.connect();
    w.connect();
    w.server->post(ids[0], 5);
    w.pass(1100);
    CHECK(w.handler.count("deadline") == 1);
    CHECK(w.handler.count("close killed") == 2);
}

TEST_CASE("a short life is told as short, and an adopted socket is closed once by stop") {
    world w(false);
    w.listen();
    w.pass(1999);
    sim_peer peer = w.connect();
    w.pass(20);
    peer.close();
    w.pump();
    CHECK(w.events.all.back().lifetime_ms <= 48);
    const auto pair = w.net.connected_pair();
    CHECK(static_cast<bool>(w.server->adopt(pair.handle)));
    w.server->stop();
    CHECK(w.server->run() == netio::error::none);
    CHECK(w.handler.opened == 2);
    CHECK(w.handler.closed == 2);
    sim_peer other = pair.peer;
    CHECK(other.was_reset());
}

TEST_CASE("a listener refuses what would let strangers hold memory") {
    netio::limits sizes = small_limits;
    sizes.buffer_bytes = 8192;
    world large(false, sizes);
    char line[200];
    large.server->listen({.proxy = netio::proxy_mode::required, .header_max = 4096});
    CHECK(netio::describe(large.server->failure(), line) ==
          "listen trusted: option out of range");
    large.server->listen({.proxy = netio::proxy_mode::required, .times = {.preface_ms = 0}});
    CHECK(large.server->failure().code == netio::error::option_invalid);
    CHECK(large.server->failure().needed == 3000);
    netio::limits wide = small_limits;
    wide.input_buffers_max = netio::slots_max - 1;
    wide.output_buffers_max = netio::slots_max - 1;
    CHECK(std::string_view(netio::wrong_field(wide)) == "output_buffers_max");
    wide = small_limits;
    wide.workers_max = 200;
    wide.input_buffers_max = wide.output_buffers_max = wide.posts_max = 200;
    wide.connections_max = netio::slots_max;
    CHECK(std::string_view(netio::wrong_field(wide)) == "connections_max");
}

TEST_CASE("what a system lacks for local sockets is refused by the field's name") {
    world w(false);
    const auto refused = [&](const netio::listen_options& how, std::string_view field) {
        CHECK(w.server->listen(how) == netio::error::not_supported);
        CHECK(std::string_view(w.server->failure().subject) == field);
    };
    refused({.unix_path = "/run/one", .unix_mode = 0666}, "unix_mode");
    refused({.unix_path = "/run/one", .unix_required_uid = 0}, "unix_required_uid");
}

TEST_CASE("a connection that ends while on_data is owed to it leaves the line of those") {
    world w(false);
    netio::connection_id ids[3];
    std::size_t known = 0;
    bool armed = false;
    w.handler.open = [&](netio::connection& c) { ids[known++] = c.id(); };
    w.handler.data = [&](netio::connection& c, netio::bytes in) {
        if (!armed) {
            c.pause();
            return std::size_t{0};
        }
        if (c.id() != ids[2]) {
            c.resume();  // owed again, for the next turn
            return std::size_t{0};
        }
        // The last of the line leaves it first, then the first.
        armed = false;
        c.find(ids[1])->kill();
        c.find(ids[0])->kill();
        return in.size();
    };
    w.handler.posted = [](netio::connection& c, std::uint64_t) { c.resume(); };
    w.listen();
    // A full window has no receive outstanding, so on_data needs no cancel before it.
    const std::string full(small_limits.buffer_bytes, 'x');
    std::vector<sim_peer> peers;
    for (int at = 0; at < 3; ++at) {
        peers.push_back(w.connect());
        peers.back().send(full);
        w.pump();
    }
    armed = true;
    for (const netio::connection_id each : ids) {
        w.server->post(each, 1);
    }
    w.pump();
    CHECK(w.handler.count("close killed") == 2);
    CHECK(w.handler.closed == 2);
    CHECK_FALSE(armed);
    peers[2].send("more");
    w.pump();
    CHECK(w.handler.log.back() == "data 4");
}

TEST_CASE("static output of no bytes is taken, and a UDP socket knows its address and number") {
    world w(false);
    w.handler.open = [](netio::connection& c) {
        CHECK(c.write_static(netio::bytes{}));
        CHECK(c.write_static(std::string_view("x")));
        CHECK(c.write("y") == 1);  // a static piece has no room of its own
        CHECK(c.write("z") == 1);
    };
    std::uint32_t seen = 0;
    w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram&) {
        CHECK(via.id() == netio::datagram_id{0});
        CHECK(via.local().port == w.server->local(netio::datagram_id{0}).port);
        CHECK(via.native_handle() != netio::no_handle);
        ++seen;
    };
    REQUIRE(static_cast<bool>(w.server->open_datagram({.address = "127.0.0.1"})));
    w.listen();
    sim_peer peer = w.connect();
    CHECK(peer.take_text() == "xyz");
    w.net.send_datagram(w.net.datagram_peer(netio::ipv4(127, 0, 0, 1, 40'000)),
                        w.server->local(netio::datagram_id{0}), netio::as_bytes("d"));
    w.pump();
    CHECK(seen == 1);
}
