// expects: netio: on_connection must be noexcept
#include "netio.hpp"

struct handler {
#ifdef NETIO_EXPECT_OK
    void on_connection(netio::stream&) noexcept {}
#else
    void on_connection(netio::stream&) {}
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 1},
                                netio::default_blocking_backend> memory;

int main() {
    handler mine;
    netio::blocking_pool pool{memory, mine};
    return netio::report("refused", pool);
}
