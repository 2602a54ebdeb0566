"""A chain of pointwise ops on 4000 x 4000 numbers: NumPy, PyTorch if installed, planish, and what the machine
allows.

    y = 0.5 * x * (1 + tanh(0.8 * (x + 0.04 * x**3)))

Eager, the eight ops move 18 arrays through memory; fused, two. What the machine needs to read and write those
two is probed in the same run, between the rounds.

    $ python examples/gelu_chain.py
"""
from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import planish
from planish.inspect.bench import turn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for benchmarks, which is not installed

SIDE = 4000
ATOL = 1e-5


def chain(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * x**3)))


@dataclass
class Result:
    """Milliseconds per call of each, in the order they were asked; the machine's limit is one of them."""

    ms: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.ms[name])


def peers(side: int) -> dict[str, Callable[[], Any]]:
    """Each computes the chain on the same array; all are checked against float64 first."""
    x = np.random.default_rng(0).standard_normal((side, side)).astype(np.float32)
    found: dict[str, Callable[[], Any]] = {"NumPy": lambda: chain(x)}
    if find_spec("torch"):
        import torch

        torch.set_num_threads(planish.get_num_threads())
        tensor = torch.from_numpy(x)
        found["PyTorch eager"] = lambda: 0.5 * tensor * (1 + torch.tanh(0.8 * (tensor + 0.04 * tensor**3)))
    for numerics in ("default", "fast"):
        function = planish.jit(chain, numerics=numerics)
        found[f"planish, {numerics}"] = lambda function=function: function(x)  # type: ignore[misc]
    require_right(found, chain(x.astype(np.float64)))
    return found


def require_right(found: dict[str, Callable[[], Any]], exact: np.ndarray) -> None:
    for name, run in found.items():
        error = float(np.max(np.abs(np.asarray(run()) - exact)))
        if not error <= ATOL:
            sys.exit(f"gelu chain: {name} is off by {error:.1e}")


def measure(side: int = SIDE, rounds: int = 5, say: Callable[[str], None] = lambda text: None) -> Result:
    """Times in mixed rounds; nothing is timed that gave another answer."""
    from benchmarks.limits import seconds_to_move

    say("gelu chain: build and check")
    found, threads, bytes_ = peers(side), planish.get_num_threads(), 4 * side * side
    result = Result({name: [] for name in (*found, "the machine's limit")})
    for i in range(rounds):
        say(f"gelu chain: round {i + 1} of {rounds}")
        for name, run in found.items():
            result.ms[name] += [seconds * 1e3 for seconds in turn(run)]
        result.ms["the machine's limit"].append(seconds_to_move(bytes_, bytes_, threads) * 1e3)
    return result


def show(result: Result, side: int = SIDE) -> None:
    from planish.cli.console import console
    from planish.inspect.tables import milliseconds, table

    limit = min(result.ms["the machine's limit"])
    rows = [(name, milliseconds(min(ms)), milliseconds(result.median(name)), f"{min(ms) / limit:.2f}")
            for name, ms in result.ms.items()]
    console().print(table(
        f"gelu chain, {side} x {side} float32, {planish.get_num_threads()} threads: ms per call",
        ["who", "min>", "median>", "min / limit>"], rows))


if __name__ == "__main__":
    show(measure(say=print))
