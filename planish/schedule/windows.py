"""Windows, one axis after another, as arithmetic on shifted slices.

    max over 3 x 3 of x[C, H, W]  ->  rows = max(x[:, 0::2], x[:, 1::2], x[:, 2::2]) with its ends padded
                                      max(rows[.., 0::2], rows[.., 1::2], rows[.., 2::2])

A window of k x l taps costs k + l, and every line is a vector along the last axis. The rows are a
concatenation of padding and what the other axes came to: they are stored, and fusion keeps one point's row in
the cache.
"""
from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod

from planish.ir.node import Node, constant, make_node
from planish.ops import get_op
from planish.ops.window import WindowAttributes, identity_of
from planish.types import Dim, DType

COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
MOST_TAPS = 32  # of one axis; a longer window stays a loop


def by_axes(node: Node) -> Node:
    """An equal node of a reduce_window, computed in the accumulator of its dtype and rounded once."""
    x, = node.operands
    a = node.attributes
    wide, last = x.dtype.accumulator, x.ndim - 1
    value = _cast(x, wide)
    if _follows_convolution(x):
        return _by_channels(node, value)
    for axis in range(last):
        value = _along(_padded(value, a, axis), a, axis)
    if value is not _cast(x, wide) or a.padding[last] != (0, 0):
        value = _stored_rows(value, a, last)
    return _cast(_along(value, a, last), x.dtype)


# --- beside a convolution, whose channels will lie innermost: no rows, and every tap is a vector of channels

def _follows_convolution(x: Node) -> bool:
    """Whether the values come from a convolution with constant weights, by points or windows."""
    seen, stack = {x}, [x]
    while stack:
        node = stack.pop()
        if node.op.name == "conv":
            return node.operands[1].op.name == "constant"
        if node.op.has("pointwise") or node.op.name in ("pad", "slice", "reduce_window"):
            stack += [o for o in node.operands if o.ndim == x.ndim and o not in seen]
            seen.update(node.operands)
    return False


def _by_channels(node: Node, value: Node) -> Node:
    a = node.attributes
    if prod(a.window) > MOST_TAPS:
        return node
    value = _padded(value, a, *range(value.ndim))
    for axis in range(value.ndim):
        value = _along(value, a, axis)
    return _cast(value, node.dtype)


# --- one axis

def _cast(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else get_op("cast")(x, dtype=dtype)


def _padded(x: Node, a: WindowAttributes, *axes: int) -> Node:
    if all(a.padding[axis] == (0, 0) for axis in axes):
        return x
    low, high = (tuple(a.padding[k][end] if k in axes else 0 for k in range(x.ndim)) for end in (0, 1))
    return get_op("pad")(x, constant(identity_of(a.kind, x.dtype), x.dtype), low=low, high=high)


def _stored_rows(x: Node, a: WindowAttributes, axis: int) -> Node:
    """Padded along the last axis, and stored: a concatenation always is."""
    if a.window[axis] == 1 and a.padding[axis] == (0, 0):
        return x
    ends = [_filled(x, a, axis, size) for size in a.padding[axis]]
    parts = [part for part in (ends[0], x, ends[1]) if part is not None]
    return get_op("concat")(*parts, axis=axis)


def _filled(x: Node, a: WindowAttributes, axis: int, size: Dim) -> Node | None:
    if size == 0:
        return None
    shape = tuple(size if k == axis else d for k, d in enumerate(x.shape))
    return get_op("broadcast_to")(constant(identity_of(a.kind, x.dtype), x.dtype), shape=shape)


def _along(x: Node, a: WindowAttributes, axis: int) -> Node:
    """The window's axis on an operand that is padded along it already."""
    taps, stride, gap = a.window[axis], a.strides[axis], a.dilation[axis]
    if taps == stride == 1:
        return x
    if taps > MOST_TAPS:
        return _loop(x, a, axis)
    count = (x.shape[axis] - (taps - 1) * gap - 1) // stride + 1
    slices = [_slice(x, axis, tap * gap, count, stride) for tap in range(taps)]
    return reduce(get_op(COMBINE[a.kind]), slices)


def _loop(x: Node, a: WindowAttributes, axis: int) -> Node:
    ones = (1,) * x.ndim

    def only(values: tuple) -> tuple:
        return tuple(v if k == axis else 1 for k, v in enumerate(values))
    alone = replace(a, window=only(a.window), strides=only(a.strides), dilation=only(a.dilation),
                    padding=((0, 0),) * len(ones))
    return make_node(get_op("reduce_window"), (x,), alone)


def _slice(x: Node, axis: int, start: int, count: Dim, step: int) -> Node:
    starts = tuple(start if k == axis else 0 for k in range(x.ndim))
    stops = tuple(start + (count - 1) * step + 1 if k == axis else d for k, d in enumerate(x.shape))
    steps = tuple(step if k == axis else 1 for k in range(x.ndim))
    return get_op("slice")(x, starts=starts, stops=stops, steps=steps)
