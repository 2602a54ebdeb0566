"""Constant weights that stay narrow in their panels: what becomes of a vector of them as it is loaded.

In: the factor of a product as an expression of the narrow numbers, zero points and scales
(schedule/widened.py). Out: vectors of that factor, for the sums of a tile (tile.py). What goes with the
numbers is the same along all of k, or along a block of it, and lies beside the panels.
"""
from __future__ import annotations

from collections.abc import Sequence

from planish.codegen.llvm import registers
from planish.codegen.llvm.builder import Builder, Value
from planish.codegen.llvm.elementwise import emit
from planish.codegen.llvm.expressions import Expressions
from planish.schedule.access import Access, stride_along
from planish.schedule.kernel import Apply, Axis, Load, Scalar, walk


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
        near = self.b.i64(j * self.lanes * load.dtype.itemsize)
        return registers.load(self.b, load.dtype.name, self.b.gep("i8", pointer, near), self.lanes)

    def widened(self, narrow: Value, at: int) -> Value:
        """A loaded vector, the `at`-th of a step, widened."""
        known = {**self.vectors[at], id(self.panels): narrow}
        for x in walk(self.factor):
            if isinstance(x, Apply):
                args, dtypes = [known[id(a)] for a in x.args], tuple(a.dtype.name for a in x.args)
                known[id(x)] = emit(self.b, x.op, dtypes, x.dtype.name, args, self.numerics)
        return known[id(self.factor)]
