// c++ -std=c++20 -O2 -DNDEBUG -I. -pthread bench/rpc.cpp -o rpc
//
// Round trips of envelopes and calls, each beside the least it could cost in the same rounds:
//   rpc thread     one thread: both ways through rings and shared memory; the kernel's calls
//   rpc process    two processes on a CPU each: shared memory, spinning and asleep
// with --rounds N (15) and --samples N (2000; of a variant in a round). A round trip is the fixture
// of bench/rpc_fixture.hpp written to the link, read and validated, and a response of 40 bytes
// back, validated too. The variants of a round run one after the other, in an order that is rotated
// every round. Prints lines of `round TAB variant TAB metric TAB nanoseconds` and ends by itself.
#include "bench/rpc_calls.hpp"
#include "bench/rpc_fixture.hpp"
#include "netio.hpp"

#include <csignal>
#include <cstring>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

namespace rpc = netio::rpc;
using namespace rpc_bench;

struct in_shared_memory {
    std::vector<std::byte> inboxes[2];
    netio::shm_link server, client;

    explicit in_shared_memory(bool borrow) {
        netio::shm_options options;
        options.borrow = borrow;
        for (auto& each : inboxes) {
            each.resize(borrow ? 0 : options.layout.longest());
        }
        must(static_cast<bool>(server.create(inboxes[0], options)), "no segment");
        must(static_cast<bool>(client.open(::dup(static_cast<int>(server.handle())), inboxes[1],
                                           options)), "the segment does not open");
    }
};

// ---- calls of the kernel

/// What no kernel saves: the arguments copied in, a call through a pointer, the result copied out.
void copy_and_call() {
    static std::byte from[34], held[64], result[16];
    static void (*volatile invoke)(const std::byte*, std::byte*) =
        [](const std::byte* in, std::byte* out) { std::memcpy(out, in + 2, 8); };
    std::memcpy(held, from, sizeof(from));
    keep(held);
    invoke(held, result);
    keep(result);
}

void run_threads(const options& how) {
    pin(first_cpu);
    in_rings rings;
    in_shared_memory copied(false), borrowed(true);
    calling calls;
    std::byte copies[fixture_bytes + answer_bytes];
    const auto variant = [&](unsigned which, unsigned round) {
        switch (which) {
        case 0:
            return sample(round, "memcpy of 868 and 40 bytes", how, 32, [&] {
                std::memcpy(copies, fixture, fixture_bytes);
                keep(copies);
                std::memcpy(copies + fixture_bytes, fixture, answer_bytes);
                keep(copies);
            });
        case 1:
            return sample(round, "rings", how, 32, [&] { round_trip(rings, false); });
        case 2:
            return sample(round, "rings, encoded in place", how, 32,
                          [&] { round_trip(rings, true); });
        case 3:
            return sample(round, "shared memory", how, 32, [&] { round_trip(copied, false); });
        case 4:
            return sample(round, "shared memory, borrowed", how, 32,
                          [&] { round_trip(borrowed, false); });
        case 5:
            return sample(round, "copy and call", how, 32, [] { copy_and_call(); });
        case 6:
            return sample(round, "call and dispatch", how, 32, [&] { keep(calls.one_by_one(1)); });
        case 7:
            return sample(round, "8 calls one by one", how, 8, [&] { keep(calls.one_by_one(8)); });
        default:
            return sample(round, "8 calls in a batch", how, 8, [&] { keep(calls.in_a_batch()); });
        }
    };
    for (unsigned round = 0; round < how.rounds; ++round) {
        for (unsigned at = 0; at < 9; ++at) {
            variant((at + round) % 9, round);
        }
    }
}

// ---- two processes

/// Words that two processes hand to and fro.
struct handed {
    alignas(128) netio::detail::atomic<std::uint32_t> there;
    alignas(128) netio::detail::atomic<std::uint32_t> back;
    alignas(128) netio::detail::atomic<std::uint32_t> wanted;    // what the other side does
    alignas(128) netio::detail::atomic<std::uint32_t> doing;
};

enum class doing : std::uint32_t { nothing, line, word_futex, spinning, sleeping, over };

template <class Done>
void spin_for(const Done& done) {
    while (!done()) {
        netio::default_shm::relax();
    }
}

void answer_lines(handed& words) {
    std::uint32_t seen = words.back.load(netio::detail::ordering::relaxed);
    while (words.wanted.load(netio::detail::ordering::relaxed) ==
           static_cast<std::uint32_t>(doing::line)) {
        const std::uint32_t now = words.there.load(netio::detail::ordering::acquire);
        if (now != seen) {
            seen = now;
            words.back.store(now, netio::detail::ordering::release);
        }
    }
}

void answer_futexes(handed& words) {
    std::uint32_t seen = words.back.load(netio::detail::ordering::relaxed);
    while (words.wanted.load(netio::detail::ordering::relaxed) ==
           static_cast<std::uint32_t>(doing::word_futex)) {
        netio::shm_sys::sleep(words.there, seen, 50'000'000);
        const std::uint32_t now = words.there.load(netio::detail::ordering::acquire);
        if (now != seen) {
            seen = now;
            words.back.store(now, netio::detail::ordering::release);
            netio::shm_sys::wake(words.back);
        }
    }
}

[[noreturn]] void serve(handed& words, netio::shm_link& made) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(first_cpu);
    std::vector<std::byte> inbox(netio::shm_layout{}.longest());
    netio::shm_link link;
    must(static_cast<bool>(link.open(::dup(static_cast<int>(made.handle())), inbox)), "no segment");
    for (;;) {
        const auto now = static_cast<doing>(words.wanted.load(netio::detail::ordering::acquire));
        words.doing.store(static_cast<std::uint32_t>(now), netio::detail::ordering::release);
        switch (now) {
        case doing::over:
            std::_Exit(0);
        case doing::line:
            answer_lines(words);
            break;
        case doing::word_futex:
            answer_futexes(words);
            break;
        case doing::spinning:
            answer(link);
            break;
        case doing::sleeping:
            link.wait(50);
            answer(link);
            break;
        default:
            netio::default_shm::relax();
        }
    }
}

void want(handed& words, doing what) {
    words.wanted.store(static_cast<std::uint32_t>(what), netio::detail::ordering::release);
    spin_for([&] {
        return words.doing.load(netio::detail::ordering::acquire) ==
               static_cast<std::uint32_t>(what);
    });
}

void run_processes(const options& how) {
    auto& words = *static_cast<handed*>(
        ::mmap(nullptr, sizeof(handed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::vector<std::byte> inbox(netio::shm_layout{}.longest());
    netio::shm_link link;
    must(static_cast<bool>(link.create(inbox)), "no segment");
    const pid_t child = ::fork();
    if (child == 0) {
        serve(words, link);
    }
    must(child > 0, "fork");
    must(static_cast<bool>(link.watch(static_cast<std::uint32_t>(child))), "watch");
    pin(last_cpu);
    std::uint32_t count = 0;
    const auto variant = [&](unsigned which, unsigned round) {
        switch (which) {
        case 0:
            want(words, doing::line);
            return sample(round, "cache line to the other CPU and back", how, 8, [&] {
                words.there.store(++count, netio::detail::ordering::release);
                spin_for([&] {
                    return words.back.load(netio::detail::ordering::acquire) == count;
                });
            });
        case 1:
            want(words, doing::spinning);
            return sample(round, "shared memory, both spin", how, 8, [&] {
                ask(link, false);
                spin_for([&] { return hear(link); });
            });
        case 2:
            want(words, doing::word_futex);
            return sample(round, "bare futex to the other CPU and back", how, 1, [&] {
                words.there.store(++count, netio::detail::ordering::release);
                netio::shm_sys::wake(words.there);
                std::uint32_t got = 0;
                while ((got = words.back.load(netio::detail::ordering::acquire)) != count) {
                    netio::shm_sys::sleep(words.back, got, 50'000'000);
                }
            });
        default:
            want(words, doing::sleeping);
            return sample(round, "shared memory, both sleep", how, 1, [&] {
                ask(link, false);
                while (!hear(link)) {
                    must(link.wait(50) != netio::shm_event::peer_gone, "the other process ended");
                }
            });
        }
    };
    for (unsigned round = 0; round < how.rounds; ++round) {
        for (unsigned at = 0; at < 4; ++at) {
            variant((at + round) % 4, round);
        }
    }
    want(words, doing::nothing);
    words.wanted.store(static_cast<std::uint32_t>(doing::over), netio::detail::ordering::release);
    ::waitpid(child, nullptr, 0);
}

}  // namespace

int main(int count, char** words) {
    options how;
    const std::string what = count > 1 ? words[1] : "";
    if ((what != "thread" && what != "process") || !parse(count, words, 2, how)) {
        std::fputs("usage: rpc thread|process [--rounds N] [--samples N]\n", stderr);
        return 2;
    }
    ::alarm(most_seconds);
    find_cpus();
    make_fixture();
    what == "thread" ? run_threads(how) : run_processes(how);
    return 0;
}
