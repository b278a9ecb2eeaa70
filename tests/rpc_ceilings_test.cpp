// The largest tables there may be, each filled to its last place and one beyond.
#include "tests/rpc_world.hpp"

namespace {

namespace rpc = netio::rpc;
using rpc::rpc_code;

rpc::rpc_limits rpc_largest_sizes() {
    rpc::rpc_limits sizes = rpc_world::small_sizes();
    sizes.lanes_max = 4096;
    sizes.channels_max = 4096;
    sizes.messages_max = 5000;
    sizes.promises_max = 100'000;
    sizes.pieces[0] = {64, 12'000};    // messages have half of them
    return sizes;
}

}  // namespace

TEST_CASE("rpc kernel: the 4,097th lane, channel and queued message, the 100,001st promise") {
    rpc_world::fixture world(rpc_largest_sizes());
    const rpc::capability target = world.mint();
    for (int at = 1; at < 4096; ++at) {  // the fixture has one
        REQUIRE(world.of.open_lane());
    }
    rpc::channel_id channel{};
    for (int at = 0; at < 4096; ++at) {
        const auto made = world.of.open_channel(rpc::channel_direction::both);
        REQUIRE(made);
        channel = made.value;
    }
    for (int at = 0; at < 4096; ++at) {
        rpc_world::arguments made;
        made.in.value_int(at);
        REQUIRE(world.of.send(channel, rpc::channel_end::ours, made.with().arguments));
    }
    const rpc::lane_id wide = [&] {
        REQUIRE(world.of.close_lane(world.lane));
        return world.of.open_lane({}, 200'000).value;
    }();
    for (int at = 0; at < 100'000; ++at) {
        REQUIRE(world.of.open_promise(wide));
    }
    const std::vector<std::uint64_t> before = world.tables();
    CHECK(world.of.open_lane().why == rpc_code::budget_exceeded);
    CHECK(world.of.open_channel(rpc::channel_direction::send).why == rpc_code::budget_exceeded);
    rpc_world::arguments one_more;
    CHECK(world.of.send(channel, rpc::channel_end::ours, one_more.with().arguments).why ==
          rpc_code::budget_exceeded);
    CHECK(world.of.open_promise(wide).why == rpc_code::budget_exceeded);
    CHECK(world.of.call(wide, target, "add").why == rpc_code::budget_exceeded);
    CHECK(world.tables() == before);
    CHECK(world.of.receive(channel, rpc::channel_end::theirs).value.arguments.size() == 1);
    CHECK(world.of.send(channel, rpc::channel_end::ours, one_more.with().arguments));
}
