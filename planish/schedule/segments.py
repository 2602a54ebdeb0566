"""A graph cut at its host ops.

In: an optimised graph. Out: a `Plan`: segments, each an ordinary graph for native code, and host ops, in the
order in which they run. A graph without host ops is one segment.

Every node runs as late as its users allow, so that it is fused with them. Inputs, constants, results of host
ops and reshapes of those are at hand without native code. What follows from constants and sizes alone, and a
reshape, broadcast or cast to a wider type, is made again where it is used instead of being handed over. A
size that no input of a segment shows is carried by an input of shape (size, 0), which holds nothing.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from planish.ir.fresh import symbols_made, symbols_used
from planish.ir.graph import Graph, rebuild
from planish.ir.node import Node, input_node
from planish.ir.text import node_names, print_graph
from planish.ops.host import stated_type
from planish.types import Symbol, symbol, symbols_of


def is_remade(node: Node) -> bool:
    """Whether a node is made again in every segment that uses it: it costs nothing, and its operand is no
    more to hand over."""
    wider = node.op.name == "cast" and node.dtype.itemsize >= node.operands[0].dtype.itemsize
    return wider or node.op.name in ("reshape", "broadcast_to")


@dataclass(frozen=True)
class Segment:
    """A graph for native code: its inputs are the values of `takes`, then the sizes of `carries`; its outputs
    those of `gives`."""

    graph: Graph
    takes: tuple[Node, ...]
    carries: tuple[str, ...]
    gives: tuple[Node, ...]


@dataclass(frozen=True)
class HostCall:
    """A host op; `is_sized` where sizes stand in its parameters."""

    node: Node
    is_sized: bool


@dataclass(frozen=True)
class Plan:
    """`steps` run in order; `done[i]` are the values that nothing needs after step i."""

    graph: Graph
    steps: tuple[Segment | HostCall, ...]
    done: tuple[tuple[Node, ...], ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(s for s in self.steps if isinstance(s, Segment))

    @property
    def hosts(self) -> tuple[Node, ...]:
        return tuple(s.node for s in self.steps if isinstance(s, HostCall))


def cut(graph: Graph) -> Plan:
    """The plan of a graph whose nodes stand in an order in which they can run (see ir/fresh.py)."""
    return _Cut(graph).plan()


def is_host(node: Node) -> bool:
    return node.op.has("host")


@dataclass
class _Cut:
    """`stage` is the first segment a node can run in; of what is at hand, the last before it is. `place` is
    the segment it does run in. Inputs and constants are at hand from stage -1 on."""

    graph: Graph
    nodes: list[Node] = field(init=False)
    at_hand: set[Node] = field(default_factory=set)
    light: set[Node] = field(default_factory=set)
    stage: dict[Node, int] = field(default_factory=dict)
    place: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = self.graph.nodes()
        said: dict[str, int] = {}
        for node in self.nodes:
            self.classify(node)
            self.stage[node] = self.first_stage(node, said)
            said |= dict.fromkeys(symbols_made(node), self.stage[node])
        self.last = max([0, *(s for n, s in self.stage.items() if n not in self.at_hand)])
        self.sink()

    def classify(self, node: Node) -> None:
        of = node.operands
        if node.op.name in ("input", "constant") or is_host(node) or (
                node.op.name in ("reshape", "item") and of[0] in self.at_hand):
            self.at_hand.add(node)
        follows = node.op.name in ("constant", "iota", "size") or node.op.has("pointwise") \
            or node.op.has("movement")
        if follows and all(o in self.light for o in of):
            self.light.add(node)

    def first_stage(self, node: Node, said: dict[str, int]) -> int:
        own = node in self.at_hand
        stages = [-1 if own else 0]
        stages += [self.stage[o] + (o in self.at_hand and not own) for o in node.operands]
        stages += [said[name] + (not own) for name in symbols_used(node) if name in said]
        return max(stages)

    def sink(self) -> None:
        """Every native node goes to the segment of its first user; checks stay where they can run first."""
        limit = dict.fromkeys(self.nodes, self.last)
        for effect in self.graph.effects:
            limit[effect] = self.stage[effect]
        for node in reversed(self.nodes):
            at = self.stage[node] if is_host(node) else limit[node]
            for operand in node.operands:
                limit[operand] = min(limit[operand], at)
        for node in self.nodes:
            whole = node.operands[0] if node.op.name == "item" else node
            self.place[node] = limit[whole]

    # --- segments

    def plan(self) -> Plan:
        hosts = [n for n in self.nodes if is_host(n)]
        wanted = {source(n) for n in (*self.graph.outputs, *(o for h in hosts for o in h.operands))}
        segments: dict[int, Segment] = {}
        for s in range(self.last, -1, -1):
            gives = [n for n in self.nodes if n in wanted and n not in self.at_hand and self.place[n] == s]
            checks = tuple(e for e in self.graph.effects if not is_host(e) and self.place[e] == s)
            if gives or checks:
                segments[s] = self.segment(s, tuple(gives), checks)
                wanted |= set(map(source, segments[s].takes))
        steps: list[Segment | HostCall] = []
        for s in range(-1, self.last + 1):
            steps += [segments[s]] if s in segments else []
            steps += [HostCall(h, bool(symbols_used(h))) for h in hosts if self.stage[h] == s]
        return Plan(self.graph, tuple(steps), last_uses(self.graph, steps))

    def segment(self, s: int, gives: tuple[Node, ...], checks: tuple[Node, ...]) -> Segment:
        inside = self.inside(s, gives + checks)
        read = {o for n in inside for o in n.operands}
        takes = tuple(n for n in self.nodes if n in read and n not in inside)
        names = _names(self.graph, takes)
        new = {n: input_node(name, n.tensor) for n, name in names.items()}
        carried = _carried(takes, inside)
        carriers = [input_node(_unlike(f"size_{c.name}", names.values()),
                               stated_type(symbol(c.name, c.low, c.high))) for c in carried]
        for node in self.nodes:
            if node in inside:
                new[node] = rebuild(node, tuple(new[o] for o in node.operands))
        notes = {new[n]: self.graph.notes[n] for n in new if n in self.graph.notes}
        graph = replace(self.graph, inputs=(*(new[n] for n in takes), *carriers),
                        outputs=tuple(new[n] for n in gives), effects=tuple(new[n] for n in checks),
                        output_names=(), notes=MappingProxyType(notes))
        return Segment(graph, takes, tuple(c.name for c in carried), gives)

    def inside(self, s: int, roots: tuple[Node, ...]) -> dict[Node, None]:
        """What segment s computes: what its roots need, up to what it takes."""
        found: dict[Node, None] = {}
        stack = list(roots)
        while stack:
            node = stack.pop()
            own = node not in self.at_hand and self.place[node] == s
            if node not in found and (own or node in self.light or is_remade(node)):
                found[node] = None
                stack += node.operands
        return found


def source(node: Node) -> Node:
    """The value that the driver keeps, of which a node is a view: without reshapes, and a host op for its
    result."""
    while node.op.name == "reshape" or (node.op.name == "item" and is_host(node.operands[0])):
        node = node.operands[0]
    return node


def last_uses(graph: Graph, steps: list[Segment | HostCall]) -> tuple[tuple[Node, ...], ...]:
    last: dict[Node, int] = {}
    for i, step in enumerate(steps):
        reads = step.takes if isinstance(step, Segment) else step.node.operands
        last |= dict.fromkeys(map(source, reads), i)
    kept = {source(n) for n in graph.outputs}
    return tuple(tuple(n for n, at in last.items() if at == i and n not in kept and n.op.name != "constant")
                 for i in range(len(steps)))


def _names(graph: Graph, takes: tuple[Node, ...]) -> dict[Node, str]:
    """Names for what a segment takes: the graph's inputs keep theirs, other values go by their number."""
    names: dict[Node, str] = {n: n.attributes.name for n in takes if n.op.name == "input"}
    numbers = node_names(graph)
    for node in takes:
        names.setdefault(node, _unlike(f"v{numbers[node].removeprefix('%')}", names.values()))
    return {n: names[n] for n in takes}


def _unlike(name: str, taken: Iterable[str]) -> str:
    known = set(taken)
    while name in known:
        name += "_"
    return name


def _carried(takes: tuple[Node, ...], inside: Iterable[Node]) -> list[Symbol]:
    """The sizes that are used and that no value taken shows, with those in their ranges."""
    shapes = [d for n in takes for d in n.shape]
    used: dict[str, Symbol] = {}
    for symbols in (*map(symbols_of, shapes), *map(symbols_used, inside)):
        for one in symbols.values():
            _add(one, used)
    shown = set(map(str, shapes))
    return [one for name, one in sorted(used.items()) if name not in shown]


def _add(one: Symbol, used: dict[str, Symbol]) -> None:
    if one.name not in used:
        used[one.name] = one
        for other in symbols_of(one.high or 0).values():
            _add(other, used)


def print_plan(plan: Plan) -> str:
    """Every step as text: the graph of a segment, or a line for a host op."""
    names = node_names(plan.graph)
    texts, count = [], 0
    for step in plan.steps:
        if isinstance(step, HostCall):
            texts.append(host_line(step.node, names))
            continue
        gives = ", ".join(names[n] for n in step.gives)
        texts.append(f"segment {count} -> {gives or 'nothing'}\n{print_graph(step.graph, notes=False)}")
        count += 1
    return "\n\n".join(texts)


def host_line(node: Node, names: Mapping[Node, str]) -> str:
    operands = ", ".join(names[o] for o in node.operands)
    types = ", ".join(map(str, node.attributes.results))
    return f"host {names[node]} = {node.attributes.function}({operands}) : {types}"
