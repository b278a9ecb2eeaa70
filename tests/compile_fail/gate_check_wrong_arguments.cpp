// expects: netio: check must be netio::egress check(const netio::connection&, const netio::write_facts&) noexcept
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};
struct gate {
    netio::verdict admit(const netio::connection&) noexcept { return netio::verdict::allow(); }
#ifdef NETIO_EXPECT_OK
    netio::egress check(const netio::connection&, const netio::write_facts&) noexcept {
        return netio::egress::allow();
    }
#else
    netio::egress check(const netio::connection&, std::size_t) noexcept {
        return netio::egress::allow();
    }
#endif
};
constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    gate of_mine;
    netio::server<handler, netio::default_backend, gate> server(memory, mine, of_mine);
    return netio::report("refused", server);
}
