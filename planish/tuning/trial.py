"""One kernel alone, made and run on the machine.

In: a kernel before its schedule, with the constants it reads, and a `Choice`. Out: something to time, and its
outputs to compare. Inputs are random; constants are the program's own. Where a program's constants do not fit
in the last cache, a call finds them in memory: calls go round several copies, so that a trial does too.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np

from planish.codegen.llvm.host import Target
from planish.codegen.llvm.native import NativeCode, generate
from planish.ir import Graph, input_node
from planish.ops.content import Content
from planish.runtime.load import load_program
from planish.runtime.program import NativeProgram
from planish.schedule.attention_points import is_attention
from planish.schedule.buffers import Buffers
from planish.schedule.build import build_program
from planish.schedule.choice import ANALYTIC, Choice, kernel_key
from planish.schedule.kernel import Kernel, Load, Sort, stage_stores, stage_values, walk
from planish.schedule.lower import schedule_kernel
from planish.schedule.machine import Machine
from planish.schedule.plan import plan
from planish.schedule.program import Launch
from planish.schedule.rebuild import is_scalar
from planish.schedule.scalars import hinted
from planish.tuning.candidates import Groups, moves, work
from planish.tuning.pairs import Run
from planish.types import DType, TensorType, is_static

SMALLEST = 1 << 12   # points or multiply-adds from which a kernel is worth a measurement
COPIES = 16          # of a kernel's constants, at most
LAST_CACHE = 32 << 20   # bytes, where the machine does not say


@dataclass(frozen=True)
class Setting:
    """What kernels are made for: `hint` has the sizes of open dimensions, `cold` says that a call finds its
    constants in memory, not in a cache."""

    target: Target
    machine: Machine
    numerics: str
    disable: frozenset[str]
    threads: int
    hint: dict[str, int]
    cold: bool = False


@dataclass(frozen=True)
class Subject:
    """A kernel as the schedule met it, launched `launches` times in its program."""

    key: str
    kernel: Kernel
    constants: Mapping[str, Content]
    setting: Setting
    launches: int = 1

    @cached_property
    def why_not(self) -> str:
        """Why it is not measured; empty where it is."""
        kernel = self.kernel
        if kernel.serial or any(isinstance(s, Sort) for s in kernel.stages):
            return "it runs in order"
        if is_attention(kernel):
            return "attention has one schedule"
        if _reads_by_data(kernel):
            return "what it reads depends on the data"
        if {b.name for b in kernel.inputs} & {b.name for b in kernel.outputs}:
            return "it updates its input"
        if any(b.dtype.is_storage for b in kernel.outputs):
            return "it writes a storage type"
        bound = {str(d) for b in self.fed for d in b.type.shape if not is_static(d)}
        if not set(kernel.symbols) <= bound or any(not _is_symbol(d, kernel) for b in self.fed
                                                   for d in b.type.shape):
            return "its sizes are known only when it runs"
        if work(kernel, self.setting.hint) < SMALLEST:
            return "it is small"
        return "" if self.moves else "there is nothing to choose"

    @property
    def fed(self) -> list[Any]:
        """The buffers that a caller gives."""
        return [b for b in self.kernel.inputs if b.name not in self.constants]

    @cached_property
    def moves(self) -> Groups:
        return moves(self.scheduled(ANALYTIC, Buffers({}))[-1], self.setting.machine, self.setting.hint)

    def scheduled(self, choice: Choice, buffers: Buffers) -> list[Kernel]:
        s = self.setting
        buffers.constants |= self.constants
        buffers.scratch += [b for b in self.kernel.arguments if b not in buffers.of.values()]
        return schedule_kernel(self.kernel, s.machine, s.hint, buffers, s.disable, choice)

    def code(self, choice: Choice) -> NativeCode:
        """A program of this kernel and what packs its operands."""
        outputs = self.kernel.outputs
        ins, outs = ([input_node(b.name, b.type) for b in some] for some in (self.fed, outputs))
        buffers = Buffers(dict(zip((*ins, *outs), (*self.fed, *outputs))))
        made = self.scheduled(choice, buffers)
        steps = [Launch(k, tuple(b.name for b in k.arguments), barrier=False) for k in made]
        graph = Graph(tuple(ins), tuple(outs), name="trial")
        program, _ = plan(graph, list(steps), buffers, self.setting.hint, disable=self.setting.disable)
        results = tuple(("program", i) for i in range(len(outputs)))
        return generate(program, results, graph, self.setting.target, self.setting.numerics)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        return [random_array(rng, b.type, self.setting.hint) for b in self.fed]

    def __str__(self) -> str:
        """`dot_general, add f32[128, 768]`: its ops and results, at the hinted sizes."""
        results = ", ".join(sized(b.type, self.setting.hint) for b in self.kernel.outputs)
        return f"{', '.join(dict.fromkeys(self.kernel.ops)) or 'copy'} {results}"


def sized(type_: TensorType, hint: dict[str, int]) -> str:
    """A type as text, at the hinted sizes."""
    return f"{type_.dtype.short}[{', '.join(str(hinted(d, hint)) for d in type_.shape)}]"


def _is_symbol(dim: Any, kernel: Kernel) -> bool:
    return is_static(dim) or str(dim) in kernel.symbols


def _reads_by_data(kernel: Kernel) -> bool:
    """Whether an index is a value: random data could lead outside of a buffer."""
    stores = [store for s in kernel.stages for store in stage_stores(s)]
    loads = [x for s in kernel.stages for x in walk(*stage_values(s)) if isinstance(x, Load)]
    indices = [*(s.index for s in stores), *(x.index for x in loads)]
    return any(is_scalar(i) for index in indices for i in index)


def subjects(graph: Graph, setting: Setting) -> list[Subject]:
    """The distinct kernels of an optimised graph, in order of their first launch."""
    found: dict[str, Subject] = {}

    def note(kernel: Kernel, buffers: Buffers) -> Choice:
        key = kernel_key(kernel, buffers, setting.hint)
        if key in found:
            found[key] = replace(found[key], launches=found[key].launches + 1)
        else:
            constants = {b.name: buffers.constants[buffers.owner(b.name)]
                         for b in kernel.inputs if buffers.is_constant(b)}
            found[key] = Subject(key, kernel, constants, setting)
        return ANALYTIC
    build_program(graph, setting.machine, setting.hint, disable=setting.disable, choose=note)
    return list(found.values())


# --- running

@dataclass(frozen=True)
class Candidate:
    """Something to time, and what it gives."""

    run: Run
    outputs: tuple[np.ndarray, ...]


def candidate(subject: Subject, choice: Choice, arrays: Sequence[np.ndarray]) -> Candidate:
    """The kernel by this choice, loaded and run once."""
    code = subject.code(choice)
    program, _ = load_program(code, subject.setting.threads, keep=False)
    outputs = program.call_over_zeros(*arrays)  # some write a part of a buffer: the frame of a padding
    calls = [p.call for p in (program, *_copies(program, code, subject.setting))]
    turns = cycle(calls)
    run: Run = (lambda: next(turns)(*arrays)) if len(calls) > 1 else (lambda: calls[0](*arrays))
    return Candidate(run, outputs)


def _copies(program: NativeProgram, code: NativeCode, setting: Setting) -> list[NativeProgram]:
    """The program with copies of its constants, as many as together do not fit in the last cache."""
    bytes_ = sum(c.nbytes for c in code.constants)
    if not setting.cold or not bytes_:
        return []
    most = 2 * (setting.machine.l3 or LAST_CACHE)
    count = min(COPIES, -(-most // bytes_)) - 1
    return [program.with_constants([c.copy() for c in code.constants]) for _ in range(count)]


def random_array(rng: np.random.Generator, type_: TensorType, hint: dict[str, int]) -> np.ndarray:
    """Normal floats, bools of both kinds, integers 0 and 1, which most programs take for whatever they are:
    places, tokens, axes."""
    shape = tuple(hinted(d, hint) for d in type_.shape)
    dtype: DType = type_.dtype
    if dtype.is_float:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype.numpy)
    return rng.integers(0, 2, shape).astype(dtype.numpy)


CLOSE = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def disagreement(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """In which output, by how much, two answers are not the same; empty where they are: whole numbers equal,
    floats within `CLOSE` of each other, relative to themselves and to the typical element of the output."""
    if len(got) != len(expected):
        return f"{len(got)} outputs instead of {len(expected)}"
    for i, (new, old) in enumerate(zip(got, expected)):
        if fault := _difference(np.asarray(new), np.asarray(old)):
            return f"output {i}: {fault}"
    return ""


def _difference(new: np.ndarray, old: np.ndarray) -> str:
    if new.dtype != old.dtype or new.shape != old.shape:
        return f"{new.dtype}{list(new.shape)} instead of {old.dtype}{list(old.shape)}"
    close = CLOSE.get(old.dtype.name)
    if close is None:
        unequal = int(np.count_nonzero(new != old))
        return f"{unequal} of {old.size} elements differ" if unequal else ""
    with np.errstate(invalid="ignore"):
        x, y = new.astype(np.float64), old.astype(np.float64)
    finite = np.isfinite(y)
    typical = float(np.mean(np.abs(y[finite]))) if finite.any() else 0.0
    if np.allclose(x, y, rtol=close, atol=close * typical, equal_nan=True):
        return ""
    with np.errstate(invalid="ignore"):
        gap = np.abs(x - y)[finite & np.isfinite(x)]
    return f"differs by up to {float(gap.max(initial=0.0)):.3g}, typical elements are {typical:.3g}"
