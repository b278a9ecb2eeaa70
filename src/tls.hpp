// floor 6 · tls.hpp · the slot for TLS: what a library's wrapper must offer, or none
#ifndef NETIO_TLS_HPP
#define NETIO_TLS_HPP

#include "src/connection.hpp"

#include <concepts>
#include <type_traits>

NETIO_BEGIN

/// Where the session of a connection stands. Whatever ends it before its handshake was over, and be
/// it a close_notify, is a failure: of one that is open, ended or closed the handler is told.
enum class tls_status : std::uint8_t {
    handshake,  ///< nothing of the application's may pass yet
    open,       ///< both ways
    ended,      ///< the peer ended its way in order (close_notify); ours is still open
    closed,     ///< ended, and nothing that is not in `to_send` already will go out
    failed      ///< a bad record, a failed handshake, a truncated stream; see `code`
};

/// The server that speaks no TLS: no code is built for it, and its listeners can't ask for it.
///
/// A TLS policy is a class that turns bytes into bytes with the library of its choice; netio has
/// none. It never sees a socket. Its sessions lie in memory of its own and are named by numbers of
/// its own choice, from 1 to 2^32-1, each with one connection. All members are `noexcept`, must be
/// there, and are called on the connection's worker: with several workers those of different
/// sessions run concurrently. None may call the server.
///
/// * `std::uint32_t open_session(const connection&)`: a session at its begin for a new connection,
///   after PROXY has named the client; 0: none is free, and the client is refused (`busy`).
/// * `void close_session(std::uint32_t)`: once for each that was opened, after the kernel's last
///   word on its memory. Whatever it held has to be wiped.
/// * `mutable_bytes receive_space(std::uint32_t)`: where ciphertext goes next. It stays where it
///   is, whatever else is called, until bytes were told by `received` or the session is closed:
///   the kernel may be writing there. Empty: it takes none before output has gone out or plaintext
///   was consumed, and after `end_of_input`.
/// * `void received(std::uint32_t, std::size_t)`: so many bytes are there, at least 1. At most one
///   space's worth of records, or one step of the handshake, is worked off by each call.
/// * `void end_of_input(std::uint32_t)`: no more will come. A stream that was not ended in order is
///   then `failed`, unless the protocol above says where it ends: then it may be `ended`.
/// * `bytes plaintext(std::uint32_t)`: decrypted bytes, the same until some are consumed.
/// * `void consumed(std::uint32_t, std::size_t)`: so many bytes of it were copied out.
/// * `std::size_t write(std::uint32_t, bytes)`: takes as much plaintext as there is room for: of an
///   `open` or `ended` session without ciphertext in `to_send`, at least a byte.
/// * `bytes to_send(std::uint32_t)`: ciphertext for the peer: what was written, and alerts; the
///   first part of it where it lies in several. It stays where it is and as it is until `sent`,
///   whatever else is called. Empty: there is none.
/// * `void sent(std::uint32_t, std::size_t)`: so many of those bytes are with the kernel; behind
///   close_notify and FIN, or where a send failed, they were dropped.
/// * `void end(std::uint32_t)`: nothing more will be written: close_notify. Called again, and on a
///   session that failed or is closed: nothing happens.
/// * `tls_status status(std::uint32_t)`: see there. One that ended or failed still has the
///   plaintext that came before.
/// * `std::uint16_t code(std::uint32_t)`: the library's number of a failure, for `close_reason`.
struct no_tls {};

namespace detail {

template <class T>
concept tls_opens = requires(T& t, const connection& c) {
    { t.open_session(c) } noexcept -> std::same_as<std::uint32_t>;
};
template <class T>
concept tls_closes = requires(T& t, std::uint32_t session) {
    { t.close_session(session) } noexcept -> std::same_as<void>;
};
template <class T>
concept tls_gives_space = requires(T& t, std::uint32_t session) {
    { t.receive_space(session) } noexcept -> std::same_as<mutable_bytes>;
};
template <class T>
concept tls_receives = requires(T& t, std::uint32_t session, std::size_t count) {
    { t.received(session, count) } noexcept -> std::same_as<void>;
};
template <class T>
concept tls_hears_of_the_end = requires(T& t, std::uint32_t session) {
    { t.end_of_input(session) } noexcept -> std::same_as<void>;
};
template <class T>
concept tls_gives_plaintext = requires(T& t, std::uint32_t session) {
    { t.plaintext(session) } noexcept -> std::same_as<bytes>;
};
template <class T>
concept tls_consumes = requires(T& t, std::uint32_t session, std::size_t count) {
    { t.consumed(session, count) } noexcept -> std::same_as<void>;
};
template <class T>
concept tls_writes = requires(T& t, std::uint32_t session, bytes out) {
    { t.write(session, out) } noexcept -> std::same_as<std::size_t>;
};
template <class T>
concept tls_gives_ciphertext = requires(T& t, std::uint32_t session) {
    { t.to_send(session) } noexcept -> std::same_as<bytes>;
};
template <class T>
concept tls_sends = requires(T& t, std::uint32_t session, std::size_t count) {
    { t.sent(session, count) } noexcept -> std::same_as<void>;
};
template <class T>
concept tls_ends = requires(T& t, std::uint32_t session) {
    { t.end(session) } noexcept -> std::same_as<void>;
};
template <class T>
concept tls_has_status = requires(T& t, std::uint32_t session) {
    { t.status(session) } noexcept -> std::same_as<tls_status>;
};
template <class T>
concept tls_has_code = requires(T& t, std::uint32_t session) {
    { t.code(session) } noexcept -> std::same_as<std::uint16_t>;
};

#define NETIO_CHECK_TLS(holds, signature)                                                          \
    static_assert(holds<T>, "netio: a TLS policy needs " signature " noexcept")

/// Instantiated once for each policy: its errors are the sentences above.
template <class T>
constexpr bool check_tls() noexcept {
    if constexpr (!std::is_same_v<T, no_tls>) {
        NETIO_CHECK_TLS(tls_opens, "std::uint32_t open_session(const netio::connection&)");
        NETIO_CHECK_TLS(tls_closes, "void close_session(std::uint32_t)");
        NETIO_CHECK_TLS(tls_gives_space, "netio::mutable_bytes receive_space(std::uint32_t)");
        NETIO_CHECK_TLS(tls_receives, "void received(std::uint32_t, std::size_t)");
        NETIO_CHECK_TLS(tls_hears_of_the_end, "void end_of_input(std::uint32_t)");
        NETIO_CHECK_TLS(tls_gives_plaintext, "netio::bytes plaintext(std::uint32_t)");
        NETIO_CHECK_TLS(tls_consumes, "void consumed(std::uint32_t, std::size_t)");
        NETIO_CHECK_TLS(tls_writes, "std::size_t write(std::uint32_t, netio::bytes)");
        NETIO_CHECK_TLS(tls_gives_ciphertext, "netio::bytes to_send(std::uint32_t)");
        NETIO_CHECK_TLS(tls_sends, "void sent(std::uint32_t, std::size_t)");
        NETIO_CHECK_TLS(tls_ends, "void end(std::uint32_t)");
        NETIO_CHECK_TLS(tls_has_status, "netio::tls_status status(std::uint32_t)");
        NETIO_CHECK_TLS(tls_has_code, "std::uint16_t code(std::uint32_t)");
    }
    return true;
}
#undef NETIO_CHECK_TLS

/// A loop's way to its policy; where that is none, nothing at all: loops are made anew each turn
/// where a program brings its own.
template <class T>
class tls_pointer {
public:
    explicit tls_pointer(T* at) noexcept : at_(at) {}
    T* operator->() const noexcept { return at_; }
    T& operator*() const noexcept { return *at_; }

private:
    T* at_;
};
template <>
class tls_pointer<no_tls> {
public:
    explicit tls_pointer(no_tls*) noexcept {}
};

/// Enough of a policy to know one by, so that a wrong one gets its sentence.
template <class T>
concept looks_like_tls = tls_opens<T> || tls_gives_space<T> || tls_gives_plaintext<T>;

}  // namespace detail

NETIO_END

#endif
