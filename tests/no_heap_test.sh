#!/usr/bin/env bash
# No allocation: programs under the trap of tests/no_heap, and what the examples' objects ask the
# linker for.
set -u
plain=(-std=c++20 -O2 -I.)
bare=(-fno-exceptions -fno-rtti)
allocation='malloc|calloc|realloc|reallocarray|free|cfree|memalign|aligned_alloc|posix_memalign'
allocation+='|valloc|pvalloc|strdup|strndup|asprintf|vasprintf|getline|fopen|_Zn[wa].*|_Zd[la].*'
thrown='__cxa_(throw|rethrow|allocate_exception|guard_acquire|thread_atexit)|__dynamic_cast'
thrown+='|_ZSt[0-9]+__throw.*|_ZNSt.*|__tls_get_addr'

first_example=examples/echo.cpp

# object_of SOURCE COMPILER: nothing undefined that allocates or throws; links with plain gcc.
object_of() {
    local source=$1 compiler=$2 name object found libraries
    name="$(basename "$source" .cpp) by $compiler"
    object=$NETIO_BUILD/${source//\//.}.$compiler
    mapfile -t libraries < <(head -n 1 "$source" | grep -oE -- '-l[a-z0-9]+')
    if ! "$compiler" "${plain[@]}" -c "$source" -o "$object.o" >"$object.log" 2>&1; then
        tail -n 20 "$object.log"
        echo "not ok no_heap: $name compiles: see above"
        return
    fi
    found=$(nm -u "$object.o" | awk '{print $NF}' | sed 's/@.*//' |
        grep -xE "$allocation|$thrown" | tr '\n' ' ')
    if [ -z "$found" ]; then
        echo "ok no_heap: $name asks for no allocation"
    else
        echo "not ok no_heap: $name asks for no allocation: it asks for $found"
    fi
    if [[ $source == examples/* && $source != "$first_example" ]] &&
        [ "${NETIO_LONG:-0}" != 1 ]; then
        return  # one for all: the others are linked at length
    fi
    if "$compiler" "${plain[@]}" "${bare[@]}" -c "$source" -o "$object.bare.o" \
        >"$object.log" 2>&1 && gcc "$object.bare.o" -o "$object.by_gcc" "${libraries[@]}" \
        >>"$object.log" 2>&1; then
        echo "ok no_heap: $name links with plain gcc"
    else
        tail -n 20 "$object.log"
        echo "not ok no_heap: $name links with plain gcc: see above"
    fi
}

scenario_of() {
    local source=$1 compiler=$2 program
    program=$NETIO_BUILD/$(basename "$source" .cpp).$compiler
    if ! "$compiler" "${plain[@]}" -Itests/kqueue_double -DNETIO_USE_KQUEUE=1 "$source" \
        tests/no_heap/trap.cpp -o "$program" -pthread; then
        echo "not ok no_heap: $source by $compiler: does not build"
        return
    fi
    "$program" || echo "not ok no_heap: $source by $compiler: exit code $?"
}

# The check of objects has to fail where there is something to find.
planted() {
    local source=$NETIO_BUILD/planted.cpp said
    cat >"$source" <<'END'
#include <string>
int main(int count, char** arguments) { return std::string(arguments[0]).size() > 3u * count; }
END
    said=$(object_of "$source" g++)
    if grep -q '^not ok .*asks for no allocation: it asks for .*_Zn' <<<"$said" &&
        grep -q '^not ok .*links with plain gcc' <<<"$said"; then
        echo "ok no_heap: a planted string is found in an object"
    else
        printf '%s\n' "$said" "not ok no_heap: a planted string is found in an object: it is not" |
            sed 's/^ok/  ok/; s/^not ok no_heap: planted/  &/'
    fi
}

shopt -s nullglob
shipped=tests/no_heap/server_epoll.cpp
planted
for compiler in g++ clang++; do
    for source in examples/*.cpp; do
        # What a program asks for is the library's doing, seldom the compiler's.
        if [ "$compiler" = g++ ] || [ "$source" = "$first_example" ] ||
            [ "${NETIO_LONG:-0}" = 1 ]; then
            object_of "$source" "$compiler"
        fi
    done
    for source in tests/no_heap/*.cpp; do
        # Under the trap every backend runs as g++ builds it; at length, as clang++ does, too.
        if [ "$source" != tests/no_heap/trap.cpp ] &&
            { [ "$compiler" = g++ ] || [ "$source" = "$shipped" ] || [ "${NETIO_LONG:-0}" = 1 ]; }
        then
            scenario_of "$source" "$compiler"
        fi
    done
done
