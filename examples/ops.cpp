// c++ -std=c++20 -O2 -I. examples/ops.cpp -o ops
//
// An echo that can be operated while it runs: a control socket, and a page for Prometheus.
//
//     ops [--listen 0.0.0.0:7000] [--metrics 127.0.0.1:7001] [--control PATH] [--memory BYTES]
//         [--drain-ms N]
//
//     curl http://127.0.0.1:7001/metrics
//     echo stats | socat - UNIX-CONNECT:PATH
//
// A line on the control socket (ops.sock if no path is given) is a command, and is answered by
// lines and an empty one: stats · list · kill ID · drain MS · shed LANE (256: nobody) ·
// door open|shut. Clients are in lane 1, operators in lane 0: `shed 1` ends idle clients and lets
// no others in. SIGTERM drains, SIGINT stops.
#include "netio.hpp"

#include "examples/options.hpp"

namespace {

/// Where a connection came in says who it is.
enum class door : std::uint32_t { clients, control, metrics };

struct operators_first {
    netio::verdict admit(const netio::connection& peer) noexcept {
        const bool client = peer.listener() == static_cast<std::uint32_t>(door::clients);
        return netio::verdict::allow(client ? 1 : 0);
    }
};

struct ops;
using ops_server = netio::server<ops, netio::default_backend, operators_first>;

constexpr std::size_t line_bytes_max = 128;
constexpr std::size_t listed_max = 32;

struct ops {
    ops_server* server = nullptr;
    netio::connection_id clients[listed_max] = {};  // the latest

    void on_open(netio::connection& peer) noexcept;
    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept;

    std::size_t serve_metrics(netio::connection& peer, std::string_view in) noexcept;
    std::size_t take_commands(netio::connection& peer, std::string_view in) noexcept;
    void command(netio::connection& peer, std::string_view line) noexcept;
    void tell_stats(netio::connection& peer) noexcept;
    void list(netio::connection& peer) noexcept;
    bool act(std::string_view verb, std::string_view what) noexcept;
};

void ops::on_open(netio::connection& peer) noexcept {
    if (peer.listener() != static_cast<std::uint32_t>(door::clients)) {
        return;
    }
    netio::connection_id* place = &clients[0];
    for (netio::connection_id& each : clients) {
        place = peer.find(each) == nullptr ? &each : place;
    }
    *place = peer.id();
}

std::size_t ops::on_data(netio::connection& peer, netio::bytes in) noexcept {
    switch (static_cast<door>(peer.listener())) {
    case door::control:
        return take_commands(peer, netio::as_text(in));
    case door::metrics:
        return serve_metrics(peer, netio::as_text(in));
    default:
        return peer.write(in);
    }
}

/// One page whatever is asked for, once the request's head is there.
std::size_t ops::serve_metrics(netio::connection& peer, std::string_view in) noexcept {
    if (in.find("\r\n\r\n") == std::string_view::npos) {
        return 0;
    }
    static char page[netio::server_stats::prometheus_bytes_max];
    const std::size_t used = server->stats().write_prometheus(page);
    char head[128];
    const int length = std::snprintf(head, sizeof(head),
                                     "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"
                                     "\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                                     used);
    peer.write({head, static_cast<std::size_t>(length)});
    peer.write({page, used});
    peer.close();
    return in.size();
}

std::size_t ops::take_commands(netio::connection& peer, std::string_view in) noexcept {
    std::size_t used = 0;
    for (std::size_t end = in.find('\n'); end != std::string_view::npos;
         end = in.find('\n', used)) {
        command(peer, {in.data() + used, end - used});
        used = end + 1;
    }
    if (in.size() - used > line_bytes_max) {
        peer.write("error: a line is too long\n\n");
        peer.close();
        return in.size();
    }
    return used;
}

/// A whole number, or false.
bool number_of(std::string_view text, std::uint64_t base, std::uint64_t& out) noexcept {
    out = 0;
    for (const char each : text) {
        const std::size_t digit = std::string_view("0123456789abcdef").find(each);
        if (digit >= base || out > (~std::uint64_t{0} - digit) / base) {
            return false;
        }
        out = out * base + digit;
    }
    return !text.empty();
}

void ops::command(netio::connection& peer, std::string_view line) noexcept {
    if (!line.empty() && line.back() == '\r') {
        line.remove_suffix(1);
    }
    const std::size_t space = line.find(' ');
    const std::string_view verb(line.data(), space < line.size() ? space : line.size());
    std::string_view what = line;
    what.remove_prefix(space < line.size() ? space + 1 : line.size());
    if (verb == "stats" && what.empty()) {
        tell_stats(peer);
    } else if (verb == "list" && what.empty()) {
        list(peer);
    } else {
        peer.write(act(verb, what) ? "ok\n" : "error: no such command or thing\n");
    }
    peer.write("\n");
}

bool ops::act(std::string_view verb, std::string_view what) noexcept {
    std::uint64_t number = 0;
    if (verb == "kill") {
        return number_of(what, 16, number) && server->kill({number});
    }
    if (verb == "drain" && number_of(what, 10, number)) {
        server->drain(number);
        return true;
    }
    if (verb == "shed" && number_of(what, 10, number) && number <= 256) {
        return server->control(number == 256 ? netio::control_state::normal
                                             : netio::control_state::shed,
                               static_cast<std::uint8_t>(number)) == netio::error::none;
    }
    if (verb == "door" && (what == "open" || what == "shut")) {
        what == "open" ? server->open_door() : server->close_door();
        return true;
    }
    return false;
}

void ops::tell_stats(netio::connection& peer) noexcept {
    const netio::server_stats now = server->stats();
    char line[160];
    const auto tell = [&](const char* name, std::uint64_t count) {
        const int length = std::snprintf(line, sizeof(line), "%s %llu\n", name,
                                         static_cast<unsigned long long>(count));
        peer.write({line, static_cast<std::size_t>(length)});
    };
    tell("open", now.open);
    tell("accepted", now.counts.accepted);
    tell("refused", now.counts.refused);
    tell("closed", now.counts.closed);
    tell("bytes_in", now.counts.bytes_in);
    tell("bytes_out", now.counts.bytes_out);
    tell("pressure", peer.pressure());
}

void ops::list(netio::connection& peer) noexcept {
    for (const netio::connection_id each : clients) {
        const netio::connection* found = peer.find(each);
        if (found == nullptr) {
            continue;
        }
        char source[netio::endpoint_text_max];
        const std::string_view from = netio::format(found->source(), source);
        char line[160];
        const int length =
            std::snprintf(line, sizeof(line), "%llx %.*s lane %u in %llu out %llu\n",
                          static_cast<unsigned long long>(each.bits), example::length(from),
                          from.data(), unsigned{found->lane()},
                          static_cast<unsigned long long>(found->bytes_in()),
                          static_cast<unsigned long long>(found->bytes_out()));
        peer.write({line, static_cast<std::size_t>(length)});
    }
}

bool listen_at(ops_server& server, const netio::endpoint& at, netio::listener_id& id) noexcept {
    char address[netio::endpoint_text_max];
    netio::listen_options where;
    where.address = netio::format_address(at, address);
    where.port = at.port;
    return server.listen(where, &id) == netio::error::none;
}

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::any_ipv4(7000);
    netio::endpoint metrics = netio::loopback_ipv4(7001);
    std::string_view path = "ops.sock";
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--metrics", .address = &metrics},
        {.flag = "--control", .text = &path},
        {.flag = "--memory", .number = &memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("ops", count, words, settings)) {
        return 2;
    }
    ops handler;
    operators_first gate;
    ops_server server{example::memory_for({}, memory_bytes), handler, gate};
    handler.server = &server;
    netio::listen_options control;
    control.unix_path = path;
    control.lockdown_exempt = true;
    netio::listener_id of_clients;
    netio::listener_id of_metrics;
    if (listen_at(server, at, of_clients) && server.listen(control) == netio::error::none &&
        listen_at(server, metrics, of_metrics)) {
        example::signals<ops_server>::watch(server, drain_ms);
        char address[netio::endpoint_text_max];
        std::printf("ops: metrics on %s\n",
                    netio::format(server.local(of_metrics), address).data());
        example::announce("ops", server, server.local(of_clients));
        example::run(server);
    }
    return netio::report("ops", server);
}
