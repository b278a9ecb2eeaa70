#!/usr/bin/env python3
"""Each house rule trips on a planted breach, names its line, and lets honest code pass."""
import pathlib
import subprocess
import sys
import tempfile

import tap

HERE = pathlib.Path(__file__).resolve().parent
TITLE = "// floor 2 · part.hpp · a part\n"


def part(*lines, title=TITLE):
    body = "".join(line + "\n" for line in lines)
    return f"{title}#ifndef NETIO_PART_HPP\n#define NETIO_PART_HPP\n{body}#endif\n"


def tidy(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        ran = subprocess.run([sys.executable, str(HERE / "tidy.py"), "--root", folder],
                             capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def trips(name, files, expected):
    code, said = tidy(files)
    tap.check(f"tidy: {name}", code == 1 and said == expected + "\n",
              f"wanted exactly '{expected}', exit 1; got exit {code}: {said}")


def passes(name, files):
    code, said = tidy(files)
    tap.check(f"tidy: {name}", code == 0 and said == "", f"exit {code}: {said}")


def long_function(head, line_count):
    return [head] + ["    ++at;"] * (line_count - 2) + ["}"]


def about_lines():
    wide = "// " + "x" * 98
    trips("a line of 101 columns", {"src/part.hpp": part(wide)},
          "src/part.hpp:4: 101 columns, at most 100")
    passes("a line of 100 columns", {"src/part.hpp": part(wide[:-1])})
    passes("columns are characters, not bytes", {"src/part.hpp": part("// " + "·" * 97)})
    passes("the command in the first line may be wide",
           {"fuzz/a_fuzz.cpp": "// clang++ " + "x" * 100 + "\n"})
    trips("a command elsewhere may not", {"a.cpp": "\n// clang++ " + "x" * 90 + "\n"},
          "a.cpp:2: 101 columns, at most 100")
    passes("prose and data may be wide", {"README.md": wide + "\n"})
    trips("a wide script", {"tests/run": "#!/usr/bin/env bash\n# " + "x" * 99 + "\n"},
          "tests/run:2: 101 columns, at most 100")
    trips("a trailing blank", {"a.md": "word \n"}, "a.md:1: trailing blank")
    trips("a tab", {"a.py": "if 1:\n\tpass\n"}, "a.py:2: tab")
    trips("no newline at the end", {"a.md": "word"}, "a.md:1: no newline at the end")
    for word in ("TO" "DO", "FIX" "ME", "XX" "X"):
        trips(f"the leftover {word}", {"a.cpp": f"// {word}: later\n"},
              f"a.cpp:1: leftover: {word}")
    trips("a merge marker", {"a.md": "<" * 7 + " HEAD\n"}, "a.md:1: merge marker: " + "<" * 7 + " ")
    trips("half of a merge", {"a.md": "=" * 7 + "\n"}, "a.md:1: merge marker: " + "=" * 7)
    trips("an absolute path", {"a.sh": "cat /" "home/me/file\n"},
          "a.sh:1: absolute path: /" "home/m")
    passes("system locations are no absolute paths of ours",
           {"a.sh": "cat /proc/self/maps >/dev/null; ls /tmp /usr/include /etc\n"})


def about_functions():
    head = "inline void grow(int& at) noexcept {"
    trips("a function of 71 lines", {"src/part.hpp": part(*long_function(head, 71))},
          "src/part.hpp:4: function of 71 lines, at most 70")
    passes("a function of 70 lines", {"src/part.hpp": part(*long_function(head, 70))})
    trips("a long test case", {"a.cpp": "\n".join(long_function('TEST_CASE("x {") {', 71)) + "\n"},
          "a.cpp:1: function of 71 lines, at most 70")
    method = ["struct alignas(64) thing {"] + long_function("void grow() {", 71) + ["};"]
    trips("a long method", {"src/part.hpp": part(*method)},
          "src/part.hpp:5: function of 71 lines, at most 70")
    builder = ["thing::thing(int one)", "    : one_{one},", "      two_(2) {"]
    builder += ["    ++one_;"] * 67 + ["}"]
    trips("a long constructor behind a list of members", {"src/part.hpp": part(*builder)},
          "src/part.hpp:4: function of 71 lines, at most 70")
    types = ["struct alignas(8) wide {"] + ["    int at() const { return 1; }"] * 80 + ["};"]
    passes("a long type is no long function", {"src/part.hpp": part(*types)})
    table = ["inline constexpr auto table = [] {"]
    table += ["    for (int at = 0; at < 3; ++at) {"] + ["        step();"] * 80 + ["    }", "}();"]
    passes("a table made by a loop is no long function", {"src/part.hpp": part(*table)})
    nested = long_function(head, 60)
    nested[1:3] = ["    if (at > 0) {", "    }"]
    passes("blocks inside do not end a function", {"src/part.hpp": part(*(nested + nested))})
    python = "def grow():\n" + "    pass\n" * 70
    trips("a long Python function", {"a.py": python}, "a.py:1: function of 71 lines, at most 70")
    shell = "grow() {\n" + "    true\n" * 69 + "}\n"
    trips("a long shell function", {"a.sh": shell}, "a.sh:1: function of 71 lines, at most 70")


def about_names():
    for name in ("idx", "buffer_len", "num_slots", "piece_sz_"):
        trips(f"the name {name}", {"a.cpp": f"int {name} = 0;\n"}, f"a.cpp:1: banned name: {name}")
    passes("the system's own names",
           {"platform/part.hpp": part("int x = slice.iov_len + sqe->len;")})
    passes("names in comments and texts", {"a.cpp": 'const char* a = "len";  // not len\n'})
    banned = {
        "int* a = new int;": "new", "int* a = ::new int;": "::new", "delete a;": "delete",
        "malloc(3);": "malloc(", "std::free(a);": "std::free(",
        "std::function<void()> a;": "std::function", "std::string a;": "std::string",
        "std::vector<int> a;": "std::vector", "throw 1;": "throw", "thread_local int a;":
        "thread_local", "#include <iostream>": "#include <iostream>",
        "#include <memory>": "#include <memory>", "#include <chrono>": "#include <chrono>",
    }
    for line, name in banned.items():
        trips(f"`{line}` in a part", {"src/part.hpp": part(line)},
              f"src/part.hpp:4: banned in parts: {name}")
    passes("placement new, views and deleted functions",
           {"src/part.hpp": part("#include <new>", "#include <string_view>", "a() = delete;",
                                 "::new (at) int;", "std::string_view b;", "pool.free(3);")})
    passes("a test may use the heap", {"tests/x.cpp": "std::vector<int> a;\n"})


def about_parts():
    trips("a part without its header line", {"src/part.hpp": part(title="// something\n")},
          "src/part.hpp:1: no header line `// floor N · name.hpp · what it is`")
    trips("a macro without NETIO_", {"src/part.hpp": part("#define MAX 3")},
          "src/part.hpp:4: macro without NETIO_: MAX")
    passes("a macro with NETIO_", {"src/part.hpp": part("#define NETIO_LEVEL 3")})
    trips("a conditional in a part", {"src/part.hpp": part("#if defined(__linux__)", "#endif")},
          "src/part.hpp:4: conditional in a part: #if defined(__linux__)")
    title = "// floor 0 · {} · a part\n"
    passes("base may choose", {"src/base.hpp": part("#if 1", "#endif",
                                                    title=title.format("base.hpp"))})
    passes("platform may choose", {"platform/part.hpp": part("#ifdef _WIN32", "#endif")})
    list_text = ("// g++ -std=c++20 -I. -Itests/kqueue_double -DNETIO_USE_KQUEUE=1 "
                 "tests/all.cpp -o all\n"
                 "// Every test as one unit. "
                 "The list is kept whole by tests/tidy.py: `tests/tidy.py --write-all`.\n"
                 '#include "tests/main.cpp"\n\n#include "tests/a_test.cpp"\n')
    passes("a whole all.cpp", {"tests/all.cpp": list_text, "tests/a_test.cpp": "\n"})
    trips("a test that all.cpp leaves out",
          {"tests/all.cpp": list_text, "tests/a_test.cpp": "\n", "tests/b_test.cpp": "\n"},
          "tests/all.cpp:1: does not list each *_test.cpp once, sorted: "
          "run tests/tidy.py --write-all")


about_lines()
about_functions()
about_names()
about_parts()
tap.finish()
