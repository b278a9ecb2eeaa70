// What the examples share: the command line, memory sized at run time, signals, threads, two lines.
#ifndef NETIO_EXAMPLES_OPTIONS_HPP
#define NETIO_EXAMPLES_OPTIONS_HPP

#include "netio.hpp"

#include <cstdio>

#if defined(_WIN32)
#include <windows.h>
#else
#include <csignal>
#include <pthread.h>
#include <sys/mman.h>
#endif

namespace example {

/// One flag and where its value goes: a text, an address with its port, or a number in a range.
struct setting {
    std::string_view flag;
    std::string_view* text = nullptr;
    netio::endpoint* address = nullptr;
    std::uint32_t* number = nullptr;
    std::uint32_t least = 0;
    std::uint32_t most = 0;
};

inline int length(std::string_view of) noexcept { return static_cast<int>(of.size()); }

/// One line to standard error that names the thing; always false.
inline bool refuse(const char* program, std::string_view flag, std::string_view value,
                   std::string_view why) noexcept {
    std::fprintf(stderr, "%s: %.*s%s%.*s: %.*s\n", program, length(flag), flag.data(),
                 value.empty() ? "" : " ", length(value), value.data(), length(why), why.data());
    return false;
}

inline bool take_number(const char* program, const setting& into, std::string_view value) noexcept {
    std::uint64_t number = 0;
    bool good = !value.empty() && value.size() <= 10;
    for (const char digit : value) {
        good = good && digit >= '0' && digit <= '9';
        number = number * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    if (!good || number < into.least || number > into.most) {
        char range[64];
        const int count = std::snprintf(range, sizeof(range), "not a number from %u to %u",
                                        into.least, into.most);
        return refuse(program, into.flag, value, {range, static_cast<std::size_t>(count)});
    }
    *into.number = static_cast<std::uint32_t>(number);
    return true;
}

inline bool take_value(const char* program, const setting& into, std::string_view value) noexcept {
    if (into.number != nullptr) {
        return take_number(program, into, value);
    }
    if (into.text != nullptr) {
        *into.text = value;
        return true;
    }
    const netio::result<netio::endpoint> at = netio::parse_endpoint(value);
    if (!at) {
        return refuse(program, into.flag, value, netio::text(at.why));
    }
    *into.address = at.value;
    return true;
}

/// Reads `--flag value` pairs. False after one line about what is wrong with them.
inline bool parse(const char* program, int count, char** words,
                  std::span<const setting> settings) noexcept {
    for (int at = 1; at < count; at += 2) {
        const std::string_view flag = words[at];
        const setting* found = nullptr;
        for (const setting& each : settings) {
            found = each.flag == flag ? &each : found;
        }
        if (found == nullptr) {
            std::fprintf(stderr, "%s: unknown flag %s; there are:", program, words[at]);
            for (const setting& each : settings) {
                std::fprintf(stderr, " %.*s", length(each.flag), each.flag.data());
            }
            std::fputc('\n', stderr);
            return false;
        }
        if (at + 1 == count) {
            return refuse(program, flag, "", "value missing");
        }
        if (!take_value(program, *found, words[at + 1])) {
            return false;
        }
    }
    return true;
}

/// True if `value` is the second of the two words; a line and `good` false if it is neither.
inline bool choose(const char* program, std::string_view flag, std::string_view value,
                   std::string_view first, std::string_view second, bool& good) noexcept {
    if (value != first && value != second) {
        char why[64];
        const int count = std::snprintf(why, sizeof(why), "neither %.*s nor %.*s", length(first),
                                        first.data(), length(second), second.data());
        good = refuse(program, flag, value, {why, static_cast<std::size_t>(count)});
    }
    return value == second;
}

/// Null if the system gives none.
inline void* zeroed_pages(std::size_t byte_count) noexcept {
#if defined(_WIN32)
    return ::VirtualAlloc(nullptr, byte_count, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
    void* const at = ::mmap(nullptr, byte_count, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
#endif
}

/// All-zero pages for a server of these limits, `memory_bytes` of them or, if that is 0, as many as
/// it needs. Empty if the system gives none; the server then says how many are needed.
template <class Backend = netio::default_backend>
netio::storage_view memory_for(const netio::limits& sizes, std::uint32_t memory_bytes) noexcept {
    netio::storage_view box;
    box.sizes = sizes;
    if (netio::wrong_field(sizes) != nullptr) {
        return box;  // the server names it
    }
    const std::size_t byte_count =
        memory_bytes != 0 ? memory_bytes : netio::bytes_needed<Backend>(sizes);
    if (void* const at = zeroed_pages(byte_count)) {
        box.memory = {static_cast<std::byte*>(at), byte_count};
    }
    return box;
}

/// SIGTERM drains, SIGINT stops. Both calls are made for signal handlers. On Windows Ctrl-C stops
/// and Ctrl-Break drains; closing the console ends the process, as its system wants it.
template <class Server>
struct signals {
    inline static Server* server = nullptr;
    inline static std::uint32_t drain_ms = 0;

    static void watch(Server& served, std::uint32_t longest_drain_ms) noexcept {
        server = &served;
        drain_ms = longest_drain_ms;
#if defined(_WIN32)
        ::SetConsoleCtrlHandler(on_key, TRUE);
#else
        struct sigaction act = {};
        act.sa_handler = [](int) { server->drain(drain_ms); };
        ::sigaction(SIGTERM, &act, nullptr);
        act.sa_handler = [](int) { server->stop(); };
        ::sigaction(SIGINT, &act, nullptr);
#endif
    }

#if defined(_WIN32)
    // No lambda: where the system's calls have a convention of their own none becomes a pointer.
    static BOOL WINAPI on_key(DWORD what) {
        if (what != CTRL_C_EVENT && what != CTRL_BREAK_EVENT) {
            return FALSE;  // the process ends when the handlers have returned
        }
        what == CTRL_C_EVENT ? server->stop() : server->drain(drain_ms);
        return TRUE;
    }
#endif
};

/// The one line on start: address, capacity, memory.
template <class Server>
void announce(const char* program, const Server& server, const netio::endpoint& at) noexcept {
    char where[netio::endpoint_text_max];
    netio::format(at, where);
    std::printf("%s: listening on %s, connections %u, workers %u, memory %zu bytes\n", program,
                where, server.sizes().connections_max, server.worker_count(),
                server.memory_bytes());
    std::fflush(stdout);
}

#if defined(_WIN32)
using thread = HANDLE;
template <class Job>
DWORD WINAPI run_job(void* of) {
    static_cast<Job*>(of)->run();
    return 0;
}
template <class Job>
bool start(thread& made, Job& job) noexcept {
    made = ::CreateThread(nullptr, 0, run_job<Job>, &job, 0, nullptr);
    return made != nullptr;
}
inline void join(thread of) noexcept {
    ::WaitForSingleObject(of, INFINITE);
    ::CloseHandle(of);
}
#else
using thread = pthread_t;
template <class Job>
bool start(thread& made, Job& job) noexcept {
    return ::pthread_create(
               &made, nullptr,
               [](void* of) -> void* {
                   static_cast<Job*>(of)->run();
                   return nullptr;
               },
               &job) == 0;
}
inline void join(thread of) noexcept { ::pthread_join(of, nullptr); }
#endif

/// Runs every worker, the first on this thread, until a stop or drain is complete.
template <class Server>
void run(Server& server) noexcept {
    struct job {
        Server* server;
        std::uint32_t worker;
        thread runs;
        bool started;
        void run() noexcept { server->run(worker); }
    };
    static job jobs[255];
    for (std::uint32_t at = 1; at < server.worker_count(); ++at) {
        jobs[at] = {&server, at, {}, false};
        jobs[at].started = start(jobs[at].runs, jobs[at]);
    }
    server.run(0);
    for (std::uint32_t at = 1; at < server.worker_count(); ++at) {
        if (jobs[at].started) {
            join(jobs[at].runs);
        }
    }
}

}  // namespace example

#endif
