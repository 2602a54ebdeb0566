"""`planish.load_onnx`: from a file to something that is called, by position or by name."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import planish
from planish.errors import ModelError, ShapeError, SignatureError, UnsupportedOp
from tests.capture.onnx.running import assert_same, make_model, reference

STRATEGIES = ("native", "library")


@pytest.fixture(scope="module")
def model() -> Any:
    """Two inputs and three outputs, one of which is an input; names that are not Python's."""
    nodes = [
        helper.make_node("Gemm", ["in.1", "w", "b"], ["out/1"], transB=1),
        helper.make_node("Mul", ["out/1", "in.2"], ["out/2"]),
        helper.make_node("Identity", ["in.2"], ["same"]),
    ]
    rng = np.random.default_rng(5)
    weights = {"w": rng.normal(size=(3, 4)).astype(np.float32), "b": np.ones(3, np.float32)}
    inputs = {"in.1": (np.float32, ("N", 4)), "in.2": (np.float32, (1,))}
    return make_model(nodes, inputs, ["out/1", "out/2", "same"], initializers=weights)


def feeds_of(n: int) -> dict[str, np.ndarray]:
    return {"in.1": np.random.default_rng().normal(size=(n, 4)).astype(np.float32), "in.2": np.float32([2.5])}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_by_position_and_by_name(model: Any, strategy: Any, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "m.onnx")
    program = planish.load_onnx(tmp_path / "m.onnx", strategy=strategy, hint={"N": 8})
    for n in (1, 3, 40):
        feeds = feeds_of(n)
        expected = reference(model, feeds)
        got = program(*feeds.values())
        assert isinstance(got, tuple)
        assert_same(got, expected)
        assert_same(program.run(None, feeds), expected)
        assert_same(program.run(["same", "out/2"], dict(reversed(feeds.items()))), [expected[2], expected[1]])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_results_are_the_callers_own(model: Any, strategy: Any) -> None:
    program, feeds = planish.load_onnx(model, strategy=strategy), feeds_of(2)
    results = program.run(None, feeds)
    for result in results:
        assert result.flags.writeable
        assert not any(np.shares_memory(result, a) for a in feeds.values())
        result[...] = 7
    assert_same(program.run(None, feeds), reference(model, feeds))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_wrong_arguments(model: Any, strategy: Any) -> None:
    program, feeds = planish.load_onnx(model, strategy=strategy), feeds_of(2)
    with pytest.raises(SignatureError, match=r"there is no input 'x'; there are in\.1, in\.2"):
        program.run(None, {**feeds, "x": feeds["in.1"]})
    with pytest.raises(SignatureError, match=r"missing inputs: in\.2"):
        program.run(None, {"in.1": feeds["in.1"]})
    with pytest.raises(SignatureError, match="there is no output 'y'; there are out/1, out/2, same"):
        program.run(["y"], feeds)
    with pytest.raises(SignatureError, match=r"in\.1.*expected.*float32.*got.*float64"):
        program(feeds["in.1"].astype(np.float64), feeds["in.2"])
    with pytest.raises(ShapeError, match=r"in\.1.*expected.*4\b.*got.*5"):
        program(np.ones((2, 5), np.float32), feeds["in.2"])
    with pytest.raises((SignatureError, ShapeError), match="takes 2"):
        program(feeds["in.1"])


def test_symbols_and_constants(model: Any) -> None:
    program = planish.load_onnx(model, symbols={"N": 2}, constants={"in.2": np.float32([3])})
    feeds = {**feeds_of(2), "in.2": np.float32([3])}
    assert_same(program(feeds["in.1"]), reference(model, feeds))
    with pytest.raises(ShapeError):
        program(np.ones((3, 4), np.float32))
    with pytest.raises(ModelError, match="has no size called K"):
        planish.load_onnx(model, symbols={"K": 2})


def test_what_native_code_lacks_is_named() -> None:
    """All at once, with the model's nodes: here composite ops that were not taken apart."""
    nodes = [helper.make_node("Softmax", ["x"], ["p"], name="probabilities"),
             helper.make_node("Gelu", ["p"], ["y"], name="last")]
    model = make_model(nodes, {"x": (np.float32, ("N", 4))}, ["y"], opset=20)
    message = (r"softmax of float32 \(model: probabilities\)\n  gelu of float32 \(model: last\)\n"
               r"Run it with strategy='library'")
    with pytest.raises(UnsupportedOp, match=message):
        planish.load_onnx(model, disable={"decompose"})


def test_interfaces_other_than_files(model: Any) -> None:
    feeds = feeds_of(1)
    assert_same(planish.load_onnx(model.SerializeToString()).run(None, feeds), reference(model, feeds))
