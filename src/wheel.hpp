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

/// Geometry, chosen by measurement. Level 0 has a list for each of the next 64 ticks. Level 1 has
/// 1,024 lists, each as wide as level 0: at a millisecond a tick it reaches 65 s, past every
/// default deadline, so that a timer is moved once, at most 64 ticks before it fires and thus still
/// in the cache then. The upper levels have 64 lists each, each as wide as the whole level below,
/// until all 64 bits of a tick are covered: there is no "too far". 25 KiB in all.
struct wheel_heads {
    static constexpr std::uint32_t tick_lists = 64;
    static constexpr std::uint32_t middle_lists = 1024;
    static constexpr std::uint32_t upper_levels = 8;
    static constexpr std::uint32_t middle_shift = 6;
    static constexpr std::uint32_t upper_shift = 16;

    static constexpr std::uint32_t first_middle = tick_lists;
    static constexpr std::uint32_t first_upper = first_middle + middle_lists;
    static constexpr std::uint32_t late_list = first_upper + upper_levels * 64;
    static constexpr std::uint32_t ready_list = late_list + 1;
    static constexpr std::uint32_t list_count = ready_list + 1;

    std::uint64_t summary;                        // bit w: words[w] is not 0
    std::uint64_t words[(list_count + 63) / 64];  // bit per list: it is not empty
    wheel_node lists[list_count];
};
static_assert(wheel_heads::middle_lists == 16 * 64, "next_middle turns 16 bits of the summary");
static_assert(wheel_heads::upper_shift + 6 * wheel_heads::upper_levels == 64);

}  // namespace detail

/// A hierarchical timing wheel over the caller's nodes. A tick is a std::uint64_t of any unit. One
/// thread.
///
/// Extending is free: an owner keeps its true deadline itself, and only stores there. When the
/// tick comes for which the node was armed, the callback answers with the later tick.
///
/// How it stays exact: everything due at or before `position` has left the levels. A node due at
/// most 64 ticks after it stands in the list of exactly its tick; any other stands in the lowest
/// level whose lists reach to its tick. The position never jumps over a list that holds something:
/// one of level 0 is moved aside to be fired, one of a higher level is taken apart into lower
/// levels just before its first tick. The bits make empty stretches cost nothing, so a jump of the
/// clock costs what is due, not what has passed.
class wheel {
    using heads = detail::wheel_heads;

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
        NETIO_ASSERT(index < count_);
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
        NETIO_ASSERT(index < count_);
        wheel_node& cancelled = node(index);
        if (cancelled.prev == 0) {
            return;
        }
        unlink(cancelled);
        cancelled.next = 0;
        cancelled.prev = 0;
        --armed_;
    }

    bool armed(std::uint32_t index) const noexcept {
        NETIO_ASSERT(index < count_);
        return node(index).prev != 0;
    }

    /// The tick for which `index` is armed; it must be.
    std::uint64_t due(std::uint32_t index) const noexcept {
        NETIO_ASSERT(armed(index));
        return node(index).due;
    }

    /// Moves the wheel's time to `now` and fires at most `most` nodes that are due: first those
    /// that were late when they were armed, then in the order of ticks; those of one tick come in
    /// no promised order. Each is disarmed, then `fire(index)` is called: it returns `done`, or the
    /// later tick for which the node is armed again, or has armed it itself. A node armed inside a
    /// callback for a tick already passed fires at the next call. A clock that went backwards is
    /// taken as one that stood.
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
            while (fired < most && holds(list_at(heads::ready_list))) {
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
    /// early after a cancel or move of a node due more than 64 ticks after the last expire. 0 if
    /// something is late or was left over, `never` if nothing is armed (or only for never).
    std::uint64_t next_due() const noexcept {
        if (armed_ == 0) {
            return never;
        }
        if (holds(list_at(heads::late_list)) || holds(list_at(heads::ready_list))) {
            return 0;
        }
        std::uint64_t earliest = next_tick();
        const stretch middle = next_middle();
        if (middle.start < earliest) {
            const std::uint64_t found = list_at(middle.list_index).due;
            earliest = found < earliest ? found : earliest;
        }
        for (std::uint32_t left = upper_filled(); left != 0; left &= left - 1) {
            const stretch upper = next_upper(static_cast<std::uint32_t>(std::countr_zero(left)));
            const std::uint64_t found = list_at(upper.list_index).due;
            earliest = found < earliest ? found : earliest;
        }
        return earliest;
    }

    /// True if expire(now) would find nothing: no tick has passed since the last one, which left
    /// nothing over, and nothing late was armed. Cheaper than that call.
    bool quiet_at(std::uint64_t now) const noexcept {
        return now <= target_ && position_ == target_ && !holds(list_at(heads::late_list)) &&
               !holds(list_at(heads::ready_list));
    }

    /// How many nodes are armed.
    std::uint32_t count() const noexcept { return armed_; }

private:
    // A link is index + 1 of the neighbour, or this bit and the number of the list at its two ends.
    // Never 0 while the node is armed. A list is a ring that runs through a node of its own: `next`
    // is its first, `prev` its last, and `due`, while it holds something, is no later than any due
    // in it (a cancel leaves it too early). Empty, its `next` is 0 or leads to itself.
    static constexpr std::uint32_t list_mark = 0x80000000;

    /// A list that is to be taken apart, and the first tick of its stretch.
    struct stretch {
        std::uint64_t start;  // never if there is none
        std::uint32_t list_index;
    };

    wheel_node& node(std::uint32_t index) const noexcept {
        NETIO_ASSERT_SLOW(index < count_);
        return *reinterpret_cast<wheel_node*>(first_ + stride_ * index);
    }
    wheel_node& list_at(std::uint32_t list_index) const noexcept {
        return heads_->lists[list_index];
    }

    /// The node or list that a link leads to, without a branch: which it is can't be guessed.
    wheel_node& link_at(std::uint32_t link) const noexcept {
        const bool is_list = (link & list_mark) != 0;
        std::byte* const first = is_list ? reinterpret_cast<std::byte*>(heads_->lists) : first_;
        const std::size_t stride = is_list ? sizeof(wheel_node) : stride_;
        const std::uint32_t index = is_list ? link & ~list_mark : link - 1;
        return *reinterpret_cast<wheel_node*>(first + stride * index);
    }
    /// Does the list hold a node? Neither 0 nor a mark does.
    /// A `next` of 0 wraps to the largest value.
    NETIO_WRAPS static bool holds(const wheel_node& list) noexcept {
        return list.next - 1 < list_mark - 1;
    }

    static std::uint32_t shift_of(std::uint32_t upper_level) noexcept {
        return heads::upper_shift + 6 * upper_level;
    }

    /// Links a node that is due after the position into its level.
    void place(wheel_node& placed, std::uint32_t index) noexcept {
        append(placed, index, list_for(placed.due));
    }

    std::uint32_t list_for(std::uint64_t due) const noexcept {
        NETIO_ASSERT_SLOW(due > position_);
        if (due - position_ <= heads::tick_lists) {
            return static_cast<std::uint32_t>(due % heads::tick_lists);
        }
        const std::uint64_t block = due >> heads::middle_shift;
        if (NETIO_LIKELY(block - (position_ >> heads::middle_shift) <= heads::middle_lists)) {
            return heads::first_middle + static_cast<std::uint32_t>(block % heads::middle_lists);
        }
        std::uint32_t level = 0;
        while ((due >> shift_of(level)) - (position_ >> shift_of(level)) > 64) {
            ++level;
        }
        NETIO_ASSERT(level < heads::upper_levels);
        return heads::first_upper + level * 64 +
               static_cast<std::uint32_t>((due >> shift_of(level)) % 64);
    }

    void append(wheel_node& added, std::uint32_t index, std::uint32_t list_index) noexcept {
        wheel_node& list = list_at(list_index);
        added.next = list_mark | list_index;
        if (!holds(list)) {
            added.prev = list_mark | list_index;
            list = {added.due, index + 1, index + 1};
            mark_filled(list_index);
            return;
        }
        added.prev = list.prev;
        node(list.prev - 1).next = index + 1;
        list.prev = index + 1;
        if (added.due < list.due) {
            list.due = added.due;
        }
    }

    /// Takes a node out of its list; its own links keep their old values.
    void unlink(const wheel_node& taken) noexcept {
        wheel_node& before = link_at(taken.prev);
        wheel_node& after = link_at(taken.next);
        before.next = taken.next;
        after.prev = taken.prev;
        if (&before == &after) {  // the list itself: it was the only one
            mark_empty(taken.next & ~list_mark);
        }
    }

    void mark_filled(std::uint32_t list_index) noexcept {
        heads_->words[list_index / 64] |= std::uint64_t{1} << (list_index % 64);
        heads_->summary |= std::uint64_t{1} << (list_index / 64);
    }

    void mark_empty(std::uint32_t list_index) noexcept {
        std::uint64_t& word = heads_->words[list_index / 64];
        word &= ~(std::uint64_t{1} << (list_index % 64));
        if (word == 0) {
            heads_->summary &= ~(std::uint64_t{1} << (list_index / 64));
        }
    }

    /// Appends a whole list to the one that is being fired.
    void take_aside(std::uint32_t list_index) noexcept {
        wheel_node& list = list_at(list_index);
        if (!holds(list)) {
            return;
        }
        constexpr std::uint32_t mark = list_mark | heads::ready_list;
        wheel_node& ready = list_at(heads::ready_list);
        const std::uint32_t last = holds(ready) ? ready.prev : mark;
        node(list.next - 1).prev = last;
        node(list.prev - 1).next = mark;
        link_at(last).next = list.next;
        ready.prev = list.prev;
        clear(list, list_index);
    }

    void clear(wheel_node& list, std::uint32_t list_index) noexcept {
        list = {0, 0, 0};
        mark_empty(list_index);
    }

    /// Unlinks and disarms the first node of those aside. Its `prev` is known, so this is quicker
    /// than unlink.
    std::uint32_t pop_ready() noexcept {
        wheel_node& ready = list_at(heads::ready_list);
        const std::uint32_t index = ready.next - 1;
        wheel_node& popped = node(index);
        const std::uint32_t next = popped.next;
        ready.next = next;
        if ((next & list_mark) == 0) {
            node(next - 1).prev = list_mark | heads::ready_list;
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
            const std::uint64_t tick = next_tick();
            const stretch coarse = next_stretch();
            if (tick > target_ && coarse.start > target_) {
                position_ = target_;
                return false;
            }
            if (tick < coarse.start) {
                position_ = tick;
                take_aside(static_cast<std::uint32_t>(tick % heads::tick_lists));
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
    /// stretch. Each is likely a cache miss, so a second walk comes from the back towards the first
    /// and only reads: the two wait for memory at the same time. May stop halfway: all stays true,
    /// and the next call goes on.
    bool take_apart(std::uint32_t list_index, std::uint32_t& moves_left) noexcept {
        wheel_node& list = list_at(list_index);
        std::uint32_t link = list.next;
        std::uint32_t fetched = list.prev;
        bool met = stride_ < 64;  // several to a cache line: a second walk costs more than it saves
        while ((link & list_mark) == 0) {
            const std::uint32_t index = link - 1;
            wheel_node& moved = node(index);
            if (moves_left == 0) {
                list.next = link;
                moved.prev = list_mark | list_index;
                return false;
            }
            --moves_left;
            if (!met) {
                fetched = fetched == link ? link : node(fetched - 1).prev;
                NETIO_PREFETCH(&node(fetched - 1));
                met = fetched == link;
            }
            link = moved.next;
            NETIO_ASSERT(moved.due > position_);
            place(moved, index);
        }
        clear(list, list_index);
        return true;
    }

    /// The first tick after the position whose list of level 0 holds something, or never.
    std::uint64_t next_tick() const noexcept {
        const std::uint64_t word = heads_->words[0];
        if (word == 0) {
            return never;
        }
        const std::uint64_t turned =
            std::rotr(word, static_cast<int>((position_ + 1) % heads::tick_lists));
        return position_ + 1 + static_cast<std::uint32_t>(std::countr_zero(turned));
    }

    /// The list of level 1 that comes first and holds something.
    NETIO_WRAPS stretch next_middle() const noexcept {  // all ones, shifted out at the top
        const auto filled = static_cast<std::uint16_t>(heads_->summary >> 1);
        if (filled == 0) {
            return {never, 0};
        }
        const std::uint64_t first = (position_ >> heads::middle_shift) + 1;
        const auto from = static_cast<std::uint32_t>(first % heads::middle_lists);
        const std::uint64_t* words = heads_->words + 1;
        std::uint32_t word = from / 64;
        std::uint64_t bits = words[word] & (~std::uint64_t{0} << (from % 64));
        if (bits == 0) {
            // The words after it in a circle; the last is its own again, now with its low bits.
            const auto turned = std::rotr(filled, static_cast<int>((word + 1) % 16));
            word = (word + 1 + static_cast<std::uint32_t>(std::countr_zero(turned))) % 16;
            bits = words[word];
        }
        const std::uint32_t slot = word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits));
        const std::uint64_t block = first + ((slot - from) % heads::middle_lists);
        return {block << heads::middle_shift, heads::first_middle + slot};
    }

    /// The list of an upper level, which must not be empty, that comes first and holds something.
    stretch next_upper(std::uint32_t level) const noexcept {
        const std::uint64_t word = heads_->words[heads::first_upper / 64 + level];
        const std::uint64_t first = (position_ >> shift_of(level)) + 1;
        const std::uint64_t turned = std::rotr(word, static_cast<int>(first % 64));
        const std::uint64_t block = first + static_cast<std::uint32_t>(std::countr_zero(turned));
        return {block << shift_of(level),
                heads::first_upper + level * 64 + static_cast<std::uint32_t>(block % 64)};
    }

    /// A bit for each upper level that holds something.
    std::uint32_t upper_filled() const noexcept {
        return static_cast<std::uint32_t>(heads_->summary >> (heads::first_upper / 64)) &
               ((1u << heads::upper_levels) - 1);
    }

    /// Of all higher levels' lists that hold something, the one whose stretch begins first.
    stretch next_stretch() const noexcept {
        stretch found = next_middle();
        for (std::uint32_t left = upper_filled(); left != 0; left &= left - 1) {
            const stretch upper = next_upper(static_cast<std::uint32_t>(std::countr_zero(left)));
            found = upper.start < found.start ? upper : found;
        }
        return found;
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
