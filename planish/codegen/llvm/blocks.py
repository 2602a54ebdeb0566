"""A map that turns what it reads: square blocks, loaded along one axis and stored along the other.

In: a map whose last two axes both have lanes, of float32. A block is a vector along the inner axis for each
lane of the outer one; it is turned in registers and stored by vectors along the outer axis, which is a whole
number of them. What is left of the inner axis goes one by one.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from planish.codegen.llvm.builder import Builder, Value
from planish.codegen.llvm.expressions import Scope
from planish.schedule.kernel import Axis, Stage, stage_values
from planish.types import is_static

if TYPE_CHECKING:
    from planish.codegen.llvm.stages import StageWriter


def write_blocks(w: StageWriter, stage: Stage, rows: Axis, columns: Axis) -> None:
    """The loops over the two axes."""
    b, e, lanes = w.b, w.e, rows.lanes
    outside, extent = e.scope, e.dim(columns.extent)
    is_whole = is_static(columns.extent) and columns.extent % lanes == 0
    stop = extent if is_whole else b.bin("and", extent, b.i64(-lanes))
    outer = b.loop(b.i64(0), e.dim(rows.extent), b.i64(lanes), hint="rows")
    at = [Scope(outside, {rows.name: b.add(outer.index, b.i64(k))}) for k in range(lanes)]
    for e.scope in at:
        e.hoist(stage_values(stage))
    inner = b.loop(b.i64(0), stop, b.i64(lanes), hint="block")
    read = []
    for row in at:
        e.scope = Scope(row, {columns.name: inner.index}, columns.name, lanes)
        read.append(e.value(stage.value, lanes))
    for k, turned in enumerate(transposed(b, read)):
        axes = {rows.name: outer.index, columns.name: b.add(inner.index, b.i64(k))}
        e.scope = Scope(outside, axes, rows.name, lanes)
        assert stage.store is not None
        e.store(stage.store, turned, lanes)
    inner.end()
    if not is_whole:
        _rest(w, stage, columns, at, stop)
    outer.end()
    e.scope = outside


def _rest(w: StageWriter, stage: Stage, columns: Axis, at: list[Scope], start: Value) -> None:
    b, e = w.b, w.e
    loop = b.loop(start, e.dim(columns.extent), b.i64(1), hint="rest")
    for row in at:
        e.scope = Scope(row, {columns.name: loop.index})
        assert stage.store is not None
        e.store(stage.store, e.value(stage.value), 1)
    loop.end()


def transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """The columns of a square matrix, given its rows as vectors: blocks off the diagonal change places, by
    halves."""
    rows, size = list(rows), len(rows)
    apart = size // 2
    while apart:
        upper = [j if not j & apart else j + size - apart for j in range(size)]
        lower = [j + apart if not j & apart else j + size for j in range(size)]
        for i in (i for i in range(size) if not i & apart):
            one, other = rows[i], rows[i + apart]
            rows[i], rows[i + apart] = b.shuffle(one, other, upper), b.shuffle(one, other, lower)
        apart //= 2
    return rows
