// expects: netio: gates come with a later release
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};
struct gate {};

#ifdef NETIO_EXPECT_OK
using service = netio::server<handler, netio::default_backend, netio::allow_all>;
#else
using service = netio::server<handler, netio::default_backend, gate>;
#endif
constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    service server(memory, mine);
    return netio::report("refused", server);
}
