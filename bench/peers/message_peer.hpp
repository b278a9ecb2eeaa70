// What the programs have in common that encode and read the message of bench/rpc_fixture.hpp as
// other libraries do: netio's own form beside theirs, the rounds, and the sum of every field that
// proves that all of them read the same. Test code: uses heap.
#ifndef NETIO_BENCH_PEERS_MESSAGE_PEER_HPP
#define NETIO_BENCH_PEERS_MESSAGE_PEER_HPP

#include "bench/rpc_fixture.hpp"
#include "netio.hpp"

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace message_peer {

using namespace rpc_bench;

/// One way to write the message and to read it: `encode` gives its bytes, `decode` checks what
/// `encode` wrote as far as the library can and gives the sum of every field.
struct form {
    std::string name;
    std::size_t (*encode)();
    std::uint64_t (*decode)();
};
/// Anything else that belongs into the same rounds.
struct extra {
    std::string name;
    void (*once)();
};

inline constexpr rpc::budget offered_budget{};

inline std::uint64_t touched(const char* at, std::size_t count) {
    return count == 0 ? 0 : count + static_cast<unsigned char>(at[0]) +
                                static_cast<unsigned char>(at[count - 1]);
}
inline std::uint64_t touched(std::string_view text) { return touched(text.data(), text.size()); }
inline std::uint64_t touched(netio::bytes content) {
    return touched(reinterpret_cast<const char*>(content.data()), content.size());
}
inline std::uint64_t touched(double real) { return static_cast<std::uint64_t>(real * 2); }

/// The sum that every form has to come to.
inline std::uint64_t expected_sum() {
    const rpc::budget& spend = offered_budget;
    const std::uint64_t arguments = 7 + 40 + 16 + touched("build.release") + 1 + touched(0.5) + 1 +
                                    touched("jobs") + 8 + touched("strict") + 1 +
                                    touched(fitting_text()) + sizeof(module_content);
    const std::uint64_t offered = 16 + touched("get") + touched("stats") + spend.calls_max +
                                  spend.bytes_max + spend.wall_ms_max + spend.nodes_max +
                                  spend.depth_max + spend.array_max + spend.value_bytes_max;
    return 41 + touched("module.compile") + arguments + offered;
}

// ---- netio's own form

inline std::byte own_room[2 * fixture_bytes];

inline std::size_t own_encode() {
    rpc::writer out(own_room);
    return write_fixture(out);
}

inline std::uint64_t own_value(const rpc::value& one) {
    switch (one.tag()) {
    case rpc::value_tag::null_value:
        return 1;
    case rpc::value_tag::boolean:
        return one.as_bool();
    case rpc::value_tag::integer:
        return static_cast<std::uint64_t>(one.as_int());
    case rpc::value_tag::real:
        return touched(one.as_real());
    default:
        return touched(one.as_text());
    }
}
inline std::uint64_t own_budget(const rpc::budget& spend) {
    return spend.calls_max + spend.bytes_max + spend.wall_ms_max + spend.nodes_max +
           spend.depth_max + spend.array_max + spend.value_bytes_max;
}
inline std::uint64_t own_id(const rpc::capability_id& id) {
    return touched(netio::bytes(id.octets));
}

inline std::uint64_t own_decode() {
    const auto got = rpc::decode({own_room, fixture_bytes});
    must(got.status == netio::parse_status::complete, "the fixture is refused");
    const rpc::envelope& in = got.value;
    std::uint64_t sum = in.request_id + touched(in.method);
    auto at = in.arguments.begin();
    sum += static_cast<std::uint64_t>((*at).as_value().as_int());
    sum += (*++at).as_promise();
    sum += own_id((*++at).as_capability());
    sum += touched((*++at).as_value().as_path());
    for (const rpc::value& one : (*++at).as_value().as_list()) {
        sum += own_value(one);
    }
    for (const rpc::map_entry& one : (*++at).as_value().as_map()) {
        sum += touched(one.key) + own_value(one.held);
    }
    sum += touched((*++at).as_value().as_text());
    sum += touched((*++at).as_value().as_module());
    for (const rpc::capability_descriptor& offered : in.capabilities) {
        sum += own_id(offered.id()) + own_budget(offered.spend());
        for (const std::string_view method : offered.methods()) {
            sum += touched(method);
        }
        sum += static_cast<std::uint64_t>(offered.read_only()) + offered.redact();
    }
    return sum;
}

inline in_rings& own_rings() {
    static in_rings rings;
    return rings;
}

// ---- rounds

inline void measure(const form& one, unsigned step, unsigned round, const options& how) {
    switch (step) {
    case 0:
        return sample(round, one.name + ", encode", how, 32, [&] { keep(one.encode()); });
    case 1:
        must(one.encode() != 0, "nothing is encoded");
        return sample(round, one.name + ", decode and read", how, 32, [&] { keep(one.decode()); });
    default:
        return sample(round, one.name + ", encode, decode and read", how, 32, [&] {
            keep(one.encode());
            keep(one.decode());
        });
    }
}

/// The rounds of netio's form, `theirs` and what else there is; the exit code.
inline int run(int count, char** words, std::vector<form> forms, std::vector<extra> extras = {}) {
    options how;
    if (!parse(count, words, 1, how)) {
        std::fprintf(stderr, "usage: %s [--rounds N] [--samples N]\n", words[0]);
        return 2;
    }
    ::alarm(most_seconds);
    find_cpus();
    pin(first_cpu);
    make_fixture();
    forms.insert(forms.begin(), {"netio", own_encode, own_decode});
    extras.push_back({"netio, rings, encoded in place", [] { round_trip(own_rings(), true); }});
    for (const form& one : forms) {
        const std::size_t size = one.encode();
        must(size != 0 && one.decode() == expected_sum(), one.name.c_str());
        std::printf("0\t%s\tbytes\t%zu\n", one.name.c_str(), size);
    }
    const auto steps = static_cast<unsigned>(3 * forms.size());
    const auto all = static_cast<unsigned>(steps + extras.size());
    for (unsigned round = 0; round < how.rounds; ++round) {
        for (unsigned turn = 0; turn < all; ++turn) {
            const unsigned at = (turn + round) % all;
            if (at < steps) {
                measure(forms[at / 3], at % 3, round, how);
            } else {
                sample(round, extras[at - steps].name, how, 8, extras[at - steps].once);
            }
        }
    }
    return 0;
}

}  // namespace message_peer

#endif
