"""Resize and Upsample: one axis after another, each result a weighted sum of a few elements along it.

Coordinates, filters and border rules are those of the ONNX operator specification; cubic is Keys 1981 with
coefficient `cubic_coeff_a`; antialias stretches the filter by the scale when an axis shrinks. Places and
weights are formulas on nodes in float64: constants where the sizes are known, else computed at each call.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import reshaped, sliced
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import computed, make_source, size_node
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import FLOAT32, FLOAT64, INT64, Dim, is_static

WRITTEN_OUT = 4  # taps up to which their sum is written out


@dataclass(frozen=True)
class Axis:
    """One axis to resize. `scale` is the model's (None: wanted / size, not known), `region` the start and end
    of tf_crop_and_resize, float64 scalars."""

    number: int
    size: Dim
    wanted: Dim
    scale: float | None
    region: tuple[Node, Node]

    @property
    def ratio(self) -> Node:
        if self.scale is not None:
            return number(self.scale, FLOAT64)
        return size_node(self.wanted, FLOAT64) / size_node(self.size, FLOAT64)

    @property
    def length(self) -> Node:
        return size_node(self.size, FLOAT64)

    def if_one_wanted(self, then: Node, otherwise: Node) -> Node:
        return ops.select(ops.eq(size_node(self.wanted, INT64), number(1, INT64)), then, otherwise)


# --- where each result lies on the operand's axis

def _align_corners(a: Axis, i: Node) -> Node:
    last = a.ratio * a.length - 1
    one = ops.eq(last, number(0, FLOAT64))
    return ops.select(one, i * 0, i * (a.length - 1) / ops.select(one, number(1, FLOAT64), last))


def _half_pixel(a: Axis, i: Node) -> Node:
    return (i + 0.5) / a.ratio - 0.5


def _symmetric(a: Axis, i: Node) -> Node:
    adjustment = size_node(a.wanted, FLOAT64) / (a.ratio * a.length)
    return a.length / 2 * (1 - adjustment) + _half_pixel(a, i)


def _crop(a: Axis, i: Node) -> Node:
    (start, end), last = a.region, a.length - 1
    steps = size_node(a.wanted, FLOAT64) - 1
    alone = (start + end) * last / 2
    between = start * last + i * ((end - start) * last / ops.maximum(steps, number(1, FLOAT64)))
    return a.if_one_wanted(alone + i, between)


_COORDINATES: dict[str, Callable[[Axis, Node], Node]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda a, i: a.if_one_wanted(i - 0.5, _half_pixel(a, i)),
    "align_corners": _align_corners,
    "asymmetric": lambda a, i: i / a.ratio,
    "tf_half_pixel_for_nn": lambda a, i: (i + 0.5) / a.ratio,
    "tf_crop_and_resize": _crop,
}
_ROUNDINGS: dict[str, Callable[[Node], Node]] = {
    "round_prefer_floor": lambda x: ops.ceil(x - 0.5), "round_prefer_ceil": lambda x: ops.floor(x + 0.5),
    "floor": ops.floor, "ceil": ops.ceil,
}


# --- filters, and how far they reach

def _linear(x: Node, a: float) -> Node:
    return ops.maximum(1 - ops.abs(x), number(0, FLOAT64))


def _cubic(x: Node, a: float) -> Node:
    x = ops.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    outer = ops.select(ops.lt(x, number(2, FLOAT64)), far, number(0, FLOAT64))
    return ops.select(ops.le(x, number(1, FLOAT64)), near, outer)


_FILTERS = {"linear": (_linear, 1), "cubic": (_cubic, 2)}


# --- one axis

def settled(x: Node) -> Node:
    """A constant where the value follows from constants."""
    array = computed(x)
    return x if array is None else constant(array)


def _taps(call: Call, axis: Axis, mode: str, x: Node) -> tuple[Node, Node]:
    """Indices and weights of the elements that each result is a sum of: int64 and float64 [wanted, taps].

    Beyond an end, the element there counts.
    """
    weigh, reach = _FILTERS[mode]
    shrink = 1.0
    if call.flag("antialias"):
        if axis.scale is None:
            call.needs_size(f"antialias from size {axis.size} to {axis.wanted}", axis.size, axis.wanted)
        shrink = min(axis.scale, 1.0)
    first = floor(-reach / shrink) + 1
    shape = (axis.wanted, 2 - 2 * first)
    steps = make_source("iota", shape=shape, axis=1, dtype=FLOAT64) + float(first)
    at = reshaped(x, (axis.wanted, 1))
    base = ops.ceil(at) - 1  # the neighbour on the left: an offset in (0, 1] follows
    weights = weigh((steps - (at - base)) * shrink, call.attribute("cubic_coeff_a", -0.75))
    places, last = base + steps, axis.length - 1
    if call.flag("exclude_outside"):
        weights = ops.select(_outside(places, last), number(0, FLOAT64), weights)
    if shrink < 1 or call.flag("exclude_outside"):
        weights = weights / ops.reduce_sum(weights, axes=(1,), keepdims=True)
    return settled(_index(places, last)), settled(weights)


def _outside(places: Node, last: Node) -> Node:
    return ops.bitwise_or(ops.lt(places, number(0, FLOAT64)), ops.gt(places, last))


def _index(places: Node, last: Node) -> Node:
    return cast(ops.minimum(ops.maximum(places, number(0, FLOAT64)), last), INT64)


def _weighted(x: Node, axis: int, index: Node, weights: Node) -> Node:
    """x, a float, at [wanted, taps] indices along an axis, times the weights, summed over the taps."""
    weights = settled(cast(weights, x.dtype))
    wanted, taps = index.shape
    behind = [1] * (x.ndim - 1 - axis)
    if not is_static(taps) or taps > WRITTEN_OUT:
        values = ops.take(x, index, axis=axis) * reshaped(weights, (wanted, taps, *behind))
        return ops.reduce_sum(values, axes=(axis + 1,))
    total: Node | None = None
    for tap in range(taps):
        at, weight = (settled(reshaped(sliced(n, 1, tap, tap + 1), (wanted,))) for n in (index, weights))
        part = ops.take(x, at, axis=axis) * reshaped(weight, (wanted, *behind))
        total = part if total is None else total + part
    assert total is not None
    return total


# Coordinates and roundings under which result i of nearest is element i // scale, for scales that are whole:
# so an open size needs no arithmetic on floats.
_WHOLE = {("asymmetric", "floor"), ("tf_half_pixel_for_nn", "floor"), ("half_pixel", "round_prefer_floor"),
          ("half_pixel", "round_prefer_ceil"), ("pytorch_half_pixel", "round_prefer_floor"),
          ("pytorch_half_pixel", "round_prefer_ceil")}


def _repeated(x: Node, axis: int, times: int) -> Node:
    """Each element of an axis `times` times."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1:]
    apart = ops.broadcast_to(reshaped(x, (*before, size, 1, *after)), shape=(*before, size, times, *after))
    return reshaped(apart, (*before, size * times, *after))


def _resize_axis(call: Call, x: Node, axis: Axis, mode: str, coordinates: str, rounding: str) -> Node:
    whole = axis.scale is not None and axis.scale.is_integer() and axis.scale >= 1
    if mode == "nearest" and whole and not is_static(axis.size) and (coordinates, rounding) in _WHOLE:
        return _repeated(x, axis.number, int(axis.scale or 1))
    if is_static(axis.size) and axis.size == 0:
        call.refuse(f"axis {axis.number} is empty")
    counter = make_source("iota", shape=(axis.wanted,), axis=0, dtype=FLOAT64)
    where = settled(_COORDINATES[coordinates](axis, counter))
    if mode == "nearest":
        index = settled(_index(_ROUNDINGS[rounding](where), axis.length - 1))
        result = ops.take(x, index, axis=axis.number)
    else:
        result = _weighted(x, axis.number, *_taps(call, axis, mode, where))
    if coordinates != "tf_crop_and_resize":
        return result
    behind = [1] * (x.ndim - 1 - axis.number)
    outside = reshaped(settled(_outside(where, axis.length - 1)), (axis.wanted, *behind))
    return ops.select(outside, number(call.attribute("extrapolation_value", 0.0), x.dtype), result)


# --- the operators

@translates("Upsample", since=7)
def upsample(call: Call) -> Node:
    """Deprecated since opset 10: scales only, as an attribute and then as operand 1."""
    scales = call.attribute("scales") or call.floats(1, "scales")
    return _resized(call, _scaled(call, range(call.rank()), scales, None), "asymmetric", "floor")


@translates("Resize", since=10)
def resize_by_scales(call: Call) -> Node:
    chosen = _scaled(call, range(call.rank()), call.floats(1, "scales"), None)
    return _resized(call, chosen, "asymmetric", "floor")


@translates("Resize", since=11)
def resize(call: Call) -> Node:
    axes = call.axes(99) or tuple(range(call.rank()))
    coordinates = call.attribute("coordinate_transformation_mode", "half_pixel")
    region = call[1] if coordinates == "tf_crop_and_resize" else None
    if call.has(2) and call.shape(2) != (0,):
        chosen = _scaled(call, axes, call.floats(2, "scales"), region)
    else:
        chosen = _sized(call, axes, call.sizes_at_run_time(3, "sizes"), region)
    return _resized(call, chosen, coordinates, call.attribute("nearest_mode", "round_prefer_floor"))


def _resized(call: Call, axes: list[Axis], coordinates: str, rounding: str) -> Node:
    """Sums are kept in float32 at least from axis to axis, and rounded once; whole numbers lose the fraction,
    as ONNX Runtime's do."""
    x, given = call[0], call.attribute("mode", "nearest")
    mode = {"bilinear": "linear"}.get(given, given)
    if coordinates not in _COORDINATES or rounding not in _ROUNDINGS or mode not in (*_FILTERS, "nearest"):
        call.invalid(
            f"mode {mode!r}, coordinates {coordinates!r}, rounding {rounding!r}: there is no such way"
        )
    wide = x.dtype.accumulator if x.dtype.is_float else FLOAT32
    result = x if mode == "nearest" else cast(x, wide)
    for axis in axes:
        if coordinates == "tf_crop_and_resize" or axis.size != axis.wanted or axis.scale != 1:
            result = _resize_axis(call, result, axis, mode, coordinates, rounding)
    return cast(result, x.dtype)


def _scaled(call: Call, axes: Sequence[int], scales: tuple[float, ...], region: Node | None) -> list[Axis]:
    chosen = []
    for i, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
        size = call.shape()[axis]
        numerator, denominator = scale.as_integer_ratio()
        chosen.append(Axis(axis, size, size * numerator // denominator, scale, _region(region, i)))
    return chosen


def _sized(call: Call, axes: tuple[int, ...], sizes: tuple[Dim, ...], region: Node | None) -> list[Axis]:
    """keep_aspect_ratio_policy: one scale for all axes, the least or the greatest that the sizes ask for."""
    now = [call.shape()[axis] for axis in axes]
    ratios = [_ratio(n, size) for n, size in zip(sizes, now, strict=True)]
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        known = [r for r in ratios if r is not None]
        if len(known) < len(ratios):
            call.needs_size("keep_aspect_ratio_policy", *now, *sizes)
        scale = min(known) if policy == "not_larger" else max(known)
        ratios = [scale] * len(axes)
        sizes = tuple(floor(scale * _number(call, size) + 0.5) for size in now)
    return [Axis(axis, size, n, ratio, _region(region, i))
            for i, (axis, size, n, ratio) in enumerate(zip(axes, now, sizes, ratios))]


def _ratio(wanted: Dim, size: Dim) -> float | None:
    """wanted / size where it is a number."""
    if isinstance(wanted, int) and isinstance(size, int):
        return wanted / size if size else 1.0
    whole = wanted // size
    return float(whole) if isinstance(whole, int) and whole > 0 and whole * size == wanted else None


def _number(call: Call, size: Dim) -> int:
    if not isinstance(size, int):
        call.needs_size(f"keep_aspect_ratio_policy on size {size}", size)
    return size


def _region(region: Node | None, i: int) -> tuple[Node, Node]:
    """Start and end of axis i: entries i and i + half of the operand."""
    if region is None:
        return number(0, FLOAT64), number(1, FLOAT64)
    half = region.shape[0] // 2
    start, end = (sliced(cast(region, FLOAT64), 0, at, at + 1) for at in (i, half + i))
    return reshaped(start, ()), reshaped(end, ())
