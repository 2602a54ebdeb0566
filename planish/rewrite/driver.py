"""The driver: applies steps to every node, bottom-up, until nothing changes.

In: a graph and a step (node -> the node in its place and the name of the rule, or None). Out: the graph in
normal form. Each node is brought to normal form once and remembered; what a rule made is visited in turn.
Operands are in normal form before a rule sees their user, so one sweep ends at a fixed point of all rules
that look at a node and what is under it. Termination rests on each rule lowering a cost; fuel catches a rule
set where two undo each other or one grows for ever.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from planish.errors import FuelExhausted
from planish.ir import Graph, Node, Note
from planish.ir.graph import carry_note, rebuild
from planish.logs import channel

Step: TypeAlias = "Callable[[Node, Mapping[Node, int]], tuple[Node, str] | None]"
Observer = Callable[[str, Node, Node], None]
FUEL_PER_NODE = 16  # firings per node of the graph; a rule set that ends uses well under 2
FUEL_AT_LEAST = 256
RECENT = 8          # firings looked back at to name the rules that alternate


def apply_steps(graph: Graph, step: Step, *, fuel: int | None = None, strict_fuel: bool = False,
                observe: Observer | None = None) -> tuple[Graph, Counter[str]]:
    """The rewritten graph, and how often each rule fired. New nodes carry the rule that made them in their
    note.

    `fuel` is the most firings. When it runs out, FuelExhausted names the rules at work if `strict_fuel`; else
    that is logged and what is reached so far is kept (each firing by itself is sound). `observe(rule, before,
    after)` sees every one.
    """
    uses = {n: len(users) for n, users in graph.users().items()}
    if fuel is None:
        fuel = FUEL_AT_LEAST + FUEL_PER_NODE * len(uses)
    driver = _Driver(graph, step, fuel, strict_fuel, observe, uses)
    for root in graph.inputs + graph.roots:
        driver.normalise(root)
    if not driver.fired:
        return graph, driver.fired
    done = driver.normal
    new = replace(graph, outputs=tuple(done[n] for n in graph.outputs),
                  effects=tuple(done[n] for n in graph.effects),
                  notes=MappingProxyType(driver.notes))
    return new, driver.fired


@dataclass
class _Driver:
    graph: Graph
    step: Step
    fuel: int
    strict_fuel: bool
    observe: Observer | None
    uses: dict[Node, int]
    normal: dict[Node, Node] = field(default_factory=dict)    # node -> its normal form
    becomes: dict[Node, Node] = field(default_factory=dict)   # node -> what one step made of it
    fired: Counter[str] = field(default_factory=Counter)
    recent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notes: dict[Node, Note] = dict(self.graph.notes)
        for output in self.graph.roots:
            self.uses[output] += 1

    def normalise(self, root: Node) -> None:
        normal, becomes, stack = self.normal, self.becomes, [root]
        while stack:
            node = stack[-1]
            if node in normal:
                stack.pop()
                continue
            if node in becomes:
                self.finish(node, stack)
                continue
            waiting = [o for o in node.operands if o not in normal]
            if waiting:
                self.stop_at_cycle(waiting)
                stack.extend(reversed(waiting))
            else:
                self.advance(node)

    def advance(self, node: Node) -> None:
        """One step on a node whose operands are in normal form."""
        made = rebuild(node, tuple([self.normal[o] for o in node.operands]))
        if made is not node:
            self.becomes[node] = made
            carry_note(self.notes, node, made)
            self.uses[made] = max(self.uses.get(made, 0), self.uses.get(node, 1))
            return
        found = self.step(node, self.uses) if self.fuel > 0 else None
        if found is None or found[0] is node:
            self.normal[node] = node
            return
        made, rule = found
        self.count(rule, node, made)
        self.becomes[node] = made

    def finish(self, node: Node, stack: list[Node]) -> None:
        """`node` gets the normal form of what it became, once that is known."""
        target = self.becomes[node]
        if target in self.normal:
            self.normal[node] = self.normal[target]
        else:
            self.stop_at_cycle([target])
            stack.append(target)

    def stop_at_cycle(self, needed: Sequence[Node]) -> None:
        """What is needed now but became something else is still being normalised: by way of the node that
        needs it."""
        for node in needed:
            if node in self.becomes:
                self.exhausted()
                self.normal[node] = node

    def count(self, rule: str, before: Node, after: Node) -> None:
        self.fired[rule] += 1
        self.recent = [*self.recent, rule][-RECENT:]
        self.note_made(rule, before, after)
        if self.observe is not None:
            self.observe(rule, before, after)
        self.fuel -= 1
        if self.fuel == 0:
            self.exhausted()

    def note_made(self, rule: str, before: Node, after: Node) -> None:
        """Every node that is new remembers the rule and the user's line of the node it came from."""
        fresh = [after]
        while fresh:
            node = fresh.pop()
            if node in self.normal or node in self.becomes or node.op.name in ("input", "constant"):
                continue
            fresh.extend(node.operands)
            carry_note(self.notes, before, node, rule)
        self.uses[after] = max(self.uses.get(after, 0), self.uses.get(before, 1))

    def exhausted(self) -> None:
        names = ", ".join(dict.fromkeys(self.recent))
        text = f"{self.graph.name}: rewriting did not end; the rules at work last: {names}"
        if self.strict_fuel:
            raise FuelExhausted(text)
        channel("rewrite").warning(text)
