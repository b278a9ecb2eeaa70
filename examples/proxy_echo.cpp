// c++ -std=c++20 -O2 -I. examples/proxy_echo.cpp -o proxy_echo
//
// An echo service behind a load balancer that speaks the PROXY protocol:
//
//     proxy_echo [--listen 0.0.0.0:7000] [--trusted 10.0.0.0/8] [--versions either|v1|v2]
//                [--memory BYTES] [--drain-ms N]
//
// Each client is greeted with one line about itself, as the balancer knows it, then echoed to. Each
// closed connection is one line on standard output with its reason: a client that comes directly
// ends as proxy_missing, one from outside `--trusted` as proxy_untrusted. SIGTERM drains.
#include "netio.hpp"

#include "examples/options.hpp"

namespace {

/// Builds one line; what does not fit is cut.
class text_line {
public:
    text_line& put(std::string_view piece) noexcept {
        for (const char letter : piece) {
            put_letter(letter);
        }
        return *this;
    }
    text_line& put(const netio::endpoint& at) noexcept {
        char text[netio::endpoint_text_max];
        return put(netio::format(at, text));
    }
    text_line& put_hex(std::uint8_t value) noexcept {
        constexpr std::string_view digits = "0123456789abcdef";
        put_letter(digits[value >> 4]);
        put_letter(digits[value & 15]);
        return *this;
    }
    /// As text if it is plain, else in hex.
    text_line& put_value(netio::bytes value) noexcept {
        bool plain = true;
        for (const std::byte each : value) {
            plain = plain && each > std::byte{' '} && each <= std::byte{'~'};
        }
        if (plain) {
            return put(netio::as_text(value));
        }
        put("0x");
        for (const std::byte each : value) {
            put_hex(std::to_integer<std::uint8_t>(each));
        }
        return *this;
    }
    std::string_view whole() const noexcept { return {letters_, used_}; }

private:
    void put_letter(char letter) noexcept {
        if (used_ < sizeof(letters_)) {
            letters_[used_++] = letter;
        }
    }
    char letters_[2048];
    std::size_t used_ = 0;
};

struct type_name {
    std::uint8_t type;
    std::string_view name;
};
constexpr type_name tlv_names[] = {
    {netio::proxy::tlv_alpn, "alpn"},           {netio::proxy::tlv_authority, "authority"},
    {netio::proxy::tlv_crc32c, "crc32c"},       {netio::proxy::tlv_unique_id, "unique_id"},
    {netio::proxy::tlv_netns, "netns"},
};
constexpr type_name ssl_names[] = {
    {netio::proxy::ssl_version, "ssl_version"}, {netio::proxy::ssl_common_name, "ssl_cn"},
    {netio::proxy::ssl_cipher, "ssl_cipher"},   {netio::proxy::ssl_signature, "ssl_signature"},
    {netio::proxy::ssl_key, "ssl_key"},
};

void put_tlvs(text_line& line, const netio::proxy::tlv_list& tlvs,
              std::span<const type_name> names) noexcept {
    for (const netio::proxy::tlv each : tlvs) {
        line.put(" ");
        const std::size_t before = line.whole().size();
        for (const type_name& known : names) {
            line.put(known.type == each.type ? known.name : "");
        }
        if (line.whole().size() == before) {
            line.put("tlv_").put_hex(each.type);
        }
        line.put("=").put_value(each.value);
    }
}

struct proxy_echo {
    void on_open(netio::connection& peer) noexcept {
        const netio::proxy::header* header = peer.proxy_header();
        text_line line;
        line.put("client ").put(peer.source()).put(" to ").put(peer.destination());
        line.put(header->version == 1 ? " v1" : " v2");
        line.put(header->cmd == netio::proxy::command::local ? " local"
                 : peer.proxied()                            ? " proxied"
                                                             : " unspecified");
        put_tlvs(line, peer.tlvs(), tlv_names);
        if (const netio::proxy::ssl_view ssl = peer.tlvs().ssl(); ssl.present) {
            line.put(ssl.verified() ? " verified" : " unverified");
            put_tlvs(line, ssl.inner, ssl_names);
        }
        line.put("\n");
        peer.write(line.whole());
    }
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return peer.write(in);
    }
};

/// Tells of each connection's end.
struct journal {
    void on_event(const netio::server_event& event) noexcept {
        if (event.kind != netio::server_event_kind::closed) {
            return;
        }
        char reason[96];
        netio::describe(event.reason, reason);
        char source[netio::endpoint_text_max];
        netio::format(event.source, source);
        std::printf("closed %s: %s\n", source, reason);
        std::fflush(stdout);
    }
};

struct choice {
    netio::endpoint at = netio::any_ipv4(7000);
    std::string_view trusted;
    std::string_view versions = "either";
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
};

bool read_choice(int count, char** words, choice& out, netio::proxy_accept& versions) noexcept {
    const example::setting settings[] = {
        {.flag = "--listen", .address = &out.at},
        {.flag = "--trusted", .text = &out.trusted},
        {.flag = "--versions", .text = &out.versions},
        {.flag = "--memory", .number = &out.memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &out.drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("proxy_echo", count, words, settings)) {
        return false;
    }
    versions = out.versions == "v1"   ? netio::proxy_accept::v1
               : out.versions == "v2" ? netio::proxy_accept::v2
                                      : netio::proxy_accept::either;
    return out.versions == "either" || versions != netio::proxy_accept::either ||
           example::refuse("proxy_echo", "--versions", out.versions, "not one of either, v1, v2");
}

}  // namespace

int main(int count, char** words) {
    choice chosen;
    netio::listen_options where;
    if (!read_choice(count, words, chosen, where.versions)) {
        return 2;
    }
    using server_type =
        netio::server<proxy_echo, netio::default_backend, netio::allow_all, journal>;
    proxy_echo handler;
    journal events;
    server_type server{example::memory_for({}, chosen.memory_bytes), handler, events};

    char address[netio::endpoint_text_max];
    where.address = netio::format_address(chosen.at, address);
    where.port = chosen.at.port;
    where.proxy = netio::proxy_mode::required;
    where.trusted = chosen.trusted;
    if (server.listen(where) == netio::error::none) {
        example::signals<server_type>::watch(server, chosen.drain_ms);
        example::announce("proxy_echo", server, server.local());
        example::run(server);
    }
    return netio::report("proxy_echo", server);
}
