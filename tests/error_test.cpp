// Errors, failures and close reasons in words.
#include "netio.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

std::string error_line(const netio::failure& what) {
    char line[160];
    return std::string(netio::describe(what, line));
}
std::string error_line(netio::close_reason reason) {
    char line[80];
    return std::string(netio::describe(reason, line));
}

}  // namespace

TEST_CASE("error: each has a text of its own, and a number out of range has one too") {
    std::string seen;
    for (unsigned code = 0; code < static_cast<unsigned>(netio::error::count_); ++code) {
        const std::string text = netio::text(static_cast<netio::error>(code));
        CAPTURE(text);
        CHECK_FALSE(text.empty());
        CHECK(seen.find("|" + text + "|") == std::string::npos);
        seen += "|" + text + "|";
    }
    CHECK(std::string(netio::text(static_cast<netio::error>(250))) == "unknown error");
}

TEST_CASE("error: a failure names the thing, the reason and the system's word") {
    netio::failure what{.operation = "listen", .os_name = "EACCES", .os_code = 13,
                        .code = netio::error::permission_denied};
    CHECK(static_cast<bool>(what));
    what.about("0.0.0.0:80");
    CHECK(error_line(what) == "listen 0.0.0.0:80: permission denied (EACCES)");
    what.os_name = "";
    CHECK(error_line(what) == "listen 0.0.0.0:80: permission denied (code 13)");
    what.os_code = 0;
    what.needed = 10'000;
    what.given = 0;
    CHECK(error_line(what) == "listen 0.0.0.0:80: permission denied, needed 10000, given 0");
    what.operation = "";
    what.needed = 0;
    CHECK(error_line(what) == "0.0.0.0:80: permission denied");
    CHECK_FALSE(static_cast<bool>(netio::failure{}));
}

TEST_CASE("error: a long subject is cut, and a short line is cut with a NUL") {
    netio::failure what{.operation = "listen", .code = netio::error::path_too_long};
    what.about(std::string(300, 'p'));
    CHECK(error_line(what) == "listen " + std::string(118, 'p') + ": path too long");
    char small[10];
    CHECK(netio::describe(what, small) == "listen pp");
    CHECK(small[9] == '\0');
    CHECK(netio::describe(what, std::span<char>{}).empty());
}

TEST_CASE("error: every close reason has a stable name and says how it ends") {
    const std::string fin = "|none|peer_closed|peer_reset|connect_failed|handler_closed|drained|"
                            "shed|";
    for (unsigned kind = 0; kind < static_cast<unsigned>(netio::close_kind::count_); ++kind) {
        const auto each = static_cast<netio::close_kind>(kind);
        const std::string name = netio::name(each);
        CAPTURE(name);
        CHECK(name != "unknown");
        CHECK(netio::resets(each) == (fin.find("|" + name + "|") == std::string::npos));
        CHECK(error_line(netio::close_reason{each, 0}).starts_with(name));
    }
    CHECK(std::string(netio::name(static_cast<netio::close_kind>(200))) == "unknown");
    CHECK(std::string(netio::name(static_cast<netio::refusal_cause>(200))) == "unknown");
    CHECK(std::string(netio::name(static_cast<netio::server_event_kind>(200))) == "unknown");
    CHECK(std::string(netio::name(netio::server_event_kind::opened)) == "opened");
}

TEST_CASE("error: a close reason tells its detail") {
    using netio::close_kind;
    CHECK(error_line({close_kind::refused, 1}) == "refused(listener_cap)");
    CHECK(error_line({close_kind::killed, 7}) == "killed(7)");
    CHECK(error_line({close_kind::egress_denied, 403}) == "egress_denied(403)");
    CHECK(error_line({close_kind::idle, 5}) == "idle");
    const auto why = static_cast<std::uint16_t>(netio::error::connection_reset);
    CHECK(error_line({close_kind::io, why}) == "io(connection reset)");
    CHECK(error_line({close_kind::connect_failed, why}) == "connect_failed(connection reset)");
    CHECK(error_line({close_kind::proxy_invalid,
                      static_cast<std::uint16_t>(netio::error::v1_port)}) ==
          "proxy_invalid(PROXY v1: bad port)");
}
