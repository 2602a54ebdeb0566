"""Numbers that only the run knows: torch writes them as sympy expressions over sizes and over what was read
from tensors (`item`); here they become scalar nodes, i64, f64 or bool.

The functions are those of `torch.utils._sympy.functions`, by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from planish.capture.torch.call import cast, number
from planish.errors import UnsupportedOp
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import BOOL, FLOAT64, INT64


def scalar_of(expr: Any, symbol: Callable[[str], Node]) -> Node:
    """The value of an expression; `symbol` gives those of its symbols, by name."""
    if expr.is_Symbol:
        return symbol(str(expr))
    if expr in (True, False):
        return number(bool(expr), BOOL)
    if expr.is_Integer:
        return number(int(expr), INT64)
    if expr.is_Number:
        return number(float(expr), FLOAT64)
    name = type(expr).__name__
    if name == "Piecewise":
        return _first_that_holds(expr.args, symbol)
    operands = [scalar_of(a, symbol) for a in expr.args]
    function = _FUNCTIONS.get(name)
    if function is None:
        raise UnsupportedOp(f"the number {expr}: planish does not have {name} of numbers known at run time")
    return function(*operands)


def _first_that_holds(pairs: Any, symbol: Callable[[str], Node]) -> Node:
    """Of (value, condition) the first whose condition holds; the last has none that can fail."""
    value, *others = (scalar_of(pair.args[0], symbol) for pair in reversed(pairs))
    for other, pair in zip(others, reversed(pairs[:-1])):
        value = ops.select(scalar_of(pair.args[1], symbol), other, value)
    return value


def _alike(op: Callable[[Node, Node], Node]) -> Callable[..., Node]:
    """An op on any number of operands, in float64 where one of them is a float."""

    def apply(*operands: Node) -> Node:
        dtype = FLOAT64 if any(x.dtype is FLOAT64 for x in operands) else operands[0].dtype
        return reduce(op, (cast(x, dtype) for x in operands))

    return apply


def _in_float(op: Callable[..., Node]) -> Callable[..., Node]:
    return lambda *operands: op(*(cast(x, FLOAT64) for x in operands))


def _to_int(op: Callable[[Node], Node]) -> Callable[[Node], Node]:
    return lambda x: cast(op(cast(x, FLOAT64)), INT64)


def _power(x: Node, y: Node) -> Node:
    return ops.pow(x, y) if x.dtype is y.dtype else ops.pow(cast(x, FLOAT64), cast(y, FLOAT64))


_FUNCTIONS: dict[str, Callable[..., Node]] = {
    "Add": _alike(ops.add),
    "Mul": _alike(ops.mul),
    "Max": _alike(ops.maximum),
    "Min": _alike(ops.minimum),
    "FloorDiv": _alike(ops.floor_div),
    "CleanDiv": _alike(ops.floor_div),
    "CeilDiv": lambda a, b: ops.neg(ops.floor_div(ops.neg(a), b)),
    "Mod": _alike(ops.mod),
    "PythonMod": _alike(ops.mod),
    "IntTrueDiv": _in_float(ops.div),
    "FloatTrueDiv": _in_float(ops.div),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _in_float(ops.pow),
    "ToFloat": _in_float(lambda x: x),
    "TruncToFloat": _in_float(ops.trunc),
    "TruncToInt": _to_int(ops.trunc),
    "FloorToInt": _to_int(ops.floor),
    "CeilToInt": _to_int(ops.ceil),
    "RoundToInt": _to_int(ops.round),
    "Abs": ops.abs,
    "Equality": _alike(ops.eq),
    "Unequality": _alike(ops.ne),
    "StrictLessThan": _alike(ops.lt),
    "LessThan": _alike(ops.le),
    "StrictGreaterThan": _alike(ops.gt),
    "GreaterThan": _alike(ops.ge),
    "And": _alike(ops.bitwise_and),
    "Or": _alike(ops.bitwise_or),
    "Not": ops.bitwise_not,
    "Where": lambda condition, a, b: ops.select(condition, a, b),
}
_UNARY = ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")
for _name in _UNARY:
    _FUNCTIONS[f"OpaqueUnaryFn_{_name}"] = _in_float(getattr(ops, _name))
