#!/usr/bin/env python3
"""The example `https` and clients of other makers: curl, openssl s_client and Python's ssl; those
that leave in the middle, send garbage or nothing, and more of them than there are sessions."""
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile

import programs
import tap

SESSIONS = 16
CLIENTS = 100
LARGE = bytes(at % 251 for at in range(1 << 20))
KEYS = {"ecdsa": ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        "rsa": ("-newkey", "rsa:2048")}
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def make_identity(folder, kind):
    certificate, key = f"{folder}/{kind}.pem", f"{folder}/{kind}.key"
    subprocess.run(["openssl", "req", "-x509", *KEYS[kind], "-nodes", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key,
                    "-out", certificate], check=True, stderr=subprocess.DEVNULL)
    return certificate, key


def serve(identity):
    return programs.Program(programs.build("https"), "--listen", "127.0.0.1:0", "--certificate",
                            identity[0], "--key", identity[1])


def curl(server, identity, path, scheme="https"):
    return subprocess.run(["curl", "-sS", "--max-time", str(programs.SECONDS_MAX), "--cacert",
                           identity[0], "--resolve", f"localhost:{server.port}:127.0.0.1",
                           f"{scheme}://localhost:{server.port}{path}"], capture_output=True,
                          check=False)


def wrapped(server, identity, plain=None):
    context = ssl.create_default_context(cafile=identity[0])
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context.wrap_socket(plain or programs.connect(server.port), server_hostname="localhost",
                               suppress_ragged_eofs=False)


def answer(peer):
    """One answer: (its first line, its body)."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        piece = peer.recv(1)
        if not piece:
            return bytes(head), b""
        head += piece
    count = int(re.search(rb"Content-Length: (\d+)", head)[1])
    return bytes(head).split(b"\r\n", 1)[0], programs.read_exactly(peer, count)


def closed(server, reason):
    return server.wait_line(rf"^closed: {reason}$") is not None


def test_peers(server, identity, kind):
    said = curl(server, identity, "/")
    tap.check(f"tls: curl trusts and reads an answer, {kind}",
              said.stdout == b"version 0303\nhost localhost\nprotocol http/1.1\n", said)
    tap.check("tls: and ends in order", closed(server, "peer_closed"), server.lines)
    said = curl(server, identity, "/large")
    tap.check(f"tls: curl gets a mebibyte, {kind}", said.stdout == LARGE, said.stderr)
    tap.check("tls: that ends in order, too", closed(server, "peer_closed"), server.lines)
    said = curl(server, identity, "/missing")
    tap.check("tls: another page is none", said.returncode == 0 and said.stdout == b"", said)
    tap.check("tls: which ends in order", closed(server, "peer_closed"), server.lines)
    with subprocess.Popen(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}",
                           "-servername", "localhost", "-CAfile", identity[0],
                           "-verify_return_error", "-quiet", "-no_ign_eof"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as client:
        client.stdin.write(REQUEST)
        client.stdin.flush()
        lines = [client.stdout.readline() for _ in range(7)]
        client.stdin.close()
        code = client.wait(programs.SECONDS_MAX)
        errors = client.stderr.read()
    tap.check(f"tls: openssl s_client trusts and reads an answer, {kind}",
              lines[0].startswith(b"HTTP/1.1 200") and lines[4:6] ==
              [b"version 0303\n", b"host localhost\n"] and code == 0, (lines, code, errors))
    tap.check("tls: and ends in order, or without a word",
              closed(server, r"(peer_closed|tls_failed\(31\))"), server.lines)


def test_exchange(server, identity):
    with wrapped(server, identity) as peer:
        peer.sendall(REQUEST * 50)
        answers = [answer(peer)[0] for _ in range(50)]
        tap.check("tls: requests that come at once are answered in order",
                  answers == [b"HTTP/1.1 200 OK"] * 50, answers)
        tap.check("tls: the protocol is agreed on", peer.selected_alpn_protocol() == "http/1.1")
        for at in range(0, len(REQUEST), 5):
            peer.sendall(REQUEST[at:at + 5])
        tap.check("tls: one that comes in pieces is one", answer(peer)[0] == b"HTTP/1.1 200 OK")
        peer.unwrap()
    tap.check("tls: close_notify is an end in order", closed(server, "peer_closed"), server.lines)
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(programs.SECONDS_MAX)
    plain.connect(("127.0.0.1", server.port))
    with wrapped(server, identity, plain) as peer:
        peer.sendall(b"GET /large HTTP/1.1\r\n\r\n" * 3)
        tap.check("tls: a slow reader gets all of three large pages",
                  [answer(peer)[1] == LARGE for _ in range(3)] == [True] * 3)
    closed(server, ".*")


def test_wrong_clients(server, identity):
    with wrapped(server, identity) as peer:
        peer.sendall(REQUEST)
        answer(peer)
    tap.check("tls: a FIN without close_notify is told as what it is",
              closed(server, r"tls_failed\(31\)"), server.lines)
    said = programs.turned_away(server.port, os.urandom(2000))
    tap.check("tls: garbage gets an alert at most",
              said in (b"", b"RESET") or said.startswith(b"\x15"), said)
    tap.check("tls: and told so", closed(server, r"tls_failed\(\d+\)"), server.lines)
    programs.turned_away(server.port, b"\x15\x03\x01\x00\x02\x01\x00")
    tap.check("tls: close_notify in the place of a handshake is a failed one",
              closed(server, r"tls_failed\(31\)"), server.lines)
    said = curl(server, identity, "/", "http")
    tap.check("tls: plain HTTP gets no answer", said.returncode != 0 and said.stdout == b"", said)
    tap.check("tls: nor a handler", closed(server, r"tls_failed\(\d+\)"), server.lines)
    with programs.connect(server.port) as peer:
        peer.sendall(b"\x16")
        tap.check("tls: a slow handshake has five seconds", closed(server, "preface_timeout"),
                  server.lines)
        tap.check("tls: and a reset", programs.read_all(peer) == b"RESET")
    said = subprocess.run(["openssl", "s_client", "-tls1_3", "-connect",
                           f"127.0.0.1:{server.port}"], input=b"", capture_output=True,
                          check=False, timeout=programs.SECONDS_MAX)
    tap.check("tls: a version that is not spoken gets an alert",
              said.returncode != 0 and b"alert" in said.stderr, said.stderr)
    closed(server, r"tls_failed\(\d+\)")



def test_crowd(server, identity):
    crowd = [programs.connect(server.port) for _ in range(CLIENTS)]
    refused = [server.wait_line(r"^closed: refused\(busy\)$") for _ in range(CLIENTS - SESSIONS)]
    tap.check(f"tls: of {CLIENTS} at once {SESSIONS} are let in", None not in refused, server.lines)
    served = 0
    for peer in crowd:
        try:
            tls = wrapped(server, identity, peer)
            tls.sendall(REQUEST)
            served += answer(tls)[0] == b"HTTP/1.1 200 OK"
            tls.unwrap()
        except (ConnectionError, ssl.SSLError):
            pass
        peer.close()
    tap.check("tls: and served", served == SESSIONS, served)
    for _ in range(SESSIONS):
        closed(server, "peer_closed")
    tap.check("tls: then there is room again", curl(server, identity, "/").returncode == 0)
    closed(server, "peer_closed")


def test_drain(server, identity):
    with wrapped(server, identity) as peer:
        peer.sendall(REQUEST)
        answer(peer)
        server.send_signal(signal.SIGTERM)
        tap.check("tls: a drain says close_notify to an idle client", peer.recv(1) == b"")
    code, _, errors = server.end()
    tap.check("tls: a drained program ends well", code == 0 and errors == "", f"{code} {errors}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        identities = {kind: make_identity(folder, kind) for kind in KEYS}
        for kind, identity in identities.items():
            with serve(identity) as server:
                test_peers(server, identity, kind)
        identity = identities["ecdsa"]
        with serve(identity) as server:
            test_exchange(server, identity)
            test_wrong_clients(server, identity)
            test_crowd(server, identity)
            test_drain(server, identity)
        said = subprocess.run([str(programs.build("https")), "--certificate", identity[1], "--key",
                               identity[0]], capture_output=True, text=True, check=False)
        tap.check("tls: files in the wrong places are refused by name",
                  said.returncode == 1 and identity[1] in said.stderr, said)
    tap.finish()


if __name__ == "__main__":
    sys.exit(main())
