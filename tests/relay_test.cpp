// Two connections that hand their bytes to each other, as a gateway's pairs do, over the simulator.
#include "tests/server_world.hpp"

namespace {

using relay_world = netio_test::server_world<>;

std::string relay_text(std::size_t count, char first) {
    std::string out;
    while (out.size() < count) {
        out += first + std::to_string(out.size());
    }
    out.resize(count);
    return out;
}

/// The first two connections become a pair, ended together, each paused while the other is full.
struct relay {
    relay_world world;
    netio::connection_id ids[2]{};

    explicit relay(bool proactor) : world(proactor) {
        netio_test::scripted& hooks = world.handler;
        hooks.open = [this](netio::connection& c) { ids[ids[0] ? 1 : 0] = c.id(); };
        hooks.data = [this](netio::connection& c, netio::bytes in) {
            netio::connection* to = other(c);
            if (to == nullptr) {
                return in.size();
            }
            const std::size_t moved = c.move_input_to(*to);
            if (moved == 0) {
                c.pause();
            }
            return moved;
        };
        hooks.writable = [this](netio::connection& c) {
            if (netio::connection* to = other(c)) {
                to->resume();
            }
        };
        hooks.end = [this](netio::connection& c) {
            if (netio::connection* to = other(c)) {
                to->end();
            }
        };
        world.listen();
    }
    netio::connection* other(netio::connection& c) const {
        return c.find(c.id() == ids[0] ? ids[1] : ids[0]);
    }
};

/// Sends what is left of `text` from `at` on until nothing moves any more.
void relay_fill(relay_world& world, netio_test::sim_peer& peer, const std::string& text,
                std::size_t& at) {
    for (std::size_t before = at + 1; before != at;) {
        before = at;
        at += peer.send(std::string_view(text).substr(at));
        world.pump(20);
    }
}

}  // namespace

TEST_CASE("a pair stuck both ways loses nothing and goes on once both are read") {
    for (const bool proactor : {false, true}) {
        CAPTURE(proactor);
        relay pair(proactor);
        netio_test::sim_peer left = pair.world.connect();
        netio_test::sim_peer right = pair.world.connect();
        const std::string sent[2] = {relay_text(200'000, 'a'), relay_text(200'000, 'b')};
        std::size_t at[2] = {};
        relay_fill(pair.world, left, sent[0], at[0]);
        relay_fill(pair.world, right, sent[1], at[1]);
        CHECK(at[0] < sent[0].size());
        CHECK(at[1] < sent[1].size());
        std::string got[2];
        for (int round = 0; round < 20'000; ++round) {
            got[0] += right.take_text();
            got[1] += left.take_text();
            if (got[0].size() == sent[0].size() && got[1].size() == sent[1].size()) {
                break;
            }
            at[0] += left.send(std::string_view(sent[0]).substr(at[0]));
            at[1] += right.send(std::string_view(sent[1]).substr(at[1]));
            pair.world.pump(3);
        }
        CHECK(got[0].size() == sent[0].size());
        CHECK(got[1].size() == sent[1].size());
        const bool same = got[0] == sent[0] && got[1] == sent[1];
        CHECK(same);
        CHECK(pair.world.server->stats().counts.bytes_copied == 0);
    }
}

TEST_CASE("a connection that can't send and hears nothing more is over") {
    for (const bool proactor : {false, true}) {
        CAPTURE(proactor);
        netio_test::sim_options how;
        how.with(netio_test::sim_fault::send_error, 1000);
        relay_world w(proactor, netio_test::small_limits, how);
        w.handler.data = [](netio::connection& c, netio::bytes in) { return c.write(in); };
        w.handler.end = [](netio::connection&) {};  // would go on sending
        w.listen();
        netio_test::sim_peer peer = w.connect();
        peer.send("x");
        w.pump();
        CHECK(w.handler.closed == 0);  // what the peer still says is heard
        peer.send("y");
        w.pump();
        CHECK(w.handler.count("data 1") == 2);
        peer.shutdown();
        w.pump();
        CHECK(w.handler.count("end") == 1);
        REQUIRE(w.handler.closed == 1);
        CHECK(w.handler.reasons[0].kind != netio::close_kind::handler_closed);
    }
}
