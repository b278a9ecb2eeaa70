// Whole zeroed pages of the system, untouched ones costing nothing, and pages nobody may touch.
#ifndef NETIO_TESTS_PAGES_HPP
#define NETIO_TESTS_PAGES_HPP

#include <cstddef>

#if defined(_WIN32)
#include <winsock2.h>

#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace netio_test {

#if defined(_WIN32)
inline std::size_t page_bytes() noexcept {
    SYSTEM_INFO about;
    ::GetSystemInfo(&about);
    return about.dwPageSize;
}
inline void* new_pages(std::size_t count) noexcept {
    return ::VirtualAlloc(nullptr, count, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}
inline void give_pages(void* at, std::size_t) noexcept { ::VirtualFree(at, 0, MEM_RELEASE); }
inline bool forbid_pages(void* at, std::size_t count) noexcept {
    DWORD before = 0;
    return ::VirtualProtect(at, count, PAGE_NOACCESS, &before) != 0;
}
#else
inline std::size_t page_bytes() noexcept {
    return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}
/// Null if there are none.
inline void* new_pages(std::size_t count) noexcept {
    void* const at =
        ::mmap(nullptr, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
}
inline void give_pages(void* at, std::size_t count) noexcept { ::munmap(at, count); }
inline bool forbid_pages(void* at, std::size_t count) noexcept {
    return ::mprotect(at, count, PROT_NONE) == 0;
}
#endif

}  // namespace netio_test

#endif
