// A world of real sockets for tests/conformance.hpp: peers are non-blocking sockets of the same
// thread, on loopback ports the system picks. Nothing sleeps; waits are the backend's, bounded.
#ifndef NETIO_TESTS_CONFORMANCE_SOCKETS_HPP
#define NETIO_TESTS_CONFORMANCE_SOCKETS_HPP

#include "tests/conformance.hpp"

#include "tests/sockets.hpp"
#include "tests/windows_peers.hpp"

#include <memory>

#if NETIO_HAS_POSIX
#include <sys/resource.h>
#endif

namespace netio_test {

inline sockaddr_in conformance_sockaddr(const endpoint& of) noexcept {
    return plain::address_of(of);
}

/// One end of a connection that the test owns. Copies share the socket.
class conformance_socket_peer {
public:
    conformance_socket_peer() = default;
    explicit conformance_socket_peer(plain::socket_type socket) : of_(std::make_shared<state>()) {
        of_->socket = socket;
        of_->local = plain::local_of(socket);
        of_->peer_port = plain::peer_port_of(socket);
        plain::set_non_blocking(socket);
    }

    std::size_t send(std::string_view text) {
        const std::int64_t count = plain::send(of_->socket, text);
        return count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    const std::string& arrived() {
        pull();
        return of_->arrived;
    }
    bool ended() {
        pull();
        return of_->ended;
    }
    bool was_reset() {
        pull();
        return of_->reset;
    }
    void shutdown() { plain::end_sending(of_->socket); }
    void reset() {
        plain::reset(of_->socket);
        of_->socket = plain::no_socket;
    }
    void close() {
        plain::close(of_->socket);
        of_->socket = plain::no_socket;
    }
    endpoint local() const { return of_->local; }
    /// Waits for `done` without a backend, at most two seconds.
    template <class Done>
    bool settle(Done done) {
        for (int tries = 0; tries < 2000 && !done(); ++tries) {
            plain::readable(of_->socket, 1);
        }
        return done();
    }

private:
    struct state {
        state() = default;
        state(const state&) = delete;
        state& operator=(const state&) = delete;
        ~state() {
            if (socket != plain::no_socket) {
                plain::close(socket);
            }
        }
        plain::socket_type socket = plain::no_socket;
        endpoint local{};
        std::uint16_t peer_port = 0;
        std::string arrived;
        bool ended = false;
        bool reset = false;
    };

    void pull() {
        char part[65536];
        while (of_ != nullptr && of_->socket != plain::no_socket && !of_->ended && !of_->reset) {
            const std::int64_t count =
                plain::receive(of_->socket, part, sizeof(part), of_->peer_port);
            if (count > 0) {
                of_->arrived.append(part, static_cast<std::size_t>(count));
            } else if (count == 0) {
                of_->ended = true;
            } else {
                of_->reset = plain::failed_by_reset();
                return;
            }
        }
    }

    std::shared_ptr<state> of_;
};

#if NETIO_HAS_IOCP

/// The system's calls, but sockets run out when the test says so: the kernel's table is too large
/// to be filled. And a reset is told as Windows tells it, on Wine too.
struct conformance_windows_sys : told_windows_sys {
    inline static bool used_up = false;
    static socket_type open_socket(int family, int type) noexcept {
        if (used_up) {
            ::WSASetLastError(WSAEMFILE);
            return INVALID_SOCKET;
        }
        return told_windows_sys::open_socket(family, type);
    }
};

/// What only the system knows how to do.
struct conformance_handles {
    static constexpr bool shares_ports = false;
    static constexpr bool may_lack_unix = true;

    void begin() { plain::begin(); }
    void use_up(plain::socket_type) { conformance_windows_sys::used_up = true; }
    void again() { conformance_windows_sys::used_up = false; }
    void end() {}
    static plain::socket_type duplicate(socket_handle handle) {
        WSAPROTOCOL_INFOW about;
        ::WSADuplicateSocketW(static_cast<SOCKET>(handle), ::GetCurrentProcessId(), &about);
        return ::WSASocketW(FROM_PROTOCOL_INFO, FROM_PROTOCOL_INFO, FROM_PROTOCOL_INFO, &about, 0,
                            WSA_FLAG_OVERLAPPED);
    }
    /// Nothing tells whether a socket blocks, so it is tried: this hangs if it does.
    static bool fit(socket_handle handle) {
        const auto socket = static_cast<SOCKET>(handle);
        DWORD flags = 0;
        char one = 0;
        const bool quiet =
            ::recv(socket, &one, 1, MSG_PEEK) < 0 &&
            (plain::failed_by_waiting() ||
             (plain::accept(socket) == INVALID_SOCKET && plain::failed_by_waiting()));
        return ::GetHandleInformation(reinterpret_cast<HANDLE>(socket), &flags) != 0 &&
               (flags & HANDLE_FLAG_INHERIT) == 0 && quiet;
    }
    static void pair(plain::socket_type* both) {
        const SOCKET from = plain::open(SOCK_STREAM);
        plain::bind_loopback(from);
        ::listen(from, 1);
        both[1] = plain::open(SOCK_STREAM);
        plain::connect(both[1], plain::local_of(from));
        both[0] = plain::accept(from);
        plain::set_non_blocking(both[0]);
        plain::close(from);
    }
    std::string unix_path() const {
        return "netio-conformance-" + std::to_string(conformance_process()) + ".socket";
    }
};

#else

struct conformance_handles {
    static constexpr bool shares_ports = true;
    static constexpr bool may_lack_unix = false;

    void begin() {
        ::getrlimit(RLIMIT_NOFILE, &limit_);
        rlimit few = limit_;
        few.rlim_cur = std::min<rlim_t>(few.rlim_cur, descriptors_max);
        ::setrlimit(RLIMIT_NOFILE, &few);
    }
    /// Every number below the limit is used up, not just forbidden: a kernel may have noted the
    /// limit when the accept was started.
    void use_up(plain::socket_type with) {
        for (int each = ::dup(with); each >= 0; each = ::dup(with)) {
            fillers_.push_back(each);
        }
    }
    void again() {
        for (int each : fillers_) {
            ::close(each);
        }
        fillers_.clear();
    }
    void end() { ::setrlimit(RLIMIT_NOFILE, &limit_); }
    static plain::socket_type duplicate(socket_handle handle) {
        return ::dup(static_cast<int>(handle));
    }
    static bool fit(socket_handle handle) {
        const int descriptor = static_cast<int>(handle);
        return (::fcntl(descriptor, F_GETFL) & O_NONBLOCK) != 0 &&
               (::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0;
    }
    static void pair(plain::socket_type* both) {
        ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both);
    }
    std::string unix_path() const {
        return "@netio-conformance-" + std::to_string(conformance_process());
    }

private:
    static constexpr rlim_t descriptors_max = 256;  // so few that a test can use them up
    std::vector<int> fillers_;
    rlimit limit_{};
};

#endif

template <class Backend>
class conformance_socket_world : public conformance_rig<Backend> {
public:
    using backend_type = Backend;
    using suite_world = conformance_socket_world;
    using peer = conformance_socket_peer;
    static constexpr bool counts_heap = true;
    static constexpr std::size_t bulk_bytes = 8 * 1024 * 1024;  // more than any socket holds
    static constexpr bool threads = true;
    static constexpr bool asserts = NETIO_CHECKS >= 1;
    static constexpr bool shares_ports = conformance_handles::shares_ports;
    static constexpr bool may_lack_unix = conformance_handles::may_lack_unix;
    static constexpr const char* suffix = Backend::name;

    conformance_socket_world() {
        system_.begin();
        opened = this->open();
        listener = Backend::listen({loopback_ipv4(0), {}}, {}).handle;
        datagrams = Backend::open_datagram(loopback_ipv4(0), {}).handle;
        outside_ = bound(SOCK_STREAM);
        plain::set_non_blocking(outside_);
        ::listen(outside_, 16);
        udp_ = bound(SOCK_DGRAM);
        plain::set_non_blocking(udp_);
        // A bound socket that does not listen keeps its port, and refuses.
        refusing_ = bound(SOCK_STREAM);
    }
    ~conformance_socket_world() {
        this->close_accepted();
        this->kernel.close();
        if (listener != no_handle) {
            Backend::close_handle(listener, false);
        }
        Backend::close_handle(datagrams, false);
        for (plain::socket_type each :
             {outside_, udp_, refusing_, silent_, queued_[0], queued_[1]}) {
            if (each != plain::no_socket) {
                plain::close(each);
            }
        }
        descriptors_again();
        system_.end();
    }

    peer connect() {
        const plain::socket_type made = plain::open(SOCK_STREAM);
        if (!plain::connect(made, Backend::local_of(listener).value)) {
            plain::close(made);
            return {};
        }
        return peer(made);
    }
    endpoint outside() const { return plain::local_of(outside_); }
    endpoint refusing() const { return plain::local_of(refusing_); }
    /// Where a connect stays without an answer: the accept queue is full, so its SYN is dropped.
    endpoint silent() {
        silent_ = bound(SOCK_STREAM);
        ::listen(silent_, 0);
        for (plain::socket_type& each : queued_) {
            each = plain::open(SOCK_STREAM);
            plain::set_non_blocking(each);
            plain::connect(each, plain::local_of(silent_));
        }
        return plain::local_of(silent_);
    }
    peer outside_peer() {
        plain::readable(outside_, 2000);
        return peer(plain::accept(outside_));
    }
    peer adoptable(socket_handle& handle) {
        plain::socket_type both[2] = {plain::no_socket, plain::no_socket};
        conformance_handles::pair(both);
        handle = static_cast<socket_handle>(both[0]);
        return peer(both[1]);
    }
    /// Non-blocking, not inherited, and no-delay where that is a thing.
    bool handle_fit(socket_handle handle) const {
        return conformance_handles::fit(handle) &&
               plain::no_delay(static_cast<plain::socket_type>(handle));
    }
    peer client_without_descriptors() {
        const peer client = connect();
        system_.use_up(udp_);
        return client;
    }
    /// Closed when the result goes.
    peer duplicate(socket_handle handle) const {
        return peer(conformance_handles::duplicate(handle));
    }
    /// Is our side of the connection to `client` in TIME_WAIT?
    bool lingers(const peer& client) const {
        return plain::lingers(Backend::local_of(listener).value.port, client.local().port)
            .value_or(false);
    }
    void descriptors_again() { system_.again(); }
    /// A handle stays tied to the completion port it was first used with.
    void listener_after_close() {
        if (NETIO_HAS_IOCP) {
            close_listener();
            listener = Backend::listen({loopback_ipv4(0), {}}, {}).handle;
        }
    }
    void close_listener() {
        Backend::close_handle(listener, false);
        listener = no_handle;
    }
    std::string unix_path() const { return system_.unix_path(); }
    endpoint udp_local() const { return plain::local_of(udp_); }
    void udp_send(const std::string& payload) {
        plain::send_to(udp_, payload, Backend::local_of(datagrams).value);
    }
    std::string udp_arrived() {
        char part[2048];
        const std::int64_t count = plain::receive_datagram(udp_, part, sizeof(part));
        return count < 0 ? std::string() : std::string(part, static_cast<std::size_t>(count));
    }

    os_status opened{};
    socket_handle listener = no_handle;
    socket_handle datagrams = no_handle;
    bool accepting = false;

private:
    static plain::socket_type bound(int type) {
        const plain::socket_type made = plain::open(type);
        plain::bind_loopback(made);
        return made;
    }

    conformance_handles system_{};
    plain::socket_type outside_ = plain::no_socket;
    plain::socket_type udp_ = plain::no_socket;
    plain::socket_type refusing_ = plain::no_socket;
    plain::socket_type silent_ = plain::no_socket;
    plain::socket_type queued_[2] = {plain::no_socket, plain::no_socket};
};

}  // namespace netio_test

#endif
