"""What type rules, formulas and records of all families share.

`define` makes a record of a type rule that only states its case: the head of the error message (op, operand
types), the number of operands and the dtypes taken are seen to here. Formulas reach ops of any family through
`ops`, and make constants in the world of an operand (graph, pattern or arrays) with `like`, `size_like` and
`apply_nullary`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from math import prod
from typing import Any

import numpy as np

from planish.errors import TypeRuleError
from planish.ops.content import Content
from planish.ops.record import NoAttributes, Op, Sample, Types, get_op, register
from planish.types import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    STORAGE,
    UINT64,
    Dim,
    DType,
    Shape,
    TensorType,
    bounds,
    broadcast_shapes,
    dtype_of,
    evaluate_dim,
    is_static,
)

FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
INTEGERS = tuple(d for d in DTYPES if d.is_integer)
NUMBERS = INTEGERS + FLOATS
BITS = (BOOL, *INTEGERS)
INDICES = tuple(d for d in INTEGERS if d is not UINT64)  # every value fits int64
ANY = DTYPES                 # whatever arithmetic, comparisons and sorting take
STORED = (*DTYPES, *STORAGE)  # whatever can be moved and cast


class _Ops:
    """`ops.add` is the op of that name, looked up when used: formulas may name ops recorded after them."""

    def __getattr__(self, name: str) -> Op:
        return get_op(name)


ops: Any = _Ops()


# --- records

def define(name: str, family: str, rule: Callable[..., Types], reference: Callable[..., Any] | None = None, *,
           operands: int | None, dtypes: Sequence[DType], samples: Callable[..., Iterator[Sample]],
           attributes: type = NoAttributes, traits: Iterable[str] = (), tolerance: str = "exact",
           gradient: Callable[..., Any] | None = None, decompose: Callable[..., Any] | None = None) -> Op:
    """Record an op. `rule` raises TypeRuleError with the bare reason. `operands` None: one or more."""
    return register(Op(name, family, _with_head(name, rule, operands, tuple(dtypes)),
                       reference or _meaning_of(decompose), attributes, frozenset(traits), tolerance, samples,
                       tuple(dtypes), gradient, decompose))


def _meaning_of(decompose: Callable[..., Any] | None) -> Callable[..., Any]:
    if decompose is None:
        raise ValueError("an op has a NumPy meaning or a decomposition")
    return decompose


def _with_head(name: str, rule: Callable[..., Types], operands: int | None,
               dtypes: tuple[DType, ...]) -> Callable[..., Types]:
    @wraps(rule)
    def infer(attributes: Any, *types: Types) -> Types:
        try:
            _require_operands(operands, types, dtypes)
            result = rule(attributes, *types)
            for one in result if isinstance(result, tuple) else (result,):
                _require_addressable(one)
            return result
        except TypeRuleError as error:
            raise TypeRuleError(f"{name}({', '.join(map(_text, types))}): {error}", error.sizes) from None
    return infer


MOST_AXES = 64            # NumPy's own limit
MOST_BYTES = 1 << 62      # sizes and offsets are 64-bit integers


def _require_addressable(type_: TensorType) -> None:
    require(len(type_.shape) <= MOST_AXES, f"{len(type_.shape)} axes; a tensor has {MOST_AXES} at most")
    size = prod(d for d in type_.shape if isinstance(d, int))
    require(size * type_.dtype.itemsize <= MOST_BYTES, f"a result of {size} elements is more than memory has")


def _text(type_: Types) -> str:
    return f"({', '.join(map(str, type_))})" if isinstance(type_, tuple) else str(type_)


def _require_operands(operands: int | None, types: Sequence[Types], dtypes: tuple[DType, ...]) -> None:
    for type_ in types:
        require(isinstance(type_, TensorType), "an operand has several results; take one of them")
    if operands is None:
        require(len(types) > 0, "takes at least one operand")
    else:
        require(len(types) == operands, f"takes {operands} operand{'s' * (operands != 1)}, not {len(types)}")
    if types:
        require_dtype(types[0], dtypes)  # type: ignore[arg-type]


# --- type rules

def require(holds: bool, reason: str, sizes: tuple[Dim, ...] = ()) -> None:
    if not holds:
        raise TypeRuleError(reason, sizes)


def require_dtype(type_: TensorType, dtypes: Sequence[DType], what: str = "takes") -> None:
    require(type_.dtype in dtypes or not type_.dtype.is_storage,
            f"{type_.dtype.short} is for storage only: cast it to a dtype that is computed with, then back")
    require(type_.dtype in dtypes, f"{what} {', '.join(d.short for d in dtypes)}, not {type_.dtype.short}")


def require_same_dtype(*types: TensorType) -> None:
    names = [t.dtype.short for t in types]
    require(len(set(names)) == 1,
            f"operands are to have one dtype, not {' and '.join(dict.fromkeys(names))}; cast first")


def require_axis(axis: int, rank: int) -> None:
    require(0 <= axis < rank, f"axis {axis} is not one of the {rank} axes, counted from 0")


def require_axes(axes: Sequence[int], rank: int) -> None:
    for axis in axes:
        require_axis(axis, rank)
    require(len(set(axes)) == len(axes), f"axes {tuple(axes)} name one axis twice")


def require_one_per_axis(what: str, values: Sequence[Any], rank: int) -> None:
    require(len(values) == rank, f"{what} has {len(values)} entries for {rank} axes")


def require_at_least(what: str, value: Dim, least: Dim) -> None:
    """Refuses only what is certainly smaller: a symbolic size that may fit is left to run time."""
    high = bounds(value - least)[1]
    require(high is None or high >= 0, f"{what} {value} is less than {least}")


def require_equal_sizes(what: str, a: Dim, b: Dim) -> None:
    require(a == b, f"{what} differ: {a} and {b}", (a, b))


def broadcast_rule(attributes: Any, *types: TensorType) -> TensorType:
    """One dtype; shapes broadcast as NumPy's do."""
    require_same_dtype(*types)
    return TensorType(types[0].dtype, broadcast_shapes(*(t.shape for t in types)))


def predicate_rule(attributes: Any, *types: TensorType) -> TensorType:
    return broadcast_rule(attributes, *types).with_dtype(BOOL)


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


# --- formulas

def _in_world_of(beside: Any, op: Op, attributes: Any) -> Any:
    apply = getattr(type(beside), "apply_op", None)
    return apply(op, (), attributes) if apply is not None else op.evaluate(attributes)


def apply_nullary(op: Op, beside: Any, **attributes: Any) -> Any:
    """An op without operands (iota, size): a node where `beside` is a node, an array where it is one."""
    return _in_world_of(beside, op, op.make_attributes(attributes))


def like(x: Any, number: Any, dtype: DType | None = None) -> Any:
    """A constant scalar of x's dtype (or `dtype`), of x's world."""
    value = np.asarray(number, (dtype or dtype_of(x.dtype)).numpy)
    return _in_world_of(x, get_op("constant"), Content.of(value))


def filled_like(x: Any, number: Any, shape: Shape | None = None) -> Any:
    """A tensor of x's dtype and shape (or `shape`) with one value everywhere."""
    return ops.broadcast_to(like(x, number), shape=tuple(x.shape if shape is None else shape))


def size_like(x: Any, dim: Dim, dtype: DType | None = None) -> Any:
    """A size as a scalar of x's dtype (or `dtype`): a constant where it is known, else read at run time."""
    wanted = dtype or dtype_of(x.dtype)
    return like(x, dim, wanted) if is_static(dim) else apply_nullary(ops.size, x, dim=dim, dtype=wanted)


def cast_to(x: Any, dtype: DType) -> Any:
    return x if dtype_of(x.dtype) is dtype else ops.cast(x, dtype=dtype)


def count_of(shape: Shape, axes: Sequence[int]) -> Dim:
    return prod((shape[a] for a in axes), start=1)


def unbroadcast(g: Any, shape: Shape) -> Any:
    """The cotangent of an operand of `shape`: `g` summed over the axes along which it was broadcast."""
    extra = len(g.shape) - len(shape)
    stretched = [extra + i for i, d in enumerate(shape) if d == 1 and g.shape[extra + i] != 1]
    axes = (*range(extra), *stretched)
    return ops.reshape(ops.reduce_sum(g, axes=axes, keepdims=True), shape=tuple(shape)) if axes else g


def pointwise_gradient(formula: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """The record's gradient from `formula(g, result, *operands)`, which may ignore broadcasting."""
    def gradient(g: Any, attributes: Any, result: Any, *operands: Any) -> Sequence[Any]:
        parts = formula(g, result, *operands)
        parts = parts if isinstance(parts, tuple) else (parts,)
        return tuple(None if p is None else unbroadcast(p, x.shape)
                     for p, x in zip(parts, operands, strict=True))
    return gradient


def no_slope(g: Any, attributes: Any, result: Any, *operands: Any) -> Sequence[None]:
    """The gradient of what is piecewise constant: no cotangent for any operand."""
    return (None,) * len(operands)


# --- NumPy meanings

def rounded(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """`function`, computed in float32 for float16 and bfloat16 operands and rounded once."""
    @wraps(function)
    def meaning(*arrays: np.ndarray, **options: Any) -> np.ndarray:
        dtype = arrays[0].dtype
        if not dtype_of(dtype).is_narrow_float:
            return np.asarray(function(*arrays, **options))
        result = np.asarray(function(*(widened(a) for a in arrays), **options))
        return result.astype(dtype) if result.dtype == np.float32 else result
    return meaning


def known(dims: Iterable[Dim]) -> tuple[int, ...]:
    """Sizes where arrays are: every one is a number. Raises KeyError naming a symbol that is not."""
    return tuple(evaluate_dim(d, {}) for d in dims)


def widened(array: np.ndarray) -> np.ndarray:
    """In the dtype that sums of its elements are kept in: float16 and bfloat16 in float32."""
    wide = dtype_of(array).accumulator.numpy
    return array if array.dtype == wide else array.astype(wide)
