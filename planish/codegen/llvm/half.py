"""float16 to and from float: one instruction where the machine has it, else integer arithmetic on the bits.

In: values of LLVM type half or float, any number of lanes. Out: the other type; narrowing rounds to nearest,
ties to even, and a NaN stays a NaN. The formulas are those of F. Giesen, "Half to float done quick".
"""
from __future__ import annotations

from planish.codegen.llvm.builder import Builder, Value, lanes_of, vector
from planish.codegen.llvm.lanes import Lanes

_SIGN, _INFINITY = 0x8000, 0x7C00
_FLOAT_INFINITY, _NAN = 0x7F800000, 0x7E00
_REBIAS = 127 - 15          # between the exponents of the two formats
_SHIFT = 23 - 10            # between their mantissas
_LEAST_NORMAL = (1 + _REBIAS) << 23


def widen(b: Builder, x: Value) -> Value:
    """half -> float, exact."""
    lanes = lanes_of(x.type)
    if "half" not in b.module.lacks:
        return b.cast("fpext", x, vector("float", lanes))
    bits = Lanes(b, x).cast("bitcast", "i16").cast("zext", "i32")
    magnitude = (bits & (_SIGN - 1)) << _SHIFT
    scaled = (magnitude.floats() * 2.0 ** _REBIAS).bits()  # subnormals become normal numbers
    special = magnitude >= _INFINITY << _SHIFT
    return (special.select(magnitude | _FLOAT_INFINITY, scaled) | (bits & _SIGN) << 16).floats().value


def narrow(b: Builder, x: Value) -> Value:
    """float -> half."""
    lanes = lanes_of(x.type)
    if "half" not in b.module.lacks:
        return b.cast("fptrunc", x, vector("half", lanes))
    bits = Lanes(b, x).bits()
    sign = bits.bin("lshr", 16) & _SIGN
    magnitude = bits & 0x7FFFFFFF
    odd = magnitude.bin("lshr", _SHIFT) & 1
    rounded = (magnitude + odd + ((1 << _SHIFT - 1) - 1) - (_REBIAS << 23)).bin("ashr", _SHIFT)
    # one half added: the sum's last place is that of a subnormal of float16, so the addition rounds
    small = (magnitude.floats() + 0.5).bits() - (126 << 23)
    result = (magnitude < _LEAST_NORMAL).select(small, (rounded < _INFINITY).select(rounded, _INFINITY))
    result = (magnitude > _FLOAT_INFINITY).select(_NAN, result)
    return (result | sign).cast("trunc", "i16").cast("bitcast", "half").value
