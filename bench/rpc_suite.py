"""bench/run rpc: round trips of envelopes and calls, each beside its floor, and the same message
through other libraries' encoders.

The rounds are those of bench/rpc.cpp and bench/peers/*_message.cpp, which run their variants in
rotated order; here their values become rows, and the rows that have an aim are held against it.
"""
import ctypes
import os
import shlex
import shutil
import signal
import statistics
import subprocess

from harness import BUILD, CPUS, FAILURES, build, failed, make_row, say, show, skipped

PROGRAM = "bench/rpc.cpp"
THREAD, PROCESSES = "netio in one thread", "netio in two processes"
COPY, CALL = "memcpy of 868 and 40 bytes", "copy and call"
LINE, FUTEX = "cache line to the other CPU and back", "bare futex to the other CPU and back"
SPINNING = "shared memory, both spin"

# Variant: its floor, and how often that is needed for it.
FLOORS = {
    "rings": (COPY, 1),
    "rings, encoded in place": (COPY, 1),
    "shared memory": (COPY, 1),
    "shared memory, borrowed": (COPY, 1),
    "call and dispatch": (CALL, 1),
    "8 calls one by one": (CALL, 8),
    "8 calls in a batch": (CALL, 8),
    SPINNING: (LINE, 1),
    "shared memory, both sleep": (FUTEX, 1),
}
# Variant: nanoseconds that its p50 is to stay within. That of SPINNING is taken from the floor.
AIMS = {
    "rings": 150,
    "rings, encoded in place": 150,
    "shared memory": 180,
    "shared memory, borrowed": 180,
    "call and dispatch": 120,
    "8 calls one by one": 900,
    "8 calls in a batch": 700,
}
LINES_MAX, LINES_MORE = 3, 150
SCATTER = 0.95

# Title, source, what generates code of the schema, and what that makes.
PEERS = [
    ("beside protobuf", "bench/peers/protobuf_message.cpp",
     "protoc --cpp_out=build/bench --proto_path=bench/peers bench/peers/message.proto",
     "message.pb.cc"),
    ("beside FlatBuffers", "bench/peers/flatbuffers_message.cpp",
     "flatc --cpp -o build/bench bench/peers/message.fbs", "message_generated.h"),
    ("beside Cap'n Proto", "bench/peers/capnp_message.cpp",
     "capnp compile -oc++:build/bench --src-prefix=bench/peers bench/peers/message.capnp",
     "message.capnp.c++"),
]
STEPS = (", encode, decode and read", ", decode and read", ", encode")  # the longest first
CALLS = ("netio, call over rings", "Cap'n Proto, call over its pipe")
FULL, QUICK = (15, 2000), (2, 100)  # rounds, samples of a variant in a round
MOST_SECONDS = 330


def peer_base(name):
    """netio's variant that another library's stands beside; None for netio's own."""
    if name.startswith("netio"):
        return None
    if name == CALLS[1]:
        return CALLS[0]
    for step in STEPS:
        if name.endswith(step):
            return "netio" + step
    return "netio"  # of the sizes


def base_of(name):
    """(the variant beside which this one stands, how many of it), or (None, 1)."""
    return FLOORS.get(name, (None, 1))


def values_of(text):
    """{metric: {variant: [value of each round]}} of what a program printed."""
    values = {}
    for line in text.splitlines():
        _, name, metric, value = line.split("\t")
        values.setdefault(metric, {}).setdefault(name, []).append(float(value))
    return values


def rows_of(title, values, command, base):
    """A row of each metric and variant; `base` gives its floor and how many of that."""
    rows = []
    for metric, of_variants in values.items():
        for name, own in of_variants.items():
            floor, times = base(name)
            other = [times * value for value in of_variants.get(floor, ())]
            label = floor if times == 1 else f"{times} x {floor}"
            rows.append(make_row("rpc", f"{title}, {metric}: {name}",
                                 "bytes" if metric == "bytes" else "ns", own, command,
                                 label if other else None, other or None))
    return rows


def aims_of(title, values):
    """{row: {"aim_ns", "is_met"}} of the variants that have one."""
    middle = {name: statistics.median(own) for name, own in values.get("p50", {}).items()}
    limits = {name: aim for name, aim in AIMS.items() if name in middle}
    if SPINNING in middle and LINE in middle:
        limits[SPINNING] = LINES_MAX * middle[LINE] + LINES_MORE
    return {f"{title}, p50: {name}": {"aim_ns": limit, "is_met": middle[name] <= limit}
            for name, limit in limits.items()}


def aim_notes(aims):
    """What is printed beside the rows that have an aim."""
    notes = {}
    for row, aim in aims.items():
        notes[row] = f"aim {aim['aim_ns']:.0f}: {'met' if aim['is_met'] else '!! NOT MET'}"
        if row.endswith(SPINNING):
            notes[row] += f" ({LINES_MAX} cache lines of this run and {LINES_MORE} ns)"
    return notes


def judge_floors(rows):
    """What costs less than its floor has none: say so. Sleepers are hardly dearer than theirs and
    scatter by some per cent."""
    for row in rows:
        if row["ratio"] is not None and ", p50: " in row["row"] and row["ratio"] < SCATTER:
            say(f"!! THE FLOOR DOES NOT HOLD in {row['row']}: {row['ratio']:.3f} of {row['base']}")


def end_with_this_script():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def printed(chosen, title, command):
    """What a program printed and the command as a row names it; (None, it) if it failed."""
    rounds, samples = QUICK if chosen.quick else (chosen.rounds or FULL[0], FULL[1])
    command = command + ["--rounds", str(rounds), "--samples", str(samples)]
    shown = shlex.join([os.path.basename(command[0])] + command[1:])
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=MOST_SECONDS, preexec_fn=end_with_this_script)
    except subprocess.TimeoutExpired:
        failed(f"{title}: {shown}: not done in {MOST_SECONDS} s")
        return None, shown
    if done.returncode != 0:
        failed(f"{title}: {shown}: {done.stderr.strip()[-300:] or done.returncode}")
        return None, shown
    return done.stdout, shown


def own_rows(chosen, title, what):
    program = build(PROGRAM)
    text, shown = printed(chosen, title, [program, what]) if program else (None, "")
    if text is None:
        return []
    values = values_of(text)
    rows = rows_of(title, values, shown, base_of)
    aims = aims_of(title, values)
    chosen.about.setdefault("aims", {}).update(aims)
    show(rows, aim_notes(aims))
    judge_floors(rows)
    return rows


def generate(source, command, output):
    """Code of a schema, made anew if that is newer; False: it can't be made here."""
    words, made = shlex.split(command), os.path.join(BUILD, output)
    if not shutil.which(words[0]):
        skipped(source, f"{words[0]} is not installed")
        return False
    if os.path.exists(made) and os.path.getmtime(words[-1]) < os.path.getmtime(made):
        return True
    os.makedirs(BUILD, exist_ok=True)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        failed(f"{command}: {done.stderr.strip()[-300:]}")
        return False
    stale = os.path.join(BUILD, os.path.splitext(os.path.basename(source))[0])
    if os.path.exists(stale):
        os.remove(stale)
    return True


def peer_rows(chosen, title, source, command, output):
    program = build(source) if generate(source, command, output) else None
    text, shown = printed(chosen, title, [program]) if program else (None, "")
    if text is None:
        return []
    rows = rows_of(title, values_of(text), shown, lambda name: (peer_base(name), 1))
    show(rows)
    return rows


def suite_rpc(chosen):
    if len(CPUS) == 1:
        say("!! one CPU only: whoever spins keeps the other from running; quote nothing of this")
    jobs = [(THREAD, lambda: own_rows(chosen, THREAD, "thread")),
            (PROCESSES, lambda: own_rows(chosen, PROCESSES, "process"))]
    jobs += [(peer[0], lambda peer=peer: peer_rows(chosen, *peer)) for peer in PEERS]
    rows = []
    for title, job in jobs:
        if chosen.only not in title:
            continue
        before = len(FAILURES)
        made = job()
        if len(FAILURES) == before:
            rows += made
        say("")
    return rows
