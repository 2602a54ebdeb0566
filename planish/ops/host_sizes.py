"""The host functions behind sizes that depend on values: those that say sizes, and those that look at an
array in another shape.

In: small arrays of shapes, ends or counts (and, for the second kind, the array itself). Out: sizes, as
`stated` gives them, or a view. ShapeError for values that mean no size.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planish.errors import ShapeError
from planish.ops.host import host_function, stated

LARGEST = 2**62


def _flat(values: np.ndarray) -> list[int]:
    return [int(v) for v in np.asarray(values).reshape(-1)]


@host_function("sizes")
def sizes(values: np.ndarray, *, limit: int = LARGEST) -> tuple[np.ndarray, ...]:
    """The elements themselves."""
    flat = _flat(values)
    if any(v < 0 for v in flat):
        raise ShapeError(f"sizes are to be 0 or more, not {flat}")
    if any(v > limit for v in flat):
        raise ShapeError(f"sizes are to be {limit} or less, not {flat}")
    return stated(flat)


@host_function("largest")
def largest(counts: np.ndarray) -> tuple[np.ndarray, ...]:
    """The greatest element, 0 of none."""
    return stated([max(_flat(counts), default=0)])


@host_function("range_length")
def range_length(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, ...]:
    """How many numbers start, start + delta... stay before the limit."""
    first, last, step = (np.asarray(a).reshape(()).astype(object).item() for a in (start, limit, delta))
    if step == 0:
        raise ShapeError("a range with a step of 0")
    return stated([max(0, math.ceil((last - first) / step))])


@host_function("split_sizes")
def split_sizes(values: np.ndarray, *, whole: int) -> tuple[np.ndarray, ...]:
    """The elements but the last, which is the rest of the whole."""
    flat = _flat(values)
    if sum(flat) != whole or any(v < 0 for v in flat):
        raise ShapeError(f"parts {flat} are not {whole} elements together")
    return stated(flat[:-1])


@host_function("expanded_sizes")
def expanded_sizes(values: np.ndarray, *, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """What a shape is broadcast with the elements."""
    return stated(_broadcast(shape, _flat(values)))


def _broadcast(shape: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(tuple(shape), tuple(other))
    except ValueError:
        raise ShapeError(f"shape {list(shape)} does not broadcast with {list(other)}") from None


@host_function("slice_spans")
def slice_spans(starts: np.ndarray, ends: np.ndarray, *, sizes: tuple[int, ...],
                steps: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """For each axis, where a slice begins and how far it goes; for a negative step, on the reversed axis."""
    spans: list[int] = []
    for start, end, size, step in zip(_flat(starts), _flat(ends), sizes, steps, strict=True):
        first, last, _ = _slice(start, end, step).indices(size)
        first, last = (first, last) if step > 0 else (size - 1 - first, size - 1 - last)
        spans += [first, max(0, last - first)] if last > first else [0, 0]
    return stated(spans)


def _slice(start: int, end: int, step: int) -> slice:
    """Python's slice is ONNX's: bounds beyond an end are clamped to it."""
    if step == 0:
        raise ShapeError("a slice with a step of 0")
    return slice(start, end, step)


@host_function("pad_spans")
def pad_spans(values: np.ndarray, axes: np.ndarray, *, sizes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """For each axis: the first element kept, how many are, and how many are added before and after. The
    values are the padding before each of `axes`, then after; where negative, it takes elements away."""
    flat = _flat(values)
    along = [_axis(a, len(sizes)) for a in _flat(axes)]
    before, after = dict(zip(along, flat)), dict(zip(along, flat[len(along):]))
    if len(before) != len(along) or len(flat) != 2 * len(along):
        raise ShapeError(f"padding {flat} of axes {along}")
    spans: list[int] = []
    for axis, size in enumerate(sizes):
        low, high = before.get(axis, 0), after.get(axis, 0)
        kept = size + min(low, 0) + min(high, 0)
        if kept < 0:
            raise ShapeError(f"padding {low} and {high} takes more than the {size} elements there are")
        spans += [max(-low, 0), kept, max(low, 0), max(high, 0)]
    return stated(spans)


@host_function("reshape")
def reshape(x: np.ndarray, shape: np.ndarray, *, copy_zero: bool) -> np.ndarray:
    """x in a shape, where -1 is what is left and 0, with `copy_zero`, the operand's own size."""
    wanted = _flat(shape)
    if copy_zero:
        if any(d == 0 for d in wanted[x.ndim:]):
            raise ShapeError(f"size 0 at {wanted} copies a size of an array of shape {list(x.shape)}")
        wanted = [x.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    return reshaped(x, wanted)


def reshaped(x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    try:
        return x.reshape(tuple(shape))
    except ValueError:
        raise ShapeError(f"the {x.size} elements of {list(x.shape)} do not fill {list(shape)}") from None


@host_function("expand")
def expand(x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """x broadcast with a shape."""
    return np.broadcast_to(x, _broadcast(x.shape, _flat(shape)))


@host_function("squeeze")
def squeeze(x: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """x without axes of size 1."""
    gone = [_axis(a, x.ndim) for a in _flat(axes)]
    if any(x.shape[a] != 1 for a in gone):
        raise ShapeError(f"axes {gone} of shape {list(x.shape)} are not all of size 1")
    return reshaped(x, [d for i, d in enumerate(x.shape) if i not in gone])


@host_function("unsqueeze")
def unsqueeze(x: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """x with new axes of size 1."""
    flat = _flat(axes)
    new = {_axis(a, x.ndim + len(flat)) for a in flat}
    if len(new) != len(flat):
        raise ShapeError(f"axes {flat} name one axis twice")
    left = iter(x.shape)
    return reshaped(x, [1 if i in new else next(left) for i in range(x.ndim + len(flat))])


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is not one of the {rank} axes")
    return axis % rank


@host_function("slice")
def sliced(x: np.ndarray, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray,
           steps: np.ndarray) -> np.ndarray:
    """x[start:end:step] along axes."""
    where = [slice(None)] * x.ndim
    for axis, *bounds in zip(*map(_flat, (axes, starts, ends, steps)), strict=True):
        where[_axis(axis, x.ndim)] = _slice(*bounds)
    return x[tuple(where)]
