// The contract's suite on kqueue, with plain sockets of this thread as peers, on loopback. On Linux
// the backend runs over tests/kqueue_double, asked for by -DNETIO_USE_KQUEUE=1 and found by
// -Itests/kqueue_double.
#include "netio.hpp"

#include <doctest/doctest.h>

#if defined(__linux__)
TEST_CASE("the contract's suite runs on kqueue: build as tests/all.cpp says") {
    CHECK(NETIO_HAS_KQUEUE == 1);
}
#endif

#if NETIO_HAS_KQUEUE

#include "tests/conformance_sockets.hpp"

namespace {

using conformance_kqueue_world = netio_test::conformance_socket_world<netio::kqueue>;
const netio_test::conformance_cases<conformance_kqueue_world> conformance_kqueue_cases;

/// As on 32-bit systems, where udata carries no generation.
struct conformance_kqueue_narrow_sys : netio::kqueue_sys {
    using udata_word = std::uint32_t;
};
struct conformance_kqueue_narrow : netio::basic_kqueue<conformance_kqueue_narrow_sys> {
    static constexpr const char* name = "kqueue_narrow";
};
using conformance_kqueue_narrow_world =
    netio_test::conformance_socket_world<conformance_kqueue_narrow>;
const netio_test::conformance_cases<conformance_kqueue_narrow_world>
    conformance_kqueue_narrow_cases;

}  // namespace

#endif
