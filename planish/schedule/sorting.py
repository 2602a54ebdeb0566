"""Scratch memory of sorts: how much one needs, and the step that gives it to a kernel.

A row is sorted by merging back and forth between two arrays of keys (and two of positions, where they are
wanted). The first few of a row are selected in arrays of that many entries only. A thread needs this once,
whatever the number of rows.
"""
from __future__ import annotations

from dataclasses import replace

from planish.schedule.buffers import Buffers
from planish.schedule.kernel import Buffer, Kernel, Sort
from planish.types import INT64, UINT8, Dim, TensorType

SELECT = 64   # up to this many first entries are kept sorted while the row goes by
ALIGN = 64


def selects(stage: Sort) -> bool:
    """Whether the first entries are picked without sorting the row."""
    return isinstance(stage.count, int) and stage.count <= SELECT and stage.count != stage.axis.extent


def work_layout(stage: Sort) -> tuple[list[Dim], Dim]:
    """Where the arrays of one thread start, in bytes (keys, other keys, positions, other positions: those
    there are), and the bytes in all."""
    entries, copies = (stage.count, 1) if selects(stage) else (stage.axis.extent, 2)
    widths = [stage.key.dtype.itemsize] + [INT64.itemsize] * (stage.positions is not None)
    starts: list[Dim] = []
    total: Dim = 0
    for width in (w for w in widths for _ in range(copies)):
        starts.append(total)
        total = total + (entries * width + ALIGN - 1) // ALIGN * ALIGN
    return starts, total


def work_bytes(stage: Sort) -> Dim:
    return work_layout(stage)[1]


def with_work(kernel: Kernel, threads: int, buffers: Buffers) -> Kernel:
    """The kernel with scratch memory for its sorts, entered in `buffers`; a kernel on one thread needs one
    row."""
    rows = threads if any(a.parallel for a in kernel.shared) else 1
    made: list[Buffer] = []
    stages = list(kernel.stages)
    for i, stage in enumerate(stages):
        if isinstance(stage, Sort):
            work = Buffer(f"{kernel.name}_{stage.name}_work", TensorType(UINT8, (rows, work_bytes(stage))))
            stages[i] = replace(stage, work=work)
            made.append(buffers.add(work))
    return replace(kernel, stages=tuple(stages), outputs=(*kernel.outputs, *made)) if made else kernel
