#!/usr/bin/env python3
"""The generator joins parts in order and refuses what would break the one header."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent


def part(floor, name, *lines):
    guard = f"NETIO_{name.upper()}_HPP"
    body = "".join(line + "\n" for line in lines)
    title = f"// floor {floor} · {name}.hpp · the {name}\n"
    return f"{title}#ifndef {guard}\n#define {guard}\n{body}#endif\n"


def umbrella(*names):
    text = part(9, "netio", *[f'#include "{name}"' for name in names])
    return text.replace("NETIO_NETIO_HPP", "NETIO_UMBRELLA_HPP")


def generate(files, *arguments, on_disk=None):
    """(exit code, what it said, the header) of the generator over a tree of these parts."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {"LICENSE": "MIT\n", **files}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        shutil.copy(ROOT / "src" / "amalgamate.py", root / "src")
        header = root / "netio.hpp"
        if on_disk is not None:
            header.write_text(on_disk, encoding="utf-8")
        ran = subprocess.run([sys.executable, str(root / "src" / "amalgamate.py"), *arguments],
                             capture_output=True, text=True, check=False)
        text = header.read_text(encoding="utf-8") if header.exists() else ""
        return ran.returncode, ran.stderr.strip(), text


def refuses(name, files, said):
    code, error, text = generate(files)
    tap.check(f"amalgamate: {name}", code == 1 and error == f"amalgamate: {said}" and text == "",
              f"exit {code}: {error}")


LOW = part(0, "low", "int low;")
HIGH = part(1, "high", '#include "src/low.hpp"', "", "int high;")
TREE = {"src/low.hpp": LOW, "src/high.hpp": HIGH, "src/netio.hpp": umbrella("src/high.hpp")}

code, error, whole = generate(TREE)
tap.check("amalgamate: what a part needs stands before it",
          code == 0 and 0 < whole.find("int low;") < whole.find("int high;"), error)
tap.check("amalgamate: each part once", whole.count("int low;") == 1 and "#include" not in whole,
          whole)
tap.check("amalgamate: the contents name each part",
          "//   floor 1 · src/high.hpp · the high" in whole, whole)
tap.check("amalgamate: the same parts give the same bytes", generate(TREE)[2] == whole)
tap.check("amalgamate: --check passes on its own output",
          generate(TREE, "--check", on_disk=whole)[0] == 0)
code, error, kept = generate(TREE, "--check", on_disk=whole + " ")
tap.check("amalgamate: --check names the drift and leaves the file",
          code == 1 and "run src/amalgamate.py" in error and kept == whole + " ", error)
tap.check("amalgamate: an unknown flag is refused", generate(TREE, "--chek")[0] == 1)
refuses("includes go down only",
        {**TREE, "src/low.hpp": part(1, "low", "int low;")},
        "src/high.hpp (floor 1) includes src/low.hpp (floor 1): only lower floors may be included")
refuses("every part is used", {**TREE, "src/idle.hpp": part(0, "idle", "int idle;")},
        "src/idle.hpp is used by nothing: include it from a part or from src/netio.hpp")
refuses("an include of nothing", {**TREE, "src/netio.hpp": umbrella("src/gone.hpp")},
        "src/netio.hpp includes src/gone.hpp, which does not exist")
refuses("no header line", {**TREE, "src/low.hpp": "int low;\n"},
        "src/low.hpp: the first line must be '// floor N · low.hpp · what it is'")
refuses("a header line of another part", {**TREE, "src/low.hpp": LOW.replace("low.hpp", "lo.hpp")},
        "src/low.hpp: the first line names lo.hpp")
refuses("a guard of two names",
        {**TREE, "src/low.hpp": LOW.replace("define NETIO_LOW", "define NETIO_LO")},
        "src/low.hpp: must be wrapped in #ifndef NETIO_…_HPP / #define / #endif")
refuses("an include that it would not see",
        {**TREE, "src/high.hpp": HIGH.replace("src/low", "low")},
        'src/high.hpp: #include "low.hpp": parts are included as #include "src/name.hpp" or '
        '"platform/name.hpp", alone on the line')
tap.finish()
