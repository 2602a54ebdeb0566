"""Sequences and optionals: their operators against the reference evaluator, their layout in the graph."""
from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import planish
from planish.capture.onnx import given_of, load_graph, load_model, open_inputs
from planish.capture.onnx.model import read_model
from planish.errors import ModelError, NeedsValue, SignatureError, UnsupportedOp
from planish.types import FLOAT32, TensorType
from tests.capture.onnx.running import STRATEGIES, onnxruntime_outputs, reference, run

node = helper.make_node
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def tensor(name: str, shape: Any = None, elem: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, elem, shape)


def sequence(name: str, shape: Any = None) -> Any:
    return helper.make_tensor_sequence_value_info(name, FLOAT, shape)


def optional(name: str, of: Any) -> Any:
    return helper.make_value_info(name, helper.make_optional_type_proto(of.type))


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 18, **initial: Any) -> Any:
    constants = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in initial.items()]
    graph = helper.make_graph(nodes, "test", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def outputs_of(model: Any, feeds: dict[str, Any], strategy: str) -> list[Any]:
    types = {name: given_of(feeds[name]) for name in open_inputs(read_model(model))}
    loaded = load_model(model, types=types)
    names = [n.attributes.name for n in loaded.graph.inputs]
    return loaded.values(run(loaded.graph, dict(zip(names, loaded.arrays(feeds), strict=True)), strategy))


def assert_equal(got: Any, expected: Any) -> None:
    if expected is None or isinstance(expected, list):
        assert type(got) is type(expected)
        for one, want in zip(got or (), expected or (), strict=True):
            assert_equal(one, want)
    else:
        assert got.dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(got, expected)


def check(model: Any, feeds: dict[str, Any], expected: list[Any] | None = None) -> None:
    for strategy in STRATEGIES:
        assert_equal(outputs_of(model, feeds, strategy), expected or onnxruntime_outputs(model, feeds))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


@pytest.fixture
def parts(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.normal(size=(n, 3)).astype(np.float32) for n in (2, 4, 1)]


@pytest.mark.parametrize("position", [None, 0, 1, 3, -1, -3])
def test_insert(parts: list[np.ndarray], position: int | None) -> None:
    names = ["s", "x"] + ([] if position is None else ["p"])
    given = {} if position is None else {"p": np.int64(position)}
    inputs = [sequence("s", [None, 3]), tensor("x", [None, 3])]
    model = model_of([node("SequenceInsert", names, ["y"]), node("Relu", ["x"], ["z"])], inputs,
                     [sequence("y"), tensor("z")], **given)
    check(model, {"s": parts, "x": parts[0] - 1})


@pytest.mark.parametrize("position", [None, 0, 2, -1, -3])
def test_erase_at_and_length(parts: list[np.ndarray], position: int | None) -> None:
    given = {} if position is None else {"p": np.int64(position)}
    nodes = [node("SequenceErase", ["s", *given], ["t"]), node("SequenceAt", ["s", "q"], ["a"]),
             node("SequenceLength", ["t"], ["n"]), node("Neg", ["a"], ["b"])]
    model = model_of(nodes, [sequence("s", [None, 3])], [sequence("t"), tensor("b"), tensor("n", [], INT)],
                     q=np.int64(-1 if position is None else position), **given)
    check(model, {"s": parts})


@pytest.mark.parametrize("fault", ["at", "insert", "erase empty", "concat empty"])
def test_positions_are_held(fault: str) -> None:
    nodes, constants = {
        "at": ([node("SequenceAt", ["s", "p"], ["y"])], {"p": np.int64(3)}),
        "insert": ([node("SequenceInsert", ["s", "x", "p"], ["t"]), node("SequenceAt", ["t", "q"], ["y"])],
                   {"p": np.int64(-4), "q": np.int64(0)}),
        "erase empty": ([node("SequenceEmpty", [], ["e"]), node("SequenceErase", ["e"], ["t"]),
                         node("SequenceLength", ["t"], ["y"])], {}),
        "concat empty": ([node("SequenceEmpty", [], ["e"]),
                          node("ConcatFromSequence", ["e"], ["y"], axis=0)], {}),
    }[fault]
    build = node("SequenceConstruct", ["x", "x", "x"], ["s"])
    model = model_of([build, *nodes], [tensor("x", [2])], [onnx.ValueInfoProto(name="y")], **constants)
    with pytest.raises(ModelError, match=r"position|empty"):
        load_graph(model)


def test_a_position_that_is_data_needs_a_value() -> None:
    model = model_of([node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceAt", ["s", "p"], ["y"])],
                     [tensor("x", [2]), tensor("p", [], INT)], [tensor("y")])
    with pytest.raises(NeedsValue) as caught:
        load_graph(model)
    assert list(caught.value.inputs) == ["p"]
    assert [n.attributes.name for n in load_graph(model, constants={"p": 1}).inputs] == ["x"]


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("split", [None, 2, 4, [1, 3, 2], "dropped"])
def test_split_and_join(rng: np.random.Generator, axis: int, split: Any) -> None:
    given = {} if split in (None, "dropped") else {"split": np.asarray(split, np.int64)}
    keeps = {"keepdims": 0} if split == "dropped" else {}
    join = node("ConcatFromSequence", ["s"], ["y"], axis=axis, new_axis=int(split == "dropped"))
    model = model_of([node("SplitToSequence", ["x", *given], ["s"], axis=axis, **keeps), join],
                     [tensor("x", [6, 6])], [sequence("s"), tensor("y")], **given)
    x = rng.normal(size=(6, 6)).astype(np.float32)
    expected = onnxruntime_outputs(model, {"x": x})
    np.testing.assert_array_equal(expected[1], x)
    check(model, {"x": x})


def test_parts_of_a_size_that_is_open(rng: np.random.Generator) -> None:
    """Sizes of parts may be symbolic; how many there are may not."""
    nodes = [node("Shape", ["x"], ["n"]), node("Concat", ["n", "two"], ["parts"], axis=0),
             node("Concat", ["x", "y"], ["all"], axis=0), node("SplitToSequence", ["all", "parts"], ["s"])]
    model = model_of(nodes, [tensor("x", ["N"]), tensor("y", [2])], [sequence("s")], two=np.array([2]))
    graph = load_graph(model)
    x, y = rng.normal(size=5).astype(np.float32), rng.normal(size=2).astype(np.float32)
    for strategy in STRATEGIES:
        assert_equal(run(graph, {"x": x, "y": y}, strategy), [x, y])
    with pytest.raises(NeedsValue, match="symbolic size N"):
        load_graph(model_of([node("SplitToSequence", ["x"], ["s"])], [tensor("x", ["N"])], [sequence("s")]))


def test_map(parts: list[np.ndarray], rng: np.random.Generator) -> None:
    body = helper.make_graph(
        [node("Add", ["a", "b"], ["c"]), node("Mul", ["c", "outer"], ["d"]), node("Shape", ["a"], ["e"])],
        "body", [tensor("a", [None, 3]), tensor("b", [3])], [tensor("d", [None, 3]), tensor("e", [2], INT)])
    model = model_of([node("SequenceMap", ["s", "b"], ["t", "u"], body=body)],
                     [sequence("s", [None, 3]), tensor("b", [3]), tensor("outer", [])],
                     [sequence("t"), helper.make_tensor_sequence_value_info("u", INT, None)])
    b, outer = rng.normal(size=3).astype(np.float32), np.float32(2)
    shapes = [np.array(p.shape) for p in parts]
    check(model, {"s": parts, "b": b, "outer": outer}, [[(p + b) * outer for p in parts], shapes])
    check(model, {"s": [], "b": b, "outer": outer}, [[], []])


def test_map_of_sequences_of_unequal_length(parts: list[np.ndarray]) -> None:
    body = helper.make_graph([node("Add", ["a", "b"], ["c"])], "body", [tensor("a"), tensor("b")],
                             [tensor("c")])
    model = model_of([node("SequenceMap", ["s", "t"], ["u"], body=body)], [sequence("s"), sequence("t")],
                     [sequence("u")])
    with pytest.raises(ModelError, match="sequences of 3 and of 2"):
        load_graph(model, types={"s": given_of(parts), "t": given_of(parts[:2])})


# --- optionals

@pytest.mark.parametrize("held", ["tensor", "sequence", "nothing"])
def test_optional_inputs(parts: list[np.ndarray], held: str) -> None:
    inner = sequence("o", [None, 3]) if held == "sequence" else tensor("o", [None, 3])
    value = {"tensor": parts[0], "sequence": parts, "nothing": None}[held]
    model = model_of([node("OptionalHasElement", ["o"], ["h"]), node("Identity", ["o"], ["p"])],
                     [optional("o", inner)], [tensor("h", [], TensorProto.BOOL), optional("p", inner)])
    for strategy in STRATEGIES:
        assert_equal(outputs_of(model, {"o": value}, strategy), [np.array(held != "nothing"), value])


def test_the_element_of_an_optional(parts: list[np.ndarray]) -> None:
    model = model_of([node("OptionalGetElement", ["o"], ["e"]), node("Neg", ["e"], ["y"])],
                     [optional("o", tensor("o", [None, 3]))], [tensor("y", [None, 3])])
    check(model, {"o": parts[1]}, [-parts[1]])
    with pytest.raises(ModelError, match="the optional holds nothing"):
        load_graph(model, types={"o": None})


def test_an_optional_made_in_the_model(rng: np.random.Generator) -> None:
    type_ = helper.make_tensor_type_proto(FLOAT, [2])
    nodes = [node("Optional", [], ["o"], type=type_), node("OptionalHasElement", ["o"], ["a"]),
             node("Optional", ["x"], ["p"]), node("OptionalHasElement", ["p"], ["b"]),
             node("OptionalGetElement", ["p"], ["y"]), node("OptionalHasElement", [""], ["c"])]
    flags = [tensor(n, [], TensorProto.BOOL) for n in "abc"]
    model = model_of(nodes, [tensor("x", [2])], [*flags, tensor("y", [2])])
    x = rng.normal(size=2).astype(np.float32)
    check(model, {"x": x}, [np.array(False), np.array(True), np.array(False), x])


# --- types of inputs

def test_layout_of_inputs_and_outputs(parts: list[np.ndarray]) -> None:
    model = model_of([node("Relu", ["x"], ["y"]), node("Identity", ["s"], ["t"])],
                     [sequence("s", [None, 3]), tensor("x", [2]), optional("o", tensor("o", [2]))],
                     [sequence("t"), tensor("y", [2])])
    loaded = load_model(model, types={"s": given_of(parts), "o": None})
    assert [n.attributes.name for n in loaded.graph.inputs] == ["s.0", "s.1", "s.2", "x"]
    assert loaded.graph.output_names == ("t.0", "t.1", "t.2", "y")
    assert loaded.inputs == {"s": (0, 1, 2), "x": 3, "o": None}
    assert loaded.outputs == {"t": (0, 1, 2), "y": 3}
    assert loaded.values(["a", "b", "c", "d"], ["y", "t"]) == ["d", ["a", "b", "c"]]
    for bad in ({"s": parts[:2]}, {"s": parts[0]}, {"x": parts}, {"x": None}, {"o": parts[0]}):
        with pytest.raises(SignatureError, match=f"input {next(iter(bad))}: expected"):
            loaded.arrays({"s": parts, "x": np.ones(2, np.float32), "o": None, **bad})


def test_sequences_as_constants(parts: list[np.ndarray]) -> None:
    join = node("ConcatFromSequence", ["s"], ["y"], axis=0)
    model = model_of([join], [sequence("s", [None, 3])], [tensor("y")])
    loaded = load_model(model, constants={"s": parts})
    assert loaded.inputs == {} and loaded.graph.inputs == ()
    assert_equal(loaded.values(run(loaded.graph, {})), [np.concatenate(parts)])


def test_rank_given(rng: np.random.Generator) -> None:
    model = model_of([node("Transpose", ["x"], ["y"])], [tensor("x")], [tensor("y")])
    assert open_inputs(read_model(model)) == ("x",)
    x = rng.normal(size=(2, 3)).astype(np.float32)
    check(model, {"x": x}, [x.T])
    np.testing.assert_array_equal(reference(model, {"x": x})[0], x.T)


def test_load_onnx_takes_types(parts: list[np.ndarray]) -> None:
    model = model_of([node("ConcatFromSequence", ["s"], ["y"], axis=0)], [sequence("s", [None, 3])],
                     [tensor("y")])
    program = planish.load_onnx(model, types={"s": given_of(parts)})
    (got,) = program.run(None, {f"s.{i}": part for i, part in enumerate(parts)})
    np.testing.assert_array_equal(got, np.concatenate(parts))


def test_sizes_that_a_sequence_says(rng: np.random.Generator) -> None:
    """A dim_param that is one number in all elements is that number elsewhere, too."""
    model = model_of([node("SequenceAt", ["s", "p"], ["a"]), node("Add", ["a", "x"], ["y"])],
                     [sequence("s", ["N"]), tensor("x", ["N"])], [tensor("y")], p=np.int64(1))
    same, other = [TensorType(FLOAT32, (4,))] * 2, [TensorType(FLOAT32, (4,)), TensorType(FLOAT32, (1,))]
    assert load_graph(model, types={"s": same}).inputs[2].type == TensorType(FLOAT32, (4,))
    assert not load_graph(model, types={"s": other}).inputs[2].tensor.is_static


@pytest.mark.parametrize(("types", "kind", "message"), [
    ({}, UnsupportedOp, r"input 's' is a seq\(tensor\(float\)\): the model does not say what it holds"),
    ({"s": TensorType(FLOAT32, (2, 3))}, ModelError, r"is a seq\(tensor\(float\)\); the type given"),
    ({"s": [TensorType(FLOAT32, (2, 4))]}, ModelError, "element 0 is a tensor"),
    ({"s": [TensorType(FLOAT32, (3,))]}, ModelError, "element 0 is a tensor"),
    ({"s": None}, ModelError, "the type given for it is None"),
    ({"s": [], "x": TensorType(FLOAT32, (2,))}, ModelError, "the model leaves open the type of s"),
])
def test_types_that_do_not_fit(types: dict[str, Any], kind: type[Exception], message: str) -> None:
    model = model_of([node("SequenceLength", ["s"], ["n"]), node("Relu", ["x"], ["y"])],
                     [sequence("s", [None, 3]), tensor("x", [2])], [tensor("n", [], INT), tensor("y")])
    with pytest.raises(kind, match=message):
        load_graph(model, types=types)


def test_a_sequence_where_a_tensor_is_to_stand(parts: list[np.ndarray]) -> None:
    model = model_of([node("Relu", ["s"], ["y"], name="r")], [sequence("s")], [tensor("y")])
    with pytest.raises(ModelError, match=r"node 'r' .*a sequence stands where a tensor is to stand"):
        load_graph(model, types={"s": given_of(parts)})
