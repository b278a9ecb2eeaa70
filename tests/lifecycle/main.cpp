// g++ -std=c++20 -O2 -I. tests/lifecycle/main.cpp -o lifecycle
// Lives of a server by seed. NETIO_SEED=n replays one seed.
#include "tests/life_run.hpp"

#include <csignal>
#include <unistd.h>

namespace {

using namespace netio_test;

char replay_line[64];

void say_replay(int number) {
    const char newline = '\n';
    static_cast<void>(!write(2, replay_line, std::strlen(replay_line)));
    static_cast<void>(!write(2, &newline, 1));
    std::signal(number, SIG_DFL);
    std::raise(number);
}

std::uint64_t number_of(const char* text, std::uint64_t otherwise) {
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

int main(int argument_count, char** arguments) {
    const char* one = std::getenv("NETIO_SEED");
    std::uint64_t seed = number_of(one, argument_count > 1 ? number_of(arguments[1], 1) : 1);
    const std::uint64_t count =
        one != nullptr ? 1 : number_of(argument_count > 2 ? arguments[2] : nullptr, 100);
    life_shape shape;
    shape.connections = static_cast<std::uint32_t>(
        number_of(argument_count > 3 ? arguments[3] : nullptr, 1000));
    for (const int number : {SIGILL, SIGTRAP, SIGABRT, SIGSEGV, SIGFPE}) {
        std::signal(number, say_replay);
    }
    life_counts counts;
    for (const std::uint64_t end = seed + count; seed != end; ++seed) {
        std::snprintf(replay_line, sizeof(replay_line), "NETIO_SEED=%llu lifecycle",
                      static_cast<unsigned long long>(seed));
        sim_seed_shown = seed;
        if (const char* why = life_run(sim_chooser(seed), shape, counts)) {
            std::fprintf(stderr, "%s  # %s\n", replay_line, why);
            return 1;
        }
    }
    // Everything that can occur must have, often, where a whole million is run.
    const bool whole = count >= 1000 && shape.connections >= 1000;
    if (!life_table(whole ? 1000 : 0).print(counts)) {
        std::printf("something came too seldom\n");
        return 1;
    }
    return 0;
}
