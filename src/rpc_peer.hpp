// floor 7 · rpc_peer.hpp · the two ends of a connection: who answers calls, who makes them
#ifndef NETIO_RPC_PEER_HPP
#define NETIO_RPC_PEER_HPP

#include "src/rpc_kernel.hpp"
#include "src/rpc_link.hpp"

// One connection, whatever carries its envelopes:
//
//   caller.call ── request 7 ──►  link  ──► callee.take ── kernel.call ── request 7 is promise p
//      ▲                                                     │ later requests name p as promise 7
//   caller.take ◄── response 7 ── link ◄── callee.answer ◄── kernel.dispatch settles p
//
// A batch of requests is taken before any of it is dispatched, so calls that need each other's
// results run in one batch and their answers leave together. Answers come as calls are settled, not
// in the order of the requests. Neither end knows a socket, a clock or a heap.

NETIO_BEGIN

namespace rpc {

/// Spends whatever the capabilities allow.
inline constexpr budget unbounded_budget{~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0},
                                         ~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0},
                                         ~std::uint64_t{0}};

/// Calls that one connection may have under way at each end.
inline constexpr std::uint32_t connection_calls_max = 1u << 16;

struct callee_options {
    /// Calls pending or not yet answered, a power of two; further requests wait where they are. So
    /// many of the latest request ids can be named as promises; of those that were answered only
    /// while the kernel has no need of their room (rpc/unknown-promise then). A connection whose
    /// calls all wait for something that only comes by the same connection stands still: it needs
    /// more. The lane has twice as many: as many again are for what providers call in it.
    std::uint32_t calls_max = 64;
    /// What the calls of the connection may spend together, besides what their capabilities allow;
    /// with `resumes` those of all sessions, until `close`.
    budget spend = unbounded_budget;
    wire_limits wire = wire_limits::strict();
    /// A hello may come at any time and begins a session anew: for links that outlive the process
    /// at their other end. Else it may only be the first envelope. A request of the dead one that
    /// waits in front of it is taken first: close and open when the link says that it is gone.
    bool resumes = false;
};

namespace detail {

/// What became of a request: a promise of the kernel, or, below 2^32, the code it was refused with.
struct remembered_call {
    std::uint64_t request_id;
    std::uint64_t promise;
};

/// A call that waits for its answer.
struct outstanding_call {
    std::uint64_t request_id;    // 0: none
    std::uint64_t word;
    bool is_forgotten;
};

/// The most that an error with one of netio's own codes takes.
inline constexpr std::uint32_t refusal_bytes = envelope_bytes_min + 32;

constexpr bool calls_valid(std::uint32_t calls_max) noexcept {
    return calls_max != 0 && calls_max <= connection_calls_max &&
           (calls_max & (calls_max - 1)) == 0;
}

/// The request id of an envelope that may be broken; 0 if it has none.
inline std::uint64_t claimed_id(bytes frame) noexcept {
    return frame.size() >= 16 && load_little<std::uint32_t>(frame.data()) == magic_little
               ? load_little<std::uint64_t>(frame.data() + 8)
               : 0;
}

/// Does an envelope say that it is a hello? It may be broken all the same.
inline bool is_hello(bytes frame) noexcept {
    return frame.size() >= envelope_bytes_min &&
           static_cast<envelope_kind>(frame[5]) == envelope_kind::hello;
}

template <class Entry>
std::span<Entry> entries_in(std::span<std::byte> memory, std::uint32_t count) noexcept {
    const std::size_t skip = netio::detail::bytes_to_aligned(memory.data(), 8);
    if (!calls_valid(count) || memory.size() < skip + count * sizeof(Entry)) {
        return {};
    }
    return {reinterpret_cast<Entry*>(memory.data() + skip), count};
}

/// The place of a request: that of all whose ids are so many apart.
template <class Entry>
Entry& entry_for(std::span<Entry> entries, std::uint64_t request_id) noexcept {
    return entries[static_cast<std::size_t>(request_id & (entries.size() - 1))];
}

template <class Entry>
constexpr std::size_t entries_bytes(std::uint32_t count) noexcept {
    return calls_valid(count) ? count * sizeof(Entry) + 8 : 0;
}

}  // namespace detail

/// Bytes that a callee, or a caller, of so many calls needs; 0: no power of two, or more than
/// `connection_calls_max`. Compile time or run time.
constexpr std::size_t callee_bytes_needed(std::uint32_t calls_max) noexcept {
    return detail::entries_bytes<detail::remembered_call>(calls_max);
}
constexpr std::size_t caller_bytes_needed(std::uint32_t calls_max) noexcept {
    return detail::entries_bytes<detail::outstanding_call>(calls_max);
}

/// Answers the calls of one connection out of a kernel, which it may share with other callees of
/// the same thread.
///
///     taken = session.take(link);
///     kernel.dispatch();
///     answered = session.answer_settled(link);
///     link.flush();
///     // unless both are 0 there may be more: come again before you wait
///
/// A request goes to the capability that is its first argument, which the provider does not see, or
/// else to the root. A promise among its arguments is the id of an earlier request of the
/// connection, whether that was answered or not; if that one was refused, this one is, with the
/// same code. A bad envelope is answered with its code and ends the connection: `why()`.
class callee {
public:
    /// `memory` is all zero and `callee_bytes_needed(how.calls_max)` large. If it is smaller, or
    /// an option is out of range, `open` says so.
    callee(kernel& of, std::span<std::byte> memory, const callee_options& how = {}) noexcept
        : kernel_(of), how_(how),
          calls_(detail::entries_in<detail::remembered_call>(memory, how.calls_max)) {}
    callee(const callee&) = delete;
    callee& operator=(const callee&) = delete;

    /// Begins: `root` is held until `close`; `word` is what `kernel::next_reporting(owner)` says of
    /// it. invalid_argument: options or memory, or it is open; unknown_capability: `root`;
    /// budget_exceeded: no lane is left, or a field of the budget is 0.
    answer<void> open(capability root, std::uint64_t word = 0,
                      const void* owner = nullptr) noexcept;
    /// Ends: what is pending is cancelled, what was not answered is forgotten, the root is
    /// released.
    void close() noexcept;
    bool is_open() const noexcept { return is_open_; }

    /// Takes requests until none is there, `calls_max` were taken or are under way, or there is no
    /// room to refuse one; makes them calls of the kernel and runs none. How many.
    template <link L>
    std::uint32_t take(L& from, std::uint32_t requests_max = connection_calls_max) noexcept;
    /// Writes an answer for each call that is settled, as far as there is room; how many. Every
    /// one of them is kept until then. One that is larger than the link carries is rpc/transport,
    /// and a provider's own text is cut to the `method_max` bytes of `callee_options::wire`.
    template <link L>
    std::uint32_t answer_settled(L& to) noexcept;

    /// Would `take` take a request now, if one is there and its refusal finds room?
    bool can_take() const noexcept {
        return is_open_ && why_ == error::none && !hello_wanted_ && under_way_ != how_.calls_max;
    }
    /// Is there a call to be answered for which there was no room?
    bool has_settled() const noexcept { return static_cast<bool>(kernel_.next_report(lane_)); }

    /// error::none, or why nothing is taken any more. What the other side did wrong: rpc_wire,
    /// rpc_limit, rpc_capability_table; what was settled before is still answered. Or the link is
    /// too small for a refusal or for the root's descriptor: rpc_transport, rpc_limit.
    error why() const noexcept { return why_; }
    lane_id lane() const noexcept { return lane_; }
    /// Calls that wait for their turn, their provider, or room for their answer.
    std::uint32_t under_way() const noexcept { return under_way_; }
    /// Requests since `open`; how many of them were refused.
    std::uint64_t requests() const noexcept { return requests_; }
    std::uint64_t refused() const noexcept { return refused_; }

private:
    answer<void> open_lane() noexcept;
    void forget_calls() noexcept;
    /// The error to answer with, `text`, if it is not taken as it should be.
    struct refusal {
        std::uint64_t request_id = 0;
        const char* text = nullptr;
        bool waits = false;    // it ends the connection, and others are to be answered first
    };
    refusal take_one(bytes frame) noexcept;
    refusal take_request(const envelope& in) noexcept;
    refusal take_hello(const envelope& in) noexcept;
    refusal end_with(std::uint64_t request_id, error why) noexcept {
        if (has_settled()) {
            return {request_id, nullptr, true};
        }
        why_ = why;
        return {request_id, code_text(code_from(why))};
    }
    rpc_code make_call(const envelope& in, std::uint64_t& promise) noexcept;
    void remember(std::uint64_t request_id, std::uint64_t promise) noexcept;
    static promise_id promise_named(void* context, std::uint64_t number) noexcept;
    template <link L>
    bool say_hello(L& to) noexcept;
    template <link L>
    bool answer_one(L& to, const settled& what) noexcept;

    kernel& kernel_;
    callee_options how_;
    std::span<detail::remembered_call> calls_;
    lane_id lane_{};
    capability root_{};
    std::uint64_t word_ = 0;
    const void* owner_ = nullptr;
    std::uint64_t last_id_ = 0;
    std::uint64_t hello_id_ = 0;
    std::uint64_t requests_ = 0;
    std::uint64_t refused_ = 0;
    std::uint32_t under_way_ = 0;
    error why_ = error::none;
    rpc_code broken_promise_ = rpc_code::other;    // of an argument, why that request was refused
    bool is_open_ = false;
    bool is_closing_ = false;
    bool any_came_ = false;
    bool hello_wanted_ = false;
};

inline answer<void> callee::open_lane() noexcept {
    const answer<lane_id> made =
        kernel_.open_reporting_lane(word_, how_.spend, 2 * how_.calls_max, owner_);
    if (!made) {
        return made.why;
    }
    lane_ = made.value;
    return {};
}

inline answer<void> callee::open(capability root, std::uint64_t word,
                                 const void* owner) noexcept {
    if (is_open_ || calls_.empty() || !how_.wire.valid()) {
        return rpc_code::invalid_argument;
    }
    if (const answer<void> held = kernel_.retain(root); !held) {
        return held;
    }
    word_ = word;
    owner_ = owner;
    if (const answer<void> made = open_lane(); !made) {
        kernel_.release(root);
        return made;
    }
    root_ = root;
    last_id_ = requests_ = refused_ = under_way_ = 0;
    why_ = error::none;
    any_came_ = hello_wanted_ = false;
    is_open_ = true;
    return {};
}

inline void callee::close() noexcept {
    if (!is_open_ || is_closing_) {
        return;
    }
    is_closing_ = true;  // providers that hear of an end may come by here
    kernel_.drop_lane(lane_);
    lane_ = {};
    forget_calls();
    is_closing_ = is_open_ = false;
    const capability root = root_;
    kernel_.release(root);  // last: whoever hears of it may open this again
}

inline void callee::forget_calls() noexcept {
    under_way_ = 0;
    for (detail::remembered_call& one : calls_) {
        kernel_.let_go({one.promise});
        one = {};
    }
}

inline promise_id callee::promise_named(void* context, std::uint64_t number) noexcept {
    callee& of = *static_cast<callee*>(context);
    const detail::remembered_call& one = detail::entry_for(of.calls_, number);
    if (number == 0 || one.request_id != number) {
        return {};
    }
    if (one.promise >> 32 == 0) {
        of.broken_promise_ = of.broken_promise_ == rpc_code::other
                                 ? static_cast<rpc_code>(one.promise)
                                 : of.broken_promise_;
        return {};
    }
    return {one.promise};
}

/// Takes the place of a request so much older that nobody can name it any more.
inline void callee::remember(std::uint64_t request_id, std::uint64_t promise) noexcept {
    detail::remembered_call& one = detail::entry_for(calls_, request_id);
    kernel_.let_go({one.promise});  // of no promise if that request was refused
    one = {request_id, promise};
}

inline rpc_code callee::make_call(const envelope& in, std::uint64_t& promise) noexcept {
    capability target = root_;
    argument_list given = in.arguments;
    if (!given.empty() && given.front().is(argument_tag::capability)) {
        const answer<capability> named = kernel_.import(given.front().as_capability());
        if (!named) {
            return named.why;
        }
        target = named.value;
        given = {detail::argument_step::after(given.data()), given.size() - 1};
    }
    call_arguments with{given, in.payload, in.flags, promise_named, this, in.request_id, true};
    broken_promise_ = rpc_code::other;
    const answer<promise_id> made = kernel_.call(lane_, target, in.method, with);
    if (made) {
        promise = made.value.bits;
        return rpc_code::other;
    }
    return made.why == rpc_code::unknown_promise && broken_promise_ != rpc_code::other
               ? broken_promise_
               : made.why;
}

inline callee::refusal callee::take_request(const envelope& in) noexcept {
    if (in.request_id <= last_id_) {
        return end_with(in.request_id, error::rpc_wire);
    }
    last_id_ = in.request_id;
    ++requests_;
    std::uint64_t promise = 0;
    const rpc_code code = make_call(in, promise);
    if (promise != 0) {
        ++under_way_;
        remember(in.request_id, promise);
        return {};
    }
    ++refused_;
    remember(in.request_id, static_cast<std::uint64_t>(code));
    return {in.request_id, code_text(code)};
}

/// Answered by one with the same id and the root, before anything else is.
inline callee::refusal callee::take_hello(const envelope& in) noexcept {
    if (any_came_ && !how_.resumes) {
        return end_with(in.request_id, error::rpc_wire);
    }
    if (any_came_) {
        kernel_.clear_lane(lane_);
        forget_calls();
        last_id_ = 0;
    }
    hello_wanted_ = true;
    hello_id_ = in.request_id;
    return {};
}

inline callee::refusal callee::take_one(bytes frame) noexcept {
    const parsed<envelope> got = decode(frame, how_.wire);
    if (got.status != parse_status::complete) {
        return end_with(detail::claimed_id(frame), got.why);
    }
    refusal out;
    switch (got.value.kind) {
    case envelope_kind::request:
        out = take_request(got.value);
        break;
    case envelope_kind::hello:
        out = take_hello(got.value);
        break;
    default:
        out = end_with(got.value.request_id, error::rpc_wire);
    }
    any_came_ = true;
    return out;
}

template <link L>
std::uint32_t callee::take(L& from, std::uint32_t requests_max) noexcept {
    std::uint32_t taken = 0;
    if (from.record_max() < detail::refusal_bytes) {
        why_ = error::rpc_transport;
    }
    const std::uint32_t most = requests_max < how_.calls_max ? requests_max : how_.calls_max;
    ring_claim spare{};
    while (taken != most && is_open_ && why_ == error::none && !hello_wanted_) {
        const bytes frame = from.peek();
        if (frame.empty() || !(can_take() || (how_.resumes && detail::is_hello(frame)))) {
            break;
        }
        if (!spare) {  // not before it may be needed: a link told of no room says when there is
            spare = from.claim(detail::refusal_bytes);
        }
        if (!spare) {
            break;
        }
        const refusal no = take_one(frame);
        if (no.waits) {
            break;
        }
        from.release();
        ++taken;
        if (no.text != nullptr) {
            const std::size_t size = encode_error(no.request_id, no.text, spare.room);
            from.commit(spare, static_cast<std::uint32_t>(size));
            spare = {};
        }
    }
    if (spare) {
        from.abandon(spare);
    }
    return taken;
}

template <link L>
bool callee::say_hello(L& to) noexcept {
    std::string_view names[provider_methods_max];
    const answer<descriptor_fields> root = kernel_.describe(root_, names);
    std::size_t size = envelope_bytes_min;
    if (root) {
        size += sizeof(capability_id) + 4 + detail::budget_bytes + 1 + 4 + root.value.path.size();
        for (const std::string_view name : root.value.methods) {
            size += 4 + name.size();
        }
    }
    if (size > to.record_max()) {
        why_ = error::rpc_transport;
        return false;
    }
    const ring_claim room = to.claim(static_cast<std::uint32_t>(size));
    if (!room) {
        return false;
    }
    writer out(room.room);
    out.begin(envelope_kind::hello, hello_id_).payload({});
    if (root) {
        out.descriptor(root.value);
    }
    const std::size_t written = out.finish();
    if (written == 0) {  // no peer takes such a descriptor
        to.abandon(room);
        why_ = out.why();
        return false;
    }
    to.commit(room, static_cast<std::uint32_t>(written));
    hello_wanted_ = false;
    return true;
}

template <link L>
bool callee::answer_one(L& to, const settled& what) noexcept {
    const bool resolved = what.state == promise_state::resolved;
    std::string_view text;
    if (!resolved) {
        text = what.state == promise_state::cancelled
                   ? code_text(rpc_code::promise_cancelled)
                   // A caller with the same limits would end the connection over a longer one.
                   : detail::kept_text(what.text, how_.wire.method_max);
    }
    std::uint64_t size =
        resolved ? response_bytes(what.argument.size()) : envelope_bytes_min + text.size();
    const bool fits = size <= to.record_max();
    if (!fits) {
        text = code_text(rpc_code::transport);
        size = envelope_bytes_min + text.size();
    }
    const ring_claim room = to.claim(static_cast<std::uint32_t>(size));
    if (!room) {
        return false;
    }
    const std::size_t written =
        resolved && fits
            ? encode_response(what.word, what.flags & flag_redact, what.argument, room.room)
            : encode_error(what.word, text, room.room);
    to.commit(room, static_cast<std::uint32_t>(written));
    return true;
}

template <link L>
std::uint32_t callee::answer_settled(L& to) noexcept {
    std::uint32_t answered = 0;
    if (!is_open_ || (hello_wanted_ && !say_hello(to))) {
        return 0;
    }
    for (;;) {
        const answer<settled> next = kernel_.next_report(lane_);
        if (!next || !answer_one(to, next.value)) {
            return answered;
        }
        kernel_.take_report(lane_);
        --under_way_;
        ++answered;
    }
}

struct caller_options {
    /// Calls that wait for their answers, a power of two; more are refused. No more than the other
    /// side's, which lets further ones wait.
    std::uint32_t calls_max = 64;
    wire_limits wire = wire_limits::strict();
};

/// What a call goes to, and what goes with it.
struct call_options {
    /// Null: the root of the connection.
    const capability_id* target = nullptr;
    bytes payload{};
    std::uint16_t flags = 0;
    /// The caller's own; comes back with the answer.
    std::uint64_t word = 0;
    /// Claimed for the request; what it does not use is free again.
    std::uint32_t bytes_max = 1024;
};

/// What came back. Views, valid until the function that they were given to returns.
struct reply {
    std::uint64_t request_id = 0;
    std::uint64_t word = 0;
    bool resolved = false;
    rpc_code code = rpc_code::other;    ///< of one that failed; `other`: see `text`
    std::string_view text{};            ///< the code as it was spelled
    rpc::value value{};                 ///< of one that is resolved
    std::uint16_t flags = 0;
};

/// Makes calls over one connection.
///
///     const auto sum = session.call(link, "add", {}, [](rpc::writer& in) { in.value_int(1); });
///     const auto twice = session.call(link, "double", {}, [&](rpc::writer& in) {
///         in.promise(sum.value);    // of a call that nobody has answered yet
///     });
///     link.flush();
///     ...
///     session.take(link, [](const rpc::reply& got) { ... });
class caller {
public:
    /// `memory` is all zero and `caller_bytes_needed(how.calls_max)` large; else every call is
    /// refused with error::limits_invalid.
    explicit caller(std::span<std::byte> memory, const caller_options& how = {}) noexcept
        : how_(how), calls_(detail::entries_in<detail::outstanding_call>(memory, how.calls_max)) {}
    caller(const caller&) = delete;
    caller& operator=(const caller&) = delete;

    /// Sends a hello, after which everything is skipped until one with the same number comes back:
    /// it names the root. For links that may still hold answers to somebody else's calls; others
    /// may do without. If the other side refuses it, none comes: bound the wait. full: no room now,
    /// and nothing but `begin` may follow; what was in the way of answers was skipped (up to
    /// `calls_max` and one more), so that the other side can go on, and room comes, unless it
    /// waits itself (see callee_options::resumes). already_open: calls are outstanding;
    /// limits_invalid.
    template <link L>
    error begin(L& with, std::uint64_t number) noexcept;

    /// Writes a request; `fill(rpc::writer&)` adds its arguments, and nothing else. Its id, which
    /// later calls may name as a promise; or full: no room now, or `calls_max` are outstanding;
    /// too_long: more than `how.bytes_max`, or than the link carries; rpc_wire, rpc_limit: the
    /// writer's; why(): the connection is over.
    template <link L, class Fill>
    result<std::uint64_t> call(L& to, std::string_view method, const call_options& how,
                               Fill&& fill) noexcept;
    template <link L>
    result<std::uint64_t> call(L& to, std::string_view method,
                               const call_options& how = {}) noexcept {
        return call(to, method, how, [](writer&) {});
    }
    /// The answer is not wanted any more: it is dropped when it comes. False: there is no such
    /// call.
    bool forget(std::uint64_t request_id) noexcept;

    /// Hands answers that are there to `heard(const rpc::reply&)`, which may make calls. How many.
    /// It looks at no more envelopes at once than answers to `calls_max` calls and one more: a link
    /// that is written to meanwhile may hold others. An envelope that is no answer to a call ends
    /// the connection: why().
    template <link L, class Heard>
    std::uint32_t take(L& from, Heard&& heard) noexcept;
    /// The connection is over: `heard` gets rpc/transport for each call that is outstanding.
    template <class Heard>
    std::uint32_t end(Heard&& heard) noexcept;

    /// error::none, or why nothing is taken any more: rpc_wire, rpc_limit, rpc_capability_table.
    error why() const noexcept { return why_; }
    std::uint32_t outstanding() const noexcept { return outstanding_; }
    /// The root as the other side's hello named it.
    bool knows_root() const noexcept { return knows_root_; }
    const capability_id& root() const noexcept { return root_; }

private:
    detail::outstanding_call& entry_of(std::uint64_t request_id) const noexcept {
        return detail::entry_for(calls_, request_id);
    }
    /// The next id whose place is free; those of calls that take their time are left out.
    std::uint64_t free_id() const noexcept {
        std::uint64_t id = last_id_ + 1;
        while (id == 0 || entry_of(id).request_id != 0) {
            ++id;
        }
        return id;
    }
    void take_hello(const envelope& in) noexcept;
    detail::outstanding_call* answered_by(const envelope& in) noexcept;

    caller_options how_;
    std::span<detail::outstanding_call> calls_;
    capability_id root_{};
    std::uint64_t last_id_ = 0;
    std::uint64_t hello_id_ = 0;
    std::uint32_t outstanding_ = 0;
    error why_ = error::none;
    bool hello_awaited_ = false;
    bool knows_root_ = false;
};

template <link L>
error caller::begin(L& with, std::uint64_t number) noexcept {
    if (calls_.empty() || !how_.wire.valid()) {
        return error::limits_invalid;
    }
    if (outstanding_ != 0) {
        return error::already_open;
    }
    // Whoever was here before may have died with both ways full: as long as nobody takes its
    // answers, none of its requests leaves the way in either.
    for (std::size_t left = calls_.size() + 1; left != 0 && !with.peek().empty(); --left) {
        with.release();
    }
    const ring_claim room = with.claim(envelope_bytes_min);
    if (!room) {
        return with.why() != error::none ? with.why() : error::full;
    }
    writer out(room.room);
    const std::size_t size = out.begin(envelope_kind::hello, number).finish();
    with.commit(room, static_cast<std::uint32_t>(size));
    hello_id_ = number;
    hello_awaited_ = true;
    knows_root_ = false;
    last_id_ = 0;
    why_ = error::none;
    return error::none;
}

template <link L, class Fill>
result<std::uint64_t> caller::call(L& to, std::string_view method, const call_options& how,
                                   Fill&& fill) noexcept {
    if (calls_.empty() || !how_.wire.valid()) {
        return error::limits_invalid;
    }
    if (why_ != error::none || to.why() != error::none) {
        return why_ != error::none ? why_ : to.why();
    }
    if (how.bytes_max < envelope_bytes_min || how.bytes_max > to.record_max()) {
        return error::too_long;
    }
    const ring_claim room = outstanding_ != calls_.size() ? to.claim(how.bytes_max) : ring_claim{};
    if (!room) {
        return error::full;
    }
    const std::uint64_t id = free_id();
    writer out(room.room, how_.wire);
    out.begin(envelope_kind::request, id, method, how.flags);
    if (how.target != nullptr) {
        out.capability(*how.target);
    }
    fill(out);
    const std::size_t size = out.payload(how.payload).finish();
    if (size == 0) {
        to.abandon(room);
        return out.why() == error::full ? error::too_long : out.why();
    }
    to.commit(room, static_cast<std::uint32_t>(size));
    last_id_ = id;
    entry_of(id) = {id, how.word, false};
    ++outstanding_;
    return id;
}

inline bool caller::forget(std::uint64_t request_id) noexcept {
    if (calls_.empty() || request_id == 0 || entry_of(request_id).request_id != request_id) {
        return false;
    }
    entry_of(request_id).is_forgotten = true;
    return true;
}

inline void caller::take_hello(const envelope& in) noexcept {
    if (hello_awaited_ && in.request_id != hello_id_) {
        return;  // for whoever was here before
    }
    hello_awaited_ = false;
    knows_root_ = !in.capabilities.empty();
    root_ = knows_root_ ? in.capabilities.front().id() : capability_id{};
}

/// The call that an envelope answers; nullptr if there is none.
inline detail::outstanding_call* caller::answered_by(const envelope& in) noexcept {
    const bool is_answer =
        in.kind == envelope_kind::response || in.kind == envelope_kind::error;
    if (!is_answer || in.request_id == 0 || calls_.empty()) {
        return nullptr;
    }
    detail::outstanding_call& one = entry_of(in.request_id);
    return one.request_id == in.request_id ? &one : nullptr;
}

template <link L, class Heard>
std::uint32_t caller::take(L& from, Heard&& heard) noexcept {
    std::uint32_t taken = 0;
    for (std::size_t left = calls_.size() + 1; left != 0 && why_ == error::none; --left) {
        const bytes frame = from.peek();
        if (frame.empty()) {
            break;
        }
        const parsed<envelope> got = decode(frame, how_.wire);
        const envelope& in = got.value;
        if (got.status == parse_status::complete && in.kind == envelope_kind::hello) {
            take_hello(in);
        } else if (hello_awaited_) {
            // for whoever was here before, whatever it is
        } else if (got.status != parse_status::complete) {
            why_ = got.why;
        } else if (detail::outstanding_call* const one = answered_by(in); one == nullptr) {
            why_ = error::rpc_wire;
        } else {
            const detail::outstanding_call was = *one;
            *one = {};
            --outstanding_;
            taken += was.is_forgotten ? 0 : 1;
            const bool resolved = in.kind == envelope_kind::response;
            if (!was.is_forgotten) {
                heard(reply{in.request_id, was.word, resolved, code_from(in.method), in.method,
                            resolved ? in.arguments.front().as_value() : value(), in.flags});
            }
        }
        from.release();
    }
    return taken;
}

template <class Heard>
std::uint32_t caller::end(Heard&& heard) noexcept {
    why_ = why_ != error::none ? why_ : error::rpc_transport;
    std::uint32_t told = 0;
    for (detail::outstanding_call& one : calls_) {
        const detail::outstanding_call was = one;
        one = {};
        if (was.request_id != 0 && !was.is_forgotten) {
            ++told;
            heard(reply{was.request_id, was.word, false, rpc_code::transport,
                        code_text(rpc_code::transport), value(), 0});
        }
    }
    outstanding_ = 0;
    return told;
}

}  // namespace rpc

NETIO_END

#endif
