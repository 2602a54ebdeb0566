"""Small ONNX models, and a command line to call in this process."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planish.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def planish(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`planish("run", "model.onnx")`: the exit code and what was printed."""
    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)
    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with models: layer.onnx, gather.onnx, pair.onnx..."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANISH_CACHE_DIR", str(tmp_path / "cache"))
    for make in (layer, gather, pair, odd, reduce, unranked):
        onnx.save(make(), f"{make.__name__}.onnx")
    return tmp_path


def layer() -> onnx.ModelProto:
    """relu(x @ w + b), x: float32 [N, 4]; the + 0 does nothing."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 3)), "b": rng.standard_normal(3), "zero": np.zeros(())}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Add", ["xw", "b"], ["z"]),
             helper.make_node("Relu", ["z"], ["r"]), helper.make_node("Add", ["r", "zero"], ["y"])]
    inputs, outputs = {"x": (TensorProto.FLOAT, ["N", 4])}, {"y": (TensorProto.FLOAT, ["N", 3])}
    return model(nodes, inputs, outputs, weights)


def gather() -> onnx.ModelProto:
    """Rows of a table of ten, ids: int64 [N, M]."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"])]
    inputs, outputs = {"ids": (TensorProto.INT64, ["N", "M"])}, {"rows": (TensorProto.FLOAT, ["N", "M", 2])}
    return model(nodes, inputs, outputs, {"table": np.arange(20.0).reshape(10, 2)})


def pair() -> onnx.ModelProto:
    """a + b, both [N]."""
    both = {"a": (TensorProto.FLOAT, ["N"]), "b": (TensorProto.FLOAT, ["N"])}
    return model([helper.make_node("Add", ["a", "b"], ["c"])], both, {"c": (TensorProto.FLOAT, ["N"])}, {})


def reduce() -> onnx.ModelProto:
    """The sum of x [N, M] over the axes in `axes` [K]."""
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"])]
    inputs = {"x": (TensorProto.FLOAT, ["N", "M"]), "axes": (TensorProto.INT64, ["K"])}
    return model(nodes, inputs, {"y": (TensorProto.FLOAT, None)}, {})


def unranked() -> onnx.ModelProto:
    """relu(x), x of any rank."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    return model(nodes, {"x": (TensorProto.FLOAT, None)}, {"y": (TensorProto.FLOAT, None)}, {})


def odd() -> onnx.ModelProto:
    """Has an operator that nobody knows."""
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], name="strange", domain="acme")]
    return model(nodes, {"x": (TensorProto.FLOAT, [2])}, {"y": (TensorProto.FLOAT, [2])}, {})


def model(nodes: Sequence[onnx.NodeProto], inputs: dict, outputs: dict, weights: dict) -> onnx.ModelProto:
    """Inputs and outputs as name -> (element type, shape), weights as name -> array, made float32."""
    infos = [[helper.make_tensor_value_info(name, *what) for name, what in one.items()]
             for one in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "small", *infos, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
