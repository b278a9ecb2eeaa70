// floor 1 · atomic.hpp · words that threads and signal handlers share
#ifndef NETIO_ATOMIC_HPP
#define NETIO_ATOMIC_HPP

#include "src/base.hpp"

#if !defined(__GNUC__)
#include <atomic>
#endif

NETIO_BEGIN

namespace detail {

// <atomic> was a quarter of what all standard headers cost a compiler. What is needed of it is a
// thin layer over the builtins that its own functions are; sanitizers know those, too.
#if defined(__GNUC__)

enum class ordering : int {
    relaxed = __ATOMIC_RELAXED,
    acquire = __ATOMIC_ACQUIRE,
    release = __ATOMIC_RELEASE,
    acquire_release = __ATOMIC_ACQ_REL,
    one_order = __ATOMIC_SEQ_CST  // one order of all such operations, the same for everybody
};

/// As std::atomic, whose functions have these names, orders and results. All-zero is zero.
template <class T>
class atomic {
public:
    static constexpr bool is_always_lock_free = __atomic_always_lock_free(sizeof(T), nullptr);

    constexpr atomic() noexcept = default;
    constexpr atomic(T first) noexcept : value_(first) {}
    atomic(const atomic&) = delete;
    atomic& operator=(const atomic&) = delete;

    T load(ordering how = ordering::one_order) const noexcept {
        return __atomic_load_n(&value_, static_cast<int>(how));
    }
    void store(T wanted, ordering how = ordering::one_order) noexcept {
        __atomic_store_n(&value_, wanted, static_cast<int>(how));
    }
    T exchange(T wanted, ordering how = ordering::one_order) noexcept {
        return __atomic_exchange_n(&value_, wanted, static_cast<int>(how));
    }
    T fetch_add(T more, ordering how = ordering::one_order) noexcept {
        return __atomic_fetch_add(&value_, more, static_cast<int>(how));
    }
    T fetch_sub(T less, ordering how = ordering::one_order) noexcept {
        return __atomic_fetch_sub(&value_, less, static_cast<int>(how));
    }
    T fetch_or(T bits, ordering how = ordering::one_order) noexcept {
        return __atomic_fetch_or(&value_, bits, static_cast<int>(how));
    }
    T fetch_and(T bits, ordering how = ordering::one_order) noexcept {
        return __atomic_fetch_and(&value_, bits, static_cast<int>(how));
    }
    /// False, and what was found is in `seen`, if that is another; or for no reason at all.
    bool compare_exchange_weak(T& seen, T wanted, ordering how = ordering::one_order) noexcept {
        return __atomic_compare_exchange_n(&value_, &seen, wanted, true, static_cast<int>(how),
                                           static_cast<int>(on_failure(how)));
    }

private:
    /// A failure writes nothing, so nothing is released.
    static constexpr ordering on_failure(ordering how) noexcept {
        return how == ordering::acquire_release ? ordering::acquire
               : how == ordering::release       ? ordering::relaxed
                                                : how;
    }

    // On 32 bits a 64-bit number is aligned to 4 only, and may lie across two lines of the cache.
    alignas(sizeof(T) > alignof(T) ? sizeof(T) : alignof(T)) T value_{};
};

#else

struct ordering {
    static constexpr std::memory_order relaxed = std::memory_order_relaxed;
    static constexpr std::memory_order acquire = std::memory_order_acquire;
    static constexpr std::memory_order release = std::memory_order_release;
    static constexpr std::memory_order acquire_release = std::memory_order_acq_rel;
    static constexpr std::memory_order one_order = std::memory_order_seq_cst;
};
template <class T>
using atomic = std::atomic<T>;

#endif

}  // namespace detail

NETIO_END

#endif
