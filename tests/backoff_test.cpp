// Backoff: the steps, their upper halves, the words of chance.
#include <doctest/doctest.h>

#include "netio.hpp"

#include <set>

namespace {

using netio::backoff_options;
using netio::detail::backoff_delay_ms;
using netio::detail::backoff_step_ms;

constexpr std::uint64_t most_random = ~std::uint64_t{0};

}  // namespace

TEST_CASE("backoff: steps double from the first to the longest and stay there") {
    const backoff_options usual;
    const std::uint32_t steps[] = {100,   200,    400,    800,    1'600,
                                   3'200, 6'400, 12'800, 25'600, 30'000};
    std::uint32_t failed = 0;
    for (const std::uint32_t step : steps) {
        CHECK(backoff_step_ms(usual, ++failed) == step);
    }
    for (const std::uint32_t many : {11u, 31u, 32u, 33u, 64u, 1'000'000u, 0xFFFFFFFFu}) {
        CHECK(backoff_step_ms(usual, many) == 30'000);
    }
}

TEST_CASE("backoff: no step overflows, whatever the ends are") {
    for (const std::uint32_t first : {1u, 2u, 3u, 0x3FFFFFFFu, 0x40000000u, 0x7FFFFFFFu}) {
        for (const std::uint32_t most : {1u, 7u, 0x40000000u, 0x7FFFFFFEu, 0x7FFFFFFFu}) {
            const backoff_options how{first, most};
            if (!netio::detail::is_sane(how)) {
                continue;
            }
            std::uint64_t exact = first;
            for (std::uint32_t failed = 1; failed < 70; ++failed) {
                const std::uint32_t step = backoff_step_ms(how, failed);
                REQUIRE(step == (exact < most ? exact : most));
                REQUIRE(backoff_delay_ms(how, failed, 0) == step);
                REQUIRE(backoff_delay_ms(how, failed, most_random) == step - step / 2);
                exact = exact < most ? exact * 2 : most;
            }
        }
    }
}

TEST_CASE("backoff: options out of range are not sane") {
    using netio::detail::is_sane;
    CHECK(is_sane({}));
    CHECK(is_sane({1, 1}));
    CHECK(is_sane({1, 0x7FFFFFFF}));
    CHECK_FALSE(is_sane({0, 10}));
    CHECK_FALSE(is_sane({11, 10}));
    CHECK_FALSE(is_sane({1, 0x80000000}));
}

TEST_CASE("backoff: delays cover the upper half of each step evenly, and nothing else") {
    const backoff_options how;
    std::uint64_t state = 42;
    for (std::uint32_t failed = 1; failed <= 12; ++failed) {
        const std::uint32_t step = backoff_step_ms(how, failed);
        const std::uint32_t least = step - step / 2;
        constexpr std::uint32_t draws = 20'000;
        constexpr std::uint32_t parts = 8;
        std::uint32_t counts[parts] = {};
        for (std::uint32_t at = 0; at < draws; ++at) {
            const std::uint32_t delay =
                backoff_delay_ms(how, failed, netio::detail::next_random(state));
            REQUIRE(delay >= least);
            REQUIRE(delay <= step);
            ++counts[std::uint64_t{delay - least} * parts / (step / 2 + 1)];
        }
        for (const std::uint32_t count : counts) {
            CAPTURE(step);
            CHECK(count > draws / parts * 3 / 4);
            CHECK(count < draws / parts * 5 / 4);
        }
    }
}

TEST_CASE("backoff: every delay of a short step can come") {
    std::set<std::uint32_t> seen;
    std::uint64_t state = 7;
    for (int at = 0; at < 500; ++at) {
        seen.insert(backoff_delay_ms({5, 5}, 1, netio::detail::next_random(state)));
    }
    CHECK(seen == std::set<std::uint32_t>{3, 4, 5});
    CHECK(backoff_delay_ms({1, 1}, 1, most_random) == 1);
}

TEST_CASE("backoff: random words are SplitMix64's, one seed one sequence") {
    // The generator's first words of seed 1234567, as published with it.
    std::uint64_t state = 1234567;
    for (const std::uint64_t word : {6457827717110365317u, 3203168211198807973u,
                                     9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u}) {
        CHECK(netio::detail::next_random(state) == word);
    }
}
