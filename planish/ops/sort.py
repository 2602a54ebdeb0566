"""Sorting along an axis, stable. NaN counts as the greatest: last, or first when descending."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.record import Sample
from planish.ops.rules import ANY, define, filled_like, known, no_slope, ops, require, require_axis, widened
from planish.ops.samples import random_array, strided, with_specials
from planish.types import INT64, Dim, DType, TensorType, bounds


@dataclass(frozen=True)
class SortAttributes:
    axis: int
    descending: bool = False


@dataclass(frozen=True)
class TopKAttributes:
    """The `k` largest (or smallest), in order; of equal elements, those of lower index."""

    axis: int
    k: Dim
    largest: bool = True


def order_of(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The stable order: backwards twice is descending with ties left in place."""
    x = widened(x)
    if not descending:
        return np.argsort(x, axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)


def _sort_rule(attributes: SortAttributes, x: TensorType) -> TensorType:
    require_axis(attributes.axis, x.rank)
    return x


def _sort(a: SortAttributes, x: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, order_of(x, a.axis, a.descending), a.axis)


def _sort_gradient(g: Any, a: SortAttributes, y: Any, x: Any) -> Sequence[Any]:
    order = ops.argsort(x, axis=a.axis, descending=a.descending)
    return (ops.scatter_along(filled_like(x, 0), order, g, axis=a.axis),)


def _argsort_rule(attributes: SortAttributes, x: TensorType) -> TensorType:
    return _sort_rule(attributes, x).with_dtype(INT64)


def _top_k_rule(attributes: TopKAttributes, x: TensorType) -> tuple[TensorType, TensorType]:
    axis, k = attributes.axis, attributes.k
    require_axis(axis, x.rank)
    most, least = bounds(x.shape[axis] - k)[1], bounds(k)[1]
    require((most is None or most >= 0) and (least is None or least >= 0),
            f"k {k} is not between 0 and {x.shape[axis]}, the size of axis {axis}")
    values = x.with_shape((*x.shape[:axis], k, *x.shape[axis + 1:]))
    return values, values.with_dtype(INT64)


def _top_k(a: TopKAttributes, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first = np.arange(*known((a.k,)))
    order = np.take(order_of(x, a.axis, a.largest), first, a.axis).astype(np.int64, copy=False)
    return np.take_along_axis(x, order, a.axis), order


def _top_k_gradient(g: Any, a: TopKAttributes, y: Any, x: Any) -> Sequence[Any]:
    """`g` and `y` hold two parts, values and indices; the indices have no cotangent."""
    return (ops.scatter_along(filled_like(x, 0), y[1], g[0], axis=a.axis),)


def _inputs(rng: np.random.Generator, dtype: DType) -> Iterator[tuple[np.ndarray, int, str]]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    for n in (1, 3, 8, 17, 33, 1000):
        yield x(3, n), 1, f"rows of {n}"
    yield x(17, 5), 0, "columns"
    yield x(0, 9), 1, "no rows"
    yield x(3, 9, 4), 1, "middle axis"
    yield (x(9, 33).astype(np.float64) > 0).astype(dtype.numpy), 1, "ties"
    yield with_specials(rng, x(9, 33), dtype), 1, "special"
    yield strided(x(7, 9)), 1, "strided"
    yield x(70, 1000), 1, "parallel"


def _sort_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for descending in (False, True):
        for x, axis, label in _inputs(rng, dtype):
            yield Sample((x,), {"axis": axis, "descending": descending}, f"{label}, descending={descending}")
        yield Sample((random_array(rng, dtype, (3, 0)),), {"axis": 1, "descending": descending}, "empty")


def _top_k_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for largest in (False, True):
        for x, axis, label in _inputs(rng, dtype):
            for k in sorted({0, 1, min(5, x.shape[axis]), x.shape[axis]}):
                yield Sample((x,), {"axis": axis, "k": k, "largest": largest},
                             f"{label}, k={k}, largest={largest}")


sort = define("sort", "sort", _sort_rule, _sort, operands=1, dtypes=ANY, attributes=SortAttributes,
              traits={"sort"}, samples=_sort_samples, gradient=_sort_gradient)
argsort = define("argsort", "sort", _argsort_rule,
                 lambda a, x: order_of(x, a.axis, a.descending).astype(np.int64, copy=False), operands=1,
                 dtypes=ANY, attributes=SortAttributes, traits={"sort"}, samples=_sort_samples,
                 gradient=no_slope)
top_k = define("top_k", "sort", _top_k_rule, _top_k, operands=1, dtypes=ANY, attributes=TopKAttributes,
               traits={"sort"}, samples=_top_k_samples, gradient=_top_k_gradient)
