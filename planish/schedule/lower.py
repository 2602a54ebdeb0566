"""From a prepared graph to steps: fuse, lay out, schedule each kernel, lower the graphs inside control ops.

In: a graph whose outputs are distinct roots. Out: steps without barriers, and the buffers they use. A graph
inside a control op becomes a region: its inputs are buffers from outside, and so are those its results go to.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from planish.ir.graph import Graph
from planish.ir.node import Node
from planish.schedule.attention_points import is_attention, schedule_points
from planish.schedule.beside import SideBySide
from planish.schedule.buffers import Buffers
from planish.schedule.causal import are_usual
from planish.schedule.choice import ANALYTIC, Choice
from planish.schedule.choose import schedule_loops, share_out
from planish.schedule.contraction import schedule_contraction
from planish.schedule.control import ControlLowering
from planish.schedule.fuse import Fused, fuse
from planish.schedule.kernel import Axis, Buffer, Kernel, Load, Stage, Store
from planish.schedule.layout import assign_layouts, in_memory_order
from planish.schedule.machine import Machine
from planish.schedule.on_the_way import on_the_way, waiting
from planish.schedule.panels import told_narrow
from planish.schedule.prepare import prepare
from planish.schedule.program import CONTROL, CheckStep, For, If, Launch, Step, every_step
from planish.schedule.rebuild import replace_buffers
from planish.schedule.sorting import with_work
from planish.schedule.strips import Cut, runs, told
from planish.types import BOOL, FLOAT32, TensorType, symbol, symbols_of

Where = tuple[tuple[str, int], ...]


def schedule_kernel(kernel: Kernel, machine: Machine, hint: dict[str, int], buffers: Buffers,
                    disable: frozenset[str], choice: Choice = ANALYTIC) -> list[Kernel]:
    """The kernel with its schedule, after any kernels that prepare its operands (packing)."""
    if is_attention(kernel):
        return [schedule_points(kernel, machine)]
    tiled: list[Kernel] | None = None
    if "register_tile" not in disable:
        tiled = schedule_contraction(kernel, machine, hint, buffers, disable, choice)
    return tiled or [schedule_loops(in_memory_order(kernel, buffers), machine, hint, choice)]


Chooser = Callable[[Kernel, Buffers], Choice]  # says how a kernel is to be scheduled, of what is to be told


def analytic(kernel: Kernel, buffers: Buffers) -> Choice:
    """Everything is decided here."""
    return ANALYTIC


@dataclass
class Lowering:
    """One build. `disable`, `observe` and `choose` are build_program's; it fills in `decisions` and
    `seconds`."""

    machine: Machine
    hint: dict[str, int]
    disable: frozenset[str] = frozenset()
    observe: Callable[[Kernel, Kernel], None] | None = None
    choose: Chooser = analytic
    decisions: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"fuse": 0.0, "schedule": 0.0})
    parts: int = 0
    waiting: dict[str, Kernel] = field(default_factory=dict)

    def whole(self, graph: Graph) -> tuple[list[Step], Buffers]:
        """The steps of a program's graph."""
        fused = self.fused(graph, "")
        buffers = Buffers(fused.buffers, fused.views)
        many = self.machine.threads if "schedule" not in self.disable else 1
        steps = self.steps(graph, fused, buffers, 1 if "strips" in self.disable else many)
        assert not self.waiting, f"{', '.join(self.waiting)}: computed by no kernel"
        if many > 1 and "beside" not in self.disable:
            fixed = {buffers.of[n].name for n in (*graph.inputs, *graph.outputs)} | buffers.constants.keys()
            steps = SideBySide(buffers, fixed, self.hint, many, self.decisions).steps(steps)
        return steps, buffers

    def new_prefix(self) -> str:
        self.parts += 1
        return f"r{self.parts}_"

    def fused(self, graph: Graph, prefix: str) -> Fused:
        start = perf_counter()
        fused = fuse(graph, self.hint, disable=self.disable, prefix=prefix)
        self.decisions += fused.decisions
        self.seconds["fuse"] += perf_counter() - start
        return fused

    def steps(self, graph: Graph, fused: Fused, buffers: Buffers, strips: int = 1) -> list[Step]:
        """The steps of a fused graph; `buffers` has its nodes, and takes what else is needed. Chains of
        kernels are cut in so many `strips`."""
        laid = iter(self.laid_out([k for k in fused.kernels if isinstance(k, Kernel)], graph, buffers))
        ordered = self.without_waiting(
            [one if isinstance(one, Node) else next(laid) for one in fused.kernels], graph, buffers)
        steps: list[Step] = []
        for one in runs(ordered, strips, buffers) if strips > 1 else ordered:
            if isinstance(one, Node):
                steps += ControlLowering(self, one, buffers).steps()
            elif isinstance(one, list):
                steps += self.chain(one, strips, buffers)
            elif one.name in fused.causal and "schedule" not in self.disable:
                steps += self.in_two_forms(one, fused.causal[one.name], buffers)
            else:
                steps += self.launches(one, buffers)
        return _with_checks(steps, graph.effects, buffers)

    def launches(self, kernel: Kernel, buffers: Buffers) -> list[Step]:
        made = self.after_waiting(self.scheduled(kernel, buffers), buffers)
        return [self.launch(k, buffers) for k in made]

    def without_waiting(self, ordered: list[Kernel | Node], graph: Graph,
                        buffers: Buffers) -> list[Kernel | Node]:
        """The kernels but for maps that wait for the product that may pack them."""
        if {"fuse", "schedule"} & self.disable:
            return ordered
        kept = {buffers.owner(name) for name in _fixed(graph, buffers)}
        found = waiting(ordered, buffers, self.hint, kept)
        self.waiting |= found
        waits = {id(k) for k in found.values()}
        return [one for one in ordered if id(one) not in waits]

    def after_waiting(self, kernels: list[Kernel], buffers: Buffers) -> list[Kernel]:
        """The kernels of a product, with what waited for it: inside the packing of its operand, or before."""
        for name in {buffers.owner(b.name) for k in kernels for b in k.inputs} & self.waiting.keys():
            one = self.waiting.pop(name)
            with_it = on_the_way(kernels, one, buffers, self.hint)
            if with_it is None:
                kernels = [*self.scheduled(one, buffers), *kernels]
                continue
            self.decisions.append(f"{one.name}: computed on the way into {kernels[-1].name}, "
                                  f"{one.outputs[0].type} less in memory")
            kernels = with_it
        return kernels

    def in_two_forms(self, kernel: Kernel, causal: Kernel, buffers: Buffers) -> list[Step]:
        """An attention whose mask is causal: without the mask where all it reads is of usual size."""
        causal = replace_buffers(causal, {b.name: b for b in kernel.arguments})
        usual = buffers.add(Buffer(f"{self.new_prefix()}usual", TensorType(BOOL))).name
        read = [b for b in causal.inputs if b.dtype is FLOAT32]
        look = self.region(are_usual([b.type for b in read]), [buffers.owner(b.name) for b in read], [usual],
                           buffers)
        then, otherwise = (tuple(self.launches(k, buffers)) for k in (causal, kernel))
        self.decisions.append(f"{kernel.name}: its mask is causal, {causal.name} does without it")
        return [*look, If(usual, then, otherwise)]

    def chain(self, cuts: list[Cut], strips: int, buffers: Buffers) -> list[Step]:
        """A parallel loop over strips of a chain, after what packs the operands that all strips read whole;
        where a strip would need to pack its own, the kernels one by one."""
        name = f"{self.new_prefix()}t"
        counter = symbol(name, 0, strips - 1)
        inside = buffers.copy()
        made = [self.scheduled(c.strip(strips, counter, inside), inside, one_thread=True) for c in cuts]
        packing = [kernel for kernels in made for kernel in kernels[:-1]]
        if (any(b.name in inside.slices for kernel in packing for b in kernel.arguments)
                or self.waits_inside(cuts, made, buffers)):
            return [s for c in cuts for s in self.launches(c.kernel, buffers)]
        buffers.take(inside)
        cut = [kernels[-1] for kernels in made]
        shared = [share_out(k, self.hint, self.machine) for k in packing]
        whole = self.after_waiting([*shared, *cut], buffers)[:-len(cut)]
        before, body = [self.launch(k, buffers) for k in whole], tuple(self.launch(k, buffers) for k in cut)
        self.decisions.append(told(cuts, strips, buffers))
        return [*before, For(symbols_of(counter)[name], strips, body, parallel=True)]

    def waits_inside(self, cuts: list[Cut], made: list[list[Kernel]], buffers: Buffers) -> bool:
        """Whether a map that waits would have to run in the loop over strips: it is read in pieces, or reads
        what the strips make."""
        read = {buffers.owner(b.name) for c in cuts for b in c.kernel.inputs} & self.waiting.keys()
        whole = {buffers.owner(b.name) for kernels in made for k in kernels for b in k.inputs}
        strips = {buffers.owner(b.name) for c in cuts for b in c.kernel.outputs}
        return bool(read - whole) or any(
            buffers.owner(b.name) in strips for name in read for b in self.waiting[name].inputs)

    def laid_out(self, kernels: list[Kernel], graph: Graph, buffers: Buffers) -> list[Kernel]:
        if "assign_layouts" in self.disable:
            return kernels
        return assign_layouts(kernels, buffers, _fixed(graph, buffers), self.hint, self.decisions)

    def scheduled(self, kernel: Kernel, buffers: Buffers, *, one_thread: bool = False) -> list[Kernel]:
        start = perf_counter()
        machine = replace(self.machine, threads=1) if one_thread else self.machine
        made = [kernel] if "schedule" in self.disable else schedule_kernel(
            kernel, machine, self.hint, buffers, self.disable, self.choose(kernel, buffers))
        made = [with_work(k, self.machine.threads, buffers) for k in made]
        self.decisions += told_narrow(made[-1])
        if self.observe is not None:
            self.observe(kernel, made[-1])
        self.seconds["schedule"] += perf_counter() - start
        return made

    def launch(self, kernel: Kernel, buffers: Buffers) -> Launch:
        launch = Launch(kernel, tuple(buffers.owner(b.name) for b in kernel.arguments), barrier=False)
        if not any(name in buffers.slices for name in launch.writes):
            return launch
        # A slice may start anywhere; streaming stores want whole cache lines.
        steps = tuple(s for s in kernel.steps if s.name != "stream")
        return replace(launch, kernel=replace(kernel, steps=steps))

    # --- regions

    def region(self, graph: Graph, inputs: Sequence[str], targets: Sequence[str | None],
               outside: Buffers) -> tuple[Step, ...]:
        """The steps of a graph inside a control op. `inputs` names the buffers its inputs are, `targets`
        those its results go to (None: not wanted), all of them known to `outside`."""
        wanted = [(o, t) for o, t in zip(graph.outputs, targets, strict=True) if t is not None]
        graph = replace(graph, outputs=tuple(o for o, _ in wanted), output_names=())
        graph, where = distinct_outputs(prepare(graph, self.hint))
        fused = self.fused(graph, self.new_prefix())
        inside = Buffers(fused.buffers, constants=dict(outside.constants), slices=dict(outside.slices))
        inside.views = {fused.buffers[n].name: name for n, name in zip(graph.inputs, inputs, strict=True)}
        copied: list[tuple[str, str, TensorType]] = []
        for (kind, k), (node, target) in zip(where, wanted):
            own = fused.buffers[graph.outputs[k]].name if kind == "program" else ""
            if own and own not in inside.views:
                inside.views[own] = target
            else:
                source = own or (inputs[k] if kind == "input" else self.constant(node, inside))
                copied.append((inside.owner(source), target, node.tensor))
        inside.views |= {view: inside.owner(of) for view, of in fused.views.items()}
        steps = self.steps(graph, fused, inside)
        steps += [self.copy(source, target, type_, inside) for source, target, type_ in copied]
        outside.include(inside)
        return tuple(steps)

    def constant(self, node: Node, inside: Buffers) -> str:
        """A buffer for a result that is a constant."""
        while node.op.name == "reshape":
            node = node.operands[0]
        return inside.add(Buffer(f"{self.new_prefix()}c", node.tensor), node.attributes).name

    def copy(self, source: str, target: str, type_: TensorType, buffers: Buffers) -> Step:
        """A launch that copies a buffer to another."""
        flat = type_.with_shape((type_.size,))
        old, new = Buffer("x", flat), Buffer("y", flat)
        axis = Axis("s0", type_.size)
        index = (0,) if type_.size == 1 else (axis.symbol,)
        stage = Stage("t0", (), Load(old, index), type_.dtype, store=Store(new, index))
        shared = () if type_.size == 1 else (axis,)
        kernel = Kernel(f"{self.new_prefix()}copy", shared, (stage,), (old,), (new,), ops=("copy",))
        if "schedule" not in self.disable:
            kernel = schedule_loops(kernel, self.machine, self.hint)
        return self.launch(kernel, replace(buffers, views={"x": source, "y": target}))


def _fixed(graph: Graph, buffers: Buffers) -> set[str]:
    """The buffers that others than kernels read or write."""
    control = [n for n in graph.nodes() if n.op.has("control")]
    items = {n for n in buffers.of if n.op.name == "item" and n.operands[0] in control}
    operands = {o for c in control for o in c.operands}
    return {buffers.of[n].name for n in (*graph.roots, *items, *operands)}


def distinct_outputs(graph: Graph) -> tuple[Graph, Where]:
    """The graph with each computed output once and without reshapes at its end, and where each output is
    then."""
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


def _with_checks(steps: list[Step], effects: Sequence[Node], buffers: Buffers) -> list[Step]:
    """Checks in their order, before the first loop or choice for which they are ready, else at the end."""
    waiting = [CheckStep(buffers.owner(buffers.of[n].name), 0, n.attributes.error, n.attributes.message)
               for n in effects]
    written: set[str] = set()
    placed: list[Step] = []
    for step in steps:
        while isinstance(step, CONTROL) and waiting and waiting[0].buffer in written:
            placed.append(waiting.pop(0))
        placed.append(step)
        written.update(n for s in every_step([step]) for n in s.writes)
    return placed + waiting
