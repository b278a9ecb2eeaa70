// The test double of kqueue keeps what its header promises: one case a behaviour of kqueue(2).
#if defined(__linux__) && defined(NETIO_USE_KQUEUE)

#include "tests/sockets.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/event.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

namespace {

using netio_test::plain::open_handles;

/// Changes and events are of the system's structure.
using double_event = struct kevent;

double_event double_change(int ident, int filter, int flags, std::uintptr_t udata = 0) {
    double_event out{};
    out.ident = static_cast<std::uintptr_t>(ident);
    out.filter = static_cast<std::int16_t>(filter);
    out.flags = static_cast<std::uint16_t>(flags);
    out.udata = reinterpret_cast<void*>(udata);
    return out;
}

/// A queue and a pair of connected sockets; on the way out no descriptor may be left.
struct double_rig {
    std::size_t before = open_handles();
    int queue = ::kqueue();
    int ours = -1;
    int theirs = -1;
    double_event out[16];
    std::vector<int> others;

    double_rig() {
        REQUIRE(queue >= 0);
        const int listener = listen_on_loopback();
        sockaddr_in where = address_of(listener);
        theirs = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        REQUIRE(::connect(theirs, reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0);
        ours = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        REQUIRE(ours >= 0);
    }
    ~double_rig() {
        for (int each : others) {
            ::close(each);
        }
        for (int each : {ours, theirs, queue}) {
            if (each >= 0) {
                ::close(each);
            }
        }
        CHECK(open_handles() == before);
    }
    int listen_on_loopback() {
        const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        sockaddr_in where{};
        where.sin_family = AF_INET;
        where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        REQUIRE(::bind(made, reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0);
        REQUIRE(::listen(made, 16) == 0);
        others.push_back(made);
        return made;
    }
    static sockaddr_in address_of(int socket) {
        sockaddr_in where{};
        socklen_t size = sizeof(where);
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&where), &size);
        return where;
    }

    /// Makes one change; 0 or the errno it failed with.
    int change(int ident, int filter, int flags, std::uintptr_t udata = 0) {
        const double_event one = double_change(ident, filter, flags, udata);
        return ::kevent(queue, &one, 1, nullptr, 0, nullptr) == 0 ? 0 : errno;
    }
    /// What is there now.
    int take(int room = 16) {
        const timespec at_once{};
        return ::kevent(queue, nullptr, 0, out, room, &at_once);
    }
    /// Waits for events, two seconds at most.
    int wait() {
        const timespec bound{2, 0};
        return ::kevent(queue, nullptr, 0, out, 16, &bound);
    }
    void say(std::string_view text) {
        REQUIRE(::send(theirs, text.data(), text.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(text.size()));
    }
    std::size_t read(std::size_t count) {
        char part[4096];
        const ssize_t got = ::recv(ours, part, std::min(count, sizeof(part)), 0);
        return got > 0 ? static_cast<std::size_t>(got) : 0;
    }
    void shut(int& which) {
        ::close(which);
        which = -1;
    }
    void reset() {
        const linger at_once{1, 0};
        ::setsockopt(theirs, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        shut(theirs);
    }
};

}  // namespace

TEST_CASE("double makes changes before it takes events, in one call") {
    double_rig rig;
    rig.say("hello");
    const double_event changes[] = {double_change(rig.ours, EVFILT_READ, EV_ADD, 1),
                                    double_change(rig.ours, EVFILT_READ, EV_ADD, 2)};
    const timespec bound{2, 0};
    REQUIRE(::kevent(rig.queue, changes, 2, rig.out, 16, &bound) == 1);  // one knote, not two
    CHECK(rig.out[0].ident == static_cast<std::uintptr_t>(rig.ours));
    CHECK(rig.out[0].filter == EVFILT_READ);
    CHECK(rig.out[0].data == 5);
    CHECK(rig.out[0].udata == reinterpret_cast<void*>(2));  // the later one's
    CHECK((rig.out[0].flags & (EV_EOF | EV_ERROR)) == 0);
}

TEST_CASE("double tells what is there again, but with EV_CLEAR once a change") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD) == 0);
    CHECK(rig.take() == 0);
    rig.say("abc");
    CHECK(rig.wait() == 1);
    CHECK(rig.take() == 1);
    CHECK(rig.out[0].data == 3);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_DELETE) == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR) == 0);
    CHECK(rig.take() == 1);
    CHECK(rig.take() == 0);
    rig.say("de");
    CHECK(rig.wait() == 1);
    CHECK(rig.out[0].data == 5);  // all that is there, not what is new
    CHECK(rig.take() == 0);
}

TEST_CASE("double judges again when an event is taken: what is gone is not told") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR) == 0);
    rig.say("gone");
    while (rig.read(4) == 0) {
    }
    CHECK(rig.take() == 0);
    rig.say("several ");
    rig.say("reasons");
    rig.say(" one event");
    CHECK(rig.wait() == 1);
}

TEST_CASE("double judges again when a knote is added again") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR, 1) == 0);
    rig.say("x");
    CHECK(rig.wait() == 1);
    CHECK(rig.take() == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR, 7) == 0);
    CHECK(rig.take() == 1);
    CHECK(rig.out[0].udata == reinterpret_cast<void*>(7));
}

TEST_CASE("double has filters of their own for reading and writing") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD, 1) == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_WRITE, EV_ADD, 2) == 0);
    rig.say("x");
    while (rig.take() < 2) {
    }
    CHECK(rig.out[0].filter != rig.out[1].filter);
    for (int at = 0; at < 2; ++at) {
        const bool writes = rig.out[at].filter == EVFILT_WRITE;
        CHECK(rig.out[at].udata == reinterpret_cast<void*>(writes ? 2 : 1));
        CHECK(rig.out[at].data > (writes ? 1000 : 0));  // of writing the room
    }
    CHECK(rig.take(1) == 1);
    const std::int16_t first = rig.out[0].filter;
    CHECK(rig.take(1) == 1);  // room for one: they take turns
    CHECK(rig.out[0].filter != first);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_DELETE) == 0);
    CHECK(rig.take() == 1);
    CHECK(rig.out[0].filter == EVFILT_WRITE);
}

TEST_CASE("double tells the end with EV_EOF, while there is data too") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD) == 0);
    rig.say("last");
    ::shutdown(rig.theirs, SHUT_WR);
    do {
        REQUIRE(rig.wait() == 1);
    } while ((rig.out[0].flags & EV_EOF) == 0);
    CHECK(rig.out[0].data == 4);
    CHECK(rig.out[0].fflags == 0);
    rig.read(4);
    CHECK(rig.take() == 1);
    CHECK((rig.out[0].flags & EV_EOF) != 0);
    CHECK(rig.out[0].data == 0);
}

TEST_CASE("double tells a reset to both filters with the error, and leaves it to be read") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR) == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_WRITE, EV_ADD | EV_CLEAR) == 0);
    CHECK(rig.take() == 1);
    rig.reset();
    int ends = 0;
    while (ends < 2) {
        const int count = rig.wait();
        REQUIRE(count > 0);
        for (int at = 0; at < count; ++at) {
            ends += (rig.out[at].flags & EV_EOF) != 0 && rig.out[at].fflags == ECONNRESET;
        }
    }
    char one = 0;
    CHECK(::recv(rig.ours, &one, 1, 0) == -1);
    CHECK(errno == ECONNRESET);
}

TEST_CASE("double says nothing of a connect under way and tells its refusal") {
    double_rig rig;
    const int refusing = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rig.others.push_back(refusing);  // bound, so the port is nobody else's, and never listening
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(refusing, reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0);
    where = double_rig::address_of(refusing);
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    rig.others.push_back(made);
    ::connect(made, reinterpret_cast<sockaddr*>(&where), sizeof(where));
    REQUIRE(rig.change(made, EVFILT_WRITE, EV_ADD | EV_ONESHOT) == 0);
    CHECK(rig.wait() == 1);
    CHECK((rig.out[0].flags & EV_EOF) != 0);
    int code = 0;
    socklen_t size = sizeof(code);
    ::getsockopt(made, SOL_SOCKET, SO_ERROR, &code, &size);
    CHECK(code == ECONNREFUSED);
}

TEST_CASE("double counts the connections that wait at a listener") {
    double_rig rig;
    const int listener = rig.listen_on_loopback();
    REQUIRE(rig.change(listener, EVFILT_READ, EV_ADD) == 0);
    CHECK(rig.take() == 0);
    sockaddr_in where = double_rig::address_of(listener);
    for (int count = 0; count < 3; ++count) {
        rig.others.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        REQUIRE(::connect(rig.others.back(), reinterpret_cast<sockaddr*>(&where),
                          sizeof(where)) == 0);
    }
    CHECK(rig.wait() == 1);
    CHECK(rig.out[0].data == 3);
    rig.others.push_back(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    CHECK(rig.take() == 1);
    CHECK(rig.out[0].data == 2);
    CHECK((rig.out[0].flags & EV_EOF) == 0);
}

TEST_CASE("double deletes a one-shot when it is told, and disables a dispatch one") {
    double_rig rig;
    rig.say("x");
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_ONESHOT) == 0);
    CHECK(rig.wait() == 1);
    CHECK(rig.take() == 0);
    CHECK(rig.change(rig.ours, EVFILT_READ, EV_DELETE) == ENOENT);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_DISPATCH) == 0);
    CHECK(rig.take() == 1);
    CHECK(rig.take() == 0);
    rig.say("y");
    CHECK(rig.take() == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ENABLE) == 0);
    CHECK(rig.take() == 1);
    CHECK(rig.take() == 0);
    CHECK(rig.change(rig.ours, EVFILT_READ, EV_DELETE) == 0);
}

TEST_CASE("double waits on with a one-shot that found nothing") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_ONESHOT) == 0);
    rig.say("x");
    while (rig.read(1) == 0) {
    }
    CHECK(rig.take() == 0);  // the reason is gone, the knote is not
    rig.say("y");
    CHECK(rig.wait() == 1);
}

TEST_CASE("double keeps a disabled knote to itself until it is enabled or added") {
    double_rig rig;
    rig.say("x");
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_DISABLE) == 0);
    CHECK(rig.take() == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ENABLE) == 0);
    CHECK(rig.wait() == 1);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_DISABLE) == 0);
    CHECK(rig.take() == 0);
    ::shutdown(rig.theirs, SHUT_WR);
    CHECK(rig.take() == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD) == 0);
    CHECK(rig.wait() == 1);
}

TEST_CASE("double answers for a failed change as an event, and takes no other then") {
    double_rig rig;
    rig.say("x");
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD, 1) == 0);
    CHECK(rig.wait() == 1);
    const double_event changes[] = {double_change(rig.ours, EVFILT_WRITE, EV_DELETE, 5),
                                    double_change(rig.ours, EVFILT_WRITE, EV_ADD, 6)};
    const timespec bound{2, 0};
    REQUIRE(::kevent(rig.queue, changes, 2, rig.out, 16, &bound) == 1);
    CHECK((rig.out[0].flags & EV_ERROR) != 0);
    CHECK(rig.out[0].data == ENOENT);
    CHECK(rig.out[0].filter == EVFILT_WRITE);
    CHECK(rig.out[0].udata == reinterpret_cast<void*>(5));
    CHECK(rig.take() == 2);  // the second change was made, and nothing was lost
}

TEST_CASE("double fails where there is no room for an answer, and makes no later change") {
    double_rig rig;
    const double_event changes[] = {double_change(rig.ours, EVFILT_READ, EV_ADD),
                                    double_change(rig.ours, EVFILT_WRITE, EV_ENABLE),
                                    double_change(rig.ours, EVFILT_WRITE, EV_ADD)};
    CHECK(::kevent(rig.queue, changes, 3, nullptr, 0, nullptr) == -1);
    CHECK(errno == ENOENT);
    CHECK(rig.change(rig.ours, EVFILT_READ, EV_DELETE) == 0);
    CHECK(rig.change(rig.ours, EVFILT_WRITE, EV_DELETE) == ENOENT);
}

TEST_CASE("double answers for each change with EV_RECEIPT, in the same array, without events") {
    double_rig rig;
    rig.say("x");
    double_event both[] = {double_change(rig.ours, EVFILT_READ, EV_ADD | EV_RECEIPT, 1),
                           double_change(rig.ours, EVFILT_WRITE, EV_DELETE | EV_RECEIPT, 2)};
    const timespec at_once{};
    REQUIRE(::kevent(rig.queue, both, 2, both, 2, &at_once) == 2);
    CHECK((both[0].flags & EV_ERROR) != 0);
    CHECK(both[0].data == 0);
    CHECK(both[0].udata == reinterpret_cast<void*>(1));
    CHECK((both[1].flags & EV_ERROR) != 0);
    CHECK(both[1].data == ENOENT);
    CHECK(rig.wait() == 1);
}

TEST_CASE("double refuses what can't be watched") {
    double_rig rig;
    const int closed = ::dup(rig.ours);
    ::close(closed);
    CHECK(rig.change(closed, EVFILT_READ, EV_ADD) == EBADF);
    CHECK(rig.change(1 << 20, EVFILT_READ, EV_ADD) == EBADF);
    CHECK(rig.change(rig.ours, -7, EV_ADD) == EINVAL);
    const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    rig.others.push_back(file);
    CHECK(rig.change(file, EVFILT_READ, EV_ADD) == EINVAL);
    const double_event one = double_change(rig.ours, EVFILT_READ, EV_ADD);
    CHECK(::kevent(rig.ours, &one, 1, nullptr, 0, nullptr) == -1);  // no queue
    CHECK(errno == EBADF);
}

namespace {

int double_trigger(int queue, std::uintptr_t ident = 0) {
    double_event one = double_change(static_cast<int>(ident), EVFILT_USER, 0, 9);
    one.fflags = NOTE_TRIGGER;
    return ::kevent(queue, &one, 1, nullptr, 0, nullptr);
}

}  // namespace

TEST_CASE("double gives one event for any number of triggers") {
    double_rig rig;
    CHECK(double_trigger(rig.queue) == -1);
    CHECK(errno == ENOENT);
    REQUIRE(rig.change(0, EVFILT_USER, EV_ADD | EV_CLEAR, 3) == 0);
    CHECK(rig.take() == 0);
    for (int count = 0; count < 5; ++count) {
        REQUIRE(double_trigger(rig.queue) == 0);
    }
    pollfd foreign{rig.queue, POLLIN, 0};
    CHECK(::poll(&foreign, 1, 0) == 1);
    CHECK(rig.take() == 1);
    CHECK(rig.out[0].filter == EVFILT_USER);
    CHECK(rig.out[0].udata == reinterpret_cast<void*>(9));  // a trigger is a change, too
    CHECK(rig.take() == 0);
    CHECK(::poll(&foreign, 1, 0) == 0);
    REQUIRE(rig.change(1, EVFILT_USER, EV_ADD) == 0);  // without EV_CLEAR it stays set off
    REQUIRE(double_trigger(rig.queue, 1) == 0);
    CHECK(rig.take() == 1);
    CHECK(rig.take() == 1);
    REQUIRE(rig.change(1, EVFILT_USER, EV_DELETE) == 0);
    CHECK(rig.take() == 0);
}

TEST_CASE("double keeps user events apart, one-shot and dispatch ones too") {
    double_rig rig;
    for (int ident = 0; ident < kqueue_double::users_max; ++ident) {
        const int flags[] = {EV_ONESHOT, EV_DISPATCH, EV_CLEAR, EV_DISABLE};
        REQUIRE(rig.change(ident, EVFILT_USER, EV_ADD | flags[ident % 4]) == 0);
        REQUIRE(double_trigger(rig.queue, static_cast<std::uintptr_t>(ident)) == 0);
    }
    CHECK(rig.change(99, EVFILT_USER, EV_ADD) == ENOMEM);
    CHECK(rig.take() == 6);  // all but the two disabled ones
    CHECK(rig.take() == 0);
    CHECK(rig.change(0, EVFILT_USER, EV_DELETE) == ENOENT);
    CHECK(rig.change(1, EVFILT_USER, EV_ENABLE) == 0);
    CHECK(rig.take() == 0);
    CHECK(rig.change(3, EVFILT_USER, EV_ENABLE) == 0);
    CHECK(rig.take() == 1);
    CHECK(rig.out[0].ident == 3);
}

TEST_CASE("double ends the sleep of another thread by a trigger") {
    double_rig rig;
    REQUIRE(rig.change(0, EVFILT_USER, EV_ADD | EV_CLEAR) == 0);
    std::thread waker([&] { double_trigger(rig.queue); });
    CHECK(::kevent(rig.queue, nullptr, 0, rig.out, 16, nullptr) == 1);
    waker.join();
    CHECK(rig.out[0].filter == EVFILT_USER);
}

TEST_CASE("double forgets a descriptor when it is closed, though a duplicate lives on") {
    double_rig rig;
    for (const int flags : {EV_ADD, EV_ADD | EV_CLEAR}) {
        const int copy = ::fcntl(rig.ours, F_DUPFD_CLOEXEC, 0);
        REQUIRE(rig.change(copy, EVFILT_READ, flags, 1) == 0);
        REQUIRE(rig.change(copy, EVFILT_WRITE, flags, 2) == 0);
        CHECK(rig.take() >= 1);
        ::close(copy);
        rig.say("to the one that lives on");
        pollfd there{rig.ours, POLLIN, 0};
        REQUIRE(::poll(&there, 1, 2000) == 1);
        CHECK(rig.take() == 0);
        const int reused = ::fcntl(rig.ours, F_DUPFD_CLOEXEC, copy);
        REQUIRE(reused == copy);
        CHECK(rig.take() == 0);
        CHECK(rig.change(reused, EVFILT_READ, EV_DELETE) == ENOENT);
        ::close(reused);
        rig.read(100);
    }
}

TEST_CASE("double lets several queues watch one socket, and a queue take nothing of another's") {
    double_rig rig;
    const int other = ::kqueue();
    const double_event one = double_change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR);
    REQUIRE(::kevent(other, &one, 1, nullptr, 0, nullptr) == 0);
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR) == 0);
    rig.say("x");
    CHECK(rig.wait() == 1);
    const timespec bound{2, 0};
    CHECK(::kevent(other, nullptr, 0, rig.out, 16, &bound) == 1);
    ::close(other);
    CHECK(::kevent(other, nullptr, 0, rig.out, 16, &bound) == -1);
    CHECK(errno == EBADF);
}

TEST_CASE("double waits as long as asked, to the nanosecond's order, and no shorter") {
    double_rig rig;
    for (const long span_ns : {0L, 300'000L, 3'000'000L}) {
        const timespec span{0, span_ns};
        const std::int64_t begin = kqueue_double::now_ns();
        CHECK(::kevent(rig.queue, nullptr, 0, rig.out, 16, &span) == 0);
        CHECK(kqueue_double::now_ns() - begin >= span_ns);
    }
}

TEST_CASE("double is interrupted by a signal, and its changes are made") {
    double_rig rig;
    struct sigaction mine {};
    struct sigaction before {};
    mine.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &mine, &before);
    const itimerval soon{{0, 2000}, {0, 2000}};
    ::setitimer(ITIMER_REAL, &soon, nullptr);
    const double_event one = double_change(rig.ours, EVFILT_READ, EV_ADD);
    CHECK(::kevent(rig.queue, &one, 1, rig.out, 16, nullptr) == -1);
    CHECK(errno == EINTR);
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &before, nullptr);
    CHECK(rig.change(rig.ours, EVFILT_READ, EV_DELETE) == 0);
}

TEST_CASE("double leaves a queue with its process: a child has none, and disturbs none") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const timespec at_once{};
        const bool none = ::kevent(rig.queue, nullptr, 0, rig.out, 16, &at_once) == -1 &&
                          errno == EBADF;
        ::close(rig.ours);
        ::close(rig.queue);
        ::_exit(none ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    rig.say("x");
    CHECK(rig.wait() == 1);
}

TEST_CASE("double tells of room after a lack of it, and of a reader that is gone [threads]") {
    double_rig rig;
    const std::string much(1 << 20, 'x');
    while (::send(rig.ours, much.data(), much.size(), MSG_NOSIGNAL) > 0) {
    }
    REQUIRE(rig.change(rig.ours, EVFILT_WRITE, EV_ADD | EV_ONESHOT) == 0);
    CHECK(rig.take() == 0);
    std::thread reader([&] {
        std::vector<char> part(much.size());
        for (std::size_t got = 0; got < 2 * much.size();) {
            const ssize_t step = ::recv(rig.theirs, part.data(), part.size(), MSG_DONTWAIT);
            if (step <= 0) {
                break;
            }
            got += static_cast<std::size_t>(step);
        }
    });
    CHECK(rig.wait() == 1);
    reader.join();
    CHECK((rig.out[0].flags & EV_EOF) == 0);
    CHECK(rig.out[0].data > 0);
    rig.reset();
    REQUIRE(rig.change(rig.ours, EVFILT_WRITE, EV_ADD) == 0);
    do {
        REQUIRE(rig.wait() == 1);
    } while ((rig.out[0].flags & EV_EOF) == 0);
}

TEST_CASE("double says of urgent data that there is more than can be read up to it") {
    double_rig rig;
    REQUIRE(rig.change(rig.ours, EVFILT_READ, EV_ADD | EV_CLEAR) == 0);
    rig.say("before");
    REQUIRE(::send(rig.theirs, "!", 1, MSG_OOB) == 1);
    rig.say("behind");
    std::intptr_t most = 0;
    while (most < 7) {
        REQUIRE(rig.wait() == 1);
        most = rig.out[0].data;
    }
    CHECK(rig.read(100) == 6);
}

TEST_CASE("double tells of datagrams, empty ones too") {
    double_rig rig;
    const int box = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    rig.others.push_back(box);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(box, reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0);
    where = double_rig::address_of(box);
    REQUIRE(rig.change(box, EVFILT_READ, EV_ADD) == 0);
    CHECK(rig.take() == 0);
    for (const std::string_view text : {"", "four"}) {
        REQUIRE(::sendto(box, text.data(), text.size(), 0, reinterpret_cast<sockaddr*>(&where),
                         sizeof(where)) >= 0);
        CHECK(rig.wait() == 1);
        CHECK(rig.out[0].data == static_cast<std::intptr_t>(text.size()));
        CHECK((rig.out[0].flags & EV_EOF) == 0);
        char part[16];
        ::recv(box, part, sizeof(part), 0);
        CHECK(rig.take() == 0);
    }
}

TEST_CASE("double counts a unix listener's clients as one") {
    double_rig rig;
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    rig.others.push_back(listener);
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    const std::string name = "netio-double-" + std::to_string(::getpid());
    std::memcpy(where.sun_path + 1, name.data(), name.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&where), size) == 0);
    REQUIRE(::listen(listener, 4) == 0);
    REQUIRE(rig.change(listener, EVFILT_READ, EV_ADD) == 0);
    CHECK(rig.take() == 0);
    rig.others.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(rig.others.back(), reinterpret_cast<sockaddr*>(&where), size) == 0);
    CHECK(rig.wait() == 1);
    CHECK(rig.out[0].data == 1);
}

#endif
