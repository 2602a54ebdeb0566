"""Weights that are taken out of a file before it is parsed: nothing is lost, and nothing is copied."""
from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from planish.capture.onnx.model import read_model
from planish.capture.onnx.translate import translate_model
from planish.capture.onnx.wire import LARGE, take_weights

rng = np.random.default_rng()


def with_weights(*counts: int) -> onnx.ModelProto:
    """x + w0, x + w1..., weights of so many floats."""
    tensors = [numpy_helper.from_array(rng.standard_normal(n).astype(np.float32), f"w{i}")
               for i, n in enumerate(counts)]
    nodes = [helper.make_node("Add", ["x", t.name], [f"x + {t.name}"]) for t in tensors]
    outputs = [helper.make_tensor_value_info(node.output[0], 1, None) for node in nodes]
    inputs = [helper.make_tensor_value_info("x", 1, [1])]
    graph = helper.make_graph(nodes, "weights", inputs, outputs, tensors, doc_string="what it is")
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="me")


def put_back(rest: bytes, weights: dict[int, np.ndarray]) -> onnx.ModelProto:
    model = onnx.ModelProto.FromString(rest)
    for i, content in weights.items():
        assert not model.graph.initializer[i].HasField("raw_data")
        model.graph.initializer[i].raw_data = content.tobytes()
    return model


@given(st.lists(st.sampled_from([0, 1, 7, LARGE // 4 - 1, LARGE // 4, LARGE, 40_000]), max_size=6))
@settings(max_examples=40, deadline=None)
def test_nothing_is_lost(counts: list[int]) -> None:
    model = with_weights(*counts)
    data = np.frombuffer(model.SerializeToString(), np.uint8)
    rest, weights = take_weights(memoryview(data))
    assert sorted(weights) == [i for i, n in enumerate(counts) if 4 * n >= LARGE]
    assert all(np.shares_memory(content, data) for content in weights.values())
    assert put_back(rest, weights) == model


def test_weights_are_held_once() -> None:
    data = with_weights(5000, 3, 9000).SerializeToString()
    model = read_model(data)
    assert len(model.proto.SerializeToString()) < 1000
    for _ in range(2):
        graph = translate_model(model, None, None).graph
        arrays = {n.shape[0]: n.attributes.array for n in graph.nodes() if n.op.name == "constant"}
        for name, count in (("w0", 5000), ("w2", 9000)):
            assert np.shares_memory(arrays[count], model.contents[name])
            assert not arrays[count].flags.writeable
    reference = {t.name: numpy_helper.to_array(t) for t in onnx.ModelProto.FromString(data).graph.initializer}
    x = rng.standard_normal(1).astype(np.float32)
    for output, expected in zip(graph.evaluate(x), reference.values()):
        np.testing.assert_array_equal(output, x + expected)


@pytest.mark.parametrize("change", [
    lambda data: data + data,                                    # two graphs, which a parser joins
    lambda data: data[:-1],                                      # cut off
    lambda data: data + b"\x3a\xff\xff\xff\xff\x0f",            # a length that passes the end
    lambda data: data + b"\x3b\x3c",                             # a group
    lambda data: data + b"\xff" * 12,                            # a number that does not end
    lambda data: data + b"\x38\x01",                             # a graph that is a number
    lambda data: b"",
    lambda data: b"no model",
])
def test_what_is_unusual_is_left_to_the_parser(change: Any) -> None:
    data = change(with_weights(5000).SerializeToString())
    assert take_weights(memoryview(data)) == (data, {})


def test_a_weight_that_is_there_twice() -> None:
    model = with_weights(5000)
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(Exception, match="initialiser 'w0' is there twice"):
        read_model(model.SerializeToString())
