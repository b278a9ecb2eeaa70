// The rows `server …` of the service's suite: streams, listeners, deadlines, ends and threads.
#ifndef NETIO_TESTS_SERVICE_SERVER_HPP
#define NETIO_TESTS_SERVICE_SERVER_HPP

#include "tests/service_world.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace netio_test {

template <class Backend, service_offers Offers>
struct service_server {
    using world = service_world<Backend>;
    using kernel = service_kernel<Backend>;
    using kind = netio::close_kind;

    // ---- bytes

    static void echo_of_sizes() {
        for (const bool moves : {false, true}) {
            CAPTURE(moves);
            world w;
            service_echo(w.handler, moves);
            const netio::endpoint at = w.listen();
            std::uint32_t round = 0;
            for (const std::size_t size : {1u, 2u, 63u, 64u, 535u, 536u, 537u, 1023u, 1024u, 1025u,
                                           4096u, 65'536u, 500'000u}) {
                CAPTURE(size);
                const std::string text = service_pattern(size);
                client_socket client(at);
                CHECK(w.exchange(client, text) == text);
                client.shutdown();
                CHECK(w.until([&] { return client.over(); }));
                CHECK_FALSE(client.was_reset());
                CHECK(client.arrived() == text);
                client.close();
                REQUIRE(w.until_closed(++round));
                CHECK(w.handler.reasons.back().kind == kind::handler_closed);
            }
        }
    }

    static void echo_after_half_close() {
        world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen();
        const std::string text = service_pattern(100'000);
        client_socket client(at);
        std::size_t sent = 0;
        CHECK(w.until([&] {
            sent += sent < text.size() ? client.send(std::string_view(text).substr(sent)) : 0;
            return sent == text.size();
        }));
        client.shutdown();  // with most of it still on its way
        CHECK(w.until([&] { return client.over(); }));
        CHECK(client.arrived() == text);
        CHECK_FALSE(client.was_reset());
    }

    /// Writes what is left of `reply`, then closes.
    static void fill(netio::connection& c, const std::string& reply, std::size_t& written) {
        while (written < reply.size()) {
            const std::size_t more = c.write(std::string_view(reply).substr(written));
            if (more == 0) {
                return;
            }
            written += more;
        }
        c.close();
    }

    static void reply_after_end() {
        world w;
        const std::string reply = service_pattern(300'000);
        std::size_t written = 0;
        std::string request;
        w.handler.data = [&](netio::connection&, netio::bytes in) {
            request += text_of(in);
            return in.size();
        };
        w.handler.end = [&](netio::connection& c) { fill(c, reply, written); };
        w.handler.writable = w.handler.end;
        client_socket client(w.listen());
        CHECK(client.send("question") == 8);
        client.shutdown();  // request and end of stream are there before the accept
        CHECK(w.until([&] { return client.over(); }));
        CHECK(request == "question");
        CHECK(client.arrived() == reply);
        CHECK_FALSE(client.was_reset());
    }

    static void many_at_once() {
        for (const bool moves : {false, true}) {
            CAPTURE(moves);
            world w;
            service_echo(w.handler, moves);
            const netio::endpoint at = w.listen();
            std::vector<client_socket> clients(40);
            std::vector<std::string> texts(clients.size());
            std::vector<std::size_t> sent(clients.size());
            for (std::size_t each = 0; each < clients.size(); ++each) {
                clients[each] = client_socket(at);
                texts[each] = service_pattern(each * 700 + 1, static_cast<std::uint32_t>(each));
            }
            CHECK(w.until([&] {
                bool whole = true;
                for (std::size_t each = 0; each < clients.size(); ++each) {
                    const std::string_view text = texts[each];
                    sent[each] += sent[each] < text.size()
                                      ? clients[each].send(text.substr(sent[each]))
                                      : 0;
                    whole = clients[each].arrived().size() == text.size() && whole;
                }
                return whole;
            }));
            CHECK(w.server().stats().open == clients.size());
            for (std::size_t each = 0; each < clients.size(); ++each) {
                CAPTURE(each);
                CHECK(clients[each].arrived() == texts[each]);
                each % 3 == 0 ? clients[each].reset() : clients[each].close();
            }
            CHECK(w.until_closed(40));
        }
    }

    static void slow_reader() {
        world w;
        const std::string reply = service_pattern(400'000);
        std::size_t written = 0;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            if (text_of(in) == "all") {
                fill(c, reply, written);
            } else {
                c.write(in);
            }
            return in.size();
        };
        w.handler.writable = [&](netio::connection& c) { fill(c, reply, written); };
        netio::listen_options how;
        how.socket.send_bytes = 4096;
        const netio::endpoint at = w.listen(how);
        client_socket slow = client_socket::slow_reader(at);
        CHECK(slow.send("all") == 3);
        const std::uint32_t most = service_limits.connection_output_buffers_max;
        const auto held = [&] { return w.server().stats().pools[2].in_use; };
        CHECK(w.until([&] { return held() == most; }));  // refused: its share is used up
        client_socket other(at);
        CHECK(w.exchange(other, "served meanwhile") == "served meanwhile");
        CHECK(held() <= most + 1);  // the echo may be on its way still
        CHECK(written < reply.size());
        std::uint32_t steps = 0;
        CHECK(w.until([&] {
            slow.take_some(++steps < 100 ? 1000 : 1'000'000);
            return slow.over();
        }));
        CHECK(slow.arrived() == reply);
        CHECK_FALSE(slow.was_reset());
        CHECK(w.handler.count("writable") > 0);
    }

    static void paused() {
        world w;
        std::string got;
        netio::connection_id id;
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            c.pause();
        };
        w.handler.data = [&](netio::connection&, netio::bytes in) {
            got += text_of(in);
            return in.size();
        };
        w.handler.posted = [](netio::connection& c, std::uint64_t) { c.resume(); };
        netio::listen_options how;
        how.socket.receive_bytes = 4096;
        client_socket client(w.listen(how));
        const std::string text = service_pattern(5'000'000);
        CHECK(w.until([&] { return w.handler.opened == 1; }));
        std::size_t sent = client.send(text);
        CHECK(sent < text.size());  // the kernel holds the rest back
        for (int turn = 0; turn < 20; ++turn) {
            w.server().run_once(1);
        }
        CHECK(got == "");
        CHECK(w.server().stats().pools[1].in_use <= 2);
        CHECK(w.server().post(id, 0));
        CHECK(w.until([&] {
            sent += sent < text.size() ? client.send(std::string_view(text).substr(sent)) : 0;
            return got.size() == text.size();
        }));
        CHECK(got == text);
    }

    static void input_too_long() {
        world w;
        w.handler.data = [](netio::connection&, netio::bytes) { return std::size_t{0}; };
        client_socket client(w.listen());
        const std::string text(4 * service_limits.buffer_bytes, 'x');
        w.exchange(client, text, 1);
        CHECK(client.was_reset());
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.back().kind == kind::input_too_long);
    }

    /// Front connections of listener 0 go on to listener 1, which echoes; bytes are moved.
    static void moved_to_another() {
        world w;
        netio::connection_id front;
        netio::connection_id back;
        netio::endpoint behind;
        const auto other = [&](netio::connection& c) {
            return c.find(c.id() == front ? back : front);
        };
        w.handler.open = [&](netio::connection& c) {
            if (c.origin() == netio::origin::connected) {
                c.find(front)->resume();
            } else if (c.listener() == 0) {
                front = c.id();
                c.pause();
                const auto made = c.connect(behind, 1);
                REQUIRE(made);
                back = made.value;
            }
        };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            return c.listener() == 1 ? c.write(in) : c.move_input_to(*other(c));
        };
        w.handler.writable = [&](netio::connection& c) {
            if (netio::connection* from = c.listener() == 1 ? nullptr : other(c)) {
                from->resume();
            }
        };
        w.handler.end = [&](netio::connection& c) {
            if (c.listener() == 1) {
                c.close();
            } else if (netio::connection* to = other(c)) {
                to->end();
            }
        };
        const netio::endpoint at = w.listen();
        behind = w.listen();
        client_socket client(at);
        const std::string text = service_pattern(200'000);
        CHECK(w.exchange(client, text) == text);
        client.shutdown();
        CHECK(w.until([&] { return client.over(); }));
        CHECK_FALSE(client.was_reset());
        client.close();
        CHECK(w.until_closed(3));
    }

    // ---- connections made otherwise

    static void connects_out() {
        world w;
        std::string got;
        std::uint64_t word = 0;
        w.handler.open = [&](netio::connection& c) {
            if (c.origin() == netio::origin::connected) {
                word = c.connect_word();
                CHECK(c.write("hello") == 5);
            }
        };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            if (c.origin() != netio::origin::connected) {
                return c.write(in);
            }
            got += text_of(in);
            if (got.size() == 5) {
                c.close();
            }
            return in.size();
        };
        const netio::endpoint at = w.listen();
        CHECK(static_cast<bool>(w.server().connect(at, 5)));
        CHECK(w.until_closed(2));
        CHECK(got == "hello");
        CHECK(word == 5);
        CHECK(w.server().stats().counts.connected == 1);
    }

    static void connect_refused() {
        world w;
        const client_socket nobody = client_socket::refusing();
        const auto made = w.server().connect(nobody.local(), 7);
        if (made) {  // the kernel may also say so at once
            CHECK(w.until([&] { return !w.handler.connect_failures.empty(); }));
            CHECK(w.handler.connect_failures ==
                  std::vector{std::pair{std::uint64_t{7}, netio::error::connection_refused}});
        } else {
            CHECK(made.why == netio::error::connection_refused);
        }
        CHECK(w.server().stats().open == 0);
        CHECK(w.handler.opened == 0);
    }

    /// A port that refuses, then one that listens; and the same again until it listens.
    static void dials() {
        world w;
        service_echo(w.handler);
        std::uint64_t word = 0;
        netio::endpoint winner{};
        w.handler.open = [&](netio::connection& c) {
            if (c.origin() == netio::origin::connected) {
                word = c.connect_word();
                winner = c.source();
                c.close();
            }
        };
        const client_socket nobody = client_socket::refusing();
        const netio::endpoint at = w.listen();
        const netio::endpoint both[] = {nobody.local(), at};
        REQUIRE(static_cast<bool>(w.server().dial(both, 5)));
        CHECK(w.until_closed(2));
        CHECK(word == 5);
        CHECK(winner == at);
        CHECK(w.handler.connect_failures.empty());
        CHECK(w.server().stats().counts.connected == 1);
        w.check_nothing_held();
    }

    static void dial_refused() {
        world w;
        const client_socket nobody = client_socket::refusing();
        const netio::endpoint twice[] = {nobody.local(), nobody.local()};
        const auto once = w.server().dial(twice, 6);
        const bool at_once = !once;  // the kernel may also say so at once
        CHECK((once || once.why == netio::error::connection_refused));
        netio::dial_options how;
        how.rounds_max = 3;
        how.backoff = {20, 20};
        REQUIRE(static_cast<bool>(w.server().dial(twice, 7, how)));
        const std::size_t wanted = at_once ? 1 : 2;
        CHECK(w.until([&] { return w.handler.connect_failures.size() == wanted; }));
        CHECK(w.handler.connect_failures.back() ==
              std::pair{std::uint64_t{7}, netio::error::connection_refused});
        CHECK(w.server().stats().open == 0);
        CHECK(w.handler.opened == 0);
        how.rounds_max = 0;
        how.backoff = {30'000, 30'000};
        const auto waits = w.server().dial(twice, 8, how);
        REQUIRE(static_cast<bool>(waits));
        CHECK(w.until([&] { return w.server().stats().open == 0; }));
        CHECK(w.server().cancel_dial(waits.value));
        CHECK(w.until([&] { return w.handler.connect_failures.size() == wanted + 1; }));
        CHECK(w.handler.connect_failures.back().second == netio::error::cancelled);
    }

    /// What is said of a connection that is paused, and so not read.
    static void probed() {
        world w;
        netio::connection_id id{};
        std::vector<netio::probe_result> found;
        std::string got;
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            c.pause();
        };
        w.handler.posted = [&](netio::connection& c, std::uint64_t word) {
            if (word == 1) {
                c.resume();
            } else {
                found.push_back(c.probe());
            }
        };
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            got += text_of(in);
            c.pause();
            return in.size();
        };
        client_socket client(w.listen());
        CHECK(w.until([&] { return w.handler.opened == 1; }));
        const auto finds = [&](netio::probed what) {
            return w.until([&] {
                if (!found.empty() && found.back().found == what) {
                    return true;
                }
                w.server().post(id, 0);
                return false;
            });
        };
        CHECK(finds(netio::probed::idle));
        client.send("still here");
        CHECK(finds(netio::probed::readable));
        w.server().post(id, 0);
        w.server().post(id, 1);
        CHECK(w.until([&] { return got == "still here"; }));
        CHECK(finds(netio::probed::idle));
        client.close();
        CHECK(finds(netio::probed::peer_closed));
        w.server().post(id, 1);
        CHECK(w.until_closed(1));
        CHECK(w.handler.count("end") == 1);
    }

    static void adopts() {
        world w;
        service_echo(w.handler);
        auto [client, far] = client_socket::pair();
        netio::origin from{};
        w.handler.open = [&](netio::connection& c) { from = c.origin(); };
        REQUIRE(static_cast<bool>(w.server().adopt(far)));
        CHECK(w.exchange(client, "adopted") == "adopted");
        CHECK(from == netio::origin::adopted);
        client.close();
        CHECK(w.until_closed(1));
    }

    // ---- listeners

    static void address_in_use() {
        world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen();
        const auto refused = [&](std::uint16_t port) {
            CHECK(w.server().listen({.address = "127.0.0.1", .port = port}) ==
                  netio::error::address_in_use);
            char line[256];
            const std::string said(netio::describe(w.server().failure(), line));
            const std::string wanted = "listen 127.0.0.1:" + std::to_string(port) +
                                       ": address in use (" +
                                       w.server().failure().os_name + ")";
            CHECK(said == wanted);
        };
        refused(at.port);
        const client_socket other = client_socket::refusing();
        refused(other.local().port);
        client_socket client(at);
        CHECK(w.exchange(client, "still here") == "still here");
    }

    static void several_listeners() {
        world w;
        std::vector<std::uint32_t> seen;
        std::vector<std::uint16_t> ports;
        w.handler.open = [&](netio::connection& c) {
            seen.push_back(c.listener());
            ports.push_back(c.local().port);
        };
        service_echo(w.handler);
        const netio::endpoint at[] = {w.listen(), w.listen(), w.listen()};
        for (const std::size_t which : {2u, 0u, 1u, 2u}) {
            client_socket client(at[which]);
            CHECK(w.exchange(client, "hello") == "hello");
            CHECK(seen.back() == which);
            CHECK(ports.back() == at[which].port);
        }
        CHECK(w.until_closed(4));
    }

    static void families() {
        world w;
        service_echo(w.handler);
        std::string source;
        netio::endpoint own;
        w.handler.open = [&](netio::connection& c) {
            char line[netio::endpoint_text_max];
            source = netio::format(c.source(), line);
            own = c.local();
        };
        const auto serves = [&](const netio::endpoint& to, const std::string& prefix) {
            client_socket client(to);
            CAPTURE(prefix);
            REQUIRE(client.connected());
            CHECK(w.exchange(client, "hello") == "hello");
            CHECK(source == prefix + std::to_string(client.local().port));
            CHECK(own.port == to.port);
        };
        const std::uint16_t four = w.listen({.address = "127.0.0.1"}).port;
        const std::uint16_t six = w.listen({.address = "::1"}).port;
        const std::uint16_t both = w.listen({.dual_stack = true}).port;
        const std::uint16_t only_six = w.listen({.address = "::"}).port;
        serves(netio::loopback_ipv4(four), "127.0.0.1:");
        serves(netio::loopback_ipv6(six), "[::1]:");
        serves(netio::loopback_ipv4(both), "[::ffff:127.0.0.1]:");
        serves(netio::loopback_ipv6(both), "[::1]:");
        serves(netio::loopback_ipv6(only_six), "[::1]:");
        CHECK_FALSE(client_socket(netio::loopback_ipv6(four)).connected());
        CHECK_FALSE(client_socket(netio::loopback_ipv4(six)).connected());
        CHECK_FALSE(client_socket(netio::loopback_ipv4(only_six)).connected());
    }

    static void unix_streams() {
        world w;
        service_echo(w.handler);
        const std::string name = client_os::unix_name("service");
        if constexpr (!Offers.unix_streams) {
            CHECK(w.server().listen({.unix_path = name}) == netio::error::not_supported);
            CHECK(w.server().connect_unix(name).why == netio::error::not_supported);
        } else {
            netio::endpoint source;
            w.handler.open = [&](netio::connection& c) {
                source = c.source();
                CHECK(c.peer_process_id() == source.scope_id);
                if (c.origin() == netio::origin::connected) {
                    c.write("from us");
                    c.end();
                }
            };
            w.handler.end = [](netio::connection& c) { c.close(); };
            w.listen({.unix_path = name});
            client_socket client(name);
            CHECK(w.exchange(client, "by path") == "by path");
            CHECK(source.family == netio::address_family::unix_path);
            client.close();
            CHECK(w.until_closed(1));
            w.handler.data = [](netio::connection&, netio::bytes in) { return in.size(); };
            CHECK(static_cast<bool>(w.server().connect_unix(name)));
            CHECK(w.until_closed(3));
            client_os::remove_unix_name(name);
        }
    }

    static void caps() {
        for (const bool global : {false, true}) {
            CAPTURE(global);
            netio::limits sizes = service_limits;
            sizes.connections_max = global ? 2 : 64;
            world w(sizes);
            service_echo(w.handler);
            netio::listen_options how;
            how.connections_max = global ? 0 : 2;
            const netio::endpoint at = w.listen(how);
            client_socket first(at);
            client_socket second(at);
            CHECK(w.exchange(first, "a") == "a");
            CHECK(w.exchange(second, "b") == "b");
            client_socket third(at);
            CHECK(w.until([&] { return third.over(); }));
            CHECK(third.was_reset());
            CHECK(w.server().stats().counts.refused == 1);
            CHECK(w.events.all.back().reason.cause() ==
                  (global ? netio::refusal_cause::global_cap : netio::refusal_cause::listener_cap));
            first.close();
            CHECK(w.until_closed(1));
            client_socket fourth(at);
            CHECK(w.exchange(fourth, "d") == "d");
            CHECK(w.exchange(second, "still") == "bstill");
        }
    }

    // ---- ends

    static void killed() {
        world w;
        w.handler.data = [](netio::connection& c, netio::bytes) {
            c.write("never sent");
            c.kill(7);
            return std::size_t{0};
        };
        client_socket client(w.listen());
        w.exchange(client, "kill me", 1);
        CHECK(client.was_reset());
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.back() == netio::close_reason{kind::killed, 7});
    }

    static void closed_after_flush() {
        world w;
        const std::string reply = service_pattern(2000);
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            CHECK(c.write(reply) == reply.size());
            c.close();
            return in.size();
        };
        client_socket client(w.listen());
        CHECK(client.send("request") == 7);
        CHECK(w.until([&] { return client.over(); }));
        CHECK(client.arrived() == reply);
        CHECK_FALSE(client.was_reset());
        const std::string more(50'000, 'm');  // read and discarded, not answered by a reset
        std::size_t sent = 0;
        CHECK(w.until([&] {
            sent += sent < more.size() ? client.send(std::string_view(more).substr(sent)) : 0;
            return sent == more.size();
        }));
        CHECK(w.server().stats().open == 1);
        client.close();
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.back().kind == kind::handler_closed);
    }

    static void peer_gone() {
        world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen();
        client_socket client(at);
        CHECK(w.exchange(client, "hello") == "hello");
        client.reset();
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.back().kind == kind::peer_reset);
        {
            client_socket hasty(at);  // gone before anybody looked
            hasty.send("hello");
            hasty.reset();
        }
        client_socket next(at);
        CHECK(w.exchange(next, "next") == "next");
        CHECK(w.until([&] { return w.server().stats().open == 1; }));
    }

    static void peer_gone_while_written_to() {
        world w;
        const std::string reply = service_pattern(6'000'000);
        std::size_t written = 0;
        w.handler.open = [&](netio::connection& c) { fill(c, reply, written); };
        w.handler.writable = w.handler.open;
        client_socket client = client_socket::slow_reader(w.listen());
        CHECK(w.until([&] { return client.take_some(1000) > 5000; }));
        client.reset();
        CHECK(w.until_closed(1));
        CHECK(w.handler.reasons.back().kind == kind::peer_reset);
        CHECK(written < reply.size());
    }

    // ---- deadlines, in hurried time

    static void deadlines_of_a_handler() {
        for (const netio::deadline_kind which :
             {netio::deadline_kind::idle, netio::deadline_kind::read,
              netio::deadline_kind::exchange, netio::deadline_kind::park,
              netio::deadline_kind::write}) {
            CAPTURE(static_cast<int>(which));
            world w(service_limits, service_hurry);
            std::vector<netio::deadline_kind> passed;
            w.handler.deadline = [&](netio::connection& c, netio::deadline_kind what) {
                passed.push_back(what);
                c.kill(5);
            };
            w.handler.data = [&](netio::connection& c, netio::bytes in) {
                switch (which) {
                case netio::deadline_kind::read:
                    c.phase(netio::phase::exchange);
                    break;
                case netio::deadline_kind::exchange:
                    c.deadline(1'000);
                    break;
                case netio::deadline_kind::park:
                    c.park(1'000);
                    break;
                case netio::deadline_kind::write:
                    while (c.write(std::string(1000, 'w')) == 1000) {
                    }
                    break;
                default:
                    break;
                }
                return in.size();
            };
            w.handler.writable = [](netio::connection& c) {
                while (c.write(std::string(1000, 'w')) == 1000) {
                }
            };
            client_socket client = client_socket::slow_reader(w.listen());
            CHECK(client.send("x") == 1);
            CHECK(w.until_closed(1));
            CHECK(passed == std::vector{which});
            CHECK(w.handler.reasons.back() == netio::close_reason{kind::killed, 5});
        }
    }

    static void deadline_of_the_preface() {
        world w(service_limits, service_hurry);
        netio::listen_options how;
        how.proxy = netio::proxy_mode::required;
        const netio::endpoint at = w.listen(how);
        for (const std::string_view begun : {"", "PROXY TCP4"}) {
            client_socket client(at);
            CHECK(client.send(begun) == begun.size());
            CHECK(w.until([&] { return client.over(); }));
            CHECK(client.was_reset());
            CHECK(w.until([&] { return w.server().stats().open == 0; }));
            CHECK(w.events.all.back().reason.kind == kind::preface_timeout);
        }
        CHECK(w.handler.opened == 0);
    }

    static void deadline_of_the_linger() {
        world w(service_limits, service_hurry);
        w.handler.open = [](netio::connection& c) { c.close(); };
        client_socket client(w.listen());
        CHECK(w.until([&] { return client.over(); }));
        CHECK_FALSE(client.was_reset());
        CHECK(w.until_closed(1));  // though the client never closes
        CHECK(w.handler.reasons.back().kind == kind::handler_closed);
    }

    static void timers() {
        world w;
        std::vector<std::uint64_t> fired;
        w.handler.timer = [&](std::uint64_t word) { fired.push_back(word); };
        CHECK(static_cast<bool>(w.server().after(6, 1)));
        CHECK(static_cast<bool>(w.server().after(1, 2)));
        const auto never = w.server().after(3, 3);
        CHECK(w.server().cancel(never.value));
        CHECK(w.until([&] { return fired.size() == 2; }));
        CHECK(fired == std::vector<std::uint64_t>{2, 1});
        CHECK_FALSE(w.server().cancel(never.value));
    }

    // ---- drain and stop

    static void drained() {
        world w;
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            const bool finished = text_of(in) == "finish";
            c.phase(finished ? netio::phase::idle : netio::phase::exchange);
            c.write(in);
            return in.size();
        };
        const netio::endpoint at = w.listen();
        client_socket idle(at);
        client_socket busy(at);
        CHECK(w.exchange(busy, "begin") == "begin");
        CHECK(w.until([&] { return w.handler.opened == 2; }));
        w.server().drain(600'000);
        CHECK(w.until([&] { return idle.over(); }));
        CHECK_FALSE(idle.was_reset());
        CHECK_FALSE(client_socket(at).connected());
        idle.close();
        CHECK(w.until_closed(1));
        CHECK(w.exchange(busy, "finish") == "beginfinish");
        CHECK(w.until([&] { return busy.over(); }));
        CHECK_FALSE(busy.was_reset());
        busy.close();
        CHECK(w.server().run() == netio::error::none);
        CHECK(w.handler.reasons == std::vector<netio::close_reason>(2, {kind::drained}));
        CHECK(w.events.count(netio::server_event_kind::drain_finished) == 1);
    }

    static void drain_deadline() {
        world w(service_limits, service_hurry);
        w.handler.data = [](netio::connection& c, netio::bytes in) {
            c.phase(netio::phase::exchange);
            return c.write(in);
        };
        client_socket busy(w.listen({.times = {.read_ms = 0}}));
        CHECK(w.exchange(busy, "begin") == "begin");
        w.server().drain(100);
        CHECK(w.server().run() == netio::error::none);
        CHECK(busy.was_reset());
        CHECK(w.handler.reasons.back().kind == kind::drain_deadline);
    }

    static void stopped_by_a_thread() {
        world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen();
        bool echoed = false;
        bool reset = false;
        std::thread other([&] {
            client_socket client(at);
            client.send("hello");
            echoed = settle(client, [&] { return client.arrived() == "hello"; });
            w.server().stop();
            reset = settle(client, [&] { return client.was_reset(); });
        });
        CHECK(w.server().run() == netio::error::none);
        other.join();
        CHECK(echoed);
        CHECK(reset);
        CHECK(w.handler.reasons.back().kind == kind::shutdown);
    }

    /// Each post finds the loop asleep, or nearly: it waits for the answer to the last one.
    static void posts_of_a_thread() {
        world w;
        constexpr std::uint64_t rounds = 300;
        std::atomic<std::uint64_t> seen = 0;
        netio::connection_id id;
        w.handler.open = [&](netio::connection& c) { id = c.id(); };
        w.handler.posted = [&](netio::connection&, std::uint64_t word) {
            CHECK(word == seen + 1);
            seen = word;
        };
        client_socket client(w.listen());
        CHECK(w.until([&] { return w.handler.opened == 1; }));
        bool posted = true;
        std::thread other([&] {
            const auto begun = std::chrono::steady_clock::now();
            const auto late = [&] {
                return std::chrono::steady_clock::now() - begun > std::chrono::seconds(20);
            };
            for (std::uint64_t word = 1; word <= rounds && !late(); ++word) {
                posted = w.server().post(id, word) && posted;
                while (seen != word && !late()) {
                    std::this_thread::yield();
                }
            }
            w.server().stop();
        });
        CHECK(w.server().run() == netio::error::none);
        other.join();
        CHECK(posted);
        CHECK(seen == rounds);
    }

    /// One handler, two workers, one listener.
    static void two_workers() {
        struct echo {
            std::atomic<std::uint32_t> opened = 0;
            std::atomic<std::uint32_t> closed = 0;
            void on_open(netio::connection&) noexcept { ++opened; }
            std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
                return c.write(in);
            }
            void on_close(netio::connection&, netio::close_reason) noexcept { ++closed; }
        };
        client_os::start();
        const std::size_t handles = client_os::open_handles();
        netio::limits sizes = service_limits;
        sizes.workers_max = 2;
        {
            fresh_memory memory(netio::bytes_needed<kernel>(sizes));
            echo handler;
            netio::server<echo, kernel> server(netio::storage_view{memory.all(), sizes}, handler);
            REQUIRE(server.listen({.address = "127.0.0.1", .times = {.linger_ms = 1}}) ==
                    netio::error::none);
            const netio::endpoint at = server.local();
            std::thread workers[2];
            for (std::uint32_t each = 0; each < 2; ++each) {
                workers[each] = std::thread([&server, each] { server.run(each); });
            }
            std::vector<client_socket> clients(30);
            std::size_t echoed = 0;
            for (client_socket& each : clients) {
                each = client_socket(at);
                each.send("hello");
            }
            for (client_socket& each : clients) {
                echoed += settle(each, [&] { return each.arrived() == "hello"; }) ? 1 : 0;
            }
            clients.resize(15);
            server.drain(10'000);
            for (std::thread& each : workers) {
                each.join();
            }
            CHECK(echoed == 30);
            CHECK(handler.opened == 30);
            CHECK(handler.closed == 30);
            CHECK(server.stats().open == 0);
        }
        CHECK(client_os::open_handles() == handles);
    }

    /// A listener each: a worker accepts what comes to its own, so who comes is answered only while
    /// that worker turns.
    static void listener_each() {
        netio::limits sizes = service_limits;
        sizes.workers_max = 2;
        world w(sizes);
        const netio::endpoint first = w.listen({.worker = 0});
        const netio::endpoint second = w.listen({.worker = 1});
        const auto turn = [&](std::uint32_t worker) {
            for (std::uint32_t count = 0; count < 40; ++count) {
                w.server().run_once(1, worker);
            }
        };
        turn(0);
        turn(1);
        client_socket of_second(second);
        turn(0);
        CHECK(w.handler.opened == 0);
        turn(1);
        CHECK(w.handler.opened == 1);
        client_socket of_first(first);
        turn(1);
        CHECK(w.handler.opened == 1);
        turn(0);
        CHECK(w.handler.opened == 2);
        w.server().stop();
        turn(0);
        turn(1);
        CHECK(w.handler.closed == 2);
    }

    /// Twice as many clients at once as a worker has slots, again and again: none is refused.
    static void full_workers() {
        if constexpr (!netio::backend_bounds_accepts<kernel>) {
            MESSAGE("SKIPPED: this backend has accepts on their way that nothing can bound");
        } else {
            netio::limits sizes = service_limits;
            sizes.workers_max = 2;
            sizes.connections_max = 8;
            world w(sizes);
            const netio::endpoint at = w.listen();
            const auto both_until = [&](auto done) {
                return w.until([&] { return done() || (w.server().run_once(0, 1), false); });
            };
            for (std::uint32_t burst = 1; burst <= 5; ++burst) {
                CAPTURE(burst);
                std::vector<client_socket> clients(8);
                for (client_socket& each : clients) {
                    each = client_socket(at);
                }
                CHECK(both_until([&] { return w.handler.opened == burst * 8; }));
                CHECK(w.server().stats().counts.refused == 0);
                for (client_socket& each : clients) {
                    CHECK_FALSE(each.over());
                    each.close();
                }
                CHECK(both_until([&] { return w.handler.closed == burst * 8; }));
            }
            w.server().stop();
            CHECK(both_until([&] { return !w.server().run_once(0, 1); }));
        }
    }

    /// One worker's slots are full of connections that it made, and then a listener is added: the
    /// clients of both are left to the other worker.
    static void busy_worker() {
        if constexpr (!netio::backend_bounds_accepts<kernel>) {
            MESSAGE("SKIPPED: this backend has accepts on their way that nothing can bound");
        } else {
            netio::limits sizes = service_limits;
            sizes.workers_max = 2;
            sizes.connections_max = 8;
            world w(sizes);
            const netio::endpoint at = w.listen();
            const auto turn_both = [&] {
                for (std::uint32_t turn = 0; turn < 40; ++turn) {
                    w.server().run_once(0, turn % 2);
                }
            };
            turn_both();
            std::vector<client_socket> clients;
            for (int made = 0; made < 4; ++made) {
                auto [near, far] = client_socket::pair();
                clients.push_back(std::move(near));
                REQUIRE(static_cast<bool>(w.server().adopt(far)));
            }
            turn_both();
            CHECK(w.handler.opened == 4);
            for (const netio::endpoint& to : {at, w.listen()}) {
                for (int more = 0; more < 2; ++more) {
                    clients.emplace_back(to);
                }
                turn_both();
            }
            CHECK(w.handler.opened == 8);
            CHECK(w.server().stats().counts.refused == 0);
            w.server().stop();
            turn_both();
        }
    }

    static void foreign_loop() {
        world w;
        service_echo(w.handler);
        const netio::endpoint at = w.listen();
        const netio::socket_handle handle = w.server().wait_handle();
        if (handle == netio::no_handle) {
            MESSAGE("SKIPPED: this backend has nothing that a foreign loop could poll");
            return;
        }
        client_socket client(at);
        const std::string text = service_pattern(20'000);
        std::size_t sent = 0;
        bool timely = true;
        for (int turn = 0; turn < service_turns_max && client.arrived().size() < text.size();
             ++turn) {
            sent += sent < text.size() ? client.send(std::string_view(text).substr(sent)) : 0;
            const std::int64_t ms = w.server().wait_ms();
            const int most = ms < 0 || ms > 2'000 ? 2'000 : static_cast<int>(ms);
            timely = (client_os::wait_readable(handle, most) || most < 2'000) && timely;
            w.server().run_once(0);
        }
        CHECK(timely);
        CHECK(client.arrived() == text);
        std::thread other([&] { w.server().stop(); });
        int turns = 0;
        while (turns < service_turns_max) {
            const std::int64_t ms = w.server().wait_ms();
            client_os::wait_readable(handle, ms < 0 || ms > 2'000 ? 2'000 : static_cast<int>(ms));
            if (!w.server().run_once(0)) {
                break;
            }
            ++turns;
        }
        other.join();
        CHECK(turns < service_turns_max);
        CHECK(client.was_reset());
    }
};

}  // namespace netio_test

#endif
