// What the RPC examples share: a kernel with one provider, and a client that asks it.
#ifndef NETIO_EXAMPLES_RPC_PARTS_HPP
#define NETIO_EXAMPLES_RPC_PARTS_HPP

#include "examples/options.hpp"

#include <cstdlib>

namespace example {

namespace rpc = netio::rpc;

/// Adds, and tells how the kernel it lives in is doing.
class calculator {
public:
    static constexpr rpc::method methods[] = {{"add"}, {"stats"}};

    void invoke(rpc::invocation& call) noexcept {
        if (call.method_index() == 0) {
            std::uint64_t sum = 0;  // what a stranger sends may wrap
            for (std::uint32_t at = 0; at < call.argument_count(); ++at) {
                sum += static_cast<std::uint64_t>(call.value_at(at).as_int());
            }
            call.reply().value_int(static_cast<std::int64_t>(sum));
            return;
        }
        const rpc::kernel& of = call.owner();
        call.reply()
            .value_map()
            .key("batches")
            .value_int(count(of.round_trips()))
            .key("calls")
            .value_int(count(of.log().count(rpc::event_kind::call_queued)))
            .key("lanes")
            .value_int(of.lanes().in_use)
            .key("promises most")
            .value_int(of.promises().high_water)
            .key("refused")
            .value_int(count(of.log().count(rpc::event_kind::call_refused)))
            .end();
    }

private:
    static std::int64_t count(std::uint64_t of) noexcept { return static_cast<std::int64_t>(of); }
};

/// A kernel in memory of its own, with a calculator that anybody may use as much as they like.
class calculating {
public:
    calculating() noexcept
        : secret_{random_word(), random_word()}, kernel_(memory_, sizes, secret_) {
        const auto provides = kernel_.add_provider(calculator_);
        static constexpr std::string_view names[] = {"add", "stats"};
        rpc::grant what;
        what.methods = names;
        what.spend = rpc::unbounded_budget;
        root_ = kernel_.mint(provides.value, 1, what).value;
    }
    rpc::kernel& kernel() noexcept { return kernel_; }
    rpc::capability root() const noexcept { return root_; }

private:
    static constexpr rpc::rpc_limits sizes{};

    static std::uint64_t random_word() noexcept {
        std::uint64_t word = 0;
        if (!netio::default_backend::fill_random(
                {reinterpret_cast<std::byte*>(&word), sizeof(word)})) {
            std::fputs("no random numbers: capabilities could be guessed\n", stderr);
            std::exit(1);
        }
        return word;
    }

    inline static std::byte memory_[rpc::bytes_needed(sizes)];
    std::uint64_t secret_[2];
    rpc::kernel kernel_;
    calculator calculator_;
    rpc::capability root_{};
};

/// Asks for sums, eight calls at once, and at the end for the other side's counters.
class asking {
public:
    explicit asking(std::uint32_t calls) noexcept : left_(calls) {}

    /// Sends what may be sent and takes what came; true once all is answered, or nothing more will
    /// come.
    template <rpc::link Link>
    bool step(Link& link) noexcept {
        session_.take(link, [this](const rpc::reply& got) { hear(got); });
        while (left_ != 0 && session_.outstanding() < 8) {
            const auto made = session_.call(link, "add", {}, [this](rpc::writer& in) {
                in.value_int(left_).value_int(1);
            });
            if (!made) {
                break;
            }
            --left_;
        }
        if (left_ == 0 && session_.outstanding() == 0 && !asked_) {
            rpc::call_options how;
            how.word = stats_word;
            asked_ = static_cast<bool>(session_.call(link, "stats", how));
        }
        link.flush();
        return done_ || session_.why() != netio::error::none || link.why() != netio::error::none;
    }
    /// One line: the sum of all, and what the other side says of itself. False: not all came.
    bool report(const char* over) const noexcept {
        if (!done_ || failed_ != 0) {
            std::fprintf(stderr, "over %s: %u calls failed, why: %s\n", over, failed_,
                         netio::text(session_.why()));
            return false;
        }
        std::printf("over %s: sum %lld, calls %lld, batches %lld\n", over,
                    static_cast<long long>(sum_), static_cast<long long>(calls_),
                    static_cast<long long>(batches_));
        std::fflush(stdout);
        return true;
    }

private:
    static constexpr std::uint64_t stats_word = 1;

    void hear(const rpc::reply& got) noexcept {
        if (!got.resolved) {
            ++failed_;
            done_ = done_ || got.word == stats_word;
        } else if (got.word != stats_word) {
            sum_ += got.value.as_int();
        } else {
            for (const rpc::map_entry each : got.value.as_map()) {
                calls_ = each.key == "calls" ? each.held.as_int() : calls_;
                batches_ = each.key == "batches" ? each.held.as_int() : batches_;
            }
            done_ = true;
        }
    }

    alignas(8) std::byte memory_[rpc::caller_bytes_needed(64)] = {};
    rpc::caller session_{memory_};
    std::uint32_t left_;
    std::uint32_t failed_ = 0;
    std::int64_t sum_ = 0, calls_ = 0, batches_ = 0;
    bool asked_ = false;
    bool done_ = false;
};

/// A service of a calculator, and its memory. One in a program.
struct calculator_service {
    rpc::tcp_service service;

    explicit calculator_service(calculating& of) noexcept
        : service(of.kernel(), memory, options(of)) {}

private:
    inline static std::byte memory[rpc::bytes_needed(rpc::tcp_service_options{})];

    static rpc::tcp_service_options options(const calculating& of) noexcept {
        rpc::tcp_service_options out;
        out.root = of.root();
        return out;
    }
};

/// Listens and serves until a signal ends it; the program's exit code. For one worker.
template <class Server>
int serve(const char* program, Server& server, const netio::endpoint& at,
          std::uint32_t drain_ms) noexcept {
    char address[netio::endpoint_text_max];
    netio::listen_options where;
    where.address = netio::format_address(at, address);
    where.port = at.port;
    if (server.listen(where) == netio::error::none) {
        signals<Server>::watch(server, drain_ms);
        announce(program, server, server.local());
        server.run();
    }
    return netio::report(program, server);
}

/// Serves a calculator over TCP.
inline int serve_calculator(const char* program, const netio::endpoint& at) noexcept {
    calculating of;
    static netio::storage<netio::limits{.connections_max = 64}> memory;
    calculator_service serves(of);
    netio::server<rpc::tcp_service> server{memory, serves.service};
    return serve(program, server, at, 10'000);
}

}  // namespace example

#endif
