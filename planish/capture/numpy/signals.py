"""Functions of samples in a row, by what there is: convolve, correlate, gradient, trapezoid; and np.block.

Sums of products are the op `conv`, which is a correlation; the rest is written in NumPy's own functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planish.capture.numpy.contract import finish
from planish.capture.numpy.registry import implements
from planish.capture.numpy.shape import axis_tuple, one_axis, reshape_node
from planish.capture.numpy.tracer import Tracer, as_tracer, cast, common_dtype, emit, unsupported


@implements(np.correlate)
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """Entry k is the sum over n of a[n + k] v[n]."""
    x, y = _rows(a, v)
    if y.size > x.size:
        return correlate(y, x, mode)[::-1]
    return _correlated(x, y, mode)


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Entry k is the sum over n of a[k - n] v[n]."""
    x, y = _rows(a, v)
    if y.size > x.size:
        x, y = y, x
    return _correlated(x, y[::-1], mode)  # type: ignore[index]


def _rows(a: Any, v: Any) -> tuple[Tracer, Tracer]:
    x, y = (t if t.ndim else t.reshape((1,)) for t in (as_tracer(a), as_tracer(v)))
    for which, each in (("first", x), ("second", y)):
        if each.ndim > 1:
            raise ValueError("object too deep for desired array")
        if not each.size:
            raise ValueError(f"{which} array argument cannot be empty")
    return x, y


def _correlated(x: Tracer, y: Tracer, mode: str) -> Any:
    dtype, most = common_dtype([x, y]), y.size - 1
    before = {"valid": 0, "same": y.size // 2, "full": most}
    after = {"valid": 0, "same": most - y.size // 2, "full": most}
    if mode not in before:
        raise ValueError(f"mode must be one of 'valid', 'same', or 'full' (got {mode!r})")
    if dtype.kind == "b":
        raise unsupported("a correlation of bools", "write .astype(np.int64)")
    rows = (reshape_node(cast(each, dtype), (1, 1, each.size)) for each in (x, y))
    node = emit("conv", *rows, strides=(1,), padding=((before[mode], after[mode]),), lhs_dilation=(1,),
                rhs_dilation=(1,), groups=1)
    return finish(reshape_node(node, node.shape[2:]))


@implements(np.gradient)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Differences over two steps, at the ends over one. Distances are numbers, one or one for each axis."""
    x = as_tracer(f)
    axes = axis_tuple(axis, x.ndim)
    steps = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    if len(steps) != len(axes):
        raise TypeError("invalid number of arguments")
    if edge_order != 1 or any(as_tracer(h).ndim for h in steps):
        raise unsupported("np.gradient with edge_order=2 or with places", "give distances as numbers")
    if any(x.shape[k] < 2 for k in axes):
        raise ValueError(
            "Shape of array too small to calculate a numerical gradient, at least 2 elements are required."
        )
    y: Any = x.astype(np.float64) if x.dtype.kind in "iu" else x
    made = tuple(_slope(y, k, h) for k, h in zip(axes, steps))
    return made[0] if len(made) == 1 else made


def _slope(x: Any, axis: int, step: Any) -> Any:
    def part(start: int | None, stop: int | None) -> Any:
        return x[(slice(None),) * axis + (slice(start, stop),)]

    inside = (part(2, None) - part(None, -2)) / (2.0 * step)
    first, last = (part(1, 2) - part(0, 1)) / step, (part(-1, None) - part(-2, -1)) / step
    return np.concatenate([first, inside, last], axis, dtype=x.dtype)


@implements(np.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral over an axis of the lines through samples at `x`, or `dx` apart."""
    values: Any = as_tracer(y)
    along = one_axis(axis, values.ndim)
    if x is not None:
        places = as_tracer(x)
        dx = np.diff(places, axis=axis if places.ndim > 1 else 0)
        if places.ndim == 1:
            dx = dx.reshape((-1,) + (1,) * (values.ndim - along - 1))
    head = (slice(None),) * along
    return (dx * (values[(*head, slice(1, None))] + values[(*head, slice(None, -1))]) / 2.0).sum(along)


@implements(np.block)
def block(arrays: Any) -> Any:
    """Nested lists put together: the innermost along the last axis, those around along the axis before."""
    depth = _depth(arrays)
    rank = max(depth, *(leaf.ndim for leaf in _leaves(arrays)))
    return _assembled(arrays, depth, rank)


def _depth(arrays: Any) -> int:
    if not isinstance(arrays, list):
        return 0
    if not arrays:
        raise ValueError("List at arrays cannot be empty")
    depths = {_depth(each) for each in arrays}
    if len(depths) > 1:
        raise ValueError("List depths are mismatched.")
    return 1 + depths.pop()


def _leaves(arrays: Any) -> list[Tracer]:
    return [x for each in arrays for x in _leaves(each)] if isinstance(arrays, list) else [as_tracer(arrays)]


def _assembled(arrays: Any, depth: int, rank: int) -> Any:
    if depth:
        return np.concatenate([_assembled(each, depth - 1, rank) for each in arrays], -depth)
    x: Any = as_tracer(arrays)
    return x.reshape((1,) * (rank - x.ndim) + x.shape).copy()
