// One connection between a caller and a callee over each transport, for the suite that all of them
// pass. Test code: uses heap.
#ifndef NETIO_TESTS_RPC_RIGS_HPP
#define NETIO_TESTS_RPC_RIGS_HPP

#include "tests/rpc_world.hpp"
#include "tests/server_world.hpp"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

namespace rpc_rigs {

namespace rpc = netio::rpc;

/// What a rig is made for.
struct terms {
    rpc::callee_options callee{};
    std::uint32_t answer_max = 8192;    // bytes of the largest answer, at least
};

struct ring_memory {
    std::vector<std::uint64_t> words;

    explicit ring_memory(std::uint32_t bytes_count) : words(bytes_count / 8) {}
    std::byte* data() { return reinterpret_cast<std::byte*>(words.data()); }
};

inline std::uint32_t ring_bytes(std::uint32_t record_max) {
    std::uint32_t bytes_count = 64;
    while (bytes_count / 2 - 8 < record_max) {
        bytes_count *= 2;
    }
    return bytes_count;
}

/// A link of whatever transport: so that a case is compiled once, not once for each of them.
class any_link {
public:
    any_link() = default;
    any_link(const any_link&) = delete;
    any_link& operator=(const any_link&) = delete;
    virtual ~any_link() = default;
    virtual std::uint32_t record_max() noexcept = 0;
    virtual netio::ring_claim claim(std::uint32_t bytes_count) noexcept = 0;
    virtual void commit(const netio::ring_claim& what, std::uint32_t bytes_count) noexcept = 0;
    virtual void abandon(const netio::ring_claim& what) noexcept = 0;
    virtual void flush() noexcept = 0;
    virtual netio::bytes peek() noexcept = 0;
    virtual void release() noexcept = 0;
    virtual netio::error why() noexcept = 0;
};
static_assert(rpc::link<any_link>);

template <rpc::link Link>
class erased_link : public any_link {
public:
    explicit erased_link(Link& of) : of_(of) {}
    std::uint32_t record_max() noexcept override { return of_.record_max(); }
    netio::ring_claim claim(std::uint32_t bytes_count) noexcept override {
        return of_.claim(bytes_count);
    }
    void commit(const netio::ring_claim& what, std::uint32_t bytes_count) noexcept override {
        of_.commit(what, bytes_count);
    }
    void abandon(const netio::ring_claim& what) noexcept override { of_.abandon(what); }
    void flush() noexcept override { of_.flush(); }
    netio::bytes peek() noexcept override { return of_.peek(); }
    void release() noexcept override { of_.release(); }
    netio::error why() noexcept override { return of_.why(); }

private:
    Link& of_;
};

/// A connection between a caller and a callee over one transport.
class rig {
public:
    using body = std::function<void(any_link&)>;

    rig() = default;
    rig(const rig&) = delete;
    rig& operator=(const rig&) = delete;
    virtual ~rig() = default;
    /// Runs it with the client's end; what it sent is on its way then.
    virtual void client(const body& run) = 0;
    /// Lets the serving side do all that it can.
    virtual void pump() = 0;
    bool held = false;    // where it can: further frames leave together with those after it
};

/// The serving side of a link that is there all the time.
template <class Link>
struct served {
    rpc::kernel& kernel;
    std::vector<std::byte> memory;
    rpc::callee answers;

    served(rpc::kernel& of, rpc::capability root, const rpc::callee_options& how)
        : kernel(of), memory(rpc::callee_bytes_needed(how.calls_max)), answers(of, memory, how) {
        REQUIRE(answers.open(root));
    }
    ~served() { answers.close(); }
    void serve(Link& link) {
        std::uint32_t moved = 0;
        do {
            moved = answers.take(link);
            kernel.dispatch();
            moved += answers.answer_settled(link);
        } while (moved != 0);
        link.flush();
    }
};

/// One thread, a ring each way.
class over_rings : public rig {
public:
    static constexpr const char* name = "rings";

    over_rings(rpc::kernel& of, rpc::capability root, const terms& how)
        : there_(1 << 16), back_(ring_bytes(how.answer_max)), serving_(of, root, how.callee) {
        to_.attach(there_.data(), 1 << 16);
        from_.attach(back_.data(), ring_bytes(how.answer_max));
    }
    void client(const body& run) override {
        rpc::ring_link link(to_, from_);
        erased_link any(link);
        run(any);
    }
    void pump() override {
        rpc::ring_link link(from_, to_);
        serving_.serve(link);
    }

private:
    ring_memory there_, back_;
    netio::spsc_ring to_, from_;
    served<rpc::ring_link> serving_;
};

/// One ring that many clients write to; this is the second of them.
class over_a_shared_ring : public rig {
public:
    static constexpr const char* name = "shared ring";

    over_a_shared_ring(rpc::kernel& of, rpc::capability root, const terms& how)
        : there_(1 << 16), back_(ring_bytes(how.answer_max)), serving_(of, root, how.callee) {
        to_.attach(there_.data(), 1 << 16);
        from_.attach(back_.data(), ring_bytes(how.answer_max));
    }
    void client(const body& run) override {
        rpc::shared_link link(to_, 2, from_);
        erased_link any(link);
        run(any);
    }
    void pump() override {
        rpc::served_link link(to_, 2, from_);
        serving_.serve(link);
    }

private:
    ring_memory there_, back_;
    netio::mpsc_ring to_;
    netio::spsc_ring from_;
    served<rpc::served_link> serving_;
};

#if NETIO_HAS_EPOLL
/// Both ends of a segment of shared memory in one process; what comes is copied, or borrowed.
template <bool Borrow>
class over_shared_memory : public rig {
public:
    static constexpr const char* name = Borrow ? "shared memory, borrowed" : "shared memory";

    over_shared_memory(rpc::kernel& of, rpc::capability root, const terms& how)
        : serving_(of, root, how.callee) {
        netio::shm_options options;
        options.layout.ring_bytes = 1 << 16;
        options.layout.record_max = ring_bytes(how.answer_max) / 2 - 8;
        options.borrow = Borrow;
        inbox_.resize(Borrow ? 0 : options.layout.longest());
        client_inbox_.resize(inbox_.size());
        REQUIRE(server_.create(inbox_, options));
        const int handle = ::fcntl(static_cast<int>(server_.handle()), F_DUPFD_CLOEXEC, 0);
        REQUIRE(client_.open(handle, client_inbox_, options));
    }
    ~over_shared_memory() override {
        CHECK(server_.why() == netio::error::none);
        CHECK(client_.why() == netio::error::none);
    }
    void client(const body& run) override {
        erased_link any(client_);
        run(any);
        client_.flush();
    }
    void pump() override { serving_.serve(server_); }

private:
    std::vector<std::byte> inbox_, client_inbox_;
    netio::shm_link server_, client_;
    served<netio::shm_link> serving_;
};
#endif

/// The test's side of a simulated connection: frames in and out, one send a flush.
class wire_link {
public:
    explicit wire_link(netio_test::sim_peer& peer) : peer_(peer) {}

    static std::uint32_t record_max() noexcept { return 1 << 20; }
    netio::ring_claim claim(std::uint32_t bytes_count) noexcept {
        room_.assign(bytes_count + 4u, std::byte{0});
        return {netio::mutable_bytes(room_).subspan(4), 0};
    }
    void commit(const netio::ring_claim&, std::uint32_t bytes_count) noexcept {
        rpc::encode_frame_prefix(bytes_count, room_);
        out_.append(netio::as_text(netio::bytes(room_).first(bytes_count + 4u)));
    }
    void abandon(const netio::ring_claim&) noexcept {}
    void flush() noexcept {
        if (!out_.empty()) {
            CHECK(peer_.send(out_) == out_.size());
            out_.clear();
        }
    }
    netio::bytes peek() noexcept {
        const auto got = rpc::decode_frame(peer_.unread());
        return got.status == netio::parse_status::complete ? got.value.envelope : netio::bytes{};
    }
    void release() noexcept { peer_.take(peek().size() + 4); }
    static netio::error why() noexcept { return netio::error::none; }

private:
    netio_test::sim_peer& peer_;
    std::vector<std::byte> room_;
    std::string out_;
};

/// A service as a server's handler that a test can make late.
struct service_handler {
    std::optional<rpc::tcp_service> of;
    std::vector<std::byte> memory;
    std::uint64_t closed = 0;
    std::vector<netio::close_reason> reasons;
    std::vector<netio::connection_id> opened;
    bool opens = true;    // else the service never hears of a connection's begin

    void begin(rpc::kernel& kernel, const rpc::tcp_service_options& how) {
        memory.assign(rpc::bytes_needed(how), std::byte{0});
        of.emplace(kernel, memory, how);
        REQUIRE(of->why() == netio::error::none);
    }
    void on_open(netio::connection& c) noexcept {
        opened.push_back(c.id());
        if (opens) {
            of->on_open(c);
        }
    }
    std::size_t on_data(netio::connection& c, netio::bytes in) noexcept {
        return of->on_data(c, in);
    }
    void on_writable(netio::connection& c) noexcept { of->on_writable(c); }
    void on_end(netio::connection& c) noexcept { of->on_end(c); }
    void on_post(netio::connection& c, std::uint64_t word) noexcept { of->on_post(c, word); }
    void on_close(netio::connection& c, netio::close_reason reason) noexcept {
        ++closed;
        reasons.push_back(reason);
        of->on_close(c, reason);
    }
};

/// A server's limits under which frames of 16 KiB fit.
inline netio::limits service_sizes() {
    netio::limits sizes = netio_test::small_limits;
    sizes.buffer_bytes = 16448;
    return sizes;
}

/// A connection of a simulated server; readiness or completions.
template <bool Proactor>
class over_tcp : public rig {
public:
    static constexpr const char* name = Proactor ? "TCP, completions" : "TCP, readiness";

    over_tcp(rpc::kernel& of, rpc::capability root, const terms& how)
        : kernel_(of), world_(Proactor, service_sizes()) {
        rpc::tcp_service_options options;
        options.each = how.callee;
        options.root = root;
        options.answer_max = how.answer_max;
        options.connections_max = 2;
        world_.handler.begin(of, options);
        world_.listen();
        peer_ = world_.connect();
        link_.emplace(peer_);
    }
    ~over_tcp() override {
        peer_.close();
        world_.pump();
        CHECK(world_.handler.of->sessions().in_use == 0);
    }
    void client(const body& run) override {
        erased_link any(*link_);
        run(any);
        if (!held) {
            link_->flush();
        }
    }
    void pump() override {
        world_.pump();
        if (const netio::connection_id who = world_.handler.of->due(); who) {
            REQUIRE(world_.server->post(who, 0));
            world_.pump();
        }
    }

private:
    rpc::kernel& kernel_;
    netio_test::server_world<service_handler> world_;
    netio_test::sim_peer peer_;
    std::optional<wire_link> link_;
};

/// How a rig of a transport is made.
using transport = std::unique_ptr<rig> (*)(rpc::kernel&, rpc::capability, const terms&);

/// A kernel, a connection over one transport, and who calls: what a case of the suite has.
struct connected {
    rpc_world::fixture world;
    rpc::capability root;
    std::unique_ptr<rpc_rigs::rig> rig;
    std::vector<std::byte> memory;
    std::optional<rpc::caller> session;

    /// An answer, kept.
    struct heard {
        std::uint64_t word = 0;
        bool resolved = false;
        rpc::rpc_code code = rpc::rpc_code::other;
        std::string text;
        std::int64_t number = 0;
        std::string content;    // of a text
        std::uint16_t flags = 0;
    };
    std::map<std::uint64_t, heard> answers;
    std::vector<std::uint64_t> order;

    explicit connected(transport via, const terms& how = {},
                       const rpc::rpc_limits& sizes = rpc_world::small_sizes())
        : world(sizes), root(world.mint()), rig(via(world.of, root, how)) {
        memory.assign(rpc::caller_bytes_needed(64), std::byte{0});
        session.emplace(memory);
    }
    ~connected() {
        rig.reset();
        world.of.dispatch();
        CHECK(world.of.lanes().in_use == 1);  // the fixture's own
    }
    /// A call of the rig's root or `how.target`; its id.
    template <class Fill>
    std::uint64_t call(std::string_view method, rpc::call_options how, Fill&& fill) {
        netio::result<std::uint64_t> made;
        rig->client([&](any_link& link) {
            how.bytes_max = link.record_max() < 1024 ? link.record_max() : 1024;
            made = session->call(link, method, how, fill);
        });
        REQUIRE(made);
        return made.value;
    }
    std::uint64_t add(std::initializer_list<std::int64_t> numbers,
                      std::initializer_list<std::uint64_t> promises = {}) {
        return call("add", {}, [&](rpc::writer& in) {
            for (const std::int64_t number : numbers) {
                in.value_int(number);
            }
            for (const std::uint64_t promise : promises) {
                in.promise(promise);
            }
        });
    }
    std::uint64_t call(std::string_view method) {
        return call(method, {}, [](rpc::writer&) {});
    }
    /// What `body` sends leaves at once.
    template <class Body>
    void at_once(Body&& body) {
        rig->held = true;
        body();
        rig->held = false;
        rig->client([](any_link&) {});
    }
    /// Lets everything happen that can.
    void pump() {
        rig->pump();
        rig->client([&](any_link& link) {
            session->take(link, [&](const rpc::reply& got) {
                heard kept{got.word, got.resolved, got.code, std::string(got.text),
                           got.value.as_int(), std::string(got.value.as_text()), got.flags};
                CHECK(answers.emplace(got.request_id, kept).second);
                order.push_back(got.request_id);
            });
        });
    }
    const heard& answer(std::uint64_t id) {
        CAPTURE(id);
        REQUIRE(answers.count(id) == 1);
        return answers[id];
    }
    /// Envelope bytes as they are, however wrong.
    void send_raw(netio::bytes envelope) {
        rig->client([&](any_link& link) {
            const netio::ring_claim room = link.claim(static_cast<std::uint32_t>(envelope.size()));
            REQUIRE(room);
            std::memcpy(room.room.data(), envelope.data(), envelope.size());
            link.commit(room, static_cast<std::uint32_t>(envelope.size()));
        });
    }
    template <class Fill>
    void send(rpc::envelope_kind kind, std::uint64_t id, std::string_view method, Fill&& fill) {
        std::byte room[512];
        rpc::writer out(room);
        out.begin(kind, id, method);
        fill(out);
        const std::size_t size = out.payload({}).finish();
        REQUIRE(size != 0);
        send_raw(netio::bytes(room).first(size));
    }
    /// The oldest envelope that came back and was not taken.
    std::vector<std::byte> raw_answer() {
        std::vector<std::byte> out;
        rig->client([&](any_link& link) {
            const netio::bytes got = link.peek();
            out.assign(got.begin(), got.end());
            if (!got.empty()) {
                link.release();
            }
        });
        return out;
    }
};

/// Every transport there is here.
using all = std::tuple<
#if NETIO_HAS_EPOLL
    over_shared_memory<false>, over_shared_memory<true>,
#endif
    over_rings, over_a_shared_ring, over_tcp<false>, over_tcp<true>>;

template <class... Rigs>
void on_each_of(std::tuple<Rigs...>*, const std::function<void(transport)>& body) {
    const auto one = [&](const std::string& over, transport via) {
        CAPTURE(over);
        body(via);
    };
    (one(Rigs::name,
         [](rpc::kernel& of, rpc::capability root, const terms& how) -> std::unique_ptr<rig> {
             return std::make_unique<Rigs>(of, root, how);
         }),
     ...);
}

/// Runs a case over every transport.
inline void on_every_transport(const std::function<void(transport)>& body) {
    on_each_of(static_cast<all*>(nullptr), body);
}

}  // namespace rpc_rigs

#endif
