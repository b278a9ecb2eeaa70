// A server over the simulator, with its memory, its network and what every server test checks at
// the end: nothing is held. Test code: uses heap.
#ifndef NETIO_TESTS_SERVER_WORLD_HPP
#define NETIO_TESTS_SERVER_WORLD_HPP

#include "tests/simulator.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace netio_test {

/// Zeroed memory that a server can have, of any size, untouched pages costing nothing.
class fresh_memory {
public:
    explicit fresh_memory(std::size_t count) : count_(count) {
        at_ = ::mmap(nullptr, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(at_ != MAP_FAILED);
    }
    fresh_memory(const fresh_memory&) = delete;
    fresh_memory& operator=(const fresh_memory&) = delete;
    ~fresh_memory() { ::munmap(at_, count_); }
    netio::mutable_bytes all() const { return {static_cast<std::byte*>(at_), count_}; }

private:
    void* at_;
    std::size_t count_;
};

/// Calls what a test puts there, and writes down what came.
struct scripted {
    std::function<std::size_t(netio::connection&, netio::bytes)> data =
        [](netio::connection&, netio::bytes in) { return in.size(); };
    std::function<void(netio::connection&)> open = [](netio::connection&) {};
    std::function<void(netio::connection&)> end = [](netio::connection& c) { c.close(); };
    std::function<void(netio::connection&)> writable = [](netio::connection&) {};
    std::function<void(netio::connection&, std::uint64_t)> posted = [](netio::connection&,
                                                                       std::uint64_t) {};
    std::function<void(netio::connection&, netio::deadline_kind)> deadline =
        [](netio::connection& c, netio::deadline_kind) { c.kill(99); };
    std::function<void(std::uint64_t)> timer = [](std::uint64_t) {};
    std::function<void(netio::connection&)> drain = [](netio::connection&) {};
    std::function<void(netio::datagram_socket&, const netio::datagram&)> packet =
        [](netio::datagram_socket&, const netio::datagram&) {};

    std::vector<std::string> log;             // what came, in order
    std::vector<netio::close_reason> reasons;
    std::vector<std::pair<std::uint64_t, netio::error>> connect_failures;
    std::uint32_t opened = 0;
    std::uint32_t closed = 0;

    void on_open(netio::connection& c) noexcept {
        ++opened;
        log.push_back("open");
        open(c);
    }
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        log.push_back("data " + std::to_string(in.size()));
        return data(c, in);
    }
    void on_end(netio::connection& c) noexcept {
        log.push_back("end");
        end(c);
    }
    void on_writable(netio::connection& c) noexcept {
        log.push_back("writable");
        writable(c);
    }
    void on_post(netio::connection& c, std::uint64_t word) noexcept {
        log.push_back("post " + std::to_string(word));
        posted(c, word);
    }
    void on_deadline(netio::connection& c, netio::deadline_kind which) noexcept {
        log.push_back("deadline");
        deadline(c, which);
    }
    void on_timer(std::uint64_t word) noexcept {
        log.push_back("timer " + std::to_string(word));
        timer(word);
    }
    void on_drain(netio::connection& c) noexcept {
        log.push_back("drain");
        drain(c);
    }
    void on_datagram(netio::datagram_socket& via, const netio::datagram& in) noexcept {
        packet(via, in);
    }
    void on_connect_failed(std::uint64_t word, netio::error why) noexcept {
        connect_failures.emplace_back(word, why);
    }
    void on_close(netio::connection&, netio::close_reason reason) noexcept {
        ++closed;
        log.push_back(std::string("close ") + netio::name(reason.kind));
        reasons.push_back(reason);
    }
    std::uint32_t count(const std::string& what) const {
        std::uint32_t found = 0;
        for (const std::string& each : log) {
            found += each == what ? 1 : 0;
        }
        return found;
    }
};

/// Remembers every fact a server tells.
struct remembering {
    std::vector<netio::server_event> all;
    void on_event(const netio::server_event& told) noexcept { all.push_back(told); }
    std::uint32_t count(netio::server_event_kind kind) const {
        std::uint32_t found = 0;
        for (const netio::server_event& each : all) {
            found += each.kind == kind ? 1 : 0;
        }
        return found;
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
template <class Handler = scripted>
struct server_world {
    using server_type =
        netio::server<Handler, simulator, netio::allow_all, remembering>;

    Handler handler{};
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
        server = std::make_unique<server_type>(netio::storage_view{memory.all(), sizes}, handler,
                                               events);
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

inline std::string text_of(netio::bytes in) { return std::string(netio::as_text(in)); }

}  // namespace netio_test

#endif
