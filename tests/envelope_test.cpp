// ARP1 envelopes: golden bytes, every cut and bit flip of them, hostile counts, the writer's rules.
#include "netio.hpp"

#include "tests/envelope_goldens.hpp"
#include "tests/envelope_rebuild.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#if NETIO_HAS_POSIX
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

namespace rpc = netio::rpc;

static_assert(std::forward_iterator<rpc::argument_list::iterator>);
static_assert(std::forward_iterator<rpc::value_map::iterator>);

using envelope_octets = std::vector<std::byte>;

envelope_octets envelope_hex(std::string_view text) {
    envelope_octets out;
    int high = -1;
    for (const char letter : text) {
        if (letter == ' ') {
            continue;
        }
        const int digit = letter <= '9' ? letter - '0' : letter - 'a' + 10;
        if (high < 0) {
            high = digit;
        } else {
            out.push_back(static_cast<std::byte>(high * 16 + digit));
            high = -1;
        }
    }
    return out;
}

rpc::capability_id envelope_id() {
    rpc::capability_id id{};
    for (std::size_t at = 0; at < 16; ++at) {
        id.octets[at] = static_cast<std::byte>(at);
    }
    return id;
}

/// Bytes that end where the process may not read any more.
class envelope_guarded {
public:
    explicit envelope_guarded(netio::bytes content) {
#if NETIO_HAS_POSIX
        const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        mapped_bytes_ = (content.size() + page - 1) / page * page + page;
        base_ = static_cast<std::byte*>(::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        std::byte* const wall = base_ + mapped_bytes_ - page;
        ::mprotect(wall, page, PROT_NONE);
        at_ = wall - content.size();
#else
        mapped_bytes_ = content.size();
        at_ = base_ = new std::byte[mapped_bytes_ + 1];
#endif
        count_ = content.size();
        if (count_ != 0) {
            std::memcpy(at_, content.data(), count_);
        }
    }
    ~envelope_guarded() {
#if NETIO_HAS_POSIX
        ::munmap(base_, mapped_bytes_);
#else
        delete[] base_;
#endif
    }
    envelope_guarded(const envelope_guarded&) = delete;
    envelope_guarded& operator=(const envelope_guarded&) = delete;

    netio::mutable_bytes all() const { return {at_, count_}; }
    netio::mutable_bytes last(std::size_t count) const { return all().last(count); }

private:
    std::byte* base_ = nullptr;
    std::byte* at_ = nullptr;
    std::size_t mapped_bytes_ = 0;
    std::size_t count_ = 0;
};

bool envelope_same(netio::bytes left, netio::bytes right) {
    return left.size() == right.size() &&
           (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

/// True if `input` decodes and both ways of writing it give the same bytes, or if it is refused
/// with one of the codes of the wire.
bool envelope_holds(netio::bytes input, const rpc::wire_limits& limits = {}) {
    const auto got = rpc::decode(input, limits);
    if (got.status != netio::parse_status::complete) {
        return got.status == netio::parse_status::invalid && got.consumed == 0 &&
               (got.why == netio::error::rpc_wire || got.why == netio::error::rpc_limit ||
                got.why == netio::error::rpc_capability_table);
    }
    envelope_octets room(input.size());
    std::vector<std::string_view> names(limits.methods_max);
    const bool rebuilt = envelope_rebuild(got.value, room, names, limits) == input.size() &&
                         envelope_same(room, input);
    std::fill(room.begin(), room.end(), std::byte{0xEE});
    return got.consumed == input.size() && rebuilt &&
           envelope_copy(got.value, room, limits) == input.size() && envelope_same(room, input);
}

/// A request with one value argument whose bytes are given, its tag included.
envelope_octets envelope_of_value(const envelope_octets& content) {
    envelope_octets out = envelope_hex("41525031 81 01 0000 0100000000000000 00000000 01000000 00");
    out.insert(out.end(), content.begin(), content.end());
    out.resize(out.size() + 8);
    return out;
}
netio::error envelope_value_error(std::string_view hex) {
    return rpc::decode(envelope_of_value(envelope_hex(hex))).why;
}
netio::error envelope_error(std::string_view hex) { return rpc::decode(envelope_hex(hex)).why; }

/// `depth` lists in one another, the innermost empty.
envelope_octets envelope_nested(std::size_t depth) {
    envelope_octets content;
    for (std::size_t level = 1; level <= depth; ++level) {
        content.push_back(std::byte{5});
        content.push_back(std::byte{static_cast<unsigned char>(level == depth ? 0 : 1)});
        content.resize(content.size() + 3);
    }
    return content;
}

/// A text argument made of these bytes.
netio::error envelope_text_error(std::string_view text) {
    envelope_octets content{std::byte{4}, static_cast<std::byte>(text.size()), std::byte{0},
                            std::byte{0}, std::byte{0}};
    for (const char letter : text) {
        content.push_back(static_cast<std::byte>(letter));
    }
    const auto whole = envelope_of_value(content);
    return rpc::decode(envelope_guarded(whole).all()).why;
}

/// A hello with the descriptor of the golden one, changed at one place.
netio::error envelope_hello_error(std::size_t at, unsigned octet) {
    envelope_octets changed = envelope_hex(envelope_hello);
    changed[at] = static_cast<std::byte>(octet);
    return rpc::decode(changed).why;
}

TEST_CASE("envelope: ping is read as published") {
    const auto input = envelope_hex(envelope_ping);
    REQUIRE(input.size() == 36);
    const auto got = rpc::decode(input);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.consumed == 36);
    CHECK(got.value.kind == rpc::envelope_kind::request);
    CHECK(got.value.flags == 0);
    CHECK(got.value.request_id == 1);
    CHECK(got.value.method == "ping");
    CHECK(got.value.arguments.empty());
    CHECK(got.value.payload.empty());
    CHECK(got.value.capabilities.empty());
}

TEST_CASE("envelope: an error carries its code as method") {
    const auto input = envelope_hex(envelope_unknown);
    REQUIRE(input.size() == 54);
    const auto got = rpc::decode(input);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.kind == rpc::envelope_kind::error);
    CHECK(got.value.request_id == 7);
    CHECK(got.value.method == "rpc/unknown-capability");
    CHECK(rpc::code_from(got.value.method) == rpc::rpc_code::unknown_capability);
}

TEST_CASE("envelope: flags and payload are read where they stand") {
    const auto input = envelope_hex(envelope_put);
    REQUIRE(input.size() == 38);
    const auto got = rpc::decode(input);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.redact());
    CHECK(got.value.read_only());
    CHECK(got.value.method == "put");
    CHECK(got.value.payload.data() == input.data() + 31);
    CHECK(envelope_same(got.value.payload, envelope_hex("010203")));
}

TEST_CASE("envelope: a response carries one value") {
    const auto input = envelope_hex(envelope_response);
    REQUIRE(input.size() == 40);
    const auto got = rpc::decode(input);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.kind == rpc::envelope_kind::response);
    REQUIRE(got.value.arguments.size() == 1);
    CHECK(got.value.arguments.front().as_value().as_text() == "ok");
    CHECK(got.value.arguments.front().as_promise() == 0);
    CHECK(got.value.arguments.front().as_capability() == rpc::capability_id{});
}

TEST_CASE("envelope: every form of value is read") {
    const auto input = envelope_hex(envelope_values);
    REQUIRE(input.size() == 117);
    const auto got = rpc::decode(input);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.request_id == 3);
    REQUIRE(got.value.arguments.size() == 10);
    std::vector<rpc::value> values;
    for (const rpc::argument argument : got.value.arguments) {
        REQUIRE(argument.is(rpc::argument_tag::value));
        values.push_back(argument.as_value());
    }
    CHECK(values[0].is(rpc::value_tag::null_value));
    CHECK(values[1].as_bool());
    CHECK(values[2].as_int() == -2);
    CHECK(values[3].as_real() == 1.5);
    CHECK(values[4].is(rpc::value_tag::text));
    CHECK(values[4].as_text("none").empty());
    const rpc::value_list list = values[5].as_list();
    REQUIRE(list.size() == 2);
    CHECK(list.front().is(rpc::value_tag::null_value));
    CHECK((*++list.begin()).as_int() == 1);
    const rpc::value_map map = values[6].as_map();
    REQUIRE(map.size() == 2);
    auto entry = map.begin();
    CHECK((*entry).key == "a");
    CHECK((*entry).held.as_bool(true) == false);
    ++entry;
    CHECK((*entry).key == "b");
    CHECK((*entry).held.is(rpc::value_tag::null_value));
    CHECK(++entry == map.end());
    CHECK(values[7].is(rpc::value_tag::secret));
    CHECK(envelope_same(values[8].as_module(), envelope_hex("ff")));
    CHECK(values[9].as_path() == "a.b");
}

TEST_CASE("envelope: a value asked for another form gives the fallback") {
    const rpc::value nothing;
    CHECK(nothing.is(rpc::value_tag::null_value));
    CHECK(nothing.as_bool(true));
    CHECK_FALSE(nothing.as_bool());
    CHECK(nothing.as_int(7) == 7);
    CHECK(nothing.as_real(0.5) == 0.5);
    CHECK(nothing.as_text("x") == "x");
    CHECK(nothing.as_path("y") == "y");
    CHECK(nothing.as_module().empty());
    CHECK(nothing.as_list().empty());
    CHECK(nothing.as_map().empty());
    CHECK(nothing.wire().size() == 1);
    CHECK(nothing.depth() == 1);
}

TEST_CASE("envelope: capabilities and promises are arguments of their own") {
    const auto input = envelope_hex(envelope_pipelined);
    REQUIRE(input.size() == 59);
    const auto got = rpc::decode(input);
    REQUIRE(got.status == netio::parse_status::complete);
    REQUIRE(got.value.arguments.size() == 2);
    auto argument = got.value.arguments.begin();
    CHECK((*argument).is(rpc::argument_tag::capability));
    CHECK((*argument).as_capability() == envelope_id());
    CHECK((*argument).as_value().is(rpc::value_tag::null_value));
    CHECK((*argument).wire().size() == 17);
    argument++;
    CHECK((*argument).is(rpc::argument_tag::promise));
    CHECK((*argument).as_promise() == 3);
    CHECK((*argument).wire().size() == 9);
}

TEST_CASE("envelope: a descriptor is read field by field") {
    const auto input = envelope_hex(envelope_hello);
    REQUIRE(input.size() == 132);
    const auto got = rpc::decode(input);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.kind == rpc::envelope_kind::hello);
    CHECK(got.value.request_id == 0);
    REQUIRE(got.value.capabilities.size() == 1);
    const rpc::capability_descriptor descriptor = got.value.capabilities.front();
    CHECK(descriptor.id() == envelope_id());
    REQUIRE(descriptor.methods().size() == 2);
    CHECK(descriptor.methods().front() == "get");
    CHECK(*++descriptor.methods().begin() == "stats");
    CHECK(descriptor.spend() == rpc::budget{});
    CHECK(descriptor.spend().value_bytes_max == 10'000'000);
    CHECK(descriptor.read_only());
    CHECK_FALSE(descriptor.redact());
    CHECK(descriptor.has_path());
    CHECK(descriptor.path() == "a.b");
    CHECK(descriptor.wire().size() == 100);
}

TEST_CASE("envelope: the writer gives the golden bytes") {
    std::byte room[256];
    rpc::writer out(room);
    const auto gives = [&](std::string_view golden, std::size_t size) {
        return envelope_same(netio::bytes(room, size), envelope_hex(golden));
    };
    CHECK(gives(envelope_ping, out.begin(rpc::envelope_kind::request, 1, "ping").finish()));
    CHECK(gives(envelope_unknown, out.begin(rpc::envelope_kind::error, 7,
                                            rpc::code_text(rpc::rpc_code::unknown_capability))
                                      .finish()));
    CHECK(gives(envelope_put, out.begin(rpc::envelope_kind::request, 2, "put",
                                        rpc::flag_redact | rpc::flag_read_only)
                                  .payload(envelope_hex("010203"))
                                  .finish()));
    CHECK(gives(envelope_response,
                out.begin(rpc::envelope_kind::response, 1).value_text("ok").finish()));
    out.begin(rpc::envelope_kind::request, 3, "v").value_null().value_bool(true).value_int(-2);
    out.value_real(1.5).value_text("").value_list().value_null().value_int(1).end();
    out.value_map().key("a").value_bool(false).key("b").value_null().end().value_secret();
    out.value_module(envelope_hex("ff")).value_path("a.b");
    CHECK(gives(envelope_values, out.finish()));
    CHECK(gives(envelope_pipelined, out.begin(rpc::envelope_kind::request, 4, "c")
                                        .capability(envelope_id())
                                        .promise(3)
                                        .finish()));
    const std::string_view methods[] = {"get", "stats"};
    CHECK(gives(envelope_hello, out.begin(rpc::envelope_kind::hello, 0)
                                    .descriptor({envelope_id(), methods, {}, true, false, true,
                                                 "a.b"})
                                    .finish()));
    CHECK(out.why() == netio::error::none);
}

TEST_CASE("envelope: every cut of a golden envelope is refused at the guard page") {
    for (const std::string_view golden : envelope_goldens) {
        const auto input = envelope_hex(golden);
        CHECK(envelope_holds(envelope_guarded(input).all()));
        REQUIRE(rpc::decode(input).status == netio::parse_status::complete);
        for (std::size_t count = 0; count < input.size(); ++count) {
            const envelope_guarded cut(netio::bytes(input).first(count));
            const auto got = rpc::decode(cut.all());
            CHECK(got.status == netio::parse_status::invalid);
            CHECK(got.why == netio::error::rpc_wire);
            CHECK(got.value.arguments.empty());
            CHECK(got.value.method.empty());
        }
        auto longer = input;
        longer.push_back(std::byte{0});
        CHECK(rpc::decode(longer).why == netio::error::rpc_wire);
    }
}

TEST_CASE("envelope: every bit flip of a golden envelope gives a code or the same bytes") {
    for (const std::string_view golden : envelope_goldens) {
        const auto input = envelope_hex(golden);
        const envelope_guarded copy(input);
        for (std::size_t bit = 0; bit < input.size() * 8; ++bit) {
            const auto mask = static_cast<std::byte>(1u << (bit % 8));
            copy.all()[bit / 8] ^= mask;
            CHECK(envelope_holds(copy.all()));
            copy.all()[bit / 8] ^= mask;
        }
    }
}

TEST_CASE("envelope: every octet of a golden envelope may be anything") {
    for (const std::string_view golden : envelope_goldens) {
        const auto input = envelope_hex(golden);
        const envelope_guarded copy(input);
        std::size_t broken = 0;
        for (std::size_t at = 0; at < input.size(); ++at) {
            for (unsigned octet = 0; octet < 256; ++octet) {
                copy.all()[at] = static_cast<std::byte>(octet);
                broken += envelope_holds(copy.all()) ? 0u : 1u;
            }
            copy.all()[at] = input[at];
        }
        CHECK(broken == 0);
    }
}

TEST_CASE("envelope: unknown magic, version, kind, flag, argument and tag are refused") {
    CHECK(envelope_error(envelope_ping) == netio::error::none);
    const auto changed = [](std::size_t at, unsigned octet) {
        auto input = envelope_hex(envelope_ping);
        input[at] = static_cast<std::byte>(octet);
        return rpc::decode(input).why;
    };
    CHECK(changed(0, 'a') == netio::error::rpc_wire);
    CHECK(changed(3, '2') == netio::error::rpc_wire);
    for (const unsigned version : {0u, 2u, 0x80u, 0x82u, 0xFFu}) {
        CHECK(changed(4, version) == netio::error::rpc_wire);
    }
    for (const unsigned kind : {0u, 5u, 255u}) {
        CHECK(changed(5, kind) == netio::error::rpc_wire);
    }
    for (const unsigned flags : {4u, 8u, 128u}) {
        CHECK(changed(6, flags) == netio::error::rpc_wire);
    }
    CHECK(changed(7, 1) == netio::error::rpc_wire);
    auto argument = envelope_of_value(envelope_hex("00"));
    CHECK(rpc::decode(argument).why == netio::error::none);
    argument[24] = std::byte{3};
    CHECK(rpc::decode(argument).why == netio::error::rpc_wire);
    CHECK(envelope_value_error("0a") == netio::error::rpc_wire);
    CHECK(envelope_value_error("ff") == netio::error::rpc_wire);
    CHECK(envelope_value_error("05 01000000 0a") == netio::error::rpc_wire);
}

TEST_CASE("envelope: each version byte has its own envelopes") {
    // 0x81 without arguments and descriptors would be a second encoding of the published bytes.
    auto ping = envelope_hex(envelope_ping);
    ping[4] = std::byte{0x81};
    CHECK(rpc::decode(ping).why == netio::error::rpc_wire);
    // Nobody published what arguments and descriptors look like under version 1.
    auto response = envelope_hex(envelope_response);
    response[4] = std::byte{1};
    CHECK(rpc::decode(response).why == netio::error::rpc_wire);
    auto hello = envelope_hex(envelope_hello);
    hello[4] = std::byte{1};
    CHECK(rpc::decode(hello).why == netio::error::rpc_wire);
}

TEST_CASE("envelope: the smallest envelope has 32 bytes") {
    const auto hello = envelope_hex(
        "41525031 01 04 0000 0000000000000000 00000000 00000000 00000000 00000000");
    REQUIRE(hello.size() == 32);
    CHECK(envelope_holds(envelope_guarded(hello).all()));
    CHECK(rpc::decode(hello).status == netio::parse_status::complete);
    CHECK(rpc::decode({}).why == netio::error::rpc_wire);
}

TEST_CASE("envelope: a request has an id") {
    auto input = envelope_hex(envelope_ping);
    input[8] = std::byte{0};
    CHECK(rpc::decode(input).why == netio::error::rpc_wire);
    input[15] = std::byte{1};
    CHECK(rpc::decode(input).value.request_id == std::uint64_t{1} << 56);
}

TEST_CASE("envelope: a response has no method and exactly one value") {
    CHECK(envelope_error("41525031 01 02 0000 0100000000000000 00000000 00000000 00000000 00000000")
          == netio::error::rpc_wire);
    CHECK(envelope_error("41525031 81 02 0000 0100000000000000 01000000 61 01000000 0000"
                         "00000000 00000000") == netio::error::rpc_wire);
    CHECK(envelope_error("41525031 81 02 0000 0100000000000000 00000000 02000000 0000 0000"
                         "00000000 00000000") == netio::error::rpc_wire);
    CHECK(envelope_error("41525031 81 02 0000 0100000000000000 00000000 01000000"
                         "01 0100000000000000 00000000 00000000") == netio::error::rpc_wire);
}

TEST_CASE("envelope: an error has nothing but its code") {
    CHECK(envelope_error("41525031 81 03 0000 0100000000000000 00000000 01000000 0000"
                         "00000000 00000000") == netio::error::rpc_wire);
    CHECK(envelope_error("41525031 01 03 0000 0100000000000000 00000000 00000000 01000000 00"
                         "00000000") == netio::error::rpc_wire);
    auto described = envelope_hex(envelope_hello);
    described[5] = std::byte{3};
    CHECK(rpc::decode(described).why == netio::error::rpc_wire);
}

TEST_CASE("envelope: a hello has no method") {
    CHECK(envelope_error("41525031 01 04 0000 0000000000000000 01000000 61 00000000 00000000"
                         "00000000") == netio::error::rpc_wire);
}

TEST_CASE("envelope: no count is believed beyond the bytes that are left") {
    // The four counts and every size, at the values where sums and products wrap.
    const std::uint32_t hostile[] = {0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFB, 0xFFFFFFFC,
                                     0xFFFFFFFF, 0x33333334, 0x40000000, 0x03531DED};
    const auto set_at = [](std::string_view golden, std::size_t at, std::uint32_t count) {
        auto input = envelope_hex(golden);
        netio::detail::store_little(input.data() + at, count);
        return rpc::decode(envelope_guarded(input).all()).why;
    };
    for (const std::uint32_t count : hostile) {
        CHECK(set_at(envelope_ping, 16, count) == netio::error::rpc_wire);       // method
        CHECK(set_at(envelope_ping, 24, count) == netio::error::rpc_wire);       // arguments
        CHECK(set_at(envelope_ping, 28, count) == netio::error::rpc_wire);       // payload
        CHECK(set_at(envelope_ping, 32, count) == netio::error::rpc_wire);       // descriptors
        CHECK(set_at(envelope_response, 26, count) == netio::error::rpc_wire);   // text
        CHECK(set_at(envelope_values, 61, count) == netio::error::rpc_wire);     // list
        CHECK(set_at(envelope_values, 77, count) == netio::error::rpc_wire);     // map
        CHECK(set_at(envelope_values, 81, count) == netio::error::rpc_wire);     // key
        CHECK(set_at(envelope_values, 99, count) == netio::error::rpc_wire);     // module
        CHECK(set_at(envelope_hello, 48, count) == netio::error::rpc_wire);      // methods
        CHECK(set_at(envelope_hello, 52, count) == netio::error::rpc_wire);      // method name
        CHECK(set_at(envelope_hello, 125, count) == netio::error::rpc_wire);     // path
    }
}

TEST_CASE("envelope: counts are held against the least their items take") {
    // 12 bytes stand behind an empty argument list's count: the sections that follow it.
    const auto counted = [](std::size_t at, std::uint32_t count) {
        auto input = envelope_hex(envelope_ping);
        netio::detail::store_little(input.data() + at, count);
        return rpc::decode(input).why;
    };
    CHECK(counted(24, 5) == netio::error::rpc_wire);
    CHECK(envelope_value_error("05 09000000") == netio::error::rpc_wire);    // list: 8 left
    CHECK(envelope_value_error("06 02000000") == netio::error::rpc_wire);    // map: 8 left, 5 each
}

TEST_CASE("envelope: an argument may be cut anywhere, also where nothing follows") {
    const std::string head = "41525031 81 01 0000 0100000000000000 00000000 01000000 ";
    for (const std::string_view cut : {"0001", "0002 01", "0003 01020304050607", "0004 0000",
                                       "0004 01000000", "0005 0000", "0006 00000000 0000",
                                       "0008 02000000 ff", "0100", "0200", "0007 00"}) {
        const auto input = envelope_hex(head + std::string(cut));
        CHECK(rpc::decode(envelope_guarded(input).all()).why == netio::error::rpc_wire);
    }
}

TEST_CASE("envelope: booleans are 0 or 1") {
    CHECK(envelope_value_error("0100") == netio::error::none);
    CHECK(envelope_value_error("0101") == netio::error::none);
    CHECK(envelope_value_error("0102") == netio::error::rpc_wire);
    CHECK(envelope_value_error("01ff") == netio::error::rpc_wire);
}

TEST_CASE("envelope: map keys rise strictly by bytes") {
    CHECK(envelope_value_error("06 02000000 01000000 61 00 01000000 62 00") == netio::error::none);
    CHECK(envelope_value_error("06 02000000 00000000 00 01000000 00 00") == netio::error::none);
    CHECK(envelope_value_error("06 02000000 01000000 61 00 02000000 6161 00") ==
          netio::error::none);
    // "z" before U+00E9: bytes compare unsigned.
    CHECK(envelope_value_error("06 02000000 01000000 7a 00 02000000 c3a9 00") ==
          netio::error::none);
    CHECK(envelope_value_error("06 02000000 02000000 c3a9 00 01000000 7a 00") ==
          netio::error::rpc_wire);
    CHECK(envelope_value_error("06 02000000 01000000 62 00 01000000 61 00") ==
          netio::error::rpc_wire);
    CHECK(envelope_value_error("06 02000000 01000000 61 00 01000000 61 00") ==
          netio::error::rpc_wire);
    CHECK(envelope_value_error("06 02000000 02000000 6161 00 01000000 61 00") ==
          netio::error::rpc_wire);
    CHECK(envelope_value_error("06 02000000 00000000 00 00000000 00") == netio::error::rpc_wire);
    // Each map has an order of its own, also after one inside it.
    CHECK(envelope_value_error("06 02000000 01000000 62 06 01000000 01000000 61 00"
                               "01000000 63 00") == netio::error::none);
    CHECK(envelope_value_error("06 02000000 01000000 62 06 01000000 01000000 63 00"
                               "01000000 62 00") == netio::error::rpc_wire);
    CHECK(envelope_value_error("06 01000000 01000000 ff 00") == netio::error::rpc_wire);
}

TEST_CASE("envelope: text is UTF-8 and nothing near it") {
    using namespace std::string_view_literals;
    for (const auto good :
         {""sv, "a"sv, "\0"sv, "\x7F"sv, "\xC2\x80"sv, "\xDF\xBF"sv, "\xE0\xA0\x80"sv,
          "\xED\x9F\xBF"sv, "\xEE\x80\x80"sv, "\xEF\xBF\xBF"sv, "\xF0\x90\x80\x80"sv,
          "\xF4\x8F\xBF\xBF"sv, "seven..\xC3\xA9 and then sixteen more\xE2\x82\xAC"sv}) {
        CHECK(envelope_text_error(good) == netio::error::none);
    }
    for (const auto bad :
         {"\x80"sv, "\xBF"sv, "\xC0\x80"sv, "\xC1\xBF"sv, "\xC2"sv, "\xC2\x41"sv, "\xC2\xC2"sv,
          "\xE0\x80\x80"sv, "\xE0\x9F\xBF"sv, "\xE1\x80"sv, "\xE1\x80\x41"sv, "\xE1\xC0\x80"sv,
          "\xED\xA0\x80"sv, "\xED\xBF\xBF"sv, "\xEE\x80"sv, "\xF0\x80\x80\x80"sv,
          "\xF0\x8F\xBF\xBF"sv, "\xF0\x90\x80"sv, "\xF1\x80\x41\x80"sv, "\xF1\x80\x80\x41"sv,
          "\xF4\x90\x80\x80"sv, "\xF5\x80\x80\x80"sv, "\xFE"sv, "\xFF"sv}) {
        CHECK(envelope_text_error(bad) == netio::error::rpc_wire);
        // The same at every place of a text that the word-wise path takes, before and behind.
        for (std::size_t before = 0; before < 40; ++before) {
            std::string text(before, 'x');
            text += bad;
            CHECK(envelope_text_error(text) == netio::error::rpc_wire);
            text += std::string(20, 'y');
            CHECK(envelope_text_error(text) == netio::error::rpc_wire);
        }
    }
}

TEST_CASE("envelope: one bad byte is seen at every place of a text of every length") {
    std::size_t missed = 0, refused = 0;
    for (std::size_t count = 0; count <= 150; ++count) {
        std::string text(count, 'x');
        refused += rpc::detail::utf8_valid(text) ? 0u : 1u;
        for (std::size_t at = 0; at < count; ++at) {
            text[at] = '\xFF';
            missed += rpc::detail::utf8_valid(text) ? 1u : 0u;
            text[at] = 'x';
        }
    }
    CHECK(missed == 0);
    CHECK(refused == 0);
}

TEST_CASE("envelope: UTF-8 agrees with the table of RFC 3629 for all short sequences") {
    const auto plain = [](unsigned a, unsigned b, unsigned c) {
        const auto tail = [](unsigned octet) { return octet >= 0x80 && octet <= 0xBF; };
        if (a < 0x80) {
            return (b < 0x80 && c < 0x80) || (b >= 0xC2 && b <= 0xDF && tail(c));
        }
        if (a >= 0xC2 && a <= 0xDF) {
            return tail(b) && c < 0x80;
        }
        return tail(b) && tail(c) &&
               ((a == 0xE0 && b >= 0xA0) || (a >= 0xE1 && a <= 0xEC) || (a == 0xED && b <= 0x9F) ||
                a == 0xEE || a == 0xEF);
    };
    std::size_t differ = 0;
    for (unsigned number = 0; number < 1u << 24; number += number % 256 == 0xC0 ? 0x40 : 1) {
        const unsigned a = number >> 16, b = (number >> 8) & 255, c = number & 255;
        const char text[] = {static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        differ += rpc::detail::utf8_valid({text, 3}) != plain(a, b, c) ? 1u : 0u;
    }
    CHECK(differ == 0);
}

TEST_CASE("envelope: a writer whose memory others write to relies on no size that stands there") {
    // Memory that is shared with a stranger, as a ring's record is.
    for (const std::uint32_t planted : {0u, 1u, 0xFFFFFFFFu}) {
        CAPTURE(planted);
        std::vector<std::byte> room(64);
        const std::string longer(256, 'c');
        rpc::writer out(room);
        out.begin_arguments().value_map().key("bb");
        netio::detail::store_little(room.data() + 6, planted);    // the size of "bb"
        out.value_null();
        SUBCASE("keys rise") {
            out.key("ba");
            CHECK(out.why() == netio::error::rpc_wire);
        }
        SUBCASE("one that has no room is only that") {
            out.key(longer);
            CHECK(out.why() == netio::error::full);
        }
        SUBCASE("others go on") {
            out.key("bc").value_null().end();
            CHECK(out.finish_arguments());
        }
    }
}

TEST_CASE("envelope: any UTF-8 passes as method, path and key") {
    std::byte room[128];
    rpc::writer out(room);
    out.begin(rpc::envelope_kind::request, 1, "m\xC3\xA9thode").value_path("..a..");
    out.value_map().key("\xE2\x82\xAC").value_null().end();
    const std::size_t size = out.finish();
    REQUIRE(size != 0);
    const auto got = rpc::decode({room, size});
    CHECK(got.value.method == "m\xC3\xA9thode");
    CHECK(got.value.arguments.front().as_value().as_path() == "..a..");
    auto bad = envelope_hex(envelope_ping);
    bad[20] = std::byte{0xFF};
    CHECK(rpc::decode(bad).why == netio::error::rpc_wire);
}

TEST_CASE("envelope: 64 levels are accepted, 65 are not") {
    const auto fits = envelope_of_value(envelope_nested(64));
    const auto got = rpc::decode(fits);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.arguments.front().as_value().depth() == 64);
    CHECK(envelope_holds(fits));
    CHECK(rpc::decode(envelope_of_value(envelope_nested(65))).why == netio::error::rpc_wire);
    // A scalar counts as a level too.
    auto scalar = envelope_nested(63);
    scalar[scalar.size() - 4] = std::byte{1};
    scalar.push_back(std::byte{0});
    CHECK(rpc::decode(envelope_of_value(scalar)).why == netio::error::none);
    scalar = envelope_nested(64);
    scalar[scalar.size() - 4] = std::byte{1};
    scalar.push_back(std::byte{0});
    CHECK(rpc::decode(envelope_of_value(scalar)).why == netio::error::rpc_wire);
    // Depth is of the nesting, not of what was walked before.
    CHECK(rpc::decode(envelope_of_value(envelope_nested(10'000))).why == netio::error::rpc_wire);
}

TEST_CASE("envelope: depth is that of the deepest item, not of the last") {
    const auto whole = envelope_of_value(
        envelope_hex("05 03000000 05 01000000 05 01000000 00 05 01000000 00 00"));
    const auto got = rpc::decode(whole);
    REQUIRE(got.status == netio::parse_status::complete);
    const rpc::value root = got.value.arguments.front().as_value();
    CHECK(root.depth() == 4);
    CHECK(root.wire().size() == 23);
    std::uint32_t depths[3] = {}, at = 0;
    for (const rpc::value item : root.as_list()) {
        depths[at++] = item.depth();
    }
    CHECK(depths[0] == 3);
    CHECK(depths[1] == 2);
    CHECK(depths[2] == 1);
}

TEST_CASE("envelope: maps count as levels like lists") {
    const auto nested = [](std::size_t depth) {
        envelope_octets content;
        for (std::size_t level = 1; level < depth; ++level) {
            const auto one = envelope_hex("06 01000000 01000000 61");
            content.insert(content.end(), one.begin(), one.end());
        }
        content.push_back(std::byte{0});
        return envelope_of_value(content);
    };
    CHECK(rpc::decode(nested(64)).why == netio::error::none);
    CHECK(envelope_holds(nested(64)));
    CHECK(rpc::decode(nested(65)).why == netio::error::rpc_wire);
}

TEST_CASE("envelope: a broken descriptor is named as one") {
    CHECK(envelope_hello_error(0, 'A') == netio::error::none);
    CHECK(envelope_hello_error(48, 0) == netio::error::rpc_capability_table);      // no method
    CHECK(envelope_hello_error(56, 'z') == netio::error::rpc_capability_table);    // order of names
    CHECK(envelope_hello_error(57, 0xFF) == netio::error::rpc_capability_table);   // name no UTF-8
    CHECK(envelope_hello_error(131, 0xFF) == netio::error::rpc_capability_table);  // path no UTF-8
    CHECK(envelope_hello_error(124, 13) == netio::error::rpc_capability_table);    // unknown flag
    CHECK(envelope_hello_error(124, 3) == netio::error::rpc_wire);                 // path left over
    for (std::size_t field = 0; field < 7; ++field) {
        auto input = envelope_hex(envelope_hello);
        netio::detail::store_little(input.data() + 68 + 8 * field, std::uint64_t{0});
        CHECK(rpc::decode(input).why == netio::error::rpc_capability_table);
    }
    auto twice = envelope_hex(envelope_hello);
    twice[48] = std::byte{1};
    CHECK(rpc::decode(twice).status == netio::parse_status::invalid);
}

TEST_CASE("envelope: the method set of a descriptor is a set") {
    const auto hello = [](std::string_view methods) {
        std::string hex = "41525031 81 04 0000 0000000000000000 00000000 00000000 00000000 01000000"
                          "000102030405060708090a0b0c0d0e0f ";
        hex += methods;
        for (int field = 0; field < 7; ++field) {
            hex += "0100000000000000";
        }
        return envelope_hex(hex + "00");
    };
    const auto fine = hello("02000000 01000000 61 01000000 62");
    CHECK(rpc::decode(fine).why == netio::error::none);
    CHECK(rpc::decode(fine).value.capabilities.front().path().empty());
    CHECK(envelope_holds(fine));
    CHECK(rpc::decode(hello("02000000 01000000 61 01000000 61")).why ==
          netio::error::rpc_capability_table);
    CHECK(rpc::decode(hello("02000000 01000000 62 01000000 61")).why ==
          netio::error::rpc_capability_table);
    CHECK(rpc::decode(hello("02000000 00000000 00000000")).why ==
          netio::error::rpc_capability_table);
}

TEST_CASE("envelope: a second descriptor may be cut anywhere") {
    std::byte room[1024];
    rpc::writer out(room);
    const std::string_view longer[] = {"a method with a name of more than seventy-seven bytes, as "
                                       "long as a whole small descriptor"};
    const std::string_view shorter[] = {"a"};
    out.begin(rpc::envelope_kind::hello, 0);
    out.descriptor({.methods = longer}).descriptor({.methods = shorter, .has_path = true});
    const std::size_t size = out.finish();
    REQUIRE(size == 32 + 2 * 81 + longer[0].size() + 1 + 4);
    CHECK(envelope_holds(netio::bytes(room, size)));
    for (std::size_t count = 32; count < size; ++count) {
        const envelope_guarded cut(netio::bytes(room, count));
        CHECK(rpc::decode(cut.all()).why == netio::error::rpc_wire);
    }
}

TEST_CASE("envelope: limits hold at n and not at n + 1") {
    std::byte room[1024];
    rpc::writer out(room);
    const auto at_limit = [&](rpc::wire_limits limits, auto member, std::uint32_t count) {
        const netio::bytes whole(room, out.finish());
        REQUIRE_FALSE(whole.empty());
        limits.*member = count;
        CHECK(rpc::decode(whole, limits).why == netio::error::none);
        CHECK(envelope_holds(whole, limits));
        limits.*member = count - 1;
        CHECK(rpc::decode(whole, limits).why == netio::error::rpc_limit);
        // The writer keeps to the same bound.
        envelope_octets copy(whole.size());
        CHECK(envelope_copy(rpc::decode(whole).value, copy, limits) == 0);
    };
    using limits = rpc::wire_limits;
    out.begin(rpc::envelope_kind::request, 1, "ping");
    at_limit({}, &limits::bytes_max, 36);
    out.begin(rpc::envelope_kind::request, 1, "ping");
    at_limit({}, &limits::method_max, 4);
    out.begin(rpc::envelope_kind::request, 1).value_null().value_null().promise(1);
    at_limit({}, &limits::arguments_max, 3);
    out.begin(rpc::envelope_kind::request, 1).payload(envelope_hex("0102030405"));
    at_limit({}, &limits::payload_max, 5);
    const std::string_view methods[] = {"a", "b", "c"};
    out.begin(rpc::envelope_kind::hello, 0).descriptor({.methods = methods});
    out.descriptor({.methods = methods});
    at_limit({}, &limits::capabilities_max, 2);
    out.begin(rpc::envelope_kind::hello, 0).descriptor({.methods = methods});
    at_limit({}, &limits::methods_max, 3);
}

TEST_CASE("envelope: a limit of zero is refused, not unlimited") {
    const auto input = envelope_hex(envelope_ping);
    std::byte room[64];
    using limits = rpc::wire_limits;
    for (const auto member : {&limits::bytes_max, &limits::arguments_max, &limits::method_max,
                              &limits::payload_max, &limits::capabilities_max,
                              &limits::methods_max}) {
        limits zero;
        zero.*member = 0;
        CHECK_FALSE(zero.valid());
        CHECK(rpc::decode(input, zero).why == netio::error::limits_invalid);
        CHECK(rpc::decode_frame(input, zero).why == netio::error::limits_invalid);
        rpc::writer out(room, zero);
        CHECK(out.begin(rpc::envelope_kind::request, 1, "ping").finish() == 0);
        CHECK(out.why() == netio::error::limits_invalid);
    }
}

TEST_CASE("envelope: the strict profile is tighter in everything") {
    constexpr auto strict = rpc::wire_limits::strict();
    constexpr rpc::wire_limits open;
    CHECK(strict.valid());
    CHECK(strict.bytes_max == 65'536);
    CHECK(strict.arguments_max == 64);
    CHECK(strict.method_max == 64);
    CHECK(strict.payload_max == 32'768);
    CHECK(strict.capabilities_max == 8);
    CHECK(strict.methods_max == 32);
    CHECK(open.bytes_max == 67'108'864);
    CHECK(open.arguments_max == 4'096);
    CHECK(open.method_max == 256);
    CHECK(open.payload_max == 67'108'864);
    CHECK(open.capabilities_max == 256);
    CHECK(open.methods_max == 256);
}

TEST_CASE("envelope: frames come off a stream one by one") {
    envelope_octets stream(4 + 36 + 4 + 38);
    netio::detail::store_little(stream.data(), std::uint32_t{36});
    netio::detail::store_little(stream.data() + 40, std::uint32_t{38});
    const auto ping = envelope_hex(envelope_ping), put = envelope_hex(envelope_put);
    std::copy(ping.begin(), ping.end(), stream.begin() + 4);
    std::copy(put.begin(), put.end(), stream.begin() + 44);
    for (std::size_t count = 0; count < 40; ++count) {
        const envelope_guarded part(netio::bytes(stream).first(count));
        const auto got = rpc::decode_frame(part.all());
        CHECK(got.status == netio::parse_status::incomplete);
        CHECK(got.why == netio::error::none);
        CHECK(got.missing == (count < 4 ? 4 - count : 40 - count));
        CHECK(got.consumed == 0);
    }
    const auto first = rpc::decode_frame(stream);
    REQUIRE(first.status == netio::parse_status::complete);
    CHECK(first.consumed == 40);
    CHECK(rpc::decode(first.value.envelope).value.method == "ping");
    const auto second = rpc::decode_frame(netio::bytes(stream).subspan(first.consumed));
    REQUIRE(second.status == netio::parse_status::complete);
    CHECK(second.consumed == 42);
    CHECK(rpc::decode(second.value.envelope).value.method == "put");
}

TEST_CASE("envelope: a frame's size is judged from its four bytes alone") {
    const auto sized = [](std::uint32_t count, const rpc::wire_limits& limits = {}) {
        std::byte prefix[4];
        netio::detail::store_little(prefix, count);
        return rpc::decode_frame(envelope_guarded(prefix).all(), limits);
    };
    for (const std::uint32_t small : {0u, 1u, 31u}) {
        CHECK(sized(small).why == netio::error::rpc_wire);
    }
    CHECK(sized(32).missing == 32);
    CHECK(sized(64u << 20).missing == 64u << 20);
    for (const std::uint32_t large : {(64u << 20) + 1, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu}) {
        CHECK(sized(large).status == netio::parse_status::invalid);
        CHECK(sized(large).why == netio::error::rpc_transport);
    }
    CHECK(sized(65'536, rpc::wire_limits::strict()).missing == 65'536);
    CHECK(sized(65'537, rpc::wire_limits::strict()).why == netio::error::rpc_transport);
    rpc::wire_limits huge;
    huge.bytes_max = 0xFFFFFFFF;
    CHECK(sized((64u << 20) + 1, huge).why == netio::error::rpc_transport);
}

TEST_CASE("envelope: the frame prefix is written for sizes a frame may have") {
    std::byte room[4];
    CHECK(rpc::encode_frame_prefix(32, room) == 4);
    CHECK(envelope_same(room, envelope_hex("20000000")));
    CHECK(rpc::encode_frame_prefix(rpc::frame_bytes_max, room) == 4);
    CHECK(envelope_same(room, envelope_hex("00000004")));
    CHECK(rpc::encode_frame_prefix(31, room) == 0);
    CHECK(rpc::encode_frame_prefix(std::size_t{rpc::frame_bytes_max} + 1, room) == 0);
    CHECK(rpc::encode_frame_prefix(32, netio::mutable_bytes(room, 3)) == 0);
}

TEST_CASE("envelope: a span one byte too short gives 0 and nothing past its end") {
    std::vector<std::string_view> names(256);
    for (const std::string_view golden : envelope_goldens) {
        const auto input = envelope_hex(golden);
        const auto decoded = rpc::decode(input);
        const envelope_guarded room(input);
        for (std::size_t count = 0; count < input.size(); ++count) {
            CHECK(envelope_rebuild(decoded.value, room.last(count), names) == 0);
            CHECK(envelope_copy(decoded.value, room.last(count)) == 0);
        }
        CHECK(envelope_rebuild(decoded.value, room.all(), names) == input.size());
    }
    std::byte little[20];
    rpc::writer out(little);
    out.begin(rpc::envelope_kind::request, 1, "ping").value_null();
    CHECK(out.why() == netio::error::full);
}

TEST_CASE("envelope: numbers keep every bit") {
    std::byte room[256];
    rpc::writer out(room);
#if defined(__i386__)
    const std::uint64_t odd_nan = 0x7FFC000000000123;  // x87 registers make a signalling one quiet
#else
    const std::uint64_t odd_nan = 0x7FF4000000000123;
#endif
    out.begin(rpc::envelope_kind::request, ~std::uint64_t{0}, "n");
    out.value_int(std::numeric_limits<std::int64_t>::min());
    out.value_int(std::numeric_limits<std::int64_t>::max());
    out.value_real(std::bit_cast<double>(odd_nan)).value_real(-0.0);
    out.value_real(std::numeric_limits<double>::infinity());
    const std::size_t size = out.finish();
    const auto got = rpc::decode({room, size});
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.request_id == ~std::uint64_t{0});
    auto argument = got.value.arguments.begin();
    CHECK((*argument++).as_value().as_int() == std::numeric_limits<std::int64_t>::min());
    CHECK((*argument++).as_value().as_int() == std::numeric_limits<std::int64_t>::max());
    CHECK(std::bit_cast<std::uint64_t>((*argument++).as_value().as_real()) == odd_nan);
    CHECK(std::signbit((*argument++).as_value().as_real()));
    CHECK(std::isinf((*argument++).as_value().as_real()));
    CHECK(argument == got.value.arguments.end());
}

TEST_CASE("envelope: the writer refuses what the wire does not allow") {
    std::byte room[256];
    rpc::writer out(room);
    const auto request = [&]() -> rpc::writer& {
        return out.begin(rpc::envelope_kind::request, 1, "m");
    };
    const auto refused = [&](netio::error why) {
        return out.finish() == 0 && out.why() == why;
    };
    CHECK(refused(netio::error::rpc_wire));    // before begin
    request().value_text("\xC0\x80");
    CHECK(refused(netio::error::rpc_wire));
    request().value_path("\xFF");
    CHECK(refused(netio::error::rpc_wire));
    out.begin(rpc::envelope_kind::request, 1, "\xFF");
    CHECK(refused(netio::error::rpc_wire));
    out.begin(rpc::envelope_kind::request, 1, "m", 4);
    CHECK(refused(netio::error::rpc_wire));
    out.begin(rpc::envelope_kind::request, 0, "m");
    CHECK(refused(netio::error::rpc_wire));
    out.begin(static_cast<rpc::envelope_kind>(5), 1);
    CHECK(refused(netio::error::rpc_wire));
    request().end();
    CHECK(refused(netio::error::rpc_wire));
    request().value_list();
    CHECK(refused(netio::error::rpc_wire));    // left open
    request().key("k");
    CHECK(refused(netio::error::rpc_wire));
    request().value_list().key("k");
    CHECK(refused(netio::error::rpc_wire));
    request().value_map().value_null();
    CHECK(refused(netio::error::rpc_wire));    // no key
    request().value_map().key("a").key("b");
    CHECK(refused(netio::error::rpc_wire));    // no value
    request().value_map().key("a").end();
    CHECK(refused(netio::error::rpc_wire));
    request().value_map().key("b").value_null().key("a").value_null().end();
    CHECK(refused(netio::error::rpc_wire));
    request().value_map().key("a").value_null().key("a").value_null().end();
    CHECK(refused(netio::error::rpc_wire));
    request().value_map().key("\xFF");
    CHECK(refused(netio::error::rpc_wire));
    request().value_list().promise(1);
    CHECK(refused(netio::error::rpc_wire));
    request().value_list().capability({});
    CHECK(refused(netio::error::rpc_wire));
    request().value_list().payload({});
    CHECK(refused(netio::error::rpc_wire));
    request().payload({}).value_null();
    CHECK(refused(netio::error::rpc_wire));
    request().payload({}).payload({});
    CHECK(refused(netio::error::rpc_wire));
    request().finish();
    CHECK(refused(netio::error::rpc_wire));    // finished already
    CHECK(request().finish() == 33);           // and begin() starts anew
    CHECK(out.why() == netio::error::none);
}

TEST_CASE("envelope: the writer keeps the rules of each kind") {
    std::byte room[256];
    rpc::writer out(room);
    const std::string_view methods[] = {"a"};
    CHECK(out.begin(rpc::envelope_kind::response, 1, "m").value_null().finish() == 0);
    CHECK(out.begin(rpc::envelope_kind::response, 1).finish() == 0);
    CHECK(out.begin(rpc::envelope_kind::response, 1).promise(1).finish() == 0);
    CHECK(out.begin(rpc::envelope_kind::response, 1).value_null().value_null().finish() == 0);
    CHECK(out.begin(rpc::envelope_kind::response, 1).value_null().finish() == 34);
    CHECK(out.begin(rpc::envelope_kind::error, 1, "rpc/wire").value_null().finish() == 0);
    CHECK(out.begin(rpc::envelope_kind::error, 1, "rpc/wire").payload(envelope_hex("00")).finish()
          == 0);
    CHECK(out.begin(rpc::envelope_kind::error, 1, "rpc/wire").descriptor({.methods = methods})
              .finish() == 0);
    CHECK(out.begin(rpc::envelope_kind::error, 1, "rpc/wire").finish() == 40);
    CHECK(out.begin(rpc::envelope_kind::hello, 0, "m").finish() == 0);
    CHECK(out.begin(rpc::envelope_kind::hello, 0).finish() == 32);
}

TEST_CASE("envelope: the writer refuses a broken descriptor") {
    std::byte room[1024];
    rpc::writer out(room);
    const auto refused = [&](const rpc::descriptor_fields& fields) {
        return out.begin(rpc::envelope_kind::hello, 0).descriptor(fields).finish() == 0 &&
               out.why() == netio::error::rpc_capability_table;
    };
    const std::string_view one[] = {"a"}, twice[] = {"a", "a"}, falling[] = {"b", "a"},
                           broken[] = {"\xFF"};
    std::vector<std::string_view> many(257, "a");
    CHECK(out.begin(rpc::envelope_kind::hello, 0).descriptor({.methods = many}).finish() == 0);
    CHECK(out.why() == netio::error::rpc_limit);
    CHECK(refused({}));
    CHECK(refused({.methods = twice}));
    CHECK(refused({.methods = falling}));
    CHECK(refused({.methods = broken}));
    CHECK(refused({.methods = one, .has_path = true, .path = "\xFF"}));
    for (const auto field : {&rpc::budget::calls_max, &rpc::budget::bytes_max,
                             &rpc::budget::wall_ms_max, &rpc::budget::nodes_max,
                             &rpc::budget::depth_max, &rpc::budget::array_max,
                             &rpc::budget::value_bytes_max}) {
        rpc::descriptor_fields fields{.methods = one};
        fields.spend.*field = 0;
        CHECK(refused(fields));
    }
    out.begin(rpc::envelope_kind::hello, 0);
    out.descriptor({.methods = one, .redact = true, .has_path = true});
    const std::size_t size = out.finish();
    REQUIRE(size != 0);
    const auto got = rpc::decode({room, size});
    CHECK(got.value.capabilities.front().redact());
    CHECK_FALSE(got.value.capabilities.front().read_only());
    CHECK(got.value.capabilities.front().has_path());
    CHECK(got.value.capabilities.front().path().empty());
    out.finish();
    out.descriptor({.methods = one});
    CHECK(out.why() == netio::error::rpc_wire);    // nothing begun
}

TEST_CASE("envelope: the writer nests to 64 levels and no further") {
    std::byte room[1024];
    rpc::writer out(room);
    const auto nested = [&](int lists) {
        out.begin(rpc::envelope_kind::request, 1);
        for (int level = 0; level < lists; ++level) {
            out.value_list();
        }
    };
    const auto closed = [&](int lists) {
        for (int level = 0; level < lists; ++level) {
            out.end();
        }
        return out.finish();
    };
    nested(64);
    const std::size_t size = closed(64);
    CHECK(size == 34 + 64 * 5 - 1);
    CHECK(rpc::decode({room, size}).status == netio::parse_status::complete);
    nested(65);
    CHECK(closed(65) == 0);
    nested(64);
    out.value_null();
    CHECK(closed(64) == 0);
    // A copied value brings its own levels along.
    const auto deep = envelope_of_value(envelope_nested(60));
    const auto decoded = rpc::decode(deep);
    nested(4);
    out.copy_value(decoded.value.arguments.front().as_value());
    CHECK(closed(4) == 34 + 64 * 5 - 1);
    nested(5);
    out.copy_value(decoded.value.arguments.front().as_value());
    CHECK(closed(5) == 0);
    CHECK(out.why() == netio::error::rpc_wire);
}

TEST_CASE("envelope: arguments of another envelope pass through unread") {
    const auto input = envelope_hex(envelope_pipelined);
    const auto decoded = rpc::decode(input);
    std::byte room[128];
    rpc::writer out(room);
    out.begin(rpc::envelope_kind::request, 9, "c");
    for (const rpc::argument argument : decoded.value.arguments) {
        out.copy_argument(argument);
    }
    const std::size_t size = out.finish();
    REQUIRE(size == 59);
    CHECK(envelope_same(netio::bytes(room + 21, 38), netio::bytes(input).subspan(21)));
}

TEST_CASE("envelope: codes have one text each and come back from it") {
    for (std::uint8_t at = 1; at < static_cast<std::uint8_t>(rpc::rpc_code::count_); ++at) {
        const auto code = static_cast<rpc::rpc_code>(at);
        CHECK(std::string_view(rpc::code_text(code)).substr(0, 4) == "rpc/");
        CHECK(rpc::code_from(std::string_view(rpc::code_text(code))) == code);
    }
    CHECK(static_cast<int>(rpc::rpc_code::count_) == 25);
    CHECK(rpc::code_text(rpc::rpc_code::capability_table) ==
          std::string_view("rpc/capability-table"));
    CHECK(rpc::code_text(rpc::rpc_code::transport) == std::string_view("rpc/transport"));
    CHECK(rpc::code_text(rpc::rpc_code::invalid_argument) ==
          std::string_view("rpc/invalid-argument"));
    CHECK(rpc::code_text(rpc::rpc_code::other) == std::string_view());
    CHECK(rpc::code_text(static_cast<rpc::rpc_code>(99)) == std::string_view());
    CHECK(rpc::code_from("rpc/budget") == rpc::rpc_code::other);
    CHECK(rpc::code_from("") == rpc::rpc_code::other);
    CHECK(rpc::code_from(netio::error::rpc_wire) == rpc::rpc_code::wire);
    CHECK(rpc::code_from(netio::error::rpc_limit) == rpc::rpc_code::wire);
    CHECK(rpc::code_from(netio::error::rpc_capability_table) == rpc::rpc_code::capability_table);
    CHECK(rpc::code_from(netio::error::rpc_transport) == rpc::rpc_code::transport);
    CHECK(rpc::code_from(netio::error::full) == rpc::rpc_code::other);
}

/// A request with so many map arguments.
envelope_octets envelope_of_maps(int count) {
    envelope_octets room(static_cast<std::size_t>(count) * 64 + 64);
    rpc::writer out(room);
    out.begin(rpc::envelope_kind::request, 1, "many");
    for (int index = 0; index < count; ++index) {
        out.value_map().key("a").value_int(index).key("b").value_text("some text").end();
    }
    room.resize(out.finish());
    return room;
}

TEST_CASE("envelope: 2,000 arguments are as good as a few") {
    const auto many = envelope_of_maps(2'000);
    REQUIRE(many.size() != 0);
    CHECK(rpc::decode(many).value.arguments.size() == 2'000);
    std::int64_t expected = 0;
    for (const rpc::argument argument : rpc::decode(many).value.arguments) {
        CHECK((*argument.as_value().as_map().begin()).held.as_int(-1) == expected++);
    }
    CHECK(expected == 2'000);
}

TEST_CASE("envelope: 4,096 arguments pass and 4,097 do not") {
    envelope_octets room(16'384);
    rpc::writer out(room);
    out.begin(rpc::envelope_kind::request, 1);
    for (int index = 0; index < 4'096; ++index) {
        out.value_null();
    }
    const std::size_t size = out.finish();
    CHECK(size == 32 + 8'192);
    CHECK(rpc::decode({room.data(), size}).value.arguments.size() == 4'096);
    out.begin(rpc::envelope_kind::request, 1);
    for (int index = 0; index < 4'097; ++index) {
        out.value_null();
    }
    CHECK(out.finish() == 0);
    CHECK(out.why() == netio::error::rpc_limit);
}

TEST_CASE("envelope: a byte bomb costs one pass and is nowhere materialised") {
    envelope_octets content = envelope_hex("05 00000000");
    const std::uint32_t items = 200'000;
    netio::detail::store_little(content.data() + 1, items);
    content.resize(5 + items);    // nulls
    const auto whole = envelope_of_value(content);
    const auto got = rpc::decode(whole);
    REQUIRE(got.status == netio::parse_status::complete);
    CHECK(got.value.arguments.front().as_value().as_list().size() == items);
    CHECK(rpc::decode(netio::bytes(whole).first(whole.size() - 1)).why == netio::error::rpc_wire);
}

TEST_CASE("envelope: arguments alone are those of an envelope, without what stands around") {
    std::byte room[256];
    std::byte alone[256];
    rpc::writer whole(room);
    whole.begin(rpc::envelope_kind::request, 1, "m").value_int(7).promise(3);
    whole.value_list().value_text("a").end();
    const auto decoded = rpc::decode({room, whole.finish()});
    REQUIRE(decoded.status == netio::parse_status::complete);
    rpc::writer out(alone);
    out.begin_arguments().value_int(7).promise(3).value_list().value_text("a").end();
    const netio::result<rpc::argument_list> finished = out.finish_arguments();
    REQUIRE(finished);
    const rpc::argument_list made = finished.value;
    REQUIRE(made.size() == 3);
    auto wanted = decoded.value.arguments.begin();
    for (const rpc::argument one : made) {
        const netio::bytes here = one.wire();
        const netio::bytes there = (*wanted++).wire();
        CHECK(std::equal(here.begin(), here.end(), there.begin(), there.end()));
    }
    CHECK(out.begin_arguments().finish_arguments().value.empty());
    CHECK(out.why() == netio::error::none);
}

TEST_CASE("envelope: arguments alone are held to the rules of the wire and to the room") {
    std::byte room[16];
    rpc::writer out(room);
    CHECK_FALSE(out.begin_arguments().value_list().finish_arguments());
    CHECK(out.why() == netio::error::rpc_wire);
    CHECK_FALSE(out.begin_arguments().value_text("fifteen letters").finish_arguments());
    CHECK(out.why() == netio::error::full);
    CHECK_FALSE(out.begin_arguments().value_text("\xff").finish_arguments());
    CHECK(out.why() == netio::error::rpc_wire);
    CHECK(out.begin_arguments().value_int(1).finish_arguments().value.size() == 1);
    CHECK_FALSE(out.value_int(1).finish_arguments());  // not begun again
    CHECK(out.why() == netio::error::rpc_wire);
    rpc::wire_limits none;
    none.arguments_max = 0;
    rpc::writer useless(room, none);
    CHECK_FALSE(useless.begin_arguments().value_int(1).finish_arguments());
    CHECK(useless.why() == netio::error::limits_invalid);
}

TEST_CASE("envelope: a response and an error written at once take their bytes and no fewer") {
    std::byte in[16];
    rpc::writer argument(in);
    REQUIRE(argument.begin_arguments().value_int(7).finish_arguments());
    const netio::bytes seven = netio::bytes(in).first(argument.written());
    for (const bool resolved : {true, false}) {
        const auto encode = [&](netio::mutable_bytes out) {
            return resolved ? rpc::encode_response(9, rpc::flag_redact, seven, out)
                            : rpc::encode_error(9, "rpc/revoked", out);
        };
        const std::size_t wanted =
            rpc::envelope_bytes_min + (resolved ? seven.size() : std::size_t{11});
        envelope_octets room(wanted);  // a block of its own: a byte too many is seen
        for (std::size_t less = 1; less <= wanted; ++less) {
            CHECK(encode(netio::mutable_bytes(room).first(wanted - less)) == 0);
        }
        CHECK(room == envelope_octets(wanted));  // nothing was begun
        REQUIRE(encode(room) == wanted);
        const auto got = rpc::decode(room);
        REQUIRE(got.status == netio::parse_status::complete);
        CHECK(got.value.request_id == 9);
        if (resolved) {
            CHECK(got.value.flags == rpc::flag_redact);
            CHECK(got.value.arguments.front().as_value().as_int() == 7);
        } else {
            CHECK(got.value.method == "rpc/revoked");
        }
    }
}

}  // namespace
