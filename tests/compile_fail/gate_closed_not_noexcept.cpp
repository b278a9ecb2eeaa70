// expects: netio: closed must be void closed(const netio::connection&, netio::close_reason) noexcept
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};
struct gate {
    netio::verdict admit(const netio::connection&) noexcept { return netio::verdict::allow(); }
#ifdef NETIO_EXPECT_OK
    void closed(const netio::connection&, netio::close_reason) noexcept {}
#else
    void closed(const netio::connection&, netio::close_reason) {}
#endif
};
constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    gate of_mine;
    netio::server<handler, netio::default_backend, gate> server(memory, mine, of_mine);
    return netio::report("refused", server);
}
