"""ATen softmaxes and norms. float16 and bfloat16 are normalised in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from planish.capture.torch.call import Call, axis_of, broadcast, cast, number, reshaped, translates
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import Dim, element_count

# --- softmax


@translates("aten._safe_softmax.default")
def safe_softmax(call: Call, x: Node, axis: int, dtype: Any) -> Node:
    """0 where every element is -inf."""
    y = softmax(call, x, axis, dtype)
    axes = (axis_of(axis, x.ndim),) if x.ndim else ()
    seen = ops.gt(ops.reduce_max(x, axes=axes, keepdims=True), number(float("-inf"), x.dtype))
    return ops.select(ops.bitwise_or(seen, ops.is_nan(x)), y, number(0, y.dtype))


@translates("aten._softmax.default")
def softmax(call: Call, x: Node, axis: int, dtype: Any) -> Node:
    return _along(ops.softmax, ops.exp, call, x, axis)


@translates("aten._log_softmax.default")
def log_softmax(call: Call, x: Node, axis: int, half_to_float: bool) -> Node:
    return _along(ops.log_softmax, lambda v: v, call, x, axis)


def _along(op: Any, of_one: Any, call: Call, x: Node, axis: int) -> Node:
    wide = cast(x, call.dtype)
    if x.ndim:
        return op(wide, axis=axis_of(axis, x.ndim))
    return of_one(wide - wide)


@translates("aten._softmax_backward_data.default")
def softmax_backward(call: Call, g: Node, y: Node, axis: int, dtype: Any) -> Node:
    """y (g - sum g y)."""
    wide = y.dtype.accumulator
    g, y = cast(g, wide), cast(y, wide)
    axes = (axis_of(axis, y.ndim),) if y.ndim else ()
    return cast(y * (g - ops.reduce_sum(g * y, axes=axes, keepdims=True)), call.dtype)


@translates("aten._log_softmax_backward_data.default")
def log_softmax_backward(call: Call, g: Node, y: Node, axis: int, dtype: Any) -> Node:
    """g - exp(y) sum g."""
    wide = y.dtype.accumulator
    g, y = cast(g, wide), cast(y, wide)
    axes = (axis_of(axis, y.ndim),) if y.ndim else ()
    return cast(g - ops.exp(y) * ops.reduce_sum(g, axes=axes, keepdims=True), call.dtype)


# --- norms


def standardized(x: Node, axes: Sequence[int], epsilon: float) -> tuple[Node, Node, Node]:
    """(x - mean) / sqrt(variance + epsilon), the mean, 1 / sqrt(variance + epsilon), all wide."""
    wide = cast(x, x.dtype.accumulator)
    mean = ops.mean(wide, axes=tuple(axes), keepdims=True)
    inverse = ops.rsqrt(ops.variance(wide, axes=tuple(axes), keepdims=True, correction=0) + epsilon)
    return (wide - mean) * inverse, mean, inverse


def _scaled(x: Node, scale: Node | None, bias: Node | None) -> Node:
    x = x if scale is None else x * cast(scale, x.dtype)
    return x if bias is None else x + cast(bias, x.dtype)


@translates("aten.native_layer_norm.default")
def native_layer_norm(
    call: Call, x: Node, shape: Sequence[Dim], scale: Node | None, bias: Node | None, epsilon: float
) -> tuple[Node, ...]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    normal, mean, inverse = standardized(x, axes, epsilon)
    return _as_called(call, _scaled(normal, scale, bias), mean, inverse)


def _as_called(call: Call, *results: Node) -> tuple[Node, ...]:
    """Results in the dtypes and shapes that torch gives them."""
    return tuple(
        reshaped(cast(r, t.dtype), t.shape) if t is not None else r for r, t in zip(results, call.types)
    )


@translates("aten._fused_rms_norm.default")
def fused_rms_norm(
    call: Call, x: Node, shape: Sequence[Dim], scale: Node | None, epsilon: float | None
) -> tuple[Node, ...]:
    """epsilon None is the dtype's own."""
    wide = cast(x, x.dtype.accumulator)
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    given = float(np.finfo(wide.dtype.numpy).eps) if epsilon is None else epsilon
    inverse = ops.rsqrt(ops.mean(wide * wide, axes=axes, keepdims=True) + given)
    return _as_called(call, _scaled(wide * inverse, scale, None), inverse)


@translates("aten.native_group_norm.default")
def native_group_norm(
    call: Call,
    x: Node,
    scale: Node | None,
    bias: Node | None,
    batch: Dim,
    channels: Dim,
    spatial: Dim,
    groups: int,
    epsilon: float,
) -> tuple[Node, ...]:
    rows = reshaped(x, (batch, groups, element_count(x.shape[1:]) // groups))
    normal, mean, inverse = standardized(rows, (2,), epsilon)
    column = (channels, *[1] * (x.ndim - 2))
    scale, bias = (p if p is None else reshaped(p, column) for p in (scale, bias))
    return _as_called(call, _scaled(reshaped(normal, x.shape), scale, bias), mean, inverse)


# --- batch norm: results are (y, mean, 1 / deviation[, running mean, running variance[, reserve]])


@translates("aten._native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    call: Call,
    x: Node,
    scale: Node | None,
    bias: Node | None,
    mean: Node,
    variance: Node,
    momentum: float,
    epsilon: float,
) -> tuple[Node, ...]:
    return _with_statistics(call, x, scale, bias, mean, variance, epsilon)


@translates(
    "aten._native_batch_norm_legit_functional.default", "aten._batch_norm_with_update_functional.default"
)
def batch_norm_functional(
    call: Call, x: Node, scale: Node | None, bias: Node | None, mean: Node, variance: Node, *options: Any
) -> tuple[Node, ...]:
    training, momentum, epsilon = options if len(options) == 3 else (True, *options)
    if not training:
        results = _with_statistics(call, x, scale, bias, mean, variance, epsilon)
        return _with_reserve(call, results, mean, variance)
    results, running = _of_batch(call, x, scale, bias, mean, variance, momentum, epsilon)
    return _with_reserve(call, results, *running)


@translates("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    call: Call,
    x: Node,
    scale: Node | None,
    bias: Node | None,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Node, ...]:
    return _of_batch(call, x, scale, bias, None, None, momentum, epsilon)[0]


def _with_reserve(call: Call, results: tuple[Node, ...], *running: Node) -> tuple[Node, ...]:
    """A reserve, where torch has one, is an empty tensor."""
    reserve = [broadcast(number(0, t.dtype), t.shape) for t in call.types[3:-2] if t is not None]
    kept = [cast(r, t.dtype) for r, t in zip(running, call.types[-2:]) if t is not None]
    return (*results[:3], *reserve, *kept)


def _with_statistics(
    call: Call, x: Node, scale: Node | None, bias: Node | None, mean: Node, variance: Node, epsilon: float
) -> tuple[Node, ...]:
    wide = x.dtype.accumulator
    column = (x.shape[1], *[1] * (x.ndim - 2))
    mean, variance = (reshaped(cast(p, wide), column) for p in (mean, variance))
    scale, bias = (p if p is None else reshaped(p, column) for p in (scale, bias))
    normal = (cast(x, wide) - mean) * ops.rsqrt(variance + epsilon)
    return (*_as_called(call, _scaled(normal, scale, bias)), *_empty(call, 1, 3))


def _empty(call: Call, first: int, last: int) -> list[Node]:
    return [broadcast(number(0, t.dtype), t.shape) for t in call.types[first:last] if t is not None]


def _of_batch(
    call: Call,
    x: Node,
    scale: Node | None,
    bias: Node | None,
    running_mean: Node | None,
    running_variance: Node | None,
    momentum: float,
    epsilon: float,
) -> tuple[tuple[Node, ...], list[Node]]:
    """With the batch's own statistics, and the running ones moved towards them; the variance that is kept
    divides by one less than the count."""
    axes = tuple(i for i in range(x.ndim) if i != 1)
    column = (x.shape[1], *[1] * (x.ndim - 2))
    normal, mean, inverse = standardized(x, axes, epsilon)
    scale, bias = (p if p is None else reshaped(p, column) for p in (scale, bias))
    results = _as_called(call, _scaled(normal, scale, bias), mean, inverse)
    unbiased = ops.variance(cast(x, normal.dtype), axes=axes, keepdims=False, correction=1)
    running = []
    for old, new in ((running_mean, ops.reshape(mean, shape=x.shape[1:2])), (running_variance, unbiased)):
        if old is not None:
            wide = cast(old, normal.dtype)
            running.append(wide * (1 - momentum) + new * momentum)
    return results, running
