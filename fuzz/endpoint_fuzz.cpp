// clang++ -std=c++20 -O1 -g -I. -fsanitize=fuzzer,address,undefined fuzz/endpoint_fuzz.cpp -o endpoint_fuzz
// The input is a text that should be an address, an endpoint or a network. The system's own parser
// and printer are asked for a second opinion.
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t count) {
    const std::string text(reinterpret_cast<const char*>(data), count);
    const std::string_view exact(reinterpret_cast<const char*>(data), count);
    const netio::result<netio::endpoint> address = netio::parse_address(exact);
    require(address || is_refusal(address.why));
    check_against_system(text, address);
    if (address) {
        check_texts(address.value);
    }
    const netio::result<netio::endpoint> with_port = netio::parse_endpoint(exact);
    require(with_port || is_refusal(with_port.why));
    if (with_port) {
        check_texts(with_port.value);
    }
    const netio::result<netio::network> network = netio::parse_network(exact);
    require(network || is_refusal(network.why));
    if (network) {
        check_network(network.value);
    }
    return 0;
}
