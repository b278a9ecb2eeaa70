// The page for Prometheus: it fits where it says so, tells what was counted, keeps to the format.
#include "tests/server_world.hpp"

#include <map>
#include <set>

namespace {

/// Name, labels and value of each sample; fails on a line that the format does not know.
std::map<std::string, std::uint64_t> stats_samples(std::string_view page) {
    std::map<std::string, std::uint64_t> out;
    std::set<std::string> families;
    while (!page.empty()) {
        const std::size_t end = page.find('\n');
        REQUIRE(end != std::string_view::npos);
        const std::string line(page.substr(0, end));
        page.remove_prefix(end + 1);
        if (line.substr(0, 7) == "# TYPE ") {
            const std::string rest = line.substr(7);
            CHECK(families.insert(rest.substr(0, rest.find(' '))).second);
            const std::string type = rest.substr(rest.find(' ') + 1);
            CHECK((type == "counter" || type == "gauge"));
        } else if (line.substr(0, 7) != "# HELP ") {
            const std::string name = line.substr(0, line.find_first_of("{ "));
            CHECK(families.count(name) == 1);
            const std::size_t space = line.rfind(' ');
            CHECK(out.emplace(line.substr(0, space), std::stoull(line.substr(space + 1))).second);
        }
    }
    return out;
}

}  // namespace

TEST_CASE("prometheus: what was counted is on the page, reasons and causes by name") {
    netio_test::server_world<> w(false);
    w.handler.data = [](netio::connection& c, netio::bytes in) {
        c.write(in);
        c.kill(1);
        return in.size();
    };
    w.listen({.connections_max = 2});
    netio_test::sim_peer first = w.connect();
    netio_test::sim_peer second = w.connect();
    w.connect();
    first.send("12345");
    w.pump();
    char page[netio::server_stats::prometheus_bytes_max];
    const std::size_t used = w.server->stats().write_prometheus(page);
    REQUIRE(used != 0);
    const auto seen = stats_samples({page, used});
    CHECK(seen.at("netio_open_connections") == 1);
    CHECK(seen.at("netio_accepted_total") == 3);
    CHECK(seen.at("netio_bytes_in_total") == 5);
    CHECK(seen.at("netio_closed_total{reason=\"killed\"}") == 1);
    CHECK(seen.at("netio_closed_total{reason=\"idle\"}") == 0);
    CHECK(seen.at("netio_refused_total{cause=\"listener_cap\"}") == 1);
    CHECK(seen.at("netio_pool_capacity{pool=\"connections\"}") == 16);
    CHECK(seen.at("netio_pool_in_use{pool=\"connections\"}") == 1);
    second.close();
    w.pump();
}

TEST_CASE("prometheus: the largest page fits the room that is named, no smaller room is passed") {
    netio::server_stats full;
    std::memset(&full.counts, 0xFF, sizeof(full.counts));
    full.open = 0xFFFFFFFF;
    for (netio::pool_stats& each : full.pools) {
        each = {"preface_buffers", 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, ~std::uint64_t{0}};
    }
    std::string room(netio::server_stats::prometheus_bytes_max + 1, '?');
    const std::size_t used =
        full.write_prometheus({room.data(), netio::server_stats::prometheus_bytes_max});
    REQUIRE(used != 0);
    CHECK(room.back() == '?');
    CHECK(used < netio::server_stats::prometheus_bytes_max - 1024);  // and some to grow
    for (const std::size_t less : {std::size_t{0}, std::size_t{1}, used / 2, used}) {
        std::string small(less + 1, '?');
        CHECK(full.write_prometheus({small.data(), less}) == 0);
        CHECK(small.back() == '?');
    }
    std::string exact(used + 2, '?');
    CHECK(full.write_prometheus({exact.data(), exact.size()}) == used);
}
