#!/usr/bin/env python3
"""Each example does what its first lines say, drains on SIGTERM and stops on SIGINT."""
import os
import re
import signal
import socket
import time

import programs
import tap

CLIENTS = 1000
PROXY_LINE = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n"


def example(name, *arguments):
    return programs.Program(programs.build(name), "--listen", "127.0.0.1:0", *arguments)


def ends_well(name, ended, lines_max=1):
    code, lines, errors = ended
    tap.check(name, code == 0 and errors == "" and len(lines) <= lines_max,
              f"exit {code}, {lines[-3:]}, {errors!r}")


# ---- echo ----------------------------------------------------------------------------------------

def test_echo():
    """The file as it is but for its port; it has no command line and no signals."""
    port = programs.free_port()
    path = programs.build("echo", [(".port = 7000", f".port = {port}")])
    with programs.Program(path, first_line=False):
        tap.check("echo: serves", programs.until(lambda: programs.accepts(port)))
        peers = [programs.connect(port) for _ in range(CLIENTS)]
        for at, peer in enumerate(peers):
            peer.sendall(f"client {at} of {CLIENTS}\n".encode())
        wrong = [at for at, peer in enumerate(peers)
                 if programs.read_line(peer) != f"client {at} of {CLIENTS}"]
        tap.check(f"echo: {CLIENTS} clients at once", wrong == [], wrong[:5])
        for peer in peers:
            programs.finish_sending(peer)
        wrong = [at for at, peer in enumerate(peers) if programs.read_all(peer) != b""]
        tap.check("echo: each end of stream is answered with one", wrong == [], wrong[:5])
        for peer in peers:
            peer.close()


def kernel_objects(process):
    """The kinds of what a process holds besides the standard streams; None while that changes."""
    folder = f"/proc/{process}/fd"
    try:
        return {os.readlink(f"{folder}/{at}").split(":")[0]
                for at in os.listdir(folder) if int(at) > 2}
    except FileNotFoundError:
        return None


def test_echo_without_epoll():
    """A POSIX system with none of the better kernels serves over poll; this one plays it."""
    port = programs.free_port()
    path = programs.build("echo", [(".port = 7000", f".port = {port}")], ["-U__linux__"])
    with programs.Program(path, first_line=False) as server:
        tap.check("echo without epoll: serves", programs.until(lambda: programs.accepts(port)))
        # It listens before it has what it waits with.
        programs.until(lambda: "pipe" in (kernel_objects(server.process.pid) or ()))
        held = programs.until(lambda: kernel_objects(server.process.pid))
        tap.check("echo without epoll: holds a pipe, sockets and files, no other kernel object",
                  held == {"pipe", "socket", "/dev/null"}, held)
        peers = [programs.connect(port) for _ in range(CLIENTS)]
        for at, peer in enumerate(peers):
            peer.sendall(f"client {at}\n".encode())
        wrong = [at for at, peer in enumerate(peers) if programs.read_line(peer) != f"client {at}"]
        tap.check(f"echo without epoll: {CLIENTS} clients at once", wrong == [], wrong[:5])
        for peer in peers:
            programs.finish_sending(peer)
        wrong = [at for at, peer in enumerate(peers) if programs.read_all(peer) != b""]
        tap.check("echo without epoll: each end of stream is answered", wrong == [], wrong[:5])
        for peer in peers:
            peer.close()


# ---- own_backend ---------------------------------------------------------------------------------

def test_own_backend(rounds=10):
    with example("own_backend") as server:
        with programs.connect(server.port) as peer:
            wrong = 0
            for _ in range(rounds):
                peer.sendall(bytes(64))
                wrong += programs.read_exactly(peer, 64) != bytes(64)
            tap.check("own_backend: echoes", wrong == 0, wrong)
            programs.finish_sending(peer)
            tap.check("own_backend: answers the end", programs.read_all(peer) == b"")
        code, lines, errors = server.stop()
        said = re.fullmatch(r"own_backend: waits (\d+) events (\d+) polls (\d+) accepts (\d+) "
                            r"receives (\d+) sends (\d+)", lines[-1])
        tap.check("own_backend: SIGTERM, and the program's backend was the one at work",
                  code == 0 and errors == "" and said is not None and
                  [int(said[at]) for at in (4, 5, 6)] == [2, rounds + 1, rounds],
                  f"{code} {lines} {errors}")


# ---- proxy_echo ----------------------------------------------------------------------------------

def greeted(port, sent):
    with programs.connect(port) as peer:
        peer.sendall(sent)
        programs.finish_sending(peer)
        return programs.read_all(peer)


def test_proxy_echo():
    with example("proxy_echo") as server:
        tap.check("proxy_echo: a version 1 line, and the bytes behind it",
                  greeted(server.port, PROXY_LINE + b"hello") ==
                  b"client 192.0.2.1:56324 to 192.0.2.2:443 v1 proxied\nhello")
        local = bytes.fromhex("0d0a0d0a000d0a515549540a2011000cc0000201c0000202dc0401bb")
        with programs.connect(server.port) as peer:
            mine = "{}:{}".format(*peer.getsockname())
            peer.sendall(local + b"x")
            programs.finish_sending(peer)
            said = programs.read_all(peer).decode()
            tap.check("proxy_echo: LOCAL keeps the socket's own addresses",
                      said == f"client {mine} to 127.0.0.1:{server.port} v2 local\nx", said)
        ends_well("proxy_echo: SIGTERM", server.stop(), 20)
    with example("proxy_echo", "--trusted", "10.0.0.0/8") as server:
        said = greeted(server.port, PROXY_LINE)
        line = server.wait_line("closed")
        tap.check("proxy_echo: a header from outside the trusted networks is refused",
                  said == b"RESET" and line.endswith(": proxy_untrusted"), f"{said} {line}")
    with example("proxy_echo", "--versions", "v2") as server:
        said = greeted(server.port, PROXY_LINE)
        line = server.wait_line("closed")
        tap.check("proxy_echo: version 1 where only 2 is taken is refused", said == b"RESET" and
                  line.endswith(": proxy_invalid(PROXY version not accepted here)"), line)


# ---- records -------------------------------------------------------------------------------------

def record(text):
    return len(text).to_bytes(2, "big") + text


def test_records():
    with example("records", "--workers", "3") as server:
        peers = [programs.connect(server.port) for _ in range(10)]
        for at, peer in enumerate(peers):  # three at a time have a worker, the others wait
            peer.sendall(record(b"client %d" % at) + record(b"x" * 60_000))
            programs.finish_sending(peer)
        wrong = [at for at, peer in enumerate(peers) if programs.read_all(peer) !=
                 record(b"client %d" % at) + record(b"x" * 60_000)]
        tap.check("records: ten clients, three workers", wrong == [], wrong)
        for peer in peers:
            peer.close()
        with programs.connect(server.port) as whole, programs.connect(server.port) as half:
            for peer in (whole, half):
                peer.sendall(record(b"first"))
                tap.check("records: an answer", peer.recv(7, socket.MSG_WAITALL) ==
                          record(b"first"))
            half.sendall(record(b"second")[:5])
            server.send_signal(signal.SIGTERM)
            tap.check("records: a drain ends who is between records",
                      programs.read_all(whole) == b"")
            half.sendall(record(b"second")[5:])
            tap.check("records: and lets a record be answered",
                      programs.read_all(half) == record(b"second"))
        ends_well("records: SIGTERM ends it with exit code 0", server.end(), 20)
    with example("records", "--workers", "2") as server:
        with programs.connect(server.port) as peer:
            peer.sendall(record(b"first"))
            peer.recv(7, socket.MSG_WAITALL)
            server.send_signal(signal.SIGINT)
            tap.check("records: SIGINT resets what is open",
                      programs.read_all(peer).endswith(b"RESET"))
        ends_well("records: SIGINT ends it with exit code 0", server.end(), 20)


# ---- chat ----------------------------------------------------------------------------------------

def test_chat(members=48, rounds=5):
    with example("chat", "--workers", "4", "--connections", "256") as server:
        peers = [programs.connect(server.port) for _ in range(members)]
        everybody_is_in(peers)
        for turn in range(rounds):
            for at, peer in enumerate(peers):
                peer.sendall(f"{at} says {turn}\n".encode())
        wrong = []
        for at, peer in enumerate(peers):
            said = [programs.read_line(peer) for _ in range((members - 1) * rounds)]
            by_member = {other: [] for other in range(members) if other != at}
            for line in said:
                by_member[int(line.split()[0])].append(line)
            if any(lines != [f"{other} says {turn}" for turn in range(rounds)]
                   for other, lines in by_member.items()):
                wrong.append(at)
        tap.check(f"chat: each of {members} gets every line of the others, in their order",
                  wrong == [], wrong)
        for peer in peers:
            peer.close()
        ends_well("chat: SIGTERM with 4 workers", server.stop(), 2)


def everybody_is_in(peers):
    """A line only reaches who is in: ask until each member has heard the first one."""
    waiting = set(range(1, len(peers)))

    def all_heard():
        peers[0].sendall(b"0 calls\n")
        for at in list(waiting):
            peers[at].settimeout(0.05)
            try:
                programs.read_line(peers[at])
                waiting.discard(at)
            except TimeoutError:
                pass
        return not waiting

    programs.until(all_heard)
    peers[0].sendall(b"0 begins\n")
    for peer in peers[1:]:
        peer.settimeout(programs.SECONDS_MAX)
        while programs.read_line(peer) != "0 begins":
            pass


def test_chat_slow_reader(lines=3000):
    """Who does not read misses lines, in bounded memory, and stops nobody else."""
    with example("chat", "--workers", "2") as server:
        deaf, speaker, reader = (programs.connect(server.port) for _ in range(3))
        everybody_is_in([speaker, reader, deaf])
        line = b"x" * 500 + b"\n"
        counted = spoken = 0
        while counted < lines and spoken < 10 * lines:
            speaker.sendall(line)
            spoken += 1
            said = programs.read_line(reader)
            missed = re.fullmatch(r"\* missed (\d+) lines", said)
            counted += int(missed[1]) if missed else 1
        tap.check("chat: a reader is not held up by one who does not read",
                  counted >= lines, f"{counted} of {spoken}")
        for peer in (deaf, speaker, reader):
            peer.close()
        ends_well("chat: SIGTERM after a slow reader", server.stop(), 2)


# ---- own_loop ------------------------------------------------------------------------------------

def wakes(server):
    line = server.wait_line("wake-ups")
    return int(line.split()[1]) if line else None


def test_own_loop():
    with example("own_loop", "--tick-ms", "1000") as server:
        wakes(server)
        idle = wakes(server)
        tap.check("own_loop: idle for 1 s, 0 wake-ups", idle == 0, idle)
        with programs.connect(server.port) as peer:
            peer.sendall(b"hello")
            tap.check("own_loop: echoes", programs.read_exactly(peer, 5) == b"hello")
            busy = wakes(server)
            tap.check("own_loop: an exchange wakes it", busy is not None and 0 < busy < 10, busy)
            idle = wakes(server)
            tap.check("own_loop: a quiet connection for 1 s, 0 wake-ups", idle == 0, idle)
        started = time.monotonic()
        ends_well("own_loop: SIGTERM", server.stop(), 20)
        tap.check("own_loop: ends at once with nothing to finish",
                  time.monotonic() - started < 1, time.monotonic() - started)


# ---- udp_echo ------------------------------------------------------------------------------------

def test_udp_echo():
    with example("udp_echo") as server, \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(programs.SECONDS_MAX)
        peer.connect(("127.0.0.1", server.port))
        for count in (1, 0, 1400, 16_448):
            sent = os.urandom(count)
            peer.send(sent)
            tap.check(f"udp_echo: a datagram of {count} bytes", peer.recv(70_000) == sent)
        peer.send(b"x" * 16_449)  # does not fit: dropped, and the next one is not harmed
        peer.send(b"after")
        tap.check("udp_echo: one that was cut is not sent back", peer.recv(70_000) == b"after")
        code, lines, errors = server.stop()
        tap.check("udp_echo: SIGTERM, all counted", code == 0 and errors == "" and
                  lines[-1] == "udp_echo: datagrams in 6, out 5, over budget 0",
                  f"{code} {lines} {errors}")
    with example("udp_echo", "--source-rate", "0") as server, \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.settimeout(programs.SECONDS_MAX)
        peer.connect(("127.0.0.1", server.port))
        came = 0
        for _ in range(2_000):  # far more than a second's budget would be, for most machines
            peer.send(b"again")
            came += peer.recv(70_000) == b"again"
        server.stop()
        tap.check("udp_echo: --source-rate 0 drops nothing", came == 2_000, came)


# ---- drain and stop ------------------------------------------------------------------------------

def test_drain():
    """SIGTERM: the door shuts, queued output is flushed, quiet ones end at once."""
    with example("own_loop", "--drain-ms", "15000") as server:
        quiet = programs.connect(server.port)
        quiet.sendall(b"q")
        programs.read_exactly(quiet, 1)
        busy = programs.connect(server.port)
        sent = send_until_stuck(busy)
        server.send_signal(signal.SIGTERM)
        tap.check("drain: a quiet connection ends at once", programs.read_all(quiet) == b"")
        tap.check("drain: the door is shut", refused(server.port))
        tap.check("drain: it waits for output that is not flushed", server.process.poll() is None)
        programs.finish_sending(busy)
        got = programs.read_all(busy)
        # Bytes that no turn had received yet are not under way: an echo knows no exchanges.
        tap.check("drain: what was queued is flushed whole, then a FIN",
                  len(got) > 65_536 and sent.startswith(got), f"{len(got)} of {len(sent)}")
        ends_well("drain: exit code 0", server.end(), 50)
    with example("own_loop", "--drain-ms", "300") as server:
        stuck = programs.connect(server.port)
        send_until_stuck(stuck)
        started = time.monotonic()
        ended = server.stop()
        took = time.monotonic() - started
        ends_well("drain: its deadline ends what never finishes", ended, 50)
        tap.check("drain: not before its deadline", 0.3 <= took < 5, took)


def test_stop_ends_a_drain():
    with example("own_loop", "--drain-ms", "600000") as server:
        stuck = programs.connect(server.port)
        send_until_stuck(stuck)
        for which in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            server.send_signal(which)
        ends_well("stop: ends a drain that waits, asked twice each", server.end(), 50)
        tap.check("stop: resets who is left", programs.read_all(stuck).endswith(b"RESET"))


def send_until_stuck(peer):
    """Sends zeros without reading the echo until nothing moves any more."""
    peer.setblocking(False)
    sent = 0

    def stuck():
        nonlocal sent
        before = sent
        try:
            while True:
                sent += peer.send(bytes(65_536))
        except BlockingIOError:
            return sent == before and sent > 0

    quiet_rounds = 0
    while quiet_rounds < 10:
        quiet_rounds = quiet_rounds + 1 if stuck() else 0
        programs.until(lambda: False, 0.02)
    peer.settimeout(programs.SECONDS_MAX)
    return bytes(sent)


def refused(port):
    """True once the system itself turns a new client away."""
    def turned_away():
        try:
            programs.connect(port).close()
            return False
        except ConnectionRefusedError:
            return True
    return programs.until(turned_away)


def test_stop():
    for name, first in (("own_loop", b"x"), ("proxy_echo", PROXY_LINE), ("chat", b"x")):
        with example(name) as server, programs.connect(server.port) as peer:
            peer.sendall(first)
            programs.until(lambda: False, 0.05)
            server.send_signal(signal.SIGINT)
            said = programs.read_all(peer)
            tap.check(f"{name}: SIGINT resets what is open", said.endswith(b"RESET"), said)
            ends_well(f"{name}: SIGINT ends it with exit code 0", server.end(), 20)


programs.raise_descriptor_limit(2 * CLIENTS + 200)
test_echo()
test_echo_without_epoll()
test_own_backend()
test_proxy_echo()
test_records()
test_chat()
test_chat_slow_reader()
test_own_loop()
test_udp_echo()
test_drain()
test_stop_ends_a_drain()
test_stop()
tap.finish()
