// g++ -std=c++20 -O2 -pthread bench/loadgen.cpp -o loadgen
//
// Load generator over loopback TCP, one thread unless told otherwise. Modes:
//   closed  every connection sends its next message when the reply to the last one is whole
//   open    messages leave by the clock (--rate); latency counts from the intended send time
//   accept  connect, one round trip, close, again
//   connect connect, end at once without a byte, wait for the server's end, close, again
//   idle    open the connections and hold them; prints `ready N` when all are there
// Several targets are measured in turn: --rounds rounds of one slice a target, the order rotated
// each round, so that ratios can be taken between neighbours in time. Server CPU is the server
// process's own clock, read while it sleeps before and after the slice. Replies are compared
// byte by byte. Prints one JSON object; anything unexpected is one line on stderr and exit 1.
// With --told it opens its connections, prints `ready N`, and then measures one slice of as many
// seconds as each line on its input says; the result is one line. So a script can interleave
// generators of different options, each with descriptors of its own.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::uint64_t second_ns = 1'000'000'000;
constexpr std::uint64_t stall_ns = 10 * second_ns;
constexpr std::uint64_t settle_ns = 3'000'000;   // the server sleeps before its clock is read
constexpr std::uint32_t payload_offsets = 4096;  // messages start at different places
constexpr std::uint32_t connections_per_source = 8192;

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char* format, ...) {
    std::fputs("loadgen: ", stderr);
    va_list arguments;
    va_start(arguments, format);
    std::vfprintf(stderr, format, arguments);
    va_end(arguments);
    std::fputc('\n', stderr);
    std::exit(1);
}

std::uint64_t read_clock(clockid_t clock) {
    timespec now{};
    if (::clock_gettime(clock, &now) != 0) { return 0; }
    return static_cast<std::uint64_t>(now.tv_sec) * second_ns +
           static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t now_ns() { return read_clock(CLOCK_MONOTONIC); }

void sleep_ns(std::uint64_t duration_ns) {
    timespec pause{};
    pause.tv_sec = static_cast<time_t>(duration_ns / second_ns);
    pause.tv_nsec = static_cast<long>(duration_ns % second_ns);
    while (::nanosleep(&pause, &pause) != 0 && errno == EINTR) {}
}

/// Log-linear: 64 steps to a power of two, so a quantile is at most 1.6% too high.
class histogram {
public:
    void record(std::uint64_t value) {
        ++counts_[std::min(index_of(value), counts_.size() - 1)];
        ++total_;
    }
    void add(const histogram& other) {
        for (std::size_t index = 0; index < counts_.size(); ++index) {
            counts_[index] += other.counts_[index];
        }
        total_ += other.total_;
    }
    double quantile_us(double share) const {
        const auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(total_));
        std::uint64_t seen = 0;
        for (std::size_t index = 0; index < counts_.size(); ++index) {
            seen += counts_[index];
            if (seen > wanted || (seen == total_ && total_ != 0)) {
                return static_cast<double>(upper_of(index)) / 1000.0;
            }
        }
        return 0.0;
    }

private:
    static std::size_t index_of(std::uint64_t value) {
        if (value < 128) { return static_cast<std::size_t>(value); }
        const auto shift = static_cast<unsigned>(std::bit_width(value)) - 7;
        return static_cast<std::size_t>(64 * (shift + 1) + ((value >> shift) - 64));
    }
    static std::uint64_t upper_of(std::size_t index) {
        if (index < 128) { return index; }
        const std::size_t shift = index / 64 - 1;
        return ((static_cast<std::uint64_t>(index % 64) + 65) << shift) - 1;
    }
    std::array<std::uint64_t, 64 * 40> counts_{};
    std::uint64_t total_ = 0;
};

enum class mode_kind { closed, open, accept, idle, connect };
enum class proxy_kind { none, v1, v2 };

struct options {
    mode_kind mode = mode_kind::closed;
    proxy_kind proxy = proxy_kind::none;
    in_addr_t address = htonl(INADDR_LOOPBACK);
    std::uint32_t connections = 1;
    std::uint32_t message_bytes = 64;
    double seconds = 1.0;
    std::uint32_t rounds = 1;
    double rate = 1000.0;
    bool reset = false;     // accept mode: close by RST
    bool lockstep = false;  // accept mode: all connect, then all send, then all close
    bool touch = false;     // idle mode: one round trip each before falling quiet
    bool told = false;      // a slice for each line on the input
    std::uint32_t threads = 1;
    std::uint32_t part = 0;  // which of the threads; each has its share of the above
};

struct connection {
    int descriptor = -1;
    std::uint32_t index = 0;
    std::uint32_t sequence = 0;
    std::uint32_t header_sent = 0;
    std::uint32_t sent = 0;
    std::uint32_t got = 0;
    bool busy = false;
    bool connecting = false;
    std::uint64_t started_ns = 0;
    std::uint64_t begun_count = 0;   // open loop: messages begun, and due so far
    std::uint64_t due_count = 0;
    std::uint64_t replied_count = 0;  // in this slice
};

struct round_result {
    double seconds = 0;
    std::uint64_t round_trips = 0;
    std::uint64_t unfinished = 0;
    std::uint64_t server_cpu_ns = 0;
    std::uint64_t own_cpu_ns = 0;
    std::uint64_t slowest_count = ~0ULL;  // round trips of the connection that had the fewest
    histogram latency;

    void add(const round_result& other) {
        round_trips += other.round_trips;
        unfinished += other.unfinished;
        server_cpu_ns += other.server_cpu_ns;
        own_cpu_ns += other.own_cpu_ns;
        latency.add(other.latency);
    }
};

struct target {
    std::string name;
    std::uint16_t port = 0;
    pid_t pid = 0;
    clockid_t cpu_clock = CLOCK_MONOTONIC;
    int epoll = -1;
    std::uint64_t all_round_trips = 0;  // the warm-up's too
    std::vector<connection> connections;
    std::vector<round_result> rounds;
};

class generator {
public:
    explicit generator(const options& chosen) : chosen_{chosen} {
        std::mt19937_64 random{20240229};
        block_.resize(chosen.message_bytes + payload_offsets);
        for (char& byte : block_) { byte = static_cast<char>(random()); }
        into_.resize(std::max<std::size_t>(64 * 1024, chosen.message_bytes) + 1);
        source_ = static_cast<std::uint32_t>(::getpid()) * 7919U + chosen.part * 104'729U;
        header_ = proxy_header(chosen.proxy);
    }

    void open_target(target& server);
    void touch(target& server) {  // one round trip on every connection
        const options before = chosen_;
        chosen_.mode = mode_kind::closed;
        round_result discarded;
        run_slice(server, now_ns(), 0, discarded);
        chosen_ = before;
    }
    void run_slice(target& server, std::uint64_t start_ns, std::uint64_t slice_ns,
                   round_result& into);

private:
    static std::string proxy_header(proxy_kind kind);
    const char* payload_of(const connection& peer) const {
        return block_.data() + (peer.index * 131 + peer.sequence * 17) % payload_offsets;
    }
    sockaddr_in address_of(const target& server) const;
    void bind_source(int descriptor);
    void connect_blocking(target& server, connection& peer);
    void open_lane(target& server, connection& lane, std::uint64_t now);
    void watch(target& server, connection& peer);
    void begin(target& server, connection& peer, std::uint64_t started_ns);
    void push(target& server, connection& peer);
    bool pull(target& server, connection& peer, std::uint32_t ready);
    void replied(target& server, connection& peer, std::uint64_t now);
    void on_event(target& server, connection& peer, std::uint32_t ready);
    void lane_step(target& server, connection& lane);
    void end_lane(target& server, connection& lane);
    void await_end(target& server, connection& lane);
    void close_lane(connection& lane);
    void lockstep_step(target& server);
    void lane_reached(target& server, connection& lane);
    std::uint64_t issue_due(target& server, std::uint64_t now);
    void start_slice(target& server, std::uint64_t now);
    void run_until_drained(target& server);
    void count_unfinished(target& server);

    bool makes_connections() const {
        return chosen_.mode == mode_kind::accept || chosen_.mode == mode_kind::connect;
    }

    options chosen_;
    std::array<epoll_event, 1024> events_{};
    std::vector<char> block_;
    std::vector<char> into_;
    std::string header_;
    std::uint32_t source_ = 0;
    std::uint32_t source_used_ = 0;
    round_result* result_ = nullptr;
    std::uint64_t start_ns_ = 0;
    std::uint64_t stop_ns_ = 0;
    std::uint64_t issued_count_ = 0;  // open loop
    std::uint64_t in_flight_ = 0;     // busy connections or open lanes
    std::uint32_t reached_ = 0;       // lockstep barrier
};

std::string generator::proxy_header(proxy_kind kind) {
    if (kind == proxy_kind::v1) { return "PROXY TCP4 192.0.2.1 192.0.2.2 40000 7000\r\n"; }
    if (kind == proxy_kind::v2) {
        static constexpr char fixed[] = "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"
                                        "\xc0\0\x02\x01\xc0\0\x02\x02\x9c\x40\x1b\x58";
        return {fixed, sizeof fixed - 1};
    }
    return {};
}

sockaddr_in generator::address_of(const target& server) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = chosen_.address;
    address.sin_port = htons(server.port);
    return address;
}

void generator::watch(target& server, connection& peer) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.u32 = peer.index;
    if (::epoll_ctl(server.epoll, EPOLL_CTL_ADD, peer.descriptor, &event) != 0) {
        die("epoll_ctl: %s", std::strerror(errno));
    }
}

void no_delay(int descriptor) {
    const int on = 1;
    ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// A source address that changes every few thousand connections: ports in TIME_WAIT then never
/// run out (each address has its own 28,000).
void generator::bind_source(int descriptor) {
    const int on = 1;
    ::setsockopt(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (++source_used_ > connections_per_source) {
        source_used_ = 0;
        ++source_;
    }
    sockaddr_in source{};
    source.sin_family = AF_INET;
    source.sin_addr.s_addr = htonl((127U << 24) | (1U << 16) | (source_ % 0xFE0000U));
    if (::bind(descriptor, reinterpret_cast<sockaddr*>(&source), sizeof source) != 0) {
        die("bind of a source address: %s", std::strerror(errno));
    }
}

void generator::connect_blocking(target& server, connection& peer) {
    peer.descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (peer.descriptor < 0) { die("socket: %s", std::strerror(errno)); }
    no_delay(peer.descriptor);
    if (chosen_.connections > connections_per_source) { bind_source(peer.descriptor); }
    const sockaddr_in address = address_of(server);
    if (::connect(peer.descriptor, reinterpret_cast<const sockaddr*>(&address),
                  sizeof address) != 0) {
        die("connect to %s, port %u: %s", server.name.c_str(), server.port,
            std::strerror(errno));
    }
    if (!header_.empty() &&
        ::send(peer.descriptor, header_.data(), header_.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(header_.size())) {
        die("send of the PROXY header to %s: %s", server.name.c_str(), std::strerror(errno));
    }
    peer.header_sent = static_cast<std::uint32_t>(header_.size());
    ::fcntl(peer.descriptor, F_SETFL, O_NONBLOCK);
}

/// Connects without waiting.
void generator::open_lane(target& server, connection& lane, std::uint64_t now) {
    lane.descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (lane.descriptor < 0) { die("socket: %s", std::strerror(errno)); }
    no_delay(lane.descriptor);
    bind_source(lane.descriptor);
    const sockaddr_in address = address_of(server);
    lane.connecting = true;
    lane.started_ns = now;
    if (::connect(lane.descriptor, reinterpret_cast<const sockaddr*>(&address),
                  sizeof address) != 0 && errno != EINPROGRESS) {
        die("connect to %s: %s", server.name.c_str(), std::strerror(errno));
    }
    watch(server, lane);
}

/// Waits, but not for ever, until the server has as many descriptors: its queue of connections to
/// accept is bounded, and what does not fit into it is lost.
void wait_accepted(pid_t server, std::uint32_t wanted_count) {
    const std::string folder = "/proc/" + std::to_string(server) + "/fd";
    const std::uint64_t until_ns = now_ns() + second_ns;
    for (;;) {
        DIR* descriptors = ::opendir(folder.c_str());
        if (descriptors == nullptr) { return; }
        std::uint32_t found_count = 0;
        while (::readdir(descriptors) != nullptr) { ++found_count; }
        ::closedir(descriptors);
        if (found_count >= wanted_count || now_ns() > until_ns) { return; }
        sleep_ns(2'000'000);
    }
}

void generator::open_target(target& server) {
    server.epoll = ::epoll_create1(EPOLL_CLOEXEC);
    if (server.epoll < 0) { die("epoll_create1: %s", std::strerror(errno)); }
    server.connections.resize(chosen_.connections);
    for (std::uint32_t index = 0; index < chosen_.connections; ++index) {
        connection& peer = server.connections[index];
        peer.index = index;
        if (makes_connections()) { continue; }
        connect_blocking(server, peer);
        watch(server, peer);
        if (index % 256 == 255) { sleep_ns(2'000'000); }  // never overrun the accept backlog
        if (index % 1024 == 1023 && server.pid != 0) { wait_accepted(server.pid, index); }
    }
}

void generator::begin(target& server, connection& peer, std::uint64_t started_ns) {
    ++peer.sequence;
    peer.sent = 0;
    peer.got = 0;
    peer.busy = true;
    peer.started_ns = started_ns;
    ++peer.begun_count;
    push(server, peer);
}

void generator::push(target& server, connection& peer) {
    while (peer.header_sent < header_.size()) {  // accept mode: the header leads the message
        const ssize_t sent = ::send(peer.descriptor, header_.data() + peer.header_sent,
                                    header_.size() - peer.header_sent, MSG_NOSIGNAL | MSG_MORE);
        if (sent < 0) {
            if (errno == EAGAIN) { return; }
            die("send to %s: %s", server.name.c_str(), std::strerror(errno));
        }
        peer.header_sent += static_cast<std::uint32_t>(sent);
    }
    const char* payload = payload_of(peer);
    while (peer.sent < chosen_.message_bytes) {
        const ssize_t sent = ::send(peer.descriptor, payload + peer.sent,
                                    chosen_.message_bytes - peer.sent, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) { return; }
            die("send to %s: %s", server.name.c_str(), std::strerror(errno));
        }
        peer.sent += static_cast<std::uint32_t>(sent);
    }
}

/// Reads what is there and compares it; true when the reply is whole.
bool generator::pull(target& server, connection& peer, std::uint32_t ready) {
    const bool ending = (ready & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    for (;;) {
        const ssize_t got = ::recv(peer.descriptor, into_.data(), into_.size(), 0);
        if (got < 0 && errno == EAGAIN) { break; }
        if (got < 0) { die("recv from %s: %s", server.name.c_str(), std::strerror(errno)); }
        if (got == 0) { die("%s closed a connection", server.name.c_str()); }
        const auto got_bytes = static_cast<std::uint32_t>(got);
        if (got_bytes > peer.sent - peer.got) {
            die("%s sent more than it was given", server.name.c_str());
        }
        if (std::memcmp(into_.data(), payload_of(peer) + peer.got, got_bytes) != 0) {
            die("%s sent other bytes than it was given", server.name.c_str());
        }
        peer.got += got_bytes;
        if (got_bytes < into_.size() && !ending) { break; }
    }
    return peer.busy && peer.got == chosen_.message_bytes;
}

void generator::replied(target& server, connection& peer, std::uint64_t now) {
    peer.busy = false;
    result_->latency.record(now - peer.started_ns);
    ++result_->round_trips;
    ++peer.replied_count;
    if (chosen_.mode == mode_kind::closed && now < stop_ns_) {
        begin(server, peer, now);
    } else if (chosen_.mode == mode_kind::open && peer.begun_count < peer.due_count) {
        const double interval_ns = static_cast<double>(second_ns) / chosen_.rate;
        const double turn = static_cast<double>(peer.begun_count) * chosen_.connections +
                            static_cast<double>(peer.index);
        begin(server, peer, start_ns_ + static_cast<std::uint64_t>(turn * interval_ns));
    } else if (makes_connections()) {
        lane_reached(server, peer);
    } else {
        --in_flight_;
    }
}

void generator::close_lane(connection& lane) {
    if (chosen_.reset) {
        const linger now{1, 0};
        ::setsockopt(lane.descriptor, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    ::close(lane.descriptor);
    lane.descriptor = -1;
}

/// Connected: send. Replied: close and, while the slice lasts, connect again.
void generator::lane_step(target& server, connection& lane) {
    if (lane.connecting) {
        lane.connecting = false;
        lane.header_sent = 0;
        if (chosen_.mode == mode_kind::connect) {
            end_lane(server, lane);
        } else {
            begin(server, lane, lane.started_ns);
        }
        return;
    }
    close_lane(lane);
    const std::uint64_t now = now_ns();
    if (now < stop_ns_) {
        open_lane(server, lane, now);
    } else {
        --in_flight_;
    }
}

/// Connected, nothing to say (but who it is, where that is asked for): the stream ends here.
void generator::end_lane(target& server, connection& lane) {
    if (!header_.empty() && ::send(lane.descriptor, header_.data(), header_.size(),
                                   MSG_NOSIGNAL) != static_cast<ssize_t>(header_.size())) {
        die("send of the PROXY header to %s: %s", server.name.c_str(), std::strerror(errno));
    }
    lane.busy = true;
    ::shutdown(lane.descriptor, SHUT_WR);
}

/// The server has seen the end when its own has come.
void generator::await_end(target& server, connection& lane) {
    char byte = 0;
    const ssize_t got = ::recv(lane.descriptor, &byte, 1, 0);
    if (got < 0 && errno == EAGAIN) { return; }
    if (got < 0) { die("recv from %s: %s", server.name.c_str(), std::strerror(errno)); }
    if (got > 0) { die("%s sent more than it was given", server.name.c_str()); }
    replied(server, lane, now_ns());
}

void generator::lockstep_step(target& server) {
    reached_ = 0;
    if (server.connections[0].connecting) {
        for (connection& lane : server.connections) { lane_step(server, lane); }
        return;
    }
    for (connection& lane : server.connections) { close_lane(lane); }
    const std::uint64_t now = now_ns();
    if (now >= stop_ns_) {
        in_flight_ = 0;
        return;
    }
    for (connection& lane : server.connections) { open_lane(server, lane, now); }
}

void generator::lane_reached(target& server, connection& lane) {
    if (!chosen_.lockstep) {
        lane_step(server, lane);
    } else if (++reached_ == server.connections.size()) {
        lockstep_step(server);
    }
}

void generator::on_event(target& server, connection& peer, std::uint32_t ready) {
    if (peer.descriptor < 0) { return; }
    if (peer.connecting) {
        if ((ready & (EPOLLERR | EPOLLHUP)) != 0) {
            int why = 0;
            socklen_t why_bytes = sizeof why;
            ::getsockopt(peer.descriptor, SOL_SOCKET, SO_ERROR, &why, &why_bytes);
            die("connect to %s: %s", server.name.c_str(), std::strerror(why));
        }
        if ((ready & EPOLLOUT) != 0) { lane_reached(server, peer); }
        return;
    }
    if (chosen_.mode == mode_kind::connect) {
        await_end(server, peer);
        return;
    }
    if (peer.busy && peer.sent < chosen_.message_bytes) { push(server, peer); }
    if ((ready & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) { return; }
    if (pull(server, peer, ready)) { replied(server, peer, now_ns()); }
}

/// Open loop: hands out every message whose time has come; returns when the next one is due.
std::uint64_t generator::issue_due(target& server, std::uint64_t now) {
    const double interval_ns = static_cast<double>(second_ns) / chosen_.rate;
    for (;;) {
        const double offset_ns = static_cast<double>(issued_count_) * interval_ns;
        const std::uint64_t due_ns = start_ns_ + static_cast<std::uint64_t>(offset_ns);
        if (due_ns >= stop_ns_ || due_ns > now) { return due_ns; }
        connection& peer = server.connections[issued_count_ % chosen_.connections];
        ++issued_count_;
        ++peer.due_count;
        if (!peer.busy) {
            ++in_flight_;
            begin(server, peer, due_ns);
        }
    }
}

void generator::start_slice(target& server, std::uint64_t now) {
    issued_count_ = 0;
    in_flight_ = 0;
    reached_ = 0;
    for (connection& peer : server.connections) {
        peer.begun_count = 0;
        peer.due_count = 0;
        peer.replied_count = 0;
        if (chosen_.mode == mode_kind::open) { continue; }
        ++in_flight_;
        if (makes_connections()) {
            open_lane(server, peer, now);
        } else {
            begin(server, peer, now);
        }
    }
}

void generator::run_until_drained(target& server) {
    const bool open_loop = chosen_.mode == mode_kind::open;
    std::uint64_t progress_ns = now_ns();
    for (;;) {
        std::uint64_t now = now_ns();
        timespec wait_for{0, 500'000'000};
        if (open_loop) {
            const std::uint64_t due_ns = issue_due(server, now);
            if (now > stop_ns_ + (stop_ns_ - start_ns_) && in_flight_ != 0) {
                count_unfinished(server);
                return;
            }
            const std::uint64_t until_ns = std::min(due_ns, stop_ns_);
            if (until_ns > now) {
                wait_for.tv_nsec = static_cast<long>(std::min(until_ns - now, second_ns / 2));
            }
        }
        if (in_flight_ == 0 && (!open_loop || now >= stop_ns_)) { return; }
        const int ready_count = ::epoll_pwait2(
            server.epoll, events_.data(), static_cast<int>(events_.size()), &wait_for, nullptr);
        if (ready_count < 0 && errno != EINTR) { die("epoll_pwait2: %s", std::strerror(errno)); }
        for (int index = 0; index < ready_count; ++index) {
            const epoll_event& event = events_[static_cast<std::size_t>(index)];
            on_event(server, server.connections[event.data.u32], event.events);
        }
        if (ready_count > 0 || in_flight_ == 0) {
            progress_ns = now;
        } else if (now > progress_ns + stall_ns) {
            die("%s: no reply for 10 s", server.name.c_str());
        }
    }
}

/// An overloaded open loop: what is still out counts with the latency it has so far.
void generator::count_unfinished(target& server) {
    const std::uint64_t now = now_ns();
    const double interval_ns = static_cast<double>(second_ns) / chosen_.rate;
    for (connection& peer : server.connections) {
        const std::uint64_t first = peer.begun_count - (peer.busy ? 1 : 0);
        for (std::uint64_t turn = first; turn < peer.due_count; ++turn) {
            const double order = static_cast<double>(turn) * chosen_.connections +
                                 static_cast<double>(peer.index);
            const std::uint64_t due_ns =
                start_ns_ + static_cast<std::uint64_t>(order * interval_ns);
            result_->latency.record(now - due_ns);
            ++result_->unfinished;
        }
        peer.due_count = peer.begun_count;
    }
    const mode_kind mode = chosen_.mode;
    round_result discarded;
    round_result* kept = result_;
    result_ = &discarded;
    chosen_.mode = mode_kind::closed;  // the replies under way are read to the end, unmeasured
    stop_ns_ = 0;
    run_until_drained(server);
    chosen_.mode = mode;
    result_ = kept;
}

void generator::run_slice(target& server, std::uint64_t start_ns, std::uint64_t slice_ns,
                          round_result& into) {
    result_ = &into;
    start_ns_ = start_ns;
    stop_ns_ = start_ns + slice_ns;
    start_slice(server, start_ns);
    run_until_drained(server);
    into.seconds = static_cast<double>(now_ns() - start_ns) / 1e9;
    for (const connection& peer : server.connections) {
        into.slowest_count = std::min(into.slowest_count, peer.replied_count);
    }
    result_ = nullptr;
}

/// The generators, one a thread, each with its share of the connections to every target.
class crew {
public:
    crew(const options& chosen, std::vector<target>& targets)
        : chosen_{chosen}, targets_{targets} {
        for (std::uint32_t part = 0; part < chosen.threads; ++part) {
            options share = chosen;
            share.part = part;
            share.connections = chosen.connections / chosen.threads +
                                (part < chosen.connections % chosen.threads ? 1 : 0);
            share.rate = chosen.rate * share.connections / chosen.connections;
            members_.push_back(std::make_unique<member>(member{generator{share}, targets}));
            for (target& server : members_.back()->targets) {
                members_.back()->load.open_target(server);
            }
        }
    }

    void run_round(std::size_t at, std::uint64_t slice_ns, bool keep);
    void hold_idle();

private:
    struct member {
        generator load;
        std::vector<target> targets;
    };

    round_result run_members(std::size_t at, std::uint64_t slice_ns);

    options chosen_;
    std::vector<target>& targets_;
    std::vector<std::unique_ptr<member>> members_;
};

/// One slice of every member at once.
round_result crew::run_members(std::size_t at, std::uint64_t slice_ns) {
    std::vector<round_result> results(members_.size());
    const std::uint64_t start_ns = now_ns();
    const auto run = [&](std::size_t part) {  // the clocks of an open loop take turns
        const double offset_ns = static_cast<double>(part * second_ns) / chosen_.rate;
        const bool open_loop = chosen_.mode == mode_kind::open;
        members_[part]->load.run_slice(
            members_[part]->targets[at],
            start_ns + (open_loop ? static_cast<std::uint64_t>(offset_ns) : 0), slice_ns,
            results[part]);
    };
    std::vector<std::thread> others;
    for (std::size_t part = 1; part < members_.size(); ++part) { others.emplace_back(run, part); }
    run(0);
    for (std::thread& other : others) { other.join(); }
    round_result all;
    for (const round_result& one : results) {
        all.add(one);
        all.seconds = std::max(all.seconds, one.seconds);
        all.slowest_count = std::min(all.slowest_count, one.slowest_count);
    }
    return all;
}

void crew::run_round(std::size_t at, std::uint64_t slice_ns, bool keep) {
    target& server = targets_[at];
    sleep_ns(settle_ns);
    const std::uint64_t server_before = server.pid != 0 ? read_clock(server.cpu_clock) : 0;
    const std::uint64_t own_before = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    round_result result = run_members(at, slice_ns);
    result.own_cpu_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID) - own_before;
    sleep_ns(settle_ns);
    if (server.pid != 0) {
        const std::uint64_t server_after = read_clock(server.cpu_clock);
        if (server_after < server_before || server_after == 0) {
            die("%s, process %d, is gone", server.name.c_str(), static_cast<int>(server.pid));
        }
        result.server_cpu_ns = server_after - server_before;
    }
    server.all_round_trips += result.round_trips;
    if (keep) { server.rounds.push_back(result); }
}

void crew::hold_idle() {
    target& server = members_[0]->targets[0];
    if (chosen_.touch) {
        members_[0]->load.touch(server);
    }
    std::printf("ready %u\n", chosen_.connections);
    std::fflush(stdout);
    const std::uint64_t end_ns =
        now_ns() + static_cast<std::uint64_t>(chosen_.seconds * static_cast<double>(second_ns));
    std::uint64_t closed_count = 0;
    epoll_event events[64];
    while (now_ns() < end_ns) {
        const int ready_count = ::epoll_wait(server.epoll, events, 64, 100);
        for (int index = 0; index < ready_count; ++index) {
            if ((events[index].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) { continue; }
            ::close(server.connections[events[index].data.u32].descriptor);
            ++closed_count;
        }
    }
    std::printf("{\"mode\":\"idle\",\"connections\":%u,\"closed_by_server\":%llu}\n",
                chosen_.connections, static_cast<unsigned long long>(closed_count));
}

double per_round_trip_us(std::uint64_t total_ns, std::uint64_t round_trips) {
    if (round_trips == 0) { return 0.0; }
    return static_cast<double>(total_ns) / 1000.0 / static_cast<double>(round_trips);
}

/// The slowest connection's round trips against the mean of all.
double slowest_share(const round_result& result, std::uint32_t connections) {
    if (result.round_trips == 0) { return 0.0; }
    return static_cast<double>(result.slowest_count) * connections /
           static_cast<double>(result.round_trips);
}

void print_result(const char* indent, const round_result& result, std::uint32_t connections,
                  bool with_cpu) {
    std::printf("%s{\"seconds\":%.6f,\"round_trips\":%llu,\"unfinished\":%llu,\"rate\":%.1f,"
                "\"p50_us\":%.2f,\"p99_us\":%.2f,\"p999_us\":%.2f,\"slowest_share\":%.4f,"
                "\"generator_cpu_us\":%.4f",
                indent, result.seconds, static_cast<unsigned long long>(result.round_trips),
                static_cast<unsigned long long>(result.unfinished),
                static_cast<double>(result.round_trips) / result.seconds,
                result.latency.quantile_us(0.5), result.latency.quantile_us(0.99),
                result.latency.quantile_us(0.999), slowest_share(result, connections),
                per_round_trip_us(result.own_cpu_ns, result.round_trips));
    if (with_cpu) {
        std::printf(",\"server_cpu_us\":%.4f",
                    per_round_trip_us(result.server_cpu_ns, result.round_trips));
    }
    std::printf("}");
}

void print_report(const options& chosen, const std::vector<target>& targets) {
    static constexpr const char* mode_names[] = {"closed", "open", "accept", "idle", "connect"};
    std::printf("{\"mode\":\"%s\",\"connections\":%u,\"bytes\":%u,\"targets\":[\n",
                mode_names[static_cast<int>(chosen.mode)], chosen.connections,
                chosen.message_bytes);
    for (std::size_t index = 0; index < targets.size(); ++index) {
        const target& server = targets[index];
        round_result total;
        total.slowest_count = 0;  // summed up: at least this much was every connection's share
        std::printf(" {\"name\":\"%s\",\"all_round_trips\":%llu,\"rounds\":[\n",
                    server.name.c_str(),
                    static_cast<unsigned long long>(server.all_round_trips));
        for (std::size_t round = 0; round < server.rounds.size(); ++round) {
            const round_result& one = server.rounds[round];
            print_result("  ", one, chosen.connections, server.pid != 0);
            std::printf("%s\n", round + 1 < server.rounds.size() ? "," : "");
            total.add(one);
            total.seconds += one.seconds;
            total.slowest_count += one.slowest_count;
        }
        std::printf(" ],\"total\":\n");
        print_result("  ", total, chosen.connections, server.pid != 0);
        std::printf("}%s\n", index + 1 < targets.size() ? "," : "");
    }
    std::printf("]}\n");
}

int measure_as_told(crew& load, const options& chosen, target& server) {
    std::printf("ready %u\n", chosen.connections);
    std::fflush(stdout);
    char line[64];
    ::alarm(0);  // who tells has a time limit of its own, and its end is the end of the input
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        const double seconds = std::strtod(line, nullptr);
        if (!(seconds > 0 && seconds <= 3600)) { die("told '%s' instead of seconds", line); }
        ::alarm(static_cast<unsigned>(3 * seconds) + 60);
        load.run_round(0, static_cast<std::uint64_t>(seconds * second_ns), true);
        ::alarm(0);
        print_result("", server.rounds.back(), chosen.connections, server.pid != 0);
        std::printf("\n");
        std::fflush(stdout);
        server.rounds.clear();
    }
    return 0;
}

constexpr const char* usage_text =
    "usage: loadgen --mode closed|open|accept|connect|idle (--port P [--server-pid PID] |\n"
    "               --target NAME:PORT[:PID] ...) [--address 127.x.y.z] [--connections N]\n"
    "               [--bytes B] [--seconds S] [--rounds R] [--rate PER_SECOND]\n"
    "               [--proxy none|v1|v2] [--close fin|rst] [--lockstep] [--touch]\n"
    "               [--threads T] [--told]\n"
    "--seconds is the length of one slice; accept and connect change their source every\n"
    "8,192 connections, so that ports in TIME_WAIT never run out. --machine prints what a\n"
    "system call costs here and does nothing else.\n";

double number_of(const char* flag, const char* text, double least, double most) {
    char* end = nullptr;
    const double value = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least) || !(value <= most)) {
        die("%s wants a number from %g to %g, not '%s'", flag, least, most, text);
    }
    return value;
}

template <std::size_t NameCount>
int choice_of(const char* flag, const char* text, const char* const (&names)[NameCount]) {
    for (std::size_t index = 0; index < NameCount; ++index) {
        if (std::strcmp(text, names[index]) == 0) { return static_cast<int>(index); }
    }
    die("%s does not know '%s'", flag, text);
}

target target_of(const char* text) {
    target server;
    const std::string all = text;
    const std::size_t first = all.find(':');
    if (first == std::string::npos) { die("--target wants NAME:PORT[:PID], not '%s'", text); }
    const std::size_t second = all.find(':', first + 1);
    server.name = all.substr(0, first);
    server.port = static_cast<std::uint16_t>(
        number_of("--target", all.substr(first + 1, second - first - 1).c_str(), 1, 65535));
    if (second != std::string::npos) {
        server.pid = static_cast<pid_t>(
            number_of("--target", all.substr(second + 1).c_str(), 1, 4194304));
    }
    return server;
}

in_addr_t loopback_of(const char* text) {
    in_addr address{};
    if (::inet_pton(AF_INET, text, &address) != 1 || (ntohl(address.s_addr) >> 24) != 127) {
        die("--address %s: only loopback addresses (127.0.0.0/8) are loaded", text);
    }
    return address.s_addr;
}

bool take_flag(options& chosen, const char* flag) {
    if (std::strcmp(flag, "--lockstep") == 0) { return chosen.lockstep = true; }
    if (std::strcmp(flag, "--touch") == 0) { return chosen.touch = true; }
    if (std::strcmp(flag, "--told") == 0) { return chosen.told = true; }
    return false;
}

void take_value(options& chosen, target& single, std::vector<target>& targets,
                const std::string& flag, const char* value) {
    const char* name = flag.c_str();
    if (flag == "--mode") {
        chosen.mode = static_cast<mode_kind>(
            choice_of(name, value, {"closed", "open", "accept", "idle", "connect"}));
    } else if (flag == "--proxy") {
        chosen.proxy = static_cast<proxy_kind>(choice_of(name, value, {"none", "v1", "v2"}));
    } else if (flag == "--close") {
        chosen.reset = choice_of(name, value, {"fin", "rst"}) == 1;
    } else if (flag == "--port") {
        single.port = static_cast<std::uint16_t>(number_of(name, value, 1, 65535));
    } else if (flag == "--server-pid") {
        single.pid = static_cast<pid_t>(number_of(name, value, 1, 4194304));
    } else if (flag == "--target") {
        targets.push_back(target_of(value));
    } else if (flag == "--address") {
        chosen.address = loopback_of(value);
    } else if (flag == "--connections") {
        chosen.connections = static_cast<std::uint32_t>(number_of(name, value, 1, 1e6));
    } else if (flag == "--bytes") {
        chosen.message_bytes = static_cast<std::uint32_t>(number_of(name, value, 1, 16 << 20));
    } else if (flag == "--seconds") {
        chosen.seconds = number_of(name, value, 0.001, 3600);
    } else if (flag == "--rounds") {
        chosen.rounds = static_cast<std::uint32_t>(number_of(name, value, 1, 1000));
    } else if (flag == "--threads") {
        chosen.threads = static_cast<std::uint32_t>(number_of(name, value, 1, 64));
    } else if (flag == "--rate") {
        chosen.rate = number_of(name, value, 1, 10e6);
    } else {
        std::fputs(usage_text, stderr);
        die("unknown option %s", name);
    }
}

/// What a system call costs here: the best of a few runs of the cheapest one.
int print_machine() {
    constexpr int call_count = 20'000;
    std::uint64_t best_ns = second_ns;
    for (int run = 0; run < 9; ++run) {
        const std::uint64_t before_ns = now_ns();
        for (int index = 0; index < call_count; ++index) { ::syscall(SYS_getppid); }
        best_ns = std::min(best_ns, now_ns() - before_ns);
    }
    std::printf("{\"system_call_ns\":%.1f}\n", static_cast<double>(best_ns) / call_count);
    return 0;
}

void parse(int argument_count, char** arguments, options& chosen, std::vector<target>& targets) {
    target single;
    single.name = "server";
    for (int index = 1; index < argument_count; ++index) {
        if (std::strcmp(arguments[index], "--help") == 0) {
            std::fputs(usage_text, stdout);
            std::exit(0);
        }
        if (std::strcmp(arguments[index], "--machine") == 0) { std::exit(print_machine()); }
        if (take_flag(chosen, arguments[index])) { continue; }
        if (index + 1 == argument_count) { die("%s: unknown or without a value",
                                               arguments[index]); }
        take_value(chosen, single, targets, arguments[index], arguments[index + 1]);
        ++index;
    }
    if (targets.empty() && single.port != 0) { targets.push_back(single); }
    if (targets.empty()) { die("no target: --port P or --target NAME:PORT[:PID]"); }
    if (chosen.told && targets.size() != 1) { die("--told measures one target"); }
    if (chosen.mode == mode_kind::idle) { chosen.threads = 1; }
    chosen.threads = std::min(chosen.threads, chosen.connections);
    for (target& server : targets) {
        if (server.pid != 0 && ::clock_getcpuclockid(server.pid, &server.cpu_clock) != 0) {
            die("%s: no process %d", server.name.c_str(), static_cast<int>(server.pid));
        }
    }
}

}  // namespace

int main(int argument_count, char** arguments) {
    options chosen;
    std::vector<target> targets;
    parse(argument_count, arguments, chosen, targets);
    ::prctl(PR_SET_TIMERSLACK, 1);
    rlimit descriptors{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
    const double planned_seconds =
        3 * chosen.seconds * chosen.rounds * static_cast<double>(targets.size());
    ::alarm(static_cast<unsigned>(planned_seconds) + 60);  // whatever hangs, this ends

    crew load{chosen, targets};
    if (chosen.mode == mode_kind::idle) {
        load.hold_idle();
        return 0;
    }
    if (chosen.told) { return measure_as_told(load, chosen, targets[0]); }
    const auto slice_ns =
        static_cast<std::uint64_t>(chosen.seconds * static_cast<double>(second_ns));
    for (std::size_t at = 0; at < targets.size(); ++at) {  // warm-up, not counted
        load.run_round(at, std::min(slice_ns, second_ns / 10), false);
    }
    for (std::uint32_t round = 0; round < chosen.rounds; ++round) {
        for (std::size_t step = 0; step < targets.size(); ++step) {
            load.run_round((round + step) % targets.size(), slice_ns, true);
        }
    }
    print_report(chosen, targets);
    return 0;
}
