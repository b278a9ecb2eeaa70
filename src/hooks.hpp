// floor 6 · hooks.hpp · which hooks a handler has; a wrong one is one readable compile error
#ifndef NETIO_HOOKS_HPP
#define NETIO_HOOKS_HPP

#include "src/connection.hpp"
#include "src/datagram.hpp"

NETIO_BEGIN

namespace detail {

// Does a class have a member of this name, whatever it is? A class that inherits from it and from
// one
// that has the name for certain finds it ambiguous if so. (A final class can't be asked this way:
// its hooks are only found by calling them.)
// clang-format off
#define NETIO_NAME_PROBE(hook)                                                                     \
    struct has_##hook { int hook; };                                                               \
    template <class H> struct both_##hook : H, has_##hook {};                                      \
    template <class H, bool Final = __is_final(H)> constexpr bool names_##hook =                   \
        !requires { &both_##hook<H>::hook; };                                                      \
    template <class H> constexpr bool names_##hook<H, true> = requires { &H::hook; };
// clang-format on
NETIO_NAME_PROBE(on_data)
NETIO_NAME_PROBE(on_open)
NETIO_NAME_PROBE(on_end)
NETIO_NAME_PROBE(on_writable)
NETIO_NAME_PROBE(on_post)
NETIO_NAME_PROBE(on_timer)
NETIO_NAME_PROBE(on_deadline)
NETIO_NAME_PROBE(on_connect_failed)
NETIO_NAME_PROBE(on_drain)
NETIO_NAME_PROBE(on_denied)
NETIO_NAME_PROBE(on_datagram)
NETIO_NAME_PROBE(on_close)
NETIO_NAME_PROBE(on_connection)  // of `blocking_pool`
// Names other libraries use, or fingers slip into.
NETIO_NAME_PROBE(on_connect)
NETIO_NAME_PROBE(on_connected)
NETIO_NAME_PROBE(on_accept)
NETIO_NAME_PROBE(on_opened)
NETIO_NAME_PROBE(on_read)
NETIO_NAME_PROBE(on_receive)
NETIO_NAME_PROBE(on_message)
NETIO_NAME_PROBE(on_write)
NETIO_NAME_PROBE(on_writeable)
NETIO_NAME_PROBE(on_drained)
NETIO_NAME_PROBE(on_eof)
NETIO_NAME_PROBE(on_closed)
NETIO_NAME_PROBE(on_disconnect)
NETIO_NAME_PROBE(on_error)
NETIO_NAME_PROBE(on_timeout)
NETIO_NAME_PROBE(on_packet)
#undef NETIO_NAME_PROBE

// callable: with its arguments and its result; quiet: and noexcept.
template <class From, class To>
concept gives = std::is_void_v<To> || std::convertible_to<From, To>;
#define NETIO_HOOK_PROBE(hook, result_type, ...)                                                   \
    template <class H>                                                                             \
    concept calls_##hook = requires(H& h, connection& c, bytes in, std::uint64_t word,             \
                                    datagram_socket& socket, const datagram& packet) {             \
        { h.hook(__VA_ARGS__) } -> gives<result_type>;                                             \
    };                                                                                             \
    template <class H>                                                                             \
    concept quiet_##hook = requires(H& h, connection& c, bytes in, std::uint64_t word,             \
                                    datagram_socket& socket, const datagram& packet) {             \
        { h.hook(__VA_ARGS__) } noexcept;                                                          \
    };
NETIO_HOOK_PROBE(on_data, std::size_t, c, in)
NETIO_HOOK_PROBE(on_open, void, c)
NETIO_HOOK_PROBE(on_end, void, c)
NETIO_HOOK_PROBE(on_writable, void, c)
NETIO_HOOK_PROBE(on_post, void, c, word)
NETIO_HOOK_PROBE(on_timer, void, word)
NETIO_HOOK_PROBE(on_deadline, void, c, deadline_kind{})
NETIO_HOOK_PROBE(on_connect_failed, void, word, error{})
NETIO_HOOK_PROBE(on_drain, void, c)
NETIO_HOOK_PROBE(on_denied, void, c, std::uint16_t{})
NETIO_HOOK_PROBE(on_datagram, void, socket, packet)
NETIO_HOOK_PROBE(on_close, void, c, close_reason{})
#undef NETIO_HOOK_PROBE

#define NETIO_CHECK_HOOK(hook, signature)                                                          \
    static_assert(!names_##hook<H> || calls_##hook<H>,                                             \
                  "netio: " #hook " must be " signature);                                          \
    static_assert(!calls_##hook<H> || quiet_##hook<H>, "netio: " #hook " must be noexcept")
#define NETIO_CHECK_SLIP(slip, hook)                                                               \
    static_assert(!names_##slip<H>, "netio: " #slip " is not a hook; did you mean " #hook "?")

/// Instantiated once for each handler: its errors are the sentences above.
template <class H>
constexpr bool check_handler() noexcept {
    static_assert(names_on_data<H>,
                  "netio: a handler needs std::size_t on_data(netio::connection&, netio::bytes)");
    NETIO_CHECK_HOOK(on_data, "std::size_t on_data(netio::connection&, netio::bytes) noexcept");
    NETIO_CHECK_HOOK(on_open, "void on_open(netio::connection&) noexcept");
    NETIO_CHECK_HOOK(on_end, "void on_end(netio::connection&) noexcept");
    NETIO_CHECK_HOOK(on_writable, "void on_writable(netio::connection&) noexcept");
    NETIO_CHECK_HOOK(on_post, "void on_post(netio::connection&, std::uint64_t) noexcept");
    NETIO_CHECK_HOOK(on_timer, "void on_timer(std::uint64_t) noexcept");
    NETIO_CHECK_HOOK(on_deadline,
                     "void on_deadline(netio::connection&, netio::deadline_kind) noexcept");
    NETIO_CHECK_HOOK(on_connect_failed,
                     "void on_connect_failed(std::uint64_t, netio::error) noexcept");
    NETIO_CHECK_HOOK(on_denied, "void on_denied(netio::connection&, std::uint16_t) noexcept");
    NETIO_CHECK_HOOK(on_drain, "void on_drain(netio::connection&) noexcept");
    NETIO_CHECK_HOOK(on_datagram,
                     "void on_datagram(netio::datagram_socket&, const netio::datagram&) noexcept");
    NETIO_CHECK_HOOK(on_close, "void on_close(netio::connection&, netio::close_reason) noexcept");
    NETIO_CHECK_SLIP(on_connect, on_open);
    NETIO_CHECK_SLIP(on_connected, on_open);
    NETIO_CHECK_SLIP(on_accept, on_open);
    NETIO_CHECK_SLIP(on_opened, on_open);
    NETIO_CHECK_SLIP(on_read, on_data);
    NETIO_CHECK_SLIP(on_receive, on_data);
    NETIO_CHECK_SLIP(on_message, on_data);
    NETIO_CHECK_SLIP(on_write, on_writable);
    NETIO_CHECK_SLIP(on_writeable, on_writable);
    NETIO_CHECK_SLIP(on_drained, on_drain);
    NETIO_CHECK_SLIP(on_eof, on_end);
    NETIO_CHECK_SLIP(on_closed, on_close);
    NETIO_CHECK_SLIP(on_disconnect, on_close);
    NETIO_CHECK_SLIP(on_error, on_close);
    NETIO_CHECK_SLIP(on_timeout, on_deadline);
    NETIO_CHECK_SLIP(on_packet, on_datagram);
    return true;
}
#undef NETIO_CHECK_HOOK
#undef NETIO_CHECK_SLIP

}  // namespace detail

NETIO_END

#endif
