#!/usr/bin/env python3
"""gateway: every byte, in order, both ways, at anybody's pace; half-closes, resets, PROXY, drain.

NETIO_LONG=1 moves 1 GiB each way instead of 32 MiB.
"""
import contextlib
import hashlib
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import programs
import tap

MIB = 1 << 20
SOAK_BYTES = 1024 * MIB if os.environ.get("NETIO_LONG") else 32 * MIB
PAIRS = 8
COPIED_MAX = 536
SIGNATURE = bytes.fromhex("0d0a0d0a000d0a515549540a")
BUFFER = 16 * 1024 + 64


OVER = []  # options of every gateway: over which backend


def check(name, *how):
    tap.check(" ".join([*OVER[1:], name]), *how)


class Pair:
    """A gateway with a listener behind it; `open` gives both ends of one more pair."""

    def __init__(self, *arguments, host="127.0.0.1"):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.listener.settimeout(programs.SECONDS_MAX)
        to = "127.0.0.1:{}".format(self.listener.getsockname()[1])
        self.gateway = programs.Program(programs.build("gateway"), "--listen",
                                        f"[{host}]:0" if ":" in host else f"{host}:0", "--to", to,
                                        *OVER, *arguments)
        self.host = host
        self.sockets = []

    def client(self):
        self.sockets.append(programs.connect(self.gateway.port, self.host))
        return self.sockets[-1]

    def upstream(self):
        self.sockets.append(self.listener.accept()[0])
        self.sockets[-1].settimeout(programs.SECONDS_MAX)
        return self.sockets[-1]

    def open(self):
        return self.client(), self.upstream()

    def end(self, which=signal.SIGTERM):
        """(exit code, the counts of the last line by name)."""
        if which is not None:
            self.gateway.send_signal(which)
        code, lines, errors = self.gateway.end()
        said = re.findall(r"([a-z ]+) (\d+)", lines[-1].split(":", 1)[1]) if lines else []
        if errors:
            print(f"# gateway said: {errors}")
        return code, {name.strip(): int(count) for name, count in said}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in [*self.sockets, self.listener]:
            one.close()
        self.gateway.__exit__()


def ends_well(name, pair, which=signal.SIGTERM):
    code, counts = pair.end(which)
    check(name, code == 0 and counts.get("still open") == 0, f"exit {code}, {counts}")
    return counts


def reset(of):
    of.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    of.close()


# ---- half-close ----------------------------------------------------------------------------------

def test_half_close():
    with Pair() as pair:
        for count in (0, 1, BUFFER - 1, BUFFER, BUFFER + 1, 200_000):
            for turned in (False, True):
                first, second = pair.open()[::-1 if turned else 1]
                sent, answer = os.urandom(count), os.urandom(1000)
                thread = threading.Thread(target=send_and_finish, args=(first, sent))
                thread.start()
                got = programs.read_all(second)
                second.sendall(answer)  # behind the other direction's end
                programs.finish_sending(second)
                late = programs.read_all(first)
                thread.join()
                who = "upstream" if turned else "client"
                check(f"half-close of the {who} behind {count} bytes is carried through",
                          got == sent and late == answer, f"{len(got)}, {len(late)}")
        client, upstream = pair.open()
        send_and_finish(client, b"request")
        got = programs.read_all(upstream)
        programs.until(lambda: False, 0.2)  # the answer takes its time to compute
        send_and_finish(upstream, b"answer" * 10_000)
        late = programs.read_all(client)
        check("half-close: an answer 200 ms after the request's end is whole",
                  got == b"request" and late == b"answer" * 10_000, f"{got}, {len(late)}")
        counts = ends_well("half-close: pairs are gone", pair)
        check("half-close: no byte copied", counts.get("copied") == 0, counts)


def send_and_finish(of, sent):
    of.sendall(sent)
    programs.finish_sending(of)


# ---- failures ------------------------------------------------------------------------------------

def test_connect_failure():
    to = programs.free_port()
    with programs.Program(programs.build("gateway"), "--listen", "127.0.0.1:0", "--to",
                          f"127.0.0.1:{to}", *OVER) as gateway:
        said = [programs.turned_away(gateway.port, sent) for sent in (b"", b"hello" * 1000)]
        check("connect failure: the client is reset", said == [b"RESET"] * 2, said)
        code, lines, _ = gateway.stop()
        check("connect failure: nothing is left", code == 0 and "connected 0," in lines[-1] and
                  lines[-1].endswith("still open 0"), lines)


def test_resets():
    with Pair() as pair:
        client, upstream = pair.open()
        answer = os.urandom(300_000)
        thread = threading.Thread(target=answer_and_reset, args=(upstream, client, answer))
        thread.start()
        got = programs.read_all(client)
        thread.join()
        check("reset upstream: what it answered before arrives", got.startswith(answer),
                  f"{len(got)} of {len(answer)}")
        client, upstream = pair.open()
        reset(client)
        check("reset of the client: upstream's end comes at once",
                  programs.read_all(upstream) in (b"", b"RESET"))
        client, upstream = pair.open()
        upstream.sendall(b"x" * 50_000)
        programs.read_exactly(client, 1)
        reset(client)
        check("reset of the client while it is answered",
                  programs.read_all(upstream) in (b"", b"RESET"))
        ends_well("resets: nothing is left", pair)


def answer_and_reset(upstream, client, answer):
    """Resets once the gateway has taken the whole answer: until then the kernel would drop it."""
    client.sendall(b"request")
    programs.read_exactly(upstream, 7)
    upstream.sendall(answer)
    programs.until(lambda: unsent_bytes(upstream) == 0)
    programs.until(lambda: False, 0.1)  # acknowledged; now let it be received
    reset(upstream)


def unsent_bytes(of):
    import fcntl  # only here, only Linux
    siocoutq = 0x5411
    return struct.unpack("i", fcntl.ioctl(of.fileno(), siocoutq, bytes(4)))[0]


def test_cap():
    with Pair("--connections", "2") as pair:
        held = [pair.open() for _ in range(2)]
        said = programs.turned_away(pair.gateway.port, b"x")
        check("cap: one client too many is reset", said == b"RESET", said)
        held[0][0].sendall(b"still here")
        check("cap: the others go on", programs.read_exactly(held[0][1], 10) == b"still here")
        for end in held[0]:
            end.close()

        def served():
            with contextlib.suppress(ConnectionError):
                with programs.connect(pair.gateway.port) as again:
                    again.sendall(b"again")
                    again.settimeout(0.1)
                    with contextlib.suppress(TimeoutError):
                        return again.recv(1) == b"" and False
                    return True
            return False

        check("cap: a place that is free again is given", programs.until(served))
        counts = ends_well("cap: nothing is left", pair, signal.SIGINT)
        check("cap: counted", counts.get("refused", 0) >= 1, counts)


# ---- deadlines -----------------------------------------------------------------------------------

def test_idle():
    with Pair("--idle-ms", "300") as pair:
        client, upstream = pair.open()
        client.sendall(b"x")
        programs.read_exactly(upstream, 1)
        started = time.monotonic()
        said = programs.read_all(client), programs.read_all(upstream)
        took = time.monotonic() - started
        check("idle: both ends are reset after their time", said == (b"RESET",) * 2 and
                  0.25 < took < 3, f"{said} after {took}")
        client, upstream = pair.open()
        rounds = 0
        for _ in range(10):  # 1 s in all, never idle for long
            programs.until(lambda: False, 0.1)
            client.sendall(b"y")
            rounds += programs.read_exactly(upstream, 1) == b"y"
        check("idle: one direction is enough to be alive", rounds == 10, rounds)
        ends_well("idle: nothing is left", pair, signal.SIGINT)


def test_write():
    with Pair("--write-ms", "400") as pair:
        client, upstream = pair.open()
        fill(client)
        said = programs.until(lambda: ended(client))
        check("write deadline: who takes nothing is reset, and so is the other", said is True)
        ends_well("write deadline: nothing is left", pair)
    with Pair("--write-ms", "2000", "--idle-ms", "300") as pair:
        client, upstream = pair.open()
        sent = fill(client)
        got = 0
        for _ in range(12):  # slower than the idle deadline, faster than the write deadline
            programs.until(lambda: False, 0.1)
            got += len(upstream.recv(2048))
        programs.finish_sending(client)
        got += len(programs.read_all(upstream))
        check("write deadline: a slow reader is not idle", got == sent, f"{got} of {sent}")
        ends_well("slow reader: nothing is left", pair, signal.SIGINT)


def fill(peer):
    """Sends until nothing moves any more; how many bytes that were."""
    peer.setblocking(False)
    sent = quiet_rounds = 0
    while quiet_rounds < 5:
        before = sent
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += peer.send(bytes(65_536))
        quiet_rounds = quiet_rounds + 1 if sent == before else 0
        programs.until(lambda: False, 0.02)
    peer.settimeout(programs.SECONDS_MAX)
    return sent


def ended(peer):
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# ---- PROXY ---------------------------------------------------------------------------------------

def packed(where):
    return socket.inet_aton(where[0]), struct.pack(">H", where[1])


def test_proxy_out():
    with Pair("--proxy-out", "v2") as pair:
        client, upstream = pair.open()
        client.sendall(b"first")
        source, source_port = packed(client.getsockname())
        to, to_port = packed(client.getpeername())
        wanted = (SIGNATURE + bytes.fromhex("2111000c") + source + to + source_port + to_port +
                  b"first")
        got = programs.read_exactly(upstream, len(wanted))
        check("proxy-out: one header before the first byte, every field in its place",
                  got == wanted, f"{got.hex()}, wanted {wanted.hex()}")
        client, upstream = pair.open()
        got = programs.read_exactly(upstream, 28)
        check("proxy-out: the header does not wait for the client's first byte",
                  got[:16] == wanted[:16], got.hex())
        ends_well("proxy-out: nothing is left", pair)
    with Pair("--proxy-out", "v2", host="::1") as pair:
        client, upstream = pair.open()
        ports = struct.pack(">HH", client.getsockname()[1], client.getpeername()[1])
        wanted = SIGNATURE + bytes.fromhex("21210024") + (bytes(15) + b"\1") * 2 + ports
        got = programs.read_exactly(upstream, len(wanted))
        check("proxy-out: an IPv6 client, told to an IPv4 upstream", got == wanted, got.hex())


LINE_6 = b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n"
BLOCK_6 = "20010db8000000000000000000000001" "20010db8000000000000000000000002" "0001" "0002"
HANDED_ON = (  # name, what comes, what goes on behind the signature
    ("TCP4", b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n",
     "2111000c" "c0000201" "c0000202" "dc04" "01bb"),
    ("TCP6", LINE_6, "21210024" + BLOCK_6),
    ("mapped addresses as plain IPv4", b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:c000:202 1 2\r\n",
     "2111000c" "c0000201" "c0000202" "0001" "0002"),
    ("one mapped side stays IPv6", b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.2 1 2\r\n",
     "21210024" "20010db8000000000000000000000001" "00000000000000000000ffffc0000202"
     "0001" "0002"),
    ("LOCAL as LOCAL of 16 bytes", SIGNATURE + bytes.fromhex("20000000"), "20000000"),
    ("LOCAL with a block", SIGNATURE + bytes.fromhex("2011000c" + "c0" * 12), "20000000"),
    ("TLVs are left out", SIGNATURE + bytes.fromhex("21110013" "c0000201" "c0000202" "dc04" "01bb"
                                                     "ea0004" "01763031"),
     "2111000c" "c0000201" "c0000202" "dc04" "01bb"),
    ("unix paths as UNSPEC", SIGNATURE + bytes.fromhex("213100d8") + b"/run/a".ljust(108, b"\0") +
     b"/run/b".ljust(108, b"\0"), "21000000"),
)


def test_proxy_in_and_out():
    with Pair("--proxy-in", "required", "--proxy-out", "v2") as pair:
        for name, sent, wanted in HANDED_ON:
            client = pair.client()
            client.sendall(sent + b"behind")
            upstream = pair.upstream()
            expected = SIGNATURE + bytes.fromhex(wanted) + b"behind"
            programs.finish_sending(client)
            got = programs.read_all(upstream)
            check(f"proxy in and out: {name}", got == expected,
                      f"{got.hex()}, wanted {expected.hex()}")
            upstream.close()
        client = pair.client()
        client.sendall(b"PROXY UNKNOWN\r\n")
        got = programs.read_exactly(pair.upstream(), 28)
        source, source_port = packed(client.getsockname())
        check("proxy in and out: UNKNOWN becomes the socket's own addresses",
                  got[12:20] == bytes.fromhex("2111000c") + source and got[24:26] == source_port,
                  got.hex())
        client = pair.client()
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        check("proxy-in: a direct client is reset", programs.read_all(client) == b"RESET")
        ends_well("proxy in and out: nothing is left", pair)


def test_copied():
    """All that came in one segment with the header is copied once, and nothing after that."""
    with Pair("--proxy-in", "required") as pair:
        client = pair.client()
        behind = os.urandom(COPIED_MAX + 1 - len(LINE_6))
        client.sendall(LINE_6 + behind)
        upstream = pair.upstream()
        got = programs.read_exactly(upstream, len(behind))
        more = os.urandom(MIB)
        thread = threading.Thread(target=send_and_finish, args=(client, more))
        thread.start()
        got += programs.read_all(upstream)
        thread.join()
        upstream.close()
        programs.read_all(client)
        counts = ends_well("copied: nothing is left", pair)
        check("copied: at most the 536 bytes of the header's segment",
                  got == behind + more and 0 < counts.get("copied", -1) <= COPIED_MAX, counts)


# ---- backpressure --------------------------------------------------------------------------------

def test_both_stuck():
    """Nobody reads: bounded, both ways at once; then both read: nothing was lost or mixed up."""
    with Pair() as pair:
        client, upstream = pair.open()
        sent = fill(client), fill(upstream)
        check("both stuck: the gateway takes a bounded amount", max(sent) < 64 * MIB, sent)
        programs.finish_sending(client)
        programs.finish_sending(upstream)
        got = [0, 0]
        threads = [threading.Thread(target=count_all, args=(of, got, at))
                   for at, of in enumerate((upstream, client))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check("both stuck: everything arrives once both read", tuple(got) == sent,
                  f"{got} of {sent}")
        counts = ends_well("both stuck: nothing is left", pair)
        # A ring may bring one buffer more than was asked for before it can be stopped: once a
        # direction, for each gets stuck once.
        most = 2 * BUFFER if OVER else 0
        check(f"both stuck: {'two buffers at most' if OVER else 'no byte'} copied",
              0 <= counts.get("copied", -1) <= most, counts)


def count_all(of, counts, at):
    counts[at] = len(programs.read_all(of))


# ---- soak ----------------------------------------------------------------------------------------

def pour(into, seed, count, digests, name):
    pieces = random.Random(seed)
    digest = hashlib.sha256()
    while count > 0:
        piece = pieces.randbytes(min(count, pieces.choice((1, 100, 5_000, 70_000, 300_000))))
        into.sendall(piece)
        digest.update(piece)
        count -= len(piece)
    programs.finish_sending(into)
    digests[name] = digest.hexdigest()


def drink(out_of, seed, digests, name):
    """Reads in pieces of random sizes and rests now and then, so that the sender meets a wall."""
    pieces = random.Random(seed)
    digest = hashlib.sha256()
    while piece := out_of.recv(pieces.choice((1, 1_000, 20_000, 200_000))):
        digest.update(piece)
        if pieces.random() < 0.02:
            programs.until(lambda: False, 0.02)
    digests[name] = digest.hexdigest()


def soak_pair(client, upstream, seed, counts):
    """Four streams of threads on one pair; whoever has less to send half-closes long before."""
    client_bytes, upstream_bytes = counts
    digests = {}
    jobs = [(pour, client, seed, client_bytes, digests, "client sent"),
            (drink, upstream, seed + 1, digests, "upstream got"),
            (pour, upstream, seed + 2, upstream_bytes, digests, "upstream sent"),
            (drink, client, seed + 3, digests, "client got")]
    threads = [threading.Thread(target=job[0], args=job[1:]) for job in jobs]
    for one in (client, upstream):
        one.settimeout(300)
    return threads, digests


def run_soak(pair, soak_bytes, seed):
    """Pours `soak_bytes` each way through PAIRS pairs of unequal shares; what came out wrong."""
    rng = random.Random(seed)
    shares = [rng.random() ** 2 + 0.01 for _ in range(PAIRS)]
    runs = []
    for at, part in enumerate(shares):
        counts = [int(soak_bytes * one / sum(shares)) for one in (part, shares[-1 - at])]
        runs.append(soak_pair(*pair.open(), 100 * at + seed, counts))
    for threads, _ in runs:
        for thread in threads:
            thread.start()
    for threads, _ in runs:
        for thread in threads:
            thread.join()
    return [digests for _, digests in runs
            if len(digests) != 4 or digests["client sent"] != digests["upstream got"] or
            digests["upstream sent"] != digests["client got"]]


def soak(workers):
    with Pair("--workers", workers) as pair:
        started = time.monotonic()
        wrong = run_soak(pair, SOAK_BYTES, 20 + workers)
        took = time.monotonic() - started
        name = f"soak, {workers} worker{'s' if workers > 1 else ''}"
        check(f"{name}: {SOAK_BYTES // MIB} MiB each way, hashes equal", not wrong, wrong)
        counts = ends_well(f"{name}: nothing is left", pair)
        check(f"{name}: at most {COPIED_MAX} bytes copied a connection",
                  counts.get("copied", 1 << 40) <= COPIED_MAX * 2 * PAIRS, counts)
        print(f"# report: {name}: {SOAK_BYTES // MIB} MiB each way over {PAIRS} pairs in "
              f"{took:.1f} s, {counts.get('copied')} bytes copied")


def test_few_buffers():
    """Fewer buffers than ends: everybody waits for their turn, and nobody for ever."""
    for buffers in (2, 5):
        with Pair("--buffers", buffers) as pair:
            wrong = run_soak(pair, 4 * MIB, buffers)
            check(f"{buffers} buffers for {2 * PAIRS} ends: hashes equal", not wrong, wrong)
            ends_well(f"{buffers} buffers: nothing is left", pair)


# ---- a storm -------------------------------------------------------------------------------------

def storm_client(port, seed, count, wrong):
    """Ends its connections in every way there is; where it waits for the whole echo, it counts."""
    rng = random.Random(seed)
    for _ in range(count):
        how = rng.choice(("finish", "finish", "close", "reset", "leave"))
        sent = rng.randbytes(rng.choice((0, 1, 64, BUFFER, 100_000)))
        with contextlib.suppress(ConnectionError):
            peer = programs.connect(port)
            peer.sendall(sent)
            if how == "finish":
                programs.finish_sending(peer)
                got = programs.read_all(peer)
                wrong += [] if got == sent else [f"{len(got)} of {len(sent)}"]
            elif how == "reset":
                programs.read_exactly(peer, rng.randint(0, len(sent)))
                reset(peer)
            elif how == "close":
                programs.read_exactly(peer, len(sent))
            peer.close()  # leave: unread bytes, so a reset


def test_storm(threads_max=8, each=60):
    with programs.Program(programs.build("own_loop"), "--listen", "127.0.0.1:0") as echo, \
            programs.Program(programs.build("gateway"), "--listen", "127.0.0.1:0", "--to",
                             f"127.0.0.1:{echo.port}", "--workers", "2", *OVER) as gateway:
        wrong = []
        threads = [threading.Thread(target=storm_client, args=(gateway.port, at, each, wrong))
                   for at in range(threads_max)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(f"storm: {threads_max * each} clients that end in every way, each echo whole",
                  wrong == [], wrong)
        for program in (gateway, echo):
            code, lines, errors = program.stop()
            check("storm: both ends are gone, exit code 0", code == 0 and errors == "",
                      f"{code} {lines[-1:]} {errors}")
        check("storm: the gateway's counts", f"accepted {threads_max * each}, " in
                  gateway.lines[-1] and gateway.lines[-1].endswith("still open 0"),
                  gateway.lines[-1])


# ---- drain and stop ------------------------------------------------------------------------------

def test_drain():
    with Pair() as pair:
        quiet = pair.open()
        client, upstream = pair.open()
        client.sendall(b"request")
        programs.read_exactly(upstream, 7)
        pair.gateway.send_signal(signal.SIGTERM)
        check("drain: the door is shut",
                  programs.until(lambda: not programs.accepts(pair.gateway.port)))
        answer = os.urandom(500_000)
        thread = threading.Thread(target=send_and_finish, args=(upstream, answer))
        thread.start()
        got = programs.read_exactly(client, len(answer))
        check("drain: an exchange under way is finished", got == answer,
                  f"{len(got)} of {len(answer)}")
        thread.join()
        programs.finish_sending(client)
        check("drain: a quiet pair ends with a FIN on both sides",
                  [programs.read_all(end) for end in quiet] == [b"", b""])
        ends_well("drain: exit code 0", pair, None)
    with Pair("--drain-ms", "200") as pair:
        client, upstream = pair.open()
        fill(client)
        started = time.monotonic()
        ends_well("drain: its deadline ends what is left", pair)
        took = time.monotonic() - started
        check("drain: at its deadline", 0.2 <= took < 5, took)


def test_stop():
    with Pair("--workers", "2") as pair:
        ends = [end for _ in range(4) for end in pair.open()]
        pair.gateway.send_signal(signal.SIGINT)
        said = [programs.read_all(end) for end in ends]
        check("stop: both ends of every pair are reset", said == [b"RESET"] * 8, said)
        ends_well("stop: exit code 0", pair, None)


def refusal_of(backend):
    """What a gateway says that can't serve over this backend; empty if it can."""
    command = [programs.build("gateway"), "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1",
               "--backend", backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        listens = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    return "" if listens else said


def test_pairs():
    test_half_close()
    test_connect_failure()
    test_resets()
    test_cap()
    test_idle()
    test_write()
    test_proxy_out()
    test_proxy_in_and_out()
    test_copied()
    test_both_stuck()
    test_drain()
    test_stop()
    test_few_buffers()
    test_storm()
    soak(1)
    soak(2)


def main():
    said = refusal_of("nonsense")
    check("a backend that is not there is refused by its name",
          said == "gateway: --backend nonsense: there is none of that name here\n", said)
    test_pairs()
    missing = refusal_of("io_uring")
    if missing:
        tap.skip("the same over io_uring", missing.strip())
        return
    OVER.extend(["--backend", "io_uring"])
    test_pairs()


main()
tap.finish()
