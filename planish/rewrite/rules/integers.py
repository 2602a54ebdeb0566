"""Integers and bool: arithmetic wraps, so every identity of the ring of integers modulo 2^n holds exactly.

Multiplying by a power of two stays a product (a shift costs the same); floor division and modulo by one
become a shift and a mask, since `//` floors and `%` takes the divisor's sign. Division by 0 gives 0 here, so
x / x is not 1.
"""
from __future__ import annotations

from planish.ir import Node, constant
from planish.ops.rules import ops
from planish.rewrite.guards import every, is_bits, is_bool, is_integer, number
from planish.rewrite.pattern import const, uniform_value, variables
from planish.rewrite.rule import Match, rule
from planish.types import BOOL

x, y = variables("x y")
c = const("c")


def _is_power_of_two(match: Match) -> bool | str:
    value = uniform_value(match.c)
    if value is None or not isinstance(value, int):
        return "the constant is not one integer everywhere"
    return (value > 0 and value & (value - 1) == 0) or f"{value} is not a power of two"


def _all_bits_set(match: Match) -> bool | str:
    value = uniform_value(match.c)
    wanted = {"bool": True, "int": -1}.get(match.c.dtype.kind, (1 << match.c.dtype.bits) - 1)
    return value == wanted or "the constant does not have all bits set"


def _is_not_bool(match: Match) -> bool | str:
    return match.root.dtype is not BOOL or "select_true_false is for bool"


def _asks_at_each_point(match: Match) -> bool | str:
    return match.x.shape == match.root.shape or "the cast would have to be broadcast"


def _shifted(match: Match) -> Node:
    return ops.shift_right(match.x, constant(number(match.c).bit_length() - 1, match.x.dtype))


def _masked(match: Match) -> Node:
    return ops.bitwise_and(match.x, constant(number(match.c) - 1, match.x.dtype))


INTEGERS = (
    # --- the ring
    rule("add_zero_integer", x + 0, x, when=is_bits(x)),
    rule("sub_self", x - x, 0, when=is_integer(x)),
    rule("mul_zero", x * 0, 0, when=is_bits(x)),
    rule("zero_sub_integer", 0 - x, -x, when=is_integer(x)),
    rule("neg_sub_integer", -(x - y), y - x, when=is_integer(x)),
    rule("pow_two_integer", ops.pow(x, 2), x * x, when=is_integer(x)),

    # --- bits
    rule("and_self", x & x, x),
    rule("or_self", x | x, x),
    rule("xor_self", x ^ x, 0),
    rule("and_zero", x & 0, 0),
    rule("or_zero", x | 0, x),
    rule("xor_zero", x ^ 0, x),
    rule("and_ones", x & c, x, when=_all_bits_set),
    rule("or_ones", x | c, c, when=_all_bits_set),
    rule("not_not", ~~x, x),
    rule("absorb_and", x & (x | y), x),
    rule("absorb_or", x | (x & y), x),
    rule("shift_left_zero", ops.shift_left(x, 0), x),
    rule("shift_right_zero", ops.shift_right(x, 0), x),

    # --- division
    rule("floor_div_one", ops.floor_div(x, 1), x, when=is_integer(x)),
    rule("trunc_div_one", ops.trunc_div(x, 1), x, when=is_integer(x)),
    rule("mod_one", ops.mod(x, 1), 0, when=is_integer(x)),
    rule("floor_div_power_of_two", ops.floor_div(x, c), _shifted,
         when=every(is_integer(x), _is_power_of_two)),
    rule("mod_power_of_two", ops.mod(x, c), _masked, when=every(is_integer(x), _is_power_of_two)),

    # --- truth
    rule("logical_not_not", ops.logical_not(ops.logical_not(x)), x),
    rule("not_eq", ops.logical_not(ops.eq(x, y)), ops.ne(x, y)),
    rule("not_ne", ops.logical_not(ops.ne(x, y)), ops.eq(x, y)),
    rule("not_lt", ops.logical_not(x < y), x >= y, when=is_bits(x)),
    rule("not_le", ops.logical_not(x <= y), x > y, when=is_bits(x)),
    rule("not_gt", ops.logical_not(x > y), x <= y, when=is_bits(x)),
    rule("not_ge", ops.logical_not(x >= y), x < y, when=is_bits(x)),
    rule("eq_self", ops.eq(x, x), True, when=is_bits(x)),
    rule("ne_self", ops.ne(x, x), False, when=is_bits(x)),
    rule("lt_self", x < x, False, relies_on="also NaN is not below itself"),
    rule("gt_self", x > x, False),
    rule("le_self", x <= x, True, when=is_bits(x)),
    rule("ge_self", x >= x, True, when=is_bits(x)),
    rule("eq_true", ops.eq(x, True), x, when=is_bool(x)),
    rule("ne_false", ops.ne(x, False), x, when=is_bool(x)),
    rule("eq_false", ops.eq(x, False), ops.logical_not(x), when=is_bool(x)),
    rule("ne_true", ops.ne(x, True), ops.logical_not(x), when=is_bool(x)),
    rule("select_true_false", ops.select(x, True, False), x),
    rule("select_one_zero", ops.select(x, 1, 0), lambda m: ops.cast(m.x, dtype=m.root.dtype),
         when=every(_is_not_bool, _asks_at_each_point)),
)
