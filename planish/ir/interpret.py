"""The reference interpreter: walks a graph node by node with each op's NumPy meaning.

In: a graph and arrays. Out: arrays. With `precision="float64"` every float is carried in float64: the
reference that validation measures against. It is also what runs under the library strategy: one kernel and
one memory round trip per op.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from planish.errors import SignatureError
from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.ir.specialize import bind_results, bind_symbols, substitute_value
from planish.types import STRING, DType, as_text, dtype_of

Precision = Literal["own", "float64"]


def interpret(graph: Graph, inputs: Sequence[Any], *, precision: Precision = "own",
              observe: Callable[[Node, Any], None] | None = None) -> tuple[np.ndarray, ...]:
    """The outputs of `graph` on arrays whose dtypes and shapes fit its inputs.

    `observe(node, value)` sees every intermediate value. Raises SignatureError and ShapeError for inputs that
    do not fit, and whatever a failing check of the program says.
    """
    arrays = [checked(node, np.asarray(value)) for node, value in zip(graph.inputs, inputs)]
    sizes = bind_symbols(graph, [np.shape(v) for v in inputs])
    wide = precision == "float64"
    return _walk(graph, [_widen(a) for a in arrays] if wide else arrays, sizes, wide, observe)


def _walk(graph: Graph, inputs: Sequence[Any], sizes: dict[str, int], wide: bool,
          observe: Callable[[Node, Any], None] | None = None) -> tuple[np.ndarray, ...]:
    values: dict[Node, Any] = dict(zip(graph.inputs, inputs))
    last_use = _last_uses(graph)
    for node in graph.nodes():
        if node not in values:
            attributes = substitute_value(node.attributes, sizes)
            operands = [values[o] for o in node.operands]
            values[node] = _evaluate_wide(node, attributes, operands) if wide \
                else node.op.evaluate(attributes, *operands)
            if node.op.has("host"):
                bind_host(node, values[node], sizes)
        if observe is not None:
            observe(node, values[node])
        for done in last_use.get(node, ()):
            del values[done]
    return tuple(values[n] for n in graph.outputs)


def bind_host(node: Node, result: Any, sizes: dict[str, int]) -> None:
    """Adds the sizes that the result of a host op defines. ShapeError where it is not of its type."""
    results = result if isinstance(result, tuple) else (result,)
    bind_results(node.attributes.results, [r.shape for r in results], sizes,
                 f"the result of {node.attributes.function}")


def checked(node: Node, array: np.ndarray) -> np.ndarray:
    """The array, of the dtype of an input. Raises SignatureError for another."""
    if dtype_of(array) is not node.dtype:
        raise SignatureError(f"input {node.attributes.name}: expected {node.dtype.name}, "
                             f"got {array.dtype.name}")
    return as_text(array) if node.dtype is STRING else array


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """node -> the values not needed after it."""
    last: dict[Node, Node] = {}
    for node in graph.nodes():
        for operand in node.operands:
            last[operand] = node
    keep = set(graph.roots) | set(graph.inputs)
    found: dict[Node, list[Node]] = {}
    for value, user in last.items():
        if value not in keep:
            found.setdefault(user, []).append(value)
    return found


def _widen(value: Any) -> Any:
    """In float64. What is for storage stays: a cast to it is meant to round."""
    if isinstance(value, tuple):
        return tuple(map(_widen, value))
    return value.astype(np.float64) if _is_computed(dtype_of(value)) else value


def _is_computed(dtype: DType) -> bool:
    return dtype.is_float and not dtype.is_storage


@dataclass(frozen=True)
class _Wide:
    """The graph of a control op, which takes and gives float64."""

    graph: Graph

    @property
    def inputs(self) -> Sequence[Node]:
        return self.graph.inputs

    @property
    def outputs(self) -> Sequence[Node]:
        return self.graph.outputs

    def run(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        return _walk(self.graph, arrays, {}, wide=True)


def _evaluate_wide(node: Node, attributes: Any, operands: list[Any]) -> Any:
    if node.op.has("control"):
        inner = {f.name: getattr(attributes, f.name) for f in fields(attributes)}
        attributes = replace(attributes, **{n: _Wide(g) for n, g in inner.items() if isinstance(g, Graph)})
    if node.op.name == "cast" and _is_computed(node.dtype):
        return operands[0].astype(np.float64)
    if node.op.name == "bitcast":
        operands = [operands[0].astype(node.operands[0].dtype.numpy)]
    return _widen(node.op.evaluate(attributes, *operands))
