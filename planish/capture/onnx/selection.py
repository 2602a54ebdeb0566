"""Operators whose results are as many as there are: NonZero, Compress, Unique, NonMaxSuppression.

The work is native: flags, places by running sums, scatters, sorts. Between the segments, a host op only reads
how many there are.
"""
from __future__ import annotations

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import reshaped, sliced
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import make_source, size_node
from planish.ir import Graph, Node, constant, input_node
from planish.ops.rules import ops
from planish.types import BOOL, FLOAT32, INT64, STRING, Dim, TensorType, element_count


def places(call: Call, flags: Node) -> Node:
    """The indices, i64[u], of the elements of a bool vector that are set."""
    n = flags.shape[0]
    set_ = cast(flags, INT64)
    (count,) = call.said("sizes", [ops.reduce_sum(set_, axes=(0,))], [n])
    target = ops.select(flags, ops.cumsum(set_, axis=0) - 1, size_node(n, INT64))  # n: dropped
    return sliced(ops.scatter_along(_filled(0, n), target, _positions(n), axis=0), 0, 0, count)


def _positions(n: Dim) -> Node:
    return make_source("iota", shape=(n,), axis=0, dtype=INT64)


def _filled(value: int, n: Dim) -> Node:
    return ops.broadcast_to(number(value, INT64), shape=(n,))


def _flat(x: Node) -> Node:
    return reshaped(x, (element_count(x.shape),))


@translates("NonZero")
def non_zero(call: Call) -> Node:
    """[rank, u], rows of indices in the order of the elements; of a scalar, [0, u], as NumPy 1 had it."""
    x = call[0]
    flags = x if x.dtype is BOOL else ops.ne(x, number(0, x.dtype))
    left, rows = places(call, _flat(flags)), []
    for size in reversed(x.shape):
        rows.append(reshaped(ops.mod(left, size_node(size, INT64)), (1, left.shape[0])))
        left = ops.floor_div(left, size_node(size, INT64))
    if not rows:
        return ops.broadcast_to(number(0, INT64), shape=(0, left.shape[0]))
    return ops.concat(*reversed(rows), axis=0)


@translates("Compress")
def compress(call: Call) -> Node:
    """The elements along an axis (of the flat tensor without one) where the condition holds; what lies beyond
    the condition's end is left out."""
    flat = "axis" not in call.attributes
    return ops.take(_flat(call[0]) if flat else call[0], places(call, call[1]),
                    axis=0 if flat else call.axis())


# --- Unique

@translates("Unique")
def unique(call: Call) -> tuple[Node, ...]:
    """Values (or slices along an axis), where each is first, which of them every element is, and how often.

    A stable sort brings equals together, the first of them in front; a running sum of the places where the
    value changes numbers them.
    """
    axis = call.axis() if "axis" in call.attributes else None
    x = call[0]
    keys = call.host("text_ranks", [x], TensorType(INT64, x.shape)) if x.dtype is STRING else x
    if axis is None:
        order, starts = _runs(_flat(keys))
    else:
        rows = ops.transpose(keys, axes=(axis, *(a for a in range(x.ndim) if a != axis)))
        order, starts = _runs_of_rows(rows)
    n = order.shape[0]
    heads = places(call, starts)
    group = ops.cumsum(cast(starts, INT64), axis=0) - 1
    which = ops.scatter_along(_filled(0, n), order, group, axis=0)
    first = ops.take(order, heads, axis=0)
    count = first.shape[0]
    often = ops.scatter_along(_filled(0, count), group, _filled(1, n), axis=0, reduction="add")
    if not call.attribute("sorted", 1):
        by_first = ops.argsort(first, axis=0)
        rank = ops.scatter_along(_filled(0, count), by_first, _positions(count), axis=0)
        first, often = (ops.take(v, by_first, axis=0) for v in (first, often))
        which = ops.take(rank, which, axis=0)
    values = ops.take(_flat(x) if axis is None else x, first, axis=axis or 0)
    return values, first, which, often


def _runs(x: Node) -> tuple[Node, Node]:
    """The stable order of a vector, and whether a run of equals begins at each place of it. Every NaN is
    equal to every other, as NumPy's unique has it."""
    order = ops.argsort(x, axis=0)
    here = ops.take(x, order, axis=0)
    differs = ops.ne(here, _before(here))
    if x.dtype.is_float:
        both = ops.bitwise_and(ops.is_nan(here), ops.is_nan(_before(here)))
        differs = ops.bitwise_and(differs, ops.logical_not(both))
    return order, _first_or(differs)


def _runs_of_rows(x: Node) -> tuple[Node, Node]:
    """The same for slices along axis 0, in the order of their elements: sorted by the last of them first."""
    n, length = x.shape[0], element_count(x.shape[1:])
    rows = reshaped(x, (n, length))
    order, column = (input_node(name, rows.tensor.with_shape((n,)).with_dtype(dtype))
                     for name, dtype in (("order", INT64), ("column", x.dtype)))
    by_column = ops.argsort(ops.take(column, order, axis=0), axis=0)
    body = Graph((order, column), (ops.take(order, by_column, axis=0),), name="by_column")
    (order,) = ops.scan_loop(_positions(n), ops.transpose(rows, axes=(1, 0)), body=body, length=length,
                             carries=1, reverse=True)
    here = ops.take(rows, order, axis=0)
    return order, _first_or(ops.reduce_any(ops.ne(here, _before(here)), axes=(1,)))


def _before(x: Node) -> Node:
    """Along axis 0, the element in front; of the first, itself."""
    return ops.take(x, ops.maximum(_positions(x.shape[0]) - 1, 0), axis=0)


def _first_or(flags: Node) -> Node:
    return ops.bitwise_or(flags, ops.eq(_positions(flags.shape[0]), number(0, INT64)))


# --- NonMaxSuppression

@translates("NonMaxSuppression", since=10)
def non_max_suppression(call: Call) -> Node:
    """[u, 3]: batch, class and box of those kept, classes in order and the best first.

    Of every class the boxes above the threshold are ranked by score. Each round keeps the best box left of
    every class, and drops it and those that overlap it too much.
    """
    boxes, scores = call[0], call[1]
    order, alive = _candidates(call, scores)
    classes, n = order.shape[1:]
    corners = [_ranked(c, order) for c in _corners(boxes, bool(call.attribute("center_point_box", 0)))]
    most = reshaped(call[2], ()) if call.has(2) else number(0, INT64)
    overlap = reshaped(call[3], ()) if call.has(3) else number(0, FLOAT32)
    kept = places(call, _flat(_suppressed(alive, cast(most, INT64), overlap, corners)))
    columns = [ops.floor_div(kept, size_node(classes * n, INT64)),
               ops.mod(ops.floor_div(kept, size_node(n, INT64)), size_node(classes, INT64)),
               ops.take(_flat(order), kept, axis=0)]
    return ops.concat(*(reshaped(c, (kept.shape[0], 1)) for c in columns), axis=1)


def _candidates(call: Call, scores: Node) -> tuple[Node, Node]:
    """The boxes of every class in the order of their scores, [batches, classes, n], and which of these are
    any: n is the greatest number of them."""
    worst = number(float("-inf"), scores.dtype)
    if not call.has(4):
        ranked = ops.argsort(ops.select(ops.is_nan(scores), worst, scores), axis=2, descending=True)
        return ranked, ops.broadcast_to(constant(True), shape=scores.shape)
    flags = ops.gt(scores, reshaped(call[4], ()))
    counts = ops.reduce_sum(cast(flags, INT64), axes=(2,), keepdims=True)
    (n,) = call.said("largest", [counts], [scores.shape[2]])
    shape = (*scores.shape[:2], n)
    target = ops.select(flags, ops.cumsum(cast(flags, INT64), axis=2) - 1, size_node(n, INT64))  # n: dropped
    boxes = ops.scatter_along(ops.broadcast_to(number(0, INT64), shape=shape), target,
                              make_source("iota", shape=scores.shape, axis=2, dtype=INT64), axis=2)
    alive = ops.lt(make_source("iota", shape=shape, axis=2, dtype=INT64), counts)
    found = ops.select(alive, ops.take_along(scores, boxes, axis=2), worst)
    return ops.take_along(boxes, ops.argsort(found, axis=2, descending=True), axis=2), alive


def _corners(boxes: Node, centred: bool) -> list[Node]:
    """Least and greatest coordinate of each of two axes, [batches, boxes] each."""
    a, b, c, d = (reshaped(sliced(boxes, 2, i, i + 1), boxes.shape[:2]) for i in range(4))
    if centred:
        return [a - c / 2, a + c / 2, b - d / 2, b + d / 2]
    return [ops.minimum(a, c), ops.maximum(a, c), ops.minimum(b, d), ops.maximum(b, d)]


def _ranked(x: Node, order: Node) -> Node:
    """A value of every box, [batches, boxes], in the order of each class."""
    batches, n = x.shape
    wide = ops.broadcast_to(reshaped(x, (batches, 1, n)), shape=(batches, order.shape[1], n))
    return ops.take_along(wide, order, axis=2)


def _suppressed(alive: Node, most: Node, overlap: Node, corners: list[Node]) -> Node:
    """Which boxes are kept, [batches, classes, n]."""
    kept = ops.broadcast_to(constant(False), shape=alive.shape)
    held = (number(0, INT64), alive, kept, most, overlap, *corners)
    inputs = tuple(input_node(f"s{i}", x.tensor) for i, x in enumerate(held))
    k, left, chosen, limit, threshold, *sides = inputs
    more = ops.bitwise_and(ops.lt(k, limit), ops.reduce_any(left, axes=(0, 1, 2)))
    at = ops.argmax(cast(left, INT64), axis=2, keepdims=True)
    place = make_source("iota", shape=left.shape, axis=2, dtype=INT64)
    best = ops.bitwise_and(left, ops.eq(place, at))
    near = _overlaps(sides, [ops.take_along(side, at, axis=2) for side in sides], threshold)
    rest = ops.bitwise_and(left, ops.logical_not(ops.bitwise_or(best, near)))
    body = Graph(inputs, (k + 1, rest, ops.bitwise_or(chosen, best), *inputs[3:]), name="suppress")
    return ops.while_loop(*held, condition=Graph(inputs, (more,), name="more"), body=body)[2]


def _overlaps(a: list[Node], b: list[Node], threshold: Node) -> Node:
    """Whether the intersection of boxes is more than a part of their union; boxes without an area have
    none."""
    areas = [(box[1] - box[0]) * (box[3] - box[2]) for box in (a, b)]
    wide, high = (ops.maximum(ops.minimum(a[i + 1], b[i + 1]) - ops.maximum(a[i], b[i]), 0) for i in (0, 2))
    common = wide * high
    solid = ops.bitwise_and(ops.gt(areas[0], number(0, FLOAT32)), ops.gt(areas[1], number(0, FLOAT32)))
    much = ops.gt(common / (areas[0] + areas[1] - common), threshold)
    return ops.bitwise_and(ops.bitwise_and(solid, ops.gt(common, number(0, FLOAT32))), much)
