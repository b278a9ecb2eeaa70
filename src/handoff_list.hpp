// floor 4 · handoff_list.hpp · the list of listeners that a process hands to its successor
#ifndef NETIO_HANDOFF_LIST_HPP
#define NETIO_HANDOFF_LIST_HPP

#include "src/bytes.hpp"
#include "src/crc32c.hpp"
#include "src/endpoint.hpp"
#include "src/local.hpp"

NETIO_BEGIN

/// Listeners of one hand-off.
inline constexpr std::size_t handoff_entries_max = 64;
/// Bytes of a listener's name: visible ASCII.
inline constexpr std::size_t handoff_name_max = 64;
/// Bytes of a unix socket's path, as long as any system has them.
inline constexpr std::size_t handoff_path_max = 107;

/// What can be handed on. The number is what goes over the wire.
enum class handoff_kind : std::uint8_t { none = 0, stream_listener = 1 };

/// One line of the list. Views point into what was parsed.
struct handoff_entry {
    handoff_kind kind = handoff_kind::stream_listener;
    std::string_view name{};       ///< how the two processes call it
    endpoint address{};            ///< where it is bound; family unix_path: only that
    std::string_view unix_path{};  ///< and where then; '@' begins a name without a file
    socket_file file{};            ///< whose file the path is; its process does not travel
};

/// The list, parsed.
struct handoff_list {
    std::uint32_t count = 0;
    std::uint32_t checksum = 0;  ///< tells one list from another
    handoff_entry entries[handoff_entries_max]{};
};

namespace detail {

// All numbers little-endian:
//    0  magic "netio-HO"
//    8  u16 version   10  u16 count   12  u32 length of everything, checksum included
//   16  the entries: u8 kind, u8 family (1 IPv4, 2 IPv6, 3 unix), u8 name bytes, u8 path bytes,
//       u16 port, u16 zero, u32 scope, u32 flow, 16 bytes address, u64 device, u64 inode, the name,
//       the path
//  end  u32 CRC32C of everything before it
inline constexpr char handoff_magic[] = {'n', 'e', 't', 'i', 'o', '-', 'H', 'O'};
inline constexpr std::uint16_t handoff_version = 1;
inline constexpr std::size_t handoff_head_bytes = 16;
inline constexpr std::size_t handoff_entry_bytes = 48;
inline constexpr std::size_t handoff_tail_bytes = 4;

constexpr std::uint8_t handoff_family(address_family of) noexcept {
    return of == address_family::ipv4        ? 1
           : of == address_family::ipv6      ? 2
           : of == address_family::unix_path ? 3
                                             : 0;
}
constexpr address_family handoff_family_of(std::uint8_t code) noexcept {
    return code == 1   ? address_family::ipv4
           : code == 2 ? address_family::ipv6
           : code == 3 ? address_family::unix_path
                       : address_family::none;
}

/// May it be said? The same rules for who writes and who reads: nothing is there that means
/// nothing, so each list has one form.
inline bool handoff_may_say(const handoff_entry& of) noexcept {
    bool plain = of.kind == handoff_kind::stream_listener && !of.name.empty() &&
                 of.name.size() <= handoff_name_max && of.unix_path.size() <= handoff_path_max;
    for (const char each : of.name) {
        plain = plain && each > ' ' && each < 0x7F;
    }
    endpoint bare;  // what may stand in the address of its family
    bare.family = of.address.family;
    switch (of.address.family) {
    case address_family::unix_path:
        // A name without a file is no file of anybody.
        return plain && of.address == bare && !of.unix_path.empty() &&
               of.unix_path.find('\0') == std::string_view::npos &&
               (of.file ? of.unix_path[0] != '@' : of.file.device == 0);
    case address_family::ipv4:
        std::memcpy(bare.address.data(), of.address.address.data(), 4);
        break;
    case address_family::ipv6:
        bare = of.address;
        break;
    default:
        return false;
    }
    bare.port = of.address.port;
    return plain && of.address == bare && bare.port != 0 && of.unix_path.empty() && !of.file &&
           of.file.device == 0;
}

inline void store_handoff_entry(const handoff_entry& from, std::byte* to) noexcept {
    to[0] = static_cast<std::byte>(from.kind);
    to[1] = static_cast<std::byte>(handoff_family(from.address.family));
    to[2] = static_cast<std::byte>(from.name.size());
    to[3] = static_cast<std::byte>(from.unix_path.size());
    store_little<std::uint16_t>(to + 4, from.address.port);
    store_little<std::uint16_t>(to + 6, 0);
    store_little<std::uint32_t>(to + 8, from.address.scope_id);
    store_little<std::uint32_t>(to + 12, from.address.flow_info);
    std::memcpy(to + 16, from.address.address.data(), 16);
    store_little<std::uint64_t>(to + 32, from.file.device);
    store_little<std::uint64_t>(to + 40, from.file.inode);
    std::memcpy(to + handoff_entry_bytes, from.name.data(), from.name.size());
    if (!from.unix_path.empty()) {
        std::memcpy(to + handoff_entry_bytes + from.name.size(), from.unix_path.data(),
                    from.unix_path.size());
    }
}

/// Takes one entry off `rest`; false if it is cut, or says what may not be said.
inline bool load_handoff_entry(bytes& rest, handoff_entry& to) noexcept {
    if (rest.size() < handoff_entry_bytes) {
        return false;
    }
    const std::byte* const at = rest.data();
    const auto name_bytes = std::to_integer<std::size_t>(at[2]);
    const auto path_bytes = std::to_integer<std::size_t>(at[3]);
    if (rest.size() < handoff_entry_bytes + name_bytes + path_bytes) {
        return false;
    }
    to.kind = static_cast<handoff_kind>(at[0]);
    to.address.family = handoff_family_of(std::to_integer<std::uint8_t>(at[1]));
    to.address.port = load_little<std::uint16_t>(at + 4);
    to.address.scope_id = load_little<std::uint32_t>(at + 8);
    to.address.flow_info = load_little<std::uint32_t>(at + 12);
    std::memcpy(to.address.address.data(), at + 16, 16);
    to.file.device = load_little<std::uint64_t>(at + 32);
    to.file.inode = load_little<std::uint64_t>(at + 40);
    to.name = as_text(rest.subspan(handoff_entry_bytes, name_bytes));
    to.unix_path = as_text(rest.subspan(handoff_entry_bytes + name_bytes, path_bytes));
    const bool zero = load_little<std::uint16_t>(at + 6) == 0;
    rest = rest.subspan(handoff_entry_bytes + name_bytes + path_bytes);
    return zero && handoff_may_say(to);
}

}  // namespace detail

/// The longest list there is.
inline constexpr std::size_t handoff_bytes_max =
    detail::handoff_head_bytes + detail::handoff_tail_bytes +
    handoff_entries_max *
        (detail::handoff_entry_bytes + handoff_name_max + handoff_path_max);

/// Writes the list of 1 to 64 entries; its size, or 0 if it does not fit, or an entry says what
/// may not be said: no name, a port of 0, a path of no unix socket. Any thread.
inline std::size_t encode_handoff(std::span<const handoff_entry> entries,
                                  std::span<std::byte> out) noexcept {
    std::size_t total = detail::handoff_head_bytes + detail::handoff_tail_bytes;
    if (entries.empty() || entries.size() > handoff_entries_max) {
        return 0;
    }
    for (const handoff_entry& each : entries) {
        if (!detail::handoff_may_say(each)) {
            return 0;
        }
        total += detail::handoff_entry_bytes + each.name.size() + each.unix_path.size();
    }
    if (out.size() < total) {
        return 0;
    }
    std::memcpy(out.data(), detail::handoff_magic, sizeof(detail::handoff_magic));
    detail::store_little(out.data() + 8, detail::handoff_version);
    detail::store_little(out.data() + 10, static_cast<std::uint16_t>(entries.size()));
    detail::store_little(out.data() + 12, static_cast<std::uint32_t>(total));
    std::byte* to = out.data() + detail::handoff_head_bytes;
    for (const handoff_entry& each : entries) {
        detail::store_handoff_entry(each, to);
        to += detail::handoff_entry_bytes + each.name.size() + each.unix_path.size();
    }
    detail::store_little(to, crc32c(out.first(total - detail::handoff_tail_bytes)));
    return total;
}

/// Reads a list. `missing` says how many bytes may be read next without reading past it; anything
/// but its one right form is invalid as soon as it shows. Any thread.
inline parsed<handoff_list> parse_handoff(bytes in) noexcept {
    using out = parsed<handoff_list>;
    constexpr std::size_t head = detail::handoff_head_bytes;
    constexpr std::size_t tail = detail::handoff_tail_bytes;
    const std::size_t seen = in.size() < sizeof(detail::handoff_magic)
                                 ? in.size()
                                 : sizeof(detail::handoff_magic);
    if (seen != 0 && std::memcmp(in.data(), detail::handoff_magic, seen) != 0) {
        return out::invalid(error::handoff_magic);
    }
    if (in.size() < head) {
        return out::need(static_cast<std::uint32_t>(head - in.size()));
    }
    if (detail::load_little<std::uint16_t>(in.data() + 8) != detail::handoff_version) {
        return out::invalid(error::handoff_version);
    }
    const auto count = detail::load_little<std::uint16_t>(in.data() + 10);
    const auto total = detail::load_little<std::uint32_t>(in.data() + 12);
    const std::size_t least = head + tail + count * (detail::handoff_entry_bytes + 1);
    if (count == 0 || count > handoff_entries_max || total < least || total > handoff_bytes_max) {
        return out::invalid(error::handoff_length);
    }
    if (in.size() < total) {
        return out::need(static_cast<std::uint32_t>(total - in.size()));
    }
    out done;
    done.value.checksum = detail::load_little<std::uint32_t>(in.data() + total - tail);
    if (crc32c(in.first(total - tail)) != done.value.checksum) {
        return out::invalid(error::handoff_checksum);
    }
    bytes rest = in.subspan(head, total - head - tail);
    for (std::size_t at = 0; at < count; ++at) {
        if (!detail::load_handoff_entry(rest, done.value.entries[at])) {
            return out::invalid(error::handoff_entry);
        }
    }
    if (!rest.empty()) {
        return out::invalid(error::handoff_length);
    }
    done.status = parse_status::complete;
    done.consumed = total;
    done.value.count = count;
    return done;
}

NETIO_END

#endif
