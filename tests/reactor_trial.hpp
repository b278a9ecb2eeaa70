// A server with a gate, TLS and dials at once over the simulator, where a script chooses what
// peers, handler, gate and the owner do. Checked at the end: every pool is full again, as many
// connections were closed as opened, each word of a dial or connect was told once, sessions are
// wiped, and what a TLS peer got is how what it said begins, where the gate denies nothing. That
// connections end without a stop is not: tests/lifecycle.hpp looks at that. Test code: uses heap.
#ifndef NETIO_TESTS_REACTOR_TRIAL_HPP
#define NETIO_TESTS_REACTOR_TRIAL_HPP

#include "tests/server_world.hpp"
#include "tests/toy_tls.hpp"

namespace netio_test {

class reactor_trial;

/// Everything goes to the trial.
struct trial_handler {
    reactor_trial* of = nullptr;
    void on_open(connection& c) noexcept;
    std::size_t on_data(connection& c, bytes in) noexcept;
    void on_end(connection& c) noexcept;
    void on_writable(connection& c) noexcept;
    void on_post(connection& c, std::uint64_t word) noexcept;
    void on_timer(std::uint64_t word) noexcept;
    void on_deadline(connection& c, deadline_kind which) noexcept;
    void on_drain(connection& c) noexcept;
    void on_denied(connection& c, std::uint16_t code) noexcept;
    void on_datagram(datagram_socket& via, const datagram& in) noexcept;
    void on_connect_failed(std::uint64_t word, error why) noexcept;
    void on_close(connection& c, close_reason reason) noexcept;
};

struct trial_gate : gate_books {
    reactor_trial* of = nullptr;
    verdict admit(const connection& c) noexcept;
    verdict readmit(const connection& c) noexcept;
    egress check(const connection& c, const write_facts& facts) noexcept;
};

/// What the script says before there is a server.
struct trial_plan {
    sim_options net;
    limits sizes = small_limits;
    toy_options toy;

    explicit trial_plan(sim_chooser& choose) noexcept : net(sim_options::swarm(choose)) {
        sizes.connections_max = 1 + choose.below(20);
        sizes.input_buffers_max = 1 + choose.below(8);
        sizes.output_buffers_max = 1 + choose.below(8);
        sizes.refusals_max = choose.below(4);
        sizes.dials_max = choose.below(4);
        sizes.timers_max = choose.below(4);
        sizes.datagram_sources_max = choose.below(6);
        toy.sessions_max = 1 + choose.below(6);
        toy.record_max = 1 + choose.below(300);
        toy.space_bytes = 320 + choose.below(400);
        toy.by_pieces = choose.below(2) == 1;
        toy.deaf_while_sending = choose.below(2) == 1;
        toy.closes_both = choose.below(2) == 1;
        toy.ends_itself = choose.below(2) == 1;
        // Of what is chosen already: a script means the same with and without them.
        toy.silent_after_end = toy.by_pieces;
        toy.works_late = toy.ends_itself;
        toy.part_max = toy.record_max % 3 == 0 ? toy.record_max : toy.part_max;
    }
};

class reactor_trial : public server_world<trial_handler, trial_gate, toy_tls> {
    using base = server_world<trial_handler, trial_gate, toy_tls>;

public:
    reactor_trial(const sim_chooser& script, const trial_plan& plan)
        : base(plan.net.proactor, plan.sizes, plan.net), choose(net.choose) {
        net.choose = script;
        handler.of = gate.of = this;
        tls = toy_tls(plan.toy);
        refuses_ = choose.below(2) * 30;
        denies_ = choose.below(2) * 12;
        open_places();
        net.options.gives_random = !one_in(4);
    }
    ~reactor_trial() {
        check_nothing_held();
        CHECK(gate.inside() == 0);
        CHECK(tls.wiped());
        CHECK(told_.size() == started_);
        for (const auto& [word, count] : told_) {
            CHECK(count == 1);
        }
        CHECK(open_ == 0);
    }

    void run() {
        for (std::uint32_t step = 0; step < 600 && !choose.exhausted(); ++step) {
            act();
            server->run_once(choose.below(4) == 0 ? choose.below(60) : 0);
            CHECK(server->stats().open <= sizes.connections_max);
        }
        finish();
    }

    // ---- hooks

    void opened(connection& c) noexcept {
        ++open_;
        if (c.origin() == origin::connected) {
            ++told_[c.connect_word()];
        }
        ids_.push_back(c.id());
        act_inside(c);
    }
    std::size_t data(connection& c, bytes in) noexcept {
        CHECK_FALSE(in.empty());
        if (c.tls_session() == 0) {
            act_inside(c);
        }
        switch (choose.below(5)) {
        case 0:
            return c.move_input_to(c);
        case 1:
            return c.write(in.first(1 + choose.below(static_cast<std::uint32_t>(in.size()))));
        case 2:
            c.pause();
            return c.tls_session() != 0 ? 0 : choose.below(static_cast<std::uint32_t>(in.size()));
        default:
            return c.write(in);
        }
    }
    /// What any callback of a connection may do; a TLS peer hears nothing but its own words.
    void act_inside(connection& c) noexcept {
        const bool plain = c.tls_session() == 0;
        switch (choose.below(24)) {
        case 0:
            c.close();
            break;
        case 1:
            c.kill(7);
            break;
        case 2:
            c.end();
            break;
        case 3:
            c.park(choose.below(50));
            break;
        case 4:
            c.deadline(choose.below(300));
            break;
        case 5:
            c.phase(one_in(2) ? phase::exchange : phase::idle);
            break;
        case 6:
            static_cast<void>(c.probe());
            break;
        case 7:
            begun(static_cast<bool>(c.dial(candidates(), next_word_, dial_how())));
            break;
        case 8:
            begun(static_cast<bool>(c.connect(remote(), next_word_)));
            break;
        case 9:
        case 10:
        case 11:
            if (plain) {
                c.write(std::string(1 + choose.below(3000), 'x'));
            }
            break;
        case 12:
            c.pause();
            break;
        default:
            c.resume();
            break;
        }
    }
    void closed(connection& c, close_reason reason) noexcept {
        CHECK(reason.kind != close_kind::none);
        CHECK(open_-- > 0);
        CHECK(c.room() == 0);
    }
    void failed(std::uint64_t word, error why) noexcept {
        CHECK(why != error::none);
        ++told_[word];
    }
    void datagram_in(datagram_socket& via, const datagram& in) noexcept {
        CHECK(in.payload.size() <= sizes.buffer_bytes);
        if (one_in(3)) {
            via.prove(in.peer);
        }
        via.send_to(in.peer, in.payload);
    }

    // ---- the gate

    verdict verdict_of() noexcept {
        if (choose.chance(refuses_)) {
            return one_in(2) ? verdict::refuse(3) : verdict::refuse(3, std::string_view("no"));
        }
        return verdict::allow(static_cast<std::uint8_t>(choose.below(9)), 5);
    }
    egress egress_of() noexcept {
        return choose.chance(denies_) ? (one_in(2) ? egress::deny(4) : egress::deny(4, "denied"))
                                      : egress::allow();
    }

private:
    struct talker {
        sim_peer at;
        toy_client say;
        std::string pending;  // not sent yet
        std::string said;     // plaintext
        bool secure = false;
    };
    struct place {
        listen_options how;
        std::uint16_t port = 0;
        listener_id id{};
    };

    static inline const endpoint stranger_at = ipv4(192, 0, 2, 77, 777);

    bool one_in(std::uint32_t count) noexcept { return choose.below(count) == 0; }
    connection_id any_id() noexcept {
        return ids_.empty() ? connection_id{}
                            : ids_[choose.below(static_cast<std::uint32_t>(ids_.size()))];
    }
    void begun(bool did) noexcept {
        started_ += did ? 1 : 0;
        ++next_word_;
    }
    deadlines times() noexcept {
        deadlines out;
        if (one_in(2)) {
            out.idle_ms = 30 + choose.below(500);
            out.read_ms = 20 + choose.below(300);
            out.write_ms = 20 + choose.below(300);
            out.park_ms = 10 + choose.below(300);
            out.linger_ms = 10 + choose.below(300);
            out.connect_ms = 50 + choose.below(900);
            out.preface_ms = 3000;
        }
        out.rate_in = out.rate_out = one_in(2) ? 0 : 1 + choose.below(60'000);
        out.rate_window_ms = 1 + choose.below(100);
        out.rate_grace_ms = choose.below(50);
        return out;
    }
    void open_places() {
        connect_options out;
        out.times = times();
        server->outgoing(out);
        server->waiting({.spin_us = one_in(2) ? choose.below(100) : 0});
        for (std::uint32_t at = 0; at < 3; ++at) {
            place made;
            made.how.times = times();
            made.how.tls = at == 0 ? tls_mode::off : tls_mode::required;
            made.how.proxy = at == 2 ? proxy_mode::required : proxy_mode::off;
            made.how.lockdown_exempt = one_in(3);
            listen_at(made);
            places_.push_back(made);
        }
        datagram_options how;
        how.source = {1 + choose.below(100), 1 + choose.below(3), 1 + choose.below(9'000), 4'096};
        how.amplification = choose.below(4);
        const result<datagram_id> socket = server->open_datagram(how);
        REQUIRE(static_cast<bool>(socket));
        socket_ = socket.value;
        stranger_ = net.datagram_peer(stranger_at);
        for (std::uint8_t at = 0; at < 6; ++at) {
            net.remote(remote_at(at), static_cast<sim_answer>(at % 5));
        }
        server->run_once(0);
    }
    void listen_at(place& made) {
        REQUIRE(server->listen(made.how, &made.id) == error::none);
        made.port = server->local(made.id).port;
    }
    static endpoint remote_at(std::uint32_t at) noexcept {
        return ipv4(198, 51, 100, static_cast<std::uint8_t>(at), 80);
    }
    endpoint remote() noexcept { return remote_at(choose.below(6)); }
    std::vector<endpoint> candidates() noexcept {
        std::vector<endpoint> out(one_in(16) ? 0 : 1 + choose.below(5));
        for (endpoint& each : out) {
            each = remote();
        }
        return out;
    }
    dial_options dial_how() noexcept {
        dial_options how;
        how.rounds_max = choose.below(4);
        how.within_ms = choose.below(3) * 1'500;
        how.attempts_max = 1 + choose.below(4);
        how.attempt_delay_ms = 100 + choose.below(200);
        return how;
    }

    void act() {
        switch (choose.below(20)) {
        case 0:
        case 1:
            come();
            break;
        case 2:
            act_outgoing();
            break;
        case 3:
            act_owner();
            break;
        case 4:
            act_datagram();
            break;
        case 5:
            net.pass(std::uint64_t{choose.below(1u << choose.below(13))} * 1'000'000);
            break;
        case 6:
            server->post(any_id(), choose.word());
            break;
        default:
            if (!talkers_.empty()) {
                talk(talkers_[choose.below(static_cast<std::uint32_t>(talkers_.size()))]);
            }
            break;
        }
        for (const sim_peer& each : net.connected_peers()) {
            talkers_.push_back({each, {}, {}, {}, false});
        }
        net.connected_peers().clear();
        net.clear_changed();
    }
    void come() {
        const place& to = places_[choose.below(static_cast<std::uint32_t>(places_.size()))];
        talker made;
        made.at = net.connect(to.port, {});
        made.secure = to.how.tls == tls_mode::required;
        if (to.how.proxy == proxy_mode::required && !one_in(8)) {
            made.pending = "PROXY TCP4 203.0.113.9 192.0.2.1 5000 80\r\n";
        }
        if (made.secure) {
            made.pending += made.say.hello();
            made.pending += made.say.finish();
        }
        talkers_.push_back(std::move(made));
    }
    void talk(talker& who) {
        switch (choose.below(20)) {
        case 0:
            who.at.reset();
            break;
        case 1:
            who.at.shutdown();
            break;
        case 2:
            who.at.close();
            break;
        case 3:
            if (!who.pending.empty()) {  // whoever opens that must fail
                who.pending.back() = static_cast<char>(who.pending.back() ^ 1);
            }
            break;
        case 4:
            if (who.secure) {
                who.pending += one_in(2) ? who.say.close() : who.say.ask();
            }
            break;
        case 5:
            who.at.window(choose.below(700));
            break;
        case 6:
        case 7:
            hear(who);
            break;
        case 8:
        case 9:
        case 10:
            say(who);
            break;
        default:
            break;
        }
        const std::size_t most = one_in(4) ? choose.below(40) : 1 + choose.below(900);
        who.pending.erase(0, who.at.send(std::string_view(who.pending).substr(0, most)));
    }
    void say(talker& who) {
        if (who.pending.size() > 4'000) {
            return;
        }
        std::string text(1 + choose.below(250), '\0');
        for (char& each : text) {
            each = static_cast<char>('a' + text_at_++ % 23);
        }
        who.pending += who.secure ? who.say.data(text) : text;
        who.said += text;
    }
    void hear(talker& who) {
        const std::string heard = who.at.take_text();
        if (who.secure) {
            who.say.take(heard);
            // What a talkative session says between close_notify and FIN is out of order.
            CHECK((!who.say.bad || (who.say.ended && !tls.how.silent_after_end)));
            CHECK((denies_ != 0 || who.said.starts_with(who.say.text)));
        }
    }

    void act_outgoing() {
        switch (choose.below(5)) {
        case 0:
            begun(static_cast<bool>(server->connect(remote(), next_word_)));
            break;
        case 1:
            if (!dials_.empty()) {
                const auto count = static_cast<std::uint32_t>(dials_.size());
                server->cancel_dial(dials_[choose.below(count)]);
            }
            break;
        case 2: {
            const sim_network::pair both = net.connected_pair();
            if (server->adopt(both.handle)) {
                talkers_.push_back({both.peer, {}, {}, {}, false});
            } else {
                simulator::close_handle(both.handle, true);
                sim_peer(both.peer).close();
            }
            break;
        }
        default: {
            const auto made = server->dial(candidates(), next_word_, dial_how());
            begun(static_cast<bool>(made));
            if (made) {
                dials_.push_back(made.value);
            }
            break;
        }
        }
    }
    void act_owner() {
        constexpr control_state moods[] = {control_state::normal, control_state::normal,
                                           control_state::shed, control_state::lockdown};
        switch (choose.below(8)) {
        case 0:
            server->kill(any_id(), 9);
            break;
        case 1:
            server->close(any_id(), choose.below(2) * 500);
            break;
        case 2:
            one_in(2) ? server->open_door() : server->close_door();
            break;
        case 3:
            CHECK(server->control(moods[choose.below(4)], static_cast<std::uint8_t>(
                                                              choose.below(9))) == error::none);
            break;
        case 4:
            server->remove_listener(places_[choose.below(3)].id);
            break;
        case 5: {
            place made = places_[choose.below(3)];
            if (server->listen(made.how, &made.id) == error::none) {
                made.port = server->local(made.id).port;
                places_.push_back(made);
            }
            break;
        }
        default: {
            const result<timer_id> timer = server->after(choose.below(200), 1);
            if (timer && one_in(3)) {
                CHECK(server->cancel(timer.value));
            }
            break;
        }
        }
    }
    void act_datagram() {
        const endpoint to = loopback_ipv4(server->local(socket_).port);
        net.send_datagram(stranger_, to, as_bytes(std::string(choose.below(1'200), 'd')));
        if (one_in(3)) {
            server->prove(socket_, stranger_at);
        }
        if (one_in(3)) {
            server->send_to(socket_, stranger_at, as_bytes(std::string_view("hello")));
        }
        net.datagrams(stranger_).clear();
    }
    void finish() {
        if (one_in(2)) {
            server->drain(choose.below(3) * 800);
            for (std::uint32_t left = choose.below(400);
                 left != 0 && server->run_once(1 + choose.below(20)); --left) {
            }
        }
        for (talker& each : talkers_) {
            hear(each);
        }
    }

    sim_chooser& choose;
    std::vector<place> places_;
    std::vector<talker> talkers_;
    std::vector<connection_id> ids_;
    std::vector<dial_id> dials_;
    std::map<std::uint64_t, std::uint32_t> told_;
    std::uint64_t started_ = 0;
    std::uint64_t next_word_ = 1;
    std::uint32_t open_ = 0;
    std::uint32_t text_at_ = 0;
    std::uint32_t refuses_ = 0;  // of 1,024
    std::uint32_t denies_ = 0;
    std::uint32_t stranger_ = 0;
    datagram_id socket_{};
};

inline void trial_handler::on_open(connection& c) noexcept { of->opened(c); }
inline std::size_t trial_handler::on_data(connection& c, bytes in) noexcept {
    return of->data(c, in);
}
inline void trial_handler::on_end(connection& c) noexcept { c.close(); }
inline void trial_handler::on_writable(connection& c) noexcept { of->act_inside(c); }
inline void trial_handler::on_post(connection& c, std::uint64_t) noexcept { of->act_inside(c); }
inline void trial_handler::on_timer(std::uint64_t word) noexcept { CHECK(word == 1); }
inline void trial_handler::on_deadline(connection& c, deadline_kind) noexcept {
    of->act_inside(c);
}
inline void trial_handler::on_drain(connection& c) noexcept { of->act_inside(c); }
inline void trial_handler::on_denied(connection& c, std::uint16_t code) noexcept {
    CHECK(code == 4);
    of->act_inside(c);
}
inline void trial_handler::on_datagram(datagram_socket& via, const datagram& in) noexcept {
    of->datagram_in(via, in);
}
inline void trial_handler::on_connect_failed(std::uint64_t word, error why) noexcept {
    of->failed(word, why);
}
inline void trial_handler::on_close(connection& c, close_reason reason) noexcept {
    of->closed(c, reason);
}
inline verdict trial_gate::admit(const connection& c) noexcept {
    return noted(c, of->verdict_of());
}
inline verdict trial_gate::readmit(const connection&) noexcept { return of->verdict_of(); }
inline egress trial_gate::check(const connection&, const write_facts& facts) noexcept {
    CHECK(facts.byte_count != 0);
    return of->egress_of();
}

/// One trial, from the script's begin to its end.
inline void reactor_trial_run(sim_chooser choose) {
    const trial_plan plan(choose);
    reactor_trial trial(choose, plan);
    trial.run();
}

}  // namespace netio_test

#endif
