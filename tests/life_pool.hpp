// Lives on the second driver: workers that block in `on_connection`, each on a thread of its own of
// which one runs at a time, from one wait to the next; so a seed still gives one life. Test code.
#ifndef NETIO_TESTS_LIFE_POOL_HPP
#define NETIO_TESTS_LIFE_POOL_HPP

#include "tests/lifecycle.hpp"

#include <semaphore>
#include <thread>

namespace netio_test {

/// A thread that goes on only when it is told to, until it waits again.
class life_thread {
public:
    template <class Body>
    void start(Body body) {
        thread_ = std::thread([this, body] {
            go_.acquire();
            mine = this;
            sim_stand = [] () noexcept { return mine->stand(); };
            body();
            over_ = true;
            came_.release();
        });
    }
    ~life_thread() {
        if (thread_.joinable()) {
            thread_.join();
        }
    }
    bool started() const noexcept { return thread_.joinable(); }
    bool over() const noexcept { return over_; }
    /// Lets it go on, with so long to wait at most. False: it has ended.
    bool go_on(std::uint32_t ms) noexcept {
        if (!over_) {
            most_ns_ = std::uint64_t{ms} * 1'000'000;
            go_.release();
            came_.acquire();
        }
        return !over_;
    }
    /// On the thread itself: until it is told to go on. How long it may wait then.
    std::uint64_t stand() noexcept {
        came_.release();
        go_.acquire();
        return most_ns_;
    }

private:
    static inline thread_local life_thread* mine = nullptr;

    std::thread thread_;
    std::binary_semaphore go_{0};
    std::binary_semaphore came_{0};
    std::uint64_t most_ns_ = 0;
    bool over_ = false;
};

/// A pool of threads as a server that is turned from outside.
template <class Handler, class Gate>
class life_pool final : public blocking_pool<Handler, simulator, Gate, life_events> {
    using base = blocking_pool<Handler, simulator, Gate, life_events>;

public:
    template <class... Policies>
    life_pool(storage_view box, Handler& handler, Policies&... policies) noexcept
        : base(box, handler, policies...), workers_(box.sizes.workers_max) {}
    /// Whatever went wrong, no thread outlives its pool.
    ~life_pool() {
        this->stop();
        for (std::uint32_t worker = 0; worker < workers_; ++worker) {
            for (std::uint32_t at = 0; threads_[worker].started() && run_once(1, worker); ++at) {
                sim_require(at < 1'000'000, "a stopped worker ends");
            }
        }
    }
    bool run_once(std::uint32_t ms, std::uint32_t worker) noexcept {
        life_thread& its = threads_[worker];
        if (!its.started()) {
            its.start([this, worker] { this->run(worker); });
        }
        return its.go_on(ms);
    }

private:
    std::uint32_t workers_;
    std::array<life_thread, 3> threads_;
};

// --- the handler --------------------------------------------------------------------------------

inline void life::on_connection(stream& s) noexcept {
    life_counts::count(counts_.hooks, life_hook::on_connection);
    life_record* found = record_of(s.id());
    if (!check(found != nullptr && found->opened && !found->closed && s.is_open(),
               "on_connection of an open connection")) {
        return;
    }
    life_record& r = *found;
    check(!r.served, "on_connection once");
    check(s.listener() == r.listener && s.worker() == worker_of(r.id), "a stream's facts");
    check(s.lane() == lane_of(r.id), "a stream's lane");
    r.served = true;
    const std::uint32_t most = one_in(3) ? 1 + choose.below(8) : 200;
    for (std::uint32_t at = 0; at < most && failed_ == nullptr && stream_act(s, r); ++at) {
    }
    check(!s.is_open() || !r.closed, "a stream knows of its end");
    if (r.closed) {
        return;
    }
    if (!r.close_called) {  // the pool closes it now
        r.close_called = r.end_called = true;
        r.close_ns = net.now_ns();
    }
    const close_kind why = s.reason().kind;
    if ((why == close_kind::peer_reset || why == close_kind::io) && r.times->linger_ms != 0) {
        promise(r.id, r.times->linger_ms, "a worker waits for one that nothing can be sent to");
    }
}

/// One thing that a handler may do. False: it returns.
inline bool life::stream_act(stream& s, life_record& r) noexcept {
    if (phase_ != phase_of_life::young) {
        if (r.by_connect && !r.end_called && s.is_open()) {
            r.end_called = true;
            s.end();
        }
        return stream_receive(s, r, false);
    }
    switch (choose.below(12)) {
    case 0:
    case 1:
        return stream_receive(s, r, true);
    case 2:
    case 3:
    case 4:
        return stream_produce(s, r);
    case 5:
        stream_times(s, r);
        return true;
    case 6:
        return stream_rare(s, r);
    default:
        return stream_receive(s, r, false);
    }
}

inline bool life::stream_receive(stream& s, life_record& r, bool whole) noexcept {
    std::array<std::byte, 700> into;
    const std::size_t wanted = 1 + choose.below(whole ? 200 : 700);
    if (s.is_open()) {
        r.in_ns = net.now_ns();
    }
    r.receives = true;
    const mutable_bytes room = mutable_bytes(into).first(wanted);
    const transfer got = whole ? s.recv_exact(room) : s.recv(room);
    r.receives = false;
    const bytes in = bytes(into).first(got.count);
    check(got.count <= wanted && (!whole || !got || got.count == wanted) && (whole || !got ||
                                                                            got.count != 0),
          "a receive brings what it says");
    if (known(r)) {
        counts_.bytes_checked += in.size();
        check(flow_in(r).matches(in), "bytes lost, doubled or out of order on the way in");
    }
    const bool echoes = s.is_open() && !in.empty() && !r.end_called && !r.denied && one_in(3);
    flow_in(r).pass(in.size(), echoes ? &flow_out(r) : nullptr);
    if (echoes && !stream_send(s, r, in)) {
        return false;
    }
    return got ? true : stream_failed(s, r, got.why);
}

inline bool life::stream_produce(stream& s, life_record& r) noexcept {
    if (r.end_called || r.denied || !s.is_open()) {
        return s.is_open();
    }
    const std::size_t count = 1 + choose.below(one_in(8) ? 9000 : 300);
    const std::uint32_t from = next_text_ += 1201;
    flow_out(r).push(from, count);
    return stream_send(s, r, life_text(from, count));
}

/// Sends what was noted as on its way; what did not get away never comes.
inline bool life::stream_send(stream& s, life_record& r, bytes out) noexcept {
    const std::uint64_t before = flow_out(r).total() - out.size();
    if (s.is_open()) {  // else its end has come, and waits to be seen
        note_output(r, !r.output_waits, out.size());
    }
    r.output_waits = true;
    const transfer sent = s.send_all(out);
    check(sent.count <= out.size() && (!sent || sent.count == out.size()),
          "a send moves what it says");
    if (sent) {
        r.output_waits = false;
        return true;
    }
    if (!r.denied && !resets(s.reason().kind)) {  // else what was on its way may have gone, too
        flow_out(r).cut(before + sent.count);
    }
    return stream_failed(s, r, sent.why);
}

/// Every reason but the peer's end is one that ended the connection.
inline bool life::stream_failed(stream& s, life_record& r, error why) noexcept {
    check(why != error::none, "a call fails for a reason");
    if (why != error::end_of_stream) {
        check(!s.is_open() && s.reason().kind != close_kind::none,
              "a call fails though its connection is open");
        check(s.recv(mutable_bytes{}).why == error::none, "nothing to receive is no failure");
        std::byte one{};
        check(!s.recv({&one, 1}) && !s.send_all(bytes(&one, 1)),
              "a call succeeds on a connection that ended");
        return false;
    }
    if (s.is_open()) {
        check(!known(r) || faults_end_ || net.end(r.end_index).reset || flow_in(r).left() == 0,
              "the end of the stream before its last byte");
        if (failed_ != nullptr) {
            show(r);
        }
        r.end_told = true;
        if (phase_ == phase_of_life::young && !one_in(3)) {
            stream_produce(s, r);
        }
    }
    return false;
}

inline void life::stream_times(stream& s, life_record& r) noexcept {
    if (!s.is_open()) {
        if (r.closed) {
            s.deadline(1 + choose.below(9));  // of nobody
        }
        return;
    }
    // Each begins with what was due meanwhile, which may be the end: then nothing changes.
    const std::uint64_t now_ns = net.now_ns();
    const std::uint32_t ms = 10 + choose.below(400);
    switch (choose.below(4)) {
    case 0:
        s.deadline(ms);
        if (s.is_open()) {
            r.exchange_ms = ms;
            r.exchange_ns = now_ns;
        }
        break;
    case 1:
        s.deadline(0);
        r.exchange_ms = s.is_open() ? 0 : r.exchange_ms;
        break;
    case 2:
        s.phase(phase::exchange);
        if (s.is_open() && !r.in_exchange) {
            r.in_exchange = r.fresh_exchange = true;
            if (r.exchange_ms == 0 && r.times->exchange_ms != 0) {
                r.exchange_ms = r.times->exchange_ms;
                r.exchange_ns = now_ns;
            }
        }
        break;
    default:
        s.phase(phase::idle);
        if (s.is_open()) {
            r.in_exchange = false;
            r.exchange_ms = 0;
        }
        break;
    }
}

inline bool life::stream_rare(stream& s, life_record& r) noexcept {
    switch (choose.below(8)) {
    case 0:
        if (s.is_open()) {
            r.end_called = true;
            s.end();
        }
        return true;
    case 1:
        if (s.is_open()) {
            r.kill_reason = static_cast<std::uint16_t>(1 + choose.below(1000));
            r.kill_called = true;
            s.kill(r.kill_reason);
        }
        return !one_in(2);
    case 2:
        return false;
    default:
        net.pass(choose.below(50) * ms_ns);  // it computes
        return true;
    }
}

}  // namespace netio_test

#endif
