// Whether this kernel offers io_uring, asked once for all tests.
#ifndef NETIO_TESTS_IO_URING_OFFERED_HPP
#define NETIO_TESTS_IO_URING_OFFERED_HPP

#include "netio.hpp"
#include "tests/emulated.hpp"

#if NETIO_HAS_IO_URING

#include <thread>

namespace netio_test {

/// Asked on a thread of its own: the kernel takes a ring down some milliseconds after its close and
/// interrupts the waits of the thread that had made it (EINTR). A wait may return early, but tests
/// that count waits would see it.
inline netio::availability io_uring_offered() {
    static const netio::availability found = [] {
        netio::availability told{false, "under qemu-user"};
        if (emulated()) {
            return told;
        }
        std::thread([&told] { told = netio::io_uring::available(); }).join();
        return told;
    }();
    return found;
}

}  // namespace netio_test

#endif

#endif
