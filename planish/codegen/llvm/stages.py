"""A stage's own loops as LLVM IR: nests, vector trips and what is left of them, accumulators.

In: a stage (or several over equal axes) at one point of the shared axes, whose place the scope of `e` tells.
Out: its loops in the function that is being written; what it stores is stored, what it reduces is known to
`e` by its name. Sums are added up in an order that follows from the schedule alone.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planish.codegen.llvm import registers
from planish.codegen.llvm.blocks import write_blocks
from planish.codegen.llvm.builder import Builder, Value, lanes_of
from planish.codegen.llvm.elementwise import emit
from planish.codegen.llvm.expressions import Expressions, Scope
from planish.codegen.llvm.places import written_out
from planish.schedule.kernel import (
    Apply,
    Axis,
    Buffer,
    Kernel,
    Load,
    Scalar,
    Sort,
    Stage,
    Store,
    stage_values,
    walk,
)
from planish.schedule.nests import identity
from planish.schedule.roles import contraction_of
from planish.types import is_static

BLOCK = 64  # trips of unrolled vectors summed by themselves: some 250 cycles, to 20 of adding them up
SHORT_BLOCK = 16  # as many of them are, where they are one round of a loop around them


@dataclass
class Accumulators:
    """The running values of a reduction: `vectors` (one for each of the unrolled vectors) and one for the
    scalar rest."""

    stage: Stage
    vectors: list[Value]
    rest: Value


class StageWriter:
    """Writes the stages of `kernel` into `b`, with values written by `e`."""

    def __init__(self, b: Builder, kernel: Kernel, e: Expressions, numerics: str):
        self.b, self.kernel, self.e, self.numerics = b, kernel, e, numerics
        self.is_contraction = contraction_of(kernel) is not None

    def single(self, stage: Stage, lanes: int) -> None:
        """A stage without loops: a value that is stored, named, or both; a reduction of one element."""
        wide = lanes if self.e.in_vector(self.e.depends(stage.value)) else 1
        value = self.e.value(stage.value, wide)
        self.e.set_result(stage.name, value)
        if stage.running == "exclusive":
            value = registers.constant(self.b, stage.dtype.name, identity(stage.combine, stage.dtype), wide)
        if stage.store is not None:
            value = self.narrowed(stage, stage.store, value)
            self.e.store(stage.store, value if wide == lanes else self.b.splat(value, lanes), lanes)

    def narrowed(self, stage: Stage, store: Store, value: Value) -> Value:
        """A scan keeps a wider running value than it stores."""
        if store.buffer.dtype is stage.dtype:
            return value
        return registers.round_to(self.b, value, store.buffer.dtype.name)

    def stage_loops(self, stages: list[Stage], later: list[Stage | Sort], lanes: int) -> None:
        """One loop nest for stages over equal axes."""
        axes = stages[0].axes
        reductions = [self.fresh(s, axes[-1], lanes) for s in stages if s.combine]
        self.stages_values = [v for s in stages for v in stage_values(s)]
        carried = self.loops(stages, axes, reductions, later, lanes)
        for accumulators, values in zip(reductions, _chunks(carried, reductions)):
            self.e.set_result(accumulators.stage.name, self.finish(_refill(accumulators, values)))

    def fresh(self, stage: Stage, axis: Axis, lanes: int) -> Accumulators:
        """Accumulators holding the identity. In outer-vector mode each lane accumulates for its own point."""
        start, name = identity(stage.combine, stage.dtype), stage.dtype.name
        count = 0 if lanes > 1 or axis.lanes == 1 else axis.unroll
        vectors = [registers.constant(self.b, name, start, axis.lanes) for _ in range(count)]
        return Accumulators(stage, vectors, registers.constant(self.b, name, start, lanes))

    def loops(self, stages: list[Stage], axes: tuple[Axis, ...], reductions: list[Accumulators],
              later: list[Stage | Sort], lanes: int) -> list[Value]:
        self.e.hoist(self.stages_values)
        carry = [v for r in reductions for v in _carried(r)]
        axis = axes[0]
        if len(axes) == 2 and axis.lanes > 1:
            write_blocks(self, stages[0], *axes)
            return carry
        if len(axes) > 1:
            loop = self.b.loop(self.b.i64(0), self.e.dim(axis.extent), self.b.i64(1), carry)
            outside, self.e.scope = self.e.scope, Scope(self.e.scope, {axis.name: loop.index})
            inner = [_refill(r, v) for r, v in zip(reductions, _chunks(loop.carry, reductions))]
            after = self.loops(stages, axes[1:], inner, later, lanes)
            self.e.scope = outside
            return loop.end(after)
        if axis.unroll > 1 and axis.lanes == 1:
            return self.every_step(stages, axis, reductions, lanes)
        if lanes > 1 or axis.lanes == 1:
            extent = self.e.dim(axis.extent)
            return self.trips(stages, axis, self.b.i64(0), extent, 1, 1, carry, reductions, later, lanes)
        return self.vector_trips(stages, axis, carry, reductions, later)

    def vector_trips(self, stages: list[Stage], axis: Axis, carry: list[Value],
                     reductions: list[Accumulators], later: list[Stage | Sort]) -> list[Value]:
        """The innermost axis: unrolled vectors, single vectors, single elements; loops that can't run are
        left out. Where points may be computed twice, the last vector ends at the end instead."""
        extent = self.e.dim(axis.extent)
        trips = [(axis.lanes, axis.unroll), (axis.lanes, 1), (1, 1)]
        at: Value = self.b.i64(0)
        for width, factor in dict.fromkeys(trips):
            step = width * factor
            if is_static(axis.extent):
                if step == 1 and axis.extent > axis.lanes and _may_repeat(stages):
                    if axis.extent % axis.lanes:
                        at, width, step = self.b.i64(axis.extent - axis.lanes), axis.lanes, axis.extent
                        return self.trips(stages, axis, at, extent, width, 1, carry, reductions, later, 1)
                    continue
                stop = self.b.i64(axis.extent // step * step)
                if stop == at:
                    continue
            else:
                stop = extent if step == 1 else self.b.bin("and", extent, self.b.i64(-step))
            each = self.sum_of_blocks if factor > 1 and _is_long_sum(axis, reductions) else self.trips
            carry = each(stages, axis, at, stop, width, factor, carry, reductions, later, 1)
            at = stop
        return carry

    def sum_of_blocks(self, stages: list[Stage], axis: Axis, start: Value, stop: Value, width: int,
                      unroll: int, carry: list[Value], reductions: list[Accumulators],
                      later: list[Stage | Sort], lanes: int) -> list[Value]:
        """`trips` of a long sum: each block by itself, so that rounding errors grow with the length of a
        block and with the number of blocks, not with their product."""
        b, size = self.b, self.b.i64(BLOCK * width * unroll)
        outer = b.loop(start, stop, size, carry, hint="block")
        end = b.intrinsic("smin", b.add(outer.index, size), stop)
        parts = [self.fresh(r.stage, axis, lanes) for r in reductions]
        fresh = [v for p in parts for v in _carried(p)]
        summed = self.trips(stages, axis, outer.index, end, width, unroll, fresh, parts, later, lanes)
        owners = [r.stage for r in reductions for _ in _carried(r)]
        return outer.end([self.combine(s, x, y) for s, x, y in zip(owners, outer.carry, summed)])

    def every_step(self, stages: list[Stage], axis: Axis, reductions: list[Accumulators],
                   lanes: int) -> list[Value]:
        """The steps of a window's innermost axis, one after another without a loop."""
        for k, value in written_out(stages, axis):
            self.add_up(reductions[k], value, lanes)
        return [v for r in reductions for v in _carried(r)]

    def add_up(self, acc: Accumulators, value: Scalar, lanes: int) -> None:
        """One more value of a reduction; of a contraction, in one operation with its product."""
        fused = self.is_contraction and self.numerics != "strict" and acc.stage.dtype.is_float
        if fused and isinstance(value, Apply):
            x, y = (self.e.value(a, lanes) for a in value.args)
            acc.rest = self.b.multiply_add(x, y, acc.rest)
        else:
            acc.rest = self.combine(acc.stage, acc.rest, self.e.value(value, lanes))

    def trips(self, stages: list[Stage], axis: Axis, start: Value, stop: Value, width: int, unroll: int,
              carry: list[Value], reductions: list[Accumulators], later: list[Stage | Sort],
              lanes: int) -> list[Value]:
        """for axis in range(start, stop, width * unroll): every stage, `unroll` times."""
        b = self.b
        loop = b.loop(start, stop, b.i64(width * unroll), carry)
        outside = self.e.scope
        running = [_refill(r, v) for r, v in zip(reductions, _chunks(loop.carry, reductions))]
        for turn in range(unroll):
            index = loop.index if turn == 0 else b.add(loop.index, b.i64(turn * width))
            vector_axis = axis.name if width > 1 else ""
            self.e.scope = Scope(outside, {axis.name: index}, vector_axis, width)
            self.one_trip(stages, turn, width, running, later, max(width, lanes))
        self.e.scope = outside
        return loop.end([v for r in running for v in _carried(r)])

    def one_trip(self, stages: list[Stage], turn: int, width: int, running: list[Accumulators],
                 later: list[Stage | Sort], lanes: int) -> None:
        waiting = iter(running)
        for stage in stages:
            value = self.e.value(stage.value, lanes)
            if stage.combine:
                accumulators = next(waiting)
                before = accumulators.rest
                self.accumulate(accumulators, value, turn, width)
                if stage.running and stage.store is not None:
                    kept = before if stage.running == "exclusive" else accumulators.rest
                    self.e.store(stage.store, self.narrowed(stage, stage.store, kept), lanes)
            elif stage.store is not None:
                self.e.scope.forwarded[stage.store.buffer.name] = stage.store.index, value
                if stage.store.buffer.space == "global" or _is_read(stage.store.buffer, later):
                    if lanes > 1 and _keeps_some(stage):
                        value = self.b.intrinsic("arithmetic.fence", value)
                    self.e.store(stage.store, value, lanes)

    def combine(self, stage: Stage, x: Value, y: Value) -> Value:
        name = stage.dtype.name
        return emit(self.b, stage.combine, (name, name), name, [x, y], self.numerics)

    def accumulate(self, acc: Accumulators, value: Value, turn: int, width: int) -> None:
        if width > 1:
            acc.vectors[turn] = self.combine(acc.stage, acc.vectors[turn], value)
        else:
            acc.rest = self.combine(acc.stage, acc.rest, value)

    # --- the end of a reduction: a fixed tree, so that the result does not depend on the machine's load

    def finish(self, acc: Accumulators) -> Value:
        if not acc.vectors:
            return acc.rest
        level = acc.vectors
        while len(level) > 1:
            alone = level[len(level) // 2 * 2:]
            level = [self.combine(acc.stage, x, y) for x, y in zip(level[::2], level[1::2])] + alone
        return self.combine(acc.stage, self.across(acc.stage, level[0]), acc.rest)

    def across(self, stage: Stage, vec: Value) -> Value:
        """Combine the lanes of a vector, halves first."""
        while lanes_of(vec.type) > 1:
            half = lanes_of(vec.type) // 2
            low, high = (self.shuffle(vec, range(s, s + half)) for s in (0, half))
            vec = self.combine(stage, low, high)
        return vec

    def shuffle(self, vec: Value, lanes: Sequence[int]) -> Value:
        if len(lanes) == 1:
            return self.b.extract(vec, lanes[0])
        picks = ", ".join(f"i32 {k}" for k in lanes)
        type_ = f"<{len(lanes)} x {vec.type.split(' x ')[1]}"
        return self.b.value(type_, f"shufflevector {vec}, {vec.type} poison, <{len(lanes)} x i32> <{picks}>")


def _carried(acc: Accumulators) -> list[Value]:
    return [*acc.vectors, acc.rest]


def _refill(acc: Accumulators, values: Sequence[Value]) -> Accumulators:
    """The same accumulators with other values, in the order of `_carried`."""
    *vectors, rest = values
    return Accumulators(acc.stage, vectors, rest)


def _chunks(values: Sequence[Value], reductions: Sequence[Accumulators]) -> list[list[Value]]:
    chunks, at = [], 0
    for acc in reductions:
        size = len(_carried(acc))
        chunks.append(list(values[at:at + size]))
        at += size
    return chunks


def _is_long_sum(axis: Axis, reductions: Sequence[Accumulators]) -> bool:
    """Whether floats are added up along more of an axis than a block, perhaps, or along many such axes."""
    stages = [r.stage for r in reductions]
    if any(s.running for s in stages) or not any(s.combine == "add" and s.dtype.is_float for s in stages):
        return False
    least = BLOCK + 1 if len(stages[0].axes) == 1 else SHORT_BLOCK
    return not is_static(axis.extent) or axis.extent >= least * axis.lanes * axis.unroll


def _may_repeat(stages: Sequence[Stage]) -> bool:
    """Whether stages that ran for a point may run again: they don't change what they read. Arguments may lie
    over one another, rows don't."""
    stores = [s.store for s in stages]
    if any(s.combine for s in stages) or any(s is None or s.update or s.guard is not None for s in stores):
        return False
    written = {s.buffer.name for s in stores if s is not None}
    outside = any(s is not None and s.buffer.space == "global" for s in stores)
    loads = [x.buffer for s in stages for x in walk(*stage_values(s)) if isinstance(x, Load)]
    return all(b.name not in written and not (outside and b.space == "global") for b in loads)


def _keeps_some(stage: Stage) -> bool:
    """Whether floats are stored where they are chosen or what is there: LLVM would make it a store under a
    mask, which takes AMD's processors some 16 cycles, if it saw the choice."""
    value, store = stage.value, stage.store
    if not isinstance(value, Apply) or value.op != "select" or store is None or not value.dtype.is_float:
        return False
    return any(isinstance(x, Load) and (x.buffer, x.index) == (store.buffer, store.index) for x in value.args)


def _is_read(buffer: Buffer, stages: list[Stage | Sort]) -> bool:
    scalars = (x for s in stages for x in walk(*stage_values(s)))
    return any(isinstance(x, Load) and x.buffer.name == buffer.name for x in scalars)
