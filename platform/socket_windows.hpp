// floor 5 · socket_windows.hpp · sockets of Windows: errors, addresses, options, making them
#ifndef NETIO_SOCKET_WINDOWS_HPP
#define NETIO_SOCKET_WINDOWS_HPP

#include "platform/contract.hpp"
#include "platform/windows_api.hpp"

#if NETIO_HAS_IOCP

#include <climits>
#include <cstddef>

NETIO_BEGIN

namespace detail {

/// One answer of the system: the number calls give, its name, and what it means here.
struct windows_error_row {
    int code;
    const char* name;
    error why;
};

/// Every code a call of the backend is documented to give; looked through on failures only.
inline constexpr windows_error_row windows_error_table[] = {
    {10054, "WSAECONNRESET", error::connection_reset},
    {10053, "WSAECONNABORTED", error::connection_aborted},
    {10061, "WSAECONNREFUSED", error::connection_refused},
    {10060, "WSAETIMEDOUT", error::timed_out},
    {10058, "WSAESHUTDOWN", error::broken_pipe},
    {10101, "WSAEDISCON", error::connection_reset},
    {10065, "WSAEHOSTUNREACH", error::host_unreachable},
    {10064, "WSAEHOSTDOWN", error::host_unreachable},
    {10051, "WSAENETUNREACH", error::network_unreachable},
    {10050, "WSAENETDOWN", error::network_down},
    {10052, "WSAENETRESET", error::connection_reset},
    {10048, "WSAEADDRINUSE", error::address_in_use},
    {10049, "WSAEADDRNOTAVAIL", error::address_unavailable},
    {10039, "WSAEDESTADDRREQ", error::address_invalid},
    {10013, "WSAEACCES", error::permission_denied},
    {10024, "WSAEMFILE", error::descriptors_empty},
    {10055, "WSAENOBUFS", error::kernel_memory_empty},
    {8, "WSA_NOT_ENOUGH_MEMORY", error::kernel_memory_empty},
    {10040, "WSAEMSGSIZE", error::too_long},
    {10041, "WSAEPROTOTYPE", error::not_supported},
    {10042, "WSAENOPROTOOPT", error::not_supported},
    {10043, "WSAEPROTONOSUPPORT", error::not_supported},
    {10044, "WSAESOCKTNOSUPPORT", error::not_supported},
    {10045, "WSAEOPNOTSUPP", error::not_supported},
    {10047, "WSAEAFNOSUPPORT", error::not_supported},
    {10092, "WSAVERNOTSUPPORTED", error::not_supported},
    {10091, "WSASYSNOTREADY", error::network_down},
    {10093, "WSANOTINITIALISED", error::not_open},
    {995, "WSA_OPERATION_ABORTED", error::cancelled},
    {109, "ERROR_BROKEN_PIPE", error::broken_pipe},
    {232, "ERROR_NO_DATA", error::broken_pipe},
    {233, "ERROR_PIPE_NOT_CONNECTED", error::connection_reset},
    {231, "ERROR_PIPE_BUSY", error::address_in_use},
    {5, "ERROR_ACCESS_DENIED", error::permission_denied},
    {123, "ERROR_INVALID_NAME", error::address_invalid},
    {1113, "ERROR_NO_UNICODE_TRANSLATION", error::address_invalid},
    {1305, "ERROR_UNKNOWN_REVISION", error::option_invalid},
    {1307, "ERROR_INVALID_OWNER", error::permission_denied},
    {1314, "ERROR_PRIVILEGE_NOT_HELD", error::permission_denied},
    {1336, "ERROR_INVALID_ACL", error::option_invalid},
    {1337, "ERROR_INVALID_SID", error::option_invalid},
    {1450, "ERROR_NO_SYSTEM_RESOURCES", error::kernel_memory_empty},
    {6, "WSA_INVALID_HANDLE", error::os_failure},
    {87, "WSA_INVALID_PARAMETER", error::os_failure},
    {10004, "WSAEINTR", error::os_failure},
    {10009, "WSAEBADF", error::os_failure},
    {10014, "WSAEFAULT", error::os_failure},
    {10022, "WSAEINVAL", error::os_failure},
    {10035, "WSAEWOULDBLOCK", error::os_failure},
    {10037, "WSAEALREADY", error::os_failure},
    {10038, "WSAENOTSOCK", error::os_failure},
    {10056, "WSAEISCONN", error::os_failure},
    {10057, "WSAENOTCONN", error::os_failure},
};

NETIO_COLD inline error error_of(int code) noexcept {
    for (const windows_error_row& row : windows_error_table) {
        if (row.code == code) {
            return row.why;
        }
    }
    return error::os_failure;
}

NETIO_COLD inline const char* error_name(int code) noexcept {
    for (const windows_error_row& row : windows_error_table) {
        if (row.code == code) {
            return row.name;
        }
    }
    return "";
}

NETIO_COLD inline os_status status_of(int code) noexcept {
    NETIO_ASSERT(code != 0);
    return {error_of(code), code};
}

/// A finished operation tells an NTSTATUS; calls and people speak in Winsock's codes.
struct windows_status_row {
    std::uint32_t status;
    int code;
};
inline constexpr windows_status_row windows_status_table[] = {
    {0xC000020D, 10054},  // connection reset
    {0xC000013C, 10054},  // remote disconnect
    {0xC000023F, 10054},  // port unreachable, of an earlier datagram
    {0xC0000120, 995},    // cancelled
    {0xC000013B, 10053},  // local disconnect
    {0xC0000241, 10053},  // connection aborted
    {0xC0000236, 10061},  // connection refused
    {0xC00000B5, 10060},  // time-out
    {0xC000023C, 10051},  // network unreachable
    {0xC000023D, 10065},  // host unreachable
    {0xC000023E, 10065},  // protocol unreachable
    {0xC0000237, 10101},  // graceful disconnect
    {0xC000020A, 10048},  // address in use
    {0xC0000207, 10049},  // address not available
    {0xC000009A, 10055},  // resources
    {0xC0000017, 10055},  // memory
    {0xC0000022, 10013},  // access denied
    {0x80000005, 10040},  // buffer overflow
    {0xC0000023, 10040},  // buffer too small
    {0xC000020C, 10057},  // connection disconnected
    {0xC0000140, 10057},  // connection invalid
    {0xC000000D, 10022},  // parameter
    {0xC0000008, 10038},  // handle
    {0xC0000141, 10049},  // address component
    {0xC0000184, 10022},  // device state
    {0xC000014B, 109},    // pipe broken
    {0xC00000B1, 232},    // pipe closing
    {0xC00000B0, 233},    // pipe disconnected
};

/// 0 where the operation was a success.
inline int code_of_status(std::uint32_t status) noexcept {
    if (status < 0x80000000) {
        return 0;
    }
    for (const windows_status_row& row : windows_status_table) {
        if (row.status == status) {
            return row.code;
        }
    }
    // A Win32 code in the clothes of an NTSTATUS keeps its number; the rest has no name here.
    return (status >> 16) == 0xC007 ? static_cast<int>(status & 0xFFFF)
                                    : static_cast<int>(status);
}

/// Room for every address a backend handles.
union socket_address {
    std::uint16_t family;
    windows::address_ipv4 ipv4;
    windows::address_ipv6 ipv6;
    windows::address_unix path;
};

inline constexpr std::size_t unix_path_max = sizeof(windows::address_unix::path) - 1;

constexpr std::uint16_t network_order(std::uint16_t port) noexcept {
    return static_cast<std::uint16_t>((port << 8) | (port >> 8));
}
constexpr std::uint32_t network_order(std::uint32_t word) noexcept {
    return (word << 24) | ((word & 0xFF00) << 8) | ((word >> 8) & 0xFF00) | (word >> 24);
}

/// The endpoint in the system's form; its size, 0 where the endpoint is no IP address.
inline int to_socket_address(const endpoint& from, socket_address& to) noexcept {
    if (from.family == address_family::ipv4) {
        to.ipv4 = {};
        to.ipv4.family = windows::family_ipv4;
        to.ipv4.port = network_order(from.port);
        std::memcpy(to.ipv4.address, from.address.data(), 4);
        return sizeof(to.ipv4);
    }
    if (from.family == address_family::ipv6) {
        to.ipv6 = {};
        to.ipv6.family = windows::family_ipv6;
        to.ipv6.port = network_order(from.port);
        to.ipv6.flow_info = network_order(from.flow_info);
        to.ipv6.scope_id = from.scope_id;
        std::memcpy(to.ipv6.address, from.address.data(), 16);
        return sizeof(to.ipv6);
    }
    return 0;
}

/// What the system reported; family none if it reported nothing netio knows.
inline endpoint to_endpoint(const socket_address& from, int size) noexcept {
    endpoint out;
    if (size < 2) {
        return out;
    }
    if (from.family == windows::family_ipv4 && size >= int{sizeof(from.ipv4)}) {
        std::memcpy(out.address.data(), from.ipv4.address, 4);
        out.port = network_order(from.ipv4.port);
        out.family = address_family::ipv4;
    } else if (from.family == windows::family_ipv6 && size >= int{sizeof(from.ipv6)}) {
        std::memcpy(out.address.data(), from.ipv6.address, 16);
        out.port = network_order(from.ipv6.port);
        out.flow_info = network_order(from.ipv6.flow_info);
        out.scope_id = from.ipv6.scope_id;
        out.family = address_family::ipv6;
    } else if (from.family == windows::family_unix) {
        out.family = address_family::unix_path;
    }
    return out;
}

inline constexpr std::string_view pipe_prefix = "\\\\.\\pipe\\";

/// Does it name a pipe? Windows reads such names without regard to case.
constexpr bool is_pipe_path(std::string_view path) noexcept {
    for (std::size_t at = 0; at < pipe_prefix.size(); ++at) {
        const char sign = at < path.size() ? path[at] : '\0';
        if ((sign >= 'A' && sign <= 'Z' ? sign + ('a' - 'A') : sign) != pipe_prefix[at]) {
            return false;
        }
    }
    return true;
}

/// Never cut: too long is an error, and so is a NUL inside. Windows has no abstract names.
inline error to_unix_address(std::string_view path, socket_address& to, int& size) noexcept {
    NETIO_ASSERT(!path.empty());
    if (path.size() > unix_path_max) {
        return error::path_too_long;
    }
    if (path[0] == '@' || is_pipe_path(path)) {
        return error::not_supported;
    }
    if (path.find('\0') != std::string_view::npos) {
        return error::address_invalid;
    }
    to.path = {};
    to.path.family = windows::family_unix;
    std::memcpy(to.path.path, path.data(), path.size());
    size = sizeof(to.path);
    return error::none;
}

inline error to_stream_address(const stream_address& from, socket_address& to,
                               int& size) noexcept {
    if (!from.unix_path.empty()) {
        return to_unix_address(from.unix_path, to, size);
    }
    size = to_socket_address(from.ip, to);
    return size != 0 ? error::none : error::address_invalid;
}

/// Sets options one after another and keeps the first failure.
template <class Sys>
class option_setter {
public:
    explicit option_setter(windows::socket_type socket) noexcept : socket_(socket) {}

    void set(int level, int option, const void* value, std::size_t value_bytes) noexcept {
        if (status && Sys::setsockopt(socket_, level, option, value,
                                      static_cast<int>(value_bytes)) != 0) {
            status = status_of(Sys::last_error());
        }
    }
    void set(int level, int option, std::uint32_t value) noexcept {
        if (value > INT_MAX) {
            fail(error::option_invalid);
            return;
        }
        set(level, option, &value, sizeof(value));
    }
    /// Only where the user asked for it.
    void set_unless_zero(int level, int option, std::uint32_t value) noexcept {
        if (value != 0) {
            set(level, option, value);
        }
    }
    /// Windows has no such thing: silence would be a lie.
    void refuse_unless_zero(std::uint32_t value) noexcept {
        if (value != 0) {
            fail(error::not_supported);
        }
    }
    void fail(error why) noexcept {
        if (status) {
            status.why = why;
        }
    }

    os_status status{};

private:
    windows::socket_type socket_;
};

template <class Sys>
void set_socket_options(option_setter<Sys>& to, bool tcp, const socket_options& options) noexcept {
    to.set_unless_zero(windows::level_socket, windows::option_receive_bytes,
                       options.receive_bytes);
    to.set_unless_zero(windows::level_socket, windows::option_send_bytes, options.send_bytes);
    if (options.dscp > 63) {
        to.fail(error::option_invalid);
    }
    // IP_TOS is accepted and has no effect; a class of service is a matter of the qWAVE service.
    to.refuse_unless_zero(options.dscp);
    to.refuse_unless_zero(!options.bind_device.empty());
    if (tcp) {
        to.set_unless_zero(windows::level_tcp, windows::option_no_delay, options.no_delay);
        to.refuse_unless_zero(options.quick_ack);
        to.refuse_unless_zero(options.user_timeout_ms);
        const bool keepalive = (options.keepalive_idle_s | options.keepalive_interval_s |
                                options.keepalive_probes) != 0;
        to.set_unless_zero(windows::level_socket, windows::option_keepalive, keepalive);
        to.set_unless_zero(windows::level_tcp, windows::option_keepalive_idle,
                           options.keepalive_idle_s);
        to.set_unless_zero(windows::level_tcp, windows::option_keepalive_interval,
                           options.keepalive_interval_s);
        to.set_unless_zero(windows::level_tcp, windows::option_keepalive_probes,
                           options.keepalive_probes);
    }
    for (const raw_option& each : options.raw) {
        to.set(each.level, each.option, each.value.data(), each.value.size());
    }
}

/// Winsock counts its starts itself; each handle that `listen` and `open_datagram` give holds one,
/// and so does each open backend.
template <class Sys>
class winsock_hold {
public:
    winsock_hold() noexcept : code_(Sys::start_winsock()) {}
    winsock_hold(const winsock_hold&) = delete;
    winsock_hold& operator=(const winsock_hold&) = delete;
    ~winsock_hold() {
        if (code_ == 0 && !kept_) {
            Sys::stop_winsock();
        }
    }
    int code() const noexcept { return code_; }
    void keep() noexcept { kept_ = true; }

private:
    int code_;
    bool kept_ = false;
};

/// Closes what was made so far: a call that fails holds nothing. The reason is read before.
template <class Sys>
os_handle give_up(windows::socket_type socket, os_status why) noexcept {
    NETIO_ASSERT(!why);
    Sys::close_socket(socket);
    return {no_handle, why};
}

/// A new overlapped socket that no child inherits and that never blocks.
template <class Sys>
os_handle make_socket(int family, int type) noexcept {
    const windows::socket_type made = Sys::open_socket(family, type);
    if (made == windows::no_socket) {
        return {no_handle, status_of(Sys::last_error())};
    }
    if (Sys::set_non_blocking(made) != 0) {
        return give_up<Sys>(made, status_of(Sys::last_error()));
    }
    return {static_cast<socket_handle>(made), {}};
}

/// No other socket may take a port from us, nor share it: Windows' SO_REUSEADDR would let it.
template <class Sys>
os_handle bind_alone(socket_handle handle, const socket_address& where, int size, int family,
                     bool dual_stack, option_setter<Sys>& to) noexcept {
    const auto made = static_cast<windows::socket_type>(handle);
    if (family != windows::family_unix) {
        to.set(windows::level_socket, windows::option_exclusive, 1);
    }
    if (family == windows::family_ipv6) {
        to.set(windows::level_ipv6, windows::option_v6_only, dual_stack ? 0 : 1);
    }
    if (!to.status) {
        return give_up<Sys>(made, to.status);
    }
    if (Sys::bind(made, &where, size) != 0) {
        return give_up<Sys>(made, status_of(Sys::last_error()));
    }
    return {handle, {}};
}

// ---- named pipes

/// A pipe's handle carries a mark and the port it is tied to, for life, as every handle is: so that
/// it is told from a socket, and a loop knows its own. The system's handles have 32 bits, of which
/// the lowest two are zero.
inline constexpr socket_handle pipe_mark = socket_handle{1} << 62;

constexpr bool is_pipe(socket_handle handle) noexcept {
    return handle >= 0 && (handle & pipe_mark) != 0;
}
inline socket_handle pipe_handle(windows::socket_type pipe, const void* port) noexcept {
    const auto tied = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(port));
    NETIO_ASSERT(pipe <= 0xFFFFFFFF && tied <= 0xFFFFFFFF && tied % 4 == 0);
    return pipe_mark | static_cast<socket_handle>(tied << 30) | static_cast<socket_handle>(pipe);
}
inline windows::socket_type socket_of(socket_handle handle) noexcept {
    return is_pipe(handle) ? static_cast<std::uint32_t>(handle)
                           : static_cast<windows::socket_type>(handle);
}

inline constexpr std::size_t pipe_path_max = 256;
inline constexpr std::size_t pipe_access_max = 1023;
inline constexpr unsigned long pipe_buffer_bytes = 64 * 1024;

/// A pipe's name, as the system wants it.
struct pipe_name {
    wchar_t text[pipe_path_max + 1];
};

template <class Sys>
os_status to_pipe_name(std::string_view path, pipe_name& to) noexcept {
    if (path.size() > pipe_path_max) {
        return {error::path_too_long, 0};
    }
    if (path.size() == pipe_prefix.size() || path.find('\0') != std::string_view::npos) {
        return {error::address_invalid, 0};
    }
    to = {};
    return Sys::widen(path.data(), static_cast<int>(path.size()), to.text, pipe_path_max)
               ? os_status{}
               : status_of(Sys::last_error());
}

/// The pipe's owner may do everything and nobody else anything: "D:P(A;;GA;;;OW)" as the bytes that
/// the system makes of it.
alignas(4) inline constexpr unsigned char owner_only[] = {
    1, 0, 4,  0x90, 0, 0, 0,  0, 0, 0, 0, 0,    0, 0, 0, 0, 20, 0, 0, 0,  // descriptor
    2, 0, 28, 0,    1, 0, 0,  0,                                          // list of one
    0, 0, 20, 0,    0, 0, 0,  0x10,                                       // grants everything
    1, 1, 0,  0,    0, 0, 0,  3, 4, 0, 0, 0};                             // to S-1-3-4

/// What a text says of who may open a pipe, in the system's form and in its memory, for as long as
/// this lives.
template <class Sys>
class pipe_descriptor {
public:
    explicit pipe_descriptor(std::string_view access) noexcept {
        if (access.empty()) {
            return;
        }
        char text[pipe_access_max + 1] = {};
        if (access.size() > pipe_access_max || access.find('\0') != std::string_view::npos) {
            status_ = {error::option_invalid, 0};
            return;
        }
        std::memcpy(text, access.data(), access.size());
        if (const int code = Sys::make_descriptor(text, made_); code != 0) {
            // Whatever it is that the system can't read, it is the option.
            status_ = {error::option_invalid, code};
        }
    }
    pipe_descriptor(const pipe_descriptor&) = delete;
    pipe_descriptor& operator=(const pipe_descriptor&) = delete;
    ~pipe_descriptor() {
        if (made_ != nullptr) {
            Sys::drop_descriptor(made_);
        }
    }
    const os_status& status() const noexcept { return status_; }
    const void* get() const noexcept { return made_ != nullptr ? made_ : owner_only; }

private:
    void* made_ = nullptr;
    os_status status_{};
};

/// A first instance holds the name and who may open it, and takes no client: it is disconnected.
/// Else one that came before anybody accepts would have a handle that belongs to no loop. 0, or the
/// reason why it can't be.
template <class Sys>
int keep_clients_off(windows::socket_type first, const pipe_name& name) noexcept {
    if (Sys::disconnect_pipe(first) == 0) {
        return 0;
    }
    // Some systems disconnect only what is connected: by us, or whoever was faster.
    const windows::socket_type own = Sys::open_pipe(name.text);
    const int code = Sys::disconnect_pipe(first);
    if (own != windows::no_socket) {
        Sys::close_pipe(own);
    }
    return code;
}

/// Nothing of a socket that a pipe hasn't is passed over in silence.
inline bool pipe_lacks(const listen_options& options) noexcept {
    return options.socket.dscp != 0 || !options.socket.bind_device.empty() ||
           !options.socket.raw.empty();
}

template <class Sys>
os_handle listen_pipe(std::string_view path, const listen_options& options) noexcept {
    if (pipe_lacks(options)) {
        return {no_handle, {error::not_supported, 0}};
    }
    pipe_name name;
    if (const os_status named = to_pipe_name<Sys>(path, name); !named) {
        return {no_handle, named};
    }
    const pipe_descriptor<Sys> access(options.pipe_access);
    if (!access.status()) {
        return {no_handle, access.status()};
    }
    const auto bytes_or = [](std::uint32_t wanted) -> unsigned long {
        return wanted != 0 ? wanted : pipe_buffer_bytes;
    };
    const windows::socket_type made =
        Sys::make_pipe(name.text, true, bytes_or(options.socket.send_bytes),
                       bytes_or(options.socket.receive_bytes), access.get());
    if (made == windows::no_socket) {
        const int code = Sys::last_error();
        // That is what a first instance of a name in use is told.
        return {no_handle, code == windows::access_denied
                               ? os_status{error::address_in_use, code}
                               : status_of(code)};
    }
    if (const int code = keep_clients_off<Sys>(made, name); code != 0) {
        Sys::close_pipe(made);
        return {no_handle, status_of(code)};
    }
    return {pipe_handle(made, nullptr), {}};
}

/// Orderly, what was written can still be read at the other end; else it is thrown away.
template <class Sys>
void close_one_pipe(windows::socket_type pipe, bool abort) noexcept {
    if (abort) {
        Sys::disconnect_pipe(pipe);
    }
    Sys::close_pipe(pipe);
}

/// A bound, listening, non-blocking stream socket that no child inherits.
template <class Sys>
os_handle listen_stream(const stream_address& address, const listen_options& options) noexcept {
    if (is_pipe_path(address.unix_path)) {
        return listen_pipe<Sys>(address.unix_path, options);
    }
    if (!options.pipe_access.empty()) {
        return {no_handle, {error::not_supported, 0}};
    }
    socket_address where;
    int size = 0;
    if (const error why = to_stream_address(address, where, size); why != error::none) {
        return {no_handle, {why, 0}};
    }
    winsock_hold<Sys> winsock;
    if (winsock.code() != 0) {
        return {no_handle, status_of(winsock.code())};
    }
    const int family = where.family;
    const bool tcp = family != windows::family_unix;
    os_handle made = make_socket<Sys>(family, windows::type_stream);
    if (!made) {
        return made;
    }
    option_setter<Sys> to(static_cast<windows::socket_type>(made.handle));
    if (tcp) {
        // An address in TIME_WAIT can be bound anyway, so reuse_address asks for nothing here.
        to.refuse_unless_zero(options.reuse_port);
        to.refuse_unless_zero(options.defer_accept_s);
        to.set_unless_zero(windows::level_tcp, windows::option_fast_open, options.fast_open != 0);
    }
    set_socket_options(to, tcp, options.socket);
    made = bind_alone(made.handle, where, size, family, options.dual_stack, to);
    if (!made) {
        return made;
    }
    const auto socket = static_cast<windows::socket_type>(made.handle);
    const int backlog = options.backlog == 0 || options.backlog > INT_MAX
                            ? windows::backlog_max
                            : static_cast<int>(options.backlog);
    if (Sys::listen(socket, backlog) != 0) {
        return give_up<Sys>(socket, status_of(Sys::last_error()));
    }
    winsock.keep();
    return made;
}

/// A bound UDP socket, non-blocking, that no child inherits.
template <class Sys>
os_handle open_bound_datagram(const endpoint& address, const datagram_options& options) noexcept {
    socket_address where;
    const int size = to_socket_address(address, where);
    if (size == 0) {
        return {no_handle, {error::address_invalid, 0}};
    }
    winsock_hold<Sys> winsock;
    if (winsock.code() != 0) {
        return {no_handle, status_of(winsock.code())};
    }
    const int family = where.family;
    os_handle made = make_socket<Sys>(family, windows::type_datagram);
    if (!made) {
        return made;
    }
    option_setter<Sys> to(static_cast<windows::socket_type>(made.handle));
    to.refuse_unless_zero(options.reuse_port);
    set_socket_options(to, false, options.socket);
    made = bind_alone(made.handle, where, size, family, options.dual_stack, to);
    if (made) {
        winsock.keep();
    }
    return made;
}

template <class Sys>
result<endpoint> local_endpoint(socket_handle handle) noexcept {
    if (is_pipe(handle)) {
        endpoint out;
        out.family = address_family::unix_path;
        return out;
    }
    socket_address where{};
    int size = sizeof(where);
    if (Sys::getsockname(static_cast<windows::socket_type>(handle), &where, &size) != 0) {
        return error_of(Sys::last_error());
    }
    return to_endpoint(where, size);
}

template <class Sys>
void close_one_socket(windows::socket_type socket, bool abort) noexcept {
    if (abort) {
        // Without a shutdown before, so the reset leaves no TIME_WAIT on this side.
        const windows::linger_time at_once{1, 0};
        Sys::setsockopt(socket, windows::level_socket, windows::option_linger, &at_once,
                        sizeof(at_once));
    }
    Sys::close_socket(socket);
}

/// Was this handle made by `listen` or `open_datagram`? Those hold a start of Winsock.
template <class Sys>
bool holds_winsock(windows::socket_type socket) noexcept {
    std::uint32_t value = 0;
    int size = sizeof(value);
    if (Sys::getsockopt(socket, windows::level_socket, windows::option_listens, &value, &size) ==
            0 &&
        (value & 0xFF) != 0) {
        return true;
    }
    value = 0;
    size = sizeof(value);
    return Sys::getsockopt(socket, windows::level_socket, windows::option_type, &value, &size) ==
               0 &&
           value == windows::type_datagram;
}

}  // namespace detail

NETIO_END

#endif

#endif
