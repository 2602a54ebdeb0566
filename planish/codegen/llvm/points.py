"""Reductions at points of a stage's own, as LLVM IR: register tiles between stages of a kernel.

In: a stage with `at` axes, whose result is stored at each of their points. The unrolled turns of those axes,
the last perhaps by vectors, make a tile of accumulators that stays in registers over all of the reduced axes;
what depends on some axes of the tile only is loaded once for them. What is left of an axis goes by halves. A
reduced axis with lanes is summed in vectors, whose lanes are added up at the end, always in the same order.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from planish.codegen.llvm import registers
from planish.codegen.llvm.builder import Value, lanes_of
from planish.codegen.llvm.expressions import Scope
from planish.schedule.kernel import Apply, Axis, Load, Scalar, Stage, walk
from planish.schedule.nests import identity
from planish.types import is_static

if TYPE_CHECKING:
    from planish.codegen.llvm.stages import StageWriter

Turn = tuple[int, ...]                      # of a point of a tile: the number of its turn along each axis
Scopes = dict[tuple[int, Turn], Scope]      # by factor, and the turns of the axes that it changes along


def write_points(w: StageWriter, stage: Stage) -> None:
    """Write the loops of a reduction `at` points."""
    for axis in stage.own_axes:  # known before the loops that need them, which need not run
        w.e.hoist_atoms(axis.extent)
    for axis in stage.axes:
        w.e.dim(axis.extent)
    _Points(w, stage).along(list(stage.at), [])


@dataclass(frozen=True)
class Piece:
    """`turns` steps of `width` points along an axis, from `start`."""

    axis: Axis
    start: Value
    turns: int
    width: int


class _Points:
    def __init__(self, w: StageWriter, stage: Stage):
        self.w, self.b, self.e, self.stage = w, w.b, w.e, stage
        value = stage.value
        product = stage.combine == "add" and value.dtype.is_float and isinstance(value, Apply)
        factors = value.args if product and isinstance(value, Apply) and value.op == "mul" else ()
        self.is_product = bool(factors)
        self.factors: tuple[Scalar, ...] = factors or (value,)
        self.changes = [self.e.depends(f) for f in self.factors]

    # --- the points, tile by tile

    def along(self, axes: Sequence[Axis], pieces: list[Piece]) -> None:
        if not axes:
            self.tile(pieces)
            return
        axis, *inner = axes
        self.cut(axis, lambda piece: self.along(inner, [*pieces, piece]))

    def cut(self, axis: Axis, body: Callable[[Piece], None]) -> None:
        """An axis in whole tiles, then what is left of it."""
        b, size = self.b, axis.unroll * axis.lanes
        at: Value = b.i64(0)
        if not is_static(axis.extent):
            extent = self.e.dim(axis.extent)
            at = b.bin("sub", extent, b.bin("urem", extent, b.i64(size))) if size > 1 else extent
        elif axis.extent >= size:
            at = b.i64(axis.extent // size * size)
        if not is_static(axis.extent) or axis.extent >= size:
            loop = b.loop(b.i64(0), at, b.i64(size), hint="at")
            self.inside(partial(body, Piece(axis, loop.index, axis.unroll, axis.lanes)))
            loop.end()
        if is_static(axis.extent):
            self.known_rest(axis, axis.extent % size, body)
        elif size > 1:
            self.open_rest(axis, at, body)

    def known_rest(self, axis: Axis, rest: int, body: Callable[[Piece], None]) -> None:
        at = int(axis.extent) - rest  # type: ignore[arg-type]
        if turns := rest // axis.lanes:
            body(Piece(axis, self.b.i64(at), turns, axis.lanes))
            at += turns * axis.lanes
        for width in _halves(axis.lanes):
            if rest % axis.lanes & width:
                body(Piece(axis, self.b.i64(at), 1, width))
                at += width

    def open_rest(self, axis: Axis, at: Value, body: Callable[[Piece], None]) -> None:
        b, extent = self.b, self.e.dim(axis.extent)
        steps = [(t, axis.lanes) for t in _halves(axis.unroll)] + [(1, w) for w in _halves(axis.lanes)]
        for turns, width in steps:
            size = b.i64(turns * width)
            fits = b.cmp("icmp sge", b.bin("sub", extent, at), size)
            here = b.when(fits, "rest")
            self.inside(partial(body, Piece(axis, at, turns, width)))
            here.end()
            at = b.add(at, b.select(fits, size, b.i64(0)))

    def inside(self, body: Callable[[], None]) -> None:
        """What is computed in a loop or a branch is known only there."""
        outside, self.e.scope = self.e.scope, Scope(self.e.scope)
        body()
        self.e.scope = outside

    # --- one tile

    def tile(self, pieces: list[Piece]) -> None:
        outside = self.e.scope
        turns = list(product(*(range(p.turns) for p in pieces)))
        scopes = {key: self.scope(outside, pieces, *key) for turn in turns for key in self.keys(pieces, turn)}
        for (i, _), scope in scopes.items():
            self.e.scope = scope
            for load in (x for x in walk(self.factors[i]) if isinstance(x, Load)):
                self.e.hoist_pointer(load.buffer, load.index)
        self.e.scope = outside
        totals = self.totals(self.stage.axes, pieces, turns, scopes)
        assert self.stage.store is not None
        for turn, total in zip(turns, totals):
            self.e.scope = self.scope(outside, pieces, -1, turn)
            self.e.store(self.stage.store, total, pieces[-1].width)
        self.e.scope = outside

    def keys(self, pieces: list[Piece], turn: Turn) -> Iterator[tuple[int, Turn]]:
        """Of each factor, the turns that matter to it; those of the axes that it does not change along are
        -1."""
        for i, changes in enumerate(self.changes):
            yield i, tuple(t if p.axis.name in changes else -1 for p, t in zip(pieces, turn))

    def scope(self, outside: Scope, pieces: list[Piece], factor: int, turn: Turn) -> Scope:
        axes = {p.axis.name: self.b.add(p.start, self.b.i64(t * p.width)) if t else p.start
                for p, t in zip(pieces, turn) if t >= 0}
        last = pieces[-1]
        is_vector = last.width > 1 and last.axis.name in axes
        return Scope(outside, axes, last.axis.name, last.width) if is_vector else Scope(outside, axes)

    # --- its sums

    def totals(self, axes: Sequence[Axis], pieces: list[Piece], turns: list[Turn],
               scopes: Scopes) -> list[Value]:
        """What the reduction comes to at each point of the tile."""
        stage, width, lanes = self.stage, pieces[-1].width, axes[-1].lanes
        first = registers.constant(self.b, stage.dtype.name, identity(stage.combine, stage.dtype),
                                   max(width, lanes))
        found = self.loops(axes, pieces, turns, scopes, [first] * len(turns))
        return found if lanes == 1 else [self.w.across(stage, total) for total in found]

    def loops(self, axes: Sequence[Axis], pieces: list[Piece], turns: list[Turn], scopes: Scopes,
              totals: list[Value]) -> list[Value]:
        axis, *inner = axes
        if not inner:
            return self.innermost(axis, pieces, turns, scopes, totals)
        loop = self.b.loop(self.b.i64(0), self.e.dim(axis.extent), self.b.i64(1), totals, hint="k")
        scopes = {key: Scope(scope, {axis.name: loop.index}) for key, scope in scopes.items()}
        return loop.end(self.loops(inner, pieces, turns, scopes, loop.carry))

    def innermost(self, axis: Axis, pieces: list[Piece], turns: list[Turn], scopes: Scopes,
                  totals: list[Value]) -> list[Value]:
        """The loop that does the work, `unroll` steps a trip, then the steps that are left."""
        b, at = self.b, self.b.i64(0)
        trips = [(axis.unroll * axis.lanes, axis.lanes), (axis.lanes, axis.lanes), (1, 1)]
        for size, lanes in dict.fromkeys(trips):
            if is_static(axis.extent):
                stop = b.i64(axis.extent // size * size)
            else:
                extent = self.e.dim(axis.extent)
                stop = b.bin("sub", extent, b.bin("urem", extent, b.i64(size))) if size > 1 else extent
            if stop == at:
                continue
            loop = b.loop(at, stop, b.i64(size), totals, hint="k")
            totals = list(loop.carry)
            for step in range(0, size, lanes):
                k = loop.index if step == 0 else b.add(loop.index, b.i64(step))
                inside = {key: Scope(s, {axis.name: k}, *((axis.name, lanes) if lanes > 1 else ()))
                          for key, s in scopes.items()}
                self.step(pieces, turns, inside, lanes, totals)
            totals, at = loop.end(totals), stop
        return totals

    def step(self, pieces: list[Piece], turns: list[Turn], scopes: Scopes, lanes: int,
             totals: list[Value]) -> None:
        """Every point of the tile joins its value at one step of the reduction."""
        outside = self.e.scope
        known: dict[tuple[int, Turn], Value] = {}
        for at, turn in enumerate(turns):
            values = []
            for key in self.keys(pieces, turn):
                if key not in known:
                    self.e.scope = scopes[key]
                    known[key] = self.value(self.factors[key[0]], pieces[-1], lanes)
                values.append(known[key])
            totals[at] = self.joined(totals[at], values)
        self.e.scope = outside

    def value(self, factor: Scalar, last: Piece, lanes: int) -> Value:
        """A factor in as many lanes as the tile's vectors or the reduced axis have."""
        wide = max(last.width, lanes)
        if self.e.scope.lanes > 1:
            return self.e.value(factor, wide)
        return self.b.splat(self.e.value(factor), wide)

    def joined(self, total: Value, values: list[Value]) -> Value:
        wide, wanted = lanes_of(total.type), lanes_of(values[0].type)
        if wanted < wide:  # what is left of a reduced axis with lanes: one number, which joins the first lane
            low = self.b.extract(total, 0)
            return self.b.insert(total, self.joined(low, values), 0)
        if not self.is_product:
            return self.w.combine(self.stage, total, values[0])
        if self.w.numerics == "strict":
            return self.b.bin("fadd", total, self.b.bin("fmul", *values))
        return self.b.multiply_add(values[0], values[1], total)


def _halves(size: int) -> list[int]:
    """The powers of two below a size, the largest first: any rest is a sum of some of them."""
    return [1 << k for k in reversed(range((size - 1).bit_length()))]
