// A user's program: gets netio from `@netio//:netio` and sees the one header.
#include "netio.hpp"

int main() {
    return netio::text(netio::error::address_in_use) == std::string_view{"address in use"} ? 0 : 1;
}
