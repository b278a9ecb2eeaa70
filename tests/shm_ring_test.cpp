// Rings in shared memory: order and bytes kept, a side replaced at any step, and a peer that writes
// whatever it likes into whatever word, whenever.
#include "netio.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

using netio::error;
using shm_page = netio::detail::shm_page<netio::detail::atomic>;

std::uint64_t shm_random(std::uint64_t& state) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
}

/// A segment and its two sides, each with an inbox of exactly the longest record's size.
struct shm_box {
    struct alignas(128) line {
        std::byte at[128];
    };

    explicit shm_box(netio::shm_layout of, bool borrows = false, std::uint32_t from = 0)
        : layout(of), memory(static_cast<std::size_t>(of.segment_bytes() / 128)) {
        netio::shm_side::lay_out(data(), of);
        for (auto& each : page().rings) {
            each.tail.store(from);
            each.head.store(from);
        }
        for (int side = 0; side < 2; ++side) {
            inbox[side].resize(borrows ? 0 : of.longest());
            REQUIRE(replace(side) == error::none);
        }
    }
    std::byte* data() { return memory.front().at; }
    netio::bytes rings() {
        return {data() + netio::shm_layout::page_bytes, std::size_t{2} * layout.ring_bytes};
    }
    shm_page& page() { return *reinterpret_cast<shm_page*>(data()); }
    netio::shm_side& operator[](int side) { return *sides[side]; }

    /// As if its process had ended and another had come.
    error replace(int side) {
        sides[side].emplace();
        return sides[side]->attach(data(), static_cast<std::size_t>(layout.segment_bytes()),
                                   static_cast<std::uint32_t>(side), 1000, inbox[side]);
    }
    bool put(int side, std::string_view text) {
        const netio::ring_claim to = sides[side]->claim(static_cast<std::uint32_t>(text.size()));
        if (!to) {
            return false;
        }
        std::memcpy(to.room.data(), text.data(), text.size());
        sides[side]->commit(to, static_cast<std::uint32_t>(text.size()));
        return true;
    }
    std::string get(int side) {
        const std::string text(netio::as_text(sides[side]->peek()));
        if (!text.empty()) {
            sides[side]->release();
        }
        return text;
    }

    netio::shm_layout layout;
    std::vector<line> memory;
    std::vector<std::byte> inbox[2];
    std::optional<netio::shm_side> sides[2];
};

std::string shm_text(std::uint64_t& state, std::uint32_t most) {
    const auto size = static_cast<std::size_t>(1 + shm_random(state) % most);
    std::string out(size, '\0');
    for (char& each : out) {
        each = static_cast<char>(shm_random(state));
    }
    return out;
}

}  // namespace

TEST_CASE("shared_memory_frames_are_bounded") {
    shm_box box({4096, 1000});
    const std::string call(868, 'c');
    const std::string reply(40, 'r');
    for (int trip = 0; trip < 10'000; ++trip) {
        REQUIRE(box.put(0, call));
        REQUIRE(box.get(1) == call);
        REQUIRE(box.put(1, reply));
        REQUIRE(box.get(0) == reply);
    }
    CHECK(box[0].record_max() == 1000);
    CHECK_FALSE(box[0].claim(1001));
    CHECK(box.put(0, std::string(1000, 'x')));
    CHECK(box.get(1) == std::string(1000, 'x'));
    CHECK_FALSE(box[0].broken());
    CHECK_FALSE(box[1].broken());
}

TEST_CASE("shm ring: random writes and reads keep order and bytes, past the end of positions") {
    for (const std::uint32_t size : {64u, 128u, 4096u}) {
        for (const std::uint32_t from : {0u, 0u - 4096u}) {
            shm_box box({size, 0}, from == 0, from);
            std::deque<std::string> model[2];
            std::uint64_t state = size + 1;
            std::uint64_t full = 0;
            for (int step = 0; step < 20'000; ++step) {
                const int side = static_cast<int>(shm_random(state) % 2);
                if (shm_random(state) % 2 == 0) {
                    const std::string text = shm_text(state, box.layout.longest());
                    if (box.put(side, text)) {
                        model[side].push_back(text);
                    } else {
                        REQUIRE_FALSE(model[side].empty());  // empty, it has room for the largest
                        ++full;
                    }
                } else {
                    std::deque<std::string>& from_other = model[1 - side];
                    REQUIRE(box.get(side) == (from_other.empty() ? "" : from_other.front()));
                    if (!from_other.empty()) {
                        from_other.pop_front();
                    }
                }
            }
            CHECK(full > 100);
            CHECK_FALSE(box[0].broken());
            CHECK_FALSE(box[1].broken());
        }
    }
}

TEST_CASE("shm ring: records of every size up to the largest, and none above") {
    shm_box box({128, 0});
    CHECK(box[0].record_max() == 56);
    CHECK_FALSE(box[0].claim(0));
    for (std::uint32_t size = 1; size <= 56; ++size) {
        for (int lap = 0; lap < 5; ++lap) {  // at every place that it can have
            const std::string text(size, static_cast<char>('a' + lap));
            REQUIRE(box.put(0, text));
            REQUIRE(box.get(1) == text);
        }
    }
    for (const std::uint32_t size : {57u, 127u, 128u, 0x7FFFFFFFu, 0xFFFFFFF9u, 0xFFFFFFFFu}) {
        CHECK_FALSE(box[0].claim(size));
    }
}

TEST_CASE("shm ring: what is claimed is nobody's until it is committed, and may be shorter") {
    shm_box box({128, 0});
    for (int lap = 0; lap < 20; ++lap) {
        CHECK(box[0].claim(56));  // its place, and a skip before it, are taken back
        const netio::ring_claim to = box[0].claim(30);
        REQUIRE(to);
        CHECK(to.room.size() == 30);
        CHECK(box[1].peek().empty());
        std::memcpy(to.room.data(), "short", 5);
        box[0].commit(to, 5);
        CHECK(box.put(0, "next"));
        CHECK(box.get(1) == "short");
        CHECK(box.get(1) == "next");
        CHECK(box.get(1).empty());
    }
}

TEST_CASE("shm ring: a record stays the same until its release, whatever is written over it") {
    shm_box box({128, 0});
    REQUIRE(box.put(0, "checked"));
    const netio::bytes record = box[1].peek();
    std::memset(box.data() + netio::shm_layout::page_bytes, 0xFF, 128);
    CHECK(netio::as_text(record) == "checked");
    CHECK(netio::as_text(box[1].peek()) == "checked");
    box[1].release();
    CHECK(box[1].peek().empty());
    CHECK_FALSE(box[1].broken());
    shm_box lent({128, 0}, true);
    REQUIRE(lent.put(0, "lent"));
    CHECK(lent[1].peek().data() == lent.data() + netio::shm_layout::page_bytes + 8);
}

TEST_CASE("shm ring: a side is replaced between any two steps, and no committed record is lost") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        shm_box box({seed % 2 == 0 ? 64u : 512u, 0}, false, 0u - 1024u);
        std::deque<std::string> model;
        std::uint64_t state = seed;
        for (int step = 0; step < 2000; ++step) {
            switch (shm_random(state) % 5) {
            case 0: {
                const std::string text = shm_text(state, box.layout.longest());
                if (box.put(0, text)) {
                    model.push_back(text);
                }
                break;
            }
            case 1:
                REQUIRE(box.get(1) == (model.empty() ? "" : model.front()));
                if (!model.empty()) {
                    model.pop_front();
                }
                break;
            case 2:  // the writer, in the middle of a record
                if (const netio::ring_claim to = box[0].claim(box.layout.longest())) {
                    std::memset(to.room.data(), 0xEE, to.room.size() / 2);
                }
                REQUIRE(box.replace(0) == error::none);
                break;
            case 3:  // the reader, in the middle of one: the next reads it again
                REQUIRE(netio::as_text(box[1].peek()) == (model.empty() ? "" : model.front()));
                REQUIRE(box.replace(1) == error::none);
                break;
            default:
                REQUIRE(box.replace(static_cast<int>(shm_random(state) % 2)) == error::none);
            }
        }
    }
}

namespace {

/// Values that are wrong in a way of their own, or right by accident.
std::uint32_t shm_evil(std::uint64_t& state, std::uint32_t present) {
    const auto random = static_cast<std::uint32_t>(shm_random(state));
    switch (shm_random(state) % 8) {
    case 0: return random;
    case 1: return random & ~7u;
    case 2: return present + 8 * (random % 8);
    case 3: return present - 8 * (random % 8);
    case 4: return 1u << random % 32;
    case 5: return present ^ 1u << random % 32;
    case 6: return random % 128;
    default: return 0u - random % 128;
    }
}

bool shm_within(netio::bytes inner, netio::bytes outer) {
    return inner.data() >= outer.data() &&
           inner.data() + inner.size() <= outer.data() + outer.size();
}

/// Does what an honest side does, and looks at what it is given. (The peer may have made the rings
/// smaller than they were, before this one came.)
void shm_honest_step(shm_box& box, std::uint64_t& state) {
    netio::shm_side& self = box[1];
    const bool was_broken = self.broken();
    const netio::bytes record = self.peek();
    if (!record.empty()) {
        REQUIRE_FALSE(was_broken);
        REQUIRE(record.size() <= self.record_max());
        REQUIRE(shm_within(record, box.inbox[1].empty() ? box.rings() : box.inbox[1]));
        if (shm_random(state) % 2 == 0) {
            self.release();
        }
    }
    const auto wanted = static_cast<std::uint32_t>(1 + shm_random(state) % self.record_max());
    if (const netio::ring_claim to = self.claim(wanted)) {
        REQUIRE_FALSE(was_broken);
        REQUIRE(shm_within(to.room, box.rings()));
        std::memset(to.room.data(), 0x55, to.room.size());
        self.commit(to, wanted);
    }
    self.announce_sleep(netio::shm_wants::both);
    static_cast<void>(self.must_wake());
    self.awake();
    if (was_broken) {
        REQUIRE(self.broken());
    }
}

}  // namespace

TEST_CASE("shm ring: whatever word the peer changes at whatever step, nothing outside is touched") {
    std::uint64_t state = 7;
    int broken = 0;
    int whole = 0;
    for (int round = 0; round < 20'000; ++round) {
        shm_box box({round % 2 == 0 ? 64u : 256u, 0}, round % 3 == 0,
                    static_cast<std::uint32_t>(shm_random(state)) & ~7u);
        const std::uint32_t words = netio::shm_layout::page_bytes / 4 + box.layout.ring_bytes / 2;
        const int steps = static_cast<int>(shm_random(state) % 12);
        for (int step = 0; step < 16; ++step) {
            static_cast<void>(box.put(0, shm_text(state, box.layout.longest())));
            shm_honest_step(box, state);
            static_cast<void>(box.get(0));
            if (step >= steps) {
                // One of the words of the page that is used, or any word of the rings.
                static constexpr std::uint32_t used[] = {0,   1,   2,   3,   32,  64,  65, 96,
                                                         128, 129, 160, 192, 224, 256};
                const std::uint32_t at =
                    shm_random(state) % 2 == 0
                        ? used[shm_random(state) % 14]
                        : 1024 + static_cast<std::uint32_t>(shm_random(state) % (words - 1024));
                auto& word = reinterpret_cast<netio::shm_word*>(box.data())[at];
                word.store(shm_evil(state, word.load()));
            }
        }
        (box[1].broken() ? broken : whole) += 1;
        if (shm_random(state) % 4 == 0) {  // another honest one, in what is left
            const error why = box.replace(1);
            REQUIRE((why == error::none || why == error::rpc_transport));
            if (why == error::none) {
                shm_honest_step(box, state);
            }
        }
    }
    CHECK(broken > 1000);
    CHECK(whole > 1000);
}

TEST_CASE("shm ring: each rule of the peer's words, broken, ends the link for good") {
    using netio::shm_layout;
    const auto ends = [](auto&& breach) {
        shm_box box({128, 40});
        REQUIRE(box.put(1, "mine"));
        REQUIRE(box.put(0, "first"));
        REQUIRE(box.put(0, "second"));
        breach(box.page(), reinterpret_cast<netio::shm_word*>(box.data() + shm_layout::page_bytes));
        for (int lap = 0; lap < 2; ++lap) {
            for (int count = 0; count < 8; ++count) {
                if (!box[1].peek().empty()) {
                    box[1].release();
                }
                static_cast<void>(box.put(1, "more"));
            }
        }
        // Even if it is mended then.
        box.page().rings[0].tail.store(0);
        box.page().rings[1].head.store(0);
        return box[1].broken() && box[1].peek().empty() && !box[1].claim(1);
    };
    CHECK_FALSE(ends([](shm_page& page, netio::shm_word*) { page.rings[1].head.store(16); }));
    CHECK(ends([](shm_page& page, netio::shm_word*) { page.rings[1].head.store(12); }));
    CHECK(ends([](shm_page& page, netio::shm_word*) { page.rings[1].head.store(0u - 8); }));
    CHECK(ends([](shm_page& page, netio::shm_word*) { page.rings[1].head.store(4096); }));
    CHECK(ends([](shm_page& page, netio::shm_word*) { page.rings[0].tail.store(30); }));
    CHECK(ends([](shm_page& page, netio::shm_word*) { page.rings[0].tail.store(32 + 128); }));
    CHECK(ends([](shm_page& page, netio::shm_word*) { page.rings[0].tail.store(0u - 8); }));
    CHECK(ends([](shm_page&, netio::shm_word* ring) { ring[0].store(0); }));
    CHECK(ends([](shm_page&, netio::shm_word* ring) { ring[0].store(41); }));  // longest is 40
    CHECK(ends([](shm_page&, netio::shm_word* ring) { ring[0].store(25); }));  // more than there is
    CHECK(ends([](shm_page&, netio::shm_word* ring) { ring[0].store(0xFFFFFFFF); }));
    CHECK(ends([](shm_page&, netio::shm_word* ring) { ring[0].store(1u << 31); }));
    CHECK(ends([](shm_page&, netio::shm_word* ring) { ring[4].store(1u << 31 | 8); }));
}

TEST_CASE("shm ring: a record across an end, of the ring or of what is committed, is not given") {
    shm_box box({128, 0});
    for (int count = 0; count < 5; ++count) {
        REQUIRE(box.put(0, std::string(8, 'x')));
        REQUIRE(box.get(1).size() == 8);
    }
    auto* const ring = reinterpret_cast<netio::shm_word*>(box.data() + 4096);
    SUBCASE("across") {
        ring[20].store(48);  // 56 bytes at 80 of 128
        box.page().rings[0].tail.store(80 + 56);
    }
    SUBCASE("skip behind a skip") {
        ring[20].store(1u << 31);
        ring[0].store(1u << 31);
        box.page().rings[0].tail.store(80 + 128);
    }
    SUBCASE("past what is committed") {
        ring[20].store(9);  // 24 bytes, of which 16 are there
        box.page().rings[0].tail.store(80 + 16);
    }
    SUBCASE("a skip past what is committed") {
        ring[20].store(1u << 31);
        box.page().rings[0].tail.store(80 + 16);
    }
    SUBCASE("nothing behind a skip") {
        ring[20].store(1u << 31);
        box.page().rings[0].tail.store(128);
    }
    CHECK(box[1].peek().empty());
    CHECK(box[1].broken());
}

TEST_CASE("shm ring: a segment that does not say what it must is not attached to") {
    const auto attached = [](auto&& breach, std::size_t cut = 0) {
        shm_box box({128, 40});
        breach(box.page());
        netio::shm_side side;
        return side.attach(box.data(), 4096 + 256 - cut, 1, 7, box.inbox[1]);
    };
    CHECK(attached([](shm_page&) {}) == error::none);
    CHECK(attached([](shm_page&) {}, 1) == error::rpc_transport);
    CHECK(attached([](shm_page&) {}, 4096 + 256) == error::rpc_transport);
    CHECK(attached([](shm_page& page) { page.magic.store(0); }) == error::rpc_transport);
    CHECK(attached([](shm_page& page) { page.version.store(2); }) == error::rpc_transport);
    for (const std::uint32_t size : {0u, 32u, 96u, 256u, 1u << 31, 0xFFFFFFFFu}) {
        CHECK(attached([=](shm_page& page) { page.ring_bytes.store(size); }) ==
              error::rpc_transport);
    }
    for (const std::uint32_t most : {0u, 57u, 1u << 31, 0xFFFFFFFFu}) {
        CHECK(attached([=](shm_page& page) { page.record_max.store(most); }) ==
              error::rpc_transport);
    }
    // More than the inbox takes.
    CHECK(attached([](shm_page& page) { page.record_max.store(41); }) == error::memory_too_small);
    for (const std::uint32_t at : {4u, 8u, 136u}) {
        for (int ring = 0; ring < 2; ++ring) {
            CHECK(attached([=](shm_page& page) { page.rings[ring].head.store(at); }) ==
                  error::rpc_transport);
            CHECK(attached([=](shm_page& page) { page.rings[ring].tail.store(0u - at); }) ==
                  error::rpc_transport);
        }
    }
}

TEST_CASE("shm ring: positions of a segment are multiples of eight, each for itself") {
    for (int ring = 0; ring < 2; ++ring) {
        for (const std::uint32_t odd : {1u, 4u, 7u}) {
            for (const bool of_head : {true, false}) {
                shm_box box({128, 40});
                // Either way the writer is ahead of its reader, by no more than the ring has.
                box.page().rings[ring].head.store(of_head ? odd : 0);
                box.page().rings[ring].tail.store(of_head ? 8 : odd);
                CHECK(box.replace(0) == error::rpc_transport);
                CHECK(box.replace(1) == error::rpc_transport);
            }
        }
    }
}

TEST_CASE("shm ring: rings are powers of two from 64 to 2^30, records half of one less a head") {
    using netio::shm_layout;
    CHECK(shm_layout{64, 24}.valid());
    CHECK_FALSE(shm_layout{64, 25}.valid());
    CHECK(shm_layout{64}.longest() == 24);
    CHECK_FALSE(shm_layout{32}.valid());
    CHECK_FALSE(shm_layout{96}.valid());
    CHECK(shm_layout{1u << 30}.valid());
    CHECK_FALSE(shm_layout{1u << 31}.valid());
    CHECK(shm_layout{1u << 30}.segment_bytes() == 4096 + (std::uint64_t{1} << 31));
}

TEST_CASE("shm ring: the other side is woken for what it sleeps for, once") {
    using netio::shm_wants;
    shm_box box({256, 0});
    CHECK_FALSE(box[0].must_wake());  // both have come, but nobody sleeps
    CHECK_FALSE(box[1].must_wake());
    box[1].announce_sleep(shm_wants::record);
    CHECK_FALSE(box[0].must_wake());  // nothing to tell
    REQUIRE(box.put(0, "one"));
    REQUIRE(box.put(0, "two"));
    CHECK(box[1].own_word().load() == shm_wants::record);
    CHECK(box[0].must_wake());
    CHECK(box[1].own_word().load() == 0);
    CHECK_FALSE(box[0].must_wake());
    REQUIRE(box.put(0, "three"));
    CHECK_FALSE(box[0].must_wake());  // it was woken already
    box[0].announce_sleep(shm_wants::record);
    CHECK(box.get(1) == "one");
    CHECK_FALSE(box[1].must_wake());  // for room it does not sleep
    box[0].announce_sleep(shm_wants::both);
    CHECK(box.get(1) == "two");
    CHECK(box[1].must_wake());
    CHECK(box[0].own_word().load() == shm_wants::record);
    box[0].awake();
    CHECK(box[0].own_word().load() == 0);
    const std::uint32_t epoch = box[0].peer_epoch();
    box[0].announce_sleep(shm_wants::record);
    box[1].leave();
    CHECK(box[1].must_wake());
    CHECK(box[0].peer_epoch() == epoch + 1);
    CHECK(box[0].peer_process() == 0);
}

TEST_CASE("shm ring: both sides on threads of their own lose nothing [threads]") {
    shm_box box({1024, 0});
    constexpr std::uint32_t count = 50'000;
    std::thread other([&box] {  // gives back what it gets
        for (std::uint32_t number = 0; number < count;) {
            const netio::bytes record = box[1].peek();
            const netio::ring_claim to =
                box[1].claim(record.empty() ? 1 : static_cast<std::uint32_t>(record.size()));
            if (record.empty() || !to) {
                std::this_thread::yield();
                continue;
            }
            std::memcpy(to.room.data(), record.data(), record.size());
            box[1].release();
            box[1].commit(to, static_cast<std::uint32_t>(to.room.size()));
            ++number;
        }
    });
    bool right = true;
    std::uint32_t sent = 0;
    for (std::uint32_t number = 0; number < count;) {
        if (const netio::ring_claim to = box[0].claim(4 + sent % 200); sent < count && to) {
            std::memset(to.room.data(), static_cast<int>(sent % 251), to.room.size());
            std::memcpy(to.room.data(), &sent, sizeof(sent));
            box[0].commit(to, 4 + sent % 200);
            ++sent;
        }
        const netio::bytes record = box[0].peek();
        if (record.empty()) {
            std::this_thread::yield();
            continue;
        }
        std::uint32_t said = 0;
        std::memcpy(&said, record.data(), sizeof(said));
        right = right && said == number && record.size() == 4 + number % 200 &&
                (record.size() == 4 || record.back() == static_cast<std::byte>(number % 251));
        box[0].release();
        ++number;
    }
    other.join();
    CHECK(right);
    CHECK_FALSE(box[0].broken());
    CHECK_FALSE(box[1].broken());
}
