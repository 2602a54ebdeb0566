"""Scaled dot product attention as the CPU has it, and its gradient (Vaswani et al. 2017; Dao et al. 2022)."""

from __future__ import annotations

from math import sqrt

from planish.capture.torch.call import Call, broadcast, cast, number, translates
from planish.capture.torch.contractions import product
from planish.capture.torch.movement import positions
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import BOOL, FLOAT32, is_static

LOGSUMEXP = 1  # which result


def _scale(call: Call, q: Node, scale: float | None) -> float:
    if scale is not None:
        return float(scale)
    if not is_static(q.shape[-1]):
        call.refuse("attention over features of symbolic size needs a scale")
    return 1 / sqrt(q.shape[-1])


def _scores(call: Call, q: Node, k: Node, causal: bool, mask: Node | None, scale: float) -> Node:
    """scale q k^T + mask, in float32."""
    batch, last = tuple(range(q.ndim - 2)), (q.ndim - 1,)
    wide = q.dtype.accumulator
    scores = ops.dot_general(
        q, k, lhs_contract=last, rhs_contract=last, lhs_batch=batch, rhs_batch=batch, alpha=scale, result=wide
    )
    hidden = number(float("-inf"), wide)
    if causal:
        row, column = (positions(call, scores.shape[-2:], axis) for axis in (0, 1))
        scores = ops.select(ops.ge(row, column), scores, hidden)
    if mask is not None:
        scores = ops.select(mask, scores, hidden) if mask.dtype is BOOL else scores + cast(mask, wide)
    return scores


@translates("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    call: Call,
    q: Node,
    k: Node,
    v: Node,
    dropout: float,
    causal: bool,
    mask: Node | None,
    scale: float | None,
) -> tuple[Node, Node]:
    """The result, and the logarithm of the sum of exponentials per query, which training keeps."""
    if dropout:
        call.refuse("the fused attention has no dropout")  # torch takes attention with dropout apart
    given = _scale(call, q, scale)
    if mask is not None and mask.dtype not in (BOOL, q.dtype):
        return _of_scores(_scores(call, q, k, causal, mask, given), v)
    masks = [] if mask is None else [mask]
    result = ops.attention(q, k, v, *masks, scale=given, causal=causal, unseen="zero")
    if not call.uses(LOGSUMEXP):
        return result, broadcast(number(0, FLOAT32), q.shape[:-1])
    sums = ops.attention_logsumexp(q, k, *masks, scale=given, causal=causal, unseen="zero")
    return result, cast(sums, FLOAT32)


def _of_scores(scores: Node, v: Node) -> tuple[Node, Node]:
    """softmax(scores) v, and log(sum(exp(scores))); a query that sees no key gives 0, and -inf."""
    last, wide = (scores.ndim - 1,), scores.dtype
    largest = ops.reduce_max(scores, axes=last, keepdims=True)
    blind = ops.eq(largest, number(float("-inf"), wide))
    e = ops.exp(scores - ops.select(blind, number(0, wide), largest))
    total = ops.reduce_sum(e, axes=last, keepdims=True)
    result = product(cast(e / ops.select(blind, number(1, wide), total), v.dtype), v)
    logsumexp = ops.reshape(largest + ops.log(total), shape=scores.shape[:-1])
    return result, cast(logsumexp, FLOAT32)


@translates("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    call: Call,
    g: Node,
    q: Node,
    k: Node,
    v: Node,
    out: Node,
    logsumexp: Node,
    dropout: float,
    causal: bool,
    mask: Node | None,
    scale: float | None,
) -> tuple[Node, ...]:
    """With p the weights: dv = p^T g, ds = p (g v^T - sum(g out)), dq = scale ds k, dk = scale ds^T q."""
    if dropout:
        call.refuse("the fused attention has no dropout")
    given, wide, dtype = _scale(call, q, scale), q.dtype.accumulator, q.dtype
    batch, last, row = tuple(range(q.ndim - 2)), (q.ndim - 1,), (q.ndim - 2,)
    scores = _scores(call, q, k, causal, mask, given)
    column = ops.reshape(cast(logsumexp, wide), shape=(*logsumexp.shape, 1))
    blind = ops.eq(column, number(float("-inf"), wide))
    p = ops.select(blind, number(0, wide), ops.exp(scores - column))
    share = ops.reduce_sum(cast(g, wide) * cast(out, wide), axes=last, keepdims=True)
    gp = ops.dot_general(
        g, v, lhs_contract=last, rhs_contract=last, lhs_batch=batch, rhs_batch=batch, result=wide
    )
    ds = cast(p * (gp - share), dtype)
    dv = ops.dot_general(
        cast(p, dtype), g, lhs_contract=row, rhs_contract=row, lhs_batch=batch, rhs_batch=batch
    )
    dq = ops.dot_general(
        ds, k, lhs_contract=last, rhs_contract=row, lhs_batch=batch, rhs_batch=batch, alpha=given
    )
    dk = ops.dot_general(
        ds, q, lhs_contract=row, rhs_contract=row, lhs_batch=batch, rhs_batch=batch, alpha=given
    )
    return dq, dk, dv
