// Writes a decoded envelope anew, every value through its own writer call: what decodes must come
// out with the same bytes. Shared by the test and the fuzz target.
#ifndef NETIO_TESTS_ENVELOPE_REBUILD_HPP
#define NETIO_TESTS_ENVELOPE_REBUILD_HPP

#include "netio.hpp"

namespace {

struct envelope_rebuild_level {
    bool is_map = false;
    netio::rpc::value_list::iterator item, item_end;
    netio::rpc::value_map::iterator entry, entry_end;

    bool done() const { return is_map ? entry == entry_end : item == item_end; }
};

inline void envelope_rebuild_scalar(netio::rpc::writer& out, const netio::rpc::value& from) {
    using netio::rpc::value_tag;
    switch (from.tag()) {
    case value_tag::null_value: out.value_null(); break;
    case value_tag::boolean: out.value_bool(from.as_bool()); break;
    case value_tag::integer: out.value_int(from.as_int()); break;
    case value_tag::real: out.value_real(from.as_real()); break;
    case value_tag::text: out.value_text(from.as_text()); break;
    case value_tag::secret: out.value_secret(); break;
    case value_tag::module_bytes: out.value_module(from.as_module()); break;
    case value_tag::path: out.value_path(from.as_path()); break;
    default: break;
    }
}

inline void envelope_rebuild_value(netio::rpc::writer& out, netio::rpc::value now) {
    using netio::rpc::value_tag;
    envelope_rebuild_level levels[netio::rpc::value_depth_max];
    std::size_t open = 0;
    for (;;) {
        if (now.is(value_tag::list)) {
            out.value_list();
            envelope_rebuild_level& level = levels[open++];
            level.is_map = false;
            level.item = now.as_list().begin();
            level.item_end = now.as_list().end();
        } else if (now.is(value_tag::map)) {
            out.value_map();
            envelope_rebuild_level& level = levels[open++];
            level.is_map = true;
            level.entry = now.as_map().begin();
            level.entry_end = now.as_map().end();
        } else {
            envelope_rebuild_scalar(out, now);
        }
        while (open != 0 && levels[open - 1].done()) {
            out.end();
            --open;
        }
        if (open == 0) {
            return;
        }
        envelope_rebuild_level& level = levels[open - 1];
        if (level.is_map) {
            const netio::rpc::map_entry entry = *level.entry++;
            out.key(entry.key);
            now = entry.held;
        } else {
            now = *level.item++;
        }
    }
}

inline void envelope_rebuild_arguments(netio::rpc::writer& out,
                                       const netio::rpc::argument_list& from) {
    using netio::rpc::argument_tag;
    for (const netio::rpc::argument argument : from) {
        switch (argument.tag()) {
        case argument_tag::value: envelope_rebuild_value(out, argument.as_value()); break;
        case argument_tag::promise: out.promise(argument.as_promise()); break;
        case argument_tag::capability: out.capability(argument.as_capability()); break;
        }
    }
}

/// The size written, 0 if the writer refused. `names` must hold the methods of one descriptor.
inline std::size_t envelope_rebuild(const netio::rpc::envelope& from, netio::mutable_bytes room,
                                    std::span<std::string_view> names,
                                    const netio::rpc::wire_limits& limits = {}) {
    netio::rpc::writer out(room, limits);
    out.begin(from.kind, from.request_id, from.method, from.flags);
    envelope_rebuild_arguments(out, from.arguments);
    out.payload(from.payload);
    for (const netio::rpc::capability_descriptor descriptor : from.capabilities) {
        std::size_t count = 0;
        for (const std::string_view method : descriptor.methods()) {
            names[count++] = method;
        }
        out.descriptor({descriptor.id(), names.first(count), descriptor.spend(),
                        descriptor.read_only(), descriptor.redact(), descriptor.has_path(),
                        descriptor.path()});
    }
    return out.finish();
}

/// The same by copying whole arguments and descriptors.
inline std::size_t envelope_copy(const netio::rpc::envelope& from, netio::mutable_bytes room,
                                 const netio::rpc::wire_limits& limits = {}) {
    netio::rpc::writer out(room, limits);
    out.begin(from.kind, from.request_id, from.method, from.flags);
    for (const netio::rpc::argument argument : from.arguments) {
        if (argument.is(netio::rpc::argument_tag::value)) {
            out.copy_value(argument.as_value());
        } else {
            out.copy_argument(argument);
        }
    }
    out.payload(from.payload);
    for (const netio::rpc::capability_descriptor descriptor : from.capabilities) {
        out.copy_descriptor(descriptor);
    }
    return out.finish();
}

}  // namespace

#endif
