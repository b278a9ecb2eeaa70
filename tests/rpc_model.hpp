// The capability kernel against a slow model of it: bytes choose a program of mint, attenuate,
// call, revoke, dispatch and the rest; after each step the two must agree on the answer, on every
// promise that is still known, on every table's count, and on who was called with what.
#ifndef NETIO_TESTS_RPC_MODEL_HPP
#define NETIO_TESTS_RPC_MODEL_HPP

#include "netio.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rpc_model {

namespace rpc = netio::rpc;
using rpc::promise_state;
using rpc::rpc_code;

/// The program: bytes, and zeros behind their end.
struct program {
    const std::uint8_t* data;
    std::size_t left;

    std::uint32_t below(std::uint32_t bound) {
        if (left == 0 || bound == 0) {
            return 0;
        }
        --left;
        return *data++ % bound;
    }
    bool ended() const { return left == 0; }
};

enum method_index : std::uint32_t { sum, fail, later, put, methods_count };
constexpr std::array<std::string_view, methods_count> names = {"sum", "fail", "later", "put"};
constexpr std::array<std::string_view, 4> paths = {"a", "a.b", "a.bc", "b"};
constexpr std::uint32_t int_bytes = 10, promise_bytes = 9, null_bytes = 2;

/// Who was called, in order.
struct made_call {
    std::uint32_t provider, method;
    std::uint64_t object;
    std::int64_t total;
    bool operator==(const made_call&) const = default;
};

struct argument {
    enum kind : std::uint8_t { number, promise, path } is;
    std::int64_t value;     // of a number
    std::uint32_t at;       // which promise or path
};

struct cap {
    std::uint32_t provider;
    std::uint64_t object;
    std::uint32_t methods;          // bits
    std::uint64_t calls_max, bytes_max, calls = 0, bytes = 0;
    int parent;
    std::uint32_t depth;
    bool read_only, has_path;
    std::uint32_t path;
    std::uint32_t handles = 1, jobs = 0, children = 0;
    bool revoked = false, alive = true;
    rpc::capability handle{};
};

struct lane {
    std::uint64_t calls_max, bytes_max, calls = 0, bytes = 0;
    std::uint32_t pending_max, pending = 0;
    bool closed = false, alive = true;
    std::deque<std::uint32_t> ready;
    rpc::lane_id handle{};
};

struct edge {
    std::uint32_t needed;
    std::uint32_t job;
    bool alive;
};

struct promise {
    bool is_call, late = false, queued = false, alive = true;
    std::uint32_t lane, cap = 0, method = 0;
    std::vector<argument> arguments;
    std::vector<std::uint32_t> edges;
    int follows = -1;
    promise_state state = promise_state::pending;
    rpc_code code = rpc_code::other;
    std::int64_t value = 0;
    std::uint32_t result_bytes = 0;
    std::uint32_t held_bytes = 0;   // in its piece, once settled
    std::string text;
    rpc::promise_id handle{};
};

struct expected {
    bool given;
    rpc_code why = rpc_code::other;
};

/// Everything as plain lists. What may be done is decided first, then done.
class model {
public:
    explicit model(const rpc::rpc_limits& of) : most(of) {}

    rpc::rpc_limits most;
    std::vector<bool> gone = {false, false};
    std::vector<cap> caps;
    std::vector<lane> lanes;
    std::vector<promise> promises;
    std::vector<edge> edges;
    std::vector<made_call> calls;
    std::vector<std::uint32_t> dropped;     // objects told to their provider
    std::vector<std::uint32_t> kept;
    std::deque<std::uint32_t> busy_lanes, busy_providers;
    std::array<std::deque<std::uint32_t>, 2> queues;
    int batch_of = -1;
    std::uint64_t batches = 0;

    template <class List>
    static std::uint32_t alive(const List& of) {
        return static_cast<std::uint32_t>(
            std::count_if(of.begin(), of.end(), [](const auto& one) { return one.alive; }));
    }
    bool held(std::uint32_t at) const { return caps[at].alive && caps[at].handles != 0; }
    bool revoked(const cap& of) const { return of.revoked || gone[of.provider]; }

    // ---- capabilities

    static bool inside(std::uint32_t scope, std::uint32_t path) {
        return scope == path || (scope == 0 && (path == 1 || path == 2));
    }
    expected may_mint(std::uint32_t provider) const {
        if (gone[provider]) {
            return {false, rpc_code::invalid_argument};
        }
        return alive(caps) < most.capabilities_max ? expected{true}
                                               : expected{false, rpc_code::budget_exceeded};
    }
    expected may_attenuate(std::uint32_t parent, const cap& what) const {
        if (!held(parent)) {
            return {false, rpc_code::unknown_capability};
        }
        const cap& wide = caps[parent];
        if (revoked(wide)) {
            return {false, rpc_code::revoked};
        }
        if ((what.methods & ~wide.methods) != 0 || (wide.read_only && !what.read_only) ||
            what.calls_max > wide.calls_max || what.bytes_max > wide.bytes_max ||
            (wide.has_path && (!what.has_path || !inside(wide.path, what.path)))) {
            return {false, rpc_code::escalation};
        }
        if (wide.depth == most.attenuations_max || alive(caps) == most.capabilities_max) {
            return {false, rpc_code::budget_exceeded};
        }
        return {true};
    }
    void add_cap(const cap& what) {
        if (what.parent >= 0) {
            ++caps[static_cast<std::size_t>(what.parent)].children;
        }
        caps.push_back(what);
    }
    bool some_revoked = false;
    void revoke(std::uint32_t at) {
        some_revoked = true;
        caps[at].revoked = true;
        for (std::uint32_t child = 0; child < caps.size(); ++child) {
            if (caps[child].alive && caps[child].parent == static_cast<int>(at)) {
                revoke(child);
            }
        }
    }
    void release(std::uint32_t at) {
        --caps[at].handles;
        free_cap(at);
    }
    void free_cap(std::uint32_t at) {
        cap& one = caps[at];
        if (one.handles != 0 || one.jobs != 0 || one.children != 0) {
            return;
        }
        one.alive = false;
        if (one.parent < 0 && !gone[one.provider]) {
            dropped.push_back(static_cast<std::uint32_t>(one.object));
        }
        if (one.parent >= 0) {
            --caps[static_cast<std::size_t>(one.parent)].children;
            free_cap(static_cast<std::uint32_t>(one.parent));
        }
    }
    bool affords(const cap& of, std::uint64_t more_calls, std::uint64_t more_bytes) const {
        return of.calls + more_calls <= of.calls_max && of.bytes + more_bytes <= of.bytes_max &&
               (of.parent < 0 ||
                affords(caps[static_cast<std::size_t>(of.parent)], more_calls, more_bytes));
    }
    static bool affords(const lane& of, std::uint64_t more_calls, std::uint64_t more_bytes) {
        return of.calls + more_calls <= of.calls_max && of.bytes + more_bytes <= of.bytes_max;
    }
    void charge(cap& of, std::uint64_t more_calls, std::uint64_t more_bytes) {
        of.calls += more_calls;
        of.bytes += more_bytes;
        if (of.parent >= 0) {
            charge(caps[static_cast<std::size_t>(of.parent)], more_calls, more_bytes);
        }
    }
    static void charge(lane& of, std::uint64_t more_calls, std::uint64_t more_bytes) {
        of.calls += more_calls;
        of.bytes += more_bytes;
    }

    // ---- calls

    static std::uint32_t bytes_of(const std::vector<argument>& arguments) {
        std::uint32_t bytes = 0;
        for (const argument& one : arguments) {
            bytes += one.is == argument::number    ? int_bytes
                     : one.is == argument::promise ? promise_bytes
                         : static_cast<std::uint32_t>(6 + paths[one.at].size());
        }
        return bytes;
    }
    static std::uint32_t promises_in(const std::vector<argument>& arguments) {
        return static_cast<std::uint32_t>(
            std::count_if(arguments.begin(), arguments.end(),
                          [](const argument& one) { return one.is == argument::promise; }));
    }
    expected may_call(std::uint32_t lane_at, std::uint32_t cap_at, std::uint32_t method,
                      const std::vector<argument>& arguments) const {
        const lane& in = lanes[lane_at];
        if (!in.alive || in.closed) {
            return {false, rpc_code::unknown_lane};
        }
        if (!held(cap_at)) {
            return {false, rpc_code::unknown_capability};
        }
        const cap& target = caps[cap_at];
        bool outside = false;
        for (const argument& one : arguments) {
            if (one.is == argument::promise) {
                if (!promises[one.at].alive) {
                    return {false, rpc_code::unknown_promise};
                }
                if (promises[one.at].state == promise_state::cancelled) {
                    return {false, rpc_code::promise_cancelled};
                }
            }
            outside |= one.is == argument::path && target.has_path &&
                       !inside(target.path, one.at);
        }
        if (revoked(target)) {
            return {false, rpc_code::revoked};
        }
        if ((target.methods >> method & 1) == 0) {
            return {false, rpc_code::method_not_granted};
        }
        if (method == put && target.read_only) {
            return {false, rpc_code::read_only};
        }
        if (outside) {
            return {false, rpc_code::path_not_granted};
        }
        const std::uint32_t bytes = bytes_of(arguments);
        const bool room = in.pending < in.pending_max &&
                          (alive(promises) < most.promises_max || oldest_but(arguments) >= 0) &&
                          alive(edges) + promises_in(arguments) <= most.edges_max;
        return affords(target, 1, bytes) && affords(in, 1, bytes) && room
                   ? expected{true}
                   : expected{false, rpc_code::budget_exceeded};
    }
    /// The settled promise that would make room, -1: none would.
    int oldest_but(const std::vector<argument>& arguments) const {
        for (const std::uint32_t at : kept) {
            const bool is_argument =
                std::any_of(arguments.begin(), arguments.end(), [at](const argument& one) {
                    return one.is == argument::promise && one.at == at;
                });
            if (!is_argument) {
                return static_cast<int>(at);
            }
        }
        return -1;
    }
    void make_room(const std::vector<argument>& arguments) {
        if (alive(promises) == most.promises_max) {
            const auto at = static_cast<std::uint32_t>(oldest_but(arguments));
            std::erase(kept, at);
            promises[at].alive = false;
        }
    }
    void call(std::uint32_t lane_at, std::uint32_t cap_at, std::uint32_t method,
              const std::vector<argument>& arguments, rpc::promise_id handle) {
        make_room(arguments);
        const std::uint32_t bytes = bytes_of(arguments);
        charge(caps[cap_at], 1, bytes);
        charge(lanes[lane_at], 1, bytes);
        ++caps[cap_at].jobs;
        ++lanes[lane_at].pending;
        promise made{};
        made.is_call = true;
        made.lane = lane_at;
        made.cap = cap_at;
        made.method = method;
        made.arguments = arguments;
        made.handle = handle;
        promises.push_back(made);
        const auto job = static_cast<std::uint32_t>(promises.size() - 1);
        for (const argument& one : arguments) {
            if (one.is == argument::promise) {
                need(job, one.at);
            }
        }
        if (unresolved(job) == 0) {
            to_lane(job);
        }
    }
    void need(std::uint32_t job, std::uint32_t needed) {
        edges.push_back({needed, job, true});
        promises[job].edges.push_back(static_cast<std::uint32_t>(edges.size() - 1));
        std::erase(kept, needed);
    }
    std::uint32_t unresolved(std::uint32_t job) const {
        std::uint32_t count = 0;
        for (const std::uint32_t at : promises[job].edges) {
            count += promises[edges[at].needed].state == promise_state::pending ? 1 : 0;
        }
        return count;
    }
    bool is_needed(std::uint32_t at) const {
        return std::any_of(edges.begin(), edges.end(), [at](const edge& one) {
            return one.alive && one.needed == at;
        });
    }

    // ---- dispatch

    void to_lane(std::uint32_t job) {
        promises[job].queued = true;
        const std::uint32_t at = promises[job].lane;
        lanes[at].ready.push_back(job);
        if (std::find(busy_lanes.begin(), busy_lanes.end(), at) == busy_lanes.end()) {
            busy_lanes.push_back(at);
        }
    }
    void to_provider(std::uint32_t job) {
        promises[job].queued = true;
        const std::uint32_t at = caps[promises[job].cap].provider;
        queues[at].push_back(job);
        if (batch_of != static_cast<int>(at) &&
            std::find(busy_providers.begin(), busy_providers.end(), at) == busy_providers.end()) {
            busy_providers.push_back(at);
        }
    }
    template <class Queue>
    std::uint32_t pop(Queue& of) {
        const std::uint32_t first = of.front();
        of.pop_front();
        return first;
    }
    void dispatch(std::uint32_t jobs_max) {
        std::uint32_t jobs = 0;
        while (jobs != jobs_max) {
            const std::uint32_t more = step(jobs_max - jobs);
            if (more == 0) {
                break;
            }
            jobs += more;
        }
        while (kept.size() > most.settled_max) {
            promises[kept.front()].alive = false;
            kept.erase(kept.begin());
        }
    }
    std::uint32_t step(std::uint32_t jobs_max) {
        if (some_revoked) {
            end_revoked();
        }
        for (;;) {
            credit(jobs_max);
            if (busy_providers.empty()) {
                return 0;
            }
            const std::uint32_t jobs =
                batch(pop(busy_providers), std::min(jobs_max, most.promises_max));
            if (jobs != 0) {
                return jobs;
            }
        }
    }
    /// In the order of their slots, which is the low half of a name.
    void end_revoked() {
        some_revoked = false;
        std::vector<std::uint32_t> order(promises.size());
        for (std::uint32_t at = 0; at < order.size(); ++at) {
            order[at] = at;
        }
        std::sort(order.begin(), order.end(), [this](std::uint32_t one, std::uint32_t other) {
            return static_cast<std::uint32_t>(promises[one].handle.bits) <
                   static_cast<std::uint32_t>(promises[other].handle.bits);
        });
        for (const std::uint32_t at : order) {
            const promise& of = promises[at];
            if (of.alive && of.state == promise_state::pending && of.is_call && !of.queued &&
                revoked(caps[of.cap])) {
                reject(at, rpc_code::revoked, "");
                settle_followers();
            }
        }
    }
    void credit(std::uint32_t jobs_max) {
        for (std::uint32_t left = jobs_max; left != 0 && !busy_lanes.empty();) {
            const std::uint32_t at = pop(busy_lanes);
            const std::uint32_t job = pop(lanes[at].ready);
            promises[job].queued = false;
            if (!lanes[at].ready.empty()) {
                busy_lanes.push_back(at);
            }
            if (promises[job].state == promise_state::pending) {
                to_provider(job);
                --left;
            } else {
                end_job(job);
                keep(job);
            }
        }
    }
    std::uint32_t batch(std::uint32_t provider, std::uint32_t jobs_max) {
        std::uint32_t jobs = 0;
        bool made = false;
        batch_of = static_cast<int>(provider);
        while (jobs != jobs_max) {
            while (queues[provider].empty() && !busy_lanes.empty()) {
                credit(1);
            }
            if (queues[provider].empty()) {
                break;
            }
            const std::uint32_t job = pop(queues[provider]);
            promises[job].queued = false;
            if (promises[job].state != promise_state::pending) {
                end_job(job);
                keep(job);
                continue;
            }
            const std::size_t before = calls.size();
            ++jobs;
            run(job);
            made |= calls.size() != before;
        }
        batch_of = -1;
        if (!queues[provider].empty()) {
            busy_providers.push_back(provider);
        }
        batches += made ? 1 : 0;
        return jobs;
    }
    void run(std::uint32_t job) {
        make(job);
        settle_followers();
    }
    void make(std::uint32_t job) {
        cap& target = caps[promises[job].cap];
        if (revoked(target)) {
            reject(job, rpc_code::revoked, "");
            return;
        }
        std::int64_t total = 0;
        std::uint32_t more = 0;
        for (const argument& one : promises[job].arguments) {
            total += one.is == argument::number ? one.value : 0;
            if (one.is != argument::promise) {
                continue;
            }
            const promise& other = promises[one.at];
            if (other.state == promise_state::rejected) {
                reject(job, other.code, other.text);
                return;
            }
            if (other.state == promise_state::cancelled) {
                reject(job, rpc_code::promise_cancelled, "");
                return;
            }
            total += other.value;
            more += other.result_bytes;
        }
        lane& in = lanes[promises[job].lane];
        if (more != 0 && (!affords(target, 0, more) || !affords(in, 0, more))) {
            reject(job, rpc_code::budget_exceeded, "");
            return;
        }
        charge(target, 0, more);
        charge(in, 0, more);
        calls.push_back({target.provider, promises[job].method, target.object, total});
        switch (promises[job].method) {
        case sum:
            resolve(job, total, int_bytes);
            break;
        case fail:
            reject(job, rpc_code::provider, "broken");
            break;
        case later:
            promises[job].late = true;
            break;
        default:
            resolve(job, 0, null_bytes);
        }
    }

    // ---- settling

    void resolve(std::uint32_t at, std::int64_t value, std::uint32_t bytes) {
        promise& of = promises[at];
        lane& in = lanes[of.lane];
        if (!affords(in, 0, bytes) || (of.is_call && !affords(caps[of.cap], 0, bytes))) {
            reject(at, rpc_code::budget_exceeded, "");
            return;
        }
        charge(in, 0, bytes);
        if (of.is_call) {
            charge(caps[of.cap], 0, bytes);
        }
        of.value = value;
        of.result_bytes = bytes;
        end_job(at);
        settle(at, promise_state::resolved);
    }
    void reject(std::uint32_t at, rpc_code code, const std::string& text) {
        const std::string kept_text = text;
        promises[at].code = code;
        promises[at].text = kept_text;
        end_job(at);
        settle(at, promise_state::rejected);
    }
    void end_job(std::uint32_t at) {
        promise& of = promises[at];
        drop_edges(at);
        lane& in = lanes[of.lane];
        --in.pending;
        if (of.is_call) {
            --caps[of.cap].jobs;
            free_cap(of.cap);
        }
        in.alive = !(in.closed && in.pending == 0);
    }
    void drop_edges(std::uint32_t at) {
        const std::vector<std::uint32_t> its = promises[at].edges;
        promises[at].edges.clear();
        for (const std::uint32_t one : its) {
            edges[one].alive = false;
            keep(edges[one].needed);
        }
    }
    void settle(std::uint32_t at, promise_state state) {
        promises[at].state = state;
        promises[at].late = false;
        // The kernel's list of who waits is last come, first told.
        for (std::size_t left = edges.size(); left != 0; --left) {
            edge& one = edges[left - 1];
            if (!one.alive || one.needed != at) {
                continue;
            }
            if (!promises[one.job].queued && all_told(one)) {
                wake(one.job);
            }
        }
        keep(at);
    }
    /// Of a job that needs a promise twice, the first of its edges is told last.
    bool all_told(const edge& told) const {
        const promise& job = promises[told.job];
        for (const std::uint32_t at : job.edges) {
            if (promises[edges[at].needed].state == promise_state::pending ||
                (edges[at].needed == told.needed && &edges[at] < &told)) {
                return false;
            }
        }
        return true;
    }
    std::vector<std::uint32_t> followers;
    void wake(std::uint32_t job) {
        if (promises[job].follows >= 0) {
            followers.push_back(job);
        } else {
            to_lane(job);
        }
    }
    /// After whatever settled something.
    void settle_followers() {
        while (!followers.empty()) {
            const std::uint32_t at = followers.back();
            followers.pop_back();
            const promise& other = promises[static_cast<std::size_t>(promises[at].follows)];
            const bool is_resolved = other.state == promise_state::resolved;
            if (is_resolved && promises[at].is_call && revoked(caps[promises[at].cap])) {
                reject(at, rpc_code::revoked, "");
            } else if (is_resolved) {
                resolve(at, other.value, other.result_bytes);
            } else {
                reject(at, other.state == promise_state::rejected ? other.code
                                                                  : rpc_code::promise_cancelled,
                       other.text);
            }
        }
    }
    void keep(std::uint32_t at) {
        const promise& of = promises[at];
        if (of.state != promise_state::pending && !of.queued && !is_needed(at) &&
            std::find(kept.begin(), kept.end(), at) == kept.end()) {
            kept.push_back(at);
        }
    }
    bool waits_for(std::uint32_t from, std::uint32_t to) const {
        if (from == to) {
            return true;
        }
        if (promises[from].state != promise_state::pending) {
            return false;
        }
        return std::any_of(promises[from].edges.begin(), promises[from].edges.end(),
                           [&](std::uint32_t at) { return waits_for(edges[at].needed, to); });
    }
    void cancel(std::uint32_t at) {
        if (!promises[at].queued) {
            end_job(at);
        }
        settle(at, promise_state::cancelled);
        settle_followers();
    }
    void follow(std::uint32_t at, std::uint32_t other) {
        drop_edges(at);
        promises[at].follows = static_cast<int>(other);
        need(at, other);
        if (unresolved(at) == 0) {
            followers.push_back(at);
            settle_followers();
        }
    }
    expected may_settle(std::uint32_t at) const {
        const promise& of = promises[at];
        if (!of.alive) {
            return {false, rpc_code::unknown_promise};
        }
        if (of.state != promise_state::pending || of.follows >= 0) {
            return {false, rpc_code::promise_already_resolved};
        }
        return !of.is_call || of.late ? expected{true}
                                      : expected{false, rpc_code::invalid_argument};
    }
};

/// What the kernel calls: does what its method says, and notes it.
struct provider {
    static constexpr rpc::method methods[] = {{"sum"}, {"fail"}, {"later"}, {"put", true}};
    std::uint32_t own;
    std::vector<made_call>& calls;
    std::vector<std::uint32_t>& dropped;

    void invoke(rpc::invocation& call) noexcept {
        std::int64_t total = 0;
        for (std::uint32_t at = 0; at < call.argument_count(); ++at) {
            total += call.value_at(at).as_int();
        }
        calls.push_back({own, call.method_index(), call.object(), total});
        switch (call.method_index()) {
        case sum:
            call.reply().value_int(total);
            break;
        case fail:
            call.reject("broken");
            break;
        case later:
            call.later();
            break;
        default:
            break;
        }
    }
    void on_dropped(std::uint64_t object) noexcept {
        dropped.push_back(static_cast<std::uint32_t>(object));
    }
};

/// Both at once. `wrong` is empty while they agree.
class trial {
public:
    static constexpr rpc::rpc_limits sizes() {
        rpc::rpc_limits out;
        out.providers_max = 2;
        out.capabilities_max = 12;
        out.attenuations_max = 3;
        out.lanes_max = 3;
        out.channels_max = 1;
        out.messages_max = 1;
        out.promises_max = 20;
        out.settled_max = 6;
        out.edges_max = 16;
        out.events_max = 64;
        out.pieces[0] = {64, 64};
        out.pieces[1] = {0, 0};
        return out;
    }

    explicit trial(program from)
        : input_(from), memory_(rpc::bytes_needed(sizes())), kernel_(memory_, sizes(), secret),
          model_(sizes()) {
        for (std::uint32_t at = 0; at < 2; ++at) {
            providers_[at] = kernel_.add_provider(handlers_[at]).value;
        }
        open_lane();
    }

    std::string wrong;

    /// The whole program; false if they disagree.
    bool run() {
        for (std::uint32_t steps = 0; steps < 4000 && !input_.ended() && wrong.empty(); ++steps) {
            step();
            compare();
        }
        if (wrong.empty()) {
            end();
        }
        return wrong.empty();
    }

private:
    static constexpr std::uint64_t secret[2] = {3, 4};

    template <class Answer>
    bool agree(const char* what, const expected& wanted, const Answer& got) {
        if (wanted.given != got.given || (!got.given && wanted.why != got.why)) {
            wrong = std::string(what) + ": " + (got.given ? "given" : rpc::code_text(got.why)) +
                    " instead of " + (wanted.given ? "given" : rpc::code_text(wanted.why));
        }
        return wrong.empty() && got.given;
    }
    std::uint32_t some_cap() {
        return input_.below(static_cast<std::uint32_t>(model_.caps.size()));
    }
    std::uint32_t some_lane() {
        return input_.below(static_cast<std::uint32_t>(model_.lanes.size()));
    }
    /// One of the last sixteen: older ones are mostly forgotten.
    std::uint32_t some_promise() {
        const auto count = static_cast<std::uint32_t>(model_.promises.size());
        const std::uint32_t back = input_.below(count < 16 ? count : 16);
        return count - 1 - back;
    }
    cap some_grant(int parent, std::uint32_t provider, rpc::grant& what) {
        cap made{};
        made.provider = provider;
        made.parent = parent;
        made.object = model_.caps.size();
        const std::uint32_t shape = input_.below(256);
        made.methods = shape % 4 != 0 ? 15 : 1 + input_.below(15);
        made.read_only = (shape & 64) != 0;
        made.has_path = (shape & 128) != 0;
        made.path = made.has_path ? input_.below(4) : 0;
        made.calls_max = shape % 8 != 0 ? 1000 : 1 + input_.below(8);
        made.bytes_max = shape % 8 != 1 ? 100'000 : 1 + input_.below(200);
        granted_.clear();
        for (std::uint32_t at = 0; at < methods_count; ++at) {
            if ((made.methods >> at & 1) != 0) {
                granted_.push_back(names[at]);
            }
        }
        what.methods = granted_;
        what.read_only = made.read_only;
        what.has_path = made.has_path;
        what.path = paths[made.path];
        what.spend.calls_max = made.calls_max;
        what.spend.bytes_max = made.bytes_max;
        return made;
    }

    void step() {
        const std::uint32_t what = input_.below(32);
        if (what < 12) {
            call();
        } else if (what < 15) {
            dispatch();
        } else if (what < 17) {
            mint();
        } else if (what < 20) {
            attenuate();
        } else if (what < 23) {
            hold(what);
        } else if (what < 25) {
            what == 23 ? open_lane() : close_lane();
        } else if (what < 30) {
            promise(what);
        } else if (what == 30) {
            forget();
        } else if (input_.below(8) == 0) {
            remove_provider();
        }
    }
    void mint() {
        const std::uint32_t provider = input_.below(2);
        rpc::grant what;
        cap made = some_grant(-1, provider, what);
        const auto got = kernel_.mint(providers_[provider], made.object, what);
        if (agree("mint", model_.may_mint(provider), got)) {
            made.handle = got.value;
            model_.add_cap(made);
        }
    }
    void attenuate() {
        if (model_.caps.empty()) {
            return;
        }
        const std::uint32_t parent = some_cap();
        rpc::grant what;
        cap made = some_grant(static_cast<int>(parent), model_.caps[parent].provider, what);
        made.object = model_.caps[parent].object;
        made.depth = model_.caps[parent].depth + 1;
        const auto got = kernel_.attenuate(model_.caps[parent].handle, what);
        if (agree("attenuate", model_.may_attenuate(parent, made), got)) {
            made.handle = got.value;
            model_.add_cap(made);
        }
    }
    void hold(std::uint32_t what) {
        if (model_.caps.empty()) {
            return;
        }
        const std::uint32_t at = some_cap();
        const expected wanted{model_.held(at), rpc_code::unknown_capability};
        const rpc::capability handle = model_.caps[at].handle;
        if (what == 20) {
            if (agree("revoke", wanted, kernel_.revoke(handle))) {
                model_.revoke(at);
            }
        } else if (what == 21) {
            if (agree("retain", wanted, kernel_.retain(handle))) {
                ++model_.caps[at].handles;
            }
        } else if (agree("release", wanted, kernel_.release(handle))) {
            model_.release(at);
        }
    }
    void call() {
        if (model_.caps.empty()) {
            return mint();
        }
        const std::uint32_t target = some_cap();
        const std::uint32_t lane = some_lane();
        const std::uint32_t method = input_.below(8) < 5 ? sum : input_.below(methods_count);
        std::vector<argument> arguments(input_.below(4));
        std::byte room[256];
        rpc::writer out(room);
        out.begin_arguments();
        for (argument& one : arguments) {
            const std::uint32_t kind = input_.below(8);
            if (kind < 4 && !model_.promises.empty()) {
                one = {argument::promise, 0, some_promise()};
                out.promise(model_.promises[one.at].handle.bits);
            } else if (kind == 4) {
                one = {argument::path, 0, input_.below(4)};
                out.value_path(paths[one.at]);
            } else {
                one = {argument::number, static_cast<std::int64_t>(input_.below(256)), 0};
                out.value_int(one.value);
            }
        }
        const auto got = kernel_.call(model_.lanes[lane].handle, model_.caps[target].handle,
                                      names[method],
                                      {out.finish_arguments(), {}, 0, rpc::own_promise});
        if (agree("call", model_.may_call(lane, target, method, arguments), got)) {
            model_.call(lane, target, method, arguments, got.value);
        }
    }
    void dispatch() {
        const std::uint32_t most = input_.below(4) != 0 ? 0xFFFFFFFF : 1 + input_.below(4);
        kernel_.dispatch(most);
        model_.dispatch(most);
    }
    void open_lane() {
        lane made{};
        made.pending_max = input_.below(4) != 0 ? 100 : 1 + input_.below(4);
        made.calls_max = input_.below(4) != 0 ? 1000 : 1 + input_.below(16);
        made.bytes_max = input_.below(4) != 0 ? 100'000 : 1 + input_.below(250);
        rpc::budget spend;
        spend.calls_max = made.calls_max;
        spend.bytes_max = made.bytes_max;
        const auto got = kernel_.open_lane(spend, made.pending_max);
        const bool may = model::alive(model_.lanes) < model_.most.lanes_max;
        if (agree("open_lane", {may, rpc_code::budget_exceeded}, got)) {
            made.handle = got.value;
            model_.lanes.push_back(made);
        }
    }
    void close_lane() {
        const std::uint32_t at = some_lane();
        lane& of = model_.lanes[at];
        const bool may = of.alive && !of.closed;
        if (agree("close_lane", {may, rpc_code::unknown_lane}, kernel_.close_lane(of.handle))) {
            of.closed = true;
            of.alive = of.pending != 0;
        }
    }
    void open_promise() {
        const std::uint32_t at = some_lane();
        const lane& of = model_.lanes[at];
        expected wanted{true};
        if (!of.alive || of.closed) {
            wanted = {false, rpc_code::unknown_lane};
        } else if (of.pending == of.pending_max ||
                   (model::alive(model_.promises) == model_.most.promises_max &&
                    model_.kept.empty())) {
            wanted = {false, rpc_code::budget_exceeded};
        }
        const auto got = kernel_.open_promise(of.handle);
        if (agree("open_promise", wanted, got)) {
            model_.make_room({});
            rpc_model::promise made{};
            made.lane = at;
            made.handle = got.value;
            model_.promises.push_back(made);
            ++model_.lanes[at].pending;
        }
    }
    void promise(std::uint32_t what) {
        if (what == 25 || model_.promises.empty()) {
            return open_promise();
        }
        const std::uint32_t at = some_promise();
        const rpc::promise_id handle = model_.promises[at].handle;
        if (what == 26) {
            resolve(at, handle);
        } else if (what == 27) {
            const auto got = kernel_.reject(handle, rpc_code::domain, "because");
            if (agree("reject", model_.may_settle(at), got)) {
                model_.reject(at, rpc_code::domain, "because");
                model_.settle_followers();
            }
        } else if (what == 28) {
            const rpc_model::promise& of = model_.promises[at];
            expected wanted{of.alive && of.state == promise_state::pending,
                            rpc_code::promise_already_resolved};
            wanted.why = of.alive ? wanted.why : rpc_code::unknown_promise;
            if (agree("cancel", wanted, kernel_.cancel(handle))) {
                model_.cancel(at);
            }
        } else {
            follow(at, handle);
        }
    }
    void resolve(std::uint32_t at, rpc::promise_id handle) {
        const std::int64_t number = input_.below(256);
        std::byte room[64];
        rpc::writer out(room);
        out.begin_arguments().value_int(number);
        expected wanted = model_.may_settle(at);
        const auto got = kernel_.resolve(handle, out.finish_arguments().value.front().as_value());
        const rpc_model::promise& of = model_.promises[at];
        if (wanted.given && of.is_call && model_.revoked(model_.caps[of.cap])) {
            wanted = {false, rpc_code::revoked};
            model_.reject(at, rpc_code::revoked, "");
            model_.settle_followers();
        } else if (wanted.given) {
            model_.resolve(at, number, int_bytes);
            model_.settle_followers();
            wanted = {model_.promises[at].state == promise_state::resolved,
                      rpc_code::budget_exceeded};
        }
        agree("resolve", wanted, got);
    }
    void follow(std::uint32_t at, rpc::promise_id handle) {
        const std::uint32_t other = some_promise();
        expected wanted = model_.may_settle(at);
        if (wanted.given && !model_.promises[other].alive) {
            wanted = {false, rpc_code::unknown_promise};
        } else if (wanted.given && model_.waits_for(other, at)) {
            wanted = {false, rpc_code::pipelined_cycle};
        } else if (wanted.given && model::alive(model_.edges) == model_.most.edges_max) {
            wanted = {false, rpc_code::budget_exceeded};
        }
        if (agree("follow", wanted,
                  kernel_.follow(handle, model_.promises[other].handle))) {
            model_.follow(at, other);
        }
    }
    void forget() {
        if (model_.promises.empty()) {
            return;
        }
        const std::uint32_t at = some_promise();
        rpc_model::promise& of = model_.promises[at];
        const auto found = std::find(model_.kept.begin(), model_.kept.end(), at);
        const expected wanted{of.alive && found != model_.kept.end(),
                              of.alive ? rpc_code::invalid_argument : rpc_code::unknown_promise};
        if (agree("forget", wanted, kernel_.forget(of.handle))) {
            model_.kept.erase(found);
            of.alive = false;
        }
    }
    void remove_provider() {
        const std::uint32_t at = input_.below(2);
        const expected wanted{!model_.gone[at], rpc_code::invalid_argument};
        if (agree("remove_provider", wanted, kernel_.remove_provider(providers_[at]))) {
            model_.gone[at] = true;
            model_.some_revoked = true;
        }
    }

    // ---- what must be the same

    void same(const char* what, std::uint64_t got, std::uint64_t wanted) {
        if (got != wanted && wrong.empty()) {
            wrong = std::string(what) + ": " + std::to_string(got) + " instead of " +
                    std::to_string(wanted);
        }
    }
    void compare() {
        same("capabilities", kernel_.capabilities().in_use, model::alive(model_.caps));
        same("lanes", kernel_.lanes().in_use, model::alive(model_.lanes));
        same("promises", kernel_.promises().in_use, model::alive(model_.promises));
        same("edges", kernel_.edges().in_use, model::alive(model_.edges));
        same("round trips", kernel_.round_trips(), model_.batches);
        same("calls made", calls_.size(), model_.calls.size());
        same("calls made are those", calls_ == model_.calls, 1);
        same("drops", dropped_ == model_.dropped, 1);
        for (const lane& one : model_.lanes) {
            same("pending", kernel_.pending_of(one.handle), one.alive ? one.pending : 0);
        }
        for (const rpc_model::promise& one : model_.promises) {
            compare(one);
        }
    }
    void compare(const rpc_model::promise& one) {
        const auto held = kernel_.look(one.handle);
        same("promise is known", held.given, one.alive);
        if (!held.given || !one.alive) {
            return;
        }
        same("its state", static_cast<std::uint64_t>(held.value.state),
             static_cast<std::uint64_t>(one.state));
        if (one.state == promise_state::resolved) {
            same("its value", static_cast<std::uint64_t>(held.value.value.as_int()),
                 static_cast<std::uint64_t>(one.value));
        } else if (one.state == promise_state::rejected) {
            same("its code", static_cast<std::uint64_t>(held.value.code),
                 static_cast<std::uint64_t>(one.code));
            const std::string text = one.text.empty() ? rpc::code_text(one.code) : one.text;
            same("its text", held.value.text == text, 1);
        }
    }
    /// Everything is let go: nothing stays in any table.
    void end() {
        kernel_.dispatch();
        model_.dispatch(0xFFFFFFFF);
        for (std::uint32_t at = 0; at < model_.promises.size(); ++at) {
            if (model_.promises[at].alive && model_.promises[at].state == promise_state::pending) {
                agree("cancel at the end", {true}, kernel_.cancel(model_.promises[at].handle));
                model_.cancel(at);
            }
        }
        kernel_.dispatch();
        model_.dispatch(0xFFFFFFFF);
        for (std::uint32_t at = 0; at < model_.caps.size(); ++at) {
            while (model_.held(at)) {
                agree("release at the end", {true}, kernel_.release(model_.caps[at].handle));
                model_.release(at);
            }
        }
        for (rpc_model::promise& one : model_.promises) {
            if (one.alive) {
                agree("forget at the end", {true}, kernel_.forget(one.handle));
                one.alive = false;
            }
        }
        same("capabilities at the end", kernel_.capabilities().in_use, 0);
        same("promises at the end", kernel_.promises().in_use, 0);
        same("edges at the end", kernel_.edges().in_use, 0);
        same("pieces at the end", kernel_.pieces(0).in_use, 0);
    }

    program input_;
    std::vector<std::byte> memory_;
    rpc::kernel kernel_;
    model model_;
    std::vector<made_call> calls_;
    std::vector<std::uint32_t> dropped_;
    provider handlers_[2] = {{0, calls_, dropped_}, {1, calls_, dropped_}};
    rpc::provider_id providers_[2] = {};
    std::vector<std::string_view> granted_;
};

}  // namespace rpc_model

#endif
