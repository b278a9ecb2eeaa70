// floor 2 · endpoint.hpp · addresses with ports and networks, their text form, without the OS
#ifndef NETIO_ENDPOINT_HPP
#define NETIO_ENDPOINT_HPP

#include "src/error.hpp"

#include <array>
#include <type_traits>

NETIO_BEGIN

enum class address_family : std::uint8_t { none, ipv4, ipv6, unix_path };

/// An address and a port. All-zero is "none". An IPv4 address stands in the first 4 bytes, the rest
/// zero; bytes are in network order, `port`, `scope_id` and `flow_info` are plain numbers. A unix
/// socket has only its family here, and as a peer in `scope_id` its process's id where the system
/// tells it: paths are views that travel beside it.
struct endpoint {
    std::array<std::uint8_t, 16> address{};
    std::uint32_t scope_id = 0;
    std::uint32_t flow_info = 0;
    std::uint16_t port = 0;
    address_family family = address_family::none;
    std::uint8_t reserved = 0;

    constexpr bool operator==(const endpoint&) const noexcept = default;
};
static_assert(sizeof(endpoint) == 28, "two endpoints are 56 bytes of every connection");
static_assert(std::is_trivially_copyable_v<endpoint>);

/// a.b.c.d:port.
constexpr endpoint ipv4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d,
                        std::uint16_t port) noexcept {
    endpoint out;
    out.address[0] = a;
    out.address[1] = b;
    out.address[2] = c;
    out.address[3] = d;
    out.port = port;
    out.family = address_family::ipv4;
    return out;
}
/// 0.0.0.0:port, every IPv4 address of this machine.
constexpr endpoint any_ipv4(std::uint16_t port) noexcept { return ipv4(0, 0, 0, 0, port); }
/// 127.0.0.1:port.
constexpr endpoint loopback_ipv4(std::uint16_t port) noexcept { return ipv4(127, 0, 0, 1, port); }
/// [::]:port, every IPv6 address of this machine.
constexpr endpoint any_ipv6(std::uint16_t port) noexcept {
    endpoint out;
    out.port = port;
    out.family = address_family::ipv6;
    return out;
}
/// [::1]:port.
constexpr endpoint loopback_ipv6(std::uint16_t port) noexcept {
    endpoint out = any_ipv6(port);
    out.address[15] = 1;
    return out;
}

/// True for an IPv4 address in IPv6 clothes, ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2): what a
/// dual-stack socket reports for IPv4 peers.
constexpr bool is_mapped(const endpoint& of) noexcept {
    if (of.family != address_family::ipv6 || of.address[10] != 0xFF || of.address[11] != 0xFF) {
        return false;
    }
    for (std::size_t at = 0; at < 10; ++at) {
        if (of.address[at] != 0) {
            return false;
        }
    }
    return true;
}
/// The plain IPv4 endpoint of a mapped one; anything else comes back unchanged.
constexpr endpoint unmapped(const endpoint& of) noexcept {
    if (!is_mapped(of)) {
        return of;
    }
    return ipv4(of.address[12], of.address[13], of.address[14], of.address[15], of.port);
}
/// The IPv6 endpoint ::ffff:a.b.c.d of an IPv4 one; anything else comes back unchanged.
constexpr endpoint mapped(const endpoint& of) noexcept {
    if (of.family != address_family::ipv4) {
        return of;
    }
    endpoint out = any_ipv6(of.port);
    out.address[10] = 0xFF;
    out.address[11] = 0xFF;
    for (std::size_t at = 0; at < 4; ++at) {
        out.address[12 + at] = of.address[at];
    }
    return out;
}

namespace detail {

/// A piece of a text, cut to what there is: string_view's own substr may throw, which pulls in the
/// C++ run time.
constexpr std::string_view piece(std::string_view of, std::size_t from,
                                 std::size_t count = std::string_view::npos) noexcept {
    const std::size_t start = from < of.size() ? from : of.size();
    const std::size_t left = of.size() - start;
    return {of.data() + start, count < left ? count : left};
}

constexpr bool is_digit(char letter) noexcept { return letter >= '0' && letter <= '9'; }

/// 0 to 15, or 16 where the letter is no hex digit.
constexpr unsigned hex_value(char letter) noexcept {
    if (is_digit(letter)) {
        return static_cast<unsigned>(letter - '0');
    }
    const char lower = static_cast<char>(letter | 0x20);
    return lower >= 'a' && lower <= 'f' ? static_cast<unsigned>(lower - 'a' + 10) : 16U;
}

/// Reads addresses and numbers from the front of a text. Each call takes as much as its grammar
/// allows and returns false, with the position anywhere, where the grammar does not fit; what must
/// follow (a space, a bracket, the end) is the caller's to check. Shared with PROXY v1.
class text_cursor {
public:
    constexpr explicit text_cursor(std::string_view from) noexcept
        : at_(from.data()), end_(from.data() + from.size()) {}

    constexpr bool at_end() const noexcept { return at_ == end_; }
    constexpr std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
    constexpr bool next_is(char letter) const noexcept { return at_ != end_ && *at_ == letter; }
    constexpr bool take(char letter) noexcept {
        if (!next_is(letter)) {
            return false;
        }
        ++at_;
        return true;
    }

    /// A decimal number up to `value_max`, no sign, no leading zero.
    NETIO_INLINE constexpr bool take_number(std::uint32_t value_max, std::uint32_t& out) noexcept {
        const char* const start = at_;
        const char* at = start;
        std::uint64_t value = 0;
        for (; at != end_ && digit_at(at) <= 9; ++at) {
            value = value * 10 + digit_at(at);
            if (value > value_max) {
                return false;
            }
        }
        at_ = at;
        out = static_cast<std::uint32_t>(value);
        return at != start && (*start != '0' || at - start == 1);
    }

    /// a.b.c.d, each 0 to 255 without leading zeros. Writes 4 bytes.
    NETIO_INLINE constexpr bool take_ipv4(std::uint8_t* out) noexcept {
        const char* const after = end_ - at_ > ipv4_letters_max ? octets(false, at_, end_, out)
                                                                : octets_at_end(at_, end_, out);
        at_ = after != nullptr ? after : at_;
        return after != nullptr;
    }

    /// RFC 4291 section 2.2: groups of 1 to 4 hex digits, at most one "::" that stands for one
    /// group or more, the last 32 bits optionally dotted. Writes 16 bytes.
    constexpr bool take_ipv6(std::uint8_t* out) noexcept {
        std::array<std::uint8_t, 16> found{};
        std::size_t used = 0;
        std::size_t gap = no_gap;
        if (next_is(':') && !take_gap(used, gap)) {
            return false;
        }
        while (used < 16) {
            const char* const start = at_;
            std::uint32_t group = 0;
            if (!take_group(group)) {
                if (used != gap) {
                    return false;
                }
                break;
            }
            if (next_is('.')) {
                at_ = start;
                if (used > 12 || !take_ipv4(&found[used])) {
                    return false;
                }
                used += 4;
                break;
            }
            found[used] = static_cast<std::uint8_t>(group >> 8);
            found[used + 1] = static_cast<std::uint8_t>(group & 0xFF);
            used += 2;
            if (!next_is(':')) {
                break;
            }
            if (at_ + 1 != end_ && at_[1] == ':') {
                if (!take_gap(used, gap)) {
                    return false;
                }
            } else if (used == 16) {
                return false;
            } else {
                ++at_;
            }
        }
        return spread(found, used, gap, out);
    }

private:
    static constexpr std::size_t no_gap = 17;

    static constexpr std::ptrdiff_t ipv4_letters_max = 15;

    /// The digit, or a value above 9 where it is none.
    NETIO_WRAPS static constexpr unsigned digit_at(const char* at) noexcept {
        return static_cast<unsigned>(static_cast<unsigned char>(*at)) - '0';
    }

    /// Four octets and where they end, or null. Not `bounded`: there are more letters than an
    /// address can have, so no step has to ask. Without loops: a PROXY line has eight of these.
    /// The choices are constants where it is inlined (not template arguments: clang 14 leaves
    /// nested templates uninstantiated in constant expressions).
    NETIO_INLINE static constexpr const char* octets(bool bounded, const char* at, const char* end,
                                                     std::uint8_t* out) noexcept {
        at = octet(bounded, false, at, end, out[0]);
        at = at != nullptr ? octet(bounded, true, at, end, out[1]) : at;
        at = at != nullptr ? octet(bounded, true, at, end, out[2]) : at;
        return at != nullptr ? octet(bounded, true, at, end, out[3]) : at;
    }
    NETIO_NOINLINE static constexpr const char* octets_at_end(const char* at, const char* end,
                                                              std::uint8_t* out) noexcept {
        return octets(true, at, end, out);
    }

    /// 0 to 255 in one to three digits, behind a dot where `dot`.
    NETIO_INLINE static constexpr const char* octet(bool bounded, bool dot, const char* at,
                                                    const char* end, std::uint8_t& out) noexcept {
        if (dot && ((bounded && at == end) || *at++ != '.')) {
            return nullptr;
        }
        if ((bounded && at == end) || digit_at(at) > 9) {
            return nullptr;
        }
        unsigned value = digit_at(at++);
        if ((!bounded || at != end) && digit_at(at) <= 9) {
            if (value == 0) {
                return nullptr;
            }
            value = value * 10 + digit_at(at++);
            if ((!bounded || at != end) && digit_at(at) <= 9) {
                value = value * 10 + digit_at(at++);
            }
        }
        out = static_cast<std::uint8_t>(value);
        return value <= 255 ? at : nullptr;
    }

    /// The first colon is there.
    constexpr bool take_gap(std::size_t used, std::size_t& gap) noexcept {
        if (gap != no_gap) {
            return false;
        }
        ++at_;
        gap = used;
        return take(':');
    }

    constexpr bool take_group(std::uint32_t& out) noexcept {
        std::size_t digits = 0;
        std::uint32_t value = 0;
        for (; at_ != end_; ++at_, ++digits) {
            const unsigned digit = hex_value(*at_);
            if (digit == 16) {
                break;
            }
            if (digits == 4) {
                return false;
            }
            value = value << 4 | digit;
        }
        out = value;
        return digits != 0;
    }

    /// Moves what was found behind "::" to the end of the address.
    static constexpr bool spread(const std::array<std::uint8_t, 16>& found, std::size_t used,
                                 std::size_t gap, std::uint8_t* out) noexcept {
        if ((gap == no_gap) != (used == 16)) {
            return false;
        }
        const std::size_t before = gap == no_gap ? 16 : gap;
        for (std::size_t at = 0; at < 16; ++at) {
            out[at] = 0;
        }
        for (std::size_t at = 0; at < before; ++at) {
            out[at] = found[at];
        }
        for (std::size_t at = before; at < used; ++at) {
            out[16 - used + at] = found[at];
        }
        return true;
    }

    const char* at_;
    const char* end_;
};

constexpr bool is_host_letter(char letter) noexcept {
    const char lower = static_cast<char>(letter | 0x20);
    return is_digit(letter) || letter == '-' || letter == '_' || (lower >= 'a' && lower <= 'z');
}

/// Why a text is no address: people who write a name want to hear that names are not looked up.
/// A name is dotted labels, the last of which is not all digits (else it was meant as IPv4).
constexpr error not_an_address(std::string_view text) noexcept {
    bool digits_only = true;
    bool label_empty = true;
    for (const char letter : text) {
        if (letter == '.') {
            if (label_empty) {
                return error::address_invalid;
            }
            label_empty = true;
            digits_only = true;
        } else if (!is_host_letter(letter)) {
            return error::address_invalid;
        } else {
            label_empty = false;
            digits_only = digits_only && is_digit(letter);
        }
    }
    return label_empty || digits_only ? error::address_invalid : error::host_name_given;
}

}  // namespace detail

/// An address without a port: "192.0.2.1", "2001:db8::1", "fe80::1%3" (the zone as a number). Asks
/// no operating system. A host name gives `host_name_given`, anything else `address_invalid`.
constexpr result<endpoint> parse_address(std::string_view text) noexcept {
    endpoint out;
    detail::text_cursor from(text);
    if (from.take_ipv4(out.address.data()) && from.at_end()) {
        out.family = address_family::ipv4;
        return out;
    }
    out = {};
    from = detail::text_cursor(text);
    if (!from.take_ipv6(out.address.data())) {
        return detail::not_an_address(text);
    }
    if (from.take('%') && !from.take_number(UINT32_MAX, out.scope_id)) {
        return error::address_invalid;
    }
    if (!from.at_end()) {
        return detail::not_an_address(text);
    }
    out.family = address_family::ipv6;
    return out;
}

/// An address with its port, both stated: "192.0.2.1:80", "[2001:db8::1]:80", "[fe80::1%3]:80".
/// Errors as for parse_address; IPv6 without brackets is `address_invalid`.
constexpr result<endpoint> parse_endpoint(std::string_view text) noexcept {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) {
        return detail::not_an_address(text);
    }
    std::string_view host = detail::piece(text, 0, colon);
    const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
    if (bracketed) {
        host = detail::piece(host, 1, host.size() - 2);
    }
    result<endpoint> out = parse_address(host);
    if (!out) {
        return bracketed ? error::address_invalid : out.why;
    }
    std::uint32_t port = 0;
    detail::text_cursor from(detail::piece(text, colon + 1));
    if (bracketed != (out.value.family == address_family::ipv6) ||
        !from.take_number(65535, port) || !from.at_end()) {
        return error::address_invalid;
    }
    out.value.port = static_cast<std::uint16_t>(port);
    return out;
}

/// Room that every text of `format` and `format_address` fits in, NUL included.
inline constexpr std::size_t endpoint_text_max = 64;

namespace detail {

constexpr void put_ipv4(line_writer& to, const std::uint8_t* from) noexcept {
    for (std::size_t octet = 0; octet < 4; ++octet) {
        to.put(octet == 0 ? "" : ".").put(std::uint64_t{from[octet]});
    }
}

constexpr void put_hex(line_writer& to, unsigned value) noexcept {
    constexpr std::string_view digits = "0123456789abcdef";
    unsigned shift = 12;
    while (shift != 0 && (value >> shift) == 0) {
        shift -= 4;
    }
    for (;; shift -= 4) {
        to.put(piece(digits, value >> shift & 15, 1));
        if (shift == 0) {
            return;
        }
    }
}

/// RFC 5952 section 4: lower case, no leading zeros, "::" for the longest run of at least two zero
/// groups, the first of equal ones.
constexpr void put_ipv6_groups(line_writer& to, const std::uint8_t* from) noexcept {
    std::array<unsigned, 8> groups{};
    for (std::size_t at = 0; at < 8; ++at) {
        groups[at] = static_cast<unsigned>(from[2 * at]) << 8 | from[2 * at + 1];
    }
    std::size_t run_index = 8;
    std::size_t run_count = 1;
    for (std::size_t at = 0; at < 8; ++at) {
        std::size_t zeros = 0;
        while (at + zeros < 8 && groups[at + zeros] == 0) {
            ++zeros;
        }
        if (zeros > run_count) {
            run_index = at;
            run_count = zeros;
        }
    }
    for (std::size_t at = 0; at < 8; ++at) {
        if (at == run_index) {
            to.put("::");
            at += run_count - 1;
            continue;
        }
        to.put(at == 0 || at == run_index + run_count ? "" : ":");
        put_hex(to, groups[at]);
    }
}

/// Mapped addresses with a dotted tail (RFC 5952 section 5).
constexpr void put_ipv6(line_writer& to, const endpoint& of) noexcept {
    if (is_mapped(of)) {
        to.put("::ffff:");
        put_ipv4(to, &of.address[12]);
    } else {
        put_ipv6_groups(to, of.address.data());
    }
}

constexpr void put_address(line_writer& to, const endpoint& of) noexcept {
    switch (of.family) {
    case address_family::ipv4:
        put_ipv4(to, of.address.data());
        break;
    case address_family::ipv6:
        put_ipv6(to, of);
        if (of.scope_id != 0) {
            to.put("%").put(std::uint64_t{of.scope_id});
        }
        break;
    case address_family::unix_path:
        to.put("unix");
        break;
    default:
        to.put("none");
        break;
    }
}

}  // namespace detail

/// The canonical text of the address alone (RFC 5952), "none" or "unix" where there is none. Cut to
/// fit, a terminating NUL included; `endpoint_text_max` always suffices.
constexpr std::string_view format_address(const endpoint& of, std::span<char> out) noexcept {
    detail::line_writer line(out);
    detail::put_address(line, of);
    return line.finish();
}

/// The canonical text with the port: "192.0.2.1:80", "[2001:db8::1]:80". Cut to fit like
/// format_address; parse_endpoint reads it back.
constexpr std::string_view format(const endpoint& of, std::span<char> out) noexcept {
    detail::line_writer line(out);
    const bool six = of.family == address_family::ipv6;
    line.put(six ? "[" : "");
    detail::put_address(line, of);
    line.put(six ? "]" : "");
    if (six || of.family == address_family::ipv4) {
        line.put(":").put(std::uint64_t{of.port});
    }
    return line.finish();
}

/// A range of addresses, "10.0.0.0/8". All-zero contains nothing.
struct network {
    std::array<std::uint8_t, 16> address{};
    std::uint8_t prefix = 0;
    address_family family = address_family::none;

    constexpr bool operator==(const network&) const noexcept = default;
};

namespace detail {

/// True if all bits of `address` behind the first `prefix` are zero.
constexpr bool host_bits_clear(const std::array<std::uint8_t, 16>& address,
                               unsigned prefix) noexcept {
    for (unsigned at = prefix / 8; at < 16; ++at) {
        const unsigned keep = at == prefix / 8 ? prefix % 8 : 0;
        if ((static_cast<unsigned>(address[at]) << keep & 0xFF) != 0) {
            return false;
        }
    }
    return true;
}

}  // namespace detail

/// "10.0.0.0/8", "2001:db8::/32"; without a slash the one address. Bits set behind the prefix are
/// an error, for they show a typing mistake. Networks inside ::ffff:0:0/96 become IPv4 ones.
constexpr result<network> parse_network(std::string_view text) noexcept {
    const std::size_t slash = text.find('/');
    const result<endpoint> base = parse_address(detail::piece(text, 0, slash));
    if (!base) {
        return base.why;
    }
    const std::uint32_t prefix_max = base.value.family == address_family::ipv4 ? 32 : 128;
    std::uint32_t prefix = prefix_max;
    if (slash != std::string_view::npos) {
        detail::text_cursor from(detail::piece(text, slash + 1));
        if (!from.take_number(prefix_max, prefix) || !from.at_end()) {
            return error::address_invalid;
        }
    }
    if (base.value.scope_id != 0 || !detail::host_bits_clear(base.value.address, prefix)) {
        return error::address_invalid;
    }
    network out;
    const bool narrow = prefix >= 96 && is_mapped(base.value);
    const endpoint plain = narrow ? unmapped(base.value) : base.value;
    out.address = plain.address;
    out.prefix = static_cast<std::uint8_t>(narrow ? prefix - 96 : prefix);
    out.family = plain.family;
    return out;
}

/// True if the address of `who` lies in `in`. Mapped addresses are unmapped first, so a dual-stack
/// socket needs no second rule, and ::/0 means every IPv6 address but no IPv4 one.
constexpr bool contains(const network& in, const endpoint& who) noexcept {
    const endpoint plain = unmapped(who);
    if (in.family != plain.family || in.family == address_family::none ||
        in.family == address_family::unix_path) {
        return false;
    }
    std::array<std::uint8_t, 16> difference{};
    for (std::size_t at = 0; at < 16; ++at) {
        difference[at] = static_cast<std::uint8_t>(in.address[at] ^ plain.address[at]);
    }
    for (unsigned at = 0; at < in.prefix; ++at) {
        if ((difference[at / 8] >> (7 - at % 8) & 1) != 0) {
            return false;
        }
    }
    return true;
}

/// Those who are counted as one: an IPv4 address, or the IPv6 addresses of one network, since a
/// single machine commonly has all 2^64 of those. Others (unix, none) are not counted.
struct source {
    std::uint64_t prefix = 0;
    address_family family = address_family::none;

    constexpr bool operator==(const source&) const noexcept = default;
};

/// The first `ipv4_bits` (1 to 32) or `ipv6_bits` (1 to 64) of an address. An IPv4 address in IPv6
/// form is the IPv4 address.
constexpr source source_of(const endpoint& who, std::uint32_t ipv4_bits = 32,
                           std::uint32_t ipv6_bits = 64) noexcept {
    const endpoint plain = unmapped(who);
    const bool narrow = plain.family == address_family::ipv4;
    if (!narrow && plain.family != address_family::ipv6) {
        return {};
    }
    NETIO_ASSERT(ipv4_bits >= 1 && ipv4_bits <= 32 && ipv6_bits >= 1 && ipv6_bits <= 64);
    const std::uint32_t all = narrow ? 32 : 64;
    std::uint64_t first = 0;
    for (std::uint32_t at = 0; at < all / 8; ++at) {
        first = first << 8 | plain.address[at];
    }
    const std::uint32_t dropped = all - (narrow ? ipv4_bits : ipv6_bits);
    return {first >> dropped << dropped, plain.family};
}

NETIO_END

#endif
