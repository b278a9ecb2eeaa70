// The service over real sockets of this process: what the simulator can't vouch for.
#include "netio.hpp"

#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace {

struct server_epoll_memory {
    explicit server_epoll_memory(const netio::limits& chosen)
        : sizes(chosen), count(netio::bytes_needed<netio::epoll>(chosen)) {
        at = ::mmap(nullptr, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(at != MAP_FAILED);
    }
    ~server_epoll_memory() { ::munmap(at, count); }
    netio::storage_view view() const { return {{static_cast<std::byte*>(at), count}, sizes}; }

    netio::limits sizes;
    std::size_t count;
    void* at;
};

struct server_epoll_echo {
    std::string source;
    std::size_t value_bytes = 0;
    std::uint32_t opened = 0;
    netio::close_reason reason{};
    void on_open(netio::connection& c) noexcept {
        ++opened;
        char line[netio::endpoint_text_max];
        source = netio::format(c.source(), line);
        value_bytes = c.tlvs().find(0xE0).value.size();
    }
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept { return c.write(in); }
    void on_close(netio::connection&, netio::close_reason why) noexcept { reason = why; }
};

/// A client that lets the server turn while it waits; bounded.
template <class Server>
struct server_epoll_client {
    Server& server;
    int socket;

    server_epoll_client(Server& of, const sockaddr* to, socklen_t size)
        : server(of), socket(::socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        REQUIRE(::connect(socket, to, size) == 0);
    }
    server_epoll_client(const server_epoll_client&) = delete;
    ~server_epoll_client() { ::close(socket); }
    void send(std::string_view text) {
        CHECK(::send(socket, text.data(), text.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(text.size()));
    }
    /// What comes until `count` bytes are there or the server ends it.
    std::string receive(std::size_t count) {
        std::string got;
        char piece[4096];
        for (int turn = 0; turn < 2000 && got.size() < count; ++turn) {
            server.run_once(1);
            const ssize_t more = ::recv(socket, piece, sizeof(piece), MSG_DONTWAIT);
            if (more == 0 || (more < 0 && errno != EAGAIN)) {
                break;
            }
            got.append(piece, more > 0 ? static_cast<std::size_t>(more) : 0);
        }
        return got;
    }
};

std::string server_epoll_header(std::size_t total) {
    std::string out("\r\n\r\n\0\r\nQUIT\n\x21\x11", 14);
    out += static_cast<char>((total - 16) >> 8);
    out += static_cast<char>((total - 16) & 0xFF);
    out += std::string("\xC0\x00\x02\x01\xC6\x33\x64\x02\xDC\x04\x01\xBB\xE0", 13);
    out += static_cast<char>((total - 31) >> 8);
    out += static_cast<char>((total - 31) & 0xFF);
    return out + std::string(total - 31, 't');
}

template <class Server>
std::string server_epoll_round(Server& server, netio::listener_id id, std::string_view sent,
                               std::size_t expected) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(server.local(id).port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server_epoll_client client(server, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    client.send(sent);
    return client.receive(expected);
}

}  // namespace

TEST_CASE("headers of 536, 537, 4,096 and 4,097 bytes with payload behind, on a real listener") {
    for (const std::uint32_t header_max : {536u, 4096u}) {
        server_epoll_memory memory({.connections_max = 8,
                                    .input_buffers_max = 4,
                                    .output_buffers_max = 4,
                                    .preface_buffers_max = 2});
        server_epoll_echo handler;
        netio::server server{memory.view(), handler};
        netio::listener_id id;
        REQUIRE(server.listen({.address = "127.0.0.1",
                               .proxy = netio::proxy_mode::required,
                               .trusted = "127.0.0.0/8",
                               .header_max = header_max},
                              &id) == netio::error::none);
        std::uint32_t accepted = 0;
        for (const std::size_t total : {536u, 537u, 4096u, 4097u}) {
            CAPTURE(header_max);
            CAPTURE(total);
            const bool fits = total <= header_max;
            accepted += fits ? 1 : 0;
            const std::string back =
                server_epoll_round(server, id, server_epoll_header(total) + "payload", 7);
            CHECK(back == (fits ? "payload" : ""));
            CHECK(handler.opened == accepted);
            if (fits) {
                CHECK(handler.source == "192.0.2.1:56324");
                CHECK(handler.value_bytes == total - 31);
            }
        }
        for (int turn = 0; turn < 200 && server.stats().open != 0; ++turn) {
            server.run_once(1);
        }
        for (const netio::pool_stats& pool : server.stats().pools) {
            CAPTURE(pool.name);
            CHECK(pool.in_use == 0);
        }
    }
}

TEST_CASE("IPv6, both families on one port, and a unix socket serve the same handler") {
    server_epoll_memory memory({.connections_max = 8});
    server_epoll_echo handler;
    netio::server server{memory.view(), handler};
    netio::listener_id both;
    netio::listener_id local;
    REQUIRE(server.listen({.dual_stack = true}, &both) == netio::error::none);
    const std::string name = "@netio-server-epoll-test-" + std::to_string(::getpid());
    REQUIRE(server.listen({.unix_path = name}, &local) == netio::error::none);
    CHECK(server_epoll_round(server, both, "four", 4) == "four");
    CHECK(handler.source.starts_with("[::ffff:127.0.0.1]:"));
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(server.local(both).port);
    six.sin6_addr = in6addr_loopback;
    {
        server_epoll_client client(server, reinterpret_cast<const sockaddr*>(&six), sizeof(six));
        client.send("six");
        CHECK(client.receive(3) == "six");
        CHECK(handler.source.starts_with("[::1]:"));
    }
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    std::memcpy(path.sun_path + 1, name.data() + 1, name.size() - 1);
    {
        server_epoll_client client(server, reinterpret_cast<const sockaddr*>(&path),
                                   static_cast<socklen_t>(sizeof(sa_family_t) + name.size()));
        client.send("unix");
        CHECK(client.receive(4) == "unix");
    }
    CHECK(handler.opened == 3);
}
