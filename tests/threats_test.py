#!/usr/bin/env python3
"""docs/threats.md: at least fifty rows, each with a defence and tests that are there. The hostile
cases of docs/rpc.md have theirs."""
import pathlib
import re

import case_names
import tap

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/threats.md"
CALLS = PAGE.with_name("rpc.md")
LEAST = 50


def main():
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| T-")]
    tap.check(f"threats: at least {LEAST} rows", len(rows) >= LEAST, len(rows))
    wrong = [row[0] for row in rows if len(row) != 5 or not all(row)]
    tap.check("threats: each row has its five cells", wrong == [], wrong)
    numbers = [int(re.fullmatch(r"T-(\d+)", row[0])[1]) for row in rows]
    tap.check("threats: they are numbered in order", numbers == list(range(1, len(rows) + 1)))
    bare = [row[0] for row in rows if not re.search(r'"[^"]+"|`(?:tests|fuzz)/', row[4])]
    tap.check("threats: each is attacked by a test", bare == [], bare)
    lost = case_names.missing_in("\n".join(row[4] for row in rows))
    tap.check("threats: the tests that are named are there", lost == [], lost)
    hostile = CALLS.read_text(encoding="utf-8").split("## Hostile cases")[1]
    lost = case_names.missing_in(hostile)
    tap.check("threats: so are those of the hostile cases of calls", lost == [], lost)
    tap.finish()


if __name__ == "__main__":
    main()
