// The service over io_uring without an allocation.
#include "netio.hpp"

#include "tests/no_heap/service.hpp"

int scenario() noexcept { return no_heap::scenario_of<netio::io_uring>(); }
