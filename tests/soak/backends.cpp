// c++ -std=c++20 -O2 -I. tests/soak/backends.cpp -o backends
//
// Random operations of the contract on a backend alone, with peers of the same thread that send,
// read, half-close and reset as they like: backends NAME OPERATIONS SEED [OPERATIONS_A_ROUND].
// NAME is io_uring, io_uring_tight (queues so short that they are always full), epoll or poll; a
// seed of 0 is made of the clock. After each round (100,000) all is closed, and pool, blocks and
// descriptors must be as at the beginning. The first rule that is broken is printed as `not ok`,
// with the seed and the operation, and aborts.
#include "netio.hpp"
#include "tests/soak/lines.hpp"

namespace {

using namespace soak;

#if NETIO_HAS_IO_URING
/// A kernel with short queues: submissions and completions overflow all the time.
struct tight_sys : netio::io_uring_sys {
    static int ring_setup(std::uint32_t entries, netio::detail::uring::parameters& how) noexcept {
        const bool whole = how.completion_entries != 0;
        how.completion_entries = whole ? 16 : how.completion_entries;
        return netio::io_uring_sys::ring_setup(whole ? 8 : entries, how);
    }
};
using io_uring_tight = netio::basic_io_uring<tight_sys>;
#endif

template <class Backend, bool Tight = false>
int soak_on(std::uint64_t operations, std::uint64_t round) {
    if (const netio::availability found = Backend::available(); !found.offered) {
        std::printf("ok soak: %s # SKIP this kernel does not offer %s\n", run.backend,
                    found.missing);
        return 0;
    }
    std::printf("# soak: %s, %llu operations, seed %llu\n", run.backend,
                static_cast<unsigned long long>(operations),
                static_cast<unsigned long long>(run.seed));
    std::fflush(stdout);
    static soak::world<Backend, Tight> world;
    const std::uint64_t begin_ns = netio::posix_sys::now_ns();
    world.begin();
    while (run.operations < operations) {
        world.round(run.operations + round);
    }
    world.end();
    std::printf("ok soak: %s, %llu operations without a leak\n", run.backend,
                static_cast<unsigned long long>(run.operations));
    std::printf("# %.1f s; ", static_cast<double>(netio::posix_sys::now_ns() - begin_ns) / 1e9);
    world.print_counts();
    return 0;
}

std::uint64_t number(const char* word) { return std::strtoull(word, nullptr, 10); }

}  // namespace

int main(int count, char** words) {
    if (count < 4 || count > 5) {
        std::fprintf(stderr, "usage: backends NAME OPERATIONS SEED [OPERATIONS_A_ROUND]\n");
        return 2;
    }
    const std::string_view name = words[1];
    const std::uint64_t operations = number(words[2]);
    const std::uint64_t round = count == 5 ? number(words[4]) : 100'000;
    run.backend = words[1];
    run.seed = number(words[3]);
    if (run.seed == 0) {
        run.seed = netio::posix_sys::now_ns() % 1'000'000'007 + 1;
    }
    luck.state = run.seed * 0x9E3779B97F4A7C15u | 1;
    make_pattern();
#if NETIO_HAS_IO_URING
    if (name == "io_uring") {
        return soak_on<netio::io_uring>(operations, round);
    }
    if (name == "io_uring_tight") {
        return soak_on<io_uring_tight, true>(operations, round);
    }
#endif
    if (name == "epoll") {
        return soak_on<netio::epoll>(operations, round);
    }
    if (name == "poll") {
        return soak_on<netio::poll>(operations, round);
    }
    std::fprintf(stderr, "backends: no backend is called %s here\n", words[1]);
    return 2;
}
