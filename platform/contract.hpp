// floor 4 · contract.hpp · what a kernel must offer: tokens, events and the backend concept
#ifndef NETIO_CONTRACT_HPP
#define NETIO_CONTRACT_HPP

#include "src/buffer_pool.hpp"
#include "src/bytes.hpp"
#include "src/endpoint.hpp"
#include "src/limits.hpp"
#include "src/local.hpp"
#include "src/options.hpp"

#include <concepts>

NETIO_BEGIN

/// A descriptor or SOCKET, wide enough for both.
using socket_handle = std::int64_t;
inline constexpr socket_handle no_handle = -1;

/// The operations of the contract; which one an event answers. Each has an index space of its own:
/// connections (connect, receive, send, close), listeners (accept), datagram sockets (receive_from)
/// and datagram sends (send_to).
enum class operation : std::uint8_t {
    none,
    accept,
    connect,
    receive,
    send,
    close,
    receive_from,
    send_to,
    wake
};

/// Index 24 bits, operation 8, generation 32: what a kernel carries and gives back. The callers of
/// a backend leave the operation none; a backend may fill it for its own bookkeeping.
struct token {
    std::uint64_t bits = 0;

    static constexpr token of(std::uint32_t index, std::uint32_t generation,
                              operation op = operation::none) noexcept {
        return {std::uint64_t{index & slots_max} | (static_cast<std::uint64_t>(op) << 24) |
                (std::uint64_t{generation} << 32)};
    }
    constexpr std::uint32_t index() const noexcept {
        return static_cast<std::uint32_t>(bits) & slots_max;
    }
    constexpr operation op() const noexcept { return static_cast<operation>((bits >> 24) & 0xFF); }
    constexpr std::uint32_t generation() const noexcept {
        return static_cast<std::uint32_t>(bits >> 32);
    }
    constexpr token with(operation op) const noexcept { return of(index(), generation(), op); }
    constexpr bool operator==(const token&) const noexcept = default;
};

enum class event_kind : std::uint8_t {
    accepted,   // handle, peer
    connected,  // handle
    received,   // byte_count, buffer_index (none: into the caller's memory, or no byte), disarmed
    sent,       // byte_count >= 1, may be short (send_to: the whole datagram)
    ended,      // the peer finished sending; ends the receive
    failed,     // why, os_code; ends the operation
    closed,     // the last event of its token
    woken       // wake() was called
};

/// One completion. 64 bytes.
struct alignas(8) event {
    token who{};
    operation op = operation::none;
    event_kind kind = event_kind::woken;
    error why = error::none;
    bool disarmed : 1 = false;   // received: the receive has ended and must be started again
    bool truncated : 1 = false;  // receive_from: the datagram was longer than the buffer
    std::uint32_t byte_count = 0;
    std::uint32_t buffer_index = none_index;
    std::int32_t os_code = 0;
    socket_handle handle = no_handle;
    endpoint peer{};
};
static_assert(sizeof(event) == 64);

/// What the system said to a call that can fail.
struct os_status {
    error why = error::none;
    std::int32_t os_code = 0;
    constexpr explicit operator bool() const noexcept { return why == error::none; }
};

/// A handle or the reason there is none.
struct os_handle {
    socket_handle handle = no_handle;
    os_status status{};
    socket_file file{};  // of a listening unix socket: what its bind made
    constexpr explicit operator bool() const noexcept { return status.why == error::none; }
};

/// What `probe` can find: nothing to read, and the connection is open as far as the system knows;
/// bytes to read; the peer's end, with nothing before it; an error.
enum class probed : std::uint8_t { idle, readable, peer_closed, failed };

/// The state of a stream, and with `failed` why.
struct probe_result {
    probed found = probed::idle;
    error why = error::none;
    constexpr bool operator==(const probe_result&) const noexcept = default;
};

/// Whether this kernel offers a backend and, if not, what is missing (static text).
struct availability {
    bool offered = true;
    const char* missing = "";
};

/// Where a stream is to be listened on or connected to: an address, or a path if that is not empty.
struct stream_address {
    endpoint ip{};
    std::string_view unix_path{};
};

/// The counts of one worker that a backend lays out its memory for.
struct backend_limits {
    std::uint32_t connections = 0;
    std::uint32_t listeners = 0;
    std::uint32_t datagram_sockets = 0;
    std::uint32_t datagram_sends = 0;

    static constexpr backend_limits of(const limits& sizes) noexcept {
        return {share(sizes.connections_max, sizes.workers_max), sizes.listeners_max,
                sizes.datagram_sockets_max,
                share(sizes.datagram_sends_max, sizes.workers_max)};
    }
};

/// `wait` without end.
inline constexpr std::uint64_t forever_ns = ~std::uint64_t{0};

/// Slices of one start_send.
inline constexpr std::size_t slices_max = 8;

/// Bytes of them in all.
constexpr std::uint64_t bytes_of(std::span<const bytes> slices) noexcept {
    std::uint64_t count = 0;
    for (const bytes& each : slices) {
        count += each.size();
    }
    return count;
}

/// The seam to a kernel: start an operation, later get its event from `wait`. docs/contract.md
/// gives
/// each function's precondition and postcondition and the clauses P1 to P15 that one test suite
/// checks on every backend.
///
/// `name` and `os_name` are static text. The static calls need no open backend: they make, name and
/// close sockets. All others belong to the thread that called `open`, but for `wake`.
template <class B>
concept backend = requires(B b, const B constant, mutable_bytes memory, std::span<event> out,
                           std::span<const bytes> slices, token who, socket_handle handle,
                           std::uint32_t count, std::uint64_t timeout_ns, buffer_pool& pool,
                           const backend_limits& sizes, const stream_address& address,
                           const endpoint& peer, const listen_options& listening,
                           const datagram_options& datagrams, const socket_options& socket) {
    { B::name } -> std::convertible_to<const char*>;
    { B::connection_bytes } -> std::convertible_to<std::size_t>;
    /// Credit that `start_receive` costs least with; 1 means one event an arming.
    { B::receive_credit } -> std::convertible_to<std::uint32_t>;
    { B::available() } noexcept -> std::same_as<availability>;
    { B::bytes_needed(sizes) } noexcept -> std::same_as<std::size_t>;
    { B::os_name(int{}) } noexcept -> std::same_as<const char*>;
    { B::listen(address, listening) } noexcept -> std::same_as<os_handle>;
    { B::open_datagram(peer, datagrams) } noexcept -> std::same_as<os_handle>;
    { B::local_of(handle) } noexcept -> std::same_as<result<endpoint>>;
    { B::close_handle(handle, bool{}) } noexcept;
    { B::reserve_descriptors(timeout_ns) } noexcept -> std::same_as<std::uint64_t>;
    /// Fills `memory` with what nobody can foretell (for keyed hashes); false: the system has none.
    { B::fill_random(memory) } noexcept -> std::same_as<bool>;

    { b.open(memory, sizes, pool) } noexcept -> std::same_as<os_status>;
    { b.close() } noexcept;
    { b.start_accept(handle, who) } noexcept -> std::same_as<os_status>;
    { b.stop_accept(who) } noexcept;
    { b.start_connect(address, socket, who) } noexcept -> std::same_as<os_status>;
    { b.attach(handle, who) } noexcept -> std::same_as<os_status>;
    { b.release(who) } noexcept -> std::same_as<socket_handle>;
    { b.start_receive(who, memory, count) } noexcept;
    { b.stop_receive(who) } noexcept;
    { b.start_send(who, slices) } noexcept;
    { b.end_send(who) } noexcept;
    { b.start_close(who, bool{}) } noexcept;
    { b.start_receive_from(handle, who) } noexcept -> std::same_as<os_status>;
    { b.stop_receive_from(who) } noexcept;
    { b.start_send_to(handle, who, bytes{}, peer) } noexcept;
    { b.wait(out, timeout_ns) } noexcept -> std::same_as<std::uint32_t>;
    { b.ready() } noexcept -> std::same_as<bool>;
    { b.wake() } noexcept;
    { b.wait_handle() } noexcept -> std::same_as<socket_handle>;
    { constant.now_ns() } noexcept -> std::same_as<std::uint64_t>;
};

/// Where the kernel answers a send at once, a backend may offer `send_now` beside it, under
/// the same preconditions: true if every byte is with the kernel already. Then no event follows and
/// no send is outstanding. False is as after `start_send`. It saves its caller a turn.
template <class B>
concept backend_sends_now = requires(B b, std::span<const bytes> slices, token who) {
    { b.send_now(who, slices) } noexcept -> std::same_as<bool>;
};

/// A send's event ends the wait it comes in. Where nobody waits for it, that is a wait for nothing:
/// a backend may offer `send_quietly`, under the preconditions of `start_send`. Its one event comes
/// with the next that comes anyhow, or `quiet_ns_max` after the kernel was told. `hurry(who)`, with
/// a send of `who` outstanding: somebody waits for it by now, so the next wait does not sleep.
template <class B>
concept backend_sends_quietly = requires(B b, std::span<const bytes> slices, token who) {
    { B::quiet_ns_max } -> std::convertible_to<std::uint64_t>;
    { b.send_quietly(who, slices) } noexcept;
    { b.hurry(who) } noexcept;
};

/// Where one call can bring many events, it may pay to wait a little for more of them: a backend
/// that can may offer `wait_for_batches(batch_us)`, microseconds, 0: never. After `open`.
template <class B>
concept backend_waits_for_batches = requires(B b, std::uint32_t batch_us) {
    { b.wait_for_batches(batch_us) } noexcept;
};

/// Where the backend itself decides how many connections it accepts at a time it may offer
/// `bound_accepts(most)`: no more `accepted` come from here on, until it is called again;
/// none_index: as many as there are. What stays in the queue is another worker's to take. A ring
/// has accepts of each listener on their way, so one more may come for each listener but the first.
template <class B>
concept backend_bounds_accepts = requires(B b, std::uint32_t most) {
    { b.bound_accepts(most) } noexcept;
};

/// Where the system tells who connected to a unix socket, a backend may offer
/// `peer_credentials_of(handle)`: of an open, connected stream; any thread. Without it no listener
/// can have `unix_required_uid`.
template <class B>
concept backend_knows_peers = requires(socket_handle handle) {
    { B::peer_credentials_of(handle) } noexcept -> std::same_as<peer_credentials>;
};

/// Where the system tells what a receive would find, a backend may offer `probe(handle)`: of an
/// open, connected stream; no byte is taken, nothing waits. An error is told once: by this, and
/// then maybe by nobody.
template <class B>
concept backend_probes = requires(socket_handle handle) {
    { B::probe(handle) } noexcept -> std::same_as<probe_result>;
};

/// Where unix sockets have files with a mode, `listen` sets it before anybody can connect, tells
/// the file in its answer, and the backend offers `remove_file_of(handle, file)`: called once,
/// before the listener is closed for good. It removes the file only if that is still the one.
template <class B>
concept backend_keeps_files = requires(socket_handle handle, const socket_file& file) {
    { B::remove_file_of(handle, file) } noexcept;
};

/// Where a listening socket can come from elsewhere, a backend may offer
/// `take_listener(handle, options)`: the handle, made as `listen` makes its own, if it is a
/// listening stream socket; or the reason, and it stays the caller's.
template <class B>
concept backend_takes_listeners = requires(socket_handle handle, const listen_options& options) {
    { B::take_listener(handle, options) } noexcept -> std::same_as<os_handle>;
};

/// Where a process can go on as two, a backend may offer `process_id()`: which of them this is,
/// never 0; any thread. A server then keeps its hands off what it has in common with the other one.
template <class B>
concept backend_may_be_forked = requires {
    { B::process_id() } noexcept -> std::same_as<std::uint64_t>;
};

/// Where a thread that has one connection blocks in its receive, a wake may come late: by
/// `late_wake_ns`, unless `wake_at_once(true)` was called after `open`, which costs a call a wait.
template <class B>
concept backend_blocks = requires(B b) {
    { B::late_wake_ns } -> std::convertible_to<std::uint64_t>;
    { b.wake_at_once(true) } noexcept;
};

NETIO_END

#endif
