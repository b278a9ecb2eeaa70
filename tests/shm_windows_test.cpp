// Shared memory of Windows: declarations against the system's headers, two processes, handles given
// back whichever call fails.
#include "netio.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_IOCP

#include <cstdlib>
#include <cstring>
#include <string>

#include <winsock2.h>

#include <windows.h>

namespace {

using netio::error;
using netio::shm_event;
using netio::shm_options;

namespace windows = netio::detail::windows;
static_assert(sizeof(windows::memory_facts) == sizeof(MEMORY_BASIC_INFORMATION));
static_assert(offsetof(windows::memory_facts, byte_count) ==
              offsetof(MEMORY_BASIC_INFORMATION, RegionSize));
static_assert(offsetof(windows::memory_facts, state) == offsetof(MEMORY_BASIC_INFORMATION, State));
static_assert(offsetof(windows::memory_facts, protection) ==
              offsetof(MEMORY_BASIC_INFORMATION, Protect));
static_assert(offsetof(windows::memory_facts, type) == offsetof(MEMORY_BASIC_INFORMATION, Type));
static_assert(windows::page_read_write == PAGE_READWRITE);
static_assert(windows::view_read_write == (FILE_MAP_READ | FILE_MAP_WRITE));
static_assert(windows::pages_committed == MEM_COMMIT && windows::pages_mapped == MEM_MAPPED);
static_assert(windows::access_synchronize == SYNCHRONIZE);
static_assert(windows::access_event == (SYNCHRONIZE | EVENT_MODIFY_STATE));
static_assert(windows::wait_timed_out == WAIT_TIMEOUT && windows::wait_ended == WAIT_OBJECT_0);
static_assert(windows::already_exists == ERROR_ALREADY_EXISTS);

/// The n-th call from now on fails; sleeps and wakes are counted.
struct shm_failing_sys : netio::shm_windows_sys {
    using real = netio::shm_windows_sys;
    static inline int made = 0;
    static inline int fail_at = 0;
    static inline int waits = 0;

    static bool enter() noexcept {
        if (++made != fail_at) {
            return true;
        }
        ::SetLastError(ERROR_NOT_ENOUGH_MEMORY);
        return false;
    }
    static void* create_section(const wchar_t* name, std::uint64_t count) noexcept {
        return enter() ? real::create_section(name, count) : nullptr;
    }
    static void* open_section(const wchar_t* name) noexcept {
        return enter() ? real::open_section(name) : nullptr;
    }
    static void* map(void* section) noexcept { return enter() ? real::map(section) : nullptr; }
    static bool look_at(const void* view, windows::memory_facts& out) noexcept {
        return enter() && real::look_at(view, out);
    }
    static void* create_event(const wchar_t* name) noexcept {
        return enter() ? real::create_event(name) : nullptr;
    }
    static void* open_event(const wchar_t* name) noexcept {
        return enter() ? real::open_event(name) : nullptr;
    }
    static void* open_process(unsigned long id) noexcept {
        return enter() ? real::open_process(id) : nullptr;
    }
    static void set_event(void* what) noexcept {
        ++waits;
        real::set_event(what);
    }
    static bool wait_for(void* what, unsigned long time_ms) noexcept {
        ++waits;
        return real::wait_for(what, time_ms);
    }
};

using shm_failing_link = netio::basic_shm_link<netio::shm_windows<shm_failing_sys>>;

struct shm_room {
    std::byte at[1000];
    operator netio::mutable_bytes() { return at; }
};

shm_options shm_thousand() {
    shm_options out;
    out.layout = {4096, 1000};
    return out;
}

template <class Link>
bool shm_say(Link& to, std::string_view text) {
    const netio::ring_claim where = to.claim(static_cast<std::uint32_t>(text.size()));
    if (where) {
        std::memcpy(where.room.data(), text.data(), text.size());
        to.commit(where, static_cast<std::uint32_t>(text.size()));
        to.flush();
    }
    return static_cast<bool>(where);
}
template <class Link>
std::string shm_hear(Link& from) {
    const std::string text(netio::as_text(from.peek()));
    if (!text.empty()) {
        from.release();
    }
    return text;
}

DWORD shm_handles() {
    DWORD count = 0;
    ::GetProcessHandleCount(::GetCurrentProcess(), &count);
    return count;
}

std::string shm_text_of(netio::shm_name name) {
    return std::to_string(name.high) + ' ' + std::to_string(name.low);
}

constexpr const char* shm_variable = "NETIO_SHM_PEER";

/// In the child: gives back what comes, until it is killed.
void shm_echo(const char* text) {
    char* rest = nullptr;
    netio::shm_name name;
    name.high = std::strtoull(text, &rest, 10);
    name.low = std::strtoull(rest, nullptr, 10);
    shm_room inbox;
    netio::shm_link link;
    if (link.open(name, inbox, shm_thousand())) {
        while (link.wait(20'000) == shm_event::record) {
            shm_say(link, shm_hear(link));
        }
    }
    ::TerminateProcess(::GetCurrentProcess(), 0);
}

}  // namespace

TEST_CASE("shm windows: another process answers, is woken from its sleep, and its end is noticed") {
    char text[64] = "";
    if (::GetEnvironmentVariableA(shm_variable, text, sizeof(text)) != 0) {
        shm_echo(text);
    }
    shm_room inbox;
    netio::shm_link link;
    REQUIRE(link.create(inbox, shm_thousand()));
    char program[MAX_PATH];
    ::GetModuleFileNameA(nullptr, program, sizeof(program));
    std::string line = '"' + std::string(program) + "\" \"-tc=shm windows: another process*\"";
    ::SetEnvironmentVariableA(shm_variable, shm_text_of(link.handle()).c_str());
    STARTUPINFOA start{};
    start.cb = sizeof(start);
    PROCESS_INFORMATION child{};
    REQUIRE(::CreateProcessA(nullptr, line.data(), nullptr, nullptr, FALSE, 0, nullptr, nullptr,
                             &start, &child) != 0);
    ::SetEnvironmentVariableA(shm_variable, nullptr);
    REQUIRE(link.watch(child.dwProcessId));
    bool right = true;
    for (int trip = 0; right && trip < 300; ++trip) {
        const std::string sent(static_cast<std::size_t>(1 + trip * 3), static_cast<char>(trip));
        right = shm_say(link, sent) && link.wait(20'000) == shm_event::record &&
                shm_hear(link) == sent;
    }
    CHECK(right);
    CHECK(link.peer_epoch() == 1);
    CHECK_FALSE(link.peer_gone());
    ::TerminateProcess(child.hProcess, 1);
    CHECK(link.wait(20'000) == shm_event::peer_gone);
    CHECK(link.peer_gone());
    ::CloseHandle(child.hProcess);
    ::CloseHandle(child.hThread);
}

TEST_CASE("shm windows: two ends of one process, and no call while both are awake") {
    shm_room inbox[2];
    shm_failing_link first;
    shm_failing_link second;
    REQUIRE(first.create(inbox[0], shm_thousand()));
    REQUIRE(second.open(first.handle(), inbox[1], shm_thousand()));
    shm_failing_sys::waits = 0;
    for (int trip = 0; trip < 1000; ++trip) {
        REQUIRE(shm_say(first, std::string(868, 'c')));
        REQUIRE(second.wait(1000) == shm_event::record);
        REQUIRE(shm_hear(second).size() == 868);
        REQUIRE(shm_say(second, "reply"));
        REQUIRE(shm_hear(first) == "reply");
    }
    CHECK(shm_failing_sys::waits == 0);
    CHECK(first.wait(1) == shm_event::none);
    CHECK(shm_failing_sys::waits == 2);  // a sleep, and a look for the peer's process
    second.close();
    CHECK(first.wait(1000) == shm_event::peer_gone);
}

TEST_CASE("shm windows: whichever call of its making fails, no handle is held") {
    shm_room inbox[2];
    netio::shm_link owner;
    REQUIRE(owner.create(inbox[0], shm_thousand()));
    {
        shm_failing_link before;  // loads what stays loaded
        REQUIRE(before.create(inbox[1], shm_thousand()));
    }
    const DWORD handles = shm_handles();
    shm_options options = shm_thousand();
    options.peer_process = ::GetCurrentProcessId();
    for (const bool creates : {true, false}) {
        int failed = 0;
        for (int nth = 1; nth < 20; ++nth) {
            shm_failing_link link;
            shm_failing_sys::made = 0;
            shm_failing_sys::fail_at = nth;
            const netio::os_status made = creates
                                              ? link.create(inbox[1], options)
                                              : link.open(owner.handle(), inbox[1], options);
            if (made) {
                break;
            }
            ++failed;
            CHECK(made.why == error::kernel_memory_empty);
            CHECK_FALSE(link.is_open());
            CHECK(shm_handles() == handles);
        }
        CHECK(failed == 6);
        shm_failing_sys::fail_at = 0;
    }
    CHECK(shm_handles() == handles);
}

TEST_CASE("shm windows: a name of nothing, and pages that are only reserved, are not opened") {
    shm_room inbox;
    netio::shm_link link;
    const DWORD handles = shm_handles();
    CHECK(link.open({1, 2}, inbox, shm_thousand()).os_code == ERROR_FILE_NOT_FOUND);
    const std::wstring name = L"Local\\netio-00000000000000030000000000000004-";
    HANDLE const held[] = {
        ::CreateFileMappingW(INVALID_HANDLE_VALUE, nullptr, PAGE_READWRITE | SEC_RESERVE, 0,
                             1 << 20, (name + L"m").c_str()),
        ::CreateEventW(nullptr, FALSE, FALSE, (name + L"0").c_str()),
        ::CreateEventW(nullptr, FALSE, FALSE, (name + L"1").c_str())};
    CHECK(link.open({3, 4}, inbox, shm_thousand()).why == error::rpc_transport);
    CHECK_FALSE(link.is_open());
    for (HANDLE each : held) {
        ::CloseHandle(each);
    }
    CHECK(shm_handles() == handles);
}

#endif
