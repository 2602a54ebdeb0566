"""ATen that picks and places elements by masks, and by where they stand in an order.

What has as many elements as a mask has hits is found by counting the hits up to each place. A place in a
sorted sequence is found by halving, for all values at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planish.capture.torch.call import Call, as_node, broadcast, cast, number, reshaped, translates
from planish.capture.torch.movement import positions
from planish.capture.torch.promotion import promote
from planish.ir import Node
from planish.ops.rules import ops, size_like
from planish.types import BOOL, INT32, INT64, Dim, bounds, element_count, is_static


def flattened(x: Node) -> Node:
    return reshaped(x, (element_count(x.shape),))


def rank_of_hits(mask: Node) -> Node:
    """For each place of a flat mask, how many hits lie before it."""
    return ops.cumsum(cast(mask, INT64), axis=0, exclusive=True)


# --- masks


@translates("aten.masked_scatter.default")
def masked_scatter(call: Call, x: Node, mask: Node, source: Node) -> Node:
    """The k-th hit takes the k-th element of the source."""
    hits = flattened(broadcast(mask, call.shape))
    if 0 in (*source.shape, *call.shape):
        call.check(ops.logical_not(hits), "RuntimeError", "masked_scatter: the source has no elements")
        return broadcast(x, call.shape)
    given, at = flattened(source), rank_of_hits(hits)
    enough = ops.lt(at, size_like(at, given.shape[0]))
    call.check(ops.bitwise_or(enough, ops.logical_not(hits)), "RuntimeError",
               "masked_scatter: expected as many elements in the source as the mask has hits")
    taken = ops.take(given, at, axis=0)
    return reshaped(ops.select(hits, taken, flattened(broadcast(x, call.shape))), call.shape)


def put_by_mask(call: Call, x: Node, mask: Node, values: Node, accumulate: bool) -> Node:
    """x where the mask (of its first axes) has no hit, else the next row of the values."""
    rest = x.shape[mask.ndim:]
    hits = reshaped(mask, (*mask.shape, *[1] * len(rest)))
    rows = _rows_for(call, mask, values, rest)
    rows = ops.add(x, rows) if accumulate else rows
    return ops.select(hits, rows, x)


def _rows_for(call: Call, mask: Node, values: Node, rest: Sequence[Dim]) -> Node:
    """The values at the places of the hits: one row for all, or the k-th row for the k-th hit."""
    if values.ndim <= len(rest) or values.shape[values.ndim - len(rest) - 1] == 1:
        last = values.shape[values.ndim - min(values.ndim, len(rest)):]
        return reshaped(values, last)
    count = values.shape[0]
    if count == 0:
        call.refuse("a mask that is to have no hits")
    hits = flattened(mask)
    found = ops.reduce_sum(cast(hits, INT64), axes=(0,))
    call.check(ops.eq(found, size_like(found, count)), "IndexError",
               f"shape mismatch: {count} values cannot be written where the mask has its hits")
    rows = broadcast(values, (count, *rest))
    return reshaped(ops.take(rows, rank_of_hits(hits), axis=0), (*mask.shape, *rest))


@translates("aten.nonzero_static.default")
def nonzero_static(call: Call, x: Node, size: Dim, fill: int) -> Node:
    """The indices of the first `size` hits in order, then `fill`."""
    if not x.ndim or 0 in call.shape or 0 in x.shape:
        return broadcast(number(fill, INT64), call.shape)
    hits = flattened(cast(x, BOOL))
    place = positions(call, hits.shape, 0)
    behind = size_like(place, size)  # what is written there is dropped
    to = ops.select(hits, ops.minimum(rank_of_hits(hits), behind), behind)
    row = ops.scatter_nd(broadcast(number(-1, INT64), (size,)), reshaped(to, (*to.shape, 1)), place)
    columns, left = [], row
    for d in reversed(x.shape):
        n = size_like(left, d)
        columns.append(reshaped(ops.select(ops.lt(row, 0), number(fill, INT64), ops.mod(left, n)), (size, 1)))
        left = ops.floor_div(left, n)
    return ops.concat(*reversed(columns), axis=1) if len(columns) > 1 else columns[0]


# --- places in an order


@translates("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(call: Call, row: Node, values: Any, is_int32: bool, right: bool, side: str | None,
                 sorter: Node | None) -> Node:
    wanted = as_node(values, promote(row, values))
    found = place_in(call, cast(row, wanted.dtype), wanted, right or side == "right", sorter)
    return cast(found, INT32 if is_int32 else INT64)


@translates("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(call: Call, values: Any, row: Node, is_int32: bool, right: bool) -> Node:
    wanted = as_node(values, promote(row, values))
    return cast(place_in(call, cast(row, wanted.dtype), wanted, right), INT32 if is_int32 else INT64)


def place_in(call: Call, row: Node, values: Node, right: bool, sorter: Node | None = None) -> Node:
    """How many elements of the sorted last axis of `row` stand before each value: those less than it, with
    `right` also those equal to it. NaN stands behind all. A row of one axis serves all values."""
    most = bounds(row.shape[-1])[1]
    if most is None:
        call.refuse("a sorted sequence of any length is not supported")
    if most == 0:
        return broadcast(number(0, INT64), values.shape)
    count = size_like(values, row.shape[-1], INT64)
    place = broadcast(number(0, INT64), values.shape)
    for bit in reversed(range(most.bit_length())):
        tried = place + (1 << bit)
        at = ops.minimum(tried, count) - 1
        if sorter is not None:
            at = cast(_read(sorter, at), INT64)
        there = _read(row, at)
        # not (there >= value): a NaN is passed, as torch passes it
        behind = ops.logical_not((ops.gt if right else ops.ge)(there, values))
        place = ops.select(ops.bitwise_and(behind, ops.le(tried, count)), tried, place)
    return place


def _read(row: Node, at: Node) -> Node:
    if row.ndim == 1:
        return ops.take(row, at, axis=0)
    return ops.take_along(row, at, axis=row.ndim - 1)


@translates("aten.mode.default")
def mode(call: Call, x: Node, axis: int, keepdims: bool) -> tuple[Node, ...]:
    """The most frequent value, of several the least, and the last place that has it: in sorted order the
    first place at which a run of equal elements gets as long as any does."""
    if not x.ndim:
        return x, number(0, INT64)
    axis = axis % x.ndim
    size = x.shape[axis]
    if not is_static(size) or size == 0:
        call.refuse("the mode along a symbolic or empty axis is not supported")
    order = ops.argsort(x, axis=axis)
    rows = ops.take_along(x, order, axis=axis)
    place = positions(call, x.shape, axis)
    before = ops.take_along(rows, ops.maximum(place - 1, number(0, INT64)), axis=axis)
    is_first = ops.bitwise_or(ops.ne(rows, before), ops.eq(place, 0))
    start = ops.cummax(ops.select(is_first, place, number(0, INT64)), axis=axis)
    at = ops.argmax(place - start, axis=axis, keepdims=True)
    index = ops.take_along(order, at, axis=axis)
    value = ops.take_along(x, index, axis=axis)
    return tuple(reshaped(r, t.shape) for r, t in zip((value, index), call.types) if t is not None)
