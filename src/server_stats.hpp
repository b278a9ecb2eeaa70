// floor 6 · server_stats.hpp · everything a server counts, and its page for Prometheus
#ifndef NETIO_SERVER_STATS_HPP
#define NETIO_SERVER_STATS_HPP

#include "src/connection.hpp"

NETIO_BEGIN

namespace detail {

/// Lines of the text format of Prometheus (version 0.0.4).
class metrics_writer {
public:
    explicit metrics_writer(std::span<char> out) noexcept : room_(out.size()), line_(out) {}

    void family(std::string_view name, std::string_view type, std::string_view help) noexcept {
        line_.put("# HELP netio_").put(name).put(" ").put(help).put("\n# TYPE netio_").put(name);
        line_.put(" ").put(type).put("\n");
    }
    void value(std::string_view name, std::uint64_t value) noexcept {
        line_.put("netio_").put(name).put(" ").put(value).put("\n");
    }
    void value(std::string_view name, std::string_view label, std::string_view of,
               std::uint64_t value) noexcept {
        line_.put("netio_").put(name).put("{").put(label).put("=\"").put(of).put("\"} ");
        line_.put(value).put("\n");
    }
    void counter(std::string_view name, std::string_view help, std::uint64_t count) noexcept {
        family(name, "counter", help);
        value(name, count);
    }
    /// 0: it did not fit.
    std::size_t finish() noexcept {
        const std::size_t used = line_.finish().size();
        return used + 1 < room_ ? used : 0;
    }

private:
    std::size_t room_;
    line_writer line_;
};

}  // namespace detail

/// Everything a server counts, summed over its workers.
struct server_stats {
    detail::worker_counters counts{};
    std::uint32_t open = 0;
    static constexpr std::size_t pool_count = 12;
    pool_stats pools[pool_count]{};

    /// Room that `write_prometheus` always finds enough.
    static constexpr std::size_t prometheus_bytes_max = 12 * 1024;

    /// Writes the page that Prometheus reads (text format 0.0.4): counters, reasons and causes by
    /// name, pools. Returns its length, 0 if it does not fit.
    std::size_t write_prometheus(std::span<char> out) const noexcept {
        detail::metrics_writer page(out);
        page.family("open_connections", "gauge", "Connections open now.");
        page.value("open_connections", open);
        write_counters(page);
        page.family("closed_total", "counter", "Connections ended, by reason.");
        for (std::size_t at = 1; at < static_cast<std::size_t>(close_kind::count_); ++at) {
            page.value("closed_total", "reason", name(static_cast<close_kind>(at)),
                       counts.closed_by[at]);
        }
        page.family("refused_total", "counter", "Clients turned away, by cause.");
        for (std::size_t at = 0; at < static_cast<std::size_t>(refusal_cause::count_); ++at) {
            page.value("refused_total", "cause", name(static_cast<refusal_cause>(at)),
                       counts.refused_by[at]);
        }
        write_pools(page);
        return page.finish();
    }

private:
    void write_counters(detail::metrics_writer& page) const noexcept {
        page.counter("accepted_total", "Connections that a listener gave.", counts.accepted);
        page.counter("connected_total", "Outgoing connections made.", counts.connected);
        page.counter("opened_total", "Connections that a handler saw.", counts.opened);
        page.counter("bytes_in_total", "Bytes received.", counts.bytes_in);
        page.counter("bytes_out_total", "Bytes given to the kernel.", counts.bytes_out);
        page.counter("egress_denied_total", "Writes the gate held back.", counts.egress_denied);
        page.counter("posts_stale_total", "Posts to nobody.", counts.posts_stale);
        page.counter("kills_stale_total", "Kills and closes of nobody.", counts.kills_stale);
        page.counter("accept_errors_total", "Accepts that failed.", counts.accept_errors);
        page.counter("descriptor_pauses_total", "Rests for want of descriptors.",
                     counts.descriptor_pauses);
        page.counter("datagrams_in_total", "Datagrams received.", counts.datagrams_in);
        page.counter("datagrams_out_total", "Datagrams sent.", counts.datagrams_out);
        page.counter("datagrams_refused_total", "Datagrams without a valid header.",
                     counts.datagrams_refused);
        page.family("datagrams_dropped_total", "counter", "Datagrams beyond a budget.");
        page.value("datagrams_dropped_total", "budget", "source", counts.datagrams_over_source);
        page.value("datagrams_dropped_total", "budget", "total", counts.datagrams_over_total);
        page.counter("datagram_sends_denied_total", "Datagrams not sent for want of proof.",
                     counts.datagram_sends_denied);
        page.counter("turns_total", "Turns of the workers.", counts.turns);
    }
    void write_pools(detail::metrics_writer& page) const noexcept {
        const auto column = [&](std::string_view name, std::string_view type,
                                std::string_view help, auto field) {
            page.family(name, type, help);
            for (const pool_stats& each : pools) {
                page.value(name, "pool", each.name, each.*field);
            }
        };
        column("pool_capacity", "gauge", "Places of a pool.", &pool_stats::capacity);
        column("pool_in_use", "gauge", "Places in use now.", &pool_stats::in_use);
        column("pool_high_water", "gauge", "The most that were in use, added by worker.",
               &pool_stats::high_water);
        column("pool_refused_total", "counter", "Asked for while all were in use.",
               &pool_stats::refused);
    }
};

NETIO_END

#endif
