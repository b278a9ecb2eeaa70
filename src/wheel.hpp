// floor 3 · wheel.hpp · deadlines: arm, move, cancel and expire in O(1), exact to the tick
#ifndef NETIO_WHEEL_HPP
#define NETIO_WHEEL_HPP

#include "src/stats.hpp"

#include <bit>

NETIO_BEGIN

/// Stands at a fixed offset inside each slot that can have a deadline. Zero is the initial state:
/// not armed. The wheel owns it; an owner who frees its slot cancels first.
struct wheel_node {
    std::uint64_t due;
    std::uint32_t next;
    std::uint32_t prev;
};
static_assert(sizeof(wheel_node) == 16);

namespace detail {

/// The first and last node of a list as index + 1, both 0 when it is empty.
struct wheel_list {
    std::uint32_t first;
    std::uint32_t last;
};

/// Geometry. Level 0 has one list a tick for the 2^12 ticks after the position; each higher level
/// has 64 lists, each as wide as the whole level below, up to the full 64 bits of a tick.
struct wheel_heads {
    static constexpr std::uint32_t near_bits = 12;
    static constexpr std::uint32_t near_count = 1u << near_bits;
    static constexpr std::uint32_t far_levels = (64 - near_bits + 5) / 6;
    static constexpr std::uint32_t far_count = far_levels * 64;
    static constexpr std::uint32_t late_list = near_count + far_count;
    static constexpr std::uint32_t ready_list = late_list + 1;
    static constexpr std::uint32_t list_count = ready_list + 1;

    std::uint64_t near_summary;                // bit w: near_words[w] is not 0
    std::uint64_t near_words[near_count / 64]; // bit per list of level 0: it is not empty
    std::uint64_t far_words[far_levels];       // the same for the higher levels
    std::uint64_t far_earliest[far_count];     // while not empty: no later than any due in it
    wheel_list lists[list_count];
};
static_assert(wheel_heads::near_count / 64 <= 64, "one summary word");

}  // namespace detail

/// A hierarchical timing wheel over the caller's nodes. A tick is a std::uint64_t of any unit. One
/// thread.
///
/// Extending is free: an owner keeps its true deadline itself, and only stores there. When the
/// tick comes for which the node was armed, the callback answers with the later tick.
///
/// How it stays exact: everything due at or before `position` has left the levels. A node due at
/// most 2^12 ticks after it stands in the list of exactly its tick; one that is due later stands in
/// the lowest level of which its tick is at most 64 lists ahead. The position never jumps over a
/// list that holds something: a list of level 0 is moved aside to be fired, one of a higher level
/// is taken apart into lower levels just before its first tick. The bits make empty stretches cost
/// nothing, so a jump of the clock costs what is due, not what has passed.
class wheel {
    using heads = detail::wheel_heads;
    using list = detail::wheel_list;

public:
    /// The tick that never comes: a node armed for it stays armed.
    static constexpr std::uint64_t never = UINT64_MAX;
    /// What a callback returns when the node fired. No later tick is 0, so 0 is not reserved:
    /// a node armed for tick 0 is due at once like any in the past.
    static constexpr std::uint64_t done = 0;
    /// What attach needs besides the nodes.
    static constexpr std::size_t heads_bytes = sizeof(heads);
    static constexpr std::size_t heads_alignment = alignof(heads);

    /// `heads_memory` holds heads_bytes bytes. `first_node` is the node inside slot 0; the others
    /// follow at `stride` bytes. All must be zero; none is touched. `now` is the present tick.
    void attach(std::byte* heads_memory, std::byte* first_node, std::size_t stride,
                std::uint32_t count, std::uint64_t now) noexcept {
        NETIO_ASSERT(heads_memory != nullptr);
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(heads_memory) % heads_alignment == 0);
        NETIO_ASSERT(first_node != nullptr || count == 0);
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(first_node) % alignof(wheel_node) == 0);
        NETIO_ASSERT(stride >= sizeof(wheel_node) && stride % alignof(wheel_node) == 0);
        NETIO_ASSERT(count < list_mark);
        *this = wheel{};
        heads_ = reinterpret_cast<heads*>(heads_memory);
        first_ = first_node;
        stride_ = stride;
        count_ = count;
        target_ = now < never ? now : never - 1;
        position_ = target_;
    }

    /// Arms node `index` for tick `due`, or moves it there if it is armed for another. What is due
    /// already fires at the next expire. May be called inside a callback, for any node.
    void arm(std::uint32_t index, std::uint64_t due) noexcept {
        wheel_node& moved = node(index);
        if (moved.prev != 0) {
            if (moved.due == due) {
                return;
            }
            unlink(moved);
        } else {
            ++armed_;
        }
        moved.due = due;
        if (NETIO_LIKELY(due > target_)) {
            place(moved, index);
        } else {
            append(moved, index, heads::late_list);
        }
    }

    /// Disarms node `index`; nothing happens if it is not armed. May be called inside a callback,
    /// for any node.
    void cancel(std::uint32_t index) noexcept {
        wheel_node& cancelled = node(index);
        if (cancelled.prev == 0) {
            return;
        }
        unlink(cancelled);
        cancelled.next = 0;
        cancelled.prev = 0;
        --armed_;
    }

    bool armed(std::uint32_t index) const noexcept { return node(index).prev != 0; }

    /// The tick for which `index` is armed; it must be.
    std::uint64_t due(std::uint32_t index) const noexcept {
        NETIO_ASSERT(armed(index));
        return node(index).due;
    }

    /// Moves the wheel's time to `now` and fires at most `most` nodes that are due, in the order of
    /// their ticks, within a tick in the order of arming; late ones come first. Each is disarmed,
    /// then `fire(index)` is called: it returns `done`, or the later tick for which the node is
    /// armed again, or has armed it itself. A node armed inside a callback for a tick already
    /// passed fires at the next call. A clock that went backwards is taken as one that stood.
    ///
    /// Returns how many were fired. As many as `most`, or a next_due that is not after `now`, says
    /// that the rest waits for the next call. At most `most` nodes are moved to a lower level
    /// as well, so a call never costs more than 2 * most steps.
    template <class Fire>
    std::uint32_t expire(std::uint64_t now, std::uint32_t most, Fire&& fire) noexcept {
        NETIO_ASSERT(heads_ != nullptr);
        NETIO_ASSERT(!expiring_);  // not from inside a callback
        expiring_ = true;
        if (now > target_) {
            target_ = now < never ? now : never - 1;
        }
        take_aside(heads::late_list);
        std::uint32_t fired = 0;
        std::uint32_t moves_left = most;
        for (;;) {
            while (fired < most && list_at(heads::ready_list).first != 0) {
                const std::uint32_t index = pop_ready();
                ++fired;
                const std::uint64_t later = fire(index);
                if (later != done) {
                    arm(index, later);
                }
            }
            if (fired == most || !advance(moves_left)) {
                break;
            }
        }
        expiring_ = false;
        return fired;
    }

    /// The earliest tick at which expire has something to fire: exact, except that it may be too
    /// early after a cancel or move of a node due more than 2^12 ticks after the last expire. 0 if
    /// something is late or was left over, `never` if nothing is armed (or only for never).
    std::uint64_t next_due() const noexcept {
        if (armed_ == 0) {
            return never;
        }
        if (list_at(heads::late_list).first != 0 || list_at(heads::ready_list).first != 0) {
            return 0;
        }
        std::uint64_t earliest = next_near();
        for (std::uint32_t level = 0; level < heads::far_levels; ++level) {
            if (heads_->far_words[level] != 0) {
                const std::uint64_t block = next_block(level);
                const std::uint64_t found =
                    heads_->far_earliest[level * 64 + static_cast<std::uint32_t>(block % 64)];
                earliest = found < earliest ? found : earliest;
            }
        }
        return earliest;
    }

    /// How many nodes are armed.
    std::uint32_t count() const noexcept { return armed_; }

private:
    // A link is index + 1 of the neighbour, or this bit and the number of the list at its two ends.
    // Never 0 while the node is armed.
    static constexpr std::uint32_t list_mark = 0x80000000;
    static constexpr std::uint32_t near_mask = heads::near_count - 1;

    struct coarse_list {
        std::uint64_t start;  // the first tick of the list's stretch, never if there is none
        std::uint32_t list_index;
    };

    wheel_node& node(std::uint32_t index) const noexcept {
        NETIO_ASSERT(index < count_);
        return *reinterpret_cast<wheel_node*>(first_ + stride_ * index);
    }
    list& list_at(std::uint32_t list_index) const noexcept { return heads_->lists[list_index]; }

    static std::uint32_t shift_of(std::uint32_t level) noexcept {
        return heads::near_bits + 6 * level;
    }

    /// Links a node that is due after the position into its level.
    void place(wheel_node& placed, std::uint32_t index) noexcept {
        const std::uint64_t ahead = placed.due - position_ - 1;
        if (NETIO_LIKELY(ahead < heads::near_count)) {
            const auto slot = static_cast<std::uint32_t>(placed.due) & near_mask;
            append(placed, index, slot);
            return;
        }
        std::uint32_t level = 0;
        while ((placed.due >> shift_of(level)) - (position_ >> shift_of(level)) > 64) {
            ++level;
        }
        NETIO_ASSERT(level < heads::far_levels);
        const auto slot = static_cast<std::uint32_t>((placed.due >> shift_of(level)) % 64);
        std::uint64_t& earliest = heads_->far_earliest[level * 64 + slot];
        if (((heads_->far_words[level] >> slot) & 1) == 0 || placed.due < earliest) {
            earliest = placed.due;
        }
        append(placed, index, heads::near_count + level * 64 + slot);
    }

    void append(wheel_node& added, std::uint32_t index, std::uint32_t list_index) noexcept {
        list& into = list_at(list_index);
        added.next = list_mark | list_index;
        if (into.last == 0) {
            into.first = index + 1;
            added.prev = list_mark | list_index;
            mark_filled(list_index);
        } else {
            node(into.last - 1).next = index + 1;
            added.prev = into.last;
        }
        into.last = index + 1;
    }

    /// Takes a node out of its list; its own links keep their old values.
    void unlink(wheel_node& taken) noexcept {
        const std::uint32_t next = taken.next;
        const std::uint32_t prev = taken.prev;
        const bool is_last = (next & list_mark) != 0;
        const bool is_first = (prev & list_mark) != 0;
        if (!is_last) {
            node(next - 1).prev = prev;
        } else {
            list_at(next & ~list_mark).last = is_first ? 0 : prev;
        }
        if (!is_first) {
            node(prev - 1).next = next;
        } else {
            list_at(prev & ~list_mark).first = is_last ? 0 : next;
        }
        if (is_first && is_last) {
            mark_empty(next & ~list_mark);
        }
    }

    void mark_filled(std::uint32_t list_index) noexcept {
        if (list_index < heads::near_count) {
            heads_->near_words[list_index / 64] |= std::uint64_t{1} << (list_index % 64);
            heads_->near_summary |= std::uint64_t{1} << (list_index / 64);
        } else if (list_index < heads::late_list) {
            const std::uint32_t spot = list_index - heads::near_count;
            heads_->far_words[spot / 64] |= std::uint64_t{1} << (spot % 64);
        }
    }

    void mark_empty(std::uint32_t list_index) noexcept {
        if (list_index < heads::near_count) {
            std::uint64_t& word = heads_->near_words[list_index / 64];
            word &= ~(std::uint64_t{1} << (list_index % 64));
            if (word == 0) {
                heads_->near_summary &= ~(std::uint64_t{1} << (list_index / 64));
            }
        } else if (list_index < heads::late_list) {
            const std::uint32_t spot = list_index - heads::near_count;
            heads_->far_words[spot / 64] &= ~(std::uint64_t{1} << (spot % 64));
        }
    }

    /// Appends a whole list to the one that is being fired.
    void take_aside(std::uint32_t list_index) noexcept {
        list& from = list_at(list_index);
        if (from.first == 0) {
            return;
        }
        list& ready = list_at(heads::ready_list);
        node(from.last - 1).next = list_mark | heads::ready_list;
        if (ready.last == 0) {
            node(from.first - 1).prev = list_mark | heads::ready_list;
            ready.first = from.first;
        } else {
            node(from.first - 1).prev = ready.last;
            node(ready.last - 1).next = from.first;
        }
        ready.last = from.last;
        from = list{0, 0};
        mark_empty(list_index);
    }

    std::uint32_t pop_ready() noexcept {
        list& ready = list_at(heads::ready_list);
        const std::uint32_t index = ready.first - 1;
        wheel_node& popped = node(index);
        if ((popped.next & list_mark) != 0) {
            ready = list{0, 0};
        } else {
            ready.first = popped.next;
            node(popped.next - 1).prev = list_mark | heads::ready_list;
        }
        popped.next = 0;
        popped.prev = 0;
        --armed_;
        return index;
    }

    /// Moves the position up to the next list that holds something due and moves that aside. False
    /// if nothing more is due, or when `moves_left` nodes were moved down a level.
    bool advance(std::uint32_t& moves_left) noexcept {
        while (position_ < target_) {
            const std::uint64_t tick = next_near();
            const coarse_list coarse = next_far();
            if (tick > target_ && coarse.start > target_) {
                position_ = target_;
                return false;
            }
            if (tick < coarse.start) {
                position_ = tick;
                take_aside(static_cast<std::uint32_t>(tick) & near_mask);
                return true;
            }
            NETIO_ASSERT(coarse.start > position_);
            position_ = coarse.start - 1;
            if (!take_apart(coarse.list_index, moves_left)) {
                return false;
            }
        }
        return false;
    }

    /// Moves the nodes of a higher level's list to where they belong, seen from the tick before its
    /// stretch. May stop halfway: all stays true, and the next call goes on.
    bool take_apart(std::uint32_t list_index, std::uint32_t& moves_left) noexcept {
        list& from = list_at(list_index);
        while (from.first != 0) {
            if (moves_left == 0) {
                return false;
            }
            --moves_left;
            const std::uint32_t index = from.first - 1;
            wheel_node& moved = node(index);
            NETIO_ASSERT(moved.due > position_);
            unlink(moved);
            place(moved, index);
        }
        return true;
    }

    /// The first tick after the position whose list of level 0 holds something, or never.
    std::uint64_t next_near() const noexcept {
        if (heads_->near_summary == 0) {
            return never;
        }
        constexpr std::uint32_t word_count = heads::near_count / 64;
        const auto from = static_cast<std::uint32_t>(position_ + 1) & near_mask;
        const std::uint64_t here = heads_->near_words[from / 64] >> (from % 64);
        if (here != 0) {
            return position_ + 1 + static_cast<std::uint32_t>(std::countr_zero(here));
        }
        // The words after it in a circle; the last is its own again, with the bits below `from`.
        const std::uint32_t second = from / 64 + 1;
        const std::uint64_t turned =
            std::rotr(heads_->near_summary, static_cast<int>(second % word_count));
        const std::uint32_t word =
            (second + static_cast<std::uint32_t>(std::countr_zero(turned))) % word_count;
        const std::uint32_t slot =
            word * 64 + static_cast<std::uint32_t>(std::countr_zero(heads_->near_words[word]));
        return position_ + 1 + ((slot - from) & near_mask);
    }

    /// The number of the first stretch after the position that holds something in `level`, which
    /// must not be empty.
    std::uint64_t next_block(std::uint32_t level) const noexcept {
        const std::uint64_t first = (position_ >> shift_of(level)) + 1;
        const std::uint64_t turned =
            std::rotr(heads_->far_words[level], static_cast<int>(first % 64));
        return first + static_cast<std::uint32_t>(std::countr_zero(turned));
    }

    coarse_list next_far() const noexcept {
        coarse_list first{never, 0};
        for (std::uint32_t level = 0; level < heads::far_levels; ++level) {
            if (heads_->far_words[level] == 0) {
                continue;
            }
            const std::uint64_t block = next_block(level);
            const std::uint64_t start = block << shift_of(level);
            if (start < first.start) {
                const auto slot = static_cast<std::uint32_t>(block % 64);
                first = {start, heads::near_count + level * 64 + slot};
            }
        }
        return first;
    }

    heads* heads_ = nullptr;
    std::byte* first_ = nullptr;
    std::size_t stride_ = 0;
    std::uint64_t position_ = 0;  // all that is due up to here has left the levels
    std::uint64_t target_ = 0;    // the latest tick expire was told
    std::uint32_t count_ = 0;
    std::uint32_t armed_ = 0;
    bool expiring_ = false;
};

NETIO_END

#endif
