"""What a pass is, what it is told, and what is recorded of it."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from planish.ir import Graph, Node
from planish.rewrite import Numerics
from planish.rewrite.driver import Observer, Step, apply_steps


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: its seconds, graph nodes (or kernels) before and after, and how often each rule
    fired."""

    name: str
    seconds: float
    before: int
    after: int
    fired: dict[str, int] = field(default_factory=dict)
    reason: str = ""


@dataclass
class Context:
    """What a pass is told, and where it counts what it does.

    disable       names of passes and rules that are switched off
    captured      the nodes the graph had before the first pass; empty for a graph inside a control op
    observe       sees every firing: (rule, node before, node after)
    strict_fuel   rewriting that does not end raises FuelExhausted; else it is logged
    """

    numerics: Numerics = "default"
    disable: frozenset[str] = frozenset()
    captured: frozenset[Node] = frozenset()
    observe: Observer | None = None
    strict_fuel: bool = False
    fired: Counter[str] = field(default_factory=Counter)

    def rewrite(self, graph: Graph, step: Step) -> Graph:
        """Apply a step everywhere, to a fixed point, and count what fired."""
        new, fired = apply_steps(graph, step, strict_fuel=self.strict_fuel, observe=self.observe)
        self.fired.update(fired)
        return new


class Pass(Protocol):
    """A small frozen object. `reason` is one line: what it is for and why it stands where it does."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def run(self, graph: Graph, context: Context) -> Graph: ...


def local_step(change: Callable[[Node], tuple[Node, str] | None],
               disable: frozenset[str] = frozenset()) -> Step:
    """A step of the driver from a function that looks at one node alone; names in `disable` do not fire."""
    def step(node: Node, uses: Mapping[Node, int]) -> tuple[Node, str] | None:
        found = change(node)
        return None if found is None or found[1] in disable else found
    return step
