// For tests of asserts: does a piece of code end the program? Runs it in a child process.
#ifndef NETIO_TESTS_DIES_HPP
#define NETIO_TESTS_DIES_HPP

#include "netio.hpp"

#if NETIO_HAS_POSIX && NETIO_CHECKS >= 1
#include <csignal>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

template <class Code>
bool dies(Code&& code) {
    const pid_t child = fork();
    if (child == 0) {
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        for (const int fatal : {SIGILL, SIGTRAP, SIGABRT}) {
            signal(fatal, SIG_DFL);  // else the test runner's handler reports it
        }
        close(2);
        code();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#else
/// Without asserts, or without processes, there is nothing to see.
template <class Code>
bool dies(Code&&) {
    return true;
}
#endif

#endif
