// Deadlines: never early, never late, never lost; the reports of kind time-* that a wheel can show.
#include <doctest/doctest.h>

#include "netio.hpp"
#include "tests/dies.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <vector>

namespace {

using wheel_tick = std::uint64_t;
constexpr wheel_tick wheel_never = netio::wheel::never;

struct wheel_slot {
    std::uint64_t before;
    netio::wheel_node node;
    std::byte rest[40];
};

struct wheel_box {
    static constexpr std::uint32_t count = 64;
    alignas(8) std::byte heads[netio::wheel::heads_bytes] = {};
    wheel_slot slots[count] = {};
    netio::wheel wheel;
    std::vector<std::uint32_t> fired;  // by the last expire

    explicit wheel_box(wheel_tick now = 0) {
        wheel.attach(heads, reinterpret_cast<std::byte*>(&slots[0].node), sizeof(wheel_slot),
                     count, now);
    }
    std::uint32_t expire(wheel_tick now, std::uint32_t most = 1000) {
        fired.clear();
        return wheel.expire(now, most, [&](std::uint32_t index) noexcept {
            fired.push_back(index);
            return netio::wheel::done;
        });
    }
    bool quiet() const {
        std::uint32_t armed_count = 0;
        for (std::uint32_t index = 0; index < count; ++index) {
            armed_count += wheel.armed(index);
        }
        return armed_count == 0 && wheel.count() == 0 && wheel.next_due() == wheel_never;
    }
};

using wheel_list = std::vector<std::uint32_t>;

/// Where the levels begin, and a few ticks around.
std::vector<wheel_tick> wheel_boundaries() {
    std::vector<wheel_tick> out{0, 1, 1023, 1024, 1025};
    for (const unsigned shift : {6u, 16u, 22u, 28u, 34u, 40u, 46u, 52u, 58u}) {
        for (const wheel_tick middle : {wheel_tick{1} << shift, wheel_tick{3} << shift}) {
            for (const wheel_tick tick : {middle - 1, middle, middle + 1}) {
                out.push_back(tick);
            }
        }
    }
    return out;
}

/// One timer armed at `now` for `due`: silent a tick before, there at its tick.
bool wheel_exact(wheel_tick now, wheel_tick due) {
    static wheel_box box;
    std::memset(box.heads, 0, sizeof box.heads);
    box.wheel.attach(box.heads, reinterpret_cast<std::byte*>(&box.slots[0].node),
                     sizeof(wheel_slot), wheel_box::count, now);
    box.wheel.arm(5, due);
    const bool known = box.wheel.next_due() == due && box.wheel.due(5) == due;
    const bool early = box.expire(due - 1) != 0 || !box.wheel.armed(5);
    const bool still = box.wheel.next_due() == due;
    const bool there = box.expire(due) == 1 && box.fired[0] == 5;
    return known && !early && still && there && box.quiet();
}

}  // namespace

TEST_CASE("wheel: zero memory is a wheel with nothing armed, and attach touches none of it") {
    wheel_box box;
    CHECK(std::all_of(box.heads, box.heads + sizeof box.heads,
                      [](std::byte one) { return one == std::byte{}; }));
    CHECK_FALSE(box.wheel.armed(0));
    CHECK_FALSE(box.wheel.armed(63));
    CHECK(box.quiet());
    CHECK(box.expire(1'000'000) == 0);
    box.wheel.cancel(7);
    CHECK(box.quiet());
}

TEST_CASE("wheel: fires at its tick, not before, and only once") {
    wheel_box box;
    box.wheel.arm(3, 10);
    CHECK(box.wheel.armed(3));
    CHECK(box.wheel.due(3) == 10);
    CHECK(box.wheel.count() == 1);
    CHECK(box.wheel.next_due() == 10);
    CHECK(box.expire(9) == 0);
    CHECK(box.expire(10) == 1);
    CHECK(box.fired == wheel_list{3});
    CHECK(box.slots[3].before == 0);
    CHECK(box.expire(10) == 0);
    CHECK(box.expire(100'000) == 0);
    CHECK(box.quiet());
}

TEST_CASE("wheel: exact from every level boundary to every other") {
    std::uint32_t wrong_count = 0;
    std::uint32_t tried_count = 0;
    for (const wheel_tick now : wheel_boundaries()) {
        for (const wheel_tick ahead : wheel_boundaries()) {
            if (ahead != 0 && now <= wheel_never - 1 - ahead) {
                wrong_count += !wheel_exact(now, now + ahead);
                ++tried_count;
            }
        }
    }
    CHECK(wrong_count == 0);
    CHECK(tried_count > 3000);
}

TEST_CASE("wheel: many timers fire in the order of their ticks") {
    wheel_box box{1000};
    const wheel_tick dues[] = {200'000, 1064, 1001, 1063, 70'000, 1065, 1002, 5000};
    for (std::uint32_t index = 0; index < 8; ++index) {
        box.wheel.arm(index, dues[index]);
    }
    CHECK(box.expire(wheel_never) == 8);
    CHECK(box.fired == wheel_list{2, 6, 3, 1, 5, 7, 4, 0});
    CHECK(box.quiet());
}

TEST_CASE("wheel: what is due at once or late fires at the next expire") {
    wheel_box box{1000};
    box.wheel.arm(0, 1000);
    box.wheel.arm(1, 999);
    box.wheel.arm(2, 0);
    CHECK(box.wheel.next_due() == 0);
    CHECK(box.expire(1000) == 3);
    CHECK(box.fired == wheel_list{0, 1, 2});
    CHECK(box.quiet());
}

TEST_CASE("wheel: arming again moves") {
    wheel_box box;
    box.wheel.arm(0, 10);
    box.wheel.arm(0, 10);
    CHECK(box.wheel.count() == 1);
    box.wheel.arm(0, 5);
    CHECK(box.wheel.next_due() == 5);
    box.wheel.arm(0, 100'000);
    CHECK(box.wheel.due(0) == 100'000);
    CHECK(box.expire(99'999) == 0);
    box.wheel.arm(0, 99'999);
    CHECK(box.expire(99'999) == 1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: cancel of the first, the last, a middle one and the only one of a list") {
    for (const wheel_tick due : {0ull, 20ull, 5000ull, 1ull << 40}) {
        for (std::uint32_t victim = 0; victim < 3; ++victim) {
            wheel_box box;
            wheel_list expected;
            for (std::uint32_t index = 0; index < 3; ++index) {
                box.wheel.arm(index, due);
                if (index != victim) {
                    expected.push_back(index);
                }
            }
            box.wheel.arm(9, due + 1);
            box.wheel.cancel(9);
            box.wheel.cancel(victim);
            box.wheel.cancel(victim);
            CHECK(box.wheel.count() == 2);
            CHECK_FALSE(box.wheel.armed(victim));
            CHECK(box.expire(due + 1) == 2);
            CHECK(box.fired == expected);
            CHECK(box.quiet());
        }
    }
}

TEST_CASE("wheel: a cancel never makes next_due too late, and all bits are clear at the end") {
    wheel_box box;
    box.wheel.arm(0, 5000);
    box.wheel.arm(1, 5010);
    box.wheel.cancel(0);
    CHECK(box.wheel.next_due() <= 5010);
    CHECK(box.wheel.next_due() > 4900);
    box.wheel.cancel(1);
    CHECK(box.quiet());
    box.wheel.arm(2, 5030);
    CHECK(box.wheel.next_due() == 5030);
}

TEST_CASE("wheel: lazy extension, the callback answers with the true deadline") {
    wheel_box box;
    wheel_tick deadline = 100;
    std::vector<wheel_tick> asked;
    wheel_tick now = 0;
    const auto fire = [&](std::uint32_t) noexcept {
        asked.push_back(now);
        return deadline > now ? deadline : netio::wheel::done;
    };
    box.wheel.arm(0, deadline);
    deadline = 250;
    for (now = 1; now <= 300; ++now) {
        box.wheel.expire(now, 10, fire);
        deadline = now == 200 ? 280 : deadline;
    }
    CHECK(asked == std::vector<wheel_tick>{100, 250, 280});
    CHECK(box.quiet());
}

TEST_CASE("wheel: a callback that re-arms for now is called again by the next expire only") {
    wheel_box box;
    std::uint32_t calls = 0;
    const auto again = [&](std::uint32_t index) noexcept {
        ++calls;
        box.wheel.arm(index, 10);
        return netio::wheel::done;
    };
    box.wheel.arm(0, 10);
    box.wheel.arm(1, 3);
    CHECK(box.wheel.expire(10, 1000, again) == 2);
    CHECK(box.wheel.expire(10, 1000, again) == 2);
    CHECK(calls == 4);
    CHECK(box.wheel.expire(10, 1000, [](std::uint32_t) noexcept { return wheel_tick{7}; }) == 2);
    CHECK(box.expire(10) == 2);
    CHECK(box.quiet());
}

TEST_CASE("wheel: a callback may cancel or move any other, whether it is next or far") {
    wheel_box box;
    for (std::uint32_t index = 0; index < 5; ++index) {
        box.wheel.arm(index, 10);
    }
    box.wheel.arm(5, 11);
    box.wheel.arm(6, 100'000);
    wheel_list seen;
    CHECK(box.wheel.expire(11, 1000, [&](std::uint32_t index) noexcept {
        seen.push_back(index);
        if (index == 0) {
            box.wheel.cancel(0);
            box.wheel.cancel(1);      // next
            box.wheel.cancel(4);      // last of those aside
            box.wheel.cancel(5);      // in a later list
            box.wheel.arm(3, 20);     // moved away
            box.wheel.arm(6, 9);      // late: next call
        }
        return netio::wheel::done;
    }) == 2);
    CHECK(seen == wheel_list{0, 2});
    CHECK(box.wheel.count() == 2);
    CHECK(box.expire(11) == 1);
    CHECK(box.fired == wheel_list{6});
    CHECK(box.expire(20) == 1);
    CHECK(box.fired == wheel_list{3});
    CHECK(box.quiet());
}

TEST_CASE("wheel: a callback that arms itself and answers too: the answer counts") {
    wheel_box box;
    box.wheel.arm(0, 1);
    CHECK(box.wheel.expire(1, 10, [&](std::uint32_t index) noexcept {
        box.wheel.arm(index, 50);
        return wheel_tick{40};
    }) == 1);
    CHECK(box.wheel.due(0) == 40);
    CHECK(box.wheel.count() == 1);
    box.wheel.cancel(0);
    CHECK(box.quiet());
}

TEST_CASE("wheel: G113 bounds of 0, 1 and the largest number: the rest waits, nothing is lost") {
    for (const std::uint32_t most : {0u, 1u, 2u, 7u, 0xFFFFFFFFu}) {
        wheel_box box;
        for (std::uint32_t index = 0; index < 10; ++index) {
            box.wheel.arm(index, 2000 + index / 4);
        }
        std::uint32_t all = 0;
        if (most == 0) {
            CHECK(box.expire(3000, 0) == 0);
            CHECK(box.wheel.count() == 10);
            CHECK(box.wheel.next_due() <= 3000);
            CHECK(box.expire(3000) == 10);
            CHECK(box.quiet());
            continue;
        }
        wheel_list order;
        for (int call = 0; call < 30 && box.wheel.next_due() <= 3000; ++call) {
            const std::uint32_t now_fired = box.expire(3000, most);
            CHECK(now_fired <= most);
            all += now_fired;
            order.insert(order.end(), box.fired.begin(), box.fired.end());
        }
        CHECK(all == 10);
        CHECK(order == wheel_list{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
        CHECK(box.quiet());
    }
}

TEST_CASE("wheel: timers that wait for their turn may be cancelled, moved and joined") {
    wheel_box box;
    for (std::uint32_t index = 0; index < 4; ++index) {
        box.wheel.arm(index, 10);
    }
    CHECK(box.expire(10, 1) == 1);
    CHECK(box.wheel.next_due() == 0);
    box.wheel.cancel(1);
    box.wheel.arm(2, 12);
    box.wheel.arm(6, 10);
    box.wheel.arm(7, 10);
    CHECK(box.expire(10, 0) == 0);
    box.wheel.cancel(6);
    CHECK(box.expire(10) == 2);
    CHECK(box.fired == wheel_list{3, 7});
    CHECK(box.expire(12) == 1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: with a bound of one, a timer that re-arms for now can't starve the others") {
    wheel_box box;
    box.wheel.arm(0, 1);
    box.wheel.arm(1, 1);
    wheel_list seen;
    for (wheel_tick call = 0; call < 4; ++call) {
        box.wheel.expire(1, 1, [&](std::uint32_t index) noexcept {
            seen.push_back(index);
            return wheel_tick{1};
        });
    }
    CHECK(seen == wheel_list{0, 1, 0, 1});
    box.wheel.cancel(0);
    box.wheel.cancel(1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: moving a far list down is bounded too and may stop halfway") {
    wheel_box box;
    for (std::uint32_t index = 0; index < 60; ++index) {
        box.wheel.arm(index, 100'000 + index);
    }
    std::uint32_t all = 0;
    std::uint32_t call_count = 0;
    while (box.wheel.count() != 0 && call_count < 100) {
        ++call_count;
        all += box.expire(200'000, 5);
        if (call_count == 3) {
            box.wheel.cancel(0);            // already moved down
            box.wheel.cancel(15);           // the first that was not
            box.wheel.cancel(16);
            box.wheel.cancel(59);           // the last
            box.wheel.arm(30, 300'000);
        }
        CHECK((box.wheel.next_due() <= 200'000 || box.wheel.count() <= 1));
        if (box.wheel.count() == 1) {
            break;
        }
    }
    CHECK(all == 55);
    CHECK(box.expire(299'999) == 0);
    CHECK(box.expire(300'000) == 1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: a clock that goes backwards is one that stands") {
    wheel_box box{1000};
    box.wheel.arm(0, 1010);
    CHECK(box.expire(5) == 0);
    CHECK(box.expire(1005) == 0);
    CHECK(box.expire(0) == 0);
    box.wheel.arm(1, 1003);
    CHECK(box.expire(900) == 1);
    CHECK(box.fired == wheel_list{1});
    CHECK(box.wheel.next_due() == 1010);
    CHECK(box.expire(1010) == 1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: a jump of the clock over everything fires all, in order") {
    wheel_box box;
    wheel_list expected;
    for (std::uint32_t index = 0; index < 60; ++index) {
        box.wheel.arm(index, wheel_tick{1} << index);
        expected.push_back(index);
    }
    CHECK(box.expire(wheel_never) == 60);
    CHECK(box.fired == expected);
    CHECK(box.quiet());
}

TEST_CASE("wheel: G103 delays around and past the size of the wheel fire at their tick") {
    for (const wheel_tick size : {wheel_tick{64}, wheel_tick{1024}, wheel_tick{65'536}}) {
        for (const wheel_tick delay : {size - 1, size, size + 1, 2 * size, 10 * size + 3}) {
            wheel_box box;
            box.wheel.arm(0, delay);
            wheel_tick now = 0;
            while (now <= delay && box.expire(++now) == 0) {
            }
            CHECK(now == delay);
            CHECK(box.quiet());
        }
    }
}

TEST_CASE("wheel: G104 a short timer is right when the clock starts at any level boundary") {
    for (const wheel_tick start : wheel_boundaries()) {
        wheel_box box{start};
        box.wheel.arm(0, start + 10);
        std::uint32_t early_count = 0;
        for (wheel_tick now = start; now < start + 10; ++now) {
            early_count += box.expire(now);
        }
        CHECK(early_count == 0);
        CHECK(box.expire(start + 10) == 1);
        CHECK(box.quiet());
    }
}

TEST_CASE("wheel: G105 the farthest ticks don't wrap: 2^63 - 1 waits, never never comes") {
    wheel_box box{12'345};
    const wheel_tick farthest = 0x7FFF'FFFF'FFFF'FFFF;
    box.wheel.arm(0, farthest);
    box.wheel.arm(1, wheel_never);
    box.wheel.arm(2, wheel_never - 1);
    CHECK(box.wheel.next_due() == farthest);
    CHECK(box.expire(12'345) == 0);
    CHECK(box.expire(farthest - 1) == 0);
    CHECK(box.expire(farthest) == 1);
    CHECK(box.expire(wheel_never - 2) == 0);
    CHECK(box.expire(wheel_never) == 1);
    CHECK(box.fired == wheel_list{2});
    CHECK(box.expire(wheel_never) == 0);
    CHECK(box.wheel.armed(1));
    CHECK(box.wheel.next_due() == wheel_never);
    box.wheel.cancel(1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: a clock that starts at never still fires what is due") {
    wheel_box box{wheel_never};
    box.wheel.arm(0, 5);
    box.wheel.arm(1, wheel_never);
    CHECK(box.expire(wheel_never) == 1);
    CHECK(box.fired == wheel_list{0});
    CHECK(box.wheel.armed(1));
}

TEST_CASE("wheel: G106 a tick that was skipped fires at the first expire after it") {
    for (const wheel_tick due : {10u, 64u, 5000u, 65'536u}) {
        wheel_box box;
        box.wheel.arm(0, due);
        CHECK(box.expire(due - 1) == 0);
        CHECK(box.expire(due + 1) == 1);
        CHECK(box.quiet());
    }
}

TEST_CASE("wheel: G107 delays of 2^31, 2^32 and 2^63 - 1 ticks") {
    for (const wheel_tick delay : {(wheel_tick{1} << 31) - 1, wheel_tick{1} << 31,
                                   (wheel_tick{1} << 32) - 1, wheel_tick{1} << 32,
                                   (wheel_tick{1} << 63) - 1}) {
        CHECK(wheel_exact(0, delay));
        CHECK(wheel_exact(1'700'000'000'000, 1'700'000'000'000 + delay));
    }
}

TEST_CASE("wheel: G108 sleeping until next_due takes one wake-up a timer, near or far") {
    wheel_box box;
    for (std::uint32_t index = 0; index < 10; ++index) {
        box.wheel.arm(index, wheel_tick{100} << (2 * index));
    }
    std::uint32_t wake_count = 0;
    while (box.wheel.next_due() != wheel_never) {
        CHECK(box.expire(box.wheel.next_due()) == 1);
        ++wake_count;
    }
    CHECK(wake_count == 10);
    CHECK(box.quiet());
}

TEST_CASE("wheel: G109 no tick is added: 10 ticks are 10, and none is none") {
    wheel_box box{500};
    box.wheel.arm(0, 510);
    box.wheel.arm(1, 500);
    CHECK(box.expire(500) == 1);
    CHECK(box.fired == wheel_list{1});
    CHECK(box.wheel.next_due() == 510);
    CHECK(box.expire(510) == 1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: G110 woken too early, it waits for the rest") {
    wheel_box box;
    box.wheel.arm(0, 10'000);
    for (const wheel_tick now : {9990u, 9993u, 9998u, 9999u}) {
        CHECK(box.expire(now) == 0);
        CHECK(box.wheel.next_due() == 10'000);
    }
    CHECK(box.expire(10'000) == 1);
    CHECK(box.quiet());
}

TEST_CASE("wheel: G111 no tick is reserved: 0, 2^32 and its neighbours are ticks like any") {
    wheel_box box{0};
    box.wheel.arm(0, 0);
    CHECK(box.wheel.armed(0));
    CHECK(box.wheel.due(0) == 0);
    CHECK(box.expire(0) == 1);
    CHECK(box.quiet());
    const wheel_tick wrap = wheel_tick{1} << 32;
    for (const wheel_tick due : {wrap - 1, wrap, wrap + 1}) {
        CHECK(wheel_exact(wrap - 5, due));
        CHECK(wheel_exact(wrap - 5000, due));
    }
}

TEST_CASE("wheel: G112 how long to sleep does not depend on how many are armed") {
    wheel_box box;
    for (std::uint32_t index = 0; index < 60; ++index) {
        box.wheel.arm(index, 1000);
        CHECK(box.wheel.next_due() == 1000);
    }
    CHECK(box.expire(1000) == 60);
    CHECK(box.quiet());
}

TEST_CASE("wheel: random arms, cancels and jumps against a sorted map") {
    for (std::uint32_t seed = 0; seed < 100; ++seed) {
        std::mt19937_64 random(seed);
        wheel_tick now = random() >> (1 + random() % 63);
        wheel_box box{now};
        wheel_tick model[wheel_box::count];
        std::fill(std::begin(model), std::end(model), 0);
        std::uint32_t wrong_count = 0;
        for (int step = 0; step < 200; ++step) {
            const auto index = static_cast<std::uint32_t>(random() % wheel_box::count);
            const wheel_tick ahead = random() >> (1 + random() % 63);
            const wheel_tick latest = wheel_never - 1;
            const wheel_tick due = now >= latest - ahead ? latest : now + ahead + 1;
            if (random() % 4 != 0) {
                box.wheel.arm(index, due);
                model[index] = due;
            } else {
                box.wheel.cancel(index);
                model[index] = 0;
            }
            if (random() % 2 == 0) {
                const wheel_tick next = box.wheel.next_due();
                now = random() % 2 == 0 && next > now && next != wheel_never ? next : now + 1;
                box.expire(now);
                for (const std::uint32_t one : box.fired) {
                    wrong_count += model[one] == 0 || model[one] > now;
                    model[one] = 0;
                }
            }
            wheel_tick earliest = wheel_never;
            for (std::uint32_t one = 0; one < wheel_box::count; ++one) {
                wrong_count += model[one] != 0 && model[one] <= now;
                wrong_count += box.wheel.armed(one) != (model[one] != 0);
                earliest = model[one] != 0 ? std::min(earliest, model[one]) : earliest;
            }
            wrong_count += box.wheel.next_due() > earliest;
        }
        CHECK(wrong_count == 0);
    }
}

TEST_CASE("wheel: calls that break its rules end the program") {
    wheel_box box;
    box.wheel.arm(1, 5);
    CHECK(dies([&] { box.wheel.arm(64, 10); }));
    CHECK(dies([&] { box.wheel.cancel(64); }));
    CHECK(dies([&] { static_cast<void>(box.wheel.due(0)); }));
    CHECK(dies([&] {
        box.wheel.expire(5, 1, [&](std::uint32_t) noexcept {
            box.expire(6);
            return netio::wheel::done;
        });
    }));
    CHECK(dies([&] { netio::wheel{}.expire(1, 1, [](std::uint32_t) { return wheel_tick{0}; }); }));
}

TEST_CASE("wheel: quiet_at says what expire would find, before and after each tick") {
    alignas(64) static std::byte heads[netio::wheel::heads_bytes];
    static netio::wheel_node nodes[2];
    netio::wheel wheel;
    wheel.attach(heads, reinterpret_cast<std::byte*>(nodes), sizeof(netio::wheel_node), 2, 100);
    const auto fire = [](std::uint32_t) noexcept { return netio::wheel::done; };
    CHECK(wheel.quiet_at(100));
    CHECK_FALSE(wheel.quiet_at(101));
    wheel.arm(0, 100);  // late at once
    CHECK_FALSE(wheel.quiet_at(100));
    wheel.arm(1, 100);
    CHECK(wheel.expire(100, 1, fire) == 1);
    CHECK_FALSE(wheel.quiet_at(100));  // one is left over
    CHECK(wheel.expire(100, 1, fire) == 1);
    CHECK(wheel.quiet_at(100));
    wheel.arm(0, 105);
    CHECK(wheel.quiet_at(100));
    CHECK_FALSE(wheel.quiet_at(105));
    CHECK(wheel.expire(105, 8, fire) == 1);
    CHECK(wheel.quiet_at(105));
}
