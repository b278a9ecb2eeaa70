// What the lives of tests/lifecycle.hpp do with a gate, and from outside: ends by id, door, states,
// lanes, listeners that come and go; and the books that every answer is compared with. Test code.
#ifndef NETIO_TESTS_LIFE_CONTROL_HPP
#define NETIO_TESTS_LIFE_CONTROL_HPP

#include "tests/lifecycle.hpp"

namespace netio_test {

inline void life::choose_control() noexcept {
    gated = one_in(2);
    gate_refuses_ = one_in(3) ? 0 : choose.below(300);
    gate_denies_ = one_in(3) ? 0 : choose.below(60);
    controls_ = one_in(2) ? 0 : 1 + choose.below(80);
    pauses_ = one_in(3) ? 1 + choose.below(30) : 0;
    rates_ = !one_in(4);
    sizes.sources_max = one_in(6) ? 0 : one_in(3) ? between(8, 40) : 0xFFFFFFFF;
    caps_ = sizes.sources_max != 0 && one_in(3);
    if (one_in(4)) {
        sizes.output_buffers_max = between(16, 40);
    }
}

// --- the gate -----------------------------------------------------------------------------------

inline life_entry& life::entry_of(connection_id id) noexcept {
    const std::uint32_t slot = token{id.bits}.index();
    if (slot >= entries_.size()) {
        entries_.resize(slot + 1);
    }
    return entries_[slot];
}

/// Lane and tag are what the gate said, and who has callbacks was let in.
inline void life::check_facts(const connection& c) noexcept {
    if (!gated) {
        check(c.lane() == 0 && c.tag() == 0, "a lane without a gate");
        return;
    }
    life_entry& e = entry_of(c.id());
    check(e.id == c.id() && e.in, "served without the gate's leave");
    check(!e.refused, "served though the gate refused it");
    check(e.expects == refusal_cause::count_, "served though its lane has no place");
    check(c.lane() == e.lane && c.tag() == e.tag, "lane and tag are what the gate said");
    found_place(e);
}

inline std::uint8_t life::lane_of(connection_id id) noexcept {
    return gated ? entry_of(id).lane : std::uint8_t{0};
}

/// Last words: a stretch of the text, so that they are looked for behind what went before.
inline bytes life::choose_reply(std::uint32_t& from) noexcept {
    from = next_text_ += 613;
    const std::uint32_t most = one_in(8) ? 512 : 60;
    return life_text(from, one_in(40) ? refusal_bytes_max + 1 : 1 + choose.below(most));
}

inline verdict life::choose_verdict(const connection& c, life_entry& e) noexcept {
    if (!choose.chance(gate_refuses_)) {
        const auto lane = static_cast<std::uint8_t>(choose.below(lanes_used));
        return verdict::allow(lane, static_cast<std::uint32_t>(choose.word()));
    }
    e.refused = true;
    e.code = static_cast<std::uint8_t>(choose.below(256));
    if (one_in(2)) {
        life_counts::count(counts_.acts, life_act::refused_silently);
        refusing_ = e.code;
        return verdict::refuse(e.code);
    }
    std::uint32_t from = 0;
    const bytes reply = choose_reply(from);
    if (c.origin() == origin::accepted) {
        life_counts::count(counts_.acts, life_act::refused_with_answer);
        e.answered = true;
        if (reserved_sum_ != 0) {
            refusing_ = e.code;  // for want of a common place there is no answer
            e.place = life_entry::place_kind::refused;
            ++refused_places_;
        }
        if (reply.size() <= refusal_bytes_max) {
            life_link& link = links_[link_of(sim_network::index_of(c.native_handle()))];
            link.down.push(from, reply.size());
            link.allowed = link.allowed == forever_ns ? forever_ns : link.allowed + reply.size();
        }
    }
    return verdict::refuse(e.code, reply);
}

inline verdict life::gate_admit(const connection& c) noexcept {
    life_entry& e = entry_of(c.id());
    check(!e.in, "a slot is used again before the gate heard of the end");
    check(c.lane() == 0 && c.tag() == 0 && c.bytes_in() == 0, "admitted before anything happens");
    leave_lane(e);  // of one that was refused and never told
    e = {};
    e.id = c.id();
    const verdict said = choose_verdict(c, e);
    if (said.allowed()) {
        e.in = true;
        ++inside_;
        e.lane = said.lane();
        e.tag = said.tag();
        enter_lane(e);
    }
    return said;
}

inline verdict life::gate_readmit(const connection& c) noexcept {
    life_entry& e = entry_of(c.id());
    life_record* r = record_of(c.id());
    if (!check(r != nullptr && r->accepted && !r->opened && !r->closed_told,
               "asked again of a client that is not yet served")) {
        return verdict::refuse();
    }
    check(places_[r->listener].how.proxy == proxy_mode::required && c.proxied(),
          "asked again of whom PROXY named");
    check(!e.asked_again, "asked again once");
    check_facts(c);
    e.asked_again = true;
    if (r->peer != none_index) {
        check(c.source() == peers_[r->peer].named, "asked again of the client by its name");
    }
    count_source(*r, c.source());
    leave_lane(e);
    life_counts::count(counts_.acts, life_act::readmitted);
    const verdict said = choose_verdict(c, e);
    refusing_ = none_index;
    if (said.allowed()) {
        e.lane = said.lane();
        e.tag = said.tag();
        enter_lane(e);
    } else {
        life_counts::count(counts_.acts, life_act::refused_when_named);
    }
    if (!said.allowed() || e.expects != refusal_cause::count_) {
        promise(c.id(), refusal_linger_ms, "a refusal behind PROXY takes longer than its second");
    }
    return said;
}

inline egress life::gate_check(const connection& c, const write_facts& facts) noexcept {
    life_record* r = record_of(c.id());
    if (!check(r != nullptr && r->opened && !r->closed, "asked of the output of who is served")) {
        return egress::deny();
    }
    check_facts(c);
    check(!r->denied, "asked again after a denial");
    check(facts.byte_count != 0 && facts.byte_count == c.output_bytes(), "asked of all that waits");
    check(facts.bytes_out == c.bytes_out(), "asked with what was sent before");
    check(facts.in_exchange == r->in_exchange || r->receives, "asked with the phase");
    check(!facts.at_boundary || facts.bytes_out == 0 || !r->in_exchange || r->fresh_exchange ||
              r->receives,
          "asked as if a response began, in its middle");
    r->fresh_exchange = false;
    check(facts.bytes_out <= r->allowed, "bytes left that the gate was not asked about");
    const std::uint64_t written = flow_out(*r).total();  // or is about to be, by a stream
    check(streams ? written >= facts.bytes_out + facts.byte_count
                  : written == facts.bytes_out + facts.byte_count,
          "asked of every byte that the handler wrote");
    if (rates_) {
        r->rate_out.add(net.now_ns(), facts.bytes_out);
    }
    life_link& link = links_[r->link];
    const bool to_peer = !r->ours_called && !link.ours_on_both;
    if (!choose.chance(gate_denies_)) {
        r->allowed = facts.bytes_out + facts.byte_count;
        link.allowed = to_peer ? r->allowed : link.allowed;
        return egress::allow();
    }
    r->denied = true;
    r->denied_code = static_cast<std::uint16_t>(choose.below(0x10000));
    r->allowed = facts.bytes_out;
    flow_out(*r).cut(facts.bytes_out);
    promise(c.id(), refusal_linger_ms, "a denial takes longer than its second");
    std::uint32_t from = 0;
    const bytes reply = one_in(2) ? bytes{} : choose_reply(from);
    life_counts::count(counts_.acts, reply.empty() ? life_act::denied_silently
                                                   : life_act::denied_with_answer);
    if (reply.size() <= refusal_bytes_max) {
        flow_out(*r).push(from, reply.size());
        r->replied = reply.size();
    }
    link.allowed = to_peer ? facts.bytes_out + r->replied : link.allowed;
    return reply.empty() ? egress::deny(r->denied_code) : egress::deny(r->denied_code, reply);
}

inline void life::gate_closed(const connection& c, close_reason reason) noexcept {
    life_entry& e = entry_of(c.id());
    if (!check(e.id == c.id() && e.in, "the gate hears once of the end of each who is in")) {
        return;
    }
    e.in = false;
    --inside_;
    check(c.lane() == e.lane && c.tag() == e.tag, "lane and tag last until the end");
    const life_record* r = record_of(c.id());
    check(r == nullptr || (r->closed_told && r->told_reason == reason),
          "the gate hears the reason that everybody hears, after them");
    const bool of_lane = reason.kind == close_kind::refused &&
                         (reason.cause() == refusal_cause::shed ||
                          reason.cause() == refusal_cause::lane_reserve);
    const bool named_too_late = reason.cause() == refusal_cause::shed && r != nullptr &&
                                was_shed(e.lane, r->begun_ns);
    const bool none_found = reason.cause() == refusal_cause::lane_reserve && e.may_find_none;
    check(!of_lane || e.expects == reason.cause() || named_too_late || none_found,
          "refused though its lane has a place");
    check(r != nullptr || of_lane || e.expects == refusal_cause::count_,
          "let in though its lane has no place");
    leave_lane(e);
}

inline void life::on_denied(connection& c, std::uint16_t code) noexcept {
    guard inside(*this, life_hook::on_denied);
    life_record& r = record_of(c);
    check_facts(c);
    check(r.opened && !r.closed && r.denied && r.denied_code == code, "on_denied of a denial");
    check(!r.denied_told, "on_denied once");
    check(!r.kill_called, "on_denied of who is alive");
    r.denied_told = true;
    check(c.room() == 0 && c.output_bytes() == 0, "nothing leaves after a denial");
    release_waiter(c, r);
    if (!streams) {
        something_else(c, r);
    }
}

// --- lanes --------------------------------------------------------------------------------------

inline void life::enter_lane(life_entry& e) noexcept {
    if (sheds(e.lane)) {
        e.expects = refusal_cause::shed;
    } else if (reserved_sum_ != 0) {
        if (e.lane < 8 && own_open_[e.lane] < reserved_[e.lane]) {
            ++own_open_[e.lane];
            e.place = life_entry::place_kind::own;
        } else if (common_open_ - doubtful_places_ < sizes.connections_max - reserved_sum_) {
            // Those who are refused with an answer may have common places, too, and who found none
            // for that is here until it is told.
            e.may_find_none =
                common_open_ + refused_places_ >= sizes.connections_max - reserved_sum_;
            doubtful_places_ += e.may_find_none ? 1 : 0;
            ++common_open_;
            e.place = life_entry::place_kind::common;
        } else {
            e.expects = refusal_cause::lane_reserve;
        }
    }
}
/// It is in, so it has one.
inline void life::found_place(life_entry& e) noexcept {
    if (e.place == life_entry::place_kind::common && e.may_find_none) {
        e.may_find_none = false;
        --doubtful_places_;
    }
}
inline void life::leave_lane(life_entry& e) noexcept {
    if (e.place == life_entry::place_kind::own) {
        --own_open_[e.lane];
    } else if (e.place == life_entry::place_kind::common) {
        --common_open_;
        doubtful_places_ -= e.may_find_none ? 1 : 0;
    } else if (e.place == life_entry::place_kind::refused) {
        --refused_places_;
    }
    e.place = life_entry::place_kind::none;
    e.may_find_none = false;
}

// --- sources ------------------------------------------------------------------------------------

inline std::uint32_t life::address_of(const endpoint& of) noexcept {
    return of.family == address_family::ipv4
               ? std::uint32_t{of.address[0]} << 24 | std::uint32_t{of.address[1]} << 16 |
                     std::uint32_t{of.address[2]} << 8 | of.address[3]
               : 0;
}
inline std::uint32_t& life::source_count(std::uint32_t address) noexcept {
    for (auto& [known, count] : sources_) {
        if (known == address) {
            return count;
        }
    }
    return sources_.emplace_back(address, 0u).second;
}
inline void life::count_source(life_record& r, const endpoint& from) noexcept {
    const std::uint32_t most = places_[r.listener].how.source_connections_max;
    r.source = most == 0 ? 0 : address_of(from);
    if (r.source != 0) {
        check(++source_count(r.source) <= most, "more of one source than its listener takes");
    }
}
inline void life::release_source(life_record& r) noexcept {
    if (r.source != 0) {
        --source_count(r.source);
        r.source = 0;
    }
}
inline void life::check_source_refused(const server_event& told) noexcept {
    const listen_options& how = places_[told.listener].how;
    check(how.source_connections_max != 0 && how.proxy == proxy_mode::off,
          "a source's cap where there is none");
    check(source_count(address_of(told.source)) >= how.source_connections_max,
          "refused by the source's cap below it");
}

// --- what is told -------------------------------------------------------------------------------

inline void life::accepted_told(const server_event& told) noexcept {
    const place& where = places_[told.listener];
    life_record& r = new_record(told.id);
    r.accepted = true;
    r.listener = told.listener;
    r.times = &where.how.times;
    const std::uint32_t port = told.source.port;
    if (port >= 32768 && port - 32768 < peer_of_port_.size()) {
        r.peer = peer_of_port_[port - 32768] - 1;
    }
    check(!door_shut_, "let in by a door that is shut");
    check(!where.removed, "let in by a listener that was removed");
    check(mood_ != control_state::lockdown || where.how.lockdown_exempt, "let in in a lockdown");
    check(gated || !sheds(0), "let in though its lane is shed");
    if (mood_ == control_state::lockdown) {
        life_counts::count(counts_.acts, life_act::let_in_during_lockdown);
    }
    if (r.peer != none_index) {
        check(peers_[r.peer].serial == where.serial,
              "let in by another listener than the one it came to");
    }
    if (where.how.proxy == proxy_mode::off) {
        count_source(r, told.source);
    }
    if (gated) {
        life_entry& e = entry_of(told.id);
        found_place(e);
        check(e.id == told.id && e.in != e.refused, "accepted without the gate");
        check(e.expects == refusal_cause::count_, "accepted though its lane has no place");
        check(!e.refused || e.answered, "accepted though the gate refused it");
        refusing_ = none_index;
        if (e.refused) {
            promise(told.id, refusal_linger_ms, "a refusal takes longer than its second");
        }
    }
}

inline void life::refused_told(const server_event& told) noexcept {
    const place& where = places_[told.listener];
    const std::uint32_t port = told.source.port;
    const std::uint32_t peer = port >= 32768 && port - 32768 < peer_of_port_.size()
                                   ? peer_of_port_[port - 32768] - 1
                                   : none_index;
    // It may have come to one that was there before; of unix sockets nobody knows.
    const bool late = peer == none_index || peers_[peer].serial != where.serial;
    switch (told.reason.cause()) {
    case refusal_cause::door_closed:
        check(phase_ >= phase_of_life::draining || door_shut_ || where.removed || late,
              "refused by a door that is open");
        break;
    case refusal_cause::lockdown:
        check(mood_ == control_state::lockdown && !where.how.lockdown_exempt,
              "refused by a lockdown that is none");
        break;
    case refusal_cause::shed:
        check(gated || sheds(0), "refused as shed though nobody is");
        break;
    case refusal_cause::gate:
        check(refusing_ == told.reason.code(), "refused by the gate, with its code");
        break;
    case refusal_cause::source_cap:
        check_source_refused(told);
        break;
    case refusal_cause::lane_reserve:
        check(gated && reserved_sum_ != 0, "refused for a reserve that is none");
        break;
    default:
        break;
    }
    refusing_ = none_index;
}

/// Who was let in and then told that it may not stay.
inline void life::check_refused(const life_record& r, close_reason reason) noexcept {
    check(r.accepted && !r.opened, "refused before it was served");
    const life_entry& e = entry_of(r.id);
    switch (reason.cause()) {
    case refusal_cause::gate:
        check(gated && e.refused && e.code == reason.code(), "refused by the gate, with its code");
        break;
    case refusal_cause::lane_reserve:
        check(gated && e.asked_again && (e.expects == reason.cause() || e.may_find_none),
              "refused by its lane");
        break;
    case refusal_cause::shed:
        check((gated && e.asked_again && e.expects == reason.cause()) ||
                  was_shed(lane_of(r.id), r.begun_ns),
              "refused by its lane");
        break;
    case refusal_cause::lockdown:
        check(places_[r.listener].how.proxy == proxy_mode::required &&
                  !places_[r.listener].how.lockdown_exempt,
              "refused by a lockdown when PROXY named it");
        check(mood_ == control_state::lockdown || lockdown_ns_ >= r.begun_ns,
              "refused by a lockdown that was over");
        break;
    case refusal_cause::source_cap:
        check(places_[r.listener].how.source_connections_max != 0, "refused by a cap that is none");
        [[fallthrough]];
    case refusal_cause::busy:
        check(places_[r.listener].how.proxy == proxy_mode::required, "refused behind a header");
        break;
    default:
        check(false, "refused after accept for no reason");
        break;
    }
}

/// Drained and shed are those who have nothing under way, and nobody below the lane.
inline void life::check_ended_idle(const life_record& r, const server_event& told) noexcept {
    const bool shed = told.reason.kind == close_kind::shed;
    if (shed) {
        const std::uint8_t lane = lane_of(r.id);
        check(r.opened, "shed before it was served");
        check(was_shed(lane, r.begun_ns), "shed though its lane is not");
    }
    if ((shed || told.reason.kind == close_kind::drained) && r.opened) {
        check(!r.in_exchange && !r.parked && !r.paused, "a busy one ends as if it were idle");
        check(r.left == 0, "one with input ends as if it were idle");
        const life_link& link = links_[r.link];
        if (replaying() && flow_out(r).total() != told.bytes_out) {
            show(r);
            std::fprintf(stderr, "%llu of %llu out, %s\n",
                         static_cast<unsigned long long>(told.bytes_out),
                         static_cast<unsigned long long>(flow_out(r).total()),
                         name(told.reason.kind));
        }
        check(flow_out(r).total() == told.bytes_out || faults_end_ || link.gone || r.by_connect ||
                  link.ours_on_both,  // a send that failed takes all output with it
              "one with output ends as if it were idle");
    }
}

inline void life::check_rate(const life_record& r, const server_event& told) noexcept {
    const deadlines& times = *r.times;
    if (replaying() && (told.reason.kind == close_kind::slow_peer_in ||
                        told.reason.kind == close_kind::slow_peer_out)) {
        r.rate_in.show("in", told.bytes_in, net.now_ns());
        r.rate_out.show("out", told.bytes_out, net.now_ns());
        std::fprintf(stderr, "rates %u, %u, window %u, grace %u\n", times.rate_in, times.rate_out,
                     times.rate_window_ms, times.rate_grace_ms);
    }
    if (told.reason.kind == close_kind::slow_peer_in) {
        check(times.rate_in != 0 && r.opened, "too slow where nobody measures");
        check(r.rate_in.has_slow_window(net.now_ns(), told.bytes_in, times.rate_in,
                                        times.rate_window_ms, times.rate_grace_ms),
              "too slow in, though it was quick enough");
    } else if (told.reason.kind == close_kind::slow_peer_out) {
        check(times.rate_out != 0 && r.opened, "too slow where nobody measures");
        // Only a gate hears of every send.
        life_stretch unknown;
        unknown.since_ns = r.rate_out.since_ns;
        check((gated ? r.rate_out : unknown)
                  .has_slow_window(net.now_ns(), told.bytes_out, times.rate_out,
                                   times.rate_window_ms, times.rate_grace_ms),
              "too slow out, though it was quick enough");
    }
}

/// A stretch of input begins at the earliest when nothing else is the reason for none.
inline void life::note_input(connection& c, life_record& r) noexcept {
    if (rates_ && !to_send(r)) {
        r.rate_in.begin(net.now_ns(), c.bytes_in());
    }
}

inline void life::check_drain_counts(const server_event& told) noexcept {
    if (told.kind == server_event_kind::drain_started) {
        check(!drain_seen_[told.worker], "a drain begins once");
        drain_seen_[told.worker] = true;
        for (const life_record& r : records_) {
            drain_due_.open_at_begin +=
                !r.closed_told && worker_of(r.id) == told.worker ? 1 : 0;
        }
    } else if (told.kind == server_event_kind::closed && drain_seen_[told.worker]) {
        (told.reason.kind == close_kind::drained          ? drain_due_.idle
         : told.reason.kind == close_kind::drain_deadline ? drain_due_.cut
         : told.reason.kind == close_kind::shutdown       ? drain_due_.cut
                                                          : drain_due_.finished) += 1;
    }
}

/// What the server counted is what it told.
inline void life::check_counts(const life_service& service) noexcept {
    const detail::worker_counters counts = service.stats().counts;
    const auto told = [&](server_event_kind kind) noexcept {
        return counts_.told[static_cast<std::size_t>(kind)];
    };
    std::uint64_t untold = 0;
    for (std::size_t at = 0; at < counts_.causes.size(); ++at) {
        check(counts.refused_by[at] >= counts_.causes[at], "refusals by cause");
        untold += counts.refused_by[at] - counts_.causes[at];
    }
    check(untold == held_refusals_, "refusals that were told as a number");
    for (std::size_t at = 0; at < counts_.reasons.size(); ++at) {
        const bool refused = static_cast<close_kind>(at) == close_kind::refused;
        check(counts.closed_by[at] + (refused ? told(server_event_kind::refused) : 0) ==
                  counts_.reasons[at],
              "ends by reason");
    }
    check(counts.closed == told(server_event_kind::closed), "ends");
    check(counts.opened == told(server_event_kind::opened), "opened ones");
    check(counts.egress_denied == told(server_event_kind::egress_denied), "denials");
    check(counts.kills_stale == stale_wishes_, "kills and closes of who was gone");
    const drain_report drained = service.drained();
    check(drained.open_at_begin == drain_due_.open_at_begin && drained.idle == drain_due_.idle &&
              drained.finished == drain_due_.finished && drained.cut == drain_due_.cut,
          "the report of the drain");
    check(drained.took_ms * ms_ns <= net.now_ns() - drain_ns_ + ms_ns, "how long a drain took");
    check(common_open_ == 0, "places of lanes");
}

// --- time ---------------------------------------------------------------------------------------

/// Has it been so long, or, while room was scarce, half or a quarter of it?
inline bool life::passed(const life_record& r, std::uint64_t from_ns, std::uint32_t ms,
                         bool may_tighten) noexcept {
    if (net.now_ns() >= from_ns + ms * ms_ns) {
        return true;
    }
    for (std::uint32_t level = 1; level < 3 && may_tighten && r.times->tighten; ++level) {
        const std::uint64_t last_ns =
            std::min(net.now_ns(), level_ns_[worker_of(r.id)][level]);
        if (last_ns >= from_ns + std::max(ms >> level, 1u) * ms_ns) {
            life_counts::count(counts_.acts, level == 1 ? life_act::tightened_once
                                                        : life_act::tightened_twice);
            return true;
        }
    }
    return false;
}

/// How scarce room is as this turn begins: the rule of deadlines::tighten.
inline void life::note_level(std::uint32_t worker) noexcept {
    const std::uint64_t all = sizes.connections_max;
    const std::uint64_t used = std::uint64_t{service_->stats().open} * 100;
    std::uint32_t& now = level_[worker];  // it falls a little later than it rose
    now = all < 16                                 ? 0
          : used >= all * (now == 2 ? 85u : 90u)   ? 2
          : used >= all * (now >= 1 ? 70u : 75u)   ? 1
                                                   : 0;
    for (std::uint32_t at = 1; at <= now; ++at) {
        level_ns_[worker][at] = forever_ns;  // until the turn is over: now
    }
}

inline bool life::turn(std::uint32_t ms, std::uint32_t worker) noexcept {
    note_level(worker);
    const std::uint64_t begun_ns = net.now_ns();
    const bool goes_on = service_->turn(ms, worker);
    after_turn(worker, begun_ns);
    return goes_on;
}

inline void life::after_turn(std::uint32_t worker, std::uint64_t begun_ns) noexcept {
    for (std::uint64_t& each : level_ns_[worker]) {
        each = std::min(each, net.now_ns());
    }
    for (std::uint8_t lane = 0; lane < lanes_used; ++lane) {
        shed_ns_[lane] = sheds(lane) ? net.now_ns() : shed_ns_[lane];
    }
    lockdown_ns_ = mood_ == control_state::lockdown ? net.now_ns() : lockdown_ns_;
    std::erase_if(wishes_, [&](connection_id id) {
        if (worker_of(id) != worker) {
            return false;
        }
        life_record* r = record_of(id);
        if (r != nullptr && !r->closed_told) {  // it took effect in this turn
            r->cut = r->cut || r->wish == kill_kind::kill;
            // By which the exchange was over: the handler's close, a denial, an end for being idle.
            const bool may_linger = r->close_called || r->denied ||
                                    phase_ >= phase_of_life::draining ||
                                    was_shed(lane_of(id), r->begun_ns);
            r->close_called = r->end_called = true;
            if (r->opened && r->exchange_ms != 0 && !may_linger) {
                promises_.push_back({id, r->exchange_ns + r->exchange_ms * ms_ns, 0, 0,
                                     "a close by id grants time beyond a deadline"});
            }
        }
        return true;
    });
    keep_promises(worker, begun_ns);
}

/// A turn that began after the time ends what must end; its last word may take a while.
inline void life::keep_promises(std::uint32_t worker, std::uint64_t begun_ns) noexcept {
    std::erase_if(promises_, [&](life_promise& each) {
        const life_record* r = record_of(each.id);
        if (r == nullptr || r->closed_told) {
            return true;
        }
        if (worker_of(each.id) != worker) {
            return false;
        }
        if (each.seen_ns == 0) {
            each.seen_ns = begun_ns >= each.due_ns + 2 * ms_ns ? net.now_ns() : 0;
        } else if (++each.turns > 100 && net.now_ns() > each.seen_ns + 200 * ms_ns) {
            check(false, each.what);
            show(*r);
        }
        return false;
    });
}

// --- from outside -------------------------------------------------------------------------------

inline connection_id life::choose_id() noexcept {
    const auto count = static_cast<std::uint32_t>(records_.size());
    if (count == 0 || one_in(8)) {
        return {choose.word()};
    }
    const connection_id known = records_[count - 1 - choose.below(std::min(count, 48u))].id;
    if (one_in(12)) {
        const token who{known.bits};
        return {token::of(who.index(), who.generation() + (one_in(2) ? 1 : 0) - 1).bits};
    }
    return known;
}

/// Kill or close of whoever that is: it is told exactly whether it means somebody.
inline void life::act_end() noexcept { act_end_of(choose_id(), one_in(2)); }

inline void life::act_end_of(connection_id id, bool by_kill) noexcept {
    life_record* r = record_of(id);
    const bool live = r != nullptr && !r->closed_told;
    stale_wishes_ += !live && worker_of(id) < sizes.workers_max ? 1 : 0;
    if (by_kill) {
        const auto reason = static_cast<std::uint16_t>(choose.below(0x10000));
        const bool done = service_->kill(id, reason);
        check(done == (live && r->wish != kill_kind::kill), "kill means one that lives");
        life_counts::count(counts_.acts, done ? life_act::kill : life_act::kill_refused);
        if (done && r != nullptr) {
            r->wish = kill_kind::kill;
            r->wish_reason = reason;
            wishes_.push_back(id);
            promise(id, 0, "a connection that was killed lives on");
        }
        return;
    }
    const std::uint32_t most = one_in(3) ? 60 : one_in(2) ? 4000 : 60'000;
    const std::uint32_t ms = one_in(4) ? choose.below(3) : choose.below(most);
    const bool done = service_->close(id, ms);
    check(done == (live && (r->wish == kill_kind::live ||
                            (r->wish == kill_kind::close && ms < r->wish_ms))),
          "close means one that lives, for no later time");
    life_counts::count(counts_.acts, done ? life_act::close : life_act::close_refused);
    if (done && r != nullptr) {
        r->wish = kill_kind::close;
        r->wish_ms = ms;
        r->wish_due_ns = std::min(r->wish_due_ns, net.now_ns() + ms * ms_ns);
        wishes_.push_back(id);
        promise(id, std::max(ms, 1u), "a close takes longer than it may");
    }
}

inline void life::act_door() noexcept {
    door_shut_ = !door_shut_ && one_in(2);
    service_->door(!door_shut_);
    life_counts::count(counts_.acts, door_shut_ ? life_act::door_shut : life_act::door_opened);
    check(service_->door_is_open() == !door_shut_, "the door is as it was told");
}

inline void life::act_mood() noexcept {
    constexpr control_state all[] = {control_state::normal, control_state::shed,
                                     control_state::lockdown};
    const std::uint32_t next = mood_ != control_state::normal && one_in(2) ? 0 : choose.below(3);
    mood_ = all[next];
    mood_lane_ = static_cast<std::uint8_t>(choose.below(gated ? lanes_used : 2));
    check(service_->control(mood_, mood_lane_) == error::none, "a state that can be asked for");
    check(service_->control(control_state::draining, 0) == error::option_invalid,
          "a state that has a call of its own");
    check(phase_ >= phase_of_life::draining || service_->control() == mood_, "the state it is in");
    life_counts::count(counts_.acts, static_cast<life_act>(
                                         static_cast<std::uint32_t>(life_act::control_normal) +
                                         next));
}

inline void life::act_listener() noexcept {
    if (one_in(2) || phase_ != phase_of_life::young) {
        act_remove();
    } else {
        act_listen();
    }
}

inline void life::act_remove() noexcept {
    const std::uint32_t at = choose.below(static_cast<std::uint32_t>(places_.size()) + 1);
    const bool there = at < places_.size() && !places_[at].removed;
    check(service_->remove_listener({at}) == there, "a listener is removed once");
    if (there) {
        places_[at].removed = true;
        life_counts::count(counts_.acts, life_act::remove_listener);
    }
}

/// Listeners that are replaced while a crowd is on its way to them.
inline void life::act_crowd() noexcept {
    turn_all();
    for (std::uint32_t at = 0; at < 12; ++at) {
        start_client();
    }
    act_remove();
    turn_all();
    act_listen();
}

inline void life::act_listen() noexcept {
    place made = choose_listener();
    listener_id id;
    made.how.unix_path = made.path;
    const error why = service_->listen(made.how, made.port, id);
    made.how.unix_path = {};
    if (why != error::none) {
        check(why == error::full, "a listener that can't be");
        life_counts::count(counts_.acts, life_act::listen_full);
        return;
    }
    life_counts::count(counts_.acts, life_act::listen_again);
    if (id.index == places_.size()) {
        places_.push_back(std::move(made));
        return;
    }
    check(places_[id.index].removed, "a listener's place is another's");
    for (const life_record& r : records_) {
        check(r.closed_told || r.listener != id.index, "a listener's place while its clients live");
    }
    places_[id.index] = std::move(made);
}

inline void life::act_control() noexcept {
    switch (choose.below(10)) {
    case 0:
    case 1:
        act_door();
        break;
    case 2:
    case 3:
        act_mood();
        break;
    case 4:
        act_listener();
        break;
    default:
        act_end();
        break;
    }
    check(service_->stats().open == open_records_, "open connections are those that are told");
}

}  // namespace netio_test

#endif
