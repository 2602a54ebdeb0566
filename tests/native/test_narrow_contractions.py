"""Products of float16 and bfloat16 get register tiles: summed in float32, rounded once at the end."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.contract import conv_case
from planish.ops.rules import ops
from planish.ops.samples import random_array
from planish.types import BFLOAT16, FLOAT16, FLOAT32, DType, TensorType, symbol

NARROW = [BFLOAT16, FLOAT16]
SIZES = [(1, 100, 64), (2, 33, 50), (3, 64, 19), (4, 64, 32), (13, 31, 16), (64, 2, 64), (50, 77, 123)]


def run(made: Node, *arrays: np.ndarray, disable: frozenset[str] = frozenset()) -> list[str]:
    """Checks the native answer against float64 and gives the kinds of the kernels."""
    inputs = sorted((n for n in made_nodes(made) if n.op.name == "input"), key=lambda n: n.attributes.name)
    graph = Graph(tuple(inputs), (made,))
    compiled = compile_graph(graph, Options(disable=disable))
    actual, exact = compiled(*arrays)[0], interpret(graph, arrays, precision="float64")[0]
    ulp = 2.0 ** (-8 if made.dtype is BFLOAT16 else -11)
    scale = np.abs(exact).max()
    np.testing.assert_allclose(actual.astype(np.float64), exact, rtol=ulp, atol=1e-5 * scale)
    return [k.kind for k in compiled.report.kernels]


def made_nodes(made: Node) -> tuple[Node, ...]:
    return tuple(Graph((), (made,)).nodes())


def operand(name: str, array: np.ndarray, dtype: DType, fixed: bool = False) -> Node:
    return constant(array, dtype) if fixed else input_node(name, TensorType(dtype, array.shape))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_matrix_product(dtype: DType, fixed: bool, turned: bool) -> None:
    rng = np.random.default_rng()
    for m, k, n in SIZES:
        a, b = (random_array(rng, dtype, s, -2, 2) for s in ((m, k), (n, k) if turned else (k, n)))
        made = ops.dot_general(operand("a", a, dtype), operand("b", b, dtype, fixed), lhs_contract=(1,),
                               rhs_contract=(1 if turned else 0,))
        kinds = run(made, a, *([] if fixed else [b]))
        assert ("contraction" in kinds) == (fixed or m > 1)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_epilogue_batches_and_wide_result(dtype: DType) -> None:
    rng = np.random.default_rng()
    a, b = random_array(rng, dtype, (3, 9, 40), -2, 2), random_array(rng, dtype, (3, 40, 21), -2, 2)
    x, y = operand("a", a, dtype), operand("b", b, dtype)
    made = ops.dot_general(x, y, lhs_contract=(2,), rhs_contract=(1,), lhs_batch=(0,), rhs_batch=(0,),
                           result=FLOAT32)
    assert "contraction" in run(ops.maximum(made, 0.5), a, b)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_convolution(dtype: DType) -> None:
    rng = np.random.default_rng()
    a, w = random_array(rng, dtype, (2, 5, 33), -2, 2), random_array(rng, dtype, (17, 5, 3), -2, 2)
    run(ops.conv(operand("a", a, dtype), constant(w, dtype), **conv_case(1, padding=((1, 1),))), a)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("disable", [frozenset(), frozenset({"prepack"})], ids=["", "prepack"])
def test_open_rows(dtype: DType, disable: frozenset[str]) -> None:
    rng = np.random.default_rng()
    w = random_array(rng, dtype, (33, 41), -2, 2)
    x = input_node("a", TensorType(dtype, (symbol("M", 0, 100), 33)))
    compiled = compile_graph(Graph((x,), (ops.matmul(x, constant(w, dtype)),)), Options(disable=disable))
    for rows in (0, 1, 2, 5, 12, 100):
        a = random_array(rng, dtype, (rows, 33), -2, 2)
        exact = a.astype(np.float64) @ w.astype(np.float64)
        np.testing.assert_allclose(compiled(a)[0].astype(np.float64), exact, rtol=2 ** -8, atol=1e-3)
