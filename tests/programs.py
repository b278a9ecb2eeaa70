"""The examples as processes: built by the command in their first line, ended by their own id."""
import contextlib
import errno
import fcntl
import os
import pathlib
import queue
import re
import resource
import select
import shlex
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("NETIO_BUILD", ROOT / "build" / "scripts" / "by_hand"))
EXAMPLES = BUILD.parent / "examples"
SECONDS_MAX = 20


def build(name, changes=(), flags=()):
    """The program of examples/NAME.cpp, compiled if its sources are newer; with `changes`, pairs of
    texts, a changed copy in this test's own folder, compiled with `flags` too."""
    source = ROOT / "examples" / f"{name}.cpp"
    text = source.read_text(encoding="utf-8")
    command = shlex.split(re.match(r"// (.*)", text)[1])
    folder = BUILD if changes else EXAMPLES
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    if changes:
        for old, new in changes:
            assert old in text, f"{source}: no {old!r}"
            text = text.replace(old, new)
        source = folder / f"{name}.cpp"
        source.write_text(text, encoding="utf-8")
    inputs = [source, ROOT / "netio.hpp", *(ROOT / "examples").glob("*.hpp")]
    with open(folder / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of several files run beside each other
        if program.exists() and all(program.stat().st_mtime > one.stat().st_mtime
                                    for one in inputs):
            return program
        command[command.index("-o") + 1] = str(program)
        command += flags
        command += shlex.split(os.environ.get("NETIO_EXAMPLE_FLAGS", ""))  # a sanitizer, by hand
        command[[at for at, word in enumerate(command) if word.endswith(".cpp")][0]] = str(source)
        subprocess.run(command, cwd=ROOT, check=True)
    return program


class Program:
    """A running program, its standard output as lines. Leaving the block kills what still runs."""

    def __init__(self, path, *arguments, first_line=True, **more):
        self.process = subprocess.Popen([str(path), *map(str, arguments)], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
        self.lines = []
        self.errors = ""
        self._queue = queue.Queue()
        self._readers = [threading.Thread(target=self._read, daemon=True),
                         threading.Thread(target=self._read_errors, daemon=True)]
        for reader in self._readers:
            reader.start()
        self.first = self.wait_line(r"listening") if first_line else ""
        found = re.search(r"listening on (\S+):(\d+),", self.first or "")
        self.port = int(found[2]) if found else 0

    def _read(self):
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors += line

    def wait_line(self, pattern, seconds=SECONDS_MAX):
        """The next line in which `pattern` is found, or None once output or time ended."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._queue.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if line is None:
                self._queue.put(None)
                return None
            self.lines.append(line)
            if re.search(pattern, line):
                return line

    def send_signal(self, which):
        self.process.send_signal(which)

    def end(self, seconds=SECONDS_MAX):
        """Waits for the end: (exit code, all of its output, what it said to standard error)."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.wait_line(r"(?!)")
        for reader in self._readers:
            reader.join(SECONDS_MAX)
        return code, self.lines, self.errors

    def stop(self, which=signal.SIGTERM, seconds=SECONDS_MAX):
        self.send_signal(which)
        return self.end(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(SECONDS_MAX)
        self.process.stdout.close()
        self.process.stderr.close()


class ResetSocket(socket.socket):
    """A client that the server had reset before connect(2) looked: the system told it there."""

    def recv(self, *_):
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def sendall(self, *_):
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


def connect(port, host="127.0.0.1", seconds=SECONDS_MAX):
    try:
        made = socket.create_connection((host, port), timeout=seconds)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except ConnectionResetError:  # as good as connected: a server that refuses may be this quick
        return ResetSocket()
    return made


def read_all(of):
    """Everything until the end of stream; a reset is the text RESET at the end."""
    whole = bytearray()
    try:
        while piece := of.recv(1 << 16):
            whole += piece
    except ConnectionResetError:
        whole += b"RESET"
    return bytes(whole)


def turned_away(port, sent=b""):
    """What a client of its own hears after `sent`; a reset at any moment is the text RESET."""
    try:
        with connect(port) as client:
            client.sendall(sent)
            return read_all(client)
    except ConnectionError:
        return b"RESET"


def read_exactly(of, count):
    whole = bytearray()
    while len(whole) < count:
        piece = of.recv(count - len(whole))
        if not piece:
            break
        whole += piece
    return bytes(whole)


def read_line(of):
    whole = bytearray()
    while not whole.endswith(b"\n"):
        piece = of.recv(1)
        if not piece:
            break
        whole += piece
    return whole.decode().rstrip("\n")


def finish_sending(of):
    with contextlib.suppress(OSError):  # the other side may have reset it by now
        of.shutdown(socket.SHUT_WR)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, seconds=SECONDS_MAX):
    """The first true value of `condition`, asked again after short waits, or its last one."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    return value


def accepts(port):
    try:
        connect(port, seconds=1).close()
        return True
    except OSError:
        return False


def raise_descriptor_limit(wanted):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
