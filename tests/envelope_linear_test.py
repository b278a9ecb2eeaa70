#!/usr/bin/env python3
"""What decoding visits grows as its input does: reads of memory, as callgrind counts them."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("NETIO_BUILD", ROOT / "build/scripts/envelope_linear"))
SOURCE = ROOT / "tests/linear/decode.cpp"
COUNTS = (100, 1000, 2000)


def build():
    BUILD.mkdir(parents=True, exist_ok=True)
    command = shlex.split(SOURCE.read_text(encoding="utf-8").splitlines()[0][3:])
    command[command.index("-o") + 1] = str(BUILD / "decode")
    subprocess.run(command, cwd=ROOT, check=True)
    return BUILD / "decode"


def reads(program, arguments, rounds):
    done = subprocess.run(["valgrind", "--tool=callgrind", "--cache-sim=yes",
                           "--callgrind-out-file=/dev/null", str(program), str(arguments),
                           str(rounds)], text=True, check=True, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE)
    return int(re.search(r"Collected : \d+ (\d+)", done.stderr)[1])


def for_each_decode(program, arguments):
    """The start of the program and the writing of the envelope cancel out; what printing a time of
    more or fewer digits reads is less than half of one."""
    return round((reads(program, arguments, 202) - reads(program, arguments, 2)) / 200)


def main():
    if shutil.which("valgrind") is None:
        tap.skip("envelope_decode_is_linear", "no valgrind here")
        tap.finish()
        return
    program = build()
    visited = []
    for arguments in COUNTS:
        said = subprocess.run([str(program), str(arguments), "200"], text=True, check=True,
                              stdout=subprocess.PIPE).stdout.split()
        visited.append(for_each_decode(program, arguments))
        print(f"# report: {arguments} arguments, {said[0]} bytes: {visited[-1]:.0f} reads, "
              f"{said[1]} ns")
    more = [(visited[at + 1] - visited[at]) / (COUNTS[at + 1] - COUNTS[at]) for at in (0, 1)]
    tap.check("envelope_decode_is_linear", more[0] == more[1], more)
    tap.check("envelope: a byte is not read more than twice", visited[-1] <= 2 * int(said[0]),
              visited)
    tap.finish()


if __name__ == "__main__":
    main()
