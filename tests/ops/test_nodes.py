"""Formulas on graph nodes: decompositions and gradients do what they do on arrays; sizes may be symbolic."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planish import ops
from planish.ir import Graph, Node, input_node, interpret
from planish.ops import OPS, Op, Sample
from planish.types import BFLOAT16, BOOL, FLOAT32, FLOAT64, INT64, TensorType, symbol
from tests.ops.cases import RECORDS, assert_same, evaluate, samples_of, types_of

COMPOSITES = [op for op in RECORDS if op.has("composite")]
DIFFERENTIABLE = [op for op in RECORDS if op.gradient is not None
                  and (FLOAT64 in op.dtypes or op.name == "select")]


def modest(op: Op, dtype: Any) -> list[Sample]:
    return [s for s in samples_of(op, dtype) if sum(a.size for a in s.operands) <= 2000]


def inputs_for(arrays: Any, prefix: str = "x") -> tuple[Node, ...]:
    return tuple(input_node(f"{prefix}{i}", t) for i, t in enumerate(types_of(arrays)))


@pytest.mark.parametrize("op", COMPOSITES, ids=str)
def test_decomposition(op: Op) -> None:
    """The decomposed graph is of other ops, has the type the rule says, and gives the same bits."""
    for dtype in op.dtypes:
        for sample in modest(op, dtype)[:20]:
            attributes = op.make_attributes(sample.attributes)
            nodes = inputs_for(sample.operands)
            graph = Graph(nodes, (op.decompose(attributes, *nodes),))
            assert op not in {n.op for n in graph.nodes()}
            assert graph.outputs[0].type == op.infer(attributes, *types_of(sample.operands))
            assert_same(interpret(graph, sample.operands)[0], evaluate(op, sample)[0], f"{op} {sample.label}")


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=str)
def test_gradient(op: Op) -> None:
    dtype = BOOL if op.name == "select" else FLOAT64
    for sample in [s for s in modest(op, dtype) if s.attributes.get("dtype", FLOAT64) is FLOAT64][:6]:
        attributes = op.make_attributes(sample.attributes)
        nodes, results = inputs_for(sample.operands), evaluate(op, sample)
        result = op(*nodes, **sample.attributes) if nodes else None
        if result is None or any(r.dtype == bool for r in results):
            continue
        given = tuple(np.ones_like(r) for r in results)
        g = inputs_for(given, "g")
        several = isinstance(result, tuple)
        made = op.gradient(g if several else g[0], attributes, result, *nodes)
        with np.errstate(all="ignore"):
            expected = op.gradient(given if several else given[0], attributes,
                                   results if several else results[0], *sample.operands)
        for node, array in zip(made, expected, strict=True):
            assert (node is None) == (array is None)
            if node is not None:
                actual = interpret(Graph((*g, *nodes), (node,)), (*given, *sample.operands))[0]
                np.testing.assert_allclose(actual, array, rtol=1e-12, atol=1e-300,
                                           err_msg=f"{op} {sample.label}")


N, M = symbol("N", 1), symbol("M", 1)


def node(*shape: Any, dtype: Any = FLOAT32, name: str = "x") -> Node:
    return input_node(name, TensorType(dtype, shape))


CONV = {"strides": (2,), "padding": ((1, 1),), "lhs_dilation": (1,), "rhs_dilation": (1,)}
SYMBOLIC = {
    "add": (lambda: ops.add(node(N, 4), node(4)), (N, 4)),
    "reshape merges": (lambda: ops.reshape(node(N, 4, M), shape=(N, M * 4)), (N, M * 4)),
    "reshape splits": (lambda: ops.reshape(node(N * 6), shape=(N, 2, 3)), (N, 2, 3)),
    "broadcast_to": (lambda: ops.broadcast_to(node(1, 4), shape=(N, 4)), (N, 4)),
    "transpose": (lambda: ops.transpose(node(N, M, 3), axes=(2, 0, 1)), (3, N, M)),
    "slice": (lambda: ops.slice_(node(N + 3), starts=(1,), stops=(N + 2,), steps=(1,)), (N + 1,)),
    "slice in steps": (lambda: ops.slice_(node(N), starts=(0,), stops=(N,), steps=(2,)), ((N + 1) // 2,)),
    "pad": (lambda: ops.pad(node(N), np.float32(0), low=(1,), high=(2,), interior=(1,)), (N * 2 + 2,)),
    "concat": (lambda: ops.concat(node(N, 2), node(M, 2), axis=0), (N + M, 2)),
    "reduce_sum": (lambda: ops.reduce_sum(node(N, M), axes=(1,)), (N,)),
    "matmul": (lambda: ops.matmul(node(N, M, 8), node(8, 5)), (N, M, 5)),
    "batched matmul": (lambda: ops.matmul(node(N, 3, 8), node(N, 8, M)), (N, 3, M)),
    "conv": (lambda: ops.conv(node(N, 3, M), node(4, 3, 3), **CONV), (N, 4, (M - 1) // 2 + 1)),
    "reduce_window": (lambda: ops.reduce_window(node(N, M + 2), kind="max", window=(1, 3), strides=(1, 1),
                                                padding=((0, 0), (0, 0)), dilation=(1, 1)), (N, M)),
    "take": (lambda: ops.take(node(M, 8), node(N, 2, dtype=INT64), axis=0), (N, 2, 8)),
    "softmax": (lambda: ops.softmax(node(N, M), axis=1), (N, M)),
    "layer_norm": (lambda: ops.layer_norm(node(N, 8), node(8), node(8)), (N, 8)),
    "attention": (lambda: ops.attention(node(2, N, 8), node(2, M, 8), node(2, M, 5)), (2, N, 5)),
    "sums of attention": (lambda: ops.attention_logsumexp(node(2, N, 8), node(2, M, 8)), (2, N)),
    "one_hot": (lambda: ops.one_hot(node(N, dtype=INT64), depth=7), (N, 7)),
    "top_k": (lambda: ops.top_k(node(N, 9), axis=1, k=3)[0], (N, 3)),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name: str) -> None:
    build, shape = SYMBOLIC[name]
    assert build().shape == shape


FORMULAS = {
    "mean": (lambda x: ops.OPS["mean"].decompose(ops.OPS["mean"].make_attributes({"axes": (0, 1)}), x)),
    "variance": (lambda x: ops.OPS["variance"].decompose(
        ops.OPS["variance"].make_attributes({"axes": (0,), "correction": 1}), x)),
    "causal attention": (lambda x: ops.OPS["attention"].decompose(
        ops.OPS["attention"].make_attributes({"causal": True, "scale": 0.5}), x, x, x)),
    "gradient of softmax": (lambda x: ops.softmax.gradient(
        x, ops.softmax.make_attributes({"axis": 1}), ops.softmax(x, axis=1), x)[0]),
    "gradient of take": (lambda x: ops.take.gradient(
        x, ops.take.make_attributes({"axis": 0}), x, x,
        ops.reshape(ops.cast(ops.cumsum(ops.reduce_sum(ops.mul(x, 0), axes=(1,)), axis=0), dtype=INT64),
                    shape=x.shape[:1]))[0]),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT64], ids=str)
def test_formulas_with_symbolic_sizes(name: str, dtype: Any) -> None:
    """Built once with a symbolic size, run at three: the same as the formula on arrays."""
    x = node(N, 5, dtype=dtype)
    graph = Graph((x,), (FORMULAS[name](x),))
    for n in (2, 3, 17):
        array = np.random.default_rng(n).normal(size=(n, 5)).astype(dtype.numpy)
        np.testing.assert_allclose(interpret(graph, [array])[0].astype(float),
                                   FORMULAS[name](array).astype(float),
                                   rtol=1e-2 if dtype is BFLOAT16 else 1e-6)


@pytest.mark.parametrize(("name", "operands", "attributes"), [
    ("conv", ((N, 4, 9), (6, 2, 3)), {**CONV, "groups": 2}), ("matmul", ((N, 3, 8), (8, 5)), {}),
    ("layer_norm", ((N, 8), (8,), (8,)), {}), ("concat", ((N, 2), (M, 2)), {"axis": 0}),
    ("slice", ((N + 3,),), {"starts": (1,), "stops": (N + 2,), "steps": (1,)}),
    ("cummax", ((N, 3),), {"axis": 0}),
    ("batch_norm", ((N, 3, M), (3,), (3,), (3,), (3,)), {}), ("gelu", ((N,),), {}),
    ("logsumexp", ((N, M),), {"axes": (1,)}),
])
def test_gradients_build_with_symbolic_sizes(name: str, operands: Any, attributes: Any) -> None:
    op = OPS[name]
    nodes = [node(*shape, name=f"x{i}") for i, shape in enumerate(operands)]
    result = op(*nodes, **attributes)
    made = op.gradient(node(*result.shape, name="g"), op.make_attributes(attributes), result, *nodes)
    assert [m.type for m in made] == [n.type for n in nodes]
