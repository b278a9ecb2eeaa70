// The simulator itself: same seed, same run; time; faults happen; nothing leaks under any of them.
#include <doctest/doctest.h>

#include "tests/dies.hpp"
#include "tests/simulator.hpp"

namespace {

using namespace netio_test;

/// Memory, pool and one open instance over a network.
struct simulator_rig {
    static constexpr std::uint32_t buffers = 8;
    static constexpr std::uint32_t buffer_bytes = 256;
    static constexpr backend_limits sizes{16, 2, 2, 4};

    explicit simulator_rig(sim_network& net) : network(net) {
        net.enter();
        pool.attach(data.data(), links.data(), buffers * 2, buffer_bytes, buffers, buffers, true);
        opened = kernel.open(memory, sizes, pool);
    }
    std::uint32_t wait(std::uint64_t timeout_ns = 0) {
        count = kernel.wait(events, timeout_ns);
        return count;
    }

    sim_network& network;
    alignas(64) std::array<std::byte, simulator::bytes_needed(sizes)> memory{};
    std::array<std::byte, std::size_t{buffers} * 2 * buffer_bytes> data{};
    std::array<std::uint32_t, std::size_t{buffers} * 2> links{};
    buffer_pool pool;
    simulator kernel;
    os_status opened{};
    std::array<event, 8> events{};
    std::uint32_t count = 0;
};

/// The least server: echoes, closes on end or failure. Knows nothing but the contract.
class simulator_echo {
public:
    simulator_echo(sim_network& net, std::uint32_t connections_wanted)
        : rig_(net), wanted_(connections_wanted) {
        stream_address where{loopback_ipv4(0), {}};
        listener_ = simulator::listen(where, {}).handle;
        port_ = simulator::local_of(listener_).value.port;
    }

    /// Runs until `connections_wanted` clients were made and all are gone. False: it hung.
    bool run() {
        for (int turn = 0; turn < 2'000'000; ++turn) {
            if (!accepting_) {
                accepting_ = bool(rig_.kernel.start_accept(listener_, token::of(0, 1)));
            }
            act();
            const std::uint32_t count = rig_.wait(1'000'000);
            for (std::uint32_t at = 0; at < count; ++at) {
                dispatch(rig_.events[at]);
            }
            if (made_ == wanted_ && live_ == 0 && peers_.empty() && idle_turns_++ > 64) {
                return true;
            }
        }
        return false;
    }
    void finish() {
        if (accepting_) {
            rig_.kernel.stop_accept(token::of(0, 1));
        }
        simulator::close_handle(listener_);
        rig_.kernel.close();
    }
    simulator_rig& rig() { return rig_; }
    std::uint64_t echoed_bytes() const { return echoed_; }

private:
    struct slot {
        std::uint32_t generation = 0;
        bool used = false;
        bool receiving = false;
        bool stopped = false;
        bool sending = false;
        bool closing = false;
        bool ended = false;
        std::vector<std::byte> out;
        std::size_t sent = 0;
    };
    struct client {
        sim_peer peer;
        std::uint32_t sent = 0;
        std::uint32_t got = 0;
    };

    sim_chooser& choose() { return rig_.network.choose; }
    token of(std::uint32_t index) { return token::of(index, slots_[index].generation); }

    void act() {
        if (made_ < wanted_ && choose().below(4) == 0) {
            ++made_;
            const sim_peer made = rig_.network.connect(port_);
            if (made.open()) {
                peers_.push_back({made});
            }
        }
        if (peers_.empty()) {
            return;
        }
        const std::uint32_t at = choose().below(static_cast<std::uint32_t>(peers_.size()));
        client& each = peers_[at];
        check_echo(each);
        switch (choose().below(8)) {
        case 0:
            each.peer.reset();
            break;
        case 1:
            each.peer.close();
            break;
        case 2:
            each.peer.shutdown();
            break;
        default:
            send_some(each);
        }
        if (each.peer.was_reset() || (each.peer.finished() && each.peer.unread().empty())) {
            each.peer.close();
        }
        if (!each.peer.open()) {
            peers_[at] = peers_.back();
            peers_.pop_back();
        }
    }
    void send_some(client& from) {
        std::array<std::byte, 700> data{};
        const std::uint32_t count = 1 + choose().below(700);
        for (std::uint32_t at = 0; at < count; ++at) {
            data[at] = static_cast<std::byte>((from.sent + at) * 7);
        }
        from.sent += static_cast<std::uint32_t>(from.peer.send(bytes(data).first(count)));
    }
    void check_echo(client& of_client) {
        bool same = true;
        for (std::byte each : of_client.peer.unread()) {
            same = same && each == static_cast<std::byte>(of_client.got * 7);
            ++of_client.got;
            ++echoed_;
        }
        REQUIRE(same);
        of_client.peer.take(of_client.peer.unread().size());
    }

    void dispatch(const event& what) {
        if (what.kind == event_kind::woken) {
            return;
        }
        if (what.op == operation::accept) {
            accepted(what);
            return;
        }
        slot& at = slots_[what.who.index()];
        REQUIRE(at.used);
        REQUIRE(what.who.generation() == at.generation);
        if (what.op == operation::receive) {
            received(at, what);
        } else if (what.op == operation::send) {
            at.sending = false;
            at.sent += what.byte_count;
            at.ended = at.ended || what.kind == event_kind::failed;
        } else if (what.kind == event_kind::closed) {
            at.used = false;
            --live_;
            return;
        }
        drive(what.who.index());
    }
    void accepted(const event& what) {
        if (what.kind == event_kind::failed) {
            accepting_ = false;
            return;
        }
        std::uint32_t index = 0;
        while (index < slots_.size() && slots_[index].used) {
            ++index;
        }
        const std::uint32_t generation = index < slots_.size() ? slots_[index].generation + 1 : 0;
        if (index == slots_.size() ||
            !rig_.kernel.attach(what.handle, token::of(index, generation))) {
            simulator::close_handle(what.handle);
            return;
        }
        slots_[index] = slot{};
        slots_[index].generation = generation;
        slots_[index].used = true;
        ++live_;
        drive(index);
    }
    void received(slot& at, const event& what) {
        if (what.buffer_index != none_index) {
            const std::byte* from = rig_.pool.data(what.buffer_index);
            at.out.insert(at.out.end(), from, from + what.byte_count);
            rig_.pool.give(what.buffer_index, side::input, what.byte_count);
        }
        at.receiving = at.receiving && !what.disarmed && what.kind == event_kind::received;
        at.ended = at.ended || what.kind != event_kind::received;
    }
    void drive(std::uint32_t index) {
        slot& at = slots_[index];
        if (at.closing) {
            return;
        }
        if (at.ended || choose().below(32) == 0) {
            at.closing = true;
            rig_.kernel.start_close(of(index), choose().below(2) == 1);
            return;
        }
        if (!at.sending && at.sent != 0) {
            at.out.erase(at.out.begin(), at.out.begin() + static_cast<std::ptrdiff_t>(at.sent));
            at.sent = 0;
        }
        if (!at.sending && !at.out.empty() && !at.receiving) {
            const bytes whole(at.out);
            const std::size_t half = whole.size() / 2;
            const bytes two[] = {whole.first(half), whole.subspan(half)};
            at.sending = true;
            rig_.kernel.start_send(of(index), half == 0 ? std::span(two).last(1) : two);
        } else if (at.receiving && !at.stopped && choose().below(8) == 0) {
            at.stopped = true;
            rig_.kernel.stop_receive(of(index));
        } else if (!at.receiving && !at.sending) {
            at.receiving = true;
            at.stopped = false;
            rig_.kernel.start_receive(of(index), {}, 1 + choose().below(1000));
        }
    }

    simulator_rig rig_;
    std::uint32_t wanted_;
    socket_handle listener_ = no_handle;
    std::uint16_t port_ = 0;
    bool accepting_ = false;
    std::uint32_t made_ = 0;
    std::uint32_t live_ = 0;
    std::uint32_t idle_turns_ = 0;
    std::uint64_t echoed_ = 0;
    std::array<slot, 16> slots_{};
    std::vector<client> peers_;
};

struct simulator_outcome {
    std::uint64_t trace = 0;
    std::uint64_t echoed_bytes = 0;
    std::uint32_t descriptors = 0;
    std::uint32_t buffers = 0;
    bool ended = false;
    sim_counts counts{};
};

simulator_outcome simulator_run(sim_chooser choose, const sim_options& options,
                                std::uint32_t connections) {
    sim_network net(choose, options);
    simulator_outcome out;
    simulator_echo echo(net, connections);
    out.ended = echo.run();
    echo.finish();
    out.trace = net.trace();
    out.echoed_bytes = echo.echoed_bytes();
    out.descriptors = net.descriptors_open();
    out.buffers = echo.rig().pool.in_use(side::input);
    out.counts = net.counts;
    return out;
}

simulator_outcome simulator_swarm(std::uint64_t seed, std::uint32_t connections) {
    sim_seed_shown = seed;
    sim_chooser choose(seed);
    const sim_options options = sim_options::swarm(choose);
    return simulator_run(choose, options, connections);
}

}  // namespace

TEST_CASE("simulator: the same seed gives the same trace, another one another") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        CHECK(simulator_swarm(seed, 20).trace == simulator_swarm(seed, 20).trace);
    }
    CHECK(simulator_swarm(1, 20).trace != simulator_swarm(2, 20).trace);
}

TEST_CASE("simulator: under every mixture of faults nothing hangs, leaks or arrives changed") {
    sim_counts total;
    std::uint64_t echoed = 0;
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        const simulator_outcome one = simulator_swarm(seed, 30);
        CAPTURE(seed);
        REQUIRE(one.ended);
        REQUIRE(one.descriptors == 3);
        REQUIRE(one.buffers == 0);
        total.add(one.counts);
        echoed += one.echoed_bytes;
    }
    CHECK(echoed > 100'000);
    for (std::size_t at = 0; at < sim_faults_count; ++at) {
        const sim_fault fault = static_cast<sim_fault>(at);
        if (fault < sim_fault::datagram_lost && fault != sim_fault::connect_error) {
            CAPTURE(std::string(name(fault)));
            CHECK(total.of(fault) > 0);
        }
    }
}

TEST_CASE("simulator: bytes choose the run, and after their end no fault happens") {
    std::array<std::byte, 400> script{};
    for (std::size_t at = 0; at < script.size(); ++at) {
        script[at] = static_cast<std::byte>(at * 37);
    }
    sim_chooser choose{bytes(script)};
    const sim_options options = sim_options::swarm(choose);
    const simulator_outcome one = simulator_run(choose, options, 10);
    CHECK(one.ended);
    CHECK(one.descriptors == 3);
    CHECK(one.trace == simulator_run(choose, options, 10).trace);
}

TEST_CASE("simulator: waiting for nothing lasts exactly the time-out, in no time") {
    sim_options options;
    options.turn_ns_max = 0;
    sim_network net(sim_chooser(1), options);
    simulator_rig rig(net);
    const std::uint64_t before = net.now_ns();
    CHECK(rig.wait(5'000'000'000) == 0);
    CHECK(net.now_ns() - before == 5'000'000'000);
    CHECK(rig.wait(0) == 0);
    CHECK(net.now_ns() - before == 5'000'000'000);
    CHECK(rig.wait(forever_ns) == 0);
}

TEST_CASE("simulator: wait ends where the test wants to act") {
    sim_options options;
    options.turn_ns_max = 0;
    sim_network net(sim_chooser(1), options);
    simulator_rig rig(net);
    const std::uint64_t before = net.now_ns();
    net.at(before + 700, 42);
    CHECK(rig.wait(forever_ns) == 0);
    CHECK(net.now_ns() == before + 700);
    REQUIRE(net.due_words().size() == 1);
    CHECK(net.due_words()[0] == 42);
}

TEST_CASE("simulator: clients that fail in accept are skipped, the others all arrive") {
    sim_options options;
    options.with(sim_fault::accept_skipped, 512);
    sim_network net(sim_chooser(3), options);
    simulator_rig rig(net);
    const socket_handle listener = simulator::listen({loopback_ipv4(0), {}}, {}).handle;
    const std::uint16_t port = simulator::local_of(listener).value.port;
    REQUIRE(rig.kernel.start_accept(listener, token::of(0, 1)));
    std::vector<sim_peer> clients;
    for (int each = 0; each < 100; ++each) {
        clients.push_back(net.connect(port));
    }
    std::size_t accepted = 0;
    while (rig.wait(1'000'000) != 0) {
        for (std::uint32_t at = 0; at < rig.count; ++at) {
            REQUIRE(rig.events[at].kind == event_kind::accepted);
            ++accepted;
        }
    }
    const auto skipped = static_cast<std::size_t>(net.counts.of(sim_fault::accept_skipped));
    CHECK(skipped > 20);
    CHECK(accepted == 100 - skipped);
    for (error why : {error::connection_aborted, error::network_down, error::permission_denied,
                      error::os_failure}) {
        CHECK(net.counts.errors[static_cast<std::size_t>(why)] > 0);
    }
    CHECK(static_cast<std::size_t>(std::count_if(clients.begin(), clients.end(), [](auto& each) {
              return each.was_reset();
          })) == skipped);
    rig.kernel.stop_accept(token::of(0, 1));
    simulator::close_handle(listener);
}

TEST_CASE("simulator: both ends of a stream may be the process's own") {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        sim_options options;
        options.proactor = true;
        sim_network net(sim_chooser(seed), options);
        simulator_rig rig(net);
        const socket_handle listener = simulator::listen({loopback_ipv4(0), {}}, {}).handle;
        const token one = token::of(0, 1), other = token::of(1, 1);
        REQUIRE(rig.kernel.start_accept(listener, token::of(0, 1)));
        REQUIRE(rig.kernel.start_connect({simulator::local_of(listener).value, {}}, {}, one));
        std::string text;
        for (int each = 0; text.size() < 2000; ++each) {
            text += std::to_string(each) + ' ';
        }
        const bytes slice = as_bytes(text);
        std::string received[2];
        const auto begin = [&](token who) {
            rig.kernel.start_receive(who, {}, 100'000);
            rig.kernel.start_send(who, {&slice, 1});
        };
        for (int turns = 0; turns < 200; ++turns) {
            rig.wait(1'000'000);
            for (std::uint32_t at = 0; at < rig.count; ++at) {
                const event& what = rig.events[at];
                if (what.kind == event_kind::accepted) {
                    REQUIRE(rig.kernel.attach(what.handle, other));
                    begin(other);
                } else if (what.kind == event_kind::connected) {
                    begin(one);
                } else if (what.kind == event_kind::received) {
                    received[what.who.index()] +=
                        as_text({rig.pool.data(what.buffer_index), what.byte_count});
                    rig.pool.give(what.buffer_index, side::input, what.byte_count);
                }
            }
        }
        CHECK((received[0] == text));
        CHECK((received[1] == text));
    }
}

TEST_CASE("simulator: bytes changed under a send are seen") {
    sim_network net(sim_chooser(1), {});
    simulator_rig rig(net);
    const sim_network::pair both = net.connected_pair();
    REQUIRE(rig.kernel.attach(both.handle, token::of(0, 1)));
    std::string text = "stable until the event";
    const bytes slice = as_bytes(text);
    rig.kernel.start_send(token::of(0, 1), {&slice, 1});
    CHECK(dies([&] {
        text[3] = 'X';
        rig.wait();
    }));
    CHECK_FALSE(dies([&] { rig.wait(); }));
}

TEST_CASE("simulator: memory written under a receive is seen") {
    sim_network net(sim_chooser(1), {});
    simulator_rig rig(net);
    const sim_network::pair both = net.connected_pair();
    REQUIRE(rig.kernel.attach(both.handle, token::of(0, 1)));
    std::array<std::byte, 32> place{};
    rig.kernel.start_receive(token::of(0, 1), place, 0);
    sim_peer peer = both.peer;
    peer.send("hello");
    CHECK(dies([&] {
        place[9] = std::byte{1};
        rig.wait();
    }));
    CHECK_FALSE(dies([&] { rig.wait(); }));
}

TEST_CASE("simulator: a closed handle is no handle, even if its place is another's") {
    sim_network net(sim_chooser(1), {});
    simulator_rig rig(net);
    const sim_network::pair first = net.connected_pair();
    simulator::close_handle(first.handle);
    const sim_network::pair second = net.connected_pair();
    CHECK(second.handle != first.handle);
    CHECK(dies([&] { simulator::close_handle(first.handle); }));
    CHECK(dies([&] { (void)rig.kernel.attach(first.handle, token::of(0, 1)); }));
    CHECK_FALSE(dies([&] { (void)rig.kernel.attach(second.handle, token::of(0, 1)); }));
}

TEST_CASE("simulator: datagrams are lost, doubled and refused as told") {
    sim_options options;
    options.with(sim_fault::datagram_lost, 256).with(sim_fault::datagram_twice, 256);
    options.with(sim_fault::send_to_error, 256);
    sim_network net(sim_chooser(5), options);
    simulator_rig rig(net);
    const socket_handle socket = simulator::open_datagram(loopback_ipv4(0), {}).handle;
    const endpoint far = ipv4(192, 0, 2, 7, 9);
    const std::uint32_t peer = net.datagram_peer(far);
    std::uint64_t sent = 0;
    for (std::uint32_t round = 1; round <= 200; ++round) {
        rig.kernel.start_send_to(socket, token::of(0, round), as_bytes("x"), far);
        while (rig.wait(1'000'000) == 0) {
        }
        sent += rig.events[0].kind == event_kind::sent;
    }
    const std::uint64_t lost = net.counts.of(sim_fault::datagram_lost);
    const std::uint64_t twice = net.counts.of(sim_fault::datagram_twice);
    CHECK(lost > 10);
    CHECK(twice > 10);
    CHECK(sent == 200 - net.counts.of(sim_fault::send_to_error));
    CHECK(net.datagrams(peer).size() == sent - lost + twice);
    simulator::close_handle(socket);
}
