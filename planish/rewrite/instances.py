"""Random nodes that a pattern may match: what the rule checker tries a rule on.

In: a pattern and a dtype. Out: a node over fresh inputs. Shapes are small, with size 1, empty, and
broadcasting among them; attributes that the pattern leaves open are drawn from what the op takes for its
operands.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from planish.ir import Node, constant, input_node
from planish.ir.specialize import static_sizes
from planish.ops.record import OPS, Op
from planish.ops.rules import ops, require
from planish.rewrite.pattern import Literal, OpPattern, Pattern, Several, TraitPattern, Variable
from planish.types import BOOL, DTYPES, FLOAT32, INT32, DType, TensorType, broadcast_shapes

SHAPES = ((), (1,), (3,), (2, 3), (1, 3), (2, 2), (2, 1, 3), (3, 2, 2), (0, 3), (2, 0))
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


@dataclass
class Instances:
    """Draws one instance: each name of the pattern gets its node once."""

    rng: np.random.Generator
    bound: dict[str, Any] = field(default_factory=dict)
    inputs: int = 0

    def __post_init__(self) -> None:
        self.shape = self.choose(SHAPES)

    def choose(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def draw(self, pattern: Pattern, dtype: DType) -> Any:
        """A node; for `several` a tuple. `dtype` is that of the data: a comparison of it is a bool."""
        if isinstance(pattern, (Variable, Several)):
            if pattern.name not in self.bound:
                self.bound[pattern.name] = self.draw_name(pattern, dtype)
            return self.bound[pattern.name]
        if isinstance(pattern, Literal):
            return self.filled(pattern.number, dtype)
        if isinstance(pattern, TraitPattern):
            return self.pointwise(dtype)
        assert isinstance(pattern, OpPattern)
        return self.apply(pattern, dtype)

    def draw_name(self, pattern: Variable | Several, dtype: DType) -> Any:
        if isinstance(pattern, Several):
            return self.concatenable(dtype)
        if not pattern.op_name:
            return self.operand(dtype)
        return self.filled(self.number(dtype), dtype) if self.chance(0.7) else constant(self.numbers(dtype))

    # --- operands

    def input(self, dtype: DType, shape: tuple[int, ...]) -> Node:
        self.inputs += 1
        return input_node(f"x{self.inputs}", TensorType(dtype, shape))

    def operand(self, dtype: DType) -> Node:
        """An input whose shape broadcasts with the shape at hand."""
        shape = self.shape
        if self.chance(0.3):
            shape = tuple(1 if self.chance(0.4) else d for d in shape)
            shape = shape[int(self.rng.integers(len(shape) + 1)):]
        return self.input(dtype, shape)

    def filled(self, number: Any, dtype: DType) -> Node:
        """A constant with one number everywhere: a scalar, or as large as the shape at hand."""
        require(dtype.is_float or np.isfinite(number), "integers are finite")
        return constant(np.full(self.shape if self.chance(0.3) else (), number, dtype.numpy))

    def number(self, dtype: DType) -> Any:
        if dtype.is_integer and self.chance(0.3):
            return np.iinfo(dtype.numpy).max if dtype.kind == "uint" else -1
        return self.choose((1, 0, 2, 4, 8) if not dtype.is_float
                           else (0.125, 8.0, 3.0, -0.7, 2.0 ** -10, -4.0))

    def numbers(self, dtype: DType) -> np.ndarray:
        values = [self.number(dtype) for _ in range(prod(self.shape))]
        return np.array(values, dtype.numpy).reshape(self.shape)

    def disguised(self, dtype: DType) -> Node:
        """An operand that a rule may look into: transposed, broadcast, or plain."""
        kind = self.rng.integers(3)
        if kind == 0 and len(self.shape) > 1:
            axes = tuple(reversed(range(len(self.shape))))
            return ops.transpose(self.input(dtype, tuple(self.shape[a] for a in axes)), axes=axes)
        if kind == 1:
            return ops.broadcast_to(self.operand(dtype), shape=self.shape)
        return self.operand(dtype) if self.chance(0.7) else self.input(dtype, ())

    def pointwise(self, dtype: DType) -> Node:
        """Any elementwise op on disguised operands."""
        names = [op for op in OPS.values() if op.has("pointwise") and op.name not in ("bitcast", "cast")]
        op = self.choose(names)
        count = 3 if op.name in ("select", "fma") else 2 if _is_binary(op) else 1
        alike = self.disguised(dtype)
        operands = [self.disguised(d) for d in operand_dtypes(op, dtype, count, self)]
        if self.chance(0.3) and alike.op.name == "transpose" and op.name != "select":
            operands = [self.like(alike) for _ in operands]
        return op(*operands)

    def like(self, node: Node) -> Node:
        """The same expression of another input."""
        return node.op(self.input(node.dtype, static_sizes(node.operands[0].shape, {})),
                       axes=node.attributes.axes)

    def concatenable(self, dtype: DType) -> tuple[Node, ...]:
        """Operands of one concat: inputs, neighbouring slices, inner concats, empty ones."""
        rank = max(1, len(self.shape))
        axis = int(self.rng.integers(rank))
        self.bound["axis"] = axis
        sizes = [int(self.rng.integers(0, 3)) + 1 for _ in range(rank)]
        parts: list[Node] = []
        for _ in range(int(self.rng.integers(1, 4))):
            parts += self.parts(dtype, sizes, axis)
        return tuple(parts)

    def parts(self, dtype: DType, sizes: list[int], axis: int) -> list[Node]:
        def sized(n: int) -> tuple[int, ...]:
            return tuple(n if i == axis else d for i, d in enumerate(sizes))
        kind = self.rng.integers(4)
        if kind == 0:
            whole = self.input(dtype, sized(5))
            cut = int(self.rng.integers(0, 5))
            return [_cut(whole, axis, 0, cut), _cut(whole, axis, cut, 5)]
        if kind == 1:
            return [ops.concat(self.input(dtype, sized(2)), self.input(dtype, sized(1)), axis=axis)]
        return [self.input(dtype, sized(int(self.rng.integers(0, 4))))]

    # --- ops

    def apply(self, pattern: OpPattern, dtype: DType) -> Node:
        dtypes = operand_dtypes(pattern.op, dtype, len(pattern.operands), self)
        operands: list[Node] = []
        for one, wanted in zip(pattern.operands, dtypes):
            if pattern.op.name == "pad" and operands:
                operands.append(self.input(wanted, ()))
                continue
            compares = isinstance(one, OpPattern) and one.op.name in COMPARISONS
            drawn = self.draw(one, dtype if compares else wanted)
            operands += drawn if isinstance(drawn, tuple) else [drawn]
        attributes = ATTRIBUTES.get(pattern.op.name, _no_attributes)(self, operands, dtype)
        return pattern.op(*operands, **{**attributes, **pattern.attributes})


def operand_dtypes(op: Op, dtype: DType, count: int, draw: Instances) -> list[DType]:
    """The dtypes of an op's operands where its data has `dtype`."""
    if op.name == "select":
        return [BOOL, dtype, dtype]
    if op.name == "cast":
        return [draw.choose(DTYPES)]
    if op.name == "bitcast":
        return [draw.choose([d for d in DTYPES if d.bits == dtype.bits and d is not BOOL])]
    return [dtype] * count


def _is_binary(op: Op) -> bool:
    from planish.errors import TypeRuleError
    for dtype in (FLOAT32, INT32, BOOL):
        try:
            op.infer(op.attributes(), TensorType(dtype), TensorType(dtype))
        except (TypeRuleError, TypeError):
            continue
        return True
    return False


def _cut(node: Node, axis: int, start: int, stop: int) -> Node:
    starts = tuple(start if i == axis else 0 for i in range(node.ndim))
    stops = tuple(stop if i == axis else d for i, d in enumerate(node.shape))
    return ops.slice(node, starts=starts, stops=stops, steps=(1,) * node.ndim)


# --- attributes a pattern leaves open

Draw = Callable[[Instances, list[Node], DType], dict[str, Any]]


def _no_attributes(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    return {}


def _axes(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    """A permutation; half the time the one that undoes the operand's."""
    x, rank = operands[0], operands[0].ndim
    inner = x if x.op.name == "transpose" else next((o for o in x.operands if o.op.name == "transpose"), None)
    if inner is not None and inner.ndim == rank and draw.chance(0.5):
        return {"axes": tuple(inner.attributes.axes.index(i) for i in range(rank))}
    if x.op.name == "dot_general" and rank == 2 and draw.chance(0.7):
        return {"axes": (1, 0)}
    return {"axes": tuple(range(rank)) if draw.chance(0.2) else tuple(map(int, draw.rng.permutation(rank)))}


def _new_shape(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    x = operands[0]
    size = prod(x.shape)
    options = [x.shape, (size,), (1, *x.shape), (*x.shape, 1), tuple(reversed(x.shape)),
               tuple(d for d in x.shape if d != 1)]
    if x.op.has("reduction"):
        source, taken = x.operands[0].shape, x.attributes.axes
        kept = tuple(1 if i in taken else d for i, d in enumerate(source))
        options += [kept, tuple(d for i, d in enumerate(source) if i not in taken)] * 4
    return {"shape": draw.choose(options)}


def _wider_shape(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    shape = tuple(draw.choose((1, 2, 3)) if d == 1 else d for d in operands[0].shape)
    options = [operands[0].shape, (1, *operands[0].shape), (2, *shape), shape,
               broadcast_shapes(shape, (1,) * 3)]
    return {"shape": draw.choose(options)}


def _bounds(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    shape = static_sizes(operands[0].shape, {})
    if draw.chance(0.2):
        return {"starts": (0,) * len(shape), "stops": shape, "steps": (1,) * len(shape)}
    starts = tuple(int(draw.rng.integers(0, d + 1)) if draw.chance(0.6) else 0 for d in shape)
    stops = tuple(int(draw.rng.integers(s, d + 1)) if draw.chance(0.6) else d for s, d in zip(starts, shape))
    return {"starts": starts, "stops": stops, "steps": tuple(draw.choose((1, 1, 2, 3)) for _ in shape)}


def _padding(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    rank, most = operands[0].ndim, 1 if draw.chance(0.3) else 3
    low, high, interior = (tuple(int(draw.rng.integers(0, n)) for _ in range(rank))
                           for n in (most, most, 1 + draw.chance(0.2)))
    return {"low": low, "high": high, "interior": interior}


def _axis(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    return {"axis": draw.bound.pop("axis", 0)}


def _some_axes(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    return {"axes": tuple(i for i in range(operands[0].ndim) if draw.chance(0.5))}


def _reduced(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    return {**_some_axes(draw, operands, dtype), "keepdims": draw.chance(0.4)}


def _dot(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    """Axes of equal size pair up, as contracted or as batch."""
    a, b = operands
    pairs, left = [], list(range(b.ndim))
    for i in map(int, draw.rng.permutation(a.ndim)):
        j = next((j for j in left if b.shape[j] == a.shape[i]), None)
        if j is not None and draw.chance(0.6):
            pairs.append((i, j))
            left.remove(j)
    batch = pairs[1:] if draw.chance(0.5) else []
    contract = [p for p in pairs if p not in batch]
    return {"lhs_contract": tuple(i for i, _ in contract), "rhs_contract": tuple(j for _, j in contract),
            "lhs_batch": tuple(i for i, _ in batch), "rhs_batch": tuple(j for _, j in batch),
            "alpha": draw.choose((1.0, 1.0, 0.5)) if dtype.is_float else 1.0}


def _dtype(draw: Instances, operands: list[Node], dtype: DType) -> dict[str, Any]:
    return {"dtype": dtype}


ATTRIBUTES: dict[str, Draw] = {
    "transpose": _axes, "reshape": _new_shape, "broadcast_to": _wider_shape, "slice": _bounds,
    "pad": _padding, "concat": _axis, "reverse": _some_axes, "dot_general": _dot, "cast": _dtype,
    "bitcast": _dtype,
    **{f"reduce_{name}": _reduced for name in ("sum", "prod", "max", "min", "any", "all")},
}

