"""Casts. A cast to a type that holds every value of the old one loses nothing, so what follows may start from
the old one."""
from __future__ import annotations

from planish.ops.rules import ops
from planish.rewrite.pattern import variables
from planish.rewrite.rule import Match, rule
from planish.types import STORAGE, DType

(x,) = variables("x")
SIGNIFICAND = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
EXPONENT = {"float16": 5, "bfloat16": 8, "float32": 8, "float64": 11}
# float8_e4m3fn: 4 bits of exponent, 3 of the significand are written
SIGNIFICAND |= {d.name: int(d.name[10]) + 1 for d in STORAGE if d.is_float}
EXPONENT |= {d.name: int(d.name[8]) for d in STORAGE if d.is_float}


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is one of `wide`: IEEE 754 formats by significand and exponent bits."""
    if wide is narrow:
        return True
    if wide.is_storage:
        return False  # some have no sign of zero, some no zero, some no NaN
    if narrow.kind == "bool":
        return True
    if narrow.is_float:
        return wide.is_float and all(table[wide.name] >= table[narrow.name]
                                     for table in (SIGNIFICAND, EXPONENT))
    value_bits = narrow.bits - (narrow.kind == "int")
    if wide.is_float:
        return value_bits <= SIGNIFICAND[wide.name]
    if wide.kind == "bool" or (wide.kind == "uint" and narrow.kind == "int"):
        return False
    return wide.bits - (wide.kind == "int") >= value_bits


def _loses_nothing(match: Match) -> bool | str:
    first, middle, last = match.x.dtype, match.inner.dtype, match.root.dtype
    if not holds(middle, first):
        return f"{middle.name} does not hold every {first.name}"
    if middle.is_float and last.is_integer and not holds(last, first):
        return f"a {middle.name} out of the range of {last.name} is the machine's, a {first.name} may wrap"
    return True


CAST = (
    rule("cast_to_own", ops.cast(x), x, when=lambda m: m.x.dtype is m.root.dtype or "it changes the dtype"),
    rule("cast_cast", ops.cast(ops.cast(x).named("inner")), lambda m: ops.cast(m.x, dtype=m.root.dtype),
         when=_loses_nothing,
         relies_on="the first cast widens"),
    rule("bitcast_to_own", ops.bitcast(x), x,
         when=lambda m: m.x.dtype is m.root.dtype or "it changes the dtype"),
    rule("bitcast_bitcast", ops.bitcast(ops.bitcast(x)), lambda m: ops.bitcast(m.x, dtype=m.root.dtype),
         when=lambda m: m.x.dtype.bits == m.root.dtype.bits or "the widths differ"),
)
