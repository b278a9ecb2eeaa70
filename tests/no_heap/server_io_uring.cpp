// The service over the io_uring prototype without an allocation.
#include "tests/io_uring_prototype.hpp"

#include "tests/no_heap/service.hpp"

int scenario() noexcept { return no_heap::scenario_of<netio_test::io_uring_prototype>(); }
