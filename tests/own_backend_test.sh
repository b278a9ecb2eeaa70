#!/usr/bin/env bash
# The contract's suite on a backend that came in through NETIO_BACKEND_HEADER.
set -u
program=$NETIO_BUILD/own_backend
log=$program.log
if ! g++ -std=c++20 -I. tests/own_backend/main.cpp -o "$program" -pthread 2>"$log"; then
    tail -n 20 "$log"
    echo "not ok own_backend: the suite compiles on it: see above"
    exit 1
fi
if "$program" >"$log" 2>&1; then
    echo "ok own_backend: the contract's suite"
else
    tail -n 40 "$log"
    echo "not ok own_backend: the contract's suite: see above"
fi
# Each case of the suite is there under this backend's name, not left out.
named=$("$program" --list-test-cases | grep -c '\.own$')
wanted=$(grep -cE '^ +\{"[a-zA-Z0-9_]+", "' tests/conformance.hpp)
if [ "$named" -gt 50 ] && [ "$named" = "$wanted" ]; then
    echo "ok own_backend: $named cases end in .own"
else
    echo "not ok own_backend: every case of the suite ends in .own: $named of $wanted"
fi
