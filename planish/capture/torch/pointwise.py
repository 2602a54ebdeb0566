"""Elementwise ATen: one table line where ours is the same, a formula where it is not.

Operands are computed in the dtype torch promotes them to. Formulas of several steps on float16 and bfloat16
are computed in float32 and rounded once, as torch's kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from planish.capture.torch.call import Call, as_node, broadcast, cast, number, translates
from planish.capture.torch.loops import repeat_while
from planish.capture.torch.promotion import Number
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import BOOL, DType

# In the result's dtype: integers become floats where torch makes them so.
UNARY = {name: name for name in (
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp",
    "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sigmoid", "erf", "erfc", "lgamma",
    "reciprocal", "abs", "neg", "relu", "bitwise_not")}
ROUNDING = ("floor", "ceil", "trunc", "round")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BINARY = {  # ATen's name -> ours, in the promoted dtype
    "mul.Tensor": "mul", "mul.Scalar": "mul", "maximum.default": "maximum", "minimum.default": "minimum",
    "fmax.default": "fmax", "fmin.default": "fmin", "atan2.default": "atan2", "hypot.default": "hypot",
    "copysign.Tensor": "copysign", "copysign.Scalar": "copysign", "nextafter.default": "next_after",
    **{f"bitwise_{name}.{kind}": f"bitwise_{name}" for name in ("and", "or", "xor")
       for kind in ("Tensor", "Scalar", "Scalar_Tensor")},
}


def wide(call: Call, formula: Callable[..., Node], *operands: Any) -> Node:
    """A formula in the accumulator of the result's dtype, rounded once."""
    dtype = call.dtype.accumulator
    return cast(formula(*(as_node(x, dtype) for x in operands)), call.dtype)


def _unary(name: str) -> Callable[..., Node]:
    return lambda call, x: getattr(ops, name)(cast(x, call.dtype))


def _rounding(name: str) -> Callable[..., Node]:
    return lambda call, x: getattr(ops, name)(x) if x.dtype.is_float else x


def _binary(name: str) -> Callable[..., Node]:
    return lambda call, x, y: getattr(ops, name)(as_node(x, call.dtype), as_node(y, call.dtype))


def _comparison(name: str) -> Callable[..., Node]:
    return lambda call, x, y: getattr(ops, name)(*call.promoted(x, y))


def _logical(name: str) -> Callable[..., Node]:
    return lambda call, x, y: getattr(ops, name)(truth(x), truth(y))


for _foreign, _own in UNARY.items():
    translates(f"aten.{_foreign}.default")(_unary(_own))
for _own in ROUNDING:
    translates(f"aten.{_own}.default")(_rounding(_own))
for _foreign, _own in BINARY.items():
    translates(f"aten.{_foreign}")(_binary(_own))
for _own in COMPARISONS:
    translates(f"aten.{_own}.Tensor", f"aten.{_own}.Scalar")(_comparison(_own))
for _foreign in ("and", "or", "xor"):
    translates(f"aten.logical_{_foreign}.default")(_logical(f"bitwise_{_foreign}"))


# torch's prims: one dtype, no promotion.
PRIMS = {
    **{name: name for name in (*UNARY, *COMPARISONS, *ROUNDING, "add", "sub", "mul", "maximum",
                               "minimum", "fmax", "fmin", "atan2", "pow", "hypot", "cbrt", "bitwise_and",
                               "bitwise_or", "bitwise_xor", "shift_left") if name != "relu"},
    "remainder": "mod", "fmod": "rem", "nextafter": "next_after", "shift_right_arithmetic": "shift_right",
    "isfinite": "is_finite",
}


def _prim(name: str) -> Callable[..., Node]:
    def translation(call: Call, *operands: Any) -> Node:
        dtype = next(x.dtype for x in operands if isinstance(x, Node))
        return getattr(ops, name)(*(as_node(x, dtype) for x in operands))

    return translation


for _foreign, _own in PRIMS.items():
    translates(f"prims.{_foreign}.default")(_prim(_own))


@translates("prims.div.default")
def prims_div(call: Call, x: Any, y: Any) -> Node:
    a, b = as_node(x, call.dtype), as_node(y, call.dtype)
    return ops.trunc_div(a, b) if call.dtype.is_integer else ops.div(a, b)


@translates("aten.gcd.default", "prims.gcd.default")
def gcd(call: Call, x: Node, y: Node) -> Node:
    """Euclid's algorithm, for all elements until the last is done."""
    a, b = (broadcast(cast(ops.abs(t), call.dtype), call.shape) for t in (x, y))
    return repeat_while(lambda a, b: ops.ne(b, number(0, b.dtype)), _euclid, (a, b))[0]


def _euclid(a: Node, b: Node) -> tuple[Node, Node]:
    done = ops.eq(b, number(0, b.dtype))
    return ops.select(done, a, b), ops.select(done, b, ops.rem(a, b))


def truth(x: Node) -> Node:
    return cast(x, BOOL)


# --- arithmetic


@translates("aten.add.Tensor", "aten.add.Scalar")
def add(call: Call, x: Any, y: Any, alpha: Any) -> Node:
    return _scaled(call, ops.add, x, y, alpha)


@translates("aten.sub.Tensor", "aten.sub.Scalar")
def sub(call: Call, x: Any, y: Any, alpha: Any) -> Node:
    if call.dtype is BOOL:
        call.refuse("bool has no minus")
    return _scaled(call, ops.sub, x, y, alpha)


def _scaled(call: Call, op: Any, x: Any, y: Any, alpha: Any) -> Node:
    """x op alpha y, rounded once."""
    if isinstance(alpha, (int, float)) and alpha == 1:
        return op(as_node(x, call.dtype), as_node(y, call.dtype))
    return wide(call, lambda a, b, c: op(a, b * c), x, y, alpha)


@translates("aten.div.Tensor", "aten.div.Scalar")
def div(call: Call, x: Any, y: Any) -> Node:
    return ops.div(as_node(x, call.dtype), as_node(y, call.dtype))


@translates("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_rounded(call: Call, x: Any, y: Any, mode: str | None) -> Node:
    a, b = as_node(x, call.dtype), as_node(y, call.dtype)
    if mode is None:
        return ops.div(a, b)
    _refuse_zero(call, b)
    if mode == "floor":
        return ops.floor_div(a, b)
    return ops.trunc_div(a, b) if call.dtype.is_integer else ops.trunc(ops.div(a, b))


@translates("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(call: Call, x: Any, y: Any) -> Node:
    a, b = as_node(x, call.dtype), as_node(y, call.dtype)
    _refuse_zero(call, b)
    return ops.mod(a, b)


@translates("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(call: Call, x: Any, y: Any) -> Node:
    a, b = as_node(x, call.dtype), as_node(y, call.dtype)
    _refuse_zero(call, b)
    return ops.rem(a, b)


def _refuse_zero(call: Call, divisor: Node) -> None:
    """Integers can't be divided by zero; of no elements, none is."""
    if divisor.dtype.is_integer and 0 not in call.shape:
        call.check(ops.ne(divisor, number(0, divisor.dtype)), "RuntimeError", "ZeroDivisionError")


_POWERS: dict[float, Callable[[Node], Node]] = {  # the exponents for which torch does not call pow
    0.5: lambda x: ops.sqrt(x),
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -0.5: lambda x: ops.rsqrt(x),
    -1.0: lambda x: ops.reciprocal(x),
    -2.0: lambda x: ops.reciprocal(x * x),
}


@translates("aten.pow.Tensor_Scalar")
def pow_scalar(call: Call, x: Node, exponent: Any) -> Node:
    if call.dtype.is_float and isinstance(exponent, (int, float)) and float(exponent) in _POWERS:
        return wide(call, _POWERS[float(exponent)], x)
    if call.dtype.is_integer and isinstance(exponent, int) and exponent < 0:
        call.refuse("integers to negative integer powers are not allowed")
    if call.dtype.is_integer and isinstance(exponent, Number):
        allowed = ops.ge(exponent.node, number(0, exponent.node.dtype))
        call.check(allowed, "RuntimeError", "Integers to negative integer powers are not allowed.")
    return ops.pow(as_node(x, call.dtype), as_node(exponent, call.dtype))


@translates("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(call: Call, x: Any, exponent: Any) -> Node:
    return ops.pow(as_node(x, call.dtype), as_node(exponent, call.dtype))


@translates(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.__lshift__.Tensor",
    "aten.__lshift__.Scalar",
)
def left_shift(call: Call, x: Any, y: Any) -> Node:
    return ops.shift_left(as_node(x, call.dtype), as_node(y, call.dtype))


@translates(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__rshift__.Tensor",
    "aten.__rshift__.Scalar",
)
def right_shift(call: Call, x: Any, y: Any) -> Node:
    return ops.shift_right(as_node(x, call.dtype), as_node(y, call.dtype))


@translates("aten.addcmul.default")
def addcmul(call: Call, x: Node, a: Node, b: Node, value: Any) -> Node:
    """x + value a b, the sum of a product rounded once."""
    return wide(call, lambda x, a, b, v: ops.fma(v * a, b, x), x, a, b, value)


@translates("aten.sign.default", "prims.sign.default")
def sign(call: Call, x: Node) -> Node:
    """0 for NaN and for both zeros."""
    if x.dtype is BOOL:
        return x
    zero, one = number(0, x.dtype), number(1, x.dtype)
    below = ops.neg(one) if x.dtype.kind != "uint" else zero
    return ops.select(ops.gt(x, zero), one, ops.select(ops.lt(x, zero), below, zero))


@translates("aten.angle.default")
def angle(call: Call, x: Node) -> Node:
    """Of a real number: 0, or pi of a negative one; NaN stays."""
    y = cast(x, call.dtype)
    turned = ops.select(ops.lt(y, number(0, y.dtype)), number(math.pi, y.dtype), number(0, y.dtype))
    return ops.select(ops.is_nan(y), y, turned)


# --- choices and questions


@translates("aten.where.self", "prims.where.default")
def where(call: Call, condition: Node, x: Node, y: Node) -> Node:
    result = ops.select(truth(condition), as_node(x, call.dtype), as_node(y, call.dtype))
    return broadcast(result, call.shape)


@translates("aten.clamp.default", "aten.clamp.Tensor")
def clamp(call: Call, x: Node, low: Any, high: Any) -> Node:
    """min(max(x, low), high)."""
    result = cast(x, call.dtype)
    if low is not None:
        result = ops.maximum(result, as_node(low, call.dtype))
    return result if high is None else ops.minimum(result, as_node(high, call.dtype))


@translates("aten.logical_not.default")
def logical_not(call: Call, x: Node) -> Node:
    return ops.logical_not(truth(x))


@translates("aten.isnan.default")
def isnan(call: Call, x: Node) -> Node:
    return ops.is_nan(x) if x.dtype.is_float else broadcast(number(False, BOOL), x.shape)


@translates("aten.isinf.default")
def isinf(call: Call, x: Node) -> Node:
    return ops.is_inf(x) if x.dtype.is_float else broadcast(number(False, BOOL), x.shape)


@translates("aten.signbit.default")
def signbit(call: Call, x: Node) -> Node:
    zero = number(0, x.dtype)
    if not x.dtype.is_float:
        return ops.lt(x, zero) if x.dtype is not BOOL else broadcast(number(False, BOOL), x.shape)
    return ops.lt(ops.copysign(number(1, x.dtype), x), zero)


# --- dtypes


@translates("aten._to_copy.default")
def to_copy(call: Call, x: Any, *options: Any) -> Node:
    return converted(x, call.dtype) if isinstance(x, Node) else as_node(x, call.dtype)


@translates("prims.convert_element_type.default")
def convert_element_type(call: Call, x: Node, dtype: DType) -> Node:
    return converted(x, dtype)


def converted(x: Node, dtype: DType) -> Node:
    return cast(x, dtype)


# --- activations that ours keep whole


@translates("aten.gelu.default")
def gelu(call: Call, x: Node, approximate: str) -> Node:
    return ops.gelu(x, approximate=approximate)


@translates("aten.silu.default")
def silu(call: Call, x: Node) -> Node:
    return ops.silu(x)


@translates("aten.elu.default")
def elu(call: Call, x: Node, alpha: Any, scale: Any, input_scale: Any) -> Node:
    """scale (x > 0 ? x : alpha (exp(input_scale x) - 1))."""

    def formula(v: Node) -> Node:
        below = ops.expm1(v * float(input_scale)) * (float(alpha) * float(scale))
        return ops.select(ops.gt(v, number(0, v.dtype)), v * float(scale), below)

    return wide(call, formula, x)


@translates("aten.leaky_relu.default")
def leaky_relu(call: Call, x: Node, slope: Any) -> Node:
    return ops.leaky_relu(x, alpha=float(slope))


@translates("aten.hardtanh.default")
def hardtanh(call: Call, x: Node, low: Any, high: Any) -> Node:
    return clamp(call, x, low, high)


@translates("aten.relu6.default")
def relu6(call: Call, x: Node) -> Node:
    return clamp(call, x, 0, 6)
