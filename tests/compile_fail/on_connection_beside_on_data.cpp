// expects: netio: beside on_connection a handler has on_open, on_denied and on_close only
#include "netio.hpp"

struct handler {
    void on_open(netio::connection&) noexcept {}
    void on_close(netio::connection&, netio::close_reason) noexcept {}
    void on_connection(netio::stream&) noexcept {}
#ifndef NETIO_EXPECT_OK
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 1},
                                netio::default_blocking_backend> memory;

int main() {
    handler mine;
    netio::blocking_pool pool{memory, mine};
    return netio::report("refused", pool);
}
