// Slots: indexes, generations, reuse, what is touched when.
#include <doctest/doctest.h>

#include "netio.hpp"
#include "tests/dies.hpp"

#include <cstring>

namespace {

struct slab_slot {
    std::uint64_t before;
    netio::slot_header header;
    std::byte rest[48];
};

struct slab_box {
    static constexpr std::uint32_t count = 4;
    slab_slot slots[count] = {};
    netio::slab slab;

    slab_box() {
        slab.attach(reinterpret_cast<std::byte*>(&slots[0].header), sizeof(slab_slot), count);
    }
    bool zero(std::uint32_t index) const {
        const slab_slot empty{};
        return std::memcmp(&slots[index], &empty, sizeof empty) == 0;
    }
    ~slab_box() { CHECK(slab.in_use() == 0); }
};

}  // namespace

TEST_CASE("slab: never used slots are handed out in order and nothing else is touched") {
    slab_box box;
    CHECK(box.zero(0));
    CHECK(box.slab.take() == 0);
    CHECK(box.slab.take() == 1);
    CHECK(box.slots[0].header.generation == 1);
    CHECK(box.slots[1].header.generation == 1);
    CHECK(box.zero(2));
    CHECK(box.zero(3));
    CHECK(box.slab.used_end() == 2);
    box.slab.give(0);
    box.slab.give(1);
}

TEST_CASE("slab: the last slot given back is the first taken") {
    slab_box box;
    for (std::uint32_t index = 0; index < 3; ++index) {
        CHECK(box.slab.take() == index);
    }
    box.slab.give(0);
    box.slab.give(2);
    CHECK(box.slab.take() == 2);
    CHECK(box.slab.take() == 0);
    CHECK(box.slab.take() == 3);
    for (std::uint32_t index = 0; index < 4; ++index) {
        box.slab.give(index);
    }
}

TEST_CASE("slab: a full slab refuses and counts, and takes again after a give") {
    slab_box box;
    for (std::uint32_t index = 0; index < 4; ++index) {
        CHECK(box.slab.take() == index);
    }
    CHECK(box.slab.take() == netio::none_index);
    CHECK(box.slab.take() == netio::none_index);
    box.slab.give(1);
    CHECK(box.slab.take() == 1);
    const netio::pool_stats full = box.slab.stats("connections");
    CHECK(std::strcmp(full.name, "connections") == 0);
    CHECK(full.capacity == 4);
    CHECK(full.in_use == 4);
    CHECK(full.high_water == 4);
    CHECK(full.refused == 2);
    for (std::uint32_t index = 0; index < 4; ++index) {
        box.slab.give(index);
    }
    CHECK(box.slab.stats().in_use == 0);
    CHECK(box.slab.stats().high_water == 4);
}

TEST_CASE("slab: a give makes every id of that life stale, in this life and the next") {
    slab_box box;
    const std::uint32_t index = box.slab.take();
    const std::uint32_t first = box.slab.generation(index);
    CHECK(first == 1);
    CHECK(box.slab.live(index, first));
    CHECK_FALSE(box.slab.live(index, 0));
    CHECK_FALSE(box.slab.live(index, first + 1));
    box.slab.give(index);
    CHECK_FALSE(box.slab.live(index, first));
    CHECK_FALSE(box.slab.live(index, box.slab.generation(index)));
    CHECK(box.slab.take() == index);
    CHECK_FALSE(box.slab.live(index, first));
    CHECK(box.slab.live(index, 3));
    box.slab.give(index);
}

TEST_CASE("slab: ids from outside may hold any index") {
    slab_box box;
    CHECK_FALSE(box.slab.live(0, 1));
    CHECK_FALSE(box.slab.live(3, 1));
    CHECK_FALSE(box.slab.live(4, 1));
    CHECK_FALSE(box.slab.live(netio::none_index, 1));
    CHECK_FALSE(box.slab.is_live(netio::none_index));
    CHECK(box.slab.generation(3) == 0);
}

TEST_CASE("slab: a generation that wraps is never 0 while the slot is live") {
    slab_box box;
    const std::uint32_t index = box.slab.take();
    box.slots[index].header.generation = 0xFFFFFFFF;
    CHECK(box.slab.live(index, 0xFFFFFFFF));
    box.slab.give(index);
    CHECK(box.slab.generation(index) == 0);
    CHECK_FALSE(box.slab.live(index, 0));
    CHECK(box.slab.take() == index);
    CHECK(box.slab.generation(index) == 1);
    CHECK(box.slab.live(index, 1));
    box.slab.give(index);
}

TEST_CASE("slab: the link of a live slot is the owner's and starts at 0") {
    slab_box box;
    CHECK(box.slab.take() == 0);
    CHECK(box.slab.take() == 1);
    box.slab.give(0);
    box.slab.give(1);
    CHECK(box.slots[1].header.next == 1);
    CHECK(box.slab.take() == 1);
    CHECK(box.slots[1].header.next == 0);
    box.slots[1].header.next = 0xABCD;
    box.slab.give(1);
    CHECK(box.slab.take() == 1);
    CHECK(box.slab.take() == 0);
    box.slab.give(0);
    box.slab.give(1);
}

TEST_CASE("slab: a slab of no slots refuses") {
    netio::slab slab;
    CHECK(slab.take() == netio::none_index);
    slab.attach(nullptr, 16, 0);
    CHECK(slab.take() == netio::none_index);
    CHECK(slab.stats().refused == 1);
    CHECK(slab.capacity() == 0);
}

TEST_CASE("slab: a slot given twice ends the program, or is left alone without asserts") {
    slab_box box;
    CHECK(box.slab.take() == 0);
    CHECK(box.slab.take() == 1);
    box.slab.give(0);
    CHECK(dies([&] { box.slab.give(0); }));
    CHECK(dies([&] { box.slab.give(2); }));
    CHECK(dies([&] { box.slab.give(netio::none_index); }));
#if NETIO_CHECKS == 0
    box.slab.give(0);
    box.slab.give(2);
    box.slab.give(netio::none_index);
#endif
    CHECK(box.slab.in_use() == 1);
    CHECK(box.slab.take() == 0);
    CHECK(box.slab.take() == 2);
    box.slab.give(0);
    box.slab.give(1);
    box.slab.give(2);
}
