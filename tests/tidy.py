#!/usr/bin/env python3
"""House rules as a test: prints each breach as `file:line: what`, exit code 1 if there is one.

    tests/tidy.py                looks at the repository
    tests/tidy.py --root DIR     looks at another tree
    tests/tidy.py --write-all    writes tests/all.cpp from the tests that exist
"""
import ast
import pathlib
import re
import sys

LINES_MAX = 70
COLUMNS_MAX = 100
CPP = {".hpp", ".cpp", ".h"}
CODE = CPP | {".py", ".sh", ".bzl", ".bazel"}
TEXT = CODE | {".md", ".txt", ".cmake", ".dict", ".gnuplot", ""}
SKIPPED_FOLDERS = {".git", "build", "__pycache__", "node_modules", "corpus"}

TITLE = re.compile(r"^// floor \d+ · [a-z0-9_]+\.hpp · \S.*$")
WORDS = {
    "leftover": re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"),
    "merge marker": re.compile(r"^(<{7}|>{7}|\|{7})( |$)|^={7}$"),
    "absolute path": re.compile(
        r"(?<![\w.\-/*$}])/(?:home|root|work|mnt|opt|srv|media|Users|private|workspace|builds)/\w"),
}
BANNED_NAMES = re.compile(r"\b(?:num|len|sz|idx|(?:num|len|sz|idx)_\w+|\w+_(?:num|len|sz|idx)_?)\b")
# Members of the operating systems' own structures.
SYSTEM_NAMES = {"iov_len", "cmsg_len", "sun_len", "sin_len", "sin6_len", "ss_len", "sa_len",
                "msg_len", "optlen"}
BANNED_IN_PARTS = re.compile(
    r"(?<!::)\bnew\b|::new\b(?!\s*\()|\bdelete\b|"
    r"\b(?:malloc|calloc|realloc|strdup|alloca)\s*\(|(?:\bstd|(?<!\w))::free\s*\(|"
    r"\bstd::(?:function|string|vector|map|unordered_map|deque|list|set|unique_ptr|shared_ptr|"
    r"make_unique|make_shared|any|thread|mutex|cout|cerr|to_string)\b|"
    r"\b(?:throw|try|catch|dynamic_cast|typeid|thread_local)\b|"
    r"#\s*include\s*<(?:iostream|ostream|istream|sstream|fstream|memory|functional|string|vector|"
    r"map|unordered_map|deque|list|set|chrono|thread|mutex|regex|locale|format|any|future)>")
COMMAND = re.compile(r"// (?:(?:c|g|clang)\+\+|expects:) ")
CONTROL = re.compile(r"^\s*(?:else\b|if\b|for\b|while\b|switch\b|do\b|case\b|default\b)")
SCOPE = re.compile(r"\b(?:namespace|struct|class|union|enum)\b[^()]*$|\bextern\s*$|\bconcept\b")
NOT_A_LIST = re.compile(r"\b(?:alignas|__attribute__|__declspec)\s*\((?:[^()]|\([^()]*\))*\)")
MEMBER_INIT = re.compile(r"\).*[:,]\s*[\w:]+\s*(?:<[^<>]*>)?\s*$", re.S)


def files_below(root):
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(part in SKIPPED_FOLDERS or part.startswith("bazel-") for part in parts):
            continue
        generated = parts == ("netio.hpp",)  # its parts are looked at
        if path.is_file() and not path.is_symlink() and path.suffix in TEXT and not generated:
            yield path


def blanked(text):
    """C++ with comments, strings and characters as blanks of the same shape."""
    pattern = re.compile(
        r'R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
        r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def cpp_functions(code):
    """(first line, last line) of each outermost function, from its declaration to its brace."""
    code = re.sub(r"(?m)^[ \t]*#(?:.*\\\n)*.*", lambda found: "\n" * found[0].count("\n"), code)
    stack, start, line, open_count = [], 0, 1, 0
    for at, sign in enumerate(code):
        line += sign == "\n"
        open_count += (sign == "(") - (sign == ")")
        if sign == "{":
            kind = "inside" if any(kind == "function" for kind, _ in stack) else \
                kind_of_block(code[start:at])
            stack.append((kind, line - code[start:at].strip().count("\n")))
        elif sign == "}" and stack:
            kind, first = stack.pop()
            if kind == "function":
                yield first, line
        if (sign == ";" and open_count == 0) or (sign in "{}" and kind != "member"):
            start = at + 1


def kind_of_block(head):
    """What the brace after `head` opens: a function, a member of an initialiser list, or else."""
    head = NOT_A_LIST.sub(" ", head)
    if ")" not in head or CONTROL.match(head) or SCOPE.search(head):
        return "else"
    if MEMBER_INIT.search(head):
        return "member"
    return "else" if re.search(r"[=,(]\s*$", head) else "function"


def shell_functions(text):
    first = 0
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"^\w+\(\) *[{(]$", line):
            first = number
        elif line in ("}", ")") and first:
            yield first, number
            first = 0


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno


class Tidy:
    def __init__(self, root):
        self.root = root
        self.found = []

    def say(self, path, line, what):
        self.found.append(f"{path.relative_to(self.root).as_posix()}:{line}: {what}")

    def look(self):
        for path in files_below(self.root):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # not a text
            self.look_at_lines(path, text)
            self.look_at_functions(path, text)
            if path.suffix in CPP:
                self.look_at_names(path, blanked(text))
            if path.parent.relative_to(self.root).as_posix() in ("src", "platform"):
                if path.suffix == ".hpp":
                    self.look_at_part(path, text)
        self.look_at_all()
        return self.found

    def look_at_lines(self, path, text):
        is_code = path.suffix in CODE or text.startswith("#!")
        for number, line in enumerate(text.split("\n"), 1):
            is_command = number == 1 and COMMAND.match(line)  # has to stay one line
            if is_code and len(line) > COLUMNS_MAX and not is_command:
                self.say(path, number, f"{len(line)} columns, at most {COLUMNS_MAX}")
            if line != line.rstrip():
                self.say(path, number, "trailing blank")
            if "\t" in line:
                self.say(path, number, "tab")
            for what, pattern in WORDS.items():
                found = pattern.search(line)
                if found:
                    self.say(path, number, f"{what}: {found[0]}")
        if text and not text.endswith("\n"):
            self.say(path, text.count("\n") + 1, "no newline at the end")

    def look_at_functions(self, path, text):
        if path.suffix in CPP:
            functions = cpp_functions(blanked(text))
        elif path.suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
            functions = python_functions(text)
        elif path.suffix == ".sh" or text.startswith("#!/usr/bin/env bash"):
            functions = shell_functions(text)
        else:
            return
        for first, last in functions:
            if last - first + 1 > LINES_MAX:
                self.say(path, first, f"function of {last - first + 1} lines, at most {LINES_MAX}")

    def look_at_names(self, path, code):
        for number, line in enumerate(code.split("\n"), 1):
            if re.match(r"\s*#\s*include", line):
                continue
            for found in BANNED_NAMES.finditer(line):
                is_member = re.search(r"(?:\.|->)$", line[:found.start()])
                if found[0] in SYSTEM_NAMES or (is_member and "platform" in path.parts):
                    continue
                self.say(path, number, f"banned name: {found[0]}")

    def look_at_part(self, path, text):
        lines = text.split("\n")
        if not TITLE.match(lines[0]):
            self.say(path, 1, "no header line `// floor N · name.hpp · what it is`")
        may_choose = path.parent.name == "platform" or path.name in ("base.hpp",
                                                                     "default_backend.hpp")
        for number, line in enumerate(blanked(text).split("\n"), 1):
            macro = re.match(r"\s*#\s*define\s+(\w+)", line)
            if macro and not macro[1].startswith("NETIO_"):
                self.say(path, number, f"macro without NETIO_: {macro[1]}")
            if re.match(r"\s*#\s*(?:if|ifdef|ifndef|elif|else)\b", line) and number > 2:
                if not may_choose:
                    self.say(path, number, f"conditional in a part: {line.strip()}")
            if not re.match(r"\s*#\s*include\s*<new>", line):
                for found in BANNED_IN_PARTS.finditer(line.replace("= delete", "        ")):
                    self.say(path, number, f"banned in parts: {found[0].strip()}")

    def look_at_all(self):
        path = self.root / "tests" / "all.cpp"
        if path.exists() and path.read_text(encoding="utf-8") != all_text(self.root):
            self.say(path, 1, "does not list each *_test.cpp once, sorted: "
                              "run tests/tidy.py --write-all")


def all_text(root):
    lines = [
        "// g++ -std=c++20 -I. -Itests/kqueue_double -DNETIO_USE_KQUEUE=1 tests/all.cpp -o all",
        "// Every test as one unit. The list is kept whole by tests/tidy.py: "
        "`tests/tidy.py --write-all`.",
        '#include "tests/main.cpp"',
        "",
    ]
    lines += [f'#include "tests/{path.name}"' for path in sorted(root.glob("tests/*_test.cpp"))]
    return "\n".join(lines) + "\n"


def main():
    arguments = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parent.parent
    if arguments[:1] == ["--root"] and len(arguments) == 2:
        root = pathlib.Path(arguments[1]).resolve()
    elif arguments == ["--write-all"]:
        (root / "tests" / "all.cpp").write_text(all_text(root), encoding="utf-8")
        return
    elif arguments:
        print("usage: tests/tidy.py [--root DIR | --write-all]", file=sys.stderr)
        sys.exit(2)
    found = Tidy(root).look()
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
