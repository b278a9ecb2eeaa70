// g++ -std=c++20 -O2 -DNDEBUG -I. -Ibuild/bench bench/peers/protobuf_message.cpp build/bench/message.pb.cc -o protobuf_message -lprotobuf -lpthread
//
// The message as protobuf writes and parses it, in the two forms that are said to be its best: one
// object that is used again, and an arena that begins anew in the same block. Generated first:
// protoc --cpp_out=build/bench --proto_path=bench/peers bench/peers/message.proto
#include "bench/peers/message_peer.hpp"
#include "bench/rpc_fixture.hpp"
#include "message.pb.h"
#include "netio.hpp"

#include <google/protobuf/arena.h>

namespace {

using namespace message_peer;
namespace buffers = netio_bench::protobuf;
using google::protobuf::Arena;

char room[4096];
int written = 0;
char block[64 * 1024];

const char zeros[16] = {};

void set_text(std::string* to, std::string_view text) {
    to->assign(text.data(), text.size());
}

void fill_offered(buffers::Capability& out) {
    const rpc::budget& spend = offered_budget;
    out.set_id(zeros, sizeof(zeros));
    for (const std::string_view method : method_names) {
        set_text(out.add_methods(), method);
    }
    out.set_calls_max(spend.calls_max);
    out.set_bytes_max(spend.bytes_max);
    out.set_wall_ms_max(spend.wall_ms_max);
    out.set_nodes_max(spend.nodes_max);
    out.set_depth_max(spend.depth_max);
    out.set_array_max(spend.array_max);
    out.set_value_bytes_max(spend.value_bytes_max);
}

void fill(buffers::Request& out) {
    out.set_request_id(41);
    set_text(out.mutable_method(), "module.compile");
    out.set_number(7);
    out.set_promise(40);
    out.set_target(zeros, sizeof(zeros));
    set_text(out.mutable_path(), "build.release");
    out.add_list()->set_integer(1);
    out.add_list()->set_real(0.5);
    out.add_list()->set_nothing(true);
    buffers::Entry* entry = out.add_map();
    set_text(entry->mutable_key(), "jobs");
    entry->mutable_held()->set_integer(8);
    entry = out.add_map();
    set_text(entry->mutable_key(), "strict");
    entry->mutable_held()->set_truth(true);
    set_text(out.mutable_text(), fitting_text());
    out.set_module_content(module_content, sizeof(module_content));
    fill_offered(*out.add_offered());
}

std::uint64_t sum_of(const buffers::Value& one) {
    switch (one.kind_case()) {
    case buffers::Value::kNothing:
        return one.nothing();
    case buffers::Value::kTruth:
        return one.truth();
    case buffers::Value::kInteger:
        return static_cast<std::uint64_t>(one.integer());
    case buffers::Value::kReal:
        return touched(one.real());
    default:
        return touched(one.text());
    }
}

std::uint64_t sum_of(const buffers::Request& in) {
    std::uint64_t sum = in.request_id() + touched(in.method()) +
                        static_cast<std::uint64_t>(in.number()) + in.promise() +
                        touched(in.target()) + touched(in.path());
    for (const buffers::Value& one : in.list()) {
        sum += sum_of(one);
    }
    for (const buffers::Entry& one : in.map()) {
        sum += touched(one.key()) + sum_of(one.held());
    }
    sum += touched(in.text()) + touched(in.module_content());
    for (const buffers::Capability& one : in.offered()) {
        sum += touched(one.id()) + one.calls_max() + one.bytes_max() + one.wall_ms_max() +
               one.nodes_max() + one.depth_max() + one.array_max() + one.value_bytes_max();
        for (const std::string& method : one.methods()) {
            sum += touched(method);
        }
        sum += static_cast<std::uint64_t>(one.read_only()) + one.redact();
    }
    return sum;
}

std::size_t serialize(const buffers::Request& from) {
    must(from.SerializeToArray(room, sizeof(room)), "protobuf does not serialize");
    written = from.GetCachedSize();
    return static_cast<std::size_t>(written);
}

std::size_t encode_again() {
    static buffers::Request& kept = *new buffers::Request;
    kept.Clear();
    fill(kept);
    return serialize(kept);
}
std::uint64_t decode_again() {
    static buffers::Request& kept = *new buffers::Request;
    must(kept.ParseFromArray(room, written), "protobuf does not parse");
    return sum_of(kept);
}

Arena& arena() {
    static Arena& kept = *new Arena(block, sizeof(block));
    return kept;
}
std::size_t encode_in_arena() {
    auto* const made = Arena::CreateMessage<buffers::Request>(&arena());
    fill(*made);
    const std::size_t size = serialize(*made);
    arena().Reset();
    return size;
}
std::uint64_t decode_in_arena() {
    auto* const made = Arena::CreateMessage<buffers::Request>(&arena());
    must(made->ParseFromArray(room, written), "protobuf does not parse");
    const std::uint64_t sum = sum_of(*made);
    arena().Reset();
    return sum;
}

}  // namespace

int main(int count, char** words) {
    return run(count, words, {{"protobuf, object reused", encode_again, decode_again},
                              {"protobuf, arena reused", encode_in_arena, decode_in_arena}});
}
