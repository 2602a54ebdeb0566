"""Attention, put together from its parts: softmax(scale q k^T, masked) v, as people and exporters write it.

By now transposes stand in the axes of the products and the scale in `alpha`; what may lie between product
and softmax are masks: numbers that are added, and conditions that put another number in the place of a score.
Only of float32: narrower scores and weights are rounded between the parts. The order of the sums is the
kernel's own.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ir import Node, constant, input_node
from planish.ir.node import make_node
from planish.ops.contract import DotAttributes, free_axes
from planish.ops.rules import ops
from planish.rewrite.pattern import uniform_value, variables
from planish.rewrite.rule import Match, rule
from planish.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, DType, TensorType, is_static

SCALES = 2.0**-30, 2.0**30  # of queries or keys, which become one: what is scaled stays a number
MOST_FEATURES = 256  # of a query or a value: what a tile keeps of them is on the stack

x, v = variables("x v")
_e = ops.exp(x - ops.reduce_max(x).named("largest")).named("e")
_weights = (_e / ops.reduce_sum(_e).named("total")).used_once("weights")
_shown = (_e / ops.reduce_sum(_e).named("total")).named("weights")
_numbers = ops.select(ops.is_nan(_shown), 0.0, _shown).used_once("numbers")


def has_kernel(node: Node) -> bool:
    """Whether an attention, or the sums of one, is of the form that the schedule has one kernel for."""
    if node.op.name not in ("attention", "attention_logsumexp"):
        return False
    if node.operands[0].dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        return False
    features = node.operands[:1] if node.op.name == "attention_logsumexp" else (node.operands[0], node)
    widths = [x.shape[-1] for x in features]
    return all(is_static(d) and 0 < d <= MOST_FEATURES for d in widths)


@dataclass(frozen=True)
class Scores:
    """The product below a softmax, and the masks on the way up from it; what a hidden score is."""

    product: Node
    masks: tuple[Node, ...] = ()
    hidden: float = -np.inf


def _scores(node: Node, match: Match) -> Scores | str:
    """What the scores are made of, or why they are something else."""
    if match.uses.get(node, 1) > (2 if node is match.x else 1):
        return "the scores have other users"
    if node.op.name == "dot_general":
        return Scores(node)
    if node.op.name == "add":
        return _masked(node, match, (node.operands, node.operands[::-1]))
    if node.op.name == "select":
        return _chosen(node, match)
    return f"the scores are a {node.op.name}"


def _masked(node: Node, match: Match, ways: Any) -> Scores | str:
    for below, mask in ways:
        if below.shape == node.shape and below.op.name in ("dot_general", "add", "select"):
            found = _scores(below, match)
            if isinstance(found, Scores):
                return Scores(found.product, (*found.masks, mask), found.hidden)
    return "no score is added to"


def _chosen(node: Node, match: Match) -> Scores | str:
    condition, one, other = node.operands
    for below, number, turned in ((one, other, False), (other, one, True)):
        hidden = uniform_value(number)
        if hidden is None or below.shape != node.shape:
            continue
        found = _scores(below, match)
        if isinstance(found, str):
            return found
        if any(m.dtype is BOOL for m in found.masks) and found.hidden != hidden:
            return "scores are hidden by two numbers"
        mask = ops.logical_not(condition) if turned else condition
        return Scores(found.product, (*found.masks, mask), float(hidden))
    return "no number takes the place of a hidden score"


def _is_softmax(match: Match) -> bool | str:
    last = (match.x.ndim - 1,)
    for one in (match.largest, match.total):
        if one.attributes.axes != last or not one.attributes.keepdims:
            return "the softmax is not over the last axis"
    if match.uses.get(match.weights, 2) > 2:
        return "the weights have other users"
    return match.uses.get(match.e, 2) <= 2 or "the exponentials have other users"


def _is_attention(match: Match) -> bool | str:
    made = _attention(match)
    return made if isinstance(made, str) else has_kernel(made) or "its features are too many, or not known"


def _attention(match: Match) -> Node | str:
    softmax = _is_softmax(match)
    if softmax is not True:
        return str(softmax)
    rank = match.x.ndim
    last: DotAttributes = match.root.attributes
    batch = tuple(range(rank - 2))
    if match.root.dtype is not FLOAT32 or match.x.dtype is not FLOAT32 or last.alpha != 1:
        return "it is not a plain product of float32"
    if last.lhs_batch != batch or last.lhs_contract != (rank - 1,) or match.v.ndim != rank:
        return "the weights are not summed over their last axis"
    scores = _scores(match.x, match)
    if isinstance(scores, str):
        return scores
    q, k = scores.product.operands
    first: DotAttributes = scores.product.attributes
    axes = (q.ndim, len(first.lhs_contract), len(first.lhs_batch))
    if q.dtype is not FLOAT32 or axes != (rank, 1, rank - 2):
        return "the scores are not products of one axis"
    (q, one), (k, other) = _unscaled(q), _unscaled(k)
    operands = (_in_order(q, first.lhs_batch, first.lhs_contract[0], last=True),
                _in_order(k, first.rhs_batch, first.rhs_contract[0], last=True),
                _in_order(match.v, last.rhs_batch, last.rhs_contract[0], last=False))
    unseen = "zero_nan" if "numbers" in match.bound else "nan"
    masks = [m for m in scores.masks if uniform_value(m) != (m.dtype is BOOL)]  # the others hide nothing
    return ops.attention(operands[0], *map(_narrowed, operands[1:]), *masks,
                         scale=first.alpha * one * other, hidden=scores.hidden, unseen=unseen)


def _unscaled(node: Node) -> tuple[Node, float]:
    """Queries or keys without a number that they are times, and that number: the kernel scales the queries as
    it takes them."""
    number = uniform_value(node.operands[1]) if node.op.name == "mul" else None
    if number is None or node.operands[0].shape != node.shape or not SCALES[0] <= abs(number) <= SCALES[1]:
        return node, 1.0
    return node.operands[0], float(number)


def _in_order(node: Node, batch: tuple[int, ...], contracted: int, *, last: bool) -> Node:
    """[batch..., length, features]; `last`: the contracted axis is the features."""
    free, = free_axes(node.ndim, batch, (contracted,))
    axes = (*batch, free, contracted) if last else (*batch, contracted, free)
    return node if axes == tuple(range(node.ndim)) else ops.transpose(node, axes=axes)


def _narrowed(node: Node) -> Node:
    """Without a broadcast along the batch: heads that share keys read the same ones."""
    if node.op.name != "broadcast_to":
        return node
    inner = node.operands[0]
    return inner if inner.ndim == node.ndim and inner.shape[-2:] == node.shape[-2:] else node


def _build(match: Match) -> Node:
    made = _attention(match)
    assert isinstance(made, Node)
    return made


def _example(rng: np.random.Generator, dtype: DType, *, numbers: bool = False) -> Node:
    """Attention written out, with or without masks, q, k and v in some order of axes; with weights that are
    NaN made 0."""
    b, s, t, d, e = (int(n) for n in rng.integers(1, 5, 5))
    turned = rng.random() < 0.5
    shapes = ((s, b, d), (t, b, d), (t, b, e)) if turned else ((b, s, d), (b, t, d), (b, t, e))
    q, k, values = (input_node(n, TensorType(dtype, shape)) for n, shape in zip("qkv", shapes))
    at = (1,) if turned else (0,)
    if rng.random() < 0.5:  # as exporters write it: both by the root of the scale
        q, k = (x * constant(np.float32(0.75), dtype) for x in (q, k))
    scores = ops.dot_general(q, k, lhs_contract=(2,), rhs_contract=(2,), lhs_batch=at, rhs_batch=at,
                             alpha=0.5)
    kind = int(rng.integers(4))
    if kind == 1:
        scores = scores + input_node("m", TensorType(dtype, (s, t)))
    if kind > 1:
        mask = input_node("m", TensorType(BOOL, (b, 1, t)))
        hidden = constant(np.float32(-np.inf if kind == 2 else -7.5), dtype)
        scores = ops.select(mask, scores, hidden) if kind == 2 else ops.select(mask, hidden, scores)
    raised = ops.exp(scores - ops.reduce_max(scores, axes=(2,), keepdims=True))
    weights = raised / ops.reduce_sum(raised, axes=(2,), keepdims=True)
    if numbers:
        weights = ops.select(ops.is_nan(weights), constant(np.float32(0), dtype), weights)
    return ops.dot_general(weights, values, lhs_contract=(2,), rhs_contract=(0,) if turned else (1,),
                           lhs_batch=(0,), rhs_batch=at)


# --- heads that share their keys

k, m, q = variables("k m q")
_repeated = {n: ops.reshape(ops.broadcast_to(one).named(f"{n}_spread")).named(f"{n}_heads")
             for n, one in (("k", k), ("v", v))}


def _is_shared(match: Match) -> bool | str:
    """Whether keys and values are [..., heads, 1, length, features], repeated for a group of heads."""
    shapes = []
    for name in "kv":
        if name not in match.bound:
            continue  # the sums of an attention have no values
        one, spread, heads = (match.bound[f"{name}{which}"] for which in ("", "_spread", "_heads"))
        if not 4 <= one.ndim == spread.ndim == heads.ndim + 1 or one.shape[-3] != 1:
            return "the heads are not repeated one after another"
        *batch, shared, group, length, features = spread.shape
        whole = one.shape == (*batch, shared, 1, length, features)
        if not (whole and is_static(shared) and is_static(group)):
            return "more than the heads is repeated"
        if heads.shape != (*batch, shared * group, length, features):
            return "the reshape does more than put the heads together"
        shapes.append((shared, group))
    return shapes[0] == shapes[-1] or "keys and values are repeated differently"


def _shared(match: Match) -> Node:
    """Queries by groups of heads, and the keys once for each group."""
    shared, group = match.k_spread.shape[-4:-2]

    def grouped(node: Node) -> Node:
        if node.ndim < 3:
            return node
        *batch, heads, rows, columns = node.shape
        groups = (1, 1) if heads == 1 else (shared, group)
        return ops.reshape(node, shape=(*batch, *groups, rows, columns))
    keys = [match.bound[name] for name in "kv" if name in match.bound]
    masks = map(grouped, match.root.operands[1 + len(keys):])
    made = make_node(match.root.op, (grouped(match.q), *keys, *masks), match.root.attributes)
    return ops.reshape(made, shape=match.root.shape)


def _shared_example(rng: np.random.Generator, dtype: DType, masked: bool, sums: bool = False) -> Node:
    b, heads, group, s, t, d, e = (int(n) for n in rng.integers(1, 4, 7))

    def repeated(name: str, features: int) -> Node:
        one = input_node(name, TensorType(dtype, (b, heads, 1, t, features)))
        spread = ops.broadcast_to(one, shape=(b, heads, group, t, features))
        return ops.reshape(spread, shape=(b, heads * group, t, features))
    queries = input_node("q", TensorType(dtype, (b, heads * group, s, d)))
    shape = ((s, t), (b, 1, 1, t), (1, heads * group, s, 1))[int(rng.integers(3))]
    masks = [input_node("m", TensorType(BOOL, shape))] if masked else []
    if sums:
        return ops.attention_logsumexp(queries, repeated("k", d), *masks)
    return ops.attention(queries, repeated("k", d), repeated("v", e), *masks, unseen="zero")


RECOGNISE = (
    rule("shared_heads", ops.attention(q, _repeated["k"], _repeated["v"]), _shared, when=_is_shared,
         example=lambda rng, dtype: _shared_example(rng, dtype, False)),
    rule("shared_heads_masked", ops.attention(q, _repeated["k"], _repeated["v"], m), _shared, when=_is_shared,
         example=lambda rng, dtype: _shared_example(rng, dtype, True)),
    rule("shared_heads_of_sums", ops.attention_logsumexp(q, _repeated["k"]), _shared, when=_is_shared,
         example=lambda rng, dtype: _shared_example(rng, dtype, False, sums=True)),
    rule("shared_heads_of_sums_masked", ops.attention_logsumexp(q, _repeated["k"], m), _shared,
         when=_is_shared, example=lambda rng, dtype: _shared_example(rng, dtype, True, sums=True)),
    rule("attention", ops.dot_general(_weights, v), _build, when=_is_attention, numerics="default",
         relies_on="the sums may run in another order", example=_example),
    rule("attention_of_numbers", ops.dot_general(_numbers, v), _build, when=_is_attention, numerics="default",
         relies_on="the sums may run in another order",
         example=lambda rng, dtype: _example(rng, dtype, numbers=True)),
)
