#!/usr/bin/env python3
"""What failed in a doctest program, by its output: a line for each assertion that did not hold,
with its case, its place and what it saw. By hand: tests/failed_cases.py <OUTPUT"""
import re
import sys

BAR = re.compile(r"={20,}")
CASE = re.compile(r"TEST CASE: +(.*)")
FAULT = re.compile(r"\S.*?(?::|\()\d+\)?: (?:FATAL )?ERROR: ")
MORE_MAX = 8  # lines of one assertion: its text, the values, what was captured


def failed_cases(said):
    out, case, taken = [], "", 0
    for line in said.splitlines():
        line = line.rstrip()
        if BAR.fullmatch(line):
            case, taken = "", 0
        elif found := CASE.match(line):
            case = found[1]
        elif FAULT.match(line):
            out.append(f"{case or 'outside of a case'}: {line}")
            taken = 1
        elif not line or line.startswith("[doctest]"):
            taken = 0
        elif 0 < taken < MORE_MAX:
            out[-1] += f" {line.strip()}"
            taken += 1
    return out


def why_failed(said, failed_max=7):
    """For a line of tests/tap.py: the first failures, or the end of what was said if it names none:
    then the program did not get to its end."""
    failed = failed_cases(said)
    more = [f"and {len(failed) - failed_max} more"] if len(failed) > failed_max else []
    return "\n".join(failed[:failed_max] + more) or said


if __name__ == "__main__":
    for failed in failed_cases(sys.stdin.read()):
        print(failed)
