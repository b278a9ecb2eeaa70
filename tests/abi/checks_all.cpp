// A unit that checks whole lists too.
#define NETIO_CHECKS 2
#include "netio.hpp"

const char* text_with_checks(unsigned code) noexcept {
    NETIO_ASSERT_SLOW(code < 10'000);
    return netio::text(static_cast<netio::error>(code));
}
