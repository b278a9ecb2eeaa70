// floor 6 · events.hpp · what a server tells an observer, and the observer that costs nothing
#ifndef NETIO_EVENTS_HPP
#define NETIO_EVENTS_HPP

#include "src/connection.hpp"

NETIO_BEGIN

enum class server_event_kind : std::uint8_t {
    accepted,             // a slot was found; id, listener, source
    refused,              // none was, or a cap was hit; reason, source
    opened,               // on_open is about to run; source is the client's
    connect_failed,       // an outgoing connection came to nothing; why
    closed,               // the last word on a connection; reason, bytes, lifetime
    accept_failed,        // the listener gave an error; why, os_code
    descriptor_pressure,  // out of descriptors: the listener rests a while
    drain_started,
    drain_finished,
    egress_denied,        // the gate held back what was queued; reason
    datagram_dropped,     // beyond a budget; source, listener is the UDP socket's index
    coalesced,            // `count` more of kind `of` than were told; reason is the last one's
    count_
};

/// Stable snake_case name. Never null.
constexpr const char* name(server_event_kind kind) noexcept {
    constexpr const char* names[] = {"accepted",      "refused",       "opened",
                                     "connect_failed", "closed",       "accept_failed",
                                     "descriptor_pressure", "drain_started", "drain_finished",
                                     "egress_denied", "datagram_dropped", "coalesced"};
    static_assert(sizeof(names) / sizeof(names[0]) ==
                  static_cast<std::size_t>(server_event_kind::count_));
    const auto index = static_cast<std::size_t>(kind);
    return index < static_cast<std::size_t>(server_event_kind::count_) ? names[index] : "unknown";
}

/// A fixed-size, copyable fact. Fields that a kind does not name are zero.
struct server_event {
    server_event_kind kind = server_event_kind::accepted;
    error why = error::none;
    close_reason reason{};
    std::uint32_t worker = 0;
    std::uint32_t listener = 255;
    std::int32_t os_code = 0;
    connection_id id{};
    endpoint source{};
    std::uint64_t bytes_in = 0;
    std::uint64_t bytes_out = 0;
    std::uint64_t lifetime_ms = 0;
    std::uint64_t count = 1;                                  // of coalesced: how many
    server_event_kind of = server_event_kind::accepted;       // of coalesced: of what
};

/// So many refusals, failed accepts, rests for want of descriptors or dropped datagrams are told of
/// each in a second; what comes beyond is counted and told once, as `coalesced`, when that second
/// is over. All other kinds are told one by one: each has a connection that holds a slot.
inline constexpr std::uint32_t burst_events_max = 16;
inline constexpr std::uint32_t burst_ms = 1'000;

namespace detail {

inline constexpr server_event_kind burst_kinds[] = {server_event_kind::refused,
                                                    server_event_kind::accept_failed,
                                                    server_event_kind::descriptor_pressure,
                                                    server_event_kind::datagram_dropped};
inline constexpr std::size_t burst_kind_count = sizeof(burst_kinds) / sizeof(burst_kinds[0]);

/// Its place among them, or burst_kind_count.
constexpr std::size_t burst_of(server_event_kind kind) noexcept {
    std::size_t at = 0;
    while (at != burst_kind_count && burst_kinds[at] != kind) {
        ++at;
    }
    return at;
}

}  // namespace detail

/// The observer that is not there: nothing is built for it. An observer of one's own has
/// `void on_event(const server_event&) noexcept`, called on the worker's thread; it must be quick.
struct no_events {};

NETIO_END

#endif
