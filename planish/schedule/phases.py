"""Convolutions of a spread operand without its zeros, phase by phase.

    y[p] = sum over t of x[(p + t - low) / d] * w[t], where d divides it

The places p = d q + r of one phase r meet every d-th tap only, from t = (low - r) mod d on, and walk over x
one element at a time: a plain convolution with fewer taps, whose results are stored d apart. So a transposed
convolution of stride d is d kernels along an axis, each with its share of the work; no zero is multiplied.

In: the kernel over all places, whose index into x is written with `//`; it means nothing by itself. Out: the
kernels of the phases, which may run in any order.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from planish.ir.node import Node
from planish.schedule.kernel import Axis, Kernel, Stage, Step
from planish.schedule.rebuild import substitute_axes
from planish.types import Dim, is_static


def has_phases(conv: Node) -> bool:
    """Whether a convolution of a spread operand can go by phases: single steps over what is spread, and a tap
    at least for each phase."""
    a = conv.attributes
    spread = [k for k, d in enumerate(a.lhs_dilation) if d > 1]
    taps = conv.operands[1].shape[2:]
    fits = all(a.strides[k] == a.rhs_dilation[k] == 1 and _holds(taps[k], a.lhs_dilation[k]) for k in spread)
    return bool(spread) and fits and all(is_static(p) for k in spread for p in a.padding[k])


def _holds(taps: Dim, spread: int) -> bool:
    return is_static(taps) and taps >= spread


@dataclass(frozen=True)
class _Spread:
    """One spread axis: the loops over its places ("": a single one) and its taps."""

    place: str
    taps: str
    by: int
    low: int


def in_phases(kernel: Kernel, conv: Node) -> list[Kernel]:
    """The kernels that together do what a kernel is meant to that begins with a convolution."""
    spread = list(_spread_axes(kernel, conv))
    return [_phase(kernel, spread, phase) for phase in product(*(range(s.by) for s in spread))]


def _spread_axes(kernel: Kernel, conv: Node) -> Iterator[_Spread]:
    a, weights = conv.attributes, conv.operands[1].shape
    first = kernel.stages[0]
    assert isinstance(first, Stage)
    places, taps = iter(kernel.shared), iter(first.axes)
    names = [next(places).name if d != 1 else "" for d in conv.shape][2:]
    inside = [next(taps).name if d != 1 else "" for d in weights[1:]][1:]
    for k, by in enumerate(a.lhs_dilation):
        if by > 1:
            yield _Spread(names[k], inside[k], by, a.padding[k][0])


def _phase(kernel: Kernel, spread: list[_Spread], phase: tuple[int, ...]) -> Kernel:
    axes = {a.name: a for a in (*kernel.shared, *kernel.stages[0].axes)}  # type: ignore[union-attr]
    values: dict[str, Dim] = {}
    for one, r in zip(spread, phase):
        start = (one.low - r) % one.by
        for name, first in ((one.place, r), (one.taps, start)):
            if name:
                axes[name] = Axis(name, (axes[name].extent - first + one.by - 1) // one.by)
                values[name] = axes[name].symbol * one.by + first
    kernel = substitute_axes(kernel, values)
    first_stage, *rest = kernel.stages
    assert isinstance(first_stage, Stage)
    summed = replace(first_stage, axes=tuple(axes[a.name] for a in first_stage.axes))
    name = "_".join([kernel.name, "phase", *map(str, phase)])
    kernel = replace(kernel, name=name, shared=tuple(axes[a.name] for a in kernel.shared),
                     stages=(summed, *rest))
    return kernel.with_step(Step("phase", phase))
