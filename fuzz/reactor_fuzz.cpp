// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/reactor_fuzz.cpp -o reactor_fuzz
//
// The first byte chooses between two. Lives (tests/life_run.hpp): a few servers over the simulator,
// of which the bytes choose everything; every promise of tests/lifecycle.hpp is checked, and at the
// end that nothing is held or left in the memory. And a trial (tests/reactor_trial.hpp): one server
// with a gate, TLS and dials at once. Where the bytes run out nothing more goes wrong. No
// dictionary: the bytes are choices.
#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/life_run.hpp"
#include "tests/reactor_trial.hpp"

namespace {

/// What a check of the tests' headers does outside of a test.
void abort_by(const doctest::AssertData& broken) {
    std::fprintf(stderr, "reactor_fuzz: %s:%d: %s\n", broken.m_file, broken.m_line, broken.m_expr);
    std::abort();
}

/// Checks need one, though no test runs.
void prepare_checks() {
    static doctest::Context context;
    context.setAsDefaultForAssertsOutOfTestCases();
    context.setAssertHandler(abort_by);
}

void live(netio::bytes script) {
    netio_test::life_counts counts;
    netio_test::life_shape shape;
    shape.connections = 60;
    shape.clients_per_life = 20;
    shape.pools = false;  // no threads here
    if (const char* why = netio_test::life_run(netio_test::sim_chooser(script), shape, counts)) {
        std::fprintf(stderr, "reactor_fuzz: %s\n", why);
        std::abort();
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
    const netio::bytes script(reinterpret_cast<const std::byte*>(data), byte_count);
    if (script.empty()) {
        return 0;
    }
    if (data[0] % 2 == 0) {
        live(script.subspan(1));
    } else {
        prepare_checks();
        netio_test::reactor_trial_run(netio_test::sim_chooser(script.subspan(1)));
    }
    return 0;
}
