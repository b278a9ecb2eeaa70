// floor 6 · epoll.hpp · the Linux backend over epoll: registered once, edge-triggered
#ifndef NETIO_EPOLL_HPP
#define NETIO_EPOLL_HPP

#include "platform/socket_posix.hpp"
#include "platform/waiting.hpp"

#if NETIO_HAS_EPOLL

#include <sys/epoll.h>
#include <sys/timerfd.h>

NETIO_BEGIN

/// The system calls of the epoll backend. Tests put their own in place of it to count calls and to
/// let the n-th one fail.
struct linux_sys : eventfd_sys {
    static int epoll_create() noexcept { return ::epoll_create1(EPOLL_CLOEXEC); }
    static int epoll_ctl(int in, int change, int what, epoll_event* wanted) noexcept {
        return ::epoll_ctl(in, change, what, wanted);
    }
    static int epoll_wait(int in, epoll_event* out, int count_max, int timeout_ms) noexcept {
        return ::epoll_wait(in, out, count_max, timeout_ms);
    }
    static int open_timer() noexcept {
        return ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    }
    static int set_timer(int which, std::uint64_t at_ns) noexcept {
        itimerspec wanted{};
        wanted.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000);
        wanted.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000);
        return ::timerfd_settime(which, TFD_TIMER_ABSTIME, &wanted, nullptr);
    }
};

namespace detail {

/// What a backend remembers of one connection. All-zero is "no connection".
struct epoll_connection {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;  // in the run list, an id
    union {
        std::uint64_t into;   // receive into the caller's memory: its address
        block_links starved;  // receive into the pool: its place among those without a buffer
    };
    std::uint64_t send_from;      // a send that waits: the address of its first slice
    std::uint32_t receive_count;  // bytes of `into`, or credit left
    std::uint32_t send_count;     // bytes that wait; of a finished send its bytes or errno
};
static_assert(sizeof(epoll_connection) == 40, "the budget of a connection in a backend");

/// How many accepts or datagrams to try for one readiness. A try that finds nothing is a wasted
/// system call, so a lone client is tried for once. Ready again in the very next wait after a batch
/// that came full: the batch doubles, for there may be a queue. Where that was wrong (a peer that
/// asks, is answered and asks again looks the same) it takes longer until the next attempt.
struct epoll_batch {
    std::uint32_t size;       // 0 means 1, so that all-zero is the beginning
    std::uint32_t last_wait;  // the kernel wait in which a batch came full
    std::uint32_t burst;      // found since the batch began to double
    std::uint16_t streak;     // ready in so many waits in a row, each time for a full batch
    std::uint8_t patience;    // how many of them to let pass before the batch doubles
    bool doubled : 1;
    bool grown : 1;  // a doubled batch came full: this is a queue

    std::uint32_t begin(std::uint32_t kernel_wait, std::uint32_t size_max) noexcept {
        size = size == 0 ? 1 : size;
        if (last_wait + 1 != kernel_wait || burst == 0) {
            end_burst();
        } else if (++streak > patience) {
            streak = patience;
            doubled = true;
            size = size * 2 < size_max ? size * 2 : size_max;
        }
        return size;
    }
    void came_full(std::uint32_t kernel_wait, std::uint32_t found) noexcept {
        last_wait = kernel_wait;
        burst = doubled ? burst + found : found;
        if (doubled) {
            grown = true;
            patience = 0;
        }
    }
    void ran_dry(std::uint32_t found, std::uint32_t size_max) noexcept {
        const std::uint32_t whole = grown ? burst + found : found;
        size = whole == 0 ? 1 : whole < size_max ? whole : size_max;
        if (doubled && !grown && patience < patience_max) {
            patience = static_cast<std::uint8_t>(2 * patience + 1);
        }
        end_burst();
    }
    void end_burst() noexcept {
        burst = streak = 0;
        doubled = grown = false;
    }

    static constexpr std::uint8_t patience_max = 63;
};

struct epoll_listener {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    epoll_batch batch;
};

struct epoll_datagram_socket {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;
    block_links starved;
    std::uint32_t events;  // what it is registered for
    epoll_batch batch;
};

struct epoll_datagram_send {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;  // in the run list or among those that wait
    std::uint64_t from;
    std::uint32_t count;  // bytes of the payload; when finished bytes or errno
    endpoint peer;
};

}  // namespace detail

/// The epoll backend. A connection is registered once and edge-triggered; a readiness nobody waits
/// for is remembered. Calls that finish at once leave their result in the connection's block, which
/// is linked into a run list that the next `wait` works off, mostly without entering the kernel.
///
/// See `backend` for what each function promises. `Sys` makes the system calls.
template <class Sys = linux_sys>
class basic_epoll : public detail::posix_sockets<Sys>,
                   detail::block_lines<detail::epoll_connection, detail::epoll_datagram_socket,
                                       detail::epoll_datagram_send> {
    using connection = detail::epoll_connection;
    using listener = detail::epoll_listener;
    using datagram_socket = detail::epoll_datagram_socket;
    using datagram_send = detail::epoll_datagram_send;

public:
    static constexpr const char* name = "epoll";
    static constexpr std::size_t connection_bytes = sizeof(connection);
    static constexpr std::uint32_t receive_credit = 1;
    /// Connections that may still come after stop_accept.
    static constexpr std::uint32_t late_accepts_max = 0;

    basic_epoll() noexcept = default;
    basic_epoll(const basic_epoll&) = delete;
    basic_epoll& operator=(const basic_epoll&) = delete;

    static availability available() noexcept {
        const int made = Sys::epoll_create();
        if (made < 0) {
            return errno == ENOSYS ? availability{false, "epoll_create1"} : availability{};
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
        epoll_ = Sys::epoll_create();
        if (epoll_ < 0) {
            return detail::status_of(errno);
        }
        wake_ = Sys::open_wake();
        timer_ = wake_ < 0 ? -1 : Sys::open_timer();
        // Nobody reads either: an edge says all there is to say.
        if (timer_ < 0 ||
            !change(EPOLL_CTL_ADD, wake_, EPOLLIN | EPOLLET, token::of(0, 0, operation::wake)) ||
            !change(EPOLL_CTL_ADD, timer_, EPOLLIN | EPOLLET, timer_token)) {
            return give_up_open(errno);
        }
        standing_.clear();
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
        Sys::close(timer_);
        Sys::close(wake_);
        Sys::close(epoll_);
        open_ = false;
    }

    os_status start_accept(socket_handle handle, token who) noexcept {
        listener& at = listener_of(who);
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        // Level-triggered: what a batch leaves is reported again. Exclusive: one worker wakes.
        if (!change(EPOLL_CTL_ADD, static_cast<int>(handle), EPOLLIN | EPOLLEXCLUSIVE,
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
        const int descriptor = static_cast<int>(made.handle);
        if (!change(EPOLL_CTL_ADD, descriptor, watched | EPOLLOUT, plain(who))) {
            return detail::give_up<Sys>(descriptor, detail::status_of(errno)).status;
        }
        begin(at, descriptor, who, connecting | writable_interest);
        return {};
    }

    os_status attach(socket_handle handle, token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        // Without EPOLLOUT: every socket is writable at first, which would be a wake-up of its own.
        if (!change(EPOLL_CTL_ADD, static_cast<int>(handle), watched, plain(who))) {
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
        change(EPOLL_CTL_DEL, descriptor, 0, {});
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
        begin_send(at, who, slices[0], detail::send_slices<Sys>(at.descriptor, slices));
    }

    bool send_now(token who, std::span<const bytes> slices) noexcept {
        connection& at = sender_of(who);
        const ssize_t sent = detail::send_slices<Sys>(at.descriptor, slices);
        if (detail::is_whole(sent, slices)) {
            return true;
        }
        begin_send(at, who, slices[0], sent);
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
        detail::close_socket<Sys>(at.descriptor, abort);
        at.descriptor = 0;
        at.flags = (at.flags & in_run_list) | closing;
        link(who.index() + 1);
    }

    os_status start_receive_from(socket_handle handle, token who) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        const int descriptor = static_cast<int>(handle);
        const std::uint32_t events = EPOLLIN | (sends_wait_for(descriptor) ? EPOLLOUT : 0u);
        if (!watch_datagrams(EPOLL_CTL_ADD, descriptor, events,
                             who.with(operation::receive_from))) {
            return detail::status_of(errno);
        }
        at.descriptor = descriptor;
        at.generation = who.generation();
        at.flags = attached;
        at.events = events;
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
        change(EPOLL_CTL_DEL, at.descriptor, 0, {});
        at.flags |= closing;
        if (sends_wait_for(at.descriptor)) {
            watch_datagrams(EPOLL_CTL_ADD, at.descriptor, EPOLLOUT | EPOLLET,
                            token::of(0, 0, operation::send_to));
        }
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
            if (watch_for_room(at.descriptor)) {
                keep_waiting(index + 1);
            } else {
                keep_sent_to(at, index, -1);  // nobody would say when there is room again
            }
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
        return run_count_ != 0 || ready_at_ != ready_end_ ||
               (starved_first_ != 0 && pool_->room(side::input) != 0) ||
               wake_word_.woken();
    }

    void wake() noexcept {
        wake_word_.wake_by_writing<Sys>(wake_);
    }

    socket_handle wait_handle() noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        if (!foreign_) {
            foreign_ = true;
            wake_word_.announce_sleep();
        }
        return epoll_;
    }

    std::uint64_t now_ns() const noexcept { return seen_ns_ = Sys::now_ns(); }

    /// Events of the kernel that belonged to something closed before; they were dropped.
    std::uint64_t stale_count() const noexcept { return stale_count_; }

private:
    // Flags of all blocks, beside those of the lines.
    static constexpr std::uint32_t attached = 1u << 0;
    static constexpr std::uint32_t connecting = 1u << 1;
    static constexpr std::uint32_t closing = 1u << 2;
    static constexpr std::uint32_t readable = 1u << 5;   // an edge came and was not worked off
    static constexpr std::uint32_t undrained = 1u << 6;  // a short read is not the end of it
    static constexpr std::uint32_t writable_interest = 1u << 7;
    static constexpr std::uint32_t receiving = 1u << 8;  // outstanding
    static constexpr std::uint32_t into_memory = 1u << 9;
    static constexpr std::uint32_t receive_over = 1u << 10;  // ended or failed was given
    static constexpr std::uint32_t sending = 1u << 11;       // outstanding
    static constexpr std::uint32_t send_waits = 1u << 12;
    static constexpr std::uint32_t send_over = 1u << 13;  // end_send was called
    // Results that the next wait will give.
    static constexpr std::uint32_t result_sent = 1u << 14;
    static constexpr std::uint32_t result_send_failed = 1u << 15;
    static constexpr std::uint32_t result_disarmed = 1u << 16;

    // Urgent data splits a read, RDHUP, HUP and ERR bring no further edge: after any of them a
    // short read does not prove that the socket is empty.
    static constexpr std::uint32_t not_drained_by_short_read =
        EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI;
    static constexpr std::uint32_t watched = EPOLLIN | EPOLLRDHUP | EPOLLPRI | EPOLLET;

    static constexpr token timer_token = token::of(1, 0, operation::wake);

    static constexpr std::uint32_t accepts_max = 64;
    static constexpr std::uint32_t datagrams_max = 16;

    /// Where everything lies in the memory given.
    struct layout : detail::block_places<connection, listener, datagram_socket, datagram_send> {
        std::size_t end = 0;
        std::uint32_t ready_max = 0;

        static constexpr layout of(const backend_limits& sizes) noexcept {
            layout out;
            // No more can be ready than there is, and 256 make the call itself cheap enough.
            const std::uint64_t all = std::uint64_t{sizes.connections} + sizes.listeners +
                                      sizes.datagram_sockets + 2;
            out.ready_max = all < 256 ? static_cast<std::uint32_t>(all) : 256;
            out.end = out.place(out.ready_max * sizeof(epoll_event), sizes);
            return out;
        }
    };

    void lay_out(std::byte* memory, const backend_limits& sizes) noexcept {
        const layout places = layout::of(sizes);
        sizes_ = sizes;
        ready_ = reinterpret_cast<epoll_event*>(memory);
        ready_max_ = places.ready_max;
        connections_ = reinterpret_cast<connection*>(memory + places.connections);
        listeners_ = reinterpret_cast<listener*>(memory + places.listeners);
        datagram_sockets_ =
            reinterpret_cast<datagram_socket*>(memory + places.datagram_sockets);
        datagram_sends_ = reinterpret_cast<datagram_send*>(memory + places.datagram_sends);
        ready_at_ = ready_end_ = 0;
        empty_lines();
        waiting_first_ = waiting_last_ = 0;
        skipped_ = foreign_ = false;
    }

    os_status give_up_open(int code) noexcept {
        for (const int each : {timer_, wake_, epoll_}) {
            if (each >= 0) {
                Sys::close(each);
            }
        }
        return detail::status_of(code);
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
    static void begin(connection& at, int descriptor, token who, std::uint32_t flags) noexcept {
        at = connection{};
        at.descriptor = descriptor;
        at.generation = who.generation();
        at.flags = flags;
    }

    bool change(int what, int descriptor, std::uint32_t events, token who) noexcept {
        epoll_event wanted{};
        wanted.events = events;
        wanted.data.u64 = who.bits;
        return Sys::epoll_ctl(epoll_, what, descriptor, &wanted) == 0;
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
        if ((at.flags & (result_sent | result_send_failed)) != 0) {
            give_sent(at, who, to);
        }
        if ((at.flags & result_disarmed) == 0) {
            receive_if_due(at, index, to);
        } else if (to.room() == 0) {
            link(index + 1);
        } else {
            at.flags &= ~(result_disarmed | receiving | into_memory);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        }
    }

    // ---- connections

    void connection_event(token who, std::uint32_t events, detail::event_writer& to) noexcept {
        NETIO_ASSERT(who.index() < sizes_.connections);
        connection& at = connections_[who.index()];
        if ((at.flags & (attached | connecting)) == 0 || at.generation != who.generation()) {
            ++stale_count_;
            return;
        }
        if ((events & (EPOLLIN | not_drained_by_short_read)) != 0) {
            at.flags |= readable;
            if ((events & not_drained_by_short_read) != 0) {
                at.flags |= undrained;
            }
        }
        if ((at.flags & connecting) != 0) {
            finish_connect(at, who, to);
            return;
        }
        if ((at.flags & send_waits) != 0 && (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) {
            resume_send(at, who.index());
        }
        if ((at.flags & in_run_list) == 0) {
            receive_if_due(at, who.index(), to);
        }
    }

    /// Any event ends the wait for a connection: a refused one may report HUP and IN only.
    void finish_connect(connection& at, token who, detail::event_writer& to) noexcept {
        const int code = detail::connect_code<Sys>(at.descriptor);
        if (code != 0) {
            at.flags = (at.flags & ~connecting) | attached | receive_over | send_over;
            to.fail(who, operation::connect, detail::error_of(code), code);
            return;
        }
        at.flags = (at.flags & ~connecting) | attached;
        to.put(who, operation::connect, event_kind::connected).handle = at.descriptor;
    }

    /// One receive, if one is outstanding and the socket may have something. At most one buffer a
    /// connection in one wait: what is left goes to the run list.
    void receive_if_due(connection& at, std::uint32_t index, detail::event_writer& to) noexcept {
        if ((at.flags & (receiving | readable | starved)) != (receiving | readable)) {
            return;
        }
        if (to.room() == 0) {
            link(index + 1);
            return;
        }
        if ((at.flags & into_memory) != 0) {
            receive(at, index, detail::pointer_of(at.into), at.receive_count, none_index, to);
            return;
        }
        const std::uint32_t buffer =
            starved_first_ == 0 ? pool_->take(side::input) : none_index;
        if (buffer == none_index) {
            link_starved(index + 1);
            return;
        }
        receive(at, index, pool_->data(buffer), pool_->buffer_bytes(), buffer, to);
        if ((at.flags & (receiving | readable)) == (receiving | readable)) {
            link(index + 1);
        }
    }

    void receive(connection& at, std::uint32_t index, std::byte* into, std::uint32_t count,
                 std::uint32_t buffer, detail::event_writer& to) noexcept {
        const token who = token::of(index, at.generation);
        const ssize_t got = detail::receive_bytes<Sys>(at.descriptor, into, count);
        if (got > 0) {
            const auto byte_count = static_cast<std::uint32_t>(got);
            if (byte_count < count && (at.flags & undrained) == 0) {
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
        const int code = errno;
        if (buffer != none_index) {
            pool_->give(buffer, side::input, 0);
        }
        if (got < 0 && code == EAGAIN) {
            at.flags &= ~(readable | undrained);
            return;
        }
        at.flags = (at.flags & ~(receiving | into_memory)) | receive_over;
        if (got == 0) {
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

    /// What the first try gave (or errno) is the send's result, or it waits.
    void begin_send(connection& at, token who, bytes first, ssize_t sent) noexcept {
        at.flags |= sending;
        if (sent < 0 && errno == EAGAIN) {
            wait_for_room(at, who, first);
        } else {
            keep_sent(at, who.index(), sent);
        }
    }

    /// The socket's buffer is full: the first slice waits for the edge, the rest is the caller's.
    NETIO_COLD void wait_for_room(connection& at, token who, bytes first) noexcept {
        at.flags |= send_waits;
        at.send_from = detail::address_of(first.data());
        at.send_count = detail::clipped(first.size());
        if ((at.flags & writable_interest) == 0) {
            // A change reports a writability that is there already, so none is lost in between.
            if (!change(EPOLL_CTL_MOD, at.descriptor, watched | EPOLLOUT, plain(who))) {
                keep_sent(at, who.index(), -1);
                return;
            }
            at.flags |= writable_interest;
        }
    }

    void resume_send(connection& at, std::uint32_t index) noexcept {
        const ssize_t sent = detail::send_one<Sys>(
            at.descriptor, {detail::pointer_of(at.send_from), at.send_count});
        if (sent >= 0 || errno != EAGAIN) {
            keep_sent(at, index, sent);
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
                receive_datagram(datagram_sockets_[index], index, buffer, to);
                watch_datagram_socket(index, datagram_sockets_[index].events | EPOLLIN);
                continue;
            }
            connection& at = connections_[index];
            receive(at, index, pool_->data(buffer), pool_->buffer_bytes(), buffer, to);
            if ((at.flags & (receiving | readable)) == (receiving | readable)) {
                link(id);
            }
        }
    }

    // ---- listeners

    void forget(listener& at) noexcept {
        change(EPOLL_CTL_DEL, at.descriptor, 0, {});
        at = listener{};
    }

    void accept_event(token who, detail::event_writer& to) noexcept {
        listener& at = listener_of(who);
        if (at.flags == 0 || at.generation != who.generation()) {
            ++stale_count_;
            return;
        }
        const token plainly = plain(who);
        const std::uint32_t wanted = at.batch.begin(kernel_waits_, accepts_max);
        std::uint32_t bound = wanted < to.room() ? wanted : to.room();
        bound = accepts_.of(bound);
        std::uint32_t found = 0;
        for (std::uint32_t tried = 0; tried < bound; ++tried) {
            endpoint peer;
            const int accepted = detail::accept_client<Sys>(at.descriptor, peer);
            if (accepted >= 0) {
                event& out = to.put(plainly, operation::accept, event_kind::accepted);
                out.handle = accepted;
                out.peer = peer;
                ++found;
                accepts_.took_one();
            } else if (errno == EAGAIN) {
                at.batch.ran_dry(found, accepts_max);
                return;
            } else if (!detail::of_one_client(errno)) {
                fail_accept(at, plainly, errno, to);
                return;
            }
        }
        at.batch.came_full(kernel_waits_, found);
    }

    NETIO_COLD void fail_accept(listener& at, token who, int code,
                                detail::event_writer& to) noexcept {
        const os_status told = spare_.accept_failed(at.descriptor, code);
        forget(at);
        to.fail(who, operation::accept, told.why, told.os_code);
    }

    // ---- datagrams

    bool watch_datagrams(int what, int descriptor, std::uint32_t events, token who) noexcept {
        return change(what, descriptor, events, who) ||
               (what == EPOLL_CTL_ADD && errno == EEXIST &&
                change(EPOLL_CTL_MOD, descriptor, events, who));
    }

    /// Registers for other events than now. Level-triggered while it reads; edge-triggered while it
    /// lacks a buffer, for an error that nobody fetches would be reported without end.
    bool watch_datagram_socket(std::uint32_t index, std::uint32_t events) noexcept {
        datagram_socket& at = datagram_sockets_[index];
        events = (events & EPOLLIN) != 0 ? events & ~std::uint32_t{EPOLLET} : events | EPOLLET;
        if (events == at.events) {
            return true;
        }
        at.events = events;
        return change(EPOLL_CTL_MOD, at.descriptor, events,
                      token::of(index, at.generation, operation::receive_from));
    }

    void datagram_event(token who, std::uint32_t events, detail::event_writer& to) noexcept {
        NETIO_ASSERT(who.index() < sizes_.datagram_sockets);
        datagram_socket& at = datagram_sockets_[who.index()];
        if ((at.flags & (attached | closing)) != attached || at.generation != who.generation()) {
            ++stale_count_;
            return;
        }
        if ((events & EPOLLOUT) != 0) {
            resume_sends_to();
        }
        if ((events & ~std::uint32_t{EPOLLOUT}) == 0 || (at.flags & starved) != 0) {
            return;
        }
        const std::uint32_t wanted = at.batch.begin(kernel_waits_, datagrams_max);
        const std::uint32_t bound = wanted < to.room() ? wanted : to.room();
        const std::uint32_t before = to.count();
        for (std::uint32_t tried = 0; tried < bound; ++tried) {
            const std::uint32_t buffer =
                starved_first_ == 0 ? pool_->take(side::input) : none_index;
            if (buffer == none_index) {
                link_starved(datagram_kind | (who.index() + 1));
                watch_datagram_socket(who.index(), at.events & ~std::uint32_t{EPOLLIN});
                return;
            }
            if (!receive_datagram(at, who.index(), buffer, to)) {
                at.batch.ran_dry(to.count() - before, datagrams_max);
                return;
            }
        }
        at.batch.came_full(kernel_waits_, to.count() - before);
    }

    /// False if there was none.
    bool receive_datagram(datagram_socket& at, std::uint32_t index, std::uint32_t buffer,
                          detail::event_writer& to) noexcept {
        event got;
        if (detail::receive_message<Sys>(at.descriptor, pool_->data(buffer),
                                         pool_->buffer_bytes(), got) < 0) {
            const int code = errno;
            pool_->give(buffer, side::input, 0);
            return code != EAGAIN;
        }
        event& out = to.put(token::of(index, at.generation), operation::receive_from,
                            event_kind::received);
        out.byte_count = got.byte_count;
        out.buffer_index = buffer;
        out.truncated = got.truncated;
        out.peer = got.peer;
        return true;
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

    bool sends_wait_for(int descriptor) const noexcept {
        for (std::uint32_t id = waiting_first_; id != 0; id = datagram_sends_[id - 1].next) {
            if (datagram_sends_[id - 1].descriptor == descriptor) {
                return true;
            }
        }
        return false;
    }

    /// Asks to hear when a datagram socket can send again, whether anybody receives from it or not.
    NETIO_COLD bool watch_for_room(int descriptor) noexcept {
        for (std::uint32_t index = 0; index < sizes_.datagram_sockets; ++index) {
            datagram_socket& at = datagram_sockets_[index];
            if ((at.flags & (attached | closing)) == attached && at.descriptor == descriptor) {
                return watch_datagram_socket(index, at.events | EPOLLOUT);
            }
        }
        return watch_datagrams(EPOLL_CTL_ADD, descriptor, EPOLLOUT | EPOLLET,
                               token::of(0, 0, operation::send_to));
    }

    /// Tries all datagrams that wait, in their order; those that still have to stay in the list.
    void resume_sends_to() noexcept {
        std::uint32_t id = waiting_first_;
        waiting_first_ = waiting_last_ = 0;
        while (id != 0) {
            datagram_send& at = datagram_sends_[id - 1];
            const std::uint32_t next = at.next;
            at.next = 0;
            if (!try_send_to(at, id - 1)) {
                keep_waiting(id);
            }
            id = next;
        }
        for (std::uint32_t index = 0; index < sizes_.datagram_sockets; ++index) {
            datagram_socket& at = datagram_sockets_[index];
            if ((at.events & EPOLLOUT) != 0 && (at.flags & closing) == 0 &&
                !sends_wait_for(at.descriptor)) {
                watch_datagram_socket(index, at.events & ~std::uint32_t{EPOLLOUT});
            }
        }
    }

    // ---- waiting

    void work_off_ready(detail::event_writer& to) noexcept {
        while (ready_at_ != ready_end_ && to.room() != 0) {
            const epoll_event& each = ready_[ready_at_++];
            const token who{each.data.u64};
            const std::uint32_t events = each.events;
            switch (who.op()) {
            case operation::none: connection_event(who, events, to); break;
            case operation::accept: accept_event(who, to); break;
            case operation::receive_from: datagram_event(who, events, to); break;
            case operation::send_to: resume_sends_to(); break;
            default:  // wake: the word says more than the descriptor
                if (who == timer_token) {
                    standing_.clear();
                }
                break;
            }
        }
    }

    int sleep_ms(std::uint64_t timeout_ns) noexcept {
        if (!detail::standing_timer::worth_it(timeout_ns)) {
            return detail::to_milliseconds(timeout_ns);
        }
        if (!standing_.stands(timeout_ns, seen_ns_) && !standing_.stands(timeout_ns, now_ns())) {
            standing_.set(detail::standing_timer::due_after(timeout_ns, seen_ns_));
            if (Sys::set_timer(timer_, standing_.due_ns()) != 0) {
                standing_.clear();
                return detail::to_milliseconds(timeout_ns);
            }
        }
        return -1;
    }

    void enter_kernel(detail::event_writer& to, std::uint64_t timeout_ns) noexcept {
        const int timeout_ms =
            timeout_ns == 0 || !wake_word_.announce_sleep() ? 0 : sleep_ms(timeout_ns);
        const int count = Sys::epoll_wait(epoll_, ready_, static_cast<int>(ready_max_), timeout_ms);
        ++kernel_waits_;
        ready_at_ = 0;
        ready_end_ = count > 0 ? static_cast<std::uint32_t>(count) : 0;
        if (to.count() == 0) {
            wake_word_.take(to);
        }
    }

    backend_limits sizes_{};
    buffer_pool* pool_ = nullptr;
    epoll_event* ready_ = nullptr;
    listener* listeners_ = nullptr;
    std::uint64_t stale_count_ = 0;
    detail::standing_timer standing_;
    mutable std::uint64_t seen_ns_ = 0;  // the clock when it was last asked for
    std::uint32_t ready_max_ = 0;
    std::uint32_t ready_at_ = 0;   // what the kernel reported and is not worked off: from here
    std::uint32_t ready_end_ = 0;  // to here
    std::uint32_t kernel_waits_ = 0;
    std::uint32_t waiting_first_ = 0;  // datagrams for which the socket had no room
    std::uint32_t waiting_last_ = 0;
    int epoll_ = 0;
    int wake_ = 0;
    int timer_ = 0;
    bool open_ = false;
    bool waiting_ = false;
    bool skipped_ = false;  // the last wait did without the kernel
    bool foreign_ = false;  // another loop waits on our handle
    detail::spare_descriptor<Sys> spare_;
    detail::wake_word wake_word_;
    detail::accept_bound accepts_;
};

using epoll = basic_epoll<>;
static_assert(backend<epoll>);

NETIO_END

#endif

#endif
