"""The road in one place: a captured graph goes in, something callable comes out, with a report of every decision.

capture gives the graph; `compile_graph` runs rewrite -> schedule -> codegen -> runtime, or stops at the graph for the
library strategy. `jit`, engines and the command line are callers of this one function.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

import numpy as np

from planish.ir import Graph, interpret, verify

Numerics = Literal["strict", "default", "fast"]
Strategy = Literal["native", "library"]


@dataclass(frozen=True)
class Options:
    """What a compile may be told. `disable` holds names of passes to switch off."""

    numerics: Numerics = "default"
    strategy: Strategy = "native"
    target: str = "host"
    disable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: its seconds, graph nodes (or kernels) before and after, and how often each rule fired."""

    name: str
    seconds: float
    before: int
    after: int
    fired: dict[str, int] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class KernelRecord:
    """One kernel: its name, what it computes (op names), bytes read and written, floating-point operations."""

    name: str
    kind: str
    ops: tuple[str, ...]
    bytes: int
    flops: int


@dataclass
class Report:
    """What the compiler did. Bytes and flops are at the sizes of `hint` (symbol -> size) for dynamic graphs."""

    captured_nodes: int = 0
    passes: list[PassRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)   # stage -> seconds, in order
    kernels: list[KernelRecord] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)         # one line per fusion or layout decision
    bytes_before: int = 0      # every op reads its operands and writes its result
    bytes_after: int = 0       # every kernel does
    memory_naive: int = 0      # every intermediate its own buffer
    memory_planned: int = 0    # the arena
    memory_bound: int = 0      # most live bytes at any time
    cached: bool = False       # native code came from the cache
    hint: dict[str, int] = field(default_factory=dict)


@dataclass
class Compiled:
    """A compiled graph. Call it with arrays in the order of `captured.inputs`; the outputs come as a tuple."""

    captured: Graph
    optimized: Graph
    options: Options
    report: Report

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        raise NotImplementedError

    def text(self, stage: str) -> str:
        """The program at a stage: graph (as captured), optimized, loops, program, llvm, asm."""
        from planish.ir import print_graph
        return {"graph": lambda: print_graph(self.captured), "optimized": lambda: print_graph(self.optimized)}[stage]()


class LibraryProgram(Compiled):
    """The library strategy: each op by its NumPy kernel, zero build time."""

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        return interpret(self.optimized, arrays)


def compile_graph(graph: Graph, options: Options = Options(), *, hint: dict[str, int] | None = None) -> Compiled:
    """Compile a graph. `hint` gives typical sizes of its symbols, for choices and for the report's figures."""
    start = perf_counter()
    verify(graph, "capture")
    report = Report(captured_nodes=len(graph.nodes()), hint=dict(hint or {}))
    report.seconds["verify"] = perf_counter() - start
    if options.strategy == "library":
        return LibraryProgram(graph, graph, options, report)
    raise NotImplementedError("native")


