// What a parser or a server made of a PROXY header, in the words of the vectors.
#ifndef NETIO_TESTS_PROXY_WORDS_HPP
#define NETIO_TESTS_PROXY_WORDS_HPP

#include "netio.hpp"
#include "tests/proxy_vectors.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace netio_test {

namespace proxy = netio::proxy;
using proxy_result = netio::parsed<proxy::header>;
using proxy_buffer = std::vector<std::byte>;

inline proxy_buffer proxy_unhex(std::string_view hex) {
    proxy_buffer out;
    unsigned high = 16;
    for (const char letter : hex) {
        const unsigned digit = netio::detail::hex_value(letter);
        if (digit == 16) {
            continue;
        }
        if (high == 16) {
            high = digit;
        } else {
            out.push_back(static_cast<std::byte>(high << 4 | digit));
            high = 16;
        }
    }
    return out;
}

inline const char* proxy_error_name(netio::error why) {
    switch (why) {
    case netio::error::not_proxy: return "not_proxy";
    case netio::error::proxy_version_refused: return "proxy_version_refused";
    case netio::error::v1_proto: return "v1_proto";
    case netio::error::v1_syntax: return "v1_syntax";
    case netio::error::v1_addr: return "v1_addr";
    case netio::error::v1_port: return "v1_port";
    case netio::error::v1_too_long: return "v1_too_long";
    case netio::error::v2_version: return "v2_version";
    case netio::error::v2_command: return "v2_command";
    case netio::error::v2_family: return "v2_family";
    case netio::error::v2_short: return "v2_short";
    case netio::error::v2_too_big: return "v2_too_big";
    case netio::error::tlv_truncated: return "tlv_truncated";
    case netio::error::unique_id_length: return "unique_id_length";
    case netio::error::crc_length: return "crc_length";
    case netio::error::crc_mismatch: return "crc_mismatch";
    case netio::error::crc_duplicate: return "crc_duplicate";
    case netio::error::ssl_truncated: return "ssl_truncated";
    default: return "other";
    }
}

inline std::string proxy_path_text(netio::bytes path) {
    if (path.size() == 108 && path[0] == std::byte{'x'} && path[107] == std::byte{'x'}) {
        return "108 bytes of \"x\", no NUL";
    }
    if (!path.empty() && path[0] == std::byte{0}) {
        return "abstract \"" + std::string(netio::as_text(path.subspan(1))) + "\"";
    }
    return "\"" + std::string(netio::as_text(path)) + "\"";
}

inline std::string proxy_endpoint_text(const netio::endpoint& of) {
    char out[netio::endpoint_text_max];
    return std::string(netio::format(of, out));
}

inline std::string proxy_header_text(const proxy::header& of) {
    if (of.fam == proxy::family::unspecified) {
        const char* what = of.version == 1                       ? "UNKNOWN"
                           : of.cmd == proxy::command::local ? "LOCAL"
                                                                 : "PROXY UNSPEC";
        CHECK(of.proto == proxy::transport::unspecified);
        CHECK(of.source == netio::endpoint{});
        CHECK(of.destination == netio::endpoint{});
        CHECK(of.tlvs.empty());
        CHECK_FALSE(of.names_client());
        return std::string(what) + ", real addresses";
    }
    std::string out;
    if (of.version == 1) {
        out = of.fam == proxy::family::ipv4 ? "TCP4 " : "TCP6 ";
        CHECK(of.proto == proxy::transport::stream);
    } else {
        out = of.fam == proxy::family::ipv4   ? "IPv4 "
              : of.fam == proxy::family::ipv6 ? "IPv6 "
                                              : "UNIX ";
        out += of.proto == proxy::transport::stream ? "STREAM " : "DGRAM ";
    }
    CHECK(of.cmd == proxy::command::proxy);
    if (of.fam == proxy::family::unix_path) {
        CHECK_FALSE(of.names_client());
        out += proxy_path_text(of.source_path) + " -> " + proxy_path_text(of.destination_path);
    } else {
        CHECK(of.names_client());
        out += proxy_endpoint_text(of.source) + " -> " + proxy_endpoint_text(of.destination);
    }
    const char* separator = "; TLV ";
    for (const proxy::tlv one : of.tlvs) {
        char text[32];
        std::snprintf(text, sizeof text, "%02X(%zu)", unsigned{one.type}, one.value.size());
        out += separator + std::string(text);
        separator = ", ";
    }
    return out;
}

/// A result in the words of the vectors.
inline std::string proxy_text(const proxy_result& got, std::size_t given) {
    switch (got.status) {
    case netio::parse_status::incomplete:
        return "need more: at least " + std::to_string(got.missing);
    case netio::parse_status::invalid:
        return std::string("reject: ") + proxy_error_name(got.why);
    default:
        return "accept " + std::to_string(got.consumed) + " of " + std::to_string(given) + ": " +
               proxy_header_text(got.value);
    }
}

}  // namespace netio_test

#endif
