// The service's suite on the blocking backend.
#include "netio.hpp"

#if NETIO_HAS_POLL

#include "tests/blocking_short.hpp"
#include "tests/service.hpp"

namespace {

const netio_test::service_cases<netio_test::blocking_short> service_blocking_cases;

}  // namespace

#endif
