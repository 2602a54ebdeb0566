"""Distributing a long chain: the same numbers at every size, and only where there is a chain to cut."""
from __future__ import annotations

import numpy as np
import pytest

import planish
from planish.compiler import compile_graph
from planish.ir.graph import build_graph
from planish.ops import add, exp, log1p, mul, tanh
from planish.schedule.build import build_program
from planish.schedule.distribute import PIECE, distribute
from planish.schedule.interpret import interpret_kernel
from planish.schedule.kernel import Kernel
from planish.schedule.machine import Machine
from planish.schedule.text import parse_kernel
from planish.schedule.verify import verify_kernel
from planish.types import FLOAT32, TensorType, symbol

MACHINE = Machine(32, 16, 32 << 10, 512 << 10, 16 << 20, 2)


def mish(x):  # type: ignore[no-untyped-def]
    """x tanh(log(1 + e^y)), y a polynomial: three transcendental functions, each with a chain before it."""
    y = x * x * x * x * 0.25 + x
    return mul(x, tanh(add(log1p(exp(y)) * 0.5, x) * x + 1.0))


def kernels(function, *sizes) -> list[tuple[Kernel, Kernel]]:  # type: ignore[no-untyped-def]
    seen: list[tuple[Kernel, Kernel]] = []
    graph = build_graph(function, TensorType(FLOAT32, sizes))
    build_program(graph, MACHINE, {}, observe=lambda before, after: seen.append((before, after)))
    return seen


@pytest.mark.parametrize("size", [2 * PIECE, 2 * PIECE + 1, 3 * PIECE - 1, 1000, 4097])
def test_the_same_numbers(size: int) -> None:
    (before, after), = kernels(mish, size)
    assert "distribute" in [s.name for s in after.steps] and len(after.stages) == 4
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    x[:4] = np.nan, np.inf, -np.inf, -0.0
    one, two = (interpret_kernel(verify_kernel(k), {k.inputs[0].name: x}) for k in (before, after))
    np.testing.assert_array_equal(*(next(iter(r.values())) for r in (one, two)))


@pytest.mark.parametrize("size", [1, 5, 512, 700, 100_003])
def test_native_code_at_sizes_known_late(size: int) -> None:
    n = symbol("n", 0, None)
    graph = build_graph(mish, TensorType(FLOAT32, (n,)))
    compiled = compile_graph(graph)
    assert "distribute" in compiled.text("loops")
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    got, = compiled(x)
    want, = graph.evaluate(x)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)



def test_short_chains_short_axes_and_rows_stay_whole() -> None:
    assert distribute(kernels(lambda x: tanh(x), 4096)[0][0]) is None
    assert distribute(kernels(mish, PIECE)[0][0]) is None
    reduction = parse_kernel("""
kernel rows(x: f32[6, 1000]) -> (z: f32[6]) {
  for s0 in 6:
    t0: f32 = add over a0 in 1000:
      tanh(x[s0, a0] * x[s0, a0] * x[s0, a0] * x[s0, a0] + 1.0)
    t1: f32 = map:
      z[s0] = t0
}""")
    assert distribute(reduction) is None


def test_broadcast_rows() -> None:
    @planish.jit
    def f(x, b):  # type: ignore[no-untyped-def]
        return np.tanh(x * x * x * b + b * b) * x

    rng = np.random.default_rng(3)
    x, b = rng.normal(size=(7, 1003)).astype(np.float32), rng.normal(size=1003).astype(np.float32)
    assert "distribute(s1, 256)" in f.lower(x, b).as_text("loops")
    np.testing.assert_allclose(f(x, b), np.tanh(x * x * x * b + b * b) * x, rtol=2e-6, atol=2e-6)
