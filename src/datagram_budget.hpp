// floor 3 · datagram_budget.hpp · what UDP sources may take, and what may be sent to strangers
#ifndef NETIO_DATAGRAM_BUDGET_HPP
#define NETIO_DATAGRAM_BUDGET_HPP

#include "src/endpoint.hpp"
#include "src/sip_hash.hpp"
#include "src/stats.hpp"

#include <bit>
#include <cstring>

NETIO_BEGIN

namespace detail {

/// A stretch of time, exact for a rate: nanoseconds, and the part of one that is left over, of
/// which `rate` are one. So roundings don't add up, however many datagrams come.
struct token_time {
    std::uint64_t ns = 0;
    std::uint32_t rest = 0;

    constexpr bool operator<=(const token_time& other) const noexcept {
        return ns < other.ns || (ns == other.ns && rest <= other.rest);
    }
};

/// A token bucket: `rate` a second, and `burst` at once when it is full. A rate of 0 bounds
/// nothing.
struct token_rate {
    std::uint32_t rate = 0;
    token_time burst{};
    token_time one{};

    static constexpr token_rate of(std::uint32_t rate, std::uint32_t burst) noexcept {
        token_rate out;
        out.rate = rate;
        if (rate != 0) {
            out.burst = out.cost(burst);
            out.one = out.cost(1);
        }
        return out;
    }
    /// How long the bucket takes to fill by so many.
    constexpr token_time cost(std::uint32_t count) const noexcept {
        const std::uint64_t all = std::uint64_t{count} * 1'000'000'000;
        return {all / rate, static_cast<std::uint32_t>(all % rate)};
    }
    /// When the bucket is full again if so much is taken from one that is full at `full`.
    constexpr token_time after(token_time full, token_time taken, std::uint64_t now_ns)
        const noexcept {
        if (full.ns < now_ns) {
            full = {now_ns, 0};
        }
        const std::uint64_t rest = std::uint64_t{full.rest} + taken.rest;
        const bool carry = rest >= rate;
        return {full.ns + taken.ns + (carry ? 1 : 0),
                static_cast<std::uint32_t>(carry ? rest - rate : rest)};
    }
    constexpr bool holds(const token_time& full_again, std::uint64_t now_ns) const noexcept {
        return token_time{full_again.ns - now_ns, full_again.rest} <= burst;
    }
};

/// A budget: datagrams and their bytes.
struct datagram_pace {
    token_rate datagrams;
    token_rate bytes;

    constexpr bool bounds() const noexcept { return datagrams.rate != 0 || bytes.rate != 0; }
};

/// What a budget has left, kept as the moments at which its two buckets are full. All-zero: all.
struct datagram_buckets {
    std::uint64_t datagrams_full_ns;
    std::uint64_t bytes_full_ns;
    std::uint32_t datagrams_rest;
    std::uint32_t bytes_rest;

    /// Nothing to remember: as good as one never used.
    bool idle(std::uint64_t now_ns) const noexcept {
        return token_time{datagrams_full_ns, datagrams_rest} <= token_time{now_ns, 0} &&
               token_time{bytes_full_ns, bytes_rest} <= token_time{now_ns, 0};
    }
    /// Takes one datagram of `count` bytes from this copy. False: one of the two has not enough,
    /// and the copy is to be thrown away.
    bool take(const datagram_pace& from, std::uint32_t count, std::uint64_t now_ns) noexcept {
        if (from.datagrams.rate != 0) {
            const token_time full = from.datagrams.after({datagrams_full_ns, datagrams_rest},
                                                         from.datagrams.one, now_ns);
            if (!from.datagrams.holds(full, now_ns)) {
                return false;
            }
            datagrams_full_ns = full.ns;
            datagrams_rest = full.rest;
        }
        if (from.bytes.rate != 0) {
            const token_time full = from.bytes.after({bytes_full_ns, bytes_rest},
                                                     from.bytes.cost(count), now_ns);
            if (!from.bytes.holds(full, now_ns)) {
                return false;
            }
            bytes_full_ns = full.ns;
            bytes_rest = full.rest;
        }
        return true;
    }
};

/// Bytes that may be sent to an address because it sent some: each is there until it is spent, or
/// the window after the one it was earned in is over. All-zero: none.
struct datagram_credit {
    std::uint64_t gone_ns;   // when all of it is over: the end of the window after `fresh`'s
    std::uint32_t fresh;     // of the last window in which anything was earned
    std::uint32_t earlier;   // of the one before; older is spent first, so 0 where `fresh` is 0

    bool idle(std::uint64_t now_ns) const noexcept { return fresh == 0 || now_ns >= gone_ns; }

    /// In the window that ends at `window_ends_ns`. What no longer fits a word is lost.
    void earn(std::uint64_t count, std::uint64_t window_ends_ns, std::uint64_t window_ns) noexcept {
        const std::uint64_t gone = window_ends_ns + window_ns;
        if (gone_ns != gone) {
            earlier = gone_ns == window_ends_ns ? fresh : 0;
            fresh = 0;
            gone_ns = gone;
        }
        const std::uint64_t sum = fresh + count;
        fresh = sum < most ? static_cast<std::uint32_t>(sum) : most;
    }
    bool spend(std::uint64_t count, std::uint64_t now_ns, std::uint64_t window_ns) noexcept {
        if (idle(now_ns)) {
            return false;
        }
        if (now_ns >= gone_ns - window_ns) {
            earlier = 0;
        }
        if (count > std::uint64_t{earlier} + fresh) {
            return false;
        }
        const auto whole = static_cast<std::uint32_t>(count);
        const std::uint32_t old = whole < earlier ? whole : earlier;
        earlier -= old;
        fresh -= whole - old;
        return true;
    }

private:
    static constexpr std::uint32_t most = 0xFFFFFFFF;
};

/// An exact address, with its port: what it earned, and until when it counts as proven.
struct datagram_address {
    datagram_credit credit;
    std::uint64_t proven_until_ns;

    bool proven(std::uint64_t now_ns) const noexcept { return now_ns < proven_until_ns; }
    bool idle(std::uint64_t now_ns) const noexcept {
        return credit.idle(now_ns) && !proven(now_ns);
    }
};

/// A view over the caller's memory: entries found by keyed hashes. A name has one of sixteen
/// places, eight beside each other in each of two sets that it names itself. A place is taken over
/// only while it is idle, and an idle entry is as good as a new one: so whoever comes, nobody loses
/// anything, and every call looks at sixteen places at most. One thread.
template <class Entry>
class place_table {
    static_assert(std::is_trivially_copyable_v<Entry>);

public:
    static constexpr std::uint32_t set_places = 8;
    static constexpr std::size_t place_bytes = sizeof(std::uint64_t) + sizeof(Entry);

    /// `memory` is all-zero, aligned to 8, `count * place_bytes` long; `count` a power of two, two
    /// sets at least, or 0. Touches none of it.
    void attach(std::byte* memory, std::uint32_t count) noexcept {
        NETIO_ASSERT(reinterpret_cast<std::uintptr_t>(memory) % 8 == 0);
        NETIO_ASSERT(count == 0 || (count >= 2 * set_places && (count & (count - 1)) == 0));
        names_ = reinterpret_cast<std::uint64_t*>(memory);
        entries_ = reinterpret_cast<Entry*>(memory + count * sizeof(std::uint64_t));
        count_ = count;
        shared_ = 0;
    }
    std::uint32_t capacity() const noexcept { return count_; }

    /// nullptr: it has no place. A name is never 0.
    Entry* find(std::uint64_t name) noexcept {
        NETIO_ASSERT(name != 0);
        for (const std::uint32_t set : {first(name), second(name)}) {
            for (std::uint32_t at = set; at < set + set_places; ++at) {
                if (names_[at] == name) {
                    return &entries_[at];
                }
            }
        }
        return nullptr;
    }
    /// Its entry, an idle one made its own if it had none. nullptr: sixteen others are in use.
    Entry* find_or_take(std::uint64_t name, std::uint64_t now_ns) noexcept {
        if (Entry* known = find(name); known != nullptr) {
            return known;
        }
        Entry* taken = take_if(name, [now_ns](const Entry& each) { return each.idle(now_ns); });
        shared_ += taken == nullptr ? 1 : 0;
        return taken;
    }
    /// The first of its places of which `free` is true, emptied and made its own, or nullptr.
    template <class Free>
    Entry* take_if(std::uint64_t name, Free&& free) noexcept {
        for (const std::uint32_t set : {first(name), second(name)}) {
            for (std::uint32_t at = set; at < set + set_places; ++at) {
                if (free(entries_[at])) {
                    names_[at] = name;
                    entries_[at] = Entry{};
                    return &entries_[at];
                }
            }
        }
        return nullptr;
    }
    void forget_all() noexcept {
        for (std::uint32_t at = 0; at < count_; ++at) {
            names_[at] = 0;
            entries_[at] = Entry{};
        }
    }
    /// Places in use are counted as asked: for a report, not for each datagram. `refused` is how
    /// often none was found.
    pool_stats stats(std::uint64_t now_ns) const noexcept {
        std::uint32_t in_use = 0;
        for (std::uint32_t at = 0; at < count_; ++at) {
            in_use += entries_[at].idle(now_ns) ? 0 : 1;
        }
        return {"", count_, in_use, in_use, shared_};
    }

private:
    std::uint32_t first(std::uint64_t name) const noexcept {
        return (static_cast<std::uint32_t>(name) & last_set()) * set_places;
    }
    // Never the same: the distance is odd, and sets are a power of two.
    std::uint32_t second(std::uint64_t name) const noexcept {
        const std::uint32_t apart = static_cast<std::uint32_t>(name >> 32) & last_set();
        return (first(name) + (apart | 1) * set_places) & (count_ - 1);
    }
    std::uint32_t last_set() const noexcept { return count_ / set_places - 1; }

    std::uint64_t* names_ = nullptr;
    Entry* entries_ = nullptr;
    std::uint32_t count_ = 0;
    std::uint64_t shared_ = 0;
};

/// What one worker remembers of those who send it datagrams: a place for each source (see
/// source_of) and one for each address, both of each socket apart. Names are hashes of 64 bits
/// under a secret key: two that meet are one in 2^64, and no address is kept.
class datagram_sources {
    using budgets = place_table<datagram_buckets>;
    using addresses = place_table<datagram_address>;

public:
    static constexpr std::size_t source_bytes = budgets::place_bytes + addresses::place_bytes;

    /// For so many sources: a power of two, 16 at least; 0 for none.
    static constexpr std::uint32_t places_for(std::uint32_t sources) noexcept {
        constexpr std::uint32_t least = 2 * budgets::set_places;
        return sources == 0 ? 0 : sources <= least ? least : std::bit_ceil(sources);
    }
    /// `memory` is all-zero, aligned to 8, `places * source_bytes` long, `places` as of
    /// `places_for`. Touches none of it.
    void attach(std::byte* memory, std::uint32_t places) noexcept {
        budgets_.attach(memory, places);
        addresses_.attach(memory + places * budgets::place_bytes, places);
    }
    /// Random and secret. Once, before anything is remembered.
    void set_key(const std::uint64_t (&key)[2]) noexcept {
        key_[0] = key[0];
        key_[1] = key[1];
        has_key_ = true;
    }
    bool has_key() const noexcept { return has_key_; }
    /// False: it was given no memory, and there is nothing to ask.
    explicit operator bool() const noexcept { return budgets_.capacity() != 0; }

    /// nullptr: it has to share.
    datagram_buckets* budget_of(const endpoint& from, std::uint32_t socket,
                                std::uint64_t now_ns) noexcept {
        const source who = source_of(from);
        return budgets_.find_or_take(
            name({who.prefix, std::uint64_t{socket} << 8 | static_cast<unsigned>(who.family)}),
            now_ns);
    }
    datagram_address* address_of(const endpoint& who, std::uint32_t socket,
                                 std::uint64_t now_ns) noexcept {
        return addresses_.find_or_take(name_of(who, socket), now_ns);
    }
    /// nullptr: nothing is known of it.
    datagram_address* known_address(const endpoint& who, std::uint32_t socket) noexcept {
        return addresses_.find(name_of(who, socket));
    }
    /// For one that proved itself: it may take the place of one that did not, which loses what it
    /// earned. nullptr: its sixteen places are all proven.
    datagram_address* address_to_prove(const endpoint& who, std::uint32_t socket,
                                       std::uint64_t now_ns) noexcept {
        const std::uint64_t own = name_of(who, socket);
        datagram_address* at = addresses_.find_or_take(own, now_ns);
        return at != nullptr ? at
                             : addresses_.take_if(own, [now_ns](const datagram_address& of) {
                                   return !of.proven(now_ns);
                               });
    }

    /// Without a key nothing was remembered, and no page is touched.
    void forget_all() noexcept {
        if (has_key_) {
            budgets_.forget_all();
            addresses_.forget_all();
        }
    }
    pool_stats source_stats(std::uint64_t now_ns) const noexcept {
        return has_key_ ? budgets_.stats(now_ns) : pool_stats{"", budgets_.capacity(), 0, 0, 0};
    }
    pool_stats address_stats(std::uint64_t now_ns) const noexcept {
        return has_key_ ? addresses_.stats(now_ns) : pool_stats{"", addresses_.capacity(), 0, 0, 0};
    }

private:
    std::uint64_t name(std::initializer_list<std::uint64_t> blocks) const noexcept {
        const std::uint64_t hash = sip_hash(blocks, key_);
        return hash != 0 ? hash : 1;
    }
    std::uint64_t name_of(const endpoint& who, std::uint32_t socket) const noexcept {
        const endpoint plain = unmapped(who);
        std::uint64_t address[2];
        std::memcpy(address, plain.address.data(), sizeof(address));
        return name({address[0], address[1],
                     std::uint64_t{plain.scope_id} << 32 | std::uint64_t{plain.port} << 16 |
                         std::uint64_t{socket & 0xFF} << 8 | static_cast<unsigned>(plain.family)});
    }

    budgets budgets_;
    addresses addresses_;
    std::uint64_t key_[2] = {};
    bool has_key_ = false;
};

/// What a socket's options say.
struct datagram_rules {
    datagram_pace source;
    datagram_pace socket;
    std::uint32_t amplification;  // 0: no bound on what is sent
    std::uint64_t window_ns;
    std::uint64_t proven_ns;
};

enum class datagram_word : std::uint8_t { welcome, over_source, over_socket };

/// One UDP socket's guard: what it lets in, and what out. Its worker's `sources` remember for it;
/// without them sources have no budget and nothing is owed to anybody. Times are nanoseconds of one
/// clock that does not go back, below 2^62. All-zero lets everything through.
class datagram_guard {
public:
    void set(const datagram_rules& rules, std::uint32_t socket) noexcept {
        *this = datagram_guard{};
        rules_ = rules;
        socket_ = socket;
    }

    /// Whether a datagram of so many bytes is within its source's budget, and then within the
    /// socket's: if both have room it is charged to both, else to none, so that a flood of one
    /// source takes nothing from the others. `from` without an address (none) is nobody's.
    datagram_word admit(datagram_sources& sources, const endpoint& from, std::uint32_t count,
                        std::uint64_t now_ns) noexcept {
        datagram_buckets* own = nullptr;
        datagram_buckets after{};
        if (rules_.source.bounds() && sources && from.family != address_family::none) {
            own = sources.budget_of(from, socket_, now_ns);
            own = own != nullptr ? own : &shared_budget_;
            after = *own;
            if (!after.take(rules_.source, count, now_ns)) {
                return datagram_word::over_source;
            }
        }
        if (rules_.socket.bounds()) {
            datagram_buckets whole = all_;
            if (!whole.take(rules_.socket, count, now_ns)) {
                return datagram_word::over_socket;
            }
            all_ = whole;
        }
        if (own != nullptr) {
            *own = after;
        }
        return datagram_word::welcome;
    }

    /// Notes what an address sent; an empty datagram counts as a byte, here and in `may_send`.
    void received(datagram_sources& sources, const endpoint& from, std::uint32_t count,
                  std::uint64_t now_ns) noexcept {
        if (!asks_for_proof(sources)) {
            return;
        }
        if (now_ns >= window_ends_ns_) {
            window_ends_ns_ = (now_ns / rules_.window_ns + 1) * rules_.window_ns;
        }
        datagram_address* at = sources.address_of(from, socket_, now_ns);
        (at != nullptr ? at->credit : shared_credit_)
            .earn(std::uint64_t{at_least_one(count)} * rules_.amplification, window_ends_ns_,
                  rules_.window_ns);
    }

    /// Whether so many bytes may go to this address; if so they are taken from what it earned.
    bool may_send(datagram_sources& sources, const endpoint& to, std::uint64_t count,
                  std::uint64_t now_ns) noexcept {
        if (!asks_for_proof(sources)) {
            return true;
        }
        datagram_address* at = sources.known_address(to, socket_);
        return (at != nullptr && at->proven(now_ns)) ||
               (at != nullptr ? at->credit : shared_credit_)
                   .spend(at_least_one(count), now_ns, rules_.window_ns);
    }

    /// From now on for the time of the rules an address gets what is sent to it. False: there is no
    /// place for it.
    bool prove(datagram_sources& sources, const endpoint& who, std::uint64_t now_ns) noexcept {
        if (!asks_for_proof(sources)) {
            return true;
        }
        datagram_address* at = sources.address_to_prove(who, socket_, now_ns);
        if (at == nullptr) {
            return false;
        }
        at->proven_until_ns = now_ns + rules_.proven_ns;
        return true;
    }

private:
    bool asks_for_proof(const datagram_sources& sources) const noexcept {
        return rules_.amplification != 0 && sources;
    }
    template <class Count>
    static constexpr Count at_least_one(Count count) noexcept {
        return count != 0 ? count : 1;
    }

    datagram_rules rules_;
    std::uint32_t socket_;
    std::uint64_t window_ends_ns_;
    datagram_buckets all_;
    datagram_buckets shared_budget_;  // of all sources without a place
    datagram_credit shared_credit_;   // of all addresses without one
};

}  // namespace detail

NETIO_END

#endif
