// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/envelope_fuzz.cpp -o envelope_fuzz
//
// The first byte chooses the limits and what the rest is: an envelope, a stream of frames, or calls
// of the writer. Envelopes are copied flush against the end of an allocation. What decodes must be
// written again, value by value and by copying, with the same bytes; a span one byte shorter must
// be refused; the short ways to a response and to an error must agree with the long one. Whatever
// calls a writer gets, in whatever order: what it finishes must decode, and arguments that it
// finishes alone are those of an envelope.
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

/// One encoding: what can be written without a writer has the bytes that a writer gives it.
void envelope_fuzz_shortcuts(netio::bytes input, const netio::rpc::envelope& value) {
    const std::size_t count = input.size();
    const std::unique_ptr<std::byte[]> memory(new std::byte[count]);
    const netio::mutable_bytes room(memory.get(), count);
    std::size_t size = count;
    std::size_t cut = 0;
    std::memset(memory.get(), 0xEE, count);
    if (value.kind == netio::rpc::envelope_kind::response && value.payload.empty() &&
        value.capabilities.empty()) {
        const netio::bytes whole = value.arguments.front().wire();
        envelope_fuzz_check(netio::rpc::response_bytes(whole.size()) == count);
        cut = netio::rpc::encode_response(value.request_id, value.flags, whole,
                                          room.first(count - 1));
        size = netio::rpc::encode_response(value.request_id, value.flags, whole, room);
    } else if (value.kind == netio::rpc::envelope_kind::error && value.flags == 0) {
        cut = netio::rpc::encode_error(value.request_id, value.method, room.first(count - 1));
        size = netio::rpc::encode_error(value.request_id, value.method, room);
    } else {
        return;
    }
    envelope_fuzz_check(cut == 0 && size == count && envelope_fuzz_same(memory.get(), input));
}

/// Arguments are the same bytes with an envelope around them and without.
void envelope_fuzz_alone(const netio::rpc::argument_list& from,
                         const netio::rpc::wire_limits& limits) {
    std::size_t count = 0;
    const std::byte* at = from.data();
    for (const netio::rpc::argument argument : from) {
        envelope_fuzz_check(argument.wire().data() == at + count);
        count += argument.wire().size();
    }
    const std::unique_ptr<std::byte[]> room(new std::byte[count]);
    netio::rpc::writer out({room.get(), count}, limits);
    envelope_rebuild_arguments(out.begin_arguments(), from);
    envelope_fuzz_check(out.written() == count);
    const auto made = out.finish_arguments();
    envelope_fuzz_check(made && made.value.size() == from.size());
    envelope_fuzz_check(made.value.data() == room.get());
    envelope_fuzz_check(count == 0 || envelope_fuzz_same(room.get(), {at, count}));
    envelope_fuzz_check(!out.finish_arguments() && out.finish() == 0);
    if (count != 0) {
        netio::rpc::writer less({room.get(), count - 1}, limits);
        envelope_rebuild_arguments(less.begin_arguments(), from);
        envelope_fuzz_check(!less.finish_arguments() && less.written() < count);
    }
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
    envelope_fuzz_shortcuts(input, value);
    envelope_fuzz_alone(value.arguments, limits);
    envelope_fuzz_check(value.redact() == ((value.flags & netio::rpc::flag_redact) != 0));
    envelope_fuzz_check(value.read_only() == ((value.flags & netio::rpc::flag_read_only) != 0));
    for (const netio::rpc::argument argument : value.arguments) {
        const netio::rpc::value held = argument.as_value();
        envelope_fuzz_check(held.depth() <= netio::rpc::value_depth_max);
        envelope_fuzz_check(held.wire().data() == held.wire_begin());
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
            envelope_fuzz_check(got.status == netio::parse_status::incomplete ||
                                netio::rpc::code_from(got.why) != netio::rpc::rpc_code::other ||
                                !limits.valid());
            return;
        }
        const netio::bytes whole = got.value.envelope;
        std::byte prefix[netio::rpc::frame_prefix_bytes];
        envelope_fuzz_check(netio::rpc::encode_frame_prefix(whole.size(), prefix) == 4);
        envelope_fuzz_check(envelope_fuzz_same(prefix, input.first(4)));
        const netio::mutable_bytes less(prefix, 3);
        envelope_fuzz_check(netio::rpc::encode_frame_prefix(whole.size(), less) == 0);
        envelope_fuzz_check(got.consumed == whole.size() + 4);
        envelope_fuzz_one(whole, limits);
        input = input.subspan(got.consumed);
    }
}

/// Takes small numbers and pieces off the front of the fuzzer's bytes.
struct envelope_fuzz_source {
    netio::bytes left;

    unsigned octet() {
        if (left.empty()) {
            return 0;
        }
        const auto first = std::to_integer<unsigned>(left[0]);
        left = left.subspan(1);
        return first;
    }
    netio::bytes piece() {
        const std::size_t wanted = octet();
        const netio::bytes out = left.first(wanted < left.size() ? wanted : left.size());
        left = left.subspan(out.size());
        return out;
    }
    std::string_view text() { return netio::as_text(piece()); }
};

void envelope_fuzz_describe(netio::rpc::writer& out, envelope_fuzz_source& source) {
    std::string_view names[3];
    const unsigned facts = source.octet();
    for (std::string_view& method : names) {
        method = source.text();
    }
    for (const std::string_view left : names) {
        for (const std::string_view right : names) {
            const bool same = netio::rpc::detail::same_text(left, right);
            envelope_fuzz_check(same == (left == right));
        }
    }
    netio::rpc::descriptor_fields fields;
    fields.methods = std::span<const std::string_view>(names).first(facts % 4);
    fields.read_only = (facts & 4) != 0;
    fields.redact = (facts & 8) != 0;
    fields.has_path = (facts & 16) != 0;
    fields.path = source.text();
    fields.spend.nodes_max = source.octet();
    out.descriptor(fields);
}

void envelope_fuzz_call(netio::rpc::writer& out, envelope_fuzz_source& source) {
    const unsigned call = source.octet() % 20;
    switch (call) {
    case 0: out.value_null(); break;
    case 1: out.value_secret(); break;
    case 2: out.value_bool(source.octet() != 0); break;
    case 3: out.value_int(source.octet()); break;
    case 4: out.value_real(source.octet()); break;
    case 5: out.value_text(source.text()); break;
    case 6: out.value_path(source.text()); break;
    case 7: out.value_module(source.piece()); break;
    case 8: case 9: out.value_list(); break;
    case 10: case 11: out.value_map(); break;
    case 12: case 13: out.key(source.text()); break;
    case 14: case 15: out.end(); break;
    case 16: out.promise(source.octet()); break;
    case 17: out.capability({}); break;
    case 18: out.payload(source.piece()); break;
    default: envelope_fuzz_describe(out, source); break;
    }
}

/// Calls of any kind, some of which copy from an envelope that was decoded.
void envelope_fuzz_calls(netio::rpc::writer& out, envelope_fuzz_source& source,
                         const netio::rpc::envelope& copied) {
    for (unsigned count = source.octet() % 128; count != 0; --count) {
        const unsigned copy = source.octet();
        if (copy == 0 && !copied.arguments.empty()) {
            out.copy_argument(copied.arguments.front());
        } else if (copy == 1 && !copied.arguments.empty()) {
            out.copy_value(copied.arguments.front().as_value());
        } else if (copy == 2 && !copied.capabilities.empty()) {
            out.copy_descriptor(copied.capabilities.front());
        } else {
            envelope_fuzz_call(out, source);
        }
    }
}

/// Arguments that a writer finished without an envelope, within whatever limits.
void envelope_fuzz_finish_alone(netio::rpc::writer& out) {
    const std::size_t count = out.written();
    const auto made = out.finish_arguments();
    envelope_fuzz_check(made.why == out.why());
    if (!made) {
        return;
    }
    const std::unique_ptr<std::byte[]> room(new std::byte[count + 32]);
    netio::rpc::writer whole({room.get(), count + 32});
    whole.begin(netio::rpc::envelope_kind::request, 1);
    for (const netio::rpc::argument argument : made.value) {
        whole.copy_argument(argument);
    }
    envelope_fuzz_check(whole.finish() == count + 32 && whole.written() == count + 32);
    const auto got = netio::rpc::decode({room.get(), count + 32});
    envelope_fuzz_check(got.status == netio::parse_status::complete);
    envelope_fuzz_rewrite({room.get(), count + 32}, got.value, {});
}

/// The calls may also copy from an envelope in between: the one finished before.
void envelope_fuzz_write(netio::bytes calls, const netio::rpc::wire_limits& limits) {
    envelope_fuzz_source source{calls};
    const std::size_t room_bytes = 2 * source.octet();
    std::unique_ptr<std::byte[]> before(new std::byte[room_bytes]);
    std::unique_ptr<std::byte[]> room(new std::byte[room_bytes]);
    netio::rpc::envelope copied;
    while (!source.left.empty()) {
        netio::rpc::writer out({room.get(), room_bytes}, limits);
        const unsigned head = source.octet();
        const bool is_alone = head % 8 == 6;
        if (is_alone) {
            out.begin_arguments();
        } else if (head != 0) {
            out.begin(static_cast<netio::rpc::envelope_kind>(head % 8), head >> 5, source.text(),
                      static_cast<std::uint16_t>(head >> 4 & 7));
        }
        envelope_fuzz_calls(out, source, copied);
        if (is_alone) {
            envelope_fuzz_finish_alone(out);
            continue;
        }
        const std::size_t count = out.finish();
        envelope_fuzz_check((count == 0) == (out.why() != netio::error::none));
        envelope_fuzz_check(out.written() <= room_bytes);
        if (count != 0) {
            envelope_fuzz_check(out.written() == count);
            const auto got = netio::rpc::decode({room.get(), count}, limits);
            envelope_fuzz_check(got.status == netio::parse_status::complete);
            envelope_fuzz_rewrite({room.get(), count}, got.value, limits);
            copied = got.value;
            room.swap(before);
        }
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
    if ((data[0] & 8) != 0) {
        envelope_fuzz_write(input, limits);
    } else if ((data[0] & 1) != 0) {
        envelope_fuzz_frames(input, limits);
    } else {
        envelope_fuzz_one(input, limits);
    }
    return 0;
}
