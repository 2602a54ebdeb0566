"""One program for every size: representatives of each family with a symbolic axis, empty to parallel."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.errors import ShapeError
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ir.graph import build_graph
from planish.ops import get_op
from planish.ops.rules import apply_nullary, ops
from planish.runtime.tables import WORTH_THREADS
from planish.types import (
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    UINT32,
    DType,
    TensorType,
    evaluate_dim,
    is_static,
    symbol,
)
from planish.types.dim import minimum

SIZES = (0, 1, 7, 8, 33, 1000)
B = symbol("B")
POSITIVE = symbol("B", 1)
Make = Callable[..., Any]


def _window(x: Node) -> Node:
    return ops.reduce_window(x, kind="max", window=(1, 3), strides=(1, 2), padding=((0, 0), (1, 1)),
                             dilation=(1, 1))


def _conv(x: Node, w: Node) -> Node:
    return ops.conv(x, w, strides=(2,), padding=((1, 2),), lhs_dilation=(1,), rhs_dilation=(1,), groups=1)


def _scatter(x: Node, i: Node, u: Node) -> Node:
    return ops.scatter_along(x, i, u, axis=0, reduction="add")


CASES: dict[str, tuple[Make, list[tuple[DType, tuple]]]] = {
    "pointwise": (lambda x, y: ops.exp(x) + y, [(FLOAT32, (B, 17)), (FLOAT32, (17,))]),
    "pointwise, one axis": (lambda x: ops.tanh(x) * 2.0, [(FLOAT32, (B,))]),
    "integers": (lambda x, y: ops.floor_div(x, y), [(INT32, (B, 5)), (INT32, (B, 1))]),
    "transpose": (lambda x: ops.transpose(x, axes=(1, 0, 2)), [(FLOAT32, (B, 3, 5))]),
    "reshape": (lambda x: ops.neg(ops.reshape(x, shape=(B * 3, 4))), [(FLOAT32, (B, 12))]),
    "reshape of a transpose": (lambda x: ops.reshape(ops.transpose(x, axes=(1, 0)), shape=(B * 6,)),
                               [(INT64, (B, 6))]),
    "slice": (lambda x: ops.slice(x, starts=(0, 1), stops=(B, 9), steps=(1, 2)), [(INT32, (B, 9))]),
    "pad": (lambda x, f: ops.pad(x, f, low=(2, 0), high=(1, 3), interior=(1, 0)),
            [(FLOAT32, (B, 4)), (FLOAT32, ())]),
    "concat": (lambda x, y: ops.concat(x, y, x, axis=0), [(FLOAT32, (B, 4)), (FLOAT32, (3, 4))]),
    "concat inside": (lambda x, y: ops.concat(x, y, axis=1), [(FLOAT32, (B, 4)), (FLOAT32, (B, B))]),
    "reverse": (lambda x: ops.reverse(x, axes=(0,)), [(INT32, (B, 3))]),
    "sum of rows": (lambda x: ops.reduce_sum(x, axes=(1,), keepdims=False), [(FLOAT32, (B, 70))]),
    "sum of columns": (lambda x: ops.reduce_sum(x, axes=(0,), keepdims=True), [(FLOAT64, (B, 9))]),
    "sum of all": (lambda x: ops.reduce_sum(x, axes=(0, 1), keepdims=False), [(FLOAT32, (B, 70))]),
    "largest of none": (lambda x: ops.reduce_max(x, axes=(0,), keepdims=False), [(FLOAT32, (B, 9))]),
    "least of none": (lambda x: ops.reduce_min(x, axes=(0,), keepdims=True), [(INT32, (B, 9))]),
    "largest of columns": (lambda x: ops.reduce_max(x, axes=(0,), keepdims=False), [(INT32, (POSITIVE, 9))]),
    "argmax": (lambda x: ops.argmax(x, axis=1, keepdims=False), [(FLOAT32, (B, 33))]),
    "mean of a symbolic axis": (lambda x: ops.mean(x, axes=(0,), keepdims=False), [(FLOAT32, (POSITIVE, 9))]),
    "cumsum": (lambda x: ops.cumsum(x, axis=0, reverse=True, exclusive=True), [(INT64, (B, 5))]),
    "softmax": (lambda x: ops.softmax(x, axis=1), [(FLOAT32, (B, 33))]),
    "softmax of a symbolic axis": (lambda x: ops.softmax(x, axis=1), [(FLOAT32, (5, POSITIVE))]),
    "softmax of both": (lambda x: ops.softmax(ops.exp(x), axis=1), [(FLOAT32, (POSITIVE, POSITIVE))]),
    "scan of a scan": (lambda x: ops.exp(ops.cumsum(
        ops.cummax(x, axis=1, reverse=False, exclusive=False) * 1e-3, axis=1, reverse=True, exclusive=False)),
        [(FLOAT32, (5, B))]),
    "layer_norm": (lambda x, s, b: ops.layer_norm(x, s, b, axes_count=1, epsilon=1e-5),
                   [(FLOAT32, (B, 33)), (FLOAT32, (33,)), (FLOAT32, (33,))]),
    "matmul": (lambda x, y: ops.matmul(x, y), [(FLOAT32, (B, 33)), (FLOAT32, (33, 17))]),
    "matmul over the symbol": (lambda x, y: ops.matmul(x, y), [(FLOAT32, (5, B)), (FLOAT32, (B, 17))]),
    "conv": (_conv, [(FLOAT32, (B, 3, 11)), (FLOAT32, (4, 3, 3))]),
    "window": (_window, [(FLOAT32, (B, 12))]),
    "take": (lambda x, i: ops.take(x, i, axis=0), [(FLOAT32, (POSITIVE, 4)), (INT64, (6,))]),
    "take by symbolic indices": (lambda x, i: ops.take(x, i, axis=0), [(FLOAT32, (9, 4)), (INT64, (B,))]),
    "scatter": (_scatter, [(FLOAT32, (7, 4)), (INT64, (B, 4)), (FLOAT32, (B, 4))]),
    "iota": (lambda x: x + apply_nullary(ops.iota, x, shape=(B,), axis=0, dtype=INT32), [(INT32, (B,))]),
    "random": (lambda x, k: (ops.random_uniform(k, shape=(B, 3), dtype=FLOAT32) + x),
               [(FLOAT32, (B, 3)), (UINT32, (2,))]),
}


def graph_of(make: Make, types: list[tuple[DType, tuple]]) -> Graph:
    inputs = tuple(input_node(f"x{i}", TensorType(d, s)) for i, (d, s) in enumerate(types))
    return Graph(inputs, (make(*inputs),))


@pytest.mark.parametrize("name", CASES)
def test_every_size(name: str) -> None:
    make, types = CASES[name]
    graph = graph_of(make, types)
    compiled = compile_graph(graph, Options())
    symbolic = graph.symbols()["B"]
    for size in (s for s in SIZES if s >= symbolic.low):
        arrays = [_array(d, tuple(evaluate_dim(n, {"B": size}) for n in s)) for d, s in types]
        got, = compiled(*arrays)
        expected, = interpret(graph, arrays)
        assert got.dtype == expected.dtype and got.shape == expected.shape, f"B = {size}"
        scale = 1e-5 * max(1.0, float(np.sqrt(size)))
        np.testing.assert_allclose(got, expected, scale, scale, err_msg=f"B = {size}")


@pytest.mark.parametrize("strategy", ["native", "library"])
def test_sizes_out_of_range(strategy: Any) -> None:
    """Each symbol is held to its own range, also where another range depends on it, and says so by its own
    name."""
    few = symbol("few", 2, 5)
    within = symbol("within", 0, few - 1)
    x, y = (input_node(n, TensorType(FLOAT32, (d, 3))) for n, d in (("x", few), ("y", within)))
    good = ops.check(ops.reduce_all(ops.gt(x, 0.0), axes=(0, 1)), error="ValueError", message="negative")
    graph = Graph((x, y), (ops.concat(x, y, axis=0),), effects=(good,))
    compiled = compile_graph(graph, Options(strategy=strategy))
    ones = np.ones((7, 3), np.float32)
    for n, m in ((2, 0), (2, 1), (5, 4)):
        assert compiled(ones[:n], ones[:m])[0].shape == (n + m, 3)
    few, within = "few is to be from 2 to 5", "within is to be from 0 to few - 1"
    for n, m, message in ((1, 0, few), (6, 0, few), (5, 5, within), (2, 2, within)):
        with pytest.raises(ShapeError, match=message):
            compiled(ones[:n], ones[:m])
    with pytest.raises(ValueError, match="negative"):
        compiled(-ones[:3], ones[:1])


def _array(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng()
    if dtype.is_float:
        return rng.uniform(-2, 2, shape).astype(dtype.numpy)
    return rng.integers(0 if dtype is UINT32 else -12, 12, shape).astype(dtype.numpy)


def test_sizes_that_do_not_fit_into_64_bits() -> None:
    """The memory of N^4 elements would wrap to nothing at 65536."""
    n = symbol("N", 0, 10**9)
    x = input_node("x", TensorType(FLOAT32, (n,)))
    parts = [ops.reshape(x, shape=tuple(n if i == axis else 1 for i in range(4))) for axis in range(4)]
    sums = ops.cumsum(ops.cumsum(parts[0] + parts[1] + parts[2] + parts[3], axis=3), axis=0)
    compiled = compile_graph(Graph((x,), (ops.reduce_max(sums, axes=(0, 1, 2, 3)),)))
    assert compiled(np.ones(3, np.float32))[0] == 36
    for call in (compiled.program.call, compiled.program.call_ctypes):  # type: ignore[attr-defined]
        with pytest.raises(ShapeError, match=r"more memory than can be addressed; got x\[65536\]"):
            call(np.ones(65536, np.float32))


@pytest.mark.parametrize("limit", [5, 2**63 - 1])
def test_the_smaller_of_a_size_and_a_huge_one_fits(limit: int) -> None:
    shape = (minimum(symbol("N"), limit), 3)
    iota = apply_nullary(get_op("iota"), input_node("x", TensorType(FLOAT32, (symbol("N"),))), shape=shape,
                         axis=0, dtype=INT64)
    x = input_node("x", TensorType(FLOAT32, (symbol("N"),)))
    compiled = compile_graph(Graph((x,), (ops.cumsum(iota, axis=0),)))
    assert compiled(np.ones(9, np.float32))[0].shape == (min(9, limit), 3)


def _open_layers(x: Node, w: Node) -> Node:
    return ops.softmax(ops.tanh(x @ w) @ w, axis=1)


def _open_rounds(x: Node, w: Node) -> Node:
    for _ in range(6):
        x = ops.tanh(x @ constant(np.full((64, 64), 0.01, np.float32)))
    return x


@pytest.mark.parametrize("make", [_open_layers, _open_rounds])
def test_threads_are_for_sizes_that_pay(make: Make) -> None:
    """What a call's sizes make of the most work that threads share; and the answer at sizes on both sides."""
    graph = build_graph(make, TensorType(FLOAT32, (POSITIVE, 64)), TensorType(FLOAT32, (64, 64)))
    compiled = compile_graph(graph)
    work = compiled.code.code.work  # type: ignore[attr-defined]
    assert not is_static(work)
    small, large = (evaluate_dim(work, {"B": rows}) for rows in (1, 4000))
    assert 0 < small < WORTH_THREADS <= large
    for rows in (1, 31, 33, 4000):
        arrays = [_array(FLOAT32, shape) for shape in ((rows, 64), (64, 64))]
        expected, = interpret(graph, arrays)
        np.testing.assert_allclose(compiled(*arrays)[0], expected, 1e-4, 1e-5)


def test_static_work_needs_no_size_of_the_call() -> None:
    x, w = TensorType(FLOAT32, (4, 64)), TensorType(FLOAT32, (64, 64))
    compiled = compile_graph(build_graph(_open_layers, x, w))
    assert is_static(compiled.code.code.work)  # type: ignore[attr-defined]
    large = compile_graph(build_graph(_open_layers, TensorType(FLOAT32, (4000, 64)), w))
    assert large.code.code.work >= WORTH_THREADS  # type: ignore[attr-defined]
