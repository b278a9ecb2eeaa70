#!/usr/bin/env bash
# tests/run counts what its jobs say, fails on any failure, and refuses what it does not know.
set -u
unset NETIO_LONG
run=$PWD/tests/run
tree=$NETIO_BUILD/tree
mkdir -p "$tree/tests" "$tree/src"
cp "$run" "$PWD/tests/failed_cases.py" "$tree/tests"

# is NAME WANTED_EXIT WANTED_LAST_LINE ARGUMENTS...
is() {
    local name=$1 wanted_exit=$2 wanted_line=$3 said exit_code line
    shift 3
    said=$("$tree/tests/run" "$@" 2>&1)
    exit_code=$?
    line=$(tail -n 1 <<<"$said")
    if [ "$exit_code" = "$wanted_exit" ] && [[ $line == $wanted_line ]]; then
        echo "ok tests/run: $name"
    else
        echo "not ok tests/run: $name: exit $exit_code, last line: $line"
    fi
}

script() {
    printf '#!/usr/bin/env bash\n%s\n' "$2" >"$tree/tests/$1"
    chmod +x "$tree/tests/$1"
}

is "an unknown argument is named" 2 "tests/run: unknown argument '--lnog'; usage: *" --lnog
is "--only needs a step" 2 "tests/run: --only needs the name of a step; usage: *" --only
is "an unknown step is named" 2 "tests/run: no step 'uint', there are: sync *" --only uint
is "--list names the steps" 0 "bazel" --list

script tidy.py 'exit 0'
is "a job that exits with 0 passes" 0 "1 passed, 0 failed" --only tidy
script tidy.py 'kill -9 $PPID'
is "a job that is killed is a failure" 1 "0 passed, 1 failed" --only tidy
script tidy.py 'echo broken; exit 3'
is "a job that exits with 3 fails" 1 "0 passed, 1 failed" --only tidy

script a_test.sh 'echo "ok one"; echo "ok two"; echo "ok three # SKIP no disk"'
is "lines are counted, skips apart" 0 "2 passed, 0 failed, 1 skipped" --only scripts
script b_test.sh 'echo "ok four"; echo "not ok five: because"'
is "one failing line fails the run" 1 "3 passed, 1 failed, 1 skipped" --only scripts
script b_test.sh 'echo "ok four"; exit 1'
is "dying after an ok is a failure" 1 "3 passed, 1 failed, 1 skipped" --only scripts
script b_test.sh ':'
is "saying nothing is a failure" 1 "2 passed, 1 failed, 1 skipped" --only scripts
script b_test.sh '[ "${NETIO_LONG:-}" = 1 ] && echo "ok long" || echo "ok short # SKIP"'
is "--long reaches the tests" 0 "3 passed, 0 failed, 1 skipped" --long --only scripts
is "without --long it does not" 0 "2 passed, 0 failed, 2 skipped" --only scripts
script b_test.sh 'read -r line && echo "not ok input: $line" || echo "ok no input"'
is "tests have no standard input" 0 "3 passed, 0 failed, 1 skipped" --only scripts

# What fails in a doctest program is named, however much it says after that.
cat >"$tree/tests/all.cpp" <<'END'
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
TEST_CASE("planted") { CHECK(1 + 1 == 3); }
TEST_CASE("more") { for (int at = 0; at < 50; ++at) { MESSAGE("more of " << at); } }
END
is "a case that fails fails the run" 1 "1 passed, 1 failed" --only sanitize
said=$("$tree/tests/run" --only sanitize 2>&1)
if grep -qF '| planted: tests/all.cpp:3: ERROR: CHECK( 1 + 1 == 3 )' <<<"$said"; then
    echo "ok tests/run: a case that fails is named with its line"
else
    echo "not ok tests/run: a case that fails is named with its line: $(head -n 3 <<<"$said")"
fi

# The judge of programs that must not compile, and of first lines that must.
refusal() {
    mkdir -p "$tree/tests/compile_fail"
    printf '%s\n' "$@" >"$tree/tests/compile_fail/a.cpp"
}
fault='#error "no such hook"'
control='#ifndef NETIO_EXPECT_OK'
refusal '// expects: no such hook' "$control" "$fault" '#endif'
is "a refused program passes by two compilers" 0 "2 passed, 0 failed" --only compile_fail
refusal '// expects: no such hook' 'int main() {}'
is "a program that compiles fails" 1 "0 passed, 2 failed" --only compile_fail
refusal '// expects: no such gate' "$control" "$fault" '#endif'
is "another sentence fails" 1 "0 passed, 2 failed" --only compile_fail
refusal '// expects: no such hook' "$fault"
is "a twin that does not compile fails" 1 "0 passed, 2 failed" --only compile_fail
refusal '// a program' "$fault"
is "no stated sentence fails" 1 "0 passed, 2 failed" --only compile_fail

example() {
    mkdir -p "$tree/examples"
    printf '%s\n' "$@" 'int main() {}' >"$tree/examples/a.cpp"
}
example '// g++ -std=c++20 -O2 -I. examples/a.cpp -o a'
is "an example builds by its first line" 0 "1 passed, 0 failed" --only examples
example '// g++ -std=c++20 -O2 -I. examples/b.cpp -o a'
is "a first line that builds another file fails" 1 "0 passed, 1 failed" --only examples
example '// an example'
is "no command in the first line fails" 1 "0 passed, 1 failed" --only examples

# Where nothing can be installed it says what is missing.
mkdir -p "$tree/bin"
for program in bash dirname nproc mkdir id tail sed; do
    ln -sf "$(command -v "$program")" "$tree/bin/$program"
done
PATH=$tree/bin is "without apt-get it names what is missing" 1 \
    "tests/run: missing, by the names of their Debian packages: g++ clang *" --only tidy
