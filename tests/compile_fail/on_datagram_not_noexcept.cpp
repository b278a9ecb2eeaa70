// expects: netio: on_datagram must be noexcept
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#ifdef NETIO_EXPECT_OK
    void on_datagram(netio::datagram_socket&, const netio::datagram&) noexcept {}
#else
    void on_datagram(netio::datagram_socket&, const netio::datagram&) {}
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
