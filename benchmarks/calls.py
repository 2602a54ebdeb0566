"""`python -m benchmarks.calls`: what a call costs beside its kernels, for tiny programs of torch and NumPy.

Every way into a program is called in turn, round after round, and its fastest round counts. The columns are
microseconds per call: eager; torch.compile whose backend runs the graph by eager (Dynamo's own cost and
eager's kernels); torch.compile(backend="planish"); planish.compile; and the compiled graph's own builtin,
which is what the kernels take with tensors read and made. The difference of the last two is what guards cost.
Of a NumPy function, the sum of two 8x8 arrays: NumPy itself, planish.jit, and the program's builtin. Of two
threads that are awake: to run an empty body on both, and a barrier.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import planish
from benchmarks.pool import pool_microseconds
from planish.capture.torch import translate
from planish.torch.dynamo import compile_captured
from planish.torch.program import TorchProgram
from planish.torch.settings import settings_of

BATCH = 50  # calls per measurement
BARE = ("one tensor", "four tensors")
WAYS = ("eager", "dynamo", "torch.compile", "planish.compile", "builtin")


class Layers(torch.nn.Module):
    """Twelve linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(12)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def small(count: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(8, 8) for _ in range(count))


def whole(a: torch.Tensor) -> torch.Tensor:
    return torch.relu(a + 1) * 2


def broken(a: torch.Tensor) -> torch.Tensor:
    """`whole`, in two graphs."""
    b = torch.relu(a + 1)
    torch._dynamo.graph_break()
    return b * 2


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "one tensor": (lambda a: a + 1, small(1)),
    "four tensors": (lambda a, b, c, d: torch.relu(a + b) * c + d, small(4)),
    "a dict": (lambda a, b: {"sum": a + b, "product": a * b}, small(2)),
    "a number": (lambda a, n: a * n, (*small(1), 3)),
    "a view": (lambda a: (a * 2, a.t()), small(1)),
    "one graph": (whole, small(1)),
    "a graph break": (broken, small(1)),
    "12 layers": (Layers().eval(), small(1)),
}


def ways_of(function: Any, arguments: tuple[Any, ...], is_bare: bool) -> dict[str, Callable[[], Any]]:
    """A call of each kind, compiled; `builtin` where the program takes the function's arguments."""
    ways = {
        "eager": function,
        "dynamo": torch.compile(function, backend="eager"),
        "torch.compile": torch.compile(function, backend="planish"),
        "planish.compile": planish.compile(function),
    }
    if is_bare:
        ways["builtin"] = builtin_of(function, arguments)
    for call in ways.values():
        for _ in range(3):
            call(*arguments)
    return {name: partial(call, *arguments) for name, call in ways.items()}


def builtin_of(function: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """The builtin over the function's graph, traced without Dynamo."""
    captured = translate(make_fx(function, tracing_mode="fake")(*arguments))
    return TorchProgram(captured, compile_captured(captured, settings_of())).run


def numpy_ways() -> dict[str, Callable[[], Any]]:
    """A call of each kind of a NumPy function."""
    a, b = np.random.default_rng(0).normal(size=(2, 8, 8)).astype(np.float32)
    jitted = planish.jit(lambda x, y: x + y)
    jitted(a, b)
    builtin = jitted.lower(a, b).program.program.call
    return {name: partial(call, a, b) for name, call in
            (("np.add", np.add), ("planish.jit", jitted), ("builtin", builtin))}


def microseconds(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The fastest of interleaved rounds of `BATCH` calls."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, call in ways.items():
            start = perf_counter()
            for _ in range(BATCH):
                call()
            best[name] = min(best[name], (perf_counter() - start) / BATCH * 1e6)
    return best


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="interleaved rounds (default: 400)")
    rounds = parser.parse_args(argv).rounds
    print("us per call      " + ", ".join(f"{way} {us:.2f}" for way, us in
                                          microseconds(numpy_ways(), rounds).items()))
    print("us of the pool   " + ", ".join(f"{name} {us:.3f}" for name, us in
                                         pool_microseconds(rounds // 4).items()))
    print(f"{'us per call':16}" + "".join(f"{way:>18}" for way in WAYS))
    for name, (function, arguments) in CASES.items():
        with torch.no_grad():
            best = microseconds(ways_of(function, arguments, name in BARE), rounds)
        print(f"{name:16}" + "".join(f"{best[w]:18.2f}" if w in best else f"{'':18}" for w in WAYS))


if __name__ == "__main__":
    main()
