// What tests of a whole server share: its memory, a handler that does what the test says, an
// observer that remembers. Knows neither sockets nor the simulator. Test code: uses heap.
#ifndef NETIO_TESTS_SCRIPTED_HPP
#define NETIO_TESTS_SCRIPTED_HPP

#include "netio.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace netio_test {

/// Zeroed memory that a server can have, of any size, at the begin of a page; untouched pages of a
/// large one cost nothing.
class fresh_memory {
public:
    explicit fresh_memory(std::size_t count)
        : at_(std::calloc(count + netio::detail::page_bytes, 1)), count_(count) {
        REQUIRE(at_ != nullptr);
    }
    fresh_memory(const fresh_memory&) = delete;
    fresh_memory& operator=(const fresh_memory&) = delete;
    ~fresh_memory() { std::free(at_); }
    netio::mutable_bytes all() const {
        const auto start = reinterpret_cast<std::uintptr_t>(at_);
        const std::size_t past = start % netio::detail::page_bytes;
        return {static_cast<std::byte*>(at_) + (past == 0 ? 0 : netio::detail::page_bytes - past),
                count_};
    }

private:
    void* at_;
    std::size_t count_;
};

/// Calls what a test puts there, and writes down what came.
struct scripted {
    std::function<std::size_t(netio::connection&, netio::bytes)> data =
        [](netio::connection&, netio::bytes in) { return in.size(); };
    std::function<void(netio::connection&)> open = [](netio::connection&) {};
    std::function<void(netio::connection&)> end = [](netio::connection& c) { c.close(); };
    std::function<void(netio::connection&)> writable = [](netio::connection&) {};
    std::function<void(netio::connection&, std::uint64_t)> posted = [](netio::connection&,
                                                                       std::uint64_t) {};
    std::function<void(netio::connection&, netio::deadline_kind)> deadline =
        [](netio::connection& c, netio::deadline_kind) { c.kill(99); };
    std::function<void(std::uint64_t)> timer = [](std::uint64_t) {};
    std::function<void(netio::connection&)> drain = [](netio::connection&) {};
    std::function<void(netio::connection&, std::uint16_t)> denied = [](netio::connection&,
                                                                       std::uint16_t) {};
    std::function<void(netio::datagram_socket&, const netio::datagram&)> packet =
        [](netio::datagram_socket&, const netio::datagram&) {};

    std::vector<std::string> log;             // what came, in order
    std::vector<netio::close_reason> reasons;
    std::vector<std::pair<std::uint64_t, netio::error>> connect_failures;
    std::uint32_t opened = 0;
    std::uint32_t closed = 0;

    void on_open(netio::connection& c) noexcept {
        ++opened;
        log.push_back("open");
        open(c);
    }
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        log.push_back("data " + std::to_string(in.size()));
        return data(c, in);
    }
    void on_end(netio::connection& c) noexcept {
        log.push_back("end");
        end(c);
    }
    void on_writable(netio::connection& c) noexcept {
        log.push_back("writable");
        writable(c);
    }
    void on_post(netio::connection& c, std::uint64_t word) noexcept {
        log.push_back("post " + std::to_string(word));
        posted(c, word);
    }
    void on_deadline(netio::connection& c, netio::deadline_kind which) noexcept {
        log.push_back("deadline");
        deadline(c, which);
    }
    void on_timer(std::uint64_t word) noexcept {
        log.push_back("timer " + std::to_string(word));
        timer(word);
    }
    void on_drain(netio::connection& c) noexcept {
        log.push_back("drain");
        drain(c);
    }
    void on_denied(netio::connection& c, std::uint16_t code) noexcept {
        log.push_back("denied " + std::to_string(code));
        denied(c, code);
    }
    void on_datagram(netio::datagram_socket& via, const netio::datagram& in) noexcept {
        packet(via, in);
    }
    void on_connect_failed(std::uint64_t word, netio::error why) noexcept {
        connect_failures.emplace_back(word, why);
    }
    void on_close(netio::connection&, netio::close_reason reason) noexcept {
        ++closed;
        log.push_back(std::string("close ") + netio::name(reason.kind));
        reasons.push_back(reason);
    }
    std::uint32_t count(const std::string& what) const {
        std::uint32_t found = 0;
        for (const std::string& each : log) {
            found += each == what ? 1 : 0;
        }
        return found;
    }
};

/// Remembers every fact a server tells.
struct remembering {
    std::vector<netio::server_event> all;
    void on_event(const netio::server_event& told) noexcept { all.push_back(told); }
    std::uint32_t count(netio::server_event_kind kind) const {
        std::uint32_t found = 0;
        for (const netio::server_event& each : all) {
            found += each.kind == kind ? 1 : 0;
        }
        return found;
    }
};

inline std::string text_of(netio::bytes in) { return std::string(netio::as_text(in)); }

}  // namespace netio_test

#endif
