#!/usr/bin/env python3
"""bench/run lifecycle gives its rows in its quick form, each beside its floor, and what goes wrong
in its program is said. Speed decides nothing here."""
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import types

import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import harness  # noqa: E402
import lifecycle_suite  # noqa: E402

KEYS = {"suite", "row", "unit", "median", "min", "max", "base", "ratio", "ratio_min", "ratio_max",
        "command", "stdev", "rounds", "ratio_stdev"}
WAKE, KILL = "B-10 post to wake", "B-11 kill to reset"
DRAIN, QUIET = "B-12 drain of idle connections", "quiet connection"
POOL = "echo 64 B x 1 on a pool"


def wanted_rows():
    """{row: its base}, of what every Linux has."""
    rows = {}
    for part in ("p50", "p99"):
        rows[f"{WAKE}, {part}: bare eventfd"] = None
        rows[f"{WAKE}, {part}: bare spin"] = None
        rows[f"{WAKE}, {part}: netio epoll, spins 50 us"] = "bare spin"
        for name in ("", ", spins 50 us, asleep"):
            rows[f"{WAKE}, {part}: netio epoll{name}"] = "bare eventfd"
        rows[f"{KILL}, {part}: bare close"] = None
        rows[f"{KILL}, {part}: close + wake"] = None
        rows[f"{KILL}, {part}: netio epoll, awake"] = "bare close"
        rows[f"{KILL}, {part}: netio epoll, asleep"] = "close + wake"
        rows[f"{QUIET}, {part}: netio epoll, alone"] = None
        rows[f"{QUIET}, {part}: netio epoll, beside a flood"] = "netio epoll, alone"
    rows[f"{POOL}, p50: bare recv and send"] = None
    rows[f"{POOL}, p50: netio blocking"] = "bare recv and send"
    rows[f"{POOL}, p50 more than bare recv and send: netio blocking"] = None
    rows[f"{WAKE}, bursts in which it slept: netio epoll, spins 50 us"] = None
    rows[f"{KILL}, samples in which it slept: netio epoll, awake"] = None
    rows[f"{QUIET}, flood: netio epoll, beside a flood"] = None
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for count in (1000, 5000, 10000):
        if count + 100 > descriptors:
            continue
        for part in ("time", "CPU"):
            rows[f"{DRAIN}, {part}: bare loop x {count}"] = None
            rows[f"{DRAIN}, {part}: netio epoll x {count}"] = f"bare loop x {count}"
            if count != 1000:
                rows[f"{DRAIN}, {part} of each: netio epoll x {count}"] = "netio epoll x 1000"
    if shutil.which("valgrind"):
        rows["B-7 write: allow_all"] = None
        rows["B-7 write: an atomic addition"] = "allow_all"
        rows["B-7 write, more than allow_all: an atomic addition"] = None
    else:
        tap.skip("rows of B-7", "no valgrind here")
    return rows


def check_suite(folder):
    path = folder / "lifecycle.json"
    done = subprocess.run([ROOT / "bench/run", "lifecycle", "--quick", "--json", path],
                          capture_output=True, text=True, check=False)
    said = "".join(line for line in (done.stdout + done.stderr).splitlines(True)
                   if "!!" in line or "Error" in line)
    tap.check("bench/run lifecycle --quick", done.returncode == 0, said)
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    rows = {row["row"]: row for row in report["rows"]}
    wanted = wanted_rows()
    missing = [row for row in wanted if row not in rows]
    tap.check("every measurement has its rows", not missing, missing[:5])
    strange = [row for row, base in wanted.items() if row in rows and
               (rows[row]["base"] != base or (rows[row]["ratio"] is None) != (base is None))]
    tap.check("a row stands beside its floor, a floor beside none", not strange, strange[:5])
    tap.check("a row has what bench/README.md says",
              all(set(row) == KEYS and row["suite"] == "lifecycle" for row in rows.values()))
    times = [row for row in rows.values()
             if row["unit"].startswith(("us", "ns")) and " more than " not in row["row"]]
    tap.check("nothing took no time", times and all(row["min"] > 0 for row in times),
              [row["row"] for row in times if row["min"] <= 0])
    flood = rows.get(f"{QUIET}, flood: netio epoll, beside a flood", {"min": 0})
    tap.check("the flood flooded", flood["min"] > 0, flood)
    more = rows.get("B-7 write, more than allow_all: an atomic addition")
    tap.check("an atomic addition costs an instruction at least", not more or more["min"] >= 1,
              more)
    sources = [f"source source_acquire_release/{who}/1" for who in ("of_several", "the_only")]
    if any("source_bench" in line for line in harness.SKIPPED + report.get("skipped", [])):
        tap.skip("rows of the table of sources", "no Google Benchmark here")
    else:
        tap.check("the table of sources stands beside two additions",
                  all(rows.get(source, {}).get("base") == "source_acquire_release_floor"
                      for source in sources), list(rows)[:6])


def check_only(folder):
    path = folder / "only.json"
    subprocess.run([ROOT / "bench/run", "lifecycle", "--quick", "--only", "B-11", "--json", path],
                   capture_output=True, check=False)
    rows = [row["row"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    tap.check("--only keeps the rows that contain the text",
              rows and all(row.startswith("B-11") for row in rows), rows[:5])


def check_words():
    """Ratios are taken inside a round, whatever the order in it was."""
    values = lifecycle_suite.values_of("0\tbare eventfd\tp50\t1000\n0\tnetio epoll\tp50\t2000\n"
                                       "1\tnetio epoll\tp50\t9000\n1\tbare eventfd\tp50\t3000\n")
    rows = {row["row"]: row for row in lifecycle_suite.rows_of("wake", "t", values, "c")}
    row = rows["t, p50: netio epoll"]
    tap.check("a ratio is taken inside its round",
              (row["ratio_min"], row["ratio_max"], row["median"]) == (2.0, 3.0, 5.5), row)
    values = lifecycle_suite.values_of("0\tnetio epoll x 1000\ttime\t1000000\n"
                                       "0\tnetio epoll x 5000\ttime\t10000000\n")
    rows = lifecycle_suite.linear_rows("t", values, "c")
    tap.check("linear is what a connection costs among many against among few",
              [(one["row"], one["median"], one["ratio"]) for one in rows] ==
              [("t, time of each: netio epoll x 5000", 2.0, 2.0)], rows)


def check_failures(folder):
    program = harness.build(lifecycle_suite.PROGRAM)
    for words in (["nothing"], ["wake", "--rounds", "0"], ["wake", "--rounds"], []):
        done = subprocess.run([program, *words], capture_output=True, check=False)
        tap.check(f"lifecycle {' '.join(words)}: says how it is called", done.returncode == 2,
                  done.returncode)
    broken = folder / "broken"
    broken.write_text("#!/bin/sh\necho 'a wake got lost' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    chosen = types.SimpleNamespace(quick=True, rounds=None, only="")
    before = len(harness.FAILURES)
    rows = lifecycle_suite.measured(chosen, str(broken), lifecycle_suite.MEASURED[0])
    tap.check("a program that fails is a failure of the suite, and gives no row",
              rows == [] and "a wake got lost" in "".join(harness.FAILURES[before:]),
              harness.FAILURES)


def main():
    os.chdir(ROOT)
    if not sys.platform.startswith("linux"):
        tap.skip("bench/run lifecycle", "it is for Linux")
        sys.exit(0)
    check_words()
    with tempfile.TemporaryDirectory(prefix="netio_lifecycle_") as name:
        folder = pathlib.Path(name)
        check_suite(folder)
        check_only(folder)
        check_failures(folder)
    tap.finish()


if __name__ == "__main__":
    main()
