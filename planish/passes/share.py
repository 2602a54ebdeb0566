"""Equal values are computed once.

Nodes are interned, so expressions written alike are one node from the start. What is left: `x + y` beside
`y + x`, and large constants of equal content in different arrays (interning compares those by identity, to
stay cheap).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planish.ir import Graph, Node
from planish.ops.content import Content, ask, leaves, with_leaves
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
    """constant -> the first constant of the same content, for those that have one. Arrays are compared, and
    what is derived alike of equal ones is equal."""
    nodes = [n for n in graph.nodes() if n.op.name == "constant"]
    same = _equal_arrays(leaves([n.attributes for n in nodes]))
    first: dict[Content, Node] = {}
    found = {n: first.setdefault(with_leaves(n.attributes, same), n) for n in nodes} if same else {}
    return {n: one for n, one in found.items() if one is not n}


def _equal_arrays(contents: list[Content]) -> dict[Content, Content]:
    """array -> the first of equal content, for those that have one; what is interned by content has none."""
    by_type: dict[object, list[Content]] = {}
    for content in contents:
        if not content.is_interned:
            by_type.setdefault(content.type, []).append(content)
    found: dict[Content, Content] = {}
    for alike in by_type.values():
        if len(alike) > 1:
            found |= {c: alike[k] for c, k in zip(alike, ask("equal", *alike)) if alike[k] is not c}
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
