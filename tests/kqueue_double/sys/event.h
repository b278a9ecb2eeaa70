// A test double of kqueue for Linux, over epoll and eventfd, written for this project: with this
// folder on the include path, platform/kqueue.hpp is built and run unmodified. It stands for what
// kqueue(2) of FreeBSD and of macOS say, above all where that differs from epoll:
//
//   * one knote for (ident, filter); EV_ADD of one that is there changes its udata and judges it
//     anew; adding enables it, unless EV_DISABLE says otherwise                      [both pages]
//   * the filter is judged when a knote is added or enabled and again when it is taken: what no
//     longer holds is not told; several reasons make one event                       [both pages]
//   * reading and writing are filters, and events, of their own                      [both pages]
//   * EVFILT_READ: data is the number of bytes to read, of a listener that of connections waiting;
//     EV_EOF when the peer has ended, though data may be there, with the socket's error in fflags
//   * EVFILT_WRITE: data is the room; EV_EOF when the reader is gone
//   * EVFILT_USER: set off by NOTE_TRIGGER, any number of times for one event        [both pages]
//   * EV_CLEAR: told once for each change; EV_ONESHOT: deleted when told; EV_DISPATCH: disabled
//     when told, until EV_ENABLE                                                     [both pages]
//   * all changes are made before events are taken                                   [both pages]
//   * a change that fails is told as an event with EV_ERROR and the errno in data, and then no
//     others are taken; with no room for it kevent fails and later changes are not made. EV_DELETE
//     and EV_ENABLE of a knote that is not there fail with ENOENT                    [both pages]
//   * EV_RECEIPT: a change that succeeds is answered for in the same way, with data 0 [both pages]
//   * the same array may take the events that holds the changes                      [macOS]
//   * an interrupted call fails with EINTR and has made its changes                  [FreeBSD]
//   * knotes go when their descriptor is closed, also where a duplicate lives on; a kqueue can be
//     polled itself, and a child does not inherit it                                 [both pages]
//
// Where it can't be as a BSD kernel, on purpose:
//   * fflags of a socket error is ECONNREFUSED for one that was connecting when added and
//     ECONNRESET for any other: reading the true one would take it away on Linux
//   * with urgent data, data is only known to be more than what can be read up to the mark
//   * data of a datagram socket is that of the first datagram; of a unix listener it is 1
//   * fewer edges for writing: Linux tells of room only after a lack of it, BSD each time
//   * only sockets, eventfds and pipes; no filters but these three; no NOTE_LOWAT
//
// A descriptor's end is seen by a `close` of this file's own in place of the C library's; dup2 over
// an open descriptor is not seen.
#ifndef NETIO_TESTS_KQUEUE_DOUBLE_EVENT_H
#define NETIO_TESTS_KQUEUE_DOUBLE_EVENT_H

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <mutex>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/sockios.h>

#define EVFILT_READ (-1)
#define EVFILT_WRITE (-2)
#define EVFILT_USER (-10)

#define EV_ADD 0x0001
#define EV_DELETE 0x0002
#define EV_ENABLE 0x0004
#define EV_DISABLE 0x0008
#define EV_ONESHOT 0x0010
#define EV_CLEAR 0x0020
#define EV_RECEIPT 0x0040
#define EV_DISPATCH 0x0080
#define EV_ERROR 0x4000
#define EV_EOF 0x8000

#define NOTE_TRIGGER 0x01000000

struct kevent {
    uintptr_t ident;
    int16_t filter;
    uint16_t flags;
    uint32_t fflags;
    intptr_t data;
    void* udata;
};

namespace kqueue_double {

struct knote {
    bool there;
    bool enabled;
    bool triggered;   // EVFILT_USER
    bool connecting;  // when it was added
    uint16_t flags;   // EV_CLEAR, EV_ONESHOT, EV_DISPATCH
    uint32_t ident;
    void* udata;
};

inline constexpr int descriptors_max = 32768;
inline constexpr int users_max = 8;
inline constexpr int queues_max = 64;

/// One kqueue. It lies in pages of its own: tests that watch the heap see nothing of it.
struct queue {
    int descriptor;  // what the caller has: an epoll that holds the three below
    int readers;     // an epoll of the knotes that read
    int writers;
    int kick;  // an eventfd, readable while a knote of EVFILT_USER is set off
    pid_t owner;
    bool writers_first;
    epoll_event found[512];
    knote users[users_max];
    knote reading[descriptors_max];
    knote writing[descriptors_max];
};

struct world {
    std::mutex mutex;
    queue* queues[queues_max] = {};

    queue* find(int descriptor) {
        for (queue* each : queues) {
            if (each != nullptr && each->descriptor == descriptor && each->owner == ::getpid()) {
                return each;
            }
        }
        return nullptr;
    }
};
inline constinit world shared{};

inline void close_really(int descriptor) { ::syscall(SYS_close, descriptor); }

inline int watch(int in, int what, int descriptor, uint32_t events) {
    epoll_event wanted{};
    wanted.events = events;
    wanted.data.fd = descriptor;
    return ::epoll_ctl(in, what, descriptor, &wanted) == 0 ? 0 : errno;
}

inline short polled(int descriptor, int events) {
    pollfd one{descriptor, static_cast<short>(events), 0};
    return ::poll(&one, 1, 0) > 0 ? one.revents : static_cast<short>(0);
}
inline int option(int descriptor, int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    return ::getsockopt(descriptor, SOL_SOCKET, name, &value, &size) == 0 ? value : 0;
}
inline tcp_info info_of(int descriptor) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    ::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size);
    return info;
}

// ---- the filters: whether the condition holds now, and what there is to say of it

inline bool judge_listener(int descriptor, struct kevent& out) {
    if ((polled(descriptor, POLLIN) & POLLIN) == 0) {
        return false;
    }
    out.data = std::max<intptr_t>(1, info_of(descriptor).tcpi_unacked);
    return true;
}

inline void tell_end(const knote& of, int found, struct kevent& out) {
    out.flags |= EV_EOF;
    if ((found & POLLERR) != 0) {
        out.fflags = of.connecting ? ECONNREFUSED : ECONNRESET;
    }
}

inline bool judge_reading(const knote& of, struct kevent& out) {
    const int descriptor = static_cast<int>(of.ident);
    if (option(descriptor, SO_ACCEPTCONN) != 0) {
        return judge_listener(descriptor, out);
    }
    const short found = polled(descriptor, POLLIN | POLLRDHUP | POLLPRI);
    int count = 0;
    ::ioctl(descriptor, FIONREAD, &count);
    out.data = count + ((found & POLLPRI) != 0 ? 1 : 0);
    if (option(descriptor, SO_TYPE) == SOCK_DGRAM) {
        return (found & (POLLIN | POLLERR)) != 0;
    }
    const bool ended = (found & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    if (ended) {
        tell_end(of, found, out);
    }
    return ended || count > 0;
}

inline bool judge_writing(const knote& of, struct kevent& out) {
    const int descriptor = static_cast<int>(of.ident);
    const short found = polled(descriptor, POLLOUT);
    int queued = 0;
    ::ioctl(descriptor, SIOCOUTQ, &queued);
    out.data = std::max(0, option(descriptor, SO_SNDBUF) - queued);
    const bool ended = (found & (POLLHUP | POLLERR)) != 0;
    if (ended) {
        tell_end(of, found, out);
    }
    return ended || (found & POLLOUT) != 0;
}

// ---- changes

inline uint32_t wanted_events(const knote& of, bool writes) {
    const uint32_t what = writes ? EPOLLOUT : EPOLLIN | EPOLLRDHUP;
    if ((of.flags & (EV_ONESHOT | EV_DISPATCH)) != 0) {
        return what | EPOLLONESHOT;
    }
    return (of.flags & EV_CLEAR) != 0 ? what | EPOLLET : what;
}

inline int arm(const queue& in, const knote& of, bool writes, int what) {
    const uint32_t events = of.enabled ? wanted_events(of, writes) : uint32_t{EPOLLET};
    return watch(writes ? in.writers : in.readers, what, static_cast<int>(of.ident), events);
}

inline void forget(const queue& in, knote& of, bool writes) {
    watch(writes ? in.writers : in.readers, EPOLL_CTL_DEL, static_cast<int>(of.ident), 0);
    of = knote{};
}

inline void tell_users(const queue& in) {
    uint64_t drained = 0;
    [[maybe_unused]] ssize_t done = ::read(in.kick, &drained, sizeof(drained));
    for (const knote& each : in.users) {
        if (each.there && each.enabled && each.triggered) {
            const uint64_t one = 1;
            done = ::write(in.kick, &one, sizeof(one));
            return;
        }
    }
}

inline void update(knote& of, const struct kevent& change) {
    if ((change.flags & EV_ADD) != 0) {
        if (!of.there) {
            of.flags = change.flags & (EV_CLEAR | EV_ONESHOT | EV_DISPATCH);
            of.ident = static_cast<uint32_t>(change.ident);
        }
        of.there = true;
        of.enabled = true;
    }
    of.udata = change.udata;
    of.enabled = (of.enabled || (change.flags & EV_ENABLE) != 0) && !(change.flags & EV_DISABLE);
}

inline int change_user(queue& in, const struct kevent& change) {
    knote* free = nullptr;
    knote* found = nullptr;
    for (knote& each : in.users) {
        if (each.there && each.ident == change.ident) {
            found = &each;
        } else if (!each.there) {
            free = &each;
        }
    }
    if (found == nullptr && (change.flags & EV_ADD) == 0) {
        return ENOENT;
    }
    if (found == nullptr && free == nullptr) {
        return ENOMEM;
    }
    knote& of = found != nullptr ? *found : *free;
    if ((change.flags & EV_DELETE) != 0) {
        of = knote{};
    } else {
        update(of, change);
        of.triggered = of.triggered || (change.fflags & NOTE_TRIGGER) != 0;
    }
    tell_users(in);
    return 0;
}

inline int change_socket(queue& in, const struct kevent& change, bool writes) {
    if (change.ident >= descriptors_max) {
        return EBADF;
    }
    knote& of = (writes ? in.writing : in.reading)[change.ident];
    const bool fresh = !of.there;
    if (fresh && (change.flags & EV_ADD) == 0) {
        return ENOENT;
    }
    if ((change.flags & EV_DELETE) != 0) {
        forget(in, of, writes);
        return 0;
    }
    update(of, change);
    if (fresh) {
        of.connecting = info_of(static_cast<int>(of.ident)).tcpi_state == TCP_SYN_SENT;
    }
    // A change of an epoll looks at the descriptor again, as a kqueue does.
    const int code = arm(in, of, writes, fresh ? EPOLL_CTL_ADD : EPOLL_CTL_MOD);
    if (code != 0) {
        of = knote{};
    }
    return code == EPERM ? EINVAL : code;  // epoll's word for what has no readiness
}

inline int change_one(queue& in, const struct kevent& change) {
    switch (change.filter) {
    case EVFILT_USER: return change_user(in, change);
    case EVFILT_READ: return change_socket(in, change, false);
    case EVFILT_WRITE: return change_socket(in, change, true);
    default: return EINVAL;
    }
}

// ---- events

inline void told(queue& in, knote& of, bool writes) {
    if ((of.flags & EV_ONESHOT) != 0) {
        forget(in, of, writes);
    } else if ((of.flags & EV_DISPATCH) != 0) {
        of.enabled = false;
    }
}

inline int take_users(queue& in, struct kevent* out, int room) {
    int count = 0;
    for (knote& each : in.users) {
        if (count == room || !each.there || !each.enabled || !each.triggered) {
            continue;
        }
        out[count++] = {each.ident, EVFILT_USER, each.flags, 0, 0, each.udata};
        each.triggered = (each.flags & EV_CLEAR) == 0;
        if ((each.flags & EV_ONESHOT) != 0) {
            each = knote{};
        } else if ((each.flags & EV_DISPATCH) != 0) {
            each.enabled = false;
            each.triggered = false;
        }
    }
    if (count != 0) {
        tell_users(in);
    }
    return count;
}

inline int take_sockets(queue& in, bool writes, struct kevent* out, int room) {
    int count = 0;
    const int from = writes ? in.writers : in.readers;
    const int ready = room == 0 ? 0 : ::epoll_wait(from, in.found, std::min(room, 512), 0);
    for (int at = 0; at < ready; ++at) {
        knote& of = (writes ? in.writing : in.reading)[in.found[at].data.fd];
        if (!of.there || !of.enabled) {
            continue;
        }
        const auto filter = static_cast<int16_t>(writes ? EVFILT_WRITE : EVFILT_READ);
        struct kevent one = {of.ident, filter, of.flags, 0, 0, of.udata};
        if (writes ? judge_writing(of, one) : judge_reading(of, one)) {
            out[count++] = one;
            told(in, of, writes);
        } else if ((of.flags & (EV_ONESHOT | EV_DISPATCH)) != 0) {
            arm(in, of, writes, EPOLL_CTL_MOD);
        }
    }
    return count;
}

inline int take(queue& in, struct kevent* out, int room) {
    int count = take_users(in, out, room);
    in.writers_first = !in.writers_first;  // neither filter keeps the other from being seen
    count += take_sockets(in, in.writers_first, out + count, room - count);
    count += take_sockets(in, !in.writers_first, out + count, room - count);
    return count;
}

/// The events that answer for changes, or -1 where there is no room for one.
inline int make_changes(queue& in, const struct kevent* changes, int change_count,
                        struct kevent* out, int room) {
    int count = 0;
    for (int at = 0; at < change_count; ++at) {
        const struct kevent change = changes[at];  // the arrays may be the same
        const int code = change_one(in, change);
        if (code == 0 && (change.flags & EV_RECEIPT) == 0) {
            continue;
        }
        if (count == room) {
            errno = code;
            return code == 0 ? count : -1;
        }
        out[count] = change;
        out[count].flags = EV_ERROR;
        out[count++].data = code;
    }
    return count;
}

inline int64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Sleeps without the lock until something may be there: 1, or 0 when the time is over, or -1.
inline int sleep_until(std::unique_lock<std::mutex>& lock, int descriptor, bool forever,
                       int64_t end_ns) {
    pollfd one{descriptor, POLLIN, 0};
    const int64_t left_ns = std::max<int64_t>(0, forever ? 0 : end_ns - now_ns());
    const timespec left{static_cast<time_t>(left_ns / 1'000'000'000),
                        static_cast<decltype(timespec::tv_nsec)>(left_ns % 1'000'000'000)};
    lock.unlock();
    const int found = ::ppoll(&one, 1, forever ? nullptr : &left, nullptr);
    const int code = errno;
    lock.lock();
    errno = code;
    return found;
}

inline void drop_queue(world& in, queue& which) {
    for (queue*& each : in.queues) {
        each = each == &which ? nullptr : each;
    }
    close_really(which.readers);
    close_really(which.writers);
    close_really(which.kick);
    ::munmap(&which, sizeof(queue));
}

/// What a kernel does of itself: the knotes of a descriptor, and a queue, go when it is closed.
inline void closing(int descriptor) {
    world& in = shared;
    const std::lock_guard<std::mutex> lock(in.mutex);
    for (queue* each : in.queues) {
        if (each == nullptr || each->owner != ::getpid()) {
            continue;
        }
        if (each->descriptor == descriptor) {
            drop_queue(in, *each);
        } else if (descriptor >= 0 && descriptor < descriptors_max) {
            for (const bool writes : {false, true}) {
                knote& of = (writes ? each->writing : each->reading)[descriptor];
                if (of.there) {
                    forget(*each, of, writes);
                }
            }
        }
    }
}

inline bool open_queue(queue& made) {
    made.owner = ::getpid();
    made.descriptor = ::epoll_create1(0);
    made.readers = ::epoll_create1(EPOLL_CLOEXEC);
    made.writers = ::epoll_create1(EPOLL_CLOEXEC);
    made.kick = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int code = 0;
    for (int each : {made.readers, made.writers, made.kick}) {
        code = code != 0 ? code : watch(made.descriptor, EPOLL_CTL_ADD, each, EPOLLIN);
    }
    if (code == 0) {
        return true;
    }
    for (int each : {made.descriptor, made.readers, made.writers, made.kick}) {
        close_really(each);
    }
    errno = EMFILE;
    return false;
}

}  // namespace kqueue_double

// Inlined by every compiler: the thread sanitizer has a `close` of its own, which is linked first.
extern "C" __attribute__((used, always_inline)) inline int close(int descriptor) {
    kqueue_double::closing(descriptor);
    return static_cast<int>(::syscall(SYS_close, descriptor));
}

inline int kqueue() {
    using namespace kqueue_double;
    world& in = shared;
    const std::lock_guard<std::mutex> lock(in.mutex);
    queue** const free = std::find_if(in.queues, in.queues + queues_max, [](queue* each) {
        return each == nullptr || each->owner != ::getpid();  // a parent's is not inherited
    });
    void* const pages = ::mmap(nullptr, sizeof(queue), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (free == in.queues + queues_max || pages == MAP_FAILED) {
        errno = ENOMEM;
        return -1;
    }
    queue& made = *static_cast<queue*>(pages);  // all-zero is a queue without knotes
    if (!open_queue(made)) {
        ::munmap(pages, sizeof(queue));
        return -1;
    }
    *free = &made;
    return made.descriptor;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // the call has the name of the structure
inline int kevent(int descriptor, const struct kevent* changes, int change_count,
                  struct kevent* out, int room, const timespec* timeout) {
    using namespace kqueue_double;
    std::unique_lock<std::mutex> lock(shared.mutex);
    queue* of = shared.find(descriptor);
    if (of == nullptr) {
        errno = EBADF;
        return -1;
    }
    const int answers = make_changes(*of, changes, change_count, out, room);
    if (answers != 0 || room == 0) {
        return answers;
    }
    const int64_t span_ns =
        timeout == nullptr ? 0 : int64_t{timeout->tv_sec} * 1'000'000'000 + timeout->tv_nsec;
    const int64_t end_ns = span_ns == 0 ? 0 : now_ns() + span_ns;
    for (;;) {
        const int count = take(*of, out, room);
        if (count != 0 || (timeout != nullptr && span_ns == 0)) {
            return count;
        }
        const int found = sleep_until(lock, descriptor, timeout == nullptr, end_ns);
        of = shared.find(descriptor);
        if (found <= 0 || of == nullptr) {
            errno = of == nullptr ? EBADF : errno;
            return found == 0 && of != nullptr ? 0 : -1;
        }
    }
}

#pragma GCC diagnostic pop

#endif
