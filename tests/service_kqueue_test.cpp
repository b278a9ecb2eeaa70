// The service's suite on kqueue, on Linux over tests/kqueue_double.
#include "netio.hpp"

#if NETIO_HAS_KQUEUE

#include "tests/service.hpp"

namespace {

const netio_test::service_cases<netio::kqueue> service_kqueue_cases;

}  // namespace

#endif
