#include "netio.hpp"
#include "tests/pages.hpp"
#include "tests/proxy_words.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

namespace {

namespace proxy = netio::proxy;
using netio_test::proxy_buffer;
using netio_test::proxy_result;
using netio_test::proxy_text;
using netio_test::proxy_unhex;

proxy_buffer proxy_bytes(std::string_view text) {
    const netio::bytes all = netio::as_bytes(text);
    return proxy_buffer(all.begin(), all.end());
}

proxy_buffer operator+(proxy_buffer left, const proxy_buffer& right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
}

proxy_buffer proxy_repeated(std::size_t count, unsigned value) {
    return proxy_buffer(count, static_cast<std::byte>(value));
}

/// A v2 header over IPv4 192.0.2.1:56324 -> 192.0.2.2:443 with the given bytes behind them.
proxy_buffer proxy_v4_with(const proxy_buffer& tlvs, unsigned mode = 0x21, unsigned kind = 0x11) {
    proxy_buffer out = proxy_unhex("0D0A0D0A000D0A515549540A");
    const std::size_t length = 12 + tlvs.size();
    out = out + proxy_repeated(1, mode) + proxy_repeated(1, kind) +
          proxy_repeated(1, static_cast<unsigned>(length >> 8)) +
          proxy_repeated(1, static_cast<unsigned>(length & 255));
    return out + proxy_unhex("C0000201C0000202DC0401BB") + tlvs;
}

proxy_buffer proxy_tlv_bytes_of(unsigned type, const proxy_buffer& value) {
    return proxy_repeated(1, type) + proxy_repeated(1, static_cast<unsigned>(value.size() >> 8)) +
           proxy_repeated(1, static_cast<unsigned>(value.size() & 255)) + value;
}

std::string proxy_read(const proxy_buffer& in, const proxy::options& how = {}) {
    return proxy_text(proxy::parse(in, how), in.size());
}
std::string proxy_read(std::string_view text, const proxy::options& how = {}) {
    return proxy_text(proxy::parse(netio::as_bytes(text), how), text.size());
}

/// Every prefix must be incomplete or already say what the whole says, and once decided stay so.
void proxy_check_prefixes(netio::bytes in) {
    const proxy_result whole = proxy::parse(in);
    bool decided = false;
    for (std::size_t count = 0; count <= in.size(); ++count) {
        CAPTURE(count);
        const proxy_result part = proxy::parse(in.first(count));
        if (part.status == netio::parse_status::incomplete) {
            CHECK_FALSE(decided);
            CHECK(part.missing >= 1);
            CHECK(part.consumed == 0);
            CHECK(part.why == netio::error::none);
            if (whole.status == netio::parse_status::complete) {
                CHECK(count + part.missing <= whole.consumed);
            }
        } else {
            decided = true;
            CHECK(part.status == whole.status);
            CHECK(part.why == whole.why);
            CHECK(part.consumed == whole.consumed);
            CHECK(part.consumed <= count);
            CHECK(proxy_text(part, 0) == proxy_text(whole, 0));
        }
    }
    CHECK(decided == (whole.status != netio::parse_status::incomplete));
}

/// Memory whose last byte is followed by a page nobody may touch.
class proxy_guarded {
public:
    proxy_guarded() : page_bytes_(netio_test::page_bytes()) {
        void* const at = netio_test::new_pages(3 * page_bytes_);
        REQUIRE(at != nullptr);
        start_ = static_cast<std::byte*>(at);
        REQUIRE(netio_test::forbid_pages(start_ + 2 * page_bytes_, page_bytes_));
    }
    ~proxy_guarded() { netio_test::give_pages(start_, 3 * page_bytes_); }
    proxy_guarded(const proxy_guarded&) = delete;
    proxy_guarded& operator=(const proxy_guarded&) = delete;

    std::span<std::byte> room(std::size_t count) {
        REQUIRE(count <= 2 * page_bytes_);
        return {start_ + 2 * page_bytes_ - count, count};
    }
    netio::bytes hold(netio::bytes in) {
        const std::span<std::byte> to = room(in.size());
        if (!in.empty()) {
            std::memcpy(to.data(), in.data(), in.size());
        }
        return to;
    }

private:
    std::size_t page_bytes_;
    std::byte* start_ = nullptr;
};

std::string proxy_without_counts(const std::string& text) {
    return text.substr(0, 6) == "accept" ? text.substr(text.find(':')) : text;
}

}  // namespace

TEST_CASE("proxy vectors: whole") {
    std::size_t count = 0;
    for (const proxy_vector& one : proxy_vectors) {
        CAPTURE(one.id);
        const std::string got = proxy_read(proxy_unhex(one.hex));
        if (std::string_view(one.id) == "B04") {
            CHECK((got == one.expected || got == "reject: v2_family"));
        } else {
            CHECK(got == one.expected);
        }
        ++count;
    }
    CHECK(count == 112);
}

TEST_CASE("proxy vectors: every two-part split, byte by byte and cut at every length") {
    for (const proxy_vector& one : proxy_vectors) {
        CAPTURE(one.id);
        proxy_check_prefixes(proxy_unhex(one.hex));
    }
}

TEST_CASE("proxy vectors: fed as the answers ask, in the fewest calls") {
    for (const proxy_vector& one : proxy_vectors) {
        CAPTURE(one.id);
        const proxy_buffer in = proxy_unhex(one.hex);
        std::size_t given = 0;
        proxy_result got = proxy::parse({});
        while (got.status == netio::parse_status::incomplete && given + got.missing <= in.size()) {
            given += got.missing;
            got = proxy::parse(netio::bytes(in).first(given));
        }
        const proxy_result whole = proxy::parse(in);
        if (whole.status == netio::parse_status::complete) {
            CHECK(given == whole.consumed);
            CHECK(proxy_text(got, 0) == proxy_text(whole, 0));
        }
    }
}

TEST_CASE("proxy vectors: nothing is read past the end, at a guard page") {
    proxy_guarded memory;
    for (const proxy_vector& one : proxy_vectors) {
        CAPTURE(one.id);
        const proxy_buffer in = proxy_unhex(one.hex);
        const std::string whole = proxy_read(in);
        CHECK(proxy_text(proxy::parse(memory.hold(in)), in.size()) == whole);
        for (std::size_t count = 0; count < in.size(); ++count) {
            const netio::bytes part = netio::bytes(in).first(count);
            const proxy_result expected = proxy::parse(part);
            const proxy_result got = proxy::parse(memory.hold(part));
            CHECK(got.status == expected.status);
            CHECK(got.missing == expected.missing);
            CHECK(got.why == expected.why);
        }
    }
}

TEST_CASE("proxy vectors: payload behind a header changes nothing") {
    const proxy_buffer payloads[] = {
        proxy_bytes("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), proxy_repeated(300, 0xFF),
        proxy_repeated(300, 0x00), proxy_unhex("0D0A0D0A000D0A515549540A20000000"),
        proxy_unhex("0200053132333435"), proxy_bytes("\r\n")};
    for (const proxy_vector& one : proxy_vectors) {
        CAPTURE(one.id);
        const proxy_buffer in = proxy_unhex(one.hex);
        const proxy_result alone = proxy::parse(in);
        if (alone.status == netio::parse_status::incomplete) {
            continue;
        }
        for (const proxy_buffer& payload : payloads) {
            const proxy_buffer both = in + payload;
            const proxy_result got = proxy::parse(both);
            CHECK(got.status == alone.status);
            CHECK(got.consumed == alone.consumed);
            CHECK(proxy_without_counts(proxy_text(got, 0)) ==
                  proxy_without_counts(proxy_text(alone, 0)));
        }
    }
}

TEST_CASE("proxy vectors: no single bit flip gets past a CRC") {
    for (const proxy_vector& one : proxy_vectors) {
        const std::string_view id = one.id;
        if (id != "B41" && id != "B42" && id != "B43" && id != "B44") {
            continue;
        }
        CAPTURE(one.id);
        const proxy_buffer good = proxy_unhex(one.hex);
        const proxy_result whole = proxy::parse(good);
        REQUIRE(whole.status == netio::parse_status::complete);
        const proxy::tlv crc = whole.value.tlvs.find(proxy::tlv_crc32c);
        REQUIRE(crc.present());
        const auto crc_type_index = static_cast<std::size_t>(crc.value.data() - good.data()) - 3;
        for (std::size_t bit = 0; bit < std::size_t{whole.consumed} * 8; ++bit) {
            CAPTURE(bit);
            proxy_buffer in = good;
            in[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
            const proxy_result got = proxy::parse(in);
            if (bit / 8 == 12 || bit / 8 == 13) {
                // LOCAL and UNSPEC are skipped unread, CRC included: no address is believed.
                CHECK((got.status == netio::parse_status::invalid ||
                       got.value.fam == proxy::family::unspecified));
            } else if (bit / 8 == crc_type_index) {
                // No CRC any more, so there is nothing to check.
                CHECK_FALSE(got.value.tlvs.find(proxy::tlv_crc32c).present());
            } else {
                CHECK(got.status != netio::parse_status::complete);
            }
        }
    }
}

// ---- what others have got wrong: each named after what it shows ----

TEST_CASE("proxy: a v2 header cut anywhere waits for the rest and leaves the payload") {  // G001
    const proxy_buffer in = proxy_v4_with({}) + proxy_bytes("HELLO");
    for (std::size_t first = 0; first < 28; ++first) {
        const proxy_result got = proxy::parse(netio::bytes(in).first(first));
        CHECK(got.status == netio::parse_status::incomplete);
        CHECK(got.missing == (first == 0 ? 1 : first < 16 ? 16 - first : 28 - first));
    }
    CHECK(proxy_read(in) == "accept 28 of 33: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443");
    proxy_check_prefixes(in);
    proxy_check_prefixes(proxy_bytes("PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\nHELLO"));
}

TEST_CASE("proxy: fewer bytes than a signature are neither plain nor refused") {  // G002
    const std::string_view v2("\r\n\r\n\0\r\nQUIT\n", 12);
    for (std::size_t count = 1; count <= 12; ++count) {
        CHECK(proxy_read(v2.substr(0, count)) ==
              "need more: at least " + std::to_string(16 - count));
    }
    CHECK(proxy_read("PROX") == "need more: at least 11");
    CHECK(proxy_read("PROY") == "reject: not_proxy");
    CHECK(proxy_read("\r\n\r\nX") == "reject: not_proxy");
    CHECK(proxy_read("G") == "reject: not_proxy");
}

TEST_CASE("proxy: the start of a v1 line is no error") {  // G003
    CHECK(proxy_read("PROXY ") == "need more: at least 9");
    CHECK(proxy_read("PROXY T") == "need more: at least 8");
    CHECK(proxy_read("PROXY TCP4") == "need more: at least 5");
    CHECK(proxy_read("PROXY UNKNOWN") == "need more: at least 2");
    CHECK(proxy_read("PROXY UNKNOWN\r") == "need more: at least 1");
}

TEST_CASE("proxy: a wrong v1 token is refused before its line is complete") {
    CHECK(proxy_read("PROXY X") == "reject: v1_proto");
    CHECK(proxy_read("PROXY TCP5") == "reject: v1_proto");
    CHECK(proxy_read("PROXY TCP4x") == "reject: v1_proto");
    CHECK(proxy_read("PROXY UNKNOWNS") == "reject: v1_proto");
    CHECK(proxy_read("PROXY  ") == "reject: v1_proto");
    CHECK(proxy_read("PROXY TCP4\r\n") == "reject: v1_syntax");
    CHECK(proxy_read("PROXY TCP4\r192.0.2.1 192.0.2.2 1 2\r\n") == "reject: v1_syntax");
}

TEST_CASE("proxy: a UNIX header of 232 bytes is accepted byte by byte at its last one") {  // G004
    for (const proxy_vector& one : proxy_vectors) {
        if (std::string_view(one.id) != "B15") {
            continue;
        }
        const proxy_buffer in = proxy_unhex(one.hex);
        for (std::size_t count = 16; count < 232; ++count) {
            const proxy_result got = proxy::parse(netio::bytes(in).first(count));
            CHECK(got.status == netio::parse_status::incomplete);
            CHECK(got.missing == 232 - count);
        }
        CHECK(proxy::parse(in).consumed == 232);
    }
}

TEST_CASE("proxy: LOCAL skips exactly its length, whatever is in it") {  // G005 to G008, G011
    const proxy_buffer get = proxy_bytes("GET / HTTP/1.1");
    CHECK(proxy_read(proxy_unhex("0D0A0D0A000D0A515549540A2011000C") + proxy_repeated(12, 0) +
                     get) == "accept 28 of 42: LOCAL, real addresses");
    CHECK(proxy_read(proxy_unhex("0D0A0D0A000D0A515549540A20110054030004BCE5951F04004A") +
                     proxy_repeated(74, 0)) == "accept 100 of 100: LOCAL, real addresses");
    CHECK(proxy_read(proxy_v4_with({}, 0x20)) == "accept 28 of 28: LOCAL, real addresses");
    CHECK(proxy_read(proxy_unhex("0D0A0D0A000D0A515549540A20000000")) ==
          "accept 16 of 16: LOCAL, real addresses");
    CHECK(proxy_read(proxy_unhex("0D0A0D0A000D0A515549540A2010000C") + proxy_repeated(12, 0)) ==
          "accept 28 of 28: LOCAL, real addresses");
}

TEST_CASE("proxy: a received LOCAL header is sent on as LOCAL") {  // G009, G010
    const proxy_result got = proxy::parse(proxy_v4_with({}, 0x20));
    proxy_buffer out(64);
    REQUIRE(proxy::encode_v2(got.value, {}, out, true) == 16);
    out.resize(16);
    CHECK(out == proxy_unhex("0D0A0D0A000D0A515549540A20000000"));
}

TEST_CASE("proxy: a health check of our own is LOCAL, all-zero is its header") {  // G010
    proxy_buffer out(16);
    CHECK(proxy::encode_v2(proxy::header{}, {}, out, false) == 16);
    CHECK(out == proxy_unhex("0D0A0D0A000D0A515549540A20000000"));
}

TEST_CASE("proxy: UNSPEC in either nibble keeps the real addresses") {  // G012, G013, G014
    CHECK(proxy_read(proxy_unhex("0D0A0D0A000D0A515549540A20000000")) ==
          "accept 16 of 16: LOCAL, real addresses");
    CHECK(proxy_read(proxy_unhex("0D0A0D0A000D0A515549540A21000000")) ==
          "accept 16 of 16: PROXY UNSPEC, real addresses");
    for (const unsigned kind : {0x00U, 0x01U, 0x02U, 0x10U, 0x20U, 0x30U}) {
        CAPTURE(kind);
        CHECK(proxy_read(proxy_v4_with(proxy_unhex("FFFFFF"), 0x21, kind)) ==
              "accept 31 of 31: PROXY UNSPEC, real addresses");
    }
    for (const unsigned kind : {0x03U, 0x13U, 0x40U, 0x41U, 0xF0U, 0x0FU}) {
        CAPTURE(kind);
        CHECK(proxy_read(proxy_v4_with({}, 0x21, kind)) == "reject: v2_family");
    }
}

TEST_CASE("proxy: UNKNOWN with anything behind it is accepted up to CRLF") {  // G015, G016, G018
    CHECK(proxy_read("PROXY UNKNOWN some other nonsense\r\n") ==
          "accept 35 of 35: UNKNOWN, real addresses");
    CHECK(proxy_read("PROXY UNKNOWN\r\n") == "accept 15 of 15: UNKNOWN, real addresses");
    CHECK(proxy_read("PROXY UNKNOWN a\nb\r\nX") == "accept 19 of 20: UNKNOWN, real addresses");
    CHECK(proxy_read("PROXY UNKNOWN\rab\r\r\nX") == "accept 19 of 20: UNKNOWN, real addresses");
}

TEST_CASE("proxy: a line that can't be filled is the short UNKNOWN") {  // G017
    proxy_buffer out(107);
    const auto line = [&](const proxy::header& of) {
        const std::size_t count = proxy::encode_v1(of, out);
        return std::string(netio::as_text(netio::bytes(out).first(count)));
    };
    CHECK(line(proxy::header{}) == "PROXY UNKNOWN\r\n");
    CHECK(line(proxy::between({}, {})) == "PROXY UNKNOWN\r\n");
    CHECK(line(proxy::between(netio::any_ipv4(1), {})) == "PROXY UNKNOWN\r\n");
    proxy::header half = proxy::between(netio::any_ipv4(1), netio::any_ipv4(2));
    half.destination = {};
    CHECK(line(half) == "PROXY UNKNOWN\r\n");
}

TEST_CASE("proxy: CRLF is two bytes and needs no NUL behind it") {  // G019
    proxy_guarded memory;
    const std::string_view text = "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n";
    const proxy_result got = proxy::parse(memory.hold(netio::as_bytes(text)));
    CHECK(proxy_text(got, text.size()) ==
          "accept 42 of 42: TCP4 192.0.2.1:56324 -> 192.0.2.2:443");
}

TEST_CASE("proxy: every port up to 65535 is legal, none above") {  // G020
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 65535 65336\r\n") ==
          "accept 44 of 44: TCP4 192.0.2.1:65535 -> 192.0.2.2:65336");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 65536 65336\r\n") == "reject: v1_port");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n") == "reject: v1_port");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 0 4294967297\r\n") == "reject: v1_port");
}

TEST_CASE("proxy: the token decides the address format") {  // G021
    CHECK(proxy_read("PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n") == "reject: v1_addr");
    CHECK(proxy_read("PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n") ==
          "accept 40 of 40: TCP6 [2001:db8::1]:1 -> [2001:db8::2]:2");
}

TEST_CASE("proxy: a plain IPv4 address behind TCP6 is taken only behind its option") {  // G022
    const std::string_view text = "PROXY TCP6 2001:db8::1 192.0.2.1 51512 22\r\n";
    CHECK(proxy_read(text) == "reject: v1_addr");
    proxy::options how;
    how.tcp6_with_ipv4 = true;
    CHECK(proxy_read(text, how) ==
          "accept 43 of 43: TCP6 [2001:db8::1]:51512 -> [::ffff:192.0.2.1]:22");
    CHECK(proxy_read("PROXY TCP6 192.0.2.1 2001:db8::1 1 2\r\n", how) ==
          "accept 38 of 38: TCP6 [::ffff:192.0.2.1]:1 -> [2001:db8::1]:2");
    CHECK(proxy_read("PROXY TCP6 192.0.2 2001:db8::1 1 2\r\n", how) == "reject: v1_addr");
    CHECK(proxy_read("PROXY TCP4 2001:db8::1 192.0.2.1 1 2\r\n", how) == "reject: v1_addr");
    CHECK(proxy_read("PROXY TCP6 192.0.2.1 2001:db8::1 1 x\r\n", how) == "reject: v1_port");
}

TEST_CASE("proxy: LF alone never ends a line") {  // G023
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 12345 54321\n") ==
          "need more: at least 1");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 12345 54321\nEHLO a\r\n") ==
          "reject: v1_syntax");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 12345 54321\nEHLO\r\n") ==
          "reject: v1_port");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 12345 54321\r \n") == "need more: at least 1");
}

TEST_CASE("proxy: leading line ends are part of the signature, never stripped") {  // G024
    CHECK(proxy_read(proxy_unhex("000D0A515549540A2111000CC0000201C0000202DC0401BB")) ==
          "reject: not_proxy");
    CHECK(proxy_read("\r\nPROXY UNKNOWN\r\n") == "reject: not_proxy");
}

TEST_CASE("proxy: ports are digits and nothing else") {  // G025
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 80x 443\r\n") == "reject: v1_port");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 +80 443\r\n") == "reject: v1_port");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 8 0 443\r\n") == "reject: v1_syntax");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 8e1 443\r\n") == "reject: v1_port");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 80 443x\r\n") == "reject: v1_port");
    CHECK(proxy_read("PROXY TCP4 192.0.2.1 192.0.2.2 80 00\r\n") == "reject: v1_port");
}

TEST_CASE("proxy: a line without an end is refused at its 107th byte") {  // G026, G027
    proxy_guarded memory;
    const proxy_buffer start = proxy_bytes("PROXY UNKNOWN ");
    for (std::size_t count = 14; count <= 106; ++count) {
        const proxy_buffer in = start + proxy_repeated(count - start.size(), 'a');
        CHECK(proxy_text(proxy::parse(memory.hold(in)), count) == "need more: at least 1");
    }
    for (const std::size_t count : {107U, 108U, 5000U}) {
        const proxy_buffer in = start + proxy_repeated(count - start.size(), 'a');
        CHECK(proxy_text(proxy::parse(memory.hold(in)), count) == "reject: v1_too_long");
    }
    // The last place a CRLF may have, and one further.
    const proxy_buffer end = proxy_bytes("\r\n");
    CHECK(proxy_read(start + proxy_repeated(91, 'a') + end) ==
          "accept 107 of 107: UNKNOWN, real addresses");
    CHECK(proxy_read(start + proxy_repeated(92, 'a') + end) == "reject: v1_too_long");
    CHECK(proxy_read("PROXY ") == "need more: at least 9");
    CHECK(proxy_read(proxy_bytes("PROXY") + proxy_repeated(200, 'a')) == "reject: not_proxy");
}

TEST_CASE("proxy: a good line of more than 107 bytes is too long") {
    const std::string address = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255";
    CHECK(proxy_read("PROXY TCP6 " + address + " " + address + " 1 2\r\n") ==
          "reject: v1_too_long");
}

TEST_CASE("proxy: a length above the cap is refused from the fixed part") {  // G028
    const proxy_buffer in = proxy_unhex(
        "0D0A0D0A000D0A515549540A2111FFFFC0000201C0000202DC0401BB");
    CHECK(proxy_read(in) == "reject: v2_too_big");
    CHECK(proxy::parse(netio::bytes(in).first(16)).why == netio::error::v2_too_big);
    CHECK(proxy::parse(netio::bytes(in).first(15)).status == netio::parse_status::incomplete);
    proxy::options how;
    how.header_max = proxy::header_max_most;
    CHECK(proxy_read(in, how) == "need more: at least " + std::to_string(65551 - 28));
}

TEST_CASE("proxy: the cap counts the whole header, LOCAL too") {
    for (const std::uint32_t cap : {536U, 4096U}) {
        proxy::options how;
        how.header_max = cap;
        for (const unsigned mode : {0x21U, 0x20U}) {
            const proxy_buffer fits = proxy_v4_with(
                proxy_tlv_bytes_of(0xE1, proxy_repeated(cap - 31, 7)), mode);
            CHECK(fits.size() == cap);
            CHECK(proxy::parse(fits, how).consumed == cap);
            const proxy_buffer longer = proxy_v4_with(
                proxy_tlv_bytes_of(0xE1, proxy_repeated(cap - 30, 7)), mode);
            CHECK(proxy_read(longer, how) == "reject: v2_too_big");
        }
    }
}

TEST_CASE("proxy: the address size is a minimum, what follows are TLVs") {  // G029, G030, G031
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("01000268320200016C"))) ==
          "accept 37 of 37: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 01(2), 02(1)");
    CHECK(proxy_read(proxy_v4_with(proxy_tlv_bytes_of(0x04, proxy_repeated(69, 0)))) ==
          "accept 100 of 100: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443");
    CHECK(proxy_read(proxy_v4_with(proxy_tlv_bytes_of(0xE6, proxy_repeated(226, 1)))) ==
          "accept 257 of 257: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV E6(226)");
}

TEST_CASE("proxy: a block shorter than its addresses is refused at 16 bytes") {  // G032, G033
    const proxy_buffer signature = proxy_unhex("0D0A0D0A000D0A515549540A21");
    for (const unsigned kind : {0x11U, 0x12U, 0x21U, 0x22U, 0x31U, 0x32U}) {
        const unsigned block = kind >> 4 == 1 ? 12 : kind >> 4 == 2 ? 36 : 216;
        for (unsigned length = 0; length <= block; ++length) {
            const proxy_buffer in =
                signature + proxy_repeated(1, kind) + proxy_repeated(1, 0) +
                proxy_repeated(1, length);
            CHECK(proxy_read(in) == (length < block
                                         ? "reject: v2_short"
                                         : "need more: at least " + std::to_string(block)));
        }
    }
    CHECK(proxy_read(proxy_unhex("0D0A0D0A000D0A515549540A21110004C0000201")) ==
          "reject: v2_short");
}

TEST_CASE("proxy: payload that looks like a TLV stays payload") {  // G034
    CHECK(proxy_read(proxy_v4_with({}) + proxy_unhex("0200054141414141")) ==
          "accept 28 of 36: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443");
}

TEST_CASE("proxy: TLVs end exactly where the header ends") {  // G035, G037
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("02000A3132333435"))) == "reject: tlv_truncated");
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("02000A3132333435")) + proxy_repeated(9, 0)) ==
          "reject: tlv_truncated");
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("02"))) == "reject: tlv_truncated");
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("E100"))) == "reject: tlv_truncated");
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("040000E100"))) == "reject: tlv_truncated");
}

TEST_CASE("proxy: an empty TLV is a TLV") {  // G036
    const proxy_buffer in = proxy_v4_with(proxy_unhex("E30000"));
    const proxy_result got = proxy::parse(in);
    CHECK(got.consumed == 31);
    const proxy::tlv found = got.value.tlvs.find(0xE3);
    CHECK(found.present());
    CHECK(found.value.empty());
    CHECK_FALSE(got.value.tlvs.find(0xE4).present());
}

TEST_CASE("proxy: values are counted bytes, sent on unchanged") {  // G038, G039
    for (const char* hex : {"2030000041", "FFFE80"}) {
        const proxy_buffer value = proxy_unhex(hex);
        const proxy_buffer in = proxy_v4_with(proxy_tlv_bytes_of(0xE1, value));
        const proxy_result got = proxy::parse(in);
        const std::vector<proxy::tlv> tlvs(got.value.tlvs.begin(), got.value.tlvs.end());
        REQUIRE(tlvs.size() == 1);
        CHECK(proxy_buffer(tlvs[0].value.begin(), tlvs[0].value.end()) == value);
        proxy_buffer out(128);
        out.resize(proxy::encode_v2(got.value, tlvs, out, false));
        CHECK(out == in);
    }
}

TEST_CASE("proxy: a CRC is compared as a big-endian number") {  // G040, G041, G043
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("030004d6c8c75f"))) ==
          "accept 35 of 35: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 03(4)");
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("0300045fc7c8d6"))) == "reject: crc_mismatch");
}

TEST_CASE("proxy: a CRC needs room for all of its seven bytes") {  // G042
    const proxy::header of =
        proxy::between(netio::ipv4(192, 0, 2, 1, 56324), netio::ipv4(192, 0, 2, 2, 443));
    proxy_guarded memory;
    for (std::size_t count = 0; count < 35; ++count) {
        const std::span<std::byte> out = memory.room(count);
        std::memset(out.data(), 0x55, out.size());
        CHECK(proxy::encode_v2(of, {}, out, true) == 0);
        for (const std::byte one : out) {
            CHECK(one == std::byte{0x55});
        }
    }
    const std::span<std::byte> out = memory.room(35);
    CHECK(proxy::encode_v2(of, {}, out, true) == 35);
    CHECK(proxy_buffer(out.begin(), out.end()) == proxy_v4_with(proxy_unhex("030004d6c8c75f")));
}

TEST_CASE("proxy: the client bits and the types inside an SSL TLV") {  // G044
    const proxy_buffer inner = proxy_tlv_bytes_of(proxy::ssl_version, proxy_bytes("TLSv1.3")) +
                               proxy_tlv_bytes_of(proxy::ssl_common_name, proxy_bytes("a"));
    const auto view = [&](const char* head) {
        static proxy_buffer kept;
        kept = proxy_v4_with(proxy_unhex("E10000") +
                             proxy_tlv_bytes_of(proxy::tlv_ssl, proxy_unhex(head) + inner));
        return proxy::parse(kept).value.tlvs.ssl();
    };
    proxy::ssl_view ssl = view("0100000000");
    CHECK(ssl.present);
    CHECK(ssl.over_tls());
    CHECK_FALSE(ssl.certificate_on_connection());
    CHECK_FALSE(ssl.certificate_in_session());
    CHECK_FALSE(ssl.verified());
    CHECK(netio::as_text(ssl.inner.find(proxy::ssl_version).value) == "TLSv1.3");
    CHECK(netio::as_text(ssl.inner.find(proxy::ssl_common_name).value) == "a");
    CHECK_FALSE(ssl.inner.find(proxy::ssl_cipher).present());
    ssl = view("0200000000");
    CHECK_FALSE(ssl.over_tls());
    CHECK(ssl.certificate_on_connection());
    CHECK(ssl.verified());
    ssl = view("0401020304");
    CHECK(ssl.certificate_in_session());
    CHECK(ssl.verify == 0x01020304U);
    CHECK_FALSE(ssl.verified());
    CHECK_FALSE(proxy::parse(proxy_v4_with({})).value.tlvs.ssl().present);
}

TEST_CASE("proxy: SSL inside SSL is an unknown type at any depth") {  // G045
    proxy_buffer nested;
    while (nested.size() < 4000) {
        nested = proxy_tlv_bytes_of(proxy::tlv_ssl, proxy_unhex("0100000000") + nested);
    }
    const proxy_result got = proxy::parse(proxy_v4_with(nested));
    CHECK(got.status == netio::parse_status::complete);
    // Not even the second level's rules are applied: this inner SSL has no five bytes.
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("2000080100000000200000"))) ==
          "accept 39 of 39: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443; TLV 20(8)");
}

TEST_CASE("proxy: a TLV that runs past its SSL parent refuses the header") {  // G046
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("20000F0100000000210009544C5376312E33"))) ==
          "reject: ssl_truncated");
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("200006010000000021"))) == "reject: ssl_truncated");
    CHECK(proxy_read(proxy_v4_with(proxy_unhex("200000"))) == "reject: ssl_truncated");
}

TEST_CASE("proxy: mapped text behind TCP6 is IPv6 and can be unmapped") {  // G047
    const proxy_buffer in =
        proxy_bytes("PROXY TCP6 ::ffff:192.0.2.1 ::ffff:192.0.2.2 53740 10001\r\n");
    const proxy_result got = proxy::parse(in);
    CHECK(got.value.fam == proxy::family::ipv6);
    CHECK(netio::is_mapped(got.value.source));
    CHECK(netio::unmapped(got.value.source) == netio::ipv4(192, 0, 2, 1, 53740));
    CHECK(netio::unmapped(got.value.destination) == netio::ipv4(192, 0, 2, 2, 10001));
}

TEST_CASE("proxy: two mapped sides are sent as plain IPv4") {  // G048
    const proxy::header of = proxy::between(netio::mapped(netio::ipv4(192, 0, 2, 1, 56324)),
                                            netio::mapped(netio::ipv4(192, 0, 2, 2, 443)));
    proxy_buffer out(128);
    out.resize(proxy::encode_v1(of, out));
    CHECK(out == proxy_bytes("PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n"));
    out.resize(128);
    out.resize(proxy::encode_v2(of, {}, out, false));
    CHECK(out == proxy_v4_with({}));
}

TEST_CASE("proxy: IPv6 in a header asks nothing of the system") {  // G049
    CHECK(proxy_read("PROXY TCP6 2001:db8::1 ::1 1 2\r\n") ==
          "accept 32 of 32: TCP6 [2001:db8::1]:1 -> [::1]:2");
}

TEST_CASE("proxy: mixed families are sent with the IPv4 side mapped") {  // G050
    const proxy::header of = proxy::between(netio::parse_endpoint("[2001:db8::9]:1").value,
                                            netio::ipv4(192, 0, 2, 9, 2));
    CHECK(of.fam == proxy::family::ipv6);
    proxy_buffer out(128);
    out.resize(proxy::encode_v1(of, out));
    CHECK(out == proxy_bytes("PROXY TCP6 2001:db8::9 ::ffff:c000:209 1 2\r\n"));
    CHECK(proxy_read(out) == "accept 44 of 44: TCP6 [2001:db8::9]:1 -> [::ffff:192.0.2.9]:2");
    out.resize(128);
    out.resize(proxy::encode_v2(of, {}, out, true));
    CHECK(out[13] == std::byte{0x21});
    CHECK(proxy_read(out) == "accept 59 of 59: IPv6 STREAM [2001:db8::9]:1 -> "
                             "[::ffff:192.0.2.9]:2; TLV 03(4)");
}

TEST_CASE("proxy: too many TLV bytes are an error before the first byte") {  // G051
    const proxy_buffer big = proxy_repeated(40000, 1);
    const proxy::tlv two[] = {{0xE1, big}, {0xE2, big}};
    const proxy::header of = proxy::between(netio::any_ipv4(1), netio::any_ipv4(2));
    proxy_buffer out(100000, std::byte{0x55});
    CHECK(proxy::encode_v2(of, two, out, true) == 0);
    CHECK(out == proxy_buffer(100000, std::byte{0x55}));
    const std::size_t one = proxy::encode_v2(of, std::span(two).first(1), out, true);
    CHECK(one == 16 + 12 + 7 + 40003);
    CHECK(netio::detail::load_big<std::uint16_t>(out.data() + 14) == one - 16);
    // The largest that the length field can say, and one byte more; a value it can't say at all.
    const proxy_buffer most = proxy_repeated(65535 - 12 - 3 + 1, 1);
    const proxy::tlv fits = {0xE1, netio::bytes(most).first(most.size() - 1)};
    const proxy::tlv over = {0xE1, most};
    const proxy_buffer huge = proxy_repeated(65536, 1);
    const proxy::tlv beyond = {0xE1, huge};
    CHECK(proxy::encode_v2(of, {&fits, 1}, out, false) == 65551);
    CHECK(proxy::encode_v2(of, {&over, 1}, out, false) == 0);
    CHECK(proxy::encode_v2(of, {&beyond, 1}, out, false) == 0);
    CHECK(proxy::encode_v2(of, {&fits, 1}, out, true) == 0);
}

TEST_CASE("proxy: every field of a written header is read back") {  // G052
    const netio::endpoint ends[] = {
        netio::ipv4(192, 0, 2, 1, 1), netio::ipv4(198, 51, 100, 7, 65535),
        netio::parse_endpoint("[2001:db8::1]:3").value,
        netio::parse_endpoint("[ffff:1:2:3:4:5:6:7]:4").value};
    proxy_buffer out(512);
    for (const netio::endpoint& source : ends) {
        for (const netio::endpoint& destination : ends) {
            const proxy::header of = proxy::between(source, destination);
            const bool four = of.fam == proxy::family::ipv4;
            const netio::endpoint from = four ? source : netio::mapped(source);
            const netio::endpoint to = four ? destination : netio::mapped(destination);
            for (const int how : {1, 2, 3}) {
                const std::size_t count = how == 1 ? proxy::encode_v1(of, out)
                                                   : proxy::encode_v2(of, {}, out, how == 3);
                const proxy_result got = proxy::parse(netio::bytes(out).first(count));
                CHECK(got.consumed == count);
                CHECK(got.value.cmd == proxy::command::proxy);
                CHECK(got.value.fam == of.fam);
                CHECK(got.value.proto == proxy::transport::stream);
                CHECK(got.value.source == from);
                CHECK(got.value.destination == to);
            }
        }
    }
}

TEST_CASE("proxy: a client that sends no header is refused, not believed") {  // G057
    CHECK(proxy_read("GET / HTTP/1.1\r\n\r\n") == "reject: not_proxy");
    CHECK(proxy_read("\x16\x03\x01") == "reject: not_proxy");
}

TEST_CASE("proxy: a datagram carries its header in front of its payload") {  // G061
    const proxy_buffer four = proxy_v4_with({}, 0x21, 0x12) + proxy_bytes("payload");
    const proxy_result got = proxy::parse(four);
    CHECK(got.value.proto == proxy::transport::datagram);
    CHECK(netio::as_text(netio::bytes(four).subspan(got.consumed)) == "payload");
    proxy::header of = got.value;
    proxy_buffer out(64);
    out.resize(proxy::encode_v2(of, {}, out, false));
    CHECK(out == proxy_v4_with({}, 0x21, 0x12));
    CHECK(proxy::encode_v1(of, out) == 0);
}

// ---- what the API promises beside the vectors ----

TEST_CASE("proxy: a version that is not accepted is named once it is certain") {
    proxy::options one;
    one.accept = proxy::versions::v1;
    proxy::options two;
    two.accept = proxy::versions::v2;
    CHECK(proxy_read(proxy_v4_with({}), one) == "reject: proxy_version_refused");
    CHECK(proxy_read("PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n", two) ==
          "reject: proxy_version_refused");
    CHECK(proxy_read("PROXY UNKNOWN\r\n", two) == "reject: proxy_version_refused");
    CHECK(proxy_read("PROXY", two) == "need more: at least 10");
    CHECK(proxy_read("GET ", two) == "reject: not_proxy");
    CHECK(proxy_read(proxy_v4_with({}), two) ==
          "accept 28 of 28: IPv4 STREAM 192.0.2.1:56324 -> 192.0.2.2:443");
    CHECK(proxy_read("PROXY UNKNOWN\r\n", one) == "accept 15 of 15: UNKNOWN, real addresses");
}

TEST_CASE("proxy: the TLV list is a forward range in order, without NOOPs") {
    static_assert(std::forward_iterator<proxy::tlv_list::iterator>);
    const proxy_buffer in = proxy_v4_with(
        proxy_unhex("04000101E10001AA0400000400000100016802000162E10001BB040000"));
    const proxy_result got = proxy::parse(in);
    REQUIRE(got.status == netio::parse_status::complete);
    std::string types;
    proxy::tlv_list::iterator at = got.value.tlvs.begin();
    while (at != got.value.tlvs.end()) {
        types += std::to_string((*at++).type) + " ";
    }
    CHECK(types == "225 1 2 225 ");
    CHECK(got.value.tlvs.find(0xE1).value[0] == std::byte{0xAA});
    CHECK_FALSE(got.value.tlvs.find(proxy::tlv_noop).present());
    CHECK(got.value.tlvs.raw().size() == in.size() - 28);
    CHECK(proxy::tlv_list().empty());
    CHECK_FALSE(proxy::tlv_list().find(1).present());
    CHECK(proxy::tlv_list::iterator() == proxy::tlv_list().begin());
}

TEST_CASE("proxy: TLVs of the encoder are those of the parser, any CRC among them made anew") {
    const proxy_buffer id = proxy_repeated(128, 9);
    const proxy_buffer stale = proxy_unhex("01020304");
    const proxy::tlv given[] = {{proxy::tlv_authority, netio::as_bytes("a.example")},
                                {proxy::tlv_crc32c, stale},
                                {0xE3, {}},
                                {proxy::tlv_unique_id, id}};
    const proxy::header of = proxy::between(netio::any_ipv6(1), netio::any_ipv6(2));
    proxy_buffer out(512);
    const std::size_t plain = proxy::encode_v2(of, given, out, false);
    CHECK(proxy_text(proxy::parse(netio::bytes(out).first(plain)), plain) ==
          "accept 198 of 198: IPv6 STREAM [::]:1 -> [::]:2; TLV 02(9), E3(0), 05(128)");
    const std::size_t checked = proxy::encode_v2(of, given, out, true);
    CHECK(proxy_text(proxy::parse(netio::bytes(out).first(checked)), checked) ==
          "accept 205 of 205: IPv6 STREAM [::]:1 -> [::]:2; TLV 03(4), 02(9), E3(0), 05(128)");
}

TEST_CASE("proxy: the encoder writes nothing that a receiver must refuse") {
    const proxy::header of = proxy::between(netio::any_ipv4(1), netio::any_ipv4(2));
    proxy_buffer out(512);
    const proxy_buffer id = proxy_repeated(129, 9);
    const proxy::tlv long_id = {proxy::tlv_unique_id, id};
    CHECK(proxy::encode_v2(of, {&long_id, 1}, out, false) == 0);
    const proxy_buffer head = proxy_unhex("01000000");
    const proxy::tlv short_ssl = {proxy::tlv_ssl, head};
    CHECK(proxy::encode_v2(of, {&short_ssl, 1}, out, false) == 0);
}

TEST_CASE("proxy: UNSPEC is sent where the header names no addresses") {
    proxy_buffer out(64);
    const proxy_buffer unspecified = proxy_unhex("0D0A0D0A000D0A515549540A21000000");
    const proxy::tlv one = {0xE1, {}};
    proxy::header of = proxy::between({}, netio::any_ipv4(1));
    CHECK(proxy::encode_v2(of, {&one, 1}, out, true) == 16);
    CHECK(proxy_buffer(out.begin(), out.begin() + 16) == unspecified);
    of = proxy::between(netio::any_ipv4(1), netio::any_ipv4(2), proxy::transport::unspecified);
    CHECK(proxy::encode_v2(of, {}, out, false) == 16);
    of = proxy::between(netio::any_ipv4(1), netio::any_ipv4(2));
    of.fam = proxy::family::unspecified;
    CHECK(proxy::encode_v2(of, {}, out, false) == 16);
    of.fam = proxy::family::ipv4;
    of.source = {};
    CHECK(proxy::encode_v2(of, {}, out, false) == 16);
    CHECK(proxy_buffer(out.begin(), out.begin() + 16) == unspecified);
}

TEST_CASE("proxy: unix paths, abstract names and unnamed sockets go both ways") {
    const std::string full(108, 'p');
    const std::string_view abstract("\0abs", 4);
    for (const std::string_view path : {std::string_view("/run/a.sock"), abstract,
                                        std::string_view(full), std::string_view()}) {
        proxy::header of;
        of.cmd = proxy::command::proxy;
        of.fam = proxy::family::unix_path;
        of.proto = proxy::transport::stream;
        of.source_path = netio::as_bytes(path);
        of.destination_path = netio::as_bytes("/b");
        proxy_buffer out(300);
        const std::size_t count = proxy::encode_v2(of, {}, out, true);
        CHECK(count == 239);
        const proxy_result got = proxy::parse(netio::bytes(out).first(count));
        CHECK(got.status == netio::parse_status::complete);
        CHECK(got.value.source.family == netio::address_family::unix_path);
        CHECK(netio::as_text(got.value.source_path) == path);
        CHECK(netio::as_text(got.value.destination_path) == "/b");
        CHECK(proxy::encode_v1(of, out) == 15);
    }
    proxy::header of;
    of.cmd = proxy::command::proxy;
    of.fam = proxy::family::unix_path;
    of.proto = proxy::transport::stream;
    const std::string longer(109, 'p');
    proxy_buffer out(300);
    of.source_path = netio::as_bytes(longer);
    CHECK(proxy::encode_v2(of, {}, out, false) == 0);
    of.source_path = {};
    of.destination_path = netio::as_bytes(longer);
    CHECK(proxy::encode_v2(of, {}, out, false) == 0);
}

TEST_CASE("proxy: v1 writes whole lines only, the longest is 104 bytes") {
    const netio::endpoint most =
        netio::parse_endpoint("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535").value;
    proxy_buffer out(107, std::byte{0x55});
    const proxy::header of = proxy::between(most, most);
    CHECK(proxy::encode_v1(of, std::span(out).first(103)) == 0);
    CHECK(out == proxy_buffer(107, std::byte{0x55}));
    CHECK(proxy::encode_v1(of, std::span(out).first(104)) == 104);
    CHECK(proxy::encode_v1(proxy::header{}, std::span(out).first(14)) == 0);
    CHECK(proxy::encode_v1(proxy::header{}, {}) == 0);
    CHECK(proxy::encode_v2(proxy::header{}, {}, {}, false) == 0);
    // A zone belongs to one host only and is never sent.
    const proxy::header zone =
        proxy::between(netio::parse_endpoint("[fe80::1%3]:1").value, netio::loopback_ipv6(2));
    out.resize(proxy::encode_v1(zone, out));
    CHECK(out == proxy_bytes("PROXY TCP6 fe80::1 ::1 1 2\r\n"));
}

TEST_CASE("proxy: ids that clouds put into their own types") {
    std::uint32_t link = 0;
    std::uint64_t id = 0;
    const proxy_buffer azure = proxy_unhex("0104030201");
    CHECK(proxy::azure_link_id({0xEE, azure}, link));
    CHECK(link == 0x01020304U);
    CHECK_FALSE(proxy::azure_link_id({0xED, azure}, link));
    CHECK_FALSE(proxy::azure_link_id({0xEE, netio::bytes(azure).first(4)}, link));
    CHECK_FALSE(proxy::azure_link_id({0xEE, proxy_unhex("0204030201")}, link));
    const proxy_buffer gcp = proxy_unhex("0102030405060708");
    CHECK(proxy::gcp_psc_id({0xE0, gcp}, id));
    CHECK(id == 0x0102030405060708U);
    CHECK_FALSE(proxy::gcp_psc_id({0xE0, netio::bytes(gcp).first(7)}, id));
    CHECK_FALSE(proxy::gcp_psc_id({0xE1, gcp}, id));
    const proxy_buffer aws = proxy_bytes("\x01vpce-123");
    CHECK(proxy::aws_vpce_id({0xEA, aws}) == "vpce-123");
    CHECK(proxy::aws_vpce_id({0xE9, aws}).empty());
    CHECK(proxy::aws_vpce_id({0xEA, {}}).empty());
    CHECK(proxy::aws_vpce_id({0xEA, proxy_bytes("\x02vpce-123")}).empty());
}

TEST_CASE("proxy: an all-zero header is LOCAL with nothing in it") {
    proxy::header zero;
    std::memset(static_cast<void*>(&zero), 0, sizeof zero);
    CHECK(zero.cmd == proxy::command::local);
    CHECK(zero.tlvs.empty());
    CHECK_FALSE(zero.names_client());
    static_assert(std::is_trivially_copyable_v<proxy::header>);
}
