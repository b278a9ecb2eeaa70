// The rows `PROXY vectors …` of the service's suite: every vector on a real listener, whole and in
// two parts, and headers around the sizes where the memory they are read into changes.
#ifndef NETIO_TESTS_SERVICE_PROXY_HPP
#define NETIO_TESTS_SERVICE_PROXY_HPP

#include "tests/proxy_words.hpp"
#include "tests/service_world.hpp"

namespace netio_test {

inline constexpr netio::limits service_proxy_limits{.connections_max = 8,
                                                    .buffer_bytes = 8192,
                                                    .input_buffers_max = 8,
                                                    .output_buffers_max = 8,
                                                    .preface_buffers_max = 2};

/// A v2 IPv4 header of exactly `total` bytes: what the addresses leave is one TLV of type E0.
inline std::string service_proxy_header(std::size_t total, char transport = '\x11') {
    const auto big_endian = [](std::size_t value) {
        return std::string{static_cast<char>(value >> 8), static_cast<char>(value & 0xFF)};
    };
    std::string out("\r\n\r\n\0\r\nQUIT\n\x21", 13);
    out += transport + big_endian(total - 16);
    out += std::string("\xC0\x00\x02\x01\xC6\x33\x64\x02\xDC\x04\x01\xBB", 12);
    if (total > 28) {
        out += '\xE0' + big_endian(total - 31) + std::string(total - 31, 't');
    }
    REQUIRE(out.size() == total);
    return out;
}

template <class Backend>
struct service_proxy {
    /// A listener that takes headers as long as the vectors' parser does, and echoes what follows.
    struct listening {
        service_world<Backend> w{service_proxy_limits};
        netio::endpoint at;
        std::string seen;      // the header as on_open got it
        netio::endpoint source;

        listening() {
            service_echo(w.handler);
            w.handler.open = [this](netio::connection& c) {
                REQUIRE(c.proxy_header() != nullptr);
                seen = proxy_header_text(*c.proxy_header());
                source = c.source();
            };
            netio::listen_options how;
            how.proxy = netio::proxy_mode::required;
            how.trusted = "127.0.0.0/8";
            how.header_max = 4096;
            at = w.listen(how);
        }
    };

    /// What the server has taken from its peers so far.
    static std::uint64_t taken(listening& on) { return on.w.server().stats().counts.bytes_in; }

    /// Sends `first`, lets the server take it, then sends the rest and `behind`.
    static void send_in_parts(listening& on, client_socket& client, std::string_view whole,
                              std::size_t cut, std::string_view behind) {
        const std::uint64_t before = taken(on);
        if (cut != 0) {
            CHECK(client.send(whole.substr(0, cut)) == cut);
            CHECK(on.w.until([&] { return taken(on) == before + cut || client.over(); }));
        }
        std::string rest(whole.substr(cut));
        rest += behind;
        client.send(rest);
    }

    static const netio::close_reason& last_reason(listening& on) {
        return on.w.events.all.back().reason;
    }
    static void check_closed(listening& on, std::uint64_t before) {
        REQUIRE(on.w.until([&] { return on.w.server().stats().counts.closed == before + 1; }));
    }

    /// "accept N of M: what": the handler sees that, and the bytes behind it come untouched.
    static void accepted(listening& on, client_socket& client, const std::string& whole,
                         const std::string& expected, std::size_t cut) {
        const auto consumed = static_cast<std::size_t>(std::stoul(expected.substr(7)));
        const std::string behind = whole.substr(consumed) + "payload";
        send_in_parts(on, client, whole, cut, "payload");
        CHECK(on.w.exchange(client, "", behind.size()) == behind);
        CHECK(on.seen == expected.substr(expected.find(": ") + 2));
        const bool real = on.seen.ends_with("real addresses") || on.seen.starts_with("UNIX");
        if (on.seen.ends_with("real addresses")) {
            CHECK(on.source == client.local());
        } else if (!real) {
            char line[netio::endpoint_text_max];
            CHECK(on.seen.find(netio::format(on.source, line)) != std::string::npos);
        }
        client.close();
    }

    /// "reject: rule": a reset, for that rule, and no handler ever heard of it.
    static void rejected(listening& on, client_socket& client, const std::string& whole,
                         std::size_t cut) {
        send_in_parts(on, client, whole, cut, "");
        CHECK(on.w.until([&] { return client.over(); }));
        CHECK(client.was_reset());
    }

    static void check_rejection(const netio::close_reason& reason, const std::string& expected) {
        if (expected == "reject: not_proxy") {
            CHECK(reason.kind == netio::close_kind::proxy_missing);
        } else {
            CHECK(reason.kind == netio::close_kind::proxy_invalid);
            CHECK("reject: " + std::string(proxy_error_name(reason.why())) == expected);
        }
    }

    static void play(listening& on, const proxy_vector& one, std::size_t cut) {
        const proxy_buffer raw = proxy_unhex(one.hex);
        const std::string whole(netio::as_text(raw));
        std::string expected = one.expected;
        const std::uint64_t closed = on.w.server().stats().counts.closed;
        const std::uint32_t opened = on.w.handler.opened;
        client_socket client(on.at);
        if (expected.starts_with("accept")) {
            accepted(on, client, whole, expected, cut);
            check_closed(on, closed);
            CHECK(on.w.handler.opened == opened + 1);
            return;
        }
        if (expected.starts_with("reject")) {
            rejected(on, client, whole, cut);
            check_closed(on, closed);
            check_rejection(last_reason(on), expected);
        } else {  // "need more", and no more comes
            send_in_parts(on, client, whole, cut, "");
            client.shutdown();
            check_closed(on, closed);
            CHECK(last_reason(on).kind == (whole.empty() ? netio::close_kind::peer_closed
                                                         : netio::close_kind::proxy_invalid));
            CHECK((whole.empty() || last_reason(on).why() == netio::error::header_unfinished));
        }
        CHECK(on.w.handler.opened == opened);
    }

    static void whole() {
        listening on;
        std::size_t count = 0;
        for (const proxy_vector& one : proxy_vectors) {
            CAPTURE(one.id);
            play(on, one, 0);
            ++count;
        }
        CHECK(count == 112);
    }

    /// After one byte, before the last, where a v2 header's fixed parts end, and now and then.
    static bool is_cut(std::size_t at, std::size_t count) {
        const std::size_t step = count / 6 + 1;
        return at == 1 || at + 1 == count || at == 12 || at == 16 || at % step == 0;
    }

    static void in_two_parts() {
        listening on;
        for (const proxy_vector& one : proxy_vectors) {
            CAPTURE(one.id);
            const std::size_t count = proxy_unhex(one.hex).size();
            for (std::size_t cut = 1; cut < count; ++cut) {
                if (is_cut(cut, count)) {
                    CAPTURE(cut);
                    play(on, one, cut);
                }
            }
        }
    }

    static void sizes_at_the_bounds() {
        for (const std::uint32_t header_max : {536u, 4096u}) {
            CAPTURE(header_max);
            service_world<Backend> w(service_proxy_limits);
            service_echo(w.handler);
            std::string source;
            std::size_t value_bytes = 0;
            w.handler.open = [&](netio::connection& c) {
                char line[netio::endpoint_text_max];
                source = netio::format(c.source(), line);
                value_bytes = c.tlvs().find(0xE0).value.size();
            };
            netio::listen_options how;
            how.proxy = netio::proxy_mode::required;
            how.trusted = "127.0.0.0/8";
            how.header_max = header_max;
            const netio::endpoint at = w.listen(how);
            std::uint32_t accepted_count = 0;
            for (const std::size_t total : {535u, 536u, 537u, 4096u, 4097u}) {
                CAPTURE(total);
                const bool fits = total <= header_max;
                accepted_count += fits ? 1 : 0;
                client_socket client(at);
                const std::string back =
                    w.exchange(client, service_proxy_header(total) + "payload", 7);
                CHECK(back == (fits ? "payload" : ""));
                CHECK(client.was_reset() == !fits);
                CHECK(w.handler.opened == accepted_count);
                if (fits) {
                    CHECK(source == "192.0.2.1:56324");
                    CHECK(value_bytes == total - 31);
                }
                client.close();
                CHECK(w.until([&] { return w.server().stats().open == 0; }));
                if (!fits) {
                    CHECK(w.events.all.back().reason.why() == netio::error::v2_too_big);
                }
            }
        }
    }

    static void strangers() {
        service_world<Backend> w(service_proxy_limits);
        netio::listen_options how;
        how.proxy = netio::proxy_mode::required;
        how.trusted = "192.0.2.0/24";
        client_socket stranger(w.listen(how));
        w.exchange(stranger, service_proxy_header(28), 1);
        CHECK(stranger.was_reset());
        CHECK(w.until([&] { return w.server().stats().counts.closed == 1; }));
        CHECK(w.events.all.back().reason.kind == netio::close_kind::proxy_untrusted);
        CHECK(w.server().stats().counts.bytes_in == 0);
    }
};

}  // namespace netio_test

#endif
