// A Cortex-M board from reset to main and out again, for tests/bare/main.cpp under
// `qemu-system-arm -M mps2-an386`: vector table, reset code, and ARM's semihosting for text and the
// exit code. Nothing of a C library's start is used.
#include <cstddef>
#include <cstdint>

int main();

extern "C" {
extern std::uint32_t bare_stack_end[];
extern std::uint32_t bare_data_load[];
extern std::uint32_t bare_data_begin[];
extern std::uint32_t bare_data_end[];
extern std::uint32_t bare_zero_begin[];
extern std::uint32_t bare_zero_end[];
void bare_say(const char* text);
[[noreturn]] void bare_exit(int exit_code);
[[noreturn]] void bare_reset();
[[noreturn]] void bare_fault();
}

namespace {

/// Asks the debugger, or qemu in its place.
std::uint32_t semihosting(std::uint32_t operation, const void* argument) {
    register std::uint32_t r0 __asm__("r0") = operation;
    register const void* r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

using handler = void (*)();

/// Where the processor starts, and where each of its own exceptions goes.
[[gnu::section(".vectors"), gnu::used]] const struct {
    std::uint32_t* stack;
    handler handlers[15];
} vectors = {
    bare_stack_end,
    {bare_reset, bare_fault, bare_fault, bare_fault, bare_fault, bare_fault, nullptr, nullptr,
     nullptr, nullptr, bare_fault, bare_fault, nullptr, bare_fault, bare_fault}};

}  // namespace

void bare_say(const char* text) {
    constexpr std::uint32_t write_text = 0x04;
    semihosting(write_text, text);
}

void bare_exit(int exit_code) {
    constexpr std::uint32_t exit_extended = 0x20;
    const std::uint32_t reason[2] = {0x20026, static_cast<std::uint32_t>(exit_code)};
    for (;;) {
        semihosting(exit_extended, reason);
    }
}

void bare_fault() {
    bare_say("not ok bare: the processor faulted\n");
    bare_exit(3);
}

void bare_reset() {
    const std::uint32_t* from = bare_data_load;
    for (std::uint32_t* to = bare_data_begin; to != bare_data_end; ++to) {
        *to = *from++;
    }
    for (std::uint32_t* to = bare_zero_begin; to != bare_zero_end; ++to) {
        *to = 0;
    }
    bare_exit(main());
}

// No library gives these to a program without a system. None may be reached.
extern "C" {
[[noreturn]] void abort() {
    bare_say("not ok bare: abort was called\n");
    bare_exit(4);
}
void* __dso_handle = nullptr;
}
