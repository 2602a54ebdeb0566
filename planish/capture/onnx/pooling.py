"""Pooling: windows over the spatial axes of [N, C, sizes...]; MaxUnpool, Col2Im: the other way."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.contractions import Padding, per_axis, window_padding
from planish.capture.onnx.movement import broadcast, constant_pad, reshaped
from planish.capture.onnx.pointwise import number
from planish.capture.onnx.sizes import computed, make_source, size_node
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import BOOL, INT64, Dim, Shape, element_count, is_static
from planish.types.dim import maximum, minimum


@dataclass(frozen=True)
class Windows:
    """`padding` is the model's; `extra` is what ceil_mode adds behind it so that a partial window fits."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: Padding
    extra: tuple[Dim, ...]

    def reduce(self, x: Node, kind: str, padding: Padding) -> Node:
        return ops.reduce_window(x, kind=kind, window=(1, 1, *self.kernel), strides=(1, 1, *self.strides),
                                 padding=((0, 0), (0, 0), *padding), dilation=(1, 1, *self.dilations))

    @property
    def all_padding(self) -> Padding:
        return tuple((low, high + more) for (low, high), more in zip(self.padding, self.extra))


def _windows(call: Call) -> Windows:
    sizes = call.shape()[2:]
    rank = len(sizes)
    kernel = tuple(call.attribute("kernel_shape", ()))
    if len(kernel) != rank:
        call.invalid(f"kernel_shape {kernel} for {rank} spatial axes")
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    padding = window_padding(call, sizes, kernel, strides, dilations)
    explicit = call.attribute("auto_pad", "NOTSET") in ("NOTSET", "")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    extra = tuple(_ceil_extra(n, low, high, r, s) if call.flag("ceil_mode") and explicit else 0
                  for n, (low, high), r, s in zip(sizes, padding, reach, strides))
    return Windows(kernel, strides, dilations, padding, extra)


def _ceil_extra(size: Dim, low: Dim, high: Dim, reach: int, stride: int) -> Dim:
    """Rounded up, the last window may pass the end; it counts if it starts inside the tensor or before."""
    total = size + low + high
    last = minimum((total - reach + stride - 1) // stride, (size + low - 1) // stride)  # its number, from 0
    return maximum(last * stride + reach - total, 0)


@translates("MaxPool")
def max_pool(call: Call) -> list[Node]:
    x, windows = call[0], _windows(call)
    result = windows.reduce(x, "max", windows.all_padding)
    if len(call.outputs) < 2 or not call.outputs[1]:
        return [result]
    return [result, _indices(x, result, windows, column_major=call.flag("storage_order"))]


def _indices(x: Node, best: Node, windows: Windows, column_major: bool) -> Node:
    """Where in the whole tensor, as a flat vector, each window's greatest element lies: the first of equals.

    column_major counts the spatial axes of a channel from the first on.
    """
    n, c, *sizes = x.shape
    rank, area = len(sizes), element_count(sizes)
    at, inside = _window_places(windows, sizes, best.shape[2:])
    place = flat_place(at, sizes)
    values = ops.take(reshaped(x, (n, c, area)), place, axis=2)
    wanted = reshaped(best, (*best.shape, *[1] * rank))
    hit = ops.eq(values, wanted)
    if x.dtype.is_float:
        hit = ops.bitwise_or(hit, ops.bitwise_and(ops.is_nan(values), ops.is_nan(wanted)))
    none = number(np.iinfo(np.int64).max, INT64)
    first = ops.select(ops.bitwise_and(hit, inside), place, none)
    found = ops.reduce_min(first, axes=tuple(range(2 + rank, 2 + 2 * rank)))
    if column_major:
        found = flat_place(split_place(found, sizes)[::-1], sizes[::-1])
    plane = make_source("iota", shape=(n * c,), axis=0, dtype=INT64) * size_node(area, INT64)
    return found + reshaped(plane, (n, c, *[1] * rank))


def _window_places(windows: Windows, sizes: Sequence[Dim], out: Shape) -> tuple[list[Node], Node]:
    """Per spatial axis the index that taps read, and whether all are inside: [places..., taps...]."""
    rank, shape = len(sizes), (*out, *windows.kernel)
    places, inside = [], number(True, BOOL)
    for i, (size, stride, gap, (low, _)) in enumerate(
        zip(sizes, windows.strides, windows.dilations, windows.padding)
    ):
        place, tap = (make_source("iota", shape=shape, axis=a, dtype=INT64) for a in (i, rank + i))
        at = place * stride + tap * gap - size_node(low, INT64)
        within = ops.bitwise_and(ops.ge(at, number(0, INT64)), ops.lt(at, size_node(size, INT64)))
        inside = ops.bitwise_and(inside, within)
        places.append(at)
    return places, inside


def flat_place(at: Sequence[Node], sizes: Sequence[Dim]) -> Node:
    """Indices along axes of these sizes as one index, row-major."""
    place = at[0]
    for i, size in zip(at[1:], sizes[1:]):
        place = place * size_node(size, INT64) + i
    return place


def split_place(place: Node, sizes: Sequence[Dim]) -> list[Node]:
    """The inverse of `flat_place`."""
    at = []
    for size in reversed(sizes[1:]):
        n = size_node(size, INT64)
        at.append(ops.rem(place, n))
        place = ops.trunc_div(place, n)
    return [place, *reversed(at)]


@translates("MaxUnpool", since=9)
def max_unpool(call: Call) -> Node:
    """Zeros with the elements at their indices, which count in the size that kernel, strides and pads say;
    output_shape adds zeros behind."""
    x = call[0]
    kernel = tuple(call.attribute("kernel_shape"))
    rank = len(kernel)
    strides, pads = per_axis(call, "strides", rank), call.attribute("pads", (0,) * 2 * rank)
    sizes = [(n - 1) * s + k - low - high
             for n, s, k, low, high in zip(x.shape[2:], strides, kernel, pads[:rank], pads[rank:])]
    shape = (*x.shape[:2], *sizes)
    zeros = broadcast(number(0, x.dtype), (element_count(shape),))
    count = (element_count(x.shape),)
    spread = ops.scatter_along(zeros, reshaped(call[1], count), reshaped(x, count), axis=0, reduction="none")
    result = reshaped(spread, shape)
    if not call.has(2):
        return result
    wanted = call.sizes(2, "output_shape")
    more: dict[int, tuple[Dim, Dim]] = {i: (0, w - n) for i, (n, w) in enumerate(zip(shape, wanted))}
    return constant_pad(result, more, number(0, x.dtype))


@translates("Col2Im", since=18)
def col2im(call: Call) -> Node:
    """Of all blocks that cover a place of the image, the sum: per axis and tap of the block it is at most
    one."""
    x, image, block = call[0], call.sizes(1, "image_shape"), call.integers(2, "block_shape")
    rank = len(image)
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    pads = call.attribute("pads", (0,) * 2 * rank)
    shape = (*image, *block)
    blocks, taps, inside = [], [], number(True, BOOL)
    counts = [(n + low + high - (k - 1) * d - 1) // s + 1
              for n, low, high, k, d, s in zip(image, pads[:rank], pads[rank:], block, dilations, strides)]
    for i in range(rank):
        place, tap = (make_source("iota", shape=shape, axis=a, dtype=INT64) for a in (i, rank + i))
        start = place + pads[i] - tap * dilations[i]
        number_of = ops.floor_div(start, number(strides[i], INT64))
        exact = ops.eq(number_of * strides[i], start)
        below = ops.lt(number_of, size_node(counts[i], INT64))
        within = ops.bitwise_and(ops.ge(start, number(0, INT64)), below)
        inside = ops.bitwise_and(inside, ops.bitwise_and(exact, within))
        blocks.append(number_of)
        taps.append(tap)
    n, channels = x.shape[0], x.shape[1] // prod(block)
    rows = reshaped(x, (n, channels, prod(block) * element_count(counts)))
    values = ops.take(rows, flat_place([*taps, *blocks], [*block, *counts]), axis=2)
    covered = ops.select(inside, values, number(0, x.dtype))
    return ops.reduce_sum(covered, axes=tuple(range(2 + rank, 2 + 2 * rank)))


@translates("AveragePool")
def average_pool(call: Call) -> Node:
    """The sum over the number of elements, with padding counted or not; what ceil_mode adds never counts."""
    windows = _windows(call)
    total = windows.reduce(call[0], "sum", windows.all_padding)
    counted = windows.padding if call.flag("count_include_pad") else ((0, 0),) * len(windows.kernel)
    if windows.all_padding == counted:
        return total / prod(windows.kernel)
    return total / _counts(call[0], windows, counted)


def _counts(x: Node, windows: Windows, counted: Padding) -> Node:
    """How many elements each window has, of x and the `counted` part of its padding: [1, 1, places...]."""
    sizes = tuple(n + low + high for n, (low, high) in zip(x.shape[2:], counted))
    ones = broadcast(number(1, x.dtype), (1, 1, *sizes))
    left = tuple((low - a, high - b) for (low, high), (a, b) in zip(windows.all_padding, counted))
    counts = windows.reduce(ones, "sum", left)
    array = computed(counts) if all(map(is_static, sizes)) else None
    return counts if array is None else constant(array)


@translates("LpPool")
def lp_pool(call: Call) -> Node:
    """(sum |x|^p)^(1/p)"""
    x, p, windows = call[0], call.attribute("p", 2), _windows(call)
    powers = ops.pow(ops.abs(x), number(p, x.dtype))
    total = windows.reduce(powers, "sum", windows.all_padding)
    return ops.pow(total, number(1 / p, x.dtype))


def _spatial(call: Call) -> tuple[int, ...]:
    return tuple(range(2, call.rank()))


@translates("GlobalMaxPool")
def global_max_pool(call: Call) -> Node:
    return ops.reduce_max(call[0], axes=_spatial(call), keepdims=True)


@translates("GlobalAveragePool")
def global_average_pool(call: Call) -> Node:
    return ops.mean(call[0], axes=_spatial(call), keepdims=True)


@translates("GlobalLpPool")
def global_lp_pool(call: Call) -> Node:
    x, p = call[0], call.attribute("p", 2)
    total = ops.reduce_sum(ops.pow(ops.abs(x), number(p, x.dtype)), axes=_spatial(call), keepdims=True)
    return ops.pow(total, number(1 / p, x.dtype))


@translates("LRN")
def local_response_normalization(call: Call) -> Node:
    """x / (bias + alpha / size * sum of squares over neighbouring channels)^beta (Krizhevsky et al. 2012)."""
    x, size = call[0], call.attribute("size")
    alpha, beta, bias = (call.attribute(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))
    before = (size - 1) // 2
    squares = ops.reduce_window(
        x * x,
        kind="sum",
        window=_at_channels(size, x.ndim, 1),
        strides=(1,) * x.ndim,
        padding=_at_channels((before, size - 1 - before), x.ndim, (0, 0)),
        dilation=(1,) * x.ndim,
    )
    return x / ops.pow(squares * (alpha / size) + bias, number(beta, x.dtype))


def _at_channels(value: object, rank: int, other: object) -> tuple:
    return tuple(value if axis == 1 else other for axis in range(rank))
