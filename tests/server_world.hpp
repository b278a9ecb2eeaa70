// A server over the simulator, with its memory, its network and what every server test checks at
// the end: nothing is held. Test code: uses heap.
#ifndef NETIO_TESTS_SERVER_WORLD_HPP
#define NETIO_TESTS_SERVER_WORLD_HPP

#include "tests/scripted.hpp"
#include "tests/simulator.hpp"

#include <map>

namespace netio_test {

/// What every gate of the tests keeps: who is in, and how each of them ended.
struct gate_books {
    std::map<std::uint64_t, int> in;  // by id: admitted and not yet closed
    std::vector<netio::close_reason> ends;

    netio::verdict noted(const netio::connection& c, netio::verdict said) {
        in[c.id().bits] += said.allowed() ? 1 : 0;
        return said;
    }
    void closed(const netio::connection& c, netio::close_reason reason) noexcept {
        CHECK(in[c.id().bits]-- == 1);
        CHECK(reason.kind != netio::close_kind::none);
        ends.push_back(reason);
    }
    std::size_t inside() const {
        std::size_t count = 0;
        for (const auto& [id, is] : in) {
            count += static_cast<std::size_t>(is);
        }
        return count;
    }
};

inline constexpr netio::limits small_limits{.connections_max = 16,
                                            .listeners_max = 4,
                                            .buffer_bytes = 1024,
                                            .input_buffers_max = 8,
                                            .output_buffers_max = 8,
                                            .connection_output_buffers_max = 4,
                                            .preface_buffers_max = 2,
                                            .posts_max = 16,
                                            .timers_max = 4,
                                            .datagram_sockets_max = 2,
                                            .datagram_sends_max = 4,
                                            .trusted_networks_max = 4,
                                            .events_per_turn = 8};

/// One server in one simulated network; the personality says whether the kernel behaves like a
/// readiness loop or like a completion ring. Ends with every pool full again.
template <class Handler = scripted, class Gate = netio::allow_all, class Tls = netio::no_tls>
struct server_world {
    using server_type = netio::server<Handler, simulator, Gate, remembering, Tls>;

    Handler handler{};
    Gate gate{};
    Tls tls{};
    remembering events;
    netio::limits sizes;
    fresh_memory memory;
    sim_network net;
    std::unique_ptr<server_type> server;
    std::uint16_t port = 0;

    explicit server_world(bool proactor, const netio::limits& chosen = small_limits,
                          const sim_options& how = {}, std::uint64_t seed = 1)
        : sizes(chosen),
          memory(netio::bytes_needed<simulator>(chosen)),
          net(sim_chooser(seed), personality(how, proactor)) {
        net.enter();
        const netio::storage_view box{memory.all(), sizes};
        constexpr bool gated = !std::is_same_v<Gate, netio::allow_all>;
        if constexpr (!std::is_same_v<Tls, netio::no_tls>) {
            if constexpr (gated) {
                server = std::make_unique<server_type>(box, handler, gate, events, tls);
            } else {
                server = std::make_unique<server_type>(box, handler, events, tls);
            }
        } else if constexpr (gated) {
            server = std::make_unique<server_type>(box, handler, gate, events);
        } else {
            server = std::make_unique<server_type>(box, handler, events);
        }
        REQUIRE(server->failure().code == netio::error::none);
    }
    ~server_world() {
        check_nothing_held();
        server.reset();
        CHECK(net.descriptors_open() == 3);  // the process's own
    }

    static sim_options personality(sim_options how, bool proactor) {
        how.proactor = proactor;
        return how;
    }

    void listen(const netio::listen_options& how = {}) {
        netio::listener_id id;
        REQUIRE(server->listen(how, &id) == netio::error::none);
        port = server->local(id).port;
        pump();
    }
    /// Turns until nothing happens any more, without letting time pass on purpose.
    void pump(std::uint32_t turns = 60) {
        for (std::uint32_t at = 0; at < turns; ++at) {
            server->run_once(0);
        }
    }
    /// Lets `ms` of virtual time pass.
    void pass(std::uint64_t ms) {
        const std::uint64_t until = net.now_ns() + ms * 1'000'000;
        while (net.now_ns() < until) {
            const std::uint64_t left = (until - net.now_ns() + 999'999) / 1'000'000;
            server->run_once(static_cast<std::uint32_t>(left));
        }
        pump();
    }
    sim_peer connect(endpoint from = {}) {
        sim_peer peer = net.connect(port, from);
        pump();
        return peer;
    }
    /// Stops, and finds every pool full.
    void check_nothing_held() {
        server->stop();
        for (std::uint32_t at = 0; at < 4000 && server->run_once(1); ++at) {
        }
        const netio::server_stats stats = server->stats();
        CHECK(stats.open == 0);
        for (const netio::pool_stats& pool : stats.pools) {
            CAPTURE(pool.name);
            CHECK(pool.in_use == 0);
        }
        CHECK(events.count(netio::server_event_kind::closed) ==
              stats.counts.closed);
    }
};

/// Runs a case with a kernel of readiness and with one of completions.
template <class Body>
void on_both_kernels(Body&& body) {
    for (const bool proactor : {false, true}) {
        CAPTURE(proactor);
        body(proactor);
    }
}

}  // namespace netio_test

#endif
