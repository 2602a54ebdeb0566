"""Functions that put arrays together, take them apart, repeat and pad them: their results are new arrays, or
views of one."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from planish.capture.numpy.registry import implements
from planish.capture.numpy.shape import expand_dims, one_axis, reshape, reshape_node
from planish.capture.numpy.tracer import (
    Tracer,
    as_tracer,
    cast,
    common_dtype,
    emit,
    fresh,
    full_like_node,
    known,
    static,
    unsupported,
)
from planish.capture.numpy.ufuncs import write_out
from planish.ir import Node


@implements(np.concatenate)
def concatenate(
    arrays: Any, axis: Any = 0, out: Any = None, dtype: Any = None, casting: str = "same_kind"
) -> Tracer:
    parts = [as_tracer(a) for a in arrays]
    if axis is None:
        parts, axis = [reshape(p, (-1,)) for p in parts], 0
    if any(p.ndim == 0 for p in parts):
        raise ValueError("zero-dimensional arrays cannot be concatenated")
    axis = one_axis(axis, parts[0].ndim)
    frames = {p.shape[:axis] + p.shape[axis + 1 :] for p in parts}
    if len(frames) > 1 or len({p.ndim for p in parts}) > 1:
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly: shapes are "
            + ", ".join(str(p.shape) for p in parts)
        )
    result = np.dtype(dtype) if dtype is not None else out.dtype if out is not None else common_dtype(parts)
    for part in parts:
        if not np.can_cast(part.dtype, result, casting):  # type: ignore[arg-type]
            raise TypeError(
                f"Cannot cast array data from {part.dtype!r} to {result!r} according to the rule {casting!r}"
            )
    node = emit("concat", *(cast(p, result) for p in parts), axis=axis)
    return fresh(node) if out is None else write_out(out, node)


@implements(np.stack)
def stack(
    arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Tracer:
    parts = [as_tracer(a) for a in arrays]
    if len({p.shape for p in parts}) != 1:
        raise ValueError("all input arrays must have the same shape")
    axis = one_axis(axis, parts[0].ndim + 1)
    return concatenate([expand_dims(p, axis) for p in parts], axis, out, dtype, casting)


def _at_least_2d(arrays: Any) -> list[Tracer]:
    return [x if x.ndim >= 2 else reshape(x, (1, -1)) for x in map(as_tracer, arrays)]


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Tracer:
    return concatenate(_at_least_2d(tup), 0, dtype=dtype, casting=casting)


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Tracer:
    parts = [x if x.ndim else reshape(x, (1,)) for x in map(as_tracer, tup)]
    return concatenate(parts, 0 if parts and parts[0].ndim == 1 else 1, dtype=dtype, casting=casting)


@implements(np.dstack)
def dstack(tup: Any) -> Tracer:
    return concatenate([np.atleast_3d(as_tracer(x)) for x in tup], 2)


@implements(np.column_stack)
def column_stack(tup: Any) -> Tracer:
    return concatenate([x if x.ndim >= 2 else reshape(x, (-1, 1)) for x in map(as_tracer, tup)], 1)


@implements(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Tracer:
    return concatenate([arr, values], axis)


def _split_points(size: int, parts: Any, exact: bool) -> list[int]:
    if isinstance(parts, (tuple, list, np.ndarray)):
        return [min(max(p + size if p < 0 else p, 0), size) for p in map(int, static(parts))]
    if parts <= 0:
        raise ValueError("number sections must be larger than 0.")
    if exact and size % parts:
        raise ValueError("array split does not result in an equal division")
    small, extra = divmod(size, parts)
    return np.cumsum([small + 1] * extra + [small] * (parts - extra)).tolist()[:-1]


def _split(exact: bool) -> Any:
    def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Tracer]:
        x = as_tracer(ary)
        axis = one_axis(axis, x.ndim)
        points = [0, *_split_points(x.shape[axis], indices_or_sections, exact), x.shape[axis]]
        return [x[(slice(None),) * axis + (slice(a, b),)] for a, b in zip(points, points[1:])]  # type: ignore[index]

    return split


split = implements(np.split)(_split(True))
implements(np.array_split)(_split(False))
implements(np.hsplit)(lambda ary, parts: split(ary, parts, 0 if as_tracer(ary).ndim == 1 else 1))
implements(np.vsplit)(lambda ary, parts: split(ary, parts, 0))
implements(np.dsplit)(lambda ary, parts: split(ary, parts, 2))


# --- repeating and padding


@implements(np.tile)
def tile(A: Any, reps: Any) -> Tracer:
    x = as_tracer(A)
    counts = tuple(reps) if isinstance(reps, (tuple, list)) else (operator.index(reps),)
    rank = max(x.ndim, len(counts))
    counts, shape = (1,) * (rank - len(counts)) + counts, (1,) * (rank - x.ndim) + x.shape
    spread = tuple(n for pair in zip(counts, shape) for n in pair)
    separate = reshape_node(x.node, tuple(n for s in shape for n in (1, s)))
    return fresh(
        reshape_node(
            emit("broadcast_to", separate, shape=spread), tuple(c * s for c, s in zip(counts, shape))
        )
    )


@implements(np.repeat, method=True)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Tracer:
    x = as_tracer(a)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = one_axis(axis, x.ndim)
    if np.ndim(repeats):
        places = np.repeat(np.arange(x.shape[axis]), static(repeats))
        return fresh(emit("take", x.node, known(places).node, axis=axis))
    head, size, tail = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    count = operator.index(repeats)
    if count < 0:
        raise ValueError("repeats may not contain negative values.")
    spread = emit(
        "broadcast_to", reshape_node(x.node, (*head, size, 1, *tail)), shape=(*head, size, count, *tail)
    )
    return fresh(reshape_node(spread, (*head, size * count, *tail)))


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0) -> Tracer:
    """Modes constant, edge, reflect, symmetric and wrap."""
    x = as_tracer(array)
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(i, pad_width.get(i - x.ndim, (0, 0))) for i in range(x.ndim)]
        pad_width = [(w, w) if np.ndim(w) == 0 else w for w in pad_width]
    widths = np.broadcast_to(np.asarray(static(pad_width)), (x.ndim, 2)).tolist()
    if any(w < 0 for pair in widths for w in pair):
        raise ValueError("index can't contain negative values")
    if mode == "constant":
        return fresh(_pad_constant(x, widths, constant_values))
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise unsupported(f"np.pad with mode={mode!r}")
    node = x.node
    for axis, (low, high) in enumerate(widths):
        if low or high:
            places = np.pad(np.arange(x.shape[axis]), (low, high), mode=mode)  # type: ignore[call-overload]
            node = emit("take", node, known(places).node, axis=axis)
    return fresh(node)


def _pad_constant(x: Tracer, widths: list[list[int]], constant_values: Any) -> Node:
    if np.ndim(constant_values) == 0 or isinstance(constant_values, Tracer):
        low, high = zip(*widths) if widths else ((), ())
        fill = cast(as_tracer(constant_values), x.dtype)
        return emit("pad", x.node, fill, low=tuple(low), high=tuple(high), interior=(0,) * x.ndim)
    node = x.node
    values = np.broadcast_to(np.asarray(static(constant_values)), (x.ndim, 2)).tolist()
    for axis, (pair, fills) in enumerate(zip(widths, values)):
        for width, fill, side in zip(pair, fills, ("low", "high")):
            sizes = {"low": [0] * x.ndim, "high": [0] * x.ndim}
            sizes[side][axis] = width
            node = emit(
                "pad",
                node,
                full_like_node(node, fill),
                low=tuple(sizes["low"]),
                high=tuple(sizes["high"]),
                interior=(0,) * x.ndim,
            )
    return node
