"""Subgraphs of constants alone are evaluated now, by the reference interpreter's own meanings.

    1.0 / sqrt(64.0) -> 0.125

What is not worth its bytes stays: a result of more than FREE_BYTES that is larger than all it was made from
(an iota, a broadcast and what is computed from them). An operand of a contraction is worth more, up to
WEIGHT_GROWTH times what it was made from: weights that are constant, quantised ones too, are packed while
compiling. Random ops are never folded: the key may be fixed, the stream is the program's.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from planish.ir import Graph, Node, constant
from planish.ir.node import constant_of, make_node
from planish.ops.content import Content, ask, derivation, unmoved
from planish.ops.record import get_op
from planish.ops.rules import ops
from planish.passes.protocol import Context
from planish.types import Expr, element_count, evaluate_dim

FREE_BYTES = 64 << 10       # a folded constant of this size costs nothing worth counting
WEIGHT_GROWTH = 8           # from integers of a byte to float64
COMPUTE_BYTES = 256 << 20   # no intermediate value of folding is larger
UNWORTHY = frozenset({"iota", "broadcast_to"})
UNFOLDED = frozenset({"structure", "random", "effect", "host", "control", "composite"})


@dataclass(frozen=True)
class FoldConstants:
    name: str = "fold_constants"
    reason: str = "before the algebra: its rules look for numbers, not for ways to compute them"

    def run(self, graph: Graph, context: Context) -> Graph:
        return context.rewrite(graph, _Folder().step)


def computed(node: Node) -> Node:
    """A node that hangs on constants alone, as a constant."""
    return _Folder().folded(node)


MOST_NODES = 64  # under a node that is looked at for what it holds


def content_of(node: Node) -> Content | None:
    """What a node holds that hangs on constants alone, on few of them; None for any other."""
    folder, waiting = _Folder(), [node]
    for _ in range(MOST_NODES):
        one = waiting[-1]
        missing = [o for o in one.operands if o not in folder.source_bytes]
        if missing:
            waiting.append(missing[0])
        elif one.op.name != "constant" and not folder.hangs_on_constants(one):
            return None
        else:
            folder.hangs_on_constants(waiting.pop())
        if not waiting:
            return folder.content(node)
    return None


@dataclass
class _Folder:
    """The bytes of the constants that nodes hang on which hang on constants alone, and what they hold."""

    source_bytes: dict[Node, int] = field(default_factory=dict)
    contents: dict[Node, Content] = field(default_factory=dict)

    def step(self, node: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
        if self.hangs_on_constants(node) and self.is_worth(node, max(FREE_BYTES, self.source_bytes[node])):
            return self.folded(node), node.op.name
        return self.with_weights(node) if node.op.has("contraction") else None

    def is_worth(self, node: Node, most: int) -> bool:
        return node.op.name not in UNWORTHY and _bytes(node) <= most

    def with_weights(self, node: Node) -> tuple[Node, str] | None:
        """The contraction with operands that hang on constants computed."""
        operands = tuple(self.folded(o) if self.is_weight(o) else o for o in node.operands)
        if operands == node.operands:
            return None
        return make_node(node.op, operands, node.attributes), "weights"

    def is_weight(self, node: Node) -> bool:
        if node not in self.source_bytes or node.op.name == "constant":
            return False
        return self.is_worth(node, WEIGHT_GROWTH * self.source_bytes[node])

    def folded(self, node: Node) -> Node:
        """A node as a constant; where all elements are one number, a scalar that is broadcast (large results
        are not computed to see that). What follows from single numbers is computed now, as they may be looked
        at by every rule."""
        content = self.content(node).settled()
        shown = unmoved(content)
        asks = content.type.size != 1 and (shown.derivation is None or content.nbytes <= FREE_BYTES)
        number = ask("uniform", shown) if asks else None
        if number is not None and number == number:  # NaNs differ in their bits
            return ops.broadcast_to(constant(number, node.dtype), shape=node.shape)
        return constant_of(content)

    def content(self, node: Node) -> Content:
        """What a node holds that hangs on constants."""
        waiting = [node]
        while waiting:
            one = waiting[-1]
            missing = [o for o in one.operands if o not in self.contents]
            if missing:
                waiting += missing
            else:
                self.contents[waiting.pop()] = self.derived(one)
        return self.contents[node]

    def derived(self, node: Node) -> Content:
        if node.op.name == "constant":
            return node.attributes
        sources = [self.contents[o] for o in node.operands]
        return Content.derived("op", (node.op.name, *_values(node.attributes)), sources, node.tensor)

    def hangs_on_constants(self, node: Node) -> bool:
        """Notes the bytes of the constants under `node` where only constants and iotas are under it."""
        if node.op.name == "constant":
            self.source_bytes[node] = node.attributes.nbytes
            return False
        static = not isinstance(node.type, tuple) and node.type.is_static
        if not static or not _is_known(node) or UNFOLDED & node.op.traits or _bytes(node) > COMPUTE_BYTES:
            return False
        if not all(o in self.source_bytes for o in node.operands):
            return False
        self.source_bytes[node] = sum(self.source_bytes[o] for o in node.operands)
        return True


def _is_known(node: Node) -> bool:
    """Whether no attribute is a size known only at run time."""
    values = _values(node.attributes)
    return not any(isinstance(d, Expr) for v in values for d in (v if isinstance(v, tuple) else (v,)))


@derivation("op")
def evaluate_op(parameters: tuple[Any, ...], *arrays: np.ndarray) -> np.ndarray:
    """(name of an op, *its attributes): the op's own meaning."""
    op = get_op(parameters[0])
    result = op.evaluate(op.attributes(*parameters[1:]), *arrays)
    return np.ascontiguousarray(result).reshape(result.shape)


def _values(attributes: Any) -> tuple[Any, ...]:
    return tuple(getattr(attributes, f.name) for f in fields(attributes))


def _bytes(node: Node) -> int:
    return evaluate_dim(element_count(node.shape), {}) * node.dtype.itemsize
