"""From an optimised graph to a program: prepare, fuse, schedule each kernel, plan the memory."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from planish.errors import PlanishError
from planish.ir.graph import Graph
from planish.schedule.kernel import Kernel
from planish.schedule.lower import Chooser, Lowering, analytic, distinct_outputs
from planish.schedule.machine import Machine
from planish.schedule.plan import MemoryReport, plan
from planish.schedule.prepare import prepare
from planish.schedule.program import Program

# The steps that can be switched off: where each would be taken, the plainest code is made instead.
SWITCHES = ("fuse", "assign_layouts", "strips", "beside", "schedule", "register_tile", "prepack", "widen",
            "in_place")


@dataclass(frozen=True)
class Built:
    """`outputs` says how each of the graph's outputs is had: ("program", k): output k of the program,
    reshaped to the output's type; ("input", i): a copy of input i; ("constant", 0): a copy of the constant
    that it is. A graph that computes nothing has a program without steps."""

    program: Program
    outputs: tuple[tuple[str, int], ...]
    graph: Graph
    memory: MemoryReport
    decisions: list[str]
    seconds: dict[str, float]


def build_program(graph: Graph, machine: Machine, hint: dict[str, int], *,
                  disable: frozenset[str] = frozenset(),
                  observe: Callable[[Kernel, Kernel], None] | None = None,
                  choose: Chooser = analytic) -> Built:
    """The scheduled program of an optimised graph. `disable` may hold names of SWITCHES; PlanishError for
    others.

    `observe(before, after)` sees every kernel before and after its schedule; `choose(kernel, buffers)` may
    say how one is to be scheduled.
    """
    if unknown := sorted(disable - set(SWITCHES)):
        known = ", ".join(SWITCHES)
        raise PlanishError(f"the schedule has no step called {', '.join(unknown)}; it has {known}")
    graph, outputs = distinct_outputs(prepare(graph, hint))
    lowering = Lowering(machine, hint, disable, observe, choose)
    steps, buffers = lowering.whole(graph)
    start = perf_counter()
    program, memory = plan(graph, steps, buffers, hint, disable=disable)
    seconds = {**lowering.seconds, "plan": perf_counter() - start}
    return Built(program, outputs, graph, memory, lowering.decisions, seconds)
