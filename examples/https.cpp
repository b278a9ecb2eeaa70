// c++ -std=c++20 -O2 -I. examples/https.cpp -o https -lbearssl
//
// A minimal HTTPS server, on BearSSL by examples/bearssl_tls.hpp:
//
//     https --certificate chain.pem --key key.pem [--listen 127.0.0.1:8443] [--drain-ms N]
//
// GET / says what was negotiated, GET /large is a mebibyte, everything else is 404. Each closed
// connection is one line on standard output with its reason. Sixteen TLS sessions at once; who
// comes beyond them is refused. For a try:
//
//     openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost
//         -addext subjectAltName=DNS:localhost -keyout key.pem -out chain.pem     (one command)
//     curl --cacert chain.pem https://localhost:8443/
#include "netio.hpp"

#include "examples/bearssl_tls.hpp"
#include "examples/options.hpp"

namespace {

using policy = example::bearssl_tls<16>;

constexpr std::string_view large_head =
    "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 1048576\r\n\r\n";
constexpr std::size_t large_bytes = 1024 * 1024;
std::byte large[large_head.size() + large_bytes];

constexpr std::string_view not_found = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

class https {
public:
    explicit https(policy& tls) noexcept : tls_(tls) {}

    /// One request after the other; each answer is queued whole, or waits for room in the input.
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        constexpr std::string_view blank_line = "\r\n\r\n";
        std::string_view left = netio::as_text(in);
        for (std::size_t end = left.find(blank_line); end != std::string_view::npos;
             end = left.find(blank_line)) {
            if (!answer(c, left)) {
                break;
            }
            left.remove_prefix(end + blank_line.size());
        }
        c.phase(left.empty() ? netio::phase::idle : netio::phase::exchange);
        return in.size() - left.size();
    }
private:
    bool answer(netio::connection& c, std::string_view request) noexcept {
        if (request.starts_with("GET /large ")) {
            return c.write_static(netio::bytes(large));
        }
        return request.starts_with("GET / ") ? describe(c) : c.write_static(not_found);
    }

    /// What was negotiated.
    bool describe(netio::connection& c) noexcept {
        netio::buffer page = c.take_buffer();
        if (!page) {
            return false;
        }
        const std::uint32_t session = c.tls_session();
        const std::string_view host = tls_.server_name(session);
        const std::string_view protocol = tls_.protocol(session);
        char body[400];
        const int body_count = std::snprintf(
            body, sizeof(body), "version %04x\nhost %.*s\nprotocol %.*s\n", tls_.version(session),
            example::length(host), host.data(), example::length(protocol), protocol.data());
        char* const at = reinterpret_cast<char*>(page.space(page_bytes_max).data());
        const int count = std::snprintf(at, page_bytes_max,
                                        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                                        "Content-Length: %d\r\n\r\n%s",
                                        body_count, body);
        page.commit(static_cast<std::size_t>(count));
        return c.push_buffer(page);
    }

    static constexpr std::size_t page_bytes_max = 512;  // a buffer has at least 536

    policy& tls_;
};

void make_large() noexcept {
    std::memcpy(large, large_head.data(), large_head.size());
    for (std::size_t at = 0; at < large_bytes; ++at) {
        large[large_head.size() + at] = static_cast<std::byte>(at % 251);
    }
}

/// One line for each client that is gone, served or not.
struct journal {
    void on_event(const netio::server_event& event) noexcept {
        if (event.kind == netio::server_event_kind::closed) {
            char reason[64];
            netio::describe(event.reason, reason);
            std::printf("closed: %s\n", reason);
            std::fflush(stdout);
        }
    }
};

policy tls;
example::tls_identity identity;
const char* protocols[] = {"http/1.1"};

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::loopback_ipv4(8443);
    std::string_view certificate;
    std::string_view key;
    std::uint32_t drain_ms = 5'000;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--certificate", .text = &certificate},
        {.flag = "--key", .text = &key},
        {.flag = "--drain-ms", .number = &drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("https", count, words, settings)) {
        return 2;
    }
    if (certificate.empty() || key.empty()) {
        example::refuse("https", certificate.empty() ? "--certificate" : "--key", "", "missing");
        return 2;
    }
    if (!identity.load("https", certificate.data(), key.data())) {  // words end in a zero
        return 1;
    }
    make_large();
    tls.serve(identity, protocols);

    https handler(tls);
    journal events;
    netio::server server(example::memory_for({.connections_max = 256}, 0), handler, events, tls);
    char where[netio::endpoint_text_max];
    netio::listen_options how;
    how.address = netio::format_address(at, where);
    how.port = at.port;
    how.tls = netio::tls_mode::required;
    if (server.listen(how) == netio::error::none) {
        example::announce("https", server, server.local());
        example::signals<decltype(server)>::watch(server, drain_ms);
        example::run(server);
    }
    return netio::report("https", server);
}
