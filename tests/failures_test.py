#!/usr/bin/env python3
"""What can't work is one line that names the thing, and an exit code that is not 0."""
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import tempfile

import programs
import tap

NAMES = ("gateway", "proxy_echo", "chat", "own_loop", "own_backend", "udp_echo", "rpc_http")
CLIENTS = ("rpc_stats", "rpc_pipeline")  # they serve, too, in memory that is part of the program
FLAGS = {
    "gateway": "--listen --to --proxy-in --trusted --proxy-out --backend --connections --workers "
               "--buffers --idle-ms --write-ms --memory --drain-ms",
    "proxy_echo": "--listen --trusted --versions --memory --drain-ms",
    "chat": "--listen --workers --connections --memory --drain-ms",
    "own_loop": "--listen --tick-ms --memory --drain-ms",
    "own_backend": "--listen --memory --drain-ms",
    "udp_echo": "--listen --memory --drain-ms --source-rate",
    "rpc_http": "--listen --memory --drain-ms",
    "rpc_stats": "--over --listen --connect --calls",
    "rpc_pipeline": "--listen --connect --calls",
}
PATHS = {name: programs.build(name) for name in NAMES + CLIENTS}
NOBODY = 65534


def fails(what, path, arguments, line, code=1, **more):
    """The program ends by itself, with that one line and code, and serves nothing before."""
    try:
        ran = subprocess.run([str(path), *map(str, arguments)], capture_output=True, text=True,
                             timeout=programs.SECONDS_MAX, check=False, **more)
        said, ended = ran.stderr, ran.returncode
        holds = ended == code and said == line + "\n" and ran.stdout == ""
    except subprocess.TimeoutExpired:
        holds, said, ended = False, "still running", None
    tap.check(f"{pathlib.Path(path).name}: {what}", holds,
              f"exit {ended}, said {said!r}, wanted {line!r}")


def test_arguments():
    for name, path in PATHS.items():
        fails("unknown flag", path, ["--lisen", "127.0.0.1:0"],
              f"{name}: unknown flag --lisen; there are: {FLAGS[name]}", 2)
        fails("missing value", path, ["--listen"], f"{name}: --listen: value missing", 2)
        fails("bad address", path, ["--listen", "127.0.0.256:0"],
              f"{name}: --listen 127.0.0.256:0: not an address", 2)
        fails("port out of range", path, ["--listen", "127.0.0.1:65536"],
              f"{name}: --listen 127.0.0.1:65536: not an address", 2)
        fails("host name", path, ["--listen", "localhost:0"],
              f"{name}: --listen localhost:0: a host name where an address is due", 2)
    for name in NAMES:
        fails("not a number", PATHS[name], ["--drain-ms", "1s"],
              f"{name}: --drain-ms 1s: not a number from 0 to 3600000", 2)
    test_clients_arguments()
    gateway = PATHS["gateway"]
    fails("host name to go to", gateway, ["--to", "db.example:5432"],
          "gateway: --to db.example:5432: a host name where an address is due", 2)
    fails("number out of range", gateway, ["--connections", "0"],
          "gateway: --connections 0: not a number from 1 to 1000000", 2)
    fails("neither of two words", gateway, ["--proxy-in", "on"],
          "gateway: --proxy-in on: neither off nor required", 2)
    fails("none of three words", PATHS["proxy_echo"], ["--versions", "v3"],
          "proxy_echo: --versions v3: not one of either, v1, v2", 2)
    fails("a network with host bits", PATHS["proxy_echo"],
          ["--listen", "127.0.0.1:0", "--trusted", "10.0.0.1/8"],
          "proxy_echo: trusted 10.0.0.1/8: not an address")
    fails("a network by name", PATHS["proxy_echo"],
          ["--listen", "127.0.0.1:0", "--trusted", "10.0.0.0/8, balancer"],
          "proxy_echo: trusted balancer: a host name where an address is due")


def test_clients_arguments():
    for name, most in (("rpc_stats", 100_000_000), ("rpc_pipeline", 63)):
        for calls in ("0", str(most + 1), "1s", "-1", ""):
            said = f"{name}: --calls {calls}".rstrip()
            fails(f"'{calls}' calls", PATHS[name], ["--calls", calls],
                  f"{said}: not a number from 1 to {most}", 2)
        fails("bad address to go to", PATHS[name], ["--connect", "127.0.0.1"],
              f"{name}: --connect 127.0.0.1: not an address", 2)
    fails("none of its transports", PATHS["rpc_stats"], ["--over", "pigeon"],
          "rpc_stats: --over pigeon: none of memory, queue, shared, tcp", 2)


def test_ports():
    for name in PATHS:
        kind = socket.SOCK_DGRAM if name == "udp_echo" else socket.SOCK_STREAM
        verb = "open_datagram" if name == "udp_echo" else "listen"
        with socket.socket(socket.AF_INET, kind) as taken:
            taken.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                taken.listen(1)
            where = f"127.0.0.1:{taken.getsockname()[1]}"
            fails("port in use", PATHS[name], ["--listen", where],
                  f"{name}: {verb} {where}: address in use (EADDRINUSE)")
        fails("an address of another machine", PATHS[name], ["--listen", "192.0.2.1:0"],
              f"{name}: {verb} 192.0.2.1:0: address not available (EADDRNOTAVAIL)")
        privileged_port(name, verb)


def privileged_port(name, verb):
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text("utf-8"))
    if first <= 80:
        tap.skip(f"{name}: privileged port", f"here every user may take ports from {first} on")
        return
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:  # a place that user may read
        os.chmod(folder, 0o755)
        path = shutil.copy(PATHS[name], folder)
        fails("privileged port", path, ["--listen", "127.0.0.1:80"],
              f"{name}: {verb} 127.0.0.1:80: permission denied (EACCES)", cwd="/", **user)


def test_memory():
    for name in NAMES:
        needed = needed_bytes(name)
        tap.check(f"{name}: too little memory says how much is needed", needed > 100_000, needed)
        given = needed - 4096
        fails("too little memory by a page", PATHS[name],
              ["--listen", "127.0.0.1:0", "--memory", given],
              f"{name}: storage: too little memory, needed {needed} given {given}".replace(
                  f"{needed} given", f"{needed}, given"))
        with programs.Program(PATHS[name], "--listen", "127.0.0.1:0", "--memory", needed) as enough:
            tap.check(f"{name}: just enough memory", enough.port != 0, enough.errors)


def needed_bytes(name):
    """What the program says that it needs; mmap gives whole pages, aligned ones."""
    ran = subprocess.run([str(PATHS[name]), "--listen", "127.0.0.1:0", "--memory", "4096"],
                         capture_output=True, text=True, timeout=programs.SECONDS_MAX, check=False)
    words = ran.stderr.split()
    holds = len(words) == 9 and words[-1] == "4096" and ran.returncode == 1
    return int(words[-3].rstrip(",")) if holds else 0


def limited_to(count):
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


def test_descriptors():
    fails("descriptor limit below connections_max", PATHS["gateway"],
          ["--listen", "127.0.0.1:0", "--connections", "500"],
          "gateway: connections_max: descriptor limit too low, needed 1077, given 900",
          preexec_fn=limited_to(900))
    with programs.Program(PATHS["gateway"], "--listen", "127.0.0.1:0", "--connections", "500",
                          preexec_fn=limited_to(1077)) as enough:
        tap.check("gateway: just enough descriptors", enough.port != 0, enough.errors)


def test_echo():
    """The first contact has no flags; what can fail is the system's doing."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        path = programs.build("echo", [(".port = 7000", f".port = {port}")])
        fails("port in use", path, [],
              f"echo: listen 0.0.0.0:{port}: address in use (EADDRINUSE)")
    fails("descriptor limit below connections_max", path, [],
          "echo: connections_max: descriptor limit too low, needed 10024, given 900",
          preexec_fn=limited_to(900))


test_arguments()
test_ports()
test_memory()
test_descriptors()
test_echo()
tap.finish()
