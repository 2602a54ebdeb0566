"""Small ONNX models for the session's tests."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
rng = np.random.default_rng()


def model(nodes: Sequence[NodeProto], inputs: Mapping[str, Any], outputs: Mapping[str, Any],
          weights: Mapping[str, np.ndarray] | None = None, ir_version: int = 8, opset: int = 17,
          **more: Any) -> ModelProto:
    """Inputs and outputs as name -> (element type, shape), or a ValueInfoProto's type."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    ends = [list(map(_info, end.items())) for end in (inputs, outputs)]
    graph = helper.make_graph(nodes, "small", *ends, tensors)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **more)


def _info(item: tuple[str, Any]) -> Any:
    name, what = item
    return helper.make_tensor_value_info(name, *what) if isinstance(what, tuple) else \
        helper.make_value_info(name, what)


def floats(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def layer(**options: Any) -> ModelProto:
    """y = relu(x @ w + b) [N, 3] and h = x @ w, of x [N, 4]."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["z"]),
             helper.make_node("Relu", ["z"], ["y"])]
    return model(nodes, {"x": (FLOAT, ["N", 4])}, {"y": (FLOAT, ["N", 3]), "h": (FLOAT, None)},
                 {"w": floats(4, 3), "b": floats(3)}, **options)


def pair() -> ModelProto:
    """c = a @ b, a [batch, rows, 8], b [8, ?]."""
    return model([helper.make_node("MatMul", ["a", "b"], ["c"])],
                 {"a": (FLOAT, ["batch", "rows", 8]), "b": (FLOAT, [8, None])}, {"c": (FLOAT, None)})


def fixed() -> ModelProto:
    """y = tanh(x), x [2, 3]."""
    return model([helper.make_node("Tanh", ["x"], ["y"])], {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])})


def defaults(ir_version: int = 8) -> ModelProto:
    """y = x + w, where w [4] is ones and also an input."""
    return model([helper.make_node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, ["N", 4]), "w": (FLOAT, [4])},
                 {"y": (FLOAT, ["N", 4])}, {"w": np.ones(4, np.float32)}, ir_version=ir_version)


def summed() -> ModelProto:
    """y = the sum of x [N, M] over `axes`."""
    return model([helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)],
                 {"x": (FLOAT, ["N", "M"]), "axes": (INT64, ["K"])}, {"y": (FLOAT, None)})


def unnamed_sizes() -> ModelProto:
    """c = a + b, whose sizes have no names."""
    return model([helper.make_node("Add", ["a", "b"], ["c"])],
                 {"a": (FLOAT, [None, None]), "b": (FLOAT, [None])}, {"c": (FLOAT, [None, None])})


def unranked() -> ModelProto:
    """y = relu(x), where x may have any rank."""
    return model([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, None)}, {"y": (FLOAT, None)})


def joined() -> ModelProto:
    """y: the arrays of the sequence s, one after the other; more: s and x behind it."""
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [None, 2]))
    nodes = [helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
             helper.make_node("SequenceInsert", ["s", "x"], ["more"])]
    return model(nodes, {"s": sequence, "x": (FLOAT, ["N", 2])}, {"y": (FLOAT, [None, 2]), "more": sequence})
