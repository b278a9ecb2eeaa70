// A world of named pipes for tests/conformance.hpp: clients are overlapped handles of the test's
// own thread. What only sockets have is left out, by name.
#ifndef NETIO_TESTS_CONFORMANCE_PIPES_HPP
#define NETIO_TESTS_CONFORMANCE_PIPES_HPP

#include "tests/conformance_sockets.hpp"

#include <memory>
#include <string>

namespace netio_test {

/// A name that no other process has, and no other world of this one.
inline std::string pipe_path(const char* of) {
    static int count = 0;
    return "\\\\.\\pipe\\netio-" + std::string(of) + "-" +
           std::to_string(conformance_process()) + "-" + std::to_string(++count);
}

inline endpoint pipe_peer_here() {
    endpoint out;
    out.family = address_family::unix_path;
    out.scope_id = ::GetCurrentProcessId();
    return out;
}

/// The client's end of a pipe. Copies share the handle.
class pipe_client {
public:
    pipe_client() = default;
    /// Not connected where no instance waits.
    explicit pipe_client(const std::string& path) : of_(std::make_shared<state>()) {
        of_->pipe = ::CreateFileA(path.c_str(), GENERIC_READ | GENERIC_WRITE, 0, nullptr,
                                  OPEN_EXISTING, FILE_FLAG_OVERLAPPED, nullptr);
        of_->why = of_->pipe == INVALID_HANDLE_VALUE ? ::GetLastError() : 0;
    }

    bool connected() const { return of_ != nullptr && of_->pipe != INVALID_HANDLE_VALUE; }
    unsigned long why() const { return of_->why; }
    /// Bytes taken now: one write is under way at most.
    std::size_t send(std::string_view text) {
        if (!connected() || !of_->written() || text.empty()) {
            return 0;
        }
        of_->going.assign(text.substr(0, 64 * 1024));
        of_->write_op = {};
        const bool done = ::WriteFile(of_->pipe, of_->going.data(),
                                      static_cast<DWORD>(of_->going.size()), nullptr,
                                      &of_->write_op) != 0;
        of_->writing = !done && ::GetLastError() == ERROR_IO_PENDING;
        return done || of_->writing ? of_->going.size() : 0;
    }
    void send_nothing() {
        DWORD count = 0;
        OVERLAPPED op{};
        ::WriteFile(of_->pipe, "", 0, nullptr, &op);
        ::GetOverlappedResult(of_->pipe, &op, &count, TRUE);
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
    void close() { of_->close(); }
    /// A pipe has no half to end, and no reset: both are an end.
    void shutdown() { of_->close(); }
    void reset() { of_->close(); }
    endpoint local() const { return pipe_peer_here(); }
    /// Waits for `done` without a backend, at most two seconds.
    template <class Done>
    bool settle(Done done) {
        for (int tries = 0; tries < 2000 && !done(); ++tries) {
            wait_readable();
        }
        return done();
    }

private:
    struct state {
        state() : event(::CreateEventA(nullptr, TRUE, FALSE, nullptr)) {}
        state(const state&) = delete;
        state& operator=(const state&) = delete;
        ~state() {
            close();
            ::CloseHandle(event);
        }
        bool written() {
            writing = writing && !HasOverlappedIoCompleted(&write_op);
            return !writing;
        }
        void close() {
            if (pipe == INVALID_HANDLE_VALUE) {
                return;
            }
            DWORD count = 0;
            if (!written() && ::CancelIoEx(pipe, &write_op) != 0) {
                ::GetOverlappedResult(pipe, &write_op, &count, TRUE);
            }
            ::CloseHandle(pipe);
            pipe = INVALID_HANDLE_VALUE;
        }
        HANDLE pipe = INVALID_HANDLE_VALUE;
        HANDLE event;
        OVERLAPPED write_op{};
        std::string going;
        bool writing = false;
        unsigned long why = 0;
        std::string arrived;
        bool ended = false;
        bool reset = false;
    };

    void pull() {
        static char part[65536];
        while (connected() && !of_->ended && !of_->reset) {
            DWORD there = 0;
            if (::PeekNamedPipe(of_->pipe, nullptr, 0, nullptr, &there, nullptr) == 0) {
                of_->ended = ::GetLastError() == ERROR_BROKEN_PIPE;
                of_->reset = ::GetLastError() == ERROR_PIPE_NOT_CONNECTED;
                return;
            }
            if (there == 0) {
                return;
            }
            OVERLAPPED op{};
            op.hEvent = of_->event;
            DWORD count = 0;
            ::ReadFile(of_->pipe, part, sizeof(part), nullptr, &op);
            ::GetOverlappedResult(of_->pipe, &op, &count, TRUE);
            of_->arrived.append(part, count);
        }
    }
    /// At most a millisecond.
    void wait_readable() {
        OVERLAPPED op{};
        op.hEvent = of_->event;
        char nothing = 0;
        DWORD count = 0;
        if (connected() && ::ReadFile(of_->pipe, &nothing, 0, nullptr, &op) == 0 &&
            ::GetLastError() == ERROR_IO_PENDING) {
            ::WaitForSingleObject(of_->event, 1);
            ::CancelIoEx(of_->pipe, &op);
            ::GetOverlappedResult(of_->pipe, &op, &count, TRUE);
        }
    }

    std::shared_ptr<state> of_;
};

/// Instances run out when the test says so.
struct conformance_pipe_sys : windows_sys {
    inline static bool used_up = false;
    static socket_type make_pipe(const wchar_t* name, bool first, unsigned long send_bytes,
                                 unsigned long receive_bytes, const void* descriptor) noexcept {
        if (used_up) {
            ::SetLastError(ERROR_NO_SYSTEM_RESOURCES);
            return detail::windows::no_socket;
        }
        return windows_sys::make_pipe(name, first, send_bytes, receive_bytes, descriptor);
    }
};

template <class Backend>
class conformance_pipe_world : public conformance_rig<Backend> {
public:
    using backend_type = Backend;
    using suite_world = conformance_pipe_world;
    using peer = pipe_client;
    static constexpr bool counts_heap = true;
    static constexpr std::size_t bulk_bytes = 1024 * 1024;
    static constexpr bool threads = true;
    static constexpr bool asserts = NETIO_CHECKS >= 1;
    static constexpr bool shares_ports = false;
    static constexpr bool may_lack_unix = true;
    static constexpr const char* suffix = "pipes";

    /// What pipes can't have: connects and datagrams are sockets' alone, clients of one process
    /// have one address, a client's reset is an end, an end is of both directions, and a write
    /// takes one slice.
    static bool has_not(std::string_view clause, std::string_view says) {
        constexpr std::string_view kinds[] = {"listen", "start_connect", "start_receive_from",
                                              "start_send_to", "attach", "end_send"};
        constexpr std::string_view single[] = {
            "a connect gives one event",
            "failures carry a reason and nothing is printed",
            "a reused descriptor gets nothing of its last owner's",  // takes an adopted one
            "a descriptor that lives on in a child is silent",
            "a stale event does not end a connect",
            "a stale event not yet read does not end a connect",
            "data, then a reset, before any receive",
            "tells each of several clients apart",
            "has ended the accept when it returns",  // it frees a port; see iocp_pipes_test.cpp
            "eight slices in order",
            "a reset or ended peer nobody asks about: no busy loop",
        };
        return std::count(std::begin(kinds), std::end(kinds), clause) != 0 ||
               std::count(std::begin(single), std::end(single), says) != 0;
    }

    conformance_pipe_world() : path(pipe_path("conformance")) {
        plain::begin();
        opened = this->open();
        listener = Backend::listen({{}, path}, {}).handle;
        datagrams = Backend::open_datagram(loopback_ipv4(0), {}).handle;
    }
    ~conformance_pipe_world() {
        descriptors_again();
        this->close_accepted();
        this->kernel.close();
        close_listener();
        Backend::close_handle(datagrams, false);
    }

    /// Turns until an instance is free, as a client of another process would wait.
    peer connect() {
        peer made;
        this->until([&] {
            made = peer(path);
            return made.connected() || made.why() != ERROR_PIPE_BUSY;
        });
        return made;
    }
    /// Loopback's port 1 has no listener.
    endpoint refusing() const { return loopback_ipv4(1); }
    endpoint outside() const { return loopback_ipv4(1); }
    endpoint silent() const { return loopback_ipv4(1); }
    peer outside_peer() { return {}; }
    peer adoptable(socket_handle&) { return {}; }
    peer duplicate(socket_handle) const { return {}; }
    bool handle_fit(socket_handle handle) const {
        DWORD flags = 0;
        return ::GetHandleInformation(reinterpret_cast<HANDLE>(detail::socket_of(handle)),
                                      &flags) != 0 &&
               (flags & HANDLE_FLAG_INHERIT) == 0;
    }
    peer client_without_descriptors() {
        const peer made = connect();
        conformance_pipe_sys::used_up = true;
        return made;
    }
    void descriptors_again() { conformance_pipe_sys::used_up = false; }
    bool lingers(const peer&) const { return false; }
    void close_listener() {
        if (listener != no_handle) {
            Backend::close_handle(listener, false);
        }
        listener = no_handle;
    }
    std::string unix_path() const { return path; }
    endpoint udp_local() const { return {}; }
    void udp_send(const std::string&) {}
    std::string udp_arrived() { return {}; }

    std::string path;
    os_status opened{};
    socket_handle listener = no_handle;
    socket_handle datagrams = no_handle;
    bool accepting = false;
};

}  // namespace netio_test

#endif
