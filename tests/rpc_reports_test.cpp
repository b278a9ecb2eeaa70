// What a connection wants of the kernel: to hear of its calls, to end them all, to be described.
#include "tests/rpc_world.hpp"

namespace {

namespace rpc = netio::rpc;
using rpc::promise_state;
using rpc::rpc_code;

struct reporting : rpc_world::fixture {
    rpc::lane_id own;
    rpc::capability target = mint();

    explicit reporting(std::uint32_t calls_max = 8)
        : own(of.open_reporting_lane(1234, {}, calls_max).value) {}
    rpc::promise_id ask(std::string_view method, std::uint64_t word) {
        rpc::call_arguments with;
        with.word = word;
        with.reports = true;
        const auto made = of.call(own, target, method, with);
        REQUIRE(made);
        return made.value;
    }
    std::uint64_t next_word() const {
        const auto next = of.next_report(own);
        return next ? next.value.word : 0;
    }
};

struct ends_its_lane {
    static constexpr rpc::method methods[] = {{"end"}};
    bool dropped = false;
    void invoke(rpc::invocation& call) noexcept {
        dropped = static_cast<bool>(call.owner().drop_lane(call.lane()));
        call.reply().value_int(1);
    }
};

}  // namespace

TEST_CASE("rpc reports: settled calls are told in the order in which they settled") {
    reporting w;
    w.ask("late", 1);
    const rpc::promise_id sum = w.ask("add", 2);
    CHECK(w.of.next_report(w.own).why == rpc_code::unresolvable_promise);
    CHECK_FALSE(w.of.take_report(w.own));
    w.of.dispatch();
    CHECK(w.next_word() == 2);
    CHECK(w.of.next_report(w.own).value.promise == sum);
    CHECK(w.of.forget(sum).why == rpc_code::invalid_argument);  // nobody took it yet
    CHECK(w.of.reject(w.handler.late, rpc_code::domain));
    CHECK(w.of.take_report(w.own));
    CHECK(w.next_word() == 1);
    CHECK(w.of.next_report(w.own).value.code == rpc_code::domain);
    CHECK(w.of.take_report(w.own));
    CHECK_FALSE(w.of.take_report(w.own));
    CHECK(w.of.forget(sum));
}

TEST_CASE("rpc reports: what nobody took is kept however many are settled since, and counts") {
    reporting w(2);
    w.ask("add", 1);
    const rpc::promise_id second = w.ask("fail", 2);
    w.of.dispatch();
    for (int more = 0; more < 200; ++more) {
        CHECK(w.call(w.target, "add"));
        w.of.dispatch();
    }
    CHECK(w.next_word() == 1);
    rpc::call_arguments with;
    with.reports = true;
    CHECK(w.of.call(w.own, w.target, "add", with).why == rpc_code::budget_exceeded);
    CHECK(w.of.take_report(w.own));
    CHECK(w.of.look(second).value.text == "out-of-paper");
    CHECK(w.of.call(w.own, w.target, "add", with));
}

TEST_CASE("rpc reports: each lane that has some is named once, until it has new ones") {
    reporting w;
    const rpc::lane_id other = w.of.open_reporting_lane(99).value;
    CHECK(w.of.next_reporting().why == rpc_code::unknown_lane);
    w.ask("add", 1);
    w.ask("add", 2);
    rpc::call_arguments with;
    with.reports = true;
    CHECK(w.of.call(other, w.target, "add", with));
    CHECK(w.of.call(other, w.target, "add"));  // which nobody asked to hear of
    CHECK(w.call(w.target, "add"));  // of a lane that reports nothing
    w.of.dispatch();
    const auto first = w.of.next_reporting();
    const auto second = w.of.next_reporting();
    REQUIRE(first);
    REQUIRE(second);
    CHECK(first.value.word == 1234);
    CHECK(first.value.lane == w.own);
    CHECK(second.value.word == 99);
    CHECK_FALSE(w.of.next_reporting());
    CHECK(w.of.take_report(w.own));
    w.ask("add", 3);
    w.of.dispatch();
    CHECK(w.of.next_reporting().value.word == 1234);
    CHECK(w.next_word() == 2);
}

TEST_CASE("rpc reports: a lane that is closed goes with its last report, asked for or not") {
    for (const bool asks : {false, true}) {
        reporting w;
        w.ask("add", 1);
        CHECK(w.of.close_lane(w.own));
        w.of.dispatch();
        CHECK(w.of.lanes().in_use == 2);
        if (asks) {
            CHECK(w.of.next_reporting());
        }
        CHECK(w.of.take_report(w.own));
        CHECK(w.of.lanes().in_use == 1);
        CHECK(w.of.next_report(w.own).why == rpc_code::unknown_lane);
        CHECK_FALSE(w.of.next_reporting());
    }
}

TEST_CASE("rpc reports: dropping a lane cancels what is pending, others' calls go on") {
    reporting w;
    const rpc::promise_id late = w.ask("late", 1);
    w.of.dispatch();
    const rpc::promise_id settled = w.ask("add", 2);
    w.of.dispatch();
    const rpc::promise_id queued = w.ask("add", 3);
    const auto follows = w.of.open_promise(w.own);
    CHECK(w.of.follow(follows.value, late));
    const auto needs = w.add(w.target, {1}, {late});
    const auto goes_on = w.add(w.target, {4});
    CHECK(w.of.drop_lane(w.own));
    CHECK(w.of.drop_lane(w.own));  // the queued one still holds it
    CHECK(w.of.look(late).value.state == promise_state::cancelled);  // another lane's call needs it
    w.of.dispatch();
    for (const rpc::promise_id each : {late, queued, settled, follows.value}) {
        CHECK(w.of.look(each).why == rpc_code::unknown_promise);
    }
    CHECK(w.code_of(needs.value) == rpc_code::promise_cancelled);
    CHECK(w.number_of(goes_on.value) == 4);
    CHECK(w.of.lanes().in_use == 1);
    CHECK(w.of.drop_lane(w.own).why == rpc_code::unknown_lane);
    CHECK_FALSE(w.of.next_reporting());
    CHECK(w.count(rpc::event_kind::lane_destroyed) == 1);
}

TEST_CASE("rpc reports: a lane dropped by its own call goes once that has ended") {
    rpc_world::fixture w;
    ends_its_lane handler;
    const rpc::provider_id provides = w.of.add_provider(handler).value;
    rpc::grant what;
    const std::string_view names[] = {"end"};
    what.methods = names;
    const rpc::capability target = w.of.mint(provides, 1, what).value;
    const rpc::lane_id own = w.of.open_reporting_lane(5).value;
    rpc::call_arguments with;
    with.reports = true;
    const rpc::promise_id ends = w.of.call(own, target, "end", with).value;
    const rpc::promise_id after = w.of.call(own, target, "end", with).value;
    w.of.dispatch();
    CHECK(handler.dropped);
    CHECK(w.of.look(ends).why == rpc_code::unknown_promise);
    CHECK(w.of.look(after).why == rpc_code::unknown_promise);
    CHECK(w.of.promises().in_use == 0);
    CHECK(w.of.lanes().in_use == 1);
    CHECK_FALSE(w.of.next_reporting());
}

TEST_CASE("rpc reports: what a descriptor says of a capability is what it grants, in wire order") {
    rpc_world::fixture w;
    rpc::grant what;
    const std::string_view names[] = {"two", "add", "put", "echo"};
    what.methods = names;
    what.spend.calls_max = 7;
    what.read_only = true;
    what.has_path = true;
    what.path = "a.b";
    const rpc::capability made = w.mint(what, 3);
    std::string_view room[rpc::provider_methods_max];
    const auto said = w.of.describe(made, room);
    REQUIRE(said);
    CHECK(said.value.id == w.of.id_of(made));
    REQUIRE(said.value.methods.size() == 4);
    CHECK(said.value.methods[0] == "add");
    CHECK(said.value.methods[1] == "echo");
    CHECK(said.value.methods[2] == "put");
    CHECK(said.value.methods[3] == "two");
    CHECK(said.value.spend.calls_max == 7);
    CHECK(said.value.read_only);
    CHECK_FALSE(said.value.redact);
    CHECK(said.value.path == "a.b");
    std::byte wire[256];
    rpc::writer out(wire);
    out.begin(rpc::envelope_kind::hello, 0).payload({}).descriptor(said.value);
    CHECK(out.finish() != 0);
    CHECK(w.of.revoke(made));
    CHECK(w.of.describe(made, room).why == rpc_code::revoked);
    CHECK(w.of.describe(rpc::capability{5}, room).why == rpc_code::unknown_capability);
}

TEST_CASE("rpc reports: a lane is dropped whose older calls follow its newer ones") {
    reporting w;
    w.ask("late", 1);
    w.of.dispatch();
    const rpc::promise_id older = w.handler.late;
    const rpc::promise_id newer = w.ask("late", 2);
    w.of.dispatch();
    CHECK(w.of.follow(older, newer));
    CHECK(w.of.drop_lane(w.own));
    CHECK(w.of.promises().in_use == 0);
    CHECK(w.of.edges().in_use == 0);
    CHECK(w.of.lanes().in_use == 1);
}

TEST_CASE("rpc reports: a call may follow its own argument, which nobody else needs any more") {
    rpc_world::fixture w;
    const rpc::capability target = w.mint();
    const rpc::promise_id argument = w.add(target, {7}).value;
    w.of.dispatch();
    rpc_world::arguments made;
    made.in.promise(argument.bits);
    const rpc::promise_id late = w.of.call(w.lane, target, "late", made.with()).value;
    w.of.dispatch();
    CHECK(w.of.let_go(argument));
    CHECK(w.of.look(argument));  // until the call that has it is settled
    CHECK(w.of.follow(late, argument));
    CHECK(w.number_of(late) == 7);
    CHECK(w.of.look(argument).why == rpc_code::unknown_promise);
    CHECK(w.of.promises().in_use == 1);
}

TEST_CASE("rpc reports: each owner is told of lanes of its own, whoever else has some") {
    reporting w;
    int first = 0;
    int second = 0;
    const rpc::lane_id mine = w.of.open_reporting_lane(7, {}, 8, &first).value;
    const rpc::lane_id other = w.of.open_reporting_lane(7, {}, 8, &second).value;
    rpc::call_arguments with;
    with.reports = true;
    for (const rpc::lane_id each : {other, w.own, mine}) {
        CHECK(w.of.call(each, w.target, "add", with));
    }
    w.of.dispatch();
    CHECK(w.of.peek_reporting(&first).value.lane == mine);
    CHECK(w.of.peek_reporting(&first).value.lane == mine);  // it stays where it is
    CHECK(w.of.next_reporting(&first).value.lane == mine);
    CHECK_FALSE(w.of.next_reporting(&first));
    CHECK(w.of.next_reporting().value.lane == w.own);
    CHECK(w.of.next_reporting(&second).value.lane == other);
    CHECK_FALSE(w.of.next_reporting(&second));
}
