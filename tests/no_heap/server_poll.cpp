// The service over poll without an allocation.
#include "netio.hpp"

#include "tests/no_heap/service.hpp"

int scenario() noexcept { return no_heap::scenario_of<netio::poll>(); }
