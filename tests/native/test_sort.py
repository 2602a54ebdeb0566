"""sort, argsort and top_k as native code beside their NumPy meaning: order of equal elements and of NaN
included."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish.compiler import Compiled, compile_graph
from planish.ir import Graph, input_node, interpret
from planish.ir.graph import build_graph
from planish.ops.rules import ops
from planish.ops.samples import random_array
from planish.schedule.build import build_program
from planish.schedule.machine import Machine
from planish.schedule.program_interpret import interpret_program
from planish.schedule.program_text import parse_program, print_program
from planish.schedule.program_verify import verify_program
from planish.types import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT32,
    FLOAT64,
    INT64,
    UINT8,
    DType,
    TensorType,
    dtype_of,
    symbol,
)
from tests.native.harness import evaluate, graph_of, operands_of, run_native


def check(compiled: Compiled, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    found = compiled(*arrays)
    for y, expected in zip(found, interpret(compiled.captured, arrays), strict=True):
        assert_same(y, expected)
    return found


def assert_same(found: np.ndarray, expected: np.ndarray, label: str = "") -> None:
    """Equal elements, the signs of zeros included: of equal keys the first comes first."""
    assert found.dtype == expected.dtype
    if dtype_of(expected).is_float:
        # NumPy does not know bfloat16's NaN
        found, expected = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(found, expected, err_msg=label, strict=True)
    if dtype_of(expected).is_float:
        known = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(expected)[known], err_msg=label)


def sorted_all_ways(x: Any, k: int = 5) -> tuple[Any, ...]:
    """Both directions of the three ops along the last axis."""
    results: list[Any] = []
    for down in (False, True):
        axis = x.ndim - 1
        results += [op(x, axis=axis, descending=down) for op in (ops.sort, ops.argsort)]
        results += ops.top_k(x, axis=axis, k=k, largest=down)
    return tuple(results)


@pytest.mark.parametrize("dtype", [BOOL, UINT8, BFLOAT16, FLOAT64], ids=str)
@pytest.mark.parametrize("name", ["sort", "argsort", "top_k"])
def test_samples(name: str, dtype: DType) -> None:
    op, rng = getattr(ops, name), np.random.default_rng()
    samples = list(op.samples(rng, dtype))
    samples = [samples[i] for i in rng.permutation(len(samples))[:16]]
    found = iter(run_native(graph_of(op, samples), operands_of(samples)))
    for sample in samples:
        for expected in evaluate(op, sample):
            assert_same(next(found), expected, sample.label)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_different_keys_keep_their_order(dtype: DType) -> None:
    rng = np.random.default_rng()
    x = rng.integers(0, 2 if dtype.bits == 8 else 4, (6, 500)).astype(dtype.numpy)
    if dtype.is_float:
        x[rng.random(x.shape) < 0.2] = np.nan
        x[rng.random(x.shape) < 0.2] = -0.0
    check(compile_graph(build_graph(lambda v: sorted_all_ways(v, 40), TensorType(dtype, x.shape))), x)


@pytest.mark.parametrize("kind", ["random", "sorted", "backwards", "equal"])
def test_long_rows(kind: str) -> None:
    x = random_array(np.random.default_rng(), FLOAT32, (2, 100_000))
    x = {"random": x, "sorted": np.sort(x), "backwards": np.sort(x)[:, ::-1].copy(), "equal": x * 0}[kind]
    check(compile_graph(build_graph(lambda v: sorted_all_ways(v, 1000), TensorType(FLOAT32, x.shape))), x)


def test_parallel_rows() -> None:
    rng = np.random.default_rng()
    x = rng.standard_normal((301, 7, 97)).astype(np.float32)

    def all_axes(v: Any) -> tuple[Any, ...]:
        return tuple(r for a in range(3) for r in (ops.argsort(v, axis=a), *ops.top_k(v, axis=a, k=7)))
    check(compile_graph(build_graph(all_axes, TensorType(FLOAT32, x.shape))), x)


def test_dynamic_sizes() -> None:
    rows, length = symbol("B", 0), symbol("N", 5)
    compiled = compile_graph(build_graph(sorted_all_ways, TensorType(FLOAT32, (rows, length))))
    for shape in ((1, 5), (0, 5), (3, 16), (5, 17), (40, 1003), (2, 70_000)):
        x = np.random.default_rng().integers(0, 50, shape).astype(np.float32)
        check(compiled, x)


def test_one_row() -> None:
    for n in (1, 2, 100, 30_000):
        x = np.random.default_rng().integers(0, 99, n)
        check(compile_graph(build_graph(lambda v, n=n: sorted_all_ways(v, n), TensorType(INT64, x.shape))), x)


def test_neighbours_in_one_kernel() -> None:
    """What comes before and after a sort joins its kernel, and what only the kernel reads stays in a row."""
    def f(x: Any) -> tuple[Any, ...]:
        values, positions = ops.top_k(ops.exp(x), axis=1, k=8)
        return ops.sort(x * 2, axis=1) + 1, ops.take_along(x, positions, axis=1), values / ops.reduce_sum(
            values, axes=(1,), keepdims=True)
    x = np.random.default_rng().standard_normal((50, 200)).astype(np.float32)
    compiled = compile_graph(build_graph(f, TensorType(FLOAT32, x.shape)))
    for y, expected in zip(compiled(x), interpret(compiled.captured, [x]), strict=True):
        np.testing.assert_allclose(y, expected, 1e-5)


def test_both_results_of_top_k_come_from_one_kernel() -> None:
    for shape in ((500, 100), (1, 50_000)):
        graph = build_graph(lambda v: ops.top_k(v, axis=1, k=9), TensorType(FLOAT32, shape))
        compiled = compile_graph(graph)
        assert [k.kind for k in compiled.report.kernels] == ["sort"]


def test_the_program_means_the_same() -> None:
    x = input_node("x", TensorType(FLOAT32, (20, symbol("N", 5))))
    program = build_program(Graph((x,), sorted_all_ways(x, 3)), Machine(threads=3), {"N": 40}).program
    text = print_program(verify_program(program))
    assert print_program(parse_program(text)) == text
    assert "work" in text
    array = np.random.default_rng().integers(0, 9, (20, 31)).astype(np.float32)
    results = interpret_program(program, [array], harsh=True)
    for y, expected in zip(results, sorted_all_ways(array, 3), strict=True):
        assert_same(y, expected)
