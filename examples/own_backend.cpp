// c++ -std=c++20 -O2 -I. examples/own_backend.cpp -o own_backend
//
// An echo over a backend of the program's own, which tells at the end what that did:
//
//     own_backend [--listen 0.0.0.0:7000] [--memory BYTES] [--drain-ms N]
//
// The macro names the header that defines `netio::user_backend`; everything that does not ask for
// another backend uses it then. It may as well come from the command line, and has to be the same
// in each file of a program. SIGTERM drains, SIGINT stops.
#define NETIO_BACKEND_HEADER "examples/own_backend.hpp"
#include "netio.hpp"

#include "examples/options.hpp"

namespace {

struct echo {
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return peer.write(in);
    }
};

void tell(const char* what, std::uint64_t count) noexcept {
    std::printf(" %s %llu", what, static_cast<unsigned long long>(count));
}

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::any_ipv4(7000);
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--memory", .number = &memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("own_backend", count, words, settings)) {
        return 2;
    }
    echo handler;
    netio::server server{example::memory_for({}, memory_bytes), handler};
    char address[netio::endpoint_text_max];
    netio::listen_options where;
    where.address = netio::format_address(at, address);
    where.port = at.port;
    if (server.listen(where) == netio::error::none) {
        example::signals<netio::server<echo>>::watch(server, drain_ms);
        example::announce("own_backend", server, server.local());
        example::run(server);
        const netio::own_record& did = netio::own_sys::record;
        std::fputs("own_backend:", stdout);
        tell("waits", did.waits);
        tell("events", did.events);
        tell("polls", did.polls);
        tell("accepts", did.accepts);
        tell("receives", did.receives);
        tell("sends", did.sends);
        std::fputc('\n', stdout);
    }
    return netio::report("own_backend", server);
}
