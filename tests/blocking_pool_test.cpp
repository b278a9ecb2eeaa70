// The second driver: handlers of callbacks on it, and the blocking form with its stream. The peers
// are sockets of this thread, which act in the handler or before a wait, so nothing depends on
// time; where deadlines are met, time jumps while nothing happens.
#include "netio.hpp"

#if NETIO_HAS_POLL

#include "tests/blocking_short.hpp"
#include "tests/service_world.hpp"

#include <thread>

namespace {

using netio::close_kind;
using netio::error;
using netio::stream;
using netio_test::client_socket;

/// The blocking backend as the pool's tests run it: the peer acts before each wait, and where it
/// does none lasts long.
struct pool_backend : netio_test::blocking_short {
    static inline std::function<void()> before_wait;

    std::uint32_t wait(std::span<netio::event> out, std::uint64_t timeout_ns) noexcept {
        constexpr std::uint64_t short_ns = 2'000'000;
        if (before_wait) {
            before_wait();
            timeout_ns = timeout_ns < short_ns ? timeout_ns : short_ns;
        }
        return netio_test::blocking_short::wait(out, timeout_ns);
    }
};
using pool_kernel = netio_test::service_kernel<pool_backend>;

/// Serves by what a test says.
struct pool_script {
    std::function<void(stream&)> serve = [](stream&) {};
    std::function<void(netio::connection&)> open = [](netio::connection&) {};
    std::vector<netio::close_reason> reasons;
    std::uint32_t opened = 0;
    std::uint32_t served = 0;

    void on_connection(stream& peer) noexcept {
        ++served;
        serve(peer);
    }
    void on_open(netio::connection& c) noexcept {
        ++opened;
        open(c);
    }
    void on_close(netio::connection&, netio::close_reason reason) noexcept {
        reasons.push_back(reason);
    }
};

constexpr netio::limits pool_limits{.connections_max = 1,
                                    .listeners_max = 2,
                                    .buffer_bytes = 1024,
                                    .input_buffers_max = 2,
                                    .output_buffers_max = 2,
                                    .connection_output_buffers_max = 2,
                                    .posts_max = 4,
                                    .timers_max = 1,
                                    .datagram_sockets_max = 1,
                                    .datagram_sends_max = 1,
                                    .trusted_networks_max = 2,
                                    .events_per_turn = 4};

/// One worker, whose thread is the test's. Ends with every pool full and no handle left.
template <class Handler = pool_script, class Backend = pool_kernel>
struct pool_world {
    using pool_type =
        netio::blocking_pool<Handler, Backend, netio::allow_all, netio_test::remembering>;

    Handler handler{};
    netio_test::remembering events;
    netio::limits sizes;
    netio_test::fresh_memory memory;
    std::size_t handles_before;
    std::optional<pool_type> pool;
    netio::endpoint at;

    explicit pool_world(std::uint64_t skip_ns = 0, const netio::limits& chosen = pool_limits)
        : sizes(chosen), memory(netio::bytes_needed<Backend>(chosen)) {
        pool_kernel::skip_ns = skip_ns;
        pool_backend::before_wait = nullptr;
        netio_test::client_os::start();
        handles_before = netio_test::client_os::open_handles();
        pool.emplace(netio::storage_view{memory.all(), sizes}, handler, events);
        REQUIRE(pool->failure().code == error::none);
    }
    ~pool_world() {
        pool_backend::before_wait = nullptr;
        const netio::server_stats stats = pool->stats();
        CHECK(stats.open == 0);
        for (const netio::pool_stats& each : stats.pools) {
            CAPTURE(each.name);
            CHECK(each.in_use == 0);
        }
        CHECK(events.count(netio::server_event_kind::closed) == stats.counts.closed);
        pool.reset();
        pool_kernel::skip_ns = 0;
        CHECK(netio_test::client_os::open_handles() == handles_before);
    }
    void listen(netio::listen_options how = {}) {
        how.address = "127.0.0.1";
        netio::listener_id id;
        REQUIRE(pool->listen(how, &id) == error::none);
        at = pool->local(id);
    }
    /// Serves one client by `body`, who has the peer at hand, and stops.
    template <class Body>
    void serve(client_socket& client, Body body) {
        handler.serve = [&](stream& s) {
            body(s);
            pool_backend::before_wait = [&] {
                client.close();
                pool->stop();
            };
        };
        CHECK(pool->run() == error::none);
        REQUIRE(handler.served == 1);
        REQUIRE(handler.reasons.size() == 1);
    }
};

std::string pool_text(netio::transfer got, const std::array<std::byte, 64>& from) {
    return std::string(netio::as_text({from.data(), got.count}));
}

}  // namespace

// ---- bytes

TEST_CASE("blocking pool: recv gives what is there, and the rest to the next recv") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    client.send("hello world");
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        CHECK(pool_text(s.recv(std::span(into).first(5)), into) == "hello");
        CHECK(pool_text(s.recv({}), into).empty());
        CHECK(pool_text(s.recv(into), into) == " world");
        client.send("more");
        CHECK(pool_text(s.recv(into), into) == "more");
        client.shutdown();
        const netio::transfer end = s.recv(into);
        CHECK(end.count == 0);
        CHECK(end.why == error::end_of_stream);
        CHECK(s.recv(into).why == error::end_of_stream);
        CHECK(s.is_open());
        CHECK(s.bytes_in() == 15);
        CHECK(s.send_all("bye").count == 3);
        CHECK(s.bytes_out() == 3);
    });
    CHECK(w.handler.reasons[0].kind == close_kind::peer_closed);
}

TEST_CASE("blocking pool: it has no TLS, and says so by the field") {
    pool_world<> w;
    netio::listen_options how;
    how.tls = netio::tls_mode::required;
    CHECK(w.pool->listen(how) == error::not_supported);
    CHECK(std::string_view(w.pool->failure().subject) == "tls");
}

TEST_CASE("blocking pool: bytes and the end that come at once are both seen") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    client.send("last words");
    client.shutdown();
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        CHECK(pool_text(s.recv(std::span(into).first(4)), into) == "last");
        CHECK(pool_text(s.recv(into), into) == " words");
        CHECK(s.recv(into).why == error::end_of_stream);
    });
}

TEST_CASE("blocking pool: a probe between calls tells what a recv would find, and takes nothing") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    const auto finds = [](stream& s, netio::probed what) {
        for (int tries = 0; tries < 100'000 && s.probe().found != what; ++tries) {
        }
        return s.probe().found == what;
    };
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        CHECK(s.probe() == netio::probe_result{});
        client.send("hello world");
        CHECK(finds(s, netio::probed::readable));
        CHECK(pool_text(s.recv(std::span(into).first(5)), into) == "hello");
        CHECK(s.probe().found == netio::probed::readable);  // of the window
        CHECK(pool_text(s.recv(into), into) == " world");
        CHECK(s.probe().found == netio::probed::idle);
        CHECK(s.bytes_in() == 11);
        client.shutdown();
        CHECK(finds(s, netio::probed::peer_closed));
        CHECK(s.is_open());
        CHECK(s.recv(into).why == error::end_of_stream);
        CHECK(s.probe().found == netio::probed::peer_closed);
        CHECK(s.send_all("bye").count == 3);
    });
}

TEST_CASE("blocking pool: a probe that finds a reset ends the connection as such") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    w.serve(client, [&](stream& s) {
        client.reset();
        netio::probe_result found;
        for (int tries = 0; tries < 100'000 && found.found == netio::probed::idle; ++tries) {
            found = s.probe();
        }
        CHECK(found == netio::probe_result{netio::probed::failed, error::connection_reset});
        CHECK_FALSE(s.is_open());
        std::array<std::byte, 64> into{};
        CHECK(s.recv(into).why == error::connection_reset);
        CHECK(s.probe() == netio::probe_result{netio::probed::failed, error::not_open});
    });
    CHECK(w.handler.reasons[0].kind == close_kind::peer_reset);
}

TEST_CASE("blocking pool: recv_exact waits for all of it, in parts and longer than a buffer") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    const std::string whole = netio_test::service_pattern(10'000);
    std::size_t sent = 0;
    w.serve(client, [&](stream& s) {
        pool_backend::before_wait = [&] {
            sent += client.send(std::string_view(whole).substr(sent, 700));
        };
        std::vector<std::byte> into(whole.size() - 100);
        const netio::transfer got = s.recv_exact(into);
        CHECK(got);
        CHECK(netio::as_text(into) == std::string_view(whole).substr(0, into.size()));
        pool_backend::before_wait = nullptr;
        std::array<std::byte, 64> rest{};
        CHECK(s.recv_exact(rest));
        CHECK(netio::as_text(rest) == std::string_view(whole).substr(into.size(), 64));
    });
}

TEST_CASE("blocking pool: recv_exact tells an end between messages from one inside") {
    for (const std::string_view sent : {"", "abc", "abcdefgh", "abcdefghij"}) {
        CAPTURE(sent);
        pool_world<> w;
        w.listen();
        client_socket client(w.at);
        client.send(sent);
        client.shutdown();
        w.serve(client, [&](stream& s) {
            std::array<std::byte, 8> into{};
            std::size_t left = sent.size();
            for (; left >= 8; left -= 8) {
                CHECK(s.recv_exact(into));
            }
            const netio::transfer last = s.recv_exact(into);
            CHECK(last.why == error::end_of_stream);
            CHECK(last.count == left);
        });
    }
}

TEST_CASE("blocking pool: send_all ends when a slow reader's kernel has everything") {
    pool_world<> w;
    w.listen();
    client_socket client = client_socket::slow_reader(w.at);
    const std::string whole = netio_test::service_pattern(8u << 20);
    w.serve(client, [&](stream& s) {
        client.send("unasked");
        pool_backend::before_wait = [&] { client.take_some(64 * 1024); };
        const netio::transfer got = s.send_all(whole);
        CHECK(s.bytes_in() == 0);  // nobody reads meanwhile
        CHECK(got);
        CHECK(got.count == whole.size());
        CHECK(s.bytes_out() == whole.size());
        pool_backend::before_wait = nullptr;
        CHECK(s.send_all("") );
    });
    CHECK(w.pool->stats().counts.bytes_copied == 0);
}

TEST_CASE("blocking pool: what on_open writes goes out before the stream's bytes, however much") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    w.handler.open = [](netio::connection& c) {
        for (int at = 0; at < 8; ++at) {
            c.write_static("greeting ");
        }
    };
    std::string all;
    w.serve(client, [&](stream& s) {
        CHECK(s.send_all("after"));
        all = client.arrived();
    });
    CHECK(all == "greeting greeting greeting greeting after");
}

// ---- ends

TEST_CASE("blocking pool: a handler that returns early with input left ends in FIN, not RST") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    client.send(netio_test::service_pattern(3000));
    bool ended = false;
    w.handler.serve = [&](stream& s) {
        std::array<std::byte, 64> into{};
        CHECK(s.recv_exact(into));
        CHECK(s.send_all("enough"));
        pool_backend::before_wait = [&] {
            client.send("still talking");
            if (client.ended()) {
                ended = true;
                client.close();
                w.pool->stop();
            }
        };
    };
    CHECK(w.pool->run() == error::none);
    CHECK(ended);
    CHECK(client.arrived() == "enough");
    CHECK_FALSE(client.was_reset());
    REQUIRE(w.handler.reasons.size() == 1);
    CHECK(w.handler.reasons[0].kind == close_kind::handler_closed);
}

TEST_CASE("blocking pool: a peer's reset ends recv, and send_all that waits") {
    for (const bool sending : {false, true}) {
        CAPTURE(sending);
        pool_world<> w;
        w.listen();
        client_socket client = client_socket::slow_reader(w.at);
        const std::string whole(8u << 20, 'x');
        w.serve(client, [&](stream& s) {
            int waits = 0;
            pool_backend::before_wait = [&] {
                if (++waits == 4) {
                    client.reset();
                }
            };
            std::array<std::byte, 64> into{};
            client.send("abc");
            CHECK(pool_text(s.recv(into), into) == "abc");
            const netio::transfer got = sending ? s.send_all(whole) : s.recv(into);
            CHECK(got.why == error::connection_reset);
            CHECK(got.count < whole.size());
            CHECK_FALSE(s.is_open());
            CHECK(s.reason().kind == close_kind::peer_reset);
            CHECK(s.recv(into).why == error::connection_reset);
            CHECK(s.recv_exact(into).why == error::connection_reset);
            CHECK(s.send_all("x").why == error::connection_reset);
            CHECK(s.bytes_in() == 3);
        });
        CHECK(w.handler.reasons[0].kind == close_kind::peer_reset);
    }
}

TEST_CASE("blocking pool: end lets the peer answer, kill resets it") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    w.serve(client, [&](stream& s) {
        CHECK(s.send_all("request"));
        s.end();
        CHECK(client.ended());
        CHECK(client.arrived() == "request");
        CHECK(s.send_all("more").why == error::broken_pipe);
        client.send("answer");
        std::array<std::byte, 64> into{};
        CHECK(pool_text(s.recv(into), into) == "answer");
    });
}

TEST_CASE("blocking pool: kill resets the peer, and every call says so") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        s.kill(7);
        CHECK(client.was_reset());
        CHECK(s.recv(into).why == error::cancelled);
        CHECK(s.send_all("x").why == error::cancelled);
        CHECK(s.reason() == netio::close_reason{close_kind::killed, 7});
    });
    CHECK(w.handler.reasons[0] == netio::close_reason{close_kind::killed, 7});
}

TEST_CASE("blocking pool: a connection that on_open ends is not served") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    w.handler.open = [&](netio::connection& c) {
        c.kill(3);
        w.pool->stop();
    };
    CHECK(w.pool->run() == error::none);
    CHECK(w.handler.opened == 1);
    CHECK(w.handler.served == 0);
    REQUIRE(w.handler.reasons.size() == 1);
    CHECK(w.handler.reasons[0].kind == close_kind::killed);
}

// ---- deadlines

TEST_CASE("blocking pool: each deadline ends the call that waits") {
    struct row {
        const char* says;
        void (*call)(stream&, client_socket&, netio::transfer&);
        close_kind reason;
        std::size_t count;
    };
    static const std::string much(8u << 20, 'x');
    static std::array<std::byte, 64> into;
    constexpr row rows[] = {
        {"idle", [](stream& s, client_socket&, netio::transfer& got) { got = s.recv(into); },
         close_kind::idle, 0},
        {"read, inside an exchange",
         [](stream& s, client_socket&, netio::transfer& got) {
             s.phase(netio::phase::exchange);
             got = s.recv(into);
         },
         close_kind::read_timeout, 0},
        {"read, inside a message",
         [](stream& s, client_socket& client, netio::transfer& got) {
             client.send("half");
             got = s.recv_exact(into);
         },
         close_kind::read_timeout, 4},
        {"exchange",
         [](stream& s, client_socket&, netio::transfer& got) {
             s.deadline(5'000);
             got = s.recv(into);
         },
         close_kind::exchange_deadline, 0},
        {"write",
         [](stream& s, client_socket&, netio::transfer& got) {
             got = s.send_all(much);
             CHECK(got.count < much.size());
             CHECK(got.count == s.bytes_out());
             got.count = 0;
         },
         close_kind::write_timeout, 0},
    };
    for (const row& each : rows) {
        CAPTURE(each.says);
        pool_world<> w(netio_test::service_hurry);
        w.listen();
        client_socket client = client_socket::slow_reader(w.at);
        w.serve(client, [&](stream& s) {
            netio::transfer got;
            each.call(s, client, got);
            CHECK(got.why == error::timed_out);
            CHECK(got.count == each.count);
            CHECK(s.reason().kind == each.reason);
            CHECK_FALSE(s.is_open());
        });
        CHECK(w.handler.reasons[0].kind == each.reason);
    }
}

TEST_CASE("blocking pool: a message that was whole leaves the phase as it was") {
    pool_world<> w(netio_test::service_hurry);
    w.listen();
    client_socket client(w.at);
    client.send("half");
    w.serve(client, [&](stream& s) {
        int waits = 0;
        pool_backend::before_wait = [&] {
            if (++waits == 3) {
                client.send("rest");
            }
        };
        std::array<std::byte, 8> into{};
        CHECK(s.recv_exact(into));
        CHECK(s.recv(into).why == error::timed_out);
        CHECK(s.reason().kind == close_kind::idle);  // not read_timeout
    });
}

TEST_CASE("blocking pool: deadlines count from the call, not from what came before it") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        pool_kernel::skipped_ns += 300'000'000'000;  // the handler was elsewhere for five minutes
        int waits = 0;
        pool_backend::before_wait = [&] {
            if (++waits == 3) {
                client.send("here");
            }
        };
        CHECK(pool_text(s.recv(into), into) == "here");
        pool_kernel::skipped_ns += 300'000'000'000;
        s.deadline(60'000);
        s.phase(netio::phase::exchange);
        CHECK(s.send_all("there"));
        client.send("again");
        CHECK(pool_text(s.recv(into), into) == "again");
        pool_kernel::skipped_ns += 61'000'000'000;
        CHECK(s.recv(into).why == error::timed_out);
        CHECK(s.reason().kind == close_kind::exchange_deadline);
    });
}

// ---- stop and drain

TEST_CASE("blocking pool: stop ends a call that waits, and one that never does") {
    for (const bool waits : {true, false}) {
        CAPTURE(waits);
        pool_world<> w;
        w.listen();
        client_socket client(w.at);
        w.serve(client, [&](stream& s) {
            std::array<std::byte, 64> into{};
            netio::transfer got;
            if (waits) {
                pool_backend::before_wait = [&] { w.pool->stop(); };
                got = s.recv(into);
            } else {
                w.pool->stop();
                for (int at = 0; at < 100 && got; ++at) {
                    got = s.send_all("for a reader who takes everything");
                }
            }
            CHECK(got.why == error::stopped);
            CHECK_FALSE(s.is_open());
        });
        CHECK(w.handler.reasons[0].kind == close_kind::shutdown);
    }
}

TEST_CASE("blocking pool: a drain ends who waits for a request, and lets a message be finished") {
    for (const bool inside : {false, true}) {
        CAPTURE(inside);
        pool_world<> w;
        w.listen();
        client_socket client(w.at);
        client.send(inside ? "half" : "");
        bool finished = false;
        int waits = 0;
        w.handler.serve = [&](stream& s) {
            pool_backend::before_wait = [&] {
                ++waits;
                if (waits == 2) {
                    w.pool->drain(60'000);
                } else if (waits == 12 && inside) {
                    client.send("rest");
                }
                if (client.over()) {
                    client.shutdown();
                }
            };
            std::array<std::byte, 8> into{};
            const netio::transfer got = s.recv_exact(into);
            finished = bool{got};
            CHECK(finished == inside);
            if (inside) {
                CHECK(s.send_all("done"));
            } else {
                CHECK(got.why == error::stopped);
                CHECK(s.send_all("x").why == error::stopped);
            }
        };
        CHECK(w.pool->run() == error::none);
        CHECK(client.arrived() == (inside ? "done" : ""));
        CHECK(client.ended());
        CHECK_FALSE(client.was_reset());
        REQUIRE(w.handler.reasons.size() == 1);
        CHECK(w.handler.reasons[0].kind ==
              (inside ? close_kind::handler_closed : close_kind::drained));
    }
}

TEST_CASE("blocking pool: a drain takes the request that had come while the handler was busy") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    client.send("first");
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        CHECK(pool_text(s.recv(into), into) == "first");
        client.send("second");
        w.pool->drain(60'000);
        for (int at = 0; at < 10; ++at) {
            s.phase(netio::phase::idle);  // the drain is seen, and has looked at everybody
        }
        CHECK(s.draining());
        CHECK(s.is_open());
        CHECK(pool_text(s.recv(into), into) == "second");
        CHECK(s.send_all("answer"));
        pool_backend::before_wait = [&] { client.shutdown(); };
        CHECK(s.recv(into).why == error::stopped);
        CHECK(client.arrived() == "answer");
    });
    CHECK(w.handler.reasons[0].kind == close_kind::drained);
}

TEST_CASE("blocking pool: a drain lets who has read the end answer at leisure") {
    pool_world<> w;
    w.listen();
    client_socket client(w.at);
    client.shutdown();
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        CHECK(s.recv(into).why == error::end_of_stream);
        w.pool->drain(60'000);
        for (int at = 0; at < 10; ++at) {
            s.phase(netio::phase::idle);
            CHECK(s.send_all("part "));
        }
        CHECK(client.arrived().size() == 50);
    });
    CHECK(w.handler.reasons[0].kind == close_kind::peer_closed);
}

TEST_CASE("blocking pool: the drain's deadline ends a message that never is") {
    pool_world<> w(1'000'000);
    w.listen();
    client_socket client(w.at);
    client.send("half");
    w.serve(client, [&](stream& s) {
        pool_backend::before_wait = [&] {
            if (!s.draining()) {
                w.pool->drain(500);
            }
        };
        std::array<std::byte, 8> into{};
        const netio::transfer got = s.recv_exact(into);
        CHECK(got.why == error::stopped);
        CHECK(got.count == 4);
    });
    CHECK(w.handler.reasons[0].kind == close_kind::drain_deadline);
}

// ---- ends from elsewhere, and the gate

TEST_CASE("blocking pool: a kill and a close from elsewhere end a call that waits") {
    for (const bool kills : {true, false}) {
        CAPTURE(kills);
        pool_world<> w;
        w.listen();
        client_socket client(w.at);
        w.serve(client, [&](stream& s) {
            bool asked = false;
            pool_backend::before_wait = [&] {
                if (!asked) {
                    asked = true;
                    CHECK((kills ? w.pool->kill(s.id(), 5) : w.pool->close(s.id(), 1000)));
                }
            };
            std::array<std::byte, 64> into{};
            CHECK(s.recv(into).why == error::cancelled);
            CHECK_FALSE(s.is_open());
            CHECK((kills ? client.was_reset() : client.ended()));
        });
        CHECK(w.handler.reasons[0] == (kills ? netio::close_reason{close_kind::killed, 5}
                                             : netio::close_reason{close_kind::handler_closed, 0}));
    }
}

TEST_CASE("blocking pool: a peer too slow for its rate ends recv_exact") {
    pool_world<> w;
    w.listen({.times = {.rate_in = 1'000'000, .rate_window_ms = 1'000, .rate_grace_ms = 1'000}});
    client_socket client(w.at);
    client.send("a");
    w.serve(client, [&](stream& s) {
        pool_backend::before_wait = [&] {
            client.send("b");
            pool_kernel::skipped_ns += 100'000'000;
        };
        std::vector<std::byte> into(1'000'000);
        const netio::transfer got = s.recv_exact(into);
        CHECK(got.why == error::timed_out);
        CHECK(got.count > 10);
        CHECK(s.reason().kind == close_kind::slow_peer_in);
    });
}

namespace {

/// Lets so many bytes out, and everybody in, with a lane and a tag.
struct pool_gate {
    std::uint64_t most = ~std::uint64_t{0};
    std::uint32_t closed_count = 0;
    netio::verdict admit(const netio::connection&) noexcept {
        return netio::verdict::allow(2, 77);
    }
    netio::egress check(const netio::connection&, const netio::write_facts& facts) noexcept {
        return facts.bytes_out + facts.byte_count <= most ? netio::egress::allow()
                                                          : netio::egress::deny(9, "no more");
    }
    void closed(const netio::connection&, netio::close_reason) noexcept { ++closed_count; }
};

}  // namespace

TEST_CASE("blocking pool: a send that the gate denies fails, and tells what had left before") {
    pool_script handler;
    pool_gate gate;
    gate.most = 10;
    netio_test::client_os::start();
    netio_test::fresh_memory memory(netio::bytes_needed<pool_kernel>(pool_limits));
    netio::blocking_pool<pool_script, pool_kernel, pool_gate> pool{
        netio::storage_view{memory.all(), pool_limits}, handler, gate};
    netio::listener_id id;
    REQUIRE(pool.listen({.address = "127.0.0.1"}, &id) == error::none);
    client_socket client(pool.local(id));
    handler.serve = [&](stream& s) {
        CHECK(s.lane() == 2);
        CHECK(s.tag() == 77);
        CHECK(s.send_all("12345678").count == 8);
        const netio::transfer denied = s.send_all("abc");
        CHECK(denied.why == error::refused_by_gate);
        CHECK(denied.count == 0);
        CHECK(s.send_all("d").why == error::refused_by_gate);
        CHECK(s.bytes_out() == 8);
        client.shutdown();
        pool.drain(60'000);
    };
    CHECK(pool.run() == error::none);
    CHECK(client.arrived() == "12345678no more");
    REQUIRE(handler.reasons.size() == 1);
    CHECK(handler.reasons[0] == netio::close_reason{close_kind::egress_denied, 9});
    CHECK(gate.closed_count == 1);
}

// ---- more clients than workers

TEST_CASE("blocking pool: clients beyond the workers wait for their turn") {
    for (const std::uint32_t worker : {netio::every_worker, 0u}) {
        CAPTURE(worker);
        pool_world<> w;
        w.listen({.worker = worker});
        std::vector<client_socket> clients;
        for (int at = 0; at < 5; ++at) {
            clients.emplace_back(w.at);
            clients.back().send(std::to_string(at));
        }
        std::string order;
        w.handler.serve = [&](stream& s) {
            std::array<std::byte, 64> into{};
            const std::string text = pool_text(s.recv(into), into);
            order += text;
            CHECK(s.send_all(text));
            CHECK(w.pool->stats().open == 1);
            clients[order.size() - 1].shutdown();
            if (order.size() == 5) {
                w.pool->drain(60'000);
            }
        };
        CHECK(w.pool->run() == error::none);
        CHECK(order == "01234");
        for (std::size_t at = 0; at < clients.size(); ++at) {
            CHECK(clients[at].arrived() == std::to_string(at));
            CHECK(clients[at].ended());
        }
        CHECK(w.pool->stats().counts.refused == 0);
    }
}

TEST_CASE("blocking pool: a listener opened meanwhile keeps its clients waiting, too") {
    for (const std::uint32_t worker : {netio::every_worker, 0u}) {
        CAPTURE(worker);
        pool_world<> w;
        w.listen();
        client_socket first(w.at);
        client_socket second;
        w.handler.serve = [&](stream& s) {
            std::array<std::byte, 64> into{};
            if (w.handler.served == 1) {
                w.listen({.worker = worker});
                second = client_socket(w.at);
                int waits = 0;
                pool_backend::before_wait = [&] {
                    if (++waits == 5) {
                        first.send("x");
                    }
                };
                CHECK(pool_text(s.recv(into), into) == "x");
                pool_backend::before_wait = nullptr;
                second.send("y");
                first.shutdown();
            } else {
                CHECK(s.listener() == 1);
                CHECK(pool_text(s.recv(into), into) == "y");
                second.shutdown();
                w.pool->drain(60'000);
            }
        };
        CHECK(w.pool->run() == error::none);
        CHECK(w.handler.served == 2);
        CHECK(w.pool->stats().counts.refused == 0);
    }
}

TEST_CASE("blocking pool: where that is chosen, who finds no worker free is refused as busy") {
    pool_world<> w;
    w.listen();
    netio::wait_options how;
    how.refuse_busy = true;
    w.pool->waiting(how);
    client_socket client(w.at);
    w.serve(client, [&](stream& s) {
        client_socket second(w.at);
        pool_backend::before_wait = [&] {
            if (second.was_reset()) {
                client.send("x");
            }
        };
        std::array<std::byte, 64> into{};
        CHECK(pool_text(s.recv(into), into) == "x");
        CHECK(second.was_reset());
    });
    CHECK(w.pool->stats().counts.refused == 1);
    CHECK(w.events.count(netio::server_event_kind::refused) == 1);
}

// ---- PROXY

TEST_CASE("blocking pool: on_connection comes after the PROXY header and sees what it says") {
    pool_world<> w;
    netio::listen_options how;
    how.proxy = netio::proxy_mode::required;
    w.listen(how);
    netio::proxy::header header;
    header.version = 2;
    header.cmd = netio::proxy::command::proxy;
    header.fam = netio::proxy::family::ipv4;
    header.proto = netio::proxy::transport::stream;
    header.source = netio::parse_endpoint("192.0.2.7:4711").value;
    header.destination = netio::parse_endpoint("192.0.2.8:80").value;
    const netio::proxy::tlv tlv{0xE0, netio::as_bytes("lane 7")};
    std::array<std::byte, 200> raw{};
    const std::size_t count = netio::proxy::encode_v2(header, {&tlv, 1}, raw, true);
    REQUIRE(count != 0);
    client_socket client(w.at);
    client.send(netio::as_text({raw.data(), count}));
    client.send("payload");
    w.serve(client, [&](stream& s) {
        std::array<std::byte, 64> into{};
        CHECK(pool_text(s.recv_exact(std::span(into).first(7)), into) == "payload");
        CHECK(s.proxied());
        CHECK(s.source() == header.source);
        CHECK(s.destination() == header.destination);
        CHECK(netio::as_text(s.tlvs().find(0xE0).value) == "lane 7");
        CHECK(s.local().port == w.at.port);
        CHECK(s.listener() == 0);
        CHECK(s.worker() == 0);
        CHECK(bool{s.id()});
    });
}

TEST_CASE("blocking pool: a client without its PROXY header is never served") {
    pool_world<> w;
    netio::listen_options how;
    how.proxy = netio::proxy_mode::required;
    w.listen(how);
    client_socket client(w.at);
    client.send("GET / HTTP/1.1\r\n\r\n");
    pool_backend::before_wait = [&] {
        if (client.was_reset()) {
            w.pool->stop();
        }
    };
    CHECK(w.pool->run() == error::none);
    CHECK(w.handler.served == 0);
    CHECK(w.handler.opened == 0);
    CHECK(w.pool->stats().counts.closed == 1);
}

// ---- limits

TEST_CASE("blocking pool: on_connection with other than one connection a worker is refused") {
    constexpr netio::limits two{.connections_max = 2};
    netio_test::fresh_memory memory(netio::bytes_needed<netio::blocking>(two));
    pool_script handler;
    netio::blocking_pool<pool_script> pool{netio::storage_view{memory.all(), two}, handler};
    CHECK(pool.failure().code == error::limits_invalid);
    CHECK(std::string_view(pool.failure().subject) == "connections_max");
    CHECK(pool.listen({}) == error::limits_invalid);
    CHECK(pool.run() == error::limits_invalid);
}

TEST_CASE("blocking pool: a worker it does not have can't run") {
    pool_world<> w;
    CHECK(w.pool->run(1) == error::option_invalid);
    w.pool->stop();
    CHECK(w.pool->run() == error::none);
    CHECK(w.pool->run() == error::none);  // it is over
}

// ---- one handler on every driver

namespace {

/// A line protocol of callbacks: answers each line, keeps what is unfinished.
struct pool_lines {
    std::uint32_t lines = 0;
    std::uint32_t closed = 0;

    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        const std::string_view text = netio::as_text(in);
        const std::size_t end = text.rfind('\n');
        if (end == std::string_view::npos) {
            return 0;
        }
        for (const char each : text.substr(0, end + 1)) {
            lines += each == '\n' ? 1 : 0;
        }
        return c.write(text.substr(0, end + 1));
    }
    void on_close(netio::connection&, netio::close_reason) noexcept { ++closed; }
};

template <class Service>
void pool_plays_lines(Service& service, pool_lines& handler) {
    netio::listener_id id;
    REQUIRE(service.listen({.address = "127.0.0.1"}, &id) == error::none);
    {
        client_socket client(service.local(id));
        for (const std::string_view part : {"on", "e\ntw", "o\n", "three\nfour\n"}) {
            client.send(part);
            for (int turn = 0; turn < 20; ++turn) {
                service.run_once(0);
            }
        }
        CHECK(client.arrived() == "one\ntwo\nthree\nfour\n");
    }
    for (int turn = 0; turn < 10'000 && handler.closed == 0; ++turn) {
        service.run_once(1);
    }
    CHECK(handler.lines == 4);
    CHECK(handler.closed == 1);
    service.drain(0);
    for (int turn = 0; turn < 10'000 && service.run_once(1); ++turn) {
    }
    CHECK(service.stats().pools[1].in_use == 0);
    CHECK(service.stats().pools[2].in_use == 0);
}

}  // namespace

TEST_CASE("blocking pool: a handler of callbacks runs unchanged on reactor and pool") {
    netio_test::client_os::start();
    {
        pool_lines handler;
        netio_test::fresh_memory memory(netio::bytes_needed<netio::default_backend>(pool_limits));
        netio::server<pool_lines> reactor{{memory.all(), pool_limits}, handler};
        pool_plays_lines(reactor, handler);
    }
    {
        pool_lines handler;
        netio_test::fresh_memory memory(netio::bytes_needed<netio::blocking>(pool_limits));
        netio::blocking_pool<pool_lines> pool{netio::storage_view{memory.all(), pool_limits},
                                              handler};
        static_assert(!decltype(pool)::streams);
        pool_plays_lines(pool, handler);
    }
}

namespace {

template <class Backend>
void pool_runs_on() {
    CAPTURE(Backend::name);
    if (!Backend::available().offered) {
        return;
    }
    netio_test::client_os::start();
    pool_script handler;
    netio_test::fresh_memory memory(netio::bytes_needed<Backend>(pool_limits));
    netio::blocking_pool<pool_script, Backend> pool{
        netio::storage_view{memory.all(), pool_limits}, handler};
    netio::listener_id id;
    REQUIRE(pool.listen({.address = "127.0.0.1"}, &id) == error::none);
    client_socket client(pool.local(id));
    client.send("ping");
    handler.serve = [&](stream& s) {
        std::array<std::byte, 64> into{};
        for (int round = 0; round < 3; ++round) {
            CHECK(s.recv_exact(std::span(into).first(4)));
            CHECK(s.send_all({into.data(), 4}));
            into = {};  // it is ours again
            round == 2 ? client.shutdown() : static_cast<void>(client.send("pong"));
        }
        CHECK(s.recv(into).why == error::end_of_stream);
        pool.drain(60'000);
    };
    CHECK(pool.run() == error::none);
    CHECK(client.arrived() == "pingpongpong");
    CHECK(client.ended());
    CHECK(pool.stats().pools[1].in_use == 0);
    CHECK(pool.stats().pools[2].in_use == 0);
}

}  // namespace

TEST_CASE("blocking pool: the blocking form runs on every backend") {
    pool_runs_on<netio::blocking>();
    pool_runs_on<netio::poll>();
    pool_runs_on<netio::default_backend>();
#if NETIO_HAS_IO_URING
    pool_runs_on<netio::io_uring>();
#endif
}

TEST_CASE("blocking pool: send_all keeps the caller's bytes until a close from elsewhere is over") {
    pool_world<> w;
    w.listen();
    client_socket client = client_socket::slow_reader(w.at);
    w.serve(client, [&](stream& s) {
        std::string whole = netio_test::service_pattern(8u << 20);
        const std::string expected = whole;
        bool asked = false;
        pool_backend::before_wait = [&] {
            if (!asked) {
                asked = true;
                CHECK(w.pool->close(s.id(), 60'000));
            }
            client.take_some(1u << 20);
        };
        CHECK(s.send_all(whole));
        CHECK_FALSE(s.is_open());
        whole.assign(whole.size(), '!');
        pool_backend::before_wait = [&] {
            if (client.ended()) {
                client.shutdown();
            }
        };
        CHECK(s.recv(std::as_writable_bytes(std::span(whole))).why == error::cancelled);
        while (!client.ended()) {
            netio_test::client_os::wait_readable(client.handle(), 1000);
        }
        CHECK(client.arrived() == expected);
    });
    CHECK(w.handler.reasons[0].kind == close_kind::handler_closed);
}

// ---- threads

namespace {

struct pool_echo {
    std::atomic<std::uint32_t> served{0};
    void on_connection(stream& s) noexcept {
        std::array<std::byte, 256> into;
        while (const netio::transfer got = s.recv(into)) {
            if (!s.send_all({into.data(), got.count})) {
                break;
            }
        }
        ++served;
    }
};

constexpr netio::limits pool_three{.connections_max = 3,
                                   .workers_max = 3,
                                   .buffer_bytes = 1024,
                                   .input_buffers_max = 3,
                                   .output_buffers_max = 3};

}  // namespace

TEST_CASE("blocking pool: three workers serve twelve clients, each to its end [threads]") {
    netio_test::client_os::start();
    static netio::pool_storage<pool_three> memory;
    pool_echo handler;
    netio::blocking_pool pool{memory, handler};
    netio::listener_id id;
    REQUIRE(pool.listen({.address = "127.0.0.1"}, &id) == error::none);
    std::vector<std::thread> workers;
    for (std::uint32_t at = 0; at < 3; ++at) {
        workers.emplace_back([&pool, at] { CHECK(pool.run(at) == error::none); });
    }
    std::vector<client_socket> clients;
    for (int at = 0; at < 12; ++at) {
        clients.emplace_back(pool.local(id));
        clients.back().send("number " + std::to_string(at));
        clients.back().shutdown();
    }
    for (std::size_t at = 0; at < clients.size(); ++at) {
        while (!clients[at].over()) {
            netio_test::client_os::wait_readable(clients[at].handle(), 1000);
        }
        CHECK(clients[at].arrived() == "number " + std::to_string(at));
        CHECK_FALSE(clients[at].was_reset());
    }
    pool.stop();  // they wait in poll, or in a receive: either ends
    for (std::thread& each : workers) {
        each.join();
    }
    CHECK(handler.served == 12);
    CHECK(pool.stats().counts.closed == 12);
    CHECK(pool.stats().open == 0);
}

TEST_CASE("blocking pool: stop reaches workers that block in their receives [threads]") {
    for (const bool at_once : {false, true}) {
        CAPTURE(at_once);
        netio_test::client_os::start();
        const auto memory = std::make_unique<netio::pool_storage<pool_three>>();
        pool_echo handler;
        netio::blocking_pool pool{*memory, handler};
        netio::wait_options how;
        how.wake_at_once = at_once;
        pool.waiting(how);
        netio::listener_id id;
        REQUIRE(pool.listen({.address = "127.0.0.1"}, &id) == error::none);
        std::vector<std::thread> workers;
        for (std::uint32_t at = 0; at < 3; ++at) {
            workers.emplace_back([&pool, at] { CHECK(pool.run(at) == error::none); });
        }
        std::vector<client_socket> clients;
        for (int at = 0; at < 3; ++at) {
            clients.emplace_back(pool.local(id));
            clients.back().send("x");
        }
        for (client_socket& each : clients) {  // each has a worker from here on
            while (each.arrived().empty()) {
                netio_test::client_os::wait_readable(each.handle(), 1000);
            }
        }
        pool.stop();
        for (std::thread& each : workers) {
            each.join();
        }
        for (client_socket& each : clients) {
            CHECK(each.was_reset());
        }
        CHECK(handler.served == 3);
    }
}

#endif
