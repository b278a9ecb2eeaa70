// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/reactor_fuzz.cpp -o reactor_fuzz
//
// The bytes choose everything in a few short lives of a server over the simulator: sizes,
// listeners, faults and the order of events, what the handler and the peers do, and the end; where
// they run out nothing more goes wrong. Every promise of tests/lifecycle.hpp is checked, and at
// the end that nothing is held or left in the memory. No dictionary: the bytes are choices.
#include "tests/life_run.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
    netio_test::life_counts counts;
    netio_test::life_shape shape;
    shape.connections = 60;
    shape.clients_per_life = 20;
    shape.pools = false;  // no threads here
    const netio::bytes script(reinterpret_cast<const std::byte*>(data), byte_count);
    if (const char* why = netio_test::life_run(netio_test::sim_chooser(script), shape, counts)) {
        std::fprintf(stderr, "reactor_fuzz: %s\n", why);
        std::abort();
    }
    return 0;
}
