// expects: NETIO_CHECKS must be 0, 1 or 2
#ifdef NETIO_EXPECT_OK
#define NETIO_CHECKS 2
#else
#define NETIO_CHECKS 3
#endif
#include "netio.hpp"
