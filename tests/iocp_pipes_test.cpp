// Named pipes over completion ports: the contract's suite, who may open them, whose process a
// client is, and what is given back.
#include "netio.hpp"

#if NETIO_HAS_IOCP

#include "tests/conformance_pipes.hpp"
#include "tests/service_world.hpp"

#include <sddl.h>

namespace {

using netio::event_kind;
using netio::operation;
using netio::token;
using netio_test::pipe_client;
using netio_test::pipe_path;
namespace windows = netio::detail::windows;

static_assert(sizeof(windows::security_attributes) == sizeof(SECURITY_ATTRIBUTES));
static_assert(offsetof(windows::file_name, text) == offsetof(FILE_NAME_INFO, FileName));
static_assert(windows::pipe_open_mode == (PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED));
static_assert(windows::pipe_first == FILE_FLAG_FIRST_PIPE_INSTANCE);
static_assert(windows::pipe_mode == (PIPE_TYPE_BYTE | 0x8 /* PIPE_REJECT_REMOTE_CLIENTS */));
static_assert(windows::pipe_instances_unlimited == PIPE_UNLIMITED_INSTANCES);
static_assert(windows::access_attributes == FILE_READ_ATTRIBUTES);
static_assert(windows::open_existing == OPEN_EXISTING);
static_assert(windows::class_file_name == FileNameInfo);
static_assert(windows::descriptor_revision == SDDL_REVISION_1);
static_assert(windows::search_system_only == LOAD_LIBRARY_SEARCH_SYSTEM32);
static_assert(windows::code_page_utf8 == CP_UTF8);
static_assert(windows::refuse_invalid == MB_ERR_INVALID_CHARS);
static_assert(windows::access_denied == ERROR_ACCESS_DENIED);
static_assert(windows::pipe_broken == ERROR_BROKEN_PIPE);
static_assert(windows::pipe_closing == ERROR_NO_DATA);
static_assert(windows::pipe_connected == ERROR_PIPE_CONNECTED);
static_assert(windows::resources_empty == ERROR_NO_SYSTEM_RESOURCES);

using conformance_pipes = netio::basic_iocp<netio_test::conformance_pipe_sys>;
using conformance_pipes_world = netio_test::conformance_pipe_world<conformance_pipes>;
const netio_test::conformance_cases<conformance_pipes_world> conformance_pipes_cases;

enum class pipe_call {
    none, make, wait, sizes, name, widen, descriptor, tie, skip, post
};

/// Counts what is held, and lets one planned call fail.
struct pipe_sys : netio_test::conformance_pipe_sys {
    using real = netio_test::conformance_pipe_sys;
    static inline int handles = 0;
    static inline int descriptors = 0;
    static inline pipe_call fail_call = pipe_call::none;
    static inline int fail_at = 0;
    static inline int fail_code = 0;
    static inline bool sees_ghosts = false;  // bytes that somebody else has read meanwhile
    static inline bool never_disconnects = false;
    static inline int came_early = 0;
    static inline pipe_client early;
    static inline std::string access;        // of the newest descriptor asked for

    static void plan(pipe_call which, int code, int nth = 1) {
        fail_call = which;
        fail_code = code;
        fail_at = nth;
    }
    static bool fails(pipe_call which) noexcept {
        if (which != fail_call || --fail_at != 0) {
            return false;
        }
        fail_call = pipe_call::none;
        ::SetLastError(static_cast<DWORD>(fail_code));
        return true;
    }
    static socket_type make_pipe(const wchar_t* name, bool first, unsigned long send_bytes,
                                 unsigned long receive_bytes, const void* descriptor) noexcept {
        if (fails(pipe_call::make)) {
            return windows::no_socket;
        }
        const socket_type made =
            real::make_pipe(name, first, send_bytes, receive_bytes, descriptor);
        handles += made != windows::no_socket;
        return made;
    }
    static socket_type open_pipe(const wchar_t* name) noexcept {
        const socket_type made = real::open_pipe(name);
        handles += made != windows::no_socket;
        return made;
    }
    static void close_pipe(socket_type what) noexcept {
        --handles;
        real::close_pipe(what);
    }
    static int disconnect_pipe(socket_type what) noexcept {
        return never_disconnects ? ERROR_NOT_ENOUGH_MEMORY : real::disconnect_pipe(what);
    }
    /// Someone connects just before the first wait.
    static int wait_for_client(socket_type what, overlapped* op) noexcept {
        if (came_early != 0) {
            windows::file_name name{};
            real::pipe_name(what, name);
            std::string path = R"(\\.\pipe)";
            for (const wchar_t each : std::wstring_view(name.text, name.byte_count / 2)) {
                path += static_cast<char>(each);
            }
            early = pipe_client(path);
            early.send("early");
            if (came_early == ERROR_NO_DATA) {
                early.close();
            }
            const int code = real::wait_for_client(what, op);
            CHECK(code == came_early);
            came_early = 0;
            return code;
        }
        return fails(pipe_call::wait) ? fail_code : real::wait_for_client(what, op);
    }
    static int pipe_sizes(socket_type of, unsigned long& to, unsigned long& from) noexcept {
        return fails(pipe_call::sizes) ? fail_code : real::pipe_sizes(of, to, from);
    }
    static int pipe_name(socket_type of, windows::file_name& out) noexcept {
        return fails(pipe_call::name) ? fail_code : real::pipe_name(of, out);
    }
    static bool widen(const char* from, int count, wchar_t* to, int room) noexcept {
        return !fails(pipe_call::widen) && real::widen(from, count, to, room);
    }
    static int make_descriptor(const char* from, void*& out) noexcept {
        access = from;
        const int code = fails(pipe_call::descriptor) ? fail_code
                                                      : real::make_descriptor(from, out);
        descriptors += code == 0;
        return code;
    }
    static void drop_descriptor(void* what) noexcept {
        --descriptors;
        real::drop_descriptor(what);
    }
    static void* port(void* what, void* to, std::uint32_t key) noexcept {
        return fails(pipe_call::tie) ? nullptr : real::port(what, to, key);
    }
    static bool skip_on_success(socket_type of) noexcept {
        return !fails(pipe_call::skip) && real::skip_on_success(of);
    }
    static bool post(void* to, unsigned long byte_count, netio_ulong_pointer key,
                     overlapped* op) noexcept {
        return !fails(pipe_call::post) && real::post(to, byte_count, key, op);
    }
    static int look_into_pipe(socket_type of, unsigned long& byte_count) noexcept {
        const int code = real::look_into_pipe(of, byte_count);
        byte_count += sees_ghosts ? 5 : 0;
        return code;
    }
};

using pipe_backend = netio::basic_iocp<pipe_sys>;
using pipe_world = netio_test::conformance_pipe_world<pipe_backend>;
using pipe_suite = netio_test::conformance<pipe_world>;
constexpr token pipe_acceptor = token::of(0, 900);
constexpr token pipe_a = token::of(0, 1), pipe_b = token::of(1, 1), pipe_c = token::of(2, 1);

/// Nothing of the policy's is left when a case ends.
struct pipes_held {
    pipes_held() {
        pipe_sys::fail_call = pipe_call::none;
        pipe_sys::sees_ghosts = false;
    }
    ~pipes_held() {
        pipe_sys::sees_ghosts = false;
        CHECK(pipe_sys::handles == 0);
        CHECK(pipe_sys::descriptors == 0);
    }
};

void pipe_join(pipe_world& w, token who, pipe_client& client) {
    const char* const broken = pipe_suite::join(w, who, client);
    CAPTURE(std::string(broken == nullptr ? "" : broken));
    REQUIRE(broken == nullptr);
}

/// The list of who may do what, of an open pipe.
std::string pipe_access_of(netio::socket_handle handle) {
    alignas(8) unsigned char room[1024];
    DWORD needed = 0;
    if (::GetKernelObjectSecurity(reinterpret_cast<HANDLE>(netio::detail::socket_of(handle)),
                                  DACL_SECURITY_INFORMATION, room, sizeof(room), &needed) == 0) {
        return "error " + std::to_string(::GetLastError());
    }
    char* text = nullptr;
    ::ConvertSecurityDescriptorToStringSecurityDescriptorA(
        room, SDDL_REVISION_1, DACL_SECURITY_INFORMATION, &text, nullptr);
    std::string out = text != nullptr ? text : "";
    ::LocalFree(text);
    // "Everything", as asked for or as the system spells it for files.
    for (std::size_t at = out.find(";FA;"); at != std::string::npos; at = out.find(";FA;")) {
        out.replace(at, 4, ";GA;");
    }
    return out;
}

TEST_CASE("pipes: the default list is what the system makes of its text") {
    PSECURITY_DESCRIPTOR made = nullptr;
    ULONG count = 0;
    REQUIRE(::ConvertStringSecurityDescriptorToSecurityDescriptorA(
                "D:P(A;;GA;;;OW)", SDDL_REVISION_1, &made, &count) != 0);
    CHECK(::IsValidSecurityDescriptor(const_cast<unsigned char*>(netio::detail::owner_only)));
    REQUIRE(count == sizeof(netio::detail::owner_only));
    CHECK(std::memcmp(made, netio::detail::owner_only, count) == 0);
    ::LocalFree(made);
}

TEST_CASE("pipes: who may open one is what was asked for, and the owner alone if nothing was") {
    const pipes_held held;
    struct {
        const char* asked;
        const char* said;
    } const rows[] = {{"", "D:P(A;;GA;;;OW)"},
                      {"D:P(A;;GA;;;OW)(A;;0x12019b;;;AU)", "D:P(A;;GA;;;OW)(A;;0x12019b;;;AU)"},
                      {"D:P(D;;GA;;;WD)", "D:P(D;;GA;;;WD)"}};
    for (const auto& row : rows) {
        CAPTURE(std::string(row.asked));
        netio::listen_options how;
        how.pipe_access = row.asked;
        const std::string path = pipe_path("access");
        const netio::os_handle made = pipe_backend::listen({{}, path}, how);
        REQUIRE(made);
        CHECK(pipe_sys::descriptors == 0);
        CHECK(pipe_access_of(made.handle) == row.said);
        pipe_backend::close_handle(made.handle, false);
    }
}

TEST_CASE("pipes: whoever is not on the list is refused") {
    const pipes_held held;
    if (netio_test::plain::on_wine()) {
        MESSAGE("not looked at: Wine checks no list when a pipe is opened");
        return;
    }
    pipe_world w;
    netio::listen_options how;
    // We may make instances, and open none.
    how.pipe_access = "D:P(A;;0x1f0004;;;OW)";
    const std::string path = pipe_path("closed");
    const netio::os_handle made = pipe_backend::listen({{}, path}, how);
    REQUIRE(made);
    CHECK(pipe_client(path).why() == ERROR_ACCESS_DENIED);
    pipe_backend::close_handle(made.handle, false);
}

TEST_CASE("pipes: what can't be is refused, and nothing is held") {
    const pipes_held held;
    const auto why = [](const std::string& path, auto set) {
        netio::listen_options how;
        set(how);
        const netio::os_handle made = pipe_backend::listen({{}, path}, how);
        CHECK(made.handle == netio::no_handle);
        return made.status.why;
    };
    const auto plainly = [](netio::listen_options&) {};
    using netio::error;
    CHECK(why(R"(\\.\pipe\)", plainly) == error::address_invalid);
    CHECK(why(R"(\\.\pipe\)" + std::string(300, 'x'), plainly) == error::path_too_long);
    CHECK(why(R"(\\.\pipe\a)" + std::string(1, '\0'), plainly) == error::address_invalid);
    CHECK(why("\\\\.\\pipe\\\xff\xfe", plainly) == error::address_invalid);
    const std::string path = pipe_path("refused");
    const auto access = [](std::string_view text) {
        return [text](netio::listen_options& how) { how.pipe_access = text; };
    };
    const std::string long_text(2000, ' ');
    CHECK(why(path, access("nobody")) == error::option_invalid);
    CHECK(why(path, access(long_text)) == error::option_invalid);
    CHECK(why(path, access(std::string_view("D:\0", 3))) == error::option_invalid);
    CHECK(why("netio.socket", access("D:P(A;;GA;;;OW)")) == error::not_supported);
    netio::listen_options over_tcp;
    over_tcp.pipe_access = "D:P(A;;GA;;;OW)";
    CHECK(pipe_backend::listen({netio::loopback_ipv4(0), {}}, over_tcp).status.why ==
          error::not_supported);
    CHECK(why(path, [](auto& how) { how.socket.dscp = 1; }) == error::not_supported);
    CHECK(why(path, [](auto& how) { how.socket.bind_device = "x"; }) == error::not_supported);
    pipe_world w;
    CHECK(w.kernel.start_connect({{}, w.path}, {}, pipe_a).why == error::not_supported);
}

TEST_CASE("pipes: a name that is in use is told as an address in use") {
    const pipes_held held;
    pipe_world w;
    if (netio_test::plain::on_wine()) {
        pipe_sys::plan(pipe_call::make, ERROR_ACCESS_DENIED);  // Wine lets names be shared
    }
    const netio::os_handle again = pipe_backend::listen({{}, w.path}, {});
    CHECK(again.status.why == netio::error::address_in_use);
    CHECK(again.status.os_code == ERROR_ACCESS_DENIED);
    CHECK(std::string(pipe_backend::os_name(again.status.os_code)) == "ERROR_ACCESS_DENIED");
    CHECK(again.handle == netio::no_handle);
}

TEST_CASE("pipes: nothing is held when a call of listen or start_accept fails") {
    const pipes_held held;
    netio::listen_options how;
    how.pipe_access = "D:P(A;;GA;;;OW)";
    for (const pipe_call each : {pipe_call::descriptor, pipe_call::widen, pipe_call::make}) {
        pipe_sys::plan(each, ERROR_NOT_ENOUGH_MEMORY);
        CHECK_FALSE(pipe_backend::listen({{}, pipe_path("fails")}, how));
        CHECK(pipe_sys::fail_call == pipe_call::none);
    }
    pipe_sys::never_disconnects = true;  // so that it would take a client nobody waits for
    CHECK_FALSE(pipe_backend::listen({{}, pipe_path("fails")}, how));
    pipe_sys::never_disconnects = false;
    CHECK(pipe_sys::handles == 0);
    pipe_world w;
    const int before = pipe_sys::handles;
    for (const pipe_call each : {pipe_call::sizes, pipe_call::name, pipe_call::make,
                                 pipe_call::tie, pipe_call::skip, pipe_call::wait}) {
        const bool once = each == pipe_call::sizes || each == pipe_call::name;
        pipe_sys::plan(each, ERROR_NO_SYSTEM_RESOURCES, once ? 1 : 3);
        CHECK_FALSE(w.kernel.start_accept(w.listener, pipe_acceptor));
        CHECK(pipe_sys::fail_call == pipe_call::none);
        w.quiet();
        CHECK(pipe_sys::handles == before);
    }
    CHECK(w.seen.empty());
    pipe_client client;
    pipe_join(w, pipe_a, client);
}

TEST_CASE("pipes: a client that came before the wait, and may be gone again, is accepted") {
    const pipes_held held;
    for (const int code : {ERROR_PIPE_CONNECTED, ERROR_NO_DATA}) {
        CAPTURE(code);
        pipe_world w;
        pipe_sys::came_early = code;
        REQUIRE(w.kernel.start_accept(w.listener, pipe_acceptor));
        CHECK(w.seen.empty());
        REQUIRE(w.until([&] { return w.count(pipe_acceptor) == 1; }));
        REQUIRE(w.attach(w.last(pipe_acceptor, operation::accept)->handle, pipe_a));
        w.kernel.start_receive(pipe_a, {}, 1000);
        CHECK(w.until([&] { return w.text[0] == "early"; }));
        pipe_sys::early.close();
        REQUIRE(w.until([&] { return w.receive_idle(pipe_a); }));
        CHECK(w.last(pipe_a, operation::receive)->kind == event_kind::ended);
    }
    pipe_world w;
    pipe_sys::came_early = ERROR_PIPE_CONNECTED;
    pipe_sys::plan(pipe_call::post, ERROR_NOT_ENOUGH_MEMORY);
    CHECK_FALSE(w.kernel.start_accept(w.listener, pipe_acceptor));
    CHECK(pipe_sys::early.was_reset() != pipe_sys::early.ended());
}

TEST_CASE("pipes: a client's process is told") {
    const pipes_held held;
    pipe_world w;
    pipe_client client;
    pipe_join(w, pipe_a, client);
    CHECK(w.last(pipe_acceptor, operation::accept)->peer.scope_id == ::GetCurrentProcessId());
    std::string command = "cmd.exe /c echo from a child> " + w.path;
    STARTUPINFOA start{};
    start.cb = sizeof(start);
    PROCESS_INFORMATION child{};
    REQUIRE(::CreateProcessA(nullptr, command.data(), nullptr, nullptr, FALSE, CREATE_NO_WINDOW,
                             nullptr, nullptr, &start, &child) != 0);
    w.turns_max = 20'000;
    REQUIRE(w.until([&] { return w.count(pipe_acceptor) == 2; }));
    const netio::event accepted = *w.last(pipe_acceptor, operation::accept);
    CHECK(accepted.peer.family == netio::address_family::unix_path);
    CHECK(accepted.peer.scope_id == child.dwProcessId);
    CHECK(accepted.peer.scope_id != ::GetCurrentProcessId());
    REQUIRE(w.attach(accepted.handle, pipe_b));
    w.kernel.start_receive(pipe_b, {}, 1000);
    REQUIRE(w.until([&] { return w.receive_idle(pipe_b); }));
    CHECK(w.text[1].starts_with("from a child"));
    CHECK(w.last(pipe_b, operation::receive)->kind == event_kind::ended);
    ::WaitForSingleObject(child.hProcess, 20'000);
    ::CloseHandle(child.hProcess);
    ::CloseHandle(child.hThread);
}

TEST_CASE("pipes: more clients than instances, at once and one after the other") {
    const pipes_held held;
    pipe_world w;
    REQUIRE(w.kernel.start_accept(w.listener, pipe_acceptor));
    w.accepting = true;
    const int armed = pipe_sys::handles;
    CHECK(armed == 1 + static_cast<int>(netio::iocp::late_accepts_max));
    std::vector<pipe_client> clients;
    for (int at = 0; at < 30; ++at) {
        clients.push_back(w.connect());
        REQUIRE(clients.back().connected());
    }
    CHECK(w.until([&] { return w.count(pipe_acceptor) == 30; }));
    CHECK(pipe_sys::handles == armed + 30);
    w.close_accepted();
    for (pipe_client& each : clients) {
        CHECK(each.was_reset());
    }
    for (std::uint32_t round = 1; round <= 100; ++round) {
        const token who = token::of(round % 8, round);
        pipe_client client;
        pipe_join(w, who, client);
        w.kernel.start_receive(who, {}, 1000);
        client.send("some");
        client.close();
        REQUIRE(w.until([&] { return w.receive_idle(who); }));
        REQUIRE(pipe_suite::close(w, who, round % 3 == 0) == nullptr);
        w.seen.clear();
    }
    CHECK(pipe_sys::handles == armed);
    CHECK(w.pool.in_use(netio::side::input) == 0);
    CHECK(w.kernel.stale_count() == 0);
}

TEST_CASE("pipes: eight clients at once each get their own bytes back") {
    const pipes_held held;
    pipe_world w;
    pipe_client clients[8];
    std::string said[8];
    for (std::uint32_t at = 0; at < 8; ++at) {
        pipe_join(w, token::of(at, 1), clients[at]);
        w.kernel.start_receive(token::of(at, 1), {}, 1'000'000);
        said[at] = netio_test::conformance_pattern(1000 + 700 * at);
        CHECK(clients[at].send(said[at]) == said[at].size());
    }
    for (std::uint32_t at = 0; at < 8; ++at) {
        REQUIRE(w.until([&] { return w.text[at].size() == said[at].size(); }));
        w.send(token::of(at, 1), netio::as_bytes(w.text[at]));
    }
    for (std::uint32_t at = 0; at < 8; ++at) {
        CHECK(w.until([&] { return clients[at].arrived().size() == said[at].size(); }));
        CHECK(clients[at].arrived() == said[at]);
    }
}

TEST_CASE("pipes: close gives everything back, whatever is outstanding") {
    const pipes_held held;
    pipe_world w;
    pipe_client clients[3];
    std::array<std::byte, 64> place{};
    pipe_join(w, pipe_a, clients[0]);
    pipe_join(w, pipe_b, clients[1]);
    pipe_join(w, pipe_c, clients[2]);
    const std::string much(200'000, 'x');
    w.kernel.start_receive(pipe_a, {}, 1000);
    pipe_suite::receive_into(w, pipe_b, place);
    for (int times = 0; times < 3; ++times) {
        w.send(pipe_c, netio::as_bytes(much));
        w.quiet();
        if (w.count(pipe_c, operation::send, event_kind::sent) <
            static_cast<std::uint32_t>(times) + 1) {
            break;
        }
    }
    const pipe_client unseen = w.connect();
    SUBCASE("of the loop") { w.kernel.close(); }
    SUBCASE("of each connection") {
        for (const token each : {pipe_a, pipe_b, pipe_c}) {
            w.kernel.start_close(each, each == pipe_b);
        }
        CHECK(w.until([&] {
            return pipe_suite::closed(w, pipe_a) && pipe_suite::closed(w, pipe_b) &&
                   pipe_suite::closed(w, pipe_c);
        }));
        w.kernel.stop_accept(pipe_acceptor);
        w.quiet();
        w.close_accepted();
        CHECK(pipe_sys::handles == 1);
        CHECK(w.kernel.stale_count() == 0);
    }
    CHECK(w.pool.in_use(netio::side::input) == 0);
}

TEST_CASE("pipes: a stopped accept can be started again at once and loses nobody who came") {
    const pipes_held held;
    pipe_world w;
    const token next = token::of(pipe_acceptor.index(), 901);
    REQUIRE(w.kernel.start_accept(w.listener, pipe_acceptor));
    w.turn(0);
    const pipe_client before(w.path);
    w.kernel.stop_accept(pipe_acceptor);
    const pipe_client between(w.path);  // an instance takes clients until it is closed
    REQUIRE(between.connected());
    REQUIRE(w.kernel.start_accept(w.listener, next));
    const pipe_client after = w.connect();
    const auto came = [&] {
        return w.count(pipe_acceptor, operation::accept, event_kind::accepted) +
               w.count(next, operation::accept, event_kind::accepted);
    };
    CHECK(w.until([&] { return came() == 3; }));
    w.kernel.stop_accept(next);
    w.quiet();
    CHECK(came() == 3);
    w.close_accepted();
    CHECK(pipe_sys::handles == 1);
    w.close_listener();
    const netio::os_handle again = pipe_backend::listen({{}, w.path}, {});
    CHECK(again);
    pipe_backend::close_handle(again.handle, false);
}

TEST_CASE("pipes: an accept whose client cannot be told again fails and turns it away") {
    const pipes_held held;
    pipe_world w;
    REQUIRE(w.kernel.start_accept(w.listener, pipe_acceptor));
    pipe_client client(w.path);
    pipe_sys::plan(pipe_call::make, ERROR_ACCESS_DENIED);
    REQUIRE(w.until([&] { return w.count(pipe_acceptor) == 1; }));
    CHECK(w.seen.back().kind == event_kind::failed);
    CHECK(w.seen.back().why == netio::error::permission_denied);
    CHECK(client.was_reset());
    w.quiet();
    CHECK(pipe_sys::handles == 1);
}

TEST_CASE("pipes: 1 MiB each way at once") {
    const pipes_held held;
    pipe_world w;
    pipe_client client;
    pipe_join(w, pipe_a, client);
    const std::string whole = netio_test::conformance_pattern(1024 * 1024);
    std::size_t given = 0;
    std::size_t taken = 0;  // of what came, sent back
    std::size_t handled = w.seen.size();
    bool sending = false;
    w.kernel.start_receive(pipe_a, {}, 4 * 1024 * 1024);
    w.turns_max = 200'000;
    CHECK(w.until([&] {
        given += client.send(std::string_view(whole).substr(given));
        for (; handled < w.seen.size(); ++handled) {
            const netio::event& each = w.seen[handled];
            taken += each.kind == event_kind::sent ? each.byte_count : 0;
            sending = sending && each.kind != event_kind::sent;
        }
        if (!sending && w.text[0].size() > taken) {
            static std::string reply;
            reply = w.text[0].substr(taken);
            w.send(pipe_a, netio::as_bytes(reply));
            sending = true;
        }
        return client.arrived().size() == whole.size();
    }));
    CHECK(w.text[0] == whole);
    CHECK(client.arrived() == whole);
}

TEST_CASE("pipes: a client that is gone ends what is read, and fails what is sent") {
    const pipes_held held;
    pipe_world w;
    pipe_client client;
    pipe_join(w, pipe_a, client);
    const std::string much(64 * 1024, 'x');
    std::uint32_t sent = 0;
    while (pipe_suite::sent(w, pipe_a, sent)) {  // until one is the kernel's
        w.send(pipe_a, netio::as_bytes(much));
        w.quiet();
        ++sent;
    }
    client.send("last words");
    w.kernel.start_receive(pipe_a, {}, 1000);
    client.close();
    REQUIRE(w.until([&] {
        return w.receive_idle(pipe_a) &&
               w.count(pipe_a, operation::send, event_kind::failed) == 1;
    }));
    CHECK(w.text[0] == "last words");
    CHECK(w.last(pipe_a, operation::receive)->kind == event_kind::ended);
    CHECK(w.last(pipe_a, operation::send)->why == netio::error::broken_pipe);
    w.send(pipe_a, netio::as_bytes("more"));
    CHECK(w.until([&] { return w.count(pipe_a, operation::send, event_kind::failed) == 2; }));
    CHECK(w.last(pipe_a, operation::send)->why == netio::error::broken_pipe);
    CHECK(w.pool.in_use(netio::side::input) == 0);
}

TEST_CASE("pipes: end_send ends the receive too, after what has come") {
    const pipes_held held;
    pipe_world w;
    pipe_client clients[3];
    std::array<std::byte, 64> place{};
    for (std::uint32_t at = 0; at < 3; ++at) {
        pipe_join(w, token::of(at, 1), clients[at]);
    }
    w.kernel.start_receive(pipe_a, {}, 1000);   // outstanding
    pipe_suite::receive_into(w, pipe_b, place);  // the same, into memory
    clients[2].send("before");                  // not asked for yet
    w.quiet();
    for (const token each : {pipe_a, pipe_b, pipe_c}) {
        w.kernel.end_send(each);
    }
    REQUIRE(w.until([&] { return w.receive_idle(pipe_a) && w.receive_idle(pipe_b); }));
    CHECK(w.last(pipe_a, operation::receive)->kind == event_kind::ended);
    CHECK(w.last(pipe_b, operation::receive)->kind == event_kind::ended);
    pipe_suite::receive_into(w, pipe_c, place);
    REQUIRE(w.until([&] { return w.receive_idle(pipe_c); }));
    CHECK(w.text[2] == "before");
    w.kernel.start_receive(pipe_c, {}, 1000);
    CHECK(w.until([&] { return w.last(pipe_c, operation::receive)->kind == event_kind::ended; }));
    CHECK_FALSE(clients[0].ended());  // not before it is closed
    for (const token each : {pipe_a, pipe_b, pipe_c}) {
        CHECK(pipe_suite::close(w, each) == nullptr);
    }
    CHECK(clients[0].ended());
    CHECK(w.pool.in_use(netio::side::input) == 0);
}

TEST_CASE("pipes: a message of no bytes is no end") {
    const pipes_held held;
    pipe_world w;
    pipe_client clients[2];
    std::array<std::byte, 64> place{};
    pipe_join(w, pipe_a, clients[0]);
    pipe_join(w, pipe_b, clients[1]);
    w.kernel.start_receive(pipe_a, {}, 4);
    pipe_suite::receive_into(w, pipe_b, place);
    w.quiet();
    for (pipe_client& each : clients) {
        each.send_nothing();
        w.quiet();
    }
    CHECK(w.count(pipe_a) + w.count(pipe_b) == 0);
    for (pipe_client& each : clients) {
        each.send("here");
    }
    CHECK(w.until([&] { return w.text[0] == "here" && w.text[1] == "here"; }));
}

TEST_CASE("pipes: bytes that somebody else read first cost no buffer") {
    const pipes_held held;
    pipe_world w;
    pipe_client client;
    pipe_join(w, pipe_a, client);
    w.kernel.start_receive(pipe_a, {}, 1000);
    client.send("x");
    REQUIRE(w.until([&] { return w.text[0] == "x"; }));
    pipe_sys::sees_ghosts = true;
    client.send("y");
    REQUIRE(w.until([&] { return w.text[0] == "xy"; }));
    w.kernel.stop_receive(pipe_a);
    REQUIRE(w.until([&] { return w.receive_idle(pipe_a); }));
    w.kernel.end_send(pipe_a);
    w.kernel.start_receive(pipe_a, {}, 1000);  // looks, sees bytes, and there are none
    REQUIRE(w.until([&] { return w.last(pipe_a, operation::receive)->kind ==
                                 event_kind::failed; }));
    CHECK(w.last(pipe_a, operation::receive)->why == netio::error::cancelled);
    CHECK(w.pool.in_use(netio::side::input) == 0);
    pipe_sys::sees_ghosts = false;
    CHECK(pipe_suite::close(w, pipe_a) == nullptr);
    CHECK(w.kernel.stale_count() == 0);
}

TEST_CASE("pipes: what was released is attached again, and nobody else's is") {
    const pipes_held held;
    pipe_world w;
    auto other = std::make_unique<netio_test::conformance_rig<pipe_backend>>();
    REQUIRE(other->open());
    pipe_client client;
    pipe_join(w, pipe_a, client);
    const netio::socket_handle handle = w.kernel.release(pipe_a);
    CHECK_FALSE(other->kernel.attach(handle, pipe_a));
    REQUIRE(w.kernel.attach(handle, pipe_b));
    w.kernel.start_receive(pipe_b, {}, 100);
    client.send("again");
    CHECK(w.until([&] { return w.text[1] == "again"; }));
}

TEST_CASE("pipes: loops share a listener, whichever of them ends first") {
    for (const bool first_ends : {true, false}) {
        const pipes_held held;
        pipe_world w;
        auto other = std::make_unique<netio_test::conformance_rig<pipe_backend>>();
        REQUIRE(other->open());
        REQUIRE(w.kernel.start_accept(w.listener, pipe_acceptor));
        REQUIRE(other->kernel.start_accept(w.listener, pipe_acceptor));
        std::vector<pipe_client> clients;
        for (int at = 0; at < 24; ++at) {
            clients.push_back(w.connect());
            other->turn(0);
        }
        REQUIRE(w.until([&] {
            other->turn(0);
            return w.count(pipe_acceptor) + other->count(pipe_acceptor) == 24;
        }));
        CHECK(w.count(pipe_acceptor) != 0);
        CHECK(other->count(pipe_acceptor) != 0);
        w.close_accepted();
        other->close_accepted();
        (first_ends ? w.kernel : other->kernel).close();
        pipe_client last = w.connect();
        auto& left = first_ends ? *other : static_cast<decltype(*other)&>(w);
        const std::uint32_t before = left.count(pipe_acceptor);
        if (!last.connected()) {
            last = pipe_client(w.path);
        }
        CHECK(left.until([&] { return left.count(pipe_acceptor) > before; }));
        left.close_accepted();
    }
}

TEST_CASE("pipes: a server serves one, knows the process, and a close does not linger") {
    const pipes_held held;
    netio_test::service_world<pipe_backend> w;
    w.checks_handles = false;  // the system's libraries open some of their own at first
    netio_test::service_echo(w.handler);
    netio::endpoint source;
    std::uint32_t process = 0;
    w.handler.open = [&](netio::connection& c) {
        source = c.source();
        process = c.peer_process_id();
    };
    const std::string path = pipe_path("server");
    w.listen({.unix_path = path});
    pipe_client client;
    REQUIRE(w.until([&] {
        client = client.connected() ? client : pipe_client(path);
        return client.connected();
    }));
    const std::string whole = netio_test::conformance_pattern(1024 * 1024);
    std::size_t given = 0;
    CHECK(w.until([&] {
        given += client.send(std::string_view(whole).substr(given));
        return client.arrived().size() == whole.size();
    }));
    CHECK(client.arrived() == whole);
    CHECK(source.family == netio::address_family::unix_path);
    CHECK(process == ::GetCurrentProcessId());
    w.handler.data = [](netio::connection& c, netio::bytes in) {
        c.write(netio::as_bytes("bye"));
        c.close();
        return in.size();
    };
    client.send("x");
    const std::uint64_t begun = netio::windows_sys::now_ns();
    CHECK(w.until([&] { return client.ended(); }));
    CHECK(netio::windows_sys::now_ns() - begun < 1'500'000'000);  // linger_ms is 2,000
    CHECK(client.arrived() == whole + "bye");
    CHECK(w.until_closed(1));
}

}  // namespace

#endif
