// The contract's suite on epoll, with plain sockets of this thread as peers, on loopback.
#include "netio.hpp"

#if NETIO_HAS_EPOLL

#include "tests/conformance_sockets.hpp"

namespace {

using conformance_epoll_world = netio_test::conformance_socket_world<netio::epoll>;
const netio_test::conformance_cases<conformance_epoll_world> conformance_epoll_cases;

}  // namespace

#endif
