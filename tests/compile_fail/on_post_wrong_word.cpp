// expects: netio: on_post must be void on_post(netio::connection&, std::uint64_t) noexcept
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#ifdef NETIO_EXPECT_OK
    void on_post(netio::connection&, std::uint64_t) noexcept {}
#else
    void on_post(netio::connection&, const char*) noexcept {}
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
