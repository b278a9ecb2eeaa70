#!/usr/bin/env python3
"""The RPC examples: the bridge against curl and hostile bytes, calls over each transport, and what
promises save between two processes."""
import random
import re
import shutil
import signal
import socket
import struct
import subprocess

import programs
import tap

PATH = "/active.rpc.v1.Agent/Call"
TYPE = "application/connect+active-infinity"
WINDOW = 16 * 1024 + 64    # limits::buffer_bytes: a head and its body
HEAD_MAX = 8192
CALLS = 2000
SUM = sum(left + 1 for left in range(1, CALLS + 1))

REQUEST, RESPONSE, ERROR, HELLO = 1, 2, 3, 4


# ---- envelopes -----------------------------------------------------------------------------------

def text(of):
    return struct.pack("<I", len(of)) + of


def integer(number):
    return struct.pack("<BBq", 0, 2, number)


def promise(number):
    return struct.pack("<BQ", 1, number)


def capability(octets):
    return b"\x02" + octets


def map_of(**fields):
    whole = struct.pack("<BBI", 0, 6, len(fields))
    for key in sorted(fields):
        whole += text(key.encode()) + struct.pack("<Bq", 2, fields[key])
    return whole


def envelope(kind, number, method=b"", arguments=(), payload=b"", flags=0):
    version = 0x81 if arguments else 1
    return (b"ARP1" + struct.pack("<BBHQ", version, kind, flags, number) + text(method) +
            struct.pack("<I", len(arguments)) + b"".join(arguments) + text(payload) + bytes(4))


def add(number, *terms):
    return envelope(REQUEST, number, b"add", [integer(term) for term in terms])


def response(number, argument):
    return envelope(RESPONSE, number, arguments=[argument])


def error(number, code):
    return envelope(ERROR, number, code.encode())


# ---- HTTP ----------------------------------------------------------------------------------------

def framed(of):
    return b"\x00" + struct.pack(">I", len(of)) + of


def head(*more, method="POST", path=PATH, kind=TYPE, version="HTTP/1.1"):
    lines = [f"{method} {path} {version}", "Host: test"]
    lines += [f"Content-Type: {kind}"] if kind else []
    return "\r\n".join([*lines, *more]).encode() + b"\r\n\r\n"


def post(body, *more, **choice):
    return head(f"Content-Length: {len(body)}", *more, **choice) + body


def call(of, *more, **choice):
    return post(framed(of), *more, **choice)


class Answer:
    """Status, headers in lower case, body; status 0: there was none."""

    def __init__(self, read):
        self.status, self.headers, self.body = 0, {}, b""
        whole = b""
        while not whole.endswith(b"\r\n\r\n"):
            if not (more := read(1)):
                self.body = whole
                return
            whole += more
        first, *lines = whole.decode("latin-1").split("\r\n")[:-2]
        self.status = int(re.fullmatch(r"HTTP/1\.1 (\d{3}) [A-Z][A-Za-z ]*", first)[1])
        self.headers = {line.split(": ")[0].lower(): line.split(": ")[1] for line in lines}
        self.body = read(int(self.headers.get("content-length", 0)))

    def is_call(self, status, of, kind=TYPE):
        return (self.status == status and self.body == framed(of) and
                self.headers.get("content-type") == kind)

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body!r}"


def answer(peer):
    return Answer(lambda count: programs.read_exactly(peer, count))


class Reader:
    """Answers out of large reads, for when there are many."""

    def __init__(self, peer):
        self.peer, self.left = peer, b""

    def __call__(self, count):
        while len(self.left) < count and (more := self.peer.recv(1 << 16)):
            self.left += more
        out, self.left = self.left[:count], self.left[count:]
        return out


def bridge(*arguments):
    return programs.Program(programs.build("rpc_http"), "--listen", "127.0.0.1:0", *arguments)


def ask(port, sent, ends=False):
    """One request on a connection of its own: its answer, and what comes after it."""
    with programs.connect(port) as peer:
        peer.sendall(sent)
        if ends:
            programs.finish_sending(peer)
        got = answer(peer)
        if got.headers.get("connection") != "close":
            programs.finish_sending(peer)
        return got, programs.read_all(peer)


def serves(port):
    return ask(port, call(add(1, 2, 3)))[0].is_call(200, response(1, integer(5)))


def curl(port, body, *more, kind=TYPE):
    ran = subprocess.run(["curl", "-sS", "-i", "--max-time", "20", "-H", f"Content-Type: {kind}",
                          "--data-binary", "@-", *more, f"http://127.0.0.1:{port}{PATH}"],
                         input=body, capture_output=True, check=False)
    return ran.stdout, f"{ran.returncode} {ran.stderr} {ran.stdout}"


def answer_of(whole):
    at = 0

    def read(count):
        nonlocal at
        at += count
        return whole[at - count:at]
    return Answer(read)


def test_curl(port):
    if shutil.which("curl") is None:
        tap.skip("rpc_http: curl calls", "no curl here")
        return
    said, why = curl(port, framed(add(7, 40, 2)))
    tap.check("rpc_http: curl calls", answer_of(said).is_call(200, response(7, integer(42))), why)
    said, why = curl(port, framed(envelope(REQUEST, 9, b"subtract")))
    tap.check("rpc_http: curl hears of a refusal",
              answer_of(said).is_call(200, error(9, "rpc/method-not-granted")), why)
    said, why = curl(port, b"no envelope")
    tap.check("rpc_http: curl hears of a broken frame",
              answer_of(said).is_call(400, error(0, "rpc/wire")), why)
    said, why = curl(port, framed(add(8, 1)), "-H", "Expect: 100-continue")
    go_on, _, rest = said.partition(b"\r\n\r\n")
    tap.check("rpc_http: curl waits until it is told to go on",
              go_on == b"HTTP/1.1 100 Continue" and
              answer_of(rest).is_call(200, response(8, integer(1))), why)
    said, why = curl(port, b"", "-X", "GET")
    got = answer_of(said)
    tap.check("rpc_http: curl may not GET", got.status == 405 and got.headers["allow"] == "POST",
              why)
    said, why = curl(port, framed(add(1, 1)), "--http1.0")
    got = answer_of(said)
    tap.check("rpc_http: HTTP/1.0, and its connection ends",
              got.is_call(200, response(1, integer(1))) and got.headers["connection"] == "close",
              why)


def test_calls(port):
    """What a session of one call can be told."""
    nobody = bytes(range(16))
    cases = (
        ("a sum", add(1, 2, 3), 200, response(1, integer(5))),
        ("any id", add(2**64 - 1), 200, response(2**64 - 1, integer(0))),
        ("redacted, and told so", envelope(REQUEST, 3, b"add", [integer(1)], flags=1), 200,
         envelope(RESPONSE, 3, arguments=[integer(1)], flags=1)),
        ("no such method", envelope(REQUEST, 4, b"sub"), 200, error(4, "rpc/method-not-granted")),
        ("no such capability", envelope(REQUEST, 5, b"add", [capability(nobody)]), 200,
         error(5, "rpc/unknown-capability")),
        ("a promise, of which a session of one call has none",
         envelope(REQUEST, 6, b"add", [promise(1)]), 200, error(6, "rpc/unknown-promise")),
        ("id 0", add(0, 1), 400, error(0, "rpc/wire")),
        ("a hello", envelope(HELLO, 7), 400, error(7, "rpc/wire")),
        ("a response", response(8, integer(1)), 400, error(8, "rpc/wire")),
        ("an error", error(9, "rpc/wire"), 400, error(9, "rpc/wire")),
        ("a cut envelope", add(10, 1)[:-1], 400, error(10, "rpc/wire")),
        ("bytes behind an envelope", add(11, 1) + b"\x00", 400, error(11, "rpc/wire")),
        ("an unknown version", b"ARP1\x02" + add(12, 1)[5:], 400, error(12, "rpc/wire")),
        ("other magic", b"ARP2" + add(13, 1)[4:], 400, error(0, "rpc/wire")),
        ("an empty frame", b"", 400, error(0, "rpc/wire")),
    )
    with programs.connect(port) as peer:
        for name, sent, status, wanted in cases:
            peer.sendall(call(sent))
            got = answer(peer)
            tap.check(f"rpc_http: {name}: {status}", got.is_call(status, wanted), got)
        wrong = {
            "no body": b"",
            "a body of four bytes": bytes(4),
            "a compressed frame": b"\x01" + framed(add(1, 1))[1:],
            "a frame longer than its body": framed(add(1, 1))[:-1],
            "a body longer than its frame": framed(add(1, 1)) + b"\x00",
            "a little-endian size": b"\x00" + text(add(1, 1)),
            "a frame of 4 GiB": b"\x00\xff\xff\xff\xff" + add(1, 1),
        }
        for name, body in wrong.items():
            peer.sendall(post(body))
            got = answer(peer)
            tap.check(f"rpc_http: {name}: 400", got.is_call(400, error(0, "rpc/wire")), got)
        for kind in ("application/grpc", "application/grpc+proto", "Application/GRPC+x.y",
                     "application/connect+Active-Infinity"):
            peer.sendall(call(add(1, 4), kind=f"{kind} ; charset=utf-8"))
            got = answer(peer)
            tap.check(f"rpc_http: {kind} is answered in kind",
                      got.is_call(200, response(1, integer(4)), kind), got)


def statuses():
    """Name, what is sent, the status it gets."""
    body = framed(add(1, 1))
    whole = f"Content-Length: {len(body)}"
    yield "another path", post(body, path="/active.rpc.v1.Agent/Cal"), 404
    yield "a longer path", post(body, path=PATH + "/"), 404
    for method in ("GET", "PUT", "HEAD", "post"):
        yield method, head(method=method), 405
    yield "no Content-Length", head(), 411
    yield "chunks", head("Transfer-Encoding: chunked") + b"0\r\n\r\n", 501
    yield "chunks and a length", head(whole, "transfer-encoding: identity") + body, 501
    yield "a body for no window", head(f"Content-Length: {WINDOW}"), 413
    yield "a body of more than 2^64", head(f"Content-Length: {2**64 + 1}"), 413
    yield "no content type", post(body, kind=None), 415
    yield "JSON", post(body, kind="application/json"), 415
    yield "half a gRPC type", post(body, kind="application/grpc+"), 415
    yield "nearly a gRPC type", post(body, kind="application/grpcx"), 415
    yield "a gRPC type with a blank", post(body, kind="application/grpc+a b"), 415
    yield "an endless type", post(body, kind="application/grpc+" + "x" * 48), 415
    yield "an endless head", b"POST " + PATH.encode() + b" HTTP/1.1\r\nX: " + b"x" * HEAD_MAX, 431
    yield "HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505
    yield "HTTP/0.9 by number", head(version="HTTP/0.9"), 505
    for name, line in (("no version", b"GET /"), ("no target", b"POST HTTP/1.1"),
                       ("two blanks", b"POST  /x HTTP/1.1"), ("four words", b"POST / x HTTP/1.1"),
                       ("a tab in the target", b"POST /\t HTTP/1.1"),
                       ("no method", b" / HTTP/1.1"), ("a method of marks", b"P(ST / HTTP/1.1"),
                       ("HTTP/1.10", b"POST / HTTP/1.10"), ("another protocol", b"GET / RTSP/1.1"),
                       ("small letters", b"GET / http/1.1")):
        yield name, line + b"\r\nHost: test\r\n\r\n", 400
    for name, line in (("no colon", b"Host"), ("no name", b": x"), ("a blank in a name", b"A : x"),
                       ("a folded line", b" x"), ("a zero", b"A: \x00"), ("a bell", b"A: \x07"),
                       ("a delete", b"A: \x7f"), ("a bare line feed", b"A: x\nB: y"),
                       ("a bare carriage return", b"A: x\rB: y"), ("two hosts", b"Host: other"),
                       ("two types", b"Content-Type: application/grpc")):
        yield name, head()[:-2] + line + b"\r\n\r\n", 400
    yield "no host", head().replace(b"Host: test\r\n", b""), 400
    for value in ("", "x", "-1", "+1", "0x10", "1 2", "1,1", "1.0"):
        yield f"length '{value}'", head(f"Content-Length: {value}"), 400
    yield "two lengths", post(body, "Content-Length: 1"), 400
    yield "a TLS client", bytes.fromhex("16030100c8010000c40303") + bytes(80), 400


def test_statuses(port):
    for name, sent, status in statuses():
        got, rest = ask(port, sent)
        tap.check(f"rpc_http: {name}: {status}, and the connection ends",
                  got.status == status and got.body == b"" and rest == b"" and
                  got.headers == {"content-length": "0", "connection": "close",
                                  **({"allow": "POST"} if status == 405 else {})},
                  f"{got} {rest}")
    body = framed(add(1, 1))
    got, _ = ask(port, post(body, f"content-length: {len(body)}"))
    tap.check("rpc_http: twice the same length is one", got.is_call(200, response(1, integer(1))),
              got)
    for over in (0, 1):
        # the head that asks for a body has as many bytes as this one
        room = WINDOW - len(head("Content-Length: 12345")) + over
        payload = bytes(room - len(framed(envelope(REQUEST, 1, b"add"))))
        got, _ = ask(port, call(envelope(REQUEST, 1, b"add", payload=payload)))
        tap.check(f"rpc_http: a body {over} larger than the window",
                  got.status == 413 if over else got.is_call(200, response(1, integer(0))), got)
        filler = HEAD_MAX - len(call(add(1, 1), "X: ")) + len(body) + over
        got, _ = ask(port, call(add(1, 1), "X: " + "x" * filler))
        tap.check(f"rpc_http: a head {over} larger than the limit",
                  got.status == 431 if over else got.is_call(200, response(1, integer(1))), got)


def test_keep_alive(port):
    with programs.connect(port) as peer:
        wrong = []
        for number in range(1, 201):
            peer.sendall(call(add(number, number, 1)))
            got = answer(peer)
            if not got.is_call(200, response(number, integer(number + 1))):
                wrong.append(got)
        tap.check("rpc_http: 200 requests on one connection", wrong == [], wrong[:2])
        peer.sendall(call(add(1, 1)) + call(envelope(REQUEST, 1, b"x")) + b"\r\n" + post(b"?") +
                     call(add(2, 2)))
        got = [answer(peer) for _ in range(4)]
        tap.check("rpc_http: several in one write are answered in their order",
                  got[0].is_call(200, response(1, integer(1))) and
                  got[1].is_call(200, error(1, "rpc/method-not-granted")) and
                  got[2].is_call(400, error(0, "rpc/wire")) and
                  got[3].is_call(200, response(2, integer(2))), got)
        peer.sendall(call(add(1, 1), "Connection: x, Close") + call(add(2, 2)))
        got = answer(peer)
        tap.check("rpc_http: a client that wants to end is the last one heard",
                  got.is_call(200, response(1, integer(1))) and
                  got.headers.get("connection") == "close" and programs.read_all(peer) == b"", got)
    got, rest = ask(port, call(add(1, 1)) + call(add(2, 2)), ends=True)
    tap.check("rpc_http: who has sent all still hears all",
              got.is_call(200, response(1, integer(1))) and
              answer_of(rest).is_call(200, response(2, integer(2))), f"{got} {rest}")


def test_splits(port):
    """Between two pieces another client is answered: the server has seen the first one by then."""
    whole = call(add(9, 4, 5))
    wanted = response(9, integer(9))
    with programs.connect(port) as peer, programs.connect(port) as other:
        def seen():
            other.sendall(call(add(1, 1)))
            return answer(other).status == 200

        wrong = []
        for cut in range(1, len(whole)):
            peer.sendall(whole[:cut])
            seen()
            peer.sendall(whole[cut:])
            got = answer(peer)
            if not got.is_call(200, wanted):
                wrong.append((cut, got))
        tap.check("rpc_http: a request in two pieces, wherever it is cut", wrong == [], wrong[:2])
        for at in range(len(whole)):
            peer.sendall(whole[at:at + 1])
            seen()
        got = answer(peer)
        tap.check("rpc_http: a request byte by byte", got.is_call(200, wanted), got)
        peer.sendall(call(add(1, 1)) + whole[:40])
        tap.check("rpc_http: one request and a piece of the next",
                  answer(peer).is_call(200, response(1, integer(1))))
        peer.sendall(whole[40:])
        tap.check("rpc_http: and the rest of it", answer(peer).is_call(200, wanted))


def test_hostile(port):
    known = {0, 200, 400, 404, 405, 411, 413, 415, 431, 501, 505}
    source = random.Random(20)
    wrong = []
    for _ in range(200):
        got, rest = ask(port, source.randbytes(source.randrange(1, 400)), ends=True)
        if got.status not in (0, 400) or got.body != b"" or rest != b"":
            wrong.append((got, rest))
    tap.check("rpc_http: garbage is 400 or nothing", wrong == [], wrong[:2])
    whole = call(add(9, 4, 5))
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << source.randrange(8)
        got, rest = ask(port, bytes(changed), ends=True)
        if got.status not in known or (got.status == 0 and got.body != b""):
            wrong.append((bytes(changed), got, rest))
    tap.check("rpc_http: a bit turned anywhere is an answer or an end", wrong == [], wrong[:2])
    for cut in (10, len(whole) - 40, len(whole) - 1):
        got, rest = ask(port, whole[:cut], ends=True)
        tap.check(f"rpc_http: cut after {cut} bytes: no answer",
                  got.status == 0 and got.body == b"" and rest == b"", f"{got} {rest}")
        with programs.connect(port) as peer:
            peer.sendall(whole[:cut])
    tap.check("rpc_http: others are served as before", serves(port))


def test_slow_reader(port):
    """Who asks and does not read is waited for, in bounded memory, and loses no answer."""
    with socket.socket() as peer, programs.connect(port) as other:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        peer.connect(("127.0.0.1", port))
        peer.setblocking(False)
        sent, number, left, stuck = 0, 0, b"", 0
        while stuck < 20 and number < 200_000:
            if not left:
                number += 1
                left = call(add(number, number))
            try:
                done = peer.send(left)
                sent, left, stuck = sent + done, left[done:], 0
            except BlockingIOError:
                stuck += 1
                other.sendall(call(add(1, 1)))    # the server has done all it could by then
                answer(other)
        peer.settimeout(programs.SECONDS_MAX)
        reader = Reader(peer)
        first = Answer(reader)
        peer.sendall(left)
        programs.finish_sending(peer)
        wrong = [] if first.is_call(200, response(1, integer(1))) else [first]
        for at in range(2, number + 1):
            got = Answer(reader)
            if not got.is_call(200, response(at, integer(at))):
                wrong.append((at, got))
                break
        tap.check("rpc_http: who does not read stops its own requests, and then gets every answer",
                  wrong == [] and stuck == 20 and sent > 65_536 and reader(1) == b"",
                  f"{number} requests, {sent} bytes, stuck {stuck}, {wrong}")


def test_ends():
    whole = call(add(9, 4, 5))
    with bridge() as server:
        with programs.connect(server.port) as quiet, programs.connect(server.port) as half:
            for peer in (quiet, half):
                peer.sendall(call(add(1, 1)))
                answer(peer)
            half.sendall(whole[:50])
            serves(server.port)
            server.send_signal(signal.SIGTERM)
            tap.check("rpc_http: a drain ends who is between requests",
                      programs.read_all(quiet) == b"")
            half.sendall(whole[50:])
            got = answer(half)
            tap.check("rpc_http: and lets a request be answered",
                      got.is_call(200, response(9, integer(9))) and programs.read_all(half) == b"",
                      got)
        code, lines, errors = server.end()
        tap.check("rpc_http: SIGTERM ends it with exit code 0",
                  code == 0 and errors == "" and len(lines) == 1, f"{code} {lines} {errors}")
    with bridge() as server, programs.connect(server.port) as peer:
        peer.sendall(call(add(1, 1)))
        answer(peer)
        server.send_signal(signal.SIGINT)
        tap.check("rpc_http: SIGINT resets what is open",
                  programs.read_all(peer).endswith(b"RESET"))
        code, _, errors = server.end()
        tap.check("rpc_http: SIGINT ends it with exit code 0", code == 0 and errors == "",
                  f"{code} {errors}")


def test_later():
    """A copy whose provider answers no sum at once."""
    parts = (programs.ROOT / "examples" / "rpc_parts.hpp").read_text(encoding="utf-8")
    at_once = "call.reply().value_int(static_cast<std::int64_t>(sum));"
    tap.check("rpc_http: the copy's provider is another one", at_once in parts)
    path = programs.build("rpc_http", [('#include "examples/rpc_parts.hpp"\n',
                                        parts.replace(at_once, "call.later();"))])
    with programs.Program(path, "--listen", "127.0.0.1:0") as server, \
            programs.connect(server.port) as peer:
        wrong = []
        for number in range(1, 201):    # more than the kernel has lanes
            peer.sendall(call(add(number, 1)))
            got = answer(peer)
            if not got.is_call(504, error(number, "rpc/timeout")):
                wrong.append(got)
        tap.check("rpc_http: a call that is answered later: 504, each time", wrong == [],
                  wrong[:2])
        peer.sendall(call(envelope(REQUEST, 1, b"stats")))
        got = answer(peer)
        lanes = struct.pack("<I", 5) + b"lanes" + struct.pack("<Bq", 2, 1)
        tap.check("rpc_http: and nothing of them is kept", got.status == 200 and lanes in got.body,
                  got)
        code, _, errors = server.stop()
        tap.check("rpc_http: SIGTERM with calls that nobody answered", code == 0 and errors == "",
                  f"{code} {errors}")


# ---- rpc_stats -----------------------------------------------------------------------------------

def ran(name, *arguments):
    done = subprocess.run([str(programs.build(name)), *map(str, arguments)], capture_output=True,
                          text=True, timeout=programs.SECONDS_MAX, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def told(line, over, asked):
    """The client's line: is the sum right, and are there as many calls as `asked`?"""
    found = re.fullmatch(r"over (\w+): sum (\d+), calls (\d+), batches (\d+)", line)
    return (found is not None and found[1] == over and int(found[2]) == SUM and
            int(found[3]) in asked and 0 < int(found[4]) <= int(found[3]))


def test_stats():
    for over in ("memory", "tcp"):
        code, lines, errors = ran("rpc_stats", "--over", over, "--calls", CALLS)
        tap.check(f"rpc_stats: {CALLS} calls over {over}",
                  code == 0 and errors == "" and len(lines) == 1 and
                  told(lines[0], over, [CALLS + 1]), f"{code} {lines} {errors}")
    code, lines, errors = ran("rpc_stats", "--over", "queue", "--calls", CALLS)
    tap.check(f"rpc_stats: two clients with {CALLS} calls each over a queue",
              code == 0 and errors == "" and len(lines) == 2 and
              all(told(line, "queue", range(CALLS + 1, 2 * CALLS + 3)) for line in lines),
              f"{code} {lines} {errors}")
    code, lines, errors = ran("rpc_stats", "--over", "shared", "--calls", CALLS)
    if code == 2 and "none of memory, queue, shared, tcp" in errors:
        tap.skip(f"rpc_stats: {CALLS} calls over shared memory", "not in this program yet")
    else:
        tap.check(f"rpc_stats: {CALLS} calls over shared memory",
                  code == 0 and errors == "" and len(lines) == 1 and
                  told(lines[0], "shared", [CALLS + 1]), f"{code} {lines} {errors}")
    path = programs.build("rpc_stats")
    with programs.Program(path, "--listen", "127.0.0.1:0") as server:
        for turn in (1, 2):
            code, lines, errors = ran("rpc_stats", "--connect", f"127.0.0.1:{server.port}",
                                      "--calls", CALLS)
            tap.check(f"rpc_stats: client {turn} in a process of its own",
                      code == 0 and errors == "" and len(lines) == 1 and
                      told(lines[0], "tcp", [turn * (CALLS + 1)]), f"{code} {lines} {errors}")
        code, _, errors = server.stop()
        tap.check("rpc_stats: SIGTERM", code == 0 and errors == "", f"{code} {errors}")


# ---- rpc_pipeline --------------------------------------------------------------------------------

AT_ONCE = "16 calls at once: sum 16, batches 1, reads 1"
ONE_BY_ONE = "16 calls one by one: sum 16, batches 16, reads 16"


def test_pipeline():
    path = programs.build("rpc_pipeline")
    with programs.Program(path, "--listen", "127.0.0.1:0") as server:
        code, lines, errors = ran("rpc_pipeline", "--connect", f"127.0.0.1:{server.port}",
                                  "--calls", 16)
        tap.check("cross_process_peer_pipelines_in_one_round_trip",
                  code == 0 and errors == "" and lines == [AT_ONCE, ONE_BY_ONE],
                  f"{code} {lines} {errors}")
        code, _, errors = server.stop()
        tap.check("rpc_pipeline: SIGTERM", code == 0 and errors == "", f"{code} {errors}")


def envelopes_in(stream):
    """Those of a TCP stream; None if the last one is not whole."""
    out = []
    while stream:
        end = 4 + struct.unpack("<I", stream[:4])[0] if len(stream) >= 4 else 4
        if len(stream) < end:
            return None
        out.append(stream[4:end])
        stream = stream[end:]
    return out


class Played:
    """A server by hand: each read is what one `recv` gave."""

    def __init__(self, listener):
        self.peer, _ = listener.accept()
        self.peer.settimeout(programs.SECONDS_MAX)

    def read(self):
        return envelopes_in(self.peer.recv(1 << 16))

    def say(self, *envelopes):
        self.peer.sendall(b"".join(text(one) for one in envelopes))

    def tell_batches(self, number, batches):
        """What a client asks for between its sums. Other keys are not its business."""
        tap.check(f"rpc_pipeline: request {number} asks for the counters",
                  self.read() == [envelope(REQUEST, number, b"stats")])
        self.say(response(number, map_of(a=1, batches=batches, c=3)))


def test_one_write():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(programs.SECONDS_MAX)
        port = listener.getsockname()[1]
        with programs.Program(programs.build("rpc_pipeline"), "--connect", f"127.0.0.1:{port}",
                              first_line=False) as client:
            played = Played(listener)
            with played.peer:
                played.tell_batches(1, 0)
                wanted = [envelope(REQUEST, 2, b"add", [integer(1), integer(0)])]
                wanted += [envelope(REQUEST, at, b"add", [integer(1), promise(at - 1)])
                           for at in range(3, 18)]
                got = played.read()
                tap.check("rpc_pipeline: 16 requests come in one write", got == wanted, got)
                played.say(*(response(at, integer(at - 1)) for at in range(2, 18)))
                played.tell_batches(18, 2)
                wrong = []
                for at in range(19, 35):
                    got = played.read()
                    if got != [envelope(REQUEST, at, b"add", [integer(1), integer(at - 19)])]:
                        wrong.append(got)
                    played.say(response(at, integer(at - 18)))
                tap.check("rpc_pipeline: or one by one, each with the sum before", wrong == [],
                          wrong[:2])
                played.tell_batches(35, 19)
                tap.check("rpc_pipeline: and then it ends", programs.read_all(played.peer) == b"")
            code, lines, errors = client.end()
            tap.check("rpc_pipeline: it says what the server told it",
                      code == 0 and errors == "" and lines == [AT_ONCE, ONE_BY_ONE],
                      f"{code} {lines} {errors}")


def test_bad_servers():
    """A client ends with code 1, whatever its server does."""
    answers = {
        "hangs up": b"",
        "sends no envelope": bytes(64),
        "answers what nobody asked": text(response(99, integer(1))),
        "refuses": text(error(1, "rpc/method-not-granted")),
    }
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(programs.SECONDS_MAX)
        where = f"127.0.0.1:{listener.getsockname()[1]}"
        for name, said in answers.items():
            with programs.Program(programs.build("rpc_pipeline"), "--connect", where,
                                  first_line=False) as client:
                played = Played(listener)
                with played.peer:
                    played.read()
                    played.peer.sendall(said)
                code, lines, _ = client.end()
                tap.check(f"rpc_pipeline: a server that {name}: exit code 1",
                          code == 1 and lines == [], f"{code} {lines}")
    for name in ("rpc_stats", "rpc_pipeline"):
        code, lines, errors = ran(name, "--connect", where)
        tap.check(f"{name}: nobody there is one line", code == 1 and lines == [] and
                  errors.startswith(f"{name}: connect: ") and errors.count("\n") == 1,
                  f"{code} {lines} {errors}")


def main():
    with bridge() as server:
        test_curl(server.port)
        test_calls(server.port)
        test_statuses(server.port)
        test_keep_alive(server.port)
        test_splits(server.port)
        test_hostile(server.port)
        test_slow_reader(server.port)
        tap.check("rpc_http: one program answered all of that", serves(server.port))
        code, lines, errors = server.stop()
        tap.check("rpc_http: and ends well", code == 0 and errors == "" and len(lines) == 1,
                  f"{code} {lines} {errors}")
    test_ends()
    test_later()
    test_stats()
    test_pipeline()
    test_one_write()
    test_bad_servers()
    tap.finish()


if __name__ == "__main__":
    main()
