// floor 2 · limits.hpp · how much of everything: the sizes a storage is built from
#ifndef NETIO_LIMITS_HPP
#define NETIO_LIMITS_HPP

#include "src/error.hpp"

NETIO_BEGIN

/// A connection's token has 24 bits for the index.
inline constexpr std::uint32_t slots_max = 0xFFFFFFu;

/// Pieces of queued output a connection can hold; a static piece takes two.
inline constexpr std::uint32_t output_pieces_max = 8;

/// The smallest pool buffer: what is left of a preface always fits into one, so that a single free
/// output buffer is enough to move it on.
inline constexpr std::uint32_t buffer_bytes_min = 536;

/// Sizes of everything, fixed when the memory is laid out. Each line says what it stops.
/// Connections, buffers, posts, timers, dials and datagram sends are divided equally among the
/// workers (rounded up), and never cross from one to another.
struct limits {
    /// Open connections, accepted and outgoing together. Stops: running out of descriptors, memory.
    std::uint32_t connections_max = 1024;
    /// Threads that will call `run`. One handler serves all of them.
    std::uint32_t workers_max = 1;
    /// Listening sockets.
    std::uint32_t listeners_max = 8;
    /// Bytes of one pool buffer, at least 536: the largest message that can wait unconsumed, and
    /// what one receive can take. 64 more than 16 KiB, so that a message of 16 KiB is a short read
    /// and needs no second receive to see that the socket is empty.
    std::uint32_t buffer_bytes = 16 * 1024 + 64;
    /// Pool buffers that may hold received bytes. Stops: slow senders taking all memory.
    std::uint32_t input_buffers_max = 256;
    /// Pool buffers that may hold bytes to send. Stops: slow readers taking all memory.
    std::uint32_t output_buffers_max = 256;
    /// Of those, at most so many for one connection (1 to 8). Stops: one slow reader taking them
    /// all.
    std::uint32_t connection_output_buffers_max = 4;
    /// Buffers for PROXY headers of more than 536 bytes from trusted peers; 0: none are taken.
    std::uint32_t preface_buffers_max = 0;
    /// Refused clients (`verdict::refuse` with a reply) that are being answered at once; each holds
    /// a connection's slot for up to a second. Stops: refusals taking all slots.
    std::uint32_t refusals_max = 64;
    /// Messages posted to a worker and not yet taken.
    std::uint32_t posts_max = 1024;
    /// Timers of `server::after`.
    std::uint32_t timers_max = 64;
    /// Dials (`server::dial`) under way or waiting for their next round; their attempts are
    /// connections besides. Stops: storms of retries.
    std::uint32_t dials_max = 64;
    /// UDP sockets.
    std::uint32_t datagram_sockets_max = 4;
    /// Datagrams on their way out, all sockets together.
    std::uint32_t datagram_sends_max = 64;
    /// Sources of datagrams that are remembered, and as many addresses, 64 bytes for both;
    /// further ones share one budget. Each worker rounds its share up to a power of two, at least
    /// 16. Stops: one source taking all of a handler's time, and answers to addresses that never
    /// asked. 0: none is remembered, and nothing of that is bounded.
    std::uint32_t datagram_sources_max = 4096;
    /// Blocks of trusted proxies, all listeners together.
    std::uint32_t trusted_networks_max = 64;
    /// Sources (`listen_options::source_connections_max`) that are counted apart, 16 to 32 bytes
    /// each; further ones share one count. As many as connections where there can't be more.
    /// 0: none, listeners can't bound their sources.
    std::uint32_t sources_max = 0xFFFFFFFF;
    /// Events handled in one turn, 4 to 1,024. Small: few buffers in use at once, and hot ones.
    std::uint32_t events_per_turn = 32;

    constexpr bool operator==(const limits&) const noexcept = default;
};

/// `total` divided among `workers`, rounded up.
constexpr std::uint32_t share(std::uint32_t total, std::uint32_t workers) noexcept {
    return total / workers + (total % workers != 0 ? 1 : 0);
}

/// The first field of `sizes` that is out of range, or nullptr. Compile time or run time.
constexpr const char* wrong_field(const limits& sizes) noexcept {
    struct range {
        const char* field;
        std::uint32_t value, least, most;
    };
    const range ranges[] = {
        {"workers_max", sizes.workers_max, 1, 255},
        {"connections_max", sizes.connections_max, sizes.workers_max, slots_max},
        {"listeners_max", sizes.listeners_max, 1, 255},
        {"buffer_bytes", sizes.buffer_bytes, buffer_bytes_min, (1u << 20) - 1},
        {"input_buffers_max", sizes.input_buffers_max, sizes.workers_max, slots_max - 1},
        {"output_buffers_max", sizes.output_buffers_max, sizes.workers_max, slots_max - 1},
        {"connection_output_buffers_max", sizes.connection_output_buffers_max, 1,
         output_pieces_max},
        {"preface_buffers_max", sizes.preface_buffers_max, 0, slots_max},
        {"refusals_max", sizes.refusals_max, 0, slots_max},
        {"posts_max", sizes.posts_max, sizes.workers_max, 1u << 30},
        {"timers_max", sizes.timers_max, 0, slots_max},
        {"dials_max", sizes.dials_max, 0, slots_max},
        {"datagram_sockets_max", sizes.datagram_sockets_max, 0, 255},
        {"datagram_sends_max", sizes.datagram_sends_max, 0, slots_max},
        {"datagram_sources_max", sizes.datagram_sources_max, 0, slots_max},
        {"trusted_networks_max", sizes.trusted_networks_max, 0, 1u << 16},
        {"events_per_turn", sizes.events_per_turn, 4, 1024},
    };
    for (const range& each : ranges) {
        if (each.value < each.least || each.value > each.most) {
            return each.field;
        }
    }
    // Indexes have 24 bits, and shares are rounded up.
    const std::uint32_t workers = sizes.workers_max;
    if (std::uint64_t{share(sizes.connections_max, workers)} * workers > slots_max) {
        return "connections_max";
    }
    if (share(sizes.input_buffers_max, workers) + share(sizes.output_buffers_max, workers) >=
        slots_max) {
        return "output_buffers_max";
    }
    return nullptr;
}

NETIO_END

#endif
