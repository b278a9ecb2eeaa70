// floor 7 · shm_windows.hpp · shared memory of Windows: a named section, and an event for each side
#ifndef NETIO_SHM_WINDOWS_HPP
#define NETIO_SHM_WINDOWS_HPP

#include "platform/iocp.hpp"
#include "platform/shm_map.hpp"
#include "platform/socket_windows.hpp"
#include "platform/windows_api.hpp"

#if NETIO_HAS_IOCP

NETIO_BEGIN

/// The system calls of a segment; null, false or 0 is a failure. Tests put theirs in place of them.
struct shm_windows_sys : windows_sys {
    /// New, or it fails: a name that is there already would be somebody else's memory.
    static void* create_section(const wchar_t* name, std::uint64_t bytes_count) noexcept {
        void* const paging_file = reinterpret_cast<void*>(~std::uintptr_t{0});
        return created(::CreateFileMappingW(paging_file, nullptr, detail::windows::page_read_write,
                                            static_cast<unsigned long>(bytes_count >> 32),
                                            static_cast<unsigned long>(bytes_count & 0xFFFFFFFF),
                                            name));
    }
    static void* open_section(const wchar_t* name) noexcept {
        return ::OpenFileMappingW(detail::windows::view_read_write, 0, name);
    }
    static void* map(void* section) noexcept {
        return ::MapViewOfFile(section, detail::windows::view_read_write, 0, 0, 0);
    }
    static void unmap(void* view) noexcept { ::UnmapViewOfFile(view); }
    static bool look_at(const void* view, detail::windows::memory_facts& out) noexcept {
        return ::VirtualQuery(view, reinterpret_cast<::_MEMORY_BASIC_INFORMATION*>(&out),
                              sizeof(out)) != 0;
    }
    /// An event that one wait takes back.
    static void* create_event(const wchar_t* name) noexcept {
        return created(::CreateEventW(nullptr, 0, 0, name));
    }
    static void* open_event(const wchar_t* name) noexcept {
        return ::OpenEventW(detail::windows::access_event, 0, name);
    }
    static void set_event(void* what) noexcept { ::SetEvent(what); }
    /// False: not within that time.
    static bool wait_for(void* what, unsigned long time_ms) noexcept {
        return ::WaitForSingleObject(what, time_ms) != detail::windows::wait_timed_out;
    }
    static void* open_process(unsigned long process_id) noexcept {
        return ::OpenProcess(detail::windows::access_synchronize, 0, process_id);
    }
    static void close_handle(void* what) noexcept { ::CloseHandle(what); }
    static int last_code() noexcept { return static_cast<int>(::GetLastError()); }
    static unsigned long process_id() noexcept { return ::GetCurrentProcessId(); }

private:
    static void* created(void* made) noexcept {
        if (made != nullptr && last_code() == detail::windows::already_exists) {
            ::CloseHandle(made);
            return nullptr;
        }
        return made;
    }
};

/// Names a segment: drawn from the system's random numbers, so nobody else can have it first. Any
/// way to tell another process of the same user and session will do.
struct shm_name {
    std::uint64_t high = 0;
    std::uint64_t low = 0;
};

/// Meets shm_platform. WaitOnAddress serves one process only, so each side has an event.
template <class Sys = shm_windows_sys>
struct shm_windows {
    using handle = shm_name;

    struct segment {
        std::byte* memory = nullptr;
        std::size_t bytes_count = 0;
        void* section = nullptr;
        void* events[2] = {};
        shm_name name{};
    };
    struct watch {
        void* process = nullptr;
        bool ended = false;
    };

    static os_status create(segment& out, std::uint64_t bytes_count) noexcept {
        segment made;
        if (bytes_count > PTRDIFF_MAX) {
            return {error::option_invalid, 0};
        }
        if (!Sys::fill_random({reinterpret_cast<std::byte*>(&made.name), sizeof(made.name)})) {
            return {error::not_supported, 0};
        }
        made.section = Sys::create_section(object_name(made.name, 'm').text, bytes_count);
        bool good = made.section != nullptr;
        for (std::uint32_t side = 0; good && side < 2; ++side) {
            made.events[side] = Sys::create_event(object_name(made.name, name_of(side)).text);
            good = made.events[side] != nullptr;
        }
        return finish(out, made, good, bytes_count);
    }
    static os_status open(segment& out, handle from) noexcept {
        segment made;
        made.name = from;
        made.section = Sys::open_section(object_name(from, 'm').text);
        bool good = made.section != nullptr;
        for (std::uint32_t side = 0; good && side < 2; ++side) {
            made.events[side] = Sys::open_event(object_name(from, name_of(side)).text);
            good = made.events[side] != nullptr;
        }
        return finish(out, made, good, 1);
    }
    /// The name is the caller's at any time: it holds nothing.
    static void close(segment& of, bool) noexcept {
        if (of.memory != nullptr) {
            Sys::unmap(of.memory);
        }
        for (void* const each : {of.section, of.events[0], of.events[1]}) {
            if (each != nullptr) {
                Sys::close_handle(each);
            }
        }
        of = {};
    }
    static mutable_bytes memory_of(segment& of) noexcept { return {of.memory, of.bytes_count}; }
    static handle handle_of(segment& of) noexcept { return of.name; }

    /// An event that is set stays so until a wait, so the word need not be looked at here.
    static bool sleep(segment& of, std::uint32_t side, shm_word&, std::uint32_t,
                      std::uint64_t time_ns) noexcept {
        return !Sys::wait_for(of.events[side],
                              static_cast<unsigned long>((time_ns + 999'999) / 1'000'000));
    }
    static void wake(segment& of, std::uint32_t side, shm_word&) noexcept {
        Sys::set_event(of.events[side]);
    }

    static os_status start_watch(watch& out, std::uint32_t process_id) noexcept {
        out = {Sys::open_process(process_id), false};
        if (out.process != nullptr) {
            return {};
        }
        const int code = Sys::last_code();
        out.ended = code == detail::windows::parameter_wrong;    // nobody has that number
        return out.ended ? os_status{} : detail::status_of(code);
    }
    static bool has_ended(const watch& over) noexcept {
        return over.process != nullptr ? Sys::wait_for(over.process, 0) : over.ended;
    }
    static void end_watch(watch& over) noexcept {
        if (over.process != nullptr) {
            Sys::close_handle(over.process);
        }
        over = {};
    }

    static std::uint32_t process_id() noexcept {
        return static_cast<std::uint32_t>(Sys::process_id());
    }
    static std::uint64_t now_ns() noexcept { return Sys::now_ns(); }
    static void relax() noexcept { detail::relax_processor(); }

private:
    struct object_name {
        object_name(const shm_name& of, char part) noexcept {
            put("Local\\netio-");
            for (const std::uint64_t half : {of.high, of.low}) {
                for (int shift = 60; shift >= 0; shift -= 4) {
                    put("0123456789abcdef"[half >> shift & 15]);
                }
            }
            put('-');
            put(part);
        }
        void put(char letter) noexcept { text[count++] = static_cast<wchar_t>(letter); }
        void put(const char* letters) noexcept {
            for (; *letters != '\0'; ++letters) {
                put(*letters);
            }
        }
        wchar_t text[64] = {};
        std::size_t count = 0;
    };
    static char name_of(std::uint32_t side) noexcept { return side == 0 ? '0' : '1'; }

    /// Maps it and looks at what it is: pages that are only reserved would end this process when
    /// touched. A section neither shrinks nor loses pages as long as it is mapped.
    static os_status finish(segment& out, segment& made, bool good,
                            std::uint64_t least_bytes) noexcept {
        made.memory = good ? static_cast<std::byte*>(Sys::map(made.section)) : nullptr;
        detail::windows::memory_facts found{};
        os_status status{};
        if (made.memory == nullptr || !Sys::look_at(made.memory, found)) {
            const int code = Sys::last_code();
            status = code != 0 ? detail::status_of(code) : os_status{error::os_failure, 0};
        } else if (found.state != detail::windows::pages_committed ||
                   found.type != detail::windows::pages_mapped ||
                   found.protection != detail::windows::page_read_write ||
                   found.byte_count < least_bytes) {
            status.why = error::rpc_transport;
        }
        made.bytes_count = static_cast<std::size_t>(found.byte_count);
        if (status) {
            out = made;
        } else {
            close(made, false);
        }
        return status;
    }
};

using default_shm = shm_windows<>;
static_assert(shm_platform<default_shm>);

NETIO_END

#endif

#endif
