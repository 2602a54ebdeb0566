"""Composite ops over axes: means, softmax, norms. float16 and bfloat16 are computed in float32.

Variance is two-pass: the mean first, then the mean of squared distances, so a large mean does no harm.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planish.ops.activation import in_accumulator
from planish.ops.derive import by_decomposition, in_float32
from planish.ops.record import Op, Sample
from planish.ops.reduce import ReduceAttributes, stretched
from planish.ops.rules import (
    FLOATS,
    count_of,
    define,
    like,
    ops,
    reduced_shape,
    require,
    require_axes,
    require_axis,
    require_same_dtype,
    size_like,
)
from planish.ops.samples import Samples, random_array, strided, with_specials
from planish.ops.shape import AxisAttributes
from planish.types import DType, TensorType


@dataclass(frozen=True)
class VarianceAttributes:
    """Divides by count - correction."""

    axes: tuple[int, ...]
    keepdims: bool = False
    correction: float = 0


@dataclass(frozen=True)
class LayerNormAttributes:
    """Normalises over the last `axes_count` axes."""

    axes_count: int = 1
    epsilon: float = 1e-5


@dataclass(frozen=True)
class EpsilonAttributes:
    epsilon: float = 1e-5


# --- type rules

def _axis_rule(attributes: AxisAttributes, x: TensorType) -> TensorType:
    require_axis(attributes.axis, x.rank)
    require(x.shape[attributes.axis] != 0, f"axis {attributes.axis} is empty")
    return x


def _axes_rule(attributes: ReduceAttributes | VarianceAttributes, x: TensorType) -> TensorType:
    require_axes(attributes.axes, x.rank)
    return x.with_shape(reduced_shape(x.shape, attributes.axes, attributes.keepdims))


def _nonempty_axes_rule(attributes: ReduceAttributes, x: TensorType) -> TensorType:
    for axis in attributes.axes:
        _axis_rule(AxisAttributes(axis), x)
    return _axes_rule(attributes, x)


def _layer_norm_rule(attributes: LayerNormAttributes, x: TensorType, *parameters: TensorType) -> TensorType:
    require(1 <= attributes.axes_count <= x.rank, f"axes_count {attributes.axes_count} of {x.rank} axes")
    return _normalised(x, x.shape[x.rank - attributes.axes_count:], *parameters)


def _rms_norm_rule(attributes: EpsilonAttributes, x: TensorType, scale: TensorType) -> TensorType:
    require(x.rank >= 1, "takes an operand of one axis or more")
    return _normalised(x, x.shape[-1:], scale)


def _batch_norm_rule(attributes: EpsilonAttributes, x: TensorType, *parameters: TensorType) -> TensorType:
    require(x.rank >= 2, "takes an operand [N, C, ...]")
    return _normalised(x, x.shape[1:2], *parameters)


def _normalised(x: TensorType, shape: Sequence[Any], *parameters: TensorType) -> TensorType:
    require_same_dtype(x, *parameters)
    for parameter in parameters:
        require(parameter.shape == tuple(shape),
                f"parameters are to be {x.with_shape(shape)}, not {parameter}")
    return x


# --- formulas

def _mean(a: ReduceAttributes, x: Any) -> Any:
    total = ops.reduce_sum(x, axes=a.axes, keepdims=a.keepdims)
    return ops.div(total, size_like(x, count_of(x.shape, a.axes)))


def _mean_kept(x: Any, axes: tuple[int, ...]) -> Any:
    return _mean(ReduceAttributes(axes, True), x)


def _variance(a: VarianceAttributes, x: Any) -> Any:
    centred = ops.sub(x, _mean_kept(x, a.axes))
    total = ops.reduce_sum(ops.mul(centred, centred), axes=a.axes, keepdims=a.keepdims)
    count = ops.sub(size_like(x, count_of(x.shape, a.axes)), a.correction)
    return ops.div(total, ops.maximum(count, 0))


def _softmax(a: AxisAttributes, x: Any) -> Any:
    e = ops.exp(ops.sub(x, ops.reduce_max(x, axes=(a.axis,), keepdims=True)))
    return ops.div(e, ops.reduce_sum(e, axes=(a.axis,), keepdims=True))


def _log_softmax(a: AxisAttributes, x: Any) -> Any:
    shifted = ops.sub(x, ops.reduce_max(x, axes=(a.axis,), keepdims=True))
    return ops.sub(shifted, ops.log(ops.reduce_sum(ops.exp(shifted), axes=(a.axis,), keepdims=True)))


def _logsumexp(a: ReduceAttributes, x: Any) -> Any:
    """An infinite largest element is not subtracted: inf - inf is NaN."""
    largest = ops.reduce_max(x, axes=a.axes, keepdims=True)
    shift = ops.select(ops.is_inf(largest), like(x, 0), largest)
    total = ops.log(ops.reduce_sum(ops.exp(ops.sub(x, shift)), axes=a.axes, keepdims=True))
    result = ops.add(total, shift)
    return ops.reshape(result, shape=reduced_shape(tuple(x.shape), a.axes, a.keepdims))


def _layer_norm(a: LayerNormAttributes, x: Any, scale: Any, bias: Any) -> Any:
    """Ba, Kiros and Hinton, Layer Normalization, 2016."""
    rank = len(x.shape)
    axes = tuple(range(rank - a.axes_count, rank))
    centred = ops.sub(x, _mean_kept(x, axes))
    deviation = ops.sqrt(ops.add(_mean_kept(ops.mul(centred, centred), axes), a.epsilon))
    return ops.add(ops.mul(ops.div(centred, deviation), scale), bias)


def _rms_norm(a: EpsilonAttributes, x: Any, scale: Any) -> Any:
    """Zhang and Sennrich, Root Mean Square Layer Normalization, 2019."""
    last = (len(x.shape) - 1,)
    return ops.mul(ops.div(x, ops.sqrt(ops.add(_mean_kept(ops.mul(x, x), last), a.epsilon))), scale)


def _batch_norm(a: EpsilonAttributes, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """Ioffe and Szegedy, Batch Normalization, 2015, with the statistics given."""
    column = (x.shape[1], *(1,) * (len(x.shape) - 2))
    scale, bias, mean, var = (ops.reshape(p, shape=column) for p in (scale, bias, mean, var))
    return ops.add(ops.mul(ops.sub(x, mean), ops.div(scale, ops.sqrt(ops.add(var, a.epsilon)))), bias)


# --- gradients; the others follow from the formulas

def _softmax_gradient(g: Any, a: AxisAttributes, y: Any, x: Any) -> Any:
    return y * (g - ops.reduce_sum(g * y, axes=(a.axis,), keepdims=True))


def _log_softmax_gradient(g: Any, a: AxisAttributes, y: Any, x: Any) -> Any:
    return g - ops.exp(y) * ops.reduce_sum(g, axes=(a.axis,), keepdims=True)


def _logsumexp_gradient(g: Any, a: ReduceAttributes, y: Any, x: Any) -> Any:
    return stretched(g, x, a) * ops.exp(x - stretched(y, x, a))


# --- samples

def _inputs(rng: np.random.Generator, dtype: DType) -> Iterator[tuple[np.ndarray, str]]:
    """Matrices to be worked on along the last axis."""
    def x(*shape: int) -> np.ndarray:
        return random_array(rng, dtype, shape)
    for n in (1, 3, 8, 17, 33, 1000):
        yield x(3, n), f"rows of {n}"
    yield x(0, 5), "no rows"
    yield strided(x(7, 17)), "strided"
    yield with_specials(rng, x(33, 9), dtype), "special"
    yield (x(5, 33) + np.array(500, dtype.numpy)).astype(dtype.numpy), "large mean"
    yield x(70, 1000), "parallel"


def _along_axis(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for x, label in _inputs(rng, dtype):
        yield Sample((x,), {"axis": 1}, label)
    yield Sample((random_array(rng, dtype, (4, 17, 3)),), {"axis": 1}, "middle axis")
    yield Sample((random_array(rng, dtype, (17, 9)),), {"axis": 0}, "first axis")


def _over_axes(*settings: dict[str, Any]) -> Samples:
    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        for more in settings:
            for x, label in _inputs(rng, dtype):
                yield Sample((x,), {"axes": (1,), **more}, f"{label}, {more}")
            yield Sample((random_array(rng, dtype, (4, 17, 3)),), {"axes": (0, 2), **more},
                         f"two axes, {more}")
    return samples


def _with_parameters(count: int, *settings: dict[str, Any]) -> Samples:
    def samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
        for more in settings:
            for x, label in _inputs(rng, dtype):
                shape = x.shape[x.ndim - more.get("axes_count", 1):]
                parameters = (random_array(rng, dtype, shape) for _ in range(count))
                yield Sample((x, *parameters), more, f"{label}, {more}")
    return samples


def _batch_norm_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    for shape in ((3, 17), (2, 5, 7, 3), (0, 4, 3), (1, 1, 1), (4, 16, 33, 33)):
        x = random_array(rng, dtype, shape)
        scale, bias, mean = (random_array(rng, dtype, shape[1:2]) for _ in range(3))
        parameters = (scale, bias, mean, random_array(rng, dtype, shape[1:2], 0, 4))
        yield Sample((x, *parameters), {"epsilon": 1e-5}, str(shape))
        yield Sample((strided(x), *parameters), {"epsilon": 1e-2}, f"{shape}, strided")
        yield Sample((with_specials(rng, x, dtype), *parameters), {"epsilon": 1e-5}, f"{shape}, special")


# --- records

def _composite(name: str, rule: Callable[..., Any], formula: Callable[..., Any], attributes: type,
               samples: Samples, operands: int = 1, gradient: Callable[..., Any] | None = None) -> Op:
    decompose = in_accumulator(formula)
    return define(name, "normalize", rule, operands=operands, dtypes=FLOATS, attributes=attributes,
                  traits={"composite"}, tolerance="composite", samples=samples, decompose=decompose,
                  gradient=gradient or by_decomposition(decompose))


_KEEPING = ({"keepdims": False}, {"keepdims": True})

mean = _composite("mean", _axes_rule, _mean, ReduceAttributes, _over_axes(*_KEEPING))
variance = _composite("variance", _axes_rule, _variance, VarianceAttributes,
                      _over_axes({"correction": 0}, {"correction": 1, "keepdims": True}))
softmax = _composite("softmax", _axis_rule, _softmax, AxisAttributes, _along_axis,
                     gradient=in_float32(_softmax_gradient))
log_softmax = _composite("log_softmax", _axis_rule, _log_softmax, AxisAttributes, _along_axis,
                         gradient=in_float32(_log_softmax_gradient))
logsumexp = _composite("logsumexp", _nonempty_axes_rule, _logsumexp, ReduceAttributes, _over_axes(*_KEEPING),
                       gradient=in_float32(_logsumexp_gradient))
layer_norm = _composite("layer_norm", _layer_norm_rule, _layer_norm, LayerNormAttributes,
                        _with_parameters(2, {"axes_count": 1, "epsilon": 1e-5},
                                         {"axes_count": 2, "epsilon": 1e-3}), 3)
rms_norm = _composite("rms_norm", _rms_norm_rule, _rms_norm, EpsilonAttributes,
                      _with_parameters(1, {"epsilon": 1e-6}), 2)
batch_norm = _composite("batch_norm", _batch_norm_rule, _batch_norm, EpsilonAttributes,
                        _batch_norm_samples, 5)
