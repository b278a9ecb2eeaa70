// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I. fuzz/shm_ring_fuzz.cpp -o shm_ring_fuzz
//
// The bytes are the peer: they choose the ring, fill a part of the segment before this side comes
// in, and then change a word, a byte or nothing before each of its steps. The segment and the inbox
// are allocations of their own, of exactly their size. Whatever the peer does, records and claims
// lie where they may, and a broken link stays so. In a second run of the same steps nobody changes
// anything: then what one side commits the other reads, it is woken where it sleeps for that, and
// each knows who the other is.
#include "netio.hpp"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace {

using netio::shm_layout;

void shm_fuzz_check(bool holds) {
    if (!holds) {
        std::abort();
    }
}

/// Takes small numbers off the front of the fuzzer's bytes.
struct shm_fuzz_source {
    netio::bytes left;

    std::uint32_t octet() {
        if (left.empty()) {
            return 0;
        }
        const auto first = std::to_integer<std::uint32_t>(left[0]);
        left = left.subspan(1);
        return first;
    }
    std::uint32_t word() {
        std::uint32_t out = 0;
        for (int at = 0; at < 4; ++at) {
            out |= octet() << 8 * at;
        }
        return out;
    }
};

struct shm_fuzz_aligned {
    void operator()(std::byte* memory) const {
        ::operator delete[](memory, std::align_val_t{128});
    }
};

/// A segment, this side 1 of it, and what it holds.
struct shm_fuzz_world {
    explicit shm_fuzz_world(const shm_layout& of, bool borrows)
        : layout(of), byte_count(static_cast<std::size_t>(of.segment_bytes())),
          segment(static_cast<std::byte*>(::operator new[](byte_count, std::align_val_t{128}))),
          inbox(new std::byte[of.longest()]) {
        std::memset(segment.get(), 0, byte_count);
        netio::shm_side::lay_out(segment.get(), of);
        into = borrows ? netio::mutable_bytes{} : netio::mutable_bytes{inbox.get(), of.longest()};
    }
    netio::error attach(netio::shm_side& side, std::uint32_t number) {
        return side.attach(segment.get(), byte_count, number, 1 + number, into);
    }

    shm_layout layout;
    std::size_t byte_count;
    std::unique_ptr<std::byte, shm_fuzz_aligned> segment;
    std::unique_ptr<std::byte[]> inbox;
    netio::mutable_bytes into;
};

bool shm_fuzz_within(netio::bytes inner, netio::bytes outer) {
    return inner.data() >= outer.data() &&
           inner.data() + inner.size() <= outer.data() + outer.size();
}

void shm_fuzz_change(shm_fuzz_world& world, shm_fuzz_source& source) {
    // The words that are used, then the rings.
    static constexpr std::uint32_t places[] = {0, 1, 2, 3, 32, 64, 65, 96, 128, 129, 160, 192, 224,
                                               256};
    auto* const words = reinterpret_cast<netio::shm_word*>(world.segment.get());
    const std::uint32_t kind = source.octet();
    const std::uint32_t at =
        kind % 32 < 14 ? places[kind % 32]
                       : static_cast<std::uint32_t>((shm_layout::page_bytes +
                                                     (kind + 256 * source.octet()) * 4 %
                                                         (world.layout.ring_bytes * 2)) /
                                                    4);
    switch (kind >> 5) {
    case 0: words[at].store(source.word()); break;
    case 1: words[at].store(source.octet() * 8); break;
    case 2: words[at].store(words[at].load() + source.octet() * 8); break;
    case 3: words[at].store(words[at].load() - source.octet() * 8); break;
    case 4: words[at].store(source.octet()); break;
    case 5: words[at].store(1u << 31); break;
    default: break;
    }
}

void shm_fuzz_step(shm_fuzz_world& world, netio::shm_side& side, std::uint32_t what) {
    const bool was_broken = side.broken();
    const netio::bytes whole{world.segment.get(), world.byte_count};
    const netio::bytes rings = whole.subspan(shm_layout::page_bytes);
    const netio::bytes record = side.peek();
    if (!record.empty()) {
        shm_fuzz_check(!was_broken && record.size() <= side.record_max());
        shm_fuzz_check(shm_fuzz_within(
            record, world.into.empty() ? rings : netio::bytes(world.into)));
        shm_fuzz_check(side.peek().data() == record.data());
        if (what % 2 == 0) {
            side.release();
        }
    }
    const std::uint32_t wanted = 1 + (what >> 1) * side.record_max() / 128;
    const bool has_room = side.has_room(wanted);
    const netio::ring_claim to = side.claim(wanted);
    shm_fuzz_check(static_cast<bool>(to) == (has_room && !side.broken()));
    if (to) {
        shm_fuzz_check(!was_broken && to.room.size() == wanted);
        shm_fuzz_check(shm_fuzz_within(to.room, rings));
        std::memset(to.room.data(), 0xAA, to.room.size());
        side.commit(to, 1 + what % wanted);
    }
    side.announce_sleep(netio::shm_wants::both);
    static_cast<void>(side.must_wake());
    side.awake();
    shm_fuzz_check(!was_broken || side.broken());
}

void shm_fuzz_hostile(shm_fuzz_world& world, shm_fuzz_source source) {
    for (std::uint32_t before = source.octet() % 16; before != 0; --before) {
        shm_fuzz_change(world, source);
    }
    netio::shm_side side;
    if (world.attach(side, 1) != netio::error::none) {
        return;
    }
    while (!source.left.empty()) {
        shm_fuzz_change(world, source);
        shm_fuzz_step(world, side, source.octet());
    }
    static constexpr std::uint32_t own_epoch = 128, own_process = 129;
    const auto* const words = reinterpret_cast<const netio::shm_word*>(world.segment.get());
    const std::uint32_t before = words[own_epoch].load();
    side.leave();
    shm_fuzz_check(words[own_epoch].load() == before + 1 && words[own_process].load() == 0);
}

/// What each side must know of the other, and whether it is to be woken.
struct shm_fuzz_pair {
    netio::shm_side sides[2];
    std::uint32_t epochs[2] = {};
    std::uint32_t processes[2] = {};
    std::uint32_t asleep[2] = {};
    std::uint32_t owed[2] = {};

    void come(shm_fuzz_world& world, std::uint32_t which) {
        shm_fuzz_check(world.attach(sides[which], which) == netio::error::none);
        came_or_left(which, 1 + which);
        asleep[which] = 0;
    }
    void leave_and_come(shm_fuzz_world& world, std::uint32_t which) {
        sides[which].leave();
        came_or_left(which, 0);
        check();
        come(world, which);
    }
    void came_or_left(std::uint32_t which, std::uint32_t process) {
        ++epochs[which];
        processes[which] = process;
        owed[which] = netio::shm_wants::both;
    }
    void sleep(std::uint32_t which, std::uint32_t wants) {
        sides[which].announce_sleep(wants);
        asleep[which] = wants;
    }
    void wake_other(std::uint32_t which) {
        std::uint32_t& other = asleep[1 - which];
        shm_fuzz_check(sides[which].must_wake() == ((owed[which] & other) != 0));
        other &= ~owed[which];
        owed[which] = 0;
    }
    void check() const {
        for (std::uint32_t which = 0; which < 2; ++which) {
            const netio::shm_side& other = sides[1 - which];
            shm_fuzz_check(other.peer_epoch() == epochs[which]);
            shm_fuzz_check(other.peer_process() == processes[which]);
            shm_fuzz_check(&other.peer_word() == &sides[which].own_word());
            shm_fuzz_check(other.peer_word().load() == asleep[which]);
        }
    }
};

/// Memory that is not all there, or no room for a record, is refused and nothing changes.
void shm_fuzz_cut(shm_fuzz_world& world, std::size_t cut) {
    netio::shm_side side;
    std::byte* const segment = world.segment.get();
    shm_fuzz_check(side.attach(segment, world.byte_count - 1 - cut * 16 % world.byte_count, 0, 1,
                               world.into) == netio::error::rpc_transport);
    std::byte* const inbox = world.inbox.get();
    shm_fuzz_check(side.attach(segment, world.byte_count, 0, 1,
                               {inbox, world.layout.longest() - 1}) ==
                   netio::error::memory_too_small);
    shm_fuzz_check(side.broken() && !side.claim(1) && side.peek().empty());
}

void shm_fuzz_honest(shm_fuzz_world& world, shm_fuzz_source source) {
    shm_fuzz_cut(world, source.left.size() + 256 * source.octet());
    shm_fuzz_pair pair;
    netio::shm_side* const sides = pair.sides;
    pair.come(world, 0);
    pair.come(world, 1);
    std::uint32_t sent = 0;
    std::uint32_t got = 0;
    while (!source.left.empty()) {
        const std::uint32_t what = source.octet();
        const std::uint32_t wanted = 1 + what * sides[0].record_max() / 256;
        const bool has_room = sides[0].has_room(wanted);
        const netio::ring_claim to = sides[0].claim(wanted);
        shm_fuzz_check(static_cast<bool>(to) == has_room && (to || got != sent));
        if (to) {
            std::memset(to.room.data(), static_cast<int>(sent++ % 256), wanted);
            sides[0].commit(to, wanted);
            pair.owed[0] |= netio::shm_wants::record;
        }
        if (what % 3 == 0) {
            pair.come(world, what % 2);
        }
        if (what % 7 == 0) {
            pair.leave_and_come(world, what / 8 % 2);
        }
        const netio::bytes record = sides[1].peek();
        shm_fuzz_check(record.empty() == (got == sent));
        if (!record.empty() && what % 5 != 0) {
            shm_fuzz_check(std::to_integer<std::uint32_t>(record.front()) == got % 256);
            shm_fuzz_check(record.front() == record.back());
            ++got;
            sides[1].release();
            pair.owed[1] |= netio::shm_wants::room;
        }
        if (what % 11 < 4) {
            pair.sleep(what / 16 % 2, what % 11);
        }
        if (what % 2 == 0) {
            pair.wake_other(what / 4 % 2);
        }
        pair.check();
        shm_fuzz_check(!sides[0].broken() && !sides[1].broken());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
    shm_fuzz_source source{{reinterpret_cast<const std::byte*>(data), byte_count}};
    const std::uint32_t shape = source.octet();
    const shm_layout layout{64u << shape % 4, (shape & 4) != 0 ? 16u : 0u};
    const bool borrows = (shape & 8) != 0;
    shm_fuzz_world hostile(layout, borrows);
    shm_fuzz_hostile(hostile, source);
    shm_fuzz_world honest(layout, borrows);
    shm_fuzz_honest(honest, source);
    return 0;
}
