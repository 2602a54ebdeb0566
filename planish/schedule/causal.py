"""Masks that hide from every query the keys after it and nothing else: causal attention, said by a constant.

A causal attention skips the keys that a tile's queries don't see and needs no mask. That is what the mask
says as long as scores are numbers of some size: beside one that is seen, exp(a score - 2**100) is 0. But a
hidden NaN, or an infinity, shows in the formula's result. So the kernel comes in two forms, and each run
looks at what it reads (`are_usual`) and takes the one that is right.

In: an attention node. Out: the causal one that it equals over usual numbers; the graph that tells these.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planish.ir.graph import Graph
from planish.ir.node import Node, input_node, make_node
from planish.ops.content import ask, question
from planish.ops.rules import ops
from planish.passes.fold_constants import content_of
from planish.schedule.attention import ROWS, is_sums, masks_of
from planish.types import BOOL, FLOAT32, TensorType, element_count, is_static

USUAL = 2.0**40      # numbers below which a score of 256 features is below 2**88 before it is scaled
SCALES = 2.0**10     # by no more than which it is
HIDDEN = -2.0**100   # at or below which what is added to such a score leaves a weight of 0


def causal_form(node: Node) -> Node | None:
    """The causal attention that a masked one equals over usual numbers; None where its mask is none that is
    known to be causal, or hides too little to repay a look at all operands."""
    masks, a = masks_of(node), node.attributes
    if a.causal or len(masks) != 1 or any(o.dtype is not FLOAT32 for o in node.operands[:3 - is_sums(node)]):
        return None
    queries, keys = (o.shape[-2] for o in node.operands[:2])
    if queries != keys or not is_static(queries) or queries <= ROWS:
        return None
    if a.scale is not None and not abs(a.scale) <= SCALES:
        return None
    if not _is_causal(masks[0], queries, a.hidden):
        return None
    operands = node.operands[:2 if is_sums(node) else 3]
    return make_node(node.op, operands, replace(a, causal=True))


def _is_causal(mask: Node, length: int, hidden: float) -> bool:
    if mask.shape[-2:] != (length, length) or element_count(mask.shape) != length * length:
        return False
    if mask.dtype is BOOL and not hidden <= HIDDEN:
        return False
    content = content_of(mask)
    return content is not None and bool(ask("hides_later", content))


@question("hides_later")
def _hides_later(mask: np.ndarray) -> bool:
    """Whether a mask shows to each query the keys up to its own place, as they are, and hides all others."""
    square = mask.reshape(mask.shape[-2:])
    seen = np.tri(len(square), dtype=bool)
    if square.dtype == np.bool_:
        return bool(np.array_equal(square, seen))
    return bool(np.all(square[seen] == 0) and np.all(square[~seen] <= HIDDEN))


def are_usual(types: Sequence[TensorType]) -> Graph:
    """Whether all of some operands, each as one row of numbers, are numbers of usual size."""
    inputs = tuple(input_node(f"x{i}", t.with_shape((t.size,))) for i, t in enumerate(types))
    usual = [ops.lt(ops.reduce_sum(x * x, axes=(0,), keepdims=False), USUAL**2) for x in inputs]
    told = usual[0]
    for one in usual[1:]:
        told = ops.bitwise_and(told, one)
    return Graph(inputs, (told,))
