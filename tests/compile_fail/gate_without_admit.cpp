// expects: netio: a gate needs netio::verdict admit(const netio::connection&) noexcept
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};
struct gate {
#ifdef NETIO_EXPECT_OK
    netio::verdict admit(const netio::connection&) noexcept { return netio::verdict::allow(); }
#else
    bool admit(const netio::connection&) noexcept { return true; }
#endif
};
constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    gate of_mine;
    netio::server<handler, netio::default_backend, gate> server(memory, mine, of_mine);
    return netio::report("refused", server);
}
