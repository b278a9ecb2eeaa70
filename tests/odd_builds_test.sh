#!/usr/bin/env bash
# Builds that are not the usual ones: another C++ library, another C library, a later standard,
# checks of the library and of the sanitizers, optimised at link time, among other people's names.
# The short form runs some tests of each, with musl the service without a C++ library; NETIO_LONG=1
# runs them all.
set -u
tests=(endpoint slab wheel proxy envelope post_queue service_epoll)
[ -z "${NETIO_LONG:-}" ] || tests=(all)
units=()
kqueue=(-Itests/kqueue_double -DNETIO_USE_KQUEUE=1)

# The tests as one unit: $NETIO_BUILD/unit.cpp.
write_unit() {
    if [ "${tests[0]}" = all ]; then
        units=(tests/all.cpp)
        return
    fi
    units=("$NETIO_BUILD/unit.cpp")
    printf '#include "tests/%s.cpp"\n' main "${tests[@]/%/_test}" >"${units[0]}"
}

# built NAME COMMAND...: compiles the unit to $NETIO_BUILD/NAME; says so if that fails.
built() {
    local name=$1
    shift
    if ! "$@" -I. "${kqueue[@]}" -o "$NETIO_BUILD/$name" >"$NETIO_BUILD/$name.log" 2>&1; then
        grep -m 8 -E 'error|undefined' "$NETIO_BUILD/$name.log"
        echo "not ok odd_builds: $name: it does not build: see above"
        return 1
    fi
}

# passes NAME WHAT: the program says nothing of a fault and all its cases pass.
passes() {
    local name=$1 what=$2 said
    said=$(setarch "$(uname -m)" -R "$NETIO_BUILD/$name" 2>&1)
    if grep -qE '\[doctest\] test cases: +[0-9]+ \| +[1-9][0-9]* passed \| 0 failed' <<<"$said" &&
        ! grep -q 'runtime error:' <<<"$said"; then
        echo "ok odd_builds: $what"
    else
        tests/failed_cases.py <<<"$said" | head -n 20
        grep -E 'runtime error|\[doctest\]' <<<"$said" | sort -u | head -n 20
        echo "not ok odd_builds: $what: see above"
    fi
}

# lane NAME WHAT COMMAND...
lane() {
    local name=$1 what=$2
    shift 2
    if built "$name" "$@" "${units[@]}"; then
        passes "$name" "$what"
    fi
}

is_static() {
    if readelf -l "$NETIO_BUILD/musl" | grep -q LOAD &&
        ! readelf -l "$NETIO_BUILD/musl" | grep -q INTERP; then
        echo "ok odd_builds: the musl program is static"
    else
        echo "not ok odd_builds: the musl program is static: none, or it asks for an interpreter"
    fi
}

# The service without a C++ library, compiled by zig, linked with Debian's musl: zig takes minutes
# to build a musl and a C++ library of its own, which the tests want.
musl_service() {
    local zig=$1 object=$NETIO_BUILD/musl.o said kqueue=()  # its double wants a C++ library
    if ! built musl.o "$zig" c++ -target x86_64-linux-musl -std=c++20 -O1 -fno-exceptions \
        -fno-rtti -c tests/odd/without_cpp_library.cpp ||
        ! built musl musl-gcc -static "$object"; then
        return
    fi
    said=$("$NETIO_BUILD/musl")
    if [ $? = 0 ] && grep -q '^ok ' <<<"$said"; then
        echo "ok odd_builds: musl, static"
    else
        printf '%s\n' "$said" | grep '^not ok ' | sed 's/^not ok/  &/'
        echo "not ok odd_builds: musl, static: see above"
    fi
}

musl() {
    local zig
    if ! zig=$(tests/zig.sh 2>&1); then
        echo "ok odd_builds: musl, static # SKIP $zig"
        return
    fi
    if [ "${tests[0]}" != all ] && command -v musl-gcc >/dev/null; then
        musl_service "$zig"
    else
        # It does not look into this system's folders, where doctest is.
        mkdir -p "$NETIO_BUILD/include"
        ln -sfn /usr/include/doctest "$NETIO_BUILD/include/doctest"
        lane musl "musl, static" "$zig" c++ -target x86_64-linux-musl -static -std=c++20 -O0 \
            -isystem "$NETIO_BUILD/include"
    fi
    is_static
}

# One build with libc++ and the integer checks of clang, as many compiles as needed, no more.
libcxx() {
    if ! compgen -G '/usr/lib/llvm-*/include/c++/v1/span' >/dev/null; then
        echo "ok odd_builds: libc++ # SKIP Debian's libc++-dev and libc++abi-dev are not installed"
        return
    fi
    lane libcxx "libc++, undefined and integer checks" clang++ -stdlib=libc++ -std=c++20 -O0 -g1 \
        -fsanitize=undefined,integer -fsanitize-ignorelist=tests/odd/integer.txt
}

planted_overflow() {
    cat >"$NETIO_BUILD/planted.cpp" <<'END'
#include "tests/main.cpp"
TEST_CASE("planted") { volatile unsigned one = 1; one = one - 2; CHECK(one != 0); }
END
    if built planted clang++ -std=c++20 -fsanitize=undefined,integer "$NETIO_BUILD/planted.cpp" &&
        passes planted planted | grep -q '^not ok '; then
        echo "ok odd_builds: a planted overflow is found"
    else
        echo "not ok odd_builds: a planted overflow is found: it is not"
    fi
}

# Somebody's <sys/event.h> on the include path changes nothing if nobody asked for it.
stray_kqueue() {
    local text='#include "netio.hpp"
static_assert(NETIO_HAS_KQUEUE == WANTED);'
    if g++ -std=c++20 -I. -Itests/kqueue_double -DWANTED=0 -fsyntax-only -xc++ - <<<"$text" &&
        g++ -std=c++20 -I. "${kqueue[@]}" -DWANTED=1 -fsyntax-only -xc++ - <<<"$text"; then
        echo "ok odd_builds: kqueue on Linux where it is asked for, and nowhere else"
    else
        echo "not ok odd_builds: kqueue on Linux where it is asked for, and nowhere else: see above"
    fi
}

write_unit
stray_kqueue
planted_overflow
libcxx
lane checked_23 "C++23, checks of libstdc++" g++ -std=c++23 -D_GLIBCXX_ASSERTIONS -O0
musl
# No -Wshadow: parameters may be called as somebody's globals are.
plain=(-std=c++20 -Wall -Wextra -Wconversion -Wundef -Werror -fno-exceptions -fno-rtti)
for compiler in g++ clang++; do
    for flag in -O1 -flto; do
        # Each compiler and each flag once; all pairs at length.
        if [ "$compiler$flag" = g++-O1 ] || [ "$compiler$flag" = clang++-flto ]; then
            [ "${tests[0]}" = all ] || continue
        fi
        if built "two_units$flag" "$compiler" "${plain[@]}" "$flag" tests/odd/polluted.cpp \
            tests/odd/two_units.cpp; then
            "$NETIO_BUILD/two_units$flag" &&
                echo "ok odd_builds: two units, one full of other names, $compiler $flag" ||
                echo "not ok odd_builds: two units, $compiler $flag: exit code $?"
        fi
    done
done
