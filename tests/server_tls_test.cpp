// TLS between the preface and the handler, with a toy in the place of a library: what a session is
// told, when the handler hears, how it ends, and that nothing is lost, doubled or kept.
#include "tests/server_world.hpp"
#include "tests/toy_tls.hpp"

namespace {

using netio::close_kind;
using netio_test::on_both_kernels;
using netio_test::scripted;
using netio_test::sim_peer;
using netio_test::toy_client;
using netio_test::toy_options;
using netio_test::toy_tls;

template <class Gate = netio::allow_all>
struct basic_tls_world : netio_test::server_world<scripted, Gate, toy_tls> {
    using base = netio_test::server_world<scripted, Gate, toy_tls>;
    explicit basic_tls_world(bool proactor, const toy_options& how = {},
                             const netio_test::sim_options& network = {},
                             std::uint64_t seed = 1,
                             const netio::limits& chosen = netio_test::small_limits)
        : base(proactor, chosen, network, seed) {
        this->tls = toy_tls(how);
    }
    ~basic_tls_world() {
        this->check_nothing_held();
        CHECK(this->tls.in_use() == 0);
        CHECK(this->tls.wiped());
    }
    void listen_tls(netio::listen_options how = {}) {
        how.tls = netio::tls_mode::required;
        this->listen(how);
    }
    netio::close_reason last_reason() const { return this->events.all.back().reason; }
    std::uint64_t closed_by(close_kind kind) const {
        return this->server->stats().counts.closed_by[static_cast<std::size_t>(kind)];
    }
};
using tls_world = basic_tls_world<>;

/// A client of the toy, and its socket.
struct tls_peer {
    sim_peer peer;
    toy_client say;

    template <class World>
    void pump(World& w) {
        w.pump();
        say.take(peer.take_text());
    }
    template <class World>
    void shake_hands(World& w) {
        peer.send(say.hello());
        pump(w);
        CHECK(say.answered);
        peer.send(say.finish());
        pump(w);
        CHECK(say.open);
    }
};

template <class World>
tls_peer tls_joined(World& w) {
    tls_peer out;
    out.peer = w.connect();
    out.shake_hands(w);
    return out;
}

void tls_echo(scripted& handler) {
    handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
}

/// One behind the other, made in that order: each record's sum depends on those before it.
std::string tls_records(std::initializer_list<std::string> records) {
    std::string out;
    for (const std::string& each : records) {
        out += each;
    }
    return out;
}

std::string tls_pattern(std::size_t count) {
    std::string out(count, '\0');
    std::uint32_t seed = 7;
    for (char& each : out) {
        seed = (seed * 1664525u + 1013904223u) & 0xFFFFFFFFu;
        each = static_cast<char>(seed >> 24);
    }
    return out;
}

constexpr std::string_view tls_proxy_header = "PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n";

}  // namespace

TEST_CASE("TLS: the handler hears of a client after its handshake, and of plaintext only") {
    on_both_kernels([](bool proactor) {
        for (const bool by_pieces : {false, true}) {
            tls_world w(proactor, {.by_pieces = by_pieces});
            tls_echo(w.handler);
            std::uint32_t session = 0;
            w.handler.open = [&](netio::connection& c) { session = c.tls_session(); };
            w.listen_tls();
            tls_peer p;
            p.peer = w.connect();
            CHECK(w.tls.in_use() == 1);
            CHECK(w.server->stats().counts.opened == 0);
            p.peer.send(p.say.hello());
            p.pump(w);
            CHECK(p.say.answered);
            CHECK(w.handler.opened == 0);
            p.peer.send(p.say.finish());
            p.pump(w);
            CHECK(w.handler.opened == 1);
            CHECK(session == 1);
            p.peer.send(p.say.data("hello "));
            p.peer.send(p.say.data("world"));
            p.pump(w);
            CHECK(p.say.text == "hello world");
            p.peer.send(p.say.close());
            p.pump(w);
            CHECK(p.say.ended);
            CHECK(p.say.clean());
            CHECK(p.peer.finished());
            CHECK(w.handler.count("end") == 1);
            CHECK(w.handler.reasons.at(0).kind == close_kind::handler_closed);
        }
    });
}

TEST_CASE("TLS: plain listeners of the same server stay plain") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        tls_echo(w.handler);
        w.listen();
        sim_peer peer = w.connect();
        peer.send("hello");
        w.pump();
        CHECK(peer.take_text() == "hello");
        CHECK(w.tls.opened == 0);
        peer.close();
        w.pump();
    });
}

TEST_CASE("TLS: a server without a policy refuses a listener that asks for it") {
    netio_test::server_world<> w(false);
    netio::listen_options how;
    how.tls = netio::tls_mode::required;
    CHECK(w.server->listen(how) == netio::error::not_supported);
    char line[160];
    CHECK(netio::describe(w.server->failure(), line) == "listen tls: not supported here");
}

TEST_CASE("TLS: a handshake has three seconds at least") {
    tls_world w(false);
    netio::listen_options how;
    how.tls = netio::tls_mode::required;
    how.times.preface_ms = 2999;
    CHECK(w.server->listen(how) == netio::error::option_invalid);
}

TEST_CASE("TLS: every point at which a stream may be cut leaves the same bytes") {
    on_both_kernels([](bool proactor) {
        toy_client sample;
        const std::string stream =
            tls_records({sample.hello(), sample.finish(), sample.data("one"), sample.data("two"),
                      sample.close()});
        for (const bool by_pieces : {false, true}) {
            tls_world w(proactor, {.by_pieces = by_pieces});
            tls_echo(w.handler);
            w.listen_tls();
            for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
                CAPTURE(cut);
                tls_peer p;
                p.peer = w.connect();
                p.peer.send(std::string_view(stream).substr(0, cut));
                p.pump(w);
                p.peer.send(std::string_view(stream).substr(cut));
                p.pump(w);
                CHECK(p.say.text == "onetwo");
                CHECK(p.say.ended);
                CHECK(p.say.clean());
                p.peer.close();
                w.pump();
            }
        }
    });
}

TEST_CASE("TLS: bytes that come one by one are a stream like any other") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        tls_echo(w.handler);
        w.listen_tls();
        tls_peer p;
        p.peer = w.connect();
        const std::string stream =
            tls_records({p.say.hello(), p.say.finish(), p.say.data("drop by drop")});
        for (const char each : stream) {
            p.peer.send(std::string_view(&each, 1));
            w.pump(4);
        }
        p.pump(w);
        CHECK(p.say.text == "drop by drop");
        CHECK(w.handler.count("data 12") == 1);
    });
}

TEST_CASE("TLS: a handshake begins with what came behind the PROXY header, which on_open reads") {
    on_both_kernels([](bool proactor) {
        for (std::size_t cut = 0; cut <= tls_proxy_header.size() + 11; ++cut) {
            CAPTURE(cut);
            tls_world w(proactor, {.by_pieces = cut % 2 == 0, .deaf_while_sending = cut % 3 == 0});
            tls_echo(w.handler);
            std::string seen;
            w.handler.open = [&](netio::connection& c) {
                REQUIRE(c.proxy_header() != nullptr);
                char line[netio::endpoint_text_max];
                seen = netio::format(c.proxy_header()->source, line);
                CHECK(c.source() == c.proxy_header()->source);
            };
            netio::listen_options how;
            how.proxy = netio::proxy_mode::required;
            w.listen_tls(how);
            tls_peer p;
            p.peer = w.connect();
            const std::string first = std::string(tls_proxy_header) + p.say.hello();
            p.peer.send(std::string_view(first).substr(0, cut));
            p.pump(w);
            p.peer.send(std::string_view(first).substr(cut));
            p.pump(w);
            CHECK(p.say.answered);
            p.peer.send(tls_records({p.say.finish(), p.say.data("hello")}));
            p.pump(w);
            CHECK(seen == "203.0.113.9:5000");
            CHECK(p.say.text == "hello");
            p.peer.close();
            w.pump();
        }
    });
}

TEST_CASE("TLS: what came with the header waits where the session has to be heard first") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor, {.deaf_while_sending = true});
        tls_echo(w.handler);
        netio::listen_options how;
        how.proxy = netio::proxy_mode::required;
        w.listen_tls(how);
        tls_peer p;
        p.peer = w.connect();
        p.peer.window(5);
        p.peer.send(tls_records({std::string(tls_proxy_header), p.say.hello()}));
        p.peer.send(p.say.finish());
        for (int round = 0; round < 20; ++round) {
            p.pump(w);
        }
        p.peer.send(p.say.data("hello"));
        for (int round = 0; round < 20; ++round) {
            p.pump(w);
        }
        CHECK(p.say.text == "hello");
        CHECK(p.say.clean());
    });
}

TEST_CASE("TLS: bytes behind a PROXY header that go beyond the handshake's begin are no session") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor, {.by_pieces = true});
        netio::listen_options how;
        how.proxy = netio::proxy_mode::required;
        w.listen_tls(how);
        tls_peer p;
        p.peer = w.connect();
        p.peer.send(tls_records({std::string(tls_proxy_header), p.say.hello(), p.say.finish(),
                                 p.say.data("slipped"), p.say.data("in")}));
        p.pump(w);
        CHECK(p.peer.finished());
        p.peer.close();
        w.pump();
        CHECK(w.closed_by(close_kind::tls_failed) == 1);
        CHECK(w.handler.log.empty());
    });
}

TEST_CASE("TLS: empty records are worked off, a space's worth an event, and no handler hears") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        tls_echo(w.handler);
        w.listen_tls();
        tls_peer p = tls_joined(w);
        const std::uint64_t turns = w.server->stats().counts.turns;
        for (int at = 0; at < 2000; ++at) {
            p.peer.send(p.say.data(""));
        }
        p.peer.send(p.say.data("x"));
        std::uint64_t used = 0;
        for (; p.say.text.empty() && used < 1000; ++used) {
            w.server->run_once(0);
            p.say.take(p.peer.take_text());
        }
        CHECK(w.server->stats().counts.turns - turns >= 2000 * 5 / w.tls.how.space_bytes);
        CHECK(p.say.text == "x");
        CHECK(w.handler.count("data 1") == 1);
        CHECK(w.handler.log.size() == 2);
    });
}

TEST_CASE("TLS: an adopted socket has no listener, so it is plain") {
    tls_world w(false);
    tls_echo(w.handler);
    w.listen_tls();
    auto made = w.net.connected_pair();
    REQUIRE(w.server->adopt(made.handle));
    w.pump();
    made.peer.send("hello");
    w.pump();
    CHECK(made.peer.take_text() == "hello");
    CHECK(w.tls.opened == 0);
    made.peer.close();
    w.pump();
}

TEST_CASE("TLS: a slow handshake ends by the preface's one deadline and holds no buffer") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.listen_tls();
        tls_peer p;
        p.peer = w.connect();
        const std::string hello = p.say.hello();
        for (int at = 0; at < 4; ++at) {
            p.peer.send(hello.substr(static_cast<std::size_t>(at), 1));
            w.pass(1'000);
            for (const netio::pool_stats& pool : w.server->stats().pools) {
                CHECK((std::string_view(pool.name).find("buffers") == std::string_view::npos ||
                       pool.in_use == 0));
            }
        }
        CHECK(w.server->stats().open == 1);
        w.pass(1'100);
        CHECK(w.server->stats().open == 0);
        CHECK(p.peer.was_reset());
        CHECK(w.closed_by(close_kind::preface_timeout) == 1);
        CHECK(w.handler.log.empty());
    });
}

TEST_CASE("TLS: clients beyond the sessions are refused as busy, and counted") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor, {.sessions_max = 2});
        w.listen_tls();
        tls_peer first = tls_joined(w);
        tls_peer second = tls_joined(w);
        sim_peer third = w.connect();
        CHECK(third.was_reset());
        CHECK(w.last_reason().kind == close_kind::refused);
        CHECK(w.last_reason().cause() == netio::refusal_cause::busy);
        CHECK(w.server->stats().counts.refused_by[static_cast<std::size_t>(
                  netio::refusal_cause::busy)] == 1);
        first.peer.close();
        w.pump();
        tls_peer fourth = tls_joined(w);
        CHECK(w.handler.opened == 3);
    });
}

TEST_CASE("TLS: a FIN without close_notify is no end in order") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.send(p.say.data("a request that is cut"));
        p.peer.shutdown();
        p.pump(w);
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::tls_failed);
        CHECK(w.handler.reasons[0].code() == toy_tls::truncated);
        CHECK(w.handler.count("end") == 0);
        CHECK(w.handler.count("data 21") == 1);
        char line[64];
        CHECK(netio::describe(w.handler.reasons[0], line) == "tls_failed(1)");
    });
}

TEST_CASE("TLS: a policy whose protocol knows its own end may take a FIN for it") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor, {.ends_itself = true});
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.send(p.say.data("all of it"));
        p.peer.shutdown();
        p.pump(w);
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::handler_closed);
        CHECK(w.handler.count("end") == 1);
    });
}

TEST_CASE("TLS: a close after the peer's FIN waits for nothing, whatever the session still holds") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor, {.space_bytes = 4000});
        netio::connection_id id;
        w.handler.data = [&](netio::connection& c, netio::bytes) {
            id = c.id();
            static_cast<void>(c.write(std::string(100, 'b')));
            c.pause();
            return std::size_t{0};
        };
        w.handler.posted = [](netio::connection& c, std::uint64_t) { c.close(); };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        std::string stream;
        for (int at = 0; at < 8; ++at) {
            stream += p.say.data(tls_pattern(250));
        }
        p.peer.send(stream);
        p.peer.shutdown();
        p.pump(w);
        CHECK(w.handler.closed == 0);
        w.server->post(id, 1);
        p.pump(w);
        CHECK(p.say.ended);
        CHECK(w.handler.closed == 1);
    });
}

TEST_CASE("TLS: half a record and a FIN is no end, whatever the protocol") {
    tls_world w(false, {.ends_itself = true});
    w.listen_tls();
    tls_peer p = tls_joined(w);
    const std::string record = p.say.data("cut in the middle");
    p.peer.send(record.substr(0, record.size() - 1));
    p.peer.shutdown();
    p.pump(w);
    REQUIRE(w.handler.closed == 1);
    CHECK(w.handler.reasons[0].kind == close_kind::tls_failed);
    CHECK(w.handler.count("end") == 0);
}

TEST_CASE("TLS: who leaves in mid-handshake gives its session back") {
    on_both_kernels([](bool proactor) {
        for (const int way : {0, 1, 2, 3}) {
            tls_world w(proactor);
            w.listen_tls();
            tls_peer p;
            p.peer = w.connect();
            if (way != 0) {
                p.peer.send(p.say.hello());
                p.pump(w);
            }
            CHECK(w.tls.in_use() == 1);
            if (way == 3) {
                p.peer.reset();
            } else if (way == 2) {
                p.peer.shutdown();
            } else {
                p.peer.close();
            }
            w.pump();
            CHECK(w.tls.in_use() == 0);
            CHECK(w.closed_by(way == 0   ? close_kind::peer_closed
                              : way == 3 ? close_kind::peer_reset
                                         : close_kind::tls_failed) == 1);
            CHECK(w.handler.log.empty());
        }
    });
}

TEST_CASE("TLS: a client that leaves before its first byte is no failure, behind PROXY either") {
    on_both_kernels([](bool proactor) {
        for (const bool proxied : {false, true}) {
            for (const bool said : {false, true}) {
                tls_world w(proactor);
                netio::listen_options how;
                how.proxy = proxied ? netio::proxy_mode::required : netio::proxy_mode::off;
                w.listen_tls(how);
                sim_peer peer = w.connect();
                toy_client say;
                peer.send(std::string(proxied ? tls_proxy_header : "") +
                          (said ? say.hello().substr(0, 3) : ""));
                w.pump();
                peer.shutdown();
                w.pump();
                CHECK(w.last_reason().kind == (said ? close_kind::tls_failed
                                                    : close_kind::peer_closed));
            }
        }
    });
}

TEST_CASE("TLS: plain text on a TLS port gets an alert, then FIN, and no handler") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.listen_tls();
        tls_peer p;
        p.peer = w.connect();
        p.peer.send(std::string("\1\0\3GET / HTTP/1.1\r\n\r\n", 22));
        p.pump(w);
        CHECK(p.say.alert == toy_tls::bad_record);
        CHECK(p.peer.finished());
        CHECK_FALSE(p.peer.was_reset());
        CHECK(w.server->stats().open == 1);  // for a second, so that the alert can be read
        p.peer.close();
        w.pump();
        CHECK(w.closed_by(close_kind::tls_failed) == 1);
        CHECK(w.handler.log.empty());
    });
}

TEST_CASE("TLS: whoever keeps a failed handshake open is reset after a second") {
    tls_world w(false);
    w.listen_tls();
    tls_peer p;
    p.peer = w.connect();
    p.peer.send(std::string(40, '\0'));
    p.pump(w);
    CHECK(p.say.alert != 0);
    w.pass(1'100);
    CHECK(p.peer.was_reset());
    CHECK(w.server->stats().open == 0);
    CHECK(w.closed_by(close_kind::tls_failed) == 1);
}

TEST_CASE("TLS: a bad record ends an open connection with an alert and drops what was queued") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string(2000, 'x'));
            return in.size();
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.window(64);
        p.peer.send(p.say.data("go on"));
        w.pump();
        std::string bad = p.say.data("changed on its way");
        bad[8] = static_cast<char>(bad[8] ^ 1);
        p.peer.send(bad);
        w.pump();
        p.peer.window(64 * 1024);
        p.pump(w);
        p.pump(w);
        CHECK(p.say.alert == toy_tls::bad_record);
        CHECK(p.say.clean());
        CHECK(p.say.text.size() < 2000);
        CHECK_FALSE(p.say.ended);
        p.peer.close();
        w.pump();
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::tls_failed);
        CHECK(w.handler.reasons[0].code() == toy_tls::bad_record);
        CHECK(w.handler.count("data 18") == 0);
    });
}

TEST_CASE("TLS: a slow reader holds the handler back, and gets every byte once") {
    on_both_kernels([](bool proactor) {
        for (const bool moves : {false, true}) {
            tls_world w(proactor);
            w.handler.data = [moves](netio::connection& c, netio::bytes in) {
                return moves ? c.move_input_to(c) : c.write(in);
            };
            w.listen_tls();
            tls_peer p = tls_joined(w);
            p.peer.window(50);
            const std::string text = tls_pattern(20'000);
            std::string stream;
            for (std::size_t at = 0; at < text.size(); at += 250) {
                stream += p.say.data(std::string_view(text).substr(at, 250));
            }
            std::size_t sent = 0;
            for (int round = 0; round < 20'000 && p.say.text.size() < text.size(); ++round) {
                sent += p.peer.send(std::string_view(stream).substr(sent));
                w.pump(3);
                p.say.take(p.peer.take_text());
            }
            CHECK((p.say.text == text));
            CHECK(p.say.clean());
        }
    });
}

TEST_CASE("TLS: static output of any length goes out record by record, and on_writable comes") {
    on_both_kernels([](bool proactor) {
        static const std::string large = tls_pattern(100'000);
        tls_world w(proactor);
        std::uint32_t queued = 0;
        const auto fill = [&](netio::connection& c) {
            while (queued != 12 && c.write_static(large)) {
                ++queued;
            }
        };
        w.handler.open = fill;
        w.handler.writable = fill;
        w.listen_tls();
        tls_peer p = tls_joined(w);
        for (int round = 0; round < 4000 && p.say.text.size() < 12 * large.size(); ++round) {
            p.pump(w);
        }
        CHECK(queued == 12);
        CHECK(p.say.text.size() == 12 * large.size());
        CHECK((p.say.text.substr(11 * large.size()) == large));
        CHECK(w.handler.count("writable") != 0);
    });
}

TEST_CASE("TLS: a message of more records than one is offered again with more, and whole") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        std::string whole;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            if (in.size() < 900) {
                return std::size_t{0};
            }
            whole = netio::as_text(in);
            return c.write(in);
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        const std::string text = tls_pattern(900);
        for (std::size_t at = 0; at < text.size(); at += 100) {
            p.peer.send(p.say.data(std::string_view(text).substr(at, 100)));
            p.pump(w);
        }
        CHECK((whole == text));
        CHECK((p.say.text == text));
    });
}

TEST_CASE("TLS: what is left in the window makes room for what comes") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        std::string got;
        w.handler.data = [&](netio::connection&, netio::bytes in) {
            const std::size_t count = in.size() < 1000 ? 0 : 500;
            got += netio::as_text(in.first(count));
            return count;
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        const std::string text = tls_pattern(5000);
        for (std::size_t at = 0; at < text.size(); at += 250) {
            p.peer.send(p.say.data(std::string_view(text).substr(at, 250)));
            p.pump(w);
        }
        CHECK((got == text.substr(0, 4500)));
    });
}

TEST_CASE("TLS: who sends a record now and then is not idle") {
    tls_world w(false);
    w.listen_tls();
    tls_peer p = tls_joined(w);
    for (int at = 0; at < 4; ++at) {
        w.pass(40'000);
        p.peer.send(p.say.data("still here"));
        p.pump(w);
    }
    CHECK(w.handler.count("deadline") == 0);
    w.pass(61'000);
    CHECK(w.handler.count("deadline") == 1);
}

TEST_CASE("TLS: a record that trickles in, and empty ones, are no activity") {
    for (const bool empty : {false, true}) {
        tls_world w(false);
        w.listen_tls();
        tls_peer p = tls_joined(w);
        const std::string record = empty ? "" : p.say.data(tls_pattern(100));
        for (std::size_t at = 0; at < 7 && w.handler.closed == 0; ++at) {
            CHECK(at < 6);
            p.peer.send(empty ? p.say.data("") : record.substr(at, 1));
            w.pass(10'500);
        }
        CHECK(w.handler.count("deadline") == 1);
    }
}

TEST_CASE("TLS: what a session answers of itself is no activity, the last answer's end is") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        tls_echo(w.handler);
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.window(60);
        p.peer.send(p.say.data(tls_pattern(100)));
        w.pass(25'000);
        p.pump(w);  // the rest is taken only now
        p.pump(w);
        CHECK(p.say.text.size() == 100);
        w.pass(59'000);
        CHECK(w.handler.count("deadline") == 0);
        w.pass(2'000);
        CHECK(w.handler.count("deadline") == 1);

        tls_peer asking = tls_joined(w);
        for (int at = 0; at < 7 && w.handler.closed < 2; ++at) {
            CHECK(at < 6);
            asking.peer.send(asking.say.ask());
            asking.pump(w);
            w.pass(10'500);
        }
        CHECK(asking.say.told == 6);
        CHECK(w.handler.count("deadline") == 2);
    });
}

TEST_CASE("TLS: a message that is too long for the window ends as input_too_long") {
    tls_world w(false);
    w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
    w.listen_tls();
    tls_peer p = tls_joined(w);
    for (int at = 0; at < 6; ++at) {
        p.peer.send(p.say.data(tls_pattern(250)));
        p.pump(w);
    }
    REQUIRE(w.handler.closed == 1);
    CHECK(w.handler.reasons[0].kind == close_kind::input_too_long);
}

TEST_CASE("TLS: a paused connection takes no more, and goes on where it stood") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        netio::connection_id id;
        std::string got;
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            c.pause();
        };
        w.handler.data = [&](netio::connection&, netio::bytes in) {
            got += netio::as_text(in);
            return in.size();
        };
        w.handler.posted = [](netio::connection& c, std::uint64_t) { c.resume(); };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.send(p.say.data("while it"));
        p.peer.send(p.say.data(" slept"));
        p.peer.send(p.say.close());
        p.pump(w);
        CHECK(got.empty());
        CHECK(w.handler.count("end") == 0);
        w.server->post(id, 1);
        p.pump(w);
        CHECK(got == "while it slept");
        CHECK(w.handler.count("end") == 1);
        CHECK(p.say.ended);
    });
}

TEST_CASE("TLS: what came before a bad record is offered first, also after a pause") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        netio::connection_id id;
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            c.pause();
        };
        w.handler.posted = [](netio::connection& c, std::uint64_t) { c.resume(); };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.send(tls_records({p.say.data("good"), std::string("\4\0\1abc", 6)}));
        p.pump(w);
        w.server->post(id, 1);
        p.pump(w);
        CHECK(w.handler.count("data 4") == 1);
        CHECK(p.say.alert == toy_tls::bad_record);
        p.peer.close();
        w.pump();
        CHECK(w.handler.reasons.at(0).kind == close_kind::tls_failed);
    });
}

TEST_CASE("TLS: end says close_notify and FIN, and what the peer still sends is read") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            if (!netio::as_text(in).starts_with("more")) {
                c.write("bye");
                c.end();
            }
            return in.size();
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.send(p.say.data("hello"));
        p.pump(w);
        CHECK(p.say.text == "bye");
        CHECK(p.say.ended);
        CHECK(p.peer.finished());
        CHECK(w.handler.closed == 0);
        p.peer.send(p.say.data("more of it"));
        p.pump(w);
        CHECK(w.handler.count("data 10") == 1);
        p.peer.send(p.say.close());
        p.pump(w);
        CHECK(w.handler.count("end") == 1);
        CHECK(w.handler.closed == 1);
        CHECK(p.say.clean());
    });
}

TEST_CASE("TLS: what a session answers behind the end is dropped, and the peer is read on") {
    const toy_options sessions[] = {
        {}, {.deaf_while_sending = true}, {.works_late = true},
        {.deaf_while_sending = true, .part_max = 4}};
    for (const toy_options& toy : sessions) {
        CAPTURE(&toy - sessions);
        on_both_kernels([&](bool proactor) {
            tls_world w(proactor, toy);
            w.handler.open = [](netio::connection& c) { c.end(); };
            w.handler.end = [](netio::connection&) {};
            netio::listen_options how;
            how.times.write_ms = 500;
            how.times.idle_ms = how.times.read_ms = 0;  // what is stuck stays
            w.listen_tls(how);
            tls_peer p = tls_joined(w);
            CHECK(p.say.ended);
            CHECK(p.peer.finished());
            const std::uint64_t bytes_out = w.server->stats().counts.bytes_out;
            for (int round = 0; round < 400; ++round) {  // more than a session has room for
                p.peer.send(p.say.ask());
                p.pump(w);
            }
            p.peer.send(tls_records({p.say.ask(), p.say.data("still heard")}));
            p.pump(w);
            CHECK(w.handler.count("data 11") == 1);
            CHECK(w.server->stats().counts.bytes_out == bytes_out);
            w.pass(2000);  // nothing waits to be sent: no write deadline
            CHECK(w.handler.closed == 0);
            p.peer.send(tls_records({p.say.ask(), p.say.close()}));
            p.pump(w);
            CHECK(w.handler.count("end") == 1);
            REQUIRE(w.handler.closed == 1);
            CHECK(p.say.clean());
            CHECK(p.say.told == 0);
        });
    }
}

TEST_CASE("TLS: a session whose send failed is heard to its end, whatever it has left to say") {
    const toy_options sessions[] = {
        {}, {.deaf_while_sending = true}, {.deaf_while_sending = true, .works_late = true}};
    for (const toy_options& toy : sessions) {
        CAPTURE(&toy - sessions);
        on_both_kernels([&](bool proactor) {
            tls_world w(proactor, toy);
            netio::connection_id id;
            w.handler.open = [&](netio::connection& c) { id = c.id(); };
            w.handler.posted = [](netio::connection& c, std::uint64_t) { c.write("lost"); };
            netio::listen_options how;
            how.times.idle_ms = how.times.read_ms = 0;
            w.listen_tls(how);
            tls_peer p = tls_joined(w);
            w.net.options.with(netio_test::sim_fault::send_error, 1024);
            w.server->post(id, 1);
            w.pump();
            CHECK(w.handler.closed == 0);
            for (int round = 0; round < 3; ++round) {
                p.peer.send(tls_records({p.say.ask(), p.say.data("heard")}));
                w.pump();
            }
            CHECK(w.handler.count("data 5") == 3);
            p.peer.reset();
            w.pump();
            CHECK(w.handler.closed == 1);
        });
    }
}

TEST_CASE("TLS: a record that breaks the protocol behind the end is no reason to send") {
    for (const bool in_sum : {false, true}) {
        on_both_kernels([in_sum](bool proactor) {
            tls_world w(proactor);
            w.handler.open = [](netio::connection& c) { c.end(); };
            w.listen_tls();
            tls_peer p = tls_joined(w);
            CHECK(p.peer.finished());
            std::string record = in_sum ? p.say.data("x") : p.say.finish();
            if (in_sum) {
                record[3] = static_cast<char>(record[3] ^ 1);
            }
            p.peer.send(record);
            p.pump(w);
            w.pass(2000);
            p.pump(w);
            REQUIRE(w.handler.closed == 1);
            CHECK(w.handler.reasons[0].kind == close_kind::tls_failed);
            CHECK(p.say.alert == 0);
            CHECK(p.say.clean());
        });
    }
}

TEST_CASE("TLS: close flushes, says close_notify, and needs no answer to it") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string(3000, 'y'));
            c.close();
            return in.size();
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.send(p.say.data("go"));
        p.pump(w);
        CHECK(p.say.text == std::string(3000, 'y'));
        CHECK(p.say.ended);
        CHECK(p.peer.finished());
        p.peer.close();
        w.pump();
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::handler_closed);
    });
}

TEST_CASE("TLS: where the peer's close_notify ends both ways, the rest of the output is dropped") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor, {.closes_both = true});
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string(3000, 'z'));
            return in.size();
        };
        w.handler.end = [](netio::connection& c) { CHECK(c.write("too late") == 0); };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.window(100);
        p.peer.send(p.say.data("go"));
        w.pump();
        p.peer.send(p.say.close());
        w.pump();
        p.peer.window(64 * 1024);
        p.pump(w);
        CHECK(p.say.ended);
        CHECK(p.say.clean());
        CHECK(p.say.text.size() < 3000);
        CHECK(p.peer.finished());
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::peer_closed);
    });
}

TEST_CASE("TLS: what a session will never take is dropped, and holds up no end") {
    on_both_kernels([](bool proactor) {
        netio::listen_options how;
        how.times.write_ms = 0;  // nothing else would end it
        {
            CAPTURE("the peer's end, where ours was asked for");
            tls_world w(proactor, {.closes_both = true});
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.write(std::string(3000, 'z'));
                c.end();
                return in.size();
            };
            w.listen_tls(how);
            tls_peer p = tls_joined(w);
            p.peer.window(100);
            p.peer.send(p.say.data("go"));
            w.pump();
            p.peer.send(p.say.close());
            w.pump();
            p.peer.window(64 * 1024);
            p.pump(w);
            CHECK(p.say.clean());
            CHECK(p.peer.finished());
            CHECK(w.handler.closed == 1);
        }
        {
            CAPTURE("the peer's end, while it was paused");
            tls_world w(proactor, {.closes_both = true});
            netio::connection_id id;
            w.handler.open = [&](netio::connection& c) {
                id = c.id();
                c.pause();
            };
            w.handler.posted = [](netio::connection& c, std::uint64_t) {
                c.write("too late");
                c.close();
            };
            w.listen_tls(how);
            tls_peer p = tls_joined(w);
            p.peer.send(p.say.close());
            p.pump(w);
            w.server->post(id, 1);
            p.pump(w);
            CHECK(p.say.text.empty());
            CHECK(p.peer.finished());
            p.peer.close();
            w.pump();
            CHECK(w.handler.closed == 1);
        }
        {
            CAPTURE("a bad record behind a request whose answer is the last one");
            tls_world w(proactor);
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                c.write("answer");
                c.close();
                return in.size();
            };
            w.listen_tls(how);
            tls_peer p = tls_joined(w);
            p.peer.send(tls_records({p.say.data("go"), std::string("\4\0\1abc", 6)}));
            p.pump(w);
            CHECK(p.say.alert == toy_tls::bad_record);
            CHECK(p.peer.finished());
            p.peer.close();
            w.pump();
            CHECK(w.handler.closed == 1);
        }
    });
}

TEST_CASE("TLS: a kill sends nothing more, and gives the session back when the kernel is done") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        netio::connection_id id;
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            c.write(std::string(2500, 'k'));
        };
        w.listen_tls();
        tls_peer p;
        p.peer = w.connect();
        p.peer.window(70);
        p.shake_hands(w);
        w.pump();
        w.server->kill(id, 5);
        w.pump();
        CHECK(p.peer.was_reset());
        CHECK(w.tls.in_use() == 0);
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::killed);
    });
}

TEST_CASE("TLS: a peer that takes nothing of the last record meets the write deadline") {
    tls_world w(false);
    netio::deadline_kind met{};
    w.handler.deadline = [&](netio::connection& c, netio::deadline_kind which) {
        met = which;
        c.kill();
    };
    w.handler.data = [](netio::connection& c, netio::bytes in) {
        c.write(std::string(200, 'w'));
        return in.size();
    };
    netio::listen_options how;
    how.times.idle_ms = 90'000;
    how.times.rate_out = 0;
    w.listen_tls(how);
    tls_peer p = tls_joined(w);
    p.peer.window(10);
    p.peer.send(p.say.data("go"));
    w.pump();
    w.pass(31'000);
    CHECK(w.handler.count("deadline") == 1);
    CHECK(met == netio::deadline_kind::write);
}

TEST_CASE("TLS: a drain ends handshakes at once, and waits for answers under way") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string(1000, 'd'));
            return in.size();
        };
        w.listen_tls();
        tls_peer shaking;
        shaking.peer = w.connect();
        tls_peer served = tls_joined(w);
        tls_peer idle = tls_joined(w);
        served.peer.window(90);
        served.peer.send(served.say.data("go"));
        w.pump();
        w.server->drain(10'000);
        w.pump();
        idle.say.take(idle.peer.take_text());
        CHECK(idle.say.ended);
        idle.peer.close();
        CHECK(shaking.peer.finished());
        CHECK_FALSE(served.peer.finished());
        served.peer.window(64 * 1024);
        served.pump(w);
        CHECK(served.say.text.size() == 1000);
        CHECK(served.say.ended);
        served.peer.close();
        w.pump();
        CHECK(w.server->stats().open == 0);
    });
}

TEST_CASE("TLS: where its lane is shed a handshake ends at once") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor);
        w.listen_tls();
        tls_peer shaking;
        shaking.peer = w.connect();
        shaking.peer.send(shaking.say.hello());
        shaking.pump(w);
        tls_peer idle = tls_joined(w);
        CHECK(w.server->control(netio::control_state::shed, 0) == netio::error::none);
        w.pump();
        idle.say.take(idle.peer.take_text());
        CHECK(idle.say.ended);
        idle.peer.close();
        CHECK(shaking.peer.was_reset());
        w.pump();
        CHECK(w.handler.opened == 1);
        CHECK(w.server->stats().open == 0);
    });
}

TEST_CASE("TLS: input that found no buffer waits in its session, and comes when one is free") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = netio_test::small_limits;
        sizes.input_buffers_max = 1;
        tls_world w(proactor, {}, {}, 1, sizes);
        bool holds = true;
        netio::connection_id first_id;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            if (holds && !first_id) {
                first_id = c.id();
            }
            return holds && c.id() == first_id ? 0 : c.write(in);
        };
        w.handler.posted = [&](netio::connection& c, std::uint64_t) {
            holds = false;
            c.resume();
        };
        w.listen_tls();
        tls_peer first = tls_joined(w);
        tls_peer second = tls_joined(w);
        first.peer.send(first.say.data("first"));
        first.pump(w);
        second.peer.send(second.say.data("second"));
        second.pump(w);
        CHECK(second.say.text.empty());
        w.server->post(first_id, 1);
        first.pump(w);
        second.pump(w);
        CHECK(first.say.text == "first");
        CHECK(second.say.text == "second");
    });
}

namespace {

/// Revokes on demand; answers if it has an answer.
struct tls_gate {
    bool refuses = false;
    bool denies = false;
    std::string_view answer;
    std::uint64_t checked_bytes = 0;
    std::uint64_t last_bytes = 0;
    std::uint32_t checks = 0;

    netio::verdict admit(const netio::connection&) noexcept {
        return refuses ? netio::verdict::refuse(4, "no\r\n") : netio::verdict::allow();
    }
    netio::egress check(const netio::connection&, const netio::write_facts& facts) noexcept {
        ++checks;
        checked_bytes += facts.byte_count;
        last_bytes = facts.byte_count;
        return denies ? netio::egress::deny(9, answer) : netio::egress::allow();
    }
};
using tls_gated_world = basic_tls_world<tls_gate>;

}  // namespace

TEST_CASE("TLS: who is refused before the handshake gets no plaintext, but a reset") {
    on_both_kernels([](bool proactor) {
        tls_gated_world w(proactor);
        w.gate.refuses = true;
        w.listen_tls();
        sim_peer peer = w.connect();
        CHECK(peer.take_text().empty());
        CHECK(peer.was_reset());
        CHECK(w.tls.opened == 0);
    });
}

TEST_CASE("TLS: what the gate denies is neither sent nor encrypted; its answer is a record") {
    on_both_kernels([](bool proactor) {
        for (const bool answers : {false, true}) {
            tls_gated_world w(proactor);
            tls_echo(w.handler);
            w.listen_tls();
            tls_peer p = tls_joined(w);
            CHECK(w.gate.checks == 0);  // the handshake is nobody's output
            p.peer.send(p.say.data("first"));
            p.pump(w);
            CHECK(p.say.text == "first");
            CHECK(w.gate.checked_bytes == 5);
            w.gate.denies = true;
            w.gate.answer = answers ? "denied" : "";
            const std::uint64_t writes = w.tls.writes;
            p.peer.send(p.say.data("second"));
            p.pump(w);
            CHECK(p.say.text == (answers ? "firstdenied" : "first"));
            CHECK(p.say.ended == answers);
            CHECK(p.say.clean());
            CHECK(p.peer.was_reset() != answers);
            CHECK(w.tls.writes == writes + (answers ? 1 : 0));
            p.peer.close();
            w.pump();
            CHECK(w.handler.reasons.at(0).kind == close_kind::egress_denied);
        }
    });
}

TEST_CASE("TLS: no ciphertext leaves a revoked connection, be it allowed before") {
    on_both_kernels([](bool proactor) {
        tls_gated_world w(proactor);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::string(2000, 'r'));
            return in.size();
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.window(100);
        p.peer.send(p.say.data("go"));
        w.pump();
        CHECK(w.gate.last_bytes == 2000 - 300 + 305 - 100);  // plaintext, and a record's rest
        w.gate.denies = true;
        w.gate.answer = "not behind half a record";
        const std::string before = p.peer.take_text();
        w.pump();
        const std::string after = p.peer.take_text();
        CHECK(before.size() == 100);
        CHECK(after.size() <= 100);  // the send that the gate allowed was with the kernel
        CHECK(p.peer.was_reset());
        CHECK(w.handler.reasons.at(0).kind == close_kind::egress_denied);
    });
}

namespace {

/// Asks for what was negotiated to the last.
struct tls_asking_gate {
    toy_tls* tls = nullptr;
    std::uint32_t told = 0;

    netio::verdict admit(const netio::connection&) noexcept { return netio::verdict::allow(); }
    void closed(const netio::connection& c, netio::close_reason) noexcept {
        ++told;
        REQUIRE(c.tls_session() != 0);
        CHECK(tls->status(c.tls_session()) == netio::tls_status::open);
    }
};

}  // namespace

TEST_CASE("TLS: a session is there until everybody was told of its end, the gate last") {
    on_both_kernels([](bool proactor) {
        basic_tls_world<tls_asking_gate> w(proactor);
        w.gate.tls = &w.tls;
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.kill();
            return in.size();
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        p.peer.send(p.say.data("go"));
        w.pump();
        CHECK(w.gate.told == 1);
        CHECK(w.tls.in_use() == 0);
    });
}

TEST_CASE("TLS: seeds: whatever the network does, bytes come once and in order, sessions go back") {
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
        CAPTURE(seed);
        netio_test::sim_seed_shown = seed;
        netio_test::sim_chooser choose(seed);
        netio_test::sim_options net = netio_test::sim_options::swarm(choose);
        const toy_options how{.sessions_max = 4,
                              .record_max = 1 + choose.below(300),
                              .space_bytes = 320 + choose.below(400),
                              .by_pieces = choose.below(2) == 1,
                              .deaf_while_sending = choose.below(2) == 1,
                              .closes_both = choose.below(2) == 1};
        tls_world w(net.proactor, how, net, seed);
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            return choose.below(2) == 0 ? c.write(in) : c.move_input_to(c);
        };
        w.listen_tls();
        std::vector<tls_peer> peers;
        std::vector<std::string> said;
        std::vector<std::string> pending;
        for (int round = 0; round < 300; ++round) {
            if (peers.size() < 6 && choose.below(4) == 0) {
                peers.emplace_back();
                peers.back().peer = w.net.connect(w.port);
                said.emplace_back();
                pending.push_back(
                    tls_records({peers.back().say.hello(), peers.back().say.finish()}));
            }
            if (!peers.empty()) {
                const std::size_t at = choose.below(static_cast<std::uint32_t>(peers.size()));
                tls_peer& p = peers[at];
                const std::uint32_t dice = choose.below(40);
                if (dice < 20 && pending[at].size() < 2000) {
                    const std::string text = tls_pattern(1 + choose.below(250));
                    said[at] += text;
                    pending[at] += p.say.data(text);
                } else if (dice == 20) {
                    p.peer.reset();
                } else if (dice == 21) {
                    p.peer.shutdown();
                } else if (dice == 22 && !pending[at].empty()) {
                    pending[at].back() = static_cast<char>(pending[at].back() ^ 1);
                }
                const std::size_t most = 1 + choose.below(600);
                const std::size_t sent = p.peer.send(std::string_view(pending[at]).substr(0, most));
                pending[at].erase(0, sent);
            }
            w.pump(1 + choose.below(4));
            for (tls_peer& each : peers) {
                if (choose.below(3) == 0) {
                    each.say.take(each.peer.take_text());
                }
            }
        }
        w.pass(200'000);
        for (std::size_t at = 0; at < peers.size(); ++at) {
            peers[at].say.take(peers[at].peer.take_text());
            CHECK_FALSE(peers[at].say.bad);
            CHECK(said[at].starts_with(peers[at].say.text));
        }
        CHECK(w.server->stats().open == 0);
    }
}

TEST_CASE("TLS: a calm network: all that was said comes back, whatever the sizes") {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
        CAPTURE(seed);
        netio_test::sim_seed_shown = seed;
        netio_test::sim_chooser choose(seed);
        netio_test::sim_options net;
        net.with(netio_test::sim_fault::short_read, static_cast<std::uint16_t>(choose.below(300)))
            .with(netio_test::sim_fault::short_write, static_cast<std::uint16_t>(choose.below(300)))
            .with(netio_test::sim_fault::late_event, static_cast<std::uint16_t>(choose.below(300)))
            .with(netio_test::sim_fault::stall, static_cast<std::uint16_t>(choose.below(300)));
        net.window_bytes = 1u << (6 + choose.below(10));
        const bool by_pieces = choose.below(2) == 1;
        tls_world w(choose.below(2) == 1,
                    {.record_max = 1 + choose.below(300), .by_pieces = by_pieces}, net, seed);
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            return choose.below(2) == 0 ? c.write(in) : c.move_input_to(c);
        };
        w.listen_tls();
        tls_peer p;
        p.peer = w.net.connect(w.port);
        const std::string text = tls_pattern(1 + choose.below(8000));
        std::string stream = tls_records({p.say.hello(), p.say.finish()});
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t count = 1 + choose.below(250);
            stream += p.say.data(std::string_view(text).substr(at, count));
            at += count;
        }
        stream += p.say.close();
        std::size_t sent = 0;
        for (int round = 0; round < 60'000 && !p.peer.finished(); ++round) {
            sent += p.peer.send(std::string_view(stream).substr(sent, 1 + choose.below(700)));
            w.server->run_once(1);
            p.say.take(p.peer.take_text());
        }
        p.say.take(p.peer.take_text());
        CHECK((p.say.text == text));
        CHECK(p.say.ended);
        CHECK(p.say.clean());
        CHECK(w.handler.count("end") == 1);
        p.peer.close();
    }
}

TEST_CASE("TLS: a probe sees what waits in the session, and the end that it knows") {
    on_both_kernels([](bool proactor) {
        tls_world w(proactor, {.space_bytes = 4'000});
        netio::connection_id id{};
        netio::probed found{};
        std::size_t got = 0;
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            got += in.size();
            c.pause();
            return in.size();
        };
        w.handler.posted = [&](netio::connection& c, std::uint64_t resumes) {
            found = c.probe().found;
            if (resumes != 0) {
                c.resume();
            }
        };
        const auto probe = [&](std::uint64_t resumes = 0) {
            CHECK(w.server->post(id, resumes));
            w.pump();
            return found;
        };
        w.listen_tls();
        tls_peer p = tls_joined(w);
        CHECK(probe() == netio::probed::idle);
        std::string records;
        for (int each = 0; each < 6; ++each) {
            records += p.say.data(std::string(250, 'x'));
        }
        p.peer.send(records + p.say.close());
        p.pump(w);
        CHECK(got == 1'024);  // the window; the kernel has nothing left
        CHECK(probe(1) == netio::probed::readable);
        CHECK(got == 1'500);
        CHECK(probe(1) == netio::probed::peer_closed);
        CHECK(w.handler.count("end") == 1);
    });
}
