// The service's suite on completion ports. AF_UNIX is refused where the system has none.
#include "netio.hpp"

#if NETIO_HAS_IOCP

#include "tests/service.hpp"
#include "tests/windows_peers.hpp"

namespace {

constexpr netio_test::service_offers service_iocp_offers{.unix_streams = false};
using service_iocp = netio::basic_iocp<netio_test::told_windows_sys>;
const netio_test::service_cases<service_iocp, service_iocp_offers> service_iocp_cases;

}  // namespace

#endif
