// floor 3 · options.hpp · run-time choices of listeners, connections and datagram sockets
#ifndef NETIO_OPTIONS_HPP
#define NETIO_OPTIONS_HPP

#include "src/bytes.hpp"
#include "src/endpoint.hpp"
#include "src/limits.hpp"
#include "src/local.hpp"

NETIO_BEGIN

/// Whether connections of a listener begin with a PROXY header. Never guessed: the text forbids it.
enum class proxy_mode : std::uint8_t { off, required };

/// Which versions a listener takes where the header is required.
enum class proxy_accept : std::uint8_t { v1, v2, either };

/// Whether connections of a listener speak TLS, from after a PROXY header on. Never guessed.
enum class tls_mode : std::uint8_t { off, required };

/// Every default time of a connection, in milliseconds; 0 turns a deadline off.
struct deadlines {
    /// PROXY header and TLS handshake together, absolute from accept; at least 3 s
    std::uint32_t preface_ms = 5'000;
    std::uint32_t idle_ms = 60'000;      ///< nothing either way, outside an exchange
    std::uint32_t read_ms = 30'000;      ///< inside an exchange: no byte came
    std::uint32_t write_ms = 30'000;     ///< output waits and the peer takes nothing
    std::uint32_t exchange_ms = 0;       ///< a whole exchange, absolute from its begin
    std::uint32_t park_ms = 60'000;      ///< parked, waiting for a post
    std::uint32_t linger_ms = 2'000;     ///< after the FIN: reading and discarding
    std::uint32_t connect_ms = 10'000;   ///< outgoing, until established

    /// Bytes a second, at least, while a request is on its way in (phase::exchange, or unconsumed
    /// bytes), and while output waits for its peer to take it; 0: no bound. See `rate_grace_ms`.
    std::uint32_t rate_in = 256;
    std::uint32_t rate_out = 256;
    /// Judged is a stretch of so long, again and again while it lasts without a break: the peer
    /// moved something, but less than the rate. One that moves nothing is read_ms's or write_ms's.
    /// 1 to 2^30.
    std::uint32_t rate_window_ms = 10'000;
    /// Nothing is judged in the first so many milliseconds of it; they are not in the first window.
    std::uint32_t rate_grace_ms = 5'000;
    /// While 75 percent of the server's connections are open, idle and read deadlines are half as
    /// long, from 90 percent on a quarter, until it is 70 and 85 again. Not where
    /// limits::connections_max is less than 16: there one more or less says nothing.
    bool tighten = true;
};

/// What new connections meet, apart from limits: see `server::control`.
enum class control_state : std::uint8_t {
    normal,    ///< all are let in
    shed,      ///< a lane and those above it are refused, and ended where they are idle
    lockdown,  ///< none is let in, but by listeners that are exempt
    draining,  ///< `drain` was called
    stopping   ///< `stop` was called
};

namespace detail {

/// A state and a lane in one word, so that both change at once.
struct control_mood {
    control_state state = control_state::normal;
    std::uint8_t lane = 0;

    constexpr bool sheds(std::uint8_t other) const noexcept {
        return state == control_state::shed && other >= lane;
    }
    constexpr std::uint32_t bits() const noexcept {
        return static_cast<std::uint32_t>(state) | std::uint32_t{lane} << 8;
    }
};
constexpr control_mood mood_of(std::uint32_t bits) noexcept {
    return {static_cast<control_state>(bits & 0xFF), static_cast<std::uint8_t>(bits >> 8)};
}

}  // namespace detail

/// A socket option no field covers; `value` must outlive the call that takes it.
struct raw_option {
    int level = 0;
    int option = 0;
    bytes value{};
};

/// What the kernel is told about a stream socket. 0 leaves the system's default.
struct socket_options {
    bool no_delay = true;                ///< TCP_NODELAY
    bool quick_ack = false;              ///< TCP_QUICKACK
    std::uint32_t receive_bytes = 0;     ///< SO_RCVBUF
    std::uint32_t send_bytes = 0;        ///< SO_SNDBUF
    std::uint32_t keepalive_idle_s = 0;  ///< SO_KEEPALIVE with TCP_KEEPIDLE
    std::uint32_t keepalive_interval_s = 0;
    std::uint32_t keepalive_probes = 0;
    std::uint32_t user_timeout_ms = 0;   ///< TCP_USER_TIMEOUT
    /// Upper six bits of IP_TOS / IPV6_TCLASS. What a dual-stack socket sends as IPv4 is marked on
    /// Linux only.
    std::uint8_t dscp = 0;
    std::string_view bind_device{};      ///< SO_BINDTODEVICE
    std::span<const raw_option> raw{};
};

/// For `listen_options::worker`: all of them share the listener.
inline constexpr std::uint32_t every_worker = 0xFFFFFFFF;

/// One listening socket. Texts are read during the call and not kept, but for `unix_path`'s file.
struct listen_options {
    /// An IPv4 or IPv6 address as text; a host name is refused. Empty: every IPv4 address.
    std::string_view address{};
    /// 0: the system picks one; read it back with `server::local`.
    std::uint16_t port = 0;
    /// A stream socket in the file system instead; a leading '@' is Linux's abstract namespace. The
    /// file is removed when the listener closes, if it is still the one that was made then (not on
    /// Windows, where the next start wants it removed first).
    /// On Windows a path that begins with `\\.\pipe\` is a named pipe.
    std::string_view unix_path{};
    /// Who may open a named pipe, as a security descriptor string (SDDL). Empty: the owner alone,
    /// whoever runs this process. Refused for anything but a named pipe.
    std::string_view pipe_access{};
    /// Who may connect by the file of `unix_path` (write permission), whatever the umask says; at
    /// most 0777. Set before anybody can connect. Another than this is refused where there is no
    /// file with a mode: on Windows, without a path, for abstract names.
    std::uint32_t unix_mode = unix_mode_default;
    /// A file left behind by a process that is gone is replaced: only a socket that refuses a
    /// connect, for nobody listens on it. Otherwise it stays and the answer is `address_in_use`.
    /// `listen` waits up to a second for another one that starts in the same folder.
    bool unix_stale_removal = true;
    /// The only user whose processes may connect to `unix_path`, by the effective number that the
    /// system tells of the peer; others are refused before a byte is read, by
    /// `refusal_cause::peer_uid`, also where the system can't tell. no_user: anyone.
    std::uint32_t unix_required_uid = no_user;
    /// An IPv6 listener that takes IPv4 too. Always set explicitly, so it is the same everywhere.
    bool dual_stack = false;
    /// Connections the kernel holds for us; 0: the system's maximum.
    std::uint32_t backlog = 0;
    bool reuse_address = true;           ///< SO_REUSEADDR (Windows means another thing by it)
    /// SO_REUSEPORT, for several listeners of one port. Linux, FreeBSD and DragonFly share the
    /// connections out among them; elsewhere one of them may get all.
    bool reuse_port = false;
    /// The only worker that accepts from it: with `reuse_port`, each worker may have a listener of
    /// its own. Clients beyond that worker's share of the slots are refused, for no other worker
    /// can take them; a listener that all share leaves them to whoever has a slot. The system deals
    /// clients out to it from `listen` on: while its worker does not run they wait.
    std::uint32_t worker = every_worker;
    std::uint32_t defer_accept_s = 0;    ///< TCP_DEFER_ACCEPT; deadlines start at accept
    std::uint32_t fast_open = 0;         ///< TCP_FASTOPEN queue
    /// Connections of this listener at once; 0: only the global bound.
    std::uint32_t connections_max = 0;
    /// Of those, at most so many of one source, counted over all listeners that have this bound: an
    /// IPv4 address or an IPv6 /64, of the client that PROXY names where it is required. 0: no
    /// bound. Unix sockets, and proxies that speak for themselves (LOCAL), have none.
    std::uint32_t source_connections_max = 0;
    /// Its clients are let in during a lockdown: for those who have to end it.
    bool lockdown_exempt = false;
    proxy_mode proxy = proxy_mode::off;
    proxy_accept versions = proxy_accept::either;
    /// Networks a PROXY header is believed from, "10.0.0.0/8, 2001:db8::/32"; empty: from any peer
    /// (the listener is then reachable by proxies only, by other means). Unix peers are trusted.
    std::string_view trusted{};
    /// Longest header taken; above 536 it needs a preface buffer and a peer named in `trusted`.
    std::uint32_t header_max = 536;
    /// nginx stream writes one plain IPv4 address after TCP6; taken only where this is set.
    bool tcp6_with_ipv4 = false;
    /// `required` on a server with a TLS policy (see `no_tls`) only; `listen` refuses it elsewhere.
    tls_mode tls = tls_mode::off;
    deadlines times{};
    socket_options socket{};
};

/// What one source may send to a UDP socket: these are the defaults of `datagram_options::source`.
inline constexpr std::uint32_t datagram_source_rate = 1'000;
inline constexpr std::uint32_t datagram_source_burst = 100;
inline constexpr std::uint32_t datagram_source_bytes_rate = 1'000'000;
inline constexpr std::uint32_t datagram_source_bytes_burst = 128 * 1024;
/// The largest that a UDP datagram can be: a burst of bytes lets one through.
inline constexpr std::uint32_t datagram_bytes_max = 65'535;
/// Of `datagram_options::amplification`: what it is, and the most that it can be.
inline constexpr std::uint32_t datagram_amplification = 1;
inline constexpr std::uint32_t datagram_amplification_max = 3;
/// Of `datagram_options::window_ms`, from a second to an hour.
inline constexpr std::uint32_t datagram_window_ms = 10'000;
inline constexpr std::uint32_t datagram_window_ms_min = 1'000;
inline constexpr std::uint32_t datagram_window_ms_max = 3'600'000;
/// Of `datagram_options::proven_ms`, from a second to a day.
inline constexpr std::uint32_t datagram_proven_ms = 60'000;
inline constexpr std::uint32_t datagram_proven_ms_min = 1'000;
inline constexpr std::uint32_t datagram_proven_ms_max = 86'400'000;

/// A budget of datagrams: two token buckets, which are full at first. What comes beyond is dropped
/// before the handler sees it, and charged to neither.
struct datagram_rates {
    std::uint32_t rate_max = 0;          ///< datagrams a second; 0: no bound
    std::uint32_t burst_max = 0;         ///< at once; where there is a bound at least 1
    std::uint32_t bytes_rate_max = 0;    ///< bytes of datagrams a second; 0: no bound
    /// At once; where there is a bound at least the largest datagram that a buffer holds.
    std::uint32_t bytes_burst_max = 0;
};

/// One UDP socket. Options out of range are refused (`error::option_invalid`, named in `failure`).
///
/// Bytes of a datagram are its payload as UDP has it, with a PROXY header if there is one, as far
/// as a buffer holds it. What depends on sources and addresses is off where
/// `limits::datagram_sources_max` is 0.
struct datagram_options {
    std::string_view address{};          ///< as in listen_options
    std::uint16_t port = 0;
    bool dual_stack = false;
    bool reuse_port = false;
    proxy_mode proxy = proxy_mode::off;  ///< header and payload in one datagram, each parsed alone
    std::string_view trusted{};
    socket_options socket{};
    /// The budget of each source (an IPv4 address or an IPv6 /64). Where a PROXY header is required
    /// it is the client's that the header names: the proxy itself has none, nor has what it says
    /// for itself (LOCAL).
    datagram_rates source{datagram_source_rate, datagram_source_burst, datagram_source_bytes_rate,
                          datagram_source_bytes_burst};
    /// The budget of all sources together. Off: a bound here is one that strangers can use up for
    /// everybody, so it has to be chosen for what the program can do.
    datagram_rates total{};
    /// To an address (with its port) that is not proven, at most so many times the bytes that came
    /// from it may be sent: bytes of this window and the one before, each answered once. 1 to 3: a
    /// spoofed source makes us no worse a source of floods than the one who spoofs. 0: no bound,
    /// for sockets that write first, as clients do, to addresses that the program knows. Proven are
    /// those of `datagram_socket::prove` and proxies named in `trusted`.
    std::uint32_t amplification = datagram_amplification;
    std::uint32_t window_ms = datagram_window_ms;
    /// How long `datagram_socket::prove` holds.
    std::uint32_t proven_ms = datagram_proven_ms;
};

/// The longest that a worker spins, in microseconds.
inline constexpr std::uint32_t spin_us_max = 1'000'000;

/// How a worker waits for what comes next. A lone connection is served at once under each of these.
///
/// * The default waits for batches: fewer calls and less CPU under load, more latency at half load.
/// * `{.batch_us = 0}` is latency first: the first event ends every wait.
/// * `{.batch_us = 0, .spin_us = 50}` spins: the lowest latency, for a CPU of its own while busy.
///
/// What each costs is measured in docs/performance.md.
struct wait_options {
    /// While messages come several at a time, a wait lasts so long for more of them, microseconds,
    /// at most 10,000; a wake by `stop` or a post waits as long. On io_uring only, with Linux 6.12
    /// or later; the others have nothing to gain by it.
    std::uint32_t batch_us = 100;
    /// After something came the kernel is asked so long, microseconds, before the worker sleeps: at
    /// most 1,000,000. An idle worker sleeps all the same.
    std::uint32_t spin_us = 0;
    /// On the backend `blocking` only: `stop`, `drain` and others' wakes end each wait at once, not
    /// after up to 100 ms, for a third system call each round trip. So it is where the handler has
    /// `on_post`.
    bool wake_at_once = false;
    /// On the backend `blocking` only, with one connection a worker: who comes while every worker
    /// has one is refused as `busy`, for a third system call each round trip of one of them. Else
    /// it waits in the listener's queue, as long as `listen_options::backlog` says.
    bool refuse_busy = false;
};

/// How an outgoing connection is made.
struct connect_options {
    deadlines times{};
    socket_options socket{};
};

NETIO_END

#endif
