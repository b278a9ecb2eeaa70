#!/usr/bin/env bash
# Whole programs on the kqueue backend, over its double: a service without an allocation, and 20,000
# connections with random endings. NETIO_LONG=1: also under address and undefined sanitizers.
set -u
on_kqueue=(-std=c++20 -I. -Itests/kqueue_double
           '-DNETIO_BACKEND_HEADER="tests/kqueue_default.hpp"' -pthread)

# runs NAME "ARGUMENTS" COMPILER FLAGS... SOURCES...: builds it and runs it.
runs() {
    local name=$1 arguments=$2
    local program=$NETIO_BUILD/kqueue.$name
    shift 2
    if ! "$@" "${on_kqueue[@]}" -o "$program" 2>"$program.log"; then
        tail -n 20 "$program.log"
        echo "not ok kqueue: $name builds: see above"
        return
    fi
    # shellcheck disable=SC2086
    "$program" $arguments 2>"$program.log" | sed "s/^\(not \)\?ok [a-z_]*: /\1ok kqueue: $name: /"
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then
        tail -n 40 "$program.log"
        echo "not ok kqueue: $name: it failed, see above"
    fi
}

runs no_heap "" g++ -O2 tests/no_heap/server.cpp tests/no_heap/trap.cpp
NETIO_STACK_MAX=16384 runs soak "20000 4 4 7" g++ -O2 tests/soak/soak.cpp
if [ -n "${NETIO_LONG:-}" ]; then
    runs sanitized "20000 2 4 7" clang++ -O1 -g -fsanitize=address,undefined \
        -fno-sanitize-recover=undefined tests/soak/soak.cpp
fi
