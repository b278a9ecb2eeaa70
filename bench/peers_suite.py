"""bench/run peers: the same echo over every loop people use, each in its own process.

Each server has a generator process of its own, told by this script when to run a slice, so that
each may have its own rate, its own header and descriptors for ten thousand connections.
"""
import contextlib
import glob
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time

from harness import (
    BUILD, CPUS, GENERATOR_CPU, SERVER_CPU, Servers, build, failed, make_row, paired_row, say,
    skipped, traced_calls, wait_line)

BASE = "floor_epoll"
ECHO_SERVER = "bench/echo_server.cpp"
URING = "--backend io_uring --mode move"
VARIANT = "netio io_uring, "

# name, source, options of the server, of its generator. A variant changes one thing of
# `netio io_uring`; one whose option the server does not have is skipped with a loud line.
PEERS = [
    ("thread per connection", "bench/peers/thread_echo.cpp", "", ""),
    ("floor_epoll", "bench/floor_epoll.cpp", "", ""),
    ("floor_io_uring", "bench/floor_io_uring.cpp", "", ""),
    ("mio", "bench/peers/mio_echo.rs", "", ""),
    ("tokio", "bench/peers/tokio_echo.rs", "", ""),
    ("libuv", "bench/peers/libuv_echo.cpp", "", ""),
    ("libevent", "bench/peers/libevent_echo.cpp", "", ""),
    ("asio callbacks", "bench/peers/asio_callbacks.cpp", "", ""),
    ("asio coroutines", "bench/peers/asio_coroutines.cpp", "", ""),
    ("netio epoll", ECHO_SERVER, "--backend epoll --mode move", ""),
    ("netio io_uring", ECHO_SERVER, URING, ""),
    (VARIANT + "no wipe", ECHO_SERVER, f"{URING} --no-wipe", ""),
    (VARIANT + "copy", ECHO_SERVER, "--backend io_uring --mode copy", ""),
    (VARIANT + "a listener each", ECHO_SERVER, f"{URING} --listeners each", ""),
    (VARIANT + "PROXY required", ECHO_SERVER, f"{URING} --proxy required", "--proxy v2"),
    (VARIANT + "spin", ECHO_SERVER, f"{URING} --wait spin", ""),
    (VARIANT + "latency first", ECHO_SERVER, f"{URING} --wait latency", ""),
]

# Debian package, or pattern of one's folder, by the name of the server
PACKAGES = {"libuv": "libuv1-dev", "libevent": "libevent-dev", "asio callbacks": "libasio-dev",
            "asio coroutines": "libasio-dev", "thread per connection": "libc6"}
CRATES = {"mio": "/usr/share/cargo/registry/mio-[0-9]*",
          "tokio": "/usr/share/cargo/registry/tokio-[0-9]*"}
DESCRIPTORS_MAX = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
CONNECTIONS_MAX = min(DESCRIPTORS_MAX - 200, 100_000)  # what a process needs itself is less

CLOSED, ACCEPT, CONNECT = "--mode closed", "--mode accept --bytes 64", "--mode connect"
# shape, options of the generator, how much longer than the others its slices are
SHAPES = [
    ("B-1 connect, close", f"{CONNECT} --connections 1", 1),
    ("B-1m connect, 64 B, close", f"{ACCEPT} --connections 1", 1),
    ("B-1e connect, 64 B, close, 64 in flight", f"{ACCEPT} --connections 64", 1),
    ("B-1e connect, 64 B, close, 256 in flight", f"{ACCEPT} --connections 256", 1),
    ("B-2 64 B x 1", f"{CLOSED} --connections 1 --bytes 64", 1),
    ("B-3 64 B x 100", f"{CLOSED} --connections 100 --bytes 64", 1),
    ("B-3 64 B x 1000", f"{CLOSED} --connections 1000 --bytes 64", 1.5),
    ("B-3 64 B x 10000", f"{CLOSED} --connections 10000 --bytes 64", 4),
    ("B-4 16 KiB x 100", f"{CLOSED} --connections 100 --bytes 16384", 1),
    ("B-4 16 KiB x 1000", f"{CLOSED} --connections 1000 --bytes 16384", 1.5),
]
CALIBRATION = f"{CLOSED} --connections 100 --bytes 64"
OPEN_LOOP = "--mode open --connections 100 --bytes 64"
OPEN_SHARES = (0.5, 0.9)
WITHOUT_CALLS = ["x 10000", "256 in flight"]  # under strace they would take minutes
LOADED = ("B-1m", "B-2", "B-3 64 B x 100", "B-3 64 B x 1000", "B-4 16 KiB x 100")

# key of the generator's result, label of the row, unit
METRICS = [
    ("server_cpu_us", "", "us server CPU"), ("rate", ", rate", "1/s"), ("p50_us", ", p50", "us"),
    ("p99_us", ", p99", "us"), ("p999_us", ", p99.9", "us"),
    ("slowest_share", ", slowest share", "of the mean"),
]
CALLS_LABEL, CALLS_UNIT = ", calls", "calls"


class Server:
    """A server that runs, and the generator that is connected to it just now."""

    def __init__(self, name, process, port, generator_options):
        self.name, self.process, self.port = name, process, port
        self.generator_options = generator_options
        self.generator = None
        self.quiet_count = 0  # descriptors without a connection; known once all are up

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def tell(self, seconds):
        """One slice; the generator's result, or None."""
        if self.generator is None or self.generator.poll() is not None:
            return None
        with contextlib.suppress(BrokenPipeError):
            self.generator.stdin.write(f"{seconds}\n".encode())
        line = wait_line(self.generator, 3 * seconds + 70)
        return json.loads(line) if line.startswith("{") else None


def cpu_seconds(process_id):
    """The process's own clock, of all its threads."""
    return time.clock_gettime((~process_id << 3) | 2)


def version_of(name):
    if name in PACKAGES:
        said = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", PACKAGES[name]],
                              capture_output=True, text=True, check=False)
        return said.stdout or "version not known"
    if name in CRATES:
        found = sorted(glob.glob(CRATES[name]))
        if not found or not shutil.which("rustc"):
            return "version not known"
        said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=False)
        return f"{found[-1].rpartition('-')[2]}, rustc {said.stdout.split()[1]}"
    if name.startswith("netio"):
        with open("netio.hpp", encoding="utf-8") as text:
            parts = re.findall(r"^#define NETIO_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text.read(),
                               re.M)
        said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True,
                              text=True, check=False)
        return ".".join(parts) + (f" at {said.stdout.strip()}" if said.returncode == 0 else "")
    return f"Linux {os.uname().release}"


def start_all(servers, cpus, workers, table, tree="."):
    """Every server of a table that can run, all at once, of that tree."""
    running = []
    for name, source, options, generator_options in table:
        program = build(source, tree)
        if program is None:
            continue
        command = [program, "--port", "0", "--workers", str(workers)] + options.split()
        if source == ECHO_SERVER:
            # Twice what the rows need: each worker has its share only, and a server that is three
            # quarters full shortens its deadlines, which would end those who wait for their turn.
            command += ["--connections", str(min(20_000, CONNECTIONS_MAX))]
        started = servers.start_listening(command, cpus)
        if started:
            running.append(Server(name, started[0], started[1], generator_options))
    return running


# --- one row ------------------------------------------------------------------------------------

class Placement:
    """Where servers and generators run, and for how long a slice goes."""

    def __init__(self, name, server_cpus, generator_cpus, count, chosen):
        self.name, self.server_cpus, self.generator_cpus = name, server_cpus, generator_cpus
        self.count = count  # workers, and threads of a generator
        self.seconds = 0.05 if chosen.quick else 0.25
        self.rounds = 2 if chosen.quick else chosen.rounds or 9
        self.without_calls = WITHOUT_CALLS + (["x 1000", "in flight"] if chosen.quick else [])
        self.trace_seconds = 0.05 if chosen.quick else 0.2

    def wants(self, shape, chosen):
        """Rows of many connections take seconds a slice: --quick has them for --only."""
        many = "x 10000" in shape or (self.count > 1 and re.search(r"x 1000|in flight", shape))
        return chosen.only in f"{self.name} {shape}" and not (
            chosen.quick and many and not chosen.only)


def connect_all(servers, running, options_of, placement):
    """A generator for each server, connected and warmed up; gives the servers that took part.

    One after the other: many connections take seconds, and a server may have an idle deadline.
    """
    there = []
    for server in running:
        server.quiet_count = server.quiet_count or server.descriptors()
    for server in running:
        command = [os.path.join(BUILD, "loadgen"), "--told", "--port", str(server.port),
                   "--server-pid", str(server.process.pid), "--threads", str(placement.count)]
        command += options_of(server).split() + server.generator_options.split()
        server.generator = servers.start(command, placement.generator_cpus, told=True)
        if wait_line(server.generator, 60).startswith("ready") and server.tell(0.02):
            there.append(server)
        else:
            failed(f"{server.name}: the generator could not connect")
    return there


def disconnect_all(servers, running):
    """Ends the generators and waits until the servers have seen it."""
    for server in running:
        if server.generator is not None:
            servers.end(server.generator)
            servers.running.remove(server.generator)
            server.generator = None
    until = time.monotonic() + 20
    for server in running:
        while server.descriptors() > server.quiet_count and time.monotonic() < until:
            time.sleep(0.02)


def interleaved(there, seconds, rounds):
    """Slices of all servers in rotated order: results by name, of those who answered in all."""
    results = {server.name: [] for server in there}
    for turn in range(rounds):
        at = turn % len(there) if there else 0
        for server in there[at:] + there[:at]:
            result = server.tell(seconds)
            if result is not None and result["round_trips"] > 0:
                results[server.name].append(result)
    for name in [name for name, found in results.items() if len(found) < rounds]:
        failed(f"{name}: {rounds - len(results.pop(name))} of {rounds} slices failed")
    return results


def counted_calls(servers, there, seconds):
    """System calls a round trip by name, each server under strace for a moment."""
    calls = {}
    if not shutil.which("strace"):
        skipped("system calls", "strace is not installed")
        return calls
    for server in there:
        count, result = traced_calls(server.process.pid, servers.folder,
                                     lambda told=server: told.tell(seconds))
        if result and result["round_trips"]:
            calls[server.name] = count / result["round_trips"]
    return calls


def measure(servers, running, shape, options_of, placement, longer=1, with_calls=False):
    """One row of every server: (results by name, calls by name)."""
    running = [server for server in running if server.process.poll() is None]
    there = connect_all(servers, running, options_of, placement)
    results, calls = {}, {}
    try:
        rounds = placement.rounds if longer < 4 else (placement.rounds + 1) // 2
        results = interleaved(there, placement.seconds * longer, rounds)
        if with_calls and not any(text in shape for text in placement.without_calls):
            calls = counted_calls(servers, there, placement.trace_seconds)
    finally:
        disconnect_all(servers, running)
    for server in running:
        if server.process.poll() is not None:
            failed(f"{server.name} ended with {server.process.returncode} in {shape}")
    return results, calls


def rows_of(row, results, calls, command):
    rows = []
    for key, label, unit in METRICS:
        for name, found in results.items():
            rows.append(paired_row("peers", f"{row}{label}: {name}", unit, key, found, command,
                                   BASE, results.get(BASE) if name != BASE else None))
    for name, value in calls.items():
        rows.append(make_row("peers", f"{row}{CALLS_LABEL}: {name}", CALLS_UNIT, [value],
                             f"strace -f -c; {command}"))
    return rows


def show_row(row, results, calls, versions):
    """One line a server, the lowest server CPU first."""
    def middle(name, key):
        return statistics.median(one[key] for one in results[name])
    if not results:
        return
    titles = {name: f"{name} ({versions[name]})" for name in results}
    wide = max(len(title) for title in titles.values())
    say(f"\n{row}\n  {'':{wide}} {'CPU, us':>8} {'ratio to ' + BASE:>24} {'rate, 1/s':>10} "
        f"{'p50, us':>9} {'p99, us':>9} {'p99.9, us':>9} {'calls':>7} {'slowest':>7}")
    base = [one["server_cpu_us"] for one in results.get(BASE, [])]
    for name in sorted(results, key=lambda name: middle(name, "server_cpu_us")):
        ratios = [one["server_cpu_us"] / other for one, other in zip(results[name], base)]
        ratio = f"{statistics.median(ratios):.3f} [{min(ratios):.3f} .. {max(ratios):.3f}]" \
            if ratios else ""
        called = f"{calls[name]:7.3f}" if name in calls else f"{'':7}"
        say(f"  {titles[name]:{wide}} {middle(name, 'server_cpu_us'):8.2f} {ratio:>24} "
            f"{middle(name, 'rate'):10.0f} {middle(name, 'p50_us'):9.1f} "
            f"{middle(name, 'p99_us'):9.1f} {middle(name, 'p999_us'):9.1f} {called} "
            f"{middle(name, 'slowest_share'):7.2f}")


# --- the placements -----------------------------------------------------------------------------

def connections_of(options):
    return int(re.search(r"--connections (\d+)", options).group(1))


def closed_rows(servers, running, placement, chosen, shapes, with_calls):
    rows = []
    for shape, options, longer in shapes:
        if not placement.wants(shape, chosen):
            continue
        row = f"{placement.name} {shape}"
        if connections_of(options) > CONNECTIONS_MAX:
            skipped(row, f"the limit of descriptors is {DESCRIPTORS_MAX}")
            continue
        results, calls = measure(servers, running, row, lambda _, same=options: same, placement,
                                 longer, with_calls)
        show_row(row, results, calls, chosen.about["versions"])
        rows += rows_of(row, results, calls, f"loadgen --threads {placement.count} {options}")
    return rows


def open_shape(share):
    return f"open loop 64 B x 100 at {share:.0%} of its own capacity"


def open_rows(servers, running, placement, chosen):
    """Half and nine tenths of what each server just did in a closed loop, as its own rate."""
    rows, capacity = [], {}
    for share in OPEN_SHARES:
        shape = open_shape(share)
        if not placement.wants(shape, chosen):
            continue
        if not capacity:
            found, _ = measure(servers, running, "capacity", lambda _: CALIBRATION, placement)
            capacity = {name: statistics.median(one["rate"] for one in results)
                        for name, results in found.items()}
        able = [server for server in running if server.name in capacity]
        row = f"{placement.name} {shape}"
        results, _ = measure(
            servers, able, row,
            lambda server, of=share: f"{OPEN_LOOP} --rate {of * capacity[server.name]:.0f}",
            placement)
        show_row(row, results, {}, chosen.about["versions"])
        rows += rows_of(row, results, {}, f"loadgen {OPEN_LOOP} --rate {share} x capacity")
    return rows


def pinned(chosen):
    """One worker on the first CPU, the generator on the last."""
    placement = Placement("pinned", {SERVER_CPU}, {GENERATOR_CPU}, 1, chosen)
    shapes = [one[0] for one in SHAPES] + [open_shape(share) for share in OPEN_SHARES]
    if not any(placement.wants(one, chosen) for one in shapes):
        return []
    with Servers() as servers:
        running = start_all(servers, placement.server_cpus, 1, PEERS)
        time.sleep(0.2)  # a server opens the last of its own descriptors after it listens
        rows = closed_rows(servers, running, placement, chosen, SHAPES, True)
        rows += open_rows(servers, running, placement, chosen)
    return rows


def shared(chosen):
    """Two workers and two threads of the generator, wherever the scheduler puts them; then the
    same beside as many busy processes as there are CPUs."""
    free = Placement("2+2", set(CPUS), set(CPUS), 2, chosen)
    loaded = Placement("loaded", set(CPUS), set(CPUS), 2, chosen)
    free.rounds = loaded.rounds = max(2, (free.rounds + 1) // 2)
    under_load = [one for one in SHAPES if any(one[0].startswith(name) for name in LOADED)]
    under_load = [one for one in under_load if "x 10000" not in one[0]]
    if not any(free.wants(one[0], chosen) for one in SHAPES) and \
            not any(loaded.wants(one[0], chosen) for one in under_load):
        return []
    with Servers() as servers:
        running = start_all(servers, free.server_cpus, 2, PEERS)
        time.sleep(0.2)
        rows = closed_rows(servers, running, free, chosen, SHAPES, False)
        if any(loaded.wants(one[0], chosen) for one in under_load):
            running = [server for server in running if not server.name.startswith(VARIANT)]
            for _ in CPUS:
                servers.start([sys.executable, "-c", "while True: pass"], set(CPUS))
            rows += closed_rows(servers, running, loaded, chosen, under_load, False)
    return rows


# --- idle connections ---------------------------------------------------------------------------

def idle_server(peer, count, seconds):
    """A fresh server with that many quiet connections: (resident bytes, CPU ms a second)."""
    name, source, options, generator_options = peer
    program = build(source)
    if program is None:
        return None
    command = [program, "--port", "0"] + options.split()
    command += ["--connections", str(count)] if source == ECHO_SERVER else []
    with Servers() as servers:
        started = servers.start_listening(command, SERVER_CPU)
        if not started:
            return None
        process, port = started
        generator = servers.start(
            [os.path.join(BUILD, "loadgen"), "--mode", "idle", "--seconds", "100",
             "--connections", str(count), "--port", str(port), "--server-pid",
             str(process.pid)] + generator_options.split(), GENERATOR_CPU)
        until = time.monotonic() + 60
        if not wait_line(generator, 60).startswith("ready"):
            return None
        while len(os.listdir(f"/proc/{process.pid}/fd")) < count:
            if time.monotonic() > until or process.poll() is not None:
                return None
            time.sleep(0.05)
        time.sleep(0.2)
        before, start = cpu_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        used = cpu_seconds(process.pid) - before
        idle_ms = 1000 * used / (time.monotonic() - start)
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="utf-8") as text:
            resident = int(re.search(r"^Rss:\s+(\d+) kB", text.read(), re.M).group(1)) * 1024
        return resident, idle_ms


def idle_counts(chosen):
    """10,000, and what the limit of descriptors leaves after what a process needs itself."""
    if chosen.quick:
        return 200, [2000]
    say(f"\nthe limit of descriptors is {DESCRIPTORS_MAX}: {CONNECTIONS_MAX} idle connections")
    return 1000, sorted({min(10_000, CONNECTIONS_MAX), CONNECTIONS_MAX})


def idle_rows(chosen):
    if chosen.only not in "pinned B-5 idle":
        return []
    few, counts = idle_counts(chosen)
    rows = []
    for peer in PEERS:
        base = idle_server(peer, few, 0.01)
        for count in counts if base else ():
            found = idle_server(peer, count, 0.2 if chosen.quick else 1.0)
            if found is None:
                text = f"{peer[0]}: {count} idle connections"
                if count > 10_000:  # threads and mappings have limits of their own
                    skipped(text, "more than this machine lets it have")
                else:
                    failed(f"{text} did not come up")
                continue
            command = f"{os.path.basename(peer[1])} {peer[2]}; loadgen --mode idle"
            row = f"B-5 idle x {count}"
            each = (found[0] - base[0]) / (count - few)
            rows.append(make_row("peers", f"{row}, memory: {peer[0]}", "bytes each", [each],
                                 command))
            rows.append(make_row("peers", f"{row}, CPU: {peer[0]}", "ms a second", [found[1]],
                                 command))
            say(f"  {row:18} {peer[0]:32} {each:8.0f} bytes each, {found[1]:.2f} ms CPU a second")
    return rows


def suite_peers(chosen):
    started = time.monotonic()
    chosen.about["versions"] = {peer[0]: version_of(peer[0]) for peer in PEERS}
    rows = pinned(chosen) + shared(chosen) + idle_rows(chosen)
    say(f"\npeers took {time.monotonic() - started:.0f} s")
    return rows
