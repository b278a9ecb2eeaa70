// floor 0 · base.hpp · version, inline namespace, assert levels and hook, feature macros
#ifndef NETIO_BASE_HPP
#define NETIO_BASE_HPP

#include <cstddef>
#include <cstdint>

// Versions follow semver. Compare with NETIO_VERSION >= NETIO_MAKE_VERSION(0, 2, 0).
#define NETIO_MAKE_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define NETIO_VERSION_MAJOR 0
#define NETIO_VERSION_MINOR 1
#define NETIO_VERSION_PATCH 0
#define NETIO_VERSION                                                                              \
    NETIO_MAKE_VERSION(NETIO_VERSION_MAJOR, NETIO_VERSION_MINOR, NETIO_VERSION_PATCH)

// What a user may set before the include:
//   NETIO_CHECKS          0 no asserts, 1 cheap ones (default, kept in release), 2 all of them
//   NETIO_PLATFORM        0 leaves out everything that needs an operating system
//   NETIO_BACKEND_HEADER  "mine.hpp": a backend of the user's own in place of the built-in ones
//   NETIO_ASSERT_HOOK     a function's name: void(const char* text, const char* file, int line)
//                         noexcept
#ifndef NETIO_CHECKS
#define NETIO_CHECKS 1
#endif
#ifndef NETIO_PLATFORM
#define NETIO_PLATFORM 1
#endif

// Always 0 or 1, so that a misspelt name is caught by -Wundef.
#if NETIO_PLATFORM && defined(__linux__)
#define NETIO_HAS_EPOLL 1
#else
#define NETIO_HAS_EPOLL 0
#endif
// Alpha, MIPS and Itanium have other numbers for the calls of io_uring. Whether the kernel that
// runs the program offers it is asked at run time (`io_uring::available`).
#if NETIO_PLATFORM && defined(__linux__) && !defined(__alpha__) && !defined(__mips__) && \
    !defined(__ia64__)
#define NETIO_HAS_IO_URING 1
#else
#define NETIO_HAS_IO_URING 0
#endif
#if NETIO_PLATFORM && defined(_WIN32)
#define NETIO_HAS_IOCP 1
#else
#define NETIO_HAS_IOCP 0
#endif
#if NETIO_PLATFORM && (defined(__unix__) || defined(__unix) || defined(__APPLE__))
#define NETIO_HAS_POSIX 1
#else
#define NETIO_HAS_POSIX 0
#endif
#define NETIO_HAS_POLL NETIO_HAS_POSIX
// NetBSD before 10 and OpenBSD before 7.8 have no EVFILT_USER, which wakes the loop; every OpenBSD
// has poll here, since nobody has tried the newer ones. Linux has no kqueue; an emulation on the
// include path is taken where it is asked for, as the tests do, and is never the default there.
#if defined(__NetBSD__)
#include <sys/param.h>
#endif
#if NETIO_HAS_POSIX && __has_include(<sys/event.h>) && !defined(__OpenBSD__) &&                   \
    (!defined(__NetBSD__) || __NetBSD_Version__ >= 1000000000) &&                                 \
    (!defined(__linux__) || (defined(NETIO_USE_KQUEUE) && NETIO_USE_KQUEUE))
#define NETIO_HAS_KQUEUE 1
#else
#define NETIO_HAS_KQUEUE 0
#endif
#if defined(__x86_64__) || defined(_M_X64)
#define NETIO_HAS_X86_64 1
#else
#define NETIO_HAS_X86_64 0
#endif
// The crc32 instructions: on x86 asked for at run time, on ARM where the compiler may assume them.
#if NETIO_HAS_X86_64 && (defined(__GNUC__) || defined(__clang__))
#define NETIO_HAS_X86_CRC32 1
#else
#define NETIO_HAS_X86_CRC32 0
#endif
#if defined(__aarch64__) && defined(__ARM_FEATURE_CRC32) && !defined(__ARM_BIG_ENDIAN)
#define NETIO_HAS_ARM_CRC32 1
#else
#define NETIO_HAS_ARM_CRC32 0
#endif

// Version and assert level are part of every symbol: two units that differ in either link cleanly
// and never share a half-checked object.
#if NETIO_CHECKS == 0
#define NETIO_ABI v0_1_checks0
#elif NETIO_CHECKS == 1
#define NETIO_ABI v0_1_checks1
#elif NETIO_CHECKS == 2
#define NETIO_ABI v0_1_checks2
#else
#error "NETIO_CHECKS must be 0, 1 or 2"
#endif
#define NETIO_BEGIN                                                                                \
    namespace netio {                                                                              \
    inline namespace NETIO_ABI {
#define NETIO_END                                                                                  \
    }                                                                                              \
    }

// Unsigned arithmetic in this function wraps on purpose: for clang's integer sanitizer, which takes
// that for a mistake (-fsanitize=integer; nothing the language leaves undefined).
#if defined(__clang__)
#define NETIO_WRAPS __attribute__((no_sanitize("unsigned-integer-overflow", "unsigned-shift-base")))
#else
#define NETIO_WRAPS
#endif

#if defined(__GNUC__) || defined(__clang__)
#define NETIO_LIKELY(condition) __builtin_expect(static_cast<bool>(condition), 1)
#define NETIO_UNLIKELY(condition) __builtin_expect(static_cast<bool>(condition), 0)
#define NETIO_COLD __attribute__((cold, noinline))
#define NETIO_INLINE inline __attribute__((always_inline))
#define NETIO_NOINLINE __attribute__((noinline))
#define NETIO_TRAP() __builtin_trap()
// The optimiser may not drop stores to `at` that come before this.
#define NETIO_KEEP_STORES(at) __asm__ __volatile__("" : : "r"(at) : "memory")
// Soon to be read and written.
#define NETIO_PREFETCH(at) __builtin_prefetch(at, 1)
#else
#define NETIO_LIKELY(condition) (static_cast<bool>(condition))
#define NETIO_UNLIKELY(condition) (static_cast<bool>(condition))
#define NETIO_COLD
#define NETIO_INLINE inline
#define NETIO_NOINLINE
#define NETIO_TRAP() (*static_cast<volatile int*>(nullptr) = 0)
#define NETIO_KEEP_STORES(at) static_cast<void>(*static_cast<volatile char*>(at))
#define NETIO_PREFETCH(at) static_cast<void>(at)
#endif

#if NETIO_PLATFORM
#include <cstdio>
#endif

#ifdef NETIO_ASSERT_HOOK
void NETIO_ASSERT_HOOK(const char* text, const char* file, int line) noexcept;
#endif

NETIO_BEGIN

/// A broken rule of the caller (never bad input): prints one line where there is a standard error,
/// calls NETIO_ASSERT_HOOK first if the user named one, and ends the program.
[[noreturn]] NETIO_COLD inline void assert_failed(const char* text, const char* file,
                                                  int line) noexcept {
#ifdef NETIO_ASSERT_HOOK
    NETIO_ASSERT_HOOK(text, file, line);
#elif NETIO_PLATFORM
    std::fprintf(stderr, "netio: assert failed: %s (%s:%d)\n", text, file, line);
#else
    (void)text;
    (void)file;
    (void)line;
#endif
    NETIO_TRAP();
#if !defined(__GNUC__) && !defined(__clang__)
    for (;;) {
    }
#endif
}

NETIO_END

// Never evaluated, but compiled: what only an assert names is not unused where it is left out.
#define NETIO_UNCHECKED(condition) static_cast<void>(false && (condition))
#if NETIO_CHECKS >= 1
#define NETIO_ASSERT(condition)                                                                    \
    (NETIO_LIKELY(condition) ? static_cast<void>(0)                                                \
                             : ::netio::assert_failed(#condition, __FILE__, __LINE__))
#else
#define NETIO_ASSERT(condition) NETIO_UNCHECKED(condition)
#endif
#if NETIO_CHECKS >= 2
#define NETIO_ASSERT_SLOW(condition) NETIO_ASSERT(condition)
#else
#define NETIO_ASSERT_SLOW(condition) NETIO_UNCHECKED(condition)
#endif

#endif
