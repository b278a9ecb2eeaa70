#!/usr/bin/env python3
"""The example `ops`: commands on its control socket, clients that feel them, a page for curl."""
import shutil
import signal
import socket
import subprocess
import tempfile

import programs
import tap


EXPECTED = ('netio_closed_total{reason="killed"} 1', 'netio_closed_total{reason="shed"} 2')


class Control:
    """The control socket: an answer is the lines before an empty one."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(programs.SECONDS_MAX)
        self.socket.connect(path)

    def ask(self, command):
        self.socket.sendall(command.encode() + b"\n")
        lines = []
        while line := programs.read_line(self.socket):
            lines.append(line)
        return lines

    def close(self):
        self.socket.close()


def served(peer, text=b"hello"):
    peer.sendall(text)
    return programs.read_exactly(peer, len(text)) == text


def ended(peer):
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def test_commands(server, control):
    first, second = (programs.connect(server.port) for _ in range(2))
    tap.check("ops: clients are served", served(first) and served(second))
    listed = control.ask("list")
    tap.check("ops: list names both clients",
              len(listed) == 2 and all("lane 1 in 5 out 5" in line for line in listed), listed)
    mine = "{}:{}".format(*first.getsockname())
    victim = [line.split()[0] for line in listed if mine in line]
    tap.check("ops: kill ends the one that is named", control.ask(f"kill {victim[0]}") == ["ok"])
    tap.check("ops: and no other", ended(first) and served(second))
    tap.check("ops: a second kill finds nobody",
              control.ask(f"kill {victim[0]}")[0].startswith("error"))
    stats = dict(line.split() for line in control.ask("stats"))
    tap.check("ops: stats count", stats["accepted"] == "3" and stats["closed"] == "1", stats)
    return second


def test_states(server, control, second):
    tap.check("ops: the door is shut", control.ask("door shut") == ["ok"])
    waiting = programs.connect(server.port)
    waiting.sendall(b"wait")
    tap.check("ops: who is in is still served", served(second))
    accepted = dict(line.split() for line in control.ask("stats"))["accepted"]
    tap.check("ops: who comes then is not let in", accepted == "3", accepted)
    tap.check("ops: and opened", control.ask("door open") == ["ok"])
    tap.check("ops: who waited is served", programs.read_exactly(waiting, 4) == b"wait")
    tap.check("ops: shed 1", control.ask("shed 1") == ["ok"])
    tap.check("ops: idle clients are ended", ended(second) and ended(waiting))
    second.close()
    waiting.close()
    tap.check("ops: and new ones turned away",
              programs.turned_away(server.port, b"x") in (b"", b"RESET"))
    tap.check("ops: shed 256 ends that", control.ask("shed 256") == ["ok"])
    with programs.connect(server.port) as peer:
        tap.check("ops: clients are served again", served(peer))


def test_wrong(control):
    for wrong in ("", "kill", "kill 0", "kill ffffffffffffffffff", "kill -1", "drain", "drain x",
                  "shed 257", "shed", "door", "door ajar", "stats now", "no such thing"):
        answer = control.ask(wrong)
        tap.check(f"ops: '{wrong}' is refused", answer == ["error: no such command or thing"],
                  answer)
    control.socket.sendall(b"x" * 1000)
    said = programs.read_all(control.socket)
    tap.check("ops: an endless line is ended", said.startswith(b"error: a line is too long"), said)


def test_metrics(server):
    line = next((line for line in server.lines if "metrics on" in line), "")
    address = line.split()[-1]
    if shutil.which("curl") is None:
        tap.skip("ops: curl reads the page", "no curl here")
        return
    pages = []

    def tells_all():
        pages.append(subprocess.run(["curl", "-sS", "--max-time", "20",
                                     f"http://{address}/metrics"],
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    check=False))
        return all(f"{line}\n" in pages[-1].stdout for line in EXPECTED)

    told = programs.until(tells_all)
    tap.check("ops: curl reads the page", all(page.returncode == 0 and page.stderr == ""
                                              for page in pages), pages[-1].stderr)
    tap.check("ops: the page tells who was killed and who was shed", told, pages[-1].stdout)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/control"
        with programs.Program(programs.build("ops"), "--listen", "127.0.0.1:0", "--metrics",
                              "127.0.0.1:0", "--control", path) as server:
            control = Control(path)
            second = test_commands(server, control)
            test_states(server, control, second)
            test_metrics(server)
            test_wrong(control)
            control.close()
            last = Control(path)
            with programs.connect(server.port) as peer:
                served(peer)
                tap.check("ops: drain is taken", last.ask("drain 5000") in (["ok"], []))
                tap.check("ops: and ends idle clients", ended(peer))
            last.close()
            code, _, errors = server.end()
            tap.check("ops: a drained program ends well", code == 0 and errors == "",
                      f"{code} {errors}")
        with programs.Program(programs.build("ops"), "--listen", "127.0.0.1:0", "--metrics",
                              "127.0.0.1:0", "--control", f"{folder}/other") as server:
            code, _, errors = server.stop(signal.SIGINT)
            tap.check("ops: SIGINT stops", code == 0 and errors == "", f"{code} {errors}")
    tap.finish()


if __name__ == "__main__":
    main()
