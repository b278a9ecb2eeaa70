#!/usr/bin/env python3
"""No operating system: floors 0 to 3 for a Cortex-M4 by arm-none-eabi-g++.

Each part compiles alone. Compiled with every inline function kept, the machine code of each part,
the deepest stack below each of its functions and the largest frame are held to LIMITS; there is
no recursion, no call through a pointer and no call that a heap or an exception would need. The
program in tests/bare passes its checks under qemu-system-arm. NETIO_LONG=1 prints the table.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("NETIO_BUILD", ROOT / "build/bare"))
COMPILER = ["arm-none-eabi-g++", "-mcpu=cortex-m4", "-mthumb", "-std=c++20", "-Os",
            "-fno-exceptions", "-fno-rtti", "-DNETIO_PLATFORM=0", "-Wall", "-Wextra",
            "-Wconversion", "-Wshadow", "-Wundef", "-Werror", f"-I{ROOT}"]
EMULATOR = ["qemu-system-arm", "-M", "mps2-an386", "-nographic",
            "-semihosting-config", "enable=on,target=native", "-kernel"]

# Per part: bytes of machine code, bytes of the deepest stack below one of its functions.
LIMITS = {
    "platform/atomic.hpp": (320, 16),
    "platform/crc32c_machine.hpp": (16, 8),
    "src/backoff.hpp": (256, 32),
    "src/base.hpp": (8, 8),
    "src/buffer_pool.hpp": (640, 128),
    "src/bytes.hpp": (112, 16),
    "src/carver.hpp": (80, 24),
    "src/crc32c.hpp": (384, 64),
    "src/datagram_budget.hpp": (3400, 384),
    "src/endpoint.hpp": (5400, 384),
    "src/envelope.hpp": (15400, 1152),
    "src/error.hpp": (1500, 336),
    "src/kill_marks.hpp": (16, 8),  # templates that want 64-bit atomics: not used there
    "src/limits.hpp": (608, 304),
    "src/local.hpp": (160, 16),
    "src/options.hpp": (64, 16),
    "src/post_queue.hpp": (400, 96),
    "src/proxy.hpp": (10800, 768),
    "src/ring.hpp": (960, 64),
    "src/shm_ring.hpp": (1900, 160),
    "src/sip_hash.hpp": (384, 96),
    "src/slab.hpp": (480, 96),
    "src/source_table.hpp": (704, 128),
    "src/wheel.hpp": (2800, 224),
}
FRAME_MAX = 1024
# What the compiler itself may call.
HELPERS = re.compile(r"mem(cpy|move|set|cmp|chr)|strlen|__aeabi_\w+|__c[lt]zdi2|__popcountsi2")
# A template's code exists where it is used.
USES = """
unsigned used(netio::wheel& in, std::uint64_t now, const std::uint64_t* again) {
    return in.expire(now, 16, [&](std::uint32_t index) noexcept { return again[index]; });
}
bool used(netio::post_queue& in, netio::post& out) {
    return in.push(out) && in.pop(out) && !in.empty();
}
bool used(netio::spsc_ring& in, netio::mpsc_ring& other) {
    const netio::ring_claim one = in.claim(8);
    const netio::ring_claim two = other.claim(8);
    in.commit(one, 8);
    other.commit(two, 8);
    other.abandon(two);
    const bool both = !in.peek().empty() && !other.peek().empty();
    in.release();
    other.release();
    return both;
}
bool used(netio::shm_side& in, std::byte* memory, netio::mutable_bytes inbox) {
    netio::shm_side::lay_out(memory, {4096, 100});
    bool good = in.attach(memory, 4096 * 3, 1, 7, inbox) == netio::error::none;
    const netio::ring_claim to = in.claim(8);
    in.commit(to, 8);
    good = good && !in.peek().empty() && in.has_room(8) && !in.broken();
    in.release();
    in.announce_sleep(netio::shm_wants::both);
    in.awake();
    in.leave();
    return good && in.must_wake() && in.peer_epoch() + in.peer_process() != 0;
}
"""


def parts():
    """(folder/name, floor) of the parts of floors 0 to 3."""
    for path in sorted([*ROOT.glob("src/*.hpp"), *ROOT.glob("platform/*.hpp")]):
        floor = re.match(r"// floor (\d+)", path.read_text(encoding="utf-8"))
        if floor and int(floor[1]) <= 3:
            yield path.relative_to(ROOT).as_posix()


def run(command, seconds=300):
    try:
        done = subprocess.run(command, cwd=BUILD, timeout=seconds, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        return -1, f"not done after {seconds} s"


def compile_unit(name, text, *flags):
    (BUILD / f"{name}.cpp").write_text(text, encoding="utf-8")
    return run([*COMPILER, *flags, "-c", f"{name}.cpp", "-o", f"{name}.o"])


class Function:
    def __init__(self, part, frame, is_static):
        self.part, self.frame, self.is_static = part, frame, is_static
        self.calls = set()


def call_graph(text):
    """Netio's functions, and all that they reach, by symbol; from -fcallgraph-info=su."""
    known = {}
    for title, label in re.findall(r'node: \{ title: "([^"]+)" label: "([^"]*)"', text):
        found = re.search(r"\\n(\S+):\d+:\d+\\n(\d+) bytes \((\w+)\)", label)
        if found:
            part = re.search(r"/((?:src|platform)/\w+\.hpp)$", found[1])
            known[title] = Function(part[1] if part else "", int(found[2]), found[3] == "static")
    for source, target in re.findall(r'sourcename: "([^"]+)" targetname: "([^"]+)"', text):
        if target not in known:  # the whole object's constructor is the base object's
            target = re.sub(r"C1(E\w*)$", r"C2\1", target)
        if source in known:
            known[source].calls.add(target)
    return reachable(known)


def reachable(known):
    left, out = [name for name, one in known.items() if one.part], {}
    while left:
        name = left.pop()
        if name in known and name not in out:
            out[name] = known[name]
            left += known[name].calls
    return out


def deepest(known, name, above, cache):
    """Bytes of stack from `name` down; raises RecursionError with the cycle in it."""
    if name in above:
        raise RecursionError(" -> ".join([*above[above.index(name):], name]))
    if name not in known:
        return 0
    if name not in cache:
        below = [deepest(known, target, [*above, name], cache) for target in known[name].calls]
        cache[name] = known[name].frame + max(below, default=0)
    return cache[name]


def code_bytes(known):
    """Bytes of machine code per part."""
    out = {}
    _, said = run(["arm-none-eabi-nm", "-S", "measured.o"])
    for size, name in re.findall(r"^\w+ (\w+) [tTwW] (\S+)$", said, re.M):
        for title in (name, f"measured.cpp:{name}"):
            if title in known:
                out[known[title].part] = out.get(known[title].part, 0) + int(size, 16)
    return out


def check_parts():
    for part in parts():
        code, said = compile_unit("alone", f'#include "{part}"\n')
        tap.check(f"bare: {part} compiles alone", code == 0, said)


def check_graph(known):
    large = [f"{name} {one.frame}" for name, one in known.items() if one.frame > FRAME_MAX]
    tap.check(f"bare: no frame above {FRAME_MAX} bytes", not large, "\n".join(large))
    dynamic = [name for name, one in known.items() if not one.is_static]
    tap.check("bare: every frame's size is known", not dynamic, "\n".join(dynamic))
    foreign = sorted({f"{name} calls {target}" for name, one in known.items()
                      for target in one.calls
                      if target not in known and not HELPERS.fullmatch(target)})
    tap.check("bare: nothing is called but netio and the compiler's helpers", not foreign,
              "\n".join(foreign))
    try:
        cache = {}
        for name in known:
            deepest(known, name, [], cache)
        tap.check("bare: no recursion", True)
        return cache
    except RecursionError as cycle:
        tap.check("bare: no recursion", False, cycle)
        return None


def check_measures():
    text = "".join(f'#include "{part}"\n' for part in parts()) + USES
    code, said = compile_unit("measured", text, "-g1", "-fkeep-inline-functions",
                              "-fcallgraph-info=su")
    tap.check("bare: the parts compile together", code == 0, said)
    if code != 0:
        return
    known = call_graph((BUILD / "measured.ci").read_text(encoding="utf-8"))
    tap.check("bare: the graph holds the parts", len(known) > 200, f"{len(known)} functions")
    stacks = check_graph(known)
    if stacks is None:
        return
    measured = code_bytes(known)
    for part in sorted({one.part for one in known.values()} - {""}):
        stack = max(stacks[name] for name, one in known.items() if one.part == part)
        got = (measured.get(part, 0), stack)
        limit = LIMITS.get(part, (0, 0))
        tap.check(f"bare: {part}: code and stack within their limits",
                  got[0] <= limit[0] and got[1] <= limit[1],
                  f"code {got[0]} of {limit[0]}, stack {got[1]} of {limit[1]} bytes")
        if os.environ.get("NETIO_LONG"):
            print(f"# report: {part}: {got[0]} bytes of code, {got[1]} of stack")


def check_planted():
    """The checks have to see what they look for."""
    planted = """
struct hidden { unsigned at[300]; };
inline unsigned again(unsigned n) { hidden one; one.at[n] = n; asm("" : : "r"(&one) : "memory");
    return n == 0 ? 0 : again(n - 1) + one.at[n] + again(n / 2); }
unsigned used(unsigned n) { return again(n); }
"""
    (BUILD / "src").mkdir(exist_ok=True)
    (BUILD / "src/planted.hpp").write_text(planted, encoding="utf-8")
    compile_unit("planted", '#include "./src/planted.hpp"\n', "-fcallgraph-info=su",
                 "-fkeep-inline-functions")
    known = call_graph((BUILD / "planted.ci").read_text(encoding="utf-8"))
    try:
        deepest(known, next(iter(known), ""), [], {})
        recursion = False
    except RecursionError:
        recursion = True
    tap.check("bare: a planted recursion is found", recursion)
    tap.check("bare: a planted frame is found",
              any(one.frame > FRAME_MAX for one in known.values()))


def check_program():
    """The program passes under the emulator, and its checks can fail."""
    command = [*COMPILER, "-DNETIO_CHECKS=2", "-ffunction-sections", "-fdata-sections",
               str(ROOT / "tests/bare/main.cpp"), str(ROOT / "tests/bare/start.cpp"),
               "-nostartfiles", "-specs=nano.specs", f"-T{ROOT}/tests/bare/mps2.ld",
               "-Wl,--gc-sections", "-o", "bare.elf"]
    code, said = run(command)
    tap.check("bare: the program links", code == 0, said)
    if code == 0:
        code, said = run([*EMULATOR, "bare.elf"], 60)
        print("\n".join(line for line in said.splitlines() if "ok bare: " in line))
        tap.check("bare: the program ends by exit code 0", code == 0, f"{code}: {said}")
        whole = (BUILD / "bare.elf").read_bytes()
        (BUILD / "broken.elf").write_bytes(whole.replace(b"41525031 01 01", b"41525032 01 01"))
        code, _ = run([*EMULATOR, "broken.elf"], 60)
        tap.check("bare: the program with a broken golden ends by exit code 1", code == 1, code)


def main():
    for tool in (COMPILER[0], EMULATOR[0]):
        if not shutil.which(tool):
            tap.skip("bare: floors 0 to 3 without an operating system", f"{tool} is missing")
            return
    BUILD.mkdir(parents=True, exist_ok=True)
    check_planted()
    check_parts()
    check_measures()
    check_program()
    tap.finish()


if __name__ == "__main__":
    main()
