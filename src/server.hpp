// floor 8 · server.hpp · storage and server: the memory, the listeners, the workers, in one object
#ifndef NETIO_SERVER_HPP
#define NETIO_SERVER_HPP

#include "platform/default_backend.hpp"
#include "src/carver.hpp"
#include "src/reactor.hpp"
#include "src/server_stats.hpp"

#include <cstdio>

NETIO_BEGIN

/// The memory of a server, sized at compile time: `constinit static netio::storage<{...}> memory;`
/// lands in .bss. Serves one server; for another it must be all-zero again.
template <limits Sizes, class Backend = default_backend>
struct storage {
    static_assert(wrong_field(Sizes) == nullptr, "netio: a field of the limits is out of range");
    static constexpr limits sizes = Sizes;
    static constexpr std::size_t byte_count = detail::storage_layout<Backend>::of(Sizes).total;

    // Only the first byte has an initialiser: so this is a constant for every compiler, costs none
    // of them time, and stays in .bss.
    union {
        std::byte first_{};
        alignas(detail::page_bytes) std::byte memory[byte_count];
    };
};

/// Memory sized at run time: all-zero bytes (fresh from mmap, calloc or static), at least
/// `bytes_needed<Backend>(sizes)`. Must outlive the server.
struct storage_view {
    mutable_bytes memory{};
    limits sizes{};
};

/// Names a listener of a server.
struct listener_id {
    std::uint32_t index = 0;
    constexpr bool operator==(const listener_id&) const noexcept = default;
};

/// What became of the connections that a drain met: idle + finished + cut are those at its begin,
/// and those that came to life during it (outgoing ones).
struct drain_report {
    std::uint64_t open_at_begin = 0;
    std::uint64_t idle = 0;      ///< ended at once, or when they became idle
    std::uint64_t finished = 0;  ///< ended for a reason of their own
    std::uint64_t cut = 0;       ///< reset at the deadline, or by a stop before it
    std::uint64_t took_ms = 0;   ///< of the slowest worker
};

/// A network service in a box of memory. Listen, then `run` on each worker's thread. Never
/// allocates, never starts a thread, never throws.
///
/// Which thread may call what: `post`, `kill`, `close` any; `stop`, `drain`, the door and `control`
/// any, also in signal handlers; those that add and remove listeners one thread at a time, also
/// while workers run; `open_datagram` before they run, or on the only worker's thread; everything
/// else the thread of the worker it concerns. The destructor ends what is left: by then no other
/// thread may use the server.
template <class Handler, class Backend = default_backend, class Gate = allow_all,
          class Events = no_events, class Tls = no_tls>
class server {
    using state = detail::worker_state<Backend>;
    using layout = detail::storage_layout<Backend>;
    using loop = reactor<Handler, Backend, Gate, Events, Tls>;
    static constexpr bool open_to_all = std::is_same_v<Gate, allow_all>;
    static constexpr bool unobserved = std::is_same_v<Events, no_events>;
    static constexpr bool plain = std::is_same_v<Tls, no_tls>;

public:
    /// With the memory and the handler come a gate, if it has one (see `allow_all`), an observer,
    /// if it has one (see `no_events`), and a TLS policy, if it has one (see `no_tls`). All of them
    /// must outlive it.
    template <limits Sizes, class... Policies>
    server(storage<Sizes, Backend>& box, Handler& handler, Policies&... policies) noexcept
        : server(storage_view{box.memory, Sizes}, handler, policies...) {}
    server(storage_view box, Handler& handler) noexcept
        requires(open_to_all && unobserved && plain)
        : server(box, handler, nullptr, nullptr, nullptr) {}
    server(storage_view box, Handler& handler, Events& events) noexcept
        requires(open_to_all && !unobserved && plain)
        : server(box, handler, nullptr, &events, nullptr) {}
    server(storage_view box, Handler& handler, Gate& gate) noexcept
        requires(!open_to_all && unobserved && plain)
        : server(box, handler, &gate, nullptr, nullptr) {}
    server(storage_view box, Handler& handler, Gate& gate, Events& events) noexcept
        requires(!open_to_all && !unobserved && plain)
        : server(box, handler, &gate, &events, nullptr) {}
    server(storage_view box, Handler& handler, Tls& tls) noexcept
        requires(open_to_all && unobserved && !plain)
        : server(box, handler, nullptr, nullptr, &tls) {}
    server(storage_view box, Handler& handler, Events& events, Tls& tls) noexcept
        requires(open_to_all && !unobserved && !plain)
        : server(box, handler, nullptr, &events, &tls) {}
    server(storage_view box, Handler& handler, Gate& gate, Tls& tls) noexcept
        requires(!open_to_all && unobserved && !plain)
        : server(box, handler, &gate, nullptr, &tls) {}
    server(storage_view box, Handler& handler, Gate& gate, Events& events, Tls& tls) noexcept
        requires(!open_to_all && !unobserved && !plain)
        : server(box, handler, &gate, &events, &tls) {}
    server(const server&) = delete;
    server& operator=(const server&) = delete;
    /// Ends every connection as `stop` does, with RST, and waits for the kernel's last word on
    /// each. Of the handler only `on_close` and `on_connect_failed` are called, as ever once each.
    ~server() { tear_down(); }

    /// Whether released memory is overwritten (it is, unless this says no). Before the first run.
    void wipe_released(bool wanted) noexcept {
        for (std::uint32_t at = 0; at < worker_count(); ++at) {
            worker_of(at).core.pool.set_wiping(wanted);
        }
    }
    /// Touches all memory now, so that no page fault comes later (12 to 17 us each on some
    /// machines). Costs its whole size in resident memory. Before the first run.
    void prefault() noexcept {
        for (std::size_t at = 0; at < memory_.size(); at += detail::page_bytes) {
            auto* byte = reinterpret_cast<volatile std::byte*>(memory_.data() + at);
            *byte = *byte;
        }
    }
    /// How outgoing connections are made: their deadlines and socket options. Before the first run.
    /// Rates whose window or grace is out of range are off.
    void outgoing(const connect_options& chosen) noexcept {
        if (shared_ != nullptr) {
            shared_->outgoing_times = chosen.times;
            if (!rates_are_sane(chosen.times)) {
                shared_->outgoing_times.rate_in = shared_->outgoing_times.rate_out = 0;
            }
            shared_->outgoing_socket = chosen.socket;
        }
    }

    /// How its workers wait. Before the first run.
    void waiting(const wait_options& chosen) noexcept {
        if (shared_ != nullptr) {
            shared_->waiting = chosen;
            shared_->waiting.spin_us = chosen.spin_us < spin_us_max ? chosen.spin_us : spin_us_max;
        }
    }

    /// Binds and listens; workers accept once they run. The error is also `failure()`.
    error listen(const listen_options& wanted, listener_id* id = nullptr) noexcept {
        if (shared_ == nullptr) {
            return failure_.code;
        }
        failure_ = {};
        const result<std::uint32_t> index = free_listener();
        char name[119];
        const std::string_view where =
            name_of(wanted.unix_path, wanted.address, wanted.port, wanted.dual_stack, name);
        if (!index) {
            return fail("listen", where, index.why);
        }
        detail::listener_entry& entry = shared_->listeners[index.value];
        stream_address address{{}, wanted.unix_path};
        if (!resolve(wanted, address, where) ||
            !apply(wanted, entry, where, !wanted.unix_path.empty())) {
            return failure_.code;
        }
        const os_handle bound = Backend::listen(address, wanted);
        if (!bound) {
            give_trusted(entry);
            return fail("listen", where, bound.status.why, bound.status.os_code);
        }
        return publish(index.value, bound, id);
    }
    /// Goes on with a listening stream socket that somebody else made: a service manager
    /// (`take_activated`), a predecessor (`take_over`). Verified, and made non-blocking and
    /// close-on-exec. `wanted` says what its connections get: deadlines, caps, PROXY, worker, the
    /// socket options they inherit, and the backlog if one is given; what would say where to listen
    /// is refused. Its file, if it is a unix socket with one, is removed at the end only if `file`
    /// says which that is. On an error the socket stays the caller's, else it is the server's.
    /// Before or while the workers run, one call at a time of this, `listen` and `open_datagram`.
    error adopt_listener(socket_handle handle, const listen_options& wanted,
                         listener_id* id = nullptr, const socket_file& file = {}) noexcept {
        if (shared_ == nullptr) {
            return failure_.code;
        }
        failure_ = {};
        char name[40];
        const std::string_view what =
            detail::line_writer(name).put("descriptor ").put(static_cast<std::uint64_t>(handle))
                .finish();
        const result<std::uint32_t> index = free_listener();
        if (!index) {
            return fail("adopt_listener", what, index.why);
        }
        detail::listener_entry& entry = shared_->listeners[index.value];
        if constexpr (!backend_takes_listeners<Backend>) {
            return fail("adopt_listener", Backend::name, error::not_supported);
        } else {
            const bool is_unix =
                Backend::local_of(handle).value.family == address_family::unix_path;
            if (!may_be_said_of_adopted(wanted) || !apply(wanted, entry, what, is_unix)) {
                return failure_.code;
            }
            os_handle taken = Backend::take_listener(handle, wanted);
            if (!taken) {
                give_trusted(entry);
                return fail("adopt_listener", what, taken.status.why, taken.status.os_code);
            }
            taken.file = file;
            return publish(index.value, taken, id);
        }
    }
    /// Another process has this listener's socket, too, and goes on with it: no worker accepts from
    /// it any more, and this process's descriptor is closed when the last one has seen that. Who
    /// waits in the queue is not lost, open connections stay, a file stays. A drain is for later,
    /// when `is_open` says no and those accepted last have had time for their first request: it
    /// closes who is idle at once. Any thread, any time after `listen`; again: nothing happens.
    /// False: no such listener.
    bool release_listener(listener_id id) noexcept {
        if (id.index >= listener_total()) {
            return false;
        }
        shared_->listeners[id.index].released.store(1);
        loop::leave(shared_->listeners[id.index]);
        tell_workers();
        return true;
    }
    /// Whether a listener's descriptor is still open here.
    bool is_open(listener_id id) const noexcept {
        return id.index < listener_total() &&
               shared_->listeners[id.index].holds.load(detail::ordering::acquire) != 0;
    }
    /// Its socket, to hand it on: the server's own, to be closed by nobody else, valid until it is
    /// released or a stop or drain begins. no_handle where there is none.
    socket_handle native_handle(listener_id id) const noexcept {
        return is_open(id) ? shared_->listeners[id.index].handle : no_handle;
    }
    /// The file that it made, all-zero where there is none.
    socket_file file_of(listener_id id) const noexcept {
        return is_open(id) ? shared_->listeners[id.index].file : socket_file{};
    }
    /// The same, giving the listener's name.
    result<listener_id> add_listener(const listen_options& wanted) noexcept {
        listener_id id;
        const error failed = listen(wanted, &id);
        return failed == error::none ? result<listener_id>(id) : result<listener_id>(failed);
    }
    /// Where a listener is bound: its port when 0 was asked for.
    endpoint local(listener_id id = {}) const noexcept {
        return id.index < listener_total() && shared_->listeners[id.index].holds.load(
                                                  detail::ordering::acquire) != 0
                   ? Backend::local_of(shared_->listeners[id.index].handle).value
                   : endpoint{};
    }

    /// Binds a UDP socket; worker `id % workers` serves it.
    result<datagram_id> open_datagram(const datagram_options& wanted) noexcept {
        char name[119];
        const std::string_view where =
            name_of({}, wanted.address, wanted.port, wanted.dual_stack, name);
        if (shared_ == nullptr) {
            return failure_.code;
        }
        failure_ = {};
        std::uint32_t index = 0;
        while (index < sizes_.datagram_sockets_max && sockets_[index].in_use) {
            ++index;
        }
        if (index == sizes_.datagram_sockets_max) {
            return fail("open_datagram", where, error::full);
        }
        const result<endpoint> at = address_of(wanted.address, wanted.port, wanted.dual_stack);
        if (!at) {
            return fail("open_datagram", where, at.why);
        }
        detail::datagram_entry& entry = sockets_[index];
        if (!may_bound(wanted) || !key_sources(worker_of(datagram_id{index}))) {
            return failure_.code;
        }
        if (!take_trusted(wanted.trusted, entry.trusted_first, entry.trusted_count, where)) {
            return failure_.code;
        }
        const os_handle bound = Backend::open_datagram(at.value, wanted);
        if (!bound) {
            shared_->trusted_count = entry.trusted_first;
            return fail("open_datagram", where, bound.status.why, bound.status.os_code);
        }
        entry.handle = bound.handle;
        entry.proxy_required = wanted.proxy;
        entry.guard.set({pace_of(wanted.source), pace_of(wanted.total), wanted.amplification,
                         std::uint64_t{wanted.window_ms} * 1'000'000,
                         std::uint64_t{wanted.proven_ms} * 1'000'000},
                        index);
        entry.in_use = true;
        shared_->listeners_version.fetch_add(1, detail::ordering::release);
        return datagram_id{index};
    }
    endpoint local(datagram_id id) const noexcept {
        return id.index < sizes_.datagram_sockets_max && sockets_ != nullptr &&
                       sockets_[id.index].in_use
                   ? Backend::local_of(sockets_[id.index].handle).value
                   : endpoint{};
    }

    // ---- running

    /// Serves as worker `worker` until a stop or drain is complete. none, or why it could not
    /// start.
    ///
    /// A server belongs to the process that first ran it. In a child that was forked later `run`,
    /// `listen` and `adopt_listener` return error::forked_child, and the child's copy ends without
    /// a trace: no connection, file or registration of the parent's is touched. Its descriptors
    /// are closed by `exec` or with the process; until then peers do not see what the parent
    /// closes. Other calls are not for a child, nor is a return into a loop it was forked from.
    error run(std::uint32_t worker = 0) noexcept {
        const error opened = open_to_run(worker);
        if (opened != error::none) {
            return opened == error::stopped ? error::none : opened;
        }
        loop turns = loop_of(worker);
        while (turns.turn(forever_ns)) {
        }
        turns.close();
        return error::none;
    }
    /// One turn, for a loop of one's own: waits at most `ms` (0: not at all). False once a stop or
    /// drain is complete, or if the worker can't open (see `failure`).
    bool run_once(std::uint32_t ms = 0, std::uint32_t worker = 0) noexcept {
        if (open(worker) != error::none) {
            return false;
        }
        const bool goes_on = loop_of(worker).turn(std::uint64_t{ms} * 1'000'000);
        if (!goes_on) {
            loop_of(worker).close();  // on the thread that opened it
        }
        return goes_on;
    }
    /// Something a foreign loop can poll for reading, or no_handle. Call `run_once` when it is
    /// readable or `wait_ms` has passed.
    socket_handle wait_handle(std::uint32_t worker = 0) noexcept {
        return open(worker) == error::none ? worker_of(worker).backend.wait_handle() : no_handle;
    }
    /// Milliseconds, rounded up, that a foreign loop may sleep; -1: until the handle is readable.
    std::int64_t wait_ms(std::uint32_t worker = 0) noexcept {
        if (open(worker) != error::none) {
            return 0;
        }
        const std::uint64_t ns = loop_of(worker).sleep_ns();
        return ns == forever_ns ? -1 : static_cast<std::int64_t>((ns + 999'999) / 1'000'000);
    }

    // ---- on a worker's thread

    /// `on_timer(word)` on worker `worker`, not earlier than `ms` from now. error::full: no timer
    /// is free (limits::timers_max). On that worker's thread: in a callback of another, give its
    /// own number (`connection::worker`).
    result<timer_id> after(std::uint64_t ms, std::uint64_t word,
                           std::uint32_t worker = 0) noexcept {
        const error opened = open(worker);
        return opened == error::none ? loop_of(worker).after(ms, word) : result<timer_id>(opened);
    }
    /// False if it fired already or never was. On the thread of the worker it was started on.
    bool cancel(timer_id timer) noexcept {
        const std::uint32_t worker = loop::worker_of(timer);
        return worker < worker_count() && loop_of(worker).cancel(timer);
    }
    /// Starts an outgoing connection: `on_open` or `on_connect_failed(word, error)` follows.
    result<connection_id> connect(const endpoint& to, std::uint64_t word = 0,
                                  std::uint32_t worker = 0) noexcept {
        const error opened = open(worker);
        return opened == error::none ? loop_of(worker).connect({to, {}}, word)
                                     : result<connection_id>(opened);
    }
    result<connection_id> connect_unix(std::string_view path, std::uint64_t word = 0,
                                       std::uint32_t worker = 0) noexcept {
        const error opened = open(worker);
        return opened == error::none ? loop_of(worker).connect({{}, path}, word)
                                     : result<connection_id>(opened);
    }
    /// Connects to the first of `candidates` (1 to 8, what a resolver gave, in its order) that
    /// answers: `on_open` follows, with `word` as its `connect_word` and the winner as `source`, or
    /// `on_connect_failed(word, error)`, once. Attempts are connections: caps, lanes and the gate
    /// count each, `server::outgoing` says how they are made, and an observer is told of each that
    /// fails, but not of one that could not start (a cap, the gate, no route); who loses to the
    /// first ends as `outpaced` and was never open. Told is the most telling failure of the last
    /// round: an answer of a peer (refused, reset) before a time-out, that before what the system
    /// says of the way there, that before a bound of netio's; of equal ones the first. A stop ends
    /// a dial with `stopped`, a drain with `cancelled`, and in a drain there are no second rounds.
    ///
    /// Or an error at once, and nothing is told: `option_invalid`, `address_invalid`, `full`
    /// (limits::dials_max), `stopped`, or why no attempt could start where there is one round.
    result<dial_id> dial(std::span<const endpoint> candidates, std::uint64_t word = 0,
                         const dial_options& how = {}, std::uint32_t worker = 0) noexcept {
        const error opened = open(worker);
        return opened == error::none ? loop_of(worker).dial(candidates, word, how)
                                     : result<dial_id>(opened);
    }
    /// No `on_open` comes of it from here on, but `on_connect_failed(word, cancelled)`, within a
    /// turn, or behind the timers of a turn that has more than `turn_bounds::timers` of them.
    /// False: it is over already or never was. On the thread of the worker it was started on.
    bool cancel_dial(dial_id wanted) noexcept {
        const std::uint32_t worker = loop::worker_of(wanted);
        return worker < worker_count() && loop_of(worker).cancel_dial(wanted);
    }
    /// Takes over a connected, non-blocking stream socket; `on_open` comes in the next turn. On an
    /// error it stays the caller's. On Windows it must be overlapped and in no completion port.
    result<connection_id> adopt(socket_handle handle, std::uint32_t worker = 0) noexcept {
        const error opened = open(worker);
        return opened == error::none ? loop_of(worker).adopt(handle)
                                     : result<connection_id>(opened);
    }
    /// Sends one datagram from a socket of this server, on its worker's thread. False as
    /// `datagram_socket::send_to`: also to addresses that never sent anything and are not proven
    /// (where the table is full: beyond what those without a place have earned together).
    bool send_to(datagram_id from, const endpoint& to, bytes payload) noexcept {
        const std::uint32_t worker = worker_of(from);
        return open(worker) == error::none && loop_of(worker).send_to(from, to, payload);
    }
    /// As `datagram_socket::prove`, on its worker's thread.
    bool prove(datagram_id of, const endpoint& who) noexcept {
        const std::uint32_t worker = worker_of(of);
        return open(worker) == error::none && loop_of(worker).prove(of, who);
    }

    // ---- any thread

    /// `on_post(c, word)` on the connection's worker. False: its queue is full, or the worker has
    /// ended. A connection that is gone by then is counted as stale.
    bool post(connection_id to, std::uint64_t word) noexcept {
        const std::uint32_t worker = worker_of(to);
        if (worker >= worker_count() || worker_of(worker).is_over.load() != 0 ||
            !worker_of(worker).core.posts.push({to.bits, word})) {
            return false;
        }
        wake(worker);
        return true;
    }
    /// Ends a connection with RST: its close reason is killed(reason). Never fails for want of
    /// room. False: it is gone (or never was), or is being killed already. Costs a system call
    /// only where its worker sleeps.
    bool kill(connection_id wanted, std::uint16_t reason = 0) noexcept {
        return want_end(wanted, {0, kill_kind::kill, reason});
    }
    /// Closes a connection as `connection::close` does: no more input, what is queued is flushed,
    /// FIN, linger; with RST if all that takes longer than `ms` (at most 12 days), or than it was
    /// granted already. False: it is gone, or its end was asked for already, for no later time.
    bool close(connection_id wanted, std::uint32_t ms) noexcept {
        return want_end(wanted, {0, kill_kind::close,
                                 ms < kill_marks::value_max ? ms : kill_marks::value_max});
    }
    /// Ends everything at once, with RST; `run` returns when all are closed. Also in a signal
    /// handler.
    void stop() noexcept {
        if (shared_ != nullptr) {
            shared_->stop_wanted.store(1);
            wake_all();
        }
    }
    /// Takes no new connections, closes idle ones at once, lets the others finish, ends what is
    /// left after `ms`; then `run` returns. Also in a signal handler.
    void drain(std::uint64_t ms) noexcept {
        if (shared_ != nullptr) {
            const auto bounded = static_cast<std::uint32_t>(ms < drain_most ? ms : drain_most);
            std::uint32_t seen = shared_->drain_ms.load();
            while ((seen == 0 || bounded + 1 < seen) &&
                   !shared_->drain_ms.compare_exchange_weak(seen, bounded + 1)) {
            }
            wake_all();
        }
    }

    // ---- control: any thread, also in a signal handler, but for reserve_lane and remove_listener

    /// The door: shut until a worker runs for the first time, unless these say otherwise. While it
    /// is shut listeners stay bound and new clients wait in the system's queue (the few that were
    /// on their way are refused, door_closed); who is in stays in. Within a turn of each worker.
    void open_door() noexcept { move_door(detail::door_word::open); }
    void close_door() noexcept { move_door(detail::door_word::shut); }
    bool door_is_open() const noexcept {
        return shared_ != nullptr && static_cast<detail::door_word>(shared_->door.load()) ==
                                         detail::door_word::open;
    }

    /// normal, lockdown, or shed from `lane` on; error::option_invalid for draining and stopping,
    /// which have calls of their own. Within a turn of each worker. The last word counts.
    error control(control_state wanted, std::uint8_t lane = 0) noexcept {
        if (wanted >= control_state::draining) {
            return error::option_invalid;
        }
        if (shared_ == nullptr) {
            return error::not_open;
        }
        shared_->mood.store(detail::control_mood{wanted, lane}.bits());
        tell_workers();
        return error::none;
    }
    /// What it is in now.
    control_state control() const noexcept {
        if (shared_ == nullptr || shared_->stop_wanted.load() != 0) {
            return control_state::stopping;
        }
        return shared_->drain_ms.load() != 0 ? control_state::draining
                                             : detail::mood_of(shared_->mood.load()).state;
    }

    /// Keeps `count` of limits::connections_max for lane `lane` (0 to 7): others can't have them.
    /// Before the first run. error::option_invalid: no such lane, or not so many are left.
    error reserve_lane(std::uint8_t lane, std::uint32_t count) noexcept {
        if (shared_ == nullptr) {
            return error::not_open;
        }
        if (lane >= detail::reservable_lanes) {
            return error::option_invalid;
        }
        detail::lane_places& own = shared_->lanes[lane];
        const std::uint32_t others = shared_->reserved_count - own.reserved;
        if (count > shared_->connections_max - others) {
            return error::option_invalid;
        }
        own.reserved = count;
        shared_->reserved_count = others + count;
        return error::none;
    }

    /// Ends a listener: its socket is closed when each worker that runs has had its turn, who came
    /// in by it stays in, and its place is free for another once they are gone. One thread at a
    /// time with `listen`; workers may run. False: there is none of that name.
    bool remove_listener(listener_id id) noexcept {
        if (id.index >= listener_total() ||
            shared_->listeners[id.index].removed.exchange(1) != 0) {
            return false;
        }
        loop::leave(shared_->listeners[id.index]);
        tell_workers();
        return true;
    }

    // ---- facts

    /// How the drain went, summed over the workers. Complete once `run` has returned on each.
    drain_report drained() const noexcept {
        drain_report out;
        for (std::uint32_t at = 0; at < worker_count(); ++at) {
            const state& w = worker_of(at);
            if (!w.draining) {
                continue;
            }
            const auto by = [&w](close_kind kind) {
                return w.core.counts.closed_by[static_cast<std::size_t>(kind)];
            };
            out.open_at_begin += w.open_at_drain;
            out.idle += by(close_kind::drained);
            const std::uint64_t cut = by(close_kind::drain_deadline) + by(close_kind::shutdown);
            out.cut += cut;
            out.finished += w.core.counts.closed - w.closed_before_drain -
                            by(close_kind::drained) - cut;
            out.took_ms = w.drain_took_ms > out.took_ms ? w.drain_took_ms : out.took_ms;
        }
        return out;
    }

    /// The first thing that went wrong, with its context; see `describe` and `report`.
    const netio::failure& failure() const noexcept { return failure_; }
    /// Workers this server has: `limits::workers_max`.
    std::uint32_t worker_count() const noexcept {
        return shared_ == nullptr ? 0 : sizes_.workers_max;
    }
    const limits& sizes() const noexcept { return sizes_; }
    std::size_t memory_bytes() const noexcept { return memory_.size(); }

    /// Counts and pools, summed. On the only worker's thread, or when none runs.
    server_stats stats() const noexcept {
        server_stats out;
        static constexpr const char* names[] = {"connections", "input_buffers", "output_buffers",
                                                "posts",       "timers",        "datagram_sends",
                                                "preface_buffers", "refusals",      "sources",
                                                "datagram_sources", "datagram_addresses",
                                                "dials"};
        for (std::size_t at = 0; at < server_stats::pool_count; ++at) {
            out.pools[at].name = names[at];
        }
        for (std::uint32_t at = 0; at < worker_count(); ++at) {
            const state& w = worker_of(at);
            add(out.counts, w.core.counts);
            out.counts.kills_stale += w.core.kills.stale_count();
            add(out.pools[0], w.core.slots.stats());
            add(out.pools[1], w.core.pool.stats(side::input));
            add(out.pools[2], w.core.pool.stats(side::output));
            add(out.pools[3], w.core.posts.stats());
            add(out.pools[4], w.timer_slots.stats());
            add(out.pools[5], w.send_slots.stats());
            add(out.pools[6], w.core.preface_stats());
            add(out.pools[7], w.core.refusal_stats());
            add(out.pools[9], w.sources.source_stats(w.up_ns()));
            add(out.pools[10], w.sources.address_stats(w.up_ns()));
            add(out.pools[11], w.dial_slots.stats());
        }
        if (shared_ != nullptr) {
            out.open = shared_->open_count.load(detail::ordering::relaxed);
            add(out.pools[8], shared_->sources.stats());
        }
        return out;
    }

private:
    template <class, class, class, class>
    friend class blocking_pool;

    static constexpr std::uint64_t drain_most = 0xFFFFFFF0;

    // ---- building

    server(storage_view box, Handler& handler, Gate* gate, Events* events, Tls* tls) noexcept
        : handler_(handler), gate_(gate), events_(events), tls_(tls) {
        build(box);
    }

    void build(storage_view view) noexcept {
        if (const char* field = wrong_field(view.sizes); field != nullptr) {
            fail("limits", field, error::limits_invalid);
            return;
        }
        sizes_ = view.sizes;
        const auto place = layout::of(view.sizes);
        const std::size_t skip =
            detail::bytes_to_aligned(view.memory.data(), detail::page_bytes);
        if (view.memory.size() < skip + place.total) {
            failure_.needed = skip + place.total;
            failure_.given = view.memory.size();
            fail("storage", "", error::memory_too_small);
            return;
        }
        const std::uint64_t wanted = descriptors_needed(view.sizes);
        const std::uint64_t allowed = Backend::reserve_descriptors(wanted);
        if (allowed < wanted) {
            failure_.needed = wanted;
            failure_.given = allowed;
            fail("connections_max", "", error::descriptors_limit);
            return;
        }
        memory_ = view.memory.subspan(skip, place.total);
        std::byte* base = memory_.data();
        shared_ = ::new (static_cast<void*>(base + place.shared)) detail::shared_state{};
        shared_->listeners = reinterpret_cast<detail::listener_entry*>(base + place.listeners);
        shared_->trusted = reinterpret_cast<network*>(base + place.trusted);
        shared_->connections_max = view.sizes.connections_max;
        shared_->worker_count = view.sizes.workers_max;
        shared_->source_words = base + place.sources;
        shared_->source_words_count = layout::source_words(view.sizes);
        sockets_ = reinterpret_cast<detail::datagram_entry*>(base + place.sockets);
        workers_ = base + place.workers;
        worker_bytes_ = place.worker.total;
        for (std::uint32_t at = 0; at < view.sizes.workers_max; ++at) {
            detail::build_worker<Backend>(workers_ + at * worker_bytes_, view.sizes, at, *shared_,
                                          sockets_);
        }
    }

    /// Each connection, each listener and UDP socket, the standard three, and a few for each
    /// worker.
    static constexpr std::uint64_t descriptors_needed(const limits& sizes) noexcept {
        return std::uint64_t{sizes.connections_max} + sizes.listeners_max +
               sizes.datagram_sockets_max + 4u * sizes.workers_max + 8;
    }

    /// Both processes have the same sockets: what a child shuts down or takes out of an epoll set,
    /// its parent loses.
    bool in_forked_child() const noexcept {
        if constexpr (backend_may_be_forked<Backend>) {
            const std::uint64_t owner = owner_.load(detail::ordering::relaxed);
            return owner != 0 && owner != Backend::process_id();
        } else {
            return false;
        }
    }
    error open_to_run(std::uint32_t worker) noexcept {
        return in_forked_child() ? fail("run", Backend::name, error::forked_child) : open(worker);
    }
    void note_owner() noexcept {
        if constexpr (backend_may_be_forked<Backend>) {
            if (owner_.load(detail::ordering::relaxed) == 0) {
                owner_.store(Backend::process_id(), detail::ordering::relaxed);
            }
        }
    }

    void tear_down() noexcept {
        if (in_forked_child()) {
            return;
        }
        if (shared_ != nullptr) {
            shared_->stop_wanted.store(1);  // a handler that dials again is told so
            torn_down_ = true;
        }
        for (std::uint32_t at = 0; at < worker_count(); ++at) {
            if (worker_of(at).is_open.load(detail::ordering::acquire) != 0) {
                loop_of(at).shut_down();
                loop_of(at).close();
            }
            worker_of(at).backend.~Backend();  // what a backend of the user's may hold
        }
        for (std::uint32_t at = 0; at < listener_total(); ++at) {
            if (shared_->listeners[at].holds.load(detail::ordering::acquire) != 0) {
                loop::close_listener(shared_->listeners[at]);
            }
        }
        for (std::uint32_t at = 0; sockets_ != nullptr && at < sizes_.datagram_sockets_max; ++at) {
            if (sockets_[at].in_use) {
                Backend::close_handle(sockets_[at].handle, false);
            }
        }
    }

    error open(std::uint32_t worker) noexcept {
        if (worker < worker_count() &&
            worker_of(worker).is_open.load(detail::ordering::relaxed) != 0) {
            return error::none;
        }
        if (shared_ == nullptr) {
            return failure_.code;
        }
        if (worker >= worker_count()) {
            return error::option_invalid;
        }
        if (worker_of(worker).is_over.load() != 0 || torn_down_) {
            return error::stopped;
        }
        constexpr auto open_word = static_cast<std::uint32_t>(detail::door_word::open);
        for (std::uint32_t said = 0;
             said == 0 && !shared_->door.compare_exchange_weak(said, open_word);) {
        }
        note_owner();
        const os_status opened = loop_of(worker).open();
        if (!opened && !open_failed_.exchange(true)) {  // the first of several workers reports
            fail("open", Backend::name, opened.why, opened.os_code);
        }
        return opened.why;
    }

    /// The state is the first thing in a worker's stretch.
    state& worker_of(std::uint32_t worker) const noexcept {
        return *reinterpret_cast<state*>(workers_ + worker * worker_bytes_);
    }
    loop loop_of(std::uint32_t worker) noexcept {
        return loop(worker_of(worker), handler_, gate_, events_, tls_);
    }

    // ---- options

    std::uint32_t listener_total() const noexcept {
        return shared_ == nullptr ? 0 : shared_->listener_count.load(detail::ordering::acquire);
    }
    /// The place of a new listener, or why there is none.
    result<std::uint32_t> free_listener() const noexcept {
        if (in_forked_child()) {
            return error::forked_child;
        }
        for (std::uint32_t at = 0; at < listener_total(); ++at) {
            const detail::listener_entry& entry = shared_->listeners[at];
            if (entry.removed.load() != 0 && entry.holds.load() == 0 &&
                entry.open_count.load(detail::ordering::acquire) == 0) {
                return at;
            }
        }
        if (listener_total() == sizes_.listeners_max) {
            return error::full;
        }
        return listener_total();
    }

    static result<endpoint> address_of(std::string_view text, std::uint16_t port,
                                       bool dual_stack) noexcept {
        if (text.empty()) {
            return dual_stack ? any_ipv6(port) : any_ipv4(port);
        }
        result<endpoint> at = parse_address(text);
        at.value.port = port;
        return at;
    }

    /// From here on the workers see it, also those that sleep.
    error publish(std::uint32_t index, const os_handle& made, listener_id* id) noexcept {
        detail::listener_entry& entry = shared_->listeners[index];
        entry.handle = made.handle;
        entry.file = made.file;
        entry.removed.store(0, detail::ordering::relaxed);
        entry.released.store(0, detail::ordering::relaxed);
        entry.holds.store(1, detail::ordering::release);
        entry.server_holds.store(1, detail::ordering::release);
        if (index == listener_total()) {
            shared_->listener_count.store(index + 1, detail::ordering::release);
        }
        tell_workers();
        if (id != nullptr) {
            id->index = index;
        }
        return error::none;
    }

    /// Its maker decided where it listens and how; a wish that comes too late is not forgotten.
    bool may_be_said_of_adopted(const listen_options& wanted) noexcept {
        const struct {
            const char* field;
            bool given;
        } late[] = {{"address", !wanted.address.empty()},
                    {"port", wanted.port != 0},
                    {"unix_path", !wanted.unix_path.empty()},
                    {"pipe_access", !wanted.pipe_access.empty()},
                    {"unix_mode", wanted.unix_mode != unix_mode_default},
                    {"dual_stack", wanted.dual_stack},
                    {"reuse_port", wanted.reuse_port},
                    {"defer_accept_s", wanted.defer_accept_s != 0},
                    {"fast_open", wanted.fast_open != 0}};
        for (const auto& each : late) {
            if (each.given) {
                fail("adopt_listener", each.field, error::option_invalid);
                return false;
            }
        }
        return true;
    }

    bool resolve(const listen_options& wanted, stream_address& address,
                 std::string_view where) noexcept {
        if (!wanted.unix_path.empty()) {
            return true;
        }
        const result<endpoint> at = address_of(wanted.address, wanted.port, wanted.dual_stack);
        if (!at) {
            fail("listen", where, at.why);
            return false;
        }
        address.ip = at.value;
        return true;
    }

    bool apply(const listen_options& wanted, detail::listener_entry& entry, std::string_view where,
               bool is_unix) noexcept {
        if (wanted.header_max < detail::ingress_bytes || wanted.header_max > 65'551) {
            failure_.needed = detail::ingress_bytes;
            failure_.given = wanted.header_max;
            fail("listen", "header_max", error::option_invalid);
            return false;
        }
        if (wanted.header_max > detail::ingress_bytes &&
            (wanted.header_max > sizes_.buffer_bytes || sizes_.preface_buffers_max == 0)) {
            failure_.needed = wanted.header_max;
            failure_.given = sizes_.preface_buffers_max == 0 ? detail::ingress_bytes
                                                             : sizes_.buffer_bytes;
            fail("listen", "header_max", error::option_invalid);
            return false;
        }
        if (wanted.header_max > detail::ingress_bytes && wanted.trusted.empty() &&
            !is_unix) {
            return field_refused("trusted");  // any stranger could hold the buffers
        }
        if (wanted.worker != every_worker && wanted.worker >= sizes_.workers_max) {
            failure_.needed = wanted.worker + 1;  // workers
            failure_.given = sizes_.workers_max;
            return field_refused("worker");
        }
        if (wanted.tls != tls_mode::off && plain) {
            return field_refused("tls", error::not_supported);  // there is no policy to speak it
        }
        if ((wanted.proxy == proxy_mode::required || wanted.tls == tls_mode::required) &&
            wanted.times.preface_ms < 3000) {
            failure_.needed = 3000;
            failure_.given = wanted.times.preface_ms;
            fail("listen", "preface_ms", error::option_invalid);
            return false;
        }
        if (!apply_unix(wanted, is_unix)) {
            return false;
        }
        if (!rates_are_sane(wanted.times)) {
            return field_refused("rate_window_ms");
        }
        if (wanted.source_connections_max != 0 && !count_sources(wanted)) {
            return false;
        }
        if (!take_trusted(wanted.trusted, entry, where)) {
            return false;
        }
        entry.source_connections_max = wanted.source_connections_max;
        entry.required_uid = wanted.unix_required_uid;
        entry.times = wanted.times;
        entry.connections_max = wanted.connections_max;
        entry.worker = wanted.worker;
        entry.header_max = wanted.header_max;
        entry.proxy_required = wanted.proxy;
        entry.versions = wanted.versions;
        entry.tls = wanted.tls;
        entry.tcp6_with_ipv4 = wanted.tcp6_with_ipv4;
        entry.lockdown_exempt = wanted.lockdown_exempt;
        return true;
    }

    static constexpr bool rates_are_sane(const deadlines& times) noexcept {
        constexpr std::uint32_t most = 1u << 30;
        return times.rate_window_ms != 0 && times.rate_window_ms <= most &&
               times.rate_grace_ms <= most;
    }

    /// The table of sources, and its key, come with the first listener that bounds them.
    bool count_sources(const listen_options& wanted) noexcept {
        if (wanted.source_connections_max > source_table::connections_max) {
            return field_refused("source_connections_max");
        }
        if (shared_->source_words_count == 0) {
            return field_refused("sources_max");
        }
        if (!shared_->sources_ready) {
            std::uint64_t key[2] = {};
            if (!draw_key(key, "listen", "source_connections_max")) {
                return false;
            }
            shared_->sources.attach(shared_->source_words, shared_->source_words_count, key[0],
                                    key[1], worker_count() == 1);
            shared_->sources_ready = true;
        }
        return true;
    }

    /// A key of a hashed table from the system. False, and a failure of that field: it has none.
    bool draw_key(std::uint64_t (&key)[2], const char* operation, const char* field) noexcept {
        if (Backend::fill_random({reinterpret_cast<std::byte*>(key), sizeof(key)})) {
            return true;
        }
        fail(operation, field, error::os_failure);
        return false;
    }

    /// What a UDP socket may be told to bound. The first field out of range is named.
    bool may_bound(const datagram_options& wanted) noexcept {
        const std::uint32_t largest = sizes_.buffer_bytes < datagram_bytes_max ? sizes_.buffer_bytes
                                                                               : datagram_bytes_max;
        constexpr std::uint32_t all = 0xFFFFFFFF;
        const auto least = [](std::uint32_t rate, std::uint32_t burst) {
            return rate != 0 ? burst : 0;
        };
        const struct {
            const char* field;
            std::uint32_t value, least, most;
        } ranges[] = {
            {"source.burst_max", wanted.source.burst_max, least(wanted.source.rate_max, 1), all},
            {"source.bytes_burst_max", wanted.source.bytes_burst_max,
             least(wanted.source.bytes_rate_max, largest), all},
            {"total.burst_max", wanted.total.burst_max, least(wanted.total.rate_max, 1), all},
            {"total.bytes_burst_max", wanted.total.bytes_burst_max,
             least(wanted.total.bytes_rate_max, largest), all},
            {"amplification", wanted.amplification, 0, datagram_amplification_max},
            {"window_ms", wanted.window_ms, datagram_window_ms_min, datagram_window_ms_max},
            {"proven_ms", wanted.proven_ms, datagram_proven_ms_min, datagram_proven_ms_max},
        };
        for (const auto& each : ranges) {
            if (each.value < each.least || each.value > each.most) {
                failure_.needed = each.value < each.least ? each.least : each.most;
                failure_.given = each.value;
                fail("open_datagram", each.field, error::option_invalid);
                return false;
            }
        }
        return true;
    }
    static constexpr detail::datagram_pace pace_of(const datagram_rates& of) noexcept {
        return {detail::token_rate::of(of.rate_max, of.burst_max),
                detail::token_rate::of(of.bytes_rate_max, of.bytes_burst_max)};
    }
    /// A worker's table of datagrams' sources has a key from its first UDP socket on.
    bool key_sources(std::uint32_t worker) noexcept {
        detail::datagram_sources& sources = worker_of(worker).sources;
        if (!sources || sources.has_key()) {
            return true;
        }
        std::uint64_t key[2] = {};
        if (!draw_key(key, "open_datagram", "datagram_sources_max")) {
            return false;
        }
        sources.set_key(key);
        return true;
    }

    /// What unix sockets alone have. A wish that can't be met is refused, not forgotten.
    bool apply_unix(const listen_options& wanted, bool is_unix) noexcept {
        if (wanted.unix_mode > unix_mode_most) {
            failure_.needed = unix_mode_most;
            failure_.given = wanted.unix_mode;
            return field_refused("unix_mode");
        }
        const bool has_file = !wanted.unix_path.empty() && wanted.unix_path[0] != '@';
        if (wanted.unix_mode != unix_mode_default && (!backend_keeps_files<Backend> || !has_file)) {
            return field_refused("unix_mode", error::not_supported);
        }
        if (wanted.unix_required_uid != no_user &&
            (!backend_knows_peers<Backend> || !is_unix)) {
            return field_refused("unix_required_uid", error::not_supported);
        }
        return true;
    }

    /// A listener in the place of one that was removed has that one's rows, if they are enough.
    bool take_trusted(std::string_view list, detail::listener_entry& entry,
                      std::string_view where) noexcept {
        std::uint32_t wanted = list.empty() ? 0 : 1;
        for (const char each : list) {
            wanted += each == ',' ? 1 : 0;
        }
        if (wanted > entry.trusted_room) {
            entry.trusted_room = 0;
            if (!take_trusted(list, entry.trusted_first, entry.trusted_count, where)) {
                return false;
            }
            entry.trusted_room = entry.trusted_count;
            return true;
        }
        const std::uint32_t kept = shared_->trusted_count;
        shared_->trusted_count = entry.trusted_first;
        const bool taken = take_trusted(list, entry.trusted_first, entry.trusted_count, where);
        shared_->trusted_count = kept;
        return taken;
    }
    /// Its listener came to nothing: the rows are free again, if they are the last ones.
    void give_trusted(detail::listener_entry& entry) noexcept {
        if (entry.trusted_first + entry.trusted_room == shared_->trusted_count) {
            shared_->trusted_count = entry.trusted_first;
            entry.trusted_room = 0;
        }
    }

    /// Parses "a/b, c/d" into the table of trusted networks.
    bool take_trusted(std::string_view list, std::uint32_t& first, std::uint32_t& count,
                      std::string_view where) noexcept {
        first = shared_->trusted_count;
        count = 0;
        while (!list.empty()) {
            const std::size_t comma = list.find(',');
            std::string_view item = list.substr(0, comma);
            list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
            while (!item.empty() && item.front() == ' ') {
                item.remove_prefix(1);
            }
            while (!item.empty() && item.back() == ' ') {
                item.remove_suffix(1);
            }
            const result<network> block = parse_network(item);
            if (!block || first + count == sizes_.trusted_networks_max) {
                fail("trusted", block ? where : item, block ? error::full : block.why);
                return false;
            }
            shared_->trusted[first + count++] = block.value;
        }
        shared_->trusted_count = first + count;
        return true;
    }

    // ---- failing

    bool field_refused(const char* field, error why = error::option_invalid) noexcept {
        fail("listen", field, why);
        return false;
    }

    static std::string_view name_of(std::string_view path, std::string_view address,
                                    std::uint16_t port, bool dual_stack,
                                    std::span<char> out) noexcept {
        detail::line_writer line(out);
        if (!path.empty()) {
            return line.put(path).finish();
        }
        if (address.empty()) {
            address = dual_stack ? "::" : "0.0.0.0";
        }
        const bool bare_ipv6 = address.find(':') != std::string_view::npos;
        line.put(bare_ipv6 ? "[" : "").put(address);
        return line.put(bare_ipv6 ? "]:" : ":").put(std::uint64_t{port}).finish();
    }

    error fail(const char* operation, std::string_view subject, error why,
               std::int32_t os_code = 0) noexcept {
        failure_.operation = operation;
        failure_.code = why;
        failure_.os_code = os_code;
        failure_.os_name = os_code != 0 ? Backend::os_name(os_code) : "";
        failure_.about(subject);
        return why;
    }

    // ---- waking, summing

    /// The worker that a connection belongs to, whatever the number: it may be too large.
    std::uint32_t worker_of(connection_id of) const noexcept {
        return worker_count() == 0 ? 0 : token{of.bits}.index() / worker_of(0).core.connections;
    }
    std::uint32_t worker_of(datagram_id of) const noexcept {
        return worker_count() == 0 ? 0 : of.index % worker_count();
    }
    bool want_end(connection_id of, kill_wish wish) noexcept {
        const std::uint32_t worker = worker_of(of);
        if (worker >= worker_count()) {
            return false;
        }
        detail::worker_core& core = worker_of(worker).core;
        wish.generation = token{of.bits}.generation();
        if (!core.kills.want(token{of.bits}.index() - worker * core.connections, wish)) {
            return false;
        }
        wake(worker);
        return true;
    }

    void wake(std::uint32_t worker) noexcept {
        if (worker_of(worker).is_open.load() != 0) {
            worker_of(worker).backend.wake();
        }
    }
    /// Listeners, door or state have changed.
    void tell_workers() noexcept {
        shared_->listeners_version.fetch_add(1);
        wake_all();
    }
    void move_door(detail::door_word wanted) noexcept {
        if (shared_ != nullptr) {
            shared_->door.store(static_cast<std::uint32_t>(wanted));
            tell_workers();
        }
    }
    void wake_all() noexcept {
        for (std::uint32_t at = 0; at < worker_count(); ++at) {
            wake(at);
        }
    }

    static void add(detail::worker_counters& to, const detail::worker_counters& from) noexcept {
        static_assert(sizeof(to) % sizeof(std::uint64_t) == 0);
        constexpr std::size_t count = sizeof(to) / sizeof(std::uint64_t);
        std::uint64_t sums[count];
        std::uint64_t more[count];
        std::memcpy(sums, &to, sizeof(to));
        std::memcpy(more, &from, sizeof(to));
        for (std::size_t at = 0; at < count; ++at) {
            sums[at] += more[at];
        }
        std::memcpy(&to, sums, sizeof(to));
    }
    static void add(pool_stats& to, const pool_stats& from) noexcept {
        to.capacity += from.capacity;
        to.in_use += from.in_use;
        to.high_water += from.high_water;
        to.refused += from.refused;
    }

    Handler& handler_;
    Gate* gate_ = nullptr;      // none is asked for where Gate is allow_all
    Events* events_ = nullptr;  // nor here where Events is no_events
    Tls* tls_ = nullptr;        // nor here where Tls is no_tls
    netio::failure failure_{};
    limits sizes_{};
    mutable_bytes memory_{};
    detail::shared_state* shared_ = nullptr;
    detail::datagram_entry* sockets_ = nullptr;
    std::byte* workers_ = nullptr;
    std::size_t worker_bytes_ = 0;
    detail::atomic<bool> open_failed_ = false;
    bool torn_down_ = false;
    detail::atomic<std::uint64_t> owner_ = 0;  // the process that ran it first
};

template <limits Sizes, class Backend, class Handler>
server(storage<Sizes, Backend>&, Handler&) -> server<Handler, Backend>;
template <limits Sizes, class Backend, class Handler, class Events>
server(storage<Sizes, Backend>&, Handler&, Events&) -> server<Handler, Backend, allow_all, Events>;
template <limits Sizes, class Backend, class Handler, detail::looks_like_gate Gate>
server(storage<Sizes, Backend>&, Handler&, Gate&) -> server<Handler, Backend, Gate>;
template <limits Sizes, class Backend, class Handler, class Gate, class Events>
server(storage<Sizes, Backend>&, Handler&, Gate&, Events&)
    -> server<Handler, Backend, Gate, Events>;
template <limits Sizes, class Backend, class Handler, detail::looks_like_tls Tls>
server(storage<Sizes, Backend>&, Handler&, Tls&)
    -> server<Handler, Backend, allow_all, no_events, Tls>;
template <limits Sizes, class Backend, class Handler, class Events, detail::looks_like_tls Tls>
server(storage<Sizes, Backend>&, Handler&, Events&, Tls&)
    -> server<Handler, Backend, allow_all, Events, Tls>;
template <limits Sizes, class Backend, class Handler, detail::looks_like_gate Gate,
          detail::looks_like_tls Tls>
server(storage<Sizes, Backend>&, Handler&, Gate&, Tls&)
    -> server<Handler, Backend, Gate, no_events, Tls>;
template <limits Sizes, class Backend, class Handler, class Gate, class Events, class Tls>
server(storage<Sizes, Backend>&, Handler&, Gate&, Events&, Tls&)
    -> server<Handler, Backend, Gate, Events, Tls>;
template <class Handler>
server(storage_view, Handler&) -> server<Handler>;
template <class Handler, class Events>
server(storage_view, Handler&, Events&) -> server<Handler, default_backend, allow_all, Events>;
template <class Handler, detail::looks_like_gate Gate>
server(storage_view, Handler&, Gate&) -> server<Handler, default_backend, Gate>;
template <class Handler, class Gate, class Events>
server(storage_view, Handler&, Gate&, Events&)
    -> server<Handler, default_backend, Gate, Events>;
template <class Handler, detail::looks_like_tls Tls>
server(storage_view, Handler&, Tls&)
    -> server<Handler, default_backend, allow_all, no_events, Tls>;
template <class Handler, class Events, detail::looks_like_tls Tls>
server(storage_view, Handler&, Events&, Tls&)
    -> server<Handler, default_backend, allow_all, Events, Tls>;
template <class Handler, detail::looks_like_gate Gate, detail::looks_like_tls Tls>
server(storage_view, Handler&, Gate&, Tls&)
    -> server<Handler, default_backend, Gate, no_events, Tls>;
template <class Handler, class Gate, class Events, class Tls>
server(storage_view, Handler&, Gate&, Events&, Tls&)
    -> server<Handler, default_backend, Gate, Events, Tls>;

/// For the end of main: one line to standard error if something failed, and the exit code.
template <class Handler, class Backend, class Gate, class Events, class Tls>
int report(const char* program,
           const server<Handler, Backend, Gate, Events, Tls>& of) noexcept {
    if (!of.failure()) {
        return 0;
    }
    char line[320];
    describe(of.failure(), line);
    std::fprintf(stderr, "%s: %s\n", program, line);
    return 1;
}

NETIO_END

#endif
