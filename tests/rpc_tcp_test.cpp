// Calls over connections of a server: frames however they come, sizes nobody may send, and all that
// a server does for any handler. What every transport has in common is in rpc_peer_test.cpp.
#include "tests/rpc_rigs.hpp"

#include <algorithm>

namespace {

namespace rpc = netio::rpc;
using netio::close_kind;
using netio_test::on_both_kernels;
using netio_test::sim_peer;
using rpc_rigs::service_handler;

template <class Gate = netio::allow_all>
struct tcp_world : rpc_world::fixture, netio_test::server_world<service_handler, Gate> {
    rpc::capability root = mint();
    rpc::tcp_service_options how;

    explicit tcp_world(bool proactor, const rpc::tcp_service_options& wanted = {},
                       const rpc::rpc_limits& tables = rpc_world::small_sizes())
        : rpc_world::fixture(tables),
          netio_test::server_world<service_handler, Gate>(proactor, rpc_rigs::service_sizes()),
          how(wanted) {
        how.root = root;
        how.connections_max = 3;
        this->handler_of().begin(of, how);
    }
    ~tcp_world() {
        this->check_nothing_held();
        CHECK(service().sessions().in_use == 0);
        of.dispatch();
        CHECK(of.lanes().in_use == 1);
    }
    service_handler& handler_of() {
        return netio_test::server_world<service_handler, Gate>::handler;
    }
    rpc::tcp_service& service() { return *handler_of().of; }
    std::vector<std::string>& asked() { return rpc_world::fixture::handler.asked; }
    rpc::promise_id late() { return rpc_world::fixture::handler.late; }
    netio::close_reason last_reason() { return handler_of().reasons.back(); }
    /// What was settled from outside goes out.
    void flush_due() {
        if (const netio::connection_id who = service().due(); who) {
            REQUIRE(this->server->post(who, 0));
        }
        this->pump();
    }
};

template <class Fill>
std::string tcp_frame(std::uint64_t id, std::string_view method, Fill&& fill) {
    std::byte room[8192];
    rpc::writer out(netio::mutable_bytes(room).subspan(4));
    out.begin(rpc::envelope_kind::request, id, method);
    fill(out);
    const std::size_t size = out.payload({}).finish();
    REQUIRE(rpc::encode_frame_prefix(size, room) == 4);
    return std::string(netio::as_text(netio::bytes(room).first(size + 4)));
}
std::string tcp_frame(std::uint64_t id, std::string_view method) {
    return tcp_frame(id, method, [](rpc::writer&) {});
}
std::string tcp_number_frame(std::uint64_t id, std::int64_t number, std::uint64_t promise = 0) {
    return tcp_frame(id, "add", [&](rpc::writer& in) {
        in.value_int(number);
        if (promise != 0) {
            in.promise(promise);
        }
    });
}

/// The answers in `text`: "id=number", "id:code".
std::vector<std::string> tcp_answers(std::string_view text) {
    std::vector<std::string> out;
    netio::bytes rest = netio::as_bytes(text);
    while (!rest.empty()) {
        const auto got = rpc::decode_frame(rest);
        CHECK(got.status == netio::parse_status::complete);
        if (got.status != netio::parse_status::complete) {
            break;
        }
        const auto in = rpc::decode(got.value.envelope);
        CHECK(in.status == netio::parse_status::complete);
        const std::string id = std::to_string(in.value.request_id);
        out.push_back(in.value.kind == rpc::envelope_kind::response
                          ? id + "=" + std::to_string(
                                           in.value.arguments.front().as_value().as_int(-1))
                          : id + ":" + std::string(in.value.method));
        rest = rest.subspan(got.consumed);
    }
    return out;
}

using tcp_said = std::vector<std::string>;

/// Tables in which results as large as a piece wait for a slow reader, and no others are kept.
constexpr rpc::rpc_limits tcp_slow_tables() {
    rpc::rpc_limits tables = rpc_world::small_sizes();
    tables.pieces[2].count = 64;
    tables.settled_max = 2;
    return tables;
}

/// A request whose answer takes so many bytes, and 42 of its own.
std::string tcp_many_frame(std::uint64_t id, std::int64_t bytes_count) {
    return tcp_frame(id, "many", [&](rpc::writer& in) { in.value_int(bytes_count); });
}
std::string tcp_many_frames(std::uint64_t count, std::int64_t bytes_each) {
    std::string out;
    for (std::uint64_t id = 1; id <= count; ++id) {
        out += tcp_many_frame(id, bytes_each);
    }
    return out;
}

/// The answers that a slow peer reads, bit by bit, until `done(text)`.
template <class World, class Done>
tcp_said tcp_read_slowly(World& w, sim_peer& slow, Done&& done) {
    std::string got;
    for (int turn = 0; turn < 2000 && !done(got); ++turn) {
        got += slow.take_text();
        w.pump(4);
    }
    got += slow.take_text();
    return tcp_answers(got);
}

/// A handler of its own over the link: sends back each envelope that is whole.
struct tcp_echo {
    std::byte room[4 + 256] = {};
    netio::error why = netio::error::none;
    std::uint32_t wire_max = 1024;
    std::uint32_t record_max = 0;
    bool claims_much = false;

    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        rpc::wire_limits wire;
        wire.bytes_max = wire_max;
        rpc::tcp_link link(c, in, room, wire);
        record_max = link.record_max();
        claims_much = link.claim(0) || link.claim(record_max + 1);
        for (netio::bytes got = link.peek(); !got.empty(); got = link.peek()) {
            const auto size = static_cast<std::uint32_t>(got.size());
            if (const netio::ring_claim to = link.claim(size)) {
                std::memcpy(to.room.data(), got.data(), size);
                link.commit(to, size);
            }
            link.release();
        }
        link.flush();
        why = link.why();
        return link.used();
    }
};

/// Denies whatever is larger than a few answers.
struct tcp_gate : netio_test::gate_books {
    std::uint64_t bytes_max = ~std::uint64_t{0};
    std::vector<bool> boundaries;
    std::string client;

    netio::verdict admit(const netio::connection& c) noexcept {
        return noted(c, netio::verdict::allow());
    }
    netio::verdict readmit(const netio::connection& c) noexcept {
        char room[netio::endpoint_text_max];
        client = netio::format(c.source(), room);
        return netio::verdict::allow();
    }
    netio::egress check(const netio::connection&, const netio::write_facts& facts) noexcept {
        boundaries.push_back(facts.at_boundary);
        return facts.byte_count <= bytes_max ? netio::egress::allow() : netio::egress::deny(9);
    }
};

}  // namespace

TEST_CASE("rpc tcp: frames that come in two pieces, cut anywhere, are answered the same") {
    const std::string sent = tcp_number_frame(1, 1) + tcp_number_frame(2, 1, 1) +
                             tcp_frame(3, "no-such-method") + tcp_number_frame(9, 4, 2);
    on_both_kernels([&](bool proactor) {
        for (std::size_t cut = 0; cut <= sent.size(); ++cut) {
            CAPTURE(cut);
            tcp_world<> w(proactor);
            w.listen();
            sim_peer peer = w.connect();
            peer.send(std::string_view(sent).substr(0, cut));
            w.pump();
            peer.send(std::string_view(sent).substr(cut));
            w.pump();
            tcp_said answers = tcp_answers(peer.take_text());
            std::sort(answers.begin(), answers.end());  // refusals come at once
            CHECK(answers == tcp_said{"1=1", "2=2", "3:rpc/method-not-granted", "9=6"});
            CHECK(w.service().requests() == 4);
            CHECK(w.service().refused() == 1);
            peer.close();
            w.pump();
        }
    });
}

TEST_CASE("rpc tcp: sixteen dependent calls in one write come back in one, of one batch") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.listen();
        sim_peer peer = w.connect();
        std::string sent = tcp_number_frame(1, 1);
        for (std::uint64_t id = 2; id <= 16; ++id) {
            sent += tcp_number_frame(id, 1, id - 1);
        }
        const std::uint64_t sends = w.net.counts.sends;
        peer.send(sent);
        w.pump();
        const tcp_said answers = tcp_answers(peer.take_text());
        REQUIRE(answers.size() == 16);
        CHECK(answers.back() == "16=16");
        CHECK(w.of.round_trips() == 1);
        CHECK(w.net.counts.sends - sends == 1);
        peer.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: a size that no frame has is told by its code, and the connection ends") {
    struct wrong {
        std::uint32_t size;
        const char* says;
    };
    on_both_kernels([](bool proactor) {
        for (const wrong& each : {wrong{0, "0:rpc/wire"}, {31, "0:rpc/wire"},
                                  {16445, "0:rpc/transport"}, {(64u << 20) + 1, "0:rpc/transport"},
                                  {0xFFFFFFFF, "0:rpc/transport"}}) {
            CAPTURE(each.size);
            tcp_world<> w(proactor);
            w.listen();
            sim_peer peer = w.connect();
            std::byte prefix[4];
            netio::detail::store_little(prefix, each.size);
            peer.send(tcp_number_frame(1, 5));
            peer.send(netio::bytes(prefix));
            w.pump();
            CHECK(tcp_answers(peer.take_text()) == tcp_said{"1=5", each.says});
            CHECK(peer.finished());
            peer.close();
            w.pump();
            CHECK(w.last_reason().kind == close_kind::handler_closed);
        }
    });
}

TEST_CASE("rpc tcp: the largest frame that the window holds is taken") {
    on_both_kernels([](bool proactor) {
        rpc::tcp_service_options how;
        rpc::rpc_limits tables = rpc_world::small_sizes();
        tables.pieces[2].piece_bytes = 32 * 1024;
        tcp_world<> w(proactor, how, tables);
        w.listen();
        sim_peer peer = w.connect();
        std::vector<std::byte> room(16448);
        rpc::writer out(netio::mutable_bytes(room).subspan(4));
        const std::string text(16444 - 32 - 4 - 6, 'x');
        const std::size_t size =
            out.begin(rpc::envelope_kind::request, 1, "echo").value_text(text).payload({}).finish();
        REQUIRE(size == 16444);
        rpc::encode_frame_prefix(size, room);
        peer.send(netio::bytes(room));
        w.pump();
        // Made; but its answer is larger than answers may be.
        CHECK(w.asked() == std::vector<std::string>{"echo"});
        CHECK(tcp_answers(peer.take_text()) == tcp_said{"1:rpc/transport"});
        peer.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: half a frame and a close holds nothing") {
    on_both_kernels([](bool proactor) {
        for (const bool resets : {false, true}) {
            tcp_world<> w(proactor);
            w.listen();
            sim_peer peer = w.connect();
            peer.send(tcp_frame(1, "late") + tcp_number_frame(2, 3).substr(0, 20));
            w.pump();
            CHECK(w.of.pending_of(w.lane) == 0);
            resets ? peer.reset() : peer.close();
            w.pump();
            if (!resets) {  // it may still read: what is under way is answered
                CHECK(w.of.reject(w.late(), rpc::rpc_code::domain));
                w.flush_due();
            }
            CHECK(w.service().sessions().in_use == 0);
            CHECK(w.of.promises().in_use <= 1);
        }
    });
}

TEST_CASE("rpc tcp: who has sent its last request is answered, then sees the end") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.listen();
        sim_peer peer = w.connect();
        peer.send(tcp_frame(1, "late") + tcp_number_frame(2, 3, 0));
        peer.shutdown();
        w.pump();
        CHECK(tcp_answers(peer.take_text()) == tcp_said{"2=3"});
        CHECK_FALSE(peer.finished());
        CHECK(w.of.reject(w.late(), rpc::rpc_code::domain));
        w.flush_due();
        CHECK(tcp_answers(peer.take_text()) == tcp_said{"1:rpc/domain"});
        CHECK(peer.finished());
        peer.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: what is settled later goes to the connection that asked, through another's") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.listen();
        sim_peer first = w.connect();
        sim_peer second = w.connect();
        first.send(tcp_frame(1, "late") + tcp_number_frame(2, 1, 1));
        w.pump();
        CHECK(first.unread().empty());
        // A call on the second connection brings the dispatch in which the first one's is settled.
        CHECK(w.of.reject(w.late(), rpc::rpc_code::timeout));
        second.send(tcp_number_frame(1, 7));
        w.pump();
        CHECK(tcp_answers(second.take_text()) == tcp_said{"1=7"});
        CHECK(tcp_answers(first.take_text()) == tcp_said{"1:rpc/timeout", "2:rpc/timeout"});
        first.close();
        second.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: more calls than may be under way wait in the window, and go on") {
    on_both_kernels([](bool proactor) {
        rpc::tcp_service_options how;
        how.each.calls_max = 2;
        tcp_world<> w(proactor, how);
        w.listen();
        sim_peer peer = w.connect();
        peer.send(tcp_frame(1, "late"));
        w.pump();
        const rpc::promise_id first = w.late();
        peer.send(tcp_frame(2, "late"));
        std::string rest;
        for (std::uint64_t id = 3; id < 900; ++id) {  // more than a window holds
            rest += tcp_number_frame(id, 1);
        }
        std::size_t sent = peer.send(rest);
        w.pump();
        CHECK(w.handler_of().closed == 0);
        CHECK(peer.unread().empty());
        CHECK(w.of.resolve(first, rpc::value()));
        CHECK(w.of.resolve(w.late(), rpc::value()));
        w.flush_due();
        std::size_t answered = 0;
        for (int turn = 0; turn < 200 && answered < 899; ++turn) {
            sent += peer.send(std::string_view(rest).substr(sent));
            w.pump(4);
            answered += tcp_answers(peer.take_text()).size();
        }
        CHECK(answered == 899);
        peer.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: a slow reader's answers wait for it, and others are not kept waiting") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor, {}, tcp_slow_tables());
        w.listen();
        sim_peer slow = w.connect();
        sim_peer quick = w.connect();
        slow.window(2000);
        slow.send(tcp_many_frames(100, 3000));
        w.pump();
        for (std::uint64_t id = 1; id <= 100; ++id) {
            quick.send(tcp_number_frame(id, 1));
            w.pump(4);
        }
        CHECK(tcp_answers(quick.take_text()).size() == 100);
        const tcp_said answers = tcp_read_slowly(
            w, slow, [](const std::string& got) { return got.size() >= 100 * 3042u; });
        REQUIRE(answers.size() == 100);
        for (std::size_t at = 0; at < 100; ++at) {
            CHECK(answers[at] == std::to_string(at + 1) + "=-1");
        }
        slow.close();
        quick.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: so many sessions, the next connection is reset, a freed one is used") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.listen();
        std::vector<sim_peer> in;
        for (int more = 0; more < 3; ++more) {
            in.push_back(w.connect());
        }
        sim_peer over = w.connect();
        CHECK(over.was_reset());
        CHECK(w.service().sessions().refused == 1);
        in[0].close();
        w.pump();
        sim_peer next = w.connect();
        next.send(tcp_number_frame(1, 2));
        w.pump();
        CHECK(tcp_answers(next.take_text()) == tcp_said{"1=2"});
        for (sim_peer& each : in) {
            each.close();
        }
        next.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: a root of its own for each connection, let go with it; none is a reset") {
    struct roots {
        tcp_world<>* world;
        bool gives = true;
        static rpc::capability of(void* context, netio::connection& peer) noexcept {
            roots& all = *static_cast<roots*>(context);
            return all.gives ? all.world->mint(all.world->everything(), peer.source().port)
                             : rpc::capability{};
        }
    };
    on_both_kernels([](bool proactor) {
        roots given{nullptr};
        rpc::tcp_service_options how;
        how.root_of = roots::of;
        how.context = &given;
        tcp_world<> w(proactor, how);
        given.world = &w;
        w.listen();
        sim_peer peer = w.connect(netio::ipv4(198, 51, 100, 7, 4000));
        peer.send(tcp_number_frame(1, 5));
        w.pump();
        CHECK(tcp_answers(peer.take_text()) == tcp_said{"1=5"});
        peer.close();
        w.pump();
        CHECK(w.rpc_world::fixture::handler.dropped == std::vector<std::uint64_t>{4000});
        given.gives = false;
        sim_peer refused = w.connect();
        CHECK(refused.was_reset());
        CHECK(w.service().sessions().in_use == 0);
    });
}

TEST_CASE("rpc tcp: PROXY names the client, the gate is asked where an answer begins") {
    on_both_kernels([](bool proactor) {
        tcp_world<tcp_gate> w(proactor);
        netio::listen_options where;
        where.proxy = netio::proxy_mode::required;
        w.listen(where);
        sim_peer peer = w.connect();
        peer.send("PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n" + tcp_number_frame(1, 5));
        w.pump();
        CHECK(tcp_answers(peer.take_text()) == tcp_said{"1=5"});
        CHECK(w.gate.client == "203.0.113.9:5000");
        peer.send(tcp_number_frame(2, 5));
        w.pump();
        CHECK(w.gate.boundaries == std::vector<bool>{true, true});
        peer.take_text();
        w.gate.bytes_max = 1;
        peer.send(tcp_frame(3, "late") + tcp_number_frame(4, 6));
        w.pump();
        CHECK(peer.was_reset());
        CHECK(w.last_reason().kind == close_kind::egress_denied);
        CHECK(w.of.reject(w.late(), rpc::rpc_code::domain).why ==
              rpc::rpc_code::unknown_promise);  // nobody waits for it any more
    });
}

TEST_CASE("rpc tcp: a drain ends idle connections at once and lets calls under way finish") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.listen();
        sim_peer idle = w.connect();
        sim_peer busy = w.connect();
        idle.send(tcp_number_frame(1, 1));
        busy.send(tcp_frame(1, "late"));
        w.pump();
        CHECK(tcp_answers(idle.take_text()) == tcp_said{"1=1"});
        w.server->drain(60'000);
        w.pump();
        CHECK(idle.finished());
        CHECK_FALSE(busy.finished());
        CHECK(w.of.resolve(w.late(), rpc::value()));
        w.flush_due();
        CHECK(tcp_answers(busy.take_text()) == tcp_said{"1=-1"});
        idle.close();
        busy.close();
        w.pump();
        CHECK(w.handler_of().closed == 2);
    });
}

TEST_CASE("rpc tcp: options out of range and memory too small say so, and nobody is let in") {
    rpc_world::fixture kernels;
    const rpc::tcp_service_options good;
    CHECK(rpc::bytes_needed(good) != 0);
    for (int which = 0; which < 6; ++which) {
        rpc::tcp_service_options bad;
        (which == 0 ? bad.each.calls_max : which == 1 ? bad.connections_max : bad.answer_max) = 0;
        if (which == 3) {
            bad = good;
            bad.answer_max = 63;
        } else if (which == 4) {
            bad = good;
            bad.each.wire.method_max = 0;
        } else if (which == 5) {
            bad = good;
            bad.answer_max = (64u << 20) + 1;
        }
        CHECK(rpc::bytes_needed(bad) == 0);
        std::vector<std::byte> memory(1 << 16);
        CHECK(rpc::tcp_service(kernels.of, memory, bad).why() == netio::error::limits_invalid);
    }
    std::vector<std::byte> memory(rpc::bytes_needed(good) - 1);
    CHECK(rpc::tcp_service(kernels.of, memory, good).why() == netio::error::memory_too_small);
}

TEST_CASE("rpc tcp: an answer larger than a buffer is told as that, whatever answers may have") {
    on_both_kernels([](bool proactor) {
        rpc::tcp_service_options how;
        how.answer_max = 128 * 1024;
        rpc::rpc_limits tables = rpc_world::small_sizes();
        tables.pieces[3] = {128 * 1024, 4};
        tcp_world<> w(proactor, how, tables);
        w.listen();
        sim_peer peer = w.connect();
        peer.send(tcp_many_frame(1, 70'000) + tcp_many_frame(2, 16'448 - 42) +
                  tcp_many_frame(3, 16'448 - 41) + tcp_number_frame(4, 5));
        w.pump();
        CHECK(tcp_answers(peer.take_text()) ==
              tcp_said{"1:rpc/transport", "2=-1", "3:rpc/transport", "4=5"});
        peer.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: answers as large as a buffer reach slow readers who share too few of them") {
    on_both_kernels([](bool proactor) {
        rpc::rpc_limits tables = rpc_world::small_sizes();
        tables.pieces[3] = {16 * 1024, 16};
        tcp_world<> w(proactor, {}, tables);  // eight output buffers in all
        w.listen();
        std::vector<sim_peer> peers;
        for (int more = 0; more < 3; ++more) {
            peers.push_back(w.connect());
            peers.back().window(1000);
        }
        const std::string sent = tcp_many_frames(5, 16'000);
        for (sim_peer& each : peers) {
            each.send(sent);
            w.pump();
        }
        std::string got[3];
        for (int turn = 0; turn < 3000; ++turn) {
            for (std::size_t at = 0; at < 3; ++at) {
                got[at] += peers[at].take_text();
            }
            w.pump(2);
        }
        for (std::size_t at = 0; at < 3; ++at) {
            CHECK(tcp_answers(got[at]).size() == 5);
            peers[at].close();
        }
        w.pump();
    });
}

TEST_CASE("rpc tcp: whom due named may be gone, or the post refused: the answers go out") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.listen();
        sim_peer first = w.connect();
        sim_peer second = w.connect();
        first.send(tcp_frame(1, "late"));
        w.pump();
        CHECK(w.of.reject(w.late(), rpc::rpc_code::domain));
        second.send(tcp_frame(1, "late"));
        w.pump();  // and the first one's answer with it
        CHECK(tcp_answers(first.take_text()) == tcp_said{"1:rpc/domain"});
        first.send(tcp_frame(2, "late"));
        const rpc::promise_id others = w.late();
        w.pump();
        CHECK(w.of.reject(w.late(), rpc::rpc_code::domain));
        CHECK(w.of.reject(others, rpc::rpc_code::timeout));
        const netio::connection_id who = w.service().due();
        CHECK(who);
        CHECK(w.service().due() == who);  // until its answer is sent
        first.reset();
        w.pump();
        CHECK(tcp_answers(second.take_text()) == tcp_said{"1:rpc/timeout"});
        second.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: what waited for a connection's call hears of that connection's end") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.listen();
        sim_peer first = w.connect();
        sim_peer second = w.connect();
        first.send(tcp_frame(1, "late"));
        w.pump();
        const rpc::promise_id one = w.late();
        second.send(tcp_frame(1, "late"));
        w.pump();
        CHECK(w.of.follow(w.late(), one));  // the provider does the work once for both
        first.reset();
        w.pump();
        CHECK(tcp_answers(second.take_text()) == tcp_said{"1:rpc/promise-cancelled"});
        second.close();
        w.pump();
    });
}

TEST_CASE("rpc tcp: a peer's mistake does not cost it the answers that wait for room") {
    on_both_kernels([](bool proactor) {
        for (const bool bad_size : {false, true}) {
            rpc::rpc_limits tables = rpc_world::small_sizes();
            tables.pieces[2].count = 64;
            tcp_world<> w(proactor, {}, tables);
            w.listen();
            sim_peer peer = w.connect();
            peer.window(1000);
            peer.send(tcp_many_frames(40, 3000) +
                      (bad_size ? std::string(4, '\xFF') : tcp_number_frame(1, 5)));
            w.pump();
            std::string got;
            for (int turn = 0; turn < 3000; ++turn) {
                got += peer.take_text();
                w.pump(2);
            }
            const tcp_said said = tcp_answers(got);
            CHECK(said.size() == 41);
            CHECK(std::count(said.begin(), said.end(),
                             bad_size ? "0:rpc/transport" : "1:rpc/wire") == 1);
            CHECK(peer.finished());
            peer.close();
            w.pump();
        }
    });
}

TEST_CASE("rpc tcp: other callees of the kernel are none of its sessions, whatever their word") {
    tcp_world<> w(false);
    w.listen();
    sim_peer peer = w.connect();
    const rpc::lane_id other = w.of.open_reporting_lane(std::uint64_t{1} << 40).value;
    rpc::call_arguments with;
    with.reports = true;
    CHECK(w.of.call(other, w.root, "add", with));
    peer.send(tcp_number_frame(1, 5));
    w.pump();
    CHECK(tcp_answers(peer.take_text()) == tcp_said{"1=5"});
    CHECK(w.of.next_report(other));
    CHECK(w.of.drop_lane(other));
    peer.close();
    w.pump();
}
TEST_CASE("rpc tcp: a connection that the service was not told of is none of its") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor);
        w.handler_of().opens = false;
        w.listen();
        sim_peer peer = w.connect();
        peer.send(tcp_number_frame(1, 5));
        w.pump();
        CHECK(peer.take_text().empty());
        CHECK(w.service().requests() == 0);
        CHECK(w.service().sessions().in_use == 0);
        peer.shutdown();
        w.pump();
        CHECK(w.handler_of().closed == 1);  // its end is all that is answered
    });
}

TEST_CASE("rpc tcp: a handler of its own has envelopes by the link, no larger than it says") {
    on_both_kernels([](bool proactor) {
        netio_test::server_world<tcp_echo> w(proactor, rpc_rigs::service_sizes());
        w.listen();
        sim_peer peer = w.connect();
        const std::string whole = tcp_number_frame(1, 5);
        peer.send(whole + tcp_number_frame(2, 6) + tcp_number_frame(3, 7).substr(0, 20));
        w.pump();
        CHECK(peer.take_text() == whole + tcp_number_frame(2, 6));
        CHECK(w.handler.record_max == 256);
        CHECK_FALSE(w.handler.claims_much);
        CHECK(w.handler.why == netio::error::none);
        w.handler.wire_max = 100;
        sim_peer other = w.connect();
        other.send(tcp_frame(1, "add", [](rpc::writer& in) {
            in.value_text(std::string(100, 'x'));
        }));
        w.pump();
        CHECK(w.handler.why == netio::error::rpc_transport);
        CHECK(other.take_text().empty());
    });
}

TEST_CASE("rpc tcp: one that is closing keeps nobody's answer waiting") {
    on_both_kernels([](bool proactor) {
        for (const bool by_server : {false, true}) {
            CAPTURE(by_server);
            tcp_world<> w(proactor);
            w.listen();
            sim_peer first = w.connect();
            first.send(tcp_frame(1, "late"));
            w.pump();
            const rpc::promise_id lost = w.late();
            sim_peer second = w.connect();
            second.send(tcp_frame(1, "late"));
            w.pump();
            if (by_server) {
                w.server->close(w.handler_of().opened.front(), 60'000);
            } else {
                first.send(std::string_view("\5\0\0\0", 4));  // and stays: its end is waited for
            }
            w.pump();
            CHECK(w.handler_of().closed == 0);
            const bool is_held = static_cast<bool>(w.of.resolve(lost, rpc::value()));
            CHECK(is_held == by_server);
            CHECK(w.of.resolve(w.late(), rpc::value()));
            const std::uint64_t now_ns = w.net.now_ns();
            w.flush_due();
            CHECK(tcp_answers(second.take_text()) == tcp_said{"1=-1"});
            CHECK(w.net.now_ns() - now_ns < 100'000'000);  // far from any deadline
            first.close();
            second.close();
            w.pump();
        }
    });
}

TEST_CASE("rpc tcp: a size that no frame has is told whatever room the answers before it leave") {
    on_both_kernels([](bool proactor) {
        // 16 answers of 4,042 bytes each, and as many for the last one as leave room for an error,
        // or a little less, of four buffers of 16,448.
        for (std::int64_t last_bytes = 900; last_bytes < 1100; last_bytes += 8) {
            CAPTURE(last_bytes);
            tcp_world<> w(proactor, {}, tcp_slow_tables());
            w.listen();
            sim_peer slow = w.connect();
            slow.window(2000);
            slow.send(tcp_many_frames(16, 4000) + tcp_many_frame(17, last_bytes) +
                      std::string(4, '\1'));
            w.pump();
            const tcp_said answers =
                tcp_read_slowly(w, slow, [&](const std::string&) { return slow.finished(); });
            REQUIRE(answers.size() == 18);
            CHECK(answers.back() == "0:rpc/transport");
            slow.close();
            w.pump();
        }
    });
}

TEST_CASE("rpc tcp: a broken envelope that waits behind kept answers is told once they have left") {
    on_both_kernels([](bool proactor) {
        tcp_world<> w(proactor, {}, tcp_slow_tables());
        w.listen();
        sim_peer slow = w.connect();
        slow.window(2000);
        slow.send(tcp_many_frames(40, 4000));    // more than the output holds
        w.pump();
        slow.send(tcp_frame(40, "add"));    // its number was there before
        w.pump();
        const tcp_said answers =
            tcp_read_slowly(w, slow, [&](const std::string&) { return slow.finished(); });
        REQUIRE(answers.size() == 41);
        CHECK(answers.front() == "1=-1");
        CHECK(answers.back() == "40:rpc/wire");
        slow.close();
        w.pump();
    });
}
