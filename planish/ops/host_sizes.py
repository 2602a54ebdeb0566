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


def _flat(values: np.ndarray) -> list[int]:
    return [int(v) for v in np.asarray(values).reshape(-1)]


@host_function("sizes")
def sizes(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """The elements themselves."""
    flat = _flat(values)
    if any(v < 0 for v in flat):
        raise ShapeError(f"sizes are to be 0 or more, not {flat}")
    return stated(flat)


@host_function("range_length")
def range_length(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> tuple[np.ndarray, ...]:
    """How many numbers start, start + delta... stay before the limit."""
    first, last, step = (np.asarray(a).reshape(()).astype(object).item() for a in (start, limit, delta))
    if step == 0:
        raise ShapeError("a range with a step of 0")
    return stated([max(0, math.ceil((last - first) / step))])


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
    try:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_flat(shape))))
    except ValueError:
        raise ShapeError(f"shape {list(x.shape)} does not broadcast with {_flat(shape)}") from None
