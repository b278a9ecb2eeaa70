// clang++ -std=c++20 -O1 -g -I. -fsanitize=fuzzer,address,undefined fuzz/proxy_fuzz.cpp -o proxy_fuzz
// The first byte chooses the options, the rest is what a peer sends.
#include "netio.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace {

namespace proxy = netio::proxy;
using result = netio::parsed<proxy::header>;

void require(bool held) {
    if (!held) {
        std::abort();
    }
}

bool same_bytes(netio::bytes left, netio::bytes right) {
    return netio::as_text(left) == netio::as_text(right);
}

bool same(const result& left, const result& right) {
    const proxy::header& a = left.value;
    const proxy::header& b = right.value;
    return left.status == right.status && left.why == right.why &&
           left.consumed == right.consumed && a.version == b.version && a.cmd == b.cmd &&
           a.fam == b.fam && a.proto == b.proto && a.source == b.source &&
           a.destination == b.destination && same_bytes(a.source_path, b.source_path) &&
           same_bytes(a.destination_path, b.destination_path) &&
           same_bytes(a.tlvs.raw(), b.tlvs.raw());
}

void check_cut(netio::bytes in, std::size_t count, const result& whole,
               const proxy::options& how) {
    // A copy of its own, so that the sanitizer sees a read past this part.
    const std::vector<std::byte> part(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(count));
    const result got = proxy::parse(part, how);
    if (got.status != netio::parse_status::incomplete) {
        require(same(got, whole));
        require(got.consumed <= count);
        return;
    }
    require(got.missing >= 1);
    require(got.consumed == 0);
    if (whole.status == netio::parse_status::complete) {
        require(count < whole.consumed);
        require(count + got.missing <= whole.consumed);
    }
}

void check_cuts(netio::bytes in, const result& whole, const proxy::options& how) {
    const std::size_t step = in.size() <= 256 ? 1 : in.size() / 64;
    for (std::size_t count = 0; count < in.size(); count += step) {
        check_cut(in, count, whole, how);
    }
    if (whole.status == netio::parse_status::complete) {
        check_cut(in, whole.consumed - 1, whole, how);
        check_cut(in, whole.consumed, whole, how);
    }
}

/// An unfinished header ends within its cap, whatever comes.
void check_unfinished(netio::bytes in, const result& whole, const proxy::options& how) {
    require(in.size() + whole.missing <= how.header_max);
    for (const char filling : {'\0', ' ', '\n'}) {
        std::vector<std::byte> longer(in.begin(), in.end());
        longer.resize(how.header_max, static_cast<std::byte>(filling));
        require(proxy::parse(longer, how).status != netio::parse_status::incomplete);
    }
}

netio::endpoint leveled(const netio::endpoint& of, const proxy::header& by) {
    const bool four = netio::unmapped(by.source).family == netio::address_family::ipv4 &&
                      netio::unmapped(by.destination).family == netio::address_family::ipv4;
    return four ? netio::unmapped(of) : netio::mapped(of);
}

void check_again(const proxy::header& of, std::span<const std::byte> written, bool v1) {
    const result got = proxy::parse(written, {.header_max = proxy::header_max_most});
    require(got.status == netio::parse_status::complete);
    require(got.consumed == written.size());
    const bool kept = of.fam != proxy::family::unspecified &&
                      (!v1 || of.fam != proxy::family::unix_path);
    require(kept == (got.value.fam != proxy::family::unspecified));
    if (of.names_client()) {
        require(got.value.source == leveled(of.source, of));
        require(got.value.destination == leveled(of.destination, of));
    }
    if (kept && of.fam == proxy::family::unix_path) {
        require(same_bytes(got.value.source_path, of.source_path));
        require(same_bytes(got.value.destination_path, of.destination_path));
    }
    if (v1) {
        return;
    }
    require(got.value.cmd == of.cmd);
    require(got.value.proto == of.proto);
    auto at = got.value.tlvs.begin();
    for (const proxy::tlv one : of.tlvs) {
        if (one.type == proxy::tlv_crc32c) {
            continue;
        }
        while ((*at).type == proxy::tlv_crc32c) {
            ++at;
        }
        require((*at).type == one.type);
        require(same_bytes((*at).value, one.value));
        at++;
    }
}

void check_encoders(const proxy::header& of) {
    std::vector<proxy::tlv> tlvs;
    std::uint32_t link = 0;
    std::uint64_t id = 0;
    for (const proxy::tlv one : of.tlvs) {
        tlvs.push_back(one);
        require(of.tlvs.find(one.type).present());
        require(proxy::aws_vpce_id(one).size() <= one.value.size());
        require(!proxy::azure_link_id(one, link) || one.type == 0xEE);
        require(!proxy::gcp_psc_id(one, id) || one.type == 0xE0);
    }
    const proxy::ssl_view ssl = of.tlvs.ssl();
    std::size_t inner_bytes = 5;
    for (const proxy::tlv one : ssl.inner) {
        inner_bytes += 3 + one.value.size();
    }
    require(!ssl.verified() || ssl.certificate_on_connection() || ssl.certificate_in_session());
    require(ssl.present || !ssl.over_tls());
    require(of.tlvs.empty() == (of.tlvs.begin() == of.tlvs.end()));
    require(!ssl.present || inner_bytes <= of.tlvs.find(proxy::tlv_ssl).value.size());
    for (const bool crc : {false, true}) {
        std::vector<std::byte> out(proxy::header_max_most);
        const std::size_t count = proxy::encode_v2(of, tlvs, out, crc);
        // Seven bytes of CRC may be what the length field has no room for.
        require(count >= 16 || of.tlvs.raw().size() > 65000);
        if (count == 0) {
            continue;
        }
        check_again(of, std::span(out).first(count), false);
        std::vector<std::byte> tight(count - 1);
        require(proxy::encode_v2(of, tlvs, tight, crc) == 0);
    }
    std::byte line[proxy::v1_line_max];
    const std::size_t count = proxy::encode_v1(of, line);
    require((count == 0) == (of.proto == proxy::transport::datagram));
    if (count != 0) {
        check_again(of, std::span(line).first(count), true);
    }
}

/// What an encoder is asked for by its user: anything. It writes what the parser takes, or nothing.
void check_wild_encoding(netio::bytes in) {
    std::size_t used = 0;
    const auto byte = [&]() -> std::size_t {
        return used < in.size() ? std::to_integer<std::size_t>(in[used++]) : 0;
    };
    const std::size_t choice = byte();
    const netio::endpoint ends[] = {{}, netio::any_ipv4(1), netio::loopback_ipv6(2),
                                    netio::mapped(netio::loopback_ipv4(3))};
    proxy::header of = proxy::between(ends[choice & 3], ends[choice >> 2 & 3],
                                      static_cast<proxy::transport>((choice >> 4) % 3));
    if ((choice & 64) != 0) {
        of.fam = static_cast<proxy::family>(byte() & 3);
    }
    const std::vector<std::byte> room(byte() * 300);
    of.source_path = netio::bytes(room).first(std::min<std::size_t>(byte(), room.size()));
    of.cmd = static_cast<proxy::command>((choice >> 7) ^ 1);
    std::vector<proxy::tlv> tlvs;
    while (used < in.size()) {
        const auto type = static_cast<std::uint8_t>(byte());
        const std::size_t scale = type % 5 == 0 ? 300 : 1;
        const std::size_t count = std::min(byte() * scale, room.size());
        tlvs.push_back({type, netio::bytes(room).first(count)});
    }
    std::vector<std::byte> out(choice % 7 == 0 ? 200 : proxy::header_max_most);
    for (const bool crc : {false, true}) {
        const std::size_t count = proxy::encode_v2(of, tlvs, out, crc);
        require(count <= out.size());
        if (count != 0) {
            const netio::bytes written = netio::bytes(out).first(count);
            const result got = proxy::parse(written, {.header_max = proxy::header_max_most});
            require(got.status == netio::parse_status::complete);
            require(got.consumed == count);
        }
    }
    const std::size_t count = proxy::encode_v1(of, std::span(out).first(choice % 120));
    require(count <= choice % 120);
    require(count == 0 || proxy::parse(netio::bytes(out).first(count)).consumed == count);
}

std::uint32_t crc_by_bit(netio::bytes in) {
    std::uint32_t state = 0xFFFFFFFF;
    for (const std::byte byte : in) {
        state ^= std::to_integer<std::uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            state = (state & 1) != 0 ? state >> 1 ^ 0x82F63B78U : state >> 1;
        }
    }
    return ~state;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t count) {
    if (count == 0) {
        return 0;
    }
    proxy::options how;
    how.accept = static_cast<proxy::versions>((data[0] & 3) % 3);
    how.tcp6_with_ipv4 = (data[0] & 4) != 0;
    how.header_max = (data[0] & 8) != 0    ? proxy::header_max_least
                     : (data[0] & 16) != 0 ? proxy::header_max_most
                                           : 4096;
    const netio::bytes in{reinterpret_cast<const std::byte*>(data + 1), count - 1};
    const result whole = proxy::parse(in, how);
    require(whole.consumed <= in.size());
    require((whole.status == netio::parse_status::invalid) == (whole.why != netio::error::none));
    check_cuts(in, whole, how);
    if (whole.status == netio::parse_status::incomplete) {
        check_unfinished(in, whole, how);
    }
    if (whole.status == netio::parse_status::complete) {
        require(whole.consumed <= how.header_max);
        check_encoders(whole.value);
    }
    check_wild_encoding(in);
    const std::uint32_t crc = crc_by_bit(in);
    require(netio::crc32c(in) == crc);
    require(~netio::detail::crc32c_portable(in.data(), in.size(), ~0U) == crc);
    return 0;
}
