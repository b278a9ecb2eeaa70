// Listeners to a successor: no client is lost, and whatever a peer sends instead, nothing is kept.
#include "netio.hpp"
#include "tests/local_folder.hpp"
#include "tests/service_world.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <array>
#include <atomic>
#include <thread>

namespace {

using namespace netio_test;
using netio::error;

/// A connected pair of unix streams.
struct handoff_pair {
    int near = -1;
    int far = -1;
    handoff_pair() {
        int both[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) == 0);
        near = both[0];
        far = both[1];
    }
    handoff_pair(const handoff_pair&) = delete;
    ~handoff_pair() {
        ::close(near);
        ::close(far);
    }
    /// What the other end said: -1 nothing, 0 yes, 1 no.
    int answer() const {
        std::array<unsigned char, 17> got{};
        const ssize_t count = ::recv(near, got.data(), got.size(), MSG_DONTWAIT);
        return count == 16 && std::memcmp(got.data(), "netio-HA", 8) == 0 ? got[8] : -1;
    }
};

/// One listener of each family, and a right list of them.
struct handoff_listeners {
    local_folder folder;
    std::string path = folder.file("s");
    std::string abstract = client_os::unix_name("handoff");
    std::vector<netio::socket_handle> handles;
    std::vector<netio::handoff_offer> offers;
    std::vector<netio::handoff_entry> entries;

    handoff_listeners() {
        const netio::os_handle local = netio::epoll::listen({{}, path}, {});
        handles = {netio::epoll::listen({netio::loopback_ipv4(0), {}}, {}).handle,
                   netio::epoll::listen({netio::loopback_ipv6(0), {}}, {}).handle, local.handle,
                   netio::epoll::listen({{}, abstract}, {}).handle};
        offers = {{"four", handles[0]}, {"six", handles[1]}, {"path", handles[2], local.file},
                  {"abstract", handles[3]}};
        for (const netio::handoff_offer& each : offers) {
            netio::handoff_entry entry;
            entry.name = each.name;
            entry.address = netio::epoll::local_of(each.handle).value;
            entry.file = each.file;
            entries.push_back(entry);
        }
        entries[2].unix_path = path;
        entries[3].unix_path = abstract;
    }
    handoff_listeners(const handoff_listeners&) = delete;
    ~handoff_listeners() {
        for (const netio::socket_handle each : handles) {
            ::close(static_cast<int>(each));
        }
    }
    std::vector<std::byte> list() const { return list_of(entries); }
    static std::vector<std::byte> list_of(std::span<const netio::handoff_entry> of) {
        std::vector<std::byte> out(netio::handoff_bytes_max);
        out.resize(netio::encode_handoff(of, out));
        REQUIRE(!out.empty());
        return out;
    }
};

/// A peer that sends this, with these, and then says no more.
void handoff_send(int to, std::span<const std::byte> what,
                  std::span<const netio::socket_handle> with) {
    if (!what.empty()) {
        CHECK(netio::detail::send_with_handles<netio::pass_sys>(to, with, what).byte_count ==
              what.size());
    }
}

using handoff_room = std::array<netio::taken_listener, 64>;

/// A whole attempt of a hostile peer: what the successor makes of it. Nothing is kept, ever.
netio::takeover handoff_attempt(std::span<const std::byte> what,
                                std::span<const netio::socket_handle> with, bool ends = true) {
    const std::size_t handles = plain::open_handles();
    netio::takeover got;
    {
        handoff_pair pair;
        handoff_send(pair.near, what, with);
        if (ends) {
            ::shutdown(pair.near, SHUT_WR);
        }
        handoff_room out;
        got = netio::take_over(pair.far, out, {.timeout_ms = ends ? 60'000U : 5U});
        CHECK(plain::open_handles() == handles + (got ? got.count + 2 : 2));
        for (std::uint32_t at = 0; at < got.count; ++at) {
            ::close(static_cast<int>(out[at].handle));
        }
        if (!got) {
            CHECK(got.count == 0);
            CHECK(out[0].handle == netio::no_handle);
            CHECK(pair.answer() == 1);
        }
    }
    CHECK(plain::open_handles() == handles);
    return got;
}

/// Waits as others do, but the clock stands at the end after the first wait.
struct handoff_late_sys : netio::handoff_sys {
    static inline std::uint64_t passed_ns = 0;
    static inline int interrupts = 0;
    static std::uint64_t now_ns() noexcept { return passed_ns; }
    static int wait_ready(int, short, int ms) noexcept {
        if (interrupts > 0) {
            --interrupts;
            errno = EINTR;
            return -1;
        }
        passed_ns += static_cast<std::uint64_t>(ms) * 1'000'000;
        return 0;
    }
};

/// One client after the other, on a thread of their own: who answered each.
struct handoff_clients {
    std::atomic<bool> over{false};
    std::atomic<int> asked{0};
    int by_old = 0;
    int by_new = 0;
    int lost = 0;
    std::thread thread;

    explicit handoff_clients(const std::string& path) {
        thread = std::thread([this, path] {
            while (!over.load()) {
                client_socket client(path);
                client.send("?");
                client_os::wait_readable(client.handle(), 10'000);
                const std::string said = client.arrived();
                ++(said == "old" ? by_old : said == "new" ? by_new : lost);
                asked.fetch_add(1);
            }
        });
    }
    void wait_for_more() const {
        const int now = asked.load();
        while (asked.load() < now + 20) {
            std::this_thread::yield();
        }
    }
    void end() {
        over.store(true);
        thread.join();
    }
};

/// A server on a thread, whose handler says who it is.
struct handoff_server {
    scripted handler;
    fresh_memory memory{netio::bytes_needed<netio::epoll>(service_limits)};
    netio::server<scripted, netio::epoll> server{
        netio::storage_view{memory.all(), service_limits}, handler};
    std::thread worker;

    explicit handoff_server(std::string_view says) {
        handler.data = [says](netio::connection& c, netio::bytes in) {
            c.write(says);
            return in.size();
        };
    }
    void run() {
        worker = std::thread([this] { server.run(); });
    }
};

}  // namespace

TEST_CASE("a hand-off takes listeners of every family, by name, with what the system says") {
    const handoff_listeners mine;
    handoff_pair pair;
    handoff_room out;
    netio::takeover got;
    std::thread successor([&] {
        got = netio::take_over(pair.far, out);
        netio::answer_takeover(pair.far, got, true);
    });
    const netio::failure failed = netio::hand_over(pair.near, mine.offers);
    successor.join();
    CHECK_FALSE(failed);
    REQUIRE(got);
    REQUIRE(got.count == 4);
    for (std::size_t at = 0; at < 4; ++at) {
        CAPTURE(at);
        CHECK(std::string_view(out[at].name) == mine.offers[at].name);
        CHECK(out[at].local == mine.entries[at].address);
        CHECK(std::string_view(out[at].unix_path) == mine.entries[at].unix_path);
        CHECK(out[at].file == mine.offers[at].file);
        CHECK((::fcntl(static_cast<int>(out[at].handle), F_GETFD) & FD_CLOEXEC) != 0);
        CHECK(out[at].handle != mine.handles[at]);
        ::close(static_cast<int>(out[at].handle));
    }
}

TEST_CASE("a hand-off that is cut anywhere gives nothing") {
    const handoff_listeners mine;
    const std::vector<std::byte> list = mine.list();
    for (std::size_t count = 0; count < list.size(); ++count) {
        CAPTURE(count);
        const auto part = std::span(list).first(count);
        CHECK(handoff_attempt(part, mine.handles).failure.code == error::handoff_unfinished);
    }
    CHECK(handoff_attempt(list, mine.handles));
}

TEST_CASE("a hand-off with any bit flipped gives nothing") {
    const handoff_listeners mine;
    const std::vector<std::byte> list = mine.list();
    for (std::size_t at = 0; at < list.size() * 8; ++at) {
        CAPTURE(at);
        std::vector<std::byte> bad = list;
        bad[at / 8] ^= static_cast<std::byte>(1 << at % 8);
        CHECK_FALSE(handoff_attempt(bad, mine.handles));
    }
}

TEST_CASE("a hand-off with too few descriptors, too many or others gives nothing") {
    const handoff_listeners mine;
    const std::vector<std::byte> list = mine.list();
    const auto why_of = [&](std::vector<netio::socket_handle> with, std::string_view about = {}) {
        const netio::takeover got = handoff_attempt(list, with);
        CHECK(std::string_view(got.failure.subject) == about);
        return got.failure.code;
    };
    auto with = mine.handles;
    with.push_back(mine.handles[0]);
    CHECK(why_of(with) == error::handoff_handles);
    with.assign(253, mine.handles[0]);
    CHECK(why_of(with) == error::handoff_handles);
    with.assign(mine.handles.begin(), mine.handles.end() - 1);
    CHECK(why_of(with) == error::handoff_handles);
    CHECK(why_of({}) == error::handoff_handles);
    std::vector<int> made;
    const auto instead = [&](int other) {
        made.push_back(other);
        with = mine.handles;
        with[1] = other;
        return with;
    };
    CHECK(why_of(instead(::open("/dev/null", O_RDONLY)), "six") == error::not_a_listener);
    CHECK(why_of(instead(::socket(AF_INET6, SOCK_DGRAM, 0)), "six") == error::not_a_listener);
    const int bound = ::socket(AF_INET6, SOCK_STREAM, 0);  // right but for its listening
    CHECK(why_of(instead(bound), "six") == error::not_a_listener);
    with = mine.handles;
    std::swap(with[0], with[1]);
    CHECK(why_of(with, "four") == error::handoff_socket);
    with = mine.handles;
    std::swap(with[2], with[3]);
    CHECK(why_of(with, "path") == error::handoff_socket);
    const netio::os_handle elsewhere = netio::epoll::listen({netio::loopback_ipv6(0), {}}, {});
    CHECK(why_of(instead(static_cast<int>(elsewhere.handle)), "six") == error::handoff_socket);
    for (const int each : made) {
        ::close(each);
    }
}

TEST_CASE("a hand-off's list that is right in itself, but not of these sockets, gives nothing") {
    const handoff_listeners mine;
    const auto why_of = [&](auto change) {
        std::vector<netio::handoff_entry> entries = mine.entries;
        change(entries);
        return handoff_attempt(handoff_listeners::list_of(entries), mine.handles).failure.code;
    };
    CHECK(why_of([](auto& of) { ++of[0].address.port; }) == error::handoff_socket);
    CHECK(why_of([](auto& of) { of[0].address.address[3] = 2; }) == error::handoff_socket);
    CHECK(why_of([](auto& of) { of[1].address.scope_id = 1; }) == error::handoff_socket);
    CHECK(why_of([](auto& of) { of[2].unix_path = "/elsewhere"; }) == error::handoff_socket);
    CHECK(why_of([](auto& of) { of[3].unix_path = "@elsewhere"; }) == error::handoff_socket);
    CHECK(why_of([](auto& of) { of[1].address = of[0].address; }) == error::handoff_socket);
    CHECK(why_of([](auto& of) { of[3].name = "any"; }) == error::none);  // names are its own
}

TEST_CASE("what comes after a hand-off's list, with or without descriptors, spoils it") {
    const handoff_listeners mine;
    const std::vector<std::byte> list = mine.list();
    std::vector<std::byte> longer = list;
    longer.push_back(std::byte{0});
    CHECK(handoff_attempt(longer, mine.handles).failure.code == error::handoff_length);
    const std::size_t handles = plain::open_handles();
    const std::span<const netio::socket_handle> all(mine.handles);
    const auto in_two = [&](std::size_t first, std::size_t with_first, std::size_t with_rest) {
        handoff_pair pair;
        handoff_send(pair.near, std::span(list).first(first), all.first(with_first));
        const auto rest = first == list.size() ? std::span<const std::byte>(longer).last(1)
                                               : std::span<const std::byte>(list).subspan(first);
        handoff_send(pair.near, rest, all.last(with_rest));
        handoff_room out;
        const netio::takeover got = netio::take_over(pair.far, out);
        for (std::uint32_t at = 0; at < got.count; ++at) {
            ::close(static_cast<int>(out[at].handle));
        }
        return got.failure.code;
    };
    for (const std::size_t first : {1u, 8u, 16u, 40u}) {
        CAPTURE(first);
        CHECK(in_two(first, 4, 0) == error::none);  // a list may come in parts
        CHECK(in_two(first, 4, 4) == error::handoff_handles);
        CHECK(in_two(first, 2, 2) == error::handoff_handles);  // but they all come at once
    }
    CHECK(in_two(16, 0, 4) == error::handoff_handles);  // and with what is read first
    CHECK(in_two(40, 0, 4) == error::handoff_handles);
    CHECK(in_two(list.size(), 4, 0) == error::handoff_length);
    CHECK(in_two(list.size(), 4, 4) == error::handoff_length);
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("a hand-off that says nothing more ends in time, wherever it stops") {
    const handoff_listeners mine;
    const std::vector<std::byte> list = mine.list();
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{16},
                                    list.size() - 1}) {
        CAPTURE(count);
        const auto part = std::span(list).first(count);
        CHECK(handoff_attempt(part, mine.handles, false).failure.code == error::timed_out);
    }
    // The time-out is of the whole call, whatever signals come.
    handoff_pair pair;
    handoff_room out;
    handoff_late_sys::passed_ns = 0;
    handoff_late_sys::interrupts = 3;
    const netio::takeover got =
        netio::take_over<handoff_late_sys>(pair.far, out, {.timeout_ms = 1234});
    CHECK(got.failure.code == error::timed_out);
    CHECK(handoff_late_sys::passed_ns == 1'234'000'000);
    CHECK(handoff_late_sys::interrupts == 0);
    const netio::failure failed =
        netio::hand_over<handoff_late_sys>(pair.near, mine.offers, {.timeout_ms = 10});
    CHECK(failed.code == error::handoff_refused);  // that no is there already
}

TEST_CASE("a hand-off wants the user that it was told to want, on both sides") {
    const handoff_listeners mine;
    const std::size_t handles = plain::open_handles();
    const auto own = static_cast<std::uint32_t>(::geteuid());
    {
        handoff_pair pair;
        handoff_send(pair.near, mine.list(), mine.handles);
        handoff_room out;
        netio::takeover got =
            netio::take_over(pair.far, out, {.required_uid = own + 1});
        CHECK(got.failure.code == error::permission_denied);
        CHECK(std::string_view(got.failure.subject) == "required_uid");
        CHECK(plain::open_handles() == handles + 2);
        CHECK(netio::hand_over(pair.near, mine.offers, {.required_uid = own + 1}).code ==
              error::permission_denied);
    }
    {
        handoff_pair pair;
        handoff_send(pair.near, mine.list(), mine.handles);
        handoff_room out;
        const netio::takeover got = netio::take_over(pair.far, out, {.required_uid = own});
        CHECK(got);
        for (std::uint32_t at = 0; at < got.count; ++at) {
            ::close(static_cast<int>(out[at].handle));
        }
    }
    if (local_can_be_others("a hand-off by another user")) {
        local_folder folder;
        REQUIRE(::chmod(folder.path().c_str(), 0711) == 0);
        netio::listen_options how;
        how.unix_mode = 0666;
        const std::string path = folder.file("via");
        const netio::os_handle via = netio::epoll::listen({{}, path}, how);
        const std::vector<std::byte> list = mine.list();
        const int sent = local_in_child([&] {
            const client_socket client = local_become_stranger() ? client_socket(path)
                                                                 : client_socket();
            return netio::detail::send_with_handles<netio::pass_sys>(
                       static_cast<int>(client.handle()), mine.handles, list)
                           .byte_count == list.size()
                       ? 0
                       : 1;
        });
        CHECK(sent == 0);
        const int from = ::accept(static_cast<int>(via.handle), nullptr, nullptr);
        handoff_room out;
        CHECK(netio::take_over(from, out, {.required_uid = own}).failure.code ==
              error::permission_denied);
        ::close(from);
        netio::epoll::remove_file_of(via.handle, via.file);
        netio::epoll::close_handle(via.handle, false);
    }
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("a hand-off with more listeners than there is room for gives nothing, and says so") {
    const handoff_listeners mine;
    const std::size_t handles = plain::open_handles();
    {
        handoff_pair pair;
        handoff_send(pair.near, mine.list(), mine.handles);
        std::array<netio::taken_listener, 3> out;
        const netio::takeover got = netio::take_over(pair.far, out);
        CHECK(got.failure.code == error::full);
        CHECK(got.failure.needed == 4);
        CHECK(got.failure.given == 3);
        CHECK(pair.answer() == 1);
        CHECK(plain::open_handles() == handles + 2);
    }
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("a predecessor goes on after any answer but a yes to its own list") {
    const handoff_listeners mine;
    const std::size_t handles = plain::open_handles();
    const std::vector<std::byte> list = mine.list();
    const auto sum = netio::detail::load_little<std::uint32_t>(list.data() + list.size() - 4);
    std::array<std::byte, 16> yes{};
    netio::detail::write_handoff_answer(yes, true, sum);
    const auto answered = [&](std::span<const std::byte> with, bool passes = false) {
        handoff_pair pair;
        handoff_send(pair.far, with, passes ? std::span(mine.handles).first(1)
                                            : std::span<const netio::socket_handle>());
        ::shutdown(pair.far, SHUT_WR);
        return netio::hand_over(pair.near, mine.offers).code;
    };
    CHECK(answered(yes) == error::none);
    for (std::size_t count = 0; count < yes.size(); ++count) {
        CHECK(answered(std::span(yes).first(count)) == error::handoff_unfinished);
    }
    for (std::size_t at = 0; at < yes.size() * 8; ++at) {
        CAPTURE(at);
        std::array<std::byte, 16> bad = yes;
        bad[at / 8] ^= static_cast<std::byte>(1 << at % 8);
        CHECK(answered(bad) == (at / 8 < 8    ? error::handoff_magic
                                : at / 8 < 12 ? error::handoff_refused
                                              : error::handoff_checksum));
    }
    CHECK(answered(yes, true) == error::handoff_handles);  // an answer brings none
    handoff_pair pair;
    CHECK(netio::hand_over(pair.near, mine.offers, {.timeout_ms = 5}).code == error::timed_out);
    ::shutdown(pair.far, SHUT_RD);
    CHECK(netio::hand_over(pair.near, mine.offers).code == error::broken_pipe);
    ::close(pair.far);
    pair.far = ::dup(pair.near);
    CHECK(plain::open_handles() == handles + 2);
}

TEST_CASE("a predecessor offers listeners only, and names the one that is none") {
    const handoff_listeners mine;
    handoff_pair pair;
    const auto failed = [&](auto change) {
        std::vector<netio::handoff_offer> offers = mine.offers;
        change(offers);
        return netio::hand_over(pair.near, offers);
    };
    const std::string longer(65, 'n');
    netio::failure what = failed([&](auto& of) { of[1].handle = pair.far; });
    CHECK(what.code == error::not_a_listener);
    CHECK(std::string_view(what.subject) == "six");
    CHECK(failed([&](auto& of) { of[1].name = longer; }).code == error::option_invalid);
    CHECK(failed([&](auto& of) { of[1].name = ""; }).code == error::option_invalid);
    what = failed([&](auto& of) { of[3].file = {1, 1, 0, 0}; });  // it has no file
    CHECK(what.code == error::option_invalid);
    CHECK(std::string_view(what.subject) == "abstract");
    CHECK(failed([&](auto& of) { of.clear(); }).code == error::option_invalid);
    CHECK(failed([&](auto& of) { of.resize(65, of[0]); }).code == error::option_invalid);
    char byte = 0;
    CHECK(::recv(pair.far, &byte, 1, MSG_DONTWAIT) < 0);  // nothing was sent
}

TEST_CASE("a long hand-off goes through a narrow stream in parts") {
    const handoff_listeners mine;
    const std::string name(64, 'n');
    std::vector<netio::handoff_offer> offers(64, mine.offers[2]);
    for (netio::handoff_offer& each : offers) {
        each.name = name;
    }
    handoff_pair pair;
    const int narrow = 1;
    ::setsockopt(pair.near, SOL_SOCKET, SO_SNDBUF, &narrow, sizeof(narrow));
    handoff_room out;
    netio::takeover got;
    std::thread successor([&] {
        got = netio::take_over(pair.far, out);
        netio::answer_takeover(pair.far, got, true);
    });
    CHECK_FALSE(netio::hand_over(pair.near, offers));
    successor.join();
    CHECK(got.count == 64);
    for (std::uint32_t at = 0; at < got.count; ++at) {
        ::close(static_cast<int>(out[at].handle));
    }
}

TEST_CASE("clients that come all the time meet one server or the other, none is lost [threads]") {
    local_folder folder;
    const std::string path = folder.file("s");
    const std::size_t handles = plain::open_handles();
    {
        handoff_server before("old");
        handoff_server after("new");
        netio::listener_id id;
        REQUIRE(before.server.listen({.unix_path = path}, &id) == error::none);
        before.run();
        handoff_pair pair;
        handoff_clients clients(path);
        clients.wait_for_more();
        std::thread successor([&] {
            std::array<netio::taken_listener, 1> out;
            const netio::takeover got = netio::take_over(pair.far, out);
            const bool adopted = got && after.server.adopt_listener(out[0].handle, {}, nullptr,
                                                                    out[0].file) == error::none;
            after.run();
            netio::answer_takeover(pair.far, got, adopted);
        });
        const netio::handoff_offer offer{"s", before.server.native_handle(id),
                                         before.server.file_of(id)};
        CHECK_FALSE(netio::hand_over(pair.near, {&offer, 1}));
        successor.join();
        CHECK(before.server.release_listener(id));
        while (before.server.is_open(id)) {
            std::this_thread::yield();
        }
        clients.wait_for_more();  // whom it accepted last, too, has asked by now
        before.server.drain(10'000);
        before.worker.join();  // the predecessor is gone
        CHECK(local_exists(path));
        clients.wait_for_more();
        clients.end();
        CHECK(clients.lost == 0);
        CHECK(clients.by_old >= 20);
        CHECK(clients.by_new >= 20);
        after.server.stop();
        after.worker.join();
        CHECK_FALSE(local_exists(path));  // the successor took the file over, too
    }
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("a process hands its listeners to another one, and ends") {
    local_folder folder;
    const std::string path = folder.file("s");
    handoff_pair pair;
    service_world<netio::epoll> w;
    service_echo(w.handler);
    netio::listener_id id;
    const netio::endpoint at = w.listen();
    REQUIRE(w.server().listen({.unix_path = path}, &id) == error::none);
    const pid_t successor = ::fork();
    if (successor == 0) {
        scripted handler;
        handler.data = [](netio::connection& c, netio::bytes in) {
            c.write(std::to_string(::getpid()));
            c.close();
            return in.size();
        };
        fresh_memory memory(netio::bytes_needed<netio::epoll>(service_limits));
        netio::server<scripted, netio::epoll> next(
            netio::storage_view{memory.all(), service_limits}, handler);
        handoff_room out;
        const netio::takeover got = netio::take_over(pair.far, out);
        bool adopted = static_cast<bool>(got);
        for (std::uint32_t each = 0; each < got.count; ++each) {
            adopted = adopted && next.adopt_listener(out[each].handle, {}, nullptr,
                                                     out[each].file) == error::none;
        }
        const bool told = adopted && !netio::answer_takeover(pair.far, got, true);
        while (told && handler.closed < 2 && next.run_once(10'000)) {
        }
        next.stop();
        while (told && next.run_once(10'000)) {
        }
        ::_exit(told ? 0 : 1);
    }
    const netio::handoff_offer offers[] = {
        {"tcp", w.server().native_handle({0})},
        {"path", w.server().native_handle(id), w.server().file_of(id)}};
    client_socket early(at);  // in the queue all the while
    CHECK_FALSE(netio::hand_over(pair.near, offers));
    CHECK(w.server().release_listener({0}));
    CHECK(w.server().release_listener(id));
    w.server().stop();
    while (w.server().run_once(0)) {
    }
    CHECK_FALSE(w.server().is_open(id));
    const std::string process = std::to_string(successor);
    client_socket late(path);
    for (client_socket* each : {&early, &late}) {
        each->send("who?");
        client_os::wait_readable(each->handle(), 10'000);
        CHECK(each->arrived() == process);
        each->close();
    }
    int status = -1;
    ::waitpid(successor, &status, 0);
    CHECK(status == 0);
    CHECK_FALSE(local_exists(path));
}

#endif
