// floor 4 · output_queue.hpp · what a connection has still to send, in eight words
#ifndef NETIO_OUTPUT_QUEUE_HPP
#define NETIO_OUTPUT_QUEUE_HPP

#include "src/buffer_pool.hpp"
#include "src/bytes.hpp"
#include "src/limits.hpp"

NETIO_BEGIN

/// Queued output of one connection: a ring of at most eight pieces in 64 bytes. A buffer piece is
/// one
/// word: buffer index + 1 (24 bits), begin (20), end (20). A static piece is two: a mark with the
/// bytes left (40 bits), then the address. Bytes leave at the front in the order they came.
///
/// The buffers are the pool's, charged to its output side; a piece gives its buffer back when its
/// last
/// byte was sent. The ring's position lives with the owner, so that a connection without output
/// never touches the words.
class output_queue {
public:
    /// Where a queue begins and how many words it uses; all-zero is empty.
    struct position {
        std::uint8_t first : 4 = 0;
        std::uint8_t words : 4 = 0;
    };
    static_assert(sizeof(position) == 1 && output_pieces_max < 16);

    output_queue(std::uint64_t* words, position& at, buffer_pool& pool) noexcept
        : words_(words), at_(at), pool_(pool) {}

    bool empty() const noexcept { return at_.words == 0; }

    /// Pool buffers held now.
    std::uint32_t buffer_count() const noexcept {
        std::uint32_t count = 0;
        for (std::uint32_t step = 0; step < at_.words; step += width(step)) {
            count += is_static(word(step)) ? 0 : 1;
        }
        return count;
    }

    /// Bytes not yet sent.
    std::uint64_t byte_count() const noexcept {
        std::uint64_t count = 0;
        for (std::uint32_t step = 0; step < at_.words; step += width(step)) {
            count += left(word(step));
        }
        return count;
    }

    /// Bytes that `copy` would take now without asking the pool: room in the last buffer.
    std::uint32_t room_in_last() const noexcept {
        if (empty()) {
            return 0;
        }
        const std::uint32_t last = last_step();
        return last == none_index || is_static(word(last)) ? 0
                                                           : pool_.buffer_bytes() - end(word(last));
    }

    /// Copies as much of `in` as room, the pool and `buffers_max` allow; returns how many bytes.
    std::size_t copy(bytes in, std::uint32_t buffers_max) noexcept {
        std::size_t done = fill_last(in);
        std::uint32_t held = done < in.size() ? buffer_count() : 0;
        while (done < in.size() && held < buffers_max && at_.words < output_pieces_max) {
            const std::uint32_t index = pool_.take(side::output);
            if (index == none_index) {
                break;
            }
            const std::size_t count = smaller(in.size() - done, pool_.buffer_bytes());
            std::memcpy(pool_.data(index), in.data() + done, count);
            push(piece(index, 0, static_cast<std::uint32_t>(count)));
            done += count;
            ++held;
        }
        return done;
    }

    /// Appends bytes that outlive the connection. False if the ring has no two words left.
    bool push_static(bytes in) noexcept {
        if (in.empty()) {
            return true;
        }
        if (at_.words + 2u > output_pieces_max || in.size() > static_most) {
            return false;
        }
        push(static_mark | (std::uint64_t{in.size()} << 24));
        push(reinterpret_cast<std::uintptr_t>(in.data()));
        return true;
    }

    /// Appends bytes [begin, end) of a buffer already charged to the output side; the piece owns it
    /// from now on. False if the ring is full: the buffer stays the caller's.
    bool push_buffer(std::uint32_t index, std::uint32_t begin, std::uint32_t end_byte) noexcept {
        NETIO_ASSERT(begin < end_byte && end_byte <= pool_.buffer_bytes());
        if (at_.words == output_pieces_max) {
            return false;
        }
        push(piece(index, begin, end_byte));
        return true;
    }

    /// Fills `out` with what is to be sent next, front first; returns the number of slices.
    std::uint32_t gather(std::span<bytes, output_pieces_max> out) const noexcept {
        std::uint32_t count = 0;
        for (std::uint32_t step = 0; step < at_.words; step += width(step)) {
            const std::uint64_t at = word(step);
            if (is_static(at)) {
                const auto address = static_cast<std::uintptr_t>(word(step + 1));
                out[count++] = {reinterpret_cast<const std::byte*>(address),
                                static_cast<std::size_t>(left(at))};
            } else {
                out[count++] = {pool_.data(buffer_of(at)) + begin_of(at),
                                static_cast<std::size_t>(left(at))};
            }
        }
        return count;
    }

    /// Takes `count` sent bytes off the front; buffers that are through go back to the pool.
    void drop_sent(std::uint64_t count) noexcept {
        while (count != 0) {
            NETIO_ASSERT(at_.words != 0);
            std::uint64_t& front = words_[at_.first];
            const std::uint64_t in_front = left(front);
            if (count < in_front) {
                advance(front, count);
                return;
            }
            count -= in_front;
            drop_front();
        }
    }

    /// Forgets everything queued and gives every buffer back.
    void clear() noexcept {
        while (at_.words != 0) {
            drop_front();
        }
        at_.first = 0;
    }

private:
    static constexpr std::uint64_t static_mark = 0xFFFFFF;
    static constexpr std::uint64_t static_most = (std::uint64_t{1} << 40) - 1;

    static constexpr bool is_static(std::uint64_t at) noexcept {
        return (at & 0xFFFFFF) == static_mark;
    }
    static constexpr std::uint64_t piece(std::uint32_t index, std::uint32_t begin,
                                         std::uint32_t end_byte) noexcept {
        return (std::uint64_t{index} + 1) | (std::uint64_t{begin} << 24) |
               (std::uint64_t{end_byte} << 44);
    }
    static constexpr std::uint32_t buffer_of(std::uint64_t at) noexcept {
        return static_cast<std::uint32_t>(at & 0xFFFFFF) - 1;
    }
    static constexpr std::uint32_t begin_of(std::uint64_t at) noexcept {
        return static_cast<std::uint32_t>((at >> 24) & 0xFFFFF);
    }
    static constexpr std::uint32_t end(std::uint64_t at) noexcept {
        return static_cast<std::uint32_t>(at >> 44);
    }
    static constexpr std::uint64_t left(std::uint64_t at) noexcept {
        return is_static(at) ? at >> 24 : end(at) - begin_of(at);
    }
    static constexpr std::size_t smaller(std::size_t left, std::size_t right) noexcept {
        return left < right ? left : right;
    }

    std::uint64_t word(std::uint32_t step) const noexcept {
        return words_[(at_.first + step) % output_pieces_max];
    }
    std::uint32_t width(std::uint32_t step) const noexcept { return is_static(word(step)) ? 2 : 1; }

    /// The step of the last piece: one walk, because a static piece's address word looks like any.
    std::uint32_t last_step() const noexcept {
        std::uint32_t last = none_index;
        for (std::uint32_t step = 0; step < at_.words; step += width(step)) {
            last = step;
        }
        return last;
    }

    void push(std::uint64_t at) noexcept {
        NETIO_ASSERT(at_.words < output_pieces_max);
        words_[(at_.first + at_.words) % output_pieces_max] = at;
        ++at_.words;
    }

    std::size_t fill_last(bytes in) noexcept {
        const std::size_t count = smaller(in.size(), room_in_last());
        if (count != 0) {
            std::uint64_t& last = words_[(at_.first + last_step()) % output_pieces_max];
            std::memcpy(pool_.data(buffer_of(last)) + end(last), in.data(), count);
            last = piece(buffer_of(last), begin_of(last),
                         end(last) + static_cast<std::uint32_t>(count));
        }
        return count;
    }

    void advance(std::uint64_t& front, std::uint64_t count) noexcept {
        if (is_static(front)) {
            words_[(at_.first + 1u) % output_pieces_max] += count;
            front = static_mark | ((left(front) - count) << 24);
        } else {
            front += count << 24;
        }
    }

    void drop_front() noexcept {
        const std::uint64_t front = words_[at_.first];
        std::uint32_t taken = 2;
        if (!is_static(front)) {
            pool_.give(buffer_of(front), side::output, end(front));
            taken = 1;
        }
        for (std::uint32_t step = 0; step < taken; ++step) {
            words_[(at_.first + step) % output_pieces_max] = 0;
        }
        at_.words = static_cast<std::uint8_t>(at_.words - taken) & 15;
        at_.first = at_.words == 0
                        ? std::uint8_t{0}
                        : static_cast<std::uint8_t>((at_.first + taken) % output_pieces_max);
    }

    std::uint64_t* words_;
    position& at_;
    buffer_pool& pool_;
};

NETIO_END

#endif
