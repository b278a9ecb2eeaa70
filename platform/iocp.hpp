// floor 6 · iocp.hpp · the Windows backend over completion ports
#ifndef NETIO_IOCP_HPP
#define NETIO_IOCP_HPP

#include "platform/socket_windows.hpp"
#include "platform/waiting.hpp"

#if NETIO_HAS_IOCP

NETIO_BEGIN

/// The calls of the completion port backend, one function each; the reason of a failure is in
/// `last_error`. Tests put their own in place of it to count calls and to let the n-th one fail.
struct windows_sys {
    using socket_type = detail::windows::socket_type;
    using overlapped = detail::windows::overlapped;
    using slice = detail::windows::slice;
    using completion = detail::windows::completion;

    static int last_error() noexcept { return ::WSAGetLastError(); }
    static int start_winsock() noexcept {
        alignas(8) unsigned char data[detail::windows::winsock_data_bytes];
        return ::WSAStartup(detail::windows::winsock_version,
                            reinterpret_cast<::WSAData*>(data));
    }
    static void stop_winsock() noexcept { ::WSACleanup(); }

    static socket_type open_socket(int family, int type) noexcept {
        return ::WSASocketW(family, type, 0, nullptr, 0,
                            detail::windows::socket_overlapped |
                                detail::windows::socket_not_inherited);
    }
    static int set_non_blocking(socket_type of) noexcept {
        unsigned long on = 1;
        return ::ioctlsocket(of, detail::windows::set_non_blocking, &on);
    }
    static int bind(socket_type what, const void* where, int size) noexcept {
        return ::bind(what, static_cast<const ::sockaddr*>(where), size);
    }
    static int listen(socket_type what, int backlog) noexcept { return ::listen(what, backlog); }
    static int connect(socket_type what, const void* where, int size) noexcept {
        return ::connect(what, static_cast<const ::sockaddr*>(where), size);
    }
    static int setsockopt(socket_type of, int level, int option, const void* value,
                          int size) noexcept {
        return ::setsockopt(of, level, option, static_cast<const char*>(value), size);
    }
    static int getsockopt(socket_type of, int level, int option, void* value, int* size) noexcept {
        return ::getsockopt(of, level, option, static_cast<char*>(value), size);
    }
    static int getsockname(socket_type of, void* where, int* size) noexcept {
        return ::getsockname(of, static_cast<::sockaddr*>(where), size);
    }
    static int shutdown_sending(socket_type of) noexcept {
        return ::shutdown(of, detail::windows::shut_sending);
    }
    static int close_socket(socket_type what) noexcept { return ::closesocket(what); }
    /// A function that only the provider of the socket knows.
    template <class Function>
    static int extension(socket_type of, detail::windows::guid which, Function& out) noexcept {
        unsigned long got = 0;
        return ::WSAIoctl(of, detail::windows::get_extension, &which, sizeof(which), &out,
                          sizeof(out), &got, nullptr, nullptr);
    }

    // Overlapped calls: 0 if the operation has ended already, else the reason; "pending" is one.
    static int receive_overlapped(socket_type from, slice into, unsigned long& got,
                                  overlapped* op) noexcept {
        unsigned long flags = 0;
        return code(::WSARecv(from, reinterpret_cast<::_WSABUF*>(&into), 1, &got, &flags,
                              reinterpret_cast<::_OVERLAPPED*>(op), nullptr) == 0);
    }
    static int send_overlapped(socket_type to, slice* slices, std::uint32_t count,
                               unsigned long& sent, overlapped* op) noexcept {
        return code(::WSASend(to, reinterpret_cast<::_WSABUF*>(slices), count, &sent, 0,
                              reinterpret_cast<::_OVERLAPPED*>(op), nullptr) == 0);
    }
    static int receive_from_overlapped(socket_type from, slice into, unsigned long& got,
                                       unsigned long& flags, void* peer, int& size,
                                       overlapped* op) noexcept {
        return code(::WSARecvFrom(from, reinterpret_cast<::_WSABUF*>(&into), 1, &got, &flags,
                                  static_cast<::sockaddr*>(peer), &size,
                                  reinterpret_cast<::_OVERLAPPED*>(op), nullptr) == 0);
    }
    static int send_to_overlapped(socket_type to, slice from, const void* peer, int size,
                                  unsigned long& sent, overlapped* op) noexcept {
        return code(::WSASendTo(to, reinterpret_cast<::_WSABUF*>(&from), 1, &sent, 0,
                                static_cast<const ::sockaddr*>(peer), size,
                                reinterpret_cast<::_OVERLAPPED*>(op), nullptr) == 0);
    }
    static int accept_overlapped(detail::windows::accept_ex how, socket_type listener,
                                 socket_type into, void* addresses, std::uint32_t address_bytes,
                                 overlapped* op) noexcept {
        unsigned long got = 0;
        return code(how(listener, into, addresses, 0, address_bytes, address_bytes, &got, op));
    }
    static int connect_overlapped(detail::windows::connect_ex how, socket_type what,
                                  const void* where, int size, overlapped* op) noexcept {
        return code(how(what, where, size, nullptr, 0, nullptr, op));
    }

    // Named pipes. The handles of pipes travel as those of sockets do.
    static socket_type make_pipe(const wchar_t* name, bool first, unsigned long send_bytes,
                                 unsigned long receive_bytes, const void* descriptor) noexcept {
        namespace windows = detail::windows;
        windows::security_attributes who{sizeof(who), const_cast<void*>(descriptor), 0};
        return reinterpret_cast<socket_type>(::CreateNamedPipeW(
            name, windows::pipe_open_mode | (first ? windows::pipe_first : 0), windows::pipe_mode,
            windows::pipe_instances_unlimited, send_bytes, receive_bytes, 0,
            reinterpret_cast<::_SECURITY_ATTRIBUTES*>(&who)));
    }
    /// As a client that can do nothing.
    static socket_type open_pipe(const wchar_t* name) noexcept {
        return reinterpret_cast<socket_type>(
            ::CreateFileW(name, detail::windows::access_attributes, 0, nullptr,
                          detail::windows::open_existing, 0, nullptr));
    }
    static int wait_for_client(socket_type pipe, overlapped* op) noexcept {
        return code(::ConnectNamedPipe(reinterpret_cast<void*>(pipe),
                                       reinterpret_cast<::_OVERLAPPED*>(op)));
    }
    static int disconnect_pipe(socket_type pipe) noexcept {
        return code(::DisconnectNamedPipe(reinterpret_cast<void*>(pipe)));
    }
    static void close_pipe(socket_type what) noexcept {
        ::CloseHandle(reinterpret_cast<void*>(what));
    }
    static int read_pipe(socket_type from, slice into, unsigned long& got,
                         overlapped* op) noexcept {
        return code(::ReadFile(reinterpret_cast<void*>(from), into.from, into.byte_count, &got,
                               reinterpret_cast<::_OVERLAPPED*>(op)));
    }
    static int write_pipe(socket_type to, slice from, unsigned long& sent,
                          overlapped* op) noexcept {
        return code(::WriteFile(reinterpret_cast<void*>(to), from.from, from.byte_count, &sent,
                                reinterpret_cast<::_OVERLAPPED*>(op)));
    }
    /// 0 and how many bytes there are, or the reason.
    static int look_into_pipe(socket_type of, unsigned long& byte_count) noexcept {
        return code(::PeekNamedPipe(reinterpret_cast<void*>(of), nullptr, 0, nullptr,
                                    &byte_count, nullptr));
    }
    static std::uint32_t pipe_process(socket_type of) noexcept {
        unsigned long process = 0;
        return ::GetNamedPipeClientProcessId(reinterpret_cast<void*>(of), &process) != 0
                   ? static_cast<std::uint32_t>(process)
                   : 0;
    }
    static int pipe_sizes(socket_type of, unsigned long& send_bytes,
                          unsigned long& receive_bytes) noexcept {
        return code(::GetNamedPipeInfo(reinterpret_cast<void*>(of), nullptr, &send_bytes,
                                       &receive_bytes, nullptr));
    }
    static int pipe_name(socket_type of, detail::windows::file_name& out) noexcept {
        // Its declaration needs an enumeration that nobody but the system's header may declare.
        const library kernel(L"kernel32.dll");
        const auto ask = kernel.find<detail::windows::information_of>(
            "GetFileInformationByHandleEx");
        return ask == nullptr ? last_error()
                              : code(ask(reinterpret_cast<void*>(of),
                                         detail::windows::class_file_name, &out, sizeof(out)));
    }
    static bool widen(const char* from, int count, wchar_t* to, int room) noexcept {
        return ::MultiByteToWideChar(detail::windows::code_page_utf8,
                                     detail::windows::refuse_invalid, from, count, to, room) > 0;
    }
    /// Found at run time: programs need no further library for what few of them use.
    static int make_descriptor(const char* from, void*& out) noexcept {
        const library security(L"advapi32.dll");
        const auto make = security.find<detail::windows::descriptor_of>(
            "ConvertStringSecurityDescriptorToSecurityDescriptorA");
        return make == nullptr
                   ? last_error()
                   : code(make(from, detail::windows::descriptor_revision, &out, nullptr));
    }
    static void drop_descriptor(void* what) noexcept { ::LocalFree(what); }
    /// RtlGenRandom, whose name in the library this is.
    static bool fill_random(mutable_bytes out) noexcept {
        const library security(L"advapi32.dll");
        const auto fill = security.find<detail::windows::random_of>("SystemFunction036");
        return fill != nullptr &&
               fill(out.data(), static_cast<unsigned long>(out.size())) != 0;
    }

    // Calls that never wait.
    static int receive(socket_type from, void* into, int count) noexcept {
        return ::recv(from, static_cast<char*>(into), count, 0);
    }
    /// What a receive would find.
    static int peek(socket_type from) noexcept {
        char next = 0;
        return ::recv(from, &next, 1, detail::windows::receive_peek);
    }
    static int receive_from(socket_type from, void* into, int count, void* peer,
                            int* size) noexcept {
        return ::recvfrom(from, static_cast<char*>(into), count, 0,
                          static_cast<::sockaddr*>(peer), size);
    }
    static int send_to(socket_type to, const void* from, int count, const void* peer,
                       int size) noexcept {
        return ::sendto(to, static_cast<const char*>(from), count, 0,
                        static_cast<const ::sockaddr*>(peer), size);
    }

    /// Makes a port, or ties `what` to one. Null if that fails.
    static void* port(void* what, void* to, std::uint32_t key) noexcept {
        return ::CreateIoCompletionPort(what, to, key, 1);
    }
    static void close_port(void* what) noexcept { ::CloseHandle(what); }
    static bool skip_on_success(socket_type of) noexcept {
        return ::SetFileCompletionNotificationModes(
                   reinterpret_cast<void*>(of), detail::windows::skip_port_on_success |
                                                    detail::windows::skip_event_on_handle) != 0;
    }
    static bool wait(void* on, completion* out, std::uint32_t count_max, unsigned long& count,
                     unsigned long timeout_ms) noexcept {
        return ::GetQueuedCompletionStatusEx(on, reinterpret_cast<::_OVERLAPPED_ENTRY*>(out),
                                             count_max, &count, timeout_ms, 0) != 0;
    }
    static bool post(void* to, unsigned long byte_count, netio_ulong_pointer key,
                     overlapped* op) noexcept {
        return ::PostQueuedCompletionStatus(to, byte_count, key,
                                            reinterpret_cast<::_OVERLAPPED*>(op)) != 0;
    }
    /// Null: every operation of the socket.
    static void cancel(socket_type of, overlapped* op) noexcept {
        ::CancelIoEx(reinterpret_cast<void*>(of), reinterpret_cast<::_OVERLAPPED*>(op));
    }
    static void yield() noexcept { ::Sleep(0); }
    static std::uint64_t now_ns() noexcept {
        std::uint64_t ticks = 0;
        std::uint64_t a_second = 1;
        ::QueryPerformanceCounter(reinterpret_cast<::_LARGE_INTEGER*>(&ticks));
        ::QueryPerformanceFrequency(reinterpret_cast<::_LARGE_INTEGER*>(&a_second));
        return ticks / a_second * 1'000'000'000U +
               ticks % a_second * 1'000'000'000U / a_second;
    }

private:
    static int code(int succeeded) noexcept { return succeeded != 0 ? 0 : last_error(); }

    /// One of the system's own, nobody else's of that name.
    class library {
    public:
        explicit library(const wchar_t* name) noexcept
            : at_(::LoadLibraryExW(name, nullptr, detail::windows::search_system_only)) {}
        library(const library&) = delete;
        library& operator=(const library&) = delete;
        ~library() {
            if (at_ != nullptr) {
                ::FreeLibrary(at_);
            }
        }
        template <class Function>
        Function find(const char* name) const noexcept {
            if (at_ == nullptr) {
                return nullptr;
            }
            // By way of a pointer that fits all: what is found tells nothing of its type.
            return reinterpret_cast<Function>(
                reinterpret_cast<void*>(::GetProcAddress(at_, name)));
        }

    private:
        ::HINSTANCE__* at_;
    };
};

namespace detail {

/// What a backend remembers of one connection. All-zero is "no connection".
struct iocp_connection {
    windows::overlapped receive_op;
    windows::overlapped send_op;  // of a connect, too
    windows::socket_type socket;
    union {
        std::uint64_t into;  // receive into the caller's memory: its address
        block_links starved;  // receive into the pool: its place among those without a buffer
    };
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;           // in the run list, an id
    std::uint32_t receive_count;  // bytes of `into`, or credit left
    // Of an operation that ended at once, kept for the next wait: its bytes and its reason.
    std::uint32_t received_bytes;
    std::int32_t received_code;
    std::uint32_t sent_bytes;
    std::int32_t sent_code;
};
static_assert(sizeof(iocp_connection) <= 128, "the budget of a connection in this backend");

/// An operation on a handle that several loops use. Such a handle is tied to the port of one of
/// them, which sends on what belongs to another.
struct iocp_shared_operation {
    windows::overlapped op;  // first: the port gives its address back
    void* home;

    /// Whether it is the kernel's is read from its status: a packet may be of an earlier use.
    void begin(void* of) noexcept {
        op = {};
        op.status = windows::status_pending;
        home = of;
    }
    bool ended() const noexcept {
        return static_cast<std::uint32_t>(op.status) != windows::status_pending;
    }
};

inline constexpr std::uint32_t iocp_accepts_max = 8;
inline constexpr std::uint32_t iocp_address_bytes = 128;  // a unix address and 16 more

struct iocp_accept {
    iocp_shared_operation shared;
    windows::socket_type socket;  // made before: what a client will be
    std::uint32_t generation;
    std::uint32_t start;  // which start of the listener armed it
    bool outstanding;
    bool unwanted;  // that start failed, so whoever comes is turned away
    bool piped;     // `socket` is an instance of a pipe, and of this loop's port
    alignas(8) std::byte addresses[2 * iocp_address_bytes];
};

struct iocp_listener {
    windows::socket_type socket;
    std::uint32_t generation;
    std::uint32_t flags;
    int family;
    bool no_delay;
    std::uint32_t start;  // counts; one token may start several times
    bool foreign;  // another loop's port gets the completions
    windows::socket_type tied;  // the last one that ours gets them of
    iocp_accept accepts[iocp_accepts_max];
    // Of a named pipe: each client is an instance of its own, made by name.
    bool piped;
    unsigned long send_bytes;
    unsigned long receive_bytes;
    pipe_name name;
};

struct iocp_datagram_socket {
    iocp_shared_operation shared;
    windows::socket_type socket;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;
    block_links starved;
    std::uint32_t buffer;  // plus one: the receive's that is outstanding
    // The kernel's while a receive is outstanding.
    unsigned long receive_flags;
    int peer_bytes;
    socket_address peer;
};

struct iocp_datagram_send {
    iocp_shared_operation shared;
    windows::socket_type socket;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;
    std::uint32_t count;
    std::int32_t code;
};

}  // namespace detail

/// The backend of Windows. A receive into the pool asks for readiness by a receive of no bytes and
/// then reads without waiting; a receive into memory and every send are operations of the kernel.
/// What ends at once leaves its result in the connection's block, which is linked into a run list
/// that the next `wait` works off, mostly without entering the kernel.
///
/// See `backend` for what each function promises. `Sys` makes the system calls.
template <class Sys = windows_sys>
class basic_iocp : detail::block_lines<detail::iocp_connection, detail::iocp_datagram_socket,
                                       detail::iocp_datagram_send> {
    using overlapped = detail::windows::overlapped;
    using socket_type = detail::windows::socket_type;
    using connection = detail::iocp_connection;
    using listener = detail::iocp_listener;
    using accept_slot = detail::iocp_accept;
    using datagram_socket = detail::iocp_datagram_socket;
    using datagram_send = detail::iocp_datagram_send;

public:
    static constexpr const char* name = "iocp";
    static constexpr std::size_t connection_bytes = sizeof(connection) + sizeof(socket_type);
    static constexpr std::uint32_t receive_credit = 1;
    /// Connections that may still come after stop_accept.
    static constexpr std::uint32_t late_accepts_max = detail::iocp_accepts_max;

    basic_iocp() noexcept = default;
    basic_iocp(const basic_iocp&) = delete;
    basic_iocp& operator=(const basic_iocp&) = delete;

    static availability available() noexcept {
        if (Sys::start_winsock() != 0) {
            return {false, "Winsock 2.2"};
        }
        Sys::stop_winsock();
        return {};
    }
    static constexpr std::size_t bytes_needed(const backend_limits& sizes) noexcept {
        return layout::of(sizes).end;
    }
    static const char* os_name(int code) noexcept { return detail::error_name(code); }
    static os_handle listen(const stream_address& address,
                            const listen_options& options) noexcept {
        return detail::listen_stream<Sys>(address, options);
    }
    static os_handle open_datagram(const endpoint& address,
                                   const datagram_options& options) noexcept {
        return detail::open_bound_datagram<Sys>(address, options);
    }
    static result<endpoint> local_of(socket_handle handle) noexcept {
        return detail::local_endpoint<Sys>(handle);
    }
    static void close_handle(socket_handle handle, bool abort) noexcept {
        NETIO_ASSERT(handle >= 0);
        if (detail::is_pipe(handle)) {
            detail::close_one_pipe<Sys>(socket_of(handle), abort);
            return;
        }
        const bool counted = detail::holds_winsock<Sys>(socket_of(handle));
        detail::close_one_socket<Sys>(socket_of(handle), abort);
        if (counted) {
            Sys::stop_winsock();
        }
    }
    /// Of a pipe: bytes of a message that is being read already are not there any more, and a
    /// client that is gone is `peer_closed`, whatever made it go.
    static probe_result probe(socket_handle handle) noexcept {
        NETIO_ASSERT(handle >= 0);
        unsigned long there = 0;
        const bool is_pipe = detail::is_pipe(handle);
        const int got = is_pipe ? 0 : Sys::peek(socket_of(handle));
        const int code = is_pipe   ? Sys::look_into_pipe(socket_of(handle), there)
                         : got < 0 ? Sys::last_error()
                                   : 0;
        if (got > 0 || there != 0) {
            return {probed::readable};
        }
        if (code == detail::windows::would_block || (is_pipe && code == 0)) {
            return {};
        }
        if (code == 0 || code == detail::windows::pipe_broken) {
            return {probed::peer_closed};
        }
        return {probed::failed, detail::error_of(code)};
    }
    /// Handles are bounded by the size of the kernel's table; nothing has to be raised.
    static std::uint64_t reserve_descriptors(std::uint64_t) noexcept { return handles_max; }
    static bool fill_random(mutable_bytes out) noexcept { return Sys::fill_random(out); }
    std::uint64_t now_ns() const noexcept { return Sys::now_ns(); }

    os_status open(mutable_bytes memory, const backend_limits& sizes, buffer_pool& pool) noexcept {
        NETIO_ASSERT(!open_);
        NETIO_ASSERT(memory.size() >= bytes_needed(sizes));
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0);
        lay_out(memory.data(), sizes);
        pool_ = &pool;
        detail::winsock_hold<Sys> winsock;
        if (winsock.code() != 0) {
            return detail::status_of(winsock.code());
        }
        if (const os_status found = find_extensions(); !found) {
            return found;
        }
        port_ = Sys::port(reinterpret_cast<void*>(detail::windows::no_socket), nullptr, 0);
        if (port_ == nullptr) {
            return detail::status_of(Sys::last_error());
        }
        winsock.keep();
        wake_.open();
        open_ = true;
        return {};
    }

    void close() noexcept {
        NETIO_ASSERT(!waiting_);
        if (!open_) {
            return;
        }
        wake_.template close<Sys>();
        end_everything();
        Sys::close_port(port_);
        Sys::stop_winsock();
        open_ = false;
    }

    os_status start_accept(socket_handle handle, token who) noexcept {
        listener& at = listener_of(who);
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        const socket_type socket = socket_of(handle);
        at.piped = detail::is_pipe(handle);
        const int known = at.piped ? look_at_pipe(at, socket) : tie_listener(at, socket);
        if (known != 0) {
            return detail::status_of(known);
        }
        at.socket = socket;
        at.generation = who.generation();
        ++at.start;
        at.flags = attached;
        for (accept_slot& each : at.accepts) {
            if (const int code = arm_accept(at, each); code != 0) {
                forget(at, true);
                return accept_failure(code);
            }
        }
        return {};
    }

    void stop_accept(token who) noexcept {
        listener& at = listener_of(who);
        if (at.flags == 0) {
            return;  // it failed, and the caller has not looked at that event yet
        }
        NETIO_ASSERT(at.generation == who.generation());
        forget(at);
    }

    os_status start_connect(const stream_address& address, const socket_options& options,
                            token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(open_);
        NETIO_ASSERT(at.flags == 0);
        // A mapped address goes out as plain IPv4: a socket of its own family needs no V6ONLY.
        const stream_address plainly{unmapped(address.ip), address.unix_path};
        detail::socket_address where;
        int size = 0;
        if (const error why = detail::to_stream_address(plainly, where, size);
            why != error::none) {
            return {why, 0};
        }
        const os_handle made =
            detail::make_socket<Sys>(where.family, detail::windows::type_stream);
        if (!made) {
            return made.status;
        }
        begin(at, socket_of(made.handle), who, connecting);
        const os_status started = connect_now(at, who, where, size, options);
        if (!started) {
            Sys::close_socket(at.socket);
            at = connection{};
        }
        return started;
    }

    os_status attach(socket_handle handle, token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        const socket_type socket = socket_of(handle);
        if (detail::is_pipe(handle)) {
            if (handle != detail::pipe_handle(socket, port_)) {
                return detail::status_of(detail::windows::parameter_wrong);
            }
            begin(at, socket, who, attached | piped | skips);
            return {};
        }
        if (!tie(socket, key_connection)) {
            // A tie is for life, so one that was released from here is tied already. Any other
            // belongs to a port where nobody would know what to do with its completions.
            const int code = Sys::last_error();
            if (code != detail::windows::parameter_wrong || !take_released(socket)) {
                return detail::status_of(code);
            }
        }
        begin(at, socket, who, attached | skipping(socket));
        return {};
    }

    socket_handle release(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (receiving | sending | closing | in_run_list)) == 0);
        NETIO_ASSERT((at.flags & attached) != 0);
        NETIO_ASSERT((at.flags & in_kernel) == 0);
        const socket_type socket = at.socket;
        const bool is_piped = (at.flags & piped) != 0;
        at = connection{};
        if (is_piped) {
            return detail::pipe_handle(socket, port_);
        }
        released_[released_at_] = socket;
        released_at_ = (released_at_ + 1) % sizes_.connections;
        return static_cast<socket_handle>(socket);
    }

    void start_receive(token who, mutable_bytes into, std::uint32_t credit) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (receiving | receive_over)) == 0);
        at.flags |= receiving;
        if (into.empty()) {
            NETIO_ASSERT(credit != 0);
            at.receive_count = credit;
            if ((at.flags & readable) != 0) {
                link(who.index() + 1);
                return;
            }
        } else {
            at.flags = (at.flags & ~readable) | into_memory;
            at.into = address_of(into.data());
            at.receive_count = clipped(into.size());
        }
        arm_receive(at, who.index());
    }

    void stop_receive(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & stopping) == 0);
        if ((at.flags & receiving) == 0) {
            return;  // it has ended, and the caller has not looked at that event yet
        }
        at.flags |= stopping;
        if ((at.flags & receive_in_kernel) != 0) {
            Sys::cancel(at.socket, &at.receive_op);
            return;
        }
        if ((at.flags & starved) != 0) {
            unlink_starved(who.index() + 1);
        }
        link(who.index() + 1);
    }

    void start_send(token who, std::span<const bytes> slices) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (sending | send_over)) == 0);
        NETIO_ASSERT(!slices.empty() && slices.size() <= slices_max);
        at.flags |= sending;
        detail::windows::slice pieces[slices_max];
        const std::uint32_t count = cut(slices, pieces);
        unsigned long sent = 0;
        at.send_op = {};
        const int code =
            (at.flags & piped) != 0
                ? write_pipe(at, pieces[0], sent)
                : Sys::send_overlapped(at.socket, pieces, count, sent, &at.send_op);
        if (waits(at, code)) {
            at.flags |= send_in_kernel;
            ++outstanding_count_;
        } else {
            at.flags |= result_sent;
            at.sent_bytes = static_cast<std::uint32_t>(sent);
            at.sent_code = code;
            link(who.index() + 1);
        }
    }

    void end_send(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (sending | send_over)) == 0);
        at.flags |= send_over;
        if ((at.flags & piped) != 0) {
            end_pipe(at);
            return;
        }
        // Fails only where the peer is gone already, and then the receive says so.
        Sys::shutdown_sending(at.socket);
    }

    void start_close(token who, bool abort) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | connecting)) != 0);
        NETIO_ASSERT((at.flags & closing) == 0);
        if ((at.flags & starved) != 0) {
            unlink_starved(who.index() + 1);
        }
        at.flags |= closing | (abort ? abortive : 0);
        // Closed when the last operation has ended: a pending receive would turn a FIN into a RST.
        if ((at.flags & in_kernel) != 0) {
            Sys::cancel(at.socket, nullptr);
        } else {
            link(who.index() + 1);
        }
    }

    os_status start_receive_from(socket_handle handle, token who) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        const socket_type socket = socket_of(handle);
        if (!tie(socket, key_datagram) &&
            Sys::last_error() != detail::windows::parameter_wrong) {
            return detail::status_of(Sys::last_error());
        }
        at = datagram_socket{};
        at.socket = socket;
        at.generation = who.generation();
        at.flags = attached;
        arm_datagram(at, who.index());
        return {};
    }

    void stop_receive_from(token who) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(at.generation == who.generation());
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        const std::uint32_t id = datagram_kind | (who.index() + 1);
        at.flags |= closing;
        if ((at.flags & receive_in_kernel) != 0) {
            Sys::cancel(at.socket, &at.shared.op);
            return;
        }
        if ((at.flags & starved) != 0) {
            unlink_starved(id);
        }
        link(id);
    }

    void start_send_to(socket_handle handle, token who, bytes payload,
                       const endpoint& peer) noexcept {
        const std::uint32_t index = checked(who, sizes_.datagram_sends);
        datagram_send& at = datagram_sends_[index];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        at = datagram_send{};
        at.socket = socket_of(handle);
        at.generation = who.generation();
        at.flags = attached;
        at.code = send_to_now(at, payload, peer);
        if (at.code != detail::windows::operation_pending) {
            link(send_kind | (index + 1));
        }
    }

    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        NETIO_ASSERT(out.size() >= 4);
        waiting_ = true;
        detail::event_writer to(out);
        wake_.take(to);
        serve_starved(to);
        const bool worked_off = ready_at_ == ready_end_;
        const bool local = run_count_ != 0 || to.count() != 0;
        // Without the kernel at most once in a row, so a busy sender keeps nobody from being seen.
        skipped_ = worked_off && local && !skipped_;
        if (worked_off && !skipped_) {
            enter_kernel(to, local ? 0 : timeout_ns);
        }
        std::uint32_t nodes = run_count_;
        const bool both = ready_at_ != ready_end_;
        nodes = work_off_run_list(to, nodes, both ? to.room() / 2 : 0);
        while (ready_at_ != ready_end_ && to.room() != 0) {
            complete(ready_[ready_at_++], to);
        }
        work_off_run_list(to, nodes, 0);
        waiting_ = false;
        return to.count();
    }

    bool ready() noexcept {
        NETIO_ASSERT(open_);
        return run_count_ != 0 || ready_at_ != ready_end_ ||
               (starved_first_ != 0 && pool_->room(side::input) != 0) ||
               wake_.woken();
    }

    void wake() noexcept {
        wake_.wake([this] { Sys::post(port_, 0, key_wake, nullptr); });
    }

    /// None: the system does not say that a port can be waited for like an event.
    socket_handle wait_handle() noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        return no_handle;
    }

    /// Completions that no operation of ours waited for; they were dropped.
    std::uint64_t stale_count() const noexcept { return stale_count_; }

private:
    // Flags of all blocks, beside those of the lines.
    static constexpr std::uint32_t attached = 1u << 0;
    static constexpr std::uint32_t connecting = 1u << 1;
    static constexpr std::uint32_t closing = 1u << 2;
    static constexpr std::uint32_t abortive = 1u << 3;
    static constexpr std::uint32_t piped = 1u << 4;  // `socket` is an instance of a named pipe
    static constexpr std::uint32_t skips = 1u << 6;      // what ends at once is not posted
    static constexpr std::uint32_t readable = 1u << 7;   // there may be bytes: try before waiting
    static constexpr std::uint32_t receiving = 1u << 8;  // outstanding for the caller
    static constexpr std::uint32_t into_memory = 1u << 9;
    static constexpr std::uint32_t receive_over = 1u << 10;  // ended or failed was given
    static constexpr std::uint32_t stopping = 1u << 11;
    static constexpr std::uint32_t sending = 1u << 12;    // outstanding for the caller
    static constexpr std::uint32_t send_over = 1u << 13;  // end_send was called
    static constexpr std::uint32_t receive_in_kernel = 1u << 14;
    static constexpr std::uint32_t send_in_kernel = 1u << 15;  // or a connect
    static constexpr std::uint32_t in_kernel = receive_in_kernel | send_in_kernel;
    // Results that the next wait will give.
    static constexpr std::uint32_t result_received = 1u << 16;
    static constexpr std::uint32_t result_sent = 1u << 17;
    static constexpr std::uint32_t result_connected = 1u << 18;

    // What a handle was tied to the port with.
    static constexpr std::uint32_t key_wake = 1;
    static constexpr std::uint32_t key_connection = 2;
    static constexpr std::uint32_t key_listener = 3;
    static constexpr std::uint32_t key_datagram = 4;
    static constexpr std::uint32_t key_pipe = 5;  // of an accept first, of its connection later

    static constexpr std::uint64_t handles_max = 16'711'680;
    static constexpr std::uint32_t ready_room = 64;
    static constexpr int accept_tries_max = 16;
    // One operation takes all its bytes or none and locks their pages meanwhile: never too many.
    static constexpr std::size_t send_bytes_max = 256 * 1024;

    /// Where everything lies in the memory given.
    struct layout : detail::block_places<connection, listener, datagram_socket, datagram_send> {
        std::size_t released = 0;
        std::size_t end = 0;

        static constexpr layout of(const backend_limits& sizes) noexcept {
            layout out;
            out.released = out.place(ready_room * sizeof(detail::windows::completion), sizes);
            out.end = detail::aligned(out.released + sizes.connections * sizeof(socket_type));
            return out;
        }
    };

    void lay_out(std::byte* memory, const backend_limits& sizes) noexcept {
        const layout places = layout::of(sizes);
        sizes_ = sizes;
        ready_ = reinterpret_cast<detail::windows::completion*>(memory);
        connections_ = reinterpret_cast<connection*>(memory + places.connections);
        listeners_ = reinterpret_cast<listener*>(memory + places.listeners);
        datagram_sockets_ =
            reinterpret_cast<datagram_socket*>(memory + places.datagram_sockets);
        datagram_sends_ = reinterpret_cast<datagram_send*>(memory + places.datagram_sends);
        released_ = reinterpret_cast<socket_type*>(memory + places.released);
        released_at_ = 0;
        ready_at_ = ready_end_ = 0;
        empty_lines();
        outstanding_count_ = 0;
        skipped_ = false;
    }

    /// AcceptEx and ConnectEx belong to the provider of sockets; whether its sockets are handles of
    /// the kernel decides if skipping the port is safe.
    os_status find_extensions() noexcept {
        namespace windows = detail::windows;
        socket_type probe = Sys::open_socket(windows::family_ipv4, windows::type_stream);
        if (probe == windows::no_socket) {
            probe = Sys::open_socket(windows::family_ipv6, windows::type_stream);
        }
        if (probe == windows::no_socket) {
            return detail::status_of(Sys::last_error());
        }
        os_status out;
        if (Sys::extension(probe, windows::accept_ex_guid, accept_ex_) != 0 ||
            Sys::extension(probe, windows::connect_ex_guid, connect_ex_) != 0 ||
            Sys::extension(probe, windows::accept_addresses_guid, accept_addresses_) != 0) {
            out = detail::status_of(Sys::last_error());
        }
        alignas(8) std::byte about[windows::protocol_info_bytes] = {};
        int size = sizeof(about);
        std::uint32_t services = 0;
        if (Sys::getsockopt(probe, windows::level_socket, windows::option_protocol_info, about,
                            &size) == 0) {
            std::memcpy(&services, about, sizeof(services));
        }
        may_skip_ = (services & windows::provides_file_handles) != 0;
        Sys::close_socket(probe);
        return out;
    }

    static socket_type socket_of(socket_handle handle) noexcept {
        return detail::socket_of(handle);
    }
    bool tie(socket_type socket, std::uint32_t key) noexcept {
        return Sys::port(reinterpret_cast<void*>(socket), port_, key) != nullptr;
    }
    /// Was it released from here? As many as there are connections are remembered, each once.
    bool take_released(socket_type socket) noexcept {
        for (std::uint32_t index = 0; index < sizes_.connections; ++index) {
            if (released_[index] == socket) {
                released_[index] = 0;
                return true;
            }
        }
        return false;
    }
    std::uint32_t skipping(socket_type socket) const noexcept {
        return may_skip_ && Sys::skip_on_success(socket) ? skips : 0;
    }
    /// Will a completion come?
    static bool waits(const connection& at, int code) noexcept {
        return code == detail::windows::operation_pending ||
               (code == 0 && (at.flags & skips) == 0);
    }

    static std::uint64_t address_of(const void* at) noexcept {
        return reinterpret_cast<std::uintptr_t>(at);
    }
    static char* pointer_of(std::uint64_t address) noexcept {
        return reinterpret_cast<char*>(static_cast<std::uintptr_t>(address));
    }
    static std::uint32_t clipped(std::size_t count) noexcept {
        return count < INT_MAX ? static_cast<std::uint32_t>(count) : INT_MAX;
    }
    connection& connection_of(token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(at.generation == who.generation());
        return at;
    }
    listener& listener_of(token who) noexcept {
        return listeners_[checked(who, sizes_.listeners)];
    }
    static void begin(connection& at, socket_type socket, token who,
                      std::uint32_t flags) noexcept {
        at = connection{};
        at.socket = socket;
        at.generation = who.generation();
        at.flags = flags;
    }
    /// The slices in the system's form, cut to what one operation may take.
    static std::uint32_t cut(std::span<const bytes> slices,
                             detail::windows::slice* pieces) noexcept {
        std::size_t room = send_bytes_max;
        std::uint32_t count = 0;
        for (const bytes each : slices) {
            NETIO_ASSERT(!each.empty());
            const std::size_t taken = each.size() < room ? each.size() : room;
            if (taken != 0) {
                pieces[count++] = {static_cast<unsigned long>(taken),
                                   pointer_of(address_of(each.data()))};
            }
            room -= taken;
        }
        return count;
    }

    // ---- the run list: blocks whose next step needs no completion

    /// Steps through at most `nodes` blocks while more than `spare` events have room; those left.
    std::uint32_t work_off_run_list(detail::event_writer& to, std::uint32_t nodes,
                                    std::uint32_t spare) noexcept {
        while (nodes != 0 && to.room() > spare) {
            --nodes;
            const std::uint32_t id = unlink_first();
            const std::uint32_t index = (id & id_index) - 1;
            switch (id & ~id_index) {
            case 0: step_connection(index, to); break;
            case datagram_kind: step_datagrams(index, to); break;
            default: give_send_to(index, to); break;
            }
        }
        return nodes;
    }

    void step_connection(std::uint32_t index, detail::event_writer& to) noexcept {
        connection& at = connections_[index];
        const token who = token::of(index, at.generation);
        NETIO_ASSERT(to.room() != 0);
        if ((at.flags & closing) != 0) {
            finish_close(at, who, to);
            return;
        }
        if ((at.flags & result_connected) != 0) {
            at.flags &= ~result_connected;
            connected(at, who, at.sent_code, to);
        }
        if ((at.flags & result_sent) != 0) {
            at.flags &= ~result_sent;
            give_sent(at, who, at.sent_code, at.sent_bytes, to);
        }
        if ((at.flags & (result_received | stopping | readable)) == 0) {
            return;
        }
        if (to.room() == 0) {
            link(index + 1);
        } else if ((at.flags & result_received) != 0) {
            at.flags &= ~result_received;
            received(at, index, at.received_code, at.received_bytes, to);
        } else if ((at.flags & stopping) == 0) {
            receive_if_due(at, index, to);
        } else if ((at.flags & receive_in_kernel) == 0) {
            end_receive(at);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        }
    }

    // ---- connections

    /// Bound to any address first, which ConnectEx wants. Unix sockets know only the plain connect.
    os_status connect_now(connection& at, token who, const detail::socket_address& where, int size,
                          const socket_options& options) noexcept {
        const bool tcp = where.family != detail::windows::family_unix;
        detail::option_setter<Sys> to(at.socket);
        detail::set_socket_options(to, tcp, options);
        if (!to.status) {
            return to.status;
        }
        detail::socket_address any{};
        any.family = where.family;
        if ((tcp && Sys::bind(at.socket, &any, size) != 0) || !tie(at.socket, key_connection)) {
            return detail::status_of(Sys::last_error());
        }
        at.flags |= skipping(at.socket);
        int code = 0;
        if (tcp) {
            code = Sys::connect_overlapped(connect_ex_, at.socket, &where, size, &at.send_op);
        } else if (Sys::connect(at.socket, &where, size) != 0) {
            code = Sys::last_error();
        }
        if (tcp && waits(at, code)) {
            at.flags |= send_in_kernel;
            ++outstanding_count_;
        } else if (code != 0) {
            return detail::status_of(code);
        } else {
            at.flags |= result_connected;
            link(who.index() + 1);
        }
        return {};
    }

    void connected(connection& at, token who, int code, detail::event_writer& to) noexcept {
        NETIO_ASSERT((at.flags & connecting) != 0);
        at.flags = (at.flags & ~connecting) | attached;
        if (code != 0) {
            at.flags |= receive_over | send_over;
            to.fail(who, operation::connect, detail::error_of(code), code);
            return;
        }
        know_peer(at);
        to.put(who, operation::connect, event_kind::connected).handle =
            static_cast<socket_handle>(at.socket);
    }

    /// Before this the socket knows neither its peer nor how to end its sending.
    static void know_peer(const connection& at) noexcept {
        Sys::setsockopt(at.socket, detail::windows::level_socket,
                        detail::windows::option_connected, nullptr, 0);
    }

    static void end_receive(connection& at) noexcept {
        at.flags &= ~(receiving | into_memory | stopping);
    }

    /// Into the caller's memory, or of no bytes: that one ends when there is something to read.
    void arm_receive(connection& at, std::uint32_t index) noexcept {
        detail::windows::slice into{0, reinterpret_cast<char*>(&at.received_bytes)};
        if ((at.flags & into_memory) != 0) {
            into = {at.receive_count, pointer_of(at.into)};
        }
        unsigned long got = 0;
        at.receive_op = {};
        at.received_code = 0;
        const int code = (at.flags & piped) != 0
                             ? read_pipe(at, into, got)
                             : Sys::receive_overlapped(at.socket, into, got, &at.receive_op);
        if (waits(at, code)) {
            at.flags |= receive_in_kernel;
            ++outstanding_count_;
        } else {
            at.flags |= result_received;
            at.received_bytes = static_cast<std::uint32_t>(got);
            at.received_code = code;
            link(index + 1);
        }
    }

    /// A receive of the kernel has ended.
    void received(connection& at, std::uint32_t index, int code, std::uint32_t byte_count,
                  detail::event_writer& to) noexcept {
        const token who = token::of(index, at.generation);
        const bool stopped = (at.flags & stopping) != 0;
        NETIO_ASSERT((at.flags & (receiving | piped)) != 0);
        if ((at.flags & receiving) == 0) {
            return;  // of `take_back_read`
        }
        if ((at.flags & into_memory) == 0 && !stopped) {
            // Whatever ended it: the read tells, and there may be bytes before an end.
            at.flags |= readable;
            receive_if_due(at, index, to);
            return;
        }
        const bool waited = (at.flags & into_memory) == 0;
        if ((at.flags & piped) != 0) {
            const bool nothing = code == 0 && byte_count == 0;  // was written, which is no end
            if (nothing && !stopped) {
                arm_receive(at, index);
                return;
            }
            code = nothing ? detail::windows::operation_aborted : told_by_pipe(at, code);
        }
        end_receive(at);
        if (waited || (stopped && code == detail::windows::operation_aborted)) {
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        } else if (code != 0) {
            at.flags |= receive_over;
            to.fail(who, operation::receive, detail::error_of(code), code);
        } else if (byte_count == 0) {
            at.flags |= receive_over;
            to.put(who, operation::receive, event_kind::ended);
        } else {
            event& out = to.put(who, operation::receive, event_kind::received);
            out.byte_count = byte_count;
            out.disarmed = true;
        }
    }

    /// One read, if a receive into the pool is outstanding and there may be something. At most one
    /// buffer a connection in one wait: what is left goes to the run list.
    void receive_if_due(connection& at, std::uint32_t index, detail::event_writer& to) noexcept {
        constexpr std::uint32_t due = receiving | readable;
        if ((at.flags & (due | into_memory | starved)) != due) {
            return;
        }
        if (to.room() == 0) {
            link(index + 1);
            return;
        }
        const std::uint32_t buffer =
            starved_first_ == 0 ? pool_->take(side::input) : none_index;
        if (buffer == none_index) {
            link_starved(index + 1);
        } else {
            receive(at, index, buffer, to);
        }
    }

    void receive(connection& at, std::uint32_t index, std::uint32_t buffer,
                 detail::event_writer& to) noexcept {
        const token who = token::of(index, at.generation);
        const std::uint32_t count = pool_->buffer_bytes();
        int code = 0;
        const int got = (at.flags & piped) != 0
                            ? take_from_pipe(at, pool_->data(buffer), count, code)
                            : Sys::receive(at.socket, pool_->data(buffer),
                                           static_cast<int>(count));
        if (got > 0) {
            const auto byte_count = static_cast<std::uint32_t>(got);
            at.flags &= byte_count < count ? ~readable : ~0u;
            at.received_code = 0;
            event& out = to.put(who, operation::receive, event_kind::received);
            out.byte_count = byte_count;
            out.buffer_index = buffer;
            out.disarmed = byte_count >= at.receive_count;
            if (out.disarmed) {
                end_receive(at);
            } else {
                at.receive_count -= byte_count;
                go_on_receiving(at, index);
            }
            return;
        }
        if (got == 0) {
            code = 0;
        } else if ((at.flags & piped) == 0) {
            code = Sys::last_error();
        }
        pool_->give(buffer, side::input, code == detail::windows::operation_aborted ? count : 0);
        if (code == detail::windows::would_block && at.received_code != 0) {
            code = at.received_code;  // no wait could be had: asking again and again is none
        } else if (code == detail::windows::would_block) {
            at.flags &= ~readable;
            go_on_receiving(at, index);
            return;
        }
        end_receive(at);
        at.flags |= receive_over;
        if (code == 0) {
            to.put(who, operation::receive, event_kind::ended);
        } else {
            to.fail(who, operation::receive, detail::error_of(code), code);
        }
    }

    void go_on_receiving(connection& at, std::uint32_t index) noexcept {
        if ((at.flags & readable) != 0) {
            link(index + 1);
        } else {
            arm_receive(at, index);
        }
    }

    static void give_sent(connection& at, token who, int code, std::uint32_t byte_count,
                          detail::event_writer& to) noexcept {
        NETIO_ASSERT((at.flags & sending) != 0);
        at.flags &= ~sending;
        if (code == 0) {
            to.put(who, operation::send, event_kind::sent).byte_count = byte_count;
        } else {
            to.fail(who, operation::send, detail::error_of(code), code);
        }
    }

    static void finish_close(connection& at, token who, detail::event_writer& to) noexcept {
        if ((at.flags & in_kernel) != 0) {
            return;  // linked again when the last one has ended
        }
        close_socket_of(at);
        at = connection{};
        to.put(who, operation::close, event_kind::closed);
    }
    /// A connect may have succeeded meanwhile.
    static void close_socket_of(const connection& at) noexcept {
        if ((at.flags & piped) != 0) {
            detail::close_one_pipe<Sys>(at.socket, (at.flags & abortive) != 0);
            return;
        }
        if ((at.flags & result_connected) != 0 && at.sent_code == 0) {
            know_peer(at);
        }
        detail::close_one_socket<Sys>(at.socket, (at.flags & abortive) != 0);
    }

    /// Null for one of a socket that somebody else goes on with, while ours is its port.
    connection* connection_of(const detail::windows::completion& what) noexcept {
        const auto offset = static_cast<std::size_t>(
            reinterpret_cast<std::byte*>(what.operation) -
            reinterpret_cast<std::byte*>(connections_));
        return offset < sizes_.connections * sizeof(connection)
                   ? connections_ + offset / sizeof(connection)
                   : nullptr;
    }

    void complete_connection(const detail::windows::completion& what,
                             detail::event_writer& to) noexcept {
        connection* const found = connection_of(what);
        if (found == nullptr) {
            ++stale_count_;
            return;
        }
        connection& at = *found;
        const auto index = static_cast<std::uint32_t>(found - connections_);
        const bool of_receive = what.operation == &at.receive_op;
        const std::uint32_t mark = of_receive ? receive_in_kernel : send_in_kernel;
        if ((at.flags & mark) == 0) {
            ++stale_count_;
            return;
        }
        at.flags &= ~mark;
        --outstanding_count_;
        const token who = token::of(index, at.generation);
        const int code = code_of(what);
        if ((at.flags & closing) != 0) {
            note_connected(at, code);
            link(index + 1);
        } else if (of_receive) {
            received(at, index, code, what.byte_count, to);
        } else if ((at.flags & connecting) != 0) {
            connected(at, who, code, to);
        } else {
            give_sent(at, who, code, what.byte_count, to);
        }
    }

    /// It is closed before anybody hears of its connect.
    static void note_connected(connection& at, int code) noexcept {
        at.flags |= (at.flags & connecting) != 0 && code == 0 ? result_connected : 0;
    }

    static int code_of(const detail::windows::completion& what) noexcept {
        return code_of(*what.operation);
    }
    static int code_of(const overlapped& what) noexcept {
        return detail::code_of_status(static_cast<std::uint32_t>(what.status));
    }

    // ---- named pipes, where they differ from sockets

    /// An operation; after `end_send` of what is there already only, else the end is reported.
    int read_pipe(connection& at, detail::windows::slice into, unsigned long& got) noexcept {
        if ((at.flags & send_over) != 0) {
            if (into.byte_count == 0) {
                return 0;  // `take_from_pipe` looks
            }
            unsigned long there = 0;
            const int code = Sys::look_into_pipe(at.socket, there);
            if (code != 0 || there == 0) {
                return code != 0 ? code : detail::windows::pipe_broken;
            }
        }
        return Sys::read_pipe(at.socket, into, got, &at.receive_op);
    }

    /// One slice, and not more than a pipe holds if nothing is said: else nothing is told before
    /// all of it was read. The caller starts the rest.
    static int write_pipe(connection& at, detail::windows::slice from,
                          unsigned long& sent) noexcept {
        const unsigned long most = detail::pipe_buffer_bytes;
        from.byte_count = from.byte_count < most ? from.byte_count : most;
        return Sys::write_pipe(at.socket, from, sent, &at.send_op);
    }

    /// What is there, so that the read ends at once and no buffer is lent: its bytes, 0 at the end,
    /// or -1 and `code`.
    int take_from_pipe(connection& at, void* into, std::uint32_t count, int& code) noexcept {
        namespace windows = detail::windows;
        unsigned long there = 0;
        unsigned long got = 0;
        code = Sys::look_into_pipe(at.socket, there);
        if (code == 0 && there == 0) {
            code = (at.flags & send_over) != 0 ? windows::pipe_broken : windows::would_block;
        } else if (code == 0) {
            at.receive_op = {};
            code = Sys::read_pipe(at.socket,
                                  {there < count ? there : count, static_cast<char*>(into)}, got,
                                  &at.receive_op);
        }
        if (code == windows::operation_pending) {
            code = take_back_read(at);
        }
        return code == 0 ? static_cast<int>(got) : code == windows::pipe_broken ? 0 : -1;
    }

    /// Somebody else holds our end, too, and read what we saw. The buffer is ours again when this
    /// returns; the completion is counted and comes to a receive that is over.
    int take_back_read(connection& at) noexcept {
        Sys::cancel(at.socket, &at.receive_op);
        while (static_cast<const volatile overlapped&>(at.receive_op).status ==
               detail::windows::status_pending) {
            Sys::yield();
        }
        at.flags |= receive_in_kernel;
        ++outstanding_count_;
        return detail::windows::operation_aborted;
    }

    /// There is no half of a pipe to end: what has come is still received, then the end, so that
    /// the caller has no reason to wait before it closes.
    void end_pipe(connection& at) noexcept {
        if ((at.flags & receive_in_kernel) != 0) {
            Sys::cancel(at.socket, &at.receive_op);
        }
    }
    /// Of a read that brought nothing, as a socket tells it. Broken is the end, and so is what
    /// `end_pipe` cancelled: 0.
    static int told_by_pipe(const connection& at, int code) noexcept {
        const bool cancelled = code == detail::windows::operation_aborted;
        const bool over = cancelled && (at.flags & (send_over | stopping)) == send_over;
        return over || code == detail::windows::pipe_broken ? 0 : code;
    }

    /// What the instances made for its clients have to be like.
    int look_at_pipe(listener& at, socket_type first) noexcept {
        detail::windows::file_name told{};
        int code = Sys::pipe_sizes(first, at.send_bytes, at.receive_bytes);
        code = code != 0 ? code : Sys::pipe_name(first, told);
        const std::size_t count = told.byte_count / sizeof(wchar_t);
        constexpr wchar_t device[] = L"\\\\.\\pipe";
        constexpr std::size_t device_count = sizeof(device) / sizeof(wchar_t) - 1;
        if (code != 0 || count > detail::pipe_path_max - device_count) {
            return code != 0 ? code : detail::windows::parameter_wrong;
        }
        at.name = {};
        std::memcpy(at.name.text, device, device_count * sizeof(wchar_t));
        std::memcpy(at.name.text + device_count, told.text, count * sizeof(wchar_t));
        at.foreign = true;  // each instance has a handle of its own: none is another loop's
        return 0;
    }

    /// An instance, and a wait for the client it will be; the reason if that fails.
    int arm_pipe(listener& at, accept_slot& mine) noexcept {
        const socket_type made = Sys::make_pipe(at.name.text, false, at.send_bytes,
                                                at.receive_bytes, detail::owner_only);
        if (made == detail::windows::no_socket) {
            return Sys::last_error();
        }
        int code = 0;
        // Else a read that ends at once would have a completion, too.
        if (!tie(made, key_pipe) || !Sys::skip_on_success(made)) {
            code = Sys::last_error();
        } else {
            occupy(at, mine, made);
            code = begin_wait(mine);
        }
        if (code != 0) {
            Sys::close_pipe(made);
        } else {
            mine.outstanding = true;
            ++outstanding_count_;
        }
        return code;
    }
    /// One who came before the wait, and may be gone already, is told as if he came after it.
    int begin_wait(accept_slot& mine) noexcept {
        mine.shared.begin(port_);
        const int code = Sys::wait_for_client(mine.socket, &mine.shared.op);
        if (code == detail::windows::operation_pending) {
            return 0;
        }
        if (code != 0 && code != detail::windows::pipe_connected &&
            code != detail::windows::pipe_closing) {
            return code;
        }
        mine.shared.op.status = 0;
        return Sys::post(port_, 0, key_pipe, &mine.shared.op) ? 0 : Sys::last_error();
    }

    /// An instance takes clients until it is closed: one may have come after the wait's cancel.
    static int pipe_code(const accept_slot& mine) noexcept {
        const int code = code_of(mine.shared.op);
        unsigned long there = 0;
        const int seen = code != 0 ? Sys::look_into_pipe(mine.socket, there) : 0;
        return seen == 0 || seen == detail::windows::pipe_broken ? 0 : code;
    }

    /// A completion of a pipe is of an accept until its client has come.
    std::uint32_t key_of(const detail::windows::completion& what) const noexcept {
        if (what.key != key_pipe) {
            return static_cast<std::uint32_t>(what.key);
        }
        const auto offset = static_cast<std::size_t>(
            reinterpret_cast<const std::byte*>(what.operation) -
            reinterpret_cast<const std::byte*>(listeners_));
        return offset < sizes_.listeners * sizeof(listener) ? key_listener : key_connection;
    }

    // ---- receives without a buffer: served in the order they came

    /// At most a quarter of the events, so that what is ready moves on too.
    void serve_starved(detail::event_writer& to) noexcept {
        if (starved_first_ == 0) {
            return;
        }
        const std::uint32_t quarter = to.room() / 4 != 0 ? to.room() / 4 : 1;
        const std::uint32_t spare = to.room() > quarter ? to.room() - quarter : 0;
        while (starved_first_ != 0 && to.room() > spare && pool_->room(side::input) != 0) {
            const std::uint32_t buffer = pool_->take(side::input);
            NETIO_ASSERT(buffer != none_index);
            const std::uint32_t id = starved_first_;
            const std::uint32_t index = (id & id_index) - 1;
            unlink_starved(id);
            if ((id & datagram_kind) != 0) {
                read_datagram(datagram_sockets_[index], index, buffer, to);
            } else {
                receive(connections_[index], index, buffer, to);
            }
        }
    }

    // ---- listeners

    /// Its completions come to our port, or to that of the loop which was first.
    int tie_listener(listener& at, socket_type socket) noexcept {
        const bool tied = tie(socket, key_listener);
        if (!tied && Sys::last_error() != detail::windows::parameter_wrong) {
            return Sys::last_error();
        }
        at.tied = tied ? socket : at.tied;
        at.foreign = at.tied != socket;
        return look_at_listener(at, socket);
    }

    /// What the sockets made for its clients have to be like.
    int look_at_listener(listener& at, socket_type socket) noexcept {
        detail::socket_address where{};
        int size = sizeof(where);
        if (Sys::getsockname(socket, &where, &size) != 0) {
            return Sys::last_error();
        }
        at.family = where.family;
        std::uint32_t no_delay = 0;
        size = sizeof(no_delay);
        at.no_delay =
            at.family != detail::windows::family_unix &&
            Sys::getsockopt(socket, detail::windows::level_tcp, detail::windows::option_no_delay,
                            &no_delay, &size) == 0 &&
            (no_delay & 0xFF) != 0;
        return 0;
    }

    /// A socket made before, and a wait for the client it will be; the reason if that fails.
    int arm_accept(listener& at, accept_slot& mine) noexcept {
        if (mine.outstanding) {
            return 0;  // of an accept that was stopped; armed again when its completion comes
        }
        if (at.piped) {
            return arm_pipe(at, mine);
        }
        const os_handle made =
            detail::make_socket<Sys>(at.family, detail::windows::type_stream);
        if (!made) {
            return made.status.os_code;
        }
        occupy(at, mine, socket_of(made.handle));
        int code = detail::windows::connection_reset;
        // A client that is gone before it was accepted is reported at once.
        for (int tries = 0; tries < accept_tries_max && of_one_client(code); ++tries) {
            mine.shared.begin(port_);
            code = Sys::accept_overlapped(accept_ex_, at.socket, mine.socket, mine.addresses,
                                          detail::iocp_address_bytes, &mine.shared.op);
        }
        if (code != 0 && code != detail::windows::operation_pending) {
            Sys::close_socket(mine.socket);
            return code;
        }
        mine.outstanding = true;
        ++outstanding_count_;
        return 0;
    }

    static void occupy(const listener& at, accept_slot& mine, socket_type with) noexcept {
        mine.socket = with;
        mine.generation = at.generation;
        mine.start = at.start;
        mine.unwanted = false;
        mine.piped = at.piped;
    }

    static bool of_one_client(int code) noexcept {
        switch (code) {
        case detail::windows::connection_reset:
        case detail::windows::connection_aborted:
        case detail::windows::network_reset:
        case detail::windows::not_connected: return true;
        default: return false;
        }
    }
    static bool exhausted(int code) noexcept {
        return code == detail::windows::handles_empty || code == detail::windows::memory_empty ||
               code == detail::windows::resources_empty;
    }
    static os_status accept_failure(int code) noexcept {
        return {exhausted(code) ? error::descriptors_empty : detail::error_of(code), code};
    }

    /// No new ones. What was accepted meanwhile is on its way through the port and is delivered,
    /// unless nobody was promised anything.
    void forget(listener& at, bool unwanted = false) noexcept {
        for (accept_slot& each : at.accepts) {
            if (each.outstanding && each.start == at.start) {
                each.unwanted = unwanted;
                Sys::cancel(each.piped ? each.socket : at.socket, &each.shared.op);
            }
        }
        at.flags = 0;
    }

    std::uint32_t index_of(const accept_slot& mine) const noexcept {
        const auto offset =
            static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&mine) -
                                     reinterpret_cast<const std::byte*>(listeners_));
        const auto index = static_cast<std::uint32_t>(offset / sizeof(listener));
        NETIO_ASSERT(index < sizes_.listeners);
        return index;
    }

    struct accepted_client {
        socket_type socket;
        bool piped;
    };

    void complete_accept(const detail::windows::completion& what,
                         detail::event_writer& to) noexcept {
        accept_slot& mine = *reinterpret_cast<accept_slot*>(what.operation);
        const std::uint32_t index = index_of(mine);
        listener& at = listeners_[index];
        if (!mine.outstanding || !mine.shared.ended()) {
            ++stale_count_;
            return;
        }
        mine.outstanding = false;
        --outstanding_count_;
        const token owner = token::of(index, mine.generation);
        const accepted_client client{mine.socket, mine.piped};
        const bool current = at.flags != 0 && at.start == mine.start;
        const bool unwanted = mine.unwanted;
        const int code = mine.piped ? pipe_code(mine) : code_of(what);
        // Before the next accept writes there.
        const endpoint peer = code == 0 ? peer_of(mine) : endpoint{};
        std::memset(mine.addresses, 0, sizeof(mine.addresses));
        const int armed = at.flags == 0 ? 0 : next_accept(at, mine, current, code);
        if (armed != 0) {
            // The client takes the place of a spare handle: it learns at once that nobody serves.
            close_client(at, client, code);
            forget(at);
            const os_status why = accept_failure(armed);
            to.fail(token::of(index, at.generation), operation::accept, why.why, why.os_code);
        } else if (code != 0 || unwanted) {
            close_client(at, client, code);
        } else if (!welcome(at, client)) {
            detail::close_one_socket<Sys>(client.socket, true);  // its listener is gone already
        } else {
            event& out = to.put(owner, operation::accept, event_kind::accepted);
            out.handle = client.piped ? detail::pipe_handle(client.socket, port_)
                                      : static_cast<socket_handle>(client.socket);
            out.peer = peer;
        }
    }

    /// Arms the place again; the reason why the accept has to end, or 0.
    int next_accept(listener& at, accept_slot& mine, bool current, int code) noexcept {
        const bool passing =
            code == 0 || !current || of_one_client(code) || code == windows_timed_out;
        return passing ? arm_accept(at, mine) : code;
    }
    static constexpr int windows_timed_out = 10060;

    endpoint peer_of(accept_slot& from) const noexcept {
        if (from.piped) {
            endpoint out;
            out.family = address_family::unix_path;
            out.scope_id = Sys::pipe_process(from.socket);
            return out;
        }
        void* local = nullptr;
        void* remote = nullptr;
        int local_bytes = 0;
        int remote_bytes = 0;
        accept_addresses_(from.addresses, 0, detail::iocp_address_bytes,
                          detail::iocp_address_bytes, &local, &local_bytes, &remote,
                          &remote_bytes);
        detail::socket_address peer{};
        if (remote == nullptr || remote_bytes < 2) {
            return {};
        }
        const auto size = static_cast<std::size_t>(remote_bytes);
        std::memcpy(&peer, remote, size < sizeof(peer) ? size : sizeof(peer));
        return detail::to_endpoint(peer, remote_bytes);
    }

    /// An accepted socket has neither a name nor the listener's options before it is told whose
    /// client it is, and takes no option but this. False if it can't be told any more.
    static bool welcome(const listener& at, accepted_client what) noexcept {
        if (what.piped) {
            return true;
        }
        const socket_type from = at.socket;
        const socket_type client = what.socket;
        if (Sys::setsockopt(client, detail::windows::level_socket,
                            detail::windows::option_accepted_from, &from, sizeof(from)) != 0) {
            return false;
        }
        if (at.no_delay) {
            const std::uint32_t on = 1;
            Sys::setsockopt(client, detail::windows::level_tcp,
                            detail::windows::option_no_delay, &on, sizeof(on));
        }
        return true;
    }

    /// What an accept left: a client that is turned away, or if that failed a socket of nobody.
    static void close_client(const listener& at, accepted_client client, int code) noexcept {
        if (client.piped) {
            detail::close_one_pipe<Sys>(client.socket, code == 0);
            return;
        }
        if (code == 0) {
            welcome(at, client);
        }
        detail::close_one_socket<Sys>(client.socket, code == 0);
    }

    // ---- datagrams

    /// With a buffer of its own where the pool is well filled; else a peek at nothing, that ends
    /// when a datagram is there: sockets nobody writes to never hold what connections need.
    void arm_datagram(datagram_socket& at, std::uint32_t index) noexcept {
        const std::uint32_t room = pool_->room(side::input);
        const std::uint32_t buffer = room > 1 && room - 1 >= pool_->in_use(side::input)
                                         ? pool_->take(side::input)
                                         : none_index;
        detail::windows::slice into{0, reinterpret_cast<char*>(&at.peer)};
        at.buffer = 0;
        at.receive_flags = detail::windows::flag_peek;
        if (buffer != none_index) {
            at.buffer = buffer + 1;
            at.receive_flags = 0;
            into = {pool_->buffer_bytes(), reinterpret_cast<char*>(pool_->data(buffer))};
        }
        at.shared.begin(port_);
        std::memset(&at.peer, 0, sizeof(at.peer));  // nobody's address outlives its datagram
        at.peer_bytes = sizeof(at.peer);
        unsigned long got = 0;
        const int code =
            Sys::receive_from_overlapped(at.socket, into, got, at.receive_flags, &at.peer,
                                         at.peer_bytes, &at.shared.op);
        if (code == 0 || code == detail::windows::operation_pending) {
            at.flags |= receive_in_kernel;
            ++outstanding_count_;
            return;
        }
        // Ended at once: a datagram that did not fit is there, or an error of an earlier send is
        // to be skipped. A peek has left the datagram in the socket, a receive has not. For one
        // that did not fit the kernel posts a packet all the same: it comes when it comes.
        // A peek may leave the error, too: the read takes it away, and another peek would not.
        const bool read = code == detail::windows::message_too_long || at.buffer == 0;
        at.flags |= read ? result_received : 0;
        link(datagram_kind | (index + 1));
    }

    void complete_datagram(const detail::windows::completion& what,
                           detail::event_writer& to) noexcept {
        const auto* const at_sends = reinterpret_cast<std::byte*>(datagram_sends_);
        const auto* const at_op = reinterpret_cast<std::byte*>(what.operation);
        if (at_op >= at_sends) {
            complete_send_to(static_cast<std::size_t>(at_op - at_sends), what);
            return;
        }
        const auto offset = static_cast<std::size_t>(
            at_op - reinterpret_cast<std::byte*>(datagram_sockets_));
        const auto index = static_cast<std::uint32_t>(offset / sizeof(datagram_socket));
        NETIO_ASSERT(index < sizes_.datagram_sockets);
        datagram_socket& at = datagram_sockets_[index];
        // Of a receive that ended at once, so this one is the kernel's still, or is over as the
        // block says, whichever packet it was that came.
        if ((at.flags & receive_in_kernel) == 0 || !at.shared.ended()) {
            ++stale_count_;
            return;
        }
        at.flags &= ~receive_in_kernel;
        --outstanding_count_;
        const auto status = static_cast<std::uint32_t>(what.operation->status);
        datagram_arrived(at, index, code_of(what), status == detail::windows::status_cut,
                         static_cast<std::uint32_t>(what.operation->byte_count), to);
    }

    void datagram_arrived(datagram_socket& at, std::uint32_t index, int code, bool is_cut,
                          std::uint32_t byte_count, detail::event_writer& to) noexcept {
        const std::uint32_t buffer = at.buffer - 1;
        const bool peeked = at.buffer == 0;
        at.buffer = 0;
        if ((at.flags & closing) != 0) {
            give_back(peeked ? none_index : buffer, byte_count);
            link(datagram_kind | (index + 1));
        } else if (peeked) {
            read_soon(at, index, to);
        } else if (code != 0 && !is_cut) {
            give_back(buffer, 0);  // an error of an earlier send: skipped
            arm_datagram(at, index);
        } else {
            give_datagram(at, index, buffer, byte_count, is_cut, to);
            arm_datagram(at, index);
        }
    }

    void give_back(std::uint32_t buffer, std::uint32_t dirty_bytes) noexcept {
        if (buffer != none_index) {
            pool_->give(buffer, side::input, dirty_bytes);
        }
    }

    void give_datagram(datagram_socket& at, std::uint32_t index, std::uint32_t buffer,
                       std::uint32_t byte_count, bool is_cut, detail::event_writer& to) noexcept {
        event& out = to.put(token::of(index, at.generation), operation::receive_from,
                            event_kind::received);
        out.byte_count = byte_count;
        out.buffer_index = buffer;
        out.truncated = is_cut;
        out.peer = detail::to_endpoint(at.peer, at.peer_bytes);
    }

    /// A datagram is there: a buffer for it, or a place in the line.
    void read_soon(datagram_socket& at, std::uint32_t index, detail::event_writer& to) noexcept {
        const std::uint32_t buffer =
            starved_first_ == 0 ? pool_->take(side::input) : none_index;
        if (buffer == none_index) {
            link_starved(datagram_kind | (index + 1));
        } else {
            read_datagram(at, index, buffer, to);
        }
    }

    void read_datagram(datagram_socket& at, std::uint32_t index, std::uint32_t buffer,
                       detail::event_writer& to) noexcept {
        at.peer_bytes = sizeof(at.peer);
        const int got =
            Sys::receive_from(at.socket, pool_->data(buffer),
                              static_cast<int>(pool_->buffer_bytes()), &at.peer, &at.peer_bytes);
        const int code = got >= 0 ? 0 : Sys::last_error();
        const bool is_cut = code == detail::windows::message_too_long;
        if (code == 0 || is_cut) {
            give_datagram(at, index, buffer,
                          is_cut ? pool_->buffer_bytes() : static_cast<std::uint32_t>(got), is_cut,
                          to);
        } else {
            give_back(buffer, 0);
        }
        arm_datagram(at, index);
    }

    /// What could not be left in the kernel, and the end.
    void step_datagrams(std::uint32_t index, detail::event_writer& to) noexcept {
        datagram_socket& at = datagram_sockets_[index];
        const std::uint32_t buffer = at.buffer - 1;
        const bool had_buffer = at.buffer != 0;
        const bool arrived = (at.flags & result_received) != 0;
        at.flags &= ~result_received;
        at.buffer = 0;
        if ((at.flags & closing) != 0) {
            const token who = token::of(index, at.generation);
            give_back(had_buffer ? buffer : none_index, pool_->buffer_bytes());
            at = datagram_socket{};
            to.put(who, operation::receive_from, event_kind::closed);
        } else if (!arrived) {
            give_back(had_buffer ? buffer : none_index, 0);
            arm_datagram(at, index);
        } else if (had_buffer) {
            give_datagram(at, index, buffer, pool_->buffer_bytes(), true, to);
            arm_datagram(at, index);
        } else {
            read_soon(at, index, to);
        }
    }

    /// Tried at once; where the socket has no room, as an operation. 0, the reason, or "pending".
    int send_to_now(datagram_send& at, bytes payload, const endpoint& peer) noexcept {
        detail::socket_address where;
        const int size = detail::to_socket_address(peer, where);
        if (size == 0) {
            return detail::windows::destination_missing;
        }
        at.count = clipped(payload.size());
        int code = detail::windows::connection_reset;
        // An error of an earlier datagram is fetched by the first call; the second one sends.
        for (int tries = 0; tries < 3 && of_one_client(code); ++tries) {
            const int sent = Sys::send_to(at.socket, payload.data(), static_cast<int>(at.count),
                                          &where, size);
            code = sent >= 0 ? 0 : Sys::last_error();
        }
        if (code != detail::windows::would_block) {
            return code;
        }
        if (!tie(at.socket, key_datagram) &&
            Sys::last_error() != detail::windows::parameter_wrong) {  // that is: tied already
            return Sys::last_error();
        }
        at.shared.begin(port_);
        unsigned long sent = 0;
        const detail::windows::slice piece{at.count, pointer_of(address_of(payload.data()))};
        code = Sys::send_to_overlapped(at.socket, piece, &where, size, sent, &at.shared.op);
        if (code != 0 && code != detail::windows::operation_pending) {
            return code;
        }
        at.flags |= send_in_kernel;
        ++outstanding_count_;
        return detail::windows::operation_pending;
    }

    void complete_send_to(std::size_t offset, const detail::windows::completion& what) noexcept {
        const auto index = static_cast<std::uint32_t>(offset / sizeof(datagram_send));
        NETIO_ASSERT(index < sizes_.datagram_sends);
        datagram_send& at = datagram_sends_[index];
        if ((at.flags & send_in_kernel) == 0 || !at.shared.ended()) {
            ++stale_count_;
            return;
        }
        at.flags &= ~send_in_kernel;
        --outstanding_count_;
        at.code = code_of(what);
        link(send_kind | (index + 1));
    }

    void give_send_to(std::uint32_t index, detail::event_writer& to) noexcept {
        datagram_send& at = datagram_sends_[index];
        const token who = token::of(index, at.generation);
        const std::uint32_t count = at.count;
        const int code = at.code;
        at = datagram_send{};
        if (code == 0) {
            to.put(who, operation::send_to, event_kind::sent).byte_count = count;
        } else {
            to.fail(who, operation::send_to, detail::error_of(code), code);
        }
    }

    // ---- waiting

    void complete(const detail::windows::completion& what, detail::event_writer& to) noexcept {
        if (what.operation == nullptr) {
            return;  // a wake: the word says more
        }
        const std::uint32_t key = key_of(what);
        if (key == key_connection) {
            complete_connection(what, to);
            return;
        }
        void* const home =
            reinterpret_cast<detail::iocp_shared_operation*>(what.operation)->home;
        if (home != port_) {
            send_home(home, what);
        } else if (key == key_listener) {
            complete_accept(what, to);
        } else {
            complete_datagram(what, to);
        }
    }

    static void send_home(void* home, const detail::windows::completion& what) noexcept {
        if (home != nullptr) {
            Sys::post(home, what.byte_count, what.key, what.operation);
        }
    }

    void enter_kernel(detail::event_writer& to, std::uint64_t timeout_ns) noexcept {
        // "Without end" is all ones there and here.
        auto timeout_ms = static_cast<unsigned long>(detail::to_milliseconds(timeout_ns));
        if (timeout_ms != 0 && !wake_.announce_sleep()) {
            timeout_ms = 0;
        }
        unsigned long count = 0;
        if (!Sys::wait(port_, ready_, ready_room, count, timeout_ms)) {
            count = 0;
        }
        ready_at_ = 0;
        ready_end_ = static_cast<std::uint32_t>(count);
        if (to.count() == 0) {
            wake_.take(to);
        }
    }

    // ---- the end

    /// Ends all operations and waits for them, so that the kernel has no pointer of ours any more.
    /// No completion comes of a handle whose loop is closed already: its status tells.
    void end_everything() noexcept {
        for (std::uint32_t index = 0; index < sizes_.connections; ++index) {
            connection& at = connections_[index];
            if ((at.flags & in_kernel) != 0) {
                Sys::cancel(at.socket, nullptr);
            }
        }
        for (std::uint32_t index = 0; index < sizes_.listeners; ++index) {
            listener& at = listeners_[index];
            if (at.flags != 0 && !at.foreign) {
                Sys::cancel(at.socket, nullptr);  // other loops learn now that theirs are over
            } else if (at.flags != 0) {
                forget(at);
            }
        }
        for (std::uint32_t index = 0; index < sizes_.datagram_sockets; ++index) {
            datagram_socket& at = datagram_sockets_[index];
            if ((at.flags & receive_in_kernel) != 0) {
                Sys::cancel(at.socket, &at.shared.op);
            }
        }
        for (std::uint32_t index = 0; index < sizes_.datagram_sends; ++index) {
            datagram_send& at = datagram_sends_[index];
            if ((at.flags & send_in_kernel) != 0) {
                Sys::cancel(at.socket, &at.shared.op);
            }
        }
        drain_port();
        for (std::uint32_t index = 0; index < sizes_.connections; ++index) {
            const connection& at = connections_[index];
            if ((at.flags & (attached | connecting)) != 0) {
                close_socket_of(at);
            }
        }
        for (std::uint32_t index = 0; index < sizes_.listeners; ++index) {
            give_up_accepts(listeners_[index]);
        }
        give_back_datagrams();
    }

    /// Those that the loop which gets our completions has not sent on in time, or never will. What
    /// comes to it later has no home.
    static void give_up_accepts(listener& at) noexcept {
        for (accept_slot& each : at.accepts) {
            if (each.outstanding) {
                each.shared.home = nullptr;
                each.outstanding = false;
                close_client(at, {each.socket, each.piped}, detail::windows::operation_aborted);
            }
        }
    }

    /// Until every operation has come back; what others have here is sent on to them, and as long
    /// as such things come, ours may be behind them.
    void drain_port() noexcept {
        bool some = false;
        for (int tries = 0; tries < drain_tries_max;
             tries += !some || outstanding_count_ == 0 ? 1 : 0) {
            while (ready_at_ != ready_end_) {
                discard(ready_[ready_at_++]);
            }
            unsigned long count = 0;
            const unsigned long timeout_ms = outstanding_count_ == 0 ? 0 : 10;
            some = Sys::wait(port_, ready_, ready_room, count, timeout_ms);
            ready_at_ = 0;
            ready_end_ = some ? static_cast<std::uint32_t>(count) : 0;
            if (!some) {
                take_back_shared();
            }
            if (!some && outstanding_count_ == 0) {
                return;
            }
        }
    }
    static constexpr int drain_tries_max = 200;

    /// Operations on shared handles that are over although nobody sent a completion on. One that
    /// comes all the same has no home any more.
    void take_back_shared() noexcept {
        for (std::uint32_t index = 0; index < sizes_.listeners; ++index) {
            listener& at = listeners_[index];
            for (accept_slot& each : at.accepts) {
                if (each.outstanding && each.shared.ended()) {
                    each.shared.home = nullptr;
                    take_back_accept(at, each);
                }
            }
        }
        for (std::uint32_t index = 0; index < sizes_.datagram_sockets; ++index) {
            take_back(datagram_sockets_[index], receive_in_kernel);
        }
        for (std::uint32_t index = 0; index < sizes_.datagram_sends; ++index) {
            take_back(datagram_sends_[index], send_in_kernel);
        }
    }
    template <class Block>
    void take_back(Block& at, std::uint32_t mark) noexcept {
        if (ends(at, mark)) {
            at.shared.home = nullptr;
            --outstanding_count_;
        }
    }
    /// Whoever came is turned away.
    void take_back_accept(const listener& at, accept_slot& mine) noexcept {
        mine.outstanding = false;
        --outstanding_count_;
        std::memset(mine.addresses, 0, sizeof(mine.addresses));
        close_client(at, {mine.socket, mine.piped}, code_of(mine.shared.op));
    }

    void discard(const detail::windows::completion& what) noexcept {
        if (what.operation == nullptr) {
            return;
        }
        const std::uint32_t key = key_of(what);
        if (key != key_connection) {
            void* const home =
                reinterpret_cast<detail::iocp_shared_operation*>(what.operation)->home;
            if (home != port_) {
                send_home(home, what);
                return;
            }
        }
        if (key == key_listener) {
            accept_slot& mine = *reinterpret_cast<accept_slot*>(what.operation);
            if (mine.outstanding && mine.shared.ended()) {
                take_back_accept(listeners_[index_of(mine)], mine);
            }
        } else if (key == key_datagram) {
            outstanding_count_ -= was_awaited(what) ? 1 : 0;
        } else if (connection* const of = connection_of(what)) {
            --outstanding_count_;
            note_connected(*of, code_of(what));
        }
    }

    /// Has an operation ended that was the kernel's until now?
    bool was_awaited(const detail::windows::completion& what) noexcept {
        const auto* const at_op = reinterpret_cast<const std::byte*>(what.operation);
        const auto* const at_sends = reinterpret_cast<const std::byte*>(datagram_sends_);
        if (at_op >= at_sends) {
            const auto place = static_cast<std::size_t>(at_op - at_sends);
            return ends(datagram_sends_[place / sizeof(datagram_send)], send_in_kernel);
        }
        const auto offset = static_cast<std::size_t>(
            at_op - reinterpret_cast<const std::byte*>(datagram_sockets_));
        return ends(datagram_sockets_[offset / sizeof(datagram_socket)], receive_in_kernel);
    }
    template <class Block>
    static bool ends(Block& at, std::uint32_t mark) noexcept {
        const bool awaited = (at.flags & mark) != 0 && at.shared.ended();
        at.flags &= awaited ? ~mark : ~0u;
        return awaited;
    }

    /// Buffers that were posted with a receive; after `discard` nobody writes to them any more.
    /// What did not end in time has no home, so that nobody sends it to a port that is closed.
    void give_back_datagrams() noexcept {
        for (std::uint32_t index = 0; index < sizes_.datagram_sockets; ++index) {
            datagram_socket& at = datagram_sockets_[index];
            at.shared.home = nullptr;
            if (at.buffer != 0) {
                pool_->give(at.buffer - 1, side::input, pool_->buffer_bytes());
                at.buffer = 0;
            }
        }
        for (std::uint32_t index = 0; index < sizes_.datagram_sends; ++index) {
            datagram_sends_[index].shared.home = nullptr;
        }
    }

    backend_limits sizes_{};
    void* port_ = nullptr;
    buffer_pool* pool_ = nullptr;
    detail::windows::completion* ready_ = nullptr;
    listener* listeners_ = nullptr;
    socket_type* released_ = nullptr;  // the newest ones, in turn
    std::uint32_t released_at_ = 0;
    detail::windows::accept_ex accept_ex_ = nullptr;
    detail::windows::connect_ex connect_ex_ = nullptr;
    detail::windows::accept_addresses accept_addresses_ = nullptr;
    std::uint64_t stale_count_ = 0;
    std::uint32_t ready_at_ = 0;   // what the kernel reported and is not worked off: from here
    std::uint32_t ready_end_ = 0;  // to here
    std::uint32_t outstanding_count_ = 0;  // completions to come
    bool open_ = false;
    bool waiting_ = false;
    bool skipped_ = false;   // the last wait did without the kernel
    bool may_skip_ = false;  // sockets are handles of the kernel
    detail::wake_word wake_{};
};

using iocp = basic_iocp<>;
static_assert(backend<iocp>);

NETIO_END

#endif

#endif
