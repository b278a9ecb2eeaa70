"""bench/run --page FILE: docs/performance.md and its plots, of a report of bench/run peers."""
import json
import os
import shutil
import subprocess

from harness import failed, machine_line, say, skipped

BASE, URING, EPOLL = "floor_epoll", "netio io_uring", "netio epoll"
LABELS = [("slowest", ", slowest share"), ("p999", ", p99.9"), ("p99", ", p99"), ("p50", ", p50"),
          ("rate", ", rate"), ("calls", ", calls"), ("memory", ", memory"), ("idle", ", CPU"),
          ("cpu", "")]
PLACEMENTS = [
    ("pinned", "Pinned apart: one worker on the first CPU, the generator on the last"),
    ("2+2", "Two workers and two threads of the generator, not pinned"),
    ("loaded", "The same on a loaded host: as many busy processes beside them as CPUs"),
]
BARE_CALL_NS = 100  # what a system call commonly costs without virtualisation, 50 to 200

HEAD = """# Performance

Written by `bench/run --page {source}`, every figure from that report: do not edit.

The same echo, written as each library's users are told to write it, each in a process of its own:
`bench/run peers`. All servers are up at once; one generator a server runs short slices in rotated
order, and ratios are taken *inside a round*, between slices a second apart. The median is
given with the lowest and the highest in brackets. What is compared is the server process's own CPU
per round trip, since the generator caps the rate. Replies are compared byte by byte. `best peer` is
the lowest row that is not netio, raw loops included. netio runs with its limits, deadlines and
wiping on unless the name of a variant says otherwise. The whole method: `bench/README.md`.

{quick}* {machine}
* {caution}
* On a shared machine microseconds drift by a factor of two within minutes: quote ratios.
"""

CAUTION = ("A system call cost {cost:.0f} ns here. Virtual machines with page-table isolation are "
           "above 1,000, bare metal is commonly at 50 to 200: what is gained by fewer calls looks "
           "larger where calls are dear, and every gain below stands beside this figure.")

# what, (shape, metric, server), (shape, metric, against or None for the best peer), relation, aim
AIMS = [
    ("B-3, 100 connections, against the best peer", "pinned B-3 64 B x 100", "cpu", URING, None,
     "<=", 0.74),
    ("B-3, 100 connections, against mio", "pinned B-3 64 B x 100", "cpu", URING, "mio", "<=", 0.67),
    ("B-3, 1,000, against the best peer", "pinned B-3 64 B x 1000", "cpu", URING, None, "<=",
     0.68),
    ("B-3, 1,000, against mio", "pinned B-3 64 B x 1000", "cpu", URING, "mio", "<=", 0.62),
    ("B-3, 10,000", "pinned B-3 64 B x 10000", "cpu", URING, None, "<=", 0.78),
    ("B-3, 10,000, rate", "pinned B-3 64 B x 10000", "rate", URING, None, ">=", 1.2),
    ("B-3, 100, against `floor_io_uring`", "pinned B-3 64 B x 100", "cpu", URING,
     "floor_io_uring", "<=", 1.05),
    ("B-3, 1,000, against `floor_io_uring`", "pinned B-3 64 B x 1000", "cpu", URING,
     "floor_io_uring", "<=", 1.05),
    ("B-3, 10,000, against `floor_io_uring`", "pinned B-3 64 B x 10000", "cpu", URING,
     "floor_io_uring", "<=", 1.05),
    ("B-2", "pinned B-2 64 B x 1", "cpu", URING, None, "<=", 0.95),
    ("B-2, p50", "pinned B-2 64 B x 1", "p50", URING, None, "<=", 1.0),
    ("B-1 against mio", "pinned B-1 connect, close", "cpu", URING, "mio", "<=", 0.80),
    ("B-1m against mio", "pinned B-1m connect, 64 B, close", "cpu", URING, "mio", "<=", 0.80),
    ("B-4, 100", "pinned B-4 16 KiB x 100", "cpu", URING, None, "<=", 0.83),
    ("B-4, 1,000", "pinned B-4 16 KiB x 1000", "cpu", URING, None, "<=", 0.83),
    ("p99.9 at 1,000, closed loop", "pinned B-3 64 B x 1000", "p999", URING, None, "<=", 1.0),
    ("p99.9, open loop at 90%",
     "pinned open loop 64 B x 100 at 90% of its own capacity", "p999", URING, None, "<=", 1.0),
    ("p50, open loop at 50%, latency first",
     "pinned open loop 64 B x 100 at 50% of its own capacity", "p50", URING + ", latency first",
     None, "<=", 1.05),
]
FLOOR_SHAPES = ("B-1 connect, close", "B-1m connect, 64 B, close", "B-2 64 B x 1",
                "B-3 64 B x 100", "B-3 64 B x 1000", "B-3 64 B x 10000", "B-4 16 KiB x 100",
                "B-4 16 KiB x 1000")
for _shape in FLOOR_SHAPES:
    for _against, _aim in ((BASE, 1.03), ("mio", 0.97)):
        AIMS.append((f"netio epoll, {_shape}, against {_against}", f"pinned {_shape}", "cpu", EPOLL,
                     _against, "<=", _aim))


for _shape in FLOOR_SHAPES:
    AIMS.append((f"2 + 2, rate, {_shape}", f"2+2 {_shape}", "rate", URING, None, ">=", 1.2))

for _shape in ("B-3 64 B x 100", "B-3 64 B x 1000"):
    AIMS.append((f"2 + 2, rate against a thread each, {_shape}", f"2+2 {_shape}", "rate", URING,
                 "thread per connection", ">=", 1.2))
for _shape in ("B-1m connect, 64 B, close", "B-2 64 B x 1", "B-3 64 B x 100", "B-3 64 B x 1000",
               "B-4 16 KiB x 100"):
    AIMS.append((f"loaded host, rate against a thread each, {_shape}", f"loaded {_shape}", "rate",
                 URING, "thread per connection", ">=", 0.9))

# what, shape, metric, server, relation, aim: figures that need nothing beside them
FIGURES = [
    ("calls, closed loop under strace, one connection",
     "pinned B-2 64 B x 1", "calls", URING, "<=", 1.0),
    ("calls, closed loop under strace, 100",
     "pinned B-3 64 B x 100", "calls", URING, "<=", 0.05),
    ("calls, closed loop under strace, 1,000",
     "pinned B-3 64 B x 1000", "calls", URING, "<=", 0.01),
    ("calls, accept, message, close", "pinned B-1m connect, 64 B, close", "calls", URING, "<=", 4),
    ("slowest connection at 1,000, of the mean", "pinned B-3 64 B x 1000", "slowest", URING, ">=",
     0.5),
    ("bytes an idle connection", "B-5 idle x 10000", "memory", URING, "<=", 320),
    ("bytes an idle connection, epoll", "B-5 idle x 10000", "memory", EPOLL, "<=", 320),
    ("idle, CPU ms a second", "B-5 idle x 10000", "idle", URING, "<=", 0.05),
    ("idle, CPU ms a second, epoll", "B-5 idle x 10000", "idle", EPOLL, "<=", 0.05),
]
GATEWAY_AIMS = {"gateway 64 B x 100": 0.45, "gateway 16 KiB x 100": 0.60}


class Report:
    """The rows of a report by shape, metric and server."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as text:
            self.all = json.load(text)
        self.shapes = {}  # in the order of the report: shape -> metric -> server -> row
        for row in self.all["rows"]:
            if row["suite"] != "peers":
                continue
            head, _, name = row["row"].rpartition(": ")
            metric, label = next(one for one in LABELS if head.endswith(one[1]))
            shape = head[:len(head) - len(label)]
            self.shapes.setdefault(shape, {}).setdefault(metric, {})[name] = row
        self.call_ns = self.all["machine"]["system_call_ns"]

    def get(self, shape, metric):
        return self.shapes.get(shape, {}).get(metric, {})

    def best_peer(self, shape, metric):
        """The best of those that are not netio: the lowest, or of a rate the highest."""
        peers = {name: row["median"] for name, row in self.get(shape, metric).items()
                 if not name.startswith("netio")}
        best = max if metric in ("rate", "slowest") else min
        return best(peers, key=peers.get) if peers else None

    def ratio(self, shape, metric, name, other):
        """One server to another, by way of the base in the same rounds where there is one."""
        rows = self.get(shape, metric)
        if name not in rows or other not in rows:
            return None
        against_base = [1.0 if one == BASE else rows[one]["ratio"] for one in (name, other)]
        if BASE in rows and None not in against_base and against_base[1]:
            return against_base[0] / against_base[1]
        return rows[name]["median"] / rows[other]["median"] if rows[other]["median"] else None

    def bare_ratio(self, shape, name, other):
        """The CPU ratio if a call cost what it costs on bare metal; an estimate."""
        calls, cpu = self.get(shape, "calls"), self.get(shape, "cpu")
        if name not in calls or other not in calls:
            return None
        dearer_us = (self.call_ns - BARE_CALL_NS) / 1000
        left = [cpu[one]["median"] - calls[one]["median"] * dearer_us for one in (name, other)]
        return left[0] / left[1] if min(left) > 0 else None


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"


def table(titles, lines):
    text = "| " + " | ".join(titles) + " |\n|" + "---|" * len(titles) + "\n"
    return text + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def gain_line(report, shape):
    """What netio gains or loses in this shape, with the price of a call beside it."""
    best = report.best_peer(shape, "cpu")
    said = []
    for name in (EPOLL, URING):
        ratio = report.ratio(shape, "cpu", name, best)
        if ratio is None:
            continue
        bare = report.bare_ratio(shape, name, best)
        about = f", about {bare:.2f} at {BARE_CALL_NS} ns" if bare else ""
        said.append(f"{name} {ratio:.2f}{about}")
    if not said:
        return ""
    return (f"\nCPU against the best peer, {best}: {'; '.join(said)}. "
            f"A system call cost {report.call_ns:.0f} ns here.\n")


def shape_table(report, shape):
    cpu = report.get(shape, "cpu")
    best = report.best_peer(shape, "cpu")
    columns = [("rate", "rate, 1/s"), ("p50", "p50, us"), ("p99", "p99, us"),
               ("p999", "p99.9, us"), ("calls", "calls"), ("slowest", "slowest")]
    columns = [one for one in columns if report.get(shape, one[0])]
    lines = []
    for name in sorted(cpu, key=lambda name: cpu[name]["median"]):
        row = cpu[name]
        ratio = "1" if name == BASE else "" if row["ratio"] is None else \
            f"{row['ratio']:.2f} [{row['ratio_min']:.2f} .. {row['ratio_max']:.2f}]"
        to_best = report.ratio(shape, "cpu", name, best)
        line = [f"**{name}**" if name in (EPOLL, URING) else name, number(row["median"]), ratio,
                "" if to_best is None else f"{to_best:.2f}"]
        for metric, _ in columns:
            found = report.get(shape, metric).get(name)
            line.append(number(found["median"]) if found else "")
        lines.append(line)
    title = shape.partition(" ")[2]
    titles = ["server", "CPU, us", f"to {BASE}", "to best peer"] + [one[1] for one in columns]
    return f"\n### {title}\n\n" + table(titles, lines) + gain_line(report, shape)


def verdict(value, relation, aim):
    value = float(f"{value:.3g}")  # as it is shown
    holds = value <= aim if relation == "<=" else value >= aim
    return [f"{relation} {aim}", "holds" if holds else "**missed**"]


def aims_table(report):
    lines = []
    for what, shape, metric, name, against, relation, aim in AIMS:
        other = against or report.best_peer(shape, metric)
        ratio = report.ratio(shape, metric, name, other)
        if ratio is None:
            continue
        lines.append([what, other, f"{ratio:.2f}"] + verdict(ratio, relation, aim))
    for row in report.all["rows"]:
        head, _, name = row["row"].rpartition(": ")
        if head in GATEWAY_AIMS and name.startswith("netio") and row["ratio"] is not None:
            lines.append([f"{head}, {name}", row["base"], f"{row['ratio']:.2f}"]
                         + verdict(row["ratio"], "<=", GATEWAY_AIMS[head]))
    for what, shape, metric, name, relation, aim in FIGURES:
        found = report.get(shape, metric).get(name)
        if found:
            lines.append([what, "", f"{found['median']:.3g}"]
                         + verdict(found["median"], relation, aim))
    if not lines:
        return ""
    return ("\n## Aims\n\nRatios of server CPU per round trip unless the row says otherwise; "
            f"{URING} unless it says otherwise. A system call cost {report.call_ns:.0f} ns here."
            "\n\n"
            + table(["row", "against", "measured", "aim", ""], lines))


def idle_table(report):
    lines = []
    for shape in [one for one in report.shapes if one.startswith("B-5")]:
        for name, row in sorted(report.get(shape, "memory").items(),
                                key=lambda one: one[1]["median"]):
            idle = report.get(shape, "idle").get(name)
            lines.append([shape, name, f"{max(0, row['median']):,.0f}",
                          f"{idle['median']:.2f}" if idle else ""])
    if not lines:
        return ""
    return ("\n## Idle connections\n\nResident bytes of the server for each, beyond 1,000 "
            "connections, and what it does while nobody speaks.\n\n"
            + table(["shape", "server", "bytes each", "CPU, ms a second"], lines))


def versions_text(report):
    versions = report.all.get("versions", {})
    lines = [[name, version] for name, version in versions.items()]
    missing = "".join(f"* {text.removeprefix('!! ')}\n" for text in report.all.get("skipped", []))
    return ("\n## Versions\n\n" + table(["server", "version"], lines)
            + (f"\nNot measured:\n\n{missing}" if missing else ""))


def text_of(report, source, plots):
    quick = "* **These figures are of a --quick run: not to be quoted.**\n" \
        if report.all.get("quick") else ""
    text = HEAD.format(source=source, quick=quick, machine=machine_line(report.all["machine"]),
                       caution=CAUTION.format(cost=report.call_ns))
    for name, title in plots:
        text += f"\n![{title}](plots/{name}.svg)\n"
    text += aims_table(report)
    for placement, title in PLACEMENTS:
        shapes = [one for one in report.shapes if one.startswith(placement + " ")]
        if shapes:
            text += f"\n## {title}\n" + "".join(shape_table(report, one) for one in shapes)
    return text + idle_table(report) + versions_text(report)


# --- plots --------------------------------------------------------------------------------------

GNUPLOT = """\
set terminal svg size 900,420 noenhanced font "sans-serif,11" background "#ffffff"
set output "{output}"
set title "{title}"
set style data histogram
set style histogram clustered gap 1
set style fill solid 0.85 noborder
set boxwidth 0.9
set grid ytics lc rgb "#dddddd"
set key outside right top samplen 1
set xtics rotate by -20 nomirror
set ylabel "{label}"
set yrange [0:*]
{more}
"""
MAIN_SERVERS = [BASE, "floor_io_uring", "mio", "tokio", "libuv", "asio callbacks", EPOLL, URING]


def short(shape):
    """What fits under an axis: the shape without its placement."""
    return shape.partition(" ")[2].replace("connect, 64 B, close", "").replace(
        "connect, close", "").replace("B-1e ,", "B-1e").strip(" ,")


def draw(output, title, label, servers, groups, value, more=""):
    """Clustered bars: one group a shape, one bar a server; values outside are left out."""
    data = "$data << EOD\n" + "shape " + " ".join(f'"{one}"' for one in servers) + "\n"
    for group, shown in groups:
        values = [value(group, one) for one in servers]
        data += f'"{shown}" ' + " ".join("?" if one is None else f"{one:.4g}" for one in values)
        data += "\n"
    bars = ", ".join(f'{"$data" if at == 0 else chr(39) * 2} using {at + 2}:xtic(1) '
                     f'title columnheader({at + 2})' for at in range(len(servers)))
    script = GNUPLOT.format(output=output, title=title, label=label, more=more)
    done = subprocess.run(["gnuplot"], capture_output=True, text=True, check=False,
                          input=script + data + "EOD\nset datafile missing '?'\nplot "
                          + bars.replace("''", "$data") + "\n")
    if done.returncode != 0:
        failed(f"gnuplot, {output}: {done.stderr.strip()[:300]}")


def plots_of(report, folder):
    """Draws what there is rows for; gives (name, title) of each plot."""
    def of_placement(placement):
        return [(one, short(one)) for one in report.shapes if one.startswith(placement + " ")
                and report.get(one, "cpu") and "open loop" not in one]

    def median(shape, metric, name):
        row = report.get(shape, metric).get(name)
        return row["median"] if row else None

    servers = [one for one in MAIN_SERVERS
               if any(one in report.get(shape, "cpu") for shape in report.shapes)]
    wanted = [
        ("cpu", "Server CPU per round trip, pinned apart, ratio to floor_epoll (less is better)",
         "ratio", of_placement("pinned"),
         lambda shape, name: report.ratio(shape, "cpu", name, BASE)),
        ("rate", "Rate with 2 + 2 threads, ratio to the best peer (more is better)", "ratio",
         of_placement("2+2"),
         lambda shape, name: report.ratio(shape, "rate", name, report.best_peer(shape, "rate"))),
        ("loaded", "Rate on a loaded host, ratio to the best peer (more is better)", "ratio",
         of_placement("loaded"),
         lambda shape, name: report.ratio(shape, "rate", name, report.best_peer(shape, "rate"))),
    ]
    tails = [(one, one.partition(" ")[2].replace(" of its own capacity", "")) for one in
             report.shapes if one.startswith("pinned ") and
             ("open loop" in one or one.endswith("B x 1000"))]
    wanted.append(("tail", "p99.9 latency, pinned apart (less is better)", "us", tails,
                   lambda shape, name: median(shape, "p999", name)))
    made = []
    for name, title, label, groups, value in wanted:
        if not groups:
            continue
        made.append((name, title))
        if folder:
            more = "set logscale y\nset yrange [*:*]" if name == "tail" else ""
            draw(os.path.join(folder, name + ".svg"), title, label, servers, groups, value, more)
    return made


def write(path, root, folder=None):
    """Writes the page and its plots below a folder; 0 if all of it could be written."""
    report = Report(path)
    folder = folder or os.path.join(root, "docs")
    plots = os.path.join(folder, "plots")
    source = os.path.relpath(os.path.abspath(path), root)
    if shutil.which("gnuplot"):
        os.makedirs(plots, exist_ok=True)
        made = plots_of(report, plots)
        for name, _ in made:
            size = os.path.getsize(os.path.join(plots, name + ".svg"))
            if size > 40_000:
                failed(f"{name}.svg has {size} bytes, at most 40,000")
    else:
        skipped("plots", "gnuplot is not installed; the page names those that were there")
        made = plots_of(report, None)
    with open(os.path.join(folder, "performance.md"), "w", encoding="utf-8") as out:
        out.write(text_of(report, source, made))
    say(f"{os.path.join(folder, 'performance.md')}: {len(report.shapes)} shapes")
    return 0
