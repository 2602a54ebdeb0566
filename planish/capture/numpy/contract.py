"""Products over axes: matmul, dot, tensordot, inner, outer, vdot, einsum... all lowered to `dot_general`."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from planish.capture.numpy.reduce import finish
from planish.capture.numpy.registry import implements
from planish.capture.numpy.shape import one_axis, reshape, reshape_node
from planish.capture.numpy.tracer import Tracer, as_tracer, cast, common_dtype, emit, unsupported
from planish.capture.numpy.ufunc_table import UFUNCS, widened
from planish.capture.numpy.ufuncs import call_ufunc
from planish.ir import Node

Axes = tuple[int, ...]


def contract(x: Node, y: Node, over: tuple[Axes, Axes], batch: tuple[Axes, Axes] = ((), ())) -> Node:
    """Sum of products over `over`; result axes: batch, then what is left of x, then of y."""
    for i, j in zip(over[0] + batch[0], over[1] + batch[1]):
        if x.shape[i] != y.shape[j]:
            raise ValueError(
                f"shapes {x.shape} and {y.shape} not aligned: {x.shape[i]} (dim {i}) != {y.shape[j]} (dim "
                f"{j})"
            )
    return widened(
        lambda a, b: emit(
            "dot_general",
            a,
            b,
            lhs_contract=over[0],
            rhs_contract=over[1],
            lhs_batch=batch[0],
            rhs_batch=batch[1],
        ),
        x,
        y,
    )


def _pair(a: Any, b: Any) -> tuple[Tracer, Tracer, Node, Node]:
    x, y = as_tracer(a), as_tracer(b)
    dtype = np.result_type(x.dtype, y.dtype)  # Python numbers are not weak in these functions
    return x, y, cast(x, dtype), cast(y, dtype)


@implements(np.dot, method=True)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    x, y, left, right = _pair(a, b)
    if x.ndim == 0 or y.ndim == 0:
        return finish(emit("mul", left, right), out)
    return finish(contract(left, right, ((x.ndim - 1,), (max(y.ndim - 2, 0),))), out)


@implements(np.inner)
def inner(a: Any, b: Any, /) -> Any:
    x, y, left, right = _pair(a, b)
    if x.ndim == 0 or y.ndim == 0:
        return finish(emit("mul", left, right))
    return finish(contract(left, right, ((x.ndim - 1,), (y.ndim - 1,))))


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    return call_ufunc(np.multiply, reshape(a, (-1, 1)), reshape(b, (1, -1)), out=out)


@implements(np.vdot)
def vdot(a: Any, b: Any, /) -> Any:
    return dot(reshape(a, (-1,)), reshape(b, (-1,)))


@implements(np.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    x, y, left, right = _pair(a, b)
    if isinstance(axes, (int, np.integer)):
        first, second = list(range(x.ndim - axes, x.ndim)), list(range(axes))
    else:
        first, second = (
            [operator.index(i) for i in (s if isinstance(s, (tuple, list)) else [s])] for s in axes
        )
    if len(first) != len(second):
        raise ValueError("shape-mismatch for sum")
    over = tuple(one_axis(i, x.ndim) for i in first), tuple(one_axis(i, y.ndim) for i in second)
    if any(x.shape[i] != y.shape[j] for i, j in zip(*over)):
        raise ValueError("shape-mismatch for sum")
    return finish(contract(left, right, over))


@implements(np.kron)
def kron(a: Any, b: Any) -> Any:
    x, y = as_tracer(a), as_tracer(b)
    rank = max(x.ndim, y.ndim)
    one, two = (1,) * (rank - x.ndim) + x.shape, (1,) * (rank - y.ndim) + y.shape
    wide = call_ufunc(
        np.multiply,
        reshape(x, tuple(n for s in one for n in (s, 1))),
        reshape(y, tuple(n for s in two for n in (1, s))),
    )
    return reshape(wide, tuple(s * t for s, t in zip(one, two)))


@implements(np.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = np.moveaxis(as_tracer(a), axisa, -1), np.moveaxis(as_tracer(b), axisb, -1)  # type: ignore[type-var]
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise unsupported("np.cross of vectors that have not 3 elements")
    parts = [x[..., i] * y[..., j] - x[..., j] * y[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]  # type: ignore[index]
    return np.moveaxis(np.stack(parts, -1), -1, axisc)


def vecdot(x: Node, y: Node) -> Node:
    """Products summed over the last axis, the others broadcast."""
    product = emit("mul", x, y)
    op = "reduce_any" if product.dtype.kind == "bool" else "reduce_sum"
    return emit(op, product, axes=(len(product.shape) - 1,), keepdims=False)


def _matvec(x: Node, y: Node) -> Node:
    return _drop(UFUNCS[np.matmul](x, reshape_node(y, (*y.shape, 1))), -1)  # type: ignore[operator]


def _vecmat(x: Node, y: Node) -> Node:
    return _drop(UFUNCS[np.matmul](reshape_node(x, (*x.shape[:-1], 1, x.shape[-1])), y), -2)  # type: ignore[operator]


def _drop(node: Node, axis: int) -> Node:
    shape = list(node.shape)
    del shape[axis]
    return reshape_node(node, shape)


for _name, _rule in {"vecdot": vecdot, "matvec": _matvec, "vecmat": _vecmat}.items():
    if hasattr(np, _name):
        UFUNCS[getattr(np, _name)] = _rule
implements(np.linalg.matmul if hasattr(np.linalg, "matmul") else np.matmul)(
    lambda x1, x2, /: call_ufunc(np.matmul, x1, x2)
)


@implements(np.linalg.multi_dot)
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    result = as_tracer(arrays[0])
    for array in arrays[1:-1]:
        result = dot(result, array)
    return dot(result, arrays[-1], out)


@implements(np.linalg.matrix_power)
def matrix_power(a: Any, n: int) -> Any:
    x, n = as_tracer(a), operator.index(n)
    if n <= 0:
        if n < 0:
            raise unsupported("np.linalg.matrix_power with a negative power")
        return as_tracer(np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), x.shape)).copy()
    half = matrix_power(x, n // 2) if n > 1 else None
    if half is None:
        return x
    square = call_ufunc(np.matmul, half, half)
    return call_ufunc(np.matmul, square, x) if n % 2 else square


# --- einsum


@implements(np.einsum)
def einsum(
    *operands: Any, out: Any = None, optimize: Any = False, dtype: Any = None, casting: Any = "safe"
) -> Any:
    """`np.einsum("ij,jk->ik", a, b)`: each operand is reduced to its needed axes, then contracted from left
    to right."""
    if not isinstance(operands[0], str):
        raise unsupported(
            "np.einsum with lists of axes", 'write the subscripts as a string, such as "ij,jk->ik"'
        )
    arrays = [as_tracer(x) for x in operands[1:]]
    terms, result = parse_subscripts(operands[0], [x.ndim for x in arrays])
    kept = np.dtype(dtype) if dtype is not None else common_dtype(arrays)
    for x in arrays:
        if not x.weak and not np.can_cast(x.dtype, kept, casting):
            raise TypeError(f"np.einsum can't cast {x.dtype} to {kept} according to the rule {casting!r}")
    nodes = [cast(x, kept) for x in arrays]
    done = [_diagonals(node, term) for node, term in zip(nodes, terms)]
    node, term = done[0]
    for position, (other, other_term) in enumerate(done[1:], 2):
        needed = set(result).union(*(t for _, t in done[position:]))
        node, term = _join(node, term, other, other_term, needed)
    node, term = _sum_away(node, term, set(result))
    return finish(_arranged(node, term, result), out)


def parse_subscripts(subscripts: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """One letter per axis for every operand and for the result; Ellipsis axes get capital Greek letters from
    the right."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{len(terms)} subscripts are given for {len(ranks)} operands")
    widths = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks)]
    if any(w < 0 or (w and "..." not in t) for t, w in zip(terms, widths)):
        raise ValueError(
            f"einstein sum subscripts string {subscripts!r} does not fit operands of {list(ranks)} axes"
        )
    dots = "".join(
        chr(0x391 + i) for i in range(max((w for t, w in zip(terms, widths) if "..." in t), default=0))
    )
    full = [t.replace("...", dots[len(dots) - w :]) for t, w in zip(terms, widths)]
    if arrow:
        result = right.replace("...", dots)
    else:
        count = Counter("".join(full))
        result = dots + "".join(sorted(c for c in count if count[c] == 1 and c not in dots))
    unknown = set(result) - set("".join(full))
    if unknown or len(set(result)) != len(result):
        raise ValueError(f"einstein sum subscripts string {subscripts!r}: the result names {result!r}")
    return full, result


def _diagonals(node: Node, term: str) -> tuple[Node, str]:
    """Repeated letters of one operand: the diagonal."""
    for letter in sorted(set(term)):
        while term.count(letter) > 1:
            i = term.index(letter)
            j = term.index(letter, i + 1)
            size = node.shape[i]
            if node.shape[j] != size:
                raise ValueError(f"dimensions in single operand for collapsing index {letter!r} don't match")
            order = [i, j, *(n for n in range(len(term)) if n not in (i, j))]
            front = emit("transpose", node, axes=tuple(order))
            flat = reshape_node(front, (size * size, *front.shape[2:]))
            places = as_tracer(np.arange(size, dtype=np.int64) * (size + 1)).node  # type: ignore[arg-type, operator]
            node, term = emit("take", flat, places, axis=0), letter + "".join(term[n] for n in order[2:])
    return node, term


def _sum_away(node: Node, term: str, needed: set[str]) -> tuple[Node, str]:
    axes = tuple(i for i, letter in enumerate(term) if letter not in needed)
    if not axes:
        return node, term
    op = "reduce_any" if node.dtype.kind == "bool" else "reduce_sum"
    return emit(op, node, axes=axes, keepdims=False), "".join(c for c in term if c in needed)


def _join(x: Node, xs: str, y: Node, ys: str, needed: set[str]) -> tuple[Node, str]:
    """The product of two operands, summed over letters that nothing after it needs."""
    x, xs, y, ys = _drop_ones(x, xs, y, ys)
    x, xs = _sum_away(x, xs, needed | set(ys))
    y, ys = _sum_away(y, ys, needed | set(xs))
    shared = [c for c in xs if c in ys]
    over, batch = [c for c in shared if c not in needed], [c for c in shared if c in needed]

    def axes(letters: list[str], term: str) -> Axes:
        return tuple(term.index(c) for c in letters)

    node = contract(x, y, (axes(over, xs), axes(over, ys)), (axes(batch, xs), axes(batch, ys)))
    return node, "".join(batch) + "".join(c for c in xs if c not in shared) + "".join(
        c for c in ys if c not in shared
    )


def _drop_ones(x: Node, xs: str, y: Node, ys: str) -> tuple[Node, str, Node, str]:
    """Axes of size one meet longer ones by broadcasting: leave them out of the operand."""
    for letter in set(xs) & set(ys):
        m, n = x.shape[xs.index(letter)], y.shape[ys.index(letter)]
        if m != n and 1 not in (m, n):
            raise ValueError(
                f"operands could not be broadcast together: subscript {letter!r} has sizes {m} and {n}"
            )
        if m == 1 != n:
            x, xs = _without(x, xs, letter)
        elif n == 1 != m:
            y, ys = _without(y, ys, letter)
    return x, xs, y, ys


def _without(node: Node, term: str, letter: str) -> tuple[Node, str]:
    at = term.index(letter)
    return reshape_node(node, node.shape[:at] + node.shape[at + 1 :]), term.replace(letter, "")


def _arranged(node: Node, term: str, result: str) -> Node:
    order = tuple(term.index(c) for c in result)
    return node if order == tuple(range(len(order))) else emit("transpose", node, axes=order)
