// floor 6 · pass_handle.hpp · open descriptors to another process, over a unix stream (SCM_RIGHTS)
#ifndef NETIO_PASS_HANDLE_HPP
#define NETIO_PASS_HANDLE_HPP

#include "platform/socket_posix.hpp"

#if NETIO_HAS_POSIX

NETIO_BEGIN

/// The system calls that carry descriptors; they never wait, whatever the socket's own mode is.
struct pass_sys : posix_sys {
    static ssize_t send_control(int to, const msghdr* what) noexcept {
        return ::sendmsg(to, what, send_flags | MSG_DONTWAIT);
    }
#if defined(MSG_CMSG_CLOEXEC)
    static ssize_t receive_control(int from, msghdr* what) noexcept {
        return ::recvmsg(from, what, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    }
    static int set_close_on_exec(int) noexcept { return 0; }  // each has it from the start
#else
    static ssize_t receive_control(int from, msghdr* what) noexcept {
        return ::recvmsg(from, what, MSG_DONTWAIT);
    }
    static int set_close_on_exec(int of) noexcept { return ::fcntl(of, F_SETFD, FD_CLOEXEC); }
#endif
};

/// What became of `pass_handle`. With a byte sent the descriptor is sent, too.
struct passed_handle {
    std::uint32_t byte_count = 0;
    os_status status{};
    constexpr explicit operator bool() const noexcept { return status.why == error::none; }
};

/// What `receive_handle` found.
struct received_handle {
    socket_handle handle = no_handle;  ///< the caller's own; no_handle: none came with the bytes
    std::uint32_t byte_count = 0;      ///< 0 without an error: nothing is there yet, or the end
    bool ended = false;
    os_status status{};
    constexpr explicit operator bool() const noexcept { return status.why == error::none; }
};

namespace detail {

/// The most that Linux takes with one message (SCM_MAX_FD); other systems take fewer.
inline constexpr std::size_t passed_most = 253;

/// Room for their control message, and for one or two that nobody asked for.
struct alignas(cmsghdr) control_room {
    unsigned char memory[2048];
};

/// Sends bytes, and with the first of them these descriptors, at most `passed_most`. Never waits.
template <class Sys>
passed_handle send_with_handles(int via, std::span<const socket_handle> handles,
                                bytes with) noexcept {
    if (with.empty() || handles.size() > passed_most) {  // descriptors travel with bytes only
        return {0, {error::option_invalid, 0}};
    }
    iovec piece{const_cast<std::byte*>(with.data()), clipped(with.size())};
    msghdr what{};
    what.msg_iov = &piece;
    what.msg_iovlen = 1;
    control_room room{};
    if (!handles.empty()) {
        const auto count = static_cast<std::uint32_t>(handles.size());
        what.msg_control = room.memory;
        what.msg_controllen = static_cast<decltype(what.msg_controllen)>(
            CMSG_SPACE(sizeof(int) * count));
        NETIO_ASSERT(what.msg_controllen <= sizeof(room.memory));
        cmsghdr* const head = CMSG_FIRSTHDR(&what);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = static_cast<decltype(head->cmsg_len)>(CMSG_LEN(sizeof(int) * count));
        for (std::uint32_t at = 0; at < count; ++at) {
            const int each = static_cast<int>(handles[at]);
            std::memcpy(CMSG_DATA(head) + at * sizeof(int), &each, sizeof(int));
        }
    }
    ssize_t sent = 0;
    do {
        sent = Sys::send_control(via, &what);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        const int code = errno;
        return {0, code == EAGAIN || code == EWOULDBLOCK ? os_status{error::full, code}
                                                         : status_of(code)};
    }
    return {static_cast<std::uint32_t>(sent), {}};
}

/// Descriptors that came and are not taken yet: closed at the end.
template <class Sys>
class handle_catch {
public:
    handle_catch() noexcept = default;
    handle_catch(const handle_catch&) = delete;
    handle_catch& operator=(const handle_catch&) = delete;
    ~handle_catch() { close_all(); }

    std::uint32_t count() const noexcept { return count_; }
    int operator[](std::uint32_t at) const noexcept { return handles_[at]; }
    void close_all() noexcept {
        for (; count_ != 0; --count_) {
            Sys::close(handles_[count_ - 1]);
        }
    }
    /// The caller has them now.
    void let_go() noexcept { count_ = 0; }
    /// False: more than any sender may have sent. It is closed.
    bool add(int handle) noexcept {
        if (count_ == passed_most) {
            Sys::close(handle);
            return false;
        }
        handles_[count_++] = handle;
        return true;
    }

private:
    int handles_[passed_most];
    std::uint32_t count_ = 0;
};

/// The next part of a control message. musl's macro compares numbers of unlike signs.
inline cmsghdr* next_control(msghdr& of, cmsghdr* at) noexcept {
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif
    return CMSG_NXTHDR(&of, at);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
}

/// Everything in a control message that is a descriptor, also those nobody asked for.
template <class Sys>
bool catch_handles(msghdr& from, handle_catch<Sys>& into) noexcept {
    bool all = true;
    for (cmsghdr* at = CMSG_FIRSTHDR(&from); at != nullptr; at = next_control(from, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_len < CMSG_LEN(0)) {
            continue;
        }
        const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        bool wanted = at->cmsg_type == SCM_RIGHTS;
        bool carries = wanted;
#if defined(__linux__)
        carries |= at->cmsg_type == 4;  // SCM_PIDFD, of a socket with SO_PASSPIDFD
#endif
        for (std::size_t each = 0; carries && each < count; ++each) {
            int handle = -1;
            std::memcpy(&handle, CMSG_DATA(at) + each * sizeof(int), sizeof(int));
            if (!wanted) {
                Sys::close(handle);
            } else {
                all = into.add(handle) && Sys::set_close_on_exec(handle) == 0 && all;
            }
        }
    }
    return all;
}

/// Takes bytes and what came with them. On any error `into` has none of this call's.
template <class Sys>
received_handle receive_with_handles(int via, mutable_bytes room,
                                     handle_catch<Sys>& into) noexcept {
    received_handle out;
    if (room.empty()) {
        out.status.why = error::option_invalid;
        return out;
    }
    iovec piece{room.data(), clipped(room.size())};
    control_room control{};
    msghdr what{};
    ssize_t got = 0;
    do {
        what = {};
        what.msg_iov = &piece;
        what.msg_iovlen = 1;
        what.msg_control = control.memory;
        what.msg_controllen = sizeof(control.memory);
        got = Sys::receive_control(via, &what);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        const int code = errno;
        out.status = code == EAGAIN || code == EWOULDBLOCK ? os_status{} : status_of(code);
        return out;
    }
    out.byte_count = static_cast<std::uint32_t>(got);
    out.ended = got == 0;
    const bool all = catch_handles<Sys>(what, into);
    // Cut: the room is for as many as can be sent, so this process has no descriptor left.
    if (!all || (what.msg_flags & MSG_CTRUNC) != 0) {
        into.close_all();
        out.status.why = error::descriptors_empty;
    }
    return out;
}

}  // namespace detail

/// Sends `with`, at least one byte, over a connected unix stream, and with its first byte an open
/// descriptor of any kind; this process keeps its own. Never waits. Fewer bytes than given may go:
/// the rest needs no descriptor any more. error::full: nothing went, try again when it is
/// writable. For a socket that no server has: before `adopt`, or of one's own. Any thread.
/// unix(7), SCM_RIGHTS.
template <class Sys = pass_sys>
passed_handle pass_handle(socket_handle via, socket_handle what, bytes with) noexcept {
    return detail::send_with_handles<Sys>(static_cast<int>(via), {&what, 1}, with);
}

/// Takes what came on a connected unix stream, at most `into.size()` bytes, and the descriptor sent
/// with them: one or none, close-on-exec. Never waits. Whatever else came (more than one, or one
/// that this process has no place for) is closed and an error: error::too_long,
/// error::descriptors_empty. What kind of thing it is, the caller must look at: a peer may send
/// any.
template <class Sys = pass_sys>
received_handle receive_handle(socket_handle via, mutable_bytes into) noexcept {
    detail::handle_catch<Sys> came;
    received_handle out =
        detail::receive_with_handles<Sys>(static_cast<int>(via), into, came);
    if (came.count() > 1) {
        out.status.why = error::too_long;
    } else if (came.count() == 1) {
        out.handle = came[0];
        came.let_go();
    }
    return out;
}

NETIO_END

#endif

#endif
