#include "netio.hpp"

#include "tests/emulated.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>

// Present where coverage is measured: a dying child has to write its own profile.
extern "C" __attribute__((weak)) int __llvm_profile_write_file();

namespace {

void base_on_trap(int signal_number) {
    if (__llvm_profile_write_file != nullptr) {
        __llvm_profile_write_file();
    }
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/// What a child that fails an assert writes to standard error, and whether it died by a signal.
struct base_death {
    char said[256] = {};
    bool by_signal = false;
};

base_death base_fail_in_child() {
    base_death death;
    int ends[2] = {};
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGILL, base_on_trap);
        signal(SIGTRAP, base_on_trap);
        netio::assert_failed("two < one", "some.hpp", 12);
    }
    close(ends[1]);
    std::size_t byte_count = 0;
    while (byte_count < sizeof(death.said) - 1) {
        const ssize_t got =
            read(ends[0], death.said + byte_count, sizeof(death.said) - 1 - byte_count);
        if (got <= 0) {
            break;
        }
        byte_count += static_cast<std::size_t>(got);
    }
    close(ends[0]);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    death.by_signal = WIFSIGNALED(status);
    return death;
}

}  // namespace

TEST_CASE("base: versions compare by major, minor and patch") {
    CHECK(NETIO_MAKE_VERSION(1, 2, 3) == 10203);
    CHECK(NETIO_MAKE_VERSION(1, 0, 0) > NETIO_MAKE_VERSION(0, 99, 99));
    CHECK(NETIO_VERSION ==
          NETIO_MAKE_VERSION(NETIO_VERSION_MAJOR, NETIO_VERSION_MINOR, NETIO_VERSION_PATCH));
}

TEST_CASE("base: a failed assert says one line and ends the program by a signal") {
    const base_death death = base_fail_in_child();
    std::string_view said{death.said};
    if (emulated()) {  // an emulator says a line of its own about the signal, after ours
        said = said.substr(0, said.find('\n') + 1);
    }
    CHECK(said == "netio: assert failed: two < one (some.hpp:12)\n");
    CHECK(death.by_signal);
}

TEST_CASE("base: a true assert costs nothing visible") {
    int evaluated_count = 0;
    NETIO_ASSERT(++evaluated_count == 1);
    CHECK(evaluated_count == 1);
}
