// g++ -std=c++20 -O2 -DNDEBUG -I. -Ibuild/bench bench/peers/capnp_message.cpp build/bench/message.capnp.c++ -o capnp_message -lcapnp-rpc -lcapnp -lkj-async -lkj -lpthread
//
// The message as Cap'n Proto builds it, in a first segment that is used again and stands where the
// flat array is read, so that nothing is copied; and a call with it through its own RPC, two
// parties in one thread over a pipe in memory, beside a call of netio's through caller, rings,
// callee and kernel. Generated first:
// capnp compile -oc++:build/bench --src-prefix=bench/peers bench/peers/message.capnp
#include "bench/peers/message_peer.hpp"
#include "bench/rpc_fixture.hpp"
#include "message.capnp.h"
#include "netio.hpp"

#include <capnp/message.h>
#include <capnp/rpc-twoparty.h>
#include <capnp/serialize.h>
#include <kj/async-io.h>

#include <optional>

namespace {

using namespace message_peer;
namespace proto = netio_bench::capnproto;

// ---- the message

kj::StringPtr terminated(std::string_view text) {  // all of those here end with a zero
    return kj::StringPtr(text.data(), text.size());
}
const std::string& own_text() {
    static const std::string kept(fitting_text());
    return kept;
}
const kj::byte zeros[16] = {};

void fill_offered(proto::Capability::Builder out) {
    const rpc::budget& spend = offered_budget;
    out.setId(kj::arrayPtr(zeros, sizeof(zeros)));
    auto methods = out.initMethods(2);
    methods.set(0, "get");
    methods.set(1, "stats");
    out.setCallsMax(spend.calls_max);
    out.setBytesMax(spend.bytes_max);
    out.setWallMsMax(spend.wall_ms_max);
    out.setNodesMax(spend.nodes_max);
    out.setDepthMax(spend.depth_max);
    out.setArrayMax(spend.array_max);
    out.setValueBytesMax(spend.value_bytes_max);
}

void fill(proto::Request::Builder out) {
    out.setRequestId(41);
    out.setMethod("module.compile");
    out.setNumber(7);
    out.setPromise(40);
    out.setTarget(kj::arrayPtr(zeros, sizeof(zeros)));
    out.setPath("build.release");
    auto list = out.initList(3);
    list[0].setInteger(1);
    list[1].setReal(0.5);
    list[2].setNothing();
    auto map = out.initMap(2);
    map[0].setKey("jobs");
    map[0].initHeld().setInteger(8);
    map[1].setKey("strict");
    map[1].initHeld().setTruth(true);
    out.setText(terminated(own_text()));
    out.setModuleContent(kj::arrayPtr(reinterpret_cast<const kj::byte*>(module_content),
                                      sizeof(module_content)));
    fill_offered(out.initOffered(1)[0]);
}

std::uint64_t sum_of(capnp::Text::Reader text) { return touched(text.begin(), text.size()); }
std::uint64_t sum_of(capnp::Data::Reader content) {
    return touched(reinterpret_cast<const char*>(content.begin()), content.size());
}
std::uint64_t sum_of(proto::Value::Reader one) {
    switch (one.which()) {
    case proto::Value::NOTHING:
        return 1;
    case proto::Value::TRUTH:
        return one.getTruth();
    case proto::Value::INTEGER:
        return static_cast<std::uint64_t>(one.getInteger());
    case proto::Value::REAL:
        return touched(one.getReal());
    default:
        return sum_of(one.getText());
    }
}
std::uint64_t sum_of(proto::Capability::Reader one) {
    std::uint64_t sum = sum_of(one.getId()) + one.getCallsMax() + one.getBytesMax() +
                        one.getWallMsMax() + one.getNodesMax() + one.getDepthMax() +
                        one.getArrayMax() + one.getValueBytesMax();
    for (const capnp::Text::Reader method : one.getMethods()) {
        sum += sum_of(method);
    }
    return sum + static_cast<std::uint64_t>(one.getReadOnly()) + one.getRedact();
}
std::uint64_t sum_of(proto::Request::Reader in) {
    std::uint64_t sum = in.getRequestId() + sum_of(in.getMethod()) +
                        static_cast<std::uint64_t>(in.getNumber()) + in.getPromise() +
                        sum_of(in.getTarget()) + sum_of(in.getPath());
    for (const proto::Value::Reader one : in.getList()) {
        sum += sum_of(one);
    }
    for (const proto::Entry::Reader one : in.getMap()) {
        sum += sum_of(one.getKey()) + sum_of(one.getHeld());
    }
    sum += sum_of(in.getText()) + sum_of(in.getModuleContent());
    for (const proto::Capability::Reader one : in.getOffered()) {
        sum += sum_of(one);
    }
    return sum;
}

/// One word for the table of segments, then the first segment, which must be zero when it is given
/// to a builder. The builder's own destructor does that for what it used.
alignas(8) capnp::word flat[512];
std::optional<capnp::MallocMessageBuilder> made;

std::size_t encode() {
    made.reset();
    made.emplace(kj::arrayPtr(flat + 1, 511));
    fill(made->initRoot<proto::Request>());
    const auto segments = made->getSegmentsForOutput();
    must(segments.size() == 1 && segments[0].begin() == flat + 1, "more than the first segment");
    const std::uint32_t table[] = {0, static_cast<std::uint32_t>(segments[0].size())};
    std::memcpy(flat, table, sizeof(table));
    return 8 + 8 * segments[0].size();
}
std::uint64_t decode() {
    std::uint32_t table[2];
    std::memcpy(table, flat, sizeof(table));
    capnp::FlatArrayMessageReader in(kj::arrayPtr(flat, 1 + table[1]));
    return sum_of(in.getRoot<proto::Request>());
}

// ---- calls: Cap'n Proto's

class compiler final : public proto::Compiler::Server {
protected:
    kj::Promise<void> compile(CompileContext context) override {
        context.getResults().setSum(sum_of(context.getParams().getRequest()));
        return kj::READY_NOW;
    }
};

struct two_parties {
    kj::EventLoop loop;
    kj::WaitScope scope{loop};
    kj::TwoWayPipe pipe = kj::newTwoWayPipe();
    capnp::TwoPartyClient server{*pipe.ends[1], kj::heap<compiler>(),
                                 capnp::rpc::twoparty::Side::SERVER};
    capnp::TwoPartyClient client{*pipe.ends[0]};
    proto::Compiler::Client target = client.bootstrap().castAs<proto::Compiler>();
};

void call_capnp() {
    static two_parties& parties = *new two_parties;
    static const std::uint64_t expected = expected_sum();
    auto request = parties.target.compileRequest(capnp::MessageSize{128, 0});
    fill(request.initRequest());
    const auto got = request.send().wait(parties.scope);
    must(got.getSum() == expected, "another sum");
}

// ---- calls: netio's

/// Everything but the promise, the capability and what is offered, which are not a call's own
/// arguments: the text is longer by what those take.
struct summing_all {
    static constexpr rpc::method methods[] = {{"compile"}};

    void invoke(rpc::invocation& call) noexcept {
        std::uint64_t sum = static_cast<std::uint64_t>(call.value_at(0).as_int()) +
                            touched(call.value_at(1).as_path());
        for (const rpc::value& one : call.value_at(2).as_list()) {
            sum += own_value(one);
        }
        for (const rpc::map_entry& one : call.value_at(3).as_map()) {
            sum += touched(one.key) + own_value(one.held);
        }
        sum += touched(call.value_at(4).as_text()) + touched(call.value_at(5).as_module());
        call.reply().value_int(static_cast<std::int64_t>(sum));
    }
};

struct both_ends {
    in_rings rings;
    rpc::rpc_limits sizes;
    std::vector<std::byte> memory = std::vector<std::byte>(rpc::bytes_needed(sizes));
    rpc::kernel kernel{memory, sizes, {1, 2}};
    summing_all provider;
    std::vector<std::byte> callee_memory, caller_memory;
    std::optional<rpc::callee> answers;
    std::optional<rpc::caller> session;

    both_ends() : callee_memory(rpc::callee_bytes_needed(64)),
                  caller_memory(rpc::caller_bytes_needed(64)) {
        static constexpr std::string_view names[] = {"compile"};
        rpc::grant what;
        what.methods = names;
        what.spend = rpc::unbounded_budget;
        const auto root = kernel.mint(kernel.add_provider(provider).value, 1, what).value;
        answers.emplace(kernel, callee_memory);
        must(static_cast<bool>(answers->open(root)), "the session does not open");
        session.emplace(caller_memory);
    }
};

void write_arguments(rpc::writer& in, std::string_view text) {
    in.value_int(7).value_path("build.release");
    in.value_list().value_int(1).value_real(0.5).value_null().end();
    in.value_map().key("jobs").value_int(8).key("strict").value_bool(true).end();
    in.value_text(text).value_module(module_content);
}

/// With which the request is as long as the fixture.
std::string_view call_text() {
    static const std::string_view kept = [] {
        std::byte room[2 * fixture_bytes];
        rpc::writer out(room);
        write_arguments(out.begin(rpc::envelope_kind::request, 1, "compile"), {});
        return std::string_view(long_text).substr(0, fixture_bytes - out.finish());
    }();
    return kept;
}

std::int64_t call_sum() {
    return static_cast<std::int64_t>(7 + touched("build.release") + 1 + touched(0.5) + 1 +
                                     touched("jobs") + 8 + touched("strict") + 1 +
                                     touched(call_text()) + sizeof(module_content));
}

void call_netio() {
    static both_ends& ends = *new both_ends;
    static const std::int64_t expected = call_sum();
    const auto asked = ends.session->call(ends.rings.client, "compile", {}, [](rpc::writer& in) {
        write_arguments(in, call_text());
    });
    must(static_cast<bool>(asked), "a call is refused");
    ends.rings.client.flush();
    while (ends.answers->take(ends.rings.server) != 0) {
        ends.kernel.dispatch();
        ends.answers->answer_settled(ends.rings.server);
    }
    ends.rings.server.flush();
    std::int64_t sum = 0;
    ends.session->take(ends.rings.client,
                       [&](const rpc::reply& got) { sum = got.value.as_int(); });
    must(sum == expected, "another sum");
}

}  // namespace

int main(int count, char** words) {
    return run(count, words, {{"Cap'n Proto", encode, decode}},
               {{"netio, call over rings", call_netio},
                {"Cap'n Proto, call over its pipe", call_capnp}});
}
