"""The inputs of a translated graph: what stands for the placeholders of the FX graph, and what feeds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import mul
from typing import Any

import numpy as np

from planish.capture.torch.call import transposed
from planish.capture.torch.captured import (
    ComplexFeed,
    Feed,
    KeyFeed,
    NumberFeed,
    SizesFeed,
    TensorFeed,
)
from planish.capture.torch.complex import Complex
from planish.capture.torch.fx import EFFECTS, is_complex, is_symbolic_int, is_symbolic_number, is_tensor
from planish.capture.torch.layouts import inverse, memory_order
from planish.capture.torch.promotion import Number, part_dtype
from planish.capture.torch.sizes import Sizes
from planish.capture.torch.tensors import constant_array
from planish.errors import UnsupportedOp
from planish.ir import Node, constant, input_node
from planish.ir.node import make_node
from planish.ops.record import get_op
from planish.ops.rules import ops
from planish.types import FLOAT64, INT64, UINT8, UINT32, Expr, TensorType, symbols_of

Noted = Callable[[Node, str], None]


class Inputs:
    """The inputs of one graph. `feeds` says where each comes from, `arguments` which placeholder is which
    argument, `places` where sizes are read. `integers` are sizes as numbers."""

    def __init__(self, name: str, constants: Mapping[int, Any], sizes: Sizes, note: Noted):
        self.name, self.constants, self.sizes, self.note = name, constants, sizes, note
        self.nodes: list[Node] = []
        self.feeds: list[Feed] = []
        self.arguments: dict[Any, int] = {}
        self.places: dict[str, tuple[int, int | None]] = {}
        self.integers: dict[str, Node] = {}
        self.keys = 0
        self.key_input: Node | None = None

    def placeholder(self, index: int, node: Any) -> Any:
        """What stands for argument `index`."""
        self.arguments[node] = index
        value = node.meta.get("val")
        if any(str(user.target) == EFFECTS and user.args[0] is node for user in node.users):
            return constant(np.zeros(0, np.float32))  # a token: the caller passes None
        if index in self.constants:
            found = self.constants[index]
            return self.constant(constant_array(found), found.is_complex(), node.name)
        if is_tensor(value):
            return self._tensor(index, node, value)
        if is_symbolic_int(value):
            guard_size(node, value)
            dim = self.sizes.dim(value)
            if isinstance(dim, Expr) and str(dim) in self.sizes.symbols:
                self.places.setdefault(str(dim), (index, None))
            return dim
        if is_symbolic_number(value):
            return Number(self._add(node.name, TensorType(FLOAT64), NumberFeed(index, "float64")))
        if value is None or isinstance(value, (int, float, bool, str)):
            return value
        raise UnsupportedOp(f"an argument of type {type(value).__name__}")

    def constant(self, array: np.ndarray, is_complex: bool, name: str) -> Node | Complex:
        """A tensor that is always the same."""
        found = constant(array)
        self.note(found, name)
        return Complex(found) if is_complex else found

    def _tensor(self, index: int, node: Any, value: Any) -> Node | Complex:
        shape = tuple(map(self.sizes.dim, value.shape))
        order = memory_order(value, self.sizes)
        lying = tuple(range(len(shape))) if order is None else order
        pair = (2,) if is_complex(value) else ()
        type_ = TensorType(part_dtype(value.dtype), (*(shape[i] for i in lying), *pair))
        feed = ComplexFeed(index, lying) if pair else TensorFeed(index, order)
        taken = self._add(node.name, type_, feed)
        for axis, dim in enumerate(shape):
            if str(dim) in self.sizes.symbols:
                self.places[str(dim)] = (index, axis)
        back = inverse(lying)
        return Complex(transposed(taken, (*back, len(back)))) if pair else transposed(taken, back)

    def _add(self, name: str, type_: TensorType, feed: Feed) -> Node:
        node = input_node(name, type_)
        self.nodes.append(node)
        self.feeds.append(feed)
        self.note(node, name)
        return node

    def carry_sizes(self) -> None:
        """Sizes that no input's shape says by itself come as the shape of an empty array."""
        bound = {str(d) for n in self.nodes for d in n.shape if isinstance(d, Expr)}
        sizes = {name: s for name, d in self.sizes.symbols.items() for s in symbols_of(d).values()}
        known = bound | self.sizes.fresh
        missing = [name for name, s in sizes.items() if name not in known and s.low >= 0]
        for name in missing:
            if name not in self.places:
                raise UnsupportedOp(f"{self.name}: no argument says the size {name} by itself")
        if missing:
            shape = (0, *(self.sizes.symbols[name] for name in missing))
            feed = SizesFeed(tuple(self.places[name][0] for name in missing))
            self._add("sizes", TensorType(UINT8, shape), feed)

    def key(self) -> Node:
        """The next key of this call: one part of the key that the call is given."""
        if self.key_input is None:
            self.key_input = self._add("key", TensorType(UINT32, (2,)), KeyFeed())
        self.keys += 1
        # The stream of key k is that of the call's key with k added: keys differ, and so do their streams.
        step = constant([self.keys & 0xFFFFFFFF, 0x9E3779B9], UINT32)
        return ops.bitwise_xor(self.key_input, step)

    # --- sizes as numbers

    def scalar(self, dim: Expr) -> Node:
        """The value of a size. One that may be negative (an int argument, a number read from a tensor) is
        computed from the arguments."""
        by_name = symbols_of(dim).items()
        if all(s.low >= 0 and name not in self.integers for name, s in by_name):
            return make_node(get_op("size"), (), get_op("size").make_attributes({"dim": dim, "dtype": INT64}))
        total = constant(np.asarray(0, np.int64))
        for monomial, coefficient in dim.terms:
            factor = constant(np.asarray(coefficient, np.int64))
            total = total + reduce(mul, map(self._integer, monomial), factor)
        return total

    def _integer(self, atom: Any) -> Node:
        name = str(atom)
        if name not in self.integers:
            if name not in self.places:
                raise UnsupportedOp(f"{self.name}: the number {name}, which may be negative")
            index, axis = self.places[name]
            if axis is not None:
                attributes = get_op("size").make_attributes({"dim": self.sizes.symbols[name], "dtype": INT64})
                return make_node(get_op("size"), (), attributes)
            self.integers[name] = self._add(name, TensorType(INT64), NumberFeed(index, "int64"))
        return self.integers[name]


def guard_size(placeholder: Any, number: Any) -> None:
    """Have an int argument that sizes of tensors follow from guarded to be no less than 0: then it can be a
    size of the program. A negative one is a constant; a call with another is captured anew."""
    node = number.node
    if not node.expr.is_Symbol or node.hint is None:
        return
    values = (n.meta.get("val") for n in placeholder.graph.nodes)
    shapes = (value.shape for value in values if is_tensor(value))
    if any(is_symbolic_int(size) and node.expr in size.node.expr.free_symbols for s in shapes for size in s):
        int(number) if node.hint < 0 else bool(number >= 0)
