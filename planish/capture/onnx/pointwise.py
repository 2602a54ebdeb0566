"""Elementwise operators: one table line where ours is the same, a formula where it is not.

The formulas are those of the ONNX operator specification; broadcasting is NumPy's since opset 7.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import inf
from typing import Any

import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.sizes import Value
from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.types import BOOL, STRING, DType

SAME = {
    "Abs": "abs",
    "Neg": "neg",
    "Sign": "sign",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Exp": "exp",
    "Log": "log",
    "Sin": "sin",
    "Cos": "cos",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Tanh": "tanh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
    "Erf": "erf",
    "Sigmoid": "sigmoid",
    "IsNaN": "is_nan",
    "Not": "logical_not",
    "BitwiseNot": "bitwise_not",
    "Relu": "relu",
    "Softplus": "softplus",
    "Mish": "mish",
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "And": "bitwise_and",
    "Or": "bitwise_or",
    "Xor": "bitwise_xor",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Equal": "eq",
    "Less": "lt",
    "LessOrEqual": "le",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Where": "select",
}
ROUNDING = {"Floor": "floor", "Ceil": "ceil", "Round": "round"}
FOLDED_OVER_OPERANDS = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _same(name: str) -> Callable[[Call], Node]:
    return lambda call: getattr(ops, name)(*call.nodes())


def _over_operands(name: str) -> Callable[[Call], Node]:
    return lambda call: reduce(getattr(ops, name), call.nodes())


for _foreign, _own in {**SAME, **ROUNDING}.items():
    translates(_foreign)(_same(_own))
for _foreign, _own in FOLDED_OVER_OPERANDS.items():
    translates(_foreign)(_over_operands(_own))


def number(value: Any, dtype: DType) -> Node:
    """A scalar constant. The 0 of text is the empty string."""
    return constant(np.asarray("" if dtype is STRING and value == 0 else value, dtype.numpy))


def cast(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else ops.cast(x, dtype=dtype)


def stretch(x: Node, *others: Node) -> Node:
    """x broadcast against the others."""
    from planish.types import broadcast_shapes
    shape = broadcast_shapes(x.shape, *(o.shape for o in others))
    return x if shape == x.shape else ops.broadcast_to(x, shape=shape)


def align_operands(call: Call) -> Call:
    """Before opset 7, operand 1 of a binary operator lies along the axes of operand 0 from `axis` on."""
    if call.domain or call.opset >= 7 or not call.flag("broadcast") or "axis" not in call.attributes:
        return call
    behind = call.rank(0) - call.axis() - call.rank(1)
    aligned = ops.reshape(call[1], shape=(*call.shape(1), *[1] * behind))
    return replace(call, operands=(call.operands[0], aligned))


# --- arithmetic

@translates("Mean")
def mean_of_operands(call: Call) -> Node:
    return reduce(ops.add, call.nodes()) / len(call.operands)


@translates("Div")
def div(call: Call) -> Node:
    """Of integers, the fraction is dropped."""
    x, y = call[0], call[1]
    return ops.div(x, y) if x.dtype.is_float else ops.trunc_div(x, y)


@translates("Mod")
def mod(call: Call) -> Node:
    """fmod=1: the sign of the dividend, as C's fmod; else that of the divisor."""
    op = ops.rem if call.flag("fmod") else ops.mod
    return op(call[0], call[1])


@translates("Pow")
def pow_(call: Call) -> Node:
    """The result has the base's dtype; a mixed pair is computed in the float of the two."""
    x, y = call[0], call[1]
    if x.dtype is y.dtype:
        return ops.pow(x, y)
    wide = x.dtype if x.dtype.is_float or not y.dtype.is_float else y.dtype
    return cast(ops.pow(cast(x, wide), cast(y, wide)), x.dtype)


@translates("BitShift")
def bit_shift(call: Call) -> Node:
    op = ops.shift_left if call.attribute("direction") == "LEFT" else ops.shift_right
    return op(call[0], call[1])


@translates("IsInf")
def is_inf(call: Call) -> Node:
    x = call[0]
    up, down = call.flag("detect_positive", True), call.flag("detect_negative", True)
    if up and down:
        return ops.is_inf(x)
    if up or down:
        return ops.eq(x, number(inf if up else -inf, x.dtype))
    return ops.broadcast_to(number(False, BOOL), shape=x.shape)


# --- as they are

@translates("Identity")
def identity(call: Call) -> Value:
    return call.value(0)


# --- activations

@translates("Elu")
def elu(call: Call) -> Node:
    return ops.elu(call[0], alpha=call.attribute("alpha", 1.0))


@translates("LeakyRelu")
def leaky_relu(call: Call) -> Node:
    return ops.leaky_relu(call[0], alpha=call.attribute("alpha", 0.01))


@translates("PRelu")
def prelu_per_channel(call: Call) -> Node:
    x, slope = call[0], call[1]
    alone = slope.shape in ((), (1,)) or x.ndim < 2
    return _prelu(x, slope if alone else ops.reshape(slope, shape=(*slope.shape, *[1] * (x.ndim - 2))))


@translates("PRelu", since=7)
def prelu(call: Call) -> Node:
    return _prelu(call[0], call[1])


def _prelu(x: Node, slope: Node) -> Node:
    return ops.select(ops.lt(x, number(0, x.dtype)), slope * x, x)


@translates("Selu")
def selu(call: Call) -> Node:
    """Klambauer et al. 2017."""
    alpha, gamma = (
        call.attribute("alpha", 1.67326319217681884765625),
        call.attribute("gamma", 1.05070102214813232421875),
    )
    x = call[0]
    return gamma * ops.select(ops.le(x, number(0, x.dtype)), alpha * (ops.exp(x) - 1.0), x)


@translates("Celu")
def celu(call: Call) -> Node:
    """Barron 2017: max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    x, alpha = call[0], call.attribute("alpha", 1.0)
    return ops.maximum(x, 0.0) + ops.minimum(alpha * (ops.exp(x / alpha) - 1.0), 0.0)


@translates("ThresholdedRelu")
def thresholded_relu(call: Call) -> Node:
    x = call[0]
    return ops.select(ops.gt(x, number(call.attribute("alpha", 1.0), x.dtype)), x, number(0, x.dtype))


@translates("HardSigmoid")
def hard_sigmoid(call: Call) -> Node:
    x = call.attribute("alpha", 0.2) * call[0] + call.attribute("beta", 0.5)
    return ops.maximum(ops.minimum(x, 1.0), 0.0)


@translates("HardSwish")
def hard_swish(call: Call) -> Node:
    return ops.hard_swish(call[0])


@translates("Softsign")
def softsign(call: Call) -> Node:
    return call[0] / (ops.abs(call[0]) + 1.0)


@translates("Swish")
def swish(call: Call) -> Node:
    alpha = call.attribute("alpha", 1.0)
    return ops.silu(call[0]) if alpha == 1.0 else call[0] * ops.sigmoid(call[0] * alpha)


@translates("Shrink")
def shrink(call: Call) -> Node:
    x, bias, edge = call[0], call.attribute("bias", 0.0), call.attribute("lambd", 0.5)
    zero = number(0, x.dtype)
    above = ops.select(ops.gt(x, number(edge, x.dtype)), x - number(bias, x.dtype), zero)
    return ops.select(ops.lt(x, number(-edge, x.dtype)), x + number(bias, x.dtype), above)


@translates("Gelu")
def gelu(call: Call) -> Node:
    return ops.gelu(call[0], approximate=call.attribute("approximate", "none"))


@translates("Clip")
def clip_by_attributes(call: Call) -> Node:
    x = call[0]
    low, high = call.attribute("min"), call.attribute("max")
    return _clip(
        x, None if low is None else number(low, x.dtype), None if high is None else number(high, x.dtype)
    )


@translates("Clip", since=11)
def clip(call: Call) -> Node:
    return _clip(call[0], call.get(1), call.get(2))


def _clip(x: Node, low: Node | None, high: Node | None) -> Node:
    """min(max(x, low), high): where low > high, the result is high."""
    x = x if low is None else ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)
