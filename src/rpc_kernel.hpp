// floor 6 · rpc_kernel.hpp · capabilities, budgets, promises: calls without I/O, clock or heap
#ifndef NETIO_RPC_KERNEL_HPP
#define NETIO_RPC_KERNEL_HPP

#include "src/rpc_limits.hpp"
#include "src/sip_hash.hpp"

// A call goes one way:
//
//   call ── checked, in the order of arp1.md B.2 ── charged ── promise + job
//     ▼                                             (a refusal writes one event and nothing else)
//   ready once every promise among its arguments is settled ── its lane's queue
//     ▼
//   dispatch: each lane in turn gives one ready job to its provider's batch, until none is left
//     ▼
//   batch of one provider = one round trip ── revoked? charged for promised arguments ── invoke
//     ▼
//   settled once: result weighed and charged, then copied ── whoever waited for it is ready
//
// Everything is an index into a table in the caller's memory. What calls upward: a provider's
// `invoke` and `on_dropped`, which may call anything here (`dispatch` and `await` do nothing inside
// of `invoke`), and `call_arguments::promise_of`, which may call nothing.

NETIO_BEGIN

namespace rpc {

/// A value, or the code of why there is none.
template <class T>
struct answer {
    T value{};
    rpc_code why = rpc_code::other;
    bool given = false;

    constexpr answer() noexcept = default;
    constexpr answer(T is) noexcept : value(is), given(true) {}
    constexpr answer(rpc_code code) noexcept : why(code) {}
    constexpr explicit operator bool() const noexcept { return given; }
};

/// Done, or the code of why not.
template <>
struct answer<void> {
    rpc_code why = rpc_code::other;
    bool given = true;

    constexpr answer() noexcept = default;
    constexpr answer(rpc_code code) noexcept : why(code), given(false) {}
    constexpr explicit operator bool() const noexcept { return given; }
};

/// Names of what a kernel holds. 0 names nothing; a name whose bearer is gone names nothing again.
struct provider_id {
    std::uint64_t bits = 0;
    constexpr bool operator==(const provider_id&) const noexcept = default;
};
struct lane_id {
    std::uint64_t bits = 0;
    constexpr bool operator==(const lane_id&) const noexcept = default;
};
struct channel_id {
    std::uint64_t bits = 0;
    constexpr bool operator==(const channel_id&) const noexcept = default;
};
struct promise_id {
    std::uint64_t bits = 0;
    constexpr bool operator==(const promise_id&) const noexcept = default;
};
/// A capability inside the process that holds the kernel. What leaves the process is its
/// `capability_id`, which nobody can guess.
struct capability {
    std::uint64_t bits = 0;
    constexpr bool operator==(const capability&) const noexcept = default;
};

/// A method of a provider. The name is not copied.
struct method {
    std::string_view name;
    bool mutating = false;          ///< refused to read-only capabilities
    bool starts_process = false;    ///< refused by tool policies that do not allow it
};

/// What a tool may be asked, for capabilities whose calls name a tool in their first argument, a
/// text.
struct tool_policy {
    std::span<const std::string_view> names{};    ///< allowed ones; empty: none
    std::uint64_t argument_bytes_max = 0;         ///< of all arguments and the payload
    bool allow_process = false;                   ///< methods that start a process
};

/// What a capability grants. Texts are copied.
struct grant {
    std::span<const std::string_view> methods{};    ///< at least one
    budget spend{};
    bool read_only = false;
    bool redact = false;
    bool has_path = false;                          ///< only paths inside `path` may be named
    std::string_view path{};
    const tool_policy* tools = nullptr;
};

/// Who puts a message into a channel: the program, or the other side.
enum class channel_end : std::uint8_t { ours, theirs };

/// What a settled promise holds. Views, valid until the kernel is called again.
struct settled {
    promise_state state = promise_state::pending;
    rpc_code code = rpc_code::other;    ///< of a rejected one
    std::string_view text{};            ///< its code as text, a provider's own one included
    rpc::value value{};                 ///< of a resolved one
    bytes argument{};                   ///< the same as an argument stands on the wire
    std::uint64_t word = 0;             ///< `call_arguments::word` of its call
    std::uint16_t flags = 0;            ///< of its call, and of what the capability asks for
    promise_id promise{};
};

/// A message of a channel, valid until the next call of `receive` or of `close_channel`.
struct message {
    std::uint64_t sequence = 0;
    argument_list arguments{};
};

/// What a call is made of besides lane, capability and method.
struct call_arguments {
    /// As decoded, or as `writer::finish_arguments` gave them: those that failed are refused
    /// (invalid_argument), never taken for none.
    result<argument_list> arguments{argument_list()};
    bytes payload{};
    std::uint16_t flags = 0;
    /// Which promise a number among the arguments is, the same each time it is asked, without a
    /// call of the kernel. A connection knows its promises by the ids of earlier requests; in a
    /// program of one's own the number is the promise's: `own_promise`. Null: promises are refused
    /// (unknown_promise), for numbers of a stranger may name anybody's.
    promise_id (*promise_of)(void* context, std::uint64_t number) noexcept = nullptr;
    void* context = nullptr;
    /// The caller's own; comes back with what the call is settled with.
    std::uint64_t word = 0;
    /// On a reporting lane: it is told of in `next_report`.
    bool reports = false;
};

/// For `call_arguments::promise_of`: the number is `promise_id::bits`.
inline promise_id own_promise(void*, std::uint64_t number) noexcept { return {number}; }

class kernel;

namespace detail {

/// What is kept of a provider's text: whole letters of UTF-8, at most so many bytes; nothing if it
/// is none.
inline std::string_view kept_text(std::string_view text, std::size_t most = 255) noexcept {
    std::size_t size = text.size() < most ? text.size() : most;
    while (size != 0 && size < text.size() &&
           (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) {
        --size;
    }
    const std::string_view kept = text.substr(0, size);
    return utf8_valid(kept) ? kept : std::string_view{};
}

}  // namespace detail

/// A call as its provider sees it, while `invoke` runs.
class invocation {
public:
    invocation(const invocation&) = delete;
    invocation& operator=(const invocation&) = delete;

    /// Which of the provider's methods, by its place among them.
    std::uint32_t method_index() const noexcept { return job_.method; }
    std::uint64_t object() const noexcept { return object_; }
    lane_id lane() const noexcept;
    bool redact() const noexcept { return (job_.flags & flag_redact) != 0; }
    std::uint32_t argument_count() const noexcept { return job_.arguments; }
    /// Argument `at` as it was given; null past the last. In order each one is a step; going back
    /// starts anew.
    argument argument_at(std::uint32_t at) noexcept {
        static constexpr std::byte null_argument[] = {std::byte{0}, std::byte{0}};
        if (at >= job_.arguments) {
            return argument(null_argument);
        }
        seek(at);
        return argument(place_);
    }
    /// Its value; of a promise, what it was resolved with. Null if it is a capability, or `at` is
    /// past the last argument.
    value value_at(std::uint32_t at) noexcept;
    bytes payload() const noexcept { return payload_; }

    /// Where the result goes: one value. Without one it is null.
    writer& reply() noexcept {
        if (!replied_) {
            replied_ = true;
            reply_.begin_arguments();
        }
        return reply_;
    }
    /// The call has failed. `code` is the provider's own and is copied, at most 255 bytes of it;
    /// what is no UTF-8 is left out.
    void reject(std::string_view code) noexcept {
        failed_ = true;
        failure_bytes_ = static_cast<std::uint32_t>(detail::kept_text(code).size());
        if (failure_bytes_ != 0) {
            std::memcpy(failure_, code.data(), failure_bytes_);
        }
    }
    /// The result comes later, by `kernel::resolve` or `kernel::reject` of this promise, from
    /// outside of `invoke`; unless the call is rejected here.
    promise_id later() noexcept;
    kernel& owner() noexcept { return owner_; }

private:
    friend class kernel;
    invocation(kernel& owner, const detail::promise_entry& job, std::uint64_t object, bytes held,
               writer& reply) noexcept
        : owner_(owner), job_(job), object_(object), payload_(held.last(job.payload_bytes)),
          first_(held.data()), place_(held.data()), edge_(job.first_edge), reply_(reply) {}

    void seek(std::uint32_t at) noexcept;

    kernel& owner_;
    const detail::promise_entry& job_;
    std::uint64_t object_;
    bytes payload_;
    const std::byte* first_;
    const std::byte* place_;
    std::uint32_t at_ = 0;
    std::uint32_t edge_;
    writer& reply_;
    std::uint32_t failure_bytes_ = 0;
    char failure_[255];    // as many of them are written as are used
    bool replied_ = false;
    bool failed_ = false;
    bool late_ = false;
};

namespace detail {

/// `methods`, an array of rpc::method, and what is called of a provider.
template <class P>
concept provider_type = requires(P& of, invocation& call) {
    { std::span<const method>(P::methods) } noexcept;
    { of.invoke(call) } noexcept;
};
template <class P>
concept names_drops = requires { &P::on_dropped; };
template <class P>
concept hears_drops = requires(P& of, std::uint64_t object) {
    { of.on_dropped(object) } noexcept;
};

}  // namespace detail

/// The tables, and all that is done with them. One thread; one a thread needs no lock.
class kernel {
public:
    /// `memory` is all zero and `bytes_needed(sizes)` large, at any address. `secret` is random:
    /// whoever knows it can forge capabilities. If the memory is too small or a size is out of
    /// range, `why` says so and every table is empty.
    kernel(std::span<std::byte> memory, const rpc_limits& sizes,
           const std::uint64_t (&secret)[2]) noexcept
        : layout_(wrong_field(sizes) == nullptr && memory.size() >= rpc::bytes_needed(sizes)
                      ? detail::kernel_layout::of(sizes)
                      : detail::kernel_layout{}),
          memory_(memory.data() + netio::detail::bytes_to_aligned(memory.data(), 64)),
          reply_({memory_ + layout_.scratch, layout_.scratch_bytes}) {
        secret_[0] = secret[0];
        secret_[1] = secret[1];
        if (layout_.total == 0) {
            why_ = wrong_field(sizes) != nullptr ? error::limits_invalid : error::memory_too_small;
            return;
        }
        sizes_ = sizes;
        attach();
    }
    kernel(const kernel&) = delete;
    kernel& operator=(const kernel&) = delete;

    /// error::none, limits_invalid (`wrong_field` names the field) or memory_too_small.
    error why() const noexcept { return why_; }
    /// The time that events are recorded with, in whatever unit.
    void set_tick(std::uint64_t tick) noexcept { log_.set_tick(tick); }

    // ---- providers

    /// `object` stays where it is until the provider is removed. `methods` is a static array of the
    /// class. invalid_argument: no method or more than 64; budget_exceeded: the table is full.
    template <detail::provider_type P>
    answer<provider_id> add_provider(P& object) noexcept {
        static_assert(!detail::names_drops<P> || detail::hears_drops<P>,
                      "netio: a provider's on_dropped takes a std::uint64_t and is noexcept");
        void (*drop)(void*, std::uint64_t) noexcept = nullptr;
        if constexpr (detail::hears_drops<P>) {
            drop = [](void* of, std::uint64_t which) noexcept {
                static_cast<P*>(of)->on_dropped(which);
            };
        }
        return add_provider(std::span<const method>(P::methods), &object,
                            [](void* of, void* call) noexcept {
                                static_cast<P*>(of)->invoke(*static_cast<invocation*>(call));
                            },
                            drop);
    }
    /// Its capabilities count as revoked from now on, its pending calls end so with the next
    /// dispatch, and nothing of it is called again. invalid_argument: there is none.
    answer<void> remove_provider(provider_id which) noexcept;
    /// What a batch of it takes: calls whose capability or lane does not allow as much end with
    /// rpc/timeout, without being made. The kernel has no clock of its own.
    answer<void> set_latency(provider_id which, std::uint64_t ms_a_batch) noexcept;

    // ---- capabilities

    /// A new capability for an object of a provider, held once. invalid_argument: no such provider,
    /// no methods, a path with an empty component; method_not_granted: a method it does not have;
    /// budget_exceeded: a field of the budget is 0, or a table is full.
    answer<capability> mint(provider_id of, std::uint64_t object, const grant& what) noexcept;
    /// A narrower one of the same object, held once; `what` is all it grants. Its calls are charged
    /// to all above it as well. unknown_capability, revoked; escalation: wider in anything.
    answer<capability> attenuate(capability parent, const grant& what) noexcept;
    /// Ends it and all that were attenuated from it: no call is made any more, and those that are
    /// pending, waiting for a promise or for their provider end with the next dispatch. Without
    /// recursion. unknown_capability.
    answer<void> revoke(capability which) noexcept;
    /// One more, or one less, who holds it. With the last its name names nothing any more; those
    /// attenuated from it live on. Once nobody holds what was minted or anything attenuated from
    /// it, and no call of them is pending, its provider hears of it (`on_dropped`, never inside of
    /// an `invoke`): nothing of that minting reaches the object again.
    answer<void> retain(capability which) noexcept;
    answer<void> release(capability which) noexcept;
    /// What may leave the process. All zero if it is unknown.
    capability_id id_of(capability which) const noexcept;
    /// What a descriptor says of it, its methods into `names`, in the order of the wire. Views of
    /// what the kernel holds. unknown_capability, revoked.
    answer<descriptor_fields> describe(
        capability which, std::string_view (&names)[provider_methods_max]) const noexcept;
    /// Who has this id: no reference, nothing granted. unknown_capability: forged, of another
    /// kernel, or gone.
    answer<capability> import(const capability_id& id) const noexcept;

    // ---- lanes

    /// A queue of calls with a budget of its own, of which at most `calls_max` may be pending at
    /// once. budget_exceeded: a zero, or the table is full.
    answer<lane_id> open_lane(const budget& spend = {}, std::uint32_t calls_max = 256) noexcept;
    /// The same for a connection: calls that ask for it (`call_arguments::reports`), once settled,
    /// wait in `next_report` and are not forgotten before; until they are taken they count as
    /// pending. `word` says whose it is among the lanes of an owner.
    answer<lane_id> open_reporting_lane(std::uint64_t word, const budget& spend = {},
                                        std::uint32_t calls_max = 256,
                                        const void* owner = nullptr) noexcept;
    /// A smaller budget. escalation: not smaller in everything; budget_exceeded: a zero.
    answer<void> narrow_lane(lane_id which, const budget& spend) noexcept;
    /// Refuses calls from now on; those that are pending go on. unknown_lane.
    answer<void> close_lane(lane_id which) noexcept;
    std::uint32_t pending_of(lane_id which) const noexcept;
    /// Closes it, or goes on from there: what is pending is cancelled, what was not reported is
    /// forgotten, each as soon as no other lane's call needs it. A call that is being made just now
    /// is made, and heard of by nobody.
    answer<void> drop_lane(lane_id which) noexcept;
    /// The same for one that stays open, with what it has spent.
    answer<void> clear_lane(lane_id which) noexcept;
    /// The oldest settled call of a reporting lane that was not taken yet. unknown_lane;
    /// unresolvable_promise: there is none.
    answer<settled> next_report(lane_id of) const noexcept;
    /// Takes it: from now on it is kept, or forgotten, as any settled promise. False: none.
    bool take_report(lane_id of) noexcept;
    /// A lane of this owner that has reports, and its word; each lane once, then it comes again
    /// when it has new ones: so take all that it has, or come back yourself. unknown_lane: none
    /// has.
    struct reporting_lane {
        lane_id lane{};
        std::uint64_t word = 0;
    };
    answer<reporting_lane> next_reporting(const void* owner = nullptr) noexcept;
    /// The same one, which stays where it is.
    answer<reporting_lane> peek_reporting(const void* owner = nullptr) noexcept;

    // ---- calls

    /// Checks in this order, the first that fails is the code: unknown_lane; unknown_capability;
    /// unknown_promise, promise_cancelled (an argument); revoked; method_not_granted; read_only;
    /// path_not_granted; tool_policy; budget_exceeded of the capability and all above it, then of
    /// the lane; then that every table has room, for which the oldest settled promises that nobody
    /// needs are forgotten. A refusal writes an event and nothing else. What is given is copied.
    answer<promise_id> call(lane_id lane, capability target, std::string_view method,
                            const call_arguments& with = {}) noexcept;
    /// Runs what is ready, batch by batch, until nothing is or `jobs_max` had their turn; how many
    /// had. Lanes take turns within a batch. 0 inside of `invoke`.
    std::uint32_t dispatch(std::uint32_t jobs_max = 0xFFFFFFFF) noexcept;

    // ---- promises

    /// A promise that somebody outside will settle. unknown_lane; budget_exceeded: the table is
    /// full.
    answer<promise_id> open_promise(lane_id lane) noexcept;
    /// Settles one that is open, or whose provider said `later`, with the one value that `with` is.
    /// unknown_promise; promise_already_resolved; invalid_argument: a call that was not made yet;
    /// budget_exceeded: too large, or revoked: then the promise is rejected so.
    answer<void> resolve(promise_id which, const value& with) noexcept;
    /// It is settled as `other` is, once that is. pipelined_cycle: `other` waits for it.
    answer<void> follow(promise_id which, promise_id other) noexcept;
    answer<void> reject(promise_id which, rpc_code code, std::string_view text = {}) noexcept;
    /// Only while it is pending, else promise_already_resolved. A call that was not yet made is
    /// not made. invalid_argument: the call that is being made just now.
    answer<void> cancel(promise_id which) noexcept;
    /// What it holds; `state` is pending while it does not. unknown_promise.
    answer<settled> look(promise_id which) const noexcept;
    /// Dispatches, batch by batch, until it is settled. unresolvable_promise: nothing that is left
    /// to do can; invalid_argument: inside of `invoke`.
    answer<settled> await(promise_id which) noexcept;
    /// Frees a settled promise. unknown_promise; invalid_argument: it is pending, or needed.
    answer<void> forget(promise_id which) noexcept;
    /// Nobody will ask for it any more: it is freed as soon as it is settled, reported, and needed
    /// by no call. unknown_promise.
    answer<void> let_go(promise_id which) noexcept;

    // ---- channels

    /// Two queues of messages, one each way that `direction` has, of at most `messages_max` each.
    /// invalid_argument: 0 or more than 4,096; budget_exceeded: the table is full.
    answer<channel_id> open_channel(channel_direction direction,
                                    std::uint32_t messages_max = 4096) noexcept;
    /// Arguments without promises, copied. `from` is who sends. unknown_channel; invalid_argument:
    /// not that way, or a promise; budget_exceeded: full. The sequence number, from 1.
    answer<std::uint64_t> send(channel_id to, channel_end from,
                               const result<argument_list>& what) noexcept;
    /// The oldest message for `to`. invalid_argument: not that way; unresolvable_promise: none is
    /// there.
    answer<message> receive(channel_id from, channel_end to) noexcept;
    /// Drops what waits in it.
    answer<void> close_channel(channel_id which) noexcept;

    // ---- what is seen

    const event_log& log() const noexcept { return log_; }
    /// Batches in all in which a call was made: each is what a round trip to its provider would be.
    std::uint64_t round_trips() const noexcept {
        return log_.count(event_kind::batch_dispatched);
    }
    pool_stats providers() const noexcept { return provider_slots_.stats("rpc providers"); }
    pool_stats capabilities() const noexcept { return capability_slots_.stats("rpc capabilities"); }
    pool_stats lanes() const noexcept { return lane_slots_.stats("rpc lanes"); }
    pool_stats channels() const noexcept { return channel_slots_.stats("rpc channels"); }
    pool_stats messages() const noexcept { return message_slots_.stats("rpc messages"); }
    pool_stats promises() const noexcept { return promise_slots_.stats("rpc promises"); }
    pool_stats edges() const noexcept { return edge_slots_.stats("rpc edges"); }
    std::uint32_t piece_class_count() const noexcept { return store_.class_count(); }
    pool_stats pieces(std::uint32_t size) const noexcept { return store_.stats(size); }

private:
    friend class invocation;

    using promise_kind = detail::promise_kind;

    template <class Entry>
    Entry* attach(slab& of, std::size_t at, std::uint32_t count) noexcept {
        of.attach(memory_ + at, sizeof(Entry), count);
        return reinterpret_cast<Entry*>(memory_ + at);
    }
    void attach() noexcept;

    template <class Entry>
    static std::uint64_t name_of(const Entry* entries, std::uint32_t index) noexcept {
        return std::uint64_t{entries[index].slot.generation} << 32 | index;
    }
    static std::uint32_t find(const slab& of, std::uint64_t bits) noexcept {
        const auto index = static_cast<std::uint32_t>(bits);
        return of.live(index, static_cast<std::uint32_t>(bits >> 32)) ? index : none_index;
    }
    /// A slot of which nothing but the generation is left of its last user.
    template <class Entry>
    static std::uint32_t take(slab& of, Entry* entries) noexcept {
        const std::uint32_t index = of.take();
        if (index != none_index) {
            const slot_header kept = entries[index].slot;
            entries[index] = Entry{};
            entries[index].slot = kept;
        }
        return index;
    }
    /// For a link_queue of entries: through their slots' own word, or through another one where
    /// that is in use.
    template <class Entry>
    static auto next_in(Entry* entries) noexcept {
        return [entries](std::uint32_t index) -> std::uint32_t& {
            return entries[index].slot.next;
        };
    }
    template <class Entry>
    static auto next_busy_in(Entry* entries) noexcept {
        return [entries](std::uint32_t index) -> std::uint32_t& {
            return entries[index].next_busy;
        };
    }
    static auto next_report_in(detail::promise_entry* entries) noexcept {
        return [entries](std::uint32_t index) -> std::uint32_t& { return entries[index].next; };
    }
    static auto next_reporting_in(detail::lane_entry* entries) noexcept {
        return [entries](std::uint32_t index) -> std::uint32_t& {
            return entries[index].next_reporting;
        };
    }
    static bool has_room(const slab& of, std::uint32_t count = 1) noexcept {
        return of.capacity() - of.in_use() >= count;
    }

    // ---- providers

    answer<provider_id> add_provider(std::span<const method> methods, void* object,
                                     void (*invoke)(void*, void*) noexcept,
                                     void (*drop)(void*, std::uint64_t) noexcept) noexcept;
    std::span<const method> methods_of(const detail::provider_entry& of) const noexcept {
        return {static_cast<const method*>(of.methods), of.methods_count};
    }
    void free_provider_if_done(std::uint32_t index) noexcept;

    // ---- capabilities

    struct named_methods {
        std::uint64_t bits = 0;
        bool all_known = true;
    };
    named_methods bits_of(std::uint32_t provider, std::span<const std::string_view> names)
        const noexcept;
    answer<capability> make(std::uint32_t provider, std::uint64_t object, std::uint32_t parent,
                            std::uint64_t methods, const grant& what) noexcept;
    bool keep_texts(detail::capability_entry& of, const grant& what) noexcept;
    bytes texts_of(const detail::capability_entry& of) const noexcept {
        return of.texts != 0 ? bytes{store_.data(of.texts - 1), of.texts_bytes} : bytes{};
    }
    std::string_view path_of(const detail::capability_entry& of) const noexcept {
        return detail::read_text(texts_of(of).data());
    }
    bool wider(const detail::capability_entry& parent, const grant& what) const noexcept;
    bool tools_wider(const detail::capability_entry& parent, const tool_policy* tools)
        const noexcept;
    /// Its index if it is held; revoked ones are.
    std::uint32_t held(capability which) const noexcept {
        const std::uint32_t index = find(capability_slots_, which.bits);
        return index != none_index && capabilities_[index].handles != 0 ? index : none_index;
    }
    bool is_revoked(const detail::capability_entry& of) const noexcept {
        return of.revoked || providers_[of.provider].is_gone;
    }
    void free_capability_if_done(std::uint32_t index) noexcept;
    void unlink_child(const detail::capability_entry& child) noexcept;
    bool affords(const detail::capability_entry& of, std::uint64_t calls, const weight& more)
        const noexcept;
    void charge(detail::capability_entry& of, std::uint64_t calls, const weight& more) noexcept;

    // ---- calls

    struct checked_call {
        std::uint32_t lane = none_index;
        std::uint32_t capability = none_index;
        std::uint32_t method = none_index;
        std::uint32_t promises = 0;
        std::uint32_t argument_bytes = 0;
        weight load;                          // arguments and payload
        rpc_code promise_wrong = rpc_code::other;
        bool path_outside = false;
    };
    /// What the walk over the arguments looks for.
    struct argument_watch {
        const kernel& of;
        const call_arguments& with;
        checked_call& out;
        std::string_view scope;
        bool has_scope;

        void path(std::string_view text) const noexcept {
            out.path_outside |= has_scope && !path_inside(scope, text);
        }
        void promise(std::uint64_t number) const noexcept;
    };
    std::uint32_t promise_index(const call_arguments& with, std::uint64_t number) const noexcept {
        return with.promise_of != nullptr
                   ? find(promise_slots_, with.promise_of(with.context, number).bits)
                   : none_index;
    }
    std::uint32_t method_named(std::uint32_t provider, std::string_view name) const noexcept;
    answer<void> check(lane_id lane, capability target, std::string_view method,
                       const call_arguments& with, checked_call& out) const noexcept;
    answer<void> check_grants(const detail::capability_entry& target, std::string_view name,
                              const call_arguments& with, checked_call& out) const noexcept;
    answer<void> check_tools(const detail::capability_entry& target, const method& asked,
                             const call_arguments& with, const weight& load) const noexcept;
    answer<void> check_room(const checked_call& what) const noexcept;
    std::uint32_t queue(checked_call& what, std::uint32_t piece,
                        const call_arguments& with) noexcept;
    void join_lane(std::uint32_t index) noexcept;
    void leave_lane(const detail::promise_entry& of) noexcept;
    void end_all_in_lane(std::uint32_t at) noexcept;
    bool has_place(const detail::lane_entry& of) const noexcept {
        return of.pending < of.calls_max && of.unreported < of.calls_max;
    }
    answer<settled> what_of(std::uint32_t index) const noexcept;
    void need(std::uint32_t job, std::uint32_t needed, std::uint32_t& last) noexcept;
    void drop_edges(detail::promise_entry& of) noexcept;
    void unlink_waiter(const detail::edge_entry& edge) noexcept;
    void count_refused(const checked_call& what) noexcept;
    std::uint32_t take_piece(std::size_t bytes_wanted) noexcept {
        const std::uint32_t piece = store_.take(bytes_wanted);
        return NETIO_LIKELY(piece != none_index) ? piece : take_piece_of_settled(bytes_wanted);
    }
    std::uint32_t take_piece_of_settled(std::size_t bytes_wanted) noexcept;
    bool is_place_for(const detail::promise_entry& of, std::size_t bytes_wanted) const noexcept;
    void mark_arguments(const call_arguments& with, std::uint32_t count) noexcept;
    std::uint32_t oldest_unmarked(std::size_t bytes_wanted) const noexcept;
    bool is_lent(const detail::promise_entry& of) const noexcept;
    bool room_for_promise() noexcept;
    void tell_drops() noexcept {
        if (NETIO_UNLIKELY(!drops_.empty())) {
            tell_waiting_drops();
        }
    }
    void tell_waiting_drops() noexcept;

    // ---- dispatch

    void make_ready(std::uint32_t job) noexcept;
    std::uint32_t step(std::uint32_t jobs_max) noexcept;
    bool draw(detail::provider_entry& provider) noexcept;
    void end_revoked() noexcept;
    void push_to_lane(std::uint32_t job) noexcept;
    void push_to_provider(std::uint32_t job) noexcept;
    template <class Entry>
    static void push_busy(detail::link_queue& to, Entry* entries, std::uint32_t index) noexcept {
        entries[index].is_busy = true;
        to.push(index, next_busy_in(entries));
    }
    template <class Entry>
    static std::uint32_t pop_busy(detail::link_queue& from, Entry* entries) noexcept {
        const std::uint32_t index = from.pop(next_busy_in(entries));
        entries[index].is_busy = false;
        return index;
    }
    void push_job(detail::link_queue& to, std::uint32_t job) noexcept {
        promises_[job].is_queued = true;
        to.push(job, next_in(promises_));
    }
    std::uint32_t pop_job(detail::link_queue& from) noexcept {
        const std::uint32_t job = from.pop(next_in(promises_));
        promises_[job].is_queued = false;
        return job;
    }
    void credit_lanes(std::uint32_t jobs_max) noexcept;
    std::uint32_t run_batch(std::uint32_t index, std::uint32_t jobs_max) noexcept;
    bool run(std::uint32_t job) noexcept;
    answer<void> check_again(const detail::promise_entry& of, bytes& text) noexcept;
    answer<void> substitute(const detail::promise_entry& of, bytes& text) noexcept;
    bool paths_inside(const detail::promise_entry& of, std::string_view scope) noexcept;
    void finish(std::uint32_t job, const invocation& made) noexcept;

    // ---- settling

    promise_state state_of(std::uint32_t index) const noexcept {
        return promises_[index].state;
    }
    bytes kept_bytes(const detail::promise_entry& of) const noexcept {
        return of.piece != 0 ? bytes{store_.data(of.piece - 1), of.bytes_count} : bytes{};
    }
    /// What a promise was resolved with: its piece is an argument, a value behind its kind.
    value value_of(std::uint32_t index) const noexcept {
        NETIO_ASSERT(state_of(index) == promise_state::resolved);
        return value(store_.data(promises_[index].piece - 1) + 1);
    }
    answer<void> may_settle(promise_id which, std::uint32_t& index) const noexcept;
    bool settle_result(std::uint32_t index, const value& with) noexcept;
    answer<void> settle_from(std::uint32_t index, const value& with) noexcept;
    void settle_rejected(std::uint32_t index, rpc_code code, bytes text,
                         bool was_made = true) noexcept;
    void settle(std::uint32_t index, promise_state state) noexcept;
    void settle_followers() noexcept {
        if (NETIO_UNLIKELY(first_follower_ != 0)) {
            settle_all_followers();
        }
    }
    void settle_all_followers() noexcept;
    /// What every settling from outside of a dispatch brings with it.
    void settle_rest() noexcept {
        settle_followers();
        tell_drops();
    }
    void end_job(std::uint32_t index, bool was_made) noexcept;
    void end_cancelled(std::uint32_t job) noexcept;
    void cancel_pending(std::uint32_t index) noexcept;
    void pop_report(detail::lane_entry& of) noexcept;
    bool reaches(std::uint32_t from, std::uint32_t to) noexcept;
    void keep_if_settled(std::uint32_t index) noexcept;
    void unkeep(detail::promise_entry& of) noexcept;
    void free_promise(std::uint32_t index) noexcept;
    void trim() noexcept;

    void give_piece(std::uint32_t& link, std::uint32_t bytes_count) noexcept {
        if (link != 0) {
            store_.give(link - 1, bytes_count);
            link = 0;
        }
    }
    static std::uint32_t link_of(std::uint32_t index) noexcept {
        return index != none_index ? index + 1 : 0;
    }
    void free_lane_if_done(std::uint32_t index) noexcept {
        const detail::lane_entry& of = lanes_[index];
        if (of.is_closed && of.pending == 0 && of.unreported == 0) {
            if (of.is_reporting) {
                stop_reporting(index);
            }
            lane_slots_.give(index);
        }
    }
    /// Out of the list of those with reports, once in a lane's life and only if nobody asked for
    /// `next_reporting` since its last report.
    void stop_reporting(std::uint32_t index) noexcept {
        detail::link_queue kept{};
        while (!reporting_lanes_.empty()) {
            const std::uint32_t at = reporting_lanes_.pop(next_reporting_in(lanes_));
            if (at != index) {
                kept.push(at, next_reporting_in(lanes_));
            }
        }
        reporting_lanes_ = kept;
    }
    static bool goes(const detail::channel_entry& of, channel_end from) noexcept;
    void free_message(std::uint32_t at) noexcept;
    void drop_delivered() noexcept;

    rpc_limits sizes_{};
    detail::kernel_layout layout_;
    std::byte* memory_;
    error why_ = error::none;
    std::uint64_t secret_[2] = {};
    std::uint64_t serial_ = 0;       // of capabilities
    event_log log_;
    slab provider_slots_, capability_slots_, lane_slots_, channel_slots_, message_slots_;
    slab promise_slots_, edge_slots_;
    detail::provider_entry* providers_ = nullptr;
    detail::capability_entry* capabilities_ = nullptr;
    detail::lane_entry* lanes_ = nullptr;
    detail::channel_entry* channels_ = nullptr;
    detail::message_entry* messages_ = nullptr;
    detail::promise_entry* promises_ = nullptr;
    detail::edge_entry* edges_ = nullptr;
    detail::piece_store store_;
    writer reply_;
    detail::link_queue busy_lanes_{};                         // with ready jobs
    detail::link_queue busy_providers_{};                     // with a queue
    detail::link_queue reporting_lanes_{};                    // with a report
    std::uint32_t first_follower_ = 0;                        // whose promise is settled
    std::uint32_t first_kept_ = 0, last_kept_ = 0;            // settled, oldest first
    std::uint32_t kept_count_ = 0;
    std::uint64_t kept_bytes_ = 0;
    std::uint64_t batch_ = 0;
    std::uint64_t search_ = 0;
    std::uint32_t batch_provider_ = none_index;   // whose batch runs
    std::uint32_t running_ = none_index;          // the job whose provider is in `invoke`
    std::uint32_t delivered_ = 0;                 // link: the message handed out last
    detail::link_queue drops_{};                  // capabilities whose provider is to hear
    const std::byte* lent_[2] = {};               // of the caller, just now
    bool tells_drops_ = false;
    bool some_revoked_ = false;                   // since the last dispatch
};

inline void kernel::attach() noexcept {
    const detail::kernel_layout& lay = layout_;
    providers_ = attach<detail::provider_entry>(provider_slots_, lay.providers,
                                                sizes_.providers_max);
    capabilities_ = attach<detail::capability_entry>(capability_slots_, lay.capabilities,
                                                     sizes_.capabilities_max);
    lanes_ = attach<detail::lane_entry>(lane_slots_, lay.lanes, sizes_.lanes_max);
    channels_ = attach<detail::channel_entry>(channel_slots_, lay.channels, sizes_.channels_max);
    messages_ = attach<detail::message_entry>(message_slots_, lay.messages, sizes_.messages_max);
    promises_ = attach<detail::promise_entry>(promise_slots_, lay.promises, sizes_.promises_max);
    edges_ = attach<detail::edge_entry>(edge_slots_, lay.edges, sizes_.edges_max);
    log_.attach(reinterpret_cast<event_record*>(memory_ + lay.events), sizes_.events_max);
    store_.attach(memory_ + lay.pieces, detail::classes_of(sizes_));
}

// ---- providers

inline answer<provider_id> kernel::add_provider(
    std::span<const method> methods, void* object, void (*invoke)(void*, void*) noexcept,
    void (*drop)(void*, std::uint64_t) noexcept) noexcept {
    if (methods.empty() || methods.size() > provider_methods_max) {
        return rpc_code::invalid_argument;
    }
    const std::uint32_t index = take(provider_slots_, providers_);
    if (index == none_index) {
        return rpc_code::budget_exceeded;
    }
    detail::provider_entry& made = providers_[index];
    made.methods = methods.data();
    made.methods_count = static_cast<std::uint32_t>(methods.size());
    made.object = object;
    made.invoke = invoke;
    made.drop = drop;
    return provider_id{name_of(providers_, index)};
}

inline answer<void> kernel::remove_provider(provider_id which) noexcept {
    const std::uint32_t index = find(provider_slots_, which.bits);
    if (index == none_index || providers_[index].is_gone) {
        return rpc_code::invalid_argument;
    }
    providers_[index].is_gone = true;
    some_revoked_ = true;
    free_provider_if_done(index);
    return {};
}

/// Queued calls hold their capability, and that its provider: so none is queued here then. That of
/// a running batch is freed behind it: another one in its slot would be taken for it.
inline void kernel::free_provider_if_done(std::uint32_t index) noexcept {
    if (index != batch_provider_ && providers_[index].is_gone &&
        providers_[index].capabilities == 0) {
        NETIO_ASSERT(providers_[index].jobs.empty());
        provider_slots_.give(index);
    }
}

inline answer<void> kernel::set_latency(provider_id which, std::uint64_t ms_a_batch) noexcept {
    const std::uint32_t index = find(provider_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::invalid_argument;
    }
    providers_[index].latency_ms = ms_a_batch;
    return {};
}

inline std::uint32_t kernel::method_named(std::uint32_t provider,
                                          std::string_view name) const noexcept {
    const std::span<const method> all = methods_of(providers_[provider]);
    for (std::uint32_t at = 0; at < all.size(); ++at) {
        if (detail::same_text(all[at].name, name)) {
            return at;
        }
    }
    return none_index;
}

// ---- capabilities

inline kernel::named_methods kernel::bits_of(
    std::uint32_t provider, std::span<const std::string_view> names) const noexcept {
    named_methods out;
    for (const std::string_view name : names) {
        const std::uint32_t at = method_named(provider, name);
        if (at == none_index) {
            out.all_known = false;
        } else {
            out.bits |= std::uint64_t{1} << at;
        }
    }
    return out;
}

inline answer<capability> kernel::mint(provider_id of, std::uint64_t object,
                                       const grant& what) noexcept {
    const std::uint32_t provider = find(provider_slots_, of.bits);
    if (provider == none_index || providers_[provider].is_gone || what.methods.empty() ||
        (what.has_path && !path_valid(what.path))) {
        return rpc_code::invalid_argument;
    }
    const named_methods methods = bits_of(provider, what.methods);
    if (!methods.all_known) {
        return rpc_code::method_not_granted;
    }
    return make(provider, object, none_index, methods.bits, what);
}

inline answer<capability> kernel::attenuate(capability parent, const grant& what) noexcept {
    const std::uint32_t above = held(parent);
    if (above == none_index) {
        return rpc_code::unknown_capability;
    }
    const detail::capability_entry& wide = capabilities_[above];
    if (is_revoked(wide)) {
        return rpc_code::revoked;
    }
    if (what.methods.empty() || (what.has_path && !path_valid(what.path))) {
        return rpc_code::invalid_argument;
    }
    const named_methods methods = bits_of(wide.provider, what.methods);
    if (!methods.all_known || (methods.bits & ~wide.methods) != 0 || wider(wide, what)) {
        return rpc_code::escalation;
    }
    if (wide.depth == sizes_.attenuations_max) {
        return rpc_code::budget_exceeded;
    }
    return make(wide.provider, wide.object, above, methods.bits, what);
}

inline bool kernel::wider(const detail::capability_entry& parent,
                          const grant& what) const noexcept {
    if ((parent.read_only && !what.read_only) || (parent.redact && !what.redact) ||
        !within(what.spend, parent.spent.most)) {
        return true;
    }
    if (parent.has_path && (!what.has_path || !path_inside(path_of(parent), what.path))) {
        return true;
    }
    return parent.has_tools && tools_wider(parent, what.tools);
}

namespace detail {

/// What is kept of a tool policy, and of a path before it: each text behind its u32 size.
struct kept_tools {
    std::uint64_t argument_bytes_max = 0;
    bool allow_process = false;
    text_list names{};

    static kept_tools of(bytes texts, bool has_path) noexcept {
        const std::byte* at = has_path ? after_text(texts.data()) : texts.data();
        return {load_little<std::uint64_t>(at), at[8] != std::byte{0},
                text_list(at + 13, load_little<std::uint32_t>(at + 9))};
    }
    bool allows(std::string_view name) const noexcept {
        for (const std::string_view one : names) {
            if (one == name) {
                return true;
            }
        }
        return false;
    }
};

inline std::byte* put_text(std::byte* to, std::string_view text) noexcept {
    store_little(to, static_cast<std::uint32_t>(text.size()));
    copy_piece(to + 4, as_bytes(text));
    return to + 4 + text.size();
}

}  // namespace detail

inline bool kernel::tools_wider(const detail::capability_entry& parent,
                                const tool_policy* tools) const noexcept {
    const auto wide = detail::kept_tools::of(texts_of(parent), parent.has_path);
    if (tools == nullptr || tools->argument_bytes_max > wide.argument_bytes_max ||
        (tools->allow_process && !wide.allow_process)) {
        return true;
    }
    for (const std::string_view name : tools->names) {
        if (!wide.allows(name)) {
            return true;
        }
    }
    return false;
}

/// False: no piece is large enough and free.
inline bool kernel::keep_texts(detail::capability_entry& of, const grant& what) noexcept {
    std::size_t size = what.has_path ? 4 + what.path.size() : 0;
    if (what.tools != nullptr) {
        size += 13;
        for (const std::string_view name : what.tools->names) {
            size += 4 + name.size();
        }
    }
    if (size == 0) {
        return true;
    }
    const std::uint32_t piece = store_.take(size);
    if (piece == none_index) {
        return false;
    }
    of.texts = piece + 1;
    of.texts_bytes = static_cast<std::uint32_t>(size);
    std::byte* to = store_.data(piece);
    if (what.has_path) {
        to = detail::put_text(to, what.path);
    }
    if (what.tools != nullptr) {
        detail::store_little(to, what.tools->argument_bytes_max);
        to[8] = std::byte{what.tools->allow_process ? std::uint8_t{1} : std::uint8_t{0}};
        detail::store_little(to + 9, static_cast<std::uint32_t>(what.tools->names.size()));
        to += 13;
        for (const std::string_view name : what.tools->names) {
            to = detail::put_text(to, name);
        }
    }
    return true;
}

/// What was checked becomes an entry, below its parent if it has one.
inline answer<capability> kernel::make(std::uint32_t provider, std::uint64_t object,
                                       std::uint32_t parent, std::uint64_t methods,
                                       const grant& what) noexcept {
    if (!what.spend.valid()) {
        return rpc_code::budget_exceeded;
    }
    const std::uint32_t index = take(capability_slots_, capabilities_);
    if (index == none_index) {
        return rpc_code::budget_exceeded;
    }
    detail::capability_entry& made = capabilities_[index];
    if (!keep_texts(made, what)) {
        capability_slots_.give(index);
        return rpc_code::budget_exceeded;
    }
    const std::uint64_t name = name_of(capabilities_, index);
    std::uint64_t above = 0;
    if (parent != none_index) {
        detail::capability_entry& top = capabilities_[parent];
        above = top.tag;
        made.parent = parent + 1;
        made.depth = static_cast<std::uint8_t>(top.depth + 1);
        made.next_sibling = top.first_child;
        if (top.first_child != 0) {
            capabilities_[top.first_child - 1].previous_sibling = index + 1;
        }
        top.first_child = index + 1;
    }
    made.tag = netio::detail::sip_hash<2, 4>({name, ++serial_, above, std::uint64_t{32} << 56},
                                             secret_);
    made.object = object;
    made.methods = methods;
    made.spent.most = what.spend;
    made.handles = 1;
    made.provider = provider;
    made.read_only = what.read_only;
    made.redact = what.redact;
    made.has_path = what.has_path;
    made.has_tools = what.tools != nullptr;
    ++providers_[provider].capabilities;
    log_.record(event_kind::capability_minted, name, name_of(providers_, provider));
    return capability{name};
}

inline answer<void> kernel::revoke(capability which) noexcept {
    const std::uint32_t top = held(which);
    if (top == none_index) {
        return rpc_code::unknown_capability;
    }
    some_revoked_ = true;
    std::uint32_t at = top;
    for (;;) {
        detail::capability_entry& one = capabilities_[at];
        if (!one.revoked) {
            one.revoked = true;
            log_.record(event_kind::capability_revoked, name_of(capabilities_, at),
                        name_of(providers_, one.provider));
        }
        if (one.first_child != 0) {
            at = one.first_child - 1;
            continue;
        }
        while (at != top && capabilities_[at].next_sibling == 0) {
            at = capabilities_[at].parent - 1;
        }
        if (at == top) {
            return {};
        }
        at = capabilities_[at].next_sibling - 1;
    }
}

inline answer<void> kernel::retain(capability which) noexcept {
    const std::uint32_t index = held(which);
    if (index == none_index) {
        return rpc_code::unknown_capability;
    }
    if (capabilities_[index].handles == 0xFFFFFFFF) {
        return rpc_code::budget_exceeded;
    }
    log_.record(event_kind::capability_retained, which.bits, ++capabilities_[index].handles);
    return {};
}

inline answer<void> kernel::release(capability which) noexcept {
    const std::uint32_t index = held(which);
    if (index == none_index) {
        return rpc_code::unknown_capability;
    }
    detail::capability_entry& one = capabilities_[index];
    log_.record(event_kind::capability_released, which.bits, --one.handles);
    if (one.handles == 0) {
        free_capability_if_done(index);
        tell_drops();
    }
    return {};
}

/// One that nobody holds, no call needs and nothing was attenuated from; and then those above it.
/// What was minted keeps its slot until its provider heard of it.
inline void kernel::free_capability_if_done(std::uint32_t index) noexcept {
    for (;;) {
        detail::capability_entry& one = capabilities_[index];
        if (one.handles != 0 || one.jobs != 0 || one.first_child != 0) {
            return;
        }
        give_piece(one.texts, one.texts_bytes);
        one.tag = 0;
        const std::uint32_t parent = one.parent;
        if (parent == 0) {
            drops_.push(index, next_in(capabilities_));
            return;
        }
        unlink_child(one);
        capability_slots_.give(index);
        --providers_[one.provider].capabilities;
        index = parent - 1;
    }
}

/// Providers hear of what nobody reaches any more. A list, not a recursion: `on_dropped` may
/// release others. Not inside of an `invoke`; the dispatch that it is in does it then.
inline void kernel::tell_waiting_drops() noexcept {
    if (tells_drops_ || running_ != none_index) {
        return;
    }
    tells_drops_ = true;
    while (!drops_.empty()) {
        const std::uint32_t index = drops_.pop(next_in(capabilities_));
        const detail::capability_entry& one = capabilities_[index];
        const std::uint64_t object = one.object;
        const detail::provider_entry& its = providers_[one.provider];
        const auto drop = its.is_gone ? nullptr : its.drop;
        void* const provider = its.object;
        log_.record(event_kind::capability_dropped, name_of(capabilities_, index), object);
        capability_slots_.give(index);
        --providers_[one.provider].capabilities;
        free_provider_if_done(one.provider);
        if (drop != nullptr) {  // last: it may call anything here
            drop(provider, object);
        }
    }
    tells_drops_ = false;
}

inline void kernel::unlink_child(const detail::capability_entry& child) noexcept {
    if (child.next_sibling != 0) {
        capabilities_[child.next_sibling - 1].previous_sibling = child.previous_sibling;
    }
    if (child.previous_sibling != 0) {
        capabilities_[child.previous_sibling - 1].next_sibling = child.next_sibling;
    } else if (child.parent != 0) {
        capabilities_[child.parent - 1].first_child = child.next_sibling;
    }
}

inline capability_id kernel::id_of(capability which) const noexcept {
    capability_id out{};
    const std::uint32_t index = held(which);
    if (index != none_index) {
        detail::store_little(out.octets, which.bits);
        detail::store_little(out.octets + 8, capabilities_[index].tag);
    }
    return out;
}

inline answer<descriptor_fields> kernel::describe(
    capability which, std::string_view (&names)[provider_methods_max]) const noexcept {
    const std::uint32_t index = held(which);
    if (index == none_index) {
        return rpc_code::unknown_capability;
    }
    const detail::capability_entry& of = capabilities_[index];
    if (is_revoked(of)) {
        return rpc_code::revoked;
    }
    const std::span<const method> all = methods_of(providers_[of.provider]);
    std::size_t count = 0;
    for (std::size_t at = 0; at < all.size(); ++at) {
        if ((of.methods >> at & 1) == 0) {
            continue;
        }
        std::size_t place = count++;
        for (; place != 0 && detail::text_before(all[at].name, names[place - 1]); --place) {
            names[place] = names[place - 1];
        }
        names[place] = all[at].name;
    }
    descriptor_fields out;
    out.id = id_of(which);
    out.methods = {names, count};
    out.spend = of.spent.most;
    out.read_only = of.read_only;
    out.redact = of.redact;
    out.has_path = of.has_path;
    out.path = of.has_path ? path_of(of) : std::string_view{};
    return out;
}

inline answer<capability> kernel::import(const capability_id& id) const noexcept {
    const capability which{detail::load_little<std::uint64_t>(id.octets)};
    const std::uint32_t index = held(which);
    if (index == none_index ||
        capabilities_[index].tag != detail::load_little<std::uint64_t>(id.octets + 8)) {
        return rpc_code::unknown_capability;
    }
    return which;
}

/// Of all that a call is charged to: the capability and those above it.
inline bool kernel::affords(const detail::capability_entry& of, std::uint64_t calls,
                            const weight& more) const noexcept {
    const detail::capability_entry* at = &of;
    while (at->spent.affords(calls, more)) {
        if (at->parent == 0) {
            return true;
        }
        at = &capabilities_[at->parent - 1];
    }
    return false;
}

inline void kernel::charge(detail::capability_entry& of, std::uint64_t calls,
                           const weight& more) noexcept {
    of.spent.charge(calls, more);
    for (std::uint32_t link = of.parent; link != 0; link = capabilities_[link - 1].parent) {
        capabilities_[link - 1].spent.charge(calls, more);
    }
}

// ---- lanes

inline answer<lane_id> kernel::open_lane(const budget& spend, std::uint32_t calls_max) noexcept {
    if (!spend.valid() || calls_max == 0) {
        return rpc_code::budget_exceeded;
    }
    const std::uint32_t index = take(lane_slots_, lanes_);
    if (index == none_index) {
        return rpc_code::budget_exceeded;
    }
    lanes_[index].spent.most = spend;
    lanes_[index].calls_max = calls_max;
    const lane_id made{name_of(lanes_, index)};
    log_.record(event_kind::lane_created, made.bits, calls_max);
    return made;
}

inline answer<lane_id> kernel::open_reporting_lane(std::uint64_t word, const budget& spend,
                                                   std::uint32_t calls_max,
                                                   const void* owner) noexcept {
    const answer<lane_id> made = open_lane(spend, calls_max);
    if (made) {
        detail::lane_entry& lane = lanes_[static_cast<std::uint32_t>(made.value.bits)];
        lane.word = word;
        lane.owner = owner;
        lane.reports_calls = true;
    }
    return made;
}

inline answer<void> kernel::narrow_lane(lane_id which, const budget& spend) noexcept {
    const std::uint32_t index = find(lane_slots_, which.bits);
    if (index == none_index || lanes_[index].is_closed) {
        return rpc_code::unknown_lane;
    }
    if (!spend.valid()) {
        return rpc_code::budget_exceeded;
    }
    detail::account& spent = lanes_[index].spent;
    if (!within(spend, spent.most)) {
        return rpc_code::escalation;
    }
    spent.most = spend;
    // What is spent already is never more than there is to spend.
    spent.calls = spent.calls < spend.calls_max ? spent.calls : spend.calls_max;
    spent.bytes = spent.bytes < spend.bytes_max ? spent.bytes : spend.bytes_max;
    return {};
}

inline answer<void> kernel::close_lane(lane_id which) noexcept {
    const std::uint32_t index = find(lane_slots_, which.bits);
    if (index == none_index || lanes_[index].is_closed) {
        return rpc_code::unknown_lane;
    }
    lanes_[index].is_closed = true;
    log_.record(event_kind::lane_destroyed, which.bits, lanes_[index].completed);
    free_lane_if_done(index);
    return {};
}

/// A pending promise is one of its lane's, until it ends or its turn in a queue has come.
inline void kernel::join_lane(std::uint32_t index) noexcept {
    detail::promise_entry& made = promises_[index];
    detail::lane_entry& lane = lanes_[made.lane];
    made.next = lane.first_pending;
    if (lane.first_pending != 0) {
        promises_[lane.first_pending - 1].previous = index + 1;
    }
    lane.first_pending = index + 1;
    ++lane.pending;
}

inline void kernel::leave_lane(const detail::promise_entry& of) noexcept {
    detail::lane_entry& lane = lanes_[of.lane];
    if (of.next != 0) {
        promises_[of.next - 1].previous = of.previous;
    }
    (of.previous != 0 ? promises_[of.previous - 1].next : lane.first_pending) = of.next;
    --lane.pending;
}

inline answer<void> kernel::drop_lane(lane_id which) noexcept {
    const std::uint32_t at = find(lane_slots_, which.bits);
    if (at == none_index) {
        return rpc_code::unknown_lane;
    }
    detail::lane_entry& lane = lanes_[at];
    if (!lane.is_closed) {
        log_.record(event_kind::lane_destroyed, which.bits, lane.completed);
    }
    lane.is_closed = true;
    end_all_in_lane(at);
    return {};
}

inline answer<void> kernel::clear_lane(lane_id which) noexcept {
    const std::uint32_t at = find(lane_slots_, which.bits);
    if (at == none_index || lanes_[at].is_closed) {
        return rpc_code::unknown_lane;
    }
    end_all_in_lane(at);
    return {};
}

inline void kernel::end_all_in_lane(std::uint32_t at) noexcept {
    detail::lane_entry& lane = lanes_[at];
    ++lane.unreported;  // it stays until the end of this
    for (std::uint32_t link = lane.first_pending; link != 0;) {
        const std::uint32_t index = link - 1;
        detail::promise_entry& of = promises_[index];
        link = of.next;
        lane.unreported -= of.told == detail::report::wanted ? 1 : 0;
        of.told = detail::report::none;
        of.is_let_go = true;
        // A follower of one that was just cancelled is in the list of those that are settled next.
        const bool is_next = of.follows && of.unresolved == 0;
        if (index != running_ && state_of(index) == promise_state::pending && !is_next) {
            cancel_pending(index);
        }
    }
    while (!lane.reports.empty()) {
        promises_[lane.reports.first - 1].is_let_go = true;
        pop_report(lane);
    }
    settle_rest();
    --lane.unreported;
    free_lane_if_done(at);
}

/// The oldest report, which is then a settled promise as any.
inline void kernel::pop_report(detail::lane_entry& of) noexcept {
    const std::uint32_t index = of.reports.pop(next_report_in(promises_));
    promises_[index].told = detail::report::none;
    --of.unreported;
    keep_if_settled(index);
}

inline answer<settled> kernel::next_report(lane_id of) const noexcept {
    const std::uint32_t at = find(lane_slots_, of.bits);
    if (at == none_index) {
        return rpc_code::unknown_lane;
    }
    if (lanes_[at].reports.empty()) {
        return rpc_code::unresolvable_promise;
    }
    return what_of(lanes_[at].reports.first - 1);
}

inline bool kernel::take_report(lane_id of) noexcept {
    const std::uint32_t at = find(lane_slots_, of.bits);
    if (at == none_index || lanes_[at].reports.empty()) {
        return false;
    }
    pop_report(lanes_[at]);
    free_lane_if_done(at);
    return true;
}

/// Those of others go behind the rest; those without a report leave the list.
inline answer<kernel::reporting_lane> kernel::peek_reporting(const void* owner) noexcept {
    std::uint32_t first_other = none_index;
    while (!reporting_lanes_.empty()) {
        const std::uint32_t at = reporting_lanes_.first - 1;
        detail::lane_entry& of = lanes_[at];
        if (of.owner == owner && !of.reports.empty()) {
            return reporting_lane{lane_id{name_of(lanes_, at)}, of.word};
        }
        if (at == first_other) {
            break;
        }
        reporting_lanes_.pop(next_reporting_in(lanes_));
        if (of.reports.empty()) {
            of.is_reporting = false;
            continue;
        }
        first_other = first_other == none_index ? at : first_other;
        reporting_lanes_.push(at, next_reporting_in(lanes_));
    }
    return rpc_code::unknown_lane;
}

inline answer<kernel::reporting_lane> kernel::next_reporting(const void* owner) noexcept {
    const answer<reporting_lane> found = peek_reporting(owner);
    if (found) {
        lanes_[reporting_lanes_.pop(next_reporting_in(lanes_))].is_reporting = false;
    }
    return found;
}

inline std::uint32_t kernel::pending_of(lane_id which) const noexcept {
    const std::uint32_t index = find(lane_slots_, which.bits);
    return index != none_index ? lanes_[index].pending : 0;
}

// ---- calls

inline void kernel::argument_watch::promise(std::uint64_t number) const noexcept {
    ++out.promises;
    const std::uint32_t needed = of.promise_index(with, number);
    if (out.promise_wrong != rpc_code::other) {
        return;
    }
    if (needed == none_index) {
        out.promise_wrong = rpc_code::unknown_promise;
    } else if (of.state_of(needed) == promise_state::cancelled) {
        out.promise_wrong = rpc_code::promise_cancelled;
    }
}

/// Everything that may refuse a call, in the order that `call` promises. Changes nothing.
NETIO_INLINE answer<void> kernel::check(lane_id lane, capability target, std::string_view method,
                                        const call_arguments& with,
                                        checked_call& out) const noexcept {
    if (!with.arguments) {
        return rpc_code::invalid_argument;
    }
    out.lane = find(lane_slots_, lane.bits);
    if (out.lane == none_index || lanes_[out.lane].is_closed) {
        return rpc_code::unknown_lane;
    }
    out.capability = held(target);
    if (out.capability == none_index) {
        return rpc_code::unknown_capability;
    }
    const detail::capability_entry& granted = capabilities_[out.capability];
    argument_watch watch{*this, with, out, granted.has_path ? path_of(granted) : "",
                         granted.has_path};
    out.load = weigh(with.arguments.value, watch);
    if (out.promise_wrong != rpc_code::other) {
        return out.promise_wrong;
    }
    if (is_revoked(granted)) {
        return rpc_code::revoked;
    }
    out.argument_bytes = static_cast<std::uint32_t>(out.load.bytes);  // 64 MiB at most
    out.load.bytes += with.payload.size();
    if (const answer<void> may = check_grants(granted, method, with, out); !may) {
        return may;
    }
    if (!affords(granted, 1, out.load) || !lanes_[out.lane].spent.affords(1, out.load)) {
        return rpc_code::budget_exceeded;
    }
    return check_room(out);
}

inline answer<void> kernel::check_grants(const detail::capability_entry& target,
                                         std::string_view name, const call_arguments& with,
                                         checked_call& out) const noexcept {
    out.method = method_named(target.provider, name);
    if (out.method == none_index || (target.methods >> out.method & 1) == 0) {
        return rpc_code::method_not_granted;
    }
    const method& asked = methods_of(providers_[target.provider])[out.method];
    if (asked.mutating && (target.read_only || (with.flags & flag_read_only) != 0)) {
        return rpc_code::read_only;
    }
    if (out.path_outside) {
        return rpc_code::path_not_granted;
    }
    return target.has_tools ? check_tools(target, asked, with, out.load) : answer<void>{};
}

inline answer<void> kernel::check_tools(const detail::capability_entry& target,
                                        const method& asked, const call_arguments& with,
                                        const weight& load) const noexcept {
    const auto tools = detail::kept_tools::of(texts_of(target), target.has_path);
    const argument_list& given = with.arguments.value;
    const value named = given.empty() ? value() : given.front().as_value();
    if (!named.is(value_tag::text) || !tools.allows(named.as_text()) ||
        load.bytes > tools.argument_bytes_max ||
        (asked.starts_process && !tools.allow_process)) {
        return rpc_code::tool_policy;
    }
    return {};
}

inline answer<void> kernel::check_room(const checked_call& what) const noexcept {
    const std::uint32_t edges_of_one = (sizes_.edges_max + 3) / 4;
    const bool room = has_place(lanes_[what.lane]) &&
                      (has_room(promise_slots_) || kept_count_ != 0) &&
                      what.promises <= edges_of_one && has_room(edge_slots_, what.promises) &&
                      what.load.bytes <= store_.bytes_max();
    return room ? answer<void>{} : answer<void>{rpc_code::budget_exceeded};
}

/// The promises among the arguments are not to be forgotten for their own call.
inline void kernel::mark_arguments(const call_arguments& with, std::uint32_t count) noexcept {
    ++search_;
    if (count == 0) {
        return;
    }
    for (const argument one : with.arguments.value) {
        if (one.is(argument_tag::promise)) {
            const std::uint32_t index = promise_index(with, one.as_promise());
            if (index != none_index) {
                promises_[index].round = search_;
            }
        }
    }
}

/// The oldest settled promise that nobody needs, was not marked, and has a piece of that size or
/// larger (0: whatever it has); or none_index.
inline std::uint32_t kernel::oldest_unmarked(std::size_t bytes_wanted) const noexcept {
    for (std::uint32_t link = first_kept_; link != 0; link = promises_[link - 1].next) {
        const detail::promise_entry& of = promises_[link - 1];
        const bool fits = bytes_wanted == 0 ||
                          (of.piece != 0 && store_.holds(of.piece - 1, bytes_wanted));
        if (of.round != search_ && fits && !is_lent(of)) {
            return link - 1;
        }
    }
    return none_index;
}

/// Is what the caller handed in a part of its result?
inline bool kernel::is_lent(const detail::promise_entry& of) const noexcept {
    const bytes kept = kept_bytes(of);
    const auto is_inside = [&](const std::byte* at) {
        return reinterpret_cast<std::uintptr_t>(at) -
                   reinterpret_cast<std::uintptr_t>(kept.data()) <
               kept.size();
    };
    return is_inside(lent_[0]) || is_inside(lent_[1]);
}

/// A piece, if need be of a settled promise that is forgotten for it. Marks are as they were made.
inline std::uint32_t kernel::take_piece_of_settled(std::size_t bytes_wanted) noexcept {
    const std::uint32_t oldest = oldest_unmarked(bytes_wanted);
    if (oldest == none_index) {
        return none_index;
    }
    free_promise(oldest);
    return store_.take(bytes_wanted);
}

inline bool kernel::room_for_promise() noexcept {
    if (has_room(promise_slots_)) {
        return true;
    }
    const std::uint32_t oldest = oldest_unmarked(0);
    if (oldest != none_index) {
        free_promise(oldest);
    }
    return oldest != none_index;
}

/// Tables that were full say so in their statistics.
inline void kernel::count_refused(const checked_call& what) noexcept {
    if (what.method == none_index) {
        return;  // it was refused long before
    }
    if (!has_room(promise_slots_)) {
        promise_slots_.take();
    }
    if (what.promises != 0 && !has_room(edge_slots_)) {
        edge_slots_.take();
    }
}

inline answer<promise_id> kernel::call(lane_id lane, capability target, std::string_view method,
                                       const call_arguments& with) noexcept {
    checked_call what;
    answer<void> may = check(lane, target, method, with, what);
    std::uint32_t piece = none_index;
    if (may) {
        mark_arguments(with, what.promises);
        lent_[0] = with.arguments.value.data();
        lent_[1] = with.payload.data();
        if (what.load.bytes != 0) {
            piece = take_piece(static_cast<std::size_t>(what.load.bytes));
        }
        if ((what.load.bytes != 0 && piece == none_index) || !room_for_promise()) {
            if (piece != none_index) {
                store_.give(piece, 0);
            }
            may = rpc_code::budget_exceeded;
        }
    }
    if (NETIO_UNLIKELY(!may)) {
        count_refused(what);
        log_.record(event_kind::call_refused, lane.bits, 0,
                    static_cast<std::uint32_t>(target.bits),
                    static_cast<std::uint16_t>(may.why));
        return may.why;
    }
    const std::uint32_t job = queue(what, piece, with);
    const promise_id made{name_of(promises_, job)};
    log_.record(event_kind::call_queued, made.bits, lane.bits,
                static_cast<std::uint32_t>(target.bits));
    if (NETIO_UNLIKELY(what.promise_wrong != rpc_code::other)) {
        settle_rejected(job, what.promise_wrong, {}, false);
        settle_rest();
    } else if (promises_[job].unresolved == 0) {
        push_to_lane(job);
    }
    return made;
}

/// Charges a call that nothing refuses any more, and makes its promise.
NETIO_INLINE std::uint32_t kernel::queue(checked_call& what, std::uint32_t piece,
                                         const call_arguments& with) noexcept {
    detail::capability_entry& target = capabilities_[what.capability];
    detail::lane_entry& lane = lanes_[what.lane];
    charge(target, 1, what.load);
    lane.spent.charge(1, what.load);
    ++target.jobs;
    const std::uint32_t index = take(promise_slots_, promises_);
    detail::promise_entry& made = promises_[index];
    made.lane = what.lane;
    join_lane(index);
    if (with.reports && lane.reports_calls) {
        made.told = detail::report::wanted;
        ++lane.unreported;
    }
    made.word = with.word;
    made.capability = what.capability;
    made.method = static_cast<std::uint8_t>(what.method);
    made.flags = static_cast<std::uint16_t>(with.flags | (target.redact ? flag_redact : 0));
    made.kind = promise_kind::call;
    made.piece = link_of(piece);
    made.result = what.load;  // until there is one
    made.bytes_count = static_cast<std::uint32_t>(what.load.bytes);
    made.arguments = with.arguments.value.size();
    made.payload_bytes = static_cast<std::uint32_t>(with.payload.size());
    if (piece != none_index) {
        std::byte* const to = store_.data(piece);
        if (what.argument_bytes != 0) {
            detail::copy_piece(to, {with.arguments.value.data(), what.argument_bytes});
        }
        detail::copy_piece(to + what.argument_bytes, with.payload);
    }
    if (what.promises != 0) {
        std::uint32_t last = 0;
        for (const argument one : with.arguments.value) {
            if (!one.is(argument_tag::promise)) {
                continue;
            }
            const std::uint32_t needed = promise_index(with, one.as_promise());
            if (needed != none_index) {
                need(index, needed, last);
            } else {  // `promise_of` says something else than a moment ago
                what.promise_wrong = rpc_code::unknown_promise;
            }
        }
    }
    return index;
}

/// `job` needs a promise; `last` is a link to what it needs besides, in the order of arguments.
inline void kernel::need(std::uint32_t job, std::uint32_t needed, std::uint32_t& last) noexcept {
    const std::uint32_t at = take(edge_slots_, edges_);
    NETIO_ASSERT(at != none_index && needed != none_index);
    detail::edge_entry& made = edges_[at];
    detail::promise_entry& other = promises_[needed];
    made.needed = needed;
    made.job = job;
    (last != 0 ? edges_[last - 1].next_edge : promises_[job].first_edge) = at + 1;
    last = at + 1;
    if (other.waiters++ == 0) {
        unkeep(other);
    }
    if (state_of(needed) == promise_state::pending) {
        made.slot.next = other.first_waiter;
        if (other.first_waiter != 0) {
            edges_[other.first_waiter - 1].previous = at + 1;
        }
        other.first_waiter = at + 1;
        ++promises_[job].unresolved;
    }
}

inline void kernel::unlink_waiter(const detail::edge_entry& edge) noexcept {
    if (edge.slot.next != 0) {
        edges_[edge.slot.next - 1].previous = edge.previous;
    }
    (edge.previous != 0 ? edges_[edge.previous - 1].slot.next
                        : promises_[edge.needed].first_waiter) = edge.slot.next;
}

/// The job needs nothing any more.
inline void kernel::drop_edges(detail::promise_entry& of) noexcept {
    for (std::uint32_t link = of.first_edge; link != 0;) {
        const detail::edge_entry& edge = edges_[link - 1];
        const std::uint32_t next = edge.next_edge;
        const std::uint32_t needed = edge.needed;
        if (state_of(needed) == promise_state::pending) {
            unlink_waiter(edge);
        }
        edge_slots_.give(link - 1);
        --promises_[needed].waiters;
        keep_if_settled(needed);
        link = next;
    }
    of.first_edge = 0;
    of.unresolved = 0;
}

// ---- what providers see

inline lane_id invocation::lane() const noexcept {
    return {kernel::name_of(owner_.lanes_, job_.lane)};
}

inline promise_id invocation::later() noexcept {
    late_ = true;
    return {kernel::name_of(owner_.promises_, owner_.running_)};
}

inline void invocation::seek(std::uint32_t at) noexcept {
    NETIO_ASSERT(at < job_.arguments);
    if (at < at_) {
        at_ = 0;
        place_ = first_;
        edge_ = job_.first_edge;
    }
    for (; at_ < at; ++at_) {
        if (argument(place_).is(argument_tag::promise)) {
            edge_ = owner_.edges_[edge_ - 1].next_edge;
        }
        place_ = detail::argument_step::after(place_);
    }
}

inline value invocation::value_at(std::uint32_t at) noexcept {
    if (at >= job_.arguments) {
        return {};
    }
    seek(at);
    const argument one(place_);
    return one.is(argument_tag::promise) ? owner_.value_of(owner_.edges_[edge_ - 1].needed)
                                         : one.as_value();
}

// ---- dispatch

/// A job that just got the last promise it needed.
inline void kernel::make_ready(std::uint32_t job) noexcept {
    if (promises_[job].follows) {
        promises_[job].slot.next = first_follower_;
        first_follower_ = job + 1;
    } else {
        push_to_lane(job);
    }
}

inline void kernel::push_to_lane(std::uint32_t job) noexcept {
    const std::uint32_t index = promises_[job].lane;
    push_job(lanes_[index].ready, job);
    if (!lanes_[index].is_busy) {
        push_busy(busy_lanes_, lanes_, index);
    }
}

inline void kernel::push_to_provider(std::uint32_t job) noexcept {
    const std::uint32_t index = capabilities_[promises_[job].capability].provider;
    push_job(providers_[index].jobs, job);
    if (!providers_[index].is_busy) {
        push_busy(busy_providers_, providers_, index);
    }
}

/// Each lane in turn gives one ready job to its provider, so that none waits behind another's many;
/// no more than are to be run, for the same reason.
inline void kernel::credit_lanes(std::uint32_t jobs_max) noexcept {
    for (std::uint32_t left = jobs_max; left != 0 && !busy_lanes_.empty();) {
        const std::uint32_t at = busy_lanes_.first - 1;
        const std::uint32_t job = pop_job(lanes_[at].ready);
        const bool has_more = !lanes_[at].ready.empty();
        if (!has_more || busy_lanes_.first != busy_lanes_.last) {
            pop_busy(busy_lanes_, lanes_);
            if (has_more) {  // behind the others
                push_busy(busy_lanes_, lanes_, at);
            }
        }
        if (state_of(job) == promise_state::pending) {
            push_to_provider(job);
            --left;
        } else {
            end_cancelled(job);
        }
    }
}

/// Has it another job, of those that became ready meanwhile? Lanes give theirs in turn.
inline bool kernel::draw(detail::provider_entry& provider) noexcept {
    while (provider.jobs.empty() && !busy_lanes_.empty()) {
        credit_lanes(1);
    }
    return !provider.jobs.empty();
}

inline std::uint32_t kernel::dispatch(std::uint32_t jobs_max) noexcept {
    if (batch_provider_ != none_index) {
        return 0;
    }
    std::uint32_t jobs = 0;
    while (jobs != jobs_max) {
        const std::uint32_t more = step(jobs_max - jobs);
        if (more == 0) {
            break;
        }
        jobs += more;
    }
    tell_drops();
    trim();
    return jobs;
}

/// One batch of at most so many jobs; how many had their turn. 0: none is ready, and no provider
/// that was to hear of a drop has made one so.
inline std::uint32_t kernel::step(std::uint32_t jobs_max) noexcept {
    for (;;) {
        if (some_revoked_) {
            end_revoked();
        }
        credit_lanes(jobs_max);
        if (busy_providers_.empty()) {
            tell_drops();
            if (!some_revoked_ && busy_lanes_.empty()) {
                return 0;
            }
            continue;
        }
        const std::uint32_t provider = pop_busy(busy_providers_, providers_);
        const std::uint32_t jobs = run_batch(
            provider, jobs_max < sizes_.promises_max ? jobs_max : sizes_.promises_max);
        if (jobs != 0) {
            return jobs;
        }
    }
}

/// Pending calls of what was revoked or removed that no queue will bring up: they wait for a
/// promise or for their provider. Each promise is looked at once after a revocation.
inline void kernel::end_revoked() noexcept {
    some_revoked_ = false;
    for (std::uint32_t index = 0; index < promise_slots_.used_end(); ++index) {
        const detail::promise_entry& of = promises_[index];
        if (promise_slots_.is_live(index) && state_of(index) == promise_state::pending &&
            of.kind == promise_kind::call && !of.is_queued &&
            is_revoked(capabilities_[of.capability])) {
            settle_rejected(index, rpc_code::revoked, {}, of.is_late || of.follows);
            settle_followers();
        }
    }
    tell_drops();
}

/// A batch ends when none of its provider's jobs is ready any more: those that became ready by one
/// of its results belong to it.
inline std::uint32_t kernel::run_batch(std::uint32_t index, std::uint32_t jobs_max) noexcept {
    detail::provider_entry& provider = providers_[index];
    const std::uint64_t name = name_of(providers_, index);
    std::uint32_t jobs = 0;
    std::uint32_t made = 0;
    std::uint32_t lanes = 0;
    provider.is_busy = true;  // not to be put into the list while it is here
    batch_provider_ = index;
    ++batch_;
    while (jobs != jobs_max && draw(provider)) {
        const std::uint32_t job = pop_job(provider.jobs);
        if (state_of(job) != promise_state::pending) {
            end_cancelled(job);
            continue;
        }
        detail::lane_entry& lane = lanes_[promises_[job].lane];
        lanes += lane.batch != batch_ ? 1 : 0;
        lane.batch = batch_;
        ++jobs;
        made += run(job) ? 1 : 0;
        tell_drops();
    }
    batch_provider_ = none_index;
    provider.is_busy = false;
    if (!provider.jobs.empty()) {
        push_busy(busy_providers_, providers_, index);
    }
    free_provider_if_done(index);
    if (made != 0) {
        log_.record(event_kind::batch_dispatched, name, made, lanes);
    }
    return jobs;
}

/// Why a job whose turn has come is not made after all: revoked meanwhile, too slow a provider, a
/// promise it needs was not kept, or what that was resolved with is not allowed.
inline answer<void> kernel::check_again(const detail::promise_entry& of, bytes& text) noexcept {
    const detail::capability_entry& target = capabilities_[of.capability];
    if (is_revoked(target)) {
        return rpc_code::revoked;
    }
    const std::uint64_t latency = providers_[target.provider].latency_ms;
    if (latency > target.spent.most.wall_ms_max ||
        latency > lanes_[of.lane].spent.most.wall_ms_max) {
        return rpc_code::timeout;
    }
    return of.first_edge != 0 ? substitute(of, text) : answer<void>{};
}

/// Holds what promised arguments were resolved with to the rules that the others were held to when
/// the call was made, and charges it. What they weigh is known; they are walked for their paths
/// last of all, and each once, however often it is an argument.
inline answer<void> kernel::substitute(const detail::promise_entry& of, bytes& text) noexcept {
    detail::capability_entry& target = capabilities_[of.capability];
    weight more;
    for (std::uint32_t link = of.first_edge; link != 0; link = edges_[link - 1].next_edge) {
        const std::uint32_t needed = edges_[link - 1].needed;
        const detail::promise_entry& other = promises_[needed];
        if (state_of(needed) == promise_state::rejected) {
            text = kept_bytes(other);
            return other.code;
        }
        if (state_of(needed) == promise_state::cancelled) {
            return rpc_code::promise_cancelled;
        }
        more.add(other.result);
    }
    if (target.has_tools &&
        of.result.bytes + more.bytes > detail::kept_tools::of(texts_of(target), target.has_path)
                                           .argument_bytes_max) {
        return rpc_code::tool_policy;
    }
    weight all = of.result;
    all.add(more);
    all.bytes = more.bytes;  // the others are charged already
    detail::account& lane = lanes_[of.lane].spent;
    if (!affords(target, 0, all) || !lane.affords(0, all)) {
        return rpc_code::budget_exceeded;
    }
    if (target.has_path && !paths_inside(of, path_of(target))) {
        return rpc_code::path_not_granted;
    }
    charge(target, 0, all);
    lane.charge(0, all);
    return {};
}

inline bool kernel::paths_inside(const detail::promise_entry& of,
                                 std::string_view scope) noexcept {
    detail::path_watch watch{scope, false};
    ++search_;
    for (std::uint32_t link = of.first_edge; link != 0; link = edges_[link - 1].next_edge) {
        const std::uint32_t needed = edges_[link - 1].needed;
        if (promises_[needed].round != search_) {
            promises_[needed].round = search_;
            weigh(value_of(needed), watch);
        }
    }
    return !watch.outside;
}

/// False: it was not made.
NETIO_INLINE bool kernel::run(std::uint32_t job) noexcept {
    detail::promise_entry& made = promises_[job];
    bytes text;
    if (const answer<void> may = check_again(made, text); NETIO_UNLIKELY(!may)) {
        settle_rejected(job, may.why, text, false);
        settle_followers();
        return false;
    }
    const detail::capability_entry& target = capabilities_[made.capability];
    const detail::provider_entry& provider = providers_[target.provider];
    invocation one(*this, made, target.object, kept_bytes(made), reply_);
    running_ = job;
    provider.invoke(provider.object, &one);
    running_ = none_index;
    if (one.late_ && !one.failed_) {
        made.is_late = true;
    } else {
        finish(job, one);
        settle_followers();
    }
    if (one.replied_) {  // nothing of a result stays where it was written
        detail::wipe_piece(memory_ + layout_.scratch, reply_.written());
    }
    return true;
}

/// What came of a call.
NETIO_INLINE void kernel::finish(std::uint32_t job, const invocation& made) noexcept {
    if (made.failed_) {
        settle_rejected(job, rpc_code::provider,
                        as_bytes(std::string_view(made.failure_, made.failure_bytes_)));
        return;
    }
    if (!made.replied_) {
        settle_result(job, value());
        return;
    }
    const result<argument_list> given = reply_.finish_arguments();
    if (given && given.value.size() == 1 && given.value.front().is(argument_tag::value)) {
        settle_result(job, given.value.front().as_value());
    } else if (given.why == error::full || given.why == error::rpc_limit) {
        settle_rejected(job, rpc_code::budget_exceeded, {});
    } else {
        settle_rejected(job, rpc_code::provider, as_bytes("result is not one value"));
    }
}

// ---- settling

/// Does the result go where the arguments are, which are not needed any more?
inline bool kernel::is_place_for(const detail::promise_entry& of,
                                 std::size_t bytes_wanted) const noexcept {
    return of.piece != 0 && store_.is_made_for(of.piece - 1, bytes_wanted) && !is_lent(of);
}

/// Resolved with one value, which is charged to whom the call was charged to; false: that is too
/// much, or has no place, and so it was rejected.
inline bool kernel::settle_result(std::uint32_t index, const value& with) noexcept {
    detail::promise_entry& of = promises_[index];
    detail::sees_nothing nobody;
    const weight more = weigh(with, nobody);
    detail::lane_entry& lane = lanes_[of.lane];
    const bool is_call = of.kind == promise_kind::call;
    const bool affordable = lane.spent.affords(0, more) &&
                            (!is_call || affords(capabilities_[of.capability], 0, more));
    const auto size = static_cast<std::size_t>(more.bytes);
    ++search_;  // no settled promise is marked
    lent_[0] = lent_[1] = with.wire_begin();
    const bool keeps_piece = affordable && is_place_for(of, size);
    const std::uint32_t piece = keeps_piece  ? of.piece - 1
                                : affordable ? take_piece(size)
                                             : none_index;
    if (piece == none_index) {
        settle_rejected(index, rpc_code::budget_exceeded, {});
        return false;
    }
    std::byte* const to = store_.data(piece);
    if (keeps_piece) {
        detail::wipe_piece(to, of.bytes_count);
        of.piece = 0;  // not to be given back with the arguments
    }
    to[0] = static_cast<std::byte>(argument_tag::value);
    detail::copy_piece(to + 1, {with.wire_begin(), size - 1});
    lane.spent.charge(0, more);
    if (is_call) {
        charge(capabilities_[of.capability], 0, more);
    }
    end_job(index, true);
    of.piece = piece + 1;
    of.bytes_count = static_cast<std::uint32_t>(more.bytes);
    of.result = more;
    log_.record(event_kind::promise_resolved, name_of(promises_, index), more.bytes);
    settle(index, promise_state::resolved);
    return true;
}

/// A result that comes from elsewhere, maybe after the capability of its call was revoked.
inline answer<void> kernel::settle_from(std::uint32_t index, const value& with) noexcept {
    const detail::promise_entry& of = promises_[index];
    if (of.kind == promise_kind::call && is_revoked(capabilities_[of.capability])) {
        settle_rejected(index, rpc_code::revoked, {});
        return rpc_code::revoked;
    }
    return settle_result(index, with) ? answer<void>{} : answer<void>{rpc_code::budget_exceeded};
}

/// `text` is kept if it is more than the code says and a piece is free.
inline void kernel::settle_rejected(std::uint32_t index, rpc_code code, bytes text,
                                    bool was_made) noexcept {
    detail::promise_entry& of = promises_[index];
    const std::uint32_t piece = text.empty() ? none_index : store_.keep(text);
    end_job(index, was_made);
    of.code = code;
    of.piece = link_of(piece);
    of.bytes_count = piece != none_index ? static_cast<std::uint32_t>(text.size()) : 0;
    log_.record(event_kind::promise_rejected, name_of(promises_, index), 0, 0,
                static_cast<std::uint16_t>(code));
    settle(index, promise_state::rejected);
}

/// A pending promise's lane, capability, arguments and edges are given back.
NETIO_INLINE void kernel::end_job(std::uint32_t index, bool was_made) noexcept {
    detail::promise_entry& of = promises_[index];
    give_piece(of.piece, of.bytes_count);
    of.bytes_count = 0;
    drop_edges(of);
    detail::lane_entry& lane = lanes_[of.lane];
    leave_lane(of);
    if (of.kind == promise_kind::call) {
        if (was_made) {
            ++lane.completed;
            log_.record(event_kind::job_completed, name_of(promises_, index),
                        name_of(lanes_, of.lane));
        }
        detail::capability_entry& target = capabilities_[of.capability];
        if (NETIO_UNLIKELY(--target.jobs == 0 && target.handles == 0)) {
            free_capability_if_done(of.capability);
        }
    }
    free_lane_if_done(of.lane);
}

/// The one transition there is.
NETIO_INLINE void kernel::settle(std::uint32_t index, promise_state state) noexcept {
    detail::promise_entry& of = promises_[index];
    NETIO_ASSERT(state_of(index) == promise_state::pending);
    of.state = state;
    of.is_late = false;
    for (std::uint32_t link = of.first_waiter; link != 0; link = edges_[link - 1].slot.next) {
        const std::uint32_t job = edges_[link - 1].job;
        if (--promises_[job].unresolved == 0) {
            make_ready(job);
        }
    }
    of.first_waiter = 0;
    keep_if_settled(index);
}

/// Those that follow a promise which was settled, and those that follow them: a list, not a
/// recursion.
inline void kernel::settle_all_followers() noexcept {
    while (first_follower_ != 0) {
        const std::uint32_t index = first_follower_ - 1;
        detail::promise_entry& of = promises_[index];
        first_follower_ = of.slot.next;
        of.slot.next = 0;
        const std::uint32_t needed = edges_[of.first_edge - 1].needed;
        switch (state_of(needed)) {
        case promise_state::resolved:
            settle_from(index, value_of(needed));
            break;
        case promise_state::rejected:
            settle_rejected(index, promises_[needed].code, kept_bytes(promises_[needed]));
            break;
        default:
            settle_rejected(index, rpc_code::promise_cancelled, {});
        }
    }
}

/// Settled promises that nobody needs are kept, oldest first, until there are too many.
inline void kernel::keep_if_settled(std::uint32_t index) noexcept {
    detail::promise_entry& of = promises_[index];
    if (of.state == promise_state::pending || of.is_queued) {
        return;
    }
    if (of.told == detail::report::wanted) {
        detail::lane_entry& lane = lanes_[of.lane];
        of.told = detail::report::queued;
        lane.reports.push(index, next_report_in(promises_));
        if (!lane.is_reporting) {
            lane.is_reporting = true;
            reporting_lanes_.push(of.lane, next_reporting_in(lanes_));
        }
    }
    if (of.waiters != 0 || of.told == detail::report::queued) {
        return;
    }
    if (of.is_let_go) {
        free_promise(index);
        return;
    }
    NETIO_ASSERT(!of.is_kept);  // or a waiter, a report or its turn in a queue would hold it
    of.is_kept = true;
    of.next = 0;
    of.previous = last_kept_;
    (last_kept_ != 0 ? promises_[last_kept_ - 1].next : first_kept_) = index + 1;
    last_kept_ = index + 1;
    ++kept_count_;
    kept_bytes_ += of.bytes_count;
}

inline void kernel::unkeep(detail::promise_entry& of) noexcept {
    if (!of.is_kept) {
        return;
    }
    (of.next != 0 ? promises_[of.next - 1].previous : last_kept_) = of.previous;
    (of.previous != 0 ? promises_[of.previous - 1].next : first_kept_) = of.next;
    of.is_kept = false;
    --kept_count_;
    kept_bytes_ -= of.bytes_count;
}

inline void kernel::free_promise(std::uint32_t index) noexcept {
    detail::promise_entry& of = promises_[index];
    unkeep(of);
    give_piece(of.piece, of.bytes_count);
    promise_slots_.give(index);
}

inline void kernel::trim() noexcept {
    while (kept_count_ > sizes_.settled_max || kept_bytes_ > sizes_.settled_bytes_max) {
        free_promise(first_kept_ - 1);
    }
}

/// A cancelled job whose turn in a queue has come: until then it held what it was made of.
inline void kernel::end_cancelled(std::uint32_t job) noexcept {
    end_job(job, false);
    keep_if_settled(job);
}

// ---- promises

inline answer<promise_id> kernel::open_promise(lane_id lane) noexcept {
    const std::uint32_t at = find(lane_slots_, lane.bits);
    if (at == none_index || lanes_[at].is_closed) {
        return rpc_code::unknown_lane;
    }
    ++search_;
    lent_[0] = lent_[1] = nullptr;
    const bool room = has_place(lanes_[at]) && room_for_promise();
    const std::uint32_t index = room ? take(promise_slots_, promises_) : none_index;
    if (index == none_index) {
        return rpc_code::budget_exceeded;
    }
    promises_[index].lane = at;
    promises_[index].kind = promise_kind::open;
    join_lane(index);
    return promise_id{name_of(promises_, index)};
}

/// Is it pending and to be settled from outside: open, or its provider said that it comes later?
inline answer<void> kernel::may_settle(promise_id which, std::uint32_t& index) const noexcept {
    index = find(promise_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::unknown_promise;
    }
    if (state_of(index) != promise_state::pending) {
        return rpc_code::promise_already_resolved;
    }
    const detail::promise_entry& of = promises_[index];
    if (of.follows) {
        return rpc_code::promise_already_resolved;
    }
    return of.kind == promise_kind::open || of.is_late ? answer<void>{}
                                                       : answer<void>{rpc_code::invalid_argument};
}

inline answer<void> kernel::resolve(promise_id which, const value& with) noexcept {
    std::uint32_t index = none_index;
    if (const answer<void> may = may_settle(which, index); !may) {
        return may;
    }
    const answer<void> done = settle_from(index, with);
    settle_rest();
    return done;
}

inline answer<void> kernel::reject(promise_id which, rpc_code code,
                                   std::string_view text) noexcept {
    std::uint32_t index = none_index;
    if (const answer<void> may = may_settle(which, index); !may) {
        return may;
    }
    settle_rejected(index, code, as_bytes(detail::kept_text(text)));
    settle_rest();
    return {};
}

inline answer<void> kernel::cancel(promise_id which) noexcept {
    const std::uint32_t index = find(promise_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::unknown_promise;
    }
    if (state_of(index) != promise_state::pending) {
        return rpc_code::promise_already_resolved;
    }
    if (index == running_) {
        return rpc_code::invalid_argument;
    }
    cancel_pending(index);
    settle_rest();
    return {};
}

/// What it was made of is given back at once, or when its turn in a queue comes.
inline void kernel::cancel_pending(std::uint32_t index) noexcept {
    if (!promises_[index].is_queued) {
        end_job(index, false);
    }
    settle(index, promise_state::cancelled);
}

inline answer<void> kernel::follow(promise_id which, promise_id other) noexcept {
    std::uint32_t index = none_index;
    if (const answer<void> may = may_settle(which, index); !may) {
        return may;
    }
    const std::uint32_t needed = find(promise_slots_, other.bits);
    if (needed == none_index) {
        return rpc_code::unknown_promise;
    }
    if (reaches(needed, index)) {
        return rpc_code::pipelined_cycle;
    }
    if (!has_room(edge_slots_)) {
        return rpc_code::budget_exceeded;
    }
    detail::promise_entry& of = promises_[index];
    detail::promise_entry& followed = promises_[needed];
    if (followed.waiters++ == 0) {  // it may be an argument that nothing else needs any more
        unkeep(followed);
    }
    if (of.kind == promise_kind::call) {
        // The call was made; what is left of it is its promise.
        drop_edges(of);
    }
    of.follows = true;
    std::uint32_t last = 0;
    need(index, needed, last);
    --followed.waiters;
    if (of.unresolved == 0) {
        make_ready(index);
        settle_rest();
    }
    return {};
}

/// Does `from` wait for `to`, by however many steps, or is it the same? Each promise is looked at
/// once: those still to be looked at are a list through the entries.
inline bool kernel::reaches(std::uint32_t from, std::uint32_t to) noexcept {
    ++search_;
    std::uint32_t list = from + 1;
    promises_[from].round = search_;
    promises_[from].next_found = 0;
    while (list != 0) {
        const std::uint32_t at = list - 1;
        list = promises_[at].next_found;
        if (at == to) {
            return true;
        }
        if (state_of(at) != promise_state::pending) {
            continue;
        }
        for (std::uint32_t link = promises_[at].first_edge; link != 0;
             link = edges_[link - 1].next_edge) {
            detail::promise_entry& next = promises_[edges_[link - 1].needed];
            if (next.round != search_) {
                next.round = search_;
                next.next_found = list;
                list = edges_[link - 1].needed + 1;
            }
        }
    }
    return false;
}

inline answer<settled> kernel::look(promise_id which) const noexcept {
    const std::uint32_t index = find(promise_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::unknown_promise;
    }
    return what_of(index);
}

inline answer<settled> kernel::what_of(std::uint32_t index) const noexcept {
    const detail::promise_entry& of = promises_[index];
    answer<settled> made;
    made.given = true;
    settled& out = made.value;
    out.state = of.state;
    out.word = of.word;
    out.flags = of.flags;
    out.promise = {name_of(promises_, index)};
    if (out.state == promise_state::resolved) {
        out.argument = kept_bytes(of);
        out.value = value(out.argument.data() + 1);
    } else if (out.state == promise_state::rejected) {
        out.code = of.code;
        out.text = of.piece != 0 ? as_text(kept_bytes(of)) : code_text(out.code);
    }
    return made;
}

inline answer<settled> kernel::await(promise_id which) noexcept {
    const std::uint32_t index = find(promise_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::unknown_promise;
    }
    if (batch_provider_ != none_index) {
        return rpc_code::invalid_argument;
    }
    detail::promise_entry& of = promises_[index];
    if (of.state != promise_state::pending) {
        return what_of(index);
    }
    ++of.waiters;  // not to be forgotten before it was looked at
    while (of.state == promise_state::pending && step(0xFFFFFFFF) != 0) {
    }
    tell_drops();
    trim();
    --of.waiters;
    if (of.state == promise_state::pending) {
        return rpc_code::unresolvable_promise;
    }
    keep_if_settled(index);
    return NETIO_LIKELY(!of.is_let_go) ? what_of(index) : look(which);
}

inline answer<void> kernel::forget(promise_id which) noexcept {
    const std::uint32_t index = find(promise_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::unknown_promise;
    }
    if (!promises_[index].is_kept) {
        return rpc_code::invalid_argument;
    }
    free_promise(index);
    return {};
}

inline answer<void> kernel::let_go(promise_id which) noexcept {
    const std::uint32_t index = find(promise_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::unknown_promise;
    }
    promises_[index].is_let_go = true;
    keep_if_settled(index);
    return {};
}

// ---- channels

inline bool kernel::goes(const detail::channel_entry& of, channel_end from) noexcept {
    return of.direction == channel_direction::both ||
           (of.direction == channel_direction::send) == (from == channel_end::ours);
}

inline answer<channel_id> kernel::open_channel(channel_direction direction,
                                               std::uint32_t messages_max) noexcept {
    if (messages_max == 0 || messages_max > 4096) {
        return rpc_code::invalid_argument;
    }
    const std::uint32_t index = take(channel_slots_, channels_);
    if (index == none_index) {
        return rpc_code::budget_exceeded;
    }
    channels_[index].messages_max = messages_max;
    channels_[index].direction = direction;
    return channel_id{name_of(channels_, index)};
}

inline answer<std::uint64_t> kernel::send(channel_id to, channel_end from,
                                          const result<argument_list>& what) noexcept {
    const std::uint32_t index = find(channel_slots_, to.bits);
    if (index == none_index) {
        return rpc_code::unknown_channel;
    }
    detail::channel_entry& channel = channels_[index];
    detail::channel_queue& queue = channel.queues[static_cast<std::size_t>(from)];
    detail::promise_watch promises;
    const weight load = what ? weigh(what.value, promises) : weight{};
    if (!what || !goes(channel, from) || promises.any) {
        return rpc_code::invalid_argument;
    }
    if (queue.count == channel.messages_max) {
        return rpc_code::budget_exceeded;
    }
    const std::uint32_t at = take(message_slots_, messages_);
    if (at == none_index) {
        return rpc_code::budget_exceeded;
    }
    const auto size = static_cast<std::size_t>(load.bytes);
    const std::uint32_t piece = store_.take(size, true);
    if (piece == none_index) {
        message_slots_.give(at);
        return rpc_code::budget_exceeded;
    }
    detail::copy_piece(store_.data(piece), {what.value.data(), size});
    messages_[at].piece = piece + 1;
    messages_[at].bytes_count = static_cast<std::uint32_t>(load.bytes);
    messages_[at].arguments = what.value.size();
    queue.messages.push(at, next_in(messages_));
    ++queue.count;
    log_.record(event_kind::channel_sent, to.bits, ++queue.sent);
    for (const argument one : what.value) {
        if (one.is(argument_tag::capability)) {
            if (const answer<capability> known = import(one.as_capability()); known) {
                log_.record(event_kind::capability_transferred, to.bits, queue.sent,
                            static_cast<std::uint32_t>(known.value.bits));
            }
        }
    }
    return queue.sent;
}

inline answer<message> kernel::receive(channel_id from, channel_end to) noexcept {
    const std::uint32_t index = find(channel_slots_, from.bits);
    if (index == none_index) {
        return rpc_code::unknown_channel;
    }
    const channel_end sender = to == channel_end::ours ? channel_end::theirs : channel_end::ours;
    if (!goes(channels_[index], sender)) {
        return rpc_code::invalid_argument;
    }
    detail::channel_queue& queue = channels_[index].queues[static_cast<std::size_t>(sender)];
    drop_delivered();
    if (queue.messages.empty()) {
        return rpc_code::unresolvable_promise;
    }
    const std::uint32_t at = queue.messages.pop(next_in(messages_));
    --queue.count;
    delivered_ = at + 1;
    log_.record(event_kind::channel_received, from.bits, ++queue.received);
    return message{queue.received, argument_list(store_.data(messages_[at].piece - 1),
                                                 messages_[at].arguments)};
}

inline void kernel::free_message(std::uint32_t at) noexcept {
    store_.give_of_message(messages_[at].piece - 1, messages_[at].bytes_count);
    message_slots_.give(at);
}

inline void kernel::drop_delivered() noexcept {
    if (delivered_ != 0) {
        free_message(delivered_ - 1);
        delivered_ = 0;
    }
}

inline answer<void> kernel::close_channel(channel_id which) noexcept {
    const std::uint32_t index = find(channel_slots_, which.bits);
    if (index == none_index) {
        return rpc_code::unknown_channel;
    }
    drop_delivered();
    for (detail::channel_queue& queue : channels_[index].queues) {
        while (!queue.messages.empty()) {
            free_message(queue.messages.pop(next_in(messages_)));
        }
    }
    channel_slots_.give(index);
    return {};
}

}  // namespace rpc

NETIO_END

#endif
