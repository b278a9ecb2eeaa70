// For tests of asserts: does a piece of code end the program? Runs it in a child process.
#ifndef NETIO_TESTS_DIES_HPP
#define NETIO_TESTS_DIES_HPP

#include "netio.hpp"

#if NETIO_HAS_POSIX && NETIO_CHECKS >= 1
#include <csignal>
#include <cstdio>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

template <class Code>
bool dies(Code&& code) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        for (const int fatal : {SIGILL, SIGTRAP, SIGABRT, SIGSEGV, SIGFPE}) {
            signal(fatal, SIG_DFL);  // else the test runner's handler reports it
        }
        close(2);
        code();
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return false;
    }
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#elif NETIO_HAS_IOCP && NETIO_CHECKS >= 1
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include <winsock2.h>

#include <windows.h>

/// No fork here: the program starts itself again, for this one case, and the child runs the code
/// when it comes to the same place, counted from the case's begin.
struct dies_place {
    static constexpr unsigned died = 99;
    static constexpr unsigned lived = 77;

    static LONG WINAPI end(EXCEPTION_POINTERS*) {
        ::TerminateProcess(::GetCurrentProcess(), died);
        return EXCEPTION_EXECUTE_HANDLER;
    }
    /// Counts the places of the case that is running.
    static int next() {
        static const void* of = nullptr;
        static int count = 0;
        const void* const current = doctest::getContextOptions()->currentTest;
        count = of == current ? count + 1 : 1;
        of = current;
        return count;
    }
    static int wanted() {
        char text[16] = "";
        ::GetEnvironmentVariableA("NETIO_DIES_AT", text, sizeof(text));
        return std::atoi(text);
    }
    static unsigned run_again(int place) {
        char program[MAX_PATH];
        ::GetModuleFileNameA(nullptr, program, sizeof(program));
        std::string name = doctest::getContextOptions()->currentTest->m_name;
        for (char& each : name) {
            each = each == ',' || each == '"' ? '?' : each;
        }
        std::string line = '"' + std::string(program) + "\" \"-tc=" + name + '"';
        ::SetEnvironmentVariableA("NETIO_DIES_AT", std::to_string(place).c_str());
        STARTUPINFOA start{};
        start.cb = sizeof(start);
        PROCESS_INFORMATION child{};
        DWORD code = lived;
        if (::CreateProcessA(nullptr, line.data(), nullptr, nullptr, FALSE, 0, nullptr, nullptr,
                             &start, &child) != 0) {
            ::WaitForSingleObject(child.hProcess, 60'000);
            ::GetExitCodeProcess(child.hProcess, &code);
            ::CloseHandle(child.hProcess);
            ::CloseHandle(child.hThread);
        }
        ::SetEnvironmentVariableA("NETIO_DIES_AT", nullptr);
        return code;
    }
};

template <class Code>
bool dies(Code&& code) {
    const int place = dies_place::next();
    const int wanted = dies_place::wanted();
    if (wanted == 0) {
        return dies_place::run_again(place) == dies_place::died;
    }
    if (wanted == place) {
        ::AddVectoredExceptionHandler(1, dies_place::end);
        std::fclose(stderr);
        code();
        ::TerminateProcess(::GetCurrentProcess(), dies_place::lived);
    }
    return true;  // an earlier place: its own child looks at it
}
#else
/// Without asserts, or without processes, there is nothing to see.
template <class Code>
bool dies(Code&&) {
    return true;
}
#endif

#endif
