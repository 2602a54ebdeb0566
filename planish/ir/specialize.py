"""Putting numbers in place of symbolic sizes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from planish.errors import ShapeError
from planish.ir.graph import Graph
from planish.ir.node import Node, input_node, make_node
from planish.ops.content import Content
from planish.types import Dim, Expr, Symbol, TensorType, evaluate_dim, substitute, symbols_of


def bind_symbols(graph: Graph, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """symbol -> size, from the shapes of the actual inputs. Raises ShapeError when they do not fit the graph,
    or a size is out of its symbol's range."""
    values: dict[str, int] = {}
    if len(shapes) != len(graph.inputs):
        raise ShapeError(f"{graph.name} takes {len(graph.inputs)} inputs; {len(shapes)} were given")
    for node, shape in zip(graph.inputs, shapes):
        for dim, size in zip(node.shape, shape):
            if isinstance(dim, Expr) and _is_symbol(dim):
                values.setdefault(str(dim), size)
    for node, shape in zip(graph.inputs, shapes):
        expected = tuple(substitute(d, values) for d in node.shape)
        if expected != tuple(shape):
            raise ShapeError(f"input {node.attributes.name}: expected shape {_show(node.shape)}, "
                             f"got {_show(shape)}")
    for symbol in graph.symbols().values():
        _hold_range(symbol, values)
    return values


def bind_results(types: Sequence[TensorType], shapes: Sequence[Sequence[int]], values: dict[str, int],
                 what: str) -> None:
    """Adds to `values` the symbols that results of these types define by their actual shapes. ShapeError
    where they do not fit, or a size is out of its symbol's range."""
    fresh = [s for t in types for d in t.shape for s in symbols_of(d).values()
             if str(d) == s.name and s.name not in values]
    for type_, shape in zip(types, shapes):
        for dim, size in zip(type_.shape, shape):
            if isinstance(dim, Expr) and _is_symbol(dim):
                values.setdefault(str(dim), size)
    for type_, shape in zip(types, shapes):
        if static_sizes(type_.shape, values) != tuple(shape):
            raise ShapeError(f"{what}: expected shape {_show(type_.shape)}, got {_show(shape)}")
    for symbol in fresh:
        _hold_range(symbol, values)


def _hold_range(symbol: Symbol, values: Mapping[str, int]) -> None:
    size = values[symbol.name]
    if size < symbol.low or (symbol.high is not None and size > evaluate_dim(symbol.high, values)):
        raise ShapeError(f"{symbol.requirement}, got {size}")


def _is_symbol(dim: Expr) -> bool:
    return str(dim).isidentifier()


def _show(shape: Sequence[Dim]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"


def substitute_value(value: Any, sizes: Mapping[str, Dim]) -> Any:
    """`value` with symbols replaced, wherever sizes can stand: dims, tuples, types, attribute records,
    graphs."""
    if isinstance(value, Expr):
        return substitute(value, sizes)
    if isinstance(value, tuple):
        return tuple(substitute_value(v, sizes) for v in value)
    if isinstance(value, Graph):
        return specialize(value, sizes)
    if is_dataclass(value) and not isinstance(value, (type, Content)):
        old = {f.name: getattr(value, f.name) for f in fields(value)}
        new = {name: substitute_value(v, sizes) for name, v in old.items()}
        return value if all(new[n] is old[n] for n in old) else replace(value, **new)
    return value


def specialize(graph: Graph, sizes: Mapping[str, Dim]) -> Graph:
    """The graph with symbols replaced by sizes (numbers, or other symbols)."""
    def change(node: Node, operands: tuple[Node, ...]) -> Node:
        if node.op.name == "input":
            shape = substitute_value(node.attributes.type.shape, sizes)
            return input_node(node.attributes.name, node.attributes.type.with_shape(shape))
        return make_node(node.op, operands, substitute_value(node.attributes, sizes))
    return graph.map(change) if sizes else graph


def static_sizes(dims: Sequence[Dim], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_dim(d, sizes) for d in dims)
