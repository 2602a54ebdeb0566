"""A long pointwise chain cut into short loops over a piece that stays in the first-level cache.

    for i in n: y[i] = g(f(x[i]))   ->   for o in n/256: for a in 256: r[a] = f(x[o*256 + a])
                                                         for b in 256: y[o*256 + b] = g(r[b])

In: a kernel of maps, scheduled no further than jammed. Out: an equal one, or None where it would not pay.
What a core can overlap is bounded by its window of instructions: of a chain of 30 dependent operations, each
3 to 10 cycles long, it holds some five points at a time, and its arithmetic units idle half the time. Of a
short chain it holds many. The price is a store and a load in the first-level cache. (The transformation is
loop distribution, Kennedy and McKinley 1990; the reason here is the window, not memory.)
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planish.schedule.kernel import (
    Apply,
    Axis,
    Buffer,
    Kernel,
    Load,
    Scalar,
    Sort,
    Stage,
    Step,
    Store,
    children,
    walk,
)
from planish.schedule.rebuild import Rebuilder, substitute_axes
from planish.types import Dim, TensorType, is_static
from planish.types.dim import minimum, symbol

PIECE = 256         # points of a piece: a kilobyte of each cut value
CHAIN = 16          # dependent operations in a transcendental function, about
WORTH = 4           # operations before a transcendental function from which a cut before it pays

TRANSCENDENTAL = frozenset({"exp", "decay", "decay2", "exp2", "expm1", "log", "log2", "log10", "log1p",
                            "sin", "cos", "tanh", "erf", "erfc", "gate", "sigmoid", "pow"})


def distribute(kernel: Kernel) -> Kernel | None:
    """Cut the last shared axis into pieces and the chain of the kernel's one map into loops over a piece."""
    if len(kernel.stages) != 1 or kernel.serial or not kernel.shared:
        return None
    stage, axis = kernel.stages[0], kernel.shared[-1]
    if isinstance(stage, Sort) or stage.axes or stage.combine or stage.store is None:
        return None
    if _size(axis) < 2 * PIECE:
        return None
    if cuts := list(_cuts(stage.value)):
        return _cut(kernel, stage, axis, cuts)
    return None


def _size(axis: Axis) -> int:
    return axis.extent if isinstance(axis.extent, int) else 2 * PIECE


def _cuts(value: Scalar) -> Iterator[Scalar]:
    """The operands of transcendental functions that are chains themselves, and so worth a loop."""
    latency: dict[int, int] = {}
    found: dict[int, Scalar] = {}
    for one in walk(value):
        below = max((latency[id(c)] for c in children(one)), default=0)
        own = CHAIN if _is_transcendental(one) else int(isinstance(one, Apply))
        if own == CHAIN and below >= WORTH:
            operand = max(children(one), key=lambda c: latency[id(c)])
            found.setdefault(id(operand), operand)
            below = 0
        latency[id(one)] = below + own
    return iter(found.values())


def _is_transcendental(scalar: Scalar) -> bool:
    return isinstance(scalar, Apply) and scalar.op in TRANSCENDENTAL


def _cut(kernel: Kernel, stage: Stage, axis: Axis, cuts: list[Scalar]) -> Kernel:
    outer = Axis(axis.name, (axis.extent + PIECE - 1) // PIECE)
    whole = is_static(axis.extent) and axis.extent % PIECE == 0
    extent: Dim = PIECE if whole else minimum(PIECE, axis.extent - outer.symbol * PIECE)
    places = {id(cut): Buffer(f"r{k}", TensorType(cut.dtype, (PIECE,)), space="row")
              for k, cut in enumerate(cuts)}
    stages: list[Stage] = []
    for k, value in enumerate((*cuts, stage.value)):
        inner = Axis(f"{axis.name}p{k}", extent)
        point = symbol(inner.name, 0, PIECE - 1)
        name = f"{stage.name}p{k}" if k < len(cuts) else stage.name
        made = replace(stage, name=name, value=_reading(value, places, point), dtype=value.dtype)
        if k < len(cuts):
            made = replace(made, store=Store(places[id(value)], (point,)))
        shifted = {axis.name: outer.symbol * PIECE + point}
        piece, = substitute_axes(Kernel("", (), (made,), (), ()), shifted).stages
        assert isinstance(piece, Stage)
        stages.append(replace(piece, axes=(inner,)))
    return replace(kernel, shared=(*kernel.shared[:-1], outer), stages=tuple(stages),
                   rows=tuple(places.values())).with_step(Step("distribute", (axis.name, PIECE)))


def _reading(value: Scalar, places: dict[int, Buffer], point: Dim) -> Scalar:
    """The expression with every cut value below it loaded from its row."""
    rebuilder = Rebuilder()
    for one in walk(value):
        cut = places.get(id(one)) if one is not value else None
        made = rebuilder.with_parts(one) if cut is None else Load(cut, (point,))
        rebuilder.memo[id(one)] = one, made
    return rebuilder.memo[id(value)][1]

