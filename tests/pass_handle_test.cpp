// Descriptors over a unix stream: exactly one or none, nothing kept of what is not wanted.
#include "netio.hpp"
#include "tests/local_folder.hpp"

#include <doctest/doctest.h>

#if NETIO_HAS_EPOLL

#include <array>
#include <sys/resource.h>

namespace {

using namespace netio_test;
using netio::error;

/// A connected pair of unix streams, blocking, closed at the end.
struct pass_pair {
    int near = -1;
    int far = -1;
    explicit pass_pair(int type = SOCK_STREAM) {
        int both[2];
        REQUIRE(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, both) == 0);
        near = both[0];
        far = both[1];
    }
    pass_pair(const pass_pair&) = delete;
    ~pass_pair() {
        ::close(near);
        ::close(far);
    }
};

/// A pipe: what is written to it shows which descriptor came.
struct pass_pipe {
    int read = -1;
    int write = -1;
    pass_pipe() {
        int both[2];
        REQUIRE(::pipe2(both, O_CLOEXEC | O_NONBLOCK) == 0);
        read = both[0];
        write = both[1];
    }
    pass_pipe(const pass_pipe&) = delete;
    ~pass_pipe() {
        ::close(read);
        ::close(write);
    }
    bool has(char sign) const {
        char got = 0;
        return ::read(read, &got, 1) == 1 && got == sign;
    }
};

/// Says that control data were cut, although they came.
struct pass_cut_sys : netio::pass_sys {
    static ssize_t receive_control(int from, msghdr* what) noexcept {
        const ssize_t got = netio::pass_sys::receive_control(from, what);
        what->msg_flags |= MSG_CTRUNC;
        return got;
    }
};
/// As on systems where each descriptor has to be marked by itself.
struct pass_mark_sys : netio::pass_sys {
    static inline int failed = 0;
    static int set_close_on_exec(int of) noexcept {
        return failed != 0 ? -1 : ::fcntl(of, F_SETFD, FD_CLOEXEC);
    }
    static ssize_t receive_control(int from, msghdr* what) noexcept {
        return ::recvmsg(from, what, MSG_DONTWAIT);
    }
};
struct pass_interrupted_sys : netio::pass_sys {
    static inline int times = 0;
    static ssize_t send_control(int to, const msghdr* what) noexcept {
        errno = EINTR;
        return times-- > 0 ? -1 : netio::pass_sys::send_control(to, what);
    }
    static ssize_t receive_control(int from, msghdr* what) noexcept {
        errno = EINTR;
        return times-- > 0 ? -1 : netio::pass_sys::receive_control(from, what);
    }
};

const netio::bytes pass_word = netio::as_bytes(std::string_view("with"));

}  // namespace

TEST_CASE("a descriptor goes over a unix stream with its bytes, and is not inherited there") {
    const std::size_t handles = plain::open_handles();
    {
        pass_pair pair;
        pass_pipe pipe;
        const netio::passed_handle sent = netio::pass_handle(pair.near, pipe.write, pass_word);
        CHECK(sent);
        CHECK(sent.byte_count == 4);
        std::array<std::byte, 16> into{};
        const netio::received_handle got = netio::receive_handle(pair.far, into);
        REQUIRE(got);
        CHECK(got.byte_count == 4);
        CHECK(netio::as_text({into.data(), 4}) == "with");
        REQUIRE(got.handle >= 0);
        CHECK(got.handle != pipe.write);
        CHECK((::fcntl(static_cast<int>(got.handle), F_GETFD) & FD_CLOEXEC) != 0);
        CHECK(::write(static_cast<int>(got.handle), "!", 1) == 1);
        CHECK(pipe.has('!'));
        ::close(static_cast<int>(got.handle));
    }
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("bytes without a descriptor, nothing at all and the end are told apart") {
    pass_pair pair;
    std::array<std::byte, 2> into{};
    netio::received_handle got = netio::receive_handle(pair.far, into);
    CHECK(got);  // a blocking socket, and it does not block
    CHECK(got.byte_count == 0);
    CHECK_FALSE(got.ended);
    REQUIRE(::write(pair.near, "abc", 3) == 3);
    got = netio::receive_handle(pair.far, into);
    CHECK(got.byte_count == 2);
    CHECK(got.handle == netio::no_handle);
    got = netio::receive_handle(pair.far, into);
    CHECK(got.byte_count == 1);
    ::shutdown(pair.near, SHUT_WR);
    got = netio::receive_handle(pair.far, into);
    CHECK(got);
    CHECK(got.ended);
    CHECK(netio::receive_handle(pair.far, {}).status.why == error::option_invalid);
    CHECK(netio::receive_handle(-1, into).status.os_code == EBADF);
    CHECK(netio::pass_handle(pair.near, pair.far, {}).status.why == error::option_invalid);
    CHECK(netio::pass_handle(pair.far, 1'000'000, pass_word).status.os_code == EBADF);
    CHECK(netio::pass_handle(pair.near, pair.far, pass_word).status.why == error::broken_pipe);
}

TEST_CASE("of bytes that are read in parts the descriptor comes with the first") {
    pass_pair pair;
    pass_pipe pipe;
    CHECK(netio::pass_handle(pair.near, pipe.write, pass_word));
    std::array<std::byte, 1> into{};
    int came = 0;
    for (int at = 0; at < 4; ++at) {
        const netio::received_handle got = netio::receive_handle(pair.far, into);
        CHECK(got.byte_count == 1);
        if (got.handle != netio::no_handle) {
            CHECK(at == 0);
            ++came;
            ::close(static_cast<int>(got.handle));
        }
    }
    CHECK(came == 1);
}

TEST_CASE("more descriptors than one are all closed and an error") {
    pass_pair pair;
    pass_pipe pipe;
    const std::size_t handles = plain::open_handles();
    std::array<std::byte, 16> into{};
    for (const std::size_t count : {2u, 64u, 253u}) {
        CAPTURE(count);
        const std::vector<netio::socket_handle> many(count, pipe.write);
        CHECK(netio::detail::send_with_handles<netio::pass_sys>(pair.near, many, pass_word));
        const netio::received_handle got = netio::receive_handle(pair.far, into);
        CHECK(got.status.why == error::too_long);
        CHECK(got.handle == netio::no_handle);
        CHECK(plain::open_handles() == handles);
    }
    const std::vector<netio::socket_handle> too_many(254, pipe.write);
    CHECK(netio::detail::send_with_handles<netio::pass_sys>(pair.near, too_many, pass_word)
              .status.why == error::option_invalid);
}

TEST_CASE("control data that were cut give nothing, and everything that came is closed") {
    pass_pair pair;
    pass_pipe pipe;
    const std::size_t handles = plain::open_handles();
    std::array<std::byte, 16> into{};
    CHECK(netio::pass_handle(pair.near, pipe.write, pass_word));
    const netio::received_handle got = netio::receive_handle<pass_cut_sys>(pair.far, into);
    CHECK(got.status.why == error::descriptors_empty);
    CHECK(got.handle == netio::no_handle);
    CHECK(plain::open_handles() == handles);
    // For want of descriptors the kernel itself cuts.
    const int code = local_in_child([&] {
        netio::pass_handle(pair.near, pipe.write, pass_word);
        const rlimit none{3, 3};
        ::setrlimit(RLIMIT_NOFILE, &none);
        const netio::received_handle cut = netio::receive_handle(pair.far, into);
        return cut.status.why == error::descriptors_empty && cut.handle == netio::no_handle ? 0 : 1;
    });
    CHECK(code == 0);
}

TEST_CASE("where the system marks no descriptor at its birth, it is marked or closed") {
    pass_pair pair;
    pass_pipe pipe;
    const std::size_t handles = plain::open_handles();
    std::array<std::byte, 16> into{};
    for (const int failed : {0, 1}) {
        pass_mark_sys::failed = failed;
        CHECK(netio::pass_handle(pair.near, pipe.write, pass_word));
        const netio::received_handle got = netio::receive_handle<pass_mark_sys>(pair.far, into);
        CHECK(static_cast<bool>(got) == (failed == 0));
        if (got) {
            CHECK((::fcntl(static_cast<int>(got.handle), F_GETFD) & FD_CLOEXEC) != 0);
            ::close(static_cast<int>(got.handle));
        }
        CHECK(plain::open_handles() == handles);
    }
}

TEST_CASE("a process descriptor that nobody asked for is closed") {
    pass_pair pair;
    pass_pipe pipe;
    const int on = 1;
    constexpr int pass_pidfd = 76;  // SO_PASSPIDFD, Linux 6.5
    if (::setsockopt(pair.far, SOL_SOCKET, pass_pidfd, &on, sizeof(on)) != 0) {
        MESSAGE("this kernel passes no process descriptors: skipped");
        return;
    }
    const std::size_t handles = plain::open_handles();
    std::array<std::byte, 16> into{};
    CHECK(netio::pass_handle(pair.near, pipe.write, pass_word));
    const netio::received_handle got = netio::receive_handle(pair.far, into);
    CHECK(got);
    CHECK(plain::open_handles() == handles + 1);
    CHECK(::write(static_cast<int>(got.handle), "?", 1) == 1);
    CHECK(pipe.has('?'));
    ::close(static_cast<int>(got.handle));
    CHECK(plain::open_handles() == handles);
}

TEST_CASE("passing goes on after a signal, and tells when there is no room") {
    pass_pair pair;
    pass_pipe pipe;
    std::array<std::byte, 16> into{};
    pass_interrupted_sys::times = 2;
    CHECK(netio::pass_handle<pass_interrupted_sys>(pair.near, pipe.write, pass_word));
    pass_interrupted_sys::times = 2;
    const netio::received_handle got = netio::receive_handle<pass_interrupted_sys>(pair.far, into);
    CHECK(got.byte_count == 4);
    ::close(static_cast<int>(got.handle));
    netio::passed_handle sent;
    const std::vector<std::byte> much(100'000);
    for (int at = 0; at < 1000 && sent; ++at) {
        sent = netio::pass_handle(pair.near, pipe.write, much);
    }
    CHECK(sent.status.why == error::full);
}

#endif
