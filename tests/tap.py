"""One line a test: `ok name`, `not ok name: why` or `ok name # SKIP why`, counted by tests/run."""
import sys

_failed_count = 0


def check(name, holds, why=""):
    global _failed_count
    if holds:
        print(f"ok {name}", flush=True)
        return
    _failed_count += 1
    reason = " / ".join(str(why).strip().splitlines()[-8:])
    print(f"not ok {name}: {reason or 'does not hold'}", flush=True)


def skip(name, why):
    print(f"ok {name} # SKIP {why}", flush=True)


def finish():
    sys.exit(1 if _failed_count else 0)
