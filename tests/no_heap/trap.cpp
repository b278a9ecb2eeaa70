// The trap and main(): shows in child processes that each planted call trips it, then runs the
// program's scenario. See trap.hpp.
#include "tests/no_heap/trap.hpp"

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <new>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr int tripped_exit_code = 99;
constexpr std::size_t header_bytes = 16;

std::atomic<bool> armed{false};
std::atomic<std::size_t> used_bytes{0};
std::atomic<std::size_t> let_through_count{0};
thread_local int exempt_depth = 0;
alignas(4096) unsigned char arena[8 << 20];

void put(int descriptor, const char* text) noexcept {
    const ssize_t written = write(descriptor, text, std::strlen(text));
    static_cast<void>(written);
}

/// Ends the program if the trap is armed and this thread is not exempt.
void pass(const char* called) noexcept {
    if (armed.load(std::memory_order_relaxed) && exempt_depth == 0) {
        char line[64] = "no_heap: ";  // one write, so that a reader gets it whole
        put(STDERR_FILENO, std::strcat(std::strcat(line, called), " was called\n"));
        _exit(tripped_exit_code);
    }
    let_through_count.fetch_add(1, std::memory_order_relaxed);
}

/// What is let through comes from here and is never given back; the size stands before it.
void* take(std::size_t byte_count, std::size_t alignment = header_bytes) noexcept {
    const std::size_t slack = alignment < header_bytes ? header_bytes : alignment;
    const std::size_t whole = (byte_count + slack + header_bytes + 15) & ~std::size_t{15};
    const std::size_t at = used_bytes.fetch_add(whole, std::memory_order_relaxed);
    if (byte_count > sizeof(arena) || at > sizeof(arena) - whole) {
        put(STDERR_FILENO, "no_heap: the arena for exempt calls is full\n");
        _exit(1);
    }
    const auto first = reinterpret_cast<std::uintptr_t>(arena + at + header_bytes);
    const std::uintptr_t aligned = (first + slack - 1) / slack * slack;
    auto* memory = arena + (aligned - reinterpret_cast<std::uintptr_t>(arena));
    std::memcpy(memory - header_bytes, &byte_count, sizeof(byte_count));
    return memory;
}

// Before the constructors of the program's own objects, so they are under the trap too.
__attribute__((constructor(101))) void arm() noexcept {
    armed.store(true, std::memory_order_relaxed);
}

struct early_witness {
    bool saw_armed = armed.load(std::memory_order_relaxed);
};
early_witness witness;

struct exemption {
    exemption() noexcept { ++exempt_depth; }
    ~exemption() { --exempt_depth; }
};

}  // namespace

extern "C" {

void* malloc(std::size_t byte_count) noexcept {
    pass("malloc");
    return take(byte_count);
}
void free(void* memory) noexcept {
    if (memory != nullptr) {
        pass("free");
    }
}
void* calloc(std::size_t count, std::size_t each_bytes) noexcept {
    pass("calloc");
    return take(count * each_bytes);  // the arena starts zeroed and nothing is used twice
}
void* realloc(void* memory, std::size_t byte_count) noexcept {
    pass("realloc");
    void* grown = take(byte_count);
    if (memory != nullptr) {
        std::size_t had = 0;
        std::memcpy(&had, static_cast<unsigned char*>(memory) - header_bytes, sizeof(had));
        std::memcpy(grown, memory, had < byte_count ? had : byte_count);
    }
    return grown;
}
void* reallocarray(void* memory, std::size_t count, std::size_t each_bytes) noexcept {
    pass("reallocarray");
    return realloc(memory, count * each_bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t byte_count) noexcept {
    pass("aligned_alloc");
    return take(byte_count, alignment);
}
void* memalign(std::size_t alignment, std::size_t byte_count) noexcept {
    pass("memalign");
    return take(byte_count, alignment);
}
int posix_memalign(void** out, std::size_t alignment, std::size_t byte_count) noexcept {
    pass("posix_memalign");
    *out = take(byte_count, alignment);
    return 0;
}
void* valloc(std::size_t byte_count) noexcept {
    pass("valloc");
    return take(byte_count, 4096);
}
void* pvalloc(std::size_t byte_count) noexcept {
    pass("pvalloc");
    return take(byte_count, 4096);
}

}  // extern "C"

void* operator new(std::size_t byte_count) {
    pass("operator new");
    return take(byte_count);
}
void* operator new[](std::size_t byte_count) {
    pass("operator new[]");
    return take(byte_count);
}
void* operator new(std::size_t byte_count, const std::nothrow_t&) noexcept {
    pass("operator new");
    return take(byte_count);
}
void* operator new[](std::size_t byte_count, const std::nothrow_t&) noexcept {
    pass("operator new[]");
    return take(byte_count);
}
void* operator new(std::size_t byte_count, std::align_val_t alignment) {
    pass("operator new");
    return take(byte_count, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t byte_count, std::align_val_t alignment) {
    pass("operator new[]");
    return take(byte_count, static_cast<std::size_t>(alignment));
}
void operator delete(void*) noexcept {
    pass("operator delete");
}
void operator delete[](void*) noexcept {
    pass("operator delete[]");
}
void operator delete(void*, std::size_t) noexcept {
    pass("operator delete");
}
void operator delete[](void*, std::size_t) noexcept {
    pass("operator delete[]");
}
void operator delete(void*, std::align_val_t) noexcept {
    pass("operator delete");
}
void operator delete[](void*, std::align_val_t) noexcept {
    pass("operator delete[]");
}
void operator delete(void*, std::size_t, std::align_val_t) noexcept {
    pass("operator delete");
}
void operator delete[](void*, std::size_t, std::align_val_t) noexcept {
    pass("operator delete[]");
}

namespace no_heap {

int check(const char* name, bool holds) noexcept {
    char line[256] = {};
    std::strcat(line, holds ? "ok " : "not ok ");
    std::strncat(line, name, sizeof(line) - 16);
    put(STDOUT_FILENO, std::strcat(line, "\n"));
    return holds ? 0 : 1;
}

int start_thread(pthread_t& thread, void* (*body)(void*), void* argument) noexcept {
    const exemption thread_creation;
    return pthread_create(&thread, nullptr, body, argument);
}

int join_thread(pthread_t thread) noexcept {
    const exemption thread_creation;
    return pthread_join(thread, nullptr);
}

std::size_t exempt_count() noexcept {
    return let_through_count.load(std::memory_order_relaxed);
}

}  // namespace no_heap

namespace {

// Out of the optimiser's sight: it may drop a pair of allocation and release.
void* volatile kept = nullptr;
volatile std::size_t some_bytes = 100;

void* do_nothing(void* argument) {
    return argument;
}

struct plant {
    const char* what;
    const char* caught;  // what the trap names
    void (*call)();
};

const plant plants[] = {
    {"malloc", "malloc", [] { kept = std::malloc(some_bytes); }},
    {"calloc", "calloc", [] { kept = std::calloc(some_bytes, 1); }},
    {"realloc", "realloc", [] { kept = std::realloc(kept, some_bytes); }},
    {"reallocarray", "reallocarray", [] { kept = reallocarray(kept, some_bytes, 2); }},
    {"aligned_alloc", "aligned_alloc", [] { kept = std::aligned_alloc(64, some_bytes); }},
    {"memalign", "memalign", [] { kept = memalign(64, some_bytes); }},
    {"posix_memalign", "posix_memalign",
     [] {
         void* out = nullptr;
         static_cast<void>(posix_memalign(&out, 64, some_bytes));
     }},
    {"valloc", "valloc", [] { kept = valloc(some_bytes); }},
    {"pvalloc", "pvalloc", [] { kept = pvalloc(some_bytes); }},
    {"free", "free", [] { std::free(arena + header_bytes); }},
    {"new", "operator new", [] { kept = ::operator new(some_bytes); }},
    {"aligned new", "operator new",
     [] { kept = ::operator new(some_bytes, std::align_val_t{64}); }},
    {"new without throwing", "operator new",
     [] { kept = ::operator new(some_bytes, std::nothrow); }},
    {"new of an array", "operator new[]", [] { kept = ::operator new[](some_bytes); }},
    {"delete", "operator delete", [] { ::operator delete(arena + header_bytes); }},
    {"delete of an array", "operator delete[]", [] { ::operator delete[](arena + header_bytes); }},
    // What allocates behind the caller's back.
    {"string", "operator new", [] { kept = std::string(some_bytes, 'a').data(); }},
    {"strdup", "malloc", [] { kept = strdup("text"); }},
    {"fopen", "malloc", [] { kept = std::fopen("netio.hpp", "r"); }},
    {"printf", "malloc", [] { std::printf("text\n"); }},
    {"throw", "malloc", [] { throw 1; }},
    {"thread of its own", "calloc",
     [] {
         pthread_t thread;
         pthread_create(&thread, nullptr, do_nothing, nullptr);
     }},
};

/// Runs one plant in a child: it must end with the trap's exit code and the trap's line.
bool trips(const plant& planted) noexcept {
    char wanted[64] = "no_heap: ";
    std::strcat(std::strcat(wanted, planted.caught), " was called\n");
    char said[256] = {};
    int ends[2] = {};
    if (pipe(ends) != 0) {
        return false;
    }
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        planted.call();
        _exit(0);
    }
    close(ends[1]);
    const ssize_t got = read(ends[0], said, sizeof(said) - 1);
    close(ends[0]);
    int status = 0;
    const bool ended = child > 0 && waitpid(child, &status, 0) == child;
    return ended && got > 0 && WIFEXITED(status) && WEXITSTATUS(status) == tripped_exit_code &&
           std::strcmp(said, wanted) == 0;
}

}  // namespace

int main() {
    int failed_count = no_heap::check("no_heap: armed before main", witness.saw_armed);
    for (const plant& planted : plants) {
        char name[64] = "no_heap: trips on a planted ";
        failed_count += no_heap::check(std::strcat(name, planted.what), trips(planted));
    }
    pthread_t thread;
    const bool started = no_heap::start_thread(thread, do_nothing, nullptr) == 0;
    failed_count += no_heap::check("no_heap: creating a thread is exempt",
                                   started && no_heap::join_thread(thread) == 0);
    failed_count += scenario();
    // Not exit(): what the libraries registered may release what they took before arming.
    _exit(failed_count == 0 ? 0 : 1);
}
