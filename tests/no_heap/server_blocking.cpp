// The service over the blocking backend without an allocation.
#include "netio.hpp"

#include "tests/no_heap/service.hpp"

int scenario() noexcept { return no_heap::scenario_of<netio::blocking>(); }
