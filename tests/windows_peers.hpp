// The system's calls as Windows answers them, on Wine too: a backend under test makes them.
#ifndef NETIO_TESTS_WINDOWS_PEERS_HPP
#define NETIO_TESTS_WINDOWS_PEERS_HPP

#include "netio.hpp"

#if NETIO_HAS_IOCP

#include "tests/sockets.hpp"

#include <atomic>
#include <type_traits>

namespace netio_test {

/// Which port is at the other end of a socket: nobody can ask any more once it was reset. Noted
/// where it is told first, for as long as the socket is open. Any thread; no allocation.
class windows_peers {
public:
    /// 0 is "not known".
    static std::uint16_t of(SOCKET which) noexcept {
        const place* const at = find(which);
        return at == nullptr ? std::uint16_t{0} : at->port.load();
    }
    static void note(SOCKET which, const void* address) noexcept {
        sockaddr_in where;  // IPv6 has its port at the same place
        std::memcpy(&where, address, sizeof(where));
        place* const at = find(which);
        if (at != nullptr && (where.sin_family == AF_INET || where.sin_family == AF_INET6)) {
            at->port = ntohs(where.sin_port);
        }
    }
    /// `which` is to be the client whose address will be at `addresses`.
    static void expect(SOCKET which, const void* addresses) noexcept {
        forget(which);
        if (place* const at = find(which)) {
            at->addresses = addresses;
        }
    }
    static void came(const void* addresses, const void* address) noexcept {
        for (std::size_t at = 0; at < places_max; ++at) {
            const void* wanted = addresses;
            if (places_[at].addresses.compare_exchange_strong(wanted, nullptr)) {
                note(static_cast<SOCKET>(at * handle_step), address);
            }
        }
    }
    static void forget(SOCKET which) noexcept {
        if (place* const at = find(which)) {
            at->port = 0;
            at->addresses = nullptr;
        }
    }

private:
    struct place {
        std::atomic<std::uint16_t> port;
        std::atomic<const void*> addresses;
    };
    static constexpr std::size_t handle_step = 4;
    static constexpr std::size_t places_max = 8192;  // of a later one nothing is known

    static place* find(SOCKET which) noexcept {
        return which / handle_step < places_max ? &places_[which / handle_step] : nullptr;
    }

    static inline place places_[places_max];
};

/// A reset is told as Windows tells it: see `plain::told_by_wine`. It asks for the connection by
/// both of its ports, since another may linger on ours, even on a listener's that is new: at
/// another address of this machine each port is a different one.
struct told_windows_sys : netio::windows_sys {
    using real = netio::windows_sys;

    static int receive(socket_type from, void* into, int count) noexcept {
        return plain::told_by_wine(from, real::receive(from, into, count),
                                   windows_peers::of(from));
    }
    static socket_type open_socket(int family, int type) noexcept {
        const socket_type made = real::open_socket(family, type);
        windows_peers::forget(made);
        return made;
    }
    static int close_socket(socket_type what) noexcept {
        windows_peers::forget(what);
        return real::close_socket(what);
    }
    template <class Function>
    static int extension(socket_type of, netio::detail::windows::guid which,
                         Function& out) noexcept {
        const int code = real::extension(of, which, out);
        if constexpr (std::is_same_v<Function, netio::detail::windows::accept_addresses>) {
            if (code == 0) {
                addresses_.store(out);
                out = told_addresses;
            }
        }
        return code;
    }
    static int accept_overlapped(netio::detail::windows::accept_ex how, socket_type listener,
                                 socket_type into, void* addresses, std::uint32_t address_bytes,
                                 overlapped* op) noexcept {
        windows_peers::expect(into, addresses);
        return real::accept_overlapped(how, listener, into, addresses, address_bytes, op);
    }
    static int connect_overlapped(netio::detail::windows::connect_ex how, socket_type what,
                                  const void* where, int size, overlapped* op) noexcept {
        windows_peers::note(what, where);
        return real::connect_overlapped(how, what, where, size, op);
    }
    /// The user's own sockets are first seen here.
    static void* port(void* what, void* to, std::uint32_t key) noexcept {
        sockaddr_in6 where{};
        int size = sizeof(where);
        const auto socket = reinterpret_cast<SOCKET>(what);
        if (to != nullptr &&
            ::getpeername(socket, reinterpret_cast<sockaddr*>(&where), &size) == 0) {
            windows_peers::note(socket, &where);
        }
        return real::port(what, to, key);
    }

private:
    static void __stdcall told_addresses(void* from, unsigned long data_bytes,
                                         unsigned long local_max, unsigned long remote_max,
                                         void** local, int* local_bytes, void** remote,
                                         int* remote_bytes) {
        addresses_.load()(from, data_bytes, local_max, remote_max, local, local_bytes, remote,
                          remote_bytes);
        if (*remote != nullptr && *remote_bytes >= static_cast<int>(sizeof(sockaddr_in))) {
            windows_peers::came(from, *remote);
        }
    }

    static inline std::atomic<netio::detail::windows::accept_addresses> addresses_;
};

}  // namespace netio_test

#endif

#endif
