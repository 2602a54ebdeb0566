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
from planish.capture.numpy.faults import compute_known, note_faults
from planish.capture.numpy.tracer import (
    Tracer,
    as_tracer,
    cast,
    cast_node,
    current,
    emit,
    fresh,
    full_like_node,
    known,
    unsupported,
)
from planish.capture.numpy.ufunc_table import COMPARISONS, MIRROR, STRUCTURED, UFUNCS
from planish.errors import CaptureError
from planish.ir import Node

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
        note_faults(ufunc, operands, nodes, where, operator)
    made = emit(rule, *nodes) if isinstance(rule, str) else rule(*nodes)
    results = made if isinstance(made, tuple) else (made,)
    finished = tuple(_finish(r, o, where, operands, operator) for r, o in zip(results, outs))
    return finished if ufunc.nout > 1 else finished[0]


def _call_known(ufunc: np.ufunc, operands: list[Tracer], operator: bool, keywords: dict[str, Any]) -> Any:
    """Operands that no argument goes into: NumPy itself computes."""
    values = [t.known.item() if t.weak else t.known[()] if t.scalar else t.known for t in operands]  # type: ignore[index, union-attr]
    made = compute_known(ufunc, lambda: ufunc(*values, **keywords))
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
        (*operands[::-1], MIRROR[COMPARISONS[ufunc]]),
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
