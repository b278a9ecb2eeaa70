// floor 5 · shm_map.hpp · what a system must offer for a segment that two processes share
#ifndef NETIO_SHM_MAP_HPP
#define NETIO_SHM_MAP_HPP

#include "platform/contract.hpp"
#include "src/shm_ring.hpp"

NETIO_BEGIN

/// The word that a side sleeps on.
using shm_word = detail::atomic<std::uint32_t>;

/// The seam to a system's shared memory. All functions are static.
///
/// `handle` names a segment to another process, in whatever way the system has. `segment` is one
/// that is mapped, `watch` a look-out for the end of a process; both are without anything when new.
/// On any error nothing of a call is kept, and a handle given to it stays the caller's.
template <class P>
concept shm_platform = requires(typename P::segment& of, typename P::watch& over,
                                const typename P::watch& seen, typename P::handle handle,
                                shm_word& word, std::uint32_t number, std::uint64_t time_ns) {
    /// A segment of so many bytes, all zero, that no other process has.
    { P::create(of, time_ns) } noexcept -> std::same_as<os_status>;
    /// One that another process made; what memory it is, is looked at: it has to stay as long as it
    /// is, or touching it would end this process. `of` has the handle then.
    { P::open(of, handle) } noexcept -> std::same_as<os_status>;
    { P::close(of, bool{}) } noexcept;    // true: the handle stays open
    { P::memory_of(of) } noexcept -> std::same_as<mutable_bytes>;
    { P::handle_of(of) } noexcept -> std::same_as<typename P::handle>;

    /// sleep(of, side, word, seen, time_ns): while the word of that side is what was seen, at most
    /// so long; true: until the end. It may return early for no reason.
    { P::sleep(of, number, word, number, time_ns) } noexcept -> std::same_as<bool>;
    /// wake(of, side, word): ends the sleep of that side, the present one or, since its word has
    /// changed, the one that is about to begin.
    { P::wake(of, number, word) } noexcept;

    /// Looks out for the end of a process from now on; it may have ended already.
    { P::start_watch(over, number) } noexcept -> std::same_as<os_status>;
    { P::has_ended(seen) } noexcept -> std::same_as<bool>;
    { P::end_watch(over) } noexcept;

    /// Never 0.
    { P::process_id() } noexcept -> std::same_as<std::uint32_t>;
    { P::now_ns() } noexcept -> std::same_as<std::uint64_t>;
    /// Between two looks at a word: a hint to the processor.
    { P::relax() } noexcept;
};

#if !NETIO_PLATFORM
struct no_shm;
using default_shm = no_shm;
#endif

namespace detail {

inline void relax_processor() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

}  // namespace detail

NETIO_END

#endif
