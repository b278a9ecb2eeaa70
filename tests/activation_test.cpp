// Listening sockets from elsewhere: those of a service manager, and how a server goes on with one.
#include "netio.hpp"
#include "tests/emulated.hpp"
#include "tests/local_folder.hpp"
#include "tests/service_world.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <array>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <thread>

namespace {

using namespace netio_test;
using netio::error;

/// A plain listening socket of TCP on loopback, of the test's own.
int activation_listener(int type = SOCK_STREAM, bool listens = true) {
    const int made = ::socket(AF_INET, type, 0);
    plain::bind_loopback(made);
    if (listens) {
        ::listen(made, 8);
    }
    return made;
}
int activation_unix_listener(const std::string& path) {
    const int made = local_bound(path);
    ::listen(made, 8);
    return made;
}

/// Counts its checks in a child, where nobody can see them: 0, or which was the first that failed.
struct activation_checks {
    int made = 0;
    int failed = 0;
    void operator()(bool held) {
        ++made;
        failed = failed == 0 && !held ? made : failed;
    }
};

/// What a service manager does: a child whose descriptors 3 and up are these, and its words.
struct activation_child {
    std::string process = std::to_string(::getpid());
    std::string count = "0";
    netio::activation_words words{};
    std::array<netio::activated_listener, 64> out{};

    explicit activation_child(const std::vector<int>& from) : count(std::to_string(from.size())) {
        std::vector<int> high;  // out of the way first: one of them may be 3 itself
        for (const int each : from) {
            high.push_back(::fcntl(each, F_DUPFD, 100));
        }
        for (std::size_t at = 0; at < high.size(); ++at) {
            ::dup2(high[at], 3 + static_cast<int>(at));
            ::close(high[at]);
        }
        words.process = process.c_str();
        words.count = count.c_str();
    }
    netio::activation take() { return netio::take_activated(out, words); }
    std::string line(const netio::activation& of) const {
        char room[256];
        return std::string(netio::describe(of.failure, room));
    }
};
bool activation_flags(int of, bool taken) {
    const bool not_inherited = (::fcntl(of, F_GETFD) & FD_CLOEXEC) != 0;
    const bool not_blocking = (::fcntl(of, F_GETFL) & O_NONBLOCK) != 0;
    return not_inherited == taken && not_blocking == taken;
}
std::string activation_own_inode() {
    const auto opened = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
    struct stat found {};
    struct statfs system {};
    const bool told = opened >= 0 && ::fstat(opened, &found) == 0 &&
                      ::fstatfs(opened, &system) == 0 && system.f_type == 0x50494446;
    ::close(opened);
    return told ? std::to_string(found.st_ino) : "";
}

/// The n-th change of a descriptor's flags fails.
struct activation_sys : netio::activation_sys {
    static inline int fail_at = 0;
    static inline int made = 0;
    static int control(int of, int command, int value) noexcept {
        if ((command == F_SETFD || command == F_SETFL) && ++made == fail_at) {
            errno = EPERM;
            return -1;
        }
        return netio::activation_sys::control(of, command, value);
    }
};

/// Calls on a listener that was adopted, one of which fails or says something strange.
struct adoption_sys : netio::linux_sys {
    enum class fault { none, name, family, flags, listen };
    static inline fault now = fault::none;
    static int getsockname(int of, sockaddr* where, socklen_t* size) noexcept {
        const int got = netio::linux_sys::getsockname(of, where, size);
        where->sa_family = now == fault::family ? sa_family_t{AF_NETLINK} : where->sa_family;
        errno = ENOBUFS;
        return now == fault::name ? -1 : got;
    }
    static int control(int of, int command, int value) noexcept {
        errno = EPERM;
        return now == fault::flags ? -1 : netio::linux_sys::control(of, command, value);
    }
    static int listen(int of, int backlog) noexcept {
        errno = EOPNOTSUPP;
        return now == fault::listen ? -1 : netio::linux_sys::listen(of, backlog);
    }
};

}  // namespace

TEST_CASE("activation takes every socket with its name, and marks it") {
    local_folder folder;
    const int tcp = activation_listener();
    const int local = activation_unix_listener(folder.file("s"));
    CHECK(local_in_child([&] {
              activation_checks check;
              activation_child child({tcp, local});
              const netio::activation none = netio::take_activated(child.out, {});
              check(none && none.count == 0);  // not started by a service manager
              child.words.names = "web:control";
              const netio::activation got = child.take();
              check(static_cast<bool>(got));
              check(got.count == 2);
              check(child.out[0].handle == 3 && child.out[0].name == "web");
              check(child.out[0].local == plain::local_of(tcp));
              check(child.out[1].handle == 4 && child.out[1].name == "control");
              check(child.out[1].local.family == netio::address_family::unix_path);
              check(activation_flags(3, true) && activation_flags(4, true));
              const netio::activation again = child.take();
              check(again.failure.code == error::stale);
              check(child.line(again) ==
                    "activation descriptor 3 (web): close-on-exec already: stale id");
              check(again.count == 0 && child.out[0].handle == netio::no_handle);
              return check.failed;
          }) == 0);
    CHECK(local_in_child([&] {
              activation_child child({tcp});
              const netio::activation got = child.take();
              return got && got.count == 1 && child.out[0].name == "unknown" ? 0 : 1;
          }) == 0);
    ::close(tcp);
    ::close(local);
}

TEST_CASE("activation reads the environment if no words are given") {
    const int tcp = activation_listener();
    CHECK(local_in_child([&] {
              activation_checks check;
              activation_child child({tcp});
              ::setenv("LISTEN_PID", child.process.c_str(), 1);
              ::setenv("LISTEN_FDS", "1", 1);
              ::setenv("LISTEN_FDNAMES", "http", 1);
              ::unsetenv("LISTEN_PIDFDID");
              const netio::activation got = netio::take_activated(child.out);
              check(got && got.count == 1 && child.out[0].name == "http");
              return check.failed;
          }) == 0);
    ::close(tcp);
}

TEST_CASE("activation for another process is none for this one, and changes nothing") {
    const int tcp = activation_listener();
    CHECK(local_in_child([&] {
              activation_checks check;
              activation_child child({tcp});
              child.process = std::to_string(::getppid());
              child.words.process = child.process.c_str();
              netio::activation got = child.take();
              check(got && got.count == 0);
              child.process = std::to_string(::getpid());
              child.words.process = child.process.c_str();
              const std::string own = activation_own_inode();
              if (!own.empty()) {  // this kernel tells: another inode, another process
                  const std::string other = own + "1";
                  child.words.process_fd = other.c_str();
                  got = child.take();
                  check(got && got.count == 0);
                  check(activation_flags(3, false));
                  child.words.process_fd = own.c_str();
              }
              got = child.take();
              check(got && got.count == 1);
              return check.failed;
          }) == 0);
    ::close(tcp);
}

TEST_CASE("activation takes none if one descriptor is not what it must be, and names it") {
    local_folder folder;
    const int good = activation_listener();
    const int bound = activation_listener(SOCK_STREAM, false);
    const int datagrams = activation_listener(SOCK_DGRAM, false);
    const int file = ::open("/dev/null", O_RDONLY);
    const int marked = ::fcntl(good, F_DUPFD_CLOEXEC, 3);
    const int packets = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const int connected = ::socket(AF_INET, SOCK_STREAM, 0);
    CHECK(plain::connect(connected, plain::local_of(good)));
    const struct {
        int what;
        const char* line;
    } wrong[] = {
        {bound, "activation descriptor 4 (b): does not listen: not a listening stream socket"},
        {connected, "activation descriptor 4 (b): does not listen: not a listening stream socket"},
        {datagrams, "activation descriptor 4 (b): no stream: not a listening stream socket"},
        {packets, "activation descriptor 4 (b): no stream: not a listening stream socket"},
        {file, "activation descriptor 4 (b): no socket: not a listening stream socket (ENOTSOCK)"},
        {-1, "activation descriptor 4 (b): not open: not a listening stream socket (EBADF)"},
    };
    for (const auto& each : wrong) {
        CAPTURE(each.line);
        CHECK(local_in_child([&] {
                  activation_checks check;
                  activation_child child({good, each.what});
                  if (each.what < 0) {
                      ::close(4);
                  }
                  child.words.names = "a:b";
                  const netio::activation got = child.take();
                  check(got.failure.code == error::not_a_listener);
                  check(child.line(got) == each.line);
                  check(got.count == 0);
                  check(activation_flags(3, false));  // the good one, too, is as it was
                  check(child.out[0].handle == netio::no_handle);
                  return check.failed;
              }) == 0);
    }
    // The variables of an earlier program: its descriptors are close-on-exec.
    CHECK(local_in_child([&] {
              activation_checks check;
              activation_child child({good, good});
              ::fcntl(4, F_SETFD, FD_CLOEXEC);
              const netio::activation got = child.take();
              check(got.failure.code == error::stale);
              check((::fcntl(3, F_GETFD) & FD_CLOEXEC) == 0);
              return check.failed;
          }) == 0);
    for (const int each : {good, bound, datagrams, file, marked, packets, connected}) {
        ::close(each);
    }
}

TEST_CASE("activation refuses words that say nothing clear") {
    const int good = activation_listener();
    CHECK(local_in_child([&] {
              activation_checks check;
              activation_child child({good});
              const netio::activation_words right = child.words;
              const auto refused = [&](const char* about, error why) {
                  const netio::activation got = child.take();
                  check(got.failure.code == why);
                  check(std::string_view(got.failure.subject) == about);
                  check(activation_flags(3, false));
                  child.words = right;
              };
              const std::string spaced = " " + child.process;
              const std::string more = child.process + "x";
              for (const char* each : {"", "0", "-1", "x", spaced.c_str(), more.c_str(),
                                       "99999999999999999999"}) {
                  child.words.process = each;
                  refused("LISTEN_PID", error::option_invalid);
              }
              for (const char* each : {"", "0", "-1", "1 ", "+1", "2147483648"}) {
                  child.words.count = each;
                  refused("LISTEN_FDS", error::option_invalid);
              }
              for (const char* each : {"65", "2147483647"}) {
                  child.words.count = each;
                  refused("LISTEN_FDS", error::full);
              }
              for (const char* each : {"a:b", "a:", ":"}) {
                  child.words.names = each;
                  refused("LISTEN_FDNAMES", error::option_invalid);
              }
              for (const char* each : {"", "0", "x", "12x"}) {
                  child.words.process_fd = each;
                  refused("LISTEN_PIDFDID", error::option_invalid);
              }
              child.words.count = "2";
              const netio::activation got =
                  netio::take_activated({child.out.data(), 1}, child.words);
              check(got.failure.code == error::full);
              check(got.failure.needed == 2 && got.failure.given == 1);
              return check.failed;
          }) == 0);
    ::close(good);
}

TEST_CASE("activation that can't mark a descriptor leaves none marked as taken") {
    const int good = activation_listener();
    for (int nth = 1; nth <= 5; ++nth) {
        CAPTURE(nth);
        CHECK(local_in_child([&] {
                  activation_checks check;
                  activation_child child({good, good});
                  activation_sys::fail_at = nth;
                  activation_sys::made = 0;
                  const netio::activation got =
                      netio::take_activated<activation_sys>(child.out, child.words);
                  check(static_cast<bool>(got) == (nth == 5));
                  check(nth == 5 || got.failure.code == error::permission_denied);
                  for (const int each : {3, 4}) {
                      check(((::fcntl(each, F_GETFD) & FD_CLOEXEC) != 0) == (nth == 5));
                  }
                  return check.failed;
              }) == 0);
    }
    ::close(good);
}

TEST_CASE("a server goes on with a listener made elsewhere, whoever waits in its queue") {
    local_on_each_backend([]<class B>(B*) {
        CAPTURE(B::name);
        service_world<B> w;
        service_echo(w.handler);
        const int made = activation_listener();
        client_socket early(plain::local_of(made));  // before anybody accepts
        netio::listener_id id;
        netio::listen_options how;
        how.connections_max = 1;
        REQUIRE(w.server().adopt_listener(made, how, &id) == error::none);
        CHECK(w.server().local(id) == plain::local_of(made));
        CHECK(w.server().native_handle(id) == made);
        CHECK(activation_flags(made, true));
        CHECK(w.exchange(early, "early") == "early");
        CHECK(plain::no_delay(made));  // and so have those that are accepted
        client_socket late(plain::local_of(made));
        CHECK(w.until([&] { return late.over(); }));  // its cap holds
        CHECK(w.server().stats().counts.refused == 1);
    });
}

TEST_CASE("a listener adopted while the worker sleeps is served at once [threads]") {
    local_on_each_backend([]<class B>(B*) {
        CAPTURE(B::name);
        scripted handler;
        service_echo(handler);
        fresh_memory memory(netio::bytes_needed<B>(service_limits));
        netio::server<scripted, B> server(netio::storage_view{memory.all(), service_limits},
                                          handler);
        REQUIRE(server.listen({.address = "127.0.0.1"}) == error::none);
        std::thread worker([&] { CHECK(server.run() == error::none); });
        client_socket first(server.local());
        first.send("a");
        CHECK(client_os::wait_readable(first.handle(), 10'000));  // it runs, and sleeps
        const int made = activation_listener();
        const netio::endpoint at = plain::local_of(made);
        CHECK(server.adopt_listener(made, {}) == error::none);
        client_socket client(at);
        client.send("b");
        CHECK(client_os::wait_readable(client.handle(), 10'000));
        CHECK(client.arrived() == "b");
        server.stop();
        worker.join();
    });
}

TEST_CASE("a listener that can't be adopted stays the caller's") {
    service_world<netio::epoll> w;
    const int good = activation_listener();
    const int bound = activation_listener(SOCK_STREAM, false);
    const auto refused = [&](int what, const netio::listen_options& how, error why,
                             std::string_view about) {
        CHECK(w.server().adopt_listener(what, how) == why);
        CHECK(std::string_view(w.server().failure().subject) == about);
        CHECK(w.server().stats().open == 0);
    };
    refused(bound, {}, error::not_a_listener, "descriptor " + std::to_string(bound));
    refused(good, {.address = "127.0.0.1"}, error::option_invalid, "address");
    refused(good, {.port = 1}, error::option_invalid, "port");
    refused(good, {.unix_path = "/x"}, error::option_invalid, "unix_path");
    refused(good, {.unix_mode = 0666}, error::option_invalid, "unix_mode");
    refused(good, {.dual_stack = true}, error::option_invalid, "dual_stack");
    refused(good, {.reuse_port = true}, error::option_invalid, "reuse_port");
    refused(good, {.defer_accept_s = 1}, error::option_invalid, "defer_accept_s");
    refused(good, {.fast_open = 1}, error::option_invalid, "fast_open");
    refused(good, {.unix_required_uid = 0}, error::not_supported, "unix_required_uid");
    refused(good, {.worker = 7}, error::option_invalid, "worker");
    refused(good, {.proxy = netio::proxy_mode::required, .trusted = "x"}, error::host_name_given,
            "x");
    netio::listen_options how;
    how.trusted = "10.0.0.0/8, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16";
    how.socket.dscp = 64;
    for (int at = 0; at < 3; ++at) {  // and its rows of trusted networks are free again
        refused(good, how, error::option_invalid, "descriptor " + std::to_string(good));
    }
    REQUIRE(::fcntl(good, F_GETFD) >= 0);
    REQUIRE(::fcntl(bound, F_GETFD) >= 0);
    CHECK(w.server().adopt_listener(good, {}) == error::none);
    ::close(bound);
}

TEST_CASE("a listener that is adopted gets the backlog asked for, and each failure is told") {
    const int made = activation_listener();
    const auto taken = [&](adoption_sys::fault now) {
        adoption_sys::now = now;
        netio::listen_options how;
        how.backlog = 3;
        return netio::detail::take_listener<adoption_sys>(made, how).status;
    };
    using fault = adoption_sys::fault;
    CHECK(taken(fault::none).why == error::none);
    CHECK(taken(fault::name).why == error::not_a_listener);
    CHECK(taken(fault::name).os_code == ENOBUFS);
    CHECK(taken(fault::family).why == error::not_a_listener);
    CHECK(taken(fault::flags).why == error::permission_denied);
    CHECK(taken(fault::listen).why == error::not_supported);
    tcp_info told{};
    socklen_t size = sizeof(told);
    if (!emulated()) {  // qemu-user carries no TCP_INFO
        REQUIRE(::getsockopt(made, IPPROTO_TCP, TCP_INFO, &told, &size) == 0);
        CHECK(told.tcpi_sacked == 3);  // of a listener: its backlog
    }
    ::close(made);
}

TEST_CASE("an adopted unix listener knows its peers' user, and keeps or loses its file as told") {
    local_folder folder;
    const std::string path = folder.file("s");
    for (const bool owned : {false, true}) {
        CAPTURE(owned);
        {
            service_world<netio::epoll> w;
            const int made = activation_unix_listener(path);
            struct stat found {};
            REQUIRE(::lstat(path.c_str(), &found) == 0);
            const netio::socket_file file{found.st_dev, found.st_ino,
                                          static_cast<std::uint32_t>(::getpid())};
            netio::listen_options how;
            how.unix_required_uid = static_cast<std::uint32_t>(::geteuid()) + 1;
            REQUIRE(w.server().adopt_listener(made, how, nullptr,
                                              owned ? file : netio::socket_file{}) == error::none);
            client_socket client(path);
            CHECK(w.until([&] { return client.over(); }));
            CHECK(w.server().stats().counts.refused == 1);
        }
        CHECK(local_exists(path) == !owned);
        ::unlink(path.c_str());
    }
}

TEST_CASE("a released listener is closed here and lives on elsewhere, its queue untouched") {
    local_folder folder;
    const std::string path = folder.file("s");
    local_on_each_backend([&]<class B>(B*) {
        CAPTURE(B::name);
        netio::limits two = service_limits;
        two.workers_max = 2;
        service_world<B> w(two);
        service_echo(w.handler);
        netio::listener_id id;
        netio::listen_options how;
        how.unix_path = path;
        REQUIRE(w.server().listen(how, &id) == error::none);
        client_socket kept(path);
        CHECK(w.exchange(kept, "kept") == "kept");
        w.server().run_once(0, 1);
        const int elsewhere = ::dup(static_cast<int>(w.server().native_handle(id)));
        CHECK(w.server().release_listener(id));
        CHECK(w.server().release_listener(id));
        CHECK_FALSE(w.server().release_listener({5}));
        for (const std::uint32_t worker : {0u, 1u}) {
            CHECK(w.server().is_open(id));  // until the last worker has seen it
            w.server().run_once(0, worker);
            w.server().run_once(0, worker);
        }
        CHECK_FALSE(w.server().is_open(id));
        CHECK(w.server().native_handle(id) == netio::no_handle);
        CHECK(local_exists(path));
        client_socket waiting(path);
        CHECK(waiting.connected());
        CHECK(w.exchange(kept, "still") == "keptstill");  // an open connection stays
        CHECK_FALSE(waiting.over());
        const int accepted = ::accept(elsewhere, nullptr, nullptr);
        CHECK(accepted >= 0);
        ::close(accepted);
        ::close(elsewhere);
        kept.close();
        CHECK(w.until([&] { return w.handler.closed == 1; }));
        w.server().stop();
        while (w.server().run_once(0, 1)) {
        }
        w.check_nothing_held();
        CHECK(local_exists(path));
        ::unlink(path.c_str());
    });
}

#endif
