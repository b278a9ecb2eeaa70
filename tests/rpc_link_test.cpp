// What the two ends of a connection do with a link that is full, over, small, or counts: each claim
// is given back, nothing is lost, and whoever cannot be answered is told so.
#include "tests/rpc_rigs.hpp"

namespace {

namespace rpc = netio::rpc;
using netio::error;
using rpc::envelope_kind;
using rpc::rpc_code;

/// A ring each way that keeps count of claims, and does what a case says.
struct counted_link {
    rpc::ring_link of;
    std::uint32_t most = 0xFFFFFFFF;    // bytes of the largest envelope
    bool full = false;
    error over = error::none;
    bool claimed = false;
    int claims = 0;
    int abandoned = 0;

    std::uint32_t record_max() noexcept { return std::min(most, of.record_max()); }
    netio::ring_claim claim(std::uint32_t bytes_count) noexcept {
        CHECK_FALSE(claimed);
        ++claims;
        if (full || over != error::none || bytes_count > record_max()) {
            return {};
        }
        const netio::ring_claim out = of.claim(bytes_count);
        claimed = static_cast<bool>(out);
        return out;
    }
    void commit(const netio::ring_claim& what, std::uint32_t bytes_count) noexcept {
        CHECK(claimed);
        CHECK(bytes_count != 0);
        claimed = false;
        of.commit(what, bytes_count);
    }
    void abandon(const netio::ring_claim&) noexcept {
        CHECK(claimed);
        claimed = false;
        ++abandoned;
    }
    static void flush() noexcept {}
    netio::bytes peek() noexcept { return of.peek(); }
    void release() noexcept { of.release(); }
    error why() const noexcept { return over; }
};

/// Both ends, each with its link.
struct link_pair {
    static constexpr std::uint32_t ring_bytes = 1 << 14;
    rpc_rigs::ring_memory there{ring_bytes}, back{ring_bytes};
    netio::spsc_ring to, from;
    counted_link client{{to, from}}, server{{from, to}};
    rpc_world::fixture world;
    std::vector<std::byte> callee_memory;
    std::vector<std::byte> caller_memory = std::vector<std::byte>(rpc::caller_bytes_needed(8));
    rpc::callee answers;
    rpc::caller session{caller_memory, {8, {}}};

    explicit link_pair(const rpc::callee_options& how = {},
                       const rpc::rpc_limits& sizes = rpc_world::small_sizes())
        : world(sizes), callee_memory(rpc::callee_bytes_needed(how.calls_max)),
          answers(world.of, callee_memory, how) {
        to.attach(there.data(), ring_bytes);
        from.attach(back.data(), ring_bytes);
    }
    ~link_pair() {
        answers.close();
        CHECK_FALSE(client.claimed);
        CHECK_FALSE(server.claimed);
    }
    void open() { REQUIRE(answers.open(world.mint())); }
    void open(const rpc::grant& what) { REQUIRE(answers.open(world.mint(what))); }
    void serve() {
        answers.take(server);
        world.of.dispatch();
        answers.answer_settled(server);
    }
    std::uint64_t call(std::string_view method) {
        const auto made = session.call(client, method);
        REQUIRE(made);
        return made.value;
    }
    /// What the client hears, as texts: "7 code", "7 ok".
    std::vector<std::string> hear() {
        std::vector<std::string> out;
        session.take(client, [&](const rpc::reply& got) {
            out.push_back(std::to_string(got.request_id) + " " +
                          (got.resolved ? "ok" : std::string(got.text)));
        });
        return out;
    }
    /// Straight into the ring that `session` or `answers` reads.
    template <class Fill>
    void put(netio::spsc_ring& into, envelope_kind kind, std::uint64_t id, std::string_view method,
             Fill&& fill) {
        const netio::ring_claim room = into.claim(512);
        REQUIRE(room);
        rpc::writer out(room.room);
        out.begin(kind, id, method);
        fill(out);
        const std::size_t size = out.finish();
        REQUIRE(size != 0);
        into.commit(room, static_cast<std::uint32_t>(size));
    }
    void put_hello(netio::spsc_ring& into, std::uint64_t id) {
        put(into, envelope_kind::hello, id, "", [](rpc::writer&) {});
    }
};

/// Rejects with a text of 255 bytes, letters of two; its second method no descriptor can say.
struct says_much {
    static constexpr rpc::method methods[] = {{"much"}, {"\xFF"}};
    static void invoke(rpc::invocation& call) noexcept {
        std::string text;
        while (text.size() < 255) {
            text += "\xC3\xA4";
        }
        call.reject(text);
    }
};

using texts = std::vector<std::string>;

/// Answers later, by a call of its own in the lane of whoever asks.
struct link_calls_on {
    static constexpr rpc::method methods[] = {{"outer"}};
    rpc::capability inner{};
    std::vector<rpc::promise_id> late, made;

    void invoke(rpc::invocation& call) noexcept {
        late.push_back(call.later());
        const auto asked = call.owner().call(call.lane(), inner, "add");
        CHECK(asked);
        made.push_back(asked.value);
    }
};

struct link_opens_again {
    static constexpr rpc::method methods[] = {{"x"}};
    rpc::callee* answers = nullptr;
    rpc::capability root{};
    int heard = 0;
    bool opened = false;

    void invoke(rpc::invocation& call) noexcept { call.later(); }
    void on_dropped(std::uint64_t) noexcept {
        ++heard;
        answers->close();
        opened = static_cast<bool>(answers->open(root));
    }
};

}  // namespace

TEST_CASE("rpc link: each claim is committed or given back, by both ends") {
    link_pair c;
    CHECK_FALSE(c.answers.is_open());
    c.open();
    CHECK(c.answers.is_open());
    CHECK(c.world.of.pending_of(c.answers.lane()) == 0);
    c.server.full = true;
    CHECK(c.answers.take(c.server) == 0);
    CHECK(c.server.claims == 0);  // nothing came: no room is asked for, none is promised
    c.server.full = false;
    rpc::call_options how;
    how.bytes_max = 40;
    const auto over = c.session.call(c.client, "echo", how, [](rpc::writer& in) {
        in.value_text(std::string(64, 'x'));
    });
    CHECK(over.why == error::too_long);
    CHECK(c.client.abandoned == 1);
    c.call("no-such-method");
    c.call("add");
    c.serve();
    CHECK(c.server.abandoned == 1);  // what the second would have been refused with
    CHECK(c.hear() == texts{"1 rpc/method-not-granted", "2 ok"});
}

TEST_CASE("rpc link: of a batch no more is taken than is asked for, or can be refused") {
    link_pair c;
    c.open();
    c.call("add");
    c.call("add");
    c.call("add");
    CHECK(c.answers.take(c.server, 2) == 2);
    CHECK(c.answers.requests() == 2);
    c.server.full = true;
    CHECK(c.answers.take(c.server) == 0);
    c.world.of.dispatch();
    CHECK(c.answers.answer_settled(c.server) == 0);
    c.server.full = false;
    CHECK(c.answers.answer_settled(c.server) == 2);
    CHECK(c.answers.under_way() == 0);
    c.answers.close();
    CHECK(c.answers.take(c.server) == 0);
    CHECK(c.answers.answer_settled(c.server) == 0);
    CHECK(c.hear() == texts{"1 ok", "2 ok"});
}

TEST_CASE("rpc link: a caller whose link is full, over or too small is told which") {
    link_pair c;
    c.open();
    c.client.full = true;
    CHECK(c.session.begin(c.client, 1) == error::full);
    CHECK(c.session.call(c.client, "add").why == error::full);
    c.client.full = false;
    c.client.over = error::connection_reset;
    CHECK(c.session.begin(c.client, 1) == error::connection_reset);
    CHECK(c.session.call(c.client, "add").why == error::connection_reset);
    c.client.over = error::none;
    c.client.most = 1023;  // one less than is claimed for a call
    CHECK(c.session.call(c.client, "add").why == error::too_long);
    c.client.most = 1024;
    c.call("add");
    CHECK(c.session.begin(c.client, 1) == error::already_open);
    c.serve();
    CHECK(c.hear() == texts{"1 ok"});
}

TEST_CASE("rpc link: a caller without memory or with a limit of 0 calls nobody") {
    link_pair c;
    for (const std::size_t size : {std::size_t{0}, c.caller_memory.size() / 2}) {
        rpc::caller none(std::span(c.caller_memory).first(size), {8, {}});
        CHECK(none.call(c.client, "add").why == error::limits_invalid);
        CHECK_FALSE(none.forget(0));
        CHECK_FALSE(none.forget(1));
        const auto hears = [](const rpc::reply&) { FAIL("nobody was called"); };
        CHECK(none.end(hears) == 0);
    }
    rpc::caller_options zero;
    zero.calls_max = 8;
    zero.wire.method_max = 0;
    rpc::caller none(c.caller_memory, zero);
    CHECK(none.call(c.client, "add").why == error::limits_invalid);
    CHECK_FALSE(c.session.forget(0));
    rpc::callee_options bad;
    bad.wire.method_max = 0;
    rpc::callee nobody(c.world.of, c.callee_memory, bad);
    CHECK(nobody.open(c.world.mint()).why == rpc_code::invalid_argument);
    // An answer has no call that it could be to.
    c.put(c.from, envelope_kind::error, 1, "rpc/wire", [](rpc::writer&) {});
    rpc::caller empty({}, {8, {}});
    CHECK(empty.take(c.client, [](const rpc::reply&) {}) == 0);
    CHECK(empty.why() == error::rpc_wire);
}

TEST_CASE("rpc link: memory is whole calls behind its alignment, or it is too small") {
    rpc_world::fixture world;
    const rpc::capability root = world.mint();
    alignas(8) std::byte memory[8 * 16 + 8] = {};
    CHECK(rpc::callee_bytes_needed(8) == sizeof(memory));
    rpc::callee_options how;
    how.calls_max = 8;
    for (std::size_t skip = 0; skip < 8; ++skip) {
        // So many bytes behind `skip`, the next place for a word and eight calls behind that.
        const std::size_t enough = (8 - skip) % 8 + std::size_t{8} * 16;
        rpc::callee small(world.of, std::span(memory).subspan(skip, enough - 1), how);
        CHECK(small.open(root).why == rpc_code::invalid_argument);
        rpc::callee good(world.of, std::span(memory).subspan(skip, enough), how);
        CHECK(good.open(root));
        good.close();
    }
}

TEST_CASE("rpc link: what no envelope can say is said shorter, and nothing waits for it") {
    link_pair c;
    says_much talks;
    const rpc::provider_id id = c.world.of.add_provider(talks).value;
    rpc::grant what;
    static constexpr std::string_view names[] = {"much"};
    what.methods = names;
    REQUIRE(c.answers.open(c.world.of.mint(id, 1, what).value));
    c.call("much");
    c.serve();
    const texts cut = c.hear();  // 64 bytes, what a caller takes by default
    REQUIRE(cut.size() == 1);
    CHECK(cut.front().size() == 2 + 64);
    CHECK(c.session.why() == error::none);
    c.call("much");
    c.answers.take(c.server);
    c.world.of.dispatch();
    c.server.most = 32 + 63;
    c.answers.answer_settled(c.server);
    CHECK(c.hear() == texts{"2 rpc/transport"});
    CHECK(c.answers.under_way() == 0);
}

TEST_CASE("rpc link: a hello waits for room, and one that never has any ends the session") {
    link_pair c;
    rpc::grant what = c.world.everything();
    what.has_path = true;
    what.path = "some.where";
    c.open(what);
    REQUIRE(c.session.begin(c.client, 3) == error::none);
    c.call("add");
    c.server.most = 256;  // so much is enough
    c.answers.take(c.server);
    c.server.full = true;
    CHECK(c.answers.answer_settled(c.server) == 0);
    CHECK(c.answers.why() == error::none);
    c.server.full = false;
    CHECK(c.answers.answer_settled(c.server) == 0);
    c.hear();
    CHECK(c.session.knows_root());
    c.serve();
    CHECK(c.hear() == texts{"1 ok"});

    c.answers.close();
    c.open(what);
    CHECK(c.answers.why() == error::none);
    REQUIRE(c.session.begin(c.client, 4) == error::none);
    CHECK_FALSE(c.session.knows_root());
    c.call("add");
    c.server.most = 64;
    c.serve();
    CHECK(c.answers.why() == error::rpc_transport);
    c.serve();
    CHECK(c.hear().empty());
    CHECK(c.session.outstanding() == 1);
}

TEST_CASE("rpc link: a hello takes the bytes that it was given room for, and no more") {
    for (const bool has_path : {false, true}) {
        rpc::grant what;
        static constexpr std::string_view names[] = {"add", "echo"};
        what.methods = names;
        what.has_path = has_path;
        what.path = "some.where";
        const std::uint32_t size = 32 + 16 + 4 + 4 + 3 + 4 + 4 + 56 + 1 + (has_path ? 4 + 10 : 0);
        for (const std::uint32_t room : {size - 1, size, size + 4}) {
            link_pair c;
            c.open(what);
            REQUIRE(c.session.begin(c.client, 3) == error::none);
            c.server.most = room;
            c.serve();
            c.hear();
            // Without a path its four bytes of length are claimed as well.
            CHECK(c.session.knows_root() == (room >= size + (has_path ? 0 : 4)));
        }
    }
}

TEST_CASE("rpc link: a root that is gone is a hello without one, one that can't be said is none") {
    link_pair c;
    const rpc::capability root = c.world.mint();
    REQUIRE(c.answers.open(root));
    CHECK(c.world.of.revoke(root));
    REQUIRE(c.session.begin(c.client, 3) == error::none);
    c.serve();
    c.hear();
    CHECK_FALSE(c.session.knows_root());
    c.call("add");
    c.serve();
    CHECK(c.hear() == texts{"1 rpc/revoked"});

    link_pair odd;
    says_much talks;
    const rpc::provider_id id = odd.world.of.add_provider(talks).value;
    rpc::grant what;
    static constexpr std::string_view names[] = {"\xFF"};
    what.methods = names;
    REQUIRE(odd.answers.open(odd.world.of.mint(id, 1, what).value));
    REQUIRE(odd.session.begin(odd.client, 3) == error::none);
    odd.serve();
    CHECK(odd.answers.why() == error::rpc_capability_table);
    CHECK(odd.server.abandoned == 2);
}

TEST_CASE("rpc link: a session begins anew in the lane of the one before, the only one") {
    rpc::callee_options how;
    how.resumes = true;
    rpc::rpc_limits sizes = rpc_world::small_sizes();
    sizes.lanes_max = 2;  // the fixture's own is one
    link_pair c(how, sizes);
    c.open();
    c.call("add");
    c.answers.take(c.server);  // waits for its turn
    c.put_hello(c.to, 9);
    CHECK(c.answers.take(c.server) == 1);
    CHECK(c.answers.answer_settled(c.server) == 0);
    CHECK(rpc::decode(c.from.peek()).value.kind == envelope_kind::hello);
    CHECK(rpc::decode(c.from.peek()).value.request_id == 9);
    c.from.release();
    c.world.of.dispatch();
    CHECK(c.answers.answer_settled(c.server) == 0);  // it was the dead one's
    CHECK(c.world.of.pending_of(c.answers.lane()) == 0);
    c.put(c.to, envelope_kind::request, 1, "add", [](rpc::writer&) {});
    c.serve();
    CHECK(rpc::decode(c.from.peek()).value.kind == envelope_kind::response);
    CHECK(c.answers.why() == error::none);
}

TEST_CASE("rpc link: what a connection may spend is for all of its sessions") {
    rpc::callee_options how;
    how.resumes = true;
    how.spend.calls_max = 3;
    link_pair c(how);
    c.open();
    texts said;
    for (std::uint64_t session = 1; session <= 3; ++session) {
        c.put_hello(c.to, session);
        c.serve();
        REQUIRE_FALSE(c.from.peek().empty());
        c.from.release();
        for (const std::uint64_t id : {1, 2}) {
            c.put(c.to, envelope_kind::request, id, "add", [](rpc::writer&) {});
            c.serve();
            REQUIRE_FALSE(c.from.peek().empty());
            const auto got = rpc::decode(c.from.peek());
            said.emplace_back(got.value.method);
            c.from.release();
        }
    }
    const std::string over = "rpc/budget-exceeded";
    CHECK(said == texts{"", "", "", over, over, over});
}

TEST_CASE("rpc link: one that never stops sending is let go of after so many, by both ends") {
    rpc::callee_options how;
    how.calls_max = 4;
    link_pair c(how);
    c.open();
    for (std::uint64_t id = 1; id <= 9; ++id) {  // refused at once, so none is ever under way
        c.put(c.to, envelope_kind::request, id, "no-such-method", [](rpc::writer&) {});
    }
    CHECK(c.answers.take(c.server) == 4);
    CHECK(c.answers.take(c.server) == 4);
    CHECK(c.answers.take(c.server) == 1);
    CHECK(c.answers.take(c.server) == 0);
    while (!c.from.peek().empty()) {
        c.from.release();
    }
    for (std::uint64_t number = 1; number <= 11; ++number) {
        c.put_hello(c.from, number);
    }
    CHECK(c.hear().empty());
    CHECK(rpc::decode(c.from.peek()).value.request_id == 10);  // 8 calls at once, and one more
    CHECK(c.hear().empty());
    CHECK(c.from.peek().empty());
}

TEST_CASE("rpc link: what was settled before a broken envelope is answered before it") {
    for (const bool is_broken : {true, false}) {
        CAPTURE(is_broken);
        link_pair c;
        c.open();
        c.call("add");
        c.call("add");
        c.answers.take(c.server);
        c.world.of.dispatch();
        if (is_broken) {
            c.put(c.to, envelope_kind::error, 7, "junk", [](rpc::writer&) {});
        } else {
            c.put(c.to, envelope_kind::request, 1, "add", [](rpc::writer&) {});  // an old number
        }
        CHECK(c.answers.take(c.server) == 0);  // room for the error there is
        CHECK(c.answers.why() == error::none);
        CHECK(c.answers.answer_settled(c.server) == 2);
        CHECK(c.answers.take(c.server) == 1);
        CHECK(c.answers.why() == error::rpc_wire);
        CHECK(c.hear() == texts{"1 ok", "2 ok"});
        CHECK(c.session.why() == error::rpc_wire);
    }
}

TEST_CASE("rpc link: a successor is let in where all calls of the dead one are still under way") {
    rpc::callee_options how;
    how.calls_max = 2;
    how.resumes = true;
    link_pair c(how);
    c.open();
    c.call("late");
    c.call("late");
    c.serve();
    CHECK_FALSE(c.answers.can_take());
    c.put_hello(c.to, 9);
    c.serve();
    CHECK(rpc::decode(c.from.peek()).value.kind == envelope_kind::hello);
    CHECK(c.answers.can_take());
    CHECK(c.world.of.resolve(c.world.handler.late, rpc::value()).why ==
          rpc_code::unknown_promise);
}

TEST_CASE("rpc link: who died with both ways full keeps no successor out") {
    rpc::callee_options how;
    how.resumes = true;
    link_pair c(how);
    c.open();
    std::uint64_t made = 0;
    for (int quiet = 0; quiet < 4; ++quiet) {  // asks as long as there is room, and hears nothing
        while (const netio::ring_claim room = c.to.claim(40)) {
            rpc::writer out(room.room);
            out.begin(envelope_kind::request, ++made, "add");
            c.to.commit(room, static_cast<std::uint32_t>(out.payload({}).finish()));
            quiet = 0;
        }
        c.serve();
    }

    std::vector<std::byte> memory(rpc::caller_bytes_needed(8));
    rpc::caller next(memory, {8, {}});
    int tries = 0;
    error why = error::full;
    for (; why == error::full && tries < 1000; ++tries) {
        why = next.begin(c.client, 77);
        c.serve();
    }
    REQUIRE(why == error::none);
    CHECK(tries > 1);
    texts said;
    const auto hear = [&] {
        next.take(c.client, [&](const rpc::reply& got) {
            said.push_back(std::to_string(got.request_id) + (got.resolved ? " ok" : " no"));
        });
    };
    for (int turn = 0; turn < 1000 && !next.knows_root(); ++turn) {
        hear();
        c.serve();
    }
    REQUIRE(next.knows_root());
    REQUIRE(next.call(c.client, "add"));
    for (int turn = 0; turn < 4; ++turn) {
        c.serve();
        hear();
    }
    CHECK(said == texts{"1 ok"});
    CHECK(next.why() == error::none);
    CHECK(c.answers.why() == error::none);
}

TEST_CASE("rpc link: what a provider calls in its caller's lane is no answer, and takes no place") {
    rpc::callee_options how;
    how.calls_max = 2;
    link_pair c(how);
    link_calls_on on;
    on.inner = c.world.mint();
    rpc::grant what;
    static constexpr std::string_view names[] = {"outer"};
    what.methods = names;
    const rpc::provider_id id = c.world.of.add_provider(on).value;
    REQUIRE(c.answers.open(c.world.of.mint(id, 1, what).value));
    c.call("outer");
    c.call("outer");
    c.serve();
    CHECK(c.answers.under_way() == 2);
    CHECK(c.from.peek().empty());
    CHECK(c.world.of.follow(on.late[0], on.made[0]));
    CHECK(c.world.of.follow(on.late[1], on.made[1]));
    c.serve();
    CHECK(c.hear() == std::vector<std::string>{"1 ok", "2 ok"});
    CHECK(c.answers.under_way() == 0);
}

TEST_CASE("rpc link: a provider that hears of an end may open the connection again, not before") {
    link_pair c;
    link_opens_again on;
    on.answers = &c.answers;
    rpc::grant what;
    static constexpr std::string_view names[] = {"x"};
    what.methods = names;
    const rpc::provider_id id = c.world.of.add_provider(on).value;
    const rpc::capability held = c.world.of.mint(id, 1, what).value;
    on.root = c.world.mint();
    const rpc::capability_id name = c.world.of.id_of(held);
    const rpc::capability root = c.world.mint();
    REQUIRE(c.answers.open(root));
    c.put(c.to, envelope_kind::request, 1, "x", [&](rpc::writer& in) { in.capability(name); });
    c.serve();  // answered later: the call holds it
    CHECK(c.world.of.release(held));
    c.answers.close();
    CHECK(on.heard == 1);
    CHECK_FALSE(on.opened);  // it was still closing
    CHECK_FALSE(c.answers.is_open());
    CHECK(c.world.of.release(root));
    CHECK(c.world.of.release(root).why == rpc_code::unknown_capability);
}

TEST_CASE("rpc link: one too small for a refusal is told") {
    link_pair c;
    c.open();
    c.server.most = 63;
    c.call("add");
    c.serve();
    CHECK(c.answers.why() == error::rpc_transport);
    CHECK(c.answers.requests() == 0);
}

TEST_CASE("rpc link: a session opened again knows nothing of the one before") {
    link_pair c;
    c.open();
    c.put_hello(c.to, 1);
    c.put(c.to, envelope_kind::request, 20, "no-such-method", [](rpc::writer&) {});
    c.serve();
    c.put_hello(c.to, 2);  // not the first envelope
    c.serve();
    CHECK(c.answers.why() == error::rpc_wire);
    c.answers.close();
    while (!c.from.peek().empty()) {
        c.from.release();
    }
    while (!c.to.peek().empty()) {
        c.to.release();
    }
    c.open();
    CHECK(c.answers.why() == error::none);
    CHECK(c.answers.requests() == 0);
    CHECK(c.answers.refused() == 0);
    c.serve();
    CHECK(c.from.peek().empty());  // no hello that was asked for before
    c.put_hello(c.to, 3);
    c.serve();
    CHECK(rpc::decode(c.from.peek()).value.kind == envelope_kind::hello);
    c.from.release();
    c.put(c.to, envelope_kind::request, 1, "add", [](rpc::writer& in) { in.promise(20); });
    c.serve();
    CHECK(rpc::decode(c.from.peek()).value.method == "rpc/unknown-promise");
}

TEST_CASE("rpc link: a hello that nobody answered before the end is not answered after it") {
    link_pair c;
    c.open();
    c.put_hello(c.to, 1);
    CHECK(c.answers.take(c.server) == 1);
    c.answers.close();
    CHECK(c.answers.answer_settled(c.server) == 0);
    CHECK(c.from.peek().empty());
    c.open();
    c.serve();
    CHECK(c.from.peek().empty());
    c.call("add");
    c.serve();
    CHECK(c.hear() == texts{"1 ok"});
}

TEST_CASE("rpc link: of several broken promises the first says why, and only of that call") {
    link_pair c;
    c.open();
    c.put(c.to, envelope_kind::request, 1, "no-such-method", [](rpc::writer&) {});
    c.put(c.to, envelope_kind::request, 2, "add", [](rpc::writer& in) { in.promise(77); });
    c.put(c.to, envelope_kind::request, 3, "add",
          [](rpc::writer& in) { in.promise(1).promise(2); });
    c.put(c.to, envelope_kind::request, 4, "add",
          [](rpc::writer& in) { in.promise(2).promise(1); });
    c.put(c.to, envelope_kind::request, 5, "add", [](rpc::writer& in) { in.promise(99); });
    c.put(c.to, envelope_kind::request, 6, "add", [](rpc::writer& in) { in.promise(0); });
    c.put(c.to, envelope_kind::request, 7, "late", [](rpc::writer&) {});
    c.serve();
    CHECK(c.world.of.cancel(c.world.handler.late));
    c.put(c.to, envelope_kind::request, 8, "add",
          [](rpc::writer& in) { in.promise(7).promise(1); });
    c.answers.answer_settled(c.server);
    c.serve();
    const std::string_view wanted[] = {
        "rpc/method-not-granted", "rpc/unknown-promise", "rpc/method-not-granted",
        "rpc/unknown-promise",    "rpc/unknown-promise", "rpc/unknown-promise",
        "rpc/promise-cancelled",  "rpc/promise-cancelled"};
    for (const std::string_view code : wanted) {
        CHECK(rpc::decode(c.from.peek()).value.method == code);
        c.from.release();
    }
    CHECK(c.answers.refused() == 7);
}

TEST_CASE("rpc link: what was meant for others is skipped until the hello, then it ends all") {
    const auto none = [](rpc::writer&) {};
    link_pair c;
    REQUIRE(c.session.begin(c.client, 5) == error::none);
    c.put(c.from, envelope_kind::error, 1, "rpc/wire", none);
    const netio::ring_claim junk = c.from.claim(40);
    std::memset(junk.room.data(), 'x', 40);
    c.from.commit(junk, 40);
    c.put_hello(c.from, 4);
    CHECK(c.hear().empty());
    CHECK(c.session.why() == error::none);
    const std::uint64_t mine = c.call("add");
    c.put(c.from, envelope_kind::error, mine, "rpc/wire", none);  // not to this one
    CHECK(c.hear().empty());
    c.put_hello(c.from, 5);
    c.put(c.from, envelope_kind::error, mine, "rpc/domain", none);
    c.put_hello(c.from, 6);  // nobody waits for it any more
    CHECK(c.hear() == texts{"1 rpc/domain"});
    CHECK(c.session.why() == error::none);
    const netio::ring_claim more = c.from.claim(40);
    std::memset(more.room.data(), 'x', 40);
    c.from.commit(more, 40);
    CHECK(c.hear().empty());
    CHECK(c.session.why() == error::rpc_wire);
    REQUIRE(c.session.begin(c.client, 6) == error::none);  // a new life
    CHECK(c.session.why() == error::none);
    CHECK(c.call("add") == 1);
}

TEST_CASE("rpc link: no answer has an id of 0, or of a call that was answered, nor is a request") {
    const auto none = [](rpc::writer&) {};
    for (int which = 0; which < 4; ++which) {
        link_pair c;
        const std::uint64_t first = c.call("add");
        c.put(c.from, envelope_kind::error, first, "rpc/domain", none);
        CHECK(c.hear().size() == 1);
        c.call("add");
        if (which == 0) {
            c.put(c.from, envelope_kind::error, 0, "rpc/wire", none);
        } else if (which == 1) {
            c.put(c.from, envelope_kind::error, first, "rpc/domain", none);
        } else if (which == 2) {
            c.put(c.from, envelope_kind::request, 2, "add", none);
        } else {
            c.put(c.from, envelope_kind::error, 2 + 8, "rpc/domain", none);
        }
        CHECK(c.hear().empty());
        CHECK(c.session.why() == error::rpc_wire);
        CHECK(c.session.outstanding() == 1);
        std::vector<std::uint64_t> told;
        CHECK(c.session.end([&](const rpc::reply& got) { told.push_back(got.request_id); }) == 1);
        CHECK(c.session.why() == error::rpc_wire);  // the first reason stays
        CHECK(told == std::vector<std::uint64_t>{2});
    }
    link_pair c;
    CHECK(c.session.end([](const rpc::reply&) {}) == 0);
    CHECK(c.session.why() == error::rpc_transport);
}

TEST_CASE("rpc link: a client of a shared ring sees a record of its own, and no other's") {
    rpc_rigs::ring_memory there(1024), back(1024);
    netio::mpsc_ring shared;
    netio::spsc_ring answers;
    shared.attach(there.data(), 1024);
    answers.attach(back.data(), 1024);
    rpc::shared_link one(shared, 1, answers), two(shared, 2, answers);
    rpc::served_link serves_one(shared, 1, answers), serves_two(shared, 2, answers);
    CHECK(one.record_max() == shared.record_max() - 8);
    CHECK_FALSE(one.claim(0));
    CHECK_FALSE(one.claim(one.record_max() + 1));
    CHECK_FALSE(rpc::sender_in_front(shared).there);
    const netio::ring_claim given_up = one.claim(one.record_max());
    REQUIRE(given_up);
    one.abandon(given_up);
    const netio::ring_claim room = two.claim(5);
    REQUIRE(room);
    CHECK(room.room.size() == 5);
    std::memcpy(room.room.data(), "hello", 5);
    two.commit(room, 4);
    two.flush();
    CHECK(serves_two.why() == error::none);
    CHECK(rpc::sender_in_front(shared).there);
    CHECK(rpc::sender_in_front(shared).number == 2);
    CHECK(serves_one.peek().empty());
    CHECK(netio::as_text(serves_two.peek()) == "hell");
    serves_two.release();
    CHECK(serves_two.peek().empty());
    while (const netio::ring_claim more = one.claim(100)) {
        one.commit(more, 100);
    }
    CHECK(shared.refused() != 0);
    // Nothing behind a number is no record of anybody.
    while (!serves_one.peek().empty()) {
        serves_one.release();
    }
    const netio::ring_claim bare = shared.claim(8);
    REQUIRE(bare);
    shared.commit(bare, 8);
    CHECK_FALSE(rpc::sender_in_front(shared).there);
}
