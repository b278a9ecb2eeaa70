// Calls over a connection, the same over every transport: who answers, who calls, what a peer that
// misbehaves gets.
#include "tests/rpc_rigs.hpp"

namespace {

namespace rpc = netio::rpc;
using rpc::envelope_kind;
using rpc::rpc_code;
using rpc_rigs::any_link;
using rpc_rigs::connected;
using rpc_rigs::on_every_transport;
using rpc_rigs::terms;
using rpc_rigs::transport;

/// The code in an envelope that must be an error for `id`.
std::string peer_error(const std::vector<std::byte>& envelope, std::uint64_t id) {
    const auto got = rpc::decode(envelope);
    CHECK(got.status == netio::parse_status::complete);
    CHECK(got.value.kind == envelope_kind::error);
    CHECK(got.value.request_id == id);
    return std::string(got.value.method);
}

}  // namespace

TEST_CASE("rpc peer: a call comes back with its value, its id and the caller's word") {
    on_every_transport([](transport via) {
        connected c(via);
        rpc::call_options how;
        how.word = 77;
        const std::uint64_t sum = c.call("add", how, [](rpc::writer& in) {
            in.value_int(40).value_int(2);
        });
        const std::uint64_t none = c.call("put");
        CHECK(sum == 1);
        CHECK(none == 2);
        CHECK(c.session->outstanding() == 2);
        c.pump();
        CHECK(c.answer(sum).resolved);
        CHECK(c.answer(sum).number == 42);
        CHECK(c.answer(sum).word == 77);
        CHECK(c.answer(none).resolved);
        CHECK(c.session->outstanding() == 0);
        CHECK(c.world.handler.asked == std::vector<std::string>{"add", "put"});
    });
}

TEST_CASE("rpc peer: every refusal and failure comes back as its code, a provider's own as text") {
    on_every_transport([](transport via) {
        connected c(via);
        const std::uint64_t unknown = c.call("no-such-method");
        const std::uint64_t failed = c.call("fail");
        const std::uint64_t two = c.call("two");
        rpc::capability_id forged{};
        rpc::call_options how;
        how.target = &forged;
        const std::uint64_t nobody = c.call("add", how, [](rpc::writer&) {});
        c.pump();
        CHECK(c.answer(unknown).code == rpc_code::method_not_granted);
        CHECK(c.answer(failed).code == rpc_code::other);
        CHECK(c.answer(failed).text == "out-of-paper");
        CHECK(c.answer(two).text == "result is not one value");
        CHECK(c.answer(nobody).code == rpc_code::unknown_capability);
        c.world.of.revoke(c.root);
        const std::uint64_t late = c.add({1});
        c.pump();
        CHECK(c.answer(late).code == rpc_code::revoked);
        CHECK(c.session->why() == netio::error::none);
    });
}

TEST_CASE("rpc peer: a capability in front is whom the call goes to, and no argument") {
    on_every_transport([](transport via) {
        connected c(via);
        rpc::grant narrow = c.world.everything();
        const std::string_view only[] = {"echo"};
        narrow.methods = only;
        const rpc::capability other = c.world.mint(narrow, 9);
        const rpc::capability_id id = c.world.of.id_of(other);
        rpc::call_options how;
        how.target = &id;
        const std::uint64_t echoed =
            c.call("echo", how, [](rpc::writer& in) { in.value_text("first"); });
        const std::uint64_t refused = c.call("add", how, [](rpc::writer&) {});
        c.pump();
        CHECK(c.answer(echoed).content == "first");
        CHECK(c.answer(refused).code == rpc_code::method_not_granted);
    });
}

TEST_CASE("rpc peer: sixteen calls that need each other are one batch and come back together") {
    on_every_transport([](transport via) {
        connected c(via);
        std::uint64_t before = 0;
        std::vector<std::uint64_t> made;
        c.at_once([&] {
            made.push_back(before = c.add({1}));
            for (int more = 1; more < 16; ++more) {
                made.push_back(before = c.add({1}, {before}));
            }
        });
        c.pump();
        CHECK(c.world.of.round_trips() == 1);
        CHECK(c.order == made);
        CHECK(c.answer(before).number == 16);

        const std::uint64_t once = c.add({1});
        c.pump();
        c.add({c.answer(once).number});
        c.pump();
        CHECK(c.world.of.round_trips() == 3);
    });
}

TEST_CASE("rpc peer: an answered request can still be named, one too old can not") {
    on_every_transport([](transport via) {
        terms how;
        how.callee.calls_max = 4;
        connected c(via, how);
        const std::uint64_t first = c.add({5});
        c.pump();
        const std::uint64_t second = c.add({1}, {first});
        c.pump();
        CHECK(c.answer(second).number == 6);
        for (int more = 0; more < 4; ++more) {
            c.add({0});
            c.pump();
        }
        const std::uint64_t last = c.add({1}, {second});
        c.pump();
        CHECK(c.answer(last).code == rpc_code::unknown_promise);
    });
}

TEST_CASE("rpc peer: the same or a later id is no promise, and its call is refused alone") {
    on_every_transport([](transport via) {
        connected c(via);
        std::uint64_t id = 0;
        for (const std::uint64_t number : {0u, 2u, 4u, 1000u, 68u}) {  // 68 lies where 4 does
            ++id;
            c.send(envelope_kind::request, id, "add",
                   [&](rpc::writer& in) { in.promise(number); });
            c.rig->pump();
            CHECK(peer_error(c.raw_answer(), id) == "rpc/unknown-promise");
        }
        CHECK(c.world.handler.asked.empty());
        c.send(envelope_kind::request, id + 1, "add", [](rpc::writer& in) { in.value_int(1); });
        c.rig->pump();
        const std::vector<std::byte> answer = c.raw_answer();
        CHECK(rpc::decode(answer).value.kind == envelope_kind::response);
    });
}

TEST_CASE("rpc peer: what needs a refused call is refused with its code, however long the chain") {
    on_every_transport([](transport via) {
        connected c(via);
        const std::uint64_t bad = c.call("no-such-method");
        const std::uint64_t next = c.add({1}, {bad});
        const std::uint64_t third = c.add({1}, {next});
        const std::uint64_t failing = c.call("fail");
        const std::uint64_t after = c.add({1}, {failing});
        c.pump();
        CHECK(c.answer(next).code == rpc_code::method_not_granted);
        CHECK(c.answer(third).code == rpc_code::method_not_granted);
        CHECK(c.answer(after).text == "out-of-paper");
        CHECK(c.world.handler.asked == std::vector<std::string>{"fail"});
    });
}

TEST_CASE("rpc peer: answers come as calls are settled, not in the order of the requests") {
    on_every_transport([](transport via) {
        connected c(via);
        const std::uint64_t waits = c.call("late");
        const std::uint64_t needs = c.add({1}, {waits});
        const std::uint64_t quick = c.add({2});
        c.pump();
        CHECK(c.order == std::vector<std::uint64_t>{quick});
        const std::byte seven[] = {std::byte{2}, std::byte{7}, std::byte{0}, std::byte{0},
                                   std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0},
                                   std::byte{0}};
        CHECK(c.world.of.resolve(c.world.handler.late, rpc::value(seven)));
        c.pump();
        CHECK(c.order == std::vector<std::uint64_t>{quick, waits, needs});
        CHECK(c.answer(needs).number == 8);
    });
}

TEST_CASE("rpc peer: as many calls as it may have are under way, the next waits, none is lost") {
    on_every_transport([](transport via) {
        terms how;
        how.callee.calls_max = 2;
        connected c(via, how);
        const std::uint64_t first = c.call("late");
        c.pump();
        const rpc::promise_id promise = c.world.handler.late;
        const std::uint64_t second = c.call("late");
        const std::uint64_t third = c.add({3});
        c.pump();
        CHECK(c.order.empty());
        CHECK(c.world.handler.asked == std::vector<std::string>{"late", "late"});
        CHECK(c.world.of.resolve(promise, rpc::value()));
        c.pump();
        c.pump();
        CHECK(c.order == std::vector<std::uint64_t>{first, third});
        CHECK(c.world.of.reject(c.world.handler.late, rpc_code::domain));
        c.pump();
        CHECK(c.answer(second).code == rpc_code::domain);
    });
}

TEST_CASE("rpc peer: answers that find no room are kept, whatever else the kernel forgets") {
    on_every_transport([](transport via) {
        rpc::rpc_limits sizes = rpc_world::small_sizes();
        sizes.settled_max = 1;
        terms how;
        how.answer_max = 120;  // so rings hold one or two
        how.callee.calls_max = 8;
        connected c(via, how, sizes);
        std::vector<std::uint64_t> made;
        for (int more = 0; more < 40; ++more) {
            made.push_back(c.call("many", {}, [](rpc::writer& in) { in.value_int(80); }));
        }
        for (int turn = 0; turn < 60 && c.order.size() < made.size(); ++turn) {
            c.pump();
        }
        CHECK(c.order == made);
        for (const std::uint64_t id : made) {
            CHECK(c.answer(id).content == std::string(80, 'x'));
        }
    });
}

TEST_CASE("rpc peer: an answer larger than the link carries is told as that") {
    on_every_transport([](transport via) {
        terms how;
        how.answer_max = 248;  // what a ring of 512 bytes carries
        connected c(via, how);
        const std::uint64_t fits =
            c.call("many", {}, [](rpc::writer& in) { in.value_int(248 - 38); });
        const std::uint64_t over =
            c.call("many", {}, [](rpc::writer& in) { in.value_int(248 - 37); });
        c.pump();
        c.pump();
        CHECK(c.answer(fits).content.size() == 248 - 38);
        CHECK(c.answer(over).code == rpc_code::transport);
    });
}

TEST_CASE("rpc peer: a hello is answered first, with the root as a descriptor says it") {
    on_every_transport([](transport via) {
        connected c(via);
        rpc::capability_id before{};
        c.rig->client([&](any_link& link) {
            CHECK(c.session->begin(link, 5) == netio::error::none);
        });
        const std::uint64_t sum = c.add({1, 2});
        c.pump();
        REQUIRE(c.session->knows_root());
        before = c.world.of.id_of(c.root);
        CHECK(c.session->root() == before);
        c.pump();
        CHECK(c.answer(sum).number == 3);
    });
}

TEST_CASE("rpc peer: a second hello ends a session that can't be resumed") {
    on_every_transport([](transport via) {
        connected c(via);
        c.send(envelope_kind::hello, 3, "", [](rpc::writer&) {});
        c.rig->pump();
        const std::vector<std::byte> hello = c.raw_answer();
        const auto got = rpc::decode(hello);
        REQUIRE(got.status == netio::parse_status::complete);
        CHECK(got.value.kind == envelope_kind::hello);
        CHECK(got.value.request_id == 3);
        REQUIRE(got.value.capabilities.size() == 1);
        const rpc::capability_descriptor root = got.value.capabilities.front();
        CHECK(root.methods().size() == 8);
        CHECK(root.methods().front() == "add");
        CHECK(root.spend() == rpc::budget{});
        c.send(envelope_kind::hello, 4, "", [](rpc::writer&) {});
        c.rig->pump();
        CHECK(peer_error(c.raw_answer(), 4) == "rpc/wire");
        CHECK(c.raw_answer().empty());
    });
}

TEST_CASE("rpc peer: who takes the place of a dead one hears nothing that was meant for that") {
    on_every_transport([](transport via) {
        terms how;
        how.callee.resumes = true;
        connected c(via, how);
        c.add({1});
        const std::uint64_t stuck = c.call("late");
        c.add({2});
        c.rig->pump();
        const rpc::promise_id promise = c.world.handler.late;

        std::vector<std::byte> memory(rpc::caller_bytes_needed(64));
        c.session.emplace(memory);  // the next life, with the same memory of the link
        c.rig->client([&](any_link& link) {
            CHECK(c.session->begin(link, 99) == netio::error::none);
        });
        const std::uint64_t first = c.add({5});
        c.pump();
        c.pump();
        CHECK(c.session->why() == netio::error::none);
        CHECK(first == 1);
        CHECK(c.answers.size() == 1);
        CHECK(c.answer(first).number == 5);
        // Cancelled when the new session began: nobody waits for it.
        CHECK(c.world.of.resolve(promise, rpc::value()).why == rpc_code::unknown_promise);
        static_cast<void>(stuck);
    });
}

TEST_CASE("rpc peer: ids that don't rise, answers and garbage end the connection with a code") {
    const auto ends_with = [](transport via, std::string_view code, std::uint64_t id,
                              const std::function<void(connected&)>& sends) {
        connected c(via);
        c.send(envelope_kind::request, 7, "late", [](rpc::writer&) {});
        c.rig->pump();
        sends(c);
        c.rig->pump();
        CHECK(peer_error(c.raw_answer(), id) == code);
        // Nothing is taken any more.
        const std::size_t asked = c.world.handler.asked.size();
        c.send(envelope_kind::request, 100, "add", [](rpc::writer&) {});
        c.rig->pump();
        CHECK(c.world.handler.asked.size() == asked);
        CHECK(c.raw_answer().empty());
    };
    on_every_transport([&](transport via) {
        const auto none = [](rpc::writer&) {};
        for (const std::uint64_t id : {7u, 6u, 1u}) {
            ends_with(via, "rpc/wire", id, [&](connected& c) {
                c.send(envelope_kind::request, id, "add", none);
            });
        }
        ends_with(via, "rpc/wire", 7, [&](connected& c) {
            c.send(envelope_kind::response, 7, "", [](rpc::writer& in) { in.value_null(); });
        });
        ends_with(via, "rpc/wire", 7, [&](connected& c) {
            c.send(envelope_kind::error, 7, "rpc/wire", none);
        });
        ends_with(via, "rpc/wire", 0, [&](connected& c) {
            const std::vector<std::byte> garbage(40, std::byte{'x'});
            c.send_raw(garbage);
        });
        ends_with(via, "rpc/wire", 9, [&](connected& c) {
            std::byte room[64];
            rpc::writer out(room);
            const std::size_t size =
                out.begin(envelope_kind::request, 9, "add").payload({}).finish();
            room[size - 1] = std::byte{1};  // a descriptor that is not there
            c.send_raw(netio::bytes(room).first(size));
        });
    });
}

TEST_CASE("rpc peer: envelopes over a limit of the wire end the connection too") {
    on_every_transport([](transport via) {
        terms how;
        how.callee.wire.arguments_max = 2;
        connected c(via, how);
        const std::uint64_t fits = c.add({1, 2});
        c.pump();
        CHECK(c.answer(fits).number == 3);
        c.add({1, 2, 3});
        c.rig->pump();
        CHECK(peer_error(c.raw_answer(), fits + 1) == "rpc/wire");
    });
}

TEST_CASE("rpc peer: who leaves cancels what is pending, and every table is as it was") {
    on_every_transport([](transport via) {
        const std::vector<std::uint64_t> empty = [&] {
            connected other(via);
            other.rig.reset();
            return other.world.tables();
        }();
        connected c(via);
        const std::uint64_t waits = c.call("late");
        c.add({1}, {waits});
        c.add({7});
        c.call("no-such-method");
        c.rig->pump();
        c.rig.reset();
        c.world.of.dispatch();
        CHECK(c.world.tables() == empty);
        CHECK(c.world.of.resolve(c.world.handler.late, rpc::value()).why ==
              rpc_code::unknown_promise);
    });
}

TEST_CASE("rpc peer: read-only and redact go with the request, redact comes back") {
    on_every_transport([](transport via) {
        connected c(via);
        rpc::call_options how;
        how.flags = rpc::flag_read_only;
        const std::uint64_t refused = c.call("put", how, [](rpc::writer&) {});
        how.flags = rpc::flag_redact;
        const std::uint64_t quiet = c.call("add", how, [](rpc::writer& in) { in.value_int(1); });
        how.flags = rpc::flag_redact | rpc::flag_read_only;
        const std::uint64_t both = c.call("add", how, [](rpc::writer& in) { in.value_int(1); });
        c.pump();
        CHECK(c.answer(refused).code == rpc_code::read_only);
        CHECK(c.answer(quiet).flags == rpc::flag_redact);
        CHECK(c.answer(both).flags == rpc::flag_redact);
        CHECK(c.world.handler.redacted == std::vector<bool>{true, true});
    });
}

TEST_CASE("rpc caller: so many calls are outstanding, the next is refused; ids avoid late ones") {
    on_every_transport([](transport via) {
        terms how;
        how.callee.calls_max = 8;
        connected c(via, how);
        std::vector<std::byte> memory(rpc::caller_bytes_needed(4));
        c.session.emplace(memory, rpc::caller_options{4, {}});
        const std::uint64_t late = c.call("late");
        for (int more = 0; more < 3; ++more) {
            c.add({1});
        }
        netio::result<std::uint64_t> over;
        c.rig->client([&](any_link& link) { over = c.session->call(link, "add"); });
        CHECK(over.why == netio::error::full);
        c.pump();
        std::uint64_t last = 0;
        for (int more = 0; more < 3; ++more) {
            last = c.add({2});
            CHECK(last % 4 != late % 4);
        }
        c.pump();
        CHECK(c.answer(last).number == 2);
        CHECK(c.session->outstanding() == 1);
        CHECK(c.session->forget(late));
        CHECK_FALSE(c.session->forget(late + 1));
        CHECK(c.world.of.resolve(c.world.handler.late, rpc::value()));
        c.pump();
        CHECK(c.session->outstanding() == 0);
        CHECK(c.answers.count(late) == 0);
    });
}

TEST_CASE("rpc caller: a request that does not fit is not sent, and the next one is") {
    on_every_transport([](transport via) {
        connected c(via);
        netio::result<std::uint64_t> made;
        rpc::call_options how;
        how.bytes_max = 64;
        c.rig->client([&](any_link& link) {
            made = c.session->call(link, "echo", how, [](rpc::writer& in) {
                in.value_text(std::string(64, 'x'));
            });
        });
        CHECK(made.why == netio::error::too_long);
        c.rig->client([&](any_link& link) {
            made = c.session->call(link, "echo", how, [](rpc::writer& in) { in.value_list(); });
        });
        CHECK(made.why == netio::error::rpc_wire);
        const std::uint64_t next = c.add({4});
        CHECK(next == 1);
        c.pump();
        CHECK(c.answer(next).number == 4);
    });
}

TEST_CASE("rpc caller: an answer to nothing ends the connection, and each call hears of it once") {
    std::vector<std::byte> memory(rpc::caller_bytes_needed(8));
    rpc::caller session(memory, {8, {}});
    rpc_rigs::ring_memory there(4096), back(4096);
    netio::spsc_ring to, from;
    to.attach(there.data(), 4096);
    from.attach(back.data(), 4096);
    rpc::ring_link link(to, from);
    rpc::call_options how;
    how.word = 3;
    REQUIRE(session.call(link, "a", how));
    how.word = 4;
    const auto second = session.call(link, "b", how);
    REQUIRE(second);
    CHECK(session.forget(second.value));
    netio::ring_claim room = from.claim(64);
    const std::byte null_argument[] = {std::byte{0}, std::byte{0}};
    from.commit(room, static_cast<std::uint32_t>(
                          rpc::encode_response(9, 0, null_argument, room.room)));
    std::vector<std::uint64_t> words;
    const auto hears = [&](const rpc::reply& got) {
        CHECK(got.code == rpc_code::transport);
        words.push_back(got.word);
    };
    CHECK(session.take(link, hears) == 0);
    CHECK(session.why() == netio::error::rpc_wire);
    CHECK(session.call(link, "c").why == netio::error::rpc_wire);
    CHECK(session.end(hears) == 1);
    CHECK(words == std::vector<std::uint64_t>{3});
    CHECK(session.end(hears) == 0);
    CHECK(session.outstanding() == 0);
}

TEST_CASE("rpc peer: sizes and memory out of range are refused by name, nothing is held") {
    rpc_world::fixture world;
    const rpc::capability root = world.mint();
    for (const std::uint32_t calls : {0u, 3u, 63u, 1u << 17}) {
        CHECK(rpc::callee_bytes_needed(calls) == 0);
        CHECK(rpc::caller_bytes_needed(calls) == 0);
        rpc::callee_options how;
        how.calls_max = calls;
        std::vector<std::byte> memory(4096);
        rpc::callee none(world.of, memory, how);
        CHECK(none.open(root).why == rpc_code::invalid_argument);
    }
    std::vector<std::byte> memory(rpc::callee_bytes_needed(64));
    rpc::callee small(world.of, std::span(memory).first(memory.size() / 2));
    CHECK(small.open(root).why == rpc_code::invalid_argument);
    rpc::callee_options zero;
    zero.spend.calls_max = 0;
    rpc::callee poor(world.of, memory, zero);
    CHECK(poor.open(root).why == rpc_code::budget_exceeded);
    rpc::callee good(world.of, memory);
    CHECK(good.open(rpc::capability{}).why == rpc_code::unknown_capability);
    CHECK(good.open(root));
    CHECK(good.open(root).why == rpc_code::invalid_argument);
    good.close();
    good.close();
    CHECK(world.of.release(root));
    CHECK(world.handler.dropped == std::vector<std::uint64_t>{1});  // nobody else held it
    CHECK(world.of.lanes().in_use == 1);
}
