// floor 3 · envelope.hpp · ARP1 envelopes: frame, decode into views, write without a heap
#ifndef NETIO_ENVELOPE_HPP
#define NETIO_ENVELOPE_HPP

#include "src/bytes.hpp"

#include <type_traits>

// The layout, all integers little-endian:
//
//   0  magic "ARP1"        6  flags u16             args        u32 count, then each argument
//   4  version u8          8  request id u64        payload     u32 size, then bytes
//   5  kind u8            16  method u32 size+text  descriptors u32 count, then each descriptor
//
// Same header and section order as ARP1 version 1, and its exact bytes where there are neither
// arguments nor descriptors (version byte 1). What stands inside arguments and descriptors is a
// profile of netio's own and travels under version 0x81, so that a foreign peer refuses it instead
// of misreading it. Everything has one encoding: what decodes, re-encodes to the same bytes.
//
// The views that decode() hands out read bytes that were checked once and are not checked again:
// the input must stay where it is and must not change while they are in use. Bytes that a stranger
// can still write to (shared memory) are copied first.

NETIO_BEGIN

namespace rpc {

constexpr std::uint32_t envelope_bytes_min = 32;        ///< a header and three zero counts
constexpr std::uint32_t frame_bytes_max = 64u << 20;    ///< no transport takes a larger envelope
constexpr std::uint32_t frame_prefix_bytes = 4;         ///< the u32 in front of each envelope
constexpr std::uint32_t value_depth_max = 64;           ///< a root value is level 1

/// What an envelope is for.
enum class envelope_kind : std::uint8_t { request = 1, response = 2, error = 3, hello = 4 };

constexpr std::uint16_t flag_redact = 1;       ///< keep contents out of logs
constexpr std::uint16_t flag_read_only = 2;    ///< the call may not change anything

/// The three forms of an argument, by their byte on the wire.
enum class argument_tag : std::uint8_t { value, promise, capability };

/// The ten forms of a value, by their byte on the wire.
enum class value_tag : std::uint8_t {
    null_value,
    boolean,
    integer,
    real,
    text,
    list,
    map,
    secret,
    module_bytes,
    path
};

/// Most of what a peer may send, each against one way to make us work or wait: total size,
/// arguments of an envelope, bytes of a method and of a payload, descriptors, methods of each.
/// A zero is refused (error::limits_invalid), it never means unlimited.
struct wire_limits {
    std::uint32_t bytes_max = frame_bytes_max;
    std::uint32_t arguments_max = 4096;
    std::uint32_t method_max = 256;
    std::uint32_t payload_max = frame_bytes_max;
    std::uint32_t capabilities_max = 256;
    std::uint32_t methods_max = 256;

    /// The profile for peers nobody vouches for.
    static constexpr wire_limits strict() noexcept {
        return {64u << 10, 64, 64, 32u << 10, 8, 32};
    }
    constexpr bool valid() const noexcept {
        return bytes_max != 0 && arguments_max != 0 && method_max != 0 && payload_max != 0 &&
               capabilities_max != 0 && methods_max != 0;
    }
};

/// The stable error codes of the protocol. `other` stands for a text this version does not know.
enum class rpc_code : std::uint8_t {
    other,
    unknown_capability,
    method_not_granted,
    escalation,
    read_only,
    path_not_granted,
    tool_policy,
    revoked,
    budget_exceeded,
    unknown_lane,
    unknown_channel,
    unknown_promise,
    promise_cancelled,
    promise_already_resolved,
    unresolvable_promise,
    provider,
    domain,
    payload,
    wire,
    capability_table,
    transport,
    transport_unavailable,
    timeout,
    pipelined_cycle,
    invalid_argument,
    count_
};

/// The code as it stands in the method field of an error envelope: "rpc/wire". Never null; "" for
/// `other`. Any thread.
constexpr const char* code_text(rpc_code code) noexcept {
    constexpr const char* texts[] = {
        "",
        "rpc/unknown-capability",
        "rpc/method-not-granted",
        "rpc/escalation",
        "rpc/read-only",
        "rpc/path-not-granted",
        "rpc/tool-policy",
        "rpc/revoked",
        "rpc/budget-exceeded",
        "rpc/unknown-lane",
        "rpc/unknown-channel",
        "rpc/unknown-promise",
        "rpc/promise-cancelled",
        "rpc/promise-already-resolved",
        "rpc/unresolvable-promise",
        "rpc/provider",
        "rpc/domain",
        "rpc/payload",
        "rpc/wire",
        "rpc/capability-table",
        "rpc/transport",
        "rpc/transport-unavailable",
        "rpc/timeout",
        "rpc/pipelined-cycle",
        "rpc/invalid-argument",
    };
    static_assert(sizeof(texts) / sizeof(texts[0]) == static_cast<std::size_t>(rpc_code::count_));
    return code < rpc_code::count_ ? texts[static_cast<std::size_t>(code)] : "";
}

/// The code a peer's text stands for; `other` if it is none of ours (keep the text then).
constexpr rpc_code code_from(std::string_view spelled) noexcept {
    for (std::uint8_t at = 1; at < static_cast<std::uint8_t>(rpc_code::count_); ++at) {
        if (spelled == code_text(static_cast<rpc_code>(at))) {
            return static_cast<rpc_code>(at);
        }
    }
    return rpc_code::other;
}

/// The code to answer a peer with whose bytes were refused for `why`.
constexpr rpc_code code_from(netio::error why) noexcept {
    switch (why) {
    case netio::error::rpc_wire:
    case netio::error::rpc_limit:
        return rpc_code::wire;
    case netio::error::rpc_capability_table:
        return rpc_code::capability_table;
    case netio::error::rpc_transport:
        return rpc_code::transport;
    default:
        return rpc_code::other;
    }
}

/// The name of a capability: 16 opaque bytes.
struct capability_id {
    std::byte octets[16];
    constexpr bool operator==(const capability_id&) const noexcept = default;
};

/// What a capability may spend, in the order of the wire. No field may be zero.
struct budget {
    std::uint64_t calls_max = 10'000;
    std::uint64_t bytes_max = 64u << 20;
    std::uint64_t wall_ms_max = 5'000;
    std::uint64_t nodes_max = 100'000;
    std::uint64_t depth_max = 256;
    std::uint64_t array_max = 100'000;
    std::uint64_t value_bytes_max = 10'000'000;

    constexpr bool valid() const noexcept {
        return calls_max != 0 && bytes_max != 0 && wall_ms_max != 0 && nodes_max != 0 &&
               depth_max != 0 && array_max != 0 && value_bytes_max != 0;
    }
    constexpr bool operator==(const budget&) const noexcept = default;
};

namespace detail {

using netio::detail::load_little;
using netio::detail::load_native;
using netio::detail::store_little;

constexpr std::size_t version_offset = 4;
constexpr std::size_t method_offset = 16;
constexpr std::byte version_published{1};
constexpr std::byte version_profile{0x81};
constexpr std::uint32_t magic_little = 0x31505241;    // "ARP1" loaded little-endian
constexpr std::uint8_t descriptor_read_only = 1;
constexpr std::uint8_t descriptor_redact = 2;
constexpr std::uint8_t descriptor_path = 4;
constexpr std::size_t budget_bytes = 7 * 8;

constexpr std::uint64_t high_bits = 0x8080808080808080u;    // none set: eight letters of ASCII

/// True if all is ASCII. Made for the short texts of an envelope: two loads that may overlap.
NETIO_INLINE bool ascii_only(const std::byte* at, std::size_t count) noexcept {
    if (count >= 8) {
        const std::byte* const last = at + count - 8;
        auto seen = load_native<std::uint64_t>(last);
        for (; at < last; at += 8) {
            seen |= load_native<std::uint64_t>(at);
        }
        return (seen & high_bits) == 0;
    }
    if (count >= 4) {
        const auto both = load_native<std::uint32_t>(at) |
                          load_native<std::uint32_t>(at + count - 4);
        return (both & static_cast<std::uint32_t>(high_bits)) == 0;
    }
    return count == 0 || (at[0] | at[count / 2] | at[count - 1]) < std::byte{0x80};
}

/// The first byte that is not ASCII, or `end`.
inline const std::byte* skip_ascii(const std::byte* at, const std::byte* end) noexcept {
    while (end - at >= 16 && ((load_native<std::uint64_t>(at) |
                               load_native<std::uint64_t>(at + 8)) & high_bits) == 0) {
        at += 16;
    }
    while (end - at >= 8) {
        const auto high = load_little<std::uint64_t>(at) & high_bits;
        if (high != 0) {
            return at + std::countr_zero(high) / 8;
        }
        at += 8;
    }
    while (at != end && *at < std::byte{0x80}) {
        ++at;
    }
    return at;
}

constexpr bool in_range(std::byte octet, unsigned low, unsigned high) noexcept {
    const auto number = std::to_integer<unsigned>(octet);
    return number >= low && number <= high;
}

/// Bytes of the sequence at `at` that is not ASCII (RFC 3629, section 4), 0 if it is none: a stray
/// continuation, an overlong form, a surrogate, past U+10FFFF, or cut.
inline std::size_t utf8_width(const std::byte* at, std::size_t left) noexcept {
    const auto lead = std::to_integer<unsigned>(at[0]);
    if (lead < 0xC2 || lead > 0xF4) {
        return 0;
    }
    const std::size_t width = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (left < width) {
        return 0;
    }
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    bool good = in_range(at[1], low, high);
    for (std::size_t next = 2; next < width; ++next) {
        good &= in_range(at[next], 0x80, 0xBF);
    }
    return good ? width : 0;
}

/// utf8_valid for long texts and for more than ASCII.
inline bool utf8_valid_long(const std::byte* at, const std::byte* end) noexcept {
    at = skip_ascii(at, end);
    while (at != end) {
        const std::size_t width = utf8_width(at, static_cast<std::size_t>(end - at));
        if (width == 0) {
            return false;
        }
        at += width;
        if (at != end && *at < std::byte{0x80}) {
            at = skip_ascii(at, end);
        }
    }
    return true;
}

NETIO_INLINE bool utf8_valid(std::string_view text) noexcept {
    const std::byte* const at = as_bytes(text).data();
    return (text.size() < 64 && NETIO_LIKELY(ascii_only(at, text.size()))) ||
           utf8_valid_long(at, at + text.size());
}

/// `left` < `right` by bytes. Keys mostly differ early, and one that was just written is better not
/// read back with the wide loads of memcmp.
NETIO_INLINE bool text_before(std::string_view left, std::string_view right) noexcept {
    if (!left.empty() && !right.empty() && left[0] != right[0]) {
        return static_cast<unsigned char>(left[0]) < static_cast<unsigned char>(right[0]);
    }
    return left < right;
}

/// Equality of short names, without a call for 4 to 16 bytes.
NETIO_INLINE bool same_text(std::string_view left, std::string_view right) noexcept {
    const std::size_t count = left.size();
    if (count != right.size()) {
        return false;
    }
    const std::byte* const at = as_bytes(left).data();
    const std::byte* const other = as_bytes(right).data();
    if (count >= 8 && count <= 16) {
        return load_native<std::uint64_t>(at) == load_native<std::uint64_t>(other) &&
               load_native<std::uint64_t>(at + count - 8) ==
                   load_native<std::uint64_t>(other + count - 8);
    }
    if (count >= 4 && count < 8) {
        return load_native<std::uint32_t>(at) == load_native<std::uint32_t>(other) &&
               load_native<std::uint32_t>(at + count - 4) ==
                   load_native<std::uint32_t>(other + count - 4);
    }
    return left == right;
}

/// memcpy for the short pieces of an envelope: without a call up to 16 bytes.
NETIO_INLINE void copy_piece(std::byte* to, bytes from) noexcept {
    const std::size_t count = from.size();
    const std::byte* const at = from.data();
    if (count > 16) {
        std::memcpy(to, at, count);
    } else if (count >= 8) {
        const auto front = load_native<std::uint64_t>(at);
        const auto back = load_native<std::uint64_t>(at + count - 8);
        std::memcpy(to, &front, 8);
        std::memcpy(to + count - 8, &back, 8);
    } else if (count >= 4) {
        const auto front = load_native<std::uint32_t>(at);
        const auto back = load_native<std::uint32_t>(at + count - 4);
        std::memcpy(to, &front, 4);
        std::memcpy(to + count - 4, &back, 4);
    } else if (count != 0) {
        const std::byte middle = at[count / 2];
        const std::byte back = at[count - 1];
        to[0] = at[0];
        to[count / 2] = middle;
        to[count - 1] = back;
    }
}

/// Reads wire items front to back. Checked: against the end, for bytes of a stranger. Not checked:
/// for bytes that went through the checked form before.
template <bool Checked>
struct reader {
    const std::byte* at = nullptr;
    const std::byte* end = nullptr;
    std::uint32_t deepest = 1;    // of the value walked last: its levels

    NETIO_INLINE std::size_t left() const noexcept { return static_cast<std::size_t>(end - at); }
    NETIO_INLINE bool has(std::size_t count) const noexcept {
        return !Checked || NETIO_LIKELY(left() >= count);
    }
    template <class T>
    NETIO_INLINE bool take(T& out) noexcept {
        if (!has(sizeof(T))) {
            return false;
        }
        out = load_little<T>(at);
        at += sizeof(T);
        return true;
    }
    /// A count whose items take `item_bytes` or more each: no count is believed that the bytes left
    /// can't hold. A division, so nothing wraps.
    NETIO_INLINE bool take_count(std::uint32_t& out, std::size_t item_bytes) noexcept {
        return take(out) && (!Checked || NETIO_LIKELY(out <= left() / item_bytes));
    }
    /// A u32 size and so many bytes. The size is held against what is left, never added to a place.
    NETIO_INLINE bool take_sized(std::string_view& out) noexcept {
        std::uint32_t count = 0;
        if (!take(count) || !has(count)) {
            return false;
        }
        out = {reinterpret_cast<const char*>(at), count};
        at += count;
        return true;
    }
    NETIO_INLINE bool take_text(std::string_view& out) noexcept {
        return take_sized(out) && (!Checked || utf8_valid(out));
    }
    NETIO_INLINE bool skip(std::size_t count) noexcept {
        if (!has(count)) {
            return false;
        }
        at += count;
        return true;
    }
};

/// A list or map that is being walked and has items left.
struct walk_level {
    const char* key;    // the last one; null: none yet
    std::uint32_t key_bytes;
    std::uint32_t left;
};
static_assert(std::is_trivially_default_constructible_v<walk_level>);    // 63 of them, none touched

/// The key in front of a map's next value: text, and strictly above the one before.
template <bool Checked>
bool walk_key(reader<Checked>& in, walk_level& level) noexcept {
    std::string_view key;
    if (!in.take_text(key)) {
        return false;
    }
    if constexpr (Checked) {
        if (level.key != nullptr && !text_before({level.key, level.key_bytes}, key)) {
            return false;
        }
        level.key = key.data();
        level.key_bytes = static_cast<std::uint32_t>(key.size());
    }
    return true;
}

/// A value without items of its own; `tag` is neither list nor map.
template <bool Checked>
NETIO_INLINE bool walk_scalar(reader<Checked>& in, std::uint8_t tag) noexcept {
    std::string_view content;
    std::uint8_t truth = 0;
    switch (static_cast<value_tag>(tag)) {
    case value_tag::null_value:
    case value_tag::secret:
        return true;
    case value_tag::boolean:
        return in.take(truth) && (!Checked || truth <= 1);
    case value_tag::integer:
    case value_tag::real:
        return in.skip(8);
    case value_tag::text:
    case value_tag::path:
        return in.take_text(content);
    case value_tag::module_bytes:
        return in.take_sized(content);
    default:
        return false;
    }
}

/// The items of a list or map whose count was just read, and all below them. A stack of fixed
/// height instead of recursion: a hostile peer chooses the nesting. Which levels are maps stands
/// beside them, not in them: that keeps the frame below 1 KiB where a pointer has 32 bits.
template <bool Checked>
bool walk_items(reader<Checked>& in, std::uint32_t count, bool is_map) noexcept {
    walk_level levels[value_depth_max - 1];    // an item of the last one is at level 64
    bool maps[value_depth_max - 1];
    levels[0] = {nullptr, 0, count};
    maps[0] = is_map;
    std::uint32_t open = 1;
    in.deepest = open + 1;
    while (open != 0) {
        walk_level& level = levels[open - 1];
        if (level.left == 0) {
            --open;
            continue;
        }
        --level.left;
        std::uint8_t tag = 0;
        if ((maps[open - 1] && !walk_key(in, level)) || !in.take(tag)) {
            return false;
        }
        const bool map_inside = tag == static_cast<std::uint8_t>(value_tag::map);
        if (!map_inside && tag != static_cast<std::uint8_t>(value_tag::list)) {
            if (!walk_scalar(in, tag)) {
                return false;
            }
            continue;
        }
        if (!in.take_count(count, map_inside ? 5 : 1)) {
            return false;
        }
        if (count != 0) {
            if (Checked && open == value_depth_max - 1) {
                return false;
            }
            maps[open] = map_inside;
            levels[open++] = {nullptr, 0, count};
            in.deepest = in.deepest > open ? in.deepest : open + 1;
        }
    }
    return true;
}

/// Steps over one value and everything in it.
template <bool Checked>
NETIO_INLINE bool walk_value(reader<Checked>& in) noexcept {
    in.deepest = 1;
    std::uint8_t tag = 0;
    if (!in.take(tag)) {
        return false;
    }
    const bool is_map = tag == static_cast<std::uint8_t>(value_tag::map);
    if (!is_map && tag != static_cast<std::uint8_t>(value_tag::list)) {
        return walk_scalar(in, tag);
    }
    std::uint32_t count = 0;
    if (!in.take_count(count, is_map ? 5 : 1)) {
        return false;
    }
    return count == 0 || walk_items(in, count, is_map);
}

template <bool Checked>
NETIO_INLINE bool walk_argument(reader<Checked>& in) noexcept {
    std::uint8_t tag = 0;
    if (!in.take(tag)) {
        return false;
    }
    switch (static_cast<argument_tag>(tag)) {
    case argument_tag::value:
        return walk_value(in);
    case argument_tag::promise:
        return in.skip(8);
    case argument_tag::capability:
        return in.skip(sizeof(capability_id));
    default:
        return false;
    }
}

/// A forward range over checked bytes. `Step` reads the item at a place and finds the next place.
template <class Step>
class wire_range {
public:
    class iterator {
    public:
        using value_type = typename Step::item;
        using difference_type = std::ptrdiff_t;

        constexpr iterator() noexcept = default;
        constexpr iterator(const std::byte* at, std::uint32_t left) noexcept
            : at_(at), left_(left) {}

        value_type operator*() const noexcept {
            NETIO_ASSERT(left_ != 0);
            return Step::read(at_);
        }
        iterator& operator++() noexcept {
            NETIO_ASSERT(left_ != 0);
            // The place behind the last item is never asked for.
            if (--left_ != 0) {
                at_ = Step::after(at_);
            }
            return *this;
        }
        iterator operator++(int) noexcept {
            const iterator before = *this;
            ++*this;
            return before;
        }
        constexpr bool operator==(const iterator& other) const noexcept {
            return left_ == other.left_;
        }

    private:
        const std::byte* at_ = nullptr;
        std::uint32_t left_ = 0;
    };

    constexpr wire_range() noexcept = default;
    constexpr wire_range(const std::byte* at, std::uint32_t count) noexcept
        : at_(at), count_(count) {}

    constexpr std::uint32_t size() const noexcept { return count_; }
    constexpr bool empty() const noexcept { return count_ == 0; }
    constexpr iterator begin() const noexcept { return {at_, count_}; }
    constexpr iterator end() const noexcept { return {nullptr, 0}; }
    /// The first byte of the first item; nothing in particular if there is none.
    constexpr const std::byte* data() const noexcept { return at_; }
    /// The first item; the range must not be empty.
    typename Step::item front() const noexcept { return *begin(); }

private:
    const std::byte* at_ = nullptr;
    std::uint32_t count_ = 0;
};

inline std::string_view read_text(const std::byte* at) noexcept {
    return {reinterpret_cast<const char*>(at + 4), load_little<std::uint32_t>(at)};
}
inline const std::byte* after_text(const std::byte* at) noexcept {
    return at + 4 + load_little<std::uint32_t>(at);
}

struct text_step {
    using item = std::string_view;
    static item read(const std::byte* at) noexcept { return read_text(at); }
    static const std::byte* after(const std::byte* at) noexcept { return after_text(at); }
};
struct value_step;
struct entry_step;
struct argument_step;
struct capability_step;

}  // namespace detail

/// Forward ranges over checked bytes: size(), empty(), front(), and a range-for. Going on to the
/// next item steps over the whole of this one.
using text_list = detail::wire_range<detail::text_step>;
using value_list = detail::wire_range<detail::value_step>;
using value_map = detail::wire_range<detail::entry_step>;
using argument_list = detail::wire_range<detail::argument_step>;
using capability_list = detail::wire_range<detail::capability_step>;

/// One value in checked bytes. The peer chose its form, so asking for another form is no error of
/// the caller: the as_ functions give `otherwise` (or an empty view) then.
class value {
public:
    /// Null.
    value() noexcept : at_(&null_octet) {}
    /// For netio's own use: `at` is the tag of a checked value.
    explicit value(const std::byte* at) noexcept : at_(at) {}

    value_tag tag() const noexcept { return static_cast<value_tag>(*at_); }
    bool is(value_tag expected) const noexcept { return tag() == expected; }

    bool as_bool(bool otherwise = false) const noexcept {
        return is(value_tag::boolean) ? at_[1] != std::byte{0} : otherwise;
    }
    std::int64_t as_int(std::int64_t otherwise = 0) const noexcept {
        return is(value_tag::integer)
                   ? std::bit_cast<std::int64_t>(detail::load_little<std::uint64_t>(at_ + 1))
                   : otherwise;
    }
    /// The bits are the peer's: a NaN keeps its payload (on i386, where a function returns through
    /// the x87 registers, a signalling one comes back quiet).
    double as_real(double otherwise = 0) const noexcept {
        return is(value_tag::real)
                   ? std::bit_cast<double>(detail::load_little<std::uint64_t>(at_ + 1))
                   : otherwise;
    }
    std::string_view as_text(std::string_view otherwise = {}) const noexcept {
        return is(value_tag::text) ? detail::read_text(at_ + 1) : otherwise;
    }
    std::string_view as_path(std::string_view otherwise = {}) const noexcept {
        return is(value_tag::path) ? detail::read_text(at_ + 1) : otherwise;
    }
    bytes as_module() const noexcept {
        return is(value_tag::module_bytes) ? as_bytes(detail::read_text(at_ + 1)) : bytes{};
    }
    value_list as_list() const noexcept;
    value_map as_map() const noexcept;

    /// The value as it stands on the wire: what a byte budget is charged, and what
    /// writer::copy_value takes over. Walks the value.
    bytes wire() const noexcept {
        return {at_, walked().at};
    }
    /// The first of those bytes, which costs no walk.
    const std::byte* wire_begin() const noexcept { return at_; }
    /// Its levels, itself included: 1 for all but a list or map with items. Walks the value.
    std::uint32_t depth() const noexcept { return walked().deepest; }

private:
    static constexpr std::byte null_octet{0};

    detail::reader<false> walked() const noexcept {
        detail::reader<false> in{at_, nullptr};
        detail::walk_value(in);
        return in;
    }

    const std::byte* at_;
};

/// A key of a map and what stands under it.
struct map_entry {
    std::string_view key;
    value held;
};

/// One argument in checked bytes.
class argument {
public:
    /// For netio's own use: `at` is the first byte of a checked argument.
    explicit argument(const std::byte* at) noexcept : at_(at) {}

    argument_tag tag() const noexcept { return static_cast<argument_tag>(*at_); }
    bool is(argument_tag expected) const noexcept { return tag() == expected; }

    /// Null if it is no value.
    value as_value() const noexcept {
        return is(argument_tag::value) ? value(at_ + 1) : value();
    }
    /// The request id of an earlier request on the same connection; 0 if it is no promise.
    std::uint64_t as_promise() const noexcept {
        return is(argument_tag::promise) ? detail::load_little<std::uint64_t>(at_ + 1) : 0;
    }
    /// All zero if it is no capability.
    capability_id as_capability() const noexcept {
        capability_id out{};
        if (is(argument_tag::capability)) {
            std::memcpy(out.octets, at_ + 1, sizeof(out.octets));
        }
        return out;
    }
    /// The argument as it stands on the wire, its kind byte included. Walks it.
    bytes wire() const noexcept {
        detail::reader<false> in{at_, nullptr};
        detail::walk_argument(in);
        return {at_, in.at};
    }

private:
    const std::byte* at_;
};

/// One capability descriptor in checked bytes.
class capability_descriptor {
public:
    /// For netio's own use: `at` is the first byte of a checked descriptor.
    explicit capability_descriptor(const std::byte* at) noexcept : at_(at), facts_(at + 20) {
        const text_list names = methods();
        for (std::uint32_t left = names.size(); left != 0; --left) {
            facts_ = detail::after_text(facts_);
        }
    }

    capability_id id() const noexcept {
        capability_id out{};
        std::memcpy(out.octets, at_, sizeof(out.octets));
        return out;
    }
    /// At least one, strictly ascending by bytes.
    text_list methods() const noexcept {
        return {at_ + 20, detail::load_little<std::uint32_t>(at_ + 16)};
    }
    budget spend() const noexcept {
        const auto field = [this](std::size_t index) {
            return detail::load_little<std::uint64_t>(facts_ + 8 * index);
        };
        return {field(0), field(1), field(2), field(3), field(4), field(5), field(6)};
    }
    bool read_only() const noexcept { return has(detail::descriptor_read_only); }
    bool redact() const noexcept { return has(detail::descriptor_redact); }
    /// An empty path is a path too, hence the question apart.
    bool has_path() const noexcept { return has(detail::descriptor_path); }
    std::string_view path() const noexcept {
        return has_path() ? detail::read_text(path_at()) : std::string_view{};
    }
    /// The descriptor as it stands on the wire.
    bytes wire() const noexcept {
        return {at_, has_path() ? detail::after_text(path_at()) : path_at()};
    }

private:
    bool has(std::uint8_t flag) const noexcept {
        return (std::to_integer<unsigned>(facts_[detail::budget_bytes]) & flag) != 0;
    }
    const std::byte* path_at() const noexcept { return facts_ + detail::budget_bytes + 1; }

    const std::byte* at_;
    const std::byte* facts_;    // behind the methods: budget, flags, path
};

namespace detail {

struct value_step {
    using item = value;
    static item read(const std::byte* at) noexcept { return value(at); }
    static const std::byte* after(const std::byte* at) noexcept {
        reader<false> in{at, nullptr};
        walk_value(in);
        return in.at;
    }
};
struct entry_step {
    using item = map_entry;
    static item read(const std::byte* at) noexcept {
        return {read_text(at), value(after_text(at))};
    }
    static const std::byte* after(const std::byte* at) noexcept {
        return value_step::after(after_text(at));
    }
};
struct argument_step {
    using item = argument;
    static item read(const std::byte* at) noexcept { return argument(at); }
    static const std::byte* after(const std::byte* at) noexcept {
        reader<false> in{at, nullptr};
        walk_argument(in);
        return in.at;
    }
};
struct capability_step {
    using item = capability_descriptor;
    static item read(const std::byte* at) noexcept { return capability_descriptor(at); }
    static const std::byte* after(const std::byte* at) noexcept {
        const bytes whole = capability_descriptor(at).wire();
        return whole.data() + whole.size();
    }
};

}  // namespace detail

inline value_list value::as_list() const noexcept {
    return is(value_tag::list) ? value_list(at_ + 5, detail::load_little<std::uint32_t>(at_ + 1))
                               : value_list();
}
inline value_map value::as_map() const noexcept {
    return is(value_tag::map) ? value_map(at_ + 5, detail::load_little<std::uint32_t>(at_ + 1))
                              : value_map();
}

/// A whole envelope as views into the bytes that were decoded.
struct envelope {
    envelope_kind kind{};
    std::uint16_t flags = 0;
    std::uint64_t request_id = 0;
    std::string_view method;       // of an error: its code
    argument_list arguments;       // of a response: exactly one, a value
    bytes payload;
    capability_list capabilities;

    bool redact() const noexcept { return (flags & flag_redact) != 0; }
    bool read_only() const noexcept { return (flags & flag_read_only) != 0; }
};

namespace detail {

/// The rules that tie sections to the kind. Requests have an id; a response has no method and
/// exactly one value; an error has nothing but its code; a hello has no method.
inline bool shape_valid(const envelope& in) noexcept {
    switch (in.kind) {
    case envelope_kind::request:
        return in.request_id != 0;
    case envelope_kind::response:
        return in.method.empty() && in.arguments.size() == 1 &&
               in.arguments.front().is(argument_tag::value);
    case envelope_kind::error:
        return in.arguments.empty() && in.payload.empty() && in.capabilities.empty();
    case envelope_kind::hello:
        return in.method.empty();
    default:
        return false;
    }
}

inline error check_methods(reader<true>& in, const wire_limits& limits) noexcept {
    std::uint32_t count = 0;
    if (!in.take_count(count, 4)) {
        return error::rpc_wire;
    }
    if (count == 0) {
        return error::rpc_capability_table;
    }
    if (count > limits.methods_max) {
        return error::rpc_limit;
    }
    std::string_view before;
    for (std::uint32_t index = 0; index < count; ++index) {
        std::string_view method;
        if (!in.take_sized(method)) {
            return error::rpc_wire;
        }
        if (!utf8_valid(method) || (index != 0 && !text_before(before, method))) {
            return error::rpc_capability_table;
        }
        before = method;
    }
    return error::none;
}

/// Cut bytes are rpc/wire, a broken rule of the descriptor itself is rpc/capability-table.
inline error check_descriptor(reader<true>& in, const wire_limits& limits) noexcept {
    if (!in.skip(sizeof(capability_id))) {
        return error::rpc_wire;
    }
    if (const error why = check_methods(in, limits); why != error::none) {
        return why;
    }
    bool spends = true;
    for (int field = 0; field < 7; ++field) {
        std::uint64_t bound = 0;
        if (!in.take(bound)) {
            return error::rpc_wire;
        }
        spends &= bound != 0;
    }
    std::uint8_t flags = 0;
    if (!in.take(flags)) {
        return error::rpc_wire;
    }
    if (!spends || flags > (descriptor_read_only | descriptor_redact | descriptor_path)) {
        return error::rpc_capability_table;
    }
    std::string_view path;
    if ((flags & descriptor_path) != 0) {
        if (!in.take_sized(path)) {
            return error::rpc_wire;
        }
        return utf8_valid(path) ? error::none : error::rpc_capability_table;
    }
    return error::none;
}

inline error decode_arguments(reader<true>& in, const wire_limits& limits,
                              envelope& out) noexcept {
    std::uint32_t count = 0;
    if (!in.take_count(count, 2)) {
        return error::rpc_wire;
    }
    if (count > limits.arguments_max) {
        return error::rpc_limit;
    }
    out.arguments = {in.at, count};
    for (; count != 0; --count) {
        if (!walk_argument(in)) {
            return error::rpc_wire;
        }
    }
    return error::none;
}

inline error decode_capabilities(reader<true>& in, const wire_limits& limits,
                                 envelope& out) noexcept {
    std::uint32_t count = 0;
    if (!in.take_count(count, 77)) {
        return error::rpc_wire;
    }
    if (count > limits.capabilities_max) {
        return error::rpc_limit;
    }
    out.capabilities = {in.at, count};
    for (; count != 0; --count) {
        if (const error why = check_descriptor(in, limits); why != error::none) {
            return why;
        }
    }
    return error::none;
}

/// The 16 fixed bytes, the method behind them, and nothing of what the counts claim.
inline error decode_head(reader<true>& in, const wire_limits& limits, envelope& out) noexcept {
    const std::byte* const head = in.at;
    if (load_little<std::uint32_t>(head) != magic_little) {
        return error::rpc_wire;
    }
    const std::byte version = head[version_offset];
    out.kind = static_cast<envelope_kind>(head[5]);
    out.flags = load_little<std::uint16_t>(head + 6);
    out.request_id = load_little<std::uint64_t>(head + 8);
    in.at += method_offset;
    if ((version != version_published && version != version_profile) ||
        out.flags > (flag_redact | flag_read_only) || !in.take_text(out.method)) {
        return error::rpc_wire;
    }
    return out.method.size() > limits.method_max ? error::rpc_limit : error::none;
}

inline error decode_sections(bytes input, const wire_limits& limits, envelope& out) noexcept {
    if (!limits.valid()) {
        return error::limits_invalid;
    }
    if (input.size() < envelope_bytes_min) {
        return error::rpc_wire;
    }
    if (input.size() > limits.bytes_max) {
        return error::rpc_limit;
    }
    reader<true> in{input.data(), input.data() + input.size()};
    if (const error why = decode_head(in, limits, out); why != error::none) {
        return why;
    }
    if (const error why = decode_arguments(in, limits, out); why != error::none) {
        return why;
    }
    std::string_view payload;
    if (!in.take_sized(payload)) {
        return error::rpc_wire;
    }
    if (payload.size() > limits.payload_max) {
        return error::rpc_limit;
    }
    out.payload = as_bytes(payload);
    if (const error why = decode_capabilities(in, limits, out); why != error::none) {
        return why;
    }
    const bool plain = out.arguments.empty() && out.capabilities.empty();
    const std::byte version = plain ? version_published : version_profile;
    const bool whole = in.left() == 0 && input[version_offset] == version && shape_valid(out);
    return whole ? error::none : error::rpc_wire;
}

/// The 16 fixed bytes.
inline void put_head(std::byte* at, envelope_kind kind, std::uint16_t flags,
                     std::uint64_t request_id, std::byte version) noexcept {
    store_little(at, magic_little);
    at[version_offset] = version;
    at[5] = static_cast<std::byte>(kind);
    store_little(at + 6, flags);
    store_little(at + 8, request_id);
}

}  // namespace detail

/// Decodes one whole envelope, the inside of a frame: `input` is all of it and nothing else. Every
/// byte is checked before this returns; nothing is copied. Never `incomplete`: inside a frame a cut
/// envelope is a broken one. Errors: rpc_wire, rpc_capability_table, rpc_limit (over `limits`),
/// limits_invalid (one of `limits` is 0). Time is linear in the input. Any thread.
inline parsed<envelope> decode(bytes input, const wire_limits& limits = {}) noexcept {
    parsed<envelope> out;
    out.why = detail::decode_sections(input, limits, out.value);
    if (NETIO_LIKELY(out.why == error::none)) {
        out.status = parse_status::complete;
        out.consumed = static_cast<std::uint32_t>(input.size());
    } else {
        out.status = parse_status::invalid;
        out.value = {};
    }
    return out;
}

/// One envelope of a byte stream, not yet decoded.
struct frame {
    bytes envelope;
};

/// Splits a frame (u32 size, envelope) off the front of a byte stream. `incomplete` says how many
/// bytes are missing at least; a size out of bounds is refused as soon as its four bytes are there:
/// below 32 rpc_wire, above the smaller of `limits.bytes_max` and 64 MiB rpc_transport. Any thread.
inline parsed<frame> decode_frame(bytes input, const wire_limits& limits = {}) noexcept {
    if (!limits.valid()) {
        return parsed<frame>::invalid(error::limits_invalid);
    }
    if (input.size() < frame_prefix_bytes) {
        return parsed<frame>::need(frame_prefix_bytes - static_cast<std::uint32_t>(input.size()));
    }
    const auto count = detail::load_little<std::uint32_t>(input.data());
    if (count < envelope_bytes_min) {
        return parsed<frame>::invalid(error::rpc_wire);
    }
    if (count > limits.bytes_max || count > frame_bytes_max) {
        return parsed<frame>::invalid(error::rpc_transport);
    }
    const bytes rest = input.subspan(frame_prefix_bytes);
    if (rest.size() < count) {
        return parsed<frame>::need(count - static_cast<std::uint32_t>(rest.size()));
    }
    parsed<frame> out;
    out.status = parse_status::complete;
    out.consumed = frame_prefix_bytes + count;
    out.value.envelope = rest.first(count);
    return out;
}

/// Writes the four bytes in front of an envelope of `envelope_bytes`; returns 4, or 0 if `out` is
/// shorter or no frame may have that size. Any thread.
inline std::size_t encode_frame_prefix(std::size_t envelope_bytes, mutable_bytes out) noexcept {
    if (out.size() < frame_prefix_bytes || envelope_bytes < envelope_bytes_min ||
        envelope_bytes > frame_bytes_max) {
        return 0;
    }
    detail::store_little(out.data(), static_cast<std::uint32_t>(envelope_bytes));
    return frame_prefix_bytes;
}

/// Bytes of the response that `encode_response` makes of an argument of so many.
constexpr std::uint64_t response_bytes(std::uint64_t argument_bytes) noexcept {
    return envelope_bytes_min + argument_bytes;
}

/// Writes a response whose one value is `argument`, checked bytes of an argument with its kind in
/// front: a copy, without the walks of a `writer`. Its size, or 0 if `out` is shorter. Any thread.
inline std::size_t encode_response(std::uint64_t request_id, std::uint16_t flags, bytes argument,
                                   mutable_bytes out) noexcept {
    if (out.size() < response_bytes(argument.size())) {
        return 0;
    }
    std::byte* const at = out.data();
    detail::put_head(at, envelope_kind::response, flags, request_id, detail::version_profile);
    detail::store_little(at + 16, std::uint32_t{0});
    detail::store_little(at + 20, std::uint32_t{1});
    detail::copy_piece(at + 24, argument);
    detail::store_little(at + 24 + argument.size(), std::uint64_t{0});
    return envelope_bytes_min + argument.size();
}

/// Writes an error with so many bytes of text, UTF-8, as its code. Its size, or 0 if `out` is
/// shorter. Any thread.
inline std::size_t encode_error(std::uint64_t request_id, std::string_view code,
                                mutable_bytes out) noexcept {
    if (out.size() < envelope_bytes_min + code.size()) {
        return 0;
    }
    std::byte* const at = out.data();
    detail::put_head(at, envelope_kind::error, 0, request_id, detail::version_published);
    detail::store_little(at + 16, static_cast<std::uint32_t>(code.size()));
    detail::copy_piece(at + 20, as_bytes(code));
    detail::store_little(at + 20 + code.size(), std::uint64_t{0});
    detail::store_little(at + 28 + code.size(), std::uint32_t{0});
    return envelope_bytes_min + code.size();
}

/// What a descriptor says, for writer::descriptor.
struct descriptor_fields {
    capability_id id{};
    std::span<const std::string_view> methods{};    // at least one, strictly ascending by bytes
    budget spend{};
    bool read_only = false;
    bool redact = false;
    bool has_path = false;
    std::string_view path{};
};

/// Writes one envelope into the caller's bytes, front to back, without a heap:
///
///     writer out(room);
///     out.begin(envelope_kind::request, 7, "put").value_text("a").value_list().value_int(1).end();
///     const std::size_t size = out.payload(module).finish();    // 0: see why()
///
/// The order is begin, arguments, payload (may be left out), descriptors, finish. A value outside
/// of any list or map is an argument. The first call that does not fit or breaks a rule of the wire
/// makes all later ones do nothing, finish() return 0 and why() say which: full, rpc_wire,
/// rpc_capability_table, rpc_limit, limits_invalid. begin() starts anew. One thread at a time.
class writer {
public:
    explicit writer(mutable_bytes out, const wire_limits& limits = {}) noexcept
        : out_(out.first(out.size() < limits.bytes_max ? out.size() : limits.bytes_max)),
          limits_(limits),
          no_room_(out.size() < limits.bytes_max ? error::full : error::rpc_limit) {
        // A level is written when it opens and read only while open, which compilers can't see:
        // they are told that something may stand there. Clearing it would cost 10 ns.
        NETIO_KEEP_STORES(levels_);
    }
    writer(const writer&) = delete;
    writer& operator=(const writer&) = delete;

    /// Starts an envelope. `method` is the code for an error and empty for a response and a hello.
    writer& begin(envelope_kind kind, std::uint64_t request_id, std::string_view method = {},
                  std::uint16_t flags = 0) noexcept;

    writer& value_null() noexcept { return scalar(value_tag::null_value, {}); }
    /// A marker: that a secret stands here, never its content.
    writer& value_secret() noexcept { return scalar(value_tag::secret, {}); }
    writer& value_bool(bool truth) noexcept {
        const std::byte octet{static_cast<unsigned char>(truth ? 1 : 0)};
        return scalar(value_tag::boolean, {&octet, 1});
    }
    writer& value_int(std::int64_t number) noexcept {
        return word(value_tag::integer, std::bit_cast<std::uint64_t>(number));
    }
    writer& value_real(double number) noexcept {
        return word(value_tag::real, std::bit_cast<std::uint64_t>(number));
    }
    writer& value_text(std::string_view text) noexcept;
    writer& value_path(std::string_view path) noexcept;
    writer& value_module(bytes content) noexcept;
    /// Opens a list: the values up to the matching end() are its items.
    writer& value_list() noexcept { return open(value_tag::list); }
    /// Opens a map: key() and a value in turn, up to the matching end().
    writer& value_map() noexcept { return open(value_tag::map); }
    /// The key of the next value; only inside a map, strictly above the key before it by bytes.
    writer& key(std::string_view text) noexcept;
    /// Closes the list or map opened last.
    writer& end() noexcept;
    /// A value of a decoded envelope, with everything in it.
    writer& copy_value(const value& from) noexcept;

    /// An argument: the result of an earlier request on the same connection.
    writer& promise(std::uint64_t request_id) noexcept;
    /// An argument: a capability the peer knows.
    writer& capability(const capability_id& id) noexcept;
    /// An argument of a decoded envelope, whatever it is.
    writer& copy_argument(const argument& from) noexcept;

    /// The bytes of the payload section; once at most, after the arguments.
    writer& payload(bytes content) noexcept;
    /// A capability descriptor; after the payload.
    writer& descriptor(const descriptor_fields& fields) noexcept;
    /// A descriptor of a decoded envelope.
    writer& copy_descriptor(const capability_descriptor& from) noexcept;

    /// Bytes of the envelope, now whole at the front of the caller's span; 0 if something failed.
    std::size_t finish() noexcept;
    /// The first failure since begin(); error::none if there is none.
    error why() const noexcept { return why_; }

    /// Bytes of the caller's span that were written since the last begin.
    std::size_t written() const noexcept {
        return at_ != nullptr ? static_cast<std::size_t>(at_ - out_.data()) : 0;
    }

    /// Starts arguments alone, with no envelope around them: for a call inside the process, which
    /// needs neither a head nor a decoding of what was just written. finish_arguments() ends them;
    /// payload, descriptors and finish() are for envelopes.
    writer& begin_arguments() noexcept;
    /// What was written since begin_arguments(), until the next begin; or why() if something
    /// failed, so that arguments that did not fit are never taken for none.
    result<argument_list> finish_arguments() noexcept;

private:
    enum class stage : std::uint8_t { idle, arguments, arguments_alone, capabilities };

    struct level {
        std::uint32_t count_at;    // where its count goes
        std::uint32_t items_count;
        std::uint32_t key_at;      // where the last key stands; 0: none yet
        std::uint32_t key_bytes;   // not read back: others may write to where envelopes are made
        bool is_map;
        bool key_waits;            // a key was written, its value was not
    };

    writer& fail(error why) noexcept {
        why_ = why_ == error::none ? why : why_;
        end_ = at_;
        return *this;
    }
    NETIO_COLD std::byte* refuse(error why) noexcept {
        fail(why);
        return nullptr;
    }
    std::uint32_t offset(const std::byte* at) const noexcept {
        return static_cast<std::uint32_t>(at - out_.data());
    }
    std::byte* claim(std::size_t fixed, std::size_t rest = 0) noexcept;
    std::byte* argument_head(argument_tag tag, std::size_t fixed, std::size_t rest = 0) noexcept;
    std::byte* item_head(value_tag tag, std::size_t fixed, std::size_t rest) noexcept;
    std::byte* value_head(value_tag tag, std::size_t fixed, std::size_t rest = 0) noexcept;
    std::byte* descriptor_head(std::size_t fixed, std::size_t rest = 0) noexcept;
    bool put_sized(bytes content) noexcept;
    writer& scalar(value_tag tag, bytes content) noexcept;
    writer& word(value_tag tag, std::uint64_t bits) noexcept;
    writer& sized(value_tag tag, bytes content) noexcept;
    writer& sized_text(value_tag tag, std::string_view text) noexcept;
    writer& open(value_tag tag) noexcept;
    error descriptor_error(const descriptor_fields& fields) const noexcept;
    envelope facts() const noexcept;

    mutable_bytes out_;             // all of the caller's bytes that may be used
    std::byte* at_ = nullptr;       // the next one
    std::byte* end_ = nullptr;      // one past the last; after a failure `at_`, so nothing fits
    std::uint32_t open_ = 0;
    std::uint32_t arguments_left_ = 0;    // how many more may come; 0 in every other stage too
    wire_limits limits_;
    error no_room_;                 // what it means to run out of bytes
    error why_ = error::none;
    stage stage_ = stage::idle;
    std::uint32_t arguments_at_ = 0;
    std::uint32_t arguments_count_ = 0;
    std::uint32_t payload_bytes_ = 0;
    std::uint32_t capabilities_at_ = 0;
    std::uint32_t capabilities_count_ = 0;
    level levels_[value_depth_max];
};

/// The next `fixed` + `rest` bytes, or null. Compared one by one, so that no sum can wrap.
NETIO_INLINE std::byte* writer::claim(std::size_t fixed, std::size_t rest) noexcept {
    NETIO_ASSERT_SLOW(at_ <= end_);
    const auto room = static_cast<std::size_t>(end_ - at_);
    if (NETIO_UNLIKELY(room < fixed || room - fixed < rest)) {
        return refuse(no_room_);
    }
    std::byte* const at = at_;
    at_ += fixed + rest;
    return at;
}

/// A u32 size and the bytes.
NETIO_INLINE bool writer::put_sized(bytes content) noexcept {
    std::byte* const to = claim(4, content.size());
    if (to == nullptr) {
        return false;
    }
    detail::store_little(to, static_cast<std::uint32_t>(content.size()));
    detail::copy_piece(to + 4, content);
    return true;
}

inline writer& writer::begin(envelope_kind kind, std::uint64_t request_id, std::string_view method,
                             std::uint16_t flags) noexcept {
    at_ = out_.data();
    end_ = at_ + out_.size();
    open_ = 0;
    arguments_left_ = limits_.arguments_max;
    payload_bytes_ = 0;
    capabilities_count_ = 0;
    stage_ = stage::arguments;
    why_ = error::none;
    if (!limits_.valid()) {
        return fail(error::limits_invalid);
    }
    if (flags > (flag_redact | flag_read_only) || !detail::utf8_valid(method)) {
        return fail(error::rpc_wire);
    }
    if (method.size() > limits_.method_max) {
        return fail(error::rpc_limit);
    }
    std::byte* const head = claim(detail::method_offset);
    if (head == nullptr) {
        return *this;
    }
    detail::put_head(head, kind, flags, request_id, detail::version_published);  // until finish()
    if (put_sized(as_bytes(method))) {
        arguments_at_ = offset(at_);
        claim(4);
    }
    return *this;
}

inline writer& writer::begin_arguments() noexcept {
    at_ = out_.data();
    end_ = at_ + out_.size();
    open_ = 0;
    arguments_left_ = limits_.arguments_max;
    stage_ = stage::arguments_alone;
    why_ = limits_.arguments_max != 0 ? error::none : error::limits_invalid;
    return *this;
}

inline result<argument_list> writer::finish_arguments() noexcept {
    if (stage_ != stage::arguments_alone || open_ != 0) {
        fail(error::rpc_wire);
    }
    stage_ = stage::idle;
    const std::uint32_t count = limits_.arguments_max - arguments_left_;
    arguments_left_ = 0;
    if (why_ != error::none) {
        return why_;
    }
    return argument_list(out_.data(), count);
}

/// The bytes behind the next argument's kind byte, which it writes; or null.
NETIO_INLINE std::byte* writer::argument_head(argument_tag tag, std::size_t fixed,
                                              std::size_t rest) noexcept {
    if (NETIO_UNLIKELY(arguments_left_ == 0 || open_ != 0)) {
        const bool may = stage_ == stage::arguments || stage_ == stage::arguments_alone;
        return refuse(may && open_ == 0 ? error::rpc_limit : error::rpc_wire);
    }
    std::byte* const at = claim(1 + fixed, rest);
    if (at == nullptr) {
        return nullptr;
    }
    --arguments_left_;
    *at = static_cast<std::byte>(tag);
    return at + 1;
}

/// The bytes behind the next item's tag, which it writes; or null.
NETIO_INLINE std::byte* writer::item_head(value_tag tag, std::size_t fixed,
                                          std::size_t rest) noexcept {
    level& around = levels_[open_ - 1];
    if (NETIO_UNLIKELY(open_ == value_depth_max || around.is_map != around.key_waits)) {
        return refuse(error::rpc_wire);
    }
    std::byte* const at = claim(1 + fixed, rest);
    if (at == nullptr) {
        return nullptr;
    }
    around.key_waits = false;
    ++around.items_count;
    *at = static_cast<std::byte>(tag);
    return at + 1;
}

/// The bytes behind the next value's tag, which it writes; or null.
NETIO_INLINE std::byte* writer::value_head(value_tag tag, std::size_t fixed,
                                           std::size_t rest) noexcept {
    if (open_ != 0) {
        return item_head(tag, fixed, rest);
    }
    std::byte* const at = argument_head(argument_tag::value, 1 + fixed, rest);
    if (at == nullptr) {
        return nullptr;
    }
    *at = static_cast<std::byte>(tag);
    return at + 1;
}

NETIO_INLINE writer& writer::scalar(value_tag tag, bytes content) noexcept {
    std::byte* const to = value_head(tag, content.size());
    if (to != nullptr && !content.empty()) {
        *to = content[0];
    }
    return *this;
}

NETIO_INLINE writer& writer::word(value_tag tag, std::uint64_t bits) noexcept {
    std::byte* const to = value_head(tag, sizeof(bits));
    if (to != nullptr) {
        detail::store_little(to, bits);
    }
    return *this;
}

NETIO_INLINE writer& writer::sized(value_tag tag, bytes content) noexcept {
    std::byte* const to = value_head(tag, 4, content.size());
    if (to == nullptr) {
        return *this;
    }
    detail::store_little(to, static_cast<std::uint32_t>(content.size()));
    detail::copy_piece(to + 4, content);
    return *this;
}

NETIO_INLINE writer& writer::sized_text(value_tag tag, std::string_view text) noexcept {
    return NETIO_LIKELY(detail::utf8_valid(text)) ? sized(tag, as_bytes(text))
                                                  : fail(error::rpc_wire);
}

inline writer& writer::value_text(std::string_view text) noexcept {
    return sized_text(value_tag::text, text);
}
inline writer& writer::value_path(std::string_view path) noexcept {
    return sized_text(value_tag::path, path);
}
inline writer& writer::value_module(bytes content) noexcept {
    return sized(value_tag::module_bytes, content);
}

inline writer& writer::open(value_tag tag) noexcept {
    std::byte* const to = value_head(tag, 4);
    if (to == nullptr) {
        return *this;
    }
    NETIO_ASSERT(open_ < value_depth_max);
    levels_[open_++] = {offset(to), 0, 0, 0, tag == value_tag::map, false};
    return *this;
}

inline writer& writer::key(std::string_view text) noexcept {
    if (open_ == 0 || !levels_[open_ - 1].is_map || levels_[open_ - 1].key_waits) {
        return fail(error::rpc_wire);
    }
    level& around = levels_[open_ - 1];
    const std::string_view before =
        around.key_at != 0 ? as_text(out_.subspan(around.key_at, around.key_bytes))
                           : std::string_view{};
    const bool ascends = around.key_at == 0 || detail::text_before(before, text);
    if (!ascends || !detail::utf8_valid(text)) {
        return fail(error::rpc_wire);
    }
    const std::uint32_t key_at = offset(at_) + 4;
    if (put_sized(as_bytes(text))) {
        around.key_at = key_at;
        around.key_bytes = static_cast<std::uint32_t>(text.size());
        around.key_waits = true;
    }
    return *this;
}

inline writer& writer::end() noexcept {
    if (open_ == 0 || levels_[open_ - 1].key_waits) {
        return fail(error::rpc_wire);
    }
    const level& closed = levels_[--open_];
    detail::store_little(out_.data() + closed.count_at, closed.items_count);
    return *this;
}

inline writer& writer::copy_value(const value& from) noexcept {
    const bytes whole = from.wire();
    NETIO_ASSERT(!whole.empty());
    if (open_ != 0 && from.depth() > value_depth_max - open_) {
        return fail(error::rpc_wire);
    }
    std::byte* const to = value_head(from.tag(), 0, whole.size() - 1);
    if (to != nullptr) {
        std::memcpy(to, whole.data() + 1, whole.size() - 1);
    }
    return *this;
}

inline writer& writer::promise(std::uint64_t request_id) noexcept {
    std::byte* const to = argument_head(argument_tag::promise, sizeof(request_id));
    if (to != nullptr) {
        detail::store_little(to, request_id);
    }
    return *this;
}

inline writer& writer::capability(const capability_id& id) noexcept {
    std::byte* const to = argument_head(argument_tag::capability, sizeof(id.octets));
    if (to != nullptr) {
        std::memcpy(to, id.octets, sizeof(id.octets));
    }
    return *this;
}

inline writer& writer::copy_argument(const argument& from) noexcept {
    const bytes whole = from.wire();
    NETIO_ASSERT(!whole.empty());
    std::byte* const to = argument_head(from.tag(), 0, whole.size() - 1);
    if (to != nullptr) {
        std::memcpy(to, whole.data() + 1, whole.size() - 1);
    }
    return *this;
}

inline writer& writer::payload(bytes content) noexcept {
    if (stage_ != stage::arguments || open_ != 0) {
        return fail(error::rpc_wire);
    }
    if (content.size() > limits_.payload_max) {
        return fail(error::rpc_limit);
    }
    if (put_sized(content)) {
        arguments_count_ = limits_.arguments_max - arguments_left_;
        arguments_left_ = 0;
        detail::store_little(out_.data() + arguments_at_, arguments_count_);
        payload_bytes_ = static_cast<std::uint32_t>(content.size());
        capabilities_at_ = offset(at_);
        stage_ = stage::capabilities;
        claim(4);
    }
    return *this;
}

/// The first bytes of the next descriptor, or null.
inline std::byte* writer::descriptor_head(std::size_t fixed, std::size_t rest) noexcept {
    if (stage_ == stage::arguments) {
        payload({});
    }
    if (stage_ != stage::capabilities) {
        return refuse(error::rpc_wire);
    }
    if (capabilities_count_ == limits_.capabilities_max) {
        return refuse(error::rpc_limit);
    }
    ++capabilities_count_;
    return claim(fixed, rest);
}

inline error writer::descriptor_error(const descriptor_fields& fields) const noexcept {
    if (fields.methods.size() > limits_.methods_max) {
        return error::rpc_limit;
    }
    bool good = !fields.methods.empty() && fields.spend.valid() &&
                (!fields.has_path || detail::utf8_valid(fields.path));
    const std::span<const std::string_view> methods = fields.methods;
    for (std::size_t index = 0; good && index < methods.size(); ++index) {
        good = detail::utf8_valid(methods[index]) &&
               (index == 0 || detail::text_before(methods[index - 1], methods[index]));
    }
    return good ? error::none : error::rpc_capability_table;
}

inline writer& writer::descriptor(const descriptor_fields& fields) noexcept {
    if (const error why = descriptor_error(fields); why != error::none) {
        return fail(why);
    }
    std::byte* const head = descriptor_head(sizeof(capability_id) + 4);
    if (head == nullptr) {
        return *this;
    }
    std::memcpy(head, fields.id.octets, sizeof(capability_id));
    detail::store_little(head + 16, static_cast<std::uint32_t>(fields.methods.size()));
    for (const std::string_view method : fields.methods) {
        put_sized(as_bytes(method));
    }
    std::byte* to = claim(detail::budget_bytes + 1);
    if (to == nullptr) {
        return *this;
    }
    const budget& spend = fields.spend;
    for (const std::uint64_t bound :
         {spend.calls_max, spend.bytes_max, spend.wall_ms_max, spend.nodes_max, spend.depth_max,
          spend.array_max, spend.value_bytes_max}) {
        detail::store_little(to, bound);
        to += sizeof(bound);
    }
    const unsigned flags = (fields.read_only ? detail::descriptor_read_only : 0u) |
                           (fields.redact ? detail::descriptor_redact : 0u) |
                           (fields.has_path ? detail::descriptor_path : 0u);
    *to = static_cast<std::byte>(flags);
    if (fields.has_path) {
        put_sized(as_bytes(fields.path));
    }
    return *this;
}

inline writer& writer::copy_descriptor(const capability_descriptor& from) noexcept {
    if (from.methods().size() > limits_.methods_max) {
        return fail(error::rpc_limit);
    }
    const bytes whole = from.wire();
    std::byte* const to = descriptor_head(whole.size());
    if (to != nullptr) {
        std::memcpy(to, whole.data(), whole.size());
    }
    return *this;
}

/// What was written, as far as the rules of the kinds ask for it.
inline envelope writer::facts() const noexcept {
    NETIO_ASSERT(capabilities_at_ >= envelope_bytes_min - 4 + payload_bytes_);
    envelope out;
    out.kind = static_cast<envelope_kind>(out_[5]);
    out.request_id = detail::load_little<std::uint64_t>(out_.data() + 8);
    out.method = detail::read_text(out_.data() + detail::method_offset);
    out.arguments = {out_.data() + arguments_at_ + 4, arguments_count_};
    out.payload = out_.subspan(capabilities_at_ - payload_bytes_, payload_bytes_);
    out.capabilities = {out_.data() + capabilities_at_ + 4, capabilities_count_};
    return out;
}

inline std::size_t writer::finish() noexcept {
    if (stage_ == stage::arguments) {
        payload({});
    }
    if (stage_ != stage::capabilities) {
        fail(error::rpc_wire);
    }
    stage_ = stage::idle;
    arguments_left_ = 0;
    if (why_ == error::none && !detail::shape_valid(facts())) {
        fail(error::rpc_wire);
    }
    if (why_ != error::none) {
        return 0;
    }
    NETIO_ASSERT(open_ == 0);
    const bool plain = arguments_count_ == 0 && capabilities_count_ == 0;
    out_[detail::version_offset] = plain ? detail::version_published : detail::version_profile;
    detail::store_little(out_.data() + capabilities_at_, capabilities_count_);
    return offset(at_);
}

}  // namespace rpc

NETIO_END

#endif
