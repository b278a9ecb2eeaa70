// The blocking backend as the suites run it: with a tick as long as their waits, and with accepts
// and datagram sockets out of the way after one look at them. So each wait for a lone receive takes
// the short cut, as it does in a worker that has stopped to accept.
#ifndef NETIO_TESTS_BLOCKING_SHORT_HPP
#define NETIO_TESTS_BLOCKING_SHORT_HPP

#include "netio.hpp"

#include <atomic>

#if NETIO_HAS_POLL

namespace netio_test {

struct blocking_short_sys : netio::blocking_sys {
    static constexpr std::uint32_t tick_ms = 1;
    static inline std::atomic<std::uint64_t> waited = 0;  // receives that waited
    static ssize_t receive_waiting(int from, void* into, std::size_t count) noexcept {
        ++waited;
        return netio::blocking_sys::receive_waiting(from, into, count);
    }
};

class blocking_short : public netio::basic_blocking<blocking_short_sys> {
    using base = netio::basic_blocking<blocking_short_sys>;

public:
    std::uint32_t wait(std::span<netio::event> out, std::uint64_t timeout_ns) noexcept {
        std::uint32_t shown = 0;
        for (std::uint32_t at = places_.connections; at < top_; ++at) {
            shown += polls_[at].fd >= 0 ? 1 : 0;
        }
        if (shown != 1) {
            return base::wait(out, timeout_ns);
        }
        const std::uint64_t tick_ns = timeout_ns < late_wake_ns ? timeout_ns : late_wake_ns;
        std::uint32_t count = without(places_.connections, places_.end, out, 0);
        if (count == 0) {
            count = without(1, places_.connections, out, tick_ns);
        }
        if (count == 0 && timeout_ns > tick_ns) {
            count = base::wait(out, timeout_ns == netio::forever_ns ? timeout_ns
                                                                    : timeout_ns - tick_ns);
        }
        return count;
    }

private:
    /// A wait in which the kernel is not asked about some entries.
    std::uint32_t without(std::uint32_t first, std::uint32_t last, std::span<netio::event> out,
                          std::uint64_t timeout_ns) noexcept {
        const auto each = [&](auto body) {
            for (std::uint32_t at = first; at < last && at < top_; ++at) {
                if (entries_[at].flags != 0) {
                    body(at);
                }
            }
        };
        each([this](std::uint32_t at) { show(at, ~descriptor_of(at)); });
        const std::uint32_t count = base::wait(out, timeout_ns);
        each([this](std::uint32_t at) { watch(at); });
        return count;
    }
};

}  // namespace netio_test

#endif

#endif
