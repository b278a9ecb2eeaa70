// doctest's main, for each test program and for the one unit all.cpp.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#if defined(__linux__) && defined(__has_feature)
#if __has_feature(thread_sanitizer)
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

// The thread sanitizer follows descriptors by their numbers and knows every call that makes one but
// this: a timer whose number another thread just closed looked like a race with that thread. Here
// the timer takes over the number of an eventfd, which the sanitizer saw being made.
extern "C" int timerfd_create(int clock, int flags) noexcept {
    const int known = ::eventfd(0, 0);
    const auto made = static_cast<int>(::syscall(SYS_timerfd_create, clock, flags));
    if (known < 0 || made < 0) {
        ::close(known);
        ::syscall(SYS_close, made);
        return -1;
    }
    ::syscall(SYS_dup3, made, known, O_CLOEXEC);
    ::syscall(SYS_close, made);
    return known;
}
#endif
#endif
