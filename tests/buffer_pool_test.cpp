// Buffers: quotas, charges, wiping, double gives.
#include <doctest/doctest.h>

#include "netio.hpp"
#include "tests/dies.hpp"

#include <algorithm>
#include <cstring>

namespace {

struct buffer_pool_box {
    static constexpr std::uint32_t count = 8;
    static constexpr std::uint32_t buffer_bytes = 64;
    std::byte data[count * buffer_bytes];
    std::uint32_t links[count] = {};
    netio::buffer_pool pool;

    explicit buffer_pool_box(std::uint32_t input = 3, std::uint32_t output = 5, bool wipe = true) {
        std::memset(data, 0, sizeof data);
        pool.attach(data, links, count, buffer_bytes, input, output, wipe);
    }
    bool all_zero() const {
        return std::all_of(data, data + sizeof data,
                           [](std::byte one) { return one == std::byte{}; });
    }
    std::uint32_t take_dirty(netio::side who) {
        const std::uint32_t index = pool.take(who);
        REQUIRE(index != netio::none_index);
        std::memset(pool.data(index), 0x5A, buffer_bytes);
        return index;
    }
    ~buffer_pool_box() {
        CHECK(pool.in_use(netio::side::input) == 0);
        CHECK(pool.in_use(netio::side::output) == 0);
    }
};

}  // namespace

TEST_CASE("buffer_pool: each side gets exactly its quota, whatever the other did") {
    using netio::side;
    for (const bool input_first : {true, false}) {
        buffer_pool_box box;
        const side first = input_first ? side::input : side::output;
        const side second = input_first ? side::output : side::input;
        std::uint32_t taken_count = 0;
        for (const side who : {first, second}) {
            for (std::uint32_t more = box.pool.quota(who); more > 0; --more) {
                CHECK(box.pool.room(who) == more);
                CHECK(box.pool.take(who) == taken_count);
                ++taken_count;
            }
            CHECK(box.pool.take(who) == netio::none_index);
            CHECK(box.pool.stats(who).refused == 1);
            CHECK(box.pool.room(who) == 0);
        }
        CHECK(taken_count == 8);
        for (std::uint32_t index = 0; index < 8; ++index) {
            box.pool.give(index, index < box.pool.quota(first) ? first : second, 0);
        }
    }
}

TEST_CASE("buffer_pool: the last buffer given back is the first taken") {
    using netio::side;
    buffer_pool_box box;
    CHECK(box.pool.take(side::output) == 0);
    CHECK(box.pool.take(side::output) == 1);
    CHECK(box.pool.take(side::input) == 2);
    box.pool.give(0, side::output, 0);
    box.pool.give(2, side::input, 0);
    CHECK(box.pool.take(side::output) == 2);
    CHECK(box.pool.take(side::output) == 0);
    CHECK(box.pool.take(side::output) == 3);
    for (std::uint32_t index = 0; index < 4; ++index) {
        box.pool.give(index, side::output, 0);
    }
}

TEST_CASE("buffer_pool: buffers are as large as told and lie side by side") {
    using netio::side;
    buffer_pool_box box;
    CHECK(box.pool.take(side::input) == 0);
    CHECK(box.pool.take(side::input) == 1);
    CHECK(box.pool.data(0) == box.data);
    CHECK(box.pool.data(1) == box.data + 64);
    CHECK(box.pool.buffer_bytes() == 64);
    CHECK(box.pool.count() == 8);
    box.pool.give(0, side::input, 0);
    box.pool.give(1, side::input, 0);
}

TEST_CASE("buffer_pool: a transfer moves the charge and a full side refuses it") {
    using netio::side;
    buffer_pool_box box{3, 1};
    const std::uint32_t kept = box.pool.take(side::input);
    const std::uint32_t moved = box.pool.take(side::input);
    CHECK(box.pool.transfer(side::input, side::output));
    CHECK(box.pool.in_use(side::input) == 1);
    CHECK(box.pool.in_use(side::output) == 1);
    CHECK_FALSE(box.pool.transfer(side::input, side::output));
    CHECK(box.pool.in_use(side::input) == 1);
    CHECK(box.pool.in_use(side::output) == 1);
    CHECK(box.pool.stats(side::output).refused == 1);
    CHECK(box.pool.stats(side::input).refused == 0);
    box.pool.give(moved, side::output, 0);
    CHECK(box.pool.transfer(side::input, side::output));
    CHECK(box.pool.transfer(side::output, side::input));
    box.pool.give(kept, side::input, 0);
}

TEST_CASE("buffer_pool: a transfer needs no free buffer") {
    using netio::side;
    buffer_pool_box box{4, 4};
    for (std::uint32_t index = 0; index < 7; ++index) {
        CHECK(box.pool.take(index < 4 ? side::input : side::output) == index);
    }
    CHECK(box.pool.transfer(side::input, side::output));
    CHECK(box.pool.take(side::output) == netio::none_index);
    CHECK(box.pool.take(side::input) == 7);
    for (std::uint32_t index = 0; index < 8; ++index) {
        box.pool.give(index, index < 4 ? side::input : side::output, 0);
    }
}

TEST_CASE("buffer_pool: a buffer given back holds no byte of its user") {
    using netio::side;
    buffer_pool_box box;
    const std::uint32_t first = box.take_dirty(side::input);
    const std::uint32_t second = box.take_dirty(side::output);
    box.pool.give(first, side::input, 64);
    box.pool.give(second, side::output, 64);
    CHECK(box.all_zero());
}

TEST_CASE("buffer_pool: only the dirty bytes are wiped") {
    using netio::side;
    buffer_pool_box box;
    const std::uint32_t index = box.take_dirty(side::input);
    box.pool.give(index, side::input, 10);
    CHECK(box.data[9] == std::byte{0});
    CHECK(box.data[10] == std::byte{0x5A});
    CHECK(box.data[63] == std::byte{0x5A});
}

TEST_CASE("buffer_pool: without wiping the bytes stay") {
    using netio::side;
    buffer_pool_box box{3, 5, false};
    const std::uint32_t index = box.take_dirty(side::input);
    box.pool.give(index, side::input, 64);
    CHECK(box.data[0] == std::byte{0x5A});
    CHECK(box.data[63] == std::byte{0x5A});
}

TEST_CASE("buffer_pool: what was not used yet is not touched") {
    using netio::side;
    buffer_pool_box box;
    CHECK(box.all_zero());
    CHECK(box.pool.take(side::input) == 0);
    CHECK(std::all_of(box.links + 1, box.links + 8, [](std::uint32_t link) { return link == 0; }));
    CHECK(box.all_zero());
    box.pool.give(0, side::input, 0);
}

TEST_CASE("buffer_pool: statistics of each side by name") {
    using netio::side;
    buffer_pool_box box;
    const std::uint32_t one = box.pool.take(side::input);
    const std::uint32_t two = box.pool.take(side::input);
    box.pool.give(one, side::input, 0);
    const netio::pool_stats input = box.pool.stats(side::input);
    CHECK(std::strcmp(input.name, "input buffers") == 0);
    CHECK(input.capacity == 3);
    CHECK(input.in_use == 1);
    CHECK(input.high_water == 2);
    CHECK(input.refused == 0);
    const netio::pool_stats output = box.pool.stats(side::output);
    CHECK(std::strcmp(output.name, "output buffers") == 0);
    CHECK(output.capacity == 5);
    CHECK(output.high_water == 0);
    box.pool.give(two, side::input, 0);
}

TEST_CASE("buffer_pool: a pool of no buffers and a side with no quota refuse") {
    using netio::side;
    netio::buffer_pool none;
    CHECK(none.take(side::input) == netio::none_index);
    none.attach(nullptr, nullptr, 0, 0, 0, 0, true);
    CHECK(none.take(side::output) == netio::none_index);
    buffer_pool_box box{0, 8};
    CHECK(box.pool.take(side::input) == netio::none_index);
    CHECK_FALSE(box.pool.taken(0));
    CHECK_FALSE(box.pool.taken(netio::none_index));
}

TEST_CASE("buffer_pool: quotas that could starve a side are a programmer's error") {
    CHECK(dies([] { buffer_pool_box box{4, 5}; }));
    CHECK(dies([] { buffer_pool_box box{9, 0}; }));
    CHECK(dies([] { buffer_pool_box box{0xFFFFFFFF, 2}; }));
}

TEST_CASE("buffer_pool: G131 a buffer given back twice never has two users") {
    using netio::side;
    buffer_pool_box box;
    const std::uint32_t index = box.pool.take(side::input);
    const std::uint32_t other = box.pool.take(side::input);
    box.pool.give(index, side::input, 0);
    CHECK(dies([&] { box.pool.give(index, side::input, 0); }));
    CHECK(dies([&] { box.pool.give(5, side::input, 0); }));
    CHECK(dies([&] { box.pool.give(netio::none_index, side::input, 0); }));
    CHECK(dies([&] { box.pool.give(other, side::output, 0); }));
#if NETIO_CHECKS == 0
    box.pool.give(index, side::input, 0);
    box.pool.give(5, side::input, 0);
    box.pool.give(netio::none_index, side::input, 0);
    box.pool.give(other, side::output, 0);
#endif
    CHECK(box.pool.in_use(side::input) == 1);
    const std::uint32_t again = box.pool.take(side::input);
    const std::uint32_t fresh = box.pool.take(side::input);
    CHECK(again == index);
    CHECK(fresh == 2);
    box.pool.give(again, side::input, 0);
    box.pool.give(fresh, side::input, 0);
    box.pool.give(other, side::input, 0);
}

TEST_CASE("buffer_pool: buffers that came back unused leave no high water") {
    using netio::side;
    buffer_pool_box box{3, 1};
    for (std::uint32_t used : {1u, 0u, 2u}) {
        const std::uint32_t before = box.pool.stats(side::input).high_water;
        std::uint32_t taken[3];
        for (std::uint32_t& each : taken) {
            each = box.pool.take(side::input);
        }
        for (std::uint32_t at = 3; at > used; --at) {
            box.pool.give(taken[at - 1], side::input, 0);
        }
        box.pool.forget_unused(side::input, before);
        CHECK(box.pool.stats(side::input).high_water == (before < used ? used : before));
        for (std::uint32_t at = 0; at < used; ++at) {
            box.pool.give(taken[at], side::input, 0);
        }
    }
    CHECK(box.pool.stats(side::input).high_water == 2);
    CHECK(box.pool.stats(side::input).refused == 0);
}

TEST_CASE("buffer_pool: G132 full again after 100,000 lives that ended in a refusal") {
    using netio::side;
    buffer_pool_box box{3, 1};
    const std::uint32_t blocker = box.pool.take(side::output);
    std::uint32_t wrong_count = 0;
    for (int life = 0; life < 100'000; ++life) {
        const std::uint32_t index = box.pool.take(side::input);
        const bool moved = box.pool.transfer(side::input, side::output);
        const bool taken = box.pool.take(side::output) != netio::none_index;
        wrong_count += index != 1 || moved || taken;
        box.pool.give(index, side::input, 1);
    }
    CHECK(wrong_count == 0);
    CHECK(box.pool.in_use(side::input) == 0);
    CHECK(box.pool.room(side::input) == 3);
    CHECK(box.pool.stats(side::output).refused == 200'000);
    box.pool.give(blocker, side::output, 0);
}
