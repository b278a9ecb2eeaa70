#!/usr/bin/env bash
# Real connections with random endings: as it ships with a bound on the stack, under address and
# undefined sanitizers, and under the thread sanitizer with four workers. NETIO_LONG=1: 200,000.
# And 20,000 on kqueue over its double.
set -u
source=tests/soak/soak.cpp
plain=(-std=c++20 -I. -pthread)
if [ "${NETIO_LONG:-0}" = 1 ]; then
    connections=200000 threaded=40000
else
    connections=4000 threaded=2000
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
NETIO_STACK_MAX=16384 soak kqueue 20000 4 g++ -O2 -Itests/kqueue_double -DNETIO_USE_KQUEUE=1 \
    '-DNETIO_BACKEND_HEADER="tests/kqueue_default.hpp"'
