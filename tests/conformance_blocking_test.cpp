// The contract's suite on the blocking backend, with plain sockets of this thread as peers, on
// loopback.
#include "netio.hpp"

#if NETIO_HAS_POLL

#include "tests/blocking_short.hpp"
#include "tests/conformance_sockets.hpp"

namespace {

using conformance_blocking_world =
    netio_test::conformance_socket_world<netio_test::blocking_short>;
const netio_test::conformance_cases<conformance_blocking_world> conformance_blocking_cases;

}  // namespace

#endif
