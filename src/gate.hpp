// floor 6 · gate.hpp · the user's word on who gets in and what gets out, and the gate that is none
#ifndef NETIO_GATE_HPP
#define NETIO_GATE_HPP

#include "src/connection.hpp"

#include <concepts>
#include <type_traits>

NETIO_BEGIN

/// The longest answer that a gate may give with a refusal.
inline constexpr std::size_t refusal_bytes_max = 512;

/// So long may an answered refusal take, from the answer to the end of the connection.
inline constexpr std::uint32_t refusal_linger_ms = 1'000;

/// What a gate says of a client, in `admit` and `readmit`.
class verdict {
public:
    /// It may come in. `lane` is its class, lower is more important: lanes can have places reserved
    /// (`server::reserve_lane`) and be shed (`server::control`). `tag` is the gate's own; both are
    /// facts of the connection from here on.
    static constexpr verdict allow(std::uint8_t lane = 0, std::uint32_t tag = 0) noexcept {
        return {true, lane, 0, tag, {}};
    }
    /// It may not: RST. `code` comes back in the close reason (`refused(gate)`, `code()`).
    static constexpr verdict refuse(std::uint8_t code = 0) noexcept {
        return {false, 0, code, 0, {}};
    }
    /// It may not, and is told so: `reply`, at most 512 bytes that outlive the connection, then
    /// FIN; what it sends is discarded for up to a second, then RST. If limits::refusals_max are
    /// being answered already, or the reply is too long: RST at once.
    static constexpr verdict refuse(std::uint8_t code, bytes reply) noexcept {
        return {false, 0, code, 0, reply};
    }
    static verdict refuse(std::uint8_t code, std::string_view reply) noexcept {
        return refuse(code, as_bytes(reply));
    }

    constexpr bool allowed() const noexcept { return allowed_; }
    constexpr std::uint8_t lane() const noexcept { return lane_; }
    constexpr std::uint32_t tag() const noexcept { return tag_; }
    constexpr std::uint8_t code() const noexcept { return code_; }
    constexpr bytes reply() const noexcept { return reply_; }

private:
    constexpr verdict(bool allowed, std::uint8_t lane, std::uint8_t code, std::uint32_t tag,
                      bytes reply) noexcept
        : reply_(reply), tag_(tag), allowed_(allowed), lane_(lane), code_(code) {}

    bytes reply_;
    std::uint32_t tag_;
    bool allowed_;
    std::uint8_t lane_;
    std::uint8_t code_;
};

/// What is about to be sent, in `check`.
struct write_facts {
    /// Given to the kernel if allowed; it may take them in pieces. Over TLS: plaintext that is
    /// queued, and ciphertext that is left of what was allowed before.
    std::uint64_t byte_count;
    std::uint64_t bytes_out;    ///< sent on this connection before
    bool in_exchange;           ///< `phase` says so: a response may have begun
    /// These bytes begin a response, as far as the handler's `phase` tells: a last reply in their
    /// place is one that the peer can read. True for the first output of all, and for the first
    /// after a step from one phase to another at which nothing was waiting to leave; else false.
    bool at_boundary;
};

/// What a gate says of a send, in `check`.
class egress {
public:
    static constexpr egress allow() noexcept { return {true, 0, {}}; }
    /// Nothing of what is queued leaves, nor anything after it: the queue is dropped, the handler's
    /// `on_denied(c, code)` called, the connection reset, with `egress_denied(code)` as its reason.
    static constexpr egress deny(std::uint16_t code = 0) noexcept { return {false, code, {}}; }
    /// The same, but for a last reply in place of what was queued: as verdict::refuse has it. For a
    /// denial on the boundary of a response, see `write_facts::at_boundary`.
    static constexpr egress deny(std::uint16_t code, bytes reply) noexcept {
        return {false, code, reply};
    }
    static egress deny(std::uint16_t code, std::string_view reply) noexcept {
        return deny(code, as_bytes(reply));
    }

    constexpr bool allowed() const noexcept { return allowed_; }
    constexpr std::uint16_t code() const noexcept { return code_; }
    constexpr bytes reply() const noexcept { return reply_; }

private:
    constexpr egress(bool allowed, std::uint16_t code, bytes reply) noexcept
        : reply_(reply), code_(code), allowed_(allowed) {}

    bytes reply_;
    std::uint16_t code_;
    bool allowed_;
};

/// The gate that lets everybody in and everything out: no code is built for it.
///
/// A gate of one's own is a class with these members, all `noexcept`, called on the connection's
/// worker, so concurrently if there are several; only `admit` must be there:
///
/// * `verdict admit(const connection&)`: a client was accepted, a socket is adopted, or a
///   connection is about to be dialled (`origin()` says which). Before any byte is read.
/// * `verdict readmit(const connection&)`: PROXY has named the client of an admitted connection;
///   `source()` is the client's now. Without it `admit` is asked again, so one that counts in
///   there has to have it: `closed` comes once.
/// * `egress check(const connection&, const write_facts&)`: before each send. What it allowed is on
///   its way, also where the kernel has no room yet: to stop that, too, kill the connection.
///   Without it nothing is asked.
/// * `void closed(const connection&, close_reason)`: once for each connection that was admitted,
///   whatever came of it, before its slot is free.
struct allow_all {};

namespace detail {

// clang-format off
#define NETIO_GATE_PROBE(hook)                                                                     \
    struct gate_has_##hook { int hook; };                                                          \
    template <class G> struct gate_both_##hook : G, gate_has_##hook {};                            \
    template <class G, bool Final = __is_final(G)> constexpr bool gate_names_##hook =              \
        !requires { &gate_both_##hook<G>::hook; };                                                 \
    template <class G> constexpr bool gate_names_##hook<G, true> = requires { &G::hook; };
// clang-format on
NETIO_GATE_PROBE(admit)
NETIO_GATE_PROBE(readmit)
NETIO_GATE_PROBE(check)
NETIO_GATE_PROBE(closed)
NETIO_GATE_PROBE(on_admit)
NETIO_GATE_PROBE(on_check)
NETIO_GATE_PROBE(on_close)
NETIO_GATE_PROBE(on_closed)
NETIO_GATE_PROBE(on_readmit)
#undef NETIO_GATE_PROBE

template <class G>
concept calls_admit = requires(G& g, const connection& c) {
    { g.admit(c) } noexcept -> std::same_as<verdict>;
};
template <class G>
concept calls_readmit = requires(G& g, const connection& c) {
    { g.readmit(c) } noexcept -> std::same_as<verdict>;
};
template <class G>
concept calls_check = requires(G& g, const connection& c, const write_facts& facts) {
    { g.check(c, facts) } noexcept -> std::same_as<egress>;
};
template <class G>
concept calls_closed = requires(G& g, const connection& c, close_reason reason) {
    { g.closed(c, reason) } noexcept;
};

/// Instantiated once for each gate. What it names and can't be called would let everybody through.
template <class G>
constexpr bool check_gate() noexcept {
    if constexpr (!std::is_same_v<G, allow_all>) {
        static_assert(calls_admit<G>,
                      "netio: a gate needs "
                      "netio::verdict admit(const netio::connection&) noexcept");
        static_assert(!gate_names_readmit<G> || calls_readmit<G>,
                      "netio: readmit must be "
                      "netio::verdict readmit(const netio::connection&) noexcept");
        static_assert(!gate_names_check<G> || calls_check<G>,
                      "netio: check must be netio::egress check(const netio::connection&, const "
                      "netio::write_facts&) noexcept");
        static_assert(!gate_names_closed<G> || calls_closed<G>,
                      "netio: closed must be "
                      "void closed(const netio::connection&, netio::close_reason) noexcept");
        static_assert(!gate_names_on_admit<G> && !gate_names_on_readmit<G> &&
                          !gate_names_on_check<G> && !gate_names_on_close<G> &&
                          !gate_names_on_closed<G>,
                      "netio: a gate's members are admit, readmit, check and closed");
    }
    return true;
}

/// An observer has `on_event`, a gate has not.
template <class T>
concept looks_like_gate = calls_admit<T> || (gate_names_admit<T> && !requires(T& t) {
    &T::on_event;
});

}  // namespace detail

NETIO_END

#endif
