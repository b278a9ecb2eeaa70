// floor 3 · ring.hpp · bytes from thread to thread: records written and read where they lie
#ifndef NETIO_RING_HPP
#define NETIO_RING_HPP

#include "platform/atomic.hpp"
#include "src/bytes.hpp"
#include "src/stats.hpp"

NETIO_BEGIN

namespace detail {

/// What the rings have in common. A record is a head of eight bytes, its bytes, and zeros up to a
/// multiple of eight; it never lies across the end of the memory: what is left there is skipped by
/// a record that is only a head. So a record takes half of the memory at most, and then there is
/// always a moment at which it fits.
struct ring_shape {
    static constexpr std::uint32_t head_bytes = 8;
    static constexpr std::uint32_t skipped = 1u << 31;    // of a head: nothing to read behind it

    std::byte* data = nullptr;
    std::size_t mask = 0;

    void attach(std::byte* memory, std::uint32_t bytes_count) noexcept {
        NETIO_ASSERT(memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % 8 == 0);
        NETIO_ASSERT(bytes_count >= 64 && (bytes_count & (bytes_count - 1)) == 0);
        NETIO_ASSERT(bytes_count < skipped);
        data = memory;
        mask = bytes_count - 1;
    }
    std::size_t capacity() const noexcept { return mask + 1; }
    std::uint32_t record_max() const noexcept {
        return static_cast<std::uint32_t>(capacity() / 2 - head_bytes);
    }
    static constexpr std::size_t taken_by(std::uint32_t bytes_count) noexcept {
        return head_bytes + (std::size_t{bytes_count} + 7) / 8 * 8;
    }
    /// Bytes before the end of the memory that a record of `taken` at `at` has to leave.
    std::size_t skip_before(std::size_t at, std::size_t taken) const noexcept {
        const std::size_t left = capacity() - (at & mask);
        return left < taken ? left : 0;
    }
    std::byte* place(std::size_t at) const noexcept { return data + (at & mask); }
    mutable_bytes content(std::size_t at, std::uint32_t bytes_count) const noexcept {
        return {place(at) + head_bytes, bytes_count};
    }
};

/// How a ring touches what is no atomic word: each side's own positions, and the memory. As they
/// are; a test looks at each access.
struct ring_access {
    using position = std::size_t;

    static std::uint32_t get(const std::byte* at) noexcept {
        return load_native<std::uint32_t>(at);
    }
    static void put(std::byte* at, std::uint32_t word) noexcept {
        std::memcpy(at, &word, sizeof(word));
    }
    static void wipe(std::byte* at, std::size_t bytes_count) noexcept {
        std::memset(at, 0, bytes_count);
    }
};

}  // namespace detail

/// A view over the caller's bytes: one thread writes, one reads, neither waits, nothing is copied.
///
///     writer: if (auto to = ring.claim(size)) { write into to.room; ring.commit(used); }
///     reader: while (auto record = ring.peek(); !record.empty()) { read it; ring.release(); }
///
/// Each side keeps a copy of the other's position, so that the line it lies in moves between the
/// CPUs only when the copy says full, or empty.
template <template <class> class Atomic, class Access = detail::ring_access>
class basic_spsc_ring {
    using position = typename Access::position;

public:
    /// `bytes_count` is a power of two, 64 to 2^30; records are of `record_max()` bytes at most. No
    /// other thread may know the ring yet.
    void attach(std::byte* memory, std::uint32_t bytes_count) noexcept {
        shape_.attach(memory, bytes_count);
        writer_at_ = 0;
        reader_seen_ = 0;
        reader_at_ = 0;
        writer_seen_ = 0;
        tail_.store(0, detail::ordering::relaxed);
        head_.store(0, detail::ordering::relaxed);
    }
    std::uint32_t record_max() const noexcept { return shape_.record_max(); }

    /// Room for a record of up to so many bytes, at least 1; empty: more than `record_max()`, or
    /// full just now. A second claim before the commit takes the place of the first. Writer only.
    NETIO_WRAPS ring_claim claim(std::uint32_t bytes_count) noexcept {
        if (bytes_count == 0 || bytes_count > record_max()) {
            return {};
        }
        const std::size_t taken = detail::ring_shape::taken_by(bytes_count);
        const std::size_t skip = shape_.skip_before(writer_at_, taken);
        if (shape_.capacity() - (writer_at_ - reader_seen_) < skip + taken) {
            reader_seen_ = head_.load(detail::ordering::acquire);
            if (shape_.capacity() - (writer_at_ - reader_seen_) < skip + taken) {
                return {};
            }
        }
        if (skip != 0) {
            Access::put(shape_.place(writer_at_), detail::ring_shape::skipped);
        }
        return {shape_.content(writer_at_ + skip, bytes_count), writer_at_ + skip};
    }
    /// The record is so many bytes, at least 1 and no more than were claimed; the reader may have
    /// it from now on. Writer only.
    NETIO_WRAPS void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        NETIO_ASSERT(bytes_count != 0 && bytes_count <= what.room.size());
        Access::put(shape_.place(what.at), bytes_count);
        writer_at_ = what.at + detail::ring_shape::taken_by(bytes_count);
        tail_.store(writer_at_, detail::ordering::release);
    }

    /// The oldest record, until `release`; empty: there is none. Reader only.
    NETIO_WRAPS bytes peek() noexcept {
        for (;;) {
            if (reader_at_ == writer_seen_) {
                writer_seen_ = tail_.load(detail::ordering::acquire);
                if (reader_at_ == writer_seen_) {
                    return {};
                }
            }
            const std::uint32_t head = Access::get(shape_.place(reader_at_));
            if (head != detail::ring_shape::skipped) {
                return shape_.content(reader_at_, head);
            }
            reader_at_ += shape_.capacity() - (reader_at_ & shape_.mask);
        }
    }
    /// Gives back what `peek` gave. Reader only.
    NETIO_WRAPS void release() noexcept {
        const std::uint32_t head = Access::get(shape_.place(reader_at_));
        NETIO_ASSERT(reader_at_ != writer_seen_ && head != detail::ring_shape::skipped);
        reader_at_ += detail::ring_shape::taken_by(head);
        head_.store(reader_at_, detail::ordering::release);
    }

private:
    detail::ring_shape shape_;
    // Lines of the cache: the writer's own, the reader's own, and what each tells the other.
    alignas(64) position writer_at_ = 0;
    position reader_seen_ = 0;
    alignas(64) position reader_at_ = 0;
    position writer_seen_ = 0;
    alignas(64) Atomic<std::size_t> tail_;
    alignas(64) Atomic<std::size_t> head_;
};

/// A view over the caller's bytes: any number of threads write, one reads, nothing is copied.
///
/// A place is claimed by moving the tail, in one step, and is the reader's once its head says so;
/// places are read in the order in which they were claimed, so a writer that takes its time holds
/// up those behind it, and `abandon` is how it gives up. A full ring refuses, and counts that; no
/// order among those who try again.
template <template <class> class Atomic, class Access = detail::ring_access>
class basic_mpsc_ring {
    using position = typename Access::position;
    using word = Atomic<std::uint32_t>;
    static_assert(sizeof(word) == 4);

public:
    /// `memory` is all zero, `bytes_count` a power of two, 64 to 2^30; records are of
    /// `record_max()` bytes at most. No other thread may know the ring yet.
    void attach(std::byte* memory, std::uint32_t bytes_count) noexcept {
        static_assert(word::is_always_lock_free && Atomic<std::size_t>::is_always_lock_free);
        shape_.attach(memory, bytes_count);
        reader_at_ = 0;
        tail_.store(0, detail::ordering::relaxed);
        head_.store(0, detail::ordering::relaxed);
        refused_.store(0, detail::ordering::relaxed);
    }
    std::uint32_t record_max() const noexcept { return shape_.record_max(); }

    /// Room for a record of up to so many bytes, at least 1, to be given to `commit` or `abandon`
    /// once; empty: more than `record_max()`, or full just now. Any thread.
    NETIO_WRAPS ring_claim claim(std::uint32_t bytes_count) noexcept {
        if (bytes_count == 0 || bytes_count > record_max()) {
            return {};
        }
        const std::size_t taken = detail::ring_shape::taken_by(bytes_count);
        std::size_t at = tail_.load(detail::ordering::relaxed);
        for (;;) {
            const std::size_t skip = shape_.skip_before(at, taken);
            // A head older than the tail only makes the ring look fuller than it is; acquired, for
            // what the reader wiped has to be zero before anybody writes there.
            const std::size_t used = at - head_.load(detail::ordering::acquire);
            if (used > shape_.capacity() || shape_.capacity() - used < skip + taken) {
                const std::size_t again = tail_.load(detail::ordering::relaxed);
                if (again != at) {
                    at = again;
                    continue;
                }
                refused_.fetch_add(1, detail::ordering::relaxed);
                return {};
            }
            if (tail_.compare_exchange_weak(at, at + skip + taken, detail::ordering::relaxed)) {
                if (skip != 0) {
                    head_at(at).store(detail::ring_shape::skipped |
                                          static_cast<std::uint32_t>(skip),
                                      detail::ordering::release);
                }
                return {shape_.content(at + skip, bytes_count), at + skip};
            }
        }
    }
    /// The reader may have it: `bytes_count` is at least 1 and no more than was claimed. Its place
    /// stays as large as it was claimed.
    void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        NETIO_ASSERT(bytes_count != 0 && bytes_count <= what.room.size());
        put_taken(what);
        head_at(what.at).store(bytes_count, detail::ordering::release);
    }
    /// The reader steps over it.
    void abandon(const ring_claim& what) noexcept {
        put_taken(what);
        const auto claimed = static_cast<std::uint32_t>(what.room.size());
        head_at(what.at).store(
            detail::ring_shape::skipped |
                static_cast<std::uint32_t>(detail::ring_shape::taken_by(claimed)),
            detail::ordering::release);
    }

    /// The oldest record, until `release`; empty: there is none, or the oldest is still being
    /// written. Reader only.
    NETIO_WRAPS bytes peek() noexcept {
        for (;;) {
            const std::uint32_t head = head_at(reader_at_).load(detail::ordering::acquire);
            if (head == 0) {
                return {};
            }
            if ((head & detail::ring_shape::skipped) == 0) {
                return shape_.content(reader_at_, head);
            }
            wipe_place(head & ~detail::ring_shape::skipped);
        }
    }
    /// Gives back what `peek` gave, wiped. Reader only.
    void release() noexcept {
        const std::uint32_t head = head_at(reader_at_).load(detail::ordering::relaxed);
        NETIO_ASSERT(head != 0 && (head & detail::ring_shape::skipped) == 0);
        static_cast<void>(head);
        wipe_place(Access::get(shape_.place(reader_at_) + 4));
    }

    /// Claims that found no room. Any thread.
    std::uint64_t refused() const noexcept { return refused_.load(detail::ordering::relaxed); }

private:
    word& head_at(std::size_t at) const noexcept {
        return *reinterpret_cast<word*>(shape_.place(at));
    }
    /// The second word of a head: how much place the record has.
    void put_taken(const ring_claim& what) noexcept {
        const auto taken = static_cast<std::uint32_t>(detail::ring_shape::taken_by(
            static_cast<std::uint32_t>(what.room.size())));
        Access::put(shape_.place(what.at) + 4, taken);
    }
    /// Zeros, for a head may come to lie anywhere in it, and then it is free.
    NETIO_WRAPS void wipe_place(std::size_t taken) noexcept {
        Access::wipe(shape_.place(reader_at_) + 4, taken - 4);
        head_at(reader_at_).store(0, detail::ordering::relaxed);
        reader_at_ += taken;
        head_.store(reader_at_, detail::ordering::release);
    }

    detail::ring_shape shape_;
    alignas(64) Atomic<std::size_t> tail_;
    Atomic<std::size_t> refused_;
    alignas(64) position reader_at_ = 0;
    Atomic<std::size_t> head_;
};

using spsc_ring = basic_spsc_ring<detail::atomic>;
using mpsc_ring = basic_mpsc_ring<detail::atomic>;

NETIO_END

#endif
