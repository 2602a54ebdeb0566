"""A transformer block as exporters write it:

LayerNorm, QKV, heads by shape arithmetic, softmax, GELU from Erf pieces.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from planish.capture.onnx import load_graph
from planish.ir import Graph
from tests.capture.onnx.running import (
    STRATEGIES,
    assert_same,
    make_model,
    native,
    onnxruntime_outputs,
    reference,
    run,
)

WIDTH, HEADS, INNER = 24, 4, 64
node = helper.make_node


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def w(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    vectors = {
        n: w(WIDTH) for n in ("ln1_scale", "ln1_bias", "ln2_scale", "ln2_bias", "proj_bias", "down_bias")
    }
    sizes = {"zero": 0, "one": 1, "heads": [HEADS], "head": [WIDTH // HEADS], "minus": [-1], "first": [0]}
    numbers = {"root": WIDTH // HEADS, "sqrt2": np.sqrt(2), "half": 0.5, "1.0": 1}
    return {
        **vectors,
        "qkv": w(WIDTH, 3 * WIDTH),
        "qkv_bias": w(3 * WIDTH),
        "proj": w(WIDTH, WIDTH),
        "up": w(WIDTH, INNER),
        "up_bias": w(INNER),
        "down": w(INNER, WIDTH),
        **{k: np.array(v, np.int64) for k, v in sizes.items()},
        **{k: np.array(v, np.float32) for k, v in numbers.items()},
    }


def to_heads(x: str) -> list[Any]:
    return [
        node("Reshape", [x, "split"], [f"{x}_s"]),
        node("Transpose", [f"{x}_s"], [f"{x}_h"], perm=[0, 2, 1, 3]),
    ]


def block() -> list[Any]:
    sizes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["b0"]),
        node("Gather", ["shape", "one"], ["s0"]),
        node("Unsqueeze", ["b0", "first"], ["b"]),
        node("Unsqueeze", ["s0", "first"], ["s"]),
        node("Concat", ["b", "s", "heads", "head"], ["split"], axis=0),
        node("Concat", ["b", "s", "minus"], ["joined"], axis=0),
    ]
    attention = [
        node("LayerNormalization", ["x", "ln1_scale", "ln1_bias"], ["n1"], epsilon=1e-5),
        node("MatMul", ["n1", "qkv"], ["qkv0"]),
        node("Add", ["qkv0", "qkv_bias"], ["qkv1"]),
        node("Split", ["qkv1"], ["q", "k", "v"], axis=-1),
        *to_heads("q"),
        *to_heads("k"),
        *to_heads("v"),
        node("Transpose", ["k_h"], ["k_t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q_h", "k_t"], ["scores"]),
        node("Sqrt", ["root"], ["scale"]),
        node("Div", ["scores", "scale"], ["scaled"]),
        node("Softmax", ["scaled"], ["p"], axis=-1),
        node("MatMul", ["p", "v_h"], ["a"]),
        node("Transpose", ["a"], ["a_t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["a_t", "joined"], ["a_j"]),
        node("MatMul", ["a_j", "proj"], ["o"]),
        node("Add", ["o", "proj_bias"], ["o1"]),
        node("Add", ["x", "o1"], ["r1"]),
    ]
    feed_forward = [
        node("LayerNormalization", ["r1", "ln2_scale", "ln2_bias"], ["n2"], epsilon=1e-5),
        node("MatMul", ["n2", "up"], ["u0"]),
        node("Add", ["u0", "up_bias"], ["u"]),
        node("Div", ["u", "sqrt2"], ["e0"]),
        node("Erf", ["e0"], ["e1"]),
        node("Add", ["e1", "1.0"], ["e2"]),
        node("Mul", ["u", "e2"], ["e3"]),
        node("Mul", ["e3", "half"], ["g"]),
        node("MatMul", ["g", "down"], ["d"]),
        node("Add", ["d", "down_bias"], ["d1"]),
        node("Add", ["r1", "d1"], ["y"]),
    ]
    return [*sizes, *attention, *feed_forward]


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(block(), {"x": (np.float32, ("batch", "sequence", WIDTH))}, ["y"],
                      initializers=weights(np.random.default_rng(3)))


@pytest.fixture(scope="module")
def graph(model: Any) -> Graph:
    return load_graph(model)


def test_sizes_stay_symbolic(graph: Graph) -> None:
    assert str(graph.outputs[0].type) == f"f32[batch, sequence, {WIDTH}]"
    names = [n.op.name for n in graph.nodes()]
    assert names.count("layer_norm") == 2
    assert names.count("softmax") == 1
    assert {"size", "iota", "take"}.isdisjoint(names)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("sizes", [(1, 1), (2, 7), (5, 16)])
def test_equals_the_peers(model: Any, graph: Graph, sizes: tuple[int, int], strategy: str) -> None:
    feeds = {"x": np.random.default_rng().normal(size=(*sizes, WIDTH)).astype(np.float32)}
    got = run(graph, feeds, strategy)
    assert_same(got, reference(model, feeds), factor=16)
    assert_same(got, onnxruntime_outputs(model, feeds), factor=16)


def test_one_program_for_every_size(model: Any, graph: Graph) -> None:
    """Compiled once; also for no batches and no tokens, of which the peers' Reshape makes an error."""
    compiled = native(graph)
    for sizes in ((1, 64), (3, 130), (1, 1), (17, 3)):
        feeds = {"x": np.random.default_rng().normal(size=(*sizes, WIDTH)).astype(np.float32)}
        assert_same(compiled(*feeds.values()), reference(model, feeds), factor=16)
    for sizes in ((0, 4), (2, 0), (0, 0)):
        for strategy in STRATEGIES:
            got, = run(graph, {"x": np.ones((*sizes, WIDTH), np.float32)}, strategy)
            assert (got.shape, got.dtype) == ((*sizes, WIDTH), np.float32)
