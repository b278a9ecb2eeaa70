// Built by tests/windows_test.py.
//
// An echo server on Windows that counts what it holds. Told "mark" by a client it remembers how
// many handles and bytes of heap its process has, once it is quiet; told "done" it says in one line
// how many more there are now and what is in use of its pools, and ends.
#include "netio.hpp"

#include <cstdio>

#include <malloc.h>

#include <windows.h>

namespace {

constexpr netio::limits sizes{.connections_max = 512,
                              .listeners_max = 1,
                              .buffer_bytes = 4096,
                              .input_buffers_max = 64,
                              .output_buffers_max = 64};
constexpr std::uint32_t quiet_ms = 500;
constexpr std::uint64_t mark = 1, done = 2;

unsigned long handle_count() noexcept {
    DWORD count = 0;
    ::GetProcessHandleCount(::GetCurrentProcess(), &count);
    return count;
}

/// Bytes in use of the heap that malloc and new take from.
unsigned long long heap_bytes() noexcept {
    _HEAPINFO entry{};
    unsigned long long used = 0;
    while (::_heapwalk(&entry) == _HEAPOK) {
        used += entry._useflag == _USEDENTRY ? entry._size : 0;
    }
    return used;
}

struct counting_echo {
    netio::server<counting_echo>* server = nullptr;
    unsigned opened = 0;
    unsigned closed = 0;
    unsigned long handles_before = 0;
    unsigned long long heap_before = 0;

    void on_open(netio::connection&) noexcept { ++opened; }
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        const std::string_view said = netio::as_text(in);
        if (said == "mark" || said == "done") {
            server->after(quiet_ms, said == "mark" ? mark : done);
            peer.close();
        }
        return peer.write(in);
    }
    void on_close(netio::connection&, netio::close_reason) noexcept { ++closed; }
    void on_timer(std::uint64_t which) noexcept {
        if (which == mark) {
            opened = closed = 0;
            handles_before = handle_count();
            heap_before = heap_bytes();
            std::puts("resets: marked");
        } else {
            const netio::server_stats now = server->stats();
            std::printf("resets: opened %u, closed %u, handles %+ld, heap %+lld, connections %u, "
                        "input buffers %u, output buffers %u, accept errors %llu\n",
                        opened, closed, static_cast<long>(handle_count() - handles_before),
                        static_cast<long long>(heap_bytes() - heap_before), now.pools[0].in_use,
                        now.pools[1].in_use, now.pools[2].in_use,
                        static_cast<unsigned long long>(now.counts.accept_errors));
            server->stop();
        }
        std::fflush(stdout);
    }
};

constinit netio::storage<sizes> memory;

}  // namespace

int main() {
    counting_echo handler;
    netio::server server{memory, handler};
    handler.server = &server;
    if (server.listen({.address = "127.0.0.1"}) == netio::error::none) {
        const unsigned port = server.local().port;
        std::printf("resets: listening on 127.0.0.1:%u, one worker\n", port);
        std::fflush(stdout);
        server.run();
    }
    return netio::report("resets", server);
}
