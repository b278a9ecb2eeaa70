// floor 5 · connection.hpp · one connection: its 848 bytes, and what a handler may do with it
#ifndef NETIO_CONNECTION_HPP
#define NETIO_CONNECTION_HPP

#include "platform/atomic.hpp"
#include "platform/contract.hpp"
#include "src/dial.hpp"
#include "src/kill_marks.hpp"
#include "src/output_queue.hpp"
#include "src/post_queue.hpp"
#include "src/proxy.hpp"
#include "src/slab.hpp"
#include "src/source_table.hpp"
#include "src/wheel.hpp"

NETIO_BEGIN

class connection;

/// Names a connection for as long as it lives, and never another one after it. All-zero: none.
/// May be kept, copied and sent to other threads.
struct connection_id {
    std::uint64_t bits = 0;
    constexpr explicit operator bool() const noexcept { return bits != 0; }
    constexpr bool operator==(const connection_id&) const noexcept = default;
};

/// How a connection came to be.
enum class origin : std::uint8_t { accepted, connected, adopted };

/// Which deadline passed. Their lengths are in `deadlines`.
enum class deadline_kind : std::uint8_t {
    preface,
    idle,
    read,
    write,
    exchange,
    park,
    linger,
    connect
};

/// What the handler says of a connection: between requests; inside one; or inside one that came
/// whole and whose answer is being made.
enum class phase : std::uint8_t { idle, exchange, answer };

/// Where a connection is in its life. free → preface → open → draining → closing → free.
enum class connection_state_kind : std::uint8_t {
    free,
    connecting,
    preface,
    open,
    draining,
    closing
};

/// A pool buffer in a handler's hands, from `connection::take_buffer`. Must be pushed or dropped
/// before the callback returns. Move-only; dropping it gives it back.
class buffer;

namespace detail {

struct worker_core;

inline constexpr std::size_t line_bytes = 64;  // of the cache
inline constexpr std::size_t ingress_bytes = 536;
static_assert(ingress_bytes <= buffer_bytes_min);
inline constexpr std::size_t user_bytes = 64;

/// The sides of a connection as it presents itself: the real client's behind a proxy.
struct endpoint_pair {
    endpoint source;
    endpoint destination;
};
using output_words = std::uint64_t[output_pieces_max];

/// What one way had moved when its window began, and when that was (the lower bits of the tick).
/// Lies with the word of outgoing connections where others had their preface.
struct rate_meter {
    std::uint64_t base;
    std::uint32_t begun;
    std::uint32_t in_grace;  // 1: `begun` is when the grace ends, and nothing is counted yet
};
struct opened_facts {
    std::uint64_t word;
    rate_meter in;
    rate_meter out;
};
static_assert(sizeof(opened_facts) <= 64);

/// What a listener decided for its connections; shared by all workers, written once.
struct listener_entry {
    socket_handle handle;
    socket_file file;                            // removed with it, if it is one of ours
    detail::atomic<std::uint32_t> open_count;
    detail::atomic<std::uint32_t> holds;         // the server's own and one a worker; 0: closed
    detail::atomic<std::uint32_t> server_holds;  // 1 until a stop or drain begins
    detail::atomic<std::uint32_t> released;      // its socket lives on elsewhere
    std::uint32_t connections_max;
    std::uint32_t worker;  // the only one that accepts, or every_worker
    std::uint32_t required_uid;
    std::uint32_t header_max;
    std::uint32_t trusted_first;
    std::uint32_t trusted_count;
    std::uint32_t trusted_room;  // rows that are this entry's, also in its next life
    std::uint32_t source_connections_max;  // 0: none
    deadlines times;
    proxy_mode proxy_required;
    proxy_accept versions;
    tls_mode tls;
    bool tcp6_with_ipv4;
    bool lockdown_exempt;
    detail::atomic<std::uint32_t> removed;  // by remove_listener: its entry may be used again
};

/// Lanes that can have places reserved.
inline constexpr std::uint32_t reservable_lanes = 8;

struct lane_places {
    detail::atomic<std::uint32_t> open_count;
    std::uint32_t reserved;
};

/// A program's word on the door: all-zero is what it is until somebody said something.
enum class door_word : std::uint32_t { opens_with_run, open, shut };

/// What workers share. Touched at accept and close only.
struct shared_state {
    detail::atomic<std::uint32_t> open_count;
    detail::atomic<std::uint32_t> door;
    detail::atomic<std::uint32_t> mood;         // control_state, and above it the lane
    detail::atomic<std::uint32_t> common_open;  // outside of reserved places
    lane_places lanes[reservable_lanes];
    std::uint32_t reserved_count;               // 0: lanes are not counted at all
    detail::atomic<std::uint32_t> listeners_version;
    detail::atomic<std::uint32_t> listener_count;
    detail::atomic<std::uint32_t> stop_wanted;
    detail::atomic<std::uint32_t> drain_ms;  // 0: none; else the deadline + 1
    std::uint32_t connections_max;
    std::uint32_t worker_count;
    deadlines outgoing_times;
    socket_options outgoing_socket;
    wait_options waiting;
    listener_entry* listeners;
    network* trusted;
    std::uint32_t trusted_count;
    source_table sources;
    std::byte* source_words;
    std::uint32_t source_words_count;  // 0: sources are not counted here
    bool sources_ready;
};

/// The calls of a connection that need the backend; rare ones, so a pointer is enough.
struct worker_calls {
    os_status (*start_connect)(worker_core&, std::uint32_t index, const stream_address&) noexcept;
    result<endpoint> (*local_of)(socket_handle) noexcept;
    error (*admit)(worker_core&, connection&) noexcept;  // nullptr without a gate
    void (*parted)(worker_core&, connection&) noexcept;  // and tells it of the end
    peer_credentials (*credentials_of)(socket_handle) noexcept;
    probe_result (*probe)(connection&) noexcept;
    result<dial_id> (*dial)(worker_core&, std::span<const endpoint>, std::uint64_t word,
                            const dial_options&) noexcept;
};

/// Exact counts of one worker since it opened.
struct worker_counters {
    std::uint64_t accepted;
    std::uint64_t refused;
    std::uint64_t connected;
    std::uint64_t opened;
    std::uint64_t closed;
    std::uint64_t bytes_in;
    std::uint64_t bytes_out;
    std::uint64_t bytes_copied;
    std::uint64_t posts_stale;
    std::uint64_t kills_stale;  // and closes; counted where threads ask, see server::stats
    std::uint64_t accept_errors;
    std::uint64_t descriptor_pauses;
    std::uint64_t datagrams_in;
    std::uint64_t datagrams_out;
    std::uint64_t datagrams_refused;
    std::uint64_t datagrams_over_source;  // dropped: beyond a source's budget
    std::uint64_t datagrams_over_total;   // and beyond that of all
    std::uint64_t datagram_sends_denied;  // beyond what an address without proof may get
    std::uint64_t egress_denied;
    std::uint64_t closed_by[static_cast<std::size_t>(close_kind::count_)];  // of `closed`, each
    std::uint64_t refused_by[static_cast<std::size_t>(refusal_cause::count_)];  // of `refused`
    std::uint64_t turns;
};

/// A list of connections through one link field of theirs: first in, first out.
struct connection_list {
    std::uint32_t first;  // index + 1
    std::uint32_t last;
};

/// Those who wait for a buffer of one side. Linked both ways: many may leave at once.
struct waiting_list {
    connection_list list;
    std::uint32_t count;
};
static_assert(static_cast<std::size_t>(side::input) == 0);
static_assert(static_cast<std::size_t>(side::output) == 1);

}  // namespace detail

/// One connection, in a handler's hands: valid inside callbacks, on its worker's thread. 128 bytes
/// that an idle connection touches; the rest of its 848 lies in parallel arrays.
class connection {
public:
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;

    // ---- output: accepted bytes are sent after the callback, in order

    /// Copies as many bytes as there is room for; returns how many. Fewer than given: `on_writable`
    /// (and `on_data`, if input waits) comes when there is room again.
    std::size_t write(bytes out) noexcept;
    std::size_t write(std::string_view out) noexcept { return write(as_bytes(out)); }

    /// Queues bytes that outlive the connection, uncopied: all (true) or, for want of room, none.
    bool write_static(bytes out) noexcept;
    bool write_static(std::string_view out) noexcept { return write_static(as_bytes(out)); }

    /// A pool buffer to build output in; empty (false) if none is to be had now.
    buffer take_buffer() noexcept;

    /// Queues what was committed to `full`, uncopied. False for want of room: it stays yours.
    bool push_buffer(buffer& full) noexcept;

    /// Moves all unconsumed input, uncopied, to the output of `to` (this connection or another of
    /// the same worker): returns the bytes moved, which a handler then counts as consumed. 0 if
    /// the output has no room: everything stays where it is, and `to` gets `on_writable` later.
    std::size_t move_input_to(connection& to) noexcept;

    /// Bytes that `write` would take now.
    std::size_t room() const noexcept;

    /// Would `write` take so many, at most `limits::buffer_bytes`? False: `on_writable` comes when
    /// there is more room, as after a write that took less; for output that goes whole or not at
    /// all. Of more than a buffer holds it may come never.
    bool has_room(std::size_t count) noexcept;

    /// Is nothing written any more, because it was closed, ended or killed, by whomever, or its
    /// output failed?
    bool output_over() const noexcept { return !open_for_output(); }

    /// Bytes queued and not yet taken by the kernel; over TLS: not yet encrypted.
    std::uint64_t output_bytes() const noexcept;

    // ---- input

    /// Received and not consumed. In `on_data` the same bytes as its argument.
    bytes input() const noexcept;

    /// The most of it that there can be: `limits::buffer_bytes`.
    std::size_t input_max() const noexcept;

    /// What a receive would find now; no byte is taken. At most one system call: what has come
    /// already (unconsumed input, the peer's end) is told without one. A receive that the kernel
    /// has finished and this worker has not looked at yet is not seen, so ask of connections that
    /// are paused. Over TLS `readable` may be of its records alone. `failed` ends the connection as
    /// that error would; its close reason is the same. error::not_supported where the backend can't
    /// tell, error::not_open unless it is open.
    probe_result probe() noexcept;

    /// No `on_data` until `resume`; at most what is on its way is still received.
    void pause() noexcept;
    /// `on_data` again, soon if bytes wait.
    void resume() noexcept;
    bool paused() const noexcept;

    // ---- time

    /// Ends the exchange with `deadline_kind::exchange` unless it is over `ms` milliseconds from
    /// now (at most 24 days); 0 takes it back.
    void deadline(std::uint32_t ms) noexcept;

    /// exchange: the read deadline and the minimum rate apply, and the listener's exchange deadline
    /// from now on; answer: of these the exchange deadline alone, for it is not the peer's turn;
    /// idle: the idle deadline. Unconsumed input counts as exchange, unless `answer` was said.
    void phase(netio::phase now) noexcept;

    /// Waits for a post: no input, no idle or read deadline, until `on_post` came or `ms`
    /// (0: the default) went by.
    void park(std::uint32_t ms = 0) noexcept;
    bool parked() const noexcept;

    // ---- ending

    /// No more output: what is queued is flushed, then FIN. Reading goes on.
    void end() noexcept;
    /// Flush, FIN, discard what still comes until the peer closes or linger ends.
    void close() noexcept;
    /// RST, now. `reason` is the user's own number and comes back in close_reason.
    void kill(std::uint16_t reason = 0) noexcept;

    // ---- others

    /// Starts an outgoing connection on this worker: `on_open` or `on_connect_failed(word, error)`
    /// follows. Or an error at once: full, stopped, or the system's.
    result<connection_id> connect(const endpoint& to, std::uint64_t word) noexcept;
    /// The same to a unix stream socket.
    result<connection_id> connect_unix(std::string_view path, std::uint64_t word) noexcept;
    /// Starts a dial on this worker: see `server::dial`.
    result<dial_id> dial(std::span<const endpoint> candidates, std::uint64_t word,
                         const dial_options& how = {}) noexcept;

    /// Another connection of this worker, for this callback only; nullptr if it is gone.
    connection* find(connection_id wanted) noexcept;

    /// Posts to this connection: `on_post(c, word)` in one of the next turns. False: queue full.
    bool post(std::uint64_t word) noexcept;

    // ---- facts

    connection_id id() const noexcept;
    /// The client: the peer's address, or what PROXY says. Family none for adopted sockets.
    const endpoint& source() const noexcept;
    /// Where the client connected to: PROXY's destination, else `local()`.
    endpoint destination() noexcept;
    /// This socket's own address, a system call each time; none once the connection is closing.
    endpoint local() const noexcept;
    /// The process that connected to a unix socket or named pipe, as it was when it connected; 0
    /// where the system does not tell it, for other peers, and once PROXY named the client.
    std::uint32_t peer_process_id() const noexcept;
    /// The process, user and group at the other end of a unix socket, each if the system tells it:
    /// Linux all three, macOS all three, other BSDs user and group. Nothing for other sockets and
    /// once the connection is closing. Of the peer itself, also where PROXY named the client. A
    /// system call each time.
    netio::peer_credentials peer_credentials() const noexcept;
    /// The listener's index, or 255 for a connection without one.
    std::uint32_t listener() const noexcept { return listener_; }
    netio::origin origin() const noexcept { return static_cast<netio::origin>(origin_); }
    std::uint32_t worker() const noexcept;
    /// What the gate made of it: its class (0 without a gate), and the gate's own word.
    std::uint8_t lane() const noexcept { return lane_; }
    std::uint32_t tag() const noexcept { return tag_; }
    /// How much is in use, in percent: of the server's connections or of this worker's output
    /// buffers, whatever is scarcer: for handlers that want to do less then.
    std::uint32_t pressure() const noexcept;
    /// True if PROXY named the client (not for LOCAL and UNSPEC headers).
    bool proxied() const noexcept;
    /// The header's TLVs; in `on_open` only, empty otherwise.
    proxy::tlv_list tlvs() const noexcept;
    /// The whole PROXY header; in `on_open` only, nullptr otherwise and without one.
    const proxy::header* proxy_header() const noexcept;
    /// The word given to `connect`.
    std::uint64_t connect_word() const noexcept;
    /// The session's number in the server's TLS policy, to ask that what was negotiated; 0: no TLS.
    std::uint32_t tls_session() const noexcept {
        return overflow_ == 0 && origin() == netio::origin::accepted ? overflow_end_ : 0;
    }
    /// Bytes received and sent so far: over TLS, its records.
    std::uint64_t bytes_in() const noexcept { return bytes_in_; }
    std::uint64_t bytes_out() const noexcept { return bytes_out_; }
    /// Milliseconds since accept or connect, in steps of 64.
    std::uint64_t age_ms() const noexcept;
    connection_state_kind state_kind() const noexcept { return state_; }
    /// The descriptor; no_handle once the connection is closing. Of a named pipe the lower 32 bits
    /// are the handle.
    socket_handle native_handle() const noexcept { return handle_; }

    /// 64 bytes of the user's own, zeroed at open, wiped at the end.
    template <class T>
    T& state() noexcept {
        static_assert(sizeof(T) <= detail::user_bytes, "netio: connection state is 64 bytes");
        static_assert(std::is_trivially_copyable_v<T>,
                      "netio: connection state must be trivially copyable");
        static_assert(alignof(T) <= 8, "netio: connection state is aligned to 8");
        return *static_cast<T*>(user_memory());
    }

private:
    template <class Handler, class Backend, class Gate, class Events, class Tls>
    friend class reactor;
    friend class buffer;
    friend class stream;
    friend struct detail::worker_core;

    enum flag : std::uint32_t {
        receiving = 1u << 0,        // a receive is outstanding
        receiving_into = 1u << 1,   // and it fills our own memory
        stopping = 1u << 2,         // and stop_receive was called
        sending = 1u << 3,          // a send is outstanding
        peer_ended = 1u << 4,       // the peer's FIN was seen
        end_told = 1u << 5,         // and on_end was called
        end_wanted = 1u << 6,       // FIN after the flush
        end_done = 1u << 7,         // FIN sent
        close_wanted = 1u << 8,
        kill_wanted = 1u << 9,
        is_paused = 1u << 10,
        refused = 1u << 11,         // output was refused: on_writable when there is room
        data_due = 1u << 12,        // on_data is owed
        opened = 1u << 13,          // on_open ran, so on_close will
        touched = 1u << 14,         // in the list of those to settle
        waits_for_output = 1u << 15,  // in the list of those an output buffer was refused
        is_proxied = 1u << 16,
        user_used = 1u << 17,
        in_exchange = 1u << 18,
        is_parked = 1u << 19,
        output_dead = 1u << 20,     // a send failed: nothing more goes out
        preface_buffer = 1u << 21,  // the window is charged to the preface quota
        window_inline = 1u << 22,   // the window is the inline ingress
        has_destination = 1u << 23,
        mid_answer = 1u << 24,      // a gate let something out since the last step of `phase`
        waits_for_input = 1u << 25,  // or an input buffer; never in both lists
        attached = 1u << 26,        // the backend knows the handle
        output_used = 1u << 27,     // the output words were touched
        due_listed = 1u << 28,      // in the list of those on_data is owed to
        blocked = 1u << 31,         // output was refused since the last on_data
        open_due = 1u << 30,        // adopted: on_open comes in the next turn
        discarding = 1u << 29,      // the scratch end of the ingress was lent to the kernel
    };

    bool has(std::uint32_t flags) const noexcept { return (flags_ & flags) != 0; }
    void set(std::uint32_t flags) noexcept { flags_ |= flags; }
    void unset(std::uint32_t flags) noexcept { flags_ &= ~flags; }
    bool open_for_output() const noexcept {
        return state_ == connection_state_kind::open &&
               !has(end_wanted | close_wanted | kill_wanted | output_dead);
    }
    bool wants_data() const noexcept {
        return state_ == connection_state_kind::open &&
               !has(is_paused | is_parked | close_wanted | kill_wanted | end_told);
    }
    void because(close_kind kind, std::uint16_t detail = 0) noexcept {
        if (reason_kind_ == close_kind::none) {
            reason_kind_ = kind;
            reason_detail_ = detail;
        }
    }
    /// The same for an end in RST: it may come where an end in FIN had begun.
    void because_reset(close_kind kind, std::uint16_t detail = 0) noexcept {
        if (!resets(reason_kind_)) {
            reason_kind_ = close_kind::none;
        }
        because(kind, detail);
    }
    close_reason reason() const noexcept { return {reason_kind_, reason_detail_}; }
    /// The reason of an end that the system's error brings.
    static close_kind kind_of(error why) noexcept {
        return why == error::connection_reset || why == error::broken_pipe ||
                       why == error::connection_aborted
                   ? close_kind::peer_reset
                   : close_kind::io;
    }
    detail::worker_core& core() const noexcept {
        auto* here = reinterpret_cast<std::byte*>(const_cast<connection*>(this));
        here -= std::size_t{core_back_} * detail::line_bytes;
        return *reinterpret_cast<detail::worker_core*>(here);
    }
    std::uint32_t index() const noexcept;
    output_queue output() const noexcept;
    void touch() noexcept;
    void refuse_output(bool pool_is_empty) noexcept;
    void no_more_room() noexcept;
    /// The dial that an outgoing connection, not open yet, is an attempt of: index + 1; 0 without
    /// one, none_index once that is over. A word that only open connections use otherwise.
    std::uint32_t& attempt_of() noexcept { return overflow_end_; }
    void* user_memory() noexcept;
    std::byte* window_memory() const noexcept;
    std::uint32_t window_capacity() const noexcept;
    void release_window() noexcept;
    void stop_parking() noexcept;

    void exchange_ends_in(std::uint32_t ms) noexcept;
    std::uint64_t exchange_due() const noexcept;

    slot_header header_;           // its link serves the list of touched ones while we live
    wheel_node timer_;
    socket_handle handle_;
    std::uint64_t in_at_;          // tick of the last byte in, or of the state's begin; over TLS
                                   // of the last plaintext, out or in
    std::uint64_t out_at_;         // tick of the last byte out
    std::uint64_t bytes_in_;
    std::uint64_t bytes_out_;
    std::uint32_t core_back_;      // the worker_core is so many lines before us, on every machine
    std::uint32_t exchange_due_;   // lower bits of the tick, 0 for none
    std::uint32_t flags_;
    std::uint32_t window_;         // buffer index + 1, 0 for none
    std::uint32_t window_begin_;
    std::uint32_t window_end_;
    std::uint32_t overflow_;       // a second received buffer: index + 1
    // Its end. Over TLS, where there is none, the session; of one that is dialled: `attempt_of`.
    std::uint32_t overflow_end_;
    std::uint32_t due_next_;       // index + 1
    std::uint32_t waits_next_;     // index + 1
    std::uint32_t waits_prev_;     // index + 1
    std::uint32_t opened_at_ : 30;  // in units of 64 ms since the worker opened: two years of them
    std::uint32_t is_counted_ : 1;  // in the global and the listener's count
    std::uint32_t tag_;            // of the gate
    std::uint32_t source_place_;   // in the table of sources: place + 1
    std::uint16_t reason_detail_;
    close_kind reason_kind_ : 5;
    bool own_lane_ : 1;            // in a place reserved for its lane
    bool metered_ : 1;             // its meters were used
    bool bounded_ : 1;             // its end was given a time: linger has no more than that
    output_queue::position output_;
    connection_state_kind state_ : 3;
    bool admitted_ : 1;            // by the gate, which is owed a `closed`
    bool refusal_ : 1;             // it is being told that it may not stay
    bool in_lane_ : 1;             // counted among the lanes
    bool rates_in_ : 1;            // a meter runs: see rate_meters
    bool rates_out_ : 1;
    std::uint8_t listener_;
    std::uint8_t lane_;
    std::uint8_t origin_ : 2;
    bool answering_ : 1;           // in an exchange, and it is not the peer's turn
    bool fin_seen_ : 1;            // over TLS, whose own end is what counts
    // The last bits of the turn that last sent. Over TLS 1 while plaintext is on its way out.
    std::uint8_t sent_in_ : 4;
};
static_assert(static_cast<std::uint8_t>(close_kind::count_) <= 32, "five bits hold a reason");
static_assert(sizeof(connection) == 128, "the hot part of a connection is two cache lines");

namespace detail {

/// What a connection touches when it is not idle: addresses, queued output, the preface, the
/// user's.
struct connection_cold {
    endpoint_pair endpoints;
    output_words output;
    std::byte ingress[ingress_bytes];
    std::byte user[user_bytes];
};

/// One connection as the budget counts it; in memory its parts lie in parallel arrays, so that idle
/// connections share pages with idle connections only.
struct connection_state {
    alignas(connection) std::byte hot[sizeof(connection)];
    connection_cold cold;
};
static_assert(sizeof(connection_state) == 848, "128 + 56 + 64 + 536 + 64, also on 32 bits");

/// One worker without its backend: tables, pools and lists. Never crosses threads, but for `posts`.
struct worker_core {
    connection* hot;
    endpoint_pair* endpoints;
    output_words* output;
    std::byte (*ingress)[ingress_bytes];
    std::byte (*user)[user_bytes];
    slab slots;
    wheel wheel_of_connections;
    buffer_pool pool;
    post_queue posts;
    kill_marks kills;
    shared_state* shared;
    const worker_calls* calls;
    void* gate;                    // of the type that `calls` knows
    void* tls;                     // and this
    const proxy::header* opening;  // in on_open of a proxied connection
    connection* current;           // whose event is handled: it is settled at the end of that
    const connection* offered;     // whose window on_data is looking at
    connection_list touched;
    connection_list due;
    waiting_list waiting[2];       // by side
    std::uint64_t now_ms;          // begun ticks: what has passed
    std::uint64_t now_up_ms;       // ticks rounded up: what deadlines are counted from
    std::uint32_t due_count;
    std::uint32_t worker_index;
    std::uint32_t connections;     // slots of each worker
    std::uint32_t connection_buffers_max;
    std::uint32_t preface_buffers_max;
    std::uint32_t preface_buffers;
    std::uint32_t preface_buffers_high;
    std::uint64_t preface_buffers_refused;
    std::uint32_t refusals;        // answers of the gate under way
    std::uint32_t refusals_max;
    std::uint32_t refusals_high;
    std::uint64_t refusals_refused;
    std::uint32_t tightened;       // how often deadlines are halved for want of room
    std::uint32_t buffers_lent;    // in the handler's hands
    std::uint32_t moved_bytes;     // by move_input_to in this on_data
    bool torn_down;                // the server's end: no callbacks but those of an end
    std::uint32_t shut;            // no new connection of any kind: everything is being ended
    worker_counters counts;

    std::uint32_t index_of(const connection& c) const noexcept {
        return static_cast<std::uint32_t>(&c - hot);
    }
    connection_id id_of(std::uint32_t index) const noexcept {
        return {token::of(worker_index * connections + index, slots.generation(index)).bits};
    }
    pool_stats preface_stats() const noexcept {
        return {"preface_buffers", preface_buffers_max, preface_buffers, preface_buffers_high,
                preface_buffers_refused};
    }
    pool_stats refusal_stats() const noexcept {
        return {"refusals", refusals_max, refusals, refusals_high, refusals_refused};
    }
    /// The live connection of this worker that `id` names, or nullptr. The index of a lower worker
    /// wraps to one that is too large.
    NETIO_WRAPS connection* find(connection_id id) const noexcept {
        const token who{id.bits};
        const std::uint32_t index = who.index() - worker_index * connections;
        if (index >= connections || !slots.live(index, who.generation())) {
            return nullptr;
        }
        return &hot[index];
    }
    /// Puts a connection on the list of those whose operations are looked at after the callback.
    /// The one the callback is about is looked at anyway.
    void touch(connection& c) noexcept {
        if (&c != current && !c.has(connection::touched)) {
            c.set(connection::touched);
            append<touched_link>(touched, c);
        }
    }
    connection* pop_touched() noexcept {
        connection* c = pop<touched_link>(touched);
        if (c != nullptr) {
            c->unset(connection::touched);
        }
        return c;
    }
    /// on_data is owed: it comes in the next turn, so that no handler can keep a turn going.
    void owe_data(connection& c) noexcept {
        if (!c.has(connection::due_listed)) {
            c.set(connection::due_listed);
            append<due_link>(due, c);
            ++due_count;
        }
    }
    connection* pop_due() noexcept {
        connection* c = pop<due_link>(due);
        if (c != nullptr) {
            c->unset(connection::due_listed);
            --due_count;
        }
        return c;
    }
    /// A buffer of one side was refused: first come, first served when one comes back. Who waits
    /// for one side already is looked at whole when its turn comes.
    void wait_for_pool(connection& c, side which) noexcept {
        if (!c.has(connection::waits_for_output | connection::waits_for_input)) {
            c.set(which == side::output ? connection::waits_for_output
                                        : connection::waits_for_input);
            waiting_list& line = waiting[static_cast<std::size_t>(which)];
            c.waits_prev_ = line.list.last;
            append<waits_link>(line.list, c);
            ++line.count;
        }
    }
    connection* pop_waiting(side which) noexcept {
        waiting_list& line = waiting[static_cast<std::size_t>(which)];
        connection* c = line.list.first == 0 ? nullptr : &hot[line.list.first - 1];
        if (c != nullptr) {
            leave_waiting(*c);
        }
        return c;
    }
    /// Takes a connection out of the line it stands in, wherever that is.
    void leave_waiting(connection& c) noexcept {
        const bool output_side = c.has(connection::waits_for_output);
        waiting_list& line =
            waiting[static_cast<std::size_t>(output_side ? side::output : side::input)];
        const std::uint32_t before = c.waits_prev_;
        const std::uint32_t after = c.waits_next_;
        (before == 0 ? line.list.first : hot[before - 1].waits_next_) = after;
        (after == 0 ? line.list.last : hot[after - 1].waits_prev_) = before;
        c.waits_next_ = c.waits_prev_ = 0;
        c.unset(connection::waits_for_output | connection::waits_for_input);
        --line.count;
    }
    /// Somebody waits for a buffer that is there.
    bool someone_can_go() const noexcept {
        return (waiting[0].list.first != 0 && pool.room(side::input) != 0) ||
               (waiting[1].list.first != 0 && pool.room(side::output) != 0);
    }
    /// Takes a slot for a new connection in its first state, or none_index.
    std::uint32_t take_slot(netio::origin from, connection_state_kind state) noexcept {
        const std::uint32_t index = slots.take();
        if (index != none_index) {
            connection& c = hot[index];
            const auto back = static_cast<std::size_t>(reinterpret_cast<std::byte*>(&c) -
                                                       reinterpret_cast<std::byte*>(this));
            NETIO_ASSERT(back % line_bytes == 0);
            c.core_back_ = static_cast<std::uint32_t>(back / line_bytes);
            c.handle_ = no_handle;
            c.state_ = state;
            c.origin_ = static_cast<std::uint8_t>(from) & 3;
            c.listener_ = 255;
            c.in_at_ = now_up_ms;
            c.out_at_ = now_up_ms;
            c.opened_at_ = now_ms / 64 & 0x3FFFFFFF;
            kills.begin(index, slots.generation(index));
        }
        return index;
    }
    /// The word of an outgoing connection lies where others have their preface.
    void store_word(std::uint32_t index, std::uint64_t word) noexcept {
        std::memcpy(ingress[index], &word, sizeof(word));
    }
    std::uint64_t word_of(std::uint32_t index) const noexcept {
        return load_native<std::uint64_t>(ingress[index]);
    }
    /// Once, if the gate let it in.
    void tell_gate_of_end(connection& c) noexcept {
        if (c.admitted_) {
            c.admitted_ = false;
            calls->parted(*this, c);
        }
    }
    /// Leaves nothing of a connection behind and frees its slot.
    void free_slot(connection& c) noexcept;
    /// The lengths of a connection's deadlines.
    const deadlines& times_of(const connection& c) const noexcept {
        return c.listener_ == 255 ? shared->outgoing_times : shared->listeners[c.listener_].times;
    }
    /// Counts one more connection, globally and for its listener, unless that would pass a cap.
    bool count_in(connection& c, refusal_cause& why) noexcept;
    /// Counts one more connection of the client's source, unless its listener's cap is reached.
    bool count_source(connection& c) noexcept;
    void count_out(connection& c) noexcept;
    /// A place in its lane, unless that is being shed or all that it may have are taken.
    bool take_lane(connection& c, refusal_cause& why) noexcept;
    /// A place that is reserved for no lane.
    bool take_common(connection& c) noexcept;
    void leave_lane(connection& c) noexcept;
    /// In percent, of what is scarcest.
    std::uint32_t pressure() const noexcept;
    opened_facts facts_of(const connection& c) const noexcept {
        return load_native<opened_facts>(ingress[index_of(c)]);
    }
    void store_facts(const connection& c, const opened_facts& facts) noexcept {
        std::memcpy(ingress[index_of(c)], &facts, sizeof(facts));
    }
    /// Nothing new goes out any more.
    bool is_ending() const noexcept {
        return shut != 0 || shared->stop_wanted.load(detail::ordering::relaxed) != 0;
    }
    /// A counted, admitted slot for a connection without a listener: its index, or why not.
    result<std::uint32_t> take_place(netio::origin from, connection_state_kind state,
                                     const endpoint& peer, socket_handle handle) noexcept;
    result<connection_id> connect(const stream_address& to, std::uint64_t word) noexcept;

private:
    enum link : std::uint8_t { touched_link, due_link, waits_link };

    template <link Which>
    static std::uint32_t& next_of(connection& c) noexcept {
        if constexpr (Which == touched_link) {
            return c.header_.next;
        } else if constexpr (Which == due_link) {
            return c.due_next_;
        } else {
            return c.waits_next_;
        }
    }
    template <link Which>
    void append(connection_list& list, connection& c) noexcept {
        next_of<Which>(c) = 0;
        const std::uint32_t added = index_of(c) + 1;
        if (list.last == 0) {
            list.first = added;
        } else {
            next_of<Which>(hot[list.last - 1]) = added;
        }
        list.last = added;
    }
    template <link Which>
    connection* pop(connection_list& list) noexcept {
        if (list.first == 0) {
            return nullptr;
        }
        connection& c = hot[list.first - 1];
        list.first = next_of<Which>(c);
        if (list.first == 0) {
            list.last = 0;
        }
        next_of<Which>(c) = 0;
        return &c;
    }
    /// Takes one out of the middle: a walk, but only for connections that end while they wait.
    void leave_due(connection& c) noexcept {
        const std::uint32_t wanted = index_of(c) + 1;
        std::uint32_t before = 0;
        for (std::uint32_t at = due.first; at != wanted; at = hot[at - 1].due_next_) {
            NETIO_ASSERT(at != 0);
            before = at;
        }
        (before == 0 ? due.first : hot[before - 1].due_next_) = c.due_next_;
        if (c.due_next_ == 0) {
            due.last = before;
        }
        c.due_next_ = 0;
        --due_count;
    }
};

}  // namespace detail

class buffer {
public:
    buffer() noexcept = default;
    buffer(buffer&& other) noexcept { swap(other); }
    buffer& operator=(buffer&& other) noexcept {
        if (this != &other) {
            drop();
            swap(other);
        }
        return *this;
    }
    ~buffer() { drop(); }

    explicit operator bool() const noexcept { return core_ != nullptr; }

    /// Memory to write into, after what is committed; at most the buffer's rest. Every byte handed
    /// out counts as written when the buffer is wiped.
    mutable_bytes space(std::size_t wanted) noexcept {
        NETIO_ASSERT(core_ != nullptr);
        const std::size_t left = core_->pool.buffer_bytes() - committed_;
        const std::size_t count = wanted < left ? wanted : left;
        const auto end = static_cast<std::uint32_t>(committed_ + count);
        dirty_ = end > dirty_ ? end : dirty_;
        return {core_->pool.data(index_) + committed_, count};
    }
    /// `count` bytes of the last `space` are content now.
    void commit(std::size_t count) noexcept {
        NETIO_ASSERT(committed_ + count <= dirty_);
        committed_ += static_cast<std::uint32_t>(count);
    }
    std::size_t size() const noexcept { return committed_; }
    /// Gives it back.
    void drop() noexcept {
        if (core_ != nullptr) {
            core_->pool.give(index_, side::output, dirty_);
            forget();
        }
    }

private:
    friend class connection;
    buffer(detail::worker_core& core, std::uint32_t index) noexcept : core_(&core), index_(index) {
        ++core.buffers_lent;
    }
    void forget() noexcept {
        NETIO_ASSERT(core_->buffers_lent != 0);
        --core_->buffers_lent;
        core_ = nullptr;
        index_ = committed_ = dirty_ = 0;
    }
    void swap(buffer& other) noexcept {
        const auto exchange = [](auto& left, auto& right) {
            const auto kept = left;
            left = right;
            right = kept;
        };
        exchange(core_, other.core_);
        exchange(index_, other.index_);
        exchange(committed_, other.committed_);
        exchange(dirty_, other.dirty_);
    }

    detail::worker_core* core_ = nullptr;
    std::uint32_t index_ = 0;
    std::uint32_t committed_ = 0;
    std::uint32_t dirty_ = 0;
};

// ---- connection, output

inline std::uint32_t connection::index() const noexcept { return core().index_of(*this); }

inline output_queue connection::output() const noexcept {
    detail::worker_core& at = core();
    return {at.output[at.index_of(*this)], const_cast<output_queue::position&>(output_), at.pool};
}

inline void connection::touch() noexcept { core().touch(*this); }

inline void connection::refuse_output(bool pool_is_empty) noexcept {
    set(refused | blocked);
    if (pool_is_empty) {
        core().wait_for_pool(*this, side::output);
    }
}

inline std::size_t connection::write(bytes out) noexcept {
    if (out.empty() || !open_for_output()) {
        return 0;
    }
    detail::worker_core& at = core();
    set(output_used);
    const std::size_t done = output().copy(out, at.connection_buffers_max);
    at.counts.bytes_copied += done;
    if (done < out.size()) {
        refuse_output(at.pool.room(side::output) == 0);
    }
    touch();
    return done;
}

inline bool connection::write_static(bytes out) noexcept {
    if (!open_for_output()) {
        return false;
    }
    set(output_used);
    if (!output().push_static(out)) {
        refuse_output(false);
        return false;
    }
    touch();
    return true;
}

inline buffer connection::take_buffer() noexcept {
    detail::worker_core& at = core();
    if (!open_for_output()) {
        return {};
    }
    if (output().buffer_count() >= at.connection_buffers_max) {
        refuse_output(false);
        return {};
    }
    const std::uint32_t index = at.pool.take(side::output);
    if (index == none_index) {
        refuse_output(true);
        return {};
    }
    return {at, index};
}

inline bool connection::push_buffer(buffer& full) noexcept {
    NETIO_ASSERT(full.core_ == &core());
    if (!open_for_output()) {
        return false;
    }
    if (full.committed_ == 0) {
        full.drop();
        return true;
    }
    output_queue queue = output();
    set(output_used);
    if (queue.buffer_count() >= core().connection_buffers_max ||
        !queue.push_buffer(full.index_, 0, full.committed_)) {
        refuse_output(false);
        return false;
    }
    if (full.dirty_ > full.committed_) {  // the piece remembers its end only
        wipe(core().pool.data(full.index_) + full.committed_, full.dirty_ - full.committed_);
    }
    full.forget();
    touch();
    return true;
}

inline std::size_t connection::move_input_to(connection& to) noexcept {
    NETIO_ASSERT(&to.core() == &core());
    detail::worker_core& at = core();
    const std::uint32_t count = window_end_ - window_begin_;
    if (count == 0 || !to.open_for_output()) {
        return 0;
    }
    if (has(window_inline)) {  // the preface's rest: at most 536 bytes, copied whole or not at all
        if (to.room() < count) {
            to.refuse_output(at.pool.room(side::output) == 0);
            return 0;
        }
        to.write(input());
        window_begin_ = window_end_;
    } else {
        output_queue queue = to.output();
        const bool preface = has(preface_buffer);
        if (queue.buffer_count() >= at.connection_buffers_max ||
            to.output_.words == output_pieces_max) {
            to.refuse_output(false);
            return 0;
        }
        // A receive may be filling the window's tail: it can't change hands before that is stopped,
        // which happens before the on_data we owe from here on.
        if (has(receiving) && has(receiving_into)) {
            set(data_due);
            touch();
            to.refuse_output(true);  // so `to` gets on_writable when it is worth another try
            return 0;
        }
        if (!at.pool.transfer(side::input, side::output)) {
            to.refuse_output(true);
            return 0;
        }
        if (preface) {
            --at.preface_buffers;
            unset(preface_buffer);
        }
        to.set(output_used);
        const bool pushed = queue.push_buffer(window_ - 1, window_begin_, window_end_);
        NETIO_ASSERT(pushed);
        static_cast<void>(pushed);
        window_ = window_begin_ = window_end_ = 0;
        to.touch();
    }
    if (at.offered == this) {
        at.moved_bytes += count;
    }
    touch();
    return count;
}

inline std::size_t connection::room() const noexcept {
    if (!open_for_output()) {
        return 0;
    }
    const detail::worker_core& at = core();
    const output_queue queue = output();
    const auto least = [](std::uint32_t left, std::uint32_t right) {
        return left < right ? left : right;
    };
    const std::uint32_t held = queue.buffer_count();
    std::uint32_t more = held < at.connection_buffers_max ? at.connection_buffers_max - held : 0;
    more = least(more, output_pieces_max - output_.words);
    more = least(more, at.pool.room(side::output));
    return queue.room_in_last() + std::size_t{more} * at.pool.buffer_bytes();
}

inline bool connection::has_room(std::size_t count) noexcept {
    if (room() >= count) {
        return true;
    }
    if (open_for_output()) {
        refuse_output(core().pool.room(side::output) == 0);
    }
    return false;
}

inline std::uint64_t connection::output_bytes() const noexcept {
    return output_.words == 0 ? 0 : output().byte_count();
}

// ---- connection, input

inline std::size_t connection::input_max() const noexcept { return core().pool.buffer_bytes(); }

inline std::byte* connection::window_memory() const noexcept {
    if (has(window_inline)) {
        return core().ingress[index()];
    }
    return window_ == 0 ? nullptr : core().pool.data(window_ - 1);
}

inline std::uint32_t connection::window_capacity() const noexcept {
    if (has(window_inline)) {
        return static_cast<std::uint32_t>(detail::ingress_bytes);
    }
    return window_ == 0 ? 0 : core().pool.buffer_bytes();
}

inline bytes connection::input() const noexcept {
    if (window_end_ == window_begin_) {
        return {};
    }
    return {window_memory() + window_begin_, window_end_ - window_begin_};
}

NETIO_COLD inline probe_result connection::probe() noexcept {
    if (state_ != connection_state_kind::open || handle_ == no_handle || has(kill_wanted)) {
        return {probed::failed, error::not_open};
    }
    if (window_end_ != window_begin_ || overflow_ != 0) {
        return {probed::readable};
    }
    if (has(peer_ended)) {
        return {probed::peer_closed};
    }
    const probe_result found = core().calls->probe(*this);
    if (found.found == probed::failed && found.why != error::not_supported) {
        // Nobody may be told of it again.
        because(kind_of(found.why), static_cast<std::uint16_t>(found.why));
        set(kill_wanted);
        touch();
    }
    return found;
}

inline void connection::release_window() noexcept {
    detail::worker_core& at = core();
    if (has(window_inline)) {
        wipe(at.ingress[index()], window_end_);
        unset(window_inline);
    } else if (window_ != 0) {
        at.pool.give(window_ - 1, side::input, window_end_);
        if (has(preface_buffer)) {
            --at.preface_buffers;
            unset(preface_buffer);
        }
    }
    window_ = window_begin_ = window_end_ = 0;
}

inline void connection::pause() noexcept {
    set(is_paused);
    touch();
}

inline void connection::resume() noexcept {
    unset(is_paused);
    set(data_due);
    touch();
}

inline bool connection::paused() const noexcept { return has(is_paused); }

// ---- connection, time and ending

inline void connection::deadline(std::uint32_t ms) noexcept {
    exchange_due_ = 0;
    if (ms != 0) {
        exchange_ends_in(ms);
    }
    touch();
}

inline void connection::exchange_ends_in(std::uint32_t ms) noexcept {
    constexpr std::uint32_t most = 0x7FFFFFFF;  // so that the rest of the tick can be told
    const auto due = static_cast<std::uint32_t>(core().now_up_ms + (ms < most ? ms : most));
    exchange_due_ = due == 0 ? 1 : due;
}

NETIO_WRAPS inline std::uint64_t connection::exchange_due() const noexcept {
    const std::uint64_t now = core().now_up_ms;
    const std::uint32_t ahead = exchange_due_ - static_cast<std::uint32_t>(now);
    return ahead <= 0x7FFFFFFF ? now + ahead : now - (0 - ahead);
}

inline void connection::phase(netio::phase now) noexcept {
    answering_ = now == netio::phase::answer;
    if ((now == netio::phase::idle) == has(in_exchange) && output_.words == 0 && !has(sending)) {
        unset(mid_answer);
    }
    if (now == netio::phase::idle) {
        unset(in_exchange);
        exchange_due_ = 0;
    } else if (!has(in_exchange)) {
        set(in_exchange);
        if (!has(is_parked)) {
            in_at_ = core().now_up_ms;
        }
        const std::uint32_t ms = core().times_of(*this).exchange_ms;
        if (ms != 0 && exchange_due_ == 0) {
            exchange_ends_in(ms);
        }
    }
    touch();
}

inline void connection::park(std::uint32_t ms) noexcept {
    const std::uint32_t length = ms != 0 ? ms : core().times_of(*this).park_ms;
    set(is_parked);
    in_at_ = length == 0 ? wheel::never : core().now_up_ms + length;
    touch();
}

inline void connection::stop_parking() noexcept {
    if (has(is_parked)) {
        unset(is_parked);
        set(data_due);
        in_at_ = core().now_up_ms;
    }
}

inline bool connection::parked() const noexcept { return has(is_parked); }

/// Output was refused and will never have room again: input that waits for it is offered once more.
inline void connection::no_more_room() noexcept {
    if (has(blocked)) {
        set(data_due);
    }
    unset(refused | blocked);
}

inline void connection::end() noexcept {
    set(end_wanted);
    no_more_room();
    touch();
}

inline void connection::close() noexcept {
    because(close_kind::handler_closed);
    set(close_wanted | end_wanted);
    touch();
}

inline void connection::kill(std::uint16_t reason) noexcept {
    because_reset(close_kind::killed, reason);
    set(kill_wanted);
    touch();
}

// ---- connection, others and facts

inline result<connection_id> connection::connect(const endpoint& to, std::uint64_t word) noexcept {
    return core().connect({to, {}}, word);
}
inline result<connection_id> connection::connect_unix(std::string_view path,
                                                      std::uint64_t word) noexcept {
    return core().connect({{}, path}, word);
}
inline result<dial_id> connection::dial(std::span<const endpoint> candidates, std::uint64_t word,
                                        const dial_options& how) noexcept {
    return core().calls->dial(core(), candidates, word, how);
}
inline connection* connection::find(connection_id wanted) noexcept { return core().find(wanted); }
inline bool connection::post(std::uint64_t word) noexcept {
    return core().posts.push({id().bits, word});
}
inline connection_id connection::id() const noexcept { return core().id_of(index()); }
inline const endpoint& connection::source() const noexcept {
    return core().endpoints[index()].source;
}
inline endpoint connection::destination() noexcept {
    return has(has_destination) ? core().endpoints[index()].destination : local();
}
inline endpoint connection::local() const noexcept {
    return handle_ == no_handle ? endpoint{} : core().calls->local_of(handle_).value;
}
inline std::uint32_t connection::peer_process_id() const noexcept {
    return source().family == address_family::unix_path ? source().scope_id : 0;
}
inline netio::peer_credentials connection::peer_credentials() const noexcept {
    return handle_ == no_handle ? netio::peer_credentials{} : core().calls->credentials_of(handle_);
}
inline std::uint32_t connection::worker() const noexcept { return core().worker_index; }
inline std::uint32_t connection::pressure() const noexcept { return core().pressure(); }
inline bool connection::proxied() const noexcept { return has(is_proxied); }
inline const proxy::header* connection::proxy_header() const noexcept { return core().opening; }
inline proxy::tlv_list connection::tlvs() const noexcept {
    return core().opening != nullptr ? core().opening->tlvs : proxy::tlv_list{};
}
inline std::uint64_t connection::connect_word() const noexcept {
    return origin() == netio::origin::connected ? core().word_of(index()) : 0;
}
NETIO_WRAPS inline std::uint64_t connection::age_ms() const noexcept {
    return ((core().now_ms / 64 - opened_at_) & 0x3FFFFFFF) * 64;
}
inline void* connection::user_memory() noexcept {
    set(user_used);
    return core().user[index()];
}

// ---- worker_core

namespace detail {

/// Never above the cap, not even for a moment: another worker would refuse for it.
inline bool reserve(detail::atomic<std::uint32_t>& count, std::uint32_t most) noexcept {
    std::uint32_t seen = count.load(detail::ordering::relaxed);
    while (seen < most) {
        if (count.compare_exchange_weak(seen, seen + 1, detail::ordering::relaxed)) {
            return true;
        }
    }
    return false;
}

inline bool worker_core::count_in(connection& c, refusal_cause& why) noexcept {
    if (!reserve(shared->open_count, shared->connections_max)) {
        why = refusal_cause::global_cap;
        return false;
    }
    if (c.listener_ != 255) {
        listener_entry& from = shared->listeners[c.listener_];
        const std::uint32_t most = from.connections_max == 0 ? slots_max : from.connections_max;
        if (!reserve(from.open_count, most)) {
            shared->open_count.fetch_sub(1, detail::ordering::relaxed);
            why = refusal_cause::listener_cap;
            return false;
        }
    }
    c.is_counted_ = 1;
    return true;
}

inline bool worker_core::count_source(connection& c) noexcept {
    const std::uint32_t most = shared->listeners[c.listener_].source_connections_max;
    if (most == 0) {
        return true;
    }
    const source from = source_of(endpoints[index_of(c)].source);
    if (from.family == address_family::none) {
        return true;
    }
    const std::uint32_t place = shared->sources.acquire(from, most);
    if (place == none_index) {
        return false;
    }
    c.source_place_ = place + 1;
    return true;
}

inline bool worker_core::take_lane(connection& c, refusal_cause& why) noexcept {
    if (mood_of(shared->mood.load(detail::ordering::relaxed)).sheds(c.lane_)) {
        why = refusal_cause::shed;
        return false;
    }
    if (shared->reserved_count == 0) {
        return true;
    }
    if (c.lane_ < reservable_lanes) {
        lane_places& own = shared->lanes[c.lane_];
        c.own_lane_ = reserve(own.open_count, own.reserved);
    }
    if (c.own_lane_) {
        c.in_lane_ = true;
    } else if (!take_common(c)) {
        why = refusal_cause::lane_reserve;
        return false;
    }
    return true;
}

inline bool worker_core::take_common(connection& c) noexcept {
    c.in_lane_ = shared->reserved_count != 0 &&
                 reserve(shared->common_open, shared->connections_max - shared->reserved_count);
    return c.in_lane_ || shared->reserved_count == 0;
}

inline void worker_core::leave_lane(connection& c) noexcept {
    if (c.in_lane_) {
        (c.own_lane_ ? shared->lanes[c.lane_].open_count : shared->common_open)
            .fetch_sub(1, detail::ordering::relaxed);
        c.in_lane_ = c.own_lane_ = false;
    }
}

inline std::uint32_t worker_core::pressure() const noexcept {
    const std::uint64_t slots_used = shared->open_count.load(detail::ordering::relaxed);
    const std::uint64_t quota = pool.quota(side::output);
    const std::uint64_t of_slots = slots_used * 100 / shared->connections_max;
    const std::uint64_t of_buffers = (quota - pool.room(side::output)) * 100 / quota;
    return static_cast<std::uint32_t>(of_slots > of_buffers ? of_slots : of_buffers);
}

inline void worker_core::count_out(connection& c) noexcept {
    leave_lane(c);
    if (c.source_place_ != 0) {
        shared->sources.release(c.source_place_ - 1);
        c.source_place_ = 0;
    }
    if (c.is_counted_ != 0) {
        c.is_counted_ = 0;
        shared->open_count.fetch_sub(1, detail::ordering::relaxed);
        if (c.listener_ != 255) {
            // Whoever takes the listener's place next sees that nobody reads its entry any more.
            shared->listeners[c.listener_].open_count.fetch_sub(1, detail::ordering::release);
        }
    }
}

inline result<std::uint32_t> worker_core::take_place(netio::origin from,
                                                     connection_state_kind state,
                                                     const endpoint& peer,
                                                     socket_handle handle) noexcept {
    if (is_ending()) {
        return error::stopped;
    }
    const std::uint32_t index = take_slot(from, state);
    if (index == none_index) {
        return error::full;
    }
    connection& c = hot[index];
    endpoints[index].source = peer;
    c.handle_ = handle;
    refusal_cause why{};
    error failed = count_in(c, why) ? error::none : error::full;
    if (failed == error::none && calls->admit != nullptr) {
        failed = calls->admit(*this, c);
    }
    if (failed == error::none && !take_lane(c, why)) {
        failed = error::full;
        c.because(close_kind::refused, static_cast<std::uint16_t>(why));
    }
    if (failed != error::none) {
        free_slot(c);
        return failed;
    }
    return index;
}

inline result<connection_id> worker_core::connect(const stream_address& to,
                                                  std::uint64_t word) noexcept {
    const result<std::uint32_t> place =
        take_place(origin::connected, connection_state_kind::connecting, to.ip, no_handle);
    if (!place) {
        return place.why;
    }
    const std::uint32_t index = place.value;
    connection& c = hot[index];
    store_word(index, word);
    const os_status started = calls->start_connect(*this, index, to);
    if (!started) {
        c.because(close_kind::connect_failed, static_cast<std::uint16_t>(started.why));
        free_slot(c);
        return started.why;
    }
    c.set(connection::attached);
    touch(c);
    return id_of(index);
}

inline void worker_core::free_slot(connection& c) noexcept {
    const std::uint32_t index = index_of(c);
    NETIO_ASSERT(!c.has(connection::touched));  // those are settled after each event
    if (c.has(connection::due_listed)) {
        leave_due(c);
    }
    if (c.has(connection::waits_for_output | connection::waits_for_input)) {
        leave_waiting(c);
    }
    tell_gate_of_end(c);
    refusals -= c.refusal_ ? 1 : 0;
    kills.end(index);
    count_out(c);
    wheel_of_connections.cancel(index);
    if (c.has(connection::output_used)) {
        c.output().clear();
    }
    c.release_window();
    if (c.overflow_ != 0) {
        pool.give(c.overflow_ - 1, side::input, c.overflow_end_);
    }
    if (c.has(connection::user_used)) {
        wipe(user[index], user_bytes);
    }
    if (c.origin() == origin::connected || c.metered_) {
        store_facts(c, {});
    }
    if (c.has(connection::discarding)) {
        wipe(ingress[index], ingress_bytes);
    }
    wipe(&endpoints[index], sizeof(endpoint_pair));
    // Header and timer belong to the slab and the wheel; everything after them is ours.
    constexpr std::size_t kept = sizeof(slot_header) + sizeof(wheel_node);
    wipe(reinterpret_cast<std::byte*>(&c) + kept, sizeof(connection) - kept);
    slots.give(index);
}

}  // namespace detail

NETIO_END

#endif
