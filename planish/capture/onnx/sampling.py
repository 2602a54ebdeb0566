"""Operators that read between the elements: GridSample, DeformConv, RoiAlign, MaxRoiPool.

Each makes coordinates, and of a coordinate the neighbours along one axis (`Tap`); `interpolated` sums over
all combinations of neighbours. Reads are one `take` from the operand as a flat vector, so that nothing
between is stored.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.contractions import per_axis, static_kernel, window_padding
from planish.capture.onnx.movement import reshaped, sliced
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.repetition import repeated
from planish.capture.onnx.sizes import make_source, size_node
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import INT32, INT64, Dim, DType, element_count

Taps = Sequence["Tap"]
Read = Callable[[Node], Node]


@dataclass(frozen=True)
class Tap:
    """A neighbour along one axis: its int64 index, where it counts (None: everywhere), how much (None: 1)."""

    index: Node
    inside: Node | None = None
    weight: Node | None = None


def counter(rank: int, axis: int, size: Dim, dtype: DType = INT64) -> Node:
    """0, 1, ... along one of `rank` axes, the others of size 1."""
    shape = tuple(size if i == axis else 1 for i in range(rank))
    return make_source("iota", shape=shape, axis=axis, dtype=dtype)


def reader(x: Node, batch: Node) -> Read:
    """What reads x [N, C, sizes...] at places of its flattened spatial axes.

    `batch` has shape [R, 1, ...] and says which of the N; places broadcast against [R, C, ...].
    """
    channels, area, whole = x.shape[1], element_count(x.shape[2:]), element_count(x.shape)
    dtype = INT32 if isinstance(whole, int) and whole < 2**31 else INT64
    channel = counter(batch.ndim, 1, channels)
    start = cast((batch * size_node(channels, INT64) + channel) * size_node(area, INT64), dtype)
    flat = reshaped(x, (whole,))
    return lambda place: ops.take(flat, start + cast(place, dtype), axis=0)


def combinations(sizes: Sequence[Dim], taps: Sequence[Taps]) -> list[tuple[Node, Node | None, Node | None]]:
    """(place in the flattened axes, where inside, weight) for every choice of one tap per axis."""
    made = []
    for chosen in product(*taps):
        place = chosen[0].index
        for tap, size in zip(chosen[1:], sizes[1:]):
            place = place * size_node(size, INT64) + tap.index
        made.append((place, _all([t.inside for t in chosen], ops.bitwise_and),
                     _all([t.weight for t in chosen], ops.mul)))
    return made


def _all(parts: Sequence[Node | None], combine: Callable[[Node, Node], Node]) -> Node | None:
    total = None
    for part in parts:
        total = part if total is None else total if part is None else combine(total, part)
    return total


def neighbours(read: Read, sizes: Sequence[Dim], taps: Sequence[Taps], dtype: DType) -> list[Node]:
    """The weighted values at every choice of one tap per axis, as `dtype`."""
    values = []
    for place, inside, weight in combinations(sizes, taps):
        value = cast(read(place), dtype)
        value = value if inside is None else ops.select(inside, value, number(0, dtype))
        values.append(value if weight is None else weight * value)
    return values


def interpolated(read: Read, sizes: Sequence[Dim], taps: Sequence[Taps], dtype: DType) -> Node:
    return _total(neighbours(read, sizes, taps, dtype), ops.add)


def _total(values: Sequence[Node], combine: Callable[[Node, Node], Node]) -> Node:
    total = values[0]
    for value in values[1:]:
        total = combine(total, value)
    return total


# --- GridSample

MODES = {"bilinear": "linear", "bicubic": "cubic"}  # until opset 19


@translates("GridSample", since=16)
def grid_sample(call: Call) -> Node:
    """Elements at coordinates in [-1, 1]; along each axis as `_grid_taps` says."""
    x, grid = call[0], call[1]
    n, _, *sizes = x.shape
    points = grid.shape[1:-1]
    given = call.attribute("mode", "linear")
    mode, padding = MODES.get(given, given), call.attribute("padding_mode", "zeros")
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        call.invalid(f"mode {mode!r} and padding {padding!r}: there is no such way")
    wide = grid.dtype.accumulator
    rows = reshaped(cast(grid, wide), (n, 1, element_count(points), len(sizes)))
    columns = [reshaped(sliced(rows, 3, i, i + 1), rows.shape[:3]) for i in range(len(sizes))]
    taps = [_grid_taps(at, size, mode, padding, call.flag("align_corners"))
            for at, size in zip(reversed(columns), sizes)]
    dtype = x.dtype if mode == "nearest" else x.dtype.accumulator if x.dtype.is_float else wide
    taps = [[Tap(t.index, t.inside, None if t.weight is None else cast(t.weight, dtype)) for t in axis]
            for axis in taps]
    result = interpolated(reader(x, counter(3, 0, n)), sizes, taps, dtype)
    return cast(reshaped(result, (*x.shape[:2], *points)), x.dtype)


def _grid_taps(at: Node, size: Dim, mode: str, padding: str, align_corners: bool) -> list[Tap]:
    """-1 and 1 are the centres of the first and last elements where corners align, else their outer edges.

    Cubic brings each neighbour back inside, not the place between them, as torch and ONNX Runtime do.
    """
    dtype = at.dtype
    length, half = size_node(size, dtype), number(0.5, dtype)
    low, high = (number(0, dtype), length - 1) if align_corners else (-half, length - half)
    x = (at + 1) * half * (length - 1) if align_corners else ((at + 1) * length - 1) * half
    x = ops.round(x) if mode == "nearest" else x
    if padding != "zeros" and mode != "cubic":
        outside = ops.bitwise_or(ops.lt(x, low), ops.gt(x, high))
        x = ops.select(outside, _back_inside(x, size, low, high, padding), x)
    if mode == "nearest":
        return [_tap(x, size, low, high, padding, None)]
    base = ops.floor(x)
    weights = _linear_weights(x - base) if mode == "linear" else _cubic_weights(x - base)
    return [_tap(base + i, size, low, high, padding, w) for i, w in weights.items()]


def _tap(i: Node, size: Dim, low: Node, high: Node, padding: str, weight: Node | None) -> Tap:
    """The neighbour at the whole number `i`, which may lie outside."""
    if padding == "zeros":
        inside = ops.bitwise_and(ops.ge(i, number(0, i.dtype)), ops.lt(i, size_node(size, i.dtype)))
        return Tap(cast(i, INT64), inside, weight)
    return Tap(cast(_back_inside(i, size, low, high, padding), INT64), None, weight)


def _back_inside(x: Node, size: Dim, low: Node, high: Node, padding: str) -> Node:
    """To the nearest element, or reflected at `low` and `high` until inside."""
    if padding == "border":
        return ops.minimum(ops.maximum(x, number(0, x.dtype)), size_node(size, x.dtype) - 1)
    over, span = ops.maximum(low - x, x - high), ops.maximum(high - low, number(1e-6, x.dtype))
    turns = ops.floor(over / span)
    rest = over - turns * span
    from_low = ops.eq(ops.lt(x, low), ops.eq(turns, ops.floor(turns * 0.5) * 2))
    reflected = ops.select(ops.gt(over, number(0, x.dtype)), ops.select(from_low, low + rest, high - rest), x)
    return ops.minimum(ops.maximum(reflected, low), high)


def _linear_weights(x: Node) -> dict[int, Node]:
    return {0: 1 - x, 1: x}


def _cubic_weights(x: Node, a: float = -0.75) -> dict[int, Node]:
    """Keys, Cubic Convolution Interpolation for Digital Image Processing, 1981."""
    def near(t: Node) -> Node:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Node) -> Node:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return {-1: far(x + 1), 0: near(x), 1: near(1 - x), 2: far(2 - x)}


# --- DeformConv

@translates("DeformConv", since=19)
def deform_conv(call: Call) -> Node:
    """A convolution whose taps are moved by offsets: columns are interpolated, then multiplied.

    Dai et al., Deformable Convolutional Networks, 2017; with mask: Zhu et al. 2019.
    """
    x, w, offset = call[0], call[1], call[2]
    groups, moved = call.attribute("group", 1), call.attribute("offset_group", 1)
    n, c, *sizes = x.shape
    kernel, out = static_kernel(call, w.shape[2:]), offset.shape[2:]
    taps, points, wide = prod(kernel), element_count(out), x.dtype.accumulator
    shift = reshaped(cast(offset, wide), (n * moved, taps, len(sizes), points))
    at = [reshaped(_base(call, kernel, out, i, wide), (1, 1, taps * points))
          + reshaped(sliced(shift, 2, i, i + 1), (n * moved, 1, taps * points)) for i in range(len(sizes))]
    axes = [_grid_taps_of(p, size) for p, size in zip(at, sizes)]
    grouped = reshaped(x, (n * moved, c // moved, *sizes))
    columns = interpolated(reader(grouped, counter(3, 0, n * moved)), sizes, axes, wide)
    if call.has(4):
        columns = columns * reshaped(cast(call[4], wide), (n * moved, 1, taps * points))
    columns = reshaped(cast(columns, x.dtype), (n, groups, c // groups * taps, points))
    filters = reshaped(w, (groups, w.shape[0] // groups, c // groups * taps))
    result = ops.dot_general(filters, columns, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=(0,),
                             rhs_batch=(1,))
    result = reshaped(ops.transpose(result, axes=(2, 0, 1, 3)), (n, w.shape[0], *out))
    return result if not call.has(3) else result + reshaped(call[3], (1, w.shape[0], *[1] * len(sizes)))


def _base(call: Call, kernel: Sequence[int], out: Sequence[Dim], axis: int, dtype: DType) -> Node:
    """Where the taps lie along a spatial axis without offsets: [kernel..., places...]."""
    rank = len(kernel)
    strides, dilations = per_axis(call, "strides", rank), per_axis(call, "dilations", rank)
    padding = window_padding(call, call.shape()[2:], kernel, strides, dilations)
    shape = (*kernel, *out)
    tap, place = (make_source("iota", shape=shape, axis=a, dtype=INT64) for a in (axis, rank + axis))
    before = size_node(padding[axis][0], INT64)
    return cast(place * strides[axis] + tap * dilations[axis] - before, dtype)


def _grid_taps_of(x: Node, size: Dim) -> list[Tap]:
    """Linear between neighbours, 0 outside."""
    base = ops.floor(x)
    return [_tap(base + i, size, base, base, "zeros", w) for i, w in _linear_weights(x - base).items()]


# --- regions of interest

@translates("RoiAlign", since=10)
def roi_align_by_corners(call: Call) -> Node:
    return _roi_align(call, half_pixel=False)


@translates("RoiAlign", since=16)
def roi_align(call: Call) -> Node:
    mode = call.attribute("coordinate_transformation_mode", "half_pixel")
    if mode not in ("half_pixel", "output_half_pixel"):
        call.invalid(f"coordinate_transformation_mode {mode!r} is not half_pixel or output_half_pixel")
    return _roi_align(call, half_pixel=mode == "half_pixel")


@dataclass(frozen=True)
class Bins:
    """Regions along one axis, in `out` bins: their starts and the bins' sizes, [R], and samples per bin (a
    number, or int64 [R])."""

    start: Node
    size: Node
    out: int
    samples: Node


def _roi_align(call: Call, half_pixel: bool) -> Node:
    """He et al., Mask R-CNN, 2017: the mean (or greatest) of samples per bin, each between four elements."""
    x, mode, ratio = call[0], call.attribute("mode", "avg"), call.attribute("sampling_ratio", 0)
    if mode not in ("avg", "max"):
        call.invalid(f"mode {mode!r} is not avg or max")
    bins = [_bins(call, axis, half_pixel, ratio) for axis in (1, 0)]
    wide, batch = bins[0].start.dtype, cast(call[2], INT64)
    count = bins[0].samples * bins[1].samples
    empty = _per_bin(batch, x.shape[1], bins, -float("inf") if mode == "max" else 0.0, wide)

    def sampled(k: Node, total: Node, x: Node, batch: Node, *parts: Node) -> list[Node]:
        axes = [_with_parts(b, parts[i * 3:i * 3 + 3]) for i, b in enumerate(bins)]
        value = _sample(x, batch, axes, k, mode, wide)
        held = _column(ops.lt(k, axes[0].samples * axes[1].samples))
        return [ops.select(held, (ops.maximum if mode == "max" else ops.add)(total, value), total)]
    operands = (x, batch, *(n for b in bins for n in (b.start, b.size, b.samples)))
    total, = repeated(ops.reduce_max(count, axes=(0,)), [empty], sampled, operands)
    if mode == "max":
        result = ops.select(_column(ops.gt(count, number(0, INT64))), total, number(0, wide))
    else:
        result = total / cast(_column(ops.maximum(count, number(1, INT64))), wide)
    return cast(result, x.dtype)


def _number_of(rois: Node, i: int) -> Node:
    """Number i of every region."""
    return reshaped(sliced(rois, 1, i, i + 1), rois.shape[:1])


def _with_parts(bins: Bins, parts: Sequence[Node]) -> Bins:
    return Bins(parts[0], parts[1], bins.out, parts[2])


def _column(x: Node) -> Node:
    """[R] -> [R, 1, 1, 1]."""
    return reshaped(x, (*x.shape, 1, 1, 1))


def _per_bin(batch: Node, channels: Dim, bins: Sequence[Bins], value: float, dtype: DType) -> Node:
    return ops.broadcast_to(number(value, dtype), shape=(*batch.shape, channels, *(b.out for b in bins)))


def _bins(call: Call, axis: int, half_pixel: bool, ratio: int) -> Bins:
    """`axis` 0 is x, the first and third number of a region (x1, y1, x2, y2)."""
    rois = call[1]
    wide, out = rois.dtype.accumulator, call.attribute(("output_width", "output_height")[axis], 1)
    scaled = cast(rois, wide) * call.attribute("spatial_scale", 1.0) - (0.5 if half_pixel else 0.0)
    start, end = (_number_of(scaled, i) for i in (axis, axis + 2))
    length = end - start if half_pixel else ops.maximum(end - start, number(1, wide))
    size = length / float(out)
    if ratio > 0:
        samples = ops.broadcast_to(number(ratio, INT64), shape=rois.shape[:1])
    else:
        samples = ops.maximum(cast(ops.ceil(size), INT64), number(0, INT64))
    return Bins(start, size, out, samples)


def _sample(x: Node, batch: Node, bins: Sequence[Bins], k: Node, mode: str, wide: DType) -> Node:
    """Sample k of each bin, rows first."""
    wraps = ops.maximum(bins[1].samples, number(1, INT64))
    which = (ops.trunc_div(k, wraps), ops.rem(k, wraps))
    sizes = x.shape[2:]
    taps = [_roi_taps(_sample_place(bins[i], which[i], 2 + i), sizes[i]) for i in (0, 1)]
    values = neighbours(reader(x, _column(batch)), sizes, taps, wide)
    return _total(values, ops.maximum if mode == "max" else ops.add)


def _sample_place(bins: Bins, i: Node, axis: int) -> Node:
    wide = bins.start.dtype
    place = counter(4, axis, bins.out, wide)
    within = (cast(i, wide) + 0.5) * bins.size / cast(ops.maximum(bins.samples, number(1, INT64)), wide)
    return _column(bins.start) + place * _column(bins.size) + _column(within)


def _roi_taps(x: Node, size: Dim) -> list[Tap]:
    """0 beyond one element outside; up to there, and behind the last element, the element at the end."""
    zero, last = number(0, x.dtype), size_node(size, x.dtype) - 1
    inside = ops.bitwise_and(ops.ge(x, number(-1, x.dtype)), ops.le(x, last + 1))
    x = ops.minimum(ops.maximum(x, zero), last)
    base = ops.floor(x)
    after = ops.minimum(base + 1, last)
    weights = _linear_weights(x - base)
    return [Tap(cast(base, INT64), inside, weights[0]), Tap(cast(after, INT64), inside, weights[1])]


@translates("MaxRoiPool")
def max_roi_pool(call: Call) -> Node:
    """Girshick, Fast R-CNN, 2015: the greatest of each bin, whose edges are rounded outwards; 0 of none.

    A region is (batch, x1, y1, x2, y2), the last row and column included.
    """
    x, rois = call[0], call[1]
    wide = rois.dtype.accumulator
    batch = cast(_number_of(rois, 0), INT64)
    edges = [_pool_edges(call, axis, out) for axis, out in zip((1, 0), call.attribute("pooled_shape"))]
    heights, widths = (ops.maximum(end - start, number(0, INT64)) for start, end in edges)
    count = heights * widths
    shape = (*batch.shape, x.shape[1], *call.attribute("pooled_shape"))
    least = ops.broadcast_to(number(-float("inf"), wide), shape=shape)

    def step(k: Node, best: Node, x: Node, batch: Node, top: Node, left: Node, width: Node,
             count: Node) -> list[Node]:
        wraps = ops.maximum(width, number(1, INT64))
        taps = [[Tap(top + ops.trunc_div(k, wraps))], [Tap(left + ops.rem(k, wraps))]]
        value = interpolated(reader(x, _column(batch)), x.shape[2:], taps, wide)
        return [ops.select(ops.lt(k, count), ops.maximum(best, value), best)]
    operands = (x, batch, edges[0][0], edges[1][0], widths, count)
    most = ops.reduce_max(count, axes=(0, 1, 2, 3))
    best, = repeated(most, [least], step, operands)
    return cast(ops.select(ops.gt(count, number(0, INT64)), best, number(0, wide)), x.dtype)


def _pool_edges(call: Call, axis: int, out: int) -> tuple[Node, Node]:
    """First row (column) of each bin and the one behind its last: int64 [R, 1, out, 1] ([R, 1, 1, out])."""
    rois, size = call[1], call.shape()[3 - axis]
    wide = rois.dtype.accumulator
    scaled = cast(rois, wide) * call.attribute("spatial_scale", 1.0)
    rounded = ops.sign(scaled) * ops.floor(ops.abs(scaled) + 0.5)
    start, end = (_column(_number_of(rounded, i)) for i in (axis + 1, axis + 3))
    step = ops.maximum(end - start + 1, number(1, wide)) / float(out)
    place = counter(4, 3 - axis, out, wide)
    last = size_node(size, wide)
    both = (ops.floor(place * step) + start, ops.ceil((place + 1) * step) + start)
    first, stop = (cast(ops.minimum(ops.maximum(p, number(0, wide)), last), INT64) for p in both)
    return first, stop
