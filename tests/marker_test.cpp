// Nothing of a closed connection is left anywhere in the storage: a marker that was in its
// addresses, its PROXY header, TLVs, bytes both ways and user state is looked for afterwards.
#include "tests/marker.hpp"
#include "tests/server_world.hpp"

namespace {

using netio_test::marker_client;
using netio_test::marker_handle;
using netio_test::marker_header;
using netio_test::marker_place;
using netio_test::sim_fault;
using netio_test::sim_options;
using netio_test::sim_peer;
using world = netio_test::server_world<>;

void marker_peer(world& w, std::vector<sim_peer>& peers, std::uint32_t at) {
    sim_peer peer = w.net.connect(w.port, marker_client);
    const std::string header = marker_header(at);
    const std::string body(300 + at % 7 * 100, 'M');
    if (at % 5 == 0) {
        peer.window(0);
    }
    switch (at % 8) {
    case 0:
        peer.send(header.substr(0, header.size() / 2));  // and no more
        break;
    case 1:
        peer.send(body);  // no header
        break;
    case 2:
        peer.send(header.substr(0, header.size() - 3));
        peer.shutdown();
        break;
    case 3:
        peer.send(header + body);
        w.pump(5);
        peer.reset();
        break;
    default:
        peer.send(header + body);
        w.pump(8);
        peer.send(body);
        if (at % 2 == 0) {
            peer.shutdown();
        }
        break;
    }
    peers.push_back(peer);
}

void marker_run(bool proactor, bool wiping, std::uint32_t rounds) {
    sim_options how;
    how.with(sim_fault::short_read, 200).with(sim_fault::late_event, 200);
    how.with(sim_fault::short_write, 200).with(sim_fault::close_drops_event, 300);
    netio::limits sizes = netio_test::small_limits;
    sizes.connections_max = 12;
    world w(proactor, sizes, how);
    if (!wiping) {
        w.server->wipe_released(false);
    }
    marker_handle(w.handler);
    const auto socket = w.server->open_datagram({.address = "127.0.0.1"});
    REQUIRE(static_cast<bool>(socket));
    const netio::endpoint where = w.server->local(socket.value);
    const std::uint32_t stranger = w.net.datagram_peer(marker_client);
    netio::listen_options from;
    from.proxy = netio::proxy_mode::required;
    from.trusted = "77.0.0.0/8";
    from.header_max = 1024;
    w.listen(from);
    for (std::uint32_t round = 0; round < rounds; ++round) {
        std::vector<sim_peer> peers;
        for (std::uint32_t at = 0; at < 10; ++at) {
            marker_peer(w, peers, round * 10 + at);
            w.net.send_datagram(stranger, where, netio::as_bytes(std::string(at * 150, 'M')));
        }
        w.pump();
        for (std::size_t at = 0; at < peers.size(); at += 2) {
            peers[at].close();
        }
        w.pass(70'000);  // every deadline
        REQUIRE(w.server->stats().open == 0);
    }
    CHECK(w.server->stats().counts.closed == rounds * 10);
    CHECK(w.server->stats().counts.opened >= rounds * 4);
    CHECK(w.server->stats().counts.datagrams_in == rounds * 10);
    CHECK((marker_place(w.memory.all()) == std::string_view::npos) == wiping);
}

}  // namespace

TEST_CASE("after a thousand closed connections their marker is nowhere in the storage") {
    for (const bool proactor : {false, true}) {
        CAPTURE(proactor);
        marker_run(proactor, true, 100);
    }
}

TEST_CASE("without wiping the marker is found: the search can fail") { marker_run(true, false, 3); }
