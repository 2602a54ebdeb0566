"""Conversion between any two dtypes, in register form.

Never poison. A float outside the integer's range, or NaN, gives what a C cast gives on x86-64, which is
NumPy's answer there: the least number of int32 or int64; narrower integers are the low bits of the int32,
uint32 those of the int64; uint64 as two int64 halves. So the result is the same on every machine. float64 to
float16 rounds once (NumPy does); integers and float64 reach bfloat16, and integers float16, by way of float32
(as NumPy, ml_dtypes and PyTorch do: for float16 no result differs, for bfloat16 ties beyond 2^24 may).

Dtypes for storage are reached, and left, by way of float32 or of the integer of 8 bits, which hold all their
values (`stored`); so does ml_dtypes.
"""
from __future__ import annotations

from planish.codegen.llvm import stored
from planish.codegen.llvm.builder import Builder, Value
from planish.codegen.llvm.lanes import Lanes
from planish.codegen.llvm.math_parts import INF
from planish.codegen.llvm.registers import (
    FLOATS,
    NARROW,
    STORED,
    UNSIGNED,
    bits_of,
    from_memory,
    memory_type,
    register_type,
    round_to,
    to_memory,
)


def cast(b: Builder, value: Value, source: str, target: str) -> Value:
    """`value` of dtype `source` as dtype `target`."""
    if source == target:
        return value
    if source in STORED:
        return cast(b, stored.decoded(Lanes(b, value), source).value, stored.carrier(source), target)
    if target in STORED:
        return stored.encoded(Lanes(b, cast(b, value, source, stored.carrier(target))), target).value
    x = Lanes(b, value)
    if target == "bool":
        return x.ne(0).value
    if source in FLOATS:
        return (_float_to_float(x, target) if target in FLOATS else _float_to_integer(x, target)).value
    if target in FLOATS:
        return _integer_to_float(x, source, target).value
    return _integer_to_integer(x, source, target).value


def bitcast(b: Builder, value: Value, source: str, target: str) -> Value:
    """The same bits, read as another dtype of the same width."""
    if bits_of(source) != bits_of(target):
        raise ValueError(f"bitcast needs dtypes of one width, not {source} and {target}")
    memory = Lanes(b, to_memory(b, value, source))
    return from_memory(b, memory.cast("bitcast", memory_type(target)).value, target)


def _integer_to_integer(x: Lanes, source: str, target: str) -> Lanes:
    width = bits_of(target)
    if source != "bool" and width <= x.width:
        return x.cast("trunc", f"i{width}")
    return x.cast("zext" if source in (*UNSIGNED, "bool") else "sext", f"i{width}")


def _integer_to_float(x: Lanes, source: str, target: str) -> Lanes:
    opcode = "uitofp" if source in (*UNSIGNED, "bool") else "sitofp"
    return _narrow(x.cast(opcode, register_type(target)), target)


def _float_to_float(x: Lanes, target: str) -> Lanes:
    if target == "float64":
        return x.cast("fpext", "double")
    if x.element == "double" and target == "float16":
        return _narrow(_to_odd_float(x), target)
    return _narrow(x.cast("fptrunc", "float"), target)


def _narrow(x: Lanes, target: str) -> Lanes:
    return Lanes(x.b, round_to(x.b, x.value, target)) if target in NARROW else x


def _to_odd_float(x: Lanes) -> Lanes:
    """double -> float, toward zero with the last bit set if inexact: rounding again then rounds only once."""
    near = x.cast("fptrunc", "float")
    back = near.cast("fpext", "double")
    step = (back.abs() > x.abs()).cast("sext", "i32")  # -1 where rounded away from zero
    inexact = back.compare("fcmp one", x).cast("zext", "i32")
    odd = ((near.bits() + step) | inexact).floats()
    return (near.abs() < INF).select(odd, near)


def _float_to_integer(x: Lanes, target: str) -> Lanes:
    width = bits_of(target)
    if target == "uint64":
        return _float_to_uint64(x)
    through = "i64" if width == 64 or target == "uint32" else "i32"
    return _truncate(x, through).cast("trunc", f"i{width}")


def _truncate(x: Lanes, element: str) -> Lanes:
    """To i32 or i64 toward zero; the least number where the value does not fit."""
    limit = 2.0 ** (int(element[1:]) - 1)
    fits = (x < limit) & (x > -limit - 1 if element == "i32" and x.element == "double" else x >= -limit)
    return fits.select(x, -limit).cast("fptosi", element)


def _float_to_uint64(x: Lanes) -> Lanes:
    big = x >= 2.0 ** 63
    low = _truncate(big.select(x - 2.0 ** 63, x), "i64")
    return big.select(low ^ -(1 << 63), low)
