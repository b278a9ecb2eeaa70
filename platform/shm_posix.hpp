// floor 6 · shm_posix.hpp · shared memory of POSIX systems: sealed where it can be, futex or naps
#ifndef NETIO_SHM_POSIX_HPP
#define NETIO_SHM_POSIX_HPP

#include "platform/shm_map.hpp"
#include "platform/socket_posix.hpp"

#if NETIO_HAS_POSIX

#include <signal.h>
#include <sys/mman.h>
#if defined(__APPLE__)
#include <sys/stat.h>
#endif
#if defined(__linux__)
#include <poll.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#endif

#if defined(F_ADD_SEALS) && defined(MFD_ALLOW_SEALING)
#define NETIO_HAS_SEALS 1
#else
#define NETIO_HAS_SEALS 0
#endif

NETIO_BEGIN

namespace detail {

/// What every POSIX system has, one function each as in posix_sys.
struct shm_common_sys : posix_sys {
    static int set_size(int of, off_t bytes_count) noexcept {
        return ::ftruncate(of, bytes_count);
    }
    /// By a seek: a structure would have other forms for large files on 32 bits.
    static off_t size_of(int of) noexcept { return ::lseek(of, 0, SEEK_END); }
    static void* map(int of, std::size_t bytes_count) noexcept {
        return ::mmap(nullptr, bytes_count, PROT_READ | PROT_WRITE, MAP_SHARED, of, 0);
    }
    static int unmap(void* what, std::size_t bytes_count) noexcept {
        return ::munmap(what, bytes_count);
    }
    /// Fails where there is none: ESRCH. One that has ended is there until its parent took note.
    static int find_process(int process_id) noexcept { return ::kill(process_id, 0); }
};

#if !defined(__ANDROID__)
/// Memory that has a name for a moment. There are no seals: who has it can make it shorter, and
/// then touching it ends the other process. So the peer has to be vouched for. (macOS sets a size
/// once only, so there it stays.)
struct shm_named_memory : shm_common_sys {
    static constexpr bool sealed = false;
#if defined(__APPLE__)
    /// No seek there: ESPIPE. Whole pages.
    static off_t size_of(int of) noexcept {
        struct stat about;
        return ::fstat(of, &about) == 0 ? about.st_size : -1;
    }
#endif

    static int open_memory() noexcept {
        std::byte random[8];
        if (!fill_random(random)) {
            errno = ENOSYS;
            return -1;
        }
        char name[] = "/netio-0123456789abcdef";    // macOS takes 31 bytes at most
        for (std::size_t at = 0; at < sizeof(random); ++at) {
            const auto octet = std::to_integer<unsigned>(random[at]);
            name[7 + 2 * at] = "0123456789abcdef"[octet >> 4];
            name[8 + 2 * at] = "0123456789abcdef"[octet & 15];
        }
        const int made = ::shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (made >= 0) {
            ::shm_unlink(name);
        }
        return made;
    }
    static int seal(int) noexcept { return 0; }
    static int keeps_size(int) noexcept { return 1; }    // nobody can tell
};
#endif

#if NETIO_HAS_SEALS
/// Memory without a name, that nobody can make shorter or longer once it is sealed.
struct shm_sealed_memory : shm_common_sys {
    static constexpr bool sealed = true;

    static int open_memory() noexcept {
        return ::memfd_create("netio", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
    static int seal(int of) noexcept {
        return ::fcntl(of, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    /// 1 if it does, 0 if not, -1 where it is no such memory at all.
    static int keeps_size(int of) noexcept {
        const int seals = ::fcntl(of, F_GET_SEALS);
        return seals < 0 ? -1 : (seals & F_SEAL_SHRINK) != 0 && pages_stay(of);
    }
#if defined(__linux__)
    /// Pages of a huge size can be sealed, too, but the system may have none left when one is
    /// touched, and that ends the process that touches it.
    static bool pages_stay(int of) noexcept {
        struct statfs found {};
        return ::fstatfs(of, &found) == 0 && found.f_type == 0x01021994;    // TMPFS_MAGIC
    }
#else
    static bool pages_stay(int) noexcept { return true; }
#endif
};
#endif

/// A sleep that nobody can end: naps, and a look at the word between two of them.
template <class Memory>
struct shm_naps : Memory {
    static constexpr std::uint64_t nap_ns = 200'000;

    static bool sleep(shm_word& on, std::uint32_t seen, std::uint64_t time_ns) noexcept {
        for (std::uint64_t left = time_ns; on.load(ordering::relaxed) == seen;) {
            if (left == 0) {
                return true;
            }
            const std::uint64_t now = left < nap_ns ? left : nap_ns;
            const timespec time{0, static_cast<long>(now)};
            ::nanosleep(&time, nullptr);
            left -= now;
        }
        return false;
    }
    static void wake(shm_word&) noexcept {}
};

/// No descriptor for a process: it is asked after by its number, which may become another's.
template <class Base>
struct shm_asks_for_process : Base {
    static int open_process(int) noexcept {
        errno = ENOSYS;
        return -1;
    }
    static bool has_ended(int) noexcept { return false; }
};

#if defined(__linux__)
/// futex(2), of the kind that other processes may wake.
template <class Memory>
struct shm_futex : Memory {
#if defined(SYS_futex)
    // What this call takes are two words of the kernel, whatever the C library's timespec is.
    using time_word = long;
    static constexpr long call = SYS_futex;
#else
    using time_word = std::int64_t;
    static constexpr long call = SYS_futex_time64;
#endif
    static constexpr int wait = 0;       // FUTEX_WAIT
    static constexpr int wake_up = 1;    // FUTEX_WAKE

    static bool sleep(shm_word& on, std::uint32_t seen, std::uint64_t time_ns) noexcept {
        const time_word time[2] = {static_cast<time_word>(time_ns / 1'000'000'000),
                                   static_cast<time_word>(time_ns % 1'000'000'000)};
        return ::syscall(call, &on, wait, seen, time, nullptr, 0) != 0 && errno == ETIMEDOUT;
    }
    static void wake(shm_word& on) noexcept {
        ::syscall(call, &on, wake_up, 1, nullptr, nullptr, 0);
    }
};

/// pidfd_open(2), Linux 5.3: a descriptor that stays this process's, whoever has its number later.
template <class Base>
struct shm_watches_process : Base {
    static int open_process(int process_id) noexcept {
#if defined(SYS_pidfd_open)
        return static_cast<int>(::syscall(SYS_pidfd_open, process_id, 0));
#else
        static_cast<void>(process_id);
        errno = ENOSYS;
        return -1;
#endif
    }
    static bool has_ended(int process) noexcept {
        pollfd look{process, POLLIN, 0};
        return ::poll(&look, 1, 0) == 1;
    }
};
#endif

}  // namespace detail

#if defined(__linux__) && NETIO_HAS_SEALS
using shm_sys = detail::shm_watches_process<detail::shm_futex<detail::shm_sealed_memory>>;
#elif NETIO_HAS_SEALS
using shm_sys = detail::shm_asks_for_process<detail::shm_naps<detail::shm_sealed_memory>>;
#else
using shm_sys = detail::shm_asks_for_process<detail::shm_naps<detail::shm_named_memory>>;
#endif

/// Meets shm_platform. A handle is a descriptor: another process gets it by inheriting it or by
/// `pass_handle`.
template <class Sys = shm_sys>
struct shm_posix {
    using handle = socket_handle;

    struct segment {
        std::byte* memory = nullptr;
        std::size_t bytes_count = 0;
        int descriptor = -1;
    };
    struct watch {
        int process_id = 0;
        int descriptor = -1;    // none where it has ended already, or where there are none
        bool ended = false;
    };

    static os_status create(segment& out, std::uint64_t bytes_count) noexcept {
        if (bytes_count > bytes_most) {
            return {error::option_invalid, 0};
        }
        const int made = Sys::open_memory();
        if (made < 0) {
            return detail::status_of(errno);
        }
        os_status status{};
        if (Sys::set_size(made, static_cast<off_t>(bytes_count)) != 0 || Sys::seal(made) != 0) {
            status = detail::status_of(errno);
        } else {
            status = map(out, made, static_cast<std::size_t>(bytes_count));
        }
        if (!status) {
            Sys::close(made);
        }
        return status;
    }
    static os_status open(segment& out, handle from) noexcept {
        const auto descriptor = static_cast<int>(from);
        if (Sys::keeps_size(descriptor) != 1) {
            return {error::rpc_transport, 0};
        }
        const off_t size = Sys::size_of(descriptor);
        if (size < 0) {
            return detail::status_of(errno);
        }
        if (static_cast<std::uint64_t>(size) > bytes_most || size == 0) {
            return {error::rpc_transport, 0};
        }
        return map(out, descriptor, static_cast<std::size_t>(size));
    }
    static void close(segment& of, bool keeps_handle) noexcept {
        Sys::unmap(of.memory, of.bytes_count);
        if (!keeps_handle) {
            Sys::close(of.descriptor);
        }
        of = {};
    }
    static mutable_bytes memory_of(segment& of) noexcept { return {of.memory, of.bytes_count}; }
    static handle handle_of(segment& of) noexcept { return of.descriptor; }

    static bool sleep(segment&, std::uint32_t, shm_word& on, std::uint32_t seen,
                      std::uint64_t time_ns) noexcept {
        return Sys::sleep(on, seen, time_ns);
    }
    static void wake(segment&, std::uint32_t, shm_word& on) noexcept { Sys::wake(on); }

    static os_status start_watch(watch& out, std::uint32_t process_id) noexcept {
        if (process_id == 0 || process_id > INT_MAX) {    // to kill(2), others mean groups
            return {error::option_invalid, 0};
        }
        out = {static_cast<int>(process_id), -1, false};
        out.descriptor = Sys::open_process(out.process_id);
        const int code = out.descriptor < 0 ? errno : 0;
        out.ended = code == ESRCH;
        // An older kernel has no such call, and a sandbox may forbid it.
        const bool asks = code == ENOSYS || code == EPERM || code == EACCES;
        return code == 0 || out.ended || asks ? os_status{} : detail::status_of(code);
    }
    static bool has_ended(const watch& over) noexcept {
        if (over.process_id == 0 || over.ended) {
            return over.ended;
        }
        return over.descriptor >= 0
                   ? Sys::has_ended(over.descriptor)
                   : Sys::find_process(over.process_id) != 0 && errno == ESRCH;
    }
    static void end_watch(watch& over) noexcept {
        if (over.descriptor >= 0) {
            Sys::close(over.descriptor);
        }
        over = {};
    }

    static std::uint32_t process_id() noexcept {
        return static_cast<std::uint32_t>(Sys::process_id());
    }
    static std::uint64_t now_ns() noexcept { return Sys::now_ns(); }
    static void relax() noexcept { detail::relax_processor(); }

private:
    /// What a layout can come to, and a system of 32 bits can tell the size of.
    static constexpr std::uint64_t bytes_most =
        sizeof(std::size_t) > 4 && sizeof(off_t) > 4
            ? shm_layout{shm_layout::ring_bytes_most}.segment_bytes()
            : std::uint64_t{INT32_MAX};

    static os_status map(segment& out, int descriptor, std::size_t bytes_count) noexcept {
        void* const at = Sys::map(descriptor, bytes_count);
        if (at == MAP_FAILED) {
            return detail::status_of(errno);
        }
        out = {static_cast<std::byte*>(at), bytes_count, descriptor};
        return {};
    }
};

using default_shm = shm_posix<>;
static_assert(shm_platform<default_shm>);

NETIO_END

#endif

#endif
