// expects: netio: on_message is not a hook; did you mean on_data?
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#ifdef NETIO_EXPECT_OK
    void on_end(netio::connection&) noexcept {}
#else
    void on_message(netio::connection&, netio::bytes) noexcept {}
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
