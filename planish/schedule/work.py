"""How much work kernels are, and whether threads are to share it.

In: a kernel or a program. Out: its work as a Dim, in multiply-adds or as much time. A contraction's are those
of its points, and what it takes to fetch the right operand: for one row that is most of it.

A barrier that all threads come to costs 0.1 us, and what one thread has written for the other is fetched
anew; to launch a program on threads costs 1 us where they are awake, some 20 where they sleep. So a kernel
is shared from SMALL_WORK, and a call uses several threads from WORTH_THREADS for all its kernels together
(runtime/tables.py).
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import cast

from planish.schedule.kernel import Kernel, points, stage_axes
from planish.schedule.program import For, If, Launch, Program, Step, While, every_step
from planish.schedule.roles import contraction_of
from planish.types import Dim, is_static
from planish.types.dim import maximum

SMALL_WORK = 1 << 17        # of a contraction, below which one thread is enough: 3 us
WORTH_A_BARRIER = 1 << 20   # of a launch in a loop that is worth one: some 20 us
POINT = 16                  # multiply-adds that take as long as one point of other kernels
BYTE = 1                    # multiply-adds that take as long as a byte of the right operand to come


def is_shared(kernel: Kernel) -> bool:
    """Whether threads share a kernel out among them."""
    return any(a.parallel for a in kernel.shared)


def work_of(kernel: Kernel) -> Dim:
    """Multiply-adds of a contraction and the fetching of its right operand, or as much time in other points.
    """
    each = [points((*kernel.shared, *stage_axes(s))) for s in kernel.stages]
    return each[0] + _fetching(kernel) if kernel.tile is not None else sum(each, start=cast(Dim, 0)) * POINT


def _fetching(kernel: Kernel) -> Dim:
    """What it takes to fetch all of a contraction's right operand once."""
    tile, parts = kernel.tile, contraction_of(kernel)
    assert tile is not None and parts is not None
    used = [a for a in (*kernel.shared, *parts.sum.axes) if a.name not in tile.m]
    return points(used) * (parts.right.dtype.itemsize * BYTE)


def shared_work(program: Program) -> Dim:
    """The work that threads share in a call; 0 where they share none. Of works that sizes of the call decide
    it is the largest: at other sizes than those the kernels were planned for, a kernel may be too little to
    share, however many there are. They are left out where the rest is worth threads without."""
    works = list(_shared_works(program.steps))
    known = sum(w for w in works if is_static(w))
    if known >= WORTH_A_BARRIER:
        return known
    return reduce(maximum, sorted({w for w in works if not is_static(w)}, key=str), cast(Dim, known))


def _shared_works(steps: Sequence[Step]) -> Iterator[Dim]:
    """What threads share in each launch and parallel loop. A `while` counts as one round."""
    for step in steps:
        if isinstance(step, Launch):
            yield work_of(step.kernel) if is_shared(step.kernel) else 0
        elif isinstance(step, For):
            inside = (work_of(k) for k in kernels_in(step)) if step.parallel else _shared_works(step.body)
            yield step.length * sum(inside, start=cast(Dim, 0))
        elif isinstance(step, (If, While)):
            for region in step.regions:
                yield from _shared_works(region)


def kernels_in(step: Step) -> list[Kernel]:
    return [s.kernel for s in every_step([step]) if isinstance(s, Launch)]
