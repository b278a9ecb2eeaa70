// The service's suite on completion ports. AF_UNIX is refused where the system has none.
#include "netio.hpp"

#if NETIO_HAS_IOCP

#include "tests/service.hpp"

namespace {

/// Wine tells a reset as an end of stream: see tests/sockets.hpp.
struct service_windows_sys : netio::windows_sys {
    static int receive(socket_type from, void* into, int count) noexcept {
        return netio_test::plain::told_by_wine(from, windows_sys::receive(from, into, count));
    }
};

constexpr netio_test::service_offers service_iocp_offers{.unix_streams = false};
const netio_test::service_cases<netio::basic_iocp<service_windows_sys>, service_iocp_offers>
    service_iocp_cases;

}  // namespace

#endif
