"""One way to write what can be written in several: fewer forms need fewer patterns.

Constants stand right of a commutative op. Integer chains gather theirs, `(x + 1) + 2 -> x + (1 + 2)`: exact,
as integers wrap. Every step lowers (constants on the left, then ops on values that are not constant); none is
needed for correctness.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planish.ir import Graph, Node
from planish.ir.graph import rebuild
from planish.ops.record import Op
from planish.passes.protocol import Context
from planish.rewrite import Numerics, uniform_value

GATHERED = frozenset({"add", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"})
TIES_IN_ORDER = frozenset({"maximum", "minimum", "fmax", "fmin"})


@dataclass(frozen=True)
class Canonicalise:
    name: str = "canonicalise"
    reason: str = "before folding: gathers constants that then fold into one"

    def run(self, graph: Graph, context: Context) -> Graph:
        return context.rewrite(graph, _Canonicaliser(context.numerics).step)


def commutes(node: Node, numerics: Numerics) -> bool:
    """Whether the operands of a node may change places without a change of its value.

    Max and min of floats return their second operand at a tie, so the order shows in the sign of a zero; it
    may change in `fast`, or where one operand is a number other than 0.
    """
    if not node.op.has("commutative") or len(node.operands) != 2:
        return False
    if node.op.name not in TIES_IN_ORDER or not node.dtype.is_float or numerics == "fast":
        return True
    return any(uniform_value(o) not in (None, 0) for o in node.operands)


@dataclass
class _Canonicaliser:
    """`constants` holds the nodes seen so far under which there are only constants."""

    numerics: Numerics
    constants: set[Node] = field(default_factory=set)

    def step(self, node: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
        if node.op.name == "constant" or (node.operands and all(o in self.constants for o in node.operands)):
            self.constants.add(node)
            return None
        if not commutes(node, self.numerics):
            return None
        left, right = node.operands
        if left in self.constants:
            return rebuild(node, (right, left)), "constant_right"
        gathered = self.gathered(node.op, left, right, uses)
        return None if gathered is None else (gathered, "gather_constants")

    def gathered(self, op: Op, left: Node, right: Node, uses: Mapping[Node, int]) -> Node | None:
        """(x + c) + d -> x + (c + d); (x + c) + y and y + (x + c) -> (x + y) + c where x + c has no other
        user. For integers and bool.
        """
        if op.name not in GATHERED or left.dtype.is_float:
            return None
        if right in self.constants:
            if not self.ends_in_constant(op, left):
                return None
            x, c = left.operands
            return op(x, op(c, right))
        for chain, other in ((left, right), (right, left)):
            if self.ends_in_constant(op, chain) and uses.get(chain, 1) == 1:
                return op(op(chain.operands[0], other), chain.operands[1])
        return None

    def ends_in_constant(self, op: Op, node: Node) -> bool:
        return node.op is op and node.operands[1] in self.constants and node.operands[0] not in self.constants
