"""All that makes a program run: its code (as modules not yet compiled), and what it takes and gives.

In: a scheduled program and the types of its graph's outputs. Out: `NativeCode`, whose key names the machine
code it stands for; LLVM is loaded only when that is not in the cache.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from planish.codegen.llvm.clocks import TIMES, type_of_times, with_times
from planish.codegen.llvm.emit import emit_all, emit_assembly
from planish.codegen.llvm.host import Target
from planish.codegen.llvm.program import ProgramCode, write_program
from planish.codegen.llvm.version import generator_version
from planish.ir.graph import Graph
from planish.schedule.program import CheckStep, Program, every_step
from planish.types import Dim, TensorType, is_static


@dataclass(frozen=True)
class NativeCode:
    """Code and contract of a program. `outputs` are the types of the program's outputs as the caller sees
    them."""

    program: Program
    code: ProgramCode
    target: Target
    input_types: tuple[tuple[str, TensorType], ...]
    output_types: tuple[TensorType, ...]

    @property
    def key(self) -> str:
        """Names the machine code: what is written, for which machine, by which generator."""
        text = "\n".join((*sorted(self.code.kernels), self.code.body))
        return f"{generator_version()}\n{self.target.code_key}\n{hashlib.sha256(text.encode()).hexdigest()}"

    def slot(self, dim: Dim) -> int:
        """The place of a run-time size in the program's table."""
        names = [s.name for s in self.program.symbols]
        if str(dim) in names:
            return names.index(str(dim))
        return len(names) + self.code.derived.index(dim)

    def objects(self) -> list[bytes]:
        """The ELF objects: this is where LLVM works. The body is written, so LLVM starts with it."""
        t = self.target
        return emit_all((lambda: self.code.body, *self.code.kernels.values()), t.triple, t.cpu, t.features)

    def modules(self) -> Iterator[str]:
        yield from (text() for text in self.code.kernels.values())
        yield self.code.body

    def llvm(self) -> str:
        return "\n".join(self.modules())

    def assembly(self) -> str:
        t = self.target
        return "\n".join(emit_assembly(text, t.triple, t.cpu, t.features) for text in self.modules())

    @property
    def constants(self) -> tuple[np.ndarray, ...]:
        """The arrays of the program's constants."""
        return self.program.constants

    @property
    def checks(self) -> list[CheckStep]:
        return [s for s in every_step(self.program.steps) if isinstance(s, CheckStep)]


def generate(program: Program, outputs: tuple[tuple[str, int], ...], graph: Graph, target: Target,
             numerics: str) -> NativeCode:
    """The code of a program whose results stand for `outputs` of `graph`."""
    types: dict[int, TensorType] = {}
    for (kind, k), node in zip(outputs, graph.outputs, strict=True):
        if kind == "program":
            types.setdefault(k, node.tensor)
    results = tuple(types[k] for k in range(len(program.outputs)))
    inputs = tuple((n.attributes.name, n.tensor) for n in graph.inputs)
    sizes = [d for t in (*(t for _, t in inputs), *results) for d in t.shape]
    symbols = {s.name for s in program.symbols}
    extra = tuple(d for d in sizes if not is_static(d) and str(d) not in symbols)
    code = write_program(program, target, numerics, extra)
    return NativeCode(program, code, target, inputs, results)


def timed(code: NativeCode, numerics: str, threads: int) -> NativeCode:
    """The same code with one output more, for the times of its launches on up to so many threads
    (clocks.py)."""
    program = with_times(code.program, threads)
    written = write_program(program, code.target, numerics, code.code.derived, TIMES)
    return replace(code, program=program, code=written,
                   output_types=(*code.output_types, type_of_times(code.program, threads)))
