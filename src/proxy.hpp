// floor 3 · proxy.hpp · PROXY protocol versions 1 and 2: parse and encode, with TLVs and CRC32C
#ifndef NETIO_PROXY_HPP
#define NETIO_PROXY_HPP

#include "src/bytes.hpp"
#include "src/crc32c.hpp"
#include "src/endpoint.hpp"

NETIO_BEGIN

/// The text: haproxy's doc/proxy-protocol.txt, revision of 2026-04-27. Where it leaves a choice,
/// docs/proxy.md says which one was made.
namespace proxy {

enum class command : std::uint8_t { local, proxy };
enum class family : std::uint8_t { unspecified, ipv4, ipv6, unix_path };
enum class transport : std::uint8_t { unspecified, stream, datagram };
enum class versions : std::uint8_t { v1, v2, either };

/// Bounds of options::header_max: what fits one segment everywhere, and what the length field of
/// version 2 can say.
inline constexpr std::uint32_t header_max_least = 536;
inline constexpr std::uint32_t header_max_most = 16 + 65535;
/// The longest line of version 1, CRLF included.
inline constexpr std::size_t v1_line_max = 107;
inline constexpr std::size_t unique_id_max = 128;
inline constexpr std::size_t unix_path_max = 108;

/// TLV types of version 2. E0 to EF belong to applications, see the vendor helpers below.
inline constexpr std::uint8_t tlv_alpn = 0x01;
inline constexpr std::uint8_t tlv_authority = 0x02;
inline constexpr std::uint8_t tlv_crc32c = 0x03;
inline constexpr std::uint8_t tlv_noop = 0x04;
inline constexpr std::uint8_t tlv_unique_id = 0x05;
inline constexpr std::uint8_t tlv_ssl = 0x20;
inline constexpr std::uint8_t tlv_netns = 0x30;
/// Types inside an SSL TLV.
inline constexpr std::uint8_t ssl_version = 0x21;
inline constexpr std::uint8_t ssl_common_name = 0x22;
inline constexpr std::uint8_t ssl_cipher = 0x23;
inline constexpr std::uint8_t ssl_signature = 0x24;
inline constexpr std::uint8_t ssl_key = 0x25;
inline constexpr std::uint8_t ssl_group = 0x26;
inline constexpr std::uint8_t ssl_signature_scheme = 0x27;
inline constexpr std::uint8_t ssl_certificate = 0x28;

struct options {
    versions accept = versions::either;
    /// Version 2 headers of more bytes are refused from their fixed part, before the rest is
    /// awaited. 536 to 65551; anything else is the caller's mistake.
    std::uint32_t header_max = 4096;
    /// Takes a plain IPv4 address behind TCP6 (nginx stream writes it) as a mapped one.
    bool tcp6_with_ipv4 = false;
};

/// One type-length-value. The bytes are raw: not text, not NUL-ended, may be empty.
struct tlv {
    std::uint8_t type = 0;
    bytes value;

    /// False for what find() returns where there is none.
    constexpr bool present() const noexcept { return value.data() != nullptr; }
};

struct ssl_view;

/// The TLVs of a header in their order, NOOPs left out. A forward range of `tlv` over the parsed
/// bytes; valid as long as they are.
class tlv_list {
public:
    /// A std::forward_iterator. Without a tag: one would cost every user <iterator>, and with it
    /// <string> and <locale>.
    class iterator {
    public:
        using value_type = tlv;
        using difference_type = std::ptrdiff_t;

        iterator() noexcept = default;
        tlv operator*() const noexcept {
            NETIO_ASSERT(rest_.size() >= 3);
            return {std::to_integer<std::uint8_t>(rest_[0]), rest_.subspan(3, value_bytes())};
        }
        iterator& operator++() noexcept {
            NETIO_ASSERT(rest_.size() >= 3);
            rest_ = rest_.subspan(3 + value_bytes());
            skip_noops();
            return *this;
        }
        iterator operator++(int) noexcept {
            const iterator before = *this;
            ++*this;
            return before;
        }
        bool operator==(const iterator& other) const noexcept {
            return rest_.size() == other.rest_.size();
        }

    private:
        friend class tlv_list;
        explicit iterator(bytes rest) noexcept : rest_(rest) { skip_noops(); }
        std::size_t value_bytes() const noexcept {
            return netio::detail::load_big<std::uint16_t>(rest_.data() + 1);
        }
        void skip_noops() noexcept {
            while (!rest_.empty() && rest_[0] == std::byte{tlv_noop}) {
                rest_ = rest_.subspan(3 + value_bytes());
            }
        }
        bytes rest_;
    };

    tlv_list() noexcept = default;
    iterator begin() const noexcept { return iterator(all_); }
    iterator end() const noexcept { return iterator(all_.last(0)); }
    bool empty() const noexcept { return begin() == end(); }

    /// The first TLV of that type; `present()` is false where there is none.
    tlv find(std::uint8_t type) const noexcept {
        for (const tlv one : *this) {
            if (one.type == type) {
                return one;
            }
        }
        return {};
    }
    /// The first SSL TLV, taken apart; `present` is false where there is none.
    ssl_view ssl() const noexcept;

    /// The bytes of all TLVs as they were received, NOOPs and CRC included.
    bytes raw() const noexcept { return all_; }

    /// For the parser, which has checked that `checked` is a row of whole TLVs.
    static tlv_list over(bytes checked) noexcept {
        tlv_list out;
        out.all_ = checked;
        return out;
    }

private:
    bytes all_;
};

/// What the proxy says about TLS between it and the client. Types inside are `ssl_…`; one level
/// only, an SSL TLV in here is an unknown type like any other.
struct ssl_view {
    tlv_list inner;
    std::uint32_t verify = 0;    // 0: the client's certificate was presented and found good
    std::uint8_t client = 0;     // bits, see below
    bool present = false;

    bool over_tls() const noexcept { return (client & 1) != 0; }
    bool certificate_on_connection() const noexcept { return (client & 2) != 0; }
    bool certificate_in_session() const noexcept { return (client & 4) != 0; }
    /// A certificate was presented, now or earlier in the session, and found good.
    bool verified() const noexcept { return (client & 6) != 0 && verify == 0; }
};

inline ssl_view tlv_list::ssl() const noexcept {
    const tlv found = find(tlv_ssl);
    if (!found.present()) {
        return {};
    }
    NETIO_ASSERT(found.value.size() >= 5);
    ssl_view out;
    out.client = std::to_integer<std::uint8_t>(found.value[0]);
    out.verify = netio::detail::load_big<std::uint32_t>(found.value.data() + 1);
    out.inner = over(found.value.subspan(5));
    out.present = true;
    return out;
}

/// What a header says. Views point into the parsed bytes. Where `fam` is unspecified (LOCAL,
/// UNSPEC, UNKNOWN) there are neither addresses nor TLVs: use those of the socket.
struct header {
    std::uint8_t version = 0;
    command cmd = command::local;
    family fam = family::unspecified;
    transport proto = transport::unspecified;
    endpoint source;
    endpoint destination;
    bytes source_path;         // unix: at most 108 bytes; an abstract name begins with a NUL
    bytes destination_path;
    tlv_list tlvs;

    /// Cleared in two halves: g++ clears one block of this size with a string instruction, which
    /// takes longer than the whole parse.
    header() noexcept {
        std::byte* const at = reinterpret_cast<std::byte*>(this);
        std::memset(at, 0, 64);
        std::memset(at + 64, 0, sizeof(header) - 64);
    }

    /// True if `source` is a client's IP address, false where the socket's own has to do.
    constexpr bool names_client() const noexcept {
        return fam == family::ipv4 || fam == family::ipv6;
    }
};

}  // namespace proxy

namespace detail {

inline constexpr std::size_t proxy_fixed_bytes = 16;
inline constexpr std::uint64_t proxy_signature_begin = 0x0D0A0D0A000D0A51;
inline constexpr std::uint32_t proxy_signature_end = 0x5549540A;
inline constexpr std::string_view proxy_signature{"\r\n\r\n\0\r\nQUIT\n", 12};
inline constexpr std::string_view proxy_v1_prefix = "PROXY ";

// ---- version 1 ----

/// One address of the family that the token names, or a plain IPv4 one where the option allows it.
NETIO_INLINE bool proxy_take_address(text_cursor& from, bool six, bool plain_too,
                                     endpoint& out) noexcept {
    const text_cursor before = from;
    if (!six) {
        out.family = address_family::ipv4;
        return from.take_ipv4(out.address.data());
    }
    out.family = address_family::ipv6;
    if (from.take_ipv6(out.address.data())) {
        return true;
    }
    from = before;
    endpoint plain;
    plain.family = address_family::ipv4;
    if (!plain_too || !from.take_ipv4(plain.address.data())) {
        return false;
    }
    out = mapped(plain);
    return true;
}

NETIO_INLINE bool proxy_take_port(text_cursor& from, endpoint& out) noexcept {
    std::uint32_t port = 0;
    const bool taken = from.take_number(65535, port);
    out.port = static_cast<std::uint16_t>(port);
    return taken;
}

/// Why a complete line with a good token does not parse: the fields are counted first, so that a
/// reason does not depend on which field was looked at first.
NETIO_COLD inline error proxy_v1_why(std::string_view fields, bool six, bool plain_too) noexcept {
    std::string_view field[4];
    for (std::size_t at = 0; at < 4; ++at) {
        if (fields.empty() || fields.front() != ' ') {
            return error::v1_syntax;
        }
        fields.remove_prefix(1);
        field[at] = piece(fields, 0, fields.find(' '));
        fields.remove_prefix(field[at].size());
        if (field[at].empty()) {
            return error::v1_syntax;
        }
    }
    if (!fields.empty()) {
        return error::v1_syntax;
    }
    for (std::size_t at = 0; at < 2; ++at) {
        text_cursor from(field[at]);
        endpoint ignored;
        if (!proxy_take_address(from, six, plain_too, ignored) || !from.at_end()) {
            return error::v1_addr;
        }
    }
    return error::v1_port;
}

/// The token at the front of `rest`, empty where there is none. `undecided` where it may still
/// become one. A token ends at a space or CR.
inline std::string_view proxy_v1_token(std::string_view rest, bool& undecided) noexcept {
    undecided = false;
    for (const std::string_view token : {std::string_view("TCP4"), std::string_view("TCP6"),
                                         std::string_view("UNKNOWN")}) {
        if (rest.size() <= token.size()) {
            undecided = undecided || rest == piece(token, 0, rest.size());
        } else if (piece(rest, 0, token.size()) == token &&
                   (rest[token.size()] == ' ' || rest[token.size()] == '\r')) {
            return token;
        }
    }
    return {};
}

/// Everything but a good TCP4 or TCP6 line: UNKNOWN, unfinished, wrong. Looks at no more than the
/// 107 bytes a line may have. A reason never depends on how the bytes were split, so each check is
/// made as soon as its bytes are there and before those of later bytes.
inline parsed<proxy::header> proxy_v1_other(std::string_view text,
                                            const proxy::options& how) noexcept {
    using out = parsed<proxy::header>;
    const std::string_view prefix = piece(text, 0, proxy_v1_prefix.size());
    if (prefix != piece(proxy_v1_prefix, 0, prefix.size())) {
        return out::invalid(error::not_proxy);
    }
    const auto missing = static_cast<std::uint32_t>(text.size() < 15 ? 15 - text.size() : 1);
    if (prefix.size() < proxy_v1_prefix.size()) {
        return out::need(missing);
    }
    if (how.accept == proxy::versions::v2) {
        return out::invalid(error::proxy_version_refused);
    }
    bool undecided = false;
    const std::string_view rest = piece(text, prefix.size());
    const std::string_view token = proxy_v1_token(rest, undecided);
    if (token.empty()) {
        return undecided ? out::need(missing) : out::invalid(error::v1_proto);
    }
    const std::size_t end = text.find("\r\n");
    if (end == std::string_view::npos) {
        return text.size() < proxy::v1_line_max ? out::need(missing)
                                                : out::invalid(error::v1_too_long);
    }
    if (token.front() == 'T') {
        const std::size_t start = prefix.size() + token.size();
        const std::string_view fields = piece(text, start, end - start);
        return out::invalid(proxy_v1_why(fields, token == "TCP6", how.tcp6_with_ipv4));
    }
    out done;
    done.status = parse_status::complete;
    done.consumed = static_cast<std::uint32_t>(end + 2);
    done.value.version = 1;
    done.value.cmd = proxy::command::proxy;
    return done;
}

/// Everything behind the token of a TCP4 or TCP6 line, CRLF included.
NETIO_INLINE bool proxy_take_line(text_cursor& from, bool six, bool plain_too,
                                  proxy::header& out) noexcept {
    return proxy_take_address(from, six, plain_too, out.source) && from.take(' ') &&
           proxy_take_address(from, six, plain_too, out.destination) && from.take(' ') &&
           proxy_take_port(from, out.source) && from.take(' ') &&
           proxy_take_port(from, out.destination) && from.take('\r') && from.take('\n');
}

/// A good line is read in one pass; the cursor ends at the 107th byte, so a longer one is not good.
NETIO_NOINLINE inline void proxy_parse_v1(bytes input, const proxy::options& how,
                                          parsed<proxy::header>& out) noexcept {
    const std::string_view text = piece(as_text(input), 0, proxy::v1_line_max);
    bool good = false;
    bool six = false;
    if (text.size() > 14 && how.accept != proxy::versions::v2 &&
        std::memcmp(text.data(), "PROXY TC", 8) == 0) {
        text_cursor from(piece(text, 11));
        six = std::memcmp(text.data() + 7, "CP6 ", 4) == 0;
        if (six) {
            good = proxy_take_line(from, true, how.tcp6_with_ipv4, out.value);
        } else if (std::memcmp(text.data() + 7, "CP4 ", 4) == 0) {
            good = proxy_take_line(from, false, false, out.value);
        }
        out.consumed = static_cast<std::uint32_t>(text.size() - from.left());
    }
    if (NETIO_UNLIKELY(!good)) {
        out = proxy_v1_other(text, how);
        return;
    }
    out.status = parse_status::complete;
    out.value.version = 1;
    out.value.cmd = proxy::command::proxy;
    out.value.fam = six ? proxy::family::ipv6 : proxy::family::ipv4;
    out.value.proto = proxy::transport::stream;
}

// ---- version 2 ----

/// True if `in` is a row of whole TLVs.
inline bool proxy_whole_tlvs(bytes in) noexcept {
    while (in.size() >= 3) {
        const std::size_t total = std::size_t{3} + load_big<std::uint16_t>(in.data() + 1);
        if (total > in.size()) {
            return false;
        }
        in = in.subspan(total);
    }
    return in.empty();
}

/// The rules for the value of one type; `none` for types without any.
inline error proxy_check_value(std::uint8_t type, bytes value) noexcept {
    switch (type) {
    case proxy::tlv_crc32c:
        return value.size() == 4 ? error::none : error::crc_length;
    case proxy::tlv_unique_id:
        return value.size() <= proxy::unique_id_max ? error::none : error::unique_id_length;
    case proxy::tlv_ssl:
        return value.size() >= 5 && proxy_whole_tlvs(value.subspan(5)) ? error::none
                                                                       : error::ssl_truncated;
    default:
        return error::none;
    }
}

/// CRC32C of a header whose four CRC bytes at `crc_index` count as zero.
inline std::uint32_t proxy_crc(bytes whole, std::size_t crc_index) noexcept {
    constexpr std::byte zeros[4] = {};
    std::uint32_t crc = crc32c(whole.first(crc_index));
    crc = crc32c(zeros, crc);
    return crc32c(whole.subspan(crc_index + 4), crc);
}

/// Checks every TLV behind the addresses, and the CRC32C if there is one.
inline error proxy_check_tlvs(bytes whole, std::size_t first_index) noexcept {
    std::size_t crc_index = 0;
    std::size_t at = first_index;
    while (whole.size() - at >= 3) {
        const auto type = std::to_integer<std::uint8_t>(whole[at]);
        const std::size_t value_bytes = load_big<std::uint16_t>(whole.data() + at + 1);
        at += 3;
        if (value_bytes > whole.size() - at) {
            return error::tlv_truncated;
        }
        const error why = proxy_check_value(type, whole.subspan(at, value_bytes));
        if (why != error::none) {
            return why;
        }
        if (type == proxy::tlv_crc32c) {
            if (crc_index != 0) {
                return error::crc_duplicate;
            }
            crc_index = at;
        }
        at += value_bytes;
    }
    if (at != whole.size()) {
        return error::tlv_truncated;
    }
    if (crc_index != 0 &&
        load_big<std::uint32_t>(whole.data() + crc_index) != proxy_crc(whole, crc_index)) {
        return error::crc_mismatch;
    }
    return error::none;
}

/// A path ends at its first NUL or fills all 108 bytes; an abstract name begins with a NUL and its
/// length is not sent, so the zeros at its end are taken for filling.
inline bytes proxy_path(bytes field) noexcept {
    if (field[0] != std::byte{0}) {
        const std::size_t end = as_text(field).find('\0');
        return end == std::string_view::npos ? field : field.first(end);
    }
    std::size_t count = field.size();
    while (count != 0 && field[count - 1] == std::byte{0}) {
        --count;
    }
    return field.first(count);
}

template <std::size_t AddressBytes>
NETIO_INLINE void proxy_read_endpoint(const std::byte* address, const std::byte* port,
                                      endpoint& out) noexcept {
    std::memcpy(out.address.data(), address, AddressBytes);
    out.port = load_big<std::uint16_t>(port);
    out.family = AddressBytes == 4 ? address_family::ipv4 : address_family::ipv6;
}

inline constexpr std::uint8_t proxy_block_bytes[4] = {0, 12, 36, 216};

/// The size of the address block by the family and protocol byte; `no_block` where it names none.
/// A pair of which one half is UNSPEC counts as UNSPEC: nothing of it is read.
inline constexpr std::uint8_t proxy_no_block = 255;
inline constexpr auto proxy_kinds = [] {
    std::array<std::uint8_t, 256> out{};
    for (std::size_t kind = 0; kind < 256; ++kind) {
        const bool known = kind >> 4 <= 3 && (kind & 15) <= 2;
        const bool read = (kind & 15) != 0;
        out[kind] = !known ? proxy_no_block : read ? proxy_block_bytes[kind >> 4] : std::uint8_t{0};
    }
    return out;
}();

/// What the fixed part alone can be refused for; looked at only if it is refused.
NETIO_COLD inline error proxy_fixed_why(const std::byte* at, const proxy::options& how,
                                        std::size_t block_bytes) noexcept {
    const auto mode = std::to_integer<unsigned>(at[12]);
    if (how.accept == proxy::versions::v1) {
        return error::proxy_version_refused;
    }
    if (mode >> 4 != 2) {
        return error::v2_version;
    }
    if ((mode & 15) > 1) {
        return error::v2_command;
    }
    if (block_bytes == proxy_no_block) {
        return error::v2_family;
    }
    return load_big<std::uint16_t>(at + 14) < block_bytes ? error::v2_short : error::v2_too_big;
}

/// Less than the fixed part, or another signature.
NETIO_COLD inline void proxy_v2_other(bytes input, parsed<proxy::header>& out) noexcept {
    const std::string_view text = piece(as_text(input), 0, proxy_signature.size());
    if (input.size() >= proxy_fixed_bytes || text != piece(proxy_signature, 0, text.size())) {
        out = parsed<proxy::header>::invalid(error::not_proxy);
        return;
    }
    out.missing = static_cast<std::uint32_t>(proxy_fixed_bytes - input.size());
}

/// Everything behind a first look: unix paths, TLVs. Kept apart so that the usual headers are read
/// without saving a register.
NETIO_NOINLINE inline void proxy_parse_v2_rest(bytes whole, std::size_t block_bytes,
                                               parsed<proxy::header>& out) noexcept {
    if (out.value.fam == proxy::family::unix_path) {
        const std::byte* const at = whole.data() + proxy_fixed_bytes;
        out.value.source.family = address_family::unix_path;
        out.value.destination.family = address_family::unix_path;
        out.value.source_path = proxy_path({at, proxy::unix_path_max});
        out.value.destination_path = proxy_path({at + proxy::unix_path_max, proxy::unix_path_max});
    }
    const error why = proxy_check_tlvs(whole, proxy_fixed_bytes + block_bytes);
    if (NETIO_UNLIKELY(why != error::none)) {
        out = parsed<proxy::header>::invalid(why);
        return;
    }
    out.value.tlvs = proxy::tlv_list::over(whole.subspan(proxy_fixed_bytes + block_bytes));
}

/// What a balancer sends for TCP over IPv4 without TLVs, by far the usual header, is told by three
/// compares. False where it is another, with `out` untouched.
NETIO_INLINE bool proxy_parse_usual(bytes input, const proxy::options& how,
                                    parsed<proxy::header>& out) noexcept {
    const std::byte* const at = input.data();
    if (input.size() < 28 || load_big<std::uint64_t>(at) != proxy_signature_begin ||
        load_big<std::uint64_t>(at + 8) != 0x5549540A2111000C ||
        how.accept == proxy::versions::v1) {
        return false;
    }
    out.status = parse_status::complete;
    out.consumed = 28;
    out.value.version = 2;
    out.value.cmd = proxy::command::proxy;
    out.value.fam = proxy::family::ipv4;
    out.value.proto = proxy::transport::stream;
    proxy_read_endpoint<4>(at + 16, at + 24, out.value.source);
    proxy_read_endpoint<4>(at + 20, at + 26, out.value.destination);
    return true;
}

NETIO_NOINLINE inline void proxy_parse_v2(bytes input, const proxy::options& how,
                                          parsed<proxy::header>& out) noexcept {
    const std::byte* const at = input.data();
    if (NETIO_UNLIKELY(input.size() < proxy_fixed_bytes ||
                       load_big<std::uint64_t>(at) != proxy_signature_begin ||
                       load_big<std::uint32_t>(at + 8) != proxy_signature_end)) {
        proxy_v2_other(input, out);
        return;
    }
    const auto mode = std::to_integer<unsigned>(at[12]);
    const auto kind = std::to_integer<unsigned>(at[13]);
    const std::uint32_t length = load_big<std::uint16_t>(at + 14);
    const std::uint32_t total = proxy_fixed_bytes + length;
    const std::uint32_t block_bytes = (mode & 1) != 0 ? proxy_kinds[kind] : 0U;
    if (NETIO_UNLIKELY(how.accept == proxy::versions::v1 || mode >> 1 != 0x10 ||
                       block_bytes == proxy_no_block || length < block_bytes ||
                       total > how.header_max)) {
        out.status = parse_status::invalid;
        out.why = proxy_fixed_why(at, how, block_bytes);
        return;
    }
    if (NETIO_UNLIKELY(input.size() < total)) {
        out.missing = total - static_cast<std::uint32_t>(input.size());
        return;
    }
    out.status = parse_status::complete;
    out.consumed = total;
    proxy::header& value = out.value;
    value.version = 2;
    value.cmd = static_cast<proxy::command>(mode & 1);
    if (block_bytes == 0) {
        return;
    }
    value.fam = static_cast<proxy::family>(kind >> 4);
    value.proto = static_cast<proxy::transport>(kind & 15);
    if (block_bytes == 12) {
        proxy_read_endpoint<4>(at + 16, at + 24, value.source);
        proxy_read_endpoint<4>(at + 20, at + 26, value.destination);
    } else if (block_bytes == 36) {
        proxy_read_endpoint<16>(at + 16, at + 48, value.source);
        proxy_read_endpoint<16>(at + 32, at + 50, value.destination);
    }
    if (length != block_bytes || block_bytes == 216) {
        proxy_parse_v2_rest(input.first(total), block_bytes, out);
    }
}

}  // namespace detail

namespace proxy {

/// Reads one header from the front of `input`. Any thread, no state: call it again with more bytes
/// in front of the same ones after `incomplete`. Each call costs at most one look at the length
/// (version 2) or at 107 bytes (version 1) until the header is whole. A datagram carries its header
/// in front of its payload: there `incomplete` means refused.
NETIO_INLINE parsed<header> parse(bytes input, const options& how = {}) noexcept {
    NETIO_ASSERT(how.header_max - header_max_least <= header_max_most - header_max_least);
    parsed<header> out;
    if (netio::detail::proxy_parse_usual(input, how, out)) {
        return out;
    }
    if (input.empty()) {
        out.missing = 1;
    } else if (input[0] == std::byte{0x0D}) {
        netio::detail::proxy_parse_v2(input, how, out);
    } else {
        netio::detail::proxy_parse_v1(input, how, out);
    }
    return out;
}

/// A header for a connection or datagram between two IP endpoints; UNSPEC if either is none.
inline header between(const endpoint& source, const endpoint& destination,
                         transport proto = transport::stream) noexcept {
    header out;
    out.cmd = command::proxy;
    const bool four = unmapped(source).family == address_family::ipv4 &&
                      unmapped(destination).family == address_family::ipv4;
    const auto is_ip = [](const endpoint& one) noexcept {
        return one.family == address_family::ipv4 || one.family == address_family::ipv6;
    };
    if (is_ip(source) && is_ip(destination)) {
        out.fam = four ? family::ipv4 : family::ipv6;
        out.proto = proto;
        out.source = source;
        out.destination = destination;
    }
    return out;
}

}  // namespace proxy

namespace detail {

/// Both endpoints in one family: IPv4 if both are or are mapped, else IPv6 with IPv4 mapped.
/// False where one of them is no IP address.
inline bool proxy_level(endpoint& source, endpoint& destination) noexcept {
    source = unmapped(source);
    destination = unmapped(destination);
    if (source.family == address_family::ipv4 && destination.family == address_family::ipv4) {
        return true;
    }
    source = mapped(source);
    destination = mapped(destination);
    return source.family == address_family::ipv6 && destination.family == address_family::ipv6;
}

/// Only hex groups: the text allows no dotted tail, and some receivers take it at its word.
inline void proxy_put_address(line_writer& to, const endpoint& of) noexcept {
    if (of.family == address_family::ipv4) {
        put_ipv4(to, of.address.data());
    } else {
        put_ipv6_groups(to, of.address.data());
    }
}

/// Writes TLV heads and values; the caller has made sure of the room.
inline std::byte* proxy_put_tlv(std::byte* to, std::uint8_t type, bytes value) noexcept {
    *to = static_cast<std::byte>(type);
    store_big(to + 1, static_cast<std::uint16_t>(value.size()));
    if (!value.empty()) {
        std::memcpy(to + 3, value.data(), value.size());
    }
    return to + 3 + value.size();
}

/// The bytes all given TLVs take, or more than the length field can say where one of them is what a
/// receiver must refuse. CRC TLVs are not counted: a forwarded one would be wrong.
inline std::size_t proxy_tlv_bytes(std::span<const proxy::tlv> tlvs) noexcept {
    constexpr std::size_t too_much = 65536;
    std::size_t total = 0;
    for (const proxy::tlv& one : tlvs) {
        if (one.type == proxy::tlv_crc32c) {
            continue;
        }
        if (proxy_check_value(one.type, one.value) != error::none) {
            return too_much;
        }
        if (one.value.size() >= too_much) {
            return too_much;
        }
        total += 3 + one.value.size();
        if (total >= too_much) {
            return too_much;
        }
    }
    return total;
}

inline void proxy_put_path(std::byte* to, bytes path) noexcept {
    std::memset(to, 0, proxy::unix_path_max);
    if (!path.empty()) {
        std::memcpy(to, path.data(), path.size());
    }
}

/// What encode_v2 found out about its header before it writes a byte.
struct proxy_plan {
    endpoint source;
    endpoint destination;
    proxy::family wire = proxy::family::unspecified;
    std::size_t block_bytes = 0;
};

/// Brings both sides to one family. False where no legal header says this.
inline bool proxy_make_plan(const proxy::header& of, proxy_plan& plan) noexcept {
    plan.source = of.source;
    plan.destination = of.destination;
    if (of.cmd == proxy::command::local || of.proto == proxy::transport::unspecified) {
        return true;
    }
    if (of.fam == proxy::family::unix_path) {
        plan.wire = of.fam;
    } else if (of.names_client() && proxy_level(plan.source, plan.destination)) {
        plan.wire = plan.source.family == address_family::ipv4 ? proxy::family::ipv4
                                                               : proxy::family::ipv6;
    }
    plan.block_bytes = proxy_block_bytes[static_cast<std::size_t>(plan.wire)];
    return plan.wire != proxy::family::unix_path ||
           (of.source_path.size() <= proxy::unix_path_max &&
            of.destination_path.size() <= proxy::unix_path_max);
}

inline std::byte* proxy_put_block(std::byte* to, const proxy::header& of,
                                  const proxy_plan& plan) noexcept {
    if (plan.wire == proxy::family::unix_path) {
        proxy_put_path(to, of.source_path);
        proxy_put_path(to + proxy::unix_path_max, of.destination_path);
    } else {
        const std::size_t count = plan.wire == proxy::family::ipv4 ? 4 : 16;
        std::memcpy(to, plan.source.address.data(), count);
        std::memcpy(to + count, plan.destination.address.data(), count);
        store_big(to + 2 * count, plan.source.port);
        store_big(to + 2 * count + 2, plan.destination.port);
    }
    return to + plan.block_bytes;
}

}  // namespace detail

namespace proxy {

/// Writes the line of version 1 and returns its bytes, at most 107; 0, and nothing written, if
/// `out` is too small or the header is one of datagrams, which version 1 can't name. Without two IP
/// addresses it writes the short UNKNOWN line. LOCAL writes its addresses like any other, for
/// version 1 has no better way to announce a health check.
inline std::size_t encode_v1(const header& of, std::span<std::byte> out) noexcept {
    if (of.proto == transport::datagram) {
        return 0;
    }
    endpoint source = of.source;
    endpoint destination = of.destination;
    char text[v1_line_max + 1];
    netio::detail::line_writer line(text);
    if (!of.names_client() || !netio::detail::proxy_level(source, destination)) {
        line.put("PROXY UNKNOWN\r\n");
    } else {
        line.put(source.family == address_family::ipv4 ? "PROXY TCP4 " : "PROXY TCP6 ");
        netio::detail::proxy_put_address(line, source);
        line.put(" ");
        netio::detail::proxy_put_address(line, destination);
        line.put(" ").put(std::uint64_t{source.port});
        line.put(" ").put(std::uint64_t{destination.port}).put("\r\n");
    }
    const std::string_view whole = line.finish();
    if (whole.size() > out.size()) {
        return 0;
    }
    std::memcpy(out.data(), whole.data(), whole.size());
    return whole.size();
}

/// Writes a header of version 2 with the given TLVs, and with a CRC32C in front of them if asked;
/// returns its bytes. 0, and nothing written, if it does not fit `out` or the length field, if a
/// path is longer than 108 bytes or if a TLV breaks its own rule (UNIQUE_ID, SSL). A CRC TLV among
/// the given ones is left out. LOCAL and UNSPEC are 16 bytes: they carry no TLVs, and receivers
/// skip what stands there.
inline std::size_t encode_v2(const header& of, std::span<const tlv> tlvs,
                             std::span<std::byte> out, bool crc32c) noexcept {
    netio::detail::proxy_plan plan;
    if (!netio::detail::proxy_make_plan(of, plan)) {
        return 0;
    }
    const bool bare = plan.wire == family::unspecified;
    const std::size_t length =
        bare ? 0
             : plan.block_bytes + netio::detail::proxy_tlv_bytes(tlvs) + (crc32c ? 7U : 0U);
    const std::size_t total = netio::detail::proxy_fixed_bytes + length;
    if (total > out.size() || length > 65535) {
        return 0;
    }
    std::byte* const to = out.data();
    std::memcpy(to, netio::detail::proxy_signature.data(), 12);
    to[12] = static_cast<std::byte>(of.cmd == command::local ? 0x20 : 0x21);
    to[13] = static_cast<std::byte>(bare ? 0U
                                         : static_cast<unsigned>(plan.wire) << 4 |
                                               static_cast<unsigned>(of.proto));
    netio::detail::store_big(to + 14, static_cast<std::uint16_t>(length));
    if (bare) {
        return total;
    }
    std::byte* at = netio::detail::proxy_put_block(to + 16, of, plan);
    std::byte* const crc_at = at + 3;
    if (crc32c) {
        constexpr std::byte zeros[4] = {};
        at = netio::detail::proxy_put_tlv(at, tlv_crc32c, zeros);
    }
    for (const tlv& one : tlvs) {
        at = one.type == tlv_crc32c ? at : netio::detail::proxy_put_tlv(at, one.type, one.value);
    }
    NETIO_ASSERT(at == to + total);
    if (crc32c) {
        netio::detail::store_big(crc_at, netio::crc32c({to, total}));
    }
    return total;
}

// ---- vendors: one type may mean different things, so ask only for the sender you configured ----

/// AWS: the VPC endpoint id, empty if `of` is not that TLV (type EA, sub-type 01).
inline std::string_view aws_vpce_id(const tlv& of) noexcept {
    const bool it = of.type == 0xEA && !of.value.empty() && of.value[0] == std::byte{1};
    return it ? as_text(of.value.subspan(1)) : std::string_view{};
}
/// Azure Private Link: the link id (type EE, sub-type 01). False if `of` is not that TLV.
inline bool azure_link_id(const tlv& of, std::uint32_t& id) noexcept {
    if (of.type != 0xEE || of.value.size() != 5 || of.value[0] != std::byte{1}) {
        return false;
    }
    id = netio::detail::load_little<std::uint32_t>(of.value.data() + 1);
    return true;
}
/// GCP Private Service Connect: the connection id (type E0). False if `of` is not that TLV.
inline bool gcp_psc_id(const tlv& of, std::uint64_t& id) noexcept {
    if (of.type != 0xE0 || of.value.size() != 8) {
        return false;
    }
    id = netio::detail::load_big<std::uint64_t>(of.value.data());
    return true;
}

}  // namespace proxy

NETIO_END

#endif
