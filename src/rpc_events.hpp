// floor 4 · rpc_events.hpp · what a kernel did: a ring of records, counters that never miss one
#ifndef NETIO_RPC_EVENTS_HPP
#define NETIO_RPC_EVENTS_HPP

#include "src/bytes.hpp"

NETIO_BEGIN

namespace rpc {

/// The first fifteen are those of Active RPC, `call_refused` is ours. What stands in `subject` and
/// `detail` of a record is named behind each.
enum class event_kind : std::uint16_t {
    capability_minted,        ///< capability, provider
    capability_retained,      ///< capability, handles now
    capability_released,      ///< capability, handles now
    capability_dropped,       ///< capability, object
    capability_revoked,       ///< capability, provider
    lane_created,             ///< lane, how many pending calls it may have
    lane_destroyed,           ///< lane, calls completed
    call_queued,              ///< promise, lane; `also` is the capability
    batch_dispatched,         ///< provider, jobs; `also` is the lanes
    job_completed,            ///< promise, lane
    promise_resolved,         ///< promise, bytes of the result
    promise_rejected,         ///< promise; `code` says why
    channel_sent,             ///< channel, sequence number
    channel_received,         ///< channel, sequence number
    capability_transferred,   ///< channel, sequence number; `also` is the capability
    call_refused,             ///< lane; `code` says why, `also` is the capability
    count_
};

/// One thing that happened. Names are what the kernel's functions take and give, as numbers.
struct event_record {
    std::uint64_t tick;      ///< what `kernel::set_tick` said last
    std::uint64_t subject;
    std::uint64_t detail;
    std::uint32_t also;
    event_kind kind;
    std::uint16_t code;      ///< an rpc_code, of what was refused or rejected
};
static_assert(sizeof(event_record) == 32);

/// The last so many records, the oldest overwritten, and exact counts of all. One thread.
class event_log {
public:
    /// `records` are `count` of them, a power of two or 0: then things are only counted.
    void attach(event_record* records, std::uint32_t count) noexcept {
        NETIO_ASSERT((count & (count - 1)) == 0);
        records_ = records;
        count_ = count;
    }

    void set_tick(std::uint64_t tick) noexcept { tick_ = tick; }
    NETIO_INLINE void record(event_kind kind, std::uint64_t subject, std::uint64_t detail,
                             std::uint32_t also = 0, std::uint16_t code = 0) noexcept {
        ++counts_[static_cast<std::size_t>(kind)];
        if (NETIO_LIKELY(count_ != 0)) {
            records_[total_ & (count_ - 1)] = {tick_, subject, detail, also, kind, code};
        }
        ++total_;
    }

    /// How often that happened, overwritten records included.
    std::uint64_t count(event_kind kind) const noexcept {
        return counts_[static_cast<std::size_t>(kind)];
    }
    /// Records in all; the last `kept()` of them are still there.
    std::uint64_t total() const noexcept { return total_; }
    std::uint32_t kept() const noexcept {
        return total_ < count_ ? static_cast<std::uint32_t>(total_) : count_;
    }
    std::uint64_t overwritten() const noexcept { return total_ - kept(); }
    /// Record number `number` since the start, which must be one of the last `kept()`.
    const event_record& at(std::uint64_t number) const noexcept {
        NETIO_ASSERT(number < total_ && total_ - number <= count_);
        return records_[number & (count_ - 1)];
    }

private:
    event_record* records_ = nullptr;
    std::uint32_t count_ = 0;
    std::uint64_t tick_ = 0;
    std::uint64_t total_ = 0;
    std::uint64_t counts_[static_cast<std::size_t>(event_kind::count_)] = {};
};

}  // namespace rpc

NETIO_END

#endif
