// floor 1 · error.hpp · error, result, failure with context, parsed, close reasons
#ifndef NETIO_ERROR_HPP
#define NETIO_ERROR_HPP

#include "src/base.hpp"

#include <span>
#include <string_view>

NETIO_BEGIN

/// Every way an operation of netio can fail. Stable names, see `text(error)`.
enum class error : std::uint8_t {
    none,
    // set-up
    memory_too_small,
    limits_invalid,
    option_invalid,
    address_invalid,
    host_name_given,
    path_too_long,
    not_supported,
    already_open,
    not_open,
    // the system's answers
    address_in_use,
    address_unavailable,
    permission_denied,
    descriptors_limit,
    descriptors_empty,
    kernel_memory_empty,
    connection_refused,
    connection_reset,
    connection_aborted,
    broken_pipe,
    timed_out,
    host_unreachable,
    network_unreachable,
    network_down,
    os_failure,
    // netio's own bounds
    full,
    stale,
    cancelled,
    too_long,
    stopped,
    refused_by_gate,
    end_of_stream,
    // PROXY, one for each rule of the text (see docs/proxy.md)
    not_proxy,
    proxy_version_refused,
    v1_proto,
    v1_syntax,
    v1_addr,
    v1_port,
    v1_too_long,
    v2_version,
    v2_command,
    v2_family,
    v2_short,
    v2_too_big,
    tlv_truncated,
    unique_id_length,
    crc_length,
    crc_mismatch,
    crc_duplicate,
    ssl_truncated,
    header_unfinished,
    // ARP1
    rpc_wire,
    rpc_capability_table,
    rpc_transport,
    rpc_limit,
    // listeners that somebody else made
    not_a_listener,
    handoff_magic,
    handoff_version,
    handoff_length,
    handoff_entry,
    handoff_checksum,
    handoff_unfinished,
    handoff_handles,
    handoff_socket,
    handoff_refused,
    // of this process
    forked_child,
    count_
};

namespace detail {

// Not inside `text`: there it would be built on the stack with each call.
inline constexpr const char* error_texts[] = {
    "no error", "too little memory",
    "limits contradict each other",
    "option out of range",
    "not an address",
    "a host name where an address is due",
    "path too long",
    "not supported here",
    "already open",
    "not open",
    "address in use",
    "address not available",
    "permission denied",
    "descriptor limit too low",
    "out of descriptors",
    "the kernel is out of memory",
    "connection refused",
    "connection reset",
    "connection aborted",
    "broken pipe",
    "timed out",
    "host unreachable",
    "network unreachable",
    "network down",
    "system error",
    "full", "stale id", "cancelled",
    "too long",
    "stopped",
    "refused by the gate",
    "end of stream",
    "not a PROXY header",
    "PROXY version not accepted here",
    "PROXY v1: unknown protocol token",
    "PROXY v1: wrong fields or spaces",
    "PROXY v1: bad address",
    "PROXY v1: bad port",
    "PROXY v1: no CRLF in 107 bytes",
    "PROXY v2: unknown version",
    "PROXY v2: unknown command",
    "PROXY v2: unknown family or protocol",
    "PROXY v2: shorter than its addresses",
    "PROXY v2: longer than allowed",
    "PROXY v2: TLV past the header",
    "PROXY v2: UNIQUE_ID longer than 128",
    "PROXY v2: CRC32C not 4 bytes",
    "PROXY v2: CRC32C differs",
    "PROXY v2: CRC32C twice",
    "PROXY v2: SSL TLV past its parent",
    "PROXY header unfinished",
    "rpc/wire",
    "rpc/capability-table",
    "rpc/transport",
    "over a wire limit",
    "not a listening stream socket",
    "not a hand-off", "hand-off: unknown version",
    "hand-off: wrong length or count",
    "hand-off: bad entry",
    "hand-off: checksum differs",
    "hand-off: ended before it was whole",
    "hand-off: descriptors do not match the list",
    "hand-off: a socket is not what the list says",
    "hand-off: refused by the successor",
    "the server belongs to the process that this one was forked from",
};
static_assert(sizeof(error_texts) / sizeof(error_texts[0]) ==
              static_cast<std::size_t>(error::count_));

}  // namespace detail

/// A short sentence part for people: "address in use". Never null. Any thread.
constexpr const char* text(error code) noexcept {
    const auto index = static_cast<std::size_t>(code);
    return index < static_cast<std::size_t>(error::count_) ? detail::error_texts[index]
                                                           : "unknown error";
}

/// A value or the reason there is none. `value` is value-initialised when `why` is not none.
template <class T>
struct result {
    T value{};
    error why = error::none;

    constexpr result() noexcept = default;
    constexpr result(T ready) noexcept : value(ready) {}
    constexpr result(error failed) noexcept : why(failed) {}
    constexpr explicit operator bool() const noexcept { return why == error::none; }
};

/// The three outcomes of every parser; incomplete and invalid never share a value.
enum class parse_status : std::uint8_t { complete, incomplete, invalid };

/// What every parser of netio returns.
/// complete: `consumed` bytes of the input were used, `value` is filled.
/// incomplete: at least `missing` (>= 1) further bytes are needed; nothing was used.
/// invalid: `why` says which rule was broken; more bytes can't mend it.
template <class T>
struct parsed {
    parse_status status = parse_status::incomplete;
    error why = error::none;
    std::uint32_t consumed = 0;
    std::uint32_t missing = 0;
    T value{};

    static constexpr parsed need(std::uint32_t missing_bytes) noexcept {
        parsed out;
        out.missing = missing_bytes;
        return out;
    }
    static constexpr parsed invalid(error reason) noexcept {
        parsed out;
        out.status = parse_status::invalid;
        out.why = reason;
        return out;
    }
};

/// An error with its context: which operation, on what, and what the system said. The subject is a
/// copy, so a failure outlives what it speaks of.
struct failure {
    const char* operation = "";    // static text: "listen", "open", "storage"
    const char* os_name = "";      // static text: "EADDRINUSE", or empty
    std::uint64_t needed = 0;      // where a size or count was too small: what it takes
    std::uint64_t given = 0;       // and what there was
    int os_code = 0;               // errno or the Winsock code, 0 if the system was not asked
    error code = error::none;
    char subject[119] = {};        // "0.0.0.0:80", a path, a field name; cut if longer

    constexpr explicit operator bool() const noexcept { return code != error::none; }

    /// Copies at most 118 bytes of `name` as the thing the failure speaks of.
    constexpr void about(std::string_view name) noexcept {
        std::size_t count = 0;
        for (; count < name.size() && count < sizeof(subject) - 1; ++count) {
            subject[count] = name[count];
        }
        subject[count] = '\0';
    }
};

namespace detail {

/// Appends text and decimal numbers to a caller's span and never writes past it.
class line_writer {
public:
    constexpr explicit line_writer(std::span<char> out) noexcept : out_(out) {}

    constexpr line_writer& put(std::string_view piece) noexcept {
        for (char letter : piece) {
            if (used_ + 1 < out_.size()) {
                out_[used_++] = letter;
            }
        }
        return *this;
    }
    constexpr line_writer& put(std::uint64_t number) noexcept {
        char digits[20] = {};
        std::size_t count = 0;
        do {
            digits[count++] = static_cast<char>('0' + number % 10);
            number /= 10;
        } while (number != 0);
        while (count != 0) {
            put(std::string_view(&digits[--count], 1));
        }
        return *this;
    }
    constexpr std::string_view finish() noexcept {
        if (!out_.empty()) {
            out_[used_] = '\0';
        }
        return {out_.data(), used_};
    }

private:
    std::span<char> out_;
    std::size_t used_ = 0;
};

}  // namespace detail

/// One line without a newline that names the thing: "listen 0.0.0.0:80: permission denied
/// (EACCES)". Writes a terminating NUL too; cut to fit. Any thread.
constexpr std::string_view describe(const failure& what, std::span<char> out) noexcept {
    detail::line_writer line(out);
    line.put(what.operation);
    if (what.subject[0] != '\0') {
        line.put(what.operation[0] == '\0' ? "" : " ").put(what.subject);
    }
    line.put(": ").put(text(what.code));
    if (what.needed != 0) {
        line.put(", needed ").put(what.needed).put(", given ").put(what.given);
    }
    if (what.os_name[0] != '\0') {
        line.put(" (").put(what.os_name).put(")");
    } else if (what.os_code != 0) {
        line.put(" (code ").put(static_cast<std::uint64_t>(what.os_code)).put(")");
    }
    return line.finish();
}

/// Why a connection ended. Exactly one for each connection; names are stable, see `name`.
enum class close_kind : std::uint8_t {
    none,
    peer_closed,
    peer_reset,
    idle,
    preface_timeout,
    read_timeout,
    write_timeout,
    exchange_deadline,
    park_deadline,
    connect_timeout,
    connect_failed,
    slow_peer_in,
    slow_peer_out,
    refused,
    proxy_untrusted,
    proxy_missing,
    proxy_invalid,
    tls_failed,
    killed,
    egress_denied,
    drained,
    drain_deadline,
    shed,
    shutdown,
    handler_closed,
    input_too_long,
    output_full,
    io,
    outpaced,
    count_
};

/// Which bound turned a connection away.
enum class refusal_cause : std::uint8_t {
    global_cap,
    listener_cap,
    source_cap,
    lane_reserve,
    gate,
    busy,
    door_closed,
    shed,
    lockdown,
    peer_uid,
    count_
};

/// Stable snake_case name. Never null.
constexpr const char* name(close_kind kind) noexcept {
    constexpr const char* names[] = {
        "none",           "peer_closed",    "peer_reset",        "idle",
        "preface_timeout", "read_timeout",  "write_timeout",     "exchange_deadline",
        "park_deadline",  "connect_timeout", "connect_failed",   "slow_peer_in",
        "slow_peer_out",  "refused",        "proxy_untrusted",   "proxy_missing",
        "proxy_invalid",  "tls_failed",     "killed",            "egress_denied",
        "drained",        "drain_deadline", "shed",              "shutdown",
        "handler_closed", "input_too_long", "output_full",       "io",
        "outpaced",
    };
    static_assert(sizeof(names) / sizeof(names[0]) == static_cast<std::size_t>(close_kind::count_));
    const auto index = static_cast<std::size_t>(kind);
    return index < static_cast<std::size_t>(close_kind::count_) ? names[index] : "unknown";
}

/// Stable snake_case name. Never null.
constexpr const char* name(refusal_cause cause) noexcept {
    constexpr const char* names[] = {"global_cap", "listener_cap", "source_cap",
                                     "lane_reserve", "gate",       "busy",
                                     "door_closed", "shed",        "lockdown",
                                     "peer_uid"};
    static_assert(sizeof(names) / sizeof(names[0]) ==
                  static_cast<std::size_t>(refusal_cause::count_));
    const auto index = static_cast<std::size_t>(cause);
    return index < static_cast<std::size_t>(refusal_cause::count_) ? names[index] : "unknown";
}

/// True where the connection ends in RST, false where it ends in FIN (or the peer ended it).
constexpr bool resets(close_kind kind) noexcept {
    switch (kind) {
    case close_kind::none:
    case close_kind::peer_closed:
    case close_kind::peer_reset:
    case close_kind::connect_failed:
    case close_kind::handler_closed:
    case close_kind::drained:
    case close_kind::shed:
        return false;
    default:
        return true;
    }
}

/// A close_kind with its detail: the refusal cause (and above it the gate's code), the killer's
/// reason, the gate's or the TLS policy's code, the error of io, proxy_invalid and connect_failed.
struct close_reason {
    close_kind kind = close_kind::none;
    std::uint16_t detail = 0;

    constexpr refusal_cause cause() const noexcept {
        return static_cast<refusal_cause>(detail & 0xFF);
    }
    /// The gate's own number: of a refusal by the gate, of a denied write. The TLS policy's.
    constexpr std::uint16_t code() const noexcept {
        return kind == close_kind::refused ? static_cast<std::uint16_t>(detail >> 8) : detail;
    }
    constexpr error why() const noexcept { return static_cast<error>(detail); }
    constexpr bool operator==(const close_reason&) const noexcept = default;
};

/// "idle", "refused(global_cap)", "killed(7)", "io(connection reset)"; cut to fit, NUL included.
constexpr std::string_view describe(close_reason reason, std::span<char> out) noexcept {
    detail::line_writer line(out);
    line.put(name(reason.kind));
    switch (reason.kind) {
    case close_kind::refused:
        line.put("(").put(name(reason.cause())).put(")");
        break;
    case close_kind::killed:
    case close_kind::egress_denied:
    case close_kind::tls_failed:
        line.put("(").put(std::uint64_t{reason.detail}).put(")");
        break;
    case close_kind::io:
    case close_kind::connect_failed:
    case close_kind::proxy_invalid:
        line.put("(").put(text(reason.why())).put(")");
        break;
    default:
        break;
    }
    return line.finish();
}

NETIO_END

#endif
