// The proof that netio never allocates: a program linked with trap.cpp has malloc, free, operator
// new and their families replaced. From before main() on, each call of one ends the program with
// exit code 99 and a line that names it.
#ifndef NO_HEAP_TRAP_HPP
#define NO_HEAP_TRAP_HPP

#include <cstddef>
#include <pthread.h>

/// The program's own part: runs armed, returns how many of its checks failed. Reports with `check`;
/// stdio's buffers are heap, so it must not print through them.
int scenario() noexcept;

namespace no_heap {

/// Writes `ok name` or `not ok name` to standard output and returns 0 or 1.
int check(const char* name, bool holds) noexcept;

/// Threads are the one thing exempt: creating one allocates its descriptor, and only the system
/// can say how. Both return pthread's error code.
int start_thread(pthread_t& thread, void* (*body)(void*), void* argument) noexcept;
int join_thread(pthread_t thread) noexcept;

/// Calls of the allocator that were let through: before arming, and for threads.
std::size_t exempt_count() noexcept;

}  // namespace no_heap

#endif
