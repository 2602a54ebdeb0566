"""New arrays of a traced array's shape, and triangles of a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from planish.capture.numpy.registry import implements
from planish.capture.numpy.tracer import Tracer, as_tracer, cast, emit, fresh, full_like_node, known


def filled(shape: Any, value: Any, dtype: Any = None) -> Tracer:
    """An array of one value. While the value is known it is a real array: loops that fill it cost nothing."""
    x = as_tracer(value)
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    kept = np.dtype(dtype) if dtype is not None else x.dtype
    if x.known is not None:
        return known(np.full(sizes, x.known[()], kept))
    return fresh(emit("broadcast_to", cast(x, kept), shape=np.broadcast_shapes(x.shape, sizes)))


def _like(value: Any) -> Any:
    def make(
        prototype: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
    ) -> Tracer:
        x = as_tracer(prototype)
        return filled(x.shape if shape is None else shape, value, dtype or x.dtype)

    return make


implements(np.zeros_like)(_like(0))
implements(np.ones_like)(_like(1))
implements(np.empty_like)(_like(0))


@implements(np.full_like)
def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Tracer:
    x = as_tracer(a)
    return filled(x.shape if shape is None else shape, fill_value, dtype or x.dtype)


def _triangle(keep: Any) -> Any:
    def triangle(m: Any, k: int = 0) -> Tracer:
        x = as_tracer(m)
        if x.ndim == 0:
            raise TypeError("a triangle is taken of at least 1 axis")
        rows, columns = x.shape[-2:] if x.ndim > 1 else x.shape * 2  # a row is broadcast to a square
        mask = keep(rows, columns, k)
        return fresh(emit("select", known(mask).node, x.node, full_like_node(x.node, 0)))

    return triangle


implements(np.tril)(_triangle(lambda n, m, k: np.tri(n, m, k, dtype=bool)))
implements(np.triu)(_triangle(lambda n, m, k: ~np.tri(n, m, k - 1, dtype=bool)))


@implements(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    x = as_tracer(v)
    if x.ndim == 2:
        return np.diagonal(x, k)
    if x.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    return diagflat(x, k)


@implements(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Any:
    x = as_tracer(v)
    size = x.size + abs(k)
    result = known(np.zeros((size, size), x.dtype))
    rows = np.arange(x.size) + max(-k, 0)
    result[rows, np.arange(x.size) + max(k, 0)] = np.reshape(x, (-1,))
    return result


@implements(np.vander)
def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    column = np.reshape(as_tracer(x), (-1, 1))
    powers = np.arange(len(column) if N is None else N)
    return np.power(column, powers if increasing else powers[::-1])


@implements(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    count = len(xi)
    places = list(range(count))
    if indexing == "xy" and count > 1:
        places[:2] = [1, 0]
    columns = [
        np.reshape(as_tracer(x), tuple(-1 if i == p else 1 for i in range(count))) for x, p in zip(xi, places)
    ]
    grids = (
        columns
        if sparse
        else [np.broadcast_to(c, np.broadcast_shapes(*(c.shape for c in columns))) for c in columns]
    )
    return tuple(g.copy() for g in grids) if copy else tuple(grids)
