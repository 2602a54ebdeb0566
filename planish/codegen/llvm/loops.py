"""A kernel's loops as LLVM IR: shared axes split among threads, stages run in order at each point.

In: a scheduled kernel without a structured body. Out: a function

    void NAME(ptr buffers..., ptr sizes, i64 tid, i64 threads, ptr pool, i64 launch)

whose pointers are the kernel's arguments in order and whose `sizes` is the program's table of run-time sizes.
`launch` is the number under which threads may claim units of one another's work, -1 where they must not.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import lcm, prod

from planish.codegen.llvm import registers
from planish.codegen.llvm.builder import Builder, Module, Value
from planish.codegen.llvm.expressions import Expressions, Scope
from planish.codegen.llvm.overlap import overlapped_loop
from planish.codegen.llvm.places import side_by_side
from planish.codegen.llvm.points import write_points
from planish.codegen.llvm.sorting import usable_threads, write_sort
from planish.codegen.llvm.stages import StageWriter
from planish.schedule.kernel import Axis, Buffer, Kernel, Scalar, Sort, Stage, in_loops, stage_values
from planish.schedule.steps import even_size, overlapped, streamed
from planish.types import Dim, is_static

Body = Callable[[int], None]
NARROW = 8  # lanes of the vectors that take what is left of longer ones
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


class LoopWriter(StageWriter):
    """Writes a whole kernel: the loops over its shared axes, and its stages in them."""

    def __init__(self, b: Builder, kernel: Kernel, size_slots: dict[str, int], numerics: str):
        sizes, self.tid, threads, self.pool, self.launch = b.parameters[-5:]
        self.threads = usable_threads(b, kernel, threads)
        pointers = {p.name: v for p, v in zip(kernel.arguments, b.parameters)}
        pointers |= {row.name: _row_memory(b, row) for row in kernel.rows}
        values = {s: b.load("i64", b.gep("i64", sizes, b.i64(size_slots[s])), 8) for s in kernel.symbols}
        super().__init__(b, kernel, Expressions(b, kernel, pointers, values, numerics), numerics)
        self.stages = list(kernel.stages)

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


def _take_jammed(first: Stage, stages: list[Stage | Sort]) -> list[Stage]:
    """Takes off the front of `stages` those over the axes of the stage before them."""
    taken: list[Stage] = []
    while stages and isinstance(following := stages[0], Stage) \
            and following.axes == first.axes and not following.at:
        taken.append(following)
        del stages[0]
    return taken


def _row_memory(b: Builder, row: Buffer) -> Value:
    count = row.type.size
    assert is_static(count)
    element = registers.memory_type(row.dtype.name)
    return b.value("ptr", f"alloca {element}, i64 {max(count, 1)}, align 64")
