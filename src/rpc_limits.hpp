// floor 5 · rpc_limits.hpp · how much of everything a capability kernel has, and where it lies
#ifndef NETIO_RPC_LIMITS_HPP
#define NETIO_RPC_LIMITS_HPP

#include "src/rpc_budget.hpp"
#include "src/rpc_events.hpp"
#include "src/rpc_store.hpp"
#include "src/slab.hpp"

NETIO_BEGIN

namespace rpc {

/// Names of a provider's methods are the bits of one word.
inline constexpr std::uint32_t provider_methods_max = 64;

/// Sizes of a kernel's tables, fixed when its memory is laid out. Each line says what it stops. A
/// table that is full is an ordinary result (rpc/budget-exceeded), and nothing was changed then.
struct rpc_limits {
    /// Providers, removed ones with capabilities that are still held included.
    std::uint32_t providers_max = 64;
    /// Capabilities, revoked ones that are still held included. Stops: hoarding of attenuations.
    std::uint32_t capabilities_max = 1024;
    /// How many attenuations deep: each call charges every ancestor. Stops: calls that cost ever
    /// more.
    std::uint32_t attenuations_max = 16;
    /// Lanes, destroyed ones whose calls are still under way included; 4,096 at most.
    std::uint32_t lanes_max = 64;
    /// Channels; 4,096 at most.
    std::uint32_t channels_max = 64;
    /// Messages that wait in all channels together; 4,096 at most in one.
    std::uint32_t messages_max = 1024;
    /// Promises, pending and settled together; 100,000 at most.
    std::uint32_t promises_max = 1024;
    /// Of them so many are kept, settled, for those who ask later, fewer than there are; older ones
    /// are forgotten after a dispatch, and sooner where a call needs their place or their piece.
    std::uint32_t settled_max = 512;
    /// So many bytes of results are kept with them.
    std::uint64_t settled_bytes_max = 512u << 10;
    /// Arguments of pending calls that are promises themselves, of one call at most a quarter.
    std::uint32_t edges_max = 4096;
    /// Records of the event log, a power of two or 0.
    std::uint32_t events_max = 16'384;
    /// Pieces for arguments, results, messages and the texts of capabilities, smallest first, sizes
    /// in multiples of 64; a size of 0 ends the list. The largest bounds arguments with their
    /// payload, results and messages.
    piece_class pieces[piece_classes_max] = {{256, 2048}, {4096, 128}, {64 * 1024, 8}, {0, 0}};

    constexpr bool operator==(const rpc_limits&) const noexcept = default;
};

enum class promise_state : std::uint8_t { pending, resolved, rejected, cancelled };
enum class channel_direction : std::uint8_t { send, receive, both };

namespace detail {

/// The classes that are there.
constexpr std::span<const piece_class> classes_of(const rpc_limits& sizes) noexcept {
    std::size_t count = 0;
    while (count < piece_classes_max && sizes.pieces[count].piece_bytes != 0) {
        ++count;
    }
    return {sizes.pieces, count};
}

constexpr bool classes_valid(std::span<const piece_class> classes) noexcept {
    std::uint32_t before = 0;
    for (const piece_class& one : classes) {
        if (one.piece_bytes <= before || one.piece_bytes % 64 != 0 || one.count == 0 ||
            one.count > 1u << 24 || one.piece_bytes > frame_bytes_max) {
            return false;
        }
        before = one.piece_bytes;
    }
    return !classes.empty();
}

}  // namespace detail

/// The first field of `sizes` that is out of range, or nullptr. Compile time or run time.
constexpr const char* wrong_field(const rpc_limits& sizes) noexcept {
    struct range {
        const char* field;
        std::uint32_t value, least, most;
    };
    const range ranges[] = {
        {"providers_max", sizes.providers_max, 1, 1u << 16},
        {"capabilities_max", sizes.capabilities_max, 1, 1u << 24},
        {"attenuations_max", sizes.attenuations_max, 0, 255},
        {"lanes_max", sizes.lanes_max, 1, 4096},
        {"channels_max", sizes.channels_max, 0, 4096},
        {"messages_max", sizes.messages_max, 0, 1u << 24},
        {"promises_max", sizes.promises_max, 2, 100'000},
        {"settled_max", sizes.settled_max, 1, sizes.promises_max - 1},
        {"edges_max", sizes.edges_max, 0, 1u << 24},
        {"events_max", sizes.events_max, 0, 1u << 24},
    };
    for (const range& each : ranges) {
        if (each.value < each.least || each.value > each.most) {
            return each.field;
        }
    }
    if ((sizes.events_max & (sizes.events_max - 1)) != 0) {
        return "events_max";
    }
    if (sizes.settled_bytes_max == 0) {
        return "settled_bytes_max";
    }
    return detail::classes_valid(detail::classes_of(sizes)) ? nullptr : "pieces";
}

namespace detail {

/// Links are an index and one, 0 is the end: all-zero is the initial state of every entry.

/// First in, first out, through one word of the entries: `next_of(index)` is where that is.
struct link_queue {
    std::uint32_t first, last;

    bool empty() const noexcept { return first == 0; }
    template <class NextOf>
    void push(std::uint32_t index, NextOf&& next_of) noexcept {
        next_of(index) = 0;
        (last != 0 ? next_of(last - 1) : first) = index + 1;
        last = index + 1;
    }
    /// Of a queue that is not empty.
    template <class NextOf>
    std::uint32_t pop(NextOf&& next_of) noexcept {
        NETIO_ASSERT(first != 0);
        const std::uint32_t index = first - 1;
        first = next_of(index);
        last = first != 0 ? last : 0;
        return index;
    }
};

struct provider_entry {
    slot_header slot;
    const void* methods;         // method[methods_count]
    void* object;
    void (*invoke)(void* object, void* call) noexcept;
    void (*drop)(void* object, std::uint64_t of) noexcept;
    std::uint64_t latency_ms;    // of its next batch
    std::uint32_t methods_count;
    std::uint32_t capabilities;  // that name it
    link_queue jobs;             // whose turn comes
    std::uint32_t next_busy;
    bool is_busy;                // in the list of those with a queue
    bool is_gone;
};

struct capability_entry {
    slot_header slot;
    std::uint64_t tag;           // of the id, what nobody can guess
    std::uint64_t object;
    std::uint64_t methods;       // granted, a bit each
    account spent;
    std::uint32_t parent, first_child, next_sibling, previous_sibling;
    std::uint32_t handles;
    std::uint32_t jobs;          // pending calls of it
    std::uint32_t texts;         // piece of its path scope and tool names, as a link
    std::uint32_t texts_bytes;
    std::uint32_t provider;
    std::uint8_t depth;          // attenuations above it
    bool revoked;
    bool read_only, redact;
    bool has_path, has_tools;
};

struct lane_entry {
    slot_header slot;
    account spent;
    std::uint64_t completed;
    std::uint64_t batch;         // the last one it had a job in
    const void* owner;           // of those that report: who asks for them
    std::uint64_t word;          // and which of its lanes this is
    std::uint32_t calls_max;     // pending
    std::uint32_t pending;
    std::uint32_t first_pending;
    std::uint32_t unreported;    // calls, pending ones and those in `reports`
    link_queue reports;          // settled calls that nobody has taken yet
    link_queue ready;            // jobs
    std::uint32_t next_busy;
    std::uint32_t next_reporting;
    bool is_busy;                // in the list of those with a ready job
    bool is_reporting;           // in the list of those with a report
    bool reports_calls;
    bool is_closed;
};

struct channel_queue {
    std::uint64_t sent, received;   // sequence numbers
    link_queue messages;
    std::uint32_t count;
};

struct channel_entry {
    slot_header slot;
    channel_queue queues[2];     // ours, theirs: who sent
    std::uint32_t messages_max;  // in each queue
    channel_direction direction;
};

struct message_entry {
    slot_header slot;            // its next: of the queue
    std::uint32_t piece;
    std::uint32_t bytes_count;
    std::uint32_t arguments;
};

enum class promise_kind : std::uint8_t { call, open };
enum class report : std::uint8_t { none, wanted, queued };

struct promise_entry {
    slot_header slot;            // its next: the next job of its queue
    std::uint64_t round;         // the last search that came to it
    std::uint32_t lane;
    std::uint32_t capability;
    std::uint32_t first_waiter;  // edge of who needs it, while it is pending
    std::uint32_t waiters;       // edges to it
    std::uint32_t first_edge;    // what it needs itself
    std::uint32_t unresolved;    // of those
    std::uint32_t piece;         // link: of the arguments and payload; once settled, of the result
    std::uint32_t bytes_count;
    std::uint32_t arguments;
    std::uint32_t payload_bytes;
    // Among its lane's pending ones; then its reports; then those settled that nobody needs.
    std::uint32_t previous, next;
    std::uint32_t next_found;        // of a search for cycles
    weight result;                   // of the arguments and payload, once settled of the result
    std::uint64_t word;              // the caller's own
    std::uint16_t flags;
    std::uint8_t method;
    promise_state state;
    rpc_code code;               // of a rejected one
    promise_kind kind;
    report told;
    bool is_queued;              // in the queue of a lane or a provider
    bool is_late;                // its provider said so
    bool follows;                // another one, the only one it needs
    bool is_kept;                // among those settled that nobody needs
    bool is_let_go;              // or freed instead, once it is one of them
};

/// A pending call's argument that is a promise.
struct edge_entry {
    slot_header slot;            // its next: of the same promise's waiters, while that is pending
    std::uint32_t previous;      // among those
    std::uint32_t needed;        // the promise
    std::uint32_t job;           // who needs it
    std::uint32_t next_edge;     // link to the job's next one
};

/// Where a kernel's tables lie.
struct kernel_layout {
    std::size_t providers, capabilities, lanes, channels, messages, promises, edges, events;
    std::size_t pieces, scratch, total;
    std::uint32_t scratch_bytes;

    static constexpr kernel_layout of(const rpc_limits& sizes) noexcept {
        netio::detail::carver room;
        const std::span<const piece_class> classes = classes_of(sizes);
        kernel_layout out{};
        out.providers = room.take(sizes.providers_max, sizeof(provider_entry), 64);
        out.capabilities = room.take(sizes.capabilities_max, sizeof(capability_entry), 64);
        out.lanes = room.take(sizes.lanes_max, sizeof(lane_entry), 64);
        out.channels = room.take(sizes.channels_max, sizeof(channel_entry), 64);
        out.messages = room.take(sizes.messages_max, sizeof(message_entry), 64);
        out.promises = room.take(sizes.promises_max, sizeof(promise_entry), 64);
        out.edges = room.take(sizes.edges_max, sizeof(edge_entry), 64);
        out.events = room.take(sizes.events_max, sizeof(event_record), 64);
        out.pieces = room.take(piece_store::bytes_needed(classes), 1, 64);
        out.scratch_bytes = classes.empty() ? 0 : classes.back().piece_bytes;
        out.scratch = room.take(out.scratch_bytes, 1, 64);
        out.total = room.used() + 64;  // the caller's bytes may begin anywhere
        return out;
    }
};

}  // namespace detail

/// Bytes of memory a kernel of these sizes needs; 0 if a field is out of range (`wrong_field`).
/// Compile time or run time.
constexpr std::size_t bytes_needed(const rpc_limits& sizes) noexcept {
    return wrong_field(sizes) == nullptr ? detail::kernel_layout::of(sizes).total : 0;
}

}  // namespace rpc

NETIO_END

#endif
