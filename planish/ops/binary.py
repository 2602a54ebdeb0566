"""Elementwise ops of two operands of one dtype; shapes broadcast as NumPy's do.

Integers wrap. Dividing an integer by 0 gives 0, and the least integer divided by -1 wraps; shifts by the
width or more, and by negative counts, shift everything out.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from planish.ops.record import Op
from planish.ops.rules import (
    ANY,
    BITS,
    FLOATS,
    INTEGERS,
    NUMBERS,
    broadcast_rule,
    define,
    like,
    no_slope,
    ops,
    pointwise_gradient,
    predicate_rule,
    rounded,
)
from planish.ops.samples import Samples, binary_samples
from planish.types import DType


def binary(name: str, meaning: Callable[..., Any], slopes: Callable[..., Any] | None = None, *,
           dtypes: Sequence[DType] = NUMBERS, tolerance: str = "exact", traits: Iterable[str] = (),
           samples: Samples | None = None, rule: Callable[..., Any] = broadcast_rule,
           differentiable: bool = True) -> Op:
    """`slopes(g, z, x, y)` are the cotangents of x and y where z = meaning(x, y) has cotangent g."""
    reference = rounded(meaning)
    gradient = None if not differentiable else no_slope if slopes is None else pointwise_gradient(slopes)
    return define(name, "binary", rule, lambda a, x, y: reference(x, y), operands=2, dtypes=dtypes,
                  traits={"pointwise", *traits}, tolerance=tolerance, samples=samples or binary_samples(),
                  gradient=gradient)


# --- integer meanings

def _by_kind(floats: Callable[..., Any], integers: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: integers(x, y) if x.dtype.kind in "iu" else floats(x, y)


def _truncated_remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.fmod(x, y)  # NumPy's: by 0 gives 0, and the sign is that of x


def _truncated_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.floor_divide(x - np.fmod(x, y), y)


def integer_power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x ** y by squaring, wrapping. Negative exponents: 1 for 1, ±1 for -1, 0 for the rest."""
    x, y = np.broadcast_arrays(x, y)
    one = x.dtype.type(1)
    result, base, left = np.ones_like(x), x, np.where(y > 0, y, np.zeros_like(y))
    while left.any():
        result = np.where(left & one, result * base, result)
        base = base * base
        left = left >> one
    signs = np.where(y & one, x, x * x)  # of x = ±1
    return np.where(y >= 0, result, np.where(np.abs(x) == 1, signs, np.zeros_like(x)))


def gate_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x sigmoid(y ln 4) = x / (1 + 4^-y); 0 where 4^-y overflows and x is finite."""
    return x / (1 + np.exp2(-2 * y))


def high_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The upper half of the double-width product."""
    bits = 8 * x.dtype.itemsize
    if bits < 64:
        wide = np.dtype(f"{x.dtype.kind}8")
        return ((x.astype(wide) * y.astype(wide)) >> wide.type(bits)).astype(x.dtype)
    unsigned = _high_product_u64(x.astype(np.uint64), y.astype(np.uint64))
    if x.dtype.kind == "u":
        return unsigned
    # As unsigned, a negative factor is too large by 2^64.
    return unsigned.astype(np.int64) - np.where(x < 0, y, 0) - np.where(y < 0, x, 0)


def _high_product_u64(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By halves of 32 bits (Knuth, The Art of Computer Programming 2, 4.3.1 M)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    carried = x1 * y0 + ((x0 * y0) >> half)
    middle = x0 * y1 + (carried & low)
    return x1 * y1 + (carried >> half) + (middle >> half)


# --- formulas

def _share(g: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The chosen operand gets the cotangent; half each at ties."""
    half, zero = ops.select(ops.eq(x, y), g * 0.5, g), like(g, 0.0)
    return ops.select(ops.eq(x, z), half, zero), ops.select(ops.eq(y, z), half, zero)


def _pow_slopes(g: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """y * x^(y-1), 0 where y is 0; z * log x, 0 where x is 0 and for y > 0 the limit is 0."""
    base = ops.select(ops.eq(y, 0.0), x * 0.0, y * ops.pow(x, y - 1.0))
    safe = ops.select(ops.eq(x, 0.0), x * 0.0 + 1.0, x)
    return g * base, g * z * ops.log(safe)


def _atan2_slopes(g: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    square = x * x + y * y
    return g * y / square, ops.neg(g * x / square)


def _gate_slopes(g: Any, z: Any, x: Any, y: Any) -> tuple[Any, Any]:
    share = ops.gate(like(y, 1.0), y)
    return g * share, g * z * (1.0 - share) * math.log(4)


def _zero_second(g: Any, z: Any, x: Any, y: Any) -> tuple[Any, None]:
    return g, None


_NONZERO = binary_samples(right=(1, 6))
_SYMMETRIC = {"commutative"}

# --- arithmetic
add = binary("add", np.add, lambda g, z, x, y: (g, g), dtypes=ANY, traits=_SYMMETRIC)
sub = binary("sub", np.subtract, lambda g, z, x, y: (g, ops.neg(g)))
mul = binary("mul", np.multiply, lambda g, z, x, y: (g * y, g * x), dtypes=ANY, traits=_SYMMETRIC)
div = binary("div", np.divide, lambda g, z, x, y: (g / y, ops.neg(g * z / y)), dtypes=FLOATS,
             samples=_NONZERO)
floor_div = binary("floor_div", np.floor_divide, samples=_NONZERO)
mod = binary("mod", np.remainder, lambda g, z, x, y: (g, ops.neg(g * ops.floor_div(x, y))), samples=_NONZERO,
             tolerance="rounded")
trunc_div = binary("trunc_div", _by_kind(lambda x, y: np.trunc(x / y), _truncated_quotient), samples=_NONZERO)
rem = binary("rem", _truncated_remainder, lambda g, z, x, y: (g, ops.neg(g * ops.trunc_div(x, y))),
             samples=_NONZERO)
pow_ = binary("pow", _by_kind(np.power, integer_power), _pow_slopes, tolerance="transcendental",
              samples=binary_samples(0, 8, right=(-3, 6)))
atan2 = binary("atan2", np.arctan2, _atan2_slopes, dtypes=FLOATS, tolerance="transcendental")
hypot = binary("hypot", np.hypot, lambda g, z, x, y: (g * x / z, g * y / z), dtypes=FLOATS,
               tolerance="transcendental", traits=_SYMMETRIC)
gate = binary("gate", gate_of, _gate_slopes, dtypes=FLOATS, tolerance="transcendental",
              samples=binary_samples(right=(-15, 15)))
copysign = binary("copysign", np.copysign, lambda g, z, x, y: (g * ops.sign(x) * ops.sign(z), None),
                  dtypes=FLOATS)
next_after = define("next_after", "binary", broadcast_rule, lambda a, x, y: np.asarray(np.nextafter(x, y)),
                    operands=2, dtypes=FLOATS, traits={"pointwise"}, samples=binary_samples(),
                    gradient=pointwise_gradient(_zero_second))
maximum = binary("maximum", np.maximum, _share, dtypes=ANY, traits=_SYMMETRIC)
minimum = binary("minimum", np.minimum, _share, dtypes=ANY, traits=_SYMMETRIC)
fmax = binary("fmax", np.fmax, _share, dtypes=ANY, traits=_SYMMETRIC)
fmin = binary("fmin", np.fmin, _share, dtypes=ANY, traits=_SYMMETRIC)

# --- bits: of bool, the logical ones
bitwise_and = binary("bitwise_and", np.bitwise_and, dtypes=BITS, traits=_SYMMETRIC)
bitwise_or = binary("bitwise_or", np.bitwise_or, dtypes=BITS, traits=_SYMMETRIC)
bitwise_xor = binary("bitwise_xor", np.bitwise_xor, dtypes=BITS, traits=_SYMMETRIC)
shift_left = binary("shift_left", np.left_shift, dtypes=INTEGERS, samples=binary_samples(right=(0, 64)))
shift_right = binary("shift_right", np.right_shift, dtypes=INTEGERS, samples=binary_samples(right=(0, 64)))
mul_high = binary("mul_high", high_product, dtypes=INTEGERS, traits=_SYMMETRIC)

# --- comparisons -> bool
eq = binary("eq", np.equal, dtypes=ANY, rule=predicate_rule, traits=_SYMMETRIC)
ne = binary("ne", np.not_equal, dtypes=ANY, rule=predicate_rule, traits=_SYMMETRIC)
lt = binary("lt", np.less, dtypes=ANY, rule=predicate_rule)
le = binary("le", np.less_equal, dtypes=ANY, rule=predicate_rule)
gt = binary("gt", np.greater, dtypes=ANY, rule=predicate_rule)
ge = binary("ge", np.greater_equal, dtypes=ANY, rule=predicate_rule)
