// floor 8 · blocking.hpp · poll with a short cut: a thread with one connection blocks in its recv
#ifndef NETIO_BLOCKING_HPP
#define NETIO_BLOCKING_HPP

#include "platform/default_backend.hpp"
#include "platform/poll.hpp"

#if NETIO_HAS_POLL

#include <fcntl.h>
#include <sys/time.h>

NETIO_BEGIN

/// The system calls of the blocking backend: those of poll, of which none waits even on a socket
/// that may, and one receive that does.
struct blocking_sys : poll_sys {
    /// How long a receive blocks before everything else is looked at: the longest that a wake goes
    /// unheard.
    static constexpr std::uint32_t tick_ms = 100;
    // Sends must not wait on a socket whose receives do. macOS and some BSDs ignore MSG_DONTWAIT
    // in a send: there every wait is one of poll.
#if defined(__linux__) || defined(__FreeBSD__) || defined(__OpenBSD__)
    static constexpr bool may_block = true;
#else
    static constexpr bool may_block = false;
#endif
    static ssize_t send(int to, const void* from, std::size_t count) noexcept {
        return ::send(to, from, count, send_flags | MSG_DONTWAIT);
    }
    static ssize_t send_message(int to, const msghdr* what) noexcept {
        return ::sendmsg(to, what, send_flags | MSG_DONTWAIT);
    }
    static ssize_t receive(int from, void* into, std::size_t count) noexcept {
        return ::recv(from, into, count, MSG_DONTWAIT);
    }
    /// Waits for bytes, at most as long as SO_RCVTIMEO says (socket(7)): EAGAIN then.
    static ssize_t receive_waiting(int from, void* into, std::size_t count) noexcept {
        return ::recv(from, into, count, 0);
    }
    static int get_flags(int of) noexcept { return ::fcntl(of, F_GETFL); }
    static int set_flags(int of, int flags) noexcept { return ::fcntl(of, F_SETFL, flags); }
};

/// The backend for threads that serve one connection at a time. It is that over poll, with all it
/// promises for any number of operations, but for one thing: where a receive is all that a wait
/// waits for (no accept, no send that needs room, no connect, no datagram socket), the thread
/// blocks in that receive itself. So a lone round trip costs a receive and a send, and nothing
/// else; beside other operations it costs poll's three calls.
///
/// A receive that blocks hears no wake: it is heard after at most `tick_ms`, when the receive comes
/// back and poll takes over until the next event. `wake_at_once(true)` does without the short cut.
/// While a wait blocks so it has a buffer of the pool in its hands, and between waits none.
///
/// The first such wait makes its socket a blocking one with SO_RCVTIMEO, three calls; `release`
/// takes that back. Whoever shares an adopted socket with others shares that, too: O_NONBLOCK is
/// one for all duplicates of a descriptor.
///
/// See `backend` for what each function promises. `Sys` makes the system calls.
template <class Sys = blocking_sys>
class basic_blocking : public basic_poll<Sys> {
    using base = basic_poll<Sys>;

public:
    static constexpr const char* name = "blocking";
    /// The longest that a wake goes unheard, unless `wake_at_once(true)`.
    static constexpr std::uint64_t late_wake_ns = std::uint64_t{Sys::tick_ms} * 1'000'000;

    os_status open(mutable_bytes memory, const backend_limits& sizes, buffer_pool& pool) noexcept {
        at_once_ = false;
        return base::open(memory, sizes, pool);
    }

    /// Whether a wake ends each wait at once (true), or may go unheard for `late_wake_ns`, as after
    /// `open`. On the thread of `open`.
    void wake_at_once(bool wanted) noexcept { at_once_ = wanted; }

    socket_handle release(token who) noexcept {
        const std::uint32_t flags = this->entries_[this->connection_of(who)].flags;
        const socket_handle handle = base::release(who);
        if ((flags & blocks) != 0) {
            make_patient(static_cast<int>(handle), 0, O_NONBLOCK);
        }
        return handle;
    }

    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
        const std::uint32_t at = lone_receiver();
        if (at == 0 || at_once_ || timeout_ns < late_wake_ns || !may_block(at)) {
            return base::wait(out, timeout_ns);
        }
        detail::event_writer to(out);
        if (!receive_waiting(at, to)) {
            return base::wait(out, timeout_ns);  // no buffer, or a signal
        }
        if (to.count() != 0) {
            return to.count();
        }
        // Nobody is in a hurry here: the rest of the time is poll's, which hears of everything.
        return base::wait(out, timeout_ns == forever_ns ? timeout_ns : timeout_ns - late_wake_ns);
    }

private:
    // Of an entry, beside poll's.
    static constexpr std::uint32_t blocks = 1u << 13;
    static constexpr std::uint32_t refuses_to = 1u << 14;

    /// The entry of a receive that is all there is to wait for; 0: none.
    std::uint32_t lone_receiver() const noexcept {
        NETIO_ASSERT(this->open_);
        constexpr std::uint32_t it_and_the_pipe = 2;
        const bool alone = this->watched_ == it_and_the_pipe && this->results_ == 0 &&
                           this->line_ == 0 && this->at_ == this->pass_end_;
        const std::uint32_t at = alone ? this->watched_sum_ : 0;
        return at >= this->places_.connections && this->polls_[at].events == POLLIN &&
                       !this->wake_word_.woken()
                   ? at
                   : 0;
    }

    /// True if receives of this entry may wait; the first time that has to be made so.
    bool may_block(std::uint32_t at) noexcept {
        if constexpr (!Sys::may_block) {
            return false;
        }
        std::uint32_t& flags = this->entries_[at].flags;
        if ((flags & (blocks | refuses_to)) == 0) {
            flags |= make_patient(this->descriptor_of(at), Sys::tick_ms, 0) ? blocks : refuses_to;
        }
        return (flags & blocks) != 0;
    }

    /// The time-out first: at no moment does a receive wait without one.
    static bool make_patient(int descriptor, std::uint32_t ms, int non_blocking) noexcept {
        timeval most{};
        most.tv_sec = static_cast<decltype(most.tv_sec)>(ms / 1000);
        most.tv_usec = static_cast<decltype(most.tv_usec)>(ms % 1000 * 1000);
        if (Sys::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most)) != 0) {
            return false;
        }
        const int flags = Sys::get_flags(descriptor);
        return flags >= 0 && Sys::set_flags(descriptor, (flags & ~O_NONBLOCK) | non_blocking) == 0;
    }

    /// False if it could not wait, or not for as long.
    bool receive_waiting(std::uint32_t at, detail::event_writer& to) noexcept {
        NETIO_ASSERT(!this->waiting_);
        const detail::poll_entry& of = this->entries_[at];
        std::byte* into = detail::pointer_of(of.into);
        std::size_t count = of.receive_count;
        std::uint32_t buffer = none_index;
        const std::uint32_t high_water = this->pool_->stats(side::input).high_water;
        if ((of.flags & base::into_memory) == 0) {
            buffer = this->pool_->room(side::input) != 0 ? this->pool_->take(side::input)
                                                         : none_index;
            if (buffer == none_index) {
                return false;
            }
            into = this->pool_->data(buffer);
            count = this->pool_->buffer_bytes();
        }
        this->waiting_ = true;
        const ssize_t got = Sys::receive_waiting(this->descriptor_of(at), into, count);
        const bool interrupted = got < 0 && errno == EINTR;
        errno = interrupted ? EAGAIN : errno;
        this->give_received(at, got, buffer, to);
        this->watch(at);
        if (buffer != none_index && got <= 0) {
            this->pool_->forget_unused(side::input, high_water);
        }
        this->waiting_ = false;
        return !interrupted;
    }

    bool at_once_ = false;
};

using blocking = basic_blocking<>;
static_assert(backend<blocking>);
static_assert(backend_blocks<blocking>);

NETIO_END

#endif

NETIO_BEGIN

/// What threads that block run on where they are not told: `blocking`, and where there is no poll
/// the default backend.
#if NETIO_HAS_POLL && !defined(NETIO_BACKEND_HEADER)
using default_blocking_backend = blocking;
#else
using default_blocking_backend = default_backend;
#endif

NETIO_END

#endif
