// g++ -std=c++20 -O2 -I. tests/gate_cost/gate_cost.cpp -o gate_cost
//
//     gate_cost ROUNDS
//
// With GATE_ADMITS or GATE_ADDS it has a gate. A program each: what a compiler inlines depends on
// whatever else is in it.
//
// So many echoes over a kernel that answers at once and costs nothing: what is counted under
// callgrind is netio's own work. tests/gate_cost_test.py takes the difference of two numbers of
// rounds, for each gate.
#include "netio.hpp"

#include <cstdlib>

namespace {

/// One connection, always something to read, every send done.
class instant_kernel {
public:
    static constexpr const char* name = "instant";
    static constexpr std::size_t connection_bytes = 0;
    static constexpr std::uint32_t receive_credit = 64;
    static inline std::uint64_t rounds_left = 0;
    static inline std::uint64_t sent = 0;

    static netio::availability available() noexcept { return {}; }
    static constexpr std::size_t bytes_needed(const netio::backend_limits&) noexcept { return 64; }
    static const char* os_name(int) noexcept { return ""; }
    static netio::os_handle listen(const netio::stream_address&,
                                   const netio::listen_options&) noexcept {
        return {1, {}};
    }
    static netio::os_handle open_datagram(const netio::endpoint&,
                                          const netio::datagram_options&) noexcept {
        return {};
    }
    static netio::result<netio::endpoint> local_of(netio::socket_handle) noexcept { return {}; }
    static void close_handle(netio::socket_handle, bool) noexcept {}
    static std::uint64_t reserve_descriptors(std::uint64_t count) noexcept { return count; }
    static bool fill_random(netio::mutable_bytes) noexcept { return false; }

    netio::os_status open(netio::mutable_bytes, const netio::backend_limits&,
                          netio::buffer_pool& pool) noexcept {
        pool_ = &pool;
        return {};
    }
    void close() noexcept {}
    netio::os_status start_accept(netio::socket_handle, netio::token who) noexcept {
        listener_ = who;
        accept_due_ = true;
        return {};
    }
    void stop_accept(netio::token) noexcept {}
    netio::os_status start_connect(const netio::stream_address&, const netio::socket_options&,
                                   netio::token) noexcept {
        return {netio::error::not_supported, 0};
    }
    netio::os_status attach(netio::socket_handle, netio::token who) noexcept {
        who_ = who;
        return {};
    }
    netio::socket_handle release(netio::token) noexcept { return netio::no_handle; }
    void start_receive(netio::token, netio::mutable_bytes, std::uint32_t) noexcept {
        receiving_ = true;
    }
    void stop_receive(netio::token) noexcept {}
    bool send_now(netio::token, std::span<const netio::bytes> slices) noexcept {
        sent += netio::bytes_of(slices);
        return true;
    }
    void start_send(netio::token, std::span<const netio::bytes>) noexcept { std::abort(); }
    void end_send(netio::token) noexcept {}
    void start_close(netio::token, bool) noexcept { close_due_ = true; }
    netio::os_status start_receive_from(netio::socket_handle, netio::token) noexcept { return {}; }
    void stop_receive_from(netio::token) noexcept {}
    void start_send_to(netio::socket_handle, netio::token, netio::bytes,
                       const netio::endpoint&) noexcept {}
    std::uint32_t wait(std::span<netio::event> out, std::uint64_t) noexcept {
        now_ns_ += 1000;
        if (accept_due_) {
            accept_due_ = false;
            put(out, listener_, netio::operation::accept, netio::event_kind::accepted).handle = 2;
            return 1;
        }
        if (close_due_) {
            close_due_ = false;
            put(out, who_, netio::operation::close, netio::event_kind::closed);
            return 1;
        }
        if (!receiving_ || rounds_left == 0) {
            return 0;
        }
        --rounds_left;
        netio::event& in =
            put(out, who_, netio::operation::receive, netio::event_kind::received);
        in.buffer_index = pool_->take(netio::side::input);
        in.byte_count = 64;
        return 1;
    }
    bool ready() noexcept { return true; }
    void wake() noexcept {}
    netio::socket_handle wait_handle() noexcept { return netio::no_handle; }
    std::uint64_t now_ns() const noexcept { return now_ns_; }

private:
    static netio::event& put(std::span<netio::event> out, netio::token who,
                             netio::operation op, netio::event_kind kind) noexcept {
        out[0] = netio::event{};
        out[0].who = who;
        out[0].op = op;
        out[0].kind = kind;
        return out[0];
    }

    netio::buffer_pool* pool_ = nullptr;
    netio::token listener_{};
    netio::token who_{};
    std::uint64_t now_ns_ = 1;
    bool accept_due_ = false;
    bool close_due_ = false;
    bool receiving_ = false;
};

struct echo {
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        return peer.write(in);
    }
};
struct admits {
    netio::verdict admit(const netio::connection&) noexcept { return netio::verdict::allow(); }
};
struct adds {
    netio::detail::atomic<std::uint64_t> bytes_sent;
    netio::verdict admit(const netio::connection&) noexcept { return netio::verdict::allow(); }
    netio::egress check(const netio::connection&, const netio::write_facts& facts) noexcept {
        bytes_sent.fetch_add(facts.byte_count, netio::detail::ordering::relaxed);
        return netio::egress::allow();
    }
};

constexpr netio::limits sizes{.connections_max = 4};
constinit netio::storage<sizes, instant_kernel> memory;

template <class Server>
int run(Server& server, std::uint64_t rounds) noexcept {
    instant_kernel::rounds_left = rounds;
    if (server.listen({}) != netio::error::none) {
        return 1;
    }
    while (instant_kernel::rounds_left != 0) {
        server.run_once(0);
    }
    return instant_kernel::sent == rounds * 64 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
    if (count != 2) {
        return 2;
    }
    const std::uint64_t rounds = std::strtoull(words[1], nullptr, 10);
    echo handler;
#if defined(GATE_ADDS)
    adds mine;
    netio::server server(memory, handler, mine);
    return run(server, rounds) + (mine.bytes_sent.load() == rounds * 64 ? 0 : 1);
#elif defined(GATE_ADMITS)
    admits mine;
    netio::server server(memory, handler, mine);
    return run(server, rounds);
#else
    netio::server server(memory, handler);
    return run(server, rounds);
#endif
}
