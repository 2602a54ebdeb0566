"""ATen that reduces over axes, or runs along one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from planish.capture.torch.call import (
    Call,
    axes_of,
    axis_of,
    broadcast,
    cast,
    number,
    reshaped,
    translates,
    transposed,
)
from planish.capture.torch.layouts import inverse
from planish.capture.torch.movement import positions
from planish.capture.torch.pointwise import truth
from planish.ir import Graph, Node, input_node
from planish.ops.rules import ops, size_like
from planish.types import BOOL, INT64, UINT8, DType, TensorType, element_count, is_static

Axes = Sequence[int] | int | None


@translates("aten.sum.dim_IntList")
def sum_over(call: Call, x: Node, axes: Axes, keepdims: bool, dtype: DType | None) -> Node:
    return _reduced("reduce_sum", cast(x, call.dtype), axes, keepdims)


@translates("aten.sum.default")
def sum_all(call: Call, x: Node, dtype: DType | None) -> Node:
    return _reduced("reduce_sum", cast(x, call.dtype), None, False)


@translates("aten.prod.dim_int")
def prod_over(call: Call, x: Node, axis: int, keepdims: bool, dtype: DType | None) -> Node:
    return _reduced("reduce_prod", cast(x, call.dtype), axis, keepdims)


@translates("aten.prod.default")
def prod_all(call: Call, x: Node, dtype: DType | None) -> Node:
    return _reduced("reduce_prod", cast(x, call.dtype), None, False)


def _reduced(name: str, x: Node, axes: Axes, keepdims: bool) -> Node:
    given = axes_of(axes, x.ndim)
    return getattr(ops, name)(x, axes=given, keepdims=keepdims) if given else x


@translates("aten.mean.dim")
def mean_over(call: Call, x: Node, axes: Axes, keepdims: bool, dtype: DType | None) -> Node:
    return _mean(call, x, axes, keepdims)


@translates("aten.mean.default")
def mean_all(call: Call, x: Node, dtype: DType | None) -> Node:
    return _mean(call, x, None, False)


def _mean(call: Call, x: Node, axes: Axes, keepdims: bool) -> Node:
    return ops.mean(cast(x, call.dtype), axes=axes_of(axes, x.ndim), keepdims=keepdims)


# --- extrema


@translates("aten.amax.default")
def amax(call: Call, x: Node, axes: Axes, keepdims: bool) -> Node:
    return _reduced("reduce_max", x, axes, keepdims)


@translates("aten.amin.default")
def amin(call: Call, x: Node, axes: Axes, keepdims: bool) -> Node:
    return _reduced("reduce_min", x, axes, keepdims)


@translates("aten.max.default")
def max_all(call: Call, x: Node) -> Node:
    return _reduced("reduce_max", x, None, False)


@translates("aten.min.default")
def min_all(call: Call, x: Node) -> Node:
    return _reduced("reduce_min", x, None, False)


@translates("aten.max.dim")
def max_along(call: Call, x: Node, axis: int, keepdims: bool) -> tuple[Node, Node]:
    return _extremum("max", x, axis, keepdims)


@translates("aten.min.dim")
def min_along(call: Call, x: Node, axis: int, keepdims: bool) -> tuple[Node, Node]:
    return _extremum("min", x, axis, keepdims)


def _extremum(kind: str, x: Node, axis: int, keepdims: bool) -> tuple[Node, Node]:
    """The value and the first place that has it."""
    if not x.ndim:
        return x, number(0, INT64)
    axis = axis_of(axis, x.ndim)
    value = getattr(ops, f"reduce_{kind}")(x, axes=(axis,), keepdims=keepdims)
    return value, getattr(ops, f"arg{kind}")(x, axis=axis, keepdims=keepdims)


@translates("aten.argmax.default")
def argmax(call: Call, x: Node, axis: int | None, keepdims: bool) -> Node:
    return _argument("argmax", call, x, axis, keepdims)


@translates("aten.argmin.default")
def argmin(call: Call, x: Node, axis: int | None, keepdims: bool) -> Node:
    return _argument("argmin", call, x, axis, keepdims)


def _argument(name: str, call: Call, x: Node, axis: int | None, keepdims: bool) -> Node:
    """Over all elements where no axis is given."""
    if not x.ndim:
        return number(0, INT64)
    if axis is None:
        flat = reshaped(x, (element_count(x.shape),))
        return reshaped(getattr(ops, name)(flat, axis=0, keepdims=False), call.shape)
    return getattr(ops, name)(x, axis=axis_of(axis, x.ndim), keepdims=keepdims)


# --- truth


@translates("aten.any.default")
def any_all(call: Call, x: Node) -> Node:
    return _truth("reduce_any", call, x, None, False)


@translates("aten.any.dim", "aten.any.dims")
def any_over(call: Call, x: Node, axes: Axes, keepdims: bool) -> Node:
    return _truth("reduce_any", call, x, axes, keepdims)


@translates("aten.all.default")
def all_all(call: Call, x: Node) -> Node:
    return _truth("reduce_all", call, x, None, False)


@translates("aten.all.dim", "aten.all.dims")
def all_over(call: Call, x: Node, axes: Axes, keepdims: bool) -> Node:
    return _truth("reduce_all", call, x, axes, keepdims)


def _truth(name: str, call: Call, x: Node, axes: Axes, keepdims: bool) -> Node:
    return cast(_reduced(name, truth(x), axes, keepdims), call.dtype)


# --- variance


@translates("aten.var.correction")
def var(call: Call, x: Node, axes: Axes, correction: Any, keepdims: bool) -> Node:
    return _variance(x, axes, correction, keepdims)


@translates("aten.var_mean.correction")
def var_mean(call: Call, x: Node, axes: Axes, correction: Any, keepdims: bool) -> tuple[Node, Node]:
    mean = ops.mean(x, axes=axes_of(axes, x.ndim), keepdims=keepdims)
    return _variance(x, axes, correction, keepdims), mean


def _variance(x: Node, axes: Axes, correction: Any, keepdims: bool) -> Node:
    correction = 1.0 if correction is None else float(correction)
    return ops.variance(x, axes=axes_of(axes, x.ndim), keepdims=keepdims, correction=correction)


@translates("aten.logsumexp.default")
def logsumexp(call: Call, x: Node, axes: Axes, keepdims: bool) -> Node:
    wide = cast(x, call.dtype)
    given = axes_of(axes, x.ndim)
    return ops.logsumexp(wide, axes=given, keepdims=keepdims) if given else wide


# --- along an axis


def _scan(name: str) -> Callable[..., Node]:
    def translation(call: Call, x: Node, axis: int, dtype: DType | None = None) -> Node:
        wide = cast(x, call.dtype)
        return getattr(ops, name)(wide, axis=axis_of(axis, x.ndim)) if x.ndim else wide

    return translation


translates("aten.cumsum.default")(_scan("cumsum"))
translates("aten.cumprod.default")(_scan("cumprod"))


@translates("aten.sort.default", "aten.sort.stable")
def sort(call: Call, x: Node, *arguments: Any) -> tuple[Node, Node]:
    """Values and where they come from; stable in any case."""
    axis, descending = arguments if call.overload == "aten.sort.default" else arguments[1:]
    if not x.ndim:
        return x, number(0, INT64)
    axis = axis_of(axis, x.ndim)
    order = ops.argsort(x, axis=axis, descending=descending)
    return ops.take_along(x, order, axis=axis), order


@translates("aten.topk.default")
def topk(call: Call, x: Node, k: Any, axis: int, largest: bool, is_sorted: bool) -> tuple[Node, Node]:
    if not x.ndim:
        return x, number(0, INT64)
    if not isinstance(k, int):
        call.refuse("a symbolic k is not supported")
    values, indices = ops.top_k(x, axis=axis_of(axis, x.ndim), k=k, largest=largest)
    return values, indices


@translates("aten.kthvalue.default")
def kthvalue(call: Call, x: Node, k: Any, axis: int, keepdims: bool) -> tuple[Node, ...]:
    """The k-th smallest, counted from 1, and where it stands."""
    if not x.ndim:
        return x, number(0, INT64)
    if not isinstance(k, int):
        call.refuse("a symbolic k is not supported")
    return _ranked(call, x, axis, number(k - 1, INT64))


@translates("aten.median.dim")
def median_along(call: Call, x: Node, axis: int, keepdims: bool) -> tuple[Node, ...]:
    """Of an even count the lower one; a NaN, where there is one, counts as the median."""
    if not x.ndim:
        return x, number(0, INT64)
    axis = axis_of(axis, x.ndim)
    return _ranked(call, x, axis, _with_nans(x, axis, _middle(x, axis)))


@translates("aten.nanmedian.dim")
def nanmedian_along(call: Call, x: Node, axis: int, keepdims: bool) -> tuple[Node, ...]:
    """The median of what is not NaN; NaN where all is."""
    if not x.ndim:
        return x, number(0, INT64)
    axis = axis_of(axis, x.ndim)
    return _ranked(call, x, axis, _middle_number(x, axis))


@translates("aten.median.default")
def median_all(call: Call, x: Node) -> Node:
    flat = reshaped(x, (element_count(x.shape),))
    order = ops.argsort(flat, axis=0)
    at = _with_nans(flat, 0, _middle(flat, 0))
    return reshaped(ops.take(flat, ops.take(order, at, axis=0), axis=0), ())


@translates("aten.nanmedian.default")
def nanmedian_all(call: Call, x: Node) -> Node:
    flat = reshaped(x, (element_count(x.shape),))
    index = ops.take(ops.argsort(flat, axis=0), _middle_number(flat, 0), axis=0)
    return reshaped(ops.take(flat, index, axis=0), ())


def _middle_number(x: Node, axis: int) -> Node:
    """The lower middle place among the numbers, which stand before the NaNs."""
    if not x.dtype.is_float:
        return _middle(x, axis)
    numbers = cast(ops.logical_not(ops.is_nan(x)), INT64)
    count = ops.reduce_sum(numbers, axes=(axis,), keepdims=x.ndim > 1)
    return ops.maximum(ops.floor_div(count - 1, number(2, INT64)), number(0, INT64))


def _middle(x: Node, axis: int) -> Node:
    return ops.floor_div(ops.sub(size_like(x, x.shape[axis], INT64), 1), number(2, INT64))


def _with_nans(x: Node, axis: int, place: Node) -> Node:
    """The place of the median in sorted order: that of the first NaN, where there is one."""
    if not x.dtype.is_float:
        return place
    nans = ops.reduce_sum(cast(ops.is_nan(x), INT64), axes=(axis,), keepdims=x.ndim > 1)
    last = size_like(x, x.shape[axis], INT64)
    return ops.select(ops.gt(nans, number(0, INT64)), ops.sub(last, nans), place)


def _ranked(call: Call, x: Node, axis: int, place: Node) -> tuple[Node, ...]:
    """The elements at a place of the sorted order, and their indices."""
    axis = axis_of(axis, x.ndim)
    order = ops.argsort(x, axis=axis, descending=False)
    shape = tuple(1 if i == axis else d for i, d in enumerate(x.shape))
    at = broadcast(place, shape)
    index = ops.take_along(order, at, axis=axis)
    value = ops.take_along(x, index, axis=axis)
    return tuple(reshaped(r, t.shape) for r, t in zip((value, index), call.types) if t is not None)


def _running(name: str) -> Callable[..., tuple[Node, Node]]:
    def translation(call: Call, x: Node, axis: int) -> tuple[Node, Node]:
        """The running extremum and the last place that set it."""
        if not x.ndim:
            return x, number(0, INT64)
        axis = axis_of(axis, x.ndim)
        x = cast(x, UINT8) if x.dtype is BOOL else x
        values = getattr(ops, name)(x, axis=axis)
        hit = ops.eq(x, values)
        hit = ops.bitwise_or(hit, ops.is_nan(x)) if x.dtype.is_float else hit
        places = positions(call, x.shape, axis)
        marked = ops.select(hit, places, number(0, INT64))
        return cast(values, call.dtype), ops.cummax(marked, axis=axis)
    return translation


translates("aten.cummax.default")(_running("cummax"))
translates("aten.cummin.default")(_running("cummin"))


@translates("aten.logcumsumexp.default")
def logcumsumexp(call: Call, x: Node, axis: int) -> Node:
    """log of the running sum of e^x: one step for each place, log(e^a + e^b) from the greater of both."""
    if not x.ndim:
        return x
    axis = axis_of(axis, x.ndim)
    length = x.shape[axis]
    if not is_static(length) or 0 in x.shape:
        call.refuse("along a symbolic or empty axis")
    order = (axis, *(i for i in range(x.ndim) if i != axis))
    rows = transposed(cast(x, x.dtype.accumulator), order)
    total, row = (input_node(n, TensorType(rows.dtype, rows.shape[1:])) for n in ("total", "row"))
    low, high = ops.minimum(total, row), ops.maximum(total, row)
    same = ops.bitwise_and(ops.eq(low, high), ops.is_inf(low))
    after = ops.select(same, row, high + ops.log1p(ops.exp(low - high)))
    body = Graph((total, row), (after, after), name="step")
    first = broadcast(number(-math.inf, rows.dtype), rows.shape[1:])
    sums = ops.scan_loop(first, rows, body=body, length=length, carries=1)[1]
    return cast(transposed(sums, inverse(order)), call.dtype)
