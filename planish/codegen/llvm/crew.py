"""A kernel's work in units, of which a thread that is done with its own takes over some of the others'.

In: the code of one unit. Out: loops around it. A thread takes the units that are its own by right from their
front, in order, as if there were no others; then, one by one from the back, those that other threads have not
come to. A core is slower than another for as long as something else runs on it or beside it, and without this
everyone waits for it at the next barrier. What a unit computes does not depend on who does it.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planish.codegen.llvm.builder import Builder, Cell, Value

MOST_UNITS = (1 << 16) - 1  # of one thread: claims are counted in 16 bits (runtime/pool.py)


@dataclass(frozen=True)
class Crew:
    """The threads of a launch: who runs, of how many, and where claims are made; `launch` is -1 where nothing
    may be claimed."""

    b: Builder
    tid: Value
    threads: Value
    pool: Value
    launch: Value

    def shares(self) -> Value:
        """i1: whether there are others, who may take over units."""
        b = self.b
        may = b.cmp("icmp sge", self.launch, b.i64(0))
        return b.bin("and", may, b.cmp("icmp sgt", self.threads, b.i64(1)))

    def run(self, shares: Value, total: Callable[[Value], Value],
            unit: Callable[[Value, Value], None]) -> None:
        """`unit(owner, number)` for all numbers below `total(owner)` of this thread, then, if `shares`, for
        what the threads after it have left."""
        b = self.b
        turn, number = Cell(b), Cell(b)
        others = b.loop(b.i64(0), b.select(shares, self.threads, b.i64(1)), b.i64(1), hint="owner")
        owner = self.after(others.index)
        count = total(owner)
        turn.set(b.i64(0))
        loop = b.repeat("unit")
        next_one = turn.get()
        turn.set(b.add(next_one, b.i64(1)))
        number.set(next_one)
        claims = b.when(shares, "claim")
        front = b.cmp("icmp eq", others.index, b.i64(0))
        number.set(b.call("planish_claim", "i64", [self.pool, self.launch, owner, count, front]))
        claims.end()
        mine = number.get()
        loop.test(b.cmp("icmp slt", mine, count))
        unit(owner, mine)
        loop.end()
        others.end()

    def after(self, steps: Value) -> Value:
        """The thread so many after this one, in a ring."""
        b = self.b
        far = b.add(self.tid, steps)
        return b.select(b.cmp("icmp sge", far, self.threads), b.bin("sub", far, self.threads), far)
