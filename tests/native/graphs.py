"""Random small programs of pointwise ops, movement, reductions, scans and gathers.

In: a chooser (`choose(options)` picks one) and an element type. Out: a graph whose results are exact to
compare: on integers every op is, on float32 the values stay moderate. Sizes may hold the symbol B.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planish.ir import Graph, Node, constant, input_node
from planish.ops.rules import ops
from planish.ops.samples import random_array
from planish.types import INT64, Dim, DType, TensorType, broadcast_shapes, evaluate_dim, is_static, symbol

SIZES = (1, 2, 3, 5, 8, 9, 16, 17, 33, 70)
LARGEST = 4096  # elements of a value, B counted as 8
ATTEMPTS = 5  # at most so many for each node
BATCH = symbol("B", 1)
UNARY = {True: ("neg", "abs", "tanh", "sigmoid", "relu", "sin"),
         False: ("neg", "abs", "sign", "bitwise_not", "relu")}
BINARY = {True: ("add", "sub", "mul", "maximum", "minimum"),
          False: ("add", "sub", "mul", "maximum", "minimum", "bitwise_xor", "floor_div", "mod")}
Choose = Callable[[Sequence[Any]], Any]


class RandomProgram:
    """Grows by one op at a time on operands made before; every op is fitted to the shapes it meets."""

    def __init__(self, choose: Choose, dtype: DType, symbolic: bool):
        self.choose, self.dtype = choose, dtype
        self.sizes: tuple[Dim, ...] = (BATCH, BATCH, *SIZES) if symbolic else SIZES
        outer = [choose(self.sizes) for _ in range(choose((0, 1, 1, 2)))]
        shape: tuple[Dim, ...] = (*outer, BATCH if symbolic else choose(SIZES))
        while _elements(shape) > LARGEST:
            shape = shape[1:]
        shapes = (shape, (shape[-1],), (*shape[:-1], 1))
        self.inputs = tuple(input_node(f"x{i}", TensorType(dtype, s)) for i, s in enumerate(shapes))
        self.nodes: list[Node] = list(self.inputs)

    def graph(self, size: int) -> Graph:
        makers = (self.unary, *[self.binary] * 2, self.select, *[self.movement] * 3, *[self.reduction] * 2,
                  self.scan, self.gather, self.joining)
        for _ in range(ATTEMPTS * size):  # a chooser that always takes the first makes the same node for ever
            if len(self.nodes) == size + len(self.inputs):
                break
            made = self.choose(makers)()
            if made is not None and made not in self.nodes and 0 < _elements(made.shape) <= LARGEST:
                self.nodes.append(made)
        used = {o for n in self.nodes for o in n.operands}
        ends = [n for n in self.nodes[len(self.inputs):] if n not in used]
        return Graph(self.inputs, (*ends, self.choose(self.nodes)))

    def node(self) -> Node:
        return self.choose(self.nodes[-4:])

    def axis(self, x: Node) -> int:
        return self.choose(range(x.ndim))

    # --- ops

    def unary(self) -> Node:
        return getattr(ops, self.choose(UNARY[self.dtype.is_float]))(self.node())

    def partner(self, x: Node) -> Node:
        """A value that broadcasts with x."""
        return self.choose([n for n in self.nodes if _broadcasts(n.shape, x.shape)])

    def binary(self) -> Node:
        x = self.node()
        operands = self.choose(((x, self.partner(x)), (self.partner(x), x), (x, constant(2, self.dtype))))
        return getattr(ops, self.choose(BINARY[self.dtype.is_float]))(*operands)

    def select(self) -> Node:
        x = self.node()
        y = self.partner(x)
        return ops.select(getattr(ops, self.choose(("lt", "ge", "eq")))(x, y), x, y)

    def movement(self) -> Node | None:
        x = self.node()
        if x.ndim == 0:
            return ops.broadcast_to(x, shape=(self.choose(self.sizes),))
        makers = (self.transpose, *[self.reshape] * 2, self.slice, self.pad, self.reverse, self.stretch)
        return self.choose(makers)(x)

    def transpose(self, x: Node) -> Node:
        axes = list(range(x.ndim))
        return ops.transpose(x, axes=tuple(axes.pop(self.choose(range(len(axes)))) for _ in range(x.ndim)))

    def reshape(self, x: Node) -> Node:
        """Two axes merged, one split, or an axis of size 1 put in."""
        at = self.axis(x)
        before, size, after = x.shape[:at], x.shape[at], x.shape[at + 1:]
        divisors = [d for d in (2, 3, 4) if is_static(size) and size % d == 0 and size > d]
        if divisors and self.choose((True, False)):
            d = self.choose(divisors)
            return ops.reshape(x, shape=(*before, size // d, d, *after))
        if after and self.choose((True, True, False)):
            return ops.reshape(x, shape=(*before, size * after[0], *after[1:]))
        return ops.reshape(x, shape=(*before, 1, size, *after))

    def slice(self, x: Node) -> Node:
        low, step = self.choose((0, 1)), self.choose((1, 1, 2))
        cut = [is_static(d) and d > 1 for d in x.shape]
        return ops.slice(x, starts=tuple(low * c for c in cut), stops=x.shape,
                         steps=tuple(step if c else 1 for c in cut))

    def pad(self, x: Node) -> Node:
        low, high, interior = (tuple(self.choose((0, 0, 1, 2)) for _ in x.shape) for _ in range(3))
        return ops.pad(x, constant(3, self.dtype), low=low, high=high, interior=interior)

    def reverse(self, x: Node) -> Node:
        return ops.reverse(x, axes=(self.axis(x),))

    def stretch(self, x: Node) -> Node:
        return ops.broadcast_to(x, shape=(self.choose((2, 3, 5)), *x.shape))

    def reduction(self) -> Node | None:
        x = self.node()
        axes = tuple(i for i in range(x.ndim) if self.choose((True, False)))
        mean = "mean" if self.dtype.is_float else "reduce_sum"
        name = self.choose(("reduce_sum", "reduce_max", "reduce_min", mean))
        return getattr(ops, name)(x, axes=axes, keepdims=self.choose((True, False)))

    def scan(self) -> Node | None:
        x = self.node()
        if x.ndim == 0:
            return None
        return getattr(ops, self.choose(("cumsum", "cummax")))(
            x, axis=self.axis(x), reverse=self.choose((True, False)), exclusive=self.choose((True, False)))

    def gather(self) -> Node | None:
        """Indices made of positions, so that some are out of range and are brought into it."""
        x = self.node()
        if x.ndim == 0:
            return None
        where = ops.iota(shape=(self.choose((1, 4, 9)),), axis=0, dtype=INT64)
        index = ops.sub(ops.mul(where, constant(self.choose((1, 3)), INT64)), constant(2, INT64))
        return ops.take(x, index, axis=self.axis(x))

    def joining(self) -> Node | None:
        x = self.node()
        if x.ndim == 0:
            return None
        axis = self.axis(x)
        fits = [n for n in self.nodes if n.ndim == x.ndim and n.shape[:axis] == x.shape[:axis]
                and n.shape[axis + 1:] == x.shape[axis + 1:]]
        return ops.concat(x, self.choose(fits), axis=axis)

    def data(self, rng: np.random.Generator, batch: int) -> list[np.ndarray]:
        shapes = [tuple(evaluate_dim(d, {"B": batch}) for d in n.shape) for n in self.inputs]
        low, high = (-2, 2) if self.dtype.is_float else (-100, 100)
        return [random_array(rng, self.dtype, s, low, high) for s in shapes]


def _elements(shape: Sequence[Dim]) -> int:
    return int(np.prod([evaluate_dim(d, {"B": 8}) for d in shape]))


def _broadcasts(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    try:
        return _elements(broadcast_shapes(a, b)) <= LARGEST
    except Exception:
        return False
