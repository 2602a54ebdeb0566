"""Constant weights that stay narrow in their panels: what becomes of a vector of them as it is loaded.

In: the factor of a product as an expression of the narrow numbers, zero points and scales
(schedule/widened.py). Out: vectors of that factor, for the sums of a tile (tile.py), or whole panels of it,
for all rows that meet them. What goes with the numbers is the same along all of k, or along a block of it,
and lies beside the panels.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from planish.codegen.llvm import registers
from planish.codegen.llvm.builder import Builder, Value
from planish.codegen.llvm.elementwise import emit
from planish.codegen.llvm.expressions import Expressions
from planish.schedule.access import Access, stride_along
from planish.schedule.kernel import Apply, Axis, Buffer, Const, Kernel, Load, Scalar, walk
from planish.schedule.roles import Contraction
from planish.types import TensorType, is_static

if TYPE_CHECKING:
    from planish.codegen.llvm.contraction import TileWriter

UNROLL = 4  # steps of k in one trip of what fills panels


class Widening:
    """Writes what becomes of narrow weights as they are loaded: the factor's expression, whose other operands
    are vectors that hold along k, or along a block of it."""

    def __init__(self, b: Builder, e: Expressions, factor: Scalar, panels: Load, outer: Axis, lanes: int,
                 numerics: str):
        self.b, self.factor, self.panels, self.lanes, self.numerics = b, factor, panels, lanes, numerics
        self.beside = [x for x in walk(factor) if isinstance(x, Load) and x is not panels]
        strides = [stride_along(Access(x.buffer, x.index), outer.name) or 0 for x in self.beside]
        self.steps = [e.dim(x.dtype.itemsize * stride) for x, stride in zip(self.beside, strides)]
        self.is_blocked = any(strides)  # the outer of two axes of k is blocks
        self.pointers: list[list[Value]] = []
        self.here: list[list[Value]] = []
        self.vectors: list[dict[int, Value]] = []
        self.per_panel = 1

    def begin(self, pointers: Sequence[Sequence[Value]], per_panel: int) -> None:
        """Of a tile: for each panel where the others begin, and how many vectors a panel has."""
        self.pointers, self.per_panel = [[self.b.opaque(p) for p in ps] for ps in pointers], per_panel
        self.load_block(self.b.i64(0))

    def load_block(self, block: Value) -> None:
        """The vectors of the others in a block, [panel and vector]."""
        b = self.b
        self.here = [[b.gep("i8", p, b.mul(block, step)) for p, step in zip(ps, self.steps)]
                     for ps in self.pointers]
        self.load(self.here)

    def load_again(self) -> None:
        """The vectors once more, as operands in memory: held over the steps of a block they would take the
        registers of sums."""
        self.load([[self.b.opaque(p, once=True) for p in ps] for ps in self.here])

    def load(self, pointers: Sequence[Sequence[Value]]) -> None:
        self.vectors = [{id(x): self.vector(x, p, j) for x, p in zip(self.beside, ps)}
                        for ps in pointers for j in range(self.per_panel)]

    def vector(self, load: Load, pointer: Value, j: int) -> Value:
        if load.buffer.type.size == 1:
            return self.b.splat(registers.load(self.b, load.dtype.name, pointer), self.lanes)
        near = self.b.i64(j * self.lanes * load.dtype.itemsize)
        return registers.load(self.b, load.dtype.name, self.b.gep("i8", pointer, near), self.lanes)

    def widened(self, narrow: Value, at: int) -> Value:
        """A loaded vector, the `at`-th of a step, widened."""
        known = {**self.vectors[at], id(self.panels): narrow}
        for x in walk(self.factor):
            if isinstance(x, Const):
                known[id(x)] = registers.constant(self.b, x.dtype.name, x.value, self.lanes)
            if isinstance(x, Apply):
                args, dtypes = [known[id(a)] for a in x.args], tuple(a.dtype.name for a in x.args)
                known[id(x)] = emit(self.b, x.op, dtypes, x.dtype.name, args, self.numerics)
        return known[id(self.factor)]


def known(axis: Axis) -> int:
    """Steps along an axis of constant weights."""
    assert is_static(axis.extent)
    return axis.extent


@dataclass
class Filling:
    """Panels that a thread widens in memory of its own before row tiles pass over them. `parts` are those of
    the product, reading what was widened."""

    widening: Widening
    narrow: Load
    parts: Contraction
    bytes: int
    memory: Value
    steps: int
    blocks: int

    @staticmethod
    def of(b: Builder, e: Expressions, kernel: Kernel, parts: Contraction, numerics: str) -> Filling | None:
        """What the schedule of a kernel says of that."""
        told = next((s for s in kernel.steps if s.name == "widen_group"), None)
        if told is None:
            return None
        tile, bytes_, narrow = kernel.tile, int(told.arguments[1]), parts.right
        assert tile is not None and isinstance(parts.sum.value, Apply)
        outer = next(a for a in parts.sum.axes if a.name == tile.k[0])
        widening = Widening(b, e, parts.sum.value.args[1], narrow, outer, tile.lanes, numerics)
        steps, blocks = prod(known(a) for a in parts.sum.axes), known(outer) if widening.is_blocked else 1
        wide = Buffer(f"{narrow.buffer.name}_wide", TensorType(parts.sum.dtype, narrow.buffer.shape))
        memory = b.value("ptr", f"alloca [{bytes_} x i8], align 64")
        parts = replace(parts, right=replace(narrow, buffer=wide), widened=None)
        if widening.is_blocked:  # once they are wide, blocks are as good as one
            inner = replace(next(a for a in parts.sum.axes if a.name == tile.k[-1]), extent=steps)
            parts = replace(parts, sum=replace(parts.sum, axes=(inner,)))
        return Filling(widening, narrow, parts, bytes_, memory, steps, blocks)

    def write(self, w: TileWriter, first: Value, last: Value) -> None:
        """Widen panels `first` up to `last`; from then on the product finds them where they now are."""
        b, wide = w.b, self.parts.right.buffer
        before = b.mul(first, b.i64(-self.steps * w.width * wide.dtype.itemsize))
        w.e.pointers[wide.name] = b.gep("i8", self.memory, before)
        loop = b.loop(first, last, b.i64(1), hint="widen")
        w.within({}, lambda: self.panel(w, b.mul(loop.index, b.i64(w.width))))
        loop.end()

    def panel(self, w: TileWriter, column: Value) -> None:
        """Widen the panel that begins with a column."""
        b, widening, block = w.b, self.widening, self.steps // self.blocks
        (source,), (target,) = w.panel_pointers(column, 1, self.narrow), w.panel_pointers(column, 1)
        widening.begin([[w.panel_pointers(column, 1, load)[0] for load in widening.beside]], w.tile.vectors)
        source, target = b.opaque(source), b.opaque(target)
        outer = b.loop(b.i64(0), b.i64(self.blocks), b.i64(1), hint="block")
        if widening.is_blocked:
            widening.load_block(outer.index)
        first = b.mul(outer.index, b.i64(block))
        whole = block // UNROLL * UNROLL
        for start, stop, many in ((0, whole, UNROLL), (whole, block, 1)):
            if start == stop:
                continue
            inner = b.loop(b.i64(start), b.i64(stop), b.i64(many), hint="k")
            self.vectors(w, b.mul(b.add(first, inner.index), b.i64(w.width)), many, (source, target))
            inner.end()
        outer.end()

    def vectors(self, w: TileWriter, at: Value, steps: int, pointers: tuple[Value, Value]) -> None:
        """Those of so many steps, from element `at` of a panel on."""
        b, lanes = w.b, w.tile.lanes
        dtypes = self.narrow.dtype, self.parts.right.dtype
        source, target = (b.gep("i8", p, b.mul(at, b.i64(d.itemsize))) for p, d in zip(pointers, dtypes))
        for turn in range(steps * w.tile.vectors):
            here, there = (b.i64(turn * lanes * d.itemsize) for d in dtypes)
            narrow = registers.load(b, dtypes[0].name, b.gep("i8", source, here), lanes)
            vector = self.widening.widened(narrow, turn % w.tile.vectors)
            registers.store(b, vector, dtypes[1].name, b.gep("i8", target, there))
