// The rows `TLS …` of the service's suite: sessions whose memory a real kernel reads and writes,
// with the toy of tests/toy_tls.hpp. What needs no kernel is in tests/server_tls_test.cpp.
#ifndef NETIO_TESTS_SERVICE_TLS_HPP
#define NETIO_TESTS_SERVICE_TLS_HPP

#include "tests/service_world.hpp"
#include "tests/toy_tls.hpp"

namespace netio_test {

template <class Backend>
struct service_tls {
    struct world : service_world<Backend, netio::allow_all, toy_tls> {
        using base = service_world<Backend, netio::allow_all, toy_tls>;
        explicit world(const toy_options& how = {}, std::uint64_t skip_ns = 0)
            : base(service_limits, skip_ns) {
            this->tls = toy_tls(how);
        }
        ~world() {
            this->check_nothing_held();
            CHECK(this->tls.in_use() == 0);
            CHECK(this->tls.wiped());
        }
        netio::endpoint listen_tls(netio::listen_options how = {}) {
            how.tls = netio::tls_mode::required;
            return this->listen(how);
        }
        bool until_gone() {
            return this->until([&] { return this->server().stats().open == 0; });
        }
        netio::close_reason last_reason() const { return this->events.all.back().reason; }
    };

    /// A client of the toy on a real socket.
    struct peer {
        client_socket socket;
        toy_client say;
        std::string unsent;
        std::size_t taken = 0;

        explicit peer(const netio::endpoint& to) : socket(to) {}

        void take() {
            const std::string& arrived = socket.arrived();
            say.take(std::string_view(arrived).substr(taken));
            taken = arrived.size();
            unsent.erase(0, unsent.empty() ? 0 : socket.send(unsent));
        }
        template <class Done>
        bool until(world& w, Done done) {
            return w.until([&] {
                take();
                return done();
            });
        }
        void shake_hands(world& w) {
            unsent += say.hello();
            CHECK(until(w, [&] { return say.answered; }));
            unsent += say.finish();
            CHECK(until(w, [&] { return say.open; }));
        }
    };

    static void echoes() {
        for (const bool moves : {false, true}) {
            world w({.by_pieces = moves});
            service_echo(w.handler, moves);
            peer p(w.listen_tls());
            p.shake_hands(w);
            const std::string text = service_pattern(60'000);
            for (std::size_t at = 0; at < text.size(); at += 250) {
                p.unsent += p.say.data(std::string_view(text).substr(at, 250));
            }
            p.unsent += p.say.close();
            CHECK(p.until(w, [&] { return p.say.ended; }));
            CHECK((p.say.text == text));
            CHECK(p.say.clean());
            CHECK(w.handler.count("end") == 1);
            p.socket.close();
            CHECK(w.until_gone());
        }
    }

    static void behind_proxy() {
        world w;
        service_echo(w.handler);
        std::string source;
        w.handler.open = [&](netio::connection& c) {
            REQUIRE(c.proxy_header() != nullptr);
            char line[netio::endpoint_text_max];
            source = netio::format(c.proxy_header()->source, line);
        };
        netio::listen_options how;
        how.proxy = netio::proxy_mode::required;
        peer p(w.listen_tls(how));
        p.unsent = "PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n";
        p.shake_hands(w);
        p.unsent += p.say.data("hello");
        CHECK(p.until(w, [&] { return p.say.text == "hello"; }));
        CHECK(source == "203.0.113.9:5000");
    }

    static void truncated() {
        world w;
        service_echo(w.handler);
        peer p(w.listen_tls());
        p.shake_hands(w);
        p.unsent += p.say.data("and then");
        CHECK(p.until(w, [&] { return p.say.text == "and then"; }));
        p.socket.shutdown();
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.at(0).kind == netio::close_kind::tls_failed);
        CHECK(w.handler.reasons.at(0).code() == toy_tls::truncated);
        CHECK(w.handler.count("end") == 0);
    }

    static void bad_record() {
        world w;
        service_echo(w.handler);
        peer p(w.listen_tls());
        p.shake_hands(w);
        p.unsent = std::string(40, 'x');
        p.unsent[1] = p.unsent[2] = '\0';
        CHECK(p.until(w, [&] { return p.say.alert == toy_tls::bad_record; }));
        CHECK(p.until(w, [&] { return p.socket.ended(); }));
        p.socket.close();
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.at(0).code() == toy_tls::bad_record);
    }

    static void too_many() {
        world w({.sessions_max = 3});
        service_echo(w.handler);
        const netio::endpoint at = w.listen_tls();
        for (int round = 0; round < 3; ++round) {
            std::vector<std::unique_ptr<peer>> peers;
            for (int count = 0; count < 10; ++count) {
                peers.push_back(std::make_unique<peer>(at));
            }
            CHECK(w.until([&] {
                return w.server().stats().counts.refused == static_cast<std::uint64_t>(
                                                                7 * (round + 1));
            }));
            CHECK(w.tls.in_use() == 3);
            peers.clear();
            CHECK(w.until_gone());
            CHECK(w.tls.in_use() == 0);
        }
        peer p(at);
        p.shake_hands(w);
    }

    static void slow_handshake() {
        world w({}, service_hurry);
        netio::listen_options how;
        peer p(w.listen_tls(how));
        p.unsent = p.say.hello().substr(0, 3);
        CHECK(p.until(w, [&] { return p.socket.over(); }));
        CHECK(p.socket.was_reset());
        CHECK(w.until_gone());
        CHECK(w.last_reason().kind == netio::close_kind::preface_timeout);
    }

    static void killed() {
        world w;
        netio::connection_id id;
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        const netio::endpoint at = w.listen_tls();
        peer first(at);
        first.shake_hands(w);
        CHECK(w.until([&] { return w.handler.opened == 1; }));
        w.server().kill(id, 3);
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.at(0).kind == netio::close_kind::killed);
        peer second(at);
        second.shake_hands(w);
        peer third(at);
        CHECK(w.until([&] { return w.tls.in_use() == 2; }));
    }  // the world stops
};

}  // namespace netio_test

#endif
