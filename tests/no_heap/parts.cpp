// Texts, addresses and checksums without an allocation.
#include "netio.hpp"
#include "tests/no_heap/trap.hpp"

namespace {

bool every_error_has_a_line() noexcept {
    char line[160];
    for (unsigned code = 0; code < static_cast<unsigned>(netio::error::count_); ++code) {
        netio::failure what;
        what.operation = "listen";
        what.code = static_cast<netio::error>(code);
        what.os_code = static_cast<int>(code);
        what.about("0.0.0.0:80");
        if (!netio::describe(what, line).starts_with("listen 0.0.0.0:80: ")) {
            return false;
        }
    }
    return true;
}

bool every_close_has_a_line() noexcept {
    char line[160];
    for (unsigned kind = 0; kind < static_cast<unsigned>(netio::close_kind::count_); ++kind) {
        if (netio::describe({static_cast<netio::close_kind>(kind), 3}, line).empty()) {
            return false;
        }
    }
    return true;
}

bool addresses_come_back() noexcept {
    char line[netio::endpoint_text_max];
    const auto parsed = netio::parse_endpoint("[2001:db8::1]:80");
    return parsed && netio::format(parsed.value, line) == "[2001:db8::1]:80" &&
           netio::parse_endpoint("host.example:80").why == netio::error::host_name_given;
}

}  // namespace

int scenario() noexcept {
    int failed_count = no_heap::check("no_heap: every error in a line", every_error_has_a_line());
    failed_count += no_heap::check("no_heap: every close in a line", every_close_has_a_line());
    failed_count += no_heap::check("no_heap: addresses to text and back", addresses_come_back());
    failed_count += no_heap::check("no_heap: checksum",
                                   netio::crc32c(netio::as_bytes("123456789")) == 0xE3069283);
    return failed_count;
}
