// The capability kernel, played freely: bytes choose among all of its functions, from outside and
// from inside of what it calls, for which tests/rpc_model.hpp has no model. What is looked at holds
// for every program: documented answers, capacities, budgets of calls, settled promises that stay
// as they are, one `on_dropped` an object, empty tables at the end.
#ifndef NETIO_TESTS_RPC_FREE_PLAY_HPP
#define NETIO_TESTS_RPC_FREE_PLAY_HPP

#include "netio.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rpc_free_play {

namespace rpc = netio::rpc;
using rpc::promise_state;
using rpc::rpc_code;
using exact_bytes = std::unique_ptr<std::byte[]>;

class trial;

/// What the kernel calls; all that it does is drawn from the program.
struct player {
    static constexpr rpc::method methods[] = {
        {"read"}, {"write", true}, {"run", false, true}, {"call"}};
    trial* of = nullptr;
    void invoke(rpc::invocation& call) noexcept;
    void on_dropped(std::uint64_t object) noexcept;
};
/// One that hears of no drops.
struct deaf_player {
    static constexpr rpc::method methods[] = {{"write", true}, {"read"}};
    trial* of = nullptr;
    void invoke(rpc::invocation& call) noexcept;
};
/// One that no kernel takes.
struct no_player {
    static constexpr std::span<const rpc::method> methods{};
    void invoke(rpc::invocation&) noexcept {}
};

/// What a grant says, so that a narrower one can be made of it.
struct granted {
    std::uint32_t methods = 0;    // bits of the provider's
    bool read_only = false, redact = false;
    std::uint32_t path = 0, tools = 0;    // 0: none
    rpc::budget most{};
};

struct registration {
    rpc::provider_id handle{};
    std::span<const rpc::method> methods{};
    bool hears = false;
    bool gone = false;
};
/// An object is the place of its minting.
struct minting {
    std::uint32_t registered;
    granted what;
    bool revoked = false;
    std::uint32_t drops = 0;
};
struct cap {
    rpc::capability handle{};
    std::uint32_t minted;
    int parent;
    granted what;
    std::uint64_t calls = 0;
};
struct lane {
    rpc::lane_id handle{};
    rpc::budget most{};
    std::uint32_t places;
    const void* owner;
    bool reports;
    std::uint64_t calls = 0;
};
struct promise {
    rpc::promise_id handle{};
    std::uint64_t word = 0;
    std::uint32_t lane = 0;
    bool known = true;
    promise_state state = promise_state::pending;
    std::string held{};    // its result as an argument, or its code
};
struct channel {
    rpc::channel_id handle{};
    rpc::channel_direction direction{};
    std::uint64_t sent[2] = {}, received[2] = {};
    std::deque<std::string> waiting[2]{};
};

inline std::string text_of(netio::bytes from) {
    return {reinterpret_cast<const char*>(from.data()), from.size()};
}
inline std::string text_of(const rpc::argument_list& from) {
    std::string out;
    for (const rpc::argument one : from) {
        out += text_of(one.wire());
    }
    return out;
}
inline constexpr std::string_view long_path =
    "a.bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
inline constexpr std::string_view paths[] = {"", "a", "a.b", "a.b.c", "b", "a..b", long_path};
inline constexpr std::string_view tool_names[] = {"ls", "cat", "rm", "other"};
inline const std::span<const std::string_view> all_tools = tool_names;
inline const rpc::tool_policy policies[] = {{},
                                            {all_tools.first(1), 40, false},
                                            {all_tools.first(2), 400, false},
                                            {all_tools.first(3), 4000, true},
                                            {{}, 10, false}};

/// A promise that is known when it is first asked for, and not from then on.
struct fickle {
    std::uint32_t asked = 0;
    static rpc::promise_id of(void* context, std::uint64_t number) noexcept {
        return {++static_cast<fickle*>(context)->asked == 1 ? number : 0};
    }
};

/// One program. `wrong` is empty while all holds.
class trial {
public:
    explicit trial(std::span<const std::uint8_t> from)
        : input_(from), plan_(below(256)), sizes_(sizes_of(plan_ % 16)),
          memory_(rpc::bytes_needed(sizes_) + 8), kernel_(memory_for(plan_), sizes_, secret) {
        for (player& one : players_) {
            one.of = this;
        }
        deaf_.of = this;
        add_provider();
        open_lane();
        mint();
    }
    trial(const trial&) = delete;
    trial& operator=(const trial&) = delete;

    std::string wrong;

    /// The whole program; false if something was wrong.
    bool run() {
        for (std::uint32_t steps = 0; steps < 2000 && left() && wrong.empty(); ++steps) {
            act();
            watch();
        }
        input_ = {};
        end();
        return wrong.empty();
    }

    // ---- called by the kernel

    void invoke(rpc::invocation& call) {
        check(!in_invoke_, "a call is made inside of another");
        look_at(call);
        in_invoke_ = true;
        for (std::uint32_t more = below(4); more > 1; --more) {
            act_inside();
        }
        answer(call);
        in_invoke_ = false;
    }
    void on_dropped(std::uint64_t object) {
        check(!in_invoke_, "a drop is told inside of a call");
        minting& its = mintings_[static_cast<std::size_t>(object)];
        check(!registered_[its.registered].gone, "a removed provider hears of a drop");
        check(++its.drops == 1, "an object is dropped twice");
        for (std::uint32_t more = below(4); more != 0; --more) {
            act_inside();
        }
    }

private:
    static constexpr std::uint64_t secret[2] = {5, 6};
    static constexpr std::byte filler[1100] = {};

    static rpc::rpc_limits sizes_of(std::uint32_t plan) {
        rpc::rpc_limits out;
        const bool tiny = plan >= 9;
        out.providers_max = tiny ? 2 : 3;
        out.capabilities_max = tiny ? 4 : 10;
        out.attenuations_max = tiny ? 1 : 3;
        out.lanes_max = tiny ? 2 : 4;
        out.channels_max = tiny ? 1 : 2;
        out.messages_max = tiny ? 2 : 6;
        out.promises_max = plan == 15 ? 1 : tiny ? 4 : 14;
        out.settled_max = tiny ? 2 : 5;
        out.settled_bytes_max = tiny ? 64 : 600;
        out.edges_max = tiny ? 4 : 16;
        out.events_max = plan == 13 ? 0 : 32;
        out.pieces[0] = {64, tiny ? 5u : 24u};
        out.pieces[1] = {256, tiny ? 1u : 4u};
        out.pieces[2] = {tiny ? 0u : 1024u, 2};
        out.pieces[3] = {0, 0};
        if (plan == 13) {
            out.channels_max = out.messages_max = 0;
        }
        return out;
    }
    /// At any address; too small for a plan of 14.
    std::span<std::byte> memory_for(std::uint32_t plan) {
        const std::span<std::byte> all = memory_;
        return all.subspan(plan / 32, all.size() - 8 - (plan % 16 == 14 ? 1 : 0));
    }

    // ---- the program

    bool left() const { return !input_.empty(); }
    std::uint32_t below(std::size_t bound) {
        if (!left() || bound == 0) {
            return 0;
        }
        const std::uint8_t first = input_.front();
        input_ = input_.subspan(1);
        return first % static_cast<std::uint32_t>(bound);
    }
    /// One of the last few of a list that is not empty.
    template <class List>
    std::size_t some(const List& of) {
        return of.size() - 1 - below(of.size() < 24 ? of.size() : 24);
    }
    void check(bool holds, const char* what) {
        if (!holds && wrong.empty()) {
            wrong = std::string(what) + ", with " + std::to_string(input_.size()) + " bytes left";
        }
    }
    template <class T>
    bool answers(const char* what, const rpc::answer<T>& got, std::initializer_list<rpc_code> may) {
        if (!got && std::find(may.begin(), may.end(), got.why) == may.end()) {
            check(false, what);
            wrong += std::string(": ") + rpc::code_text(got.why);
        }
        return got.given;
    }
    void act_inside() {
        if (left() && depth_ < 3 && wrong.empty()) {
            ++depth_;
            act();
            --depth_;
        }
    }
    void act() {
        const std::uint32_t what = below(64);
        if (what < 16) {
            call();
        } else if (what < 22) {
            run_some(what);
        } else if (what < 32) {
            hold(what - 22);
        } else if (what < 42) {
            lanes(what - 32);
        } else if (what < 54) {
            promises(what - 42);
        } else if (what < 60) {
            channels(what - 54);
        } else {
            providers(what - 60);
        }
    }

    // ---- providers

    void providers(std::uint32_t what) {
        const std::size_t at = some(registered_);
        const rpc::provider_id which = registered_[at].handle;
        if (what == 0) {
            add_provider();
        } else if (what == 1) {
            answers("set_latency", kernel_.set_latency(which, below(3) * 10),
                    {rpc_code::invalid_argument});
        } else if (what == 2 && below(2) == 0) {
            const auto got = kernel_.remove_provider(which);
            answers("remove_provider", got, {rpc_code::invalid_argument});
            check(got.given != registered_[at].gone, "a provider is removed once");
            registered_[at].gone = true;
        } else {
            kernel_.set_tick(below(256));
            check(kernel_.log().kept() <= sizes_.events_max, "more events than there is room for");
            check(!kernel_.add_provider(nobody_), "a provider without methods");
        }
    }
    void add_provider() {
        const std::uint32_t which = below(4);
        const netio::pool_stats before = kernel_.providers();
        registration made;
        made.hears = which < 3;
        const auto got = made.hears ? kernel_.add_provider(players_[which])
                                    : kernel_.add_provider(deaf_);
        check(got.given == (before.in_use < before.capacity), "a provider goes where room is");
        made.handle = got.value;
        made.methods = made.hears ? std::span<const rpc::method>(player::methods)
                                  : std::span<const rpc::method>(deaf_player::methods);
        made.gone = !got.given;
        if (answers("add_provider", got, {rpc_code::budget_exceeded}) || registered_.empty()) {
            registered_.push_back(made);
        }
    }

    // ---- capabilities

    rpc::budget some_budget(rpc::budget from) {
        switch (below(24)) {
        case 0:
            from.calls_max = below(6);
            break;
        case 1:
            from.bytes_max = below(256);
            break;
        case 2:
            from.wall_ms_max = 10;
            break;
        case 3:
            from.nodes_max = 3;
            break;
        case 4:
            from.depth_max = 1;
            break;
        case 5:
            from.array_max = 1;
            break;
        case 6:
            from.value_bytes_max = 20;
            break;
        case 7:
            from = {};
            break;
        default:
            break;
        }
        return from;
    }
    /// Mostly the same as `from`, or narrower.
    granted some_grant(granted from, std::span<const rpc::method> methods) {
        const std::uint32_t shape = below(256);
        const std::uint32_t all = (1u << methods.size()) - 1;
        from.methods = (shape & 7) == 0 ? below(32) & (all | 16) : from.methods;
        from.read_only |= (shape & 0x38) == 0x38;
        from.redact |= (shape & 0x30) == 0;
        if ((shape & 0x41) == 0x41) {
            from.path = below(std::size(paths));
        }
        if ((shape & 0x82) == 0x82) {
            from.tools = below(std::size(policies));
        }
        from.most = some_budget(from.most);
        return from;
    }
    rpc::grant grant_of(const granted& what, std::span<const rpc::method> methods) {
        names_.clear();
        for (std::size_t at = 0; at < methods.size(); ++at) {
            if ((what.methods >> at & 1) != 0) {
                names_.push_back(methods[at].name);
            }
        }
        if ((what.methods & 16) != 0) {
            names_.push_back("unknown");
        }
        rpc::grant out;
        out.methods = names_;
        out.spend = what.most;
        out.read_only = what.read_only;
        out.redact = what.redact;
        out.has_path = what.path != 0;
        out.path = paths[what.path];
        out.tools = what.tools != 0 ? &policies[what.tools] : nullptr;
        return out;
    }
    void mint() {
        const auto at = static_cast<std::uint32_t>(some(registered_));
        granted widest;
        widest.methods = registered_[at].hears ? 15 : 3;
        const granted what = some_grant(widest, registered_[at].methods);
        const auto got = kernel_.mint(registered_[at].handle, mintings_.size(),
                                      grant_of(what, registered_[at].methods));
        if (answers("mint", got,
                    {rpc_code::invalid_argument, rpc_code::method_not_granted,
                     rpc_code::budget_exceeded})) {
            check(!registered_[at].gone, "a removed provider's capability");
            caps_.push_back({got.value, static_cast<std::uint32_t>(mintings_.size()), -1, what});
            mintings_.push_back({at, what});
        }
    }
    void attenuate() {
        const std::size_t at = some(caps_);
        const cap& wide = caps_[at];
        const auto& methods = registered_[mintings_[wide.minted].registered].methods;
        const granted what = some_grant(wide.what, methods);
        const auto got = kernel_.attenuate(wide.handle, grant_of(what, methods));
        if (answers("attenuate", got,
                    {rpc_code::unknown_capability, rpc_code::revoked, rpc_code::escalation,
                     rpc_code::invalid_argument, rpc_code::budget_exceeded})) {
            check((what.methods & ~wide.what.methods) == 0, "more methods than above");
            check(what.read_only || !wide.what.read_only, "writes though it is read-only above");
            check(what.redact || !wide.what.redact, "not redacted though it is above");
            check(rpc::within(what.most, wide.what.most), "more to spend than above");
            caps_.push_back({got.value, wide.minted, static_cast<int>(at), what});
        }
    }
    void hold(std::uint32_t what) {
        if (what < 2 || caps_.empty()) {
            return mint();
        }
        if (what < 5) {
            return attenuate();
        }
        const std::size_t at = some(caps_);
        const rpc::capability which = caps_[at].handle;
        constexpr rpc_code unknown = rpc_code::unknown_capability;
        if (what == 5) {
            if (answers("revoke", kernel_.revoke(which), {unknown}) && caps_[at].parent < 0) {
                mintings_[caps_[at].minted].revoked = true;
            }
        } else if (what == 6) {
            answers("retain", kernel_.retain(which), {unknown});
        } else if (what < 9) {
            answers("release", kernel_.release(which), {unknown});
        } else {
            describe(at);
        }
    }
    void describe(std::size_t at) {
        const rpc::capability which = caps_[at].handle;
        rpc::capability_id id = kernel_.id_of(which);
        const bool held = id != rpc::capability_id{};
        const auto found = kernel_.import(id);
        answers("import", found, {rpc_code::unknown_capability});
        check(found.given == held && (!held || found.value == which), "an id names who has it");
        std::string_view names[rpc::provider_methods_max];
        const auto told = kernel_.describe(which, names);
        if (answers("describe", told, {rpc_code::unknown_capability, rpc_code::revoked})) {
            check(held && told.value.id == id, "what is described has an id");
            check(std::is_sorted(told.value.methods.begin(), told.value.methods.end()),
                  "methods are in order");
            check(told.value.spend == caps_[at].what.most, "a budget is as it was given");
            check(told.value.path == paths[caps_[at].what.path], "a path is as it was given");
        }
        id.octets[8 + below(8)] ^= std::byte{0x10};
        check(!kernel_.import(id), "a forged id names nothing");
    }

    // ---- lanes

    void open_lane() {
        const std::uint32_t shape = below(8);
        lane made;
        made.most = some_budget({});
        made.places = shape == 7 ? below(4) : 200;
        made.reports = shape % 2 != 0;
        made.owner = made.reports && shape > 3 ? &depth_ : nullptr;
        const auto got = made.reports ? kernel_.open_reporting_lane(lanes_.size(), made.most,
                                                                    made.places, made.owner)
                                      : kernel_.open_lane(made.most, made.places);
        made.handle = got.value;
        if (answers("open_lane", got, {rpc_code::budget_exceeded}) || lanes_.empty()) {
            lanes_.push_back(made);
        }
    }
    void lanes(std::uint32_t what) {
        const std::size_t at = some(lanes_);
        const rpc::lane_id which = lanes_[at].handle;
        if (what < 2) {
            open_lane();
        } else if (what == 2) {
            narrow(at);
        } else if (what == 3) {
            answers("close_lane", kernel_.close_lane(which), {rpc_code::unknown_lane});
        } else if (what < 6) {
            end_lane(at, what == 4);
        } else if (what < 8) {
            take_report(at);
        } else {
            find_reporting(what == 8);
        }
    }
    void narrow(std::size_t at) {
        lane& one = lanes_[at];
        const rpc::budget most = some_budget(one.most);
        if (answers("narrow_lane", kernel_.narrow_lane(one.handle, most),
                    {rpc_code::unknown_lane, rpc_code::budget_exceeded, rpc_code::escalation})) {
            check(rpc::within(most, one.most), "a lane becomes wider");
            one.most = most;
            one.calls = std::min(one.calls, most.calls_max);
        }
    }
    /// Of those that were to be reported so far nothing is heard any more.
    void end_lane(std::size_t at, bool drops) {
        std::vector<std::uint64_t> wanted;
        for (const promise& one : promises_) {
            if (one.lane == at && reports_.contains(one.handle.bits)) {
                wanted.push_back(one.handle.bits);
            }
        }
        const rpc::lane_id which = lanes_[at].handle;
        const auto got = drops ? kernel_.drop_lane(which) : kernel_.clear_lane(which);
        if (answers("drop_lane", got, {rpc_code::unknown_lane})) {
            for (const std::uint64_t bits : wanted) {
                reports_.erase(bits);
            }
        }
    }
    void take_report(std::size_t at) {
        const rpc::lane_id which = lanes_[at].handle;
        const auto got = kernel_.next_report(which);
        if (answers("next_report", got,
                    {rpc_code::unknown_lane, rpc_code::unresolvable_promise})) {
            check(got.value.state != promise_state::pending, "what is reported is settled");
            check(reports_.erase(got.value.promise.bits) == 1, "it is reported once, if asked for");
        }
        check(kernel_.take_report(which) == got.given, "what is there can be taken");
    }
    void find_reporting(bool takes) {
        const void* const owner = below(2) == 0 ? &depth_ : nullptr;
        const auto got = takes ? kernel_.next_reporting(owner) : kernel_.peek_reporting(owner);
        if (!answers("next_reporting", got, {rpc_code::unknown_lane})) {
            return;
        }
        const std::size_t at = static_cast<std::size_t>(got.value.word);
        const bool known = at < lanes_.size() && lanes_[at].handle == got.value.lane;
        check(known && lanes_[at].owner == owner, "a lane that reports is the owner's");
        if (known) {
            check(kernel_.next_report(lanes_[at].handle).given, "a lane that reports has a report");
            take_report(at);
        }
    }

    // ---- calls

    void put_text(rpc::writer& to) {
        const std::uint32_t shape = below(12);
        if (shape < 9) {
            to.value_text(tool_names[shape % 4]);
        } else {
            to.value_text(std::string(shape == 9 ? 70 : shape == 10 ? 230 : 900, 'x'));
        }
    }
    void put_value(rpc::writer& to, std::uint32_t depth = 0) {
        switch (below(depth < 3 ? 12 : 6)) {
        case 0:
        case 1:
            to.value_int(below(256));
            break;
        case 2:
            put_text(to);
            break;
        case 3:
            to.value_path(paths[1 + below(std::size(paths) - 1)]);
            break;
        case 4:
            to.value_null().end();    // nothing is open: only inside of a list
            break;
        case 5:
            to.value_bool(true);
            break;
        case 6:
        case 7:
            to.value_list();
            for (std::uint32_t more = below(4); more != 0; --more) {
                put_value(to, depth + 1);
            }
            to.end();
            break;
        case 8:
            to.value_map().key("k");
            put_value(to, depth + 1);
            to.end();
            break;
        case 9:
            to.value_secret();
            break;
        case 10:
            to.value_module(netio::bytes(filler).first(below(64)));
            break;
        default:
            to.value_text("ls");
        }
    }
    void put_argument(rpc::writer& to) {
        const std::uint32_t what = below(8);
        if (what < 3 && !promises_.empty()) {
            to.promise(promises_[some(promises_)].handle.bits);
        } else if (what == 3 && !caps_.empty()) {
            to.capability(kernel_.id_of(caps_[some(caps_)].handle));
        } else {
            put_value(to);
        }
    }
    /// In `kept` with not a byte behind them, for whoever reads too far.
    netio::result<rpc::argument_list> some_arguments(exact_bytes& kept) {
        std::byte room[2048];
        rpc::writer to(room);
        to.begin_arguments();
        const std::uint32_t shape = below(16);
        if (shape == 15) {    // what a settled promise holds, where it holds it
            const auto held = look_at_some();
            return held && !held.value.argument.empty()
                       ? rpc::argument_list(held.value.argument.data(), 1)
                       : rpc::argument_list();
        }
        if (shape > 9) {
            to.value_text(tool_names[shape % 4]);
        }
        for (std::uint32_t more = shape % 5; more != 0; --more) {
            put_argument(to);
        }
        return kept_alone(to, kept);
    }
    static netio::result<rpc::argument_list> kept_alone(rpc::writer& from, exact_bytes& kept) {
        const auto made = from.finish_arguments();
        if (!made) {
            return made;
        }
        kept = std::make_unique<std::byte[]>(from.written());
        std::copy_n(made.value.data(), from.written(), kept.get());
        return rpc::argument_list(kept.get(), made.value.size());
    }
    rpc::answer<rpc::settled> look_at_some() {
        return promises_.empty() ? rpc_code::unknown_promise
                                 : kernel_.look(promises_[some(promises_)].handle);
    }
    void call() {
        if (caps_.empty()) {
            return mint();
        }
        const std::size_t cap_at = some(caps_);
        const std::size_t lane_at = some(lanes_);
        static constexpr std::string_view names[] = {"read", "call", "write", "run", "unknown"};
        const std::uint32_t shape = below(256);
        const std::string_view name = names[shape % 32 < 5 ? shape % 32 : shape % 2];
        exact_bytes kept;
        fickle changing;
        rpc::call_arguments with;
        with.arguments = some_arguments(kept);
        with.word = ++words_;
        with.reports = (shape & 64) != 0;
        with.promise_of = rpc::own_promise;
        switch (below(32)) {
        case 0:
            with.promise_of = nullptr;
            break;
        case 1:
            with.promise_of = fickle::of;
            with.context = &changing;
            with.reports = false;
            break;
        case 2:
            with.flags = rpc::flag_redact;
            break;
        case 3:
            with.flags = rpc::flag_read_only;
            break;
        case 4:
            with.payload = netio::bytes(filler).first(std::min(below(256) * 6u, 1100u));
            break;
        case 5:
            if (const auto held = look_at_some()) {
                with.payload = held.value.argument;
            }
            break;
        default:
            break;
        }
        call(lane_at, cap_at, name, with);
    }
    void call(std::size_t lane_at, std::size_t cap_at, std::string_view name,
              const rpc::call_arguments& with) {
        const std::vector<std::uint32_t> before = tables();
        const bool reports = with.reports && lanes_[lane_at].reports;
        const auto got = kernel_.call(lanes_[lane_at].handle, caps_[cap_at].handle, name, with);
        if (!answers("call", got,
                     {rpc_code::unknown_lane, rpc_code::unknown_capability,
                      rpc_code::unknown_promise, rpc_code::promise_cancelled, rpc_code::revoked,
                      rpc_code::method_not_granted, rpc_code::read_only,
                      rpc_code::path_not_granted, rpc_code::tool_policy,
                      rpc_code::budget_exceeded, rpc_code::invalid_argument})) {
            check(tables() == before, "a refused call changes a table");
            return;
        }
        check(++lanes_[lane_at].calls <= lanes_[lane_at].most.calls_max,
              "more calls of a lane than its budget has");
        for (int at = static_cast<int>(cap_at); at >= 0;
             at = caps_[static_cast<std::size_t>(at)].parent) {
            cap& one = caps_[static_cast<std::size_t>(at)];
            check(++one.calls <= one.what.most.calls_max, "more calls than a budget has");
        }
        if (reports) {
            reports_.insert(got.value.bits);
        }
        promises_.push_back({got.value, with.word, static_cast<std::uint32_t>(lane_at)});
    }
    void run_some(std::uint32_t what) {
        if (what == 21 && !promises_.empty()) {
            const auto got = kernel_.await(promises_[some(promises_)].handle);
            if (answers("await", got,
                        {rpc_code::unknown_promise, rpc_code::unresolvable_promise,
                         rpc_code::invalid_argument})) {
                check(got.value.state != promise_state::pending, "what is awaited is settled");
                check(!in_invoke_, "await inside of a call");
            }
            return;
        }
        const std::uint32_t most = what < 19 ? 0xFFFFFFFF : below(4);
        const std::uint32_t jobs = kernel_.dispatch(most);
        check(jobs <= most && (jobs == 0 || !in_invoke_), "no more jobs than are asked for");
    }

    // ---- inside of a call

    void look_at(rpc::invocation& call) {
        const minting& its = mintings_[static_cast<std::size_t>(call.object())];
        const registration& of = registered_[its.registered];
        const rpc::method& asked = of.methods[call.method_index()];
        check(!of.gone, "a removed provider is called");
        check(!its.revoked, "a revoked capability is called");
        check(its.drops == 0, "an object is called after it was dropped");
        check((its.what.methods >> call.method_index() & 1) != 0, "a method that is not granted");
        check(!asked.mutating || !its.what.read_only, "a read-only object is changed");
        check(!asked.starts_process || its.what.tools == 0 ||
                  policies[its.what.tools].allow_process,
              "a tool starts a process");
        check(call.redact() || !its.what.redact, "a call is not redacted");
        check(&call.owner() == &kernel_, "a call has its kernel");
        check(std::any_of(lanes_.begin(), lanes_.end(),
                          [&](const lane& one) { return one.handle == call.lane(); }),
              "a call has a lane");
        for (std::uint32_t at = call.argument_count() + 1; at-- != 0;) {    // last first
            const rpc::value held = call.value_at(at);
            const rpc::argument given = call.argument_at(at);
            check(!given.is(rpc::argument_tag::capability) || held.is(rpc::value_tag::null_value),
                  "a capability is no value");
            check(its.what.path == 0 || !held.is(rpc::value_tag::path) ||
                      rpc::path_inside(paths[its.what.path], held.as_path()),
                  "a path outside of its scope");
        }
        payload_bytes_ += call.payload().size();
    }
    void answer(rpc::invocation& call) {
        const std::uint32_t count = call.argument_count();
        switch (below(16)) {
        case 0:
            break;
        case 1:
            call.reject(below(2) == 0 ? "broken" : "\xFF");
            break;
        case 2:
            call.reject(std::string(254, 'x') + "\xC3\xA4");
            break;
        case 3:
        case 4:
        case 5:
            answer_later(call);
            break;
        case 6:
            call.reply().value_int(1).value_int(2);
            break;
        case 7:
            call.reply().promise(1);
            break;
        case 8:
            call.reply().value_list();    // never ended
            break;
        case 9:
            call.reply().value_text(std::string(2000, 'x'));
            break;
        case 10:
            call.reply().value_int(3);
            call.reject("after all");
            break;
        case 11:
            call.reply().copy_value(call.value_at(count - 1));
            break;
        case 12:
            call.reply().copy_value(call.value_at(below(4)));
            break;
        default:
            put_value(call.reply());
        }
    }
    /// Until `invoke` returns nobody can settle it, not even its provider.
    void answer_later(rpc::invocation& call) {
        const rpc::promise_id which = call.later();
        switch (below(8)) {
        case 0:
            check(!kernel_.resolve(which, {}), "resolved inside of its call");
            break;
        case 1:
            check(kernel_.cancel(which).why == rpc_code::invalid_argument,
                  "cancelled inside of its call");
            break;
        case 2:
            call.reject("not even later");
            break;
        default:
            break;
        }
    }

    // ---- promises

    void promises(std::uint32_t what) {
        if (what == 0 || promises_.empty()) {
            return open_promise();
        }
        const rpc::promise_id which = promises_[some(promises_)].handle;
        constexpr rpc_code unknown = rpc_code::unknown_promise;
        constexpr rpc_code settled = rpc_code::promise_already_resolved;
        constexpr rpc_code not_now = rpc_code::invalid_argument;
        if (what < 4) {
            resolve(which);
        } else if (what == 4) {
            answers("reject",
                    kernel_.reject(which, rpc_code::domain, below(2) == 0 ? "" : "no paper"),
                    {unknown, settled, not_now});
        } else if (what < 7) {
            const rpc::promise_id other = promises_[some(promises_)].handle;
            answers("follow", kernel_.follow(which, other),
                    {unknown, settled, not_now, rpc_code::pipelined_cycle,
                     rpc_code::budget_exceeded});
        } else if (what == 7) {
            answers("cancel", kernel_.cancel(which), {unknown, settled, not_now});
        } else if (what == 8) {
            answers("forget", kernel_.forget(which), {unknown, not_now});
        } else if (what == 9) {
            answers("let_go", kernel_.let_go(which), {unknown});
        } else {
            call();
        }
    }
    void open_promise() {
        const std::size_t at = some(lanes_);
        const auto got = kernel_.open_promise(lanes_[at].handle);
        if (answers("open_promise", got, {rpc_code::unknown_lane, rpc_code::budget_exceeded})) {
            promises_.push_back({got.value, 0, static_cast<std::uint32_t>(at)});
        }
    }
    void resolve(rpc::promise_id which) {
        std::byte room[2048];
        rpc::writer out(room);
        out.begin_arguments();
        exact_bytes kept;
        rpc::value with;
        if (below(8) == 0) {    // what another one holds, where it holds it
            const auto held = look_at_some();
            with = held && held.value.state == promise_state::resolved ? held.value.value : with;
        } else {
            put_value(out);
            const auto made = kept_alone(out, kept);
            with = made ? made.value.front().as_value() : with;
        }
        answers("resolve", kernel_.resolve(which, with),
                {rpc_code::unknown_promise, rpc_code::promise_already_resolved,
                 rpc_code::invalid_argument, rpc_code::budget_exceeded, rpc_code::revoked});
    }

    // ---- channels

    void channels(std::uint32_t what) {
        if (what == 0 || channels_.empty()) {
            static constexpr std::uint32_t sizes[] = {4096, 1, 3, 0, 4097};
            channel made;
            made.direction = static_cast<rpc::channel_direction>(below(3));
            const auto got = kernel_.open_channel(made.direction, sizes[below(std::size(sizes))]);
            made.handle = got.value;
            if (answers("open_channel", got,
                        {rpc_code::invalid_argument, rpc_code::budget_exceeded})) {
                channels_.push_back(made);
            }
            return;
        }
        const std::size_t at = some(channels_);
        const auto end = static_cast<rpc::channel_end>(below(2));
        if (what < 3) {
            send(channels_[at], end);
        } else if (what < 5) {
            receive(channels_[at], end);
        } else if (answers("close_channel", kernel_.close_channel(channels_[at].handle),
                           {rpc_code::unknown_channel})) {
            delivered_ = {};
        }
    }
    static bool goes(const channel& of, rpc::channel_end from) {
        return of.direction == rpc::channel_direction::both ||
               (of.direction == rpc::channel_direction::send) == (from == rpc::channel_end::ours);
    }
    void send(channel& to, rpc::channel_end from) {
        exact_bytes kept;
        const auto what = below(8) == 0 ? delivered_ : some_arguments(kept);
        const std::string content = what ? text_of(what.value) : std::string();
        const auto got = kernel_.send(to.handle, from, what);
        if (answers("send", got,
                    {rpc_code::unknown_channel, rpc_code::invalid_argument,
                     rpc_code::budget_exceeded})) {
            const auto end = static_cast<std::size_t>(from);
            check(goes(to, from) && got.value == ++to.sent[end], "messages are counted");
            to.waiting[end].push_back(content);
        }
    }
    void receive(channel& from, rpc::channel_end to) {
        const auto got = kernel_.receive(from.handle, to);
        if (got.why != rpc_code::unknown_channel && got.why != rpc_code::invalid_argument) {
            delivered_ = got.value.arguments;
        }
        if (!answers("receive", got,
                     {rpc_code::unknown_channel, rpc_code::invalid_argument,
                      rpc_code::unresolvable_promise})) {
            return;
        }
        const auto end = 1 - static_cast<std::size_t>(to);
        check(got.value.sequence == ++from.received[end], "messages come in order");
        check(!from.waiting[end].empty() &&
                  from.waiting[end].front() == text_of(got.value.arguments),
              "a message is as it was sent");
        if (!from.waiting[end].empty()) {
            from.waiting[end].pop_front();
        }
    }

    // ---- what must hold

    std::vector<netio::pool_stats> all_stats() const {
        std::vector<netio::pool_stats> out = {
            kernel_.providers(), kernel_.capabilities(), kernel_.lanes(), kernel_.channels(),
            kernel_.messages(),  kernel_.promises(),     kernel_.edges()};
        for (std::uint32_t at = 0; at < kernel_.piece_class_count(); ++at) {
            out.push_back(kernel_.pieces(at));
        }
        return out;
    }
    std::vector<std::uint32_t> tables() const {
        std::vector<std::uint32_t> out;
        for (const netio::pool_stats& one : all_stats()) {
            out.push_back(one.in_use);
        }
        return out;
    }
    void watch() {
        for (const netio::pool_stats& one : all_stats()) {
            check(one.in_use <= one.capacity && one.high_water <= one.capacity,
                  "more in use than there are");
        }
        for (const lane& one : lanes_) {
            check(kernel_.pending_of(one.handle) <= one.places, "more calls pending than may be");
        }
        const std::size_t count = promises_.size();
        for (std::size_t at = count < 64 ? 0 : count - 64; at < count; ++at) {
            watch(promises_[at]);
        }
    }
    void watch(promise& one) {
        const auto got = kernel_.look(one.handle);
        if (!answers("look", got, {rpc_code::unknown_promise})) {
            one.known = false;
            return;
        }
        const rpc::settled& now = got.value;
        check(one.known, "a promise is known again");
        check(now.promise == one.handle && now.word == one.word, "a promise is another");
        const std::string held = now.state == promise_state::resolved
                                     ? text_of(now.argument)
                                     : std::string(now.text);
        if (one.state != promise_state::pending) {
            check(now.state == one.state && held == one.held, "a settled promise changes");
        }
        one.state = now.state;
        one.held = held;
    }
    void remove_providers() {
        for (registration& one : registered_) {
            kernel_.remove_provider(one.handle);
            one.gone = true;
        }
    }
    /// Everything is let go: nothing stays in any table, and who is still there heard of it.
    void end() {
        if ((plan_ & 32) != 0) {
            remove_providers();
        }
        kernel_.dispatch();
        watch();
        for (const lane& one : lanes_) {
            kernel_.drop_lane(one.handle);
        }
        for (const cap& one : caps_) {
            if ((plan_ & 64) != 0) {
                kernel_.revoke(one.handle);
            }
            while (kernel_.release(one.handle)) {
            }
        }
        for (const channel& one : channels_) {
            kernel_.close_channel(one.handle);
        }
        kernel_.dispatch();    // what was cancelled in a queue holds what it needs until its turn
        watch();
        for (const promise& one : promises_) {
            kernel_.forget(one.handle);
        }
        for (const minting& one : mintings_) {
            const registration& of = registered_[one.registered];
            check(one.drops == 1 || of.gone || !of.hears, "an object's end was not told");
        }
        remove_providers();
        kernel_.dispatch();
        for (const netio::pool_stats& one : all_stats()) {
            check(one.in_use == 0, one.name);
        }
        const bool broken = plan_ % 16 > 13;
        check((kernel_.why() != netio::error::none) == broken, "a kernel says what it lacks");
        check(!broken || (mintings_.empty() && channels_.empty() && promises_.empty()),
              "a kernel without tables gives something");
    }

    std::span<const std::uint8_t> input_;
    std::uint32_t plan_;
    rpc::rpc_limits sizes_;
    std::vector<std::byte> memory_;
    rpc::kernel kernel_;
    player players_[3];
    deaf_player deaf_;
    no_player nobody_;
    std::vector<registration> registered_;
    std::vector<minting> mintings_;
    std::vector<cap> caps_;
    std::vector<lane> lanes_;
    std::vector<promise> promises_;
    std::vector<channel> channels_;
    std::set<std::uint64_t> reports_;             // promises that are to be reported once
    std::vector<std::string_view> names_;
    netio::result<rpc::argument_list> delivered_{rpc::argument_list()};
    std::uint64_t words_ = 0;
    std::uint64_t payload_bytes_ = 0;
    std::uint32_t depth_ = 0;
    bool in_invoke_ = false;
};

inline void player::invoke(rpc::invocation& call) noexcept { of->invoke(call); }
inline void player::on_dropped(std::uint64_t object) noexcept { of->on_dropped(object); }
inline void deaf_player::invoke(rpc::invocation& call) noexcept { of->invoke(call); }

}  // namespace rpc_free_play

#endif
