// A kernel with one or two providers, for cases of the capability kernel.
#ifndef NETIO_TESTS_RPC_WORLD_HPP
#define NETIO_TESTS_RPC_WORLD_HPP

#include "netio.hpp"

#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <vector>

namespace rpc_world {

namespace rpc = netio::rpc;

constexpr std::uint64_t secret[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};

/// Sizes at which each table can be filled in a moment.
constexpr rpc::rpc_limits small_sizes() {
    rpc::rpc_limits sizes;
    sizes.providers_max = 3;
    sizes.capabilities_max = 24;
    sizes.attenuations_max = 4;
    sizes.lanes_max = 4;
    sizes.channels_max = 4;
    sizes.messages_max = 8;
    sizes.promises_max = 64;
    sizes.settled_max = 32;
    sizes.settled_bytes_max = 64 * 1024;
    sizes.edges_max = 64;
    sizes.events_max = 256;
    sizes.pieces[0] = {64, 128};
    sizes.pieces[1] = {1024, 32};
    sizes.pieces[2] = {4096, 8};
    sizes.pieces[3] = {0, 0};
    return sizes;
}

/// Remembers what it was asked, and answers as the method says.
struct provider {
    static constexpr rpc::method methods[] = {
        {"add"},                   // the sum of its integers
        {"echo"},                  // its first argument
        {"fail"},                  // rejects with "out-of-paper"
        {"late"},                  // answers later
        {"many"},                  // a text of as many bytes as its argument says
        {"put", true},             // changes something
        {"spawn", false, true},    // starts a process
        {"two"},                   // two values, which is no result
    };
    std::vector<std::string> asked;
    std::vector<bool> redacted;
    std::vector<std::uint64_t> dropped;
    rpc::promise_id late{};
    std::uint32_t answered = 0;

    void invoke(rpc::invocation& call) noexcept {
        const std::string_view name = methods[call.method_index()].name;
        asked.emplace_back(name);
        redacted.push_back(call.redact());
        ++answered;
        if (name == "add") {
            std::int64_t sum = 0;
            for (std::uint32_t at = 0; at < call.argument_count(); ++at) {
                sum += call.value_at(at).as_int();
            }
            call.reply().value_int(sum);
        } else if (name == "echo" && call.argument_count() != 0) {
            call.reply().copy_value(call.value_at(0));
        } else if (name == "fail") {
            call.reject("out-of-paper");
        } else if (name == "late") {
            late = call.later();
        } else if (name == "many") {
            const std::string text(static_cast<std::size_t>(call.value_at(0).as_int()), 'x');
            call.reply().value_text(text);
        } else if (name == "two") {
            call.reply().value_int(1).value_int(2);
        }
    }
    void on_dropped(std::uint64_t object) noexcept { dropped.push_back(object); }
};

/// Arguments in memory of their own: written with `in`, then had `with`.
struct arguments {
    std::vector<std::byte> room = std::vector<std::byte>(1 << 16);
    rpc::writer in{room};

    netio::result<rpc::argument_list> made;
    bool ready = false;

    arguments() { in.begin_arguments(); }
    rpc::call_arguments with(netio::bytes payload = {}, std::uint16_t flags = 0) {
        if (!ready) {
            made = in.finish_arguments();
            ready = true;
        }
        REQUIRE(made);
        return {made, payload, flags, rpc::own_promise};
    }
};

struct fixture {
    rpc::rpc_limits sizes;
    std::vector<std::byte> memory;
    rpc::kernel of;
    provider handler;
    rpc::provider_id provides{};
    rpc::lane_id lane{};

    explicit fixture(const rpc::rpc_limits& wanted = small_sizes())
        : sizes(wanted), memory(rpc::bytes_needed(wanted)), of(memory, wanted, secret) {
        REQUIRE(of.why() == netio::error::none);
        provides = of.add_provider(handler).value;
        lane = of.open_lane().value;
    }

    rpc::grant everything() const {
        static constexpr std::string_view names[] = {"add", "echo", "fail",  "late",
                                                     "many", "put", "spawn", "two"};
        rpc::grant what;
        what.methods = names;
        return what;
    }
    rpc::capability mint(std::uint64_t object = 1) { return mint(everything(), object); }
    rpc::capability mint(const rpc::grant& what, std::uint64_t object = 1) {
        const auto made = of.mint(provides, object, what);
        REQUIRE(made);
        return made.value;
    }
    rpc::answer<rpc::promise_id> call(rpc::capability target, std::string_view method) {
        return of.call(lane, target, method);
    }
    /// A call of `add` with integers and promises.
    rpc::answer<rpc::promise_id> add(rpc::capability target,
                                     std::initializer_list<std::int64_t> numbers,
                                     std::initializer_list<rpc::promise_id> promises = {}) {
        arguments made;
        for (const std::int64_t number : numbers) {
            made.in.value_int(number);
        }
        for (const rpc::promise_id promise : promises) {
            made.in.promise(promise.bits);
        }
        return of.call(lane, target, "add", made.with());
    }
    std::int64_t number_of(rpc::promise_id which) {
        const auto held = of.await(which);
        CHECK(held);
        CHECK(held.value.state == rpc::promise_state::resolved);
        return held.value.value.as_int(-1);
    }
    rpc::rpc_code code_of(rpc::promise_id which) {
        const auto held = of.await(which);
        return held ? held.value.code : held.why;
    }
    /// What stands in every table: a refusal must not change it.
    std::vector<std::uint64_t> tables() const {
        std::vector<std::uint64_t> out;
        for (const netio::pool_stats& one :
             {of.providers(), of.capabilities(), of.lanes(), of.channels(), of.messages(),
              of.promises(), of.edges()}) {
            out.push_back(one.in_use);
        }
        for (std::uint32_t at = 0; at < of.piece_class_count(); ++at) {
            out.push_back(of.pieces(at).in_use);
        }
        out.push_back(of.pending_of(lane));
        return out;
    }
    std::uint64_t count(rpc::event_kind kind) const { return of.log().count(kind); }
};

}  // namespace rpc_world

#endif
