// A model checker for the words that threads share: runs what a test says under every schedule and
// with every store that each load may read, stale ones included.
//
// The memory model is that of C++20 ([intro.races], [atomics.order]), without consume and fences,
// which netio does not use:
// * each word has an order of its stores. A store goes to any place of it, a load reads any store
//   of it that coherence leaves open; a read-modify-write reads the store just before its own.
//   Release sequences go on through read-modify-writes of any order;
// * one_order: there is one order of all such operations so far that agrees with strongly happens
//   before and with coherence-ordered before. It need not be the order in which steps are taken;
// * plain data (model_plain): two accesses of two threads, one of them a write, that happens before
//   does not order are a race, whenever they ran. So are an access to plain data and one to a word
//   in the same place of a model_memory, one of them a write;
// * a weak exchange may fail for no reason, as often in one execution as the test allows;
// * a write that does not release may be done ahead of up to three operations of its thread that
//   neither acquire nor touch its word, if it is the same write whatever they find (load
//   buffering, as processors do it).
// It is stronger than C++ in three things: a write that releases, and one that comes later still or
// after a signal, is never done ahead, though C++ would allow it while nobody acquires; no values
// come from nowhere; and a store is seen in the end (see model_yield). So "nothing found" under an
// order is no licence to write that order.
//
// A thread of a world is a function that is run from its start for each of its steps, and given up
// to there what its operations gave before. So it has to do the same whenever it is given the same:
// all its state is local, or words, plain data, signals and notes of the model; nothing in it has a
// destructor that matters, for it is left by a jump.
//
// A state is known by what each thread did and read and by the order of each word's stores, and is
// looked into once. (By a hash of 64 bits: among a million states two are taken for one with a
// probability of 3 in 10^8.) Operations on words that one thread touches, or that nobody writes,
// are no steps of the schedule; what those are is found out on the way, and the search starts anew.
#ifndef NETIO_TESTS_INTERLEAVINGS_HPP
#define NETIO_TESTS_INTERLEAVINGS_HPP

#include "netio.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace netio_test {

using netio::detail::ordering;

/// Where in the source an operation stands.
struct model_place {
    const char* file;
    const char* function;
    int line;
};

enum class model_kind : std::uint8_t {
    load, store, exchange, add, subtract, set_bits, keep_bits, compare, ring, sleep
};

inline const char* name_of(model_kind kind) {
    constexpr const char* names[] = {"load", "store", "exchange", "fetch_add", "fetch_sub",
                                     "fetch_or", "fetch_and", "compare_exchange", "ring", "sleep"};
    return names[static_cast<int>(kind)];
}
inline const char* name_of(ordering how) {
    return how == ordering::relaxed           ? "relaxed"
           : how == ordering::acquire         ? "acquire"
           : how == ordering::release         ? "release"
           : how == ordering::acquire_release ? "acquire_release"
                                              : "one_order";
}
inline bool acquires(ordering how) {
    return how == ordering::acquire || how == ordering::acquire_release ||
           how == ordering::one_order;
}
inline bool releases(ordering how) {
    return how == ordering::release || how == ordering::acquire_release ||
           how == ordering::one_order;
}

/// One operation in the text of the parts under test, and the order it asks for.
struct model_site {
    std::string function;
    model_kind kind;
    ordering how;
    int line;

    /// Without what a compiler says of a template's arguments.
    std::string name() const {
        return function.substr(0, function.find('<')) + " " + name_of(kind);
    }
};

/// Another order for operations of one kind in the parts under test: for the one of a line, or for
/// all in a function that ask for more than relaxed. None of both: for none.
struct model_weaker {
    int line = 0;
    model_kind kind = model_kind::load;
    ordering how = ordering::relaxed;
    std::string_view function = {};
};

/// What an exploration found.
struct explored {
    std::string wrong;        // what is wrong and the steps that lead there; empty: nothing
    std::uint64_t states = 0;
    std::uint64_t ends = 0;   // executions that differ in what was read or in an order of stores
    std::set<std::string> outcomes;  // as told by model_note in all of them
    std::vector<model_site> sites;   // of the parts under test, as far as they ran, by their lines

    bool found(const char* text) const { return wrong.find(text) != std::string::npos; }
};

namespace model {

constexpr std::uint32_t threads_max = 5;  // thread 0 sets up before, and looks at it after, all
constexpr std::uint32_t words_max = 40;
constexpr std::uint32_t stores_max = 160;  // of one execution
constexpr std::uint32_t cells_max = 24;
constexpr std::uint32_t notes_max = 8;
constexpr std::uint32_t of_one_order_max = 64;
constexpr std::uint32_t steps_max = 160;  // of one thread
constexpr std::uint32_t choices_max = 64;
constexpr std::uint32_t ahead_max = 3;  // operations that a write may be done ahead of

using clock_type = std::array<std::uint8_t, threads_max>;
using view_type = std::array<std::uint8_t, words_max>;  // of each word the last store known

struct operation {
    model_kind kind = model_kind::load;
    ordering how = ordering::relaxed;
    std::uint8_t word = 0;
    std::uint8_t bits = 64;
    std::uint64_t wanted = 0;
    std::uint64_t expected = 0;
    model_place place{};
};

struct choice {
    std::uint8_t at;   // the store read, or before which the new one goes, in its word's order
    bool exchanged;    // a compare finds what it expects
};

struct answer {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
};

/// A store is never changed after it was made, only its place in its word's order.
struct store_record {
    std::uint64_t value;
    std::uint64_t released_before;  // operations of one_order that come before whoever acquires it
    std::uint64_t identity;         // the same in whatever schedule
    view_type released_view;
    clock_type released_clock;
    bool released;
    bool reads_the_one_before;
};

/// A write that was done ahead of its turn: its thread has to come to it.
struct promise {
    operation what;
    answer found;
    std::uint8_t index;  // what number of its thread's operations it is
    std::uint8_t store_read;
    std::uint8_t store_made;
    bool is_due;
};

struct thread_state {
    operation pending;
    promise ahead;
    std::uint64_t before;  // operations of one_order that strongly happen before its next event
    std::uint64_t hash;
    view_type view;
    clock_type clock;
    std::uint8_t steps;
    std::uint8_t last_word;
    std::uint8_t last_read;
    bool has_read;
    bool later_only;  // the next read of last_word gives what is later than last_read
    bool finished;
};

struct word_state {
    std::uint64_t hash;
    std::uint8_t count;
    std::array<std::uint8_t, 31> order;
};

struct cell_state {
    answer value;
    clock_type reads;
    clock_type loads;   // of a word in the same place,
    clock_type stores;  // and stores to it
    std::uint8_t writer;
    std::uint8_t written;
};

struct one_order_event {
    std::uint8_t word;
    std::uint8_t store;
    bool writes;
};

struct state {
    std::array<thread_state, threads_max> threads;
    std::array<cell_state, cells_max> cells;
    std::array<std::uint64_t, notes_max> notes;
    std::array<std::uint64_t, of_one_order_max> comes_before;  // of each event, who must follow it
    std::array<one_order_event, of_one_order_max> events;
    std::uint8_t event_count;
    std::uint8_t store_count;
    std::uint8_t failures_left;
    std::uint32_t signals;
    std::array<word_state, words_max> words;
};

inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
    std::uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15 + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/// Hashes of states; open addressing.
class seen_states {
public:
    bool insert(std::uint64_t hash) {
        hash |= hash == 0 ? 1 : 0;
        if (2 * (count_ + 1) > slots_.size()) {
            std::vector<std::uint64_t> old(std::max<std::size_t>(1024, 2 * slots_.size()));
            old.swap(slots_);
            for (const std::uint64_t each : old) {
                if (each != 0) {
                    *slot_of(each) = each;
                }
            }
        }
        std::uint64_t* slot = slot_of(hash);
        const bool is_new = *slot == 0;
        *slot = hash;
        count_ += is_new ? 1 : 0;
        return is_new;
    }
    void clear() {
        slots_.clear();
        count_ = 0;
    }
    std::size_t count() const { return count_; }

private:
    std::uint64_t* slot_of(std::uint64_t hash) {
        std::size_t at = hash & (slots_.size() - 1);
        while (slots_[at] != 0 && slots_[at] != hash) {
            at = (at + 1) & (slots_.size() - 1);
        }
        return &slots_[at];
    }
    std::vector<std::uint64_t> slots_;
    std::size_t count_ = 0;
};

/// The checker. One at a time, on one thread of the system.
class explorer {
public:
    using body = void (*)(void* of, int which);

    explorer(explored& result, const model_weaker& weaker, std::uint32_t failures)
        : result_(result), weaker_(weaker) {
        std::memset(static_cast<void*>(&set_up_), 0, sizeof set_up_);
        set_up_.failures_left = static_cast<std::uint8_t>(failures);
        set_up_.threads[0].clock[0] = 1;
        now_ = &set_up_;
    }

    void run(std::uint32_t threads, void* of, body thread, body at_end);

    /// The function that runs did this operation before.
    bool is_known() const { return cursor_ < steps_; }
    answer known() { return logs_[who_][cursor_++]; }
    answer operate(operation what, const void* at, std::uint64_t first);
    answer read_cell(const void* at, const answer& first);
    void write_cell(const void* at, const answer& first, const answer& value);
    void yield();
    void note(std::uint32_t which, std::uint64_t value) {
        now_->notes[which] = value;
        notes_ = std::max(notes_, which + 1);
    }
    std::uint64_t noted(std::uint32_t which) const { return now_->notes[which]; }
    [[noreturn]] void fail(const char* what);

private:
    enum class phase { set_up, threads, finish };

    struct known_word {
        const void* at;
        std::uint64_t first;           // its value before all
        std::uint32_t touched_by = 0;  // a bit for each thread
        bool written = false;          // by a thread
        bool shared = false;           // two threads, one of them writes: a step of the schedule
    };
    struct known_cell {
        const void* at;
        answer first;
    };
    struct step {
        std::uint32_t who;
        operation what;
        choice chosen;
        answer found;
        bool last;   // of its word
        bool ahead;  // of its turn
    };

    // Words and plain data, known by where they are.
    std::uint32_t word_of(const void* at, std::uint64_t first);
    std::uint32_t cell_of(const void* at, const answer& first);
    void put_first_value(std::uint32_t word);
    bool is_step(std::uint32_t word, model_kind kind);
    [[noreturn]] void wait_for_others(std::uint32_t word);
    void look_at_place(operation& what);
    std::uint32_t word_under(const void* at);
    void put_plainly(std::uint32_t word, std::uint64_t value);
    void look_at_cell(std::uint32_t who, std::uint32_t word, bool is_write);
    answer logged(const answer& what);

    // The memory model.
    std::uint32_t place_of(std::uint32_t word, std::uint32_t store) const;
    void join(view_type& to, const view_type& from) const;
    static void join(clock_type& to, const clock_type& from);
    std::uint8_t put(std::uint32_t word, std::uint32_t place, const store_record& what);
    std::uint32_t choices(std::uint32_t who, const operation& what, choice* out) const;
    bool one_order_allows(std::uint32_t who, const operation& what, const choice& c,
                          std::uint64_t& before, std::uint64_t& after) const;
    answer apply(std::uint32_t who, const operation& what, const choice& c);
    answer apply_in_turn(const operation& what, const choice& c);
    void apply_read(thread_state& t, const operation& what, const choice& c, store_record& made);
    std::uint8_t apply_write(std::uint32_t who, const operation& what, const choice& c,
                             std::uint64_t found, store_record& made);
    void enter_order(std::uint32_t who, const one_order_event& e, std::uint64_t before,
                     std::uint64_t after);

    // The search.
    bool start();
    bool advance(std::uint32_t who);
    bool take(std::uint32_t who, const choice& c);
    bool search(std::size_t depth);
    bool search_on(std::size_t depth, bool moved);
    bool end();

    // Writes ahead of their turn.
    bool look_ahead(std::size_t depth, std::uint32_t who);
    bool promise_all(std::size_t depth, std::uint32_t who, const promise& of);
    bool do_ahead(std::uint32_t who, const promise& of, const choice& c);
    bool keeps_promise(const operation& what);
    answer kept_promise();
    bool somebody_promised() const;
    [[noreturn]] void drop();

    bool finish();
    void remember_outcome();
    bool is_right() const { return result_.wrong.empty() && !again_ && !drops_; }
    std::uint64_t hash_of(const state& of) const;
    void tell(const char* what);

    explored& result_;
    const model_weaker weaker_;
    state set_up_;
    state ahead_;  // what a thread would do next if nobody else did anything
    std::deque<state> states_;  // of each depth of the search
    state* now_ = nullptr;
    std::vector<store_record> stores_;
    std::vector<known_word> words_;
    std::vector<known_cell> cells_;
    std::vector<answer> logs_[threads_max];
    std::vector<step> path_;
    std::vector<bool> known_places_;  // by line and kind
    seen_states seen_;
    void* world_ = nullptr;
    body thread_ = nullptr;
    body finish_ = nullptr;
    std::uint32_t threads_ = 0;
    std::uint32_t notes_ = 0;
    std::uint32_t who_ = 0;     // whose function runs
    std::uint32_t cursor_ = 0;  // operations of it that were given what they gave before,
    std::uint32_t steps_ = 0;   // and how many will be
    phase phase_ = phase::set_up;
    bool again_ = false;        // something is known only now: start anew
    bool drops_ = false;        // nothing comes of this: a promise can't be kept
    bool looks_ahead_ = false;
    bool may_promise_ = false;  // there are writes that may be done ahead
    std::jmp_buf back_;
};

inline explorer* current = nullptr;

inline std::uint64_t cut(std::uint64_t value, std::uint32_t bits) {
    return bits == 64 ? value : value & ((std::uint64_t{1} << bits) - 1);
}
inline bool is_signal(model_kind kind) {
    return kind == model_kind::ring || kind == model_kind::sleep;
}
inline bool reads(model_kind kind) { return kind != model_kind::store; }
inline bool writes(const operation& what, const choice& c) {
    return what.kind != model_kind::load && (what.kind != model_kind::compare || c.exchanged);
}
inline ordering effective(const operation& what, const choice& c) {
    if (what.kind != model_kind::compare || c.exchanged) {
        return what.how;
    }
    return what.how == ordering::acquire_release ? ordering::acquire
           : what.how == ordering::release       ? ordering::relaxed
                                                 : what.how;
}
/// A write that may be done ahead of its turn, and what it may be done ahead of.
inline bool can_be_ahead(const operation& what) {
    return !is_signal(what.kind) && what.kind != model_kind::load && !releases(what.how);
}
inline bool can_be_passed(const operation& what) {
    return !is_signal(what.kind) && !(reads(what.kind) && acquires(what.how));
}
inline bool is_same(const operation& a, const operation& b) {
    return a.kind == b.kind && a.how == b.how && a.word == b.word && a.wanted == b.wanted &&
           a.expected == b.expected;
}
inline std::uint64_t written_by(const operation& what, std::uint64_t found) {
    switch (what.kind) {
    case model_kind::add: return cut(found + what.wanted, what.bits);
    case model_kind::subtract: return cut(found - what.wanted, what.bits);
    case model_kind::set_bits: return found | what.wanted;
    case model_kind::keep_bits: return found & what.wanted;
    default: return what.wanted;
    }
}

// ---- words and plain data, known by where they are

/// One that turns up amid the search was there before all: the search starts anew and knows it.
inline std::uint32_t explorer::word_of(const void* at, std::uint64_t first) {
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
        if (words_[word].at == at) {
            return word;
        }
    }
    const auto word = static_cast<std::uint32_t>(words_.size());
    if (word == words_max) {
        fail("more words than the checker has room for");
    }
    words_.push_back({at, first});
    again_ = phase_ != phase::set_up;
    if (again_) {
        std::longjmp(back_, 1);
    }
    put_first_value(word);
    return word;
}

inline void explorer::put_first_value(std::uint32_t word) {
    store_record made{};
    made.value = words_[word].first;
    made.identity = mixed(word, 1);
    const std::uint8_t id = put(word, 0, made);
    for (thread_state& each : now_->threads) {
        each.view[word] = id;
    }
}

inline std::uint32_t explorer::cell_of(const void* at, const answer& first) {
    for (std::uint32_t cell = 0; cell < cells_.size(); ++cell) {
        if (cells_[cell].at == at) {
            return cell;
        }
    }
    const auto cell = static_cast<std::uint32_t>(cells_.size());
    if (cell == cells_max) {
        fail("more plain data than the checker has room for");
    }
    cells_.push_back({at, first});
    again_ = phase_ != phase::set_up;
    if (again_) {
        std::longjmp(back_, 1);
    }
    now_->cells[cell].value = first;
    return cell;
}

inline bool explorer::is_step(std::uint32_t word, model_kind kind) {
    known_word& w = words_[word];
    w.touched_by |= 1u << who_;
    w.written = w.written || kind != model_kind::load;
    if (!w.shared && w.written && (w.touched_by & (w.touched_by - 1)) != 0) {
        w.shared = true;
        again_ = true;
        std::longjmp(back_, 1);
    }
    return w.shared;
}

/// Somebody waits for a word that nobody else was seen to touch.
inline void explorer::wait_for_others(std::uint32_t word) {
    if (phase_ != phase::threads) {
        fail("nobody is left to end this wait");
    }
    words_[word].shared = true;
    again_ = true;
    std::longjmp(back_, 1);
}

/// An operation of the parts under test: is remembered, and may have another order.
inline void explorer::look_at_place(operation& what) {
    const std::string_view file = what.place.file;
    if (!file.ends_with("netio.hpp")) {
        return;
    }
    const std::size_t place = 16u * static_cast<std::size_t>(what.place.line) +
                              static_cast<std::size_t>(what.kind);
    known_places_.resize(std::max(known_places_.size(), place + 1));
    if (!known_places_[place]) {
        known_places_[place] = true;
        result_.sites.push_back({what.place.function, what.kind, what.how, what.place.line});
    }
    const auto is_named = [&] {
        return !weaker_.function.empty() && what.how != ordering::relaxed &&
               std::string_view(what.place.function).starts_with(weaker_.function);
    };
    if (weaker_.kind == what.kind && (weaker_.line == what.place.line || is_named())) {
        what.how = weaker_.how;
    }
}

// ---- what a thread's function does

inline answer explorer::logged(const answer& what) {
    if (phase_ != phase::threads) {
        return what;
    }
    if (now_->threads[who_].ahead.is_due && cursor_ == now_->threads[who_].ahead.index) {
        drop();
    }
    std::vector<answer>& log = logs_[who_];
    log.resize(cursor_);
    log.push_back(what);
    if (++cursor_ > steps_max) {
        fail("endless: more steps than the checker has room for");
    }
    steps_ = cursor_;
    now_->threads[who_].steps = static_cast<std::uint8_t>(cursor_);
    return what;
}

inline answer explorer::operate(operation what, const void* at, std::uint64_t first) {
    if (is_known()) {
        return known();
    }
    if (!is_signal(what.kind)) {
        what.word = static_cast<std::uint8_t>(word_of(at, first));
        look_at_place(what);
    }
    if (phase_ == phase::threads && (is_signal(what.kind) || is_step(what.word, what.kind))) {
        if (keeps_promise(what)) {
            return logged(kept_promise());
        }
        now_->threads[who_].pending = what;
        std::longjmp(back_, 1);
    }
    // Nobody else's, or the others are over: the first choice is the only one.
    choice all[choices_max];
    if (choices(who_, what, all) == 0) {
        wait_for_others(what.word);
    }
    return logged(apply_in_turn(what, all[0]));
}

/// The word that has been seen in the place of plain data, or words_max.
inline std::uint32_t explorer::word_under(const void* at) {
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
        if (words_[word].at == at) {
            const promise& due = now_->threads[who_].ahead;
            if (due.is_due && due.what.word == word) {
                drop();
            }
            return word;
        }
    }
    return words_max;
}

/// A word is written as plain data. Where that is no race it is the last of its stores.
inline void explorer::put_plainly(std::uint32_t word, std::uint64_t value) {
    if (phase_ == phase::threads) {
        is_step(word, model_kind::store);  // notes who touches it; this is none
    }
    thread_state& t = now_->threads[who_];
    store_record made{};
    made.value = value;
    made.identity = mixed(mixed(who_ + 2, t.steps), mixed(t.hash, value));
    t.view[word] = put(word, now_->words[word].count, made);
}

/// An operation of a word: is it plain data that another thread reads or writes?
inline void explorer::look_at_cell(std::uint32_t who, std::uint32_t word, bool is_write) {
    const thread_state& t = now_->threads[who];
    for (std::uint32_t at = 0; at < cells_.size(); ++at) {
        if (cells_[at].at != words_[word].at) {
            continue;
        }
        cell_state& cell = now_->cells[at];
        bool races = t.clock[cell.writer] < cell.written;
        for (std::uint32_t other = 0; is_write && other < threads_max; ++other) {
            races = races || t.clock[other] < cell.reads[other];
        }
        if (races) {
            fail("race: a word is plain data of another thread");
        }
        (is_write ? cell.stores : cell.loads)[who] = t.clock[who];
    }
}

inline answer explorer::read_cell(const void* at, const answer& first) {
    if (is_known()) {
        return known();
    }
    cell_state& cell = now_->cells[cell_of(at, first)];
    const thread_state& t = now_->threads[who_];
    bool races = t.clock[cell.writer] < cell.written;
    for (std::uint32_t other = 0; other < threads_max; ++other) {
        races = races || t.clock[other] < cell.stores[other];
    }
    if (races) {
        fail("race: plain data is read that another thread writes");
    }
    cell.reads[who_] = t.clock[who_];
    const std::uint32_t word = word_under(at);
    return logged(word == words_max ? cell.value : answer{stores_[t.view[word]].value, 0});
}

inline void explorer::write_cell(const void* at, const answer& first, const answer& value) {
    if (is_known()) {
        ++cursor_;
        return;
    }
    cell_state& cell = now_->cells[cell_of(at, first)];
    const thread_state& t = now_->threads[who_];
    bool races = t.clock[cell.writer] < cell.written;
    for (std::uint32_t other = 0; other < threads_max; ++other) {
        races = races || t.clock[other] < cell.reads[other] ||
                t.clock[other] < cell.loads[other] || t.clock[other] < cell.stores[other];
    }
    if (races) {
        fail("race: plain data is written that another thread reads or writes");
    }
    const std::uint32_t word = word_under(at);
    if (word != words_max) {
        put_plainly(word, value.first);
    }
    cell.value = value;
    cell.writer = static_cast<std::uint8_t>(who_);
    cell.written = t.clock[who_];
    logged({});
}

inline void explorer::yield() {
    if (is_known()) {
        ++cursor_;
        return;
    }
    thread_state& t = now_->threads[who_];
    t.later_only = t.has_read;
    logged({});
}

/// Leaves nothing behind that a jump would lose.
inline void explorer::fail(const char* what) {
    if (phase_ == phase::threads && (looks_ahead_ || somebody_promised())) {
        drop();  // it is found where the promise was kept
    }
    tell(what);
    if (phase_ == phase::set_up) {
        std::fprintf(stderr, "%s\n", result_.wrong.c_str());
        std::abort();
    }
    std::longjmp(back_, 1);
}

/// What is wrong, and how it came to that.
inline void explorer::tell(const char* what) {
    std::string& out = result_.wrong;
    out = std::string(what) + "\n";
    for (const step& each : path_) {
        const operation& o = each.what;
        out += "  thread " + std::to_string(each.who - 1) + ": ";
        if (is_signal(o.kind)) {
            out += std::string(name_of(o.kind)) + "\n";
            continue;
        }
        const std::string_view function = o.place.function;
        out += std::string(function.substr(0, function.find('<'))) + ", line " +
               std::to_string(o.place.line) + ": " + (each.ahead ? "ahead of its turn " : "") +
               name_of(o.kind) + " " + name_of(effective(o, each.chosen)) + " of word " +
               std::to_string(o.word);
        if (reads(o.kind)) {
            out += " reads " + std::to_string(each.found.first) +
                   (each.last ? "" : ", not the last");
        }
        if (writes(o, each.chosen)) {
            out += " writes " + std::to_string(written_by(o, each.found.first));
        }
        out += "\n";
    }
    out += phase_ == phase::finish ? "  then the look at the end"
                                   : "  then thread " + std::to_string(who_ - 1);
}

// ---- the memory model

inline std::uint32_t explorer::place_of(std::uint32_t word, std::uint32_t store) const {
    const word_state& w = now_->words[word];
    std::uint32_t at = w.count - 1u;
    while (w.order[at] != store) {
        --at;
    }
    return at;
}

inline void explorer::join(clock_type& to, const clock_type& from) {
    for (std::uint32_t at = 0; at < threads_max; ++at) {
        to[at] = std::max(to[at], from[at]);
    }
}

inline void explorer::join(view_type& to, const view_type& from) const {
    for (std::uint32_t at = 0; at < words_.size(); ++at) {
        if (to[at] != from[at] && place_of(at, from[at]) > place_of(at, to[at])) {
            to[at] = from[at];
        }
    }
}

/// A new store, at this place of its word's order.
inline std::uint8_t explorer::put(std::uint32_t word, std::uint32_t place,
                                  const store_record& what) {
    word_state& w = now_->words[word];
    if (now_->store_count == stores_max || w.count == w.order.size()) {
        fail("endless: more stores than the checker has room for");
    }
    const std::uint8_t id = now_->store_count++;
    stores_.resize(id);
    stores_.push_back(what);
    for (std::uint32_t at = w.count++; at > place; --at) {
        w.order[at] = w.order[at - 1];
    }
    w.order[place] = id;
    w.hash = word;
    for (std::uint32_t at = 0; at < w.count; ++at) {
        w.hash = mixed(w.hash, stores_[w.order[at]].identity);
    }
    return id;
}

/// Which events of one_order must come before and after this one; false if one must do both.
inline bool explorer::one_order_allows(std::uint32_t who, const operation& what, const choice& c,
                                       std::uint64_t& before, std::uint64_t& after) const {
    before = now_->threads[who].before;
    after = 0;
    // Twice the place for a store, one more for who reads it. A new store will push on whoever has
    // its place now.
    const bool is_write = writes(what, c);
    const std::uint32_t mine =
        2u * c.at + (is_write ? (reads(what.kind) ? 2u : 0u) : 1u);
    for (std::uint32_t at = 0; at < now_->event_count; ++at) {
        const one_order_event& e = now_->events[at];
        if (e.word != what.word) {
            continue;
        }
        const std::uint32_t other = 2 * place_of(e.word, e.store) + (e.writes ? 0 : 1);
        const std::uint64_t bit = std::uint64_t{1} << at;
        if (other > mine || (is_write && other == mine)) {
            after |= bit;
        } else if (other != mine) {
            before |= bit;
        }
    }
    std::uint64_t reached = after;
    for (std::uint64_t left = after; left != 0;) {
        const auto at = static_cast<std::uint32_t>(std::countr_zero(left));
        left &= left - 1;
        left |= now_->comes_before[at] & ~reached;
        reached |= now_->comes_before[at];
    }
    return (reached & before) == 0;
}

/// What this operation may read, and where its store may go. From the last store on, so that the
/// first choice is what happens without other threads.
inline std::uint32_t explorer::choices(std::uint32_t who, const operation& what,
                                       choice* out) const {
    if (is_signal(what.kind)) {
        out[0] = {};
        return what.kind == model_kind::ring || (now_->signals >> what.word & 1) != 0 ? 1 : 0;
    }
    const thread_state& t = now_->threads[who];
    const word_state& w = now_->words[what.word];
    std::uint32_t first = place_of(what.word, t.view[what.word]);
    if (t.later_only && t.last_word == what.word && reads(what.kind)) {
        first = std::max(first, place_of(what.word, t.last_read) + 1);
    }
    std::uint32_t count = 0;
    const auto offer = [&](std::uint32_t at, bool exchanged) {
        const choice c{static_cast<std::uint8_t>(at), exchanged};
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        if (effective(what, c) != ordering::one_order ||
            one_order_allows(who, what, c, before, after)) {
            out[count++] = c;
        }
    };
    for (std::uint32_t next = w.count; next > first; --next) {
        const store_record& found = stores_[w.order[next - 1]];
        // Nothing goes between a read-modify-write and what it reads.
        const bool is_free = next == w.count || !stores_[w.order[next]].reads_the_one_before;
        const bool finds = what.kind == model_kind::compare && found.value == what.expected;
        if (what.kind == model_kind::load || (what.kind == model_kind::compare && !finds)) {
            offer(next - 1, false);
            continue;
        }
        if (is_free) {
            offer(reads(what.kind) ? next - 1 : next, finds);
        }
        if (finds && now_->failures_left != 0) {
            offer(next - 1, false);
        }
    }
    return count;
}

inline void explorer::apply_read(thread_state& t, const operation& what, const choice& c,
                                 store_record& made) {
    const std::uint8_t id = now_->words[what.word].order[c.at];
    const store_record& found = stores_[id];
    t.view[what.word] = id;
    t.last_read = id;
    t.last_word = what.word;
    t.has_read = true;
    t.later_only = false;
    t.hash = mixed(t.hash, found.identity);
    if (what.kind == model_kind::compare && !c.exchanged && found.value == what.expected) {
        --now_->failures_left;
        t.hash = mixed(t.hash, 2);
    }
    made = found;  // a read-modify-write goes on with the release sequence
    if (acquires(effective(what, c)) && found.released) {
        join(t.clock, found.released_clock);
        join(t.view, found.released_view);
        t.before |= found.released_before;
    }
}

inline std::uint8_t explorer::apply_write(std::uint32_t who, const operation& what,
                                          const choice& c, std::uint64_t found,
                                          store_record& made) {
    thread_state& t = now_->threads[who];
    made.value = written_by(what, found);
    made.identity = mixed(mixed(who + 2, t.steps), mixed(t.hash, made.value));
    made.reads_the_one_before = reads(what.kind);
    const std::uint8_t id = now_->store_count;
    if (releases(what.how) && phase_ == phase::threads) {  // all know of the set-up anyhow
        if (!made.released) {
            made.released_view = t.view;
        }
        join(made.released_view, t.view);
        join(made.released_clock, t.clock);
        made.released_before |= t.before;
        made.released = true;
        made.released_view[what.word] = id;
    }
    t.view[what.word] = id;
    return put(what.word, c.at + (reads(what.kind) ? 1u : 0u), made);
}

inline void explorer::enter_order(std::uint32_t who, const one_order_event& e,
                                  std::uint64_t before, std::uint64_t after) {
    if (now_->event_count == of_one_order_max) {
        fail("more operations of one_order than the checker has room for");
    }
    const std::uint32_t at = now_->event_count++;
    now_->events[at] = e;
    now_->comes_before[at] = after;
    for (std::uint32_t other = 0; other < at; ++other) {
        now_->comes_before[other] |= (before >> other & 1) << at;
    }
    now_->threads[who].before |= std::uint64_t{1} << at;
}

inline answer explorer::apply(std::uint32_t who, const operation& what, const choice& c) {
    thread_state& t = now_->threads[who];
    if (is_signal(what.kind)) {
        const std::uint32_t bit = 1u << what.word;
        now_->signals =
            what.kind == model_kind::ring ? now_->signals | bit : now_->signals & ~bit;
        return {};
    }
    // Words that are nobody else's add nothing to the order, for each thread is in it anyhow.
    const bool in_order = effective(what, c) == ordering::one_order &&
                          phase_ == phase::threads && words_[what.word].shared;
    std::uint64_t before = 0;
    std::uint64_t after = 0;
    if (in_order) {
        one_order_allows(who, what, c, before, after);
    }
    store_record made{};
    answer out{};
    if (reads(what.kind)) {
        apply_read(t, what, c, made);
        out = {made.value, c.exchanged ? 1u : 0u};
    }
    const bool is_write = writes(what, c);
    const std::uint8_t store =
        is_write ? apply_write(who, what, c, out.first, made) : t.last_read;
    if (in_order) {
        enter_order(who, {what.word, store, is_write}, before, after);
    }
    return out;
}

/// The same in its turn: what is done ahead comes to be an access of its thread only then.
inline answer explorer::apply_in_turn(const operation& what, const choice& c) {
    const answer out = apply(who_, what, c);
    if (!is_signal(what.kind)) {
        look_at_cell(who_, what.word, writes(what, c));
        ++now_->threads[who_].clock[who_];
    }
    return out;
}

// ---- the search

/// Runs a thread's function up to its next step of the schedule. False: nothing comes of it, or
/// something is wrong, or the search has to start anew.
inline bool explorer::advance(std::uint32_t who) {
    who_ = who;
    cursor_ = 0;
    steps_ = now_->threads[who].steps;
    if (setjmp(back_) == 0) {
        thread_(world_, static_cast<int>(who_) - 1);
        now_->threads[who_].finished = true;
    }
    return is_right();
}

/// Takes the pending step of a thread and goes on to its next one.
inline bool explorer::take(std::uint32_t who, const choice& c) {
    const operation& what = now_->threads[who].pending;
    who_ = who;
    cursor_ = now_->threads[who].steps;
    const bool last = c.at + 1u == now_->words[what.word].count;
    path_.push_back({who, what, c, {}, last, false});
    if (setjmp(back_) == 0) {
        path_.back().found = logged(apply_in_turn(path_.back().what, c));
    }
    return is_right() && advance(who_);
}

inline std::uint64_t explorer::hash_of(const state& of) const {
    std::uint64_t out = of.signals;
    for (std::uint32_t who = 1; who <= threads_; ++who) {
        out = mixed(out, mixed(of.threads[who].hash, of.threads[who].steps));
    }
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
        out = mixed(out, of.words[word].hash);
    }
    return out;
}

/// All that can come after this state. False: something is wrong, or the search starts anew.
inline bool explorer::search(std::size_t depth) {
    if (states_.size() < depth + 2) {
        states_.resize(depth + 2);
    }
    bool moved = false;
    for (std::uint32_t who = 1; who <= threads_; ++who) {
        now_ = &states_[depth];
        if (now_->threads[who].finished) {
            continue;
        }
        choice all[choices_max];
        const std::uint32_t count = choices(who, now_->threads[who].pending, all);
        for (std::uint32_t at = 0; at < count; ++at) {
            moved = true;
            states_[depth + 1] = states_[depth];
            now_ = &states_[depth + 1];
            path_.resize(depth);
            if (!search_on(depth + 1, take(who, all[at]))) {
                return false;
            }
        }
        if (may_promise_ && !look_ahead(depth, who)) {
            return false;
        }
    }
    now_ = &states_[depth];
    path_.resize(depth);
    return moved || end();
}

/// From the state that a step led to, if it is a new one.
inline bool explorer::search_on(std::size_t depth, bool moved) {
    if (!moved) {
        return std::exchange(drops_, false);
    }
    return !seen_.insert(hash_of(*now_)) || search(depth);
}

// ---- writes ahead of their turn

inline bool explorer::somebody_promised() const {
    return std::any_of(now_->threads.begin(), now_->threads.end(),
                       [](const thread_state& each) { return each.ahead.is_due; });
}

inline void explorer::drop() {
    drops_ = true;
    std::longjmp(back_, 1);
}

/// The writes that this thread would come to if nobody else did anything are done before its
/// pending operation: each that may be, on each place of its word's order. False as for search.
inline bool explorer::look_ahead(std::size_t depth, std::uint32_t who) {
    const thread_state& t = states_[depth].threads[who];
    now_ = &states_[depth];
    if (t.ahead.is_due || t.later_only || !can_be_passed(t.pending)) {
        return true;
    }
    choice all[choices_max];
    std::uint32_t count = choices(who, t.pending, all);
    promise found[4 * ahead_max];
    std::uint32_t found_count = 0;
    const auto add = [&](const operation& what, std::uint8_t index) {
        for (std::uint32_t at = 0; at < found_count; ++at) {
            if (found[at].index == index && is_same(found[at].what, what)) {
                return;
            }
        }
        if (found_count < 4 * ahead_max) {
            found[found_count++] = {what, {}, index, 0, 0, true};
        }
    };
    while (count-- != 0) {
        ahead_ = states_[depth];
        now_ = &ahead_;
        choice next = all[count];
        std::uint64_t passed = 0;
        for (std::uint32_t steps = 0; steps < ahead_max; ++steps) {
            const thread_state& then = ahead_.threads[who];
            passed |= std::uint64_t{1} << then.pending.word;
            path_.resize(depth);
            looks_ahead_ = true;
            const bool moved = take(who, next);
            looks_ahead_ = false;
            if (!moved && !std::exchange(drops_, false)) {
                return false;
            }
            if (!moved || then.finished) {
                break;
            }
            if (can_be_ahead(then.pending) && (passed >> then.pending.word & 1) == 0) {
                add(then.pending, then.steps);
            }
            choice more[choices_max];
            if (!can_be_passed(then.pending) || choices(who, then.pending, more) == 0) {
                break;
            }
            next = more[0];
        }
    }
    for (std::uint32_t at = 0; at < found_count; ++at) {
        if (!promise_all(depth, who, found[at])) {
            return false;
        }
    }
    return true;
}

inline bool explorer::promise_all(std::size_t depth, std::uint32_t who, const promise& of) {
    now_ = &states_[depth];
    choice all[choices_max];
    const std::uint32_t count = choices(who, of.what, all);
    for (std::uint32_t at = 0; at < count; ++at) {
        if (!writes(of.what, all[at])) {
            continue;
        }
        states_[depth + 1] = states_[depth];
        now_ = &states_[depth + 1];
        path_.resize(depth);
        if (!search_on(depth + 1, do_ahead(who, of, all[at]))) {
            return false;
        }
    }
    return true;
}

/// The thread itself learns nothing of it before its turn.
inline bool explorer::do_ahead(std::uint32_t who, const promise& of, const choice& c) {
    thread_state& t = now_->threads[who];
    const thread_state before = t;
    who_ = who;
    path_.push_back({who, of.what, c, {}, true, true});
    if (setjmp(back_) == 0) {
        const std::uint8_t read = now_->words[of.what.word].order[reads(of.what.kind) ? c.at : 0];
        const std::uint8_t made = now_->store_count;
        const answer found = apply(who_, of.what, c);
        path_.back().found = found;
        now_->threads[who_] = before;
        now_->threads[who_].ahead = {of.what, found, of.index, read, made, true};
        now_->threads[who_].hash = mixed(before.hash, stores_[made].identity + 3);
    }
    return is_right();
}

/// Is it what was done ahead? Whatever does not lead there is dropped.
inline bool explorer::keeps_promise(const operation& what) {
    may_promise_ = may_promise_ || can_be_ahead(what);
    const promise& due = now_->threads[who_].ahead;
    if (!due.is_due) {
        return false;
    }
    if (cursor_ == due.index) {
        if (!is_same(due.what, what)) {
            drop();
        }
        return true;
    }
    if (!can_be_passed(what) || what.word == due.what.word) {
        drop();
    }
    return false;
}

inline answer explorer::kept_promise() {
    thread_state& t = now_->threads[who_];
    promise& kept = t.ahead;
    kept.is_due = false;
    t.view[kept.what.word] = kept.store_made;
    t.hash = mixed(t.hash, 5);
    if (reads(kept.what.kind)) {
        t.last_read = kept.store_read;
        t.last_word = kept.what.word;
        t.has_read = true;
        if (acquires(kept.what.how) && stores_[kept.store_read].released) {
            join(t.clock, stores_[kept.store_read].released_clock);
            join(t.view, stores_[kept.store_read].released_view);
            t.before |= stores_[kept.store_read].released_before;
        }
    }
    look_at_cell(who_, kept.what.word, true);
    ++t.clock[who_];
    return kept.found;
}

// ---- the end

/// Nobody can go on.
inline bool explorer::end() {
    if (somebody_promised()) {
        return true;
    }
    ++result_.ends;
    for (who_ = 1; who_ <= threads_; ++who_) {
        if (!now_->threads[who_].finished) {
            tell("asleep for ever: this thread waits and nobody can go on");
            return false;
        }
    }
    return finish();
}

/// The notes, in hexadecimal digits.
inline void explorer::remember_outcome() {
    std::string outcome;
    for (std::uint32_t at = 0; at < notes_; ++at) {
        char digits[24];
        std::snprintf(digits, sizeof digits, at == 0 ? "%llx" : " %llx",
                      static_cast<unsigned long long>(now_->notes[at]));
        outcome += digits;
    }
    result_.outcomes.insert(outcome);
}

inline bool explorer::finish() {
    thread_state& all = now_->threads[0];
    for (std::uint32_t who = 1; who <= threads_; ++who) {
        join(all.view, now_->threads[who].view);
        join(all.clock, now_->threads[who].clock);
        all.before |= now_->threads[who].before;
    }
    who_ = 0;
    cursor_ = steps_ = 0;
    phase_ = phase::finish;
    if (setjmp(back_) == 0) {
        finish_(world_, 0);
        remember_outcome();
    }
    phase_ = phase::threads;
    return is_right();
}

/// Every thread up to its first step.
inline bool explorer::start() {
    states_.resize(1);
    states_[0] = set_up_;
    now_ = &states_[0];
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
        if (now_->words[word].count == 0) {
            put_first_value(word);
        }
    }
    for (std::uint32_t cell = 0; cell < cells_.size(); ++cell) {
        if (now_->cells[cell].written == 0) {
            now_->cells[cell].value = cells_[cell].first;
        }
    }
    for (std::uint32_t who = 1; who <= threads_; ++who) {
        thread_state& t = now_->threads[who];
        t = now_->threads[0];
        t.hash = who;
        t.clock[who] = 1;
    }
    phase_ = phase::threads;
    for (std::uint32_t who = 1; who <= threads_; ++who) {
        if (!advance(who)) {
            return false;
        }
    }
    return true;
}

inline void explorer::run(std::uint32_t threads, void* of, body thread, body at_end) {
    threads_ = threads;
    world_ = of;
    thread_ = thread;
    finish_ = at_end;
    do {
        again_ = false;
        const bool could_promise = may_promise_;
        phase_ = phase::set_up;
        path_.clear();
        seen_.clear();
        result_.outcomes.clear();
        result_.ends = 0;
        if (start() && seen_.insert(hash_of(states_[0]))) {
            search(0);
        }
        again_ = again_ || (result_.wrong.empty() && could_promise != may_promise_);
    } while (again_);
    result_.states = seen_.count();
    std::sort(result_.sites.begin(), result_.sites.end(),
              [](const model_site& a, const model_site& b) { return a.line < b.line; });
}

template <class T>
std::uint64_t bits_of(T value) {
    static_assert(std::is_integral_v<T> && sizeof(T) <= 8);
    return cut(static_cast<std::uint64_t>(value), sizeof value * 8);
}

}  // namespace model

/// As netio::detail::atomic, under the checker. It must not move while a world is explored.
template <class T>
class model_atomic {
public:
    static constexpr bool is_always_lock_free = true;

    constexpr model_atomic() noexcept = default;
    constexpr model_atomic(T first) noexcept : first_(first) {}
    model_atomic(const model_atomic&) = delete;
    model_atomic& operator=(const model_atomic&) = delete;

    T load(ordering how = ordering::one_order, const char* file = __builtin_FILE(),
           const char* function = __builtin_FUNCTION(),
           int line = __builtin_LINE()) const noexcept {
        return did(model_kind::load, how, {}, {file, function, line});
    }
    void store(T wanted, ordering how = ordering::one_order, const char* file = __builtin_FILE(),
               const char* function = __builtin_FUNCTION(), int line = __builtin_LINE()) noexcept {
        did(model_kind::store, how, wanted, {file, function, line});
    }
    T exchange(T wanted, ordering how = ordering::one_order, const char* file = __builtin_FILE(),
               const char* function = __builtin_FUNCTION(), int line = __builtin_LINE()) noexcept {
        return did(model_kind::exchange, how, wanted, {file, function, line});
    }
    T fetch_add(T more, ordering how = ordering::one_order, const char* file = __builtin_FILE(),
                const char* function = __builtin_FUNCTION(), int line = __builtin_LINE()) noexcept {
        return did(model_kind::add, how, more, {file, function, line});
    }
    T fetch_sub(T less, ordering how = ordering::one_order, const char* file = __builtin_FILE(),
                const char* function = __builtin_FUNCTION(), int line = __builtin_LINE()) noexcept {
        return did(model_kind::subtract, how, less, {file, function, line});
    }
    T fetch_or(T bits, ordering how = ordering::one_order, const char* file = __builtin_FILE(),
               const char* function = __builtin_FUNCTION(), int line = __builtin_LINE()) noexcept {
        return did(model_kind::set_bits, how, bits, {file, function, line});
    }
    T fetch_and(T bits, ordering how = ordering::one_order, const char* file = __builtin_FILE(),
                const char* function = __builtin_FUNCTION(), int line = __builtin_LINE()) noexcept {
        return did(model_kind::keep_bits, how, bits, {file, function, line});
    }
    bool compare_exchange_weak(T& seen, T wanted, ordering how = ordering::one_order,
                               const char* file = __builtin_FILE(),
                               const char* function = __builtin_FUNCTION(),
                               int line = __builtin_LINE()) noexcept {
        const model::answer got =
            operated(model_kind::compare, how, wanted, seen, {file, function, line});
        seen = got.second != 0 ? seen : static_cast<T>(got.first);
        return got.second != 0;
    }

private:
    model::answer operated(model_kind kind, ordering how, T wanted, T expected,
                           const model_place& place) const {
        if (model::current->is_known()) {
            return model::current->known();
        }
        return model::current->operate({kind, how, 0, sizeof(T) * 8, model::bits_of(wanted),
                                        model::bits_of(expected), place},
                                       this, model::bits_of(first_));
    }
    T did(model_kind kind, ordering how, T wanted, const model_place& place) const {
        return static_cast<T>(operated(kind, how, wanted, {}, place).first);
    }

    T first_{};  // the model knows the others
};

/// Plain data of at most 16 bytes that the words guard: each access is looked at for races.
template <class T>
class model_plain {
public:
    constexpr model_plain() noexcept = default;
    constexpr model_plain(T first) noexcept : first_(first) {}
    model_plain(const model_plain&) = delete;
    model_plain& operator=(const model_plain&) = delete;

    operator T() const noexcept {
        const model::answer got = model::current->read_cell(this, packed(first_));
        T out;
        std::memcpy(static_cast<void*>(&out), &got, sizeof out);
        return out;
    }
    model_plain& operator=(const T& value) noexcept {
        model::current->write_cell(this, packed(first_), packed(value));
        return *this;
    }
    model_plain& operator+=(const T& more) noexcept { return *this = T{*this} + more; }

private:
    static model::answer packed(const T& value) {
        static_assert(sizeof(T) <= sizeof(model::answer) && std::is_trivially_copyable_v<T>);
        model::answer out;
        std::memcpy(static_cast<void*>(&out), &value, sizeof value);
        return out;
    }

    T first_{};
};

/// How a ring touches its memory, four bytes at a time: each is plain data, and may be a word, too.
struct model_memory {
    using position = model_plain<std::size_t>;

    static std::uint32_t get(const std::byte* at) noexcept {
        return static_cast<std::uint32_t>(model::current->read_cell(at, {}).first);
    }
    static void put(std::byte* at, std::uint32_t word) noexcept {
        model::current->write_cell(at, {}, {word, 0});
    }
    static void wipe(std::byte* at, std::size_t bytes_count) noexcept {
        for (std::size_t done = 0; done < bytes_count; done += 4) {
            put(at + done, 0);
        }
    }
};

/// Something of the kernel that one thread sleeps on and others ring: rings that come before a
/// sleep ends coalesce and end it. It orders nothing else. At most 32, by `which`.
struct model_signal {
    std::uint8_t which;
    void ring() const noexcept { did(model_kind::ring); }
    void sleep() const noexcept { did(model_kind::sleep); }

private:
    void did(model_kind kind) const noexcept {
        model::operation what{};
        what.kind = kind;
        what.word = which;
        model::current->operate(what, nullptr, 0);
    }
};

/// In a loop that waits for a word to change: the next read of the word last read gives a later
/// store, which the thread waits for. (Reading the same once more would change nothing, and a store
/// is seen in the end.)
inline void model_yield() noexcept { model::current->yield(); }
/// Ends the search with `what` and the steps that led there.
inline void model_check(bool right, const char* what) noexcept {
    if (!right) {
        model::current->fail(what);
    }
}
/// What a thread tells finish() and the outcomes: at most eight numbers.
inline void model_note(std::uint32_t which, std::uint64_t value) noexcept {
    model::current->note(which, value);
}
inline std::uint64_t model_noted(std::uint32_t which) noexcept {
    return model::current->noted(which);
}

/// Everything that the `World::threads` threads of a world may do: `World()` sets up before,
/// `thread(which)` is run for each, `finish()` looks at the end. `failures`: exchanges that may
/// fail for no reason in one execution.
template <class World>
explored explore(const model_weaker& weaker = {}, std::uint32_t failures = 0) {
    explored out;
    const auto run = std::make_unique<model::explorer>(out, weaker, failures);
    model::current = run.get();
    const auto made = std::make_unique<World>();
    run->run(
        World::threads, made.get(),
        [](void* w, int which) { static_cast<World*>(w)->thread(which); },
        [](void* w, int) { static_cast<World*>(w)->finish(); });
    model::current = nullptr;
    return out;
}

namespace model {

/// The weaker orders that an operation of this kind can ask for, the weakest first.
inline std::vector<ordering> weaker_than(const model_site& site) {
    const bool loads = site.kind != model_kind::store;
    const bool stores = site.kind != model_kind::load;
    std::vector<ordering> out;
    const auto add = [&](ordering how, bool fits) {
        if (fits && site.how != how && acquires(how) <= acquires(site.how) &&
            releases(how) <= releases(site.how)) {
            out.push_back(how);
        }
    };
    add(ordering::relaxed, true);
    add(ordering::acquire, loads);
    add(ordering::release, stores);
    add(ordering::acquire_release, loads && stores);
    return out;
}

}  // namespace model

/// A line for each operation of the parts under test that asks for more than relaxed, in the order
/// of the text: the weakest order under which none of these worlds finds anything wrong. "push load
/// needs acquire", "empty load asks for acquire, relaxed would do". Several of one kind in one
/// function are counted.
template <class... World>
std::string weakest_orders() {
    std::map<std::pair<int, model_kind>, model_site> sites;
    std::map<std::string, std::uint32_t> count;
    std::string out;
    const auto add = [&](const explored& of) {
        out += of.wrong;
        for (const model_site& each : of.sites) {
            if (each.how != ordering::relaxed &&
                sites.insert({{each.line, each.kind}, each}).second) {
                ++count[each.name()];
            }
        }
    };
    (add(explore<World>()), ...);
    if (!out.empty()) {
        return out;
    }
    std::map<std::string, std::uint32_t> at;
    for (const auto& [where, site] : sites) {
        const std::string name = site.name();
        out += name + (count[name] == 1 ? "" : " " + std::to_string(++at[name]));
        const std::vector<ordering> weaker = model::weaker_than(site);
        const auto found =
            std::find_if(weaker.begin(), weaker.end(), [&site = site](ordering how) {
                return (explore<World>({site.line, site.kind, how}).wrong.empty() && ...);
            });
        const bool needs = found == weaker.end();
        out += std::string(needs ? " needs " : " asks for ") + name_of(site.how) +
               (needs ? "" : std::string(", ") + name_of(*found) + " would do") + "\n";
    }
    return out;
}

}  // namespace netio_test

#endif
