// floor 3 · slab.hpp · slots of one size with generations: take, give, stale ids found
#ifndef NETIO_SLAB_HPP
#define NETIO_SLAB_HPP

#include "src/stats.hpp"

NETIO_BEGIN

/// Stands at a fixed offset inside each slot. Zero is the initial state: free, never used.
/// The generation is even while the slot is free and odd while it is live, so a live one is never 0
/// (0 means "no id") and a second give is seen at once. `next` belongs to the slab while the slot
/// is free and to the owner, who finds 0 there, while it is live.
struct slot_header {
    std::uint32_t generation;
    std::uint32_t next;
};

/// A view over the caller's slots: last given, first taken, so slots stay hot. Slots never used are
/// handed out by a counter: nothing is touched before its first take. One thread.
class slab {
public:
    /// `first_header` is the header inside slot 0; the others follow at `stride` bytes. Slots must
    /// be all-zero. Touches none of them.
    void attach(std::byte* first_header, std::size_t stride, std::uint32_t count) noexcept {
        NETIO_ASSERT(first_header != nullptr || count == 0);
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(first_header) % alignof(slot_header) == 0);
        NETIO_ASSERT(stride >= sizeof(slot_header) && stride % alignof(slot_header) == 0);
        NETIO_ASSERT(count < none_index);
        *this = slab{};
        first_ = first_header;
        stride_ = stride;
        count_ = count;
    }

    /// The index of a slot that is live from now on, with a generation it never had before (within
    /// 2^31 lives), or none_index, counted as refused, when all are live.
    std::uint32_t take() noexcept {
        std::uint32_t index = 0;
        if (free_ != 0) {
            index = free_ - 1;
            free_ = header(index).next;
        } else if (fresh_ < count_) {
            index = fresh_++;
        } else {
            ++refused_;
            return none_index;
        }
        slot_header& taken = header(index);
        NETIO_ASSERT(taken.generation % 2 == 0);
        ++taken.generation;
        taken.next = 0;
        if (++in_use_ > high_water_) {
            high_water_ = in_use_;
        }
        return index;
    }

    /// Frees a live slot; ids of this life are stale from now on. A slot that is not live asserts
    /// and, where asserts are off, is left alone.
    NETIO_WRAPS void give(std::uint32_t index) noexcept {
        const bool was_live = is_live(index);
        NETIO_ASSERT(was_live);
        if (!was_live) {
            return;
        }
        slot_header& given = header(index);
        ++given.generation;  // odd to even; 0xFFFFFFFF wraps to 0, the next life is 1 again
        given.next = free_;
        free_ = index + 1;
        --in_use_;
    }

    /// Is slot `index` live, and in the life that `generation` names? Any numbers may be given:
    /// this is how ids from outside are checked.
    bool live(std::uint32_t index, std::uint32_t generation) const noexcept {
        return generation % 2 == 1 && index < fresh_ && header(index).generation == generation;
    }

    /// Is slot `index` live at all? Any index may be given.
    bool is_live(std::uint32_t index) const noexcept {
        return index < fresh_ && header(index).generation % 2 == 1;
    }

    /// The generation of slot `index`: odd while it is live, 0 if it was never used.
    std::uint32_t generation(std::uint32_t index) const noexcept {
        NETIO_ASSERT(index < count_);
        return index < fresh_ ? header(index).generation : 0;
    }

    /// Slots with an index below this were used at least once; above, memory is untouched.
    std::uint32_t used_end() const noexcept { return fresh_; }
    std::uint32_t capacity() const noexcept { return count_; }
    std::uint32_t in_use() const noexcept { return in_use_; }
    pool_stats stats(const char* name = "slots") const noexcept {
        return {name, count_, in_use_, high_water_, refused_};
    }

private:
    slot_header& header(std::uint32_t index) const noexcept {
        return *reinterpret_cast<slot_header*>(first_ + stride_ * index);
    }

    std::byte* first_ = nullptr;
    std::size_t stride_ = 0;
    std::uint32_t count_ = 0;
    std::uint32_t fresh_ = 0;  // slots from here on were never used
    std::uint32_t free_ = 0;   // index + 1 of the last slot given back, 0 for none
    std::uint32_t in_use_ = 0;
    std::uint32_t high_water_ = 0;
    std::uint64_t refused_ = 0;
};

NETIO_END

#endif
