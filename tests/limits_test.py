#!/usr/bin/env python3
"""docs/limits.md against the code: defaults, completeness, and the tests it names."""
import os
import pathlib
import re
import subprocess

import case_names
import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("NETIO_BUILD", ROOT / "build/scripts/limits"))
PAGE = ROOT / "docs/limits.md"
COLUMNS = 6
# The struct, the file it is in, and whether each of its fields is a bound.
RATES_OF = ("source", "total")  # the budgets of datagram_options
STRUCTS = {"limits": ("src/limits.hpp", True), "deadlines": ("src/options.hpp", True),
           "turn_bounds": ("src/reactor.hpp", True), "listen_options": ("src/options.hpp", False)}


def rows():
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            yield cells


def fields_of(name, source):
    text = (ROOT / source).read_text(encoding="utf-8")
    body = re.search(rf"struct {name} \{{\n(.*?)\n\}};", text, re.S)[1]
    return re.findall(r"^    (?:static constexpr )?(?:std::uint32_t|bool) (\w+) = ", body, re.M)


def values(names):
    """What the code says each of them is."""
    lines = "\n".join(
        f'    show("{name}", ' + (f"netio::{name.replace('::', '{}.', 1)}"
                                  if "::" in name and not name.startswith("turn_bounds")
                                  else f"netio::{name}") + ");" for name in names)
    BUILD.mkdir(parents=True, exist_ok=True)
    source = BUILD / "show.cpp"
    source.write_text(f"""#include "netio.hpp"
static void show(const char* name, unsigned long long value) {{
    std::printf("%s %llu\\n", name, value);
}}
int main() {{
{lines}
}}
""", encoding="utf-8")
    program = BUILD / "show"
    subprocess.run(["c++", "-std=c++20", "-I", str(ROOT), str(source), "-o", str(program)],
                   check=True)
    done = subprocess.run([str(program)], text=True, check=True, stdout=subprocess.PIPE)
    return dict(line.split() for line in done.stdout.splitlines())


def main():
    table = list(rows())
    tap.check("limits: each row has its six cells",
              [row[0] for row in table if len(row) != COLUMNS] == [])
    names = [row[0].strip("`") for row in table]
    tap.check("limits: each bound has one row", len(set(names)) == len(names))
    known = values(names)
    wrong = [f"{row[0]} is {known[row[0].strip('`')]}" for row in table
             if known[row[0].strip("`")] != row[1]]
    tap.check("limits: the defaults are the code's", wrong == [], wrong)
    for struct, (source, whole) in STRUCTS.items():
        if whole:
            missing = [field for field in fields_of(struct, source)
                       if f"{struct}::{field}" not in names]
            tap.check(f"limits: every field of {struct} has a row", missing == [], missing)
    missing = [f"{rates}.{field}" for rates in RATES_OF
               for field in fields_of("datagram_rates", "src/options.hpp")
               if f"datagram_options::{rates}.{field}" not in names]
    tap.check("limits: every field of a budget of datagrams has a row", missing == [], missing)
    lost = case_names.missing_in("\n".join(row[5] for row in table))
    tap.check("limits: the tests that are named are there", lost == [], lost)
    tap.finish()


if __name__ == "__main__":
    main()
