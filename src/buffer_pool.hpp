// floor 3 · buffer_pool.hpp · buffers of one size, two quotas, wiped when given back
#ifndef NETIO_BUFFER_POOL_HPP
#define NETIO_BUFFER_POOL_HPP

#include "src/bytes.hpp"
#include "src/stats.hpp"

NETIO_BEGIN

/// Who a buffer is charged to: bytes from peers, or bytes on their way to peers.
enum class side : std::uint8_t { input, output };

/// A view over the caller's buffers, one a worker. Last given, first taken, so buffers stay hot;
/// buffers never used are handed out by a counter: nothing is touched before its first take.
///
/// Why no side can starve the other: with quotas I and O and B buffers,
///     I + O <= B                                      (attach asserts it)
///     in use by input <= I, in use by output <= O     (take and transfer refuse beyond it)
/// a side below its quota finds at least B - (I + O - 1) >= 1 buffer free. So input that fills its
/// quota can't keep a reply from being queued, and replies nobody reads can't keep bytes from being
/// read. A transfer moves a charge, not a buffer, and needs none free.
class buffer_pool {
public:
    /// `data` holds count * buffer_bytes bytes, `links` count words that are all zero. Touches
    /// neither. With `wipe` a buffer given back holds no byte of its user any more.
    void attach(std::byte* data, std::uint32_t* links, std::uint32_t count,
                std::uint32_t buffer_bytes, std::uint32_t input_quota, std::uint32_t output_quota,
                bool wipe) noexcept {
        NETIO_ASSERT((data != nullptr && links != nullptr) || count == 0);
        NETIO_ASSERT(count < link_taken - 1);
        NETIO_ASSERT(buffer_bytes != 0 || count == 0);
        NETIO_ASSERT(input_quota <= count && output_quota <= count - input_quota);
        *this = buffer_pool{};
        data_ = data;
        links_ = links;
        count_ = count;
        buffer_bytes_ = buffer_bytes;
        of(side::input).quota = input_quota;
        of(side::output).quota = output_quota;
        wipe_ = wipe;
    }

    /// Turns wiping on or off for what is given back from now on.
    void set_wiping(bool wanted) noexcept { wipe_ = wanted; }

    /// The index of a buffer that is charged to `who`, or none_index, counted as refused, when the
    /// quota is used up. Its bytes are zero with wiping, else whatever the last user left.
    std::uint32_t take(side who) noexcept {
        account& charged = of(who);
        if (charged.in_use >= charged.quota) {
            ++charged.refused;
            return none_index;
        }
        std::uint32_t index = 0;
        if (free_ != 0) {
            index = free_ - 1;
            free_ = links_[index];
        } else {
            NETIO_ASSERT(fresh_ < count_);  // the sum above
            index = fresh_++;
        }
        links_[index] = link_taken;
        charge(charged);
        return index;
    }

    /// Gives a buffer back, whoever took it, as one charge less for `who`. The user promises that
    /// no byte from `dirty_bytes` on was written. A buffer that is not taken asserts and, where
    /// asserts are off, is left alone, so no two users ever get the same one.
    void give(std::uint32_t index, side who, std::uint32_t dirty_bytes) noexcept {
        account& charged = of(who);
        const bool valid = taken(index) && charged.in_use != 0;
        NETIO_ASSERT(valid);
        if (!valid) {
            return;
        }
        NETIO_ASSERT(dirty_bytes <= buffer_bytes_);
        if (wipe_) {
            netio::wipe(data(index), dirty_bytes < buffer_bytes_ ? dirty_bytes : buffer_bytes_);
        }
        links_[index] = free_;
        free_ = index + 1;
        --charged.in_use;
    }

    /// A buffer changes sides: one charge moves. False, counted as refused, and nothing changed if
    /// the quota of `to` is used up.
    bool transfer(side from, side to) noexcept {
        account& source = of(from);
        account& target = of(to);
        NETIO_ASSERT(from != to);
        NETIO_ASSERT(source.in_use != 0);
        if (target.in_use >= target.quota) {
            ++target.refused;
            return false;
        }
        --source.in_use;
        charge(target);
        return true;
    }

    /// For a user that takes buffers in case they are needed: those that came back unused are no
    /// reason to make the pool larger. `before` is the high water of before it took them.
    void forget_unused(side who, std::uint32_t before) noexcept {
        account& charged = of(who);
        NETIO_ASSERT(before <= charged.high_water);
        charged.high_water = before < charged.in_use ? charged.in_use : before;
    }

    /// The first byte of buffer `index`, which must be taken.
    std::byte* data(std::uint32_t index) const noexcept {
        NETIO_ASSERT(taken(index));
        return data_ + static_cast<std::size_t>(buffer_bytes_) * index;
    }

    /// Is buffer `index` in somebody's hands? Any index may be given.
    bool taken(std::uint32_t index) const noexcept {
        return index < fresh_ && links_[index] == link_taken;
    }

    std::uint32_t buffer_bytes() const noexcept { return buffer_bytes_; }
    std::uint32_t count() const noexcept { return count_; }
    std::uint32_t quota(side who) const noexcept { return of(who).quota; }
    std::uint32_t in_use(side who) const noexcept { return of(who).in_use; }
    /// How many more `take(who)` would succeed now.
    std::uint32_t room(side who) const noexcept { return of(who).quota - of(who).in_use; }
    pool_stats stats(side who) const noexcept {
        const account& charged = of(who);
        return {who == side::input ? "input buffers" : "output buffers", charged.quota,
                charged.in_use, charged.high_water, charged.refused};
    }

private:
    struct account {
        std::uint32_t quota = 0;
        std::uint32_t in_use = 0;
        std::uint32_t high_water = 0;
        std::uint64_t refused = 0;
    };

    // A link is index + 1 of the next free buffer, 0 at the end of the list, or this.
    static constexpr std::uint32_t link_taken = 0xFFFFFFFF;

    account& of(side who) noexcept { return accounts_[static_cast<std::size_t>(who)]; }
    const account& of(side who) const noexcept { return accounts_[static_cast<std::size_t>(who)]; }
    static void charge(account& charged) noexcept {
        if (++charged.in_use > charged.high_water) {
            charged.high_water = charged.in_use;
        }
    }

    std::byte* data_ = nullptr;
    std::uint32_t* links_ = nullptr;
    std::uint32_t count_ = 0;
    std::uint32_t buffer_bytes_ = 0;
    std::uint32_t fresh_ = 0;  // buffers from here on were never used
    std::uint32_t free_ = 0;   // index + 1 of the last one given back, 0 for none
    account accounts_[2] = {};
    bool wipe_ = false;
};

NETIO_END

#endif
