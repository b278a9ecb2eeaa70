// A few lives of a server by seed, so that every build and sanitizer sees them. Many more, and a
// million connections: tests/lifecycle_test.sh. What a failing seed prints replays it.
#include "tests/life_run.hpp"

#include <doctest/doctest.h>

namespace {

using namespace netio_test;

void lifecycle_seeds(std::uint64_t first, std::uint64_t count, std::uint32_t connections) {
    life_counts counts;
    life_shape shape;
    shape.connections = connections;
    for (std::uint64_t seed = first; seed != first + count; ++seed) {
        CAPTURE(seed);
        sim_seed_shown = seed;
        const char* why = life_run(sim_chooser(seed), shape, counts);
        CHECK_MESSAGE(why == nullptr, "NETIO_SEED=" << seed << " lifecycle  # " << why);
    }
    CHECK(counts.connections >= count * connections);
    CHECK(counts.complete_streams > 0);
}

}  // namespace

TEST_CASE("whatever peers, handler and kernel do, each connection ends once and leaves nothing") {
    lifecycle_seeds(1, 12, 1000);
}

TEST_CASE("one seed gives one life, event for event") {
    life_shape shape;
    shape.connections = 300;
    life_counts first;
    life_counts second;
    CHECK(life_run(sim_chooser(7), shape, first) == nullptr);
    CHECK(life_run(sim_chooser(7), shape, second) == nullptr);
    CHECK(first.sim.events == second.sim.events);
    CHECK(first.reasons == second.reasons);
    CHECK(first.bytes_checked == second.bytes_checked);
}

TEST_CASE("what a connection leaves in the memory would be found") {
    limits sizes;
    sizes.connections_max = 4;
    sizes.workers_max = 2;
    life_memory memory;
    const mutable_bytes all = memory.fresh(bytes_needed<simulator>(sizes));
    CHECK(life_leftover(all, sizes) == nullptr);
    const auto place = detail::storage_layout<simulator>::of(sizes);
    const std::size_t second = place.workers + place.worker.total;
    all[second + place.worker.user + 64] = std::byte{1};
    CHECK(std::string(life_leftover(all, sizes)) == "user state is left");
    all[second + place.worker.user + 64] = std::byte{0};
    all[place.workers + place.worker.buffers + sizes.buffer_bytes] = std::byte{1};
    CHECK(std::string(life_leftover(all, sizes)) == "bytes are left in a buffer");
}
