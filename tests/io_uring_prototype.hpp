// A throw-away io_uring backend that shows the platform contract to fit a completion ring. Simple
// rather than fast: one ring an instance, one-shot operations, raw system calls. Test code, but it
// keeps the rules of a backend: no heap, everything in the memory given.
#ifndef NETIO_TESTS_IO_URING_PROTOTYPE_HPP
#define NETIO_TESTS_IO_URING_PROTOTYPE_HPP

#include "netio.hpp"

#if NETIO_HAS_EPOLL

#include <atomic>
#include <cerrno>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

namespace netio_test {

using namespace netio;

/// The kernel's interface, defined here so that system headers of any age do.
namespace uring {

inline constexpr long setup_call = 425;  // the same on every architecture
inline constexpr long enter_call = 426;
inline constexpr long register_call = 427;

inline constexpr std::uint32_t setup_cq_size = 1u << 3;
inline constexpr std::uint32_t setup_submit_all = 1u << 7;
inline constexpr std::uint32_t setup_single_issuer = 1u << 12;  // Linux 6.0
inline constexpr std::uint32_t setup_defer_taskrun = 1u << 13;  // Linux 6.1
inline constexpr std::uint32_t enter_get_events = 1u << 0;
inline constexpr std::uint32_t enter_ext_arg = 1u << 3;
inline constexpr std::uint32_t register_buffer_ring = 22;       // Linux 5.19
inline constexpr std::uint32_t submission_overflow = 1u << 1;
inline constexpr std::int64_t offset_rings = 0;
inline constexpr std::int64_t offset_submissions = 0x10000000;

enum opcode : std::uint8_t {
    poll_add = 6,
    send_message = 9,
    receive_message = 10,
    accept = 13,
    cancel = 14,
    connect = 16,
    send = 26,
    receive = 27
};
inline constexpr std::uint8_t flag_buffer_select = 1u << 5;
inline constexpr std::uint8_t flag_skip_success = 1u << 6;
inline constexpr std::uint16_t poll_first = 1u << 0;
inline constexpr std::uint32_t poll_multishot = 1u << 0;
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
    std::int32_t file_index;
    std::uint64_t unused[2];
};
static_assert(sizeof(submission) == 64);

struct completion {
    std::uint64_t user_data;
    std::int32_t result;
    std::uint32_t flags;
};

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
struct buffer_ring_registration {
    std::uint64_t address;
    std::uint32_t entries;
    std::uint16_t group;
    std::uint16_t flags;
    std::uint64_t reserved[3];
};
struct time_span {
    std::int64_t seconds;
    std::int64_t nanoseconds;
};
struct wait_argument {
    std::uint64_t signals;
    std::uint32_t signals_bytes;
    std::uint32_t wait_at_least_us;
    std::uint64_t timeout;
};

inline std::uint64_t address_of(const void* at) noexcept {
    return reinterpret_cast<std::uintptr_t>(at);
}

/// The two queues shared with the kernel.
class ring {
public:
    static long set_up(std::uint32_t entries, parameters& how) noexcept {
        how.flags |= setup_submit_all | setup_single_issuer | setup_defer_taskrun;
        return ::syscall(setup_call, entries, &how);
    }

    os_status open(std::uint32_t submissions, std::uint32_t completions) noexcept {
        parameters how{};
        how.flags = setup_cq_size;
        how.completion_entries = completions;
        const long made = set_up(submissions, how);
        if (made < 0) {
            return detail::status_of(errno);
        }
        descriptor_ = static_cast<int>(made);
        rings_bytes_ = how.submissions.array + how.submission_entries * sizeof(std::uint32_t);
        const std::size_t rest =
            how.completions.completions + how.completion_entries * sizeof(completion);
        rings_bytes_ = rings_bytes_ < rest ? rest : rings_bytes_;
        submissions_bytes_ = how.submission_entries * sizeof(submission);
        rings_ = map(rings_bytes_, offset_rings);
        submissions_ = reinterpret_cast<submission*>(map(submissions_bytes_, offset_submissions));
        if (rings_ == nullptr || submissions_ == nullptr) {
            const os_status why = detail::status_of(errno);
            close();
            return why;
        }
        locate(how);
        return {};
    }

    void close() noexcept {
        if (submissions_ != nullptr) {
            ::munmap(submissions_, submissions_bytes_);
        }
        if (rings_ != nullptr) {
            ::munmap(rings_, rings_bytes_);
        }
        linux_sys::close(descriptor_);
        *this = ring{};
    }

    bool register_buffers(const buffer_ring_registration& what) noexcept {
        return ::syscall(register_call, descriptor_, register_buffer_ring, &what, 1u) == 0;
    }

    int descriptor() const noexcept { return descriptor_; }
    std::uint32_t mask() const noexcept { return submission_mask_; }
    std::uint32_t next_index() const noexcept { return tail_ & submission_mask_; }
    /// Pushed and not taken by the kernel yet.
    std::uint32_t pending() const noexcept { return tail_ - load(submission_head_); }
    bool full() const noexcept { return pending() > submission_mask_; }

    submission& push() noexcept {
        NETIO_ASSERT(!full());
        submission& out = submissions_[tail_ & submission_mask_];
        out = submission{};
        ++tail_;
        return out;
    }

    /// Hands over what was pushed; waits for `least` completions or until the time is up.
    long enter(std::uint32_t least, std::uint64_t timeout_ns, std::uint32_t flags) noexcept {
        time_span span{static_cast<std::int64_t>(timeout_ns / 1'000'000'000),
                       static_cast<std::int64_t>(timeout_ns % 1'000'000'000)};
        wait_argument how{};
        how.timeout = least == 0 || timeout_ns == forever_ns ? 0 : address_of(&span);
        __atomic_store_n(submission_tail_, tail_, __ATOMIC_RELEASE);
        return ::syscall(enter_call, descriptor_, pending(), least, flags | enter_ext_arg, &how,
                         sizeof(how));
    }

    std::uint32_t completion_tail() const noexcept { return load(completion_tail_); }
    std::uint32_t completion_head() const noexcept { return *completion_head_; }
    std::uint32_t unread() const noexcept { return completion_tail() - *completion_head_; }
    const completion& at(std::uint32_t position) const noexcept {
        return completions_[position & completion_mask_];
    }
    completion pop() noexcept {
        NETIO_ASSERT(unread() != 0);
        const completion out = at(*completion_head_);
        __atomic_store_n(completion_head_, *completion_head_ + 1, __ATOMIC_RELEASE);
        return out;
    }
    bool overflown() const noexcept { return (load(flags_) & submission_overflow) != 0; }

private:
    static std::uint32_t load(std::uint32_t* from) noexcept {
        return __atomic_load_n(from, __ATOMIC_ACQUIRE);  // libc++ 14 has no atomic_ref
    }
    std::byte* map(std::size_t byte_count, std::int64_t offset) const noexcept {
        void* const at = ::mmap(nullptr, byte_count, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_POPULATE, descriptor_,
                                static_cast<off_t>(offset));
        return at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
    }
    void locate(const parameters& how) noexcept {
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
        completions_ = reinterpret_cast<completion*>(rings_ + how.completions.completions);
        for (std::uint32_t at = 0; at < how.submission_entries; ++at) {
            word(how.submissions.array)[at] = at;
        }
        tail_ = *submission_tail_;
    }

    int descriptor_ = -1;
    std::byte* rings_ = nullptr;
    std::size_t rings_bytes_ = 0;
    submission* submissions_ = nullptr;
    std::size_t submissions_bytes_ = 0;
    completion* completions_ = nullptr;
    std::uint32_t* submission_head_ = nullptr;
    std::uint32_t* submission_tail_ = nullptr;
    std::uint32_t* flags_ = nullptr;
    std::uint32_t* completion_head_ = nullptr;
    std::uint32_t* completion_tail_ = nullptr;
    std::uint32_t submission_mask_ = 0;
    std::uint32_t completion_mask_ = 0;
    std::uint32_t tail_ = 0;
};

/// Buffers the kernel may choose from. The kernel writes to one only while this thread is inside
/// the enter call (deferred task work), so they are taken from the pool just before it and those
/// that no completion named go back just after: between calls nothing is held for nobody.
class lending {
public:
    static constexpr std::uint32_t entries = 32;  // of the kernel's ring
    static constexpr std::uint32_t lent_max = 16;
    static constexpr std::uint32_t ids = 128;     // named by completions not read yet, and lent
    static constexpr std::uint16_t group = 1;
    static constexpr std::size_t page_bytes = 4096;
    static constexpr std::size_t memory_bytes = 2 * page_bytes;  // one page, wherever it begins

    bool open(ring& with, std::byte* memory, buffer_pool& pool) noexcept {
        *this = lending{};
        pool_ = &pool;
        const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(memory);
        entries_ = reinterpret_cast<provided_buffer*>(
            memory + (page_bytes - from % page_bytes) % page_bytes);
        buffer_ring_registration what{};
        what.address = address_of(entries_);
        what.entries = entries;
        what.group = group;
        return with.register_buffers(what);
    }

    void lend() noexcept {
        std::uint16_t id = 0;
        tail_ = head_;
        for (std::uint32_t count = 0; count < lent_max && pool_->room(side::input) != 0; ++count) {
            while (id < ids && lent_[id] != 0) {
                ++id;
            }
            if (id == ids) {
                break;
            }
            const std::uint32_t index = pool_->take(side::input);
            lent_[id] = index + 1;
            provided_buffer& to = entries_[tail_ % entries];
            to.address = address_of(pool_->data(index));
            to.count = pool_->buffer_bytes();
            to.id = id;
            ++tail_;
        }
        publish();
    }

    /// Back to the pool what none of the completions named, the last one lent first.
    void take_back(const ring& with, std::uint32_t from) noexcept {
        const std::uint32_t to = with.completion_tail();
        for (; from != to; ++from) {
            if ((with.at(from).flags & completion_buffer) != 0) {
                NETIO_ASSERT(entries_[head_ % entries].id ==
                             with.at(from).flags >> completion_buffer_shift);
                ++head_;
            }
        }
        while (tail_ != head_) {
            --tail_;
            const std::uint16_t id = entries_[tail_ % entries].id;
            pool_->give(lent_[id] - 1, side::input, 0);
            lent_[id] = 0;
        }
        publish();
    }

    /// The buffer a completion names, or none_index.
    std::uint32_t named_by(const completion& what) noexcept {
        if ((what.flags & completion_buffer) == 0) {
            return none_index;
        }
        const std::uint32_t id = what.flags >> completion_buffer_shift;
        NETIO_ASSERT(id < ids && lent_[id] != 0);
        const std::uint32_t index = lent_[id] - 1;
        lent_[id] = 0;
        return index;
    }

private:
    void publish() noexcept {
        __atomic_store_n(&entries_[0].tail, tail_, __ATOMIC_RELEASE);
    }

    buffer_pool* pool_ = nullptr;
    provided_buffer* entries_ = nullptr;
    std::uint16_t head_ = 0;  // the kernel's: as many as completions named
    std::uint16_t tail_ = 0;
    std::uint32_t lent_[ids] = {};  // buffer index plus one, by id
};

/// Makes the socket of a connect; the ring connects it.
struct sys : linux_sys {
    static int connect(int, const sockaddr*, socklen_t) noexcept {
        errno = EINPROGRESS;
        return -1;
    }
};

}  // namespace uring

/// See `netio::backend` for what each function promises, docs/contract.md for how this kernel
/// keeps it.
class io_uring_prototype {
    using sys = uring::sys;
    using completion = uring::completion;
    using submission = uring::submission;

    struct links {
        std::uint32_t previous;
        std::uint32_t next;
    };
    /// What is remembered of one connection. All-zero is "no connection".
    struct connection {
        std::int32_t descriptor;
        std::uint32_t generation;
        std::uint32_t flags;
        std::uint32_t next;  // in the run list, an id
        union {
            std::uint64_t into;  // receive into the caller's memory: its address
            links starved;       // receive into the pool: its place among those without a buffer
        };
        std::uint32_t receive_count;  // bytes of `into`, or credit left
        std::uint32_t buffer;         // plus one: taken for a receive that had found none
    };
    static_assert(sizeof(connection) == 32);

    static constexpr std::uint32_t accepts_armed = 4;
    struct accept_slot {
        detail::socket_address peer;
        socklen_t peer_bytes;
        bool outstanding;
    };
    struct listener {
        std::int32_t descriptor;
        std::uint32_t generation;
        std::uint32_t flags;
        accept_slot slots[accepts_armed];  // the kernel's while outstanding
    };
    struct datagram_socket {
        std::int32_t descriptor;
        std::uint32_t generation;
        std::uint32_t flags;
        std::uint32_t next;
        links starved;
        std::uint32_t buffer;
        msghdr message;  // the kernel's while a receive is outstanding, as what it points to
        iovec piece;
        detail::socket_address peer;
    };
    struct datagram_send {
        std::int32_t descriptor;
        std::uint32_t generation;
        std::uint32_t flags;
        std::uint32_t next;
        std::uint64_t from;
        std::uint32_t count;
        std::uint32_t tries;
        std::int32_t code;
        endpoint peer;
    };
    /// What a submission points to. The kernel has copied it once it took the submission, so one
    /// for each place in the queue is enough.
    struct scratch {
        msghdr message;
        iovec pieces[slices_max];
        detail::socket_address peer;
    };

public:
    static constexpr const char* name = "io_uring";
    static constexpr std::size_t connection_bytes = sizeof(connection);
    static constexpr std::uint32_t receive_credit = 1;
    /// Connections that may still come after stop_accept.
    static constexpr std::uint32_t late_accepts_max = accepts_armed;

    io_uring_prototype() noexcept = default;
    io_uring_prototype(const io_uring_prototype&) = delete;
    io_uring_prototype& operator=(const io_uring_prototype&) = delete;

    static availability available() noexcept {
        uring::parameters how{};
        const long made = uring::ring::set_up(4, how);
        if (made >= 0) {
            sys::close(static_cast<int>(made));
            return {};
        }
        switch (errno) {
        case ENOSYS: return {false, "io_uring_setup"};
        case EINVAL: return {false, "IORING_SETUP_DEFER_TASKRUN (Linux 6.1)"};
        case EPERM:
        case EACCES: return {false, "io_uring: kernel.io_uring_disabled or a filter forbids it"};
        default: return {};
        }
    }
    static constexpr std::size_t bytes_needed(const backend_limits& sizes) noexcept {
        return layout::of(sizes).end;
    }
    static const char* os_name(int code) noexcept { return detail::errno_name(code); }
    static os_handle listen(const stream_address& address,
                            const listen_options& options) noexcept {
        return detail::listen_stream<sys>(address, options);
    }
    static os_handle open_datagram(const endpoint& address,
                                   const datagram_options& options) noexcept {
        return detail::open_bound_datagram<sys>(address, options);
    }
    static result<endpoint> local_of(socket_handle handle) noexcept {
        return detail::local_endpoint<sys>(handle);
    }
    static void close_handle(socket_handle handle, bool abort) noexcept {
        NETIO_ASSERT(handle >= 0);
        close_descriptor(static_cast<int>(handle), abort);
    }
    static std::uint64_t reserve_descriptors(std::uint64_t count) noexcept {
        return detail::raise_descriptor_limit<sys>(count);
    }
    std::uint64_t now_ns() const noexcept { return sys::now_ns(); }

    os_status open(mutable_bytes memory, const backend_limits& sizes, buffer_pool& pool) noexcept {
        NETIO_ASSERT(!open_);
        NETIO_ASSERT(memory.size() >= bytes_needed(sizes));
        const std::uint32_t completions = completions_needed(sizes);
        if (completions > completions_max) {
            return {error::not_supported, 0};
        }
        if (const os_status opened = ring_.open(submissions_max, completions); !opened) {
            return opened;
        }
        lay_out(memory.data(), sizes);
        pool_ = &pool;
        if (!lending_.open(ring_, memory.data(), pool)) {
            return give_up_open(errno);
        }
        wake_ = sys::open_wake();
        if (wake_ < 0) {
            return give_up_open(errno);
        }
        refill_spare();
        wake_state_.store(0);
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
        // As in epoll: nobody writes to a descriptor that belongs to somebody else by then.
        wake_state_.fetch_or(wake_woken);
        while (wake_state_.load() >= wake_writer) {
            sys::yield();
        }
        end_everything();
        for (std::uint32_t index = 0; index < sizes_.connections; ++index) {
            if ((connections_[index].flags & (attached | connecting)) != 0) {
                sys::close(connections_[index].descriptor);
            }
        }
        if (spare_ != 0) {
            sys::close(spare_ - 1);
            spare_ = 0;
        }
        sys::close(wake_);
        ring_.close();
        open_ = false;
    }

    os_status start_accept(socket_handle handle, token who) noexcept {
        listener& at = listener_of(who);
        NETIO_ASSERT(open_ && handle >= 0);
        NETIO_ASSERT(at.flags == 0);
        refill_spare();
        at.descriptor = static_cast<int>(handle);
        at.generation = who.generation();
        at.flags = attached;
        for (std::uint32_t slot = 0; slot < accepts_armed; ++slot) {
            arm_accept(who.index(), slot);
        }
        return {};
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
        const os_handle made = detail::connect_stream<sys>(address, options);
        if (!made) {
            return made.status;
        }
        begin(at, static_cast<int>(made.handle), who, connecting);
        scratch* with = nullptr;
        submission& out = start(uring::connect, at.descriptor, who.with(operation::connect), &with);
        socklen_t size = 0;
        const error wrong = detail::to_stream_address<sys>(
            {unmapped(address.ip), address.unix_path}, with->peer, size);
        NETIO_ASSERT(wrong == error::none);
        static_cast<void>(wrong);
        out.address = uring::address_of(&with->peer);
        out.second_address = size;
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
        NETIO_ASSERT((at.flags & (receiving | sending | closing | in_run_list)) == 0);
        NETIO_ASSERT((at.flags & attached) != 0);
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
            at.receive_count = credit;
        } else {
            at.flags |= into_memory;
            at.into = uring::address_of(into.data());
            at.receive_count = clipped(into.size());
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
            link(who.index() + 1);
        } else {
            cancel(who.with(operation::receive));
        }
    }

    void start_send(token who, std::span<const bytes> slices) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (sending | send_over)) == 0);
        NETIO_ASSERT(!slices.empty() && slices.size() <= slices_max);
        at.flags |= sending;
        scratch* with = nullptr;
        submission& out =
            start(uring::send_message, at.descriptor, who.with(operation::send), &with);
        out.operation_flags = MSG_NOSIGNAL;
        if (slices.size() == 1) {
            NETIO_ASSERT(!slices[0].empty());
            out.opcode = uring::send;
            out.address = uring::address_of(slices[0].data());
            out.count = clipped(slices[0].size());
            return;
        }
        for (std::size_t at_slice = 0; at_slice < slices.size(); ++at_slice) {
            NETIO_ASSERT(!slices[at_slice].empty());
            with->pieces[at_slice] = piece_of(slices[at_slice]);
        }
        point_at(out, *with, slices.size());
    }

    void end_send(token who) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | closing)) == attached);
        NETIO_ASSERT((at.flags & (sending | send_over)) == 0);
        at.flags |= send_over;
        sys::shutdown_sending(at.descriptor);
    }

    void start_close(token who, bool abort) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & (attached | connecting)) != 0);
        NETIO_ASSERT((at.flags & closing) == 0);
        if ((at.flags & starved) != 0) {
            unlink_starved(who.index() + 1);
        }
        at.flags |= closing | (abort ? abortive : 0);
        // A pending operation holds the file: the descriptor is closed when the last one has ended.
        for (const operation each : {operation::connect, operation::receive, operation::send}) {
            if (in_kernel(at, each)) {
                cancel(who.with(each));
            }
        }
        end_if_idle(who.index());
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
            link(datagram_kind | (who.index() + 1));
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
        at.from = uring::address_of(payload.data());
        at.count = clipped(payload.size());
        at.peer = peer;
        arm_send_to(at, who);
    }

    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        NETIO_ASSERT(out.size() >= 4);
        waiting_ = true;
        detail::event_writer to(out);
        take_wake(to);
        serve_starved();
        const bool local = run_count_ != 0 || to.count() != 0 || ring_.unread() != 0;
        if (ring_.unread() < out.size()) {
            const bool sleeps = !local && timeout_ns != 0 && announce_sleep();
            enter(sleeps ? 1 : 0, timeout_ns);
            if (to.count() == 0) {
                take_wake(to);
            }
        }
        const std::uint32_t nodes =
            work_off_run_list(to, run_count_, ring_.unread() != 0 ? to.room() / 2 : 0);
        while (ring_.unread() != 0 && to.room() != 0) {
            complete(ring_.pop(), to);
        }
        work_off_run_list(to, nodes < run_count_ ? run_count_ : nodes, 0);
        waiting_ = false;
        if (foreign_) {
            announce_sleep();
        }
        return to.count();
    }

    bool ready() noexcept {
        NETIO_ASSERT(open_);
        // What is pushed is started by the next wait only: the handle can't tell of it before.
        return run_count_ != 0 || ring_.unread() != 0 || ring_.pending() != 0 ||
               (starved_first_ != 0 && pool_->room(side::input) != 0) ||
               (wake_state_.load() & wake_woken) != 0;
    }

    void wake() noexcept {
        std::uint32_t seen = wake_state_.load();
        for (;;) {
            const bool asleep = (seen & (wake_asleep | wake_woken)) == wake_asleep;
            const std::uint32_t wanted = (seen | wake_woken) + (asleep ? wake_writer : 0);
            if (wake_state_.compare_exchange_weak(seen, wanted)) {
                if (asleep) {
                    const int kept = errno;  // the caller may be a signal handler
                    sys::write_wake(wake_);
                    errno = kept;
                    wake_state_.fetch_sub(wake_writer);
                }
                return;
            }
        }
    }

    socket_handle wait_handle() noexcept {
        NETIO_ASSERT(open_ && !waiting_);
        if (!foreign_) {
            foreign_ = true;
            announce_sleep();
        }
        return ring_.descriptor();
    }

private:
    // Flags of all blocks.
    static constexpr std::uint32_t attached = 1u << 0;
    static constexpr std::uint32_t connecting = 1u << 1;
    static constexpr std::uint32_t closing = 1u << 2;
    static constexpr std::uint32_t abortive = 1u << 3;
    static constexpr std::uint32_t in_run_list = 1u << 4;
    static constexpr std::uint32_t starved = 1u << 5;
    static constexpr std::uint32_t receiving = 1u << 6;     // outstanding for the caller
    static constexpr std::uint32_t receive_sent = 1u << 7;  // outstanding in the kernel
    static constexpr std::uint32_t into_memory = 1u << 8;
    static constexpr std::uint32_t receive_over = 1u << 9;  // ended or failed was given
    static constexpr std::uint32_t stopping = 1u << 10;
    static constexpr std::uint32_t sending = 1u << 11;
    static constexpr std::uint32_t send_over = 1u << 12;  // end_send was called

    static constexpr std::uint32_t id_index = (1u << 30) - 1;
    static constexpr std::uint32_t datagram_kind = 1u << 30;
    static constexpr std::uint32_t send_kind = 2u << 30;

    static constexpr std::uint32_t wake_asleep = 1;
    static constexpr std::uint32_t wake_woken = 2;
    static constexpr std::uint32_t wake_writer = 4;

    static constexpr std::uint32_t submissions_max = 64;
    static constexpr std::uint32_t completions_max = 65536;  // the kernel's bound
    static constexpr std::uint8_t cancel_mark = 0x80;        // in the operation of a token
    static constexpr std::uint32_t send_to_tries_max = 3;

    struct layout {
        std::size_t scratches = 0;
        std::size_t connections = 0;
        std::size_t listeners = 0;
        std::size_t datagram_sockets = 0;
        std::size_t datagram_sends = 0;
        std::size_t end = 0;

        static constexpr std::size_t aligned(std::size_t at) noexcept {
            return (at + 63) / 64 * 64;
        }
        static constexpr layout of(const backend_limits& sizes) noexcept {
            layout out;
            out.scratches = uring::lending::memory_bytes;
            out.connections = aligned(out.scratches + submissions_max * sizeof(scratch));
            out.listeners = aligned(out.connections + sizes.connections * sizeof(connection));
            out.datagram_sockets = aligned(out.listeners + sizes.listeners * sizeof(listener));
            out.datagram_sends = aligned(out.datagram_sockets +
                                         sizes.datagram_sockets * sizeof(datagram_socket));
            out.end =
                aligned(out.datagram_sends + sizes.datagram_sends * sizeof(datagram_send));
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
        run_first_ = run_last_ = run_count_ = 0;
        starved_first_ = starved_last_ = 0;
        outstanding_count_ = 0;
        foreign_ = false;
    }

    /// Each operation has one completion, and its cancel at most one: the queue can't overflow.
    static constexpr std::uint32_t completions_needed(const backend_limits& sizes) noexcept {
        const std::uint64_t all =
            2 * (std::uint64_t{2} * sizes.connections + accepts_armed * sizes.listeners +
                 sizes.datagram_sockets + sizes.datagram_sends + 2) +
            submissions_max;
        return all < completions_max ? static_cast<std::uint32_t>(all) : completions_max + 1;
    }

    static void close_descriptor(int descriptor, bool abort) noexcept {
        if (abort) {
            const linger at_once{1, 0};
            sys::setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        }
        sys::close(descriptor);
    }
    os_status give_up_open(int code) noexcept {
        ring_.close();
        return detail::status_of(code);
    }
    void refill_spare() noexcept {
        if (spare_ == 0) {
            spare_ = sys::open_spare() + 1;  // 0 where there is none
        }
    }

    static std::uint32_t clipped(std::size_t count) noexcept {
        return count < INT_MAX ? static_cast<std::uint32_t>(count) : INT_MAX;
    }
    static iovec piece_of(bytes what) noexcept {
        return {const_cast<std::byte*>(what.data()), what.size()};
    }
    static std::uint32_t checked(token who, std::uint32_t count) noexcept {
        NETIO_ASSERT(who.index() < count);
        return who.index();
    }
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

    // ---- the ring

    void submit() noexcept { ring_.enter(0, 0, 0); }

    /// Into the kernel, to submit, to let it run what became ready, and to wait.
    void enter(std::uint32_t least, std::uint64_t timeout_ns) noexcept {
        const std::uint32_t from = ring_.completion_tail();
        if (starved_first_ == 0) {
            lending_.lend();
        }
        ring_.enter(least, timeout_ns, uring::enter_get_events);
        NETIO_ASSERT(!ring_.overflown());
        lending_.take_back(ring_, from);
    }

    submission& start(std::uint8_t opcode, int descriptor, token who,
                      scratch** with = nullptr) noexcept {
        for (int tries = 0; ring_.full(); ++tries) {
            NETIO_ASSERT(tries < 1000);  // only a kernel without memory takes none
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
        outstanding_count_ += opcode != uring::cancel ? 1 : 0;
        return out;
    }

    static void point_at(submission& out, scratch& with, std::size_t pieces) noexcept {
        with.message.msg_iov = with.pieces;
        with.message.msg_iovlen = static_cast<decltype(with.message.msg_iovlen)>(pieces);
        out.address = uring::address_of(&with.message);
        out.count = 1;
    }

    /// Asks the kernel to end one operation. Queued behind it and before any later one, so it can't
    /// hit a later operation of the same token.
    void cancel(token whose) noexcept {
        const auto marked = static_cast<operation>(static_cast<std::uint8_t>(whose.op()) |
                                                   cancel_mark);
        submission& out = start(uring::cancel, -1, whose.with(marked));
        out.flags = uring::flag_skip_success;
        out.address = whose.bits;
    }

    void arm_wake() noexcept {
        submission& out =
            start(uring::poll_add, wake_, token::of(0, 0, operation::wake));
        out.operation_flags = POLLIN;
        out.count = uring::poll_multishot;
    }

    void complete(const completion& what, detail::event_writer& to) noexcept {
        const token who{what.user_data};
        const auto op = static_cast<std::uint8_t>(who.op());
        if ((op & cancel_mark) != 0) {
            cancel_missed(who.with(static_cast<operation>(op & ~cancel_mark)));
            return;
        }
        outstanding_count_ -= (what.flags & uring::completion_more) == 0 ? 1 : 0;
        switch (who.op()) {
        case operation::accept: accepted(who, what.result, to); break;
        case operation::connect: connected(who, what.result, to); break;
        case operation::receive: received(who, what, to); break;
        case operation::send: sent(who, what.result, to); break;
        case operation::receive_from: received_from(who, what, to); break;
        case operation::send_to: sent_to(who, what.result, to); break;
        default:  // wake: the word says more than the descriptor
            if ((what.flags & uring::completion_more) == 0) {
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
            const listener& at = listeners_[index / accepts_armed];
            again = at.slots[index % accepts_armed].outstanding &&
                    (at.flags == 0 || at.generation != whose.generation());
        } else if (whose.op() == operation::receive_from) {
            const datagram_socket& at = datagram_sockets_[index];
            again = at.generation == whose.generation() && (at.flags & closing) != 0 &&
                    (at.flags & receive_sent) != 0;
        } else {
            const connection& at = connections_[index];
            again = at.generation == whose.generation() && in_kernel(at, whose.op()) &&
                    (at.flags & (closing | stopping)) != 0;
        }
        if (again) {
            cancel(whose);
        }
    }

    /// Ends all operations and waits for them, so that the kernel has no pointer of ours any more;
    /// closes and gives back what their completions brought. Only the thread of `open` can: closing
    /// the ring would end them too, but some time later.
    void end_everything() noexcept {
        for (int tries = 0; outstanding_count_ != 0 && tries < 1000; ++tries) {
            submission& out = start(uring::cancel, -1, token::of(0, 0, cancel_all_mark));
            out.operation_flags = uring::cancel_any | uring::cancel_all;
            const long entered = ring_.enter(1, 10'000'000, uring::enter_get_events);
            NETIO_ASSERT(entered >= 0 || errno != EEXIST);  // another thread's ring
            while (ring_.unread() != 0) {
                discard(ring_.pop());
            }
        }
        NETIO_ASSERT(outstanding_count_ == 0);
    }
    static constexpr operation cancel_all_mark = static_cast<operation>(cancel_mark);

    void discard(const completion& what) noexcept {
        const token who{what.user_data};
        if ((static_cast<std::uint8_t>(who.op()) & cancel_mark) != 0) {
            return;
        }
        outstanding_count_ -= (what.flags & uring::completion_more) == 0 ? 1 : 0;
        const std::uint32_t dirty_bytes = dirty(what.result);
        if (who.op() == operation::accept && what.result >= 0) {
            close_descriptor(what.result, true);
        } else if (who.op() == operation::receive) {
            give(buffer_of(connections_[who.index()].buffer, what), dirty_bytes);
        } else if (who.op() == operation::receive_from) {
            give(buffer_of(datagram_sockets_[who.index()].buffer, what), dirty_bytes);
        }
    }

    // ---- buffers

    /// The buffer a receive was given, by the ring or by us; none_index if none.
    std::uint32_t buffer_of(std::uint32_t& own, const completion& what) noexcept {
        if (own == 0) {
            return lending_.named_by(what);
        }
        const std::uint32_t index = own - 1;
        own = 0;
        return index;
    }
    static std::uint32_t dirty(std::int32_t result) noexcept {
        return result > 0 ? static_cast<std::uint32_t>(result) : 0;
    }
    void give(std::uint32_t buffer, std::uint32_t dirty_bytes) noexcept {
        if (buffer != none_index) {
            pool_->give(buffer, side::input, dirty_bytes);
        }
    }

    links& links_of(std::uint32_t id) noexcept {
        const std::uint32_t index = (id & id_index) - 1;
        return (id & datagram_kind) != 0 ? datagram_sockets_[index].starved
                                         : connections_[index].starved;
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
        const links around = links_of(id);
        (around.previous != 0 ? links_of(around.previous).next : starved_first_) = around.next;
        (around.next != 0 ? links_of(around.next).previous : starved_last_) = around.previous;
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

    std::uint32_t& next_of(std::uint32_t id) noexcept {
        const std::uint32_t index = (id & id_index) - 1;
        switch (id & ~id_index) {
        case 0: return connections_[index].next;
        case datagram_kind: return datagram_sockets_[index].next;
        default: return datagram_sends_[index].next;
        }
    }
    std::uint32_t& flags_of(std::uint32_t id) noexcept {
        const std::uint32_t index = (id & id_index) - 1;
        switch (id & ~id_index) {
        case 0: return connections_[index].flags;
        case datagram_kind: return datagram_sockets_[index].flags;
        default: return datagram_sends_[index].flags;
        }
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
    std::uint32_t work_off_run_list(detail::event_writer& to, std::uint32_t nodes,
                                    std::uint32_t spare) noexcept {
        while (nodes != 0 && to.room() > spare) {
            --nodes;
            const std::uint32_t id = unlink_first();
            const std::uint32_t index = (id & id_index) - 1;
            switch (id & ~id_index) {
            case 0: step_connection(index, to); break;
            case datagram_kind: end_datagrams(index, to); break;
            default: end_send_to(index, datagram_sends_[index].code, to); break;
            }
        }
        return nodes;
    }

    void step_connection(std::uint32_t index, detail::event_writer& to) noexcept {
        connection& at = connections_[index];
        const token who = token::of(index, at.generation);
        if ((at.flags & closing) == 0) {
            NETIO_ASSERT((at.flags & stopping) != 0);
            end_receive(at);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        } else if (idle(at)) {
            close_descriptor(at.descriptor, (at.flags & abortive) != 0);
            at = connection{};
            to.put(who, operation::close, event_kind::closed);
        }
    }

    // ---- connections

    static bool in_kernel(const connection& at, operation op) noexcept {
        switch (op) {
        case operation::connect: return (at.flags & connecting) != 0;
        case operation::receive: return (at.flags & receive_sent) != 0;
        default: return (at.flags & sending) != 0;
        }
    }
    static bool idle(const connection& at) noexcept {
        return (at.flags & (connecting | receive_sent | sending)) == 0;
    }
    void end_if_idle(std::uint32_t index) noexcept {
        if (idle(connections_[index])) {
            link(index + 1);
        }
    }
    static void end_receive(connection& at) noexcept {
        at.flags &= ~(receiving | into_memory | stopping);
    }

    void connected(token who, std::int32_t result, detail::event_writer& to) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & connecting) != 0);
        at.flags = (at.flags & ~connecting) | attached;
        if ((at.flags & closing) != 0) {
            end_if_idle(who.index());
        } else if (result < 0) {
            at.flags |= receive_over | send_over;
            to.fail(plain(who), operation::connect, detail::error_of(-result), -result);
        } else {
            to.put(plain(who), operation::connect, event_kind::connected).handle = at.descriptor;
        }
    }

    /// Three kinds: into the caller's memory; into a buffer that is ours already; into one the
    /// kernel chooses once bytes exist. The last asks for readiness first, for without that the
    /// kernel reports the lack of a buffer even where there is nothing to put into it.
    void arm_receive(connection& at, token who) noexcept {
        submission& out = start(uring::receive, at.descriptor, who.with(operation::receive));
        at.flags |= receive_sent;
        if ((at.flags & into_memory) != 0) {
            out.address = at.into;
            out.count = at.receive_count;
        } else if (at.buffer != 0) {
            out.address = uring::address_of(pool_->data(at.buffer - 1));
            out.count = pool_->buffer_bytes();
            out.operation_flags = MSG_DONTWAIT;
        } else {
            choose_buffer(out);
            out.count = pool_->buffer_bytes();
        }
    }
    static void choose_buffer(submission& out) noexcept {
        out.flags = uring::flag_buffer_select;
        out.priority = uring::poll_first;
        out.buffer_group = uring::lending::group;
    }

    void received(token who, const completion& what, detail::event_writer& to) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & receive_sent) != 0);
        const std::uint32_t buffer = buffer_of(at.buffer, what);
        at.flags &= ~receive_sent;
        if ((at.flags & closing) != 0) {
            give(buffer, dirty(what.result));
            end_if_idle(who.index());
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
        out.disarmed = (at.flags & (into_memory | stopping)) != 0 ||
                       out.byte_count >= at.receive_count;
        if (out.disarmed) {
            end_receive(at);
        } else {
            at.receive_count -= out.byte_count;
            arm_receive(at, who);
        }
    }

    void received_none(connection& at, token who, int code, detail::event_writer& to) noexcept {
        const bool passing =
            code == ECANCELED || code == EAGAIN || code == EINTR || code == ENOBUFS;
        if (passing && (at.flags & stopping) != 0) {
            end_receive(at);
            to.put(who, operation::receive, event_kind::received).disarmed = true;
        } else if (code == ENOBUFS && (at.flags & into_memory) == 0) {
            link_starved(who.index() + 1);
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

    void sent(token who, std::int32_t result, detail::event_writer& to) noexcept {
        connection& at = connection_of(who);
        NETIO_ASSERT((at.flags & sending) != 0);
        at.flags &= ~sending;
        if ((at.flags & closing) != 0) {
            end_if_idle(who.index());
        } else if (result > 0) {
            to.put(plain(who), operation::send, event_kind::sent).byte_count =
                static_cast<std::uint32_t>(result);
        } else {
            to.fail(plain(who), operation::send, detail::error_of(-result), -result);
        }
    }

    // ---- listeners

    void arm_accept(std::uint32_t index, std::uint32_t slot) noexcept {
        listener& at = listeners_[index];
        accept_slot& mine = at.slots[slot];
        if (mine.outstanding) {
            return;  // of an accept that was stopped; armed again when its completion comes
        }
        mine.outstanding = true;
        mine.peer_bytes = sizeof(mine.peer);
        submission& out = start(
            uring::accept, at.descriptor,
            token::of(index * accepts_armed + slot, at.generation, operation::accept));
        out.address = uring::address_of(&mine.peer);
        out.second_address = uring::address_of(&mine.peer_bytes);
        out.operation_flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
    }

    /// No new ones. The kernel is entered at once: a pending accept holds the listening socket, so
    /// only after this does closing the descriptor close it. What was accepted meanwhile waits in
    /// the completion queue and is delivered.
    void forget_listener(std::uint32_t index) noexcept {
        listener& at = listeners_[index];
        for (std::uint32_t slot = 0; slot < accepts_armed; ++slot) {
            if (at.slots[slot].outstanding) {
                cancel(token::of(index * accepts_armed + slot, at.generation, operation::accept));
            }
        }
        at.flags = 0;
        enter(0, 0);
    }

    void accepted(token who, std::int32_t result, detail::event_writer& to) noexcept {
        const std::uint32_t index = who.index() / accepts_armed;
        const token owner = token::of(index, who.generation());
        listener& at = listener_of(owner);
        accept_slot& mine = at.slots[who.index() % accepts_armed];
        NETIO_ASSERT(mine.outstanding);
        mine.outstanding = false;
        const bool current = at.flags != 0 && at.generation == who.generation();
        if (result >= 0) {
            event& out = to.put(owner, operation::accept, event_kind::accepted);
            out.handle = result;
            out.peer = detail::to_endpoint(mine.peer, mine.peer_bytes);
        } else if (current && !passing_accept(-result)) {
            fail_accept(index, -result, to);
        }
        if (at.flags != 0) {
            arm_accept(index, who.index() % accepts_armed);
        }
    }

    /// Errors of one client, and the end of an accept that belonged to a start before this one.
    static bool passing_accept(int code) noexcept {
        switch (code) {
        case ECANCELED:
        case EAGAIN:
        case EINTR:
        case ECONNABORTED:
        case EPROTO:
        case EPERM:
        case ENETDOWN:
        case ENOPROTOOPT:
        case EHOSTDOWN:
        case ENONET:
        case EHOSTUNREACH:
        case EOPNOTSUPP:
        case ENETUNREACH:
        case ETIMEDOUT:
        case ECONNRESET: return true;
        default: return false;
        }
    }

    void fail_accept(std::uint32_t index, int code, detail::event_writer& to) noexcept {
        listener& at = listeners_[index];
        const bool exhausted =
            code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
        if (exhausted && spare_ != 0) {
            sys::close(spare_ - 1);
            spare_ = 0;
            const int accepted = sys::accept(at.descriptor, nullptr, nullptr);
            if (accepted >= 0) {
                sys::close(accepted);
            }
            refill_spare();
        }
        forget_listener(index);
        to.fail(token::of(index, at.generation), operation::accept,
                exhausted ? error::descriptors_empty : detail::error_of(code), code);
    }

    // ---- datagrams

    void arm_datagram(datagram_socket& at, token who) noexcept {
        submission& out =
            start(uring::receive_message, at.descriptor, who.with(operation::receive_from));
        at.flags |= receive_sent;
        at.message = msghdr{};
        at.message.msg_name = &at.peer;
        at.message.msg_namelen = sizeof(at.peer);
        at.message.msg_iov = &at.piece;
        at.message.msg_iovlen = 1;
        at.piece = {nullptr, pool_->buffer_bytes()};
        out.address = uring::address_of(&at.message);
        out.count = 1;
        if (at.buffer != 0) {
            at.piece.iov_base = pool_->data(at.buffer - 1);
            out.operation_flags = MSG_DONTWAIT;
        } else {
            choose_buffer(out);
        }
    }

    void received_from(token who, const completion& what, detail::event_writer& to) noexcept {
        NETIO_ASSERT(who.index() < sizes_.datagram_sockets);
        datagram_socket& at = datagram_sockets_[who.index()];
        NETIO_ASSERT(at.generation == who.generation());
        NETIO_ASSERT((at.flags & receive_sent) != 0);
        const std::uint32_t buffer = buffer_of(at.buffer, what);
        at.flags &= ~receive_sent;
        if ((at.flags & closing) != 0) {
            give(buffer, dirty(what.result));
            link(datagram_kind | (who.index() + 1));
            return;
        }
        if (what.result == -ENOBUFS) {
            link_starved(datagram_kind | (who.index() + 1));
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
        detail::socket_address peer;
        const socklen_t size = detail::to_socket_address(at.peer, peer);
        if (size == 0) {
            at.code = EDESTADDRREQ;
            link(send_kind | (who.index() + 1));
            return;
        }
        ++at.tries;
        scratch* with = nullptr;
        submission& out =
            start(uring::send_message, at.descriptor, who.with(operation::send_to), &with);
        with->peer = peer;
        with->message.msg_name = &with->peer;
        with->message.msg_namelen = size;
        with->pieces[0] = {reinterpret_cast<void*>(static_cast<std::uintptr_t>(at.from)), at.count};
        out.operation_flags = MSG_NOSIGNAL;
        point_at(out, *with, 1);
    }

    void sent_to(token who, std::int32_t result, detail::event_writer& to) noexcept {
        NETIO_ASSERT(who.index() < sizes_.datagram_sends);
        datagram_send& at = datagram_sends_[who.index()];
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

    // ---- waking

    /// From here on a wake must be written; false if one came before.
    bool announce_sleep() noexcept {
        return (wake_state_.fetch_or(wake_asleep) & wake_woken) == 0;
    }
    void take_wake(detail::event_writer& to) noexcept {
        if ((wake_state_.fetch_and(~(wake_asleep | wake_woken)) & wake_woken) != 0) {
            to.put({}, operation::wake, event_kind::woken);
        }
    }

    backend_limits sizes_{};
    uring::ring ring_{};
    uring::lending lending_{};
    buffer_pool* pool_ = nullptr;
    scratch* scratches_ = nullptr;
    connection* connections_ = nullptr;
    listener* listeners_ = nullptr;
    datagram_socket* datagram_sockets_ = nullptr;
    datagram_send* datagram_sends_ = nullptr;
    std::uint32_t run_first_ = 0;
    std::uint32_t run_last_ = 0;
    std::uint32_t run_count_ = 0;
    std::uint32_t starved_first_ = 0;
    std::uint32_t starved_last_ = 0;
    std::uint32_t outstanding_count_ = 0;  // completions to come, without those of cancels
    int wake_ = 0;
    int spare_ = 0;  // plus one; given up for an accept when descriptors have run out
    bool open_ = false;
    bool waiting_ = false;
    bool foreign_ = false;  // another loop waits on our handle
    std::atomic<std::uint32_t> wake_state_{0};
};

static_assert(backend<io_uring_prototype>);

}  // namespace netio_test

#endif

#endif
