// expects: netio: the backend does not meet the contract
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};
struct half_backend : netio::epoll {
#ifndef NETIO_EXPECT_OK
    void wake() = delete;
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}, half_backend> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
