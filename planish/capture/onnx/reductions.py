"""Reductions, scans and the operators that find extremes: Reduce*, ArgMax, CumSum, TopK, Softmax, Hardmax."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import broadcast, reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.capture.onnx.sizes import make_source
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import BOOL, INT64, Dim, element_count, is_static

Formula = Callable[[Node, "tuple[int, ...]", bool], Node]


def _reduce(formula: Formula) -> Callable[[Call], Node]:
    """Axes are an attribute or operand 1; without any: all, or none where noop_with_empty_axes is set."""
    def translate(call: Call) -> Node:
        axes = call.axes(1)
        if not axes:
            axes = () if call.flag("noop_with_empty_axes") else tuple(range(call.rank()))
        return formula(call[0], axes, call.flag("keepdims", True))
    return translate


def _named(name: str) -> Formula:
    return lambda x, axes, keep: getattr(ops, name)(x, axes=axes, keepdims=keep)


def _extremum(name: str, of_bool: str, empty: str) -> Formula:
    """Of no elements: the least (greatest) value of the dtype, which is infinite for floats."""
    def formula(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
        if x.dtype is BOOL:
            return getattr(ops, of_bool)(x, axes=axes, keepdims=keep)
        if _is_empty(x, axes):
            return _limit(x, axes, keep, empty)
        return getattr(ops, name)(x, axes=axes, keepdims=keep)
    return formula


def _is_empty(x: Node, axes: tuple[int, ...]) -> bool:
    return any(is_static(x.shape[a]) and x.shape[a] == 0 for a in axes)


def _limit(x: Node, axes: tuple[int, ...], keep: bool, which: str) -> Node:
    info = np.iinfo(x.dtype.numpy) if x.dtype.is_integer else None
    limit = getattr(info, which) if info else {"min": -np.inf, "max": np.inf}[which]
    shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes]
    return broadcast(number(limit, x.dtype), shape)


def _sum(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return ops.reduce_sum(x, axes=axes, keepdims=keep)


def _log_sum_exp(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return _limit(x, axes, keep, "min") if _is_empty(x, axes) else ops.logsumexp(x, axes=axes, keepdims=keep)


def _mean(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    """Of integers, the quotient drops the fraction."""
    if x.dtype.is_float:
        return ops.mean(x, axes=axes, keepdims=keep)
    count = element_count([x.shape[a] for a in axes])
    total = _sum(x, axes, keep)
    return ops.trunc_div(total, number(count, x.dtype) if is_static(count) else
                         make_source("size", dim=count, dtype=x.dtype))


REDUCTIONS: dict[str, Formula] = {
    "ReduceSum": _sum,
    "ReduceProd": _named("reduce_prod"),
    "ReduceMean": _mean,
    "ReduceMax": _extremum("reduce_max", "reduce_any", "min"),
    "ReduceMin": _extremum("reduce_min", "reduce_all", "max"),
    "ReduceL1": lambda x, axes, keep: _sum(ops.abs(x), axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
    "ReduceL2": lambda x, axes, keep: ops.sqrt(_sum(x * x, axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: ops.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
}
for _name, _formula in REDUCTIONS.items():
    translates(_name)(_reduce(_formula))


# --- where the extremes are

def _arg(name: str) -> Callable[[Call], Node]:
    """select_last_index: the first of the reversed axis, counted back."""
    def translate(call: Call) -> Node:
        x, axis, keep = call[0], call.axis(), call.flag("keepdims", True)
        if not call.flag("select_last_index"):
            return getattr(ops, name)(x, axis=axis, keepdims=keep)
        found = getattr(ops, name)(ops.reverse(x, axes=(axis,)), axis=axis, keepdims=keep)
        return _size_number(x.shape[axis] - 1) - found
    return translate


def _size_number(dim: Dim) -> Node:
    return number(dim, INT64) if is_static(dim) else make_source("size", dim=dim, dtype=INT64)


translates("ArgMax")(_arg("argmax"))
translates("ArgMin")(_arg("argmin"))


@translates("TopK")
def top_k(call: Call) -> tuple[Node, ...]:
    axis = call.axis(default=-1)
    (k,) = call.sizes_at_run_time(1, "k", most=call.shape()[axis])
    return ops.top_k(call[0], axis=axis, k=k, largest=call.flag("largest", True))


@translates("Hardmax", since=13)
def hardmax(call: Call) -> Node:
    return _hardmax(call[0], call.axis(default=-1))


@translates("Hardmax")
def hardmax_flattened(call: Call) -> Node:
    return _flattened(call, lambda x: _hardmax(x, 1))


def _hardmax(x: Node, axis: int) -> Node:
    """1 at the first greatest element along the axis, else 0."""
    best = ops.argmax(x, axis=axis, keepdims=True)
    place = make_source("iota", shape=x.shape, axis=axis, dtype=INT64)
    return cast(ops.eq(place, best), x.dtype)


# --- softmax: until opset 12 over all axes from `axis` on, taken as one

@translates("Softmax", since=13)
def softmax(call: Call) -> Node:
    return ops.softmax(call[0], axis=call.axis(default=-1))


@translates("LogSoftmax", since=13)
def log_softmax(call: Call) -> Node:
    return ops.log_softmax(call[0], axis=call.axis(default=-1))


@translates("Softmax")
def softmax_flattened(call: Call) -> Node:
    return _flattened(call, lambda x: ops.softmax(x, axis=1))


@translates("LogSoftmax")
def log_softmax_flattened(call: Call) -> Node:
    return _flattened(call, lambda x: ops.log_softmax(x, axis=1))


def _flattened(call: Call, function: Callable[[Node], Node]) -> Node:
    x, axis = call[0], call.axis(default=1)
    rows = reshaped(x, (element_count(x.shape[:axis]), element_count(x.shape[axis:])))
    return reshaped(function(rows), x.shape)


# --- scans

def _scan(name: str) -> Callable[[Call], Node]:
    def translate(call: Call) -> Node:
        axis = call.as_axis(call.integer(1, "axis"), call.rank())
        return getattr(ops, name)(
            call[0], axis=axis, reverse=call.flag("reverse"), exclusive=call.flag("exclusive")
        )

    return translate


translates("CumSum")(_scan("cumsum"))
translates("CumProd")(_scan("cumprod"))
