// floor 6 · io_uring.hpp · the Linux backend over a completion ring: one call of the kernel a turn
#ifndef NETIO_IO_URING_HPP
#define NETIO_IO_URING_HPP

#include "platform/socket_posix.hpp"
#include "platform/waiting.hpp"
#include "src/carver.hpp"

#if NETIO_HAS_IO_URING

#include <sys/mman.h>

NETIO_BEGIN

namespace detail {

/// The kernel's interface, defined here so that system headers of any age do.
namespace uring {

inline constexpr long setup_call = 425;  // the same wherever NETIO_HAS_IO_URING is set
inline constexpr long enter_call = 426;
inline constexpr long register_call = 427;

inline constexpr std::uint32_t setup_cq_size = 1u << 3;
inline constexpr std::uint32_t setup_submit_all = 1u << 7;
inline constexpr std::uint32_t setup_single_issuer = 1u << 12;  // Linux 6.0
inline constexpr std::uint32_t setup_defer_taskrun = 1u << 13;  // Linux 6.1
inline constexpr std::uint32_t setup_wanted =
    setup_submit_all | setup_single_issuer | setup_defer_taskrun;
inline constexpr std::uint32_t feature_single_map = 1u << 0;
inline constexpr std::uint32_t feature_no_drop = 1u << 1;
inline constexpr std::uint32_t feature_ext_arg = 1u << 8;
inline constexpr std::uint32_t feature_wait_at_least = 1u << 15;  // Linux 6.12
inline constexpr std::uint32_t enter_get_events = 1u << 0;
inline constexpr std::uint32_t enter_ext_arg = 1u << 3;
inline constexpr std::uint32_t register_buffer_ring = 22;  // Linux 5.19
inline constexpr std::uint32_t submission_overflow = 1u << 1;
inline constexpr std::int64_t offset_rings = 0;
inline constexpr std::int64_t offset_submissions = 0x10000000;

enum opcode : std::uint8_t {
    op_poll_add = 6,
    op_send_message = 9,
    op_receive_message = 10,
    op_timeout = 11,
    op_timeout_remove = 12,
    op_accept = 13,
    op_cancel = 14,
    op_connect = 16,
    op_close = 19,
    op_send = 26,
    op_receive = 27
};
inline constexpr std::uint8_t flag_buffer_select = 1u << 5;
inline constexpr std::uint8_t flag_skip_success = 1u << 6;
inline constexpr std::uint16_t poll_first = 1u << 0;
inline constexpr std::uint16_t receive_multishot = 1u << 1;  // Linux 6.0; bounded, 6.16
inline constexpr std::uint32_t poll_multishot = 1u << 0;
inline constexpr std::uint32_t poll_readable = 1u << 0;
inline constexpr std::uint32_t poll_writable = 1u << 2;
inline constexpr std::uint32_t poll_failed = 3u << 3;  // an error, or both ends are closed
inline constexpr std::uint32_t timeout_absolute = 1u << 0;
inline constexpr std::uint32_t timeout_update = 1u << 1;  // Linux 5.11
inline constexpr std::uint32_t cancel_all = 1u << 0;
inline constexpr std::uint32_t cancel_any = 1u << 2;
inline constexpr std::uint32_t completion_buffer = 1u << 0;
inline constexpr std::uint32_t completion_more = 1u << 1;
inline constexpr std::uint32_t completion_buffer_shift = 16;

struct submission {
    std::uint8_t opcode;
    std::uint8_t flags;
    std::uint16_t priority;  // flags of sends, receives and accepts
    std::int32_t descriptor;
    std::uint64_t second_address;
    std::uint64_t address;
    std::uint32_t count;
    std::uint32_t operation_flags;
    std::uint64_t user_data;
    std::uint16_t buffer_group;
    std::uint16_t personality;
    std::uint32_t total;  // of a multishot receive: its bound in bytes (`optlen`)
    std::uint64_t unused[2];
};
static_assert(sizeof(submission) == 64);

struct completion {
    std::uint64_t user_data;
    std::int32_t result;
    std::uint32_t flags;
};
static_assert(sizeof(completion) == 16);

struct submission_offsets {
    std::uint32_t head, tail, mask, entries, flags, dropped, array, reserved;
    std::uint64_t user_address;
};
struct completion_offsets {
    std::uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
    std::uint64_t user_address;
};
struct parameters {
    std::uint32_t submission_entries, completion_entries, flags, thread_cpu, thread_idle, features,
        workers_of, reserved[3];
    submission_offsets submissions;
    completion_offsets completions;
};
static_assert(sizeof(parameters) == 120);

struct provided_buffer {
    std::uint64_t address;
    std::uint32_t count;
    std::uint16_t id;
    std::uint16_t tail;  // of the whole ring, in its first entry
};
static_assert(sizeof(provided_buffer) == 16);
struct buffer_ring_registration {
    std::uint64_t address;
    std::uint32_t entries;
    std::uint16_t group;
    std::uint16_t flags;
    std::uint64_t reserved[3];
};
static_assert(sizeof(buffer_ring_registration) == 40);
struct time_span {
    std::int64_t seconds;
    std::int64_t nanoseconds;
};
static_assert(sizeof(time_span) == 16);
constexpr time_span span_of(std::uint64_t ns) noexcept {
    return {static_cast<std::int64_t>(ns / 1'000'000'000),
            static_cast<std::int64_t>(ns % 1'000'000'000)};
}
struct wait_argument {
    std::uint64_t signals;
    std::uint32_t signals_bytes;
    std::uint32_t wait_at_least_us;
    std::uint64_t timeout;
};
static_assert(sizeof(wait_argument) == 24);

}  // namespace uring

}  // namespace detail

/// The system calls of the io_uring backend. Tests put their own in place of it to count calls and
/// to let the n-th one fail. What the ring itself does is no call of these.
struct io_uring_sys : eventfd_sys {
    static int ring_setup(std::uint32_t entries, detail::uring::parameters& how) noexcept {
        return static_cast<int>(::syscall(detail::uring::setup_call, entries, &how));
    }
    static int ring_enter(int ring, std::uint32_t submitted, std::uint32_t least,
                          std::uint32_t flags,
                          const detail::uring::wait_argument& how) noexcept {
        return static_cast<int>(::syscall(detail::uring::enter_call, ring, submitted, least, flags,
                                          &how, sizeof(how)));
    }
    static int ring_register(int ring, std::uint32_t what,
                             const detail::uring::buffer_ring_registration& which) noexcept {
        return static_cast<int>(
            ::syscall(detail::uring::register_call, ring, what, &which, 1u));
    }
    static std::byte* ring_map(int ring, std::size_t byte_count, std::int64_t offset) noexcept {
        void* const at = ::mmap(nullptr, byte_count, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_POPULATE, ring, static_cast<off_t>(offset));
        return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    }
    static void ring_unmap(std::byte* at, std::size_t byte_count) noexcept {
        ::munmap(at, byte_count);
    }
};

namespace detail {

/// The two queues shared with the kernel.
template <class Sys>
class uring_queues {
public:
    os_status open(std::uint32_t submissions, std::uint32_t completions) noexcept {
        uring::parameters how{};
        how.flags = uring::setup_wanted | uring::setup_cq_size;
        how.completion_entries = completions;
        descriptor_ = Sys::ring_setup(submissions, how);
        if (descriptor_ < 0) {
            return status_of(errno);
        }
        features_ = how.features;
        const std::size_t first =
            how.submissions.array + how.submission_entries * sizeof(std::uint32_t);
        const std::size_t second =
            how.completions.completions + how.completion_entries * sizeof(uring::completion);
        rings_bytes_ = first < second ? second : first;
        submissions_bytes_ = how.submission_entries * sizeof(uring::submission);
        rings_ = Sys::ring_map(descriptor_, rings_bytes_, uring::offset_rings);
        std::byte* const at =
            rings_ != nullptr
                ? Sys::ring_map(descriptor_, submissions_bytes_, uring::offset_submissions)
                : nullptr;
        submissions_ = reinterpret_cast<uring::submission*>(at);
        if (at == nullptr) {
            const os_status why = status_of(errno);
            close();
            return why;
        }
        locate(how);
        return {};
    }

    void close() noexcept {
        if (submissions_ != nullptr) {
            Sys::ring_unmap(reinterpret_cast<std::byte*>(submissions_), submissions_bytes_);
        }
        if (rings_ != nullptr) {
            Sys::ring_unmap(rings_, rings_bytes_);
        }
        Sys::close(descriptor_);
        *this = uring_queues{};
    }

    int descriptor() const noexcept { return descriptor_; }
    bool offers(std::uint32_t feature) const noexcept { return (features_ & feature) != 0; }
    std::uint32_t next_index() const noexcept { return tail_ & submission_mask_; }
    /// Pushed and not taken by the kernel yet.
    std::uint32_t pending() const noexcept { return tail_ - load(submission_head_); }
    bool full() const noexcept { return pending() > submission_mask_; }
    /// How many were pushed so far; whether the kernel took that many.
    std::uint32_t pushed() const noexcept { return tail_; }
    bool took(std::uint32_t count) const noexcept { return tail_ - count >= pending(); }

    uring::submission& push() noexcept {
        NETIO_ASSERT(!full());
        uring::submission& out = submissions_[tail_ & submission_mask_];
        out = uring::submission{};
        ++tail_;
        return out;
    }

    /// Hands over what was pushed; waits for `least` completions, or `patience_us` long for so many
    /// and then for any, or until the time is up.
    int enter(std::uint32_t least, std::uint64_t timeout_ns, std::uint32_t flags,
              std::uint32_t patience_us = 0) noexcept {
        const uring::time_span span = uring::span_of(timeout_ns);
        uring::wait_argument how{};
        how.wait_at_least_us = patience_us;
        how.timeout = least == 0 || timeout_ns == forever_ns ? 0 : address_of(&span);
        __atomic_store_n(submission_tail_, tail_, __ATOMIC_RELEASE);
        return Sys::ring_enter(descriptor_, pending(), least, flags | uring::enter_ext_arg, how);
    }

    std::uint32_t completion_tail() const noexcept { return load(completion_tail_); }
    std::uint32_t unread() const noexcept { return completion_tail() - *completion_head_; }
    const uring::completion& at(std::uint32_t position) const noexcept {
        return completions_[position & completion_mask_];
    }
    /// Is a completion of this one among those not read yet?
    bool has(std::uint64_t user_data) const noexcept {
        const std::uint32_t end = completion_tail();
        for (std::uint32_t each = *completion_head_; each != end; ++each) {
            if (at(each).user_data == user_data) {
                return true;
            }
        }
        return false;
    }
    uring::completion pop() noexcept {
        NETIO_ASSERT(unread() != 0);
        const uring::completion out = at(*completion_head_);
        __atomic_store_n(completion_head_, *completion_head_ + 1, __ATOMIC_RELEASE);
        return out;
    }
    /// The kernel keeps completions that had no room; it hands them on when it is entered again.
    bool overflown() const noexcept { return (load(flags_) & uring::submission_overflow) != 0; }

private:
    static std::uint32_t load(const std::uint32_t* from) noexcept {
        return __atomic_load_n(from, __ATOMIC_ACQUIRE);
    }
    void locate(const uring::parameters& how) noexcept {
        const auto word = [this](std::uint32_t offset) {
            return reinterpret_cast<std::uint32_t*>(rings_ + offset);
        };
        submission_head_ = word(how.submissions.head);
        submission_tail_ = word(how.submissions.tail);
        flags_ = word(how.submissions.flags);
        completion_head_ = word(how.completions.head);
        completion_tail_ = word(how.completions.tail);
        submission_mask_ = *word(how.submissions.mask);
        completion_mask_ = *word(how.completions.mask);
        completions_ = reinterpret_cast<uring::completion*>(rings_ + how.completions.completions);
        // Submissions go in the order of their places: the array of indexes never changes.
        for (std::uint32_t at = 0; at < how.submission_entries; ++at) {
            word(how.submissions.array)[at] = at;
        }
        tail_ = *submission_tail_;
    }

    int descriptor_ = -1;
    std::uint32_t features_ = 0;
    std::byte* rings_ = nullptr;
    std::size_t rings_bytes_ = 0;
    uring::submission* submissions_ = nullptr;
    std::size_t submissions_bytes_ = 0;
    uring::completion* completions_ = nullptr;
    std::uint32_t* submission_head_ = nullptr;
    std::uint32_t* submission_tail_ = nullptr;
    std::uint32_t* flags_ = nullptr;
    std::uint32_t* completion_head_ = nullptr;
    std::uint32_t* completion_tail_ = nullptr;
    std::uint32_t submission_mask_ = 0;
    std::uint32_t completion_mask_ = 0;
    std::uint32_t tail_ = 0;
};

/// Buffers the kernel may choose from: the pool's own. The kernel writes to one only while this
/// thread is inside the enter call (deferred task work), so they are taken from the pool just
/// before it, and those that no completion named go back just after: between calls nothing is held
/// for nobody, and the pool's figures are true. A buffer that goes back to the pool with bytes in
/// it is wiped there, so none is lent twice with somebody's bytes.
class uring_lending {
public:
    static constexpr std::uint32_t entries = 256;  // of the kernel's ring, and lent at most
    static constexpr std::uint32_t ids = 512;      // named by completions not read yet, and lent
    static constexpr std::uint16_t group = 1;
    static constexpr std::size_t page_bytes = 4096;
    static constexpr std::size_t memory_bytes = 2 * page_bytes;  // one page, wherever it begins

    /// What to tell the kernel of the ring, once.
    uring::buffer_ring_registration open(std::byte* memory, buffer_pool& pool) noexcept {
        *this = uring_lending{};
        pool_ = &pool;
        entries_ = reinterpret_cast<uring::provided_buffer*>(page_in(memory));
        for (std::uint32_t at = 0; at < ids; ++at) {
            free_[at] = static_cast<std::uint16_t>(ids - 1 - at);
        }
        free_count_ = ids;
        return registration_of(entries_);
    }

    static std::byte* page_in(std::byte* memory) noexcept {
        return memory + detail::bytes_to_aligned(memory, page_bytes);
    }
    static uring::buffer_ring_registration registration_of(const void* page) noexcept {
        uring::buffer_ring_registration what{};
        what.address = address_of(page);
        what.entries = entries;
        what.group = group;
        return what;
    }

    /// At most `most` buffers: as many as could be asked for.
    void lend(std::uint32_t most) noexcept {
        NETIO_ASSERT(tail_ == head_);
        high_water_ = pool_->stats(side::input).high_water;
        const std::uint32_t room = pool_->room(side::input);
        most = most < room ? most : room;
        most = most < entries ? most : entries;
        most = most < free_count_ ? most : free_count_;
        for (; most != 0; --most) {
            const std::uint32_t index = pool_->take(side::input);
            NETIO_ASSERT(index != none_index);
            const std::uint16_t id = free_[--free_count_];
            lent_[id] = index + 1;
            uring::provided_buffer& to = entries_[tail_ % entries];
            to.address = address_of(pool_->data(index));
            to.count = pool_->buffer_bytes();
            to.id = id;
            ++tail_;
        }
        publish();
    }
    bool lends() const noexcept { return tail_ != head_; }
    /// What is lent stays so for longer than a call; what the pool reached meanwhile is true.
    void keep_high_water() noexcept { high_water_ = none_index; }
    std::uint32_t count() const noexcept { return static_cast<std::uint16_t>(tail_ - head_); }

    /// A completion names a buffer. The kernel takes them in the order of the ring.
    void note(const uring::completion& what) noexcept {
        if ((what.flags & uring::completion_buffer) != 0) {
            NETIO_ASSERT(entries_[head_ % entries].id ==
                         what.flags >> uring::completion_buffer_shift);
            ++head_;
        }
    }

    /// Back to the pool what no completion named, the last one lent first. Nothing was written to
    /// them: the kernel chooses a buffer only once it has bytes for it.
    void take_back() noexcept {
        bool unused = false;
        while (tail_ != head_) {
            --tail_;
            const std::uint16_t id = entries_[tail_ % entries].id;
            pool_->give(lent_[id] - 1, side::input, 0);
            forget(id);
            unused = true;
        }
        if (unused) {
            if (high_water_ != none_index) {
                pool_->forget_unused(side::input, high_water_);
            }
            publish();
        }
    }

    /// The buffer a completion names, or none_index. From here on it is the caller's.
    std::uint32_t named_by(const uring::completion& what) noexcept {
        if ((what.flags & uring::completion_buffer) == 0) {
            return none_index;
        }
        const std::uint32_t id = what.flags >> uring::completion_buffer_shift;
        NETIO_ASSERT(id < ids && lent_[id] != 0);
        const std::uint32_t index = lent_[id] - 1;
        forget(static_cast<std::uint16_t>(id));
        return index;
    }

private:
    void forget(std::uint16_t id) noexcept {
        NETIO_ASSERT(free_count_ < ids);
        lent_[id] = 0;
        free_[free_count_++] = id;
    }
    void publish() noexcept {
        __atomic_store_n(&entries_[0].tail, tail_, __ATOMIC_RELEASE);
    }

    buffer_pool* pool_ = nullptr;
    uring::provided_buffer* entries_ = nullptr;
    std::uint32_t high_water_ = 0;  // of the pool, before it lent; none_index: to be kept
    std::uint32_t free_count_ = 0;
    std::uint16_t head_ = 0;  // the kernel's: as many as completions named
    std::uint16_t tail_ = 0;
    std::uint16_t free_[ids] = {};
    std::uint32_t lent_[ids] = {};  // buffer index plus one, by id
};

/// What a backend remembers of one connection. All-zero is "no connection".
struct uring_connection {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;  // in the run list, an id
    union {
        std::uint64_t into;    // receive into the caller's memory: its address
        block_links starved;   // receive into the pool: its place among those without a buffer
        std::uint32_t buffer;  // plus one: taken for a receive that had found none
    };
    std::uint32_t receive_count;  // bytes of `into`, or credit left; of a close its submission
    std::uint32_t send_count;     // of the first slice of a send
    std::uint64_t send_from;      // its address
};
static_assert(sizeof(uring_connection) == 40, "the budget of a connection in a backend");

inline constexpr std::uint32_t uring_accepts_armed = 4;

/// One accept in the kernel. Its address is the kernel's while it is outstanding.
struct uring_accept {
    socket_address peer;
    std::uint32_t generation;
    socklen_t peer_bytes;
    bool outstanding;
    bool ending;  // the kernel was asked to end it
};

struct uring_listener {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    uring_accept accepts[uring_accepts_armed];
};

struct uring_datagram_socket {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;
    block_links starved;
    std::uint32_t buffer;
    msghdr message;  // the kernel's while a receive is outstanding, as what it points to
    iovec piece;
    socket_address peer;
};

struct uring_datagram_send {
    std::int32_t descriptor;
    std::uint32_t generation;
    std::uint32_t flags;
    std::uint32_t next;
    std::uint32_t tries;
    std::int32_t code;
    msghdr message;  // and what it points to: the kernel's until it took the submission
    iovec piece;
    socket_address peer;
};

/// What a submission points to. The kernel has copied it once it took the submission, so one for
/// each place in the queue is enough.
struct uring_scratch {
    msghdr message;
    iovec pieces[slices_max];
    socket_address peer;
};

/// Makes the socket of a connect; the ring connects it.
template <class Sys>
struct uring_unconnected : Sys {
    static int connect(int, const sockaddr*, socklen_t) noexcept {
        errno = EINPROGRESS;
        return -1;
    }
};

}  // namespace detail

/// The io_uring backend: one ring a worker, and one call of the kernel a turn, which hands over
/// what was started, lets the kernel run what became ready, and waits. Every start is bounded in
/// what it can bring; completions are read by `wait` alone.
///
/// Not for sockets with an error queue (SO_TIMESTAMPING, IP_RECVERR, zero-copy): the kernel takes
/// what waits there for readiness, and in the end hands the receive to a thread of its own.
///
/// Where the kernel takes no submissions any more, for want of memory, a start enters it again and
/// again, and at last asserts.
///
/// See `backend` for what each function promises. `Sys` makes the system calls.
template <class Sys = io_uring_sys>
class basic_io_uring
    : public detail::posix_sockets<Sys>,
      detail::block_lines<detail::uring_connection, detail::uring_datagram_socket,
                          detail::uring_datagram_send> {
    using completion = detail::uring::completion;
    using submission = detail::uring::submission;
    using connection = detail::uring_connection;
    using listener = detail::uring_listener;
    using datagram_socket = detail::uring_datagram_socket;
    using datagram_send = detail::uring_datagram_send;
    using scratch = detail::uring_scratch;

public:
    static constexpr const char* name = "io_uring";
    static constexpr std::size_t connection_bytes = sizeof(connection);
    /// Any: one receive may bring many messages.
    static constexpr std::uint32_t receive_credit = none_index;
    /// Connections that may still come after stop_accept.
    static constexpr std::uint32_t late_accepts_max = detail::uring_accepts_armed;
    /// So long a wait may keep the event of a quiet send to itself, and so long a close, whose slot
    /// somebody may want.
    static constexpr std::uint64_t quiet_ns_max = 10'000'000;
    static constexpr std::uint64_t closed_ns_max = 1'000'000;

    basic_io_uring() noexcept = default;
    basic_io_uring(const basic_io_uring&) = delete;
    basic_io_uring& operator=(const basic_io_uring&) = delete;

    static availability available() noexcept {
        detail::uring::parameters how{};
        how.flags = detail::uring::setup_wanted;
        const int ring = Sys::ring_setup(4, how);
        if (ring < 0) {
            return refused(errno);
        }
        const char* const missing = missing_from(ring, how.features);
        Sys::close(ring);
        return {*missing == '\0', missing};
    }
    static constexpr std::size_t bytes_needed(const backend_limits& sizes) noexcept {
        return layout::of(sizes).end;
    }

    os_status open(mutable_bytes memory, const backend_limits& sizes, buffer_pool& pool) noexcept {
        NETIO_ASSERT(!open_);
        NETIO_ASSERT(memory.size() >= bytes_needed(sizes));
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0);
        if (const os_status opened = ring_.open(submissions_max, completions_wanted(sizes));
            !opened) {
            return opened;
        }
        lay_out(memory.data(), sizes);
        pool_ = &pool;
        if (Sys::ring_register(ring_.descriptor(), detail::uring::register_buffer_ring,
                               lending_.open(memory.data(), pool)) != 0) {
            return give_up_open(errno);
        }
        wake_ = Sys::open_wake();
        if (wake_ < 0) {
            return give_up_open(errno);
        }
        spare_.refill();
        wake_word_.open();
        open_ = true;
        arm_wake();
        submit();  // a foreign loop may poll our handle before the first wait
        return {};
    }

    void close() noexcept {
        NETIO_ASSERT(!waiting_);
        if (!open_) {
            return;
        }
        wake_word_.close<Sys>();
        end_everything();
        for (std::uint32_t index = 0; index < sizes_.connections; ++index) {
            const std::uint32_t flags = connections_[index].flags;
            if ((flags & (attached | connecting)) != 0 && (flags & close_sent) == 0) {
                Sys::close(connections_[index].descriptor);
            }
        }
        spare_.close();
        Sys::close(wake_);
        ring_.close();
        open_ = false;
    }

    /// While messages come several at a time, a wait that sleeps waits `batch_us` microseconds for
    /// more of them, or until there are 128: fewer calls for more latency. 0: never, and before
    /// Linux 6.12 in any case. Any time after `open`.
    void wait_for_batches(std::uint32_t batch_us) noexcept {
        NETIO_ASSERT(open_);
        const std::uint32_t most = batch_us < batch_us_max ? batch_us : batch_us_max;
        batch_us_ = ring_.offers(detail::uring::feature_wait_at_least) ? most : 0;
    }

    /// What `wait_for_batches` was told, as far as this kernel can do it.
    std::uint32_t batch_us() const noexcept { return batch_us_; }

    /// What the kernel has to end before it is done with what was started, without its own wake and
    /// timers: 0 when all is closed.
    std::uint32_t outstanding() const noexcept {
        const std::uint32_t own =
            1u + (standing_.is_set() ? 1u : 0u) + (sent_timer_stands_ ? 1u : 0u) +
            (closed_timer_stands_ ? 1u : 0u);
        NETIO_ASSERT(outstanding_count_ >= own);
        NETIO_ASSERT(selecting_count_ <= outstanding_count_ - own);
        return outstanding_count_ - own;
    }

    os_status start_accept(socket_handle handle, token who) noexcept {
        listener& at = listener_of(who);
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        spare_.refill();
        at.descriptor = static_cast<int>(handle);
        at.generation = who.generation();
        at.flags = attached;
        ++listening_count_;
        arm_accepts(who.index());
        return {};
    }

    void bound_accepts(std::uint32_t most) noexcept {
        if (!accepts_.is(most)) {
            accepts_.set(most);
            arm_accepts_of_all();
        }
    }

    void stop_accept(token who) noexcept {
        listener& at = listener_of(who);
        if (at.flags == 0) {
            return;  // it failed, and the caller has not looked at that event yet
        }
        NETIO_ASSERT(at.generation == who.generation());
        forget_listener(who.index());
    }

    os_status start_connect(const stream_address& address, const socket_options& options,
                            token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(open_);
        NETIO_ASSERT(at.flags == 0);
        if (!address.unix_path.empty()) {
            return connect_to_path(at, address, options, who);
        }
        const os_handle made =
            detail::connect_stream<detail::uring_unconnected<Sys>>(address, options);
        if (!made) {
            return made.status;
        }
        begin(at, static_cast<int>(made.handle), who, connecting);
        scratch* with = nullptr;
        submission& out =
            start(detail::uring::op_connect, at.descriptor, who.with(operation::connect), &with);
        out.address = detail::address_of(&with->peer);
        out.second_address = detail::to_socket_address(unmapped(address.ip), with->peer);
        NETIO_ASSERT(out.second_address != 0);
        connects_pushed_ = true;
        return {};
    }

    os_status attach(socket_handle handle, token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        begin(at, static_cast<int>(handle), who, attached);
        return {};
    }

    socket_handle release(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (receiving | sending | closing)) == 0);
        NETIO_ASSERT((at.flags & attached) != 0);
        if ((at.flags & in_run_list) != 0) {
            forget_step(who.index() + 1);  // of a quiet send that told
        }
        const int descriptor = at.descriptor;
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
            at.into = 0;  // no buffer yet
            at.receive_count = credit;
        } else {
            at.flags |= into_memory;
            at.into = detail::address_of(into.data());
            at.receive_count = detail::clipped(into.size());
        }
        arm_receive(at, who);
    }

    void stop_receive(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & stopping) == 0);
        if ((at.flags & receiving) == 0) {
            return;  // it has ended, and the caller has not looked at that event yet
        }
        at.flags |= stopping;
        if ((at.flags & starved) != 0) {
            unlink_starved(who.index() + 1);
            at.flags |= result_disarmed;
            link_due(who.index() + 1);
        } else {
            cancel(who.with(operation::receive));
        }
    }

    void start_send(token who, std::span<const bytes> slices) noexcept {
        arm_send(sender_of(who), who, slices).operation_flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    }

    /// The kernel says nothing of a send that is whole at once. In this form it is exactly so: it
    /// waits for nothing (MSG_DONTWAIT), and a part of it counts as a failure (MSG_WAITALL), which
    /// is told. So what the kernel took and did not speak of is sent.
    void send_quietly(token who, std::span<const bytes> slices) noexcept {
        // Where it has to wait, only one slice is remembered. And whoever is in the run list for
        // something older would be stepped through before the kernel saw this one.
        if (slices.size() != 1 || (connection_of(who).flags & in_run_list) != 0) {
            start_send(who, slices);
            return;
        }
        connection& at = sender_of(who);
        submission& out = arm_send(at, who, slices);
        out.operation_flags = MSG_NOSIGNAL | MSG_DONTWAIT | MSG_WAITALL;
        out.flags = detail::uring::flag_skip_success;
        --outstanding_count_;
        at.flags |= quiet;
        link(who.index() + 1);
    }

    void hurry(token who) noexcept {
        if ((connection_of(who).flags & quiet) != 0) {
            link_due(who.index() + 1);
        }
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
        at.flags |= closing;
        // Pending operations hold the file, and end of themselves once it is reset.
        if (abort && ((at.flags & connecting) != 0 || !Sys::disconnect(at.descriptor))) {
            at.flags |= abortive;
        }
        if ((at.flags & quiet) != 0) {
            link_due(who.index() + 1);  // it is in the line already
        }
        // A pending operation holds the file: the socket is closed when the last one has ended.
        for (const operation each : {operation::connect, operation::receive, operation::send}) {
            if (in_kernel(at, each)) {
                cancel(who.with(each));
            }
        }
        close_if_idle(at, who.index());
    }

    os_status start_receive_from(socket_handle handle, token who) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        at = datagram_socket{};
        at.descriptor = static_cast<int>(handle);
        at.generation = who.generation();
        at.flags = attached;
        arm_datagram(at, who);
        return {};
    }

    void stop_receive_from(token who) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(at.generation == who.generation());
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        at.flags |= closing;
        if ((at.flags & starved) != 0) {
            unlink_starved(datagram_kind | (who.index() + 1));
            link_due(datagram_kind | (who.index() + 1));
        } else {
            cancel(who.with(operation::receive_from));
        }
    }

    void start_send_to(socket_handle handle, token who, bytes payload,
                       const endpoint& peer) noexcept {
        datagram_send& at = datagram_sends_[checked(who, sizes_.datagram_sends)];
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        at = datagram_send{};
        at.descriptor = static_cast<int>(handle);
        at.generation = who.generation();
        at.flags = attached;
        const socklen_t size = detail::to_socket_address(peer, at.peer);
        at.piece.iov_base = const_cast<std::byte*>(payload.data());
        at.piece.iov_len = detail::clipped(payload.size());
        at.message.msg_name = &at.peer;
        at.message.msg_namelen = size;
        at.message.msg_iov = &at.piece;
        at.message.msg_iovlen = 1;
        if (size != 0) {
            arm_send_to(at, who);
        } else {
            at.code = EDESTADDRREQ;
            link_due(send_kind | (who.index() + 1));
        }
    }

    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        NETIO_ASSERT(out.size() >= 4);
        waiting_ = true;
        detail::event_writer to(out);
        wake_word_.take(to);
        serve_starved();
        note_settled();
        hand_over_much();
        // Half a batch at hand is worth no call. Completions are made inside the enter call only,
        // so without it what is at hand becomes less. Less than that is worth none either where
        // there is nothing to hand over, but not twice in a row: others may be ready by now. While
        // batches come, each is worked off before the next is waited for, as far as it has an end:
        // who writes again with each `sent` never runs out of them.
        const std::uint32_t at_hand = ring_.unread() + settled_count_;
        const bool batch = batching() && skips_ < skips_most;
        const bool skips = at_hand != 0 && (batch || (ring_.pending() == 0 && skips_ == 0));
        if (!skips && (at_hand < out.size() / 2 || skips_ == skips_most)) {
            skips_ = 0;
            enter_kernel(to, timeout_ns);
        } else {
            ++skips_;
        }
        work_off_run_list(to, ring_.unread() != 0 ? to.room() / 2 : 0);
        // What these bring with them, if the queue of submissions is full, is the next wait's.
        for (std::uint32_t left = ring_.unread(); left != 0 && to.room() != 0; --left) {
            complete(ring_.pop(), to);
        }
        work_off_run_list(to, 0);
        waiting_ = false;
        if (foreign_) {
            wake_word_.announce_sleep();
        }
        return to.count();
    }

    std::uint64_t now_ns() const noexcept { return seen_ns_ = Sys::now_ns(); }

    bool ready() noexcept {
        NETIO_ASSERT(open_);
        // What is pushed is started by the next wait only: the handle can't tell of it before.
        return run_count_ != 0 || ring_.unread() != 0 || ring_.pending() != 0 ||
               ring_.overflown() || (starved_first_ != 0 && pool_->room(side::input) != 0) ||
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
        return ring_.descriptor();
    }

private:
    // Flags of all blocks, beside those of the lines.
    static constexpr std::uint32_t attached = 1u << 0;
    static constexpr std::uint32_t connecting = 1u << 1;
    static constexpr std::uint32_t closing = 1u << 2;
    static constexpr std::uint32_t abortive = 1u << 3;
    static constexpr std::uint32_t receiving = 1u << 6;     // outstanding for the caller
    static constexpr std::uint32_t receive_sent = 1u << 7;  // outstanding in the kernel
    static constexpr std::uint32_t into_memory = 1u << 8;
    static constexpr std::uint32_t receive_over = 1u << 9;  // ended or failed was given
    static constexpr std::uint32_t stopping = 1u << 10;
    static constexpr std::uint32_t sending = 1u << 11;
    static constexpr std::uint32_t send_over = 1u << 12;   // end_send was called
    static constexpr std::uint32_t close_sent = 1u << 13;  // the descriptor is the kernel's
    static constexpr std::uint32_t quiet = 1u << 16;       // no completion means sent
    static constexpr std::uint32_t many = 1u << 17;        // its receive was a multishot one
    static constexpr std::uint32_t bulky = 1u << 18;       // what came last was large
    static constexpr std::uint32_t due = 1u << 19;         // counted in due_count_
    static constexpr std::uint32_t polling = 1u << 20;     // its send waits for room
    static constexpr std::uint32_t room_found = 1u << 21;  // and that wait is to end
    static constexpr std::uint32_t one_shot = 1u << 24;    // a multishot receive was refused
    // Results that the next wait will give.
    static constexpr std::uint32_t result_connected = 1u << 14;
    static constexpr std::uint32_t result_disarmed = 1u << 15;

    static constexpr std::uint32_t accepts_armed = detail::uring_accepts_armed;
    static constexpr std::uint32_t submissions_max = 256;
    static constexpr std::uint32_t completions_most = 8192;
    static constexpr std::uint32_t skips_most = 64;  // two batches and their sends, by eights
    static constexpr std::uint32_t batch_us_max = 10'000;
    static constexpr std::uint32_t batch_most = 128;
    static constexpr std::uint32_t batch_bytes_most = 256 * 1024;  // more leave the cache meanwhile
    static constexpr std::uint32_t hand_over_bytes = 64 * 1024;    // worth a call of its own
    /// So many ready operations the kernel runs at a time where fewer are waited for, twice a call.
    static constexpr std::uint32_t runs_most = 20;
    static constexpr std::uint8_t cancel_mark = 0x80;  // in the operation of a token
    static constexpr std::uint32_t send_to_tries_max = 3;
    static constexpr int entries_tried_max = 1000;

    /// Where everything lies in the memory given.
    struct layout : detail::block_places<connection, listener, datagram_socket, datagram_send> {
        std::size_t scratches = 0;
        std::size_t end = 0;

        static constexpr layout of(const backend_limits& sizes) noexcept {
            layout out;
            out.scratches = detail::uring_lending::memory_bytes;
            out.end = out.place(out.scratches + submissions_max * sizeof(scratch), sizes);
            return out;
        }
    };

    void lay_out(std::byte* memory, const backend_limits& sizes) noexcept {
        const layout places = layout::of(sizes);
        sizes_ = sizes;
        scratches_ = reinterpret_cast<scratch*>(memory + places.scratches);
        connections_ = reinterpret_cast<connection*>(memory + places.connections);
        listeners_ = reinterpret_cast<listener*>(memory + places.listeners);
        datagram_sockets_ =
            reinterpret_cast<datagram_socket*>(memory + places.datagram_sockets);
        datagram_sends_ = reinterpret_cast<datagram_send*>(memory + places.datagram_sends);
        empty_lines();
        outstanding_count_ = selecting_count_ = looked_at_ = settled_count_ = due_count_ = 0;
        closing_count_ = 0;
        listening_count_ = messages_seen_ = bytes_seen_ = call_brings_ = skips_ = batch_us_ = 0;
        accepts_ = {};
        multishot_ = true;
        foreign_ = connects_pushed_ = handed_over_ = false;
        sent_timer_stands_ = closed_timer_stands_ = false;
        standing_.clear();
    }

    /// Room for a receive and a send of everybody. Where more come at once the kernel keeps them
    /// until there is room again.
    static constexpr std::uint32_t completions_wanted(const backend_limits& sizes) noexcept {
        const std::uint64_t all = std::uint64_t{2} * sizes.connections +
                                  accepts_armed * sizes.listeners + sizes.datagram_sockets +
                                  sizes.datagram_sends + submissions_max;
        return all < completions_most ? static_cast<std::uint32_t>(all) : completions_most;
    }

    // ---- what this kernel offers

    NETIO_COLD static availability refused(int code) noexcept {
        switch (code) {
        case ENOSYS: return {false, "io_uring_setup"};
        case EINVAL: return {false, "IORING_SETUP_DEFER_TASKRUN (Linux 6.1)"};
        case EPERM:
        case EACCES:
            return {false, "io_uring_setup: kernel.io_uring_disabled or a filter forbids it"};
        default: return {};  // out of descriptors or memory: open says so
        }
    }

    /// What a ring lacks, "" if nothing.
    NETIO_COLD static const char* missing_from(int ring, std::uint32_t features) noexcept {
        if ((features & detail::uring::feature_single_map) == 0 ||
            (features & detail::uring::feature_no_drop) == 0) {
            return "IORING_FEAT_NODROP (Linux 5.5)";
        }
        if ((features & detail::uring::feature_ext_arg) == 0) {
            return "IORING_FEAT_EXT_ARG (Linux 5.11)";
        }
        if (::sysconf(_SC_PAGESIZE) != static_cast<long>(detail::uring_lending::page_bytes)) {
            return "pages of 4 KiB";
        }
        alignas(detail::uring_lending::page_bytes)
            std::byte page[detail::uring_lending::page_bytes] = {};
        if (Sys::ring_register(ring, detail::uring::register_buffer_ring,
                               detail::uring_lending::registration_of(page)) != 0) {
            return errno == EINVAL ? "provided buffer rings (Linux 5.19)"
                                   : "io_uring_register: a filter forbids it";
        }
        if (Sys::ring_enter(ring, 0, 0, detail::uring::enter_ext_arg, {}) < 0) {
            return "io_uring_enter: a filter forbids it";
        }
        return "";
    }

    NETIO_COLD os_status give_up_open(int code) noexcept {
        ring_.close();
        return detail::status_of(code);
    }

    // ---- blocks

    connection& connection_of(token who) noexcept {
        connection& at = connections_[checked(who, sizes_.connections)];
        NETIO_ASSERT(at.generation == who.generation());
        return at;
    }
    listener& listener_of(token who) noexcept {
        return listeners_[checked(who, sizes_.listeners)];
    }
    static token plain(token who) noexcept { return token::of(who.index(), who.generation()); }
    static void begin(connection& at, int descriptor, token who, std::uint32_t flags) noexcept {
        at = connection{};
        at.descriptor = descriptor;
        at.generation = who.generation();
        at.flags = flags;
    }

    /// No address of a client stays in the storage once its event is given.
    static void forget_address(detail::socket_address& of) noexcept {
        wipe(&of, sizeof(of));
    }

    // ---- the ring

    void submit() noexcept {
        lend();
        ring_.enter(0, 0, 0);
        look_at_new();
    }
    /// Much came and was answered: once the kernel has that, the same buffers, still in the cache,
    /// take what comes next. Together with the wait it would be written to others. Once only before
    /// each wait, or who writes again and again would keep everybody from being read.
    void hand_over_much() noexcept {
        if (bytes_seen_ >= hand_over_bytes && !handed_over_ && run_count_ != 0 &&
            ring_.pending() != 0 && ring_.unread() + settled_count_ == 0) {
            handed_over_ = true;
            submit();
        }
    }
    /// Nobody passes those who wait for a buffer, so while there are any the ring has none.
    void lend() noexcept {
        if (lending_.lends()) {
            lending_.keep_high_water();
        } else if (starved_first_ == 0) {
            const std::uint32_t most = batching() ? 2 * batch_most : 2 * runs_most;
            lending_.lend(selecting_count_ < most ? selecting_count_ : most);
        }
    }

    /// The call of a wait. It sleeps unless something is to be done at once.
    void enter_kernel(detail::event_writer& to, std::uint64_t timeout_ns) noexcept {
        const bool local = due_count_ != 0 || settled_count_ != 0 || to.count() != 0 ||
                           ring_.unread() != 0 || ring_.overflown();
        const bool sleeps = !local && timeout_ns != 0 && wake_word_.announce_sleep();
        if (sleeps && run_count_ != 0) {
            bound_sleep();
        }
        if (sleeps && detail::standing_timer::worth_it(timeout_ns)) {
            let_timer_stand(timeout_ns);
            timeout_ns = forever_ns;
        }
        // The timers may have filled the queue, and so handed over what is to be told now.
        if (!sleeps || settled_count_ == 0) {
            enter(sleeps, timeout_ns);
        }
        if (to.count() == 0) {
            wake_word_.take(to);
        }
    }

    /// Into the kernel: to hand over what was started, to let it run what became ready, to wait.
    void enter(bool sleeps, std::uint64_t timeout_ns) noexcept {
        lend();
        const std::uint32_t batch = sleeps ? batch_wanted() : 0;
        call_brings_ = 2 * (batch > runs_most ? batch : runs_most);
        if (batch != 0) {
            // Without an end of its own such a wait would spin where nothing comes at all.
            const std::uint64_t end_ns = timeout_ns < hour_ns ? timeout_ns : hour_ns;
            const auto patience = static_cast<std::uint32_t>(
                end_ns < batch_us_ * 1'000 ? end_ns / 1'000 : batch_us_);
            ring_.enter(batch, end_ns, detail::uring::enter_get_events, patience);
        } else {
            ring_.enter(sleeps ? 1 : 0, timeout_ns, detail::uring::enter_get_events);
        }
        messages_seen_ = bytes_seen_ = 0;
        handed_over_ = false;
        look_at_new();
    }

    /// Only where the last call brought several messages: a lone connection never waits for others.
    bool batching() const noexcept { return messages_seen_ >= 2 && batch_us_ != 0; }
    /// So many completions are waited for; 0: any. Fewer than came last, or everybody waits for the
    /// slowest, unless there were as many as one call brings: then there are more. Each may take
    /// one of the buffers lent, and what is written in answer needs buffers, too: those that are
    /// free, and those of the sends among what this call hands over.
    std::uint32_t batch_wanted() const noexcept {
        const std::uint32_t quarter = messages_seen_ / 4 > 4 ? messages_seen_ / 4 : 4;
        const std::uint32_t spared = messages_seen_ < call_brings_ ? quarter : 0;
        if (!batching() || messages_seen_ <= spared) {
            return 0;
        }
        const std::uint32_t room = (pool_->room(side::output) + ring_.pending()) / 2;
        const std::uint32_t lent =
            lending_.count() == selecting_count_ ? selecting_count_ : lending_.count() / 2;
        const std::uint32_t hot = batch_bytes_most / (bytes_seen_ / messages_seen_ + 1);
        std::uint32_t most = messages_seen_ - spared;
        most = most < room ? most : room;
        most = most < lent ? most : lent;
        most = most < hot ? most : hot;
        return most < 2 ? 0 : most < batch_most ? most : batch_most;
    }

    /// What came is looked at once before anything is read of it: only then is it known which of
    /// the buffers lent are used. If the kernel keeps some back for want of room it isn't known,
    /// and they stay lent until the next time.
    void look_at_new() noexcept {
        for (const std::uint32_t end = ring_.completion_tail(); looked_at_ != end; ++looked_at_) {
            const completion& what = ring_.at(looked_at_);
            const token who{what.user_data};
            lending_.note(what);
            if (who.op() == operation::receive && what.result > 0) {
                ++messages_seen_;
                bytes_seen_ += static_cast<std::uint32_t>(what.result);
            }
            note_failed_send(who);
        }
        if (NETIO_LIKELY(!ring_.overflown())) {
            lending_.take_back();
        }
        note_settled();
        if (NETIO_UNLIKELY(connects_pushed_) && ring_.pending() == 0) {
            connects_pushed_ = false;
            for (std::uint32_t place = 0; place < submissions_max; ++place) {
                forget_address(scratches_[place].peer);
            }
        }
    }

    /// A quiet send that has a completion is one like any other from here on.
    void note_failed_send(token who) noexcept {
        if (who.op() == operation::send) {
            connection& at = connections_[who.index()];
            outstanding_count_ += (at.flags & quiet) != 0 ? 1 : 0;
            at.flags &= ~quiet;
        }
    }

    submission& start(std::uint8_t opcode, int descriptor, token who,
                      scratch** with = nullptr) noexcept {
        for (int tries = 0; ring_.full(); ++tries) {
            NETIO_ASSERT(tries < entries_tried_max);  // only a kernel without memory takes none
            submit();
        }
        if (with != nullptr) {
            *with = &scratches_[ring_.next_index()];
            **with = scratch{};
        }
        submission& out = ring_.push();
        out.opcode = opcode;
        out.descriptor = descriptor;
        out.user_data = who.bits;
        const bool silent =
            opcode == detail::uring::op_cancel || opcode == detail::uring::op_close ||
            opcode == detail::uring::op_timeout_remove;
        outstanding_count_ += silent ? 0 : 1;
        return out;
    }

    static void point_at(submission& out, scratch& with, std::size_t pieces) noexcept {
        with.message.msg_iov = with.pieces;
        with.message.msg_iovlen = static_cast<decltype(with.message.msg_iovlen)>(pieces);
        out.address = detail::address_of(&with.message);
        out.count = 1;
    }

    /// Asks the kernel to end one operation. Queued behind it and before any later one, so it can't
    /// hit a later operation of the same token.
    void cancel(token whose) noexcept {
        const auto marked =
            static_cast<operation>(static_cast<std::uint8_t>(whose.op()) | cancel_mark);
        submission& out = start(detail::uring::op_cancel, -1, whose.with(marked));
        out.flags = detail::uring::flag_skip_success;
        out.address = whose.bits;
    }

    void arm_wake() noexcept {
        submission& out =
            start(detail::uring::op_poll_add, wake_, token::of(0, 0, operation::wake));
        out.operation_flags = poll_mask(detail::uring::poll_readable);
        out.count = detail::uring::poll_multishot;
    }
    /// The wait has an end because of quiet sends and closes. Their timers, too, are left standing.
    void bound_sleep() noexcept {
        static constexpr detail::uring::time_span sent_late{0, quiet_ns_max};
        static constexpr detail::uring::time_span closed_late{0, closed_ns_max};
        // Where the pool is empty somebody may wait for what was sent, too.
        if (closing_count_ != 0 || pool_->room(side::output) == 0) {
            let_stand(closed_timer_stands_, closed_timer_token, closed_late);
        } else if (!closed_timer_stands_) {
            let_stand(sent_timer_stands_, sent_timer_token, sent_late);
        }
    }
    void let_stand(bool& stands, token who, const detail::uring::time_span& late) noexcept {
        if (!stands) {
            stands = true;
            submission& out = start(detail::uring::op_timeout, -1, who);
            out.address = detail::address_of(&late);
            out.count = 1;
        }
    }
    /// There is one timer for the end of waits: where it stands for too late it is moved.
    void let_timer_stand(std::uint64_t timeout_ns) noexcept {
        if (standing_.stands(timeout_ns, seen_ns_) || standing_.stands(timeout_ns, now_ns())) {
            return;
        }
        const bool moves = standing_.is_set();
        standing_.set(detail::standing_timer::due_after(timeout_ns, seen_ns_));
        timer_due_ = detail::uring::span_of(standing_.due_ns());
        if (moves) {
            submission& out = start(detail::uring::op_timeout_remove, -1,
                                    timer_token.with(cancel_all_mark));
            out.flags = detail::uring::flag_skip_success;  // it fails where the timer just went off
            out.address = timer_token.bits;
            out.second_address = detail::address_of(&timer_due_);
            out.operation_flags = detail::uring::timeout_update | detail::uring::timeout_absolute;
        } else {
            submission& out = start(detail::uring::op_timeout, -1, timer_token);
            out.address = detail::address_of(&timer_due_);
            out.count = 1;
            out.operation_flags = detail::uring::timeout_absolute;
        }
    }
    static constexpr token sent_timer_token = token::of(1, 0, operation::wake);
    static constexpr token closed_timer_token = token::of(3, 0, operation::wake);
    static constexpr token timer_token = token::of(2, 0, operation::wake);
    static constexpr std::uint64_t hour_ns = 3'600'000'000'000;

    /// The kernel takes the mask of a poll as two halves, the lower one first.
    static constexpr std::uint32_t poll_mask(std::uint32_t wanted) noexcept {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        return wanted << 16;
#else
        return wanted;
#endif
    }

    static bool more(const completion& what) noexcept {
        return (what.flags & detail::uring::completion_more) != 0;
    }

    void complete(const completion& what, detail::event_writer& to) noexcept {
        const token who{what.user_data};
        const auto op = static_cast<std::uint8_t>(who.op());
        if (op == cancel_mark) {
            return;  // of everything, or of a timer that just went off
        }
        if ((op & cancel_mark) != 0) {
            cancel_missed(who.with(static_cast<operation>(op & ~cancel_mark)));
            return;
        }
        if (who.op() == operation::close) {
            return;  // it failed: Linux closes even then
        }
        outstanding_count_ -= more(what) ? 0 : 1;
        switch (who.op()) {
        case operation::accept: accepted(who, what.result, to); break;
        case operation::connect: connected(who, what.result, to); break;
        case operation::receive: received(who, what, to); break;
        case operation::send: send_told(who, what, to); break;
        case operation::receive_from: received_from(who, what, to); break;
        case operation::send_to: sent_to(who, what.result, to); break;
        default:  // wake: the word says more than the descriptor
            if (who == sent_timer_token) {
                sent_timer_stands_ = false;
            } else if (who == closed_timer_token) {
                closed_timer_stands_ = false;
            } else if (who == timer_token) {
                standing_.clear();
            } else if (!more(what)) {
                arm_wake();
            }
            break;
        }
    }

    /// A cancel found nothing. Mostly the operation had just ended, but one that was about to run
    /// may go on and wait again: then it is asked once more.
    void cancel_missed(token whose) noexcept {
        const std::uint32_t index = whose.index();
        bool again = false;
        if (whose.op() == operation::accept) {
            const auto& mine = listeners_[index / accepts_armed].accepts[index % accepts_armed];
            again = mine.outstanding && mine.ending && mine.generation == whose.generation();
        } else if (whose.op() == operation::receive_from) {
            const datagram_socket& at = datagram_sockets_[index];
            again = at.generation == whose.generation() && (at.flags & closing) != 0 &&
                    (at.flags & receive_sent) != 0;
        } else {
            const connection& at = connections_[index];
            const std::uint32_t ends = whose.op() == operation::send ? room_found : stopping;
            again = at.generation == whose.generation() && in_kernel(at, whose.op()) &&
                    (at.flags & (closing | ends)) != 0;
        }
        if (again) {
            cancel(whose);
        }
    }

    /// Ends all operations and waits for them, so that the kernel has no pointer of ours any more;
    /// closes and gives back what their completions brought. Only the thread of `open` can: closing
    /// the ring would end them too, but some time later.
    void end_everything() noexcept {
        for (int tries = 0; ring_.pending() != 0 && tries < entries_tried_max; ++tries) {
            submit();  // closes among them
        }
        read_away();
        for (int tries = 0; tries < entries_tried_max; ++tries) {
            if (outstanding_count_ == 0 && !ring_.overflown()) {
                break;
            }
            submission& out = start(detail::uring::op_cancel, -1, token::of(0, 0, cancel_all_mark));
            out.operation_flags = detail::uring::cancel_any | detail::uring::cancel_all;
            const int entered =
                ring_.enter(1, ending_look_ns, detail::uring::enter_get_events);
            NETIO_ASSERT(entered >= 0 || errno != EEXIST);  // another thread's ring
            static_cast<void>(entered);
            look_at_new();
            read_away();
        }
        NETIO_ASSERT(outstanding_count_ == 0);
    }
    static constexpr operation cancel_all_mark = static_cast<operation>(cancel_mark);
    static constexpr std::uint64_t ending_look_ns = 10'000'000;

    void read_away() noexcept {
        while (ring_.unread() != 0) {
            discard(ring_.pop());
        }
    }

    void discard(const completion& what) noexcept {
        const token who{what.user_data};
        if ((static_cast<std::uint8_t>(who.op()) & cancel_mark) != 0 ||
            who.op() == operation::close) {
            return;
        }
        outstanding_count_ -= more(what) ? 0 : 1;
        if (who.op() == operation::accept && what.result >= 0) {
            detail::close_socket<Sys>(what.result, true);
        } else if (who.op() == operation::receive) {
            give(buffer_of(connections_[who.index()], what), dirty(what.result));
        } else if (who.op() == operation::receive_from) {
            give(buffer_of(datagram_sockets_[who.index()].buffer, what), dirty(what.result));
        }
    }

    // ---- buffers

    /// The buffer a receive into the pool was given, by the ring or by us; none_index if none.
    std::uint32_t buffer_of(std::uint32_t& own, const completion& what) noexcept {
        if (own == 0) {
            NETIO_ASSERT(selecting_count_ != 0);
            selecting_count_ -= more(what) ? 0 : 1;
            return lending_.named_by(what);
        }
        const std::uint32_t index = own - 1;
        own = 0;
        return index;
    }
    std::uint32_t buffer_of(connection& at, const completion& what) noexcept {
        return (at.flags & into_memory) != 0 ? none_index : buffer_of(at.buffer, what);
    }
    static std::uint32_t dirty(std::int32_t result) noexcept {
        return result > 0 ? static_cast<std::uint32_t>(result) : 0;
    }
    void give(std::uint32_t buffer, std::uint32_t dirty_bytes) noexcept {
        if (buffer != none_index) {
            pool_->give(buffer, side::input, dirty_bytes);
        }
    }
    /// `how`: `poll_first` or `receive_multishot`.
    void choose_buffer(submission& out, std::uint16_t how) noexcept {
        out.flags = detail::uring::flag_buffer_select;
        out.priority = how;
        out.buffer_group = detail::uring_lending::group;
        ++selecting_count_;
    }
    /// A multishot receive reports the lack of a buffer even where there is nothing to put into it.
    /// Where that is likely a receive asks for readiness first; it is for one buffer, then.
    bool rare_buffers() const noexcept {
        return starved_first_ != 0 || pool_->room(side::input) == 0;
    }
    /// Bytes are there, and no buffer for them.
    void starve(std::uint32_t id) noexcept {
        if (pool_->room(side::input) == 0) {
            pool_->take(side::input);  // fails, and is counted
        }
        link_starved(id);
    }

    /// Those that found no buffer though bytes are there, in the order they came: each is given one
    /// of its own, for the kernel's ring would give it to whoever asks first.
    void serve_starved() noexcept {
        while (starved_first_ != 0 && pool_->room(side::input) != 0) {
            const std::uint32_t id = starved_first_;
            const std::uint32_t index = (id & id_index) - 1;
            unlink_starved(id);
            const std::uint32_t buffer = pool_->take(side::input);
            NETIO_ASSERT(buffer != none_index);
            if ((id & datagram_kind) != 0) {
                datagram_socket& at = datagram_sockets_[index];
                at.buffer = buffer + 1;
                arm_datagram(at, token::of(index, at.generation));
            } else {
                connection& at = connections_[index];
                at.buffer = buffer + 1;
                arm_receive(at, token::of(index, at.generation));
            }
        }
    }

    // ---- the run list: blocks whose next step needs no completion

    /// What is linked may have a submission behind it: it is over once the kernel took that and
    /// holds back no completion, which might be of a quiet send that was not whole.
    void note_settled() noexcept {
        if (ring_.pending() == 0 && !ring_.overflown()) {
            settled_count_ = run_count_;
        }
    }

    NETIO_COLD void forget_step(std::uint32_t id) noexcept {
        settled_count_ -= unlink(id) < settled_count_ ? 1 : 0;
        due_count_ -= (flags_of(id) & due) != 0 ? 1 : 0;
    }

    /// Steps through what is settled while more than `spare` events have room.
    void work_off_run_list(detail::event_writer& to, std::uint32_t spare) noexcept {
        while (settled_count_ != 0 && to.room() > spare) {
            --settled_count_;
            const std::uint32_t id = unlink_first();
            const std::uint32_t index = (id & id_index) - 1;
            due_count_ -= (flags_of(id) & due) != 0 ? 1 : 0;
            flags_of(id) &= ~due;
            switch (id & ~id_index) {
            case 0: step_connection(index, to); break;
            case datagram_kind: end_datagrams(index, to); break;
            default: end_send_to(index, datagram_sends_[index].code, to); break;
            }
        }
    }

    void step_connection(std::uint32_t index, detail::event_writer& to) noexcept {
        connection& at = connections_[index];
        const token who = token::of(index, at.generation);
        if ((at.flags & quiet) != 0) {
            at.flags &= ~(quiet | sending);
            if ((at.flags & closing) == 0) {
                to.put(who, operation::send, event_kind::sent).byte_count = at.send_count;
            }
        }
        if ((at.flags & (closing | result_connected | result_disarmed)) == 0) {
            return;
        }
        if (to.room() == 0) {
            link_due(index + 1);
        } else if ((at.flags & closing) != 0) {
            step_closing(at, index, to);
        } else if ((at.flags & result_connected) != 0) {
            at.flags &= ~result_connected;
            to.put(who, operation::connect, event_kind::connected).handle = at.descriptor;
        } else {
            end_receive(at);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        }
    }

    void step_closing(connection& at, std::uint32_t index, detail::event_writer& to) noexcept {
        if ((at.flags & close_sent) == 0) {
            close_if_idle(at, index);  // it was linked for something else before
        } else if (ring_.took(at.receive_count)) {
            const token who = token::of(index, at.generation);
            at = connection{};
            NETIO_ASSERT(closing_count_ != 0);
            --closing_count_;
            to.put(who, operation::close, event_kind::closed);
        } else {
            link_due(index + 1);
        }
    }

    /// To be stepped through by the next wait, which therefore does not sleep.
    void link_due(std::uint32_t id) noexcept {
        link(id);
        due_count_ += (flags_of(id) & due) != 0 ? 0 : 1;
        flags_of(id) |= due;
    }

    // ---- connections

    static bool in_kernel(const connection& at, operation op) noexcept {
        switch (op) {
        case operation::connect: return (at.flags & connecting) != 0;
        case operation::receive: return (at.flags & receive_sent) != 0;
        default: return (at.flags & (sending | quiet)) == sending;
        }
    }
    static bool idle(const connection& at) noexcept {
        return (at.flags & (connecting | receive_sent | sending)) == 0;
    }
    /// Nothing of a connection that closes is in the kernel any more: the ring closes its socket,
    /// beside whatever else the next enter call does, and `closed` is told after that call. As with
    /// a quiet send it does not end a wait: nobody waits for it, but for the slot.
    void close_if_idle(connection& at, std::uint32_t index) noexcept {
        if (!idle(at) || (at.flags & close_sent) != 0) {
            return;
        }
        if ((at.flags & abortive) != 0) {
            // Without a shutdown before, so the reset leaves no TIME_WAIT on this side.
            const linger at_once{1, 0};
            Sys::setsockopt(at.descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        }
        at.flags |= close_sent;
        submission& out = start(detail::uring::op_close, at.descriptor,
                                token::of(index, at.generation, operation::close));
        out.flags = detail::uring::flag_skip_success;
        at.receive_count = ring_.pushed();
        ++closing_count_;
        link(index + 1);
    }
    static void end_receive(connection& at) noexcept {
        at.flags &= ~(receiving | into_memory | stopping | result_disarmed | many);
    }

    /// A connect to a path is done at once or not at all; the ring would hand it to a thread.
    os_status connect_to_path(connection& at, const stream_address& address,
                              const socket_options& options, token who) noexcept {
        const os_handle made = detail::connect_stream<Sys>(address, options);
        if (made) {
            begin(at, static_cast<int>(made.handle), who, attached | result_connected);
            link_due(who.index() + 1);
        }
        return made.status;
    }

    void connected(token who, std::int32_t result, detail::event_writer& to) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & connecting) != 0);
        at.flags = (at.flags & ~connecting) | attached;
        if ((at.flags & closing) != 0) {
            close_if_idle(at, who.index());
        } else if (result < 0) {
            at.flags |= receive_over | send_over;
            to.fail(plain(who), operation::connect, detail::error_of(-result), -result);
        } else {
            to.put(plain(who), operation::connect, event_kind::connected).handle = at.descriptor;
        }
    }

    /// Three kinds: into the caller's memory; into a buffer that is ours already; into those that
    /// the kernel chooses once bytes exist.
    void arm_receive(connection& at, token who) noexcept {
        submission& out =
            start(detail::uring::op_receive, at.descriptor, who.with(operation::receive));
        at.flags |= receive_sent;
        if ((at.flags & into_memory) != 0) {
            out.address = at.into;
            out.count = at.receive_count;
        } else if (at.buffer != 0) {
            out.address = detail::address_of(pool_->data(at.buffer - 1));
            out.count = pool_->buffer_bytes();
            out.operation_flags = MSG_DONTWAIT;
        } else if (multishot_ && (at.flags & (bulky | one_shot)) == 0 && !rare_buffers()) {
            // Until `total` bytes came: one buffer full, so a flooding peer has no more than that
            // before everybody else was looked at.
            choose_buffer(out, detail::uring::receive_multishot);
            out.count = pool_->buffer_bytes();
            out.total = at.receive_count < out.count ? at.receive_count : out.count;
            at.flags |= many;
        } else {
            choose_buffer(out, detail::uring::poll_first);
            out.count = pool_->buffer_bytes();
        }
    }

    void received(token who, const completion& what, detail::event_writer& to) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & receive_sent) != 0);
        const std::uint32_t buffer = buffer_of(at, what);
        const bool is_last = !more(what);
        if (is_last) {
            at.flags &= ~receive_sent;
        }
        if ((at.flags & closing) != 0) {
            give(buffer, dirty(what.result));
            close_if_idle(at, who.index());
            return;
        }
        if (what.result <= 0) {
            give(buffer, 0);
            received_none(at, plain(who), -what.result, to);
            return;
        }
        event& out = to.put(plain(who), operation::receive, event_kind::received);
        out.byte_count = static_cast<std::uint32_t>(what.result);
        out.buffer_index = buffer;
        multishot_ = multishot_ && (at.flags & one_shot) == 0;
        const bool large = out.byte_count > pool_->buffer_bytes() / 4;
        at.flags = large ? at.flags | bulky : at.flags & ~bulky;
        out.disarmed = is_last && ((at.flags & (into_memory | stopping)) != 0 ||
                                   out.byte_count >= at.receive_count);
        if (out.disarmed) {
            end_receive(at);
            return;
        }
        NETIO_ASSERT(out.byte_count < at.receive_count);
        at.receive_count -= out.byte_count;
        if (is_last) {
            arm_receive(at, who);
        }
    }

    void received_none(connection& at, token who, int code, detail::event_writer& to) noexcept {
        const bool passing =
            code == ECANCELED || code == EAGAIN || code == EINTR || code == ENOBUFS;
        if (passing && (at.flags & stopping) != 0) {
            end_receive(at);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        } else if (code == ENOBUFS && rare_buffers()) {
            starve(who.index() + 1);
        } else if (code == EINVAL && (at.flags & many) != 0) {
            // This kernel does not know of `total`, or the socket can't receive at all.
            at.flags = (at.flags & ~many) | one_shot;
            arm_receive(at, who);
        } else if (passing) {
            arm_receive(at, who);
        } else {
            end_receive(at);
            at.flags |= receive_over;
            if (code == 0) {
                to.put(who, operation::receive, event_kind::ended);
            } else {
                to.fail(who, operation::receive, detail::error_of(code), code);
            }
        }
    }

    connection& sender_of(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (sending | send_over)) == 0);
        at.flags |= sending;
        return at;
    }

    /// The slices, of which the array is copied where there are several. Flags are the caller's.
    submission& arm_send(connection& at, token who, std::span<const bytes> slices) noexcept {
        NETIO_ASSERT(!slices.empty() && slices.size() <= slices_max);
        NETIO_ASSERT(!slices[0].empty());
        at.send_from = detail::address_of(slices[0].data());
        at.send_count = detail::clipped(slices[0].size());
        if (slices.size() == 1) {
            return arm_send_of_one(at, who);
        }
        const token as = who.with(operation::send);
        scratch* with = nullptr;
        submission& out = start(detail::uring::op_send_message, at.descriptor, as, &with);
        for (std::size_t index = 0; index < slices.size(); ++index) {
            NETIO_ASSERT(!slices[index].empty());
            with->pieces[index].iov_base = const_cast<std::byte*>(slices[index].data());
            with->pieces[index].iov_len = slices[index].size();
        }
        point_at(out, *with, slices.size());
        return out;
    }

    submission& arm_send_of_one(connection& at, token who) noexcept {
        submission& out =
            start(detail::uring::op_send, at.descriptor, who.with(operation::send));
        out.address = at.send_from;
        out.count = at.send_count;
        return out;
    }

    /// Without room the first slice waits for some, by a poll. The ring's own waiting is none where
    /// the peer has ended its stream: that counts as ready, the send is tried 128 times at once and
    /// handed to a thread of the kernel's then. So may this poll be told of that end alone, and is
    /// asked to go on after that.
    NETIO_COLD void wait_for_room(connection& at, token who, bool many_times) noexcept {
        at.flags |= polling;
        submission& out =
            start(detail::uring::op_poll_add, at.descriptor, who.with(operation::send));
        out.operation_flags = poll_mask(detail::uring::poll_writable);
        out.count = many_times ? detail::uring::poll_multishot : 0;
    }

    NETIO_COLD void room_told(connection& at, token who, const completion& what) noexcept {
        static constexpr std::uint32_t ends =
            detail::uring::poll_writable | detail::uring::poll_failed;
        const bool found =
            what.result < 0 || (static_cast<std::uint32_t>(what.result) & ends) != 0;
        if (more(what)) {
            if (found && (at.flags & (room_found | closing)) == 0) {
                at.flags |= room_found;
                cancel(who);
            }
            return;
        }
        const bool was_found = found || (at.flags & room_found) != 0;
        at.flags &= ~(polling | room_found);
        if ((at.flags & closing) != 0) {
            at.flags &= ~sending;
            close_if_idle(at, who.index());
        } else if (was_found) {
            arm_send_of_one(at, who).operation_flags = MSG_NOSIGNAL | MSG_DONTWAIT;
        } else {
            wait_for_room(at, who, true);
        }
    }

    void send_told(token who, const completion& what, detail::event_writer& to) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & sending) != 0);
        if (NETIO_UNLIKELY((at.flags & polling) != 0)) {
            room_told(at, who, what);
        } else if (what.result == -EAGAIN && (at.flags & closing) == 0) {
            wait_for_room(at, who, false);
        } else {
            sent(at, who, what.result, to);
        }
    }

    void sent(connection& at, token who, std::int32_t result, detail::event_writer& to) noexcept {
        at.flags &= ~sending;
        if ((at.flags & closing) != 0) {
            close_if_idle(at, who.index());
        } else if (result > 0) {
            to.put(plain(who), operation::send, event_kind::sent).byte_count =
                static_cast<std::uint32_t>(result);
        } else {
            to.fail(plain(who), operation::send, detail::error_of(-result), -result);
        }
    }

    // ---- listeners

    /// How many accepts each listener may have in the kernel. One at least where there is a slot
    /// for it, so with several listeners there may be more of them than slots.
    std::uint32_t accepts_wanted() const noexcept {
        const std::uint32_t slots = accepts_.of(accepts_armed * listening_count_);
        const std::uint32_t share = slots / listening_count_;
        return share != 0 || slots == 0 ? share : 1;
    }
    void arm_accepts_of_all() noexcept {
        for (std::uint32_t index = 0; index < sizes_.listeners; ++index) {
            if (listeners_[index].flags != 0) {
                arm_accepts(index);
            }
        }
    }

    /// Arms accepts of a listener, or asks the kernel to end some: as many as are wanted.
    void arm_accepts(std::uint32_t index) noexcept {
        listener& at = listeners_[index];
        std::uint32_t armed = 0;
        for (const detail::uring_accept& each : at.accepts) {
            armed += each.outstanding && !each.ending ? 1 : 0;
        }
        const std::uint32_t wanted = accepts_wanted();
        for (std::uint32_t place = 0; place < accepts_armed && armed != wanted; ++place) {
            const detail::uring_accept& each = at.accepts[place];
            if (armed < wanted && !each.outstanding) {
                arm_accept(index, place);
                ++armed;
            } else if (armed > wanted && each.outstanding && !each.ending) {
                end_accept(index, place);
                --armed;
            }
        }
    }

    token accept_token(std::uint32_t index, std::uint32_t place) const noexcept {
        return token::of(index * accepts_armed + place,
                         listeners_[index].accepts[place].generation, operation::accept);
    }
    void end_accept(std::uint32_t index, std::uint32_t place) noexcept {
        listeners_[index].accepts[place].ending = true;
        cancel(accept_token(index, place));
    }

    void arm_accept(std::uint32_t index, std::uint32_t place) noexcept {
        listener& at = listeners_[index];
        detail::uring_accept& mine = at.accepts[place];
        mine.generation = at.generation;
        mine.outstanding = true;
        mine.peer_bytes = sizeof(mine.peer);
        submission& out =
            start(detail::uring::op_accept, at.descriptor, accept_token(index, place));
        out.address = detail::address_of(&mine.peer);
        out.second_address = detail::address_of(&mine.peer_bytes);
        out.operation_flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
    }

    /// No new ones. The kernel is entered at once: a pending accept holds the listening socket, so
    /// only after this does closing the descriptor close it. What was accepted meanwhile waits in
    /// the completion queue and is delivered. A cancel misses an accept that is just about to run
    /// and waits again, so it is repeated until each has its completion.
    NETIO_COLD void forget_listener(std::uint32_t index) noexcept {
        listeners_[index].flags = 0;
        --listening_count_;
        for (int tries = 0; tries < entries_tried_max && cancel_accepts(index); ++tries) {
            enter(false, 0);
        }
    }

    /// False if the kernel has no accept of this listener any more, or keeps completions back, so
    /// that nobody knows.
    bool cancel_accepts(std::uint32_t index) noexcept {
        bool any = false;
        for (std::uint32_t place = 0; place < accepts_armed; ++place) {
            if (listeners_[index].accepts[place].outstanding &&
                !ring_.has(accept_token(index, place).bits)) {
                end_accept(index, place);
                any = true;
            }
        }
        return any && !ring_.overflown();
    }

    void accepted(token who, std::int32_t result, detail::event_writer& to) noexcept {
        const std::uint32_t index = who.index() / accepts_armed;
        const std::uint32_t place = who.index() % accepts_armed;
        const token owner = token::of(index, who.generation());
        listener& at = listener_of(owner);
        detail::uring_accept& mine = at.accepts[place];
        NETIO_ASSERT(mine.outstanding);
        mine.outstanding = mine.ending = false;
        const bool current = at.flags != 0 && at.generation == who.generation();
        if (result >= 0) {
            accepts_.took_one();
            event& out = to.put(owner, operation::accept, event_kind::accepted);
            out.handle = result;
            out.peer = detail::to_endpoint(mine.peer, mine.peer_bytes);
            forget_address(mine.peer);
            if (out.peer.family == address_family::unix_path) {
                out.peer.scope_id = detail::peer_process<Sys>(result);
            }
        } else if (current && !passing_accept(-result)) {
            const os_status told = spare_.accept_failed(at.descriptor, -result);
            forget_listener(index);
            to.fail(owner, operation::accept, told.why, told.os_code);
        }
        if (accepts_.is(0)) {
            arm_accepts_of_all();  // ends those of the other listeners
        } else if (at.flags != 0) {
            arm_accepts(index);
        }
    }

    /// Errors of one client, and the end of an accept that belonged to a start before this one.
    static bool passing_accept(int code) noexcept {
        return code == ECANCELED || code == EAGAIN || detail::of_one_client(code);
    }

    // ---- datagrams

    void arm_datagram(datagram_socket& at, token who) noexcept {
        submission& out = start(detail::uring::op_receive_message, at.descriptor,
                                who.with(operation::receive_from));
        at.flags |= receive_sent;
        at.message = msghdr{};
        at.message.msg_name = &at.peer;
        at.message.msg_namelen = sizeof(at.peer);
        at.message.msg_iov = &at.piece;
        at.message.msg_iovlen = 1;
        at.piece = {nullptr, pool_->buffer_bytes()};
        out.address = detail::address_of(&at.message);
        out.count = 1;
        if (at.buffer != 0) {
            at.piece.iov_base = pool_->data(at.buffer - 1);
            out.operation_flags = MSG_DONTWAIT;
        } else {
            choose_buffer(out, detail::uring::poll_first);
        }
    }

    void received_from(token who, const completion& what, detail::event_writer& to) noexcept {
        datagram_socket& at = datagram_sockets_[checked(who, sizes_.datagram_sockets)];
        NETIO_ASSERT(at.generation == who.generation());
        NETIO_ASSERT((at.flags & receive_sent) != 0);
        const std::uint32_t buffer = buffer_of(at.buffer, what);
        at.flags &= ~receive_sent;
        if ((at.flags & closing) != 0) {
            give(buffer, dirty(what.result));
            link_due(datagram_kind | (who.index() + 1));
            return;
        }
        if (what.result == -ENOBUFS) {
            starve(datagram_kind | (who.index() + 1));
            return;
        }
        if (what.result < 0) {
            give(buffer, 0);  // of an earlier send, or nothing there: skipped
        } else {
            event& out = to.put(plain(who), operation::receive_from, event_kind::received);
            out.byte_count = static_cast<std::uint32_t>(what.result);
            out.buffer_index = buffer;
            out.truncated = (at.message.msg_flags & MSG_TRUNC) != 0;
            out.peer = detail::to_endpoint(at.peer, at.message.msg_namelen);
            forget_address(at.peer);
        }
        arm_datagram(at, who);
    }

    void end_datagrams(std::uint32_t index, detail::event_writer& to) noexcept {
        datagram_socket& at = datagram_sockets_[index];
        NETIO_ASSERT((at.flags & closing) != 0);
        const token who = token::of(index, at.generation);
        at = datagram_socket{};
        to.put(who, operation::receive_from, event_kind::closed);
    }

    void arm_send_to(datagram_send& at, token who) noexcept {
        ++at.tries;
        submission& out = start(detail::uring::op_send_message, at.descriptor,
                                who.with(operation::send_to));
        out.address = detail::address_of(&at.message);
        out.count = 1;
        out.operation_flags = MSG_NOSIGNAL;
    }

    void sent_to(token who, std::int32_t result, detail::event_writer& to) noexcept {
        datagram_send& at = datagram_sends_[checked(who, sizes_.datagram_sends)];
        NETIO_ASSERT(at.generation == who.generation() && at.flags != 0);
        // An error of an earlier datagram is fetched by the first attempt; the second one sends.
        const bool passing = result == -ECONNREFUSED || result == -EINTR;
        if (passing && at.tries < send_to_tries_max) {
            arm_send_to(at, plain(who));
        } else {
            end_send_to(who.index(), result, to);
        }
    }

    /// `result`: bytes sent, or the reason, negative from the kernel or positive from us.
    void end_send_to(std::uint32_t index, std::int32_t result, detail::event_writer& to) noexcept {
        datagram_send& at = datagram_sends_[index];
        const token who = token::of(index, at.generation);
        const int code = at.code != 0 ? at.code : -result;
        at = datagram_send{};
        if (code > 0) {
            to.fail(who, operation::send_to, detail::error_of(code), code);
        } else {
            to.put(who, operation::send_to, event_kind::sent).byte_count =
                static_cast<std::uint32_t>(result);
        }
    }

    backend_limits sizes_{};
    detail::uring_queues<Sys> ring_{};
    detail::uring_lending lending_{};
    buffer_pool* pool_ = nullptr;
    scratch* scratches_ = nullptr;
    listener* listeners_ = nullptr;
    std::uint32_t listening_count_ = 0;
    detail::accept_bound accepts_;
    std::uint32_t outstanding_count_ = 0;  // completions to come, without those of cancels
    std::uint32_t selecting_count_ = 0;    // receives in the kernel that will need a buffer lent
    std::uint32_t looked_at_ = 0;          // completions so far that `look_at_new` has seen
    std::uint32_t messages_seen_ = 0;      // by the last enter call
    std::uint32_t bytes_seen_ = 0;         // theirs
    std::uint32_t call_brings_ = 0;        // the most messages it could have brought
    std::uint32_t skips_ = 0;              // so many waits did without the kernel
    std::uint32_t batch_us_ = 0;           // how long a batch is waited for; 0: not at all
    std::uint32_t settled_count_ = 0;  // the first of the run list: nothing of theirs is to come
    std::uint32_t due_count_ = 0;      // in the run list, and no wait sleeps before them
    std::uint32_t closing_count_ = 0;  // in the run list, their close handed over
    detail::standing_timer standing_;
    detail::uring::time_span timer_due_{};  // read by the kernel when it takes the submission
    mutable std::uint64_t seen_ns_ = 0;     // the clock when it was last asked for
    int wake_ = 0;
    bool open_ = false;
    bool waiting_ = false;
    bool multishot_ = true;        // until a kernel refuses it
    bool foreign_ = false;         // another loop waits on our handle
    bool handed_over_ = false;     // what was answered, since the last wait for more
    bool sent_timer_stands_ = false;
    bool closed_timer_stands_ = false;
    bool connects_pushed_ = false;  // their addresses are still to be forgotten
    detail::spare_descriptor<Sys> spare_;
    detail::wake_word wake_word_;
};

using io_uring = basic_io_uring<>;
static_assert(backend<io_uring>);

NETIO_END

#endif

#endif
