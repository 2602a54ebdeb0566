"""Run a function on tracers and write down what it did.

In: a Python function over NumPy, the leaves of its arguments, which of them are static. Out: a `Captured`:
the graph, and how each of the function's results and side effects comes from the arguments and the graph's
outputs. The function's program runs once, on this thread; an error in it leaves nothing behind.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planish.capture.location import user_location
from planish.capture.numpy.faults import Fault, errors
from planish.capture.numpy.guards import Guards
from planish.capture.numpy.hooks import hooked
from planish.capture.numpy.outside import generator_state, guards_of
from planish.capture.numpy.registry import unbuffered
from planish.capture.numpy.tracer import ACTIVE, Argument, Step, Storage, Trace, Tracer, as_tracer
from planish.capture.pytree import Tree, flatten
from planish.errors import CaptureError, CaptureWarning, UnsupportedDType
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ir.graph import rebuild
from planish.types import TensorType, number_dtype_of


@dataclass(frozen=True, eq=False)
class Result:
    """Where one leaf of the function's result comes from.

    source  "argument" (position), "array" (a plain array the function reads), "output" (position among the
            graph's outputs) or "value" (of the trace, the same at every call)
    steps   the views that lead from there to the result
    kind    what it is: array, scalar (np.float32...), number (a Python number), object (anything, as it is)
    """

    source: str
    place: Any
    steps: tuple[Step, ...] = ()
    kind: str = "array"


@dataclass(frozen=True, eq=False)
class Captured:
    """A traced function. `feeds`: per input of the graph, the position of a leaf, or a plain array read at
    each call; `writes`: (leaf, output position) for arguments that the function writes to; `contiguous`:
    leaves that it writes to through a reshape; `aliased`: outputs whose value may lie in an argument's own
    memory; `faults`: (output position, what NumPy tells of if that holds), the last outputs of the graph."""

    graph: Graph
    feeds: tuple[int | np.ndarray, ...]
    results: tuple[Result, ...]
    tree: Tree
    writes: tuple[tuple[int, int], ...]
    contiguous: frozenset[int]
    aliased: frozenset[int]
    guards: Guards = field(default_factory=Guards)
    faults: tuple[tuple[int, Fault], ...] = ()

    @property
    def of_results(self) -> Graph:
        """The graph without what only says whether NumPy would warn."""
        first = min((place for place, _ in self.faults), default=len(self.graph.outputs))
        return replace(self.graph, outputs=self.graph.outputs[:first])


def trace_function(
    function: Callable[..., Any],
    leaves: Sequence[Any],
    rebuild_arguments: Callable[[list[Any]], tuple[tuple, dict]],
    static: frozenset[int],
    names: Sequence[str],
    name: str,
) -> Captured:
    """Trace `function`. `rebuild_arguments` puts leaves back into (args, kwargs); `static` leaves are passed
    as they are."""
    objects = [leaf for i, leaf in enumerate(leaves) if i in static]
    guards = guards_of(function, objects)
    trace = Trace(names=dict(guards.arrays), errors=errors())
    inputs: dict[int, Storage] = {}
    labels = _labels(names)
    outer, ACTIVE.trace = ACTIVE.trace, trace
    try:
        with hooked():
            tracers = [
                leaf if i in static else _input(trace, inputs, i, leaf, labels[i], names[i])
                for i, leaf in enumerate(leaves)
            ]
            args, keywords = rebuild_arguments(tracers)
            result = function(*args, **keywords)
            del args, keywords, tracers
        _check_generators(guards)
        guards = _check_side_effects(function, guards, lambda: guards_of(function, objects))
        return _Finish(trace, inputs, guards, name).captured(result, function)
    finally:
        ACTIVE.trace = outer


def _labels(names: Sequence[str]) -> list[str]:
    """Names of arguments as identifiers, all different."""
    found: dict[str, None] = {}
    for name in names:
        label = base = re.sub(r"\W+", "_", name).strip("_") or "x"
        count = 1
        while label in found:
            count += 1
            label = f"{base}_{count}"
        found[label] = None
    return list(found)


def _input(
    trace: Trace, inputs: dict[int, Storage], position: int, leaf: Any, label: str, name: str
) -> Tracer:
    array = np.asarray(leaf)
    try:
        dtype = number_dtype_of(array)
    except UnsupportedDType as error:
        raise UnsupportedDType(f"argument {name}: {error}") from None
    node = input_node(label, TensorType(dtype, array.shape))
    storage = inputs[position] = Storage(trace, node=node, origin=Argument(position, name), input=node)
    weak = type(leaf) if type(leaf) in (int, float) else None
    return Tracer(storage, scalar=not isinstance(leaf, np.ndarray), weak=weak)


def _check_generators(guards: Guards) -> None:
    for generator, before, name in guards.generators:
        if generator_state(generator) != before:
            raise CaptureError(
                f"{user_location()}: random numbers were drawn from {name} while the function was traced; "
                "they would "
                "be the same at every call. Draw outside and pass them as an argument"
            )


def _check_side_effects(function: Any, guards: Guards, again: Callable[[], Guards]) -> Guards:
    """The guards as they are after the trace; a warning if the function itself changed what it reads."""
    change = guards.change()
    if change is None:
        return guards
    name, old, new = change
    code = getattr(function, "__code__", None)
    where = f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})" if code else repr(function)
    warnings.warn(
        CaptureWarning(
            f"{where} changed {name} while it was traced ({old} -> {new}); this happens once, not at every "
            "call. Return the new value instead"
        ),
        stacklevel=2,
    )
    return again()


@dataclass
class _Finish:
    """From a trace that ended to what it means."""

    trace: Trace
    inputs: dict[int, Storage]
    guards: Guards
    name: str
    outputs: list[Node] = field(default_factory=list)
    places: dict[tuple[str, int], int] = field(default_factory=dict)

    def captured(self, result: Any, function: Any) -> Captured:
        leaves, tree = flatten(result)
        leaves = unbuffered(leaves)
        del result
        self.trace.check_unchanged()
        alone = self._exclusive(leaves)
        self.alone = {id(s) for s in alone}
        sharing = _shared(leaves)
        results = tuple(self._result(leaf, sharing) for leaf in leaves)
        mine = [s for s in [*self.inputs.values(), *self.trace.met.values()] if id(s) not in self.alone]
        writes = tuple(
            (p, self._output(s.value(), ("write", p))) for p, s in self.inputs.items() if s.written
        )
        n_results = len(self.outputs)
        faults = tuple((self._output(f.node, ("fault", id(f.node))), f) for f in self.trace.faults)
        hidden = self._needed_hidden(mine)
        inputs = [*(s.input for s in self.inputs.values()), *(s.input for s in hidden)]
        feeds = (*self.inputs, *(s.origin for s in hidden))
        graph = Graph(
            tuple(n for n in inputs if n is not None),
            tuple(self.outputs),
            tuple(dict.fromkeys(self.trace.effects)),
            self.name,
        )
        graph = _settle_checks(_with_constants(graph.with_notes(self.trace.notes), alone))
        self.guards.frozen = _distinct([*self.guards.frozen, *self.trace.frozen.values()])
        self.guards.contents = self._read_by_numpy() + [(s.origin, s.digest) for s in mine if s.pinned]
        contiguous = frozenset(p for p, s in self.inputs.items() if id(s) in self.trace.contiguous)
        mine_alone = graph.outputs[:n_results]
        aliased = frozenset(i for i, n in enumerate(mine_alone) if _is_moved(n) or n in mine_alone[:i])
        return Captured(graph, feeds, results, tree, writes, contiguous, aliased, self.guards, faults)

    def _read_by_numpy(self) -> list[tuple[np.ndarray, int]]:
        """Arrays that the function has a name for and the program does not read: what NumPy itself computed
        from them, if anything, is compiled in."""
        read = {id(_root(s.origin)) for s in self.trace.met.values() if isinstance(s.origin, np.ndarray)}
        return [(array, before) for array, before in self.guards.contents if id(_root(array)) not in read]

    def _exclusive(self, leaves: list[Any]) -> list[Storage]:
        """Arrays that the function made itself with NumPy (np.arange...) and let go: nobody can change them,
        so they are constants. They are told by their reference count: only the trace still holds them."""
        probe = Storage(self.trace, origin=np.empty(0))
        alone = sys.getrefcount(probe.origin)
        returned = {id(leaf) for leaf in leaves}
        return [
            s
            for s in self.trace.met.values()
            if id(s.origin) not in returned
            and sys.getrefcount(s.origin) == alone
            and _base_is_alone(s.origin)
        ]

    def _result(self, leaf: Any, sharing: set[int]) -> Result:
        if isinstance(leaf, np.ndarray) and id(leaf) in self.trace.met:
            leaf = as_tracer(leaf)
        if isinstance(leaf, np.ndarray) and id(leaf) not in self.guards.arrays:
            return Result("value", leaf)
        if not isinstance(leaf, Tracer):
            return Result("value", leaf, kind="object")
        kind = "number" if leaf.weak else "scalar" if leaf.scalar else "array"
        storage = leaf.storage
        if leaf.known is not None:
            return Result("value", np.array(leaf.known), kind=kind)
        if (
            storage.origin is not None
            and id(storage) not in self.alone
            and not (leaf.scalar and storage.written)
        ):
            feed = self._feed(storage)
            if not leaf.steps:
                return Result("argument" if isinstance(feed, int) else "array", feed, kind="object")
            return Result("argument" if isinstance(feed, int) else "array", feed, leaf.steps)
        if id(storage) in sharing:
            return Result("output", self._output(storage.value(), ("storage", id(storage))), leaf.steps, kind)
        return Result("output", self._output(leaf.node, ("leaf", id(leaf))), kind=kind)

    def _feed(self, storage: Storage) -> int | np.ndarray:
        return storage.origin.position if isinstance(storage.origin, Argument) else storage.origin

    def _output(self, node: Node, key: tuple[str, int]) -> int:
        if key not in self.places:
            self.places[key] = len(self.outputs)
            self.outputs.append(node)
        return self.places[key]

    def _needed_hidden(self, mine: list[Storage]) -> list[Storage]:
        used = set(Graph((), tuple(self.outputs), tuple(self.trace.effects)).nodes())
        return [s for s in mine if isinstance(s.origin, np.ndarray) and s.input in used]


def _root(array: np.ndarray) -> np.ndarray:
    """The array whose memory a view looks into."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _distinct(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return list({id(array): array for array in arrays}.values())


def _base_is_alone(array: np.ndarray) -> bool:
    """Whether only views that lead to this array hold its bases."""
    while isinstance(array.base, np.ndarray):
        if _holders_of_base(array) > _holders_of_base(np.empty(2)[1:]):
            return False
        array = array.base
    return array.base is None or isinstance(array.base, bytes)  # type: ignore[unreachable]


def _holders_of_base(array: np.ndarray) -> int:
    return sys.getrefcount(array.base)


def _shared(leaves: list[Any]) -> set[int]:
    """Storages made by the function that several results look into."""
    seen: dict[int, int] = {}
    for leaf in {id(x): x for x in leaves if isinstance(x, Tracer)}.values():
        seen[id(leaf.storage)] = seen.get(id(leaf.storage), 0) + 1
    return {storage for storage, count in seen.items() if count > 1}


def _with_constants(graph: Graph, alone: list[Storage]) -> Graph:
    values = {s.input: constant(s.origin) for s in alone}
    return (
        graph.map(lambda n, operands: values[n] if n in values else rebuild(n, operands)) if values else graph
    )


def _settle_checks(graph: Graph) -> Graph:
    """Checks that no input goes into are made now."""
    kept = []
    for effect in graph.effects:
        alone = Graph((), (effect,))
        if any(n.op.name == "input" for n in alone.nodes()):
            kept.append(effect)
        else:
            interpret(alone, ())
    return Graph(graph.inputs, graph.outputs, tuple(kept), graph.name, graph.output_names, graph.notes)


def _is_moved(node: Node) -> bool:
    """Whether the value may be, as NumPy computes it, a view of an input or a constant or of another
    value."""
    return node.op.name in ("input", "constant") or node.op.has("movement") or node.op.has("view")
