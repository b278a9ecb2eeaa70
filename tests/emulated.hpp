// For the few checks that a processor's emulator (qemu-user) can't carry: is this program run by
// one? Whoever runs it so sets NETIO_EMULATED; each use says what the emulator does not do.
#ifndef NETIO_TESTS_EMULATED_HPP
#define NETIO_TESTS_EMULATED_HPP

#include <cstdlib>

inline bool emulated() {
    return std::getenv("NETIO_EMULATED") != nullptr;
}

#endif
