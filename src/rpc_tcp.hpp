// floor 8 · rpc_tcp.hpp · envelopes over connections: a link, and a handler that answers calls
#ifndef NETIO_RPC_TCP_HPP
#define NETIO_RPC_TCP_HPP

#include "src/carver.hpp"
#include "src/connection.hpp"
#include "src/rpc_peer.hpp"

#include <new>

NETIO_BEGIN

namespace rpc {

/// Envelopes over a connection, each behind its u32 size (arp1.md D), for the length of one
/// callback: `in` is what `on_data` was given, and `used()` is what it returns. All that is
/// committed in a callback leaves in one write after it.
class tcp_link {
public:
    /// `room` is where an envelope is written before it is queued: 4 bytes and the largest one.
    tcp_link(connection& peer, bytes in, mutable_bytes room, const wire_limits& wire = {}) noexcept
        : peer_(peer), in_(in), room_(room), wire_(wire) {
        const std::size_t window = peer.input_max() - frame_prefix_bytes;
        if (wire_.bytes_max > window) {  // what could never be whole is refused by its size
            wire_.bytes_max = static_cast<std::uint32_t>(window);
        }
    }

    /// No more than one buffer holds: what goes whole or not at all finds room then.
    std::uint32_t record_max() const noexcept {
        const std::size_t most =
            room_.size() < peer_.input_max() ? room_.size() : peer_.input_max();
        return static_cast<std::uint32_t>(most - frame_prefix_bytes);
    }
    /// Without room in the connection's output `on_writable` comes when there is some.
    ring_claim claim(std::uint32_t bytes_count) noexcept {
        if (bytes_count == 0 || bytes_count > record_max() ||
            !peer_.has_room(frame_prefix_bytes + std::size_t{bytes_count})) {
            return {};
        }
        return {room_.subspan(frame_prefix_bytes, bytes_count), 0};
    }
    void commit(const ring_claim&, std::uint32_t bytes_count) noexcept {
        encode_frame_prefix(bytes_count, room_);
        const std::size_t taken = peer_.write(room_.first(frame_prefix_bytes + bytes_count));
        NETIO_ASSERT(taken == frame_prefix_bytes + bytes_count);
        static_cast<void>(taken);
        netio::wipe(room_.data(), frame_prefix_bytes + bytes_count);
    }
    static void abandon(const ring_claim&) noexcept {}
    static void flush() noexcept {}
    /// A size that is out of bounds ends the link: why().
    bytes peek() noexcept {
        if (why_ != error::none) {
            return {};
        }
        const parsed<frame> got = decode_frame(in_.subspan(used_), wire_);
        why_ = got.status == parse_status::invalid ? got.why : error::none;
        return got.status == parse_status::complete ? got.value.envelope : bytes{};
    }
    void release() noexcept { used_ += frame_prefix_bytes + peek().size(); }
    /// rpc_wire: a size below 32; rpc_transport: more than the limits allow.
    error why() const noexcept { return why_; }

    /// Bytes of whole frames that were released.
    std::size_t used() const noexcept { return used_; }

private:
    connection& peer_;
    bytes in_;
    mutable_bytes room_;
    wire_limits wire_;
    std::size_t used_ = 0;
    error why_ = error::none;
};

struct tcp_service_options {
    callee_options each{};
    /// Connections that are answered at once; more are reset.
    std::uint32_t connections_max = 64;
    /// Bytes of the largest answer; those of the largest request are `each.wire.bytes_max`. Both no
    /// more than 4 less than `limits::buffer_bytes`.
    std::uint32_t answer_max = 16u << 10;
    /// Whom requests without a target go to.
    capability root{};
    /// Or one for each connection: the handle that it returns is the service's from then on; {}: it
    /// is reset. Runs inside of `on_open`.
    capability (*root_of)(void* context, connection& peer) noexcept = nullptr;
    void* context = nullptr;
};

namespace detail {

struct tcp_session {
    slot_header slot;
    connection* peer;       // from `on_open` to `on_close`
    bool ends;              // once all is answered
    bool is_over;           // what the peer sent was wrong: once what is settled is answered
    error frame_why;        // of a frame's size
    callee answers;
};

/// What a connection knows of its session.
struct tcp_session_name {
    std::uint32_t link;     // index + 1
};

struct tcp_layout {
    std::size_t sessions, calls, calls_each, room, total;

    static constexpr tcp_layout of(const tcp_service_options& how) noexcept {
        netio::detail::carver at;
        tcp_layout out{};
        out.calls_each = callee_bytes_needed(how.each.calls_max);
        out.sessions = at.take(how.connections_max, sizeof(tcp_session), 64);
        out.calls = at.take(how.connections_max, out.calls_each, 64);
        out.room = at.take(frame_prefix_bytes + std::size_t{how.answer_max}, 1, 64);
        out.total = at.used() + 64;
        return out;
    }
    static constexpr bool valid(const tcp_service_options& how) noexcept {
        return calls_valid(how.each.calls_max) && how.each.wire.valid() &&
               how.connections_max != 0 && how.connections_max <= 1u << 20 &&
               how.answer_max >= refusal_bytes && how.answer_max <= frame_bytes_max;
    }
};

}  // namespace detail

/// Bytes of memory a service with these options needs; 0: one of them is out of range. Compile time
/// or run time.
constexpr std::size_t bytes_needed(const tcp_service_options& how) noexcept {
    return detail::tcp_layout::valid(how) ? detail::tcp_layout::of(how).total : 0;
}

/// A handler for `netio::server` with one worker: each connection is a callee of one kernel, and
/// connections of other workers are reset. The gate, PROXY headers, caps, rates and deadlines are
/// the server's, as for any handler; a connection with calls under way is in `phase::answer`, all
/// of which an exchange deadline bounds together while they overlap. A program with hooks of its
/// own calls these from them, and leaves it `connection::state`.
class tcp_service {
public:
    /// `memory` is all zero and `bytes_needed(how)` large. If it is smaller, or an option is out of
    /// range, `why` says so and every connection is reset.
    tcp_service(kernel& of, std::span<std::byte> memory, const tcp_service_options& how) noexcept
        : kernel_(of), how_(how) {
        const std::size_t needed = rpc::bytes_needed(how);
        if (needed == 0 || memory.size() < needed) {
            why_ = needed == 0 ? error::limits_invalid : error::memory_too_small;
            return;
        }
        attach(memory.data());
    }
    tcp_service(const tcp_service&) = delete;
    tcp_service& operator=(const tcp_service&) = delete;

    /// error::none, limits_invalid or memory_too_small.
    error why() const noexcept { return why_; }

    void on_open(connection& peer) noexcept;
    std::size_t on_data(connection& peer, bytes in) noexcept;
    void on_writable(connection& peer) noexcept;
    /// The peer has sent its last request: what is under way is answered.
    void on_end(connection& peer) noexcept;
    void on_close(connection& peer, close_reason reason) noexcept;
    /// Sends what `due` found.
    void on_post(connection& peer, std::uint64_t word) noexcept;

    /// For providers that resolve promises outside of a call (a timer, a post from another thread):
    /// runs what became ready. A connection that has an answer to send, or {}: post to it
    /// (`server::post`), and it is sent, with those of all others. The same one until then, unless
    /// it is closed before its turn: so ask again until there is none.
    connection_id due() noexcept;

    pool_stats sessions() const noexcept { return slots_.stats("rpc sessions"); }
    /// What the peers of all connections sent so far, and what of it was refused.
    std::uint64_t requests() const noexcept { return requests_; }
    std::uint64_t refused() const noexcept { return refused_; }

private:
    using session = detail::tcp_session;

    void attach(std::byte* memory) noexcept;
    session* session_of(connection& peer) noexcept {
        const std::uint32_t link = peer.state<detail::tcp_session_name>().link;
        return link != 0 ? sessions_ + link - 1 : nullptr;
    }
    bool open_session(session& made, connection& peer) noexcept;
    void answer(session& one, connection& peer) noexcept;
    void answer_others(connection& peer) noexcept;
    void settle_phase(session& one, connection& peer) noexcept;
    void end_if_told(session& one, connection& peer) noexcept;
    bool refuse_frame(connection& peer, error why) noexcept;
    void dispatch_for_others(connection& peer) noexcept {
        kernel_.dispatch();
        answer_others(peer);
    }

    kernel& kernel_;
    tcp_service_options how_;
    error why_ = error::none;
    slab slots_;
    session* sessions_ = nullptr;
    mutable_bytes room_{};
    std::uint64_t requests_ = 0;
    std::uint64_t refused_ = 0;
};

inline void tcp_service::attach(std::byte* memory) noexcept {
    const detail::tcp_layout lay = detail::tcp_layout::of(how_);
    memory += netio::detail::bytes_to_aligned(memory, 64);
    sessions_ = reinterpret_cast<session*>(memory + lay.sessions);
    for (std::uint32_t at = 0; at < how_.connections_max; ++at) {
        const std::span<std::byte> calls{memory + lay.calls + at * lay.calls_each, lay.calls_each};
        ::new (static_cast<void*>(sessions_ + at))
            session{{}, nullptr, false, false, error::none, {kernel_, calls, how_.each}};
    }
    slots_.attach(reinterpret_cast<std::byte*>(sessions_), sizeof(session), how_.connections_max);
    room_ = {memory + lay.room, frame_prefix_bytes + std::size_t{how_.answer_max}};
}

inline bool tcp_service::open_session(session& made, connection& peer) noexcept {
    const bool is_given = how_.root_of != nullptr;
    const capability root = is_given ? how_.root_of(how_.context, peer) : how_.root;
    const auto index = static_cast<std::uint32_t>(&made - sessions_);
    const bool opened = static_cast<bool>(made.answers.open(root, index, this));
    if (is_given) {
        kernel_.release(root);  // the callee holds it now, or nobody
    }
    return opened;
}

inline void tcp_service::on_open(connection& peer) noexcept {
    const std::uint32_t index = peer.worker() == 0 ? slots_.take() : none_index;
    if (index == none_index) {
        peer.kill();
        return;
    }
    session& made = sessions_[index];
    if (!open_session(made, peer)) {
        slots_.give(index);
        peer.kill();
        dispatch_for_others(peer);  // of a root that was let go somebody may have heard
        return;
    }
    made.peer = &peer;
    made.ends = made.is_over = false;
    made.frame_why = error::none;
    peer.state<detail::tcp_session_name>().link = index + 1;
}

inline std::size_t tcp_service::on_data(connection& peer, bytes in) noexcept {
    session* const one = session_of(peer);
    if (one == nullptr || one->is_over) {
        return in.size();
    }
    callee& answers = one->answers;
    tcp_link link(peer, in, room_, how_.each.wire);
    for (;;) {
        const std::uint64_t refused = answers.refused();
        const std::uint32_t taken = answers.take(link);
        requests_ += taken;
        refused_ += answers.refused() - refused;
        if (taken != 0) {
            peer.phase(phase::answer);  // before its first byte, which a gate asks about
        }
        kernel_.dispatch();
        const std::uint32_t answered = answers.answer_settled(link);
        if (taken == 0 && answered == 0) {  // a bad envelope waits for answers before it
            break;
        }
    }
    answer_others(peer);
    if (answers.why() == error::none && link.why() == error::none) {
        if (answers.under_way() == how_.each.calls_max) {
            peer.pause();  // until one is answered
        }
        settle_phase(*one, peer);
        return link.used();
    }
    one->is_over = true;
    one->frame_why = link.why();
    end_if_told(*one, peer);
    answer_others(peer);
    return in.size();
}

/// What was settled before a peer's mistake has been answered: the rest is not waited for, and
/// nobody is to wait for it.
inline void tcp_service::end_if_told(session& one, connection& peer) noexcept {
    if (one.answers.why() != error::rpc_transport && one.answers.has_settled()) {
        return;
    }
    if (one.frame_why != error::none && !refuse_frame(peer, one.frame_why)) {
        return;  // on_writable comes
    }
    peer.close();
    one.answers.close();
    kernel_.dispatch();
}

/// A frame of a size that nobody may send; which request it was nobody knows.
/// False: there is no room yet.
inline bool tcp_service::refuse_frame(connection& peer, error why) noexcept {
    tcp_link link(peer, {}, room_, how_.each.wire);
    const ring_claim claim = link.claim(detail::refusal_bytes);
    if (!claim) {
        return peer.output_over();
    }
    const std::size_t size = encode_error(0, code_text(code_from(why)), claim.room);
    link.commit(claim, static_cast<std::uint32_t>(size));
    return true;
}

inline void tcp_service::settle_phase(session& one, connection& peer) noexcept {
    if (one.answers.under_way() != 0) {
        peer.phase(phase::answer);
        return;
    }
    peer.phase(phase::idle);
    if (one.ends) {
        peer.close();
    }
}

inline void tcp_service::answer(session& one, connection& peer) noexcept {
    if (!one.answers.is_open()) {
        return;
    }
    tcp_link link(peer, {}, room_, how_.each.wire);
    const std::uint32_t answered = one.answers.answer_settled(link);
    one.is_over = one.is_over || one.answers.why() != error::none;
    if (one.is_over) {
        end_if_told(one, peer);
    } else if (answered != 0) {
        if (peer.paused()) {
            peer.resume();
        }
        settle_phase(one, peer);
    }
}

/// Whatever was settled meanwhile on other connections.
inline void tcp_service::answer_others(connection& peer) noexcept {
    while (const auto next = kernel_.next_reporting(this)) {
        session& one = sessions_[next.value.word];
        if (connection* const other = peer.find(one.peer->id()); other != nullptr) {
            answer(one, *other);
        }
    }
}

inline void tcp_service::on_writable(connection& peer) noexcept {
    if (session* const one = session_of(peer); one != nullptr) {
        answer(*one, peer);
        answer_others(peer);
    }
}

inline void tcp_service::on_end(connection& peer) noexcept {
    session* const one = session_of(peer);
    if (one == nullptr || one->answers.under_way() == 0) {
        peer.close();
        return;
    }
    one->ends = true;
}

inline void tcp_service::on_close(connection& peer, close_reason) noexcept {
    if (session* const one = session_of(peer); one != nullptr) {
        one->answers.close();
        one->peer = nullptr;
        slots_.give(static_cast<std::uint32_t>(one - sessions_));
        peer.state<detail::tcp_session_name>().link = 0;
        dispatch_for_others(peer);  // their calls may have waited for its
    }
}

inline void tcp_service::on_post(connection& peer, std::uint64_t) noexcept {
    kernel_.dispatch();
    if (session* const one = session_of(peer); one != nullptr) {
        answer(*one, peer);
    }
    answer_others(peer);
}

inline connection_id tcp_service::due() noexcept {
    for (;;) {
        kernel_.dispatch();
        const auto next = kernel_.peek_reporting(this);
        if (!next) {
            return {};
        }
        session& one = sessions_[next.value.word];
        if (!one.peer->output_over()) {
            return one.peer->id();
        }
        one.answers.close();  // no post reaches it, and nothing is sent
    }
}

}  // namespace rpc

NETIO_END

#endif
