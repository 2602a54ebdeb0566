"""What a captured FX graph is: our graph, and how the values of the FX graph lie at its ends.

The inputs of an FX graph are tensors, sizes and numbers; its outputs are tensors, views of others, inputs
passed on, sizes and None. The graph itself takes and gives contiguous arrays only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planish.ir import Graph
from planish.types import Dim


@dataclass(frozen=True)
class TensorFeed:
    """Input: argument `index`, its axes permuted by `order` (None: a contiguous copy of it)."""

    index: int
    order: tuple[int, ...] | None


@dataclass(frozen=True)
class ComplexFeed:
    """Input: argument `index`, a complex tensor, its axes permuted by `order`, as pairs along a last one."""

    index: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class NumberFeed:
    """Input: argument `index`, a Python number, as a scalar of `dtype` (NumPy's name)."""

    index: int
    dtype: str


@dataclass(frozen=True)
class SizesFeed:
    """Input: an empty array whose shape (0, sizes...) says sizes that no tensor's shape says by itself."""

    indices: tuple[int, ...]


@dataclass(frozen=True)
class KeyFeed:
    """Input: a fresh key u32[2] for random numbers, drawn at each call from torch's generator."""


Feed = TensorFeed | ComplexFeed | NumberFeed | SizesFeed | KeyFeed


@dataclass(frozen=True)
class ProgramResult:
    """Output `index` of the graph, whose axes permuted by `order` are the value's."""

    index: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class ComplexResult:
    """Output `index` of the graph, whose pairs of real and imaginary parts, the other axes permuted by
    `order`, are the value's numbers."""

    index: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class ArgumentResult:
    """Argument `index` itself."""

    index: int


@dataclass(frozen=True)
class ViewResult:
    """A view of another result: `of` says which tensor, the rest where in its memory the view lies."""

    of: ProgramResult | ArgumentResult
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True)
class SizeResult:
    """A number that follows from the sizes."""

    dim: Dim


@dataclass(frozen=True)
class NumberResult:
    """Output `index` of the graph, a scalar, as a Python number."""

    index: int


@dataclass(frozen=True)
class NoneResult:
    """None."""


Result = (
    ProgramResult | ComplexResult | ArgumentResult | ViewResult | SizeResult | NumberResult | NoneResult
)


@dataclass(frozen=True)
class Captured:
    """A graph; `feeds` has one entry per input of it, `results` one per output of the FX graph.

    places    symbol -> (argument, axis) that says it, axis None where the argument is the number itself
    hints     symbol -> the size it had when the graph was captured
    constants arguments that became constants
    """

    graph: Graph
    feeds: tuple[Feed, ...]
    results: tuple[Result, ...]
    places: dict[str, tuple[int, int | None]]
    hints: dict[str, int]
    constants: tuple[int, ...] = ()
    arguments: int = 0

    def sizes(self, arguments: Sequence[Any]) -> dict[str, int]:
        """The sizes of a call."""
        return {
            name: int(arguments[i] if axis is None else arguments[i].shape[axis])
            for name, (i, axis) in self.places.items()
        }
