// A TLS policy that is none of any use: framed records, a checksum, an exclusive-or, a handshake of
// two flights, an end, alerts. It checks what netio promises its policy. Test code: uses heap.
#ifndef NETIO_TESTS_TOY_TLS_HPP
#define NETIO_TESTS_TOY_TLS_HPP

#include "tests/scripted.hpp"

#include <algorithm>
#include <cstring>

namespace netio_test {

enum class toy_record : std::uint8_t { hello = 1, answer, finish, data, close, alert, ask, told };

/// One direction of a stream of records: type, 16 bits of length, 16 bits of a sum over all that
/// came before, the bytes in disguise. What is repeated, missing or changed has a wrong sum.
class toy_way {
public:
    static constexpr std::size_t header_bytes = 5;

    std::string seal(toy_record type, std::string_view text) {
        std::string out;
        out += static_cast<char>(type);
        out += static_cast<char>(text.size() >> 8);
        out += static_cast<char>(text.size() & 0xFF);
        const std::uint16_t sum = sum_of(type, text);
        out += static_cast<char>(sum >> 8);
        out += static_cast<char>(sum & 0xFF);
        return out += masked(text);
    }
    /// What the first record in `in` takes, or 0 while it is not whole.
    static std::size_t whole(std::string_view in) {
        if (in.size() < header_bytes) {
            return 0;
        }
        const std::size_t total =
            header_bytes + (std::size_t{byte_of(in[1])} << 8) + byte_of(in[2]);
        return in.size() < total ? 0 : total;
    }
    /// Opens one whole record. False: it is a bad one.
    bool open(std::string_view whole_record, toy_record& type, std::string& text) {
        type = static_cast<toy_record>(whole_record[0]);
        text = masked(whole_record.substr(header_bytes));
        const auto told = static_cast<std::uint16_t>(byte_of(whole_record[3]) << 8 |
                                                     byte_of(whole_record[4]));
        return sum_of(type, text) == told;
    }

private:
    static std::uint8_t byte_of(char letter) { return static_cast<std::uint8_t>(letter); }
    static std::string masked(std::string_view text) {
        std::string out(text);
        for (char& each : out) {
            each = static_cast<char>(each ^ 0x5C);
        }
        return out;
    }
    NETIO_WRAPS std::uint16_t sum_of(toy_record type, std::string_view text) {
        sum_ = sum_ * 31 + static_cast<std::uint32_t>(type) + 7;
        for (const char each : text) {
            sum_ = sum_ * 31 + byte_of(each);
        }
        return static_cast<std::uint16_t>(sum_ ^ sum_ >> 16);
    }
    std::uint32_t sum_ = 1;
};

/// How a toy behaves; each is a freedom that a policy has.
struct toy_options {
    std::uint32_t sessions_max = 16;
    std::size_t record_max = 300;       // bytes of plaintext in one record of ours
    std::size_t space_bytes = 700;      // what it receives at once; a record must fit
    bool by_pieces = false;             // it asks for a header, then for its record
    bool deaf_while_sending = false;    // it takes nothing before what it said has gone out
    bool closes_both = false;           // the peer's end is the end of both ways
    bool ends_itself = false;           // the protocol above knows its end: FIN alone is one
    bool works_late = false;            // it works off nothing before what it said has gone out
    std::size_t part_max = 1 << 20;     // what it says may lie in several parts
    bool silent_after_end = false;      // no alert and no answer follows its close_notify
};

class toy_tls {
public:
    toy_options how;
    std::uint64_t opened = 0;
    std::uint64_t closed = 0;
    std::uint64_t none_free = 0;
    std::uint64_t writes = 0;

    static constexpr std::uint16_t bad_record = 20;
    static constexpr std::uint16_t unexpected = 10;
    static constexpr std::uint16_t truncated = 1;

    explicit toy_tls(const toy_options& chosen = {}) : how(chosen), sessions_(chosen.sessions_max) {
        for (session& each : sessions_) {
            each.memory.assign(how.space_bytes, '\0');
            each.out.assign(4 * (how.record_max + 100) + 2 * how.space_bytes, '\0');
        }
    }
    ~toy_tls() {
        CHECK(opened == closed);
        CHECK(in_use() == 0);
    }

    std::uint32_t in_use() const { return static_cast<std::uint32_t>(opened - closed); }
    /// Nothing of a session that is over is left.
    bool wiped() const {
        for (const session& each : sessions_) {
            if (!each.live && (each.memory.find_first_not_of('\0') != std::string::npos ||
                               each.out.find_first_not_of('\0') != std::string::npos ||
                               !each.plain.empty())) {
                return false;
            }
        }
        return true;
    }

    std::uint32_t open_session(const netio::connection&) noexcept {
        for (std::size_t at = 0; at < sessions_.size(); ++at) {
            if (!sessions_[at].live) {
                sessions_[at].live = true;
                ++opened;
                return static_cast<std::uint32_t>(at + 1);
            }
        }
        ++none_free;
        return 0;
    }
    void close_session(std::uint32_t number) noexcept {
        session& s = of(number);
        session fresh;
        fresh.memory.assign(how.space_bytes, '\0');
        fresh.out.assign(s.out.size(), '\0');
        std::memset(s.memory.data(), 0, s.memory.size());
        std::memset(s.out.data(), 0, s.out.size());
        s = fresh;
        ++closed;
    }
    netio::mutable_bytes receive_space(std::uint32_t number) noexcept {
        session& s = of(number);
        const bool deaf = s.fin || hears_no_more(s);
        const bool talks = (how.deaf_while_sending && s.out_begin != s.out_end) ||
                           s.out_end > how.space_bytes;  // else an answer might find no room
        if (deaf || talks || !s.plain.empty() || toy_way::whole(s.arrived()) != 0) {
            return {};
        }
        if (s.begin != 0) {
            s.memory.erase(0, s.begin);
            s.memory.append(s.begin, '\0');
            s.end -= s.begin;
            s.begin = 0;
        }
        return {reinterpret_cast<std::byte*>(s.memory.data()) + s.end, wanted(s)};
    }
    void received(std::uint32_t number, std::size_t count) noexcept {
        session& s = of(number);
        REQUIRE(count != 0);
        REQUIRE(count <= wanted(s));
        s.end += count;
        work(s);
    }
    void end_of_input(std::uint32_t number) noexcept {
        session& s = of(number);
        CHECK_FALSE(s.fin);
        s.fin = true;
        work(s);
    }
    netio::bytes plaintext(std::uint32_t number) noexcept {
        return netio::as_bytes(std::string_view(of(number).plain));
    }
    void consumed(std::uint32_t number, std::size_t count) noexcept {
        session& s = of(number);
        REQUIRE(count != 0);
        REQUIRE(count <= s.plain.size());
        s.plain.erase(0, count);
        work(s);
    }
    std::size_t write(std::uint32_t number, netio::bytes out) noexcept {
        session& s = of(number);
        ++writes;
        const bool open = s.status == netio::tls_status::open ||
                          s.status == netio::tls_status::ended;
        CHECK(s.status != netio::tls_status::handshake);
        if (!open || s.ended || s.out_begin != s.out_end) {
            return 0;
        }
        const std::size_t room = how.record_max - s.building.size();
        const std::size_t count = out.size() < room ? out.size() : room;
        s.building += netio::as_text(out.first(count));
        return count;
    }
    netio::bytes to_send(std::uint32_t number) noexcept {
        session& s = of(number);
        if (!s.building.empty()) {
            push(s, toy_record::data, s.building);
            s.building.clear();
        }
        return netio::as_bytes(std::string_view(s.out).substr(
            s.out_begin, std::min(s.out_end - s.out_begin, how.part_max)));
    }
    void sent(std::uint32_t number, std::size_t count) noexcept {
        session& s = of(number);
        REQUIRE(count <= s.out_end - s.out_begin);
        s.out_begin += count;
        if (s.out_begin == s.out_end) {
            s.out_begin = s.out_end = 0;
            if (s.finishing) {
                s.finishing = false;
                s.status = netio::tls_status::open;
            }
            if (how.works_late) {
                work(s);
            }
        }
    }
    void end(std::uint32_t number) noexcept {
        session& s = of(number);
        if (s.status != netio::tls_status::failed && s.status != netio::tls_status::closed &&
            !s.ended) {
            to_send(number);
            push(s, toy_record::close, {});
        }
        s.ended = true;
    }
    netio::tls_status status(std::uint32_t number) noexcept { return of(number).status; }
    std::uint16_t code(std::uint32_t number) noexcept { return of(number).code; }

private:
    struct session {
        bool live = false;
        bool fin = false;
        bool ended = false;      // close_notify is in `out`, or will never be
        bool finishing = false;  // open when the last flight is sent
        netio::tls_status status = netio::tls_status::handshake;
        std::uint16_t code = 0;
        std::uint32_t step = 0;
        std::string memory;      // as long as it ever gets: the kernel writes here
        std::size_t begin = 0;
        std::size_t end = 0;
        std::string plain;
        std::string building;
        std::string out;         // and reads here
        std::size_t out_begin = 0;
        std::size_t out_end = 0;
        toy_way way_in;
        toy_way way_out;

        std::string_view arrived() const {
            return std::string_view(memory).substr(begin, end - begin);
        }
    };

    session& of(std::uint32_t number) {
        REQUIRE(number != 0);
        REQUIRE(number <= sessions_.size());
        REQUIRE(sessions_[number - 1].live);
        return sessions_[number - 1];
    }
    static bool hears_no_more(const session& s) {
        return s.status == netio::tls_status::failed || s.status == netio::tls_status::ended ||
               s.status == netio::tls_status::closed;
    }
    std::size_t wanted(const session& s) const {
        const std::size_t room = s.memory.size() - s.end;
        if (!how.by_pieces) {
            return room;
        }
        const std::string_view have = s.arrived();
        if (have.size() < toy_way::header_bytes) {
            return toy_way::header_bytes - have.size();
        }
        const std::size_t body = std::size_t{static_cast<std::uint8_t>(have[1])} << 8 |
                                 static_cast<std::uint8_t>(have[2]);
        const std::size_t left = toy_way::header_bytes + body - have.size();
        return left < room ? left : room;
    }
    bool may_speak(const session& s) const { return !how.silent_after_end || !s.ended; }
    void push(session& s, toy_record type, std::string_view text) {
        const std::string sealed = s.way_out.seal(type, text);
        REQUIRE(s.out.size() - s.out_end >= sealed.size());
        std::memcpy(s.out.data() + s.out_end, sealed.data(), sealed.size());
        s.out_end += sealed.size();
    }
    void fail(session& s, std::uint16_t code) {
        s.status = netio::tls_status::failed;
        s.code = code;
        if (code != truncated && may_speak(s)) {
            push(s, toy_record::alert, std::string(1, static_cast<char>(code)));
        }
        s.ended = true;
    }
    /// Records until there is plaintext, or no whole one any more.
    void work(session& s) {
        while (s.plain.empty() && !hears_no_more(s) &&
               (!how.works_late || s.out_begin == s.out_end)) {
            const std::size_t count = toy_way::whole(s.arrived());
            if (count == 0) {
                if (s.arrived().size() == s.memory.size()) {
                    fail(s, bad_record);  // longer than any may be
                } else if (s.fin) {
                    end_without_a_word(s);
                }
                return;
            }
            toy_record type{};
            std::string text;
            const bool good = s.way_in.open(s.arrived().substr(0, count), type, text);
            s.begin += count;
            if (good) {
                take(s, type, text);
            } else {
                fail(s, bad_record);
            }
        }
    }
    void end_without_a_word(session& s) {
        if (how.ends_itself && s.arrived().empty()) {
            s.status = netio::tls_status::ended;
        } else {
            fail(s, truncated);
        }
    }
    void take(session& s, toy_record type, const std::string& text) {
        if (type == toy_record::hello && s.step == 0) {
            s.step = 1;
            push(s, toy_record::answer, "toy");
        } else if (type == toy_record::finish && s.step == 1) {
            s.step = 2;
            push(s, toy_record::finish, {});
            s.finishing = true;
        } else if (type == toy_record::data && s.step == 2) {
            s.plain = text;
        } else if (type == toy_record::ask && s.step == 2) {
            if (may_speak(s)) {
                push(s, toy_record::told, {});  // a session of itself: no application hears
            }
        } else if (type == toy_record::close && s.step == 2) {
            s.status = how.closes_both ? netio::tls_status::closed : netio::tls_status::ended;
            s.finishing = false;
            if (how.closes_both && !s.ended) {
                s.building.clear();
                push(s, toy_record::close, {});
                s.ended = true;
            }
        } else {
            fail(s, unexpected);
        }
    }

    std::vector<session> sessions_;
};

/// The other end: makes what a client sends, reads what the server does.
class toy_client {
public:
    std::string text;      // what the server's application said
    bool answered = false;
    bool open = false;     // the handshake is over
    bool ended = false;    // the server's close_notify came
    int alert = 0;
    bool bad = false;      // a record that nobody sent
    int told = 0;          // by the session itself

    std::string hello() { return way_out_.seal(toy_record::hello, "client"); }
    std::string finish() { return way_out_.seal(toy_record::finish, {}); }
    std::string data(std::string_view plain) { return way_out_.seal(toy_record::data, plain); }
    std::string ask() { return way_out_.seal(toy_record::ask, {}); }
    std::string close() { return way_out_.seal(toy_record::close, {}); }

    void take(std::string_view arrived) {
        pending_ += arrived;
        while (const std::size_t count = toy_way::whole(pending_)) {
            toy_record type{};
            std::string content;
            bad = bad || ended || !way_in_.open(pending_.substr(0, count), type, content);
            pending_.erase(0, count);
            answered = answered || type == toy_record::answer;
            open = open || type == toy_record::finish;
            ended = ended || type == toy_record::close;
            told += type == toy_record::told ? 1 : 0;
            text += type == toy_record::data ? content : "";
            alert = type == toy_record::alert ? static_cast<std::uint8_t>(content[0]) : alert;
        }
    }
    /// Nothing but whole records came.
    bool clean() const { return pending_.empty() && !bad; }

private:
    toy_way way_in_;
    toy_way way_out_;
    std::string pending_;
};

}  // namespace netio_test

#endif
