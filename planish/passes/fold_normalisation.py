"""A scale and a shift of every channel by itself, with constants, go into the convolution before them.

    (conv(x, w) - mean) * factor + bias   ->   conv(x, w * factor) + (bias - mean * factor)

A batch normalisation with known statistics is that. Not in strict numerics: weights are rounded once more,
and the shift is taken after the scale, each within what the sum of the convolution itself is uncertain by.
Weights that would not be finite stay as they are.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planish.ir import Graph, Node
from planish.ir.node import constant_of, make_node
from planish.ops.content import ask, question, unmoved
from planish.ops.rules import ops
from planish.passes.fold_constants import computed
from planish.passes.protocol import Context
from planish.types import FLOAT32, FLOAT64, is_static

SHIFTS = ("add", "sub")


@dataclass(frozen=True)
class FoldNormalisation:
    name: str = "fold_normalisation"
    reason: str = "after folding: statistics are numbers by then; the algebra sees what is left of them"

    def run(self, graph: Graph, context: Context) -> Graph:
        return graph if context.numerics == "strict" else context.rewrite(graph, _step)


def _step(node: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
    if node.op.name not in ("mul", *SHIFTS) or not _is_of_channels(node.operands[1], node):
        return None
    inner, number = node.operands
    if inner.shape != node.shape or uses.get(inner, 0) > 1:
        return None
    if node.op.name in SHIFTS:
        return _one_shift(node.op.name, inner, number, uses)
    if inner.op.name in SHIFTS and _is_of_channels(inner.operands[1], inner):
        folded = _scaled(inner.operands[0], number, uses)
        if folded is None or folded.shape != inner.shape:
            return None
        return inner.op(folded, computed(inner.operands[1] * number)), "scale_of_shifted"
    folded = _scaled(inner, number, uses)
    return None if folded is None else (folded, "scale")


def _scaled(conv: Node, factor: Node, uses: Mapping[Node, int]) -> Node | None:
    """The convolution with weights times `factor`; None where it can't be."""
    if not _is_weighted(conv) or uses.get(conv, 0) > 1:
        return None
    x, w = conv.operands
    channels = factor.shape[-(conv.ndim - 1)] if factor.ndim >= conv.ndim - 1 else 1
    w, before = _unscaled(w)
    scale = ops.reshape(factor, shape=(channels, *[1] * (w.ndim - 1)))
    scale = computed(scale if before is None else before * scale)
    scaled = computed(w * scale)
    if scaled.op.name != "constant" or not _is_finite_product(w, scale):
        return None
    return make_node(conv.op, (x, scaled), conv.attributes)


def _unscaled(w: Node) -> tuple[Node, Node | None]:
    """Weights that were scaled here before: what they were, and the scale of each channel."""
    made = w.attributes.derivation
    if made is None or made.function != "op" or made.parameters != ("mul",):
        return w, None
    weights, scale = made.sources
    of_channels = scale.type.shape[1:] == (1,) * (w.ndim - 1) and weights.type == w.type
    return (constant_of(weights), constant_of(scale)) if of_channels else (w, None)


def _is_finite_product(w: Node, scale: Node) -> bool:
    """Whether no product can be infinite or NaN, by a bound on each factor."""
    factor = scale.operands[0] if scale.op.name == "broadcast_to" else scale
    return ask("finite_products", w.attributes, unmoved(factor.attributes))


@question("finite_products")
def _finite_products(w: np.ndarray, scale: np.ndarray) -> bool:
    flat = w.reshape(-1)
    with np.errstate(all="ignore"):
        bound = float(np.dot(flat, flat)) ** 0.5 * float(np.max(np.abs(scale), initial=0))
        return bool(bound <= float(np.finfo(w.dtype).max))  # False for NaN too


def _one_shift(kind: str, inner: Node, number: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
    """Two shifts of a convolution as one."""
    if inner.op.name not in SHIFTS or not _is_of_channels(inner.operands[1], inner):
        return None
    conv, first = inner.operands
    if not _is_weighted(conv) or conv.shape != inner.shape:
        return None
    both = first + number if kind == inner.op.name else first - number
    return inner.op(conv, computed(both)), "shift"


def _is_weighted(node: Node) -> bool:
    """A convolution in floats of 32 or 64 bits with constant weights."""
    is_wide = node.op.name == "conv" and node.dtype in (FLOAT32, FLOAT64) and node.attributes.result is None
    return is_wide and node.operands[1].op.name == "constant"


def _is_of_channels(number: Node, result: Node) -> bool:
    """Whether a constant has one number for each channel of the result, or one for all."""
    of = number.operands[0] if number.op.name == "broadcast_to" else number
    if of.op.name != "constant" or number.ndim > result.ndim or result.ndim < 2:
        return False
    apart = [k - number.ndim + result.ndim for k, d in enumerate(number.shape) if d != 1]
    return all(map(is_static, number.shape)) and apart in ([], [1])
