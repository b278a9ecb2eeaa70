// Names and macros that other people's headers bring, all before netio.hpp: old system headers,
// Windows, test frameworks, a program's own namespaces and globals.
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define ERROR 0
#define IN
#define OUT
#define OPTIONAL
#define major(device) (device)
#define minor(device) (device)
#define near
#define far
#define interface struct
#define small char
#define unix 1
#define linux 1
#define BIG_ENDIAN 4321
#define LITTLE_ENDIAN 1234
#define BYTE_ORDER LITTLE_ENDIAN
#define CHECK(condition) ((void)(condition))
#define REQUIRE(condition) ((void)(condition))
#define TRUE 1
#define FALSE 0
#define DELETE 2
#define NO_ERROR 0

namespace bytes {
struct endpoint {};
}  // namespace bytes
namespace detail {
int value = 1;
}
namespace rpc {
struct envelope {};
}  // namespace rpc
namespace proxy {
struct header {};
}  // namespace proxy
struct endpoint {};
struct connection {};
struct limits {};
struct server {};
struct wheel {};
struct error {};
struct failure {};
int result = 2;
int post = 3;
int worker = 4;
int crc32c = 5;

#include "netio.hpp"

// What was defined before still is; min and max the C++ library itself takes away.
#if !defined(ERROR) || !defined(major) || !defined(minor) || !defined(small) || \
    !defined(BIG_ENDIAN) || !defined(linux) || !defined(TRUE) || !defined(DELETE)
#error "netio.hpp took a macro away"
#endif

namespace {

struct echo {
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return peer.write(in);
    }
};
constinit netio::storage<netio::limits{.connections_max = 4}> memory;

}  // namespace

int polluted() {
    echo handler;
    netio::server served{memory, handler};
    const netio::error failed = served.listen({.address = "127.0.0.1"});
    return failed == netio::error::none ? detail::value + result + post + worker + crc32c - 15 : 1;
}
