#!/usr/bin/env python3
"""The other loops of the benchmarks: each echoes right, their suite gives its rows, and two
reports are compared and made into a page as bench/README.md says. Speed decides nothing here."""
import contextlib
import io
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading

import programs
import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import changes_suite  # noqa: E402
import harness  # noqa: E402
import page  # noqa: E402
import peers_suite  # noqa: E402

LONG = os.environ.get("NETIO_LONG") == "1"
PLACEMENTS = ("pinned", "2+2", "loaded") if LONG else ("pinned",)
ONLY = "B-2" if LONG else "pinned B-2"
MIB = 1 << 20
PAYLOAD = random.Random(4).randbytes(MIB)


def echoed(port):
    """What comes back of a mebibyte that is sent without waiting, until the end of stream."""
    with programs.connect(port) as client:
        sender = threading.Thread(target=client.sendall, args=(PAYLOAD,))
        sender.start()
        got = programs.read_exactly(client, MIB)
        sender.join()
        client.shutdown(socket.SHUT_WR)
        return got, programs.read_all(client)


def check_peer(source):
    name = os.path.basename(source)
    program = harness.build(source)
    if program is None:
        for said in harness.SKIPPED + harness.FAILURES:
            if source in said and said in harness.FAILURES:
                tap.check(f"{name} builds", False, said)
            elif source in said:
                tap.skip(name, said.rpartition(": ")[2])
        return
    for workers in ("1", "2"):
        with harness.Servers() as servers:
            started = servers.start_listening([program, "--port", "0", "--workers", workers],
                                              set(harness.CPUS))
            tap.check(f"{name} listens with {workers} workers", started, harness.SKIPPED)
            if started:
                got, rest = echoed(started[1])
                tap.check(f"{name} echoes a mebibyte, {workers} workers", got == PAYLOAD,
                          f"{len(got or b'')} bytes")
                tap.check(f"{name} ends the stream after it, {workers} workers", rest == b"", rest)


def check_suite(folder):
    """The quick form: a row of each metric for each server that was not skipped."""
    path = folder / "peers.json"
    done = subprocess.run(
        [ROOT / "bench/run", "peers", "--quick", "--only", ONLY, "--json", path],
        capture_output=True, text=True, check=False)
    tap.check(f"bench/run peers --quick --only {ONLY}", done.returncode == 0,
              "".join(line for line in (done.stdout + done.stderr).splitlines(True)
                      if "!!" in line or "Error" in line))
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    rows = {row["row"]: row for row in report["rows"]}
    missing = [f"{placement} B-2 64 B x 1{label}: {name}"
               for placement in PLACEMENTS
               for _, label, _ in peers_suite.METRICS
               for name in ("thread per connection", "floor_epoll", "netio epoll")
               if f"{placement} B-2 64 B x 1{label}: {name}" not in rows]
    tap.check("every placement and metric has its row", not missing, missing[:5])
    tap.check("no other shape was measured", all("B-2" in row for row in rows), list(rows)[:5])
    wanted = {"suite", "row", "unit", "median", "min", "max", "base", "ratio", "ratio_min",
              "ratio_max", "command", "stdev", "rounds", "ratio_stdev"}
    tap.check("a row has what bench/README.md says",
              all(set(row) == wanted for row in rows.values()))
    versions = report.get("versions", {})
    tap.check("every server has a version",
              all(versions.get(peer[0]) for peer in peers_suite.PEERS), versions)
    return path


def check_changes(folder):
    """This tree beside itself: rows of every version, each of which stands beside the older."""
    path = folder / "changes.json"
    done = subprocess.run([ROOT / "bench/run", "changes", "--before", ROOT, "--quick", "--only",
                           "pinned B-2", "--json", path],
                          capture_output=True, text=True, check=False)
    tap.check("bench/run changes --quick", done.returncode == 0 and "rows of server CPU" in
              done.stdout, (done.stdout + done.stderr)[-400:])
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    rows = {row["row"]: row for row in report["rows"]}
    row = "pinned B-2 64 B x 1: netio epoll"
    bases = {ending: rows.get(row + ending, {"base": "no row"})["base"]
             for ending in ("", changes_suite.BEFORE, changes_suite.TWIN)}
    older = "netio epoll" + changes_suite.BEFORE
    tap.check("this tree stands beside both of the older one's, the second of them by the first",
              bases == {"": "netio epoll" + changes_suite.BOTH, changes_suite.BEFORE: None,
                        changes_suite.TWIN: older}, bases)
    for what, before in (("no --before", []), ("a tree without netio.hpp", ["--before", folder])):
        done = subprocess.run([ROOT / "bench/run", "changes", *before], capture_output=True,
                              text=True, check=False)
        tap.check(f"bench/run changes: {what} is an error", done.returncode == 1 and
                  "--before DIR names an older tree" in done.stdout, done.stdout[-300:])


def check_verdict():
    """What is named at the end: rows that cost more than 3% more, and by the twin's side."""
    unit, said = changes_suite.UNIT, io.StringIO()
    with contextlib.redirect_stdout(said):
        changes_suite.show_verdict(
            [{"row": "a: netio", "unit": unit, "ratio": 1.031},
             {"row": "a: netio" + changes_suite.TWIN, "unit": unit, "ratio": 1.02},
             {"row": "b: netio", "unit": unit, "ratio": 1.03},
             {"row": "c, p50: netio", "unit": "us", "ratio": 2.0},
             {"row": "d: netio" + changes_suite.TWIN, "unit": unit, "ratio": 1.5},
             {"row": "a: netio" + changes_suite.BEFORE, "unit": unit, "ratio": None}])
    worse = [line for line in said.getvalue().splitlines() if "!! WORSE" in line]
    tap.check("changes: only server CPU of this tree, above 3%, is named",
              worse == ["!! WORSE a: netio: 1.031; the older one's second of its first 1.020"],
              worse)


def compared(folder, base_rows, head_rows, *more):
    """Exit code and output of bench/compare over rows of (name, median, stdev, ratio)."""
    paths = []
    for name, rows in (("base", base_rows), ("head", head_rows)):
        made = [{"suite": "s", "row": row, "unit": "us", "median": median, "stdev": stdev,
                 "base": "b", "ratio": ratio, "ratio_stdev": 0.0}
                for row, median, stdev, ratio in rows]
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps({"machine": {}, "rows": made}), encoding="utf-8")
    done = subprocess.run([ROOT / "bench/compare", *paths, *more], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


def check_compare(folder):
    cases = [
        ("1.9% is within what is always allowed", ("r", 101.9, 0.0, 1.0), 0),
        ("2.1% of a quiet row is flagged", ("r", 102.1, 0.0, 1.0), 1),
        ("2.1% less is flagged as well", ("r", 97.9, 0.0, 1.0), 1),
        ("2.9% of a row that varies by 1% is allowed", ("r", 102.9, 1.029, 1.0), 0),
        ("3.1% of a row that varies by 1% is flagged", ("r", 103.1, 1.0, 1.0), 1),
    ]
    for what, head, code in cases:
        got, said = compared(folder, [("r", 100.0, 0.0, 1.0)], [head])
        tap.check(f"bench/compare: {what}", got == code and ("!!" in said) == (code == 1), said)
    got, said = compared(folder, [("r", 100.0, 1.0, 1.0)], [("r", 102.9, 0.0, 1.0)])
    tap.check("bench/compare: the noisier side may be the first", got == 0, said)
    got, said = compared(folder, [("r", 100.0, 0.0, 1.0)], [("r", 200.0, 0.0, 1.01)], "--ratios")
    tap.check("bench/compare: --ratios looks at ratios", got == 0, said)
    got, said = compared(folder, [("r", 100.0, 0.0, 1.0)],
                         [("r", 100.0, 0.0, 1.0), ("new", 1.0, 0.0, 1.0)])
    tap.check("bench/compare: a row of one side is named", got == 0 and "only in" in said, said)
    got, said = compared(folder, [("r", 100.0, 0.0, 1.0)], [("other", 100.0, 0.0, 1.0)])
    tap.check("bench/compare: nothing to compare is an error", got == 1 and "no row" in said, said)


def check_page(folder, report):
    if not report.exists():
        tap.check("a page of the report", False, "there is no report")
        return
    page.write(str(report), str(ROOT), str(folder))
    text = (folder / "performance.md").read_text(encoding="utf-8")
    tap.check("a page has its tables and versions",
              "### B-2 64 B x 1" in text and "## Versions" in text, text[:400])
    tap.check("a page says what a system call cost beside a gain",
              "CPU against the best peer" in text and
              all("A system call cost" in line for line in text.splitlines()
                  if line.startswith("CPU against the best peer")), text[-400:])
    tap.check("a page of a quick run says so", "not to be quoted" in text)
    plots = sorted((folder / "plots").glob("*.svg"))
    if harness.shutil.which("gnuplot"):
        tap.check("plots are small", plots and all(one.stat().st_size < 40_000 for one in plots))
    else:
        tap.skip("plots are small", "gnuplot is not installed")
    kept = ROOT / "docs/performance.md"
    first = kept.read_text(encoding="utf-8") if kept.exists() else ""
    source = first.partition("bench/run --page ")[2].partition("`")[0]
    if source:
        page.write(str(ROOT / source), str(ROOT), str(folder))
        tap.check("docs/performance.md is what its report makes",
                  (folder / "performance.md").read_text(encoding="utf-8") == first,
                  f"bench/run --page {source}")


def main():
    os.chdir(ROOT)
    for source in sorted({peer[1] for peer in peers_suite.PEERS}):
        check_peer(source)
    with tempfile.TemporaryDirectory(prefix="netio_peers_") as name:
        folder = pathlib.Path(name)
        check_compare(folder)
        harness.build("bench/loadgen.cpp")
        report = check_suite(folder)
        check_page(folder, report)
        check_changes(folder)
    check_verdict()
    tap.finish()


if __name__ == "__main__":
    main()
