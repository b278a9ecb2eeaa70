#!/usr/bin/env python3
"""What a gate costs for each write, in instructions that callgrind counts: nothing where there is
none, a few where one adds a number."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("NETIO_BUILD", ROOT / "build/scripts/gate_cost"))
SOURCES = ROOT / "tests/gate_cost"
ROUNDS = (1000, 3000)
# Where the gate is asked about a write, and what that is without a gate in the language at all.
ASKED = ("        if (!may_leave(c, count)) {\n            return;\n        }\n", "")
MOST = 12
SAME = 2  # two instantiations of one template differ by as much in their registers


def build(name, compiler, gate="cost", change=None):
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    header = (ROOT / "netio.hpp").read_text(encoding="utf-8")
    if change:
        assert header.count(change[0]) == 1, change[0]
        header = header.replace(*change)
    (folder / "netio.hpp").write_text(header, encoding="utf-8")
    source = SOURCES / f"gate_{gate}.cpp"
    command = shlex.split(source.read_text(encoding="utf-8").splitlines()[0][3:])
    command[0] = compiler
    command[command.index("-I.")] = f"-I{folder}"
    command[command.index("-o") + 1] = str(folder / "gate_cost")
    subprocess.run(command, cwd=ROOT, check=True)
    return folder / "gate_cost"


def instructions(program, rounds):
    done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
                           str(program), str(rounds)], text=True, check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return int(re.search(r"Collected : (\d+)", done.stdout)[1])


def for_each_write(program):
    few, many = (instructions(program, rounds) for rounds in ROUNDS)
    return (many - few) / (ROUNDS[1] - ROUNDS[0])


def main():
    if shutil.which("valgrind") is None:
        tap.skip("gate: instructions", "no valgrind here")
        sys.exit(0)
    for compiler in ("g++", "clang++"):
        if shutil.which(compiler) is None:
            tap.skip(f"gate: instructions with {compiler}", "it is not here")
            continue
        counts = {gate: for_each_write(build(f"{compiler}-{gate}", compiler, gate))
                  for gate in ("cost", "admits", "adds")}
        print(f"# {compiler}: {counts}")
        bare = for_each_write(build(f"{compiler}-bare", compiler, change=ASKED))
        tap.check(f"gate: none costs as much as none in the source, {compiler}",
                  counts["cost"] == bare, f"{counts} {bare}")
        tap.check(f"gate: one that only admits costs a write nothing, {compiler}",
                  abs(counts["admits"] - counts["cost"]) <= SAME, counts)
        more = counts["adds"] - counts["cost"]
        tap.check(f"gate: an atomic addition costs 1 to {MOST} instructions a write, {compiler}",
                  1 <= more <= MOST, counts)
    tap.finish()


if __name__ == "__main__":
    main()
