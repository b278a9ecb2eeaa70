// The whole service on a real kernel, one suite for every backend: each case's name begins with its
// row of the matrix (`server`, …) and ends in the backend's name. An instantiation is one line:
//     const netio_test::service_cases<netio::epoll> service_epoll_cases;
#ifndef NETIO_TESTS_SERVICE_HPP
#define NETIO_TESTS_SERVICE_HPP

#include "tests/service_datagrams.hpp"
#include "tests/service_limits.hpp"
#include "tests/service_memory.hpp"
#include "tests/service_proxy.hpp"
#include "tests/service_server.hpp"
#include "tests/service_tls.hpp"

#include <array>

namespace netio_test {

struct service_case {
    const char* row;
    const char* says;
    void (*run)();
};

/// Makes a doctest case of each: "server echoes messages of many sizes.epoll".
template <class Backend, service_offers Offers = service_offers{}>
class service_cases {
    using server = service_server<Backend, Offers>;
    using datagrams = service_datagrams<Backend>;
    using vectors = service_proxy<Backend>;
    using memory = service_memory<Backend>;
    using limits = service_limits_of<Backend>;
    using secured = service_tls<Backend>;

public:
    service_cases() {
        static std::array<std::string, all.size()> names;
        for (std::size_t at = 0; at < all.size(); ++at) {
            names[at] = std::string(all[at].row) + " " + all[at].says + "." + Backend::name;
            doctest::detail::regTest(doctest::detail::TestCase(all[at].run, __FILE__, __LINE__,
                                                               doctest::detail::TestSuite{} * "") *
                                     names[at].c_str());
        }
    }

private:
    static constexpr std::array all{
        service_case{"server", "echoes messages of many sizes", server::echo_of_sizes},
        service_case{"server", "echoes what came before a half-close",
                     server::echo_after_half_close},
        service_case{"server", "replies at length after the peer's end", server::reply_after_end},
        service_case{"server", "serves forty connections at once", server::many_at_once},
        service_case{"server", "a slow reader is refused output and gets all of it",
                     server::slow_reader},
        service_case{"server", "a paused connection is not read", server::paused},
        service_case{"server", "input nobody consumes ends in input_too_long",
                     server::input_too_long},
        service_case{"server", "input moves to another connection", server::moved_to_another},
        service_case{"server", "connects out", server::connects_out},
        service_case{"server", "a refused connect is told", server::connect_refused},
        service_case{"client", "dials the first candidate that answers", server::dials},
        service_case{"client", "a dial that is refused is told, tried again, cancelled",
                     server::dial_refused},
        service_case{"client", "a probe takes nothing of a paused connection", server::probed},
        service_case{"server", "adopts a connected socket", server::adopts},
        service_case{"server", "a listener's address in use is an error that names it",
                     server::address_in_use},
        service_case{"server", "several listeners are told apart", server::several_listeners},
        service_case{"server", "IPv4, IPv6 and both on one port", server::families},
        service_case{"server", "a unix stream serves the same handler", server::unix_streams},
        service_case{"server", "caps of server and listener reset who is too many", server::caps},
        service_case{"server", "a killed connection ends in a reset", server::killed},
        service_case{"server", "close flushes, ends and discards", server::closed_after_flush},
        service_case{"server", "a peer's reset, also before its accept", server::peer_gone},
        service_case{"server", "a peer's reset while it is written to",
                     server::peer_gone_while_written_to},
        service_case{"server", "each deadline fires", server::deadlines_of_a_handler},
        service_case{"server", "the preface's deadline fires", server::deadline_of_the_preface},
        service_case{"server", "linger ends without the peer", server::deadline_of_the_linger},
        service_case{"server", "timers fire in their order", server::timers},
        service_case{"server", "a drain lets the busy finish", server::drained},
        service_case{"server", "a drain's deadline ends the rest", server::drain_deadline},
        service_case{"server", "another thread stops it [threads]", server::stopped_by_a_thread},
        service_case{"server", "another thread posts and wakes it [threads]",
                     server::posts_of_a_thread},
        service_case{"server", "two workers share a listener [threads]", server::two_workers},
        service_case{"server", "a listener each for two workers", server::listener_each},
        service_case{"server", "bursts fill the workers to the last slot", server::full_workers},
        service_case{"server", "a worker that is full leaves clients alone", server::busy_worker},
        service_case{"server", "runs in a foreign loop [threads]", server::foreign_loop},
        service_case{"gate", "who is refused is reset or answered, and holds nothing",
                     limits::gate_refuses},
        service_case{"gate", "nothing leaves once it says no", limits::gate_denies},
        service_case{"gate", "adopted and dialled connections pass it", limits::gate_of_others},
        service_case{"kill", "by id resets, whatever the connection does", limits::kill_by_id},
        service_case{"kill", "by id from another thread, against churn [threads]",
                     limits::kill_from_threads},
        service_case{"kill", "close by id flushes and ends in time", limits::close_by_id},
        service_case{"kill", "after posts, all from a callback", limits::kill_from_a_callback},
        service_case{"control", "the door holds clients back and lets them in",
                     limits::door_of_a_server},
        service_case{"control", "lockdown and shedding", limits::lockdown_and_shedding},
        service_case{"control", "listeners come and go while it runs", limits::live_listeners},
        service_case{"caps", "of a source, at n and at n + 1", limits::source_cap},
        service_case{"caps", "of a source over two workers [threads]",
                     limits::source_cap_of_workers},
        service_case{"caps", "a slow sender is ended", limits::slow_sender},
        service_case{"datagrams", "of many sizes are answered", datagrams::echo_of_sizes},
        service_case{"datagrams", "longer than a buffer are cut and told so", datagrams::cut},
        service_case{"datagrams", "of a burst are answered in order", datagrams::burst},
        service_case{"datagrams", "beyond the places for sends are refused",
                     datagrams::sends_used_up},
        service_case{"datagrams", "of IPv6, and of both families on one port",
                     datagrams::families},
        service_case{"datagrams", "name their client by PROXY", datagrams::proxied},
        service_case{"datagrams", "get no more back than they brought until there is proof",
                     datagrams::reflection},
        service_case{"datagrams", "beyond their source's budget are dropped and counted",
                     datagrams::flood},
        service_case{"datagrams", "that nobody wants do not end the socket",
                     datagrams::nobody_there},
        service_case{"datagrams", "an address in use is an error", datagrams::address_in_use},
        service_case{"PROXY vectors", "whole, on a listener", vectors::whole},
        service_case{"PROXY vectors", "in two parts, on a listener", vectors::in_two_parts},
        service_case{"PROXY vectors", "headers of 536, 537, 4,096 and 4,097 bytes with payload",
                     vectors::sizes_at_the_bounds},
        service_case{"PROXY vectors", "strangers are not read at all", vectors::strangers},
        service_case{"leak", "no handle after connections opened and reset", memory::leak_none},
        service_case{"leak", "no handle after outgoing, refused and adopted ones",
                     memory::leak_none_outgoing},
        service_case{"leak", "a forgotten handle is found", memory::leak_is_found},
        service_case{"wiping", "nothing of closed connections is left in the storage",
                     memory::wiped},
        service_case{"wiping", "switched off, the marker is found", memory::not_wiped_is_found},
        service_case{"TLS", "echoes much both ways and ends in order", secured::echoes},
        service_case{"TLS", "a handshake begins behind the PROXY header", secured::behind_proxy},
        service_case{"TLS", "a FIN alone is told as a failure", secured::truncated},
        service_case{"TLS", "a bad record gets an alert", secured::bad_record},
        service_case{"TLS", "clients beyond the sessions are refused", secured::too_many},
        service_case{"TLS", "a handshake meets the preface's deadline", secured::slow_handshake},
        service_case{"TLS", "a kill and a stop give sessions back", secured::killed},
    };
};

}  // namespace netio_test

#endif
