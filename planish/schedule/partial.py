"""Large reductions in two levels: parts of a fixed size first, then what they came to.

    sum of x[1000000]  ->  sum of (sums of the rows of x[0:999424] as [244, 4096]) + sum of x[999424:1000000]

The parts are points that threads share; their size does not depend on how many threads there are, so neither
does the result.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from planish.ir.node import Node, make_node
from planish.ops import get_op
from planish.schedule.scalars import hinted
from planish.types import Dim, is_static

JOIN = {"reduce_sum": "add", "reduce_prod": "mul", "reduce_max": "maximum", "reduce_min": "minimum",
        "reduce_any": "bitwise_or", "reduce_all": "bitwise_and"}
PART = 4096        # elements of a part of one axis
ROWS = 64          # rows of a part, when whole rows are combined: as many as stay in the second-level cache
ROW_BYTES = 128    # of a row from which its columns are walked as vectors
LARGE = 1 << 16    # elements that are worth two levels
FEW = 16           # results (or parts) that do not keep the threads busy


def in_two_levels(node: Node, hint: Mapping[str, int]) -> Node:
    """An equal node of a reduction without kept dims; the same when its results are many or it is small."""
    if node.op.name not in JOIN:
        return node
    x, = node.operands
    sizes = [hinted(d, dict(hint)) for d in x.shape]
    axes = tuple(sorted(node.attributes.axes))
    results = prod(n for k, n in enumerate(sizes) if k not in axes)
    rows = results >= FEW and _combines_rows(x, axes, sizes)
    if prod(sizes) < LARGE or (results >= FEW and not rows):
        return node
    wide = x.dtype.accumulator
    operand = x if wide is x.dtype else get_op("cast")(x, dtype=wide)
    whole = make_node(node.op, (operand,), replace(node.attributes, axes=axes))
    by_axis = len(axes) > 1 and sizes[axes[0]] >= FEW
    made = _by_axis(whole, sizes) if by_axis else _by_parts(whole, sizes, ROWS if rows else PART)
    if made is whole:
        return node
    return made if wide is x.dtype else get_op("cast")(made, dtype=x.dtype)


def _combines_rows(x: Node, axes: tuple[int, ...], sizes: list[int]) -> bool:
    """Whether rows are combined, so many that a column would be walked across as many pages."""
    if len(axes) != 1:
        return False
    row = prod(sizes[axes[0] + 1:]) * x.dtype.itemsize
    return row >= ROW_BYTES and sizes[axes[0]] >= 4 * ROWS


def _by_axis(node: Node, sizes: list[int]) -> Node:
    """The inner axes first, then the outermost one."""
    (x,), (first, *rest) = node.operands, node.attributes.axes
    return node.op(node.op(x, axes=tuple(rest)), axes=(first,))


def _by_parts(node: Node, sizes: list[int], part: int) -> Node:
    """The longest axis in parts, and what is left of it."""
    (x,), axes = node.operands, node.attributes.axes
    longest = max(axes, key=sizes.__getitem__)
    if sizes[longest] < 2 * part:
        return node
    before, size, after = x.shape[:longest], x.shape[longest], x.shape[longest + 1:]
    count = size // part
    parts = get_op("reshape")(cut_along(x, longest, 0, count * part), shape=(*before, count, part, *after))
    inner = tuple(k + (k >= longest) for k in axes)
    outer = longest - sum(k < longest for k in axes)
    total = node.op(node.op(parts, axes=inner), axes=(outer,))
    if is_static(size) and size % part == 0:
        return total
    return get_op(JOIN[node.op.name])(total, node.op(cut_along(x, longest, count * part, size), axes=axes))


def cut_along(x: Node, axis: int, start: Dim, stop: Dim) -> Node:
    """The elements from `start` to `stop` along an axis."""
    if start == 0 and stop == x.shape[axis]:
        return x
    starts = tuple(start if k == axis else 0 for k in range(x.ndim))
    stops = tuple(stop if k == axis else d for k, d in enumerate(x.shape))
    return get_op("slice")(x, starts=starts, stops=stops, steps=(1,) * x.ndim)
