// floor 5 · datagram.hpp · UDP sockets as a handler sees them
#ifndef NETIO_DATAGRAM_HPP
#define NETIO_DATAGRAM_HPP

#include "platform/contract.hpp"
#include "src/datagram_budget.hpp"
#include "src/proxy.hpp"
#include "src/slab.hpp"

NETIO_BEGIN

/// Names a UDP socket of a server. All-zero names the first.
struct datagram_id {
    std::uint32_t index = 0;
    constexpr bool operator==(const datagram_id&) const noexcept = default;
};

/// One datagram, as `on_datagram` gets it. Views are valid in the callback only.
struct datagram {
    endpoint source;             // the client: PROXY's source where a header is required
    endpoint peer;               // who sent it to us; answers go there
    bytes payload;               // without the PROXY header; may be empty
    bool truncated = false;      // it was longer than a pool buffer
    bool proxied = false;
    proxy::tlv_list tlvs{};
};

namespace detail {

/// One UDP socket: written before its worker opens, then that worker's.
struct datagram_entry {
    socket_handle handle;
    std::uint32_t trusted_first;
    std::uint32_t trusted_count;
    datagram_guard guard;
    proxy_mode proxy_required;
    bool in_use;
    bool receiving;
};

/// A datagram on its way out.
struct datagram_send {
    slot_header header;
    std::uint32_t buffer;  // index + 1
    std::uint32_t byte_count;
};

struct datagram_calls {
    bool (*send_to)(void* worker, std::uint32_t socket, const endpoint& to, bytes payload) noexcept;
    bool (*prove)(void* worker, std::uint32_t socket, const endpoint& who) noexcept;
    result<endpoint> (*local_of)(socket_handle) noexcept;
};

}  // namespace detail

/// A UDP socket, in a handler's hands: valid inside `on_datagram`, on its worker's thread.
class datagram_socket {
public:
    datagram_socket(const datagram_socket&) = delete;
    datagram_socket& operator=(const datagram_socket&) = delete;

    /// Copies and sends one datagram. False: too long for a buffer, no buffer or send slot free, or
    /// more than `to` may get before it is proven (`datagram_options::amplification`, counted as
    /// `datagram_sends_denied`); it is dropped then, as UDP would.
    bool send_to(const endpoint& to, bytes payload) noexcept {
        return calls_.send_to(worker_, id_.index, to, payload);
    }
    /// `who` showed that it gets what is sent to it, by sending back what no other could know, or
    /// the program knows it: for `datagram_options::proven_ms` from now on it gets as much as is
    /// sent. Again: from then on. False: there is no place for it (limits::datagram_sources_max),
    /// and it stays what it was.
    bool prove(const endpoint& who) noexcept { return calls_.prove(worker_, id_.index, who); }
    datagram_id id() const noexcept { return id_; }
    /// This socket's own address; a system call each time.
    endpoint local() const noexcept { return calls_.local_of(handle_).value; }
    socket_handle native_handle() const noexcept { return handle_; }

private:
    template <class Handler, class Backend, class Gate, class Events, class Tls>
    friend class reactor;

    datagram_socket(void* worker, const detail::datagram_calls& calls, datagram_id id,
                    socket_handle handle) noexcept
        : worker_(worker), calls_(calls), id_(id), handle_(handle) {}

    void* worker_;
    const detail::datagram_calls& calls_;
    datagram_id id_;
    socket_handle handle_;
};

NETIO_END

#endif
