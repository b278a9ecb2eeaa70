// The service's suite on io_uring. Where the kernel offers no io_uring it is left out, and its
// first case says so.
#include "netio.hpp"

#if NETIO_HAS_IO_URING

#include "tests/io_uring_offered.hpp"
#include "tests/service.hpp"

#include <optional>

namespace {

const netio::availability service_io_uring_offered = netio_test::io_uring_offered();
const auto service_io_uring_cases = [] {
    std::optional<netio_test::service_cases<netio::io_uring>> cases;
    if (service_io_uring_offered.offered) {
        cases.emplace();
    }
    return cases;
}();

TEST_CASE("the service's suite runs on io_uring") {
    if (!service_io_uring_offered.offered) {
        MESSAGE("SKIPPED: every case ending in .io_uring; this kernel does not offer "
                << std::string(service_io_uring_offered.missing));
        return;
    }
    CHECK(service_io_uring_cases.has_value());
}

}  // namespace

#endif
