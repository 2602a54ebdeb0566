"""A pass that is a list of rules."""
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planish.ir import Graph
from planish.passes.protocol import Context
from planish.rewrite import Numerics, Rule, Rules


@dataclass(frozen=True)
class Rewriting:
    """Applies the rules that the compile's numerics admits, everywhere, to a fixed point."""

    name: str
    reason: str
    rules: tuple[Rule, ...]

    def run(self, graph: Graph, context: Context) -> Graph:
        return context.rewrite(graph, rules_in_use(self.rules, context.numerics, context.disable).step)


@lru_cache(maxsize=32)
def rules_in_use(rules: tuple[Rule, ...], numerics: Numerics, disable: frozenset[str]) -> Rules:
    """The index of the rules, made once per choice of them."""
    return Rules(rules, numerics, disable)
