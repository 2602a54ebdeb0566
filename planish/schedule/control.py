"""Control ops as steps: cond, while_loop and scan_loop, with their graphs as regions.

    cond        if p { then -> results } else { else -> results }
    while_loop  copy operands -> state
                while p { condition(state) -> p } do { body(state) -> next; copy next -> state }
    scan_loop   copy operands -> state
                for i in length { body(state, slices of xs) -> next, slices of ys; copy next -> state }

The state is the memory of the results. What the body hands on as it came keeps the operand's memory and is
not copied; where the old state has been read for the last time, the body writes the next over it, and
nothing is copied either.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.schedule.buffers import Buffers
from planish.schedule.kernel import Buffer
from planish.schedule.plan import writes_over
from planish.schedule.program import CheckStep, For, If, Launch, Step, While, base_of, every_step
from planish.types import BOOL, Dim, TensorType, symbol, symbols_of

if TYPE_CHECKING:
    from planish.schedule.lower import Lowering


class ControlLowering:
    """Lowers one control op, whose operands and results have buffers in `buffers`."""

    def __init__(self, lowering: Lowering, node: Node, buffers: Buffers):
        self.lowering, self.node, self.buffers = lowering, node, buffers
        self.prefix = lowering.new_prefix()
        self.types = node.type if isinstance(node.type, tuple) else (node.type,)
        self.operands = [buffers.owner(buffers.of[o].name) for o in node.operands]
        items = [n for n in buffers.of if n.op.name == "item" and n.operands[0] is node]
        self.results = {n.attributes.index: buffers.owner(buffers.of[n].name) for n in items}

    def steps(self) -> list[Step]:
        lower = {"cond": self.cond, "while_loop": self.while_loop, "scan_loop": self.scan_loop}
        return lower[self.node.op.name]()

    def new(self, name: str, type_: TensorType) -> str:
        return self.buffers.add(Buffer(f"{self.prefix}{name}", type_)).name

    def region(self, graph: Graph, inputs: Sequence[str], targets: Sequence[str | None]) -> tuple[Step, ...]:
        return self.lowering.region(graph, inputs, targets, self.buffers)

    def copy(self, source: str, target: str, type_: TensorType) -> Step:
        return self.lowering.copy(source, target, type_, self.buffers)

    # --- the three ops

    def cond(self) -> list[Step]:
        a = self.node.attributes
        predicate, *operands = self.operands
        targets = [self.results.get(i) for i in range(len(self.types))]
        then, otherwise = (self.region(g, operands, targets) for g in (a.then_graph, a.else_graph))
        return [If(predicate, then, otherwise)]

    def while_loop(self) -> list[Step]:
        a = self.node.attributes
        state = _State(self, a.body, len(self.types))
        predicate = self.new("p", TensorType(BOOL))
        condition = self.region(a.condition, state.names, [predicate])
        body = self.region(a.body, state.names, state.following)
        return [*state.before(), While(condition, predicate, state.handed_on(body))]

    def scan_loop(self) -> list[Step]:
        a = self.node.attributes
        state = _State(self, a.body, a.carries)
        counter = symbol(f"{self.prefix}i", 0, a.length - 1)
        stacks = zip(a.body.inputs[a.carries:], self.operands[a.carries:], strict=True)
        names = [self.slice(f"x{i}", node.type, name, counter) for i, (node, name) in enumerate(stacks)]
        targets: list[str | None] = []
        for i, node in enumerate(a.body.outputs[a.carries:]):
            stacked = self.results.get(a.carries + i)
            targets.append(None if stacked is None else self.slice(f"y{i}", node.type, stacked, counter))
        body = self.region(a.body, [*state.names, *names], [*state.following, *targets])
        loop = For(symbols_of(counter)[f"{self.prefix}i"], a.length, state.handed_on(body), a.reverse)
        return [*state.before(), loop]

    def slice(self, name: str, type_: TensorType, of: str, counter: Dim) -> str:
        """One piece along the first axis of a stacked buffer, contiguous in it."""
        name = self.new(name, type_)
        self.buffers.slices[name] = of, counter * (type_.size * type_.dtype.itemsize)
        return name


class _State:
    """What a loop hands from round to round: the buffers that hold it, and those a round writes."""

    def __init__(self, control: ControlLowering, body: Graph, count: int):
        self.control = control
        self.types = control.types[:count]
        self.kept = [body.outputs[i] is body.inputs[i] for i in range(count)]
        self.names = [self._name(i) for i in range(count)]
        self.following = [None if kept else control.new(f"n{i}", self.types[i])
                          for i, kept in enumerate(self.kept)]

    def _name(self, i: int) -> str:
        if self.kept[i]:
            return self.control.operands[i]
        return self.control.results.get(i) or self.control.new(f"s{i}", self.types[i])

    def before(self) -> list[Step]:
        """The first state; a result that never changes is a copy of its operand."""
        targets = [self.control.results.get(i) if kept else name
                   for i, (kept, name) in enumerate(zip(self.kept, self.names))]
        return [self.control.copy(self.control.operands[i], target, self.types[i])
                for i, target in enumerate(targets) if target is not None]

    def handed_on(self, body: Sequence[Step]) -> tuple[Step, ...]:
        """The body, and after it what brings the next state to its place."""
        steps = list(body)
        copies: list[Step] = []
        for new, old, type_ in zip(self.following, self.names, self.types):
            if new is None:
                continue
            at = _last_use(steps, new, old, self.control.buffers.bases)
            if at is None or "in_place" in self.control.lowering.disable:
                copies.append(self.control.copy(new, old, type_))
            else:
                steps = list(renamed(steps, new, old))
        return (*steps, *copies)


def _last_use(steps: Sequence[Step], new: str, old: str, bases: dict[str, str]) -> int | None:
    """The place of the launch that writes `new` and may write it over `old`, which nothing reads after it."""
    at = [i for i, step in enumerate(steps) if any(new in s.writes for s in every_step([step]))]
    if len(at) != 1 or new in bases.values():
        return None
    launch = steps[at[0]]
    after = {base_of(n, bases) for s in every_step(steps[at[0] + 1:]) for n in s.reads}
    if not isinstance(launch, Launch) or old in after or not writes_over(launch, new, old):
        return None
    sliced = any(n != old and base_of(n, bases) == old for n in launch.reads)
    return None if sliced else at[0]


def renamed(steps: Sequence[Step], new: str, old: str) -> tuple[Step, ...]:
    """The steps with the buffer `old` in the place of `new`."""
    def one(step: Step) -> Step:
        if isinstance(step, Launch):
            return replace(step, arguments=tuple(old if n == new else n for n in step.arguments))
        if isinstance(step, CheckStep):
            return replace(step, buffer=old if step.buffer == new else step.buffer)
        if isinstance(step, (If, While)) and step.predicate == new:
            step = replace(step, predicate=old)
        return step.with_regions(lambda region: renamed(region, new, old))
    return tuple(map(one, steps))
