"""Losses of which eager checks the targets or the probabilities: the formulas are torch's decompositions, the
checks those of its kernels.
"""

from __future__ import annotations

from planish.capture.torch.call import Call, broadcast, cast, number, reshaped, translates
from planish.ir import Node
from planish.ops.rules import ops, size_like
from planish.types import INT64

NONE, MEAN, SUM = 0, 1, 2  # reductions, as torch numbers them


@translates("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(
    call: Call, x: Node, target: Node, weight: Node | None, reduction: int, ignored: int
) -> tuple[Node, Node]:
    """Loss and total weight of log-probabilities x [N, C, ...] or [C] for classes [N, ...] or []."""
    channel, wide = min(x.ndim - 1, 1), x.dtype.accumulator
    target, zero = cast(target, INT64), number(0, INT64)
    counts = ops.ne(target, number(ignored, INT64))
    inside = ops.bitwise_and(ops.ge(target, zero), ops.lt(target, size_like(target, x.shape[channel], INT64)))
    message = f"Target is out of bounds of {x.shape[channel]} classes"
    call.check(ops.bitwise_or(ops.bitwise_not(counts), inside), "IndexError", message)
    chosen = ops.select(counts, target, zero)
    column = reshaped(chosen, (*target.shape[:channel], 1, *target.shape[channel:]))
    picked = reshaped(ops.take_along(cast(x, wide), column, axis=channel), target.shape)
    weights = number(1, wide) if weight is None else ops.take(cast(weight, wide), chosen, axis=0)
    weights = ops.select(counts, broadcast(weights, target.shape), number(0, wide))
    losses = ops.select(counts, ops.neg(picked) * weights, number(0, wide))
    if reduction == NONE and x.ndim > 1:
        return cast(losses, x.dtype), number(0, x.dtype)
    total, loss = _whole(weights), _whole(losses)
    return cast(loss / total if reduction == MEAN else loss, x.dtype), cast(total, x.dtype)


@translates("aten.binary_cross_entropy.default")
def binary_cross_entropy(call: Call, x: Node, target: Node, weight: Node | None, reduction: int) -> Node:
    """Of probabilities, logarithms not below -100."""
    wide = x.dtype.accumulator
    one, floor = number(1, wide), number(-100, wide)
    x, target = cast(x, wide), cast(target, wide)
    inside = ops.bitwise_and(ops.ge(x, number(0, wide)), ops.le(x, one))
    call.check(inside, "RuntimeError", "all elements of input should be between 0 and 1")
    off, on = ops.maximum(ops.log1p(ops.neg(x)), floor), ops.maximum(ops.log(x), floor)
    losses = (target - one) * off - target * on
    if weight is not None:
        losses = losses * cast(weight, wide)
    if reduction == NONE:
        return cast(losses, call.dtype)
    mean = ops.mean(losses, axes=tuple(range(x.ndim))) if x.ndim else losses
    return cast(mean if reduction == MEAN else _whole(losses), call.dtype)


def _whole(x: Node) -> Node:
    return ops.reduce_sum(x, axes=tuple(range(x.ndim))) if x.ndim else x
