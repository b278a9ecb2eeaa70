// Floors 0 to 3 with no operating system and no heap: PROXY headers, envelopes and the wheel on a
// Cortex-M4, 16 KiB of stack. tests/bare_test.py builds it and runs it under qemu-system-arm; the
// exit code is 0 if every check held.
#include "netio.hpp"

#include "tests/envelope_goldens.hpp"
#include "tests/envelope_rebuild.hpp"
#include "tests/proxy_vectors.hpp"

#include <cstddef>
#include <string_view>

static_assert(NETIO_PLATFORM == 0 && NETIO_CHECKS == 2);

extern "C" void bare_say(const char* text);

namespace {

int failed_count = 0;
std::byte input[4200];
std::byte output[4200];

void check(const char* says, bool holds) {
    bare_say(holds ? "ok bare: " : "not ok bare: ");
    bare_say(says);
    bare_say("\n");
    failed_count += !holds;
}

netio::bytes unhex(std::string_view text) {
    std::size_t count = 0;
    int high = -1;
    for (const char letter : text) {
        if (letter != ' ') {
            const int digit = letter <= '9' ? letter - '0' : letter - 'a' + 10;
            if (high >= 0) {
                input[count++] = static_cast<std::byte>(high * 16 + digit);
            }
            high = high < 0 ? digit : -1;
        }
    }
    return {input, count};
}

// ---- PROXY --------------------------------------------------------------------------------------

/// Takes `wanted` from the front of `text`.
bool eat(std::string_view& text, std::string_view wanted) {
    const bool there = text.starts_with(wanted);
    text.remove_prefix(there ? wanted.size() : 0);
    return there;
}

std::size_t eat_number(std::string_view& text) {
    std::size_t out = 0;
    while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
        out = out * 10 + static_cast<std::size_t>(text[0] - '0');
        text.remove_prefix(1);
    }
    return out;
}

/// "192.0.2.1:56324 -> 192.0.2.2:443", perhaps with more behind it.
bool says_addresses(std::string_view text, const netio::proxy::header& of) {
    char line[netio::endpoint_text_max];
    return eat(text, netio::format(of.source, line)) && eat(text, " -> ") &&
           eat(text, netio::format(of.destination, line));
}

/// Is the result what the vector says, in status, in bytes consumed or missing, and in addresses?
bool as_expected(std::string_view wanted, netio::bytes in) {
    const auto got = netio::proxy::parse(in);
    if (eat(wanted, "accept ")) {
        if (got.status != netio::parse_status::complete || got.consumed != eat_number(wanted)) {
            return false;
        }
        const std::size_t colon = wanted.find(": ");
        wanted.remove_prefix(colon + 2);
        for (const std::string_view family : {"TCP4 ", "TCP6 ", "IPv4 STREAM ", "IPv6 STREAM ",
                                              "IPv4 DGRAM ", "IPv6 DGRAM "}) {
            if (eat(wanted, family)) {
                return says_addresses(wanted, got.value);
            }
        }
        return !got.value.names_client();
    }
    if (eat(wanted, "need more: at least ")) {
        return got.status == netio::parse_status::incomplete && got.missing == eat_number(wanted);
    }
    return eat(wanted, "reject: ") && got.status == netio::parse_status::invalid;
}

bool proxy_vectors_hold() {
    bool holds = true;
    for (const proxy_vector& one : proxy_vectors) {
        // B04 may be refused as well.
        holds &= as_expected(one.expected, unhex(one.hex)) ||
                 (std::string_view(one.id) == "B04" && as_expected("reject: ", unhex(one.hex)));
    }
    return holds;
}

/// What was written is read again, with every shorter prefix incomplete.
bool proxy_comes_back() {
    netio::proxy::header of{};
    of.version = 2;
    of.cmd = netio::proxy::command::proxy;
    of.fam = netio::proxy::family::ipv6;
    of.proto = netio::proxy::transport::stream;
    of.source = netio::parse_endpoint("[2001:db8::1]:4124").value;
    of.destination = netio::parse_endpoint("[2001:db8::2]:443").value;
    const std::size_t size = netio::proxy::encode_v2(of, {}, output, true);
    bool holds = size != 0;
    for (std::size_t count = 0; count < size; ++count) {
        holds &= netio::proxy::parse({output, count}).status == netio::parse_status::incomplete;
    }
    const auto got = netio::proxy::parse({output, size});
    holds &= got.status == netio::parse_status::complete && got.consumed == size &&
             got.value.source == of.source && got.value.destination == of.destination;
    output[20] ^= std::byte{1};  // its CRC32C must tell
    return holds && netio::proxy::parse({output, size}).status == netio::parse_status::invalid;
}

// ---- envelopes ----------------------------------------------------------------------------------

bool envelopes_come_back() {
    bool holds = true;
    std::string_view names[8];
    for (const std::string_view golden : envelope_goldens) {
        const netio::bytes in = unhex(golden);
        for (std::size_t count = 0; count < in.size(); ++count) {
            holds &= netio::rpc::decode(in.first(count)).status == netio::parse_status::invalid;
        }
        const auto got = netio::rpc::decode(in);
        holds &= got.status == netio::parse_status::complete &&
                 envelope_rebuild(got.value, output, names) == in.size() &&
                 netio::as_text(in) == netio::as_text({output, in.size()});
    }
    return holds;
}

// ---- the wheel ----------------------------------------------------------------------------------

constexpr std::uint32_t timer_count = 500;
alignas(8) std::byte heads[netio::wheel::heads_bytes];
netio::wheel_node nodes[timer_count];
netio::wheel wheel;

std::uint64_t due_of(std::uint32_t index) {
    return std::uint64_t{index} * index * index * 7 + 1;  // up to 870,000,000 ticks ahead
}

/// Every other timer is cancelled; the rest fire once, in order, at the tick they are due.
bool wheel_is_exact() {
    wheel.attach(heads, reinterpret_cast<std::byte*>(nodes), sizeof(nodes[0]), timer_count, 0);
    for (std::uint32_t index = 0; index < timer_count; ++index) {
        wheel.arm(index, due_of(index));
    }
    for (std::uint32_t index = 0; index < timer_count; index += 2) {
        wheel.cancel(index);
    }
    bool holds = wheel.count() == timer_count / 2;
    std::uint32_t next = 1;
    std::uint64_t now = 0;
    while (wheel.count() != 0 && now < due_of(timer_count)) {
        now = wheel.next_due();
        wheel.expire(now, 16, [&](std::uint32_t index) noexcept {
            holds &= index == next && now == due_of(index);
            next += 2;
            return netio::wheel::done;
        });
    }
    return holds && next == timer_count + 1 && wheel.next_due() == netio::wheel::never;
}

// ---- what they stand on -------------------------------------------------------------------------

alignas(8) std::byte cells[8 * netio::post_queue::cell_bytes];
netio::post_queue posts;

bool posts_keep_their_order() {
    posts.attach(cells, 8);
    bool holds = true;
    for (std::uint64_t word = 0; word < 9; ++word) {
        holds &= posts.push({word, ~word}) == (word < 8);
    }
    netio::post got{};
    for (std::uint64_t word = 0; word < 8; ++word) {
        holds &= posts.pop(got) && got.id == word && got.word == ~word;
    }
    return holds && !posts.pop(got);
}

}  // namespace

int main() {
    check("checksum", netio::crc32c(netio::as_bytes("123456789")) == 0xE3069283);
    check("PROXY vectors", proxy_vectors_hold());
    check("PROXY header written and read", proxy_comes_back());
    check("envelopes read, rebuilt and cut", envelopes_come_back());
    check("the wheel fires each timer once, in order, at its tick", wheel_is_exact());
    check("posts keep their order", posts_keep_their_order());
    return failed_count == 0 ? 0 : 1;
}
