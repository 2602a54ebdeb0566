"""The road in one place: a captured graph goes in, something callable comes out, with a report of every
decision.

capture gives the graph; `compile_graph` runs rewrite -> schedule -> codegen -> runtime, or stops at the graph
for the library strategy. `jit`, engines and the command line are callers of this one function.
"""
from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, get_args

from planish.codegen.llvm.host import Target, host
from planish.codegen.llvm.native import generate
from planish.codegen.llvm.support import require_native
from planish.compiled import (
    STAGES,
    Compiled,
    LibraryProgram,
    Made,
    Mode,
    NativeCompiled,
    Options,
    Report,
    SegmentedProgram,
    Strategy,
)
from planish.errors import PlanishError
from planish.ir import Graph, Node, print_graph, verify
from planish.ir.encoding import EncodingError
from planish.ir.fresh import all_symbols
from planish.ir.specialize import specialize
from planish.ir.text import node_names
from planish.logs import channel
from planish.ops.content import Looks, watched
from planish.passes.pipeline import PIPELINE, run_pipeline
from planish.program_cache import ProgramEntry, Stored, Summary, entry_of
from planish.rewrite import Numerics
from planish.runtime.load import load_known, load_program, prepare, spec_of
from planish.runtime.threads import get_num_threads
from planish.schedule.build import SWITCHES, Built, build_program
from planish.schedule.machine import Machine
from planish.schedule.measure import bytes_of_graph, kernel_records
from planish.schedule.names import renamed_sizes
from planish.schedule.segments import Plan, cut, host_line, is_host
from planish.tuning.decisions import Decisions
from planish.types import is_static

if TYPE_CHECKING:
    from planish.tuning.trial import Setting


_AS_IT_IS = Options()
TURN = 5e-4  # seconds

_settings = Lock()
_kept: list[tuple[bool, float]] = []  # the process's own, then once for each compile under way


def compile_graph(graph: Graph, options: Options = _AS_IT_IS, *,
                  hint: dict[str, int] | None = None) -> Compiled:
    """Compile a graph. `hint` gives typical sizes of its symbols, for choices and for the report's
    figures."""
    check_options(options)
    if hint:
        check_hint(graph, hint)
    if options.mode == "max-autotune" and options.strategy == "native":
        return _autotuned(graph, options, dict(hint or {}))
    with _compiling():
        return _compiled(graph, options, dict(hint or {}))


@contextmanager
def _compiling() -> Iterator[None]:
    """A compile makes very many objects and next to no cycles: Python's collector, which they set off, would
    walk over all that the process has. And LLVM's threads want Python's lock for moments between their works:
    whoever has it keeps it for TURN at most, not for 5 ms each time."""
    with _settings:
        if not _kept:
            _kept.append((gc.isenabled(), sys.getswitchinterval()))
            gc.disable()
            sys.setswitchinterval(min(sys.getswitchinterval(), TURN))
        _kept.append(_kept[0])
    try:
        yield
    finally:
        with _settings:
            _kept.pop()
            if len(_kept) == 1:
                was_on, turn = _kept.pop()
                sys.setswitchinterval(turn)
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
    with _compiling():
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
        return Setting(target, machine_of(target, o.numerics), o.numerics, disable, threads, self.hint)

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
        made = replace(self.setting, cold=sum(map(_constant_bytes, graphs)) > self.setting.machine.l3)
        named = (_with_own_sizes(g, self.hint) for g in graphs)
        return [(graph, replace(made, hint=hint)) for graph, hint in named]

    def native(self, decisions: Decisions) -> Compiled:
        return _compiled(self.graph, replace(self.options, decisions=decisions), self.hint)

    def native_alone(self, graph: Graph) -> Compiled:
        return _compiled(graph, self.options, self.hint)

    def library(self) -> Compiled:
        return _compiled(self.graph, replace(self.options, strategy="library"), self.hint)


def _constant_bytes(graph: Graph, *, are_lent: bool = False) -> int:
    """Those of its constants, or of those that are lent."""
    return sum(n.tensor.size * n.dtype.itemsize for n in graph.nodes()
               if n.op.name == "constant" and is_static(n.tensor.size)
               and (n.attributes.is_lent or not are_lent))


def _segmented(graph: Graph, options: Options, report: Report, clock: _Clock) -> Compiled:
    """Native code for the segments between host ops."""
    optimized = _with_libraries(_rewritten(graph, options, report, clock), options, report.hint)
    if not any(map(is_host, optimized.nodes())):
        return _program(optimized, options, report, clock, _from_optimized, captured=graph)
    plan = cut(optimized)
    clock.lap("schedule")
    report.hosts = hosts_of(optimized)
    parts = tuple(_program(s.graph, options, report, clock, _from_optimized) for s in plan.segments)
    if options.decisions.ops:
        _take_turns(plan, parts)
    return SegmentedProgram(graph, options, report, plan, parts)


def _with_libraries(optimized: Graph, options: Options, hint: dict[str, int]) -> Graph:
    """The graph with host ops for what libraries are to run."""
    if not options.decisions.ops:
        return optimized
    from planish.tuning.library import with_libraries

    return with_libraries(optimized, dict(options.decisions.ops), hint, options.threads)


def _take_turns(plan: Plan, parts: Sequence[NativeCompiled]) -> None:
    """Native code between kernels of a library that runs on OpenMP's threads runs on them too."""
    from planish.tuning.library import takes_turns

    if any(takes_turns(str(node.attributes.function)) for node in plan.hosts):
        for part in parts:
            part.program.use_openmp()


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
    room = prepare(_constant_bytes(graph), _constant_bytes(graph, are_lent=True))
    part = Report(hint=report.hint)
    with watched(entry.looks if entry is not None else Looks({})):
        made = road(graph, options, part, clock)
    program, cached = load_program(made.code, options.threads, room=room)
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
    built = build_program(graph, machine_of(target, options.numerics), report.hint,
                          disable=options.disable & set(SWITCHES),
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


def machine_of(target: Target, numerics: Numerics = "default") -> Machine:
    """What the schedule needs to know of a target. In strict numerics every product and every sum is rounded,
    so there no instruction adds up several products, and no scale is taken out of a sum."""
    strict = numerics == "strict"
    return Machine(target.vector_bytes, target.registers, target.l1, target.l2, target.l3, target.cores,
                   frozenset() if strict else target.products, strict)


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


__all__ = [
    "STAGES",
    "Compiled",
    "LibraryProgram",
    "Mode",
    "NativeCompiled",
    "Options",
    "Report",
    "SegmentedProgram",
    "Strategy",
    "check_options",
    "check_switches",
    "compile_graph",
    "machine_of",
]
