// floor 2 · carver.hpp · offsets into one stretch of memory, one after the other
#ifndef NETIO_CARVER_HPP
#define NETIO_CARVER_HPP

#include "src/base.hpp"

NETIO_BEGIN

namespace detail {

/// Bytes from `at` to the next multiple of `align`, 0 if it is one.
inline std::size_t bytes_to_aligned(const std::byte* at, std::size_t align) noexcept {
    return (align - reinterpret_cast<std::uintptr_t>(at) % align) % align;
}

/// Hands out offsets, aligned, one after the other.
class carver {
public:
    constexpr std::size_t take(std::size_t count, std::size_t each, std::size_t align) noexcept {
        used_ = used_ > most - align ? most : (used_ + align - 1) / align * align;
        const std::size_t at = used_;
        used_ = count != 0 && each > (most - used_) / count ? most : used_ + count * each;
        return at;
    }
    constexpr std::size_t used() const noexcept { return used_; }

private:
    // What does not fit into the address space stays this, so no sum ever wraps to a small one.
    static constexpr std::size_t most = static_cast<std::size_t>(-1) / 2;
    std::size_t used_ = 0;
};

}  // namespace detail

NETIO_END

#endif
