// expects: netio: on_data must be noexcept
#include "netio.hpp"

struct handler {
#ifdef NETIO_EXPECT_OK
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#else
    std::size_t on_data(netio::connection&, netio::bytes in) { return in.size(); }
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
