"""Closed graphs for control ops, from nodes that were written over placeholders and over what stands outside.

A body is translated in the scope of its node, so what it gives hangs on placeholders (its own inputs) and on
nodes outside. Here the two are cut apart: what a body reads from outside becomes an operand of the control op
and an input of its graph. Constants, sizes and what is computed from these alone stay inside, where weights
are packed and folded; of a loop, all else that does not change from round to round moves out.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType

from planish.capture.onnx.sizes import MOST_COMPUTED, make_source
from planish.ir import Graph, Node, Note, input_node
from planish.ir.graph import rebuild, topological
from planish.ops.rules import ops
from planish.types import INT64, Dim, TensorType, is_static

NoteOf = Callable[[Node], Note]   # where a node of a body comes from
_numbers = count()


def placeholder(name: str, type_: TensorType) -> Node:
    """An input of a body that is being translated: no other node is equal to it."""
    return input_node(f"{name}@{next(_numbers)}", type_)


def is_placeholder(name: str) -> bool:
    return "@" in name


@dataclass(frozen=True)
class Carry:
    """A value that a loop hands from round to round."""

    inside: Node
    first: Node
    following: Node


@dataclass(frozen=True)
class Stacked:
    """One piece per round, along axis 0 of `whole`."""

    inside: Node
    whole: Node


# --- the three ops

def choose(condition: Node, then: Sequence[Node], otherwise: Sequence[Node], outside: Iterable[Node],
           note_of: NoteOf) -> tuple[Node, ...]:
    """The cond of two branches, whose results agree in type. `outside` holds the nodes that are computed
    before it. Nothing to choose needs no op."""
    roots = (*then, *otherwise)
    free = _frontier(roots, set(topological(outside)) - _plain(topological(roots)))
    graphs = [_closed(branch, (), free, note_of) for branch in (then, otherwise)]
    if not roots:
        return ()
    return _results(ops.cond(condition, *free, then_graph=graphs[0], else_graph=graphs[1]))


def scan(carries: Sequence[Carry], stacked: Sequence[Stacked], pieces: Sequence[Node], length: Dim,
         note_of: NoteOf, *, reverse: bool = False) -> tuple[list[Node], list[Node]]:
    """The last state and, of each of `pieces`, those of all rounds along a new axis 0, in the places of
    their rounds. A single round is written out."""
    if length == 1:
        return _one_round(carries, stacked, pieces)
    roots = [c.following for c in carries] + list(pieces)
    read = set(topological(roots))
    stacked = [s for s in stacked if s.inside in read]
    inputs = [c.inside for c in carries] + [s.inside for s in stacked]
    free = _frontier(roots, _fixed(roots, inputs))
    graph = _closed(roots, inputs, free, note_of)
    n, handed = len(carries), graph.inputs[len(inputs):]
    graph = replace(graph, inputs=(*graph.inputs[:n], *handed, *graph.inputs[n:len(inputs)]),
                    outputs=(*graph.outputs[:n], *handed, *graph.outputs[n:]))
    results = _results(ops.scan_loop(*(c.first for c in carries), *free, *(s.whole for s in stacked),
                                     body=graph, length=length, carries=n + len(free), reverse=reverse))
    return list(results[:n]), list(results[n + len(free):])


def repeat(carries: Sequence[Carry], condition: Node, note_of: NoteOf) -> list[Node]:
    """The last state of a loop that goes on while `condition`, over the placeholders, holds."""
    inputs = [c.inside for c in carries]
    roots = [c.following for c in carries]
    free = _frontier([condition, *roots], _fixed([condition, *roots], inputs))
    test, body = (_closed(outputs, inputs, free, note_of) for outputs in ([condition], roots))
    body = replace(body, outputs=(*body.outputs, *body.inputs[len(inputs):]))
    state = (*(c.first for c in carries), *free)
    return list(_results(ops.while_loop(*state, condition=test, body=body))[:len(carries)])


def round_numbers(length: Dim) -> Node:
    return make_source("iota", shape=(length,), axis=0, dtype=INT64)


def _results(made: Node | tuple[Node, ...]) -> tuple[Node, ...]:
    return made if isinstance(made, tuple) else (made,)


def _one_round(carries: Sequence[Carry], stacked: Sequence[Stacked],
               pieces: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    values = {c.inside: c.first for c in carries}
    values |= {s.inside: ops.reshape(s.whole, shape=s.inside.shape) for s in stacked}
    roots = [*(c.following for c in carries), *pieces]
    new = _rewritten(roots, values)
    ends = [new[n] for n in roots]
    return ends[:len(carries)], [ops.reshape(y, shape=(1, *y.shape)) for y in ends[len(carries):]]


# --- cutting

def _plain(nodes: Iterable[Node]) -> set[Node]:
    """Those of `nodes`, operands before users, that are sources or small and computed from these alone."""
    found: set[Node] = set()
    for node in nodes:
        if _is_source(node) or (node.operands and found.issuperset(node.operands) and _is_small(node)):
            found.add(node)
    return found


def _is_source(node: Node) -> bool:
    return node.op.name in ("constant", "size", "iota")


def _is_small(node: Node) -> bool:
    types = node.type if isinstance(node.type, tuple) else (node.type,)
    return all(is_static(t.size) and t.size <= MOST_COMPUTED for t in types)


def _fixed(roots: Iterable[Node], inputs: Iterable[Node]) -> set[Node]:
    """What does not hang on a loop's inputs and is worth computing before it."""
    nodes = topological(roots)
    varies = set(inputs)
    varies.update(n for n in nodes if n in varies or not varies.isdisjoint(n.operands))
    return set(nodes) - varies - _plain(nodes)


def _frontier(roots: Iterable[Node], outside: set[Node]) -> list[Node]:
    """The nodes outside that those inside read, and results that are outside."""
    return [n for n in topological(roots, until=outside) if n in outside]


def _closed(outputs: Sequence[Node], inputs: Sequence[Node], free: Sequence[Node],
            note_of: NoteOf) -> Graph:
    """The graph of `outputs` whose inputs stand for `inputs`, then `free`."""
    names = [n.attributes.name.rpartition("@")[0] for n in inputs] + ["outer"] * len(free)
    own = tuple(input_node(f"{name}.{i}", n.tensor)
                for i, (name, n) in enumerate(zip(names, (*inputs, *free), strict=True)))
    taken = dict(zip((*inputs, *free), own))
    new = _rewritten(outputs, taken)
    notes = {made: note_of(old) for old, made in new.items() if old not in taken}
    return Graph(own, tuple(new[o] for o in outputs), name="body", notes=MappingProxyType(notes))


def _rewritten(outputs: Sequence[Node], values: Mapping[Node, Node]) -> dict[Node, Node]:
    """What stands for each node under the outputs where those in `values` are replaced."""
    new = dict(values)
    for node in topological(outputs, until=values.keys()):
        if node not in new:
            new[node] = rebuild(node, tuple(new[o] for o in node.operands))
    return new
