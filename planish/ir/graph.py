"""A graph: inputs, outputs, effects, and notes about its nodes."""
from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from planish.ir.node import Node, input_node, make_node
from planish.types import Symbol, TensorType, symbols_of


@dataclass(frozen=True)
class Location:
    """A line of the user's program, or a node of the user's model."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}"
        return f"{self.file}: {self.function}" if self.function else self.file


@dataclass(frozen=True)
class Note:
    """What is known about a node beside its meaning: where it was written, and the rules that made it."""

    location: Location | None = None
    rules: tuple[str, ...] = ()
    name: str = ""


NO_NOTE = Note()


@dataclass(frozen=True)
class Graph:
    """A computation. `effects` are nodes kept in this order although no output needs them (checks)."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    effects: tuple[Node, ...] = ()
    name: str = field(default="graph", compare=False)
    output_names: tuple[str, ...] = field(default=(), compare=False)
    notes: Mapping[Node, Note] = field(default_factory=lambda: MappingProxyType({}), compare=False,
                                       repr=False)

    @property
    def roots(self) -> tuple[Node, ...]:
        return self.effects + self.outputs

    @property
    def signature(self) -> str:
        """Its name, and what goes in and comes out: `f(x: f32[3]) -> (f32[3])`."""
        inputs = ", ".join(f"{n.attributes.name}: {n.type}" for n in self.inputs)
        return f"{self.name}({inputs}) -> ({', '.join(str(n.type) for n in self.outputs)})"

    def nodes(self) -> list[Node]:
        """Every node the roots need and every input, operands before users, in a fixed order."""
        return list(self._order)

    @cached_property
    def _order(self) -> tuple[Node, ...]:
        return tuple(topological(self.inputs + self.roots))

    def users(self) -> dict[Node, list[Node]]:
        """node -> the nodes that take it as an operand, once per operand position."""
        found: dict[Node, list[Node]] = {n: [] for n in self._order}
        for node in found:
            for operand in node.operands:
                found[operand].append(node)
        return found

    def symbols(self) -> dict[str, Symbol]:
        """The symbolic sizes of the inputs, in order of appearance."""
        found: dict[str, Symbol] = {}
        for node in self.inputs:
            for dim in node.shape:
                for name, one in symbols_of(dim).items():
                    found.setdefault(name, one)
        return found

    def run(self, *arrays: Any) -> tuple[Any, ...]:
        """The outputs on arrays, by the reference interpreter: how control flow runs the graphs it holds."""
        from planish.ir.interpret import interpret
        return interpret(self, arrays)

    def note(self, node: Node) -> Note:
        return self.notes.get(node, NO_NOTE)

    def with_notes(self, more: Mapping[Node, Note]) -> Graph:
        return replace(self, notes=MappingProxyType({**self.notes, **more}))

    def __str__(self) -> str:
        from planish.ir.text import print_graph
        return print_graph(self)

    def evaluate(self, *arrays: Any) -> tuple[Any, ...]:
        """The outputs on arrays, by the reference interpreter (control ops run their inner graphs with
        it)."""
        from planish.ir.interpret import interpret
        return interpret(self, arrays)

    def map(self, change: Callable[[Node, tuple[Node, ...]], Node], rule: str = "") -> Graph:
        """Rebuild bottom-up: `change(node, new operands)` gives the node that stands for `node`. Notes
        follow."""
        new: dict[Node, Node] = {}
        notes = dict(self.notes)
        for node in self.nodes():
            made = change(node, tuple(new[o] for o in node.operands))
            new[node] = made
            if made is not node:
                carry_note(notes, node, made, rule)
        inputs, outputs, effects = (tuple(new[n] for n in nodes)
                                    for nodes in (self.inputs, self.outputs, self.effects))
        return replace(self, inputs=inputs, outputs=outputs, effects=effects, notes=MappingProxyType(notes))


def carry_note(notes: dict[Node, Note], old: Node, new: Node, rule: str = "") -> None:
    """The note of `old` holds for the node that took its place; the rule that made it is added."""
    before, now = notes.get(old, NO_NOTE), notes.get(new, NO_NOTE)
    rules = tuple(dict.fromkeys((*now.rules, *before.rules, *((rule,) if rule else ()))))
    notes[new] = Note(now.location or before.location, rules, now.name or before.name)


def rebuild(node: Node, operands: tuple[Node, ...]) -> Node:
    """The same op on other operands; itself when they are the same. Operands of the same types give the same
    type."""
    if operands == node.operands:
        return node
    alike = all(new.type == old.type for new, old in zip(operands, node.operands, strict=True))
    return make_node(node.op, operands, node.attributes, node.type if alike else None)


def topological(roots: Iterable[Node], until: Container[Node] = ()) -> list[Node]:
    """Operands before users, iteratively (deep graphs do not overflow the stack). What only nodes of `until`
    read is left out."""
    order: dict[Node, None] = {}
    stack = list(roots)[::-1]
    while stack:
        node = stack[-1]
        waiting = [] if node in order or node in until else [o for o in node.operands if o not in order]
        if waiting:
            stack += waiting[::-1]
        else:
            order[stack.pop()] = None
    return list(order)


def build_graph(function: Callable[..., Any], *types: TensorType, names: Iterable[str] = (),
                name: str = "graph") -> Graph:
    """The graph of a function over nodes: `build_graph(lambda x: x * 2, TensorType(FLOAT32, (4,)))`."""
    labels = list(names) or [f"x{i}" for i in range(len(types))]
    inputs = tuple(input_node(n, t) for n, t in zip(labels, types, strict=True))
    result = function(*inputs)
    return Graph(inputs, result if isinstance(result, tuple) else (result,), name=name)
