"""The verifier of the loops IR: what must hold of every kernel, before and after each schedule step.

In: a kernel. Out: the same kernel, or VerificationError with the fault, the stage marked and the lines
around it. An index is out of range when a point of the loops is found where it is; indices known only at
run time are not judged. Points of the shared axes race when a store does not depend on one of them.
"""
from __future__ import annotations

from collections.abc import Iterator
from keyword import iskeyword

import numpy as np

from planish.errors import TypeRuleError, VerificationError
from planish.schedule.access import Access, is_even, stride_along
from planish.schedule.expression import result_dtype, spell, spell_load
from planish.schedule.interpret import COMBINES
from planish.schedule.kernel import (
    Apply,
    Axis,
    Buffer,
    Kernel,
    Load,
    RegisterTile,
    Result,
    Scalar,
    Sort,
    Stage,
    Store,
    has_result,
    own_dims,
    stage_axes,
    stage_stores,
    stage_values,
    walk,
)
from planish.schedule.points import corner_points, dim_values
from planish.schedule.products import BLOCK, NUMBERS, TILES
from planish.schedule.sorting import work_bytes
from planish.schedule.text import kernel_symbols, print_kernel
from planish.types import BOOL, DTYPES, FLOAT32, INT64, UINT8, Dim, Expr, is_static, symbols_of

CONTEXT = 5  # lines of IR shown on each side of a fault

_RESERVED = {d.short for d in DTYPES} | {"inf", "nan", "max", "min"}

Index = tuple[Dim | Scalar, ...]
Where = Stage | Sort | None


def verify_kernel(kernel: Kernel, after: str = "") -> Kernel:
    """The kernel itself, if it is well formed. Raises VerificationError; `after` names what made it."""
    for where, fault in _Checker(kernel).faults():
        raise VerificationError(_report(kernel, where, fault, after))
    return kernel


def _report(kernel: Kernel, where: Where, fault: str, after: str) -> str:
    lines = print_kernel(kernel, mark=where).splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("->")), 0)
    around = "\n".join(lines[max(0, at - CONTEXT):at + CONTEXT + 1])
    return f"{f'after {after}: ' if after else ''}kernel {kernel.name}: {fault}\n{around}"


class _Checker:
    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.buffers = {b.name: b for b in (*kernel.arguments, *kernel.rows)}
        self.axes = {a.name for a in kernel.shared} | {a.name for s in kernel.stages for a in stage_axes(s)}
        self.shared = {a.name for a in kernel.shared if a.extent != 1}
        self.sizes = kernel_symbols(kernel)
        self.stored = {s.buffer.name for stage in kernel.stages for s in stage_stores(stage)}
        self.stored |= {s.work.name for s in kernel.stages if isinstance(s, Sort) and s.work is not None}
        self.written = {b.name for b in kernel.inputs}
        self.results: dict[str, Stage] = {}

    def faults(self) -> Iterator[tuple[Where, str]]:
        """Every fault, with the stage it is in (None: the head)."""
        yield from ((None, f) for f in self.head())
        for stage in self.kernel.stages:
            yield from ((stage, f) for f in self.stage(stage))
            self.written |= {s.buffer.name for s in stage_stores(stage)}
            if isinstance(stage, Stage) and has_result(stage):
                self.results[stage.name] = stage
        for buffer in self.kernel.outputs:
            if buffer.name not in self.stored:
                yield None, f"the output {buffer.name} is never written"

    # --- head

    def head(self) -> Iterator[str]:
        yield from self.names()
        for buffer in self.buffers.values():
            if buffer.order and sorted(buffer.order) != list(range(len(buffer.shape))):
                yield f"the order of {buffer.name} is to name each of its {len(buffer.shape)} axes once"
            if (buffer.space == "row") != (buffer in self.kernel.rows):
                yield f"{buffer.name} is in {buffer.space} memory, and is not listed there"
        yield from self.scope(self.kernel.shared, set())
        if self.kernel.tile is not None:
            yield from self.tile()

    def names(self) -> Iterator[str]:
        # One that is input and output is updated in place, and is one thing.
        buffers = dict.fromkeys((*self.kernel.arguments, *self.kernel.rows))
        names = [b.name for b in buffers] + [s.name for s in self.kernel.stages] + sorted(self.axes)
        for name in dict.fromkeys(names):
            if not name.isidentifier() or iskeyword(name) or name in _RESERVED:
                yield f"{name!r} can't be the name of a buffer, stage or axis"
            if names.count(name) > 1 or name in {s.name for s in self.sizes}:
                yield f"{name} is the name of two things"

    def scope(self, axes: tuple[Axis, ...], scope: set[str]) -> Iterator[str]:
        """Axes are declared once, and extents depend on outer axes only. Adds the axes to `scope`."""
        for axis in axes:
            yield from self.in_scope(axis.extent, scope, f"the extent of {axis.name}")
            if axis.name in scope:
                yield f"axis {axis.name} is declared inside itself"
            if axis.lanes < 1 or axis.unroll < 1:
                yield f"axis {axis.name} has {axis.lanes} lanes and is unrolled {axis.unroll} times"
            scope.add(axis.name)

    def in_scope(self, dim: Dim, scope: set[str], what: str) -> Iterator[str]:
        names = symbols_of(dim).keys() & (self.axes - scope)
        yield from (f"{what} uses axis {n} outside its loop" for n in sorted(names))

    def tile(self) -> Iterator[str]:
        tile = self.kernel.tile
        assert tile is not None
        shared = [a.name for a in self.kernel.shared]
        for name in (*tile.batch, *tile.m, *tile.n):
            if name not in shared:
                yield f"the tile names {name}, which is not a shared axis"
        reductions = [s for s in self.kernel.stages if isinstance(s, Stage) and s.combine]
        if tile.k not in [tuple(a.name for a in s.axes) for s in reductions]:
            yield f"the tile reduces over {', '.join(tile.k)}; no stage does"
        elif tile.product is not NUMBERS:
            yield from self.product(tile, reductions[0])

    def product(self, tile: RegisterTile, stage: Stage) -> Iterator[str]:
        """Products of several neighbours along k have narrow operands, and panels in which these lie side by
        side."""
        by, loads = tile.product, [x for x in walk(stage.value) if isinstance(x, Load)]
        wanted = tile.vectors * tile.lanes, by.pair
        if len(loads) != 2 or any(x.dtype not in by.operands for x in loads):
            known = " or ".join(map(str, by.operands))
            yield f"what is multiplied by {by.name} is two operands, of {known}"
        elif not tile.packed or loads[1].buffer.shape[-2:] != wanted:
            yield f"products by {by.name} want panels [.., {wanted[0]}, {wanted[1]}] on the right"
        elif by is TILES:
            yield from self.blocks(tile, stage, loads[0])

    def blocks(self, tile: RegisterTile, stage: Stage, left: Load) -> Iterator[str]:
        """What tile registers read: whole steps, along which the left operand lies, in rows evenly apart."""
        deepest, access = stage.axes[-1], Access(left.buffer, left.index)
        if (tile.rows, tile.vectors, tile.lanes) != BLOCK or not tile.m:
            yield f"products by tiles are in blocks of rows {BLOCK[0]} vectors {BLOCK[1]} lanes {BLOCK[2]}"
        if TILES.filled(deepest.extent) != deepest.extent:
            yield f"products by tiles sum over whole steps of {TILES.steps}, not over {deepest.extent}"
        if stride_along(access, deepest.name) != 1:
            yield f"products by tiles read {left.buffer.name} along {deepest.name}, where it does not lie"
        if not is_even(access, [a for a in self.kernel.shared if a.name in tile.m]):
            yield f"products by tiles read rows of {left.buffer.name} that are not evenly apart"

    # --- stages

    def stage(self, stage: Stage | Sort) -> Iterator[str]:
        scope = {a.name for a in self.kernel.shared}
        yield from self.scope(stage_axes(stage), scope)
        for scalar in walk(*stage_values(stage)):
            for dim in own_dims(scalar):
                yield from self.in_scope(dim, scope, spell(scalar))
            yield from self.scalar(scalar)
        yield from self.sort_form(stage) if isinstance(stage, Sort) else self.form(stage)
        for store in stage_stores(stage):
            for dim in (i for i in store.index if isinstance(i, (int, Expr))):
                yield from self.in_scope(dim, scope, spell_load(store.buffer, store.index))
            yield from self.store(stage, store)
        yield from self.ranges(stage)

    def form(self, stage: Stage) -> Iterator[str]:
        """What a map, a reduction and a scan have, and the dtypes of value, result and store."""
        value, dtype = stage.value.dtype, stage.dtype
        if stage.combine and stage.combine not in COMBINES:
            yield f"{stage.combine} does not reduce"
        if value not in (dtype, dtype.accumulator if stage.combine else dtype):
            yield f"the stage is {dtype} and its value {spell(stage.value)} is {value}"
        if stage.running and (stage.running not in ("inclusive", "exclusive") or stage.combine not in COMBINES
                              or len(stage.axes) > 1):
            yield "a scan combines over one axis, inclusive or exclusive"
        if stage.store is not None and stage.combine and not stage.running and not stage.at:
            yield "a reduction stores nothing; a later map stores its result"
        if stage.at:
            yield from self.at_form(stage)
        elif any(a.lanes > 1 for a in stage.axes[:-1]):
            yield from self.block_form(stage)
        if stage.store is None and (stage.running or not has_result(stage)):
            yield "the values of the stage go nowhere"
        buffer = None if stage.store is None else stage.store.buffer
        # A scan kept in the accumulator of what it stores to rounds each value as it is stored.
        rounds = buffer is not None and bool(stage.running) and buffer.dtype.accumulator is dtype
        if buffer is not None and buffer.dtype is not dtype and not rounds:
            yield f"the stage is {dtype} and stores to {buffer.name}, which is {buffer.dtype}"

    def at_form(self, stage: Stage) -> Iterator[str]:
        """What a reduction at points has: a store there, and the same loops at each of them."""
        names = {a.name for a in stage.at}
        if not stage.combine or stage.running or stage.store is None:
            yield "what runs at points of its own is a reduction that stores its result"
        if any(names & symbols_of(a.extent).keys() for a in stage.axes):
            yield "the loops of a reduction depend on the point it runs at"
        if any(a.lanes > 1 for a in stage.at[:-1]):
            yield "of the axes of its points the last is the vector"

    def block_form(self, stage: Stage) -> Iterator[str]:
        """What is read by vectors along its last axis and stored by vectors along the one before."""
        *outer, rows, columns = (Axis("", 1), *stage.axes)
        if rows.lanes != columns.lanes or any(a.lanes > 1 for a in outer):
            yield "blocks lie along the last two axes, and are square"
        if not is_static(rows.extent) or rows.extent % rows.lanes:
            yield f"axis {rows.name} is not a whole number of blocks"
        if stage.combine or stage.dtype is not FLOAT32 or stage.store is None or stage.store.guard:
            yield "what is turned in blocks is a map of float32 that is stored"

    def sort_form(self, stage: Sort) -> Iterator[str]:
        for store, dtype in ((stage.values, stage.key.dtype), (stage.positions, INT64)):
            if store is None:
                continue
            is_plain = not store.update and store.guard is None
            if not is_plain or any(not isinstance(i, (int, Expr)) for i in store.index):
                yield f"a sort stores to {store.buffer.name} plainly, without update, guard or run-time index"
            if store.buffer.dtype is not dtype:
                yield f"{store.buffer.name} is {store.buffer.dtype}; what the sort stores there is {dtype}"
        if not stage_stores(stage):
            yield "a sort stores values or positions"
        if stage.work is not None:
            yield from self.work(stage, stage.work)

    def work(self, stage: Sort, work: Buffer) -> Iterator[str]:
        needed = work_bytes(stage)
        if work not in self.kernel.outputs:
            yield f"the work memory {work.name} is not an output of the kernel"
        if work.dtype is not UINT8 or len(work.shape) != 2 or work.shape[1] != needed:
            yield f"the work memory {work.name} is {work.type}; the sort needs u8[threads, {needed}]"

    def scalar(self, scalar: Scalar) -> Iterator[str]:
        if isinstance(scalar, Load):
            yield from self.load(scalar)
        elif isinstance(scalar, Result):
            stage = self.results.get(scalar.stage)
            if stage is None:
                yield f"{scalar.stage} is not an earlier stage that comes to one value"
            elif stage.dtype is not scalar.dtype:
                yield f"{scalar.stage} comes to {stage.dtype} and is used as {scalar.dtype}"
        elif isinstance(scalar, Apply):
            yield from self.apply(scalar)

    def apply(self, scalar: Apply) -> Iterator[str]:
        try:
            dtype = result_dtype(scalar.op, scalar.args, scalar.dtype)
        except KeyError:
            yield f"there is no op {scalar.op}"
        except TypeRuleError as error:
            yield f"{spell(scalar)}: {error}"
        else:
            if dtype is not scalar.dtype:
                yield f"{spell(scalar)} is {dtype} by its type rule, not {scalar.dtype}"

    # --- memory

    def place(self, buffer: Buffer, index: tuple[Dim | Scalar, ...]) -> Iterator[str]:
        text = spell_load(buffer, index)
        if self.buffers.get(buffer.name) != buffer:
            yield f"{text}: {buffer.name} is not a buffer of the kernel"
        if len(index) != len(buffer.shape):
            yield f"{text}: {buffer.name} has {len(buffer.shape)} axes, not {len(index)}"
        for entry in index:
            if not isinstance(entry, (int, Expr)) and entry.dtype is not INT64:
                yield f"{text}: the index {spell(entry)} is to be i64, not {entry.dtype}"

    def load(self, load: Load) -> Iterator[str]:
        name, text = load.buffer.name, spell(load)
        yield from self.place(load.buffer, load.index)
        if name not in self.written:
            yield f"{text} is read before it is written"
        if load.buffer.space == "global" and name in self.stored and not self.kernel.serial:
            for axis in sorted(self.shared - _axes_of(load.index)):
                yield f"{text} reads what other points of {axis} write at the same time"

    def store(self, stage: Stage | Sort, store: Store) -> Iterator[str]:
        name, text = store.buffer.name, spell_load(store.buffer, store.index)
        yield from self.place(store.buffer, store.index)
        if store.guard is not None and store.guard.dtype is not BOOL:
            yield f"{text}: the guard {spell(store.guard)} is to be a bool, not {store.guard.dtype}"
        if name in {b.name for b in self.kernel.inputs} - {b.name for b in self.kernel.outputs}:
            yield f"{text} stores to an input"
        if store.update and store.update not in COMBINES:
            yield f"{text}: {store.update} does not join values"
        if store.update and name not in self.written:
            yield f"{text} is joined with what is there before it is written"
        if store.buffer.space == "global" and not self.kernel.serial:
            for axis in sorted(self.shared - _axes_of(store.index)):
                yield f"{text} is stored by all points of {axis}, which run at once; make the kernel serial"
        yield from self.points_of(stage, store, text)

    def points_of(self, stage: Stage | Sort, store: Store, text: str) -> Iterator[str]:
        """Each point of a stage stores to an element of its own and loads only that one of its buffer."""
        dims = {n for i in store.index for d in _dims(i) for n in symbols_of(d)}
        for axis in stage.at if isinstance(stage, Stage) and stage.at else stage.own_axes:
            if not store.update and axis.name not in dims and axis.extent != 1:
                yield f"{text} is stored anew by every point of {axis.name}"
        for load in walk(*stage_values(stage)):
            same = isinstance(load, Load) and load.buffer.name == store.buffer.name
            if same and isinstance(stage, Stage) and spell(load) != text:
                yield f"{spell(load)} is loaded in the loops that store {text}"

    # --- ranges

    def ranges(self, stage: Stage | Sort) -> Iterator[str]:
        outer, inner = self.kernel.shared, stage_axes(stage)
        loads = [(s.buffer, s.index) for s in walk(*stage_values(stage)) if isinstance(s, Load)]
        yield from self.outside(outer + inner, loads)
        plain = [(s.buffer, s.index) for s in stage_stores(stage) if s.guard is None]
        if isinstance(stage, Sort):
            inner = (Axis(stage.axis.name, stage.count),)
        yield from self.outside(outer + inner, plain)

    def outside(self, axes: tuple[Axis, ...], places: list[tuple[Buffer, Index]]) -> Iterator[str]:
        """Indices for which a point of the loops is found that is out of range."""
        points, count = corner_points(self.sizes, axes)
        for buffer, index in places:
            for axis, (entry, size) in enumerate(zip(index, buffer.shape, strict=True)):
                if not isinstance(entry, (int, Expr)):
                    continue
                values, ends = (np.broadcast_to(dim_values(d, points), (count,)) for d in (entry, size))
                for i in np.flatnonzero((values < 0) | (values >= ends))[:1]:
                    names = {*symbols_of(entry), *symbols_of(size)}
                    at = " at " + ", ".join(f"{n}={np.asarray(points[n])[i]}" for n in points if n in names)
                    yield (f"{spell_load(buffer, index)}: index {values[i]} of axis {axis} is out of range "
                           f"for a size of {ends[i]}{at if names else ''}")


def _dims(entry: Dim | Scalar) -> Iterator[Dim]:
    if isinstance(entry, (int, Expr)):
        yield entry
    else:
        yield from (d for s in walk(entry) for d in own_dims(s))


def _axes_of(index: tuple[Dim | Scalar, ...]) -> set[str]:
    """Axes that index expressions depend on; a run-time index may name one element at many points."""
    return {n for i in index if isinstance(i, (int, Expr)) for n in symbols_of(i)}
