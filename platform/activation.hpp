// floor 6 · activation.hpp · listening sockets that a service manager made and passed on at exec
#ifndef NETIO_ACTIVATION_HPP
#define NETIO_ACTIVATION_HPP

#include "platform/socket_posix.hpp"

#if NETIO_HAS_POSIX

#include <cstdlib>
#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/vfs.h>
#endif

NETIO_BEGIN

/// What a service manager says in the environment (sd_listen_fds(3)): static for as long as nobody
/// changes it. nullptr: not set.
struct activation_words {
    const char* process = nullptr;     ///< LISTEN_PID
    const char* count = nullptr;       ///< LISTEN_FDS
    const char* names = nullptr;       ///< LISTEN_FDNAMES
    const char* process_fd = nullptr;  ///< LISTEN_PIDFDID

    /// Reads the environment, which no other thread may change meanwhile.
    static activation_words of_environment() noexcept {
        return {std::getenv("LISTEN_PID"), std::getenv("LISTEN_FDS"),
                std::getenv("LISTEN_FDNAMES"), std::getenv("LISTEN_PIDFDID")};
    }
};

/// One of the sockets passed on: the caller's, to adopt or to close.
struct activated_listener {
    socket_handle handle = no_handle;
    std::string_view name{};  ///< "unknown" if none was given; into the words it came from
    endpoint local{};
};

/// How many came; none without a failure: this process was started without, or its parent was the
/// one they were for.
struct activation {
    std::uint32_t count = 0;
    netio::failure failure{};
    constexpr explicit operator bool() const noexcept { return !failure; }
};

/// The most that are taken.
inline constexpr std::uint32_t activated_most = 64;

/// The calls that activation adds.
struct activation_sys : posix_sys {
    /// What tells this process from every other that ever had its number: the inode of its process
    /// descriptor (pidfd_open(2), Linux 6.9). 0: this system has none.
    static std::uint64_t process_inode() noexcept {
#if defined(SYS_pidfd_open)
        constexpr auto process_files = 0x50494446;  // PID_FS_MAGIC; earlier all shared one inode
        const auto opened = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
        struct stat found {};
        struct statfs system {};
        const bool told = opened >= 0 && ::fstat(opened, &found) == 0 &&
                          ::fstatfs(opened, &system) == 0 && system.f_type == process_files;
        if (opened >= 0) {
            ::close(opened);
        }
        return told ? static_cast<std::uint64_t>(found.st_ino) : 0;
#else
        return 0;
#endif
    }
};

namespace detail {

inline constexpr int activated_first = 3;  // SD_LISTEN_FDS_START

/// A plain decimal number of the whole text, at most `most`; -1 if it is none.
inline std::int64_t activation_number(const char* text, std::int64_t most) noexcept {
    std::int64_t out = 0;
    const char* at = text;
    for (; *at >= '0' && *at <= '9'; ++at) {
        const std::int64_t digit = *at - '0';
        if (out > (most - digit) / 10) {
            return -1;
        }
        out = out * 10 + digit;
    }
    return at == text || *at != '\0' ? -1 : out;
}

NETIO_COLD inline activation activation_failed(std::string_view about, error why,
                                               int code = 0) noexcept {
    activation out;
    out.failure.operation = "activation";
    out.failure.code = why;
    out.failure.os_code = code;
    out.failure.os_name = code != 0 ? errno_name(code) : "";
    out.failure.about(about);
    return out;
}
NETIO_COLD inline activation activation_failed(const activated_listener& of, const char* wrong,
                                               error why, int code) noexcept {
    char line[sizeof(failure::subject)];
    line_writer to(line);
    to.put("descriptor ").put(static_cast<std::uint64_t>(of.handle)).put(" (").put(of.name);
    return activation_failed(to.put("): ").put(wrong).finish(), why, code);
}

/// Cuts the next name off; false where there is none left.
inline bool next_activated_name(std::string_view& rest, bool& more,
                                std::string_view& name) noexcept {
    if (!more) {
        return false;
    }
    const std::size_t colon = rest.find(':');
    name = rest.substr(0, colon);
    more = colon != std::string_view::npos;
    rest.remove_prefix(more ? colon + 1 : rest.size());
    return true;
}

/// Names for all of them, as many as there are.
inline bool name_activated(const char* names, std::span<activated_listener> out) noexcept {
    std::string_view rest(names == nullptr ? "" : names);
    bool more = names != nullptr;
    for (activated_listener& each : out) {
        each.name = "unknown";
        if (names != nullptr && !next_activated_name(rest, more, each.name)) {
            return false;
        }
    }
    return !more;
}

/// Looks at each, and changes none.
template <class Sys>
activation verify_activated(std::span<activated_listener> all) noexcept {
    for (activated_listener& each : all) {
        const int of = static_cast<int>(each.handle);
        const listener_facts facts = facts_of_listener<Sys>(of);
        if (!facts) {
            return activation_failed(each, facts.wrong, facts.status.why, facts.status.os_code);
        }
        const int flags = Sys::control(of, F_GETFD, 0);
        if (flags < 0) {
            return activation_failed(each, "", error_of(errno), errno);
        }
        if ((flags & FD_CLOEXEC) != 0) {
            return activation_failed(each, "close-on-exec already", error::stale, 0);
        }
        each.local = facts.local;
    }
    return {};
}

/// Close-on-exec is also the mark that they were taken, so it comes last, and for all or none.
template <class Sys>
activation mark_activated(std::span<const activated_listener> all) noexcept {
    for (std::size_t at = 0; at < 2 * all.size(); ++at) {
        const activated_listener& each = all[at % all.size()];
        const int of = static_cast<int>(each.handle);
        const int flags = at < all.size() ? Sys::control(of, F_GETFL, 0) : 0;
        const int set = flags < 0             ? -1
                        : at < all.size() ? Sys::control(of, F_SETFL, flags | O_NONBLOCK)
                                          : Sys::control(of, F_SETFD, FD_CLOEXEC);
        if (set < 0) {
            const int code = errno;
            for (; at > all.size(); --at) {
                Sys::control(static_cast<int>(all[at - all.size() - 1].handle), F_SETFD, 0);
            }
            return activation_failed(each, "can't be marked", error_of(code), code);
        }
    }
    return {};
}

/// Are the sockets for this process? Words of the parent's, inherited, are for another one.
template <class Sys>
activation activated_for_us(const activation_words& words, bool& ours) noexcept {
    constexpr std::int64_t most = INT64_MAX;
    const std::int64_t process = activation_number(words.process, most);
    if (process <= 0) {
        return activation_failed("LISTEN_PID", error::option_invalid);
    }
    std::int64_t inode = 0;
    if (words.process_fd != nullptr) {
        inode = activation_number(words.process_fd, most);
        if (inode <= 0) {
            return activation_failed("LISTEN_PIDFDID", error::option_invalid);
        }
    }
    ours = process == Sys::process_id();
    if (ours && inode != 0) {
        const std::uint64_t own = Sys::process_inode();
        ours = own == 0 || own == static_cast<std::uint64_t>(inode);  // 0: nothing to compare
    }
    return {};
}

}  // namespace detail

/// Takes the listening sockets that a service manager passed to this process, descriptors 3 and up:
/// sd_listen_fds(3). Every one is looked at before the first is taken: a stream socket of TCP or a
/// unix one, listening, not close-on-exec yet; else none is taken and nothing is changed, and the
/// failure names the descriptor and what is wrong with it. Then all are made non-blocking and
/// close-on-exec, which is also how a second call knows that they were taken: error::stale. At most
/// 64, and no more than `out` has room for. `server::adopt_listener` goes on with them. At the
/// start, before other threads open descriptors.
template <class Sys = activation_sys>
activation take_activated(std::span<activated_listener> out,
                          const activation_words& words =
                              activation_words::of_environment()) noexcept {
    if (words.process == nullptr || words.count == nullptr) {
        return {};
    }
    bool ours = false;
    if (activation checked = detail::activated_for_us<Sys>(words, ours); !checked || !ours) {
        return checked;
    }
    const std::int64_t count = detail::activation_number(words.count, INT_MAX);
    if (count <= 0) {
        return detail::activation_failed("LISTEN_FDS", error::option_invalid);
    }
    const std::uint64_t room = out.size() < activated_most ? out.size() : activated_most;
    if (static_cast<std::uint64_t>(count) > room) {
        activation failed = detail::activation_failed("LISTEN_FDS", error::full);
        failed.failure.needed = static_cast<std::uint64_t>(count);
        failed.failure.given = room;
        return failed;
    }
    const std::span<activated_listener> all = out.first(static_cast<std::size_t>(count));
    for (std::size_t at = 0; at < all.size(); ++at) {
        all[at] = {};
        all[at].handle = detail::activated_first + static_cast<int>(at);
    }
    activation done;
    if (!detail::name_activated(words.names, all)) {
        done = detail::activation_failed("LISTEN_FDNAMES", error::option_invalid);
    }
    if (done) {
        done = detail::verify_activated<Sys>(all);
    }
    if (done) {
        done = detail::mark_activated<Sys>(all);
    }
    if (!done) {
        for (activated_listener& each : all) {
            each = {};  // nobody closes what was not taken
        }
        return done;
    }
    done.count = static_cast<std::uint32_t>(count);
    return done;
}

NETIO_END

#endif

#endif
