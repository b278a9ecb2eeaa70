// floor 5 · waiting.hpp · what the wait of each backend needs: events, blocks in lines, sleep, wake
#ifndef NETIO_WAITING_HPP
#define NETIO_WAITING_HPP

#include "platform/atomic.hpp"
#include "platform/contract.hpp"

#include <cerrno>
#include <climits>

NETIO_BEGIN

namespace detail {

/// Where the next part of a backend's memory may begin.
constexpr std::size_t aligned(std::size_t at) noexcept {
    return (at + 63) / 64 * 64;
}

/// The events of one wait.
class event_writer {
public:
    explicit event_writer(std::span<event> out) noexcept
        : begin_(out.data()), at_(out.data()), end_(out.data() + out.size()) {}

    std::uint32_t room() const noexcept { return static_cast<std::uint32_t>(end_ - at_); }
    std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(at_ - begin_); }

    event& put(token who, operation op, event_kind kind) noexcept {
        NETIO_ASSERT(at_ != end_);
        *at_ = event{};
        at_->who = who;
        at_->op = op;
        at_->kind = kind;
        return *at_++;
    }
    void fail(token who, operation op, error why, int code) noexcept {
        event& out = put(who, op, event_kind::failed);
        out.why = why;
        out.os_code = code;
    }

private:
    event* begin_;
    event* at_;
    event* end_;
};

/// How many connections may still be accepted.
class accept_bound {
public:
    void set(std::uint32_t most) noexcept { left_ = most; }
    std::uint32_t of(std::uint32_t most) const noexcept { return most < left_ ? most : left_; }
    bool is(std::uint32_t most) const noexcept { return left_ == most; }
    void took_one() noexcept { left_ -= left_ == none_index || left_ == 0 ? 0 : 1; }

private:
    std::uint32_t left_ = none_index;  // no bound
};

/// Whether a wake has to enter the kernel: only if the loop has announced a sleep and nobody woke
/// it since. The word holds two bits and, above them, a count of wakers that are just writing.
///
/// `Atomic` is detail::atomic, see wake_word below; a test puts other threads' steps between ours.
template <template <class> class Atomic>
class basic_wake_word {
public:
    void open() noexcept { word_.store(0); }

    /// A late wake finds "woken" and writes nothing; one that is just writing is waited for, so it
    /// can't write to a descriptor that belongs to somebody else by then.
    template <class Sys>
    void close() noexcept {
        word_.fetch_or(woken_bit);
        while (word_.load() >= writer) {
            Sys::yield();
        }
    }

    /// From any thread or signal handler. `write` enters the kernel, at most once a sleep.
    template <class Write>
    void wake(const Write& write) noexcept {
        std::uint32_t seen = word_.load();
        for (;;) {
            const bool asleep = (seen & (asleep_bit | woken_bit)) == asleep_bit;
            const std::uint32_t wanted = (seen | woken_bit) + (asleep ? writer : 0);
            // Even an unchanged value is written: it orders what was posted before this wake.
            if (word_.compare_exchange_weak(seen, wanted)) {
                if (asleep) {
                    write();
                    word_.fetch_sub(writer);
                }
                return;
            }
        }
    }

    /// The same by a write to a descriptor. `errno` stays: the caller may be a signal handler.
    template <class Sys>
    void wake_by_writing(int to) noexcept {
        wake([to] {
            const int kept = errno;
            Sys::write_wake(to);
            errno = kept;
        });
    }

    /// From here on a wake must be written; false if one came before.
    bool announce_sleep() noexcept { return (word_.fetch_or(asleep_bit) & woken_bit) == 0; }

    /// Awake again; gives the event if somebody woke this loop.
    void take(event_writer& to) noexcept {
        // The common case costs no locked instruction: nobody woke it and it never slept.
        if ((word_.load(detail::ordering::relaxed) & (asleep_bit | woken_bit)) == 0) {
            return;
        }
        if ((word_.fetch_and(~(asleep_bit | woken_bit)) & woken_bit) != 0) {
            to.put({}, operation::wake, event_kind::woken);
        }
    }

    /// Somebody woke this loop, and the event is still to be given.
    bool woken() const noexcept { return (word_.load() & woken_bit) != 0; }

private:
    static constexpr std::uint32_t asleep_bit = 1;
    static constexpr std::uint32_t woken_bit = 2;
    static constexpr std::uint32_t writer = 4;

    Atomic<std::uint32_t> word_;
};

using wake_word = basic_wake_word<atomic>;

/// A time-out of the waiting call is a timer set and taken back in each wait: a twentieth of a
/// small round trip. So a timer of the backend's own is left standing: a wait has no end of its own
/// as long as that one comes in time, and one that comes early is an early return. Short waits
/// mostly last until their end, and there it would be one call more.
class standing_timer {
public:
    static constexpr std::uint64_t least_ns = 2'000'000;

    static bool worth_it(std::uint64_t timeout_ns) noexcept {
        return timeout_ns != forever_ns && timeout_ns >= least_ns;
    }
    static std::uint64_t due_after(std::uint64_t timeout_ns, std::uint64_t now_ns) noexcept {
        return timeout_ns < most_ns ? now_ns + timeout_ns : most_ns;
    }
    /// A clock read long ago may say no where the answer is yes, never the other way.
    bool stands(std::uint64_t timeout_ns, std::uint64_t seen_ns) const noexcept {
        return due_ns_ != 0 && due_ns_ <= due_after(timeout_ns, seen_ns) + slack_ns;
    }
    void set(std::uint64_t due_ns) noexcept { due_ns_ = due_ns; }
    bool is_set() const noexcept { return due_ns_ != 0; }
    std::uint64_t due_ns() const noexcept { return due_ns_; }
    /// It was seen to go off, or can't be set.
    void clear() noexcept { due_ns_ = 0; }

private:
    /// A wait may be late by what a time-out in milliseconds would be late by.
    static constexpr std::uint64_t slack_ns = 1'000'000;
    static constexpr std::uint64_t most_ns = std::uint64_t{1} << 60;  // 31 bits of seconds

    std::uint64_t due_ns_ = 0;
};

/// The neighbours of a receive that waits for a buffer, as ids.
struct block_links {
    std::uint32_t previous;
    std::uint32_t next;
};

/// Where the blocks of a backend lie, one kind after the other.
template <class Connection, class Listener, class DatagramSocket, class DatagramSend>
struct block_places {
    std::size_t connections = 0;
    std::size_t listeners = 0;
    std::size_t datagram_sockets = 0;
    std::size_t datagram_sends = 0;

    /// `from` on; where the next part may begin.
    constexpr std::size_t place(std::size_t from, const backend_limits& sizes) noexcept {
        connections = aligned(from);
        listeners = aligned(connections + sizes.connections * sizeof(Connection));
        datagram_sockets = aligned(listeners + sizes.listeners * sizeof(Listener));
        datagram_sends =
            aligned(datagram_sockets + sizes.datagram_sockets * sizeof(DatagramSocket));
        return aligned(datagram_sends + sizes.datagram_sends * sizeof(DatagramSend));
    }
};

/// The blocks of a backend and the two lines that run through them: blocks whose next step needs no
/// event of the kernel, and receives that wait for a buffer, in the order they came. Blocks have
/// `flags` and `next`, those that receive `starved`, too. All zero: no block is in a line.
template <class Connection, class DatagramSocket, class DatagramSend>
class block_lines {
protected:
    // An id names a block of any kind in a line: its kind and its index plus one.
    static constexpr std::uint32_t id_index = (1u << 30) - 1;
    static constexpr std::uint32_t datagram_kind = 1u << 30;
    static constexpr std::uint32_t send_kind = 2u << 30;

    // Flags of all blocks; those of a backend's own are others.
    static constexpr std::uint32_t in_run_list = 1u << 22;
    static constexpr std::uint32_t starved = 1u << 23;

    static std::uint32_t checked(token who, std::uint32_t count) noexcept {
        NETIO_ASSERT(who.index() < count);
        return who.index();
    }

    std::uint32_t& flags_of(std::uint32_t id) noexcept {
        const std::uint32_t index = (id & id_index) - 1;
        switch (id & ~id_index) {
        case 0: return connections_[index].flags;
        case datagram_kind: return datagram_sockets_[index].flags;
        default: return datagram_sends_[index].flags;
        }
    }

    void empty_lines() noexcept {
        run_first_ = run_last_ = run_count_ = 0;
        starved_first_ = starved_last_ = 0;
    }

    void link(std::uint32_t id) noexcept {
        std::uint32_t& flags = flags_of(id);
        if ((flags & in_run_list) != 0) {
            return;
        }
        flags |= in_run_list;
        next_of(id) = 0;
        (run_last_ != 0 ? next_of(run_last_) : run_first_) = id;
        run_last_ = id;
        ++run_count_;
    }

    std::uint32_t unlink_first() noexcept {
        NETIO_ASSERT(run_count_ != 0 && run_first_ != 0);
        const std::uint32_t id = run_first_;
        run_first_ = next_of(id);
        if (run_first_ == 0) {
            run_last_ = 0;
        }
        flags_of(id) &= ~in_run_list;
        --run_count_;
        return id;
    }

    /// Takes one out from wherever it is in the run list; how many stood before it.
    NETIO_COLD std::uint32_t unlink(std::uint32_t id) noexcept {
        NETIO_ASSERT((flags_of(id) & in_run_list) != 0);
        std::uint32_t before = 0, place = 0;
        for (std::uint32_t at = run_first_; at != id; at = next_of(at)) {
            before = at;
            ++place;
        }
        (before != 0 ? next_of(before) : run_first_) = next_of(id);
        run_last_ = run_last_ == id ? before : run_last_;
        flags_of(id) &= ~in_run_list;
        --run_count_;
        return place;
    }

    void link_starved(std::uint32_t id) noexcept {
        NETIO_ASSERT((flags_of(id) & starved) == 0);
        flags_of(id) |= starved;
        links_of(id) = {starved_last_, 0};
        (starved_last_ != 0 ? links_of(starved_last_).next : starved_first_) = id;
        starved_last_ = id;
    }

    void unlink_starved(std::uint32_t id) noexcept {
        NETIO_ASSERT((flags_of(id) & starved) != 0);
        flags_of(id) &= ~starved;
        const block_links links = links_of(id);
        (links.previous != 0 ? links_of(links.previous).next : starved_first_) = links.next;
        (links.next != 0 ? links_of(links.next).previous : starved_last_) = links.previous;
    }

    Connection* connections_ = nullptr;
    DatagramSocket* datagram_sockets_ = nullptr;
    DatagramSend* datagram_sends_ = nullptr;
    std::uint32_t run_first_ = 0;
    std::uint32_t run_last_ = 0;
    std::uint32_t run_count_ = 0;
    std::uint32_t starved_first_ = 0;
    std::uint32_t starved_last_ = 0;

private:
    std::uint32_t& next_of(std::uint32_t id) noexcept {
        const std::uint32_t index = (id & id_index) - 1;
        switch (id & ~id_index) {
        case 0: return connections_[index].next;
        case datagram_kind: return datagram_sockets_[index].next;
        default: return datagram_sends_[index].next;
        }
    }
    block_links& links_of(std::uint32_t id) noexcept {
        const std::uint32_t index = (id & id_index) - 1;
        return (id & datagram_kind) != 0 ? datagram_sockets_[index].starved
                                         : connections_[index].starved;
    }
};

/// A time-out for kernels that count in milliseconds. Rounded up, for a wait that is too short
/// would be repeated without end.
inline int to_milliseconds(std::uint64_t timeout_ns) noexcept {
    if (timeout_ns == forever_ns) {
        return -1;
    }
    const std::uint64_t whole = timeout_ns / 1'000'000 + (timeout_ns % 1'000'000 != 0);
    return whole < INT_MAX ? static_cast<int>(whole) : INT_MAX;
}

}  // namespace detail

NETIO_END

#endif
