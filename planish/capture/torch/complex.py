"""Complex numbers: a complex tensor stands in the graph as its real and imaginary parts, along a last axis.

torch runs operators on complex tensors as host ops, over the same memory. Those that only move, split or join
parts, and plain arithmetic, are native; their table, overload -> translation, is here, apart from that of
operators on real tensors. `call.types` has the types of the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planish.capture.torch.call import Call, Translation, as_node, cast, find_translation, number, reshaped
from planish.errors import UnsupportedOp
from planish.ir import Node
from planish.ops.rules import ops
from planish.types import FLOAT16, Dim, DType


@dataclass(frozen=True)
class Complex:
    """A complex tensor: `node` is [..., 2]."""

    node: Node

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return self.node.ndim - 1

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.node.shape[:-1]

    def part(self, i: int) -> Node:
        """The real parts (0) or the imaginary ones (1)."""
        starts, stops = (*(0,) * self.ndim, i), (*self.shape, i + 1)
        column = ops.slice(self.node, starts=starts, stops=stops, steps=(1,) * self.node.ndim)
        return reshaped(column, self.shape)


def joined(real: Node, imaginary: Node) -> Complex:
    pairs = (reshaped(part, (*part.shape, 1)) for part in (real, imaginary))
    return Complex(ops.concat(*pairs, axis=real.ndim))


def parts(value: Any, dtype: DType) -> tuple[Node, Node]:
    """Both parts of a tensor or a number."""
    if isinstance(value, Complex):
        return cast(value.part(0), dtype), cast(value.part(1), dtype)
    if isinstance(value, complex):
        return number(value.real, dtype), number(value.imag, dtype)
    real = as_node(value, dtype)
    return real, number(0, dtype)


def has_complex(value: Any) -> bool:
    """Whether an argument is complex, or a list with such a tensor."""
    return any(map(has_complex, value)) if isinstance(value, tuple) else isinstance(value, (Complex, complex))


# --- the table

_TABLE: dict[str, Translation] = {}


def find_complex_translation(overload: str) -> Translation | None:
    return _TABLE.get(overload)


def on_complex(*overloads: str) -> Callable[[Translation], Translation]:
    def register(function: Translation) -> Translation:
        _TABLE.update(dict.fromkeys(overloads, function))
        return function

    return register


@on_complex("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(call: Call, x: Complex) -> Node:
    return x.node


@on_complex("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(call: Call, x: Node) -> Complex:
    return Complex(x)


@on_complex("aten.complex.default")
def complex_(call: Call, real: Node, imaginary: Node) -> Complex:
    return joined(*(ops.broadcast_to(p, shape=call.shape) for p in (real, imaginary)))


@on_complex("aten.real.default", "prims.real.default")
def real(call: Call, x: Complex) -> Node:
    return x.part(0)


@on_complex("aten.imag.default", "prims.imag.default")
def imag(call: Call, x: Complex) -> Node:
    return x.part(1)


# --- the same on either part

MOVES = (
    "view.default", "_unsafe_view.default", "view_copy.default", "reshape.default", "squeeze.default",
    "squeeze.dim", "squeeze.dims", "unsqueeze.default", "clone.default", "alias.default", "detach.default",
    "lift_fresh.default", "lift_fresh_copy.default", "contiguous.default", "permute.default", "t.default",
    "transpose.int", "flip.default", "roll.default", "expand.default", "slice.Tensor", "select.int",
    "split.Tensor", "split_with_sizes.default", "unbind.int", "diagonal.default", "unfold.default",
    "cat.default", "repeat.default", "constant_pad_nd.default",
    "slice_scatter.default", "select_scatter.default", "tril.default",
    "triu.default", "index_select.default", "gather.default", "where.self", "neg.default",
    "_efficientzerotensor.default",
    "zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default",
    "new_empty.default", "empty_strided.default", "new_empty_strided.default", "sum.default",
    "sum.dim_IntList",
)  # fmt: skip


def _on_parts(overload: str) -> Translation:
    """A translation of real tensors, applied to the real parts and to the imaginary ones."""

    def translation(call: Call, *arguments: Any) -> Any:
        function = find_translation(overload)
        assert function is not None
        real, imaginary = (function(call, *(_part(a, i) for a in arguments)) for i in (0, 1))
        if isinstance(real, (tuple, list)):
            return tuple(map(joined, real, imaginary))
        return joined(real, imaginary)

    return translation


def _part(value: Any, i: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_part(v, i) for v in value)
    if isinstance(value, Complex):
        return value.part(i)
    if isinstance(value, complex):
        raise UnsupportedOp("a complex number")
    return 0.0 if i == 1 and isinstance(value, float) else value


for _name in MOVES:
    on_complex(f"aten.{_name}")(_on_parts(f"aten.{_name}"))


@on_complex("aten.full.default", "aten.full_like.default")
def full(call: Call, first: Any, value: Any, *options: Any) -> Complex:
    return joined(*(ops.broadcast_to(p, shape=call.shape) for p in parts(value, call.dtype)))


@on_complex("aten.scalar_tensor.default")
def scalar_tensor(call: Call, value: Any, *options: Any) -> Complex:
    return joined(*parts(value, call.dtype))


@on_complex("aten._to_copy.default", "prims.convert_element_type.default", "aten.copy.default")
def to_copy(call: Call, x: Any, *options: Any) -> Complex:
    """To complex numbers of another precision, or from real ones."""
    source = options[0] if call.overload == "aten.copy.default" else x
    return joined(*(ops.broadcast_to(p, shape=call.shape) for p in parts(source, call.dtype)))


# --- arithmetic; halves torch computes in float32


def _wide(call: Call) -> DType:
    if call.dtype is FLOAT16:
        call.refuse("arithmetic on complex halves")
    return call.dtype


@on_complex(
    "aten._conj.default", "aten.conj_physical.default", "aten._conj_physical.default", "prims.conj.default"
)
def conj(call: Call, x: Complex) -> Complex:
    real, imaginary = parts(x, call.dtype)
    return joined(real, -imaginary)


@on_complex("aten.resolve_conj.default", "aten.resolve_neg.default")
def resolved(call: Call, x: Complex) -> Complex:
    return x


@on_complex("aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar")
def add(call: Call, x: Any, y: Any, alpha: Any) -> Complex:
    if alpha != 1:
        call.refuse("a scaled operand")
    op = ops.add if ".add." in call.overload else ops.sub
    dtype = _wide(call)
    return joined(*(_full(call, op(a, b)) for a, b in zip(parts(x, dtype), parts(y, dtype))))


@on_complex("aten.mul.Tensor", "aten.mul.Scalar", "prims.mul.default")
def mul(call: Call, x: Any, y: Any) -> Complex:
    dtype = _wide(call)
    (a, b), (c, d) = parts(x, dtype), parts(y, dtype)
    return joined(_full(call, a * c - b * d), _full(call, a * d + b * c))


@on_complex("aten.polar.default")
def polar(call: Call, length: Node, angle: Node) -> Complex:
    return joined(_full(call, length * ops.cos(angle)), _full(call, length * ops.sin(angle)))


@on_complex("aten.abs.default")
def abs_(call: Call, x: Complex) -> Node:
    _wide(call)
    return ops.hypot(x.part(0), x.part(1))


@on_complex("aten.angle.default")
def angle(call: Call, x: Complex) -> Node:
    _wide(call)
    return ops.atan2(x.part(1), x.part(0))


def _full(call: Call, part: Node) -> Node:
    return part if part.shape == call.shape else ops.broadcast_to(part, shape=call.shape)
