// One backend and its surroundings: starts operations at random and holds it to their events.
#ifndef NETIO_TESTS_SOAK_WORLD_HPP
#define NETIO_TESTS_SOAK_WORLD_HPP

#include "tests/soak/lines.hpp"

namespace soak {

/// `Tight`: a backend that can't always know what its kernel has ended.
template <class Backend, bool Tight>
class world {
public:
    void begin() {
        descriptors_before_ = plain::open_handles();
        open();
    }
    /// Operations until there were so many in all; then everything is closed and looked at.
    void round(std::uint64_t until) {
        ++counts_.rounds;
        while (run.operations < until) {
            // Now and then more at once than the kernel's queue of submissions has places.
            for (std::uint32_t left = luck.one_in(400) ? 400 : 1 + luck.below(6); left != 0;
                 --left) {
                operate();
                play(lines_[luck.below(slots)]);
            }
            if (!luck.one_in(3)) {
                wait(luck.one_in(16) ? luck.below(20'000) : 0);
            }
        }
        if (!luck.one_in(4)) {
            settle();
        }
        if (luck.one_in(3)) {
            break_off();
            open();
        } else {
            close_all();
            if (luck.one_in(2)) {
                break_off();
                open();
            }
        }
    }
    void end() {
        close_all();
        break_off();
    }
    void print_counts() const {
        const auto print = [](const char* what, std::uint64_t count) {
            std::printf("%s %llu, ", what, static_cast<unsigned long long>(count));
        };
        print("rounds", counts_.rounds);
        print("waits", counts_.waits);
        print("events", counts_.events);
        print("attached", counts_.opened);
        print("accepted", counts_.accepted);
        print("connected", counts_.connected);
        print("datagrams in", counts_.mails_in);
        print("out", counts_.mails_out);
        print("buffers refused", counts_.refused);
        print("MB in", counts_.bytes_in >> 20);
        std::printf("out %llu\n", static_cast<unsigned long long>(counts_.bytes_out >> 20));
    }

private:
    static constexpr std::uint64_t patience_ns = 30'000'000'000;

    // ---- opening and closing

    void open() {
        static constexpr std::uint32_t bytes_of_a_buffer[] = {256, 1024, 4096};
        static constexpr std::uint32_t quotas[] = {2, 4, 16, 64};
        std::memset(memory_, 0, sizeof(memory_));
        std::memset(links_, 0, sizeof(links_));
        const std::uint32_t quota = quotas[luck.below(4)];
        pool_.attach(pool_memory_, links_, 2 * quota, bytes_of_a_buffer[luck.below(3)], quota,
                     quota, true);
        holds(bool{backend_.open(memory_, sizes, pool_)}, "the backend opens");
        if constexpr (netio::backend_waits_for_batches<Backend>) {
            backend_.wait_for_batches(luck.one_in(2) ? luck.below(30) : 0);
        }
        if (luck.one_in(4)) {
            backend_.wait_handle();
        }
        descriptors_open_ = plain::open_handles();
        woken_due_ = false;
    }

    /// Every operation started has its event before long, and what peers sent is there.
    void settle() {
        const std::uint64_t end_ns = backend_.now_ns() + patience_ns;
        const char* missing = "";
        calm_ = true;
        for (bool moved = true; (missing = unsettled()) != nullptr;) {
            holds(backend_.now_ns() < end_ns, missing);
            give_all();
            for (std::uint32_t at = 0; at < slots; ++at) {
                help(lines_[at], who_of(at));
            }
            moved = wait(moved ? 0 : 1'000'000) != 0;
        }
        for (std::uint32_t at = 0; at < mailboxes_count; ++at) {
            await_mail(mailboxes_[at], at);
        }
        calm_ = false;
    }
    void help(line& one, token who) {
        if (one.at != stage::open) {
            return;
        }
        peer_reads(one, longest);
        if (!one.receiving && !one.receive_over) {
            start_receive(one, who, luck.one_in(4));
        }
    }
    /// What is still to come, nullptr if nothing is.
    const char* unsettled() const {
        for (const line& one : lines_) {
            const bool gone = !one.peer.is_here() || one.peer.ended;
            if (one.at == stage::connecting && !one.silent) {
                return "P2: a connect has no event";
            } else if (one.at == stage::closing) {
                return "P3: a close has no closed";
            } else if (one.at != stage::open) {
                continue;
            } else if (one.sending != 0) {
                return "P2: a send has no event";
            } else if (gone && !one.receive_over) {
                return "P14: an end of stream is lost";
            } else if (!gone && one.received != one.peer.sent) {
                return "P14: bytes are lost";
            }
        }
        for (const mail& one : mails_) {
            if (one.outstanding) {
                return "P2: a send_to has no event";
            }
        }
        for (std::size_t at = 0; at < waiting_.count; ++at) {
            const door& to = doors_[waiting_.all[at].door];
            if (!waiting_.all[at].lost && to.accepting) {
                return "P13: a connection is not accepted";
            }
        }
        return nullptr;
    }
    void await_mail(mailbox& one, std::uint32_t index) {
        if (!one.receiving || one.closing) {
            return;
        }
        const std::uint64_t end_ns = backend_.now_ns() + patience_ns;
        const std::uint64_t probe = post_to(one);
        while (one.seen < probe) {
            holds(backend_.now_ns() < end_ns, "P2: a datagram is lost", index);
            give_all();
            wait(1'000'000);
        }
    }

    void close_all() {
        calm_ = ending_ = true;
        for (std::uint32_t at = 0; at < slots; ++at) {
            line& one = lines_[at];
            if (one.at != stage::none && one.at != stage::closing) {
                close(one, who_of(at));
            }
        }
        for (std::uint32_t at = 0; at < doors_count; ++at) {
            shut(at);
        }
        for (std::uint32_t at = 0; at < mailboxes_count; ++at) {
            stop_mail(mailboxes_[at], at);
        }
        const std::uint64_t end_ns = backend_.now_ns() + patience_ns;
        while (!all_closed()) {
            holds(backend_.now_ns() < end_ns, "P3: a close has no closed");
            wait(1'000'000);
        }
        for (int turns = 0; turns < 3 || (turns < 1000 && backend_.ready()); ++turns) {
            wait(0);
        }
        calm_ = ending_ = false;
        for (mailbox& one : mailboxes_) {
            close_mailbox(one);
        }
        forget_the_rest();
        holds(!backend_.ready(), "all is closed, and something is left to do");
        check_nothing_is_left(descriptors_open_);
        if constexpr (requires { backend_.outstanding(); }) {
            holds(backend_.outstanding() == 0, "an operation is left in the kernel",
                  backend_.outstanding());
        }
    }
    bool all_closed() const {
        for (const line& one : lines_) {
            if (one.at != stage::none) {
                return false;
            }
        }
        for (const mailbox& one : mailboxes_) {
            if (one.receiving) {
                return false;
            }
        }
        for (const mail& one : mails_) {
            if (one.outstanding) {
                return false;
            }
        }
        return true;
    }
    /// The backend is closed with whatever is outstanding.
    void break_off() {
        backend_.close();
        counts_.refused += pool_.stats(side::input).refused;
        for (line& one : lines_) {
            if (one.at != stage::none) {
                one.unsure = true;
                farewell(one);
            }
        }
        for (door& one : doors_) {
            one.accepting = false;
            close_door(one);
        }
        for (mailbox& one : mailboxes_) {
            one.receiving = one.closing = false;
            close_mailbox(one);
        }
        for (mail& one : mails_) {
            one.outstanding = false;
            ++one.generation;
        }
        forget_the_rest();
        check_nothing_is_left(descriptors_before_);
    }
    void forget_the_rest() {
        give_all();
        waiting_.drop_all();
        welcome();
        outside_.drop_all();
    }
    void check_nothing_is_left(std::size_t descriptors) {
        const std::size_t now = plain::open_handles();
        holds(now == descriptors, "a descriptor is left", now);
        holds(pool_.in_use(side::input) == 0, "a buffer is left", pool_.in_use(side::input));
        holds(pool_.in_use(side::output) == 0, "an output buffer is charged");
        const std::size_t used = std::size_t{pool_.count()} * pool_.buffer_bytes();
        holds(pool_memory_[0] == std::byte{0} &&
                  std::memcmp(pool_memory_, pool_memory_ + 1, used - 1) == 0,
              "bytes of a peer are left in the pool");
    }

    // ---- operations

    token who_of(std::uint32_t index) const {
        return token::of(index, lines_[index].generation);
    }

    void operate() {
        switch (luck.below(64)) {
        case 0: backend_.wake(); woken_due_ = true; ++run.operations; break;
        case 1: operate_door(luck.below(doors_count)); break;
        case 2: operate_mailbox(luck.below(mailboxes_count)); break;
        case 3: send_mail(luck.below(mails_count)); break;
        case 4: visit(luck.below(doors_count)); break;
        case 5: give_one(); break;
        default: {
            const std::uint32_t index = luck.below(slots);
            operate_line(lines_[index], index);
        }
        }
    }
    void operate_line(line& one, std::uint32_t index) {
        switch (one.at) {
        case stage::none: arrive(one, index); break;
        case stage::connecting:
            if (luck.one_in(one.silent ? 4 : 32)) {
                close(one, who_of(index));
            }
            break;
        case stage::refused: close(one, who_of(index)); break;
        case stage::open: operate_open(one, index); break;
        case stage::closing: break;
        }
    }
    void operate_open(line& one, std::uint32_t index) {
        const token who = who_of(index);
        const bool can_send = one.sending == 0 && !one.send_over;
        const std::uint32_t what = luck.below(48);
        if (what == 0 || (one.receive_over && what < 16)) {
            close(one, who);
        } else if (what == 1 && can_send) {
            ++run.operations;
            one.send_over = true;
            backend_.end_send(who);
        } else if (what == 2 && can_send && !one.receiving) {
            move(one, index);
        } else if (what < 6 && one.receiving && !one.stopping) {
            ++run.operations;
            one.stopping = true;
            backend_.stop_receive(who);
        } else if (what % 2 == 0 && !one.receiving && !one.receive_over) {
            start_receive(one, who, luck.one_in(4));
        } else if (can_send) {
            start_send(one, who);
        }
    }

    void start_receive(line& one, token who, bool into_memory) {
        ++run.operations;
        one.receiving = true;
        one.into_memory = into_memory;
        one.stopping = false;
        one.came = 0;
        one.credit = luck.one_in(2) ? 1 + luck.below(20'000) : 1;
        const std::size_t most = 1 + luck.below(sizeof(one.memory));
        if (into_memory) {
            one.credit = static_cast<std::uint32_t>(most);
            backend_.start_receive(who, {one.memory, most}, 0);
        } else {
            backend_.start_receive(who, {}, one.credit);
        }
    }
    void start_send(line& one, token who) {
        ++run.operations;
        const std::size_t count = some_bytes();
        const std::byte* const from = text_at(one.peer.key_from, one.sent);
        bytes slices[netio::slices_max];
        std::size_t slice_count = 0;
        const std::uint32_t most = luck.one_in(3) ? 1 + luck.below(netio::slices_max) : 1;
        for (std::size_t at = 0; at < count; ++slice_count) {
            const std::size_t left = count - at;
            const bool last = slice_count + 1 == most;
            const std::size_t part =
                last ? left : 1 + luck.below(static_cast<std::uint32_t>(left));
            slices[slice_count] = {from + at, part};
            at += part;
        }
        const std::span<const bytes> all{slices, slice_count};
        const std::uint32_t how = luck.below(3);
        if constexpr (netio::backend_sends_now<Backend>) {
            if (how == 0) {
                if (backend_.send_now(who, all)) {
                    one.sent += count;
                } else {
                    one.sending = count;
                }
                return;
            }
        }
        one.sending = count;
        if constexpr (netio::backend_sends_quietly<Backend>) {
            if (how != 2) {
                backend_.send_quietly(who, all);
                return;
            }
        }
        backend_.start_send(who, all);
    }
    void close(line& one, token who) {
        ++run.operations;
        one.at = stage::closing;
        one.aborted = luck.one_in(2);
        one.unsure = one.unsure || one.sending != 0;
        backend_.start_close(who, one.aborted);
    }
    /// Released, and attached again: with another token.
    void move(line& one, std::uint32_t index) {
        run.operations += 2;
        const netio::socket_handle handle = backend_.release(who_of(index));
        ++one.generation;
        one.receive_over = false;
        holds(bool{backend_.attach(handle, who_of(index))}, "a released handle is attached");
    }

    // ---- connections come

    void begin(line& one, stage at, int peer, bool local) {
        const std::uint32_t generation = one.generation;
        one.at = at;
        one.connect_out = at == stage::connecting;
        one.silent = one.refusable = one.receiving = one.into_memory = one.stopping = false;
        one.receive_over = one.send_over = one.aborted = one.unsure = false;
        one.came = 0;
        one.sending = 0;
        one.sent = one.received = 0;
        one.generation = generation;
        one.peer = far_end{};
        one.peer.socket = peer;
        one.peer.local = local;
        one.peer.dirty = peer < 0 && at == stage::open;
        one.peer.key_to = luck.below(period);
        one.peer.key_from = luck.below(period);
    }
    void arrive(line& one, std::uint32_t index) {
        switch (luck.below(4)) {
        case 0: adopt(one, index); break;
        case 1: connect(one, index); break;
        case 2: connect_to_path(one, index); break;
        default: visit(luck.below(doors_count)); break;  // it comes by way of an accept
        }
    }
    void adopt(line& one, std::uint32_t index) {
        int both[2] = {-1, -1};
        ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both);
        ++run.operations;
        ++counts_.opened;
        holds(bool{backend_.attach(both[0], who_of(index))}, "a socket is attached");
        begin(one, stage::open, both[1], true);
    }
    void connect(line& one, std::uint32_t index) {
        const std::uint32_t kind = luck.below(32);
        const int to = kind == 0 ? around_.silent : kind < 4 ? around_.refusing : around_.outside;
        begin(one, stage::connecting, -1, false);
        one.silent = kind == 0;
        one.refusable = kind != 0 && kind < 4;
        one.to = somewhere(plain::local_of(to).port);
        ++run.operations;
        netio::socket_options options;
        options.send_bytes = luck.one_in(2) ? 20'000 : 0;
        const netio::os_status started =
            backend_.start_connect({one.to, {}}, options, who_of(index));
        if (!started) {
            holds(one.refusable || started.os_code == EADDRNOTAVAIL, "a connect is started");
            one.at = stage::none;
        }
    }
    void connect_to_path(line& one, std::uint32_t index) {
        ++run.operations;
        begin(one, stage::connecting, -1, true);
        holds(bool{backend_.start_connect({{}, around_.path}, {}, who_of(index))},
              "a connect to a path is started");
        one.peer.socket = ::accept4(around_.paths, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        holds(one.peer.is_here(), "a connect to a path is done at once");
    }
    /// A peer knocks at a door of the backend's.
    void visit(std::uint32_t index) {
        door& to = doors_[index];
        if (to.handle == netio::no_handle) {
            operate_door(index);
            return;
        }
        if (waiting_.full()) {
            return;
        }
        stranger one;
        one.socket = plain::open(SOCK_STREAM);
        plain::set_non_blocking(one.socket);
        if (luck.one_in(4)) {
            plain::set_receive_bytes(one.socket, 20'000);
        }
        one.to = somewhere(to.port);
        one.door = index;
        if (!plain::connect(one.socket, one.to) && errno != EINPROGRESS) {
            plain::close(one.socket);
            return;
        }
        one.port = plain::local_of(one.socket).port;
        if (luck.one_in(32)) {  // and does not wait for an answer
            plain::reset(one.socket);
            one.socket = -1;
        }
        waiting_.add(one);
    }
    /// Whoever came to the plain listener.
    void welcome() {
        for (;;) {
            const int made =
                ::accept4(around_.outside, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (made < 0) {
                return;
            }
            outside_.add({made, plain::peer_port_of(made), plain::local_of(made), 0, false});
        }
    }

    // ---- doors

    void operate_door(std::uint32_t index) {
        door& one = doors_[index];
        if (one.handle == netio::no_handle) {
            netio::listen_options options;
            options.socket.send_bytes = luck.one_in(2) ? 20'000 : 0;
            one.handle = Backend::listen({netio::any_ipv4(0), {}}, options).handle;
            holds(one.handle != netio::no_handle, "a listener is made");
            one.port = Backend::local_of(one.handle).value.port;
        } else if (!one.accepting) {
            ++run.operations;
            ++one.generation;
            holds(bool{backend_.start_accept(one.handle, token::of(index, one.generation))},
                  "an accept is started");
            one.accepting = true;
        } else if (luck.one_in(8)) {
            luck.one_in(3) ? shut(index) : stop(index);
        }
    }
    void stop(std::uint32_t index) {
        door& one = doors_[index];
        ++run.operations;
        backend_.stop_accept(token::of(index, one.generation));
        one.accepting = false;
        one.stopped_in = counts_.waits;
        one.late[one.generation % 64] = Backend::late_accepts_max;
    }
    void shut(std::uint32_t index) {
        if (doors_[index].accepting) {
            stop(index);
        }
        close_door(doors_[index]);
        if (!ending_ && luck.one_in(2)) {
            const endpoint same = netio::any_ipv4(doors_[index].port);
            doors_[index].handle = Backend::listen({same, {}}, {}).handle;
            holds(Tight || doors_[index].handle != netio::no_handle,
                  "the port of a closed listener is free at once");
        }
    }
    void close_door(door& one) {
        if (one.handle != netio::no_handle) {
            Backend::close_handle(one.handle, false);
            one.handle = netio::no_handle;
        }
        for (std::size_t at = 0; at < waiting_.count; ++at) {
            waiting_.all[at].lost |= &doors_[waiting_.all[at].door] == &one;
        }
        while (waiting_.count != 0 && waiting_.count > strangers::most / 2 &&
               waiting_.all[0].lost) {
            waiting_.drop(0);
        }
    }

    // ---- datagrams

    void operate_mailbox(std::uint32_t index) {
        mailbox& one = mailboxes_[index];
        if (one.handle == netio::no_handle) {
            one.handle = Backend::open_datagram(netio::loopback_ipv4(0), {}).handle;
            holds(one.handle != netio::no_handle, "a datagram socket is opened");
        }
        if (!one.receiving) {
            ++run.operations;
            ++one.generation;
            holds(bool{backend_.start_receive_from(one.handle, token::of(index, one.generation))},
                  "a receive_from is started");
            one.receiving = true;
        } else if (!one.closing) {
            luck.one_in(24) ? stop_mail(one, index) : static_cast<void>(post_to(one));
        }
    }
    void stop_mail(mailbox& one, std::uint32_t index) {
        if (one.receiving && !one.closing) {
            ++run.operations;
            one.closing = true;
            backend_.stop_receive_from(token::of(index, one.generation));
        }
    }
    void close_mailbox(mailbox& one) {
        if (one.handle != netio::no_handle) {
            Backend::close_handle(one.handle, false);
            one.handle = netio::no_handle;
        }
    }
    /// The number of the datagram.
    std::uint64_t post_to(const mailbox& one) {
        static std::byte text[mail_most];
        const std::uint64_t number = ++posted_;
        const std::size_t count = mail_bytes(number, mail_most);
        write_mail(text, number, count);
        const sockaddr_in to = plain::address_of(Backend::local_of(one.handle).value);
        ::sendto(around_.post, text, count, MSG_DONTWAIT | MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&to), sizeof(to));
        if (luck.one_in(16)) {
            ::sendto(around_.post, text, 0, MSG_DONTWAIT | MSG_NOSIGNAL,
                     reinterpret_cast<const sockaddr*>(&to), sizeof(to));
        }
        return number;
    }
    void send_mail(std::uint32_t index) {
        mail& one = mails_[index];
        const mailbox& from = mailboxes_[luck.below(mailboxes_count)];
        if (one.outstanding || from.handle == netio::no_handle || from.closing) {
            return;
        }
        const std::uint64_t number = ++posted_;
        one.sending = mail_bytes(number, sizeof(one.text));
        one.outstanding = true;
        write_mail(one.text, number, one.sending);
        one.from = static_cast<std::uint32_t>(&from - mailboxes_);
        // Nobody is at port 1.
        const std::uint16_t port = luck.one_in(8) ? 1 : plain::local_of(around_.post).port;
        ++run.operations;
        backend_.start_send_to(from.handle, token::of(index, one.generation),
                               {one.text, one.sending}, netio::loopback_ipv4(port));
    }
    void read_post() {
        std::byte text[sizeof(mail::text)];
        const ssize_t count = ::recv(around_.post, text, sizeof(text), MSG_DONTWAIT);
        if (count > 0) {
            const auto size = static_cast<std::size_t>(count);
            const std::uint64_t number = read_mail(text, size);
            holds(number != 0 && size == mail_bytes(number, sizeof(text)),
                  "a datagram arrives as it was sent", number);
        }
    }

    // ---- peers

    void play(line& one) {
        if (luck.one_in(16)) {
            read_post();
        }
        if (!one.peer.is_here() || one.at == stage::closing) {
            return;
        }
        const std::uint32_t what = luck.below(256);
        if (what == 0) {
            one.peer.leave(true);
        } else if (what == 1) {
            one.peer.leave(false);
        } else if (what < 6) {
            one.peer.finish();
        } else if (what < 100) {
            peer_reads(one, some_bytes());
        } else if (what < 200) {
            one.peer.send(some_bytes());
        }
    }
    void peer_reads(line& one, std::size_t most) {
        if (one.peer.is_here()) {
            const far_end::outcome how = one.peer.read(most, one.sent + one.sending);
            holds(how == far_end::outcome::waiting ||
                      (how == far_end::outcome::end && one.send_over),
                  "a peer sees no end that nobody asked for");
            holds(how != far_end::outcome::end || one.peer.got == one.sent,
                  "P10: bytes sent did not arrive");
        }
    }
    /// Its connection is closed: what the peer sees of that.
    void farewell(line& one) {
        if (one.peer.is_here()) {
            const far_end::outcome how = one.peer.read(~std::size_t{0}, one.sent + one.sending);
            const bool at_once = one.peer.local || (one.aborted && !one.unsure);
            holds(how != far_end::outcome::waiting || !at_once,
                  "a closed connection is not closed for its peer");
            if (how == far_end::outcome::end && !one.unsure && !one.peer.dirty) {
                holds(one.aborted || one.peer.got == one.sent, "P10: bytes sent did not arrive");
                holds(!one.aborted || one.peer.local || one.send_over, "an abort resets");
            }
            one.peer.leave(!luck.one_in(4));
        }
        one.at = stage::none;
        ++one.generation;
    }

    // ---- buffers held

    void give_one() {
        if (held_count_ != 0) {
            const held last = held_[--held_count_];
            pool_.give(last.buffer, side::input, last.byte_count);
        }
    }
    void give_all() {
        while (held_count_ != 0) {
            give_one();
        }
    }

    // ---- events

    std::uint32_t wait(std::uint64_t timeout_ns) {
        ++counts_.waits;
        // Everybody may hold some back, but not for long: the pool is often two buffers.
        if (luck.one_in(8)) {
            give_all();
        }
        const std::size_t room = 4 + (luck.one_in(2) ? luck.below(4) : luck.below(61));
        woken_asked_ = std::exchange(woken_due_, false);
        woken_came_ = false;
        const std::uint32_t count = backend_.wait({out_, room}, timeout_ns);
        holds(count <= room, "wait: no more events than there is room for", count);
        for (std::uint32_t at = 0; at < count; ++at) {
            see(out_[at]);
            // A caller may do anything before it has seen all that came.
            if (!calm_ && luck.one_in(8)) {
                operate();
            }
        }
        holds(woken_came_ == woken_asked_, "wake: the next wait tells of it, once");
        counts_.events += count;
        return count;
    }
    void see(const event& what) {
        switch (what.op) {
        case operation::wake:
            holds(!woken_came_, "wake: it is told once");
            woken_came_ = true;
            break;
        case operation::accept: see_accept(what); break;
        case operation::receive_from: see_mail(what); break;
        case operation::send_to: see_mail_sent(what); break;
        default: see_line(what); break;
        }
    }
    void see_line(const event& what) {
        const std::uint32_t index = what.who.index();
        holds(index < slots, "an event is of a token that was started", index);
        line& one = lines_[index];
        holds(one.at != stage::none && one.generation == what.who.generation(),
              "P11: nothing comes after closed", index);
        switch (what.op) {
        case operation::connect: see_connect(one, what); break;
        case operation::receive: see_receive(one, what); break;
        case operation::send: see_send(one, what); break;
        case operation::close:
            holds(what.kind == event_kind::closed && one.at == stage::closing,
                  "P3: closed comes once, after start_close");
            farewell(one);
            break;
        default: broken("an event has an operation", static_cast<std::uint64_t>(what.op));
        }
    }
    void see_connect(line& one, const event& what) {
        holds(one.connect_out, "P2: one event of a connect");
        one.connect_out = false;
        if (one.at == stage::closing) {
            return;
        }
        if (what.kind == event_kind::failed) {
            holds(one.refusable || what.os_code == EADDRNOTAVAIL, "a connect is not refused",
                  static_cast<std::uint64_t>(what.os_code));
            one.at = stage::refused;
            return;
        }
        holds(what.kind == event_kind::connected && !one.refusable && !one.silent,
              "a connect where nobody listens is refused");
        ++counts_.connected;
        one.at = stage::open;
        if (!one.peer.local) {
            welcome();
            const std::uint16_t port = Backend::local_of(what.handle).value.port;
            const std::size_t found = outside_.find(port, one.to);
            one.peer.dirty = found == strangers::most;  // it had to go
            one.peer.socket = one.peer.dirty ? -1 : outside_.take(found).socket;
        }
    }
    void see_receive(line& one, const event& what) {
        holds(one.receiving, "P2: no event but of a receive that is outstanding");
        const bool open = one.at == stage::open;
        if (what.kind == event_kind::received) {
            see_bytes(one, what);
            return;
        }
        one.receiving = false;
        one.receive_over = true;
        if (what.kind == event_kind::ended) {
            holds(!open || one.peer.dirty ||
                      (one.peer.ended && one.received == one.peer.sent),
                  "P14: an end comes after all bytes", one.peer.sent - one.received);
        } else {
            holds(what.kind == event_kind::failed && (!open || one.peer.dirty),
                  "a receive fails only if its peer is gone",
                  static_cast<std::uint64_t>(what.os_code));
        }
    }
    void see_bytes(line& one, const event& what) {
        const bool pooled = what.buffer_index != none_index;
        const bool ending = one.stopping || one.at == stage::closing;
        holds(what.byte_count != 0 || (!pooled && what.disarmed && ending),
              "a receive of no bytes is the end of one that was stopped");
        holds(what.byte_count == 0 || pooled != one.into_memory, "bytes come where asked for");
        const std::uint32_t most = pooled ? pool_.buffer_bytes() : one.credit;
        holds(what.byte_count <= most, "no more bytes than fit", what.byte_count);
        if (what.byte_count != 0) {
            const std::byte* const from = pooled ? pool_.data(what.buffer_index) : one.memory;
            holds(one.received + what.byte_count <= one.peer.sent,
                  "P4: no bytes come that were not sent", what.byte_count);
            holds(std::memcmp(from, text_at(one.peer.key_to, one.received), what.byte_count) == 0,
                  "P4: the bytes are those sent, in order", one.received);
        }
        one.received += what.byte_count;
        counts_.bytes_in += what.byte_count;
        holds(one.came < one.credit, "credit: nothing comes when it is used up", one.came);
        one.came += what.byte_count;
        holds(!what.disarmed || ending || one.into_memory || one.came >= one.credit,
              "credit: a receive lasts until it is used up", one.came);
        holds(what.disarmed || (!one.into_memory && one.came < one.credit),
              "P2: the last event of a receive is disarmed", one.came);
        one.receiving = !what.disarmed;
        if (pooled) {
            held_[held_count_++] = {what.buffer_index, what.byte_count};
            if (!luck.one_in(8)) {
                give_one();
            }
        }
    }
    void see_send(line& one, const event& what) {
        holds(one.sending != 0, "P2: one event of a send");
        if (what.kind == event_kind::sent) {
            holds(what.byte_count != 0 && what.byte_count <= one.sending,
                  "P10: as many bytes as were sent", what.byte_count);
            one.sent += what.byte_count;
            counts_.bytes_out += what.byte_count;
        } else {
            holds(what.kind == event_kind::failed &&
                      (one.peer.dirty || one.at == stage::closing),
                  "a send fails only if its peer is gone",
                  static_cast<std::uint64_t>(what.os_code));
            one.unsure = one.send_over = true;
        }
        one.sending = 0;
    }
    void see_accept(const event& what) {
        const std::uint32_t index = what.who.index();
        holds(index < doors_count && what.kind == event_kind::accepted, "an accept succeeds",
              static_cast<std::uint64_t>(what.os_code));
        door& at = doors_[index];
        const bool late = !at.accepting || what.who.generation() != at.generation;
        if (late) {
            std::uint32_t& left = at.late[what.who.generation() % 64];
            const bool same_wait = at.stopped_in == counts_.waits;
            holds(same_wait || left-- != 0, "P13: no more than late_accepts_max come late");
        }
        ++counts_.accepted;
        const endpoint here = Backend::local_of(what.handle).value;
        const std::size_t found = waiting_.find(what.peer.port, here);
        holds(late || found != strangers::most, "an accept tells who came", what.peer.port);
        const stranger who = found != strangers::most ? waiting_.take(found) : stranger{};
        const std::uint32_t slot = luck.below(slots);
        if (!ending_ && lines_[slot].at == stage::none && !luck.one_in(16)) {
            ++run.operations;
            holds(bool{backend_.attach(what.handle, who_of(slot))}, "who came is attached");
            begin(lines_[slot], stage::open, who.socket, false);
            return;
        }
        Backend::close_handle(what.handle, luck.one_in(2));
        if (who.socket >= 0) {
            plain::reset(who.socket);
        }
    }
    void see_mail(const event& what) {
        const std::uint32_t index = what.who.index();
        holds(index < mailboxes_count, "an event is of a token that was started", index);
        mailbox& one = mailboxes_[index];
        holds(one.receiving && one.generation == what.who.generation(),
              "P11: no datagram comes after closed");
        if (what.kind == event_kind::closed) {
            holds(one.closing, "a receive_from ends when it is stopped");
            one.receiving = one.closing = false;
            bool in_use = false;
            for (const mail& each : mails_) {
                in_use = in_use || (each.outstanding && each.from == index);
            }
            if (!in_use && luck.one_in(2)) {
                close_mailbox(one);
            }
            return;
        }
        holds(what.kind == event_kind::received, "a datagram is received");
        ++counts_.mails_in;
        if (what.byte_count != 0) {
            check_mail(one, what);
        }
        if (what.buffer_index != none_index) {
            held_[held_count_++] = {what.buffer_index, what.byte_count};
            give_one();
        }
    }
    void check_mail(mailbox& one, const event& what) {
        const std::byte* const from = pool_.data(what.buffer_index);
        const std::uint64_t number = read_mail(from, what.byte_count);
        const std::size_t sent = mail_bytes(number, mail_most);
        const std::size_t most = pool_.buffer_bytes();
        holds(number > one.seen, "a datagram comes as it was sent, in order", number);
        holds(what.byte_count == (sent < most ? sent : most), "a datagram comes whole", number);
        holds(what.truncated == (sent > most), "a datagram that does not fit is told", number);
        holds(what.peer.port == plain::local_of(around_.post).port, "a datagram has a sender");
        one.seen = number;
    }
    void see_mail_sent(const event& what) {
        mail& one = mails_[what.who.index() % mails_count];
        holds(one.outstanding && one.generation == what.who.generation(),
              "P2: one event of a send_to");
        const bool whole = what.kind == event_kind::sent && what.byte_count == one.sending;
        holds(whole || (what.kind == event_kind::failed && what.os_code == ECONNREFUSED),
              "a datagram is sent whole", static_cast<std::uint64_t>(what.os_code));
        ++counts_.mails_out;
        one.outstanding = false;
        ++one.generation;
    }

    static constexpr std::uint32_t mail_most = 6'000;

    alignas(64) std::byte memory_[Backend::bytes_needed(sizes)];
    std::byte pool_memory_[pool_bytes];
    std::uint32_t links_[buffers_most];
    netio::buffer_pool pool_;
    Backend backend_;
    surroundings around_;
    line lines_[slots];
    door doors_[doors_count];
    mailbox mailboxes_[mailboxes_count];
    mail mails_[mails_count];
    strangers waiting_;   // knocked at a door
    strangers outside_;   // connects of the backend, as the plain listener sees them
    event out_[65];
    held held_[buffers_most];
    std::uint32_t held_count_ = 0;
    bool woken_due_ = false;
    bool woken_asked_ = false;
    bool woken_came_ = false;
    bool calm_ = false;    // nothing but what is needed is started
    bool ending_ = false;  // and nobody is let in
    std::uint64_t posted_ = 0;
    std::size_t descriptors_before_ = 0;
    std::size_t descriptors_open_ = 0;
    counts_of_run counts_{};
};

}  // namespace soak

#endif
