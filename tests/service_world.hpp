// A whole server on a real kernel's backend, with what every case of the service's suite checks at
// the end: nothing is held, no handle is left. Peers are tests/client_socket.hpp's.
#ifndef NETIO_TESTS_SERVICE_WORLD_HPP
#define NETIO_TESTS_SERVICE_WORLD_HPP

#include "tests/client_socket.hpp"
#include "tests/scripted.hpp"

#include <optional>

namespace netio_test {

/// What the instantiation of the suite says of its backend. What is not offered must be refused
/// with error::not_supported.
struct service_offers {
    bool unix_streams = true;
};

/// The backend as the suite runs it: in a case time may jump where nothing else happens (deadlines
/// keep their length), and one case plants a fault. Else it adds nothing.
template <class Backend>
struct service_kernel : Backend {
    static inline std::uint64_t skip_ns = 0;  // the jump of a wait that found nothing
    static inline std::uint64_t skipped_ns = 0;
    static inline bool forgets = false;     // attaches no connection and does not close its handle
    static inline netio::socket_handle forgotten = netio::no_handle;

    std::uint64_t now_ns() const noexcept { return Backend::now_ns() + skipped_ns; }
    std::uint32_t wait(std::span<netio::event> out, std::uint64_t timeout_ns) noexcept {
        constexpr std::uint64_t glance_ns = 1'000'000;
        const bool may_skip = skip_ns != 0 && timeout_ns >= glance_ns;
        const std::uint32_t count = Backend::wait(out, may_skip ? glance_ns : timeout_ns);
        if (may_skip && count == 0) {
            skipped_ns += skip_ns;  // never in a case with threads
        }
        return count;
    }
    netio::os_status attach(netio::socket_handle handle, netio::token who) noexcept {
        if (forgets) {
            forgets = false;
            forgotten = handle;
            return {netio::error::os_failure, 0};
        }
        return Backend::attach(handle, who);
    }
    static void close_handle(netio::socket_handle handle, bool abort) noexcept {
        if (handle != forgotten || handle == netio::no_handle) {
            Backend::close_handle(handle, abort);
        }
    }
};

/// Small pools: every bound is met in passing.
inline constexpr netio::limits service_limits{.connections_max = 64,
                                              .listeners_max = 4,
                                              .buffer_bytes = 1024,
                                              .input_buffers_max = 16,
                                              .output_buffers_max = 32,
                                              .connection_output_buffers_max = 4,
                                              .posts_max = 64,
                                              .timers_max = 4,
                                              .datagram_sockets_max = 2,
                                              .datagram_sends_max = 8,
                                              .trusted_networks_max = 4,
                                              .events_per_turn = 8};

/// `count` bytes, of which any two stretches of four differ for a long while.
inline std::string service_pattern(std::size_t count, std::uint32_t seed = 1) {
    std::string out(count, '\0');
    for (char& each : out) {
        seed = seed * 1664525 + 1013904223;
        each = static_cast<char>(seed >> 24);
    }
    return out;
}

/// Turns that a case may take before it has failed; each waits at most a millisecond.
inline constexpr int service_turns_max = 10'000;

/// Where deadlines are waited for: a second for each millisecond in which nothing happens. So it is
/// events that decide, not how fast a machine is.
inline constexpr std::uint64_t service_hurry = 1'000'000'000;

template <class Backend, class Gate = netio::allow_all, class Tls = netio::no_tls>
class service_world {
public:
    using kernel = service_kernel<Backend>;
    using server_type = netio::server<scripted, kernel, Gate, remembering, Tls>;

    explicit service_world(const netio::limits& chosen = service_limits, std::uint64_t skip_ns = 0)
        : sizes_(chosen), memory(netio::bytes_needed<kernel>(chosen)) {
        kernel::skip_ns = skip_ns;
        client_os::start();
        handles_before_ = client_os::open_handles();
        const netio::storage_view box{memory.all(), sizes_};
        if constexpr (!std::is_same_v<Tls, netio::no_tls>) {
            server_.emplace(box, handler, events, tls);
        } else if constexpr (std::is_same_v<Gate, netio::allow_all>) {
            server_.emplace(box, handler, events);
        } else {
            server_.emplace(box, handler, gate, events);
        }
        REQUIRE(server_->failure().code == netio::error::none);
    }
    service_world(const service_world&) = delete;
    service_world& operator=(const service_world&) = delete;
    ~service_world() {
        check_nothing_held();
        server_.reset();
        kernel::skip_ns = 0;
        CHECK((!checks_handles || client_os::open_handles() == handles_before_));
    }

    server_type& server() { return *server_; }

    /// Where the new listener is; on IPv4's loopback if nothing is said.
    netio::endpoint listen(netio::listen_options how = {}) {
        if (how.address.empty() && how.unix_path.empty() && !how.dual_stack) {
            how.address = "127.0.0.1";
        }
        netio::listener_id id;
        REQUIRE(server_->listen(how, &id) == netio::error::none);
        return server_->local(id);
    }
    /// Turns until `done()`, or until it is clear that it never will be.
    template <class Done>
    bool until(Done done) {
        for (int turn = 0; turn < service_turns_max; ++turn) {
            if (done()) {
                return true;
            }
            server_->run_once(1);
        }
        return done();
    }
    /// Sends all of `text` and turns until `expected` bytes came back or it is over.
    const std::string& exchange(client_socket& client, std::string_view text,
                                std::size_t expected) {
        std::size_t sent = 0;
        until([&] {
            sent += sent < text.size() ? client.send(text.substr(sent)) : 0;
            return (client.arrived().size() >= expected && sent == text.size()) || client.over();
        });
        return client.arrived();
    }
    const std::string& exchange(client_socket& client, std::string_view text) {
        return exchange(client, text, client.arrived().size() + text.size());
    }
    bool until_closed(std::uint32_t count) {
        return until([&] { return handler.closed == count; });
    }
    /// Handles that this process holds beyond those it had before.
    std::size_t handles_more() const { return client_os::open_handles() - handles_before_; }

    /// Stops, and finds every pool full.
    void check_nothing_held() {
        server_->stop();
        for (int turn = 0; turn < service_turns_max && server_->run_once(1); ++turn) {
        }
        const netio::server_stats stats = server_->stats();
        CHECK(stats.open == 0);
        for (const netio::pool_stats& pool : stats.pools) {
            CAPTURE(pool.name);
            CHECK(pool.in_use == 0);
        }
        CHECK(handler.opened == handler.closed);
        CHECK(stats.counts.opened == handler.opened);
        CHECK(events.count(netio::server_event_kind::closed) == stats.counts.closed);
    }

private:
    netio::limits sizes_;
    std::size_t handles_before_ = 0;

public:
    scripted handler;
    Gate gate{};
    Tls tls{};
    remembering events;
    fresh_memory memory;
    bool checks_handles = true;  // a case may do that itself

private:
    std::optional<server_type> server_;
};

/// What another thread does with a client: waits for bytes without the server's help.
template <class Done>
bool settle(client_socket& client, Done done) {
    for (int tries = 0; tries < service_turns_max && !done(); ++tries) {
        client_os::wait_readable(client.handle(), 1);
    }
    return done();
}

/// An echo, by copying or by moving.
inline void service_echo(scripted& handler, bool moves = false) {
    handler.data = [moves](netio::connection& c, netio::bytes in) {
        return moves ? c.move_input_to(c) : c.write(in);
    };
}

}  // namespace netio_test

#endif
