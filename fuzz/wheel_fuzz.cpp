// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/wheel_fuzz.cpp -o fuzz.out
//
// The timing wheel against a list that is searched in full. Bytes choose arms, cancels, jumps of
// the clock, bounds, and what callbacks do. A node must fire at the first expire at or after its
// tick and at no other, in the order of ticks, whatever was armed or cancelled meanwhile.
#include "netio.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr std::uint32_t wheel_fuzz_count = 40;
constexpr std::uint64_t wheel_fuzz_never = netio::wheel::never;

struct wheel_fuzz_input {
    const std::uint8_t* data;
    std::size_t left;

    std::uint8_t byte() {
        if (left == 0) {
            return 0;
        }
        --left;
        return *data++;
    }
    std::uint32_t index() { return byte() % wheel_fuzz_count; }
    /// A distance near a power of two, or a small one.
    std::uint64_t distance() {
        const std::uint8_t shape = byte();
        if (shape < 64) {
            return (std::uint64_t{1} << shape) + byte() % 3 - 1;
        }
        return shape < 96 ? shape - 64u : shape * std::uint64_t{byte()};
    }
};

void wheel_fuzz_require(bool held) {
    if (!held) {
        std::abort();
    }
}

struct wheel_fuzz_model {
    struct entry {
        bool armed;
        bool late;              // was due already when it was armed
        bool fresh;             // armed by a callback of the expire that runs, and late
        std::uint64_t due;
    };

    alignas(8) std::byte heads[netio::wheel::heads_bytes] = {};
    netio::wheel_node nodes[wheel_fuzz_count] = {};
    entry entries[wheel_fuzz_count] = {};
    netio::wheel wheel;
    wheel_fuzz_input input;
    std::uint64_t now = 0;
    bool inside = false;
    bool rest = false;          // a bounded expire may have left something

    explicit wheel_fuzz_model(wheel_fuzz_input from) : input(from) {
        now = input.distance();
        wheel.attach(heads, reinterpret_cast<std::byte*>(nodes), sizeof(netio::wheel_node),
                     wheel_fuzz_count, now);
    }

    std::uint64_t ahead() {
        const std::uint64_t distance = input.distance();
        return distance > wheel_fuzz_never - now ? wheel_fuzz_never : now + distance;
    }
    std::uint64_t some_tick() {
        const std::uint8_t kind = input.byte() % 8;
        if (kind == 0) {
            return wheel_fuzz_never;
        }
        if (kind == 1) {
            const std::uint64_t back = input.distance();
            return back > now ? 0 : now - back;
        }
        return ahead();
    }

    void note_armed(std::uint32_t index, std::uint64_t due) {
        entry& noted = entries[index];
        if (!noted.armed || noted.due != due) {
            noted = {true, due <= now, inside && due <= now, due};
        }
    }
    void arm(std::uint32_t index, std::uint64_t due) {
        wheel.arm(index, due);
        note_armed(index, due);
    }
    void cancel(std::uint32_t index) {
        wheel.cancel(index);
        entries[index] = {};
    }
    void change_something() {
        const std::uint32_t index = input.index();
        if (input.byte() % 3 == 0) {
            cancel(index);
        } else {
            arm(index, some_tick());
        }
    }

    std::uint64_t fire(std::uint32_t index, std::uint64_t& latest) {
        entry& fired = entries[index];
        wheel_fuzz_require(fired.armed && !fired.fresh && fired.due <= now);
        wheel_fuzz_require(!wheel.armed(index));
        if (!rest) {  // late ones first, then in the order of ticks
            const std::uint64_t place = fired.late ? 0 : fired.due;
            wheel_fuzz_require(place >= latest);
            latest = place;
        }
        fired = {};
        const std::uint8_t deed = input.byte() % 8;
        if (deed < 2) {
            change_something();
        } else if (deed == 2) {
            arm(index, some_tick());
        } else if (deed == 3) {
            const std::uint64_t later = some_tick();
            if (later != netio::wheel::done) {
                note_armed(index, later);
            }
            return later;
        }
        return netio::wheel::done;
    }

    void expire(std::uint64_t told, std::uint32_t most) {
        const std::uint64_t clipped = told < wheel_fuzz_never ? told : wheel_fuzz_never - 1;
        now = clipped > now ? clipped : now;
        std::uint64_t latest = 0;
        inside = true;
        const std::uint32_t fired = wheel.expire(
            told, most, [&](std::uint32_t index) noexcept { return fire(index, latest); });
        inside = false;
        wheel_fuzz_require(fired <= most);
        // Each node is moved down at most once a level, so this bound never cuts.
        const bool whole = most >= wheel_fuzz_count * 16;
        rest = whole ? false : rest || wheel.next_due() <= now;
        for (entry& one : entries) {
            wheel_fuzz_require(!whole || !one.armed || one.fresh || one.due > now);
            one.fresh = false;
        }
    }

    /// What a loop does that sleeps until the next deadline.
    void wake() {
        const std::uint64_t next = wheel.next_due();
        expire(next == wheel_fuzz_never ? now : next, wheel_fuzz_count * 16);
    }

    void check() {
        std::uint32_t armed_count = 0;
        std::uint64_t earliest = wheel_fuzz_never;
        for (std::uint32_t index = 0; index < wheel_fuzz_count; ++index) {
            const entry& one = entries[index];
            wheel_fuzz_require(wheel.armed(index) == one.armed);
            if (one.armed) {
                wheel_fuzz_require(wheel.due(index) == one.due);
                ++armed_count;
                earliest = one.due < earliest ? one.due : earliest;
            }
        }
        wheel_fuzz_require(wheel.count() == armed_count);
        wheel_fuzz_require(wheel.next_due() <= earliest);
    }

    void step() {
        switch (input.byte() % 8) {
        case 0: expire(ahead(), wheel_fuzz_count * 16); break;
        case 1: expire(now + 1, wheel_fuzz_count * 16); break;
        case 2: wake(); break;
        case 3: expire(some_tick(), input.byte() % 16); break;
        case 4: expire(input.distance(), wheel_fuzz_count * 16); break;
        default: change_something(); break;
        }
    }

    /// From wherever the bytes left it: everything armed comes, each at its own tick.
    void finish() {
        input.left = 0;  // callbacks read zeros from here on: they cancel node 0
        for (std::uint32_t turns = 0; wheel.next_due() != wheel_fuzz_never; ++turns) {
            wheel_fuzz_require(turns < wheel_fuzz_count * 20);
            const std::uint64_t next = wheel.next_due();
            wheel_fuzz_require(next == 0 || next > now || rest);
            expire(next, wheel_fuzz_count * 16);
            check();
        }
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
    wheel_fuzz_model model{{data, byte_count < 4096 ? byte_count : 4096}};
    while (model.input.left != 0) {
        model.step();
        model.check();
    }
    model.finish();
    return 0;
}
