"""Composite ops become the primitives they are made of: the passes after this know only primitives."""
from __future__ import annotations

from dataclasses import dataclass

from planish.ir import Graph, Node
from planish.passes.protocol import Context, local_step
from planish.rewrite.rules.attention import has_kernel


@dataclass(frozen=True)
class Decompose:
    """An attention that a later stage has a kernel for is kept, unless the order of sums is to stay as it is
    written (strict) or `recognise` is switched off."""

    name: str = "decompose"
    reason: str = "first: all that follows sees only primitives"

    def run(self, graph: Graph, context: Context) -> Graph:
        keeps = context.numerics != "strict" and "recognise" not in context.disable

        def change(node: Node) -> tuple[Node, str] | None:
            return None if keeps and has_kernel(node) else self.decomposed(node)
        return context.rewrite(graph, local_step(change, context.disable))

    def decomposed(self, node: Node) -> tuple[Node, str] | None:
        if node.op.name == "item" and self.applies(node.operands[0]):
            source = node.operands[0]
            return _parts(source)[node.attributes.index], source.op.name
        if self.applies(node) and not isinstance(node.type, tuple):
            return _parts(node)[0], node.op.name
        return None

    def applies(self, node: Node) -> bool:
        return node.op.has("composite")


def _parts(node: Node) -> tuple[Node, ...]:
    assert node.op.decompose is not None
    made = node.op.decompose(node.attributes, *node.operands)
    return made if isinstance(made, tuple) else (made,)
