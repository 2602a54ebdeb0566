"""Resize and Upsample: separable, so one matrix per axis (for mode nearest, one index vector), as constants.

Coordinates, filters and border rules are those of the ONNX operator specification; cubic is Keys 1981 with
coefficient `cubic_coeff_a`; antialias stretches the filter by the scale when an axis shrinks.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import FLOAT32, Dim, is_static


@dataclass(frozen=True)
class Axis:
    """One axis to resize from `size` to `wanted`, Dims: `scale` is the model's, `region` (start, end) that of
    tf_crop_and_resize."""

    number: int
    size: Any
    wanted: Any
    scale: float
    region: tuple[float, float]

    def coordinates(self, mode: str) -> np.ndarray:
        """Where each result lies on the operand's axis.

        Raises KeyError for a mode that is not one of the table.
        """
        return _COORDINATES[mode](self, np.arange(self.wanted, dtype=np.float64))


def _align_corners(a: Axis, i: np.ndarray) -> np.ndarray:
    length = a.scale * a.size
    return i * 0 if length == 1 else i * (a.size - 1) / (length - 1)


def _half_pixel(a: Axis, i: np.ndarray) -> np.ndarray:
    return (i + 0.5) / a.scale - 0.5


def _symmetric(a: Axis, i: np.ndarray) -> np.ndarray:
    return a.size / 2 * (1 - a.wanted / (a.scale * a.size)) + _half_pixel(a, i)


def _crop(a: Axis, i: np.ndarray) -> np.ndarray:
    (start, end), last = a.region, a.size - 1
    step = (end - start) * last / (2 if a.wanted == 1 else a.wanted - 1)
    return start * last + (i + 1 if a.wanted == 1 else i) * step


_COORDINATES: dict[str, Callable[[Axis, np.ndarray], np.ndarray]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda a, i: i - 0.5 if a.wanted == 1 else _half_pixel(a, i),
    "align_corners": _align_corners,
    "asymmetric": lambda a, i: i / a.scale,
    "tf_half_pixel_for_nn": lambda a, i: (i + 0.5) / a.scale,
    "tf_crop_and_resize": _crop,
}
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}


def _linear(x: np.ndarray, a: float) -> np.ndarray:
    return np.clip(1 - np.abs(x), 0, 1)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


_FILTERS = {"linear": (_linear, 1), "cubic": (_cubic, 2)}  # and how far they reach


def _matrix(call: Call, axis: Axis, mode: str, x: np.ndarray) -> np.ndarray:
    """[wanted, size]: the weight of each element in each result. Beyond an end, the element there counts."""
    weigh, reach = _FILTERS[mode]
    shrink = min(axis.scale, 1.0) if call.flag("antialias") else 1.0
    first = np.floor(-reach / shrink) + 1
    taps = np.arange(first, 2 - first)
    base = np.ceil(x) - 1  # the neighbour on the left: an offset in (0, 1] follows
    weights = weigh((taps - (x - base)[:, None]) * shrink, call.attribute("cubic_coeff_a", -0.75))
    places = base[:, None] + taps
    if call.flag("exclude_outside"):
        weights = np.where((places < 0) | (places >= axis.size), 0, weights)
    if shrink < 1 or call.flag("exclude_outside"):
        weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.wanted, axis.size))
    rows = np.broadcast_to(np.arange(axis.wanted)[:, None], places.shape)
    np.add.at(matrix, (rows, np.clip(places, 0, axis.size - 1).astype(int)), weights)
    return matrix


# Coordinates and roundings under which result i of nearest is element i // scale, for scales that are whole
_WHOLE = {("asymmetric", "floor"), ("tf_half_pixel_for_nn", "floor"), ("half_pixel", "round_prefer_floor"),
          ("half_pixel", "round_prefer_ceil"), ("pytorch_half_pixel", "round_prefer_floor"),
          ("pytorch_half_pixel", "round_prefer_ceil")}


def _repeated(x: Node, axis: int, times: int) -> Node:
    """Each element of an axis `times` times."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1:]
    apart = ops.broadcast_to(reshaped(x, (*before, size, 1, *after)), shape=(*before, size, times, *after))
    return reshaped(apart, (*before, size * times, *after))


def _resize_axis(call: Call, x: Node, axis: Axis, mode: str, coordinates: str, rounding: str) -> Node:
    if coordinates not in _COORDINATES or rounding not in _ROUNDINGS or mode not in (*_FILTERS, "nearest"):
        call.invalid(
            f"mode {mode!r}, coordinates {coordinates!r}, rounding {rounding!r}: there is no such way"
        )
    where = axis.coordinates(coordinates)
    if mode == "nearest":
        index = np.clip(_ROUNDINGS[rounding](where), 0, axis.size - 1).astype(np.int64)
        result = ops.take(x, constant(index), axis=axis.number)
    else:
        result = _along(x, _matrix(call, axis, mode, where), axis.number)
    if coordinates != "tf_crop_and_resize":
        return result
    outside = constant(
        ((where < 0) | (where > axis.size - 1)).reshape([-1, *[1] * (x.ndim - 1 - axis.number)])
    )
    return ops.select(outside, number(call.attribute("extrapolation_value", 0.0), x.dtype), result)


def _along(x: Node, matrix: np.ndarray, axis: int) -> Node:
    """x with the matrix applied along one axis, summed in float32 at least and rounded to x's dtype."""
    wide = x.dtype.accumulator if x.dtype.is_float else FLOAT32
    product = ops.dot_general(
        cast(x, wide), constant(matrix.astype(wide.numpy)), lhs_contract=(axis,), rhs_contract=(1,)
    )
    order = (*range(axis), x.ndim - 1, *range(axis, x.ndim - 1))
    return cast(ops.transpose(product, axes=order), x.dtype)


# --- the operators

@translates("Upsample", since=7)
def upsample(call: Call) -> Node:
    """Deprecated since opset 10: scales only, as an attribute and then as operand 1."""
    scales = call.attribute("scales") or call.floats(1, "scales")
    return _resized(call, _scaled(call, range(call.rank()), scales), "asymmetric", "floor")


@translates("Resize", since=10)
def resize_by_scales(call: Call) -> Node:
    return _resized(call, _scaled(call, range(call.rank()), call.floats(1, "scales")), "asymmetric", "floor")


@translates("Resize", since=11)
def resize(call: Call) -> Node:
    axes = call.axes(99) or tuple(range(call.rank()))
    region = call.floats(1, "region") if call.has(1) and call.shape(1) != (0,) else ()
    if call.has(2) and call.shape(2) != (0,):
        chosen = _scaled(call, axes, call.floats(2, "scales"), region)
    else:
        chosen = _sized(call, axes, call.sizes(3, "sizes"), region)
    return _resized(call, chosen, call.attribute("coordinate_transformation_mode", "half_pixel"),
                    call.attribute("nearest_mode", "round_prefer_floor"))


def _resized(call: Call, axes: list[Axis], coordinates: str, rounding: str) -> Node:
    x = call[0]
    mode = {"bilinear": "linear"}.get(call.attribute("mode", "nearest"), call.attribute("mode", "nearest"))
    for axis in axes:
        untouched = axis.size == axis.wanted and axis.scale == 1 and axis.region == (0, 1)
        if untouched:
            continue
        if mode == "nearest" and (coordinates, rounding) in _WHOLE and axis.scale.is_integer():
            x = _repeated(x, axis.number, int(axis.scale))
        else:
            x = _resize_axis(call, x, _static(call, axis), mode, coordinates, rounding)
    return x


def _scaled(call: Call, axes: range | tuple[int, ...], scales: tuple[float, ...],
            region: tuple[float, ...] = ()) -> list[Axis]:
    chosen = []
    for i, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
        if scale != 1 or _region(region, i) != (0, 1):
            size = call.shape()[axis]
            numerator, denominator = scale.as_integer_ratio()
            chosen.append(Axis(axis, size, size * numerator // denominator, scale, _region(region, i)))
    return chosen


def _sized(
    call: Call, axes: tuple[int, ...], sizes: tuple[Dim, ...], region: tuple[float, ...]
) -> list[Axis]:
    """keep_aspect_ratio_policy: one scale for all axes, the least or the greatest that the sizes ask for."""
    now = [call.shape()[axis] for axis in axes]
    ratios = [_ratio(call, axis, n, size) for axis, n, size in zip(axes, sizes, now, strict=True)]
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [scale] * len(axes)
        sizes = tuple(int(np.floor(scale * _static_size(call, axis) + 0.5)) for axis in axes)
    return [Axis(axis, size, n, ratio, _region(region, i))
            for i, (axis, size, n, ratio) in enumerate(zip(axes, now, sizes, ratios))]


def _ratio(call: Call, axis: int, wanted: Dim, size: Dim) -> float:
    """wanted / size, which symbols may leave if it is whole."""
    whole = 0 if is_static(size) and size == 0 else wanted // size
    if is_static(whole) and whole > 0 and whole * size == wanted:
        return float(whole)
    if not is_static(wanted):
        call.needs_size(f"the wanted size {wanted} of axis {axis}, no whole multiple of {size},", wanted)
    return wanted / _static_size(call, axis)


def _region(region: tuple[float, ...], i: int) -> tuple[float, float]:
    return (region[i], region[i + len(region) // 2]) if region else (0.0, 1.0)


def _static(call: Call, axis: Axis) -> Axis:
    """An axis whose sizes are numbers. Raises NeedsValue for another."""
    _static_size(call, axis.number)
    if not is_static(axis.wanted):
        call.needs_size(f"the wanted size {axis.wanted} of axis {axis.number}", axis.wanted)
    return axis


def _static_size(call: Call, axis: int) -> int:
    size = call.shape()[axis]
    if not is_static(size):
        call.needs_size(f"axis {axis} of size {size}", size)
    if size == 0:
        call.refuse(f"axis {axis} is empty")
    return size
