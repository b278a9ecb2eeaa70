// floor 3 · post_queue.hpp · bounded queue of words from any thread to one owner
#ifndef NETIO_POST_QUEUE_HPP
#define NETIO_POST_QUEUE_HPP

#include "platform/atomic.hpp"
#include "src/stats.hpp"

NETIO_BEGIN

/// A word for somebody: what `id` and `word` mean is up to the two ends.
struct post {
    std::uint64_t id;
    std::uint64_t word;
};

/// A view over the caller's cells: many writers, one owner, no lock, no system call; push may run
/// in a signal handler. Order: posts of one thread arrive in the order it pushed them.
///
/// Each cell carries the position at which it may be written next, or that position plus one once
/// it was written (the scheme of D. Vyukov's bounded queue). The number is kept relative to the
/// cell's own index, so that a queue of zeros is an empty one.
///
/// `Atomic` is detail::atomic, see post_queue below; a test puts other threads' steps between ours,
/// and looks at each access of a `Post`.
template <template <class> class Atomic, class Post = post>
class basic_post_queue {
    struct cell {
        Atomic<std::size_t> turn;
        Post value;
    };
    static_assert(Atomic<std::size_t>::is_always_lock_free);

public:
    static constexpr std::size_t cell_bytes = sizeof(cell);
    static constexpr std::size_t cell_alignment = alignof(cell);

    /// `cells` holds capacity * cell_bytes bytes, all zero; capacity is a power of two, at least 2.
    /// Touches none. Before any other call; no other thread may know the queue yet.
    void attach(std::byte* cells, std::uint32_t capacity) noexcept {
        NETIO_ASSERT(cells != nullptr);
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(cells) % cell_alignment == 0);
        NETIO_ASSERT(capacity >= 2 && (capacity & (capacity - 1)) == 0);
        cells_ = reinterpret_cast<cell*>(cells);
        mask_ = capacity - 1;
        tail_.store(0, detail::ordering::relaxed);
        refused_.store(0, detail::ordering::relaxed);
        head_.store(0, detail::ordering::relaxed);
        high_water_.store(0, detail::ordering::relaxed);
    }

    /// Appends; false, counted as refused, if the queue is full. Any thread or signal handler. The
    /// owner can see the post when push has returned; wake it after that.
    NETIO_WRAPS bool push(post value) noexcept {
        std::size_t at = tail_.load(detail::ordering::relaxed);
        for (;;) {
            const std::size_t index = at & mask_;
            const std::size_t turn = cells_[index].turn.load(detail::ordering::acquire) + index;
            if (turn == at) {
                if (tail_.compare_exchange_weak(at, at + 1, detail::ordering::relaxed)) {
                    cells_[index].value = value;
                    cells_[index].turn.store(at + 1 - index, detail::ordering::release);
                    return true;
                }
            } else if (static_cast<std::ptrdiff_t>(turn - at) < 0) {  // holds a post not yet popped
                refused_.fetch_add(1, detail::ordering::relaxed);
                return false;
            } else {  // ahead: another thread took this position since `at` was read
                at = tail_.load(detail::ordering::relaxed);
            }
        }
    }

    /// Takes the oldest post; false if there is none, or if the oldest is still being written (its
    /// writer then wakes the owner later). Owner only. The cell is cleared.
    bool pop(post& out) noexcept {
        const std::size_t at = head_.load(detail::ordering::relaxed);
        const std::size_t index = at & mask_;
        if (cells_[index].turn.load(detail::ordering::acquire) + index != at + 1) {
            return false;
        }
        note_high_water(at);
        out = cells_[index].value;
        cells_[index].value = post{};
        cells_[index].turn.store(at + mask_ + 1 - index, detail::ordering::release);
        head_.store(at + 1, detail::ordering::relaxed);
        return true;
    }

    /// Would pop return false now? Owner only. Whoever wants to sleep first announces it, then asks
    /// here, with a sequentially consistent fence between.
    bool empty() const noexcept {
        const std::size_t at = head_.load(detail::ordering::relaxed);
        const std::size_t index = at & mask_;
        return cells_[index].turn.load(detail::ordering::acquire) + index != at + 1;
    }

    std::uint32_t capacity() const noexcept { return static_cast<std::uint32_t>(mask_ + 1); }
    /// Any thread; what it says may be old by the time it is read. The high water is the owner's.
    pool_stats stats() const noexcept {
        const std::size_t head = head_.load(detail::ordering::relaxed);
        const std::size_t waiting = tail_.load(detail::ordering::relaxed) - head;
        const std::size_t in_use = waiting <= mask_ + 1 ? waiting : mask_ + 1;
        const std::uint32_t seen = high_water_.load(detail::ordering::relaxed);
        const auto now = static_cast<std::uint32_t>(in_use);
        return {"posts", capacity(), now, now > seen ? now : seen,
                refused_.load(detail::ordering::relaxed)};
    }

private:
    /// The queue only shrinks in pop, so it was never longer than at the start of some pop.
    void note_high_water(std::size_t head) noexcept {
        const std::size_t waiting = tail_.load(detail::ordering::relaxed) - head;
        if (waiting > high_water_.load(detail::ordering::relaxed)) {
            high_water_.store(static_cast<std::uint32_t>(waiting), detail::ordering::relaxed);
        }
    }

    // Three lines of the cache: read by all, written by the writers, written by the owner.
    alignas(64) cell* cells_ = nullptr;
    std::size_t mask_ = 0;
    alignas(64) Atomic<std::size_t> tail_;
    Atomic<std::size_t> refused_;
    alignas(64) Atomic<std::size_t> head_;
    Atomic<std::uint32_t> high_water_;
};

using post_queue = basic_post_queue<detail::atomic>;
static_assert(sizeof(post_queue) == 192);

NETIO_END

#endif
