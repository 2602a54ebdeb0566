"""A kernel's loops as LLVM IR: shared axes split among threads, stages run in order at each point.

In: a scheduled kernel without a structured body. Out: a function

    void NAME(ptr buffers..., ptr sizes, i64 tid, i64 threads, ptr pool, i64 launch)

whose pointers are the kernel's arguments in order and whose `sizes` is the program's table of run-time sizes.
`launch` is the number under which threads may claim units of one another's work, -1 where they must not.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm, prod

from planish.codegen.llvm import registers
from planish.codegen.llvm.blocks import write_blocks
from planish.codegen.llvm.builder import Builder, Module, Value, lanes_of
from planish.codegen.llvm.elementwise import emit
from planish.codegen.llvm.expressions import Expressions, Scope
from planish.codegen.llvm.overlap import overlapped_loop
from planish.codegen.llvm.places import side_by_side, written_out
from planish.codegen.llvm.points import write_points
from planish.codegen.llvm.sorting import usable_threads, write_sort
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
    in_loops,
    stage_values,
    walk,
)
from planish.schedule.nests import identity
from planish.schedule.roles import contraction_of
from planish.schedule.steps import even_size, overlapped, streamed
from planish.types import Dim, is_static

Body = Callable[[int], None]
NARROW = 8  # lanes of the vectors that take what is left of longer ones
BLOCK = 64  # trips of unrolled vectors summed by themselves: some 250 cycles, to 20 of adding them up
SHORT_BLOCK = 16  # as many of them are, where they are one round of a loop around them
LINE = 64  # elements: a thread's part of a vector axis begins on a cache line, whatever the dtype


def write_kernel(module: Module, kernel: Kernel, name: str, size_slots: dict[str, int],
                 numerics: str) -> Builder:
    """Write `kernel` as function `name`; `size_slots` gives the place of each symbol in the table of
    sizes."""
    b = open_function(module, kernel, name)
    LoopWriter(b, kernel, size_slots, numerics).write()
    b.ret()
    return b


def open_function(module: Module, kernel: Kernel, name: str) -> Builder:
    parameters = [(f"ptr {_alias(kernel, p)}".strip(), f"p{i}") for i, p in enumerate(kernel.arguments)]
    parameters += [("ptr", "sizes"), ("i64", "tid"), ("i64", "threads"), ("ptr", "pool"), ("i64", "launch")]
    return module.function(name, parameters, linkage="hidden")


def _alias(kernel: Kernel, buffer: Buffer) -> str:
    """Outputs may take the memory of an input that is read at the same points only, so nothing is said of
    aliasing beyond what is written."""
    return "readonly" if buffer in kernel.inputs and buffer not in kernel.outputs else ""


@dataclass
class Accumulators:
    """The running values of a reduction: `vectors` (one for each of the unrolled vectors) and one for the
    scalar rest."""

    stage: Stage
    vectors: list[Value]
    rest: Value


class LoopWriter:
    def __init__(self, b: Builder, kernel: Kernel, size_slots: dict[str, int], numerics: str):
        self.b, self.kernel, self.numerics = b, kernel, numerics
        self.stages = list(kernel.stages)
        self.is_contraction = contraction_of(kernel) is not None
        sizes, self.tid, threads, self.pool, self.launch = b.parameters[-5:]
        self.threads = usable_threads(b, kernel, threads)
        pointers = {p.name: v for p, v in zip(kernel.arguments, b.parameters)}
        pointers |= {row.name: self.row_memory(row) for row in kernel.rows}
        values = {s: b.load("i64", b.gep("i64", sizes, b.i64(size_slots[s])), 8) for s in kernel.symbols}
        self.e = Expressions(b, kernel, pointers, values, numerics)

    def row_memory(self, row: Buffer) -> Value:
        count = row.type.size
        assert is_static(count)
        element = registers.memory_type(row.dtype.name)
        return self.b.value("ptr", f"alloca {element}, i64 {max(count, 1)}, align 64")

    def write(self) -> None:
        self.e.hoist(self.all_values())
        self.shared_loops()
        if streamed(self.kernel) and self.b.module.triple.startswith("x86_64"):
            self.b.module.declare("llvm.x86.sse.sfence", "void", [])
            self.b.do("call void @llvm.x86.sse.sfence()")

    def all_values(self) -> list[Scalar]:
        return [v for s in self.stages for v in stage_values(s)]

    # --- shared axes

    def shared_loops(self) -> None:
        shared = self.kernel.shared
        split = [a for a in shared if a.parallel]
        rest = [a for a in shared if not a.parallel]
        if not split:
            first = self.b.when(self.b.cmp("icmp eq", self.tid, self.b.i64(0)), "alone")
            self.nest(rest)
            first.end()
        elif len(split) == 1 and split[0].lanes > 1:
            start, stop = self.thread_part(split[0].extent, lcm(LINE, split[0].lanes))
            self.axis_loop(split[0], start, stop, self.point)
        elif len(split) == 1:
            start, stop = self.thread_part(split[0].extent, 1)
            self.scalar_loop({split[0].name: None}, start, stop, lambda: self.nest(rest))
        else:
            self.split_loop(split, rest)

    def split_loop(self, split: list[Axis], rest: list[Axis]) -> None:
        """Several axes shared out as one: the flat number of a point is divided into its indices."""
        start, stop = self.thread_part(prod((a.extent for a in split), start=1), 1)
        loop = self.b.loop(start, stop, self.b.i64(1), hint="point")
        left = loop.index
        axes: dict[str, Value] = {}
        for axis in reversed(split[1:]):
            extent = self.e.dim(axis.extent)
            axes[axis.name] = self.b.bin("urem", left, extent)
            left = self.b.bin("udiv", left, extent)
        axes[split[0].name] = left
        self.within(axes, lambda: self.nest(rest))
        loop.end()

    def thread_part(self, total: Dim, grain: int) -> tuple[Value, Value]:
        """[start, stop) of this thread, in whole grains."""
        b = self.b
        count = self.e.dim(total)
        grains = b.bin("udiv", b.add(count, b.i64(grain - 1)), b.i64(grain)) if grain > 1 else count
        share = b.bin("udiv", b.add(grains, b.add(self.threads, b.i64(-1))), self.threads)
        size = b.mul(share, b.i64(grain)) if grain > 1 else share
        start = b.intrinsic("smin", b.mul(self.tid, size), count)
        return start, b.intrinsic("smin", b.add(start, size), count)

    def nest(self, axes: Sequence[Axis]) -> None:
        """The remaining shared axes, the last perhaps a vector, around the stages."""
        if not axes:
            self.point(1)
        elif len(axes) == 1 and axes[0].lanes > 1:
            self.e.hoist(self.all_values())
            self.axis_loop(axes[0], self.b.i64(0), self.e.dim(axes[0].extent), self.point)
        elif axes[0].unroll > 1:
            self.several_points(axes[0], axes[1:])
        else:
            self.e.hoist(self.all_values())
            self.scalar_loop({axes[0].name: None}, self.b.i64(0), self.e.dim(axes[0].extent),
                             lambda: self.nest(axes[1:]))

    def several_points(self, axis: Axis, inner: Sequence[Axis]) -> None:
        """`unroll` points of an axis at a time. Of a known number, as few blocks as it takes, of two sizes
        one apart; else what is left goes point by point."""
        b, most = self.b, axis.unroll
        if is_static(axis.extent):
            size = even_size(axis.extent, most)
            small = -(-axis.extent // most) * size - axis.extent   # blocks of one point less
            middle = b.i64(axis.extent - small * (size - 1))
            sizes = (size, size - 1) if small else (size,)
        else:
            extent = self.e.dim(axis.extent)
            middle = b.bin("sub", extent, b.bin("urem", extent, b.i64(most)))
            sizes = (most, 1)
        whole = self.stages
        start = b.i64(0)
        for size, stop in zip(sizes, (middle, self.e.dim(axis.extent))):
            copies = side_by_side([s for s in whole if isinstance(s, Stage)], axis, size)
            self.stages = list(copies)
            self.e.learn(copies)
            self.e.hoist(self.all_values())
            loop = b.loop(start, stop, b.i64(size), hint="points")
            self.within({axis.name: loop.index}, lambda: self.nest(inner))
            loop.end()
            start = stop
        self.stages = whole

    def scalar_loop(self, names: dict[str, None], start: Value, stop: Value,
                    body: Callable[[], None]) -> None:
        loop = self.b.loop(start, stop, self.b.i64(1))
        self.within(dict.fromkeys(names, loop.index), body)
        loop.end()

    def within(self, axes: dict[str, Value], body: Callable[[], None], vector_axis: str = "",
               lanes: int = 1) -> None:
        outside = self.e.scope
        self.e.scope = Scope(outside, axes, vector_axis, lanes)
        body()
        self.e.scope = outside

    def axis_loop(self, axis: Axis, start: Value, stop: Value, body: Body) -> None:
        """A shared axis by vectors, what is left of long ones by short ones, then by single points. `start`
        is a number of whole vectors, and so is `stop` unless it is the end."""
        b = self.b
        widths = [axis.lanes, *[NARROW] * (axis.lanes > NARROW and axis.lanes % NARROW == 0), 1]
        left = axis.extent if is_static(axis.extent) else None
        for width in widths:
            if left == 0:
                return
            middle = stop
            if left is None or left % width:
                middle = b.bin("sub", stop, b.bin("urem", b.bin("sub", stop, start), b.i64(width)))
            if left is None or left >= width:
                inside = (axis.name, width) if width > 1 else ("", 1)

                def turn(index: Value, width: int = width, inside: tuple[str, int] = inside) -> None:
                    self.within({axis.name: index}, lambda: body(width), *inside)

                if width == axis.lanes and axis.name in overlapped(self.kernel):
                    overlapped_loop(b, start, middle, width, overlapped(self.kernel)[axis.name], turn)
                else:
                    loop = b.loop(start, middle, b.i64(width), hint="vector" if width > 1 else "rest")
                    turn(loop.index)
                    loop.end()
            start, left = middle, None if left is None else left % width

    # --- one point of the shared axes: the stages in order

    def point(self, lanes: int) -> None:
        """`lanes` > 1: the last shared axis is the vector and every stage computes that many points at
        once."""
        left = list(self.stages)
        for loop, group in in_loops(self.stages):
            del left[:len(group)]
            if loop is None:
                self.run(group, left, lanes)
                continue
            self.e.hoist([v for s in group for v in stage_values(s)])
            again = partial(self.run, group, [*group, *left], lanes)  # a later round may read what one stores
            self.scalar_loop({loop.name: None}, self.b.i64(0), self.e.dim(loop.extent), again)

    def run(self, group: list[Stage | Sort], left: list[Stage | Sort], lanes: int) -> None:
        """The stages of a group in order; `left` are those that may read what they store."""
        stages = list(group)
        while stages:
            stage = stages.pop(0)
            if isinstance(stage, Sort):
                write_sort(self, stage)
            elif stage.at:
                write_points(self, stage)
            elif stage.axes:
                self.stage_loops([stage, *_take_jammed(stage, stages)], [*stages, *left], lanes)
            else:
                self.single(stage, lanes)

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


def _take_jammed(first: Stage, stages: list[Stage | Sort]) -> list[Stage]:
    """Takes off the front of `stages` those over the axes of the stage before them."""
    taken: list[Stage] = []
    while stages and isinstance(following := stages[0], Stage) \
            and following.axes == first.axes and not following.at:
        taken.append(following)
        del stages[0]
    return taken


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
