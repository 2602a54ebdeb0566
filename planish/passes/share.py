"""Equal values are computed once.

Nodes are interned, so expressions written alike are one node from the start. What is left: `x + y` beside
`y + x`, and large constants of equal content in different arrays (interning compares those by identity, to
stay cheap).
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planish.ir import Graph, Node
from planish.ops.structure import SMALL
from planish.passes.canonicalise import commutes
from planish.passes.protocol import Context
from planish.rewrite import Numerics

GLANCES = 64  # elements looked at before whole arrays are hashed


@dataclass(frozen=True)
class Share:
    name: str = "share"
    reason: str = "after the rules: what they made alike is merged too"

    def run(self, graph: Graph, context: Context) -> Graph:
        large = (n for n in graph.nodes() if n.op.name == "constant" and n.attributes.array.nbytes > SMALL)
        return context.rewrite(graph, _Sharer(Counter(map(_glance, large)), context.numerics).step)


def _glance(node: Node) -> tuple[object, bytes]:
    """What a constant's equals share at least: its type and a few elements from all over."""
    array = node.attributes.array
    if array.size == 0 or not array.flags.c_contiguous:
        return node.type, b""
    places = np.linspace(0, array.size - 1, GLANCES).astype(np.int64)
    return node.type, array.reshape(-1)[places].tobytes()


@dataclass
class _Sharer:
    """The first node seen of every value. Only constants that look alike at a glance are hashed."""

    alike: Counter
    numerics: Numerics
    first: dict[object, Node] = field(default_factory=dict)

    def step(self, node: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
        if node.op.name == "constant" and self.alike[_glance(node)] > 1:
            return self.merged((node.type, node.attributes.digest), node, "equal_constant")
        if commutes(node, self.numerics):
            return self.merged((node.op, frozenset(node.operands), node.attributes), node,
                               "equal_up_to_order")
        return None

    def merged(self, key: object, node: Node, name: str) -> tuple[Node, str] | None:
        first = self.first.setdefault(key, node)
        return None if first is node else (first, name)
