// The service over kqueue without an allocation, on Linux over tests/kqueue_double.
#include "netio.hpp"

#include "tests/no_heap/service.hpp"

int scenario() noexcept { return no_heap::scenario_of<netio::kqueue>(); }
