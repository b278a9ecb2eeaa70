// The contract's suite on poll, with plain sockets of this thread as peers, on loopback.
#include "netio.hpp"

#if NETIO_HAS_POLL

#include "tests/conformance_sockets.hpp"

namespace {

using conformance_poll_world = netio_test::conformance_socket_world<netio::poll>;
const netio_test::conformance_cases<conformance_poll_world> conformance_poll_cases;

}  // namespace

#endif
