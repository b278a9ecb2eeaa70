// g++ -std=c++20 -O2 -pthread bench/floor_io_uring.cpp -o floor_io_uring
//
// The floor of rings: the tightest echo that raw io_uring allows, against which netio's backend
// over it is measured. One thread a worker, each with its own ring and (by SO_REUSEPORT) its own
// listener; multishot accepts and receives, buffers the kernel chooses, sends whose success has no
// completion, one enter call for all of it. It has no limits, no deadlines, no addresses, and keeps
// no bytes secret from anybody: it is a measure and not a server. Linux 6.1, and 6.12 for batches.
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr unsigned submissions_max = 1024;
constexpr unsigned completions_max = 16384;
constexpr unsigned buffers_max = 512;  // a power of two
constexpr unsigned setup_flags = 1u << 3 | 1u << 7 | 1u << 12 | 1u << 13;  // cq size, submit all,
                                                                          // single issuer, defer
constexpr unsigned min_wait_feature = 1u << 15;
constexpr std::size_t descriptors_max = 1 << 20;

struct settings {
    long port = 0;
    long workers = 1;
    long wait_us = 100;     // 0: the first completion ends every wait
    long wait_least = 128;  // so many end a wait for a batch in any case
    long buffer_bytes = 16 * 1024 + 64;  // at 16 KiB all of them would fall on a few cache lines
};

/// As in the kernel's header of 6.12; older ones have three words of it under other names.
struct wait_argument {
    std::uint64_t signals;
    std::uint32_t signals_bytes;
    std::uint32_t least_us;
    std::uint64_t timeout;
};

/// The kernel's, with names of ours.
struct submission {
    std::uint8_t opcode, flags;
    std::uint16_t priority;
    std::int32_t descriptor;
    std::uint64_t offset, address;
    std::uint32_t count, operation_flags;
    std::uint64_t user_data, unused[3];
};
static_assert(sizeof(submission) == sizeof(io_uring_sqe));
struct lent_buffer {
    std::uint64_t address;
    std::uint32_t count;
    std::uint16_t id, tail;  // the tail is the ring's, in its first entry
};
static_assert(sizeof(lent_buffer) == sizeof(io_uring_buf));

struct reply {
    std::uint32_t buffer;
    std::uint32_t bytes;
};

struct worker {
    settings chosen;
    int ring = -1;
    int listener = -1;
    std::uint32_t *sq_head, *sq_tail, *cq_head, *cq_tail;
    submission* submissions;
    io_uring_cqe* completions;
    std::uint32_t sq_mask, cq_mask, tail = 0;
    lent_buffer* lent;
    std::uint16_t lent_tail = 0;
    char* buffers;
    std::vector<std::uint32_t> held;  // buffers whose sends the kernel has not taken yet
    std::vector<reply> reply_of;      // by descriptor: what its last send was made from
};

enum kind : std::uint64_t { accepts, receives, sends, closes, rests };
std::uint64_t named(kind what, int descriptor) {
    return static_cast<std::uint64_t>(what) << 32 | static_cast<std::uint32_t>(descriptor);
}

[[noreturn]] void die(const char* what) {
    std::fprintf(stderr, "floor_io_uring: %s: %s\n", what, std::strerror(errno));
    std::exit(1);
}

int listen_on(std::uint16_t port) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
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

/// Ends with 2 where this kernel can't be measured so.
void ask_kernel(const settings& chosen) {
    io_uring_params how{};
    how.flags = setup_flags;
    how.cq_entries = 16;
    const long ring = ::syscall(SYS_io_uring_setup, 4, &how);
    if (ring < 0) {
        std::fprintf(stderr, "floor_io_uring: io_uring_setup: %s\n", std::strerror(errno));
        std::exit(2);
    }
    ::close(static_cast<int>(ring));
    if (chosen.wait_us != 0 && (how.features & min_wait_feature) == 0) {
        std::fprintf(stderr, "floor_io_uring: this kernel can't wait for a batch (Linux 6.12)\n");
        std::exit(2);
    }
}

char* mapped(int ring, std::size_t bytes, std::int64_t offset) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            (ring < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_POPULATE,
                            ring, offset);
    if (at == MAP_FAILED) { die("mmap"); }
    return static_cast<char*>(at);
}

void lend(worker& self, std::uint32_t index) {
    lent_buffer& at = self.lent[self.lent_tail++ & (buffers_max - 1)];
    at.address = reinterpret_cast<std::uint64_t>(
        self.buffers + index * static_cast<std::size_t>(self.chosen.buffer_bytes));
    at.count = static_cast<std::uint32_t>(self.chosen.buffer_bytes);
    at.id = static_cast<std::uint16_t>(index);
}

void publish(worker& self) {
    __atomic_store_n(&self.lent[0].tail, self.lent_tail, __ATOMIC_RELEASE);
}

void open_ring(worker& self) {
    io_uring_params how{};
    how.flags = setup_flags;
    how.cq_entries = completions_max;
    self.ring = static_cast<int>(::syscall(SYS_io_uring_setup, submissions_max, &how));
    if (self.ring < 0) { die("io_uring_setup"); }
    char* const rings = mapped(
        self.ring, how.cq_off.cqes + how.cq_entries * sizeof(io_uring_cqe) +
                       how.sq_entries * sizeof(std::uint32_t), IORING_OFF_SQ_RING);
    self.submissions = reinterpret_cast<submission*>(
        mapped(self.ring, how.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    const auto word = [&](std::uint32_t at) {
        return reinterpret_cast<std::uint32_t*>(rings + at);
    };
    self.sq_head = word(how.sq_off.head);
    self.sq_tail = word(how.sq_off.tail);
    self.cq_head = word(how.cq_off.head);
    self.cq_tail = word(how.cq_off.tail);
    self.sq_mask = *word(how.sq_off.ring_mask);
    self.cq_mask = *word(how.cq_off.ring_mask);
    self.completions = reinterpret_cast<io_uring_cqe*>(rings + how.cq_off.cqes);
    for (std::uint32_t at = 0; at < how.sq_entries; ++at) { word(how.sq_off.array)[at] = at; }

    self.buffers = mapped(-1, buffers_max * static_cast<std::size_t>(self.chosen.buffer_bytes), 0);
    self.lent = reinterpret_cast<lent_buffer*>(mapped(-1, buffers_max * sizeof(io_uring_buf), 0));
    io_uring_buf_reg registration{};
    registration.ring_addr = reinterpret_cast<std::uint64_t>(self.lent);
    registration.ring_entries = buffers_max;
    if (::syscall(SYS_io_uring_register, self.ring, IORING_REGISTER_PBUF_RING, &registration, 1) !=
        0) {
        die("io_uring_register");
    }
    for (std::uint32_t index = 0; index < buffers_max; ++index) { lend(self, index); }
    publish(self);
}

int enter(worker& self, unsigned least, long least_us) {
    static constexpr std::int64_t a_minute[2] = {60, 0};
    wait_argument how{};
    how.least_us = static_cast<std::uint32_t>(least_us);
    how.timeout = least_us == 0 ? 0 : reinterpret_cast<std::uint64_t>(&a_minute);
    __atomic_store_n(self.sq_tail, self.tail, __ATOMIC_RELEASE);
    const std::uint32_t head = __atomic_load_n(self.sq_head, __ATOMIC_ACQUIRE);
    return static_cast<int>(::syscall(SYS_io_uring_enter, self.ring, self.tail - head, least,
                                      IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &how,
                                      sizeof how));
}

submission& push(worker& self, std::uint8_t opcode, kind what, int descriptor) {
    while (self.tail - __atomic_load_n(self.sq_head, __ATOMIC_ACQUIRE) > self.sq_mask) {
        enter(self, 0, 0);
    }
    submission& out = self.submissions[self.tail++ & self.sq_mask];
    std::memset(&out, 0, sizeof out);
    out.opcode = opcode;
    out.descriptor = descriptor;
    out.user_data = named(what, descriptor);
    return out;
}

void arm_receive(worker& self, int peer) {
    submission& out = push(self, IORING_OP_RECV, receives, peer);
    out.flags = IOSQE_BUFFER_SELECT;
    out.priority = IORING_RECV_MULTISHOT;
}

void arm_accept(worker& self) {
    submission& out = push(self, IORING_OP_ACCEPT, accepts, self.listener);
    out.priority = IORING_ACCEPT_MULTISHOT;
    out.operation_flags = SOCK_NONBLOCK | SOCK_CLOEXEC;
}

void drop(worker& self, int peer) {
    push(self, IORING_OP_CLOSE, closes, peer).flags = IOSQE_CQE_SKIP_SUCCESS;
}

/// A send waits for nothing and counts a part as failure, so silence means sent whole.
void send_back(worker& self, int peer, std::uint32_t buffer, std::uint32_t bytes) {
    submission& out = push(self, IORING_OP_SEND, sends, peer);
    out.address = reinterpret_cast<std::uint64_t>(
        self.buffers + buffer * static_cast<std::size_t>(self.chosen.buffer_bytes));
    out.count = bytes;
    out.operation_flags = MSG_NOSIGNAL | MSG_DONTWAIT | MSG_WAITALL;
    out.flags = IOSQE_CQE_SKIP_SUCCESS;
    self.reply_of[static_cast<std::size_t>(peer)] = {buffer, bytes};
    self.held.push_back(buffer);
}

/// What was not sent at once is copied, and sent by a call that waits: rare, so it may.
void send_rest(worker& self, int peer, std::int32_t result) {
    const std::uint32_t sent = result > 0 ? static_cast<std::uint32_t>(result) : 0;
    if (result < 0 && result != -EAGAIN) { return; }  // gone; the receive says so
    const reply of = self.reply_of[static_cast<std::size_t>(peer)];
    const char* at =
        self.buffers + of.buffer * static_cast<std::size_t>(self.chosen.buffer_bytes) + sent;
    auto* const rest = new std::string(at, of.bytes - sent);
    submission& out = push(self, IORING_OP_SEND, rests, peer);
    out.address = reinterpret_cast<std::uint64_t>(rest->data());
    out.count = static_cast<std::uint32_t>(rest->size());
    out.operation_flags = MSG_NOSIGNAL | MSG_WAITALL;  // kept until the process ends
}

/// True for a message.
bool received(worker& self, int peer, const io_uring_cqe& what) {
    const bool more = (what.flags & IORING_CQE_F_MORE) != 0;
    if (what.res <= 0) {
        if (what.res == -ENOBUFS) {
            arm_receive(self, peer);
        } else {
            drop(self, peer);
        }
        return false;
    }
    send_back(self, peer, what.flags >> IORING_CQE_BUFFER_SHIFT,
              static_cast<std::uint32_t>(what.res));
    if (!more) { arm_receive(self, peer); }
    return true;
}

/// Works off what came; how many of it were messages.
unsigned work_off(worker& self) {
    unsigned messages = 0;
    std::uint32_t head = *self.cq_head;
    const std::uint32_t end = __atomic_load_n(self.cq_tail, __ATOMIC_ACQUIRE);
    for (; head != end; ++head) {
        const io_uring_cqe what = self.completions[head & self.cq_mask];
        const int descriptor = static_cast<int>(what.user_data & 0xffffffff);
        switch (static_cast<kind>(what.user_data >> 32)) {
        case accepts:
            if (what.res >= 0) { arm_receive(self, what.res); }
            if ((what.flags & IORING_CQE_F_MORE) == 0) { arm_accept(self); }
            break;
        case receives: messages += received(self, descriptor, what) ? 1 : 0; break;
        case sends: send_rest(self, descriptor, what.res); break;
        default: break;
        }
    }
    __atomic_store_n(self.cq_head, head, __ATOMIC_RELEASE);
    return messages;
}

void run(worker& self) {
    open_ring(self);
    self.reply_of.resize(descriptors_max);
    arm_accept(self);
    unsigned messages = 0;
    std::vector<std::uint32_t> taken;
    for (;;) {
        // A lone connection never waits for others: only where a batch came, one is waited for.
        // Fewer than came last: nobody waits for the slowest of them.
        const unsigned least =
            std::min(static_cast<unsigned>(self.chosen.wait_least),
                     messages - std::min(messages, std::max(messages / 4, 4u)));
        const bool batch = self.chosen.wait_us != 0 && least >= 2;
        taken.swap(self.held);
        if (enter(self, batch ? least : 1,
                  batch ? self.chosen.wait_us : 0) < 0 &&
            errno != EINTR && errno != ETIME && errno != EBUSY) {
            die("io_uring_enter");
        }
        messages = work_off(self);
        for (const std::uint32_t buffer : taken) { lend(self, buffer); }
        taken.clear();
        publish(self);
    }
}

long number_of(const char* flag, const char* value, long most) {
    char* end = nullptr;
    const long number = value != nullptr ? std::strtol(value, &end, 10) : -1;
    if (end == nullptr || *end != '\0' || number < 0 || number > most) {
        std::fprintf(stderr, "floor_io_uring: %s wants a number from 0 to %ld\n", flag, most);
        std::exit(2);
    }
    return number;
}

}  // namespace

int main(int argument_count, char** arguments) {
    settings chosen;
    for (int index = 1; index < argument_count; index += 2) {
        const char* const flag = arguments[index];
        const char* const value = index + 1 < argument_count ? arguments[index + 1] : nullptr;
        const auto is = [flag](const char* name) { return std::strcmp(flag, name) == 0; };
        if (is("--port")) {
            chosen.port = number_of(flag, value, 65535);
        } else if (is("--workers")) {
            chosen.workers = number_of(flag, value, 256);
        } else if (is("--wait-us")) {
            chosen.wait_us = number_of(flag, value, 1'000'000);
        } else if (is("--wait-least")) {
            chosen.wait_least = number_of(flag, value, 8192);
        } else {
            std::fprintf(stderr, "floor_io_uring: unknown option %s; --port P --workers N "
                         "--wait-us N (0: no waiting for batches) --wait-least N\n", flag);
            return 2;
        }
    }
    ask_kernel(chosen);
    std::vector<worker*> all;
    for (long index = 0; index < (chosen.workers > 0 ? chosen.workers : 1); ++index) {
        auto* self = new worker;
        self->chosen = chosen;
        self->listener = listen_on(static_cast<std::uint16_t>(chosen.port));
        chosen.port = port_of(self->listener);
        all.push_back(self);
    }
    std::printf("listening %ld\n", chosen.port);
    std::fflush(stdout);
    for (std::size_t index = 1; index < all.size(); ++index) {
        std::thread{[self = all[index]] { run(*self); }}.detach();
    }
    run(*all[0]);
}
