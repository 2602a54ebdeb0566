"""Identities of arithmetic that hold for floats.

Exact ones hold bit for bit, up to which NaN (IEEE 754: neg, abs and copysign only touch the sign; x * 1,
x / 1, x + -0.0 and x - 0.0 return x). What moves the sign of a zero is `fast`: x + 0.0 turns -0.0 into +0.0.
Not here, because no numerics class allows it: x * 0 -> 0, x - x -> 0, x / x -> 1 (inf and NaN), pow(x, 0.5)
-> sqrt(x) (-inf). NumPy's max and min return the second operand at a tie of zeros, so their rules keep the
order of operands.
"""
from __future__ import annotations

from math import inf

from planish.ops import get_op
from planish.ops.rules import ops
from planish.rewrite.guards import is_float, is_signed, is_wide_float
from planish.rewrite.pattern import variables
from planish.rewrite.rule import rule

x, y, c = variables("x y c")
_relu_like = ops.maximum(x, y).in_order()
ROUNDINGS = ("floor", "ceil", "round", "trunc")
_floor_like = ops.minimum(x, y).in_order()

IDENTITIES = (
    # --- neutral elements
    rule("mul_one", x * 1, x),
    rule("div_one", x / 1, x),
    rule("sub_zero", x - 0, x),
    rule("add_negative_zero", x + -0.0, x),
    rule("add_zero", x + 0, x, when=is_float(x), numerics="fast",
         relies_on="-0.0 + 0.0 is +0.0: the sign of a zero may go"),
    rule("pow_one", ops.pow(x, 1), x),

    # --- signs
    rule("neg_neg", ops.neg(ops.neg(x)), x),
    rule("mul_minus_one", x * -1, -x),
    rule("div_minus_one", x / -1, -x),
    rule("negative_zero_sub", -0.0 - x, -x),
    rule("zero_sub", 0 - x, -x, when=is_float(x), numerics="fast",
         relies_on="0.0 - 0.0 is +0.0, -(0.0) is -0.0"),
    rule("add_neg", x + -y, x - y),
    rule("sub_neg", x - -y, x + y),
    rule("mul_neg_neg", -x * -y, x * y),
    rule("div_neg_neg", -x / -y, x / y),
    rule("neg_sub", -(x - y), y - x, when=is_float(x), numerics="fast",
         relies_on="-(x - x) is -0.0, x - x is +0.0"),
    rule("abs_neg", ops.abs(-x), ops.abs(x), when=is_signed(x)),
    rule("abs_abs", ops.abs(ops.abs(x)), ops.abs(x)),

    # --- powers
    rule("pow_two", ops.pow(x, 2), x * x, when=is_float(x), numerics="default",
         relies_on="x * x is the rounded square"),
    rule("pow_three", ops.pow(x, 3), x * x * x, when=is_wide_float(x), numerics="default",
         relies_on="two roundings for one: within 1 ULP, as good as a library's power"),
    rule("pow_minus_one", ops.pow(x, -1), ops.reciprocal(x), when=is_float(x), numerics="default",
         relies_on="1 / x is the rounded reciprocal"),

    # --- choosing
    rule("select_same", ops.select(c, x, x), x),
    rule("select_true", ops.select(True, x, y), x),
    rule("select_false", ops.select(False, x, y), y),
    rule("select_not", ops.select(ops.logical_not(c), x, y), ops.select(c, y, x)),
    rule("maximum_lowest", ops.maximum(x, -inf), x, relies_on="max passes NaN on"),
    rule("minimum_highest", ops.minimum(x, inf), x, relies_on="min passes NaN on"),
    rule("maximum_self", ops.maximum(x, x), x),
    rule("minimum_self", ops.minimum(x, x), x),
    rule("fmax_self", ops.fmax(x, x), x),
    rule("fmin_self", ops.fmin(x, x), x),
    rule("maximum_maximum", ops.maximum(_relu_like, y).in_order(), _relu_like,
         relies_on="relu(relu(x)) and the like"),
    rule("minimum_minimum", ops.minimum(_floor_like, y).in_order(), _floor_like),

    # --- rounding what is whole
    *(rule(f"{outer}_{inner}", get_op(outer)(get_op(inner)(x)), get_op(inner)(x))
      for outer in ROUNDINGS for inner in ROUNDINGS),
)
