#!/usr/bin/env bash
# Examples for macOS on both CPUs: no warning, kqueue underneath, no allocation, and they link, even
# without a C++ library. With NETIO_LONG=1 also by the plain command of their first line, for which
# zig builds macOS's C++ library once, in minutes, and all four for both CPUs. Nothing here can run
# them.
set -u
examples=(echo proxy_echo udp_echo gateway)
targets=(aarch64-macos x86_64-macos)
strict=(-std=c++20 -O1 -Wall -Wextra -Wconversion -Wshadow -Wundef -Werror -fno-exceptions
        -fno-rtti -I.)
allocation='_(malloc|calloc|realloc|free|posix_memalign|aligned_alloc|strdup|_Zn[wa].*|_Zd[la].*)'
build=${NETIO_BUILD:-build/scripts/cross_macos_test.sh}
mkdir -p "$build"

if ! zig=$(bash tests/zig.sh 2>"$build/zig.log"); then
    echo "ok cross_macos: examples for macOS # SKIP $(tail -n 1 "$build/zig.log")"
    exit 0
fi

# says NAME LOG COMMAND...: one line for it, and what it said where it failed.
says() {
    local name=$1 log=$2
    shift 2
    if "$@" >"$log" 2>&1; then
        echo "ok cross_macos: $name"
    else
        tail -n 20 "$log"
        echo "not ok cross_macos: $name: exit code of: $*"
    fi
}

asks_for_kqueue_and_no_memory() {
    local symbols
    symbols=$(llvm-nm -u "$1" | awk '{print $NF}') || return 1
    echo "$symbols"
    grep -qx _kevent <<<"$symbols" && ! grep -xE "$allocation" <<<"$symbols"
}

is_program_for() {
    local machine=ARM64
    [ "$1" = x86_64-macos ] && machine=X86_64
    llvm-objdump --macho --private-header "$2" | grep -qE "$machine .* EXECUTE"
}

for target in "${targets[@]}"; do
    for example in "${examples[@]}"; do
        # The other CPU sees the same text: two programs are enough for it, all of them at length.
        if [ "$target" != "${targets[0]}" ] && [ -z "${NETIO_LONG:-}" ] &&
            [ "$example" != echo ] && [ "$example" != gateway ]; then
            continue
        fi
        object=$build/$example.$target
        says "$example compiles for $target" "$object.log" \
            "$zig" c++ -target "$target" "${strict[@]}" -c "examples/$example.cpp" -o "$object.o"
        says "$example for $target asks for kqueue and for no memory" "$object.symbols" \
            asks_for_kqueue_and_no_memory "$object.o"
        says "$example links for $target without a C++ library" "$object.log" \
            "$zig" cc -target "$target" "$object.o" -o "$object"
        says "$example is a program for $target" "$object.log" is_program_for "$target" "$object"
        if [ -n "${NETIO_LONG:-}" ]; then
            says "$example builds for $target by the plain command" "$object.log" \
                "$zig" c++ -target "$target" -std=c++20 -O2 -I. "examples/$example.cpp" \
                -o "$object.plain"
        fi
    done
done
