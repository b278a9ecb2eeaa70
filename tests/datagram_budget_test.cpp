// What UDP sources may take and what strangers may be sent: exact bounds, bounded tables, and a
// slow model beside them.
#include <doctest/doctest.h>

#include "netio.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <vector>

namespace {

namespace detail = netio::detail;
using netio::detail::datagram_word;

constexpr std::uint64_t budget_ms = 1'000'000;  // nanoseconds

detail::datagram_rules budget_rules(std::uint32_t amplification = 1) {
    return {{detail::token_rate::of(1'000, 100), detail::token_rate::of(1'000'000, 131'072)},
            {},
            amplification,
            10'000 * budget_ms,
            60'000 * budget_ms};
}
netio::endpoint budget_client(std::uint32_t number, std::uint16_t port = 5000) {
    return netio::ipv4(10, static_cast<std::uint8_t>(number >> 16),
                       static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number),
                       port);
}

/// One socket's guard with a table of its own, and the time.
struct budget_box {
    std::vector<std::uint64_t> memory;
    detail::datagram_sources sources;
    detail::datagram_guard guard{};
    std::uint64_t now_ns = 0;

    explicit budget_box(const detail::datagram_rules& rules = budget_rules(),
                        std::uint32_t sources_max = 64)
        : memory(detail::datagram_sources::places_for(sources_max) *
                 detail::datagram_sources::source_bytes / 8) {
        sources.attach(reinterpret_cast<std::byte*>(memory.data()),
                       detail::datagram_sources::places_for(sources_max));
        const std::uint64_t key[2] = {0x0123456789abcdef, 77};
        sources.set_key(key);
        guard.set(rules, 0);
    }
    datagram_word admit(const netio::endpoint& from, std::uint32_t count = 1) {
        return guard.admit(sources, from, count, now_ns);
    }
    /// How many of `tries` datagrams of `count` bytes come through, at one moment.
    std::uint32_t flood(const netio::endpoint& from, std::uint32_t tries, std::uint32_t count = 1) {
        std::uint32_t in = 0;
        for (std::uint32_t at = 0; at < tries; ++at) {
            in += admit(from, count) == datagram_word::welcome ? 1 : 0;
        }
        return in;
    }
    void received(const netio::endpoint& from, std::uint32_t count) {
        guard.received(sources, from, count, now_ns);
    }
    bool sends(const netio::endpoint& to, std::uint64_t count) {
        return guard.may_send(sources, to, count, now_ns);
    }
    bool prove(const netio::endpoint& who) { return guard.prove(sources, who, now_ns); }
    std::uint32_t sources_in_use() const { return sources.source_stats(now_ns).in_use; }
    std::uint32_t addresses_in_use() const { return sources.address_stats(now_ns).in_use; }
};

}  // namespace

TEST_CASE("datagram_budget: a burst comes through, then as many as the rate, to the nanosecond") {
    budget_box box;
    const netio::endpoint from = budget_client(1);
    CHECK(box.flood(from, 1'000) == 100);
    CHECK(box.admit(from) == datagram_word::over_source);
    box.now_ns += budget_ms - 1;
    CHECK(box.flood(from, 10) == 0);
    box.now_ns += 1;
    CHECK(box.flood(from, 10) == 1);
    box.now_ns += 57 * budget_ms;
    CHECK(box.flood(from, 1'000) == 57);
    box.now_ns += 100 * budget_ms;
    CHECK(box.flood(from, 1'000) == 100);
    box.now_ns += 1'000'000 * budget_ms;
    CHECK(box.flood(from, 1'000) == 100);  // a long pause saves up a burst, not more
}

TEST_CASE("datagram_budget: bytes have a budget of their own, exact, and the largest one fits") {
    budget_box box;
    const netio::endpoint from = budget_client(1);
    CHECK(box.admit(from, 65'535) == datagram_word::welcome);
    CHECK(box.admit(from, 65'538) == datagram_word::over_source);
    CHECK(box.admit(from, 65'537) == datagram_word::welcome);  // 131,072 in all
    CHECK(box.admit(from, 0) == datagram_word::welcome);
    CHECK(box.admit(from, 1) == datagram_word::over_source);
    box.now_ns += 1'000;  // one byte's time
    CHECK(box.admit(from, 2) == datagram_word::over_source);
    CHECK(box.admit(from, 1) == datagram_word::welcome);
    CHECK(box.admit(from, 1) == datagram_word::over_source);
}

TEST_CASE("datagram_budget: what is refused is charged to nobody") {
    auto rules = budget_rules();
    rules.socket.datagrams = detail::token_rate::of(1'000, 150);
    budget_box box(rules);
    CHECK(box.flood(budget_client(1), 5'000) == 100);
    CHECK(box.flood(budget_client(2), 5'000) == 50);  // what is left of all, not less
    CHECK(box.admit(budget_client(3)) == datagram_word::over_socket);
    box.now_ns += 100 * budget_ms;
    CHECK(box.flood(budget_client(3), 5'000) == 100);  // its own was never touched
    CHECK(box.admit(budget_client(3)) == datagram_word::over_source);
    CHECK(box.admit(budget_client(4)) == datagram_word::over_socket);
    CHECK(box.guard.admit(box.sources, {}, 1, box.now_ns) == datagram_word::over_socket);
}

TEST_CASE("datagram_budget: an IPv4 address is a source, an IPv6 network of 64 bits is one") {
    budget_box box;
    CHECK(box.flood(budget_client(1, 1), 60) == 60);
    CHECK(box.flood(budget_client(1, 2), 60) == 40);
    CHECK(box.flood(netio::mapped(budget_client(1, 3)), 60) == 0);
    const netio::endpoint one = netio::parse_address("2001:db8::1").value;
    const netio::endpoint other = netio::parse_address("2001:db8::ffff:2").value;
    CHECK(box.flood(one, 60) == 60);
    CHECK(box.flood(other, 60) == 40);
    CHECK(box.flood(netio::parse_address("2001:db8:0:1::1").value, 60) == 60);
}

TEST_CASE("datagram_budget: two sockets of one worker count a source apart") {
    budget_box box;
    detail::datagram_guard other{};
    other.set(budget_rules(), 1);
    CHECK(box.flood(budget_client(1), 200) == 100);
    CHECK(other.admit(box.sources, budget_client(1), 1, 0) == datagram_word::welcome);
    box.received(budget_client(1), 10);
    CHECK_FALSE(other.may_send(box.sources, budget_client(1), 1, 0));
    CHECK(box.sends(budget_client(1), 10));
}

TEST_CASE("datagram_budget: rates of 0 bound nothing, and what bounds nothing remembers nothing") {
    budget_box box(detail::datagram_rules{{}, {}, 0, 10'000 * budget_ms, 60'000 * budget_ms});
    CHECK(box.flood(budget_client(1), 5'000, 65'535) == 5'000);
    box.received(budget_client(1), 1);
    CHECK(box.sends(budget_client(2), 1'000'000));
    CHECK(box.prove(budget_client(2)));
    CHECK(std::all_of(box.memory.begin(), box.memory.end(), [](auto word) { return word == 0; }));
    budget_box none(budget_rules(), 0);
    CHECK(none.memory.empty());
    CHECK(none.flood(budget_client(1), 5'000) == 5'000);
    none.received(budget_client(1), 1);
    CHECK(none.sends(budget_client(2), 1'000'000));
    CHECK(none.prove(budget_client(2)));
}

TEST_CASE("datagram_budget: an address gets factor times what it sent, to the byte, and no more") {
    for (const std::uint32_t factor : {1u, 2u, 3u}) {
        CAPTURE(factor);
        budget_box box(budget_rules(factor));
        const netio::endpoint at = budget_client(1);
        CHECK_FALSE(box.sends(at, 1));
        CHECK_FALSE(box.sends(at, 0));
        box.received(at, 100);
        CHECK_FALSE(box.sends(at, 100 * factor + 1));
        CHECK(box.sends(at, 100 * factor - 1));
        CHECK_FALSE(box.sends(at, 2));
        CHECK(box.sends(at, 1));
        CHECK_FALSE(box.sends(at, 0));
        box.received(at, 0);  // an empty one counts as a byte
        for (std::uint32_t sent = 0; sent < factor; ++sent) {
            CHECK(box.sends(at, 0));
        }
        CHECK_FALSE(box.sends(at, 0));
    }
}

TEST_CASE("datagram_budget: another port, another address of the same network are others") {
    budget_box box;
    box.received(budget_client(1, 1), 100);
    CHECK_FALSE(box.sends(budget_client(1, 2), 1));
    const auto named = [](const char* text) { return netio::parse_address(text).value; };
    box.received(named("2001:db8::1"), 100);
    CHECK_FALSE(box.sends(named("2001:db8::2"), 1));
    netio::endpoint linked = named("fe80::1");
    linked.scope_id = 1;
    box.received(linked, 100);
    linked.scope_id = 2;
    CHECK_FALSE(box.sends(linked, 1));
    CHECK(box.sends(netio::mapped(budget_client(1, 1)), 100));
}

TEST_CASE("datagram_budget: what was earned lasts to the end of the next window, old bytes first") {
    budget_box box;
    const netio::endpoint at = budget_client(1);
    box.now_ns = 9'999 * budget_ms;
    box.received(at, 100);
    box.now_ns = 20'000 * budget_ms - 1;
    CHECK(box.sends(at, 60));
    box.now_ns += 1;
    CHECK_FALSE(box.sends(at, 1));
    box.received(at, 10);
    box.now_ns = 30'000 * budget_ms;
    box.received(at, 20);
    CHECK(box.sends(at, 5));  // of the 10
    box.now_ns = 40'000 * budget_ms - 1;
    CHECK_FALSE(box.sends(at, 26));
    CHECK(box.sends(at, 1));
    box.now_ns += 1;
    CHECK_FALSE(box.sends(at, 21));  // the 10 are over
    CHECK(box.sends(at, 20));
    CHECK(box.addresses_in_use() == 0);
}

TEST_CASE("datagram_budget: who is proven gets everything, until the time is over or renewed") {
    budget_box box;
    const netio::endpoint at = budget_client(1);
    CHECK(box.prove(at));
    CHECK(box.sends(at, 1'000'000'000));
    CHECK_FALSE(box.sends(budget_client(1, 1), 1));
    box.now_ns = 60'000 * budget_ms - 1;
    CHECK(box.sends(at, 1));
    box.received(at, 30);
    CHECK(box.sends(at, 1'000));  // costs nothing of what it earned
    box.now_ns += 1;
    CHECK_FALSE(box.sends(at, 31));
    CHECK(box.sends(at, 30));
    CHECK(box.prove(at));
    box.now_ns += 59'999 * budget_ms;
    CHECK(box.prove(at));
    box.now_ns += 59'999 * budget_ms;
    CHECK(box.sends(at, 1'000));
}

TEST_CASE("datagram_budget: what was earned does not overflow") {
    budget_box box(budget_rules(3));
    for (int each = 0; each < 40'000; ++each) {
        box.received(budget_client(1), 65'535);
    }
    CHECK_FALSE(box.sends(budget_client(1), 0x1'0000'0000));
    CHECK(box.sends(budget_client(1), 0xFFFF'FFFF));
    CHECK_FALSE(box.sends(budget_client(1), 1));
}

TEST_CASE("datagram_budget: a clock that jumps far ahead leaves everything full and forgotten") {
    budget_box box;
    const netio::endpoint at = budget_client(1);
    for (const std::uint64_t far : {std::uint64_t{1} << 40, std::uint64_t{1} << 55,
                                    (std::uint64_t{1} << 62) - 1}) {
        CAPTURE(far);
        CHECK(box.flood(at, 200) == 100);
        box.received(at, 100);
        CHECK(box.prove(at));
        box.now_ns = far;
        CHECK(box.sources_in_use() == 0);
        CHECK(box.addresses_in_use() == 0);
        CHECK_FALSE(box.sends(at, 1));
    }
    CHECK(box.flood(at, 200) == 100);
    box.received(at, 100);
    CHECK(box.sends(at, 100));
    CHECK_FALSE(box.sends(at, 1));
}

TEST_CASE("datagram_budget: sources without a place share one budget, and none is pushed out") {
    budget_box box(budget_rules(), 16);
    for (std::uint32_t number = 0; number < 16; ++number) {
        REQUIRE(box.flood(budget_client(number), 60) == 60);
    }
    CHECK(box.sources_in_use() == 16);
    std::uint32_t in = 0;
    for (std::uint32_t number = 100; number < 10'100; ++number) {
        in += box.flood(budget_client(number), 1);
    }
    CHECK(in == 100);
    CHECK(box.sources.source_stats(box.now_ns).refused == 10'000);
    for (std::uint32_t number = 0; number < 16; ++number) {
        CHECK(box.flood(budget_client(number), 60) == 40);  // what was theirs before
    }
    box.now_ns += 100 * budget_ms;  // all are full again, and their places as good as new
    CHECK(box.sources_in_use() == 0);
    for (std::uint32_t number = 200; number < 216; ++number) {
        CHECK(box.flood(budget_client(number), 200) == 100);
    }
}

TEST_CASE("datagram_budget: addresses without a place share what they earn, and not a byte more") {
    budget_box box(budget_rules(), 16);
    for (std::uint32_t number = 0; number < 16; ++number) {
        box.received(budget_client(number), 10);
    }
    for (std::uint32_t number = 100; number < 1'100; ++number) {
        box.received(budget_client(number), 1);
    }
    CHECK(box.sources.address_stats(box.now_ns).refused == 1'000);
    CHECK(box.sends(budget_client(200), 600));
    CHECK_FALSE(box.sends(budget_client(300), 401));
    CHECK(box.sends(budget_client(9'999), 400));
    CHECK_FALSE(box.sends(budget_client(300), 1));
    for (std::uint32_t number = 0; number < 16; ++number) {
        CHECK_FALSE(box.sends(budget_client(number), 11));
        CHECK(box.sends(budget_client(number), 10));
    }
}

TEST_CASE("datagram_budget: a proof takes the place of one that is not proven, never of a proof") {
    budget_box box(budget_rules(), 16);
    for (std::uint32_t number = 0; number < 16; ++number) {
        box.received(budget_client(number), 10);
    }
    for (std::uint32_t number = 100; number < 116; ++number) {
        CHECK(box.prove(budget_client(number)));
    }
    CHECK_FALSE(box.prove(budget_client(116)));
    CHECK_FALSE(box.sends(budget_client(116), 1));
    CHECK_FALSE(box.sends(budget_client(0), 1));  // lost its place and what it had earned there
    for (std::uint32_t number = 100; number < 116; ++number) {
        CHECK(box.sends(budget_client(number), 1'000));
        CHECK(box.prove(budget_client(number)));
    }
    box.now_ns += 60'000 * budget_ms;
    CHECK(box.prove(budget_client(116)));
}

TEST_CASE("datagram_budget: most of a table's places are found by as many sources as it is for") {
    budget_box box(budget_rules(), 4096);
    for (std::uint32_t number = 0; number < 4096; ++number) {
        box.admit(budget_client(number));
    }
    CHECK(box.sources_in_use() > 4096 * 9 / 10);
    CHECK(box.sources_in_use() + box.sources.source_stats(0).refused == 4096);
}

TEST_CASE("datagram_budget: no address is kept, and forgetting leaves zeros") {
    budget_box box;
    const netio::endpoint at = netio::ipv4(0xA5, 0x5A, 0xC3, 0x3C, 0x7E7E);
    box.admit(at);
    box.received(at, 10);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(box.memory.data());
    const std::uint8_t wanted[] = {0xA5, 0x5A, 0xC3, 0x3C};
    const std::uint8_t turned[] = {0x3C, 0xC3, 0x5A, 0xA5};
    for (const auto& form : {wanted, turned}) {
        CHECK(std::search(bytes, bytes + box.memory.size() * 8, form, form + 4) ==
              bytes + box.memory.size() * 8);
    }
    CHECK(box.addresses_in_use() == 1);
    box.sources.forget_all();
    CHECK(std::all_of(box.memory.begin(), box.memory.end(), [](auto word) { return word == 0; }));
}

namespace {

/// A token bucket counted in billionths of a token: exact, and slow only in being so large.
struct model_bucket {
    std::uint64_t rate, level_max, level, at_ns = 0;

    model_bucket(std::uint32_t per_second, std::uint32_t burst)
        : rate(per_second), level_max(std::uint64_t{burst} * 1'000'000'000), level(level_max) {}
    bool has(std::uint64_t count, std::uint64_t now_ns) {
        level = std::min(level_max, level + (now_ns - at_ns) * rate);
        at_ns = now_ns;
        return rate == 0 || count * 1'000'000'000 <= level;
    }
    void take(std::uint64_t count) { level -= rate == 0 ? 0 : count * 1'000'000'000; }
};

/// Every byte that an address earned, with its window.
struct model_address {
    std::deque<std::pair<std::uint64_t, std::uint64_t>> earned;
    std::uint64_t proven_until_ns = 0;

    bool spend(std::uint64_t count, std::uint64_t window) {
        while (!earned.empty() && earned.front().first + 1 < window) {
            earned.pop_front();
        }
        std::uint64_t sum = 0;
        for (const auto& each : earned) {
            sum += each.second;
        }
        if (count > sum) {
            return false;
        }
        while (count != 0) {
            const std::uint64_t some = std::min(count, earned.front().second);
            count -= some;
            earned.front().second -= some;
            if (earned.front().second == 0) {
                earned.pop_front();
            }
        }
        return true;
    }
};

void budget_against_model(std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t most) {
        return static_cast<std::uint32_t>(random() % most);
    };
    const std::uint32_t rates[] = {0, 1, 3, 7, 999, 1'000, 123'457, 1'000'003};
    const std::uint32_t rate = rates[below(8)];
    const std::uint32_t bytes_rate = rates[below(8)];
    const std::uint32_t burst = 1 + below(20);
    const std::uint32_t bytes_burst = 1 + below(3'000);
    const std::uint32_t all_rate = rates[below(8)];
    const std::uint32_t factor = 1 + below(3);
    const std::uint64_t window_ns = (1 + below(20)) * 1'000 * budget_ms;
    const detail::datagram_rules rules{
        {detail::token_rate::of(rate, burst), detail::token_rate::of(bytes_rate, bytes_burst)},
        {detail::token_rate::of(all_rate, 3 * burst), {}},
        factor, window_ns, 7'000 * budget_ms};
    budget_box box(rules, 4096);
    std::map<std::uint32_t, std::pair<model_bucket, model_bucket>> sources;
    std::map<std::uint32_t, model_address> addresses;
    model_bucket all(all_rate, 3 * burst);
    for (std::uint32_t step = 0; step < 4'000; ++step) {
        const std::uint32_t spans[] = {0,         0,         1,           1'000,
                                       999'999,   3'000'001, 500'000'000, 4'000'000'000};
        box.now_ns += below(8) == 0 ? below(spans[below(8)] + 1) : 0;
        const std::uint32_t number = below(12);
        const netio::endpoint who = budget_client(number);
        const std::uint32_t count = below(4) == 0 ? 0 : below(900);
        model_address& address = addresses[number];
        const std::uint64_t window = box.now_ns / window_ns;
        const bool proven = box.now_ns < address.proven_until_ns;
        switch (below(8)) {
        case 0:
        case 1:
        case 2: {
            auto& own = sources.try_emplace(number, model_bucket(rate, burst),
                                            model_bucket(bytes_rate, bytes_burst)).first->second;
            const bool of_bytes = own.second.has(count, box.now_ns);
            const bool of_source = own.first.has(1, box.now_ns) && of_bytes;
            const bool of_all = all.has(1, box.now_ns);
            const datagram_word said = box.admit(who, count);
            REQUIRE(said == (!of_source ? datagram_word::over_source
                             : !of_all  ? datagram_word::over_socket
                                        : datagram_word::welcome));
            if (said == datagram_word::welcome) {
                own.first.take(1);
                own.second.take(count);
                all.take(1);
            }
            break;
        }
        case 3:
        case 4:
            box.received(who, count);
            address.earned.emplace_back(window, std::uint64_t{std::max(count, 1u)} * factor);
            break;
        case 5:
            if (below(10) == 0) {
                REQUIRE(box.prove(who));
                address.proven_until_ns = box.now_ns + 7'000 * budget_ms;
            }
            break;
        default:
            REQUIRE(box.sends(who, count) ==
                    (proven || address.spend(std::max(count, 1u), window)));
            break;
        }
    }
}

}  // namespace

TEST_CASE("datagram_budget: as the model, whatever comes in whatever order") {
    for (std::uint32_t seed = 1; seed <= 300; ++seed) {
        CAPTURE(seed);
        budget_against_model(seed);
    }
}
