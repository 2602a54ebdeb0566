"""Graphs and plain values in a form that JSON can hold: equal forms mean equal values, and nothing else is
equal.

In: a graph. Out: nested lists of numbers and text in which its constants are numbered, so that graphs which
differ only in the values of constants have one form. Names of graphs and outputs, and notes, are no part of
it. Values that are neither plain nor a record of plain ones raise EncodingError.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from planish.errors import PlanishError
from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.ops.content import Content
from planish.types import STRING, DType, Expr, Symbol, TensorType, dtype_of, symbols_of


class EncodingError(PlanishError):
    """A value has no form in JSON."""


class GraphEncoder:
    """Encodes one graph, with those inside control ops. `given` numbers the constants that stand for arrays
    of their type; others are written out."""

    def __init__(self) -> None:
        self.given: dict[Content, int] = {}
        self._known: dict[Any, Any] = {}

    def graph(self, graph: Graph) -> list[Any]:
        nodes = graph.nodes()
        places = {node: i for i, node in enumerate(nodes)}
        lines = [self.node(n, places) for n in nodes]
        return [lines, *([places[n] for n in some] for some in (graph.inputs, graph.outputs, graph.effects))]

    def node(self, node: Node, places: dict[Node, int]) -> list[Any]:
        if node.op.name == "constant":
            return self.constant(node.attributes)
        operands = [places[o] for o in node.operands]
        key = (node.op, node.attributes)
        if key not in self._known:
            self._known[key] = self.values(node.attributes)
        return [node.op.name, operands, *self._known[key]]

    def constant(self, content: Content) -> list[Any]:
        if content.is_known:
            return ["constant", *encode_array(content.value)]
        return ["given", self.given.setdefault(content, len(self.given)), encode(content.type)]

    def values(self, record: Any) -> list[Any]:
        """The fields of a record of attributes."""
        return [self.graph(v) if isinstance(v, Graph) else encode(v)
                for v in (getattr(record, f.name) for f in fields(record))]


def encode_array(array: np.ndarray) -> list[Any]:
    """Dtype, shape and elements: bits in hexadecimal, or text."""
    if dtype_of(array) is STRING:
        return ["string", list(array.shape), array.reshape(-1).tolist()]
    return [array.dtype.str, dtype_of(array).name, list(array.shape), array.tobytes().hex()]


def decode_array(form: list[Any]) -> np.ndarray:
    """The array of an `encode_array` form of numbers."""
    _, name, shape, bits = form
    return np.frombuffer(bytes.fromhex(bits), dtype_of(name).numpy).reshape(shape)


# --- plain values

def encode(value: Any) -> Any:
    """None, bool, int and str are themselves, tuples are lists, all others {kind: parts}."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is tuple:
        return [encode(v) for v in value]
    if (encoder := _ENCODERS.get(kind)) is not None:
        return encoder(value)
    if is_dataclass(value) and not isinstance(value, (type, Graph, Content)):
        return {kind.__name__: [encode(getattr(value, f.name)) for f in fields(value)]}
    raise EncodingError(f"{kind.__name__} has no form in JSON")


def _symbol(one: Symbol) -> list[Any]:
    return [one.name, one.low, encode(one.high)]


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    float: lambda v: {"float": v.hex()},
    DType: lambda v: {"dtype": v.name},
    TensorType: lambda v: {"type": [v.dtype.name, *map(encode, v.shape)]},
    Expr: lambda v: {"size": [str(v), *map(_symbol, symbols_of(v).values())]},
}

_DECODERS: dict[str, Callable[[Any], Any]] = {"float": float.fromhex, "dtype": dtype_of}


def decode(form: Any) -> Any:
    """The value of an `encode` form of None, bool, int, str, float, DType and tuples. EncodingError for any
    other."""
    if isinstance(form, list):
        return tuple(map(decode, form))
    if not isinstance(form, dict):
        return form
    (kind, parts), = form.items()
    if kind not in _DECODERS:
        raise EncodingError(f"{kind} can't be read back")
    return _DECODERS[kind](parts)
