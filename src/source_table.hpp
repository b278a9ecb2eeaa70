// floor 3 · source_table.hpp · how many connections each source has: exact, bounded, shared
#ifndef NETIO_SOURCE_TABLE_HPP
#define NETIO_SOURCE_TABLE_HPP

#include "platform/atomic.hpp"
#include "src/endpoint.hpp"
#include "src/sip_hash.hpp"
#include "src/stats.hpp"

#include <bit>

NETIO_BEGIN

namespace detail {

/// SipHash-1-3 of nine bytes, the prefix in little-endian order and the family: without the key
/// nobody can choose sources that share a place.
constexpr std::uint64_t hash_of(const source& from, const std::uint64_t (&key)[2]) noexcept {
    return sip_hash({from.prefix, std::uint64_t{9} << 56 | static_cast<std::uint64_t>(from.family)},
                    key);
}

}  // namespace detail

/// A view over the caller's words: connections of each source, counted by all workers at once
/// without a lock. A source has one of sixteen places, eight beside each other in each of two lines
/// of the cache that its hash names; the place holds 40 more bits of the hash and the count.
///
/// Two workers may put one source into two places at the same moment. So whoever counted looks
/// again: what stands in all places of a source together is never above its bound once `acquire`
/// has said yes.
///
/// `Atomic` is detail::atomic, see source_table below; a test puts other threads' steps between
/// ours.
template <template <class> class Atomic>
class basic_source_table {
    using word = Atomic<std::uint64_t>;
    static_assert(sizeof(word) == 8);

public:
    static constexpr std::uint32_t line_places = 8;
    static constexpr std::uint32_t connections_max = (1u << 24) - 1;  // of one source

    /// So many words for so many connections (fewer than 2^30): a power of two, twice as many at
    /// least, so that with each connection from a source of its own none is without a place (of 200
    /// full tables of up to 65,536 each, none had one).
    static constexpr std::uint32_t words_for(std::uint32_t connections) noexcept {
        return connections <= line_places ? 2 * line_places : std::bit_ceil(2 * connections);
    }

    /// `words` are `count` (as of `words_for`) 8-byte words, all zero, best at the begin of a line
    /// of the cache. `key` is random and secret. Before any other call.
    /// `one_thread`: only one counts, so nothing is locked and nothing looked at twice.
    void attach(std::byte* words, std::uint32_t count, std::uint64_t key_low,
                std::uint64_t key_high, bool one_thread = false) noexcept {
        static_assert(word::is_always_lock_free, "netio: 64-bit atomics without locks are needed");
        NETIO_ASSERT(words != nullptr && reinterpret_cast<std::uintptr_t>(words) % 8 == 0);
        NETIO_ASSERT(count >= 2 * line_places && (count & (count - 1)) == 0);
        words_ = reinterpret_cast<word*>(words);
        count_ = count;
        key_[0] = key_low;
        key_[1] = key_high;
        one_thread_ = one_thread;
    }

    /// One more connection of this source: the place it is counted in, to be given back once with
    /// `release`, or none_index if the source has `most` already. Any thread.
    ///
    /// A source that finds its sixteen places taken shares one count, bounded by the same `most`,
    /// with all others in that case: it is neither free of the bound nor shut out.
    std::uint32_t acquire(const source& from, std::uint32_t most) noexcept {
        NETIO_ASSERT(from.family != address_family::none);
        NETIO_ASSERT(most <= connections_max);
        const place_of at = places(from);
        for (std::uint32_t tries = 0; tries < tries_max; ++tries) {
            const found now = look(at);
            if (now.sum >= most) {
                break;
            }
            const std::uint32_t place = now.place != none_index ? now.place : now.free;
            if (place == none_index) {
                return acquire_shared(most);
            }
            std::uint64_t seen = now.value;
            const std::uint64_t wanted = now.place != none_index ? seen + 1 : at.tag << 24 | 1;
            if (one_thread_) {
                words_[place].store(wanted, detail::ordering::relaxed);
                return place;
            }
            if (!words_[place].compare_exchange_weak(seen, wanted)) {
                continue;
            }
            if (look(at).sum <= most) {
                return place;
            }
            release(place);
        }
        refused_.fetch_add(1, detail::ordering::relaxed);
        return none_index;
    }

    /// Gives back what `acquire` gave. Any thread. Nothing of a source stays once its last
    /// connection is gone.
    void release(std::uint32_t place) noexcept {
        NETIO_ASSERT(place <= count_);
        word& at = place == count_ ? shared_ : words_[place];
        std::uint64_t seen = at.load(detail::ordering::relaxed);
        NETIO_ASSERT((seen & count_mask) != 0);
        if (one_thread_ && place != count_) {
            at.store(one_less(seen), detail::ordering::relaxed);
            return;
        }
        while (!at.compare_exchange_weak(seen, one_less(seen))) {
        }
    }

    /// Connections of a source now. Any thread; what it says may be old by the time it is read.
    std::uint32_t count_of(const source& from) const noexcept { return look(places(from)).sum; }

    /// Places in use are counted as asked: for a report, not for each connection.
    pool_stats stats() const noexcept {
        std::uint32_t in_use = 0;
        for (std::uint32_t at = 0; at < count_; ++at) {
            in_use += words_[at].load(detail::ordering::relaxed) != 0 ? 1 : 0;
        }
        return {"sources", count_, in_use, in_use, refused_.load(detail::ordering::relaxed)};
    }
    /// Connections that are counted together for want of a place of their source's own.
    std::uint32_t without_place() const noexcept {
        return static_cast<std::uint32_t>(shared_.load(detail::ordering::relaxed));
    }

private:
    static constexpr std::uint64_t count_mask = connections_max;
    static constexpr std::uint32_t tries_max = 16;

    /// A place without its last connection is nobody's.
    static constexpr std::uint64_t one_less(std::uint64_t place) noexcept {
        return (place & count_mask) == 1 ? 0 : place - 1;
    }

    struct place_of {
        std::uint32_t first, second;  // lines, as their first place
        std::uint64_t tag;
    };
    struct found {
        std::uint32_t sum = 0;             // connections in all places of this source
        std::uint32_t place = none_index;  // the first of them
        std::uint32_t free = none_index;   // in the line with more free ones
        std::uint64_t value = 0;           // of `place`, else of `free`
    };

    place_of places(const source& from) const noexcept {
        const std::uint64_t hash = detail::hash_of(from, key_);
        const std::uint32_t lines = count_ / line_places;
        const auto first = static_cast<std::uint32_t>(hash) & (lines - 1);
        // The other one is never the same: the distance is odd and lines are a power of two.
        const auto apart = static_cast<std::uint32_t>(hash >> 32 & 0x1FFF) | 1;
        const std::uint32_t second = (first + apart) & (lines - 1);
        return {first * line_places, second * line_places, hash >> 24};
    }

    found look(const place_of& at) const noexcept {
        found out;
        std::uint32_t free_most = 0;
        for (const std::uint32_t line : {at.first, at.second}) {
            std::uint32_t free_count = 0;
            std::uint32_t free_place = none_index;
            for (std::uint32_t place = line; place < line + line_places; ++place) {
                const std::uint64_t value = words_[place].load();
                if (value == 0) {
                    ++free_count;
                    free_place = place;
                } else if (value >> 24 == at.tag) {
                    out.sum += static_cast<std::uint32_t>(value & count_mask);
                    if (out.place == none_index) {
                        out.place = place;
                        out.value = value;
                    }
                }
            }
            if (free_count > free_most) {
                free_most = free_count;
                out.free = free_place;
            }
        }
        return out;
    }

    NETIO_COLD std::uint32_t acquire_shared(std::uint32_t most) noexcept {
        std::uint64_t seen = shared_.load(detail::ordering::relaxed);
        while (seen < most) {
            if (shared_.compare_exchange_weak(seen, seen + 1)) {
                return count_;
            }
        }
        refused_.fetch_add(1, detail::ordering::relaxed);
        return none_index;
    }

    word* words_ = nullptr;
    std::uint32_t count_ = 0;
    std::uint64_t key_[2] = {};
    bool one_thread_ = false;
    // Zero by themselves. With an initialiser here g++ 12 leaves out the constructor it calls where
    // this is a member's member: an undefined reference.
    Atomic<std::uint64_t> shared_;
    Atomic<std::uint64_t> refused_;
};

using source_table = basic_source_table<detail::atomic>;

NETIO_END

#endif
