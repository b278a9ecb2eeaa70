// What is rare in a capability kernel: the refusals and the turns of its functions that no other
// case comes by.
#include "tests/rpc_world.hpp"

#include <array>

namespace {

namespace rpc = netio::rpc;
using rpc::promise_state;
using rpc::rpc_code;
using rare_arguments = rpc_world::arguments;
using rare_fixture = rpc_world::fixture;

template <std::size_t Count>
struct rare_count_of_methods {
    static constexpr std::array<rpc::method, Count> made{};
    static constexpr std::span<const rpc::method> methods = made;
    static void invoke(rpc::invocation&) noexcept {}
};

/// Does what a provider may, and what it may not, while a call of it runs.
struct rare_provider {
    static constexpr rpc::method methods[] = {
        {"zeta"},     // reads its arguments back and forth
        {"alpha"},    // a result that is a capability
        {"mid"},      // calls the kernel
        {"beta"},     // a result deeper than a value may be
        {"calm"},     // looks at its payload
    };
    rpc::capability held{};
    rpc::promise_id own{};
    rpc::promise_id other{};
    std::vector<rpc_code> refused;
    std::vector<std::int64_t> read;
    std::size_t payload = 0;
    bool told = false;
    bool told_inside = false;

    void invoke(rpc::invocation& call) noexcept {
        switch (call.method_index()) {
        case 0:
            for (const std::uint32_t at : {1u, 0u, 2u, 3u, 1u}) {
                read.push_back(call.argument_at(at).is(rpc::argument_tag::promise)
                                   ? -1
                                   : call.argument_at(at).as_value().as_int(-2));
            }
            break;
        case 1:
            call.reply().capability(call.owner().id_of(held));
            break;
        case 2:
            refused.push_back(call.owner().cancel(own).why);
            refused.push_back(call.owner().await(other).why);
            CHECK(call.owner().dispatch() == 0);
            CHECK(call.owner().release(held));
            told_inside = told;
            break;
        case 3:
            for (int level = 0; level < 70; ++level) {
                call.reply().value_list();
            }
            break;
        default:
            payload = call.payload().size();
        }
    }
    void on_dropped(std::uint64_t object) noexcept { told = told || object == 77; }
};

struct rare_world : rare_fixture {
    rare_provider rare;
    rpc::provider_id rare_id = of.add_provider(rare).value;
    rpc::capability target = mint_rare(1);

    rpc::capability mint_rare(std::uint64_t object) {
        static constexpr std::string_view names[] = {"zeta", "alpha", "mid", "beta", "calm"};
        rpc::grant what;
        what.methods = names;
        return of.mint(rare_id, object, what).value;
    }
};

/// One class of pieces, so many of them, and no room for anything else.
rpc::rpc_limits rare_sizes(std::uint32_t pieces) {
    rpc::rpc_limits sizes = rpc_world::small_sizes();
    sizes.pieces[0] = {64, pieces};
    sizes.pieces[1] = {0, 0};
    return sizes;
}

}  // namespace

TEST_CASE("rpc kernel, rare: a provider has 1 to 64 methods") {
    rare_fixture w;
    rare_count_of_methods<64> most;
    rare_count_of_methods<65> more;
    CHECK(w.of.add_provider(most));
    CHECK(w.of.add_provider(more).why == rpc_code::invalid_argument);
    rare_count_of_methods<0> empty;
    CHECK(w.of.add_provider(empty).why == rpc_code::invalid_argument);
}

TEST_CASE("rpc kernel, rare: names of nothing, and grants that say nothing") {
    rare_fixture w;
    const rpc::lane_id no_lane{77};
    CHECK(w.of.set_latency(rpc::provider_id{9}, 1).why == rpc_code::invalid_argument);
    CHECK(w.of.narrow_lane(no_lane, {}).why == rpc_code::unknown_lane);
    CHECK(w.of.next_report(no_lane).why == rpc_code::unknown_lane);
    CHECK_FALSE(w.of.take_report(no_lane));
    CHECK(w.of.drop_lane(no_lane).why == rpc_code::unknown_lane);
    CHECK(w.of.await(rpc::promise_id{9}).why == rpc_code::unknown_promise);
    CHECK(w.of.let_go(rpc::promise_id{9}).why == rpc_code::unknown_promise);
    for (const std::uint32_t most : {0u, 4097u}) {
        CHECK(w.of.open_channel(rpc::channel_direction::both, most).why ==
              rpc_code::invalid_argument);
    }
    CHECK(w.of.mint(w.provides, 1, {}).why == rpc_code::invalid_argument);
    rpc::grant what = w.everything();
    what.has_path = true;
    what.path = "a..b";
    CHECK(w.of.mint(w.provides, 1, what).why == rpc_code::invalid_argument);
    static constexpr std::string_view unknown[] = {"add", "nobody"};
    what = {};
    what.methods = unknown;
    CHECK(w.of.mint(w.provides, 1, what).why == rpc_code::method_not_granted);
}

TEST_CASE("rpc kernel, rare: a lane that is narrowed has what is left of less") {
    rare_fixture w;
    const rpc::capability target = w.mint();
    rpc::budget spend;
    spend.calls_max = 4;
    const rpc::lane_id lane = w.of.open_lane(spend).value;
    CHECK(w.of.call(lane, target, "add"));
    spend.calls_max = 2;
    CHECK(w.of.narrow_lane(lane, spend));
    CHECK(w.of.call(lane, target, "add"));
    CHECK(w.of.call(lane, target, "add").why == rpc_code::budget_exceeded);
    CHECK(w.of.close_lane(lane));
    CHECK(w.of.narrow_lane(lane, spend).why == rpc_code::unknown_lane);
}

TEST_CASE("rpc kernel, rare: arguments are read in any order, and none is null") {
    rare_world w;
    const rpc::promise_id seven = w.add(w.mint(), {7}).value;
    w.of.dispatch();
    rare_arguments made;
    made.in.value_int(10).promise(seven.bits).value_int(12);
    CHECK(w.of.call(w.lane, w.target, "zeta", made.with()));
    rare_arguments none;
    const std::byte payload[3] = {};
    CHECK(w.of.call(w.lane, w.target, "calm", none.with(payload)));
    w.of.dispatch();
    CHECK(w.rare.read == std::vector<std::int64_t>{-1, 10, 12, -2, -1});
    CHECK(w.rare.payload == 3);
}

TEST_CASE("rpc kernel, rare: a result that is a capability or too deep is none") {
    rare_world w;
    w.rare.held = w.target;
    const auto odd = w.of.call(w.lane, w.target, "alpha");
    const auto deep = w.of.call(w.lane, w.target, "beta");
    w.of.dispatch();
    CHECK(w.of.look(odd.value).value.text == "result is not one value");
    CHECK(w.of.look(deep.value).value.state == promise_state::rejected);
}

TEST_CASE("rpc kernel, rare: a call that runs is not cancelled, nobody waits or hears inside it") {
    rare_world w;
    w.rare.held = w.mint_rare(77);
    w.rare.own = w.of.call(w.lane, w.target, "mid").value;
    w.rare.other = w.of.call(w.lane, w.target, "zeta").value;
    w.of.dispatch();
    CHECK(w.rare.refused ==
          std::vector<rpc_code>{rpc_code::invalid_argument, rpc_code::invalid_argument});
    CHECK_FALSE(w.rare.told_inside);
    CHECK(w.rare.told);
}

TEST_CASE("rpc kernel, rare: a late call that follows a promise ends when it is revoked") {
    rare_fixture w;
    const rpc::capability target = w.mint();
    const rpc::promise_id call = w.call(target, "late").value;
    w.of.dispatch();
    const rpc::promise_id open = w.of.open_promise(w.lane).value;
    CHECK(w.of.follow(call, open));
    CHECK(w.of.revoke(target));
    w.of.dispatch();
    CHECK(w.code_of(call) == rpc_code::revoked);
    CHECK(w.of.resolve(open, rpc::value()));
    CHECK(w.code_of(call) == rpc_code::revoked);
}

TEST_CASE("rpc kernel, rare: a promise follows no other once there is no edge for it") {
    rpc::rpc_limits sizes = rpc_world::small_sizes();
    sizes.edges_max = 4;
    rare_fixture w(sizes);
    const rpc::promise_id needed = w.of.open_promise(w.lane).value;
    std::vector<rpc::promise_id> follows;
    for (int more = 0; more < 5; ++more) {
        follows.push_back(w.of.open_promise(w.lane).value);
        CHECK(static_cast<bool>(w.of.follow(follows.back(), needed)) == (more < 4));
    }
    CHECK(w.of.follow(follows.back(), needed).why == rpc_code::budget_exceeded);
    CHECK(w.of.resolve(needed, rpc::value()));
    CHECK(w.of.look(follows.front()).value.state == promise_state::resolved);
    CHECK(w.of.look(follows.back()).value.state == promise_state::pending);
}

TEST_CASE("rpc kernel, rare: without a piece for its path nothing is minted, and none is lost") {
    rare_fixture w(rare_sizes(3));
    rpc::grant what = w.everything();
    what.has_path = true;
    what.path = "a.b";
    std::vector<rpc::capability> made;
    for (;;) {
        const auto before = w.tables();
        const auto one = w.of.mint(w.provides, 1, what);
        if (!one) {
            CHECK(one.why == rpc_code::budget_exceeded);
            CHECK(w.tables() == before);
            break;
        }
        made.push_back(one.value);
    }
    CHECK(made.size() == 3);
    CHECK(w.of.release(made.back()));
    CHECK(w.of.mint(w.provides, 1, what));
}

TEST_CASE("rpc kernel, rare: messages are as many as the table has, whatever a channel allows") {
    rare_fixture w;
    const rpc::channel_id to = w.of.open_channel(rpc::channel_direction::both, 100).value;
    rare_arguments made;
    made.in.value_int(1).capability(rpc::capability_id{});  // one that nobody knows
    const rpc::call_arguments with = made.with();
    for (int more = 0; more < 8; ++more) {
        CHECK(w.of.send(to, rpc::channel_end::ours, with.arguments));
    }
    CHECK(w.of.send(to, rpc::channel_end::ours, with.arguments).why == rpc_code::budget_exceeded);
    CHECK(w.count(rpc::event_kind::capability_transferred) == 0);
    CHECK(w.of.receive(to, rpc::channel_end::theirs));
}

TEST_CASE("rpc kernel, rare: what a call was given out of a result is not overwritten for it") {
    for (const bool lent : {true, false}) {
        rare_fixture w(rare_sizes(2));
        const rpc::capability target = w.mint();
        const rpc::promise_id seven = w.add(target, {7}).value;
        w.of.dispatch();
        const rpc::settled held = w.of.look(seven).value;
        REQUIRE(held.state == promise_state::resolved);
        CHECK(w.add(target, {1}));  // the other piece
        rpc::call_arguments with;
        std::byte copy[16];
        std::memcpy(copy, held.argument.data(), held.argument.size());
        with.arguments = rpc::argument_list(lent ? held.argument.data() : copy, 1);
        const auto made = w.of.call(w.lane, target, "add", with);
        CHECK(static_cast<bool>(made) == !lent);
        CHECK(static_cast<bool>(w.of.look(seven)) == lent);
    }
}

TEST_CASE("rpc kernel, rare: a call needs what would have to make room for it") {
    rpc::rpc_limits sizes = rpc_world::small_sizes();
    sizes.promises_max = 2;
    sizes.settled_max = 1;
    rare_fixture w(sizes);
    const rpc::capability target = w.mint();
    const rpc::promise_id seven = w.add(target, {7}).value;
    w.of.dispatch();
    const rpc::promise_id waits = w.call(target, "late").value;
    const auto before = w.tables();
    CHECK(w.add(target, {1}, {seven}).why == rpc_code::budget_exceeded);
    CHECK(w.tables() == before);
    CHECK(w.add(target, {1}));  // this one needs it not
    CHECK(w.of.look(seven).why == rpc_code::unknown_promise);
    static_cast<void>(waits);
}

TEST_CASE("rpc kernel, rare: a descriptor's methods are sorted, whatever order a provider has") {
    rare_world w;
    std::string_view room[rpc::provider_methods_max];
    const auto said = w.of.describe(w.target, room);
    REQUIRE(said);
    const std::vector<std::string_view> names(said.value.methods.begin(),
                                              said.value.methods.end());
    CHECK(names == std::vector<std::string_view>{"alpha", "beta", "calm", "mid", "zeta"});
    CHECK_FALSE(said.value.has_path);
    CHECK(said.value.path.empty());
    rpc::grant quiet;
    static constexpr std::string_view one[] = {"mid"};
    quiet.methods = one;
    quiet.redact = true;
    const rpc::capability narrow = w.of.attenuate(w.target, quiet).value;
    const auto narrowed = w.of.describe(narrow, room);
    REQUIRE(narrowed);
    CHECK(narrowed.value.redact);
    CHECK_FALSE(narrowed.value.read_only);
    CHECK(narrowed.value.methods.size() == 1);
}

TEST_CASE("rpc kernel, rare: of lanes with reports one that ends leaves the others their turn") {
    for (int round = 0; round < 6; ++round) {
        const int ends = round / 2;
        const bool is_replaced_at_once = round % 2 != 0;
        rare_fixture w;  // of four lanes, one its own
        const rpc::capability target = w.mint();
        rpc::call_arguments with;
        with.reports = true;
        rpc::lane_id lanes[3];
        for (std::uint64_t at = 0; at < 3; ++at) {
            lanes[at] = w.of.open_reporting_lane(at).value;
            CHECK(w.of.call(lanes[at], target, "add", with));
        }
        w.of.dispatch();
        CHECK(w.of.drop_lane(lanes[ends]));
        rpc::lane_id again{};
        if (is_replaced_at_once) {
            again = w.of.open_reporting_lane(9).value;
        }
        std::vector<std::uint64_t> words;
        while (const auto next = w.of.next_reporting()) {
            words.push_back(next.value.word);
        }
        std::vector<std::uint64_t> wanted{0, 1, 2};
        wanted.erase(wanted.begin() + ends);
        CHECK(words == wanted);
        // The next in its place begins as if nobody had been there.
        if (!is_replaced_at_once) {
            again = w.of.open_reporting_lane(9).value;
        }
        CHECK(w.of.next_report(again).why == rpc_code::unresolvable_promise);
        CHECK(w.of.call(again, target, "add", with));
        w.of.dispatch();
        CHECK(w.of.next_reporting().value.word == 9);
        CHECK_FALSE(w.of.next_reporting());
    }
}

TEST_CASE("rpc kernel, rare: a lane dropped in any order of its calls leaves no other's linked") {
    // Calls end at the front, in the middle and at the back of a lane's list, then all the rest.
    for (int first = 0; first < 4; ++first) {
        for (int second = 0; second < 4; ++second) {
            rare_fixture w;
            const rpc::lane_id own = w.of.open_reporting_lane(1).value;
            rpc::promise_id open[4];
            for (rpc::promise_id& each : open) {
                each = w.of.open_promise(own).value;
            }
            const rpc::promise_id others = w.of.open_promise(w.lane).value;
            CHECK(w.of.resolve(open[first], rpc::value()));
            if (second != first) {
                CHECK(w.of.resolve(open[second], rpc::value()));
            }
            CHECK(w.of.pending_of(own) == (second != first ? 2 : 3));
            CHECK(w.of.drop_lane(own));
            CHECK(w.of.lanes().in_use == 1);
            CHECK(w.of.pending_of(w.lane) == 1);
            for (int at = 0; at < 4; ++at) {
                const bool was_settled = at == first || at == second;
                CHECK(static_cast<bool>(w.of.look(open[at])) == was_settled);
            }
            CHECK(w.of.resolve(others, rpc::value()));
        }
    }
}

TEST_CASE("rpc kernel, rare: a dropped lane tells at once whoever followed or hears of it") {
    rare_fixture w;
    const rpc::capability target = w.mint(5);
    const rpc::lane_id own = w.of.open_reporting_lane(1).value;
    const rpc::promise_id asked = w.of.call(own, target, "late").value;
    w.of.dispatch();
    const rpc::promise_id follows = w.of.open_promise(w.lane).value;
    CHECK(w.of.follow(follows, asked));
    CHECK(w.of.release(target));
    CHECK(w.handler.dropped.empty());  // its call is still to be answered
    CHECK(w.of.drop_lane(own));
    CHECK(w.of.look(follows).value.code == rpc_code::promise_cancelled);
    CHECK(w.handler.dropped == std::vector<std::uint64_t>{5});
}

TEST_CASE("rpc kernel, rare: a lane whose reports were taken before it was named is not named") {
    rare_fixture w;
    const rpc::capability target = w.mint();
    const rpc::lane_id own = w.of.open_reporting_lane(1).value;
    rpc::call_arguments with;
    with.reports = true;
    CHECK(w.of.call(own, target, "add", with));
    w.of.dispatch();
    CHECK(w.of.take_report(own));
    CHECK_FALSE(w.of.next_reporting());
    CHECK(w.of.call(own, target, "add", with));
    w.of.dispatch();
    CHECK(w.of.next_reporting().value.lane == own);
}

TEST_CASE("rpc kernel, rare: a settled promise that is let go is gone, one that is needed is not") {
    rare_fixture w;
    const rpc::capability target = w.mint();
    const rpc::promise_id seven = w.add(target, {7}).value;
    const rpc::promise_id late = w.call(target, "late").value;
    w.of.dispatch();
    const rpc::promise_id needs = w.add(target, {1}, {seven, late}).value;
    CHECK(w.of.let_go(seven));
    CHECK(w.of.look(seven));
    CHECK(w.of.reject(late, rpc_code::domain));
    w.of.dispatch();
    CHECK(w.of.look(seven).why == rpc_code::unknown_promise);
    CHECK(w.of.let_go(needs));
    CHECK(w.of.look(needs).why == rpc_code::unknown_promise);
    CHECK(w.of.let_go(needs).why == rpc_code::unknown_promise);
}

TEST_CASE("rpc kernel, rare: every kind of value has its weight, and one value more is too much") {
    rare_fixture w;
    rpc::grant what = w.everything();
    what.spend.nodes_max = 5;
    what.spend.depth_max = 3;
    const rpc::capability target = w.mint(what);
    for (const bool more : {false, true}) {
        rare_arguments made;
        made.in.value_secret().value_bool(true).value_real(1.5).value_null();
        if (more) {
            made.in.value_list().value_int(1).end();
        } else {
            made.in.value_list().end();
        }
        const auto got = w.of.call(w.lane, target, "put", made.with());
        CHECK(static_cast<bool>(got) == !more);
    }
}

TEST_CASE("rpc kernel, rare: pieces are at most 64 MiB and 2^24, and there is one class at least") {
    const auto valid = [](auto&& change) {
        rpc::rpc_limits sizes = rpc_world::small_sizes();
        change(sizes);
        return rpc::wrong_field(sizes) == nullptr;
    };
    CHECK(valid([](auto& of) { of.pieces[0].count = 1u << 24; }));
    CHECK_FALSE(valid([](auto& of) { of.pieces[0].count = (1u << 24) + 1; }));
    CHECK_FALSE(valid([](auto& of) { of.pieces[2].piece_bytes = (64u << 20) + 64; }));
    CHECK_FALSE(valid([](auto& of) {
        for (rpc::piece_class& one : of.pieces) {
            one = {0, 0};
        }
    }));
    CHECK(valid([](auto& of) {
        std::uint32_t size = 0;
        for (rpc::piece_class& one : of.pieces) {
            one = {size += 64, 4};
        }
    }));
}
