"""bench/run lifecycle: what happens to connections that are not echoing, each beside its floor.

The rounds are bench/lifecycle.cpp's, which runs its variants in rotated order; here their values
become rows. The two that are no rounds are a micro benchmark and instructions under callgrind.
"""
import ctypes
import re
import shutil
import signal
import subprocess

from harness import CPUS, FAILURES, build, failed, make_row, micro_rows, say, show, skipped

PROGRAM = "bench/lifecycle.cpp"
GATE_SOURCE = "tests/gate_cost/gate_{}.cpp"  # cost, admits, adds: a program each
GATE_ROUNDS = (1000, 3000)
BASE_COUNT = 1000


def base_of(what, name):
    """The floor a variant stands beside; None for a floor."""
    if name.startswith("bare") or name == "close + wake":
        return None
    if what == "wake":
        return "bare spin" if name.endswith("spins 50 us") else "bare eventfd"
    if what == "kill":
        return "bare close" if name.endswith(", awake") else "close + wake"
    if what == "drain":
        return "bare loop" + name[name.rindex(" x "):]
    if what == "flood":
        return None if name.endswith(", alone") else name.replace("beside a flood", "alone")
    return "bare recv and send"


# What the program is told, the rows' title, rounds and samples of a variant in a round, and the
# same of --quick.
MEASURED = [
    ("wake", "B-10 post to wake", (15, 1000), (2, 100)),
    ("kill", "B-11 kill to reset", (15, 1000), (2, 100)),
    ("drain", "B-12 drain of idle connections", (9, 1), (1, 1)),
    ("flood", "quiet connection", (9, 1000), (2, 50)),
    ("pool", "echo 64 B x 1 on a pool", (15, 2000), (2, 100)),
]
UNITS = {"p50": "us", "p99": "us", "time": "us", "CPU": "us CPU", "flood": "MB/s",
         "sends that met a full socket": "sends", "bursts in which it slept": "share",
         "samples in which it slept": "share"}
MOST_SECONDS = 600


def values_of(text):
    """{metric: {variant: [value of each round]}} of what the program printed."""
    values = {}
    for line in text.splitlines():
        _, name, metric, value = line.split("\t")
        scale = 1000 if UNITS[metric].startswith("us") else 1  # it prints nanoseconds
        values.setdefault(metric, {}).setdefault(name, []).append(float(value) / scale)
    return values


def rows_of(what, title, values, command):
    rows = []
    for metric, of_variants in values.items():
        for name, own in of_variants.items():
            base = base_of(what, name)
            other = of_variants.get(base)
            rows.append(make_row("lifecycle", f"{title}, {metric}: {name}",
                                 UNITS[metric], own, command, base if other else None, other))
    return rows


def linear_rows(title, values, command):
    """What a connection costs among many, against what it costs among few."""
    rows = []
    for metric, of_variants in values.items():
        for name, own in of_variants.items():
            kind, _, count = name.rpartition(" x ")
            base = of_variants.get(f"{kind} x {BASE_COUNT}")
            if int(count) != BASE_COUNT and base:
                rows.append(make_row(
                    "lifecycle", f"{title}, {metric} of each: {name}", UNITS[metric],
                    [value / int(count) for value in own], command, f"{kind} x {BASE_COUNT}",
                    [value / BASE_COUNT for value in base]))
    return rows


def end_with_this_script():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def more_rows(what, title, values, command):
    """By how much a variant is above its floor in each round, where that is what is asked for."""
    rows = []
    for name, own in values["p50"].items():
        floor = base_of(what, name)
        if floor in values["p50"]:
            more = [value - other for value, other in zip(own, values["p50"][floor])]
            rows.append(make_row("lifecycle", f"{title}, p50 more than {floor}: {name}", "us", more,
                                 command))
    return rows


def measured(chosen, program, part):
    what, title, full, quick = part
    rounds, samples = quick if chosen.quick else full
    rounds = rounds if chosen.quick else chosen.rounds or rounds
    command = [program, what, "--rounds", str(rounds), "--samples", str(samples)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False,
                              timeout=MOST_SECONDS, preexec_fn=end_with_this_script)
    except subprocess.TimeoutExpired:
        failed(f"{' '.join(command)}: not done in {MOST_SECONDS} s")
        return []
    for line in done.stderr.splitlines() if done.returncode == 0 else ():
        skipped(title, line.removeprefix("lifecycle: "))
    if done.returncode != 0:
        failed(f"{' '.join(command)}: {done.stderr.strip()[-300:] or done.returncode}")
        return []
    values = values_of(done.stdout)
    shown = f"lifecycle {' '.join(command[1:])}"
    rows = rows_of(what, title, values, shown)
    if what == "drain":
        rows += linear_rows(title, values, shown)
    if what == "pool":
        rows += more_rows(what, title, values, shown)
    return rows


def instructions(program, rounds):
    done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
                           program, str(rounds)], capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not found:
        failed(f"callgrind of {program}: {done.stderr.strip()[-300:]}")
        return None
    return int(found[1])


def gate_rows(title):
    """Instructions are the same each time: one round. The start of the program cancels out."""
    if not shutil.which("valgrind"):
        skipped(title, "valgrind is not installed")
        return []
    each = {}
    for gate in ("cost", "admits", "adds"):
        program = build(GATE_SOURCE.format(gate))
        counts = [program and instructions(program, rounds) for rounds in GATE_ROUNDS]
        if None in counts:
            return []
        each[gate] = (counts[1] - counts[0]) / (GATE_ROUNDS[1] - GATE_ROUNDS[0])
    base, command = "allow_all", "valgrind --tool=callgrind gate_cost|gate_admits|gate_adds ROUNDS"
    rows = [make_row("lifecycle", f"{title}: {base}", "instructions", [each["cost"]], command)]
    for gate, name in (("admits", "a gate that only admits"), ("adds", "an atomic addition")):
        rows.append(make_row("lifecycle", f"{title}: {name}", "instructions", [each[gate]],
                             command, base, [each["cost"]]))
        rows.append(make_row("lifecycle", f"{title}, more than {base}: {name}", "instructions",
                             [each[gate] - each["cost"]], command))
    return rows


def source_rows(title, quick):
    program = build("bench/micro/source_bench.cpp")
    return micro_rows(title, program, quick, "lifecycle") if program else []


def suite_lifecycle(chosen):
    if len(CPUS) == 1:
        say("!! one CPU only: whoever spins keeps the other from running; quote nothing of this")
    jobs = [("source", lambda: source_rows("source", chosen.quick)),
            ("B-7 write", lambda: gate_rows("B-7 write"))]
    program = build(PROGRAM)
    if program:
        jobs += [(part[1], lambda part=part: measured(chosen, program, part))
                 for part in MEASURED]
    rows = []
    for title, job in jobs:
        if chosen.only not in title:
            continue
        before = len(FAILURES)
        made = job()
        show(made)
        if len(FAILURES) == before:
            rows += made
        say("")
    return rows
