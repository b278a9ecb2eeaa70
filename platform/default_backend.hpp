// floor 7 · default_backend.hpp · which backend a server uses if it is not told
#ifndef NETIO_DEFAULT_BACKEND_HPP
#define NETIO_DEFAULT_BACKEND_HPP

#include "platform/contract.hpp"
#include "platform/epoll.hpp"
#include "platform/io_uring.hpp"
#include "platform/iocp.hpp"
#include "platform/kqueue.hpp"
#include "platform/poll.hpp"

#ifdef NETIO_BACKEND_HEADER
// The user's header defines `netio::user_backend`, which meets the contract.
#include NETIO_BACKEND_HEADER
#endif

NETIO_BEGIN

#if defined(NETIO_BACKEND_HEADER)
using default_backend = user_backend;
#elif NETIO_HAS_EPOLL
using default_backend = epoll;
#elif NETIO_HAS_KQUEUE
using default_backend = kqueue;
#elif NETIO_HAS_IOCP
using default_backend = iocp;
#elif NETIO_HAS_POLL
using default_backend = poll;
#elif NETIO_PLATFORM
#error "netio: no epoll, kqueue, poll or iocp here; set NETIO_PLATFORM 0 or NETIO_BACKEND_HEADER"
#else
struct no_backend;
using default_backend = no_backend;
#endif

/// Which of several backends a program runs on, chosen when it starts.
struct backend_choice {
    /// Its place in the list that was chosen from; none_index: none of them.
    std::uint32_t index = none_index;
    const char* name = "";
    /// The first that was passed over, or could not be had, and what this system does not offer it;
    /// both empty if there was none.
    const char* refused = "";
    const char* missing = "";

    constexpr explicit operator bool() const noexcept { return index != none_index; }
};

/// The first of `Backends` that this system offers where `wanted` is "auto", else the one of that
/// name. None if the system does not offer it (`missing` says what) or there is none of that name
/// (`missing` is empty). Asks the kernel, some microseconds each; any thread, any time.
template <class... Backends>
backend_choice choose_backend(std::string_view wanted) noexcept {
    backend_choice out;
    std::uint32_t index = 0;
    const auto look_at = [&](const char* name, availability (*ask)() noexcept) {
        if (!out && (wanted == "auto" || wanted == name)) {
            const availability found = ask();
            if (found.offered) {
                out.index = index;
                out.name = name;
            } else if (*out.refused == '\0') {
                out.refused = name;
                out.missing = found.missing;
            }
        }
        ++index;
    };
    (look_at(Backends::name, &Backends::available), ...);
    return out;
}

/// Calls `run`, which returns nothing, with a null pointer to the backend chosen from the same
/// list, for its type alone. A choice of none asserts: look at it first.
///
///     on_backend<io_uring, epoll>(choice, [&]<class B>(B*) { serve<B>(); });
template <class... Backends, class Run>
void on_backend(const backend_choice& chosen, Run&& run) {
    NETIO_ASSERT(chosen.index < sizeof...(Backends));
    std::uint32_t index = 0;
    ((index++ == chosen.index ? run(static_cast<Backends*>(nullptr)) : void()), ...);
}

NETIO_END

#endif
