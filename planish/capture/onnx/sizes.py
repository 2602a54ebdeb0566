"""Integer tensors whose elements are known as sizes: how shape arithmetic keeps the batch symbolic.

A tensor of a translated model is a `Node`, or a `Sizes`: what Shape gives, and what Gather, Concat, Mul...
make of it. An operator of the table below, applied to values that are all known, is evaluated here, on object
arrays of `Dim`. What can't be decided (is N == 3?) is left to the graph: a `Sizes` becomes a node where it is
used as data.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from planish.capture.onnx.containers import EmptyOptional, SequenceValue
from planish.errors import TypeRuleError
from planish.ir import Graph, Node, constant, interpret
from planish.ir.node import make_node
from planish.ops import get_op
from planish.ops.rules import ops
from planish.types import BOOL, INT64, Dim, DType, Shape, is_static
from planish.types.dim import is_nonnegative, maximum, minimum

if TYPE_CHECKING:
    from planish.capture.onnx.call import Call

MOST = 1024            # elements up to which an integer tensor counts as sizes
MOST_COMPUTED = 2**20  # and up to which what follows from constants is computed while the model is read


@dataclass(frozen=True, eq=False)
class Sizes:
    """A tensor of `dtype` whose elements are the Dims in `dims` (an object array)."""

    dims: np.ndarray
    dtype: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dims.shape


Tensor = Node | Sizes
Value = Tensor | SequenceValue | EmptyOptional


class Undecided(Exception):
    """An operation on sizes whose result depends on their values."""


def dims_of(values: Any) -> np.ndarray:
    """An object array of a sequence (or one) of Dims; NumPy integers become Python's."""
    array = np.asarray(values, dtype=object)
    plain = np.empty(array.shape, dtype=object)
    plain[...] = np.frompyfunc(_plain, 1, 1)(array)
    return plain


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def sizes_value(dims: Any, dtype: DType = INT64) -> Value:
    """The value with these elements: a constant where all are numbers."""
    array = dims_of(dims)
    if not all(map(_is_number, array.flat)):
        return Sizes(array, dtype)
    if dtype.is_integer and any(not _fits(d, dtype) for d in array.flat):
        raise Undecided
    return constant(array.astype(dtype.numpy))


def _is_number(dim: Any) -> bool:
    return isinstance(dim, (int, bool))


def _fits(value: int, dtype: DType) -> bool:
    limits = ml_dtypes.iinfo(dtype.numpy)
    return limits.min <= value <= limits.max


def known(value: Value | None) -> np.ndarray | None:
    """The elements of a value as Dims, or None where they are not known (or not small integers or bools)."""
    if isinstance(value, Sizes):
        return value.dims
    if not isinstance(value, Node) or value.op.name != "constant" or not _is_whole(value.dtype):
        return None
    array = value.attributes.array
    return array.astype(object) if array.size <= MOST else None


def _is_whole(dtype: DType) -> bool:
    return (dtype.is_integer and not dtype.is_storage) or dtype is BOOL


def number_of(shape: Shape) -> int:
    """How many elements there are, where sizes are numbers."""
    return prod(d for d in shape if is_static(d))


def pieces(node: Node) -> list[np.ndarray | Node]:
    """What a vector is joined of: parts whose elements are known as Dims, and nodes."""
    if node.op.name == "concat":
        return [piece for part in node.operands for piece in pieces(part)]
    if node.op.name == "reshape" and node.shape == (1,) and node.operands[0].op.name == "size":
        return [dims_of([node.operands[0].attributes.dim])]
    elements = known(node)
    return [node if elements is None else elements.reshape(-1)]


def computed(node: Node) -> np.ndarray | None:
    """The content of a node that depends on constants only, or None."""
    if node.op.name == "constant":
        return node.attributes.array
    graph = Graph((), (node,))
    return interpret(graph, ())[0] if all(map(_is_computable, graph.nodes())) else None


def _is_computable(node: Node) -> bool:
    types = node.type if isinstance(node.type, tuple) else (node.type,)
    small = all(is_static(t.size) and t.size <= MOST_COMPUTED for t in types)
    return small and (bool(node.operands) or node.op.name == "constant")


def as_node(value: Value) -> Node:
    """The value as data: each size that is not a number is read at run time. Raises TypeRuleError for what
    is no tensor."""
    if isinstance(value, Node):
        return value
    if not isinstance(value, Sizes):
        kind = "a sequence" if isinstance(value, SequenceValue) else "an optional that holds nothing"
        raise TypeRuleError(f"{kind} stands where a tensor is to stand")
    parts = [ops.reshape(size_node(d, value.dtype), shape=(1,)) for d in value.dims.flat]
    joined = parts[0] if len(parts) == 1 else ops.concat(*parts, axis=0)
    return ops.reshape(joined, shape=value.shape)


def size_node(dim: Dim, dtype: DType) -> Node:
    """A size as a scalar node: a constant, or read at run time."""
    return constant(dim, dtype) if is_static(dim) else make_source("size", dim=dim, dtype=dtype)


def make_source(name: str, **attributes: Any) -> Node:
    """A node of an op without operands: size, iota."""
    op = get_op(name)
    return make_node(op, (), op.make_attributes(attributes))


# --- operators on sizes

def fold(call: Call) -> Value | None:
    """The result of an operator on known values, where it can be told; else None."""
    rule = _FOLDS.get(call.op_type) if call.domain == "" and len(call.outputs) == 1 else None
    if rule is None:
        return None
    elements = [None if v is None else known(v) for v in call.operands]
    if any(e is None and v is not None for e, v in zip(elements, call.operands)):
        return None
    try:
        dims, dtype = rule(call, *elements)
        return sizes_value(dims, dtype) if np.size(dims) <= MOST else None
    except Undecided:
        return None


Fold = Callable[..., "tuple[Any, DType]"]


def _pointwise(function: Callable[..., Any], dtype: DType | None = None) -> Fold:
    """`function` on elements, broadcast; the result has `dtype`, or that of the first operand."""
    def apply(call: Call, *arrays: np.ndarray) -> tuple[Any, DType]:
        if dtype is None and call.dtype(0) is BOOL:
            raise Undecided
        return np.frompyfunc(function, len(arrays), 1)(*arrays), dtype or call.dtype(0)
    return apply


def _less(a: Dim, b: Dim) -> bool:
    if is_nonnegative(b - a - 1):
        return True
    if is_nonnegative(a - b):
        return False
    raise Undecided


def _equal(a: Dim, b: Dim) -> bool:
    if a == b:
        return True
    if is_nonnegative(a - b - 1) or is_nonnegative(b - a - 1):
        return False
    raise Undecided


def _truth(value: Dim) -> bool:
    if not is_static(value):
        raise Undecided
    return bool(value)


def _quotient(a: Dim, b: Dim) -> Dim:
    """Integer division of ONNX drops the fraction; on sizes that are not negative that is the floor."""
    if is_static(b) and b == 0:
        raise Undecided
    if is_nonnegative(a) and is_nonnegative(b):
        return a // b
    if is_static(b):
        return (maximum(a, 0) // abs(b) - maximum(a * -1, 0) // abs(b)) * (1 if b > 0 else -1)
    raise Undecided


def _remainder(a: Dim, b: Dim) -> Dim:
    if (is_static(b) and b == 0) or not is_nonnegative(a) or not is_nonnegative(b):
        raise Undecided
    return a % b


def _where(call: Call, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Any, DType]:
    return np.frompyfunc(lambda c, a, b: a if _truth(c) else b, 3, 1)(condition, x, y), call.dtype(1)


def _cast(call: Call, x: np.ndarray) -> tuple[Any, DType]:
    dtype = call.dtype_attribute("to")
    if dtype.is_float:
        raise Undecided
    return (dims_of([_truth(d) for d in x.flat]).reshape(x.shape) if dtype is BOOL else x), dtype


def _gather(call: Call, x: np.ndarray, indices: np.ndarray) -> tuple[Any, DType]:
    where = _numbers(indices)
    axis = call.attribute("axis", 0)
    if where.size and not -x.shape[axis] <= where.min() <= where.max() < x.shape[axis]:
        raise Undecided
    return np.take(x, where, axis=axis), call.dtype(0)


def _numbers(x: np.ndarray) -> np.ndarray:
    if not all(map(is_static, x.flat)):
        raise Undecided
    return x.astype(np.int64)


def _slice(call: Call, x: np.ndarray, *bounds: np.ndarray | None) -> tuple[Any, DType]:
    if call.opset < 10 or x.ndim != 1:
        raise Undecided
    starts, ends, _, steps = (*(None if b is None else _numbers(b) for b in bounds), None, None)[:4]
    if starts is None or ends is None or starts.shape != (1,):
        raise Undecided
    return x[int(starts[0]):int(ends[0]):1 if steps is None else int(steps[0])], call.dtype(0)


def _concat(call: Call, *xs: np.ndarray) -> tuple[Any, DType]:
    return np.concatenate(xs, axis=call.attribute("axis", 0)), call.dtype(0)


def _squeeze(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> tuple[Any, DType]:
    chosen = _axes(call, axes)
    return np.squeeze(x, axis=None if chosen is None else chosen), call.dtype(0)


def _unsqueeze(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> tuple[Any, DType]:
    return np.expand_dims(x, _axes(call, axes) or ()), call.dtype(0)


def _axes(call: Call, axes: np.ndarray | None) -> tuple[int, ...] | None:
    if axes is not None:
        return tuple(int(a) for a in _numbers(axes).flat)
    given = call.attribute("axes")
    return None if given is None else tuple(given)


def _reshape(call: Call, x: np.ndarray, shape: np.ndarray) -> tuple[Any, DType]:
    sizes = [int(s) for s in _numbers(shape).flat]
    if not call.attribute("allowzero", 0):
        sizes = [x.shape[i] if s == 0 else s for i, s in enumerate(sizes)]
    return x.reshape(sizes), call.dtype(0)


def _expand(call: Call, x: np.ndarray, shape: np.ndarray) -> tuple[Any, DType]:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(_numbers(shape)))), call.dtype(0)


def _reduce_prod(call: Call, x: np.ndarray, axes: np.ndarray | None = None) -> tuple[Any, DType]:
    chosen = _axes(call, axes)
    keep = bool(call.attribute("keepdims", 1))
    return np.prod(x, axis=chosen, keepdims=keep), call.dtype(0)


def _range(call: Call, *ends: np.ndarray) -> tuple[Any, DType]:
    start, limit, delta = (int(_numbers(end).item()) for end in ends)
    numbers = range(start, limit, delta)
    if len(numbers) > MOST:
        raise Undecided
    return list(numbers), call.dtype(0)


def _constant_of_shape(call: Call, shape: np.ndarray) -> tuple[Any, DType]:
    value = call.attribute("value")
    sizes = tuple(_numbers(shape))
    if value is None or value.dtype.kind not in "iu" or np.prod(sizes) > MOST:
        raise Undecided
    return np.full(sizes, value.item(), dtype=object), call.dtype_of_array(value)


_FOLDS: dict[str, Fold] = {
    "Add": _pointwise(lambda a, b: a + b),
    "Sub": _pointwise(lambda a, b: a - b),
    "Mul": _pointwise(lambda a, b: a * b),
    "Neg": _pointwise(lambda a: a * -1),
    "Div": _pointwise(_quotient),
    "Mod": _pointwise(_remainder),
    "Max": _pointwise(maximum),
    "Min": _pointwise(minimum),
    "Equal": _pointwise(_equal, BOOL),
    "Less": _pointwise(_less, BOOL),
    "Greater": _pointwise(lambda a, b: _less(b, a), BOOL),
    "Not": _pointwise(lambda a: not _truth(a), BOOL),
    "LessOrEqual": _pointwise(lambda a, b: not _less(b, a), BOOL),
    "GreaterOrEqual": _pointwise(lambda a, b: not _less(a, b), BOOL),
    "Identity": _pointwise(lambda a: a),
    "Cast": _cast,
    "Where": _where,
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "ReduceProd": _reduce_prod,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
}
