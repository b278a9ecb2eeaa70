// floor 6 · kqueue.hpp · the backend of macOS and the BSDs over kqueue: changes ride on the wait
#ifndef NETIO_KQUEUE_HPP
#define NETIO_KQUEUE_HPP

#include "platform/socket_posix.hpp"
#include "platform/waiting.hpp"

#if NETIO_HAS_KQUEUE

#include <sys/types.h>
// after sys/types.h, as kqueue(2) has it
#include <sys/event.h>
#include <sys/time.h>

NETIO_BEGIN

namespace detail {

/// A change asked for, or an event told. Its members' types differ from system to system.
using kqueue_event = struct ::kevent;

}  // namespace detail

/// The system calls of the kqueue backend. Tests put their own in place of it to count calls and to
/// let the n-th one fail.
struct kqueue_sys : posix_sys {
    /// What udata can carry of a token: on 32-bit systems its index and operation.
    using udata_word = std::uintptr_t;

    static int kqueue_create() noexcept {
        const int made = ::kqueue();
        if (made >= 0 && ::fcntl(made, F_SETFD, FD_CLOEXEC) != 0) {
            const int code = errno;
            ::close(made);
            errno = code;
            return -1;
        }
        return made;
    }
    static int kevent(int in, const detail::kqueue_event* changes, int change_count,
                      detail::kqueue_event* out, int count_max, const timespec* timeout) noexcept {
        return ::kevent(in, changes, change_count, out, count_max, timeout);
    }
};

namespace detail {

/// What a backend remembers of one connection. All-zero is "no connection".
struct kqueue_connection {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;  // in the run list, an id
    union {
        std::uint64_t into;    // receive into the caller's memory: its address
        block_links starved;  // receive into the pool: its place among those without a buffer
    };
    std::uint64_t send_from;      // a send that waits: the address of its first slice
    std::uint32_t receive_count;  // bytes of `into`, or credit left
    std::uint32_t send_count;     // bytes that wait; of a finished send its bytes or errno
};
static_assert(sizeof(kqueue_connection) == 40, "the budget of a connection in a backend");

struct kqueue_listener {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
};

struct kqueue_datagram_socket {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;
    block_links starved;
};

struct kqueue_datagram_send {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;  // in the run list or among those that wait
    std::uint64_t from;
    std::uint32_t count;  // bytes of the payload; when finished bytes or errno
    endpoint peer;
};

}  // namespace detail

/// The kqueue backend. A connection is registered for reading once, with EV_CLEAR; for writing once
/// a send that has to wait, with EV_ONESHOT, or each acknowledgement would be an event. Changes of
/// connections are kept and handed over by the next wait's own system call, so they cost none of
/// their own; those of listeners and datagram sockets are rare and made at once. A readiness nobody
/// waits for is remembered. Calls that finish at once leave their result in the connection's block,
/// which is linked into a run list that the next `wait` works off, mostly without the kernel.
///
/// The kernel tells how much there is to read or accept, so a read that took as much is the last.
/// It forgets a descriptor when that is closed; what it told before is dropped by the generation.
/// Where udata is too narrow for one: because nothing was told of a connection whose registration
/// has not been handed over yet, and it is handed over when all that was told is worked off, or
/// what is left of that has been looked through.
///
/// Several workers on one listener all wake for a client: kqueue has nothing like EPOLLEXCLUSIVE.
///
/// See `backend` for what each function promises. `Sys` makes the system calls.
template <class Sys = kqueue_sys>
class basic_kqueue : public detail::posix_sockets<Sys>,
                   detail::block_lines<detail::kqueue_connection, detail::kqueue_datagram_socket,
                                       detail::kqueue_datagram_send> {
    using connection = detail::kqueue_connection;
    using listener = detail::kqueue_listener;
    using datagram_socket = detail::kqueue_datagram_socket;
    using datagram_send = detail::kqueue_datagram_send;
    using kernel_event = detail::kqueue_event;
    using udata_word = typename Sys::udata_word;

public:
    static constexpr const char* name = "kqueue";
    static constexpr std::size_t connection_bytes = sizeof(connection);
    static constexpr std::uint32_t receive_credit = 1;
    /// Connections that may still come after stop_accept.
    static constexpr std::uint32_t late_accepts_max = 0;

    basic_kqueue() noexcept = default;
    basic_kqueue(const basic_kqueue&) = delete;
    basic_kqueue& operator=(const basic_kqueue&) = delete;

    static availability available() noexcept {
        const int made = Sys::kqueue_create();
        if (made < 0) {
            return errno == ENOSYS ? availability{false, "kqueue"} : availability{};
        }
        Sys::close(made);
        return {};
    }
    static constexpr std::size_t bytes_needed(const backend_limits& sizes) noexcept {
        return layout::of(sizes).end;
    }
    os_status open(mutable_bytes memory, const backend_limits& sizes, buffer_pool& pool) noexcept {
        NETIO_ASSERT(!open_);
        NETIO_ASSERT(memory.size() >= bytes_needed(sizes));
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0);
        lay_out(memory.data(), sizes);
        pool_ = &pool;
        kqueue_ = Sys::kqueue_create();
        if (kqueue_ < 0) {
            return detail::status_of(errno);
        }
        if (!change_now(wake_ident, EVFILT_USER, EV_ADD | EV_CLEAR, wake_token)) {
            const int code = errno;
            Sys::close(kqueue_);
            return detail::status_of(code);
        }
        spare_.refill();
        wake_word_.open();
        accepts_ = {};
        open_ = true;
        return {};
    }

    void close() noexcept {
        NETIO_ASSERT(!waiting_);
        if (!open_) {
            return;
        }
        wake_word_.close<Sys>();
        for (std::uint32_t index = 0; index < sizes_.connections; ++index) {
            if ((connections_[index].flags & (attached | connecting)) != 0) {
                Sys::close(connections_[index].descriptor);
            }
        }
        spare_.close();
        Sys::close(kqueue_);
        open_ = false;
    }

    os_status start_accept(socket_handle handle, token who) noexcept {
        listener& at = listener_of(who);
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        // Without EV_CLEAR: what a batch leaves is told again.
        if (!change_now(static_cast<int>(handle), EVFILT_READ, EV_ADD,
                        who.with(operation::accept))) {
            return detail::status_of(errno);
        }
        spare_.refill();
        at.descriptor = static_cast<int>(handle);
        at.generation = who.generation();
        at.flags = attached;
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

    void bound_accepts(std::uint32_t most) noexcept {
        NETIO_ASSERT(most != 0);
        accepts_.set(most);
    }

    os_status start_connect(const stream_address& address, const socket_options& options,
                            token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(open_);
        NETIO_ASSERT(at.flags == 0);
        const os_handle made = detail::connect_stream<Sys>(address, options);
        if (!made) {
            return made.status;
        }
        begin(at, static_cast<int>(made.handle), who, connecting);
        change(at, who.index(), EVFILT_WRITE, EV_ADD | EV_ONESHOT);
        return {};
    }

    os_status attach(socket_handle handle, token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        if (Sys::hush(static_cast<int>(handle)) != 0) {
            return detail::status_of(errno);
        }
        begin(at, static_cast<int>(handle), who, attached);
        return {};
    }

    socket_handle release(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (receiving | sending | closing | in_run_list)) == 0);
        NETIO_ASSERT((at.flags & attached) != 0);
        const int descriptor = at.descriptor;
        if ((at.flags & changing) != 0) {
            drop_changes(descriptor);  // the registration, or a wait for room that is over
        }
        if ((at.flags & unregistered) == 0) {
            change_now(descriptor, EVFILT_READ, EV_DELETE, plain(who));
        }
        at = connection{};
        return descriptor;
    }

    void start_receive(token who, mutable_bytes into, std::uint32_t credit) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (receiving | receive_over)) == 0);
        at.flags |= receiving;
        if (into.empty()) {
            NETIO_ASSERT(credit != 0);
            at.receive_count = credit;
        } else {
            at.flags |= into_memory;
            at.into = detail::address_of(into.data());
            at.receive_count = detail::clipped(into.size());
        }
        if ((at.flags & readable) != 0) {
            link(who.index() + 1);
        }
    }

    void stop_receive(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & result_disarmed) == 0);
        if ((at.flags & receiving) == 0) {
            return;  // it has ended, and the caller has not looked at that event yet
        }
        if ((at.flags & starved) != 0) {
            unlink_starved(who.index() + 1);
        }
        at.flags |= result_disarmed;
        link(who.index() + 1);
    }

    void start_send(token who, std::span<const bytes> slices) noexcept {
        connection& at = sender_of(who);
        begin_send(at, who.index(), slices[0], detail::send_slices<Sys>(at.descriptor, slices));
    }

    bool send_now(token who, std::span<const bytes> slices) noexcept {
        connection& at = sender_of(who);
        const ssize_t sent = detail::send_slices<Sys>(at.descriptor, slices);
        if (detail::is_whole(sent, slices)) {
            return true;
        }
        begin_send(at, who.index(), slices[0], sent);
        return false;
    }

    void end_send(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (sending | send_over)) == 0);
        at.flags |= send_over;
        // Fails only where the peer is gone already, and then the receive says so.
        Sys::shutdown_sending(at.descriptor);
    }

    void start_close(token who, bool abort) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | connecting)) != 0);
        NETIO_ASSERT((at.flags & closing) == 0);
        if ((at.flags & starved) != 0) {
            unlink_starved(who.index() + 1);
        }
        if ((at.flags & changing) != 0) {
            drop_changes(at.descriptor);  // or they would be made to the number's next owner
        }
        detail::close_socket<Sys>(at.descriptor, abort);
        at.descriptor = 0;
        at.flags = (at.flags & in_run_list) | closing;
        link(who.index() + 1);
    }

    os_status start_receive_from(socket_handle handle, token who) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        if (!change_now(static_cast<int>(handle), EVFILT_READ, EV_ADD,
                        who.with(operation::receive_from))) {
            return detail::status_of(errno);
        }
        at.descriptor = static_cast<int>(handle);
        at.generation = who.generation();
        at.flags = attached;
        return {};
    }

    void stop_receive_from(token who) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(at.generation == who.generation());
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        const std::uint32_t id = datagram_kind | (who.index() + 1);
        if ((at.flags & starved) != 0) {
            unlink_starved(id);
        }
        change_now(at.descriptor, EVFILT_READ, EV_DELETE, who.with(operation::receive_from));
        at.flags |= closing;
        link(id);
    }

    void start_send_to(socket_handle handle, token who, bytes payload,
                       const endpoint& peer) noexcept {
        const std::uint32_t index = checked(who, sizes_.datagram_sends);
        datagram_send& at = datagram_sends_[index];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        at.descriptor = static_cast<int>(handle);
        at.generation = who.generation();
        at.flags = attached;
        at.from = detail::address_of(payload.data());
        at.count = detail::clipped(payload.size());
        at.peer = peer;
        if (!try_send_to(at, index)) {
            keep_waiting(index + 1);
            watch_for_room(at.descriptor);
        }
    }

    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        NETIO_ASSERT(out.size() >= 4);
        waiting_ = true;
        detail::event_writer to(out);
        wake_word_.take(to);
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
        work_off_ready(to);
        work_off_run_list(to, nodes, 0);
        waiting_ = false;
        if (foreign_) {
            wake_word_.announce_sleep();
        }
        return to.count();
    }

    bool ready() noexcept {
        NETIO_ASSERT(open_);
        return run_count_ != 0 || change_count_ != 0 || ready_at_ != ready_end_ ||
               (starved_first_ != 0 && pool_->room(side::input) != 0) || wake_word_.woken();
    }

    void wake() noexcept {
        wake_word_.wake([this] {
            const int kept = errno;  // the caller may be a signal handler
            kernel_event trigger = change_of(wake_ident, EVFILT_USER, 0, word_of(wake_token));
            trigger.fflags = NOTE_TRIGGER;
            Sys::kevent(kqueue_, &trigger, 1, nullptr, 0, nullptr);
            errno = kept;
        });
    }

    socket_handle wait_handle() noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        if (!foreign_) {
            foreign_ = true;
            wake_word_.announce_sleep();
        }
        return kqueue_;
    }

    /// Events of the kernel that belonged to something closed before; they were dropped.
    std::uint64_t stale_count() const noexcept { return stale_count_; }

private:
    // Flags of all blocks, beside those of the lines.
    static constexpr std::uint32_t attached = 1u << 0;
    static constexpr std::uint32_t connecting = 1u << 1;
    static constexpr std::uint32_t closing = 1u << 2;
    static constexpr std::uint32_t readable = 1u << 5;      // told of and not read to the end
    static constexpr std::uint32_t unregistered = 1u << 6;  // the kernel has not heard of it yet
    static constexpr std::uint32_t changing = 1u << 7;      // a change of it is kept
    static constexpr std::uint32_t receiving = 1u << 8;     // outstanding
    static constexpr std::uint32_t into_memory = 1u << 9;
    static constexpr std::uint32_t receive_over = 1u << 10;  // ended or failed was given
    static constexpr std::uint32_t sending = 1u << 11;       // outstanding
    static constexpr std::uint32_t send_waits = 1u << 12;
    static constexpr std::uint32_t send_over = 1u << 13;  // end_send was called
    // Results that the next wait will give.
    static constexpr std::uint32_t result_sent = 1u << 14;
    static constexpr std::uint32_t result_send_failed = 1u << 15;
    static constexpr std::uint32_t result_disarmed = 1u << 16;
    // Above: the errno that the kernel told of, be it the socket's or that of a refused change.
    static constexpr std::uint32_t code_shift = 24;

    static constexpr int wake_ident = 0;
    static constexpr token wake_token = token::of(0, 0, operation::wake);
    static constexpr token send_to_token = token::of(0, 0, operation::send_to);

    static constexpr std::uint32_t accepts_max = 64;
    static constexpr std::uint32_t datagrams_max = 16;
    static constexpr std::int64_t seconds_max = 24 * 60 * 60;  // what every kernel takes

    /// Where everything lies in the memory given.
    struct layout : detail::block_places<connection, listener, datagram_socket, datagram_send> {
        std::size_t changes = 0;
        std::size_t end = 0;
        std::uint32_t ready_max = 0;

        static constexpr layout of(const backend_limits& sizes) noexcept {
            layout out;
            // A connection has two filters at most, and 256 make the call itself cheap enough. As
            // many changes are kept: a failed one takes the place of an event.
            const std::uint64_t all = std::uint64_t{sizes.connections} * 2 + sizes.listeners +
                                      sizes.datagram_sockets * std::uint64_t{2} + 2;
            out.ready_max = all < 256 ? static_cast<std::uint32_t>(all) : 256;
            out.changes = detail::aligned(out.ready_max * sizeof(kernel_event));
            out.end = out.place(out.changes + out.ready_max * sizeof(kernel_event), sizes);
            return out;
        }
    };

    void lay_out(std::byte* memory, const backend_limits& sizes) noexcept {
        const layout places = layout::of(sizes);
        sizes_ = sizes;
        ready_ = reinterpret_cast<kernel_event*>(memory);
        changes_ = reinterpret_cast<kernel_event*>(memory + places.changes);
        ready_max_ = places.ready_max;
        connections_ = reinterpret_cast<connection*>(memory + places.connections);
        listeners_ = reinterpret_cast<listener*>(memory + places.listeners);
        datagram_sockets_ =
            reinterpret_cast<datagram_socket*>(memory + places.datagram_sockets);
        datagram_sends_ = reinterpret_cast<datagram_send*>(memory + places.datagram_sends);
        ready_at_ = ready_end_ = change_count_ = 0;
        empty_lines();
        waiting_first_ = waiting_last_ = 0;
        skipped_ = foreign_ = false;
    }

    static token plain(token who) noexcept { return token::of(who.index(), who.generation()); }

    connection& connection_of(token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(at.generation == who.generation());
        return at;
    }
    listener& listener_of(token who) noexcept {
        return listeners_[checked(who, sizes_.listeners)];
    }

    // ---- changes

    static udata_word word_of(token who) noexcept { return static_cast<udata_word>(who.bits); }
    static udata_word word_of(const kernel_event& of) noexcept {
        return static_cast<udata_word>((std::uintptr_t)of.udata);  // a pointer or an integer
    }

    static kernel_event change_of(int descriptor, int filter, unsigned flags,
                                  udata_word word) noexcept {
        kernel_event out{};
        out.ident = static_cast<decltype(out.ident)>(descriptor);
        out.filter = static_cast<decltype(out.filter)>(filter);
        out.flags = static_cast<decltype(out.flags)>(flags);
        out.udata = (decltype(out.udata))(std::uintptr_t{word});
        return out;
    }

    bool change_now(int descriptor, int filter, unsigned flags, token who) noexcept {
        const kernel_event one = change_of(descriptor, filter, flags, word_of(who));
        return Sys::kevent(kqueue_, &one, 1, nullptr, 0, nullptr) == 0;
    }

    /// Keeps a change for the next wait; only if there are too many the kernel is entered for them.
    void keep_change(const kernel_event& one) noexcept {
        if (change_count_ == ready_max_) {
            flush_changes();
        }
        changes_[change_count_++] = one;
    }

    void change(connection& at, std::uint32_t index, int filter, unsigned flags) noexcept {
        keep_change(change_of(at.descriptor, filter, flags,
                              word_of(token::of(index, at.generation))));
        at.flags |= changing;
    }

    void begin(connection& at, int descriptor, token who, std::uint32_t flags) noexcept {
        at = connection{};
        at.descriptor = descriptor;
        at.generation = who.generation();
        at.flags = flags | unregistered;
        change(at, who.index(), EVFILT_READ, EV_ADD | EV_CLEAR);
    }

    /// Takes the kept changes of a connection's descriptor out.
    NETIO_COLD void drop_changes(int descriptor) noexcept {
        std::uint32_t kept = 0;
        for (std::uint32_t at = 0; at < change_count_; ++at) {
            const bool dropped =
                changes_[at].ident == static_cast<decltype(changes_[at].ident)>(descriptor) &&
                token{word_of(changes_[at])}.op() == operation::none;
            if (!dropped) {
                changes_[kept++] = changes_[at];
            }
        }
        change_count_ = kept;
    }

    /// The kernel gets to know of all that is kept.
    void hand_over_changes() noexcept {
        for (std::uint32_t at = 0; at < change_count_; ++at) {
            const token who{word_of(changes_[at])};
            if (who.op() == operation::none) {
                connections_[who.index()].flags &= ~(unregistered | changing);
            }
        }
    }

    /// What was told and not worked off of the former owner of a slot whose registration is about
    /// to be handed over. Where udata has no generation nothing would tell the two apart after it.
    NETIO_COLD void drop_ready_of_former() noexcept {
        for (std::uint32_t at = ready_at_; at != ready_end_; ++at) {
            const token who{word_of(ready_[at])};
            if (who.op() == operation::none &&
                (connections_[who.index()].flags & unregistered) != 0) {
                ready_[at] = change_of(wake_ident, EVFILT_USER, 0, word_of(wake_token));
                ++stale_count_;
            }
        }
    }

    /// Makes the changes without taking events: with EV_RECEIPT each one is answered for, in place.
    NETIO_COLD void flush_changes() noexcept {
        for (std::uint32_t at = 0; at < change_count_; ++at) {
            changes_[at].flags |= EV_RECEIPT;
        }
        if constexpr (sizeof(udata_word) < sizeof(token)) {
            drop_ready_of_former();
        }
        hand_over_changes();
        const timespec at_once{};
        const int count = static_cast<int>(change_count_);
        if (Sys::kevent(kqueue_, changes_, count, changes_, count, &at_once) < 0) {
            fail_changes(errno);
            return;
        }
        for (std::uint32_t at = 0; at < change_count_; ++at) {
            if (changes_[at].data != 0) {
                change_failed(changes_[at], static_cast<int>(changes_[at].data));
            }
        }
        change_count_ = 0;
    }

    NETIO_COLD void fail_changes(int code) noexcept {
        const std::uint32_t count = change_count_;
        change_count_ = 0;
        for (std::uint32_t at = 0; at < count; ++at) {
            change_failed(changes_[at], code);
        }
    }

    /// The kernel refused a change of a connection or of a datagram's wait for room: whoever
    /// depends on it learns of it by the next wait, for nothing else would ever come.
    NETIO_COLD void change_failed(const kernel_event& what, int code) noexcept {
        const token who{word_of(what)};
        if (who.op() == operation::send_to) {
            resume_sends_to(static_cast<int>(what.ident), code);
            return;
        }
        connection& at = connections_[checked(who, sizes_.connections)];
        if (!is_of(at, what)) {
            return;
        }
        keep_code(at, static_cast<std::uint32_t>(code));
        at.flags |= readable;
        if ((at.flags & send_waits) != 0) {
            resume_send(at, who.index());
        }
        // Nobody else is waiting: a receive that starts finds `readable`, one that lacks a buffer
        // is served when it has one. A step that nobody needs would stand in the way of a release.
        const std::uint32_t waiting = at.flags & (connecting | receiving | starved);
        if (waiting == connecting || waiting == receiving) {
            link(who.index() + 1);
        }
    }

    /// It fails what finds no reason of its own: the socket gives its error away only once, maybe
    /// to somebody else.
    static void keep_code(connection& at, std::uint32_t code) noexcept {
        at.flags = (at.flags & ((1u << code_shift) - 1)) | code << code_shift;
    }
    static int code_of(const connection& at) noexcept {
        return static_cast<int>(at.flags >> code_shift);
    }

    /// Whether an event is of the connection that is in the slot now.
    static bool is_of(const connection& at, const kernel_event& what) noexcept {
        const token who{word_of(what)};
        return (at.flags & (attached | connecting)) != 0 && (at.flags & unregistered) == 0 &&
               word_of(token::of(who.index(), at.generation)) == word_of(what);
    }

    // ---- the run list: blocks whose next step needs no event of the kernel

    /// Steps through at most `nodes` blocks while more than `spare` events have room; those left.
    std::uint32_t work_off_run_list(detail::event_writer& to, std::uint32_t nodes,
                                    std::uint32_t spare) noexcept {
        while (nodes != 0 && to.room() > spare) {
            --nodes;
            const std::uint32_t id = unlink_first();
            const std::uint32_t index = (id & id_index) - 1;
            switch (id & ~id_index) {
            case 0: step_connection(index, to); break;
            case datagram_kind: end_datagrams(index, to); break;
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
            at = connection{};
            to.put(who, operation::close, event_kind::closed);
            return;
        }
        if ((at.flags & connecting) != 0) {  // it could not be registered
            finish_connect(at, who, to);
            return;
        }
        if ((at.flags & (result_sent | result_send_failed)) != 0) {
            give_sent(at, who, to);
        }
        if ((at.flags & result_disarmed) == 0) {
            receive_if_due(at, index, 0, to);
        } else if (to.room() == 0) {
            link(index + 1);
        } else {
            at.flags &= ~(result_disarmed | receiving | into_memory);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        }
    }

    // ---- connections

    void connection_event(const kernel_event& what, detail::event_writer& to) noexcept {
        const token who{word_of(what)};
        NETIO_ASSERT(who.index() < sizes_.connections);
        connection& at = connections_[who.index()];
        if (!is_of(at, what)) {
            ++stale_count_;
            return;
        }
        const bool ended = (what.flags & EV_EOF) != 0;
        const bool can_write = what.filter == EVFILT_WRITE;
        if (ended || !can_write) {
            at.flags |= readable;
        }
        if (ended && what.fflags != 0) {
            keep_code(at, what.fflags);
        }
        if ((at.flags & connecting) != 0) {
            if (ended || can_write) {
                finish_connect(at, token::of(who.index(), at.generation), to);
            }
            return;
        }
        if (can_write && (at.flags & send_waits) != 0) {
            resume_send(at, who.index());
        }
        if ((at.flags & in_run_list) == 0) {
            const bool counted = !ended && !can_write;
            receive_if_due(at, who.index(), counted ? std::int64_t{what.data} : 0, to);
        }
    }

    void finish_connect(connection& at, token who, detail::event_writer& to) noexcept {
        const int told = detail::connect_code<Sys>(at.descriptor);
        const int code = told != 0 ? told : code_of(at);
        if (code != 0) {
            at.flags = (at.flags & ~connecting) | attached | receive_over | send_over;
            to.fail(who, operation::connect, detail::error_of(code), code);
            return;
        }
        at.flags = (at.flags & ~connecting) | attached;
        to.put(who, operation::connect, event_kind::connected).handle = at.descriptor;
    }

    /// One receive, if one is outstanding and the socket may have something: so many bytes, as the
    /// kernel just said, or an unknown number where `there` is 0. At most one buffer a connection
    /// in one wait: what is left goes to the run list.
    void receive_if_due(connection& at, std::uint32_t index, std::int64_t there,
                        detail::event_writer& to) noexcept {
        if ((at.flags & (receiving | readable | starved)) != (receiving | readable)) {
            return;
        }
        if (to.room() == 0) {
            link(index + 1);
            return;
        }
        if ((at.flags & into_memory) != 0) {
            receive(at, index, {detail::pointer_of(at.into), at.receive_count}, none_index, there,
                    to);
            return;
        }
        const std::uint32_t buffer =
            starved_first_ == 0 ? pool_->take(side::input) : none_index;
        if (buffer == none_index) {
            link_starved(index + 1);
            return;
        }
        receive(at, index, {pool_->data(buffer), pool_->buffer_bytes()}, buffer, there, to);
        if ((at.flags & (receiving | readable)) == (receiving | readable)) {
            link(index + 1);
        }
    }

    void receive(connection& at, std::uint32_t index, mutable_bytes into, std::uint32_t buffer,
                 std::int64_t there, detail::event_writer& to) noexcept {
        const token who = token::of(index, at.generation);
        const ssize_t got =
            detail::receive_bytes<Sys>(at.descriptor, into.data(), into.size());
        if (got > 0) {
            const auto byte_count = static_cast<std::uint32_t>(got);
            // All that there was when the event came: whatever came since is an event of its own.
            // A shorter read proves nothing, for urgent data splits it.
            if (there != 0 && got >= there) {
                at.flags &= ~readable;
            }
            event& out = to.put(who, operation::receive, event_kind::received);
            out.byte_count = byte_count;
            out.buffer_index = buffer;
            out.disarmed = buffer == none_index || byte_count >= at.receive_count;
            at.receive_count -= out.disarmed ? at.receive_count : byte_count;
            at.flags &= out.disarmed ? ~(receiving | into_memory) : ~0u;
            return;
        }
        const bool silent = got == 0 || errno == EAGAIN;
        const int code = silent ? code_of(at) : errno;
        if (buffer != none_index) {
            pool_->give(buffer, side::input, 0);
        }
        if (got < 0 && code == 0) {
            at.flags &= ~readable;
            return;
        }
        at.flags = (at.flags & ~(receiving | into_memory)) | receive_over;
        if (code == 0) {
            to.put(who, operation::receive, event_kind::ended);
        } else {
            to.fail(who, operation::receive, detail::error_of(code), code);
        }
    }

    connection& sender_of(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (sending | send_over)) == 0);
        return at;
    }

    /// What the first try gave (or errno) is the send's result; or the socket's buffer is full: the
    /// first slice waits, the rest is the caller's.
    void begin_send(connection& at, std::uint32_t index, bytes first, ssize_t sent) noexcept {
        at.flags |= sending;
        if (sent >= 0 || errno != EAGAIN) {
            keep_sent(at, index, sent);
            return;
        }
        at.flags |= send_waits;
        at.send_from = detail::address_of(first.data());
        at.send_count = detail::clipped(first.size());
        change(at, index, EVFILT_WRITE, EV_ADD | EV_ONESHOT);
    }

    void resume_send(connection& at, std::uint32_t index) noexcept {
        const ssize_t sent = detail::send_one<Sys>(
            at.descriptor, {detail::pointer_of(at.send_from), at.send_count});
        if (sent >= 0 || errno != EAGAIN) {
            keep_sent(at, index, sent);
        } else if (code_of(at) != 0) {
            errno = code_of(at);
            keep_sent(at, index, sent);
        } else {
            change(at, index, EVFILT_WRITE, EV_ADD | EV_ONESHOT);
        }
    }

    /// Keeps what a send gave (or errno) for the next wait.
    void keep_sent(connection& at, std::uint32_t index, ssize_t sent) noexcept {
        const int code = errno;
        at.flags &= ~send_waits;
        at.flags |= sent >= 0 ? result_sent : result_send_failed;
        at.send_count = static_cast<std::uint32_t>(sent >= 0 ? sent : code);
        link(index + 1);
    }

    static void give_sent(connection& at, token who, detail::event_writer& to) noexcept {
        if ((at.flags & result_sent) != 0) {
            to.put(who, operation::send, event_kind::sent).byte_count = at.send_count;
        } else {
            const int code = static_cast<int>(at.send_count);
            to.fail(who, operation::send, detail::error_of(code), code);
        }
        at.flags &= ~(result_sent | result_send_failed | sending);
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
                datagram_socket& at = datagram_sockets_[index];
                receive_datagram(at, index, buffer, to);
                change_now(at.descriptor, EVFILT_READ, EV_ENABLE, of_datagrams(at, index));
                continue;
            }
            connection& at = connections_[index];
            receive(at, index, {pool_->data(buffer), pool_->buffer_bytes()}, buffer, 0, to);
            if ((at.flags & (receiving | readable)) == (receiving | readable)) {
                link(id);
            }
        }
    }

    // ---- listeners

    void forget(listener& at) noexcept {
        change_now(at.descriptor, EVFILT_READ, EV_DELETE, token::of(0, 0, operation::accept));
        at = listener{};
    }

    void accept_event(const kernel_event& what, detail::event_writer& to) noexcept {
        const std::uint32_t index = token{word_of(what)}.index();
        NETIO_ASSERT(index < sizes_.listeners);
        listener& at = listeners_[index];
        const token who = token::of(index, at.generation);
        if (at.flags == 0 || word_of(who.with(operation::accept)) != word_of(what)) {
            ++stale_count_;
            return;
        }
        // As many as the kernel says are waiting; it may count some that are not there yet.
        const auto waiting = static_cast<std::uint64_t>(what.data > 0 ? what.data : 1);
        std::uint32_t bound = to.room() < accepts_max ? to.room() : accepts_max;
        bound = waiting < bound ? static_cast<std::uint32_t>(waiting) : bound;
        bound = accepts_.of(bound);
        for (std::uint32_t tried = 0; tried < bound; ++tried) {
            endpoint peer;
            const int accepted = detail::accept_client<Sys>(at.descriptor, peer);
            if (accepted >= 0) {
                event& out = to.put(who, operation::accept, event_kind::accepted);
                out.handle = accepted;
                out.peer = peer;
                accepts_.took_one();
            } else if (errno == EAGAIN) {
                return;
            } else if (!detail::of_one_client(errno)) {
                fail_accept(at, who, errno, to);
                return;
            }
        }
    }

    NETIO_COLD void fail_accept(listener& at, token who, int code,
                                detail::event_writer& to) noexcept {
        const os_status told = spare_.accept_failed(at.descriptor, code);
        forget(at);
        to.fail(who, operation::accept, told.why, told.os_code);
    }

    // ---- datagrams

    static token of_datagrams(const datagram_socket& at, std::uint32_t index) noexcept {
        return token::of(index, at.generation, operation::receive_from);
    }

    void datagram_event(const kernel_event& what, detail::event_writer& to) noexcept {
        const std::uint32_t index = token{word_of(what)}.index();
        NETIO_ASSERT(index < sizes_.datagram_sockets);
        datagram_socket& at = datagram_sockets_[index];
        if ((at.flags & (attached | closing)) != attached ||
            word_of(of_datagrams(at, index)) != word_of(what)) {
            ++stale_count_;
            return;
        }
        if ((at.flags & starved) != 0) {
            return;
        }
        const std::uint32_t bound = to.room() < datagrams_max ? to.room() : datagrams_max;
        std::int64_t there = what.data;
        for (std::uint32_t tried = 0; tried < bound; ++tried) {
            const std::uint32_t buffer =
                starved_first_ == 0 ? pool_->take(side::input) : none_index;
            if (buffer == none_index) {
                link_starved(datagram_kind | (index + 1));
                change_now(at.descriptor, EVFILT_READ, EV_DISABLE, of_datagrams(at, index));
                return;
            }
            there -= receive_datagram(at, index, buffer, to);
            if (there <= 0) {
                return;
            }
        }
    }

    /// Its bytes; 0 after an error, which is one of earlier sends and concerns nobody any more;
    /// more than there can be if there was none.
    std::int64_t receive_datagram(datagram_socket& at, std::uint32_t index, std::uint32_t buffer,
                                  detail::event_writer& to) noexcept {
        event got;
        const ssize_t count = detail::receive_message<Sys>(at.descriptor, pool_->data(buffer),
                                                           pool_->buffer_bytes(), got);
        if (count < 0) {
            const int code = errno;
            pool_->give(buffer, side::input, 0);
            return code == EAGAIN ? INT64_MAX : 0;
        }
        event& out = to.put(token::of(index, at.generation), operation::receive_from,
                            event_kind::received);
        out.byte_count = got.byte_count;
        out.buffer_index = buffer;
        out.truncated = got.truncated;
        out.peer = got.peer;
        return count;
    }

    void end_datagrams(std::uint32_t index, detail::event_writer& to) noexcept {
        datagram_socket& at = datagram_sockets_[index];
        NETIO_ASSERT((at.flags & closing) != 0);
        const token who = token::of(index, at.generation);
        at = datagram_socket{};
        to.put(who, operation::receive_from, event_kind::closed);
    }

    /// False if the socket has no room; else the result is kept for the next wait.
    bool try_send_to(datagram_send& at, std::uint32_t index) noexcept {
        const ssize_t sent = detail::send_datagram<Sys>(
            at.descriptor, {detail::pointer_of(at.from), at.count}, at.peer);
        if (sent < 0 && errno == EAGAIN) {
            return false;
        }
        keep_sent_to(at, index, sent);
        return true;
    }

    void keep_sent_to(datagram_send& at, std::uint32_t index, ssize_t sent) noexcept {
        at.flags |= sent >= 0 ? result_sent : result_send_failed;
        at.count = static_cast<std::uint32_t>(sent >= 0 ? sent : errno);
        link(send_kind | (index + 1));
    }

    void give_send_to(std::uint32_t index, detail::event_writer& to) noexcept {
        datagram_send& at = datagram_sends_[index];
        const token who = token::of(index, at.generation);
        const std::uint32_t count = at.count;
        const bool sent = (at.flags & result_sent) != 0;
        at = datagram_send{};
        if (sent) {
            to.put(who, operation::send_to, event_kind::sent).byte_count = count;
        } else {
            const int code = static_cast<int>(count);
            to.fail(who, operation::send_to, detail::error_of(code), code);
        }
    }

    void keep_waiting(std::uint32_t id) noexcept {
        (waiting_last_ != 0 ? datagram_sends_[waiting_last_ - 1].next : waiting_first_) = id;
        waiting_last_ = id;
    }

    /// Asks to hear once when a datagram socket can send again. Whether anybody receives from it
    /// is another filter's business.
    void watch_for_room(int descriptor) noexcept {
        keep_change(change_of(descriptor, EVFILT_WRITE, EV_ADD | EV_ONESHOT,
                              word_of(send_to_token)));
    }

    /// Tries the datagrams that wait for this socket, in their order. Those that still have to stay
    /// in the list; or they fail with `code`, for nobody would say when there is room again.
    NETIO_COLD void resume_sends_to(int descriptor, int code) noexcept {
        std::uint32_t id = waiting_first_;
        bool waits = false;
        waiting_first_ = waiting_last_ = 0;
        while (id != 0) {
            datagram_send& at = datagram_sends_[id - 1];
            const std::uint32_t next = at.next;
            at.next = 0;
            if (at.descriptor != descriptor) {
                keep_waiting(id);
            } else if (!try_send_to(at, id - 1)) {
                if (code != 0) {
                    errno = code;
                    keep_sent_to(at, id - 1, -1);
                } else {
                    keep_waiting(id);
                    waits = true;
                }
            }
            id = next;
        }
        if (waits) {
            watch_for_room(descriptor);
        }
    }

    // ---- waiting

    void work_off_ready(detail::event_writer& to) noexcept {
        while (ready_at_ != ready_end_ && to.room() != 0) {
            const kernel_event& each = ready_[ready_at_++];
            if ((each.flags & EV_ERROR) != 0) {
                change_failed(each, static_cast<int>(each.data));
                continue;
            }
            switch (token{word_of(each)}.op()) {
            case operation::none: connection_event(each, to); break;
            case operation::accept: accept_event(each, to); break;
            case operation::receive_from: datagram_event(each, to); break;
            case operation::send_to: resume_sends_to(static_cast<int>(each.ident), 0); break;
            default: break;  // wake: the word says more than the event
            }
        }
    }

    void enter_kernel(detail::event_writer& to, std::uint64_t timeout_ns) noexcept {
        timespec bound{};
        const bool sleeps = timeout_ns != 0 && wake_word_.announce_sleep();
        if (sleeps) {
            bound = to_timespec(timeout_ns);
        }
        hand_over_changes();
        const int count = Sys::kevent(kqueue_, changes_, static_cast<int>(change_count_), ready_,
                                      static_cast<int>(ready_max_),
                                      sleeps && timeout_ns == forever_ns ? nullptr : &bound);
        if (count < 0 && errno != EINTR) {
            fail_changes(errno);
        }
        change_count_ = 0;  // an interrupted call has made them, too
        ready_at_ = 0;
        ready_end_ = count > 0 ? static_cast<std::uint32_t>(count) : 0;
        if (to.count() == 0) {
            wake_word_.take(to);
        }
    }

    static timespec to_timespec(std::uint64_t timeout_ns) noexcept {
        timespec out{};
        const std::uint64_t seconds = timeout_ns / 1'000'000'000;
        out.tv_sec = static_cast<decltype(out.tv_sec)>(
            seconds < std::uint64_t{seconds_max} ? seconds : std::uint64_t{seconds_max});
        out.tv_nsec = static_cast<decltype(out.tv_nsec)>(timeout_ns % 1'000'000'000);
        return out;
    }

    backend_limits sizes_{};
    buffer_pool* pool_ = nullptr;
    kernel_event* ready_ = nullptr;
    kernel_event* changes_ = nullptr;
    listener* listeners_ = nullptr;
    std::uint64_t stale_count_ = 0;
    std::uint32_t ready_max_ = 0;
    std::uint32_t ready_at_ = 0;   // what the kernel reported and is not worked off: from here
    std::uint32_t ready_end_ = 0;  // to here
    std::uint32_t change_count_ = 0;
    std::uint32_t waiting_first_ = 0;  // datagrams for which the socket had no room
    std::uint32_t waiting_last_ = 0;
    int kqueue_ = 0;
    bool open_ = false;
    bool waiting_ = false;
    bool skipped_ = false;  // the last wait did without the kernel
    bool foreign_ = false;  // another loop waits on our handle
    detail::spare_descriptor<Sys> spare_;
    detail::wake_word wake_word_;
    detail::accept_bound accepts_;
};

using kqueue = basic_kqueue<>;
static_assert(backend<kqueue>);

NETIO_END

#endif

#endif
