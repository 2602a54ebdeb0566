"""The road in one place: a captured graph goes in, something callable comes out, with a report of every
decision.

capture gives the graph; `compile_graph` runs rewrite -> schedule -> codegen -> runtime, or stops at the graph
for the library strategy. `jit`, engines and the command line are callers of this one function.
"""
from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from planish.codegen.llvm.host import Target, host
from planish.codegen.llvm.native import NativeCode, generate
from planish.codegen.llvm.support import require_native
from planish.errors import PlanishError, SignatureError
from planish.ir import Graph, Node, interpret, print_graph, verify
from planish.ir.encoding import EncodingError
from planish.ir.fresh import all_symbols
from planish.ir.interpret import bind_host, checked
from planish.ir.specialize import bind_symbols, specialize, static_sizes, substitute_value
from planish.ir.text import node_names
from planish.logs import channel
from planish.ops.content import Looks, watched
from planish.passes.pipeline import PIPELINE, run_pipeline
from planish.passes.protocol import PassRecord
from planish.program_cache import ProgramEntry, Stored, Summary, entry_of
from planish.rewrite import Numerics
from planish.runtime.load import load_known, load_program, spec_of
from planish.runtime.program import NativeProgram
from planish.runtime.threads import get_num_threads
from planish.schedule.build import SWITCHES, Built, build_program
from planish.schedule.machine import Machine
from planish.schedule.measure import KernelRecord, bytes_of_graph, kernel_records
from planish.schedule.names import renamed_sizes
from planish.schedule.program_text import print_program
from planish.schedule.segments import HostCall, Plan, cut, host_line, is_host, print_plan
from planish.schedule.text import print_kernel
from planish.tuning.decisions import UNTUNED, Decisions
from planish.tuning.record import Finding
from planish.types import is_static

if TYPE_CHECKING:
    from planish.tuning.trial import Setting

Strategy = Literal["native", "library"]
Mode = Literal["default", "max-autotune"]
STAGES = ("graph", "optimized", "segments", "loops", "program", "llvm", "asm")


@dataclass(frozen=True)
class Options:
    """What a compile may be told. `disable` holds names of passes and schedule steps to switch off; `target`
    is the machine, None for this one; `threads` is how many a call uses, 0: as many as the process does.
    `mode` "max-autotune" measures what the default decides by rules; `decisions` is what came of it."""

    numerics: Numerics = "default"
    strategy: Strategy = "native"
    mode: Mode = "default"
    decisions: Decisions = UNTUNED
    target: Target | None = None
    disable: frozenset[str] = frozenset()
    threads: int = 0


@dataclass
class Report:
    """What the compiler did. Bytes and flops are at the sizes of `hint` (symbol -> size) for dynamic
    graphs."""

    captured_nodes: int = 0
    passes: list[PassRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)   # stage -> seconds, in order
    kernels: list[KernelRecord] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)         # one line per fusion or layout decision
    hosts: list[str] = field(default_factory=list)             # one line per host op, in the order they run
    bytes_before: int = 0      # every op reads its operands and writes its result
    bytes_after: int = 0       # every kernel does
    memory_naive: int = 0      # every intermediate its own buffer
    memory_planned: int = 0    # the arena
    memory_bound: int = 0      # most live bytes at any time
    cached: bool = False       # native code came from the cache
    stored: bool = False       # whole programs did: no pass ran, nothing was scheduled
    tuning: list[Finding] = field(default_factory=list)        # what max-autotune measured, now or before
    hint: dict[str, int] = field(default_factory=dict)


@dataclass
class Compiled:
    """A compiled graph. Call it with arrays in the order of `captured.inputs`; the outputs come as a
    tuple."""

    captured: Graph
    options: Options
    report: Report

    @property
    def optimized(self) -> Graph:
        """The graph after the passes."""
        return self.captured

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        return interpret(self.optimized, arrays)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Outputs by name (None: all) for arrays by name, as ONNX Runtime's session has it. Raises
        SignatureError for names that are not the graph's, or that are missing."""
        inputs, outputs = [n.attributes.name for n in self.captured.inputs], self.captured.output_names
        _check_names("input", list(feeds), inputs)
        _check_names("output", names or (), outputs)
        if missing := [n for n in inputs if n not in feeds]:
            raise SignatureError(f"missing inputs: {', '.join(missing)}")
        results = self(*(feeds[n] for n in inputs))
        return list(results) if names is None else [results[outputs.index(n)] for n in names]

    def text(self, stage: str) -> str:
        """The program at a stage, one of STAGES. ValueError for a stage this strategy does not have."""
        texts = self.texts()
        if stage not in texts:
            raise ValueError(f"there is no stage {stage!r} here; there are {', '.join(texts)}")
        return texts[stage]()

    def texts(self) -> dict[str, Callable[[], str]]:
        return {"graph": lambda: print_graph(self.captured), "optimized": lambda: print_graph(self.optimized)}


def _check_names(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise SignatureError(f"there is no {kind} {name!r}; there are {', '.join(known) or 'no names'}")


@dataclass
class LibraryProgram(Compiled):
    """The library strategy: each op by its NumPy kernel, one memory round trip each, zero build time."""

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """New arrays, as native code gives them: what looks at an argument, a constant or another result is
        copied."""
        return _apart(super().__call__(*arrays), [np.asarray(a) for a in arrays])


@dataclass(frozen=True)
class Made:
    """What there is between a graph and its machine code."""

    optimized: Graph
    built: Built
    code: NativeCode


@dataclass
class NativeCompiled(Compiled):
    """Native code. `program` is what the runtime calls; `program.call` is the builtin for a hot caller when
    every output is the program's own (`is_direct`). `outputs` is as in `Built`. What a program from the cache
    was made by is made again when somebody asks for it."""

    outputs: tuple[tuple[str, int], ...]
    program: NativeProgram
    make: Callable[[], Made]

    @cached_property
    def made(self) -> Made:
        return self.make()

    @property
    def optimized(self) -> Graph:
        return self.made.optimized

    @property
    def built(self) -> Built:
        return self.made.built

    @property
    def code(self) -> NativeCode:
        return self.made.code

    @property
    def is_direct(self) -> bool:
        """Whether the program's outputs are the graph's, in order."""
        return self.outputs == tuple(("program", k) for k in range(len(self.outputs)))

    def direct_call(self, missed: Callable[..., Any]) -> Callable[..., Any] | None:
        """A builtin that takes plain arrays and returns the one output, and leaves any other call to
        `missed`; None when the graph's output is not simply the program's."""
        return self.program.door(missed) if self.is_direct else None

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        results = self.program.call(*arrays)
        if self.is_direct:
            return results
        sizes = bind_symbols(self.captured, [np.shape(a) for a in arrays])
        return tuple(self._output(i, results, arrays, sizes) for i in range(len(self.outputs)))

    def _output(self, i: int, results: tuple[np.ndarray, ...], arrays: tuple[Any, ...],
                sizes: dict[str, int]) -> np.ndarray:
        """Output i: the program's, shared with no other output; or a copy of an input or constant."""
        kind, k = self.outputs[i]
        if kind == "program" and self.outputs.index((kind, k)) == i:
            return results[k]
        if kind == "constant":
            whole = _base(self.optimized.outputs[i]).attributes.value
        else:
            whole = results[k] if kind == "program" else arrays[k]
        return np.array(whole, copy=True).reshape(static_sizes(self.captured.outputs[i].shape, sizes))

    def texts(self) -> dict[str, Callable[[], str]]:
        program = self.built.program
        return {**super().texts(), "segments": lambda: print_plan(cut(self.optimized)),
                "loops": lambda: "\n\n".join(map(print_kernel, program.kernels)),
                "program": lambda: print_program(program), "llvm": self.code.llvm, "asm": self.code.assembly}


def _base(node: Node) -> Node:
    """What a chain of reshapes looks at."""
    while node.op.name == "reshape":
        node = node.operands[0]
    return node


@dataclass
class SegmentedProgram(Compiled):
    """Native code around host ops. `parts` are the compiled segments of `plan`, in order."""

    plan: Plan
    parts: tuple[NativeCompiled, ...]

    @property
    def optimized(self) -> Graph:
        return self.plan.graph

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        inputs = [checked(n, np.asarray(a)) for n, a in zip(self.captured.inputs, arrays)]
        sizes = bind_symbols(self.captured, [np.shape(a) for a in arrays])
        values: dict[Node, Any] = dict(zip(self.captured.inputs, inputs))
        parts = iter(self.parts)
        for step, done in zip(self.plan.steps, self.plan.done):
            if isinstance(step, HostCall):
                values[step.node] = self._host(step, values, sizes)
            else:
                taken = (_value(n, values, sizes) for n in step.takes)
                carried = (np.empty((sizes[name], 0), np.uint8) for name in step.carries)
                values |= zip(step.gives, next(parts)(*taken, *carried))
            for node in done:
                del values[node]
        return _apart([_value(n, values, sizes) for n in self.optimized.outputs], inputs)

    def _host(self, call: HostCall, values: Mapping[Node, Any], sizes: dict[str, int]) -> Any:
        node, attributes = call.node, call.node.attributes
        if call.is_sized:
            attributes = substitute_value(attributes, sizes)
        result = node.op.evaluate(attributes, *(_value(o, values, sizes) for o in node.operands))
        bind_host(node, result, sizes)
        return result

    def texts(self) -> dict[str, Callable[[], str]]:
        def joined(stage: str) -> Callable[[], str]:
            return lambda: "\n\n".join(part.text(stage) for part in self.parts)
        return {**super().texts(), "segments": lambda: print_plan(self.plan),
                **{stage: joined(stage) for stage in ("loops", "program", "llvm", "asm")}}


def _value(node: Node, values: Mapping[Node, Any], sizes: Mapping[str, int]) -> np.ndarray:
    """A value by the one that the driver keeps of it."""
    if node in values:
        return values[node]
    if node.op.name == "constant":
        return node.attributes.value
    of = _value(node.operands[0], values, sizes)
    if node.op.name == "item":
        return of[node.attributes.index]
    return of.reshape(static_sizes(node.shape, sizes))


def _apart(results: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """New arrays: what looks at an input, a constant or another result is copied."""
    taken = list(inputs)
    for result in results:
        is_own = result.flags.writeable and not any(np.may_share_memory(result, a) for a in taken)
        taken.append(result if is_own and result.flags.c_contiguous else np.array(result, order="C"))
    return tuple(taken[len(inputs):])


def compile_graph(graph: Graph, options: Options = Options(), *,
                  hint: dict[str, int] | None = None) -> Compiled:
    """Compile a graph. `hint` gives typical sizes of its symbols, for choices and for the report's
    figures."""
    check_options(options)
    if hint:
        check_hint(graph, hint)
    if options.mode == "max-autotune" and options.strategy == "native":
        return _autotuned(graph, options, dict(hint or {}))
    with _without_collector():
        return _compiled(graph, options, dict(hint or {}))


@contextmanager
def _without_collector() -> Iterator[None]:
    """A compile makes very many objects and next to no cycles: Python's collector, which they set off, would
    walk over all that the process has."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _compiled(graph: Graph, options: Options, hint: dict[str, int]) -> Compiled:
    nodes = graph.nodes()
    report = Report(captured_nodes=len(nodes), hint=hint)
    clock = _Clock(report.seconds)
    if options.strategy == "library":
        verify(graph, "capture")
        clock.lap("verify")
        report.bytes_before = report.bytes_after = bytes_of_graph(graph, report.hint)
        report.hosts = hosts_of(graph)
        return LibraryProgram(graph, options, report)
    if any(map(is_host, nodes)) or options.decisions.ops:
        compiled = _segmented(graph, options, report, clock)
    else:
        compiled = _program(graph, options, report, clock, _from_captured)
    log = channel("fusion")
    for decision in report.decisions:
        log.info("%s: %s", graph.name, decision)
    return compiled


def _autotuned(graph: Graph, options: Options, hint: dict[str, int]) -> Compiled:
    """The program by what was measured, now or at an earlier compile."""
    from planish.tuning.tune import tune

    start = perf_counter()
    decisions, findings = tune(_TuningRoad(graph, replace(options, mode="default"), hint))
    seconds = perf_counter() - start
    strategy: Strategy = "library" if decisions.whole else "native"
    with _without_collector():
        compiled = _compiled(graph, replace(options, decisions=decisions, strategy=strategy), hint)
    report = compiled.report
    report.tuning, report.seconds = findings, {"tune": seconds, **report.seconds}
    return compiled


@dataclass(frozen=True)
class _TuningRoad:
    """What tuning needs of a compile: see tuning/tune.py."""

    graph: Graph
    options: Options
    hint: dict[str, int]

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def inputs(self) -> Sequence[Node]:
        return self.graph.inputs

    @cached_property
    def setting(self) -> Setting:
        from planish.tuning.trial import Setting

        o, target = self.options, self.options.target or host()
        disable = o.disable & set(SWITCHES)
        threads = o.threads or get_num_threads()
        return Setting(target, machine_of(target), o.numerics, disable, threads, self.hint)

    @property
    def key(self) -> str:
        chosen = (self.options.numerics, tuple(sorted(self.options.disable)))
        try:
            return ProgramEntry(self.graph, "tuned", chosen, self.setting.target, self.hint).key
        except EncodingError:
            return f"{print_graph(self.graph)} {chosen} {sorted(self.hint.items())}"

    def scheduled(self) -> list[tuple[Graph, Setting]]:
        optimized = _rewritten(self.graph, self.options, Report(hint=self.hint), _Clock({}))
        has_hosts = any(map(is_host, optimized.nodes()))
        graphs = [s.graph for s in cut(optimized).segments] if has_hosts else [optimized]
        bytes_ = sum(n.tensor.size * n.dtype.itemsize for g in graphs for n in g.nodes()
                     if n.op.name == "constant" and is_static(n.tensor.size))
        made = replace(self.setting, cold=bytes_ > self.setting.machine.l3)
        named = (_with_own_sizes(g, self.hint) for g in graphs)
        return [(graph, replace(made, hint=hint)) for graph, hint in named]

    def native(self, decisions: Decisions) -> Compiled:
        return _compiled(self.graph, replace(self.options, decisions=decisions), self.hint)

    def native_alone(self, graph: Graph) -> Compiled:
        return _compiled(graph, self.options, self.hint)

    def library(self) -> Compiled:
        return _compiled(self.graph, replace(self.options, strategy="library"), self.hint)


def _segmented(graph: Graph, options: Options, report: Report, clock: _Clock) -> Compiled:
    """Native code for the segments between host ops."""
    optimized = _with_libraries(_rewritten(graph, options, report, clock), options, report.hint)
    if not any(map(is_host, optimized.nodes())):
        return _program(optimized, options, report, clock, _from_optimized, captured=graph)
    plan = cut(optimized)
    clock.lap("schedule")
    report.hosts = hosts_of(optimized)
    parts = tuple(_program(s.graph, options, report, clock, _from_optimized) for s in plan.segments)
    return SegmentedProgram(graph, options, report, plan, parts)


def _with_libraries(optimized: Graph, options: Options, hint: dict[str, int]) -> Graph:
    """The graph with host ops for what libraries are to run."""
    if not options.decisions.ops:
        return optimized
    from planish.tuning.library import with_libraries

    return with_libraries(optimized, dict(options.decisions.ops), hint)


Road = Callable[[Graph, Options, Report, "_Clock"], Made]


def _program(graph: Graph, options: Options, report: Report, clock: _Clock, road: Road,
             captured: Graph | None = None) -> NativeCompiled:
    """One native program: the one that the cache has of this graph, else what `road` makes of it. `report`
    gets its kernels beside those it has."""
    target = options.target or host()
    chosen = (options.numerics, tuple(sorted(options.disable)), options.decisions)
    entry = entry_of(graph, road.__name__, chosen, target, report.hint)
    clock.lap("cache")
    stored = entry.find() if entry is not None else None
    program = load_known(stored.code, stored.spec, stored.contents, options.threads) if stored else None
    if stored is not None and program is not None:
        clock.lap("load")
        _add(report, stored.summary, cached=True, rebuilt=False)
        again = partial(road, graph, options, Report(hint=report.hint), _Clock({}))
        return NativeCompiled(captured or graph, options, report, stored.outputs, program, again)
    part = Report(hint=report.hint)
    with watched(entry.looks if entry is not None else Looks({})):
        made = road(graph, options, part, clock)
    program, cached = load_program(made.code, options.threads)
    clock.lap("compile")
    summary = _summary(part, made.built)
    _add(report, summary, cached=cached, rebuilt=True)
    if entry is not None:
        code = made.code
        entry.put(Stored(spec_of(code), made.built.outputs, code.program.contents, code.key, summary))
        clock.lap("cache")
    return NativeCompiled(captured or graph, options, report, made.built.outputs, program, lambda: made)


def _from_captured(graph: Graph, options: Options, report: Report, clock: _Clock) -> Made:
    optimized = _rewritten(graph, options, report, clock)
    return _from_optimized(optimized, options, report, clock)


def _rewritten(graph: Graph, options: Options, report: Report, clock: _Clock) -> Graph:
    verify(graph, "capture")
    clock.lap("verify")
    report.bytes_before = bytes_of_graph(graph, report.hint)
    optimized, report.passes = run_pipeline(graph, numerics=options.numerics, disable=options.disable)
    _tell_passes(graph, report)
    require_native(optimized)
    clock.lap("rewrite")
    return optimized


def _from_optimized(optimized: Graph, options: Options, report: Report, clock: _Clock) -> Made:
    target = options.target or host()
    graph, report.hint = _with_own_sizes(optimized, report.hint)
    built = build_program(graph, machine_of(target), report.hint, disable=options.disable & set(SWITCHES),
                          choose=options.decisions.chooser(report.hint))
    clock.lap("schedule")
    code = generate(built.program, built.outputs, graph, target, options.numerics)
    clock.lap("generate")
    return Made(optimized, built, code)


def _with_own_sizes(graph: Graph, hint: dict[str, int]) -> tuple[Graph, dict[str, int]]:
    """The graph with no size called as a loop is, and the hint for it."""
    renamed = renamed_sizes(graph)
    hints = {str(new): hint[old] for old, new in renamed.items() if old in hint}
    return specialize(graph, renamed), hint | hints


def check_options(options: Options) -> None:
    """Raises PlanishError for a numerics class, a strategy, a mode or a switch that there is not, and for
    tuning for another machine."""
    for what, value, known in (("numerics class", options.numerics, get_args(Numerics)),
                               ("strategy", options.strategy, get_args(Strategy)),
                               ("mode", options.mode, get_args(Mode))):
        if value not in known:
            raise PlanishError(f"there is no {what} {value!r}; there are {' and '.join(known)}")
    if options.mode == "max-autotune" and options.target not in (None, host()):
        raise PlanishError("max-autotune measures on this machine, and the target is another; leave out one "
                           "of the two")
    check_switches(options.disable)


def hosts_of(graph: Graph) -> list[str]:
    """A line for every host op, in the order in which they run."""
    hosts = [n for n in graph.nodes() if is_host(n)]
    names = node_names(graph) if hosts else {}
    return [host_line(n, names) for n in hosts]


def check_switches(disable: frozenset[str]) -> None:
    """Raises PlanishError for names that are neither a pass, a schedule step nor a rule."""
    names = [p.name for p in PIPELINE] + list(SWITCHES)
    rules = {r.name for p in PIPELINE for r in getattr(p, "rules", ())}
    unknown = sorted(disable - rules - set(names))
    if unknown:
        raise PlanishError(f"nothing to disable is called {', '.join(unknown)}; passes and steps are "
                           f"{', '.join(names)}; rules go by their own names")


def check_hint(graph: Graph, hint: Mapping[str, int]) -> None:
    """Raises PlanishError for sizes of symbols the graph does not have."""
    symbols = all_symbols(graph)
    if unknown := [name for name in hint if name not in symbols]:
        has = f"its symbols are {', '.join(symbols)}" if symbols else "all its sizes are known"
        raise PlanishError(f"hint: {graph.name} has no symbol {', '.join(map(repr, unknown))}; {has}")


def machine_of(target: Target) -> Machine:
    """What the schedule needs to know of a target."""
    return Machine(target.vector_bytes, target.registers, target.l1, target.l2, target.l3, target.cores)


def _summary(part: Report, built: Built) -> Summary:
    kernels = tuple(kernel_records(built.program, part.hint))
    return Summary(tuple(part.passes), kernels, tuple(built.decisions), part.bytes_before,
                   sum(k.bytes for k in kernels), built.memory.naive, built.memory.planned,
                   built.memory.bound)


def _add(report: Report, summary: Summary, *, cached: bool, rebuilt: bool) -> None:
    report.cached = cached and (report.cached or not report.kernels)
    report.stored = not rebuilt and (report.stored or not report.kernels)
    report.passes += summary.passes
    report.kernels += summary.kernels
    report.decisions += summary.decisions
    for name in ("bytes_before", "bytes_after", "memory_naive", "memory_planned", "memory_bound"):
        setattr(report, name, getattr(report, name) + getattr(summary, name))


def _tell_passes(graph: Graph, report: Report) -> None:
    log = channel("passes")
    for record in report.passes:
        log.info("%s: %s: %d -> %d nodes, %.2f ms", graph.name, record.name, record.before, record.after,
                 record.seconds * 1e3)
        for rule, count in record.fired.items():
            log.debug("%s: %s: %s fired %d times", graph.name, record.name, rule, count)


class _Clock:
    def __init__(self, seconds: dict[str, float]):
        self.seconds, self.last = seconds, perf_counter()

    def lap(self, name: str) -> None:
        now = perf_counter()
        self.seconds[name], self.last = self.seconds.get(name, 0.0) + now - self.last, now


__all__ = ["STAGES", "Compiled", "KernelRecord", "LibraryProgram", "NativeCompiled", "Options", "PassRecord",
           "Report", "compile_graph", "machine_of", "replace"]
