// The words that threads share, under every schedule and stale read. First the checker itself.
#include <doctest/doctest.h>

#include "tests/interleavings.hpp"

namespace netio_test::interleavings {

using enum ordering;
using model_outcomes = std::set<std::string>;

namespace {

// ---- what is known of the memory model, as small worlds

void note(int which, int value) {
    model_note(static_cast<std::uint32_t>(which), static_cast<std::uint64_t>(value));
}

/// Each writes its word and looks at the other's.
template <ordering Store, ordering Load>
struct store_buffering {
    static constexpr std::uint32_t threads = 2;
    model_atomic<int> words[2];
    void thread(int which) {
        words[which].store(1, Store);
        note(which, words[1 - which].load(Load));
    }
    void finish() {}
};

template <ordering Store, ordering Load>
struct message_passing {
    static constexpr std::uint32_t threads = 2;
    model_atomic<int> data;
    model_atomic<int> flag;
    void thread(int which) {
        if (which == 0) {
            data.store(1, ordering::relaxed);
            flag.store(1, Store);
        } else {
            note(0, flag.load(Load));
            note(1, data.load(ordering::relaxed));
        }
    }
    void finish() {}
};

/// Each looks at one word and then writes the other.
template <ordering Load, ordering Store>
struct load_buffering {
    static constexpr std::uint32_t threads = 2;
    model_atomic<int> words[2];
    void thread(int which) {
        note(which, words[which].load(Load));
        words[1 - which].store(1, Store);
    }
    void finish() {}
};

/// Each writes what it found: nothing comes from nowhere.
struct copying {
    static constexpr std::uint32_t threads = 2;
    model_atomic<int> words[2];
    void thread(int which) {
        const int found = words[which].load(ordering::relaxed);
        note(which, found);
        words[1 - which].store(found, ordering::relaxed);
    }
    void finish() {}
};

/// A mark and then a flag, by exchanges: who takes the flag finds the mark, or it is lost.
template <ordering Flag>
struct marking {
    static constexpr std::uint32_t threads = 2;
    model_atomic<int> mark;
    model_atomic<int> between;
    model_atomic<int> flag;
    void thread(int which) {
        if (which == 0) {
            mark.fetch_or(1, ordering::relaxed);
            between.fetch_or(1, ordering::relaxed);
            flag.fetch_or(1, Flag);
        } else if (flag.exchange(0, ordering::acquire) == 1) {
            note(0, 1 + mark.exchange(0, ordering::relaxed));
            between.load(ordering::relaxed);
        }
    }
    void finish() {}
};

/// Two writers of one word, and somebody who looks twice.
struct coherence {
    static constexpr std::uint32_t threads = 3;
    model_atomic<int> word;
    void thread(int which) {
        if (which < 2) {
            word.store(which + 1, ordering::relaxed);
        } else {
            note(0, word.load(ordering::relaxed));
            note(1, word.load(ordering::relaxed));
        }
    }
    void finish() { note(2, word.load(ordering::relaxed)); }
};

/// Two who write both words, each in its own order.
template <ordering Store>
struct crossed_stores {
    static constexpr std::uint32_t threads = 2;
    model_atomic<int> words[2];
    void thread(int which) {
        words[which].store(1, Store);
        words[1 - which].store(2, Store);
    }
    void finish() {
        note(0, words[0].load());
        note(1, words[1].load());
    }
};

/// What the first one released passes through the second to the third, or does not.
template <bool Exchanges>
struct release_sequence {
    static constexpr std::uint32_t threads = 3;
    model_plain<int> data;
    model_atomic<int> word;
    void thread(int which) {
        if (which == 0) {
            data = 7;
            word.store(1, ordering::release);
        } else if (which == 1) {
            while (word.load(ordering::relaxed) != 1) {
                model_yield();
            }
            if (Exchanges) {
                word.fetch_add(1, ordering::relaxed);
            } else {
                word.store(2, ordering::relaxed);
            }
        } else if (word.load(ordering::acquire) == 2) {
            note(0, data);
        }
    }
    void finish() {}
};

/// Two writers; do two who look see them in the same order?
template <ordering How>
struct two_observers {
    static constexpr std::uint32_t threads = 4;
    static constexpr ordering store_order =
        How == ordering::one_order ? ordering::one_order : ordering::release;
    model_atomic<int> words[2];
    void thread(int which) {
        if (which < 2) {
            words[which].store(1, store_order);
        } else {
            note(2 * which - 4, words[which - 2].load(How));
            note(2 * which - 3, words[3 - which].load(How));
        }
    }
    void finish() {}
};

/// A store of one order and a flag after it: the flag may be seen before.
template <ordering Store, ordering Load>
struct overtaken_store {
    static constexpr std::uint32_t threads = 2;
    model_atomic<int> word;
    model_atomic<int> flag;
    void thread(int which) {
        if (which == 0) {
            word.store(1);
            flag.store(1, Store);
        } else {
            note(0, flag.load(Load));
            note(1, word.load());
        }
    }
    void finish() {}
};

/// Adds, and an exchange that one of two wins.
struct counting {
    static constexpr std::uint32_t threads = 2;
    model_atomic<std::uint8_t> sum = 255;
    model_atomic<std::uint32_t> once;
    void thread(int which) {
        sum.fetch_add(1, ordering::relaxed);
        std::uint32_t seen = 0;
        note(which, once.compare_exchange_weak(seen, 1, ordering::relaxed) ? 1 : 0);
    }
    void finish() { note(2, sum.load()); }
};

template <ordering Store, ordering Load, bool Comes>
struct waiting_for {
    static constexpr std::uint32_t threads = 2;
    model_plain<int> data;
    model_atomic<int> flag;
    void thread(int which) {
        if (which == 1) {
            data = 5;
            flag.store(1, ordering::relaxed);
            flag.store(Comes ? 2 : 1, Store);
        } else {
            while (flag.load(Load) != 2) {
                model_yield();
            }
            model_check(data == 5, "what was written before the flag");
        }
    }
    void finish() {}
};

/// Rings that come together end one sleep.
template <int Sleeps>
struct rung {
    static constexpr std::uint32_t threads = 3;
    void thread(int which) {
        const model_signal bell{0};
        if (which != 2) {
            bell.ring();
            return;
        }
        for (int times = 0; times < Sleeps; ++times) {
            bell.sleep();
        }
    }
    void finish() {}
};

/// Every outcome in so many binary digits.
model_outcomes all_but(int digit_count, const model_outcomes& never) {
    model_outcomes out;
    for (int bits = 0; bits < 1 << digit_count; ++bits) {
        std::string one;
        for (int at = digit_count; at-- != 0;) {
            one += (bits >> at & 1) != 0 ? "1 " : "0 ";
        }
        one.pop_back();
        if (never.count(one) == 0) {
            out.insert(one);
        }
    }
    return out;
}

}  // namespace

TEST_CASE("interleavings: two that write and then look miss each other, but in one order") {
    CHECK(explore<store_buffering<relaxed, relaxed>>().outcomes == all_but(2, {}));
    CHECK(explore<store_buffering<release, acquire>>().outcomes == all_but(2, {}));
    CHECK(explore<store_buffering<one_order, acquire>>().outcomes == all_but(2, {}));
    CHECK(explore<store_buffering<release, one_order>>().outcomes == all_but(2, {}));
    CHECK(explore<store_buffering<one_order, one_order>>().outcomes == all_but(2, {"0 0"}));
    CHECK(explore<store_buffering<relaxed, relaxed>>().ends == 4);
    CHECK(explore<store_buffering<one_order, one_order>>().ends == 3);
}

TEST_CASE("interleavings: a flag passes on what was written before it, if released and acquired") {
    CHECK(explore<message_passing<relaxed, relaxed>>().outcomes == all_but(2, {}));
    CHECK(explore<message_passing<release, relaxed>>().outcomes == all_but(2, {}));
    CHECK(explore<message_passing<relaxed, acquire>>().outcomes == all_but(2, {}));
    CHECK(explore<message_passing<release, acquire>>().outcomes == all_but(2, {"1 0"}));
    CHECK(explore<message_passing<one_order, one_order>>().outcomes == all_but(2, {"1 0"}));
}

TEST_CASE("interleavings: a write may come before what its thread looks at first") {
    CHECK(explore<load_buffering<relaxed, relaxed>>().outcomes == all_but(2, {}));
    CHECK(explore<load_buffering<acquire, relaxed>>().outcomes == all_but(2, {"1 1"}));
    CHECK(explore<load_buffering<relaxed, release>>().outcomes == all_but(2, {"1 1"}));
    CHECK(explore<copying>().outcomes == model_outcomes{"0 0"});
    CHECK(explore<marking<relaxed>>().outcomes == model_outcomes{"0", "1", "2"});
    CHECK(explore<marking<release>>().outcomes == model_outcomes{"0", "2"});
}

TEST_CASE("interleavings: nobody sees one word go back, and its last value is one for all") {
    CHECK(explore<coherence>().outcomes ==
          model_outcomes{"0 0 1", "0 0 2", "0 1 1", "0 1 2", "0 2 1", "0 2 2", "1 1 1", "1 1 2",
                         "1 2 2", "2 1 1", "2 2 1", "2 2 2"});
}

TEST_CASE("interleavings: stores of two words come as the threads make them, in one order only") {
    CHECK(explore<crossed_stores<relaxed>>().outcomes ==
          model_outcomes{"1 1", "1 2", "2 1", "2 2"});
    CHECK(explore<crossed_stores<release>>().outcomes.count("1 1") == 1);
    CHECK(explore<crossed_stores<one_order>>().outcomes == model_outcomes{"1 2", "2 1", "2 2"});
}

TEST_CASE("interleavings: a release goes on through exchanges, not through another's store") {
    const explored exchanged = explore<release_sequence<true>>();
    CHECK(exchanged.wrong == "");
    CHECK(exchanged.outcomes == model_outcomes{"0", "7"});
    CHECK(explore<release_sequence<false>>().found("race: plain data is read"));
}

TEST_CASE("interleavings: two observers see two stores in different orders, but in one order") {
    CHECK(explore<two_observers<acquire>>().outcomes == all_but(4, {}));
    CHECK(explore<two_observers<one_order>>().outcomes == all_but(4, {"1 0 1 0"}));
}

TEST_CASE("interleavings: the one order need not be the order of the steps") {
    CHECK(explore<overtaken_store<relaxed, relaxed>>().outcomes == all_but(2, {}));
    CHECK(explore<overtaken_store<release, acquire>>().outcomes == all_but(2, {"1 0"}));
}

TEST_CASE("interleavings: no add is lost; one exchange wins, but may fail for no reason") {
    CHECK(explore<counting>().outcomes == model_outcomes{"0 1 1", "1 0 1"});
    CHECK(explore<counting>({}, 2).outcomes == model_outcomes{"0 1 1", "1 0 1", "0 0 1"});
}

TEST_CASE("interleavings: races, waits that end and waits that don't are told") {
    const explored waited = explore<waiting_for<release, acquire, true>>();
    CHECK(waited.wrong == "");
    CHECK(waited.ends == 4);  // it saw no flag or not, and the first one or not
    CHECK(explore<waiting_for<relaxed, acquire, true>>().found("race: plain data is read"));
    CHECK(explore<waiting_for<release, relaxed, true>>().found("race: plain data is read"));
    CHECK(explore<waiting_for<release, acquire, false>>().found("asleep for ever"));
    CHECK(explore<rung<1>>().wrong == "");
    CHECK(explore<rung<2>>().found("asleep for ever"));
}

namespace {

// ---- posts

using model_queue = netio::basic_post_queue<model_atomic, model_plain<netio::post>>;

struct model_posts {
    alignas(64) std::byte cells[2 * model_queue::cell_bytes] = {};
    model_queue queue;

    model_posts() { queue.attach(cells, 2); }
    bool push(std::uint64_t word) { return queue.push({word + 100, word}); }
    /// What was taken before, and one more if there is one: a hexadecimal digit each.
    bool pop(std::uint64_t& taken) {
        netio::post one{};
        if (!queue.pop(one)) {
            return false;
        }
        model_check(one.word >= 1 && one.word <= 8 && one.id == one.word + 100,
                    "a post that nobody made");
        taken = taken * 16 + one.word;
        return true;
    }
};

/// Is each of these digits among those once, and in the same order?
bool is_within(std::uint64_t some, std::uint64_t all) {
    for (; some != 0; some /= 16, all /= 16) {
        while (all != 0 && all % 16 != some % 16) {
            all /= 16;
        }
        if (all == 0) {
            return false;
        }
    }
    return true;
}

std::uint32_t digits(std::uint64_t of) {
    std::uint32_t out = 0;
    for (; of != 0; of /= 16) {
        ++out;
    }
    return out;
}

/// Writers of `Each` posts into two cells; their owner looks `Pops` times.
template <std::uint32_t Writers, std::uint32_t Each, std::uint32_t Pops>
struct posting : model_posts {
    static constexpr std::uint32_t threads = Writers + 1;

    void thread(int which) {
        std::uint64_t mine = 0;
        if (which == Writers) {
            for (std::uint32_t tries = 0; tries < Pops; ++tries) {
                pop(mine);
            }
        } else {
            for (std::uint64_t at = 1; at <= Each; ++at) {
                const std::uint64_t word = static_cast<std::uint64_t>(which) * Each + at;
                mine = push(word) ? mine * 16 + word : mine;
            }
        }
        model_note(static_cast<std::uint32_t>(which), mine);
    }
    void finish() {
        std::uint64_t taken = model_noted(Writers);
        while (pop(taken)) {
        }
        std::uint32_t accepted = 0;
        for (std::uint32_t writer = 0; writer < Writers; ++writer) {
            accepted += digits(model_noted(writer));
            model_check(is_within(model_noted(writer), taken), "a post lost, or out of order");
        }
        model_check(digits(taken) == accepted, "a post delivered twice");
        model_check(accepted >= 2, "refused although there was room");
        model_check(queue.empty(), "the queue is empty at the end");
        const netio::pool_stats stats = queue.stats();
        model_check(stats.in_use == 0 && stats.refused == Writers * Each - accepted &&
                        stats.high_water <= 2,
                    "the counts");
    }
};

/// A writer, the owner, and somebody who asks how full the queue is.
struct counting_posts : model_posts {
    static constexpr std::uint32_t threads = 3;

    void thread(int which) {
        std::uint64_t taken = 0;
        if (which == 0) {
            for (std::uint64_t word = 1; word <= 3; ++word) {
                push(word);
            }
        } else if (which == 1) {
            pop(taken);
        } else {
            note(0, static_cast<int>(queue.stats().in_use));
        }
    }
    void finish() {}
};

}  // namespace

TEST_CASE("interleavings: two writers, two cells, their owner: each post once, in order, whole") {
    const explored once = explore<posting<2, 1, 2>>({}, 2);
    CHECK(once.wrong == "");
    CHECK(once.outcomes == model_outcomes{"1 2 0", "1 2 1", "1 2 2", "1 2 12", "1 2 21"});
    const explored twice = explore<posting<2, 2, 2>>();
    CHECK(twice.wrong == "");
    CHECK(twice.outcomes.count("12 34 0") == 0);   // two cells hold no four posts
    CHECK(twice.outcomes.count("12 34 31") == 1);  // and the others at the end
    CHECK(explore<posting<1, 4, 4>>({}, 1).wrong == "");
}

TEST_CASE("interleavings: a count of the posts is never above the capacity") {
    CHECK(explore<counting_posts>().outcomes == model_outcomes{"0", "1", "2"});
}

TEST_CASE("interleavings: every order that the post queue asks for is needed, but one") {
    // Whoever sees a post by empty() lets pop acquire it.
    CHECK(weakest_orders<posting<2, 1, 2>, posting<1, 3, 1>>() ==
          "push load needs acquire\n"
          "push store needs release\n"
          "pop load needs acquire\n"
          "pop store needs release\n"
          "empty load asks for acquire, relaxed would do\n");
}

namespace {

// ---- sleep and wake

using model_wake_word = netio::detail::basic_wake_word<model_atomic>;

/// The least that can be posted: a word for each waker, which is seen only because of the wake.
struct model_boxes {
    model_atomic<std::uint32_t> boxes[2];

    bool push(std::uint64_t word) {
        boxes[word - 1].store(1, relaxed);
        return true;
    }
    bool pop(std::uint64_t& taken) {
        for (std::uint64_t word = 1; word <= 2; ++word) {
            if (boxes[word - 1].load(relaxed) != 0 && !is_within(word, taken)) {
                taken = taken * 16 + word;
                return true;
            }
        }
        return false;
    }
    bool is_empty(std::uint64_t taken) { return !pop(taken); }
};

struct model_queued : model_posts {
    bool is_empty(std::uint64_t) { return queue.empty(); }
};

/// What a loop sleeps on, and what is posted to it. The descriptor is open as long as `is_open`.
template <class Posts>
struct model_loop : Posts {
    model_wake_word word;
    model_plain<int> is_open = 1;
    static constexpr model_signal bell{0};

    model_loop() { word.open(); }
    void post_and_wake(std::uint64_t what, std::uint64_t& writes) {
        model_check(Posts::push(what), "there is room");
        word.wake([&] {
            model_check(is_open == 1, "the descriptor is still the loop's");
            ++writes;
            bell.ring();
        });
    }
    /// What a backend does with the word when it waits. Sleeps announced are counted.
    void wait(bool may_sleep, std::uint64_t& sleeps) {
        netio::event events[4];
        netio::detail::event_writer to(events);
        word.take(to);
        if (to.count() == 0 && may_sleep) {
            ++sleeps;
            if (word.announce_sleep()) {
                bell.sleep();
            }
        }
        if (to.count() == 0) {
            word.take(to);
        }
    }
};

/// `Wakers` of `Each` posts, and a loop that takes them all and sleeps when there is none.
template <class Posts, std::uint32_t Wakers, std::uint32_t Each>
struct waking : model_loop<Posts> {
    static constexpr std::uint32_t threads = Wakers + 1;

    void thread(int which) {
        std::uint64_t count = 0;
        if (which < static_cast<int>(Wakers)) {
            for (std::uint64_t at = 1; at <= Each; ++at) {
                this->post_and_wake(static_cast<std::uint64_t>(which) * Each + at, count);
            }
        } else {
            for (std::uint64_t taken = 0; digits(taken) != Wakers * Each;) {
                this->wait(this->is_empty(taken), count);
                while (this->pop(taken)) {
                }
            }
        }
        model_note(static_cast<std::uint32_t>(which), count);
    }
    void finish() {
        std::uint64_t writes = 0;
        for (std::uint32_t waker = 0; waker < Wakers; ++waker) {
            writes += model_noted(waker);
        }
        model_check(writes <= model_noted(Wakers), "more writes than sleeps");
    }
};

/// Two wakers, and a loop that waits once: then it has seen both, or would not sleep again.
struct waking_once : model_loop<model_boxes> {
    static constexpr std::uint32_t threads = 3;

    void thread(int which) {
        std::uint64_t count = 0;
        if (which < 2) {
            post_and_wake(static_cast<std::uint64_t>(which) + 1, count);
        } else {
            std::uint64_t taken = 0;
            wait(is_empty(taken), count);
            while (pop(taken)) {
            }
            model_note(3, taken);
        }
        model_note(static_cast<std::uint32_t>(which), count);
    }
    void finish() {
        model_check(digits(model_noted(3)) == 2 || word.woken(), "a wake lost");
        model_check(model_noted(0) + model_noted(1) <= model_noted(2), "more writes than sleeps");
    }
};

/// The loop belongs to somebody else, who polls for its descriptor and asks first.
template <class Posts, std::uint32_t Wakers>
struct foreign_waking : model_loop<Posts> {
    static constexpr std::uint32_t threads = Wakers + 1;

    void thread(int which) {
        std::uint64_t count = 0;
        if (which < static_cast<int>(Wakers)) {
            this->post_and_wake(static_cast<std::uint64_t>(which) + 1, count);
            return;
        }
        for (std::uint64_t taken = 0;;) {
            this->wait(false, count);
            this->word.announce_sleep();
            while (this->pop(taken)) {
            }
            if (digits(taken) == Wakers) {
                return;
            }
            if (!this->word.woken() && this->is_empty(taken)) {
                this->bell.sleep();
            }
        }
    }
    void finish() {}
};

/// The loop ends while others wake it, and its descriptor becomes somebody else's.
struct closing : model_loop<model_boxes> {
    static constexpr std::uint32_t threads = 3;
    struct sys {
        static void yield() { model_yield(); }
    };

    void thread(int which) {
        std::uint64_t count = 0;
        if (which < 2) {
            post_and_wake(static_cast<std::uint64_t>(which) + 1, count);
        } else {
            word.announce_sleep();
            word.close<sys>();
            is_open = 0;
        }
    }
    void finish() {}
};

}  // namespace

TEST_CASE("interleavings: no wake is lost, and each costs the kernel at most once a sleep") {
    const explored queued = explore<waking<model_queued, 1, 2>>();
    CHECK(queued.wrong == "");
    // The writes of the waker and the sleeps announced.
    CHECK(queued.outcomes == model_outcomes{"0 0", "0 1", "0 2", "1 1", "1 2", "2 2"});
    CHECK(explore<waking_once>().wrong == "");
    CHECK(explore<foreign_waking<model_queued, 1>>({}, 1).wrong == "");
}

TEST_CASE("interleavings: a loop that closes waits for who is just writing to it") {
    CHECK(explore<closing>({}, 1).wrong == "");
}

TEST_CASE("interleavings: what a wake needs of the orders it asks for") {
    // All of it is one word, which read-modify-writes hold together: no store is looked past, so
    // the one order of all is more than it needs. Weaker ones save nothing where it matters.
    CHECK(weakest_orders<waking<model_boxes, 1, 1>, foreign_waking<model_boxes, 1>,
                                     closing>() ==
          "open store asks for one_order, relaxed would do\n"
          "close fetch_or asks for one_order, relaxed would do\n"
          "close load asks for one_order, acquire would do\n"
          "wake load asks for one_order, relaxed would do\n"
          "wake compare_exchange asks for one_order, release would do\n"
          "wake fetch_sub asks for one_order, release would do\n"
          "announce_sleep fetch_or asks for one_order, relaxed would do\n"
          "take fetch_and asks for one_order, acquire would do\n"
          "woken load asks for one_order, relaxed would do\n");
}

namespace {

// ---- kill marks

using model_marks = netio::basic_kill_marks<model_atomic>;

struct model_kills {
    alignas(8) std::byte words[8 * model_marks::words_for(3)] = {};
    model_marks marks;

    model_kills() {
        marks.attach(words, 3);
        for (const std::uint32_t index : {0u, 1u, 2u}) {
            marks.begin(index, 1);
        }
    }
    bool kill(std::uint32_t index, std::uint32_t generation, std::uint32_t reason = 0) {
        return marks.want(index, {generation, netio::kill_kind::kill, reason});
    }
    bool close(std::uint32_t index, std::uint32_t generation, std::uint32_t ms) {
        return marks.want(index, {generation, netio::kill_kind::close, ms});
    }
    /// Kills of a present life; a bit for each slot.
    std::uint64_t taken(std::uint32_t most, const std::uint32_t (&generations)[3]) {
        std::uint64_t out = 0;
        marks.take(most, [&](std::uint32_t index, netio::kill_wish wish) {
            if (wish.kind == netio::kill_kind::kill && wish.generation == generations[index]) {
                model_check((out >> index & 1) == 0, "one kill seen twice");
                out |= std::uint64_t{1} << index;
            }
        });
        return out;
    }
};

/// Two killers of two slots; their owner looks now and then, for at most `Most` at a time.
template <std::uint32_t Most>
struct killing : model_kills {
    static constexpr std::uint32_t threads = 3;

    void thread(int which) {
        if (which < 2) {
            model_check(kill(static_cast<std::uint32_t>(which), 1), "the slot is in use");
        } else {
            const std::uint64_t first = taken(Most, {1, 1, 1});
            model_note(0, first | taken(Most, {1, 1, 1}));
        }
    }
    void finish() {
        std::uint64_t seen = model_noted(0);
        for (int more = 0; more < 2; ++more) {
            seen |= taken(Most, {1, 1, 1});
        }
        model_check(seen == 3, "a kill lost");
        model_check(!marks.any(), "no mark is left");
    }
};

/// A kill beside an owner who leaves marks of before for the next time.
struct killing_more : model_kills {
    static constexpr std::uint32_t threads = 2;

    killing_more() {
        kill(1, 1);
        kill(2, 1);
    }
    void thread(int which) {
        if (which == 0) {
            kill(0, 1);
        } else {
            const std::uint64_t first = taken(1, {1, 1, 1});
            model_note(0, first | taken(1, {1, 1, 1}));
        }
    }
    void finish() {
        std::uint64_t seen = model_noted(0);
        for (int more = 0; more < 3; ++more) {
            seen |= taken(1, {1, 1, 1});
        }
        model_check(seen == 7, "a kill lost");
    }
};

/// The same with sleep and wake: the owner sleeps when there is no mark, until both are seen.
struct killing_sleepers : model_kills {
    static constexpr std::uint32_t threads = 2;
    model_loop<model_boxes> loop;

    void thread(int which) {
        std::uint64_t count = 0;
        if (which == 0) {
            for (const std::uint32_t index : {0u, 1u}) {
                if (kill(index, 1)) {
                    loop.word.wake([&] { loop.bell.ring(); });
                }
            }
            return;
        }
        for (std::uint64_t seen = 0; seen != 3;) {
            loop.wait(!marks.any(), count);
            seen |= taken(8, {1, 1, 1});
        }
    }
    void finish() {}
};

/// Slot 0 ends and begins anew while one kills its first life and one its second.
struct killing_lives : model_kills {
    static constexpr std::uint32_t threads = 3;
    model_atomic<std::uint32_t> told;  // who may be killed

    void thread(int which) {
        if (which == 0) {
            note(0, kill(0, 1) ? 1 : 0);
        } else if (which == 1) {
            note(1, told.load(ordering::acquire) == 3 && kill(0, 3) ? 1 : 0);
        } else {
            std::uint64_t seen = taken(8, {1, 1, 1});
            marks.end(0);
            if (seen == 0) {
                seen = taken(8, {0, 1, 1});
                model_check(seen == 0, "nobody lives here");
            }
            note(2, seen == 0 ? 0 : 1);
            marks.begin(0, 3);
            told.store(3, ordering::release);
            note(3, taken(8, {3, 1, 1}) == 0 ? 0 : 1);
        }
    }
    void finish() {
        model_check(model_noted(2) <= model_noted(0), "killed by nobody");
        const bool late = taken(8, {3, 1, 1}) != 0;
        const bool hit = model_noted(3) != 0 || late;
        model_check(hit == (model_noted(1) != 0), "the second life is killed by its killer only");
        const std::uint64_t stale = marks.stale_count();
        model_check(!kill(0, 1) && marks.stale_count() == stale + 1, "the first life is over");
        model_check(!marks.any(), "no mark is left");
    }
};

/// Two who want the end of one life, one of them orderly.
template <bool BothKill>
struct killing_one : model_kills {
    static constexpr std::uint32_t threads = 3;

    void thread(int which) {
        if (which == 2) {
            note(2, static_cast<int>(taken(8, {1, 1, 1})));
        } else if (which == 1 || BothKill) {
            note(which, kill(0, 1, static_cast<std::uint32_t>(which) + 5) ? 1 : 0);
        } else {
            note(which, close(0, 1, 100) ? 1 : 0);
        }
    }
    void finish() {
        const std::uint64_t late = taken(8, {1, 1, 1});
        model_check((late | model_noted(2)) == 1, "the kill is seen");
        model_check(model_noted(1) == 1 || (BothKill && model_noted(0) == 1), "one is told yes");
        model_check(!BothKill || model_noted(0) + model_noted(1) == 1, "two are told yes");
        model_check(marks.stale_count() == 0, "nobody is stale");
    }
};

}  // namespace

TEST_CASE("interleavings: no kill is lost, however few are taken at a time") {
    CHECK(explore<killing<2>>({}, 1).wrong == "");
    CHECK(explore<killing<1>>({}, 1).wrong == "");
    CHECK(explore<killing_more>().wrong == "");
    CHECK(explore<killing_sleepers>().wrong == "");
}

TEST_CASE("interleavings: a kill ends the life it names, not the next one in the same slot") {
    const explored all = explore<killing_lives>({}, 1);
    CHECK(all.wrong == "");
    // Told yes: the killer of the first life, of the second; seen: in the first, in the second.
    CHECK(all.outcomes == model_outcomes{"0 0 0 0", "0 1 0 0", "0 1 0 1", "1 0 0 0", "1 0 1 0",
                                         "1 1 0 0", "1 1 0 1", "1 1 1 0", "1 1 1 1"});
}

TEST_CASE("interleavings: of two kills of one life one is told yes; a kill outranks a close") {
    CHECK(explore<killing_one<true>>({}, 1).wrong == "");
    CHECK(explore<killing_one<false>>({}, 1).wrong == "");
}

TEST_CASE("interleavings: what kill marks need of the orders they ask for") {
    // The exchanges of take stand in for each other: one of them may be weaker, not all.
    CHECK(weakest_orders<killing<1>, killing<2>, killing_more, killing_lives,
                                     killing_one<true>, killing_one<false>>() ==
          "take exchange 1 asks for acquire_release, relaxed would do\n"
          "take exchange 2 asks for acquire_release, relaxed would do\n"
          "take exchange 3 asks for acquire_release, acquire would do\n"
          "take fetch_or asks for release, relaxed would do\n"
          "take exchange 4 asks for release, relaxed would do\n"
          "want fetch_or 1 needs release\n"
          "want fetch_or 2 needs release\n"
          "want exchange needs release\n");
    CHECK(explore<killing<1>>({0, model_kind::exchange, acquire, "take"}).wrong == "");
    CHECK(explore<killing<1>>({0, model_kind::exchange, release, "take"}).found("a kill lost"));
    CHECK(explore<killing<1>>({0, model_kind::exchange, relaxed, "take"}).found("a kill lost"));
}

namespace {

// ---- counts of sources

using model_sources = netio::basic_source_table<model_atomic>;

/// Two workers accept from one source, which may have one connection, while a place beside the
/// one it would get becomes free: they may choose different ones.
struct counting_sources {
    static constexpr std::uint32_t threads = 3;
    alignas(64) std::byte words[8 * 2 * model_sources::line_places] = {};
    model_sources table;
    std::uint32_t other = 0;

    static netio::source of(std::uint64_t prefix) {
        return {prefix, netio::address_family::ipv4};
    }
    counting_sources() {
        table.attach(words, 2 * model_sources::line_places, 1, 2);
        other = table.acquire(of(7), 1);
    }
    void thread(int which) {
        if (which == 2) {
            table.release(other);
        } else {
            const std::uint32_t place = table.acquire(of(1), 1);
            note(which, place == netio::none_index ? 0 : static_cast<int>(place) + 1);
        }
    }
    void finish() {
        const std::uint64_t yes = (model_noted(0) != 0 ? 1u : 0u) + (model_noted(1) != 0 ? 1u : 0u);
        model_check(yes <= 1, "more than the bound");
        model_check(table.count_of(of(1)) == yes, "the count");
        for (std::uint32_t worker = 0; worker < 2; ++worker) {
            if (model_noted(worker) != 0) {
                table.release(static_cast<std::uint32_t>(model_noted(worker) - 1));
            }
        }
        model_check(table.stats().in_use == 0 && table.without_place() == 0, "nothing is left");
    }
};

}  // namespace

TEST_CASE("interleavings: a source never gets more than its bound, from two workers at once") {
    const explored all = explore<counting_sources>();
    CHECK(all.wrong == "");
    CHECK(all.outcomes == model_outcomes{"0 8", "0 10", "8 0", "10 0"});
    CHECK(weakest_orders<counting_sources>() ==
          "acquire compare_exchange needs one_order\n"
          "release compare_exchange asks for one_order, relaxed would do\n"
          "look load needs one_order\n");
}

namespace {

// ---- memory that is words and plain data in turn

/// A flag says that the place of a word was written as plain data, or with `Same` the word itself.
template <ordering Store, ordering Load, bool Same>
struct written_over {
    static constexpr std::uint32_t threads = 2;
    alignas(8) std::byte memory[4] = {};
    model_atomic<std::uint32_t> flag;

    model_atomic<std::uint32_t>& word() {
        return *reinterpret_cast<model_atomic<std::uint32_t>*>(memory);
    }
    void thread(int which) {
        if (which == 0) {
            model_memory::put(memory, 7);
            if (Same) {
                word().store(3, Store);
            } else {
                flag.store(1, Store);
            }
        } else if (Same) {
            note(0, static_cast<int>(word().load(Load)));
        } else if (flag.load(Load) == 1) {
            note(0, static_cast<int>(word().load(relaxed)));
            word().store(5, relaxed);
        }
    }
    void finish() { note(1, static_cast<int>(model_memory::get(memory))); }
};

// ---- rings

constexpr std::uint32_t ring_bytes = 64;

/// A record is its digit, over and over.
template <class Ring>
struct model_records {
    alignas(64) std::byte memory[ring_bytes] = {};
    Ring ring;

    model_records() { ring.attach(memory, ring_bytes); }
    static void fill(const netio::ring_claim& to, std::uint32_t used, std::uint64_t digit) {
        for (std::uint32_t at = 0; at < used; at += 4) {
            model_memory::put(to.room.data() + at, static_cast<std::uint32_t>(digit));
        }
    }
    bool write(std::uint64_t digit, std::uint32_t claimed, std::uint32_t used) {
        const netio::ring_claim to = ring.claim(claimed);
        if (!to) {
            return false;
        }
        fill(to, used, digit);
        ring.commit(to, used);
        return true;
    }
    /// What was taken before, and one more if there is one: a hexadecimal digit each.
    bool read(std::uint64_t& taken) {
        const netio::bytes record = ring.peek();
        if (record.empty()) {
            return false;
        }
        const std::uint32_t digit = model_memory::get(record.data());
        model_check(digit >= 1 && digit <= 9, "a record that nobody wrote");
        for (std::size_t at = 0; at < record.size(); at += 4) {
            model_check(model_memory::get(record.data() + at) == digit, "a record in pieces");
        }
        taken = taken * 16 + digit;
        ring.release();
        return true;
    }
};

using model_spsc = netio::basic_spsc_ring<model_atomic, model_memory>;
using model_mpsc = netio::basic_mpsc_ring<model_atomic, model_memory>;

/// `Records` of two sizes, so that some have to skip the end; the reader looks `Looks` times.
template <std::uint32_t Records, std::uint32_t Looks>
struct one_writer : model_records<model_spsc> {
    static constexpr std::uint32_t threads = 2;

    void thread(int which) {
        std::uint64_t mine = 0;
        for (std::uint64_t digit = 1; which == 0 && digit <= Records; ++digit) {
            const std::uint32_t used = digit % 2 == 1 ? 20 : 12;
            mine = write(digit, used + 4, used) ? mine * 16 + digit : mine;
        }
        for (std::uint32_t looks = 0; which == 1 && looks < Looks; ++looks) {
            read(mine);
        }
        model_note(static_cast<std::uint32_t>(which), mine);
    }
    void finish() {
        std::uint64_t taken = model_noted(1);
        while (read(taken)) {
        }
        model_check(taken == model_noted(0), "a record lost, twice or out of order");
        model_check(digits(taken) >= 2, "refused although there was room");
    }
};

/// Two writers of `Each` records into a ring that two went through, so that the first one skips the
/// end and two fill it. With `Abandons` the first writer abandons its last one. The reader looks
/// `Looks` times.
template <std::uint32_t Each, std::uint32_t Looks, bool Abandons>
struct two_writers : model_records<model_mpsc> {
    static constexpr std::uint32_t threads = 3;

    two_writers() {
        std::uint64_t taken = 0;
        for (const std::uint32_t claimed : {16u, 16u}) {
            write(9, claimed, claimed);
            read(taken);
        }
    }
    bool abandon() {
        const netio::ring_claim to = ring.claim(8);
        if (to) {
            fill(to, 8, 8);
            ring.abandon(to);
        }
        return static_cast<bool>(to);
    }
    void thread(int which) {
        std::uint64_t mine = 0;
        std::uint64_t refused = 0;
        for (std::uint64_t at = 1; which < 2 && at <= Each; ++at) {
            const std::uint64_t digit = static_cast<std::uint64_t>(which) * Each + at;
            if (Abandons && which == 0 && at == Each) {
                refused += abandon() ? 0 : 1;
            } else if (write(digit, 16, 12)) {
                mine = mine * 16 + digit;
            } else {
                ++refused;
            }
        }
        for (std::uint32_t looks = 0; which == 2 && looks < Looks; ++looks) {
            read(mine);
        }
        model_note(static_cast<std::uint32_t>(which), mine);
        model_note(static_cast<std::uint32_t>(which) + 3, refused);
    }
    void finish() {
        std::uint64_t taken = model_noted(2);
        while (read(taken)) {
        }
        model_check(is_within(model_noted(0), taken) && is_within(model_noted(1), taken),
                    "a record lost, or out of order");
        model_check(digits(taken) == digits(model_noted(0)) + digits(model_noted(1)),
                    "a record twice");
        model_check(ring.refused() == model_noted(3) + model_noted(4), "the count of refusals");
        for (std::uint32_t at = 0; at < ring_bytes; at += 4) {
            model_check(model_memory::get(memory + at) == 0, "the ring is wiped at the end");
        }
    }
};

}  // namespace

TEST_CASE("interleavings: plain data and a word in one place are a race, if nothing orders them") {
    CHECK(explore<written_over<release, acquire, false>>().outcomes ==
          model_outcomes{"0 7", "7 5"});
    CHECK(explore<written_over<relaxed, acquire, false>>().found("race: a word is plain data"));
    CHECK(explore<written_over<release, relaxed, false>>().found("race: a word is plain data"));
    CHECK(explore<written_over<release, acquire, true>>().found("race: a word is plain data"));
}

TEST_CASE("interleavings: a ring of one writer gives each record once, in order, whole") {
    const explored all = explore<one_writer<4, 4>>();
    CHECK(all.wrong == "");
    // What was written, and what of it was read meanwhile. The third and the fourth need room that
    // the reader makes.
    CHECK(all.outcomes == model_outcomes{"12 0", "12 1", "12 12", "123 1", "123 12", "123 123",
                                         "124 1", "124 12", "124 124", "1234 12", "1234 123",
                                         "1234 1234"});
    CHECK(explore<one_writer<6, 6>>().wrong == "");
}

TEST_CASE("interleavings: a ring of two writers gives each record once, in order, whole") {
    const explored once = explore<two_writers<1, 2, false>>({}, 1);
    CHECK(once.wrong == "");
    CHECK(once.outcomes == model_outcomes{"1 2 0 0 0 0", "1 2 1 0 0 0", "1 2 12 0 0 0",
                                          "1 2 2 0 0 0", "1 2 21 0 0 0"});
    const explored twice = explore<two_writers<2, 1, false>>();
    CHECK(twice.wrong == "");
    CHECK(twice.outcomes.count("1 3 0 1 1 0") == 1);   // two fill it and two are refused
    CHECK(twice.outcomes.count("12 3 0 0 1 0") == 0);  // a third needs room that the reader makes
    CHECK(twice.outcomes.count("12 3 1 0 1 0") == 1);
}

TEST_CASE("interleavings: a record that one of two writers abandons is stepped over") {
    const explored twice = explore<two_writers<2, 1, true>>();
    CHECK(twice.wrong == "");
    CHECK(twice.outcomes.count("1 3 1 0 1 0") == 1);
    if (std::getenv("NETIO_LONG") != nullptr) {
        CHECK(explore<two_writers<2, 2, false>>().wrong == "");
        CHECK(explore<two_writers<2, 2, true>>({}, 1).wrong == "");
    }
}

TEST_CASE("interleavings: every order that the rings ask for is needed") {
    CHECK(weakest_orders<one_writer<4, 3>>() ==
          "claim load needs acquire\n"
          "commit store needs release\n"
          "peek load needs acquire\n"
          "release store needs release\n");
    // The head of a skipped end: somebody else may write there one lap later.
    CHECK(weakest_orders<two_writers<1, 2, true>, two_writers<2, 1, true>>() ==
          "claim load needs acquire\n"
          "claim store needs release\n"
          "commit store needs release\n"
          "abandon store needs release\n"
          "peek load needs acquire\n"
          "wipe_place store needs release\n");
}

}  // namespace netio_test::interleavings
