// floor 7 · handoff.hpp · a process's listeners to its successor, over a unix stream
#ifndef NETIO_HANDOFF_HPP
#define NETIO_HANDOFF_HPP

#include "platform/pass_handle.hpp"
#include "src/handoff_list.hpp"

#if NETIO_HAS_POSIX

#include <poll.h>

NETIO_BEGIN

/// The calls that a hand-off adds.
struct handoff_sys : pass_sys {
    static int wait_ready(int on, short events, int ms) noexcept {
        pollfd of{on, events, 0};
        return ::poll(&of, 1, ms);
    }
    /// 1: something is there still. Takes nothing, and no descriptor.
    static ssize_t peek(int from) noexcept {
        char next = 0;
        return ::recv(from, &next, 1, MSG_PEEK | MSG_DONTWAIT);
    }
};

struct handoff_options {
    std::uint32_t timeout_ms = 5'000;      ///< for the whole call; at least once is looked
    std::uint32_t required_uid = no_user;  ///< the other side's user; no_user: anyone's
};

/// A listener to hand on. Both processes know it by its name, 1 to 64 bytes of visible ASCII.
struct handoff_offer {
    std::string_view name{};
    socket_handle handle = no_handle;  ///< `server::native_handle`; stays this process's own
    socket_file file{};                ///< `server::file_of`; who takes it will remove it
};

/// A listener that was handed on: the caller's own, to adopt or to close.
struct taken_listener {
    socket_handle handle = no_handle;
    endpoint local{};
    socket_file file{};                      ///< for `server::adopt_listener`
    char name[handoff_name_max + 1] = {};
    char unix_path[handoff_path_max + 1] = {};
};

/// What came of `take_over`.
struct takeover {
    std::uint32_t count = 0;
    std::uint32_t checksum = 0;  ///< of the list, for the answer
    netio::failure failure{};
    constexpr explicit operator bool() const noexcept { return !failure; }
};

namespace detail {

// The answer: magic "netio-HA", u32 0 for yes and 1 for no, u32 checksum of the list.
inline constexpr char handoff_answer_magic[] = {'n', 'e', 't', 'i', 'o', '-', 'H', 'A'};
inline constexpr std::size_t handoff_answer_bytes = 16;

NETIO_COLD inline failure handoff_failed(const char* operation, std::string_view about,
                                         os_status why) noexcept {
    failure out;
    out.operation = operation;
    out.code = why.why;
    out.os_code = why.os_code;
    out.os_name = why.os_code != 0 ? errno_name(why.os_code) : "";
    out.about(about);
    return out;
}

/// One side of a hand-off: whose other side it is, and until when.
template <class Sys>
class handoff_side {
public:
    handoff_side(socket_handle via, const handoff_options& options) noexcept
        : via_(static_cast<int>(via)),
          until_ns_(Sys::now_ns() + std::uint64_t{options.timeout_ms} * 1'000'000) {}

    int via() const noexcept { return via_; }

    os_status checks_user(std::uint32_t required) const noexcept {
        return required == no_user || credentials_of<Sys>(via_).user_id == required
                   ? os_status{}
                   : os_status{error::permission_denied, 0};
    }
    /// Until there is something to do, an end counting as such; or it is too late.
    os_status wait(short events) const noexcept {
        for (;;) {
            const std::uint64_t now = Sys::now_ns();
            const std::uint64_t left = now < until_ns_ ? until_ns_ - now : 0;
            const std::uint64_t ms = (left + 999'999) / 1'000'000;
            const int got =
                Sys::wait_ready(via_, events, static_cast<int>(ms < INT_MAX ? ms : INT_MAX));
            if (got > 0) {
                return {};
            }
            if (got < 0 && errno != EINTR) {
                return status_of(errno);
            }
            if (left == 0) {
                return {error::timed_out, 0};
            }
        }
    }
    /// All of them, the descriptors with the first byte.
    os_status send(bytes rest, std::span<const socket_handle> handles) const noexcept {
        while (!rest.empty()) {
            const passed_handle sent = send_with_handles<Sys>(via_, handles, rest);
            if (sent.byte_count != 0) {
                rest = rest.subspan(sent.byte_count);
                handles = {};
            } else if (sent.status.why != error::full) {
                return sent.status;
            } else if (const os_status waited = wait(POLLOUT); !waited) {
                return waited;
            }
        }
        return {};
    }
    /// Exactly so many bytes. Descriptors may come with the first of `fresh` ones only.
    os_status receive(mutable_bytes into, handle_catch<Sys>& handles, bool fresh) const noexcept {
        while (!into.empty()) {
            const std::uint32_t before = handles.count();
            const received_handle got = receive_with_handles<Sys>(via_, into, handles);
            if (!got) {
                return got.status;
            }
            if (got.ended) {
                return {error::handoff_unfinished, 0};
            }
            if (handles.count() != before && !fresh) {
                return {error::handoff_handles, 0};
            }
            into = into.subspan(got.byte_count);
            fresh = fresh && got.byte_count == 0;
            if (got.byte_count == 0) {
                if (const os_status waited = wait(POLLIN); !waited) {
                    return waited;
                }
            }
        }
        return {};
    }

private:
    int via_;
    std::uint64_t until_ns_;
};

/// The predecessor's memory for one hand-off.
struct handoff_outbox {
    handoff_entry entries[handoff_entries_max];
    socket_handle handles[handoff_entries_max];
    char paths[handoff_entries_max][handoff_path_max + 1];
    std::byte list[handoff_bytes_max];
    std::size_t list_bytes = 0;
};

/// Says of each listener where it is, as the system tells it.
template <class Sys>
failure write_handoff(std::span<const handoff_offer> offers, handoff_outbox& out) noexcept {
    if (offers.empty() || offers.size() > handoff_entries_max) {
        return handoff_failed("hand_over", "count", {error::option_invalid, 0});
    }
    for (std::size_t at = 0; at < offers.size(); ++at) {
        const handoff_offer& each = offers[at];
        const listener_facts facts = facts_of_listener<Sys>(static_cast<int>(each.handle));
        if (!facts) {
            return handoff_failed("hand_over", each.name, facts.status);
        }
        handoff_entry& entry = out.entries[at];
        entry = {};
        entry.name = each.name;
        entry.address = facts.local;
        if (facts.local.family == address_family::unix_path) {
            entry.unix_path = path_of(facts, out.paths[at]);
            entry.file = each.file;
        }
        if (!handoff_may_say(entry)) {
            return handoff_failed("hand_over", each.name, {error::option_invalid, 0});
        }
        out.handles[at] = each.handle;
    }
    out.list_bytes = encode_handoff({out.entries, offers.size()}, out.list);
    NETIO_ASSERT(out.list_bytes != 0);
    return {};
}

inline void write_handoff_answer(std::span<std::byte, handoff_answer_bytes> out, bool yes,
                                 std::uint32_t checksum) noexcept {
    std::memcpy(out.data(), handoff_answer_magic, sizeof(handoff_answer_magic));
    store_little<std::uint32_t>(out.data() + 8, yes ? 0 : 1);
    store_little<std::uint32_t>(out.data() + 12, checksum);
}

/// Is it the successor's yes to this list?
inline error read_handoff_answer(bytes in, std::uint32_t checksum) noexcept {
    if (std::memcmp(in.data(), handoff_answer_magic, sizeof(handoff_answer_magic)) != 0) {
        return error::handoff_magic;
    }
    if (load_little<std::uint32_t>(in.data() + 8) != 0) {
        return error::handoff_refused;
    }
    return load_little<std::uint32_t>(in.data() + 12) == checksum ? error::none
                                                                  : error::handoff_checksum;
}

/// Does each socket of the list lie where the list says? The name of the first that does not is
/// left in `about`.
template <class Sys>
os_status verify_handoff(const handoff_list& list, const handle_catch<Sys>& came,
                         std::string_view& about) noexcept {
    if (came.count() != list.count) {
        return {error::handoff_handles, 0};
    }
    for (std::uint32_t at = 0; at < list.count; ++at) {
        const handoff_entry& entry = list.entries[at];
        about = entry.name;
        const listener_facts facts = facts_of_listener<Sys>(came[at]);
        if (!facts) {
            return facts.status;
        }
        char room[sizeof(sockaddr_un::sun_path)];
        const bool local = facts.local.family == address_family::unix_path;
        if (facts.local != entry.address || (local && path_of(facts, room) != entry.unix_path)) {
            return {error::handoff_socket, 0};
        }
    }
    about = "";
    return {};
}

/// Everything up to the moment where the successor has it; `memory` is what the list points into.
template <class Sys>
os_status receive_handoff(const handoff_side<Sys>& side, std::uint32_t required_uid,
                          std::span<std::byte, handoff_bytes_max> memory, handle_catch<Sys>& came,
                          handoff_list& list, std::string_view& about) noexcept {
    if (const os_status user = side.checks_user(required_uid); !user) {
        about = "required_uid";
        return user;
    }
    std::size_t count = 0;
    parsed<handoff_list> got = parse_handoff({});
    while (got.status == parse_status::incomplete) {
        const os_status more = side.receive(memory.subspan(count, got.missing), came, count == 0);
        if (!more) {
            return more;
        }
        count += got.missing;
        got = parse_handoff(memory.first(count));
    }
    list = got.value;
    if (got.status == parse_status::invalid) {
        return {got.why, 0};
    }
    if (Sys::peek(side.via()) > 0) {  // more than the list: whatever it is, nobody asked for it
        return {error::handoff_length, 0};
    }
    return verify_handoff<Sys>(list, came, about);
}

template <class Sys>
void give_taken(const handoff_entry& entry, int handle, taken_listener& to) noexcept {
    to = {};
    to.handle = handle;
    to.local = entry.address;
    to.file = entry.file;
    to.file.process_id = entry.file ? static_cast<std::uint32_t>(Sys::process_id()) : 0;
    std::memcpy(to.name, entry.name.data(), entry.name.size());
    if (!entry.unix_path.empty()) {
        std::memcpy(to.unix_path, entry.unix_path.data(), entry.unix_path.size());
    }
}

}  // namespace detail

/// Hands 1 to 64 listeners to the process at the other end of a connected unix stream, and waits
/// for its yes. Without a failure it has them and serves them: now `server::release_listener` each,
/// and in time drain. Until then, and after any failure, they are served here as ever, so no client
/// is lost; where the answer was lost on its way, both may serve them. Blocks its caller, at most
/// `timeout_ms`: on a thread that is no worker the workers go on accepting meanwhile; on the only
/// worker's, clients wait in the queue. Takes about 35 KB of stack. Any thread.
template <class Sys = handoff_sys>
failure hand_over(socket_handle via, std::span<const handoff_offer> offers,
                  const handoff_options& options = {}) noexcept {
    const detail::handoff_side<Sys> side(via, options);
    if (const os_status user = side.checks_user(options.required_uid); !user) {
        return detail::handoff_failed("hand_over", "required_uid", user);
    }
    detail::handoff_outbox out;
    if (failure wrong = detail::write_handoff<Sys>(offers, out)) {
        return wrong;
    }
    const auto list = bytes(out.list).first(out.list_bytes);
    os_status done = side.send(list, {out.handles, offers.size()});
    std::byte answer[detail::handoff_answer_bytes];
    if (done) {
        detail::handle_catch<Sys> unwanted;  // an answer brings none: closed, if it does
        done = side.receive(answer, unwanted, false);
    }
    if (done) {
        const auto tail = list.last(detail::handoff_tail_bytes);
        done.why = detail::read_handoff_answer(
            answer, detail::load_little<std::uint32_t>(tail.data()));
    }
    return done ? failure{} : detail::handoff_failed("hand_over", "", done);
}

/// Answers the predecessor of a `take_over`: yes once every listener is adopted and will be served,
/// or no; then those that were not adopted are the caller's to close. Never waits. A failure: the
/// predecessor may be gone, or goes on serving them itself, too.
template <class Sys = handoff_sys>
failure answer_takeover(socket_handle via, const takeover& of, bool yes) noexcept {
    std::byte answer[detail::handoff_answer_bytes];
    detail::write_handoff_answer(answer, yes, of.checksum);
    const passed_handle sent =
        detail::send_with_handles<Sys>(static_cast<int>(via), {}, answer);
    if (sent && sent.byte_count != sizeof(answer)) {  // the stream took a part: it can't be full
        return detail::handoff_failed("answer_takeover", "", {error::full, 0});
    }
    return sent ? failure{} : detail::handoff_failed("answer_takeover", "", sent.status);
}

/// Takes the listeners that the process at the other end hands over. Everything is looked at before
/// anything is given: the user if one is required, the list and its checksum, the number of
/// descriptors, and of each that it listens where the list says. On any failure every descriptor
/// that came is closed, and the predecessor is told no. Else they are the caller's, in the list's
/// order: `server::adopt_listener` each (which also makes them non-blocking), then
/// `answer_takeover`. Blocks its caller, at most `timeout_ms`. Takes about 40 KB of stack. Any
/// thread.
template <class Sys = handoff_sys>
takeover take_over(socket_handle via, std::span<taken_listener> out,
                   const handoff_options& options = {}) noexcept {
    const detail::handoff_side<Sys> side(via, options);
    std::byte memory[handoff_bytes_max];
    detail::handle_catch<Sys> came;
    handoff_list list;
    std::string_view about;
    takeover done;
    os_status status = detail::receive_handoff<Sys>(side, options.required_uid, memory, came, list,
                                                    about);
    done.checksum = list.checksum;
    if (status && list.count > out.size()) {
        done.failure.needed = list.count;
        done.failure.given = out.size();
        status.why = error::full;
    }
    if (!status) {
        const failure sizes = done.failure;
        done.failure = detail::handoff_failed("take_over", about, status);
        done.failure.needed = sizes.needed;
        done.failure.given = sizes.given;
        came.close_all();
        answer_takeover<Sys>(via, done, false);  // it may be gone: all is closed already
        return done;
    }
    for (std::uint32_t at = 0; at < list.count; ++at) {
        detail::give_taken<Sys>(list.entries[at], came[at], out[at]);
    }
    came.let_go();
    done.count = list.count;
    return done;
}

NETIO_END

#endif

#endif
