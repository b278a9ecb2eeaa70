// A marker for everything a peer can leave in the memory: the byte 'M' (77), so that four bytes of
// an address, a text, a TLV or a body are enough to be found.
#ifndef NETIO_TESTS_MARKER_HPP
#define NETIO_TESTS_MARKER_HPP

#include "tests/scripted.hpp"

#include <cstring>

namespace netio_test {

inline constexpr netio::endpoint marker_client = netio::ipv4(77, 77, 77, 77, 0x4D4D);

struct marker_state {
    char text[64];
};

inline std::size_t marker_find(netio::bytes memory, std::string_view wanted) {
    return netio::as_text(memory).find(wanted);
}

/// Where in the memory a marker is; npos: nowhere.
inline std::size_t marker_place(netio::bytes memory) {
    const std::size_t binary = marker_find(memory, "MMMM");
    return binary != std::string_view::npos ? binary : marker_find(memory, "77.77.77");
}

inline std::string marker_header(std::uint32_t kind) {
    netio::proxy::header is;
    is.cmd = netio::proxy::command::proxy;
    is.fam = netio::proxy::family::ipv4;
    is.proto = netio::proxy::transport::stream;
    is.source = marker_client;
    is.destination = marker_client;
    const std::string text(kind % 3 == 2 ? 700 : 100, 'M');
    const netio::proxy::tlv marks[] = {{0x02, netio::as_bytes(text)}};
    std::string out(2000, '\0');
    const netio::mutable_bytes room{reinterpret_cast<std::byte*>(out.data()), out.size()};
    out.resize(kind % 3 == 0 ? netio::proxy::encode_v1(is, room)
                             : netio::proxy::encode_v2(is, marks, room, true));
    REQUIRE(!out.empty());
    return out;
}

/// How one of ten connections goes.
inline void marker_handle(scripted& of) {
    of.open = [](netio::connection& c) { std::memset(&c.state<marker_state>(), 'M', 64); };
    of.data = [&of](netio::connection& c, netio::bytes in) {
        switch (of.opened % 6) {
        case 0:
            return c.write(in);
        case 1:
            return c.move_input_to(c);
        case 2:
            c.kill(1);
            return std::size_t{0};
        case 3:
            return std::size_t{0};  // ends in a deadline, or in the peer's end
        case 4:
            c.write(std::string(500, 'M'));
            c.close();
            return in.size() / 2;
        default:
            return in.size() / 2;
        }
    };
    of.packet = [](netio::datagram_socket& via, const netio::datagram& in) {
        via.send_to(in.source, in.payload);
    };
}

}  // namespace netio_test

#endif
