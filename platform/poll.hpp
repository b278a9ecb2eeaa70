// floor 6 · poll.hpp · the backend of every POSIX system over poll: small, complete, read first
#ifndef NETIO_POLL_HPP
#define NETIO_POLL_HPP

#include "platform/socket_posix.hpp"
#include "platform/waiting.hpp"

#if NETIO_HAS_POLL

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

NETIO_BEGIN

/// The system calls of the poll backend. Tests put their own in place of it to count calls and to
/// let the n-th one fail.
struct poll_sys : posix_sys {
    // Entries that one call takes, whatever the process's limit says: macOS has its own number.
#ifdef __APPLE__
    static constexpr std::uint32_t entries_max = OPEN_MAX;
#else
    static constexpr std::uint32_t entries_max = INT_MAX;
#endif
    static int poll(pollfd* all, std::uint32_t count, int timeout_ms) noexcept {
        return ::poll(all, static_cast<nfds_t>(count), timeout_ms);
    }
    /// Both ends of a pipe, non-blocking and not inherited.
    static int open_wake(int (&ends)[2]) noexcept {
        if (::pipe(ends) != 0) {
            return -1;
        }
        for (const int each : ends) {
            if (::fcntl(each, F_SETFL, O_NONBLOCK) != 0 ||
                ::fcntl(each, F_SETFD, FD_CLOEXEC) != 0) {
                const int code = errno;
                ::close(ends[0]);
                ::close(ends[1]);
                errno = code;
                return -1;
            }
        }
        return 0;
    }
    static ssize_t write_wake(int to) noexcept {
        const char one = 1;
        return ::write(to, &one, sizeof(one));
    }
    static ssize_t read_wake(int from) noexcept {
        char all[64];
        return ::read(from, all, sizeof(all));
    }
};

namespace detail {

/// What the backend remembers of one entry of its table, beside the pollfd with its descriptor.
/// All-zero is "nobody here".
struct poll_entry {
    std::uint32_t generation;
    std::uint32_t flags;
    union {
        std::uint64_t into;    // receive into the caller's memory: its address
        std::uint32_t ticket;  // receive that lacks a buffer: its place in the line
    };
    std::uint64_t send_from;      // a send that waits: the address of its first slice
    std::uint32_t receive_count;  // bytes of `into`, or credit left
    std::uint32_t send_count;     // bytes that wait; of a finished send its bytes or errno
};
static_assert(sizeof(poll_entry) + sizeof(pollfd) == 40, "the budget of a connection");

}  // namespace detail

/// The backend over poll. There is one table: an entry for the wake-up pipe, then one for each
/// listener, datagram socket, datagram on its way and connection. A start call writes down in its
/// entry what is outstanding, and `watch` makes of that what the kernel is to look for; so nothing
/// has to be remembered of what the kernel once said, for it says so again. Once the kernel was
/// asked, `wait` goes through the table: an entry that is ready makes its system call and gives its
/// event, one whose call has succeeded before (a send that was tried at once) gives that.
///
/// Costs: each look at the kernel is in proportion to the highest slot in use, and there is no
/// handle that a foreign loop could wait on. poll refuses a table longer than the process may have
/// descriptors, and macOS one of more than 10,240 entries: `open` raises that limit as far as it
/// has to, or fails with `descriptors_limit`. Where the table is refused later, since the limit was
/// lowered or the kernel lacks memory, it is shown again every few milliseconds.
///
/// See `backend` for what each function promises. `Sys` makes the system calls.
template <class Sys = poll_sys>
class basic_poll : public detail::posix_sockets<Sys> {
    using entry = detail::poll_entry;

public:
    static constexpr const char* name = "poll";
    static constexpr std::size_t connection_bytes = sizeof(entry) + sizeof(pollfd);
    static constexpr std::uint32_t receive_credit = 1;
    /// Connections that may still come after stop_accept.
    static constexpr std::uint32_t late_accepts_max = 0;

    basic_poll() noexcept = default;
    basic_poll(const basic_poll&) = delete;
    basic_poll& operator=(const basic_poll&) = delete;

    static availability available() noexcept { return {}; }
    static constexpr std::size_t bytes_needed(const backend_limits& sizes) noexcept {
        return layout::of(sizes).bytes;
    }

    // ---- beginning and end

    os_status open(mutable_bytes memory, const backend_limits& sizes, buffer_pool& pool) noexcept {
        NETIO_ASSERT(!open_);
        NETIO_ASSERT(memory.size() >= bytes_needed(sizes));
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0);
        places_ = layout::of(sizes);
        if (places_.end > Sys::entries_max ||
            detail::raise_descriptor_limit<Sys>(places_.end) < places_.end) {
            return {error::descriptors_limit, 0};
        }
        int ends[2] = {-1, -1};
        if (Sys::open_wake(ends) != 0) {
            return detail::status_of(errno);
        }
        pool_ = &pool;
        polls_ = reinterpret_cast<pollfd*>(memory.data());
        entries_ = reinterpret_cast<entry*>(memory.data() + places_.entries_at);
        peers_ = reinterpret_cast<endpoint*>(memory.data() + places_.peers_at);
        top_ = at_ = pass_end_ = 0;
        results_ = line_ = 0;
        watched_ = watched_sum_ = 0;
        skipped_ = false;
        begin(0, ends[0], {}, reading);
        wake_ = ends[1];
        wake_word_.open();
        spare_.refill();
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
        for (std::uint32_t at = places_.connections; at < top_; ++at) {
            if ((entries_[at].flags & (attached | connecting)) != 0) {
                Sys::close(descriptor_of(at));
            }
        }
        spare_.close();
        Sys::close(descriptor_of(0));
        Sys::close(wake_);
        open_ = false;
    }

    // ---- listeners

    os_status start_accept(socket_handle handle, token who) noexcept {
        const std::uint32_t at = place(who, places_.listeners, places_.datagrams);
        NETIO_ASSERT(entries_[at].flags == 0 && handle >= 0);
        begin(at, static_cast<int>(handle), who, reading);
        spare_.refill();
        return {};
    }

    void stop_accept(token who) noexcept {
        const std::uint32_t at = place(who, places_.listeners, places_.datagrams);
        if (entries_[at].flags == 0) {
            return;  // it failed, and the caller has not looked at that event yet
        }
        NETIO_ASSERT(entries_[at].generation == who.generation());
        forget(at);
    }

    // ---- connections

    void bound_accepts(std::uint32_t most) noexcept {
        NETIO_ASSERT(most != 0);
        accepts_.set(most);
    }

    os_status start_connect(const stream_address& address, const socket_options& options,
                            token who) noexcept {
        const std::uint32_t at = place(who, places_.connections, places_.end);
        NETIO_ASSERT(entries_[at].flags == 0);
        const os_handle made = detail::connect_stream<Sys>(address, options);
        if (made) {
            begin(at, static_cast<int>(made.handle), who, connecting);
        }
        return made.status;
    }

    os_status attach(socket_handle handle, token who) noexcept {
        const std::uint32_t at = place(who, places_.connections, places_.end);
        NETIO_ASSERT(entries_[at].flags == 0 && handle >= 0);
        if (Sys::hush(static_cast<int>(handle)) != 0) {
            return detail::status_of(errno);
        }
        begin(at, static_cast<int>(handle), who, attached);
        return {};
    }

    socket_handle release(token who) noexcept {
        const std::uint32_t at = connection_of(who);
        NETIO_ASSERT((entries_[at].flags & (attached | reading | sending | any_result)) ==
                     attached);
        const int descriptor = descriptor_of(at);
        forget(at);
        return descriptor;
    }

    void start_receive(token who, mutable_bytes into, std::uint32_t credit) noexcept {
        const std::uint32_t at = connection_of(who);
        entry& of = entries_[at];
        NETIO_ASSERT((of.flags & (attached | closing)) == attached);
        NETIO_ASSERT((of.flags & (reading | receive_over)) == 0);
        NETIO_ASSERT(!into.empty() || credit != 0);
        of.flags |= into.empty() ? reading : reading | into_memory;
        of.into = detail::address_of(into.data());
        of.receive_count = into.empty() ? credit : detail::clipped(into.size());
        watch(at);
    }

    void stop_receive(token who) noexcept {
        const std::uint32_t at = connection_of(who);
        NETIO_ASSERT((entries_[at].flags & (attached | closing)) == attached);
        NETIO_ASSERT((entries_[at].flags & result_disarmed) == 0);
        if ((entries_[at].flags & reading) == 0) {
            return;  // it has ended, and the caller has not looked at that event yet
        }
        leave_line(at);
        change(at, 0, result_disarmed);
        watch(at);
    }

    /// Tries at once. Where the socket has no room the first slice waits for it, the rest is the
    /// caller's: so there is no array of slices to keep.
    void start_send(token who, std::span<const bytes> slices) noexcept {
        const std::uint32_t at = sender_of(who);
        const ssize_t sent = detail::send_slices<Sys>(descriptor_of(at), slices);
        entries_[at].flags |= sending;
        keep_sent(at, sent, slices[0]);
    }

    bool send_now(token who, std::span<const bytes> slices) noexcept {
        const std::uint32_t at = sender_of(who);
        const ssize_t sent = detail::send_slices<Sys>(descriptor_of(at), slices);
        if (detail::is_whole(sent, slices)) {
            return true;
        }
        entries_[at].flags |= sending;
        keep_sent(at, sent, slices[0]);
        return false;
    }

    void end_send(token who) noexcept {
        const std::uint32_t at = connection_of(who);
        NETIO_ASSERT((entries_[at].flags & (attached | closing)) == attached);
        NETIO_ASSERT((entries_[at].flags & (sending | send_over)) == 0);
        entries_[at].flags |= send_over;
        // Fails only where the peer is gone already, and then the receive says so.
        Sys::shutdown_sending(descriptor_of(at));
    }

    void start_close(token who, bool abort) noexcept {
        const std::uint32_t at = connection_of(who);
        NETIO_ASSERT((entries_[at].flags & (attached | connecting)) != 0);
        NETIO_ASSERT((entries_[at].flags & closing) == 0);
        detail::close_socket<Sys>(descriptor_of(at), abort);
        end_all(at);
    }

    // ---- datagrams

    os_status start_receive_from(socket_handle handle, token who) noexcept {
        const std::uint32_t at = place(who, places_.datagrams, places_.sends);
        NETIO_ASSERT(entries_[at].flags == 0 && handle >= 0);
        begin(at, static_cast<int>(handle), who, attached | reading);
        return {};
    }

    void stop_receive_from(token who) noexcept {
        const std::uint32_t at = place(who, places_.datagrams, places_.sends);
        NETIO_ASSERT(entries_[at].generation == who.generation());
        NETIO_ASSERT((entries_[at].flags & (attached | closing)) == attached);
        end_all(at);
    }

    void start_send_to(socket_handle handle, token who, bytes payload,
                       const endpoint& peer) noexcept {
        const std::uint32_t at = place(who, places_.sends, places_.connections);
        NETIO_ASSERT(entries_[at].flags == 0 && handle >= 0);
        begin(at, static_cast<int>(handle), who, sending);
        peers_[who.index()] = peer;
        keep_sent(at, detail::send_datagram<Sys>(descriptor_of(at), payload, peer), payload);
    }

    // ---- waiting

    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        NETIO_ASSERT(out.size() >= 4);
        waiting_ = true;
        detail::event_writer to(out);
        wake_word_.take(to);
        serve_line(to);
        if (at_ == pass_end_) {
            begin_pass(to, timeout_ns);
        }
        // Without room the pass goes on in the next wait, from the same entry.
        for (; at_ != pass_end_ && to.room() >= step_events_max; ++at_) {
            step(at_, to);
        }
        waiting_ = false;
        return to.count();
    }

    bool ready() noexcept {
        NETIO_ASSERT(open_);
        return results_ != 0 || at_ != pass_end_ || wake_word_.woken() ||
               (line_ != 0 && pool_->room(side::input) != 0);
    }

    void wake() noexcept {
        wake_word_.wake_by_writing<Sys>(wake_);
    }

    /// None: a foreign loop has to call `wait` from time to time.
    socket_handle wait_handle() noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        return no_handle;
    }

protected:  // platform/blocking.hpp is this backend with a short cut in its wait
    // Flags of an entry; none: free. The bits from 13 on are left to that one.
    static constexpr std::uint32_t attached = 1u << 0;
    static constexpr std::uint32_t connecting = 1u << 1;
    static constexpr std::uint32_t reading = 1u << 2;  // accept, receive, receive_from outstanding
    static constexpr std::uint32_t into_memory = 1u << 3;
    static constexpr std::uint32_t starved = 1u << 4;  // in the line of those without a buffer
    static constexpr std::uint32_t receive_over = 1u << 5;  // ended or failed was given
    static constexpr std::uint32_t sending = 1u << 6;       // outstanding
    static constexpr std::uint32_t send_waits = 1u << 7;    // for room in the socket
    static constexpr std::uint32_t send_over = 1u << 8;     // end_send was called
    // Results that a wait will give.
    static constexpr std::uint32_t result_sent = 1u << 9;
    static constexpr std::uint32_t result_send_failed = 1u << 10;
    static constexpr std::uint32_t result_disarmed = 1u << 11;
    static constexpr std::uint32_t closing = 1u << 12;
    static constexpr std::uint32_t any_result =
        result_sent | result_send_failed | result_disarmed | closing;

    /// One entry gives at most so many events, listeners and datagram sockets apart: those stop
    /// where there is no room.
    static constexpr std::uint32_t step_events_max = 2;
    /// System calls of one listener or datagram socket in a pass.
    static constexpr int batch_max = 16;
    /// The longest sleep after the kernel refused the table.
    static constexpr int refused_ms = 10;

    /// Where the kinds of entries begin in the table, and where the arrays lie in the memory.
    struct layout {
        std::uint32_t listeners = 1;  // before them the wake-up pipe
        std::uint32_t datagrams = 0;
        std::uint32_t sends = 0;
        std::uint32_t connections = 0;
        std::uint32_t end = 0;
        std::size_t entries_at = 0;
        std::size_t peers_at = 0;
        std::size_t bytes = 0;

        static constexpr layout of(const backend_limits& sizes) noexcept {
            layout out;
            out.datagrams = out.listeners + sizes.listeners;
            out.sends = out.datagrams + sizes.datagram_sockets;
            out.connections = out.sends + sizes.datagram_sends;
            out.end = out.connections + sizes.connections;
            out.entries_at = detail::aligned(out.end * sizeof(pollfd));
            out.peers_at = detail::aligned(out.entries_at + out.end * sizeof(entry));
            out.bytes = detail::aligned(out.peers_at + sizes.datagram_sends * sizeof(endpoint));
            return out;
        }
    };

    // ---- the table

    std::uint32_t place(token who, std::uint32_t first, std::uint32_t end) const noexcept {
        NETIO_ASSERT(open_ && who.index() < end - first);
        return first + who.index();
    }
    std::uint32_t connection_of(token who) const noexcept {
        const std::uint32_t at = place(who, places_.connections, places_.end);
        NETIO_ASSERT(entries_[at].generation == who.generation());
        return at;
    }
    token token_of(std::uint32_t at, std::uint32_t first) const noexcept {
        return token::of(at - first, entries_[at].generation);
    }
    int descriptor_of(std::uint32_t at) const noexcept {
        return polls_[at].fd < 0 ? ~polls_[at].fd : polls_[at].fd;
    }

    void begin(std::uint32_t at, int descriptor, token who, std::uint32_t flags) noexcept {
        for (; top_ <= at; ++top_) {
            polls_[top_] = pollfd{-1, 0, 0};
        }
        entries_[at] = entry{};
        entries_[at].generation = who.generation();
        entries_[at].flags = flags;
        polls_[at].fd = ~descriptor;
        watch(at);
    }

    /// Free again; the table that the kernel sees ends behind the last one in use.
    void forget(std::uint32_t at) noexcept {
        entries_[at] = entry{};
        show(at, -1);
        polls_[at] = pollfd{-1, 0, 0};
        while (top_ != 0 && entries_[top_ - 1].flags == 0) {
            --top_;
        }
    }

    /// Tells the kernel what to look for, which follows from what is outstanding. Who waits for
    /// nothing is hidden behind a negative number, since poll tells of hangups unasked, on and on.
    void watch(std::uint32_t at) noexcept {
        const std::uint32_t flags = entries_[at].flags;
        const bool in = (flags & (reading | starved | result_disarmed)) == reading;
        const bool out = (flags & (connecting | send_waits)) != 0;
        const int descriptor = descriptor_of(at);
        show(at, in || out ? descriptor : ~descriptor);
        polls_[at].events = static_cast<short>((in ? POLLIN : 0) | (out ? POLLOUT : 0));
    }

    /// What the kernel sees of an entry. If it is shown a single one, that is `watched_sum_`.
    NETIO_WRAPS void show(std::uint32_t at, int descriptor) noexcept {
        const std::uint32_t before = polls_[at].fd >= 0 ? 1 : 0;
        const std::uint32_t now = descriptor >= 0 ? 1 : 0;
        watched_ += now - before;
        watched_sum_ += (now - before) * at;
        polls_[at].fd = descriptor;
    }

    // ---- results: what needs no event of the kernel any more

    /// Changes the flags of an entry; `results_` counts the entries with a result among theirs.
    void change(std::uint32_t at, std::uint32_t off, std::uint32_t on) noexcept {
        std::uint32_t& flags = entries_[at].flags;
        results_ -= (flags & any_result) != 0 ? 1 : 0;
        flags = (flags & ~off) | on;
        results_ += (flags & any_result) != 0 ? 1 : 0;
    }

    /// Nothing is outstanding any more, the kernel is told of no descriptor; `closed` will follow.
    void end_all(std::uint32_t at) noexcept {
        leave_line(at);
        change(at, ~0u, closing);
        watch(at);
    }

    std::uint32_t sender_of(token who) const noexcept {
        const std::uint32_t at = connection_of(who);
        NETIO_ASSERT((entries_[at].flags & (attached | closing)) == attached);
        NETIO_ASSERT((entries_[at].flags & (sending | send_over)) == 0);
        return at;
    }

    /// Keeps what a send gave (or errno) for the next wait; without room it is tried again later.
    void keep_sent(std::uint32_t at, ssize_t sent, bytes what) noexcept {
        entry& of = entries_[at];
        if (sent < 0 && errno == EAGAIN) {
            of.flags |= send_waits;
            of.send_from = detail::address_of(what.data());
            of.send_count = detail::clipped(what.size());
            watch(at);
            return;
        }
        of.send_count = static_cast<std::uint32_t>(sent >= 0 ? sent : errno);
        change(at, send_waits, sent >= 0 ? result_sent : result_send_failed);
    }

    void give_sent(std::uint32_t at, token who, operation op, detail::event_writer& to) noexcept {
        const std::uint32_t count = entries_[at].send_count;
        if ((entries_[at].flags & result_sent) != 0) {
            to.put(who, op, event_kind::sent).byte_count = count;
        } else {
            const int code = static_cast<int>(count);
            to.fail(who, op, detail::error_of(code), code);
        }
        change(at, result_sent | result_send_failed | sending, 0);
    }

    void give_closed(std::uint32_t at, token who, operation op,
                     detail::event_writer& to) noexcept {
        change(at, closing, 0);
        forget(at);
        to.put(who, op, event_kind::closed);
    }

    // ---- receives without a buffer: served in the order they came

    void join_line(std::uint32_t at) noexcept {
        NETIO_ASSERT((entries_[at].flags & (starved | into_memory)) == 0);
        entries_[at].flags |= starved;
        entries_[at].ticket = next_ticket_++;
        ++line_;
    }
    void leave_line(std::uint32_t at) noexcept {
        if ((entries_[at].flags & starved) != 0) {
            entries_[at].flags &= ~starved;
            --line_;
        }
    }
    NETIO_WRAPS std::uint32_t first_in_line() const noexcept {
        NETIO_ASSERT(line_ != 0);
        std::uint32_t first = 0;
        std::uint32_t longest = 0;
        for (std::uint32_t at = places_.datagrams; at < top_; ++at) {
            const std::uint32_t waited = next_ticket_ - entries_[at].ticket;  // may wrap around
            if ((entries_[at].flags & starved) != 0 && waited > longest) {
                longest = waited;
                first = at;
            }
        }
        NETIO_ASSERT(first != 0);
        return first;
    }

    /// A buffer for a receive that found bytes; none while others wait for one.
    std::uint32_t take_buffer(std::uint32_t at) noexcept {
        const std::uint32_t buffer = line_ == 0 ? pool_->take(side::input) : none_index;
        if (buffer == none_index) {
            join_line(at);
        }
        return buffer;
    }

    /// At most a quarter of the events, so that what is ready moves on too.
    void serve_line(detail::event_writer& to) noexcept {
        const std::uint32_t most = to.count() + (to.room() / 4 != 0 ? to.room() / 4 : 1);
        while (to.count() < most && line_ != 0 && pool_->room(side::input) != 0) {
            const std::uint32_t at = first_in_line();
            leave_line(at);
            const std::uint32_t buffer = pool_->take(side::input);
            if (at >= places_.connections) {
                receive(at, pool_->data(buffer), pool_->buffer_bytes(), buffer, to);
            } else {
                receive_datagram(at, buffer, to);
            }
            watch(at);
        }
    }

    // ---- a pass: asking the kernel, then going through the table

    /// Where results are kept the kernel is left out, but not twice in a row: a busy sender must
    /// keep nobody from being seen.
    void begin_pass(detail::event_writer& to, std::uint64_t timeout_ns) noexcept {
        const bool kept = results_ != 0 || to.count() != 0;
        skipped_ = kept && !skipped_;
        int ready_count = 0;
        if (!skipped_) {
            int timeout_ms = kept ? 0 : detail::to_milliseconds(timeout_ns);
            if (timeout_ms != 0 && !wake_word_.announce_sleep()) {
                timeout_ms = 0;
            }
            ready_count = Sys::poll(polls_, top_, timeout_ms);
            if (ready_count < 0 && errno != EINTR && timeout_ms != 0) {
                // The table was refused. Only the pipe for a while, or this would be a busy loop.
                const bool longer = timeout_ms < 0 || timeout_ms > refused_ms;
                ready_count = Sys::poll(polls_, 1, longer ? refused_ms : timeout_ms);
            }
            if (to.count() == 0) {
                wake_word_.take(to);
            }
        }
        at_ = 0;
        pass_end_ = ready_count > 0 || results_ != 0 ? top_ : 0;
    }

    void step(std::uint32_t at, detail::event_writer& to) noexcept {
        const int ready = polls_[at].revents;
        polls_[at].revents = 0;
        if (ready == 0 && (entries_[at].flags & any_result) == 0) {
            return;
        }
        if (at >= places_.connections) {
            step_connection(at, ready, to);
        } else if (at >= places_.sends) {
            step_send_to(at, to);
        } else if (at >= places_.datagrams) {
            step_datagrams(at, to);
        } else if (at >= places_.listeners) {
            step_accept(at, to);
        } else {
            Sys::read_wake(descriptor_of(at));  // the wake word says more than the pipe
        }
    }

    void step_connection(std::uint32_t at, int ready, detail::event_writer& to) noexcept {
        const entry& of = entries_[at];
        const token who = token_of(at, places_.connections);
        if ((of.flags & closing) != 0) {
            give_closed(at, who, operation::close, to);
            return;
        }
        if ((of.flags & connecting) != 0) {
            finish_connect(at, who, to);
            return;
        }
        // A hangup or an error is for both: the call that is outstanding fetches the reason.
        if ((of.flags & send_waits) != 0 && (ready & ~POLLIN) != 0) {
            const bytes first{detail::pointer_of(of.send_from), of.send_count};
            keep_sent(at, detail::send_one<Sys>(descriptor_of(at), first), first);
        }
        if ((of.flags & (result_sent | result_send_failed)) != 0) {
            give_sent(at, who, operation::send, to);
        }
        if ((of.flags & result_disarmed) != 0) {
            change(at, result_disarmed | reading | into_memory, 0);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        } else if ((of.flags & (reading | starved)) == reading && (ready & ~POLLOUT) != 0) {
            receive_ready(at, to);
        }
        watch(at);
    }

    /// Any event ends the wait for a connection: a refused one may report a hangup only.
    void finish_connect(std::uint32_t at, token who, detail::event_writer& to) noexcept {
        const int code = detail::connect_code<Sys>(descriptor_of(at));
        entries_[at].flags = code == 0 ? attached : attached | receive_over | send_over;
        watch(at);
        if (code == 0) {
            to.put(who, operation::connect, event_kind::connected).handle = descriptor_of(at);
        } else {
            to.fail(who, operation::connect, detail::error_of(code), code);
        }
    }

    void receive_ready(std::uint32_t at, detail::event_writer& to) noexcept {
        const entry& of = entries_[at];
        if ((of.flags & into_memory) != 0) {
            receive(at, detail::pointer_of(of.into), of.receive_count, none_index, to);
        } else if (const std::uint32_t buffer = take_buffer(at); buffer != none_index) {
            receive(at, pool_->data(buffer), pool_->buffer_bytes(), buffer, to);
        }
    }

    /// One receive; nothing happens if there is nothing after all.
    void receive(std::uint32_t at, std::byte* into, std::uint32_t count, std::uint32_t buffer,
                 detail::event_writer& to) noexcept {
        give_received(at, detail::receive_bytes<Sys>(descriptor_of(at), into, count), buffer, to);
    }

    /// What a receive gave, or the reason in errno.
    void give_received(std::uint32_t at, ssize_t got, std::uint32_t buffer,
                       detail::event_writer& to) noexcept {
        entry& of = entries_[at];
        const token who = token_of(at, places_.connections);
        if (got > 0) {
            event& out = to.put(who, operation::receive, event_kind::received);
            out.byte_count = static_cast<std::uint32_t>(got);
            out.buffer_index = buffer;
            out.disarmed = buffer == none_index || out.byte_count >= of.receive_count;
            of.receive_count -= out.disarmed ? of.receive_count : out.byte_count;
            of.flags &= out.disarmed ? ~(reading | into_memory) : ~0u;
            return;
        }
        const int code = errno;
        if (buffer != none_index) {
            pool_->give(buffer, side::input, 0);
        }
        if (got < 0 && code == EAGAIN) {
            return;
        }
        of.flags = (of.flags & ~(reading | into_memory)) | receive_over;
        if (got == 0) {
            to.put(who, operation::receive, event_kind::ended);
        } else {
            to.fail(who, operation::receive, detail::error_of(code), code);
        }
    }

    void step_accept(std::uint32_t at, detail::event_writer& to) noexcept {
        const token who = token_of(at, places_.listeners);
        const int from = descriptor_of(at);
        const std::uint32_t bound = accepts_.of(batch_max);
        for (std::uint32_t tried = 0; tried < bound && to.room() != 0; ++tried) {
            endpoint peer;
            const int accepted = detail::accept_client<Sys>(from, peer);
            if (accepted >= 0) {
                event& out = to.put(who, operation::accept, event_kind::accepted);
                out.handle = accepted;
                out.peer = peer;
                accepts_.took_one();
            } else if (errno == EAGAIN) {
                return;
            } else if (!detail::of_one_client(errno)) {
                const os_status told = spare_.accept_failed(from, errno);
                forget(at);
                to.fail(who, operation::accept, told.why, told.os_code);
                return;
            }
        }
    }

    void step_datagrams(std::uint32_t at, detail::event_writer& to) noexcept {
        if ((entries_[at].flags & closing) != 0) {
            give_closed(at, token_of(at, places_.datagrams), operation::receive_from, to);
            return;
        }
        for (int tried = 0; tried < batch_max && to.room() != 0; ++tried) {
            const std::uint32_t buffer = take_buffer(at);
            if (buffer == none_index || !receive_datagram(at, buffer, to)) {
                break;
            }
        }
        watch(at);
    }

    /// False if there was none.
    bool receive_datagram(std::uint32_t at, std::uint32_t buffer,
                          detail::event_writer& to) noexcept {
        event got;
        if (detail::receive_message<Sys>(descriptor_of(at), pool_->data(buffer),
                                         pool_->buffer_bytes(), got) < 0) {
            const int code = errno;
            pool_->give(buffer, side::input, 0);
            return code != EAGAIN;
        }
        event& out = to.put(token_of(at, places_.datagrams), operation::receive_from,
                            event_kind::received);
        out.byte_count = got.byte_count;
        out.buffer_index = buffer;
        out.truncated = got.truncated;
        out.peer = got.peer;
        return true;
    }

    void step_send_to(std::uint32_t at, detail::event_writer& to) noexcept {
        const entry& of = entries_[at];
        const token who = token_of(at, places_.sends);
        if ((of.flags & send_waits) != 0) {
            const bytes payload{detail::pointer_of(of.send_from), of.send_count};
            keep_sent(at, detail::send_datagram<Sys>(descriptor_of(at), payload,
                                                     peers_[who.index()]), payload);
        }
        if ((of.flags & (result_sent | result_send_failed)) != 0) {
            give_sent(at, who, operation::send_to, to);
            forget(at);
        }
    }

    layout places_{};
    buffer_pool* pool_ = nullptr;
    pollfd* polls_ = nullptr;     // as long as entries_: the one array that the kernel sees
    entry* entries_ = nullptr;
    endpoint* peers_ = nullptr;   // where the datagrams on their way go
    std::uint32_t top_ = 0;       // entries from here on were never used or are free again
    std::uint32_t at_ = 0;        // this pass goes on here
    std::uint32_t pass_end_ = 0;
    std::uint32_t results_ = 0;   // entries that have at least one
    std::uint32_t line_ = 0;      // entries that wait for a buffer
    std::uint32_t watched_ = 0;   // entries that the kernel is shown
    std::uint32_t watched_sum_ = 0;  // of their indexes
    std::uint32_t next_ticket_ = 0;
    int wake_ = 0;                // the end to write to; the other one is entry 0
    bool open_ = false;
    bool waiting_ = false;
    bool skipped_ = false;        // the last pass did without the kernel
    detail::spare_descriptor<Sys> spare_;
    detail::wake_word wake_word_;
    detail::accept_bound accepts_;
};

using poll = basic_poll<>;
static_assert(backend<poll>);

NETIO_END

#endif

#endif
