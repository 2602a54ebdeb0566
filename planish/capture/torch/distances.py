"""ATen's distances between rows: cdist, pdist and their gradients.

A p-norm of differences; p = 0 counts those that are not 0, p = inf takes the largest.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from planish.capture.torch.call import Call, broadcast, cast, number, reshaped, translates, transposed
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import INT64, is_static

FEW = 25  # rows up to which torch subtracts instead of multiplying matrices


@translates("aten._cdist_forward.default")
def cdist(call: Call, x: Node, y: Node, p: float, mode: int | None) -> Node:
    """Distances [..., n, m] of rows x [..., n, d] and y [..., m, d]."""
    if x.shape[-1] == 0:
        return broadcast(number(0, call.dtype), call.shape)
    few = all(is_static(t.shape[-2]) and t.shape[-2] <= FEW for t in (x, y))
    if p == 2 and mode != 2 and (mode == 1 or not few):
        return _by_products(call, x, y)
    return cast(norm_along(_differences(x, y), p), call.dtype)


def _differences(x: Node, y: Node) -> Node:
    """[..., n, m, d]"""
    x, y = (cast(t, t.dtype.accumulator) for t in (x, y))
    column = reshaped(x, (*x.shape[:-1], 1, x.shape[-1]))
    row = reshaped(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    return column - row


def norm_along(d: Node, p: float, keepdims: bool = False) -> Node:
    """The p-norm over the last axis."""
    axes, a = (d.ndim - 1,), ops.abs(d)
    if p == 0:
        return ops.reduce_sum(cast(ops.ne(d, 0), d.dtype), axes=axes, keepdims=keepdims)
    if math.isinf(p):
        return ops.reduce_max(a, axes=axes, keepdims=keepdims)
    if p == 1:
        return ops.reduce_sum(a, axes=axes, keepdims=keepdims)
    if p == 2:
        return ops.sqrt(ops.reduce_sum(d * d, axes=axes, keepdims=keepdims))
    return ops.pow(ops.reduce_sum(ops.pow(a, p), axes=axes, keepdims=keepdims), 1 / p)


def _by_products(call: Call, x: Node, y: Node) -> Node:
    """|x|^2 + |y|^2 - 2 x y, which loses digits where rows are near each other: torch does so too."""
    squares = [ops.reduce_sum(t * t, axes=(t.ndim - 1,), keepdims=True) for t in (x, y)]
    last = (*range(y.ndim - 2), y.ndim - 1, y.ndim - 2)
    whole = squares[0] + transposed(squares[1], last) - 2 * ops.matmul(x, transposed(y, last))
    return broadcast(ops.sqrt(ops.maximum(whole, number(0, whole.dtype))), call.shape)


@translates("aten._cdist_backward.default")
def cdist_backward(call: Call, g: Node, x: Node, y: Node, p: float, distance: Node) -> Node:
    """The cotangent of x: over all rows of y."""
    if 0 in (*x.shape, *y.shape):
        return broadcast(number(0, call.dtype), call.shape)
    d = _differences(x, y)
    slope = _slope(d, _last(cast(distance, d.dtype)), p)
    total = ops.reduce_sum(_last(cast(g, d.dtype)) * slope, axes=(d.ndim - 2,))
    return cast(broadcast(total, call.shape), call.dtype)


def _last(x: Node) -> Node:
    return reshaped(x, (*x.shape, 1))


def _slope(d: Node, distance: Node, p: float) -> Node:
    """The norm's slope in the differences d; 0 where there is none."""
    zero = number(0, d.dtype)
    if p == 0:
        return broadcast(zero, d.shape)
    if p == 1:
        return _sign(d)
    if math.isinf(p):
        return ops.select(ops.eq(ops.abs(d), distance), _sign(d), zero)
    if p == 2:
        slope = d / distance
    else:
        slope = _sign(d) * ops.pow(ops.abs(d) / distance, p - 1)
    none = ops.eq(distance, 0)
    if p < 1:
        none = ops.bitwise_or(none, ops.eq(d, 0))
    return ops.select(none, zero, slope)


def _sign(d: Node) -> Node:
    return cast(ops.gt(d, 0), d.dtype) - cast(ops.lt(d, 0), d.dtype)


# --- every pair of rows of one matrix


def _pairs(call: Call, x: Node) -> tuple[Node, Node, Node]:
    """The differences of rows i < j, in order, and i and j."""
    if not is_static(x.shape[0]):
        call.refuse("pairs of an open number of rows are not supported")
    first, second = (constant(i.astype(np.int64)) for i in np.triu_indices(x.shape[0], 1))
    wide = cast(x, x.dtype.accumulator)
    return ops.take(wide, first, axis=0) - ops.take(wide, second, axis=0), first, second


@translates("aten._pdist_forward.default")
def pdist(call: Call, x: Node, p: float) -> Node:
    if 0 in (*call.shape, x.shape[1]):
        return broadcast(number(0, call.dtype), call.shape)
    return cast(norm_along(_pairs(call, x)[0], p), call.dtype)


@translates("aten._pdist_backward.default")
def pdist_backward(call: Call, g: Node, x: Node, p: float, distance: Node) -> Node:
    if 0 in (*g.shape, *x.shape):
        return broadcast(number(0, call.dtype), call.shape)
    d, first, second = _pairs(call, x)
    part = _last(cast(g, d.dtype)) * _slope(d, _last(cast(distance, d.dtype)), p)
    total: Any = broadcast(number(0, d.dtype), x.shape)
    for index, sign in ((first, part), (second, -part)):
        rows = reshaped(cast(index, INT64), (*index.shape, 1))
        total = ops.scatter_nd(total, rows, sign, reduction="add")
    return cast(total, call.dtype)
