// expects: netio: a TLS policy needs void end_of_input(std::uint32_t) noexcept
#include "netio.hpp"

struct handler {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};
struct policy {
    std::uint32_t open_session(const netio::connection&) noexcept { return 0; }
    void close_session(std::uint32_t) noexcept {}
    netio::mutable_bytes receive_space(std::uint32_t) noexcept { return {}; }
    void received(std::uint32_t, std::size_t) noexcept {}
#ifdef NETIO_EXPECT_OK
    void end_of_input(std::uint32_t) noexcept {}
#endif
    netio::bytes plaintext(std::uint32_t) noexcept { return {}; }
    void consumed(std::uint32_t, std::size_t) noexcept {}
    std::size_t write(std::uint32_t, netio::bytes) noexcept { return 0; }
    netio::bytes to_send(std::uint32_t) noexcept { return {}; }
    void sent(std::uint32_t, std::size_t) noexcept {}
    void end(std::uint32_t) noexcept {}
    netio::tls_status status(std::uint32_t) noexcept { return netio::tls_status::failed; }
    std::uint16_t code(std::uint32_t) noexcept { return 0; }
};
constinit static netio::storage<netio::limits{.connections_max = 4}> memory;

int main() {
    handler mine;
    policy of_mine;
    netio::server server(memory, mine, of_mine);
    return netio::report("refused", server);
}
