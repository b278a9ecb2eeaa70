// A backend over the network of tests/sim_network.hpp: the contract of docs/contract.md with every
// liberty it grants used, every precondition asserted, and faults from a seed. Uses heap.
#ifndef NETIO_TESTS_SIMULATOR_HPP
#define NETIO_TESTS_SIMULATOR_HPP

#include "tests/sim_network.hpp"

#include <csignal>
#include <utility>

namespace netio_test {

/// A quick hash over the bytes an operation may not see changed.
inline std::uint64_t sim_hash(bytes of) noexcept {
    std::uint64_t out = of.size();
    std::size_t at = 0;
    for (; at + 8 <= of.size(); at += 8) {
        out = (out ^ netio::detail::load_native<std::uint64_t>(of.data() + at)) *
              0x9FB21C651E98DF25u;
        out ^= out >> 31;
    }
    for (; at < of.size(); ++at) {
        out = (out ^ static_cast<std::uint8_t>(of[at])) * 0x100000001B3u;
    }
    return out;
}

/// On a thread that takes turns with others (tests/life_pool.hpp): waits until its turn, and says
/// how long it may wait then.
inline thread_local std::uint64_t (*sim_stand)() noexcept = nullptr;

class simulator final : public sim_owner {
public:
    static constexpr const char* name = "simulator";
    static constexpr std::size_t connection_bytes = 40;
    static constexpr std::uint32_t receive_credit = 64 * 1024;
    /// Accepts that may be on their way when stop_accept is called.
    static constexpr std::uint32_t late_accepts_max = 4;

    static availability available() noexcept { return {}; }
    static constexpr std::size_t bytes_needed(const backend_limits& sizes) noexcept {
        return (std::size_t{sizes.connections} * connection_bytes + 64 + 63) / 64 * 64;
    }
    static const char* os_name(int code) noexcept;
    static os_handle listen(const stream_address& address, const listen_options& how) noexcept;
    static os_handle open_datagram(const endpoint& where, const datagram_options& how) noexcept;
    static result<endpoint> local_of(socket_handle handle) noexcept;
    static netio::probe_result probe(socket_handle handle) noexcept;
    static void close_handle(socket_handle handle, bool abort = false) noexcept;
    static std::uint64_t reserve_descriptors(std::uint64_t count) noexcept {
        return std::min<std::uint64_t>(std::max<std::uint64_t>(count, 1024),
                                       sim_current->options.descriptors_max);
    }
    /// The same each time, so that a seed says everything; a test may let it fail.
    static bool fill_random(mutable_bytes out) noexcept {
        std::memset(out.data(), 0x5A, out.size());
        return sim_current->options.gives_random;
    }

    simulator() noexcept = default;
    simulator(const simulator&) = delete;
    simulator& operator=(const simulator&) = delete;
    ~simulator() { close(); }

    os_status open(mutable_bytes memory, const backend_limits& sizes, buffer_pool& pool) noexcept;
    void close() noexcept;
    os_status start_accept(socket_handle handle, token who) noexcept;
    void stop_accept(token who) noexcept;
    os_status start_connect(const stream_address& address, const socket_options& how,
                            token who) noexcept;
    os_status attach(socket_handle handle, token who) noexcept;
    socket_handle release(token who) noexcept;
    void start_receive(token who, mutable_bytes into, std::uint32_t credit) noexcept;
    void stop_receive(token who) noexcept;
    void start_send(token who, std::span<const bytes> slices) noexcept;
    bool send_now(token who, std::span<const bytes> slices) noexcept;
    void end_send(token who) noexcept;
    void start_close(token who, bool abort) noexcept;
    os_status start_receive_from(socket_handle handle, token who) noexcept;
    void stop_receive_from(token who) noexcept;
    void start_send_to(socket_handle handle, token who, bytes payload,
                       const endpoint& peer) noexcept;
    std::uint32_t wait(std::span<event> out, std::uint64_t timeout_ns) noexcept;
    bool ready() noexcept {
        return woken_ || bag_.size() != bag_head_ ||
               (!starved_.empty() && pool_->room(side::input) != 0);
    }
    void wake() noexcept { woken_ = true; }
    socket_handle wait_handle() noexcept { return no_handle; }
    std::uint64_t now_ns() const noexcept { return network().now_ns(); }

    /// Connections the instance knows now.
    std::uint32_t attached_count() const noexcept { return attached_; }

private:
    enum class thing : std::uint8_t {
        receive,
        send,
        close,
        connect,
        accept,
        accepted,
        receive_from,
        receive_from_closed,
        send_to
    };
    struct bagged {
        thing what;
        std::uint32_t slot;
        std::uint32_t serial;
    };
    struct arrival {
        event_kind kind = event_kind::received;
        bool disarmed = false;
        std::uint32_t byte_count = 0;
        std::uint32_t buffer_index = none_index;
        sim_error problem{error::none, 0, ""};
    };
    enum class progress : std::uint8_t { idle, waiting, done };
    static constexpr std::uint32_t arrivals_max = 4;

    struct stream {
        token who{};
        std::uint32_t serial = 1;
        std::uint32_t end = none_index;
        bool known = false;
        bool closing = false;
        bool abort = false;
        bool close_waits = false;
        // connect
        progress connecting = progress::idle;
        bool connect_failed = false;
        sim_error connect_problem{error::none, 0, ""};
        endpoint target{};
        std::string target_path;
        // receive: outstanding until its last event was delivered; armed while more may come
        bool receiving = false;
        bool armed = false;
        bool receive_over = false;
        bool receive_bagged = false;
        bool starved = false;
        bool filling = false;  // just now: both ends of a stream may be ours
        std::uint64_t receive_told = 0;  // the wait that reported the last event
        mutable_bytes into{};
        std::uint64_t into_hash = 0;
        std::uint32_t credit_left = 0;
        std::uint32_t early_buffer = none_index;
        std::array<arrival, arrivals_max> arrivals{};
        std::uint32_t arrivals_count = 0;
        // send
        progress sending = progress::idle;
        bool send_bagged = false;
        bool send_ended = false;
        bool held = false;  // the slices may still be looked at
        std::array<bytes, slices_max> slices{};
        std::uint32_t slices_count = 0;
        std::size_t send_bytes = 0;
        std::uint64_t send_hash = 0;
        std::uint32_t sent_bytes = 0;
        sim_error send_problem{error::none, 0, ""};
    };
    struct acceptor {
        token who{};
        std::uint32_t serial = 1;
        std::uint32_t listener = none_index;
        std::uint32_t flying = 0;
        bool on = false;
        bool in_bag = false;
        std::uint64_t failed_told = 0;  // the wait that reported the failure
    };
    struct receiver {
        token who{};
        std::uint32_t serial = 1;
        std::uint32_t socket = none_index;
        bool on = false;
        bool known = false;
        bool in_bag = false;
        bool starved = false;
        bool served = false;  // stood in the line, and it is its turn
    };
    struct datagram_send {
        token who{};
        std::uint32_t serial = 1;
        bool busy = false;
        bytes payload{};
        std::uint64_t hash = 0;
        endpoint from{};
        endpoint peer{};
    };

    sim_network& network() const noexcept {
        sim_require(net_ != nullptr, "a call needs an open backend");
        return *net_;
    }
    bool broken(sim_break how) const noexcept { return net_->options.broken == how; }
    stream& known(token who, const char* rule) noexcept;
    void forget(stream& gone, std::uint32_t slot) noexcept;
    void bag(thing what, std::uint32_t slot, std::uint32_t serial) noexcept;
    void post(thing what, std::uint32_t slot, std::uint32_t serial, sim_fault delay) noexcept;
    void post_receive(std::uint32_t slot) noexcept;
    bool begin_send(token who, std::span<const bytes> slices) noexcept;
    void tell_send(std::uint32_t slot) noexcept;
    void post_send(std::uint32_t slot) noexcept;
    bool readable(const stream& of) const noexcept;
    std::uint32_t take_buffer(bool& starved, thing what, std::uint32_t slot,
                              std::uint32_t serial) noexcept;
    bool perform_receive(std::uint32_t slot) noexcept;
    bool fill(std::uint32_t slot) noexcept;
    void take_bytes(stream& to, sim_end& end, mutable_bytes at, std::size_t count) noexcept;
    void perform_end(stream& to, sim_end& end) noexcept;
    bool push_arrival(stream& to, const arrival& what) noexcept;
    void fail_receive(stream& to, const sim_error& why) noexcept;
    bool perform_send(std::uint32_t slot) noexcept;
    void send_failed(stream& of, const sim_error& why) noexcept;
    std::size_t move_slices(stream& of, sim_end& to, std::size_t room) noexcept;
    std::uint64_t slices_hash(const stream& of) const noexcept;
    void leak_if_broken(const stream& of) noexcept {
        if (broken(sim_break::p12_keeps_buffer) && of.into.empty() && of.armed && readable(of)) {
            pool_->take(side::input);
        }
    }
    /// What was on its way is reported: now `closed` may come.
    bool join(std::uint32_t slot) noexcept {
        stream& of = streams_[slot];
        if (of.close_waits) {
            of.close_waits = false;
            bag(thing::close, slot, of.serial);
        }
        return true;
    }
    void cancel_receive(stream& of) noexcept;
    void cancel_send(stream& of, std::uint32_t slot) noexcept;
    void cancel_connect(stream& of) noexcept;
    void serve_starved() noexcept;
    std::uint32_t collect(std::span<event> out) noexcept;
    bool run(const bagged& what, event& out) noexcept;
    bool run_receive(std::uint32_t slot, event& out) noexcept;
    bool run_send(std::uint32_t slot, event& out) noexcept;
    bool run_close(std::uint32_t slot, event& out) noexcept;
    bool run_connect(std::uint32_t slot, event& out) noexcept;
    bool run_accept(std::uint32_t slot, event& out) noexcept;
    bool run_accepted(std::uint32_t end, event& out) noexcept;
    bool run_receive_from(std::uint32_t slot, event& out) noexcept;
    bool run_receive_from_closed(std::uint32_t slot, event& out) noexcept;
    bool run_send_to(std::uint32_t slot, event& out) noexcept;
    bool failed(event& out, operation op, const sim_error& why) noexcept;
    void note(const event& what) noexcept;
    static std::uint32_t owner_word(thing what) noexcept {
        return sim_network::what_owner + static_cast<std::uint32_t>(what);
    }

    void touched_stream(std::uint32_t slot) noexcept override;
    void touched_datagram(std::uint32_t slot) noexcept override;
    void touched_listener(std::uint32_t slot) noexcept override;
    void due(std::uint32_t what, std::uint32_t slot, std::uint32_t serial) noexcept override {
        bag(static_cast<thing>(what - sim_network::what_owner), slot, serial);
    }
    void connect_decided(std::uint32_t slot, std::uint32_t serial) noexcept override;

    sim_network* net_ = nullptr;
    buffer_pool* pool_ = nullptr;
    mutable_bytes memory_{};
    backend_limits sizes_{};
    std::uint32_t attached_ = 0;
    bool woken_ = false;
    bool waiting_ = false;
    std::uint64_t waits_ = 1;
    std::vector<stream> streams_;
    std::vector<acceptor> acceptors_;
    std::vector<receiver> receivers_;
    std::vector<datagram_send> sends_;
    std::vector<bagged> bag_;
    std::size_t bag_head_ = 0;
    std::vector<bagged> starved_;
    std::vector<event> extra_;       // of broken variants
    std::span<event> last_out_{};
};

// --- handles ------------------------------------------------------------------------------------

inline const char* simulator::os_name(int code) noexcept {
    const auto find = [&](std::span<const sim_error> in) noexcept -> const char* {
        for (const sim_error& each : in) {
            if (each.os_code == code) {
                return each.os_name;
            }
        }
        return nullptr;
    };
    const std::span<const sim_error> tables[] = {
        sim_receive_errors, sim_send_errors,  sim_skipped_errors, sim_accept_errors,
        sim_connect_errors, sim_start_errors, sim_send_to_errors, sim_other_errors};
    for (std::span<const sim_error> in : tables) {
        if (const char* found = find(in)) {
            return found;
        }
    }
    return "";
}

inline os_handle sim_failed(error why, std::int32_t os_code) noexcept {
    os_handle out;
    out.status = {why, os_code};
    ++sim_current->counts.errors[static_cast<std::size_t>(why)];
    return out;
}

/// Addresses of the documentation net 203.0.113.0/24 are never this machine's.
inline bool sim_not_ours(const endpoint& where) noexcept {
    return where.family == address_family::ipv4 && where.address[0] == 203 &&
           where.address[1] == 0 && where.address[2] == 113;
}

inline os_handle simulator::listen(const stream_address& address,
                                   const listen_options& how) noexcept {
    sim_require(sim_current != nullptr, "a network was entered");
    sim_network& net = *sim_current;
    endpoint where = address.ip;
    if (!net.descriptor_free()) {
        return sim_failed(error::descriptors_empty, 24);
    }
    if (!address.unix_path.empty()) {
        where = endpoint{};
        where.family = address_family::unix_path;
        if (net.path_taken(address.unix_path)) {
            return sim_failed(error::address_in_use, 98);
        }
    } else {
        sim_require(where.family == address_family::ipv4 || where.family == address_family::ipv6,
                    "listen: an address or a path");
        if (where.port != 0 && where.port < 1024 && !net.options.privileged) {
            return sim_failed(error::permission_denied, 13);
        }
        if (sim_not_ours(where)) {
            return sim_failed(error::address_unavailable, 99);
        }
        while (where.port == 0) {
            where.port = net.free_port();
            where.port = net.address_taken(where, false) ? std::uint16_t{0} : where.port;
        }
        if (net.address_taken(where, how.reuse_port)) {
            return sim_failed(error::address_in_use, 98);
        }
    }
    os_handle out;
    out.handle = net.make_listener(where, address.unix_path, how.reuse_port, how.backlog);
    return out;
}

inline os_handle simulator::open_datagram(const endpoint& where, const datagram_options&) noexcept {
    sim_require(sim_current != nullptr, "a network was entered");
    sim_network& net = *sim_current;
    endpoint bound = where;
    if (!net.descriptor_free()) {
        return sim_failed(error::descriptors_empty, 24);
    }
    if (bound.port != 0 && bound.port < 1024 && !net.options.privileged) {
        return sim_failed(error::permission_denied, 13);
    }
    if (sim_not_ours(bound)) {
        return sim_failed(error::address_unavailable, 99);
    }
    if (bound.port == 0) {
        bound.port = net.free_port();
    }
    if (net.datagram_taken(bound)) {
        return sim_failed(error::address_in_use, 98);
    }
    os_handle out;
    out.handle = net.make_datagram(bound, false);
    return out;
}

inline result<endpoint> simulator::local_of(socket_handle handle) noexcept {
    sim_network& net = *sim_current;
    sim_require(net.handle_open(handle), "local_of: an open handle");
    const std::uint32_t index = sim_network::index_of(handle);
    switch (sim_network::kind_of(handle)) {
    case sim_network::kind_listener:
        return net.listener(index).local;
    case sim_network::kind_datagram:
        return net.datagram(index).local;
    default:
        return net.end(index).local;
    }
}

inline netio::probe_result simulator::probe(socket_handle handle) noexcept {
    sim_network& net = *sim_current;
    sim_require(net.handle_open(handle), "probe: an open handle");
    sim_end& end = net.end(sim_network::index_of(handle));
    sim_require(end.connected, "probe: a connected stream");
    if (end.reset && !end.reset_told) {
        end.reset_told = true;
        return {netio::probed::failed, error::connection_reset};
    }
    if (end.unread() != 0) {
        if (net.options.broken == sim_break::p15_probe_takes) {
            ++end.head;
        }
        return {netio::probed::readable};
    }
    return {end.finished ? netio::probed::peer_closed : netio::probed::idle};
}

inline void simulator::close_handle(socket_handle handle, bool abort) noexcept {
    sim_network& net = *sim_current;
    sim_require(net.handle_open(handle), "close_handle: an open handle");
    const std::uint32_t index = sim_network::index_of(handle);
    switch (sim_network::kind_of(handle)) {
    case sim_network::kind_listener:
        net.close_listener(index);
        return;
    case sim_network::kind_datagram:
        net.close_datagram(index);
        return;
    default:
        sim_require(net.end(index).owner == nullptr, "close_handle: not attached");
        net.close_end(index, abort);
    }
}

// --- opening and closing ------------------------------------------------------------------------

inline os_status simulator::open(mutable_bytes memory, const backend_limits& sizes,
                                 buffer_pool& pool) noexcept {
    sim_require(net_ == nullptr, "open: not open");
    sim_require(sim_current != nullptr, "a network was entered");
    sim_require(memory.size() >= bytes_needed(sizes), "open: memory of bytes_needed");
    sim_require(reinterpret_cast<std::uintptr_t>(memory.data()) % 64 == 0, "open: aligned to 64");
    for (std::byte each : memory.first(bytes_needed(sizes))) {
        sim_require(each == std::byte{0}, "open: memory zeroed");
    }
    if (!sim_current->descriptor_free()) {
        return {error::descriptors_empty, 24};
    }
    net_ = sim_current;
    pool_ = &pool;
    memory_ = memory.first(bytes_needed(sizes));
    std::memset(memory_.data(), 0xA5, memory_.size());
    sizes_ = sizes;
    streams_.assign(sizes.connections, {});
    acceptors_.assign(sizes.listeners, {});
    receivers_.assign(sizes.datagram_sockets, {});
    sends_.assign(sizes.datagram_sends, {});
    net_->count_descriptor(2);
    return {};
}

inline void simulator::close() noexcept {
    if (net_ == nullptr) {
        return;
    }
    for (std::byte each : memory_) {
        sim_require(each == std::byte{0xA5}, "the backend's memory is the backend's");
    }
    std::memset(memory_.data(), 0, memory_.size());
    for (std::size_t at = bag_head_; at < bag_.size(); ++at) {
        if (bag_[at].what == thing::accepted) {
            net_->close_end(bag_[at].slot, true);
        }
    }
    net_->bagged -= static_cast<std::uint32_t>(bag_.size() - bag_head_);
    bag_.clear();
    bag_head_ = 0;
    for (acceptor& each : acceptors_) {
        if (each.on) {
            stop_accept(each.who);
        }
    }
    for (std::uint32_t slot = 0; slot < streams_.size(); ++slot) {
        if (streams_[slot].known) {
            const std::uint32_t end = streams_[slot].end;
            net_->end(end).owner = nullptr;
            forget(streams_[slot], slot);
            net_->close_end(end, false);
        }
    }
    for (receiver& each : receivers_) {
        if (each.known) {
            net_->datagram(each.socket).owner = nullptr;
        }
    }
    const auto give_back = [](auto&... each) { (std::exchange(each, {}), ...); };
    give_back(streams_, acceptors_, receivers_, sends_, bag_, starved_, extra_);  // no destructor
    net_->forget(this);
    net_->count_descriptor(-2);
    woken_ = false;
    net_ = nullptr;
}

inline simulator::stream& simulator::known(token who, const char* rule) noexcept {
    sim_require(net_ != nullptr, rule);
    sim_require(who.op() == operation::none, "callers leave the operation of a token none");
    sim_require(who.index() < streams_.size(), rule);
    stream& found = streams_[who.index()];
    sim_require(found.known, rule);
    sim_require(found.who == who, rule);
    return found;
}

/// Gives back what an attachment holds; the end is the caller's.
inline void simulator::forget(stream& gone, std::uint32_t) noexcept {
    for (std::uint32_t at = 0; at < gone.arrivals_count; ++at) {
        if (gone.arrivals[at].buffer_index != none_index) {
            pool_->give(gone.arrivals[at].buffer_index, side::input, gone.arrivals[at].byte_count);
        }
    }
    if (gone.early_buffer != none_index) {
        pool_->give(gone.early_buffer, side::input, 0);
    }
    const std::uint32_t serial = gone.serial + 1;
    gone = stream{};
    gone.serial = serial;
    --attached_;
}

// --- the bag of things that can be reported -----------------------------------------------------

inline void simulator::bag(thing what, std::uint32_t slot, std::uint32_t serial) noexcept {
    bag_.push_back({what, slot, serial});
    ++net_->bagged;
}

inline void simulator::post(thing what, std::uint32_t slot, std::uint32_t serial,
                            sim_fault delay) noexcept {
    if (net_->fault(delay)) {
        net_->later(net_->now_ns() + net_->delay_ns(), this, owner_word(what), slot, serial);
    } else {
        bag(what, slot, serial);
    }
}

inline void simulator::post_receive(std::uint32_t slot) noexcept {
    stream& of = streams_[slot];
    if (!of.receive_bagged && !of.starved) {
        of.receive_bagged = true;
        post(thing::receive, slot, of.serial, sim_fault::late_event);
    }
}
inline void simulator::post_send(std::uint32_t slot) noexcept {
    stream& of = streams_[slot];
    if (!of.send_bagged) {
        of.send_bagged = true;
        post(thing::send, slot, of.serial, sim_fault::late_event);
    }
}

inline bool simulator::readable(const stream& of) const noexcept {
    const sim_end& end = net_->end(of.end);
    return end.connected && end.stalled_until_ns <= net_->now_ns() &&
           (end.unread() != 0 || end.finished || end.reset);
}

inline void simulator::touched_stream(std::uint32_t slot) noexcept {
    stream& of = streams_[slot];
    if (of.closing || of.connecting != progress::idle) {
        return;
    }
    if (of.armed && !of.starved && readable(of)) {
        // A kernel that works in the background fills buffers before anybody asks.
        // But not one that is being filled just now, where both ends of a stream are ours.
        if (net_->options.proactor && !of.filling && net_->choose.below(2) == 1) {
            perform_receive(slot);
        }
        post_receive(slot);
    }
    if (of.sending == progress::waiting) {
        post_send(slot);
    }
}

inline void simulator::touched_listener(std::uint32_t slot) noexcept {
    acceptor& of = acceptors_[slot];
    sim_listener& at = net_->listener(of.listener);
    // Accepts armed in the background finish before anybody asks, and are then on their way.
    while (net_->options.proactor && of.on && !at.waiting.empty() && net_->descriptor_free() &&
           of.flying < late_accepts_max && net_->choose.below(2) == 1) {
        const std::uint32_t end = at.waiting.front();
        at.waiting.erase(at.waiting.begin());
        net_->end(end).in_backlog = false;
        net_->end(end).token_bits = of.who.bits;
        net_->count_descriptor(1);
        ++of.flying;
        bag(thing::accepted, end, net_->end(end).generation);
    }
    if (of.on && !of.in_bag && !at.waiting.empty()) {
        of.in_bag = true;
        post(thing::accept, slot, of.serial, sim_fault::late_event);
    }
}

inline void simulator::touched_datagram(std::uint32_t slot) noexcept {
    receiver& of = receivers_[slot];
    if (of.on && !of.in_bag && !of.starved) {
        of.in_bag = true;
        post(thing::receive_from, slot, of.serial, sim_fault::late_event);
    }
}

/// A buffer for received bytes, or none: then whoever asks stands in the line, first come first.
inline std::uint32_t simulator::take_buffer(bool& starved, thing what, std::uint32_t slot,
                                            std::uint32_t serial) noexcept {
    if (starved_.empty()) {
        const std::uint32_t taken = pool_->take(side::input);
        if (taken != none_index) {
            return taken;
        }
    }
    ++net_->counts.starved_receives;
    starved = true;
    starved_.push_back({what, slot, serial});
    return none_index;
}

inline void simulator::serve_starved() noexcept {
    while (!starved_.empty() && pool_->room(side::input) != 0) {
        const bool last = broken(sim_break::p8_last_first);
        const auto at = last ? starved_.end() - 1 : starved_.begin();
        const bagged next = *at;
        // The line behind is put aside so that this one finds it empty.
        starved_.erase(at);
        std::vector<bagged> line;
        line.swap(starved_);
        if (next.what == thing::receive && streams_[next.slot].serial == next.serial &&
            streams_[next.slot].starved) {
            stream& of = streams_[next.slot];
            of.starved = false;
            if (of.armed && (of.arrivals_count != 0 || perform_receive(next.slot))) {
                of.receive_bagged = true;
                bag(thing::receive, next.slot, of.serial);
            }
        } else if (next.what == thing::receive_from &&
                   receivers_[next.slot].serial == next.serial) {
            receiver& of = receivers_[next.slot];
            of.starved = false;
            of.in_bag = of.served = of.on;
            if (of.on) {
                bag(thing::receive_from, next.slot, of.serial);
                starved_.swap(line);
                return;  // it takes its buffer when it is reported
            }
        }
        line.insert(line.end(), starved_.begin(), starved_.end());
        starved_.swap(line);
    }
}

// --- accept and connect -------------------------------------------------------------------------

inline os_status simulator::start_accept(socket_handle handle, token who) noexcept {
    const std::uint32_t listener = network().opened(handle, sim_network::kind_listener);
    sim_require(who.index() < acceptors_.size(), "start_accept: an index below the limit");
    acceptor& of = acceptors_[who.index()];
    sim_require(!of.on, "P1 start_accept: none outstanding");
    if (net_->fault(sim_fault::start_error)) {
        const sim_error& why = net_->pick(sim_start_errors);
        ++net_->counts.errors[static_cast<std::size_t>(why.why)];
        return {why.why, why.os_code};
    }
    const std::uint32_t serial = of.serial + 1;
    of = acceptor{};
    of.serial = serial;
    of.who = who;
    of.listener = listener;
    of.on = true;
    net_->listener(listener).acceptors.push_back({this, who.index()});
    touched_listener(who.index());
    return {};
}

inline void simulator::stop_accept(token who) noexcept {
    sim_require(net_ != nullptr && who.index() < acceptors_.size(), "stop_accept: a known token");
    acceptor& of = acceptors_[who.index()];
    if (!of.on && of.who == who && of.failed_told == waits_) {
        return;  // the failure is in the caller's hands, perhaps not looked at yet
    }
    sim_require(of.on && of.who == who, "stop_accept: an accept is outstanding");
    of.on = false;
    sim_listener& at = net_->listener(of.listener);
    std::erase_if(at.acceptors, [&](const sim_listener::acceptor& each) {
        return each.owner == this && each.slot == who.index();
    });
    if (broken(sim_break::p13_lost_accept)) {
        for (std::uint32_t end : at.waiting) {
            net_->free_end(end);
        }
        at.waiting.clear();
    }
    if (!at.waiting.empty()) {
        net_->wake_acceptors(of.listener);
    }
}

inline bool simulator::run_accept(std::uint32_t slot, event& out) noexcept {
    acceptor& of = acceptors_[slot];
    of.in_bag = false;
    sim_listener& at = net_->listener(of.listener);
    if (!of.on || at.waiting.empty()) {
        return false;
    }
    if (net_->fault(sim_fault::again)) {
        of.in_bag = true;
        net_->later(net_->now_ns() + net_->delay_ns(), this, owner_word(thing::accept), slot,
                    of.serial);
        return false;
    }
    out.who = of.who;
    const bool skipped = net_->fault(sim_fault::accept_skipped);
    const bool none_left = !net_->descriptor_free() || net_->fault(sim_fault::descriptors_empty);
    const bool wrong = net_->fault(sim_fault::accept_error);
    if (!wrong) {
        const std::uint32_t end = at.waiting.front();
        at.waiting.erase(at.waiting.begin());
        if (!skipped && !none_left) {
            net_->end(end).in_backlog = false;
            net_->count_descriptor(1);
            out.op = operation::accept;
            out.kind = event_kind::accepted;
            out.handle = net_->stream_handle(end);
            out.peer = net_->end(end).remote;
            touched_listener(slot);
            return true;
        }
        net_->close_end(end, true);
        if (!none_left) {
            const sim_error& why = net_->pick(sim_skipped_errors);
            ++net_->counts.errors[static_cast<std::size_t>(why.why)];
            touched_listener(slot);
            return false;
        }
    }
    stop_accept(of.who);
    of.failed_told = waits_;
    constexpr sim_error no_descriptors{error::descriptors_empty, 24, "EMFILE"};
    return failed(out, operation::accept, wrong ? net_->pick(sim_accept_errors) : no_descriptors);
}

inline bool simulator::run_accepted(std::uint32_t end, event& out) noexcept {
    out.who = token{net_->end(end).token_bits};
    acceptor& of = acceptors_[out.who.index()];
    if (of.who == out.who && of.flying != 0) {
        --of.flying;
    }
    net_->end(end).token_bits = 0;
    out.op = operation::accept;
    out.kind = event_kind::accepted;
    out.handle = net_->stream_handle(end);
    out.peer = net_->end(end).remote;
    return true;
}

inline os_status simulator::start_connect(const stream_address& address, const socket_options&,
                                          token who) noexcept {
    sim_network& net = network();
    sim_require(who.index() < streams_.size() && who.op() == operation::none,
                "start_connect: an index below the limit");
    stream& of = streams_[who.index()];
    sim_require(!of.known, "start_connect: the slot has no operation");
    const bool wrong = net.fault(sim_fault::start_error);
    if (wrong || !net.descriptor_free()) {
        const sim_error why = wrong ? net.pick(sim_start_errors)
                                    : sim_error{error::descriptors_empty, 24, "EMFILE"};
        ++net.counts.errors[static_cast<std::size_t>(why.why)];
        return {why.why, why.os_code};
    }
    of.known = true;
    of.who = who;
    of.target = address.ip;
    of.target_path = address.unix_path;
    of.connecting = progress::waiting;
    of.end = net.make_end(false);
    net.count_descriptor(1);
    ++attached_;
    net.end(of.end).owner = this;
    net.end(of.end).slot = who.index();
    net.end(of.end).local = loopback_ipv4(net.free_port());
    if (!address.unix_path.empty()) {
        net.end(of.end).local = endpoint{};
        net.end(of.end).local.family = address_family::unix_path;
    }
    const bool silent = net.find_listener(address.ip, address.unix_path) == none_index &&
                        net.answer_of(address.ip, address.unix_path) == sim_answer::silent;
    net.later(net.now_ns() + (silent ? net.options.connect_timeout_ns : net.delay_ns()), this,
              sim_network::what_connect, who.index(), of.serial);
    return {};
}

inline void simulator::connect_decided(std::uint32_t slot, std::uint32_t serial) noexcept {
    stream& of = streams_[slot];
    if (of.serial != serial || of.closing || of.connecting != progress::waiting) {
        return;
    }
    const std::uint32_t listener = net_->find_listener(of.target, of.target_path);
    sim_answer answer = sim_answer::accept;
    if (listener == none_index) {
        answer = net_->answer_of(of.target, of.target_path);
    } else if (net_->listener(listener).waiting.size() >= net_->listener(listener).backlog_max) {
        answer = sim_answer::refuse;
    }
    of.connecting = progress::done;
    bag(thing::connect, slot, of.serial);
    const bool wrong = net_->fault(sim_fault::connect_error);
    if (wrong || (answer != sim_answer::accept && answer != sim_answer::reset_at_once)) {
        of.connect_problem = wrong                                ? net_->pick(sim_connect_errors)
                             : answer == sim_answer::refuse       ? sim_connect_errors[0]
                             : answer == sim_answer::unreachable  ? sim_connect_errors[2]
                                                                  : sim_connect_errors[1];
        return;
    }
    const std::uint32_t other = net_->make_end(listener == none_index);
    net_->end(other).local = listener == none_index ? of.target
                                                    : net_->listener(listener).local;
    net_->join(of.end, other);
    if (listener != none_index) {
        net_->enqueue(listener, other);
    } else if (answer == sim_answer::accept) {
        net_->connected_peers().push_back(net_->peer(other));
    } else {
        net_->close_end(other, true);
    }
}

inline bool simulator::run_connect(std::uint32_t slot, event& out) noexcept {
    stream& of = streams_[slot];
    if (of.connecting != progress::done) {
        return false;
    }
    of.connecting = progress::idle;
    out.who = of.who;
    out.op = operation::connect;
    if (of.connect_problem.why != error::none) {
        of.connect_failed = true;
        return failed(out, operation::connect, of.connect_problem);
    }
    out.kind = event_kind::connected;
    out.handle = net_->stream_handle(of.end);
    return true;
}

inline os_status simulator::attach(socket_handle handle, token who) noexcept {
    const std::uint32_t end = network().opened(handle, sim_network::kind_stream);
    sim_require(net_->end(end).owner == nullptr, "attach: not attached yet");
    sim_require(who.index() < streams_.size() && who.op() == operation::none,
                "attach: an index below the limit");
    stream& of = streams_[who.index()];
    sim_require(!of.known, "attach: the slot has no operation");
    if (net_->fault(sim_fault::attach_error)) {
        const sim_error& why = sim_start_errors[net_->choose.below(2)];
        ++net_->counts.errors[static_cast<std::size_t>(why.why)];
        return {why.why, why.os_code};
    }
    of.known = true;
    of.who = who;
    of.end = end;
    ++attached_;
    net_->end(end).owner = this;
    net_->end(end).slot = who.index();
    if (broken(sim_break::p11_stale_token) && who.generation() > 1) {
        event stale;
        stale.who = token::of(who.index(), who.generation() - 1);
        stale.op = operation::receive;
        stale.kind = event_kind::ended;
        extra_.push_back(stale);
    }
    return {};
}

inline socket_handle simulator::release(token who) noexcept {
    stream& of = known(who, "release: attached");
    sim_require(!of.closing && of.connecting == progress::idle && !of.connect_failed,
                "release: attached and not closing");
    sim_require(!of.receiving && of.sending == progress::idle, "release: nothing outstanding");
    const std::uint32_t end = of.end;
    net_->end(end).owner = nullptr;
    forget(of, who.index());
    return net_->stream_handle(end);
}

// --- receive ------------------------------------------------------------------------------------

inline void simulator::start_receive(token who, mutable_bytes into, std::uint32_t credit) noexcept {
    stream& of = known(who, "start_receive: attached");
    sim_require(!of.closing && of.connecting == progress::idle && !of.connect_failed,
                "start_receive: connected and not closing");
    if (of.receiving && broken(sim_break::p1_double_start)) {
        return;
    }
    sim_require(!of.receiving, "P1 start_receive: none outstanding");
    sim_require(!of.receive_over, "start_receive: not after ended or failed");
    sim_require(!into.empty() || credit != 0, "start_receive: memory or credit");
    of.receiving = of.armed = true;
    of.into = into;
    of.into_hash = sim_hash(into.first(std::min<std::size_t>(into.size(), 64)));
    of.credit_left = credit;
    if (credit > 4096 && broken(sim_break::p7_early_buffer) && of.early_buffer == none_index) {
        of.early_buffer = pool_->take(side::input);
    }
    if (readable(of)) {
        post_receive(who.index());
    }
}

inline bool simulator::push_arrival(stream& to, const arrival& what) noexcept {
    sim_require(to.arrivals_count < arrivals_max, "the simulator's own bound");
    to.arrivals[to.arrivals_count++] = what;
    if (what.disarmed || what.kind != event_kind::received) {
        to.armed = false;
    }
    return true;
}

inline void simulator::fail_receive(stream& to, const sim_error& why) noexcept {
    arrival last;
    last.kind = event_kind::failed;
    last.problem = why;
    push_arrival(to, last);
}

inline void simulator::take_bytes(stream& to, sim_end& end, mutable_bytes at,
                                  std::size_t count) noexcept {
    if (broken(sim_break::p4_swapped) && to.into.empty() && end.unread() >= 2 * count) {
        const auto first = end.arrived.begin() + static_cast<std::ptrdiff_t>(end.head);
        const auto middle = first + static_cast<std::ptrdiff_t>(count);
        std::rotate(first, middle, middle + static_cast<std::ptrdiff_t>(count));
    }
    std::memcpy(at.data(), end.arrived.data() + end.head, count);
    end.head += count;
    if (broken(sim_break::p14_lost_end) && end.unread() == 0) {
        end.finished = false;
    }
    if (end.other != none_index) {
        net_->touch(end.other);
    }
}

/// No bytes are left: says why the stream is over.
inline void simulator::perform_end(stream& to, sim_end& end) noexcept {
    const bool told = end.reset_told && net_->choose.below(2) == 1;
    if (end.reset && !told) {
        end.reset_told = true;
        fail_receive(to, sim_receive_errors[0]);
        return;
    }
    arrival last;
    last.kind = event_kind::ended;
    push_arrival(to, last);
}

/// What recv(2) would do: true if there is something to report now.
inline bool simulator::perform_receive(std::uint32_t slot) noexcept {
    streams_[slot].filling = true;
    const bool found = fill(slot);
    streams_[slot].filling = false;
    return found;
}
inline bool simulator::fill(std::uint32_t slot) noexcept {
    stream& of = streams_[slot];
    sim_end& end = net_->end(of.end);
    if (!of.armed || of.arrivals_count + 1 >= arrivals_max || !readable(of)) {
        return of.arrivals_count != 0;
    }
    if (net_->fault(sim_fault::reset)) {
        net_->reset_other(of.end);
        end.reset = true;
    }
    if (net_->fault(sim_fault::receive_error)) {
        fail_receive(of, net_->pick(sim_receive_errors));
        return true;
    }
    if (end.unread() == 0) {
        perform_end(of, end);
        return true;
    }
    arrival next;
    std::size_t reach = of.into.empty() ? pool_->buffer_bytes() : of.into.size();
    if (of.into.empty() && net_->fault(sim_fault::credit_exact)) {
        reach = std::min<std::size_t>(reach, of.credit_left);
    }
    std::size_t count = std::min(reach, end.unread());
    if (count > 1 && net_->fault(sim_fault::short_read)) {
        count = 1 + net_->choose.below(static_cast<std::uint32_t>(count - 1));
    }
    if (!of.into.empty()) {
        sim_require(sim_hash(of.into.first(std::min<std::size_t>(of.into.size(), 64))) ==
                        of.into_hash,
                    "start_receive: `into` is the kernel's until the event");
        take_bytes(of, end, of.into, count);
        of.into_hash = sim_hash(of.into.first(count));
        next.disarmed = true;
    } else {
        next.buffer_index = of.early_buffer;
        of.early_buffer = none_index;
        if (next.buffer_index == none_index) {
            next.buffer_index = take_buffer(of.starved, thing::receive, slot, of.serial);
        }
        if (next.buffer_index == none_index) {
            return of.arrivals_count != 0;
        }
        take_bytes(of, end, {pool_->data(next.buffer_index), pool_->buffer_bytes()}, count);
        next.disarmed = count >= of.credit_left;
        of.credit_left -= static_cast<std::uint32_t>(std::min<std::size_t>(count, of.credit_left));
    }
    next.byte_count = static_cast<std::uint32_t>(count);
    return push_arrival(of, next);
}

inline bool simulator::run_receive(std::uint32_t slot, event& out) noexcept {
    stream& of = streams_[slot];
    of.receive_bagged = false;
    if (!of.receiving) {
        return false;
    }
    if (of.arrivals_count == 0) {
        if (of.armed && net_->fault(sim_fault::again)) {
            of.receive_bagged = true;
            net_->later(net_->now_ns() + net_->delay_ns(), this, owner_word(thing::receive), slot,
                        of.serial);
            return false;
        }
        if (!perform_receive(slot)) {
            return false;
        }
    }
    const arrival first = of.arrivals[0];
    std::copy(of.arrivals.begin() + 1, of.arrivals.end(), of.arrivals.begin());
    --of.arrivals_count;
    out.who = of.who;
    out.op = operation::receive;
    out.kind = first.kind;
    out.disarmed = first.disarmed;
    out.byte_count = first.byte_count;
    out.buffer_index = first.buffer_index;
    if (!of.into.empty() && first.kind == event_kind::received && first.byte_count != 0) {
        sim_require(sim_hash(of.into.first(first.byte_count)) == of.into_hash,
                    "start_receive: `into` is the kernel's until the event");
    }
    if (first.disarmed || first.kind != event_kind::received) {
        of.receiving = of.armed = false;
        of.receive_told = waits_;
        of.receive_over = first.kind != event_kind::received;
    } else if (of.arrivals_count != 0 || (of.armed && readable(of))) {
        post_receive(slot);
    }
    return first.kind != event_kind::failed || failed(out, operation::receive, first.problem);
}

inline void simulator::stop_receive(token who) noexcept {
    stream& of = known(who, "stop_receive: attached");
    sim_require(!of.closing, "stop_receive: not closing");
    if (!of.receiving && of.receive_told == waits_) {
        return;  // its last event is in the caller's hands, perhaps not looked at yet
    }
    sim_require(of.receiving, "stop_receive: a receive is outstanding");
    leak_if_broken(of);
    if (of.armed && !of.starved && net_->fault(sim_fault::late_after_stop)) {
        perform_receive(who.index());
    }
    of.starved = false;
    if (of.early_buffer != none_index) {
        pool_->give(of.early_buffer, side::input, 0);
        of.early_buffer = none_index;
    }
    if (of.armed) {
        of.armed = false;
        if (of.arrivals_count != 0) {
            of.arrivals[of.arrivals_count - 1].disarmed = true;
        } else {
            arrival last;
            last.disarmed = true;
            push_arrival(of, last);
        }
    }
    post_receive(who.index());
}

// --- send ---------------------------------------------------------------------------------------

inline std::uint64_t simulator::slices_hash(const stream& of) const noexcept {
    std::uint64_t out = 0;
    for (std::uint32_t at = 0; at < of.slices_count; ++at) {
        out = out * 31 + sim_hash(of.slices[at]);
    }
    return out;
}

inline void simulator::start_send(token who, std::span<const bytes> slices) noexcept {
    if (begin_send(who, slices)) {
        tell_send(who.index());
    }
}

inline bool simulator::send_now(token who, std::span<const bytes> slices) noexcept {
    if (!begin_send(who, slices)) {
        return false;
    }
    stream& of = streams_[who.index()];
    const bool whole = of.sending == progress::done && of.send_problem.why == error::none &&
                       of.sent_bytes == of.send_bytes && !net_->fault(sim_fault::send_told);
    if (!whole) {
        tell_send(who.index());
        return false;
    }
    if (broken(sim_break::p2_sent_twice) && of.slices_count == 3) {
        event told;
        told.who = of.who;
        told.op = operation::send;
        told.kind = event_kind::sent;
        extra_.push_back(told);
    }
    of.sending = progress::idle;
    of.held = false;
    return true;
}

inline void simulator::tell_send(std::uint32_t slot) noexcept {
    if (streams_[slot].sending == progress::done || net_->options.proactor) {
        post_send(slot);
    }
}

/// False where a broken variant takes no notice of it.
inline bool simulator::begin_send(token who, std::span<const bytes> slices) noexcept {
    stream& of = known(who, "start_send: attached");
    sim_require(!of.closing && of.connecting == progress::idle && !of.connect_failed,
                "start_send: connected and not closing");
    if (of.sending != progress::idle && broken(sim_break::p1_double_start)) {
        return false;
    }
    sim_require(of.sending == progress::idle, "P1 start_send: none outstanding");
    sim_require(!of.send_ended, "start_send: not after end_send");
    sim_require(!slices.empty() && slices.size() <= slices_max, "start_send: 1 to 8 slices");
    of.send_bytes = 0;
    of.slices_count = 0;
    for (const bytes& each : slices) {
        sim_require(!each.empty(), "start_send: no empty slice");
        of.slices[of.slices_count++] = each;
        of.send_bytes += each.size();
    }
    of.sending = progress::waiting;
    of.held = true;
    of.send_hash = slices_hash(of);
    of.send_problem = {error::none, 0, ""};
    if (!net_->options.proactor || net_->choose.below(4) == 0) {
        perform_send(who.index());
    }
    if (broken(sim_break::p5_inside_start) && !last_out_.empty()) {
        last_out_[0] = event{};
        last_out_[0].who = who;
        last_out_[0].op = operation::send;
        last_out_[0].kind = event_kind::sent;
    }
    return true;
}

inline void simulator::send_failed(stream& of, const sim_error& why) noexcept {
    of.sending = progress::done;
    of.send_problem = why;
    of.sent_bytes = 0;
}

/// Copies as much as the other end takes, in order; returns how much.
inline std::size_t simulator::move_slices(stream& of, sim_end& to, std::size_t room) noexcept {
    std::size_t left = room;
    for (std::uint32_t at = 0; at < of.slices_count && left != 0; ++at) {
        const std::size_t count = std::min(left, of.slices[at].size());
        to.append(of.slices[at].first(count));
        left -= count;
    }
    return room - left;
}

/// What send(2) would do: false if it has to wait.
inline bool simulator::perform_send(std::uint32_t slot) noexcept {
    stream& of = streams_[slot];
    sim_end& end = net_->end(of.end);
    sim_require(slices_hash(of) == of.send_hash, "start_send: bytes stable until the event");
    if (net_->fault(sim_fault::reset)) {
        net_->reset_other(of.end);
        end.reset = true;
    }
    if (end.reset) {
        if (broken(sim_break::p9_raises_sigpipe)) {
#if defined(SIGPIPE)
            std::raise(SIGPIPE);
#endif
        }
        send_failed(of, end.reset_told ? sim_send_errors[1] : sim_send_errors[0]);
        end.reset_told = true;
        return true;
    }
    if (net_->fault(sim_fault::send_error)) {
        send_failed(of, net_->pick(sim_send_errors));
        return true;
    }
    std::size_t room = of.send_bytes;
    if (end.other != none_index) {
        room = std::min(room, net_->end(end.other).room());
    }
    if (room == 0 || net_->fault(sim_fault::again)) {
        if (room != 0) {
            of.send_bagged = true;
            net_->later(net_->now_ns() + net_->delay_ns(), this, owner_word(thing::send), slot,
                        of.serial);
        }
        return false;
    }
    if (room > 1 && net_->fault(sim_fault::short_write)) {
        room = 1 + net_->choose.below(static_cast<std::uint32_t>(room - 1));
    }
    if (end.other == none_index) {
        end.reset = true;  // the peer is gone: the answer to these bytes is a reset
        touched_stream(slot);
    } else {
        move_slices(of, net_->end(end.other), room);
        net_->touch(end.other);
    }
    ++net_->counts.sends;
    net_->counts.partial_sends += room < of.send_bytes;
    end.sent_bytes += room;
    of.sent_bytes = static_cast<std::uint32_t>(
        broken(sim_break::p10_claims_all) ? of.send_bytes : room);
    of.sending = progress::done;
    return true;
}

inline bool simulator::run_send(std::uint32_t slot, event& out) noexcept {
    stream& of = streams_[slot];
    of.send_bagged = false;
    if (of.sending == progress::idle ||
        (of.sending == progress::waiting && (of.closing || !perform_send(slot)))) {
        return false;
    }
    sim_require(slices_hash(of) == of.send_hash, "start_send: bytes stable until the event");
    of.sending = progress::idle;
    of.held = false;
    out.who = of.who;
    out.op = operation::send;
    if (of.send_problem.why != error::none) {
        return failed(out, operation::send, of.send_problem);
    }
    out.kind = event_kind::sent;
    out.byte_count = of.sent_bytes;
    if (broken(sim_break::p2_sent_twice) && of.slices_count == 3) {
        extra_.push_back(out);
    }
    return true;
}

inline void simulator::end_send(token who) noexcept {
    stream& of = known(who, "end_send: attached");
    sim_require(!of.closing && of.connecting == progress::idle && !of.connect_failed,
                "end_send: connected and not closing");
    sim_require(of.sending == progress::idle, "end_send: no send outstanding");
    of.send_ended = true;
    net_->finish_other(of.end);
}

// --- close --------------------------------------------------------------------------------------

inline void simulator::cancel_receive(stream& of) noexcept {
    if (!of.receiving) {
        return;
    }
    leak_if_broken(of);
    while (of.arrivals_count != 0 && net_->fault(sim_fault::close_drops_event)) {
        const arrival& last = of.arrivals[--of.arrivals_count];
        if (last.buffer_index != none_index) {
            pool_->give(last.buffer_index, side::input, last.byte_count);
        }
        of.armed = false;
    }
    if (of.armed && net_->fault(sim_fault::close_cancels)) {
        fail_receive(of, sim_other_errors[1]);
    }
    of.armed = of.starved = false;
}

inline void simulator::cancel_send(stream& of, std::uint32_t slot) noexcept {
    if (of.sending == progress::waiting) {
        if (net_->options.proactor && net_->choose.below(2) == 1) {
            perform_send(slot);
        } else if (net_->fault(sim_fault::close_cancels)) {
            send_failed(of, sim_other_errors[1]);
        }
    }
    if (of.sending == progress::waiting ||
        (of.sending == progress::done && net_->fault(sim_fault::close_drops_event))) {
        of.sending = progress::idle;
    }
}

inline void simulator::cancel_connect(stream& of) noexcept {
    if (of.connecting == progress::waiting && net_->fault(sim_fault::close_cancels)) {
        of.connect_problem = sim_other_errors[1];
        of.connecting = progress::done;
    } else if (of.connecting == progress::waiting ||
               (of.connecting == progress::done && net_->fault(sim_fault::close_drops_event))) {
        of.connecting = progress::idle;
    }
}

inline void simulator::start_close(token who, bool abort) noexcept {
    stream& of = known(who, "start_close: attached or connecting");
    sim_require(!of.closing, "P1 start_close: not closing");
    if (broken(sim_break::p3_late_event) && of.receiving) {
        event late;
        late.who = who;
        late.op = operation::receive;
        failed(late, operation::receive, sim_other_errors[1]);
        of.receive_over = true;
        extra_.push_back(late);
    }
    cancel_receive(of);
    cancel_send(of, who.index());
    cancel_connect(of);
    of.closing = true;
    of.abort = abort;
    const std::uint32_t slot = who.index();
    if (net_->end(of.end).other != none_index) {
        if (abort || net_->end(of.end).unread() != 0) {
            net_->reset_other(of.end);
        } else {
            net_->finish_other(of.end);
        }
    }
    if (of.arrivals_count != 0) {
        post_receive(slot);
    }
    if (of.sending == progress::done) {
        post_send(slot);
    }
    if (of.connecting == progress::done) {
        bag(thing::connect, slot, of.serial);
    }
    post(thing::close, slot, of.serial, sim_fault::late_close);
}

inline bool simulator::run_close(std::uint32_t slot, event& out) noexcept {
    stream& of = streams_[slot];
    if (of.arrivals_count != 0 || of.sending != progress::idle ||
        of.connecting != progress::idle) {
        of.close_waits = true;  // for the last of them, see join
        return false;
    }
    sim_require(!of.held || slices_hash(of) == of.send_hash,
                "start_close: bytes of a cancelled send are stable until `closed`");
    out.who = of.who;
    out.op = operation::close;
    out.kind = event_kind::closed;
    const std::uint32_t end = of.end;
    net_->end(end).owner = nullptr;
    forget(of, slot);
    if (net_->end(end).unread() != 0) {
        net_->reset_other(end);  // bytes that came after the close are answered with RST
    }
    const std::uint32_t other = net_->end(end).other;
    net_->free_end(end);
    if (other != none_index) {
        net_->touch(other);  // whoever waits for room here waits no longer
    }
    net_->count_descriptor(-1);
    return true;
}

// --- datagrams ----------------------------------------------------------------------------------

inline os_status simulator::start_receive_from(socket_handle handle, token who) noexcept {
    const std::uint32_t socket = network().opened(handle, sim_network::kind_datagram);
    sim_require(who.index() < receivers_.size(), "start_receive_from: an index below the limit");
    receiver& of = receivers_[who.index()];
    sim_require(!of.known, "P1 start_receive_from: none outstanding");
    sim_require(net_->datagram(socket).owner == nullptr, "start_receive_from: one a socket");
    if (net_->fault(sim_fault::start_error)) {
        const sim_error& why = net_->pick(sim_start_errors);
        ++net_->counts.errors[static_cast<std::size_t>(why.why)];
        return {why.why, why.os_code};
    }
    const std::uint32_t serial = of.serial + 1;
    of = receiver{};
    of.serial = serial;
    of.who = who;
    of.socket = socket;
    of.on = of.known = true;
    net_->datagram(socket).owner = this;
    net_->datagram(socket).slot = who.index();
    if (!net_->datagram(socket).waiting.empty()) {
        touched_datagram(who.index());
    }
    return {};
}

inline void simulator::stop_receive_from(token who) noexcept {
    sim_require(net_ != nullptr && who.index() < receivers_.size(), "stop_receive_from: known");
    receiver& of = receivers_[who.index()];
    sim_require(of.on && of.who == who, "stop_receive_from: outstanding");
    of.on = of.starved = false;
    post(thing::receive_from_closed, who.index(), of.serial, sim_fault::late_close);
}

inline bool simulator::run_receive_from_closed(std::uint32_t slot, event& out) noexcept {
    receiver& of = receivers_[slot];
    of.known = false;
    ++of.serial;
    net_->datagram(of.socket).owner = nullptr;
    out.who = of.who;
    out.op = operation::receive_from;
    out.kind = event_kind::closed;
    return true;
}

inline bool simulator::run_receive_from(std::uint32_t slot, event& out) noexcept {
    receiver& of = receivers_[slot];
    of.in_bag = false;
    if (!of.on) {
        return false;
    }
    std::vector<sim_datagram>& waiting = net_->datagram(of.socket).waiting;
    if (waiting.empty()) {
        return false;
    }
    const std::uint32_t first_in_line = of.served ? pool_->take(side::input) : none_index;
    of.served = false;
    const std::uint32_t buffer =
        first_in_line != none_index
            ? first_in_line
            : take_buffer(of.starved, thing::receive_from, slot, of.serial);
    if (buffer == none_index) {
        return false;
    }
    const sim_datagram& first = waiting.front();
    const std::size_t count = std::min<std::size_t>(first.payload.size(), pool_->buffer_bytes());
    if (count != 0) {
        std::memcpy(pool_->data(buffer), first.payload.data(), count);
    }
    out.who = of.who;
    out.op = operation::receive_from;
    out.kind = event_kind::received;
    out.byte_count = static_cast<std::uint32_t>(count);
    out.buffer_index = buffer;
    if (count == 0 && net_->options.proactor) {  // a ring passes on no buffer without bytes
        pool_->give(buffer, side::input, 0);
        out.buffer_index = none_index;
    }
    out.truncated = count < first.payload.size();
    out.peer = first.from;
    waiting.erase(waiting.begin());
    if (!waiting.empty()) {
        touched_datagram(slot);
    }
    return true;
}

inline void simulator::start_send_to(socket_handle handle, token who, bytes payload,
                                     const endpoint& peer) noexcept {
    const std::uint32_t socket = network().opened(handle, sim_network::kind_datagram);
    sim_require(who.index() < sends_.size(), "start_send_to: an index below the limit");
    datagram_send& of = sends_[who.index()];
    sim_require(!of.busy, "P1 start_send_to: none outstanding");
    of.busy = true;
    of.who = who;
    of.payload = payload;
    of.hash = sim_hash(payload);
    of.peer = peer;
    of.from = net_->datagram(socket).local;
    post(thing::send_to, who.index(), of.serial, sim_fault::late_event);
}

inline bool simulator::run_send_to(std::uint32_t slot, event& out) noexcept {
    datagram_send& of = sends_[slot];
    sim_require(sim_hash(of.payload) == of.hash, "start_send_to: payload stable until the event");
    of.busy = false;
    ++of.serial;
    out.who = of.who;
    out.op = operation::send_to;
    if (of.payload.size() > 65'507) {
        return failed(out, operation::send_to, sim_send_to_errors[0]);
    }
    if (net_->fault(sim_fault::send_to_error)) {
        return failed(out, operation::send_to, net_->pick(sim_send_to_errors));
    }
    endpoint from = of.from;
    if (from.address == std::array<std::uint8_t, 16>{}) {
        from = from.family == address_family::ipv6 ? loopback_ipv6(from.port)
                                                   : loopback_ipv4(from.port);
    }
    net_->deliver(from, of.peer, of.payload);
    out.kind = event_kind::sent;
    out.byte_count = static_cast<std::uint32_t>(of.payload.size());
    return true;
}

// --- wait ---------------------------------------------------------------------------------------

inline bool simulator::failed(event& out, operation op, const sim_error& why) noexcept {
    out.op = op;
    out.kind = event_kind::failed;
    out.why = broken(sim_break::p6_no_reason) ? error::none : why.why;
    out.os_code = why.os_code;
    ++net_->counts.errors[static_cast<std::size_t>(why.why)];
    return true;
}

inline bool simulator::run(const bagged& what, event& out) noexcept {
    const std::uint32_t slot = what.slot;
    switch (what.what) {
    case thing::receive:
        return streams_[slot].serial == what.serial && run_receive(slot, out) && join(slot);
    case thing::send:
        return streams_[slot].serial == what.serial && run_send(slot, out) && join(slot);
    case thing::close:
        return streams_[slot].serial == what.serial && run_close(slot, out);
    case thing::connect:
        return streams_[slot].serial == what.serial && run_connect(slot, out) && join(slot);
    case thing::accept:
        return acceptors_[slot].serial == what.serial && run_accept(slot, out);
    case thing::accepted:
        return run_accepted(slot, out);
    case thing::receive_from:
        return receivers_[slot].serial == what.serial && run_receive_from(slot, out);
    case thing::receive_from_closed:
        return receivers_[slot].serial == what.serial && run_receive_from_closed(slot, out);
    case thing::send_to:
        return sends_[slot].serial == what.serial && run_send_to(slot, out);
    }
    return false;
}

inline void simulator::note(const event& what) noexcept {
    ++net_->counts.events[static_cast<std::size_t>(what.op)][static_cast<std::size_t>(what.kind)];
    net_->note(what.who.bits);
    net_->note(std::uint64_t{what.byte_count} << 32 |
               static_cast<std::uint64_t>(what.op) << 24 |
               static_cast<std::uint64_t>(what.kind) << 16 |
               static_cast<std::uint64_t>(what.why) << 8 | (what.disarmed ? 1 : 0));
    net_->note(net_->now_ns());
}

inline std::uint32_t simulator::collect(std::span<event> out) noexcept {
    std::uint32_t count = 0;
    std::size_t tries = bag_.size() - bag_head_ + out.size();
    if (woken_) {
        woken_ = false;
        out[count] = event{};
        out[count].op = operation::wake;
        note(out[count++]);
    }
    while (!extra_.empty() && count < out.size() && extra_.front().op != operation::none) {
        if (extra_.front().op == operation::receive && extra_.front().kind == event_kind::failed &&
            streams_[extra_.front().who.index()].known) {
            break;  // waits for `closed`
        }
        out[count] = extra_.front();
        note(out[count++]);
        extra_.erase(extra_.begin());
    }
    while (count < out.size() && bag_head_ < bag_.size() && tries-- != 0) {
        if (bag_.size() - bag_head_ > 1 && net_->fault(sim_fault::reorder)) {
            const auto reach = static_cast<std::uint32_t>(bag_.size() - bag_head_);
            std::swap(bag_[bag_head_], bag_[bag_head_ + net_->choose.below(reach)]);
        }
        const bagged next = bag_[bag_head_++];
        --net_->bagged;
        if (bag_head_ == bag_.size()) {
            bag_.clear();
            bag_head_ = 0;
        }
        out[count] = event{};
        if (run(next, out[count])) {
            note(out[count++]);
        }
    }
    if (bag_head_ > 4096) {
        bag_.erase(bag_.begin(), bag_.begin() + static_cast<std::ptrdiff_t>(bag_head_));
        bag_head_ = 0;
    }
    return count;
}

inline std::uint32_t simulator::wait(std::span<event> out, std::uint64_t timeout_ns) noexcept {
    if (sim_stand != nullptr) {
        timeout_ns = std::min(timeout_ns, sim_stand());
    }
    sim_network& net = network();
    sim_require(!waiting_, "wait: not re-entered");
    sim_require(out.size() >= 4, "wait: room for 4 events at least");
    waiting_ = true;
    last_out_ = out;
    ++waits_;
    ++net.counts.waits;
    const auto turn_ns_max = static_cast<std::uint32_t>(net.options.turn_ns_max);
    // Where a script has ended time goes on, or what is due later would never come.
    net.pass(net.choose.exhausted() ? turn_ns_max : net.choose.below(turn_ns_max + 1));
    const std::uint64_t now = net.now_ns();
    const std::uint64_t end_ns = timeout_ns > forever_ns - now ? forever_ns : now + timeout_ns;
    std::uint32_t count = 0;
    if (!net.fault(sim_fault::early_return)) {
        for (;;) {
            net.run_due();
            serve_starved();
            count = collect(out);
            const std::uint64_t next = net.next_ns();
            // Others can go on, or the test wants to act: time may not jump now.
            if (count != 0 || timeout_ns == 0 || net.bagged != 0 || !net.due_words().empty() ||
                (next > end_ns && end_ns == forever_ns)) {
                break;
            }
            if (next > end_ns) {
                net.advance_to(end_ns);
                if (net.fault(sim_fault::oversleep)) {
                    net.advance_to(end_ns + net.delay_ns());
                }
                break;
            }
            if (next == forever_ns) {
                break;
            }
            net.advance_to(next);
        }
    }
    waiting_ = false;
    return count;
}

static_assert(backend<simulator>);

}  // namespace netio_test

#endif
