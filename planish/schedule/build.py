"""From an optimised graph to a program: prepare, fuse, schedule each kernel, plan the memory."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from planish.ir.graph import Graph
from planish.schedule.kernel import Kernel
from planish.schedule.lower import Lowering, distinct_outputs
from planish.schedule.machine import Machine
from planish.schedule.plan import MemoryReport, plan
from planish.schedule.prepare import prepare
from planish.schedule.program import Program


@dataclass(frozen=True)
class Built:
    """`outputs` says how each of the graph's outputs is had: ("program", k): output k of the program, reshaped to the
    output's type; ("input", i) or ("constant", array's node): a copy."""

    program: Program | None
    outputs: tuple[tuple[str, int], ...]
    graph: Graph
    memory: MemoryReport
    decisions: list[str]
    seconds: dict[str, float]


def build_program(graph: Graph, machine: Machine, hint: dict[str, int], *, disable: frozenset[str] = frozenset(),
                  observe: Callable[[Kernel, Kernel], None] | None = None) -> Built:
    """The scheduled program of an optimised graph. `disable` may hold fuse, assign_layouts, schedule, prepack, in_place.

    `observe(before, after)` sees every kernel before and after its schedule.
    """
    graph, outputs = distinct_outputs(prepare(graph, hint))
    lowering = Lowering(machine, hint, disable, observe)
    steps, buffers = lowering.whole(graph)
    start = perf_counter()
    program, memory = plan(graph, steps, buffers, hint, disable=disable)
    seconds = {**lowering.seconds, "plan": perf_counter() - start}
    return Built(program, outputs, graph, memory, lowering.decisions, seconds)
