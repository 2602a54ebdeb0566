"""NumPy's universal functions as ops: one table, and NumPy's own type resolution.

In: a ufunc, its operands (tracers, arrays, numbers) and keywords. Out: tracers. Which loop runs, what it
casts and what dtype comes out is asked of `ufunc.resolve_dtypes`, so promotion is NumPy's exactly, Python
numbers being weak.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from planish.capture.location import user_location
from planish.capture.numpy.tracer import (
    Tracer,
    as_tracer,
    cast,
    cast_node,
    check,
    current,
    emit,
    fresh,
    full_like_node,
    known,
    unsupported,
)
from planish.errors import CaptureError
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


_MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _compare_mixed(op: str, x: Node, y: Node) -> Node:
    """int64 with uint64, exactly: a negative number is below every unsigned one."""
    if x.dtype is UINT64:
        return _compare_mixed(_MIRROR[op], y, x)
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


# --- applying one


def call_ufunc(
    ufunc: np.ufunc,
    *inputs: Any,
    out: Any = None,
    where: Any = True,
    dtype: Any = None,
    casting: str = "same_kind",
    signature: Any = None,
    operator: bool = False,
    axes: Any = None,
    **unknown: Any,
) -> Any:
    """`ufunc(*inputs)`. `operator` says that Python's operator was written: numbers give numbers then."""
    if unknown or axes is not None:
        raise unsupported(f"np.{ufunc.__name__} with {', '.join(unknown) or 'axes'}")
    operands = [as_tracer(x) for x in inputs]
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,) * ufunc.nout if out is None else (out,)
    if all(t.known is not None for t in operands) and where is True and outs == (None,) * ufunc.nout:
        return _call_known(ufunc, operands, operator, {"dtype": dtype} if dtype is not None else {})
    rule = UFUNCS.get(ufunc)
    if rule is None:
        raise unsupported(f"np.{ufunc.__name__}")
    constant_result = _compare_out_of_range(ufunc, operands)
    if constant_result is not None:
        return constant_result
    nodes = _resolved(ufunc, operands, outs, signature or _signature(ufunc, dtype), casting)
    if ufunc not in STRUCTURED:
        np.broadcast_shapes(*(t.shape for t in operands))
    made = emit(rule, *nodes) if isinstance(rule, str) else rule(*nodes)
    results = made if isinstance(made, tuple) else (made,)
    finished = tuple(_finish(r, o, where, operands, operator) for r, o in zip(results, outs))
    return finished if ufunc.nout > 1 else finished[0]


def _call_known(ufunc: np.ufunc, operands: list[Tracer], operator: bool, keywords: dict[str, Any]) -> Any:
    """Operands that no argument goes into: NumPy itself computes."""
    values = [t.known.item() if t.weak else t.known[()] if t.scalar else t.known for t in operands]  # type: ignore[index, union-attr]
    made = ufunc(*values, **keywords)
    weak = _weak_result(operands, operator)
    results = [
        known(m, scalar=not isinstance(m, np.ndarray), weak=weak(np.asarray(m).dtype))
        for m in (made if ufunc.nout > 1 else (made,))
    ]
    return tuple(results) if ufunc.nout > 1 else results[0]


def _weak_result(operands: list[Tracer], operator: bool) -> Callable[[np.dtype], type | None]:
    """Python's operators on Python numbers give Python numbers."""
    if not operator or not all(t.weak for t in operands):
        return lambda dtype: None
    return lambda dtype: {"i": int, "f": float, "b": bool}.get(dtype.kind)


def _signature(ufunc: np.ufunc, dtype: Any) -> Any:
    return None if dtype is None else (None,) * ufunc.nin + (np.dtype(dtype),) * ufunc.nout


def _resolved(
    ufunc: np.ufunc, operands: list[Tracer], outs: tuple[Any, ...], signature: Any, casting: str
) -> list[Node]:
    """The operands in the dtypes of the loop that NumPy chooses."""
    exact = ufunc in COMPARISONS and any(t.dtype.kind in "iu" and not t.weak for t in operands)
    alone = all(t.weak for t in operands)
    kinds = [
        t.dtype
        if alone or t.weak not in (int, float) or (exact and t.weak is int and t.known is None)
        else t.weak
        for t in operands
    ]
    out_kinds = [None if o is None else o.dtype for o in outs]
    chosen = {} if signature is None else {"signature": signature}
    resolved = ufunc.resolve_dtypes((*kinds, *out_kinds), casting=casting, **chosen)  # type: ignore[arg-type]
    _check_supported(ufunc, resolved)
    return [cast(t, d) for t, d in zip(operands, resolved)]


def _check_supported(ufunc: np.ufunc, dtypes: tuple[np.dtype, ...]) -> None:
    for dtype in dtypes:
        if dtype.kind in "cOUSmM" or dtype == np.longdouble != np.float64:
            raise CaptureError(
                f"{user_location()}: np.{ufunc.__name__} would compute in {dtype}, which planish does not "
                "have"
            )


def _compare_out_of_range(ufunc: np.ufunc, operands: list[Tracer]) -> Tracer | None:
    """An integer array compared with a Python integer that its dtype can't hold: the answer is known."""
    if ufunc not in COMPARISONS or len(operands) != 2:
        return None
    for array, number, name in (
        (*operands, COMPARISONS[ufunc]),
        (*operands[::-1], _MIRROR[COMPARISONS[ufunc]]),
    ):
        if array.weak or array.dtype.kind not in "iu" or number.weak is not int or number.known is None:  # type: ignore[attr-defined]
            continue
        value, info = int(number.known), np.iinfo(array.dtype)  # type: ignore[attr-defined]
        if info.min <= value <= info.max:
            continue
        answer = name == "ne" or ((name in ("lt", "le")) == (value > info.max) and name != "eq")
        return known(np.full(array.shape, answer), scalar=array.scalar)  # type: ignore[attr-defined]
    return None


def _finish(node: Node, out: Any, where: Any, operands: list[Tracer], operator: bool) -> Tracer:
    if where is not True:
        before = full_like_node(node, 0) if out is None else cast_node(as_tracer(out).node, node.dtype)
        node = emit("select", cast(as_tracer(where), np.bool_), node, before)
    if out is not None:
        return write_out(out, node)
    scalar = node.shape == () and where is True
    return fresh(node, scalar=scalar, weak=_weak_result(operands, operator)(node.dtype.numpy))


def write_out(out: Any, node: Node) -> Any:
    """Store a result in `out=`, which is a traced array or a plain one of the caller's; returns it."""
    target = as_tracer(out)
    if np.broadcast_shapes(node.shape, target.shape) != target.shape:  # type: ignore[arg-type]
        raise ValueError(
            f"non-broadcastable output operand with shape {target.shape} doesn't match the broadcast "
            f"shape {node.shape}"
        )
    value = cast_node(node, target.dtype)
    target.assign(value if value.shape == target.shape else emit("broadcast_to", value, shape=target.shape))
    return target


# --- reduce, accumulate, outer


def call_method(ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
    """`ufunc.reduce(x)` and the other methods, by the functions that mean the same."""
    reductions = {
        np.add: np.sum,
        np.multiply: np.prod,
        np.maximum: np.max,
        np.minimum: np.min,
        np.logical_and: np.all,
        np.logical_or: np.any,
    }
    scans = {np.add: np.cumsum, np.multiply: np.cumprod}
    out = keywords.pop("out", None)
    if out is not None:
        keywords["out"] = out[0] if isinstance(out, tuple) else out
    if method == "reduce" and ufunc in reductions:
        array, *rest = inputs
        keywords.setdefault("axis", rest.pop(0) if rest else 0)
        return reductions[ufunc](as_tracer(array), *rest, **keywords)  # type: ignore[operator]
    if method == "accumulate" and ufunc in scans:
        keywords.setdefault("axis", 0)
        return scans[ufunc](as_tracer(inputs[0]), *inputs[1:], **keywords)  # type: ignore[operator]
    if method == "outer":
        left, right = map(as_tracer, inputs)
        return call_ufunc(ufunc, left.reshape(left.shape + (1,) * right.ndim), right, **keywords)
    if method == "at" and len(inputs) == 3:
        from planish.capture.numpy.indexing import update_at  # stands on this module

        return update_at(ufunc, *inputs)
    raise unsupported(f"np.{ufunc.__name__}.{method}")


def array_ufunc(self: Tracer, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
    """NumPy's protocol (NEP 13)."""
    current()
    return (
        call_ufunc(ufunc, *inputs, **keywords)
        if method == "__call__"
        else call_method(ufunc, method, *inputs, **keywords)
    )


# --- Python's operators


def _operator(ufunc: np.ufunc, reverse: bool = False) -> Callable[[Tracer, Any], Any]:
    def apply(self: Tracer, other: Any) -> Any:
        if getattr(type(other), "__array_ufunc__", apply) is None:
            return NotImplemented
        operands = (other, self) if reverse else (self, other)
        return call_ufunc(ufunc, *operands, operator=True)

    return apply


def _in_place(ufunc: np.ufunc) -> Callable[[Tracer, Any], Any]:
    def apply(self: Tracer, other: Any) -> Any:
        if self.scalar:  # numbers are immutable: `x += 1` makes a new one
            return call_ufunc(ufunc, self, other, operator=True)
        return call_ufunc(ufunc, self, other, out=(self,))

    return apply


_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "divmod": np.divmod,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "matmul": np.matmul,
}
_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}


def _raise_to(self: Tracer, exponent: Any, modulo: Any = None) -> Any:
    """`x ** n`: as NumPy, small constant exponents are done by multiplication, roots by sqrt."""
    quick = {2: np.square, 0.5: np.sqrt, 1: np.positive, -1: np.reciprocal}
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool) and exponent in quick:
        floating = self.dtype.kind == "f" and not self.weak
        if floating or (exponent == 2 and type(exponent) is int and self.dtype.kind in "iu"):
            return call_ufunc(quick[exponent], self)
    return call_ufunc(np.power, self, exponent, operator=True)


def install_operators() -> None:
    for name, ufunc in _BINARY.items():
        setattr(Tracer, f"__{name}__", _operator(ufunc))
        setattr(Tracer, f"__r{name}__", _operator(ufunc, reverse=True))
        if name != "divmod":
            setattr(Tracer, f"__i{name}__", _in_place(ufunc))
    for name, ufunc in _COMPARE.items():
        setattr(Tracer, f"__{name}__", _operator(ufunc))
    for name, ufunc in _UNARY.items():
        setattr(Tracer, f"__{name}__", lambda self, ufunc=ufunc: call_ufunc(ufunc, self, operator=True))
    Tracer.__pow__ = _raise_to  # type: ignore[operator]
    Tracer.__rpow__ = _operator(np.power, reverse=True)  # type: ignore[attr-defined]
    Tracer.__ipow__ = _in_place(np.power)  # type: ignore[attr-defined]
    Tracer.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]


install_operators()
