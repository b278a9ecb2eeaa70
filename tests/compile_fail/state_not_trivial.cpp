// expects: netio: connection state must be trivially copyable
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
#ifdef NETIO_EXPECT_OK
    void on_open(netio::connection& c) noexcept { c.state<int>() = 1; }
#else
    struct owner { int* at = nullptr; ~owner() { delete at; } };
    void on_open(netio::connection& c) noexcept { c.state<owner>().at = nullptr; }
#endif
};

constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    netio::server server{memory, mine};
    return netio::report("refused", server);
}
