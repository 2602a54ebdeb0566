"""What native code does not have, said before anything is compiled.

In: an optimised graph. Out: nothing, or one error that lists every node without native code.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from planish.codegen.llvm.elementwise import supports
from planish.errors import UnsupportedOp
from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.schedule.argmax import PLACES
from planish.schedule.nests import has_nest


def require_native(graph: Graph) -> None:
    """Raises UnsupportedOp that names op, dtypes and place of every node without native code."""
    missing = dict.fromkeys(_missing(graph))
    if missing:
        lines = "\n  ".join(missing)
        raise UnsupportedOp(f"{graph.name} has operations without native code:\n  {lines}\n"
                            "Run it with strategy='library', or write it with other operations")


def _missing(graph: Graph) -> Iterator[str]:
    for node in graph.nodes():
        if not is_native(node):
            location = graph.note(node).location
            dtypes = ", ".join(o.dtype.name for o in node.operands)
            yield f"{node.op.name} of {dtypes}{f' ({location})' if location else ''}"
        for inner in _graphs_of(node):
            yield from _missing(inner)
            yield from (f"host function {n.attributes.function} in a {node.op.name}" for n in inner.nodes()
                        if n.op.has("host"))


def is_native(node: Node) -> bool:
    """Whether there is native code for a node; of a control op, for its choice or loop."""
    if node.op.has("pointwise"):
        return supports(node.op.name, tuple(o.dtype.name for o in node.operands))
    return node.op.has("control") or node.op.has("host") or node.op.name in PLACES or has_nest(node)


def _graphs_of(node: Node) -> list[Graph]:
    """The graphs that a control op holds."""
    if not node.op.has("control"):
        return []
    values = [getattr(node.attributes, f.name) for f in fields(node.attributes)]
    return [v for v in values if isinstance(v, Graph)]
