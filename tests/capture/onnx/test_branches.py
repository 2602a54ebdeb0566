"""If: the branch that constants and sizes choose is translated in its place; else both are, as a choice."""
from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import ValueInfoProto, helper, numpy_helper

from planish.capture.onnx import load_graph
from planish.errors import NeedsValue
from tests.capture.onnx.running import STRATEGIES, assert_same, make_model, onnxruntime_outputs, run

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
    model = if_on([node("Identity", ["flag"], ["c"])], x=(np.float32, ("N",)), flag=(np.bool_, ()))
    graph = load_graph(model)
    assert any(n.op.name == "cond" for n in graph.nodes())
    for flag in (True, False):
        for n in (0, 1, 5):
            feeds = {"x": np.arange(n, dtype=np.float32), "flag": np.array(flag)}
            for strategy in STRATEGIES:
                got, = run(graph, feeds, strategy)
                np.testing.assert_array_equal(got, feeds["x"] + 10 if flag else feeds["x"] * 3)
    graph = load_graph(model, constants={"flag": False})
    assert not any(n.op.name == "cond" for n in graph.nodes())
    np.testing.assert_array_equal(run(graph, {"x": np.ones(2, np.float32)})[0], [3, 3])


def test_condition_on_a_symbol() -> None:
    """Whether N is 3 is known when it runs, or when it is fixed."""
    question = [
        node("Shape", ["x"], ["s"]),
        node("ReduceProd", ["s"], ["n"], keepdims=0),
        node("Equal", ["n", "three"], ["c"]),
    ]
    model = if_on(question, x=(np.float32, ("N",)))
    graph = load_graph(model)
    for n, expected in ((2, 3), (3, 11)):
        for strategy in STRATEGIES:
            got, = run(graph, {"x": np.ones(n, np.float32)}, strategy)
            np.testing.assert_array_equal(got, [expected] * n)
    graph = load_graph(model, symbols={"N": 3})
    assert not any(n.op.name == "cond" for n in graph.nodes())
    np.testing.assert_array_equal(run(graph, {"x": np.ones(3, np.float32)})[0], [11, 11, 11])


def graph_of(nodes: list[Any], *outputs: str, **initialisers: np.ndarray) -> Any:
    return helper.make_graph(nodes, "branch", [], [ValueInfoProto(name=o) for o in outputs],
                             [numpy_helper.from_array(v, n) for n, v in initialisers.items()])


def check_both(model: Any, feeds: dict[str, np.ndarray], names: tuple[str, ...] = ("flag",)) -> None:
    """Native code and the interpreter beside ONNX Runtime, for both values of the flags."""
    graph = load_graph(model)
    for flags in product((False, True), repeat=len(names)):
        given = feeds | {n: np.array(f) for n, f in zip(names, flags)}
        expected = onnxruntime_outputs(model, given)
        for strategy in STRATEGIES:
            assert_same(run(graph, given, strategy), expected, factor=64)


def test_results_that_are_operands_constants_or_the_same() -> None:
    x = np.random.default_rng().standard_normal((3, 4)).astype(np.float32)
    then = graph_of([node("Identity", ["x"], ["a"]), node("Exp", ["x"], ["b"]),
                     node("Identity", ["b"], ["c"])], "a", "b", "c")
    otherwise = graph_of([node("Identity", ["k"], ["d"]), node("Identity", ["x"], ["e"]),
                          node("Neg", ["x"], ["f"])], "d", "e", "f", k=np.ones((3, 4), np.float32))
    model = make_model([node("If", ["flag"], ["p", "q", "r"], then_branch=then, else_branch=otherwise),
                        node("Add", ["p", "q"], ["s"])],
                       {"x": x, "flag": (np.bool_, ())}, ["p", "r", "s"])
    check_both(model, {"x": x})


def test_nested_choices_with_weights_inside() -> None:
    """Values of both scopes outside are read; the inner condition is computed in the branch."""
    rng = np.random.default_rng()
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 16), (16, 16)))
    inner = [graph_of([node("MatMul", ["h", "w"], ["u"]), node("Relu", ["u"], ["v"])], "v", w=w),
             graph_of([node("Sub", ["h", "y"], ["v"])], "v")]
    outer = [graph_of([node("Tanh", ["y"], ["h"]), node("ReduceSum", ["h"], ["t"], keepdims=0),
                       node("Less", ["t", "zero"], ["l"]), node("Xor", ["l", "other"], ["m"]),
                       node("If", ["m"], ["i"], then_branch=inner[0], else_branch=inner[1]),
                       node("Add", ["i", "x"], ["o"])], "o", zero=np.array(0, np.float32)),
             graph_of([node("Mul", ["y", "y"], ["o"])], "o")]
    model = make_model([node("Add", ["x", "x"], ["y"]),
                        node("If", ["flag"], ["z"], then_branch=outer[0], else_branch=outer[1]),
                        node("Softmax", ["z"], ["out"])],
                       {"x": x, "flag": (np.bool_, ()), "other": (np.bool_, (1,))}, ["out"])
    graph = load_graph(model)
    for flag, other in product((False, True), repeat=2):
        feeds = {"x": x, "flag": np.array(flag), "other": np.array([other])}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), onnxruntime_outputs(model, feeds), factor=64)


def test_branches_of_different_types_need_the_condition() -> None:
    then = graph_of([node("Identity", ["x"], ["a"])], "a")
    otherwise = graph_of([node("ReduceSum", ["x"], ["b"], keepdims=0)], "b")
    model = make_model([node("Not", ["flag"], ["c"]),
                        node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=otherwise)],
                       {"x": (np.float32, (4,)), "flag": (np.bool_, ())}, ["y"])
    with pytest.raises(NeedsValue, match=r"node 'if' .* type of its output 0, f32.4. or f32..") as error:
        load_graph(model)
    assert error.value.inputs == {"flag"}
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run(load_graph(model, constants={"flag": True}), {"x": x})[0], 6)
    np.testing.assert_array_equal(run(load_graph(model, constants={"flag": False}), {"x": x})[0], x)


def test_a_branch_with_a_size_that_depends_on_values() -> None:
    """Inside of a choice there is none; in the place of the node there is."""
    then = graph_of([node("Reshape", ["x", "s"], ["a"]), node("ReduceSum", ["a", "at"], ["b"], keepdims=0),
                     node("ReduceSum", ["b"], ["c"], keepdims=0)], "c", at=np.array([0]))
    otherwise = graph_of([node("ReduceMax", ["x"], ["d"], keepdims=0)], "d")
    model = make_model([node("If", ["flag"], ["y"], then_branch=then, else_branch=otherwise)],
                       {"x": (np.float32, (4,)), "s": (np.int64, (2,)), "flag": (np.bool_, ())}, ["y"])
    with pytest.raises(NeedsValue, match="whether a branch with sizes that depend on values") as error:
        load_graph(model)
    assert error.value.inputs == {"flag"}
    graph = load_graph(model, constants={"flag": True})
    assert run(graph, {"x": np.arange(4, dtype=np.float32), "s": np.array([2, 2])})[0] == 6


def test_a_branch_that_only_fits_where_it_is_taken() -> None:
    """What exporters write to squeeze an axis that may have size 1."""
    question = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one"], ["n"]),
                node("Equal", ["n", "one"], ["c"])]
    then = graph_of([node("Squeeze", ["x", "axis"], ["a"])], "a", axis=np.array([1]))
    otherwise = graph_of([node("Identity", ["x"], ["b"])], "b")
    model = make_model([*question, node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
                       {"x": (np.float32, (2, "N"))}, ["y"], initializers={"one": np.array(1)})
    with pytest.raises(NeedsValue, match="a branch that does not fit") as error:
        load_graph(model)
    assert error.value.sizes == {"N"}
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(run(load_graph(model, symbols={"N": 3}), {"x": x})[0], x)
