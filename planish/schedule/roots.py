"""Which nodes get memory of their own.

In: a graph. Out: the nodes that are computed by a kernel and stored ("roots"), in graph order; every other
node is inlined into the kernels that need it. A node is a root when it has no index map (reductions,
contractions, sorts), when it is an output, or when two or more roots need it and computing it anew would cost
more than reading it back.
"""
from __future__ import annotations

from math import prod

from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.schedule.attention import ATTENTION, masks_of
from planish.schedule.nests import has_border
from planish.schedule.scalars import has_index_map, hinted, splat_of

CHEAP = {"neg", "abs", "add", "sub", "mul", "cast", "select", "maximum", "minimum", "bitwise_and",
         "bitwise_or", "bitwise_xor", "bitwise_not", "logical_not", "eq", "ne", "lt", "le", "gt", "ge",
         "bitcast", "check"}
MORE = 1.25         # how often a point is to be read until storing it pays
CHAIN = 16          # operations of a chain, cheap ones too, that are not done over for every channel
INLINE_LIMIT = 300  # nodes inlined into one kernel


def choose_roots(graph: Graph, hint: dict[str, int]) -> list[Node]:
    """The nodes to store, operands before users. Inputs and constants have memory already and are not
    listed."""
    chooser = _Chooser(graph, hint)
    return [n for n in graph.nodes() if n in chooser.roots]


class _Chooser:
    def __init__(self, graph: Graph, hint: dict[str, int]):
        self.hint = hint
        self.users = graph.users()
        self.wanted = set(graph.roots) | {o for n in graph.nodes() if n.op.has("control") for o in n.operands}
        self.roots: set[Node] = set()
        self.sinks: dict[Node, set[Node]] = {}
        self.weight: dict[Node, int] = {}
        self.chain: dict[Node, int] = {}
        for node in graph.nodes():
            self.chain[node] = self.arithmetic(node)
        for node in reversed(graph.nodes()):
            if not has_memory(node):
                self.visit(node)

    def visit(self, node: Node) -> None:
        sinks: set[Node] = set()
        for user in self.users[node]:
            sinks |= {user} if user in self.roots else self.sinks.get(user, set())
        if self.is_root(node, sinks):
            self.roots.add(node)
            self.weight[node] = 1
        else:
            self.sinks[node] = sinks
            for sink in sinks:
                self.weight[sink] = self.weight.get(sink, 1) + 1

    def is_root(self, node: Node, sinks: set[Node]) -> bool:
        if isinstance(node.type, tuple):
            return False  # its items are
        if node in self.wanted or not has_index_map(node) or node.op.name == "concat":
            return True
        if not sinks or splat_of(node) is not None:
            return False
        if self.is_free(node):
            return False
        users = self.users[node]
        if len(sinks) > 1 or any(self.needs_memory(node, u) for u in users):
            return True
        if self.weight[next(iter(sinks))] > INLINE_LIMIT:
            return True
        if self.is_bordered_window(node):
            return True
        costly = self.is_costly(node)
        if not self.is_free(node) and self.taken(node) > MORE * self.count(node):
            return True
        if (costly or self.chain[node] >= CHAIN) and any(self.repeats(node, u) for u in users):
            return True
        return costly and self.overlaps(node)

    def arithmetic(self, node: Node) -> int:
        """How many operations a point of a node costs where nothing below it is stored, memory and what must
        be stored aside."""
        if has_memory(node) or isinstance(node.type, tuple) or not has_index_map(node):
            return 0
        return sum(self.chain[o] for o in node.operands) + (not self.is_free(node))

    def is_free(self, node: Node) -> bool:
        """Recomputed rather than stored: pure movement, and arithmetic on single numbers' worth of data."""
        if node.op.name in ("reshape", "broadcast_to", "transpose", "slice", "reverse", "iota", "size"):
            return True
        if node.op.has("pointwise"):
            return node.op.name in CHEAP and all(map(is_number, node.operands))
        return False

    def is_costly(self, node: Node) -> bool:
        return node.op.name not in CHEAP and not self.is_free(node)

    def needs_memory(self, node: Node, user: Node) -> bool:
        """A contraction reads its operands many times; a gather reads from anywhere."""
        if user.op.has("contraction") or user.op.name == "reduce_window":
            return True
        if user.op.name in ATTENTION:
            return node in user.operands[:len(user.operands) - len(masks_of(user))]
        if user.op.name in ("take", "take_along", "gather_nd", "dynamic_slice"):
            return user.operands[0] is node and self.is_costly(node)
        if user in self.roots or not self.is_free(user):
            return False
        return any(self.needs_memory(user, further) for further in self.users[user])

    def repeats(self, node: Node, user: Node) -> bool:
        """Whether inlining into `user` computes `node` many times in the innermost loop: broadcast along
        outer axes, or read at two different indices."""
        if user.op.name in ("take", "take_along", "gather_nd"):
            return True
        count, space = self.count(node), self.count(user)
        if isinstance(user.type, tuple) or user.op.has("reduction"):
            return False
        return space >= 4 * count and node.ndim > 0 and node.shape[-1] != 1

    def overlaps(self, node: Node) -> bool:
        """Whether slices of a node read its points more than once: the taps of a window."""
        return node.op.name != "pad" and self.sliced(node) > MORE * self.count(node)

    def is_bordered_window(self, node: Node) -> bool:
        """Whether slices of a value padded along its last axis too overlap: taps of windows over channels."""
        return (has_border(node) and (node.attributes.low[-1], node.attributes.high[-1]) != (0, 0)
                and self.sliced(node) > MORE * self.count(node))

    def taken(self, node: Node) -> int:
        """How many points of a node are read at indices."""
        return sum(self.count(u) for u in self.users[node]
                   if u.op.name in ("take", "take_along") and u.operands[0] is node)

    def sliced(self, node: Node) -> int:
        """How many points of a node are read through slices."""
        count = 0
        for user in self.users[node]:
            if user.op.name == "slice":
                count += self.count(user)
            elif user.op.name in ("pad", "cast") and user not in self.roots:
                count += self.sliced(user)
        return count

    def count(self, node: Node) -> int:
        types = node.type if isinstance(node.type, tuple) else (node.type,)
        return prod(hinted(d, self.hint) for d in types[0].shape)


def is_number(node: Node) -> bool:
    """Whether a node's elements are known without memory."""
    return splat_of(node) is not None or node.op.name in ("iota", "size")


def has_memory(node: Node) -> bool:
    """Inputs and constants."""
    return node.op.name in ("input", "constant")
