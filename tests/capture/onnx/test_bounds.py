"""A model that takes the first n rows of a table says that n is at most the table's length."""
from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from planish.capture.onnx import load_graph  # noqa: E402
from planish.compiler import Options, compile_graph  # noqa: E402
from planish.errors import ModelError, ShapeError  # noqa: E402

ROWS = 8


def positions(rows: int = ROWS) -> bytes:
    """x[B, S, 4] + table[:S], as exporters write position embeddings."""
    table = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    constants = {"table": table, "zero": np.array([0]), "one": np.array([1])}
    nodes = [helper.make_node("Shape", ["x"], ["shape"]),
             helper.make_node("Gather", ["shape", "one"], ["length"], axis=0),
             helper.make_node("Slice", ["table", "zero", "length"], ["rows"]),
             helper.make_node("Add", ["x", "rows"], ["y"])]
    graph = helper.make_graph(
        nodes, "positions", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", "S", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", "S", 4])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_bound_follows_from_the_model():
    graph = load_graph(positions())
    assert {n: s.high for n, s in graph.symbols().items()}["S"] == ROWS


@pytest.mark.parametrize("strategy", ["library", "native"])
def test_bound_is_checked_at_the_call(strategy):
    compiled = compile_graph(load_graph(positions()), Options(strategy=strategy))
    for size in (1, 5, ROWS):
        x = np.random.default_rng(size).normal(size=(3, size, 4)).astype(np.float32)
        table = numpy_helper.to_array(onnx.load_from_string(positions()).graph.initializer[0])
        np.testing.assert_array_equal(compiled(x)[0], x + table[:size])
    with pytest.raises(ShapeError, match="S"):
        compiled(np.zeros((3, ROWS + 1, 4), np.float32))


def test_a_stated_range_is_not_narrowed():
    with pytest.raises(ModelError, match="do not broadcast"):
        load_graph(positions(), symbols={"S": (1, 100)})
