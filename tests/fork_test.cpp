// A process that forks has its server twice: the child's copy does nothing, the parent's goes on.
#include "tests/local_folder.hpp"
#include "tests/service_world.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_POLL

namespace {

using namespace netio_test;
using netio::error;

template <class Backend>
void fork_beside_a_server() {
    if (!Backend::available().offered) {
        MESSAGE(Backend::name << " is not offered here");
        return;
    }
    local_folder folder;
    const std::string path = folder.file("s");
    scripted handler;
    service_echo(handler);
    fresh_memory memory(netio::bytes_needed<Backend>(service_limits));
    std::optional<netio::server<scripted, Backend>> server;
    server.emplace(netio::storage_view{memory.all(), service_limits}, handler);
    REQUIRE(server->listen({.unix_path = path}) == error::none);
    netio::listener_id id;
    REQUIRE(server->listen({.address = "127.0.0.1", .port = 0}, &id) == error::none);
    client_socket client(server->local(id));
    const auto echoes = [&](client_socket& from, std::size_t count) {
        from.send("ping");
        for (int turn = 0; turn < 2000 && from.arrived().size() < count; ++turn) {
            server->run_once(1);
        }
        return from.arrived().size() == count;
    };
    CHECK(echoes(client, 4));
    CHECK(local_in_child([&] {
              const bool refused =
                  server->run() == error::forked_child &&
                  server->failure().code == error::forked_child &&
                  server->listen({.address = "127.0.0.1", .port = 0}) == error::forked_child &&
                  server->failure().code == error::forked_child &&
                  server->adopt_listener(0, {}) == error::forked_child;
              const auto opened = handler.opened;
              server.reset();  // as a static one ends with exit()
              return refused && handler.opened == opened && handler.closed == 0 ? 0 : 1;
          }) == 0);
    CHECK(local_exists(path));
    CHECK(echoes(client, 8));  // neither shut down, nor taken out of what is waited for
    client_socket later(path);
    CHECK(echoes(later, 4));
    CHECK(handler.closed == 0);
    server.reset();
    CHECK(handler.closed == 2);
    CHECK_FALSE(local_exists(path));
}

}  // namespace

TEST_CASE("a forked child can't run its parent's server, and ends it without a trace") {
    const std::size_t handles = client_os::open_handles();
    fork_beside_a_server<netio::poll>();
    fork_beside_a_server<netio::blocking>();
#if NETIO_HAS_EPOLL
    fork_beside_a_server<netio::epoll>();
#endif
#if NETIO_HAS_IO_URING
    fork_beside_a_server<netio::io_uring>();
#endif
    CHECK(client_os::open_handles() == handles);
}

namespace {

/// Does what the test says while it serves, once.
struct forking_stream {
    std::function<void()> serve;

    void on_connection(netio::stream&) noexcept { serve(); }
};

}  // namespace

TEST_CASE("a forked child can't run its parent's blocking pool either") {
    netio::limits sizes = service_limits;
    sizes.connections_max = sizes.workers_max = 1;
    forking_stream handler;
    fresh_memory memory(netio::bytes_needed<netio::blocking>(sizes));
    netio::blocking_pool<forking_stream> pool(netio::storage_view{memory.all(), sizes}, handler);
    netio::listener_id id;
    REQUIRE(pool.listen({.address = "127.0.0.1", .port = 0}, &id) == error::none);
    client_socket client(pool.local(id));
    int came_back = -1;
    handler.serve = [&] {
        came_back = local_in_child([&] {
            ::alarm(10);  // of a child that does run it
            return pool.run() == error::forked_child &&
                           pool.failure().code == error::forked_child
                       ? 0
                       : 1;
        });
        pool.stop();
    };
    CHECK(pool.run() == error::none);
    CHECK(came_back == 0);
}

TEST_CASE("a server that was bound before a fork is run by the child, if nobody ran it") {
    scripted handler;
    service_echo(handler);
    fresh_memory memory(netio::bytes_needed<netio::poll>(service_limits));
    netio::server<scripted, netio::poll> server(
        netio::storage_view{memory.all(), service_limits}, handler);
    REQUIRE(server.listen({.address = "127.0.0.1", .port = 0}) == error::none);
    CHECK(local_in_child([&] {
              const bool runs = server.run_once(0);
              server.stop();
              return runs && server.run() == error::none ? 0 : 1;
          }) == 0);
}

#endif
