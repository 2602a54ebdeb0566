"""The stages of a compile, as JAX names them: a traced function, lowered to a program."""

from __future__ import annotations

from dataclasses import dataclass

from planish.capture.numpy import Captured
from planish.compiler import Compiled, Options, compile_graph
from planish.ir import Graph


@dataclass(frozen=True, repr=False)
class Traced:
    """A traced function: `.graph`, and `.lower()`."""

    captured: Captured
    options: Options

    @property
    def graph(self) -> Graph:
        return self.captured.of_results

    def __repr__(self) -> str:
        return f"<Traced {self.graph.signature}>"

    def lower(self) -> Lowered:
        return Lowered(self.captured, compile_graph(self.graph, self.options))


@dataclass(frozen=True, repr=False)
class Lowered:
    """A compiled graph, open to inspection: `.as_text(stage)`, and `.compile()` for something to call."""

    captured: Captured
    program: Compiled

    def __repr__(self) -> str:
        return f"<Lowered {self.captured.of_results.signature}>"

    def as_text(self, stage: str = "optimized") -> str:
        """The program at a stage: graph, optimized, loops, program, llvm, asm."""
        return self.program.text(stage)

    def compile(self) -> Compiled:
        """The compiled program: takes the graph's inputs, returns its outputs as a tuple."""
        return self.program
