"""The program IR: kernels launched in order, control flow around them, and where every buffer lives.

A program runs its steps in order. Launches without a barrier between them may run at the same time; a check,
a choice or a loop waits for all before it, and what follows waits for it. Buffers are inputs and outputs of
the call, constants, pieces of one arena of bytes that values take turns in, or slices: a loop's view of one
piece of another buffer. Sizes and offsets may depend on symbols, which the shapes of the inputs bind; the
offset of a slice also on the counters of loops.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planish.ops.content import Content
from planish.schedule.kernel import Buffer, Kernel
from planish.types import Dim, Symbol

Kind = Literal["input", "output", "constant", "arena", "slice"]


@dataclass(frozen=True)
class Place:
    """Where a buffer lives: input, output or constant `position`, or at `offset` bytes of the arena or, for a
    slice, of the buffer `base`."""

    buffer: Buffer
    kind: Kind
    position: int = 0
    offset: Dim = 0
    base: str = ""

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def bytes(self) -> Dim:
        return self.buffer.type.size * self.buffer.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Launch:
    """Run a kernel on buffers, named in the order of `kernel.arguments`; with a
    `barrier`, what follows waits for it. `beside`: threads share out its work and that of the launch that
    follows as one (beside.py).

    A buffer may stand for one of another shape with as many elements: the same memory, looked at differently.
    """

    kernel: Kernel
    arguments: tuple[str, ...]
    barrier: bool = True
    beside: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffers it reads; an output that is also an input of the kernel is among them."""
        return self.arguments[:len(self.kernel.inputs)]

    @property
    def writes(self) -> tuple[str, ...]:
        return self.arguments[len(self.kernel.inputs):]


@dataclass(frozen=True)
class CheckStep:
    """Go on only if the bool scalar in `buffer` is true; else stop with status `code`, `error(message)`."""

    buffer: str
    code: int
    error: str
    message: str

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def writes(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class If:
    """Run one of two sequences of steps, as the bool scalar in `predicate` says."""

    predicate: str
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]

    @property
    def regions(self) -> tuple[tuple[Step, ...], ...]:
        return self.then, self.otherwise

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.predicate,)

    @property
    def writes(self) -> tuple[str, ...]:
        return ()

    def with_regions(self, change: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> If:
        return replace(self, then=change(self.then), otherwise=change(self.otherwise))


@dataclass(frozen=True, eq=False)
class While:
    """Run `condition`, and while it leaves true in the bool scalar `predicate`, `body` and `condition`
    again. A check that fails inside ends it."""

    condition: tuple[Step, ...]
    predicate: str
    body: tuple[Step, ...]

    @property
    def regions(self) -> tuple[tuple[Step, ...], ...]:
        return self.condition, self.body

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.predicate,)

    @property
    def writes(self) -> tuple[str, ...]:
        return ()

    def with_regions(self, change: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> While:
        return replace(self, condition=change(self.condition), body=change(self.body))


@dataclass(frozen=True, eq=False)
class For:
    """Run `body` once for each value of `counter` from 0 up to `length`, or down to 0 from the end if
    `reverse`. A check that fails inside ends it.

    The rounds of a `parallel` loop are independent and shared out among threads; each runs its launches in
    order, on one thread."""

    counter: Symbol
    length: Dim
    body: tuple[Step, ...]
    reverse: bool = False
    parallel: bool = False

    reads = writes = ()

    @property
    def regions(self) -> tuple[tuple[Step, ...], ...]:
        return (self.body,)

    def with_regions(self, change: Callable[[tuple[Step, ...]], tuple[Step, ...]]) -> For:
        return replace(self, body=change(self.body))


Control = If | While | For
Step = Launch | CheckStep | Control
CONTROL = (If, While, For)


def every_step(steps: Iterable[Step]) -> Iterator[Step]:
    """The steps and, before each that has them, those inside it."""
    for step in steps:
        if isinstance(step, CONTROL):
            yield from (s for region in step.regions for s in every_step(region))
        yield step


def together(steps: Iterable[Step]) -> Iterator[tuple[Step, ...]]:
    """The steps in order, launches beside each other in one tuple."""
    group: list[Step] = []
    for step in steps:
        group.append(step)
        if not (isinstance(step, Launch) and step.beside):
            yield tuple(group)
            group = []
    if group:
        yield tuple(group)


@dataclass(frozen=True, eq=False)
class Program:
    """`inputs` and `outputs` name buffers in order of the call; an output may be an input or named twice."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[Place, ...]
    steps: tuple[Step, ...]
    contents: tuple[Content, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    arena_bytes: Dim = 0

    @property
    def constants(self) -> tuple[np.ndarray, ...]:
        """The arrays of the constants."""
        return tuple(c.array for c in self.contents)

    @property
    def places(self) -> dict[str, Place]:
        return {p.name: p for p in self.buffers}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels, in order of their first launch."""
        launched = [s.kernel for s in every_step(self.steps) if isinstance(s, Launch)]
        return tuple({id(kernel): kernel for kernel in launched}.values())

    @property
    def counters(self) -> tuple[Symbol, ...]:
        return tuple(s.counter for s in every_step(self.steps) if isinstance(s, For))

    @property
    def slices(self) -> dict[str, str]:
        """slice -> the buffer it is a piece of."""
        return {p.name: p.base for p in self.buffers if p.kind == "slice"}


class Timeline:
    """Steps and the phases they run in; no barrier stands inside a phase. Phases are numbered as written,
    not as run: a loop is one span of them (`loops`; those whose rounds run at the same time are in `parallel`
    too). A choice and a loop decide in a phase of their own, after a `while`'s condition."""

    def __init__(self, steps: Sequence[Step]):
        self.entries: list[tuple[int, Step]] = []
        self.loops: list[tuple[int, int]] = []
        self.parallel: list[tuple[int, int]] = []
        self.end = self._add(steps, 0)
        self.phase_of = {id(step): phase for phase, step in self.entries}

    def _add(self, steps: Sequence[Step], phase: int) -> int:
        """Enter steps from `phase` on; the first phase after them."""
        used = False  # by launches that nothing separates from what follows
        for step in steps:
            if isinstance(step, Launch):
                self.entries.append((phase, step))
                used = not step.barrier
                phase += step.barrier
            else:
                phase = self._separate(step, phase + used)
                used = False
        return phase + used

    def _separate(self, step: Step, phase: int) -> int:
        """Enter a step that waits for all before it."""
        start = phase
        if isinstance(step, While):
            phase = self._add(step.condition, phase)
        self.entries.append((phase, step))
        phase += 1
        inside = step.regions if isinstance(step, CONTROL) else ()
        for region in inside[isinstance(step, While):]:
            phase = self._add(region, phase)
        if isinstance(step, (While, For)):
            self.loops.append((start, phase - 1))
        if isinstance(step, For) and step.parallel:
            self.parallel.append((start, phase - 1))
        return phase

    def live_ranges(self, slices: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        """buffer -> the first and last phase that touches it. What is used both inside and outside of a loop
        lives from its first phase to its last; a slice counts as the buffer that it is a piece of."""
        found: dict[str, tuple[int, int]] = {}
        for phase, step in self.entries:
            for name in (*step.reads, *step.writes):
                name = base_of(name, slices)
                found[name] = (found.get(name, (phase, phase))[0], phase)
        for start, stop in self.loops:  # inner ones first
            for name, (first, last) in found.items():
                meets = first <= stop and start <= last
                if meets and not (start <= first and last <= stop):
                    found[name] = (min(first, start), max(last, stop))
        return found


def base_of(name: str, slices: Mapping[str, str]) -> str:
    """The buffer in whose memory a buffer lies."""
    while name in slices:
        name = slices[name]
    return name


def phases(program: Program) -> list[tuple[int, Step]]:
    """Each step, those inside loops and choices too, with its phase."""
    return Timeline(program.steps).entries


def live_ranges(program: Program) -> dict[str, tuple[int, int]]:
    """buffer name -> the first and last phase that touches it; the outputs live on after the last phase."""
    timeline = Timeline(program.steps)
    found = timeline.live_ranges(program.slices)
    return {n: (first, timeline.end if n in program.outputs else last) for n, (first, last) in found.items()}
