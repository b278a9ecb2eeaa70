#!/usr/bin/env python3
"""bench/run rpc gives its rows in its quick form, each beside its floor and its aim, and what goes
wrong in its programs is said. Speed decides nothing here, but that a floor is one. The other
libraries' encoders take their time to compile: NETIO_LONG=1."""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import harness  # noqa: E402
import rpc_suite  # noqa: E402

LONG = os.environ.get("NETIO_LONG") == "1"
KEYS = {"suite", "row", "unit", "median", "min", "max", "base", "ratio", "ratio_min", "ratio_max",
        "command", "stdev", "rounds", "ratio_stdev"}
THREAD, PROCESSES = rpc_suite.THREAD, rpc_suite.PROCESSES
COPY = "memcpy of 868 and 40 bytes"
LINE, FUTEX = "cache line to the other CPU and back", "bare futex to the other CPU and back"


def wanted_rows():
    """{row: its base}."""
    rows = {}
    for part in ("p50", "p99"):
        one, two = f"{THREAD}, {part}: ", f"{PROCESSES}, {part}: "
        rows.update({one + COPY: None, one + "copy and call": None, two + LINE: None,
                     two + FUTEX: None})
        for name in ("rings", "rings, encoded in place", "shared memory",
                     "shared memory, borrowed"):
            rows[one + name] = COPY
        rows[one + "call and dispatch"] = "copy and call"
        rows[one + "8 calls one by one"] = rows[one + "8 calls in a batch"] = "8 x copy and call"
        rows[two + "shared memory, both spin"] = LINE
        rows[two + "shared memory, both sleep"] = FUTEX
    return rows


def suite(folder, only):
    """The report of a quick run, what it printed, and its exit code."""
    path = folder / "rpc.json"
    done = subprocess.run([ROOT / "bench/run", "rpc", "--quick", "--only", only, "--json", path],
                          capture_output=True, text=True, check=False)
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    return report, done.stdout + done.stderr, done.returncode


def check_suite(folder):
    report, said, code = suite(folder, "netio")
    tap.check("bench/run rpc --quick", code == 0, "".join(
        line for line in said.splitlines(True) if "!! FAILED" in line or "Error" in line))
    rows = {row["row"]: row for row in report["rows"]}
    wanted = wanted_rows()
    tap.check("every measurement has its rows, and there is no other", set(rows) == set(wanted),
              sorted(set(rows) ^ set(wanted))[:5])
    strange = [row for row, base in wanted.items() if row in rows and
               (rows[row]["base"] != base or (rows[row]["ratio"] is None) != (base is None))]
    tap.check("a row stands beside its floor, a floor beside none", not strange, strange[:5])
    tap.check("a row has what bench/README.md says",
              all(set(row) == KEYS and row["suite"] == "rpc" for row in rows.values()))
    tap.check("nothing took no time", rows and all(row["min"] > 0 for row in rows.values()))
    below = [(row, made["ratio_min"]) for row, made in rows.items()
             if row.startswith(f"{THREAD}, p50") and made["ratio"] and made["ratio_min"] < 1]
    tap.check("nothing in one thread is below its floor in any round", not below, below)
    check_aims(report, rows, said)


def check_aims(report, rows, said):
    aims = report.get("aims", {})
    expected = {f"{THREAD}, p50: {name}" for name in rpc_suite.AIMS}
    expected.add(f"{PROCESSES}, p50: shared memory, both spin")
    tap.check("the rows with an aim are held against it", set(aims) == expected, sorted(aims))
    tap.check("an aim is met where the median is within it", aims and all(
        aim["is_met"] == (rows[row]["median"] <= aim["aim_ns"]) for row, aim in aims.items()),
        aims)
    line = rows.get(f"{PROCESSES}, p50: {LINE}", {"median": 0})["median"]
    spin = aims.get(f"{PROCESSES}, p50: shared memory, both spin", {"aim_ns": 0})["aim_ns"]
    tap.check("the aim of spinning is three cache lines of the same run and 150 ns",
              abs(spin - 3 * line - 150) < 0.01 * spin, (spin, line))
    lines = {row: next((line for line in said.splitlines() if line.startswith(row + "  ")), "")
             for row in aims}
    tap.check("an aim stands beside its row",
              all(f"aim {aim['aim_ns']:.0f}: {'met' if aim['is_met'] else '!! NOT MET'}" in
                  lines[row] for row, aim in aims.items()), lines)


def check_words():
    """Ratios are taken inside a round, whatever the order in it was; eight calls beside eight."""
    values = rpc_suite.values_of("0\tcopy and call\tp50\t2\n0\tcall and dispatch\tp50\t100\n"
                                 "0\t8 calls in a batch\tp50\t800\n"
                                 "1\tcall and dispatch\tp50\t400\n1\tcopy and call\tp50\t4\n"
                                 "1\t8 calls in a batch\tp50\t3200\n")
    rows = {row["row"]: row for row in rpc_suite.rows_of("t", values, "c", rpc_suite.base_of)}
    row = rows["t, p50: call and dispatch"]
    tap.check("a ratio is taken inside its round",
              (row["ratio_min"], row["ratio_max"], row["median"]) == (50.0, 100.0, 250.0), row)
    row = rows["t, p50: 8 calls in a batch"]
    tap.check("eight calls stand beside eight of the floor",
              (row["base"], row["ratio"]) == ("8 x copy and call", 75.0), row)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        rpc_suite.judge_floors([
            {"row": "t, p50: a", "ratio": 0.94, "base": "b"},
            {"row": "t, p50: c", "ratio": 0.96, "base": "b"},
            {"row": "t, p99: d", "ratio": 0.5, "base": "b"},
            {"row": "t, p50: b", "ratio": None, "base": None}])
    tap.check("a floor that something is below is named", said.getvalue().splitlines() ==
              ["!! THE FLOOR DOES NOT HOLD in t, p50: a: 0.940 of b"], said.getvalue())
    bases = [("netio, encode", None), ("netio, call over rings", None),
             ("protobuf, arena reused, encode", "netio, encode"),
             ("FlatBuffers, decode and read", "netio, decode and read"),
             ("FlatBuffers, encode, decode and read", "netio, encode, decode and read"),
             ("FlatBuffers", "netio"),
             ("Cap'n Proto, call over its pipe", "netio, call over rings")]
    tap.check("another library stands beside the same of netio",
              all(rpc_suite.peer_base(name) == base for name, base in bases),
              [rpc_suite.peer_base(name) for name, _ in bases])


def check_failures(folder):
    program = harness.build(rpc_suite.PROGRAM)
    for words in (["nothing"], ["thread", "--rounds", "0"], ["thread", "--rounds"],
                  ["process", "--samples", "-1"], ["thread", "--seconds", "1"], ["--rounds", "1"],
                  []):
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        tap.check(f"rpc {' '.join(words)}: says how it is called",
                  done.returncode == 2 and "usage: rpc" in done.stderr and not done.stdout,
                  done.returncode)
    broken = folder / "broken"
    broken.write_text("#!/bin/sh\necho 'nothing came' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    chosen = types.SimpleNamespace(quick=True, rounds=None, only="", about={})
    before = len(harness.FAILURES)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        text, _ = rpc_suite.printed(chosen, "t", [str(broken)])
        made = rpc_suite.generate("bench/peers/x.cpp", "no-such-program bench/peers/x", "x.cc")
    tap.check("a program that fails is a failure of the suite, and gives no row",
              text is None and "nothing came" in "".join(harness.FAILURES[before:]),
              harness.FAILURES)
    tap.check("a library that is not there is skipped aloud", not made and
              "!! SKIPPED bench/peers/x.cpp: no-such-program is not installed" in said.getvalue(),
              said.getvalue())


def check_builds(folder):
    """Two runs beside each other get one whole program, compiled once."""
    tree, bin_folder = folder / "tree", folder / "bin"
    (tree / "bench").mkdir(parents=True)
    bin_folder.mkdir()
    (tree / "bench/slow.cpp").write_text("// c++ bench/slow.cpp -o slow\n", encoding="utf-8")
    os.mkfifo(folder / "go")
    compiler = bin_folder / "c++"
    compiler.write_text(f"#!/bin/sh\nprintf '#!/bin/sh\\n' >$3; read go <{folder}/go; "
                        f"echo 'echo whole' >>$3; chmod +x $3; echo >>{folder}/compiled\n",
                        encoding="utf-8")
    compiler.chmod(0o755)
    command = [sys.executable, "-c", "import subprocess, sys, harness\n"
               "subprocess.run([harness.build('bench/slow.cpp', sys.argv[1])], check=True)", tree]
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}",
                   "PYTHONPATH": str(ROOT / "bench")}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)]
    with open(folder / "go", "w", encoding="utf-8") as go:  # opens once somebody compiles
        go.write("go\n")
    said = [each.communicate(timeout=60)[0] for each in both]
    compiled = (folder / "compiled").read_text(encoding="utf-8")
    tap.check("two runs beside each other get one whole program, compiled once",
              (said, compiled) == (["whole\n"] * 2, "\n"), (said, compiled))


def check_peer(folder, title, source):
    """Sizes and steps of the library, each beside netio's; and what its program makes of words."""
    report, said, code = suite(folder, title)
    tap.check(f"bench/run rpc --quick --only '{title}'",
              code == 0 or report.get("skipped"), said[-400:])
    if report.get("skipped"):
        tap.skip(title, report["skipped"][0])
        return
    rows = {row["row"]: row for row in report["rows"]}
    theirs = {name: row for name, row in rows.items() if not name.partition(": ")[2].
              startswith("netio")}
    tap.check(f"{title}: every row of theirs stands beside one of netio's", theirs and all(
        row["base"] and row["base"].startswith("netio") and row["ratio"] is not None
        for row in theirs.values()), list(theirs))
    for step in rpc_suite.STEPS:
        tap.check(f"{title}: there is{step}", any(
            name.endswith(step) and ", p50: " in name for name in theirs), list(theirs))
    program = harness.build(source)
    done = subprocess.run([program, "--rounds", "0"], capture_output=True, text=True, check=False)
    tap.check(f"{title}: says how it is called",
              done.returncode == 2 and "usage:" in done.stderr, done.stderr)


def main():
    os.chdir(ROOT)
    if not sys.platform.startswith("linux"):
        tap.skip("bench/run rpc", "it is for Linux")
        sys.exit(0)
    check_words()
    with tempfile.TemporaryDirectory(prefix="netio_rpc_") as name:
        folder = pathlib.Path(name)
        check_suite(folder)
        check_failures(folder)
        check_builds(folder)
        for title, source, _, _ in rpc_suite.PEERS:
            if LONG:
                check_peer(folder, title, source)
            else:
                tap.skip(f"bench/run rpc, {title}", "NETIO_LONG=1 compiles it")
    tap.finish()


if __name__ == "__main__":
    main()
