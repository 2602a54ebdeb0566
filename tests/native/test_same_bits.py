"""The same bits from one thread, two and three, and from every run: no sum depends on who computes it."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planish.compiler import NativeCompiled, Options, compile_graph
from planish.ir import Graph, Node, constant, input_node
from planish.ops.rules import ops
from planish.types import BFLOAT16, FLOAT32, DType, TensorType

rng = np.random.default_rng()


def weight(*shape: int) -> Node:
    return constant(rng.normal(size=shape).astype(np.float32))


def conv(x: Node, out: int, size: int, groups: int = 1, stride: int = 1, spread: int = 1) -> Node:
    return ops.conv(x, weight(out, x.shape[1] // groups, size, size), strides=(stride, stride), groups=groups,
                    padding=((size // 2, size // 2),) * 2, lhs_dilation=(spread, spread),
                    rhs_dilation=(1, 1))


def network(x: Node) -> Node:
    """Every kind of convolution, pooling and a mean, one after another."""
    y = ops.maximum(conv(x, 40, 7, stride=2), 0.0)
    y = ops.reduce_window(y, kind="max", window=(1, 1, 3, 3), strides=(1, 1, 2, 2), dilation=(1,) * 4,
                          padding=((0, 0), (0, 0), (1, 1), (1, 1)))
    y = ops.sigmoid(conv(conv(conv(y, 96, 1), 96, 3, groups=96), 48, 3, groups=4))
    return ops.mean(conv(conv(y, 24, 4, spread=2), 33, 3), axes=(2, 3), keepdims=False)


def product(x: Node, y: Node) -> Node:
    return ops.gelu(ops.matmul(x, y))


def weights(x: Node) -> Node:
    w = rng.normal(size=(x.shape[1], 1000)).astype(x.dtype.numpy)
    return ops.matmul(x, constant(w, x.dtype))


def attention(q: Node, k: Node, v: Node) -> Node:
    return ops.attention(q, k, v, causal=True)


def reductions(x: Node) -> list[Node]:
    return [ops.reduce_sum(x, axes=(0, 1)), ops.reduce_sum(x, axes=(0,)), ops.softmax(x, axis=1),
            ops.mean(ops.exp(x), axes=(1,), keepdims=False), ops.argmax(x, axis=0), ops.cumsum(x, axis=1)]


F = FLOAT32
PROGRAMS: dict[str, tuple[Callable, list[tuple[DType, tuple[int, ...]]]]] = {
    "convolutions": (network, [(F, (1, 3, 75, 93))]),
    "product": (product, [(F, (203, 301)), (F, (301, 171))]),
    "wide product": (product, [(F, (5, 301)), (F, (301, 1171))]),
    "one row": (weights, [(F, (1, 777))]),
    "rows of bfloat16": (weights, [(BFLOAT16, (37, 777))]),
    "attention": (attention, [(F, (3, 211, 40)), (F, (3, 600, 40)), (F, (3, 600, 40))]),
    "a query": (attention, [(F, (3, 1, 40)), (F, (3, 600, 40)), (F, (3, 600, 40))]),
    "reductions": (reductions, [(F, (517, 1303))]),
    "long sums": (reductions, [(F, (2, 300_001))]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits(name: str) -> None:
    make, operands = PROGRAMS[name]
    inputs = tuple(input_node(f"x{i}", TensorType(d, s)) for i, (d, s) in enumerate(operands))
    made = make(*inputs)
    graph = Graph(inputs, tuple(made) if isinstance(made, list) else (made,))
    arrays = [rng.normal(size=s).astype(d.numpy) for d, s in operands]
    alone = compile_graph(graph, Options(threads=1))
    assert isinstance(alone, NativeCompiled)
    assert any(step.startswith("parallel(") for k in alone.report.kernels for step in k.schedule)
    expected = alone(*arrays)
    for threads in (1, 2, 2, 2, 3):
        for one, other in zip(expected, compile_graph(graph, Options(threads=threads))(*arrays), strict=True):
            assert one.tobytes() == other.tobytes()
