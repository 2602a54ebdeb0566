"""Results whose sizes depend on values: one compiled program per model, many values."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper

from planish.capture.onnx import load_graph
from planish.compiler import SegmentedProgram
from planish.errors import NeedsValue, PlanishError, ShapeError
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

Feeds = dict[str, np.ndarray]
Draw = Callable[[np.random.Generator], Feeds]
ROUNDS = 6
node = helper.make_node


def model_of(nodes: list[Any], feeds: Feeds, outputs: tuple[str, ...] = ("y",), opset: int = 18,
             **constants: Any) -> Any:
    """Inputs of the dtypes and ranks of `feeds`, all their sizes open but those of vectors, which say how
    many sizes or axes there are."""
    inputs = {name: (a.dtype, tuple(f"{name}{i}" for i in range(a.ndim)) if a.ndim > 1 or a.dtype.kind == "f"
                     else a.shape) for name, a in feeds.items()}
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return make_model(nodes, inputs, outputs, opset=opset, initializers=arrays)


def agree(model: Any, draw: Draw, oracle: Callable[..., list[np.ndarray]] = reference,
          factor: float = 8) -> Graph:
    """One graph, compiled once, answers as the oracle does for all values drawn; its outputs are its own."""
    graph = load_graph(model)
    for seed in range(ROUNDS):
        feeds = draw(np.random.default_rng(seed))
        expected = oracle(model, feeds)
        for strategy in STRATEGIES:
            got = run(graph, feeds, strategy)
            assert_same(got, expected, factor)
        for i, one in enumerate(got):
            assert not any(np.may_share_memory(one, other) for other in (*feeds.values(), *got[:i]))
    return graph


def sparse(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.where(rng.random(shape) < rng.random(), rng.normal(size=shape), 0).astype(np.float32)


def lengths(rng: np.random.Generator, count: int, least: int = 0, most: int = 6) -> list[int]:
    return rng.integers(least, most, count).tolist()


# --- NonZero, Compress, Unique

def test_non_zero() -> None:
    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": sparse(rng, *lengths(rng, 3))}
    agree(model_of([node("NonZero", ["x"], ["y"])], draw(np.random.default_rng(0))), draw)


def test_what_follows_a_size_is_computed_with_it() -> None:
    """Indices of what is positive, gathered, scaled, summed, counted: two segments and one host op."""
    nodes = [node("Greater", ["x", "zero"], ["p"]), node("NonZero", ["p"], ["at"]),
             node("Transpose", ["at"], ["rows"]), node("GatherND", ["x", "rows"], ["values"]),
             node("Mul", ["values", "values"], ["y"]), node("Shape", ["y"], ["count"]),
             node("ReduceSum", ["y"], ["total"], keepdims=0)]

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": rng.normal(size=lengths(rng, 2, 0, 40)).astype(np.float32)}
    model = model_of(nodes, draw(np.random.default_rng(0)), ("y", "count", "total"), zero=np.float32(0))
    graph = agree(model, draw)
    program = native(graph)
    assert isinstance(program, SegmentedProgram) and len(program.parts) == 2
    assert len(program.report.hosts) == 1


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    attributes = {} if axis is None else {"axis": axis}

    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": rng.normal(size=(5, 4)).astype(np.float32), "c": rng.random(4) < 0.5}
    agree(model_of([node("Compress", ["x", "c"], ["y"], **attributes)], draw(np.random.default_rng(0))), draw)


@pytest.mark.parametrize(("dtype", "axis", "ordered"), [
    (np.float32, None, 0), (np.float32, 0, 1), (np.float32, 1, 0), (np.int64, None, 1), (np.int64, 0, 0),
    (np.int64, 1, 1), (np.int8, None, 1), (np.int8, 0, 0), (np.int8, 1, 1)])
def test_unique(dtype: type, axis: int | None, ordered: int) -> None:
    attributes = {"sorted": ordered} | ({} if axis is None else {"axis": axis})

    def draw(rng: np.random.Generator) -> Feeds:
        shape = (rng.integers(1, 30), 3) if axis == 0 else (3, rng.integers(1, 30))
        return {"x": rng.integers(0, 3, shape).astype(dtype)}
    feeds = draw(np.random.default_rng(0))
    shape = ("n", 3) if axis == 0 else (3, "n")
    outputs = ("y", "first", "which", "often")
    model = make_model([node("Unique", ["x"], list(outputs), **attributes)],
                       {"x": (feeds["x"].dtype, shape)}, outputs, opset=18)
    agree(model, draw, onnxruntime_outputs)


def test_unique_takes_nan_for_equal() -> None:
    outputs = ("y", "first", "which", "often")
    model = model_of([node("Unique", ["x"], list(outputs))], {"x": np.zeros(1, np.float32)}, outputs)
    x = np.array([np.nan, 1, np.nan, -0.0, np.inf, 0.0, np.nan], np.float32)
    y, first, which, often = run(load_graph(model), {"x": x}, "native")
    np.testing.assert_array_equal(y, [0, 1, np.inf, np.nan])
    assert first.tolist() == [3, 1, 4, 0] and often.tolist() == [2, 1, 1, 3]
    assert which.tolist() == [3, 1, 3, 0, 2, 0, 3]


# --- NonMaxSuppression

@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("given", [3, 4, 5])
def test_non_max_suppression(centred: int, given: int) -> None:
    """Boxes close to each other, scores with ties, against ONNX Runtime."""
    names = ["boxes", "scores", "most", "overlap", "least"]

    def draw(rng: np.random.Generator) -> Feeds:
        batch, classes, n = 2, 3, int(rng.integers(0, 50))
        middle, size = rng.random((batch, n, 2)), rng.random((batch, n, 2)) * 0.4
        boxes = np.concatenate([middle, size] if centred else [middle, middle + size - 0.1], axis=2)
        scores = rng.integers(0, 12, (batch, classes, n)) / 12
        return {"boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32),
                "most": np.array([rng.integers(0, 8)]), "overlap": np.array([rng.random()], np.float32),
                "least": np.array([rng.random()], np.float32)}

    def chosen(rng: np.random.Generator) -> Feeds:
        feeds = draw(rng)
        return {n: feeds[n] for n in names[:given]}
    shapes = {"boxes": (np.float32, (2, "n", 4)), "scores": (np.float32, (2, 3, "n")),
              "most": (np.int64, (1,)), "overlap": (np.float32, (1,)), "least": (np.float32, (1,))}
    model = make_model([node("NonMaxSuppression", names[:given], ["y"], center_point_box=centred)],
                       {n: shapes[n] for n in names[:given]}, ("y",), opset=11)
    agree(model, chosen, onnxruntime_outputs)


def test_non_max_suppression_without_a_limit_keeps_nothing() -> None:
    model = model_of([node("NonMaxSuppression", ["boxes", "scores"], ["y"])],
                     {"boxes": np.zeros((1, 2, 4), np.float32), "scores": np.zeros((1, 1, 2), np.float32)})
    (got,) = run(load_graph(model), {"boxes": np.ones((1, 2, 4), np.float32),
                                     "scores": np.ones((1, 1, 2), np.float32)}, "native")
    assert got.shape == (0, 3)


# --- operands that say sizes

def factors(rng: np.random.Generator, shape: list[int]) -> list[int]:
    total = int(np.prod(shape))
    first = int(rng.choice([d for d in range(1, total + 1) if total % d == 0]))
    return [first, -1] if rng.random() < 0.5 else [total // first, first]


def _reshape(rng: np.random.Generator) -> Feeds:
    shape = lengths(rng, 3, 1)
    return {"x": rng.normal(size=shape).astype(np.float32), "s": np.array(factors(rng, shape))}


def _expand(rng: np.random.Generator) -> Feeds:
    n, m = lengths(rng, 2)
    return {"x": rng.normal(size=(rng.choice([1, n]), 1)).astype(np.float32), "s": np.array([3, n, m])}


def _tile(rng: np.random.Generator) -> Feeds:
    return {"x": rng.normal(size=lengths(rng, 2)).astype(np.float32), "s": np.array(lengths(rng, 2, 0, 4))}


def _range(rng: np.random.Generator) -> Feeds:
    step = int(rng.choice([-3, -1, 1, 2]))
    return {"a": np.array(rng.integers(-9, 9)), "b": np.array(rng.integers(-9, 9)), "c": np.array(step)}


def _float_range(rng: np.random.Generator) -> Feeds:
    return {"a": np.float32(rng.normal()), "b": np.float32(rng.normal() * 5), "c": np.float32(0.25)}


def _bounds(rng: np.random.Generator) -> Feeds:
    x = rng.normal(size=lengths(rng, 2, 0, 9)).astype(np.float32)
    return {"x": x, "s": rng.integers(-12, 12, 2), "e": rng.integers(-12, 12, 2)}


def _slice_all(rng: np.random.Generator) -> Feeds:
    return {**_bounds(rng), "a": rng.permutation([0, -1]), "t": rng.choice([-2, -1, 1, 3], 2)}


def _pads(rng: np.random.Generator) -> Feeds:
    return {"x": rng.normal(size=(5, int(rng.integers(3, 6)))).astype(np.float32),
            "p": rng.integers(0, 4, 4)}


def _crops(rng: np.random.Generator) -> Feeds:
    return {"x": _pads(rng)["x"], "p": rng.integers(-1, 4, 4)}


def _pads_of_axes(rng: np.random.Generator) -> Feeds:
    return {"x": _pads(rng)["x"], "p": rng.integers(0, 3, 2), "a": np.array([rng.integers(-2, 2)])}


def _split(rng: np.random.Generator) -> Feeds:
    parts = rng.integers(0, 5, 3)
    return {"x": rng.normal(size=(2, parts.sum())).astype(np.float32), "p": parts}


def _depth(rng: np.random.Generator) -> Feeds:
    return {"i": rng.integers(-3, 5, (2, 3)), "d": np.array(rng.integers(1, 6))}


def _k(rng: np.random.Generator) -> Feeds:
    n = int(rng.integers(1, 40))
    return {"x": rng.integers(0, 9, (3, n)).astype(np.float32), "k": np.array([rng.integers(0, n + 1)])}


def _axes(rng: np.random.Generator) -> Feeds:
    return {"x": rng.normal(size=lengths(rng, 2)).astype(np.float32), "a": rng.permutation([0, 2])}


def _ones(rng: np.random.Generator) -> Feeds:
    axis = rng.integers(0, 3)
    shape = [1 if i == axis else int(rng.integers(2, 5)) for i in range(3)]
    return {"x": rng.normal(size=shape).astype(np.float32), "a": np.array([axis])}


def _filled(rng: np.random.Generator) -> Feeds:
    return {"s": np.array(lengths(rng, 3))}


SAYING: dict[str, tuple[list[Any], Draw]] = {
    "reshape": ([node("Reshape", ["x", "s"], ["r"]), node("Neg", ["r"], ["y"])], _reshape),
    "expand": ([node("Expand", ["x", "s"], ["r"]), node("Neg", ["r"], ["y"])], _expand),
    "tile": ([node("Tile", ["x", "s"], ["y"])], _tile),
    "range": ([node("Range", ["a", "b", "c"], ["y"])], _range),
    "float range": ([node("Range", ["a", "b", "c"], ["y"])], _float_range),
    "slice": ([node("Slice", ["x", "s", "e"], ["y"])], _bounds),
    "slice backwards": ([node("Slice", ["x", "s", "e", "axes", "steps"], ["y"])], _bounds),
    "slice by all": ([node("Slice", ["x", "s", "e", "a", "t"], ["y"])], _slice_all),
    "pad": ([node("Pad", ["x", "p"], ["y"])], _crops),
    "pad axes": ([node("Pad", ["x", "p", "", "a"], ["y"])], _pads_of_axes),
    "pad reflect": ([node("Pad", ["x", "p"], ["y"], mode="reflect")], _pads),
    "pad edge": ([node("Pad", ["x", "p"], ["y"], mode="edge")], _pads),
    "split": ([node("Split", ["x", "p"], ["y", "z", "w"], axis=1)], _split),
    "one hot": ([node("OneHot", ["i", "d", "v"], ["y"])], _depth),
    "top k": ([node("TopK", ["x", "k"], ["y", "z"])], _k),
    "unsqueeze": ([node("Unsqueeze", ["x", "a"], ["y"])], _axes),
    "squeeze": ([node("Squeeze", ["x", "a"], ["r"]), node("Exp", ["r"], ["y"])], _ones),
    "constant of shape": ([node("ConstantOfShape", ["s"], ["y"])], _filled),
}
CONSTANTS = {"slice backwards": {"axes": [1, 0], "steps": [-2, 3]}, "one hot": {"v": np.float32([-1, 2])}}


@pytest.mark.parametrize("name", SAYING)
def test_operands_that_say_sizes(name: str) -> None:
    nodes, draw = SAYING[name]
    outputs = tuple(nodes[-1].output)
    model = model_of(nodes, draw(np.random.default_rng(0)), outputs, **CONSTANTS.get(name, {}))
    # The reference evaluator does not take negative padding.
    agree(model, draw, onnxruntime_outputs if name == "pad" else reference)


def test_a_result_that_is_only_laid_out_anew_is_a_copy() -> None:
    model = model_of([node("Reshape", ["x", "s"], ["y"])], {"x": np.zeros((2, 2), np.float32),
                                                           "s": np.array([4])}, ("y", "x"))
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    for strategy in STRATEGIES[1:]:
        y, same = run(load_graph(model), {"x": x, "s": np.array([4])}, strategy)
        y[:] = 7
        assert x[0, 0] == 0 and same[0, 0] == 0


# --- sizes that meet

def test_a_size_beside_another_is_that_one() -> None:
    """Reshaped as an input says and added to something of n rows, the result has n rows, or the call is
    refused."""
    model = make_model([node("Reshape", ["x", "s"], ["r"]), node("Add", ["r", "z"], ["y"])],
                       {"x": (np.float32, ("m",)), "s": (np.int64, (2,)), "z": (np.float32, ("n", 3))},
                       ("y",))
    graph = load_graph(model)
    assert str(graph.outputs[0].type) == "f32[n, 3]"
    feeds = {"x": np.arange(6, dtype=np.float32), "s": np.array([2, 3]), "z": np.ones((2, 3), np.float32)}
    for strategy in STRATEGIES:
        assert_same(run(graph, feeds, strategy), reference(model, feeds))
        with pytest.raises(ShapeError, match=r"reshape: expected shape \(n, 3\), got \(1, 6\)"):
            run(graph, {**feeds, "s": np.array([1, 6])}, strategy)


def test_two_selections_by_one_mask_have_one_size() -> None:
    nodes = [node("Compress", ["x", "c"], ["a"], axis=0), node("Compress", ["z", "c"], ["b"], axis=0),
             node("Add", ["a", "b"], ["y"])]

    def draw(rng: np.random.Generator) -> Feeds:
        x, z = rng.normal(size=(2, 9, 2)).astype(np.float32)
        return {"x": x, "z": z, "c": rng.random(9) < 0.5}
    model = make_model(nodes, {"x": (np.float32, ("n", 2)), "z": (np.float32, ("n", 2)), "c": (bool, ("n",))},
                       ("y",))
    assert len(native(agree(model, draw)).report.hosts) == 1


def test_what_can_not_be_said_needs_the_value() -> None:
    """How many sizes there are, the rank of a result, is to be known."""
    model = make_model([node("Reshape", ["x", "s"], ["y"])],
                       {"x": (np.float32, ("m",)), "s": (np.int64, ("rank",))}, ("y",))
    with pytest.raises(NeedsValue, match=r"its shape .operand 1. depends on the values of inputs") as it:
        load_graph(model)
    assert it.value.inputs == {"s"}
    after = make_model([node("NonZero", ["x"], ["at"]), node("Shape", ["at"], ["s"]),
                        node("Gather", ["s", "one"], ["k"]), node("ReduceSum", ["x", "k"], ["y"])],
                       {"x": (np.float32, (3, 3))}, ("y",), opset=18, initializers={"one": np.array([1])})
    with pytest.raises(NeedsValue) as it:
        load_graph(after)
    assert it.value.inputs == {"x"}


@pytest.mark.parametrize(("name", "feeds", "message"), [
    ("reshape", {"x": np.ones((2, 3, 1), np.float32), "s": np.array([4, 2])}, "6 elements"),
    ("expand", {"x": np.ones((2, 1), np.float32), "s": np.array([1, 3, 1])}, "does not broadcast"),
    ("range", {"a": np.array(0), "b": np.array(1), "c": np.array(0)}, "a step of 0"),
    ("split", {"x": np.ones((2, 3), np.float32), "p": np.array([1, 1, 2])}, "are not 3 elements together"),
    ("squeeze", {"x": np.ones((2, 3, 1), np.float32), "a": np.array([1])}, "not all of size 1"),
    ("unsqueeze", {"x": np.ones((2, 3), np.float32), "a": np.array([1, -3])}, "name one axis twice"),
    ("top k", {"x": np.ones((3, 2), np.float32), "k": np.array([3])}, "2 or less"),
    ("constant of shape", {"s": np.array([1, -1, 2])}, "0 or more"),
    ("pad", {"x": np.ones((2, 3), np.float32), "p": np.array([-2, 0, -1, 0])}, "takes more than"),
])
def test_values_that_mean_no_size(name: str, feeds: Feeds, message: str) -> None:
    nodes, draw = SAYING[name]
    model = model_of(nodes, draw(np.random.default_rng(0)), tuple(nodes[-1].output),
                     **CONSTANTS.get(name, {}))
    graph = load_graph(model)
    for strategy in STRATEGIES:
        with pytest.raises(PlanishError, match=message):
            run(graph, feeds, strategy)


# --- Resize

MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
BY = ("sizes", "shape")


@pytest.mark.parametrize(("mode", "coordinates", "by"), [   # each with each of the others
    (mode, coordinates, BY[(i + j) % 2]) for i, mode in enumerate(MODES)
    for j, coordinates in enumerate(COORDINATES)])
def test_resize_on_open_sizes(mode: str, coordinates: str, by: str) -> None:
    """By sizes that an input holds, and to the shape of another tensor; by scales in test_resizing.py."""
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    constants = {"front": np.array([2, 3])}
    nodes = {"sizes": [node("Concat", ["front", "s"], ["to"], axis=0),
                       node("Resize", ["x", "", "", "to"], ["y"], **attributes)],
             "shape": [node("Shape", ["z"], ["to"]),
                       node("Resize", ["x", "", "", "to"], ["y"], **attributes)]}

    def draw(rng: np.random.Generator) -> Feeds:
        x = rng.normal(size=(2, 3, *lengths(rng, 2, 3, 9))).astype(np.float32)
        more = {"sizes": {"s": np.array(lengths(rng, 2, 2, 12))},
                "shape": {"z": np.zeros((2, 3, *lengths(rng, 2, 2, 12)), np.float32)}}
        return {"x": x, **more[by]}
    inputs = {"x": (np.float32, (2, 3, "h", "w")), "s": (np.int64, (2,)), "z": (np.float32, (2, 3, "a", "b"))}
    model = make_model(nodes[by], {n: inputs[n] for n in draw(np.random.default_rng(0))}, ("y",), opset=18,
                       initializers=constants)
    # The reference evaluator is in float64; at a tie of nearest, ONNX Runtime's float32 chooses otherwise.
    agree(model, draw, reference, factor=32)


# --- random models

class RandomModel:
    """Grows from a matrix x[n, 4] by operators that keep, select or lay out rows; `rows` are values of one
    column count each, `vectors` what says something."""

    def __init__(self, rng: np.random.Generator):
        self.rng, self.nodes, self.rows, self.count = rng, [], ["x"], 0
        self.constants = {"half": np.float32(0.5), "one": np.array([1]), "flat": np.array([-1, 4]),
                          "first": np.array([0])}

    def new(self, op: str, operands: list[str], **attributes: Any) -> str:
        self.count += 1
        self.nodes.append(node(op, operands, [f"v{self.count}"], **attributes))
        return f"v{self.count}"

    def row(self) -> str:
        return self.rows[self.rng.integers(len(self.rows))]

    def flags(self, rows: str) -> str:
        """A bool for each row."""
        sums = self.new("ReduceSum", [rows, "one"], keepdims=0)
        return self.new("Greater", [sums, "half"])

    def compress(self) -> str:
        rows = self.row()
        return self.new("Compress", [rows, self.flags(rows)], axis=0)

    def gather(self) -> str:
        rows = self.row()
        at = self.new("NonZero", [self.flags(rows)])
        return self.new("GatherND", [rows, self.new("Transpose", [at])])

    def unique(self) -> str:
        return self.new("Unique", [self.new("Round", [self.row()])], axis=0)

    def joined(self) -> str:
        return self.new("Concat", [self.row(), self.row()], axis=0)

    def pointwise(self) -> str:
        return self.new(str(self.rng.choice(["Neg", "Sin", "Abs"])), [self.row()])

    def cut(self) -> str:
        """The first rows, as many as a value says."""
        return self.new("Slice", [self.row(), "from", "to"])

    def padded(self) -> str:
        return self.new("Pad", [self.row(), "pads", "", "first"])

    def reshaped(self) -> str:
        return self.new("Reshape", [self.new("Flatten", [self.row()], axis=0), "flat"])

    def repeated(self) -> str:
        return self.new("Tile", [self.row(), self.new("Concat", ["times", "one"], axis=0)])

    def model(self, size: int) -> Any:
        makers = (self.compress, self.gather, self.unique, self.joined, self.pointwise, self.cut, self.padded,
                  self.reshaped, self.repeated)
        for _ in range(size):
            self.rows.append(makers[self.rng.integers(len(makers))]())
        inputs = {"x": (np.float32, ("n", 4)), "from": (np.int64, (1,)), "to": (np.int64, (1,)),
                  "pads": (np.int64, (2,)), "times": (np.int64, (1,))}
        return make_model(self.nodes, inputs, tuple(self.rows[-2:]), opset=18, initializers=self.constants)


@pytest.mark.parametrize("seed", range(8))
def test_random_models(seed: int) -> None:
    def draw(rng: np.random.Generator) -> Feeds:
        return {"x": rng.normal(size=(int(rng.integers(1, 9)), 4)).astype(np.float32),
                "from": rng.integers(0, 3, 1), "to": rng.integers(-2, 9, 1),
                "pads": rng.integers(0, 3, 2), "times": rng.integers(0, 3, 1)}
    agree(RandomModel(np.random.default_rng(seed)).model(9), draw, factor=64)
