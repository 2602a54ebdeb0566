"""Composite elementwise ops: activations, clip, square. float16 and bfloat16 are computed in float32."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from math import pi, sqrt
from typing import Any

import numpy as np

from planish.errors import TypeRuleError
from planish.ops.derive import by_decomposition, in_float32
from planish.ops.record import NoAttributes, Op, Sample
from planish.ops.rules import (
    FLOATS,
    NUMBERS,
    broadcast_rule,
    cast_to,
    define,
    like,
    ops,
    require,
    unbroadcast,
)
from planish.ops.samples import Samples, random_array, unary_samples
from planish.types import DType, TensorType, dtype_of


@dataclass(frozen=True)
class GeluAttributes:
    approximate: str = "none"


@dataclass(frozen=True)
class AlphaAttributes:
    alpha: float


def in_accumulator(decompose: Callable[..., Any]) -> Callable[..., Any]:
    """`decompose` in float32 where the first operand is float16 or bfloat16, the result rounded once."""
    @wraps(decompose)
    def widening(attributes: Any, *operands: Any) -> Any:
        return cast_to(decompose(attributes, *widened(*operands)), dtype_of(operands[0].dtype))
    return widening


def widened(*operands: Any) -> list[Any]:
    """The operands, those of the first one's dtype in its accumulator's."""
    dtype = dtype_of(operands[0].dtype)
    return [cast_to(x, dtype.accumulator) if dtype_of(x.dtype) is dtype else x for x in operands]


def activation(name: str, formula: Callable[..., Any], *, attributes: type = NoAttributes,
               dtypes: Sequence[DType] = FLOATS, samples: Samples | None = None,
               rule: Callable[..., Any] = broadcast_rule, gradient: Callable[..., Any] | None = None) -> Op:
    """`formula(attributes, x)` in terms of other ops, from which the gradient follows unless one is given."""
    decompose = in_accumulator(formula)
    return define(name, "activation", rule, operands=1, dtypes=dtypes, attributes=attributes,
                  traits={"pointwise", "composite"}, tolerance="composite",
                  samples=samples or unary_samples(-10, 10), decompose=decompose,
                  gradient=gradient or by_decomposition(decompose))


def _gelu_rule(attributes: GeluAttributes, x: TensorType) -> TensorType:
    require(attributes.approximate in ("none", "tanh"),
            f"approximate is none or tanh, not {attributes.approximate}")
    return x


def _gelu(a: GeluAttributes, x: Any) -> Any:
    """Hendrycks and Gimpel, Gaussian Error Linear Units, 2016."""
    half = ops.mul(x, 0.5)
    if a.approximate == "none":
        return ops.mul(half, ops.add(ops.erf(ops.mul(x, sqrt(0.5))), 1))
    inner = ops.add(x, ops.mul(ops.mul(x, ops.mul(x, x)), 0.044715))
    return ops.mul(half, ops.add(ops.tanh(ops.mul(inner, sqrt(2 / pi))), 1))


def _softplus(a: Any, x: Any) -> Any:
    return ops.add(ops.maximum(x, 0), ops.log1p(ops.exp(ops.neg(ops.abs(x)))))


def _relu6_of_x_plus_3(x: Any) -> Any:
    return ops.minimum(ops.maximum(ops.add(x, 3), 0), 6)


relu = activation("relu", lambda a, x: ops.select(ops.lt(x, 0), like(x, 0), x), dtypes=NUMBERS,
                  gradient=lambda g, a, y, x: (ops.select(ops.le(x, 0), like(g, 0), g),))
square = activation("square", lambda a, x: ops.mul(x, x), dtypes=NUMBERS)
gelu = activation("gelu", _gelu, attributes=GeluAttributes, rule=_gelu_rule,
                  samples=unary_samples(-10, 10, {"approximate": "none"}, {"approximate": "tanh"}))
silu = activation("silu", lambda a, x: ops.mul(x, ops.sigmoid(x)))
softplus = activation("softplus", _softplus)
elu = activation("elu", lambda a, x: ops.select(ops.gt(x, 0), x, ops.mul(ops.expm1(x), a.alpha)),
                 attributes=AlphaAttributes, samples=unary_samples(-10, 10, {"alpha": 1.0}, {"alpha": 0.3}),
                 gradient=in_float32(lambda g, a, y, x: ops.select(ops.gt(x, 0), g, g * ops.add(y, a.alpha))))
leaky_relu = activation("leaky_relu", lambda a, x: ops.select(ops.gt(x, 0), x, ops.mul(x, a.alpha)),
                        attributes=AlphaAttributes,
                        samples=unary_samples(-10, 10, {"alpha": 0.01}, {"alpha": 0.3}))
hard_sigmoid = activation("hard_sigmoid", lambda a, x: ops.div(_relu6_of_x_plus_3(x), 6))
hard_swish = activation("hard_swish", lambda a, x: ops.div(ops.mul(x, _relu6_of_x_plus_3(x)), 6))
mish = activation("mish", lambda a, x: ops.mul(x, ops.tanh(_softplus(a, x))))


def _clip_samples(rng: np.random.Generator, dtype: DType) -> Iterator[Sample]:
    low, high = ((-1, 2) if dtype.kind != "uint" else (3, 90))
    bounds = np.array(low, dtype.numpy), np.array(high, dtype.numpy)
    for sample in unary_samples()(rng, dtype):
        yield Sample((*sample.operands, *bounds), {}, sample.label)
    yield Sample(tuple(random_array(rng, dtype, s) for s in ((3, 17), (17,), (3, 1))), {},
                 "bounds per element")


def _clip_rule(attributes: NoAttributes, x: TensorType, low: TensorType, high: TensorType) -> TensorType:
    try:
        return broadcast_rule(attributes, x, low, high)
    except TypeRuleError as error:
        raise TypeRuleError(f"the bounds do not fit: {error}") from None


def _clip_gradient(g: Any, a: NoAttributes, y: Any, x: Any, low: Any, high: Any) -> Sequence[Any]:
    """To whichever of the three the result is; to x where it equals a bound."""
    zero, raised = like(g, 0), ops.maximum(x, low)
    from_high = ops.gt(raised, high)
    parts = (ops.select(from_high, zero, ops.select(ops.lt(x, low), zero, g)),
             ops.select(from_high, zero, ops.select(ops.lt(x, low), g, zero)), ops.select(from_high, g, zero))
    return tuple(unbroadcast(p, tuple(t.shape)) for p, t in zip(parts, (x, low, high), strict=True))


clip = define("clip", "activation", _clip_rule, operands=3, dtypes=NUMBERS, traits={"pointwise", "composite"},
              samples=_clip_samples, decompose=lambda a, x, low, high: ops.minimum(ops.maximum(x, low), high),
              gradient=_clip_gradient)
