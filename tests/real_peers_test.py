#!/usr/bin/env python3
"""haproxy and nginx in front of proxy_echo and behind gateway: the real client, TLVs, checks."""
import contextlib
import csv
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile

import programs
import tap

HAPROXY = """\
global
    maxconn 400
    stats socket {folder}/haproxy.sock mode 600 level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend v1
    bind 127.0.0.1:{v1}
    default_backend echo_v1
backend echo_v1
    server echo 127.0.0.1:{echo} send-proxy
frontend v1_ipv6
    bind [::1]:{v1_ipv6}
    default_backend echo_v1
frontend v2
    bind 127.0.0.1:{v2}
    default_backend echo_v2
backend echo_v2
    server echo 127.0.0.1:{echo} send-proxy-v2
frontend tls
    bind 127.0.0.1:{tls} ssl crt {folder}/server.pem ca-file {folder}/ca.pem verify optional
    unique-id-format id-%ci-%cp
    default_backend echo_tls
backend echo_tls
    server echo 127.0.0.1:{echo} send-proxy-v2-ssl-cn proxy-v2-options crc32c,unique-id,authority
backend checked
    server header 127.0.0.1:{echo} send-proxy-v2 check check-send-proxy inter 50ms fall 1 rise 1
    server line 127.0.0.1:{echo} send-proxy check check-send-proxy inter 50ms fall 1 rise 1
    server bare 127.0.0.1:{echo} check inter 50ms fall 1 rise 1
frontend behind_gateway
    bind 127.0.0.1:{behind} accept-proxy
    default_backend echo_v2
"""

NGINX_STREAM = "/usr/lib/nginx/modules/ngx_stream_module.so"
NGINX = f"load_module {NGINX_STREAM};" + """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 256; }}
stream {{
    server {{
        listen 127.0.0.1:{front};
        proxy_pass 127.0.0.1:{echo};
        proxy_protocol on;
    }}
    server {{
        listen 127.0.0.1:{behind} proxy_protocol;
        return "$proxy_protocol_addr:$proxy_protocol_port to \
$proxy_protocol_server_addr:$proxy_protocol_server_port\\n";
    }}
}}
"""


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def make_certificates(folder):
    """A CA, a server certificate and one of a client called netio-client."""
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=netio test",
            "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    for name, common_name in (("server", "echo.example"), ("client", "netio-client")):
        openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={common_name}",
                "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-days", "2", "-out", f"{name}.crt")
        (folder / f"{name}.pem").write_bytes((folder / f"{name}.crt").read_bytes() +
                                             (folder / f"{name}.key").read_bytes())


@contextlib.contextmanager
def running(command, config, path, ports, **values):
    """The peer with a free port for each name in `ports`; another try where one was taken."""
    for _ in range(3):
        chosen = {name: programs.free_port() for name in ports}
        path.write_text(config.format(folder=path.parent, **chosen, **values), encoding="utf-8")
        with programs.Program(*command, path, first_line=False) as peer:
            last = chosen[ports[-1]]
            if programs.until(lambda: peer.process.poll() is not None or programs.accepts(last)) \
                    and peer.process.poll() is None:
                yield chosen
                return
            reason = peer.end(1)[2]
    raise RuntimeError(f"{command[0]} does not start: {reason}")


def greet(peer, sent=b"over and out"):
    """The line about the client, its own address, and whether the echo came back whole."""
    mine = peer.getsockname()
    text = f"[{mine[0]}]" if peer.family == socket.AF_INET6 else mine[0]
    line = programs.read_line(peer)
    peer.sendall(sent)
    echoed = programs.read_exactly(peer, len(sent)) == sent
    peer.close()
    return line, f"{text}:{mine[1]}", echoed


def sees(name, line, wanted, echoed=True):
    tap.check(name, line == wanted and echoed, f"{line!r}, wanted {wanted!r}, echoed {echoed}")


def test_direct(echo):
    with programs.connect(echo.port) as direct:
        mine = "{}:{}".format(*direct.getsockname())
        direct.sendall(b"GET / HTTP/1.1\r\nHost: echo.example\r\n\r\n")
        said = programs.read_all(direct)
        tap.check("proxy_echo: a direct client gets nothing but a reset", said == b"RESET", said)
    line = echo.wait_line(f"closed {mine}")
    tap.check("proxy_echo: a direct client ends as proxy_missing",
              line == f"closed {mine}: proxy_missing", line)


def test_haproxy_plain(ports):
    line, mine, echoed = greet(programs.connect(ports["v1"]))
    sees("haproxy send-proxy: the real client", line,
         f"client {mine} to 127.0.0.1:{ports['v1']} v1 proxied", echoed)
    line, mine, echoed = greet(programs.connect(ports["v2"]))
    sees("haproxy send-proxy-v2: the real client", line,
         f"client {mine} to 127.0.0.1:{ports['v2']} v2 proxied", echoed)
    line, mine, echoed = greet(programs.connect(ports["v1_ipv6"], host="::1"))
    sees("haproxy send-proxy: the real client over IPv6", line,
         f"client {mine} to [::1]:{ports['v1_ipv6']} v1 proxied", echoed)


def over_tls(folder, port, name):
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.check_hostname = False
    context.load_cert_chain(folder / "client.pem")
    return context.wrap_socket(programs.connect(port), server_hostname=name)


def test_haproxy_tls(folder, ports):
    peer = over_tls(folder, ports["tls"], "echo.example")
    version, cipher = peer.version(), peer.cipher()[0]
    line, mine, echoed = greet(peer)
    host, port = mine.split(":")
    tlvs = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
    tap.check("haproxy send-proxy-v2-ssl-cn: the real client", echoed and line.startswith(
        f"client {mine} to 127.0.0.1:{ports['tls']} v2 proxied "), line)
    tap.check("haproxy crc32c: there and right", tlvs.get("crc32c", "").startswith("0x") or
              len(tlvs.get("crc32c", "")) == 4, line)
    sees("haproxy unique-id", tlvs.get("unique_id"), f"id-{host}-{port}")
    sees("haproxy authority", tlvs.get("authority"), "echo.example")
    sees("haproxy ssl: version", tlvs.get("ssl_version"), version)
    sees("haproxy ssl: common name of the client", tlvs.get("ssl_cn"), "netio-client")
    tap.check("haproxy ssl: certificate verified", " verified " in line, line)
    tap.check("haproxy ssl: no TLV unknown", "0x20" not in tlvs and cipher != "", line)


def states(folder):
    """name -> line of `show stat` for the servers that are checked."""
    with socket.socket(socket.AF_UNIX) as ask:
        ask.settimeout(programs.SECONDS_MAX)
        ask.connect(str(folder / "haproxy.sock"))
        ask.sendall(b"show stat\n")
        text = programs.read_all(ask).decode().lstrip("# ")
    return {row["svname"]: row for row in csv.DictReader(text.splitlines())
            if row["pxname"] == "checked" and row["svname"] != "BACKEND"}


def test_checks(folder, echo):
    # Each server is checked each 50 ms, and each check ends as one line of proxy_echo.
    local = sum(echo.wait_line("closed ") is not None for _ in range(60))
    tap.check("haproxy checks: they come", local == 60, local)
    found = programs.until(lambda: {} if any(row["check_status"] in ("", "INI")
                                             for row in states(folder).values())
                           else states(folder))
    for name, what in (("header", "send-proxy-v2"), ("line", "send-proxy"), ("bare", "no header")):
        row = found.get(name, {})
        said = {key: row.get(key) for key in ("status", "check_status", "chkfail", "chkdown")}
        tap.check(f"haproxy checks, {what}: green throughout", said == {
            "status": "UP", "check_status": "L4OK", "chkfail": "0", "chkdown": "0"}, said)


def through_gateway(to, *more):
    return programs.Program(programs.build("gateway"), "--listen", "127.0.0.1:0", "--to",
                            f"127.0.0.1:{to}", "--proxy-out", "v2", *more)


def test_haproxy_behind(ports):
    with through_gateway(ports["behind"]) as gateway:
        line, mine, echoed = greet(programs.connect(gateway.port))
        sees("haproxy accept-proxy behind gateway: the real client, handed on", line,
             f"client {mine} to 127.0.0.1:{gateway.port} v2 proxied", echoed)
        code, _, errors = gateway.stop()
        tap.check("gateway before haproxy: ends well", code == 0 and errors == "", errors)
    with through_gateway(ports["behind"], "--proxy-in", "required") as gateway, \
            programs.connect(gateway.port) as peer:
        peer.sendall(b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n")
        sees("haproxy accept-proxy behind gateway: a client that PROXY named",
             programs.read_line(peer), "client [2001:db8::1]:56324 to [2001:db8::2]:443 v2 proxied")


def test_nginx(echo):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = ["nginx", "-p", name, "-e", "stderr", "-c"]
        with running(command, NGINX, folder / "nginx.conf", ["behind", "front"],
                     echo=echo.port) as ports:
            line, mine, echoed = greet(programs.connect(ports["front"]))
            sees("nginx proxy_protocol on: the real client", line,
                 f"client {mine} to 127.0.0.1:{ports['front']} v1 proxied", echoed)
            with through_gateway(ports["behind"]) as gateway, \
                    programs.connect(gateway.port) as peer:
                mine = "{}:{}".format(*peer.getsockname())
                sees("nginx listen proxy_protocol behind gateway: the real client",
                     programs.read_all(peer).decode(),
                     f"{mine} to 127.0.0.1:{gateway.port}\n")


def test_haproxy(echo):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_certificates(folder)
        names = ["v1", "v1_ipv6", "v2", "tls", "behind"]
        with running(["haproxy", "-db", "-f"], HAPROXY, folder / "haproxy.cfg", names,
                     echo=echo.port) as ports:
            test_haproxy_plain(ports)
            test_haproxy_tls(folder, ports)
            test_haproxy_behind(ports)
            test_checks(folder, echo)


def missing(*needed):
    return [one for one in needed if shutil.which(one) is None and not pathlib.Path(one).exists()]


os.environ["PATH"] += ":/usr/sbin"  # where Debian keeps both, out of most users' sight


def main():
    path = programs.build("proxy_echo")
    with programs.Program(path, "--listen", "127.0.0.1:0") as echo:
        test_direct(echo)
        for needed, test in ((("haproxy", "openssl"), test_haproxy),
                             (("nginx", NGINX_STREAM), test_nginx)):
            if missing(*needed):
                print(f"# report: SKIPPED {needed[0]} in front: {missing(*needed)} not here")
                tap.skip(needed[0], f"not here: {missing(*needed)}")
            else:
                test(echo)
        code, _, errors = echo.stop()
        tap.check("proxy_echo: ends well", code == 0 and errors == "", f"exit {code}: {errors}")


main()
tap.finish()
