"""If: the branch that constants and sizes choose is translated in its place."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ValueInfoProto, helper, numpy_helper

from planish.capture.onnx import load_graph
from planish.errors import UnsupportedOp
from tests.capture.onnx.running import make_model, run

node = helper.make_node


def branch(name: str, op_type: str, second: float) -> Any:
    """A graph that reads x of the outer scope and has an initialiser of its own."""
    return helper.make_graph(
        [node(op_type, ["x", f"{name}_c"], [f"{name}_y"])],
        name,
        [],
        [ValueInfoProto(name=f"{name}_y")],
        [numpy_helper.from_array(np.array(second, np.float32), f"{name}_c")],
    )


def if_on(condition: list[Any], **inputs: Any) -> Any:
    chosen = node(
        "If",
        ["c"],
        ["y"],
        name="if",
        then_branch=branch("then", "Add", 10),
        else_branch=branch("else", "Mul", 3),
    )
    return make_model([*condition, chosen], inputs, ["y"], initializers={
        "one": np.array(1), "three": np.array(3), "rank": np.array(1)})


def on_rank() -> list[Any]:
    """What exporters write to squeeze an axis only where there is one: a question about sizes."""
    return [node("Shape", ["x"], ["s"]), node("Size", ["s"], ["n"]), node("Equal", ["n", "rank"], ["c"])]


@pytest.mark.parametrize(("shape", "expected"), [((3,), 12.0), ((3, 1), 6.0)])
def test_condition_on_sizes(shape: tuple[int, ...], expected: float) -> None:
    x = np.full(shape, 2, np.float32)
    got, = run(load_graph(if_on(on_rank(), x=x)), {"x": x})
    np.testing.assert_array_equal(got, np.full(shape, expected))


def test_condition_on_an_input() -> None:
    model = if_on([node("Identity", ["flag"], ["c"])], x=(np.float32, (2,)), flag=(np.bool_, ()))
    with pytest.raises(
        UnsupportedOp, match=r"node 'if' .* its condition .operand 0. depends on the values of inputs"
    ):
        load_graph(model)
    graph = load_graph(model, constants={"flag": False})
    np.testing.assert_array_equal(run(graph, {"x": np.ones(2, np.float32)})[0], [3, 3])


def test_condition_on_a_symbol() -> None:
    """Whether N is 3 is not known until it is fixed."""
    question = [
        node("Shape", ["x"], ["s"]),
        node("ReduceProd", ["s"], ["n"], keepdims=0),
        node("Equal", ["n", "three"], ["c"]),
    ]
    model = if_on(question, x=(np.float32, ("N",)))
    with pytest.raises(UnsupportedOp, match="depends on"):
        load_graph(model)
    graph = load_graph(model, symbols={"N": 3})
    np.testing.assert_array_equal(run(graph, {"x": np.ones(3, np.float32)})[0], [11, 11, 11])
