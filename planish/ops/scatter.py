"""Writing at indices. An index i < 0 means i + n; updates outside are dropped; duplicates apply in order.

With `reduction`, an update is combined with what is there: add, mul, max or min, rounding after each; that is
arithmetic, which dtypes for storage do not have.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from planish.ops.index import along, from_the_end, random_index, require_along, require_depth
from planish.ops.record import Sample
from planish.ops.rules import (
    ANY,
    STORED,
    apply_nullary,
    cast_to,
    define,
    filled_like,
    like,
    ops,
    require,
    require_dtype,
    require_same_dtype,
    size_like,
)
from planish.ops.samples import random_array, strided, with_specials
from planish.types import INT32, INT64, DType, TensorType


@dataclass(frozen=True)
class ScatterAttributes:
    reduction: str = "none"


@dataclass(frozen=True)
class ScatterAlongAttributes:
    axis: int
    reduction: str = "none"


_UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _reductions(dtype: DType) -> tuple[str, ...]:
    return ("none",) if dtype.is_storage else ("none", *_UFUNCS)


def _require_reduction(reduction: str, x: TensorType, updates: TensorType) -> None:
    require(reduction in ("none", *_UFUNCS), f"reduction is none, add, mul, max or min, not {reduction}")
    require_same_dtype(x, updates)
    if reduction != "none":
        require_dtype(x, ANY)


def _write(result: np.ndarray, at: Any, updates: np.ndarray, reduction: str) -> np.ndarray:
    if reduction == "none":
        result[at] = updates  # of duplicates, NumPy keeps the last
    else:
        _UFUNCS[reduction].at(result, at, updates)
    return result


# --- scatter_along

def _along_rule(attributes: ScatterAlongAttributes, x: TensorType, index: TensorType,
                updates: TensorType) -> TensorType:
    _require_reduction(attributes.reduction, x, updates)
    require_along(x, index, attributes.axis)
    require(updates.shape == index.shape, f"updates are to have the indices' shape {index}, not {updates}")
    return x


def _scatter_along(a: ScatterAlongAttributes, x: np.ndarray, index: np.ndarray,
                   updates: np.ndarray) -> np.ndarray:
    places = from_the_end(index, x.shape[a.axis])
    inside = (places >= 0) & (places < x.shape[a.axis])
    steps = (np.broadcast_to(s, index.shape)[inside] for s in along(places, a.axis))
    return _write(x.copy(), tuple(steps), updates[inside], a.reduction)


# --- scatter_nd

def _nd_rule(attributes: ScatterAttributes, x: TensorType, index: TensorType,
             updates: TensorType) -> TensorType:
    _require_reduction(attributes.reduction, x, updates)
    depth = require_depth(index, x.rank)
    expected = x.with_shape((*index.shape[:-1], *x.shape[depth:]))
    require(updates.shape == expected.shape, f"updates are to be {expected}, not {updates}")
    return x


def _scatter_nd(a: ScatterAttributes, x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """On rows: the indexed axes become one, and so do the others."""
    depth = index.shape[-1]
    sizes, row = x.shape[:depth], x.shape[depth:]
    places = [from_the_end(index[..., i], n).ravel() for i, n in enumerate(sizes)]
    inside = np.ones(prod(index.shape[:-1]), bool)
    linear = np.zeros(inside.size, np.int64)
    for place, n in zip(places, sizes, strict=True):
        inside &= (place >= 0) & (place < n)
        linear = linear * n + place
    rows = updates.reshape(inside.size, prod(row))[inside]
    result = x.reshape(prod(sizes), prod(row)).copy()
    return _write(result, linear[inside], rows, a.reduction).reshape(x.shape)


# --- gradients: reading back what was written, where it was inside

def _scatter_gradient(g: Any, x: Any, y: Any, updates: Any, reduction: str, read: Any,
                      write: Any) -> tuple[Any, Any]:
    """`read(t)` gathers t at the indices, 0 for dropped updates; `write(t, u, how)` scatters u into t."""
    zero = like(g, 0)
    if reduction == "none":
        return write(g, filled_like(updates, 0), "none"), read(g)
    if reduction == "add":
        return g, read(g)
    if reduction == "mul":
        return g * write(filled_like(x, 1), updates, "mul"), read(g * y) / updates
    # max, min: shared evenly among all that are the extremum
    own, theirs = (ops.select(ops.eq(a, b), like(g, 1), zero) for a, b in ((x, y), (updates, read(y))))
    share = g / write(own, theirs, "add")
    return ops.select(ops.eq(x, y), share, zero), read(share) * theirs


def _inside(index: Any, size: Any) -> Any:
    index, n = cast_to(index, INT64), size_like(index, size, INT64)
    return ops.bitwise_and(ops.ge(index, ops.neg(n)), ops.lt(index, n))


def _along_gradient(g: Any, a: ScatterAlongAttributes, y: Any, x: Any, index: Any,
                    updates: Any) -> Sequence[Any]:
    inside = _inside(index, x.shape[a.axis])

    def read(t: Any) -> Any:
        return ops.select(inside, ops.take_along(t, index, axis=a.axis), like(t, 0))

    def write(t: Any, u: Any, reduction: str) -> Any:
        return ops.scatter_along(t, index, u, axis=a.axis, reduction=reduction)
    gx, gu = _scatter_gradient(g, x, y, updates, a.reduction, read, write)
    return gx, None, gu


def _nd_gradient(g: Any, a: ScatterAttributes, y: Any, x: Any, index: Any, updates: Any) -> Sequence[Any]:
    inside = _row_inside(index, x.shape, len(updates.shape))

    def read(t: Any) -> Any:
        return ops.select(inside, ops.gather_nd(t, index), like(t, 0))

    def write(t: Any, u: Any, reduction: str) -> Any:
        return ops.scatter_nd(t, index, u, reduction=reduction)
    gx, gu = _scatter_gradient(g, x, y, updates, a.reduction, read, write)
    return gx, None, gu


def _row_inside(index: Any, shape: Sequence[Any], rank: int) -> Any:
    """Whether each row of indices is inside, with 1s for the axes of an update's row."""
    depth, rows = index.shape[-1], tuple(index.shape[:-1])
    wide = cast_to(index, INT64)
    inside = apply_nullary(ops.iota, index, shape=(*rows, 1), axis=len(rows), dtype=INT64)
    result = ops.eq(inside, 0)
    for i in range(depth):
        starts, stops = (0,) * len(rows) + (i,), (*rows, i + 1)
        column = ops.slice(wide, starts=starts, stops=stops, steps=(1,) * len(stops))
        result = ops.bitwise_and(result, _inside(column, shape[i]))
    return ops.reshape(result, shape=(*rows, *(1,) * (rank - len(rows))))


# --- samples and records

def _along_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    for reduction in _reductions(dtype):
        for axis, shape, at in ((0, (9, 5), (17, 5)), (1, (9, 17), (9, 4)), (1, (3, 4, 5), (2, 7, 5)),
                                (0, (5,), (0,))):
            index = random_index(rng, shape[axis], at)
            yield Sample((x(*shape), index, x(*at)), {"axis": axis, "reduction": reduction},
                         f"{reduction}, {shape}, {at}")
        index = random_index(rng, 9, (17, 5), INT32, outside=True)
        yield Sample((x(9, 5), index, x(17, 5)), {"axis": 0, "reduction": reduction}, f"{reduction}, outside")
        index = random_index(rng, 9, (5, 4)).T
        yield Sample((strided(x(9, 5)), index, strided(x(4, 5))), {"axis": 0, "reduction": reduction},
                     f"{reduction}, strided")
        yield Sample((with_specials(rng, x(9, 5), dtype), random_index(rng, 9, (4, 5)),
                      with_specials(rng, x(4, 5), dtype)), {"axis": 0, "reduction": reduction},
                     f"{reduction}, special")
    yield Sample((x(70, 1000), random_index(rng, 1000, (70, 1000)), x(70, 1000)),
                 {"axis": 1, "reduction": _reductions(dtype)[-1]}, "parallel")


def _nd_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    for reduction in _reductions(dtype):
        how = {"reduction": reduction}
        yield Sample((x(9, 5), random_index(rng, 9, (17, 1)), x(17, 5)), how, f"{reduction}, rows")
        yield Sample((x(9, 5), random_index(rng, 5, (33, 2)), x(33)), how, f"{reduction}, elements")
        yield Sample((x(4, 5, 6), random_index(rng, 4, (2, 3, 2), INT32), x(2, 3, 6)), how,
                     f"{reduction}, 2-d of rows")
        yield Sample((x(4, 5), random_index(rng, 6, (17, 2), outside=True), x(17)), how,
                     f"{reduction}, outside")
        yield Sample((x(4, 5), random_index(rng, 4, (0, 1)), x(0, 5)), how, f"{reduction}, no updates")
        yield Sample((strided(x(4, 5)), random_index(rng, 4, (1, 7)).T, strided(x(7, 5))), how,
                     f"{reduction}, strided")
        yield Sample((with_specials(rng, x(9, 5), dtype), random_index(rng, 9, (17, 1)),
                      with_specials(rng, x(17, 5), dtype)), how, f"{reduction}, special")
    yield Sample((x(100, 16), random_index(rng, 100, (4400, 1)), x(4400, 16)),
                 {"reduction": _reductions(dtype)[-1]}, "parallel")


scatter_along = define("scatter_along", "scatter", _along_rule, _scatter_along, operands=3,
                       dtypes=STORED, attributes=ScatterAlongAttributes, traits={"indexing"},
                       tolerance="reduction", samples=_along_samples, gradient=_along_gradient)
scatter_nd = define("scatter_nd", "scatter", _nd_rule, _scatter_nd, operands=3, dtypes=STORED,
                    attributes=ScatterAttributes, traits={"indexing"}, tolerance="reduction",
                    samples=_nd_samples, gradient=_nd_gradient)
