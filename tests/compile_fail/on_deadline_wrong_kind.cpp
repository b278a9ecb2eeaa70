// expects: netio: on_deadline must be void on_deadline(netio::connection&, netio::deadline_kind) noexcept
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#ifdef NETIO_EXPECT_OK
    void on_deadline(netio::connection&, netio::deadline_kind) noexcept {}
#else
    void on_deadline(netio::connection&, netio::phase) noexcept {}
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
