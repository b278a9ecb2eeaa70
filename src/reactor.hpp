// floor 7 · reactor.hpp · the loop: one turn after the other, bytes one way, callbacks never nested
#ifndef NETIO_REACTOR_HPP
#define NETIO_REACTOR_HPP

#include "src/events.hpp"
#include "src/gate.hpp"
#include "src/hooks.hpp"
#include "src/tls.hpp"
#include "src/worker.hpp"

NETIO_BEGIN

/// Bounds of one turn, so that none of its steps can keep the others waiting.
struct turn_bounds {
    static constexpr std::uint32_t deadlines = 256;
    static constexpr std::uint32_t timers = 256;
    static constexpr std::uint32_t posts = 256;
    static constexpr std::uint32_t kills = 256;
    static constexpr std::uint32_t swept_slots = 4096;
};

/// Of fewer connections one more or less says nothing about pressure.
inline constexpr std::uint32_t tighten_from = 16;

/// Less than this until something is due: a look at the clock is worth its price.
inline constexpr std::uint64_t due_soon_ns = 2'000'000'000;

/// A listener out of descriptors rests 1 ms, then twice as long each time, up to a second.
inline constexpr std::uint32_t accept_pause_first_ms = 1;
inline constexpr std::uint32_t accept_pause_last_ms = 1000;

/// One worker's loop. Knows the backend by its contract only, and the handler by its hooks. Built
/// on the stack around a worker's state; all that lasts is in there.
///
/// One turn: wait, read the clock, control, dispatch events (starting sends after each callback),
/// expire deadlines, posts, what is owed, what those touched.
template <class Handler, class Backend, class Gate, class Events, class Tls>
class reactor {
    static_assert(backend<Backend>, "netio: the backend does not meet the contract");
    static_assert(detail::check_handler<Handler>());
    static_assert(detail::check_gate<Gate>());
    static_assert(detail::check_tls<Tls>());
    static_assert(detail::burst_kind_count == detail::burst_kinds_max);
    static constexpr bool gated = !std::is_same_v<Gate, allow_all>;
    static constexpr bool secured = !std::is_same_v<Tls, no_tls>;
    using state = detail::worker_state<Backend>;
    using flags = connection::flag;
    using kind = connection_state_kind;

public:
    reactor(state& worker, Handler& handler, Gate* gate, Events* events, Tls* tls) noexcept
        : w_(worker),
          core_(worker.core),
          handler_(handler),
          gate_(gate),
          events_(events),
          tls_(tls) {}

    /// Opens the backend on this thread. Once, before anything else.
    os_status open() noexcept {
        NETIO_ASSERT(w_.is_open.load(detail::ordering::relaxed) == 0);
        static constexpr detail::worker_calls calls{
            &start_connect, &Backend::local_of, gated ? &admit_outgoing : nullptr,
            gated ? &part : nullptr, &credentials_of, &probe_of, &start_dial};
        const os_status opened = w_.backend.open(w_.backend_memory, w_.backend_sizes, core_.pool);
        if (!opened) {
            return opened;
        }
        core_.calls = &calls;
        core_.gate = gate_;
        if constexpr (secured) {
            core_.tls = &*tls_;
        }
        if constexpr (backend_waits_for_batches<Backend>) {
            w_.backend.wait_for_batches(core_.shared->waiting.batch_us);
        }
        if constexpr (backend_blocks<Backend>) {
            w_.backend.wake_at_once(core_.shared->waiting.wake_at_once ||
                                    detail::names_on_post<Handler>);
        }
        w_.epoch_ns = w_.backend.now_ns();
        w_.is_open.store(1);  // in one order with the flags of stop and drain
        read_clock();
        return {};
    }

    /// One turn; waits at most `timeout_ns`, less if something is due. True while there is more to
    /// do: false once a stop or drain is complete.
    bool turn(std::uint64_t timeout_ns) noexcept {
        if (is_over()) {
            return false;
        }
        // From the clock as the last turn read it, which is late by what that turn took: where
        // something is due soon it is read again. What the backend has at hand is its own to know:
        // it may sleep on what it only started.
        std::uint64_t until_due = due_ns(w_.now_ns);
        if (until_due != 0 && until_due < due_soon_ns) {
            until_due = due_ns(w_.backend.now_ns());
        }
        const std::uint64_t most = timeout_ns < until_due ? timeout_ns : until_due;
        bound_accepts();
        const std::uint32_t count = wait(most);
        read_clock();
        return work(count);
    }

    /// Between turns: starts what was asked of connections since the last one, and does what a turn
    /// does but for the wait. For whoever serves a connection outside callbacks: its idle and read
    /// deadlines count from here, for the peer was kept waiting until now. `asks`: it is resumed.
    void advance(connection& served, bool asks) noexcept {
        read_clock();
        served.in_at_ = core_.now_up_ms;
        if (asks) {
            served.resume();
        }
        settle_touched();
        work(0);
    }

    /// Nanoseconds until this worker has something to do of itself; 0: now, forever_ns: never.
    std::uint64_t sleep_ns() noexcept {
        return w_.backend.ready() ? 0 : due_ns(w_.backend.now_ns());
    }

private:
    /// A turn's part after the wait, which gave `count` events, and the clock. As `turn`.
    bool work(std::uint32_t count) noexcept {
        NETIO_ASSERT(count <= w_.event_count);
        ++core_.counts.turns;
        control();
        dispatch(count);
        expire();
        take_kills();
        take_posts();
        serve_waiting();
        serve_owed();
        settle_touched();
        if (w_.sweeping && core_.counts.turns >= w_.sweep_from_turn) {
            sweep();
        }
        if ((w_.stopping || w_.draining) && nothing_left()) {
            finish_worker();
        }
        return !is_over();
    }

    std::uint32_t wait(std::uint64_t most_ns) noexcept {
        const std::span<event> out(w_.events, w_.event_count);
        const std::uint64_t spin_ns = std::uint64_t{core_.shared->waiting.spin_us} * 1'000;
        if (spin_ns == 0) {
            return w_.backend.wait(out, most_ns);
        }
        return spin(out, most_ns, spin_ns);
    }

    /// The kernel is asked again and again, as long as something came just before; then it sleeps.
    std::uint32_t spin(std::span<event> out, std::uint64_t most_ns,
                       std::uint64_t spin_ns) noexcept {
        const std::uint64_t begun_ns = w_.backend.now_ns();
        std::uint64_t spun_ns = 0;
        bool clock_moves = true;  // a simulated one stands still while nothing sleeps
        while (w_.spins && clock_moves && spun_ns < spin_ns && spun_ns < most_ns) {
            if (const std::uint32_t count = w_.backend.wait(out, 0); count != 0) {
                return count;
            }
            const std::uint64_t before_ns = spun_ns;
            spun_ns = w_.backend.now_ns() - begun_ns;
            clock_moves = spun_ns != before_ns;
        }
        const std::uint64_t left_ns = spun_ns < most_ns ? most_ns - spun_ns : 0;
        const std::uint32_t count = w_.backend.wait(out, most_ns == forever_ns ? most_ns : left_ns);
        if (count != 0 || most_ns != 0) {
            w_.spins = count != 0;
        }
        return count;
    }

    std::uint64_t due_ns(std::uint64_t now_ns) noexcept {
        if (core_.touched.first != 0 || core_.due.first != 0 || !core_.posts.empty() ||
            core_.kills.any() ||
            w_.sweeping || core_.someone_can_go() || w_.listeners_seen != listeners_version() ||
            end_is_asked_for()) {
            return 0;
        }
        std::uint64_t due = core_.wheel_of_connections.next_due();
        const auto sooner = [&due](std::uint64_t tick) { due = tick < due ? tick : due; };
        if (w_.timer_wheel.count() != 0) {
            sooner(w_.timer_wheel.next_due());
        }
        sooner(w_.next_resume_ms);
        sooner(w_.bursts_due_ms);
        if (w_.draining && !w_.drain_late) {
            sooner(w_.drain_due_ms);
        }
        if (due == wheel::never) {
            return forever_ns;
        }
        const std::uint64_t now = now_ns - w_.epoch_ns;
        const std::uint64_t at = due > forever_ns / 1'000'000 ? forever_ns : due * 1'000'000;
        return at <= now ? 0 : at - now;
    }

public:
    // ---- calls of the server, on this worker's thread

    result<timer_id> after(std::uint64_t ms, std::uint64_t word) noexcept {
        const std::uint32_t index = w_.timer_slots.capacity() == 0 ? none_index
                                                                   : w_.timer_slots.take();
        if (index == none_index) {
            return error::full;
        }
        read_clock();
        w_.timers[index].word = word;
        const std::uint64_t now = core_.now_up_ms;
        w_.timer_wheel.arm(index, ms > wheel::never - 1 - now ? wheel::never - 1 : now + ms);
        // The spare byte of the token names the worker.
        return timer_id{token::of(index, w_.timer_slots.generation(index),
                                  static_cast<operation>(core_.worker_index))
                            .bits};
    }
    template <class Id>
    static std::uint32_t worker_of(Id of) noexcept {
        return static_cast<std::uint32_t>(token{of.bits}.op());
    }
    bool cancel(timer_id wanted) noexcept {
        const token who{wanted.bits};
        if (!w_.timer_slots.live(who.index(), who.generation())) {
            return false;
        }
        free_timer(who.index());
        return true;
    }
    result<connection_id> connect(const stream_address& to, std::uint64_t word) noexcept {
        read_clock();
        return core_.connect(to, word);
    }
    result<dial_id> dial(std::span<const endpoint> candidates, std::uint64_t word,
                         const dial_options& how) noexcept {
        read_clock();
        return start_dial(core_, candidates, word, how);
    }
    /// In a callback, maybe: what it brings comes with the timers.
    bool cancel_dial(dial_id wanted) noexcept {
        const token who{wanted.bits};
        if (!w_.dial_slots.live(who.index(), who.generation()) ||
            w_.dials[who.index()].is_cancelled) {
            return false;
        }
        w_.dials[who.index()].is_cancelled = true;
        arm_dial(w_, who.index());
        return true;
    }
    result<connection_id> adopt(socket_handle handle) noexcept {
        read_clock();
        const result<std::uint32_t> place =
            core_.take_place(origin::adopted, kind::open, endpoint{}, handle);
        if (!place) {
            return place.why;
        }
        connection& c = core_.hot[place.value];
        const os_status attached = w_.backend.attach(handle, who_of(c));
        if (!attached) {
            c.because(close_kind::io, static_cast<std::uint16_t>(attached.why));
            core_.free_slot(c);
            return attached.why;
        }
        c.set(flags::attached | flags::open_due);
        core_.owe_data(c);
        return core_.id_of(place.value);
    }
    /// The server's own hold of a listener, given up once by whoever comes first.
    static void leave(detail::listener_entry& from) noexcept {
        if (from.server_holds.exchange(0, detail::ordering::acquire_release) != 0) {
            let_go(from);
        }
    }
    bool send_to(datagram_id from, const endpoint& to, bytes payload) noexcept {
        read_clock();
        return send_datagram(&w_, from.index, to, payload);
    }
    bool prove(datagram_id from, const endpoint& who) noexcept {
        read_clock();
        return prove_address(&w_, from.index, who);
    }

    /// Closes a listener that nobody holds any more, and takes away its file first: while it
    /// listens, nobody else takes that for a stale one.
    static void close_listener(detail::listener_entry& of) noexcept {
        if constexpr (backend_keeps_files<Backend>) {
            if (of.released.load() == 0) {
                Backend::remove_file_of(of.handle, of.file);
            }
        }
        Backend::close_handle(of.handle, false);
    }

    /// The backend's end, on the thread that opened it; nothing is left by now.
    void close() noexcept {
        drop_posts();
        w_.is_open.store(0, detail::ordering::release);
        w_.backend.close();
    }

    /// The server's end: ends what is left, without callbacks but `on_close` and
    /// `on_connect_failed`.
    void shut_down() noexcept {
        w_.stopping = true;
        core_.shut = 1;
        core_.torn_down = true;
        accept_at_most(none_index);
        while (!nothing_left()) {
            sweep_all();
            const std::uint32_t count =
                w_.backend.wait({w_.events, w_.event_count}, w_.backend.ready() ? 0 : 1'000'000);
            dispatch(count);
            settle_touched();
        }
        w_.sources.forget_all();
        release_bursts(true);
    }

private:
    // ---- time

    void read_clock() noexcept {
        w_.now_ns = w_.backend.now_ns();
        const std::uint64_t passed = w_.up_ns();
        core_.now_ms = passed / 1'000'000;
        core_.now_up_ms = core_.now_ms + (passed % 1'000'000 != 0 ? 1 : 0);
    }

    struct next_deadline {
        std::uint64_t due = wheel::never;
        deadline_kind which = deadline_kind::idle;
        bool is_look = false;  // at the rates: nothing has passed yet

        void look(std::uint64_t at) noexcept {
            if (at < due) {
                due = at;
                is_look = true;
            }
        }
        void until(std::uint64_t at, deadline_kind candidate) noexcept {
            if (at < due) {
                due = at;
                which = candidate;
                is_look = false;
            }
        }
        void consider(std::uint64_t from, std::uint32_t ms, deadline_kind candidate) noexcept {
            if (ms != 0 && from <= wheel::never - 1 - ms) {
                until(from + ms, candidate);
            }
        }
        void consider_exchange(const connection& c) noexcept {
            if (c.exchange_due_ != 0) {
                until(c.exchange_due(), deadline_kind::exchange);
            }
        }
    };

    /// The deadline that governs a connection as it stands now.
    next_deadline deadline_of(const connection& c) const noexcept {
        const deadlines& times = core_.times_of(c);
        next_deadline next;
        switch (c.state_) {
        case kind::connecting:
            next.consider(c.in_at_, times.connect_ms, deadline_kind::connect);
            break;
        case kind::preface:
            next.consider(c.in_at_, times.preface_ms, deadline_kind::preface);
            break;
        case kind::draining:
            next.consider(c.in_at_, times.linger_ms, deadline_kind::linger);
            next.consider_exchange(c);
            break;
        case kind::open:
            open_deadline(c, times, next);
            break;
        default:
            break;
        }
        return next;
    }

    void open_deadline(const connection& c, const deadlines& times,
                       next_deadline& next) const noexcept {
        const auto tight = [&](std::uint32_t ms) {
            const std::uint32_t less = times.tighten ? ms >> core_.tightened : ms;
            return less == 0 && ms != 0 ? 1 : less;  // 0 would turn it off
        };
        if (has_output(c)) {
            next.consider(c.out_at_, times.write_ms, deadline_kind::write);
            if (times.rate_out != 0 && !c.has(flags::window_inline)) {
                next.look(c.rates_out_ ? window_end(core_.facts_of(c).out, times)
                                       : c.out_at_ + times.rate_grace_ms);
            }
        }
        if (c.has(flags::is_parked)) {
            next.until(c.in_at_, deadline_kind::park);
        } else if (!has_output(c)) {  // while output waits, only its own deadline counts
            const bool in_last = c.in_at_ > c.out_at_ || speaks_tls(c);  // see sent_sealed
            const std::uint64_t last = in_last ? c.in_at_ : c.out_at_;
            if (c.answering_) {
                // Neither of them has anything to wait for but the handler.
            } else if (c.has(flags::in_exchange) ||
                (c.window_end_ != c.window_begin_ && !c.has(flags::is_paused))) {
                next.consider(last, tight(times.read_ms), deadline_kind::read);
                if (times.rate_in != 0 && is_to_send(c)) {
                    next.look(c.rates_in_ ? window_end(core_.facts_of(c).in, times)
                                          : c.in_at_ + times.rate_grace_ms);
                }
            } else {
                next.consider(last, tight(times.idle_ms), deadline_kind::idle);
            }
        }
        next.consider_exchange(c);
    }

    // ---- rates

    /// A request is on its way in, and nothing but its peer keeps it from coming.
    bool is_to_send(const connection& c) const noexcept {
        return c.state_ == kind::open && !has_output(c) && !c.answering_ &&
               core_.pool.room(side::input) != 0 &&
               (c.has(flags::in_exchange) || c.window_end_ != c.window_begin_) &&
               !c.has(flags::is_parked | flags::is_paused | flags::blocked | flags::refused |
                      flags::waits_for_input | flags::window_inline | flags::peer_ended |
                      flags::close_wanted);
    }
    /// Output waits, and nothing but its peer keeps it from going.
    static bool is_to_take(const connection& c) noexcept {
        return c.state_ == kind::open && has_output(c) &&
               !c.has(flags::output_dead | flags::window_inline);
    }

    NETIO_WRAPS std::uint64_t window_end(const detail::rate_meter& of,
                                         const deadlines& times) const noexcept {
        const std::uint32_t ahead = of.begun + (of.in_grace != 0 ? 0 : times.rate_window_ms) -
                                    static_cast<std::uint32_t>(core_.now_up_ms);
        return static_cast<std::int32_t>(ahead) < 0 ? core_.now_ms : core_.now_up_ms + ahead;
    }

    /// Looks at the meters that are due, and starts those that should run. False: the peer is too
    /// slow, and its connection has a reason to end.
    ///
    /// Meters start when the wheel comes by, not with the activity: what is over within the grace,
    /// as nearly all of it is, costs nothing but a bit. So a first window begins one to two graces
    /// after the activity did.
    bool keeps_rates(connection& c) noexcept {
        const deadlines& times = core_.times_of(c);
        const bool in = times.rate_in != 0 && is_to_send(c);
        const bool out = times.rate_out != 0 && is_to_take(c);
        if (!in && !out) {
            c.rates_in_ = c.rates_out_ = false;
            return true;
        }
        detail::opened_facts facts = core_.facts_of(c);
        if (in && too_slow(facts.in, c.rates_in_, c.bytes_in_, times.rate_in, times)) {
            c.because_reset(close_kind::slow_peer_in);
            return false;
        }
        if (out && too_slow(facts.out, c.rates_out_, c.bytes_out_, times.rate_out, times)) {
            c.because_reset(close_kind::slow_peer_out);
            return false;
        }
        c.rates_in_ = in;
        c.rates_out_ = out;
        c.metered_ = true;
        core_.store_facts(c, facts);
        return true;
    }

    NETIO_WRAPS bool too_slow(detail::rate_meter& meter, bool running, std::uint64_t count,
                              std::uint32_t rate, const deadlines& times) const noexcept {
        const auto now = static_cast<std::uint32_t>(core_.now_ms);
        const auto now_up = static_cast<std::uint32_t>(core_.now_up_ms);  // so none is cut short
        if (!running) {
            meter = {count, now_up + times.rate_grace_ms, 1};
            return false;
        }
        const auto ran = static_cast<std::int32_t>(now - meter.begun);
        if (ran < 0 || (meter.in_grace == 0 &&
                        static_cast<std::uint32_t>(ran) < times.rate_window_ms)) {
            return false;
        }
        const bool counts = meter.in_grace == 0;
        const std::uint64_t moved = count - meter.base;
        meter = {count, now_up, 0};
        return counts && moved != 0 &&
               moved * 1'000 < std::uint64_t{rate} * static_cast<std::uint32_t>(ran);
    }

    /// Extending is lazy: a connection armed for an earlier tick is asked again when that comes.
    void arm_deadline(connection& c) noexcept {
        const std::uint64_t due = deadline_of(c).due;
        if (due != wheel::never && (c.timer_.prev == 0 || due < c.timer_.due)) {
            core_.wheel_of_connections.arm(core_.index_of(c), due);
        }
    }

    void expire() noexcept {
        if (core_.wheel_of_connections.quiet_at(core_.now_ms) &&
            w_.timer_wheel.count() == 0 && core_.now_ms < w_.next_resume_ms &&
            core_.now_ms < w_.bursts_due_ms) {
            return;  // no tick has passed since the last look
        }
        core_.wheel_of_connections.expire(
            core_.now_ms, turn_bounds::deadlines, [this](std::uint32_t index) noexcept {
                connection& c = core_.hot[index];
                if (c.state_ == kind::open && !keeps_rates(c)) {
                    begin_close(c, true);
                    return wheel::done;
                }
                const next_deadline next = deadline_of(c);
                if (next.due > core_.now_ms) {
                    return next.due == wheel::never ? wheel::done : next.due;
                }
                if (next.is_look) {
                    return core_.now_ms + 1;
                }
                deadline_passed(c, next.which);
                return wheel::done;
            });
        if (w_.timer_wheel.count() != 0) {
            w_.timer_wheel.expire(core_.now_ms, turn_bounds::timers,
                                  [this](std::uint32_t index) noexcept {
                                      if (index >= w_.timer_slots.capacity()) {
                                          dial_due(index - w_.timer_slots.capacity());
                                          return wheel::done;
                                      }
                                      const std::uint64_t word = w_.timers[index].word;
                                      free_timer(index);
                                      if constexpr (detail::names_on_timer<Handler>) {
                                          handler_.on_timer(word);
                                      }
                                      after_callback();
                                      return wheel::done;
                                  });
        }
        resume_listeners();
        release_bursts(false);
    }

    void free_timer(std::uint32_t index) noexcept {
        w_.timer_wheel.cancel(index);
        w_.timers[index].word = 0;
        w_.timer_slots.give(index);
    }

    static close_kind reason_of(deadline_kind which) noexcept {
        switch (which) {
        case deadline_kind::preface:
            return close_kind::preface_timeout;
        case deadline_kind::read:
            return close_kind::read_timeout;
        case deadline_kind::write:
            return close_kind::write_timeout;
        case deadline_kind::exchange:
            return close_kind::exchange_deadline;
        case deadline_kind::park:
            return close_kind::park_deadline;
        case deadline_kind::connect:
            return close_kind::connect_timeout;
        default:
            return close_kind::idle;
        }
    }

    void deadline_passed(connection& c, deadline_kind which) noexcept {
        if (which == deadline_kind::linger) {
            begin_close(c, false);
            return;
        }
        if constexpr (detail::names_on_deadline<Handler>) {
            if (c.has(flags::opened) && !c.has(flags::close_wanted | flags::kill_wanted)) {
                grant_again(c, which);
                handler_.on_deadline(c, which);
                after_callback();
                settle(c);
                return;
            }
        }
        c.because_reset(reason_of(which));
        begin_close(c, true);
    }

    /// A handler that does nothing about a deadline meets it again after the same time.
    void grant_again(connection& c, deadline_kind which) noexcept {
        switch (which) {
        case deadline_kind::write:
            c.out_at_ = core_.now_up_ms;
            break;
        case deadline_kind::exchange:
            c.exchange_due_ = 0;
            break;
        case deadline_kind::park:
            c.stop_parking();
            break;
        default:
            c.in_at_ = core_.now_up_ms;
            break;
        }
    }

    // ---- events

    static token who_of(const connection& c) noexcept {
        return token::of(c.core().index_of(c), c.header_.generation);
    }

    /// Addresses of peers in the events may not outlast what is done with them.
    void dispatch(std::uint32_t count) noexcept {
        for (std::uint32_t at = 0; at < count; ++at) {
            event& each = w_.events[at];
            dispatch(each);
            if (each.peer.family != address_family::none) {
                wipe(&each.peer, sizeof(each.peer));
            }
        }
    }

    void dispatch(const event& e) noexcept {
        switch (e.op) {
        case operation::accept:
            accept_event(e);
            break;
        case operation::receive_from:
            datagram_event(e);
            break;
        case operation::send_to:
            datagram_sent(e);
            break;
        case operation::wake:
        case operation::none:
            break;
        default:
            connection_event(e);
            break;
        }
    }

    void connection_event(const event& e) noexcept {
        const std::uint32_t index = e.who.index();
        NETIO_ASSERT(core_.slots.live(index, e.who.generation()));
        connection& c = core_.hot[index];
        core_.current = &c;
        switch (e.kind) {
        case event_kind::received:
            received(c, e);
            break;
        case event_kind::sent:
            sent(c, e);
            break;
        case event_kind::ended:
            ended(c);
            break;
        case event_kind::connected:
            connected(c, e);
            break;
        case event_kind::failed:
            failed(c, e);
            break;
        case event_kind::closed:
            closed(c);
            break;
        default:
            NETIO_ASSERT(e.kind == event_kind::closed);  // a connection has no others
            break;
        }
        core_.current = nullptr;
        settle_touched();
    }

    /// Every callback ends here: nothing lent may be kept.
    void after_callback() noexcept { NETIO_ASSERT(core_.buffers_lent == 0); }

    // ---- accept

    NETIO_WRAPS void accept_event(const event& e) noexcept {
        const std::uint32_t listener = e.who.index();
        detail::listener_watch& watch = w_.watches[listener];
        if (e.kind == event_kind::failed) {
            if (watch.accepting && e.who.generation() == watch.generation) {
                watch.accepting = false;
                rest(listener, e);
            }
            return;
        }
        if (e.kind != event_kind::accepted) {
            return;
        }
        ++core_.counts.accepted;
        watch.pause_ms = 0;
        if (static_cast<std::int32_t>(e.who.generation() - watch.left_at) <= 0) {
            refuse(listener, e, refusal_cause::door_closed);  // it came to one that is gone
            return;
        }
        admit(listener, e);
        settle_touched();
    }

    /// A listener that failed: it rests, so that no error can spin.
    void rest(std::uint32_t listener, const event& e) noexcept {
        detail::listener_watch& watch = w_.watches[listener];
        const bool shortage = e.why == error::descriptors_empty;
        ++core_.counts.accept_errors;
        core_.counts.descriptor_pauses += shortage ? 1 : 0;
        const std::uint32_t doubled = watch.pause_ms * 2;
        watch.pause_ms = watch.pause_ms == 0               ? accept_pause_first_ms
                         : doubled > accept_pause_last_ms ? accept_pause_last_ms
                                                           : doubled;
        watch.resting = true;
        watch.resume_ms = core_.now_up_ms + watch.pause_ms;
        resume_at(watch.resume_ms);
        server_event told;
        told.kind = shortage ? server_event_kind::descriptor_pressure
                             : server_event_kind::accept_failed;
        told.why = e.why;
        told.os_code = e.os_code;
        told.listener = listener;
        tell(told);
    }

    void resume_listeners() noexcept {
        if (core_.now_ms < w_.next_resume_ms) {
            return;
        }
        w_.next_resume_ms = wheel::never;
        for (std::uint32_t at = 0; at < listener_count(); ++at) {
            detail::listener_watch& watch = w_.watches[at];
            if (!watch.resting) {
                continue;
            }
            if (watch.resume_ms > core_.now_ms) {
                resume_at(watch.resume_ms);
                continue;
            }
            watch.resting = false;
            start_accept(at);
        }
        start_datagrams();
    }

    void resume_at(std::uint64_t tick) noexcept {
        w_.next_resume_ms = tick < w_.next_resume_ms ? tick : w_.next_resume_ms;
    }

    void admit(std::uint32_t listener, const event& e) noexcept {
        detail::listener_entry& from = core_.shared->listeners[listener];
        if (w_.stopping || w_.draining || w_.door_shut || from.removed.load() != 0) {
            refuse(listener, e, refusal_cause::door_closed);
            return;
        }
        if (from.required_uid != no_user &&
            credentials_of(e.handle).user_id != from.required_uid) {
            refuse(listener, e, refusal_cause::peer_uid);
            return;
        }
        if (locks_out(from)) {
            refuse(listener, e, refusal_cause::lockdown);
            return;
        }
        const std::uint32_t index = core_.take_slot(
            origin::accepted,
            from.proxy_required == proxy_mode::required ? kind::preface : kind::open);
        if (index == none_index) {  // with several workers, others may have a slot left
            refuse(listener, e,
                   core_.shared->worker_count == 1 ? refusal_cause::global_cap
                                                   : refusal_cause::busy);
            return;
        }
        connection& c = core_.hot[index];
        c.listener_ = static_cast<std::uint8_t>(listener);
        core_.endpoints[index].source = e.peer;
        c.handle_ = e.handle;
        refusal_cause why{};
        verdict said = verdict::allow();
        bool may = core_.count_in(c, why) && source_may(c, why);
        if (may) {
            said = ask_gate(c, false);
            may = said.allowed() ? core_.take_lane(c, why)
                                 : !said.reply().empty() && core_.take_common(c);
            why = said.allowed() ? why : refusal_cause::gate;
        }
        if (may && !w_.backend.attach(e.handle, who_of(c))) {
            may = false;
            why = refusal_cause::busy;
        }
        if (!may) {
            c.because(close_kind::refused, detail_of(why, said));
            core_.free_slot(c);
            refuse(listener, e, why, said.code());
            return;
        }
        c.set(flags::attached);
        tell(c, server_event_kind::accepted);
        hold_back_accepts();
        if (!said.allowed()) {
            turn_away(c, refusal_cause::gate, said);
        } else if (c.state_ == kind::open) {
            welcome(c);
        } else if (!trusts(core_, from.trusted_first, from.trusted_count, e.peer)) {
            c.because(close_kind::proxy_untrusted);
            begin_close(c, true);
        } else {
            c.set(flags::window_inline);
            settle(c);
        }
    }

    /// Others may have slots where this worker has none: it accepts no more than it can keep. One
    /// that still accepts without a slot does so to refuse.
    void bound_accepts() noexcept {
        if (core_.shared->worker_count == 1 && !leaves_clients_queued()) {
            return;
        }
        hold_back_accepts();
        const std::uint32_t free = core_.connections - core_.slots.in_use();
        if (free != 0) {
            go_on_accepting();
        }
        accept_at_most(free != 0 ? free : none_index);
    }
    /// A worker that blocks in the receive of its one connection has no part in accepting: not even
    /// to refuse, for another one may be free by then.
    bool leaves_clients_queued() const noexcept {
        return backend_blocks<Backend> && core_.connections == 1 &&
               !core_.shared->waiting.refuse_busy;
    }
    void accept_at_most(std::uint32_t most) noexcept {
        if constexpr (backend_bounds_accepts<Backend>) {
            w_.backend.bound_accepts(most);
        }
    }
    void go_on_accepting() noexcept {
        if (w_.accepts_held_back) {
            w_.accepts_held_back = false;
            start_listening();
        }
    }

    /// The last slot of this worker is taken: the others accept alone until one is free again.
    /// Where nobody has a slot left the last one to notice goes on accepting, to refuse.
    void hold_back_accepts() noexcept {
        const detail::shared_state& shared = *core_.shared;
        const bool queued = leaves_clients_queued();
        if (w_.accepts_held_back || core_.slots.in_use() != core_.connections ||
            (!queued &&
             shared.open_count.load(detail::ordering::relaxed) >= shared.connections_max)) {
            return;
        }
        w_.accepts_held_back = true;
        for (std::uint32_t at = 0; at < listener_count(); ++at) {
            if (queued || core_.shared->listeners[at].worker == every_worker) {
                stop_accept(at);
            }
        }
    }

    void stop_accept(std::uint32_t listener) noexcept {
        detail::listener_watch& watch = w_.watches[listener];
        if (watch.accepting) {
            watch.accepting = false;
            w_.backend.stop_accept(token::of(listener, watch.generation));
        }
    }

    /// RST, counted and told; nothing is held.
    void refuse(std::uint32_t listener, const event& e, refusal_cause why,
                std::uint8_t code = 0) noexcept {
        Backend::close_handle(e.handle, true);
        count_refusal(why);
        server_event told;
        told.kind = server_event_kind::refused;
        told.reason = {close_kind::refused, detail_of(why, verdict::refuse(code))};
        told.listener = listener;
        told.source = e.peer;
        tell(told);
    }

    void count_refusal(refusal_cause why) noexcept {
        ++core_.counts.refused;
        ++core_.counts.refused_by[static_cast<std::size_t>(why)];
    }
    static std::uint16_t detail_of(refusal_cause why, const verdict& said) noexcept {
        return static_cast<std::uint16_t>(static_cast<unsigned>(why) | unsigned{said.code()} << 8);
    }

    /// A client that was let in and not yet served: counted, answered if the gate says so, else
    /// reset.
    void turn_away(connection& c, refusal_cause why,
                   const verdict& said = verdict::refuse()) noexcept {
        count_refusal(why);
        c.because(close_kind::refused, detail_of(why, said));
        end_with(c, said.reply());
    }

    /// A last word, then FIN, and a second for the peer to read it; or RST.
    void end_with(connection& c, bytes reply) noexcept {
        // Reserved places are not for refusals: each that is answered has a common one.
        if (reply.empty() || !may_be_told(c) || (!c.in_lane_ && !core_.take_common(c)) ||
            reply.size() > refusal_bytes_max) {
            begin_close(c, true);
            return;
        }
        if (core_.refusals >= core_.refusals_max) {
            ++core_.refusals_refused;
            begin_close(c, true);
            return;
        }
        if (++core_.refusals > core_.refusals_high) {
            core_.refusals_high = core_.refusals;
        }
        c.refusal_ = true;
        c.bounded_ = true;
        c.state_ = kind::open;
        c.out_at_ = core_.now_up_ms;
        c.exchange_ends_in(refusal_linger_ms);
        const bool queued = c.output().push_static(reply);
        NETIO_ASSERT(queued);
        static_cast<void>(queued);
        c.set(flags::output_used | flags::close_wanted | flags::end_wanted);
        settle(c);
    }

    // ---- the gate

    verdict ask_gate(connection& c, bool again) noexcept {
        if constexpr (gated) {
            verdict said = verdict::allow();
            if constexpr (detail::calls_readmit<Gate>) {
                said = again ? gate_->readmit(c) : gate_->admit(c);
            } else {
                said = gate_->admit(c);
            }
            note_verdict(c, said);
            return said;
        } else {
            static_cast<void>(c);
            static_cast<void>(again);
            return verdict::allow();
        }
    }

    static void note_verdict(connection& c, const verdict& said) noexcept {
        if (said.allowed()) {
            c.admitted_ = true;
            c.lane_ = said.lane();
            c.tag_ = said.tag();
        }
    }

    /// PROXY has named the client: is it let in, and where?
    bool readmitted(connection& c) noexcept {
        if constexpr (gated) {
            core_.leave_lane(c);
            const verdict said = ask_gate(c, true);
            refusal_cause why = refusal_cause::gate;
            if (!said.allowed() || !core_.take_lane(c, why)) {
                turn_away(c, why, said);
                return false;
            }
        }
        return true;
    }

    static error admit_outgoing(detail::worker_core& core, connection& c) noexcept {
        if constexpr (gated) {
            const verdict said = static_cast<Gate*>(core.gate)->admit(c);
            note_verdict(c, said);
            return said.allowed() ? error::none : error::refused_by_gate;
        }
        return error::none;
    }
    static void part(detail::worker_core& core, connection& c) noexcept {
        if constexpr (detail::calls_closed<Gate>) {
            static_cast<Gate*>(core.gate)->closed(c, c.reason());
        }
    }

    /// May what is queued leave? If not, nothing of it does.
    NETIO_INLINE bool may_leave(connection& c, std::uint64_t count) noexcept {
        if constexpr (detail::calls_check<Gate>) {
            if (c.refusal_) {
                return true;  // the gate's own words
            }
            const write_facts facts{count, c.bytes_out_, c.has(flags::in_exchange),
                                    !c.has(flags::mid_answer)};
            const egress said = gate_->check(c, facts);
            if (!said.allowed()) {
                deny(c, said);
                return false;
            }
            c.set(flags::mid_answer);
        }
        return true;
    }

    NETIO_COLD void deny(connection& c, const egress& said) noexcept {
        ++core_.counts.egress_denied;
        c.set(flags::output_dead);
        give_up_output(c);
        c.because_reset(close_kind::egress_denied, said.code());
        tell(c, server_event_kind::egress_denied);
        if constexpr (detail::names_on_denied<Handler>) {
            if (c.has(flags::opened) && !c.has(flags::kill_wanted)) {
                handler_.on_denied(c, said.code());
                after_callback();
            }
        }
        c.unset(flags::output_dead);
        end_with(c, c.has(flags::end_done) ? bytes{} : said.reply());
    }

    /// Where PROXY names the client, the peer is nobody to count.
    bool source_may(connection& c, refusal_cause& why) noexcept {
        if (c.state_ == kind::preface || core_.count_source(c)) {
            return true;
        }
        why = refusal_cause::source_cap;
        return false;
    }

    static bool trusts(const detail::worker_core& core, std::uint32_t first, std::uint32_t count,
                       const endpoint& peer) noexcept {
        if (count == 0 || peer.family == address_family::none ||
            peer.family == address_family::unix_path) {
            return true;
        }
        for (std::uint32_t at = first; at < first + count; ++at) {
            if (contains(core.shared->trusted[at], peer)) {
                return true;
            }
        }
        return false;
    }

    // ---- the preface

    proxy::options preface_options(const detail::listener_entry& from) const noexcept {
        proxy::options chosen;
        chosen.accept = static_cast<proxy::versions>(from.versions);
        chosen.header_max = from.header_max;
        chosen.tcp6_with_ipv4 = from.tcp6_with_ipv4;
        return chosen;
    }

    void read_preface(connection& c) noexcept {
        const detail::listener_entry& from = core_.shared->listeners[c.listener_];
        const auto found = proxy::parse(c.input(), preface_options(from));
        if (found.status == parse_status::complete) {
            resolve(c, found.value, found.consumed);
        } else if (found.status == parse_status::invalid) {
            if (found.why == error::not_proxy) {
                c.because(close_kind::proxy_missing);
            } else {
                c.because(close_kind::proxy_invalid, static_cast<std::uint16_t>(found.why));
            }
            begin_close(c, true);
        } else if (c.window_end_ + found.missing > c.window_capacity()) {
            grow_preface(c);
        }
    }

    /// A longer header was announced than the inline bytes can hold: one buffer of the quota.
    void grow_preface(connection& c) noexcept {
        if (core_.preface_buffers >= core_.preface_buffers_max) {
            ++core_.preface_buffers_refused;
            turn_away(c, refusal_cause::busy);
            return;
        }
        const std::uint32_t index = core_.pool.take(side::input);
        if (index == none_index) {
            turn_away(c, refusal_cause::busy);
            return;
        }
        if (++core_.preface_buffers > core_.preface_buffers_high) {
            core_.preface_buffers_high = core_.preface_buffers;
        }
        take_over_inline(c, index);
        c.set(flags::preface_buffer);
    }

    /// The inline bytes move to a pool buffer, which is the window from now on.
    void take_over_inline(connection& c, std::uint32_t index) noexcept {
        const bytes kept = c.input();
        NETIO_ASSERT(kept.size() <= core_.pool.buffer_bytes());
        std::memcpy(core_.pool.data(index), kept.data(), kept.size());
        core_.counts.bytes_copied += kept.size();
        c.release_window();
        c.window_ = index + 1;
        c.window_end_ = static_cast<std::uint32_t>(kept.size());
    }

    void resolve(connection& c, const proxy::header& header, std::uint32_t consumed) noexcept {
        c.window_begin_ = consumed;
        detail::endpoint_pair& sides = core_.endpoints[core_.index_of(c)];
        if (header.cmd == proxy::command::proxy &&
            header.fam != proxy::family::unspecified) {
            sides.source = header.source;
            sides.destination = header.destination;
            if (header.fam == proxy::family::unix_path) {
                sides.source.family = address_family::unix_path;
                sides.destination.family = address_family::unix_path;
            }
            c.set(flags::is_proxied | flags::has_destination);
        }
        core_.opening = &header;
        if (locks_out(core_.shared->listeners[c.listener_])) {
            turn_away(c, refusal_cause::lockdown);
        } else if (is_shed(c)) {
            turn_away(c, refusal_cause::shed);
        } else if (c.has(flags::is_proxied) && !core_.count_source(c)) {
            turn_away(c, refusal_cause::source_cap);
        } else if (!c.has(flags::is_proxied) || readmitted(c)) {
            welcome(c);
        }
        core_.opening = nullptr;
    }

    // ---- open, input

    void open_connection(connection& c) noexcept {
        c.state_ = kind::open;
        c.set(flags::opened);
        c.in_at_ = core_.now_up_ms;
        c.out_at_ = core_.now_up_ms;
        ++core_.counts.opened;
        tell(c, server_event_kind::opened);
        if constexpr (detail::names_on_open<Handler>) {
            handler_.on_open(c);
            after_callback();
        }
        core_.opening = nullptr;  // the header's bytes may move from here on
        if (c.window_begin_ != c.window_end_) {
            deliver(c);
        } else if (c.has(flags::window_inline) || c.window_ != 0) {
            c.release_window();
        }
        settle(c);
    }

    void received(connection& c, const event& e) noexcept {
        if constexpr (secured) {
            if (c.tls_session() != 0 && !c.has(flags::discarding)) {
                received_sealed(c, e);
                return;
            }
        }
        const bool into = c.has(flags::receiving_into);
        if (e.disarmed) {
            c.unset(flags::receiving | flags::receiving_into | flags::stopping);
        }
        c.bytes_in_ += e.byte_count;
        core_.counts.bytes_in += e.byte_count;
        if (c.state_ == kind::closing || c.has(flags::close_wanted)) {
            discard(c, e, into);
        } else {
            if (e.byte_count != 0 && c.state_ == kind::open && !c.has(flags::is_parked)) {
                c.in_at_ = core_.now_up_ms;
            }
            if (e.buffer_index != none_index) {
                append(c, e.buffer_index, e.byte_count);
            } else if (into) {
                c.window_end_ += e.byte_count;
            }
            if (c.state_ == kind::preface) {
                read_preface(c);
            } else if (e.byte_count != 0 || c.has(flags::data_due)) {
                deliver(c);
            }
        }
        settle(c);
    }

    void discard(connection& c, const event& e, bool into) noexcept {
        if (e.buffer_index != none_index) {
            core_.pool.give(e.buffer_index, side::input, e.byte_count);
        } else if (into && e.byte_count != 0) {
            if (c.has(flags::discarding)) {
                wipe(core_.ingress[core_.index_of(c)] + scratch_at, e.byte_count);
            } else {
                c.window_end_ += e.byte_count;
            }
        }
    }

    /// A received buffer becomes the window, or is copied behind what the window still holds, or
    /// waits as the second buffer. No more than these two can be needed: a receive into the pool is
    /// only started with an empty window, for at most one buffer of credit, and may go over by one.
    void append(connection& c, std::uint32_t index, std::uint32_t count) noexcept {
        if (c.window_ == 0 && !c.has(flags::window_inline)) {
            c.window_ = index + 1;
            c.window_begin_ = 0;
            c.window_end_ = count;
            return;
        }
        if (c.overflow_ == 0) {
            c.overflow_ = index + 1;
            c.overflow_end_ = count;
        } else {
            NETIO_ASSERT(c.overflow_end_ + count <= core_.pool.buffer_bytes());
            std::memcpy(core_.pool.data(c.overflow_ - 1) + c.overflow_end_,
                        core_.pool.data(index), count);
            core_.counts.bytes_copied += count;
            c.overflow_end_ += count;
            core_.pool.give(index, side::input, count);
        }
        refill_window(c);
    }

    /// Makes room at the window's end and fills it from the second buffer.
    void refill_window(connection& c) noexcept {
        if (c.overflow_ == 0) {
            return;
        }
        if (c.window_ == 0) {
            c.window_ = c.overflow_;
            c.window_end_ = c.overflow_end_;
            c.overflow_ = c.overflow_end_ = 0;
            return;
        }
        if (c.window_capacity() - c.window_end_ < c.overflow_end_ && c.window_begin_ != 0) {
            move_to_front(c);  // while a second buffer waits the window is full: none may pass it
        }
        const std::uint32_t room = c.window_capacity() - c.window_end_;
        const std::uint32_t count = room < c.overflow_end_ ? room : c.overflow_end_;
        std::byte* second = core_.pool.data(c.overflow_ - 1);
        std::memcpy(c.window_memory() + c.window_end_, second, count);
        core_.counts.bytes_copied += count;
        c.window_end_ += count;
        if (count == c.overflow_end_) {
            core_.pool.give(c.overflow_ - 1, side::input, count);
            c.overflow_ = c.overflow_end_ = 0;
        } else {
            const std::uint32_t left = c.overflow_end_ - count;
            std::memmove(second, second + count, left);
            wipe(second + left, count);
            c.overflow_end_ = left;
        }
    }

    /// Moves unconsumed bytes to the front if the free end is shorter than `wanted` and than what
    /// was consumed in front: so each byte is moved at most once for each byte consumed.
    void compact(connection& c, std::uint32_t wanted) noexcept {
        const std::uint32_t room = c.window_capacity() - c.window_end_;
        if (room < wanted && room < c.window_begin_) {
            move_to_front(c);
        }
    }

    void move_to_front(connection& c) noexcept {
        std::byte* at = c.window_memory();
        const std::uint32_t left = c.window_end_ - c.window_begin_;
        std::memmove(at, at + c.window_begin_, left);
        core_.counts.bytes_copied += left;
        wipe(at + left, c.window_end_ - left);
        c.window_begin_ = 0;
        c.window_end_ = left;
    }

    /// Offers the window to the handler, once.
    void deliver(connection& c) noexcept {
        if (!c.wants_data()) {
            c.set(flags::data_due);
            return;
        }
        if (c.has(flags::receiving_into)) {
            // The handler may move the window away: first take it back from the kernel.
            c.set(flags::data_due);
            stop_receive(c);
            return;
        }
        c.unset(flags::data_due);
        const bytes in = c.input();
        if (!in.empty()) {
            // `refused` stays: it may be another connection that was refused our output, and only
            // on_writable tells it of room.
            c.unset(flags::blocked);
            core_.moved_bytes = 0;
            core_.offered = &c;
            const std::size_t consumed = handler_.on_data(c, in);
            core_.offered = nullptr;
            after_callback();
            consume(c, in.size(), consumed);
        }
        after_input(c);
    }

    void consume(connection& c, std::size_t offered, std::size_t consumed) noexcept {
        NETIO_ASSERT(consumed <= offered);
        NETIO_ASSERT(consumed >= core_.moved_bytes || consumed == 0);
        if (core_.moved_bytes == 0) {
            c.window_begin_ += static_cast<std::uint32_t>(consumed);
        }
        if (c.window_begin_ == c.window_end_) {
            c.release_window();
            if (c.overflow_ != 0) {
                refill_window(c);
                c.set(flags::data_due);
            }
            return;
        }
        if (c.overflow_ != 0) {
            const std::uint32_t before = c.window_end_ - c.window_begin_;
            refill_window(c);
            if (c.window_end_ - c.window_begin_ > before) {
                c.set(flags::data_due);
            }
        }
        const bool full = c.window_end_ - c.window_begin_ >= core_.pool.buffer_bytes();
        if (full && consumed == 0 && c.wants_data() &&
            !c.has(flags::blocked | flags::data_due)) {
            c.because(close_kind::input_too_long);
            c.set(flags::kill_wanted);
        }
    }

    /// The peer finished, and nothing more can be delivered: on_end, once.
    void after_input(connection& c) noexcept {
        if (!c.has(flags::peer_ended) || c.has(flags::end_told) || !c.wants_data() ||
            c.has(flags::data_due)) {
            return;
        }
        if (c.window_begin_ != c.window_end_ && c.has(flags::blocked)) {
            return;
        }
        c.set(flags::end_told);
        if constexpr (detail::names_on_end<Handler>) {
            handler_.on_end(c);
            after_callback();
        } else {
            c.because(close_kind::peer_closed);
            c.set(flags::close_wanted | flags::end_wanted);
        }
        c.release_window();
    }

    void ended(connection& c) noexcept {
        c.unset(flags::receiving | flags::receiving_into | flags::stopping);
        if constexpr (secured) {
            if (c.tls_session() != 0) {
                c.fin_seen_ = true;
                if (listens_to_tls(c)) {
                    ended_sealed(c);
                    return;
                }
            }
        }
        c.set(flags::peer_ended);
        if (c.state_ == kind::preface) {
            if (c.window_begin_ == c.window_end_) {
                c.because(close_kind::peer_closed);
                begin_close(c, false);
            } else {
                c.because(close_kind::proxy_invalid,
                          static_cast<std::uint16_t>(error::header_unfinished));
                begin_close(c, true);
            }
        } else if (c.state_ == kind::open && !c.has(flags::close_wanted)) {
            if (c.has(flags::data_due)) {
                deliver(c);
            } else {
                after_input(c);
            }
        }
        settle(c);
    }

    void connected(connection& c, const event& e) noexcept {
        c.handle_ = e.handle;
        if (c.state_ == kind::connecting) {
            if (NETIO_UNLIKELY(c.attempt_of() != 0) && !is_first(c)) {
                return;
            }
            ++core_.counts.connected;
            open_connection(c);
        }
    }

    void failed(connection& c, const event& e) noexcept {
        if (e.op == operation::connect) {
            c.because(close_kind::connect_failed, static_cast<std::uint16_t>(e.why));
            begin_close(c, true);
            return;
        }
        c.because(connection::kind_of(e.why), static_cast<std::uint16_t>(e.why));
        if (e.op == operation::receive) {
            c.unset(flags::receiving | flags::receiving_into | flags::stopping);
            begin_close(c, true);
            return;
        }
        c.unset(flags::sending);
        c.set(flags::output_dead);
        give_up_output(c);
        // What the peer sent before it vanished is still to be had; the receive will end of itself.
        if (c.state_ != kind::closing && (c.has(flags::peer_ended) || !c.wants_data())) {
            begin_close(c, true);
        }
        settle(c);
        if (c.state_ == kind::open && !c.has(flags::receiving | flags::data_due)) {
            begin_close(c, true);  // nothing can be received, so nothing would end it
        }
    }

    // ---- output

    /// What is queued will never be sent.
    void give_up_output(connection& c) noexcept {
        if (c.output_.words != 0) {
            c.output().clear();
        }
        c.no_more_room();
    }

    void sent(connection& c, const event& e) noexcept {
        c.unset(flags::sending);
        if (c.state_ == kind::closing) {
            return;
        }
        if constexpr (secured) {
            if (c.tls_session() != 0) {
                sent_sealed(c, e.byte_count);
                return;
            }
        }
        took(c, e.byte_count);
        c.out_at_ = core_.now_up_ms;
        if (c.has(flags::refused)) {
            offer_room(c);
        }
        if (!is_calm(c)) {
            settle(c);
        }
    }

    /// Everything is sent, a receive is outstanding, nobody wants anything, and the wheel knows a
    /// tick that is not after the idle deadline: nothing has to be started. The common end of an
    /// exchange.
    bool is_calm(const connection& c) const noexcept {
        constexpr std::uint32_t harmless = flags::receiving | flags::opened | flags::user_used |
                                           flags::is_proxied | flags::has_destination |
                                           flags::mid_answer | flags::attached | flags::output_used;
        const std::uint32_t idle_ms = core_.times_of(c).idle_ms;
        return (c.flags_ & ~harmless) == 0 && c.has(flags::receiving) && c.output_.words == 0 &&
               c.window_begin_ == c.window_end_ && c.state_ == kind::open && !w_.ends_idle &&
               (idle_ms == 0 ||
                (c.timer_.prev != 0 && c.timer_.due <= core_.now_up_ms + idle_ms));
    }

    /// Output was refused, and now there is room.
    void offer_room(connection& c) noexcept {
        if (!c.open_for_output()) {
            return;
        }
        if (c.room() == 0) {
            if (core_.pool.room(side::output) == 0) {
                core_.wait_for_pool(c, side::output);
            }
            return;
        }
        const bool owed = c.has(flags::blocked);
        c.unset(flags::refused | flags::blocked);
        if constexpr (detail::names_on_writable<Handler>) {
            handler_.on_writable(c);
            after_callback();
        }
        if (owed && !c.has(flags::blocked) &&
            (c.window_begin_ != c.window_end_ || c.has(flags::peer_ended))) {
            deliver(c);
        }
    }

    void start_output(connection& c) noexcept {
        if constexpr (secured) {
            if (c.tls_session() != 0) {
                start_sealed(c);
                return;
            }
        }
        if (c.output_.words == 0 || c.has(flags::sending | flags::output_dead)) {
            // Whatever brought us here may wait for the end of a send for which nobody waited.
            if constexpr (backend_sends_quietly<Backend>) {
                if (c.has(flags::sending)) {
                    w_.backend.hurry(who_of(c));
                }
            }
            return;
        }
        bytes pieces[output_pieces_max];
        const std::span<const bytes> slices(pieces, c.output().gather(pieces));
        const std::uint64_t count = bytes_of(slices);
        if (!may_leave(c, count)) {
            return;
        }
        c.out_at_ = core_.now_up_ms;
        if constexpr (backend_sends_now<Backend>) {
            if (may_send_now(c)) {
                if (w_.backend.send_now(who_of(c), slices)) {
                    took(c, count);
                } else {
                    c.set(flags::sending);
                }
                return;
            }
        }
        c.set(flags::sending);
        if constexpr (backend_sends_quietly<Backend>) {
            if (nobody_waits_for_output(c)) {
                w_.backend.send_quietly(who_of(c), slices);
                return;
            }
        }
        w_.backend.start_send(who_of(c), slices);
    }

    /// Who waits for room is told by an event: no callback comes from here. And what many others
    /// write to one connection in a turn goes out in few pieces: after the first, the next one is
    /// outstanding until the wait, and the rest gathers behind it.
    bool may_send_now(connection& c) noexcept {
        const bool first = c.sent_in_ != core_.counts.turns % 16;
        c.sent_in_ = core_.counts.turns % 16;
        return (first || &c == core_.current) && !c.has(flags::refused);
    }

    /// Nothing follows when the output is with the kernel, but that its buffers are free.
    bool nobody_waits_for_output(const connection& c) const noexcept {
        return !c.has(flags::refused | flags::blocked | flags::end_wanted | flags::close_wanted) &&
               !w_.ends_idle && core_.pool.room(side::output) != 0;
    }

    /// The kernel has so many bytes of the output.
    void took(connection& c, std::uint64_t count) noexcept {
        c.output().drop_sent(count);
        c.rates_out_ = c.rates_out_ && c.output_.words != 0;
        c.bytes_out_ += count;
        core_.counts.bytes_out += count;
    }

    /// Output is flushed: what was to follow it.
    void finish_output(connection& c) noexcept {
        if (!c.has(flags::end_wanted) || c.has(flags::sending) ||
            (c.output_.words != 0 && !c.has(flags::output_dead))) {
            return;
        }
        if constexpr (secured) {
            if (c.tls_session() != 0 && !says_goodbye(c)) {
                return;
            }
        }
        const bool both_done = c.has(flags::peer_ended) || c.has(flags::output_dead);
        if (c.has(flags::close_wanted) && both_done) {
            begin_close(c, false);
            return;
        }
        if (!c.has(flags::end_done)) {
            c.set(flags::end_done);
            w_.backend.end_send(who_of(c));
        }
        if (c.has(flags::close_wanted)) {
            start_linger(c);
        } else if (c.has(flags::end_told)) {
            c.because(close_kind::peer_closed);
            begin_close(c, false);
        }
    }

    void start_linger(connection& c) noexcept {
        if (c.state_ != kind::open) {
            return;
        }
        c.state_ = kind::draining;
        c.in_at_ = core_.now_up_ms;
        if (!c.bounded_) {
            c.exchange_due_ = 0;  // the exchange is over
        }
        if (core_.times_of(c).linger_ms == 0) {
            begin_close(c, false);
        }
    }

    // ---- starting what a connection needs

    /// Looks at a connection after anything happened to it and starts what follows. No callbacks.
    void settle(connection& c) noexcept {
        if (c.state_ == kind::closing || c.state_ == kind::free || c.has(flags::open_due)) {
            return;
        }
        if (c.has(flags::kill_wanted)) {
            begin_close(c, true);
            return;
        }
        if constexpr (secured) {
            if (c.tls_session() != 0) {
                settle_session(c);
                if (c.has(flags::end_done | flags::output_dead)) {
                    drop_what_cannot_leave(c);
                }
            }
        }
        if (c.state_ == kind::open) {
            start_output(c);
            if (c.state_ == kind::closing) {
                return;  // the gate denied it
            }
            if (w_.ends_idle) {
                end_if_idle(c);
            }
            if (c.has(flags::output_dead) && c.has(flags::end_told)) {
                begin_close(c, true);  // the reason is that of the send that failed
                return;
            }
            finish_output(c);
        } else if (c.has(flags::close_wanted) && c.state_ != kind::draining) {
            begin_close(c, true);
        } else if (c.state_ == kind::draining && c.has(flags::peer_ended)) {
            begin_close(c, false);
        }
        if (c.state_ == kind::closing) {
            return;
        }
        c.rates_in_ = c.rates_in_ && is_to_send(c);
        arm_receive(c);
        if (c.has(flags::data_due) && c.wants_data() && !c.has(flags::stopping)) {
            core_.owe_data(c);
        }
        arm_deadline(c);
    }

    /// A drain, or its lane being shed, is the end of an idle connection: in FIN, for its last
    /// answer may be on its way.
    void end_if_idle(connection& c) noexcept {
        if (!is_idle(c)) {
            return;
        }
        const bool drained = w_.draining && was_swept(c);
        if (drained || is_shed(c)) {
            c.because(drained ? close_kind::drained : close_kind::shed);
            c.set(flags::close_wanted | flags::end_wanted);
        }
    }

    void settle_touched() noexcept {
        while (connection* c = core_.pop_touched()) {
            settle(*c);
        }
    }

    /// Discarded bytes go here; the first words of the ingress belong to outgoing connections.
    static constexpr std::uint32_t scratch_at = 64;

    void arm_receive(connection& c) noexcept {
        if (c.has(flags::peer_ended) || !c.has(flags::attached) ||
            c.state_ == kind::connecting) {
            return;
        }
        if constexpr (secured) {
            if (c.tls_session() != 0) {
                arm_sealed(c);
                return;
            }
        }
        const bool discarding = c.has(flags::close_wanted);
        const bool wanted = c.state_ == kind::preface || discarding ||
                            !c.has(flags::is_paused | flags::is_parked);
        const bool has_bytes = c.window_begin_ != c.window_end_;
        if (c.has(flags::receiving)) {
            const bool wrong_place = !c.has(flags::receiving_into) && has_bytes && !discarding;
            if (!wanted || wrong_place) {
                stop_receive(c);
            }
            return;
        }
        if (!wanted) {
            return;
        }
        if (discarding) {
            receive_to_discard(c);
        } else if (c.state_ == kind::preface || has_bytes) {
            receive_into_window(c);
        } else {
            c.set(flags::receiving);
            w_.backend.start_receive(who_of(c), {}, receive_credit());
        }
    }

    void stop_receive(connection& c) noexcept {
        if (!c.has(flags::stopping)) {
            c.set(flags::stopping);
            w_.backend.stop_receive(who_of(c));
        }
    }

    std::uint32_t receive_credit() const noexcept {
        const std::uint32_t most = core_.pool.buffer_bytes();
        return Backend::receive_credit < most ? Backend::receive_credit : most;
    }

    void receive_to_discard(connection& c) noexcept {
        c.release_window();
        c.set(flags::receiving | flags::receiving_into | flags::discarding);
        std::byte* scratch = core_.ingress[core_.index_of(c)] + scratch_at;
        w_.backend.start_receive(who_of(c), {scratch, detail::ingress_bytes - scratch_at}, 0);
    }

    void receive_into_window(connection& c) noexcept {
        if (c.has(flags::window_inline) && c.state_ == kind::open) {
            const std::uint32_t index = core_.pool.take(side::input);
            if (index != none_index) {
                take_over_inline(c, index);
            }
        }
        compact(c, core_.pool.buffer_bytes());
        const std::uint32_t room = c.window_capacity() - c.window_end_;
        NETIO_ASSERT(room == 0 || c.overflow_ == 0);
        if (room != 0) {
            c.set(flags::receiving | flags::receiving_into);
            w_.backend.start_receive(who_of(c), {c.window_memory() + c.window_end_, room}, 0);
        } else if (c.has(flags::window_inline)) {
            core_.wait_for_pool(c, side::input);
        }
    }

    // ---- the end

    void begin_close(connection& c, bool abort) noexcept {
        if (c.state_ == kind::closing) {
            return;
        }
        NETIO_ASSERT(c.reason_kind_ != close_kind::none);
        NETIO_ASSERT(c.has(flags::attached));
        c.state_ = kind::closing;
        core_.wheel_of_connections.cancel(core_.index_of(c));
        w_.backend.start_close(who_of(c), abort);
        c.handle_ = no_handle;  // its number may belong to another from now on
    }

    void closed(connection& c) noexcept {
        ++core_.counts.closed;
        ++core_.counts.closed_by[static_cast<std::size_t>(c.reason_kind_)];
        if (c.has(flags::opened)) {
            if constexpr (detail::names_on_close<Handler>) {
                handler_.on_close(c, c.reason());
                after_callback();
            }
        } else if (c.origin() == origin::connected) {
            if (c.attempt_of() != 0) {
                attempt_closed(c);
                return;
            }
            tell_failed_connect(c.connect_word(), failure_of(c.reason()));
            tell(c, server_event_kind::connect_failed);
        }
        tell(c, server_event_kind::closed);
        if (c.has(flags::receiving_into) && !c.has(flags::discarding)) {
            c.window_end_ = c.window_capacity();  // the kernel may have written there unreported
        }
        if constexpr (secured) {
            if (c.tls_session() != 0) {
                core_.tell_gate_of_end(c);  // it may ask for what was negotiated
                tls_->close_session(c.tls_session());
            }
        }
        core_.free_slot(c);
        go_on_accepting();
    }

    void tell_failed_connect(std::uint64_t word, error why) noexcept {
        if constexpr (detail::names_on_connect_failed<Handler>) {
            handler_.on_connect_failed(word, why);
            after_callback();
        } else {
            static_cast<void>(word);
            static_cast<void>(why);
        }
    }

    static error failure_of(close_reason reason) noexcept {
        switch (reason.kind) {
        case close_kind::connect_failed:
            return reason.why();
        case close_kind::connect_timeout:
            return error::timed_out;
        case close_kind::shutdown:
        case close_kind::drain_deadline:
            return error::stopped;
        default:
            return error::cancelled;
        }
    }

    // ---- dials: what they decide is done here

    static result<dial_id> start_dial(detail::worker_core& core,
                                      std::span<const endpoint> candidates, std::uint64_t word,
                                      const dial_options& how) noexcept {
        state& w = state_of(core);
        if (const error wrong = detail::wrong_with(candidates, how); wrong != error::none) {
            return wrong;
        }
        if (core.is_ending()) {
            return error::stopped;
        }
        const std::uint32_t at = w.dial_slots.capacity() == 0 ? none_index : w.dial_slots.take();
        if (at == none_index) {
            return error::full;
        }
        w.dials[at].begin(candidates, word, how, core.now_up_ms);
        begin_round(w, at);
        if (!goes_on(w, at)) {
            const error why = w.dials[at].why;
            free_dial(w, at);
            return why;
        }
        return dial_id{token::of(at, w.dial_slots.generation(at),
                                 static_cast<operation>(core.worker_index))
                           .bits};
    }

    static void begin_round(state& w, std::uint32_t at) noexcept {
        w.dials[at].begin_round(w.core.shared->outgoing_times.connect_ms, w.core.now_up_ms);
    }

    /// Starts what a dial may start now, and arms its next look. False: it has failed for good.
    static bool goes_on(state& w, std::uint32_t at) noexcept {
        detail::dial_entry& d = w.dials[at];
        while (d.may_start(w.core.now_ms)) {
            start_attempt(w, at);
        }
        if (d.has_failed() && !rests(w, d)) {
            return false;
        }
        arm_dial(w, at);
        return true;
    }

    static void start_attempt(state& w, std::uint32_t at) noexcept {
        detail::dial_entry& d = w.dials[at];
        const result<connection_id> started =
            w.core.connect({d.candidates[d.next++], {}}, d.word);
        if (!started) {
            d.failed(started.why);
            return;
        }
        connection& c = *w.core.find(started.value);
        c.attempt_of() = at + 1;
        d.started(w.core.index_of(c), w.core.now_up_ms);
    }

    /// Its round has failed: is there another one? A drain does not wait for any.
    static bool rests(state& w, detail::dial_entry& d) noexcept {
        if (d.rounds == d.how.rounds_max || w.draining || w.stopping || w.core.is_ending()) {
            return false;
        }
        const std::uint64_t next = w.core.now_up_ms + detail::backoff_delay_ms(
                                                          d.how.backoff, d.rounds, random_word(w));
        if (next >= d.over_ms) {
            return false;
        }
        d.rest_until(next);
        return true;
    }

    /// Workers, and processes that start together, must not wait in step.
    static std::uint64_t random_word(state& w) noexcept {
        if (w.random == 0) {
            const mutable_bytes seed{reinterpret_cast<std::byte*>(&w.random), sizeof(w.random)};
            if (!Backend::fill_random(seed)) {
                w.random = w.now_ns;
            }
        }
        return detail::next_random(w.random);
    }

    static void arm_dial(state& w, std::uint32_t at) noexcept {
        const std::uint64_t due = w.dials[at].due();
        const std::uint32_t node = w.timer_slots.capacity() + at;
        if (due == wheel::never) {
            w.timer_wheel.cancel(node);
        } else {
            w.timer_wheel.arm(node, due);
        }
    }

    static void free_dial(state& w, std::uint32_t at) noexcept {
        w.timer_wheel.cancel(w.timer_slots.capacity() + at);
        constexpr std::size_t kept = sizeof(slot_header);
        wipe(reinterpret_cast<std::byte*>(&w.dials[at]) + kept, sizeof(detail::dial_entry) - kept);
        w.dial_slots.give(at);
    }

    /// Nothing of them is told any more but to gate and observer.
    void drop_attempts(detail::dial_entry& d, close_kind why) noexcept {
        while (d.attempt_count != 0) {
            connection& c = core_.hot[d.attempts[--d.attempt_count]];
            c.attempt_of() = none_index;
            c.because(why);
            begin_close(c, true);
        }
    }

    void finish_dial(std::uint32_t at, close_kind of_attempts, error why) noexcept {
        detail::dial_entry& d = w_.dials[at];
        drop_attempts(d, of_attempts);
        const std::uint64_t word = d.word;
        free_dial(w_, at);
        tell_failed_connect(word, why);
    }

    NETIO_COLD void dial_due(std::uint32_t at) noexcept {
        detail::dial_entry& d = w_.dials[at];
        if (d.is_cancelled) {
            finish_dial(at, close_kind::handler_closed, error::cancelled);
            return;
        }
        if (d.rests) {
            begin_round(w_, at);
        } else if (core_.now_ms >= d.round_ms) {
            d.failed(error::timed_out);
            d.next = d.candidate_count;
            drop_attempts(d, close_kind::connect_timeout);
        }
        if (!goes_on(w_, at)) {
            finish_dial(at, close_kind::connect_timeout, d.why);
        }
    }

    /// An attempt has connected. False: it lost, its dial is over or about to be.
    NETIO_COLD bool is_first(connection& c) noexcept {
        const std::uint32_t at = c.attempt_of() - 1;
        detail::dial_entry& d = w_.dials[at];
        if (d.is_cancelled) {
            return false;  // closed with the dial, when the wheel comes to it
        }
        c.attempt_of() = 0;
        d.forget(core_.index_of(c));
        drop_attempts(d, close_kind::outpaced);
        free_dial(w_, at);
        return true;
    }

    /// The end of a connection that was an attempt and no more.
    NETIO_COLD void attempt_closed(connection& c) noexcept {
        const std::uint32_t index = core_.index_of(c);
        const std::uint32_t mark = c.attempt_of();
        const error why = failure_of(c.reason());
        if (c.reason_kind_ != close_kind::outpaced) {
            tell(c, server_event_kind::connect_failed);
        }
        tell(c, server_event_kind::closed);
        core_.free_slot(c);
        core_.current = nullptr;  // the next attempt may take its slot, and is to be settled
        if (mark != none_index) {
            detail::dial_entry& d = w_.dials[mark - 1];
            d.forget(index);
            d.failed(why);
            if (!d.is_cancelled && !goes_on(w_, mark - 1)) {
                finish_dial(mark - 1, close_kind::connect_failed, d.why);
            }
        }
        go_on_accepting();
    }

    void sweep_dial(std::uint32_t at) noexcept {
        if (!w_.dial_slots.is_live(at) || !(w_.stopping || w_.draining)) {
            return;
        }
        const close_kind why = w_.stopping     ? close_kind::shutdown
                               : w_.drain_late ? close_kind::drain_deadline
                                               : close_kind::drained;
        finish_dial(at, why, w_.dials[at].is_cancelled ? error::cancelled : failure_of({why}));
    }

    // ---- TLS: between the kernel and the session's memory ciphertext, between the session and
    // ---- what every connection has, its window and its queue, plaintext

    static bool speaks_tls(const connection& c) noexcept {
        return secured && c.tls_session() != 0;
    }
    bool wants_tls(const connection& c) const noexcept {
        return secured && c.listener_ != 255 &&
               core_.shared->listeners[c.listener_].tls == tls_mode::required;
    }
    /// Not yet the kernel's: of TLS the last record is no piece of the queue any more.
    static bool has_output(const connection& c) noexcept {
        return c.output_.words != 0 || (speaks_tls(c) && c.has(flags::sending));
    }
    /// What arrives is for the session, not to be thrown away.
    static bool listens_to_tls(const connection& c) noexcept {
        return (c.state_ == kind::preface || c.state_ == kind::open) &&
               !c.has(flags::close_wanted | flags::peer_ended);
    }
    /// A reply has to be readable: before the handshake is over nobody could, and one behind
    /// ciphertext that is not sent would be taken for an attack.
    bool may_be_told(connection& c) const noexcept {
        if constexpr (secured) {
            if (wants_tls(c)) {
                return c.has(flags::opened) && tls_->to_send(c.tls_session()).empty();
            }
        }
        return true;
    }

    /// Whatever came before the application's bytes is through: the next step.
    void welcome(connection& c) noexcept {
        if constexpr (secured) {
            if (wants_tls(c)) {
                begin_handshake(c);
                return;
            }
        }
        open_connection(c);
    }

    NETIO_COLD void begin_handshake(connection& c) noexcept {
        const std::uint32_t session = tls_->open_session(c);
        if (session == 0) {
            turn_away(c, refusal_cause::busy);
            return;
        }
        c.state_ = kind::preface;
        c.overflow_end_ = session;
        go_on_with_handshake(c);
        settle(c);
    }

    /// What had come together with the PROXY header goes first. It is the begin of a handshake, for
    /// the client can't know more before it is answered.
    void go_on_with_handshake(connection& c) noexcept {
        feed_rest_of_preface(c);
        const tls_status now = tls_->status(c.tls_session());
        if (now == tls_status::failed ||
            (now != tls_status::handshake && c.window_begin_ != c.window_end_)) {
            fail_tls(c);
        } else if (now != tls_status::handshake) {
            finish_handshake(c);
        }
    }

    void feed_rest_of_preface(connection& c) noexcept {
        while (c.window_begin_ != c.window_end_) {
            const mutable_bytes space = tls_->receive_space(c.tls_session());
            const bytes rest = c.input();
            const std::size_t count = space.size() < rest.size() ? space.size() : rest.size();
            if (count == 0) {
                return;
            }
            std::memcpy(space.data(), rest.data(), count);
            core_.counts.bytes_copied += count;
            c.window_begin_ += static_cast<std::uint32_t>(count);
            tls_->received(c.tls_session(), count);
        }
    }

    /// The PROXY header, which is kept for on_open; nothing where there was none.
    parsed<proxy::header> header_of(const connection& c) const noexcept {
        if (!c.has(flags::window_inline) && c.window_ == 0) {
            return {};
        }
        return proxy::parse({c.window_memory(), c.window_end_},
                            preface_options(core_.shared->listeners[c.listener_]));
    }

    void finish_handshake(connection& c) noexcept {
        const parsed<proxy::header> found = header_of(c);
        core_.opening = found.consumed != 0 ? &found.value : nullptr;
        open_connection(c);
        core_.opening = nullptr;
    }

    void received_sealed(connection& c, const event& e) noexcept {
        c.unset(flags::receiving | flags::stopping);
        c.bytes_in_ += e.byte_count;
        core_.counts.bytes_in += e.byte_count;
        if (e.byte_count != 0 && listens_to_tls(c)) {
            tls_->received(c.tls_session(), e.byte_count);
            if (c.state_ == kind::preface) {
                go_on_with_handshake(c);
            } else if (c.wants_data() && take_plaintext(c)) {
                c.in_at_ = core_.now_up_ms;  // pieces of a record prove nothing
                deliver(c);
            }
        }
        settle(c);
    }

    /// The peer's FIN. Whether its stream ended with it the session knows.
    void ended_sealed(connection& c) noexcept {
        if (c.state_ == kind::preface) {
            const bool said_nothing = c.bytes_in_ == header_of(c).consumed;
            c.because(said_nothing ? close_kind::peer_closed : close_kind::tls_failed);
            begin_close(c, false);
            return;
        }
        tls_->end_of_input(c.tls_session());
        settle(c);
    }

    /// Moves what is decrypted into the window, as far as that has room. True: there is news.
    bool take_plaintext(connection& c) noexcept {
        const std::uint32_t session = c.tls_session();
        bool news = false;
        for (bytes in = tls_->plaintext(session); !in.empty(); in = tls_->plaintext(session)) {
            const std::size_t count = append_plaintext(c, in);
            if (count == 0) {
                return news;
            }
            tls_->consumed(session, count);
            news = true;
        }
        const tls_status now = tls_->status(session);
        if (now == tls_status::closed && !c.has(flags::end_wanted)) {
            give_up_output(c);
            c.set(flags::end_wanted);
        }
        if (now == tls_status::ended || now == tls_status::closed) {
            c.set(flags::peer_ended);
            news = true;
        }
        return news;
    }

    std::size_t append_plaintext(connection& c, bytes in) noexcept {
        if (c.window_ == 0) {
            const std::uint32_t index = core_.pool.take(side::input);
            if (index == none_index) {
                core_.wait_for_pool(c, side::input);
                return 0;
            }
            c.window_ = index + 1;
        }
        compact(c, core_.pool.buffer_bytes());
        const std::size_t room = c.window_capacity() - c.window_end_;
        const std::size_t count = room < in.size() ? room : in.size();
        if (count != 0) {
            std::memcpy(c.window_memory() + c.window_end_, in.data(), count);
            core_.counts.bytes_copied += count;
            c.window_end_ += static_cast<std::uint32_t>(count);
        }
        return count;
    }

    /// A session may have come further by whatever happened, not only by what arrived.
    void settle_session(connection& c) noexcept {
        if (c.state_ == kind::preface) {
            if (is_shed(c)) {
                turn_away(c, refusal_cause::shed);
            } else {
                start_sealed(c);
            }
            return;
        }
        if (c.fin_seen_ && c.has(flags::close_wanted)) {
            c.set(flags::peer_ended);
        }
        if (!c.wants_data()) {
            return;
        }
        if (!c.has(flags::peer_ended) && take_plaintext(c)) {
            c.set(flags::data_due);
        }
        if (!c.has(flags::data_due) && tls_->status(c.tls_session()) == tls_status::failed &&
            tls_->plaintext(c.tls_session()).empty()) {
            fail_tls(c);
        }
    }

    /// What the session has to say about it is flushed, then comes FIN, and a second for the peer
    /// to read that; as with a refusal.
    NETIO_COLD void fail_tls(connection& c) noexcept {
        c.because(close_kind::tls_failed, tls_->code(c.tls_session()));
        give_up_output(c);
        c.state_ = kind::open;
        c.out_at_ = core_.now_up_ms;
        c.bounded_ = true;
        c.exchange_ends_in(refusal_linger_ms);
        c.set(flags::close_wanted | flags::end_wanted);
        if (c.fin_seen_) {
            c.set(flags::peer_ended);
        }
    }

    void arm_sealed(connection& c) noexcept {
        if (c.has(flags::receiving) || c.fin_seen_) {
            return;  // one that is paused meanwhile takes no more than the session's space
        }
        if (c.has(flags::close_wanted)) {
            receive_to_discard(c);
        } else if (!c.has(flags::is_paused | flags::is_parked)) {
            receive_sealed(c);
        }
    }

    void receive_sealed(connection& c) noexcept {
        if (c.state_ == kind::preface && c.window_begin_ != c.window_end_) {
            return;  // what is left of the preface goes first
        }
        const mutable_bytes space = tls_->receive_space(c.tls_session());
        if (!space.empty()) {
            c.set(flags::receiving);
            w_.backend.start_receive(who_of(c), space, 0);
        }
    }

    /// Encrypts as much of the queue as the session takes and starts to send what came of it. The
    /// gate is asked before: what it denies is not even encrypted, but for what it allowed once
    /// and the kernel had no room for.
    void start_sealed(connection& c) noexcept {
        if (c.has(flags::sending | flags::output_dead | flags::end_done)) {
            return;
        }
        const std::uint32_t session = c.tls_session();
        const std::uint64_t count = c.output_bytes() + tls_->to_send(session).size();
        if (c.has(flags::opened) && count != 0 && !may_leave(c, count)) {
            return;
        }
        if (c.output_.words != 0) {
            seal_output(c);
            c.sent_in_ = 1;
        }
        const bytes sealed = tls_->to_send(session);
        if (!sealed.empty()) {
            c.out_at_ = core_.now_up_ms;
            c.set(flags::sending);
            w_.backend.start_send(who_of(c), {&sealed, 1});
        }
    }

    /// Behind close_notify and FIN, or a send that failed, nothing can leave. A session that still
    /// answers what it reads (an alert, a key update) is told that it went, for some take or work
    /// off nothing more before; and looked at again, for that may have brought it further.
    NETIO_COLD void drop_what_cannot_leave(connection& c) noexcept {
        while (c.state_ == kind::open && !c.has(flags::sending)) {
            const std::size_t left = tls_->to_send(c.tls_session()).size();
            if (left == 0) {
                return;
            }
            tls_->sent(c.tls_session(), left);
            settle_session(c);
        }
    }

    void seal_output(connection& c) noexcept {
        bytes pieces[output_pieces_max];
        const std::uint32_t count = c.output().gather(pieces);
        for (std::uint32_t at = 0; at < count; ++at) {
            const std::size_t taken = tls_->write(c.tls_session(), pieces[at]);
            c.output().drop_sent(taken);
            if (taken != pieces[at].size()) {
                drop_unsendable(c);
                return;
            }
        }
    }

    /// A session that failed or is closed will never take what is left, be it that nobody listens
    /// to it any more: an end that waits for the flush would wait for good.
    void drop_unsendable(connection& c) noexcept {
        const tls_status now = tls_->status(c.tls_session());
        if (now == tls_status::failed || now == tls_status::closed) {
            give_up_output(c);
        }
    }

    void sent_sealed(connection& c, std::uint32_t count) noexcept {
        tls_->sent(c.tls_session(), count);
        c.bytes_out_ += count;
        core_.counts.bytes_out += count;
        c.out_at_ = core_.now_up_ms;
        note_answer_sent(c);
        if (c.state_ == kind::preface) {
            go_on_with_handshake(c);
        } else {
            start_sealed(c);  // which makes the room that is offered
            if (c.state_ != kind::closing && c.has(flags::refused)) {
                offer_room(c);
            }
            c.rates_out_ = c.rates_out_ && has_output(c);
        }
        settle(c);
    }

    /// What a session says of itself, to be asked again and again, is no activity; what it says for
    /// the handler is, until the kernel has all of it.
    void note_answer_sent(connection& c) noexcept {
        if (c.sent_in_ != 0) {
            if (!c.has(flags::is_parked)) {
                c.in_at_ = core_.now_up_ms;
            }
            c.sent_in_ = tls_->to_send(c.tls_session()).empty() ? 0 : 1;
        }
    }

    /// The queue is flushed and nothing will follow: close_notify. True once that is sent, too.
    bool says_goodbye(connection& c) noexcept {
        if (c.has(flags::output_dead | flags::end_done)) {
            return true;
        }
        tls_->end(c.tls_session());
        start_sealed(c);
        return !c.has(flags::sending) && c.state_ != kind::closing;
    }

    // ---- control: listeners, stop, drain

    /// A stop or drain that this worker has not begun with: its wake may have come before the
    /// backend was open.
    bool end_is_asked_for() const noexcept {
        const detail::shared_state& shared = *core_.shared;
        return !w_.stopping &&
               (shared.stop_wanted.load() != 0 || shared.drain_ms.load() != w_.drain_seen);
    }
    std::uint32_t listeners_version() const noexcept {
        // In one order with is_open: who adds a listener wakes only workers that are open.
        return core_.shared->listeners_version.load();
    }
    std::uint32_t listener_count() const noexcept {
        return core_.shared->listener_count.load(detail::ordering::acquire);
    }

    void control() noexcept {
        detail::shared_state& shared = *core_.shared;
        const std::uint32_t version = listeners_version();
        if (w_.listeners_seen != version) {
            w_.listeners_seen = version;
            look_at_control();
            start_listening();
        }
        note_pressure();
        if (!w_.stopping && shared.stop_wanted.load() != 0) {
            w_.stopping = true;
            begin_sweep();
        }
        const std::uint32_t drain = shared.drain_ms.load();
        if (drain != w_.drain_seen && !w_.stopping) {
            begin_drain(drain);
        }
        if (w_.draining && !w_.drain_late && core_.now_ms >= w_.drain_due_ms) {
            w_.drain_late = true;
            begin_sweep();
        }
    }

    bool locks_out(const detail::listener_entry& from) const noexcept {
        return detail::mood_of(w_.mood_seen).state == control_state::lockdown &&
               !from.lockdown_exempt;
    }
    bool is_shed(const connection& c) const noexcept {
        return detail::mood_of(w_.mood_seen).sheds(c.lane_);
    }

    /// Somebody moved the door, the state, or a listener.
    void look_at_control() noexcept {
        const detail::shared_state& shared = *core_.shared;
        w_.door_shut = static_cast<detail::door_word>(shared.door.load()) ==
                       detail::door_word::shut;
        for (std::uint32_t at = 0; at < listener_count(); ++at) {
            if (shared.listeners[at].removed.load() != 0 ||
                shared.listeners[at].released.load() != 0) {
                leave_listener(at);
            } else if (w_.door_shut) {
                stop_accept(at);
            }
        }
        const std::uint32_t mood = shared.mood.load();
        if (mood != w_.mood_seen) {
            w_.mood_seen = mood;
            note_ends_idle();
            if (w_.ends_idle && !w_.draining && !w_.stopping) {
                look_at_everybody();
            }
        }
    }

    void note_ends_idle() noexcept {
        w_.ends_idle = w_.draining ||
                       detail::mood_of(w_.mood_seen).state == control_state::shed;
    }

    /// Settles every connection within the next turns: something has changed for all of them. Who
    /// was looked at before that is looked at again, once the others were.
    void look_at_everybody() noexcept {
        if (w_.sweeping) {
            w_.sweep_again = true;
            return;
        }
        start_sweep();
    }

    /// Deadlines get shorter as places get scarce; idle ones, who sleep by the longer ones, are
    /// looked at for each step. It goes down a little below where it went up, so that one
    /// connection that comes and goes is no reason to look at all others.
    void note_pressure() noexcept {
        const detail::shared_state& shared = *core_.shared;
        const std::uint64_t all = shared.connections_max;
        if (all < tighten_from) {
            return;
        }
        const std::uint64_t used =
            std::uint64_t{shared.open_count.load(detail::ordering::relaxed)} * 100;
        const std::uint32_t now = core_.tightened;
        const std::uint32_t level = used >= all * (now == 2 ? 85 : 90)   ? 2
                                    : used >= all * (now >= 1 ? 70 : 75) ? 1
                                                                         : 0;
        core_.tightened = level;
        if (level > now && !w_.draining && !w_.stopping) {
            look_at_everybody();
        }
    }

    /// What has not fired by now never will.
    void drop_timers() noexcept {
        for (std::uint32_t at = 0; at < w_.timer_slots.used_end(); ++at) {
            if (w_.timer_slots.is_live(at)) {
                free_timer(at);
            }
        }
    }

    /// Posts that nobody will take are stale, not lost in silence.
    void drop_posts() noexcept {
        post taken{};
        while (core_.posts.pop(taken)) {
            ++core_.counts.posts_stale;
        }
    }

    /// A drain was asked for, or a shorter one.
    void begin_drain(std::uint32_t drain) noexcept {
        w_.drain_seen = drain;
        const std::uint64_t due = core_.now_up_ms + drain - 1;
        w_.drain_due_ms = !w_.draining || due < w_.drain_due_ms ? due : w_.drain_due_ms;
        if (!w_.draining) {
            w_.draining = true;
            note_ends_idle();
            w_.drain_begun_ms = core_.now_ms;
            w_.open_at_drain = core_.slots.in_use();
            w_.closed_before_drain = core_.counts.closed;
            w_.sweep_from_turn = core_.counts.turns + 2;
            tell(server_event_kind::drain_started);
            begin_sweep();
        }
    }

    bool is_over() const noexcept { return w_.is_over.load(detail::ordering::relaxed) != 0; }

    /// No connection, and no datagram whose buffer the kernel still reads.
    bool nothing_left() const noexcept {
        return core_.slots.in_use() == 0 && w_.send_slots.in_use() == 0 &&
               w_.dial_slots.in_use() == 0;
    }

    void finish_worker() noexcept {
        w_.is_over.store(1);
        core_.shut = 1;
        w_.sources.forget_all();
        release_bursts(true);
        drop_posts();
        drop_timers();
        if (w_.draining) {
            w_.drain_took_ms = core_.now_ms - w_.drain_begun_ms;
            tell(server_event_kind::drain_finished);
        }
    }

    void start_listening() noexcept {
        for (std::uint32_t at = 0; at < listener_count(); ++at) {
            if (!w_.watches[at].accepting && !w_.watches[at].resting) {
                start_accept(at);
            }
        }
        start_datagrams();
    }

    void start_datagrams() noexcept {
        for (std::uint32_t at = core_.worker_index; at < w_.socket_count && !w_.stopping;
             at += core_.shared->worker_count) {
            detail::datagram_entry& socket = w_.sockets[at];
            if (socket.in_use && !socket.receiving) {
                const os_status started =
                    w_.backend.start_receive_from(socket.handle, token::of(at, 1));
                socket.receiving = static_cast<bool>(started);
                if (!started) {
                    resume_at(core_.now_up_ms + accept_pause_last_ms);
                }
            }
        }
    }

    void start_accept(std::uint32_t listener) noexcept {
        detail::listener_entry& from = core_.shared->listeners[listener];
        const bool held_back = w_.accepts_held_back &&
                               (from.worker == every_worker || leaves_clients_queued());
        const bool of_another =
            from.worker != every_worker && from.worker != core_.worker_index;
        if (w_.stopping || w_.draining || w_.door_shut || from.removed.load() != 0 || held_back ||
            of_another) {
            return;
        }
        if (from.released.load() != 0 || (!w_.watches[listener].held && !hold(from))) {
            return;
        }
        w_.watches[listener].held = true;
        if (from.worker != every_worker && from.worker != core_.worker_index) {
            leave_listener(listener);  // another listener had come into its place meanwhile
            return;
        }
        const token who = token::of(listener, ++w_.watches[listener].generation);
        const os_status started = w_.backend.start_accept(from.handle, who);
        w_.watches[listener].accepting = static_cast<bool>(started);
        if (!started) {
            event e;
            e.why = started.why;
            e.os_code = started.os_code;
            rest(listener, e);
        }
    }

    /// A listener is open as long as somebody holds it: a worker that comes late finds it closed
    /// rather than a descriptor that is somebody else's by then.
    static bool hold(detail::listener_entry& of) noexcept {
        std::uint32_t held = of.holds.load(detail::ordering::acquire);
        while (held != 0) {
            if (of.holds.compare_exchange_weak(held, held + 1, detail::ordering::acquire_release)) {
                return true;
            }
        }
        return false;
    }
    static void let_go(detail::listener_entry& of) noexcept {
        if (of.holds.fetch_sub(1, detail::ordering::acquire_release) == 1) {
            close_listener(of);
        }
    }

    /// No more accepts here. The last worker to say so closes the listener: the system refuses new
    /// clients then, who would otherwise wait in its queue for the end of this process.
    void leave_listener(std::uint32_t listener) noexcept {
        detail::listener_watch& watch = w_.watches[listener];
        detail::listener_entry& from = core_.shared->listeners[listener];
        watch.resting = false;
        stop_accept(listener);
        if (from.removed.load() != 0) {
            watch.left_at = watch.generation;  // of a released one late accepts are served
        }
        if (watch.held) {
            watch.held = false;
            let_go(from);
        }
    }

    void begin_sweep() noexcept {
        start_sweep();
        core_.shut = w_.stopping || w_.drain_late ? 1 : 0;
        if (w_.accept_stopped == 0) {
            w_.accept_stopped = 1;
            w_.next_resume_ms = wheel::never;
            for (std::uint32_t at = 0; at < listener_count(); ++at) {
                leave_listener(at);
                leave(core_.shared->listeners[at]);
            }
        }
    }

    void start_sweep() noexcept {
        w_.sweeping = true;
        w_.sweep_at = w_.sweep_dial_at = 0;
    }

    /// Looks at every live slot once, a bounded number a turn: at dials first, so that none starts
    /// an attempt for one that the sweep ends.
    void sweep() noexcept {
        std::uint32_t left = turn_bounds::swept_slots;
        while (w_.sweep_dial_at < w_.dial_slots.used_end() && left != 0) {
            --left;
            sweep_dial(w_.sweep_dial_at++);
        }
        while (w_.sweep_at < core_.slots.used_end() && left != 0) {
            const std::uint32_t index = w_.sweep_at++;
            --left;
            if (core_.slots.is_live(index)) {
                sweep_one(core_.hot[index]);
            }
        }
        if (w_.sweep_at >= core_.slots.used_end() &&
            w_.sweep_dial_at >= w_.dial_slots.used_end()) {
            w_.sweeping = w_.sweep_again;
            w_.sweep_again = false;
            w_.sweep_at = w_.sweep_dial_at = 0;
        }
        settle_touched();
    }

    void sweep_all() noexcept {
        start_sweep();
        do {
            sweep();
        } while (w_.sweeping);
    }

    void sweep_one(connection& c) noexcept {
        if (c.state_ == kind::closing) {
            return;
        }
        if (w_.stopping || w_.drain_late) {
            c.because(w_.stopping ? close_kind::shutdown : close_kind::drain_deadline);
            begin_close(c, true);
            return;
        }
        if (!w_.draining) {
            settle(c);
            return;
        }
        if (c.state_ != kind::open) {
            if (c.state_ != kind::draining) {
                c.because(close_kind::drained);
                begin_close(c, false);
            }
            return;
        }
        if constexpr (detail::names_on_drain<Handler>) {
            if (c.has(flags::opened) && !c.has(flags::close_wanted | flags::kill_wanted)) {
                handler_.on_drain(c);
                after_callback();
            }
        }
        settle(c);
    }

    /// A drain lets it end: it was told, and what came in the same turn was taken.
    bool was_swept(const connection& c) const noexcept {
        return core_.counts.turns >= w_.sweep_from_turn &&
               !(w_.sweeping && core_.index_of(c) >= w_.sweep_at);
    }

    /// Nothing under way: a drain need not wait for it.
    static bool is_idle(const connection& c) noexcept {
        return !has_output(c) && c.window_begin_ == c.window_end_ && c.overflow_ == 0 &&
               !c.has(flags::in_exchange | flags::is_parked | flags::close_wanted |
                      flags::is_paused);
    }

    // ---- kills and posts, and those who wait

    /// What other threads want ended.
    void take_kills() noexcept {
        core_.kills.take(turn_bounds::kills, [this](std::uint32_t index, kill_wish wish) noexcept {
            connection& c = core_.hot[index];
            if (!core_.slots.live(index, wish.generation) || c.state_ == kind::closing) {
                return;  // it ended before its killer was done
            }
            if (wish.kind == kill_kind::kill) {
                c.because_reset(close_kind::killed, static_cast<std::uint16_t>(wish.value));
                begin_close(c, true);
            } else if (wish.kind == kill_kind::close) {
                close_within(c, wish.value);
            }
        });
    }

    void close_within(connection& c, std::uint32_t ms) noexcept {
        if (c.state_ == kind::open || c.state_ == kind::draining) {
            c.because(close_kind::handler_closed);
            c.set(flags::close_wanted | flags::end_wanted);
            c.bounded_ = true;
            const std::uint32_t due = c.exchange_due_;
            const std::uint64_t due_ms = due == 0 ? wheel::never : c.exchange_due();
            c.exchange_ends_in(ms == 0 ? 1 : ms);
            if (due_ms < c.exchange_due()) {
                c.exchange_due_ = due;  // nobody who asks for its end grants it time
            }
            settle(c);
        } else {
            c.because(close_kind::handler_closed);
            begin_close(c, false);
        }
    }

    void take_posts() noexcept {
        post taken{};
        for (std::uint32_t at = 0; at < turn_bounds::posts && core_.posts.pop(taken); ++at) {
            connection* c = core_.find({taken.id});
            if (c == nullptr || !c->has(flags::opened) || c->state_ == kind::closing ||
                c->has(flags::close_wanted | flags::kill_wanted)) {
                ++core_.counts.posts_stale;
                continue;
            }
            c->stop_parking();
            if constexpr (detail::names_on_post<Handler>) {
                handler_.on_post(*c, taken.word);
                after_callback();
            }
            settle(*c);
            settle_touched();
        }
    }

    /// Buffers came back: those who were refused one, first come, first served.
    void serve_waiting() noexcept {
        if (!core_.someone_can_go()) {
            return;
        }
        for (const side which : {side::input, side::output}) {
            std::uint32_t left = core_.waiting[static_cast<std::size_t>(which)].count;
            for (; left != 0 && core_.pool.room(which) != 0; --left) {
                connection* c = core_.pop_waiting(which);
                if (c == nullptr) {
                    break;
                }
                if (c->has(flags::refused)) {
                    offer_room(*c);
                }
                settle(*c);
                settle_touched();
            }
        }
    }

    /// on_data that is owed for another reason than fresh bytes.
    void serve_owed() noexcept {
        for (std::uint32_t left = core_.due_count; left != 0; --left) {
            connection* c = core_.pop_due();
            if (c == nullptr) {
                break;
            }
            if (c->has(flags::open_due) && c->state_ == kind::open) {
                c->unset(flags::open_due);
                open_connection(*c);
            } else if (c->has(flags::data_due)) {
                deliver(*c);
            }
            settle(*c);
            settle_touched();
        }
    }

    // ---- datagrams

    void datagram_event(const event& e) noexcept {
        detail::datagram_entry& socket = w_.sockets[e.who.index()];
        if (e.kind != event_kind::received) {
            socket.receiving = false;
            return;
        }
        ++core_.counts.datagrams_in;
        if constexpr (detail::names_on_datagram<Handler>) {
            if (core_.torn_down) {
                forget_datagram(e);
                return;
            }
            static constexpr detail::datagram_calls calls{&send_datagram, &prove_address,
                                                          &Backend::local_of};
            datagram in;
            in.source = e.peer;
            in.peer = e.peer;
            if (e.buffer_index != none_index) {
                in.payload = {core_.pool.data(e.buffer_index), e.byte_count};
            }
            in.truncated = e.truncated;
            if (let_in(socket, in, e)) {
                datagram_socket via(&w_, calls, {e.who.index()}, socket.handle);
                handler_.on_datagram(via, in);
                after_callback();
            }
        }
        forget_datagram(e);
        settle_touched();
    }

    /// Takes the header off and asks the budgets: of who sent it, or of the client that a header
    /// names. A proxy has none of its own, or one client's flood would silence its others; who is
    /// no proxy is turned away before anything is parsed.
    bool let_in(detail::datagram_entry& socket, datagram& in, const event& e) noexcept {
        if (!unwrap(socket, in)) {
            ++core_.counts.datagrams_refused;
            return false;
        }
        const bool by_source = socket.proxy_required == proxy_mode::off || in.proxied;
        const std::uint64_t now_ns = w_.up_ns();
        const detail::datagram_word said = socket.guard.admit(
            w_.sources, by_source ? in.source : endpoint{}, e.byte_count, now_ns);
        if (said != detail::datagram_word::welcome) {
            drop_datagram(said, in.source, e);
            return false;
        }
        if (!names_proxies(socket)) {
            socket.guard.received(w_.sources, in.peer, e.byte_count, now_ns);
        }
        return true;
    }
    NETIO_COLD void drop_datagram(detail::datagram_word why, const endpoint& from,
                                  const event& e) noexcept {
        ++(why == detail::datagram_word::over_source ? core_.counts.datagrams_over_source
                                                     : core_.counts.datagrams_over_total);
        server_event told;
        told.kind = server_event_kind::datagram_dropped;
        told.listener = e.who.index();
        told.source = from;
        tell(told);
    }
    /// Its peers are proxies that the program trusts by address: proven, for answers go to them.
    static bool names_proxies(const detail::datagram_entry& socket) noexcept {
        return socket.proxy_required != proxy_mode::off && socket.trusted_count != 0;
    }

    void forget_datagram(const event& e) noexcept {
        if (e.buffer_index != none_index) {  // an empty datagram may come without one
            core_.pool.give(e.buffer_index, side::input, e.byte_count);
        }
    }

    /// Takes the PROXY header off a datagram. False: none, a bad one, or from a stranger.
    bool unwrap(const detail::datagram_entry& socket, datagram& in) const noexcept {
        if (socket.proxy_required == proxy_mode::off) {
            return true;
        }
        if (!trusts(core_, socket.trusted_first, socket.trusted_count, in.peer)) {
            return false;
        }
        const auto found = proxy::parse(in.payload, {});
        if (found.status != parse_status::complete) {
            return false;
        }
        in.payload = in.payload.subspan(found.consumed);
        in.tlvs = found.value.tlvs;
        if (found.value.cmd == proxy::command::proxy &&
            (found.value.fam == proxy::family::ipv4 || found.value.fam == proxy::family::ipv6)) {
            in.source = found.value.source;
            in.proxied = true;
        }
        return true;
    }

    static bool send_datagram(void* worker, std::uint32_t socket, const endpoint& to,
                              bytes payload) noexcept {
        state& w = *static_cast<state*>(worker);
        detail::worker_core& core = w.core;
        if (core.shut != 0 || socket >= w.socket_count || !w.sockets[socket].in_use ||
            payload.size() > core.pool.buffer_bytes() || w.send_slots.capacity() == 0) {
            return false;
        }
        const std::uint32_t slot = w.send_slots.take();
        if (slot == none_index) {
            return false;
        }
        const std::uint32_t index = core.pool.take(side::output);
        if (index == none_index) {
            w.send_slots.give(slot);
            return false;
        }
        // The last thing to ask: what is not sent for want of room costs the address nothing.
        if (!may_send(w, w.sockets[socket], to, payload.size())) {
            ++core.counts.datagram_sends_denied;
            core.pool.give(index, side::output, 0);
            w.send_slots.give(slot);
            return false;
        }
        if (!payload.empty()) {
            std::memcpy(core.pool.data(index), payload.data(), payload.size());
        }
        w.sends[slot].buffer = index + 1;
        w.sends[slot].byte_count = static_cast<std::uint32_t>(payload.size());
        w.backend.start_send_to(w.sockets[socket].handle,
                                token::of(slot, w.sends[slot].header.generation),
                                {core.pool.data(index), payload.size()}, to);
        return true;
    }

    static bool may_send(state& w, detail::datagram_entry& from, const endpoint& to,
                         std::size_t count) noexcept {
        return (names_proxies(from) &&
                trusts(w.core, from.trusted_first, from.trusted_count, to)) ||
               from.guard.may_send(w.sources, to, count, w.up_ns());
    }
    static bool prove_address(void* worker, std::uint32_t socket, const endpoint& who) noexcept {
        state& w = *static_cast<state*>(worker);
        return socket < w.socket_count && w.sockets[socket].in_use &&
               w.sockets[socket].guard.prove(w.sources, who, w.up_ns());
    }

    void datagram_sent(const event& e) noexcept {
        detail::datagram_send& out = w_.sends[e.who.index()];
        NETIO_ASSERT(w_.send_slots.live(e.who.index(), e.who.generation()));
        core_.counts.datagrams_out += e.kind == event_kind::sent ? 1 : 0;
        core_.pool.give(out.buffer - 1, side::output, out.byte_count);
        out.buffer = out.byte_count = 0;
        w_.send_slots.give(e.who.index());
    }

    // ---- the observer

    void tell(server_event& told) noexcept {
        if constexpr (!std::is_same_v<Events, no_events>) {
            if (!holds_back(told)) {
                told.worker = core_.worker_index;
                events_->on_event(told);
            }
        } else {
            static_cast<void>(told);
        }
    }
    /// One more of a kind of which enough were told in this second?
    bool holds_back(const server_event& told) noexcept {
        const std::size_t at = detail::burst_of(told.kind);
        if (at == detail::burst_kind_count) {
            return false;
        }
        detail::event_burst& burst = w_.bursts[at];
        if (core_.now_ms >= burst.over_ms) {
            release_burst(at);
            burst.over_ms = core_.now_ms + burst_ms;
        }
        if (burst.told < burst_events_max) {
            ++burst.told;
            return false;
        }
        ++burst.held;
        burst.reason = told.reason;
        burst.listener = told.listener;
        w_.bursts_due_ms = burst.over_ms < w_.bursts_due_ms ? burst.over_ms : w_.bursts_due_ms;
        return true;
    }
    void release_burst(std::size_t at) noexcept {
        const detail::event_burst burst = w_.bursts[at];
        w_.bursts[at] = {};
        if (burst.held != 0) {
            server_event told;
            told.kind = server_event_kind::coalesced;
            told.of = detail::burst_kinds[at];
            told.count = burst.held;
            told.reason = burst.reason;
            told.listener = burst.listener;
            tell(told);
        }
    }
    void release_bursts(bool all) noexcept {
        if (!all && core_.now_ms < w_.bursts_due_ms) {
            return;
        }
        w_.bursts_due_ms = wheel::never;
        for (std::size_t at = 0; at < detail::burst_kind_count; ++at) {
            const detail::event_burst& burst = w_.bursts[at];
            if (all || core_.now_ms >= burst.over_ms) {
                release_burst(at);
            } else if (burst.held != 0 && burst.over_ms < w_.bursts_due_ms) {
                w_.bursts_due_ms = burst.over_ms;
            }
        }
    }
    void tell(server_event_kind what) noexcept {
        server_event told;
        told.kind = what;
        tell(told);
    }
    void tell(const connection& c, server_event_kind what) noexcept {
        if constexpr (!std::is_same_v<Events, no_events>) {
            server_event told;
            told.kind = what;
            told.reason = c.reason();
            told.why = what == server_event_kind::connect_failed ? failure_of(c.reason())
                                                                 : error::none;
            told.listener = c.listener_;
            told.id = c.id();
            told.source = c.source();
            told.bytes_in = c.bytes_in_;
            told.bytes_out = c.bytes_out_;
            told.lifetime_ms = c.age_ms();
            tell(told);
        } else {
            static_cast<void>(c);
            static_cast<void>(what);
        }
    }

    static peer_credentials credentials_of(socket_handle peer) noexcept {
        if constexpr (backend_knows_peers<Backend>) {
            return Backend::peer_credentials_of(peer);
        } else {
            static_cast<void>(peer);
            return {};
        }
    }

    static probe_result probe_of(connection& c) noexcept {
        if constexpr (secured) {
            if (const probed found = probe_session(c); found != probed::idle) {
                return {found};
            }
        }
        if constexpr (backend_probes<Backend>) {
            return Backend::probe(c.handle_);
        } else {
            static_cast<void>(c);
            return {probed::failed, error::not_supported};
        }
    }
    /// A session may hold what the window had no room for: the kernel knows nothing of that.
    NETIO_COLD static probed probe_session(connection& c) noexcept {
        if (c.tls_session() == 0) {
            return probed::idle;
        }
        Tls& tls = *static_cast<Tls*>(c.core().tls);
        if (!tls.plaintext(c.tls_session()).empty()) {
            return probed::readable;
        }
        const tls_status now = tls.status(c.tls_session());
        return now == tls_status::ended || now == tls_status::closed ? probed::peer_closed
                                                                     : probed::idle;
    }

    /// The core is the first member of its state.
    static state& state_of(detail::worker_core& core) noexcept {
        return *reinterpret_cast<state*>(&core);
    }
    static os_status start_connect(detail::worker_core& core, std::uint32_t index,
                                   const stream_address& to) noexcept {
        state& w = state_of(core);
        return w.backend.start_connect(to, core.shared->outgoing_socket,
                                       token::of(index, core.slots.generation(index)));
    }

    state& w_;
    detail::worker_core& core_;
    Handler& handler_;
    Gate* gate_;
    Events* events_;
    [[no_unique_address]] detail::tls_pointer<Tls> tls_;
};

NETIO_END

#endif
