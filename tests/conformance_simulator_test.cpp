// The contract's suite on the simulator, both ways a kernel can work, and on its broken variants.
#include "tests/conformance.hpp"
#include "tests/simulator.hpp"

namespace {

using namespace netio_test;

/// A peer of the network, in the words the suite uses.
class conformance_sim_peer {
public:
    conformance_sim_peer() = default;
    explicit conformance_sim_peer(sim_peer of) : of_(of) {}
    std::size_t send(std::string_view text) { return of_.send(text); }
    const std::string& arrived() {
        pull();
        return arrived_;
    }
    bool ended() {
        pull();
        return of_.finished() && of_.unread().empty() && !of_.was_reset();
    }
    bool was_reset() { return of_.was_reset(); }
    void shutdown() { of_.shutdown(); }
    void reset() { of_.reset(); }
    void close() { of_.close(); }
    endpoint local() const { return of_.local(); }
    template <class Done>
    bool settle(Done done) {
        return done();
    }

private:
    void pull() { arrived_ += of_.take_text(); }

    sim_peer of_;
    std::string arrived_;
};

struct conformance_sim_network {
    explicit conformance_sim_network(const sim_options& how) : net(sim_chooser(7), how) {
        net.enter();
    }
    sim_network net;
};

class conformance_sim_world : public conformance_sim_network, public conformance_rig<simulator> {
public:
    using backend_type = simulator;
    using suite_world = conformance_sim_world;
    using peer = conformance_sim_peer;
    static constexpr bool counts_heap = false;
    static constexpr std::size_t bulk_bytes = 512 * 1024;  // eight windows full
    static constexpr bool threads = false;
    static constexpr bool asserts = true;  // its own, whatever NETIO_CHECKS says

    explicit conformance_sim_world(const sim_options& how) : conformance_sim_network(how) {
        opened = open();
        listener = simulator::listen({loopback_ipv4(0), {}}, {}).handle;
        port = simulator::local_of(listener).value.port;
        datagrams = simulator::open_datagram(loopback_ipv4(0), {}).handle;
        net.remote(outside(), sim_answer::accept);
        net.remote(silent(), sim_answer::silent);
        udp_ = net.datagram_peer(udp_local());
    }
    peer connect() { return peer(net.connect(port)); }
    endpoint outside() const { return ipv4(198, 51, 100, 1, 80); }
    endpoint silent() const { return ipv4(198, 51, 100, 3, 80); }
    endpoint refusing() const { return ipv4(198, 51, 100, 2, 80); }
    peer outside_peer() { return peer(net.connected_peers().back()); }
    peer adoptable(socket_handle& handle) {
        const sim_network::pair both = net.connected_pair();
        handle = both.handle;
        return peer(both.peer);
    }
    bool handle_fit(socket_handle handle) const { return net.handle_open(handle); }
    peer client_without_descriptors() {
        net.options.descriptors_max = net.descriptors_open();
        return connect();
    }
    int duplicate(socket_handle) const { return 0; }
    bool lingers(const peer&) const { return false; }
    void descriptors_again() { net.options.descriptors_max = 1'000'000; }
    void close_listener() { simulator::close_handle(listener); }
    std::string unix_path() const { return "/run/one.socket"; }
    endpoint udp_local() const { return ipv4(192, 0, 2, 9, 5000); }
    void udp_send(const std::string& payload) {
        net.send_datagram(udp_, simulator::local_of(datagrams).value, as_bytes(payload));
    }
    std::string udp_arrived() {
        const auto& got = net.datagrams(udp_);
        return got.empty() ? std::string() : std::string(as_text(got[0].payload));
    }

    os_status opened{};
    socket_handle listener = no_handle;
    socket_handle datagrams = no_handle;
    std::uint16_t port = 0;
    bool accepting = false;

private:
    std::uint32_t udp_ = 0;
};

sim_options conformance_sim_options(bool proactor) {
    sim_options out;
    out.proactor = proactor;
    return out;
}

struct conformance_sim_reactor : conformance_sim_world {
    static constexpr const char* suffix = "simulator";
    conformance_sim_reactor() : conformance_sim_world(conformance_sim_options(false)) {}
};
struct conformance_sim_proactor : conformance_sim_world {
    static constexpr const char* suffix = "simulator_proactor";
    conformance_sim_proactor() : conformance_sim_world(conformance_sim_options(true)) {}
};

const conformance_cases<conformance_sim_reactor> conformance_sim_reactor_cases;
const conformance_cases<conformance_sim_proactor> conformance_sim_proactor_cases;

}  // namespace

TEST_CASE("each broken variant of the simulator fails exactly its clause") {
    using suite = conformance<conformance_sim_world>;
    for (int each = 1; each < static_cast<int>(sim_break::count_); ++each) {
        const std::string clause = "P" + std::to_string(each);
        for (const bool proactor : {false, true}) {
            std::string failing;
            for (const suite::entry& entry : suite::all()) {
                sim_options options = conformance_sim_options(proactor);
                options.broken = static_cast<sim_break>(each);
                conformance_sim_world world(options);
                const char* const broken_rule = entry.check(world);
                if (broken_rule != nullptr && clause == entry.clause) {
                    failing = clause;
                }
                CAPTURE(clause);
                CAPTURE(std::string(entry.clause));
                CAPTURE(std::string(entry.says));
                CAPTURE(std::string(broken_rule == nullptr ? "" : broken_rule));
                CHECK((broken_rule == nullptr || clause == entry.clause));
            }
            CAPTURE(clause);
            CAPTURE(proactor);
            CHECK(failing == clause);
        }
    }
}
