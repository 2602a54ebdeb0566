"""ATen that counts and sums by class: histograms, bags of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planish.capture.torch.call import Call, as_node, broadcast, cast, number, reshaped, translates
from planish.capture.torch.indexing import check_range
from planish.capture.torch.movement import positions
from planish.capture.torch.selection import flattened, place_in
from planish.ir import Node, constant
from planish.ops.rules import ops, size_like
from planish.types import FLOAT64, INT64, Dim, DType, element_count, is_static

# --- histograms


@translates("aten.histc.default")
def histc(call: Call, x: Node, bins: int, low: Any, high: Any) -> Node:
    """Counts in `bins` equal parts of low..high; of the data's own range where both are one number."""
    flat = cast(flattened(x), FLOAT64)
    first, last = _limits(call, flat, None if low == high == 0 else (low, high), 1)
    place = ops.trunc((flat - first) * float(bins) / (last - first))
    place = ops.minimum(cast(place, INT64), number(bins - 1, INT64))
    return _counted(call.dtype, flat, first, last, place, None, bins)


@translates("aten.histogram.bin_ct")
def histogram(
    call: Call, x: Node, bins: int, limits: Sequence[float] | None, weights: Node | None, density: bool
) -> tuple[Node, Node]:
    first, last = _limits(call, cast(flattened(x), FLOAT64), limits, 0.5)
    i = np.arange(bins + 1, dtype=np.float64)
    step = (last - first) / float(bins)
    upward, downward = first + constant(i) * step, last - constant(bins - i) * step
    edges = ops.select(constant(i < (bins + 1) // 2), upward, downward)
    return _histogram(call, x, cast(edges, call.dtype), weights, density)


@translates("aten.histogram.bins_tensor")
def histogram_by_edges(
    call: Call, x: Node, edges: Node, weights: Node | None, density: bool
) -> tuple[Node, Node]:
    return _histogram(call, x, edges, weights, density)


def _histogram(call: Call, x: Node, edges: Node, weights: Node | None, density: bool) -> tuple[Node, Node]:
    """The last bin has both its edges, the others their lower one."""
    if not is_static(edges.shape[0]) or edges.shape[0] < 2:
        call.refuse("a histogram of a symbolic number of bins is not supported")
    bins, flat = edges.shape[0] - 1, flattened(x)
    first, last = (ops.take(edges, number(i, INT64), axis=0) for i in (0, bins))
    place = ops.minimum(place_in(call, edges, flat, right=True) - 1, number(bins - 1, INT64))
    weights = None if weights is None else flattened(weights)
    counts = _counted(call.dtype, flat, first, last, place, weights, bins)
    if density:
        ends = [ops.slice(edges, starts=(i,), stops=(bins + i,), steps=(1,)) for i in (0, 1)]
        counts = counts / ops.reduce_sum(counts, axes=(0,)) / (ends[1] - ends[0])
    return counts, edges


def _limits(call: Call, flat: Node, given: Sequence[Any] | None, widen: float) -> tuple[Node, Node]:
    """The range of the bins: what is given, or the data's; equal ends are moved apart."""
    if given is None and 0 not in flat.shape:
        low, high = (getattr(ops, f"reduce_{kind}")(flat, axes=(0,)) for kind in ("min", "max"))
        finite = ops.bitwise_and(ops.is_finite(low), ops.is_finite(high))
        call.check(finite, "RuntimeError", "a histogram's range is not finite")
    else:
        low, high = (as_node(v, FLOAT64) for v in given or (0, 1))
    more = cast(ops.eq(low, high), FLOAT64) * widen
    return low - more, high + more


def _counted(
    dtype: DType, flat: Node, first: Node, last: Node, place: Node, weights: Node | None, bins: int
) -> Node:
    """What lies within the range, added up by place; the rest is written behind the last one."""
    within = ops.bitwise_and(ops.ge(flat, first), ops.le(flat, last))
    to = reshaped(ops.select(within, place, number(bins, INT64)), (*flat.shape, 1))
    wide = FLOAT64 if dtype.is_float else dtype
    parts = broadcast(number(1, wide), flat.shape) if weights is None else cast(weights, wide)
    zeros = broadcast(number(0, wide), (bins,))
    return cast(ops.scatter_nd(zeros, to, parts, reduction="add"), dtype)


# --- bags of embeddings: a bag is the indices from one offset to the next

SUM, MEAN, MAX = range(3)


def _bags(index: Node, offsets: Node) -> Node:
    """The bag of each index: how many offsets are at or before it, less one."""
    n = index.shape[0]
    marks = broadcast(number(0, INT64), (n + 1,))
    at = reshaped(cast(offsets, INT64), (*offsets.shape, 1))
    marks = ops.scatter_nd(marks, at, broadcast(number(1, INT64), offsets.shape), reduction="add")
    through = ops.cumsum(marks, axis=0)
    return ops.slice(through, starts=(0,), stops=(n,), steps=(1,)) - 1


def _by_bag(start: Any, bags: Node, rows: Node, count: Dim, how: str) -> Node:
    zeros = broadcast(number(start, rows.dtype), (count, *rows.shape[1:]))
    return ops.scatter_nd(zeros, reshaped(bags, (*bags.shape, 1)), rows, reduction=how)


@translates("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    call: Call, weight: Node, index: Node, offsets: Node, by_frequency: bool, mode: int, is_sparse: bool,
    scales: Node | None, last_offset: bool, padding: int,
) -> tuple[Node, ...]:  # fmt: skip
    """Each bag's sum, mean or maximum of rows of the weight; 0 for an empty one. Beside it what torch's
    backward pass reads: the bag of each index, the bags' sizes, and where a maximum stands."""
    count = call.shape[0]
    if 0 in (count, *index.shape, *weight.shape):
        call.refuse("no bags, or bags of nothing")
    check_range(call, index, weight.shape[0], wraps=False, error="RuntimeError")
    bags, kept = _bags(index, offsets), ops.ne(cast(index, INT64), number(padding, INT64))
    rows = cast(ops.take(weight, index, axis=0), weight.dtype.accumulator)
    if scales is not None:
        rows = rows * reshaped(cast(scales, rows.dtype), (*index.shape, 1))
    to = ops.select(kept, bags, size_like(bags, count))  # padding is written behind the last bag
    sizes = _by_bag(0, to, broadcast(number(1, INT64), index.shape), count, "add")
    empty = reshaped(ops.eq(sizes, 0), (count, 1))
    places = sizes
    if mode == MAX:
        total = _by_bag(-np.inf, to, rows, count, "max")
        places = ops.select(empty, number(0, INT64), _maximum_places(call, index, to, rows, total))
        total = ops.select(empty, number(0, total.dtype), total)
    else:
        total = _by_bag(0, to, rows, count, "add")
    if mode == MEAN:
        total = total / cast(reshaped(ops.maximum(sizes, number(1, INT64)), (count, 1)), total.dtype)
    return tuple(_fitted(t, x) for t, x in zip(call.types, (total, bags, sizes, places)))


def _maximum_places(call: Call, index: Node, to: Node, rows: Node, best: Node) -> Node:
    """The index whose row was the first to have the maximum."""
    hit = ops.eq(rows, ops.take(best, to, axis=0))
    order = broadcast(reshaped(positions(call, index.shape, 0), (*index.shape, 1)), rows.shape)
    behind = size_like(order, index.shape[0])
    first = _by_bag(np.iinfo(np.int64).max, to, ops.select(hit, order, behind), best.shape[0], "min")
    return ops.take(cast(index, INT64), ops.minimum(first, behind - 1), axis=0)


def _fitted(wanted: Any, x: Node) -> Node:
    """torch leaves some of what it does not need empty, or longer."""
    if wanted.shape == x.shape:
        return cast(x, wanted.dtype)
    if element_count(wanted.shape) == 0:
        return broadcast(number(0, wanted.dtype), wanted.shape)
    more = tuple(b - a for a, b in zip(x.shape, wanted.shape))
    return cast(ops.pad(x, number(0, x.dtype), low=(0,) * x.ndim, high=more), wanted.dtype)


@translates("aten._embedding_bag_backward.default", "aten._embedding_bag_dense_backward.default")
def embedding_bag_backward(call: Call, g: Node, index: Node, *arguments: Any) -> Node:
    """The cotangent of the weight."""
    offsets = arguments[0] if call.overload == "aten._embedding_bag_backward.default" else None
    bags, sizes, places, count, by_frequency, mode, *rest = arguments[offsets is not None :]
    scales, padding = rest[-2:]
    if by_frequency:
        call.refuse("scale_grad_by_freq is not supported")
    wide = cast(g, g.dtype.accumulator)
    total = broadcast(number(0, wide.dtype), (count, g.shape[1]))
    if mode == MAX:
        given = reshaped(ops.ne(sizes, 0), (*sizes.shape, 1))
        parts = ops.select(given, wide, number(0, wide.dtype))
        return cast(ops.scatter_along(total, places, parts, axis=0, reduction="add"), call.dtype)
    if bags.shape[0] != index.shape[0]:
        if offsets is None:
            call.refuse("without the bag of each index")
        bags = _bags(index, offsets)
    if mode == MEAN:
        count_of_bag = reshaped(ops.maximum(sizes, number(1, sizes.dtype)), (*sizes.shape, 1))
        wide = wide / cast(count_of_bag, wide.dtype)
    rows = ops.take(wide, bags, axis=0)
    if scales is not None:
        rows = rows * reshaped(cast(scales, rows.dtype), (*index.shape, 1))
    index = cast(index, INT64)
    to = ops.select(ops.ne(index, number(padding, INT64)), index, size_like(index, count))
    written = ops.scatter_nd(total, reshaped(to, (*to.shape, 1)), rows, reduction="add")
    return cast(written, call.dtype)


@translates("aten._embedding_bag_per_sample_weights_backward.default")
def embedding_bag_scales_backward(
    call: Call, g: Node, weight: Node, index: Node, offsets: Node, bags: Node, mode: int, padding: int
) -> Node:
    """The cotangent of each index's scale: its row's product with its bag's cotangent."""
    wide, to = g.dtype.accumulator, _bags(index, offsets)
    pair = [cast(ops.take(t, i, axis=0), wide) for t, i in ((g, to), (weight, index))]
    product = ops.reduce_sum(pair[0] * pair[1], axes=(1,))
    kept = ops.ne(cast(index, INT64), number(padding, INT64))
    return cast(ops.select(kept, product, number(0, wide)), call.dtype)
