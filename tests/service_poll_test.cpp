// The service's suite on poll.
#include "netio.hpp"

#if NETIO_HAS_POLL

#include "tests/service.hpp"

namespace {

const netio_test::service_cases<netio::poll> service_poll_cases;

}  // namespace

#endif
