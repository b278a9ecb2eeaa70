#!/usr/bin/env python3
"""Windows, under Wine: the examples, the contract's suite, server and PROXY tests, cross-built by
mingw-w64; haproxy in front of proxy_echo; connections opened and reset (NETIO_LONG=1: 20,000).

    tests/windows_test.py [resets]    everything, or the last of these alone

Wine is not Windows: it runs Windows programs over this system's own sockets."""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading

import programs
import tap
from failed_cases import why_failed

COMPILER = "x86_64-w64-mingw32-g++-posix"
COMPILER_32 = "i686-w64-mingw32-g++-posix"
ROOT = programs.ROOT
BUILD = programs.BUILD
STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wundef", "-Werror",
          "-I.", "-static"]
BARE = ["-fno-exceptions", "-fno-rtti"]
ALLOCATES = re.compile(r"^(malloc|calloc|realloc|free|_aligned_malloc|strdup|_Zn[wa].*|_Zd[la].*)$")
LONG = os.environ.get("NETIO_LONG") == "1"
SUITES = {
    "the contract's suite and what only completion ports show":
        ["conformance_iocp_test", "iocp_test", "iocp_pipes_test"],
    "shared memory": ["shm_windows_test", "shm_ring_test"],
    "the service's suite": ["service_iocp_test"],
}
if LONG:  # what knows no system does the same on each, but for the compiler
    SUITES["the server and PROXY tests over the simulator"] = [
        "server_test", "server_rules_test", "server_proxy_test", "proxy_test"]

# What Wine does otherwise than Windows, and what of the service's suite it therefore cannot show.
WINE_HAS_NOT = {
    "leak*": "connections that are reset before their accept are never accepted",
}

ENVIRONMENT = {**os.environ, "WINEPREFIX": str(BUILD / "wine"), "WINEDEBUG": "-all"}

HAPROXY = """\
global
    maxconn 100
defaults
    mode tcp
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend clients
    bind 127.0.0.1:{front}
    default_backend windows
backend windows
    server echo 127.0.0.1:{echo} send-proxy-v2
"""


def compile_with(words, output, compiler=COMPILER):
    """None if the compiler made `output`, else what it said."""
    done = subprocess.run([compiler, *words, "-o", str(output)], cwd=ROOT, text=True,
                          capture_output=True)
    return None if done.returncode == 0 else done.stderr or "no reason given"


def wine(program, *arguments, seconds=500):
    return subprocess.run(["wine", str(program), *arguments], cwd=BUILD, env=ENVIRONMENT,
                          text=True, capture_output=True, timeout=seconds)


def start(name, *arguments):
    """A program under Wine and the port its first line names."""
    running = programs.Program("wine", BUILD / f"{name}.exe", *arguments, env=ENVIRONMENT,
                               cwd=BUILD)
    return running, running.port


# ---- building ------------------------------------------------------------------------------------

def build_examples():
    for name in ("echo", "gateway", "udp_echo", "proxy_echo"):
        made = BUILD / f"{name}.o"
        said = compile_with([*STRICT, *BARE, "-c", f"examples/{name}.cpp"], made)
        said = said or compile_with(["-static", str(made), "-lws2_32"], BUILD / f"{name}.exe")
        tap.check(f"windows: examples/{name}.cpp builds with -lws2_32 alone", said is None, said)
    names = subprocess.run(["x86_64-w64-mingw32-nm", "-u", BUILD / "echo.o"], text=True,
                           capture_output=True).stdout.split()
    asked = [name for name in names if ALLOCATES.match(name)]
    tap.check("windows: echo's object asks for no allocation", names and not asked, asked)
    planted = BUILD / "planted.cpp"
    planted.write_text("#include <cstdlib>\nvoid* get() { return std::malloc(3); }\n")
    compile_with(["-c", str(planted)], BUILD / "planted.o")
    names = subprocess.run(["x86_64-w64-mingw32-nm", "-u", BUILD / "planted.o"], text=True,
                           capture_output=True).stdout.split()
    tap.check("windows: a planted malloc is found in an object",
              any(ALLOCATES.match(name) for name in names), names)


def build_for_32_bits():
    """Where the system's functions have a calling convention of their own. Nothing runs it here."""
    if not shutil.which(COMPILER_32):
        tap.skip("windows: 32 bits", "not installed: g++-mingw-w64-i686")
        return
    said = compile_with([*STRICT, *BARE, "examples/gateway.cpp", "-lws2_32"],
                        BUILD / "gateway32.exe", COMPILER_32)
    tap.check("windows: examples/gateway.cpp builds for 32 bits", said is None, said)


def build_beside_the_systems_headers():
    left = " || ".join(f"defined({name})" for name in ("min", "max", "ERROR", "SOCKET_ERROR",
                                                       "WIN32_LEAN_AND_MEAN", "_WINDOWS_"))
    orders = {
        "before <windows.h>, leaving no macro": f'#include "netio.hpp"\n#if {left}\n#error left\n'
            "#endif\n#include <winsock2.h>\n#include <windows.h>\n",
        "after <windows.h>": '#include <windows.h>\n#include "netio.hpp"\n#ifndef ERROR\n#error\n'
            "#endif\n",
        "after <winsock2.h>": '#include <winsock2.h>\n#include <ws2tcpip.h>\n#include <mswsock.h>\n'
            '#include "netio.hpp"\n',
    }
    for order, text in orders.items():
        source = BUILD / "order.cpp"
        source.write_text(text + "int main() {}\n")
        said = compile_with([*STRICT, *BARE, str(source), "-lws2_32"], BUILD / "order.exe")
        tap.check(f"windows: netio.hpp {order}", said is None, said)


# ---- running -------------------------------------------------------------------------------------

def compile_test(source, output):
    # The compiler looks into no folder of this system: it finds doctest, and nothing else, here.
    folder = BUILD / "include"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "doctest").symlink_to("/usr/include/doctest")
    return compile_with([*STRICT, "-isystem", str(folder), "-c", str(source)], output)


PLANTED = """\
#include <doctest/doctest.h>
TEST_CASE("good") { CHECK(true); }
TEST_CASE("planted") {
    const int held = 2;
    CAPTURE(held);
    CHECK(held == 3);
}
"""


def run_planted():
    """A suite that fails says which case, where and what it saw. Uses what `run_suite` built."""
    source = BUILD / "planted_case.cpp"
    source.write_text(PLANTED)
    objects = [str(BUILD / "main.o"), str(BUILD / "planted_case.o")]
    program = BUILD / "planted_case.exe"
    said = compile_test(source, objects[1]) or compile_with(["-static", *objects], program)
    if said is None:
        done = wine(program)
        said = why_failed(done.stdout + done.stderr)
    wanted = r"planted: \S*planted_case.cpp\S*6\S*: ERROR: CHECK\( held == 3 \).* 2 == 3 .*:= 2"
    named = re.fullmatch(wanted, said)
    tap.check("windows: a planted failure is named, with its line", named, said)


built = set()  # objects of this run


def run_suite(name, files):
    objects = []
    for file in ["main", *files]:
        objects.append(str(BUILD / f"{file}.o"))
        if objects[-1] in built:
            continue  # main.o is every suite's
        said = compile_test(f"tests/{file}.cpp", objects[-1])
        if said is not None:
            tap.check(f"windows: {name}: tests/{file}.cpp builds", False, said)
            return
        built.add(objects[-1])
    program = BUILD / f"{files[0]}.exe"
    said = compile_with(["-static", *objects, "-lws2_32"], program)
    left_out = WINE_HAS_NOT if "service_iocp_test" in files else {}
    for pattern, why in left_out.items():
        tap.skip(f"windows: {name}: {pattern}", f"under Wine {why}")
    chosen = ["-tce=" + ",".join(left_out)] if left_out else []
    done = wine(program, *chosen) if said is None else None
    counts = re.search(r"test cases: *(\d+) \| *(\d+) passed \| *(\d+) failed",
                       done.stdout if done else "")
    # A filter that leaves nothing over is a success to doctest.
    good = done is not None and done.returncode == 0 and counts is not None and int(counts[2]) > 0
    tap.check(f"windows: {name}", good, said or why_failed(done.stdout + done.stderr))
    if counts:
        print(f"# report: windows: {name}: {counts[2]} of {counts[1]} cases under Wine")
    for line in re.findall(r"MESSAGE: (calls of .*)", done.stdout if done else ""):
        print(f"# report: windows: {line}")


def run_echo():
    """A copy with another port: 7000 may be somebody else's."""
    port = programs.free_port()
    source = BUILD / "echo_copy.cpp"
    source.write_text((ROOT / "examples" / "echo.cpp").read_text(encoding="utf-8")
                      .replace(".port = 7000", f".port = {port}"), encoding="utf-8")
    said = compile_with([*STRICT, *BARE, str(source), "-lws2_32"], BUILD / "echo.exe")
    if said is not None:
        tap.check("windows: a copy of echo builds", False, said)
        return
    with programs.Program("wine", BUILD / "echo.exe", first_line=False, env=ENVIRONMENT,
                          cwd=BUILD):
        tap.check("windows: echo serves", programs.until(lambda: programs.accepts(port)))
        held = [echoes(port, b"x" * count) for count in (1, 64, 100_000)]
        tap.check("windows: echo echoes to Linux clients", all(held), held)


def echoes(port, payload):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        sender = threading.Thread(target=lambda: (client.sendall(payload),
                                                  client.shutdown(socket.SHUT_WR)))
        sender.start()
        got = b"".join(iter(lambda: client.recv(65536), b""))
        sender.join()
        return got == payload


def run_gateway():
    payload = bytes(range(256)) * 2000
    with socket.create_server(("127.0.0.1", 0)) as behind:
        def serve():
            with contextlib.suppress(OSError):
                while True:
                    one, _ = behind.accept()
                    with one:
                        for part in iter(lambda: one.recv(65536), b""):
                            one.sendall(part)
        threading.Thread(target=serve, daemon=True).start()
        to = f"127.0.0.1:{behind.getsockname()[1]}"
        for workers in ("1", "3"):
            running, port = start("gateway", "--listen", "127.0.0.1:0", "--to", to,
                                  "--workers", workers)
            with running:
                held = [echoes(port, payload) for _ in range(8)]
                tap.check(f"windows: gateway with {workers} worker(s) relays to a Linux server",
                          all(held), held)


def run_udp_echo():
    running, port = start("udp_echo", "--listen", "127.0.0.1:0")
    with running, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.connect(("127.0.0.1", port))
        held = []
        for payload in (b"hello", b"", b"x" * 1400):
            client.send(payload)
            held.append(client.recv(2000) == payload)
        tap.check("windows: udp_echo answers datagrams, empty ones too", all(held), held)


def run_proxy_echo():
    running, port = start("proxy_echo", "--listen", "127.0.0.1:0")
    with running:
        said = programs.turned_away(port, b"GET / HTTP/1.0\r\n\r\n")
        tap.check("windows: proxy_echo answers nothing without a header", said == b"RESET", said)
        if not shutil.which("haproxy"):
            tap.skip("windows: haproxy in front of proxy_echo", "not installed: haproxy")
            return
        front = programs.free_port()
        configuration = BUILD / "haproxy.cfg"
        configuration.write_text(HAPROXY.format(front=front, echo=port))
        with programs.Program("haproxy", "-db", "-f", configuration, first_line=False):
            greet_through(front)


def greet_through(front):
    tap.check("windows: haproxy serves", programs.until(lambda: programs.accepts(front)))
    with programs.connect(front) as client:
        mine = "{}:{}".format(*client.getsockname())
        reader = client.makefile("rb")
        greeting = reader.readline().decode()
        tap.check("windows: through haproxy's send-proxy-v2 the client's address arrives",
                  mine in greeting, f"{mine} not in {greeting}")
        client.sendall(b"after the header\n")
        tap.check("windows: and its bytes are echoed after that",
                  reader.readline() == b"after the header\n")


def open_and_reset(port, count):
    """So many after an echo, and beside them some at once: those may be gone before an accept."""
    for at in range(count + count // 8):
        with programs.connect(port) as client:
            if at < count:
                client.sendall(b"x" * 64)
                client.recv(64)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def tell(port, what):
    with programs.connect(port) as client:
        client.sendall(what)
        programs.read_all(client)


def run_resets():
    count = 20_000 if LONG else 1_000
    said = compile_with([*STRICT, "tests/windows/resets.cpp", "-lws2_32"], BUILD / "resets.exe")
    if said is not None:
        tap.check("windows: tests/windows/resets.cpp builds", False, said)
        return
    running, port = start("resets")
    with running:
        open_and_reset(port, 50)  # what the system sets up with its first ones is not ours
        tell(port, b"mark")
        running.wait_line("resets: marked")
        clients = [threading.Thread(target=open_and_reset, args=(port, count // 4))
                   for _ in range(4)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        tell(port, b"done")
        line = running.wait_line("resets: opened") or "no last line"
    found = re.search(r"opened (\d+), closed (\d+), (.*)", line)
    good = (found is not None and found[1] == found[2] and int(found[1]) >= count and
            found[3] == "handles +0, heap +0, connections 0, input buffers 0, output buffers 0, "
                        "accept errors 0")
    tap.check(f"windows: {count} connections opened and reset leave nothing", good, line)
    print(f"# report: windows: {line}")


def main():
    missing = [package for package, program in
               (("g++-mingw-w64-x86-64", COMPILER), ("wine", "wine"), ("wine64", "wineserver"))
               if not shutil.which(program)]
    if missing:
        tap.skip("windows: everything", f"not installed: {' '.join(missing)}")
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    alone = sys.argv[1:] == ["resets"]
    if not alone:
        build_examples()
        build_for_32_bits()
        build_beside_the_systems_headers()
    # A server of Wine that stays: one that a program starts would keep that program's output open.
    # It wants its folder to be there.
    pathlib.Path(ENVIRONMENT["WINEPREFIX"]).mkdir(exist_ok=True)
    for words in (["wineserver", "-p"], ["wine", "wineboot", "-i"]):
        subprocess.run(words, env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=300)
    try:
        for part in () if alone else (run_echo, run_gateway, run_udp_echo, run_proxy_echo):
            part()
        run_resets()
        for name, files in () if alone else SUITES.items():
            run_suite(name, files)
        if not alone:
            run_planted()
    finally:
        subprocess.run(["wineserver", "-k"], env=ENVIRONMENT, timeout=60)


main()
tap.finish()
