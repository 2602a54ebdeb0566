"""ATen's factorizations and solvers of small matrices: LU, Cholesky and what is made of them.

One loop over the columns, of whole-matrix steps, in float64 and rounded once: as near as LAPACK and nearer.
Each step touches the whole matrix, so this is for matrices of up to `MOST` rows, of which there are often
many; larger ones, and those of symbolic sizes, are LAPACK's, as host ops. Algorithms are those of G. H. Golub
and C. F. Van Loan, Matrix Computations: 3.4.1 (LU with partial pivoting), 4.2.2 (Cholesky by outer products),
3.1.1 (substitution). QR is in qr.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planish.capture.torch.call import (
    Call,
    Translation,
    broadcast,
    cast,
    number,
    reshaped,
    translates,
    transposed,
)
from planish.capture.torch.loops import repeat
from planish.ir import Node, constant
from planish.ops.rules import known, ops
from planish.types import FLOAT64, INT64, broadcast_shapes, is_static

MOST = 32


def wide_matrix(call: Call, a: Node, most: int | None = MOST) -> Node:
    """A matrix in float64. Refuses what LAPACK does better."""
    if most is not None and max(_sizes(call, a)) > most:
        call.refuse(f"matrices of more than {MOST} rows are LAPACK's")
    return cast(a, FLOAT64)


def _sizes(call: Call, a: Node) -> tuple[int, int]:
    if not all(map(is_static, a.shape)):
        call.refuse("matrices of symbolic size are LAPACK's")
    m, n = a.shape[-2:]
    return m, n  # type: ignore[return-value]


def on_matrix(
    overload: str, place: int = 0, empty: Sequence[int] = ()
) -> Callable[[Translation], Translation]:
    """Registers a translation whose operand at `place` is the matrix. Of one without rows or columns the
    results are empty too, or `empty`."""

    def register(function: Translation) -> Translation:
        def translation(call: Call, *arguments: Any) -> Any:
            a = arguments[place]
            if 0 not in _sizes(call, a):
                return function(call, *arguments)
            if any(t is not None and len(t.shape) == a.ndim and 0 not in t.shape for t in call.types):
                call.refuse("an empty matrix of which something is left")
            fills = [*empty, *[0] * len(call.types)]
            pairs = ((v, t) for v, t in zip(fills, call.types) if t is not None)
            found = [broadcast(number(v, t.dtype), t.shape) for v, t in pairs]
            return tuple(found) if len(found) > 1 else found[0]

        return translates(overload)(translation)

    return register


def row_numbers(m: Any) -> Node:
    return constant(np.arange(m).reshape(m, 1))


def column_numbers(n: Any) -> Node:
    return constant(np.arange(n).reshape(1, n))


def row_at(a: Node, k: Node) -> Node:
    """Row k, [..., 1, n]."""
    return reshaped(ops.take(a, k, axis=a.ndim - 2), (*a.shape[:-2], 1, a.shape[-1]))


def column_at(a: Node, k: Node) -> Node:
    """Column k, [..., m, 1]."""
    return reshaped(ops.take(a, k, axis=a.ndim - 1), (*a.shape[:-1], 1))


def turned(a: Node) -> Node:
    return transposed(a, (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


def _identity(n: Any, batch: Sequence[Any]) -> Node:
    return broadcast(constant(np.eye(n)), (*batch, n, n))


def zeros(shape: Sequence[Any], dtype: Any = INT64) -> Node:
    return broadcast(number(0, dtype), shape)


def _lower(a: Node, unit: bool = False) -> Node:
    row, column = row_numbers(a.shape[-2]), column_numbers(a.shape[-1])
    kept = ops.select(ops.ge(row, column), a, number(0, a.dtype))
    return ops.select(ops.eq(row, column), number(1, a.dtype), kept) if unit else kept


def upper_part(a: Node) -> Node:
    return ops.select(ops.le(row_numbers(a.shape[-2]), column_numbers(a.shape[-1])), a, number(0, a.dtype))


# --- LU


def factored(a: Node, pivoting: bool = True) -> tuple[Node, Node, Node]:
    """(L below and U above the diagonal, the row that came to each place counted from 1, the first place of a
    zero pivot counted from 1, or 0)."""
    m, n = known(a.shape[-2:])
    row, column, batch = row_numbers(m), column_numbers(n), a.shape[:-2]
    places = constant(np.arange(min(m, n)))

    def step(k: Node, a: Node, pivots: Node, info: Node) -> tuple[Node, ...]:
        size = ops.select(ops.ge(row, k), ops.abs(column_at(a, k)), number(-1, a.dtype))
        at = ops.argmax(size, axis=a.ndim - 2, keepdims=True) if pivoting else broadcast(k, (*batch, 1, 1))
        here, there = row_at(a, k), ops.take_along(a, broadcast(at, (*batch, 1, n)), axis=a.ndim - 2)
        a = ops.select(ops.eq(row, k), there, ops.select(ops.eq(row, at), here, a))
        pivot = column_at(there, k)
        scaled = ops.bitwise_and(ops.gt(row, k), ops.ne(pivot, 0))
        factor = ops.select(scaled, column_at(a, k) / pivot, number(0, a.dtype))
        below = ops.select(ops.gt(column, k), a - factor * there, a)
        a = ops.select(ops.bitwise_and(ops.eq(column, k), scaled), factor, below)
        at, pivot = reshaped(at, (*batch, 1)), reshaped(pivot, batch)
        pivots = ops.select(ops.eq(places, k), at + 1, pivots)
        first = ops.bitwise_and(ops.eq(pivot, 0), ops.eq(info, 0))
        return a, pivots, ops.select(first, k + 1, info)

    state = (a, zeros((*batch, min(m, n))), zeros(batch))
    result = repeat(min(m, n), step, state)
    return result[0], result[1], result[2]


def order_of_pivots(pivots: Node, m: Any) -> Node:
    """The rows in their new order, [..., m]."""
    batch, places = pivots.shape[:-1], constant(np.arange(m))

    def step(k: Node, order: Node, pivots: Node) -> tuple[Node, ...]:
        at = column_at(pivots, k) - 1
        here, there = column_at(order, k), ops.take_along(order, at, axis=order.ndim - 1)
        moved = ops.select(ops.eq(places, at), here, order)
        return (ops.select(ops.eq(places, k), there, moved),)

    start = broadcast(constant(np.arange(m)), (*batch, m))
    return repeat(known(pivots.shape[-1:])[0], step, (start,), (cast(pivots, INT64),))[0]


def substituted(a: Node, b: Node, lower: bool, unit: bool = False) -> Node:
    """The solution x of a x = b for a triangle a, [..., n, n] and [..., n, k]."""
    (n,) = known(a.shape[-1:])
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b, row = broadcast(a, (*batch, n, n)), broadcast(b, (*batch, *b.shape[-2:])), row_numbers(n)

    def step(k: Node, b: Node, a: Node) -> tuple[Node, ...]:
        i = k if lower else n - 1 - k
        x, column = row_at(b, i), column_at(a, i)
        x = x if unit else x / row_at(column, i)
        rest = ops.gt(row, i) if lower else ops.lt(row, i)
        return (ops.select(ops.eq(row, i), x, ops.select(rest, b - column * x, b)),)

    return repeat(n, step, (b,), (a,))[0]


def solved(lu: Node, order: Node, b: Node) -> Node:
    """The solution of the system that was factored."""
    batch = broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    b = broadcast(b, (*batch, *b.shape[-2:]))
    at = broadcast(reshaped(order, (*order.shape, 1)), b.shape)
    return substituted(lu, substituted(lu, ops.take_along(b, at, axis=b.ndim - 2), True, True), False)


def solved_turned(lu: Node, order: Node, b: Node) -> Node:
    """The solution of the transposed system."""
    x = substituted(turned(lu), substituted(turned(lu), b, True), False, True)
    back = broadcast(reshaped(ops.argsort(order, axis=order.ndim - 1), (*order.shape, 1)), x.shape)
    return ops.take_along(x, back, axis=x.ndim - 2)


def rounded(call: Call, *results: Node) -> tuple[Node, ...]:
    """In the dtypes and shapes torch has worked out."""
    pairs = zip(results, call.types, strict=True)
    return tuple(cast(broadcast(r, t.shape), t.dtype) for r, t in pairs if t is not None)


def _vector(x: Node, is_vector: bool) -> Node:
    return reshaped(x, (*x.shape, 1)) if is_vector else x


def _checked(call: Call, info: Node, check: bool, what: str) -> None:
    if check:
        call.check(ops.eq(info, 0), "RuntimeError", f"{call.overload}: {what}")


@on_matrix("aten.linalg_lu_factor_ex.default")
def lu_factor(call: Call, a: Node, pivot: bool, check: bool) -> tuple[Node, ...]:
    lu, pivots, info = factored(wide_matrix(call, a), pivot)
    _checked(call, info, check, "a pivot is zero")
    return rounded(call, lu, pivots, info)


@on_matrix("aten.linalg_lu.default")
def lu(call: Call, a: Node, pivot: bool) -> tuple[Node, ...]:
    lu, pivots, _ = factored(wide_matrix(call, a), pivot)
    if not pivot:
        _, lower, upper = _unpacked(lu, pivots)
        return zeros(call.shape, call.dtype), *(cast(x, call.dtype) for x in (lower, upper))
    return rounded(call, *_unpacked(lu, pivots))


@on_matrix("aten.lu_unpack.default")
def lu_unpack(call: Call, lu: Node, pivots: Node, data: bool, order: bool) -> tuple[Node, ...]:
    if not (data and order):
        call.refuse("a part of the factors")
    return rounded(call, *_unpacked(wide_matrix(call, lu), pivots))


def _unpacked(lu: Node, pivots: Node) -> tuple[Node, Node, Node]:
    m, n = known(lu.shape[-2:])
    order = order_of_pivots(pivots, m)
    permutation = ops.eq(row_numbers(m), reshaped(order, (*order.shape[:-1], 1, m)))
    k, rank = min(m, n), lu.ndim
    low = ops.slice(lu, starts=(0,) * rank, stops=(*lu.shape[:-1], k), steps=(1,) * rank)
    high = ops.slice(lu, starts=(0,) * rank, stops=(*lu.shape[:-2], k, n), steps=(1,) * rank)
    return cast(permutation, lu.dtype), _lower(low, unit=True), upper_part(high)


@on_matrix("aten.linalg_lu_solve.default")
def lu_solve(call: Call, lu: Node, pivots: Node, b: Node, left: bool, adjoint: bool) -> Node:
    a, right = wide_matrix(call, lu), cast(b, FLOAT64)
    order = order_of_pivots(pivots, a.shape[-1])
    solve = solved_turned if left == adjoint else solved
    x = solve(a, order, right if left else turned(right))
    return cast(x if left else turned(x), call.dtype)


@on_matrix("aten._linalg_solve_ex.default")
def solve(call: Call, a: Node, b: Node, left: bool, check: bool) -> tuple[Node, ...]:
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    right = _vector(cast(b, FLOAT64), is_vector)
    wide = wide_matrix(call, a)
    lu, pivots, info = factored(wide)
    _checked(call, info, check, "the matrix is singular")
    order = order_of_pivots(pivots, wide.shape[-1])
    x = solved(lu, order, right) if left else turned(solved_turned(lu, order, turned(right)))
    return rounded(call, reshaped(x, call.shape), lu, pivots, info)


@on_matrix("aten.linalg_inv_ex.default")
def inverse(call: Call, a: Node, check: bool) -> tuple[Node, ...]:
    wide = wide_matrix(call, a)
    lu, pivots, info = factored(wide)
    _checked(call, info, check, "the matrix is singular")
    n = wide.shape[-1]
    x = solved(lu, order_of_pivots(pivots, n), _identity(n, wide.shape[:-2]))
    return rounded(call, x, info)


def _diagonal(a: Node) -> Node:
    axis = a.ndim - 1
    kept = ops.select(ops.eq(row_numbers(a.shape[-2]), column_numbers(a.shape[-1])), a, number(0, a.dtype))
    return ops.reduce_sum(kept, axes=(axis,))


def _factored_for_determinant(call: Call, a: Node) -> tuple[Node, Node]:
    """The factors of the transpose where the matrix lies row by row in memory, as torch has them: its
    backward pass goes by that. A host op would have them so for every matrix."""
    by_rows = call.memory_order(0) == tuple(range(a.ndim))
    wide = wide_matrix(call, a, MOST if by_rows else None)
    lu, pivots, _ = factored(turned(wide) if by_rows else wide)
    return lu, pivots


def _determinant_parts(pivots: Node, lu: Node) -> tuple[Node, Node]:
    """(-1 for an odd number of exchanges, U's diagonal)."""
    places = constant(np.arange(*known((1, lu.shape[-1] + 1))))
    exchanged = cast(ops.ne(cast(pivots, INT64), places), INT64)
    count = ops.reduce_sum(exchanged, axes=(pivots.ndim - 1,))
    return cast(1 - 2 * ops.rem(count, number(2, INT64)), FLOAT64), _diagonal(lu)


@on_matrix("aten._linalg_det.default", empty=(1,))
def determinant(call: Call, a: Node) -> tuple[Node, ...]:
    lu, pivots = _factored_for_determinant(call, a)
    sign, diagonal = _determinant_parts(pivots, lu)
    result = sign * ops.reduce_prod(diagonal, axes=(diagonal.ndim - 1,))
    return rounded(call, result, lu, pivots)


@on_matrix("aten._linalg_slogdet.default", empty=(1,))
def log_determinant(call: Call, a: Node) -> tuple[Node, ...]:
    lu, pivots = _factored_for_determinant(call, a)
    sign, diagonal = _determinant_parts(pivots, lu)
    axes = (diagonal.ndim - 1,)
    signs = cast(ops.gt(diagonal, 0), FLOAT64) - cast(ops.lt(diagonal, 0), FLOAT64)
    sign = sign * ops.reduce_prod(signs, axes=axes)
    return rounded(call, sign, ops.reduce_sum(ops.log(ops.abs(diagonal)), axes=axes), lu, pivots)


# --- triangles


@on_matrix("aten.linalg_solve_triangular.default")
def solve_triangular(call: Call, a: Node, b: Node, upper: bool, left: bool, unit: bool) -> Node:
    wide, right = wide_matrix(call, a), cast(b, FLOAT64)
    if left:
        return cast(substituted(wide, right, not upper, unit), call.dtype)
    return cast(turned(substituted(turned(wide), turned(right), upper, unit)), call.dtype)


@on_matrix("aten.triangular_solve.default", place=1)
def triangular_solve(
    call: Call, b: Node, a: Node, upper: bool, transpose: bool, unit: bool
) -> tuple[Node, ...]:
    wide = wide_matrix(call, a)
    used = turned(wide) if transpose else wide
    return rounded(call, substituted(used, cast(b, FLOAT64), upper == transpose, unit), wide)


# --- Cholesky


def cholesky_factor(a: Node) -> tuple[Node, Node]:
    """(L, the first place without a positive pivot counted from 1, or 0); reads the lower triangle."""
    n, batch = known(a.shape[-1:])[0], a.shape[:-2]
    row, column = row_numbers(n), column_numbers(n)

    def step(k: Node, a: Node, info: Node) -> tuple[Node, ...]:
        line = column_at(a, k)
        pivot = row_at(line, k)
        good = ops.gt(pivot, 0)
        part = ops.select(ops.ge(row, k), line / ops.sqrt(pivot), number(0, a.dtype))
        rest = ops.bitwise_and(ops.gt(row, k), ops.gt(column, k))
        a = ops.select(rest, a - part * turned(part), ops.select(ops.eq(column, k), part, a))
        bad = ops.bitwise_and(ops.eq(info, 0), ops.logical_not(reshaped(good, batch)))
        return a, ops.select(bad, k + 1, info)

    result = repeat(n, step, (a, zeros(batch)))
    return _lower(result[0]), result[1]


@on_matrix("aten.linalg_cholesky_ex.default")
def cholesky_with_info(call: Call, a: Node, upper: bool, check: bool) -> tuple[Node, ...]:
    wide = wide_matrix(call, a)
    factor, info = cholesky_factor(turned(wide) if upper else wide)
    _checked(call, info, check, "the matrix is not positive definite")
    return rounded(call, turned(factor) if upper else factor, info)


@on_matrix("aten.cholesky.default")
def cholesky(call: Call, a: Node, upper: bool) -> Node:
    wide = wide_matrix(call, a)
    factor, info = cholesky_factor(turned(wide) if upper else wide)
    _checked(call, info, True, "the matrix is not positive definite")
    return cast(turned(factor) if upper else factor, call.dtype)


@on_matrix("aten.cholesky_solve.default", place=1)
def cholesky_solve(call: Call, b: Node, factor: Node, upper: bool) -> Node:
    low = wide_matrix(call, turned(factor) if upper else factor)
    return cast(substituted(turned(low), substituted(low, cast(b, FLOAT64), True), False), call.dtype)


@on_matrix("aten.cholesky_inverse.default")
def cholesky_inverse(call: Call, factor: Node, upper: bool) -> Node:
    low = wide_matrix(call, turned(factor) if upper else factor)
    identity = _identity(low.shape[-1], low.shape[:-2])
    return cast(substituted(turned(low), substituted(low, identity, True), False), call.dtype)
