"""Equal values are computed once.

Nodes are interned, so expressions written alike are one node from the start. What is left: `x + y` beside
`y + x`, and large constants of equal content in different arrays (interning compares those by identity, to
stay cheap).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planish.ir import Graph, Node
from planish.ops.content import ask
from planish.passes.canonicalise import commutes
from planish.passes.protocol import Context
from planish.rewrite import Numerics


@dataclass(frozen=True)
class Share:
    name: str = "share"
    reason: str = "after the rules: what they made alike is merged too"

    def run(self, graph: Graph, context: Context) -> Graph:
        return context.rewrite(graph, _Sharer(equal_constants(graph), context.numerics).step)


def equal_constants(graph: Graph) -> dict[Node, Node]:
    """constant -> the first constant of the same content, for those that have one; constants that are
    interned by content are one node already."""
    by_type: dict[object, list[Node]] = {}
    for node in graph.nodes():
        if node.op.name == "constant" and not node.attributes.is_interned:
            by_type.setdefault(node.type, []).append(node)
    found: dict[Node, Node] = {}
    for nodes in by_type.values():
        if len(nodes) > 1:
            groups = ask("equal", *(n.attributes for n in nodes))
            found |= {n: nodes[first] for n, first in zip(nodes, groups) if nodes[first] is not n}
    return found


@dataclass
class _Sharer:
    """The first node seen of every value; `equal` says it of constants."""

    equal: dict[Node, Node]
    numerics: Numerics
    first: dict[object, Node] = field(default_factory=dict)

    def step(self, node: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
        if node in self.equal:
            return self.equal[node], "equal_constant"
        if not commutes(node, self.numerics):
            return None
        first = self.first.setdefault((node.op, frozenset(node.operands), node.attributes), node)
        return None if first is node else (first, "equal_up_to_order")
