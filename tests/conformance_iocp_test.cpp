// The contract's suite on completion ports, with plain sockets of this thread as peers.
#include "netio.hpp"

#if NETIO_HAS_IOCP

#include "tests/conformance_sockets.hpp"

namespace {

using conformance_iocp = netio::basic_iocp<netio_test::conformance_windows_sys>;
using conformance_iocp_world = netio_test::conformance_socket_world<conformance_iocp>;
const netio_test::conformance_cases<conformance_iocp_world> conformance_iocp_cases;

}  // namespace

#endif
