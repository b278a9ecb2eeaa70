// What bench/rpc.cpp and the libraries beside it in bench/peers share: the message, a round trip
// over rings, samples and how they are printed. Test code: uses heap.
//
// The fixture is a request of 868 bytes with 8 arguments (an integer, a promise, a capability, a
// path, a list of three, a map of two, a text that fills up, a module of 512 bytes) and one
// descriptor with two methods.
#ifndef NETIO_BENCH_RPC_FIXTURE_HPP
#define NETIO_BENCH_RPC_FIXTURE_HPP

#include "netio.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <string>
#include <time.h>
#include <unistd.h>
#include <vector>

namespace rpc_bench {

namespace rpc = netio::rpc;

inline constexpr std::size_t fixture_bytes = 868;
inline constexpr std::size_t answer_bytes = 40;
inline constexpr unsigned laps_bytes = 3u << 20;    // more than a ring of shared memory is long
inline constexpr unsigned most_seconds = 300;

[[noreturn]] inline void die(const char* what) {
    std::fprintf(stderr, "rpc: %s\n", what);
    std::exit(1);
}
inline void must(bool holds, const char* what) {
    if (!holds) {
        die(what);
    }
}

inline std::uint64_t now_ns() {
    timespec at{};
    ::clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<std::uint64_t>(at.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(at.tv_nsec);
}

inline int first_cpu = 0;
inline int last_cpu = 0;

inline void find_cpus() {
    cpu_set_t set;
    must(::sched_getaffinity(0, sizeof(set), &set) == 0, "sched_getaffinity");
    first_cpu = -1;
    for (int at = 0; at < CPU_SETSIZE; ++at) {
        if (CPU_ISSET(at, &set)) {
            first_cpu = first_cpu < 0 ? at : first_cpu;
            last_cpu = at;
        }
    }
}
inline void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    must(::sched_setaffinity(0, sizeof(set), &set) == 0, "sched_setaffinity");
}

/// For the compiler: what was computed is used.
template <class T>
void keep(const T& value) {
    asm volatile("" : : "m"(value) : "memory");
}

// ---- the fixture

inline std::byte module_content[512];
inline const std::string long_text(800, 't');
inline constexpr std::string_view method_names[] = {"get", "stats"};
inline std::size_t text_bytes = 0;    // of the text with which the fixture is of its size
inline std::byte fixture[fixture_bytes];

inline std::string_view fitting_text() {
    return std::string_view(long_text).substr(0, text_bytes);
}

inline std::size_t write_fixture(rpc::writer& out) {
    const rpc::capability_id id{};
    rpc::descriptor_fields offered;
    offered.id = id;
    offered.methods = method_names;
    return out.begin(rpc::envelope_kind::request, 41, "module.compile")
        .value_int(7)
        .promise(40)
        .capability(id)
        .value_path("build.release")
        .value_list()
        .value_int(1)
        .value_real(0.5)
        .value_null()
        .end()
        .value_map()
        .key("jobs")
        .value_int(8)
        .key("strict")
        .value_bool(true)
        .end()
        .value_text(fitting_text())
        .value_module(module_content)
        .payload({})
        .descriptor(offered)
        .finish();
}

inline void make_fixture() {
    std::byte room[2 * fixture_bytes];
    rpc::writer out(room);
    const std::size_t without = write_fixture(out);
    must(without != 0 && without <= fixture_bytes, "the fixture is not written");
    text_bytes = fixture_bytes - without;
    must(write_fixture(out) == fixture_bytes, "the fixture is of another size");
    std::memcpy(fixture, room, fixture_bytes);
}

/// The value that a response of 40 bytes has.
inline constexpr std::byte answer_argument[] = {std::byte{0},   std::byte{4}, std::byte{2},
                                                std::byte{0},   std::byte{0}, std::byte{0},
                                                std::byte{'o'}, std::byte{'k'}};
static_assert(rpc::response_bytes(sizeof(answer_argument)) == answer_bytes);

// ---- round trips over links

/// `encodes`: the fixture is written value by value where it will be read, else copied there.
template <rpc::link Link>
void ask(Link& link, bool encodes) {
    const netio::ring_claim claim = link.claim(fixture_bytes);
    must(static_cast<bool>(claim), "no room for the fixture");
    if (encodes) {
        rpc::writer out(claim.room);
        must(write_fixture(out) == fixture_bytes, "the fixture is not written");
    } else {
        std::memcpy(claim.room.data(), fixture, fixture_bytes);
    }
    link.commit(claim, fixture_bytes);
    link.flush();
}
/// False: nothing has come.
template <rpc::link Link>
bool answer(Link& link) {
    const netio::bytes record = link.peek();
    if (record.empty()) {
        return false;
    }
    const auto got = rpc::decode(record);
    must(got.status == netio::parse_status::complete, "the fixture is refused");
    const std::uint64_t id = got.value.request_id;
    link.release();
    const netio::ring_claim claim = link.claim(answer_bytes);
    must(static_cast<bool>(claim), "no room for the answer");
    must(rpc::encode_response(id, 0, answer_argument, claim.room) == answer_bytes, "no answer");
    link.commit(claim, answer_bytes);
    link.flush();
    return true;
}
template <rpc::link Link>
bool hear(Link& link) {
    const netio::bytes record = link.peek();
    if (record.empty()) {
        return false;
    }
    must(rpc::decode(record).status == netio::parse_status::complete, "the answer is refused");
    link.release();
    return true;
}

struct in_rings {
    std::vector<std::uint64_t> there = std::vector<std::uint64_t>((1 << 16) / 8);
    std::vector<std::uint64_t> back = std::vector<std::uint64_t>((1 << 16) / 8);
    netio::spsc_ring to, from;
    rpc::ring_link client{to, from}, server{from, to};

    in_rings() {
        to.attach(reinterpret_cast<std::byte*>(there.data()), 1 << 16);
        from.attach(reinterpret_cast<std::byte*>(back.data()), 1 << 16);
    }
};

template <class Links>
void round_trip(Links& links, bool encodes) {
    ask(links.client, encodes);
    must(answer(links.server), "nothing came");
    must(hear(links.client), "nothing came back");
}

// ---- samples

struct options {
    unsigned rounds = 15;
    unsigned samples = 2000;
};

inline void print(unsigned round, const std::string& variant, std::vector<double>& samples) {
    std::sort(samples.begin(), samples.end());
    std::printf("%u\t%s\tp50\t%.1f\n", round, variant.c_str(), samples[samples.size() / 2]);
    std::printf("%u\t%s\tp99\t%.1f\n", round, variant.c_str(),
                samples[samples.size() * 99 / 100]);
}

/// What is asked for in the words behind the first `from`; false: not this.
inline bool parse(int count, char** words, int from, options& out) {
    for (int at = from; at + 1 < count; at += 2) {
        const std::string flag = words[at];
        unsigned& to = flag == "--rounds" ? out.rounds : out.samples;
        const int number = std::atoi(words[at + 1]);
        if ((flag != "--rounds" && flag != "--samples") || number <= 0) {
            return false;
        }
        to = static_cast<unsigned>(number);
    }
    return (count - from) % 2 == 0;
}

/// Each sample is the mean of so many in a row: the clock alone takes some twenty nanoseconds.
template <class Once>
void sample(unsigned round, const std::string& variant, const options& how, unsigned in_a_row,
            Once&& once) {
    std::vector<double> samples;
    for (unsigned left = round == 0 ? laps_bytes / fixture_bytes : how.samples / 10; left != 0;
         --left) {
        once();  // warm: in the first round each page of a ring is touched for the first time
    }
    for (unsigned left = how.samples; left != 0; --left) {
        const std::uint64_t begin = now_ns();
        for (unsigned more = 0; more < in_a_row; ++more) {
            once();
        }
        samples.push_back(static_cast<double>(now_ns() - begin) / in_a_row);
    }
    print(round, variant, samples);
}

}  // namespace rpc_bench

#endif
