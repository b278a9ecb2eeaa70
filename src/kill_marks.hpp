// floor 3 · kill_marks.hpp · ending one connection from any thread: a word each, and marked ones
#ifndef NETIO_KILL_MARKS_HPP
#define NETIO_KILL_MARKS_HPP

#include "platform/atomic.hpp"
#include "src/stats.hpp"

#include <bit>

NETIO_BEGIN

/// What a kill word says of a slot. Each outranks those before it.
enum class kill_kind : std::uint8_t {
    none,   ///< free: nobody can be meant
    live,   ///< in use, and nobody wants its end
    close,  ///< to be closed orderly within `value` milliseconds
    kill    ///< to be reset; `value` is the reason
};

/// The wish for one connection's end, as its worker finds it.
struct kill_wish {
    std::uint32_t generation = 0;
    kill_kind kind = kill_kind::none;
    std::uint32_t value = 0;
};

/// A view over the caller's words: one for each slot, which says in which life it is and whether
/// anybody wants its end, and the marks of those that have news, two levels of bits. So a wish
/// can't fail for want of room, and a worker that looks for wishes pays for those there are, not
/// for its slots.
///
/// Whoever wants an end writes the word of that life and no other, then the marks from the slot
/// upwards; the worker takes the marks from the top down and then reads the word. What it misses
/// on its way is marked at the top after it passed there, and so found the next time.
///
/// `Atomic` is detail::atomic, see kill_marks below; a test tries every order of the steps.
template <template <class> class Atomic>
class basic_kill_marks {
    using word = Atomic<std::uint64_t>;
    static_assert(sizeof(word) == 8);

public:
    static constexpr std::uint32_t value_max = (1u << 30) - 1;

    /// 8-byte words for so many slots: one each, and of the marks one for 64 and one for 4,096.
    static constexpr std::size_t words_for(std::uint32_t slots) noexcept {
        return std::size_t{slots} + leaves(slots) + tops(slots);
    }

    /// `words` are as many as `words_for(slots)`, all zero. Before any other call.
    void attach(std::byte* words, std::uint32_t slots) noexcept {
        static_assert(word::is_always_lock_free, "netio: 64-bit atomics without locks are needed");
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(words) % 8 == 0);
        words_ = reinterpret_cast<word*>(words);
        leaves_ = words_ + slots;
        tops_ = leaves_ + leaves(slots);
        slots_ = slots;
    }

    // ---- the worker's

    /// The slot's next life begins. Before anybody is told its id.
    void begin(std::uint32_t index, std::uint32_t generation) noexcept {
        NETIO_ASSERT(index < slots_);
        words_[index].store(pack({generation, kill_kind::live, 0}), detail::ordering::relaxed);
    }
    /// That life is over: wishes for its end are stale from here on.
    void end(std::uint32_t index) noexcept {
        NETIO_ASSERT(index < slots_);
        words_[index].store(0, detail::ordering::relaxed);
    }

    /// There may be marks. Any thread.
    bool any() const noexcept { return news_.load(detail::ordering::relaxed) != 0; }

    /// Calls `each(index, kill_wish)` for at most `most` marked slots; the others stay marked. A
    /// wish may be older than the slot's present life: it names the one it was meant for.
    template <class Each>
    void take(std::uint32_t most, const Each& each) noexcept {
        if (!any() || news_.exchange(0, detail::ordering::acquire_release) == 0) {
            return;
        }
        for (std::uint32_t top = 0; top < tops(slots_); ++top) {
            std::uint64_t full = tops_[top].exchange(0, detail::ordering::acquire_release);
            for (; full != 0; full &= full - 1) {
                const std::uint32_t leaf = top * 64 + lowest(full);
                std::uint64_t marks = leaves_[leaf].exchange(0, detail::ordering::acquire_release);
                for (; marks != 0 && most != 0; marks &= marks - 1, --most) {
                    const std::uint32_t index = leaf * 64 + lowest(marks);
                    each(index, unpack(words_[index].load(detail::ordering::relaxed)));
                }
                if (marks != 0) {
                    leaves_[leaf].fetch_or(marks, detail::ordering::relaxed);
                    tops_[top].fetch_or(full, detail::ordering::release);
                    news_.exchange(1, detail::ordering::release);
                    return;
                }
            }
        }
    }

    // ---- any thread

    /// Wants the end of slot `index` in the life `generation`. True: it is marked, and the worker
    /// is to be woken. False: that life is over (counted as stale), or as much was wanted already.
    /// A shorter close counts as more.
    bool want(std::uint32_t index, kill_wish wish) noexcept {
        NETIO_ASSERT(wish.kind == kill_kind::close || wish.kind == kill_kind::kill);
        NETIO_ASSERT(wish.value <= value_max);
        if (index >= slots_) {
            return stale();
        }
        word& at = words_[index];
        std::uint64_t seen = at.load(detail::ordering::relaxed);
        do {
            const kill_wish now = unpack(seen);
            if (now.generation != wish.generation || now.kind == kill_kind::none) {
                return stale();
            }
            const bool less = now.kind > wish.kind || now.kind == kill_kind::kill ||
                              (now.kind == kill_kind::close && now.value <= wish.value &&
                               wish.kind == kill_kind::close);
            if (less) {
                return false;
            }
        } while (!at.compare_exchange_weak(seen, pack(wish), detail::ordering::relaxed));
        // Each release carries the ones before it to whoever takes the mark above. At the top an
        // exchange, too, goes on with what others released there. Of two stores the worker would
        // find the later one only, and might take the marks before the other's are there.
        leaves_[index / 64].fetch_or(std::uint64_t{1} << index % 64, detail::ordering::release);
        tops_[index / 4096].fetch_or(std::uint64_t{1} << index / 64 % 64,
                                     detail::ordering::release);
        news_.exchange(1, detail::ordering::release);
        return true;
    }

    /// Wishes for connections that were gone.
    std::uint64_t stale_count() const noexcept {
        return stale_.load(detail::ordering::relaxed);
    }

private:
    static constexpr std::uint32_t leaves(std::uint32_t slots) noexcept {
        return (slots + 63) / 64;
    }
    static constexpr std::uint32_t tops(std::uint32_t slots) noexcept {
        return (slots + 4095) / 4096;
    }
    static std::uint32_t lowest(std::uint64_t marks) noexcept {
        return static_cast<std::uint32_t>(std::countr_zero(marks));
    }
    static constexpr std::uint64_t pack(kill_wish of) noexcept {
        return std::uint64_t{of.generation} << 32 |
               std::uint64_t{static_cast<std::uint8_t>(of.kind)} << 30 | of.value;
    }
    static constexpr kill_wish unpack(std::uint64_t bits) noexcept {
        return {static_cast<std::uint32_t>(bits >> 32),
                static_cast<kill_kind>(bits >> 30 & 3),
                static_cast<std::uint32_t>(bits & value_max)};
    }
    bool stale() noexcept {
        stale_.fetch_add(1, detail::ordering::relaxed);
        return false;
    }

    word* words_ = nullptr;
    word* leaves_ = nullptr;
    word* tops_ = nullptr;
    std::uint32_t slots_ = 0;
    Atomic<std::uint32_t> news_;
    Atomic<std::uint64_t> stale_;
};

using kill_marks = basic_kill_marks<detail::atomic>;

NETIO_END

#endif
