// floor 6 · worker.hpp · one worker with its backend, and where everything lies in the memory
#ifndef NETIO_WORKER_HPP
#define NETIO_WORKER_HPP

#include "src/carver.hpp"
#include "src/connection.hpp"
#include "src/datagram.hpp"

#include <new>

NETIO_BEGIN

/// Names a timer of `server::after`. All-zero: none.
struct timer_id {
    std::uint64_t bits = 0;
    constexpr explicit operator bool() const noexcept { return bits != 0; }
    constexpr bool operator==(const timer_id&) const noexcept = default;
};

namespace detail {

struct timer_entry {
    slot_header header;
    wheel_node node;
    std::uint64_t word;
};

/// A worker's view of one listener.
struct listener_watch {
    bool accepting;
    bool held;                   // counted in the listener's holds
    bool resting;                // after an error: starts again at `resume_ms`
    std::uint32_t pause_ms;      // doubles while errors follow each other
    std::uint32_t generation;    // of the accept: a failure of an earlier one is no news
    std::uint32_t left_at;       // accepts up to this one were a listener's that was removed
    std::uint64_t resume_ms;
};

/// One second of events of a kind that is told as some and a count.
struct event_burst {
    std::uint64_t over_ms;  // the tick at which it is over
    std::uint64_t held;
    std::uint32_t told;
    std::uint32_t listener;  // of the last one held
    close_reason reason;
};
inline constexpr std::size_t burst_kinds_max = 4;

/// Everything one worker has. Lives in the caller's memory from the server's birth to its end.
template <class Backend>
struct worker_state {
    worker_core core;
    Backend backend;
    event* events;
    timer_entry* timers;
    wheel timer_wheel;
    slab timer_slots;
    dial_entry* dials;                // their nodes follow those of the timers
    slab dial_slots;
    std::uint64_t random;             // of their delays; 0: not drawn yet
    listener_watch* watches;
    datagram_entry* sockets;
    datagram_send* sends;
    slab send_slots;
    datagram_sources sources;
    mutable_bytes backend_memory;
    backend_limits backend_sizes;
    std::uint64_t epoch_ns;
    std::uint64_t now_ns;             // as the last turn read it
    std::uint64_t drain_due_ms;
    std::uint64_t sweep_from_turn;    // a drain first takes what the kernel held when it began
    std::uint64_t next_resume_ms;     // earliest of the resting listeners
    std::uint32_t event_count;
    std::uint32_t socket_count;
    std::uint32_t listeners_seen;
    std::uint32_t sweep_dial_at;
    std::uint32_t sweep_at;           // next slot to look at while stopping or draining
    std::uint32_t accept_stopped;
    std::uint32_t drain_seen;         // the drain that was begun with, as in shared_state
    detail::atomic<std::uint32_t> is_open;
    detail::atomic<std::uint32_t> is_over;  // the stop or drain is complete: no more posts
    event_burst bursts[burst_kinds_max];
    std::uint64_t bursts_due_ms;      // the earliest end of one that holds something back
    std::uint64_t drain_begun_ms;
    std::uint64_t drain_took_ms;
    std::uint64_t closed_before_drain;
    std::uint32_t open_at_drain;
    std::uint32_t mood_seen;
    bool door_shut;
    bool ends_idle;                   // idle connections may have to end: a drain, or lanes shed
    bool accepts_held_back;           // no slot here, but other workers have some
    bool draining;
    bool drain_late;
    bool stopping;
    bool sweeping;
    bool sweep_again;                 // something changed for those who were looked at already
    bool spins;                       // something came from the last sleep, or since

    /// Since it opened, as the last turn read the clock.
    std::uint64_t up_ns() const noexcept { return now_ns - epoch_ns; }
};

inline constexpr std::size_t page_bytes = 4096;

/// The smallest power of two that is at least `count` and 2: what the post queue wants.
constexpr std::uint32_t post_capacity(std::uint32_t count) noexcept {
    return count < 2 ? 2 : std::bit_ceil(count);
}

/// Where one worker's parts lie, from the begin of its stretch of memory.
template <class Backend>
struct worker_layout {
    std::size_t state, hot, endpoints, output, ingress, user, links, posts, wheel, timers, kills;
    std::size_t timer_wheel, dials, events, watches, sends, sources, backend_private, buffers;
    std::size_t total;

    static constexpr worker_layout of(const limits& sizes) noexcept {
        const std::uint32_t slots = share(sizes.connections_max, sizes.workers_max);
        const std::uint32_t buffers = buffers_of(sizes);
        const std::uint32_t timers = share(sizes.timers_max, sizes.workers_max);
        const std::uint32_t dials = share(sizes.dials_max, sizes.workers_max);
        const std::uint32_t sends = share(sizes.datagram_sends_max, sizes.workers_max);
        const std::uint32_t posts = post_capacity(share(sizes.posts_max, sizes.workers_max));
        carver at;
        worker_layout out{};
        out.state = at.take(1, sizeof(worker_state<Backend>), page_bytes);
        out.events = at.take(sizes.events_per_turn, sizeof(event), line_bytes);
        out.watches = at.take(sizes.listeners_max, sizeof(listener_watch), line_bytes);
        out.wheel = at.take(1, wheel_type::heads_bytes, line_bytes);
        out.timer_wheel = at.take(timers + dials == 0 ? 0 : 1, wheel_type::heads_bytes, line_bytes);
        out.timers = at.take(timers + dials, sizeof(timer_entry), line_bytes);
        out.dials = at.take(dials, sizeof(dial_entry), line_bytes);
        out.posts = at.take(posts, post_queue::cell_bytes, line_bytes);
        out.sends = at.take(sends, sizeof(datagram_send), line_bytes);
        out.sources = at.take(source_places(sizes), datagram_sources::source_bytes, line_bytes);
        out.kills = at.take(kill_marks::words_for(slots), sizeof(std::uint64_t), line_bytes);
        out.hot = at.take(slots, sizeof(connection), line_bytes);
        out.backend_private =
            at.take(1, Backend::bytes_needed(backend_limits::of(sizes)), line_bytes);
        out.endpoints = at.take(slots, sizeof(endpoint_pair), line_bytes);
        out.output = at.take(slots, sizeof(output_words), line_bytes);
        out.ingress = at.take(slots, ingress_bytes, line_bytes);
        out.user = at.take(slots, user_bytes, line_bytes);
        out.links = at.take(buffers, sizeof(std::uint32_t), line_bytes);
        out.buffers = at.take(buffers, sizes.buffer_bytes, page_bytes);
        out.total = at.take(0, 0, page_bytes);
        return out;
    }
    /// Input and output quotas are separate, so neither side can starve the other:
    /// buffers = input quota + output quota, and every take is charged to one of the two.
    static constexpr std::uint32_t buffers_of(const limits& sizes) noexcept {
        return share(sizes.input_buffers_max, sizes.workers_max) +
               share(sizes.output_buffers_max, sizes.workers_max);
    }
    static constexpr std::uint32_t source_places(const limits& sizes) noexcept {
        return datagram_sources::places_for(share(sizes.datagram_sources_max, sizes.workers_max));
    }

private:
    using wheel_type = netio::wheel;
};

/// Where everything lies: what the workers share, then the workers one after the other.
template <class Backend>
struct storage_layout {
    std::size_t shared, listeners, trusted, sockets, sources, workers, total;
    worker_layout<Backend> worker;

    static constexpr storage_layout of(const limits& sizes) noexcept {
        carver at;
        storage_layout out{};
        out.worker = worker_layout<Backend>::of(sizes);
        out.shared = at.take(1, sizeof(shared_state), page_bytes);
        out.listeners = at.take(sizes.listeners_max, sizeof(listener_entry), line_bytes);
        out.trusted = at.take(sizes.trusted_networks_max, sizeof(network), line_bytes);
        out.sockets = at.take(sizes.datagram_sockets_max, sizeof(datagram_entry), line_bytes);
        out.sources = at.take(source_words(sizes), sizeof(std::uint64_t), line_bytes);
        out.workers = at.take(sizes.workers_max, out.worker.total, page_bytes);
        out.total = at.used();
        return out;
    }
    static constexpr std::uint32_t source_words(const limits& sizes) noexcept {
        const std::uint32_t most = sizes.sources_max < sizes.connections_max
                                       ? sizes.sources_max
                                       : sizes.connections_max;
        return most == 0 ? 0 : source_table::words_for(most);
    }
};

/// Builds a worker in its stretch of all-zero memory. Touches the tables' heads only: no page of a
/// slot or a buffer before its first use.
template <class Backend>
worker_state<Backend>* build_worker(std::byte* at, const limits& sizes, std::uint32_t worker_index,
                                    shared_state& shared, datagram_entry* sockets) noexcept {
    const auto place = worker_layout<Backend>::of(sizes);
    auto* w = ::new (static_cast<void*>(at + place.state)) worker_state<Backend>{};
    worker_core& core = w->core;
    const std::uint32_t slots = share(sizes.connections_max, sizes.workers_max);
    const std::uint32_t timers = share(sizes.timers_max, sizes.workers_max);
    const std::uint32_t dials = share(sizes.dials_max, sizes.workers_max);
    core.hot = reinterpret_cast<connection*>(at + place.hot);
    core.endpoints = reinterpret_cast<endpoint_pair*>(at + place.endpoints);
    core.output = reinterpret_cast<output_words*>(at + place.output);
    core.ingress = reinterpret_cast<std::byte(*)[ingress_bytes]>(at + place.ingress);
    core.user = reinterpret_cast<std::byte(*)[user_bytes]>(at + place.user);
    core.connections = slots;
    core.worker_index = worker_index;
    core.shared = &shared;
    core.connection_buffers_max = sizes.connection_output_buffers_max;
    core.preface_buffers_max = share(sizes.preface_buffers_max, sizes.workers_max);
    core.refusals_max = share(sizes.refusals_max, sizes.workers_max);
    core.slots.attach(at + place.hot, sizeof(connection), slots);
    core.wheel_of_connections.attach(at + place.wheel, at + place.hot + sizeof(slot_header),
                                     sizeof(connection), slots, 0);
    core.pool.attach(at + place.buffers, reinterpret_cast<std::uint32_t*>(at + place.links),
                     worker_layout<Backend>::buffers_of(sizes), sizes.buffer_bytes,
                     share(sizes.input_buffers_max, sizes.workers_max),
                     share(sizes.output_buffers_max, sizes.workers_max), true);
    core.kills.attach(at + place.kills, slots);
    core.posts.attach(at + place.posts, post_capacity(share(sizes.posts_max, sizes.workers_max)));
    w->events = reinterpret_cast<event*>(at + place.events);
    w->event_count = sizes.events_per_turn;
    w->watches = reinterpret_cast<listener_watch*>(at + place.watches);
    w->timers = reinterpret_cast<timer_entry*>(at + place.timers);
    if (timers != 0) {
        w->timer_slots.attach(at + place.timers, sizeof(timer_entry), timers);
    }
    w->dials = reinterpret_cast<dial_entry*>(at + place.dials);
    if (dials != 0) {
        w->dial_slots.attach(at + place.dials, sizeof(dial_entry), dials);
    }
    if (timers + dials != 0) {
        w->timer_wheel.attach(at + place.timer_wheel, at + place.timers + sizeof(slot_header),
                              sizeof(timer_entry), timers + dials, 0);
    }
    w->sockets = sockets;
    w->socket_count = sizes.datagram_sockets_max;
    w->sends = reinterpret_cast<datagram_send*>(at + place.sends);
    w->send_slots.attach(at + place.sends, sizeof(datagram_send),
                         share(sizes.datagram_sends_max, sizes.workers_max));
    w->sources.attach(at + place.sources, worker_layout<Backend>::source_places(sizes));
    w->backend_sizes = backend_limits::of(sizes);
    w->backend_memory = {at + place.backend_private,
                         Backend::bytes_needed(backend_limits::of(sizes))};
    w->next_resume_ms = wheel::never;
    w->bursts_due_ms = wheel::never;
    return w;
}

}  // namespace detail

/// Bytes a server needs for `sizes`, whatever the memory's alignment. Constant expression.
template <class Backend>
constexpr std::size_t bytes_needed(const limits& sizes) noexcept {
    return detail::storage_layout<Backend>::of(sizes).total + detail::page_bytes;
}

NETIO_END

#endif
