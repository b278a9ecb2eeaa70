// expects: netio: on_connection serves one connection a worker: connections_max must be workers_max
#include "netio.hpp"

struct handler {
    void on_connection(netio::stream&) noexcept {}
};

#ifdef NETIO_EXPECT_OK
constexpr netio::limits sizes{.connections_max = 2, .workers_max = 2};
#else
constexpr netio::limits sizes{.connections_max = 4, .workers_max = 2};
#endif
constinit static netio::pool_storage<sizes> memory;

int main() {
    handler mine;
    netio::blocking_pool pool{memory, mine};
    return netio::report("refused", pool);
}
