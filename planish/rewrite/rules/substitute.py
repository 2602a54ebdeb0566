"""Operators replaced by cheaper ones.

Division by a power of two is a product with its reciprocal, bit for bit (both are exact, or round alike). A
product of a one-hot matrix with a finite constant is a table look-up: one product is 1 * w, all others are
0 * w = +-0, and a sum that starts at +0.0 adds them without rounding; so the table is w + 0.0 (no -0.0), and
rows for indices out of range are 0.
"""
from __future__ import annotations

import numpy as np

from planish.ir import Node, constant, input_node
from planish.ir.node import constant_of
from planish.ops.content import Content, ask, derivation, question
from planish.ops.contract import DotAttributes
from planish.ops.rules import apply_nullary, ops, require
from planish.rewrite.guards import every, is_normal_in
from planish.rewrite.pattern import const, variables
from planish.rewrite.rule import Match, rule
from planish.types import INT32, INT64, UINT8, UINT32, UINT64, DType, TensorType, dtype_of

FEW_ROWS = 8
x, y, index, numbers = variables("x y index numbers")
c, w = const("c"), const("w")


# --- division

def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _reciprocal_is_normal(match: Match) -> bool | str:
    content = match.c.attributes
    if not ask("divisors", content):
        return "it divides by 0, inf or NaN"
    return ask("normal_reciprocals", content) or "a reciprocal is not a normal number"


@question("divisors")
def _are_divisors(array: np.ndarray) -> bool:
    values = _wide(array)
    return bool(np.all(np.isfinite(values) & (values != 0)))


@question("normal_reciprocals")
def _have_normal_reciprocals(array: np.ndarray) -> bool:
    extremes = np.abs(_wide(array)).reshape(-1)
    ends = (extremes.min(), extremes.max()) if extremes.size else ()
    return all(is_normal_in(1 / v, dtype_of(array)) for v in ends)


def _powers_of_two(match: Match) -> bool | str:
    return ask("powers_of_two", match.c.attributes) or "a divisor is not a power of two"


@question("powers_of_two")
def _are_powers_of_two(array: np.ndarray) -> bool:
    mantissa, _ = np.frexp(_wide(array))
    return bool(np.all(np.abs(mantissa) == 0.5))


def _times_reciprocal(match: Match) -> Node:
    content = match.c.attributes
    reciprocal = Content.derived("reciprocal", (), (content,), content.type)
    return ops.mul(match.x, constant_of(reciprocal.settled()))


@derivation("reciprocal")
def _reciprocal(parameters: tuple[()], array: np.ndarray) -> np.ndarray:
    return (1 / _wide(array)).astype(array.dtype)


def _repeats_no_division(match: Match) -> bool | str:
    return match.y.shape == match.root.shape or "the reciprocals are fewer than the quotients"


def _is_wide_float(match: Match) -> bool | str:
    return not match.x.dtype.is_narrow_float or f"{match.x.dtype.name} is rounded after the square root"


# --- one-hot times table

def _counts_up(node: Node) -> bool:
    """Whether a node is 0, 1, ..., n - 1 along its last axis and has no other."""
    if any(d != 1 for d in node.shape[:-1]) or not node.ndim:
        return False
    if node.op.name == "iota":
        return node.attributes.axis == node.ndim - 1
    if node.op.name != "constant":
        return False
    return ask("counts_up", node.attributes)


@question("counts_up")
def _is_a_count(array: np.ndarray) -> bool:
    return bool(np.array_equal(array.reshape(-1), np.arange(array.size)))


def _is_one_hot_times_table(match: Match) -> bool | str:
    a: DotAttributes = match.root.attributes
    rank = match.hot.ndim
    if a.lhs_batch or a.lhs_contract != (rank - 1,) or a.rhs_contract != (0,):
        return "it is not a product with the rows of a table"
    if match.index.ndim != rank or match.index.shape[-1] != 1 or not match.index.dtype.is_integer:
        return "it does not compare one integer index per row"
    if not _counts_up(match.numbers):
        return "it does not compare with 0, 1, 2, ..."
    if match.w.shape[0] < FEW_ROWS:
        return f"a product with fewer than {FEW_ROWS} rows costs no more than looking one up"
    return ask("finite", match.w.attributes) or "the table holds inf or NaN, which 0 does not silence"


@question("finite")
def _is_finite(array: np.ndarray) -> bool:
    if dtype_of(array).is_float and np.isfinite(array.sum()):  # a sum over inf or NaN is neither
        return True
    return bool(np.all(np.isfinite(_wide(array))))


def _look_up(match: Match) -> Node:
    a: DotAttributes = match.root.attributes
    content = match.w.attributes
    type_ = TensorType(match.root.dtype, (content.type.shape[0] + 1, *content.type.shape[1:]))
    table = constant_of(Content.derived("rows_and_zeros", (a.alpha, type_.dtype), (content,), type_))
    rows = ops.reshape(match.index, shape=match.index.shape[:-1])
    if rows.dtype not in (INT32, INT64):
        rows = ops.cast(rows, dtype=INT64)
    unsigned = UINT32 if rows.dtype is INT32 else UINT64  # as which a negative index is out of range too
    inside = ops.minimum(ops.bitcast(rows, dtype=unsigned), table.shape[0] - 1)
    return ops.take(table, ops.bitcast(inside, dtype=rows.dtype), axis=0)


@derivation("rows_and_zeros")
def _table(parameters: tuple[float, DType], rows: np.ndarray) -> np.ndarray:
    """The rows as the product gives them, and a row of zeros for indices out of range."""
    alpha, dtype = parameters
    wide = dtype_of(dtype.numpy).accumulator.numpy
    padded = np.concatenate([rows, np.zeros((1, *rows.shape[1:]), rows.dtype)]).astype(wide) + wide.type(0)
    scaled = padded if alpha == 1 else padded * wide.type(alpha)
    return scaled.astype(dtype.numpy)


def _one_hot_example(rng: np.random.Generator, dtype: DType) -> Node:
    """Rows of a table by indices of which some are out of range; the numbers written out or as an iota."""
    require(dtype.is_float, "tables of floats")
    index_dtype = (INT32, INT64, UINT8)[int(rng.integers(3))]
    depth, width = int(rng.integers(FEW_ROWS, 12)), int(rng.integers(1, 4))
    rows = input_node("rows", TensorType(index_dtype, (int(rng.integers(1, 9)), 2, 1)))
    numbers = ops.iota(shape=(depth,), axis=0, dtype=index_dtype)
    counted = apply_nullary(ops.iota, rows, shape=(depth,), axis=0, dtype=index_dtype)
    hot = ops.cast(ops.eq(rows, counted if rng.random() < 0.5 else constant(numbers)), dtype=dtype)
    table = rng.choice(np.array([-0.0, 0.0, 1.5, -2.25, 3.0, 1e-3]), (depth, width)).astype(dtype.numpy)
    alpha = float(rng.choice([1.0, -0.5]))
    return ops.dot_general(hot, constant(table), lhs_contract=(2,), rhs_contract=(0,), alpha=alpha)


_one_hot = ops.cast(ops.eq(index, numbers).named("hot"))

SUBSTITUTE = (
    rule("div_power_of_two", x / c, _times_reciprocal, when=every(_powers_of_two, _reciprocal_is_normal)),
    rule("div_constant", x / c, _times_reciprocal, when=_reciprocal_is_normal, numerics="fast",
         relies_on="1 / c is rounded"),
    rule("mul_reciprocal", x * ops.reciprocal(y), x / y, when=_repeats_no_division, numerics="fast",
         relies_on="1 / y may overflow where x / y does not"),
    rule("reciprocal_sqrt", ops.reciprocal(ops.sqrt(x)), ops.rsqrt(x), when=_is_wide_float,
         relies_on="rsqrt is 1 / sqrt"),
    rule("one_over_sqrt", 1 / ops.sqrt(x), ops.rsqrt(x), when=_is_wide_float, relies_on="rsqrt is 1 / sqrt"),
    rule("reciprocal_sqrt_narrow", ops.reciprocal(ops.sqrt(x)), ops.rsqrt(x), numerics="default",
         relies_on="one rounding for two"),
    rule("one_over_sqrt_narrow", 1 / ops.sqrt(x), ops.rsqrt(x), numerics="default",
         relies_on="one rounding for two"),
    rule("div_sqrt", x / ops.sqrt(y), x * ops.rsqrt(y), numerics="fast", relies_on="1 / sqrt(y) is rounded"),
    rule("one_hot_dot", ops.dot_general(_one_hot, w), _look_up, when=_is_one_hot_times_table,
         example=_one_hot_example, relies_on="a sum of one value and zeros is exact"),
)
