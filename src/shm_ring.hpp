// floor 3 · shm_ring.hpp · rings in memory shared with a process that may write anything into it
#ifndef NETIO_SHM_RING_HPP
#define NETIO_SHM_RING_HPP

#include "platform/atomic.hpp"
#include "src/bytes.hpp"

NETIO_BEGIN

/// How a segment is divided: a page of words, then two rings, the first written by side 0, the
/// second by side 1.
struct shm_layout {
    std::uint32_t ring_bytes = 2u << 20;    ///< of each: a power of two, 64 to 2^30
    std::uint32_t record_max = 0;           ///< at most half a ring less 8; 0: that

    static constexpr std::uint32_t page_bytes = 4096;
    static constexpr std::uint32_t ring_bytes_least = 64;
    static constexpr std::uint32_t ring_bytes_most = 1u << 30;

    constexpr bool valid() const noexcept {
        return ring_bytes >= ring_bytes_least && ring_bytes <= ring_bytes_most &&
               (ring_bytes & (ring_bytes - 1)) == 0 && record_max <= ring_bytes / 2 - 8;
    }
    /// Of a valid layout: the longest record.
    constexpr std::uint32_t longest() const noexcept {
        return record_max != 0 ? record_max : ring_bytes / 2 - 8;
    }
    constexpr std::uint64_t segment_bytes() const noexcept {
        return page_bytes + 2 * std::uint64_t{ring_bytes};
    }
};

/// What a side sleeps for.
struct shm_wants {
    static constexpr std::uint32_t record = 1;
    static constexpr std::uint32_t room = 2;
    static constexpr std::uint32_t both = record | room;
};

namespace detail {

/// The first page of a segment. Every word is of 32 bits, so a process of 32 bits and one of 64
/// have the same. Words that different sides write lie 128 bytes apart: two lines of the cache, for
/// some processors fetch them in pairs.
template <template <class> class Atomic>
struct shm_page {
    using word = Atomic<std::uint32_t>;
    static_assert(sizeof(word) == 4);
    // Without an instruction for it there would be a lock, and that would be each process's own.
    static_assert(word::is_always_lock_free);

    static constexpr std::uint32_t known_magic = 0x6F69746E;    // "ntio"
    static constexpr std::uint32_t known_version = 1;

    struct side {
        alignas(128) word asleep;    // shm_wants of its owner; the other side takes bits away
        alignas(128) word epoch;     // how often somebody came or left
        word process_id;             // 0: nobody, or it has left
    };
    struct ring {
        alignas(128) word tail;    // the writer's
        alignas(128) word head;    // the reader's
    };

    word magic;
    word version;
    word ring_bytes;
    word record_max;
    side sides[2];
    ring rings[2];
};
static_assert(sizeof(shm_page<atomic>) == 1152 && sizeof(shm_page<atomic>::side) == 256);

/// A record is a head of eight bytes, of which the first four are its length, its bytes, and what
/// was there before up to a multiple of eight. None lies across the end of the ring: what is left
/// there is skipped by a record that is only a head.
template <template <class> class Atomic>
struct shm_shape {
    using word = Atomic<std::uint32_t>;
    static constexpr std::uint32_t head_bytes = 8;
    static constexpr std::uint32_t skipped = 1u << 31;

    std::byte* data = nullptr;
    std::uint32_t capacity = 0;
    std::uint32_t record_max = 0;

    static constexpr std::uint32_t taken_by(std::uint32_t bytes_count) noexcept {
        return head_bytes + (bytes_count + 7) / 8 * 8;
    }
    static constexpr std::uint32_t little(std::uint32_t value) noexcept {
        return std::endian::native == std::endian::little ? value : swap_bytes(value);
    }
    std::uint32_t left_from(std::uint32_t at) const noexcept {
        return capacity - (at & (capacity - 1));
    }
    std::byte* place(std::uint32_t at) const noexcept { return data + (at & (capacity - 1)); }
    /// An atomic word, for the compiler might read a plain one twice: once to look at, once to use.
    word& head_at(std::uint32_t at) const noexcept { return *reinterpret_cast<word*>(place(at)); }
    mutable_bytes content(std::uint32_t at, std::uint32_t bytes_count) const noexcept {
        return {place(at) + head_bytes, bytes_count};
    }
    /// Can a writer be here and its reader there?
    NETIO_WRAPS bool fit(std::uint32_t tail, std::uint32_t head) const noexcept {
        return tail % 8 == 0 && head % 8 == 0 && tail - head <= capacity;
    }
};

}  // namespace detail

/// The writing half of one ring. Positions count bytes modulo 2^32 and are its own: the published
/// one is read once, when it takes the place of a writer that died, and never again. What the
/// reader publishes is read once each time and has to be possible, or the ring is broken for good.
template <template <class> class Atomic>
class basic_shm_writer {
    using shape = detail::shm_shape<Atomic>;
    using words = typename detail::shm_page<Atomic>::ring;

public:
    /// Goes on where the words say that the writer before it stopped. A record that it had not
    /// committed is written over.
    void attach(words& shared, const shape& of) noexcept {
        shared_ = &shared;
        shape_ = of;
        at_ = shared.tail.load(detail::ordering::relaxed);
        seen_ = shared.head.load(detail::ordering::acquire);
        broken_ = !shape_.fit(at_, seen_);
    }

    /// Room for a record of up to so many bytes, at least 1; empty: more than a record may have,
    /// full just now, or broken. A second claim before the commit takes the place of the first.
    NETIO_WRAPS ring_claim claim(std::uint32_t bytes_count) noexcept {
        std::uint32_t skip = 0;
        if (!has_room(bytes_count, skip)) {
            return {};
        }
        if (skip != 0) {
            shape_.head_at(at_).store(shape::little(shape::skipped), detail::ordering::relaxed);
        }
        return {shape_.content(at_ + skip, bytes_count), at_ + skip};
    }
    /// The record is so many bytes, at least 1 and no more than were claimed; the reader may have
    /// it from now on.
    NETIO_WRAPS void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        NETIO_ASSERT(bytes_count != 0 && bytes_count <= what.room.size());
        const auto begin = static_cast<std::uint32_t>(what.at);
        shape_.head_at(begin).store(shape::little(bytes_count), detail::ordering::relaxed);
        at_ = begin + shape::taken_by(bytes_count);
        shared_->tail.store(at_, detail::ordering::release);
    }
    /// Would a claim of so many bytes be given room?
    bool has_room(std::uint32_t bytes_count) noexcept {
        std::uint32_t skip = 0;
        return has_room(bytes_count, skip);
    }
    bool broken() const noexcept { return broken_; }

private:
    NETIO_WRAPS bool has_room(std::uint32_t bytes_count, std::uint32_t& skip) noexcept {
        if (bytes_count == 0 || bytes_count > shape_.record_max || broken_) {
            return false;
        }
        const std::uint32_t taken = shape::taken_by(bytes_count);
        const std::uint32_t left = shape_.left_from(at_);
        skip = left < taken ? left : 0;
        return fits(skip + taken) || (look() && fits(skip + taken));
    }
    NETIO_WRAPS bool fits(std::uint32_t taken) const noexcept {
        return shape_.capacity - (at_ - seen_) >= taken;
    }
    /// A reader only goes on, and no further than it was given.
    NETIO_WRAPS bool look() noexcept {
        const std::uint32_t head = shared_->head.load(detail::ordering::acquire);
        broken_ = head % 8 != 0 || at_ - head > at_ - seen_;
        seen_ = head;
        return !broken_;
    }

    words* shared_ = nullptr;
    shape shape_{};
    std::uint32_t at_ = 0;
    std::uint32_t seen_ = 0;    // where the reader was when last looked
    bool broken_ = true;
};

/// The reading half of one ring. Whatever the other process writes, and whenever: `peek` gives
/// bytes inside the ring, or a copy of them, or breaks.
template <template <class> class Atomic>
class basic_shm_reader {
    using shape = detail::shm_shape<Atomic>;
    using words = typename detail::shm_page<Atomic>::ring;

public:
    /// Goes on where the words say that the reader before it stopped: what it had not released is
    /// read again. Each record is copied to `inbox`, which has room for the longest; where `inbox`
    /// is empty it is lent where it lies, and the other process can change it while it is read.
    void attach(words& shared, const shape& of, mutable_bytes inbox) noexcept {
        NETIO_ASSERT(inbox.empty() || inbox.size() >= of.record_max);
        shared_ = &shared;
        shape_ = of;
        inbox_ = inbox.data();
        held_ = {};
        at_ = shared.head.load(detail::ordering::relaxed);
        seen_ = at_;
        broken_ = at_ % 8 != 0;
        look();
    }

    /// The oldest record, the same one until `release`; empty: there is none, or the ring is
    /// broken.
    NETIO_WRAPS bytes peek() noexcept {
        if (!held_.empty() || broken_ || (at_ == seen_ && !look())) {
            return held_;
        }
        std::uint32_t count = length_at(at_);
        if (count == shape::skipped) {
            // The writer publishes a skip together with the record behind it.
            if (shape_.left_from(at_) >= seen_ - at_) {
                return break_off();
            }
            at_ += shape_.left_from(at_);
            count = length_at(at_);
        }
        if (count == 0 || count > shape_.record_max ||
            shape::taken_by(count) > seen_ - at_ ||
            shape::taken_by(count) > shape_.left_from(at_)) {
            return break_off();
        }
        next_ = at_ + shape::taken_by(count);
        held_ = shape_.content(at_, count);
        if (inbox_ != nullptr) {
            std::memcpy(inbox_, held_.data(), count);
            held_ = {inbox_, count};
        }
        return held_;
    }
    /// Gives back what `peek` gave.
    void release() noexcept {
        NETIO_ASSERT(!held_.empty());
        held_ = {};
        at_ = next_;
        shared_->head.store(at_, detail::ordering::release);
    }
    bool broken() const noexcept { return broken_; }

private:
    std::uint32_t length_at(std::uint32_t at) const noexcept {
        return shape::little(shape_.head_at(at).load(detail::ordering::relaxed));
    }
    /// Is there something? A writer only goes on, and never over what is not released.
    NETIO_WRAPS bool look() noexcept {
        const std::uint32_t tail = shared_->tail.load(detail::ordering::acquire);
        broken_ = broken_ || !shape_.fit(tail, at_);
        seen_ = broken_ ? seen_ : tail;
        return at_ != seen_;
    }
    NETIO_COLD bytes break_off() noexcept {
        broken_ = true;
        return {};
    }

    words* shared_ = nullptr;
    shape shape_{};
    std::byte* inbox_ = nullptr;
    bytes held_{};
    std::uint32_t at_ = 0;
    std::uint32_t seen_ = 0;    // what the writer has published when last looked
    std::uint32_t next_ = 0;    // after the record that is held
    bool broken_ = true;
};

/// One of the two processes of a segment: it writes one ring and reads the other. No system call is
/// made here: the caller maps the memory, sleeps, and wakes the other side where it is told to.
///
/// Sleep: a side says what it wants, looks again, and sleeps on `own_word`. The other side, after a
/// commit or a release, takes that bit away, and if it was set it wakes. Both are one exchange of
/// one word: if the sleeper's comes first the other side finds the bit, else the sleeper finds the
/// record.
template <template <class> class Atomic>
class basic_shm_side {
    using page = detail::shm_page<Atomic>;

public:
    using word = typename page::word;

    /// Divides new memory, all zero, of at least `of.segment_bytes()`, on a line of 128 bytes.
    static void lay_out(std::byte* memory, const shm_layout& of) noexcept {
        NETIO_ASSERT(of.valid());
        page& to = page_of(memory);
        to.version.store(page::known_version, detail::ordering::relaxed);
        to.ring_bytes.store(of.ring_bytes, detail::ordering::relaxed);
        to.record_max.store(of.longest(), detail::ordering::relaxed);
        to.magic.store(page::known_magic, detail::ordering::release);
    }

    /// Comes in as side 0 or 1, alone or in place of one that is dead: two live ones with the same
    /// number would write over each other. `memory` is of `bytes_count` bytes, whatever is in it.
    /// error::rpc_transport: not such a segment, or one that is broken already. An inbox shorter
    /// than its records: error::memory_too_small.
    error attach(std::byte* memory, std::size_t bytes_count, std::uint32_t side,
                 std::uint32_t process_id, mutable_bytes inbox) noexcept {
        NETIO_ASSERT(side < 2 && process_id != 0);
        const result<shm_layout> found = read_layout(memory, bytes_count);
        if (!found) {
            return found.why;
        }
        if (!inbox.empty() && inbox.size() < found.value.record_max) {
            return error::memory_too_small;
        }
        page& shared = page_of(memory);
        const auto shape_of = [&](std::uint32_t which) {
            return detail::shm_shape<Atomic>{
                memory + shm_layout::page_bytes + std::size_t{which} * found.value.ring_bytes,
                found.value.ring_bytes, found.value.record_max};
        };
        writer_.attach(shared.rings[side], shape_of(side));
        reader_.attach(shared.rings[1 - side], shape_of(1 - side), inbox);
        if (broken()) {
            return error::rpc_transport;
        }
        record_max_ = found.value.record_max;
        own_ = &shared.sides[side];
        peer_ = &shared.sides[1 - side];
        awake();
        own_->process_id.store(process_id, detail::ordering::relaxed);
        own_->epoch.fetch_add(1, detail::ordering::release);
        owed_ = shm_wants::both;
        return error::none;
    }
    /// Tells the other side that nobody is here any more.
    void leave() noexcept {
        own_->process_id.store(0, detail::ordering::relaxed);
        own_->epoch.fetch_add(1, detail::ordering::release);
        owed_ = shm_wants::both;
    }

    /// As those of the halves; after a breach in either there is neither room nor record.
    ring_claim claim(std::uint32_t bytes_count) noexcept {
        return reader_.broken() ? ring_claim{} : writer_.claim(bytes_count);
    }
    void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        writer_.commit(what, bytes_count);
        owed_ |= shm_wants::record;
    }
    bytes peek() noexcept { return writer_.broken() ? bytes{} : reader_.peek(); }
    void release() noexcept {
        reader_.release();
        owed_ |= shm_wants::room;
    }
    bool has_room(std::uint32_t bytes_count) noexcept { return writer_.has_room(bytes_count); }
    std::uint32_t record_max() const noexcept { return record_max_; }
    bool broken() const noexcept { return writer_.broken() || reader_.broken(); }

    /// After commits and releases: does the other side sleep for one of them? Then wake it.
    bool must_wake() noexcept {
        const std::uint32_t told = owed_;
        owed_ = 0;
        return told != 0 &&
               (peer_->asleep.fetch_and(~told, detail::ordering::release) & told) != 0;
    }
    /// Look for all of it once more after this, and sleep only then.
    void announce_sleep(std::uint32_t wants) noexcept {
        own_->asleep.exchange(wants, detail::ordering::acquire);
    }
    /// An exchange here, too: after a store the next sleep would not see what came before the last
    /// wake.
    void awake() noexcept { own_->asleep.exchange(0, detail::ordering::relaxed); }
    word& own_word() const noexcept { return own_->asleep; }
    word& peer_word() const noexcept { return peer_->asleep; }

    /// What the other side says of itself. Nothing here depends on it.
    std::uint32_t peer_epoch() const noexcept {
        return peer_->epoch.load(detail::ordering::acquire);
    }
    std::uint32_t peer_process() const noexcept {
        return peer_->process_id.load(detail::ordering::relaxed);
    }

private:
    static page& page_of(std::byte* memory) noexcept {
        NETIO_ASSERT(memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % 128 == 0);
        return *reinterpret_cast<page*>(memory);
    }
    /// Each field read once, and what is looked at is what is used.
    static result<shm_layout> read_layout(std::byte* memory, std::size_t bytes_count) noexcept {
        if (bytes_count < shm_layout::page_bytes) {
            return error::rpc_transport;
        }
        const page& from = page_of(memory);
        if (from.magic.load(detail::ordering::acquire) != page::known_magic ||
            from.version.load(detail::ordering::relaxed) != page::known_version) {
            return error::rpc_transport;
        }
        const shm_layout found{from.ring_bytes.load(detail::ordering::relaxed),
                               from.record_max.load(detail::ordering::relaxed)};
        if (!found.valid() || found.record_max == 0 || found.segment_bytes() > bytes_count) {
            return error::rpc_transport;
        }
        return found;
    }

    basic_shm_writer<Atomic> writer_;
    basic_shm_reader<Atomic> reader_;
    typename page::side* own_ = nullptr;
    typename page::side* peer_ = nullptr;
    std::uint32_t owed_ = 0;    // what the other side has not been told of
    std::uint32_t record_max_ = 0;
};

using shm_side = basic_shm_side<detail::atomic>;

NETIO_END

#endif
