#!/usr/bin/env python3
"""Other processors, the short form: floors 0 to 4, the simulator, the contract's suite on it and
the short lives, for one processor of 32 bits and one of the other byte order, under qemu-user.
Everything, and more processors: tests/run --platforms."""
import matrix

if __name__ == "__main__":
    matrix.BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("i686", "s390x"):
        matrix.say_short(next(matrix.columns_named(name)))
    matrix.tap.finish()
