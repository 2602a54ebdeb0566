"""How far answers are from the truth: outputs against the graph run in float64.

In: a graph, inputs, and the outputs of whoever ran it. Out: per output the largest error in units in the last
place (ULP), absolute, and relative to the largest value; and whether that is close enough. Close enough is,
element by element, the table of `ops/tolerance.py` for composites at the output's dtype; or, since long
programs amplify rounding, at most twice the error of the reference executor, which runs the same graph op by
op in its own precision. Integers and bools must be equal to one of the two references; NaN and infinities
must stand where they stand in a reference.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from planish.ir import Graph, interpret
from planish.ops.tolerance import tolerance
from planish.types import STRING, DType, dtype_of

TIMES_EAGER = 2.0  # an error of up to so many times the reference executor's is its fault, not the compiler's


@dataclass(frozen=True)
class OutputError:
    """The largest errors of one output.

    `worst` is the index of the largest absolute one; `fault` is empty if it is right.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    ulp: float
    absolute: float
    relative: float
    worst: tuple[int, ...]
    fault: str = ""

    @property
    def is_right(self) -> bool:
        return not self.fault


@dataclass(frozen=True)
class Validation:
    """The errors of everyone who ran a graph, name -> one per output.

    `failures` are those who gave no answer, and why.
    """

    errors: dict[str, list[OutputError]]
    failures: dict[str, str]

    @property
    def is_right(self) -> bool:
        return not self.failures and all(e.is_right for errors in self.errors.values() for e in errors)

    def is_right_for(self, who: str) -> bool:
        """Whether this one gave an answer, and every output of it is right."""
        return who in self.errors and all(e.is_right for e in self.errors[who])

    def contradicted(self, peers: Iterable[str]) -> list[str]:
        """Outputs for which every peer that ran has another answer: float64 is our own reading of the model,
        and nobody shares it."""
        answers = [self.errors[who] for who in peers if who in self.errors]
        return [of_one[0].name for of_one in zip(*answers) if not any(e.is_right for e in of_one)]


class Reference:
    """The truth about a graph on some inputs: its outputs in float64, and those of the reference executor."""

    def __init__(self, graph: Graph, inputs: Sequence[np.ndarray]):
        self.graph = graph
        self.exact = interpret(graph, inputs, precision="float64")
        self.eager = interpret(graph, inputs)

    def errors(self, outputs: Sequence[Any]) -> list[OutputError]:
        """One per output. Raises ValueError where there are too many or too few."""
        if len(outputs) != len(self.exact):
            raise ValueError(f"{len(outputs)} outputs instead of {len(self.exact)}")
        return [output_error(self.name(i), np.asarray(got), exact, eager)
                for i, (got, exact, eager) in enumerate(zip(outputs, self.exact, self.eager))]

    def name(self, i: int) -> str:
        names = self.graph.output_names
        return names[i] if i < len(names) else f"output {i}"


Runner = Callable[..., Sequence[Any]]
Say = Callable[[str], None]


def validate(graph: Graph, runners: Mapping[str, Runner], inputs: Sequence[np.ndarray],
             say: Say = lambda text: None) -> Validation:
    """Run everyone on the inputs and compare. `say` hears of every step: float64, then the runners.

    A runner that raises is noted in `failures`, with what it said.
    """
    say("float64")
    reference = Reference(graph, inputs)
    errors: dict[str, list[OutputError]] = {}
    failures: dict[str, str] = {}
    for name, runner in runners.items():
        say(name)
        try:
            errors[name] = reference.errors(runner(*inputs))
        except Exception as error:  # a foreign runtime raises types of its own
            failures[name] = f"{type(error).__name__}: {error}"
    return Validation(errors, failures)


def output_error(name: str, got: np.ndarray, exact: np.ndarray, eager: np.ndarray) -> OutputError:
    """The errors of one output; `exact` is in float64 where floats are concerned, `eager` in the output's own
    dtype.
    """
    dtype = dtype_of(eager)
    if got.shape != eager.shape or got.dtype != eager.dtype:
        fault = f"{got.dtype}{list(got.shape)} instead of {eager.dtype}{list(eager.shape)}"
        return OutputError(name, str(got.dtype), got.shape, np.inf, np.inf, np.inf, (), fault)
    if dtype is STRING:
        count = int((got != exact).sum())
        off = np.inf if count else 0.0
        fault = f"{count} of {got.size} elements differ" if count else ""
        return OutputError(name, dtype.name, got.shape, off, off, off, (), fault)
    wide = got.astype(np.float64)
    difference = _difference(wide, exact.astype(np.float64))
    absolute = float(difference.max(initial=0.0))
    largest = _largest(exact)
    ulp = float(np.max(difference / _spacing(exact, dtype), initial=0.0))
    worst = tuple(map(int, np.unravel_index(int(np.argmax(difference)), got.shape))) if got.size else ()
    relative = absolute / largest if largest else absolute
    fault = _fault(got, difference, exact, eager, dtype)
    return OutputError(name, dtype.name, got.shape, ulp, absolute, relative, worst, fault)


def _fault(got: np.ndarray, difference: np.ndarray, exact: np.ndarray, eager: np.ndarray,
           dtype: DType) -> str:
    """Why an output is wrong, or nothing."""
    if not dtype.is_float:
        wrong = (got != exact) & (got != eager)
        return f"{int(wrong.sum())} of {got.size} elements differ" if wrong.any() else ""
    allowed = tolerance("composite", dtype)
    limit = allowed.ulp * _spacing(exact, dtype) + allowed.scale * _largest(exact)
    limit = np.maximum(limit, TIMES_EAGER * _largest(_difference(eager.astype(np.float64), exact)))
    wrong = (difference > limit) & (_difference(got.astype(np.float64), eager.astype(np.float64)) > limit)
    count = int(wrong.sum())
    return f"{count} of {got.size} elements are off by more than is allowed" if count else ""


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|a - b|; 0 where both are NaN or the same infinity, infinite where only one is."""
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        difference = np.abs(a - b)
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _largest(values: np.ndarray) -> float:
    """The largest magnitude among the finite ones."""
    wide = np.abs(values.astype(np.float64))
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


def _spacing(exact: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance between neighbours of a dtype at each value; 1 for integers."""
    if not dtype.is_float:
        return np.ones(exact.shape)
    info = ml_dtypes.finfo(dtype.numpy)
    magnitude = np.abs(np.where(np.isfinite(exact), exact, 0.0).astype(np.float64))
    exponent = np.frexp(np.clip(magnitude, float(info.smallest_normal), float(info.max)))[1] - 1
    return np.ldexp(float(info.eps), exponent)
