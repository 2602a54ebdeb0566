"""Memory: what values share, and where they live.

In: kernels in order with their buffers. Out: a program. Values take turns in one arena by their live ranges;
a pointwise kernel may write over an input it reads for the last time; reshapes are views and take no memory.
Static sizes are placed greedily by size (Pisarchyk & Lee, Efficient memory management for deep neural net
inference, 2020); of symbolic sizes those written alike take turns.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count, product

from planish.ir.graph import Graph
from planish.ops.content import Content
from planish.schedule.buffers import Buffers
from planish.schedule.kernel import Kernel, Load, Stage, stage_values, walk
from planish.schedule.program import (
    CONTROL,
    CheckStep,
    Launch,
    Place,
    Program,
    Step,
    Timeline,
    base_of,
    every_step,
    together,
)
from planish.schedule.scalars import hinted
from planish.types import Dim, is_static

ALIGN = 64


@dataclass
class MemoryReport:
    """Bytes at the hinted sizes: every intermediate on its own, the arena, and the most that is live at
    once."""

    naive: int = 0
    planned: int = 0
    bound: int = 0
    in_place: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Value:
    """An intermediate: its bytes and the first and last phase that touches it."""

    name: str
    bytes: Dim
    first: int
    last: int

    def overlaps(self, other: Value) -> bool:
        return self.first <= other.last and other.first <= self.last


def plan(graph: Graph, steps: list[Step], buffers: Buffers, hint: dict[str, int], *,
         disable: frozenset[str] = frozenset()) -> tuple[Program, MemoryReport]:
    """The program of a prepared graph whose outputs are distinct roots, from its steps without barriers."""
    return _Planner(graph, steps, buffers, hint, disable).run()


class _Planner:
    def __init__(self, graph: Graph, steps: list[Step], buffers: Buffers, hint: dict[str, int],
                 disable: frozenset[str]):
        self.graph, self.given, self.buffers, self.hint = graph, steps, buffers, hint
        self.disable = disable
        self.bases = buffers.bases
        self.report = MemoryReport()

    def run(self) -> tuple[Program, MemoryReport]:
        steps = numbered(with_barriers(self.given, self.bases))
        self.timeline = Timeline(steps)
        places, constants = self.fixed_places(steps)
        values = self.values({p.name for p in places})
        same = self.in_place(values)
        offsets, arena = self.offsets(values, same)
        by_name = self.buffers.by_name
        places += [Place(by_name[name], "arena", 0, offset) for name, offset in offsets.items()]
        used = self.used_slices(steps)
        places += [Place(by_name[n], "slice", 0, offset, base)
                   for n, (base, offset) in self.buffers.slices.items() if n in used]
        self.measure(values, arena)
        inputs, outputs = (tuple(self.buffers.of[n].name for n in nodes)
                           for nodes in (self.graph.inputs, self.graph.outputs))
        program = Program(self.graph.name, inputs, outputs, tuple(places), tuple(steps), tuple(constants),
                          tuple(self.graph.symbols().values()), arena)
        return program, self.report

    # --- places

    def used_slices(self, steps: Sequence[Step]) -> set[str]:
        """The slices that steps touch, and those that these are pieces of."""
        waiting = {name for s in every_step(steps) for name in (*s.reads, *s.writes)}
        found: set[str] = set()
        while waiting:
            found |= waiting & self.bases.keys()
            waiting = {self.bases[n] for n in waiting if n in self.bases}
        return found

    def fixed_places(self, steps: Sequence[Step]) -> tuple[list[Place], list[Content]]:
        places = [Place(self.buffers.of[n], "input", i) for i, n in enumerate(self.graph.inputs)]
        places += [Place(self.buffers.of[n], "output", i) for i, n in enumerate(self.graph.outputs)]
        used = {base_of(name, self.bases) for s in every_step(steps) for name in (*s.reads, *s.writes)}
        by_name = self.buffers.by_name
        constants = [name for name in self.buffers.constants if name in used]
        places += [Place(by_name[name], "constant", i) for i, name in enumerate(constants)]
        return places, [self.buffers.constants[name] for name in constants]

    def values(self, fixed: set[str]) -> dict[str, Value]:
        return _values(self.timeline, self.buffers, fixed)

    # --- in place

    def in_place(self, values: dict[str, Value]) -> dict[str, str]:
        """output -> the input whose memory it takes."""
        same: dict[str, str] = {}
        if "in_place" in self.disable:
            return same
        taken: set[str] = set()
        touches = self.touches()
        for phase, step in self.timeline.entries:
            if not isinstance(step, Launch):
                continue
            for new, old in product(step.writes, step.reads):
                fits = {new, old} <= values.keys() and old not in taken and new not in same \
                    and touches[old, phase] == 1 and values[old].bytes == values[new].bytes \
                    and values[old].first < values[old].last == phase == values[new].first
                if fits and writes_over(step, new, old):
                    same[new] = old
                    taken.add(old)
                    self.report.in_place.append(f"{new} over {old}")
                    break
        return same

    def touches(self) -> Counter[tuple[str, int]]:
        """(buffer, phase) -> how many steps of the phase touch it."""
        found: Counter[tuple[str, int]] = Counter()
        for phase, step in self.timeline.entries:
            found.update((base_of(name, self.bases), phase) for name in {*step.reads, *step.writes})
        return found

    # --- offsets

    def offsets(self, values: dict[str, Value], same: dict[str, str]) -> tuple[dict[str, Dim], Dim]:
        roots: dict[str, list[Value]] = {}
        for name in values:
            owner = name
            while owner in same:
                owner = same[owner]
            roots.setdefault(owner, []).append(values[name])
        merged = [Value(owner, values[owner].bytes, min(v.first for v in group), max(v.last for v in group))
                  for owner, group in roots.items()]
        merged, slots = self.in_slots(merged)
        placed, static_end = _place_static([(v.bytes, v) for v in merged if is_static(v.bytes)])
        symbolic, end = _place_symbolic([v for v in merged if not is_static(v.bytes)], static_end)
        placed |= symbolic
        return {v.name: placed[slots.get(owner, owner)] for owner, group in roots.items() for v in group}, end

    def in_slots(self, values: list[Value]) -> tuple[list[Value], dict[str, str]]:
        """The values with those inside a parallel loop put together, and value -> the slot that it is in.
        The rounds of such a loop are at different places of it: values that take turns have equal sizes, so
        that a round's piece is the same memory in each, and no other value takes it before all rounds are
        over."""
        slots: dict[str, str] = {}
        for span in self.timeline.parallel:
            inside = [v for v in values if span[0] <= v.first and v.last <= span[1]]
            values = [v for v in values if v not in inside]
            made: list[list[Value]] = []
            for value in sorted(inside, key=lambda v: (v.first, v.name)):
                alike = (s for s in made if s[0].bytes == value.bytes and not any(map(value.overlaps, s)))
                slot = next(alike, None)
                if slot is None:
                    made.append(slot := [])
                slot.append(value)
            values += [replace(s[0], first=span[0], last=span[1]) for s in made]
            slots |= {v.name: s[0].name for s in made for v in s}
        return values, slots

    def measure(self, values: dict[str, Value], arena: Dim) -> None:
        self.report.naive = sum(hinted(v.bytes, self.hint) for v in values.values())
        self.report.planned = hinted(arena, self.hint)
        self.report.bound = _most_alive(values, self.hint)


def _values(timeline: Timeline, buffers: Buffers, fixed: set[str]) -> dict[str, Value]:
    ranges = timeline.live_ranges(buffers.bases)
    sizes = {b.name: _aligned(b.type.size * b.dtype.itemsize) for b in buffers.by_name.values()}
    return {name: Value(name, sizes[name], *span) for name, span in ranges.items() if name not in fixed}


def _most_alive(values: dict[str, Value], hint: dict[str, int]) -> int:
    sizes = {v.name: hinted(v.bytes, hint) for v in values.values()}
    change: Counter[int] = Counter()  # phase -> bytes that begin to live less those that no longer do
    for value in values.values():
        change[value.first] += sizes[value.name]
        change[value.last + 1] -= sizes[value.name]
    return max(accumulate(change[p] for p in sorted(change)), default=0)


def least_memory(steps: Sequence[Step], buffers: Buffers, fixed: set[str], hint: dict[str, int]) -> int:
    """Bytes that no plan of steps with barriers can be smaller than; `fixed` are buffers that take none of
    the arena."""
    return _most_alive(_values(Timeline(steps), buffers, fixed), hint)


# --- order and barriers

def with_barriers(given: Sequence[Step], bases: Mapping[str, str]) -> tuple[Step, ...]:
    """Barriers where a launch touches what an earlier one wrote, or writes what an earlier one reads, and
    before whatever is not a launch; inside loops and choices too. Launches beside each other wait as one.
    `bases`: slice -> the buffer it is a piece of."""
    steps: list[Step] = []
    written: set[str] = set()
    read: set[str] = set()
    for group in together(given):
        if isinstance(group[0], Launch):
            reads, writes = ({base_of(n, bases) for n in names} for names in
                             ([n for s in group for n in s.reads], [n for s in group for n in s.writes]))
            clash = bool(written & (reads | writes) or read & writes)
        else:
            group = (_separated(group[0], bases),)
            clash, reads, writes = True, set(), set()
        if clash:
            _wait(steps)
            written, read = set(), set()
        written, read = written | writes, read | reads
        steps += group
    _wait(steps)
    return tuple(steps)


def _separated(step: Step, bases: Mapping[str, str]) -> Step:
    return step.with_regions(lambda steps: with_barriers(steps, bases)) if isinstance(step, CONTROL) else step


def _wait(steps: list[Step]) -> None:
    """What follows waits for the steps so far."""
    if steps and isinstance(steps[-1], Launch):
        steps[-1] = replace(steps[-1], barrier=True)


def numbered(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Each check with a code of its own, from 1 up."""
    codes = count(1)

    def coded(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(map(one, steps))

    def one(step: Step) -> Step:
        if isinstance(step, CONTROL):
            return step.with_regions(coded)
        return replace(step, code=next(codes)) if isinstance(step, CheckStep) else step
    return coded(steps)


def _aligned(size: Dim) -> Dim:
    return (size + ALIGN - 1) // ALIGN * ALIGN


def _place_static(values: list[tuple[int, Value]]) -> tuple[dict[str, Dim], int]:
    """Where values of so many bytes lie, and their end. Largest first, each in the smallest gap that fits
    between those it is alive with."""
    placed: list[tuple[int, int, Value]] = []   # start, end
    for size, value in sorted(values, key=lambda v: (-v[0], v[1].first, v[1].name)):
        start = _best_gap(sorted((a, b) for a, b, v in placed if v.overlaps(value)), size)
        placed.append((start, start + size, value))
    return {v.name: start for start, _, v in placed}, max((end for _, end, _ in placed), default=0)


def _best_gap(busy: list[tuple[int, int]], size: int) -> int:
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in busy:
        gap = start - end
        if gap >= size and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, stop)
    return end if best is None else best[1]


def _place_symbolic(values: Iterable[Value], start: Dim) -> tuple[dict[str, Dim], Dim]:
    """Values of one size expression take turns in slots; slots stand one after another."""
    slots: list[tuple[Dim, Dim, list[Value]]] = []
    placed: dict[str, Dim] = {}
    for value in sorted(values, key=lambda v: (v.first, v.name)):
        alike = (s for s in slots if s[1] == value.bytes)
        slot = next((s for s in alike if not any(v.overlaps(value) for v in s[2])), None)
        if slot is None:
            slot = (start, value.bytes, [])
            slots.append(slot)
            start = start + value.bytes
        slot[2].append(value)
        placed[value.name] = slot[0]
    return placed, start


def writes_over(launch: Launch, new: str, old: str) -> bool:
    """Whether a launch may write its result `new` over the buffer `old`: whatever it reads of it, it reads
    first."""
    pairs = set(_overwritable(launch.kernel))
    targets = [b.name for b, name in zip(launch.kernel.outputs, launch.writes, strict=True) if name == new]
    sources = [b.name for b, name in zip(launch.kernel.inputs, launch.reads, strict=True) if name == old]
    return all(pair in pairs for pair in product(targets, sources))


def _overwritable(kernel: Kernel) -> list[tuple[str, str]]:
    """(output, input) pairs of a pointwise kernel where the input is read only at the point that is
    written."""
    stages = [s for s in kernel.stages if isinstance(s, Stage) and not s.axes]
    if kernel.tile is not None or kernel.serial or len(stages) < len(kernel.stages):
        return []
    if any(s.name == "stream" for s in kernel.steps):
        return []
    pairs = []
    loads = [(at, x) for at, s in enumerate(stages) for x in walk(*stage_values(s)) if isinstance(x, Load)]
    for written, stage in enumerate(stages):
        store = stage.store
        if store is None or store.guard is not None or store.update:
            continue
        for source in kernel.inputs:
            reads = [(at, x.index) for at, x in loads if x.buffer.name == source.name]
            here = bool(reads) and all(at <= written and index == store.index for at, index in reads)
            if here and source.shape == store.buffer.shape and source.strides == store.buffer.strides \
                    and source.dtype.itemsize == store.buffer.dtype.itemsize:
                pairs.append((store.buffer.name, source.name))
    return pairs
