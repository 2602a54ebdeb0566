"""Sizes that a graph learns while it runs: the symbols that results of host ops define, and who uses them.

Host ops that define symbols stand among a graph's effects, in the order in which they run, so whatever a size
is used for comes after the op that says it, also where no operand leads from one to the other.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from planish.ir.graph import Graph, topological
from planish.ir.node import Node
from planish.ops.content import Content
from planish.types import Expr, Symbol, TensorType, symbols_of


def results_of(node: Node) -> tuple[TensorType, ...]:
    return node.type if isinstance(node.type, tuple) else (node.type,)


def symbols_made(node: Node) -> dict[str, Symbol]:
    """The symbols that the shapes of a host op's results are, one to a size, and that are not known before:
    neither the shapes of its operands nor its parameters have them."""
    if not node.op.has("host"):
        return {}
    before = (node.attributes.function, *(t for o in node.operands for t in results_of(o)))
    known = {name for d in _dims(before) for name in symbols_of(d)}
    return {s.name: s for t in results_of(node) for d in t.shape for s in symbols_of(d).values()
            if str(d) == s.name and s.name not in known}


def symbols_used(node: Node) -> dict[str, Symbol]:
    """The symbols that must have a value before a node runs."""
    made = symbols_made(node)
    values = (node.attributes.function if made else node.attributes, results_of(node))
    return {s.name: s for d in _dims(values) for s in symbols_of(d).values() if s.name not in made}


def all_symbols(graph: Graph) -> dict[str, Symbol]:
    """Those of the inputs, then those that host ops define."""
    found = graph.symbols()
    for node in graph.nodes():
        for name, one in symbols_made(node).items():
            found.setdefault(name, one)
    return found


def without_idle_hosts(graph: Graph) -> Graph:
    """The graph without effects that only say sizes which nothing uses."""
    if not any(e.op.has("host") for e in graph.effects):
        return graph
    live = set(topological(graph.outputs + tuple(e for e in graph.effects if not e.op.has("host"))))
    used = {name for node in live for name in symbols_used(node)}
    kept = []
    for effect in reversed(graph.effects):
        if effect.op.has("host") and effect not in live and used.isdisjoint(symbols_made(effect)):
            continue
        kept.append(effect)
        under = set(topological((effect,))) - live
        used |= {name for node in under for name in symbols_used(node)}
        live |= under
    return replace(graph, effects=tuple(reversed(kept)))


def _dims(value: Any) -> Iterator[Expr]:
    """Every symbolic size in a value: attribute records, tuples, types, the nodes of graphs."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from _dims(one)
    elif isinstance(value, Graph):
        for node in value.nodes():
            yield from _dims((node.attributes, results_of(node)))
    elif is_dataclass(value) and not isinstance(value, (type, Content)):
        for f in fields(value):
            yield from _dims(getattr(value, f.name))
