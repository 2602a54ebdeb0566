"""The integer table as native code: every op at every width, at each size where generated code differs.

tests/ops/test_integers.py holds the records' meanings to Python's integers, and says which ops there are.
Wrapping is judged before a result is widened: 200 + 100 of uint8 is 44.
"""
from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from planish.compiler import Options, compile_graph
from planish.ir import Graph, input_node
from planish.ops import OPS
from planish.ops.rules import INTEGERS, ops
from planish.ops.samples import PARALLEL, random_array, special_values
from planish.types import INT64, UINT8, DType, TensorType
from tests.native.harness import run_native
from tests.ops.test_integers import BINARY, UNARY

SIZES = {"one": 1, "vectors": 128, "vectors and a tail": 1013, "several threads": PARALLEL}


def pairs(dtype: DType, size: int) -> tuple[np.ndarray, ...]:
    """Any values, half of them special ones, and beside one another first."""
    rng = np.random.default_rng()
    special = special_values(dtype)
    x, y = random_array(rng, dtype, (2, size))
    for one in (x, y):
        one[::2] = rng.choice(special, len(one[::2]))
    both = rng.permutation(np.array(list(product(special, special)), dtype.numpy))[:size]
    x[:len(both)], y[:len(both)] = both.T
    return x, y


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_table(dtype: DType, size: int) -> None:
    x, y = (input_node(name, TensorType(dtype, (size,))) for name in "xy")
    names = (*BINARY, *UNARY)
    nodes = [OPS[n](x, y) for n in BINARY] + [OPS[n](x) for n in UNARY]
    arrays = pairs(dtype, size)
    results = compile_graph(Graph((x, y), tuple(nodes)), Options(threads=2))(*arrays)
    for name, result in zip(names, results, strict=True):
        expected = OPS[name](*arrays[:1 if name in UNARY else 2])
        wrong = np.flatnonzero(result != expected)
        assert result.dtype == expected.dtype
        shown = [(a[i], b[i], result[i], expected[i]) for a, b in [arrays] for i in wrong[:1]]
        assert not shown, f"{name} of {dtype}: operands, result, expected: {shown}"


def test_wraps_before_it_is_widened() -> None:
    x, y = (input_node(name, TensorType(UINT8, (37,))) for name in "xy")
    graph = Graph((x, y), (ops.cast(ops.add(x, y), dtype=INT64),))
    arrays = [np.full(37, value, np.uint8) for value in (200, 100)]
    assert run_native(graph, arrays)[0].tolist() == [44] * 37
