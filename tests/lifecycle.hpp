// Lives of a server in which a seed (or a fuzzer's bytes) chooses everything: sizes, listeners,
// faults, what the handler does, what the peers do, and the end. Checked all along: the promises of
// design 7, every byte's place, and at the end that nothing is held. Test code: uses heap.
#ifndef NETIO_TESTS_LIFECYCLE_HPP
#define NETIO_TESTS_LIFECYCLE_HPP

#include "tests/life_model.hpp"

#include <cstdlib>

namespace netio_test {

/// The calls of a server, whatever its handler is.
class life_service {
public:
    virtual error listen(const listen_options& how, std::uint16_t& port,
                         listener_id& id) noexcept = 0;
    virtual bool remove_listener(listener_id id) noexcept = 0;
    virtual bool kill(connection_id id, std::uint16_t reason) noexcept = 0;
    virtual bool close(connection_id id, std::uint32_t ms) noexcept = 0;
    virtual void door(bool open) noexcept = 0;
    virtual bool door_is_open() const noexcept = 0;
    virtual error control(control_state wanted, std::uint8_t lane) noexcept = 0;
    virtual control_state control() const noexcept = 0;
    virtual error reserve_lane(std::uint8_t lane, std::uint32_t count) noexcept = 0;
    virtual drain_report drained() const noexcept = 0;
    virtual error open_datagram(const datagram_options& how, endpoint& at) noexcept = 0;
    virtual bool turn(std::uint32_t ms, std::uint32_t worker) noexcept = 0;
    virtual bool post(connection_id to, std::uint64_t word) noexcept = 0;
    virtual result<connection_id> connect(const endpoint& to, std::uint64_t word,
                                          std::uint32_t worker) noexcept = 0;
    virtual result<connection_id> adopt(socket_handle handle, std::uint32_t worker) noexcept = 0;
    virtual result<timer_id> after(std::uint64_t ms, std::uint64_t word,
                                   std::uint32_t worker) noexcept = 0;
    virtual bool cancel(timer_id timer) noexcept = 0;
    virtual bool send_to(std::uint32_t socket, const endpoint& to, bytes payload) noexcept = 0;
    virtual void outgoing(const connect_options& how) noexcept = 0;
    virtual void no_wipe() noexcept = 0;
    virtual void stop() noexcept = 0;
    virtual void drain(std::uint32_t ms) noexcept = 0;
    virtual server_stats stats() const noexcept = 0;

protected:
    ~life_service() = default;
};

/// What the run as a whole is to do.
struct life_shape {
    std::uint32_t connections = 1000;   // in all lives of the seed
    std::uint32_t clients_per_life = 250;
    bool check_storage = true;
    bool pools = true;                  // some lives are on the second driver
};

/// One life of one server: everything but the server's type.
class life {
public:
    life(sim_network& network, life_counts& counts, const life_shape& shape) noexcept
        : net(network), choose(network.choose), counts_(counts), shape_(shape) {}
    life(const life&) = delete;
    life& operator=(const life&) = delete;

    // ---- chosen before the server is built
    void choose_sizes(std::uint32_t serial) noexcept;
    // ---- and run with it
    void run(life_service& service) noexcept;
    /// Ends the life; false if the server is to be destroyed as it is.
    bool finish(life_service& service) noexcept;
    /// The server is gone.
    void after_end() noexcept;

    limits sizes;
    bool plain = false;       // the handler has only the hooks without a default
    bool gated = false;       // the server has a gate
    bool pooled = false;      // it is a pool of threads
    bool streams = false;     // that block in on_connection
    bool wiping = true;
    const char* failed() const noexcept { return failed_; }
    NETIO_COLD void fail(const char* why) noexcept { failed_ = failed_ == nullptr ? why : failed_; }
    bool check(bool holds, const char* why) noexcept {
        if (!holds) {
            fail(why);
        }
        return holds;
    }

    // ---- hooks
    void on_open(connection& c) noexcept;
    std::size_t on_data(connection& c, bytes in) noexcept;
    void on_end(connection& c) noexcept;
    void on_writable(connection& c) noexcept;
    void on_post(connection& c, std::uint64_t word) noexcept;
    void on_timer(std::uint64_t word) noexcept;
    void on_deadline(connection& c, deadline_kind which) noexcept;
    void on_connect_failed(std::uint64_t word, error why) noexcept;
    void on_drain(connection& c) noexcept;
    void on_denied(connection& c, std::uint16_t code) noexcept;
    void on_datagram(datagram_socket& via, const datagram& in) noexcept;
    void on_close(connection& c, close_reason reason) noexcept;
    void on_connection(stream& s) noexcept;
    void on_event(const server_event& told) noexcept;

    // ---- the gate, and what the server counted in the end: tests/life_control.hpp
    verdict gate_admit(const connection& c) noexcept;
    verdict gate_readmit(const connection& c) noexcept;
    egress gate_check(const connection& c, const write_facts& facts) noexcept;
    void gate_closed(const connection& c, close_reason reason) noexcept;
    void check_counts(const life_service& service) noexcept;

    sim_network& net;
    sim_chooser& choose;

private:
    enum class phase_of_life : std::uint8_t { young, finishing, draining, stopped, torn_down };
    struct guard {  // a callback begins and ends: never inside another one
        life& of;
        guard(life& each, life_hook hook) noexcept : of(each) {
            of.check(of.depth_++ == 0, "a callback inside a callback");
            of.check(of.phase_ != phase_of_life::torn_down || hook == life_hook::on_close ||
                         hook == life_hook::on_connect_failed,
                     "a callback but those of an end from a server that is destroyed");
            life_counts::count(of.counts_.hooks, hook);
        }
        ~guard() { --of.depth_; }
    };
    struct timer {
        timer_id id{};
        std::uint64_t due_ns = 0;
        std::uint32_t worker = 0;
        bool armed = false;
    };
    struct user_words {
        std::uint64_t id;
        std::uint64_t calls;
        std::uint64_t filler[6];
    };
    struct end_owner {
        std::uint32_t generation = 0;
        std::uint32_t link = none_index;
    };
    struct due_wake {
        connection_id id;
        std::uint64_t when_ns;
    };
    /// What a socket and somebody it does not know sent each other.
    struct stranger {
        std::uint32_t amplification;
        std::uint64_t in;
        std::uint64_t out;
    };
    struct place {
        listen_options how{};
        std::uint16_t port = 0;
        std::string path;
        std::uint32_t serial = 0;
        bool removed = false;
    };
    static constexpr std::uint32_t lanes_used = 10;
    static constexpr std::uint64_t ms_ns = 1'000'000;
    /// A post's word says whom it is for.
    static std::uint64_t word_for(connection_id id) noexcept {
        return id.bits * 0x9FB21C651E98DF25u;
    }

    // choosing
    bool one_in(std::uint32_t count) noexcept { return choose.below(count) == 0; }
    std::uint32_t between(std::uint32_t least, std::uint32_t most) noexcept {
        return least + choose.below(most - least + 1);
    }
    deadlines choose_deadlines() noexcept;
    place choose_listener() noexcept;
    void choose_remotes() noexcept;
    void open_places() noexcept;

    // records
    life_record* record_of(connection_id id) noexcept;
    life_record& record_of(connection& c) noexcept;
    life_record& new_record(connection_id id) noexcept;
    std::uint32_t link_of(std::uint32_t end) noexcept;
    void own(std::uint32_t end, std::uint32_t link) noexcept;
    life_flow& flow_in(const life_record& r) noexcept {
        return r.ours_called ? links_[r.link].down : links_[r.link].up;
    }
    life_flow& flow_out(const life_record& r) noexcept {
        return r.ours_called ? links_[r.link].up : links_[r.link].down;
    }
    bool known(const life_record& r) const noexcept {
        return r.link != none_index && !links_[r.link].unknown;
    }
    bool gone_quiet(const life_record& r) const noexcept {
        return r.close_called || r.kill_called || r.closed || r.denied || r.cut;
    }

    // the handler
    bool may_call(connection& c, life_record& r, const char* what) noexcept;
    void check_named(connection& c, const life_record& r) noexcept;
    std::size_t take_data(connection& c, life_record& r, bytes in) noexcept;
    std::size_t echo(connection& c, life_record& r, bytes in) noexcept;
    std::size_t move(connection& c, life_record& r) noexcept;
    std::size_t move_to_other(connection& c, life_record& r) noexcept;
    void produce(connection& c, life_record& r) noexcept;
    void produce_copy(connection& c, life_record& r) noexcept;
    void produce_static(connection& c, life_record& r) noexcept;
    void produce_buffer(connection& c, life_record& r) noexcept;
    static void note_refused(life_record& r, bool was) noexcept {
        r.refused = r.refused || was;
        r.blocked = r.blocked || was;
    }
    void note_output(life_record& r, bool was_empty, std::size_t done) noexcept;
    void something_else(connection& c, life_record& r) noexcept;
    void set_times(connection& c, life_record& r) noexcept;
    void touch_state(connection& c, life_record& r) noexcept;
    void pause(connection& c, life_record& r) noexcept;
    void resume(connection& c, life_record& r) noexcept;
    void park(connection& c, life_record& r) noexcept;
    void end(connection& c, life_record& r) noexcept;
    void close(connection& c, life_record& r) noexcept;
    void kill(connection& c, life_record& r) noexcept;
    void release_waiter(connection& c, life_record& r) noexcept;
    void connect_from(connection* c) noexcept;
    void wake_later(connection_id id) noexcept {
        wakes_.push_back({id, net.now_ns() + choose.below(20) * ms_ns / 2});
    }
    void check_early(const life_record& r, deadline_kind which) noexcept;
    bool passed(const life_record& r, std::uint64_t from_ns, std::uint32_t ms,
                bool may_tighten) noexcept;

    // the handler that blocks: tests/life_pool.hpp
    bool stream_act(stream& s, life_record& r) noexcept;
    bool stream_receive(stream& s, life_record& r, bool whole) noexcept;
    bool stream_produce(stream& s, life_record& r) noexcept;
    bool stream_send(stream& s, life_record& r, bytes out) noexcept;
    bool stream_failed(stream& s, life_record& r, error why) noexcept;
    void stream_times(stream& s, life_record& r) noexcept;
    bool stream_rare(stream& s, life_record& r) noexcept;

    // gate and control
    life_entry& entry_of(connection_id id) noexcept;
    verdict choose_verdict(const connection& c, life_entry& e) noexcept;
    bytes choose_reply(std::uint32_t& from) noexcept;
    void enter_lane(life_entry& e) noexcept;
    void found_place(life_entry& e) noexcept;
    void leave_lane(life_entry& e) noexcept;
    std::uint8_t lane_of(connection_id id) noexcept;
    void check_facts(const connection& c) noexcept;
    std::uint32_t worker_of(connection_id id) const noexcept {
        return token{id.bits}.index() / share(sizes.connections_max, sizes.workers_max);
    }
    bool sheds(std::uint8_t lane) const noexcept {
        return mood_ == control_state::shed && lane >= mood_lane_;
    }
    bool was_shed(std::uint8_t lane, std::uint64_t since_ns) const noexcept {
        return sheds(lane) || shed_ns_[lane] >= since_ns;
    }
    void count_source(life_record& r, const endpoint& from) noexcept;
    void release_source(life_record& r) noexcept;
    std::uint32_t& source_count(std::uint32_t address) noexcept;
    static std::uint32_t address_of(const endpoint& of) noexcept;
    void accepted_told(const server_event& told) noexcept;
    void refused_told(const server_event& told) noexcept;
    void check_source_refused(const server_event& told) noexcept;
    void check_ended_idle(const life_record& r, const server_event& told) noexcept;
    void check_refused(const life_record& r, close_reason reason) noexcept;
    void check_rate(const life_record& r, const server_event& told) noexcept;
    void check_drain_counts(const server_event& told) noexcept;
    void note_input(connection& c, life_record& r) noexcept;
    static bool to_send(const life_record& r) noexcept {
        return (r.in_exchange || r.left != 0) && !r.parked && !r.paused;
    }
    void promise(connection_id id, std::uint64_t ms, const char* what) noexcept {
        promises_.push_back({id, net.now_ns() + ms * ms_ns, 0, 0, what});
    }
    bool turn(std::uint32_t ms, std::uint32_t worker) noexcept;
    void note_level(std::uint32_t worker) noexcept;
    void after_turn(std::uint32_t worker, std::uint64_t begun_ns) noexcept;
    void keep_promises(std::uint32_t worker, std::uint64_t begun_ns) noexcept;
    void choose_control() noexcept;
    void act_control() noexcept;
    void act_end() noexcept;
    void act_end_of(connection_id id, bool by_kill) noexcept;
    void act_long_quiet() noexcept;
    connection_id choose_id() noexcept;
    void act_door() noexcept;
    void act_mood() noexcept;
    void act_listener() noexcept;
    void act_remove() noexcept;
    void act_listen() noexcept;
    void act_crowd() noexcept;
    void check_reason(const life_record& r, close_reason reason) noexcept;
    void check_preface(const life_record& r, close_reason reason) noexcept;
    void check_cap(const server_event& told) noexcept;
    void closed_told(const server_event& told) noexcept;

    // peers
    void start_client() noexcept;
    void make_preface(life_peer& p, const listen_options& how, std::uint32_t number) noexcept;
    void preface_of(life_peer& p, const listen_options& how, std::uint32_t number) noexcept;
    void spoil_preface(life_peer& p) noexcept;
    void choose_manners(life_peer& p) noexcept;
    void add_peer(const life_peer& p) noexcept;
    void step(std::uint32_t live_at) noexcept;
    bool step_take(life_peer& p) noexcept;
    bool step_send(life_peer& p) noexcept;
    bool step_end(life_peer& p) noexcept;
    void drop_peer(std::uint32_t live_at) noexcept;
    void datagram_out() noexcept;
    void count_answer(std::uint32_t socket, bytes payload, bool sent) noexcept;
    void check_datagram(bytes payload, bool truncated) noexcept;
    std::vector<std::byte> datagram_text() noexcept;

    // the loop
    void act() noexcept;
    void act_rarely() noexcept;
    void act_adopt() noexcept;
    void act_timer() noexcept;
    void wake_due() noexcept;
    void turn_all() noexcept;
    void go_on() noexcept;
    void wake_everyone() noexcept;
    void run_out() noexcept;
    void stop_turning() noexcept;
    void show_left() noexcept;
    void show(const life_record& r) noexcept;
    static bool replaying() noexcept;
    bool all_gone() const noexcept { return open_records_ == 0; }

    life_counts& counts_;
    life_shape shape_;
    life_service* service_ = nullptr;
    const char* failed_ = nullptr;
    phase_of_life phase_ = phase_of_life::young;
    std::uint32_t depth_ = 0;
    std::uint32_t clients_ = 0;
    std::uint32_t clients_wanted_ = 0;
    std::uint32_t live_wanted_ = 0;
    std::uint32_t open_records_ = 0;
    std::uint32_t quiet_turns_ = 0;
    std::uint32_t next_text_ = 0;
    std::uint64_t next_word_ = 0;
    std::uint64_t drain_ns_ = 0;
    std::uint32_t drain_ms_ = 0;
    std::uint64_t finishing_ns_ = 0;
    bool faults_end_ = false;       // resets and errors happen
    deadlines outgoing_times_{};
    std::vector<place> places_;
    std::vector<endpoint> sockets_;
    std::vector<stranger> stranger_;
    std::vector<std::uint32_t> socket_ids_;
    std::vector<life_record> records_;
    std::vector<std::uint32_t> record_of_slot_;
    std::vector<life_link> links_;
    std::vector<end_owner> owners_;
    std::vector<life_peer> peers_;
    std::vector<std::uint32_t> live_;
    std::vector<std::uint32_t> peer_of_port_;
    std::vector<due_wake> wakes_;
    std::vector<timer> timers_;
    std::vector<endpoint> remotes_;
    std::uint32_t datagram_peer_ = 0;

    // gate and control
    std::uint32_t gate_refuses_ = 0;   // of 1,024
    std::uint32_t gate_denies_ = 0;
    std::uint32_t controls_ = 0;
    std::uint32_t pauses_ = 0;
    bool caps_ = false;                // of sources
    bool rates_ = false;
    std::uint32_t next_serial_ = 0;
    std::vector<life_entry> entries_;  // by slot
    std::uint32_t inside_ = 0;         // whom the gate let in
    std::uint32_t refusing_ = none_index;  // a code: `refused` is about to be told
    std::uint32_t reserved_[8] = {};
    std::uint32_t reserved_sum_ = 0;
    std::uint32_t own_open_[8] = {};
    std::uint32_t common_open_ = 0;
    std::uint32_t doubtful_places_ = 0;  // of those: whether they have one is not known yet
    std::uint32_t refused_places_ = 0;  // at most so many more, of those refused with an answer
    bool door_shut_ = false;
    control_state mood_ = control_state::normal;
    std::uint8_t mood_lane_ = 0;
    std::uint64_t lockdown_ns_ = 0;           // the last turn in a lockdown
    std::uint64_t shed_ns_[lanes_used] = {};  // the last turn that found the lane shed
    std::uint64_t stale_wishes_ = 0;
    std::array<life_counts::table<server_event_kind>, 8> told_by_{};  // by worker, since a burst
    std::uint64_t held_refusals_ = 0;  // told as a number
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sources_;  // address, connections
    std::vector<connection_id> wishes_;
    std::vector<life_promise> promises_;
    std::array<std::uint32_t, 8> level_{};  // by worker: how scarce places are
    std::array<std::array<std::uint64_t, 3>, 8> level_ns_{};  // by worker: it was at least so high
    std::array<bool, 8> drain_seen_{};
    drain_report drain_due_{};
};

// --- choosing -----------------------------------------------------------------------------------

inline void life::choose_sizes(std::uint32_t serial) noexcept {
    const std::uint32_t workers = between(1, 3);
    sizes.workers_max = workers;
    sizes.connections_max = between(workers, 40);
    sizes.listeners_max = between(1, 3);
    sizes.buffer_bytes = one_in(4) ? between(1024, 2048) : between(536, 700);
    sizes.input_buffers_max = between(workers, 16);
    sizes.output_buffers_max = between(workers, 16);
    sizes.connection_output_buffers_max = between(1, 8);
    sizes.preface_buffers_max = between(0, 4);
    sizes.refusals_max = between(0, 6);
    sizes.posts_max = between(workers, 32);
    sizes.timers_max = between(0, 6);
    sizes.datagram_sockets_max = between(0, 3);
    sizes.datagram_sends_max = between(0, 4);
    sizes.datagram_sources_max = one_in(3) ? 0 : between(workers, 40);
    sizes.trusted_networks_max = between(6, 8);
    sizes.events_per_turn = between(4, 24);
    // Each at its minimum in turn, and now and then all of them.
    std::uint32_t* const fields[] = {
        &sizes.connections_max,  &sizes.listeners_max,    &sizes.buffer_bytes,
        &sizes.input_buffers_max, &sizes.output_buffers_max, &sizes.connection_output_buffers_max,
        &sizes.preface_buffers_max, &sizes.refusals_max,  &sizes.posts_max,  &sizes.timers_max,
        &sizes.datagram_sockets_max, &sizes.datagram_sends_max, &sizes.events_per_turn,
        &sizes.workers_max};
    const std::uint32_t least[] = {workers, 1, 536, workers, workers, 1, 0, 0, workers, 0, 0, 0, 4,
                                   1};
    constexpr std::uint32_t count = sizeof(least) / sizeof(least[0]);
    for (std::uint32_t at = 0; at < count; ++at) {
        if (serial % 20 == at || serial % 20 == 19) {
            *fields[at] = least[at];
        }
    }
    plain = one_in(3);
    wiping = !one_in(8);
    choose_control();
    pooled = shape_.pools && serial % 6 == 4;
    streams = pooled && serial % 12 == 4;
    if (streams) {
        sizes.connections_max = sizes.workers_max;
        sizes.timers_max = sizes.datagram_sockets_max = 0;
        plain = false;
    }
}

inline deadlines life::choose_deadlines() noexcept {
    deadlines out;
    const std::uint32_t mode = choose.below(4);
    const auto pick = [&](std::uint32_t shortest, std::uint32_t usual) noexcept {
        switch (mode) {
        case 0:
            return std::uint32_t{0};
        case 1:
            return usual;
        case 2:
            return between(shortest, shortest * 8);
        default:
            return one_in(2) ? between(shortest, shortest * 30) : one_in(2) ? usual : 0;
        }
    };
    out.preface_ms = one_in(2) ? 3000 : 5000;
    out.idle_ms = pick(30, 60'000);
    out.read_ms = pick(20, 30'000);
    out.write_ms = pick(20, 30'000);
    out.exchange_ms = pick(40, 0);
    out.park_ms = pick(10, 60'000);
    out.linger_ms = pick(10, 2000);
    out.connect_ms = pick(2, 10'000);
    out.tighten = one_in(2);
    out.rate_in = out.rate_out = 0;
    if (rates_) {
        out.rate_in = one_in(4) ? 0 : between(1, 1u << between(6, 18));
        out.rate_out = one_in(4) ? 0 : between(1, 1u << between(6, 18));
        out.rate_window_ms = between(1, one_in(3) ? 200 : 20);
        out.rate_grace_ms = choose.below(one_in(3) ? 100 : 10);
    }
    return out;
}

inline life::place life::choose_listener() noexcept {
    place made;
    made.serial = next_serial_++;
    if (caps_ && !one_in(3)) {
        made.how.source_connections_max = between(1, 4);
    }
    made.how.lockdown_exempt = one_in(3);
    made.how.times = choose_deadlines();
    made.how.connections_max = one_in(4) ? between(1, 12) : 0;
    if (one_in(6)) {
        made.path = "/socket" + std::to_string(made.serial);
    }
    if (choose.below(5) < 2) {
        made.how.proxy = proxy_mode::required;
        made.how.versions = static_cast<proxy_accept>(choose.below(3) == 2 ? 2 : choose.below(3));
        if (one_in(2)) {
            made.how.trusted = "192.0.2.0/24, 2001:db8::/32";
        }
        const bool named = !made.how.trusted.empty() || !made.path.empty();
        if (named && sizes.preface_buffers_max != 0 && sizes.buffer_bytes > 600) {
            made.how.header_max = sizes.buffer_bytes;
        }
    }
    return made;
}

inline void life::choose_remotes() noexcept {
    for (std::uint8_t at = 0; at < 10; ++at) {
        const endpoint where = ipv4(198, 51, 100, at, 80);
        const sim_answer answer = at < 4 ? sim_answer::accept
                                         : static_cast<sim_answer>(at % 5);
        net.remote(where, answer);
        remotes_.push_back(where);
    }
}

inline void life::open_places() noexcept {
    // What is refused is told and holds nothing.
    std::uint16_t port = 0;
    listener_id id;
    if (one_in(2)) {
        listen_options how;
        how.port = one_in(2) ? std::uint16_t{80} : std::uint16_t{0};
        how.address = how.port == 0 ? "203.0.113.1" : "";
        const error why = service_->listen(how, port, id);
        life_counts::count(counts_.own_errors, why);
        check(why != error::none, "a listener that must be refused");
    }
    const std::uint32_t count = between(1, sizes.listeners_max);
    places_.reserve(sizes.listeners_max);
    for (std::uint32_t at = 0; at < count; ++at) {
        places_.push_back(choose_listener());
    }
    for (place& each : places_) {
        each.how.unix_path = each.path;
        const error why = service_->listen(each.how, each.port, id);
        check(why == error::none, why == error::none ? "" : text(why));
        check(&places_[id.index] == &each, "listeners have their places in a row");
    }
    if (places_.size() < sizes.listeners_max && places_[0].path.empty()) {
        listen_options how;
        how.port = places_[0].port;
        const error why = service_->listen(how, port, id);
        life_counts::count(counts_.own_errors, why);
        check(why == error::address_in_use, "a port in use");
    }
    for (std::uint32_t at = 0; at < sizes.datagram_sockets_max; ++at) {
        datagram_options how;
        how.proxy = one_in(3) ? proxy_mode::required : proxy_mode::off;
        if (one_in(2)) {
            how.source = {between(1, 200), between(1, 4), between(1, 20'000), 1024 * 16};
        }
        how.amplification = choose.below(4);
        how.window_ms = between(1000, 20'000);
        endpoint bound;
        if (check(service_->open_datagram(how, bound) == error::none, "a UDP socket")) {
            bound = loopback_ipv4(bound.port);
            bound.reserved = how.proxy == proxy_mode::required ? 1 : 0;
            sockets_.push_back(bound);
            stranger_.push_back({how.amplification, 0, 0});
        }
    }
}

// --- records ------------------------------------------------------------------------------------

inline life_record* life::record_of(connection_id id) noexcept {
    const std::uint32_t slot = token{id.bits}.index();
    if (slot >= record_of_slot_.size() || record_of_slot_[slot] == 0) {
        return nullptr;
    }
    life_record& found = records_[record_of_slot_[slot] - 1];
    return found.id == id ? &found : nullptr;
}
inline life_record& life::record_of(connection& c) noexcept {
    life_record* found = record_of(c.id());
    return found != nullptr ? *found : new_record(c.id());
}
inline life_record& life::new_record(connection_id id) noexcept {
    const std::uint32_t slot = token{id.bits}.index();
    if (slot >= record_of_slot_.size()) {
        record_of_slot_.resize(slot + 1);
    }
    if (record_of_slot_[slot] != 0) {
        const life_record& before = records_[record_of_slot_[slot] - 1];
        check(before.closed_told, "a slot is used again before its connection was closed");
        check(before.id != id, "a connection is told twice");
    }
    sim_require(records_.size() < records_.capacity(), "the driver's own bound");
    records_.push_back({});
    record_of_slot_[slot] = static_cast<std::uint32_t>(records_.size());
    life_record& made = records_.back();
    made.id = id;
    made.times = &outgoing_times_;
    made.begun_ns = made.in_ns = net.now_ns();
    made.style = static_cast<std::uint8_t>(choose.below(8));
    ++open_records_;
    return made;
}

inline void life::own(std::uint32_t end, std::uint32_t link) noexcept {
    if (end >= owners_.size()) {
        owners_.resize(end + 1);
    }
    owners_[end] = {net.end(end).generation, link};
}
/// The link an end belongs to; its other end then belongs to it too.
inline std::uint32_t life::link_of(std::uint32_t end) noexcept {
    if (end < owners_.size() && owners_[end].link != none_index &&
        owners_[end].generation == net.end(end).generation) {
        return owners_[end].link;
    }
    sim_require(links_.size() < links_.capacity(), "the driver's own bound");
    links_.push_back({});
    const auto made = static_cast<std::uint32_t>(links_.size() - 1);
    links_[made].allowed = gated ? 0 : forever_ns;
    own(end, made);
    const std::uint32_t other = net.end(end).other;
    if (other != none_index) {
        own(other, made);
        links_[made].ours_on_both = !net.end(end).of_peer && !net.end(other).of_peer;
    } else {
        links_[made].unknown = true;
    }
    return made;
}

// --- the handler --------------------------------------------------------------------------------

inline bool life::may_call(connection& c, life_record& r, const char* what) noexcept {
    check_facts(c);
    return check(r.opened && !r.closed && !r.kill_called, what) &&
           check(!r.denied && !r.cut, "a callback of a connection that was ended from outside") &&
           check(c.id() == r.id, "a connection keeps its id");
}

inline void life::on_open(connection& c) noexcept {
    guard inside(*this, life_hook::on_open);
    life_record& r = record_of(c);
    check(!r.opened && !r.closed && !r.closed_told, "on_open at most once");
    check(r.opened_told, "opened is told before on_open");
    r.opened = true;
    ++counts_.connections;
    r.in_ns = net.now_ns();
    r.out_ns = 0;
    r.rate_in.begin(net.now_ns(), c.bytes_in());
    r.listener = c.listener();
    r.times = r.listener == 255 ? &outgoing_times_ : &places_[r.listener].how.times;
    r.link = link_of(sim_network::index_of(c.native_handle()));
    r.ours_called = r.by_connect && links_[r.link].ours_on_both;
    check((c.origin() == origin::connected) == r.by_connect, "origin");
    if (r.by_connect) {
        check(c.connect_word() == r.word, "the word given to connect");
    }
    check_named(c, r);
    check_facts(c);
    if (c.proxied() && r.source == 0) {
        count_source(r, c.source());
    }
    if (one_in(2)) {
        touch_state(c, r);
    }
    r.end_index = sim_network::index_of(c.native_handle());
    if (phase_ == phase_of_life::young) {
        set_times(c, r);
        if (!streams) {
            something_else(c, r);
        }
        if (one_in(3) && !gone_quiet(r)) {
            produce(c, r);
        }
    }
    r.output_waits = c.output_bytes() != 0;
    note_input(c, r);
    r.rate_in.too_many = streams;  // nobody but the stream hears when its bytes come
}

inline void life::check_named(connection& c, const life_record& r) noexcept {
    if (r.peer == none_index) {
        return;
    }
    const life_peer& p = peers_[r.peer];
    const bool required = places_[p.listener].how.proxy == proxy_mode::required;
    check(!required || p.acceptable, "a header that may not be taken");
    check(!required || p.trusted, "a header of a stranger");
    check(c.proxied() == (required && p.names), "proxied");
    if (p.names) {
        check(c.source() == p.named, "the client that the header names");
        check(c.destination() == ipv4(10, 255, 0, 1, 443), "the destination it names");
    }
    if (required && p.preface == life_preface::with_tlvs) {
        const proxy::tlv mark = c.tlvs().find(0xE5);
        check(mark.present() && mark.value.size() == 40, "TLVs in on_open");
    }
}

inline void life::touch_state(connection& c, life_record& r) noexcept {
    user_words& mine = c.state<user_words>();
    if (!r.state_used) {
        user_words zeros{};
        check(std::memcmp(&mine, &zeros, sizeof(zeros)) == 0, "user state is zero at open");
        r.state_used = true;
        mine.id = r.id.bits;
        std::memcpy(mine.filler, life_text(7), sizeof(mine.filler));
    }
    check(mine.id == r.id.bits, "user state is the connection's own");
    ++mine.calls;
}

inline std::size_t life::on_data(connection& c, bytes in) noexcept {
    guard inside(*this, life_hook::on_data);
    life_record& r = record_of(c);
    may_call(c, r, "on_data of an open connection only");
    check(!r.close_called, "on_data after close");
    check(!r.end_told, "on_data after on_end");
    check(!r.paused && !r.parked, "on_data while paused or parked");
    check(!in.empty() && c.input().data() == in.data() && c.input().size() == in.size(),
          "on_data offers the input");
    check(in.size() >= r.left, "input never shrinks");
    check(in.size() > r.left || r.blocked || r.recall, "on_data for no reason");
    check(in.size() <= sizes.buffer_bytes || in.size() <= detail::ingress_bytes,
          "at most one buffer is offered");
    if (known(r)) {
        counts_.bytes_checked += in.size();
        if (!check(flow_in(r).matches(in), "bytes lost, doubled or out of order on the way in")) {
            show(r);
            if (replaying()) {
                flow_in(r).explain(in);
            }
        }
    }
    if (known(r) && flow_in(r).left() == in.size()) {  // they came after they were sent
        r.in_ns = std::max(r.in_ns, links_[r.link].sent_ns);
    }
    r.recall = r.blocked = false;
    if (r.state_used || one_in(8)) {
        touch_state(c, r);
    }
    if (rates_ && to_send(r)) {
        r.rate_in.add(net.now_ns(), c.bytes_in());
    } else if (rates_) {
        r.rate_in.begin(net.now_ns(), c.bytes_in());
    }
    const std::size_t consumed = failed_ != nullptr ? in.size() : take_data(c, r, in);
    r.left = static_cast<std::uint32_t>(in.size() - consumed);
    note_input(c, r);
    return consumed;
}

/// Consumes something of `in`; the flows know of it.
inline std::size_t life::take_data(connection& c, life_record& r, bytes in) noexcept {
    if (phase_ != phase_of_life::young) {
        // Whoever waits for room at an end of ours keeps a buffer that this end may need to read.
        if (r.style % 2 == 0 || r.end_called || links_[r.link].ours_on_both) {
            flow_in(r).pass(in.size());
            return in.size();
        }
        return r.style == 1 ? move(c, r) : echo(c, r, in);
    }
    if (r.style == 7 && choose.below(16) != 0) {  // one that waits for more, for ever
        return 0;
    }
    something_else(c, r);
    if (gone_quiet(r) || r.end_called || r.paused || r.parked) {
        const std::size_t count = one_in(2) ? in.size() : choose.below(
                                      static_cast<std::uint32_t>(in.size()) + 1);
        flow_in(r).pass(count);
        return count;
    }
    switch ((r.style + (one_in(4) ? choose.below(8) : 0)) % 7) {
    case 0:
        produce(c, r);
        [[fallthrough]];
    case 1: {
        const std::size_t count = 1 + choose.below(static_cast<std::uint32_t>(in.size()));
        flow_in(r).pass(count);
        return count;
    }
    case 2:
    case 3:
        return echo(c, r, in);
    case 4:
        return move(c, r);
    case 5:
        return move_to_other(c, r);
    default:
        flow_in(r).pass(in.size());
        return in.size();
    }
}

inline void life::note_output(life_record& r, bool was_empty, std::size_t done) noexcept {
    if (was_empty && done != 0) {
        r.out_ns = net.now_ns();
        r.rate_out = {};
        r.rate_out.since_ns = net.now_ns();
    }
}

inline std::size_t life::echo(connection& c, life_record& r, bytes in) noexcept {
    if (r.end_called) {
        flow_in(r).pass(in.size());
        return in.size();
    }
    const bool was_empty = c.output_bytes() == 0;
    const std::size_t room = c.room();
    const std::size_t done = c.write(in);
    check(done <= in.size() && done <= room, "write takes what room says");
    note_refused(r, done < in.size());
    note_output(r, was_empty, done);
    flow_in(r).pass(done, &flow_out(r));
    return done;
}

inline std::size_t life::move(connection& c, life_record& r) noexcept {
    const bool was_empty = c.output_bytes() == 0;
    const std::size_t all = c.input().size();
    const std::size_t moved = c.move_input_to(c);
    check(moved == 0 || moved == all, "input moves whole or not at all");
    r.recall = r.recall || moved == 0;
    note_refused(r, moved == 0);
    flow_in(r).pass(moved, &flow_out(r));
    counts_.moved += moved != 0 ? 1 : 0;
    note_output(r, was_empty, moved);
    return moved;
}

inline std::size_t life::move_to_other(connection& c, life_record& r) noexcept {
    const std::uint32_t reach = static_cast<std::uint32_t>(std::min<std::size_t>(
        records_.size(), 48));
    life_record& other =
        records_[records_.size() - 1 - choose.below(std::max<std::uint32_t>(reach, 1))];
    connection* to = other.opened && !other.closed ? c.find(other.id) : nullptr;
    if (to == nullptr || gone_quiet(other) || other.end_called || &other == &r ||
        !known(other) || other.waiter) {
        return move(c, r);
    }
    const bool was_empty = to->output_bytes() == 0;
    const std::size_t all = c.input().size();
    const std::size_t moved = c.move_input_to(*to);
    check(moved == 0 || moved == all, "input moves whole or not at all");
    if (moved == 0) {
        r.recall = true;
        note_refused(other, true);
        other.waiter = r.id;
        pause(c, r);
        return 0;
    }
    ++counts_.moved_to_others;
    note_output(other, was_empty, moved);
    flow_in(r).pass(moved, &flow_out(other));
    return moved;
}

inline void life::produce(connection& c, life_record& r) noexcept {
    const std::uint32_t count = between(1, 3);
    for (std::uint32_t at = 0; at < count; ++at) {
        switch (choose.below(3)) {
        case 0:
            produce_copy(c, r);
            break;
        case 1:
            produce_static(c, r);
            break;
        default:
            produce_buffer(c, r);
            break;
        }
    }
}

inline void life::produce_copy(connection& c, life_record& r) noexcept {
    const std::uint32_t most = one_in(4) ? 4000 : 200;
    const std::size_t wanted = 1 + choose.below(most);
    const std::uint32_t from = next_text_ += 977;
    const bool was_empty = c.output_bytes() == 0;
    const std::size_t room = c.room();
    const std::size_t done = c.write(life_text(from, wanted));
    check(done == std::min(room, wanted), "write takes what room says");
    note_refused(r, done < wanted);
    flow_out(r).push(from, done);
    note_output(r, was_empty, done);
}
inline void life::produce_static(connection& c, life_record& r) noexcept {
    const std::size_t wanted = 1 + choose.below(300);
    const std::uint32_t from = next_text_ += 1201;
    const bool was_empty = c.output_bytes() == 0;
    const bool done = c.write_static(life_text(from, wanted));
    note_refused(r, !done);
    flow_out(r).push(from, done ? wanted : 0);
    note_output(r, was_empty, done ? wanted : 0);
}
inline void life::produce_buffer(connection& c, life_record& r) noexcept {
    buffer full = c.take_buffer();
    if (!full) {
        note_refused(r, true);
        return;
    }
    const std::uint32_t from = next_text_ += 1409;
    const std::uint32_t pieces = choose.below(3);
    for (std::uint32_t at = 0; at < pieces; ++at) {
        const mutable_bytes space = full.space(1 + choose.below(sizes.buffer_bytes));
        const std::size_t count = choose.below(static_cast<std::uint32_t>(space.size()) + 1);
        std::memcpy(space.data(), life_text(from + static_cast<std::uint32_t>(full.size())),
                    space.size());
        full.commit(count);
    }
    if (one_in(6)) {
        return;  // dropped
    }
    const std::size_t count = full.size();
    const bool was_empty = c.output_bytes() == 0;
    const bool done = c.push_buffer(full);
    note_refused(r, !done);
    flow_out(r).push(from, done ? count : 0);
    note_output(r, was_empty, done ? count : 0);
    check(done != static_cast<bool>(full), "a refused buffer stays the handler's");
}

/// Now and then, in any callback of an open connection.
inline void life::something_else(connection& c, life_record& r) noexcept {
    if (choose.below(8) != 0) {
        return;
    }
    switch (choose.below(16)) {
    case 0:
        end(c, r);
        break;
    case 1:
    case 2:
        close(c, r);
        break;
    case 3:
        kill(c, r);
        break;
    case 4:
    case 5:
        pause(c, r);
        wake_later(r.id);
        break;
    case 6:
    case 7:
        park(c, r);
        break;
    case 8:
    case 9:
        connect_from(&c);
        break;
    case 10:
        if (c.post(word_for(r.id))) {
            r.recall = true;
        }
        break;
    case 11:
        resume(c, r);
        break;
    case 12:
        if (!r.end_called) {
            produce(c, r);
        }
        break;
    default:
        set_times(c, r);
        break;
    }
}

inline void life::set_times(connection& c, life_record& r) noexcept {
    switch (choose.below(6)) {
    case 0:
        r.exchange_ms = 10 + choose.below(400);
        r.exchange_ns = net.now_ns();
        c.deadline(r.exchange_ms);
        break;
    case 1:
        r.exchange_ms = 0;
        c.deadline(0);
        break;
    case 2:
    case 3:
        if (!r.in_exchange) {
            r.in_exchange = r.fresh_exchange = true;
            r.in_ns = net.now_ns();
            if (r.exchange_ms == 0 && r.times->exchange_ms != 0) {
                r.exchange_ms = r.times->exchange_ms;
                r.exchange_ns = net.now_ns();
            }
        }
        c.phase(phase::exchange);
        break;
    case 4:
        r.in_exchange = false;
        r.exchange_ms = 0;
        c.phase(phase::idle);
        break;
    default:
        break;
    }
}

inline void life::pause(connection& c, life_record& r) noexcept {
    c.pause();
    r.paused = true;
    check(c.paused(), "paused");
}
inline void life::resume(connection& c, life_record& r) noexcept {
    c.resume();
    r.paused = false;
    r.recall = true;
    check(!c.paused(), "resumed");
}
inline void life::park(connection& c, life_record& r) noexcept {
    r.park_ms = one_in(2) ? 0 : between(1, 100);
    r.park_ns = net.now_ns();
    c.park(r.park_ms);
    r.park_ms = r.park_ms == 0 ? r.times->park_ms : r.park_ms;
    r.parked = true;
    r.recall = true;
    if (!one_in(4)) {
        wake_later(r.id);
    }
}
inline void life::end(connection& c, life_record& r) noexcept {
    c.end();
    r.end_called = true;
    check(c.write(life_text(1, 5)) == 0, "no output after end");
}
inline void life::close(connection& c, life_record& r) noexcept {
    c.close();
    if (!r.close_called) {
        r.close_ns = net.now_ns();
    }
    r.close_called = r.end_called = true;
    check(c.room() == 0, "no output after close");
}
inline void life::kill(connection& c, life_record& r) noexcept {
    const auto reason = static_cast<std::uint16_t>(1 + choose.below(1000));
    r.kill_reason = r.kill_called || r.close_called ? r.kill_reason : reason;
    c.kill(reason);
    r.kill_called = true;
}

inline void life::release_waiter(connection& c, life_record& r) noexcept {
    if (!r.waiter) {
        return;
    }
    connection* waiting = c.find(r.waiter);
    life_record* its = record_of(r.waiter);
    if (waiting != nullptr && its != nullptr && its->opened && !its->closed) {
        resume(*waiting, *its);
    }
    r.waiter = {};
}

inline void life::on_writable(connection& c) noexcept {
    guard inside(*this, life_hook::on_writable);
    life_record& r = record_of(c);
    may_call(c, r, "on_writable of an open connection only");
    check(!r.end_called, "on_writable after end or close");
    check(r.refused, "on_writable though nothing was refused");
    check(c.room() != 0, "on_writable without room");
    r.refused = false;
    release_waiter(c, r);
    if (phase_ == phase_of_life::young && one_in(3)) {
        produce(c, r);
    }
    note_input(c, r);
}

inline void life::on_end(connection& c) noexcept {
    guard inside(*this, life_hook::on_end);
    life_record& r = record_of(c);
    may_call(c, r, "on_end of an open connection only");
    check(!r.end_told, "on_end twice");
    check(!r.close_called, "on_end after close");
    check(!r.paused && !r.parked, "on_end while paused or parked");
    const sim_end& our_end = net.end(sim_network::index_of(c.native_handle()));
    if (known(r) && !our_end.reset && !(links_[r.link].ours_on_both && faults_end_)) {
        check(our_end.finished, "on_end before the peer's end");
        check(flow_in(r).left() == r.left, "on_end before the last byte");
    }
    r.end_told = true;
    if (phase_ != phase_of_life::young || choose.below(3) != 0) {
        if (!r.end_called && one_in(4)) {
            produce(c, r);
        }
        close(c, r);
        return;
    }
    r.left = 0;  // what is left is dropped
    switch (choose.below(4)) {
    case 0:
        kill(c, r);
        break;
    case 1:
        end(c, r);
        break;
    default:
        wake_later(r.id);  // answers later
        break;
    }
}

inline void life::on_post(connection& c, std::uint64_t word) noexcept {
    guard inside(*this, life_hook::on_post);
    life_record& r = record_of(c);
    may_call(c, r, "on_post of an open connection only");
    check(word == word_for(r.id), "a post reaches whom it is for");
    if (r.parked) {
        r.parked = false;
        r.recall = true;
        r.in_ns = net.now_ns();
        check(!c.parked(), "a post ends parking");
    }
    note_input(c, r);
    if (r.close_called) {
        return;
    }
    if (r.paused && !r.waiter) {
        resume(c, r);
    }
    if (phase_ != phase_of_life::young) {
        if (r.paused || links_[r.link].ours_on_both) {
            resume(c, r);
        }
        release_waiter(c, r);
        if (r.end_told) {
            close(c, r);
        } else if (!r.end_called && (r.by_connect || links_[r.link].ours_on_both)) {
            end(c, r);
        }
        return;
    }
    if (r.end_told && one_in(2)) {
        close(c, r);
        return;
    }
    something_else(c, r);
    if (!gone_quiet(r) && !r.end_called && one_in(4)) {
        produce(c, r);
    }
    if (r.end_told && !r.close_called) {
        wake_later(r.id);
    }
}

inline void life::on_timer(std::uint64_t word) noexcept {
    guard inside(*this, life_hook::on_timer);
    const std::size_t at = static_cast<std::size_t>(word);
    if (!check(word < timers_.size() && timers_[at].armed, "a timer fires once")) {
        return;
    }
    timers_[at].armed = false;
    check(net.now_ns() >= timers_[at].due_ns, "a timer fires early");
}

inline void life::on_deadline(connection& c, deadline_kind which) noexcept {
    guard inside(*this, life_hook::on_deadline);
    life_record& r = record_of(c);
    may_call(c, r, "on_deadline of an open connection only");
    check(!r.close_called, "on_deadline after close");
    ++counts_.deadlines[static_cast<std::size_t>(which)];
    check_early(r, which);
    switch (which) {  // each is granted its time once more
    case deadline_kind::write:
        r.out_ns = net.now_ns();
        break;
    case deadline_kind::exchange:
        r.exchange_ms = 0;
        break;
    case deadline_kind::park:
        r.parked = false;
        r.recall = true;
        [[fallthrough]];
    default:
        r.in_ns = net.now_ns();
        break;
    }
    note_input(c, r);
    switch (choose.below(5)) {
    case 0:
        break;
    case 1:
        something_else(c, r);
        break;
    case 2:
        close(c, r);
        break;
    default:
        kill(c, r);
        break;
    }
}

inline void life::on_drain(connection& c) noexcept {
    guard inside(*this, life_hook::on_drain);
    life_record& r = record_of(c);
    may_call(c, r, "on_drain of an open connection only");
    check(phase_ == phase_of_life::draining, "on_drain without a drain");
    if (one_in(3)) {
        close(c, r);
    }
}

inline void life::on_connect_failed(std::uint64_t word, error why) noexcept {
    guard inside(*this, life_hook::on_connect_failed);
    check(why != error::none, "a connect fails for a reason");
    std::uint32_t found = 0;
    for (const life_record& each : records_) {
        found += each.by_connect && each.word == word && !each.opened && !each.closed_told ? 1 : 0;
    }
    check(found == 1, "on_connect_failed for a connect under way");
}

inline void life::on_close(connection& c, close_reason reason) noexcept {
    guard inside(*this, life_hook::on_close);
    life_record& r = record_of(c);
    check(r.opened && !r.closed, "on_close once, if on_open ran");
    check_facts(c);
    check(reason.kind != close_kind::none, "a close has a reason");
    r.closed = true;
    r.reason = reason;
    release_waiter(c, r);
    if (r.state_used && !r.kill_called) {
        touch_state(c, r);
    }
}

/// Calls that are the driver's too.
inline void life::connect_from(connection* c) noexcept {
    if (records_.size() + 200 >= records_.capacity() || links_.size() + 200 >= links_.capacity()) {
        return;
    }
    const std::uint64_t word = ++next_word_;
    // Workers that wait for each other's clients would wait for ever.
    const bool to_ourselves = one_in(3) && places_[0].path.empty() && !streams;
    const endpoint to = to_ourselves
                            ? loopback_ipv4(places_[0].port)
                            : remotes_[choose.below(static_cast<std::uint32_t>(remotes_.size()))];
    const std::uint32_t worker = choose.below(sizes.workers_max);
    const result<connection_id> made =
        c != nullptr ? c->connect(to, word) : service_->connect(to, word, worker);
    if (!made) {
        life_counts::count(counts_.own_errors, made.why);
        return;
    }
    life_record& r = new_record(made.value);
    r.by_connect = true;
    r.word = word;
}

inline void life::check_early(const life_record& r, deadline_kind which) noexcept {
    const auto since = [&](std::uint64_t from, std::uint64_t ms) noexcept {
        check(ms != 0, "a deadline that is off");
        if (!check(net.now_ns() >= from + ms * ms_ns, "a deadline comes early")) {
            std::fprintf(stderr, "deadline %u: from %llu, %llu ms, now %llu\n",
                         static_cast<unsigned>(which), static_cast<unsigned long long>(from),
                         static_cast<unsigned long long>(ms),
                         static_cast<unsigned long long>(net.now_ns()));
        }
    };
    const auto tight = [&](std::uint64_t from, std::uint32_t ms) noexcept {
        check(ms != 0, "a deadline that is off");
        if (!check(passed(r, from, ms, true), "a deadline comes early or short for no reason")) {
            show(r);
        }
    };
    switch (which) {
    case deadline_kind::preface:
        return since(r.begun_ns, r.times->preface_ms);
    case deadline_kind::idle:
        return tight(std::max(r.in_ns, r.out_ns), r.times->idle_ms);
    case deadline_kind::read:
        return tight(r.in_ns, r.times->read_ms);
    case deadline_kind::write:
        return since(r.out_ns, r.times->write_ms);
    case deadline_kind::exchange:
        if (net.now_ns() >= r.wish_due_ns) {  // closed by id, within so long
            return;
        }
        return since(r.exchange_ns, r.exchange_ms);
    case deadline_kind::park:
        return since(r.park_ns, r.park_ms);
    case deadline_kind::connect:
        return since(r.begun_ns, r.times->connect_ms);
    default:
        return;
    }
}

// --- what the server tells ----------------------------------------------------------------------

inline void life::on_event(const server_event& told) noexcept {
    life_counts::count(counts_.told, told.kind);
    ++told_by_[told.worker][static_cast<std::size_t>(told.kind)];
    switch (told.kind) {
    case server_event_kind::coalesced: {
        std::uint64_t& before = told_by_[told.worker][static_cast<std::size_t>(told.of)];
        check(told.count != 0 && before >= burst_events_max, "held back before enough were told");
        before = 0;
        held_refusals_ += told.of == server_event_kind::refused ? told.count : 0;
        break;
    }
    case server_event_kind::accepted:
        accepted_told(told);
        break;
    case server_event_kind::opened: {
        life_record* r = record_of(told.id);
        r = r != nullptr ? r : &new_record(told.id);
        check(!r->opened_told && !r->closed_told, "opened is told once");
        r->opened_told = true;
        break;
    }
    case server_event_kind::refused:
        check(told.reason.kind == close_kind::refused, "refused says so");
        life_counts::count(counts_.reasons, told.reason.kind);
        life_counts::count(counts_.causes, told.reason.cause());
        check_cap(told);
        refused_told(told);
        break;
    case server_event_kind::egress_denied: {
        const life_record* r = record_of(told.id);
        check(r != nullptr && r->denied && !r->denied_told &&
                  told.reason == close_reason{close_kind::egress_denied, r->denied_code},
              "denied by the gate");
        break;
    }
    case server_event_kind::closed:
        closed_told(told);
        break;
    case server_event_kind::datagram_dropped:
        check(told.listener < sockets_.size() && sizes.datagram_sources_max != 0,
              "a datagram is beyond a budget that is none");
        break;
    case server_event_kind::accept_failed:
    case server_event_kind::descriptor_pressure:
    case server_event_kind::connect_failed:
        check(told.why != error::none, "a failure has a reason");
        break;
    default:
        check(phase_ >= phase_of_life::draining, "a drain that was asked for");
        check_drain_counts(told);
        break;
    }
}

/// Nobody is turned away while there is a place.
inline void life::check_cap(const server_event& told) noexcept {
    std::uint32_t of_listener = 0;
    for (const life_record& each : records_) {
        of_listener += !each.closed_told && each.listener == told.listener ? 1 : 0;
    }
    switch (told.reason.cause()) {
    case refusal_cause::global_cap:
        check(open_records_ == sizes.connections_max, "refused by the global cap below it");
        break;
    case refusal_cause::listener_cap:
        check(of_listener == places_[told.listener].how.connections_max,
              "refused by the listener's cap below it");
        break;
    default:
        break;
    }
}

inline void life::closed_told(const server_event& told) noexcept {
    life_record* found = record_of(told.id);
    if (!check(found != nullptr, "closed is told of a known connection")) {
        return;
    }
    life_record& r = *found;
    check(!r.closed_told, "closed is told once");
    check(r.opened == r.closed, "on_close iff on_open");
    check(!r.opened || r.reason == told.reason, "one reason for all");
    check(told.reason.kind != close_kind::none, "a close has a reason");
    r.closed_told = true;
    r.told_reason = told.reason;
    --open_records_;
    release_source(r);
    if (gated && entry_of(r.id).id == r.id && !entry_of(r.id).in) {
        leave_lane(entry_of(r.id));  // refused with an answer: nobody else hears of its end
    }
    check_drain_counts(told);
    life_counts::count(counts_.reasons, told.reason.kind);
    if (told.reason.kind == close_kind::refused) {
        life_counts::count(counts_.causes, told.reason.cause());
    }
    check_reason(r, told.reason);
    check_preface(r, told.reason);
    check_rate(r, told);
    check_ended_idle(r, told);
    check(!gated || r.denied || told.reason.kind == close_kind::refused ||
              told.bytes_out <= r.allowed,
          "bytes leave that the gate was not asked about");
}

inline void life::check_reason(const life_record& r, close_reason reason) noexcept {
    const bool drains = drain_ns_ != 0;
    switch (reason.kind) {
    case close_kind::idle:
        return check_early(r, deadline_kind::idle);
    case close_kind::read_timeout:
        return check_early(r, deadline_kind::read);
    case close_kind::write_timeout:
        return check_early(r, deadline_kind::write);
    case close_kind::exchange_deadline:
        return check_early(r, deadline_kind::exchange);
    case close_kind::park_deadline:
        return check_early(r, deadline_kind::park);
    case close_kind::preface_timeout:
        return check_early(r, deadline_kind::preface);
    case close_kind::connect_timeout:
        return check_early(r, deadline_kind::connect);
    case close_kind::killed:
        check((r.kill_called && r.kill_reason == reason.detail) ||
                  (r.wish == kill_kind::kill && r.wish_reason == reason.detail),
              "killed by the handler or from outside");
        break;
    case close_kind::handler_closed:
        check(r.close_called || r.wish_due_ns != forever_ns, "closed by the handler or by id");
        break;
    case close_kind::egress_denied:
        check(r.denied && r.denied_code == reason.detail, "denied by the gate");
        check(!r.opened || plain || r.denied_told || r.kill_called, "on_denied of each denial");
        break;
    case close_kind::refused:
        return check_refused(r, reason);
    case close_kind::drained:
        check(drains, "drained without a drain");
        break;
    case close_kind::drain_deadline:
        check(drains && net.now_ns() >= drain_ns_ + drain_ms_ * ms_ns, "a drain ends early");
        break;
    case close_kind::shutdown:
        check(phase_ >= phase_of_life::stopped, "shut down without a stop");
        break;
    case close_kind::io:
        check(reason.why() != error::none, "io names its error");
        check(faults_end_, "an error of the system out of nowhere");
        break;
    case close_kind::input_too_long:
        check(r.left >= sizes.buffer_bytes, "input too long only with a full window");
        break;
    default:
        break;
    }
}

inline void life::check_preface(const life_record& r, close_reason reason) noexcept {
    const bool of_preface = reason.kind == close_kind::proxy_missing ||
                            reason.kind == close_kind::proxy_invalid ||
                            reason.kind == close_kind::proxy_untrusted;
    check(!of_preface || !r.opened, "the preface comes before on_open");
    if (r.peer == none_index || !of_preface) {
        return;
    }
    const life_peer& p = peers_[r.peer];
    const bool cut = p.header_most < p.header.size() || p.header_sent < p.header.size();
    switch (reason.kind) {
    case close_kind::proxy_missing:
        check(p.preface == life_preface::missing || p.preface == life_preface::bad ||
                  p.header.empty(),
              "a header is missing");
        break;
    case close_kind::proxy_untrusted:
        check(!p.trusted, "a trusted proxy is not trusted");
        break;
    default:
        check(!p.acceptable || cut, "a good header is taken");
        break;
    }
}

// --- peers --------------------------------------------------------------------------------------

inline void life::start_client() noexcept {
    ++clients_;
    if (links_.size() + 200 >= links_.capacity() || records_.size() + 200 >= records_.capacity()) {
        return;
    }
    life_peer p;
    p.listener = choose.below(static_cast<std::uint32_t>(places_.size()));
    const place& where = places_[p.listener];
    p.serial = where.serial;
    endpoint from = ipv4(192, 0, 2, static_cast<std::uint8_t>(1 + choose.below(caps_ ? 3 : 1)), 0);
    if (!where.how.trusted.empty() && where.path.empty() && one_in(8)) {
        from = ipv4(203, 0, 113, 9, 0);
        p.trusted = false;
    }
    const auto number = static_cast<std::uint32_t>(peers_.size());
    p.at = where.path.empty() ? net.connect(where.port, from) : net.connect(where.path);
    if (!p.at.open()) {
        return;
    }
    if (where.path.empty()) {
        const std::uint32_t port = p.at.local().port - 32768u;
        peer_of_port_.resize(std::max<std::size_t>(peer_of_port_.size(), port + 1));
        peer_of_port_[port] = number + 1;
    }
    p.link = link_of(p.at.index());
    make_preface(p, where.how, number);
    choose_manners(p);
    add_peer(p);
}

inline void life::add_peer(const life_peer& p) noexcept {
    live_.push_back(static_cast<std::uint32_t>(peers_.size()));
    peers_.push_back(p);
}

inline void life::choose_manners(life_peer& p) noexcept {
    p.text_at = next_text_ += 4099;
    p.left = one_in(8) ? 0 : choose.below(one_in(12) ? 6000 : one_in(2) ? 600 : 60);
    p.piece_max = one_in(6) ? 1 + p.left / 16 : 1 + p.left;
    p.take_max = one_in(6) ? 0 : one_in(4) ? 1 + choose.below(40) : 100'000;
    p.silent = one_in(12);
    p.ending = static_cast<std::uint8_t>(choose.below(16));
    if (one_in(5)) {
        p.at.window(one_in(3) ? 0 : choose.below(300));
    }
}

inline void life::make_preface(life_peer& p, const listen_options& how,
                               std::uint32_t number) noexcept {
    if (how.proxy == proxy_mode::off) {
        return;
    }
    p.preface = static_cast<life_preface>(1 + choose.below(10));
    p.header.resize(1400);
    preface_of(p, how, number);
    p.header_most = p.header.size();
    if (p.preface == life_preface::cut || p.preface == life_preface::late) {
        p.header_most = choose.below(static_cast<std::uint32_t>(p.header.size()));
    }
}

inline void life::preface_of(life_peer& p, const listen_options& how,
                             std::uint32_t number) noexcept {
    proxy::header is;
    is.cmd = p.preface == life_preface::local ? proxy::command::local : proxy::command::proxy;
    is.proto = proxy::transport::stream;
    is.fam = proxy::family::ipv4;
    is.source = ipv4(10, static_cast<std::uint8_t>(number >> 16),
                     static_cast<std::uint8_t>(number >> 8), static_cast<std::uint8_t>(number),
                     static_cast<std::uint16_t>(1000 + number % 60'000));
    if (caps_) {
        is.source = ipv4(10, 9, 0, static_cast<std::uint8_t>(1 + number % 3), is.source.port);
    }
    is.destination = ipv4(10, 255, 0, 1, 443);
    const bool old = p.preface == life_preface::v1 || p.preface == life_preface::unnamed ||
                     (p.preface >= life_preface::bad && one_in(2));
    if (p.preface == life_preface::unnamed) {
        is.fam = proxy::family::unspecified;
        is.proto = proxy::transport::unspecified;
    }
    const std::size_t filler = p.preface == life_preface::too_long ? 600 + choose.below(80) : 40;
    const proxy::tlv marks[] = {{0xE5, life_text(number, 40)}, {0xE6, life_text(3, filler)}};
    const bool tells = p.preface == life_preface::with_tlvs || p.preface == life_preface::too_long;
    const std::size_t count =
        old ? proxy::encode_v1(is, p.header)
            : proxy::encode_v2(is, std::span(marks).first(tells ? 2 : 0), p.header, one_in(2));
    sim_require(count != 0, "the driver's own headers");
    p.header.resize(count);
    const proxy_accept refused = old ? proxy_accept::v2 : proxy_accept::v1;
    p.acceptable = how.versions != refused && count <= how.header_max;
    p.named = is.source;
    p.names = p.preface != life_preface::local && p.preface != life_preface::unnamed;
    spoil_preface(p);
}

inline void life::spoil_preface(life_peer& p) noexcept {
    if (p.preface == life_preface::missing) {
        p.header.clear();
        p.acceptable = false;
    } else if (p.preface == life_preface::bad) {
        p.header[one_in(2) ? 1 : p.header.size() > 14 ? 13 : 0] ^= std::byte{0x8A};
        p.acceptable = false;
    } else if (p.preface == life_preface::cut || p.preface == life_preface::late) {
        p.acceptable = false;
    }
}

/// One thing a peer does. It may be gone afterwards.
inline void life::step(std::uint32_t live_at) noexcept {
    life_peer& p = peers_[live_[live_at]];
    const bool finishing = phase_ != phase_of_life::young;
    if (finishing) {
        p.silent = false;
        p.take_max = 100'000;
        p.piece_max = 1000;
        p.at.window(std::max<std::uint32_t>(net.options.window_bytes, 200));
    }
    if (!p.at.open() || !step_take(p) || !step_send(p) || !step_end(p)) {
        links_[p.link].gone = true;
        p.at.close();
        drop_peer(live_at);
    }
}

inline void life::drop_peer(std::uint32_t live_at) noexcept {
    live_[live_at] = live_.back();
    live_.pop_back();
}

/// Looks at what arrived. False: the connection is over.
inline bool life::step_take(life_peer& p) noexcept {
    life_link& link = links_[p.link];
    const bool all = phase_ != phase_of_life::young;
    const std::size_t most = all ? p.take_max : p.silent ? 0 : choose.below(p.take_max + 1);
    const bytes found = p.at.unread().first(std::min(p.at.unread().size(), most));
    if (!found.empty()) {
        counts_.bytes_checked += found.size();
        check(link.down.matches(found), "bytes lost, doubled or out of order on the way out");
        link.down.pass(found.size());
        check(link.down.passed() <= link.allowed, "bytes come that the gate was not asked about");
        p.at.take(found.size());
    }
    if (p.at.was_reset()) {
        return p.at.unread().size() != 0 && !p.silent;
    }
    if (p.at.finished() && p.at.unread().empty()) {
        if (!faults_end_) {
            check(link.down.left() == 0, "the stream ends before its last byte");
            ++counts_.complete_streams;
        }
        return !(p.shut || all || one_in(2));
    }
    return true;
}

inline bool life::step_send(life_peer& p) noexcept {
    if (p.silent || p.shut) {
        return true;
    }
    const auto piece = [&](std::size_t left) noexcept {
        return std::min<std::size_t>(left, 1 + choose.below(p.piece_max));
    };
    if (p.header_sent < p.header_most) {
        const std::size_t wanted = std::min<std::size_t>(
            p.header_most - p.header_sent, one_in(3) ? 1 + choose.below(30) : 2000);
        p.header_sent += p.at.send(bytes(p.header).subspan(p.header_sent, wanted));
        if (p.header_sent < p.header_most) {
            return true;
        }
    }
    if (p.header_sent < p.header.size() || p.left == 0) {
        return true;
    }
    const std::size_t sent = p.at.send(life_text(p.text_at, piece(p.left)));
    links_[p.link].up.push(p.text_at, sent);
    links_[p.link].sent_ns = sent != 0 ? net.now_ns() : links_[p.link].sent_ns;
    p.text_at += static_cast<std::uint32_t>(sent);
    p.left -= static_cast<std::uint32_t>(sent);
    return true;
}

inline bool life::step_end(life_peer& p) noexcept {
    const bool finishing = phase_ != phase_of_life::young;
    if (!finishing && one_in(400)) {
        p.at.reset();
        return false;
    }
    const bool stuck = p.header_sent == p.header_most && p.header_most < p.header.size();
    if (p.silent || (p.left != 0 && !stuck) || p.header_sent < p.header_most) {
        return true;
    }
    if (stuck && p.preface == life_preface::late && !finishing) {
        return true;
    }
    if (finishing || p.ending < 8 || (stuck && p.preface == life_preface::cut)) {
        p.at.shutdown();
        p.shut = true;
        return true;
    }
    if (p.ending < 10) {
        p.at.reset();
        return false;
    }
    return p.ending >= 12;  // 10, 11: close; the others wait for what comes
}

// --- datagrams ----------------------------------------------------------------------------------

/// Begins with where its bytes are in the text, so that whoever gets it can tell.
inline std::vector<std::byte> life::datagram_text() noexcept {
    const std::uint32_t from = (next_text_ += 331) % life_text_period;
    const std::uint32_t count = choose.below(one_in(4) ? 900 : 80);
    std::vector<std::byte> out(8 + count);
    std::memcpy(out.data(), &from, 4);
    std::memcpy(out.data() + 4, &count, 4);
    std::memcpy(out.data() + 8, life_text(from), count);
    return out;
}
inline void life::check_datagram(bytes payload, bool truncated) noexcept {
    std::uint32_t from = 0;
    std::uint32_t count = 0;
    if (payload.size() < 8) {
        check(payload.empty() || truncated, "a datagram cut without a mark");
        return;
    }
    std::memcpy(&from, payload.data(), 4);
    std::memcpy(&count, payload.data() + 4, 4);
    check(truncated ? payload.size() - 8 < count : payload.size() - 8 == count,
          "a datagram keeps its length, or says that it does not");
    check(std::memcmp(payload.data() + 8, life_text(from), payload.size() - 8) == 0,
          "a datagram's bytes");
}

inline void life::count_answer(std::uint32_t socket, bytes payload, bool sent) noexcept {
    stranger& of = stranger_[socket];
    of.out += sent ? std::max<std::size_t>(payload.size(), 1) : 0;
    check(of.amplification == 0 || sizes.datagram_sources_max == 0 ||
              of.out <= of.in * of.amplification,
          "a stranger gets more than it may");
}

inline void life::datagram_out() noexcept {
    if (sockets_.empty()) {
        return;
    }
    const std::uint32_t at = choose.below(static_cast<std::uint32_t>(sockets_.size()));
    const endpoint to = sockets_[at];
    std::vector<std::byte> text = one_in(12) ? std::vector<std::byte>{} : datagram_text();
    if (to.reserved != 0) {
        proxy::header is;
        is.cmd = proxy::command::proxy;
        is.proto = proxy::transport::datagram;
        is.fam = proxy::family::ipv4;
        is.source = ipv4(10, 1, 2, 3, 4);
        is.destination = ipv4(10, 4, 3, 2, 1);
        std::vector<std::byte> header(64);
        header.resize(proxy::encode_v2(is, {}, header, false));
        if (one_in(4)) {
            header[choose.below(static_cast<std::uint32_t>(header.size()))] ^= std::byte{0x40};
        }
        text.insert(text.begin(), header.begin(), header.end());
    }
    endpoint bare = to;
    bare.reserved = 0;
    net.send_datagram(datagram_peer_, bare, text);
    constexpr auto twice = static_cast<std::size_t>(sim_fault::datagram_twice);
    stranger_[at].in +=
        std::max<std::size_t>(text.size(), 1) * (net.options.weights[twice] != 0 ? 2 : 1);
    if (one_in(2)) {
        const std::vector<std::byte> own = datagram_text();
        count_answer(at, own, service_->send_to(at, ipv4(192, 0, 2, 77, 777), own));
    }
    for (const sim_datagram& each : net.datagrams(datagram_peer_)) {
        check_datagram(each.payload, false);
    }
    net.datagrams(datagram_peer_).clear();
}

inline void life::on_datagram(datagram_socket& via, const datagram& in) noexcept {
    guard inside(*this, life_hook::on_datagram);
    if (!check(via.id().index < sockets_.size(), "a socket that is open")) {
        return;
    }
    check(in.peer == ipv4(192, 0, 2, 77, 777), "who sent a datagram");
    check(in.payload.size() <= sizes.buffer_bytes, "a datagram fits a buffer");
    const bool required = sockets_[via.id().index].reserved != 0;
    check(required || !in.proxied, "a datagram's header");
    if (!required || in.proxied) {
        check_datagram(in.payload, in.truncated);
    }
    if (!in.truncated && one_in(2) && in.payload.size() >= 8 && (!required || in.proxied)) {
        count_answer(via.id().index, in.payload, via.send_to(in.peer, in.payload));
    }
}

// --- the loop -----------------------------------------------------------------------------------

inline void life::act_adopt() noexcept {
    if (links_.size() + 200 >= links_.capacity() || records_.size() + 200 >= records_.capacity()) {
        return;
    }
    const sim_network::pair both = net.connected_pair();
    life_peer p;
    p.at = both.peer;
    p.listener = 255;
    p.link = link_of(p.at.index());
    links_[p.link].ours_on_both = false;
    choose_manners(p);
    const result<connection_id> made =
        service_->adopt(both.handle, choose.below(sizes.workers_max));
    if (!made) {
        life_counts::count(counts_.own_errors, made.why);
        simulator::close_handle(both.handle, true);
        p.at.close();
        return;
    }
    new_record(made.value);
    add_peer(p);
}

inline void life::act_timer() noexcept {
    if (!timers_.empty() && one_in(4)) {
        timer& one = timers_[choose.below(static_cast<std::uint32_t>(timers_.size()))];
        const bool was = one.armed;
        const bool cancelled = service_->cancel(one.id);
        check(cancelled == was || (was && phase_ != phase_of_life::young),
              "cancel says whether it was armed");
        one.armed = false;
        return;
    }
    timer made;
    made.worker = choose.below(sizes.workers_max);
    const std::uint32_t ms = choose.below(one_in(4) ? 5000 : 40);
    made.due_ns = net.now_ns() + ms * ms_ns;
    const result<timer_id> armed = service_->after(ms, timers_.size(), made.worker);
    if (!armed) {
        life_counts::count(counts_.own_errors, armed.why);
        return;
    }
    made.id = armed.value;
    made.armed = true;
    timers_.push_back(made);
}

inline void life::act_rarely() noexcept {
    switch (choose.below(8)) {
    case 0:
    case 1:
        connect_from(nullptr);
        break;
    case 2:
        act_adopt();
        break;
    case 3:
        act_timer();
        break;
    case 4:
    case 5:
        datagram_out();
        break;
    default:
        if (!records_.empty()) {
            const auto count = static_cast<std::uint32_t>(records_.size());
            const connection_id to =
                records_[count - 1 - choose.below(std::min(count, 64u))].id;
            service_->post(to, word_for(to));
        }
        break;
    }
}

inline void life::wake_due() noexcept {
    for (std::size_t at = 0; at < wakes_.size();) {
        if (wakes_[at].when_ns <= net.now_ns() &&
            service_->post(wakes_[at].id, word_for(wakes_[at].id))) {
            wakes_[at] = wakes_.back();
            wakes_.pop_back();
        } else {
            ++at;
        }
    }
}

inline void life::act() noexcept {
    const std::uint32_t count = 1 + choose.below(6);
    for (std::uint32_t at = 0; at < count; ++at) {
        if (clients_ < clients_wanted_ && live_.size() < live_wanted_ && one_in(2)) {
            start_client();
        } else if (!live_.empty()) {
            step(choose.below(static_cast<std::uint32_t>(live_.size())));
        }
    }
    if (one_in(12)) {
        act_rarely();
    }
    if (choose.chance(controls_)) {
        act_control();
    }
    for (const sim_peer& each : net.connected_peers()) {
        life_peer p;
        p.at = each;
        p.listener = 255;
        p.link = link_of(each.index());
        choose_manners(p);
        add_peer(p);
    }
    net.connected_peers().clear();
    net.due_words().clear();
    net.clear_changed();
    wake_due();
}

inline void life::turn_all() noexcept {
    const std::uint64_t before = net.trace();
    const std::uint32_t first = choose.below(sizes.workers_max);
    // Where nothing happens for long, time may pass.
    const std::uint32_t longest = quiet_turns_ < 8 ? 0 : 1u << std::min(quiet_turns_ / 8, 11u);
    for (std::uint32_t at = 0; at < sizes.workers_max; ++at) {
        const std::uint32_t most = choose.exhausted() ? longest : choose.below(longest + 2);
        const std::uint32_t ms = at == 0 ? most : 0;
        turn(ms, (first + at) % sizes.workers_max);
    }
    quiet_turns_ = net.trace() == before ? quiet_turns_ + 1 : 0;
}

/// Threads that wait for who never speaks are set free from outside: nobody else comes in.
inline void life::act_long_quiet() noexcept {
    for (std::size_t at = records_.size(); at != 0; --at) {
        const life_record& each = records_[at - 1];
        if (!each.closed_told && each.wish == kill_kind::live) {
            act_end_of(each.id, one_in(2));
            return;
        }
    }
}

inline void life::go_on() noexcept {
    act();
    if (streams && quiet_turns_ > 60 && one_in(10)) {
        act_long_quiet();
    }
    if (choose.chance(pauses_)) {  // the process was not run for a while
        net.pass((1 + choose.below(one_in(2) ? 20 : 400)) * ms_ns);
    }
    turn_all();
}

/// In the end no one is left asleep.
inline void life::wake_everyone() noexcept {
    const std::size_t first = choose.below(static_cast<std::uint32_t>(records_.size()));
    for (std::size_t at = 0; at < records_.size(); ++at) {  // the queue is shorter
        const life_record& each = records_[(first + at) % records_.size()];
        if (each.opened && !each.closed) {
            service_->post(each.id, word_for(each.id));
            if (streams && each.by_connect) {
                act_end_of(each.id, false);  // a thread that blocks hears no posts
            }
        }
    }
}

inline void life::run(life_service& service) noexcept {
    service_ = &service;
    clients_wanted_ = shape_.clients_per_life;
    live_wanted_ = 1 + choose.below(sizes.connections_max + sizes.connections_max / 2 + 2);
    records_.reserve(clients_wanted_ * 8 + 1024);
    links_.reserve(clients_wanted_ * 8 + 1024);
    if (!wiping) {
        service_->no_wipe();
    }
    const auto weight = [&](sim_fault fault) noexcept {
        return net.options.weights[static_cast<std::size_t>(fault)];
    };
    faults_end_ = weight(sim_fault::reset) + weight(sim_fault::send_error) +
                      weight(sim_fault::receive_error) !=
                  0;
    connect_options outgoing;
    outgoing.times = outgoing_times_ = choose_deadlines();
    service_->outgoing(outgoing);
    choose_remotes();
    if (gated && one_in(2)) {
        for (std::uint8_t lane = 0; lane < 8; ++lane) {
            const std::uint32_t count = one_in(3) ? choose.below(sizes.connections_max / 2 + 1) : 0;
            const bool fits = reserved_sum_ + count <= sizes.connections_max;
            const error why = service_->reserve_lane(lane, count);
            check((why == error::none) == fits, "a lane gets places that are left");
            reserved_[lane] = fits ? count : 0;
            reserved_sum_ += reserved_[lane];
        }
        check(service_->reserve_lane(8, 1) == error::option_invalid, "a lane without places");
    }
    open_places();
    datagram_peer_ = net.datagram_peer(ipv4(192, 0, 2, 77, 777));
    const std::uint32_t until = one_in(3) ? choose.below(clients_wanted_) : clients_wanted_;
    std::uint32_t turns = 0;
    if (controls_ != 0) {
        act_crowd();
    }
    while (failed_ == nullptr && clients_ < until && turns++ < 40'000) {
        go_on();
    }
    const std::uint32_t later = choose.below(200);
    for (std::uint32_t at = 0; at < later && failed_ == nullptr; ++at) {
        go_on();
    }
}

/// For a replay: who is still there, and as what.
inline void life::show_left() noexcept {
    for (const life_record& r : records_) {
        if (!r.closed_told) {
            show(r);
        }
    }
    if (replaying() && service_ != nullptr) {
        for (const pool_stats& pool : service_->stats().pools) {
            std::fprintf(stderr, "%s %u of %u, ", pool.name, pool.in_use, pool.capacity);
        }
        std::fprintf(stderr, "%u workers, %zu peers\n", sizes.workers_max, live_.size());
        for (const std::uint32_t at : live_) {
            const life_peer& p = peers_[at];
            std::fprintf(stderr, "peer: link %u, left %u, unread %zu%s%s%s\n", p.link, p.left,
                         p.at.unread().size(), p.shut ? " shut" : "",
                         p.at.finished() ? " finished" : "", p.at.was_reset() ? " reset" : "");
        }
    }
}
inline bool life::replaying() noexcept { return std::getenv("NETIO_SEED") != nullptr; }
inline void life::show(const life_record& r) noexcept {
    if (!replaying()) {
        return;
    }
    std::fprintf(stderr, "connection: %s%s%s%s%s%s%s%s%s%s%s%sstyle %d, input left %u",
                 r.accepted ? "accepted " : "", r.by_connect ? "connect " : "",
                 r.opened ? "opened " : "", r.closed ? "closed " : "",
                 r.end_told ? "end_told " : "", r.end_called ? "end_called " : "",
                 r.close_called ? "close_called " : "", r.kill_called ? "kill_called " : "",
                 r.paused ? "paused " : "", r.parked ? "parked " : "",
                 r.refused ? "refused " : "", r.waiter ? "waiter " : "", r.style, r.left);
    if (r.link != none_index) {
        std::fprintf(stderr, ", in %llu, out %llu%s",
                     static_cast<unsigned long long>(flow_in(r).left()),
                     static_cast<unsigned long long>(flow_out(r).left()),
                     links_[r.link].ours_on_both ? ", ours on both" : "");
    }
    std::fprintf(stderr, "\n");
}

/// The end: everybody behaves and all must end by itself, or a drain, or a stop.
inline void life::run_out() noexcept {
    finishing_ns_ = net.now_ns();
    std::uint32_t turns = 0;
    while (failed_ == nullptr && !all_gone() && turns++ < 60'000) {
        for (std::uint32_t at = 0; at < live_.size(); ++at) {
            step(at);
        }
        if (turns % 16 == 0) {
            wake_everyone();
            if (door_shut_) {  // those in front of it wait as long as it is
                act_door();
            }
        }
        quiet_turns_ = std::max(quiet_turns_, std::min(turns / 50, 72u));
        go_on();
    }
    show_left();
    check(all_gone(), "a connection never ends though its peer behaves: a wake was lost");
}

inline bool life::finish(life_service& service) noexcept {
    service_ = &service;
    clients_wanted_ = 0;
    for (std::uint32_t at = choose.below(5); at != 0; --at) {
        start_client();  // some come too late
    }
    const std::uint32_t how = choose.below(8);
    if (how < 4) {
        drain_ms_ = one_in(2) ? choose.below(60) : choose.below(5000);
        drain_ns_ = net.now_ns();
        phase_ = phase_of_life::draining;
        service_->drain(drain_ms_);
        std::uint32_t turns = 0;
        const std::uint32_t most = one_in(3) ? choose.below(200) : 40'000;
        while (failed_ == nullptr && !all_gone() && turns++ < most) {
            go_on();
        }
    } else if (how < 6) {
        phase_ = phase_of_life::finishing;
        run_out();
    }
    if (how == 7 && failed_ == nullptr && !streams) {
        phase_ = phase_of_life::torn_down;
        return false;
    }
    phase_ = phase_of_life::stopped;
    if (failed_ == nullptr) {
        service_->stop();
    }
    stop_turning();
    return true;
}

inline void life::stop_turning() noexcept {
    bool running = true;
    for (std::uint32_t at = 0; failed_ == nullptr && running && at < 20'000; ++at) {
        running = false;
        for (std::uint32_t worker = 0; worker < sizes.workers_max; ++worker) {
            running = turn(1, worker) || running;
        }
    }
    check(!running, "a stopped server ends");
    // Datagrams that were on their way when it ended come to their end, too.
    for (std::uint32_t at = 0; at < 500 && service_->stats().pools[5].in_use != 0; ++at) {
        for (std::uint32_t worker = 0; worker < sizes.workers_max; ++worker) {
            service_->turn(1, worker);
        }
    }
    show_left();
    check(all_gone(), "closed is told of every connection");
    check(inside_ == 0, "the gate hears of every end");
}

inline void life::after_end() noexcept {
    service_ = nullptr;
    show_left();
    check(all_gone(), "closed is told of every connection of a server that is destroyed");
    check(inside_ == 0, "the gate hears of every end, also of a server that is destroyed");
}

struct life_events {
    life* of;
    void on_event(const server_event& told) noexcept { of->on_event(told); }
};

}  // namespace netio_test

#include "tests/life_control.hpp"

#endif
