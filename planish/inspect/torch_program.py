"""What torch.compile makes of a function: where it is cut and why, which part of it runs compiled, what it
relies on, and why it was compiled again.

In: a torch function or module and arguments. Out: a `TorchExplanation`, which prints as a report. The
function runs a few times: compiled, for the breaks and the times; under torch's profiler, compiled and in
eager, to count the operators in and outside the compiled graphs. What it does to its arguments, it does that
often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from planish.inspect.explain import Explanation, explanation
from planish.ir import Graph
from planish.ops.host import HostFunction
from planish.torch.breaks import Break, is_foreign
from planish.torch.dynamo import compile_dynamo
from planish.torch.recompiles import Recompile, plain
from planish.torch.settings import settings_of
from planish.torch.watch import REGION, GraphRun, Watch, watching

RUNS = 3  # of which the fastest counts
BOOKKEEPING = {"aten::detach", "aten::alias", "aten::lift_fresh", "aten::empty", "aten::empty_strided"}
PINNED = {"EQUALS_MATCH", "BOOL_MATCH", "CONSTANT_MATCH", "NONE_MATCH", "SEQUENCE_LENGTH", "DICT_KEYS"}


@dataclass(frozen=True)
class Share:
    """How much of something lies in compiled graphs."""

    inside: float
    total: float

    @property
    def percent(self) -> float:
        return 100 * self.inside / self.total if self.total else 0.0


@dataclass(frozen=True)
class HostOp:
    """An operator that torch runs inside a compiled graph, and where the program calls it."""

    operator: str
    place: str

    def __str__(self) -> str:
        return f"{self.operator} at {self.place}" if self.place else self.operator


@dataclass(frozen=True)
class TorchGraph:
    """One compiled graph. `kind` is "inference", "forward" or "backward"; `ms` is per call; `full_capture` is
    why AOTAutograd captured it ("": it did not)."""

    name: str
    kind: str
    operators: int
    kernels: int
    host_ops: list[HostOp]
    compile_ms: float
    calls: int
    ms: float
    explanation: Explanation | None
    full_capture: str = ""


@dataclass(frozen=True)
class TorchExplanation:
    """What torch.compile(backend="planish") makes of a function.

    compiles       graphs that Dynamo gave to planish
    operators      those called by the program in one call, in compiled graphs and in all; None where every
                   call is compiled again
    milliseconds   of one call
    guards         how many conditions a call is checked for
    pinned         the values that a compiled program holds for: "self.scale == 2.0"
    first_call_ms  with capture and compilation; `compile_ms` of it are planish's
    """

    function: str
    compiles: int
    breaks: list[Break]
    recompiles: list[Recompile]
    limits: list[str]
    graphs: list[TorchGraph]
    operators: Share | None
    milliseconds: Share
    guards: int
    pinned: list[str]
    first_call_ms: float

    @property
    def graph_count(self) -> int:
        return self.compiles

    @property
    def graph_break_count(self) -> int:
        return len(self.breaks)

    @property
    def break_reasons(self) -> list[str]:
        return [b.reason for b in self.breaks]

    @property
    def host_ops(self) -> list[HostOp]:
        return [h for g in self.graphs for h in g.host_ops]

    @property
    def compile_ms(self) -> float:
        return sum(g.compile_ms for g in self.graphs)

    def __str__(self) -> str:
        return "\n".join(_report(self))


def explain_torch(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any], **options: Any
) -> TorchExplanation:
    """Explain a call of a torch function or module. Dynamo is reset before and after: what other functions
    have compiled, they compile again at their next call."""
    import torch

    function, settings = _original(function), settings_of(options.pop("mode", None), options)
    guards: list[Any] = []

    def planish(module: Any, inputs: Any) -> Any:
        return compile_dynamo(module, inputs, settings)

    torch.compiler.reset()
    try:
        with watching() as watch:
            optimize = torch._dynamo.optimize(planish, nopython=False, guard_export_fn=guards.extend)
            compiled = optimize(function)
            call = lambda: compiled(*args, **keywords)  # noqa: E731
            first = _timed(call)
            total, inside = min(_timed_inside(call, watch) for _ in range(RUNS))
            graphs = list(map(_graph, watch.graphs.values()))
            operators = _share_of_operators(call, lambda: _eager(function, args, keywords), watch)
    finally:
        torch.compiler.reset()
    return TorchExplanation(
        _name(function),
        watch.compiles,
        list(watch.breaks),
        list(watch.recompiles),
        list(watch.limits),
        graphs,
        operators,
        Share(inside * 1e3, total * 1e3),
        len(guards),
        _pinned(guards),
        first * 1e3,
    )


def _eager(function: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """A call of which nothing is compiled, nor of what is compiled inside (from torch 2.6 on)."""
    from torch import compiler

    with compiler.set_stance("force_eager") if hasattr(compiler, "set_stance") else nullcontext():
        return function(*args, **keywords)


def _original(function: Any) -> Any:
    """What was compiled, of what torch.compile and planish.compile give."""
    for name in ("_orig_mod", "_torchdynamo_orig_callable"):
        function = getattr(function, name, function)
    return function


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


# --- time


def _timed(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _timed_inside(call: Callable[[], Any], watch: Watch) -> tuple[float, float]:
    """Seconds of a call, and those in compiled graphs."""
    before = sum(g.seconds for g in watch.graphs.values())
    total = _timed(call)
    return total, sum(g.seconds for g in watch.graphs.values()) - before


# --- operators


def _share_of_operators(compiled: Callable[[], Any], eager: Callable[[], Any], watch: Watch) -> Share | None:
    """Of the operators that eager runs, those that a compiled call does not run outside of its graphs. What
    torch.compile adds there, such as copies to changed buffers, are no operators of the program. None for a
    function that is compiled again at every call: its tracing runs operators too."""
    program = _operators(eager, watch)
    for _ in range(RUNS):
        compiles = watch.compiles
        outside = _operators(compiled, watch) & program
        if watch.compiles == compiles:
            return Share(program.total() - outside.total(), program.total())
    return None


def _operators(call: Callable[[], Any], watch: Watch) -> Counter[str]:
    """The operators that a call runs outside of compiled graphs: those that no other operator calls."""
    from torch.autograd.profiler_legacy import profile  # torch.profiler would start Kineto, which prints

    watch.marking = True
    try:
        with profile() as profiler:
            call()
    finally:
        watch.marking = False
    return Counter(e.name for e in profiler.function_events if _is_operator(e) and not _is_inside(e))


def _is_operator(event: Any) -> bool:
    return event.name.startswith("aten::") and event.name not in BOOKKEEPING


def _is_inside(event: Any) -> bool:
    """Whether an event lies in another operator or in a compiled graph."""
    parent = event.cpu_parent
    while parent is not None:
        if parent.name.startswith("aten::") or parent.name == REGION:
            return True
        parent = parent.cpu_parent
    return False


# --- graphs


def _graph(run: GraphRun) -> TorchGraph:
    kind, calls = run.name.partition("_")[0], run.calls
    if run.program is None:
        took = run.compile_seconds * 1e3
        return TorchGraph(run.name, kind, run.operators, 0, [], took, calls, 0.0, None, run.full_capture)
    compiled = run.program.compiled
    what = explanation(compiled)
    hosts = host_ops(compiled.optimized)
    # The first call of a graph that folds weights compiles it.
    ms = (run.seconds - run.first_seconds) * 1e3 / max(calls - 1, 1)
    kernels, compile_ms = what.kernels.after, run.compile_seconds * 1e3
    reason = run.full_capture
    return TorchGraph(run.name, kind, run.operators, kernels, hosts, compile_ms, calls, ms, what, reason)


def host_ops(graph: Graph) -> list[HostOp]:
    """The operators of a graph that torch runs."""
    places = {n: graph.note(n).location for n in graph.nodes()}
    for node in graph.nodes():  # several results: the note is on the items
        if node.op.name == "item" and places[node.operands[0]] is None:
            places[node.operands[0]] = places[node]
    return [
        HostOp(_called(node.attributes.function), str(place or ""))
        for node, place in places.items()
        if node.op.name == "host"
    ]


def _called(function: HostFunction) -> str:
    return str(dict(function.parameters).get("overload", function.name))


# --- guards


def _pinned(guards: Iterable[Any]) -> list[str]:
    """Guards that hold a value of the program fast, as expressions: not those on torch's own state."""
    lines = []
    for guard in guards:
        frame = guard.user_stack[-1] if guard.user_stack else None
        kinds = set(guard.guard_types or ())
        if kinds & PINNED and frame is not None and not is_foreign(frame.filename):
            lines += [f"{plain(code)}, {frame.filename}:{frame.lineno}" for code in guard.code_list or ()]
    return list(dict.fromkeys(lines))


# --- the report


def _report(what: TorchExplanation) -> list[str]:
    graphs, breaks = _count(what.compiles, "graph"), _count(what.graph_break_count, "graph break")
    ms, first = what.milliseconds, f"first call {what.first_call_ms:.0f} ms"
    lines = [f"{what.function}: {graphs}, {breaks}"]
    lines.append(f"  compiled: {_operators_line(what.operators)}; {_milliseconds_line(ms)}")
    lines.append(f"  {first}, {what.compile_ms:.0f} of them planish's; {_count(what.guards, 'guard')}")
    lines += _section("graph breaks", (str(b) for b in what.breaks))
    lines += _section("recompiles", map(str, what.recompiles))
    lines += _section("limits", what.limits)
    lines += _section("graphs", map(_graph_line, what.graphs))
    lines += _section("run by torch inside the graphs", map(str, what.host_ops))
    return lines + _section("compiled for these values", what.pinned)


def _operators_line(share: Share | None) -> str:
    if share is None:
        return "every call is compiled again"
    return f"{share.inside} of {share.total} operators ({share.percent:.0f} %)"


def _milliseconds_line(share: Share) -> str:
    return f"{share.inside:.3f} of {share.total:.3f} ms of a call ({share.percent:.0f} %)"


def _graph_line(graph: TorchGraph) -> str:
    captured = f"\n  captured by AOTAutograd: {graph.full_capture}" if graph.full_capture else ""
    return (
        f"{graph.name}: {_count(graph.operators, 'operator')} in {_count(graph.kernels, 'kernel')}, "
        f"{_count(len(graph.host_ops), 'host op')}, compiled in {graph.compile_ms:.0f} ms, "
        f"{graph.ms:.3f} ms a call{captured}"
    )


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = list(lines)
    if not found:
        return []
    return [f"  {title}:", *(f"    {part}" for line in found for part in line.split("\n"))]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


__all__ = ["HostOp", "Share", "TorchExplanation", "TorchGraph", "explain_torch"]
