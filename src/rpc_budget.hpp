// floor 4 · rpc_budget.hpp · what values weigh, what may be spent, which paths are inside a scope
#ifndef NETIO_RPC_BUDGET_HPP
#define NETIO_RPC_BUDGET_HPP

#include "src/envelope.hpp"

NETIO_BEGIN

namespace rpc {

/// What a budget looks at in arguments or a result.
struct weight {
    std::uint64_t bytes = 0;         ///< on the wire, all together
    std::uint64_t nodes = 0;         ///< values, those inside of lists and maps included
    std::uint64_t value_bytes = 0;   ///< of the largest argument
    std::uint32_t depth = 0;         ///< levels of the deepest value, 1 for one without items
    std::uint32_t array_count = 0;   ///< items of the longest list or map

    /// Of both together.
    constexpr void add(const weight& more) noexcept {
        bytes += more.bytes;
        nodes += more.nodes;
        value_bytes = value_bytes > more.value_bytes ? value_bytes : more.value_bytes;
        depth = depth > more.depth ? depth : more.depth;
        array_count = array_count > more.array_count ? array_count : more.array_count;
    }
};

/// Is every field of `narrow` at most that of `wide`?
constexpr bool within(const budget& narrow, const budget& wide) noexcept {
    return narrow.calls_max <= wide.calls_max && narrow.bytes_max <= wide.bytes_max &&
           narrow.wall_ms_max <= wide.wall_ms_max && narrow.nodes_max <= wide.nodes_max &&
           narrow.depth_max <= wide.depth_max && narrow.array_max <= wide.array_max &&
           narrow.value_bytes_max <= wide.value_bytes_max;
}

/// Components between dots, none of them empty.
constexpr bool path_valid(std::string_view path) noexcept {
    char before = '.';
    for (const char letter : path) {
        if (letter == '.' && before == '.') {
            return false;
        }
        before = letter;
    }
    return before != '.';
}

/// Is `path` the scope itself, or below it? "a.b" holds "a.b" and "a.b.c", not "a.bc" and not "a".
/// A path with an empty component is in no scope. Linear in the path.
constexpr bool path_inside(std::string_view scope, std::string_view path) noexcept {
    return path_valid(path) && path.starts_with(scope) &&
           (path.size() == scope.size() || path[scope.size()] == '.');
}

namespace detail {

/// A budget and what was spent of it so far.
struct account {
    budget most;
    std::uint64_t calls;
    std::uint64_t bytes;

    /// Is there enough left for so many more calls that weigh so much?
    constexpr bool affords(std::uint64_t more_calls, const weight& more) const noexcept {
        return most.calls_max - calls >= more_calls && most.bytes_max - bytes >= more.bytes &&
               more.nodes <= most.nodes_max && more.depth <= most.depth_max &&
               more.array_count <= most.array_max && more.value_bytes <= most.value_bytes_max;
    }
    constexpr void charge(std::uint64_t more_calls, const weight& more) noexcept {
        calls += more_calls;
        bytes += more.bytes;
    }
};

/// Bytes of a checked value by its tag; what has a size of its own has that besides. 0: it is a
/// list or a map.
inline constexpr std::uint8_t tag_bytes[] = {1, 2, 9, 9, 5, 0, 0, 1, 5, 5};

/// Bytes of a checked value without items of its own; 0: it is a list or a map.
NETIO_INLINE std::size_t scalar_bytes(const std::byte* at) noexcept {
    const std::size_t size = tag_bytes[std::to_integer<std::size_t>(*at)];
    return size != 5 ? size : size + load_little<std::uint32_t>(at + 1);
}

/// Adds what one checked value weighs, all inside of it included; its paths go to `seen`. A
/// stack of fixed height instead of recursion.
template <class Seen>
void weigh_items(reader<false>& in, weight& sum, Seen& seen) noexcept {
    std::uint32_t left[value_depth_max];
    bool maps[value_depth_max];
    std::uint32_t open = 0;
    for (;;) {
        if (open != 0 && maps[open - 1]) {
            in.at = after_text(in.at);  // a key
        }
        const auto tag = static_cast<value_tag>(*in.at);
        ++sum.nodes;
        sum.depth = sum.depth > open ? sum.depth : open + 1;
        if (const std::size_t size = scalar_bytes(in.at); size != 0) {
            if (tag == value_tag::path) {
                seen.path(read_text(in.at + 1));
            }
            in.at += size;
        } else {
            std::uint32_t items = 0;
            ++in.at;
            in.take(items);
            sum.array_count = sum.array_count > items ? sum.array_count : items;
            if (items != 0) {
                NETIO_ASSERT(open < value_depth_max);
                left[open] = items;
                maps[open++] = tag == value_tag::map;
                continue;
            }
        }
        while (open != 0 && --left[open - 1] == 0) {
            --open;
        }
        if (open == 0) {
            return;
        }
    }
}

/// The same; most values have no items.
template <class Seen>
NETIO_INLINE void weigh_value(reader<false>& in, weight& sum, Seen& seen) noexcept {
    const std::size_t size = scalar_bytes(in.at);
    if (NETIO_UNLIKELY(size == 0)) {
        weigh_items(in, sum, seen);
        return;
    }
    if (static_cast<value_tag>(*in.at) == value_tag::path) {
        seen.path(read_text(in.at + 1));
    }
    ++sum.nodes;
    in.at += size;
}

/// Is any path outside of a scope?
struct path_watch {
    std::string_view scope;
    bool outside;

    void path(std::string_view text) noexcept { outside |= !path_inside(scope, text); }
};

/// Are there promises?
struct promise_watch {
    bool any = false;

    static void path(std::string_view) noexcept {}
    void promise(std::uint64_t) noexcept { any = true; }
};

/// For those who want to know nothing of a value but its weight.
struct sees_nothing {
    static void path(std::string_view) noexcept {}
};

}  // namespace detail

/// What checked arguments weigh. Paths and promises in them go to `seen.path(std::string_view)` and
/// `seen.promise(std::uint64_t)`. Linear in their bytes, which are the first `bytes` from
/// `arguments.data()` on. A promise or a capability is a node.
template <class Seen>
weight weigh(const argument_list& arguments, Seen& seen) noexcept {
    weight sum;
    bool any_value = false;
    detail::reader<false> in{arguments.data(), nullptr};
    for (std::uint32_t left = arguments.size(); left != 0; --left) {
        const std::byte* const begin = in.at;
        if (static_cast<argument_tag>(*begin) == argument_tag::value) {
            ++in.at;
            any_value = true;
            detail::weigh_value(in, sum, seen);
        } else {
            detail::walk_argument(in);
            ++sum.nodes;
            if (static_cast<argument_tag>(*begin) == argument_tag::promise) {
                seen.promise(argument(begin).as_promise());
            }
        }
        const auto size = static_cast<std::uint64_t>(in.at - begin);
        sum.value_bytes = sum.value_bytes > size ? sum.value_bytes : size;
    }
    sum.bytes = arguments.empty() ? 0 : static_cast<std::uint64_t>(in.at - arguments.data());
    sum.depth = sum.depth == 0 && any_value ? 1 : sum.depth;
    return sum;
}

/// The same of one checked value, as the argument that it would be; its paths go to `seen.path`.
template <class Seen>
weight weigh(const value& of, Seen& seen) noexcept {
    weight sum;
    detail::reader<false> in{of.wire_begin(), nullptr};
    detail::weigh_value(in, sum, seen);
    sum.depth = sum.depth != 0 ? sum.depth : 1;
    sum.bytes = static_cast<std::uint64_t>(in.at - of.wire_begin()) + 1;
    sum.value_bytes = sum.bytes;
    return sum;
}

}  // namespace rpc

NETIO_END

#endif
