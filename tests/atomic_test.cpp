// Words that threads share: results, and the order a failed exchange may have.
#include <doctest/doctest.h>

#include "netio.hpp"

using netio::detail::atomic;
using netio::detail::ordering;

TEST_CASE("an atomic word gives what was there before") {
    atomic<std::uint32_t> word;
    CHECK(word.load() == 0);
    word.store(6);
    CHECK(word.exchange(12) == 6);
    CHECK(word.fetch_add(3) == 12);
    CHECK(word.fetch_sub(1) == 15);
    CHECK(word.fetch_or(1) == 14);
    CHECK(word.fetch_and(6) == 15);
    CHECK(word.load(ordering::acquire) == 6);
    atomic<bool> flag = true;
    CHECK(flag.exchange(false));
    CHECK_FALSE(flag.load(ordering::relaxed));
}

TEST_CASE("an atomic word is exchanged only for what was expected, in any order") {
    constexpr ordering all[] = {ordering::relaxed, ordering::acquire, ordering::release,
                                ordering::acquire_release, ordering::one_order};
    for (const ordering how : all) {
        atomic<std::uint64_t> word = 7;
        std::uint64_t seen = 8;
        CHECK_FALSE(word.compare_exchange_weak(seen, 9, how));
        CHECK(seen == 7);
        CHECK(word.load() == 7);
        while (!word.compare_exchange_weak(seen, 9, how)) {  // it may fail for no reason
            CHECK(seen == 7);
        }
        CHECK(word.load() == 9);
    }
}
