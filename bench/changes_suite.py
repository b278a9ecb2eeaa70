"""bench/run changes --before DIR: this tree's echo server and gateway beside an older tree's.

Runs of two hours or of two machines can't be compared by the per cent; slices of one round can.
The older tree's servers run twice, started before and after this one's, and this one's stand beside
the mean of both: who is connected first may cost some per cent more, and what the two differ by
from each other is seen as well.
"""
import os
import statistics

from harness import (
    CPUS, GENERATOR_CPU, SERVER_CPU, Servers, build, failed, load_rounds, paired_row, say, show,
    slices)
from gateway_suite import GATEWAY_ROWS, start_gateways
from peers_suite import (
    CONNECTIONS_MAX, METRICS, PEERS, SHAPES, Placement, connections_of, measure, start_all)

SERVERS = [peer for peer in PEERS if peer[0] in ("netio epoll", "netio io_uring")]
BEFORE, TWIN, BOTH = ", before", ", before again", ", before, both"
WORSE = 1.03  # a ratio of server CPU above it is named at the end
UNIT = "us server CPU"


def beside(name, results):
    """What a row stands beside, by name and its slices; None for the older one itself."""
    if name.endswith(TWIN):
        first = name.removesuffix(TWIN) + BEFORE
        return first, results.get(first)
    if name.endswith(BEFORE):
        return None, None
    both = results.get(name + BEFORE), results.get(name + TWIN)
    if None in both or len(both[0]) != len(both[1]):
        return None, None
    return name + BOTH, [{key: (one[key] + other[key]) / 2 for key, _, _ in METRICS}
                         for one, other in zip(*both)]


def row_of(label, unit, key, name, results, command):
    base, base_found = beside(name, results)
    return paired_row("changes", label, unit, key, results[name], command, base, base_found)


def versions(tree):
    """Ending and tree of each version, in the order in which they are started."""
    return (BEFORE, tree), ("", "."), (TWIN, tree)


def start_versions(servers, tree, placement):
    """Every server of the older tree, of this one, and of the older one again."""
    running = []
    for ending, where in versions(tree):
        table = [(name + ending, *rest) for name, *rest in SERVERS]
        running += start_all(servers, placement.server_cpus, placement.count, table, where)
    return running


def echo_rows(tree, placement, chosen):
    rows = []
    shapes = [one for one in SHAPES
              if placement.wants(one[0], chosen) and connections_of(one[1]) <= CONNECTIONS_MAX]
    if not shapes:
        return rows
    with Servers() as servers:
        running = start_versions(servers, tree, placement)
        for shape, options, longer in shapes:
            row = f"{placement.name} {shape}"
            results, _ = measure(servers, running, row, lambda _, same=options: same, placement,
                                 longer)
            command = f"loadgen --threads {placement.count} {options}"
            made = [row_of(f"{row}{label}: {name}", unit, key, name, results, command)
                    for key, label, unit in METRICS for name in results]
            show([one for one in made if one["unit"] == UNIT])
            rows += made
    return rows


def gateway_rows(tree, chosen):
    rows = []
    wanted = [one for one in GATEWAY_ROWS if chosen.only in one[0]]
    with Servers() as servers:
        floor = build("bench/floor_epoll.cpp") if wanted else None
        started = floor and servers.start_listening([floor, "--port", "0"], GENERATOR_CPU)
        if not started:
            return rows
        targets = []
        for ending, where in versions(tree):
            targets += start_gateways(servers, started[1], where, ending)
        for row, options in wanted:
            rounds_of = load_rounds(options, targets, *slices(chosen)) or {}
            made = [row_of(f"{row}: {name}", UNIT, "server_cpu_us", name, rounds_of,
                           f"loadgen {options}") for name in rounds_of]
            show(made)
            rows += made
    return rows


def show_verdict(rows):
    """The rows of which this tree costs more, beside what the older one differs by from itself."""
    ratios = {one["row"]: one["ratio"] for one in rows if one["unit"] == UNIT and one["ratio"]}
    mine = {row: ratio for row, ratio in ratios.items() if not row.endswith(TWIN)}
    for row, ratio in mine.items():
        if ratio > WORSE:
            say(f"!! WORSE {row}: {ratio:.3f}; the older one's second of its first "
                f"{ratios.get(row + TWIN, 1):.3f}")
    if mine:
        say(f"\n{len(mine)} rows of server CPU, of the older tree's: median "
            f"{statistics.median(mine.values()):.3f}, "
            f"{min(mine.values()):.3f} to {max(mine.values()):.3f}")


def suite_changes(chosen):
    if not chosen.before or not os.path.exists(os.path.join(chosen.before, "netio.hpp")):
        failed("changes: --before DIR names an older tree, with its netio.hpp")
        return []
    rows = []
    for placement in (Placement("pinned", {SERVER_CPU}, {GENERATOR_CPU}, 1, chosen),
                      Placement("2+2", set(CPUS), set(CPUS), 2, chosen)):
        rows += echo_rows(chosen.before, placement, chosen)
    rows += gateway_rows(chosen.before, chosen)
    show_verdict(rows)
    return rows
