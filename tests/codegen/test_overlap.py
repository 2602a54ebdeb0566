"""Loops whose turns overlap: the bits of the plain loop at every length, in place too, and none beside it."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

import planish

pytest.importorskip("llvmlite")
from planish.codegen.llvm import elementwise, overlap, registers
from planish.codegen.llvm.builder import Builder, Module, Value
from planish.ir.graph import build_graph
from planish.ops import gate, tanh
from planish.schedule.build import build_program
from planish.schedule.machine import Machine
from planish.schedule.text import print_kernel
from planish.types import FLOAT32, FLOAT64, TensorType
from tests.codegen import elementwise_harness as harness

LANES = 16
MACHINE = Machine(32, 16, 32 << 10, 512 << 10, 16 << 20, 2)
MARGIN = 64


def write(module: Module, name: str, parts: int) -> None:
    """name(y, x, a, start, stop): y = gate(x, x (0.1 x^2 + 1)) + a[0] from start to stop, whole turns."""
    b = module.function(name, [("ptr", "y"), ("ptr", "x"), ("ptr", "a"), ("i64", "start"), ("i64", "stop")])
    y, x, a, start, stop = b.parameters
    scalar = b.splat(b.load("float", a), LANES)

    def turn(index: Value) -> None:
        value = registers.load(b, "float32", b.gep("float", x, index), LANES)
        registers.store(b, b.bin("fadd", _gated(b, value), scalar), "float32", b.gep("float", y, index))

    overlap.overlapped_loop(b, start, stop, LANES, parts, turn)
    b.ret()


def _gated(b: Builder, x: Value) -> Value:
    inner = b.fma(b.bin("fmul", x, x), b.const(x.type, 0.1), b.const(x.type, 1.0))
    types = ("float32", "float32")
    return elementwise.emit(b, "gate", types, "float32", [x, b.bin("fmul", x, inner)], "default")


@pytest.fixture(scope="module")
def functions():
    module = harness.new_module()
    write(module, "overlapped", 3)
    write(module, "plain", 1)
    overlapped, plain = map(str, module.functions)
    assert f"phi <{LANES} x float>" in overlapped and f"phi <{LANES} x float>" not in plain
    engine = harness.build(module)
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
    yield {name: kind(engine.get_function_address(name)) for name in ("overlapped", "plain")}
    del engine


def numbers(n: int) -> np.ndarray:
    x = np.random.default_rng(n).normal(size=n).astype(np.float32) * 3
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 3e38, -3e38, 1e-44, -90], np.float32)
    x[np.random.default_rng(n + 1).permutation(n)[:special.size]] = special
    return x


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 100])
@pytest.mark.parametrize("first", [0, 2])
def test_same_bits_at_every_length(functions, turns: int, first: int, in_place: bool) -> None:
    x = numbers((first + turns) * LANES + MARGIN)
    results = {}
    for name, function in functions.items():
        given = x.copy()
        y = given if in_place else np.full_like(x, 7)
        a = np.float32([0.5])
        pointers = (v.ctypes.data for v in (y, given, a))
        function(*pointers, first * LANES, (first + turns) * LANES)
        results[name] = y
    harness.assert_same_bits(results["overlapped"], results["plain"], f"{turns} turns", x)
    inside = slice(first * LANES, (first + turns) * LANES)
    outside = np.ones(x.size, bool)
    outside[inside] = False
    untouched = x if in_place else np.full_like(x, 7)
    harness.assert_same_bits(results["overlapped"][outside], untouched[outside], "beside the loop")


@pytest.mark.parametrize("n", [64 * 32, 64 * 32 + 33, 70001])
def test_a_gelu_of_many_numbers(n: int) -> None:
    def gelu(x):
        return 0.5 * x * (1 + np.tanh(0.8 * (x + 0.04 * x**3)))

    x = numbers(n)
    got = planish.jit(gelu)(x)
    with np.errstate(all="ignore"):
        expected = gelu(x)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)


def chosen(function, *inputs: TensorType) -> str:  # type: ignore[no-untyped-def]
    """The schedule of a program of one kernel."""
    after: list[str] = []
    graph = build_graph(function, *inputs)
    build_program(graph, MACHINE, {}, observe=lambda _, kernel: after.append(print_kernel(kernel)))
    text, = after
    return text


def test_long_loops_of_one_gate_overlap_and_others_do_not() -> None:
    vector = TensorType(FLOAT32, (4096 * 1024,))
    assert "overlap(s0, 3)" in chosen(lambda x: gate(x, x * x), vector)
    assert "overlap" not in chosen(lambda x: gate(x, x * x), TensorType(FLOAT32, (LANES,)))
    assert "overlap" not in chosen(lambda x: tanh(x * x), vector)
    assert "overlap" not in chosen(lambda x: gate(x, gate(x, x * x)), vector)
    assert "overlap" not in chosen(lambda x: gate(x, x * x), TensorType(FLOAT64, vector.shape))
