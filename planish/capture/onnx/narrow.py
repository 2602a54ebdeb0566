"""Cast, CastLike and BitCast, and what of them is particular to floats of 8 bits.

The rules are the tables of the Cast operator. Our cast rounds to nearest and gives infinity or NaN for what
is too large; `saturate` clips before it. float8_e8m0fnu, powers of two without sign, rounds in three ways.
"""
from __future__ import annotations

import ml_dtypes
import numpy as np

from planish.capture.onnx.call import Call, translates
from planish.capture.onnx.pointwise import cast, number
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import (
    BOOL,
    FLOAT8_E4M3FN,
    FLOAT8_E4M3FNUZ,
    FLOAT8_E5M2,
    FLOAT8_E5M2FNUZ,
    FLOAT8_E8M0FNU,
    FLOAT32,
    UINT8,
    UINT32,
    DType,
)

FLOATS8 = (FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ, FLOAT8_E5M2, FLOAT8_E5M2FNUZ)  # the ones that `saturate` is for


@translates("Cast")
def cast_to(call: Call) -> Node:
    return _converted(call, call.dtype_attribute("to"))


@translates("CastLike")
def cast_like(call: Call) -> Node:
    return _converted(call, call.dtype(1))


def _converted(call: Call, dtype: DType) -> Node:
    x, saturate = call[0], call.flag("saturate", True)
    if x.dtype is dtype:
        return x
    if dtype is FLOAT8_E8M0FNU:
        return _exponent(call, x, call.attribute("round_mode", "up"), saturate)
    return saturated(x, dtype) if saturate and dtype in FLOATS8 else cast(x, dtype)


@translates("BitCast")
def bit_cast(call: Call) -> Node:
    """A bool is a byte that is 0 or 1."""
    x, dtype = call[0], call.dtype_attribute("to")
    x = cast(x, UINT8) if x.dtype is BOOL and dtype is not BOOL else x
    whole = UINT8 if dtype is BOOL and x.dtype is not BOOL else dtype
    return cast(x if x.dtype is whole else ops.bitcast(x, dtype=whole), dtype)


def saturated(x: Node, dtype: DType) -> Node:
    """As `dtype`, a float of 8 bits; what is too large, or infinite, is its largest number. NaN stays NaN."""
    x = x if x.dtype.is_float and not x.dtype.is_storage else cast(x, FLOAT32)
    most = float(ml_dtypes.finfo(dtype.numpy).max)
    return cast(ops.minimum(ops.maximum(x, number(-most, x.dtype)), number(most, x.dtype)), dtype)


_MANTISSA, _INFINITY = 23, 0x7F800000  # of float32
# added to the bits of a float32 before those of the mantissa are dropped
_ROUNDING = {"up": (1 << _MANTISSA) - 1, "nearest": 1 << _MANTISSA - 1, "down": 0}


def _exponent(call: Call, x: Node, mode: str, saturate: bool) -> Node:
    """As float8_e8m0fnu: the exponent of a float32, rounded. Out of range is the least or the largest, or NaN
    without `saturate`. Of a negative number, which has no such float, that of its magnitude."""
    if mode not in _ROUNDING:
        call.invalid(f"round_mode {mode!r} is not one of {', '.join(_ROUNDING)}")
    bits = ops.bitwise_and(ops.bitcast(cast(x, FLOAT32), dtype=UINT32), _unsigned(0x7FFFFFFF))
    # The least number, 2 ** -127, is a subnormal float32: its mantissa has one bit less.
    is_tiny = ops.lt(bits, _unsigned(1 << _MANTISSA))
    added = ops.select(is_tiny, _unsigned(_ROUNDING[mode] >> 1), _unsigned(_ROUNDING[mode]))
    code = ops.shift_right(bits + added, _unsigned(_MANTISSA))
    code = ops.minimum(code, _unsigned(0xFE if saturate else 0xFF))
    is_nan = ops.gt(bits, _unsigned(_INFINITY))
    if not saturate:
        is_nan = ops.bitwise_or(is_nan, ops.lt(bits, _unsigned(1 << _MANTISSA - 1)))
    return ops.bitcast(cast(ops.select(is_nan, _unsigned(0xFF), code), UINT8), dtype=FLOAT8_E8M0FNU)


def _unsigned(value: int) -> Node:
    return number(np.uint32(value), UINT32)
