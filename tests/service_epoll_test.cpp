// The service's suite on epoll.
#include "netio.hpp"

#if NETIO_HAS_EPOLL

#include "tests/service.hpp"

namespace {

const netio_test::service_cases<netio::epoll> service_epoll_cases;

}  // namespace

#endif
