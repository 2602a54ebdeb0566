"""Contractions whose operands are seen through reshapes and transposes still get a register tile."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import constant, interpret
from planish.ir.graph import build_graph
from planish.ops import get_op
from planish.types import FLOAT32, TensorType, symbol

reshape, transpose = get_op("reshape"), get_op("transpose")


def product(x, w):
    return get_op("dot_general")(x, w, lhs_contract=(1,), rhs_contract=(0,))


def merged_heads(x, w):
    """[heads, rows, size] -> [rows, heads * size] @ w: what follows an attention."""
    heads, rows, size = x.shape
    return product(reshape(transpose(x, axes=(1, 0, 2)), shape=(rows, heads * size)), w)


def merged_rows(x, w):
    """Rows that a transpose and a reshape put together from two axes."""
    a, b, k = x.shape
    return product(reshape(transpose(x, axes=(1, 0, 2)), shape=(a * b, k)), w)


@pytest.mark.parametrize("function, shape, depth", [
    (merged_heads, (4, 19, 16), 64), (merged_heads, (3, 7, 5), 15), (merged_rows, (5, 6, 33), 33)])
@pytest.mark.parametrize("strategy", ["fused", "apart"])
def test_tiled_and_right(function, shape, depth, strategy):
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, (depth, 40))]
    graph = build_graph(function, *(TensorType(FLOAT32, a.shape) for a in arrays))
    compiled = compile_graph(graph, Options(disable=frozenset({"fuse"} if strategy == "apart" else ())))
    assert [k.kind for k in compiled.report.kernels] == ["contraction"]
    expected, = interpret(graph, arrays, precision="float64")
    np.testing.assert_allclose(compiled(*arrays)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lhs, rhs, dims", [
    ((45, 700), (700, 110), {"lhs_contract": (1,), "rhs_contract": (0,)}),
    ((20, 300), (300, 256), {"lhs_contract": (1,), "rhs_contract": (0,)}),
    ((300, 97), (300, 75), {"lhs_contract": (0,), "rhs_contract": (0,)}),
    ((512, 128), (512, 160), {"lhs_contract": (0,), "rhs_contract": (0,)}),
    ((2, 150, 130), (2, 150, 67),
     {"lhs_contract": (1,), "rhs_contract": (1,), "lhs_batch": (0,), "rhs_batch": (0,)}),
    ((30, 9, 130), (30, 9, 67), {"lhs_contract": (0, 1), "rhs_contract": (0, 1)}),
])
@pytest.mark.parametrize("is_open", [False, True])
def test_operands_spread_over_memory_are_packed(lhs, rhs, dims, is_open):
    """Columns of a large operand lie apart: it is packed at each call, on either side."""
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (lhs, rhs)]
    open_size = lhs[-1] if is_open else None
    types = [TensorType(FLOAT32, tuple(symbol("n", 1, 4096) if d == open_size else d for d in a.shape))
             for a in arrays]
    graph = build_graph(lambda x, w: get_op("dot_general")(x, w, **dims), *types)
    compiled = compile_graph(graph, hint={"n": lhs[-1]} if is_open else {})
    assert any("pack" in k.ops for k in compiled.report.kernels)
    expected, = interpret(graph, arrays, precision="float64")
    np.testing.assert_allclose(compiled(*arrays)[0], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("lhs, rhs, axes, kernels", [
    ((4, 65536), (65536, 16), (1, 0), 2),
    ((65537, 3), (17, 65537), (0, 1), 3),       # what is left over is a product of its own
    ((2, 2, 50000), (16, 50000), (2, 1), 3),
    ((4, 2000), (2000, 16), (1, 0), 1),         # a short sum,
    ((12, 65536), (65536, 16), (1, 0), 1),      # and more than one tile
])
def test_a_long_sum_of_few_results_is_in_parts(lhs, rhs, axes, kernels):
    """Which any number of threads share, to the same bits."""
    rng = np.random.default_rng()
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (lhs, rhs)]
    how = {"lhs_contract": axes[:1], "rhs_contract": axes[1:], "alpha": 0.01}
    graph = build_graph(lambda x, w: get_op("tanh")(get_op("dot_general")(x, w, **how)),
                        *(TensorType(FLOAT32, s) for s in (lhs, rhs)))
    one, two, three = (compile_graph(graph, Options(threads=n)) for n in (1, 2, 3))
    assert len([k for k in one.report.kernels if k.ops != ("pack",)]) == kernels
    expected, = interpret(graph, arrays, precision="float64")
    result, = one(*arrays)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert np.array_equal(result, two(*arrays)[0]) and np.array_equal(result, three(*arrays)[0])


@pytest.mark.parametrize("rows, depth, columns", [(0, 8, 24), (16, 0, 24), (16, 8, 0)])
@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_empty_operands(rows, depth, columns, batch, turned):
    """Sums over nothing are 0, results of no elements are empty; also where the result is turned around."""
    def function(x):
        w = constant(arrays[1])
        y = get_op("dot_general")(x, w, lhs_contract=(2,), rhs_contract=(1,), lhs_batch=(0,), rhs_batch=(0,))
        return transpose(y, axes=(0, 2, 1)) if turned else y

    arrays = [np.ones(s, np.float32) for s in ((batch, rows, depth), (batch, depth, columns))]
    compiled = compile_graph(build_graph(function, TensorType(FLOAT32, arrays[0].shape)))
    expected = np.matmul(*arrays)
    np.testing.assert_array_equal(compiled(arrays[0])[0], expected.transpose(0, 2, 1) if turned else expected)
