"""Elementwise ops of one operand."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planish.ops import special
from planish.ops.record import Op
from planish.ops.rules import (
    BITS,
    FLOATS,
    NUMBERS,
    broadcast_rule,
    define,
    no_slope,
    ops,
    pointwise_gradient,
    predicate_rule,
    rounded,
)
from planish.ops.samples import unary_samples
from planish.types import DType

_PI_2 = 2 / math.sqrt(math.pi)  # the slope of erf at 0


def unary(name: str, meaning: Callable[..., Any], slope: Callable[..., Any] | None = None, *,
          dtypes: Sequence[DType] = FLOATS, tolerance: str = "transcendental",
          between: tuple[float | None, float | None] = (None, None),
          rule: Callable[..., Any] = broadcast_rule) -> Op:
    """`slope(g, y, x)` is the cotangent of x where y = meaning(x) has cotangent g; None: it is 0."""
    reference = rounded(meaning)
    gradient = no_slope if slope is None else pointwise_gradient(slope)
    return define(name, "unary", rule, lambda a, x: reference(x), operands=1, dtypes=dtypes,
                  traits={"pointwise"}, tolerance=tolerance, samples=unary_samples(*between),
                  gradient=gradient)


def sigmoid_of(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow on either side."""
    e = np.exp(-np.abs(x))
    one = np.ones_like(e)
    return np.where(np.signbit(x), e, one) / (one + e)


def decay2_of(x: np.ndarray) -> np.ndarray:
    """2^min(x, 0); 0 from 2^-126.5 down, about where float32 has no normal numbers."""
    return np.where(x <= -126.5, np.zeros_like(x), np.exp2(np.minimum(x, 0)))


_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)


def digamma(x: Any) -> Any:
    """The slope of lgamma: recurrence up to 8, then the asymptotic series; reflection below a half
    (Abramowitz and Stegun, 6.3.5, 6.3.7 and 6.3.18)."""
    mirror = ops.lt(x, 0.5)
    z = ops.select(mirror, 1.0 - x, x)
    w = z + 8.0
    inverse = 1.0 / (w * w)
    series = inverse * 0.0
    for c in reversed(_DIGAMMA):
        series = (series + c) * inverse
    result = ops.log(w) - 0.5 / w - series
    for i in range(8):
        result = result - 1.0 / (z + float(i))
    return ops.select(mirror, result - math.pi / ops.tan((x - ops.trunc(x)) * math.pi), result)


# --- arithmetic
neg = unary("neg", np.negative, lambda g, y, x: ops.neg(g), dtypes=NUMBERS, tolerance="exact")
abs_ = unary("abs", np.abs, lambda g, y, x: g * ops.sign(x), dtypes=NUMBERS, tolerance="exact")
sign = unary("sign", np.sign, dtypes=NUMBERS, tolerance="exact")
sqrt = unary("sqrt", np.sqrt, lambda g, y, x: g * 0.5 / y, tolerance="exact", between=(0, 50))
rsqrt = unary("rsqrt", lambda x: np.reciprocal(np.sqrt(x)),
              lambda g, y, x: g * -0.5 * y / x, between=(0.01, 50))
reciprocal = unary("reciprocal", np.reciprocal, lambda g, y, x: ops.neg(g * y * y), tolerance="exact")
cbrt = unary("cbrt", np.cbrt, lambda g, y, x: g / (y * y * 3.0))

# --- exponentials and logarithms
exp = unary("exp", np.exp, lambda g, y, x: g * y, between=(-20, 20))
decay = unary("decay", lambda x: np.exp(np.minimum(x, 0)),
              lambda g, y, x: ops.select(ops.lt(x, 0.0), g * y, g * 0.0), between=(-20, 0))
decay2 = unary("decay2", decay2_of, lambda g, y, x: ops.select(ops.lt(x, 0.0), g * y, g * 0.0) * math.log(2),
               between=(-20, 0))
exp2 = unary("exp2", np.exp2, lambda g, y, x: g * y * math.log(2), between=(-20, 20))
expm1 = unary("expm1", np.expm1, lambda g, y, x: g * (y + 1.0), between=(-20, 20))
log = unary("log", np.log, lambda g, y, x: g / x, between=(1e-3, 100))
log2 = unary("log2", np.log2, lambda g, y, x: g / (x * math.log(2)), between=(1e-3, 100))
log10 = unary("log10", np.log10, lambda g, y, x: g / (x * math.log(10)), between=(1e-3, 100))
log1p = unary("log1p", np.log1p, lambda g, y, x: g / (x + 1.0), between=(-0.9, 100))
sigmoid = unary("sigmoid", sigmoid_of, lambda g, y, x: g * y * (1.0 - y), between=(-30, 30))

# --- trigonometric and hyperbolic
sin = unary("sin", np.sin, lambda g, y, x: g * ops.cos(x), between=(-100, 100))
cos = unary("cos", np.cos, lambda g, y, x: ops.neg(g * ops.sin(x)), between=(-100, 100))
tan = unary("tan", np.tan, lambda g, y, x: g * (y * y + 1.0), between=(-1.5, 1.5))
asin = unary("asin", np.arcsin, lambda g, y, x: g * ops.rsqrt(1.0 - x * x), between=(-0.99, 0.99))
acos = unary("acos", np.arccos, lambda g, y, x: ops.neg(g * ops.rsqrt(1.0 - x * x)), between=(-0.99, 0.99))
atan = unary("atan", np.arctan, lambda g, y, x: g / (x * x + 1.0), between=(-20, 20))
sinh = unary("sinh", np.sinh, lambda g, y, x: g * ops.cosh(x), between=(-10, 10))
cosh = unary("cosh", np.cosh, lambda g, y, x: g * ops.sinh(x), between=(-10, 10))
tanh = unary("tanh", np.tanh, lambda g, y, x: g * (1.0 - y * y), between=(-20, 20))
asinh = unary("asinh", np.arcsinh, lambda g, y, x: g * ops.rsqrt(x * x + 1.0), between=(-20, 20))
acosh = unary("acosh", np.arccosh, lambda g, y, x: g * ops.rsqrt(x * x - 1.0), between=(1.01, 20))
atanh = unary("atanh", np.arctanh, lambda g, y, x: g / (1.0 - x * x), between=(-0.99, 0.99))

# --- special functions
erf = unary("erf", special.in_float64(special.erf), lambda g, y, x: g * ops.exp(ops.neg(x * x)) * _PI_2)
erfc = unary("erfc", special.in_float64(special.erfc), lambda g, y, x: g * ops.exp(ops.neg(x * x)) * -_PI_2)
lgamma = unary("lgamma", special.in_float64(special.lgamma), lambda g, y, x: g * digamma(x), between=(-4, 30))

# --- rounding: piecewise constant
floor = unary("floor", np.floor, tolerance="exact")
ceil = unary("ceil", np.ceil, tolerance="exact")
round_ = unary("round", np.rint, tolerance="exact")  # half to even
trunc = unary("trunc", np.trunc, tolerance="exact")

# --- questions and bits
is_nan = unary("is_nan", np.isnan, rule=predicate_rule, tolerance="exact")
is_inf = unary("is_inf", np.isinf, rule=predicate_rule, tolerance="exact")
is_finite = unary("is_finite", np.isfinite, rule=predicate_rule, tolerance="exact")
logical_not = unary("logical_not", np.logical_not, dtypes=BITS[:1], tolerance="exact")
bitwise_not = unary("bitwise_not", np.invert, dtypes=BITS, tolerance="exact")
