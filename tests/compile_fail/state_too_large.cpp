// expects: netio: connection state is 64 bytes
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#ifdef NETIO_EXPECT_OK
    void on_open(netio::connection& c) noexcept { c.state<char[64]>()[0] = 1; }
#else
    void on_open(netio::connection& c) noexcept { c.state<char[65]>()[0] = 1; }
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
