"""Dynamic sizes: symbols from the model, shape arithmetic done on them, one graph for every size."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from planish.capture.onnx import load_graph
from planish.errors import ModelError, NeedsValue, ShapeError
from planish.ir import Graph
from tests.capture.onnx.running import STRATEGIES, assert_same, make_model, reference, run

node = helper.make_node


def capture(nodes: list[Any], inputs: dict[str, Any], outputs: Sequence[str] = ("y",), opset: int = 17,
            **constants: Any) -> Any:
    initializers = {name: np.asarray(value) for name, value in constants.items()}
    return make_model(nodes, inputs, outputs, opset=opset, initializers=initializers)


def check_at(model: Any, *shapes: tuple[int, ...], graph: Graph | None = None) -> Graph:
    """One graph, several sizes of the only input."""
    graph = graph or load_graph(model)
    for shape in shapes:
        feeds = {"x": np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)}
        for strategy in STRATEGIES:
            assert_same(run(graph, feeds, strategy), reference(model, feeds))
    return graph


def shape_of(graph: Graph) -> str:
    return str(graph.outputs[0].type)


def test_flatten_by_shape_arithmetic() -> None:
    """What torch writes for x.view(x.size(0), -1): Shape, Gather, Unsqueeze, Concat, Reshape."""
    model = capture(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"]),
            node("Unsqueeze", ["n", "axes"], ["n1"]),
            node("Concat", ["n1", "rest"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["y"]),
        ],
        {"x": (np.float32, ("batch", 3, 4))},
        zero=0,
        axes=[0],
        rest=[-1],
    )
    graph = check_at(model, (1, 3, 4), (5, 3, 4))
    for strategy in STRATEGIES:
        assert run(graph, {"x": np.ones((0, 3, 4), np.float32)}, strategy)[0].shape == (0, 12)
    assert shape_of(graph) == "f32[batch, 12]"
    assert [n.op.name for n in graph.nodes()] == ["input", "reshape"]


def test_heads() -> None:
    """[B, S, H*D] -> [B, H, S, D] -> back, with sizes taken from Shape, Mul and Div."""
    model = capture(
        [
            node("Shape", ["x"], ["s"]),
            node("Slice", ["s", "zero", "two"], ["bs"]),
            node("Slice", ["s", "two", "three"], ["e"]),
            node("Div", ["e", "heads"], ["d"]),
            node("Concat", ["bs", "heads", "d"], ["split"], axis=0),
            node("Reshape", ["x", "split"], ["a"]),
            node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
            node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3]),
            node("Mul", ["heads", "d"], ["e2"]),
            node("Concat", ["bs", "e2"], ["joined"], axis=0),
            node("Reshape", ["c", "joined"], ["y"]),
        ],
        {"x": (np.float32, ("B", "S", 12))},
        zero=[0],
        two=[2],
        three=[3],
        heads=[4],
    )
    assert shape_of(check_at(model, (2, 3, 12), (1, 1, 12), (3, 7, 12))) == "f32[B, S, 12]"


def test_causal_mask_of_sequence_length() -> None:
    """Range and ConstantOfShape over a symbolic length, Trilu, Expand with Where(Equal(shape, -1), 1,
    shape)."""
    model = capture(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "one"], ["n"]),
            node("Range", ["zero", "n", "one"], ["r"]),
            node("Unsqueeze", ["r", "axes0"], ["row"]),
            node("Unsqueeze", ["r", "axes1"], ["column"]),
            node("LessOrEqual", ["row", "column"], ["mask"]),
            node("Cast", ["mask"], ["m"], to=1),
            node("Equal", ["s", "minus"], ["e"]),
            node("ConstantOfShape", ["rank"], ["ones"], value=helper.make_tensor("v", 7, [1], [1])),
            node("Where", ["e", "ones", "s"], ["to"]),
            node("ReduceSum", ["m", "axes1"], ["c"], keepdims=0),
            node("Expand", ["c", "to"], ["w"]),
            node("Mul", ["x", "w"], ["y"]),
        ],
        {"x": (np.float32, ("B", "S"))},
        one=1,
        zero=0,
        axes0=[0],
        axes1=[1],
        minus=[-1],
        rank=[2],
    )
    assert shape_of(check_at(model, (2, 5), (1, 1), (3, 9))) == "f32[B, S]"


def test_slices_of_symbolic_axes() -> None:
    for starts, ends, steps, expected in (
        ([1], [2**31 - 1], [1], "N - min(1, N)"),
        ([0], [-1], [1], "max(0, N - 1)"),
        ([0], [2**63 - 1], [2], "((N + 1) // 2)"),
        ([-3], [2**31 - 1], [1], None),
        ([-1], [-(2**63)], [-1], "N"),
        ([0], [4], [1], "min(4, N)"),
    ):
        model = capture(
            [node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])],
            {"x": (np.float32, ("N",))},
            starts=starts,
            ends=ends,
            axes=[0],
            steps=steps,
        )
        graph = check_at(model, (1,), (2,), (3,), (10,), (0,))
        assert expected is None or shape_of(graph) == f"f32[{expected}]"


def test_split_concat_and_pad() -> None:
    model = capture(
        [
            node("Split", ["x"], ["a", "b"], axis=0, num_outputs=2),
            node("Concat", ["b", "a"], ["c"], axis=0),
            node("Pad", ["c", "pads"], ["y"]),
        ],
        {"x": (np.float32, (8, "N"))},
        opset=18,
        pads=[1, 0, 0, 2],
    )
    assert shape_of(check_at(model, (8, 3), (8, 0))) == "f32[9, N + 2]"


def test_conv_and_pool_of_symbolic_sizes() -> None:
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
    model = capture([node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
                     node("AveragePool", ["c"], ["y"], kernel_shape=[2, 2], pads=[0, 0, 1, 1])],
                    {"x": (np.float32, ("N", 3, "H", "W"))}, w=weights)
    assert (
        shape_of(check_at(model, (2, 3, 9, 8), (1, 3, 4, 5))) == "f32[N, 4, ((H + 1) // 2), ((W + 1) // 2)]"
    )


def test_a_size_as_data() -> None:
    """Shape as an output, and a mean by the number of elements."""
    model = capture(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["f"], to=1),
            node("ReduceProd", ["f"], ["n"], keepdims=0),
            node("ReduceSum", ["x"], ["t"], keepdims=0),
            node("Div", ["t", "n"], ["y"]),
        ],
        {"x": (np.float32, ("A", "B"))},
        ["y", "s"],
    )
    check_at(model, (2, 3), (1, 1), (4, 0 + 5))


def test_names_are_shared_and_anonymous_ones_readable() -> None:
    model = capture([node("Add", ["x", "y"], ["z"])], {"x": (np.float32, ("batch size", None, "s")),
                                                      "y": (np.float32, ("batch size", 1, "s"))}, ["z"])
    graph = load_graph(model)
    assert [str(n.type) for n in graph.inputs] == ["f32[batch_size, x_1, s]", "f32[batch_size, 1, s]"]
    assert shape_of(graph) == "f32[batch_size, x_1, s]"


def test_dim_param_formula() -> None:
    model = capture(
        [node("Concat", ["x", "y"], ["z"], axis=0), node("Add", ["z", "w"], ["r"])],
        {"x": (np.float32, ("past",)), "y": (np.float32, ("seq",)), "w": (np.float32, ("past + seq",))},
        ["r"],
    )
    feeds = {"x": np.ones(2, np.float32), "y": np.ones(3, np.float32), "w": np.arange(5, dtype=np.float32)}
    graph = load_graph(model)
    assert shape_of(graph) == "f32[past + seq]"
    for strategy in STRATEGIES:
        assert_same(run(graph, feeds, strategy), reference(model, feeds))


def test_symbols_fixed_and_bounded() -> None:
    model = capture([node("Relu", ["x"], ["y"])], {"x": (np.float32, ("N", "M"))})
    assert shape_of(load_graph(model, symbols={"N": 4})) == "f32[4, M]"
    bounded = load_graph(model, symbols={"N": (1, 64)}).symbols()["N"]
    assert (bounded.low, bounded.high) == (1, 64)
    with pytest.raises(ModelError, match="has no size called K; its sizes are N, M"):
        load_graph(model, symbols={"K": 1})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sizes_are_held_to_their_range(strategy: str) -> None:
    model = capture([node("Relu", ["x"], ["y"])], {"x": (np.float32, ("N", "M"))})
    graph = load_graph(model, symbols={"N": (1, 64)})
    for n in (1, 64):
        assert run(graph, {"x": np.ones((n, 3), np.float32)}, strategy)[0].shape == (n, 3)
    for n in (0, 65):
        with pytest.raises(ShapeError, match="N is to be from 1 to 64"):
            run(graph, {"x": np.ones((n, 3), np.float32)}, strategy)


def test_axes_from_an_input() -> None:
    """Axes that are an input's value need to be given."""
    model = capture(
        [node("ReduceSum", ["x", "axes"], ["y"])], {"x": (np.float32, (2, 6)), "axes": (np.int64, (1,))},
        opset=18
    )
    with pytest.raises(
        NeedsValue, match=r"its axes \(operand 1\) depends on the values of inputs; give axes .*constants="
    ) as caught:
        load_graph(model)
    assert (caught.value.inputs, caught.value.sizes) == ({"axes"}, set())
    graph = load_graph(model, constants={"axes": np.array([1])})
    assert [n.attributes.name for n in graph.inputs] == ["x"]
    assert shape_of(graph) == "f32[2, 1]"
    with pytest.raises(ModelError, match="has no input called z; its inputs are x, axes"):
        load_graph(model, constants={"z": 1})
    with pytest.raises(ModelError, match="the constant for input 'axes' has shape"):
        load_graph(model, constants={"axes": np.array([[1]])})


def test_shape_from_float_constants() -> None:
    """Sizes computed in floats from constants only are evaluated."""
    model = capture(
        [
            node("Mul", ["a", "b"], ["c"]),
            node("Floor", ["c"], ["d"]),
            node("Cast", ["d"], ["to"], to=7),
            node("Expand", ["x", "to"], ["y"]),
        ],
        {"x": (np.float32, (1,))},
        a=np.array([2, 3], np.float32),
        b=np.array([1.5, 1.5], np.float32),
    )
    assert shape_of(check_at(model, (1,))) == "f32[3, 4]"


def test_unknown_equality_is_left_to_run_time() -> None:
    model = capture(
        [node("Shape", ["x"], ["s"]), node("Equal", ["s", "three"], ["e"]), node("Cast", ["e"], ["y"], to=1)],
        {"x": (np.float32, ("N",))},
        three=[3],
    )
    check_at(model, (3,), (4,))


# --- what a model implies about its sizes

def halved_and_doubled(levels: int) -> Any:
    """x + (x halved `levels` times by strided convolutions, then doubled as often): a feature pyramid."""
    down = [node("Conv", [f"a{i}" if i else "x", "w"], [f"a{i + 1}"], strides=[2, 2], pads=[1, 1, 1, 1])
            for i in range(levels)]
    up = [node("Resize", [f"b{i}" if i else f"a{levels}", "", "scales"], [f"b{i + 1}"], mode="nearest",
               coordinate_transformation_mode="asymmetric", nearest_mode="floor") for i in range(levels)]
    return capture([*down, *up, node("Add", ["x", f"b{levels}"], ["y"])], {"x": (np.float32, (1, 2, "h", 6))},
                   opset=13, scales=np.array([1, 1, 2, 2], np.float32),
                   w=np.random.default_rng(0).normal(size=(2, 2, 3, 3)).astype(np.float32))


def test_sizes_that_are_halved_and_doubled_are_multiples() -> None:
    graph = check_at(halved_and_doubled(1), (1, 2, 4, 6), (1, 2, 10, 6))
    assert shape_of(graph) == "f32[1, 2, 2*(h // 2), 6]"
    for strategy in STRATEGIES:
        with pytest.raises(ValueError, match="the size h is to be a multiple of 2"):
            run(graph, {"x": np.ones((1, 2, 5, 6), np.float32)}, strategy)


def test_multiples_are_found_step_by_step() -> None:
    model = halved_and_doubled(3)
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "v"
    check_at(model, (1, 2, 8, 16), (1, 2, 24, 8))


def test_a_size_may_be_given_as_a_range_with_a_step() -> None:
    model = capture([node("Relu", ["x"], ["y"])], {"x": (np.float32, ("n",))})
    graph = load_graph(model, symbols={"n": (4, 64, 4)})
    assert shape_of(graph) == "f32[4*(n // 4)]"
    assert run(graph, {"x": np.ones(8, np.float32)})[0].shape == (8,)
    with pytest.raises(ValueError, match="multiple of 4"):
        run(graph, {"x": np.ones(9, np.float32)})


def test_a_factor_that_must_be_one_bounds_its_size() -> None:
    """[n, h, 5] with h halved twice is seen as [n, 5]: h // 4 is to be 1."""
    model = capture([node("MaxPool", ["x"], ["a"], kernel_shape=[2, 1], strides=[2, 1]),
                     node("MaxPool", ["a"], ["b"], kernel_shape=[2, 1], strides=[2, 1]),
                     node("Transpose", ["b"], ["c"], perm=[0, 2, 1, 3]),
                     node("Shape", ["c"], ["s"]), node("Slice", ["s", "zero", "one"], ["n"]),
                     node("Concat", ["n", "rest"], ["to"], axis=0), node("Reshape", ["c", "to"], ["y"])],
                    {"x": (np.float32, ("n", 1, "h", 5))}, zero=[0], one=[1], rest=[5])
    graph = check_at(model, (2, 1, 4, 5), (3, 1, 7, 5))
    with pytest.raises(ShapeError, match="h is to be from 4 to 7"):
        run(graph, {"x": np.ones((2, 1, 8, 5), np.float32)})


def test_a_first_element_bounds_its_size_from_below() -> None:
    """What torch writes for x - cat(x[:, :1], x[:, :-1]): as long as x where x has an element."""
    model = capture([node("Slice", ["x", "zero", "one", "one"], ["a"]),
                     node("Slice", ["x", "zero", "minus", "one"], ["b"]),
                     node("Concat", ["a", "b"], ["c"], axis=1), node("Sub", ["x", "c"], ["y"])],
                    {"x": (np.float32, ("n", "s"))}, zero=[0], one=[1], minus=[-1])
    graph = check_at(model, (2, 1), (3, 7))
    assert shape_of(graph) == "f32[n, s]"
    with pytest.raises(ShapeError, match="s is to be"):
        run(graph, {"x": np.ones((2, 0), np.float32)})


@pytest.mark.parametrize("unnamed", ["?", "-1", "*", -1])
def test_sizes_that_have_no_name(unnamed: Any) -> None:
    """What exporters write for "any": two of them are two sizes."""
    model = capture([node("Neg", ["x"], ["y"])], {"x": (np.float32, ("a", "b"))})
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        if isinstance(unnamed, int):
            dim.dim_value = unnamed
        else:
            dim.dim_param = unnamed
    assert shape_of(check_at(model, (2, 3), (4, 1))) == "f32[x_0, x_1]"


@pytest.mark.parametrize("way", [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"),
                                 ("pytorch_half_pixel", "round_prefer_ceil")])
@pytest.mark.parametrize("by", ["scales", "sizes"])
def test_nearest_by_a_whole_scale(way: tuple[str, str], by: str) -> None:
    sizes = [node("Shape", ["x"], ["s"]), node("Mul", ["s", "times"], ["sizes"])]
    resize = node("Resize", ["x", "", "scales"] if by == "scales" else ["x", "", "", "sizes"], ["y"],
                  mode="nearest", coordinate_transformation_mode=way[0], nearest_mode=way[1])
    model = capture([*sizes, resize], {"x": (np.float32, ("n", 2, "h", "w"))}, opset=13,
                    scales=np.array([1, 1, 3, 2], np.float32), times=[1, 1, 3, 2])
    assert shape_of(check_at(model, (1, 2, 5, 4), (2, 2, 1, 3))) == "f32[n, 2, 3*h, 2*w]"
