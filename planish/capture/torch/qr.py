"""ATen's QR factorizations of small matrices, by Householder's reflections.

As in linalg.py: one loop over the columns, in float64, for matrices of up to `linalg.MOST` rows. G. H. Golub,
C. F. Van Loan, Matrix Computations, 5.2.1, with the signs that LAPACK chooses.
"""

from __future__ import annotations

import numpy as np

from planish.capture.torch.call import Call, broadcast, cast, number, reshaped
from planish.capture.torch.linalg import (
    column_at,
    column_numbers,
    on_matrix,
    rounded,
    row_at,
    row_numbers,
    turned,
    upper_part,
    wide_matrix,
    zeros,
)
from planish.capture.torch.loops import repeat
from planish.ir import Node, constant
from planish.ops.rules import known, ops
from planish.types import FLOAT64


def reflected(a: Node) -> tuple[Node, Node]:
    """R above the diagonal, the reflections' vectors below it; and their factors [..., min(m, n)]."""
    m, n = known(a.shape[-2:])
    row, column, batch = row_numbers(m), column_numbers(n), a.shape[:-2]
    places = constant(np.arange(min(m, n)))

    def step(k: Node, a: Node, taus: Node) -> tuple[Node, ...]:
        line = column_at(a, k)
        alpha = row_at(line, k)
        tail = ops.select(ops.gt(row, k), line, number(0, a.dtype))
        rest = ops.reduce_sum(tail * tail, axes=(a.ndim - 2,), keepdims=True)
        none = ops.eq(rest, 0)
        beta = -ops.copysign(ops.sqrt(alpha * alpha + rest), alpha)
        beta = ops.select(none, alpha, beta)
        tau = ops.select(none, number(0, a.dtype), (beta - alpha) / beta)
        vector = ops.select(none, number(0, a.dtype), tail / (alpha - beta))
        vector = ops.select(ops.eq(row, k), number(1, a.dtype), vector)
        right = ops.select(ops.gt(column, k), a - tau * vector * ops.matmul(turned(vector), a), a)
        own = ops.select(ops.eq(row, k), beta, ops.select(ops.gt(row, k), vector, line))
        taus = ops.select(ops.eq(places, k), reshaped(tau, (*batch, 1)), taus)
        return ops.select(ops.eq(column, k), own, right), taus

    result = repeat(min(m, n), step, (a, zeros((*batch, min(m, n)), FLOAT64)))
    return result[0], result[1]


def reflections(vectors: Node, taus: Node, start: Node, forward: bool = False) -> Node:
    """H_1 H_2 ... H_k start, where H_i = I - tau_i v_i v_i^T; `forward`: H_k ... H_1 start."""
    row, (count,) = row_numbers(vectors.shape[-2]), known(taus.shape[-1:])

    def step(k: Node, q: Node, vectors: Node, taus: Node) -> tuple[Node, ...]:
        i = k if forward else count - 1 - k
        v = ops.select(ops.gt(row, i), column_at(vectors, i), number(0, q.dtype))
        v = ops.select(ops.eq(row, i), number(1, q.dtype), v)
        tau = reshaped(column_at(taus, i), (*taus.shape[:-1], 1, 1))
        return (q - tau * v * ops.matmul(turned(v), q),)

    return repeat(count, step, (start,), (vectors, taus))[0]


@on_matrix("aten.ormqr.default")
def ormqr(
    call: Call, vectors: Node, taus: Node, other: Node, left: bool, transpose: bool
) -> Node:
    """Q other, or other Q; with `transpose` by Q's transpose."""
    wide, start = wide_matrix(call, vectors), cast(other, FLOAT64)
    start = start if left else turned(start)
    result = reflections(wide, cast(taus, FLOAT64), start, forward=transpose == left)
    return cast(result if left else turned(result), call.dtype)


@on_matrix("aten.geqrf.default")
def geqrf(call: Call, a: Node) -> tuple[Node, ...]:
    return rounded(call, *reflected(wide_matrix(call, a)))


@on_matrix("aten.linalg_householder_product.default")
def householder_product(call: Call, vectors: Node, taus: Node) -> Node:
    wide = wide_matrix(call, vectors)
    m, n = known(wide.shape[-2:])
    start = broadcast(constant(np.eye(m, n)), wide.shape)
    return cast(reflections(wide, cast(taus, FLOAT64), start), call.dtype)


@on_matrix("aten.linalg_qr.default")
def qr(call: Call, a: Node, mode: str) -> tuple[Node, ...]:
    if mode == "r":
        call.refuse("only R")
    wide = wide_matrix(call, a)
    m, n = known(wide.shape[-2:])
    k = m if mode == "complete" else min(m, n)
    packed, taus = reflected(wide)
    q = reflections(packed, taus, broadcast(constant(np.eye(m, k)), (*wide.shape[:-2], m, k)))
    rank = wide.ndim
    high = ops.slice(packed, starts=(0,) * rank, stops=(*wide.shape[:-2], k, n), steps=(1,) * rank)
    return rounded(call, q, upper_part(high))
