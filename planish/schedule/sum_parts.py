"""Products of few results and a long sum, in parts of the sum.

    x[4, 65536] @ w[65536, 16]  ->  the sum over p of x[4, p, 1024] @ w[p, 1024, 16], p in 64

Four rows by 16 columns are one register tile, which is no work for two threads. Parts are points that threads
share; like those of `partial.py` their size does not depend on how many threads there are, so neither does
the result.
"""
from __future__ import annotations

from dataclasses import replace
from math import prod

from planish.ir.node import Node, make_node
from planish.ops import get_op
from planish.schedule.partial import cut_along
from planish.types import FLOAT32, FLOAT64, is_static

PART = 1024           # steps of the sum in a part
MOST_RESULTS = 96     # a tile of 6 x 16
LEAST_WORK = 1 << 21  # multiplications, from which threads are worth it: some 50 microseconds of one core


def in_sum_parts(node: Node) -> Node:
    """An equal `dot_general`; the same unless its sum is long, its results are few and all sizes known.
    Constants are in panels, which parts would undo."""
    a, (lhs, rhs) = node.attributes, node.operands
    if not _is_plain(node) or any(map(_is_constant, node.operands)):
        return node
    (i,), (j,) = a.lhs_contract, a.rhs_contract
    depth, results = lhs.shape[i], prod(node.shape)
    assert is_static(depth) and is_static(results)
    if depth < 2 * PART or results > MOST_RESULTS or results * depth < LEAST_WORK:
        return node
    whole = depth // PART * PART
    operands = (_parts(lhs, i, whole), _parts(rhs, j, whole))
    by_part = replace(a, lhs_batch=(i,), rhs_batch=(j,), lhs_contract=(i + 1,), rhs_contract=(j + 1,))
    total = get_op("reduce_sum")(make_node(node.op, operands, by_part), axes=(0,))
    if whole == depth:
        return total
    rest = (cut_along(lhs, i, whole, depth), cut_along(rhs, j, whole, depth))
    return get_op("add")(total, make_node(node.op, rest, a))


def _is_plain(node: Node) -> bool:
    """Whether it sums floats over one axis, of operands whose sizes are all known, without batches."""
    a, operands = node.attributes, node.operands
    is_one_sum = len(a.lhs_contract) == 1 and not a.lhs_batch
    is_known = all(is_static(d) for x in operands for d in x.shape)
    return is_one_sum and is_known and node.dtype in (FLOAT32, FLOAT64) and operands[0].dtype is node.dtype


def _is_constant(x: Node) -> bool:
    while x.op.has("view"):
        x = x.operands[0]
    return x.op.name == "constant"


def _parts(x: Node, axis: int, whole: int) -> Node:
    """Its first `whole` elements along an axis, as parts."""
    shape = (*x.shape[:axis], whole // PART, PART, *x.shape[axis + 1:])
    return get_op("reshape")(cut_along(x, axis, 0, whole), shape=shape)
