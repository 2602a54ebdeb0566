"""Guards of rules: each gives True or the reason why not."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from planish.ir import Node
from planish.rewrite.pattern import Pattern, Variable, describe, uniform_value
from planish.rewrite.rule import Guard, Match
from planish.types import FLOAT32, DType


def _dtype_of(pattern: Pattern, match: Match) -> DType:
    assert isinstance(pattern, Variable)
    return match.bound[pattern.name].dtype


def is_integer(pattern: Pattern) -> Guard:
    """Signed or unsigned; not bool."""
    def guard(match: Match) -> bool | str:
        dtype = _dtype_of(pattern, match)
        return dtype.is_integer or f"{dtype.name} is not an integer type"
    return guard


def is_bits(pattern: Pattern) -> Guard:
    """Integer or bool: arithmetic on it is exact."""
    def guard(match: Match) -> bool | str:
        dtype = _dtype_of(pattern, match)
        return not dtype.is_float or f"{dtype.name} is not an integer type or bool"
    return guard


def is_wide_float(pattern: Pattern) -> Guard:
    """float32 and float64: a narrower float is rounded after every op, so two ops are not as good as one."""
    def guard(match: Match) -> bool | str:
        dtype = _dtype_of(pattern, match)
        return (dtype.is_float and not dtype.is_narrow_float) or f"{dtype.name} is not float32 or float64"
    return guard


def is_float32(pattern: Pattern) -> Guard:
    """float32 alone: for rules whose check needs a wider type to measure by."""
    def guard(match: Match) -> bool | str:
        dtype = _dtype_of(pattern, match)
        return dtype is FLOAT32 or f"{dtype.name} is not float32"
    return guard


def is_float(pattern: Pattern) -> Guard:
    def guard(match: Match) -> bool | str:
        dtype = _dtype_of(pattern, match)
        return dtype.is_float or f"{dtype.name} is not a floating-point type"
    return guard


def is_signed(pattern: Pattern) -> Guard:
    """A float or a signed integer."""
    def guard(match: Match) -> bool | str:
        dtype = _dtype_of(pattern, match)
        return dtype.kind in ("int", "float") or f"{dtype.name} has no sign"
    return guard


def is_bool(pattern: Pattern) -> Guard:
    def guard(match: Match) -> bool | str:
        dtype = _dtype_of(pattern, match)
        return dtype.kind == "bool" or f"{dtype.name} is not bool"
    return guard


def every(*guards: Guard) -> Guard:
    """All of them; the first reason why not."""
    def guard(match: Match) -> bool | str:
        for one in guards:
            verdict = one(match)
            if verdict is not True:
                return verdict
        return True
    return guard


def is_uniform(pattern: Pattern) -> Guard:
    """A constant with one finite value everywhere, which `number` then gives."""
    assert isinstance(pattern, Variable)
    def guard(match: Match) -> bool | str:
        value = uniform_value(match.bound[pattern.name])
        if value is None:
            return f"{describe(match.bound[pattern.name])} is not one number everywhere"
        return math.isfinite(value) or f"{value} is not finite"
    return guard


def number(node: Node) -> Any:
    """The number a uniform constant holds. Raises TypeError where it is none."""
    value = uniform_value(node)
    if value is None:
        raise TypeError(f"{describe(node)} is not one number everywhere")
    return value


def is_normal_in(value: float, dtype: DType) -> bool:
    """Whether a number is a normal float of this dtype: finite, not subnormal, not zero, without rounding to
    one that is."""
    import ml_dtypes
    limits = ml_dtypes.finfo(dtype.numpy)
    return float(limits.smallest_normal) <= abs(float(np.asarray(value, dtype.numpy))) <= float(limits.max)
