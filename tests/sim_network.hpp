// A network in a box for tests: seeded, with virtual time, peers driven by the test, and faults.
// The kernel side is tests/simulator.hpp. One thread; nothing here sleeps or asks the system.
#ifndef NETIO_TESTS_SIM_NETWORK_HPP
#define NETIO_TESTS_SIM_NETWORK_HPP

#include "netio.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace netio_test {

using namespace netio;

/// A rule of the contract that the code under test broke; the line before it names the seed.
inline std::uint64_t sim_seed_shown = 0;
inline void sim_require(bool holds, const char* rule) noexcept {
    if (!holds) {
        std::fprintf(stderr, "simulator: contract broken: %s (seed %llu)\n", rule,
                     static_cast<unsigned long long>(sim_seed_shown));
        NETIO_TRAP();
    }
}

/// Where every decision comes from: a seed, or a byte string (a fuzzer's), after whose end every
/// answer is 0 and no fault happens any more.
class sim_chooser {
public:
    explicit sim_chooser(std::uint64_t seed) noexcept : state_(seed * 2 + 1), seeded_(true) {}
    explicit sim_chooser(bytes script) noexcept : script_(script) {}

    std::uint64_t word() noexcept {
        if (!seeded_) {
            std::uint64_t out = 0;
            for (int at = 0; at < 8; ++at) {
                out = out << 8 | byte();
            }
            return out;
        }
        state_ += 0x9E3779B97F4A7C15u;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
        return mixed ^ (mixed >> 31);
    }
    /// 0 to bound - 1; 0 where the bound is 0.
    std::uint32_t below(std::uint32_t bound) noexcept {
        if (bound <= 1) {
            return 0;
        }
        if (seeded_) {
            return static_cast<std::uint32_t>(((word() >> 32) * bound) >> 32);
        }
        std::uint32_t value = byte();
        for (std::uint32_t reach = 256; reach < bound && reach != 0; reach <<= 8) {
            value = value << 8 | byte();
        }
        return value % bound;
    }
    /// True `weight` times in 1,024.
    bool chance(std::uint32_t weight) noexcept {
        if (weight == 0) {
            return false;
        }
        return seeded_ ? (word() & 1023) < weight
                       : !exhausted() && std::uint32_t{byte()} * 4 < weight;
    }
    bool exhausted() const noexcept { return !seeded_ && at_ >= script_.size(); }

private:
    std::uint8_t byte() noexcept {
        return at_ < script_.size() ? static_cast<std::uint8_t>(script_[at_++]) : std::uint8_t{0};
    }

    std::uint64_t state_ = 0;
    bytes script_{};
    std::size_t at_ = 0;
    bool seeded_ = false;
};

/// What the simulator may do to its user; each has a weight of 1,024 and a counter.
enum class sim_fault : std::uint8_t {
    short_read,         // fewer bytes than are there
    short_write,        // fewer bytes taken than there is room for
    again,              // ready, but the call says EAGAIN; later it works
    late_event,         // done, but reported later
    reorder,            // events of different tokens and operations change places
    early_return,       // wait returns without an event
    oversleep,          // wait returns after its time-out
    stall,              // bytes from a peer arrive later
    reset,              // the network resets a connection while something is done on it
    reset_discards,     // a reset destroys bytes that were received and not read
    receive_error,      // a receive fails with any error a receive can give
    send_error,         // a send fails with any error a send can give
    accept_skipped,     // one client fails in accept: ECONNABORTED and the like
    accept_error,       // accept itself fails
    descriptors_empty,  // EMFILE, whatever the limit says
    attach_error,       // no kernel memory for the registration
    start_error,        // start_accept, start_connect, start_receive_from fail at once
    connect_error,      // a connect fails though somebody listens
    late_close,         // `closed` comes late
    close_drops_event,  // start_close swallows a completion that was on its way
    close_cancels,      // start_close answers an outstanding operation with `cancelled`
    late_after_stop,    // bytes still come after stop_receive
    credit_exact,       // never more than the credit, else up to a buffer more
    datagram_lost,
    datagram_twice,
    send_to_error,
    send_told,          // a send that is done at once is told by an event all the same
    count_
};
inline constexpr std::size_t sim_faults_count = static_cast<std::size_t>(sim_fault::count_);

inline const char* name(sim_fault fault) noexcept {
    constexpr const char* names[] = {
        "short_read",    "short_write",    "again",           "late_event",     "reorder",
        "early_return",  "oversleep",      "stall",           "reset",          "reset_discards",
        "receive_error", "send_error",     "accept_skipped",  "accept_error",   "descriptors_empty",
        "attach_error",  "start_error",    "connect_error",   "late_close",     "close_drops_event",
        "close_cancels", "late_after_stop", "credit_exact",   "datagram_lost",  "datagram_twice",
        "send_to_error", "send_told"};
    static_assert(sizeof(names) / sizeof(names[0]) == sim_faults_count);
    return names[static_cast<std::size_t>(fault)];
}

/// Deliberate breaches of the contract: each must make exactly its clause's cases fail.
enum class sim_break : std::uint8_t {
    nothing,
    p1_double_start,     // a second start is taken silently
    p2_sent_twice,       // `sent` comes twice for a send of three slices
    p3_late_event,       // a receive in progress answers after `closed`
    p4_swapped,          // two buffers of one stream change places
    p5_inside_start,     // a start call enters the caller's event list by itself
    p6_no_reason,        // `failed` says no reason
    p7_early_buffer,     // a buffer is taken when the receive starts
    p8_last_first,       // receives refused for want of a buffer are served last come first
    p9_raises_sigpipe,   // a send to a reset peer raises SIGPIPE
    p10_claims_all,      // a partial send is reported as whole
    p11_stale_token,     // an event after reuse carries the token of before
    p12_keeps_buffer,    // a cancelled receive keeps its buffer
    p13_lost_accept,     // connections on their way at stop_accept vanish
    p14_lost_end,        // data and end together: the end is forgotten
    p15_probe_takes,     // a probe takes a byte
    count_
};

struct sim_options {
    /// False: things happen when `wait` looks, as with readiness. True: operations complete in the
    /// background and are reported later, as with io_uring and completion ports.
    bool proactor = false;
    std::array<std::uint16_t, sim_faults_count> weights{};
    std::uint32_t window_bytes = 64 * 1024;       ///< unread bytes an end takes, unless set
    std::uint64_t delay_ns_max = 2'000'000;       ///< of late things
    std::uint64_t turn_ns_max = 20'000;           ///< virtual time that each `wait` itself takes
    std::uint64_t connect_timeout_ns = 130'000'000'000;
    std::uint32_t descriptors_max = 1'000'000;
    std::uint32_t backlog_max = 4096;
    bool privileged = false;
    bool gives_random = true;
    sim_break broken = sim_break::nothing;

    sim_options& with(sim_fault fault, std::uint16_t weight) noexcept {
        weights[static_cast<std::size_t>(fault)] = weight;
        return *this;
    }
    /// Each fault is off in half of the runs, in the others of a strength of its own: runs that
    /// do everything a little find less than runs that do a few things often.
    static sim_options swarm(sim_chooser& choose) noexcept {
        sim_options out;
        out.proactor = choose.below(2) == 1;
        for (std::size_t at = 0; at < sim_faults_count; ++at) {
            const bool rare = rarely(static_cast<sim_fault>(at));
            const bool on = choose.below(2) == 1;
            const std::uint32_t weight = 1 + choose.below(rare ? 24 : 400);
            out.weights[at] = static_cast<std::uint16_t>(on ? weight : 0);
        }
        out.window_bytes = 1u << (6 + choose.below(12));
        out.delay_ns_max = 1'000ull << choose.below(16);
        return out;
    }
    static constexpr bool rarely(sim_fault fault) noexcept {
        switch (fault) {
        case sim_fault::reset:
        case sim_fault::receive_error:
        case sim_fault::send_error:
        case sim_fault::accept_error:
        case sim_fault::descriptors_empty:
        case sim_fault::attach_error:
        case sim_fault::start_error:
            return true;
        default:
            return false;
        }
    }
};

/// The errors a call can give, with Linux's numbers.
struct sim_error {
    error why;
    std::int32_t os_code;
    const char* os_name;
};
inline constexpr sim_error sim_receive_errors[] = {
    {error::connection_reset, 104, "ECONNRESET"}, {error::timed_out, 110, "ETIMEDOUT"},
    {error::host_unreachable, 113, "EHOSTUNREACH"},
    {error::network_unreachable, 101, "ENETUNREACH"},
    {error::network_down, 100, "ENETDOWN"}, {error::kernel_memory_empty, 12, "ENOMEM"},
    {error::os_failure, 5, "EIO"}};
inline constexpr sim_error sim_send_errors[] = {
    {error::connection_reset, 104, "ECONNRESET"}, {error::broken_pipe, 32, "EPIPE"},
    {error::timed_out, 110, "ETIMEDOUT"}, {error::host_unreachable, 113, "EHOSTUNREACH"},
    {error::network_unreachable, 101, "ENETUNREACH"}, {error::network_down, 100, "ENETDOWN"},
    {error::kernel_memory_empty, 105, "ENOBUFS"}, {error::os_failure, 5, "EIO"}};
inline constexpr sim_error sim_skipped_errors[] = {
    {error::connection_aborted, 103, "ECONNABORTED"}, {error::os_failure, 71, "EPROTO"},
    {error::network_down, 100, "ENETDOWN"}, {error::permission_denied, 1, "EPERM"},
    {error::timed_out, 110, "ETIMEDOUT"}, {error::host_unreachable, 113, "EHOSTUNREACH"}};
inline constexpr sim_error sim_accept_errors[] = {{error::kernel_memory_empty, 105, "ENOBUFS"},
                                                  {error::kernel_memory_empty, 12, "ENOMEM"},
                                                  {error::os_failure, 22, "EINVAL"}};
inline constexpr sim_error sim_connect_errors[] = {
    {error::connection_refused, 111, "ECONNREFUSED"}, {error::timed_out, 110, "ETIMEDOUT"},
    {error::host_unreachable, 113, "EHOSTUNREACH"},
    {error::network_unreachable, 101, "ENETUNREACH"},
    {error::connection_reset, 104, "ECONNRESET"}, {error::permission_denied, 13, "EACCES"},
    {error::address_unavailable, 99, "EADDRNOTAVAIL"}};
inline constexpr sim_error sim_start_errors[] = {{error::kernel_memory_empty, 12, "ENOMEM"},
                                                 {error::kernel_memory_empty, 28, "ENOSPC"},
                                                 {error::descriptors_empty, 24, "EMFILE"},
                                                 {error::descriptors_empty, 23, "ENFILE"}};
inline constexpr sim_error sim_send_to_errors[] = {
    {error::too_long, 90, "EMSGSIZE"}, {error::permission_denied, 1, "EPERM"},
    {error::network_unreachable, 101, "ENETUNREACH"}, {error::kernel_memory_empty, 105, "ENOBUFS"},
    {error::host_unreachable, 113, "EHOSTUNREACH"}};
inline constexpr sim_error sim_other_errors[] = {
    {error::address_in_use, 98, "EADDRINUSE"}, {error::cancelled, 125, "ECANCELED"},
    {error::memory_too_small, 0, ""}};

/// Whoever owns a socket's descriptor: a simulator instance.
class sim_owner {
public:
    /// A stream in `slot` may have become readable, writable or connected.
    virtual void touched_stream(std::uint32_t slot) noexcept = 0;
    virtual void touched_datagram(std::uint32_t slot) noexcept = 0;
    virtual void touched_listener(std::uint32_t slot) noexcept = 0;
    /// Something this owner put off with `later` is due.
    virtual void due(std::uint32_t what, std::uint32_t slot, std::uint32_t serial) noexcept = 0;
    virtual void connect_decided(std::uint32_t slot, std::uint32_t serial) noexcept = 0;

protected:
    ~sim_owner() = default;
};

/// One end of a stream. The process under test owns one of the two ends of a connection or both;
/// the test owns the others (`sim_peer`).
struct sim_end {
    std::uint32_t generation = 0;
    std::uint32_t other = none_index;  // none: gone, or not connected yet
    std::uint32_t slot = none_index;   // of the owner
    std::uint32_t window_bytes = 0;
    sim_owner* owner = nullptr;
    std::size_t head = 0;              // consumed bytes of `arrived`
    std::vector<std::byte> arrived;
    std::uint64_t stalled_until_ns = 0;
    std::uint64_t sent_bytes = 0;      // taken from this end, ever
    std::uint64_t token_bits = 0;      // accepted and not delivered yet: for whom
    endpoint local{};
    endpoint remote{};
    bool open = false;
    bool of_peer = false;      // owned by the test
    bool connected = false;
    bool finished = false;     // the other end sends no more
    bool shut = false;         // this end sends no more
    bool reset = false;        // the other end or the network reset it
    bool reset_told = false;   // and a call said so
    bool noted = false;        // in the list of changed peers
    bool in_backlog = false;

    std::size_t unread() const noexcept { return arrived.size() - head; }
    std::size_t room() const noexcept {
        return unread() < window_bytes ? window_bytes - unread() : 0;
    }
    void append(bytes more) noexcept {
        if (head != 0 && head == arrived.size()) {
            arrived.clear();
            head = 0;
        } else if (head >= 4096 && head * 2 >= arrived.size()) {
            arrived.erase(arrived.begin(), arrived.begin() + static_cast<std::ptrdiff_t>(head));
            head = 0;
        }
        arrived.insert(arrived.end(), more.begin(), more.end());
    }
    bytes unread_bytes() const noexcept { return {arrived.data() + head, unread()}; }
};

struct sim_listener {
    std::uint32_t generation = 0;
    bool open = false;
    bool reuse_port = false;
    std::uint32_t backlog_max = 0;
    endpoint local{};
    std::string path;
    std::vector<std::uint32_t> waiting;  // ends, first come first
    struct acceptor {
        sim_owner* owner = nullptr;
        std::uint32_t slot = 0;
    };
    std::vector<acceptor> acceptors;
};

struct sim_datagram {
    endpoint from{};
    std::vector<std::byte> payload;
};
struct sim_datagram_socket {
    std::uint32_t generation = 0;
    bool open = false;
    bool of_peer = false;
    endpoint local{};
    sim_owner* owner = nullptr;
    std::uint32_t slot = 0;
    std::vector<sim_datagram> waiting;
};

/// How an address outside answers a connect.
enum class sim_answer : std::uint8_t { accept, refuse, silent, unreachable, reset_at_once };

class sim_network;

/// The test's end of a connection. A value: copy it freely.
class sim_peer {
public:
    sim_peer() noexcept = default;
    sim_peer(sim_network& net, std::uint32_t index, std::uint32_t generation) noexcept
        : net_(&net), index_(index), generation_(generation) {}

    /// Still open on the test's side.
    bool open() const noexcept;
    /// Takes what the other side has room for; 0 also when it is gone.
    std::size_t send(bytes data) noexcept;
    std::size_t send(std::string_view text) noexcept { return send(as_bytes(text)); }
    /// End of stream to the other side; receiving goes on.
    void shutdown() noexcept;
    /// RST, and gone on this side.
    void reset() noexcept;
    /// close(2): RST where unread bytes are left, else end of stream; gone on this side.
    void close() noexcept;
    /// How many unread bytes this side takes before the sender has to wait.
    void window(std::uint32_t window_bytes) noexcept;
    /// What arrived and was not taken yet.
    bytes unread() const noexcept;
    /// Forgets the first `count` of them, which makes room.
    void take(std::size_t count) noexcept;
    /// Everything unread as text, taken.
    std::string take_text() noexcept;
    /// The other side ended its stream (unread bytes may be left).
    bool finished() const noexcept;
    bool was_reset() const noexcept;
    endpoint local() const noexcept;
    endpoint remote() const noexcept;
    std::uint32_t index() const noexcept { return index_; }
    std::uint32_t generation() const noexcept { return generation_; }

private:
    sim_end* end() const noexcept;

    sim_network* net_ = nullptr;
    std::uint32_t index_ = none_index;
    std::uint32_t generation_ = 0;
};

/// What happened so far, for tables and for tests that faults do happen.
struct sim_counts {
    std::array<std::uint64_t, sim_faults_count> faults{};
    std::array<std::array<std::uint64_t, 9>, 9> events{};  // [operation][event_kind]
    std::array<std::uint64_t, static_cast<std::size_t>(error::count_)> errors{};
    std::uint64_t connections = 0;
    std::uint64_t waits = 0;
    std::uint64_t starved_receives = 0;
    std::uint64_t partial_sends = 0;
    std::uint64_t sends = 0;

    std::uint64_t of(sim_fault fault) const noexcept {
        return faults[static_cast<std::size_t>(fault)];
    }
    std::uint64_t of(event_kind kind) const noexcept {
        std::uint64_t sum = 0;
        for (const auto& row : events) {
            sum += row[static_cast<std::size_t>(kind)];
        }
        return sum;
    }
    std::uint64_t of(operation op, event_kind kind) const noexcept {
        return events[static_cast<std::size_t>(op)][static_cast<std::size_t>(kind)];
    }
    void add(const sim_counts& other) noexcept {
        for (std::size_t at = 0; at < faults.size(); ++at) {
            faults[at] += other.faults[at];
        }
        for (std::size_t op = 0; op < events.size(); ++op) {
            for (std::size_t kind = 0; kind < events[op].size(); ++kind) {
                events[op][kind] += other.events[op][kind];
            }
        }
        for (std::size_t at = 0; at < errors.size(); ++at) {
            errors[at] += other.errors[at];
        }
        connections += other.connections;
        waits += other.waits;
        starved_receives += other.starved_receives;
        partial_sends += other.partial_sends;
        sends += other.sends;
    }
};

/// Sockets, time and everything that is on its way. A test makes one, points `sim_current` at it
/// (`enter`), opens simulator instances and lets them wait.
class sim_network {
public:
    sim_network(sim_chooser chooser, const sim_options& chosen) noexcept
        : choose(chooser), options(chosen) {}
    sim_network(const sim_network&) = delete;
    sim_network& operator=(const sim_network&) = delete;
    inline ~sim_network();
    /// Makes this the network that listen, open_datagram and new instances use.
    inline void enter() noexcept;

    sim_chooser choose;
    sim_options options;
    sim_counts counts;

    // --- time ---------------------------------------------------------------------------------
    std::uint64_t now_ns() const noexcept { return now_ns_; }
    /// A word for the test at a time: `wait` returns then, and the word is in `due_words`.
    void at(std::uint64_t when_ns, std::uint64_t word) noexcept {
        push({when_ns, ++sequence_, what_driver, 0, 0, word, nullptr});
    }
    std::vector<std::uint64_t>& due_words() noexcept { return due_words_; }
    /// The time of the next thing that is on its way; all ones if there is none.
    std::uint64_t next_ns() const noexcept {
        return later_.empty() ? forever_ns : later_.front().when_ns;
    }
    /// Lets time pass, but not backwards, and does what becomes due.
    void advance_to(std::uint64_t when_ns) noexcept {
        while (next_ns() <= when_ns) {
            now_ns_ = std::max(now_ns_, next_ns());
            run_due();
        }
        now_ns_ = std::max(now_ns_, when_ns);
    }
    void pass(std::uint64_t span_ns) noexcept { now_ns_ += span_ns; }
    void run_due() noexcept;
    /// Hash over everything that came out of `wait`, and when.
    std::uint64_t trace() const noexcept { return trace_; }
    void note(std::uint64_t word) noexcept {
        trace_ = (trace_ ^ word) * 0x9FB21C651E98DF25u;
        trace_ ^= trace_ >> 29;
    }

    // --- the test's side ----------------------------------------------------------------------
    /// A client. `from` none: 192.0.2.1 with a port of its own. Not open: refused.
    sim_peer connect(std::uint16_t port, endpoint from = {}) noexcept;
    sim_peer connect(std::string_view path) noexcept;
    /// A connection whose other end is a descriptor of the process: for adopt.
    struct pair {
        sim_peer peer;
        socket_handle handle = no_handle;
    };
    pair connected_pair() noexcept;
    /// How an address answers connects of the process; unknown ones refuse.
    void remote(const endpoint& where, sim_answer answer) noexcept;
    void remote(std::string_view path, sim_answer answer) noexcept;
    /// Peers that such connects made and the test has not picked up yet.
    std::vector<sim_peer>& connected_peers() noexcept { return connected_peers_; }
    /// Peers something happened to since the test last emptied the list.
    std::vector<std::uint32_t>& changed_peers() noexcept { return changed_peers_; }
    sim_peer peer(std::uint32_t index) noexcept { return {*this, index, ends_[index].generation}; }
    void clear_changed() noexcept {
        for (std::uint32_t index : changed_peers_) {
            ends_[index].noted = false;
        }
        changed_peers_.clear();
    }
    /// A datagram socket of the test.
    std::uint32_t datagram_peer(const endpoint& local) noexcept;
    bool send_datagram(std::uint32_t from, const endpoint& to, bytes payload) noexcept {
        return deliver(datagrams_[from].local, to, payload);
    }
    std::vector<sim_datagram>& datagrams(std::uint32_t peer) noexcept {
        return datagrams_[peer].waiting;
    }
    /// Descriptors of the process under test.
    std::uint32_t descriptors_open() const noexcept { return descriptors_; }
    bool handle_open(socket_handle handle) const noexcept;

    // --- the simulator's side -----------------------------------------------------------------
    static constexpr std::uint32_t what_driver = 0;
    static constexpr std::uint32_t what_touch = 1;
    static constexpr std::uint32_t what_connect = 2;
    static constexpr std::uint32_t what_owner = 16;  // and above: handed to `due`

    bool fault(sim_fault kind) noexcept {
        const std::size_t at = static_cast<std::size_t>(kind);
        if (!choose.chance(options.weights[at])) {
            return false;
        }
        ++counts.faults[at];
        return true;
    }
    template <std::size_t Count>
    const sim_error& pick(const sim_error (&from)[Count]) noexcept {
        return from[choose.below(Count)];
    }
    std::uint64_t delay_ns() noexcept {
        const std::uint64_t reach = std::min<std::uint64_t>(options.delay_ns_max, 0xFFFFFFFE);
        return 1 + choose.below(static_cast<std::uint32_t>(reach));
    }
    void later(std::uint64_t when_ns, sim_owner* owner, std::uint32_t what, std::uint32_t slot,
               std::uint32_t serial) noexcept {
        push({when_ns, ++sequence_, what, slot, serial, 0, owner});
    }
    void forget(sim_owner* owner) noexcept {
        std::erase_if(later_, [&](const entry& each) { return each.owner == owner; });
        std::make_heap(later_.begin(), later_.end(), sooner);
    }

    socket_handle make_listener(const endpoint& where, std::string_view path, bool reuse_port,
                                std::uint32_t backlog) noexcept;
    socket_handle make_datagram(const endpoint& where, bool of_peer) noexcept;
    bool address_taken(const endpoint& where, bool reuse_port) const noexcept;
    bool path_taken(std::string_view path) const noexcept;
    bool datagram_taken(const endpoint& where) const noexcept;
    std::uint32_t make_end(bool of_peer) noexcept;
    void join(std::uint32_t a, std::uint32_t b) noexcept;
    void free_end(std::uint32_t index) noexcept;
    void touch(std::uint32_t index) noexcept;
    /// Sends RST to the other end, if there is one.
    void reset_other(std::uint32_t index) noexcept;
    void finish_other(std::uint32_t index) noexcept;
    /// close(2) of an end that nobody is attached to or will be any more.
    void close_end(std::uint32_t index, bool abort) noexcept;
    void close_listener(std::uint32_t index) noexcept;
    void close_datagram(std::uint32_t index) noexcept;
    bool deliver(const endpoint& from, const endpoint& to, bytes payload) noexcept;
    /// The listener a client of `where` gets to, or none.
    std::uint32_t find_listener(const endpoint& where, std::string_view path) noexcept;
    void enqueue(std::uint32_t listener, std::uint32_t end) noexcept;
    void wake_acceptors(std::uint32_t listener) noexcept;
    sim_answer answer_of(const endpoint& where, std::string_view path) const noexcept;
    std::uint16_t free_port() noexcept {
        next_port_ = next_port_ == 0 ? std::uint16_t{32768} : next_port_;
        return next_port_++;
    }
    bool descriptor_free() const noexcept { return descriptors_ < options.descriptors_max; }
    void count_descriptor(int change) noexcept {
        descriptors_ = static_cast<std::uint32_t>(static_cast<int>(descriptors_) + change);
    }
    sim_end& end(std::uint32_t index) noexcept { return ends_[index]; }
    sim_listener& listener(std::uint32_t index) noexcept { return listeners_[index]; }
    sim_datagram_socket& datagram(std::uint32_t index) noexcept { return datagrams_[index]; }
    std::uint32_t bagged = 0;  // things all instances could report now

    // Handles: two bits of kind, 22 of index, 32 of generation, so that use after close is seen.
    static constexpr std::int64_t kind_stream = 1, kind_listener = 2, kind_datagram = 3;
    static socket_handle handle_of(std::int64_t kind, std::uint32_t index,
                                   std::uint32_t generation) noexcept {
        return (std::int64_t{generation & 0x7FFFFFFF} << 32) | (kind << 24) | std::int64_t{index};
    }
    static std::int64_t kind_of(socket_handle handle) noexcept { return (handle >> 24) & 3; }
    static std::uint32_t index_of(socket_handle handle) noexcept {
        return static_cast<std::uint32_t>(handle & 0xFFFFFF);
    }
    /// The index behind an open handle of `kind`; a closed or made-up one is a broken contract.
    std::uint32_t opened(socket_handle handle, std::int64_t kind) const noexcept {
        sim_require(handle_open(handle) && kind_of(handle) == kind, "a handle that is open");
        return index_of(handle);
    }
    socket_handle stream_handle(std::uint32_t index) const noexcept {
        return handle_of(kind_stream, index, ends_[index].generation);
    }

private:
    struct entry {
        std::uint64_t when_ns;
        std::uint64_t sequence;
        std::uint32_t what;
        std::uint32_t slot;
        std::uint32_t serial;
        std::uint64_t word;
        sim_owner* owner;
    };
    static bool sooner(const entry& a, const entry& b) noexcept {
        return a.when_ns != b.when_ns ? a.when_ns > b.when_ns : a.sequence > b.sequence;
    }
    void push(const entry& what) noexcept {
        later_.push_back(what);
        std::push_heap(later_.begin(), later_.end(), sooner);
    }
    sim_peer client(std::uint32_t listener, const endpoint& from) noexcept;

    struct outside {
        endpoint where{};
        std::string path;
        sim_answer answer = sim_answer::refuse;
    };

    std::uint64_t now_ns_ = 1'000'000'000;
    std::uint64_t sequence_ = 0;
    std::uint64_t trace_ = 0;
    std::uint32_t descriptors_ = 3;
    std::uint16_t next_port_ = 32768;
    std::vector<entry> later_;
    std::vector<std::uint64_t> due_words_;
    std::vector<sim_end> ends_;
    std::vector<std::uint32_t> free_ends_;
    std::vector<sim_listener> listeners_;
    std::vector<sim_datagram_socket> datagrams_;
    std::vector<outside> outsides_;
    std::vector<sim_peer> connected_peers_;
    std::vector<std::uint32_t> changed_peers_;
    friend class sim_peer;
};

/// The network that the static calls of `simulator` speak to.
inline sim_network* sim_current = nullptr;
inline void sim_network::enter() noexcept { sim_current = this; }
inline sim_network::~sim_network() {
    if (sim_current == this) {
        sim_current = nullptr;
    }
}

inline void sim_network::run_due() noexcept {
    while (next_ns() <= now_ns_) {
        const entry due = later_.front();
        std::pop_heap(later_.begin(), later_.end(), sooner);
        later_.pop_back();
        if (due.what == what_driver) {
            due_words_.push_back(due.word);
        } else if (due.what == what_touch) {
            if (ends_[due.slot].open && ends_[due.slot].generation == due.serial) {
                touch(due.slot);
            }
        } else if (due.what == what_connect) {
            due.owner->connect_decided(due.slot, due.serial);
        } else {
            due.owner->due(due.what, due.slot, due.serial);
        }
    }
}

inline bool sim_network::handle_open(socket_handle handle) const noexcept {
    const std::uint32_t index = index_of(handle);
    const std::uint32_t generation = static_cast<std::uint32_t>(handle >> 32);
    switch (handle < 0 ? 0 : kind_of(handle)) {
    case kind_stream:
        return index < ends_.size() && ends_[index].open && !ends_[index].of_peer &&
               ends_[index].generation == generation;
    case kind_listener:
        return index < listeners_.size() && listeners_[index].open &&
               listeners_[index].generation == generation;
    case kind_datagram:
        return index < datagrams_.size() && datagrams_[index].open &&
               datagrams_[index].generation == generation && !datagrams_[index].of_peer;
    default:
        return false;
    }
}

inline std::uint32_t sim_network::make_end(bool of_peer) noexcept {
    std::uint32_t index = static_cast<std::uint32_t>(ends_.size());
    if (!free_ends_.empty()) {
        index = free_ends_.back();
        free_ends_.pop_back();
    } else {
        ends_.emplace_back();
    }
    sim_end& made = ends_[index];
    const std::uint32_t generation = made.generation + 1;
    std::vector<std::byte> kept = std::move(made.arrived);
    kept.clear();
    made = sim_end{};
    made.arrived = std::move(kept);
    made.generation = generation & 0x7FFFFFFF;
    made.open = true;
    made.of_peer = of_peer;
    made.window_bytes = options.window_bytes;
    return index;
}

inline void sim_network::free_end(std::uint32_t index) noexcept {
    sim_end& gone = ends_[index];
    sim_require(gone.open, "an end is closed once");
    if (gone.other != none_index) {
        ends_[gone.other].other = none_index;
        gone.other = none_index;
    }
    if (gone.arrived.capacity() > 1u << 20) {
        std::vector<std::byte>().swap(gone.arrived);
    }
    gone.open = false;
    gone.owner = nullptr;
    free_ends_.push_back(index);
}

inline void sim_network::join(std::uint32_t a, std::uint32_t b) noexcept {
    ends_[a].other = b;
    ends_[b].other = a;
    ends_[a].connected = ends_[b].connected = true;
    ends_[a].remote = ends_[b].local;
    ends_[b].remote = ends_[a].local;
}

inline void sim_network::touch(std::uint32_t index) noexcept {
    sim_end& end = ends_[index];
    if (end.owner != nullptr) {
        end.owner->touched_stream(end.slot);
    } else if (end.of_peer && !end.noted) {
        end.noted = true;
        changed_peers_.push_back(index);
    }
}

inline void sim_network::reset_other(std::uint32_t index) noexcept {
    const std::uint32_t other = ends_[index].other;
    if (other == none_index) {
        return;
    }
    ends_[other].reset = true;
    if (ends_[other].unread() != 0 && fault(sim_fault::reset_discards)) {
        ends_[other].head = ends_[other].arrived.size();
    }
    touch(other);
}

inline void sim_network::finish_other(std::uint32_t index) noexcept {
    const std::uint32_t other = ends_[index].other;
    ends_[index].shut = true;
    if (other != none_index) {
        ends_[other].finished = true;
        touch(other);
    }
}

inline void sim_network::close_end(std::uint32_t index, bool abort) noexcept {
    if (abort || ends_[index].unread() != 0) {
        reset_other(index);
    } else {
        finish_other(index);
    }
    if (!ends_[index].of_peer && !ends_[index].in_backlog) {
        count_descriptor(-1);
    }
    free_end(index);
}

inline bool sim_network::address_taken(const endpoint& where, bool reuse_port) const noexcept {
    for (const sim_listener& each : listeners_) {
        if (each.open && each.path.empty() && each.local.port == where.port &&
            each.local.family == where.family && !(reuse_port && each.reuse_port)) {
            return true;
        }
    }
    return false;
}
inline bool sim_network::path_taken(std::string_view path) const noexcept {
    for (const sim_listener& each : listeners_) {
        if (each.open && each.path == path) {
            return true;
        }
    }
    return false;
}
inline bool sim_network::datagram_taken(const endpoint& where) const noexcept {
    for (const sim_datagram_socket& each : datagrams_) {
        if (each.open && each.local.port == where.port && each.local.family == where.family &&
            each.local.address == where.address) {
            return true;
        }
    }
    return false;
}

inline socket_handle sim_network::make_listener(const endpoint& where, std::string_view path,
                                                bool reuse_port, std::uint32_t backlog) noexcept {
    std::uint32_t index = 0;
    while (index < listeners_.size() && listeners_[index].open) {
        ++index;
    }
    if (index == listeners_.size()) {
        listeners_.emplace_back();
    }
    sim_listener& made = listeners_[index];
    const std::uint32_t generation = made.generation + 1;
    made = sim_listener{};
    made.generation = generation;
    made.open = true;
    made.reuse_port = reuse_port;
    made.backlog_max = backlog == 0 ? options.backlog_max : backlog;
    made.local = where;
    made.path = path;
    count_descriptor(1);
    return handle_of(kind_listener, index, generation);
}

inline void sim_network::close_listener(std::uint32_t index) noexcept {
    sim_listener& gone = listeners_[index];
    sim_require(gone.acceptors.empty(), "close_handle: no accept outstanding");
    gone.open = false;
    for (std::uint32_t end : gone.waiting) {
        close_end(end, true);
    }
    gone.waiting.clear();
    count_descriptor(-1);
}

inline socket_handle sim_network::make_datagram(const endpoint& where, bool of_peer) noexcept {
    std::uint32_t index = 0;
    while (index < datagrams_.size() && datagrams_[index].open) {
        ++index;
    }
    if (index == datagrams_.size()) {
        datagrams_.emplace_back();
    }
    sim_datagram_socket& made = datagrams_[index];
    const std::uint32_t generation = made.generation + 1;
    made = sim_datagram_socket{};
    made.generation = generation;
    made.open = true;
    made.of_peer = of_peer;
    made.local = where;
    if (!of_peer) {
        count_descriptor(1);
    }
    return handle_of(kind_datagram, index, generation);
}

inline void sim_network::close_datagram(std::uint32_t index) noexcept {
    sim_require(datagrams_[index].owner == nullptr, "close_handle: no receive_from outstanding");
    datagrams_[index].open = false;
    datagrams_[index].waiting.clear();
    count_descriptor(-1);
}

inline std::uint32_t sim_network::datagram_peer(const endpoint& local) noexcept {
    return index_of(make_datagram(local, true));
}

/// True if `any` is bound so that what is sent to `to` reaches it.
inline bool sim_reaches(const endpoint& any, const endpoint& to) noexcept {
    constexpr std::array<std::uint8_t, 16> every{};
    const bool family = any.family == to.family ||
                        (any.family == address_family::ipv6 && to.family == address_family::ipv4);
    return any.port == to.port && family && (any.address == every || any.address == to.address);
}

inline bool sim_network::deliver(const endpoint& from, const endpoint& to,
                                 bytes payload) noexcept {
    if (fault(sim_fault::datagram_lost)) {
        return true;
    }
    for (sim_datagram_socket& each : datagrams_) {
        if (!each.open || !sim_reaches(each.local, to)) {
            continue;
        }
        const int copies = fault(sim_fault::datagram_twice) ? 2 : 1;
        for (int copy = 0; copy < copies; ++copy) {
            each.waiting.push_back({from, {payload.begin(), payload.end()}});
        }
        if (each.owner != nullptr) {
            each.owner->touched_datagram(each.slot);
        }
        return true;
    }
    return false;
}

inline std::uint32_t sim_network::find_listener(const endpoint& where,
                                                std::string_view path) noexcept {
    std::uint32_t found = none_index;
    std::uint32_t count = 0;
    for (std::uint32_t index = 0; index < listeners_.size(); ++index) {
        const sim_listener& each = listeners_[index];
        const bool fits = path.empty() ? each.path.empty() && sim_reaches(each.local, where)
                                       : each.path == path;
        if (each.open && fits && choose.below(++count) == 0) {
            found = index;
        }
    }
    return found;
}

inline void sim_network::enqueue(std::uint32_t listener, std::uint32_t end) noexcept {
    ends_[end].in_backlog = true;
    listeners_[listener].waiting.push_back(end);
    ++counts.connections;
    wake_acceptors(listener);
}

inline void sim_network::wake_acceptors(std::uint32_t listener) noexcept {
    const std::vector<sim_listener::acceptor>& who = listeners_[listener].acceptors;
    if (!who.empty()) {
        const std::uint32_t at = choose.below(static_cast<std::uint32_t>(who.size()));
        who[at].owner->touched_listener(who[at].slot);
    }
}

inline sim_peer sim_network::client(std::uint32_t listener, const endpoint& from) noexcept {
    if (listener == none_index ||
        listeners_[listener].waiting.size() >= listeners_[listener].backlog_max) {
        return {};
    }
    const std::uint32_t mine = make_end(true);
    const std::uint32_t theirs = make_end(false);
    ends_[mine].local = from;
    ends_[theirs].local = listeners_[listener].local;
    join(mine, theirs);
    enqueue(listener, theirs);
    return peer(mine);
}

inline sim_peer sim_network::connect(std::uint16_t port, endpoint from) noexcept {
    if (from.family == address_family::none) {
        from = ipv4(192, 0, 2, 1, 0);
    }
    if (from.port == 0) {
        from.port = free_port();
    }
    const endpoint to = from.family == address_family::ipv6 ? loopback_ipv6(port)
                                                            : loopback_ipv4(port);
    return client(find_listener(to, {}), from);
}
inline sim_peer sim_network::connect(std::string_view path) noexcept {
    endpoint from;
    from.family = address_family::unix_path;
    return client(find_listener({}, path), from);
}

inline sim_network::pair sim_network::connected_pair() noexcept {
    const std::uint32_t mine = make_end(true);
    const std::uint32_t theirs = make_end(false);
    ends_[mine].local = ipv4(192, 0, 2, 1, free_port());
    ends_[theirs].local = loopback_ipv4(free_port());
    join(mine, theirs);
    count_descriptor(1);
    return {peer(mine), stream_handle(theirs)};
}

inline void sim_network::remote(const endpoint& where, sim_answer answer) noexcept {
    std::erase_if(outsides_, [&](const outside& each) {
        return each.path.empty() && each.where == where;
    });
    outsides_.push_back({where, {}, answer});
}
inline void sim_network::remote(std::string_view path, sim_answer answer) noexcept {
    std::erase_if(outsides_, [&](const outside& each) { return each.path == path; });
    outsides_.push_back({{}, std::string(path), answer});
}
inline sim_answer sim_network::answer_of(const endpoint& where,
                                         std::string_view path) const noexcept {
    for (const outside& each : outsides_) {
        if (path.empty() ? each.path.empty() && each.where == where : each.path == path) {
            return each.answer;
        }
    }
    return sim_answer::refuse;
}

inline sim_end* sim_peer::end() const noexcept {
    if (net_ == nullptr || net_->ends_[index_].generation != generation_ ||
        !net_->ends_[index_].open) {
        return nullptr;
    }
    return &net_->ends_[index_];
}
inline bool sim_peer::open() const noexcept { return end() != nullptr; }
inline std::size_t sim_peer::send(bytes data) noexcept {
    sim_end* mine = end();
    if (mine == nullptr || mine->other == none_index || mine->reset || mine->shut) {
        return 0;
    }
    const std::uint32_t other = mine->other;
    sim_end& theirs = net_->ends_[other];
    const std::size_t count = std::min(theirs.room(), data.size());
    theirs.append(data.first(count));
    mine->sent_bytes += count;
    if (count != 0 && net_->fault(sim_fault::stall)) {
        theirs.stalled_until_ns = net_->now_ns() + net_->delay_ns();
        net_->later(theirs.stalled_until_ns, nullptr, sim_network::what_touch, other,
                    theirs.generation);
    }
    net_->touch(other);
    return count;
}
inline void sim_peer::shutdown() noexcept {
    if (end() != nullptr) {
        net_->finish_other(index_);
    }
}
inline void sim_peer::reset() noexcept {
    if (end() != nullptr) {
        net_->close_end(index_, true);
    }
}
inline void sim_peer::close() noexcept {
    if (end() != nullptr) {
        net_->close_end(index_, false);
    }
}
inline void sim_peer::window(std::uint32_t window_bytes) noexcept {
    if (sim_end* mine = end()) {
        mine->window_bytes = window_bytes;
        take(0);
    }
}
inline bytes sim_peer::unread() const noexcept {
    const sim_end* mine = end();
    return mine == nullptr ? bytes{} : mine->unread_bytes();
}
inline void sim_peer::take(std::size_t count) noexcept {
    if (sim_end* mine = end()) {
        mine->head += std::min(count, mine->unread());
        if (mine->other != none_index) {
            net_->touch(mine->other);
        }
    }
}
inline std::string sim_peer::take_text() noexcept {
    const std::string out(as_text(unread()));
    take(out.size());
    return out;
}
inline bool sim_peer::finished() const noexcept {
    const sim_end* mine = end();
    return mine != nullptr && mine->finished;
}
inline bool sim_peer::was_reset() const noexcept {
    const sim_end* mine = end();
    return mine != nullptr && mine->reset;
}
inline endpoint sim_peer::local() const noexcept {
    const sim_end* mine = end();
    return mine == nullptr ? endpoint{} : mine->local;
}
inline endpoint sim_peer::remote() const noexcept {
    const sim_end* mine = end();
    return mine == nullptr ? endpoint{} : mine->remote;
}

}  // namespace netio_test

#endif
