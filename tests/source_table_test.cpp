// Sources: what counts as one, exact bounds, a table that empties, workers at the same time.
#include <doctest/doctest.h>

#include "netio.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

netio::source source_named(std::string_view text) {
    const netio::result<netio::endpoint> at = netio::parse_address(text);
    REQUIRE(static_cast<bool>(at));
    return netio::source_of(at.value);
}
netio::source source_number(std::uint32_t number) {
    return {std::uint64_t{number}, netio::address_family::ipv4};
}

template <class Table>
struct source_table_box {
    alignas(64) std::vector<std::uint64_t> words;
    Table table;

    explicit source_table_box(std::uint32_t count = 16, bool one_thread = false) : words(count) {
        table.attach(reinterpret_cast<std::byte*>(words.data()), count, 0x0123456789abcdef, 77,
                     one_thread);
    }
    bool all_zero() const {
        return std::all_of(words.begin(), words.end(), [](std::uint64_t at) { return at == 0; });
    }
};
using source_box = source_table_box<netio::source_table>;

}  // namespace

TEST_CASE("source_of: an IPv4 address is one, an IPv6 network of 64 bits is one") {
    CHECK(source_named("1.2.3.4") == source_named("::ffff:1.2.3.4"));
    CHECK(source_named("1.2.3.4") != source_named("1.2.3.5"));
    CHECK(source_named("2001:db8::1") == source_named("2001:db8::ffff:0:0:2"));
    CHECK(source_named("2001:db8::1") != source_named("2001:db8:0:1::1"));
    CHECK(source_named("::1") != source_named("0.0.0.1"));
}

TEST_CASE("source_of: the bits that count can be fewer") {
    const auto of = [](std::string_view text, std::uint32_t ipv4, std::uint32_t ipv6) {
        return netio::source_of(netio::parse_address(text).value, ipv4, ipv6);
    };
    CHECK(of("1.2.3.4", 24, 64) == of("1.2.3.255", 24, 64));
    CHECK(of("1.2.3.4", 24, 64) != of("1.2.4.4", 24, 64));
    CHECK(of("1.2.3.4", 1, 64) == of("127.0.0.0", 1, 64));
    CHECK(of("1.2.3.4", 1, 64) != of("128.0.0.0", 1, 64));
    CHECK(of("2001:db8:0:1::", 32, 48) == of("2001:db8:0:2::", 32, 48));
    CHECK(of("2001:db8:0:1::", 32, 48) != of("2001:db8:1:1::", 32, 48));
    CHECK(of("8000::", 32, 1) == of("ffff::", 32, 1));
    CHECK(of("8000::", 32, 1) != of("7fff::", 32, 1));
}

TEST_CASE("source_of: unix sockets and nothing are no source") {
    netio::endpoint none;
    CHECK(netio::source_of(none).family == netio::address_family::none);
    none.family = netio::address_family::unix_path;
    CHECK(netio::source_of(none).family == netio::address_family::none);
}

TEST_CASE("source_table: the hash is SipHash-1-3") {
    // As CPython 3.11 has it with a key of zeros: hash(bytes) with PYTHONHASHSEED=0.
    const std::uint64_t key[2] = {0, 0};
    const netio::source from{0x0807060504030201, netio::address_family{2}};
    CHECK(netio::detail::hash_of(from, key) == 0x5116cab8615f42ae);
    CHECK(netio::detail::hash_of({0, netio::address_family{1}}, key) == 0xc8d92d1fe77b6f16);
}

TEST_CASE("source_table: a source has as many connections as its bound, and no more") {
    source_box box;
    const netio::source from = source_number(7);
    for (const std::uint32_t most : {1u, 2u, 6u}) {
        std::vector<std::uint32_t> held;
        for (std::uint32_t count = 0; count < most; ++count) {
            held.push_back(box.table.acquire(from, most));
            CHECK(held.back() != netio::none_index);
        }
        CHECK(box.table.count_of(from) == most);
        CHECK(box.table.acquire(from, most) == netio::none_index);
        CHECK(box.table.acquire(source_number(8), most) != netio::none_index);
        box.table.release(held.back());
        held.back() = box.table.acquire(from, most);
        CHECK(held.back() != netio::none_index);
        CHECK(box.table.acquire(from, most) == netio::none_index);
        for (const std::uint32_t place : held) {
            box.table.release(place);
        }
        CHECK(box.table.count_of(from) == 0);
    }
    CHECK(box.table.stats().refused == 6);
    CHECK(box.table.stats().in_use == 1);
}

TEST_CASE("source_table: for one thread it counts as for many, place for place") {
    source_box many(64);
    source_box one(64, true);
    std::vector<std::uint32_t> held;
    std::uint32_t seed = 1;
    const auto below = [&](std::uint32_t bound) {
        seed = seed * 1664525 + 1013904223;
        return (seed >> 8) % bound;
    };
    for (int step = 0; step < 20'000; ++step) {
        if (!held.empty() && below(2) == 0) {
            std::swap(held[below(static_cast<std::uint32_t>(held.size()))], held.back());
            many.table.release(held.back());
            one.table.release(held.back());
            held.pop_back();
        } else {
            const netio::source from = source_number(below(90));  // more than have a place
            const std::uint32_t place = many.table.acquire(from, 3);
            REQUIRE(one.table.acquire(from, 3) == place);
            if (place != netio::none_index) {
                held.push_back(place);
            }
        }
        REQUIRE(one.words == many.words);
    }
    CHECK(one.table.stats().refused == many.table.stats().refused);
    CHECK(one.table.without_place() == many.table.without_place());
    for (const std::uint32_t place : held) {
        one.table.release(place);
    }
    CHECK(one.all_zero());
    CHECK(one.table.without_place() == 0);
}

TEST_CASE("source_table: a bound of zero refuses, and the largest count holds") {
    source_box box;
    CHECK(box.table.acquire(source_number(1), 0) == netio::none_index);
    CHECK(box.all_zero());
    std::uint32_t place = box.table.acquire(source_number(1), 1);
    box.words[place] += netio::source_table::connections_max - 2;
    CHECK(box.table.acquire(source_number(1), netio::source_table::connections_max) == place);
    CHECK(box.table.acquire(source_number(1), netio::source_table::connections_max) ==
          netio::none_index);
    CHECK(box.table.count_of(source_number(1)) == netio::source_table::connections_max);
}

TEST_CASE("source_table: 100,000 sources one after another leave nothing") {
    source_box box;
    for (std::uint32_t number = 0; number < 100'000; ++number) {
        const std::uint32_t place = box.table.acquire(source_number(number), 1);
        REQUIRE(place < 16);
        box.table.release(place);
    }
    CHECK(box.all_zero());
    CHECK(box.table.stats().in_use == 0);
    CHECK(box.table.stats().refused == 0);
}

TEST_CASE("source_table: as many sources as the table is made for have a place each") {
    for (const std::uint32_t connections : {1u, 8u, 9u, 100u, 1'000u, 10'000u, 16'384u}) {
        CAPTURE(connections);
        source_box box(netio::source_table::words_for(connections));
        std::vector<std::uint32_t> held;
        for (std::uint32_t number = 0; number < connections; ++number) {
            held.push_back(box.table.acquire(source_number(number), 1));
        }
        CHECK(box.table.without_place() == 0);
        CHECK(box.table.stats().in_use == connections);
        CHECK(std::count(held.begin(), held.end(), netio::none_index) == 0);
        for (const std::uint32_t place : held) {
            box.table.release(place);
        }
        CHECK(box.all_zero());
    }
}

TEST_CASE("source_table: those without a place share one bound") {
    source_box box(16);
    std::vector<std::uint32_t> held;
    for (std::uint32_t number = 0; number < 16; ++number) {
        held.push_back(box.table.acquire(source_number(number), 3));
    }
    CHECK(box.table.stats().in_use == 16);
    for (std::uint32_t number = 16; number < 19; ++number) {
        held.push_back(box.table.acquire(source_number(number), 3));
        CHECK(held.back() == 16);
    }
    CHECK(box.table.without_place() == 3);
    CHECK(box.table.acquire(source_number(19), 3) == netio::none_index);
    CHECK(box.table.acquire(source_number(0), 3) == held[0]);  // who has a place is not disturbed
    box.table.release(held[0]);
    for (const std::uint32_t place : held) {
        box.table.release(place);
    }
    CHECK(box.table.without_place() == 0);
    CHECK(box.all_zero());
}

namespace netio_test {

/// What other workers do between two steps of the table: runs before its n-th step from now.
inline std::function<void()> source_table_others;
inline int source_table_steps_left = 0;

inline void source_table_step() {
    if (source_table_steps_left != 0 && --source_table_steps_left == 0) {
        std::exchange(source_table_others, nullptr)();
    }
}

template <class T>
struct source_table_stepped : netio::detail::atomic<T> {
    using atomic = netio::detail::atomic<T>;
    using ordering = netio::detail::ordering;
    using atomic::atomic;
    T load(ordering how = ordering::one_order) const noexcept {
        source_table_step();
        return atomic::load(how);
    }
    bool compare_exchange_weak(T& seen, T wanted, ordering how = ordering::one_order) noexcept {
        source_table_step();
        return atomic::compare_exchange_weak(seen, wanted, how);
    }
};

}  // namespace netio_test

using source_stepped_box =
    source_table_box<netio::basic_source_table<netio_test::source_table_stepped>>;

TEST_CASE("source_table: whatever another worker does between two steps, the bound holds") {
    const netio::source from = source_number(5);
    int reached = 0;
    for (const std::uint32_t most : {1u, 2u}) {
        for (int step = 1; step < 120; ++step) {
            CAPTURE(most);
            CAPTURE(step);
            source_stepped_box box;
            std::vector<std::uint32_t> held;
            const auto take = [&] {
                const std::uint32_t place = box.table.acquire(from, most);
                if (place != netio::none_index) {
                    held.push_back(place);
                }
            };
            netio_test::source_table_others = [&] {
                ++reached;
                take();
                take();
            };
            netio_test::source_table_steps_left = step;
            take();
            netio_test::source_table_steps_left = 0;
            CHECK(held.size() <= most);
            CHECK(box.table.count_of(from) == held.size());
            CHECK(!held.empty());
            for (const std::uint32_t place : held) {
                box.table.release(place);
            }
            CHECK(box.all_zero());
        }
    }
    CHECK(reached > 60);
}

TEST_CASE("source_table: one source in two places is counted as one") {
    const netio::source from = source_number(5);
    for (const std::uint32_t most : {1u, 2u}) {
        source_stepped_box box;
        std::uint32_t theirs = netio::none_index;
        const auto first_place = [&box](const netio::source& of) {
            const std::uint32_t place = box.table.acquire(of, 1);
            box.table.release(place);
            return place;
        };
        std::uint32_t neighbour = 6;
        while (first_place(source_number(neighbour)) != first_place(from)) {
            ++neighbour;
        }
        netio_test::source_table_others = [&] {
            // Just before we write: our place is somebody's, they take another, ours is free again.
            const std::uint32_t somebody = box.table.acquire(source_number(neighbour), 1);
            theirs = box.table.acquire(from, most);
            box.table.release(somebody);
        };
        netio_test::source_table_steps_left = 17;
        const std::uint32_t ours = box.table.acquire(from, most);
        REQUIRE(theirs != netio::none_index);
        CHECK((ours == netio::none_index) == (most == 1));
        CHECK(ours != theirs);
        CHECK(box.table.count_of(from) == most);
        CHECK(box.table.acquire(from, most) == netio::none_index);
        box.table.release(theirs);
        if (most == 2) {
            box.table.release(ours);
        }
        CHECK(box.all_zero());
    }
}

TEST_CASE("source_table: four workers never have more of a source than its bound [threads]") {
    source_box box;
    constexpr std::uint32_t most = 3;
    std::atomic<std::uint32_t> held[5] = {};
    std::atomic<std::uint32_t> above = 0;
    std::atomic<std::uint32_t> taken = 0;
    std::vector<std::thread> workers;
    for (std::uint32_t worker = 0; worker < 4; ++worker) {
        workers.emplace_back([&, worker] {
            for (std::uint32_t turn = 0; turn < 20'000; ++turn) {
                const std::uint32_t number = (turn + worker) % 5;
                const std::uint32_t place = box.table.acquire(source_number(number), most);
                if (place != netio::none_index) {
                    above += held[number].fetch_add(1) >= most ? 1 : 0;
                    ++taken;
                    held[number].fetch_sub(1);
                    box.table.release(place);
                }
            }
        });
    }
    for (std::thread& each : workers) {
        each.join();
    }
    CHECK(above == 0);
    CHECK(taken > 20'000);
    CHECK(box.all_zero());
}
