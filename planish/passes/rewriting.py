"""A pass that is a list of rules."""
from __future__ import annotations

from dataclasses import dataclass

from planish.ir import Graph
from planish.passes.protocol import Context
from planish.rewrite import Rule, Rules


@dataclass(frozen=True)
class Rewriting:
    """Applies the rules that the compile's numerics admits, everywhere, to a fixed point."""

    name: str
    reason: str
    rules: tuple[Rule, ...]

    def run(self, graph: Graph, context: Context) -> Graph:
        return context.rewrite(graph, Rules(self.rules, context.numerics, context.disable).step)
