"""Reductions over axes. float16 and bfloat16 are summed and multiplied in float32 and rounded once.

The largest of an axis that is known to be empty is an error; of one that turns out to be empty at run time it
is the least value of the dtype, as ONNX has it. A front end to whom that is an error says so with a check.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.record import Op, Sample
from planish.ops.rules import (
    ANY,
    BITS,
    NUMBERS,
    count_of,
    define,
    like,
    no_slope,
    ops,
    reduced_shape,
    require,
    require_axes,
    require_axis,
    widened,
)
from planish.ops.samples import random_array, strided, with_specials
from planish.types import INT64, DType, TensorType


@dataclass(frozen=True)
class ReduceAttributes:
    axes: tuple[int, ...]
    keepdims: bool = False


@dataclass(frozen=True)
class ArgAttributes:
    axis: int
    keepdims: bool = False


def _reduce_rule(attributes: ReduceAttributes, x: TensorType) -> TensorType:
    require_axes(attributes.axes, x.rank)
    return x.with_shape(reduced_shape(x.shape, attributes.axes, attributes.keepdims))


def _extremum_rule(attributes: ReduceAttributes, x: TensorType) -> TensorType:
    result = _reduce_rule(attributes, x)
    for axis in attributes.axes:
        require(x.shape[axis] != 0, f"axis {axis} is empty: there is no largest or smallest of no elements")
    return result


def _reduced_by(ufunc: np.ufunc) -> Callable[..., np.ndarray]:
    def meaning(a: ReduceAttributes, x: np.ndarray) -> np.ndarray:
        wide = widened(x)
        start = {"initial": _of_none(ufunc, wide.dtype)} if wide.size == 0 and ufunc.identity is None else {}
        result = ufunc.reduce(wide, axis=a.axes, dtype=wide.dtype, keepdims=a.keepdims, **start)
        return np.asarray(result).astype(x.dtype, copy=False)
    return meaning


def _of_none(ufunc: np.ufunc, dtype: np.dtype) -> Any:
    """The value that leaves every other unchanged under maximum or minimum."""
    is_max = ufunc is np.maximum
    if dtype.kind == "b":
        return not is_max
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if is_max else np.iinfo(dtype).max
    return -np.inf if is_max else np.inf


# --- gradients

def stretched(y: Any, x: Any, attributes: ReduceAttributes) -> Any:
    """A reduction's result (or its cotangent) back at x's shape."""
    kept = ops.reshape(y, shape=reduced_shape(tuple(x.shape), attributes.axes, True))
    return ops.broadcast_to(kept, shape=tuple(x.shape))


def _extremum_gradient(g: Any, a: ReduceAttributes, y: Any, x: Any) -> Sequence[Any]:
    """Shared evenly among the elements that are the extremum."""
    chosen = ops.select(ops.eq(x, stretched(y, x, a)), like(g, 1.0), like(g, 0.0))
    count = ops.reduce_sum(chosen, axes=a.axes, keepdims=a.keepdims)
    return (stretched(g / count, x, a) * chosen,)


def _prod_gradient(g: Any, a: ReduceAttributes, y: Any, x: Any) -> Sequence[Any]:
    """g times the product of the others: of those before and of those after, so that zeros do no harm."""
    kept = [i for i in range(len(x.shape)) if i not in a.axes]
    order = (*kept, *a.axes)
    moved = ops.transpose(x, axes=order)
    rows = ops.reshape(moved, shape=(*(x.shape[i] for i in kept), count_of(x.shape, a.axes)))
    before, after = (ops.cumprod(rows, axis=len(kept), exclusive=True, reverse=r) for r in (False, True))
    others = ops.reshape(before * after, shape=tuple(moved.shape))
    back = ops.transpose(others, axes=tuple(order.index(i) for i in range(len(order))))
    return (stretched(g, x, a) * back,)


# --- samples

def _cases(rng: np.random.Generator, dtype: DType) -> Iterator[tuple[np.ndarray, tuple[int, ...], str]]:
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape, -2, 2) if dtype.is_float else random_array(rng, dtype, shape)
    for n in (1, 3, 8, 17, 33, 1000):
        yield x(3, n), (1,), f"rows of {n}"
        yield x(n, 3), (0,), f"columns of {n}"
    yield x(4, 5, 17), (0, 2), "outer and inner axis"
    yield x(4, 5, 17), (0, 1, 2), "all axes"
    yield x(4, 5), (), "no axis"
    yield x(0, 5), (1,), "no rows"
    yield strided(x(7, 17)), (1,), "strided"
    yield with_specials(rng, x(17, 9), dtype), (1,), "special"
    yield with_specials(rng, x(9, 17), dtype), (0,), "special columns"
    yield x(70, 1000), (1,), "parallel"
    yield x(70_000), (0,), "parallel, one row"


def _samples(empty: bool) -> Callable[..., Iterator[Sample]]:
    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        for x, axes, label in _cases(rng, dtype):
            yield Sample((x,), {"axes": axes, "keepdims": False}, label)
            yield Sample((x,), {"axes": axes, "keepdims": True}, f"{label}, keepdims")
        if empty:
            yield Sample((random_array(rng, dtype, (3, 0)),), {"axes": (1,)}, "empty rows")
    return samples


def _arg_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for x, axes, label in _cases(rng, dtype):
        if len(axes) == 1:
            yield Sample((x,), {"axis": axes[0]}, label)
            yield Sample((x,), {"axis": axes[0], "keepdims": True}, f"{label}, keepdims")
    ties = random_array(rng, dtype, (9, 33), 0, 3)
    yield Sample((np.round(ties.astype(np.float64)).astype(ties.dtype),), {"axis": 1}, "ties")


# --- records

def _reduction(name: str, ufunc: np.ufunc, gradient: Callable[..., Any], dtypes: Sequence[DType], *,
               empty: bool = True, tolerance: str = "exact") -> Op:
    return define(name, "reduce", _reduce_rule if empty else _extremum_rule, _reduced_by(ufunc), operands=1,
                  dtypes=dtypes, attributes=ReduceAttributes, traits={"reduction"}, tolerance=tolerance,
                  samples=_samples(empty), gradient=gradient)


reduce_sum = _reduction("reduce_sum", np.add, lambda g, a, y, x: (stretched(g, x, a),), NUMBERS,
                        tolerance="reduction")
reduce_prod = _reduction("reduce_prod", np.multiply, _prod_gradient, NUMBERS, tolerance="reduction")
reduce_max = _reduction("reduce_max", np.maximum, _extremum_gradient, ANY, empty=False)
reduce_min = _reduction("reduce_min", np.minimum, _extremum_gradient, ANY, empty=False)
reduce_any = _reduction("reduce_any", np.logical_or, no_slope, BITS[:1])
reduce_all = _reduction("reduce_all", np.logical_and, no_slope, BITS[:1])


def _arg_rule(attributes: ArgAttributes, x: TensorType) -> TensorType:
    require_axis(attributes.axis, x.rank)
    require(x.shape[attributes.axis] != 0, f"axis {attributes.axis} is empty: there is no index into it")
    return TensorType(INT64, reduced_shape(x.shape, (attributes.axis,), attributes.keepdims))


def _arg(name: str, find: Callable[..., np.ndarray]) -> Op:
    """The first index of the extremum; the first NaN where there is one."""
    def meaning(a: ArgAttributes, x: np.ndarray) -> np.ndarray:
        return np.asarray(find(widened(x), axis=a.axis, keepdims=a.keepdims), INT64.numpy)
    return define(name, "reduce", _arg_rule, meaning, operands=1, dtypes=ANY, attributes=ArgAttributes,
                  traits={"reduction"}, samples=_arg_samples, gradient=no_slope)


argmax = _arg("argmax", np.argmax)
argmin = _arg("argmin", np.argmin)
