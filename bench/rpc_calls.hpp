// A kernel with one provider, asked from the same thread: what rows of calls are measured on.
#ifndef NETIO_BENCH_RPC_CALLS_HPP
#define NETIO_BENCH_RPC_CALLS_HPP

#include "netio.hpp"

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace rpc_bench {

namespace rpc = netio::rpc;

struct summing {
    static constexpr rpc::method methods[] = {{"get"}, {"put", true}, {"stats"}};

    void invoke(rpc::invocation& call) noexcept {
        call.reply().value_int(call.value_at(0).as_int() + call.value_at(1).as_int());
    }
};

struct calling {
    rpc::rpc_limits sizes;
    std::vector<std::byte> memory = std::vector<std::byte>(rpc::bytes_needed(sizes));
    rpc::kernel kernel{memory, sizes, {1, 2}};
    summing provider;
    rpc::lane_id lane;
    rpc::capability target;
    std::byte room[256];

    calling() {
        static constexpr std::string_view names[] = {"get", "put", "stats"};
        rpc::grant what;
        what.methods = names;
        what.spend = rpc::unbounded_budget;
        lane = kernel.open_lane(what.spend).value;
        target = kernel.mint(kernel.add_provider(provider).value, 1, what).value;
    }
    /// One more than the number, or than what `before` is resolved with; and a text.
    rpc::promise_id call(std::int64_t number, rpc::promise_id before = {}) {
        rpc::writer out(room);
        out.begin_arguments().value_int(number);
        before.bits != 0 ? out.promise(before.bits) : out.value_int(1);
        out.value_text("some text");
        const auto made = kernel.call(lane, target, "stats",
                                      {out.finish_arguments(), {}, 0, rpc::own_promise});
        if (!made) {
            fail("a call is refused");
        }
        return made.value;
    }
    std::int64_t read(rpc::promise_id from) {
        const auto held = kernel.await(from);
        if (!held || held.value.state != rpc::promise_state::resolved) {
            fail("a call fails");
        }
        return held.value.value.as_int();
    }
    /// The sum of what they come to.
    std::int64_t one_by_one(int count) {
        std::int64_t sum = 0;
        for (int number = 0; number < count; ++number) {
            sum += read(call(number));
        }
        return sum;
    }
    std::int64_t in_a_batch() {
        rpc::promise_id made[8];
        for (int number = 0; number < 8; ++number) {
            made[number] = call(number);
        }
        std::int64_t sum = 0;
        for (const rpc::promise_id each : made) {
            sum += read(each);
        }
        return sum;
    }

private:
    [[noreturn]] static void fail(const char* what) {
        std::fprintf(stderr, "rpc: %s\n", what);
        std::exit(1);
    }
};

}  // namespace rpc_bench

#endif
