// docs/contract.md as a suite: one check a promise, run on every backend and on the simulator.
// A check is a plain function that returns the first expectation that did not hold, or nullptr, so
// that doctest cases and the test of the broken variants call the same ones.
#ifndef NETIO_TESTS_CONFORMANCE_HPP
#define NETIO_TESTS_CONFORMANCE_HPP

#include <doctest/doctest.h>

#include "netio.hpp"

#include "tests/conformance_system.hpp"
#include "tests/dies.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>


#define NETIO_HOLDS(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return #condition;                                                                     \
        }                                                                                          \
    } while (false)
#define NETIO_PASSES(check)                                                                        \
    do {                                                                                           \
        if (const char* const broken_rule = (check)) {                                             \
            return broken_rule;                                                                    \
        }                                                                                          \
    } while (false)

namespace netio_test {

using namespace netio;

/// One open backend over memory and a pool of its own, and a log of its events. A world adds peers.
///
/// A world offers, besides this: `listener`, `datagrams`; `peer connect()`, where a peer has send,
/// arrived (all text read so far), ended, was_reset, shutdown, reset, close, local, settle;
/// `outside()`, `refusing()` and `silent()` to connect to, `outside_peer()` for who came of it;
/// `adoptable()`; `client_without_descriptors()` (it waits in the backlog, and no descriptor is
/// left to accept it with) and `descriptors_again()`; `udp_send`, `udp_local`, `udp_arrived`;
/// `handle_fit(handle)`; `duplicate(handle)`, a second descriptor of a socket; `lingers(peer)`, is
/// the kernel in TIME_WAIT for us; constants `suffix`, `counts_heap`, `threads`, `asserts`,
/// `shares_ports` (reuse_port is known), `may_lack_unix` (systems of this kind may refuse AF_UNIX).
template <class Backend>
class conformance_rig {
public:
    static constexpr backend_limits sizes{8, 2, 2, 4};
    static constexpr std::uint32_t input_max = 4;
    static constexpr std::uint32_t buffer_bytes = 1024;
    static constexpr bool shares_ports = true;
    static constexpr bool may_lack_unix = false;

    conformance_rig() noexcept {
        memory_.resize(Backend::bytes_needed(sizes) + 64);
        data_.resize(std::size_t{input_max} * 2 * buffer_bytes);
        links_.resize(std::size_t{input_max} * 2);
        pool.attach(data_.data(), links_.data(), input_max * 2, buffer_bytes, input_max, input_max,
                    true);
    }
    ~conformance_rig() { kernel.close(); }
    conformance_rig(const conformance_rig&) = delete;
    conformance_rig& operator=(const conformance_rig&) = delete;

    os_status open() noexcept {
        std::fill(memory_.begin(), memory_.end(), std::byte{0});
        const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
        return kernel.open({memory_.data() + (64 - at % 64) % 64, Backend::bytes_needed(sizes)},
                           sizes, pool);
    }

    /// One wait; what came is logged, received bytes are collected and their buffers given back.
    std::uint32_t turn(std::uint64_t timeout_ns = 1'000'000) noexcept {
        const std::uint32_t count = kernel.wait(out, timeout_ns);
        for (std::uint32_t at = 0; at < count; ++at) {
            log(out[at]);
        }
        return count;
    }
    /// A wait with room for few events.
    void turn_of(std::size_t events) noexcept {
        const std::uint32_t count = kernel.wait(std::span(out).first(events), 1'000'000);
        for (std::uint32_t at = 0; at < count; ++at) {
            log(out[at]);
        }
    }
    /// Turns until `done()`, at most so many that a broken backend fails in seconds.
    template <class Done>
    bool until(Done done) noexcept {
        return until_of(out.size(), done);
    }
    template <class Done>
    bool until_of(std::size_t events, Done done) noexcept {
        for (int turns = 0; turns < turns_max; ++turns) {
            if (done()) {
                return true;
            }
            turn_of(events);
        }
        return done();
    }
    /// Time enough for whatever should not come.
    void quiet() noexcept {
        for (int turns = 0; turns < 12; ++turns) {
            turn(2'000'000);
        }
    }

    std::uint32_t count(token who, operation op, event_kind kind) const noexcept {
        return static_cast<std::uint32_t>(
            std::count_if(seen.begin(), seen.end(), [&](const event& each) {
                return same(each.who, who) && each.op == op && each.kind == kind;
            }));
    }
    std::uint32_t count(token who) const noexcept {
        return static_cast<std::uint32_t>(std::count_if(
            seen.begin(), seen.end(), [&](const event& each) { return same(each.who, who); }));
    }
    const event* last(token who, operation op) const noexcept {
        for (std::size_t at = seen.size(); at != 0; --at) {
            if (same(seen[at - 1].who, who) && seen[at - 1].op == op) {
                return &seen[at - 1];
            }
        }
        return nullptr;
    }
    static bool same(token a, token b) noexcept {
        return a.index() == b.index() && a.generation() == b.generation();
    }
    /// Is the receive of `who` over, for the time being?
    bool receive_idle(token who) const noexcept {
        const event* of = last(who, operation::receive);
        return of != nullptr && (of->disarmed || of->kind != event_kind::received);
    }
    void give_held(std::size_t at) noexcept {
        pool.give(held[at], side::input, buffer_bytes);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    }
    os_status attach(socket_handle handle, token who) noexcept {
        std::erase(loose, handle);
        return kernel.attach(handle, who);
    }
    /// Resets what was accepted and never attached.
    void close_accepted() noexcept {
        for (socket_handle each : loose) {
            Backend::close_handle(each, true);
        }
        loose.clear();
    }
    void send(token who, bytes one) noexcept { kernel.start_send(who, {&one, 1}); }
    void listener_after_close() noexcept {}

    Backend kernel;
    buffer_pool pool;
    std::array<event, 8> out{};
    std::vector<event> seen;
    std::array<std::string, sizes.connections> text{};      // received, by slot
    std::array<mutable_bytes, sizes.connections> into{};    // where receives without buffers go
    bool hold = false;                                      // keep buffers in `held`
    std::vector<std::uint32_t> held;
    std::vector<socket_handle> loose;                       // accepted and not attached yet
    std::string datagram;                                   // the last one received
    int turns_max = 2000;

private:
    void log(const event& what) noexcept {
        seen.push_back(what);
        if (what.kind == event_kind::accepted) {
            loose.push_back(what.handle);
        }
        if (what.kind != event_kind::received) {
            return;
        }
        std::string fresh;
        if (what.buffer_index != none_index) {
            fresh.assign(as_text({pool.data(what.buffer_index), what.byte_count}));
            if (hold) {
                held.push_back(what.buffer_index);
            } else {
                pool.give(what.buffer_index, side::input, what.byte_count);
            }
        } else if (what.byte_count != 0) {
            fresh.assign(as_text(into[what.who.index()].first(what.byte_count)));
        }
        if (what.op == operation::receive_from) {
            datagram = fresh;
        } else if (what.who.index() < text.size()) {
            text[what.who.index()] += fresh;
        }
    }

    std::vector<std::byte> memory_;
    std::vector<std::byte> data_;
    std::vector<std::uint32_t> links_;
};

inline std::string conformance_pattern(std::size_t count) {
    std::string out(count, '\0');
    for (std::size_t at = 0; at < count; ++at) {
        out[at] = static_cast<char>('!' + (at * 7 + at / 251) % 90);
    }
    return out;
}

template <class World>
struct conformance {
    using verdict = const char*;
    using peer = typename World::peer;
    struct entry {
        const char* clause;  // "P1" to "P15", or the row of the table
        const char* says;
        verdict (*check)(World&);
    };

    static constexpr token acceptor = token::of(0, 900);
    static constexpr token a = token::of(0, 1), b = token::of(1, 1), c = token::of(2, 1);

    /// True if `body` is seen to break a rule, or if nobody looks.
    template <class Body>
    static bool asserts(Body body) {
        return !World::asserts || dies(body);
    }
    /// A client, accepted and attached as `who`.
    static verdict join(World& w, token who, peer& client) {
        const std::uint32_t before = w.count(acceptor, operation::accept, event_kind::accepted);
        const bool started = w.accepting;
        if (!started) {
            NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
            w.accepting = true;
        }
        client = w.connect();
        NETIO_HOLDS(w.until([&] {
            return w.count(acceptor, operation::accept, event_kind::accepted) > before;
        }));
        NETIO_HOLDS(w.attach(w.last(acceptor, operation::accept)->handle, who));
        return nullptr;
    }
    static void receive_into(World& w, token who, mutable_bytes into) {
        w.into[who.index()] = into;
        w.kernel.start_receive(who, into, 0);
    }
    static verdict close(World& w, token who, bool abort = false) {
        w.kernel.start_close(who, abort);
        NETIO_HOLDS(w.until([&] { return closed(w, who); }));
        return nullptr;
    }
    static bool closed(World& w, token who) {
        return w.count(who, operation::close, event_kind::closed) != 0;
    }
    /// Windows puts WSA before the name.
    static bool named(std::int32_t code, std::string_view what) {
        return std::string_view(World::backend_type::os_name(code)).ends_with(what);
    }
    static constexpr bool sends_now = backend_sends_now<typename World::backend_type>;
    static bool send_now(World& w, token who, std::span<const bytes> slices) {
        if constexpr (sends_now) {
            return w.kernel.send_now(who, slices);
        } else {
            return false;
        }
    }
    static constexpr bool sends_quietly = backend_sends_quietly<typename World::backend_type>;
    static void send_quietly(World& w, token who, std::span<const bytes> slices) {
        if constexpr (sends_quietly) {
            w.kernel.send_quietly(who, slices);
        }
    }
    /// Each starts a send and says whether it is done already.
    static auto start_only(World& w) {
        return [&w](token who, std::span<const bytes> slices) {
            w.kernel.start_send(who, slices);
            return false;
        };
    }
    static auto start_now(World& w) {
        return [&w](token who, std::span<const bytes> slices) { return send_now(w, who, slices); };
    }
    static auto start_quietly(World& w) {
        return [&w](token who, std::span<const bytes> slices) {
            send_quietly(w, who, slices.first(1));
            return false;
        };
    }
    static bool sent(World& w, token who, std::uint32_t times = 1) {
        return w.count(who, operation::send, event_kind::sent) >= times;
    }

    // --- P1 -----------------------------------------------------------------------------------

    static verdict p1_receive(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_receive(a, {}, 10);
        NETIO_HOLDS(asserts([&] { w.kernel.start_receive(a, {}, 10); }));
        return nullptr;
    }
    static verdict p1_send(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const std::string text = "twice";
        const bytes both[] = {as_bytes(text), as_bytes(text)};
        w.send(a, as_bytes(text));
        NETIO_HOLDS(asserts([&] { w.send(a, as_bytes(text)); }));
        NETIO_HOLDS(!sends_now || asserts([&] { send_now(w, a, both); }));
        return nullptr;
    }
    static verdict p1_other(World& w) {
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        NETIO_HOLDS(asserts([&] { w.kernel.start_accept(w.listener, acceptor); }));
        w.accepting = true;
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_close(a, false);
        NETIO_HOLDS(asserts([&] { w.kernel.start_close(a, false); }));
        NETIO_HOLDS(asserts([&] { w.kernel.start_receive(a, {}, 1); }));
        NETIO_HOLDS(w.kernel.start_receive_from(w.datagrams, token::of(0, 1)));
        NETIO_HOLDS(
            asserts([&] { w.kernel.start_receive_from(w.datagrams, token::of(0, 1)); }));
        return nullptr;
    }
    static verdict p1_after_end(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.end_send(a);
        const std::string text = "late";
        NETIO_HOLDS(asserts([&] { w.send(a, as_bytes(text)); }));
        client.shutdown();
        w.kernel.start_receive(a, {}, 10);
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        NETIO_HOLDS(asserts([&] { w.kernel.start_receive(a, {}, 10); }));
        NETIO_HOLDS(asserts([&] { w.kernel.start_receive(b, {}, 10); }));
        return nullptr;
    }

    // --- P2 -----------------------------------------------------------------------------------

    static verdict p2_into(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        std::array<std::byte, 64> place{};
        receive_into(w, a, place);
        client.send("once");
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        client.send("again");
        w.quiet();
        NETIO_HOLDS(w.count(a) == 1);
        NETIO_HOLDS(w.last(a, operation::receive)->disarmed);
        NETIO_HOLDS(w.last(a, operation::receive)->buffer_index == none_index);
        return nullptr;
    }
    static verdict p2_credit(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const std::uint32_t credit = 700;
        client.send(std::string(3000, 'x'));
        w.kernel.start_receive(a, {}, credit);
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        w.quiet();
        NETIO_HOLDS(w.text[0].size() >= credit);
        NETIO_HOLDS(w.text[0].size() <= credit + w.buffer_bytes);
        std::uint32_t disarms = 0;
        for (const event& each : w.seen) {
            disarms += World::same(each.who, a) && each.op == operation::receive && each.disarmed;
        }
        NETIO_HOLDS(disarms == 1);
        NETIO_HOLDS(w.last(a, operation::receive)->disarmed);
        return nullptr;
    }
    static verdict p2_send(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const bytes slices[] = {as_bytes("one "), as_bytes("two "), as_bytes("three")};
        w.kernel.start_send(a, slices);
        NETIO_HOLDS(w.until([&] { return sent(w, a); }));
        w.quiet();
        NETIO_HOLDS(w.count(a) == 1);
        return nullptr;
    }
    /// Done at once, or told by one event; and then the next may start.
    static verdict p2_send_now(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const bytes slices[] = {as_bytes("one "), as_bytes("two "), as_bytes("three")};
        std::string whole;
        std::uint32_t told = 0;
        for (int times = 0; sends_now && times < 4; ++times) {
            whole += "one two three";
            told += send_now(w, a, slices) ? 0 : 1;
            NETIO_HOLDS(w.until([&] { return client.arrived() == whole && sent(w, a, told); }));
            w.quiet();
            NETIO_HOLDS(w.count(a) == told);
        }
        return nullptr;
    }
    /// Its event may come late, but comes, though nothing else happens. Several slices, too.
    static verdict p2_quiet(World& w) {
        if constexpr (sends_quietly) {
            peer client;
            NETIO_PASSES(join(w, a, client));
            const bytes slices[] = {as_bytes("one "), as_bytes("two "), as_bytes("three")};
            const std::span<const bytes> all(slices);
            std::string whole;
            std::uint32_t told = 0;
            for (const std::size_t pieces : {1u, 3u, 1u, 1u}) {
                whole += pieces == 3 ? "one two three" : "one ";
                w.kernel.send_quietly(a, all.first(pieces));
                NETIO_HOLDS(asserts([&] { w.kernel.send_quietly(a, all); }));
                const std::uint32_t count = w.kernel.wait(w.out, forever_ns);
                NETIO_HOLDS(count == 1 && w.out[0].kind == event_kind::sent);
                NETIO_HOLDS(w.out[0].byte_count == (pieces == 3 ? 13u : 4u));
                ++told;
                NETIO_HOLDS(w.until([&] { return client.arrived() == whole; }));
                w.quiet();
                NETIO_HOLDS(w.count(a) == 0);
            }
            NETIO_HOLDS(told == 4);
            w.kernel.send_quietly(a, all.first(1));
            NETIO_PASSES(close(w, a));
            NETIO_HOLDS(w.until([&] { return client.ended(); }));
            NETIO_HOLDS(client.arrived() == whole + "one ");
        }
        return nullptr;
    }
    static verdict p2_accept(World& w) {
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        w.accepting = true;
        peer clients[4];
        for (peer& each : clients) {
            each = w.connect();
        }
        NETIO_HOLDS(w.until([&] { return w.count(acceptor) >= 4; }));
        w.quiet();
        NETIO_HOLDS(w.count(acceptor) == 4);
        NETIO_HOLDS(w.count(acceptor, operation::accept, event_kind::accepted) == 4);
        w.close_accepted();
        return nullptr;
    }
    static verdict p2_connect(World& w) {
        NETIO_HOLDS(w.kernel.start_connect({w.outside(), {}}, {}, a));
        NETIO_HOLDS(w.kernel.start_connect({w.refusing(), {}}, {}, b));
        NETIO_HOLDS(w.until([&] { return w.count(a) != 0 && w.count(b) != 0; }));
        w.quiet();
        NETIO_HOLDS(w.count(a) == 1);
        NETIO_HOLDS(w.count(a, operation::connect, event_kind::connected) == 1);
        NETIO_HOLDS(w.last(a, operation::connect)->handle != no_handle);
        NETIO_HOLDS(w.count(b) == 1);
        NETIO_HOLDS(w.count(b, operation::connect, event_kind::failed) == 1);
        return nullptr;
    }
    static verdict p2_close(World& w) {
        peer clients[2];
        NETIO_PASSES(join(w, a, clients[0]));
        NETIO_PASSES(join(w, b, clients[1]));
        w.kernel.start_close(a, false);
        w.kernel.start_close(b, true);
        NETIO_HOLDS(w.until([&] { return closed(w, a) && closed(w, b); }));
        w.quiet();
        NETIO_HOLDS(w.count(a) == 1);
        NETIO_HOLDS(w.count(b) == 1);
        return nullptr;
    }

    static verdict p2_signals(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const conformance_interrupts often;
        const std::string whole = conformance_pattern(300'000);
        std::size_t given = 0;
        w.kernel.start_receive(a, {}, 1'000'000);
        NETIO_HOLDS(w.until([&] {
            given += client.send(std::string_view(whole).substr(given));
            return w.text[0].size() >= whole.size();
        }));
        for (std::uint32_t times = 1; times <= 200; ++times) {
            w.send(a, as_bytes(whole).first(1000));
            NETIO_HOLDS(w.until([&] { return sent(w, a, times); }));
            client.arrived();
        }
        peer next;
        NETIO_PASSES(join(w, b, next));
        for (const event& each : w.seen) {
            NETIO_HOLDS(each.kind != event_kind::failed);
        }
        return nullptr;
    }

    // --- P3, P4, P5 ---------------------------------------------------------------------------

    static verdict p3_last(World& w) {
        peer clients[2];
        NETIO_PASSES(join(w, a, clients[0]));
        NETIO_PASSES(join(w, b, clients[1]));
        const std::string text(200'000, 'x');
        for (token who : {a, b}) {
            w.kernel.start_receive(who, {}, 10);
            w.send(who, as_bytes(text));
            w.kernel.start_close(who, same_index(who, b));
        }
        NETIO_HOLDS(w.until([&] { return closed(w, a) && closed(w, b); }));
        w.quiet();
        for (token who : {a, b}) {
            std::size_t last = 0;
            for (std::size_t at = 0; at < w.seen.size(); ++at) {
                last = World::same(w.seen[at].who, who) ? at : last;
            }
            NETIO_HOLDS(w.seen[last].kind == event_kind::closed);
            NETIO_HOLDS(w.seen[last].op == operation::close);
        }
        return nullptr;
    }
    static bool same_index(token one, token other) { return one.index() == other.index(); }
    static verdict p4_order(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const std::string whole = conformance_pattern(20'000);
        std::size_t given = client.send(whole);
        w.kernel.start_receive(a, {}, 100'000);
        NETIO_HOLDS(w.until([&] {
            given += client.send(std::string_view(whole).substr(given));
            return w.text[0].size() >= whole.size();
        }));
        NETIO_HOLDS(w.text[0] == whole);
        return nullptr;
    }
    static verdict p5_start(World& w) {
        peer clients[2];
        NETIO_PASSES(join(w, a, clients[0]));
        NETIO_PASSES(join(w, b, clients[1]));
        clients[0].send("ready");
        w.quiet();
        std::memset(static_cast<void*>(w.out.data()), 0x5A, sizeof(w.out));
        w.kernel.start_receive(a, {}, 10);
        w.send(a, as_bytes("now"));
        w.kernel.start_close(b, false);
        const auto* const from = reinterpret_cast<const unsigned char*>(w.out.data());
        NETIO_HOLDS(std::all_of(from, from + sizeof(w.out),
                                [](unsigned char each) { return each == 0x5A; }));
        NETIO_HOLDS(w.until([&] { return closed(w, b) && sent(w, a) && w.count(a) >= 2; }));
        return nullptr;
    }

    // --- P6, P7, P8, P9 -----------------------------------------------------------------------

    static verdict p6_reasons(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        conformance_silence silence;
        NETIO_HOLDS(w.kernel.start_connect({w.refusing(), {}}, {}, b));
        w.kernel.start_receive(a, {}, 100);
        client.reset();
        NETIO_HOLDS(w.until([&] { return w.count(b) != 0 && w.receive_idle(a); }));
        NETIO_HOLDS(silence.restore() == 0);
        const event& refused = *w.last(b, operation::connect);
        NETIO_HOLDS(refused.why == error::connection_refused);
        NETIO_HOLDS(named(refused.os_code, "ECONNREFUSED"));
        const event& reset = *w.last(a, operation::receive);
        NETIO_HOLDS(reset.kind == event_kind::failed);
        NETIO_HOLDS(reset.why == error::connection_reset);
        NETIO_HOLDS(named(reset.os_code, "ECONNRESET"));
        return nullptr;
    }
    static verdict p6_heap(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        client.send(std::string(5000, 'x'));
        const std::size_t before = conformance_heap_used();
        w.kernel.start_receive(a, {}, 2000);
        const bytes slices[] = {as_bytes("one"), as_bytes("two")};
        w.kernel.start_send(a, slices);
        for (int turns = 0; turns < 20; ++turns) {
            const std::uint32_t count = w.kernel.wait(w.out, 1'000'000);
            for (std::uint32_t at = 0; at < count; ++at) {
                if (w.out[at].buffer_index != none_index) {
                    w.pool.give(w.out[at].buffer_index, side::input, w.buffer_bytes);
                }
            }
        }
        NETIO_HOLDS(!World::counts_heap || conformance_heap_used() == before);
        return nullptr;
    }
    static verdict p7_idle(World& w) {
        peer clients[3];
        const token all[] = {a, b, c};
        for (std::size_t at = 0; at < 3; ++at) {
            NETIO_PASSES(join(w, all[at], clients[at]));
            w.kernel.start_receive(all[at], {}, 5000);
        }
        w.quiet();
        NETIO_HOLDS(w.pool.in_use(side::input) == 0);
        w.hold = true;
        clients[1].send("bytes exist");
        NETIO_HOLDS(w.until([&] { return w.count(b) == 1; }));
        w.quiet();
        NETIO_HOLDS(w.pool.in_use(side::input) == 1);
        w.give_held(0);
        clients[0].shutdown();
        clients[2].reset();
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a) && w.receive_idle(c); }));
        NETIO_HOLDS(w.pool.in_use(side::input) == 0);
        return nullptr;
    }
    static verdict p8_line(World& w) {
        peer clients[3];
        const token all[] = {a, b, c};
        std::vector<std::uint32_t> taken;
        for (std::size_t at = 0; at < 3; ++at) {
            NETIO_PASSES(join(w, all[at], clients[at]));
            w.kernel.start_receive(all[at], {}, 4000);
        }
        w.quiet();
        while (w.pool.room(side::input) != 0) {
            taken.push_back(w.pool.take(side::input));
        }
        const std::size_t order[] = {1, 2, 0};
        for (std::size_t at : order) {
            clients[at].send("wants a buffer");
            w.quiet();
            NETIO_HOLDS(w.count(all[at]) == 0);
        }
        w.hold = true;
        for (std::size_t served = 0; served < 3; ++served) {
            w.pool.give(taken.back(), side::input, 0);
            taken.pop_back();
            NETIO_HOLDS(w.until([&] { return w.count(all[order[served]]) == 1; }));
            w.quiet();
            for (std::size_t later = served + 1; later < 3; ++later) {
                NETIO_HOLDS(w.count(all[order[later]]) == 0);
            }
        }
        while (!w.held.empty()) {
            w.give_held(0);
        }
        w.pool.give(taken.back(), side::input, 0);
        return nullptr;
    }
    static verdict p9_sigpipe(World& w) {
        return sigpipe(w, start_only(w));
    }
    static verdict p9_now(World& w) {
        return sends_now ? sigpipe(w, start_now(w)) : nullptr;
    }
    static verdict p9_quiet(World& w) {
        return sends_quietly ? sigpipe(w, start_quietly(w)) : nullptr;
    }
    template <class Start>
    static verdict sigpipe(World& w, Start start) {
        conformance_sigpipe counter;
        peer clients[2];
        NETIO_PASSES(join(w, a, clients[0]));
        NETIO_PASSES(join(w, b, clients[1]));
        clients[0].reset();
        clients[1].close();
        w.quiet();
        const std::string text(1000, 'x');
        const bytes two[] = {as_bytes(text), as_bytes(text)};
        for (token who : {a, b}) {
            bool failed = false;
            std::uint32_t done = 0;
            for (std::uint32_t tries = 1; tries <= 4 && !failed; ++tries) {
                done += start(who, std::span(two).first(tries % 2 + 1)) ? 1 : 0;
                NETIO_HOLDS(w.until([&] {
                    failed = w.count(who, operation::send, event_kind::failed) != 0;
                    return failed || sent(w, who, tries - done);
                }));
                w.quiet();
            }
            NETIO_HOLDS(failed);
        }
        NETIO_HOLDS(counter.seen() == 0);
        return nullptr;
    }

    // --- P10 to P15 ---------------------------------------------------------------------------

    static verdict p10_truth(World& w) {
        return truth(w, start_only(w));
    }
    static verdict p10_now(World& w) {
        return sends_now ? truth(w, start_now(w)) : nullptr;
    }
    static verdict p10_quiet(World& w) {
        return sends_quietly ? truth(w, start_quietly(w)) : nullptr;
    }
    template <class Start>
    static verdict truth(World& w, Start start) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const std::string whole = conformance_pattern(World::bulk_bytes);
        std::size_t reported = 0;
        std::size_t handled = w.seen.size();
        bool outstanding = false;
        const auto go_on = [&](bool reading) {
            for (; handled < w.seen.size(); ++handled) {
                const event& each = w.seen[handled];
                if (each.op == operation::send && each.kind == event_kind::sent) {
                    reported += each.byte_count;
                    outstanding = false;
                }
            }
            if (!outstanding && reported < whole.size()) {
                const bytes rest = as_bytes(whole).subspan(reported);
                const bytes two[] = {rest.first(rest.size() / 2), rest.subspan(rest.size() / 2)};
                outstanding = !start(a, rest.size() > 1 ? std::span(two) : std::span(two).last(1));
                reported += outstanding ? 0 : rest.size();
            }
            return reading && client.arrived().size() >= whole.size();
        };
        for (int turns = 0; turns < 20; ++turns) {
            go_on(false);
            w.turn();
        }
        NETIO_HOLDS(reported >= 1);
        NETIO_HOLDS(reported < whole.size());
        w.turns_max = 200'000;
        NETIO_HOLDS(w.until([&] { return go_on(true) || reported > whole.size(); }));
        NETIO_HOLDS(w.until([&] { return go_on(true) && !outstanding; }));
        NETIO_HOLDS(reported == whole.size());
        NETIO_HOLDS(client.arrived() == whole);
        return nullptr;
    }
    static verdict p11_reuse(World& w) {
        peer old, fresh;
        NETIO_PASSES(join(w, a, old));
        old.send("unread");
        w.quiet();
        w.kernel.start_close(a, true);
        old.close();
        NETIO_HOLDS(w.until([&] { return closed(w, a); }));
        const std::uint32_t before = w.count(a);
        const token next = token::of(a.index(), 2);
        NETIO_PASSES(join(w, next, fresh));
        w.kernel.start_receive(next, {}, 100);
        w.quiet();
        NETIO_HOLDS(w.count(a) == before);
        NETIO_HOLDS(w.count(next) == 0);
        fresh.send("mine");
        NETIO_HOLDS(w.until([&] { return w.count(next) == 1; }));
        NETIO_HOLDS(w.count(next, operation::receive, event_kind::received) == 1);
        return nullptr;
    }
    /// More is ready than one wait reports; what is left over is closed, and its descriptor is
    /// another's at once.
    static verdict p11_batch(World& w) {
        std::array<peer, 6> clients;
        for (std::uint32_t at = 0; at < 6; ++at) {
            NETIO_PASSES(join(w, token::of(at, 1), clients[at]));
            w.kernel.start_receive(token::of(at, 1), {}, 1);
        }
        w.quiet();
        for (peer& each : clients) {
            each.send("x");
        }
        w.turn_of(4);
        std::uint32_t left = 0;
        while (left < 6 && w.count(token::of(left, 1)) != 0) {
            ++left;
        }
        NETIO_HOLDS(left < 6);
        w.kernel.start_close(token::of(left, 1), true);
        socket_handle handle = no_handle;
        peer fresh = w.adoptable(handle);
        const token next = token::of(7, 1);
        NETIO_HOLDS(w.attach(handle, next));
        w.kernel.start_receive(next, {}, 100);
        w.quiet();
        NETIO_HOLDS(w.count(next) == 0);
        fresh.send("mine");
        NETIO_HOLDS(w.until([&] { return w.text[7] == "mine"; }));
        return nullptr;
    }
    /// A child that inherited the socket keeps it alive in the kernel; for us it is closed.
    static verdict p11_duplicate(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        [[maybe_unused]] const auto kept = w.duplicate(w.last(acceptor, operation::accept)->handle);
        NETIO_PASSES(close(w, a));
        const std::uint32_t before = w.count(a);
        client.send("to a closed one");
        const int wakes = wakes_in(w, 40'000'000);
        NETIO_HOLDS(wakes <= 12);
        NETIO_HOLDS(w.count(a) == before);
        return nullptr;
    }
    /// What a closed connection still stirs is not taken for the end of the connect in its slot.
    static verdict p11_connecting(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        [[maybe_unused]] const auto kept =
            w.duplicate(w.last(acceptor, operation::accept)->handle);
        NETIO_PASSES(close(w, a));
        const token next = token::of(a.index(), 2);
        NETIO_HOLDS(w.kernel.start_connect({w.silent(), {}}, {}, next));
        const std::uint32_t before = w.count(a);
        client.send("to a closed one");
        w.quiet();
        NETIO_HOLDS(w.count(next) == 0);
        NETIO_HOLDS(w.count(a) == before);
        NETIO_PASSES(close(w, next, true));
        w.quiet();
        NETIO_HOLDS(w.seen.back().kind == event_kind::closed);
        return nullptr;
    }
    /// The same where the kernel has told of it already, and wait has not come to it yet.
    static verdict p11_connecting_batch(World& w) {
        std::array<peer, World::sizes.connections> clients;
        for (std::uint32_t at = 0; at < clients.size(); ++at) {
            NETIO_PASSES(join(w, token::of(at, 1), clients[at]));
            w.kernel.start_receive(token::of(at, 1), {}, 1);
        }
        w.quiet();
        for (peer& each : clients) {
            each.send("x");
        }
        w.turn_of(4);
        std::uint32_t left = World::sizes.connections - 1;
        while (w.count(token::of(left, 1)) != 0) {
            NETIO_HOLDS(left-- != 0);
        }
        const token last = token::of(left, 1);
        w.kernel.start_close(last, true);
        NETIO_HOLDS(w.until_of(4, [&] { return closed(w, last); }));
        const std::uint32_t before = w.count(last);
        const token next = token::of(left, 2);
        NETIO_HOLDS(w.kernel.start_connect({w.silent(), {}}, {}, next));
        w.quiet();
        NETIO_HOLDS(w.count(next) == 0);
        NETIO_HOLDS(w.count(last) == before);
        NETIO_PASSES(close(w, next, true));
        return nullptr;
    }
    /// How often wait returns within a span when it may sleep 10 ms each time.
    static int wakes_in(World& w, std::uint64_t span_ns) {
        const std::uint64_t begin = w.kernel.now_ns();
        int wakes = 0;
        while (w.kernel.now_ns() - begin < span_ns && wakes < 1000) {
            w.turn(10'000'000);
            ++wakes;
        }
        return wakes;
    }
    static verdict p12_races(World& w) {
        for (std::uint32_t round = 1; round <= 24; ++round) {
            const token who = token::of(0, round);
            peer client;
            NETIO_PASSES(join(w, who, client));
            w.text[0].clear();
            std::array<std::byte, 100> place{};
            if (round % 2 == 0) {
                receive_into(w, who, place);
            } else {
                w.kernel.start_receive(who, {}, 1000);
            }
            client.send("race");
            if (round % 4 < 2) {
                w.turn(0);
            }
            if (!w.receive_idle(who) && round > 12) {
                w.kernel.stop_receive(who);
            }
            NETIO_PASSES(close(w, who, round % 3 == 0));
            NETIO_HOLDS(w.text[0].size() <= 4);
            NETIO_HOLDS(w.pool.in_use(side::input) == 0);
            NETIO_HOLDS(w.count(who, operation::receive, event_kind::received) <= 2);
        }
        return nullptr;
    }
    static verdict p13_accepts(World& w) {
        peer clients[12];
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        for (peer& each : clients) {
            each = w.connect();
        }
        w.turn();
        w.kernel.stop_accept(acceptor);
        w.quiet();
        w.close_listener();
        w.quiet();
        std::uint32_t gone = 0;
        NETIO_HOLDS(w.until([&] {
            gone = 0;
            for (peer& each : clients) {
                gone += each.ended() || each.was_reset();
            }
            return gone + w.count(acceptor, operation::accept, event_kind::accepted) == 12;
        }));
        w.close_accepted();
        return nullptr;
    }
    static verdict p14_armed(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_receive(a, {}, 10'000);
        client.send(std::string(1500, 'x'));
        client.shutdown();
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        NETIO_HOLDS(w.text[0].size() == 1500);
        NETIO_HOLDS(w.last(a, operation::receive)->kind == event_kind::ended);
        return nullptr;
    }
    static verdict p14_unarmed(World& w) {
        peer clients[2];
        NETIO_PASSES(join(w, a, clients[0]));
        NETIO_PASSES(join(w, b, clients[1]));
        clients[0].send("before anybody asked");
        clients[0].shutdown();
        clients[1].send("in two pieces");
        clients[1].close();
        w.quiet();
        w.kernel.start_receive(a, {}, 10'000);
        std::array<std::byte, 8> place{};
        for (int piece = 0; piece < 3; ++piece) {
            const std::uint32_t before = w.count(b);
            receive_into(w, b, place);
            NETIO_HOLDS(w.until([&] { return w.count(b) > before; }));
        }
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        NETIO_HOLDS(w.text[0] == "before anybody asked");
        NETIO_HOLDS(w.last(a, operation::receive)->kind == event_kind::ended);
        NETIO_HOLDS(w.text[1] == "in two pieces");
        NETIO_HOLDS(w.last(b, operation::receive)->kind == event_kind::ended);
        return nullptr;
    }
    static verdict p14_reset(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        client.send("last words");
        w.quiet();
        client.reset();
        w.quiet();
        w.kernel.start_receive(a, {}, 10'000);
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        NETIO_HOLDS(w.text[0] == "last words");
        NETIO_HOLDS(w.last(a, operation::receive)->kind == event_kind::failed);
        return nullptr;
    }
    static verdict p15_probe(World& w) {
        using kernel = typename World::backend_type;
        if constexpr (netio::backend_probes<kernel>) {
            using netio::probed;
            peer clients[2];
            NETIO_PASSES(join(w, a, clients[0]));
            const socket_handle first = w.last(acceptor, operation::accept)->handle;
            NETIO_PASSES(join(w, b, clients[1]));
            const socket_handle second = w.last(acceptor, operation::accept)->handle;
            const auto finds = [&](socket_handle in, probed what) {
                return w.until([&] { return kernel::probe(in).found == what; }) &&
                       kernel::probe(in).found == what;
            };
            NETIO_HOLDS(kernel::probe(first) == netio::probe_result{});
            clients[0].send("words");
            NETIO_HOLDS(finds(first, probed::readable));
            std::array<std::byte, 8> place{};
            receive_into(w, a, place);
            NETIO_HOLDS(w.until([&] { return w.text[0] == "words"; }));
            NETIO_HOLDS(finds(first, probed::idle));
            clients[0].close();
            NETIO_HOLDS(finds(first, probed::peer_closed));
            const std::uint32_t before = w.count(a);
            receive_into(w, a, place);
            NETIO_HOLDS(w.until([&] { return w.count(a) > before; }));
            NETIO_HOLDS(w.last(a, operation::receive)->kind == event_kind::ended);
            clients[1].reset();
            netio::probe_result found;
            NETIO_HOLDS(w.until([&] {
                found = kernel::probe(second);
                return found.found != probed::idle;
            }));
            NETIO_HOLDS(found.found == probed::peer_closed ||  // a pipe knows no other end
                        found == (netio::probe_result{probed::failed, error::connection_reset}));
        }
        return nullptr;
    }

    // --- rows of the table --------------------------------------------------------------------

    static verdict row_listen(World& w) {
        using kernel = typename World::backend_type;
        const result<endpoint> bound = kernel::local_of(w.listener);
        NETIO_HOLDS(bound);
        NETIO_HOLDS(bound.value.port != 0);
        const os_handle again = kernel::listen({bound.value, {}}, {});
        NETIO_HOLDS(again.status.why == error::address_in_use);
        NETIO_HOLDS(again.handle == no_handle);
        NETIO_HOLDS(named(again.status.os_code, "EADDRINUSE"));
        const os_handle foreign = kernel::listen({ipv4(203, 0, 113, 1, 0), {}}, {});
        NETIO_HOLDS(foreign.status.why == error::address_unavailable);
        NETIO_HOLDS(w.handle_fit(w.listener));
        return nullptr;
    }
    static verdict row_listen_together(World&) {
        using kernel = typename World::backend_type;
        listen_options how;
        how.reuse_port = true;
        const os_handle first = kernel::listen({loopback_ipv4(0), {}}, how);
        if (!World::shares_ports) {
            NETIO_HOLDS(first.status.why == error::not_supported && first.handle == no_handle);
            return nullptr;
        }
        NETIO_HOLDS(first);
        const os_handle second = kernel::listen({kernel::local_of(first.handle).value, {}}, how);
        NETIO_HOLDS(second);
        kernel::close_handle(first.handle, false);
        kernel::close_handle(second.handle, false);
        return nullptr;
    }
    static verdict row_unix(World& w) {
        using kernel = typename World::backend_type;
        const std::string path = w.unix_path();
        const os_handle made = kernel::listen({{}, path}, {});
        if (World::may_lack_unix && made.status.why == error::not_supported) {
            NETIO_HOLDS(made.handle == no_handle && named(made.status.os_code, "EAFNOSUPPORT"));
            return nullptr;
        }
        NETIO_HOLDS(made);
        NETIO_HOLDS(kernel::local_of(made.handle).value.family == address_family::unix_path);
        NETIO_HOLDS(w.kernel.start_accept(made.handle, acceptor));
        NETIO_HOLDS(w.kernel.start_connect({{}, path}, {}, a));
        NETIO_HOLDS(w.until([&] {
            return w.count(a, operation::connect, event_kind::connected) != 0 &&
                   w.count(acceptor, operation::accept, event_kind::accepted) != 0;
        }));
        const event accepted = *w.last(acceptor, operation::accept);
        NETIO_HOLDS(accepted.peer.family == address_family::unix_path);
        NETIO_HOLDS(w.attach(accepted.handle, b));
        w.send(a, as_bytes("hello"));
        w.kernel.start_receive(b, {}, 100);
        NETIO_HOLDS(w.until([&] { return w.text[1] == "hello"; }));
        w.kernel.stop_accept(acceptor);
        kernel::close_handle(made.handle, false);
        return nullptr;
    }
    static verdict row_open_close(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_receive(a, {}, 100);
        w.hold = true;
        client.send("held");
        NETIO_HOLDS(w.until([&] { return w.count(a, operation::receive,
                                                 event_kind::received) == 1; }));
        w.kernel.close();
        w.accepting = false;
        NETIO_HOLDS(client.settle([&] { return client.ended() || client.was_reset(); }));
        NETIO_HOLDS(w.pool.in_use(side::input) == 1);
        w.give_held(0);
        w.kernel.close();
        NETIO_HOLDS(w.open());
        w.listener_after_close();
        peer next;
        NETIO_PASSES(join(w, b, next));
        return nullptr;
    }
    static verdict row_accept(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const event accepted = *w.last(acceptor, operation::accept);
        NETIO_HOLDS(accepted.peer == client.local());
        NETIO_HOLDS(w.handle_fit(accepted.handle));
        w.kernel.stop_accept(acceptor);
        w.accepting = false;
        w.quiet();
        peer next;
        NETIO_PASSES(join(w, b, next));
        NETIO_HOLDS(w.last(acceptor, operation::accept)->peer == next.local());
        return nullptr;
    }
    static verdict row_accept_peers(World& w) {
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        w.accepting = true;
        w.turn(0);
        peer clients[4] = {w.connect(), w.connect(), w.connect(), w.connect()};
        NETIO_HOLDS(w.until([&] { return w.count(acceptor) == 4; }));
        for (const peer& each : clients) {
            NETIO_HOLDS(std::count_if(w.seen.begin(), w.seen.end(), [&](const event& one) {
                            return one.peer == each.local();
                        }) == 1);
        }
        w.close_accepted();
        return nullptr;
    }
    static verdict row_no_descriptors(World& w) {
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        w.accepting = true;
        w.turn(0);
        peer first = w.connect();
        peer second = w.connect();
        NETIO_HOLDS(w.until([&] { return w.count(acceptor) == 2; }));
        w.close_accepted();
        const std::size_t from = w.seen.size();
        peer third = w.client_without_descriptors();
        NETIO_HOLDS(w.until([&] { return w.seen.size() > from; }));
        w.quiet();
        w.descriptors_again();
        NETIO_HOLDS(w.seen.size() == from + 1);
        NETIO_HOLDS(w.seen.back().kind == event_kind::failed);
        NETIO_HOLDS(w.seen.back().op == operation::accept);
        w.accepting = false;
        peer fourth;
        NETIO_PASSES(join(w, a, fourth));
        return nullptr;
    }
    static verdict row_stop_after_failure(World& w) {
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        w.turn(0);
        peer first = w.client_without_descriptors();
        NETIO_HOLDS(w.until([&] { return w.count(acceptor) == 1; }));
        w.kernel.stop_accept(acceptor);  // as if the event were still unread in the batch
        w.descriptors_again();
        NETIO_HOLDS(w.last(acceptor, operation::accept)->kind == event_kind::failed);
        return nullptr;
    }
    /// When stop_accept has returned, no accept is outstanding: the listener can be started again
    /// at once, and closing its handle frees its port.
    static verdict row_stop_accept(World& w) {
        using kernel = typename World::backend_type;
        const token next = token::of(acceptor.index(), 901);
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        w.turn(0);
        w.kernel.stop_accept(acceptor);
        NETIO_HOLDS(w.kernel.start_accept(w.listener, next));
        peer client = w.connect();
        NETIO_HOLDS(w.until([&] { return w.count(acceptor) + w.count(next) == 1; }));
        NETIO_HOLDS(w.seen.back().kind == event_kind::accepted);
        w.kernel.stop_accept(next);
        const endpoint where = kernel::local_of(w.listener).value;
        w.close_listener();
        const os_handle again = kernel::listen({where, {}}, {});
        NETIO_HOLDS(again);
        kernel::close_handle(again.handle, false);
        w.close_accepted();
        return nullptr;
    }
    /// Only where a backend offers it.
    static verdict row_bound_accepts(World& w) {
        using kernel = typename World::backend_type;
        if constexpr (backend_bounds_accepts<kernel>) {
            const auto accepted = [&w] { return w.count(acceptor); };
            peer clients[3];
            for (peer& each : clients) {
                each = w.connect();
            }
            w.kernel.bound_accepts(1);
            NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
            NETIO_HOLDS(w.until([&] { return accepted() != 0; }));
            w.quiet();
            NETIO_HOLDS(accepted() == 1);
            w.kernel.bound_accepts(2);
            NETIO_HOLDS(w.until([&] { return accepted() == 3; }));
            w.close_accepted();
            w.kernel.close();
            NETIO_HOLDS(w.open());  // and it is forgotten
            NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
            clients[0] = w.connect();
            NETIO_HOLDS(w.until([&] { return accepted() == 4; }));
            w.close_accepted();
        }
        return nullptr;
    }
    static verdict row_connect(World& w) {
        NETIO_HOLDS(w.kernel.start_connect({w.outside(), {}}, {}, a));
        NETIO_HOLDS(w.until([&] { return w.count(a) == 1; }));
        const event done = *w.last(a, operation::connect);
        NETIO_HOLDS(done.kind == event_kind::connected);
        NETIO_HOLDS(w.handle_fit(done.handle));
        peer other = w.outside_peer();
        w.send(a, as_bytes("out"));
        w.kernel.start_receive(a, {}, 100);
        other.send("back");
        NETIO_HOLDS(w.until([&] { return w.text[0] == "back" && other.arrived() == "out"; }));
        return nullptr;
    }
    static verdict row_connect_again(World& w) {
        NETIO_HOLDS(w.kernel.start_connect({w.refusing(), {}}, {}, a));
        NETIO_HOLDS(w.until([&] { return w.count(a) == 1; }));
        NETIO_HOLDS(w.last(a, operation::connect)->kind == event_kind::failed);
        NETIO_PASSES(close(w, a));
        w.quiet();
        NETIO_HOLDS(w.count(a) == 2);
        const token next = token::of(0, 2);
        NETIO_HOLDS(w.kernel.start_connect({w.outside(), {}}, {}, next));
        NETIO_HOLDS(w.until([&] { return w.count(next) == 1; }));
        return nullptr;
    }
    static verdict row_connect_closed(World& w) {
        NETIO_HOLDS(w.kernel.start_connect({w.outside(), {}}, {}, a));
        w.kernel.start_close(a, false);
        NETIO_HOLDS(w.until([&] { return closed(w, a); }));
        w.quiet();
        NETIO_HOLDS(w.seen.back().kind == event_kind::closed);
        NETIO_HOLDS(w.count(a, operation::close, event_kind::closed) == 1);
        return nullptr;
    }
    static verdict row_adopt(World& w) {
        socket_handle handle = no_handle;
        peer other = w.adoptable(handle);
        NETIO_HOLDS(w.attach(handle, a));
        other.send("adopted");
        w.kernel.start_receive(a, {}, 100);
        NETIO_HOLDS(w.until([&] { return w.text[0] == "adopted"; }));
        NETIO_PASSES(close(w, a));
        NETIO_HOLDS(w.until([&] { return other.ended(); }));
        return nullptr;
    }
    static verdict row_release(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_receive(a, {}, 1);
        client.send("1");
        NETIO_HOLDS(w.until([&] { return w.text[0] == "1"; }));
        const socket_handle handle = w.kernel.release(a);
        NETIO_HOLDS(handle == w.last(acceptor, operation::accept)->handle);
        const std::uint32_t before = w.count(a);
        client.send("2");
        w.quiet();
        NETIO_HOLDS(!client.ended() && !client.was_reset());
        NETIO_HOLDS(w.count(a) == before);
        NETIO_HOLDS(w.attach(handle, b));
        w.kernel.start_receive(b, {}, 100);
        NETIO_HOLDS(w.until([&] { return w.text[1] == "2"; }));
        return nullptr;
    }
    static verdict row_receive_into(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        std::array<std::byte, 4> place{};
        client.send("abcdefghij");
        std::string whole;
        for (int piece = 0; piece < 3; ++piece) {
            const std::uint32_t before = w.count(a);
            receive_into(w, a, place);
            NETIO_HOLDS(w.until([&] { return w.count(a) > before; }));
            NETIO_HOLDS(w.pool.in_use(side::input) == 0);
        }
        NETIO_HOLDS(w.text[0] == "abcdefghij");
        client.shutdown();
        receive_into(w, a, place);
        NETIO_HOLDS(w.until([&] { return w.count(a) == 4; }));
        NETIO_HOLDS(w.last(a, operation::receive)->kind == event_kind::ended);
        return nullptr;
    }
    static verdict row_stop_receive(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_receive(a, {}, 100);
        w.turn(0);
        w.kernel.stop_receive(a);
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        NETIO_HOLDS(w.count(a) == 1);
        const event last = *w.last(a, operation::receive);
        NETIO_HOLDS(last.kind == event_kind::received && last.byte_count == 0);
        NETIO_HOLDS(last.buffer_index == none_index);
        client.send("kept for later");
        w.quiet();
        NETIO_HOLDS(w.count(a) == 1);
        w.kernel.start_receive(a, {}, 100);
        NETIO_HOLDS(w.until([&] { return w.text[0] == "kept for later"; }));
        return nullptr;
    }
    static verdict row_stop_receive_late(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_receive(a, {}, 1);
        client.send("x");
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        w.kernel.stop_receive(a);  // as if the event were still unread in the batch
        w.quiet();
        NETIO_HOLDS(w.count(a) == 1);
        w.kernel.start_receive(a, {}, 1);
        client.send("y");
        NETIO_HOLDS(w.until([&] { return w.text[0] == "xy"; }));
        return nullptr;
    }
    static verdict row_send(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        std::string whole;
        bytes slices[slices_max];
        const std::string text = conformance_pattern(1000);
        for (std::size_t at = 0; at < slices_max; ++at) {
            slices[at] = as_bytes(text).subspan(at * 100, at * 13 + 1);
            whole += std::string(as_text(slices[at]));
        }
        w.kernel.start_send(a, slices);
        NETIO_HOLDS(w.until([&] { return client.arrived().size() == whole.size(); }));
        NETIO_HOLDS(client.arrived() == whole);
        NETIO_HOLDS(w.until([&] { return sent(w, a); }));
        NETIO_HOLDS(w.last(a, operation::send)->byte_count == whole.size());
        return nullptr;
    }
    static verdict row_end_send(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.send(a, as_bytes("bye"));
        NETIO_HOLDS(w.until([&] { return sent(w, a); }));
        w.kernel.end_send(a);
        NETIO_HOLDS(w.until([&] { return client.ended(); }));
        NETIO_HOLDS(client.arrived() == "bye");
        client.send("still here");
        w.kernel.start_receive(a, {}, 100);
        NETIO_HOLDS(w.until([&] { return w.text[0] == "still here"; }));
        return nullptr;
    }
    /// The reply comes long after the peer's end of stream, and whole.
    static verdict row_half_close(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        w.kernel.start_receive(a, {}, 100);
        client.send("request");
        w.quiet();
        client.shutdown();
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a); }));
        NETIO_HOLDS(w.text[0] == "request");
        w.quiet();
        const std::string reply = conformance_pattern(30'000);
        std::size_t given = 0;
        while (given < reply.size()) {
            const std::uint32_t before = w.count(a);
            w.send(a, as_bytes(reply).subspan(given));
            NETIO_HOLDS(w.until([&] {
                client.arrived();
                return w.count(a) > before;
            }));
            NETIO_HOLDS(w.last(a, operation::send)->kind == event_kind::sent);
            given += w.last(a, operation::send)->byte_count;
        }
        NETIO_PASSES(close(w, a));
        NETIO_HOLDS(w.until([&] { return client.ended(); }));
        NETIO_HOLDS(client.arrived() == reply);
        return nullptr;
    }
    /// Nobody asks about a peer that reset, nor about a connect that failed: no busy loop.
    static verdict row_wait_reset(World& w) {
        peer clients[2];
        NETIO_PASSES(join(w, a, clients[0]));
        NETIO_PASSES(join(w, b, clients[1]));
        w.kernel.start_receive(b, {}, 1);
        clients[1].send("x");
        NETIO_HOLDS(w.kernel.start_connect({w.refusing(), {}}, {}, c));
        NETIO_HOLDS(w.until([&] { return w.receive_idle(b) && w.count(c) == 1; }));
        clients[0].reset();
        clients[1].shutdown();
        NETIO_HOLDS(wakes_in(w, 60'000'000) <= 14);
        w.kernel.start_receive(a, {}, 1);
        w.kernel.start_receive(b, {}, 1);
        NETIO_HOLDS(w.until([&] { return w.receive_idle(a) && w.count(b) == 2; }));
        NETIO_HOLDS(w.last(a, operation::receive)->kind == event_kind::failed);
        NETIO_HOLDS(w.last(b, operation::receive)->kind == event_kind::ended);
        NETIO_HOLDS(wakes_in(w, 60'000'000) <= 14);
        return nullptr;
    }
    static verdict row_close(World& w) {
        peer clients[2];
        NETIO_PASSES(join(w, a, clients[0]));
        NETIO_PASSES(join(w, b, clients[1]));
        w.kernel.start_receive(a, {}, 100);
        w.kernel.start_receive(b, {}, 100);
        w.send(a, as_bytes("all of it"));
        NETIO_HOLDS(w.until([&] { return sent(w, a); }));
        NETIO_PASSES(close(w, a, false));
        NETIO_HOLDS(w.until([&] { return clients[0].ended(); }));
        NETIO_HOLDS(clients[0].arrived() == "all of it");
        NETIO_HOLDS(!clients[0].was_reset());
        NETIO_PASSES(close(w, b, true));
        NETIO_HOLDS(w.until([&] { return clients[1].was_reset(); }));
        NETIO_HOLDS(!w.lingers(clients[1]));
        return nullptr;
    }
    /// A receive that waits in a kernel may hold the socket open: closing has to end it first.
    static verdict row_close_receiving(World& w) {
        peer clients[3];
        const token all[] = {a, b, c};
        std::array<std::byte, 64> place{};
        for (std::size_t at = 0; at < 3; ++at) {
            NETIO_PASSES(join(w, all[at], clients[at]));
        }
        w.kernel.start_receive(a, {}, 100);
        w.kernel.start_receive(b, {}, 100);
        receive_into(w, c, place);
        w.quiet();
        NETIO_PASSES(close(w, a, false));
        NETIO_PASSES(close(w, b, true));
        NETIO_PASSES(close(w, c, true));
        NETIO_HOLDS(w.until([&] { return clients[0].ended(); }));
        NETIO_HOLDS(!clients[0].was_reset());
        NETIO_HOLDS(w.until([&] { return clients[1].was_reset(); }));
        NETIO_HOLDS(w.until([&] { return clients[2].was_reset(); }));
        return nullptr;
    }
    static verdict row_close_handle(World& w) {
        using kernel = typename World::backend_type;
        NETIO_HOLDS(w.kernel.start_accept(w.listener, acceptor));
        w.accepting = true;
        peer clients[2] = {w.connect(), w.connect()};
        NETIO_HOLDS(w.until([&] { return w.count(acceptor) == 2; }));
        bool abort = false;
        for (socket_handle each : w.loose) {
            kernel::close_handle(each, abort);
            abort = true;
        }
        w.loose.clear();
        NETIO_HOLDS(w.until([&] {
            return (clients[0].ended() && clients[1].was_reset()) ||
                   (clients[1].ended() && clients[0].was_reset());
        }));
        return nullptr;
    }
    static verdict row_datagram(World& w) {
        const token socket = token::of(0, 1);
        NETIO_HOLDS(w.kernel.start_receive_from(w.datagrams, socket));
        for (const std::string& text : {std::string("hello"), std::string(), std::string("x")}) {
            const std::uint32_t before = w.count(socket);
            w.udp_send(text);
            NETIO_HOLDS(w.until([&] { return w.count(socket) > before; }));
            const event got = *w.last(socket, operation::receive_from);
            NETIO_HOLDS(got.kind == event_kind::received);
            NETIO_HOLDS(got.byte_count == text.size());
            NETIO_HOLDS(w.datagram == text);
            NETIO_HOLDS(got.peer == w.udp_local());
            NETIO_HOLDS(!got.truncated);
        }
        w.udp_send(std::string(w.buffer_bytes + 1, 'y'));
        NETIO_HOLDS(w.until([&] { return w.count(socket) == 4; }));
        NETIO_HOLDS(w.last(socket, operation::receive_from)->truncated);
        NETIO_HOLDS(w.last(socket, operation::receive_from)->byte_count == w.buffer_bytes);
        w.kernel.stop_receive_from(socket);
        NETIO_HOLDS(w.until([&] { return w.count(socket) == 5; }));
        NETIO_HOLDS(w.last(socket, operation::receive_from)->kind == event_kind::closed);
        w.udp_send("nobody listens");
        w.quiet();
        NETIO_HOLDS(w.count(socket) == 5);
        NETIO_HOLDS(w.pool.in_use(side::input) == 0);
        return nullptr;
    }
    static verdict row_send_to(World& w) {
        const token one = token::of(0, 1), two = token::of(1, 1);
        const std::string big(70'000, 'x');
        w.kernel.start_send_to(w.datagrams, one, as_bytes("sent"), w.udp_local());
        w.kernel.start_send_to(w.datagrams, two, as_bytes(big), w.udp_local());
        NETIO_HOLDS(w.until([&] { return w.count(one) == 1 && w.count(two) == 1; }));
        NETIO_HOLDS(w.last(one, operation::send_to)->kind == event_kind::sent);
        NETIO_HOLDS(w.last(one, operation::send_to)->byte_count == 4);
        NETIO_HOLDS(w.last(two, operation::send_to)->kind == event_kind::failed);
        NETIO_HOLDS(w.until([&] { return w.udp_arrived() == "sent"; }));
        return nullptr;
    }
    static verdict row_wait(World& w) {
        const std::uint64_t start = w.kernel.now_ns();
        NETIO_HOLDS(w.kernel.wait(w.out, 0) == 0);
        NETIO_HOLDS(w.kernel.now_ns() - start < 500'000'000);
        for (std::uint64_t span : {300'000u, 1'000'000u, 10'300'000u}) {
            const std::uint64_t begin = w.kernel.now_ns();
            int wakes = 0;
            for (std::uint64_t spent = 0; spent < span; spent = w.kernel.now_ns() - begin) {
                NETIO_HOLDS(++wakes < 3);
                w.kernel.wait(w.out, span - spent);
            }
        }
        NETIO_HOLDS(!w.kernel.ready());
        return nullptr;
    }
    static verdict row_wake(World& w) {
        for (int times = 0; times < 5; ++times) {
            w.kernel.wake();
        }
        const std::uint64_t start = w.kernel.now_ns();
        NETIO_HOLDS(w.until([&] { return !w.seen.empty(); }));
        NETIO_HOLDS(w.kernel.now_ns() - start < 900'000'000);
        w.quiet();
        NETIO_HOLDS(w.seen.size() == 1);
        NETIO_HOLDS(w.seen[0].kind == event_kind::woken);
        w.kernel.wake();
        NETIO_HOLDS(w.until([&] { return w.seen.size() == 2; }));
        return nullptr;
    }
    static verdict row_wake_thread(World& w) {
        if (!World::threads) {
            return nullptr;
        }
        for (int round = 0; round < 200; ++round) {
            const std::size_t before = w.seen.size();
            std::thread other([&] { w.kernel.wake(); });
            const std::uint64_t start = w.kernel.now_ns();
            while (w.seen.size() == before && w.kernel.now_ns() - start < 5'000'000'000) {
                w.turn(5'000'000'000);
            }
            other.join();
            NETIO_HOLDS(w.kernel.now_ns() - start < 2'000'000'000);
            NETIO_HOLDS(w.seen.back().kind == event_kind::woken);
            w.turn(0);
        }
        return nullptr;
    }
    static verdict row_wait_handle(World& w) {
        const socket_handle handle = w.kernel.wait_handle();
        const auto readable = [&] { return conformance_readable(handle, 0); };
        w.quiet();
        NETIO_HOLDS(handle == no_handle || !readable());
        w.kernel.wake();
        NETIO_HOLDS(handle == no_handle || readable());
        NETIO_HOLDS(w.until([&] { return w.seen.size() == 1; }));
        w.quiet();
        NETIO_HOLDS(handle == no_handle || !readable());
        return nullptr;
    }
    /// A foreign loop calls `wait` only when the handle is readable or `ready` says so.
    static verdict row_ready(World& w) {
        peer client;
        NETIO_PASSES(join(w, a, client));
        const socket_handle handle = w.kernel.wait_handle();
        const auto foreign_until = [&](auto done) {
            for (int turns = 0; turns < 2000 && !done(); ++turns) {
                if (w.kernel.ready() || handle == no_handle || conformance_readable(handle, 1)) {
                    w.turn(0);
                }
            }
            return done();
        };
        w.send(a, as_bytes("out"));
        NETIO_HOLDS(foreign_until([&] { return sent(w, a) && client.arrived() == "out"; }));
        w.kernel.start_receive(a, {}, 100);
        client.send("in");
        NETIO_HOLDS(foreign_until([&] { return w.text[0] == "in"; }));
        w.kernel.stop_receive(a);
        NETIO_HOLDS(foreign_until([&] { return w.receive_idle(a); }));
        w.kernel.start_close(a, false);
        NETIO_HOLDS(foreign_until([&] { return closed(w, a) && client.ended(); }));
        return nullptr;
    }
    static verdict row_limits(World& w) {
        using kernel = typename World::backend_type;
        NETIO_HOLDS(kernel::available().offered);
        NETIO_HOLDS(kernel::reserve_descriptors(64) >= 64);
        NETIO_HOLDS(kernel::connection_bytes <= 128);
        backend_limits more = w.sizes;
        more.connections += 1000;
        NETIO_HOLDS(kernel::bytes_needed(more) - kernel::bytes_needed(w.sizes) >=
                    1000 * kernel::connection_bytes);
        return nullptr;
    }

    static constexpr entry entries[] = {
        {"P1", "a second receive is an assert", p1_receive},
        {"P1", "a second send is an assert", p1_send},
        {"P1", "a second accept, close or receive_from is an assert", p1_other},
        {"P1", "starting after the end or without an attachment is an assert", p1_after_end},
        {"P2", "a receive into memory gives one event", p2_into},
        {"P2", "a receive with credit ends once, within credit and a buffer", p2_credit},
        {"P2", "a vectored send gives one event", p2_send},
        {"P2", "a send is done at once or gives one event", p2_send_now},
        {"P2", "a quiet send gives one event, too", p2_quiet},
        {"P2", "each client is accepted once", p2_accept},
        {"P2", "a connect gives one event", p2_connect},
        {"P2", "a close gives one event", p2_close},
        {"P2", "interrupted calls are no failures", p2_signals},
        {"P3", "closed is the last event, with operations outstanding", p3_last},
        {"P4", "bytes come in order", p4_order},
        {"P5", "no event from inside a start call", p5_start},
        {"P6", "failures carry a reason and nothing is printed", p6_reasons},
        {"P6", "no heap", p6_heap},
        {"P7", "an idle connection holds no buffer", p7_idle},
        {"P8", "receives refused for want of a buffer are served in order", p8_line},
        {"P9", "no SIGPIPE", p9_sigpipe},
        {"P9", "no SIGPIPE from a send that may be done at once", p9_now},
        {"P9", "no SIGPIPE from a quiet send", p9_quiet},
        {"P10", "a partial send is reported truly", p10_truth},
        {"P10", "a send is done at once only if it is whole", p10_now},
        {"P10", "a quiet send is reported truly", p10_quiet},
        {"P11", "a stale token never resurfaces after closed", p11_reuse},
        {"P11", "a reused descriptor gets nothing of its last owner's", p11_batch},
        {"P11", "a descriptor that lives on in a child is silent", p11_duplicate},
        {"P11", "a stale event does not end a connect", p11_connecting},
        {"P11", "a stale event not yet read does not end a connect", p11_connecting_batch},
        {"P12", "cancel races deliver at most once and give the buffer back", p12_races},
        {"P13", "after stop_accept no connection is lost", p13_accepts},
        {"P14", "data and end at once, receive outstanding", p14_armed},
        {"P14", "data and end before any receive", p14_unarmed},
        {"P14", "data, then a reset, before any receive", p14_reset},
        {"P15", "a probe takes nothing and says what a receive would find", p15_probe},
        {"listen", "port 0 is resolved; a taken port, a foreign address refused", row_listen},
        {"listen", "reuse_port lets two listen on one port", row_listen_together},
        {"listen", "a unix path serves a stream", row_unix},
        {"open", "close gives handles up and open works again", row_open_close},
        {"start_accept", "tells the peer and works again after stop", row_accept},
        {"start_accept", "tells each of several clients apart", row_accept_peers},
        {"start_accept", "out of descriptors: one failure, then off", row_no_descriptors},
        {"stop_accept", "the failure may be unread", row_stop_after_failure},
        {"stop_accept", "has ended the accept when it returns", row_stop_accept},
        {"bound_accepts", "no more than that, until it is said again", row_bound_accepts},
        {"start_connect", "bytes both ways", row_connect},
        {"start_connect", "a failed one is closed like any other", row_connect_again},
        {"start_connect", "may be closed meanwhile", row_connect_closed},
        {"attach", "takes a descriptor of the user's own", row_adopt},
        {"release", "gives the handle back unclosed", row_release},
        {"start_receive", "into memory, piece by piece, then the end", row_receive_into},
        {"stop_receive", "ends an idle receive and keeps later bytes", row_stop_receive},
        {"stop_receive", "the last event may be unread", row_stop_receive_late},
        {"start_send", "eight slices in order", row_send},
        {"end_send", "the peer sees the end and can still send", row_end_send},
        {"end_send", "a reply after the peer's end arrives whole", row_half_close},
        {"start_close", "orderly after the data, abort by reset", row_close},
        {"start_close", "reaches the peer though a receive was waiting", row_close_receiving},
        {"close_handle", "orderly or by reset", row_close_handle},
        {"start_receive_from", "datagrams whole, empty and cut", row_datagram},
        {"start_send_to", "sent, or failed when too long", row_send_to},
        {"wait", "0 returns, a time-out is not early and no busy loop", row_wait},
        {"wait", "a reset or ended peer nobody asks about: no busy loop", row_wait_reset},
        {"wake", "coalesces and is used up", row_wake},
        {"wake", "from another thread, just before or inside wait", row_wake_thread},
        {"wait_handle", "is readable when woken", row_wait_handle},
        {"ready", "or the handle tells of whatever was started", row_ready},
        {"available", "and the sizes it asks for", row_limits},
    };
    static std::span<const entry> all() noexcept { return entries; }
};

/// Makes a doctest case of each check: "P10 a partial send is reported truly.epoll".
template <class World>
class conformance_cases {
public:
    conformance_cases() noexcept {
        NETIO_ASSERT(suite::all().size() <= cases_max);  // else checks would be left out
        add(std::make_index_sequence<cases_max>{});
    }

private:
    using suite = conformance<typename World::suite_world>;
    static constexpr std::size_t cases_max = 80;

    template <std::size_t At>
    static void run() {
        World world;
        const char* const broken_rule = suite::all()[At].check(world);
        CAPTURE(std::string(broken_rule == nullptr ? "" : broken_rule));
        CHECK(broken_rule == nullptr);
        world.kernel.close();
        CHECK(world.pool.in_use(side::input) == world.held.size());
    }
    /// A world may say what of the suite its streams can't have at all.
    static bool left_out(const typename suite::entry& which) noexcept {
        if constexpr (requires { World::has_not(which.clause, which.says); }) {
            return World::has_not(which.clause, which.says);
        } else {
            return false;
        }
    }
    template <std::size_t... At>
    static void add(std::index_sequence<At...>) noexcept {
        static std::array<std::string, sizeof...(At)> names;
        const auto checks = suite::all();
        const auto one = [&](std::size_t at, void (*body)()) {
            if (at < checks.size() && !left_out(checks[at])) {
                names[at] = std::string(checks[at].clause) + " " + checks[at].says + "." +
                            World::suffix;
                doctest::detail::regTest(
                    doctest::detail::TestCase(body, __FILE__, __LINE__,
                                              doctest::detail::TestSuite{} * "") *
                    names[at].c_str());
            }
        };
        (one(At, &run<At>), ...);
    }
};

}  // namespace netio_test

#endif
