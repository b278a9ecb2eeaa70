// c++ -std=c++20 -O2 -I. examples/udp_echo.cpp -o udp_echo
//
// Sends every datagram back to where it came from, empty ones too:
//
//     udp_echo [--listen 0.0.0.0:7000] [--memory BYTES] [--drain-ms N] [--source-rate N]
//
// A datagram longer than a buffer comes truncated and is dropped here, for half an echo is none.
// Of who sends more than --source-rate datagrams a second (0: no budget, for load from a single
// address) the rest is dropped. An echo is no longer than what it answers, so nobody has to be
// proven.
// SIGTERM drains, SIGINT stops.
#include "netio.hpp"

#include "examples/options.hpp"

namespace {

struct udp_echo {
    void on_datagram(netio::datagram_socket& socket, const netio::datagram& in) noexcept {
        if (!in.truncated) {
            socket.send_to(in.peer, in.payload);  // no room: lost, as a datagram may be
        }
    }
    /// There are no streams here, but every handler says what it does with one.
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};

netio::limits limits_for_datagrams() noexcept {
    netio::limits sizes;
    sizes.connections_max = 1;
    sizes.listeners_max = 1;
    sizes.datagram_sockets_max = 1;
    sizes.datagram_sends_max = 256;
    return sizes;
}

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::any_ipv4(7000);
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
    netio::datagram_options where;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--memory", .number = &memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &drain_ms, .least = 0, .most = 3'600'000},
        {.flag = "--source-rate",
         .number = &where.source.rate_max,
         .least = 0,
         .most = 1'000'000'000},
    };
    if (!example::parse("udp_echo", count, words, settings)) {
        return 2;
    }
    udp_echo handler;
    netio::server server{example::memory_for(limits_for_datagrams(), memory_bytes), handler};
    char address[netio::endpoint_text_max];
    if (where.source.rate_max == 0) {
        where.source = {};
    }
    where.address = netio::format_address(at, address);
    where.port = at.port;
    if (const netio::result<netio::datagram_id> socket = server.open_datagram(where)) {
        example::signals<netio::server<udp_echo>>::watch(server, drain_ms);
        example::announce("udp_echo", server, server.local(socket.value));
        example::run(server);
        const netio::server_stats now = server.stats();
        std::printf("udp_echo: datagrams in %llu, out %llu, over budget %llu\n",
                    static_cast<unsigned long long>(now.counts.datagrams_in),
                    static_cast<unsigned long long>(now.counts.datagrams_out),
                    static_cast<unsigned long long>(now.counts.datagrams_over_source));
    }
    return netio::report("udp_echo", server);
}
