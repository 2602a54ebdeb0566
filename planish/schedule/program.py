"""The program IR: kernels launched in order, and where every buffer lives.

A program runs its steps in order. Launches without a barrier between them may run at the same time. Buffers
are inputs and outputs of the call, constants, or pieces of one arena of bytes that values take turns in.
Sizes and offsets may depend on symbols, which the shapes of the inputs bind.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planish.schedule.kernel import Buffer, Kernel
from planish.types import Dim, Symbol

Kind = Literal["input", "output", "constant", "arena"]


@dataclass(frozen=True)
class Place:
    """Where a buffer lives: input, output or constant `position`, or at `offset` bytes of the arena."""

    buffer: Buffer
    kind: Kind
    position: int = 0
    offset: Dim = 0

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def bytes(self) -> Dim:
        return self.buffer.type.size * self.buffer.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Launch:
    """Run a kernel on buffers, named in the order of `kernel.arguments`; with a
    `barrier`, what follows waits for it.

    A buffer may stand for one of another shape with as many elements: the same memory, looked at differently.
    """

    kernel: Kernel
    arguments: tuple[str, ...]
    barrier: bool = True

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


Step = Launch | CheckStep


@dataclass(frozen=True, eq=False)
class Program:
    """`inputs` and `outputs` name buffers in order of the call; an output may be an input or named twice."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[Place, ...]
    steps: tuple[Step, ...]
    constants: tuple[np.ndarray, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    arena_bytes: Dim = 0

    @property
    def places(self) -> dict[str, Place]:
        return {p.name: p for p in self.buffers}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels, in order of their first launch."""
        return tuple({id(s.kernel): s.kernel for s in self.steps if isinstance(s, Launch)}.values())


def phases(program: Program) -> Iterator[tuple[int, Step]]:
    """Each step with its phase; no barrier stands inside a phase. A check waits for all before it."""
    phase = 0
    for step in program.steps:
        if isinstance(step, CheckStep):
            phase += 1
        yield phase, step
        phase += isinstance(step, CheckStep) or step.barrier


def live_ranges(program: Program) -> dict[str, tuple[int, int]]:
    """buffer name -> the first and last phase that touches it; the outputs live on after the last phase."""
    found: dict[str, tuple[int, int]] = {}
    phase = 0
    for phase, step in phases(program):
        for name in (*step.reads, *step.writes):
            found[name] = (found.get(name, (phase, phase))[0], phase)
    end = phase + 1
    return {n: (first, end if n in program.outputs else last) for n, (first, last) in found.items()}
