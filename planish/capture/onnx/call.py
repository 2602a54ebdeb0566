"""One node of an ONNX model as its translation sees it, and the table of translations.

A translation takes a `Call` and returns the value(s) of its outputs. It is registered under its operator with
the opset since which it holds; of several, the newest that is not newer than the model's opset is taken.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from planish.capture.onnx.fresh import FreshSizes, dependencies
from planish.capture.onnx.sizes import Sizes, Value, as_node, computed, dims_of, known, number_of, pieces
from planish.capture.onnx.symbols import LONGEST
from planish.capture.onnx.tensors import onnx_dtype
from planish.errors import ModelError, NeedsValue, UnsupportedOp
from planish.ir import Node, Note
from planish.ir.graph import NO_NOTE
from planish.ir.node import get_item
from planish.types import Dim, DType, TensorType, dtype_of, element_count, is_static, symbols_of


@dataclass(frozen=True, eq=False)
class Call:
    """An operator applied to values. `opset` is the version of `domain` the model uses; `fresh` makes sizes
    that depend on values, except in the body of a loop or choice that is an op of ours (`is_body`)."""

    op_type: str
    domain: str
    opset: int
    where: str
    operands: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    fresh: FreshSizes | None = None
    is_body: bool = False
    note: Note = NO_NOTE

    def note_of(self, node: Node) -> Note:
        """Where a node that its translation makes comes from."""
        return self.note

    # --- operands

    def has(self, i: int) -> bool:
        return i < len(self.operands) and self.operands[i] is not None

    def value(self, i: int) -> Value:
        """Operand `i` as it is. Raises ModelError where it is missing."""
        value = self.operands[i] if self.has(i) else None
        if value is None:
            self.invalid(f"operand {i} is missing")
        return value

    def __getitem__(self, i: int) -> Node:
        """Operand `i` as a node. Raises ModelError where it is missing."""
        return as_node(self.value(i))

    def get(self, i: int) -> Node | None:
        """Operand `i` as a node, or None where it is left out."""
        return self[i] if self.has(i) else None

    def nodes(self) -> list[Node]:
        return [self[i] for i in range(len(self.operands))]

    def dtype(self, i: int) -> DType:
        value = self.operands[i] if self.has(i) else None
        return value.dtype if isinstance(value, (Node, Sizes)) else self[i].dtype

    def rank(self, i: int = 0) -> int:
        return len(self.shape(i))

    def shape(self, i: int = 0) -> tuple[Dim, ...]:
        value = self.operands[i] if self.has(i) else None
        return tuple(value.shape) if isinstance(value, (Node, Sizes)) else self[i].shape

    # --- operands that must be known

    def sizes(self, i: int, what: str) -> tuple[Dim, ...]:
        """The elements of operand `i`, flat, as Dims.

        Raises NeedsValue where they depend on inputs' values.
        """
        elements = self.known_sizes(i, what)
        if elements is None:
            self.needs_value(i, f"its {what}")
        return elements

    def known_sizes(self, i: int, what: str) -> tuple[Dim, ...] | None:
        """As `sizes`; None where they depend on inputs' values."""
        elements = known(self.operands[i] if self.has(i) else None)
        if elements is None:
            array = computed(self[i])
            if array is None:
                return None
            if array.dtype.kind not in "iub" and not np.array_equal(array, np.trunc(array)):
                self.invalid(f"its {what} (operand {i}) is not whole: {array}")
            elements = array.astype(np.int64).astype(object)
        return tuple(dims_of(elements).flat)

    def sizes_at_run_time(self, i: int, what: str, most: Dim = LONGEST) -> tuple[Dim, ...]:
        """As `sizes`, all of them from 0 to `most`; those that depend on inputs' values are fresh symbols.
        Raises NeedsValue where it is not known how many there are."""
        elements = self.known_sizes(i, what)
        if elements is not None:
            return elements
        self.count(i, what)
        parts = (self.said("sizes", [piece], [most] * number_of(piece.shape), limit=most)
                 if isinstance(piece, Node) else piece for piece in pieces(self[i]))
        return tuple(size for part in parts for size in part)

    def sizes_if_known(self, i: int, what: str) -> list[Dim | None]:
        """The elements of operand `i`, flat: Dims, and None for those that depend on inputs' values."""
        self.count(i, what)
        parts = ([None] * number_of(piece.shape) if isinstance(piece, Node) else piece
                 for piece in pieces(self[i]))
        return [size for part in parts for size in part]

    def said(self, function: str, nodes: Sequence[Node], most: Sequence[Dim],
             **parameters: Any) -> tuple[Dim, ...]:
        """Sizes that a host function says of nodes, as fresh symbols; each is at most what `most` says."""
        return self._fresh(nodes).sizes(function, nodes, most, **parameters)

    def moved(self, function: str, nodes: Sequence[Node], shape: Sequence[Dim | None],
              **parameters: Any) -> Node:
        """The first of the nodes as a host function lays it out, by the values of the others; None stands for
        a size that it says."""
        return self._fresh(nodes).moved(function, nodes, nodes[0].dtype, shape, **parameters)

    def _fresh(self, nodes: Sequence[Node]) -> FreshSizes:
        if self.fresh is None or self.is_body:
            inputs, sizes = dependencies(nodes, (), None)
            raise NeedsValue(f"{self.where}: a size that depends on the values of inputs, in the body of a "
                             "loop or branch: give them as constants", inputs, sizes)
        return self.fresh

    def fresh_size(self) -> Dim:
        """A size that only the result of a host function says."""
        return self._fresh_sizes().symbol()

    def host(self, function: str, operands: Sequence[Node], result: TensorType, **parameters: Any) -> Node:
        """The result of a host function on nodes."""
        return self._fresh_sizes().call(function, operands, (result,), **parameters)

    def host_results(self, function: str, operands: Sequence[Node], *results: TensorType,
                     **parameters: Any) -> tuple[Node, ...]:
        node = self._fresh_sizes().call(function, operands, results, **parameters)
        return tuple(get_item(node, i) for i in range(len(results)))

    def _fresh_sizes(self) -> FreshSizes:
        if self.fresh is None or self.is_body:
            self.refuse("it runs in Python, which the body of a loop or a branch that the run takes can't")
        return self.fresh

    def count(self, i: int, what: str) -> int:
        """How many elements operand `i` has. Raises NeedsValue where that is not known."""
        total = element_count(self.shape(i))
        if not is_static(total):
            self.needs_value(i, f"its {what}")
        return total

    def integers(self, i: int, what: str) -> tuple[int, ...]:
        """As `sizes`, all of them numbers."""
        return self.integers_of(self.sizes(i, what), f"its {what} (operand {i})")

    def integers_of(self, dims: Sequence[Dim], what: str) -> tuple[int, ...]:
        """Sizes that are to be numbers. Raises NeedsValue where one is symbolic."""
        if not all(map(is_static, dims)):
            self.needs_size(what, *dims)
        return tuple(int(d) for d in dims)  # type: ignore[arg-type]

    def floats(self, i: int, what: str) -> tuple[float, ...]:
        """The elements of operand `i`, flat. Raises NeedsValue where they depend on inputs."""
        array = computed(self[i])
        if array is None:
            self.needs_value(i, f"its {what}")
        return tuple(float(v) for v in array.flat)

    def integer(self, i: int, what: str) -> int:
        values = self.integers(i, what)
        if len(values) != 1:
            self.invalid(f"its {what} (operand {i}) is to be one number, not {len(values)}")
        return values[0]

    # --- attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute's value; those that are floats, and their defaults too, have float32's precision."""
        value = self.attributes.get(name, default)
        return float(np.float32(value)) if isinstance(value, float) else value

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.attributes.get(name, default))

    def dtype_attribute(self, name: str) -> DType:
        return onnx_dtype(self.attribute(name, 0), self.where)

    @staticmethod
    def dtype_of_array(array: np.ndarray) -> DType:
        return dtype_of(array)

    def axis(self, name: str = "axis", default: int = 0, rank: int | None = None) -> int:
        """The attribute `name` as an axis counted from 0."""
        return self.as_axis(self.attribute(name, default), self.rank() if rank is None else rank)

    def as_axis(self, axis: int, rank: int) -> int:
        if not -rank <= axis < rank:
            self.invalid(f"axis {axis} is not one of the {rank} axes")
        return axis % rank

    def axes(self, operand: int, rank: int | None = None) -> tuple[int, ...] | None:
        """Axes counted from 0, of an operand or of the attribute `axes`; None where neither is given."""
        if self.has(operand):
            given: Sequence[int] = self.integers(operand, "axes")
        elif "axes" in self.attributes:
            given = self.attributes["axes"]
        else:
            return None
        rank = self.rank() if rank is None else rank
        return tuple(self.as_axis(a, rank) for a in given)

    # --- errors

    def refuse(self, why: str, advice: str = "") -> NoReturn:
        raise UnsupportedOp(f"{self.where}: {why}" + (f"; {advice}" if advice else ""))

    def needs_value(self, i: int, what: str) -> NoReturn:
        """`what` depends on the value of operand `i`, which is not known."""
        inputs, sizes = dependencies([self[i]], (), self.fresh)
        raise NeedsValue(
            f"{self.where}: {what} (operand {i}) depends on the values of inputs; "
            f"give {', '.join(inputs) or 'that input'} as a constant: "
            "load_graph(..., constants={name: array})", inputs, sizes)

    def needs_size(self, what: str, *dims: Dim) -> NoReturn:
        """`what` depends on symbolic sizes."""
        inputs, sizes = dependencies((), dims, self.fresh)
        advice = "fix it: load_graph(..., symbols={name: number})" if sizes else \
            f"give {', '.join(inputs)} as a constant: load_graph(..., constants={{name: array}})"
        names = dict.fromkeys(name for dim in dims for name in symbols_of(dim))
        raise NeedsValue(f"{self.where}: {what} depends on the symbolic size {', '.join(names)}; {advice}",
                         inputs, sizes)

    def invalid(self, why: str) -> NoReturn:
        raise ModelError(f"{self.where}: {why}")


Translation = Callable[[Call], Value | Sequence[Value]]
_TABLE: dict[tuple[str, str], dict[int, Translation]] = {}


def translates(*op_types: str, since: int = 1, domain: str = "") -> Callable[[Translation], Translation]:
    """Register a translation of these operators, as they are defined from opset `since` on."""
    def register(function: Translation) -> Translation:
        for op_type in op_types:
            versions = _TABLE.setdefault((domain, op_type), {})
            if since in versions:
                raise ValueError(f"two translations of {op_type} since opset {since}")
            versions[since] = function
        return function
    return register


def find_translation(domain: str, op_type: str, opset: int) -> Translation | None:
    versions = _TABLE.get((domain, op_type), {})
    held = [since for since in versions if since <= opset]
    return versions[max(held)] if held else None


def supported_operators() -> list[str]:
    """The names of the operators of the default domain with a translation."""
    return sorted(op_type for domain, op_type in _TABLE if not domain)
