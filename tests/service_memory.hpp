// The rows `leak …` and `wiping …` of the service's suite: what is left when connections are gone.
#ifndef NETIO_TESTS_SERVICE_MEMORY_HPP
#define NETIO_TESTS_SERVICE_MEMORY_HPP

#include "tests/marker.hpp"
#include "tests/service_world.hpp"

#include <cstdlib>
#include <cstring>

namespace netio_test {

template <class Backend>
struct service_memory {
    using world = service_world<Backend>;
    using kernel = service_kernel<Backend>;
    static constexpr std::uint32_t at_once = 50;

    /// How a connection of the churn ends.
    static void end(client_socket& client, std::uint32_t way) {
        switch (way % 5) {
        case 0:  // at once
            client.reset();
            break;
        case 1:  // with bytes unread
            client.send("unread");
            client.reset();
            break;
        case 2:  // the server kills it
            client.send("kill");
            break;
        case 3:
            client.send("echo");
            client.shutdown();
            break;
        default:
            client.send("echo");
            break;
        }
    }

    /// One round: `at_once` connections, each ended in one of several ways, and one that is served.
    static void round(world& w, const netio::endpoint& at) {
        std::vector<client_socket> clients(at_once);
        for (std::uint32_t each = 0; each < at_once; ++each) {
            clients[each] = client_socket(at);
            end(clients[each], each);
        }
        client_socket last(at);  // accepted after all others
        CHECK(w.exchange(last, "last") == "last");
        for (client_socket& each : clients) {
            each.reset();
        }
        last.reset();
        REQUIRE(w.until([&] { return w.server().stats().open == 0; }));
    }

    /// Handles that `count` connections left behind, while the server lives and after it.
    struct left_over {
        std::size_t alive;
        std::size_t after;
    };
    static left_over churn(std::uint32_t count) {
        const std::size_t before = client_os::open_handles();
        left_over out{};
        {
            world w;
            w.checks_handles = false;
            w.handler.data = [](netio::connection& c, netio::bytes in) {
                if (text_of(in) == "kill") {
                    c.kill(1);
                    return std::size_t{0};
                }
                return c.write(in);
            };
            const netio::endpoint at = w.listen();
            w.server().run_once(0);
            const std::size_t idle = client_os::open_handles();
            for (std::uint32_t made = 0; made < count; made += at_once) {
                round(w, at);
            }
            out.alive = client_os::open_handles() - idle;
            CHECK(w.server().stats().counts.closed + w.server().stats().counts.refused >= count);
        }
        out.after = client_os::open_handles() - before;
        return out;
    }

    static void leak_none() {
        churn(at_once);  // whatever a first use of the system keeps for good
        const left_over found = churn(std::getenv("NETIO_LONG") != nullptr ? 100'000 : 5'000);
        CHECK(found.alive == 0);
        CHECK(found.after == 0);
    }

    static void leak_is_found() {
        kernel::forgets = true;
        const left_over found = churn(at_once);
        CHECK(found.alive == 1);
        CHECK(found.after == 1);
        const netio::socket_handle left = kernel::forgotten;
        kernel::forgotten = netio::no_handle;
        kernel::close_handle(left, true);
    }

    /// Outgoing connections, refused ones too, and adopted ones.
    static void leak_none_outgoing() {
        world w;
        const client_socket nobody = client_socket::refusing();
        w.handler.open = [](netio::connection& c) { c.kill(1); };
        const netio::endpoint at = w.listen();
        w.server().run_once(0);
        const std::size_t idle = w.handles_more();
        std::uint32_t ended = 0;
        for (int round = 0; round < 20; ++round) {
            ended += w.server().connect(at, 1) ? 0 : 1;
            ended += w.server().connect(nobody.local(), 2) ? 0 : 1;
            auto [near, far] = client_socket::pair();
            REQUIRE(static_cast<bool>(w.server().adopt(far)));
            near.reset();
            w.server().run_once(0);
        }
        CHECK(w.until([&] {
            return w.server().stats().open == 0 && w.handler.connect_failures.size() + ended >= 20;
        }));
        CHECK(w.handles_more() == idle);
    }

    // ---- wiping

    static void peer(world& w, client_socket& client, std::uint32_t at) {
        const std::string header = marker_header(at);
        const std::string body(300 + at % 7 * 100, 'M');
        switch (at % 8) {
        case 0:
            client.send(header.substr(0, header.size() / 2));  // and no more
            break;
        case 1:
            client.send(body);  // no header
            break;
        case 2:
            client.send(header.substr(0, header.size() - 3));
            client.shutdown();
            break;
        case 3:
            client.send(header + body);
            w.server().run_once(1);
            client.reset();
            break;
        default:
            client.send(header + body);
            w.server().run_once(1);
            client.send(body);
            if (at % 2 == 0) {
                client.shutdown();
            }
            break;
        }
    }

    static void wipe_run(bool wiping, std::uint32_t rounds) {
        netio::limits sizes = service_limits;
        sizes.preface_buffers_max = 2;
        world w(sizes, service_hurry);
        w.server().wipe_released(wiping);
        marker_handle(w.handler);
        const auto socket = w.server().open_datagram({.address = "127.0.0.1"});
        REQUIRE(static_cast<bool>(socket));
        client_socket datagrams = client_socket::datagrams(w.server().local(socket.value));
        netio::listen_options how;
        how.proxy = netio::proxy_mode::required;
        how.trusted = "127.0.0.0/8";
        how.header_max = 1024;
        const netio::endpoint at = w.listen(how);
        for (std::uint32_t round = 1; round <= rounds; ++round) {
            std::vector<client_socket> clients(10);
            for (std::uint32_t each = 0; each < 10; ++each) {
                clients[each] = client_socket(at);
                peer(w, clients[each], round * 10 + each);
                datagrams.send(std::string(each * 150, 'M'));
            }
            for (std::size_t each = 0; each < clients.size(); each += 2) {
                clients[each].close();
            }
            REQUIRE(w.until([&] {  // the deadlines end those that nobody else ends
                return w.server().stats().counts.closed == round * 10 &&
                       w.server().stats().counts.datagrams_in == round * 10;
            }));
        }
        CHECK(w.server().stats().counts.opened >= rounds * 4);
        CHECK((marker_place(w.memory.all()) == std::string_view::npos) == wiping);
    }

    static void wiped() { wipe_run(true, 20); }
    static void not_wiped_is_found() { wipe_run(false, 2); }
};

}  // namespace netio_test

#endif
