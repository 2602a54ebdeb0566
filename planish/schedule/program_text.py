"""The program IR as text: prints, and parses back to an equal program.

    program mlp(x) -> (y) where N in 1..64 {
      x: f32[N, 4] = input 0
      w: f32[4, 512] order(1, 0) = constant 0 @c0
      b: f32[2] = constant 1 [0.5, -1.0]
      t: f32[N, 512] = arena 128*N
      y: f32[N, 512] = output 0
      arena 2176*N
      k0(x, w) -> (t) no barrier
      check ok 1 IndexError 'index out of range'
      k1(t) -> (y)
      if p {
        k2(y) -> (z)
      } else {
        k3(y) -> (z)
      }
      while p {
        k4(z) -> (p)
      } do {
        k5(z) -> (z)
      }
      for i in N reversed {
        k6(x_i) -> (y_i)
      }
    }
    kernel k0(...) -> (...) {
      ...
    }

`x_i: f32[4] = slice x 16*i` is a piece of `x`. The rounds of a loop marked `parallel` are shared out among
threads. A launch is followed by a barrier unless it says no; one that says `beside` is shared out among
threads with the launch that follows.
Constants of up to 16 elements are written out; larger ones as `@c0`, kept in `program_constants`. The
kernels follow in the form of `schedule/text.py`.
"""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from planish.errors import ParseError
from planish.ops.content import Content
from planish.schedule.expression import Scope
from planish.schedule.kernel import Kernel
from planish.schedule.program import (
    CONTROL,
    CheckStep,
    Control,
    For,
    If,
    Launch,
    Place,
    Program,
    Step,
    While,
)
from planish.schedule.text import (
    code_lines,
    matched,
    parse_buffer,
    parse_kernel,
    parse_ranges,
    print_buffer,
    print_kernel,
    print_ranges,
    split_commas,
)
from planish.types import Dim, Symbol, evaluate_dim, python_number, symbol, symbols_of

INLINE = 16  # constants up to this many elements are written out


# --- printing

def print_program(program: Program, *, mark: Step | Place | None = None) -> str:
    """The text of a program and its kernels; `mark` puts an arrow before one step or buffer."""
    return "\n".join([print_steps(program, mark=mark), *map(print_kernel, program.kernels)])


def print_steps(program: Program, *, mark: Step | Place | None = None) -> str:
    """The text of a program without its kernels."""
    ranges = print_ranges(program.symbols)
    inputs, outputs = ", ".join(program.inputs), ", ".join(program.outputs)
    lines = [f"program {program.name}({inputs}) -> ({outputs}){ranges} {{"]
    lines += [_marked(_place(program, p), p is mark) for p in program.buffers]
    lines.append(f"  arena {program.arena_bytes}")
    lines += [_marked(line, marked) for line, marked in _steps(program.steps, mark)]
    return "\n".join([*lines, "}"])


def program_constants(program: Program) -> dict[str, np.ndarray]:
    """The large constants by the names the text gives them."""
    return {f"c{i}": c.array for i, c in enumerate(program.contents) if c.array.size > INLINE}


def _marked(line: str, is_mark: bool) -> str:
    return ("->" if is_mark else "  ") + line


def _steps(steps: Sequence[Step], mark: Step | Place | None) -> Iterator[tuple[str, bool]]:
    """The lines of steps, and which is marked."""
    for step in steps:
        if not isinstance(step, CONTROL):
            yield _step(step), step is mark
            continue
        for head, region in zip(_heads(step), step.regions, strict=True):
            yield head, step is mark and region is step.regions[0]
            yield from (("  " + line, marked) for line, marked in _steps(region, mark))
        yield "}", False


def _heads(step: Control) -> tuple[str, ...]:
    if isinstance(step, If):
        return f"if {step.predicate} {{", "} else {"
    if isinstance(step, While):
        return f"while {step.predicate} {{", "} do {"
    kind = " reversed" * step.reverse + " parallel" * step.parallel
    return (f"for {step.counter} in {step.length}{kind} {{",)


def _place(program: Program, place: Place) -> str:
    if place.kind == "slice":
        return f"{print_buffer(place.buffer)} = slice {place.base} {place.offset}"
    where = place.offset if place.kind == "arena" else place.position
    line = f"{print_buffer(place.buffer)} = {place.kind} {where}"
    if place.kind != "constant" or place.position >= len(program.contents):
        return line
    array = program.contents[place.position].array
    if array.size > INLINE:
        return f"{line} @c{place.position}"
    return f"{line} [{', '.join(map(_number, array.reshape(-1)))}]"


def _number(value: np.generic) -> str:
    return repr(python_number(value))


def _step(step: Launch | CheckStep) -> str:
    if isinstance(step, CheckStep):
        return f"check {step.buffer} {step.code} {step.error} {step.message!r}"
    sides = (", ".join(names) for names in (step.reads, step.writes))
    after = " beside" if step.beside else " no barrier" * (not step.barrier)
    return f"{step.kernel.name}({next(sides)}) -> ({next(sides)}){after}"


# --- parsing

_HEAD = re.compile(r"program (\w+)\((.*?)\) -> \((.*?)\)(?: where (.*))? \{$")
_PLACE = re.compile(r"(.*?) = (input|output|constant|arena) (.*?)(?: (\[.*\]|@c\d+))?$")
_SLICE = re.compile(r"(.*?) = slice (\w+) (.*)$")
_FOR = re.compile(r"for (\w+) in (.*?)( reversed)?( parallel)? \{$")
_CHOICE = re.compile(r"(if|while) (\w+) \{$")
_LAUNCH = re.compile(r"(\w+)\((.*)\) -> \((.*)\)( no barrier| beside)?$")
_CHECK = re.compile(r"check (\w+) (\d+) (\w+) (.*)$")


def parse_program(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Program:
    """The program a text stands for; `constants` are those of `program_constants`. Raises ParseError."""
    first, *rest = (c for c in re.split(r"(?m)^(?=program |kernel )", text) if c.strip())
    kernels = {k.name: k for k in map(parse_kernel, rest)}
    return _Parser(code_lines(first), kernels, constants or {}).program()


class _Parser:
    def __init__(self, lines: list[str], kernels: Mapping[str, Kernel], constants: Mapping[str, np.ndarray]):
        self.lines, self.at, self.kernels, self.given = lines, 1, kernels, constants
        self.scope = Scope()
        self.buffers: list[Place] = []
        self.constants: dict[int, np.ndarray] = {}
        self.arena: Dim = 0

    def program(self) -> Program:
        name, inputs, outputs, ranges = matched(_HEAD, self.lines[0], "the head of a program")
        if self.lines[-1] != "}":
            raise ParseError(f"program {name} has no end")
        parse_ranges(ranges or "", self.scope)
        symbols = tuple(self.symbols())
        self.counters()
        steps = self.block()
        if self.at < len(self.lines):
            raise ParseError(f"{self.lines[self.at]!r} stands after the end of program {name}")
        contents = tuple(Content.of(self.constants[i]) for i in sorted(self.constants))
        return Program(name, tuple(split_commas(inputs)), tuple(split_commas(outputs)), tuple(self.buffers),
                       steps, contents, symbols, self.arena)

    def symbols(self) -> Iterator[Symbol]:
        for name, dim in self.scope.dims.items():
            yield symbols_of(dim)[name]

    def counters(self) -> None:
        """Declare the counters of loops: slices, which come first, use them."""
        for line in self.lines:
            if line.startswith("for "):
                name, length, *_ = matched(_FOR, line, "the head of a loop")
                self.scope.dims[name] = symbol(name, 0, self.scope.dim(length) - 1)

    def block(self, end: str = "}") -> tuple[Step, ...]:
        """The steps up to a line `end`, which is taken too."""
        steps: list[Step] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if line == end:
                return tuple(steps)
            steps += self.line(line)
        raise ParseError(f"a block has no end {end!r}")

    def line(self, line: str) -> tuple[Step, ...]:
        """The step a line begins; a declaration is none."""
        if line.startswith("arena "):
            self.arena = self.scope.dim(line.removeprefix("arena "))
        elif _SLICE.match(line):
            declared, base, offset = matched(_SLICE, line, "a slice")
            buffer = parse_buffer(declared, self.scope)
            self.buffers.append(Place(buffer, "slice", offset=self.scope.dim(offset), base=base))
        elif _PLACE.match(line):
            self.buffers.append(self.place(line))
        else:
            return (self.step(line),)
        return ()

    def step(self, line: str) -> Step:
        if line.startswith("check "):
            buffer, code, error, message = matched(_CHECK, line, "a check")
            return CheckStep(buffer, int(code), error, ast.literal_eval(message))
        if line.startswith("for "):
            name, length, reverse, parallel = matched(_FOR, line, "the head of a loop")
            counter = symbols_of(self.scope.dims[name])[name]
            return For(counter, self.scope.dim(length), self.block(), bool(reverse), bool(parallel))
        choice = _CHOICE.match(line)
        if choice is None:
            return self.launch(line)
        predicate = choice.group(2)
        if choice.group(1) == "if":
            return If(predicate, self.block("} else {"), self.block())
        return While(self.block("} do {"), predicate, self.block())

    def launch(self, line: str) -> Launch:
        name, reads, writes, after = matched(_LAUNCH, line, "a line of a program")
        if name not in self.kernels:
            raise ParseError(f"{line!r}: no kernel {name} in the text")
        return Launch(self.kernels[name], (*split_commas(reads), *split_commas(writes)), not after,
                      after == " beside")

    def place(self, line: str) -> Place:
        declared, kind, where, content = matched(_PLACE, line, "a buffer of a program")
        buffer = parse_buffer(declared, self.scope)
        if kind == "arena":
            return Place(buffer, "arena", offset=self.scope.dim(where))
        place = Place(buffer, kind, int(where))  # type: ignore[arg-type]  # one of Kind, by the pattern
        if kind == "constant":
            self.constants[place.position] = self.constant(place, content or "")
        return place

    def constant(self, place: Place, content: str) -> np.ndarray:
        if content.startswith("@"):
            if content[1:] not in self.given:
                raise ParseError(f"no constant is given for {content}")
            return self.given[content[1:]]
        values = [float(v) if v in ("inf", "-inf", "nan") else ast.literal_eval(v)
                  for v in split_commas(content[1:-1])]
        shape = tuple(evaluate_dim(d, {}) for d in place.buffer.shape)
        return np.array(values, place.buffer.dtype.numpy).reshape(shape)
