"""From an optimised graph to a program: prepare, fuse, schedule each kernel, plan the memory."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.schedule.buffers import Buffers
from planish.schedule.choose import schedule_loops
from planish.schedule.contraction import schedule_contraction
from planish.schedule.fuse import fuse
from planish.schedule.kernel import Kernel
from planish.schedule.layout import assign_layouts
from planish.schedule.machine import Machine
from planish.schedule.plan import MemoryReport, plan
from planish.schedule.prepare import prepare
from planish.schedule.program import Program
from planish.schedule.sorting import with_work


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
    start = perf_counter()
    seconds: dict[str, float] = {}
    graph, outputs = _distinct_outputs(prepare(graph))
    fused = fuse(graph, hint, disable=disable)
    seconds["fuse"], start = perf_counter() - start, perf_counter()
    kernels: list[Kernel] = []
    buffers = Buffers(fused.buffers, fused.views)
    outputs_of = {fused.buffers[n].name for n in graph.roots}
    unscheduled = fused.kernels
    if "assign_layouts" not in disable:
        unscheduled = assign_layouts(unscheduled, buffers, outputs_of, hint, fused.decisions)
    for kernel in unscheduled:
        made = [kernel] if "schedule" in disable else schedule_kernel(kernel, machine, hint, buffers, disable)
        made = [with_work(k, machine.threads, buffers) for k in made]
        if observe is not None:
            observe(kernel, made[-1])
        kernels += made
    seconds["schedule"], start = perf_counter() - start, perf_counter()
    program, memory = plan(graph, kernels, buffers, hint, disable=disable)
    seconds["plan"] = perf_counter() - start
    return Built(program, outputs, graph, memory, fused.decisions, seconds)


def schedule_kernel(kernel: Kernel, machine: Machine, hint: dict[str, int], buffers: Buffers,
                    disable: frozenset[str]) -> list[Kernel]:
    """The kernel with its schedule, after any kernels that prepare its operands (packing)."""
    tiled = None if "register_tile" in disable else schedule_contraction(kernel, machine, hint, buffers, disable)
    return tiled or [schedule_loops(kernel, machine, hint)]


def _distinct_outputs(graph: Graph) -> tuple[Graph, tuple[tuple[str, int], ...]]:
    """The graph with each computed output once and without reshapes at its end, and where each output is then."""
    computed: list[Node] = []
    where: list[tuple[str, int]] = []
    for output in graph.outputs:
        base = output
        while base.op.name == "reshape":
            base = base.operands[0]
        if base.op.name == "input":
            where.append(("input", graph.inputs.index(base)))
        elif base.op.name == "constant":
            where.append(("constant", 0))
        else:
            if base not in computed:
                computed.append(base)
            where.append(("program", computed.index(base)))
    return replace(graph, outputs=tuple(computed), output_names=()), tuple(where)
