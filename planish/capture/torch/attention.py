"""Scaled dot product attention as the CPU has it, and its gradient (Vaswani et al. 2017; Dao et al. 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import sqrt
from operator import add
from typing import Any

from planish.capture.torch.call import Call, broadcast, cast, number, reshaped, translates
from planish.capture.torch.movement import positions, sliced
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import BOOL, FLOAT32, Dim, is_static

LOGSUMEXP = 1  # which result
FEW = 4  # queries of which the kernel sums scores in another order than the products of the gradient


def _scale(call: Call, q: Node, scale: float | None) -> float:
    if scale is not None:
        return float(scale)
    if not is_static(q.shape[-1]):
        call.refuse("attention over features of symbolic size needs a scale")
    return 1 / sqrt(q.shape[-1])


def _group(q: Node, k: Node) -> int:
    """How many heads of queries share a head of keys (enable_gqa)."""
    if q.ndim < 3 or q.shape[-3] == k.shape[-3]:
        return 1
    heads, shared = q.shape[-3], k.shape[-3]
    assert is_static(heads) and is_static(shared)
    return heads // shared


def _grouped(x: Node, group: int) -> Node:
    """[..., heads, rows, columns], of queries or a mask, as [..., shared heads, group, rows, columns]."""
    if group == 1 or x.ndim < 3:
        return x
    *batch, heads, rows, columns = x.shape
    groups = (1, 1) if heads == 1 else (heads // group, group)
    return ops.reshape(x, shape=(*batch, *groups, rows, columns))


def _times(x: Node, y: Node, over: int, **more: Any) -> Node:
    """The product of x, by groups, with keys or values y, over x's last axis and y's axis `over`, counted
    from the end."""
    batch, along = tuple(range(y.ndim - 2)), ((x.ndim - 1,), (y.ndim + over,))
    return ops.dot_general(
        x, y, lhs_contract=along[0], rhs_contract=along[1], lhs_batch=batch, rhs_batch=batch, **more
    )


def _scores(
    call: Call, q: Node, k: Node, causal: bool, mask: Node | None, scale: float, first: int = 0
) -> Node:
    """scale q k^T + mask, in float32; q and mask by groups, from query `first` on."""
    wide = q.dtype.accumulator
    scores = _times(q, k, -1, alpha=scale, result=wide)
    hidden = number(float("-inf"), wide)
    if causal:
        row, column = (positions(call, scores.shape[-2:], axis) for axis in (0, 1))
        row = row + number(first, row.dtype) if first else row
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
    given, group = _scale(call, q, scale), _group(q, k)
    queries, masks = _grouped(q, group), [] if mask is None else [_grouped(mask, group)]
    is_apart = call.uses(LOGSUMEXP) and is_static(q.shape[-2]) and q.shape[-2] <= FEW
    if is_apart or (mask is not None and mask.dtype not in (BOOL, q.dtype)):
        shown = masks[0] if masks else None
        result, sums = _of_scores(_scores(call, queries, k, causal, shown, given), v)
    else:
        options: dict[str, Any] = {"scale": given, "causal": causal, "unseen": "zero"}
        keys, values = (x if group == 1 else reshaped(x, (*x.shape[:-2], 1, *x.shape[-2:])) for x in (k, v))
        result = ops.attention(queries, keys, values, *masks, **options)
        sums = broadcast(number(0, FLOAT32), queries.shape[:-1])
        if call.uses(LOGSUMEXP):
            sums = cast(ops.attention_logsumexp(queries, keys, *masks, **options), FLOAT32)
    return reshaped(result, (*q.shape[:-1], v.shape[-1])), reshaped(sums, q.shape[:-1])


def _of_scores(scores: Node, v: Node) -> tuple[Node, Node]:
    """softmax(scores) v, and log(sum(exp(scores))); a query that sees no key gives 0, and -inf."""
    last, wide = (scores.ndim - 1,), scores.dtype
    largest = ops.reduce_max(scores, axes=last, keepdims=True)
    blind = ops.eq(largest, number(float("-inf"), wide))
    e = ops.exp(scores - ops.select(blind, number(0, wide), largest))
    total = ops.reduce_sum(e, axes=last, keepdims=True)
    result = _times(cast(e / ops.select(blind, number(1, wide), total), v.dtype), v, -2)
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
    """With p the weights: dv = p^T g, ds = p (g v^T - sum(g out)), dq = scale ds k, dk = scale ds^T q. The
    queries that share a key are summed over. Causal queries go by blocks, each with the keys it sees."""
    if dropout:
        call.refuse("the fused attention has no dropout")
    group, wide, given = _group(q, k), q.dtype.accumulator, _scale(call, q, scale)
    shape, length = q.shape, k.shape[-2]
    g, q, out = (_grouped(x, group) for x in (g, q, out))
    masks = None if mask is None else _grouped(mask, group)
    sums = ops.reshape(cast(logsumexp, wide), shape=(*q.shape[:-1], 1))
    share = ops.reduce_sum(cast(g, wide) * cast(out, wide), axes=(g.ndim - 1,), keepdims=True)
    found = []
    for first, last, seen in _blocks(q.shape[-2], length, causal):
        rows = [_cut(x, -2, first, last) for x in (q, g, sums, share)]
        own = None if masks is None else _cut(_cut(masks, -2, first, last), -1, 0, seen)
        pair = [_cut(x, -2, 0, seen) for x in (k, v)]
        scores = _scores(call, rows[0], pair[0], causal, own, given, first)
        found.append(_gradients(scores, rows, pair, given))
    queries, keys, values = zip(*found)
    whole = queries[0] if len(queries) == 1 else ops.concat(*queries, axis=q.ndim - 2)
    dk, dv = (reduce(add, [_lengthened(x, length) for x in parts]) for parts in (keys, values))
    return reshaped(whole, shape), cast(dk, k.dtype), cast(dv, v.dtype)


def _gradients(
    scores: Node, rows: Sequence[Node], pair: Sequence[Node], scale: float
) -> tuple[Node, Node, Node]:
    """Those of queries, keys and values, of the last two in float32. `rows` are of the queries: q, the
    gradient of the result, the logarithms of the sums and the sums of the gradient times the result."""
    (q, g, sums, share), (k, v) = rows, pair
    wide, dtype = scores.dtype, q.dtype
    blind = ops.eq(sums, number(float("-inf"), wide))
    p = ops.select(blind, number(0, wide), ops.exp(scores - sums))
    ds = cast(p * (_times(g, v, -1, result=wide) - share), dtype)
    batch, along = tuple(range(k.ndim - 2)), tuple(range(k.ndim - 2, q.ndim - 1))
    over: dict[str, Any] = dict.fromkeys(("lhs_contract", "rhs_contract"), along)
    over |= dict.fromkeys(("lhs_batch", "rhs_batch"), batch)
    dv = ops.dot_general(cast(p, dtype), g, result=wide, **over)
    return _times(ds, k, -2, alpha=scale), ops.dot_general(ds, q, alpha=scale, result=wide, **over), dv


BLOCK, BLOCKS = 256, 8  # queries of a block, and how many blocks there are at most


def _blocks(queries: Dim, keys: Dim, causal: bool) -> list[tuple[int, Dim | None, Dim | None]]:
    """Blocks of queries: the first, the one after the last, and how many keys are seen (None: all). More than
    one where keys that a block does not see can be left out."""
    if not causal or not is_static(queries) or not is_static(keys) or queries <= BLOCK:
        return [(0, None, None)]
    size = max(BLOCK, -(-queries // BLOCKS))
    starts = range(0, queries, size)
    return [(first, min(first + size, queries), min(first + size, queries, keys)) for first in starts]


def _cut(x: Node, axis: int, first: int, last: Dim | None) -> Node:
    """x from `first` to `last` along an axis, counted from the end, unless it is the same all along."""
    axis += x.ndim
    return x if last is None or axis < 0 or x.shape[axis] == 1 else sliced(x, axis, first, last)


def _lengthened(x: Node, length: Dim) -> Node:
    """x with zeros for the keys that follow."""
    more, none = length - x.shape[-2], (0,) * x.ndim
    if more == 0:
        return x
    return ops.pad(x, number(0, x.dtype), low=none, high=(*none[2:], more, 0), interior=none)
