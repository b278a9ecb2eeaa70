#!/usr/bin/env python3
"""Plants one bug after the other in a copy of netio.hpp; the lives of 100 seeds must find each.

Each bug is one replacement whose text must be there exactly once, so that none can rot silently.
The short form plants five, NETIO_LONG=1 all; `tests/planted_bugs_test.py NAME…` those named.
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

import tap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("NETIO_BUILD", ROOT / "build" / "scripts"))
SHORT = ("missed FIN", "lost on_data re-call", "early deadline", "kill of a later life",
         "gate not asked again")
SEEDS = 100

BUGS = {
    "leaked buffer": (
        """        if (e.buffer_index != none_index) {
            core_.pool.give(e.buffer_index, side::input, e.byte_count);
        } else if (into""",
        """        if (e.buffer_index != none_index) {
        } else if (into"""),
    "double close": (
        """        if (c.state_ == kind::closing) {
            return;
        }
        NETIO_ASSERT(c.reason_kind_ != close_kind::none);""",
        """        NETIO_ASSERT(c.reason_kind_ != close_kind::none);"""),
    "lost wake": (
        """    set(refused | blocked);
    if (pool_is_empty) {
        core().wait_for_pool(*this, side::output);
    }""",
        """    set(refused | blocked);
    static_cast<void>(pool_is_empty);"""),
    "missed FIN": (
        """            if (c.has(flags::data_due)) {
                deliver(c);
            } else {
                after_input(c);
            }""",
        """            if (c.has(flags::data_due)) {
                deliver(c);
            }"""),
    "stale token": (
        "if (index >= connections || !slots.live(index, who.generation())) {",
        "if (index >= connections || !slots.is_live(index)) {"),
    "ignored short send": (
        "took(c, e.byte_count);",
        "took(c, c.output().byte_count());"),
    "early deadline": (
        "core_.now_up_ms = core_.now_ms + (passed % 1'000'000 != 0 ? 1 : 0);",
        "core_.now_up_ms = core_.now_ms;"),
    "lost on_data re-call": (
        """        if (owed && !c.has(flags::blocked) &&
            (c.window_begin_ != c.window_end_ || c.has(flags::peer_ended))) {
            deliver(c);
        }""",
        "        static_cast<void>(owed);"),
    "quota leak": (
        """        --source.in_use;
        charge(target);""",
        """        charge(target);"""),
    "missing on_close": (
        """        if (c.has(flags::opened)) {
            if constexpr (detail::names_on_close<Handler>) {""",
        """        if (c.has(flags::opened) && !c.has(flags::end_told)) {
            if constexpr (detail::names_on_close<Handler>) {"""),
    "gate not told": (
        """            if (!said.allowed() || !core_.take_lane(c, why)) {
                turn_away(c, why, said);""",
        """            if (!said.allowed() || !core_.take_lane(c, why)) {
                c.admitted_ = false;
                turn_away(c, why, said);"""),
    "kill of a later life": (
        """            if (now.generation != wish.generation || now.kind == kill_kind::none) {
                return stale();
            }""",
        """            if (now.kind == kill_kind::none) {
                return stale();
            }
            wish.generation = now.generation;"""),
    "lane place kept": (
        """            core_.leave_lane(c);
            const verdict said = ask_gate(c, true);""",
        """            const verdict said = ask_gate(c, true);"""),
    "source kept": (
        """    if (c.source_place_ != 0) {
        shared->sources.release""",
        """    if (c.source_place_ != 0 && c.reason_kind_ != close_kind::refused) {
        shared->sources.release"""),
    "gate not asked again": (
        """        if (!is_calm(c)) {
            settle(c);
        }""",
        """        if (!is_calm(c)) {
            const bool was = c.refusal_;
            c.refusal_ = was || c.output_.words != 0;  // what was sent in part may go on
            settle(c);
            c.refusal_ = was;
        }"""),
    "denial that goes on": (
        """            if (c.state_ == kind::closing) {
                return;  // the gate denied it
            }""",
        ""),
    "shed while busy": (
        """        if (!is_idle(c)) {
            return;
        }
        const bool drained""",
        """        if (w_.draining && !is_idle(c)) {
            return;
        }
        const bool drained"""),
    "refusal's place kept": (
        "refusals -= c.refusal_ ? 1 : 0;",
        "refusals -= c.refusal_ && !c.has(connection::opened) ? 1 : 0;"),
    "close that grants time": (
        "if (due_ms < c.exchange_due()) {",
        "if (false && due_ms < c.exchange_due()) {"),
    "late client let in": (
        "            watch.left_at = watch.generation;",
        "           "),
    "door ajar": (
        """        if (w_.stopping || w_.draining || w_.door_shut || from.removed.load() != 0) {
            refuse(""",
        """        if (w_.stopping || w_.draining || from.removed.load() != 0) {
            refuse("""),
    "tightened too early": (
        "(now >= 1 ? 70 : 75)",
        "(now >= 1 ? 45 : 50)"),
    "slow too soon": (
        "moved * 1'000 < std::uint64_t{rate}",
        "moved * 500 < std::uint64_t{rate}"),
    "next client in the last one's hands": (
        "stream& its = pair[pair[0].serving_ ? 1 : 0];\n"
        "        NETIO_ASSERT(!its.serving_ && its.connection_ == nullptr);",
        "stream& its = pair[0];"),
    "worker waits for a dead output": (
        "    if (connection_ == nullptr || connection_->state_ != connection_state_kind::open ||\n"
        "        connection_->has(flags::close_wanted | flags::kill_wanted)) {\n"
        "        return;",
        "    if (!is_open()) {\n"
        "        return;"),
}


def planted(name, whole):
    """The header with the bug, or None and why not."""
    before, after = BUGS[name]
    found = whole.count(before)
    if found != 1:
        return None, f"its text is in netio.hpp {found} times"
    return whole.replace(before, after), ""


def run(command, **how):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False, **how)


def hunt(name, whole):
    """(found, what was said)."""
    folder = BUILD / name.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    text, why = planted(name, whole)
    if text is None:
        return False, why
    (folder / "netio.hpp").write_text(text, encoding="utf-8")
    program = folder / "lifecycle"
    built = run(["g++", "-std=c++20", "-O1", f"-I{folder}", "-I.", "tests/lifecycle/main.cpp", "-o",
                 str(program)])
    if built.returncode != 0:
        return False, built.stdout
    try:
        lived = run([str(program), "1", str(SEEDS), "1000"], timeout=600)
    except subprocess.TimeoutExpired:
        return False, "no end in 600 s"
    said = lived.stdout.strip().splitlines()
    found = lived.returncode != 0 and any("NETIO_SEED=" in line for line in said)
    return found, said[-1] if found else "not found by 100 seeds"


def main():
    whole = (ROOT / "netio.hpp").read_text(encoding="utf-8")
    names = sys.argv[1:] or (list(BUGS) if os.environ.get("NETIO_LONG") else list(SHORT))
    for name in BUGS:
        text, why = planted(name, whole)
        tap.check(f"planted bugs: {name} can be planted", text is not None, why)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, (found, said) in zip(names, pool.map(lambda one: hunt(one, whole), names)):
            tap.check(f"planted bugs: {name} is found", found, said)
            print(f"# report: planted {name}: {said}", flush=True)
    tap.finish()


if __name__ == "__main__":
    main()
