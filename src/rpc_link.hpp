// floor 4 · rpc_link.hpp · what carries envelopes from side to side, two ways inside a process
#ifndef NETIO_RPC_LINK_HPP
#define NETIO_RPC_LINK_HPP

#include "src/envelope.hpp"
#include "src/ring.hpp"

NETIO_BEGIN

namespace rpc {

/// One side of what carries envelopes, whole and in order, both ways. Who calls on it and who
/// answers see no more of a transport than this; it belongs to one thread.
///
/// * `record_max()`: bytes of the largest envelope it carries.
/// * `claim(n)`: room for an envelope of up to so many bytes; empty: none just now, larger than
///   `record_max()`, or it is over. Each is given to `commit` or `abandon` before the next.
/// * `commit(claim, n)`: the envelope is there and has so many bytes. `flush()`: what was
///   committed is on its way, and the other side hears of it.
/// * `peek()`: the oldest envelope that came, until `release`; empty: none. Nobody changes those
///   bytes before.
/// * `why()`: error::none, or why nothing comes or goes any more.
template <class L>
concept link = requires(L& of, std::uint32_t count, const ring_claim& claimed) {
    { of.record_max() } noexcept -> std::same_as<std::uint32_t>;
    { of.claim(count) } noexcept -> std::same_as<ring_claim>;
    { of.commit(claimed, count) } noexcept;
    { of.abandon(claimed) } noexcept;
    { of.flush() } noexcept;
    { of.peek() } noexcept -> std::same_as<bytes>;
    { of.release() } noexcept;
    { of.why() } noexcept -> std::same_as<error>;
};

/// Two threads, or one, and a ring each way: this side writes one and reads the other.
class ring_link {
public:
    ring_link(spsc_ring& out, spsc_ring& in) noexcept : out_(out), in_(in) {}

    std::uint32_t record_max() const noexcept { return out_.record_max(); }
    ring_claim claim(std::uint32_t bytes_count) noexcept { return out_.claim(bytes_count); }
    void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        out_.commit(what, bytes_count);
    }
    static void abandon(const ring_claim&) noexcept {}
    static void flush() noexcept {}
    bytes peek() noexcept { return in_.peek(); }
    void release() noexcept { in_.release(); }
    static error why() noexcept { return error::none; }

private:
    spsc_ring& out_;
    spsc_ring& in_;
};

/// Bytes in front of each record of a ring that many clients write to: whose it is.
inline constexpr std::uint32_t sender_bytes = 8;

/// A client's side where many share one ring to the server; answers come in a ring of its own.
class shared_link {
public:
    /// `number` is how the server knows it.
    shared_link(mpsc_ring& out, std::uint64_t number, spsc_ring& in) noexcept
        : out_(out), in_(in), number_(number) {}

    std::uint32_t record_max() const noexcept { return out_.record_max() - sender_bytes; }
    ring_claim claim(std::uint32_t bytes_count) noexcept {
        if (bytes_count == 0 || bytes_count > record_max()) {
            return {};
        }
        ring_claim made = out_.claim(bytes_count + sender_bytes);
        if (made) {
            detail::store_little(made.room.data(), number_);
            made.room = made.room.subspan(sender_bytes);
        }
        return made;
    }
    void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        out_.commit(whole(what), bytes_count + sender_bytes);
    }
    void abandon(const ring_claim& what) noexcept { out_.abandon(whole(what)); }
    static void flush() noexcept {}
    bytes peek() noexcept { return in_.peek(); }
    void release() noexcept { in_.release(); }
    static error why() noexcept { return error::none; }

private:
    static ring_claim whole(const ring_claim& what) noexcept {
        return {{what.room.data() - sender_bytes, what.room.size() + sender_bytes}, what.at};
    }

    mpsc_ring& out_;
    spsc_ring& in_;
    std::uint64_t number_;
};

/// The number of the client whose record is the oldest one in a shared ring.
struct front_sender {
    std::uint64_t number = 0;
    bool there = false;
};

/// Reader only.
inline front_sender sender_in_front(mpsc_ring& of) noexcept {
    const bytes record = of.peek();
    if (record.size() <= sender_bytes) {
        return {};
    }
    return {detail::load_little<std::uint64_t>(record.data()), true};
}

/// The server's side of one client of a shared ring: what others sent is not there for it. The ring
/// is one queue, so a client holds up all others while its oldest request can't be taken: it leaves
/// its answers where they are, or as many calls as it may have are under way. Give each a ring for
/// as many answers as it may have calls, and no calls that wait for somebody.
class served_link {
public:
    served_link(mpsc_ring& in, std::uint64_t number, spsc_ring& out) noexcept
        : in_(in), out_(out), number_(number) {}

    std::uint32_t record_max() const noexcept { return out_.record_max(); }
    ring_claim claim(std::uint32_t bytes_count) noexcept { return out_.claim(bytes_count); }
    void commit(const ring_claim& what, std::uint32_t bytes_count) noexcept {
        out_.commit(what, bytes_count);
    }
    static void abandon(const ring_claim&) noexcept {}
    static void flush() noexcept {}
    bytes peek() noexcept {
        const front_sender front = sender_in_front(in_);
        return front.there && front.number == number_ ? in_.peek().subspan(sender_bytes) : bytes{};
    }
    void release() noexcept { in_.release(); }
    static error why() noexcept { return error::none; }

private:
    mpsc_ring& in_;
    spsc_ring& out_;
    std::uint64_t number_;
};

}  // namespace rpc

NETIO_END

#endif
