"""The outputs of a translated graph: how each output of the FX graph is made of them, and which are views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planish.capture.torch.call import transposed
from planish.capture.torch.captured import (
    ArgumentResult,
    ComplexResult,
    NoneResult,
    NumberResult,
    ProgramResult,
    Result,
    SizeResult,
    ViewResult,
)
from planish.capture.torch.complex import Complex
from planish.capture.torch.fx import base_of
from planish.capture.torch.inputs import Inputs
from planish.capture.torch.layouts import inverse, memory_order
from planish.capture.torch.promotion import Number
from planish.ir import Node
from planish.types import Expr


class Results:
    """Collects `outputs` of the graph. `value_of` gives what stands for an output of the FX graph, or for a
    node of it."""

    def __init__(self, inputs: Inputs, value_of: Callable[[Any], Any]):
        self.inputs, self.sizes, self.value_of = inputs, inputs.sizes, value_of
        self.outputs: list[Node] = []
        self.made: dict[Any, ProgramResult] = {}

    def result(self, node: Any) -> Result:
        value = self.value_of(node)
        if value is None:
            return NoneResult()
        is_argument = node in self.inputs.arguments
        if is_argument and self.inputs.arguments[node] not in self.inputs.constants:
            return ArgumentResult(self.inputs.arguments[node])
        if isinstance(value, Complex):
            return self._complex(node, value)
        return self._tensor(node, value) if isinstance(value, Node) else self._number(value)

    def _number(self, value: Any) -> Result:
        if isinstance(value, Expr) and self.sizes.is_fresh(value):
            value = Number(self.inputs.scalar(value))
        return NumberResult(self._add(value.node)) if isinstance(value, Number) else SizeResult(value)

    def _add(self, output: Node) -> int:
        self.outputs.append(output)
        return len(self.outputs) - 1

    def _complex(self, node: Any, value: Complex) -> ComplexResult:
        order = memory_order(node.meta["val"], self.sizes) or tuple(range(value.ndim))
        return ComplexResult(self._add(transposed(value.node, (*order, value.ndim))), inverse(order))

    # --- tensors

    def _tensor(self, node: Any, value: Node) -> Result:
        base, tensor = base_of(node), node.meta["val"]
        place = map(self.sizes.dim, (*tensor.stride(), tensor.storage_offset()))
        is_view = base is not node and not self.sizes.is_fresh(*value.shape, *place)
        of = self._base(base) if is_view else None
        return self._program(node, value) if of is None else self._view(node, base, of)

    def _base(self, base: Any) -> ProgramResult | ArgumentResult | None:
        """The tensor that a view is of: an argument, or a result whose memory lies as torch's does."""
        if base in self.inputs.arguments:
            index = self.inputs.arguments[base]
            return None if index in self.inputs.constants else ArgumentResult(index)
        if memory_order(base.meta["val"], self.sizes) is None or base.meta["val"].storage_offset() != 0:
            return None
        return self._program(base, self.value_of(base))

    def _program(self, node: Any, value: Node) -> ProgramResult:
        if node not in self.made:
            order = memory_order(node.meta["val"], self.sizes) or tuple(range(value.ndim))
            self.made[node] = ProgramResult(self._add(transposed(value, order)), inverse(order))
        return self.made[node]

    def _view(self, node: Any, base: Any, of: ProgramResult | ArgumentResult) -> ViewResult:
        tensor = node.meta["val"]
        start = base.meta["val"].storage_offset()
        shape, strides = (tuple(map(self.sizes.dim, dims)) for dims in (tensor.shape, tensor.stride()))
        return ViewResult(of, shape, strides, self.sizes.dim(tensor.storage_offset() - start))
