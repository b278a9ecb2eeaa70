// floor 9 · blocking_pool.hpp · the second driver: a thread a connection, served by blocking calls
#ifndef NETIO_BLOCKING_POOL_HPP
#define NETIO_BLOCKING_POOL_HPP

#include "platform/blocking.hpp"
#include "src/server.hpp"

NETIO_BEGIN

template <class Handler, class Backend, class Gate, class Events>
class blocking_pool;

/// How a blocking call ended: bytes that were moved, and error::none if that is all there were to
/// move. Else why not: `end_of_stream` (the peer finished), `timed_out` (a deadline, or a rate too
/// low), `connection_reset`, `stopped` (stop, drain, shed, or the server's end), `refused_by_gate`
/// (this send was denied), `cancelled` (killed, or closed from elsewhere) or the system's error.
struct transfer {
    std::size_t count = 0;
    error why = error::none;
    constexpr explicit operator bool() const noexcept { return why == error::none; }
};

namespace detail {

template <class Handler>
class stream_handler;

/// What a stream needs of its worker.
struct stream_calls {
    bool (*turn)(void* pool, std::uint32_t worker, std::uint64_t timeout_ns) noexcept;
    void (*advance)(void* pool, std::uint32_t worker, connection& served, bool asks) noexcept;
};

}  // namespace detail

/// A connection in the hands of `on_connection(stream&)`: valid until that returns, on its thread.
/// Every call that waits is a loop of the reactor's turns, so deadlines, rates, kills, stop and
/// drain hold as they do for a connection of any server; after any of them each call fails at once
/// and `reason` says which it was. No call throws, allocates or raises a signal.
///
/// While the handler is outside of these calls nothing is read from the peer, and nothing that ends
/// the connection is noticed.
class stream {
public:
    /// Bytes of a PROXY header's TLVs that are kept for `tlvs`.
    static constexpr std::size_t tlv_bytes_max = detail::ingress_bytes;

    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;

    // ---- bytes

    /// Waits until at least one byte came and takes as many as there are, up to `into.size()`.
    /// The idle deadline holds, or the read deadline inside an exchange, from this call on.
    transfer recv(mutable_bytes into) noexcept { return receive(into, false); }

    /// Waits until `into` is full. Fewer bytes (`count`) came before `why`: `end_of_stream` with 0
    /// is a peer that ended between messages. Once the first byte came the read deadline holds, and
    /// a drain waits for the rest.
    transfer recv_exact(mutable_bytes into) noexcept { return receive(into, true); }

    /// Waits until the kernel has taken all of `out`, uncopied; the write deadline holds while it
    /// takes nothing. What was taken before a failure is in `count`, but for what a backend had on
    /// its way when the connection was ended.
    transfer send_all(bytes out) noexcept;
    transfer send_all(std::string_view out) noexcept { return send_all(as_bytes(out)); }

    /// As `connection::probe`, between other calls the whole truth: what a `recv` would find. For
    /// a connection that waited in a pool, before it is used again.
    probe_result probe() noexcept;

    /// No more output: FIN. Receiving goes on.
    void end() noexcept;
    /// Ends in RST. `reason` is the user's own number and comes back in close_reason.
    void kill(std::uint16_t reason = 0) noexcept;

    // ---- time

    /// As `connection::phase`: inside an exchange the read deadline holds and a drain waits.
    void phase(netio::phase now) noexcept;
    /// As `connection::deadline`: the exchange must be over in `ms` milliseconds; 0 takes it back.
    void deadline(std::uint32_t ms) noexcept;

    // ---- facts; but for `is_open` they stay after the connection's end

    /// Calls may still succeed.
    bool is_open() const noexcept {
        return connection_ != nullptr && connection_->state_ == connection_state_kind::open &&
               connection_->reason_kind_ == close_kind::none;
    }
    /// Why it ended, or is about to; kind none while it is open.
    close_reason reason() const noexcept {
        return connection_ != nullptr ? connection_->reason() : reason_;
    }
    /// A drain has begun: it ends this connection at the next `recv` that finds nothing, unless it
    /// is inside an exchange.
    bool draining() const noexcept { return drain_ms_.load(detail::ordering::relaxed) != 0; }
    connection_id id() const noexcept { return id_; }
    /// The client: the peer's address, or what PROXY says.
    const endpoint& source() const noexcept { return source_; }
    /// Where the client connected to: PROXY's destination, else `local()`. None after the end.
    endpoint destination() const noexcept {
        return connection_ != nullptr ? connection_->destination() : endpoint{};
    }
    /// This socket's own address, a system call each time. None after the end.
    endpoint local() const noexcept {
        return connection_ != nullptr ? connection_->local() : endpoint{};
    }
    std::uint32_t listener() const noexcept { return listener_; }
    std::uint32_t worker() const noexcept { return worker_; }
    /// Its class, and the number, that the gate gave it.
    std::uint8_t lane() const noexcept { return lane_; }
    std::uint32_t tag() const noexcept { return tag_; }
    /// True if PROXY named the client.
    bool proxied() const noexcept { return proxied_; }
    /// The header's TLVs; empty if there are more than `tlv_bytes_max` bytes of them, which only a
    /// listener with a raised `header_max` lets in. `on_open` sees all.
    proxy::tlv_list tlvs() const noexcept { return proxy::tlv_list::over({tlvs_, tlv_bytes_}); }
    std::uint64_t bytes_in() const noexcept {
        return connection_ != nullptr ? connection_->bytes_in() : bytes_in_;
    }
    /// Without the reply of a gate that denied a send.
    std::uint64_t bytes_out() const noexcept {
        return connection_ != nullptr && !denied_ ? connection_->bytes_out() : bytes_out_;
    }

private:
    template <class Handler, class Backend, class Gate, class Events>
    friend class blocking_pool;
    template <class Handler>
    friend class detail::stream_handler;
    using flags = connection::flag;

    stream(const detail::stream_calls& calls, void* pool, std::uint32_t worker,
           const detail::atomic<std::uint32_t>& drain_ms) noexcept
        : calls_(calls), pool_(pool), drain_ms_(drain_ms), worker_(worker) {}
    ~stream() { forget(); }

    // A connection may end in a turn, and none may be touched and not looked at by then: whatever
    // changes it between turns is followed by `advance`.
    bool turn(std::uint64_t timeout_ns = forever_ns) noexcept {
        return calls_.turn(pool_, worker_, timeout_ns);
    }
    void advance(bool asks = false) noexcept {
        calls_.advance(pool_, worker_, *connection_, asks);
    }
    /// Something that counts from now.
    template <class Call>
    void after_clock(Call call) noexcept;
    void look_before_drained() noexcept;
    void leave_message() noexcept;

    // ---- calls of the adapter, from callbacks of the reactor

    void opened(connection& c) noexcept;
    std::size_t take(connection& c, bytes in) noexcept;
    void closed(connection& c, close_reason reason) noexcept;
    void denied(const connection& c) noexcept {
        denied_ = true;
        bytes_out_ = c.bytes_out();
    }

    // ---- calls of the pool, between turns

    void finish() noexcept;
    void forget() noexcept;

    transfer receive(mutable_bytes into, bool whole) noexcept;
    bool waits_for_bytes() const noexcept {
        return is_open() && !peer_ended_ && (whole_ ? !wanted_.empty() : count_ == 0);
    }
    /// Bytes of the caller are queued, or with the kernel. Whatever else happened, they are the
    /// caller's again only when that is over.
    bool has_output() const noexcept {
        return connection_ != nullptr &&
               (connection_->output_.words != 0 || connection_->has(flags::sending));
    }
    error why() const noexcept;

    const detail::stream_calls& calls_;
    void* pool_;
    const detail::atomic<std::uint32_t>& drain_ms_;
    connection* connection_ = nullptr;  // none before the first, and once it is closed
    mutable_bytes wanted_{};            // what a receive still wants
    std::size_t count_ = 0;             // and has
    bool whole_ = false;
    bool inside_ = false;               // we said that it is inside an exchange, not the handler
    bool peer_ended_ = false;
    bool fresh_ = false;                // on_connection was not called yet
    bool serving_ = false;              // it is being called
    bool denied_ = false;               // a send, after `bytes_out_`
    bool proxied_ = false;
    std::uint32_t worker_;
    std::uint32_t listener_ = 255;
    std::uint32_t tag_ = 0;
    std::uint8_t lane_ = 0;
    connection_id id_{};
    close_reason reason_{};
    endpoint source_{};
    std::uint64_t bytes_in_ = 0;
    std::uint64_t bytes_out_ = 0;
    std::size_t tlv_bytes_ = 0;
    std::byte tlvs_[tlv_bytes_max];
};

// ---- stream, called from callbacks

inline void stream::opened(connection& c) noexcept {
    forget();
    connection_ = &c;
    fresh_ = true;
    id_ = c.id();
    source_ = c.source();
    listener_ = c.listener();
    proxied_ = c.proxied();
    lane_ = c.lane();
    tag_ = c.tag();
    const bytes list = c.tlvs().raw();
    if (!list.empty() && list.size() <= tlv_bytes_max) {
        std::memcpy(tlvs_, list.data(), list.size());
        tlv_bytes_ = list.size();
    }
    c.pause();  // but for receives: what nobody asked for stays with the kernel
}

inline std::size_t stream::take(connection& c, bytes in) noexcept {
    const std::size_t taken = in.size() < wanted_.size() ? in.size() : wanted_.size();
    if (taken != 0) {
        std::memcpy(wanted_.data(), in.data(), taken);
        wanted_ = wanted_.subspan(taken);
        count_ += taken;
    }
    if (!whole_ || wanted_.empty()) {
        wanted_ = {};
        c.pause();
    } else if (!c.has(flags::in_exchange)) {
        c.set(flags::in_exchange);
        inside_ = true;
    }
    return taken;
}

inline void stream::closed(connection& c, close_reason reason) noexcept {
    reason_ = reason;
    bytes_in_ = c.bytes_in();
    bytes_out_ = denied_ ? bytes_out_ : c.bytes_out();
    connection_ = nullptr;
}

// ---- stream, between turns

inline transfer stream::receive(mutable_bytes into, bool whole) noexcept {
    if (into.empty()) {
        return {};
    }
    count_ = 0;
    if (is_open() && !peer_ended_) {
        wanted_ = into;
        whole_ = whole;
        if (draining()) {
            look_before_drained();
        }
        if (is_open()) {
            advance(true);
        }
        while (waits_for_bytes() && turn()) {
        }
        wanted_ = {};
        leave_message();
        if (connection_ != nullptr && !connection_->paused()) {
            connection_->pause();
            advance();
        }
    }
    const bool done = whole ? count_ == into.size() : count_ != 0;
    return {count_, done ? error::none : why()};
}

/// A drain takes what the kernel held when it began; the handler did not ask for it then. So it is
/// asked for once, as inside an exchange, before the connection may count as idle.
inline void stream::look_before_drained() noexcept {
    if (!connection_->has(flags::in_exchange)) {
        connection_->set(flags::in_exchange);
        inside_ = true;
        advance(true);
        for (int looks = 0; looks < 2 && waits_for_bytes(); ++looks) {
            turn(0);  // the first one may give results that were kept, and not look
        }
        if (count_ == 0) {
            leave_message();
        }
    }
}

inline void stream::leave_message() noexcept {
    if (inside_ && connection_ != nullptr) {
        connection_->unset(flags::in_exchange);
    }
    inside_ = false;
}

inline transfer stream::send_all(bytes out) noexcept {
    if (out.empty()) {
        return {};
    }
    const std::uint64_t before =
        bytes_out() + (connection_ != nullptr ? connection_->output_bytes() : 0);
    bool queued = false;
    while (is_open() && connection_->open_for_output()) {
        queued = connection_->write_static(out);
        if (queued || !turn()) {  // on_open may have written as much as there is room for
            break;
        }
    }
    if (!queued) {
        return {0, is_open() ? error::broken_pipe : why()};
    }
    advance();
    if (has_output()) {
        connection_->touch();
        advance();  // somebody waits: where a backend may be late in telling of a send, it is not
    }
    while (has_output() && turn()) {
    }
    const std::uint64_t now = bytes_out();
    const auto count = static_cast<std::size_t>(now > before ? now - before : 0);
    return {count, count == out.size() ? error::none : why()};
}

inline probe_result stream::probe() noexcept {
    if (!is_open()) {
        return {probed::failed, error::not_open};
    }
    const probe_result found = peer_ended_ ? probe_result{probed::peer_closed}
                                           : connection_->probe();
    if (!is_open()) {
        advance();
    }
    return found;
}

inline void stream::end() noexcept {
    if (connection_ != nullptr) {
        connection_->end();
        advance();
    }
}

inline void stream::kill(std::uint16_t reason) noexcept {
    if (connection_ != nullptr) {
        connection_->kill(reason);
        advance();
    }
}

template <class Call>
void stream::after_clock(Call call) noexcept {
    if (connection_ != nullptr) {
        advance();  // which may be its end: the handler may have been away for long
    }
    if (connection_ != nullptr) {
        call(*connection_);
        advance();
    }
}

inline void stream::phase(netio::phase now) noexcept {
    after_clock([now](connection& c) { c.phase(now); });
}

inline void stream::deadline(std::uint32_t ms) noexcept {
    after_clock([ms](connection& c) { c.deadline(ms); });
}

/// Also where a send has failed and only what the peer sent before could still be had: whoever
/// returns does not want it, and its worker must not wait for the idle deadline.
inline void stream::finish() noexcept {
    fresh_ = false;
    if (connection_ == nullptr || connection_->state_ != connection_state_kind::open ||
        connection_->has(flags::close_wanted | flags::kill_wanted)) {
        return;
    }
    if (peer_ended_) {
        connection_->because(close_kind::peer_closed);
    }
    connection_->close();
    advance();
}

/// Nothing of a connection is left in here.
inline void stream::forget() noexcept {
    wipe(tlvs_, tlv_bytes_);
    tlv_bytes_ = 0;
    source_ = {};
    reason_ = {};
    bytes_in_ = bytes_out_ = 0;
    peer_ended_ = inside_ = fresh_ = denied_ = false;
}

inline error stream::why() const noexcept {
    const close_reason ended = reason();
    switch (ended.kind) {
    case close_kind::none:
    case close_kind::peer_closed:
        return error::end_of_stream;
    case close_kind::peer_reset:
        return error::connection_reset;
    case close_kind::drained:
    case close_kind::drain_deadline:
    case close_kind::shed:
    case close_kind::shutdown:
        return error::stopped;
    case close_kind::egress_denied:
        return error::refused_by_gate;
    case close_kind::io:
        return ended.why();
    case close_kind::idle:
    case close_kind::read_timeout:
    case close_kind::write_timeout:
    case close_kind::exchange_deadline:
    case close_kind::slow_peer_in:
    case close_kind::slow_peer_out:
        return error::timed_out;
    default:
        return error::cancelled;
    }
}

namespace detail {

template <class H>
concept calls_on_connection = requires(H& h, stream& s) { h.on_connection(s); };
template <class H>
concept quiet_on_connection = requires(H& h, stream& s) {
    { h.on_connection(s) } noexcept;
};

/// Instantiated once for each handler of a pool: its errors are these sentences.
template <class H>
constexpr bool check_stream_handler() noexcept {
    static_assert(calls_on_connection<H>,
                  "netio: on_connection must be void on_connection(netio::stream&) noexcept");
    static_assert(!calls_on_connection<H> || quiet_on_connection<H>,
                  "netio: on_connection must be noexcept");
    static_assert(!(names_on_data<H> || names_on_end<H> || names_on_writable<H> ||
                    names_on_post<H> || names_on_timer<H> || names_on_deadline<H> ||
                    names_on_connect_failed<H> || names_on_drain<H> || names_on_datagram<H>),
                  "netio: beside on_connection a handler has on_open, on_denied and on_close only");
    static_assert(!names_on_denied<H> || calls_on_denied<H>,
                  "netio: on_denied must be void on_denied(netio::connection&, std::uint16_t) "
                  "noexcept");
    static_assert(!names_on_open<H> || calls_on_open<H>,
                  "netio: on_open must be void on_open(netio::connection&) noexcept");
    static_assert(!names_on_close<H> || calls_on_close<H>,
                  "netio: on_close must be void on_close(netio::connection&, "
                  "netio::close_reason) noexcept");
    return true;
}

/// Between the reactor and the streams: a handler like any other, so every rule of the reactor
/// holds. Two streams a worker, on the stack of the thread that runs it: a backend may bring the
/// next client in the same turn in which one ends, and whose handler has not returned yet.
template <class Handler>
class stream_handler {
    static_assert(check_stream_handler<Handler>());

public:
    explicit stream_handler(Handler& handler) noexcept : handler_(handler) {}

    void on_open(connection& c) noexcept {
        stream* const pair = streams_[c.worker()];
        NETIO_ASSERT(pair != nullptr);
        stream& its = pair[pair[0].serving_ ? 1 : 0];
        NETIO_ASSERT(!its.serving_ && its.connection_ == nullptr);
        its.opened(c);
        if constexpr (names_on_open<Handler>) {
            handler_.on_open(c);
        }
    }
    std::size_t on_data(connection& c, bytes in) noexcept {
        return stream_of(c)->take(c, in);
    }
    void on_denied(connection& c, std::uint16_t code) noexcept {
        if (stream* const its = stream_of(c)) {
            its->denied(c);
        }
        if constexpr (names_on_denied<Handler>) {
            handler_.on_denied(c, code);
        }
    }
    void on_end(connection& c) noexcept { stream_of(c)->peer_ended_ = true; }
    void on_close(connection& c, close_reason reason) noexcept {
        if (stream* const its = stream_of(c)) {
            its->closed(c, reason);
        }
        if constexpr (names_on_close<Handler>) {
            handler_.on_close(c, reason);
        }
    }

    Handler& handler() noexcept { return handler_; }
    void set_streams(std::uint32_t worker, stream* pair) noexcept { streams_[worker] = pair; }

private:
    /// None in the server's end.
    stream* stream_of(const connection& c) noexcept {
        stream* const pair = streams_[c.worker()];
        return pair == nullptr || pair[0].connection_ == &c ? pair : pair + 1;
    }

    Handler& handler_;
    stream* streams_[255] = {};  // limits::workers_max is at most that
};

/// The handler of a pool's server: the user's own, or the one that makes streams for it.
template <class Handler, bool Streams = names_on_connection<Handler>>
struct pool_handler {
    using type = stream_handler<Handler>;
    type served;
    explicit pool_handler(Handler& handler) noexcept : served(handler) {}
};
template <class Handler>
struct pool_handler<Handler, false> {
    using type = Handler;
    type& served;
    explicit pool_handler(Handler& handler) noexcept : served(handler) {}
};

}  // namespace detail

/// Memory of a pool, sized at compile time: `constinit static netio::pool_storage<{...}> memory;`
template <limits Sizes>
using pool_storage = storage<Sizes, default_blocking_backend>;

/// The second driver: threads of the caller's enter `run`, and each serves one connection at a time
/// with blocking calls. A handler of callbacks runs on it unchanged, as on any server. A handler
/// with `void on_connection(netio::stream&) noexcept` is called once for each connection that is
/// still there when its worker comes to it, and may block in the stream's calls as long as the
/// deadlines let it; when it returns the connection is flushed and closed. Beside it such a handler
/// may have `on_open`, `on_denied` and `on_close`, which are callbacks as ever.
///
/// It is a server over the backend `blocking` with `connections_max` = `workers_max`: all that a
/// server is and has, it has. (A handler of callbacks may have more connections; with
/// `on_connection` another `connections_max` is refused as limits_invalid.) A lone round trip costs
/// two system calls. Who comes while every worker has a connection waits in the listener's queue,
/// or is refused as `busy` (`wait_options::refuse_busy`).
///
/// A worker that waits for its peer hears `stop`, `drain` and kills within 100 ms
/// (`blocking::late_wake_ns`), or at once with `wait_options::wake_at_once`; one whose handler is
/// busy elsewhere hears them at its next call of the stream.
template <class Handler, class Backend = default_blocking_backend, class Gate = allow_all,
          class Events = no_events>
class blocking_pool
    : private detail::pool_handler<Handler>,
      public server<typename detail::pool_handler<Handler>::type, Backend, Gate, Events> {
    using desk = detail::pool_handler<Handler>;
    using base = server<typename desk::type, Backend, Gate, Events>;

public:
    /// Does its handler have `on_connection`?
    static constexpr bool streams = detail::names_on_connection<Handler>;

    /// As a server's: the memory, the handler, then gate and events if it has such.
    template <limits Sizes, class... More>
    blocking_pool(storage<Sizes, Backend>& box, Handler& handler, More&... more) noexcept
        : blocking_pool(storage_view{box.memory, Sizes}, handler, more...) {
        static_assert(!streams || Sizes.connections_max == Sizes.workers_max,
                      "netio: on_connection serves one connection a worker: connections_max must "
                      "be workers_max");
    }
    template <class... More>
    blocking_pool(storage_view box, Handler& handler, More&... more) noexcept
        : desk(handler), base(checked(box), desk::served, more...) {}

    /// Serves as worker `worker` until a stop or drain is complete. none, or why it could not
    /// start. One thread for each worker.
    error run(std::uint32_t worker = 0) noexcept {
        if constexpr (!streams) {
            return base::run(worker);
        } else {
            return run_streams(worker);
        }
    }
    /// As a server's. Not with `on_connection`, which lasts longer than a turn.
    bool run_once(std::uint32_t ms = 0, std::uint32_t worker = 0) noexcept
        requires(!streams)
    {
        return base::run_once(ms, worker);
    }

private:
    /// Any other number of connections is one that the limits can't have.
    static storage_view checked(storage_view box) noexcept {
        if (streams && box.sizes.connections_max != box.sizes.workers_max) {
            box.sizes.connections_max = 0;
        }
        return box;
    }

    error run_streams(std::uint32_t worker) noexcept {
        const error opened = base::open_to_run(worker);
        if (opened != error::none) {
            return opened == error::stopped ? error::none : opened;
        }
        static constexpr detail::stream_calls calls{&turn, &advance};
        stream pair[2]{{calls, this, worker, base::shared_->drain_ms},
                       {calls, this, worker, base::shared_->drain_ms}};
        desk::served.set_streams(worker, pair);
        while (turn(this, worker, forever_ns)) {
            while (serve(pair[0]) || serve(pair[1])) {
            }
        }
        desk::served.set_streams(worker, nullptr);
        base::loop_of(worker).close();
        return error::none;
    }

    /// False if there is nobody new.
    bool serve(stream& its) noexcept {
        if (!its.fresh_ || !its.is_open()) {
            return false;
        }
        its.serving_ = true;
        desk::served.handler().on_connection(its);
        its.serving_ = false;
        its.finish();
        return true;
    }

    static bool turn(void* pool, std::uint32_t worker, std::uint64_t timeout_ns) noexcept {
        return static_cast<blocking_pool*>(pool)->loop_of(worker).turn(timeout_ns);
    }
    static void advance(void* pool, std::uint32_t worker, connection& served,
                        bool asks) noexcept {
        static_cast<blocking_pool*>(pool)->loop_of(worker).advance(served, asks);
    }
};

template <limits Sizes, class Backend, class Handler>
blocking_pool(storage<Sizes, Backend>&, Handler&) -> blocking_pool<Handler, Backend>;
template <limits Sizes, class Backend, class Handler, class Events>
blocking_pool(storage<Sizes, Backend>&, Handler&, Events&)
    -> blocking_pool<Handler, Backend, allow_all, Events>;
template <limits Sizes, class Backend, class Handler, detail::looks_like_gate Gate>
blocking_pool(storage<Sizes, Backend>&, Handler&, Gate&) -> blocking_pool<Handler, Backend, Gate>;
template <limits Sizes, class Backend, class Handler, class Gate, class Events>
blocking_pool(storage<Sizes, Backend>&, Handler&, Gate&, Events&)
    -> blocking_pool<Handler, Backend, Gate, Events>;
template <class Handler>
blocking_pool(storage_view, Handler&) -> blocking_pool<Handler>;
template <class Handler, class Events>
blocking_pool(storage_view, Handler&, Events&)
    -> blocking_pool<Handler, default_blocking_backend, allow_all, Events>;
template <class Handler, detail::looks_like_gate Gate>
blocking_pool(storage_view, Handler&, Gate&)
    -> blocking_pool<Handler, default_blocking_backend, Gate>;
template <class Handler, class Gate, class Events>
blocking_pool(storage_view, Handler&, Gate&, Events&)
    -> blocking_pool<Handler, default_blocking_backend, Gate, Events>;

NETIO_END

#endif
