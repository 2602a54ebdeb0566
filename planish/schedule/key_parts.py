"""Attention of few queries to many keys, in parts of the keys: else a single head would be one thread's.

    out_p, l_p = attention and its log(sum(exp(scores))) for part p of the keys
    out = sum of exp(l_p - max l) out_p / sum of exp(l_p - max l)

The parts are an axis more, which threads share. How many there are follows from the sizes alone, so the
result is the same for any number of threads (Dao et al., Flash-Decoding, 2023). In: an `attention` node. Out:
an equal one, or the same where its heads keep threads busy, or its keys are few or do not come in equal
parts.
"""
from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from planish.ir.node import Node, constant, make_node
from planish.ops import get_op
from planish.ops.rules import ops
from planish.schedule.attention import FEW, batch_rank
from planish.types import FLOAT32, Dim, is_static

ENOUGH = 4         # tiles that keep the threads busy as they are
PARTS = (8, 6, 4, 3, 2)
LEAST_KEYS = 1024  # of a part


def in_key_parts(node: Node) -> Node:
    """The attention by parts of its keys, where that pays."""
    q, k, *_ = node.operands
    keys, queries = k.shape[-2], q.shape[-2]
    tiles = prod(node.shape[:batch_rank(node)])
    if not (is_static(keys) and is_static(queries) and is_static(tiles)) or node.attributes.causal:
        return node
    if node.attributes.unseen == "zero_nan" or q.dtype is not FLOAT32:
        return node
    if not 0 < queries <= FEW or not 0 < tiles < ENOUGH:
        return node
    count = next((p for p in PARTS if keys % p == 0 and keys // p >= LEAST_KEYS), 1)
    return node if count == 1 else _joined(node, count)


def _joined(node: Node, count: int) -> Node:
    q, k, v, *masks = node.operands
    place = batch_rank(node)   # of the axis of parts
    shape = (*q.shape[:place], count, *q.shape[place:])
    queries = ops.broadcast_to(ops.reshape(q, shape=_with_one(q.shape, place)), shape=shape)
    parted = [_parted(x, place, x.ndim - 2, count) for x in (k, v)]
    hidden = [_parted(_of_rank(m, node.ndim), place, node.ndim - 1, count) for m in masks]
    inside = replace(node.attributes, unseen="zero")
    results = make_node(node.op, (queries, *parted, *hidden), inside)
    sums = make_node(get_op("attention_logsumexp"), (queries, parted[0], *hidden), inside)
    largest = ops.reduce_max(sums, axes=(place,))
    if node.attributes.unseen == "zero":
        largest = ops.select(ops.eq(largest, -inf), constant(0.0, FLOAT32), largest)
    weights = ops.exp(ops.sub(sums, ops.reshape(largest, shape=_with_one(largest.shape, place))))
    total = ops.reduce_sum(weights, axes=(place,))
    if node.attributes.unseen == "zero":
        total = ops.select(ops.eq(total, 0.0), constant(1.0, FLOAT32), total)
    column = ops.reshape(weights, shape=(*weights.shape, 1))
    joined = ops.reduce_sum(ops.mul(results, column), axes=(place,))
    return ops.div(joined, ops.reshape(total, shape=(*total.shape, 1)))


def _with_one(shape: tuple[Dim, ...], place: int) -> tuple[Dim, ...]:
    return (*shape[:place], 1, *shape[place:])


def _of_rank(mask: Node, rank: int) -> Node:
    return ops.reshape(mask, shape=(1,) * (rank - mask.ndim) + tuple(mask.shape))


def _parted(x: Node, place: int, along: int, count: int) -> Node:
    """`x` with its axis `along` cut in parts, which are counted by a new axis at `place`."""
    if x.shape[along] == 1:
        return ops.reshape(x, shape=_with_one(x.shape, place))
    length = x.shape[along] // count
    cut = ops.reshape(x, shape=(*x.shape[:along], count, length, *x.shape[along + 1:]))
    rest = [i for i in range(cut.ndim) if i != along]
    return ops.transpose(cut, axes=(*rest[:place], along, *rest[place:]))
