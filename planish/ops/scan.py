"""Running reductions along one axis. float16 and bfloat16 are kept in float32; every result is rounded once.

`reverse` runs from the end; `exclusive` leaves the element itself out, so the first result is the identity.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.record import Op, Sample
from planish.ops.rules import (
    NUMBERS,
    apply_nullary,
    define,
    filled_like,
    like,
    ops,
    require_axis,
    size_like,
    widened,
)
from planish.ops.samples import random_array, strided, with_specials
from planish.types import INT64, DType, TensorType, dtype_of


@dataclass(frozen=True)
class ScanAttributes:
    axis: int
    reverse: bool = False
    exclusive: bool = False


def lowest(dtype: DType) -> Any:
    """The identity of max."""
    return -np.inf if dtype.is_float else 0 if dtype.kind == "bool" else np.iinfo(dtype.numpy).min


def highest(dtype: DType) -> Any:
    """The identity of min."""
    return np.inf if dtype.is_float else 1 if dtype.kind == "bool" else np.iinfo(dtype.numpy).max


def _scan_rule(attributes: ScanAttributes, x: TensorType) -> TensorType:
    require_axis(attributes.axis, x.rank)
    return x


def _scanned(x: np.ndarray, axis: int, ufunc: np.ufunc, identity: Any, exclusive: bool) -> np.ndarray:
    if exclusive and x.shape[axis]:
        first = np.full_like(np.take(x, [0], axis), identity)
        x = np.concatenate([first, np.take(x, range(x.shape[axis] - 1), axis)], axis)
    return ufunc.accumulate(x, axis=axis, dtype=x.dtype)


# --- gradients

def _cumsum_gradient(g: Any, a: ScanAttributes, y: Any, x: Any) -> Sequence[Any]:
    return (ops.cumsum(g, axis=a.axis, reverse=not a.reverse, exclusive=a.exclusive),)


def _positions(x: Any, axis: int) -> Any:
    return apply_nullary(ops.iota, x, shape=tuple(x.shape), axis=axis, dtype=INT64)


def _cumprod_gradient(g: Any, a: ScanAttributes, y: Any, x: Any) -> Sequence[Any]:
    """Sum over results i of g_i times the product without x_j. Needs n^2 products along an axis of n, and no
    division, so that zeros do no harm. A new axis k = a.axis + 1 runs over the factors and then over the
    results."""
    j, k = a.axis, a.axis + 1
    shape = (*x.shape[:k], x.shape[j], *x.shape[k:])
    across = ops.broadcast_to(ops.reshape(x, shape=(*x.shape[:j], 1, *x.shape[j:])), shape=shape)
    at_j, at_k = _positions(across, j), _positions(across, k)
    without = ops.select(ops.eq(at_j, at_k), like(x, 1.0), across)
    products = ops.cumprod(without, axis=k, reverse=a.reverse, exclusive=a.exclusive)
    later, earlier = (at_j, at_k) if a.reverse else (at_k, at_j)
    counts = ops.gt(later, earlier) if a.exclusive else ops.ge(later, earlier)
    gs = ops.broadcast_to(ops.reshape(g, shape=(*x.shape[:j], 1, *x.shape[j:])), shape=shape)
    return (ops.reduce_sum(ops.select(counts, gs * products, like(x, 0.0)), axes=(k,)),)


def _extremum_gradient(inclusive: str) -> Callable[..., Sequence[Any]]:
    """Each cotangent goes to the latest element that set the running extremum."""
    def gradient(g: Any, a: ScanAttributes, y: Any, x: Any) -> Sequence[Any]:
        if a.exclusive:
            g, y = _shifted_back(g, a), getattr(ops, inclusive)(x, axis=a.axis, reverse=a.reverse)
        at = _positions(x, a.axis)
        hit, last = ops.eq(x, y), size_like(x, x.shape[a.axis], INT64)
        if a.reverse:
            where = ops.cummin(ops.select(hit, at, last - 1), axis=a.axis, reverse=True)
        else:
            where = ops.cummax(ops.select(hit, at, like(at, 0)), axis=a.axis)
        return (ops.scatter_along(filled_like(x, 0), where, g, axis=a.axis, reduction="add"),)
    return gradient


def _shifted_back(g: Any, a: ScanAttributes) -> Any:
    """The cotangents of the inclusive scan: those of the exclusive one, one place back."""
    rank = len(g.shape)
    one = tuple(int(i == a.axis) for i in range(rank))
    none = (0,) * rank
    if a.reverse:
        stops = tuple(n - o for n, o in zip(g.shape, one, strict=True))
        kept = ops.slice(g, starts=none, stops=stops, steps=(1,) * rank)
        return ops.pad(kept, like(g, 0), low=one, high=none)
    kept = ops.slice(g, starts=one, stops=tuple(g.shape), steps=(1,) * rank)
    return ops.pad(kept, like(g, 0), low=none, high=one)


# --- samples and records

def _samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape, *((-1.5, 1.5) if dtype.is_float else ()))
    for reverse in (False, True):
        for exclusive in (False, True):
            how = {"reverse": reverse, "exclusive": exclusive}
            for n in (1, 3, 8, 17, 33, 1000):
                yield Sample((x(3, n),), {"axis": 1, **how}, f"rows of {n}, {how}")
            yield Sample((x(17, 5),), {"axis": 0, **how}, f"columns, {how}")
            yield Sample((x(3, 0),), {"axis": 1, **how}, f"empty, {how}")
            yield Sample((with_specials(rng, x(9, 17), dtype),), {"axis": 1, **how}, f"special, {how}")
            yield Sample((strided(x(7, 9)),), {"axis": 0, **how}, f"strided, {how}")
    yield Sample((x(70, 1000),), {"axis": 1}, "parallel")


def _scan(name: str, ufunc: np.ufunc, identity: Callable[[DType], Any], gradient: Callable[..., Any],
          tolerance: str = "exact") -> Op:
    def meaning(a: ScanAttributes, x: np.ndarray) -> np.ndarray:
        wide = np.flip(widened(x), a.axis) if a.reverse else widened(x)
        result = _scanned(wide, a.axis, ufunc, identity(dtype_of(wide)), a.exclusive)
        return (np.flip(result, a.axis) if a.reverse else result).astype(x.dtype, copy=False)
    return define(name, "scan", _scan_rule, meaning, operands=1, dtypes=NUMBERS, attributes=ScanAttributes,
                  traits={"scan"}, tolerance=tolerance, samples=_samples, gradient=gradient)


cumsum = _scan("cumsum", np.add, lambda d: 0, _cumsum_gradient, "reduction")
cumprod = _scan("cumprod", np.multiply, lambda d: 1, _cumprod_gradient, "reduction")
cummax = _scan("cummax", np.maximum, lowest, _extremum_gradient("cummax"))
cummin = _scan("cummin", np.minimum, highest, _extremum_gradient("cummin"))
