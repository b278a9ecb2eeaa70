// g++ -std=c++20 -O2 -DNDEBUG -I. -Ibuild/bench bench/peers/flatbuffers_message.cpp -o flatbuffers_message -lpthread
//
// The message as FlatBuffers builds it, in a builder that is used again, and reads it after its
// verifier. Generated first: flatc --cpp -o build/bench bench/peers/message.fbs
#include "bench/peers/message_peer.hpp"
#include "bench/rpc_fixture.hpp"
#include "message_generated.h"
#include "netio.hpp"

namespace {

using namespace message_peer;
namespace flat = netio_bench::flat;
using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

FlatBufferBuilder& builder() {
    static FlatBufferBuilder kept(4096);
    return kept;
}

Offset<flatbuffers::String> text(FlatBufferBuilder& out, std::string_view from) {
    return out.CreateString(from.data(), from.size());
}

Offset<flat::Capability> build_offered(FlatBufferBuilder& out) {
    const rpc::budget& spend = offered_budget;
    const flat::Id id(0, 0);
    const flat::Budget budget(spend.calls_max, spend.bytes_max, spend.wall_ms_max,
                              spend.nodes_max, spend.depth_max, spend.array_max,
                              spend.value_bytes_max);
    const Offset<flatbuffers::String> methods[] = {text(out, method_names[0]),
                                                   text(out, method_names[1])};
    return flat::CreateCapability(out, &id, out.CreateVector(methods, 2), &budget);
}

std::size_t encode() {
    FlatBufferBuilder& out = builder();
    out.Clear();
    const flat::Id target(0, 0);
    const std::uint8_t kinds[] = {static_cast<std::uint8_t>(flat::Value_Integer),
                                  static_cast<std::uint8_t>(flat::Value_Real),
                                  static_cast<std::uint8_t>(flat::Value_Nothing)};
    const Offset<void> values[] = {out.CreateStruct(flat::Integer(1)).Union(),
                                   out.CreateStruct(flat::Real(0.5)).Union(),
                                   flat::CreateNothing(out).Union()};
    const Offset<flat::Entry> entries[] = {
        flat::CreateEntry(out, text(out, "jobs"), flat::Value_Integer,
                          out.CreateStruct(flat::Integer(8)).Union()),
        flat::CreateEntry(out, text(out, "strict"), flat::Value_Truth,
                          out.CreateStruct(flat::Truth(true)).Union())};
    const Offset<flat::Capability> offered[] = {build_offered(out)};
    const auto content = reinterpret_cast<const std::uint8_t*>(module_content);
    const auto method = text(out, "module.compile");
    const auto path = text(out, "build.release");
    const auto list_type = out.CreateVector(kinds, 3);
    const auto list = out.CreateVector(values, 3);
    const auto map = out.CreateVector(entries, 2);
    const auto long_one = text(out, fitting_text());
    const auto module_bytes = out.CreateVector(content, sizeof(module_content));
    out.Finish(flat::CreateRequest(out, 41, method, 7, 40, &target, path, list_type, list, map,
                                   long_one, module_bytes, out.CreateVector(offered, 1)));
    return out.GetSize();
}

std::uint64_t touched(const flatbuffers::String* from) {
    return message_peer::touched(from->data(), from->size());
}
std::uint64_t touched(const flat::Id* id) {
    return message_peer::touched(reinterpret_cast<const char*>(id), sizeof(*id));
}

std::uint64_t sum_of(std::uint8_t kind, const void* held) {
    switch (kind) {
    case flat::Value_Nothing:
        return 1;
    case flat::Value_Truth:
        return static_cast<const flat::Truth*>(held)->held();
    case flat::Value_Integer:
        return static_cast<std::uint64_t>(static_cast<const flat::Integer*>(held)->held());
    case flat::Value_Real:
        return message_peer::touched(static_cast<const flat::Real*>(held)->held());
    case flat::Value_Text:
        return touched(static_cast<const flat::Text*>(held)->held());
    default:
        return 0;
    }
}

std::uint64_t sum_of(const flat::Capability& one) {
    const flat::Budget& spend = *one.spend();
    std::uint64_t sum = touched(one.id()) + spend.calls_max() + spend.bytes_max() +
                        spend.wall_ms_max() + spend.nodes_max() + spend.depth_max() +
                        spend.array_max() + spend.value_bytes_max();
    for (const flatbuffers::String* method : *one.methods()) {
        sum += touched(method);
    }
    return sum + static_cast<std::uint64_t>(one.read_only()) + one.redact();
}

std::uint64_t decode() {
    flatbuffers::Verifier verifier(builder().GetBufferPointer(), builder().GetSize());
    must(flat::VerifyRequestBuffer(verifier), "FlatBuffers does not verify");
    const flat::Request& in = *flat::GetRequest(builder().GetBufferPointer());
    std::uint64_t sum = in.request_id() + touched(in.method()) +
                        static_cast<std::uint64_t>(in.number()) + in.promise() +
                        touched(in.target()) + touched(in.path());
    for (flatbuffers::uoffset_t at = 0; at < in.list()->size(); ++at) {
        sum += sum_of(in.list_type()->Get(at), in.list()->GetAs<void>(at));
    }
    for (const flat::Entry* one : *in.map()) {
        sum += touched(one->key()) + sum_of(one->held_type(), one->held());
    }
    sum += touched(in.text());
    sum += message_peer::touched(reinterpret_cast<const char*>(in.module_content()->data()),
                                 in.module_content()->size());
    for (const flat::Capability* one : *in.offered()) {
        sum += sum_of(*one);
    }
    return sum;
}

}  // namespace

int main(int count, char** words) {
    return run(count, words, {{"FlatBuffers", encode, decode}});
}
