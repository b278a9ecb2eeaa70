// c++ -std=c++20 -O2 -I. examples/echo.cpp -o echo
#include "netio.hpp"

struct echo {
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return peer.write(in);
    }
};

constinit static netio::storage<netio::limits{.connections_max = 10'000}> memory;

int main() {
    echo handler;
    netio::server server{memory, handler};
    netio::error failed = server.listen({.port = 7000});
    if (failed == netio::error::none) {
        failed = server.run();
    }
    return netio::report("echo", server);
}
