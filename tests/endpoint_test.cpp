#include "netio.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

namespace {

std::string endpoint_text(const netio::endpoint& of) {
    char out[netio::endpoint_text_max];
    return std::string(netio::format(of, out));
}
std::string endpoint_address_text(const netio::endpoint& of) {
    char out[netio::endpoint_text_max];
    return std::string(netio::format_address(of, out));
}
/// The canonical text of what was parsed, or the error's text.
std::string endpoint_reread(const char* text) {
    const netio::result<netio::endpoint> got = netio::parse_address(text);
    return got ? endpoint_address_text(got.value) : netio::text(got.why);
}
netio::error endpoint_why(std::string_view text) { return netio::parse_endpoint(text).why; }
netio::error endpoint_network_why(std::string_view text) { return netio::parse_network(text).why; }
bool endpoint_inside(const char* network, const char* address) {
    const netio::result<netio::network> in = netio::parse_network(network);
    const netio::result<netio::endpoint> who = netio::parse_address(address);
    REQUIRE(in);
    REQUIRE(who);
    return netio::contains(in.value, who.value);
}

constexpr const char* endpoint_bad = "not an address";
constexpr const char* endpoint_name = "a host name where an address is due";

}  // namespace

TEST_CASE("endpoint: all-zero is none, and has a text") {
    netio::endpoint zero;
    std::memset(static_cast<void*>(&zero), 0, sizeof zero);
    CHECK(zero == netio::endpoint{});
    CHECK(zero.family == netio::address_family::none);
    CHECK(endpoint_text(zero) == "none");
    zero.family = netio::address_family::unix_path;
    CHECK(endpoint_text(zero) == "unix");
    CHECK(endpoint_address_text(zero) == "unix");
}

TEST_CASE("endpoint: builders are constant expressions") {
    constexpr netio::endpoint some = netio::ipv4(192, 0, 2, 1, 80);
    static_assert(some.address[0] == 192 && some.address[3] == 1 && some.address[4] == 0);
    static_assert(netio::parse_endpoint("192.0.2.1:80").value == some);
    static_assert(netio::parse_endpoint("[::1]:9").value == netio::loopback_ipv6(9));
    CHECK(endpoint_text(some) == "192.0.2.1:80");
    CHECK(endpoint_text(netio::any_ipv4(1)) == "0.0.0.0:1");
    CHECK(endpoint_text(netio::loopback_ipv4(65535)) == "127.0.0.1:65535");
    CHECK(endpoint_text(netio::any_ipv6(2)) == "[::]:2");
    CHECK(endpoint_text(netio::loopback_ipv6(3)) == "[::1]:3");
}

TEST_CASE("endpoint: both families with ports are parsed") {
    const auto four = netio::parse_endpoint("192.0.2.1:80");
    CHECK(four.why == netio::error::none);
    CHECK(four.value == netio::ipv4(192, 0, 2, 1, 80));
    const auto six = netio::parse_endpoint("[2001:db8::1]:65535");
    CHECK(six.why == netio::error::none);
    CHECK(endpoint_text(six.value) == "[2001:db8::1]:65535");
    const auto zone = netio::parse_endpoint("[fe80::1%4294967295]:0");
    CHECK(zone.why == netio::error::none);
    CHECK(zone.value.scope_id == 4294967295U);
    CHECK(endpoint_text(zone.value) == "[fe80::1%4294967295]:0");
}

TEST_CASE("endpoint: an endpoint states its port and brackets IPv6") {
    for (const char* text :
         {"", ":", ":80", "192.0.2.1", "192.0.2.1:", "192.0.2.1:080", "192.0.2.1:65536",
          "192.0.2.1:+1", "192.0.2.1: 1", "192.0.2.1:1 ", "192.0.2.1:99999999999999999999",
          "2001:db8::1", "2001:db8::1:80", "[2001:db8::1]", "[2001:db8::1]80", "[2001:db8::1]:",
          "[192.0.2.1]:80", "[]:80", "[:80", "]:80", "[2001:db8::1:80", "2001:db8::1]:80",
          "[example.com]:80", "[fe80::1%]:80", "[fe80::1%eth0]:80", "[fe80::1%03]:80",
          "[fe80::1%4294967296]:80", "192.0.2.1%1:80", "192.0.2.256:80"}) {
        CAPTURE(text);
        CHECK(endpoint_why(text) == netio::error::address_invalid);
    }
}

TEST_CASE("endpoint: a host name is told apart from garbage") {
    for (const char* text : {"localhost", "example.com", "a", "beef", "my-host_1", "1.2.3.com",
                             "192.0.2.1x", "3com"}) {
        CAPTURE(text);
        CHECK(endpoint_reread(text) == endpoint_name);
        CHECK(endpoint_why(text) == netio::error::host_name_given);
        CHECK(endpoint_why(std::string(text) + ":80") == netio::error::host_name_given);
    }
    for (const char* text : {"", ".", "a..b", "a b", "1.2.3", "host/8", "12345", "h\xC3\xB6st"}) {
        CAPTURE(text);
        CHECK(endpoint_reread(text) == endpoint_bad);
    }
}

TEST_CASE("endpoint: IPv4 is four plain decimal numbers") {
    CHECK(endpoint_reread("0.0.0.0") == "0.0.0.0");
    CHECK(endpoint_reread("255.255.255.255") == "255.255.255.255");
    for (const char* text : {"256.0.0.1", "01.0.0.1", "1.2.3.04", "00.0.0.0", "1.2.3.4.5", "1.2.3.",
                             ".1.2.3", "1..2.3", "-1.2.3.4", " 1.2.3.4", "1.2.3.4 ",
                             "1.2.3.1000"}) {
        CAPTURE(text);
        CHECK(endpoint_reread(text) == endpoint_bad);
    }
    CHECK(endpoint_reread(std::string("1.2.3.4\0", 8).c_str()) == "1.2.3.4");
    CHECK(netio::parse_address(std::string_view("1.2.3.4\0", 8)).why ==
          netio::error::address_invalid);
}

TEST_CASE("endpoint: every spelling of IPv6 has one canonical text") {
    CHECK(endpoint_reread("::") == "::");
    CHECK(endpoint_reread("::1") == "::1");
    CHECK(endpoint_reread("1::") == "1::");
    CHECK(endpoint_reread("0:0:0:0:0:0:0:0") == "::");
    CHECK(endpoint_reread("2001:DB8:0:0:0:0:0:B") == "2001:db8::b");
    CHECK(endpoint_reread("2001:0db8:0000:0000:0001:0000:0000:0001") == "2001:db8::1:0:0:1");
    CHECK(endpoint_reread("2001:db8:0:1:1:1:1:1") == "2001:db8:0:1:1:1:1:1");
    CHECK(endpoint_reread("2001:db8::1:1:1:1:1") == "2001:db8:0:1:1:1:1:1");
    CHECK(endpoint_reread("2001:0:0:1:0:0:0:1") == "2001:0:0:1::1");
    CHECK(endpoint_reread("0:0:1::") == "0:0:1::");
    CHECK(endpoint_reread("1:2:3:4:5:6:7::") == "1:2:3:4:5:6:7:0");
    CHECK(endpoint_reread("::2:3:4:5:6:7:8") == "0:2:3:4:5:6:7:8");
    CHECK(endpoint_reread("1:2:3:4:5:6:7:8") == "1:2:3:4:5:6:7:8");
    CHECK(endpoint_reread("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff") ==
          "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    CHECK(endpoint_reread("::ffff:192.0.2.1") == "::ffff:192.0.2.1");
    CHECK(endpoint_reread("::ffff:c000:201") == "::ffff:192.0.2.1");
    CHECK(endpoint_reread("::192.0.2.1") == "::c000:201");
    CHECK(endpoint_reread("64:ff9b::192.0.2.1") == "64:ff9b::c000:201");
    CHECK(endpoint_reread("1:2:3:4:5:6:1.2.3.4") == "1:2:3:4:5:6:102:304");
    CHECK(endpoint_reread("fe80::1%7") == "fe80::1%7");
    CHECK(endpoint_reread("fe80::1%0") == "fe80::1");
}

TEST_CASE("endpoint: IPv6 that breaks RFC 4291 is refused") {
    for (const char* text :
         {":", ":::", "1", "1:", ":1", "1:2", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9",
          "1:2:3:4:5:6:7:8::", "::1:2:3:4:5:6:7:8", "1:2:3:4::5:6:7:8", "12345::", "::12345",
          "::g", "1::2:", "::1:", "1:::2", "::1.2.3", "::1.2.3.256", "::1.2.3.04", "::1.2.3.4:5",
          "1:2:3:4:5:6:7:1.2.3.4", "1.2.3.4::", "::1.2.3.4.5", "::abcd.1.2.3", "::1%", "::1%a",
          "::1%1x", "::1 ", " ::1", "[::1]", "1:2:3:4:5:6:7:8:", ":1:2:3:4:5:6:7:8"}) {
        CAPTURE(text);
        CHECK(endpoint_reread(text) == endpoint_bad);
    }
}

TEST_CASE("endpoint: a text is cut to the room it has and ends in NUL") {
    char out[8];
    std::memset(out, 'x', sizeof out);
    CHECK(netio::format(netio::ipv4(192, 0, 2, 1, 80), std::span<char>(out, 6)) == "192.0");
    CHECK(out[5] == '\0');
    CHECK(out[6] == 'x');
    CHECK(netio::format_address(netio::any_ipv6(1), std::span<char>()).empty());
}

TEST_CASE("endpoint: mapped addresses go both ways and keep the port") {
    const netio::endpoint four = netio::ipv4(192, 0, 2, 1, 80);
    const netio::endpoint six = netio::mapped(four);
    CHECK(endpoint_text(six) == "[::ffff:192.0.2.1]:80");
    CHECK(netio::is_mapped(six));
    CHECK_FALSE(netio::is_mapped(four));
    CHECK_FALSE(netio::is_mapped(netio::loopback_ipv6(1)));
    CHECK_FALSE(netio::is_mapped(netio::parse_address("1::ffff:192.0.2.1").value));
    CHECK_FALSE(netio::is_mapped(netio::parse_address("::ff00:192.0.2.1").value));
    CHECK(netio::unmapped(six) == four);
    CHECK(netio::unmapped(four) == four);
    CHECK(netio::mapped(six) == six);
    CHECK(netio::unmapped(netio::loopback_ipv6(1)) == netio::loopback_ipv6(1));
    CHECK(netio::mapped(netio::endpoint{}) == netio::endpoint{});
}

TEST_CASE("network: the prefix decides, at byte borders and inside bytes") {
    CHECK(endpoint_inside("10.0.0.0/8", "10.255.255.255"));
    CHECK_FALSE(endpoint_inside("10.0.0.0/8", "11.0.0.0"));
    CHECK(endpoint_inside("192.0.2.128/25", "192.0.2.255"));
    CHECK_FALSE(endpoint_inside("192.0.2.128/25", "192.0.2.127"));
    CHECK(endpoint_inside("192.0.2.1", "192.0.2.1"));
    CHECK_FALSE(endpoint_inside("192.0.2.1/32", "192.0.2.0"));
    CHECK(endpoint_inside("0.0.0.0/0", "203.0.113.9"));
    CHECK(endpoint_inside("2001:db8::/33", "2001:db8:7fff::1"));
    CHECK_FALSE(endpoint_inside("2001:db8::/33", "2001:db8:8000::1"));
    CHECK(endpoint_inside("::1/128", "::1"));
    CHECK_FALSE(endpoint_inside("::1", "::2"));
    CHECK(endpoint_inside("fe80::/10", "fe80::1%3"));
}

TEST_CASE("network: families don't mix, mapped addresses count as IPv4") {
    CHECK(endpoint_inside("10.0.0.0/8", "::ffff:10.1.2.3"));
    CHECK(endpoint_inside("::ffff:10.0.0.0/104", "10.1.2.3"));
    CHECK(netio::parse_network("::ffff:10.0.0.0/104").value ==
          netio::parse_network("10.0.0.0/8").value);
    CHECK_FALSE(endpoint_inside("::/0", "::ffff:10.1.2.3"));
    CHECK_FALSE(endpoint_inside("::/0", "10.1.2.3"));
    CHECK_FALSE(endpoint_inside("0.0.0.0/0", "::1"));
    CHECK_FALSE(netio::contains(netio::network{}, netio::any_ipv4(0)));
    CHECK_FALSE(netio::contains(netio::network{}, netio::endpoint{}));
    netio::endpoint path;
    path.family = netio::address_family::unix_path;
    CHECK_FALSE(netio::contains({{}, 0, netio::address_family::unix_path}, path));
}

TEST_CASE("network: host bits, bad prefixes and names are refused") {
    for (const char* text :
         {"10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/08", "10.0.0.0/-1", "10.0.0.0/8/8",
          "10.0.0.0 /8", "2001:db8::1/64", "::/129", "fe80::1%3/128", "/8", "", "0.0.0.1/0",
          "192.0.2.128/24", "::ffff:10.0.0.1/104"}) {
        CAPTURE(text);
        CHECK(endpoint_network_why(text) == netio::error::address_invalid);
    }
    CHECK(endpoint_network_why("example.com/8") == netio::error::host_name_given);
    CHECK(endpoint_network_why("0.0.0.0/0") == netio::error::none);
    CHECK(endpoint_network_why("::/0") == netio::error::none);
}
