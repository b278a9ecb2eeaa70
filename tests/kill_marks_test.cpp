// Kill marks: who is meant, what outranks what, a bounded number at a time, threads.
#include <doctest/doctest.h>

#include "netio.hpp"

#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

struct kill_marks_box {
    std::vector<std::uint64_t> words;
    netio::kill_marks marks;
    std::uint32_t slots;

    explicit kill_marks_box(std::uint32_t count)
        : words(netio::kill_marks::words_for(count)), slots(count) {
        marks.attach(reinterpret_cast<std::byte*>(words.data()), count);
    }
    std::vector<std::pair<std::uint32_t, netio::kill_wish>> taken(std::uint32_t most = 1u << 30) {
        std::vector<std::pair<std::uint32_t, netio::kill_wish>> out;
        marks.take(most, [&](std::uint32_t index, netio::kill_wish wish) {
            out.emplace_back(index, wish);
        });
        return out;
    }
    bool kill(std::uint32_t index, std::uint32_t generation, std::uint32_t reason = 0) {
        return marks.want(index, {generation, netio::kill_kind::kill, reason});
    }
    bool close(std::uint32_t index, std::uint32_t generation, std::uint32_t ms) {
        return marks.want(index, {generation, netio::kill_kind::close, ms});
    }
};

}  // namespace

TEST_CASE("kill_marks: the life that is named is meant, and no other") {
    kill_marks_box box(10);
    CHECK_FALSE(box.kill(3, 1));  // never used
    box.marks.begin(3, 1);
    CHECK_FALSE(box.kill(3, 3));
    CHECK_FALSE(box.kill(10, 1));  // no slot at all
    CHECK_FALSE(box.kill(0xFFFFFFFF, 1));
    CHECK(box.marks.stale_count() == 4);
    CHECK_FALSE(box.marks.any());
    CHECK(box.kill(3, 1, 77));
    CHECK(box.marks.any());
    const auto seen = box.taken();
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].first == 3);
    CHECK(seen[0].second.generation == 1);
    CHECK(seen[0].second.kind == netio::kill_kind::kill);
    CHECK(seen[0].second.value == 77);
    CHECK_FALSE(box.marks.any());
    CHECK(box.taken().empty());
    box.marks.end(3);
    CHECK_FALSE(box.kill(3, 1));
    box.marks.begin(3, 0xFFFFFFFF);
    CHECK_FALSE(box.kill(3, 1));
    CHECK(box.kill(3, 0xFFFFFFFF, netio::kill_marks::value_max));
    CHECK(box.taken()[0].second.value == netio::kill_marks::value_max);
}

TEST_CASE("kill_marks: a kill outranks a close, a shorter close a longer one") {
    kill_marks_box box(1);
    box.marks.begin(0, 5);
    CHECK(box.close(0, 5, 1000));
    CHECK_FALSE(box.close(0, 5, 1000));
    CHECK_FALSE(box.close(0, 5, 2000));
    CHECK(box.close(0, 5, 10));
    CHECK(box.taken()[0].second.value == 10);
    CHECK_FALSE(box.close(0, 5, 10));  // also once the worker knows of it
    CHECK(box.kill(0, 5, 1));
    CHECK_FALSE(box.kill(0, 5, 2));  // the first reason stays
    CHECK_FALSE(box.close(0, 5, 1));
    const auto seen = box.taken();
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].second.kind == netio::kill_kind::kill);
    CHECK(seen[0].second.value == 1);
    CHECK(box.marks.stale_count() == 0);  // late, but not stale
}

TEST_CASE("kill_marks: a mark whose connection ended meanwhile names nobody") {
    kill_marks_box box(64);
    box.marks.begin(9, 1);
    CHECK(box.kill(9, 1));
    box.marks.end(9);
    box.marks.begin(9, 3);
    const auto seen = box.taken();
    REQUIRE(seen.size() == 1);
    CHECK(seen[0].second.generation == 3);
    CHECK(seen[0].second.kind == netio::kill_kind::live);
}

TEST_CASE("kill_marks: a bounded number at a time, and none is lost") {
    for (const std::uint32_t slots : {1u, 63u, 64u, 65u, 4096u, 4097u, 10'000u}) {
        CAPTURE(slots);
        kill_marks_box box(slots);
        for (std::uint32_t index = 0; index < slots; ++index) {
            box.marks.begin(index, 2 * index + 1);
            REQUIRE(box.kill(index, 2 * index + 1, index & 0xFFFF));
        }
        std::vector<std::uint32_t> found(slots);
        std::uint32_t calls = 0;
        while (box.marks.any()) {
            const auto some = box.taken(100);
            REQUIRE(some.size() <= 100);
            for (const auto& [index, wish] : some) {
                ++found[index];
                REQUIRE(wish.value == (index & 0xFFFF));
            }
            ++calls;
        }
        CHECK(calls == (slots + 99) / 100);
        CHECK(found == std::vector<std::uint32_t>(slots, 1));
        for (std::uint32_t index = 0; index < slots; ++index) {
            box.marks.end(index);
        }
        for (const std::uint64_t word : box.words) {
            REQUIRE(word == 0);
        }
    }
}

TEST_CASE("kill_marks: of many killers one is told yes, and the worker hears of it [threads]") {
    constexpr std::uint32_t slots = 200;
    constexpr std::uint32_t lives = 50;
    kill_marks_box box(slots);
    std::vector<std::atomic<std::uint32_t>> yes(slots);
    std::vector<std::uint32_t> heard(slots);
    std::vector<std::uint32_t> generations(slots, 1);
    for (std::uint32_t index = 0; index < slots; ++index) {
        box.marks.begin(index, 1);
    }
    std::atomic<bool> done = false;
    const auto killer = [&](std::uint32_t seed) {
        std::minstd_rand choose(seed);
        while (!done.load()) {
            const std::uint32_t index = static_cast<std::uint32_t>(choose()) % slots;
            const std::uint32_t generation = static_cast<std::uint32_t>(choose()) % lives * 2 + 1;
            if (box.kill(index, generation)) {
                yes[index].fetch_add(1);
            }
        }
    };
    std::thread first(killer, 1);
    std::thread second(killer, 2);
    std::uint32_t ended = 0;
    std::uint32_t stray = 0;
    while (ended < slots) {
        box.marks.take(16, [&](std::uint32_t index, netio::kill_wish wish) {
            if (wish.kind != netio::kill_kind::kill || wish.generation != generations[index]) {
                ++stray;  // marked by one that lost its way: never so here, nobody else ends lives
                return;
            }
            ++heard[index];
            box.marks.end(index);
            generations[index] += 2;
            if (generations[index] >= 2 * lives) {
                ++ended;
            } else {
                box.marks.begin(index, generations[index]);
            }
        });
    }
    done = true;
    first.join();
    second.join();
    CHECK(stray == 0);
    for (std::uint32_t index = 0; index < slots; ++index) {
        REQUIRE(yes[index].load() == heard[index]);
    }
}
