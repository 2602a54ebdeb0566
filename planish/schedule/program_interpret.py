"""The slow meaning of a program, in NumPy: its kernels interpreted on real bytes.

In: a program and arrays for its inputs. Out: its outputs. The arena is one array of bytes and buffers are
views of it, so a plan that lets two live values overlap gives wrong numbers here too. With `harsh`, what a
correct program never notices is made worse: memory whose value has had its last use holds 0xFF bytes (NaN),
and launches without a barrier between them run in reverse, as do the rounds of a parallel loop.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from planish.errors import ShapeError, SignatureError
from planish.ops.record import get_op
from planish.schedule.interpret import poisoned, run_kernel
from planish.schedule.kernel import Buffer
from planish.schedule.points import dim_values
from planish.schedule.program import (
    CONTROL,
    CheckStep,
    For,
    If,
    Launch,
    Place,
    Program,
    Step,
    Timeline,
    While,
    live_ranges,
)
from planish.types import UINT8, Dim, dtype_of


def interpret_program(program: Program, inputs: Sequence[np.ndarray], *,
                      harsh: bool = False) -> tuple[np.ndarray, ...]:
    """The outputs of a program. Raises SignatureError, ShapeError, IndexError, and what a check says."""
    return _Machine(program, [np.asarray(a) for a in inputs], harsh).run()


class _Machine:
    def __init__(self, program: Program, inputs: list[np.ndarray], harsh: bool):
        self.program, self.harsh = program, harsh
        self.places = program.places
        self.sizes = _bind(program, inputs)
        self.arena = poisoned(UINT8, (self.size(program.arena_bytes),))
        self.memory = {p.name: self.bytes_of(p, inputs) for p in program.buffers if p.kind != "slice"}
        self.timeline = Timeline(program.steps)
        self.live = live_ranges(program)

    def size(self, dim: Dim) -> int:
        return int(dim_values(dim, self.sizes))

    def bytes_of(self, place: Place, inputs: list[np.ndarray]) -> np.ndarray:
        if place.kind == "arena":
            start = self.size(place.offset)
            return self.arena[start:start + self.size(place.bytes)]
        if place.kind == "output":
            return poisoned(place.buffer.dtype, (self.size(place.buffer.type.size),)).view(np.uint8)
        array = (inputs if place.kind == "input" else self.program.constants)[place.position]
        order = place.buffer.order or tuple(range(array.ndim))
        return np.array(array.transpose(order), order="C").reshape(-1).view(np.uint8)

    def bytes_at(self, name: str) -> np.ndarray:
        """The memory of a buffer; of a slice, as the counters stand."""
        place = self.places[name]
        if place.kind != "slice":
            return self.memory[name]
        start = self.size(place.offset)
        return self.bytes_at(place.base)[start:start + self.size(place.bytes)]

    def view(self, name: str, buffer: Buffer) -> np.ndarray:
        """The memory of the buffer `name` as `buffer` looks at it."""
        order = buffer.order or tuple(range(len(buffer.shape)))
        shape = [self.size(d) for d in buffer.shape]
        array = self.bytes_at(name).view(buffer.dtype.numpy).reshape([shape[a] for a in order])
        return array.transpose(np.argsort(order).tolist())

    def run(self) -> tuple[np.ndarray, ...]:
        self.steps(self.program.steps)
        return tuple(self.view(name, self.places[name].buffer).copy() for name in self.program.outputs)

    def steps(self, steps: Sequence[Step]) -> None:
        for phase, group in groupby(steps, key=lambda step: self.timeline.phase_of[id(step)]):
            together = list(group)
            for step in reversed(together) if self.harsh else together:
                self.step(step)
            if not isinstance(together[0], CONTROL):
                self.forget(phase)

    def step(self, step: Step) -> None:
        if isinstance(step, Launch):
            self.launch(step)
        elif isinstance(step, CheckStep):
            self.check(step)
        elif isinstance(step, If):
            self.steps(step.then if self.holds(step) else step.otherwise)
        elif isinstance(step, For):
            rounds = range(self.size(step.length))
            backwards = step.reverse or (step.parallel and self.harsh)
            for i in reversed(rounds) if backwards else rounds:
                self.sizes[step.counter.name] = i
                self.steps(step.body)
        else:
            self.steps(step.condition)
            while self.holds(step):
                self.steps(step.body)
                self.steps(step.condition)

    def holds(self, step: If | While) -> bool:
        holds = bool(self.bytes_at(step.predicate).view(bool)[0])
        self.forget(self.timeline.phase_of[id(step)])
        return holds

    def launch(self, step: Launch) -> None:
        arguments = zip(step.kernel.arguments, step.arguments, strict=True)
        memory = {buffer.name: self.view(name, buffer) for buffer, name in arguments}
        run_kernel(step.kernel, memory, self.sizes)

    def check(self, step: CheckStep) -> None:
        check = get_op("check")
        attributes = check.make_attributes({"error": step.error, "message": step.message})
        check.evaluate(attributes, self.bytes_at(step.buffer).view(bool)[0])

    def forget(self, phase: int) -> None:
        """Spoil the memory of values after their last use, but where one written in their place lives on.
        What came into a loop from before it is needed in the next round."""
        if not self.harsh:
            return
        arena = {name: span for name, span in self.live.items() if self.places[name].kind == "arena"}
        around = [start for start, stop in self.timeline.loops if start <= phase <= stop]
        kept = {self.places[name].offset for name, (first, last) in arena.items() if first == phase < last}
        for name, (first, last) in arena.items():
            if last == phase and first >= max(around, default=0) and self.places[name].offset not in kept:
                self.memory[name][:] = 0xFF


def _bind(program: Program, inputs: list[np.ndarray]) -> dict[str, int]:
    """symbol -> size by the shapes of the inputs. Raises SignatureError and ShapeError."""
    if len(inputs) != len(program.inputs):
        raise SignatureError(f"{program.name} takes {len(program.inputs)} inputs; {len(inputs)} were given")
    buffers = [program.places[name].buffer for name in program.inputs]
    symbols = {s.name for s in program.symbols}
    pairs = [pair for b, a in zip(buffers, inputs) for pair in zip(b.shape, a.shape)]
    sizes = {str(dim): size for dim, size in pairs if str(dim) in symbols}
    for buffer, array in zip(buffers, inputs):
        if dtype_of(array) is not buffer.dtype:
            raise SignatureError(f"input {buffer.name}: expected {buffer.dtype.name}, got {array.dtype.name}")
        expected = tuple(dim_values(d, sizes) for d in buffer.shape)
        if array.shape != expected:
            raise ShapeError(f"input {buffer.name}: expected shape {expected}, got {array.shape}")
    return sizes
