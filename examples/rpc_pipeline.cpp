// c++ -std=c++20 -O2 -I. -pthread examples/rpc_pipeline.cpp -o rpc_pipeline
//
// What promises save: calls that each need the result of the one before, sent at once and one by
// one, to a server of sums in another process:
//
//     rpc_pipeline --listen 127.0.0.1:7100                    serves until SIGTERM or SIGINT
//     rpc_pipeline --connect 127.0.0.1:7100 [--calls 16]      asks it
//
// The client prints a line for each way: the sum, the batches that the server made of the calls, as
// it counts them itself, and the reads in which the answers came. Exit code 0 if all was answered.
#include "netio.hpp"

#include "examples/rpc_parts.hpp"

namespace {

namespace rpc = netio::rpc;

constexpr std::uint32_t calls_max = 64;

/// Asks for the server's counters before and after each way of calling.
class piping {
public:
    explicit piping(std::uint32_t calls) noexcept : calls_(calls) {}

    netio::server<piping>* server = nullptr;
    bool good = false;

    void on_open(netio::connection& peer) noexcept {
        rpc::tcp_link link(peer, {}, room_);
        ask_for_batches(link);
    }
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        rpc::tcp_link link(peer, in, room_);
        const bool was_summing = waits_;
        const std::uint32_t answered = session_.take(
            link, [&](const rpc::reply& got) { hear(link, got); });
        reads_ += was_summing && answered != 0 ? 1 : 0;
        if (session_.why() != netio::error::none || link.why() != netio::error::none || failed_ ||
            stage_ == stage::done) {
            good = stage_ == stage::done && !failed_;
            peer.close();
        } else if (waits_ && session_.outstanding() == 0) {
            waits_ = false;
            ask_for_batches(link);
        }
        return link.used();
    }
    void on_connect_failed(std::uint64_t, netio::error why) noexcept {
        std::fprintf(stderr, "rpc_pipeline: connect: %s\n", netio::text(why));
        server->stop();
    }
    void on_close(netio::connection&, netio::close_reason) noexcept { server->stop(); }

private:
    enum class stage : std::uint8_t { before, at_once, one_by_one, done };
    static constexpr std::uint64_t batches_word = 1;

    void ask_for_batches(rpc::tcp_link& link) noexcept {
        rpc::call_options how;
        how.word = batches_word;
        failed_ = failed_ || !session_.call(link, "stats", how);
    }
    /// One more than `number`, or than what the call `promise` will give.
    std::uint64_t add_one(rpc::tcp_link& link, std::int64_t number,
                          std::uint64_t promise) noexcept {
        const auto made = session_.call(link, "add", {}, [&](rpc::writer& in) {
            in.value_int(1);
            promise != 0 ? in.promise(promise) : in.value_int(number);
        });
        failed_ = failed_ || !made;
        return made.value;
    }
    void hear(rpc::tcp_link& link, const rpc::reply& got) noexcept {
        failed_ = failed_ || !got.resolved;
        if (got.word == batches_word) {
            for (const rpc::map_entry each : got.value.as_map()) {
                next(link, each.key == "batches" ? each.held.as_int() : -1);
            }
            return;
        }
        sum_ = got.value.as_int();
        if (stage_ == stage::one_by_one && --left_ != 0) {
            add_one(link, sum_, 0);
        }
    }
    void next(rpc::tcp_link& link, std::int64_t batches) noexcept {
        if (batches < 0) {
            return;
        }
        // The call that asks is a batch too, made after it looked.
        const std::int64_t made = batches - batches_ - 1;
        batches_ = batches;
        switch (stage_) {
        case stage::before:
            stage_ = stage::at_once;
            for (std::uint64_t last = 0, left = calls_; left != 0; --left) {
                last = add_one(link, 0, last);
            }
            break;
        case stage::at_once:
            tell("at once", made);
            stage_ = stage::one_by_one;
            left_ = calls_;
            add_one(link, 0, 0);
            break;
        default:
            tell("one by one", made);
            stage_ = stage::done;
            return;
        }
        reads_ = 0;
        waits_ = true;
    }
    void tell(const char* how, std::int64_t made) const noexcept {
        std::printf("%u calls %s: sum %lld, batches %lld, reads %u\n", calls_, how,
                    static_cast<long long>(sum_), static_cast<long long>(made), reads_);
        std::fflush(stdout);
    }

    alignas(8) std::byte memory_[rpc::caller_bytes_needed(calls_max)] = {};
    std::byte room_[4096] = {};
    rpc::caller session_{memory_};
    std::uint32_t calls_;
    std::uint32_t left_ = 0;
    std::uint32_t reads_ = 0;
    std::int64_t sum_ = 0;
    std::int64_t batches_ = 0;
    stage stage_ = stage::before;
    bool waits_ = false;    // for sums
    bool failed_ = false;
};

int ask(const netio::endpoint& at, std::uint32_t calls) noexcept {
    static netio::storage<netio::limits{.connections_max = 1}> memory;
    piping handler(calls);
    netio::server<piping> server{memory, handler};
    handler.server = &server;
    if (const auto made = server.connect(at, 0); !made) {
        std::fprintf(stderr, "rpc_pipeline: connect: %s\n", netio::text(made.why));
        return 1;
    }
    server.run();
    return handler.good ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::ipv4(127, 0, 0, 1, 7100);
    netio::endpoint to;
    std::uint32_t calls = 16;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--connect", .address = &to},
        {.flag = "--calls", .number = &calls, .least = 1, .most = calls_max - 1},
    };
    if (!example::parse("rpc_pipeline", count, words, settings)) {
        return 2;
    }
    return to.port != 0 ? ask(to, calls) : example::serve_calculator("rpc_pipeline", at);
}
