"""bench/run gateway: a proxied round trip beside haproxy and nginx, one backend for all."""
import os
import shutil
import statistics

from harness import (
    GENERATOR_CPU, SERVER_CPU, Servers, build, free_port, load_rounds, measured_rows, say,
    show_servers, skipped, slices, wait_port)

GATEWAY_SOURCE = "examples/gateway.cpp"
GATEWAY_OPTIONS = "--listen 127.0.0.1:{port} --to 127.0.0.1:{backend}"
GATEWAY_FLOOR = "one raw echo"
GATEWAYS = [("netio gateway", []), ("netio gateway, io_uring", ["--backend", "io_uring"])]
GATEWAY_ROWS = [
    ("gateway 64 B x 100", "--mode closed --connections 100 --bytes 64"),
    ("gateway 16 KiB x 100", "--mode closed --connections 100 --bytes 16384"),
]

HAPROXY_CONFIG = """\
global
    maxconn 4000
    nbthread 1
{more}
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen gateway
    bind 127.0.0.1:{port}
    server floor 127.0.0.1:{backend}
"""

NGINX_CONFIG = """\
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
master_process off;
pid {path}.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
stream {{
    server {{
        listen 127.0.0.1:{port};
        proxy_pass 127.0.0.1:{backend};
        {more}
    }}
}}
"""


def proxy_target(servers, name, port, command):
    """Starts a proxy that was told its port: [(name, port, pid)], or [] if it does not listen."""
    process = servers.start(command, SERVER_CPU)
    if wait_port(process, port):
        return [(name, port, process.pid)]
    skipped(name, "does not listen")
    return []


def start_gateways(servers, backend, tree=".", ending=""):
    """The gateway of a tree, on each backend."""
    targets, program = [], build(GATEWAY_SOURCE, tree)
    for name, options in GATEWAYS if program else ():
        port = free_port()
        command = [program] + GATEWAY_OPTIONS.format(port=port, backend=backend).split() + options
        targets += proxy_target(servers, name + ending, port, command)
    return targets


def start_proxies(servers, backend):
    """haproxy, nginx (each as it comes and with room for a whole 16 KiB message) and gateway."""
    targets = []
    for name, program, text, more in (
            ("haproxy", "haproxy", HAPROXY_CONFIG, ""),
            ("haproxy 32k", "haproxy", HAPROXY_CONFIG, "    tune.bufsize 32768"),
            ("nginx", "nginx", NGINX_CONFIG, ""),
            ("nginx 32k", "nginx", NGINX_CONFIG, "proxy_buffer_size 32k;")):
        found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
        if not found:
            skipped(name, "not installed")
            continue
        port = free_port()
        path = os.path.join(servers.folder, name.replace(" ", "_") + ".conf")
        with open(path, "w", encoding="utf-8") as config:
            config.write(text.format(port=port, backend=backend, path=path, more=more))
        targets += proxy_target(
            servers, name, port, [found, "-q", "-db", "-f", path] if program == "haproxy" else
            [found, "-p", servers.folder, "-e", "stderr", "-c", path])
    return targets + start_gateways(servers, backend)


def suite_gateway(chosen):
    rows = []
    with Servers() as servers:
        floor = build("bench/floor_epoll.cpp")
        started = floor and servers.start_listening([floor, "--port", "0"], GENERATOR_CPU)
        if not started:
            return rows
        targets = start_proxies(servers, started[1])
        beside = servers.start_listening([floor, "--port", "0"], SERVER_CPU)
        if beside:  # no proxy can cost less than two of these
            targets.append((GATEWAY_FLOOR, beside[1], beside[0].pid))
        for row, options in GATEWAY_ROWS:
            if chosen.only not in row or not targets:
                continue
            rounds_of = load_rounds(options, targets, *slices(chosen))
            if rounds_of is None:
                continue
            medians = {name: statistics.median(one["server_cpu_us"] for one in rounds_of[name])
                       for name in rounds_of
                       if name != GATEWAY_FLOOR and not name.startswith("netio")}
            better = min(medians, key=medians.get) if medians else ""
            made = measured_rows("gateway", row, options, rounds_of, better)
            show_servers(row, rounds_of, made, better)
            say("")
            rows += made
    return rows
