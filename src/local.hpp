// floor 2 · local.hpp · local sockets: who is at the other end, and whose file the name is
#ifndef NETIO_LOCAL_HPP
#define NETIO_LOCAL_HPP

#include "src/error.hpp"

NETIO_BEGIN

/// No user and no group has this number: POSIX keeps it for "none" (chown(2)).
inline constexpr std::uint32_t no_user = 0xFFFFFFFF;

/// The longest mode a file of a local socket can have; see `listen_options::unix_mode`.
inline constexpr std::uint32_t unix_mode_most = 0777;
inline constexpr std::uint32_t unix_mode_default = 0600;

/// Who is at the other end of a unix socket, as it was when it connected, or called listen
/// (unix(7), SO_PEERCRED; getpeereid(3)). Each is told or not: systems differ.
struct peer_credentials {
    std::uint32_t process_id = 0;     ///< 0: not told, or of another process namespace
    std::uint32_t user_id = no_user;  ///< effective; no_user: not told
    std::uint32_t group_id = no_user;

    constexpr bool has_process() const noexcept { return process_id != 0; }
    constexpr bool has_user() const noexcept { return user_id != no_user; }
    constexpr bool has_group() const noexcept { return group_id != no_user; }
    constexpr bool operator==(const peer_credentials&) const noexcept = default;
};

/// The file that a bind made, so that no other one is taken for it. All-zero: no file of ours.
/// While the socket is open the system gives its inode to no other file.
struct socket_file {
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    std::uint32_t process_id = 0;  ///< who made it: a forked child does not remove it
    std::uint32_t unused = 0;

    constexpr explicit operator bool() const noexcept { return inode != 0; }
    constexpr bool operator==(const socket_file&) const noexcept = default;
};

NETIO_END

#endif
