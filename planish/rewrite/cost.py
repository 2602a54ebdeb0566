"""The cost that every rule must lower: an estimate of work, not of time.

    cost of a graph = sum over its nodes but inputs and constants of
                      1 + operands / 10 + elements * weight(op) + bytes written / 16

`elements` counts those of the result; of the operand for reductions; multiply-adds for contractions. A view
writes nothing, and reshape, broadcast_to and bitcast also spare the 1: they only say how to read what is
there.
"""
from __future__ import annotations

from math import prod

from planish.ir import Graph, Node
from planish.ops.record import Op

VIEW, BROADCAST, MOVE, SIGN, SIMPLE, ROOT, DIVIDE, FUNCTION = 0.01, 0.25, 0.5, 0.5, 1.0, 3.0, 4.0, 16.0
READINGS = frozenset({"reshape", "broadcast_to", "bitcast"})
_WEIGHTS = {
    "reshape": VIEW, "bitcast": VIEW, "broadcast_to": BROADCAST,
    "neg": SIGN, "abs": SIGN, "logical_not": SIGN, "bitwise_not": SIGN, "copysign": SIGN,
    "div": DIVIDE, "floor_div": DIVIDE, "trunc_div": DIVIDE, "mod": DIVIDE, "rem": DIVIDE,
    "reciprocal": DIVIDE,
    "sqrt": ROOT, "rsqrt": ROOT, "pow": FUNCTION,
}


def weight(op: Op) -> float:
    """Work per element, in units of an addition."""
    if op.name in _WEIGHTS:
        return _WEIGHTS[op.name]
    if op.has("movement") or op.has("indexing"):
        return MOVE
    return FUNCTION if op.tolerance == "transcendental" else SIMPLE


def node_cost(node: Node) -> float:
    """The cost of one node of static size."""
    if node.op.name in ("input", "constant"):
        return 0.0
    types = node.type if isinstance(node.type, tuple) else (node.type,)
    written = sum(_count(t.shape) * t.dtype.itemsize for t in types)
    moved = 0.0 if node.op.has("view") else written / 16
    start = 0.0 if node.op.name in READINGS else 1.0
    return start + len(node.operands) / 10 + _elements(node) * weight(node.op) + moved


def graph_cost(graph: Graph) -> float:
    return sum(map(node_cost, graph.nodes()))


def _elements(node: Node) -> int:
    if node.op.name == "dot_general":
        depth = _count(tuple(node.operands[0].shape[a] for a in node.attributes.lhs_contract))
        return _count(node.shape) * depth
    if node.op.name in ("attention", "attention_logsumexp"):
        q, k = node.operands[:2]
        values = node.shape[-1] if node.op.name == "attention" else 0
        return _count((*q.shape[:-1], k.shape[-2])) * _count((q.shape[-1] + values,))
    if node.op.has("reduction"):
        return _count(node.operands[0].shape)
    return _count(node.type[0].shape if isinstance(node.type, tuple) else node.shape)


def _count(shape: tuple) -> int:
    """An empty tensor counts as one element, so that it is the form of a graph that is compared."""
    return max(1, int(prod(shape)))
