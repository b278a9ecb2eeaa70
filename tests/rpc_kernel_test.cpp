// The capability kernel: what each refusal is called and that it changes nothing, budgets to the
// unit, revocation, promises, batches, channels, and every table full and empty again.
#include "tests/rpc_world.hpp"

#include <algorithm>
#include <chrono>

namespace {

using rpc_arguments = rpc_world::arguments;
using rpc_fixture = rpc_world::fixture;
namespace rpc = netio::rpc;
using rpc_event = rpc::event_kind;
using rpc::promise_state;
using rpc::rpc_code;

constexpr std::string_view rpc_kernel_add[] = {"add"};
constexpr std::string_view rpc_kernel_add_put[] = {"add", "put"};

/// The code, and that no table is other than before.
template <class Act>
rpc_code rpc_refusal(rpc_fixture& world, Act&& act) {
    const auto before = world.tables();
    const auto got = act();
    CHECK_FALSE(static_cast<bool>(got));
    CHECK(world.tables() == before);
    return got.why;
}

rpc::budget rpc_calls_of(std::uint64_t most) {
    rpc::budget spend;
    spend.calls_max = most;
    return spend;
}

TEST_CASE("rpc kernel: memory too small and sizes out of range say so, and every table is empty") {
    rpc_fixture world;
    std::vector<std::byte> memory(rpc::bytes_needed(world.sizes) - 1);
    rpc::kernel small(memory, world.sizes, rpc_world::secret);
    CHECK(small.why() == netio::error::memory_too_small);
    CHECK(small.add_provider(world.handler).why == rpc_code::budget_exceeded);
    CHECK(small.open_lane().why == rpc_code::budget_exceeded);
    CHECK(small.dispatch() == 0);
    rpc::rpc_limits wrong = world.sizes;
    wrong.events_max = 3;
    CHECK(rpc::wrong_field(wrong) == std::string_view("events_max"));
    CHECK(rpc::bytes_needed(wrong) == 0);
    CHECK(rpc::kernel(memory, wrong, rpc_world::secret).why() == netio::error::limits_invalid);
}

TEST_CASE("rpc kernel: the first size that is out of range is named") {
    const auto named = [](auto&& change) {
        rpc::rpc_limits sizes = rpc_world::small_sizes();
        change(sizes);
        const char* const field = rpc::wrong_field(sizes);
        CHECK((rpc::bytes_needed(sizes) == 0) == (field != nullptr));
        return std::string(field != nullptr ? field : "");
    };
    CHECK(named([](auto&) {}).empty());
    CHECK(named([](auto& of) { of.providers_max = 0; }) == "providers_max");
    CHECK(named([](auto& of) { of.lanes_max = 4097; }) == "lanes_max");
    CHECK(named([](auto& of) { of.channels_max = 4097; }) == "channels_max");
    CHECK(named([](auto& of) { of.promises_max = 100'001; }) == "promises_max");
    CHECK(named([](auto& of) { of.settled_max = of.promises_max + 1; }) == "settled_max");
    CHECK(named([](auto& of) { of.settled_bytes_max = 0; }) == "settled_bytes_max");
    CHECK(named([](auto& of) { of.pieces[0].piece_bytes = 65; }) == "pieces");
    CHECK(named([](auto& of) { of.pieces[0].piece_bytes = 0; }) == "pieces");
    CHECK(named([](auto& of) { of.pieces[1].piece_bytes = 64; }) == "pieces");
    CHECK(named([](auto& of) { of.pieces[2].count = 0; }) == "pieces");
    CHECK(named([](auto& of) { of.channels_max = of.messages_max = of.edges_max = 0; }).empty());
}

TEST_CASE("rpc kernel: a call is made when it is dispatched, once, and its result is kept") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto promise = world.add(target, {1, 2, 39});
    REQUIRE(promise);
    CHECK(world.handler.answered == 0);
    CHECK(world.of.look(promise.value).value.state == promise_state::pending);
    CHECK(world.of.dispatch() == 1);
    CHECK(world.of.dispatch() == 0);
    CHECK(world.handler.answered == 1);
    CHECK(world.number_of(promise.value) == 42);
    CHECK(world.of.forget(promise.value));
    CHECK(world.of.look(promise.value).why == rpc_code::unknown_promise);
    CHECK(world.of.forget(promise.value).why == rpc_code::unknown_promise);
    CHECK(world.of.promises().in_use == 0);
    CHECK(world.of.pieces(0).in_use == 0);
}

TEST_CASE("rpc kernel: a result is one value; none is null, two are the provider's mistake") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto nothing = world.call(target, "echo");
    const auto two = world.call(target, "two");
    const auto fails = world.call(target, "fail");
    CHECK(world.of.await(nothing.value).value.value.is(rpc::value_tag::null_value));
    CHECK(world.code_of(two.value) == rpc_code::provider);
    CHECK(world.code_of(fails.value) == rpc_code::provider);
    CHECK(world.of.look(fails.value).value.text == "out-of-paper");
}

TEST_CASE("rpc kernel: every refusal has its code and leaves every table as it was") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto gone = world.mint();
    REQUIRE(world.of.release(gone));
    const auto open = world.of.open_promise(world.lane).value;
    REQUIRE(world.of.cancel(open));
    const std::uint64_t events = world.count(rpc_event::call_refused);
    CHECK(rpc_refusal(world, [&] { return world.of.call({}, target, "add"); }) ==
          rpc_code::unknown_lane);
    CHECK(rpc_refusal(world, [&] { return world.call({}, "add"); }) ==
          rpc_code::unknown_capability);
    CHECK(rpc_refusal(world, [&] { return world.call(gone, "add"); }) ==
          rpc_code::unknown_capability);
    CHECK(rpc_refusal(world, [&] { return world.call(target, "none"); }) ==
          rpc_code::method_not_granted);
    CHECK(rpc_refusal(world, [&] { return world.add(target, {}, {rpc::promise_id{77}}); }) ==
          rpc_code::unknown_promise);
    CHECK(rpc_refusal(world, [&] { return world.add(target, {}, {open}); }) ==
          rpc_code::promise_cancelled);
    CHECK(world.count(rpc_event::call_refused) == events + 6);
    CHECK(world.handler.answered == 0);
}

TEST_CASE("rpc kernel: the first check that fails is the code, in the published order") {
    rpc_fixture world;
    rpc::grant narrow = world.everything();
    narrow.methods = rpc_kernel_add_put;
    narrow.read_only = true;
    narrow.has_path = true;
    narrow.path = "a.b";
    rpc::tool_policy none;
    narrow.tools = &none;
    narrow.spend = rpc_calls_of(1);
    const auto target = world.mint(narrow);
    const auto closed = world.of.open_lane().value;
    REQUIRE(world.of.close_lane(closed));
    const auto with = [&](rpc::lane_id lane, rpc::capability of, std::string_view method,
                          std::string_view path, std::uint64_t promise) {
        rpc_arguments made;
        made.in.value_text("tool").value_path(path);
        if (promise != 0) {
            made.in.promise(promise);
        }
        return world.of.call(lane, of, method, made.with()).why;
    };
    CHECK(with(closed, {}, "none", "c", 9) == rpc_code::unknown_lane);
    CHECK(with(world.lane, {}, "none", "c", 9) == rpc_code::unknown_capability);
    CHECK(with(world.lane, target, "none", "c", 9) == rpc_code::unknown_promise);
    CHECK(with(world.lane, target, "none", "c", 0) == rpc_code::method_not_granted);
    CHECK(with(world.lane, target, "put", "c", 0) == rpc_code::read_only);
    CHECK(with(world.lane, target, "add", "c", 0) == rpc_code::path_not_granted);
    CHECK(with(world.lane, target, "add", "a.b", 0) == rpc_code::tool_policy);
    REQUIRE(world.of.revoke(target));
    CHECK(with(world.lane, target, "none", "c", 9) == rpc_code::unknown_promise);
    CHECK(with(world.lane, target, "none", "c", 0) == rpc_code::revoked);
}

TEST_CASE("rpc kernel: ids that are forged, of another kernel or gone name nothing") {
    rpc_fixture world;
    const std::uint64_t other_secret[2] = {1, 2};
    std::vector<std::byte> memory(rpc::bytes_needed(world.sizes));
    rpc::kernel other(memory, world.sizes, other_secret);
    rpc_world::provider handler;
    const auto provides = other.add_provider(handler).value;
    const auto theirs = other.mint(provides, 1, world.everything()).value;
    const auto mine = world.mint();
    CHECK(mine == theirs);  // the handles are small numbers, the ids are not
    const rpc::capability_id id = world.of.id_of(mine);
    CHECK(world.of.import(id).value == mine);
    CHECK(world.of.import(other.id_of(theirs)).why == rpc_code::unknown_capability);
    for (std::uint32_t bit = 0; bit < 128; ++bit) {
        rpc::capability_id forged = id;
        forged.octets[bit / 8] ^= std::byte{1} << bit % 8;
        CHECK(world.of.import(forged).why == rpc_code::unknown_capability);
    }
    REQUIRE(world.of.release(mine));
    CHECK(world.of.import(id).why == rpc_code::unknown_capability);
    CHECK(world.of.id_of(mine) == rpc::capability_id{});
}

TEST_CASE("rpc kernel: attenuation narrows, anything wider is an escalation") {
    rpc_fixture world;
    static constexpr std::string_view tools[] = {"cut", "fold"};
    static constexpr std::string_view more_tools[] = {"cut", "glue"};
    rpc::tool_policy policy{tools, 100, false};
    rpc::grant wide = world.everything();
    wide.methods = rpc_kernel_add_put;
    wide.read_only = true;
    wide.redact = true;
    wide.has_path = true;
    wide.path = "a.b";
    wide.tools = &policy;
    const auto parent = world.mint(wide);
    const auto wider = [&](auto&& change) {
        rpc::grant what = wide;
        rpc::tool_policy its = policy;
        what.tools = &its;
        change(what, its);
        return rpc_refusal(world, [&] { return world.of.attenuate(parent, what); });
    };
    static constexpr std::string_view echo[] = {"echo"};
    static constexpr std::string_view unknown[] = {"nothing"};
    CHECK(wider([](auto& what, auto&) { what.methods = echo; }) == rpc_code::escalation);
    CHECK(wider([](auto& what, auto&) { what.methods = unknown; }) == rpc_code::escalation);
    CHECK(wider([](auto& what, auto&) { what.methods = {}; }) == rpc_code::invalid_argument);
    CHECK(wider([](auto& what, auto&) { what.read_only = false; }) == rpc_code::escalation);
    CHECK(wider([](auto& what, auto&) { what.redact = false; }) == rpc_code::escalation);
    CHECK(wider([](auto& what, auto&) { what.has_path = false; }) == rpc_code::escalation);
    CHECK(wider([](auto& what, auto&) { what.path = "a.bc"; }) == rpc_code::escalation);
    CHECK(wider([](auto& what, auto&) { what.path = "a"; }) == rpc_code::escalation);
    CHECK(wider([](auto& what, auto&) { what.tools = nullptr; }) == rpc_code::escalation);
    CHECK(wider([](auto&, auto& its) { its.names = more_tools; }) == rpc_code::escalation);
    CHECK(wider([](auto&, auto& its) { its.argument_bytes_max = 101; }) == rpc_code::escalation);
    CHECK(wider([](auto&, auto& its) { its.allow_process = true; }) == rpc_code::escalation);
    for (std::uint64_t rpc::budget::*field :
         {&rpc::budget::calls_max, &rpc::budget::bytes_max, &rpc::budget::wall_ms_max,
          &rpc::budget::nodes_max, &rpc::budget::depth_max, &rpc::budget::array_max,
          &rpc::budget::value_bytes_max}) {
        CHECK(wider([&](auto& what, auto&) { what.spend.*field += 1; }) == rpc_code::escalation);
        CHECK(wider([&](auto& what, auto&) { what.spend.*field = 0; }) ==
              rpc_code::budget_exceeded);
    }
    CHECK(world.of.attenuate(parent, wide));
    rpc::grant narrow = wide;
    narrow.path = "a.b.c";
    narrow.methods = rpc_kernel_add;
    CHECK(world.of.attenuate(parent, narrow));
}

TEST_CASE("rpc kernel: a zero in a budget is refused, not taken for unlimited") {
    rpc_fixture world;
    for (std::uint64_t rpc::budget::*field :
         {&rpc::budget::calls_max, &rpc::budget::bytes_max, &rpc::budget::wall_ms_max,
          &rpc::budget::nodes_max, &rpc::budget::depth_max, &rpc::budget::array_max,
          &rpc::budget::value_bytes_max}) {
        rpc::grant what = world.everything();
        what.spend.*field = 0;
        CHECK(rpc_refusal(world, [&] { return world.of.mint(world.provides, 1, what); }) ==
              rpc_code::budget_exceeded);
        CHECK(rpc_refusal(world, [&] { return world.of.open_lane(what.spend); }) ==
              rpc_code::budget_exceeded);
        CHECK(rpc_refusal(world, [&] { return world.of.narrow_lane(world.lane, what.spend); }) ==
              rpc_code::budget_exceeded);
    }
    CHECK(rpc_refusal(world, [&] { return world.of.open_lane({}, 0); }) ==
          rpc_code::budget_exceeded);
    CHECK(rpc_refusal(world, [&] {
              return world.of.open_channel(rpc::channel_direction::both, 0);
          }) == rpc_code::invalid_argument);
}

TEST_CASE("rpc kernel: a call budget is exact, and what was queued within it settles") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.spend = rpc_calls_of(5);
    const auto target = world.mint(what);
    std::vector<rpc::promise_id> made;
    for (int at = 0; at < 5; ++at) {
        made.push_back(world.add(target, {at}).value);
    }
    CHECK(rpc_refusal(world, [&] { return world.add(target, {5}); }) == rpc_code::budget_exceeded);
    for (int at = 0; at < 5; ++at) {
        CHECK(world.number_of(made[static_cast<std::size_t>(at)]) == at);
    }
    CHECK(rpc_refusal(world, [&] { return world.add(target, {5}); }) == rpc_code::budget_exceeded);
}

TEST_CASE("rpc kernel: a child's calls and its sibling's are charged to the parent") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.spend = rpc_calls_of(4);
    const auto parent = world.mint(what);
    const auto one = world.of.attenuate(parent, what).value;
    const auto other = world.of.attenuate(parent, what).value;
    const auto below = world.of.attenuate(other, what).value;
    CHECK(world.add(one, {1}));
    CHECK(world.add(other, {1}));
    CHECK(world.add(below, {1}));
    CHECK(world.add(parent, {1}));
    for (const auto each : {one, other, below, parent}) {
        CHECK(rpc_refusal(world, [&] { return world.add(each, {1}); }) ==
              rpc_code::budget_exceeded);
    }
}

TEST_CASE("rpc kernel: bytes of arguments, payload and result are charged to the byte") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    // A call of add: two bytes of kind and tag, eight of the number; the result is as large.
    what.spend.bytes_max = 10 + 3 + 10;
    const auto target = world.mint(what);
    std::byte payload[3] = {};
    rpc_arguments made;
    made.in.value_int(7);
    const auto first = world.of.call(world.lane, target, "add", made.with(payload));
    CHECK(world.number_of(first.value) == 7);
    CHECK(rpc_refusal(world, [&] { return world.add(target, {1}); }) == rpc_code::budget_exceeded);
    what.spend.bytes_max = 10 + 3 + 9;
    const auto less = world.mint(what);
    const auto second = world.of.call(world.lane, less, "add", made.with(payload));
    CHECK(world.code_of(second.value) == rpc_code::budget_exceeded);
    what.spend.bytes_max = 12;
    const auto least = world.mint(what);
    CHECK(rpc_refusal(world, [&] {
              return world.of.call(world.lane, least, "add", made.with(payload));
          }) == rpc_code::budget_exceeded);
}

TEST_CASE("rpc kernel: nodes, depth, items and bytes of a value are bounded at n and n + 1") {
    rpc_fixture world;
    const auto with = [&](std::uint64_t rpc::budget::*field, std::uint64_t most) {
        rpc::grant what = world.everything();
        what.spend.*field = most;
        const auto target = world.mint(what);
        rpc_arguments made;
        made.in.value_list().value_int(1).value_list().value_int(2).end().value_null().end();
        const auto got = world.of.call(world.lane, target, "echo", made.with());
        const bool may = static_cast<bool>(got) &&
                         world.of.await(got.value).value.state == promise_state::resolved;
        CHECK((may || got.why == rpc_code::budget_exceeded));
        REQUIRE(world.of.release(target));
        return may;
    };
    // [1, [2], null]: kind, tag and count, 9, 5 + 9, 1
    CHECK(with(&rpc::budget::nodes_max, 5));
    CHECK_FALSE(with(&rpc::budget::nodes_max, 4));
    CHECK(with(&rpc::budget::depth_max, 3));
    CHECK_FALSE(with(&rpc::budget::depth_max, 2));
    CHECK(with(&rpc::budget::array_max, 3));
    CHECK_FALSE(with(&rpc::budget::array_max, 2));
    CHECK(with(&rpc::budget::value_bytes_max, 30));
    CHECK_FALSE(with(&rpc::budget::value_bytes_max, 29));
}

TEST_CASE("rpc kernel: a result over its budget or larger than any piece is not copied") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.spend.value_bytes_max = 100;
    const auto bounded = world.mint(what);
    const auto free = world.mint();
    rpc_arguments fits;
    fits.in.value_int(94);
    rpc_arguments over;
    over.in.value_int(95);
    rpc_arguments huge;
    huge.in.value_int(5000);
    CHECK(world.of.await(world.of.call(world.lane, bounded, "many", fits.with()).value)
              .value.value.as_text()
              .size() == 94);
    CHECK(world.code_of(world.of.call(world.lane, bounded, "many", over.with()).value) ==
          rpc_code::budget_exceeded);
    CHECK(world.code_of(world.of.call(world.lane, free, "many", huge.with()).value) ==
          rpc_code::budget_exceeded);
    CHECK(world.of.pieces(2).in_use == 0);
}

TEST_CASE("rpc kernel: a path is inside its scope by components, nested ones too") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.has_path = true;
    what.path = "a.b";
    const auto target = world.mint(what);
    const auto with = [&](std::string_view path, bool nested) {
        rpc_arguments made;
        if (nested) {
            made.in.value_list().value_map().key("k").value_path(path).end().end();
        } else {
            made.in.value_path(path);
        }
        const auto got = world.of.call(world.lane, target, "echo", made.with());
        CHECK((got || got.why == rpc_code::path_not_granted));
        return static_cast<bool>(got);
    };
    for (const bool nested : {false, true}) {
        CHECK(with("a.b", nested));
        CHECK(with("a.b.c", nested));
        CHECK_FALSE(with("a.bc", nested));
        CHECK_FALSE(with("a", nested));
        CHECK_FALSE(with("", nested));
        CHECK_FALSE(with("a.b.", nested));
        CHECK_FALSE(with("a.b..c", nested));
    }
    for (const std::string_view wrong : {"", ".", "a.", ".a", "a..b"}) {
        what.path = wrong;
        CHECK(rpc_refusal(world, [&] { return world.of.mint(world.provides, 1, what); }) ==
              rpc_code::invalid_argument);
    }
}

TEST_CASE("rpc kernel: a path that a promise was resolved with is held to the scope as well") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.has_path = true;
    what.path = "a";
    const auto target = world.mint(what);
    const auto free = world.mint();
    for (const std::string_view path : {"a.b", "b"}) {
        rpc_arguments made;
        made.in.value_path(path);
        const auto first = world.of.call(world.lane, free, "echo", made.with());
        rpc_arguments then;
        then.in.promise(first.value.bits);
        const auto second = world.of.call(world.lane, target, "echo", then.with());
        const auto held = world.of.await(second.value).value;
        CHECK(held.state ==
              (path == "a.b" ? promise_state::resolved : promise_state::rejected));
        CHECK(held.code == (path == "a.b" ? rpc_code::other : rpc_code::path_not_granted));
    }
}

TEST_CASE("rpc kernel: a tool is named, its arguments are bounded, processes are not started") {
    rpc_fixture world;
    static constexpr std::string_view names[] = {"cut", "fold"};
    rpc::tool_policy policy{names, 6 + 3 + 5, false};
    rpc::grant what = world.everything();
    what.tools = &policy;
    const auto target = world.mint(what);
    const auto with = [&](std::string_view method, std::string_view tool, std::size_t payload) {
        std::vector<std::byte> content(payload);
        rpc_arguments made;
        made.in.value_text(tool);
        const auto got = world.of.call(world.lane, target, method, made.with(content));
        CHECK((got || got.why == rpc_code::tool_policy));
        return static_cast<bool>(got);
    };
    CHECK(with("echo", "cut", 5));
    CHECK_FALSE(with("echo", "cut", 6));
    CHECK_FALSE(with("echo", "glue", 0));
    CHECK_FALSE(with("spawn", "cut", 0));
    CHECK(rpc_refusal(world, [&] { return world.call(target, "echo"); }) == rpc_code::tool_policy);
    CHECK(rpc_refusal(world, [&] { return world.add(target, {1}); }) == rpc_code::tool_policy);
    policy.allow_process = true;
    const auto may = world.mint(what);
    rpc_arguments made;
    made.in.value_text("fold");
    CHECK(world.of.call(world.lane, may, "spawn", made.with()));
    policy.names = {};
    const auto none = world.mint(what);
    CHECK(world.of.call(world.lane, none, "echo", made.with()).why == rpc_code::tool_policy);
}

TEST_CASE("rpc kernel: read-only capabilities and read-only requests change nothing") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    const auto target = world.mint(what);
    what.read_only = true;
    const auto reads = world.mint(what);
    CHECK(rpc_refusal(world, [&] { return world.call(reads, "put"); }) == rpc_code::read_only);
    CHECK(world.of.call(world.lane, target, "put", {{}, {}, rpc::flag_read_only}).why ==
          rpc_code::read_only);
    CHECK(world.call(target, "put"));
    CHECK(world.call(reads, "add"));
}

TEST_CASE("rpc kernel: revoked between queue and dispatch, the provider is not entered") {
    rpc_fixture world;
    const auto parent = world.mint();
    const auto child = world.of.attenuate(parent, world.everything()).value;
    const auto below = world.of.attenuate(child, world.everything()).value;
    const auto sibling = world.of.attenuate(parent, world.everything()).value;
    const auto queued = world.add(below, {1}).value;
    const auto other = world.add(sibling, {1}).value;
    REQUIRE(world.of.revoke(child));
    CHECK(world.code_of(queued) == rpc_code::revoked);
    CHECK(world.number_of(other) == 1);
    CHECK(world.handler.answered == 1);
    CHECK(rpc_refusal(world, [&] { return world.add(below, {1}); }) == rpc_code::revoked);
    CHECK(rpc_refusal(world, [&] { return world.of.attenuate(below, world.everything()); }) ==
          rpc_code::revoked);
    CHECK(world.count(rpc_event::capability_revoked) == 2);
    REQUIRE(world.of.revoke(parent));
    CHECK(world.count(rpc_event::capability_revoked) == 4);
    CHECK(rpc_refusal(world, [&] { return world.add(sibling, {1}); }) == rpc_code::revoked);
}

TEST_CASE("rpc kernel: revoking a wide and deep family ends all of it and nothing else") {
    rpc_fixture world;
    const auto root = world.mint();
    const auto alone = world.mint();
    std::vector<rpc::capability> family{root};
    for (std::uint32_t at = 0; family.size() < 20; ++at) {
        const auto made = world.of.attenuate(family[at / 2], world.everything());
        REQUIRE(made);
        family.push_back(made.value);
    }
    REQUIRE(world.of.revoke(root));
    for (const auto each : family) {
        CHECK(world.add(each, {1}).why == rpc_code::revoked);
    }
    CHECK(world.add(alone, {1}));
    CHECK(world.count(rpc_event::capability_revoked) == 20);
}

TEST_CASE("rpc kernel: a provider hears of an object once nothing minted for it can reach it") {
    rpc_fixture world;
    const auto target = world.mint(7);
    const auto child = world.of.attenuate(target, world.everything()).value;
    REQUIRE(world.of.retain(target));
    const auto queued = world.add(target, {5}).value;
    REQUIRE(world.of.release(target));
    REQUIRE(world.of.release(target));
    CHECK(rpc_refusal(world, [&] { return world.of.release(target); }) ==
          rpc_code::unknown_capability);
    CHECK(rpc_refusal(world, [&] { return world.of.retain(target); }) ==
          rpc_code::unknown_capability);
    REQUIRE(world.of.release(child));
    CHECK(world.handler.dropped.empty());
    CHECK(world.of.capabilities().in_use == 1);  // the call needs it
    CHECK(world.number_of(queued) == 5);
    CHECK(world.handler.dropped == std::vector<std::uint64_t>{7});
    CHECK(world.of.capabilities().in_use == 0);
    CHECK(world.count(rpc_event::capability_dropped) == 1);
}

/// Releases what it holds: from within a call, and from within the news of another's end.
struct rpc_kernel_holder {
    static constexpr rpc::method methods[] = {{"let-go"}};
    rpc::kernel* of = nullptr;
    std::vector<rpc::capability> held;
    std::vector<std::uint64_t> dropped;
    bool inside = false;
    void invoke(rpc::invocation& call) noexcept {
        inside = true;
        CHECK(of->release(held[static_cast<std::size_t>(call.object())]));
        CHECK(dropped.empty());
        inside = false;
    }
    void on_dropped(std::uint64_t object) noexcept {
        CHECK_FALSE(inside);
        dropped.push_back(object);
        if (object + 1 < held.size()) {
            CHECK(of->release(held[static_cast<std::size_t>(object) + 1]));
        }
    }
};

TEST_CASE("rpc kernel: news of an end may end others, one after the other, never inside a call") {
    rpc_fixture world;
    rpc_kernel_holder holder;
    holder.of = &world.of;
    const auto provides = world.of.add_provider(holder).value;
    static constexpr std::string_view names[] = {"let-go"};
    rpc::grant what;
    what.methods = names;
    for (std::uint64_t object = 0; object < 20; ++object) {
        holder.held.push_back(world.of.mint(provides, object, what).value);
    }
    const auto made = world.call(holder.held[0], "let-go").value;
    CHECK(world.of.await(made).value.state == promise_state::resolved);
    CHECK(holder.dropped.size() == 20);
    CHECK(world.of.capabilities().in_use == 0);
}

TEST_CASE("rpc kernel: a parent that nobody holds is there for its children, then gone") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.spend = rpc_calls_of(2);
    const auto parent = world.mint(what);
    const auto one = world.of.attenuate(parent, what).value;
    const auto two = world.of.attenuate(parent, what).value;
    const auto three = world.of.attenuate(parent, what).value;
    REQUIRE(world.of.release(parent));
    CHECK(world.add(one, {1}));
    CHECK(world.add(two, {1}));
    CHECK(world.add(three, {1}).why == rpc_code::budget_exceeded);
    world.of.dispatch();
    REQUIRE(world.of.release(two));  // from the middle, then both ends
    REQUIRE(world.of.release(three));
    CHECK(world.of.capabilities().in_use == 2);
    REQUIRE(world.of.release(one));
    CHECK(world.of.capabilities().in_use == 0);
}

TEST_CASE("rpc kernel: a provider that is removed is as good as revoked") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto queued = world.add(target, {1}).value;
    REQUIRE(world.of.remove_provider(world.provides));
    CHECK(rpc_refusal(world, [&] { return world.add(target, {1}); }) == rpc_code::revoked);
    CHECK(rpc_refusal(world, [&] {
              return world.of.mint(world.provides, 1, world.everything());
          }) == rpc_code::invalid_argument);
    CHECK(world.code_of(queued) == rpc_code::revoked);
    CHECK(world.handler.answered == 0);
    CHECK(world.of.providers().in_use == 1);
    REQUIRE(world.of.release(target));
    CHECK(world.handler.dropped.empty());
    CHECK(world.of.providers().in_use == 0);
    CHECK(rpc_refusal(world, [&] { return world.of.remove_provider(world.provides); }) ==
          rpc_code::invalid_argument);
}

struct rpc_kernel_leaver {
    static constexpr rpc::method methods[] = {{"leave"}};
    rpc::kernel* of = nullptr;
    rpc::provider_id own{};
    rpc::capability held{};
    void invoke(rpc::invocation& call) noexcept {
        CHECK(of->remove_provider(own));
        CHECK(of->release(held));
        call.reply().value_int(1);
    }
};

TEST_CASE("rpc kernel: a provider removed by its own call goes once that has ended") {
    rpc_fixture world;
    rpc_kernel_leaver leaves{&world.of};
    leaves.own = world.of.add_provider(leaves).value;
    static constexpr std::string_view names[] = {"leave"};
    rpc::grant what;
    what.methods = names;
    leaves.held = world.of.mint(leaves.own, 1, what).value;
    const auto one = world.call(leaves.held, "leave").value;
    const auto two = world.call(leaves.held, "leave").value;
    CHECK(world.number_of(one) == 1);
    CHECK(world.code_of(two) == rpc_code::revoked);
    CHECK(world.of.providers().in_use == 1);
    CHECK(world.of.capabilities().in_use == 0);
}

TEST_CASE("rpc kernel: pipelining_costs_one_round_trip_and_sequential_costs_two") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto first = world.add(target, {1}).value;
    const auto second = world.add(target, {2}, {first}).value;
    CHECK(world.number_of(second) == 3);
    CHECK(world.of.round_trips() == 1);
    const auto again = world.number_of(world.add(target, {1}).value);
    CHECK(world.number_of(world.add(target, {again, 2}).value) == 3);
    CHECK(world.of.round_trips() == 3);
}

TEST_CASE("rpc kernel: sixteen calls that need each other are one batch, in their order") {
    rpc_fixture world;
    const auto target = world.mint();
    rpc::promise_id last = world.add(target, {1}).value;
    for (int at = 1; at < 16; ++at) {
        last = world.add(target, {}, {last, last}).value;
    }
    CHECK(world.number_of(last) == 1 << 15);
    CHECK(world.of.round_trips() == 1);
    const auto& batch = world.of.log().at(world.of.log().total() - 1);
    CHECK(batch.kind == rpc_event::batch_dispatched);
    CHECK(batch.detail == 16);
    CHECK(batch.also == 1);
    CHECK(world.of.edges().in_use == 0);
}

TEST_CASE("rpc kernel: a chain through two providers is a round trip each time it changes") {
    rpc_fixture world;
    rpc_world::provider second;
    const auto other = world.of.add_provider(second).value;
    const auto here = world.mint();
    const auto there = world.of.mint(other, 1, world.everything()).value;
    rpc::promise_id last = world.add(here, {1}).value;
    last = world.add(here, {1}, {last}).value;
    last = world.add(there, {1}, {last}).value;
    last = world.add(there, {1}, {last}).value;
    last = world.add(here, {1}, {last}).value;
    CHECK(world.number_of(last) == 5);
    CHECK(world.of.round_trips() == 3);
}

TEST_CASE("rpc kernel: lanes take turns within a batch") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto other = world.of.open_lane().value;
    for (int at = 0; at < 3; ++at) {
        CHECK(world.call(target, "add"));
    }
    CHECK(world.of.call(other, target, "echo"));
    world.of.dispatch();
    CHECK(world.handler.asked ==
          std::vector<std::string>{"add", "echo", "add", "add"});
    CHECK(world.of.log().at(world.of.log().total() - 1).also == 2);
    CHECK(world.of.round_trips() == 1);
}

TEST_CASE("rpc kernel: a lane that comes late waits behind no more than a turn of the others") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto other = world.of.open_lane().value;
    for (int at = 0; at < 20; ++at) {
        CHECK(world.call(target, "add"));
    }
    CHECK(world.of.dispatch(2) == 2);
    CHECK(world.of.call(other, target, "echo"));
    CHECK(world.of.dispatch(2) == 2);
    CHECK(world.handler.asked == std::vector<std::string>{"add", "add", "add", "echo"});
}

TEST_CASE("rpc kernel: dispatch runs no more jobs than it is told") {
    rpc_fixture world;
    const auto target = world.mint();
    for (int at = 0; at < 5; ++at) {
        CHECK(world.add(target, {at}));
    }
    CHECK(world.of.dispatch(2) == 2);
    CHECK(world.of.dispatch(2) == 2);
    CHECK(world.of.dispatch(2) == 1);
    CHECK(world.of.round_trips() == 3);
}

TEST_CASE("rpc kernel: what a call needed and did not get is its own error too") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto fails = world.call(target, "fail").value;
    const auto after = world.add(target, {1}, {fails}).value;
    const auto last = world.add(target, {1}, {after}).value;
    CHECK(world.code_of(last) == rpc_code::provider);
    CHECK(world.of.look(last).value.text == "out-of-paper");
    CHECK(world.handler.asked == std::vector<std::string>{"fail"});
    const auto open = world.of.open_promise(world.lane).value;
    const auto waits = world.add(target, {1}, {open}).value;
    REQUIRE(world.of.cancel(open));
    CHECK(world.code_of(waits) == rpc_code::promise_cancelled);
    CHECK(world.of.pending_of(world.lane) == 0);
}

TEST_CASE("rpc kernel: a promise has one transition") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto open = world.of.open_promise(world.lane).value;
    CHECK(world.of.await(open).why == rpc_code::unresolvable_promise);
    REQUIRE(world.of.resolve(open, rpc::value()));
    CHECK(rpc_refusal(world, [&] { return world.of.resolve(open, rpc::value()); }) ==
          rpc_code::promise_already_resolved);
    CHECK(rpc_refusal(world, [&] { return world.of.reject(open, rpc_code::domain); }) ==
          rpc_code::promise_already_resolved);
    CHECK(rpc_refusal(world, [&] { return world.of.cancel(open); }) ==
          rpc_code::promise_already_resolved);
    const auto queued = world.add(target, {1}).value;
    CHECK(rpc_refusal(world, [&] { return world.of.resolve(queued, rpc::value()); }) ==
          rpc_code::invalid_argument);
    REQUIRE(world.of.cancel(queued));
    CHECK(world.of.look(queued).value.state == promise_state::cancelled);
    CHECK(world.of.dispatch() == 0);
    CHECK(world.handler.answered == 0);
    CHECK(world.of.pending_of(world.lane) == 0);
    CHECK(world.of.resolve({}, rpc::value()).why == rpc_code::unknown_promise);
    CHECK(world.of.look({}).why == rpc_code::unknown_promise);
}

TEST_CASE("rpc kernel: a provider may answer later, once") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto asked = world.call(target, "late").value;
    const auto needs = world.add(target, {1}, {asked}).value;
    world.of.dispatch();
    CHECK(world.handler.late == asked);
    CHECK(world.of.look(asked).value.state == promise_state::pending);
    CHECK(world.of.await(needs).why == rpc_code::unresolvable_promise);
    rpc_arguments made;
    made.in.value_int(41);
    REQUIRE(world.of.resolve(asked, made.with().arguments.value.front().as_value()));
    CHECK(world.number_of(needs) == 42);
    CHECK(rpc_refusal(world, [&] { return world.of.resolve(asked, rpc::value()); }) ==
          rpc_code::promise_already_resolved);
    const auto again = world.call(target, "late").value;
    world.of.dispatch();
    REQUIRE(world.of.reject(again, rpc_code::domain, "closed on sundays"));
    CHECK(world.code_of(again) == rpc_code::domain);
    CHECK(world.of.look(again).value.text == "closed on sundays");
}

TEST_CASE("rpc kernel: promises that wait for each other are refused, long ways round too") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto one = world.of.open_promise(world.lane).value;
    const auto two = world.of.open_promise(world.lane).value;
    CHECK(rpc_refusal(world, [&] { return world.of.follow(one, one); }) ==
          rpc_code::pipelined_cycle);
    const auto needs_one = world.add(target, {1}, {one}).value;
    const auto needs_both = world.add(target, {1}, {needs_one, two}).value;
    REQUIRE(world.of.follow(two, needs_one));
    CHECK(rpc_refusal(world, [&] { return world.of.follow(one, two); }) ==
          rpc_code::pipelined_cycle);
    CHECK(rpc_refusal(world, [&] { return world.of.follow(one, needs_both); }) ==
          rpc_code::pipelined_cycle);
    CHECK(rpc_refusal(world, [&] { return world.of.resolve(two, rpc::value()); }) ==
          rpc_code::promise_already_resolved);
    rpc_arguments made;
    made.in.value_int(10);
    REQUIRE(world.of.resolve(one, made.with().arguments.value.front().as_value()));
    CHECK(world.number_of(needs_both) == 1 + 11 + 11);
    CHECK(world.number_of(two) == 11);
    CHECK(world.of.edges().in_use == 0);
    CHECK(world.of.pending_of(world.lane) == 0);
}

TEST_CASE("rpc kernel: followers of followers settle without recursion, with what it was") {
    rpc_fixture world;
    const auto first = world.of.open_promise(world.lane).value;
    rpc::promise_id last = first;
    for (int at = 0; at < 40; ++at) {
        const auto next = world.of.open_promise(world.lane).value;
        REQUIRE(world.of.follow(next, last));
        last = next;
    }
    REQUIRE(world.of.reject(first, rpc_code::timeout));
    CHECK(world.code_of(last) == rpc_code::timeout);
    CHECK(world.of.edges().in_use == 0);
    const auto late = world.of.open_promise(world.lane).value;
    REQUIRE(world.of.follow(late, last));  // what is settled already
    CHECK(world.code_of(late) == rpc_code::timeout);
}

TEST_CASE("rpc kernel: a batch slower than a call may take is not made for it") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.spend.wall_ms_max = 20;
    const auto patient = world.mint();
    const auto hasty = world.mint(what);
    REQUIRE(world.of.set_latency(world.provides, 20));
    CHECK(world.number_of(world.add(hasty, {1}).value) == 1);
    REQUIRE(world.of.set_latency(world.provides, 21));
    CHECK(world.code_of(world.add(hasty, {1}).value) == rpc_code::timeout);
    CHECK(world.number_of(world.add(patient, {1}).value) == 1);
    const auto lane = world.of.open_lane(what.spend).value;
    const auto made = world.of.call(lane, patient, "add").value;
    CHECK(world.code_of(made) == rpc_code::timeout);
}

TEST_CASE("rpc kernel: a lane bounds what is pending in it, narrows, and closes for calls alone") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto lane = world.of.open_lane({}, 2).value;
    const auto one = world.of.call(lane, target, "add").value;
    CHECK(world.of.call(lane, target, "add"));
    CHECK(rpc_refusal(world, [&] { return world.of.call(lane, target, "add"); }) ==
          rpc_code::budget_exceeded);
    CHECK(world.of.narrow_lane(lane, rpc_calls_of(10'001)).why == rpc_code::escalation);
    REQUIRE(world.of.narrow_lane(lane, rpc_calls_of(1)));  // less than was spent already
    world.of.dispatch();
    CHECK(world.of.call(lane, target, "add").why == rpc_code::budget_exceeded);
    const auto other = world.of.open_lane().value;
    const auto queued = world.of.call(other, target, "add").value;
    REQUIRE(world.of.close_lane(other));
    CHECK(world.of.call(other, target, "add").why == rpc_code::unknown_lane);
    CHECK(world.of.close_lane(other).why == rpc_code::unknown_lane);
    CHECK(world.of.lanes().in_use == 3);
    CHECK(world.of.await(queued).value.state == promise_state::resolved);
    CHECK(world.of.lanes().in_use == 2);
    CHECK(world.of.look(one).value.state == promise_state::resolved);
}

TEST_CASE("rpc kernel: a cancelled call that waits in a queue gives everything back in its turn") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto lane = world.of.open_lane().value;
    const auto empty = world.tables();
    const auto queued = world.of.call(lane, target, "add").value;
    const auto other = world.of.call(lane, target, "add").value;
    REQUIRE(world.of.cancel(queued));
    REQUIRE(world.of.close_lane(lane));
    REQUIRE(world.of.release(target));
    REQUIRE(world.of.remove_provider(world.provides));
    CHECK(world.code_of(other) == rpc_code::revoked);
    CHECK(world.of.look(queued).value.state == promise_state::cancelled);
    REQUIRE(world.of.forget(queued));
    REQUIRE(world.of.forget(other));
    CHECK(world.of.capabilities().in_use == 0);
    CHECK(world.of.providers().in_use == 0);
    CHECK(world.of.lanes().in_use == 1);
    CHECK(world.of.promises().in_use == 0);
    CHECK(empty.size() == world.tables().size());
}

TEST_CASE("rpc kernel: a cancelled call that waits for a promise needs it no more") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto open = world.of.open_promise(world.lane).value;
    const auto waits = world.add(target, {1}, {open, open}).value;
    const auto other = world.add(target, {1}, {open}).value;
    REQUIRE(world.of.cancel(waits));
    CHECK(world.of.edges().in_use == 1);
    REQUIRE(world.of.resolve(open, rpc::value()));
    CHECK(world.number_of(other) == 1);
    CHECK(world.of.edges().in_use == 0);
    CHECK(world.of.forget(open));
    CHECK(world.of.forget(waits));
}

TEST_CASE("rpc kernel: settled promises are kept up to a number and a size, oldest first") {
    rpc_fixture world;
    const auto target = world.mint();
    std::vector<rpc::promise_id> made;
    for (int at = 0; at < 40; ++at) {
        made.push_back(world.add(target, {at}).value);
    }
    world.of.dispatch();
    CHECK(world.of.promises().in_use == 32);
    CHECK(world.of.look(made[7]).why == rpc_code::unknown_promise);
    CHECK(world.number_of(made[8]) == 8);
    rpc_arguments large;
    large.in.value_int(4000);
    for (int at = 0; at < 3; ++at) {
        CHECK(world.of.call(world.lane, target, "many", large.with()));
        world.of.dispatch();
    }
    CHECK(world.of.promises().in_use == 32);
    rpc::rpc_limits few = rpc_world::small_sizes();
    few.settled_bytes_max = 9000;
    rpc_fixture bounded(few);
    const auto there = bounded.mint();
    for (int at = 0; at < 3; ++at) {
        CHECK(bounded.of.call(bounded.lane, there, "many", large.with()));
        bounded.of.dispatch();
    }
    CHECK(bounded.of.promises().in_use == 2);
}

TEST_CASE("rpc kernel: a full table is an ordinary result, and what is there goes on") {
    rpc_fixture world;
    const auto target = world.mint();
    SUBCASE("providers") {
        rpc_world::provider more;
        CHECK(world.of.add_provider(more));
        CHECK(world.of.add_provider(more));
        CHECK(rpc_refusal(world, [&] { return world.of.add_provider(more); }) ==
              rpc_code::budget_exceeded);
    }
    SUBCASE("capabilities") {
        for (int at = 1; at < 24; ++at) {
            CHECK(world.of.mint(world.provides, 1, world.everything()));
        }
        CHECK(rpc_refusal(world, [&] {
                  return world.of.mint(world.provides, 1, world.everything());
              }) == rpc_code::budget_exceeded);
        CHECK(rpc_refusal(world, [&] { return world.of.attenuate(target, world.everything()); }) ==
              rpc_code::budget_exceeded);
    }
    SUBCASE("attenuations of attenuations") {
        rpc::capability at = target;
        for (int depth = 0; depth < 4; ++depth) {
            at = world.of.attenuate(at, world.everything()).value;
        }
        CHECK(rpc_refusal(world, [&] { return world.of.attenuate(at, world.everything()); }) ==
              rpc_code::budget_exceeded);
    }
    SUBCASE("lanes") {
        for (int at = 1; at < 4; ++at) {
            CHECK(world.of.open_lane());
        }
        CHECK(rpc_refusal(world, [&] { return world.of.open_lane(); }) ==
              rpc_code::budget_exceeded);
    }
    SUBCASE("channels") {
        for (int at = 0; at < 4; ++at) {
            CHECK(world.of.open_channel(rpc::channel_direction::both));
        }
        CHECK(rpc_refusal(world, [&] {
                  return world.of.open_channel(rpc::channel_direction::both);
              }) == rpc_code::budget_exceeded);
    }
    world.of.dispatch();
    CHECK(world.number_of(world.add(target, {3}).value) == 3);
}

TEST_CASE("rpc kernel: so is one that calls fill, and it has room again once they are made") {
    rpc_fixture world;
    const auto target = world.mint();
    SUBCASE("promises") {
        for (int at = 0; at < 64; ++at) {
            CHECK(world.call(target, "add"));
        }
        CHECK(rpc_refusal(world, [&] { return world.call(target, "add"); }) ==
              rpc_code::budget_exceeded);
        CHECK(rpc_refusal(world, [&] { return world.of.open_promise(world.lane); }) ==
              rpc_code::budget_exceeded);
        CHECK(world.of.dispatch() == 64);
    }
    SUBCASE("edges") {
        const auto first = world.add(target, {1}).value;
        for (int at = 0; at < 32; ++at) {
            CHECK(world.add(target, {}, {first, first}));
        }
        CHECK(rpc_refusal(world, [&] { return world.add(target, {}, {first}); }) ==
              rpc_code::budget_exceeded);
    }
    SUBCASE("pieces") {
        std::byte payload[4096] = {};
        for (int at = 0; at < 8; ++at) {
            CHECK(world.of.call(world.lane, target, "echo", {{}, payload, 0}));
        }
        CHECK(rpc_refusal(world, [&] {
                  return world.of.call(world.lane, target, "echo", {{}, payload, 0});
              }) == rpc_code::budget_exceeded);
    }
    world.of.dispatch();
    CHECK(world.number_of(world.add(target, {3}).value) == 3);
}

TEST_CASE("rpc kernel: arguments and payload larger than any piece are refused") {
    rpc_fixture world;
    const auto target = world.mint();
    std::vector<std::byte> payload(4097);
    CHECK(rpc_refusal(world, [&] {
              return world.of.call(world.lane, target, "echo", {{}, payload, 0});
          }) == rpc_code::budget_exceeded);
    CHECK(world.of.call(world.lane, target, "echo",
                        {{}, netio::bytes(payload).first(4096), 0}));
}

TEST_CASE("rpc kernel: channels carry messages in order, bounded, each way that they have") {
    rpc_fixture world;
    using rpc::channel_direction;
    using rpc::channel_end;
    const auto both = world.of.open_channel(channel_direction::both, 2).value;
    const auto out = world.of.open_channel(channel_direction::send).value;
    const auto in = world.of.open_channel(channel_direction::receive).value;
    const auto target = world.mint();
    rpc_arguments made;
    made.in.value_int(1).capability(world.of.id_of(target)).value_path("a.b");
    const auto what = made.with().arguments;
    CHECK(world.of.send(out, channel_end::theirs, what).why == rpc_code::invalid_argument);
    CHECK(world.of.send(in, channel_end::ours, what).why == rpc_code::invalid_argument);
    CHECK(world.of.receive(out, channel_end::ours).why == rpc_code::invalid_argument);
    CHECK(world.of.send(out, channel_end::ours, what).value == 1);
    CHECK(world.of.send(in, channel_end::theirs, what).value == 1);
    CHECK(world.of.send(both, channel_end::ours, what).value == 1);
    CHECK(world.of.send(both, channel_end::ours, {}).value == 2);
    CHECK(rpc_refusal(world, [&] { return world.of.send(both, channel_end::ours, what); }) ==
          rpc_code::budget_exceeded);
    CHECK(world.of.send(both, channel_end::theirs, what).value == 1);
    CHECK(world.count(rpc_event::capability_transferred) == 4);
    const auto got = world.of.receive(both, channel_end::theirs);
    CHECK(got.value.sequence == 1);
    CHECK(got.value.arguments.front().as_value().as_int() == 1);
    CHECK(world.of.receive(both, channel_end::theirs).value.arguments.empty());
    CHECK(world.of.receive(both, channel_end::theirs).why == rpc_code::unresolvable_promise);
    CHECK(world.of.receive(both, channel_end::ours).value.sequence == 1);
    rpc_arguments promised;
    promised.in.promise(1);
    CHECK(world.of.send(out, channel_end::ours, promised.with().arguments).why ==
          rpc_code::invalid_argument);
    for (const auto each : {both, out, in}) {
        CHECK(world.of.close_channel(each));
        CHECK(world.of.send(each, channel_end::ours, what).why == rpc_code::unknown_channel);
        CHECK(world.of.receive(each, channel_end::ours).why == rpc_code::unknown_channel);
        CHECK(world.of.close_channel(each).why == rpc_code::unknown_channel);
    }
    CHECK(world.of.messages().in_use == 0);
    CHECK(world.of.pieces(0).in_use == 0);
}

TEST_CASE("rpc kernel: events beyond the log overwrite the oldest, their counts stay exact") {
    rpc_fixture world;
    const auto target = world.mint();
    for (int at = 0; at < 200; ++at) {
        world.of.set_tick(static_cast<std::uint64_t>(at));
        CHECK(world.number_of(world.add(target, {at}).value) == at);
    }
    const rpc::event_log& log = world.of.log();
    CHECK(log.count(rpc_event::call_queued) == 200);
    CHECK(log.count(rpc_event::job_completed) == 200);
    CHECK(log.count(rpc_event::promise_resolved) == 200);
    CHECK(log.count(rpc_event::batch_dispatched) == 200);
    CHECK(log.total() == 2 + 4 * 200);
    CHECK(log.kept() == 256);
    CHECK(log.overwritten() == log.total() - 256);
    CHECK(log.at(log.total() - 1).tick == 199);
    CHECK(log.at(log.overwritten()).tick == 199 - 63);
}

/// What a provider says from memory of its own that is gone once it has returned.
struct rpc_kernel_talker {
    static constexpr rpc::method methods[] = {{"say"}, {"late-and-no"}, {"first"}};
    std::string text;
    void invoke(rpc::invocation& call) noexcept {
        char local[512] = {};
        std::memcpy(local, text.data(), text.size());
        if (call.method_index() == 1) {
            call.later();
        }
        if (call.method_index() == 2) {
            CHECK(call.argument_at(0).as_value().is(rpc::value_tag::null_value));
            CHECK(call.value_at(0).is(rpc::value_tag::null_value));
            return;
        }
        call.reject({local, text.size()});
        std::memset(local, '#', sizeof(local));
    }
};

TEST_CASE("rpc kernel: a provider's code is copied at once, whole letters of at most 255 bytes") {
    rpc_fixture world;
    rpc_kernel_talker talker;
    static constexpr std::string_view names[] = {"say", "late-and-no", "first"};
    rpc::grant what;
    what.methods = names;
    const auto target =
        world.of.mint(world.of.add_provider(talker).value, 1, what).value;
    const auto said = [&](std::string text, std::string_view method = "say") {
        talker.text = std::move(text);
        const auto made = world.call(target, method).value;
        return std::string(world.of.await(made).value.text);
    };
    CHECK(said("disk-7-full") == "disk-7-full");
    CHECK(said(std::string(300, 'a')) == std::string(255, 'a'));
    CHECK(said(std::string(254, 'a') + "\xC3\xA4") == std::string(254, 'a'));
    CHECK(said("\xC3") == "rpc/provider");
    CHECK(said("no", "late-and-no") == "no");  // later or not
    CHECK(world.call(target, "first"));
    CHECK(world.of.dispatch() == 1);
}

TEST_CASE("rpc kernel: a stranger's numbers of promises are refused unless somebody maps them") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto secret = world.add(target, {42}).value;
    world.of.dispatch();
    rpc_arguments made;
    made.in.promise(secret.bits);
    rpc::call_arguments with = made.with();
    with.promise_of = nullptr;
    CHECK(rpc_refusal(world, [&] {
              return world.of.call(world.lane, target, "add", with);
          }) == rpc_code::unknown_promise);
    struct requests {
        rpc::promise_id first;
        int asked = 0;
    } known{secret};
    with.context = &known;
    with.promise_of = [](void* context, std::uint64_t number) noexcept {
        auto& of = *static_cast<requests*>(context);
        ++of.asked;
        return number == 1 ? of.first : rpc::promise_id{};
    };
    rpc_arguments mapped;
    mapped.in.promise(1);
    with.arguments = mapped.with().arguments;
    CHECK(world.number_of(world.of.call(world.lane, target, "add", with).value) == 42);
    // One that says something else when it is asked again does no harm.
    known.asked = 0;
    with.promise_of = [](void* context, std::uint64_t) noexcept {
        auto& of = *static_cast<requests*>(context);
        return of.asked++ == 0 ? of.first : rpc::promise_id{};
    };
    const auto odd = world.of.call(world.lane, target, "add", with);
    CHECK(world.code_of(odd.value) == rpc_code::unknown_promise);
    CHECK(world.of.pending_of(world.lane) == 0);
    CHECK(world.of.edges().in_use == 0);
}

TEST_CASE("rpc kernel: arguments that were not written whole are refused, not taken for none") {
    rpc_fixture world;
    const auto target = world.mint();
    std::byte room[16];
    rpc::writer out(room);
    out.begin_arguments().value_path("home.bob.documents");
    CHECK(rpc_refusal(world, [&] {
              return world.of.call(world.lane, target, "echo", {out.finish_arguments()});
          }) == rpc_code::invalid_argument);
    const auto channel = world.of.open_channel(rpc::channel_direction::both).value;
    CHECK(world.of.send(channel, rpc::channel_end::ours, netio::error::full).why ==
          rpc_code::invalid_argument);
}

TEST_CASE("rpc kernel: results that nobody needs make room for calls, large and many") {
    rpc_fixture world;
    const auto target = world.mint();
    rpc_arguments large;
    large.in.value_int(4000);
    std::vector<rpc::promise_id> made;
    for (int at = 0; at < 12; ++at) {  // of eight pieces that large
        made.push_back(world.of.call(world.lane, target, "many", large.with()).value);
        CHECK(world.of.await(made.back()).value.state == promise_state::resolved);
    }
    CHECK(world.of.look(made[0]).why == rpc_code::unknown_promise);
    CHECK(world.of.look(made[11]));
    // An argument is not forgotten for its own call, nor is what is handed in.
    const auto needs = world.of.call(world.lane, target, "echo", [&] {
        static rpc_arguments one;
        one.in.promise(made[4].bits);
        rpc::call_arguments with = one.with();
        static std::vector<std::byte> payload(4000);
        with.payload = payload;
        return with;
    }());
    CHECK(world.of.await(needs.value).value.value.as_text().size() == 4000);
    const auto open = world.of.open_promise(world.lane).value;
    REQUIRE(world.of.resolve(open, world.of.look(made[11]).value.value));
    CHECK(world.of.look(open).value.value.as_text() == std::string(4000, 'x'));
    for (int at = 0; at < 200; ++at) {
        const auto each = world.of.open_promise(world.lane);
        REQUIRE(each);
        REQUIRE(world.of.resolve(each.value, rpc::value()));
    }
    CHECK(world.of.promises().in_use == 64);
}

TEST_CASE("rpc kernel: messages that nobody takes leave calls half of the pieces") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto channel = world.of.open_channel(rpc::channel_direction::both).value;
    rpc_arguments large;
    large.in.value_text(std::string(4000, 'x'));
    for (int at = 0; at < 4; ++at) {
        CHECK(world.of.send(channel, rpc::channel_end::theirs, large.with().arguments));
    }
    CHECK(rpc_refusal(world, [&] {
              return world.of.send(channel, rpc::channel_end::theirs, large.with().arguments);
          }) == rpc_code::budget_exceeded);
    for (int at = 0; at < 4; ++at) {
        CHECK(world.of.call(world.lane, target, "echo", large.with()));
    }
    CHECK(world.of.close_channel(channel));
    CHECK(world.of.send(world.of.open_channel(rpc::channel_direction::both).value,
                        rpc::channel_end::ours, large.with().arguments));
}

TEST_CASE("rpc kernel: cancelled calls take no turn from those that are ready") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto one = world.add(target, {1}).value;
    const auto two = world.add(target, {2}).value;
    REQUIRE(world.of.cancel(one));
    CHECK(world.of.dispatch(1) == 1);
    CHECK(world.of.look(two).value.state == promise_state::resolved);
}

TEST_CASE("rpc kernel: dependent calls of one lane don't keep another's waiting") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto other = world.of.open_lane().value;
    const auto first = world.add(target, {1}).value;
    for (int at = 0; at < 15; ++at) {
        REQUIRE(world.add(target, {1}, {first}));
    }
    CHECK(world.of.dispatch(2) == 2);
    const auto theirs = world.of.call(other, target, "echo").value;
    CHECK(world.of.dispatch(2) == 2);
    CHECK(world.of.look(theirs).value.state == promise_state::resolved);
}

TEST_CASE("rpc kernel: what is revoked or removed ends calls that wait or were to be late") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto late = world.call(target, "late").value;
    world.of.dispatch();
    const auto waits = world.add(target, {1}, {late}).value;
    SUBCASE("revoked") { REQUIRE(world.of.revoke(target)); }
    SUBCASE("removed") { REQUIRE(world.of.remove_provider(world.provides)); }
    SUBCASE("resolved all the same") {
        REQUIRE(world.of.revoke(target));
        CHECK(world.of.resolve(late, rpc::value()).why == rpc_code::revoked);
    }
    CHECK(world.code_of(waits) == rpc_code::revoked);
    CHECK(world.code_of(late) == rpc_code::revoked);
    CHECK(world.of.pending_of(world.lane) == 0);
    CHECK(world.of.edges().in_use == 0);
    CHECK(world.handler.answered == 1);
    CHECK(world.of.round_trips() == 1);  // no call was made in the second
}

TEST_CASE("rpc kernel: one call takes a quarter of the edges at most, and lanes bound the rest") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto first = world.add(target, {1}).value;
    const auto with = [&](int count) {
        rpc_arguments made;
        for (int at = 0; at < count; ++at) {
            made.in.promise(first.bits);
        }
        return world.of.call(world.lane, target, "add", made.with());
    };
    CHECK(with(16));
    CHECK(rpc_refusal(world, [&] { return with(17); }) == rpc_code::budget_exceeded);
}

TEST_CASE("rpc kernel: a tool's bytes, and the budgets above, hold for promised arguments too") {
    rpc_fixture world;
    static constexpr std::string_view names[] = {"cut"};
    const auto free = world.mint();
    rpc_arguments size;
    size.in.value_int(50);
    const auto text = world.of.call(world.lane, free, "many", size.with()).value;
    const auto with = [&](const rpc::grant& what, rpc::lane_id lane) {
        const auto target = world.mint(what);
        rpc_arguments made;
        made.in.value_text("cut").promise(text.bits);
        return world.code_of(world.of.call(lane, target, "echo", made.with()).value);
    };
    rpc::grant what = world.everything();
    rpc::tool_policy policy{names, 9 + 9 + 56, false};
    what.tools = &policy;
    CHECK(with(what, world.lane) == rpc_code::other);
    --policy.argument_bytes_max;
    CHECK(with(what, world.lane) == rpc_code::tool_policy);
    what.tools = nullptr;
    what.spend.bytes_max = 9 + 9 + 56 + 9;
    CHECK(with(what, world.lane) == rpc_code::other);
    what.spend.bytes_max = 9 + 9 + 55;
    CHECK(with(what, world.lane) == rpc_code::budget_exceeded);
    const auto lane = world.of.open_lane(what.spend).value;
    CHECK(with(world.everything(), lane) == rpc_code::budget_exceeded);
}

TEST_CASE("rpc kernel: redact reaches the provider from the request and from the capability") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    what.redact = true;
    const auto target = world.mint(what);
    const auto free = world.mint();
    CHECK(world.call(target, "add"));
    CHECK(world.of.call(world.lane, free, "add", {rpc::argument_list(), {}, rpc::flag_redact}));
    CHECK(world.call(free, "add"));
    world.of.dispatch();
    CHECK(world.handler.redacted == std::vector<bool>{true, true, false});
}

TEST_CASE("rpc kernel: nothing of arguments and results stays once they are let go") {
    rpc_fixture world;
    const auto target = world.mint();
    rpc_arguments made;
    made.in.value_text("correct horse battery staple");
    const auto held = world.of.call(world.lane, target, "echo", made.with()).value;
    CHECK(world.of.await(held).value.value.as_text() == "correct horse battery staple");
    REQUIRE(world.of.forget(held));
    const std::string_view all(reinterpret_cast<const char*>(world.memory.data()),
                               world.memory.size());
    CHECK(all.find("battery") == std::string_view::npos);
}

TEST_CASE("rpc kernel: await ends with the batch that settles what it waits for") {
    rpc_fixture world;
    rpc_world::provider second;
    const auto there =
        world.of.mint(world.of.add_provider(second).value, 1, world.everything()).value;
    const auto here = world.mint();
    const auto first = world.add(here, {1}).value;
    const auto other = world.add(there, {2}).value;
    CHECK(world.number_of(first) == 1);
    CHECK(world.of.look(other).value.state == promise_state::pending);
    CHECK(world.number_of(other) == 2);
}

TEST_CASE("rpc kernel: in_process_call_throughput_is_bounded") {
    rpc_fixture world;
    rpc::grant what = world.everything();
    const auto target = world.mint(what);
    for (int at = 0; at < 5'000; ++at) {
        REQUIRE(world.number_of(world.add(target, {at}).value) == at);
    }
    CHECK(world.handler.answered == 5'000);
    CHECK(world.of.promises().in_use == 33);  // those that are kept, and the one just awaited
    CHECK(world.of.promises().high_water == 34);
}

TEST_CASE("rpc kernel: lane_and_channel_churn_does_not_leak_descriptors_or_threads") {
    rpc_fixture world;
    const auto target = world.mint();
    const auto before = world.tables();
    for (int at = 0; at < 2'000; ++at) {
        const auto lane = world.of.open_lane();
        const auto channel = world.of.open_channel(rpc::channel_direction::both);
        REQUIRE(lane);
        REQUIRE(channel);
        const auto made = world.of.call(lane.value, target, "add");
        REQUIRE(made);
        REQUIRE(world.of.send(channel.value, rpc::channel_end::ours, {}));
        REQUIRE(world.of.close_lane(lane.value));
        REQUIRE(world.of.close_channel(channel.value));
        REQUIRE(world.of.await(made.value));
        REQUIRE(world.of.forget(made.value));
    }
    CHECK(world.tables() == before);
}

}  // namespace

namespace {

rpc::grant go_alone() {
    static constexpr std::string_view names[] = {"go"};
    rpc::grant what;
    what.methods = names;
    return what;
}

/// Told that its last capability is gone, it makes room for another one, which is asked at once.
struct has_successor {
    static constexpr rpc::method methods[] = {{"go"}};
    struct next_one {
        static constexpr rpc::method methods[] = {{"go"}};
        int asked = 0;
        void invoke(rpc::invocation&) noexcept { ++asked; }
    };
    rpc::kernel& of;
    rpc::lane_id lane;
    rpc::provider_id id{};
    next_one successor;

    static void invoke(rpc::invocation&) noexcept {}
    void on_dropped(std::uint64_t) noexcept {
        CHECK(of.remove_provider(id));
        const auto made = of.mint(of.add_provider(successor).value, 2, go_alone());
        REQUIRE(made);
        for (int more = 0; more < 3; ++more) {
            CHECK(of.call(lane, made.value, "go"));
        }
    }
};

/// Told that a capability is gone, it resolves a promise.
struct resolves_when_told {
    static constexpr rpc::method methods[] = {{"go"}};
    rpc::kernel& of;
    rpc::promise_id promise{};

    static void invoke(rpc::invocation&) noexcept {}
    void on_dropped(std::uint64_t) noexcept { CHECK(of.resolve(promise, rpc::value())); }
};

struct fails_without_a_word {
    static constexpr rpc::method methods[] = {{"go"}};
    static void invoke(rpc::invocation& call) noexcept { call.reject({}); }
};

}  // namespace

TEST_CASE("rpc kernel: a provider may make room for its successor while its own batch runs") {
    for (const std::uint32_t jobs_max : {1u, 2u, 0xFFFFFFFFu}) {
        CAPTURE(jobs_max);
        rpc_world::fixture w;
        has_successor first{w.of, w.lane, {}, {}};
        first.id = w.of.add_provider(first).value;
        const rpc::capability only = w.of.mint(first.id, 1, go_alone()).value;
        CHECK(w.of.call(w.lane, only, "go"));
        CHECK(w.of.release(only));
        std::uint32_t jobs = 0;
        for (std::uint32_t more = w.of.dispatch(jobs_max); more != 0;
             more = w.of.dispatch(jobs_max)) {
            jobs += more;
            REQUIRE(jobs <= 4);
        }
        CHECK(jobs == 4);
        CHECK(first.successor.asked == 3);
        CHECK(w.of.providers().in_use == 2);
    }
}

TEST_CASE("rpc kernel: what becomes ready by a provider's hearing of a drop is run as well") {
    for (const bool awaits : {false, true}) {
        CAPTURE(awaits);
        rpc_world::fixture w;
        resolves_when_told told{w.of};
        const rpc::provider_id id = w.of.add_provider(told).value;
        const rpc::capability last = w.of.mint(id, 7, go_alone()).value;
        told.promise = w.of.open_promise(w.lane).value;
        const rpc::promise_id held = w.of.call(w.lane, last, "go").value;
        CHECK(w.of.release(last));
        CHECK(w.of.cancel(held));  // queued: it holds the capability until its turn
        rpc_world::arguments needs;
        needs.in.promise(told.promise.bits);
        const rpc::promise_id waits = w.of.call(w.lane, w.mint(), "echo", needs.with()).value;
        if (awaits) {
            CHECK(w.of.await(waits));
        } else {
            CHECK(w.of.dispatch() == 1);
        }
        CHECK(w.of.look(waits).value.state == rpc::promise_state::resolved);
    }
}

TEST_CASE("rpc kernel: a call that follows a promise ends as revoked, whichever came first") {
    for (const bool follows_first : {false, true}) {
        CAPTURE(follows_first);
        rpc_world::fixture w;
        const rpc::capability target = w.mint();
        const rpc::promise_id made = w.call(target, "late").value;
        w.of.dispatch();
        const rpc::promise_id other = w.of.open_promise(w.lane).value;
        if (follows_first) {
            CHECK(w.of.follow(w.handler.late, other));
            CHECK(w.of.revoke(target));
            CHECK(w.of.resolve(other, rpc::value()));
        } else {
            CHECK(w.of.resolve(other, rpc::value()));
            CHECK(w.of.revoke(target));
            CHECK(w.of.follow(w.handler.late, other));
        }
        CHECK(w.of.look(made).value.state == rpc::promise_state::rejected);
        CHECK(w.of.look(made).value.code == rpc::rpc_code::revoked);
    }
}

TEST_CASE("rpc kernel: a provider may fail without a word") {
    rpc_world::fixture w;
    fails_without_a_word fails;
    const rpc::capability target =
        w.of.mint(w.of.add_provider(fails).value, 1, go_alone()).value;
    const auto held = w.of.await(w.of.call(w.lane, target, "go").value);
    CHECK(held.value.state == rpc::promise_state::rejected);
    CHECK(held.value.code == rpc::rpc_code::provider);
    CHECK(held.value.text == "rpc/provider");
}

TEST_CASE("rpc kernel: a lane is cleared of all that is pending, and goes on with what it spent") {
    rpc_world::fixture w;
    rpc::budget few;
    few.calls_max = 4;
    const rpc::lane_id lane = w.of.open_reporting_lane(1, few).value;
    const rpc::capability target = w.mint();
    const auto add = [&] { return w.of.call(lane, target, "add", {{}, {}, 0, nullptr, nullptr, 0,
                                                                  true}); };
    CHECK(add());
    w.of.dispatch();
    const rpc::promise_id queued = add().value;
    CHECK(w.of.next_report(lane));
    CHECK(w.of.clear_lane(lane));
    CHECK_FALSE(w.of.next_report(lane));
    CHECK_FALSE(w.of.look(queued).value.state == rpc::promise_state::resolved);
    w.of.dispatch();
    CHECK(w.of.pending_of(lane) == 0);
    CHECK(w.of.promises().in_use == 0);
    CHECK(w.handler.asked.size() == 1);
    CHECK(add());
    CHECK(add());
    CHECK(add().why == rpc::rpc_code::budget_exceeded);
    CHECK(w.of.close_lane(lane));
    CHECK(w.of.clear_lane(lane).why == rpc::rpc_code::unknown_lane);
    CHECK(w.of.drop_lane(lane));
}
