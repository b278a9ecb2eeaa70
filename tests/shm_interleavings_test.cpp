// Records in shared memory and the sleep beside them, under every schedule and stale read.
#include "netio.hpp"

#include "tests/interleavings.hpp"

#include <doctest/doctest.h>

namespace {

using namespace netio_test;

/// A segment of two records' room in each direction, what lies in them, and what each side sleeps
/// on. A thread begins with a copy of its side: what is not the model's must not outlive one run.
struct shm_model {
    using side_type = netio::basic_shm_side<model_atomic>;
    static constexpr std::uint32_t threads = 2;
    static constexpr std::uint32_t record_bytes = 24;

    alignas(128) std::byte memory[4096 + 128] = {};
    model_plain<std::uint32_t> contents[2];
    side_type fresh[2];

    explicit shm_model(std::uint32_t before) {
        side_type::lay_out(memory, {64, 0});
        for (std::uint32_t side = 0; side < 2; ++side) {
            const auto why = fresh[side].attach(memory, sizeof(memory), side, 1, {});
            model_check(why == netio::error::none, "attached");
            static_cast<void>(fresh[side].must_wake());
        }
        for (std::uint32_t at = 0; at < before; ++at) {
            put(fresh[0], fresh[0].claim(record_bytes), at);
        }
    }
    model_plain<std::uint32_t>& content(const std::byte* of) {
        return contents[(of - memory - netio::shm_layout::page_bytes) / 32];
    }
    /// Of a length that tells which it is. Each takes half of the ring.
    void put(side_type& self, const netio::ring_claim& to, std::uint32_t number) {
        content(to.room.data()) = number;
        self.commit(to, record_bytes - number);
    }
    void write(std::uint32_t first, std::uint32_t last) {
        side_type self = fresh[0];
        for (std::uint32_t at = first; at <= last; ++at) {
            netio::ring_claim to = self.claim(record_bytes);
            while (!to) {
                sleep(self, 0, netio::shm_wants::room, [&] { return self.has_room(record_bytes); });
                to = self.claim(record_bytes);
            }
            put(self, to, at);
            tell(self, 1);
        }
        model_check(!self.broken(), "whole");
    }
    void read(std::uint32_t last) {
        side_type self = fresh[1];
        for (std::uint32_t at = 0; at <= last; ++at) {
            while (self.peek().empty()) {
                sleep(self, 1, netio::shm_wants::record, [&] { return !self.peek().empty(); });
            }
            model_check(self.peek().size() == record_bytes - at, "in order");
            model_check(content(self.peek().data()) == at, "its content");
            self.release();
            tell(self, 0);
        }
        model_check(self.peek().empty() && !self.broken(), "whole");
    }
    template <class Found>
    static void sleep(side_type& self, std::uint8_t side, std::uint32_t wants, Found found) {
        self.announce_sleep(wants);
        if (!found()) {
            model_check(!self.broken(), "whole");
            model_signal{side}.sleep();
        }
        self.awake();
    }
    static void tell(side_type& self, std::uint8_t other) {
        if (self.must_wake()) {
            model_signal{other}.ring();
        }
    }
    void finish() {}
};

/// The reader waits for two records.
struct shm_model_records : shm_model {
    shm_model_records() : shm_model(0) {}
    void thread(int which) { which == 0 ? write(0, 1) : read(1); }
};

/// The ring is full, and the writer waits for room.
struct shm_model_room : shm_model {
    shm_model_room() : shm_model(2) {}
    void thread(int which) { which == 0 ? write(2, 2) : read(2); }
};

}  // namespace

TEST_CASE("interleavings: no record in shared memory is torn or lost, and no sleep is for ever") {
    const explored records = explore<shm_model_records>();
    CHECK(records.wrong == "");
    const explored room = explore<shm_model_room>();
    CHECK(room.wrong == "");
    MESSAGE(records.states << " and " << room.states << " states");
}

TEST_CASE("interleavings: shared memory asks for no stronger order than it needs") {
    // What a side finds when it comes was there before: not in these worlds.
    CHECK(weakest_orders<shm_model_records, shm_model_room>() ==
          "attach load asks for acquire, relaxed would do\n"
          "commit store needs release\n"
          "look load 1 needs acquire\n"
          "release store needs release\n"
          "look load 2 needs acquire\n"
          "lay_out store asks for release, relaxed would do\n"
          "attach fetch_add asks for release, relaxed would do\n"
          "must_wake fetch_and needs release\n"
          "announce_sleep exchange needs acquire\n"
          "read_layout load asks for acquire, relaxed would do\n");
}
