// Rings of records: order and bytes kept through every wrap, full and empty told, claims that are
// given up, and threads on both ends.
#include "netio.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

namespace {

template <class Ring>
struct ring_box {
    explicit ring_box(std::uint32_t size) : memory(size / 8) {
        ring.attach(reinterpret_cast<std::byte*>(memory.data()), size);
    }
    std::vector<std::uint64_t> memory;
    Ring ring;

    bool put(std::string_view text) {
        const netio::ring_claim to = ring.claim(static_cast<std::uint32_t>(text.size()));
        if (!to) {
            return false;
        }
        std::memcpy(to.room.data(), text.data(), text.size());
        ring.commit(to, static_cast<std::uint32_t>(text.size()));
        return true;
    }
    std::string get() {
        const std::string text(netio::as_text(ring.peek()));
        if (!text.empty()) {
            ring.release();
        }
        return text;
    }
};

std::uint64_t ring_random(std::uint64_t& state) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
}

std::string ring_text(std::uint64_t& state, std::uint32_t most) {
    const auto size = static_cast<std::size_t>(1 + ring_random(state) % most);
    std::string out(size, '\0');
    for (char& each : out) {
        each = static_cast<char>(ring_random(state));
    }
    return out;
}

TEST_CASE_TEMPLATE("ring: random writes and reads keep order and bytes, whatever the size", Ring,
                   netio::spsc_ring, netio::mpsc_ring) {
    for (const std::uint32_t size : {64u, 128u, 4096u, 8192u}) {
        ring_box<Ring> box(size);
        std::deque<std::string> model;
        std::uint64_t state = size + 1;
        std::uint64_t full = 0;
        for (int step = 0; step < 20'000; ++step) {
            if (ring_random(state) % 2 == 0) {
                const std::string text = ring_text(state, box.ring.record_max());
                if (box.put(text)) {
                    model.push_back(text);
                } else {
                    REQUIRE_FALSE(model.empty());  // an empty ring has room for the largest
                    ++full;
                }
            } else {
                const std::string wanted = model.empty() ? "" : model.front();
                REQUIRE(box.get() == wanted);
                if (!model.empty()) {
                    model.pop_front();
                }
            }
        }
        CHECK(full > 100);
    }
}

TEST_CASE_TEMPLATE("ring: records of every size up to the largest, and none above", Ring,
                   netio::spsc_ring, netio::mpsc_ring) {
    ring_box<Ring> box(128);
    CHECK(box.ring.record_max() == 56);
    CHECK_FALSE(box.ring.claim(0));
    for (std::uint32_t size = 1; size <= 56; ++size) {
        for (int lap = 0; lap < 5; ++lap) {  // at every place that it can have
            const std::string text(size, static_cast<char>('a' + lap));
            REQUIRE(box.put(text));
            REQUIRE(box.get() == text);
        }
    }
    for (const std::uint32_t size : {57u, 58u, 127u, 128u, 129u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
        CHECK_FALSE(box.ring.claim(size));
    }
    CHECK(box.get().empty());
}

TEST_CASE_TEMPLATE("ring: what is claimed is nobody's until it is committed, and may be shorter",
                   Ring, netio::spsc_ring, netio::mpsc_ring) {
    ring_box<Ring> box(256);
    const netio::ring_claim to = box.ring.claim(40);
    REQUIRE(to);
    CHECK(to.room.size() == 40);
    CHECK(box.ring.peek().empty());
    std::memcpy(to.room.data(), "short", 5);
    box.ring.commit(to, 5);
    CHECK(box.put("next"));
    CHECK(box.get() == "short");
    CHECK(box.get() == "next");
    CHECK(box.get().empty());
}

TEST_CASE("ring: a second claim of the one writer takes the place of the first") {
    ring_box<netio::spsc_ring> box(64);
    for (int lap = 0; lap < 10; ++lap) {
        CHECK(box.ring.claim(24));
        CHECK(box.ring.claim(8));
        CHECK(box.put("this"));
        CHECK(box.get() == "this");
        CHECK(box.get().empty());
    }
}

TEST_CASE("ring: of many writers, places are read as they were claimed, given up ones skipped") {
    ring_box<netio::mpsc_ring> box(256);
    for (int lap = 0; lap < 30; ++lap) {
        const netio::ring_claim first = box.ring.claim(20);
        const netio::ring_claim second = box.ring.claim(9);
        const netio::ring_claim third = box.ring.claim(3);
        REQUIRE((first && second && third));
        std::memcpy(third.room.data(), "abc", 3);
        box.ring.commit(third, 3);
        CHECK(box.ring.peek().empty());  // the first is still being written
        box.ring.abandon(first);
        CHECK(box.ring.peek().empty());
        box.ring.abandon(second);
        CHECK(box.get() == "abc");
        CHECK(box.get().empty());
    }
    CHECK(box.ring.refused() == 0);
}

TEST_CASE("ring: a full ring refuses and counts, and nothing of a record stays in it") {
    ring_box<netio::mpsc_ring> box(128);
    int fits = 0;
    while (box.put("sixteen letters!")) {
        ++fits;
    }
    CHECK(fits == 5);  // of 24 bytes each
    CHECK_FALSE(box.put("x"));
    CHECK(box.ring.refused() == 2);
    for (int left = fits; left != 0; --left) {
        CHECK(box.get() == "sixteen letters!");
    }
    for (const std::uint64_t each : box.memory) {
        CHECK(each == 0);
    }
}

TEST_CASE("ring: one writer and one reader on threads of their own lose nothing [threads]") {
    ring_box<netio::spsc_ring> box(4096);
    constexpr std::uint32_t count = 100'000;
    std::thread writer([&box] {
        for (std::uint32_t number = 0; number < count;) {
            const std::uint32_t size = 8 + number % 200;
            if (const netio::ring_claim to = box.ring.claim(size)) {
                std::memset(to.room.data(), static_cast<int>(number % 251), size);
                std::memcpy(to.room.data(), &number, sizeof(number));
                box.ring.commit(to, size);
                ++number;
            } else {
                std::this_thread::yield();
            }
        }
    });
    bool right = true;
    for (std::uint32_t number = 0; number < count;) {
        const netio::bytes record = box.ring.peek();
        if (record.empty()) {
            std::this_thread::yield();
            continue;
        }
        std::uint32_t said = 0;
        std::memcpy(&said, record.data(), sizeof(said));
        right = right && said == number && record.size() == 8 + number % 200 &&
                record.back() == static_cast<std::byte>(number % 251);
        box.ring.release();
        ++number;
    }
    writer.join();
    CHECK(right);
}

TEST_CASE("ring: many writers on threads of their own keep each one's order [threads]") {
    ring_box<netio::mpsc_ring> box(1024);
    constexpr std::uint32_t writers_count = 3;
    constexpr std::uint32_t count = 20'000;
    std::vector<std::thread> writers;
    for (std::uint32_t who = 0; who < writers_count; ++who) {
        writers.emplace_back([&box, who] {
            for (std::uint32_t number = 0; number < count;) {
                const netio::ring_claim to = box.ring.claim(8 + number % 40);
                if (!to) {
                    std::this_thread::yield();
                } else if (number % 16 == 15 && number % 2 != who % 2) {
                    box.ring.abandon(to);
                    ++number;
                } else {
                    std::memcpy(to.room.data(), &who, sizeof(who));
                    std::memcpy(to.room.data() + 4, &number, sizeof(number));
                    box.ring.commit(to, 8);
                    ++number;
                }
            }
        });
    }
    std::uint32_t next[writers_count] = {};
    bool right = true;
    const auto past_given_up = [&next](std::uint32_t who) {
        while (next[who] % 16 == 15 && next[who] % 2 != who % 2) {
            ++next[who];
        }
        return next[who];
    };
    const auto all_done = [&] {
        return past_given_up(0) >= count && past_given_up(1) >= count && past_given_up(2) >= count;
    };
    while (!all_done()) {
        const netio::bytes record = box.ring.peek();
        if (record.empty()) {
            std::this_thread::yield();
            continue;
        }
        std::uint32_t who = 0;
        std::uint32_t number = 0;
        std::memcpy(&who, record.data(), sizeof(who));
        std::memcpy(&number, record.data() + 4, sizeof(number));
        right = right && who < writers_count && number == past_given_up(who % writers_count);
        next[who % writers_count] = number + 1;
        box.ring.release();
    }
    for (std::thread& each : writers) {
        each.join();
    }
    CHECK(right);
    CHECK(box.get().empty());
}

}  // namespace
