// Dials: the first candidate that answers, rounds with delays between, and each end of them told
// once, over the simulator. The gate keeps its books, every pool is full again after each case.
#include "tests/server_world.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace {

using netio::close_kind;
using netio::endpoint;
using netio::error;
using netio_test::on_both_kernels;
using netio_test::scripted;
using netio_test::sim_answer;
using failed = std::pair<std::uint64_t, error>;

/// Says what a test wants of each candidate.
struct dial_gate : netio_test::gate_books {
    std::function<netio::verdict(const netio::connection&)> enters =
        [](const netio::connection&) { return netio::verdict::allow(); };
    std::vector<endpoint> asked;

    netio::verdict admit(const netio::connection& c) noexcept {
        CHECK(c.origin() == netio::origin::connected);
        asked.push_back(c.source());
        return noted(c, enters(c));
    }
};

constexpr netio::limits dial_limits = [] {
    netio::limits sizes = netio_test::small_limits;
    sizes.dials_max = 3;
    return sizes;
}();

const endpoint good = netio::ipv4(198, 51, 100, 1, 80);
const endpoint better = netio::ipv4(198, 51, 100, 2, 80);
const endpoint refusing = netio::ipv4(198, 51, 100, 3, 80);
const endpoint silent = netio::ipv4(198, 51, 100, 4, 80);
const endpoint also_silent = netio::ipv4(198, 51, 100, 5, 80);
const endpoint unreachable = netio::ipv4(198, 51, 100, 6, 80);

using dial_base = netio_test::server_world<scripted, dial_gate>;

struct dial_world : dial_base {
    std::vector<std::uint64_t> words;
    std::vector<endpoint> winners;

    explicit dial_world(bool proactor, const netio::limits& chosen = dial_limits,
                        const netio_test::sim_options& how = {}, std::uint64_t seed = 1)
        : dial_base(proactor, chosen, how, seed) {
        for (const endpoint& each : {good, better}) {
            net.remote(each, sim_answer::accept);
        }
        net.remote(refusing, sim_answer::refuse);
        net.remote(silent, sim_answer::silent);
        net.remote(also_silent, sim_answer::silent);
        net.remote(unreachable, sim_answer::unreachable);
        handler.open = [this](netio::connection& c) {
            CHECK(c.origin() == netio::origin::connected);
            words.push_back(c.connect_word());
            winners.push_back(c.source());
        };
        pump();
    }
    ~dial_world() {
        check_nothing_held();
        CHECK(gate.inside() == 0);
    }
    netio::result<netio::dial_id> dial(const std::vector<endpoint>& to, std::uint64_t word,
                                       const netio::dial_options& how = {}) {
        return server->dial(to, word, how);
    }
    std::uint32_t dials() { return server->stats().pools[11].in_use; }
    std::uint64_t ended_as(close_kind why) {
        return server->stats().counts.closed_by[static_cast<std::size_t>(why)];
    }
    std::uint32_t failures_seen() {
        return events.count(netio::server_event_kind::connect_failed);
    }
};

netio::dial_options rounds(std::uint32_t most, std::uint32_t within_ms = 0) {
    netio::dial_options how;
    how.rounds_max = most;
    how.within_ms = within_ms;
    return how;
}

}  // namespace

TEST_CASE("dial: the first candidate answers, and no other is tried") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        const auto made = w.dial({good, better}, 77);
        REQUIRE(static_cast<bool>(made));
        CHECK(static_cast<bool>(made.value));
        CHECK(w.dials() == 1);
        w.pass(1'000);
        CHECK(w.words == std::vector<std::uint64_t>{77});
        CHECK(w.winners == std::vector{good});
        CHECK(w.gate.asked == std::vector{good});
        CHECK(w.handler.connect_failures.empty());
        CHECK(w.server->stats().counts.connected == 1);
        CHECK(w.dials() == 0);
        CHECK_FALSE(w.server->cancel_dial(made.value));
        CHECK(w.failures_seen() == 0);
    });
}

TEST_CASE("dial: where the first refuses the second follows at once") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        REQUIRE(static_cast<bool>(w.dial({refusing, good}, 5)));
        w.pass(50);  // less than an attempt's delay
        CHECK(w.winners == std::vector{good});
        CHECK(w.words == std::vector<std::uint64_t>{5});
        CHECK(w.handler.connect_failures.empty());
        CHECK(w.failures_seen() == 1);
        CHECK(w.ended_as(close_kind::connect_failed) == 1);
    });
}

TEST_CASE("dial: where the first is silent the second follows after the delay and wins") {
    on_both_kernels([](bool proactor) {
        for (const std::uint32_t delay : {100u, 250u, 2'000u}) {
            dial_world w(proactor);
            netio::dial_options how;
            how.attempt_delay_ms = delay;
            REQUIRE(static_cast<bool>(w.dial({silent, good}, 5, how)));
            w.pass(delay - 5);
            CHECK(w.gate.asked == std::vector{silent});
            w.pass(20);
            CHECK(w.winners == std::vector{good});
            CHECK(w.ended_as(close_kind::outpaced) == 1);
            CHECK(w.handler.opened == 1);
            CHECK(w.handler.closed == 0);
            CHECK(w.failures_seen() == 0);  // it did not fail, it lost
            CHECK(w.server->stats().open == 1);
            w.pass(130'000);
            CHECK(w.handler.connect_failures.empty());
        }
    });
}

TEST_CASE("dial: when all refuse that is told once") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        REQUIRE(static_cast<bool>(w.dial({refusing, refusing, refusing}, 5)));
        w.pass(100);
        CHECK(w.handler.connect_failures == std::vector{failed{5, error::connection_refused}});
        CHECK(w.failures_seen() == 3);
        CHECK(w.dials() == 0);
        CHECK(w.server->stats().open == 0);
    });
}

TEST_CASE("dial: when all are silent the connect deadline ends it, counted from its begin") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        REQUIRE(static_cast<bool>(w.dial({silent, also_silent, silent}, 5)));
        w.pass(600);
        CHECK(w.gate.asked.size() == 3);
        w.pass(9'350);
        CHECK(w.handler.connect_failures.empty());
        CHECK(w.server->stats().open == 3);
        w.pass(100);
        CHECK(w.handler.connect_failures == std::vector{failed{5, error::timed_out}});
        CHECK(w.server->stats().open == 0);
        CHECK(w.ended_as(close_kind::connect_timeout) == 3);
    });
}

TEST_CASE("dial: without a connect deadline it is the system that gives up") {
    dial_world w(false);
    w.server->outgoing({.times = {.connect_ms = 0}});
    REQUIRE(static_cast<bool>(w.dial({silent}, 5)));
    w.pass(100'000);
    CHECK(w.handler.connect_failures.empty());
    w.pass(31'000);
    CHECK(w.handler.connect_failures == std::vector{failed{5, error::timed_out}});
}

TEST_CASE("dial: the most telling failure is told, whatever the order") {
    on_both_kernels([](bool proactor) {
        const struct {
            std::vector<endpoint> to;
            error told;
        } rows[] = {{{unreachable, refusing}, error::connection_refused},
                    {{refusing, unreachable}, error::connection_refused},
                    {{silent, refusing}, error::connection_refused},
                    {{refusing, silent}, error::connection_refused},
                    {{unreachable, silent}, error::timed_out},
                    {{silent, unreachable}, error::timed_out}};
        for (const auto& row : rows) {
            dial_world w(proactor);
            REQUIRE(static_cast<bool>(w.dial(row.to, 5)));
            w.pass(10'100);
            CHECK(w.handler.connect_failures == std::vector{failed{5, row.told}});
        }
        dial_world w(proactor);
        w.gate.enters = [](const netio::connection& c) {
            return c.source() == good ? netio::verdict::refuse() : netio::verdict::allow();
        };
        REQUIRE(static_cast<bool>(w.dial({good, unreachable}, 5)));
        w.pass(100);
        CHECK(w.handler.connect_failures == std::vector{failed{5, error::host_unreachable}});
    });
}

TEST_CASE("dial: so many attempts are under way at once, and further ones follow the failed") {
    on_both_kernels([](bool proactor) {
        for (const std::uint32_t most : {1u, 2u, 4u, 8u}) {
            dial_world w(proactor);
            netio::dial_options how;
            how.attempts_max = most;
            const std::vector<endpoint> to(8, silent);
            REQUIRE(static_cast<bool>(w.dial(to, 5, how)));
            w.pass(3'000);
            CHECK(w.server->stats().open == most);
            CHECK(w.server->stats().pools[0].high_water == most);
            w.net.remote(silent, sim_answer::silent);
            w.pass(7'100);
            CHECK(w.handler.connect_failures.size() == 1);
        }
        dial_world w(proactor);
        netio::dial_options how;
        how.attempts_max = 1;
        REQUIRE(static_cast<bool>(w.dial({refusing, unreachable, refusing, good}, 5, how)));
        w.pass(50);
        CHECK(w.winners == std::vector{good});
    });
}

TEST_CASE("dial: of two that connect in one turn one is told, the other is reset without a byte") {
    on_both_kernels([](bool proactor) {
        bool both = false;
        for (std::uint64_t seed = 1; seed <= 60; ++seed) {
            CAPTURE(seed);
            netio_test::sim_options how;
            how.delay_ns_max = 2'000'000'000;
            dial_world w(proactor, dial_limits, how, seed);
            w.handler.open = [&](netio::connection& c) { c.write(std::string_view("first")); };
            REQUIRE(static_cast<bool>(w.dial({good, better}, 5)));
            for (int at = 0; at < 300 && w.gate.asked.size() < 2 && w.handler.opened == 0; ++at) {
                w.server->run_once(1);
            }
            w.net.pass(3'000'000'000);  // both answer before the next turn
            w.pass(5'000);
            CHECK(w.handler.opened == 1);
            CHECK(w.handler.connect_failures.empty());
            CHECK(w.events.count(netio::server_event_kind::opened) == 1);
            CHECK(w.server->stats().open == 1);
            if (w.net.connected_peers().size() == 2) {
                both = true;
                std::uint32_t resets = 0;
                std::string got;
                for (netio_test::sim_peer& peer : w.net.connected_peers()) {
                    resets += peer.was_reset() ? 1 : 0;
                    got += peer.take_text();
                }
                CHECK(resets == 1);
                CHECK(got == "first");
                CHECK(w.ended_as(close_kind::outpaced) == 1);
            }
        }
        CHECK(both);
    });
}

TEST_CASE("dial: a round that failed is followed by another, after a delay of the upper half") {
    on_both_kernels([](bool proactor) {
        for (std::uint64_t seed = 1; seed <= 20; ++seed) {
            dial_world w(proactor, dial_limits, {}, seed);
            REQUIRE(static_cast<bool>(w.dial({refusing}, 5, rounds(6))));
            const std::uint32_t descriptors = w.net.descriptors_open() - w.server->stats().open;
            std::vector<std::uint64_t> at_ms;
            std::size_t seen = 0;
            for (int turn = 0; turn < 20'000 && w.handler.connect_failures.empty(); ++turn) {
                if (w.gate.asked.size() != seen) {
                    seen = w.gate.asked.size();
                    at_ms.push_back(w.net.now_ns() / 1'000'000);
                }
                if (w.server->stats().open == 0) {
                    CHECK(w.net.descriptors_open() == descriptors);  // while it waits it holds none
                }
                w.server->run_once(1);
            }
            CHECK(w.handler.connect_failures == std::vector{failed{5, error::connection_refused}});
            REQUIRE(at_ms.size() == 6);
            std::uint64_t step = 100;
            for (std::size_t round = 1; round < at_ms.size(); ++round, step *= 2) {
                CAPTURE(round);
                const std::uint64_t passed = at_ms[round] - at_ms[round - 1];
                CHECK(passed >= step / 2);
                CHECK(passed <= step + 10);  // and what the round before took
            }
        }
    });
}

TEST_CASE("dial: workers with other seeds wait for other times") {
    std::vector<std::uint64_t> ends;
    for (const bool gives_random : {true, false}) {
        netio_test::sim_options how;
        how.gives_random = gives_random;
        dial_world w(false, dial_limits, how);
        const std::uint64_t begun = w.net.now_ns();
        REQUIRE(static_cast<bool>(w.dial({refusing}, 5, rounds(6))));
        while (w.handler.connect_failures.empty()) {
            w.server->run_once(1);
        }
        ends.push_back((w.net.now_ns() - begun) / 1'000'000);
    }
    CHECK(ends[0] != ends[1]);
}

TEST_CASE("dial: whoever comes back between two rounds is found by the next") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        REQUIRE(static_cast<bool>(w.dial({refusing}, 5, rounds(0))));
        w.pass(5'000);
        CHECK(w.handler.opened == 0);
        CHECK(w.dials() == 1);
        w.net.remote(refusing, sim_answer::accept);
        w.pass(7'000);
        CHECK(w.winners == std::vector{refusing});
        CHECK(w.dials() == 0);
        CHECK(w.handler.connect_failures.empty());
    });
}

TEST_CASE("dial: its own bound ends rounds and delays together") {
    on_both_kernels([](bool proactor) {
        {
            dial_world w(proactor);
            REQUIRE(static_cast<bool>(w.dial({refusing}, 5, rounds(0, 1'000))));
            w.pass(1'000);
            CHECK(w.handler.connect_failures == std::vector{failed{5, error::connection_refused}});
            CHECK(w.gate.asked.size() >= 3);
        }
        dial_world w(proactor);
        REQUIRE(static_cast<bool>(w.dial({silent}, 5, rounds(0, 3'000))));
        w.pass(2'990);
        CHECK(w.handler.connect_failures.empty());
        w.pass(20);
        CHECK(w.handler.connect_failures == std::vector{failed{5, error::timed_out}});
        REQUIRE(static_cast<bool>(w.dial({silent}, 6, rounds(2, 25'000))));
        w.pass(20'500);  // two rounds of 10 s
        CHECK(w.handler.connect_failures.size() == 2);
    });
}

TEST_CASE("dial: cancelled in every state it is told once, and its id is stale") {
    on_both_kernels([](bool proactor) {
        const struct {
            std::vector<endpoint> to;
            std::uint64_t after_ms;
        } states[] = {{{silent, good}, 0},        // one attempt
                      {{silent, silent}, 300},    // two
                      {{refusing}, 30},           // waiting for the next round
                      {{good}, 0}};               // an attempt that will connect
        for (const auto& state : states) {
            for (const bool turns_between : {false, true}) {
                CAPTURE(state.after_ms);
                dial_world w(proactor);
                const auto made = w.dial(state.to, 5, rounds(0));
                REQUIRE(static_cast<bool>(made));
                w.pass(state.after_ms);
                if (w.handler.opened != 0) {
                    continue;
                }
                CHECK(w.server->cancel_dial(made.value));
                CHECK_FALSE(w.server->cancel_dial(made.value));
                CHECK(w.handler.connect_failures.empty());  // callbacks are never nested
                if (!turns_between) {
                    w.net.pass(1'000'000'000);  // its attempts' answers come in the same turn
                }
                w.pass(1'000);
                CHECK(w.handler.connect_failures == std::vector{failed{5, error::cancelled}});
                CHECK_FALSE(w.server->cancel_dial(made.value));
                CHECK(w.handler.opened == 0);
                CHECK(w.dials() == 0);
                CHECK(w.server->stats().open == 0);
            }
        }
        dial_world w(proactor);
        CHECK_FALSE(w.server->cancel_dial({}));
        CHECK_FALSE(w.server->cancel_dial({netio::token::of(2, 1).bits}));
        CHECK_FALSE(w.server->cancel_dial({netio::token::of(9'999, 1).bits}));
        CHECK_FALSE(w.server->cancel_dial(
            {netio::token::of(0, 1, static_cast<netio::operation>(9)).bits}));
    });
}

TEST_CASE("dial: callbacks may start and cancel dials") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        netio::dial_id other{};
        w.handler.open = [&](netio::connection& c) {
            w.words.push_back(c.connect_word());
            if (c.connect_word() == 1) {
                CHECK(w.server->cancel_dial(other));
                const endpoint to[] = {refusing, better};
                CHECK(static_cast<bool>(c.dial(to, 3)));
                CHECK(c.dial({}, 4).why == error::option_invalid);
            }
        };
        const auto waits = w.dial({silent}, 2);
        REQUIRE(static_cast<bool>(waits));
        other = waits.value;
        REQUIRE(static_cast<bool>(w.dial({good}, 1)));
        w.pass(100);
        CHECK(w.words == std::vector<std::uint64_t>{1, 3});
        CHECK(w.handler.connect_failures == std::vector{failed{2, error::cancelled}});
    });
}

TEST_CASE("dial: drain and stop end it in every state, and a drain begins no second round") {
    on_both_kernels([](bool proactor) {
        const struct {
            std::vector<endpoint> to;
            std::uint64_t after_ms;
        } states[] = {{{silent, silent}, 0}, {{silent, silent}, 300}, {{refusing}, 30}};
        for (const auto& state : states) {
            for (const int end : {0, 1, 2}) {
                CAPTURE(state.after_ms);
                CAPTURE(end);
                dial_world w(proactor);
                REQUIRE(static_cast<bool>(w.dial(state.to, 5, rounds(0))));
                w.pass(state.after_ms);
                REQUIRE(w.dials() == 1);
                if (end == 0) {
                    w.server->stop();
                } else if (end == 1) {
                    w.server->drain(60'000);
                } else {
                    w.server->drain(0);
                }
                w.pump();
                REQUIRE(w.handler.connect_failures.size() == 1);
                const error told = w.handler.connect_failures[0].second;
                CHECK((end == 1 ? told == error::cancelled
                                : told == error::stopped || told == error::cancelled));
                CHECK_FALSE(w.server->run_once(1));
            }
        }
        dial_world w(proactor);
        w.net.remote(good, sim_answer::accept);
        w.handler.drain = [](netio::connection& c) { c.phase(netio::phase::exchange); };
        REQUIRE(static_cast<bool>(w.dial({good}, 5)));
        w.pass(100);
        w.server->drain(5'000);
        w.pump();
        REQUIRE(static_cast<bool>(w.dial({refusing, unreachable}, 6, rounds(0))));
        w.pass(100);
        CHECK(w.handler.connect_failures == std::vector{failed{6, error::connection_refused}});
        CHECK(w.dials() == 0);
        w.server->stop();
        w.pump();
        CHECK(w.dial({good}, 7).why == error::stopped);
    });
}

TEST_CASE("dial: the server's end tells what was under way, and nothing can be dialled by then") {
    on_both_kernels([](bool proactor) {
        for (const std::uint64_t after_ms : {0u, 30u, 300u}) {
            scripted handler;
            netio_test::sim_network net(netio_test::sim_chooser(1),
                                        dial_world::personality({}, proactor));
            net.enter();
            net.remote(silent, sim_answer::silent);
            netio_test::fresh_memory memory(
                netio::bytes_needed<netio_test::simulator>(dial_limits));
            const endpoint two[] = {silent, silent};
            const endpoint none[] = {refusing};
            {
                netio::server<scripted, netio_test::simulator> server(
                    netio::storage_view{memory.all(), dial_limits}, handler);
                REQUIRE(static_cast<bool>(server.dial(two, 1, rounds(0))));
                REQUIRE(static_cast<bool>(server.dial(none, 2, rounds(0))));
                const std::uint64_t until = net.now_ns() + after_ms * 1'000'000;
                while (net.now_ns() < until) {
                    server.run_once(1);
                }
            }
            std::sort(handler.connect_failures.begin(), handler.connect_failures.end());
            CHECK(handler.connect_failures ==
                  std::vector{failed{1, error::stopped}, failed{2, error::stopped}});
            CHECK(net.descriptors_open() == 3);
        }
    });
}

TEST_CASE("dial: the gate sees each attempt, and hears of the end of each that it admitted") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        w.gate.enters = [](const netio::connection& c) {
            return c.source() == better ? netio::verdict::allow(1, 2) : netio::verdict::refuse(3);
        };
        std::uint32_t tag = 0;
        w.handler.open = [&](netio::connection& c) { tag = c.tag(); };
        REQUIRE(static_cast<bool>(w.dial({good, silent, better}, 5)));
        w.pass(50);
        CHECK(w.gate.asked == std::vector{good, silent, better});
        CHECK(w.net.connected_peers().size() == 1);
        CHECK(tag == 2);
        CHECK(w.gate.inside() == 1);
        CHECK(w.gate.ends.empty());
        w.gate.enters = [](const netio::connection&) { return netio::verdict::refuse(3); };
        CHECK(w.dial({good, better}, 6).why == error::refused_by_gate);
        CHECK(w.dials() == 0);
        REQUIRE(static_cast<bool>(w.dial({good, better}, 7, rounds(2))));
        w.pass(200);
        CHECK(w.handler.connect_failures == std::vector{failed{7, error::refused_by_gate}});
        CHECK(w.net.connected_peers().size() == 1);
        w.gate.enters = [](const netio::connection&) { return netio::verdict::allow(); };
        REQUIRE(static_cast<bool>(w.dial({silent, refusing, good}, 8)));
        w.pass(300);
        CHECK(w.gate.inside() == 2);
        REQUIRE(w.gate.ends.size() == 2);
        CHECK(w.gate.ends[0].kind == close_kind::connect_failed);
        CHECK(w.gate.ends[1].kind == close_kind::outpaced);
    });
}

TEST_CASE("dial: slots that run out are a candidate's failure, and its own are free for the next") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = dial_limits;
        sizes.connections_max = 2;
        dial_world w(proactor, sizes);
        w.server->outgoing({.times = {.connect_ms = 2'000}});
        REQUIRE(static_cast<bool>(w.server->connect(good, 1)));
        w.pass(20);
        REQUIRE(static_cast<bool>(w.dial({silent, good}, 5)));  // no slot for the second
        w.pass(1'000);
        CHECK(w.server->stats().open == 2);
        CHECK(w.dial({good}, 6).why == error::full);
        w.pass(1'100);
        CHECK(w.handler.connect_failures == std::vector{failed{5, error::timed_out}});
        // One slot is enough for any number of candidates that fail.
        REQUIRE(static_cast<bool>(w.dial({refusing, unreachable, refusing, better}, 7)));
        w.pass(100);
        CHECK(w.winners == std::vector{good, better});
        CHECK(w.dial({good}, 8).why == error::full);
        REQUIRE(static_cast<bool>(w.dial({good}, 9, rounds(2))));
        w.pass(300);
        CHECK(w.handler.connect_failures.back() == failed{9, error::full});
        CHECK(w.server->stats().open == 2);
    });
}

TEST_CASE("dial: an attempt that takes over the slot of the one before has a deadline, too") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = dial_limits;
        sizes.connections_max = 1;
        dial_world w(proactor, sizes);
        REQUIRE(static_cast<bool>(w.dial({refusing, silent}, 5)));
        w.pass(9'900);
        CHECK(w.server->stats().open == 1);
        w.pass(200);
        CHECK(w.handler.connect_failures == std::vector{failed{5, error::connection_refused}});
        CHECK(w.server->stats().open == 0);
    });
}

TEST_CASE("dial: an attempt that is killed by id is a candidate's failure") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        netio::connection_id attempt{};
        w.gate.enters = [&](const netio::connection& c) {
            attempt = attempt ? attempt : c.id();
            return netio::verdict::allow();
        };
        REQUIRE(static_cast<bool>(w.dial({silent, good}, 5)));
        w.pass(10);
        CHECK(w.server->kill(attempt, 7));
        w.pass(50);  // less than an attempt's delay
        CHECK(w.winners == std::vector{good});
        CHECK(w.ended_as(close_kind::killed) == 1);
        CHECK(w.handler.connect_failures.empty());
    });
}

TEST_CASE("dial: a full table refuses, and a place that is free again is used") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        std::vector<netio::dial_id> ids;
        for (std::uint64_t at = 0; at < 3; ++at) {
            const auto made = w.dial({silent}, at);
            REQUIRE(static_cast<bool>(made));
            ids.push_back(made.value);
        }
        CHECK(w.dial({good}, 9).why == error::full);
        CHECK(w.server->stats().pools[11].refused == 1);
        CHECK(w.server->cancel_dial(ids[1]));
        w.pass(10);
        REQUIRE(static_cast<bool>(w.dial({good}, 9)));
        CHECK_FALSE(w.server->cancel_dial(ids[1]));
        w.pass(10);
        CHECK(w.words == std::vector<std::uint64_t>{9});

        netio::limits sizes = dial_limits;
        sizes.dials_max = 0;
        dial_world without(proactor, sizes);
        CHECK(without.dial({good}, 1).why == error::full);
        sizes.timers_max = 0;
        dial_world neither(proactor, sizes);
        CHECK(neither.dial({good}, 1).why == error::full);
        sizes.dials_max = 1;
        dial_world no_timers(proactor, sizes);
        REQUIRE(static_cast<bool>(no_timers.dial({silent, good}, 1)));
        CHECK(no_timers.server->after(1, 1).why == error::full);
        no_timers.pass(300);
        CHECK(no_timers.winners == std::vector{good});
    });
}

TEST_CASE("dial: what can't be meant is refused") {
    dial_world w(false);
    const auto with = [&](auto change) {
        netio::dial_options how;
        change(how);
        return w.dial({good}, 1, how).why;
    };
    CHECK(w.dial({}, 1).why == error::option_invalid);
    CHECK(w.dial(std::vector<endpoint>(9, good), 1).why == error::option_invalid);
    CHECK(w.dial({good, endpoint{}}, 1).why == error::address_invalid);
    CHECK(with([](auto& how) { how.attempt_delay_ms = 99; }) == error::option_invalid);
    CHECK(with([](auto& how) { how.attempt_delay_ms = 2'001; }) == error::option_invalid);
    CHECK(with([](auto& how) { how.attempts_max = 0; }) == error::option_invalid);
    CHECK(with([](auto& how) { how.attempts_max = 9; }) == error::option_invalid);
    CHECK(with([](auto& how) { how.backoff.first_ms = 0; }) == error::option_invalid);
    CHECK(with([](auto& how) { how.backoff.most_ms = 99; }) == error::option_invalid);
    CHECK(w.server->stats().pools[11].high_water == 0);
}

TEST_CASE("dial: shedding refuses new attempts of its lanes, lockdown is not about them") {
    on_both_kernels([](bool proactor) {
        dial_world w(proactor);
        w.gate.enters = [](const netio::connection&) { return netio::verdict::allow(3); };
        REQUIRE(static_cast<bool>(w.dial({silent, good}, 1)));
        w.pass(20);
        CHECK(w.server->control(netio::control_state::shed, 3) == error::none);
        w.pump();
        CHECK(w.dial({good}, 2).why == error::full);
        w.pass(300);  // what is under way stays, and finds no second attempt
        CHECK(w.server->stats().open == 1);
        CHECK(w.server->control(netio::control_state::lockdown) == error::none);
        REQUIRE(static_cast<bool>(w.dial({good}, 3)));
        w.pass(50);
        CHECK(w.words == std::vector<std::uint64_t>{3});
    });
}

TEST_CASE("dial: two workers have their own, and ids say whose they are") {
    netio::limits sizes = dial_limits;
    sizes.workers_max = 2;
    dial_world w(false, sizes);
    const endpoint to[] = {silent, good};
    const endpoint never[] = {silent};
    const auto other = w.server->dial(never, 1, {}, 1);
    const auto mine = w.server->dial(to, 2, {}, 0);
    REQUIRE(static_cast<bool>(other));
    REQUIRE(static_cast<bool>(mine));
    CHECK(other.value != mine.value);
    CHECK(w.server->cancel_dial(other.value));
    for (int at = 0; at < 300; ++at) {
        w.server->run_once(1, 0);
        w.server->run_once(1, 1);
    }
    CHECK(w.handler.connect_failures == std::vector{failed{1, error::cancelled}});
    CHECK(w.words == std::vector<std::uint64_t>{2});
    w.server->stop();
    while (w.server->run_once(1, 1)) {
    }
}

TEST_CASE("dial: whatever candidates, kernel and server do, each is told once and leaves nothing") {
    const std::uint64_t seeds = std::getenv("NETIO_LONG") != nullptr ? 3'000 : 400;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        CAPTURE(seed);
        netio_test::sim_chooser choose(seed);
        const netio_test::sim_options how = netio_test::sim_options::swarm(choose);
        netio::limits sizes = dial_limits;
        sizes.connections_max = 1 + choose.below(8);
        sizes.dials_max = 1 + choose.below(6);
        dial_world w(how.proactor, sizes, how, seed);
        std::map<std::uint64_t, std::uint32_t> told;
        std::vector<netio::dial_id> ids;
        std::uint64_t started = 0;
        const endpoint all[] = {good, better, refusing, silent, also_silent, unreachable};
        w.gate.enters = [&](const netio::connection&) {
            return choose.below(8) == 0 ? netio::verdict::refuse() : netio::verdict::allow();
        };
        w.handler.open = [&](netio::connection& c) {
            ++told[c.connect_word()];
            choose.below(2) == 0 ? c.close() : c.kill();
        };
        const std::uint32_t steps = 10 + choose.below(30);
        for (std::uint32_t step = 0; step < steps; ++step) {
            const std::uint32_t what = choose.below(10);
            if (what < 4) {
                std::vector<endpoint> to(1 + choose.below(8));
                for (endpoint& each : to) {
                    each = all[choose.below(6)];
                }
                netio::dial_options options = rounds(choose.below(4), choose.below(4) * 3'000);
                options.attempts_max = 1 + choose.below(8);
                options.attempt_delay_ms = 100 + choose.below(500);
                const auto made = w.dial(to, started, options);
                if (made) {
                    ids.push_back(made.value);
                    ++started;
                }
            } else if (what == 4 && !ids.empty()) {
                w.server->cancel_dial(ids[choose.below(static_cast<std::uint32_t>(ids.size()))]);
            } else if (what == 5) {
                w.net.pass(std::uint64_t{choose.below(12'000)} * 1'000'000);
            } else {
                w.pass(choose.below(1u << choose.below(13)));
            }
            REQUIRE(w.server->stats().open <= sizes.connections_max);
        }
        if (choose.below(3) == 0) {
            w.server->drain(choose.below(2) * 3'000);
            std::uint32_t turns = choose.below(4'000);
            while (turns != 0 && w.server->run_once(1)) {
                --turns;
            }
        }
        w.check_nothing_held();
        for (const auto& [word, why] : w.handler.connect_failures) {
            CHECK(why != error::none);
            ++told[word];
        }
        CHECK(told.size() == started);
        for (const auto& each : told) {
            CAPTURE(each.first);
            CHECK(each.second == 1);
        }
    }
}

TEST_CASE("probe: window, end and kernel are told in their order, and no byte is taken") {
    on_both_kernels([](bool proactor) {
        netio_test::server_world<> w(proactor);
        netio::connection_id id{};
        netio::probe_result found;
        std::string got;
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            CHECK(c.probe().found == netio::probed::idle);
            c.pause();
        };
        w.handler.posted = [&](netio::connection& c, std::uint64_t word) {
            found = c.probe();
            if (word == 1) {
                c.resume();
            }
        };
        bool consumes = false;
        w.handler.data = [&](netio::connection& c, netio::bytes in) {
            CHECK(c.probe().found == netio::probed::readable);
            c.pause();
            got = netio_test::text_of(in);
            return consumes ? in.size() : 0;
        };
        w.handler.end = [&](netio::connection& c) {
            CHECK(c.probe().found == netio::probed::peer_closed);
            c.close();
            CHECK(c.probe().found == netio::probed::peer_closed);
        };
        const auto probe = [&](std::uint64_t word = 0) {
            CHECK(w.server->post(id, word));
            w.pump();
            return found;
        };
        w.listen();
        netio_test::sim_peer peer = w.connect();
        CHECK(probe() == netio::probe_result{});
        peer.send("abc");
        CHECK(probe().found == netio::probed::readable);
        CHECK(probe(1).found == netio::probed::readable);
        CHECK(got == "abc");
        CHECK(probe().found == netio::probed::readable);  // in the window by now
        consumes = true;
        probe(1);
        CHECK(probe().found == netio::probed::idle);
        peer.shutdown();
        CHECK(probe().found == netio::probed::peer_closed);
        probe(1);
        CHECK(w.handler.count("end") == 1);
    });
}

TEST_CASE("probe: a reset that it finds ends the connection, and is its reason") {
    on_both_kernels([](bool proactor) {
        netio_test::server_world<> w(proactor);
        netio::connection_id id{};
        netio::probe_result found;
        w.handler.open = [&](netio::connection& c) {
            id = c.id();
            c.pause();
        };
        w.handler.posted = [&](netio::connection& c, std::uint64_t) {
            found = c.probe();
            CHECK(c.probe() == netio::probe_result{netio::probed::failed, error::not_open});
        };
        w.listen();
        netio_test::sim_peer peer = w.connect();
        w.pump();
        peer.reset();
        CHECK(w.server->post(id, 0));
        w.pump();
        CHECK(found == netio::probe_result{netio::probed::failed, error::connection_reset});
        REQUIRE(w.handler.reasons.size() == 1);
        CHECK(w.handler.reasons[0].kind == close_kind::peer_reset);
    });
}

TEST_CASE("adopt: a full server refuses, the socket stays its caller's, a freed place is used") {
    on_both_kernels([](bool proactor) {
        netio::limits sizes = netio_test::small_limits;
        sizes.connections_max = 1;
        netio_test::server_world<> w(proactor, sizes);
        w.pump();
        auto first = w.net.connected_pair();
        auto second = w.net.connected_pair();
        REQUIRE(static_cast<bool>(w.server->adopt(first.handle)));
        CHECK(w.server->adopt(second.handle).why == error::full);
        CHECK(w.net.handle_open(second.handle));
        w.pump();
        first.peer.reset();
        w.pump();
        CHECK(w.handler.closed == 1);
        CHECK(static_cast<bool>(w.server->adopt(second.handle)));
        w.pump();
        CHECK(w.handler.opened == 2);
    });
}
