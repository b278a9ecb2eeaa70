#!/usr/bin/env bash
# Lives of a server by seed: 100 seeds of 1,000 connections; with NETIO_LONG=1 a thousand seeds, a
# million connections, and a table that shows how often each thing that can occur did.
set -u
program=$NETIO_BUILD/lifecycle
seeds=100
optimised=-O1
if [ -n "${NETIO_LONG:-}" ]; then
    seeds=1000
    optimised=-O2
fi
if ! g++ -std=c++20 "$optimised" -I. tests/lifecycle/main.cpp -o "$program" 2>"$program.log"; then
    tail -n 20 "$program.log"
    echo "not ok lifecycle: it compiles: see above"
    exit 1
fi
if "$program" 1 "$seeds" 1000 >"$program.table" 2>"$program.said"; then
    echo "ok lifecycle: $seeds seeds of 1,000 connections"
else
    echo "not ok lifecycle: $seeds seeds of 1,000 connections: $(tail -n 1 "$program.said")"
fi
if [ -n "${NETIO_LONG:-}" ]; then
    if grep -q 'TOO FEW' "$program.table"; then
        echo "not ok lifecycle: each thing that can occur did a thousand times: see the table"
    else
        echo "ok lifecycle: each thing that can occur did a thousand times"
    fi
    sed 's/^/# report: /' "$program.table"
else
    sed -n '1s/^/# report: /p' "$program.table"
fi
