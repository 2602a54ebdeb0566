"""What each universal function of NumPy is in ops: one table.

A rule takes nodes, cast to the dtypes of the loop that NumPy would run, and gives a node or a tuple of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planish.capture.numpy.tracer import cast_node, check, emit, full_like_node
from planish.ir import Node, constant
from planish.types import FLOAT32, UINT64, dtype_of

Rule = Callable[..., Any]


# --- rules that are more than one op


def _floats(op: str) -> Rule:
    """An op of floats that leaves integers as they are (rounding)."""
    return lambda x: emit(op, x) if x.dtype.is_float else x


def _predicate(op: str, of_integers: bool) -> Rule:
    def rule(x: Node) -> Node:
        if x.dtype.is_float:
            return emit(op, x)
        return emit("broadcast_to", constant(of_integers), shape=x.shape)

    return rule


def _truth(node: Node) -> Node:
    return cast_node(node, np.bool_)


def _logical(op: str) -> Rule:
    return lambda *xs: emit(op, *map(_truth, xs))


def _compare(op: str) -> Rule:
    def rule(x: Node, y: Node) -> Node:
        return _compare_mixed(op, x, y) if x.dtype is not y.dtype else emit(op, x, y)

    return rule


MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _compare_mixed(op: str, x: Node, y: Node) -> Node:
    """int64 with uint64, exactly: a negative number is below every unsigned one."""
    if x.dtype is UINT64:
        return _compare_mixed(MIRROR[op], y, x)
    negative = emit("lt", x, full_like_node(x, 0))
    compared = emit(op, emit("cast", x, dtype=UINT64), y)
    return emit("select", negative, constant(op in ("lt", "le", "ne")), compared)


def _power(x: Node, y: Node) -> Node:
    if y.dtype.kind == "int":
        _check_exponent(y)
    return emit("pow", x, y)


def _check_exponent(y: Node) -> None:
    message = "Integers to negative integer powers are not allowed."
    if y.op.name == "constant":
        if (y.attributes.array < 0).any():
            raise ValueError(message)
        return
    fits = emit("ge", y, full_like_node(y, 0))
    check(emit("reduce_all", fits, axes=tuple(range(len(y.shape))), keepdims=False), "ValueError", message)


def _reciprocal(x: Node) -> Node:
    """Of an integer: 1, -1, or 0; of 0 what NumPy's conversion from infinity gives, the least signed
    integer."""
    if x.dtype.is_float:
        return emit("reciprocal", x)
    quotient = emit("trunc_div", full_like_node(x, 1), x)
    with np.errstate(all="ignore"):
        of_zero = np.reciprocal(np.zeros((), x.dtype.numpy))
    return emit("select", emit("eq", x, full_like_node(x, 0)), constant(of_zero), quotient)


def _extreme(op: str, of_bool: str) -> Rule:
    return lambda x, y: emit(of_bool if x.dtype.kind == "bool" else op, x, y)


def _either(op: str, of_integers: str, of_bool: str) -> Rule:
    """fmax and fmin ignore NaN, which only floats have."""
    ints = _extreme(of_integers, of_bool)
    return lambda x, y: emit(op, x, y) if x.dtype.is_float else ints(x, y)


def _scaled(factor: float) -> Rule:
    return lambda x: emit("mul", x, full_like_node(x, factor))


def _signbit(x: Node) -> Node:
    if not x.dtype.is_float:
        return emit("lt", x, full_like_node(x, 0))
    bits = emit("bitcast", x, dtype=dtype_of(f"int{x.dtype.bits}"))
    return emit("lt", bits, full_like_node(bits, 0))


def _heaviside(x: Node, at_zero: Node) -> Node:
    zero, one = full_like_node(x, 0), full_like_node(x, 1)
    step = emit("select", emit("lt", x, zero), zero, emit("select", emit("eq", x, zero), at_zero, one))
    return emit("select", emit("is_nan", x), x, step)


def _log_add(exp: str, log_one_plus: Callable[[Node], Node], of_equal: float) -> Rule:
    """log(exp(x) + exp(y)) from the larger of the two, as NumPy computes it; equal infinities stay."""

    def rule(x: Node, y: Node) -> Node:
        difference = emit("sub", x, y)
        tail = log_one_plus(emit(exp, emit("neg", emit("abs", difference))))
        general = emit("add", emit("maximum", x, y), tail)
        return emit("select", emit("eq", x, y), emit("add", x, full_like_node(x, of_equal)), general)

    return rule


def _log2_one_plus(x: Node) -> Node:
    return emit("mul", emit("log1p", x), full_like_node(x, 1 / np.log(2)))


def _modf(x: Node) -> tuple[Node, Node]:
    whole = emit("trunc", x)
    part = emit("select", emit("is_inf", x), full_like_node(x, 0), emit("sub", x, whole))
    return emit("copysign", part, x), whole


def _square(x: Node) -> Node:
    return emit("mul", x, x)


def _absolute(x: Node) -> Node:
    return emit("abs", x) if x.dtype.kind in ("int", "float") else x


def _matmul(x: Node, y: Node) -> Node:
    for position, operand in enumerate((x, y)):
        if not operand.shape:
            raise ValueError(f"matmul: Input operand {position} does not have enough dimensions (has 0)")
    m, n = x.shape[-1], y.shape[max(len(y.shape) - 2, 0)]
    if m != n:
        raise ValueError(
            f"matmul: Input operand 1 has a mismatch in its core dimension 0 (size {n} is different from {m})"
        )
    np.broadcast_shapes(x.shape[:-2], y.shape[:-2])  # type: ignore[arg-type]
    return widened(lambda a, b: emit("matmul", a, b), x, y)


def widened(contract: Callable[[Node, Node], Node], x: Node, y: Node) -> Node:
    """Contract bools as "is any product true", everything else in its own dtype."""
    if x.dtype.kind != "bool":
        return contract(x, y)
    return _truth(contract(cast_node(x, np.float32), cast_node(y, FLOAT32)))


UFUNCS: dict[np.ufunc, str | Rule] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.true_divide: "div",
    np.floor_divide: "floor_div",
    np.remainder: "mod",
    np.fmod: "rem",
    np.divmod: lambda x, y: (emit("floor_div", x, y), emit("mod", x, y)),
    np.power: _power,
    np.float_power: _power,
    np.negative: "neg",
    np.positive: lambda x: x,
    np.absolute: _absolute,
    np.fabs: "abs",
    np.sign: "sign",
    np.conjugate: lambda x: x,
    np.square: _square,
    np.reciprocal: _reciprocal,
    np.sqrt: "sqrt",
    np.cbrt: "cbrt",
    np.exp: "exp",
    np.exp2: "exp2",
    np.expm1: "expm1",
    np.log: "log",
    np.log2: "log2",
    np.log10: "log10",
    np.log1p: "log1p",
    np.sin: "sin",
    np.cos: "cos",
    np.tan: "tan",
    np.arcsin: "asin",
    np.arccos: "acos",
    np.arctan: "atan",
    np.sinh: "sinh",
    np.cosh: "cosh",
    np.tanh: "tanh",
    np.arcsinh: "asinh",
    np.arccosh: "acosh",
    np.arctanh: "atanh",
    np.arctan2: "atan2",
    np.hypot: "hypot",
    np.copysign: "copysign",
    np.nextafter: "next_after",
    np.deg2rad: _scaled(np.pi / 180),
    np.radians: _scaled(np.pi / 180),
    np.rad2deg: _scaled(180 / np.pi),
    np.degrees: _scaled(180 / np.pi),
    np.floor: _floats("floor"),
    np.ceil: _floats("ceil"),
    np.trunc: _floats("trunc"),
    np.rint: _floats("round"),
    np.isnan: _predicate("is_nan", False),
    np.isinf: _predicate("is_inf", False),
    np.isfinite: _predicate("is_finite", True),
    np.signbit: _signbit,
    np.heaviside: _heaviside,
    np.modf: _modf,
    np.logaddexp: _log_add("exp", lambda x: emit("log1p", x), np.log(2)),
    np.logaddexp2: _log_add("exp2", _log2_one_plus, 1),
    np.equal: _compare("eq"),
    np.not_equal: _compare("ne"),
    np.less: _compare("lt"),
    np.less_equal: _compare("le"),
    np.greater: _compare("gt"),
    np.greater_equal: _compare("ge"),
    np.logical_and: _logical("bitwise_and"),
    np.logical_or: _logical("bitwise_or"),
    np.logical_xor: _logical("bitwise_xor"),
    np.logical_not: _logical("logical_not"),
    np.bitwise_and: "bitwise_and",
    np.bitwise_or: "bitwise_or",
    np.bitwise_xor: "bitwise_xor",
    np.invert: "bitwise_not",
    np.left_shift: "shift_left",
    np.right_shift: "shift_right",
    np.maximum: _extreme("maximum", "bitwise_or"),
    np.minimum: _extreme("minimum", "bitwise_and"),
    np.fmax: _either("fmax", "maximum", "bitwise_or"),
    np.fmin: _either("fmin", "minimum", "bitwise_and"),
    np.matmul: _matmul,
}
COMPARISONS = {
    np.equal: "eq",
    np.not_equal: "ne",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
}
STRUCTURED = {np.matmul}  # ufuncs over whole rows and columns, not elements
