// floor 8 · shm_link.hpp · records to and from one other process, through memory that both have
#ifndef NETIO_SHM_LINK_HPP
#define NETIO_SHM_LINK_HPP

#include "platform/shm_map.hpp"
#include "platform/shm_posix.hpp"
#include "platform/shm_windows.hpp"

NETIO_BEGIN

/// How a link is set up.
struct shm_options {
    shm_layout layout{};                ///< of a new segment; one that is opened has its own
    std::uint32_t side = 1;             ///< of `open`: whose place, 0 the creator's
    std::uint32_t peer_process = 0;     ///< whose end is looked out for; 0: whom the segment names
    std::uint32_t spin_count = 0;       ///< looks before a sleep, some ten nanoseconds each
    bool borrow = false;                ///< no copy of what comes: for a peer that is vouched for
};

/// What ended a wait.
enum class shm_event : std::uint8_t {
    none,         // the time is over
    record,       // `peek` has one
    room,         // what `claim` refused last fits now
    peer_gone,    // its process has ended, or it has closed its link; nothing of it is left to read
    broken        // see `why`
};

/// One end of a link between two processes: records of bytes in both directions through one
/// segment. No thread may be inside while another is.
///
///     if (auto to = link.claim(size)) { write into to.room; link.commit(to, used); }
///     while (auto record = link.peek(); !record.empty()) { read it; link.release(); }
///     link.flush();                     // once for all of these
///     switch (link.wait(1000)) { ... }
///
/// As long as the other side is awake nothing here enters the system but `wait`, once it has found
/// nothing. The other process is not trusted: what it writes into the segment can break the link
/// and keep this side awake, no more. The segment itself it has to have made rightly, and that
/// `open` looks at.
template <class P>
class basic_shm_link {
    static_assert(shm_platform<P>);

public:
    using handle_type = typename P::handle;

    basic_shm_link() noexcept = default;
    basic_shm_link(const basic_shm_link&) = delete;
    basic_shm_link& operator=(const basic_shm_link&) = delete;
    ~basic_shm_link() { close(); }

    /// Makes a segment and is its side 0. `inbox` is where records that come are copied to, at
    /// least `options.layout.longest()` bytes, and stays the caller's; with `borrow` there is none.
    os_status create(mutable_bytes inbox, const shm_options& options = {}) noexcept {
        if (is_open()) {
            return {error::already_open, 0};
        }
        if (!options.layout.valid() || inbox.empty() != options.borrow) {
            return {error::option_invalid, 0};
        }
        if (!options.borrow && inbox.size() < options.layout.longest()) {
            return {error::memory_too_small, 0};
        }
        if (const os_status made = P::create(segment_, options.layout.segment_bytes()); !made) {
            return made;
        }
        shm_side::lay_out(P::memory_of(segment_).data(), options.layout);
        return begin(false, 0, inbox, options);
    }
    /// Takes a segment that another process made, as side 1, or in the place of one whose process
    /// has ended: then it goes on with the first record that was not released (two that live, with
    /// one side, would write over each other, and nothing here keeps them apart). On any error the
    /// handle stays the caller's, else it is the link's. error::rpc_transport: no such segment, one
    /// that could be taken away, or broken.
    os_status open(handle_type from, mutable_bytes inbox,
                   const shm_options& options = {}) noexcept {
        if (is_open()) {
            return {error::already_open, 0};
        }
        if (options.side > 1 || inbox.empty() != options.borrow) {
            return {error::option_invalid, 0};
        }
        if (const os_status got = P::open(segment_, from); !got) {
            return got;
        }
        return begin(true, options.side, inbox, options);
    }
    /// Tells the other side, and gives everything back. A link that is not open stays so.
    void close() noexcept {
        if (!is_open()) {
            return;
        }
        if (P::process_id() == process_id_) {    // else a child, which has only a copy
            side_.leave();
            flush();
        }
        drop(false);
        why_ = error::not_open;
    }
    bool is_open() const noexcept { return process_id_ != 0; }
    /// error::none while it works; then why it does not: rpc_transport (the peer broke it, it will
    /// only be closed) or not_open.
    error why() const noexcept {
        return is_open() && side_.broken() ? error::rpc_transport : why_;
    }
    /// For another process, which opens it: see the platform. The link's until it is closed.
    handle_type handle() noexcept { return P::handle_of(segment_); }
    /// Longest record, both ways.
    std::uint32_t record_max() const noexcept { return is_open() ? side_.record_max() : 0; }

    /// Room for a record of up to so many bytes, at least 1, until `commit` or the next claim.
    /// Empty: longer than `record_max()`, full just now, or the link is over.
    ring_claim claim(std::uint32_t bytes_count) noexcept {
        if (!is_open()) {
            return {};
        }
        const ring_claim out = side_.claim(bytes_count);
        refused_ = out || bytes_count > side_.record_max() ? 0 : bytes_count;
        return out;
    }
    /// So many of its bytes, at least 1, are a record.
    void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        side_.commit(what, bytes_count);
    }
    /// It is not written after all.
    static void abandon(const ring_claim&) noexcept {}
    /// The oldest record, the same one until `release`; empty: there is none, or the link is over.
    bytes peek() noexcept { return is_open() ? side_.peek() : bytes{}; }
    void release() noexcept { side_.release(); }
    /// Wakes the other side if it sleeps for what was committed or released. `wait` does so, too.
    void flush() noexcept {
        if (is_open() && side_.must_wake()) {
            P::wake(segment_, 1 - which_, side_.peer_word());
        }
    }

    /// Until there is a record, or room for what the last claim was refused, or the peer is gone,
    /// at most so many milliseconds; ~0u: without end. The end of a process is noticed within
    /// `slice_ms`. Who can't take a record now waits for room alone (`shm_wants::room`).
    shm_event wait(std::uint32_t timeout_ms, std::uint32_t wants = shm_wants::both) noexcept {
        if (!is_open()) {
            return shm_event::broken;
        }
        flush();
        for (std::uint32_t left = spin_count_;; --left) {
            if (const shm_event found = look(wants); found != shm_event::none) {
                return found;
            }
            if (left == 0) {
                break;
            }
            P::relax();
        }
        return timeout_ms == 0 ? shm_event::none : sleep(timeout_ms, wants);
    }

    /// Asks the system. Records that it has committed can still be read.
    bool peer_gone() noexcept {
        if (!is_open()) {
            return true;
        }
        if (!is_told_ && side_.peer_epoch() != watched_epoch_) {
            // Out of descriptors, it is asked after by its number.
            static_cast<void>(watch_named());
        }
        has_ended_ = has_ended_ || P::has_ended(watch_);
        return is_away();
    }
    /// The one that is gone is forgotten, and another is looked out for, to which the handle will
    /// be given; 0: whom the segment will name.
    os_status watch(std::uint32_t process_id) noexcept {
        if (!is_open()) {
            return {error::not_open, 0};
        }
        stop_watch();
        forgotten_epoch_ = watched_epoch_ = side_.peer_epoch();
        is_told_ = process_id != 0;
        return is_told_ ? P::start_watch(watch_, process_id) : os_status{};
    }
    /// Another number than before: somebody came or left. What the peer says of itself.
    std::uint32_t peer_epoch() const noexcept { return is_open() ? side_.peer_epoch() : 0; }

    static constexpr std::uint32_t slice_ms = 50;

private:
    /// `keeps`: on an error the handle stays the caller's.
    os_status begin(bool keeps, std::uint32_t which, mutable_bytes inbox,
                    const shm_options& options) noexcept {
        const mutable_bytes memory = P::memory_of(segment_);
        const std::uint32_t self = P::process_id();
        os_status status{side_.attach(memory.data(), memory.size(), which, self, inbox), 0};
        if (status) {
            which_ = which;
            process_id_ = self;
            spin_count_ = options.spin_count;
            is_told_ = options.peer_process != 0;
            status = is_told_ ? P::start_watch(watch_, options.peer_process) : watch_named();
            if (!status) {
                side_.leave();
            }
            flush();
        }
        if (!status) {
            drop(keeps);
        }
        why_ = status.why;
        return status;
    }
    void drop(bool keeps) noexcept {
        stop_watch();
        P::close(segment_, keeps);
        side_ = {};
        process_id_ = refused_ = forgotten_epoch_ = watched_epoch_ = 0;
    }

    shm_event look(std::uint32_t wanted) noexcept {
        if (const shm_event found = look_inside(wanted); found != shm_event::none || !is_away()) {
            return found;
        }
        // What it did last it had done before it was gone: so another look after that is known.
        const shm_event found = look_inside(wanted);
        return found == shm_event::none ? shm_event::peer_gone : found;
    }
    shm_event look_inside(std::uint32_t wanted) noexcept {
        const bool has_record = (wanted & shm_wants::record) != 0 && !peek().empty();
        if (side_.broken()) {
            return shm_event::broken;
        }
        if (has_record) {
            return shm_event::record;
        }
        if (refused_ != 0 && side_.has_room(refused_)) {
            refused_ = 0;
            return shm_event::room;
        }
        return side_.broken() ? shm_event::broken : shm_event::none;
    }
    shm_event sleep(std::uint32_t timeout_ms, std::uint32_t wanted) noexcept {
        const std::uint32_t wants =
            (wanted & shm_wants::record) | (refused_ != 0 ? shm_wants::room : 0);
        const std::uint64_t slice_ns = std::uint64_t{slice_ms} * 1'000'000;
        std::uint64_t now = P::now_ns();
        const std::uint64_t until =
            timeout_ms == ~0u ? forever_ns : now + std::uint64_t{timeout_ms} * 1'000'000;
        shm_event found = shm_event::none;
        for (; found == shm_event::none && now < until; now = P::now_ns()) {
            side_.announce_sleep(wants);
            found = look(wanted);
            const bool whole =
                found == shm_event::none &&
                P::sleep(segment_, which_, side_.own_word(), wants,
                         until - now < slice_ns ? until - now : slice_ns);
            side_.awake();
            if (whole) {
                static_cast<void>(peer_gone());    // look() knows it then
            }
            found = found == shm_event::none ? look(wanted) : found;
        }
        return found;
    }

    os_status watch_named() noexcept {
        stop_watch();
        watched_epoch_ = side_.peer_epoch();
        const std::uint32_t named = side_.peer_process();
        return named != 0 ? P::start_watch(watch_, named) : os_status{};
    }
    void stop_watch() noexcept {
        P::end_watch(watch_);
        has_ended_ = false;
    }
    bool is_away() const noexcept {
        const std::uint32_t epoch = side_.peer_epoch();
        return (has_ended_ && (is_told_ || epoch == watched_epoch_)) ||
               (epoch != forgotten_epoch_ && side_.peer_process() == 0);
    }

    typename P::segment segment_{};
    typename P::watch watch_{};
    shm_side side_{};
    std::uint32_t which_ = 0;
    std::uint32_t process_id_ = 0;         // this one's; 0: not open
    std::uint32_t spin_count_ = 0;
    std::uint32_t refused_ = 0;            // bytes of the last claim, if there was no room
    std::uint32_t watched_epoch_ = 0;      // of the peer that is looked out for
    std::uint32_t forgotten_epoch_ = 0;    // of the peer that was gone before; 0: nobody yet
    bool is_told_ = false;                 // by the caller, not by the segment
    bool has_ended_ = false;
    error why_ = error::not_open;
};

using shm_link = basic_shm_link<default_shm>;

NETIO_END

#endif
