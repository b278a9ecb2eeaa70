// floor 4 · socket_file.hpp · the files of unix sockets: their mode, stale ones, the removal
#ifndef NETIO_SOCKET_FILE_HPP
#define NETIO_SOCKET_FILE_HPP

#include "src/local.hpp"

#if NETIO_HAS_POSIX

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

NETIO_BEGIN

/// What lies at a path.
struct file_facts {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint32_t mode = 0;
    bool is_socket() const noexcept { return S_ISSOCK(mode); }
    constexpr bool operator==(const file_facts&) const noexcept = default;
};

/// The system calls on names of local sockets: what the system returned, the reason in errno.
struct socket_file_sys {
    static int look_at(const char* path, file_facts& out) noexcept {
#if defined(__USE_LARGEFILE64)  // of glibc: its plain call fails on 32 bits for a large inode
        struct stat64 found {};
        const int got = ::lstat64(path, &found);
#else
        struct stat found {};
        const int got = ::lstat(path, &found);
#endif
        out.device = static_cast<std::uint64_t>(found.st_dev);
        out.inode = static_cast<std::uint64_t>(found.st_ino);
        out.mode = static_cast<std::uint32_t>(found.st_mode);
        return got;
    }
    static int set_mode_of_socket(int of, mode_t mode) noexcept { return ::fchmod(of, mode); }
    /// Never that of what a symbolic link leads to.
    static int set_mode(const char* path, mode_t mode) noexcept {
        return ::fchmodat(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW);
    }
    static int remove(const char* path) noexcept { return ::unlink(path); }
    static int open_folder(const char* path) noexcept {
        return ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    static int lock(int folder) noexcept { return ::flock(folder, LOCK_EX | LOCK_NB); }
    static void pause_ms(int ms) noexcept { ::poll(nullptr, 0, ms); }
    static int process_id() noexcept { return ::getpid(); }
};

namespace detail {

/// How long a start waits for others that make or replace a socket in the same folder. They hold
/// the lock for a few calls that do not block.
inline constexpr int folder_lock_ms = 1000;

/// Keeps other starts from looking at, removing and making sockets in the folder of `path`
/// meanwhile: a lock on the folder itself, so that no lock file is left behind and nothing has to
/// be held while the socket lives. The system lets go of it when a process dies.
template <class Sys>
class folder_lock {
public:
    explicit folder_lock(const char* path) noexcept {
        char folder[sizeof(sockaddr_un::sun_path) + 1];
        std::size_t count = std::strlen(path);
        while (count != 0 && path[count - 1] != '/') {
            --count;
        }
        NETIO_ASSERT(count < sizeof(folder));
        std::memcpy(folder, path, count);
        if (count == 0) {
            folder[count++] = '.';
        }
        folder[count] = '\0';
        folder_ = Sys::open_folder(folder);
        for (int waited = 0; folder_ >= 0; ++waited) {
            if (Sys::lock(folder_) == 0) {
                held_ = true;
                return;
            }
            if (errno != EWOULDBLOCK && errno != EINTR) {
                return;  // there are file systems without such locks
            }
            if (waited == folder_lock_ms) {
                busy_ = true;
                return;
            }
            Sys::pause_ms(1);
        }
    }
    folder_lock(const folder_lock&) = delete;
    folder_lock& operator=(const folder_lock&) = delete;
    ~folder_lock() {
        if (folder_ >= 0) {
            Sys::close(folder_);
        }
    }
    bool held() const noexcept { return held_; }
    /// Somebody else did not let go of it.
    bool busy() const noexcept { return busy_; }

private:
    int folder_ = -1;
    bool held_ = false;
    bool busy_ = false;
};

inline bool is_file(const file_facts& found, const socket_file& wanted) noexcept {
    return found.is_socket() && found.device == wanted.device && found.inode == wanted.inode;
}

/// Does nobody listen there? Refused is the only answer that says so; whoever does listen sees a
/// client that goes at once.
template <class Sys>
bool is_stale(const sockaddr* where, socklen_t size) noexcept {
    const int probe = Sys::open_socket(AF_UNIX, SOCK_STREAM);
    if (probe < 0) {
        return false;
    }
    const bool refused = Sys::connect(probe, where, size) != 0 && errno == ECONNREFUSED;
    Sys::close(probe);
    return refused;
}

/// Removes the socket that is in the way if nobody listens on it: 0, or why it stays. With the
/// folder locked.
template <class Sys>
int remove_stale(const char* path, const sockaddr* where, socklen_t size) noexcept {
    file_facts found;
    if (Sys::look_at(path, found) != 0) {
        return errno == ENOENT ? 0 : errno;  // it went by itself
    }
    file_facts still;
    if (!found.is_socket() || !is_stale<Sys>(where, size) ||
        Sys::look_at(path, still) != 0 || found != still) {
        return EADDRINUSE;
    }
    return Sys::remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

/// Binds with a file of that mode, replacing a stale one where `replaces` says so: 0 and the file,
/// or an errno and no file of ours is left. The caller listens after it: a socket that does not
/// listen refuses every connect, so nobody gets in before the mode is right.
template <class Sys>
int bind_file(int made, const sockaddr* where, socklen_t size, std::uint32_t mode, bool replaces,
              socket_file& file) noexcept {
    const char* path = reinterpret_cast<const sockaddr_un*>(where)->sun_path;
    // Linux makes the file with this mode less the umask, so that it is never wider; other systems
    // refuse, which the mode set below makes good.
    Sys::set_mode_of_socket(made, static_cast<mode_t>(mode));
    if (Sys::bind(made, where, size) != 0) {
        const int code = errno;
        if (code != EADDRINUSE || !replaces) {
            return code;
        }
        if (const int stays = remove_stale<Sys>(path, where, size); stays != 0) {
            return stays;
        }
        if (Sys::bind(made, where, size) != 0) {
            return errno;
        }
    }
    file_facts found;
    if (Sys::look_at(path, found) != 0) {
        return errno;
    }
    if (!found.is_socket()) {
        return EADDRINUSE;  // somebody without our lock put something else there: theirs
    }
    if ((found.mode & unix_mode_most) != mode &&
        Sys::set_mode(path, static_cast<mode_t>(mode)) != 0) {
        const int code = errno;
        Sys::remove(path);
        return code;
    }
    file.device = found.device;
    file.inode = found.inode;
    file.process_id = static_cast<std::uint32_t>(Sys::process_id());
    return 0;
}

/// Removes the file of an open unix socket if it is the one that its bind made, in this process.
/// A relative name is looked up where the process is now.
template <class Sys>
void remove_file_of(int listener, const socket_file& file) noexcept {
    sockaddr_un where{};
    socklen_t size = sizeof(where);
    if (!file || file.process_id != static_cast<std::uint32_t>(Sys::process_id()) ||
        Sys::getsockname(listener, reinterpret_cast<sockaddr*>(&where), &size) != 0 ||
        where.sun_family != AF_UNIX || where.sun_path[0] == '\0') {
        return;
    }
    char path[sizeof(where.sun_path) + 1] = {};  // a name of full length has no NUL
    std::memcpy(path, where.sun_path, sizeof(where.sun_path));
    file_facts found;
    // It still listens, so no start takes it for stale between the look and the removal.
    if (Sys::look_at(path, found) == 0 && is_file(found, file)) {
        Sys::remove(path);
    }
}

}  // namespace detail

NETIO_END

#endif

#endif
