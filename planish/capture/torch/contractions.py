"""ATen matrix products. float16 and bfloat16 are summed in float32 and rounded once, with what is added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planish.capture.torch.call import Call, as_node, broadcast, cast, reshaped, translates
from planish.ir import Node
from planish.ops.rules import ops


def product(a: Node, b: Node, alpha: float = 1.0, result: Any = None) -> Node:
    """a [..., M, K] times b [..., K, N], the axes before them the same in both."""
    batch = tuple(range(a.ndim - 2))
    return ops.dot_general(
        a,
        b,
        lhs_contract=(a.ndim - 1,),
        rhs_contract=(b.ndim - 2,),
        lhs_batch=batch,
        rhs_batch=batch,
        alpha=alpha,
        result=result,
    )


@translates("aten.mm.default", "aten.bmm.default")
def mm(call: Call, a: Node, b: Node) -> Node:
    return product(a, b)


@translates("aten.mm.dtype", "aten.bmm.dtype")
def mm_wide(call: Call, a: Node, b: Node, dtype: Any) -> Node:
    return product(a, b, result=dtype)


@translates("aten.addmm.default", "aten.baddbmm.default")
def addmm(call: Call, bias: Node, a: Node, b: Node, beta: Any, alpha: Any) -> Node:
    """beta bias + alpha a b; beta 0 leaves bias out, NaN and all."""
    if not a.dtype.is_float:
        total = product(a, b) * as_node(alpha, a.dtype) if alpha != 1 else product(a, b)
        return total if beta == 0 else total + bias * as_node(beta, bias.dtype)
    wide = call.dtype.accumulator
    total = product(a, b, float(alpha), wide)
    if beta != 0:
        added = cast(bias, wide)
        total = total + (added if beta == 1 else added * float(beta))
    return cast(broadcast(total, call.shape), call.dtype)


@translates("aten.mv.default", "aten.matmul.default", "aten.dot.default")
def matmul(call: Call, a: Node, b: Node) -> Node:
    return ops.matmul(a, b)


@translates("aten.linear.default")
def linear(call: Call, x: Node, weight: Node, bias: Node | None) -> Node:
    """x [..., K] times weight [N, K] transposed."""
    wide = call.dtype.accumulator
    total = ops.dot_general(
        x, weight, lhs_contract=(x.ndim - 1,), rhs_contract=(weight.ndim - 1,), result=wide
    )
    return cast(total if bias is None else total + cast(bias, wide), call.dtype)


@translates("aten.addbmm.default")
def addbmm(call: Call, bias: Node, a: Node, b: Node, beta: Any, alpha: Any) -> Node:
    """beta bias + alpha times the sum of all batches' products: one over batch and inner axis."""
    wide = call.dtype.accumulator
    total = ops.dot_general(cast(a, wide), cast(b, wide), lhs_contract=(0, 2), rhs_contract=(0, 1))
    total = total if alpha == 1 else total * as_node(alpha, wide)
    if beta != 0:
        total = total + (cast(bias, wide) if beta == 1 else cast(bias, wide) * as_node(beta, wide))
    return cast(broadcast(total, call.shape), call.dtype)


@translates("aten._trilinear.default")
def trilinear(
    call: Call, a: Node, b: Node, c: Node, new_a: Sequence[int], new_b: Sequence[int], new_c: Sequence[int],
    summed: Sequence[int], unrolled: int,
) -> Node:  # fmt: skip
    """The product of three tensors, each with axes of size 1 put in, summed over axes."""
    rank = a.ndim + len(new_a)
    product = None
    for x, new in ((a, new_a), (b, new_b), (c, new_c)):
        given = iter(x.shape)
        shape = tuple(1 if i in new else next(given) for i in range(rank))
        wide = reshaped(cast(x, x.dtype.accumulator), shape)
        product = wide if product is None else product * wide
    assert product is not None
    return cast(ops.reduce_sum(product, axes=tuple(summed)) if summed else product, call.dtype)
