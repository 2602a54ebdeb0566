"""Normalisations. float16 and bfloat16 are normalised in float32 and rounded once (stash_type 1)."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.movement import broadcast, reshaped
from planish.capture.onnx.pointwise import cast, number
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import Dim, element_count


def standardized(x: Node, axes: Sequence[int], epsilon: float) -> tuple[Node, Node, Node]:
    """(x - mean) / sqrt(variance + epsilon), the mean, 1 / sqrt(variance + epsilon), accumulated wide."""
    wide = cast(x, x.dtype.accumulator)
    mean = ops.mean(wide, axes=tuple(axes), keepdims=True)
    inverse = ops.rsqrt(ops.variance(wide, axes=tuple(axes), keepdims=True, correction=0) + epsilon)
    return (wide - mean) * inverse, mean, inverse


@translates("LayerNormalization")
def layer_normalization(call: Call) -> list[Node]:
    x, axis, epsilon = call[0], call.axis(default=-1), call.attribute("epsilon", 1e-5)
    wide = x.dtype.accumulator
    scale, bias = cast(call[1], wide), cast(call[2], wide) if call.has(2) else None
    axes = tuple(range(axis, x.ndim))
    bias = broadcast(number(0, wide), scale.shape) if bias is None else bias
    if scale.shape == bias.shape == x.shape[axis:]:
        result = ops.layer_norm(cast(x, wide), scale, bias, axes_count=len(axes), epsilon=epsilon)
    else:
        result = standardized(x, axes, epsilon)[0] * scale + bias
    statistics = standardized(x, axes, epsilon)[1:] if len(call.outputs) > 1 else ()
    return [cast(result, x.dtype), *statistics]


@translates("RMSNormalization")
def rms_normalization(call: Call) -> Node:
    x, axis, epsilon = call[0], call.axis(default=-1), call.attribute("epsilon", 1e-5)
    wide, scale = cast(x, x.dtype.accumulator), call[1]
    axes = tuple(range(axis, x.ndim))
    if len(axes) == 1 and scale.shape == x.shape[-1:]:
        return cast(ops.rms_norm(wide, cast(scale, wide.dtype), epsilon=epsilon), x.dtype)
    inverse = ops.rsqrt(ops.mean(wide * wide, axes=axes, keepdims=True) + epsilon)
    return cast(cast(wide * inverse, x.dtype) * scale, x.dtype)


@translates("BatchNormalization")
def batch_normalization(call: Call) -> Node | list[Node]:
    """With running statistics; in training_mode with those of the batch, and the running ones updated."""
    x, epsilon = call[0], call.attribute("epsilon", 1e-5)
    scale, bias, mean, variance = (call[i] for i in range(1, 5))
    if not call.flag("training_mode"):
        return _batch_norm(x, scale, bias, mean, variance, epsilon)
    axes, momentum = tuple(i for i in range(x.ndim) if i != 1), call.attribute("momentum", 0.9)
    own_mean = cast(ops.mean(x, axes=axes, keepdims=False), mean.dtype)
    own_variance = cast(ops.variance(x, axes=axes, keepdims=False, correction=0), variance.dtype)
    running = [
        old * momentum + new * (1 - momentum) for old, new in ((mean, own_mean), (variance, own_variance))
    ]
    return [_batch_norm(x, scale, bias, own_mean, own_variance, epsilon), *running]


def _batch_norm(x: Node, scale: Node, bias: Node, mean: Node, variance: Node, epsilon: float) -> Node:
    """Statistics may be of a wider dtype than x."""
    wide = max((n.dtype for n in (x, scale, mean)), key=lambda d: d.bits)
    result = ops.batch_norm(*(cast(n, wide) for n in (x, scale, bias, mean, variance)), epsilon=epsilon)
    return cast(result, x.dtype)


def _per_channel(x: Node, rank: int) -> Node:
    return reshaped(x, (1, x.shape[0], *[1] * (rank - 2)))


@translates("InstanceNormalization")
def instance_normalization(call: Call) -> Node:
    x = call[0]
    result = standardized(x, range(2, x.ndim), call.attribute("epsilon", 1e-5))[0]
    scale, bias = (_per_channel(cast(call[i], result.dtype), x.ndim) for i in (1, 2))
    return cast(result * scale + bias, x.dtype)


@translates("GroupNormalization", since=18)
def group_normalization_per_group(call: Call) -> Node:
    """Scale and bias have one number per group, which stands for each of its channels."""
    groups, channels = call.attribute("num_groups"), call.shape()[1]
    scale, bias = (_repeated(call[i], channels // groups) for i in (1, 2))
    return _group_norm(call, scale, bias)


@translates("GroupNormalization", since=21)
def group_normalization(call: Call) -> Node:
    return _group_norm(call, call[1], call[2])


def _repeated(x: Node, times: Dim) -> Node:
    n = x.shape[0]
    return reshaped(broadcast(reshaped(x, (n, 1)), (n, times)), (n * times,))


def _group_norm(call: Call, scale: Node, bias: Node) -> Node:
    x, groups = call[0], call.attribute("num_groups")
    rows = reshaped(x, (x.shape[0], groups, element_count(x.shape[1:]) // groups))
    result = reshaped(standardized(rows, (2,), call.attribute("epsilon", 1e-5))[0], x.shape)
    scale, bias = (_per_channel(cast(n, result.dtype), x.ndim) for n in (scale, bias))
    return cast(result * scale + bias, x.dtype)


@translates("LpNormalization")
def lp_normalization(call: Call) -> Node:
    """x / ||x||_p along the axis, 0 where the norm is 0."""
    x, axis = call[0], call.axis(default=-1)
    if call.attribute("p", 2) == 1:
        norm = ops.reduce_sum(ops.abs(x), axes=(axis,), keepdims=True)
    else:
        norm = ops.sqrt(ops.reduce_sum(x * x, axes=(axis,), keepdims=True))
    zero = number(0, x.dtype)
    return ops.select(ops.eq(norm, zero), zero, x / norm)


@translates("MeanVarianceNormalization")
def mean_variance_normalization(call: Call) -> Node:
    """(x - mean) / (standard deviation + 1e-9): the operator's function body."""
    x = call[0]
    axes = tuple(call.as_axis(a, x.ndim) for a in call.attribute("axes", (0, 2, 3)))
    mean = ops.mean(x, axes=axes, keepdims=True)
    deviation = ops.sqrt(ops.variance(x, axes=axes, keepdims=True, correction=0))
    return (x - mean) / (deviation + number(np.float32(1e-9), x.dtype))
