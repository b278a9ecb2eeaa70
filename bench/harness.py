"""What the benchmark suites share: building, processes, the generator, rows, the machine."""
import contextlib
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join("build", "bench")
CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, GENERATOR_CPU = CPUS[0], CPUS[-1]


def say(text):
    print(text, flush=True)


FAILURES = []
SKIPPED = []


def failed(text):
    FAILURES.append(text)
    say(f"!! FAILED {text}")


def skipped(what, why):
    text = f"!! SKIPPED {what}: {why}"
    if text not in SKIPPED:
        SKIPPED.append(text)
        say(text)


# --- building and processes ---------------------------------------------------------------------

def first_line_command(source):
    """The words of the command that builds a source, and the program it makes; or None."""
    with open(source, encoding="utf-8") as text:
        words = shlex.split(text.readline().strip().removeprefix("//"))
    name = os.path.splitext(os.path.basename(source))[0]
    if words[:2] == ["cargo", "build"]:
        folder = words[words.index("--target-dir") + 1]
        return words, os.path.join(folder, "release", name)
    if words and words[0] in ("g++", "c++", "clang++"):
        if "-o" in words:
            at = words.index("-o")
            del words[at:at + 2]
        output = os.path.join(BUILD, name)
        return words + ["-o", output], output
    return None


def is_built(source, output, tree="."):
    """Whether the program is newer than everything of ours it is made of (cargo knows itself)."""
    if not os.path.exists(output) or source.endswith(".rs"):
        return False
    inputs = [source]
    with open(source, encoding="utf-8") as text:
        for name in re.findall(r'^#include "(.*)"', text.read(), re.M):
            inputs += [os.path.join(tree, name), os.path.join(os.path.dirname(source), name)]
    built_at = os.path.getmtime(output)
    return all(os.path.getmtime(name) < built_at for name in inputs if os.path.exists(name))


def why_missing(errors):
    """What a build lacks that is not ours to have: a library's header, a library, a crate."""
    for pattern in (r"fatal error: (\S+): No such file or directory", r"cannot find (-l\S+)",
                    r"no matching package named `(\S+)` found",
                    r"failed to read root of directory source: (\S+)"):
        found = re.search(pattern, errors)
        if found and "netio" not in found.group(1):
            return f"{found.group(1)} is not installed"
    return None


def build(source, tree="."):
    """Runs the command in the first line of a source of that tree, there; gives the program's
    path or None."""
    folder = os.path.join(tree, BUILD)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{os.path.basename(source)}.lock"), "w",
              encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may build it now: what is there is half done
        return build_alone(source, tree)


def build_alone(source, tree):
    source = os.path.normpath(os.path.join(tree, source))
    if not os.path.exists(source):
        skipped(source, "not there yet")
        return None
    found = first_line_command(source)
    if not found:
        skipped(source, "its first line is not a compiler command")
        return None
    command, output = found[0], os.path.normpath(os.path.join(tree, found[1]))
    if is_built(source, output, tree):
        return output
    if not shutil.which(command[0]):
        skipped(source, f"{command[0]} is not installed")
        return None
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return output
    errors = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
    if why_missing(done.stderr):
        skipped(source, why_missing(done.stderr))
    else:
        failed(f"{source} does not build: {errors[0]}")
    return None


class Servers:
    """Processes this run started; all of them are ended, by pid, when the block is left."""

    def __init__(self):
        self.running = []
        self.folder = tempfile.mkdtemp(prefix="netio_bench_")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            self.end(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, command, cpu, told=False):
        """Starts a process on a CPU, or on any of a set; `told` leaves its input open."""
        cpus = cpu if isinstance(cpu, (set, list)) else {cpu}

        def prepare():  # pinned, and gone with this script even if the script is killed
            os.sched_setaffinity(0, cpus)
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        process = subprocess.Popen(command, stdin=subprocess.PIPE if told else subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, preexec_fn=prepare, bufsize=0)
        self.running.append(process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()

    def start_listening(self, command, cpu):
        """Starts a server that prints `listening PORT`; gives (process, port) or None."""
        process = self.start(command, cpu)
        line = wait_line(process, 10)
        found = re.search(r"listening\b.*?(\d+)\s*$", line)
        if not found:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            self.end(process)
            if process.returncode == 2:
                skipped(shlex.join(command), "it does not have these options, or not here")
            else:
                failed(f"{shlex.join(command)}: said {line.strip()!r}, not `listening PORT`")
            return None
        return process, int(found.group(1))


def wait_line(process, seconds):
    """The next line of a process, or what came of it within the time."""
    line, until = b"", time.monotonic() + seconds
    while time.monotonic() < until:
        if select.select([process.stdout], [], [], 0.1)[0]:
            byte = process.stdout.read(1)
            if not byte:
                break
            line += byte
            if byte == b"\n":
                break
    return line.decode(errors="replace")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_port(process, port, seconds=10):
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        time.sleep(0.02)
    return False


def load(options, targets, seconds, rounds):
    """One run of the generator over all targets (name, port, pid); its report, or None."""
    command = ["taskset", "-c", str(GENERATOR_CPU), os.path.join(BUILD, "loadgen")]
    command += options.split() + ["--seconds", str(seconds), "--rounds", str(rounds)]
    for name, port, pid in targets:
        command += ["--target", f"{name}:{port}:{pid}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        failed(f"loadgen {options}: {done.stderr.strip() or done.returncode}")
        return None
    return {target["name"]: target for target in json.loads(done.stdout)["targets"]}


def slices(chosen):
    """Seconds of a slice and how many rounds of them, where one generator measures all servers."""
    return (0.1, 3) if chosen.quick else (0.4, chosen.rounds or 15)


def load_rounds(options, targets, seconds, rounds):
    """The same, with only the rounds of each target."""
    report = load(options, targets, seconds, rounds)
    return report and {name: target["rounds"] for name, target in report.items()}


# --- rows and tables ----------------------------------------------------------------------------

def make_row(suite, row, unit, values, command, base=None, base_values=None):
    """One row of the report; the ratio is taken inside each round."""
    made = {"suite": suite, "row": row, "unit": unit, "median": statistics.median(values),
            "min": min(values), "max": max(values), "base": base, "ratio": None,
            "ratio_min": None, "ratio_max": None, "command": command,
            "stdev": statistics.stdev(values) if len(values) > 1 else 0.0,
            "rounds": len(values), "ratio_stdev": None}
    if base_values and all(base_values):
        ratios = [value / other for value, other in zip(values, base_values)]
        made.update(ratio=statistics.median(ratios), ratio_min=min(ratios),
                    ratio_max=max(ratios),
                    ratio_stdev=statistics.stdev(ratios) if len(ratios) > 1 else 0.0)
    return made


def paired_row(suite, label, unit, key, found, command, base, base_found):
    """A row of one figure of a server's slices, against another's of the same rounds if there."""
    other = base_found and len(base_found) == len(found) and [one[key] for one in base_found]
    return make_row(suite, label, unit, [one[key] for one in found], command,
                    base if other else None, other or None)


def show(rows, notes=None):
    """A line a row; `notes` has what stands behind some of them, by their names."""
    if not rows:
        return
    wide = max(len(row["row"]) for row in rows)
    say(f"{'row':{wide}}  {'unit':16} {'median':>11} {'min':>11} {'max':>11}   ratio to base")
    for row in rows:
        line = f"{row['row']:{wide}}  {row['unit']:16}"
        line += "".join(f" {row[key]:11.3f}" for key in ("median", "min", "max"))
        if row["ratio"] is not None:
            line += (f"   {row['ratio']:.3f} [{row['ratio_min']:.3f} .. {row['ratio_max']:.3f}]"
                     f" {row['base']}")
        if notes and row["row"] in notes:
            line += f"   {notes[row['row']]}"
        say(line)


def show_servers(row, rounds_of, made, base):
    """What a person wants to see of measured_rows: one line a server."""
    def middle(key, name):
        return statistics.median(one[key] for one in rounds_of[name])
    wide = max(len(name) for name in rounds_of)
    say(f"{row}\n  {'':{wide}}  server CPU, us a round trip   ratio to {base + ' ':20}"
        f" {'rate, 1/s':>10} {'p50, us':>8} {'p99, us':>8}")
    for one, name in zip(made, rounds_of):
        ratio = "1" if one["ratio"] is None else \
            f"{one['ratio']:.3f} [{one['ratio_min']:.3f} .. {one['ratio_max']:.3f}]"
        cpu = f"{one['median']:.2f} [{one['min']:.2f} .. {one['max']:.2f}]"
        say(f"  {name:{wide}}  {cpu:28} {ratio:30} {middle('rate', name):10.0f}"
            f" {middle('p50_us', name):8.1f} {middle('p99_us', name):8.1f}")


def measured_rows(suite, row, options, rounds_of, base):
    """CPU, rate and latency rows of every server out of the same slices."""
    rows = []
    for key, label, unit in (("server_cpu_us", "", "us server CPU"), ("rate", ", rate", "1/s"),
                             ("p50_us", ", p50", "us"), ("p99_us", ", p99", "us")):
        for name, found in rounds_of.items():
            rows.append(paired_row(suite, f"{row}{label}: {name}", unit, key, found,
                                   f"loadgen {options}", base,
                                   rounds_of.get(base) if name != base else None))
    return rows


# --- Google Benchmark -----------------------------------------------------------------------------

def micro_values(results):
    """Per benchmark the values of its repetitions, ns an item where it counts items."""
    scale = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
    values = {}
    order = ("family_index", "per_family_instance_index")  # as declared, not as interleaved
    for one in sorted(results["benchmarks"], key=lambda one: [one.get(key, 0) for key in order]):
        if one.get("run_type") == "aggregate" or one.get("error_occurred"):
            continue
        if one.get("items_per_second"):
            value = 1e9 / one["items_per_second"]
        else:
            value = one["cpu_time"] * scale[one["time_unit"]]
        values.setdefault(one["run_name"], []).append(value)
    return values


def micro_rows(part, program, quick, suite="micro"):
    command = ["taskset", "-c", str(SERVER_CPU), program, "--benchmark_format=json",
               f"--benchmark_repetitions={3 if quick else 9}",
               "--benchmark_enable_random_interleaving=true",
               f"--benchmark_min_time={0.01 if quick else 0.1}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        failed(f"{program}: {done.stderr.strip()[-300:]}")
        return []
    values = micro_values(json.loads(done.stdout))
    rows = []
    for name, own in values.items():
        stem, slash, arguments = name.partition("/")
        base = f"{stem}_floor{slash}{arguments}"
        base = base if base in values else f"{stem}_floor" if f"{stem}_floor" in values else None
        rows.append(make_row(suite, f"{part} {name}", "ns", own, shlex.join(command[3:]), base,
                             values.get(base)))
    return rows


# --- what the kernel counts ---------------------------------------------------------------------

def all_traced(process_id):
    """Whether a tracer has every thread of the process."""
    for thread in os.listdir(f"/proc/{process_id}/task"):
        with contextlib.suppress(OSError):  # a thread may have ended meanwhile
            with open(f"/proc/{process_id}/task/{thread}/status", encoding="utf-8") as status:
                if "TracerPid:\t0\n" in status.read():
                    return False
    return True


def traced_calls(process_id, folder, action):
    """System calls of a process and its threads while action() runs: (calls, its result)."""
    path = os.path.join(folder, "strace")
    command = ["strace", "-f", "-c", "-o", path, "-p", str(process_id)]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 5
        while not all_traced(process_id) and time.monotonic() < until:
            time.sleep(0.02)
        result = action()
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(10)
    with open(path, encoding="utf-8") as text:
        total = [line.split() for line in text if line.rstrip().endswith("total")]
    return (int(total[-1][3]) if total else 0), result


def machine():
    """What the figures were taken on."""
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        cpu = text.read()
    model = re.search(r"^model name\s*: (.*)$", cpu, re.M)
    compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=False)
    probe = subprocess.run(["taskset", "-c", str(SERVER_CPU), os.path.join(BUILD, "loadgen"),
                            "--machine"], capture_output=True, text=True, check=False)
    return {"cpu": model.group(1) if model else os.uname().machine, "cpus": len(CPUS),
            "virtual": " hypervisor" in cpu, "kernel": os.uname().release,
            "compiler": compiler.stdout.splitlines()[0] if compiler.stdout else "none",
            "system_call_ns": json.loads(probe.stdout)["system_call_ns"],
            "load_average": os.getloadavg()[0]}


def machine_line(about):
    kind = "virtual" if about["virtual"] else "bare"
    return (f"machine: {about['cpus']} {kind} CPUs, {about['cpu']}; Linux {about['kernel']}; "
            f"{about['compiler']}; a system call costs {about['system_call_ns']:.0f} ns; "
            f"load average {about['load_average']:.2f}")


def rounded(value):
    """Six digits are more than any figure here deserves."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_report(path, report):
    """The report as JSON, a row a line, so that two of them can be compared by eye as well."""
    head = {key: value for key, value in report.items() if key != "rows"}
    rows = [json.dumps({key: rounded(value) for key, value in row.items()})
            for row in report["rows"]]
    with open(path, "w", encoding="utf-8") as out:
        out.write(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n  ')
        out.write(",\n  ".join(rows) + "\n ]\n}\n")
