// The service as a handler sees it, over the simulator in both personalities.
#include "tests/server_world.hpp"

namespace {

using netio_test::remembering;
using netio_test::scripted;
using netio_test::sim_answer;
using netio_test::sim_options;
using netio_test::sim_peer;
using netio_test::small_limits;
using netio_test::on_both_kernels;
using netio_test::text_of;
using world = netio_test::server_world<>;

std::string server_numbers(std::size_t count) {
    std::string out;
    while (out.size() < count) {
        out += std::to_string(out.size()) + " ";
    }
    out.resize(count);
    return out;
}

std::size_t server_echo(netio::connection& c, netio::bytes in) { return c.write(in); }

}  // namespace

TEST_CASE("what a handler writes comes back in order") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = server_echo;
        w.listen();
        sim_peer peer = w.connect();
        const std::string sent = server_numbers(700);
        CHECK(peer.send(sent) == 700);
        w.pump();
        CHECK(peer.take_text() == sent);
        CHECK(w.handler.opened == 1);
        CHECK(w.handler.closed == 0);
    });
}

TEST_CASE("a stream longer than all buffers passes through an echo without a byte lost") {
    on_both_kernels([](bool proactor) {
        for (const bool move : {false, true}) {
            world w(proactor);
            w.handler.data = [move](netio::connection& c, netio::bytes in) {
                return move ? c.move_input_to(c) : c.write(in);
            };
            w.listen();
            sim_peer peer = w.connect();
            const std::string sent = server_numbers(100'000);
            std::string got;
            std::size_t at = 0;
            for (int round = 0; round < 20'000 && got.size() < sent.size(); ++round) {
                at += peer.send(std::string_view(sent).substr(at));
                w.pump(2);
                got += peer.take_text();
            }
            CHECK(got == sent);
        }
    });
}

TEST_CASE("bytes left unconsumed are offered again only when more arrived, as one piece") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        std::string last;
        w.handler.data = [&](netio::connection&, netio::bytes in) {
            last = text_of(in);
            return in.size() >= 6 ? std::size_t{6} : std::size_t{0};
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("abc");
        w.pump();
        w.pump();
        CHECK(w.handler.count("data 3") == 1);
        peer.send("defgh");
        w.pump();
        CHECK(last == "abcdefgh");
        peer.send("ijkl");
        w.pump();
        CHECK(last == "ghijkl");
        CHECK(w.handler.log.size() == 4);  // open, data 3, data 8, data 6
    });
}

TEST_CASE("a full window that the handler does not consume ends in input_too_long") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
        w.listen();
        sim_peer peer = w.connect();
        peer.send(server_numbers(1023));
        w.pump();
        CHECK(w.handler.closed == 0);
        peer.send("x");
        w.pump();
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == netio::close_kind::input_too_long);
        CHECK(peer.was_reset());
    });
}

TEST_CASE("a full window is kept while the handler is paused, and offered after resume") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        netio::connection_id id;
        bool taking = false;
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            if (!taking) {
                c.pause();
                return std::size_t{0};
            }
            return in.size();
        };
        w.handler.posted = [&](netio::connection& c, std::uint64_t) {
            taking = true;
            c.resume();
        };
        w.listen();
        sim_peer peer = w.connect();
        const std::string sent = server_numbers(5000);
        std::size_t at = peer.send(sent);
        w.pump();
        CHECK(w.handler.closed == 0);
        const std::size_t calls = w.handler.log.size();
        w.pump();
        CHECK(w.handler.log.size() == calls);
        CHECK(w.server->post(id, 1));
        for (int round = 0; round < 200; ++round) {
            at += peer.send(std::string_view(sent).substr(at));
            w.pump(4);
        }
        CHECK(at == 5000);
        std::uint64_t taken = 0;
        for (const std::string& each : w.handler.log) {
            taken += each.starts_with("data ") && each != "data 1024x"
                         ? std::stoull(each.substr(5))
                         : 0;
        }
        CHECK(taken >= 5000);
        CHECK(w.server->stats().counts.bytes_in == 5000);
    });
}

TEST_CASE("has_room: what does not fit whole is not written, and on_writable comes when it does") {
    on_both_kernels([](bool proactor) {
        world w(proactor, small_limits, sim_options{});
        const std::string reply = server_numbers(2000);
        std::size_t whole = 0;
        std::uint32_t refused = 0;
        const auto write_whole = [&](netio::connection& c) {
            CHECK(c.input_max() == small_limits.buffer_bytes);
            while (whole < 10 && c.has_room(reply.size())) {
                CHECK(c.write(reply) == reply.size());
                ++whole;
            }
            refused += whole < 10 ? 1 : 0;
        };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            write_whole(c);
            return in.size();
        };
        w.handler.writable = [&](netio::connection& c) { write_whole(c); };
        w.listen();
        sim_peer peer = w.connect();
        peer.window(500);
        peer.send("go");
        w.pump();
        CHECK(refused != 0);
        CHECK(whole <= 3);
        std::string got;
        for (int round = 0; round < 500 && got.size() < 10 * reply.size(); ++round) {
            got += peer.take_text();
            w.pump(4);
        }
        CHECK(whole == 10);
        CHECK(got.size() == 10 * reply.size());
        peer.close();
        w.pump();
    });
}

TEST_CASE("write takes what the quotas allow, and on_writable comes when there is room again") {
    on_both_kernels([](bool proactor) {
        world w(proactor, small_limits, sim_options{});
        const std::string reply = server_numbers(20'000);
        std::size_t written = 0;
        const auto write_on = [&](netio::connection& c) {
            while (written < reply.size()) {
                const std::size_t done = c.write(std::string_view(reply).substr(written));
                written += done;
                if (done == 0) {
                    CHECK(c.room() == 0);
                    break;
                }
            }
        };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            write_on(c);
            return in.size();
        };
        w.handler.writable = [&](netio::connection& c) { write_on(c); };
        w.listen();
        sim_peer peer = w.connect();
        peer.window(500);
        peer.send("go");
        w.pump();
        CHECK(written < reply.size());
        CHECK(written >= 4 * 1024);
        std::string got;
        for (int round = 0; round < 500 && got.size() < reply.size(); ++round) {
            got += peer.take_text();
            w.pump(4);
        }
        CHECK(got == reply);
        CHECK(w.handler.count("writable") > 0);
    });
}

TEST_CASE("a connection refused by the empty pool gets its turn when another gives buffers back") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        const std::string much = server_numbers(4096);
        std::uint32_t writables = 0;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            c.write(much);
            return in.size();
        };
        w.handler.writable = [&](netio::connection& c) {
            ++writables;
            c.write(std::string_view("late"));
        };
        w.listen();
        sim_peer first = w.connect();
        sim_peer second = w.connect();
        sim_peer third = w.connect();
        first.window(0);
        second.window(0);
        third.window(0);
        first.send("a");
        w.pump();
        second.send("b");
        w.pump();
        third.send("c");  // 8 output buffers are with the others
        w.pump();
        CHECK(w.server->stats().pools[2].in_use == 8);
        third.window(100'000);
        w.pump();
        CHECK(third.take_text() == "");
        first.window(100'000);
        w.pump();
        CHECK(writables == 1);
        CHECK(third.take_text() == "late");
        CHECK(first.take_text() == much);
    });
}

TEST_CASE("take_buffer and push_buffer send without a copy, and a dropped buffer goes back") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            {
                netio::buffer dropped = c.take_buffer();
                CHECK(static_cast<bool>(dropped));
            }
            netio::buffer full = c.take_buffer();
            netio::mutable_bytes space = full.space(10);
            std::memcpy(space.data(), "0123456789", 10);
            full.commit(4);
            CHECK(full.size() == 4);
            CHECK(c.push_buffer(full));
            CHECK_FALSE(static_cast<bool>(full));
            CHECK(c.write_static(" and static"));
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("x");
        w.pump();
        CHECK(peer.take_text() == "0123 and static");
        CHECK(w.server->stats().counts.bytes_copied == 0);
    });
}

TEST_CASE("at most eight pieces are queued, and a refused buffer stays the handler's") {
    world w(false);
    bool refused = false;
    w.handler.data = [&](netio::connection& c, netio::bytes in) {
        CHECK(c.write_static("aa"));
        CHECK(c.write_static("bb"));
        CHECK(c.write_static("cc"));
        netio::buffer one = c.take_buffer();
        one.space(1)[0] = std::byte{'d'};
        one.commit(1);
        CHECK(c.push_buffer(one));
        CHECK_FALSE(c.write_static("no"));  // a static piece takes two words: one is left
        netio::buffer two = c.take_buffer();
        two.space(1)[0] = std::byte{'e'};
        two.commit(1);
        CHECK(c.push_buffer(two));
        netio::buffer three = c.take_buffer();
        three.space(1)[0] = std::byte{'f'};
        three.commit(1);
        refused = !c.push_buffer(three);
        CHECK(static_cast<bool>(three));
        return in.size();
    };
    w.listen();
    sim_peer peer = w.connect();
    peer.send("x");
    w.pump();
    CHECK(refused);
    CHECK(peer.take_text() == "aabbccde");
}

TEST_CASE("input moves to another connection whole or not at all") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        netio::connection_id first;
        netio::connection_id second;
        w.handler.open = [&](netio::connection& c) { (first ? second : first) = c.id(); };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            netio::connection* to = c.find(c.id() == first ? second : first);
            REQUIRE(to != nullptr);
            const std::size_t moved = c.move_input_to(*to);
            if (moved == 0) {
                c.pause();
            } else {
                CHECK(moved == in.size());
            }
            return moved;
        };
        w.handler.writable = [&](netio::connection& c) {
            if (netio::connection* from = c.find(c.id() == first ? second : first)) {
                from->resume();
            }
        };
        w.listen();
        sim_peer a = w.connect();
        sim_peer b = w.connect();
        b.window(300);
        const std::string sent = server_numbers(30'000);
        std::string got;
        std::size_t at = 0;
        for (int round = 0; round < 4000 && got.size() < sent.size(); ++round) {
            at += a.send(std::string_view(sent).substr(at));
            w.pump(2);
            got += b.take_text();
        }
        CHECK(got == sent);
        CHECK(w.server->stats().counts.bytes_copied == 0);
    });
}

TEST_CASE("the peer's end comes after its last byte, and by default the reply is flushed") {
    struct plain {
        std::size_t on_data(netio::connection& c, netio::bytes in) noexcept { return c.write(in); }
    };
    on_both_kernels([](bool proactor) {
        netio_test::server_world<plain> w(proactor);
        w.listen();
        sim_peer peer = w.connect();
        peer.send("last words");
        peer.shutdown();
        w.pump();
        CHECK(peer.take_text() == "last words");
        CHECK(peer.finished());
        CHECK(w.server->stats().open == 0);
        CHECK(w.events.all.back().reason.kind == netio::close_kind::peer_closed);
    });
}

TEST_CASE("a handler with on_end can answer long after the peer's end") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        netio::connection_id id;
        w.handler.end = [&](netio::connection& c) { id = c.id(); };
        w.handler.posted = [](netio::connection& c, std::uint64_t) {
            c.write(std::string_view("reply"));
            c.close();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("question");
        peer.shutdown();
        w.pass(200);
        CHECK(w.handler.log == std::vector<std::string>{"open", "data 8", "end"});
        CHECK(w.server->post(id, 7));
        w.pump();
        CHECK(peer.take_text() == "reply");
        CHECK(peer.finished());
        CHECK_FALSE(peer.was_reset());
        CHECK(w.handler.reasons[0].kind == netio::close_kind::handler_closed);
    });
}

TEST_CASE("unconsumed bytes are dropped when the peer ended, after one last offer") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("half a mess");
        peer.shutdown();
        w.pump();
        CHECK(w.handler.count("end") == 1);
        CHECK(w.handler.closed == 1);
    });
}

TEST_CASE("close flushes, ends the stream, and discards until the peer closes") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string_view("bye"));
            c.close();
            CHECK(c.write(std::string_view("more")) == 0);
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("x");
        w.pump();
        CHECK(peer.take_text() == "bye");
        CHECK(peer.finished());
        CHECK(w.handler.closed == 0);
        peer.send(server_numbers(3000));  // nobody wants it, nothing breaks
        w.pump();
        CHECK(w.handler.count("data 1") == 1);
        CHECK(w.handler.log.size() == 2);
        peer.shutdown();
        w.pump();
        CHECK(w.handler.closed == 1);
        CHECK_FALSE(peer.was_reset());
        CHECK(w.handler.reasons[0].kind == netio::close_kind::handler_closed);
    });
}

TEST_CASE("a peer that never closes is let go when linger ends") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.open = [](netio::connection& c) { c.close(); };
        w.listen();
        w.connect();
        w.pass(1990);
        CHECK(w.handler.closed == 0);
        w.pass(30);
        CHECK(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == netio::close_kind::handler_closed);
    });
}

TEST_CASE("kill resets at once and says the user's reason") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string_view("never seen"));
            c.kill(42);
            return in.size();
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("x");
        w.pump();
        CHECK(peer.was_reset());
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0] == netio::close_reason{netio::close_kind::killed, 42});
    });
}

TEST_CASE("end sends FIN after the flush and reading goes on") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        std::string got;
        w.handler.open = [](netio::connection& c) {
            c.write(std::string_view("all I say"));
            c.end();
            CHECK(c.write(std::string_view("x")) == 0);
        };
        w.handler.data = [&](netio::connection&, netio::bytes in) {
            got += text_of(in);
            return in.size();
        };
        w.handler.end = [](netio::connection&) {};
        w.listen();
        sim_peer peer = w.connect();
        CHECK(peer.take_text() == "all I say");
        CHECK(peer.finished());
        peer.send("still heard");
        w.pump();
        CHECK(got == "still heard");
        peer.shutdown();
        w.pump();
        CHECK(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == netio::close_kind::peer_closed);
    });
}

TEST_CASE("a reset by the peer is told once, after the bytes before it") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.listen();
        sim_peer peer = w.connect();
        peer.send("abc");
        w.pump();
        peer.reset();
        w.pump();
        CHECK(w.handler.log ==
              std::vector<std::string>{"open", "data 3", "close peer_reset"});
    });
}

TEST_CASE("idle, read, write, exchange and park deadlines fall at their time, not before") {
    struct row {
        netio::close_kind kind;
        std::uint32_t ms;
        std::function<void(netio::connection&)> open;
        const char* first;
    };
    const row rows[] = {
        {netio::close_kind::idle, 60'000, [](netio::connection&) {}, ""},
        {netio::close_kind::read_timeout, 30'000, [](netio::connection&) {}, "partial"},
        {netio::close_kind::read_timeout, 30'000,
         [](netio::connection& c) { c.phase(netio::phase::exchange); }, ""},
        {netio::close_kind::exchange_deadline, 5'000,
         [](netio::connection& c) { c.deadline(5'000); }, ""},
        {netio::close_kind::park_deadline, 60'000, [](netio::connection& c) { c.park(); }, ""},
        {netio::close_kind::park_deadline, 1'500, [](netio::connection& c) { c.park(1'500); }, ""},
    };
    struct silent {
        std::function<void(netio::connection&)> open;
        void on_open(netio::connection& c) noexcept { open(c); }
        std::size_t on_data(netio::connection&, netio::bytes) noexcept { return 0; }
    };
    on_both_kernels([&](bool proactor) {
        for (const row& each : rows) {
            CAPTURE(each.ms);
            netio_test::server_world<silent> w(proactor);
            w.handler.open = each.open;
            w.listen();
            sim_peer peer = w.net.connect(w.port);
            peer.send(each.first);
            w.pump();
            w.pass(each.ms - 5);
            CHECK(w.server->stats().open == 1);
            w.pass(8);
            CHECK(w.server->stats().open == 0);
            CHECK(w.events.all.back().reason.kind == each.kind);
            CHECK(peer.was_reset());
        }
    });
}

TEST_CASE("a peer that takes nothing runs into the write deadline, one that takes a little not") {
    on_both_kernels([](bool proactor) {
        for (const bool takes : {false, true}) {
            world w(proactor);
            w.handler.deadline = [](netio::connection& c, netio::deadline_kind which) {
                CHECK(which == netio::deadline_kind::write);
                c.kill(5);
            };
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.write(server_numbers(4000));
                return in.size();
            };
            w.listen({.times = {.rate_out = 0}});  // which would end the second one
            sim_peer peer = w.connect();
            peer.window(100);
            peer.send("x");
            w.pump();
            for (int second = 0; second < 29; ++second) {
                w.pass(1000);
                if (takes) {
                    peer.take(50);
                }
            }
            CHECK(w.handler.closed == 0);
            w.pass(2000);
            CHECK(w.handler.closed == (takes ? 0 : 1));
        }
    });
}

TEST_CASE("activity extends the idle deadline, and on_deadline without an answer gets it again") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.deadline = [](netio::connection&, netio::deadline_kind) {};
        w.listen();
        sim_peer peer = w.connect();
        for (int at = 0; at < 5; ++at) {
            w.pass(50'000);
            peer.send("x");
            w.pump();
        }
        CHECK(w.handler.count("deadline") == 0);
        w.pass(60'100);
        CHECK(w.handler.count("deadline") == 1);
        w.pass(60'100);
        CHECK(w.handler.count("deadline") == 2);
        CHECK(w.handler.closed == 0);
    });
}

TEST_CASE("posts reach their connection, wake a parked one, and are dropped when it is gone") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        netio::connection_id id;
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.park();
            CHECK(c.parked());
            return in.size() / 2;
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("1234");
        w.pump();
        peer.send("56");
        w.pump();
        CHECK(w.handler.log == std::vector<std::string>{"open", "data 4"});
        CHECK(w.server->post(id, 11));
        w.pump();
        CHECK(w.handler.log ==
              std::vector<std::string>{"open", "data 4", "post 11", "data 2"});
        w.handler.data = [](netio::connection&, netio::bytes in) { return in.size(); };
        CHECK(w.server->post(id, 12));
        w.pump();
        CHECK(w.handler.log.back() == "data 2");  // what came while it was parked
        peer.reset();
        w.pump();
        CHECK(w.handler.closed == 1);
        CHECK(w.server->post(id, 13));
        w.pump();
        CHECK(w.handler.count("post 13") == 0);
        CHECK(w.server->stats().counts.posts_stale == 1);
    });
}

TEST_CASE("a full post queue refuses, and says so in its pool") {
    world w(false);
    netio::connection_id id;
    w.handler.open = [&](netio::connection& c) { id = c.id(); };
    w.listen();
    w.connect();
    std::uint32_t taken = 0;
    while (w.server->post(id, taken)) {
        ++taken;
    }
    CHECK(taken == 16);
    CHECK(w.server->stats().pools[3].refused == 1);
    w.pump();
    CHECK(w.handler.count("post 15") == 1);
}

TEST_CASE("timers fire in time, once, and not after cancel; a full table refuses") {
    world w(false);
    w.listen();
    const auto first = w.server->after(10, 1);
    const auto second = w.server->after(20, 2);
    const auto third = w.server->after(30, 3);
    REQUIRE(static_cast<bool>(first));
    CHECK(static_cast<bool>(w.server->after(1u << 30, 4)));
    CHECK(w.server->after(1, 5).why == netio::error::full);
    CHECK(w.server->cancel(second.value));
    CHECK_FALSE(w.server->cancel(second.value));
    w.pass(9);
    CHECK(w.handler.count("timer 1") == 0);
    w.pass(3);
    CHECK(w.handler.count("timer 1") == 1);
    CHECK_FALSE(w.server->cancel(first.value));
    w.pass(100);
    CHECK(w.handler.count("timer 1") == 1);
    CHECK(w.handler.count("timer 2") == 0);
    CHECK(w.handler.count("timer 3") == 1);
    CHECK_FALSE(w.server->cancel(third.value));
    CHECK(w.server->stats().pools[4].in_use == 1);
    w.server->cancel({netio::token::of(3, 1).bits});
}

TEST_CASE("an outgoing connection opens with its word, or tells why it did not") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        const netio::endpoint good = netio::ipv4(198, 51, 100, 1, 80);
        const netio::endpoint refusing = netio::ipv4(198, 51, 100, 2, 80);
        const netio::endpoint silent = netio::ipv4(198, 51, 100, 3, 80);
        w.net.remote(good, sim_answer::accept);
        w.net.remote(refusing, sim_answer::refuse);
        w.net.remote(silent, sim_answer::silent);
        std::uint64_t word = 0;
        w.handler.open = [&](netio::connection& c) {
            word = c.connect_word();
            CHECK(c.origin() == netio::origin::connected);
            c.write(std::string_view("hello"));
        };
        CHECK(static_cast<bool>(w.server->connect(good, 77)));
        w.pass(100);
        CHECK(word == 77);
        REQUIRE(w.net.connected_peers().size() == 1);
        CHECK(w.net.connected_peers()[0].take_text() == "hello");
        w.server->connect(refusing, 78);
        w.pass(100);
        w.server->connect(silent, 79);
        w.pass(9'900);
        CHECK(w.handler.connect_failures.size() == 1);
        w.pass(200);
        using failed = std::pair<std::uint64_t, netio::error>;
        CHECK(w.handler.connect_failures ==
              std::vector<failed>{{78, netio::error::connection_refused},
                                  {79, netio::error::timed_out}});
        CHECK(w.events.count(netio::server_event_kind::connect_failed) == 2);
    });
}

TEST_CASE("outgoing connections do not use up a listener's cap") {
    world w(false);
    const netio::endpoint good = netio::ipv4(198, 51, 100, 1, 80);
    w.net.remote(good, sim_answer::accept);
    w.listen({.connections_max = 2});
    for (int at = 0; at < 5; ++at) {
        CHECK(static_cast<bool>(w.server->connect(good)));
    }
    w.pass(100);
    w.connect();
    w.connect();
    CHECK(w.server->stats().open == 7);
    sim_peer third = w.connect();
    CHECK(third.was_reset());
}

TEST_CASE("n connections fit, the one after is reset and counted, and a freed place is used") {
    on_both_kernels([](bool proactor) {
        for (const std::uint32_t cap : {1u, 2u, 6u}) {
            for (const bool global : {false, true}) {
                netio::limits sizes = small_limits;
                sizes.connections_max = global ? cap : 16;
                world w(proactor, sizes);
                w.listen({.connections_max = global ? 0 : cap});
                std::vector<sim_peer> peers;
                for (std::uint32_t at = 0; at < cap; ++at) {
                    peers.push_back(w.connect());
                }
                CHECK(w.server->stats().open == cap);
                sim_peer refused = w.connect();
                CHECK(refused.was_reset());
                CHECK(w.server->stats().counts.refused == 1);
                CHECK(w.events.all.back().reason.kind == netio::close_kind::refused);
                CHECK(w.events.all.back().reason.cause() ==
                      (global ? netio::refusal_cause::global_cap
                              : netio::refusal_cause::listener_cap));
                peers[0].close();
                w.pump();
                sim_peer next = w.connect();
                CHECK_FALSE(next.was_reset());
                CHECK(w.server->stats().open == cap);
            }
        }
    });
}

TEST_CASE("out of descriptors, a listener rests 1 ms and then twice as long, and comes back") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.listen();
        w.net.options.descriptors_max = w.net.descriptors_open() + 1;
        sim_peer one = w.connect();
        CHECK_FALSE(one.was_reset());
        w.net.connect(w.port);
        for (int at = 0; at < 2000; ++at) {
            w.server->run_once(1);
        }
        const std::uint64_t pauses = w.server->stats().counts.descriptor_pauses;
        CHECK(pauses >= 1);
        CHECK(pauses < 100);
        CHECK(w.events.count(netio::server_event_kind::descriptor_pressure) == pauses);
        one.close();
        w.pass(1100);
        sim_peer three = w.connect();
        w.pass(1100);
        CHECK_FALSE(three.was_reset());
        CHECK(w.server->stats().open == 1);
    });
}

TEST_CASE("stop resets everything and run returns") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.listen();
        sim_peer one = w.connect();
        sim_peer two = w.connect();
        w.server->stop();
        w.server->stop();
        CHECK(w.server->run() == netio::error::none);
        CHECK(w.handler.closed == 2);
        CHECK(w.handler.reasons[0].kind == netio::close_kind::shutdown);
        CHECK(one.was_reset());
        CHECK(two.was_reset());
    });
}

TEST_CASE("drain closes idle ones at once, lets an exchange finish, and ends the rest late") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            if (text_of(in) == "begin") {
                c.phase(netio::phase::exchange);
            } else {
                c.write(std::string_view("done"));
                c.phase(netio::phase::idle);
            }
            return in.size();
        };
        w.listen();
        sim_peer idle = w.connect();
        sim_peer busy = w.connect();
        sim_peer stuck = w.connect();
        busy.send("begin");
        stuck.send("begin");
        w.pump();
        w.server->drain(5000);
        w.pump();
        CHECK(idle.finished());
        CHECK_FALSE(busy.finished());
        CHECK(w.handler.count("drain") == 3);
        const sim_peer late = w.net.connect(w.port);
        busy.send("finish");
        w.pump();
        CHECK_FALSE(late.open());  // the listener is closed: nobody waits in its queue
        CHECK(w.server->local() == netio::endpoint{});
        CHECK(busy.take_text() == "done");
        CHECK(busy.finished());
        idle.close();
        busy.close();
        w.pass(4800);
        CHECK(w.server->stats().open >= 1);
        CHECK(w.server->run() == netio::error::none);
        CHECK(stuck.was_reset());
        CHECK(w.handler.count("close drained") == 2);
        CHECK(w.handler.count("close drain_deadline") == 1);
        CHECK(w.events.count(netio::server_event_kind::drain_finished) == 1);
    });
}

TEST_CASE("a drain tells whoever is answered in the turn that ends the idle ones") {
    for (const bool forwards : {false, true}) {
        CAPTURE(forwards);
        world w(false);
        netio::connection_id first;
        w.handler.open = [&](netio::connection& c) { first = first.bits == 0 ? c.id() : first; };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            return (forwards ? c.find(first) : &c)->write(in);
        };
        w.handler.drain = [](netio::connection& c) { c.write(std::string_view("bye")); };
        w.listen();
        sim_peer target = w.connect();
        sim_peer one = w.connect();
        sim_peer two = w.connect();
        w.server->drain(5000);
        w.server->run_once(0);
        w.server->run_once(0);
        one.send("one");
        two.send("two");
        w.pump();
        CHECK(w.handler.count("drain") == 3);
        CHECK(target.take_text() == (forwards ? "onetwobye" : "bye"));
        CHECK(one.take_text() == (forwards ? "bye" : "onebye"));
        CHECK(two.take_text() == (forwards ? "bye" : "twobye"));
    }
}

TEST_CASE("what many write to one connection in a turn goes out in few sends") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        netio::connection_id first;
        w.handler.open = [&](netio::connection& c) { first = first.bits == 0 ? c.id() : first; };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            return c.find(first)->write(in);
        };
        w.handler.posted = [](netio::connection& c, std::uint64_t) {
            c.write(std::string_view("posted"));
        };
        w.listen();
        sim_peer target = w.connect();
        std::vector<sim_peer> others;
        for (int at = 0; at < 7; ++at) {
            others.push_back(w.connect());
        }
        w.pass(10);
        const std::uint64_t before = w.net.counts.sends;
        for (sim_peer& each : others) {
            each.send("hello");
        }
        w.pump();
        CHECK(target.take_text().size() == 7 * 5);
        CHECK((proactor || w.net.counts.sends - before <= 3));
        const std::uint64_t then = w.net.counts.sends;
        for (std::uint32_t at = 0; at < 16; ++at) {
            CHECK(w.server->post(first, at));
        }
        w.pump();
        CHECK(target.take_text().size() == 16 * 6);
        CHECK((proactor || w.net.counts.sends - then <= 3));
    });
}

TEST_CASE("a timer is not late by what the turn before it took") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.listen();
        std::uint64_t second_ns = 0;
        w.handler.timer = [&](std::uint64_t word) {
            if (word == 1) {
                w.net.pass(100'000'000);  // computes for so long
            } else {
                second_ns = w.net.now_ns();
            }
        };
        const std::uint64_t begin_ns = w.net.now_ns();
        REQUIRE(static_cast<bool>(w.server->after(10, 1)));
        REQUIRE(static_cast<bool>(w.server->after(130, 2)));
        while (second_ns == 0) {
            w.server->run_once(10'000);
        }
        CHECK(second_ns - begin_ns >= 130'000'000);
        CHECK(second_ns - begin_ns <= 133'000'000);
    });
}

TEST_CASE("an adopted socket is a connection like any other") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = server_echo;
        w.handler.open = [](netio::connection& c) { CHECK(c.origin() == netio::origin::adopted); };
        const auto pair = w.net.connected_pair();
        REQUIRE(static_cast<bool>(w.server->adopt(pair.handle)));
        CHECK(w.handler.opened == 0);  // not inside the call: callbacks are never nested
        sim_peer peer = pair.peer;
        peer.send("hi");
        w.pump();
        CHECK(peer.take_text() == "hi");
        CHECK(w.handler.opened == 1);
    });
}

TEST_CASE("user state is 64 zero bytes at open, and wiped at the end") {
    struct marks {
        char text[64];
    };
    on_both_kernels([](bool proactor) {
        netio::limits sizes = small_limits;
        sizes.connections_max = 1;
        world w(proactor, sizes);
        w.handler.open = [](netio::connection& c) {
            for (const char each : c.state<marks>().text) {
                CHECK(each == 0);
            }
            std::memset(c.state<marks>().text, 'S', 64);
        };
        w.listen();
        for (int at = 0; at < 3; ++at) {
            sim_peer peer = w.connect();
            peer.close();
            w.pump();
        }
        CHECK(w.handler.opened == 3);
    });
}

TEST_CASE("datagrams: answered, empty ones too, longer ones cut and marked") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        std::vector<std::string> got;
        w.handler.packet = [&](netio::datagram_socket& via, const netio::datagram& in) {
            got.push_back(text_of(in.payload) + (in.truncated ? " cut" : ""));
            CHECK(via.send_to(in.peer, in.payload));
        };
        const auto id = w.server->open_datagram({.address = "127.0.0.1"});
        REQUIRE(static_cast<bool>(id));
        w.pump();
        const netio::endpoint here = w.server->local(id.value);
        const std::uint32_t peer = w.net.datagram_peer(netio::ipv4(127, 0, 0, 1, 40'000));
        CHECK(w.net.send_datagram(peer, here, netio::as_bytes("ping")));
        w.pump();
        CHECK(w.net.send_datagram(peer, here, {}));
        w.pump();
        const std::string longer(2000, 'z');
        CHECK(w.net.send_datagram(peer, here, netio::as_bytes(longer)));
        w.pump();
        CHECK(got == std::vector<std::string>{"ping", "", std::string(1024, 'z') + " cut"});
        REQUIRE(w.net.datagrams(peer).size() == 3);
        CHECK(w.net.datagrams(peer)[0].payload.size() == 4);
        CHECK(w.net.datagrams(peer)[1].payload.size() == 0);
        CHECK(w.server->stats().counts.datagrams_out == 3);
    });
}

TEST_CASE("listening fails with the thing named, holds nothing, and a later try may succeed") {
    world w(false);
    char line[200];
    const auto told = [&](const netio::listen_options& how) {
        w.server->listen(how);
        return std::string(netio::describe(w.server->failure(), line));
    };
    const std::uint32_t before = w.net.descriptors_open();
    CHECK(told({.address = "example.org", .port = 80}) ==
          "listen example.org:80: a host name where an address is due");
    CHECK(told({.address = "1.2.3", .port = 80}).starts_with("listen 1.2.3:80: "));
    CHECK(told({.trusted = "10.0.0.0/33"}).starts_with("trusted 10.0.0.0/33: "));
    CHECK(told({.header_max = 100}) ==
          "listen header_max: option out of range, needed 536, given 100");
    CHECK(told({.header_max = 4096}) ==
          "listen header_max: option out of range, needed 4096, given 1024");
    CHECK(told({.proxy = netio::proxy_mode::required, .times = {.preface_ms = 2999}}) ==
          "listen preface_ms: option out of range, needed 3000, given 2999");
    CHECK(w.net.descriptors_open() == before);
    CHECK(w.server->listen({.port = 9000}) == netio::error::none);
    CHECK_FALSE(static_cast<bool>(w.server->failure()));
    CHECK(told({.port = 9000}).starts_with("listen 0.0.0.0:9000: address in use"));
}

TEST_CASE("too little memory, wrong limits and too few descriptors are told with numbers") {
    scripted handler;
    remembering events;
    netio_test::sim_network net(netio_test::sim_chooser(1), {});
    net.enter();
    char line[200];
    const std::size_t needed = netio::bytes_needed<netio_test::simulator>(small_limits);
    netio_test::fresh_memory memory(needed);
    using server_type = world::server_type;
    {
        server_type server({memory.all().first(4096), small_limits}, handler, events);
        CHECK(netio::describe(server.failure(), line) ==
              "storage: too little memory, needed " +
                  std::to_string(needed - netio::detail::page_bytes) + ", given 4096");
        CHECK(server.listen({}) == netio::error::memory_too_small);
        CHECK(server.run() == netio::error::memory_too_small);
    }
    {
        netio::limits wrong = small_limits;
        wrong.buffer_bytes = 3;
        server_type server({memory.all(), wrong}, handler, events);
        CHECK(netio::describe(server.failure(), line) ==
              "limits buffer_bytes: limits contradict each other");
    }
    {
        net.options.descriptors_max = 10;
        server_type server({memory.all(), small_limits}, handler, events);
        CHECK(netio::describe(server.failure(), line) ==
              "connections_max: descriptor limit too low, needed 34, given 10");
    }
}

TEST_CASE("two workers serve one listener, and a post finds the right one") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = small_limits;
        sizes.workers_max = 2;
        world w(proactor, sizes);
        std::vector<netio::connection_id> ids;
        w.handler.open = [&](netio::connection& c) { ids.push_back(c.id()); };
        w.handler.data = server_echo;
        w.server->run_once(0, 1);
        w.listen();
        std::vector<sim_peer> peers;
        for (int at = 0; at < 8; ++at) {
            peers.push_back(w.net.connect(w.port));
            for (int turn = 0; turn < 20; ++turn) {
                w.server->run_once(0, static_cast<std::uint32_t>(turn + at) % 2);
            }
        }
        CHECK(ids.size() == 8);
        for (const netio::connection_id id : ids) {
            CHECK(w.server->post(id, 5));
        }
        for (int turn = 0; turn < 40; ++turn) {
            w.server->run_once(0, static_cast<std::uint32_t>(turn) % 2);
        }
        CHECK(w.handler.count("post 5") == 8);
        w.server->stop();
        for (int turn = 0; turn < 100; ++turn) {
            w.server->run_once(0, 1);
        }
    });
}

TEST_CASE("a listener of one worker is accepted by it alone, and refuses what it can't keep") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = small_limits;
        sizes.workers_max = 2;
        sizes.connections_max = 4;
        world w(proactor, sizes);
        std::vector<std::uint16_t> ports;
        for (const std::uint32_t worker : {0u, 1u}) {
            w.listen({.worker = worker});
            ports.push_back(w.port);
        }
        const auto turn = [&](std::uint32_t worker) {
            for (std::uint32_t count = 0; count < 40; ++count) {
                w.server->run_once(0, worker);
            }
        };
        w.net.connect(ports[1]);
        turn(0);
        CHECK(w.handler.opened == 0);
        turn(1);
        CHECK(w.handler.opened == 1);
        std::vector<sim_peer> of_first;
        for (int count = 0; count < 3; ++count) {
            of_first.push_back(w.net.connect(ports[0]));
            turn(1);
            turn(0);
        }
        CHECK(w.handler.opened == 3);
        CHECK_FALSE(of_first[1].was_reset());
        CHECK(of_first[2].was_reset());
        of_first[0].close();
        turn(0);
        of_first.push_back(w.net.connect(ports[0]));
        turn(0);
        CHECK(w.handler.opened == 4);
        CHECK_FALSE(of_first.back().was_reset());
        w.server->stop();
        turn(0);
        turn(1);
        CHECK(w.handler.closed == 4);
    });
}

TEST_CASE("a listener of a worker that the server has not is refused") {
    world w(false);
    char line[256];
    CHECK(w.server->listen({.worker = 2}) == netio::error::option_invalid);
    CHECK(netio::describe(w.server->failure(), line) ==
          "listen worker: option out of range, needed 3, given 1");
    CHECK(w.server->listen({.worker = 0}) == netio::error::none);
}

TEST_CASE("a worker without a free slot leaves the accepting to others, until all are full") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = small_limits;
        sizes.workers_max = 2;
        sizes.connections_max = 4;
        world w(proactor, sizes);
        w.listen();
        std::vector<sim_peer> peers;
        const auto turn_both = [&] {
            for (std::uint32_t turn = 0; turn < 40; ++turn) {
                w.server->run_once(0, turn % 2);
            }
        };
        for (int at = 0; at < 2; ++at) {  // only worker 0 turns: it fills up
            peers.push_back(w.connect());
        }
        sim_peer third = w.net.connect(w.port);
        w.pump();
        CHECK(w.handler.opened == 2);
        CHECK_FALSE(third.was_reset());
        turn_both();
        CHECK(w.handler.opened == 3);
        w.net.connect(w.port);
        turn_both();
        CHECK(w.handler.opened == 4);
        sim_peer fifth = w.net.connect(w.port);
        turn_both();
        CHECK(fifth.was_reset());
        peers[0].close();
        turn_both();
        sim_peer sixth = w.net.connect(w.port);
        turn_both();
        CHECK_FALSE(sixth.was_reset());
        CHECK(w.handler.opened == 5);
        w.server->stop();
        for (int turn = 0; turn < 100; ++turn) {
            w.server->run_once(0, 1);
        }
    });
}

TEST_CASE("close inside on_data: no more data callbacks, one close callback") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes) {
            c.close();
            return std::size_t{1};
        };
        w.listen();
        sim_peer peer = w.connect();
        peer.send("abcdef");
        w.pump();
        peer.send("ghi");
        peer.close();
        w.pump();
        CHECK(w.handler.count("data 6") == 1);
        CHECK(w.handler.closed == 1);
    });
}

TEST_CASE("connection_state is 848 bytes") {
    CHECK(sizeof(netio::detail::connection_state) == 848);
}

TEST_CASE("a connection knows its facts") {
    world w(false);
    netio::connection_id id;
    w.handler.open = [&](netio::connection& c) {
        id = c.id();
        CHECK(c.origin() == netio::origin::accepted);
        CHECK(c.listener() == 1);
        CHECK(c.worker() == 0);
        CHECK(c.source() == netio::ipv4(192, 0, 2, 9, 4000));
        CHECK(c.peer_process_id() == 0);
        CHECK(c.local().port == w.port);
        CHECK(c.destination() == c.local());
        CHECK(c.connect_word() == 0);
        CHECK(c.state_kind() == netio::connection_state_kind::open);
        CHECK(c.native_handle() != netio::no_handle);
        CHECK_FALSE(c.paused());
        CHECK(c.input().empty());
        CHECK(c.output_bytes() == 0);
        CHECK(c.find(c.id()) == &c);
        CHECK(c.find({}) == nullptr);
        CHECK(c.find({c.id().bits + (std::uint64_t{2} << 32)}) == nullptr);
        CHECK(c.find({0xFFFFFF | (std::uint64_t{1} << 32)}) == nullptr);
    };
    w.handler.data = [&](netio::connection& c, netio::bytes in) {
        CHECK(c.age_ms() >= 2000);
        CHECK(c.bytes_in() == 5);
        CHECK(c.write(in) == 5);
        CHECK(c.output_bytes() == 5);
        CHECK(c.write(netio::bytes{}) == 0);
        return in.size();
    };
    w.listen();
    w.listen();
    sim_peer peer = w.connect(netio::ipv4(192, 0, 2, 9, 4000));
    w.pass(3000);
    peer.send("hello");
    w.pump();
    CHECK(w.handler.count("data 5") == 1);
    w.handler.posted = [](netio::connection& c, std::uint64_t) { CHECK(c.bytes_out() == 5); };
    w.server->post(id, 1);
    w.pump();
    CHECK(w.handler.count("post 1") == 1);
}

TEST_CASE("a handler connects out from a callback, over TCP and to a unix socket") {
    on_both_kernels([](bool proactor) {
        world w(proactor);
        const netio::endpoint good = netio::ipv4(198, 51, 100, 1, 80);
        w.net.remote(good, sim_answer::accept);
        w.net.remote("/run/there", sim_answer::accept);
        w.handler.open = [&](netio::connection& c) {
            if (c.origin() == netio::origin::accepted) {
                CHECK(static_cast<bool>(c.connect(good, 1)));
                CHECK(static_cast<bool>(c.connect_unix("/run/there", 2)));
            } else {
                CHECK(c.listener() == 255);
                c.write(std::string_view(c.connect_word() == 1 ? "tcp" : "unix"));
            }
        };
        w.listen();
        w.connect();
        w.pass(50);
        std::string said;
        for (sim_peer& each : w.net.connected_peers()) {
            said += each.take_text() + " ";
        }
        CHECK((said == "tcp unix " || said == "unix tcp "));
        CHECK(w.server->stats().open == 3);
        const auto unix_too = w.server->connect_unix("/run/there", 4);
        CHECK(static_cast<bool>(unix_too));
    });
}

TEST_CASE("outgoing connections that find no place are refused at once") {
    netio::limits sizes = small_limits;
    sizes.connections_max = 1;
    world w(false, sizes);
    const netio::endpoint good = netio::ipv4(198, 51, 100, 1, 80);
    w.net.remote(good, sim_answer::accept);
    CHECK(static_cast<bool>(w.server->connect(good)));
    CHECK(w.server->connect(good).why == netio::error::full);
    const auto pair = w.net.connected_pair();
    CHECK(w.server->adopt(pair.handle).why == netio::error::full);
    netio_test::simulator::close_handle(pair.handle, true);
    w.server->stop();
    CHECK(w.server->connect(good).why == netio::error::stopped);
}

TEST_CASE("moved buffers, dropped buffers and buffers taken too many") {
    world w(false);
    w.handler.data = [](netio::connection& c, netio::bytes in) {
        netio::buffer a = c.take_buffer();
        netio::buffer b = std::move(a);
        CHECK_FALSE(static_cast<bool>(a));
        a = std::move(b);
        CHECK(static_cast<bool>(a));
        b = c.take_buffer();
        b = std::move(a);  // what b held goes back
        CHECK(c.push_buffer(b));  // nothing committed: given back
        CHECK_FALSE(static_cast<bool>(b));
        netio::buffer late = c.take_buffer();
        late.space(1)[0] = std::byte{1};
        late.commit(1);
        c.kill();
        CHECK_FALSE(c.push_buffer(late));
        late.drop();
        CHECK_FALSE(static_cast<bool>(c.take_buffer()));
        CHECK_FALSE(c.write_static("x"));
        return in.size();
    };
    w.listen();
    sim_peer peer = w.connect();
    peer.send("x");
    w.pump();
    CHECK(w.handler.closed == 1);
}

TEST_CASE("memory can be prefaulted and wiping turned off; UDP sockets have a table too") {
    world w(false);
    w.server->prefault();
    w.server->wipe_released(false);
    CHECK(static_cast<bool>(w.server->open_datagram({.amplification = 0})));
    CHECK(static_cast<bool>(w.server->open_datagram({.dual_stack = true})));
    CHECK(w.server->open_datagram({}).why == netio::error::full);
    CHECK(w.server->local(netio::datagram_id{7}) == netio::endpoint{});
    CHECK(w.server->local(netio::listener_id{3}) == netio::endpoint{});
    CHECK_FALSE(w.server->send_to({5}, netio::loopback_ipv4(9), {}));
    CHECK(w.server->send_to({0}, netio::loopback_ipv4(9), {}));
    CHECK_FALSE(w.server->send_to({0}, netio::loopback_ipv4(9),
                                  {w.memory.all().data(), 1025}));
    for (int at = 0; at < 4; ++at) {
        w.server->listen({});
    }
    CHECK(w.server->listen({}) == netio::error::full);
    CHECK(w.server->wait_ms() == 0);
    w.pump();
    CHECK(w.server->wait_ms() == -1);
    CHECK(w.server->run(9) == netio::error::option_invalid);
    CHECK_FALSE(w.server->run_once(0, 9));
    CHECK(w.server->memory_bytes() > 0);
    CHECK(w.server->sizes() == small_limits);
}
