#!/usr/bin/env bash
# Real connections with random endings: as it ships with a bound on the stack, under address and
# undefined sanitizers, and under the thread sanitizer with four workers. NETIO_LONG=1: 200,000.
# And on kqueue over its double (NETIO_LONG=1: 20,000). Then backends alone under random operations
# of the contract: with the address sanitizer, and with NETIO_LONG=1 10,000,000 of io_uring as it
# ships. NETIO_SEED=N makes them other ones than usual.
set -u
source=tests/soak/soak.cpp
plain=(-std=c++20 -I. -pthread)
if [ "${NETIO_LONG:-0}" = 1 ]; then
    connections=200000 threaded=40000 doubled=20000 operations=100000
else
    connections=4000 threaded=2000 doubled=4000 operations=50000
fi

# soak NAME CONNECTIONS WORKERS COMPILER FLAGS...: builds and runs one form.
soak() {
    local name=$1 count=$2 workers=$3
    shift 3
    local program=$NETIO_BUILD/soak.$name
    if ! "$@" "${plain[@]}" "$source" -o "$program" 2>"$program.log"; then
        tail -n 20 "$program.log"
        echo "not ok soak: $name builds: see above"
        return
    fi
    "$program" "$count" "$workers" 4 7 2>"$program.log" | sed "s/^\(not \)\?ok soak: /&$name: /"
    if [ "${PIPESTATUS[0]}" -ne 0 ] || [ -s "$program.log" ]; then
        tail -n 40 "$program.log"
        echo "not ok soak: $name: it failed or a sanitizer spoke, see above"
    fi
}

NETIO_STACK_MAX=16384 soak plain "$connections" 4 g++ -O2
soak address "$connections" 2 clang++ -O1 -g -fsanitize=address,undefined \
    -fno-sanitize-recover=undefined
soak thread "$threaded" 4 clang++ -O1 -g -fsanitize=thread
NETIO_STACK_MAX=16384 soak kqueue "$doubled" 4 g++ -O2 -Itests/kqueue_double -DNETIO_USE_KQUEUE=1 \
    '-DNETIO_BACKEND_HEADER="tests/kqueue_default.hpp"'

# operations PROGRAM COUNT ROUND BACKEND...: runs each of the backends alone.
operations() {
    local program=$NETIO_BUILD/soak.$1 count=$2 round=$3 backend
    shift 3
    for backend in "$@"; do
        if ! "$program" "$backend" "$count" "${NETIO_SEED:-1}" "$round" >"$program.out" \
            2>"$program.log" || [ -s "$program.log" ]; then
            tail -n 40 "$program.log"
            grep -q '^not ok' "$program.out" || echo "not ok soak: $backend: see above"
        fi
        cat "$program.out"
    done
}

# backends NAME COMPILER FLAGS...: builds the soak of backends.
backends() {
    local program=$NETIO_BUILD/soak.$1
    shift
    if ! "$@" "${plain[@]}" tests/soak/backends.cpp -o "$program" 2>"$program.log"; then
        tail -n 20 "$program.log"
        echo "not ok soak: backends build: see above"
        return 1
    fi
}

backends backends_address clang++ -O1 -g -fsanitize=address,undefined \
    -fno-sanitize-recover=undefined &&
    operations backends_address "$operations" 10000 io_uring io_uring_tight epoll poll
if [ "${NETIO_LONG:-0}" = 1 ] && backends backends_plain g++ -O2; then
    operations backends_plain 10000000 100000 io_uring
    operations backends_plain 1000000 100000 io_uring_tight epoll poll
fi
