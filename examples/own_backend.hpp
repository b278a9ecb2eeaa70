// A backend of the user's own: the one over poll that comes with netio, and a record of what it
// did. A port to another system looks the same from outside: platform/poll.hpp is the one to start
// from, docs/contract.md says what each function promises, tests/conformance.hpp checks it.
#ifndef NETIO_EXAMPLES_OWN_BACKEND_HPP
#define NETIO_EXAMPLES_OWN_BACKEND_HPP

#include "netio.hpp"

#include <cstdint>
#include <span>

namespace netio {

/// What one loop did. Its thread alone writes here, and may read.
struct own_record {
    std::uint64_t waits = 0;
    std::uint64_t events = 0;
    std::uint64_t polls = 0;
    std::uint64_t accepts = 0;
    std::uint64_t receives = 0;
    std::uint64_t sends = 0;
};

/// The system calls underneath: those of poll, counted.
struct own_sys : poll_sys {
    inline static own_record record{};

    static int poll(pollfd* all, std::uint32_t count, int timeout_ms) noexcept {
        ++record.polls;
        return poll_sys::poll(all, count, timeout_ms);
    }
    static int accept(int from, sockaddr* peer, socklen_t* size) noexcept {
        ++record.accepts;
        return poll_sys::accept(from, peer, size);
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        ++record.receives;
        return poll_sys::receive(from, into, count);
    }
    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        ++record.sends;
        return poll_sys::send(to, from, count);
    }
    static ssize_t send_message(int to, const msghdr* what) noexcept {
        ++record.sends;
        return poll_sys::send_message(to, what);
    }
};

/// What NETIO_BACKEND_HEADER has to define. Inherits all of the contract; what it does otherwise it
/// declares again.
class user_backend : public basic_poll<own_sys> {
public:
    static constexpr const char* name = "own";

    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
        const std::uint32_t count = basic_poll<own_sys>::wait(out, timeout_ns);
        ++own_sys::record.waits;
        own_sys::record.events += count;
        return count;
    }
};
static_assert(backend<user_backend>);

}  // namespace netio

#endif
