"""How a kernel walks through memory: the accesses of its stages and their strides along an axis."""
from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planish.schedule.kernel import (
    Axis,
    Buffer,
    Kernel,
    Load,
    Scalar,
    Sort,
    Stage,
    own_dims,
    stage_stores,
    stage_values,
    walk,
)
from planish.schedule.rebuild import is_scalar
from planish.types import Dim, Symbol, substitute, symbols_of
from planish.types.dim import is_linear, symbol, terms


@dataclass(frozen=True)
class Access:
    """One load or store of a stage."""

    buffer: Buffer
    index: tuple
    is_store: bool = False


def accesses(stage: Stage | Sort) -> Iterator[Access]:
    for scalar in walk(*stage_values(stage)):
        if isinstance(scalar, Load):
            yield Access(scalar.buffer, scalar.index)
    for store in stage_stores(stage):
        yield Access(store.buffer, store.index, True)


@functools.lru_cache(32)
def kernel_accesses(kernel: Kernel) -> tuple[Access, ...]:
    return tuple(a for stage in kernel.stages for a in accesses(stage))


def stride_along(access: Access, axis: str) -> Dim | None:
    """Elements between neighbours along an axis; None when it is not one number (a gather, a division)."""
    total: Dim = 0
    for i, stride in zip(access.index, access.buffer.strides, strict=True):
        if is_scalar(i):
            if depends_on(i, axis):
                return None
            continue
        step = step_of(i, axis)
        if step is None:
            return None
        total = total + step * stride
    return total


def is_even(access: Access, axes: Sequence[Axis]) -> bool:
    """Whether the points of these axes, outermost first, lie evenly apart, as those of one axis would."""
    strides = [stride_along(access, a.name) for a in axes]
    known = [s for s in strides if s is not None]
    follows = (one == other * axis.extent for one, other, axis in zip(known, known[1:], axes[1:]))
    return len(known) == len(strides) and all(follows)


@functools.lru_cache(1 << 14)
def step_of(dim: Dim, axis: str) -> Dim | None:
    """dim(axis + 1) - dim(axis) if the axis is not in it."""
    if axis not in symbols_of(dim):
        return 0
    here = symbols_of(dim)[axis]
    total: Dim = 0
    for part in terms(dim):
        if axis in symbols_of(part):
            step = substitute(part, {axis: 1}) if is_linear(part, axis) else _difference(part, here)
            if not isinstance(step, int) and axis in symbols_of(step):
                return None
            total = total + step
    return total


def _difference(dim: Dim, here: Symbol) -> Dim:
    return substitute(dim, {here.name: symbol(here.name, here.low, here.high) + 1}) - dim


def depends_on(scalar: Scalar, axis: str) -> bool:
    """Whether a scalar expression (its loads and indices included) changes along an axis."""
    return any(axis in symbols_of(d) for s in walk(scalar) for d in own_dims(s))
