// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/envelope_fuzz.cpp -o envelope_fuzz
//
// The first byte chooses the limits and whether a frame prefix comes first; the rest is the input,
// copied flush against the end of an allocation. What decodes must be written again, value by value
// and by copying, with the same bytes; a span one byte shorter must be refused.
#include "netio.hpp"

#include "tests/envelope_rebuild.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>

namespace {

void envelope_fuzz_check(bool holds) {
    if (!holds) {
        std::abort();
    }
}

bool envelope_fuzz_same(const std::byte* left, netio::bytes right) {
    return std::memcmp(left, right.data(), right.size()) == 0;
}

void envelope_fuzz_rewrite(netio::bytes input, const netio::rpc::envelope& value,
                           const netio::rpc::wire_limits& limits) {
    static std::string_view names[256];
    const std::size_t count = input.size();
    const std::unique_ptr<std::byte[]> room(new std::byte[count]);
    envelope_fuzz_check(envelope_rebuild(value, {room.get(), count}, names, limits) == count);
    envelope_fuzz_check(envelope_fuzz_same(room.get(), input));
    std::memset(room.get(), 0xEE, count);
    envelope_fuzz_check(envelope_copy(value, {room.get(), count}, limits) == count);
    envelope_fuzz_check(envelope_fuzz_same(room.get(), input));
    envelope_fuzz_check(envelope_copy(value, {room.get(), count - 1}, limits) == 0);
    for (const netio::rpc::argument argument : value.arguments) {
        envelope_fuzz_check(argument.as_value().depth() <= netio::rpc::value_depth_max);
    }
}

void envelope_fuzz_one(netio::bytes input, const netio::rpc::wire_limits& limits) {
    const auto got = netio::rpc::decode(input, limits);
    envelope_fuzz_check(got.status != netio::parse_status::incomplete);
    if (got.status == netio::parse_status::invalid) {
        envelope_fuzz_check(got.consumed == 0);
        envelope_fuzz_check(netio::rpc::code_from(got.why) != netio::rpc::rpc_code::other ||
                            !limits.valid());
        return;
    }
    envelope_fuzz_check(got.consumed == input.size() && got.why == netio::error::none);
    const auto code = netio::rpc::code_from(got.value.method);
    envelope_fuzz_check(code == netio::rpc::rpc_code::other ||
                        got.value.method == netio::rpc::code_text(code));
    envelope_fuzz_rewrite(input, got.value, limits);
}

void envelope_fuzz_frames(netio::bytes input, const netio::rpc::wire_limits& limits) {
    for (;;) {
        const auto got = netio::rpc::decode_frame(input, limits);
        if (got.status != netio::parse_status::complete) {
            envelope_fuzz_check((got.status == netio::parse_status::incomplete) ==
                                (got.missing != 0));
            return;
        }
        const netio::bytes whole = got.value.envelope;
        std::byte prefix[netio::rpc::frame_prefix_bytes];
        envelope_fuzz_check(netio::rpc::encode_frame_prefix(whole.size(), prefix) == 4);
        envelope_fuzz_check(envelope_fuzz_same(prefix, input.first(4)));
        envelope_fuzz_check(got.consumed == whole.size() + 4);
        envelope_fuzz_one(whole, limits);
        input = input.subspan(got.consumed);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t count) {
    if (count == 0) {
        return 0;
    }
    const std::unique_ptr<std::byte[]> copy(new std::byte[count - 1]);
    if (count != 1) {
        std::memcpy(copy.get(), data + 1, count - 1);
    }
    const netio::bytes input(copy.get(), count - 1);
    netio::rpc::wire_limits limits;
    switch (data[0] >> 1 & 3) {
    case 1: limits = netio::rpc::wire_limits::strict(); break;
    case 2: limits = {100, 2, 4, 8, 1, 1}; break;
    case 3: limits.methods_max = 0; break;
    default: break;
    }
    if ((data[0] & 1) != 0) {
        envelope_fuzz_frames(input, limits);
    } else {
        envelope_fuzz_one(input, limits);
    }
    return 0;
}
