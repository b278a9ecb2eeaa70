// What tests of local sockets share: a folder of their own, children, plain clients of a path.
#ifndef NETIO_TESTS_LOCAL_FOLDER_HPP
#define NETIO_TESTS_LOCAL_FOLDER_HPP

#include "tests/sockets.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_POSIX

#include <cstdlib>
#include <string>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <vector>

namespace netio_test {

/// A folder of its own, gone with what is in it.
class local_folder {
public:
    local_folder() { REQUIRE(::mkdtemp(path_.data()) != nullptr); }
    local_folder(const local_folder&) = delete;
    local_folder& operator=(const local_folder&) = delete;
    ~local_folder() {
        for (const std::string& each : names()) {
            ::unlink(file(each).c_str());
        }
        ::rmdir(path_.c_str());
    }
    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const { return path_ + "/" + name; }
    /// What lies in it.
    std::vector<std::string> names() const {
        std::vector<std::string> out;
        DIR* const folder = ::opendir(path_.c_str());
        const auto next = [folder] {
#ifdef __GLIBC__
            return ::readdir64(folder);  // on 32 bits the other one fails at long inodes
#else
            return ::readdir(folder);
#endif
        };
        for (auto* at = folder != nullptr ? next() : nullptr; at != nullptr; at = next()) {
            if (at->d_name[0] != '.') {
                out.emplace_back(at->d_name);
            }
        }
        if (folder != nullptr) {
            ::closedir(folder);
        }
        return out;
    }

private:
    std::string path_ = "/tmp/netio-local-XXXXXX";
};

inline bool local_exists(const std::string& path) {
    struct stat found {};
    return ::lstat(path.c_str(), &found) == 0;
}
inline unsigned local_mode(const std::string& path) {
    struct stat found {};
    REQUIRE(::lstat(path.c_str(), &found) == 0);
    return static_cast<unsigned>(found.st_mode) & 07777U;
}
inline std::uint64_t local_inode(const std::string& path) {
    struct stat found {};
    REQUIRE(::lstat(path.c_str(), &found) == 0);
    return found.st_ino;
}
inline sockaddr_un local_address(const std::string& path) {
    sockaddr_un out{};
    out.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof(out.sun_path));
    std::memcpy(out.sun_path, path.data(), path.size());
    return out;
}
/// 0 or the errno of a plain connect; the socket is closed at once.
inline int local_connect(const std::string& path) {
    const sockaddr_un where = local_address(path);
    const int made = plain::open(AF_UNIX, SOCK_STREAM);
    const int failed =
        ::connect(made, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0 ? 0 : errno;
    ::close(made);
    return failed;
}
/// A plain socket that is bound, and no more.
inline int local_bound(const std::string& path, int type = SOCK_STREAM) {
    const sockaddr_un where = local_address(path);
    const int made = plain::open(AF_UNIX, type);
    REQUIRE(::bind(made, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0);
    return made;
}
/// Leaves the file of a socket that nobody listens on.
inline void local_leave_stale(const std::string& path) { ::close(local_bound(path)); }

/// Runs `body` in a child; its exit code.
template <class Body>
int local_in_child(Body body) {
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(body());
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

inline constexpr uid_t local_stranger = 65'534;
inline bool local_become_stranger() {
    return ::setgid(local_stranger) == 0 && ::setuid(local_stranger) == 0;
}
/// Another user is only to be had as root, and where the user namespace has that user.
inline bool local_can_be_others(const std::string& what) {
    static const bool possible =
        ::geteuid() == 0 && local_in_child([] { return local_become_stranger() ? 0 : 1; }) == 0;
    if (!possible) {
        MESSAGE(what << " needs root, and another user to become: skipped");
    }
    return possible;
}

#if NETIO_HAS_EPOLL
/// Calls `body` with a null pointer to each backend of Linux that this kernel offers.
template <class Body>
void local_on_each_backend(Body body) {
    body(static_cast<netio::epoll*>(nullptr));
    body(static_cast<netio::poll*>(nullptr));
#if NETIO_HAS_IO_URING
    if (netio::io_uring::available().offered) {
        body(static_cast<netio::io_uring*>(nullptr));
    }
#endif
}
#endif

}  // namespace netio_test

#endif

#endif
