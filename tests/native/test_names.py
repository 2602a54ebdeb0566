"""Sizes may have any name, also those of loops."""
from __future__ import annotations

import numpy as np
import pytest

from planish.compiler import compile_graph
from planish.ir import Graph, input_node, interpret
from planish.ops.rules import ops
from planish.schedule.names import is_axis, renamed_sizes
from planish.types import FLOAT32, TensorType, symbol


@pytest.mark.parametrize("names", ["n h w", "s0 s1 s2", "s1 a0 s0", "a1 s0p0 s2i"])
def test_a_size_called_as_a_loop(names: str) -> None:
    n, h, w = (symbol(name, 1) for name in names.split())
    x = input_node("x", TensorType(FLOAT32, (n, 4, h, w)))
    total = ops.reduce_sum(x, axes=(1,), keepdims=True)
    graph = Graph((x,), (x - ops.broadcast_to(total, shape=x.shape), ops.exp(total), ops.softmax(x, axis=3)))
    compiled = compile_graph(graph, hint={str(n): 2, str(h): 5, str(w): 3})
    for shape in ((2, 4, 5, 3), (3, 4, 40, 30), (1, 4, 1, 70)):
        array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for got, expected in zip(compiled(array), interpret(graph, (array,))):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_only_what_clashes_is_renamed() -> None:
    least = symbol("s0", 1)
    graph = Graph((input_node("x", TensorType(FLOAT32, (least, symbol("s77"), symbol("s1", 0, least)))),), ())
    renamed = renamed_sizes(graph)
    assert {name: str(new) for name, new in renamed.items()} == {"s0": "size_s0", "s1": "size_s1"}
    assert is_axis("a9") and is_axis("s3i") and not is_axis("s77") and not is_axis("batch")
