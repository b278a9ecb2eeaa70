// floor 4 · rpc_store.hpp · pieces of a few sizes for bytes that outlive a call
#ifndef NETIO_RPC_STORE_HPP
#define NETIO_RPC_STORE_HPP

#include "src/bytes.hpp"
#include "src/carver.hpp"
#include "src/stats.hpp"

NETIO_BEGIN

namespace rpc {

/// So many pieces of so many bytes each.
struct piece_class {
    std::uint32_t piece_bytes;
    std::uint32_t count;

    constexpr bool operator==(const piece_class&) const noexcept = default;
};

inline constexpr std::uint32_t piece_classes_max = 4;

namespace detail {

/// The first bytes of a piece, mostly few: a constant is no call, and no piece is smaller.
NETIO_INLINE void wipe_piece(std::byte* at, std::size_t dirty_bytes) noexcept {
    if (NETIO_LIKELY(dirty_bytes <= 64)) {
        netio::wipe(at, 64);
    } else {
        netio::wipe(at, dirty_bytes);
    }
}

/// Pieces of one size: last given, first taken; those never used are handed out by a counter, so
/// nothing is touched before its first take.
class piece_pool {
public:
    void attach(std::byte* data, std::uint32_t* links, const piece_class& of) noexcept {
        data_ = data;
        links_ = links;
        count_ = of.count;
        piece_bytes_ = of.piece_bytes;
    }
    /// none_index, counted as refused: all are in use.
    std::uint32_t take() noexcept {
        std::uint32_t index = free_ - 1;
        if (NETIO_LIKELY(free_ != 0)) {
            free_ = links_[index];
        } else if (fresh_ != count_) {
            index = fresh_++;
        } else {
            ++refused_;
            return none_index;
        }
        links_[index] = link_taken;
        high_water_ = ++in_use_ > high_water_ ? in_use_ : high_water_;
        return index;
    }
    void give(std::uint32_t index) noexcept {
        NETIO_ASSERT_SLOW(index < fresh_ && links_[index] == link_taken);
        links_[index] = free_;
        free_ = index + 1;
        --in_use_;
    }
    std::byte* data(std::uint32_t index) const noexcept {
        NETIO_ASSERT_SLOW(index < fresh_ && links_[index] == link_taken);
        return data_ + std::size_t{piece_bytes_} * index;
    }
    std::uint32_t piece_bytes() const noexcept { return piece_bytes_; }
    std::uint32_t count() const noexcept { return count_; }
    pool_stats stats() const noexcept {
        return {"rpc pieces", count_, in_use_, high_water_, refused_};
    }

private:
    static constexpr std::uint32_t link_taken = 0xFFFFFFFF;

    std::byte* data_ = nullptr;
    std::uint32_t* links_ = nullptr;    // index + 1 of the next free one, or link_taken
    std::uint32_t count_ = 0;
    std::uint32_t piece_bytes_ = 0;
    std::uint32_t free_ = 0;
    std::uint32_t fresh_ = 0;
    std::uint32_t in_use_ = 0;
    std::uint32_t high_water_ = 0;
    std::uint64_t refused_ = 0;
};

/// Bytes that outlive a call, each in one contiguous piece of the smallest size that holds them and
/// has one free. One thread.
///
/// Why fixed sizes: taking and giving are a few instructions whatever happened before, and nothing
/// fragments: so many pieces of a size can always be had. The worst case is in the sizes alone: `n`
/// bytes take a whole piece, less than four times `n` above the smallest size where each is four
/// times the one before, and bytes above the largest size have no place at all.
class piece_store {
public:
    /// Bytes of memory for these classes, which are sorted by size.
    static constexpr std::size_t bytes_needed(std::span<const piece_class> classes) noexcept {
        netio::detail::carver room;
        for (const piece_class& one : classes) {
            room.take(one.count, sizeof(std::uint32_t), 64);
            room.take(one.count, one.piece_bytes, 64);
        }
        return room.used();
    }

    /// `memory` is all zero, begins at a multiple of 64 and holds `bytes_needed(classes)`.
    void attach(std::byte* memory, std::span<const piece_class> classes) noexcept {
        NETIO_ASSERT(classes.size() <= piece_classes_max);
        netio::detail::carver room;
        count_ = static_cast<std::uint32_t>(classes.size());
        for (std::uint32_t at = 0; at < count_; ++at) {
            const piece_class& one = classes[at];
            NETIO_ASSERT(at == 0 || classes[at - 1].piece_bytes < one.piece_bytes);
            NETIO_ASSERT(one.piece_bytes % 64 == 0);
            std::byte* const links = memory + room.take(one.count, sizeof(std::uint32_t), 64);
            std::byte* const data = memory + room.take(one.count, one.piece_bytes, 64);
            pools_[at].attach(data, reinterpret_cast<std::uint32_t*>(links), one);
        }
        bytes_max_ = count_ != 0 ? classes.back().piece_bytes : 0;
    }
    /// The most that one piece holds.
    std::uint32_t bytes_max() const noexcept { return bytes_max_; }

    /// A piece of at least so many bytes, or none_index: no size is large enough, or all such are
    /// in use. Messages have half of each size, and one at least: what waits in channels never
    /// keeps calls from being made.
    std::uint32_t take(std::size_t bytes_wanted, bool for_message = false) noexcept {
        for (std::uint32_t at = 0; at < count_; ++at) {
            const bool may = !for_message || messages_[at] < (pools_[at].count() + 1) / 2;
            if (bytes_wanted <= pools_[at].piece_bytes() && may) {
                const std::uint32_t index = pools_[at].take();
                if (NETIO_LIKELY(index != none_index)) {
                    messages_[at] += for_message ? 1 : 0;
                    return at << class_shift | index;
                }
            }
        }
        return none_index;
    }
    void give_of_message(std::uint32_t piece, std::uint32_t dirty_bytes) noexcept {
        --messages_[piece >> class_shift];
        give(piece, dirty_bytes);
    }
    /// Is it of a size that holds so many bytes?
    bool holds(std::uint32_t piece, std::size_t bytes_wanted) const noexcept {
        return bytes_wanted <= pools_[piece >> class_shift].piece_bytes();
    }
    /// And of no larger one than such a take asks for first?
    bool is_made_for(std::uint32_t piece, std::size_t bytes_wanted) const noexcept {
        const std::uint32_t at = piece >> class_shift;
        return holds(piece, bytes_wanted) &&
               (at == 0 || bytes_wanted > pools_[at - 1].piece_bytes());
    }
    /// A piece with a copy of `from` in it, or none_index.
    std::uint32_t keep(bytes from) noexcept {
        const std::uint32_t piece = take(from.size());
        if (piece != none_index && !from.empty()) {
            std::memcpy(data(piece), from.data(), from.size());
        }
        return piece;
    }
    /// Gives back a piece of which no more than `dirty_bytes` at its begin were written, wiped.
    void give(std::uint32_t piece, std::uint32_t dirty_bytes) noexcept {
        wipe_piece(data(piece), dirty_bytes);
        pools_[piece >> class_shift].give(index_of(piece));
    }
    std::byte* data(std::uint32_t piece) const noexcept {
        return pools_[piece >> class_shift].data(index_of(piece));
    }

    std::uint32_t class_count() const noexcept { return count_; }
    /// Of each size: pieces in all, in use, the most in use at once, and how often none was free.
    pool_stats stats(std::uint32_t at) const noexcept {
        NETIO_ASSERT(at < count_);
        return pools_[at].stats();
    }

private:
    static constexpr std::uint32_t class_shift = 28;

    static constexpr std::uint32_t index_of(std::uint32_t piece) noexcept {
        return piece & ((1u << class_shift) - 1);
    }

    std::uint32_t count_ = 0;
    std::uint32_t bytes_max_ = 0;
    std::uint32_t messages_[piece_classes_max] = {};
    piece_pool pools_[piece_classes_max];
};

}  // namespace detail

}  // namespace rpc

NETIO_END

#endif
