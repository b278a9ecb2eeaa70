// The second of two units: both include the header, both use it, and they share its objects.
#include "netio.hpp"

int polluted();

namespace {

struct silent {
    std::size_t on_data(netio::connection&, netio::bytes in) noexcept { return in.size(); }
};
constinit netio::storage<netio::limits{.connections_max = 4}> memory;

}  // namespace

int main() {
    silent handler;
    netio::server served{memory, handler};
    if (served.listen({.address = "127.0.0.1"}) != netio::error::none) {
        return 2;
    }
    return polluted();
}
