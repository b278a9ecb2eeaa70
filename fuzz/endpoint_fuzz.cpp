// clang++ -std=c++20 -O1 -g -I. -fsanitize=fuzzer,address,undefined fuzz/endpoint_fuzz.cpp -o endpoint_fuzz
// The input is a text that should be an address, an endpoint or a network. The system's own parser
// and printer are asked for a second opinion. Whose sources count as one, networks say too.
#include "netio.hpp"

#include <arpa/inet.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

void require(bool held) {
    if (!held) {
        std::abort();
    }
}

bool is_refusal(netio::error why) {
    return why == netio::error::address_invalid || why == netio::error::host_name_given;
}

void check_texts(const netio::endpoint& of) {
    char out[netio::endpoint_text_max];
    const std::string_view text = netio::format(of, out);
    require(text.size() + 1 < sizeof out);
    const netio::result<netio::endpoint> again = netio::parse_endpoint(text);
    require(again.why == netio::error::none);
    require(again.value == of);
    for (std::size_t room = 0; room < text.size(); room += 5) {
        char less[netio::endpoint_text_max];
        std::memset(less, 'x', sizeof less);
        const std::string_view cut = netio::format(of, std::span<char>(less, room));
        require(room == 0 ? cut.empty() : cut == text.substr(0, room - 1));
        require(less[room] == 'x');
    }
    require(netio::unmapped(netio::mapped(of)) == netio::unmapped(of) || of.scope_id != 0);
    require(netio::is_mapped(of) == (netio::unmapped(of).family != of.family));
}

/// inet_ntop writes ::a.b.c.d where RFC 5952 wants groups.
bool is_compatible(const netio::endpoint& of) {
    std::uint32_t rest = 0;
    for (std::size_t at = 0; at < 12; ++at) {
        rest |= of.address[at];
    }
    return of.family == netio::address_family::ipv6 && rest == 0;
}

void check_against_system(const std::string& text, const netio::result<netio::endpoint>& got) {
    if (text.find('\0') != std::string::npos || text.find('%') != std::string::npos) {
        return;
    }
    std::uint8_t address[16] = {};
    const bool four = inet_pton(AF_INET, text.c_str(), address) == 1;
    const bool six = !four && inet_pton(AF_INET6, text.c_str(), address) == 1;
    require((four || six) == (got.why == netio::error::none));
    if (!four && !six) {
        return;
    }
    require(four == (got.value.family == netio::address_family::ipv4));
    require(std::memcmp(address, got.value.address.data(), 16) == 0);
    char theirs[INET6_ADDRSTRLEN];
    char ours[netio::endpoint_text_max];
    require(inet_ntop(four ? AF_INET : AF_INET6, address, theirs, sizeof theirs) != nullptr);
    require(is_compatible(got.value) || netio::format_address(got.value, ours) == theirs);
}

void check_network(const netio::network& of) {
    netio::endpoint inside;
    inside.family = of.family;
    inside.address = of.address;
    require(netio::contains(of, inside) || netio::is_mapped(inside));
    const unsigned bits = of.family == netio::address_family::ipv4 ? 32 : 128;
    for (unsigned bit = 0; bit < bits; bit += 3) {
        netio::endpoint other = inside;
        other.address[bit / 8] =
            static_cast<std::uint8_t>(other.address[bit / 8] ^ (0x80U >> bit % 8));
        require(netio::is_mapped(other) || netio::contains(of, other) == (bit >= of.prefix));
        require(netio::contains(of, netio::mapped(other)) == netio::contains(of, other));
    }
}

/// Two addresses count as one where one network of so many bits holds both.
void check_source(const netio::endpoint& of) {
    const netio::endpoint plain = netio::unmapped(of);
    const bool four = plain.family == netio::address_family::ipv4;
    const std::uint32_t all = four ? 32 : 64;
    require(netio::source_of(of) == netio::source_of(plain, 32, 64));
    for (std::uint32_t kept = 1; kept <= all; ++kept) {
        const netio::source own = netio::source_of(of, four ? kept : 7, four ? 9 : kept);
        require(own.family == plain.family);
        require((own.prefix & ((std::uint64_t{1} << (all - kept)) - 1)) == 0);
        netio::network around;
        around.address = plain.address;
        around.prefix = static_cast<std::uint8_t>(kept);
        around.family = plain.family;
        for (std::uint32_t bit = kept % 5; bit < (four ? 32u : 128u); bit += 5) {
            netio::endpoint other = plain;
            other.address[bit / 8] =
                static_cast<std::uint8_t>(other.address[bit / 8] ^ (0x80U >> bit % 8));
            other.port = static_cast<std::uint16_t>(of.port + 1);
            const netio::source theirs = netio::source_of(other, four ? kept : 7, four ? 9 : kept);
            require((theirs == own) == netio::contains(around, other));
        }
    }
}

/// What has a family alone, or none, has a name that nothing parses, and is nobody's source.
void check_unaddressed(netio::address_family family, std::string_view name) {
    netio::endpoint of;
    of.family = family;
    char out[netio::endpoint_text_max];
    require(netio::format(of, out) == name && netio::format_address(of, out) == name);
    require(netio::parse_endpoint(name).why != netio::error::none);
    require(netio::source_of(of) == netio::source{});
    netio::network whole;
    whole.family = family;
    require(!netio::contains(whole, of));
}

/// The addresses that have a name of their own, with a port of the input's.
void check_named(std::uint16_t port) {
    const std::string after = ":" + std::to_string(port);
    const auto is = [&](const netio::endpoint& of, const char* text) {
        check_texts(of);
        check_source(of);
        require(netio::parse_endpoint(text + after).value == of);
    };
    is(netio::any_ipv4(port), "0.0.0.0");
    is(netio::loopback_ipv4(port), "127.0.0.1");
    is(netio::any_ipv6(port), "[::]");
    is(netio::loopback_ipv6(port), "[::1]");
    check_unaddressed(netio::address_family::none, "none");
    check_unaddressed(netio::address_family::unix_path, "unix");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t count) {
    const std::string text(reinterpret_cast<const char*>(data), count);
    const std::string_view exact(reinterpret_cast<const char*>(data), count);
    const netio::result<netio::endpoint> address = netio::parse_address(exact);
    require(address || is_refusal(address.why));
    check_against_system(text, address);
    if (address) {
        check_texts(address.value);
        check_source(address.value);
    }
    const netio::result<netio::endpoint> with_port = netio::parse_endpoint(exact);
    require(with_port || is_refusal(with_port.why));
    if (with_port) {
        check_texts(with_port.value);
        check_source(with_port.value);
        check_named(with_port.value.port);
    }
    const netio::result<netio::network> network = netio::parse_network(exact);
    require(network || is_refusal(network.why));
    if (network) {
        check_network(network.value);
    }
    return 0;
}
