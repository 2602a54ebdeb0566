"""What each launch of a program took, left by its body in one more output.

In: a program, and the buffer for its times (`with_times`). Out: instructions around every launch. The buffer
is int64 [threads, 2 * launches + 3]; each thread that runs writes its own row:

    ticks of the machine's clock spent in launch i, in the order of `every_step`   launches
    how often launch i ran; what all threads run together counts on thread 0        launches
    the clock when the body began, and when it ended                                2
    how many threads run                                                            1
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from planish.codegen.llvm.builder import Builder, Value
from planish.schedule.kernel import Buffer
from planish.schedule.program import Launch, Place, Program, every_step
from planish.types import INT64, TensorType

TIMES = "times"  # the buffer; no other is called so
WORD = INT64.itemsize


def launches_of(program: Program) -> list[Launch]:
    """The launches, in the order in which they are timed; those of loops once."""
    return [s for s in every_step(program.steps) if isinstance(s, Launch)]


def type_of_times(program: Program, threads: int) -> TensorType:
    return TensorType(INT64, (threads, 2 * len(launches_of(program)) + 3))


def with_times(program: Program, threads: int) -> Program:
    """The program with one output more, for the times of at most so many threads."""
    buffer = Buffer(TIMES, type_of_times(program, threads))
    place = Place(buffer, "output", len(program.outputs))
    return replace(program, outputs=(*program.outputs, TIMES), buffers=(*program.buffers, place))


class Clocks:
    """Writes the instructions of one body: first what clears a thread's row and notes when it began."""

    def __init__(self, b: Builder, program: Program, table: Value):
        self.b = b
        self.numbers = {id(launch): i for i, launch in enumerate(launches_of(program))}
        self.words = 2 * len(self.numbers)
        self.tid = b.parameters[1]
        self.row = b.gep("i64", table, b.mul(self.tid, b.i64(self.words + 3)))
        loop = b.loop(b.i64(0), b.i64(self.words), b.i64(1), hint="clear")
        b.store(b.i64(0), b.gep("i64", self.row, loop.index), WORD)
        loop.end()
        b.store(b.parameters[2], self.at(self.words + 2), WORD)
        self.note(self.words)

    def close(self) -> None:
        self.note(self.words + 1)

    def note(self, word: int) -> None:
        self.b.store(self.now(), self.at(word), WORD)

    @contextmanager
    def around(self, launch: Launch, is_alone: bool) -> Iterator[None]:
        """Around the instructions of a launch, which a thread runs alone or together with the others."""
        b, number = self.b, self.numbers[id(launch)]
        start = self.now()
        yield
        self.add(number, b.bin("sub", self.now(), start))
        counts = b.i64(1) if is_alone else b.cast("zext", b.cmp("icmp eq", self.tid, b.i64(0)), "i64")
        self.add(len(self.numbers) + number, counts)

    def add(self, word: int, amount: Value) -> None:
        at = self.at(word)
        self.b.store(self.b.add(self.b.load("i64", at, WORD), amount), at, WORD)

    def at(self, word: int) -> Value:
        return self.b.gep("i64", self.row, self.b.i64(word))

    def now(self) -> Value:
        """A clock that never stops, in ticks of its own; ARM lets no program read the one of its cycles."""
        if self.b.module.triple.startswith("x86_64"):
            return self.b.call("llvm.readcyclecounter", "i64", [])
        self.b.module.globals.setdefault("!2", '!2 = !{!"cntvct_el0"}')
        self.b.module.declare("llvm.read_volatile_register.i64", "i64", ["metadata"])
        return self.b.value("i64", "call i64 @llvm.read_volatile_register.i64(metadata !2)")
