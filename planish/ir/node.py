"""The one node type: frozen and interned.

In: an op, operand nodes, attributes. Out: the node; the same three always give the same object, so equality
is identity and common subexpressions are shared as they are built. Where a node came from (location, rule)
lives beside it, in the graph's notes, so that it does not defeat sharing.
"""
from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from planish.errors import TypeRuleError
from planish.ops.algebra import Algebra
from planish.ops.content import Content
from planish.ops.host_text import is_on_text, on_text
from planish.ops.record import NoAttributes, Op, Types, get_op
from planish.types import DType, Shape, TensorType


class Node(Algebra):
    """One operation in a graph. `type` is a TensorType, or a tuple of them for an op with several results."""

    __slots__ = ("__weakref__", "attributes", "op", "operands", "type")

    op: Op
    operands: tuple[Node, ...]
    attributes: Any
    type: Types

    def __init__(self, op: Op, operands: tuple[Node, ...], attributes: Any, type_: Types):
        for name, value in (("op", op), ("operands", operands), ("attributes", attributes), ("type", type_)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a node is frozen; {name} can't be set")

    @classmethod
    def apply_op(cls, op: Op, operands: Sequence[Any], attributes: Any) -> Any:
        """Build `op(*operands)`; bare numbers and arrays become constants. Several results come as a
        tuple."""
        nodes = _as_nodes(op, operands)
        if is_on_text(attributes, [n.type for n in nodes]):
            op, attributes = get_op("host"), on_text(op, attributes, [n.tensor for n in nodes])
        node = make_node(op, nodes, attributes)
        if isinstance(node.type, tuple):
            return tuple(get_item(node, i) for i in range(len(node.type)))
        return node

    @property
    def shape(self) -> Shape:
        type_ = self.type
        return self.tensor.shape if isinstance(type_, tuple) else type_.shape

    @property
    def dtype(self) -> DType:
        type_ = self.type
        return self.tensor.dtype if isinstance(type_, tuple) else type_.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def tensor(self) -> TensorType:
        """The type of a node with one result. TypeRuleError for one with several."""
        if isinstance(self.type, tuple):
            raise TypeRuleError(f"{self.op} has {len(self.type)} results; take one with get_item")
        return self.type

    def __repr__(self) -> str:
        types = self.type if isinstance(self.type, tuple) else (self.type,)
        return f"<{self.op} {', '.join(map(str, types))}>"


NO_ATTRIBUTES = NoAttributes()
_interned: WeakValueDictionary[tuple, Node] = WeakValueDictionary()


def make_node(op: Op, operands: tuple[Node, ...], attributes: Any = NO_ATTRIBUTES,
              type_: Types | None = None) -> Node:
    """The node of this op, operands and attributes; its type by the op's rule (or `type_`, where that is
    known to be what the rule gives). Raises TypeRuleError."""
    key = (op, operands, attributes)
    found = _interned.get(key)
    if found is None:
        type_ = op.infer(attributes, *(o.type for o in operands)) if type_ is None else type_
        found = _interned.setdefault(key, Node(op, operands, attributes, type_))
    return found


def _as_nodes(op: Op, operands: Sequence[Any]) -> tuple[Node, ...]:
    """Bare numbers take the dtype of the first node beside them, as Python scalars do in NumPy."""
    if all(isinstance(o, Node) for o in operands):
        return tuple(operands)
    dtype = next(o.dtype for o in reversed(operands) if isinstance(o, Node))
    return tuple(o if isinstance(o, Node) else _number(op, o, dtype) for o in operands)


def _number(op: Op, value: Any, dtype: DType) -> Node:
    if isinstance(value, (np.ndarray, np.generic)):
        return constant(value)
    if isinstance(value, Number):
        return constant(np.asarray(value, dtype.numpy))
    raise TypeRuleError(f"{op}: {type(value).__name__} is not an operand")


def constant(value: Any, dtype: DType | None = None) -> Node:
    """A constant tensor. The array is kept (not copied) and must not be written to afterwards."""
    array = np.asarray(value, None if dtype is None else dtype.numpy)
    return constant_of(Content.of(array))


def constant_of(content: Content) -> Node:
    """A constant tensor of this content."""
    return make_node(get_op("constant"), (), content)


def input_node(name: str, type_: TensorType) -> Node:
    """An input of a graph."""
    return make_node(get_op("input"), (), get_op("input").attributes(name, type_))


def get_item(node: Node, index: int) -> Node:
    """Result `index` of an op with several results."""
    return make_node(get_op("item"), (node,), get_op("item").attributes(index))
