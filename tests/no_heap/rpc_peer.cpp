// 20,000 calls over a connection, half of them needing the one before: over rings, over shared
// memory, and over a connection of a server, without an allocation.
#include "netio.hpp"
#include "tests/no_heap/trap.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

namespace rpc = netio::rpc;

constexpr rpc::rpc_limits sizes;
constexpr std::int64_t pairs_count = 10'000;
alignas(64) constinit std::byte memory[rpc::bytes_needed(sizes)] = {};

struct adder {
    static constexpr rpc::method methods[] = {{"add"}};

    void invoke(rpc::invocation& call) noexcept {
        call.reply().value_int(call.value_at(0).as_int() + call.value_at(1).as_int());
    }
};

struct world {
    rpc::kernel kernel{memory, sizes, {1, 2}};
    adder provider;
    rpc::capability root;

    world() noexcept {
        static constexpr std::string_view names[] = {"add"};
        rpc::grant what;
        what.methods = names;
        what.spend = rpc::unbounded_budget;
        root = kernel.mint(kernel.add_provider(provider).value, 1, what).value;
    }
};

/// Two calls, of which the second needs the first; what is heard of them.
struct asking {
    alignas(8) std::byte room[rpc::caller_bytes_needed(64)] = {};
    rpc::caller session{room};
    std::int64_t last = -1;
    std::int64_t right = 0;

    template <rpc::link Link>
    void ask(Link& link, std::int64_t number) noexcept {
        rpc::call_options how;
        how.word = 1;
        const auto first =
            session.call(link, "add", {}, [&](rpc::writer& in) { in.value_int(number); });
        session.call(link, "add", how, [&](rpc::writer& in) {
            in.value_int(1).promise(first.value);
        });
        link.flush();
        last = number;
    }
    template <rpc::link Link>
    void hear(Link& link) noexcept {
        session.take(link, [this](const rpc::reply& got) {
            right += got.word == 1 && got.value.as_int() == last + 1 ? 1 : 0;
        });
    }
};

struct answering {
    alignas(8) std::byte room[rpc::callee_bytes_needed(64)] = {};
    world& of;
    rpc::callee session;

    explicit answering(world& in) noexcept : of(in), session(in.kernel, room) {
        session.open(in.root);
    }
    ~answering() { session.close(); }
    template <rpc::link Link>
    void serve(Link& link) noexcept {
        session.take(link);
        of.kernel.dispatch();
        session.answer_settled(link);
        link.flush();
    }
};

template <class Client, class Server>
std::int64_t over(world& of, Client& client, Server& server) noexcept {
    static asking asks;
    asks.~asking();
    ::new (&asks) asking();
    answering answers(of);
    for (std::int64_t number = 0; number < pairs_count; ++number) {
        asks.ask(client, number);
        answers.serve(server);
        asks.hear(client);
    }
    return asks.right;
}

std::int64_t over_rings(world& of) noexcept {
    alignas(64) static std::byte there[1 << 14], back[1 << 14];
    static netio::spsc_ring to, from;
    to.attach(there, sizeof(there));
    from.attach(back, sizeof(back));
    rpc::ring_link client(to, from), server(from, to);
    return over(of, client, server);
}

std::int64_t over_shared_memory(world& of) noexcept {
    static std::byte inboxes[2][netio::shm_layout{}.longest()];
    netio::shm_link server, client;
    if (!server.create(inboxes[0]) ||
        !client.open(::dup(static_cast<int>(server.handle())), inboxes[1])) {
        return -1;
    }
    return over(of, client, server);
}

/// The client is a plain socket.
std::int64_t over_tcp(world& of) noexcept {
    static netio::storage<netio::limits{.connections_max = 4}> storage;
    static std::byte sessions[rpc::bytes_needed(rpc::tcp_service_options{})];
    rpc::tcp_service_options how;
    how.root = of.root;
    rpc::tcp_service service(of.kernel, sessions, how);
    netio::server<rpc::tcp_service> server{storage, service};
    netio::listener_id listener;
    netio::listen_options where;
    where.address = "127.0.0.1";
    if (server.listen(where, &listener) != netio::error::none) {
        return -1;
    }
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(server.local(listener).port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(peer, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
        return -1;
    }
    std::int64_t right = 0;
    for (std::uint64_t number = 0; number < static_cast<std::uint64_t>(pairs_count); ++number) {
        std::byte out[256];
        std::size_t size = 0;
        for (std::uint64_t each = 1; each <= 2; ++each) {
            rpc::writer in(netio::mutable_bytes(out).subspan(size + 4));
            in.begin(rpc::envelope_kind::request, 2 * number + each, "add").value_int(1);
            each == 1 ? in.value_int(1) : in.promise(2 * number + 1);
            const std::size_t made = in.payload({}).finish();
            rpc::encode_frame_prefix(made, netio::mutable_bytes(out).subspan(size));
            size += 4 + made;
        }
        std::byte got[256];
        std::size_t have = 0;
        for (bool sent = ::send(peer, out, size, 0) == static_cast<ssize_t>(size);
             sent && have < 2 * 46;) {
            server.run_once(0);
            const ssize_t more = ::recv(peer, got + have, sizeof(got) - have, MSG_DONTWAIT);
            have += more > 0 ? static_cast<std::size_t>(more) : 0;
        }
        const auto second = rpc::decode(netio::bytes(got).subspan(50, 42));
        right += second.value.arguments.size() == 1 &&
                         second.value.arguments.front().as_value().as_int() == 3
                     ? 1
                     : 0;
    }
    ::close(peer);
    server.stop();
    while (server.run_once(1)) {
    }
    return right;
}

}  // namespace

int scenario() noexcept {
    static world of;
    int failed_count = no_heap::check("no_heap: 20,000 calls over rings are right",
                                      over_rings(of) == pairs_count);
    failed_count += no_heap::check("no_heap: 20,000 calls over shared memory are right",
                                   over_shared_memory(of) == pairs_count);
    failed_count += no_heap::check("no_heap: 20,000 calls over a connection are right",
                                   over_tcp(of) == pairs_count);
    failed_count += no_heap::check("no_heap: each two of them were one round trip",
                                   of.kernel.round_trips() == 3 * pairs_count);
    return failed_count;
}
