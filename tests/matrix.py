#!/usr/bin/env python3
"""What passes where: one table of suites (rows) and platforms (columns).

    tests/matrix.py                    runs every column, prints the table and keeps it in
                                       docs/platforms.md, between its two markers
    tests/matrix.py --columns A,B      runs these columns whole; a line a suite, as tests do
    tests/matrix.py --short A,B        the same of the shorter unit, for the suite
    tests/matrix.py --rows X,Y A,B     these suites alone, of those that are named by their files
    tests/matrix.py --list             the columns

A row and a column are one line each in ROWS and COLUMNS. A column is one program: every test as one
unit, or those files that it names, built and run as the column says. A case belongs to each row
whose words its name begins with, or whose files it stands in; where a column is one backend of
several in the same program, the ending of the name decides.
"""
import concurrent.futures
import contextlib
import dataclasses
import html
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("NETIO_BUILD", ROOT / "build/matrix"))
PAGE = ROOT / "docs/platforms.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"

PARTS = ("base", "error", "endpoint", "crc32c", "slab", "wheel", "buffer_pool", "post_queue",
         "kill_marks", "source_table", "backoff", "datagram_budget", "proxy", "envelope")
SHORT = (*PARTS, "simulator", "conformance_simulator", "lifecycle", "relay", "rpc_kernel",
         "ring", "shm_ring")
# The few cases that try so much that they take minutes under an emulator, and most of a run.
SLOW = ("whatever peers*", "each broken variant*", "envelope: UTF-8 agrees*",
        "envelope: every octet*", "simulator: under every mixture*",
        "interleavings: two writers* two cells*", "rpc kernel: random programs*",
        "shm ring: whatever word*", "shm ring: random writes*")


@dataclasses.dataclass(frozen=True)
class Row:
    says: str
    names: str = ""        # what the name of a case begins with
    files: tuple = ()      # or the tests it stands in: "wheel" is tests/wheel_test.cpp


@dataclasses.dataclass(frozen=True)
class Column:
    says: str
    program: str           # columns with one program share it
    build: tuple           # the compiler and what only this column wants
    run: tuple = ()        # what runs the program, if this machine can't
    endings: tuple = ()    # only names with one of these endings count as this column's
    files: tuple = ()      # tests that this platform has; none named: tests/all.cpp
    apart: str = ""        # cases that want a process of their own, a filter of doctest
    left_out: str = ""     # cases that can't run here, and in `why` the reason
    why: str = ""
    as_in: str = ""        # the column where rows of files stand, for a second one of a program
    allocations: str = ""  # the program of tests/no_heap, or why there is none


ROWS = (
    Row("parts", files=PARTS),
    *(Row(f"P{number}", names=f"P{number} ") for number in range(1, 16)),
    Row("calls", names=r"(listen|open|close|attach|release|wait|wake|ready|available|"
                       r"(start|stop|end)_\w+|close_handle|wait_handle) "),
    Row("server", names="server "),
    Row("pool driver", files=("blocking", "blocking_pool")),
    Row("local sockets", files=("local_socket", "activation", "pass_handle", "handoff_list",
                                "handoff")),
    Row("gate", names="gate "),
    Row("kill", names="kill "),
    Row("control", names="control "),
    Row("caps", names="caps "),
    Row("datagrams", names="datagrams "),
    Row("client", names="client "),
    Row("TLS slot", names="TLS "),
    Row("PROXY vectors", names="PROXY vectors "),
    Row("simulator", files=("simulator", "server", "server_rules", "server_proxy", "server_gate",
                            "server_control", "server_caps", "server_datagrams", "server_tls",
                            "dial", "marker", "relay")),
    Row("RPC kernel", files=("rpc_kernel", "rpc_model", "rpc_free_play", "rpc_reports",
                             "rpc_coverage")),
    Row("rings", files=("ring",)),
    Row("RPC transports", files=("rpc_link", "rpc_peer", "rpc_peer_trial", "rpc_tcp")),
    Row("shared memory", files=("shm_ring", "shm_interleavings", "shm_link", "shm_windows")),
    Row("lifecycle", files=("lifecycle",)),
    Row("leak", names="leak "),
    Row("wiping", names="wiping "),
)
NO_ALLOCATION = "no allocation"

KQUEUE = ("-Itests/kqueue_double", "-DNETIO_USE_KQUEUE=1")
NATIVE = ("g++", *KQUEUE)
WIRE = ("-static", *KQUEUE)
TRAP = "the trap of tests/no_heap replaces glibc's malloc on this machine"
CRASHES = "qemu-i386 7.2 gives a thread's TLS to the main thread at the next signal"
# The double takes its count of waiting connections from there.
COUNTS = "double counts the connections*,kqueue accepts as many as wait*"
NO_COUNTS = "qemu-user 7.2 carries no TCP_INFO"

COLUMNS = (
    Column("epoll", "native", NATIVE, endings=("epoll",), allocations="epoll"),
    Column("kqueue, double", "native", NATIVE, endings=("kqueue",), as_in="epoll",
           allocations="kqueue"),
    Column("io_uring", "native", NATIVE, endings=("io_uring",), as_in="epoll",
           allocations="io_uring"),
    Column("poll", "native", NATIVE, endings=("poll",), as_in="epoll", allocations="poll"),
    Column("blocking", "native", NATIVE, endings=("blocking",), as_in="epoll",
           allocations="blocking"),
    Column("iocp, Wine", "iocp", ("x86_64-w64-mingw32-g++-posix", "-static", "-lws2_32"),
           run=("wine",), endings=("iocp",),
           files=("iocp", "iocp_pipes", "conformance_iocp", "service_iocp", "server",
                  "server_rules", "server_proxy", "server_gate", "server_control",
                  "server_caps", "server_datagrams", "proxy", "rpc_kernel", "rpc_model",
                  "rpc_free_play", "rpc_reports", "rpc_coverage", "ring", "rpc_link",
                  "rpc_peer", "rpc_peer_trial", "rpc_tcp", "shm_ring", "shm_windows"),
           left_out="leak*",
           why="Wine never accepts a connection that was reset before (tests/windows_test.py)"),
    Column("i686", "i686", ("i686-linux-gnu-g++", *WIRE), run=("qemu-i386",),
           apart="*thread*", left_out=f"*sends 8 MiB to a slow reader*,*signal handler*,{COUNTS}",
           why=f"{CRASHES}; {NO_COUNTS}"),
    Column("aarch64", "aarch64", ("aarch64-linux-gnu-g++", *WIRE), run=("qemu-aarch64",),
           left_out=COUNTS, why=NO_COUNTS),
    Column("armv7", "armv7", ("arm-linux-gnueabihf-g++", *WIRE, "-Wno-psabi"), run=("qemu-arm",),
           left_out=COUNTS, why=NO_COUNTS),
    Column("s390x, big-endian", "s390x", ("s390x-linux-gnu-g++", *WIRE), run=("qemu-s390x",),
           left_out=COUNTS, why=NO_COUNTS),
    Column("musl", "musl", ("zig", "-target", "x86_64-linux-musl", *WIRE)),
)


# ---- building and running ------------------------------------------------------------------------

class Unavailable(Exception):
    pass


def command_of(column):
    """The compiler's words; zig comes from where tests/zig.sh put it."""
    # Compilers that don't look into this system's folders find doctest, and nothing else, here.
    include = BUILD / "include"
    include.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another column may be just making it
        (include / "doctest").symlink_to("/usr/include/doctest")
    if column.build[0] != "zig":
        for tool in (column.build[0], *column.run[:1]):
            if not shutil.which(tool):
                raise Unavailable(f"{tool} is not installed")
        return [*column.build, "-isystem", str(include)]
    found = subprocess.run([ROOT / "tests/zig.sh"], text=True, capture_output=True)
    if found.returncode != 0:
        raise Unavailable(found.stderr.strip())
    return [found.stdout.strip(), "c++", *column.build[1:], "-isystem", str(include)]


def units_of(column, names):
    """What to compile: tests/all.cpp, or the same of fewer tests and doctest's main.

    The main stands alone: on Windows it brings the system's macros, and a test looks for those."""
    if not names:
        return ["tests/all.cpp"]
    there = [name for name in names if (ROOT / f"tests/{name}_test.cpp").exists()]
    if not there:
        raise Unavailable("its tests are not here")
    unit = BUILD / f"{column.program}.cpp"
    unit.write_text("".join(f'#include "tests/{name}_test.cpp"\n' for name in there),
                    encoding="utf-8")
    return [str(unit), "tests/main.cpp"]


def build(column, names, optimised=""):
    """`optimised`: an emulator takes longer than the compiler where a whole suite runs."""
    program = BUILD / (column.program + (".exe" if "wine" in column.run else ""))
    words = command_of(column)
    libraries = [word for word in words if word.startswith("-l")]
    words = [word for word in words if word not in libraries]
    words += [optimised] if optimised else []
    done = subprocess.run([*words, "-std=c++20", "-I.", *units_of(column, names), "-o",
                           str(program), *libraries], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (BUILD / f"{column.program}.log").write_text(done.stdout, encoding="utf-8")
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if "error" in line]
        raise Unavailable("does not build: " + (said or ["no reason given"])[0])
    return program


@dataclasses.dataclass
class Case:
    name: str
    file: str
    passed: bool
    places: list[str] = dataclasses.field(default_factory=list)  # of what did not hold

    def says(self):
        return " ".join([self.name, *self.places])


CASE = re.compile(r'<TestCase name="([^"]*)" filename="([^"]*)"[^>]*?(skipped="true")?/?>')
FAULT = re.compile(r'<Expression success="false" type="(\w+)" filename="([^"]*)" line="(\d+)"')
RESULT = re.compile(r'<OverallResultsAsserts [^>]*test_case_success="(\w+)"')


def cases_of(said):
    """Cases in doctest's XML; one without a result has ended the program."""
    out, open_case = [], None
    for line in said.splitlines():
        begun = CASE.search(line)
        if begun and not begun[3]:
            file = re.sub(r"_test$", "", pathlib.PurePath(begun[2].replace("\\", "/")).stem)
            open_case = Case(html.unescape(begun[1]), file, False)
            out.append(open_case)
        fault = FAULT.search(line)
        if fault and open_case:
            open_case.places.append(f"({fault[1]}, {html.unescape(fault[2])}:{fault[3]})")
        result = RESULT.search(line)
        if result and open_case:
            open_case.passed = result[1] == "true"
            open_case = None
    return out


def run_once(column, program, *filters):
    seconds = int(os.environ.get("NETIO_MATRIX_SECONDS", "1500"))
    environment = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(BUILD / "wine")}
    if column.run and column.run[0] != "wine":
        environment["NETIO_EMULATED"] = "1"
    name = BUILD / f"{column.program}.xml"
    with open(name, "w", encoding="utf-8") as out:
        try:
            code = subprocess.run([*column.run, str(program), "--reporters=xml", *filters],
                                  cwd=ROOT, env=environment, timeout=seconds, stdout=out,
                                  stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            code = -1
    return code, cases_of(name.read_text(encoding="utf-8", errors="replace"))


def run(column, program, left_out=""):
    """Every case, whatever ends the program on the way: it goes on behind the one that did."""
    out = []
    groups = [("", (column.left_out, column.apart, left_out))]
    if column.apart:
        groups.append((column.apart, (column.left_out, left_out)))
    for wanted, unwanted in groups:
        filters = [f"-tc={wanted}"] if wanted else []
        filters += [f"-tce={','.join(filter(None, unwanted))}"] if any(unwanted) else []
        begun = 1
        while True:
            code, cases = run_once(column, program, *filters, f"--first={begun}")
            out += cases
            if code in (0, 1):
                break
            if not cases:
                out.append(Case(f"the program ended by {code}", "", False))
                break
            cases[-1].passed = False
            begun += len(cases)
    return out


# ---- the table -----------------------------------------------------------------------------------

def belongs(case, row, column):
    if row.files:
        return case.file in row.files
    if not re.match(row.names, case.name):
        return False
    return not column.endings or case.name.endswith(tuple(f".{end}" for end in column.endings))


def cell(cases, row, column):
    """(passed, total) of one row."""
    own = [case for case in cases if belongs(case, row, column)]
    return sum(case.passed for case in own), len(own)


def allocations(column):
    """(passed, total) of the trap's program of this backend; a reason if there is none."""
    if not column.allocations:
        return TRAP
    source = ROOT / f"tests/no_heap/server_{column.allocations}.cpp"
    if not source.exists() and column.allocations == "epoll":
        source = ROOT / "tests/no_heap/server.cpp"
    if not source.exists():
        return "no program of tests/no_heap"
    program = BUILD / f"no_heap_{column.allocations}"
    words = ["g++", "-std=c++20", "-O1", "-I.", *KQUEUE, str(source),
             "tests/no_heap/trap.cpp", "-o", str(program), "-pthread"]
    if subprocess.run(words, cwd=ROOT, stderr=subprocess.DEVNULL).returncode != 0:
        return "does not build"
    said = subprocess.run([program], cwd=ROOT, text=True, capture_output=True).stdout
    passed = len(re.findall(r"^ok ", said, re.M))
    return passed, passed + len(re.findall(r"^not ok ", said, re.M))


class Table:
    def __init__(self):
        self.cells = {}
        self.reasons = []
        self.failed = []

    def note(self, why):
        if why not in self.reasons:
            self.reasons.append(why)
        return f"[{self.reasons.index(why) + 1}]"

    def put(self, row, column, what):
        if isinstance(what, str):
            text = self.note(what)
        elif what[1] == 0:
            text = self.note("no such case in this program")
        else:
            text = f"{what[0]}/{what[1]}"
            if what[0] != what[1]:
                self.failed.append(f"{row}, {column.says}: {text}")
        self.cells[row, column.says] = text

    def fill(self, column, cases):
        self.failed += [f"{column.says}: {case.says()}" for case in cases if not case.passed]
        for row in ROWS:
            if row.files and column.as_in:
                self.put(row.says, column, f"the same program as in column {column.as_in}")
            else:
                self.put(row.says, column, cell(cases, row, column))
        self.put(NO_ALLOCATION, column, allocations(column))
        if column.why:
            self.cells["left out", column.says] = self.note(f"`{column.left_out}`: {column.why}")

    def text(self):
        names = [column.says for column in COLUMNS]
        lines = ["| suite | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for row in [*(row.says for row in ROWS), NO_ALLOCATION, "left out"]:
            cells = [self.cells.get((row, name), "–") for name in names]
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
        lines += ["", "Each cell: passed/total, or why it is empty:", ""]
        lines += [f"{number}. {why}" for number, why in enumerate(self.reasons, 1)]
        return "\n".join(lines)


def keep(text):
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def outcome(column):
    """Its cases, or why there are none."""
    begun = time.monotonic()
    try:
        cases = run(column, build(column, column.files, "-O1" if column.run else ""))
    except Unavailable as why:
        return str(why)
    print(f"# {column.program}: {sum(case.passed for case in cases)} of {len(cases)} cases, "
          f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return cases


def whole_table():
    programs = {column.program: column for column in reversed(COLUMNS)}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as beside:
        done = dict(zip(programs, beside.map(outcome, programs.values())))
    table = Table()
    for column in COLUMNS:
        cases = done[column.program]
        if isinstance(cases, str):
            for row in [*(row.says for row in ROWS), NO_ALLOCATION]:
                table.put(row, column, cases)
            if cases.startswith("does not build"):
                table.failed.append(f"{column.says}: {cases}")
        else:
            table.fill(column, cases)
    print(table.text())
    keep(table.text())
    for line in table.failed:
        print(f"FAILED  {line}")
    return 1 if table.failed else 0


# ---- as tests ------------------------------------------------------------------------------------

def say_column(column, files, what, least=100, left_out=""):
    """A line for each row that has cases; fewer than `least` are a failure, too."""
    name = f"{column.says} ({what})"
    try:
        cases = run(column, build(column, files), left_out)
    except Unavailable as why:
        if str(why).startswith("does not build"):
            tap.check(name, False, why)
        else:
            tap.skip(name, why)
        return
    tap.check(f"{name}: there are cases", len(cases) >= least, len(cases))
    for row in ROWS:
        passed, total = cell(cases, row, column)
        wrong = [case.says() for case in cases if belongs(case, row, column) and not case.passed]
        if total:
            tap.check(f"{name}: {row.says}, {total} cases", passed == total, " / ".join(wrong))
    wrong = [case.says() for case in cases if not case.passed]
    tap.check(f"{name}: all {len(cases)} cases", not wrong, " / ".join(wrong))


def say_whole(column):
    say_column(column, column.files, "whole")


def say_short(column):
    say_column(column, SHORT, "short", left_out=",".join(SLOW))


def say_rows(column, rows):
    """Only these, so only their files are built."""
    files = [file for row in rows for file in row.files
             if not column.files or file in column.files]
    if files:
        say_column(column, files, "of it " + ", ".join(row.says for row in rows), least=1)
    else:
        tap.skip(column.says, "it has no such files")


def rows_named(text):
    for name in text.split(","):
        found = [row for row in ROWS if row.files and row.says == name]
        if not found:
            sys.exit(f"no suite {name}; there are: "
                     f"{', '.join(row.says for row in ROWS if row.files)}")
        yield found[0]


def columns_named(text):
    for name in text.split(","):
        found = [column for column in COLUMNS if name in (column.program, column.says)]
        if not found:
            sys.exit(f"no column {name}; there are: "
                     f"{', '.join(column.program for column in COLUMNS)}")
        yield found[0]


def main():
    BUILD.mkdir(parents=True, exist_ok=True)
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(whole_table())
    if arguments == ["--list"]:
        print("\n".join(f"{column.program}: {column.says}" for column in COLUMNS))
    elif len(arguments) == 2 and arguments[0] in ("--columns", "--short"):
        for column in columns_named(arguments[1]):
            (say_short if arguments[0] == "--short" else say_whole)(column)
        tap.finish()
    elif len(arguments) == 3 and arguments[0] == "--rows":
        rows = list(rows_named(arguments[1]))
        for column in columns_named(arguments[2]):
            say_rows(column, rows)
        tap.finish()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
