"""Choosing and ordering: where, clip, select, sort, argsort, searchsorted, closeness, cleaning of NaN."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from planish.capture.numpy.reduce import finish
from planish.capture.numpy.registry import implements
from planish.capture.numpy.shape import materialised, one_axis, reshape, slice_axis
from planish.capture.numpy.tracer import (
    Tracer,
    as_tracer,
    cast,
    cast_node,
    common_dtype,
    emit,
    fresh,
    full_like_node,
    unsupported,
)
from planish.capture.numpy.ufuncs import call_ufunc


@implements(np.where)
def where(condition: Any, *choices: Any) -> Any:
    if not choices:
        raise unsupported(
            "np.where(condition) alone",
            "the number of places is known only when the function runs; write np.where(condition, x, y)",
        )
    x, y = choices
    cond, a, b = as_tracer(condition), as_tracer(x), as_tracer(y)
    np.broadcast_shapes(cond.shape, a.shape, b.shape)
    dtype = common_dtype([a, b])
    return fresh(emit("select", cast(cond, np.bool_), cast(a, dtype), cast(b, dtype)))


@implements(np.clip)
def clip(
    a: Any,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
    *,
    min: Any = None,
    max: Any = None,
    dtype: Any = None,
    where: Any = True,
    casting: str = "same_kind",
) -> Any:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    x = as_tracer(a)
    keywords = {"out": out, "dtype": dtype, "where": where, "casting": casting}
    if low is None and high is None:
        return call_ufunc(np.positive, x, **keywords)
    if low is None or high is None:
        ufunc, bound = (np.minimum, high) if low is None else (np.maximum, low)
        return call_ufunc(ufunc, x, _bound(x, bound), **keywords)
    kinds = [t.weak(1) if t.weak else t.dtype for t in map(as_tracer, (x, low, high))]
    common = dtype or np.result_type(*kinds)
    raised = call_ufunc(np.maximum, x, _bound(x, low), dtype=common)
    return call_ufunc(
        np.minimum,
        raised,
        _bound(x, high),
        dtype=common,
        **{k: v for k, v in keywords.items() if k != "dtype"},
    )


def _bound(x: Tracer, bound: Any) -> Any:
    """A Python integer outside the array's dtype bounds nothing: the dtype's own limit does."""
    if isinstance(bound, int) and not isinstance(bound, bool) and x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        return builtins.min(builtins.max(bound, int(info.min)), int(info.max))
    return bound


def _clip_method(self: Tracer, min: Any = None, max: Any = None, out: Any = None, **keywords: Any) -> Any:
    return clip(self, min, max, out, **keywords)


def _round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    x = as_tracer(a)
    if x.dtype.kind in "biu":
        if decimals < 0:
            raise unsupported("np.round of integers to tens and hundreds")
        return call_ufunc(np.positive, x, out=out) if x.dtype.kind != "b" else call_ufunc(np.rint, x, out=out)
    if decimals == 0:
        return call_ufunc(np.rint, x, out=out)
    scale = full_like_node(x.node, 10.0 ** abs(decimals))
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return finish(emit(back, emit("round", emit(there, x.node, scale)), scale), out)


@implements(np.select)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Tracer:
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    result, values = as_tracer(default), [as_tracer(c) for c in choicelist]
    dtype = common_dtype([*values, result])
    shape = np.broadcast_shapes(*(as_tracer(c).shape for c in (*condlist, *choicelist)), result.shape)
    node = emit("broadcast_to", cast(result, dtype), shape=shape)
    for condition, value in zip(reversed(condlist), reversed(values)):
        node = emit("select", cast(as_tracer(condition), np.bool_), cast(value, dtype), node)
    return fresh(node)


@implements(np.nan_to_num)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    array = as_tracer(x)
    if array.dtype.kind != "f":
        return array if not copy else materialised(array)
    node, info = array.node, np.finfo(array.dtype)
    infinite = emit("is_inf", node)
    large = full_like_node(node, info.max if posinf is None else posinf)
    small = full_like_node(node, info.min if neginf is None else neginf)
    filled = emit(
        "select", infinite, emit("select", emit("lt", node, full_like_node(node, 0)), small, large), node
    )
    result = emit("select", emit("is_nan", node), full_like_node(node, nan), filled)
    if not copy and not array.scalar:
        array.assign(result)
        return array
    return finish(result)


@implements(np.isclose)
def isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    x, y = as_tracer(a), as_tracer(b)
    if y.dtype.kind in "biu":
        y = y.astype(np.float64)
    near = np.less_equal(np.abs(np.subtract(x, y)), atol + rtol * np.abs(y))
    result = np.logical_or(np.logical_and(near, np.isfinite(y)), np.equal(x, y))
    return np.logical_or(result, np.logical_and(np.isnan(x), np.isnan(y))) if equal_nan else result


def _python_bool(result: Tracer) -> Tracer:
    return fresh(result.node, scalar=True, weak=bool)


implements(np.allclose)(
    lambda a, b, rtol=1e-5, atol=1e-8, equal_nan=False: _python_bool(
        np.all(isclose(a, b, rtol, atol, equal_nan))  # type: ignore[arg-type]
    )
)


@implements(np.array_equal)
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    x, y = as_tracer(a1), as_tracer(a2)
    if x.shape != y.shape:
        return False
    same = np.equal(x, y)
    return _python_bool(
        np.all(np.logical_or(same, np.logical_and(np.isnan(x), np.isnan(y))) if equal_nan else same)  # type: ignore[arg-type]
    )


implements(np.isposinf)(
    lambda x, out=None: np.logical_and(np.isinf(as_tracer(x)), np.logical_not(np.signbit(as_tracer(x))))
)
implements(np.isneginf)(lambda x, out=None: np.logical_and(np.isinf(as_tracer(x)), np.signbit(as_tracer(x))))


@implements(np.sinc)
def sinc(x: Any) -> Any:
    array = as_tracer(x)
    y = np.pi * np.where(array == 0, array.dtype.type(1e-20), array)  # type: ignore[comparison-overlap]
    return np.sin(y) / y


# --- ordering


def _order(op: str) -> Any:
    def order(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Tracer:
        if order is not None:
            raise unsupported(f"np.{op} with order= of named fields")
        x = as_tracer(a)
        x, along = (reshape(x, (-1,)), 0) if axis is None else (x, one_axis(axis, x.ndim))
        return fresh(emit(op, x.node, axis=along, descending=False))

    return order


sort = implements(np.sort)(_order("sort"))
implements(np.argsort, method=True)(_order("argsort"))


def _sort_in_place(
    self: Tracer, axis: int = -1, kind: Any = None, order: Any = None, *, stable: Any = None
) -> None:
    self.assign(sort(self, axis).node)


implements(np.partition, method=False)(lambda a, kth, axis=-1, kind=None, order=None: sort(a, axis))
implements(np.argpartition)(lambda a, kth, axis=-1, kind=None, order=None: np.argsort(as_tracer(a), axis))


@implements(np.median)
def median(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    x = as_tracer(a)
    flat = reshape(x, (-1,)) if axis is None else x
    if axis is not None and np.ndim(axis):
        raise unsupported("np.median over several axes")
    along = 0 if axis is None else one_axis(axis, x.ndim)
    ordered, size = sort(flat, along), flat.shape[along]
    dtype = np.dtype(np.float64) if x.dtype.kind in "biu" else x.dtype
    low, high = (
        cast_node(slice_axis(ordered.node, along, i, i + 1), dtype) for i in ((size - 1) // 2, size // 2)
    )
    middle = low if size % 2 else emit("mul", emit("add", low, high), full_like_node(low, 0.5))
    if x.dtype.kind == "f":  # NaN is last: if the last is NaN, so is the median
        last = slice_axis(ordered.node, along, size - 1, size)
        middle = emit("select", emit("is_nan", last), last, middle)
    shape = tuple(1 if axis is None or i == along else s for i, s in enumerate(x.shape))
    kept = emit("reshape", middle, shape=shape)
    squeezed = () if axis is None else x.shape[:along] + x.shape[along + 1 :]
    return finish(kept if keepdims else emit("reshape", kept, shape=squeezed), out)


@implements(np.searchsorted)
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """By comparison with every element, which is right for all inputs and fast for short tables."""
    if sorter is not None:
        a = np.take(as_tracer(a), sorter)
    table, values = as_tracer(a), as_tracer(v)
    ufunc = {"left": np.less, "right": np.less_equal}[side]
    below = call_ufunc(ufunc, table, np.expand_dims(values, -1))
    if table.dtype.kind == "f":  # NaN is above everything, and equal to itself
        missing = np.expand_dims(np.isnan(values), -1)
        below = np.logical_or(
            below, np.logical_and(missing, np.logical_not(np.isnan(table)) if side == "left" else True)
        )
    return np.sum(below, -1, dtype=np.int64)


@implements(np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    return searchsorted(bins, x, side="left" if right else "right")


@implements(np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    if period is not None:
        raise unsupported("np.interp with period=")
    at, points, values = (as_tracer(v).astype(np.float64) for v in (x, xp, fp))
    count = points.shape[0]
    upper = np.clip(
        np.sum(np.greater_equal(np.expand_dims(at, -1), points), -1), 1, builtins.max(count - 1, 1)
    )
    x0, x1, y0, y1 = (
        np.take(as_tracer(t), i, mode="clip")
        for t, i in ((points, upper - 1), (points, upper), (values, upper - 1), (values, upper))
    )
    inside = y0 + (at - x0) * ((y1 - y0) / (x1 - x0))
    low, high = (values[0] if left is None else left), (values[-1] if right is None else right)
    return np.where(
        at < points[0], low, np.where(at > points[-1], high, np.where(at == points[-1], values[-1], inside))
    )


for _name in ("round", "around"):
    implements(getattr(np, _name))(_round)
Tracer.round = _round  # type: ignore[attr-defined]
Tracer.clip = _clip_method  # type: ignore[attr-defined]
Tracer.sort = _sort_in_place  # type: ignore[attr-defined]
