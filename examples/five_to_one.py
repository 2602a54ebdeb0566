"""Five ops become one kernel: a product, a scale, a bias, gelu, and an addition of nothing.

    y = gelu((x @ w) * (1 / sqrt(64)) + b) + 0.0

As a graph it has five ops that move memory. The report tells which pass did each step. With
numerics="default" the addition of zero stays, inside the same kernel: -0.0 + 0.0 is 0.0, so it is not
nothing. The same written as NumPy code, where gelu is spelled out by its tanh form, is twelve NumPy calls;
`planish.jit` makes them one kernel too.

    $ python examples/five_to_one.py
"""
from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import planish
from planish.compiler import Compiled, Options, compile_graph
from planish.inspect.explain import Explanation, Firing, explain, firings
from planish.inspect.validate import validate
from planish.ir import Graph, constant
from planish.ir.graph import build_graph
from planish.ops import gelu, sqrt
from planish.types import FLOAT32, TensorType

M, K, N = 512, 64, 256


def five_ops(x: Any, w: Any, b: Any) -> Any:
    """On nodes of the graph, where gelu is one op; 1 / sqrt(64) is in the program, as a model has it."""
    scale = 1.0 / sqrt(constant(np.float32(64)))
    return gelu((x @ w) * scale + b, approximate="none") + constant(np.float32(0))


def twelve_calls(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As NumPy code; gelu by its tanh form (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016)."""
    y = (x @ w) * (1 / math.sqrt(64)) + b
    return 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) + 0.0


def graph() -> Graph:
    types = (TensorType(FLOAT32, shape) for shape in ((M, K), (K, N), (N,)))
    return build_graph(five_ops, *types, names=("x", "w", "b"), name="five_to_one")


def arguments(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N), (N,))]


def compiled(numerics: str) -> tuple[Compiled, Explanation, list[Firing]]:
    """The graph compiled and checked, what the compiler did, and the rules that fired on it."""
    options = Options(numerics=numerics)  # type: ignore[arg-type]
    program = compile_graph(graph(), options)
    require_right(program)
    return program, explain(program), firings(graph(), options)


def require_right(program: Compiled) -> None:
    """Stops where the answer is not the float64 reference's."""
    found = validate(program.captured, {"native": program}, arguments())
    if not found.is_right:
        sys.exit(f"five to one: wrong answer: {found}")


def jitted(numerics: str) -> Explanation:
    """The NumPy function through `planish.jit`, checked, and what the compiler did with it."""
    function: Callable[..., Any] = planish.jit(twelve_calls, numerics=numerics)
    lowered = function.lower(*arguments())  # type: ignore[attr-defined]
    np.testing.assert_allclose(function(*arguments()), twelve_calls(*arguments()), rtol=1e-5, atol=1e-5)
    require_right(lowered.program)
    return explain(lowered.program)


def show() -> None:
    """Both numerics, side by side with what NumPy code gives."""
    from planish.cli.console import console
    from planish.inspect.tables import kernels, passes, rewrites, table

    out = console()
    for numerics in ("fast", "default"):
        _, what, fired = compiled(numerics)
        out.print(f"numerics={numerics!r}: kernels {what.kernels.before} -> {what.kernels.after}, "
                      f"bytes moved {what.bytes.ratio:.1f}x less", style="bold cyan")
        out.print(rewrites([f for f in fired if f.pass_name not in ("canonicalise", "drop_dead")]))
        if numerics == "fast":
            out.print(passes(what, reasons=False, idle=False))
        out.print(kernels(what))
    rows = []
    for numerics in ("fast", "default"):
        what = jitted(numerics)
        rows.append((numerics, what.kernels.before, what.kernels.after, f"{what.bytes.ratio:.1f}x less"))
    out.print(table("The same as NumPy code, by planish.jit",
                        ["numerics", "NumPy calls>", "kernels>", "bytes moved>"], rows))


if __name__ == "__main__":
    show()
