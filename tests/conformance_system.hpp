// What tests/conformance.hpp asks of the system it runs on: signals, streams, the heap.
#ifndef NETIO_TESTS_CONFORMANCE_SYSTEM_HPP
#define NETIO_TESTS_CONFORMANCE_SYSTEM_HPP

#include "netio.hpp"

#include <cstdio>

#if NETIO_HAS_IOCP
#include <io.h>
#include <malloc.h>
#include <process.h>
#else
#include <csignal>

#include <poll.h>
#include <sys/time.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#endif

namespace netio_test {

#if NETIO_HAS_IOCP

inline int conformance_dup(int of) noexcept { return ::_dup(of); }
inline void conformance_dup_to(int from, int to) noexcept { ::_dup2(from, to); }
inline void conformance_close(int what) noexcept { ::_close(what); }
inline int conformance_number(std::FILE* of) noexcept { return ::_fileno(of); }
inline int conformance_process() noexcept { return ::_getpid(); }

/// No such signals here.
class conformance_sigpipe {
public:
    conformance_sigpipe() noexcept {}
    static int seen() noexcept { return 0; }
};
class conformance_interrupts {
public:
    conformance_interrupts() noexcept {}
    ~conformance_interrupts() {}
};

/// Bytes in use of the heap that malloc and new take from.
inline std::size_t conformance_heap_used() noexcept {
    _HEAPINFO entry{};
    std::size_t used = 0;
    while (::_heapwalk(&entry) == _HEAPOK) {
        used += entry._useflag == _USEDENTRY ? entry._size : 0;
    }
    return used;
}

/// There is no handle to poll.
inline bool conformance_readable(netio::socket_handle, int) noexcept { return false; }

#else

inline int conformance_dup(int of) noexcept { return ::dup(of); }
inline void conformance_dup_to(int from, int to) noexcept { ::dup2(from, to); }
inline void conformance_close(int what) noexcept { ::close(what); }
inline int conformance_number(std::FILE* of) noexcept { return ::fileno(of); }
inline int conformance_process() noexcept { return ::getpid(); }

/// Counts SIGPIPE while it lives instead of dying of it.
class conformance_sigpipe {
public:
    conformance_sigpipe() noexcept {
        seen() = 0;
        struct sigaction mine {};
        mine.sa_handler = [](int) { seen() = seen() + 1; };
        ::sigaction(SIGPIPE, &mine, &before_);
    }
    ~conformance_sigpipe() { ::sigaction(SIGPIPE, &before_, nullptr); }
    static volatile std::sig_atomic_t& seen() noexcept {
        static volatile std::sig_atomic_t count;
        return count;
    }

private:
    struct sigaction before_ {};
};

/// Interrupts system calls a thousand times a second while it lives.
class conformance_interrupts {
public:
    conformance_interrupts() noexcept {
        struct sigaction mine {};
        mine.sa_handler = [](int) {};
        ::sigaction(SIGALRM, &mine, &before_);
        const itimerval often{{0, 1000}, {0, 1000}};
        ::setitimer(ITIMER_REAL, &often, nullptr);
    }
    ~conformance_interrupts() {
        const itimerval never{};
        ::setitimer(ITIMER_REAL, &never, nullptr);
        ::sigaction(SIGALRM, &before_, nullptr);
    }

private:
    struct sigaction before_ {};
};

/// Bytes of the heap in use, or 0 where nobody can say.
inline std::size_t conformance_heap_used() noexcept {
#if defined(__GLIBC__)
    const struct mallinfo2 all = ::mallinfo2();
    return all.uordblks + all.hblkhd;
#else
    return 0;
#endif
}

inline bool conformance_readable(netio::socket_handle handle, int timeout_ms) noexcept {
    pollfd one{static_cast<int>(handle), POLLIN, 0};
    return ::poll(&one, 1, timeout_ms) == 1;
}

#endif

/// Catches what is written to the standard streams while it lives.
class conformance_silence {
public:
    conformance_silence() noexcept {
        std::fflush(nullptr);
        file_ = std::tmpfile();
        for (int stream = 1; stream <= 2; ++stream) {
            kept_[stream - 1] = conformance_dup(stream);
            conformance_dup_to(conformance_number(file_), stream);
        }
    }
    ~conformance_silence() { restore(); }
    /// Bytes written so far; ends the catching.
    long restore() noexcept {
        if (file_ == nullptr) {
            return written_;
        }
        std::fflush(nullptr);
        std::fseek(file_, 0, SEEK_END);
        written_ = std::ftell(file_);
        for (int stream = 1; stream <= 2; ++stream) {
            conformance_dup_to(kept_[stream - 1], stream);
            conformance_close(kept_[stream - 1]);
        }
        std::fclose(file_);
        file_ = nullptr;
        return written_;
    }

private:
    std::FILE* file_ = nullptr;
    int kept_[2] = {-1, -1};
    long written_ = 0;
};

}  // namespace netio_test

#endif
