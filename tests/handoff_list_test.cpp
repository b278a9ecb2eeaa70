// The list of a hand-off: there and back, one form, and nothing else is taken for one.
#include "netio.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {

using netio::error;
using netio::handoff_entry;
using netio::parse_status;

std::vector<std::byte> handoff_bytes(std::span<const handoff_entry> entries) {
    std::vector<std::byte> out(netio::handoff_bytes_max);
    out.resize(netio::encode_handoff(entries, out));
    return out;
}

/// One of each family, with every field that may be there.
std::vector<handoff_entry> handoff_some() {
    std::vector<handoff_entry> out(4);
    out[0].name = "web";
    out[0].address = netio::ipv4(192, 0, 2, 1, 8080);
    out[1].name = "six";
    out[1].address = netio::loopback_ipv6(443);
    out[1].address.scope_id = 7;
    out[1].address.flow_info = 0x12345;
    out[2].name = "control";
    out[2].address.family = netio::address_family::unix_path;
    out[2].unix_path = "/run/one.socket";
    out[2].file = {0x0102030405060708, 0x1112131415161718};
    out[3].name = "abstract";
    out[3].address.family = netio::address_family::unix_path;
    out[3].unix_path = "@one";
    return out;
}

bool handoff_same(const handoff_entry& left, const handoff_entry& right) {
    return left.kind == right.kind && left.name == right.name && left.address == right.address &&
           left.unix_path == right.unix_path && left.file == right.file;
}

/// With a checksum that fits again.
void handoff_seal(std::vector<std::byte>& list) {
    const std::uint32_t sum = netio::crc32c(std::span(list).first(list.size() - 4));
    netio::detail::store_little(list.data() + list.size() - 4, sum);
}

}  // namespace

TEST_CASE("handoff list: every kind of listener goes there and back") {
    const std::vector<handoff_entry> some = handoff_some();
    const std::vector<std::byte> list = handoff_bytes(some);
    REQUIRE(!list.empty());
    const auto got = netio::parse_handoff(list);
    REQUIRE(got.status == parse_status::complete);
    CHECK(got.consumed == list.size());
    REQUIRE(got.value.count == some.size());
    for (std::size_t at = 0; at < some.size(); ++at) {
        CHECK(handoff_same(got.value.entries[at], some[at]));
    }
    std::vector<std::byte> longer = list;
    longer.push_back(std::byte{1});
    CHECK(netio::parse_handoff(longer).consumed == list.size());  // what follows is not its own
}

TEST_CASE("handoff list: the form on the wire is this one") {
    handoff_entry one;
    one.name = "w";
    one.address = netio::ipv4(127, 0, 0, 1, 0x1234);
    const std::vector<std::byte> list = handoff_bytes({&one, 1});
    REQUIRE(list.size() == 16 + 48 + 1 + 4);
    const unsigned char expected[] = {
        'n', 'e', 't', 'i', 'o', '-', 'H', 'O', 1, 0, 1, 0, 69, 0, 0, 0,
        1, 1, 1, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 'w'};
    static_assert(sizeof(expected) == 65);
    CHECK(std::memcmp(list.data(), expected, sizeof(expected)) == 0);
    CHECK(netio::detail::load_little<std::uint32_t>(list.data() + 65) ==
          netio::crc32c(std::span(list).first(65)));
}

TEST_CASE("handoff list: cut anywhere it is incomplete, and never asks for more than its own") {
    const std::vector<std::byte> list = handoff_bytes(handoff_some());
    for (std::size_t count = 0; count < list.size(); ++count) {
        CAPTURE(count);
        const std::vector<std::byte> part(list.begin(),
                                          list.begin() + static_cast<std::ptrdiff_t>(count));
        const auto got = netio::parse_handoff(part);
        CHECK(got.status == parse_status::incomplete);
        CHECK(got.missing >= 1);
        CHECK(count + got.missing <= list.size());
        CHECK((count < 16 || count + got.missing == list.size()));
    }
}

TEST_CASE("handoff list: any bit flipped, and it is none") {
    const std::vector<std::byte> list = handoff_bytes(handoff_some());
    for (std::size_t at = 0; at < list.size() * 8; ++at) {
        CAPTURE(at);
        std::vector<std::byte> bad = list;
        bad[at / 8] ^= static_cast<std::byte>(1 << at % 8);
        const auto got = netio::parse_handoff(bad);
        CHECK(got.status != parse_status::complete);
        // Only a longer length can wait for more; all else shows at once.
        CHECK((got.status == parse_status::invalid || (at / 8 >= 12 && at / 8 < 16)));
    }
}

TEST_CASE("handoff list: each rule that is broken has its error, although the checksum fits") {
    const std::vector<std::byte> list = handoff_bytes(handoff_some());
    const auto why_of = [&](std::size_t at, unsigned value) {
        std::vector<std::byte> bad = list;
        bad[at] = static_cast<std::byte>(value);
        handoff_seal(bad);
        const auto got = netio::parse_handoff(bad);
        CHECK(got.status == parse_status::invalid);
        return got.why;
    };
    CHECK(why_of(0, 'N') == error::handoff_magic);
    CHECK(why_of(8, 2) == error::handoff_version);
    CHECK(why_of(9, 1) == error::handoff_version);
    CHECK(why_of(10, 0) == error::handoff_length);   // no entry
    CHECK(why_of(10, 65) == error::handoff_length);  // more than there may be
    CHECK(why_of(10, 3) == error::handoff_length);   // one is left over
    CHECK(why_of(10, 4 + 1) == error::handoff_length);  // one is missing
    CHECK(why_of(12, 20) == error::handoff_length);  // shorter than its entries
    CHECK(why_of(14, 1) == error::handoff_length);   // longer than any
    CHECK(why_of(16, 0) == error::handoff_entry);    // kind
    CHECK(why_of(16, 2) == error::handoff_entry);
    CHECK(why_of(17, 0) == error::handoff_entry);    // family
    CHECK(why_of(17, 4) == error::handoff_entry);
    CHECK(why_of(17, 3) == error::handoff_entry);    // unix without a path
    CHECK(why_of(18, 0) == error::handoff_entry);    // no name
    CHECK(why_of(18, 255) == error::handoff_entry);
    CHECK(why_of(19, 1) == error::handoff_entry);    // a path of IPv4
    CHECK(why_of(22, 1) == error::handoff_entry);    // reserved
    CHECK(why_of(24, 1) == error::handoff_entry);    // a scope of IPv4
    CHECK(why_of(36, 1) == error::handoff_entry);    // past IPv4's four bytes
    CHECK(why_of(48, 1) == error::handoff_entry);    // a file of IPv4
    CHECK(why_of(56, 1) == error::handoff_entry);
    CHECK(why_of(64, ' ') == error::handoff_entry);  // the name
    CHECK(why_of(64, 0x7F) == error::handoff_entry);
    CHECK(why_of(64, 0) == error::handoff_entry);
    CHECK(why_of(64, 0xC3) == error::handoff_entry);
    // The last one's name or path would go past the end.
    const std::size_t last = list.size() - 4 - 4 - 8 - 48;
    CHECK(why_of(last + 2, 9) == error::handoff_entry);
    CHECK(why_of(last + 3, 5) == error::handoff_entry);
    CHECK(why_of(last + 3, 3) == error::handoff_length);
}

TEST_CASE("handoff list: an entry that is missing is not read past the end") {
    handoff_entry one;
    const std::string name(64, 'n');  // long enough for the length of two
    one.name = name;
    one.address = netio::loopback_ipv4(1);
    std::vector<std::byte> list = handoff_bytes({&one, 1});
    list[10] = std::byte{2};
    handoff_seal(list);
    CHECK(netio::parse_handoff(list).why == error::handoff_entry);
}

TEST_CASE("handoff list: 65 entries are refused, however right each of them is") {
    handoff_entry one;
    one.name = "w";
    one.address = netio::loopback_ipv4(1);
    const std::vector<handoff_entry> most(64, one);
    std::vector<std::byte> list = handoff_bytes(most);
    const std::vector<std::byte> another(list.begin() + 16, list.begin() + 16 + 49);
    list.insert(list.begin() + 16, another.begin(), another.end());
    netio::detail::store_little(list.data() + 10, std::uint16_t{65});
    netio::detail::store_little(list.data() + 12, static_cast<std::uint32_t>(list.size()));
    handoff_seal(list);
    CHECK(netio::parse_handoff(list).why == error::handoff_length);
}

TEST_CASE("handoff list: what may not be said is not written") {
    const std::vector<handoff_entry> some = handoff_some();
    const auto written = [](handoff_entry of) {
        std::vector<std::byte> out(netio::handoff_bytes_max);
        return netio::encode_handoff({&of, 1}, out) != 0;
    };
    const auto changed = [&](std::size_t at, auto change) {
        handoff_entry out = some[at];
        change(out);
        return written(out);
    };
    for (const handoff_entry& each : some) {
        CHECK(written(each));
    }
    const std::string longest(64, 'n');
    const std::string longest_path(107, 'p');
    CHECK(changed(0, [&](auto& of) { of.name = longest; }));
    CHECK(changed(2, [&](auto& of) { of.unix_path = longest_path; }));
    const std::string name(65, 'n');
    const std::string path(108, 'p');
    CHECK_FALSE(changed(0, [&](auto& of) { of.name = name; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.name = ""; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.name = "two words"; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.kind = netio::handoff_kind::none; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.address.port = 0; }));
    CHECK_FALSE(changed(1, [&](auto& of) { of.address.port = 0; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.address.family = {}; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.address.scope_id = 1; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.unix_path = "/x"; }));
    CHECK_FALSE(changed(0, [&](auto& of) { of.file.device = 1; }));
    CHECK_FALSE(changed(1, [&](auto& of) { of.file.inode = 1; }));
    CHECK_FALSE(changed(2, [&](auto& of) { of.unix_path = path; }));
    CHECK_FALSE(changed(2, [&](auto& of) { of.unix_path = ""; }));
    CHECK_FALSE(changed(2, [&](auto& of) { of.unix_path = std::string_view("/a\0b", 4); }));
    CHECK_FALSE(changed(2, [&](auto& of) { of.address.port = 1; }));
    CHECK_FALSE(changed(3, [&](auto& of) { of.file.inode = 1; }));  // no file has that name
    CHECK_FALSE(changed(3, [&](auto& of) { of.file.device = 1; }));
    std::vector<std::byte> out(netio::handoff_bytes_max);
    CHECK(netio::encode_handoff({}, out) == 0);
    const std::vector<handoff_entry> most(64, some[0]);
    CHECK(netio::encode_handoff(most, out) != 0);
    const std::vector<handoff_entry> more(65, some[0]);
    CHECK(netio::encode_handoff(more, out) == 0);
    const std::size_t size = netio::encode_handoff(some, out);
    CHECK(netio::encode_handoff(some, std::span(out).first(size)) == size);
    CHECK(netio::encode_handoff(some, std::span(out).first(size - 1)) == 0);
}

TEST_CASE("handoff list: the longest one fits its bound to the byte") {
    handoff_entry one;
    const std::string name(64, 'n');
    const std::string path(107, 'p');
    one.name = name;
    one.address.family = netio::address_family::unix_path;
    one.unix_path = path;
    const std::vector<handoff_entry> most(64, one);
    const std::vector<std::byte> list = handoff_bytes(most);
    CHECK(list.size() == netio::handoff_bytes_max);
    CHECK(netio::parse_handoff(list).status == parse_status::complete);
}
