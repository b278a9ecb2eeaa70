// The contract's suite on io_uring, and a server over it. Where the kernel offers no io_uring the
// suite is left out, and the first case says so.
#include "netio.hpp"

#if NETIO_HAS_IO_URING

#include "tests/conformance_sockets.hpp"
#include "tests/io_uring_offered.hpp"

#include <memory>
#include <optional>
#include <thread>

namespace {

using conformance_io_uring_world = netio_test::conformance_socket_world<netio::io_uring>;

const netio::availability conformance_io_uring_offered = netio_test::io_uring_offered();
const auto conformance_io_uring_cases = [] {
    std::optional<netio_test::conformance_cases<conformance_io_uring_world>> cases;
    if (conformance_io_uring_offered.offered) {
        cases.emplace();
    }
    return cases;
}();

TEST_CASE("the contract's suite runs on io_uring") {
    if (!conformance_io_uring_offered.offered) {
        MESSAGE("SKIPPED: every case ending in .io_uring; this kernel does not offer "
                << std::string(conformance_io_uring_offered.missing));
        return;
    }
    CHECK(conformance_io_uring_cases.has_value());
}

// ---- a server over it

struct io_uring_echo {
    std::uint32_t opened = 0;
    std::uint32_t closed = 0;
    bool moves = false;
    void on_open(netio::connection&) noexcept { ++opened; }
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return moves ? peer.move_input_to(peer) : peer.write(in);
    }
    void on_datagram(netio::datagram_socket& socket, const netio::datagram& in) noexcept {
        socket.send_to(in.peer, in.payload);
    }
    void on_close(netio::connection&, netio::close_reason) noexcept { ++closed; }
};

constexpr netio::limits io_uring_limits{.connections_max = 64,
                                        .listeners_max = 2,
                                        .buffer_bytes = 1024,
                                        .input_buffers_max = 16,
                                        .output_buffers_max = 32,
                                        .datagram_sockets_max = 1,
                                        .datagram_sends_max = 4,
                                        .events_per_turn = 8};

/// A server in zeroed memory of its own, with clients of the same thread.
struct io_uring_service {
    using storage = netio::storage<io_uring_limits, netio::io_uring>;
    using peer = netio_test::conformance_socket_peer;

    io_uring_service() {
        REQUIRE(server.listen({.address = "127.0.0.1"}) == netio::error::none);
    }
    peer connect() {
        const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_in where = netio_test::conformance_sockaddr(server.local());
        REQUIRE(::connect(made, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0);
        return peer(made);
    }
    template <class Done>
    bool until(Done done) {
        for (int turns = 0; turns < 20'000; ++turns) {
            if (done()) {
                return true;
            }
            server.run_once(1);
        }
        return false;
    }
    void check_nothing_is_held() {
        const netio::server_stats now = server.stats();
        CHECK(now.pools[0].in_use == 0);
        CHECK(now.pools[1].in_use == 0);
        CHECK(now.pools[2].in_use == 0);
    }

    std::unique_ptr<storage> memory = std::make_unique<storage>();
    io_uring_echo handler{};
    netio::server<io_uring_echo, netio::io_uring> server{*memory, handler};
};

TEST_CASE("a server over io_uring echoes to many clients at once and holds nothing afterwards" *
          doctest::skip(!conformance_io_uring_offered.offered)) {
    for (const bool moves : {false, true}) {
        CAPTURE(moves);
        io_uring_service service;
        service.handler.moves = moves;
        const std::string text = netio_test::conformance_pattern(50'000);
        std::vector<io_uring_service::peer> clients(40);
        std::vector<std::size_t> given(clients.size());
        for (auto& each : clients) {
            each = service.connect();
        }
        REQUIRE(service.until([&] {
            bool whole = true;
            for (std::size_t at = 0; at < clients.size(); ++at) {
                given[at] += clients[at].send(std::string_view(text).substr(given[at]));
                whole = clients[at].arrived().size() == text.size() && whole;
            }
            return whole;
        }));
        for (std::size_t at = 0; at < clients.size(); ++at) {
            CHECK(clients[at].arrived() == text);
            at % 3 == 0 ? clients[at].reset() : clients[at].shutdown();
        }
        CHECK(service.until([&] { return service.handler.closed == clients.size(); }));
        CHECK(service.handler.opened == clients.size());
        service.check_nothing_is_held();
    }
}

TEST_CASE("a server over io_uring answers datagrams, empty ones too" *
          doctest::skip(!conformance_io_uring_offered.offered)) {
    io_uring_service service;
    const netio::result<netio::datagram_id> made =
        service.server.open_datagram({.address = "127.0.0.1"});
    REQUIRE(made);
    const int client = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const sockaddr_in where = netio_test::conformance_sockaddr(service.server.local(made.value));
    REQUIRE(::connect(client, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0);
    for (const std::string& text : {std::string("hello"), std::string(), std::string("again")}) {
        REQUIRE(::send(client, text.data(), text.size(), 0) >= 0);
        char got[64];
        ssize_t count = -1;
        CHECK(service.until([&] {
            count = ::recv(client, got, sizeof(got), 0);
            return count >= 0;
        }));
        CHECK(std::string_view(got, count < 0 ? 0 : static_cast<std::size_t>(count)) == text);
    }
    ::close(client);
    CHECK(service.until([&] { return service.server.stats().pools[2].in_use == 0; }));
    service.check_nothing_is_held();
}

TEST_CASE("a server over io_uring runs in a foreign loop and is woken by another thread" *
          doctest::skip(!conformance_io_uring_offered.offered)) {
    io_uring_service service;
    const int handle = static_cast<int>(service.server.wait_handle());
    service.server.run_once(0);
    io_uring_service::peer client = service.connect();
    const std::string text = netio_test::conformance_pattern(5'000);
    CHECK(client.send(text) == text.size());
    const auto turn = [&] {
        pollfd one{handle, POLLIN, 0};
        const std::int64_t ms = service.server.wait_ms();
        const int most = ms < 0 || ms > 2'000 ? 2'000 : static_cast<int>(ms);
        const bool timely = ::poll(&one, 1, most) == 1 || ms <= 2'000;
        return service.server.run_once(0) && timely;
    };
    for (int turns = 0; turns < 1'000 && client.arrived().size() < text.size(); ++turns) {
        REQUIRE(turn());
    }
    CHECK(client.arrived() == text);
    std::thread other([&] { service.server.stop(); });
    int turns = 0;
    while (turns < 1'000 && turn()) {
        ++turns;
    }
    other.join();
    CHECK(turns < 1'000);
    CHECK(service.handler.closed == 1);
    service.check_nothing_is_held();
}

}  // namespace

#endif
