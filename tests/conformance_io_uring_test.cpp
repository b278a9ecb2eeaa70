// The contract's suite on the io_uring prototype, and a server over it. Where the kernel offers no
// io_uring the suite is left out, and the first case says so.
#include "tests/io_uring_prototype.hpp"

#if NETIO_HAS_EPOLL

#include "tests/conformance_sockets.hpp"

#include <optional>

namespace {

using netio_test::io_uring_prototype;
using conformance_io_uring_world = netio_test::conformance_socket_world<io_uring_prototype>;

const netio::availability conformance_io_uring_offered = io_uring_prototype::available();
const auto conformance_io_uring_cases = [] {
    std::optional<netio_test::conformance_cases<conformance_io_uring_world>> cases;
    if (conformance_io_uring_offered.offered) {
        cases.emplace();
    }
    return cases;
}();

TEST_CASE("the contract's suite runs on io_uring") {
    if (!conformance_io_uring_offered.offered) {
        MESSAGE("SKIPPED: every case ending in .io_uring; this kernel does not offer "
                << std::string(conformance_io_uring_offered.missing));
        return;
    }
    CHECK(conformance_io_uring_cases.has_value());
}

}  // namespace

#endif
