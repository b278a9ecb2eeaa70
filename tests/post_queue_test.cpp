// Posts: order, bounds, many writers. What they do in between: interleavings_test.cpp.
#include <doctest/doctest.h>

#include "netio.hpp"
#include "tests/dies.hpp"

#include <atomic>
#include <cstring>
#include <thread>

namespace {

template <std::uint32_t Capacity>
struct post_queue_box {
    alignas(64) std::byte cells[Capacity * netio::post_queue::cell_bytes] = {};
    netio::post_queue queue;

    post_queue_box() { queue.attach(cells, Capacity); }
    bool push(std::uint64_t word) { return queue.push({word + 100, word}); }
    std::uint64_t pop() {
        netio::post out{};
        REQUIRE(queue.pop(out));
        CHECK(out.id == out.word + 100);
        return out.word;
    }
};

}  // namespace

TEST_CASE("post_queue: a queue of zeros is an empty one") {
    post_queue_box<4> box;
    netio::post out{7, 8};
    CHECK(box.queue.empty());
    CHECK_FALSE(box.queue.pop(out));
    CHECK(out.id == 7);
    CHECK(out.word == 8);
    CHECK(box.queue.capacity() == 4);
}

TEST_CASE("post_queue: posts come out in the order they went in") {
    post_queue_box<4> box;
    std::uint64_t in = 0;
    std::uint64_t out = 0;
    for (int round = 0; round < 100; ++round) {
        for (int more = 0; more < round % 5; ++more) {
            CHECK(box.push(in++));
            CHECK_FALSE(box.queue.empty());
        }
        while (!box.queue.empty()) {
            CHECK(box.pop() == out++);
        }
        CHECK(in == out);
    }
}

TEST_CASE("post_queue: full at its capacity, room again after each pop") {
    post_queue_box<4> box;
    for (std::uint64_t word = 0; word < 4; ++word) {
        CHECK(box.push(word));
    }
    CHECK_FALSE(box.push(4));
    CHECK(box.pop() == 0);
    CHECK(box.push(5));
    CHECK_FALSE(box.push(6));
    const netio::pool_stats stats = box.queue.stats();
    CHECK(std::strcmp(stats.name, "posts") == 0);
    CHECK(stats.capacity == 4);
    CHECK(stats.in_use == 4);
    CHECK(stats.high_water == 4);
    CHECK(stats.refused == 2);
    for (const std::uint64_t word : {1u, 2u, 3u, 5u}) {
        CHECK(box.pop() == word);
    }
    CHECK(box.queue.empty());
    CHECK(box.queue.stats().in_use == 0);
    CHECK(box.queue.stats().high_water == 4);
}

TEST_CASE("post_queue: the high water counts what waited at once, not what passed") {
    post_queue_box<8> box;
    for (std::uint64_t word = 0; word < 50; ++word) {
        CHECK(box.push(word));
        CHECK(box.push(word));
        CHECK(box.pop() == word);
        CHECK(box.pop() == word);
    }
    CHECK(box.queue.stats().high_water == 2);
}

TEST_CASE("post_queue: the smallest queue") {
    post_queue_box<2> box;
    for (std::uint64_t word = 0; word < 10; word += 2) {
        CHECK(box.push(word));
        CHECK(box.push(word + 1));
        CHECK_FALSE(box.push(99));
        CHECK(box.pop() == word);
        CHECK(box.pop() == word + 1);
    }
}

TEST_CASE("post_queue: a popped word is not left in the memory") {
    post_queue_box<4> box;
    const std::uint64_t secrets[] = {0x1122334455667788u, 0x99AABBCCDDEEFF00u};
    CHECK(box.queue.push({secrets[0], secrets[1]}));
    netio::post out{};
    CHECK(box.queue.pop(out));
    for (const std::uint64_t& secret : secrets) {
        for (std::size_t at = 0; at + 8 <= sizeof box.cells; ++at) {
            CHECK(std::memcmp(box.cells + at, &secret, 8) != 0);
        }
    }
}

TEST_CASE("post_queue: capacities that are no power of two are a programmer's error") {
    for (const std::uint32_t capacity : {0u, 1u, 3u, 6u, 100u}) {
        CHECK(dies([&] {
            post_queue_box<128> box;
            box.queue.attach(box.cells, capacity);
        }));
    }
}

TEST_CASE("[threads] post_queue: four writers, every post once and in each writer's order") {
    constexpr std::uint64_t writer_count = 4;
    constexpr std::uint64_t post_count = 20'000;
    post_queue_box<64> box;
    std::atomic<std::uint64_t> refused{0};
    std::thread writers[writer_count];
    for (std::uint64_t writer = 0; writer < writer_count; ++writer) {
        writers[writer] = std::thread([&, writer] {
            for (std::uint64_t at = 0; at < post_count;) {
                if (box.queue.push({writer, at})) {
                    ++at;
                } else {
                    refused.fetch_add(1);
                    std::this_thread::yield();
                }
            }
        });
    }
    std::uint64_t expected[writer_count] = {};
    std::uint64_t wrong_count = 0;
    for (std::uint64_t seen = 0; seen < writer_count * post_count;) {
        netio::post out{};
        if (!box.queue.pop(out)) {
            std::this_thread::yield();
            continue;
        }
        ++seen;
        if (out.id >= writer_count || out.word != expected[out.id % writer_count]++) {
            ++wrong_count;
        }
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    CHECK(wrong_count == 0);
    CHECK(box.queue.empty());
    CHECK(box.queue.stats().in_use == 0);
    CHECK(box.queue.stats().high_water <= 64);
    CHECK(box.queue.stats().refused == refused.load());
}

TEST_CASE("[threads] post_queue: of more posts than room exactly the room is kept") {
    post_queue_box<32> box;
    std::atomic<std::uint32_t> kept{0};
    std::thread writers[4];
    for (std::thread& writer : writers) {
        writer = std::thread([&] {
            for (std::uint64_t word = 0; word < 1000; ++word) {
                kept.fetch_add(box.push(word) ? 1 : 0);
            }
        });
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    CHECK(kept.load() == 32);
    CHECK(box.queue.stats().refused == 4 * 1000 - 32);
    for (int word = 0; word < 32; ++word) {
        box.pop();
    }
    CHECK(box.queue.empty());
}
