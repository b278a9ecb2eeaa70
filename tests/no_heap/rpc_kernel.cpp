// repeated_calls_do_not_grow_rss: 20,000 calls through the capability kernel, half of them needing
// the one before, without an allocation and without a page more than the first thousand took.
#include "netio.hpp"
#include "tests/no_heap/trap.hpp"

#include <fcntl.h>
#include <unistd.h>

namespace {

namespace rpc = netio::rpc;

constexpr rpc::rpc_limits sizes;
alignas(64) constinit std::byte memory[rpc::bytes_needed(sizes)] = {};

struct adder {
    static constexpr rpc::method methods[] = {{"add"}};

    void invoke(rpc::invocation& call) noexcept {
        call.reply().value_int(call.value_at(0).as_int() + call.value_at(1).as_int());
    }
};

/// Resident pages of this process, as /proc/self/statm says; 0: it does not.
long resident_pages() noexcept {
    char text[128] = {};
    const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const ssize_t size = ::read(file, text, sizeof(text) - 1);
    ::close(file);
    long pages = 0;
    const char* at = text;
    while (size > 0 && *at != ' ' && *at != '\0') {
        ++at;
    }
    for (++at; *at >= '0' && *at <= '9'; ++at) {
        pages = pages * 10 + (*at - '0');
    }
    return pages;
}

struct service {
    rpc::kernel kernel{memory, sizes, {1, 2}};
    adder provider;
    rpc::lane_id lane;
    rpc::capability target;

    service() noexcept {
        static constexpr std::string_view names[] = {"add"};
        rpc::grant what;
        what.methods = names;
        what.spend.calls_max = 1'000'000;
        lane = kernel.open_lane(what.spend).value;
        target = kernel.mint(kernel.add_provider(provider).value, 1, what).value;
    }
    rpc::answer<rpc::promise_id> call(std::int64_t number, rpc::promise_id before) noexcept {
        std::byte room[128];
        rpc::writer out(room);
        out.begin_arguments().value_int(number);
        if (before.bits != 0) {
            out.promise(before.bits);
        }
        return kernel.call(lane, target, "add", {out.finish_arguments(), {}, 0, rpc::own_promise});
    }
    /// Two calls, one round trip: the sum.
    std::int64_t both(std::int64_t number) noexcept {
        const auto first = call(number, {});
        const auto second = call(1, first.value);
        const auto held = kernel.await(second.value);
        return held ? held.value.value.as_int(-1) : -1;
    }
};

}  // namespace

int scenario() noexcept {
    static service of;
    bool right = true;
    long early = 0;
    for (std::int64_t number = 0; number < 10'000; ++number) {
        if (number == 5'000) {  // the event log is full once by now
            early = resident_pages();
        }
        right &= of.both(number) == number + 1;
    }
    int failed_count = no_heap::check("no_heap: 20,000 calls through the kernel are right", right);
    failed_count += no_heap::check("no_heap: repeated_calls_do_not_grow_rss",
                                   early > 0 && resident_pages() == early);
    failed_count += no_heap::check("no_heap: and each two of them were one round trip",
                                   of.kernel.round_trips() == 10'000);
    return failed_count;
}
