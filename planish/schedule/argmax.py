"""Where the largest element is: its value first, then the first place that holds it.

    argmax(x)  ->  first = min over i of (i where x[i] == max(x) or x[i] is NaN, else the greatest number)

Two simple reductions run several times faster than one that carries values and places along. A maximum that
meets NaN is NaN and equals nothing, so that the first NaN is found, as NumPy has it.
"""
from __future__ import annotations

from collections.abc import Mapping

from planish.ir.node import Node, make_node
from planish.ops import get_op
from planish.schedule.partial import in_two_levels
from planish.types import INT32, INT64, bounds

PLACES = ("argmax", "argmin")  # the ops written here in terms of others


def by_value(node: Node, hint: Mapping[str, int]) -> Node:
    """An equal node of an argmax or argmin that drops its axis."""
    x, = node.operands
    axis = node.attributes.axis
    longest = bounds(x.shape[axis])[1]
    dtype = INT32 if longest is not None and longest < 2 ** 31 else INT64
    reduce = get_op("reduce_max" if node.op.name == "argmax" else "reduce_min")
    kept = (*x.shape[:axis], 1, *x.shape[axis + 1:])
    best = get_op("reshape")(in_two_levels(reduce(x, axes=(axis,)), hint), shape=kept)
    found = get_op("eq")(x, best)
    if x.dtype.is_float:
        found = get_op("bitwise_or")(found, get_op("is_nan")(x))
    iota = get_op("iota")
    place = make_node(iota, (), iota.make_attributes({"shape": x.shape, "axis": axis, "dtype": dtype}))
    candidates = get_op("select")(found, place, 2 ** (dtype.bits - 1) - 1)
    first = in_two_levels(get_op("reduce_min")(candidates, axes=(axis,)), hint)
    return get_op("cast")(first, dtype=INT64)
