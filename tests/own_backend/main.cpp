// g++ -std=c++20 -I. tests/own_backend/main.cpp -o own_backend
// The contract's suite on the backend of examples/own_backend.hpp, swapped in as a user does it.
#define NETIO_BACKEND_HEADER "examples/own_backend.hpp"
#include "tests/main.cpp"

#include "tests/conformance_sockets.hpp"

namespace {

static_assert(std::is_same_v<netio::default_backend, netio::user_backend>);
using own_backend_world = netio_test::conformance_socket_world<netio::default_backend>;
const netio_test::conformance_cases<own_backend_world> own_backend_cases;

}  // namespace

TEST_CASE("the suite ran on the user's backend, whose record says so") {
    netio_test::conformance_rig<netio::default_backend> rig;
    CHECK(rig.open());
    const std::uint64_t before = netio::own_sys::record.waits;
    rig.turn(0);
    CHECK(netio::own_sys::record.waits == before + 1);
    CHECK(netio::own_sys::record.polls != 0);
}
