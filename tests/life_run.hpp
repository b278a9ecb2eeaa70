// Runs lives (tests/lifecycle.hpp): builds the server, one life after the other until a seed has
// its connections, looks at the memory afterwards, and prints what happened how often. Test code.
#ifndef NETIO_TESTS_LIFE_RUN_HPP
#define NETIO_TESTS_LIFE_RUN_HPP

#include "tests/life_pool.hpp"

#include <string>

namespace netio_test {

/// The hooks that have no default.
struct life_plain_handler {
    life* of;
    void on_open(connection& c) noexcept { of->on_open(c); }
    std::size_t on_data(connection& c, bytes in) noexcept { return of->on_data(c, in); }
    void on_writable(connection& c) noexcept { of->on_writable(c); }
    void on_post(connection& c, std::uint64_t word) noexcept { of->on_post(c, word); }
    void on_timer(std::uint64_t word) noexcept { of->on_timer(word); }
    void on_connect_failed(std::uint64_t word, error why) noexcept {
        of->on_connect_failed(word, why);
    }
    void on_datagram(datagram_socket& via, const datagram& in) noexcept {
        of->on_datagram(via, in);
    }
    void on_close(connection& c, close_reason reason) noexcept { of->on_close(c, reason); }
};
/// And all.
struct life_full_handler : life_plain_handler {
    void on_end(connection& c) noexcept { of->on_end(c); }
    void on_deadline(connection& c, deadline_kind which) noexcept { of->on_deadline(c, which); }
    void on_drain(connection& c) noexcept { of->on_drain(c); }
    void on_denied(connection& c, std::uint16_t code) noexcept { of->on_denied(c, code); }
};
/// The second driver's.
struct life_stream_handler {
    life* of;
    void on_open(connection& c) noexcept { of->on_open(c); }
    void on_connection(stream& s) noexcept { of->on_connection(s); }
    void on_denied(connection& c, std::uint16_t code) noexcept { of->on_denied(c, code); }
    void on_close(connection& c, close_reason reason) noexcept { of->on_close(c, reason); }
};
struct life_gate {
    life* of;
    verdict admit(const connection& c) noexcept { return of->gate_admit(c); }
    verdict readmit(const connection& c) noexcept { return of->gate_readmit(c); }
    egress check(const connection& c, const write_facts& facts) noexcept {
        return of->gate_check(c, facts);
    }
    void closed(const connection& c, close_reason reason) noexcept { of->gate_closed(c, reason); }
};

template <class Server>
class life_server final : public life_service {
public:
    template <class... Policies>
    explicit life_server(storage_view box, Policies&... policies) noexcept
        : server_(box, policies...) {}

    error listen(const listen_options& how, std::uint16_t& port,
                 listener_id& id) noexcept override {
        const error why = server_.listen(how, &id);
        port = why == error::none ? server_.local(id).port : port;
        return why;
    }
    error open_datagram(const datagram_options& how, endpoint& at) noexcept override {
        const result<datagram_id> made = server_.open_datagram(how);
        at = made ? server_.local(made.value) : endpoint{};
        return made.why;
    }
    bool turn(std::uint32_t ms, std::uint32_t worker) noexcept override {
        return server_.run_once(ms, worker);
    }
    bool post(connection_id to, std::uint64_t word) noexcept override {
        return server_.post(to, word);
    }
    result<connection_id> connect(const endpoint& to, std::uint64_t word,
                                  std::uint32_t worker) noexcept override {
        return server_.connect(to, word, worker);
    }
    result<connection_id> adopt(socket_handle handle, std::uint32_t worker) noexcept override {
        return server_.adopt(handle, worker);
    }
    result<timer_id> after(std::uint64_t ms, std::uint64_t word,
                           std::uint32_t worker) noexcept override {
        return server_.after(ms, word, worker);
    }
    bool cancel(timer_id timer) noexcept override { return server_.cancel(timer); }
    bool send_to(std::uint32_t socket, const endpoint& to, bytes payload) noexcept override {
        return server_.send_to({socket}, to, payload);
    }
    void outgoing(const connect_options& how) noexcept override { server_.outgoing(how); }
    bool remove_listener(listener_id id) noexcept override { return server_.remove_listener(id); }
    bool kill(connection_id id, std::uint16_t reason) noexcept override {
        return server_.kill(id, reason);
    }
    bool close(connection_id id, std::uint32_t ms) noexcept override {
        return server_.close(id, ms);
    }
    void door(bool open) noexcept override { open ? server_.open_door() : server_.close_door(); }
    bool door_is_open() const noexcept override { return server_.door_is_open(); }
    error control(control_state wanted, std::uint8_t lane) noexcept override {
        return server_.control(wanted, lane);
    }
    control_state control() const noexcept override { return server_.control(); }
    error reserve_lane(std::uint8_t lane, std::uint32_t count) noexcept override {
        return server_.reserve_lane(lane, count);
    }
    drain_report drained() const noexcept override { return server_.drained(); }
    void no_wipe() noexcept override { server_.wipe_released(false); }
    void stop() noexcept override { server_.stop(); }
    void drain(std::uint32_t ms) noexcept override { server_.drain(ms); }
    server_stats stats() const noexcept override { return server_.stats(); }
    error failed() const noexcept { return server_.failure().code; }

private:
    Server server_;
};

/// Memory for one server after the other, zeroed in between.
class life_memory {
public:
    mutable_bytes fresh(std::size_t count) {
        all_.assign(count + detail::page_bytes, std::byte{0});
        const auto at = reinterpret_cast<std::uintptr_t>(all_.data());
        const std::size_t skip = (detail::page_bytes - at % detail::page_bytes) %
                                 detail::page_bytes;
        return mutable_bytes(all_).subspan(skip, count);
    }

private:
    std::vector<std::byte> all_;
};

/// Is nothing of a connection left where connections have their bytes?
inline const char* life_leftover(bytes memory, const limits& sizes) noexcept {
    const auto place = detail::storage_layout<simulator>::of(sizes);
    const std::size_t slots = share(sizes.connections_max, sizes.workers_max);
    const std::size_t buffers = detail::worker_layout<simulator>::buffers_of(sizes);
    struct stretch {
        const char* name;
        std::size_t from, count;
    };
    const auto& each = place.worker;
    const stretch all[] = {{"an endpoint is left", each.endpoints,
                            slots * sizeof(detail::endpoint_pair)},
                           {"queued output is left", each.output,
                            slots * sizeof(detail::output_words)},
                           {"preface bytes are left", each.ingress, slots * detail::ingress_bytes},
                           {"user state is left", each.user, slots * detail::user_bytes},
                           {"bytes are left in a buffer", each.buffers,
                            buffers * sizes.buffer_bytes}};
    for (std::uint32_t worker = 0; worker < sizes.workers_max; ++worker) {
        for (const stretch& one : all) {
            const std::size_t from = place.workers + worker * each.total + one.from;
            for (std::byte byte : memory.subspan(from, one.count)) {
                if (byte != std::byte{0}) {
                    return one.name;
                }
            }
        }
    }
    return nullptr;
}

inline void life_check_pools(life& of, const server_stats& stats) noexcept {
    of.check(stats.open == 0, "open connections are counted to zero");
    for (const pool_stats& pool : stats.pools) {
        // A worker that has finished takes no posts any more: they are for nobody.
        of.check(pool.in_use == 0 || std::strcmp(pool.name, "posts") == 0, pool.name);
    }
    of.check(stats.counts.opened <= stats.counts.closed, "opened and closed");
}

template <class Service>
void life_go(life& of, Service&& service) noexcept {
    of.check(service.failed() == error::none, "the server is built");
    of.run(service);
    if (of.finish(service) && of.failed() == nullptr) {
        life_check_pools(of, service.stats());
        of.check_counts(service);
    }
}

template <class Handler, class Gate, class... Policies>
void life_go_by(life& of, const storage_view& box, Handler& handler, Policies&... policies) {
    if constexpr (detail::names_on_connection<Handler>) {
        life_go(of, life_server<life_pool<Handler, Gate>>(box, handler, policies...));
    } else if (of.pooled) {
        life_go(of, life_server<blocking_pool<Handler, simulator, Gate, life_events>>(
                        box, handler, policies...));
    } else {
        life_go(of, life_server<server<Handler, simulator, Gate, life_events>>(box, handler,
                                                                              policies...));
    }
}

template <class Handler>
void life_serve(life& of, mutable_bytes memory, const life_shape& shape) noexcept {
    Handler handler{};
    handler.of = &of;
    life_events events{&of};
    life_gate gate{&of};
    const storage_view box{memory, of.sizes};
    if (of.gated) {
        life_go_by<Handler, life_gate>(of, box, handler, gate, events);
    } else {
        life_go_by<Handler, allow_all>(of, box, handler, events);
    }
    of.after_end();
    if (of.failed() == nullptr) {
        of.check(of.net.descriptors_open() == 3, "descriptors are closed");
        if (of.wiping && shape.check_storage) {
            const char* left = life_leftover(memory, of.sizes);
            of.check(left == nullptr, left);
        }
    }
}

/// All lives of one seed (or script). What went wrong, or nullptr.
inline const char* life_run(sim_chooser chooser, const life_shape& shape, life_counts& counts) {
    life_memory memory;
    std::uint64_t begun = 0;
    std::uint32_t lives_left = 64 + shape.connections;  // those without any connection count, too
    std::uint32_t serial = chooser.below(20);
    for (; begun < shape.connections && lives_left != 0; ++serial) {
        sim_options how = sim_options::swarm(chooser);
        const auto more = [&](sim_fault fault, std::uint32_t times) {
            std::uint16_t& weight = how.weights[static_cast<std::size_t>(fault)];
            weight = static_cast<std::uint16_t>(std::min(weight * times, 300u));
        };
        more(sim_fault::start_error, 10);
        if (chooser.below(2) == 0) {  // lives in which every stream must come through whole
            how.with(sim_fault::reset, 0).with(sim_fault::receive_error, 0);
            how.with(sim_fault::send_error, 0);
        }
        how.descriptors_max = chooser.below(8) == 0 ? 200 : 1'000'000;
        sim_network net(chooser, how);
        net.enter();
        life_counts of_life;
        life now(net, of_life, shape);
        now.choose_sizes(serial);
        const mutable_bytes all = memory.fresh(bytes_needed<simulator>(now.sizes));
        if (now.streams) {
            life_serve<life_stream_handler>(now, all, shape);
        } else if (now.plain) {
            life_serve<life_plain_handler>(now, all, shape);
        } else {
            life_serve<life_full_handler>(now, all, shape);
        }
        chooser = net.choose;
        of_life.sim = net.counts;
        ++of_life.lives;
        counts.add(of_life);
        begun += of_life.connections;
        lives_left -= 1;
        if (now.failed() != nullptr) {
            return now.failed();
        }
        if (chooser.exhausted()) {
            break;
        }
    }
    return nullptr;
}

/// Every kind there is, how often it came, and whether that is often enough.
class life_table {
public:
    explicit life_table(std::uint64_t least) noexcept : least_(least) {}

    /// False if something that can occur came too seldom.
    bool print(const life_counts& of) {
        std::printf("%llu connections in %llu lives, %llu bytes compared, %llu streams whole, "
                    "%llu moves, %llu to others\n",
                    number(of.connections), number(of.lives), number(of.bytes_checked),
                    number(of.complete_streams), number(of.moved), number(of.moved_to_others));
        each<close_kind>("close reason", of.reasons);
        each<refusal_cause>("refusal", of.causes);
        each<server_event_kind>("told", of.told);
        each<life_hook>("hook", of.hooks);
        each<life_act>("act", of.acts);
        each<sim_fault>("fault", of.sim.faults);
        for (std::size_t at = 1; at < of.sim.errors.size(); ++at) {
            const std::uint64_t count = of.sim.errors[at] + of.own_errors[at];
            if (count != 0 || comes(static_cast<error>(at))) {
                row("error", text(static_cast<error>(at)), count, comes(static_cast<error>(at)));
            }
        }
        events(of.sim);
        constexpr const char* kinds[] = {"preface",  "idle", "read",   "write",
                                         "exchange", "park", "linger", "connect"};
        for (std::size_t at = 1; at < 6; ++at) {
            row("on_deadline", kinds[at], of.deadlines[at], true);
        }
        return enough_;
    }

private:
    static unsigned long long number(std::uint64_t value) noexcept { return value; }
    static bool comes(close_kind kind) noexcept {
        switch (kind) {
        case close_kind::tls_failed:   // tests/server_tls_test.cpp has seeds of its own
        case close_kind::outpaced:     // tests/dial_test.cpp, too
        case close_kind::output_full:
            return false;
        default:
            return true;
        }
    }
    static bool comes(refusal_cause cause) noexcept { return cause != refusal_cause::peer_uid; }
    static bool comes(life_act) noexcept { return true; }
    static bool comes(server_event_kind) noexcept { return true; }
    static bool comes(life_hook) noexcept { return true; }
    static bool comes(sim_fault) noexcept { return true; }
    static bool comes(error why) noexcept {
        switch (why) {
        case error::address_in_use:
        case error::address_unavailable:
        case error::permission_denied:
        case error::descriptors_empty:
        case error::kernel_memory_empty:
        case error::connection_refused:
        case error::connection_reset:
        case error::connection_aborted:
        case error::broken_pipe:
        case error::timed_out:
        case error::host_unreachable:
        case error::network_unreachable:
        case error::network_down:
        case error::os_failure:
        case error::full:
        case error::stopped:
        case error::cancelled:
        case error::too_long:
        case error::refused_by_gate:
            return true;
        default:
            return false;
        }
    }
    void row(const char* what, const char* kind, std::uint64_t count, bool possible) {
        const bool enough = !possible || count >= least_;
        enough_ = enough_ && enough;
        std::printf("  %-13s %-24s %10llu%s\n", what, kind, number(count),
                    !possible ? "  not in the lives" : enough ? "" : "  TOO FEW");
    }
    template <class Kind, class Table>
    void each(const char* what, const Table& table) {
        for (std::size_t at = 0; at < table.size(); ++at) {
            const auto kind = static_cast<Kind>(at);
            if (std::strcmp(name(kind), "none") != 0) {
                row(what, name(kind), table[at], comes(kind));
            }
        }
    }
    /// What came out of the kernel's side, by operation and kind.
    void events(const sim_counts& of) {
        struct pair {
            const char* name;
            operation op;
            event_kind kind;
        };
        constexpr pair all[] = {
            {"accept accepted", operation::accept, event_kind::accepted},
            {"accept failed", operation::accept, event_kind::failed},
            {"connect connected", operation::connect, event_kind::connected},
            {"connect failed", operation::connect, event_kind::failed},
            {"receive received", operation::receive, event_kind::received},
            {"receive ended", operation::receive, event_kind::ended},
            {"receive failed", operation::receive, event_kind::failed},
            {"send sent", operation::send, event_kind::sent},
            {"send failed", operation::send, event_kind::failed},
            {"close closed", operation::close, event_kind::closed},
            {"receive_from received", operation::receive_from, event_kind::received},
            {"send_to sent", operation::send_to, event_kind::sent},
            {"send_to failed", operation::send_to, event_kind::failed}};
        for (const pair& one : all) {
            row("event", one.name, of.of(one.op, one.kind), true);
        }
        std::uint64_t woken = 0;
        for (const std::uint64_t count : of.events[static_cast<std::size_t>(operation::wake)]) {
            woken += count;
        }
        row("event", "woken", woken, true);
        row("event", "partial send", of.partial_sends, true);
        row("event", "starved receive", of.starved_receives, true);
    }

    bool enough_ = true;
    std::uint64_t least_;
};

}  // namespace netio_test

#endif
