// g++ -std=c++20 -O2 -pthread bench/floor_epoll.cpp -o floor_epoll
//
// The floor: the tightest echo that raw epoll allows, against which every server is measured.
// One thread a worker, each with its own epoll set and (by SO_REUSEPORT) its own listener.
// Calls: 64 bytes on a lone connection wait + recv + send = 3; a connection that is accepted, sends
// one message and leaves 10. It has no limits, no deadlines and no care for slow readers beyond
// keeping what the kernel refused, so it is a measure and not a server.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// Measured against 32 to 1,024: a shorter batch keeps its sockets in cache, a longer one saves
// nothing more (3% to 4% at 1,000 connections, none at 100).
constexpr int events_max = 128;
constexpr std::size_t descriptors_max = 1 << 20;
// One byte more than 16 KiB: a message of exactly 16 KiB is then a short read, which proves that
// the socket is drained and saves the recv that would only say EAGAIN.
constexpr std::size_t buffer_bytes = 16 * 1024 + 1;

struct waiting_output {  // what the kernel refused, per descriptor; rare, so it may allocate
    std::vector<char> bytes;
    std::size_t sent_bytes = 0;
};

struct worker {
    int epoll = -1;
    int listener = -1;
    waiting_output** waiting = nullptr;  // by descriptor; calloc, so untouched pages cost nothing
    char buffer[buffer_bytes];
};

[[noreturn]] void die(const char* what) {
    std::fprintf(stderr, "floor_epoll: %s: %s\n", what, std::strerror(errno));
    std::exit(1);
}

int listen_on(std::uint16_t port) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0) { die("socket"); }
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    ::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // inherited by accept
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        die("bind");
    }
    if (::listen(listener, 4096) != 0) { die("listen"); }
    return listener;
}

std::uint16_t port_of(int listener) {
    sockaddr_in address{};
    socklen_t address_bytes = sizeof address;
    if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &address_bytes) != 0) {
        die("getsockname");
    }
    return ntohs(address.sin_port);
}

void accept_all(worker& self) {
    for (;;) {
        const int peer = ::accept4(self.listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (peer < 0) {
            if (errno == EAGAIN) { return; }
            if (errno == EINTR || errno == ECONNABORTED) { continue; }
            die("accept4");
        }
        epoll_event event{};
        event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
        event.data.fd = peer;
        if (::epoll_ctl(self.epoll, EPOLL_CTL_ADD, peer, &event) != 0) { die("epoll_ctl"); }
    }
}

void watch(worker& self, int peer, std::uint32_t also) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET | also;
    event.data.fd = peer;
    if (::epoll_ctl(self.epoll, EPOLL_CTL_MOD, peer, &event) != 0) { die("epoll_ctl"); }
}

void drop(worker& self, int peer) {
    if (self.waiting[static_cast<std::size_t>(peer)] != nullptr) {
        delete self.waiting[static_cast<std::size_t>(peer)];
        self.waiting[static_cast<std::size_t>(peer)] = nullptr;
    }
    ::close(peer);  // leaves the epoll set with it
}

void keep_rest(worker& self, int peer, const char* rest, std::size_t rest_bytes) {
    auto* kept = new waiting_output;
    kept->bytes.assign(rest, rest + rest_bytes);
    self.waiting[static_cast<std::size_t>(peer)] = kept;
    watch(self, peer, EPOLLOUT);
}

/// True when reading may go on.
bool flush_rest(worker& self, int peer) {
    waiting_output* kept = self.waiting[static_cast<std::size_t>(peer)];
    while (kept->sent_bytes < kept->bytes.size()) {
        const ssize_t sent = ::send(peer, kept->bytes.data() + kept->sent_bytes,
                                    kept->bytes.size() - kept->sent_bytes, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EAGAIN) { return false; }
            drop(self, peer);
            return false;
        }
        kept->sent_bytes += static_cast<std::size_t>(sent);
    }
    delete kept;
    self.waiting[static_cast<std::size_t>(peer)] = nullptr;
    watch(self, peer, 0);
    return true;
}

void echo_ready(worker& self, int peer, std::uint32_t ready) {
    if (self.waiting[static_cast<std::size_t>(peer)] != nullptr) [[unlikely]] {
        if (!flush_rest(self, peer)) { return; }
        ready |= EPOLLRDHUP;  // edges that came meanwhile were not kept: read to the end
    }
    for (;;) {
        const ssize_t got = ::recv(peer, self.buffer, buffer_bytes, 0);
        if (got <= 0) {
            if (got < 0 && errno == EAGAIN) { return; }
            drop(self, peer);
            return;
        }
        const auto got_bytes = static_cast<std::size_t>(got);
        const ssize_t sent = ::send(peer, self.buffer, got_bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            drop(self, peer);
            return;
        }
        const std::size_t sent_bytes = sent < 0 ? 0 : static_cast<std::size_t>(sent);
        if (sent_bytes < got_bytes) [[unlikely]] {
            keep_rest(self, peer, self.buffer + sent_bytes, got_bytes - sent_bytes);
            return;
        }
        // A short read means drained, unless the end of the stream came with the same edge.
        const bool ending = (ready & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
        if (got_bytes < buffer_bytes && !ending) { return; }
    }
}

void run(worker& self) {
    self.epoll = ::epoll_create1(EPOLL_CLOEXEC);
    if (self.epoll < 0) { die("epoll_create1"); }
    epoll_event listening{};
    listening.events = EPOLLIN | EPOLLET;
    listening.data.fd = self.listener;
    if (::epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.listener, &listening) != 0) {
        die("epoll_ctl");
    }
    static thread_local epoll_event events[events_max];
    for (;;) {
        const int ready_count = ::epoll_wait(self.epoll, events, events_max, -1);
        if (ready_count < 0 && errno != EINTR) { die("epoll_wait"); }
        for (int index = 0; index < ready_count; ++index) {
            const int descriptor = events[index].data.fd;
            if (descriptor == self.listener) {
                accept_all(self);
            } else {
                echo_ready(self, descriptor, events[index].events);
            }
        }
    }
}

long number_after(int& index, int argument_count, char** arguments, long most) {
    const char* flag = arguments[index];
    char* end = nullptr;
    ++index;
    const long value = index < argument_count ? std::strtol(arguments[index], &end, 10) : -1;
    if (end == nullptr || *end != '\0' || value < 0 || value > most) {
        std::fprintf(stderr, "floor_epoll: %s wants a number from 0 to %ld\n", flag, most);
        std::exit(2);
    }
    return value;
}

}  // namespace

int main(int argument_count, char** arguments) {
    long port = 0;
    long workers = 1;
    for (int index = 1; index < argument_count; ++index) {
        if (std::strcmp(arguments[index], "--port") == 0) {
            port = number_after(index, argument_count, arguments, 65535);
        } else if (std::strcmp(arguments[index], "--workers") == 0) {
            workers = number_after(index, argument_count, arguments, 256);
        } else {
            std::fprintf(stderr, "floor_epoll: unknown option %s; --port P --workers N\n",
                         arguments[index]);
            return 2;
        }
    }
    std::vector<worker*> all;
    for (long index = 0; index < (workers > 0 ? workers : 1); ++index) {
        auto* self = new worker;
        self->listener = listen_on(static_cast<std::uint16_t>(port));
        port = port_of(self->listener);
        self->waiting = static_cast<waiting_output**>(
            std::calloc(descriptors_max, sizeof(waiting_output*)));
        if (self->waiting == nullptr) { die("calloc"); }
        all.push_back(self);
    }
    std::printf("listening %ld\n", port);
    std::fflush(stdout);
    for (std::size_t index = 1; index < all.size(); ++index) {
        std::thread{[self = all[index]] { run(*self); }}.detach();
    }
    run(*all[0]);
}
