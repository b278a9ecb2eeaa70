// c++ -std=c++20 -O2 -I. examples/chat.cpp -o chat
//
// Every line a client sends goes to all others, whichever worker they are on:
//
//     chat [--listen 0.0.0.0:7000] [--workers N] [--connections N] [--memory BYTES] [--drain-ms N]
//
// A connection is touched by its own worker only, so a line reaches the others as a word posted to
// each of them: its number, which says where it stands in one bounded ring of lines. The ring and
// the list of members are shared and stand behind one lock, held for one copy or one round of
// posts. Everything is bounded, so a client may miss lines: the ring went round before its turn
// came, or its output was full. It is told how many. (A post that a full queue refuses is counted,
// but not told: there was nobody to tell.) SIGTERM drains, SIGINT stops.
#include "netio.hpp"

#include "examples/options.hpp"

namespace {

constexpr std::uint32_t line_bytes_max = 512;
constexpr std::uint32_t lines_max = 1024;
constexpr std::uint32_t members_max = 65'536;

/// The last lines said, and who is there.
class room {
public:
    struct line {
        std::uint64_t number;  // 0: none yet
        std::uint32_t byte_count;
        char text[line_bytes_max];
    };

    void enter(netio::connection_id who) noexcept {
        const lock held(mutex_);
        NETIO_ASSERT(member_count_ < members_max);  // --connections is not above it
        members_[member_count_++] = who;
    }

    /// The last member takes the place of the one who leaves.
    void leave(netio::connection_id who) noexcept {
        const lock held(mutex_);
        for (std::uint32_t at = 0; at < member_count_; ++at) {
            if (members_[at] == who) {
                members_[at] = members_[--member_count_];
                return;
            }
        }
    }

    /// Keeps a line and posts its number to all but `from`.
    template <class Server>
    void say(Server& server, netio::connection_id from, netio::bytes text) noexcept {
        const lock held(mutex_);
        const std::uint64_t number = ++last_number_;
        line& kept = lines_[number % lines_max];
        kept.number = number;
        kept.byte_count = static_cast<std::uint32_t>(text.size());
        std::memcpy(kept.text, text.data(), text.size());
        for (std::uint32_t at = 0; at < member_count_; ++at) {
            if (members_[at] != from && !server.post(members_[at], number)) {
                ++lost_count_;
            }
        }
    }

    /// Copies a line. False: it was overwritten since.
    bool read(std::uint64_t number, line& out) noexcept {
        const lock held(mutex_);
        const line& kept = lines_[number % lines_max];
        if (kept.number != number) {
            return false;
        }
        out.number = number;
        out.byte_count = kept.byte_count;
        std::memcpy(out.text, kept.text, kept.byte_count);
        return true;
    }

    std::uint64_t line_count() const noexcept { return last_number_; }
    std::uint64_t lost_count() const noexcept { return lost_count_; }

private:
    class lock {
    public:
        explicit lock(pthread_mutex_t& of) noexcept : of_(of) { ::pthread_mutex_lock(&of_); }
        lock(const lock&) = delete;
        lock& operator=(const lock&) = delete;
        ~lock() { ::pthread_mutex_unlock(&of_); }

    private:
        pthread_mutex_t& of_;
    };

    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    std::uint64_t last_number_ = 0;
    std::uint64_t lost_count_ = 0;
    std::uint32_t member_count_ = 0;
    netio::connection_id members_[members_max] = {};
    line lines_[lines_max] = {};
};

struct member {
    std::uint64_t missed_count;
};

struct chat {
    room& all;
    netio::server<chat>* server = nullptr;

    void on_open(netio::connection& peer) noexcept { all.enter(peer.id()); }

    std::size_t on_data(netio::connection& peer, netio::bytes in) noexcept {
        const std::string_view text = netio::as_text(in);
        std::size_t used = 0;
        for (;;) {
            const std::string_view rest{text.data() + used, text.size() - used};
            const std::size_t end = rest.find('\n');
            if (end == std::string_view::npos || end + 1 > line_bytes_max) {
                break;
            }
            all.say(*server, peer.id(), in.subspan(used, end + 1));
            used += end + 1;
        }
        if (text.size() - used >= line_bytes_max) {
            peer.write_static("* line too long\n");
            peer.close();
        }
        return used;
    }

    void on_post(netio::connection& peer, std::uint64_t number) noexcept {
        member& mine = peer.state<member>();
        room::line said;
        if (!all.read(number, said)) {
            ++mine.missed_count;
            return;
        }
        if (peer.room() < said.byte_count + 64) {  // and a line about what was missed
            ++mine.missed_count;
            return;
        }
        if (mine.missed_count != 0) {
            char note[64];
            const int count = std::snprintf(note, sizeof(note), "* missed %llu lines\n",
                                            static_cast<unsigned long long>(mine.missed_count));
            peer.write({note, static_cast<std::size_t>(count)});
            mine.missed_count = 0;
        }
        peer.write({said.text, said.byte_count});
    }

    void on_close(netio::connection& peer, netio::close_reason) noexcept { all.leave(peer.id()); }
};

constinit room the_room;

netio::limits limits_for(std::uint32_t connections, std::uint32_t workers) noexcept {
    netio::limits sizes;
    sizes.connections_max = connections;
    sizes.workers_max = workers;
    sizes.posts_max = 16'384 * workers;
    return sizes;
}

}  // namespace

int main(int count, char** words) {
    netio::endpoint at = netio::any_ipv4(7000);
    std::uint32_t workers = 2;
    std::uint32_t connections = 1024;
    std::uint32_t memory_bytes = 0;
    std::uint32_t drain_ms = 10'000;
    const example::setting settings[] = {
        {.flag = "--listen", .address = &at},
        {.flag = "--workers", .number = &workers, .least = 1, .most = 64},
        {.flag = "--connections", .number = &connections, .least = 64, .most = members_max},
        {.flag = "--memory", .number = &memory_bytes, .least = 1, .most = 0xFFFFFFFF},
        {.flag = "--drain-ms", .number = &drain_ms, .least = 0, .most = 3'600'000},
    };
    if (!example::parse("chat", count, words, settings)) {
        return 2;
    }
    chat handler{the_room};
    netio::server server{example::memory_for(limits_for(connections, workers), memory_bytes),
                         handler};
    handler.server = &server;
    char address[netio::endpoint_text_max];
    netio::listen_options where;
    where.address = netio::format_address(at, address);
    where.port = at.port;
    if (server.listen(where) == netio::error::none) {
        example::signals<netio::server<chat>>::watch(server, drain_ms);
        example::announce("chat", server, server.local());
        example::run(server);
        std::printf("chat: lines %llu, posts refused %llu\n",
                    static_cast<unsigned long long>(the_room.line_count()),
                    static_cast<unsigned long long>(the_room.lost_count()));
    }
    return netio::report("chat", server);
}
