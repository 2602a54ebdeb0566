"""ATen pooling over windows that do not repeat: adaptive and fractional.

Windows are a table of places along each axis, filled up to the largest of them with a place outside. Means
go along one axis after the other; maxima are taken over the windows' elements side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from planish.capture.torch.call import Call, broadcast, cast, number, reshaped, translates
from planish.capture.torch.pooling import scattered_to_places
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.ops.window import identity_of
from planish.types import INT64, Dim, element_count, is_static


def adaptive_ends(size: int, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each window begins and ends: floor(i n / m) and ceil((i + 1) n / m)."""
    i = np.arange(places)
    return i * size // places, -(-(i + 1) * size // places)


def _static(call: Call, shape: Sequence[Dim]) -> tuple[int, ...]:
    if not all(map(is_static, shape)):
        call.refuse("adaptive pooling over symbolic sizes is not supported")
    return tuple(map(int, shape))  # type: ignore[arg-type]


# --- means


def weighted_along(x: Node, axis: int, weights: np.ndarray) -> Node:
    """y_i = sum over j of weights[i, j] x_j along an axis, for weights that are mostly 0: of each row as many
    as the fullest has are read."""
    m = weights.shape[0]
    most = max(int((weights != 0).sum(1).max()), 1)
    order = np.argsort(weights == 0, axis=1, kind="stable")[:, :most]
    taken = ops.take(x, constant(order.astype(np.int64)), axis=axis)
    factors = np.take_along_axis(weights, order, 1).astype(x.dtype.numpy)
    spread = constant(factors.reshape(m, most, *[1] * (x.ndim - 1 - axis)))
    return ops.reduce_sum(taken * spread, axes=(axis + 1,))


def adaptive_weights(size: int, places: int) -> np.ndarray:
    begin, end = adaptive_ends(size, places)
    j = np.arange(size)
    inside = (j >= begin[:, None]) & (j < end[:, None])
    return inside / (end - begin)[:, None]


@translates("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_mean(call: Call, x: Node, places: Sequence[Dim]) -> Node:
    wide, first = cast(x, x.dtype.accumulator), x.ndim - len(places)
    for axis, (n, m) in enumerate(zip(_static(call, x.shape[first:]), _static(call, places)), first):
        wide = _mean_along(wide, axis, n, m)
    return cast(wide, call.dtype)


def _mean_along(x: Node, axis: int, size: int, places: int) -> Node:
    if places == 0 or size % places:
        return weighted_along(x, axis, adaptive_weights(size, places))
    parts = reshaped(x, (*x.shape[:axis], places, size // places, *x.shape[axis + 1 :]))
    return ops.reduce_sum(parts, axes=(axis + 1,)) * (places / size if size else 1)


@translates("aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default")
def adaptive_mean_backward(call: Call, g: Node, x: Node) -> Node:
    first = x.ndim - (2 if "2d" in call.overload else 3)
    wide = cast(g, g.dtype.accumulator)
    sizes = zip(_static(call, x.shape[first:]), _static(call, g.shape[first:]))
    for axis, (n, m) in enumerate(sizes, first):
        wide = weighted_along(wide, axis, adaptive_weights(n, m).T)
    return cast(wide, call.dtype)


# --- maxima


@translates("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max(call: Call, x: Node, places: Sequence[int]) -> tuple[Node, Node]:
    rank = 2 if "2d" in call.overload else 3
    windows = []
    for n, m in zip(_static(call, x.shape[-rank:]), _static(call, call.shape[-rank:])):
        begin, end = adaptive_ends(n, m)
        at = begin[:, None] + np.arange((end - begin).max(initial=0))
        windows.append(constant(np.where(at < end[:, None], at, -1).astype(np.int64)))
    return windowed_max(call, x, windows)


@translates("aten.fractional_max_pool2d.default", "aten.fractional_max_pool3d.default")
def fractional_max(
    call: Call, x: Node, kernel: Sequence[int], places: Sequence[int], samples: Node
) -> tuple[Node, Node]:
    """Windows that begin where torch's generate_intervals puts them, other ones for every plane: the last
    axis takes the first sample of a plane."""
    rank = len(kernel)
    planes = x.shape[: x.ndim - rank]
    rows = reshaped(samples, (element_count(samples.shape[:-1]), rank))
    windows = []
    for i, (n, m, k) in enumerate(zip(_static(call, x.shape[-rank:]), places, kernel)):
        column = rank - 1 - i if rank == 2 else i
        sample = ops.slice(rows, starts=(0, column), stops=(rows.shape[0], column + 1), steps=(1, 1))
        starts = _intervals(sample, n, m, k)
        at = reshaped(starts, (*starts.shape, 1)) + constant(np.arange(k))
        windows.append(reshaped(at, (*planes, m, k)))
    return windowed_max(call, x, windows)


def _intervals(sample: Node, size: int, places: int, kernel: int) -> Node:
    """[planes, places]; the last window ends with the axis."""
    last = np.arange(places) == places - 1
    if places == 1:
        return broadcast(number(size - kernel, INT64), (sample.shape[0], 1))
    wide = cast(sample, sample.dtype.accumulator)
    alpha = number((size - kernel) / (places - 1), wide.dtype)
    i = constant(np.arange(places).astype(wide.dtype.numpy))
    begin = cast((i + wide) * alpha, INT64) - cast(wide * alpha, INT64)
    return ops.select(constant(last), number(size - kernel, INT64), begin)


def windowed_max(call: Call, x: Node, windows: Sequence[Node]) -> tuple[Node, Node]:
    """The largest element of each window, and where it stands among those of its plane. `windows` has, per
    axis, the places [..., windows, elements], -1 where there is none; the same for all planes, or each."""
    rank, planes = len(windows), x.shape[: x.ndim - len(windows)]
    sizes = x.shape[-rank:]
    place, inside = number(0, INT64), None
    for i, (at, size) in enumerate(zip(windows, sizes)):
        axes: list[Dim] = [1] * (2 * rank)
        axes[i], axes[rank + i] = at.shape[-2:]
        spread = reshaped(at, (*at.shape[:-2], *axes))
        place = place * number(size, INT64) + spread
        real = ops.ge(spread, 0)
        inside = real if inside is None else ops.bitwise_and(inside, real)
    assert inside is not None
    lead = tuple(place.shape[: place.ndim - 2 * rank])
    wins, elements = place.shape[len(lead) : len(lead) + rank], prod(place.shape[len(lead) + rank :])
    count = prod(wins)
    place = broadcast(place, inside.shape) if place.shape != inside.shape else place
    rows = broadcast(reshaped(place, (*lead, count, elements)), (*planes, count, elements))
    real = broadcast(reshaped(inside, (*lead, count, elements)), rows.shape)
    flat = reshaped(x, (*planes, element_count(sizes)))
    picked = reshaped(ops.maximum(rows, number(0, INT64)), (*planes, count * elements))
    values = reshaped(ops.take_along(flat, picked, axis=len(planes)), rows.shape)
    values = ops.select(real, values, number(identity_of("max", x.dtype), x.dtype))
    best = ops.argmax(values, axis=values.ndim - 1, keepdims=True)
    results = (ops.take_along(t, best, axis=values.ndim - 1) for t in (values, rows))
    value, index = (reshaped(r, call.shape) for r in results)
    return value, index


@translates("aten.adaptive_max_pool2d_backward.default", "aten.adaptive_max_pool3d_backward.default")
def adaptive_max_backward(call: Call, g: Node, x: Node, indices: Node) -> Node:
    return scattered_to_places(call, g, x, indices, 2 if "2d" in call.overload else 3)


@translates("aten.fractional_max_pool2d_backward.default", "aten.fractional_max_pool3d_backward.default")
def fractional_max_backward(
    call: Call, g: Node, x: Node, kernel: Any, places: Any, indices: Node
) -> Node:
    return scattered_to_places(call, g, x, indices, 2 if "2d" in call.overload else 3)


# --- resizing with a filter as wide as what it leaves out: torch's antialias=True


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: np.ndarray) -> np.ndarray:
    """R. Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981, a = -1/2."""
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


_FILTERS = {"bilinear": (_triangle, 1.0), "bicubic": (_cubic, 2.0)}


def antialias_weights(kind: str, size: int, places: int, corners: bool, factor: float | None) -> np.ndarray:
    """What each of `places` takes of `size` elements: the filter around its centre, of sum 1."""
    function, reach = _FILTERS[kind]
    if corners:
        scale = (size - 1) / (places - 1) if places > 1 else 0.0
    else:
        scale = 1 / factor if factor else size / places
    stretch = max(scale, 1.0)
    centre = (scale * (np.arange(places) + 0.5))[:, None]  # with `corners` too: so torch has it
    middle = np.arange(size) + 0.5
    inside = np.abs(middle - centre) < reach * stretch + 0.5
    weights = np.where(inside, function((middle - centre) / stretch), 0)
    return weights / weights.sum(1, keepdims=True)


@translates("aten._upsample_bilinear2d_aa.default", "aten._upsample_bicubic2d_aa.default")
def antialiased(
    call: Call, x: Node, places: Sequence[Dim], corners: bool, factor_y: float | None, factor_x: float | None
) -> Node:
    wide = cast(x, x.dtype.accumulator)
    for axis, weights in _antialias(call, x.shape[2:], places, corners, (factor_y, factor_x)):
        wide = weighted_along(wide, axis, weights)
    return cast(wide, call.dtype)


@translates("aten._upsample_bilinear2d_aa_backward.default", "aten._upsample_bicubic2d_aa_backward.default")
def antialiased_backward(
    call: Call, g: Node, places: Sequence[Dim], sizes: Sequence[Dim], corners: bool, factor_y: float | None,
    factor_x: float | None,
) -> Node:  # fmt: skip
    wide = cast(g, g.dtype.accumulator)
    for axis, weights in _antialias(call, sizes[2:], places, corners, (factor_y, factor_x)):
        wide = weighted_along(wide, axis, weights.T)
    return cast(wide, call.dtype)


def _antialias(
    call: Call, sizes: Sequence[Dim], places: Sequence[Dim], corners: bool, factors: Sequence[float | None]
) -> list[tuple[int, np.ndarray]]:
    kind = "bicubic" if "bicubic" in call.overload else "bilinear"
    pairs = zip(_static(call, sizes), _static(call, places), factors)
    return [(2 + i, antialias_weights(kind, n, m, corners, f)) for i, (n, m, f) in enumerate(pairs)]
