"""Sums of products of integers get register tiles; of int16 in int32, two at a time. All are exact."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from planish.compiler import compile_graph
from planish.ir import Graph, Node, constant, input_node, interpret
from planish.ops.rules import ops
from planish.ops.samples import random_array
from planish.types import INT8, INT16, INT32, UINT64, DType, TensorType, dtype_of, symbol

SIZES = [(1, 100, 64), (7, 33, 50), (6, 64, 32), (13, 31, 16), (128, 1, 40), (64, 2, 64), (100, 77, 123)]


def operand(name: str, array: np.ndarray, fixed: bool) -> Node:
    return constant(array) if fixed else input_node(name, TensorType(dtype_of(array), array.shape))


def check(outputs: Node, arrays: Sequence[np.ndarray]) -> Any:
    """The native answer is the interpreter's; gives what was compiled. `arrays` are those of the inputs."""
    inputs = tuple(n for n in Graph((), (outputs,)).nodes() if n.op.name == "input")
    graph = Graph(tuple(sorted(inputs, key=lambda n: n.attributes.name)), (outputs,))
    compiled = compile_graph(graph)
    np.testing.assert_array_equal(compiled(*arrays)[0], interpret(graph, arrays)[0])
    return compiled


def product(x: Node, y: Node, result: DType | None) -> Node:
    return ops.dot_general(x, y, lhs_contract=(1,), rhs_contract=(0,), result=result)


def kinds(compiled: Any) -> list[str]:
    return [k.kind for k in compiled.report.kernels]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("dtype, result", [(INT16, INT32), (INT32, None), (UINT64, None)], ids=str)
def test_matrix_product(dtype: DType, result: DType | None, fixed: bool, sizes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng()
    m, k, n = sizes
    a, b = random_array(rng, dtype, (m, k)), random_array(rng, dtype, (k, n))
    x, y = operand("a", a, False), operand("b", b, fixed)
    compiled = check(product(x, y, result), [a] if fixed else [a, b])
    packing_pays = fixed or dtype is not INT16 or m > 1
    assert ("contraction" in kinds(compiled)) == (packing_pays and k > 1)


@pytest.mark.parametrize("edge", [127, 128, -128, -129])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_weights_that_fit_are_bytes(sizes: tuple[int, int, int], edge: int) -> None:
    rng = np.random.default_rng()
    m, k, n = sizes
    a, b = random_array(rng, INT16, (m, k)), rng.integers(-127, 127, (k, n)).astype(np.int16)
    b[-1, -1] = edge
    compiled = check(product(operand("a", a, False), operand("b", b, True), INT32), [a])
    panels = [dtype_of(c) for c in compiled.code.program.constants if c.ndim > 2]
    assert panels == [INT8 if -128 <= edge <= 127 else INT16] * (k > 1)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("sizes", SIZES[1:4], ids=str)
def test_pairs_that_lie_apart(sizes: tuple[int, int, int], fixed: bool) -> None:
    """Both operands transposed, with a batch: neighbours along k are a row away."""
    rng = np.random.default_rng()
    m, k, n = sizes
    a, b = random_array(rng, INT16, (3, k, m)), random_array(rng, INT16, (3, n, k))
    made = ops.dot_general(operand("a", a, False), operand("b", b, fixed), lhs_contract=(1,),
                           rhs_contract=(2,), lhs_batch=(0,), rhs_batch=(0,), result=INT32)
    check(made, [a] if fixed else [a, b])


def test_open_sizes() -> None:
    rng = np.random.default_rng()
    m, k, n = (symbol(s, 1, 1000) for s in "MKN")
    x, y = input_node("a", TensorType(INT16, (m, k))), input_node("b", TensorType(INT16, (k, n)))
    compiled = compile_graph(Graph((x, y), (product(x, y, INT32),)))
    for rows, depth, columns in ((5, 7, 9), (64, 65, 66), (1, 1, 1), (6, 2, 16), (100, 100, 100)):
        a, b = random_array(rng, INT16, (rows, depth)), random_array(rng, INT16, (depth, columns))
        np.testing.assert_array_equal(compiled(a, b)[0], a.astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("groups, strides, taps", [(1, (1, 1), (3, 3)), (1, (2, 1), (2, 5)),
                                                   (2, (1, 1), (1, 1))])
def test_convolution(groups: int, strides: tuple[int, int], taps: tuple[int, int], fixed: bool) -> None:
    rng = np.random.default_rng()
    a, b = random_array(rng, INT16, (2, 8, 11, 19)), random_array(rng, INT16, (24, 8 // groups, *taps))
    made = ops.conv(operand("a", a, False), operand("b", b, fixed), strides=strides, padding=((1, 1), (0, 2)),
                    lhs_dilation=(1, 1), rhs_dilation=(1, 1), groups=groups, result=INT32)
    compiled = check(made, [a] if fixed else [a, b])
    assert "contraction" in kinds(compiled) or groups > 1


def test_a_convolution_between_others_is_laid_out_for_its_weights() -> None:
    """Channels innermost, so that whole vectors are stored and pairs lie side by side for the next one."""
    rng = np.random.default_rng()
    a = random_array(rng, INT16, (1, 8, 14, 14))
    shapes = (32, 8, 3, 3), (16, 32, 1, 1)
    first, second = (constant(rng.integers(-9, 9, s).astype(np.int16)) for s in shapes)
    form = {"strides": (1, 1), "padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 1), "rhs_dilation": (1, 1),
            "result": INT32}
    inner = ops.cast(ops.conv(operand("a", a, False), first, **form), dtype=INT16)
    compiled = check(ops.conv(inner, second, **form), [a])
    assert kinds(compiled) == ["contraction"] * 2
    assert any("axes (0, 2, 3, 1)" in d for d in compiled.report.decisions)


def test_what_follows_stays_in_registers() -> None:
    """A requantisation is the epilogue of the product's kernel."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-255, 256, s).astype(np.int16) for s in ((37, 70), (70, 45)))
    total = product(operand("a", a, False), constant(b), INT32)
    scaled = ops.round(ops.cast(total, dtype=dtype_of("float32")) * 1e-3) + 3.0
    clipped = ops.cast(ops.minimum(ops.maximum(scaled, -128.0), 127.0), dtype=dtype_of("int8"))
    assert kinds(check(clipped, [a])) == ["contraction"]


def test_extremes_wrap_as_int32_does() -> None:
    """(-2 ** 15) ** 2 twice is 2 ** 31: the one pair whose sum is not an int32."""
    a, b = (np.full(s, -2 ** 15, np.int16) for s in ((8, 64), (64, 32)))
    check(product(operand("a", a, False), operand("b", b, False), INT32), [a, b])
