// expects: netio: a field of the limits is out of range
#include "netio.hpp"

#ifdef NETIO_EXPECT_OK
constexpr std::uint32_t buffer_bytes = 536;
#else
constexpr std::uint32_t buffer_bytes = 535;
#endif
constinit static netio::storage<netio::limits{.buffer_bytes = buffer_bytes}> memory;

int main() { return static_cast<int>(memory.memory[0]); }
