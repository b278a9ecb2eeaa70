// Local sockets: the mode of their file, stale files, its removal, and who is at the other end.
#include "netio.hpp"
#include "tests/local_folder.hpp"
#include "tests/service_world.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <functional>

namespace {

using namespace netio_test;
using netio::error;
using netio::os_handle;
namespace sockets = netio::detail;

/// Closes on the way out, as a server does.
struct local_listener : os_handle {
    local_listener(os_handle from) : os_handle(from) {}
    local_listener(const local_listener&) = delete;
    local_listener& operator=(const local_listener&) = delete;
    ~local_listener() { end(); }
    void end() {
        if (handle != netio::no_handle) {
            netio::epoll::remove_file_of(handle, file);
            netio::epoll::close_handle(handle, false);
            handle = netio::no_handle;
        }
    }
};

os_handle local_listen(const std::string& path, const netio::listen_options& how = {}) {
    return netio::epoll::listen({{}, path}, how);
}

/// Something happens just before a call, or the n-th call on names fails.
struct local_sys : netio::linux_sys {
    using real = netio::linux_sys;
    static inline std::function<void()> before_listen;
    static inline std::function<void()> after_probe;
    static inline int fail_at = 0;
    static inline int made = 0;
    static inline int code = EIO;

    static void plan(int nth, int with) {
        fail_at = nth;
        made = 0;
        code = with;
    }
    static bool enter() noexcept {
        errno = code;
        return ++made != fail_at;
    }
    static int look_at(const char* path, netio::file_facts& out) noexcept {
        return enter() ? real::look_at(path, out) : -1;
    }
    static int set_mode(const char* path, mode_t mode) noexcept {
        return enter() ? real::set_mode(path, mode) : -1;
    }
    static int remove(const char* path) noexcept { return enter() ? real::remove(path) : -1; }
    static int listen(int what, int backlog) noexcept {
        if (before_listen) {
            std::exchange(before_listen, nullptr)();
        }
        return enter() ? real::listen(what, backlog) : -1;
    }
    static int connect(int what, const sockaddr* where, socklen_t size) noexcept {
        const int got = real::connect(what, where, size);
        const int said = errno;
        if (after_probe) {
            std::exchange(after_probe, nullptr)();
        }
        errno = said;
        return got;
    }
};
/// A start beside another one, without the patience.
struct local_hasty_sys : netio::linux_sys {
    static void pause_ms(int) noexcept {}
};
/// The lock is let go of while a start waits for it.
struct local_patient_sys : netio::linux_sys {
    static inline int held = -1;
    static inline int pauses = 0;
    static void pause_ms(int ms) noexcept {
        ::close(std::exchange(held, -1));
        ++pauses;
        netio::linux_sys::pause_ms(ms);
    }
};
/// No second socket for the probe.
struct local_probeless_sys : netio::linux_sys {
    static inline int made = 0;
    static int open_socket(int family, int type) noexcept {
        errno = EMFILE;
        return made++ == 0 ? netio::linux_sys::open_socket(family, type) : -1;
    }
};
/// Somebody who asks for no lock puts a file of their own there, after a call of ours.
struct local_thief_sys : netio::linux_sys {
    static inline bool after_removal = false;
    static void steal(const char* path) noexcept {
        ::unlink(path);
        std::fclose(std::fopen(path, "w"));
    }
    static int remove(const char* path) noexcept {
        const int got = netio::linux_sys::remove(path);
        if (after_removal) {
            steal(path);
        }
        return got;
    }
    static int bind(int what, const sockaddr* where, socklen_t size) noexcept {
        const int got = netio::linux_sys::bind(what, where, size);
        if (!after_removal && got == 0) {
            steal(reinterpret_cast<const sockaddr_un*>(where)->sun_path);
        }
        return got;
    }
};
struct local_unlocked_sys : netio::linux_sys {
    static int lock(int) noexcept {
        errno = EBADF;  // as on NFS
        return -1;
    }
};
/// As on systems that have no mode to set before the bind.
struct local_late_mode_sys : netio::linux_sys {
    static inline int mode_at_listen = -1;
    static inline std::string path;
    static int set_mode_of_socket(int, mode_t) noexcept {
        errno = EINVAL;
        return -1;
    }
    static int listen(int what, int backlog) noexcept {
        struct stat found {};
        ::lstat(path.c_str(), &found);
        mode_at_listen = static_cast<int>(found.st_mode & 0777U);
        return netio::linux_sys::listen(what, backlog);
    }
};

/// A server that listens on one path.
template <class Backend>
struct local_server : service_world<Backend> {
    explicit local_server(const std::string& path, netio::listen_options how = {}) {
        how.unix_path = path;
        this->listen(how);
        service_echo(this->handler);
    }
};

}  // namespace

TEST_CASE("local sockets have the mode asked for, whatever the umask is") {
    local_folder folder;
    for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{0777}}) {
        for (const std::uint32_t mode : {0600U, 0660U, 0666U, 0777U, 0U}) {
            CAPTURE(mask);
            CAPTURE(mode);
            netio::listen_options how;
            how.unix_mode = mode;
            const mode_t before = ::umask(mask);
            const local_listener made = local_listen(folder.file("s"), how);
            ::umask(before);
            REQUIRE(made);
            CHECK(local_mode(folder.file("s")) == mode);
        }
    }
    const local_listener made = local_listen(folder.file("s"));
    CHECK(local_mode(folder.file("s")) == 0600);  // the owner alone, if nothing is said
    netio::listen_options wrong;
    wrong.unix_mode = 01000;
    CHECK(local_listen(folder.file("t"), wrong).status.why == error::option_invalid);
    CHECK(folder.names().size() == 1);
}

TEST_CASE("local sockets have their mode before anybody can connect, also where it comes late") {
    local_folder folder;
    local_late_mode_sys::path = folder.file("s");
    netio::listen_options how;
    how.unix_mode = 0640;
    const local_listener made =
        sockets::listen_stream<local_late_mode_sys>({{}, local_late_mode_sys::path}, how);
    REQUIRE(made);
    CHECK(local_late_mode_sys::mode_at_listen == 0640);
    // The same by Linux's way: the file is never wider, not even between bind and listen.
    unsigned seen = 0;
    local_sys::plan(0, 0);
    local_sys::before_listen = [&] { seen = local_mode(folder.file("t")); };
    const mode_t before = ::umask(0);
    const local_listener other = sockets::listen_stream<local_sys>({{}, folder.file("t")}, {});
    ::umask(before);
    REQUIRE(other);
    CHECK(seen == 0600);
    CHECK(local_sys::made == 2);  // a look and the listen: the mode was right from the bind on
}

TEST_CASE("a stranger can't connect to a local socket of mode 0600, but to one of 0666") {
    if (!local_can_be_others("a connect of another user")) {
        return;
    }
    local_folder folder;
    REQUIRE(::chmod(folder.path().c_str(), 0711) == 0);
    for (const std::uint32_t mode : {0600U, 0666U}) {
        netio::listen_options how;
        how.unix_mode = mode;
        const local_listener made = local_listen(folder.file("s"), how);
        REQUIRE(made);
        const int code = local_in_child([&] {
            return local_become_stranger() ? local_connect(folder.file("s")) : 255;
        });
        CHECK(code == (mode == 0600U ? EACCES : 0));
    }
}

TEST_CASE("a stale local socket is replaced, a living one and any other file are not touched") {
    local_folder folder;
    const std::string path = folder.file("s");
    local_leave_stale(path);
    {
        const local_listener made = local_listen(path);
        REQUIRE(made);
        CHECK(local_connect(path) == 0);
        const std::uint64_t inode = local_inode(path);
        const os_handle second = local_listen(path);  // it lives
        CHECK(second.status.why == error::address_in_use);
        CHECK(second.status.os_code == EADDRINUSE);
        CHECK(local_inode(path) == inode);
        CHECK(local_connect(path) == 0);
    }
    CHECK(folder.names().empty());
    local_leave_stale(path);
    netio::listen_options how;
    how.unix_stale_removal = false;
    CHECK(local_listen(path, how).status.why == error::address_in_use);
    CHECK(local_connect(path) == ECONNREFUSED);  // still the old one
    ::unlink(path.c_str());

    const int datagrams = local_bound(path, SOCK_DGRAM);  // somebody's, though no stream's
    CHECK(local_listen(path).status.why == error::address_in_use);
    CHECK(local_exists(path));
    ::close(datagrams);
    ::unlink(path.c_str());
    std::fclose(std::fopen(path.c_str(), "w"));
    CHECK(local_listen(path).status.why == error::address_in_use);
    CHECK(local_exists(path));
    ::unlink(path.c_str());
    local_leave_stale(folder.file("target"));
    REQUIRE(::symlink(folder.file("target").c_str(), path.c_str()) == 0);
    CHECK(local_listen(path).status.why == error::address_in_use);
    CHECK(folder.names().size() == 2);  // neither the link nor what it leads to
}

TEST_CASE("a local socket whose queue is full is not stale") {
    local_folder folder;
    const std::string path = folder.file("s");
    netio::listen_options how;
    how.backlog = 1;
    const local_listener made = local_listen(path, how);
    REQUIRE(made);
    std::vector<int> waiting;
    const sockaddr_un where = local_address(path);
    int failed = 0;
    while (failed == 0 && waiting.size() < 100) {
        const int one = plain::open(AF_UNIX, SOCK_STREAM);
        plain::set_non_blocking(one);
        failed = ::connect(one, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0
                     ? 0
                     : errno;
        waiting.push_back(one);
    }
    CHECK(failed == EAGAIN);
    CHECK(local_listen(path).status.why == error::address_in_use);
    CHECK(local_exists(path));
    for (const int each : waiting) {
        ::close(each);
    }
}

TEST_CASE("of two starts that find a stale local socket one wins, and keeps its file") {
    local_folder folder;
    const std::string path = folder.file("s");
    const std::size_t handles = plain::open_handles();
    {
        local_leave_stale(path);
        local_sys::plan(0, 0);
        // The second looks in the moment between the first's look and its removal.
        os_handle second;
        local_sys::after_probe = [&] {
            second = sockets::listen_stream<local_hasty_sys>({{}, path}, {});
        };
        const local_listener first = sockets::listen_stream<local_sys>({{}, path}, {});
        const local_listener kept = second;
        CHECK(first);
        CHECK(second.status.why == error::address_in_use);
        CHECK(local_connect(path) == 0);
    }
    {
        // And between the first's bind and its listen, while it refuses every connect.
        os_handle second;
        local_sys::before_listen = [&] {
            CHECK(local_connect(path) == ECONNREFUSED);
            second = sockets::listen_stream<local_hasty_sys>({{}, path}, {});
        };
        const local_listener first = sockets::listen_stream<local_sys>({{}, path}, {});
        const local_listener kept = second;
        CHECK(first);
        CHECK(second.status.why == error::address_in_use);
        CHECK(local_connect(path) == 0);
    }
    CHECK(plain::open_handles() == handles);
    CHECK(folder.names().empty());
}

TEST_CASE("of many processes that find a stale local socket exactly one wins") {
    local_folder folder;
    const std::string path = folder.file("s");
    for (int round = 0; round < 5; ++round) {
        local_leave_stale(path);
        int start[2];
        int done[2];
        REQUIRE(::pipe(start) == 0);
        REQUIRE(::pipe(done) == 0);
        std::vector<pid_t> children;
        for (int at = 0; at < 6; ++at) {
            const pid_t child = ::fork();
            if (child == 0) {
                ::close(start[1]);
                ::close(done[1]);
                char go = 0;
                static_cast<void>(::read(start[0], &go, 1));
                const os_handle made = local_listen(path);
                // The winner stays until all have had their answer.
                static_cast<void>(!made || ::read(done[0], &go, 1));
                ::_exit(made ? 0 : made.status.why == error::address_in_use ? 1 : 2);
            }
            children.push_back(child);
        }
        ::close(start[1]);  // all at once
        int wins = 0;
        int losses = 0;
        const auto reap = [&](int count) {
            for (int at = 0; at < count; ++at) {
                int status = -1;
                ::wait(&status);
                wins += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
                losses += WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 1 : 0;
            }
        };
        reap(5);
        CHECK(losses == 5);
        CHECK(local_connect(path) == 0);  // the name leads to the one that lives
        ::close(done[1]);
        reap(1);
        CHECK(wins == 1);
        ::close(start[0]);
        ::close(done[0]);
        ::unlink(path.c_str());  // the winner ended without a word
    }
}

TEST_CASE("without a lock on the folder a local socket is made, but nothing is replaced") {
    local_folder folder;
    const std::string path = folder.file("s");
    {
        const local_listener made = sockets::listen_stream<local_unlocked_sys>({{}, path}, {});
        REQUIRE(made);
        CHECK(local_connect(path) == 0);
    }
    local_leave_stale(path);
    CHECK(sockets::listen_stream<local_unlocked_sys>({{}, path}, {}).status.why ==
          error::address_in_use);
    CHECK(local_exists(path));
}

TEST_CASE("a start waits for another one in its folder, but not for ever") {
    local_folder folder;
    const std::string path = folder.file("s");
    const int held = ::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::flock(held, LOCK_EX) == 0);
    CHECK(sockets::listen_stream<local_hasty_sys>({{}, path}, {}).status.why ==
          error::address_in_use);
    CHECK(folder.names().empty());
    local_patient_sys::held = held;
    const local_listener made = sockets::listen_stream<local_patient_sys>({{}, path}, {});
    CHECK(made);
    CHECK(local_patient_sys::pauses == 1);
}

TEST_CASE("a local socket of a name alone is one in the folder where the process is") {
    local_folder folder;
    std::string before(4096, '\0');
    REQUIRE(::getcwd(before.data(), before.size()) != nullptr);
    REQUIRE(::chdir(folder.path().c_str()) == 0);
    local_leave_stale("s");
    {
        const local_listener made = local_listen("s");
        CHECK(made);
        CHECK(local_connect(folder.file("s")) == 0);
        CHECK(local_listen("s").status.why == error::address_in_use);
    }
    CHECK(folder.names().empty());
    const int held = ::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::flock(held, LOCK_EX) == 0);  // and that one is the folder that it locks
    CHECK(sockets::listen_stream<local_hasty_sys>({{}, "s"}, {}).status.why ==
          error::address_in_use);
    ::close(held);
    CHECK(::chdir(before.c_str()) == 0);
}

TEST_CASE("what somebody puts there in the midst of a start is theirs, and stays") {
    local_folder folder;
    const std::string path = folder.file("s");
    const std::size_t handles = plain::open_handles();
    for (const bool after_removal : {false, true}) {
        CAPTURE(after_removal);
        local_thief_sys::after_removal = after_removal;
        local_leave_stale(path);
        const os_handle made = sockets::listen_stream<local_thief_sys>({{}, path}, {});
        CHECK(made.status.why == error::address_in_use);
        CHECK(local_exists(path));
        ::unlink(path.c_str());
    }
    // Whether it lives can't be said without a socket to ask with.
    local_leave_stale(path);
    CHECK(sockets::listen_stream<local_probeless_sys>({{}, path}, {}).status.why ==
          error::address_in_use);
    CHECK(local_exists(path));
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("a local socket that can't be made leaves no file and no handle") {
    local_folder folder;
    const std::string path = folder.file("s");
    const std::size_t handles = plain::open_handles();
    netio::listen_options how;
    how.unix_mode = 0666;
    const mode_t before = ::umask(077);  // so the mode has to be set again
    for (const bool stale : {false, true}) {
        // With a stale one: look, look again, remove, look, mode, listen.
        const int calls = stale ? 6 : 3;
        for (int nth = 1; nth <= calls + 1; ++nth) {
            CAPTURE(stale);
            CAPTURE(nth);
            if (stale) {
                local_leave_stale(path);
            }
            local_sys::plan(nth, ENOMEM);
            local_listener made = sockets::listen_stream<local_sys>({{}, path}, how);
            CHECK(static_cast<bool>(made) == (nth == calls + 1));
            if (!made) {
                CHECK(made.handle == netio::no_handle);
                const bool replaced = !stale || nth > 3;
                // A file that could not be looked at is nobody's to remove.
                CHECK(local_exists(path) == (!replaced || nth == (stale ? 4 : 1)));
            }
            made.end();
            ::unlink(path.c_str());
            CHECK(plain::open_handles() == handles);
        }
    }
    ::umask(before);
}

TEST_CASE("a local socket's file goes with its server, by stop, drain and destruction") {
    local_folder folder;
    const std::string path = folder.file("s");
    local_on_each_backend([&]<class B>(B*) {
        CAPTURE(B::name);
        for (const int how : {0, 1, 2}) {
            CAPTURE(how);
            local_server<B> w(path);
            client_socket client(path);
            CHECK(w.exchange(client, "by path") == "by path");
            CHECK(local_mode(path) == 0600);
            if (how == 0) {
                w.server().stop();
            } else if (how == 1) {
                w.server().drain(1000);
                client.close();
            }
            if (how < 2) {
                for (int turn = 0; turn < service_turns_max && w.server().run_once(1); ++turn) {
                }
                CHECK_FALSE(local_exists(path));
            }
        }
        CHECK(folder.names().empty());
    });
}

TEST_CASE("a local socket's file stays until the last worker lets go of it") {
    local_folder folder;
    const std::string path = folder.file("s");
    netio::limits two = service_limits;
    two.workers_max = 2;
    service_world<netio::epoll> w(two);
    netio::listen_options how;
    how.unix_path = path;
    w.listen(how);
    w.server().run_once(0, 0);
    w.server().run_once(0, 1);
    w.server().drain(1000);
    while (w.server().run_once(0, 0)) {
    }
    CHECK(local_exists(path));
    while (w.server().run_once(0, 1)) {
    }
    CHECK_FALSE(local_exists(path));
}

TEST_CASE("a server that never ran takes its local socket's file away, too") {
    local_folder folder;
    scripted handler;
    fresh_memory memory(netio::bytes_needed<netio::epoll>(service_limits));
    {
        netio::server<scripted, netio::epoll> never(
            netio::storage_view{memory.all(), service_limits}, handler);
        const std::string path = folder.file("s");
        CHECK(never.listen({.unix_path = path}) == error::none);
        CHECK(folder.names().size() == 1);
    }
    CHECK(folder.names().empty());
}

TEST_CASE("another's file in place of a local socket's is not removed") {
    local_folder folder;
    const std::string path = folder.file("s");
    {
        local_server<netio::epoll> w(path);
        ::unlink(path.c_str());
        local_leave_stale(path);  // another inode: ours is kept by the open socket
    }
    CHECK(local_exists(path));
    ::unlink(path.c_str());
    {
        local_server<netio::epoll> w(path);
        ::unlink(path.c_str());
        std::fclose(std::fopen(path.c_str(), "w"));
    }
    CHECK(local_exists(path));
    ::unlink(path.c_str());
    local_listener made = local_listen(path);
    REQUIRE(made);
    // A forked child has the same socket and must not take its name away.
    CHECK(local_in_child([&] {
              netio::epoll::remove_file_of(made.handle, made.file);
              return 0;
          }) == 0);
    CHECK(local_exists(path));
    netio::socket_file other = made.file;
    ++other.device;
    netio::epoll::remove_file_of(made.handle, other);
    std::fclose(std::fopen(folder.file("t").c_str(), "w"));
    other = made.file;
    other.inode = local_inode(folder.file("t"));
    REQUIRE(::rename(path.c_str(), folder.file("u").c_str()) == 0);
    REQUIRE(::rename(folder.file("t").c_str(), path.c_str()) == 0);
    netio::epoll::remove_file_of(made.handle, other);  // no socket, whatever somebody told of it
    CHECK(local_exists(path));
    REQUIRE(::rename(folder.file("u").c_str(), path.c_str()) == 0);
    netio::epoll::remove_file_of(made.handle, other);
    netio::epoll::remove_file_of(made.handle, {});
    CHECK(local_exists(path));
    made.end();
    CHECK_FALSE(local_exists(path));
}

TEST_CASE("a peer of another user than required is refused before a byte is read, and told") {
    local_folder folder;
    const std::string path = folder.file("s");
    local_on_each_backend([&]<class B>(B*) {
        CAPTURE(B::name);
        netio::listen_options how;
        how.unix_required_uid = static_cast<std::uint32_t>(::geteuid()) + 1;
        local_server<B> w(path, how);
        client_socket client(path);
        REQUIRE(client.connected());
        client.send("never read");
        CHECK(w.until([&] { return client.over(); }));
        CHECK(w.handler.log.empty());
        CHECK(w.server().stats().counts.refused == 1);
        CHECK(w.server().stats().counts.bytes_in == 0);
        REQUIRE(w.events.count(netio::server_event_kind::refused) == 1);
        for (const netio::server_event& each : w.events.all) {
            if (each.kind == netio::server_event_kind::refused) {
                CHECK(each.reason.cause() == netio::refusal_cause::peer_uid);
                CHECK(each.listener == 0);
            }
        }
    });
    char line[64];
    CHECK(netio::describe({netio::close_kind::refused,
                           static_cast<std::uint16_t>(netio::refusal_cause::peer_uid)},
                          line) == "refused(peer_uid)");
}

TEST_CASE("the required user is let in, and another one is not") {
    local_folder folder;
    const std::string path = folder.file("s");
    netio::listen_options how;
    how.unix_required_uid = static_cast<std::uint32_t>(::geteuid());
    how.unix_mode = 0666;
    REQUIRE(::chmod(folder.path().c_str(), 0711) == 0);
    local_server<netio::epoll> w(path, how);
    client_socket client(path);
    CHECK(w.exchange(client, "own") == "own");
    CHECK(w.server().stats().counts.refused == 0);
    client.close();
    CHECK(w.until_closed(1));
    if (!local_can_be_others("a peer of another user")) {
        return;
    }
    // The mode lets it connect; the kernel answers before the server runs.
    const int code = local_in_child([&] {
        return local_become_stranger() ? local_connect(path) : 255;
    });
    CHECK(code == 0);
    CHECK(w.until([&] { return w.server().stats().counts.refused == 1; }));
    CHECK(w.handler.opened == 1);
}

TEST_CASE("a local socket tells process, user and group of its peer") {
    const std::string name = client_os::unix_name("credentials");
    local_server<netio::epoll> w(name);
    netio::peer_credentials told;
    std::uint32_t process = 0;
    w.handler.open = [&](netio::connection& c) {
        told = c.peer_credentials();
        process = c.peer_process_id();
    };
    client_socket client(name);
    CHECK(w.exchange(client, "x") == "x");
    CHECK(told.process_id == static_cast<std::uint32_t>(::getpid()));
    CHECK(told.user_id == static_cast<std::uint32_t>(::geteuid()));
    CHECK(told.group_id == static_cast<std::uint32_t>(::getegid()));
    CHECK((told.has_process() && told.has_user() && told.has_group()));
    CHECK(process == told.process_id);
    if (local_can_be_others("the credentials of another user")) {
        pid_t child = ::fork();
        if (child == 0) {
            const client_socket other = local_become_stranger() ? client_socket(name)
                                                                : client_socket();
            ::_exit(other.connected() ? 0 : 1);
        }
        int status = -1;
        ::waitpid(child, &status, 0);  // gone before it is accepted: as it was when it connected
        CHECK(status == 0);
        CHECK(w.until([&] { return w.handler.opened == 2; }));
        CHECK(told.process_id == static_cast<std::uint32_t>(child));
        CHECK(told.user_id == local_stranger);
        CHECK(told.group_id == local_stranger);
    }
}

TEST_CASE("a TCP peer has no credentials, and none are told after the end") {
    service_world<netio::epoll> w;
    service_echo(w.handler);
    const netio::endpoint at = w.listen();
    netio::peer_credentials told{1, 1, 1};
    w.handler.open = [&](netio::connection& c) { told = c.peer_credentials(); };
    client_socket client(at);
    CHECK(w.exchange(client, "x") == "x");
    CHECK(told == netio::peer_credentials{});
}

TEST_CASE("wishes about local sockets that can't be met are refused by name") {
    local_folder folder;
    service_world<netio::epoll> w;
    const auto refused = [&](netio::listen_options how, const char* field, error why) {
        CHECK(w.server().listen(how) == why);
        CHECK(std::string_view(w.server().failure().subject) == field);
    };
    refused({.unix_path = "@x", .unix_mode = 0666}, "unix_mode", error::not_supported);
    refused({.address = "127.0.0.1", .unix_mode = 0666}, "unix_mode", error::not_supported);
    refused({.unix_path = "/x", .unix_mode = 0x10000}, "unix_mode", error::option_invalid);
    refused({.address = "127.0.0.1", .unix_required_uid = 0}, "unix_required_uid",
            error::not_supported);
}

#endif
