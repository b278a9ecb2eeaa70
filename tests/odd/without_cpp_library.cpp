// The whole service of tests/no_heap, untrapped, as a program that needs no C++ library.
#include "tests/no_heap/server_epoll.cpp"

#include <cstdio>

int no_heap::check(const char* name, bool holds) noexcept {
    std::printf("%s %s\n", holds ? "ok" : "not ok", name);
    return holds ? 0 : 1;
}

int main() { return scenario(); }
