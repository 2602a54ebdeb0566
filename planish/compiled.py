"""What a compile is told and what it gives: options, the report, and the program, something callable.

A graph runs as one native program, as native segments around host ops, or op by op by NumPy (the library
strategy). All are called with arrays, or by name, and can be printed at every stage they have.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from planish.codegen.llvm.host import Target
from planish.codegen.llvm.native import NativeCode
from planish.errors import SignatureError
from planish.ir import Graph, Node, interpret, print_graph
from planish.ir.interpret import bind_host, checked
from planish.ir.specialize import bind_symbols, static_sizes, substitute_value
from planish.passes.protocol import PassRecord
from planish.rewrite import Numerics
from planish.runtime.program import NativeProgram
from planish.schedule.build import Built
from planish.schedule.measure import KernelRecord
from planish.schedule.program_text import print_program
from planish.schedule.segments import HostCall, Plan, cut, print_plan
from planish.schedule.text import print_kernel
from planish.tuning.decisions import UNTUNED, Decisions
from planish.tuning.record import Finding

Strategy = Literal["native", "library"]
Mode = Literal["default", "max-autotune"]
STAGES = ("graph", "optimized", "segments", "loops", "program", "llvm", "asm")


@dataclass(frozen=True)
class Options:
    """What a compile may be told. `disable` holds names of passes and schedule steps to switch off; `target`
    is the machine, None for this one; `threads` is how many a call uses, 0: as many as the process does.
    `mode` "max-autotune" measures what the default decides by rules; `decisions` is what came of it."""

    numerics: Numerics = "default"
    strategy: Strategy = "native"
    mode: Mode = "default"
    decisions: Decisions = UNTUNED
    target: Target | None = None
    disable: frozenset[str] = frozenset()
    threads: int = 0


@dataclass
class Report:
    """What the compiler did. Bytes and flops are at the sizes of `hint` (symbol -> size) for dynamic
    graphs."""

    captured_nodes: int = 0
    passes: list[PassRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)   # stage -> seconds, in order
    kernels: list[KernelRecord] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)         # one line per fusion or layout decision
    hosts: list[str] = field(default_factory=list)             # one line per host op, in the order they run
    bytes_before: int = 0      # every op reads its operands and writes its result
    bytes_after: int = 0       # every kernel does
    memory_naive: int = 0      # every intermediate its own buffer
    memory_planned: int = 0    # the arena
    memory_bound: int = 0      # most live bytes at any time
    cached: bool = False       # native code came from the cache
    stored: bool = False       # whole programs did: no pass ran, nothing was scheduled
    tuning: list[Finding] = field(default_factory=list)        # what max-autotune measured, now or before
    hint: dict[str, int] = field(default_factory=dict)


@dataclass(repr=False)
class Compiled:
    """A compiled graph. Call it with arrays in the order of `captured.inputs`; the outputs come as a
    tuple."""

    captured: Graph
    options: Options
    report: Report

    @property
    def optimized(self) -> Graph:
        """The graph after the passes."""
        return self.captured

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.captured.signature}>"

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        return interpret(self.optimized, arrays)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Outputs by name (None: all) for arrays by name, as ONNX Runtime's session has it. Raises
        SignatureError for names that are not the graph's, or that are missing."""
        inputs, outputs = [n.attributes.name for n in self.captured.inputs], self.captured.output_names
        _check_names("input", list(feeds), inputs)
        _check_names("output", names or (), outputs)
        if missing := [n for n in inputs if n not in feeds]:
            raise SignatureError(f"missing inputs: {', '.join(missing)}")
        results = self(*(feeds[n] for n in inputs))
        return list(results) if names is None else [results[outputs.index(n)] for n in names]

    def text(self, stage: str) -> str:
        """The program at a stage, one of STAGES. ValueError for a stage this strategy does not have."""
        texts = self.texts()
        if stage not in texts:
            raise ValueError(f"there is no stage {stage!r} here; there are {', '.join(texts)}")
        return texts[stage]()

    def texts(self) -> dict[str, Callable[[], str]]:
        return {"graph": lambda: print_graph(self.captured), "optimized": lambda: print_graph(self.optimized)}


def _check_names(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise SignatureError(f"there is no {kind} {name!r}; there are {', '.join(known) or 'no names'}")


@dataclass(repr=False)
class LibraryProgram(Compiled):
    """The library strategy: each op by its NumPy kernel, one memory round trip each, zero build time."""

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """New arrays, as native code gives them: what looks at an argument, a constant or another result is
        copied."""
        return _apart(super().__call__(*arrays), [np.asarray(a) for a in arrays])


@dataclass(frozen=True)
class Made:
    """What there is between a graph and its machine code."""

    optimized: Graph
    built: Built
    code: NativeCode


@dataclass(repr=False)
class NativeCompiled(Compiled):
    """Native code. `program` is what the runtime calls; `program.call` is the builtin for a hot caller when
    every output is the program's own (`is_direct`). `outputs` is as in `Built`. What a program from the cache
    was made by is made again when somebody asks for it."""

    outputs: tuple[tuple[str, int], ...]
    program: NativeProgram
    make: Callable[[], Made]

    @cached_property
    def made(self) -> Made:
        return self.make()

    @property
    def optimized(self) -> Graph:
        return self.made.optimized

    @property
    def built(self) -> Built:
        return self.made.built

    @property
    def code(self) -> NativeCode:
        return self.made.code

    @cached_property
    def is_direct(self) -> bool:
        """Whether the program's outputs are the graph's, in order."""
        return self.outputs == tuple(("program", k) for k in range(len(self.outputs)))

    def direct_call(self, missed: Callable[..., Any]) -> Callable[..., Any] | None:
        """A builtin that takes plain arrays and returns the one output, and leaves any other call to
        `missed`; None when the graph's output is not simply the program's."""
        return self.program.door(missed) if self.is_direct else None

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        results = self.program.call(*arrays)
        if self.is_direct:
            return results
        sizes = bind_symbols(self.captured, [np.shape(a) for a in arrays])
        return tuple(self._output(i, results, arrays, sizes) for i in range(len(self.outputs)))

    def _output(self, i: int, results: tuple[np.ndarray, ...], arrays: tuple[Any, ...],
                sizes: dict[str, int]) -> np.ndarray:
        """Output i: the program's, shared with no other output; or a copy of an input or constant."""
        kind, k = self.outputs[i]
        if kind == "program" and self.outputs.index((kind, k)) == i:
            return results[k]
        if kind == "constant":
            whole = _base(self.optimized.outputs[i]).attributes.value
        else:
            whole = results[k] if kind == "program" else arrays[k]
        return np.array(whole, copy=True).reshape(static_sizes(self.captured.outputs[i].shape, sizes))

    def texts(self) -> dict[str, Callable[[], str]]:
        program = self.built.program
        return {**super().texts(), "segments": lambda: print_plan(cut(self.optimized)),
                "loops": lambda: "\n\n".join(map(print_kernel, program.kernels)),
                "program": lambda: print_program(program), "llvm": self.code.llvm, "asm": self.code.assembly}


def _base(node: Node) -> Node:
    """What a chain of reshapes looks at."""
    while node.op.name == "reshape":
        node = node.operands[0]
    return node


@dataclass(repr=False)
class SegmentedProgram(Compiled):
    """Native code around host ops. `parts` are the compiled segments of `plan`, in order."""

    plan: Plan
    parts: tuple[NativeCompiled, ...]

    @property
    def optimized(self) -> Graph:
        return self.plan.graph

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        inputs = [checked(n, np.asarray(a)) for n, a in zip(self.captured.inputs, arrays)]
        sizes = bind_symbols(self.captured, [np.shape(a) for a in arrays])
        values: dict[Node, Any] = dict(zip(self.captured.inputs, inputs))
        parts = iter(self.parts)
        for step, done in zip(self.plan.steps, self.plan.done):
            if isinstance(step, HostCall):
                values[step.node] = self._host(step, values, sizes)
            else:
                taken = (_value(n, values, sizes) for n in step.takes)
                carried = (np.empty((sizes[name], 0), np.uint8) for name in step.carries)
                values |= zip(step.gives, next(parts)(*taken, *carried))
            for node in done:
                del values[node]
        return _apart([_value(n, values, sizes) for n in self.optimized.outputs], inputs)

    def _host(self, call: HostCall, values: Mapping[Node, Any], sizes: dict[str, int]) -> Any:
        node, attributes = call.node, call.node.attributes
        if call.is_sized:
            attributes = substitute_value(attributes, sizes)
        result = node.op.evaluate(attributes, *(_value(o, values, sizes) for o in node.operands))
        bind_host(node, result, sizes)
        return result

    def texts(self) -> dict[str, Callable[[], str]]:
        def joined(stage: str) -> Callable[[], str]:
            return lambda: "\n\n".join(part.text(stage) for part in self.parts)
        return {**super().texts(), "segments": lambda: print_plan(self.plan),
                **{stage: joined(stage) for stage in ("loops", "program", "llvm", "asm")}}


def _value(node: Node, values: Mapping[Node, Any], sizes: Mapping[str, int]) -> np.ndarray:
    """A value by the one that the driver keeps of it."""
    if node in values:
        return values[node]
    if node.op.name == "constant":
        return node.attributes.value
    of = _value(node.operands[0], values, sizes)
    if node.op.name == "item":
        return of[node.attributes.index]
    return of.reshape(static_sizes(node.shape, sizes))


def _apart(results: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """New arrays: what looks at an input, a constant or another result is copied."""
    taken = list(inputs)
    for result in results:
        is_own = result.flags.writeable and not any(np.may_share_memory(result, a) for a in taken)
        taken.append(result if is_own and result.flags.c_contiguous else np.array(result, order="C"))
    return tuple(taken[len(inputs):])
