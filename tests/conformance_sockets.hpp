// A world of real sockets for tests/conformance.hpp: peers are non-blocking sockets of the same
// thread, on loopback ports the system picks. Nothing sleeps; waits are the backend's, bounded.
#ifndef NETIO_TESTS_CONFORMANCE_SOCKETS_HPP
#define NETIO_TESTS_CONFORMANCE_SOCKETS_HPP

#include "tests/conformance.hpp"

#include <cerrno>
#include <memory>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

namespace netio_test {

inline sockaddr_in conformance_sockaddr(const endpoint& of) noexcept {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(of.port);
    std::memcpy(&out.sin_addr, of.address.data(), 4);
    return out;
}
inline endpoint conformance_local(int of) noexcept {
    sockaddr_in where{};
    socklen_t size = sizeof(where);
    if (::getsockname(of, reinterpret_cast<sockaddr*>(&where), &size) != 0) {
        return {};
    }
    endpoint out;
    out.family = address_family::ipv4;
    out.port = ntohs(where.sin_port);
    std::memcpy(out.address.data(), &where.sin_addr, 4);
    return out;
}

/// One end of a connection that the test owns. Copies share the socket.
class conformance_socket_peer {
public:
    conformance_socket_peer() = default;
    explicit conformance_socket_peer(int descriptor) : of_(std::make_shared<state>()) {
        of_->descriptor = descriptor;
        of_->local = conformance_local(descriptor);
        ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
    }

    std::size_t send(std::string_view text) {
        const ssize_t count = ::send(of_->descriptor, text.data(), text.size(), MSG_NOSIGNAL);
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
    void shutdown() { ::shutdown(of_->descriptor, SHUT_WR); }
    void reset() {
        const linger at_once{1, 0};
        ::setsockopt(of_->descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        close();
    }
    void close() {
        ::close(of_->descriptor);
        of_->descriptor = -1;
    }
    endpoint local() const { return of_->local; }
    /// Waits for `done` without a backend, at most two seconds.
    template <class Done>
    bool settle(Done done) {
        for (int tries = 0; tries < 2000 && !done(); ++tries) {
            pollfd one{of_->descriptor, POLLIN, 0};
            ::poll(&one, 1, 1);
        }
        return done();
    }

private:
    struct state {
        state() = default;
        state(const state&) = delete;
        state& operator=(const state&) = delete;
        ~state() {
            if (descriptor >= 0) {
                ::close(descriptor);
            }
        }
        int descriptor = -1;
        endpoint local{};
        std::string arrived;
        bool ended = false;
        bool reset = false;
    };

    void pull() {
        char part[65536];
        while (of_ != nullptr && of_->descriptor >= 0 && !of_->ended && !of_->reset) {
            const ssize_t count = ::recv(of_->descriptor, part, sizeof(part), MSG_DONTWAIT);
            if (count > 0) {
                of_->arrived.append(part, static_cast<std::size_t>(count));
            } else if (count == 0) {
                of_->ended = true;
            } else {
                of_->reset = errno == ECONNRESET;
                return;
            }
        }
    }

    std::shared_ptr<state> of_;
};

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
    static constexpr const char* suffix = Backend::name;

    conformance_socket_world() {
        ::getrlimit(RLIMIT_NOFILE, &limit_);
        rlimit few = limit_;
        few.rlim_cur = std::min<rlim_t>(few.rlim_cur, descriptors_max);
        ::setrlimit(RLIMIT_NOFILE, &few);
        opened = this->open();
        listener = Backend::listen({loopback_ipv4(0), {}}, {}).handle;
        datagrams = Backend::open_datagram(loopback_ipv4(0), {}).handle;
        outside_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        bind_loopback(outside_);
        ::listen(outside_, 16);
        udp_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        bind_loopback(udp_);
        // A bound socket that does not listen keeps its port, and refuses.
        refusing_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bind_loopback(refusing_);
    }
    ~conformance_socket_world() {
        this->close_accepted();
        this->kernel.close();
        if (listener != no_handle) {
            Backend::close_handle(listener, false);
        }
        Backend::close_handle(datagrams, false);
        for (int each : {outside_, udp_, refusing_, silent_, queued_[0], queued_[1]}) {
            if (each >= 0) {
                ::close(each);
            }
        }
        descriptors_again();
        ::setrlimit(RLIMIT_NOFILE, &limit_);
    }

    peer connect() {
        const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_in where = conformance_sockaddr(Backend::local_of(listener).value);
        if (::connect(made, reinterpret_cast<const sockaddr*>(&where), sizeof(where)) != 0) {
            ::close(made);
            return {};
        }
        return peer(made);
    }
    endpoint outside() const { return conformance_local(outside_); }
    endpoint refusing() const { return conformance_local(refusing_); }
    /// Where a connect stays without an answer: the accept queue is full, so its SYN is dropped.
    endpoint silent() {
        silent_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bind_loopback(silent_);
        ::listen(silent_, 0);
        const sockaddr_in where = conformance_sockaddr(conformance_local(silent_));
        for (int& each : queued_) {
            each = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            ::connect(each, reinterpret_cast<const sockaddr*>(&where), sizeof(where));
        }
        return conformance_local(silent_);
    }
    peer outside_peer() {
        pollfd one{outside_, POLLIN, 0};
        ::poll(&one, 1, 2000);
        return peer(::accept4(outside_, nullptr, nullptr, SOCK_CLOEXEC));
    }
    peer adoptable(socket_handle& handle) {
        int both[2] = {-1, -1};
        ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both);
        handle = both[0];
        return peer(both[1]);
    }
    /// Non-blocking, not inherited, and no-delay where that is a thing.
    bool handle_fit(socket_handle handle) const {
        const int descriptor = static_cast<int>(handle);
        int no_delay = 0;
        socklen_t size = sizeof(no_delay);
        ::getsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
        return (::fcntl(descriptor, F_GETFL) & O_NONBLOCK) != 0 &&
               (::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0 && no_delay != 0;
    }
    /// Every number below the limit is used up, not just forbidden: a kernel may have noted the
    /// limit when the accept was started.
    peer client_without_descriptors() {
        const peer client = connect();
        for (int each = ::dup(udp_); each >= 0; each = ::dup(udp_)) {
            fillers_.push_back(each);
        }
        return client;
    }
    /// Closed when the result goes.
    peer duplicate(socket_handle handle) const { return peer(::dup(static_cast<int>(handle))); }
    /// Is our side of the connection to `client` in TIME_WAIT?
    bool lingers(const peer& client) const {
        std::FILE* const table = std::fopen("/proc/net/tcp", "re");
        if (table == nullptr) {
            return false;
        }
        const unsigned local_port = Backend::local_of(listener).value.port;
        bool found = false;
        char line[256];
        while (std::fgets(line, sizeof(line), table) != nullptr) {
            unsigned local = 0, remote = 0, status = 0;
            found = found || (std::sscanf(line, " %*d: %*[^:]:%x %*[^:]:%x %x", &local, &remote,
                                          &status) == 3 &&
                              local == local_port && remote == client.local().port && status == 6);
        }
        std::fclose(table);
        return found;
    }
    void descriptors_again() {
        for (int each : fillers_) {
            ::close(each);
        }
        fillers_.clear();
    }
    void close_listener() {
        Backend::close_handle(listener, false);
        listener = no_handle;
    }
    std::string unix_path() const { return "@netio-conformance-" + std::to_string(::getpid()); }
    endpoint udp_local() const { return conformance_local(udp_); }
    void udp_send(const std::string& payload) {
        const sockaddr_in where = conformance_sockaddr(Backend::local_of(datagrams).value);
        ::sendto(udp_, payload.data(), payload.size(), 0,
                 reinterpret_cast<const sockaddr*>(&where), sizeof(where));
    }
    std::string udp_arrived() {
        char part[2048];
        const ssize_t count = ::recv(udp_, part, sizeof(part), MSG_DONTWAIT);
        return count < 0 ? std::string() : std::string(part, static_cast<std::size_t>(count));
    }

    os_status opened{};
    socket_handle listener = no_handle;
    socket_handle datagrams = no_handle;
    bool accepting = false;

private:
    static void bind_loopback(int what) {
        const sockaddr_in where = conformance_sockaddr(loopback_ipv4(0));
        ::bind(what, reinterpret_cast<const sockaddr*>(&where), sizeof(where));
    }

    int outside_ = -1;
    int udp_ = -1;
    int refusing_ = -1;
    static constexpr rlim_t descriptors_max = 256;  // so few that a test can use them up
    std::vector<int> fillers_;
    int silent_ = -1;
    int queued_[2] = {-1, -1};
    rlimit limit_{};
};

}  // namespace netio_test

#endif
