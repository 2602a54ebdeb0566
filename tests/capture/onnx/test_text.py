"""Strings: host functions against ONNX Runtime and the reference evaluator; their way through a graph."""
from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from planish.capture.onnx import load_graph
from planish.compiler import compile_graph
from planish.errors import (
    ModelError,
    PlanishError,
    SignatureError,
    TypeRuleError,
    UnsupportedOp,
)
from planish.ir import constant, parse_graph, print_graph
from planish.ops import host_images
from planish.ops.rules import ops
from planish.types import STRING, dtype_of
from tests.capture.onnx.running import STRATEGIES, make_model, onnxruntime_outputs, reference, run

WORDS = ["Monday", "tuesday", "été", "MONDAY", "日本 語", "Straße", "wednesday", "one,two,,three", ",",
         "a b  c"]
node = helper.make_node


def text(*values: Any, shape: tuple[int, ...] = (-1,)) -> np.ndarray:
    return np.array(values, object).reshape(shape)


def some_text(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng().choice(np.array(WORDS, object), size=shape)


def model_of(op_type: str, arrays: list[np.ndarray], *, outputs: int = 1, opset: int = 20, fixed: int = 0,
             **attributes: Any) -> tuple[Any, dict[str, Any]]:
    """A model of one node; the last `fixed` operands are initialisers."""
    names = [f"x{i}" for i in range(len(arrays))]
    feeds = dict(zip(names, arrays[:len(arrays) - fixed]))
    constants = dict(zip(names[len(feeds):], arrays[len(feeds):]))
    results = [f"y{i}" for i in range(outputs)]
    made = node(op_type, names, results, name="it", **attributes)
    return make_model([made], feeds, results, opset=opset, initializers=constants), feeds


def assert_equal(got: list[np.ndarray], expected: list[Any]) -> None:
    for one, want in zip(got, expected, strict=True):
        want = np.asarray(want)
        want = want.astype(object) if want.dtype.kind == "U" else want
        assert (one.dtype, one.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(one, want)


def check(model: Any, feeds: dict[str, Any], expected: list[Any] | None = None) -> None:
    for strategy in STRATEGIES:
        assert_equal(run(load_graph(model), feeds, strategy), expected or reference(model, feeds))


# --- operators of their own

@pytest.mark.parametrize(("delimiter", "maxsplit"),
                         [(None, None), ("", 1), (" ", None), (",", 0), (",", 2), (",,", None)])
def test_split(delimiter: str | None, maxsplit: int | None) -> None:
    given = {"delimiter": delimiter, "maxsplit": maxsplit}
    for x in (some_text((7,)), some_text((2, 3)), text("", "", shape=(2, 1)), np.empty((0, 2), object)):
        check(*model_of("StringSplit", [x], outputs=2, **{k: v for k, v in given.items() if v is not None}))


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((2, 3), (1,)), ((2, 1), (3,)), ((), (2,)), ((0,), (1,))])
def test_concat(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = (np.asarray(some_text(shape), object) for shape in shapes)
    check(*model_of("StringConcat", [x, y]), expected=[np.asarray(x + y, object)])


@pytest.mark.parametrize("pattern", [r"[a-z]+", r".*,.*", "", r"\w+", r"(?i)monday", r"日.*", r"\S+\s\S+"])
def test_full_match_of_a_pattern(pattern: str) -> None:
    model, feeds = model_of("RegexFullMatch", [text(*WORDS, shape=(2, -1))], pattern=pattern)
    check(model, feeds, onnxruntime_outputs(model, feeds))


@pytest.mark.parametrize("pattern", [r"\p{L}+", "(", "a{2,1}"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedOp, match="write it as Python's re has it"):
        load_graph(model_of("RegexFullMatch", [text("a")], pattern=pattern)[0])


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_normalise(case: str, sensitive: int) -> None:
    change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[case]
    x = text("Monday", "été", "MONDAY", "", "Straße")
    for stopwords in ([""], ["monday"], ["Monday", "Été"], ["MONDAY", "monday", "été", "", "straße"]):
        stops = set(stopwords) if sensitive else {w.lower() for w in stopwords}
        kept = [change(w) for w in x if (w if sensitive else w.lower()) not in stops] or [""]
        for shape in ((-1,), (1, -1)):
            model, feeds = model_of("StringNormalizer", [x.reshape(shape)], case_change_action=case,
                                    stopwords=stopwords, is_case_sensitive=sensitive)
            check(model, feeds, [text(*kept, shape=shape)])


# --- text among ordinary operators

MOVES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("Reshape", [some_text((2, 3)), np.array([3, -1])], {"fixed": 1}),
    ("Transpose", [some_text((2, 3, 2))], {"perm": [2, 0, 1]}),
    ("Gather", [some_text((4, 3)), np.array([[1, -1], [0, 2]])], {"axis": 0}),
    ("GatherElements", [some_text((4, 3)), np.array([[1, -1, 0]])], {"axis": 0}),
    ("GatherND", [some_text((4, 3)), np.array([[1, 2], [0, 0]])], {}),
    ("Concat", [some_text((2, 3)), some_text((1, 3))], {"axis": 0}),
    ("Slice", [some_text((5, 3)), np.array([1]), np.array([4]), np.array([0]), np.array([2])], {"fixed": 4}),
    ("Squeeze", [some_text((2, 1, 3)), np.array([1])], {"fixed": 1}),
    ("Unsqueeze", [some_text((2, 3)), np.array([0])], {"fixed": 1}),
    ("Expand", [some_text((2, 1)), np.array([2, 3])], {"fixed": 1}),
    ("Tile", [some_text((2, 1)), np.array([1, 3])], {"fixed": 1}),
    ("Where", [np.array([True, False, True]), some_text((2, 3)), some_text((3,))], {}),
    ("Equal", [some_text((4, 3)), some_text((3,))], {}),
    ("ScatterND", [some_text((4,)), np.array([[1], [3]]), some_text((2,))], {}),
    ("ScatterElements", [some_text((4,)), np.array([1, 3]), some_text((2,))], {"axis": 0}),
    ("Identity", [some_text((3,))], {}),
    ("Pad", [some_text((2, 3)), np.array([1, 0, 0, 2]), text("fill", shape=())], {"fixed": 2}),
    ("Compress", [some_text((4, 3)), np.array([True, False, True])], {"axis": 0}),
    ("NonZero", [text("a", "", "b", "", shape=(2, 2))], {}),
    ("Unique", [some_text((12,))], {"outputs": 4}),
    ("Unique", [some_text((12,))], {"outputs": 4, "sorted": 0}),
    ("Flatten", [some_text((2, 3, 2))], {}),
    ("Shape", [some_text((2, 3))], {}),
]


@pytest.mark.parametrize(("op_type", "arrays", "attributes"), MOVES, ids=[m[0] for m in MOVES])
def test_moves(op_type: str, arrays: list[np.ndarray], attributes: dict[str, Any]) -> None:
    check(*model_of(op_type, arrays, **attributes))


def test_padding_with_nothing() -> None:
    """The 0 of text is the empty string. (The reference evaluator writes the number.)"""
    x = text("a", "b", shape=(2, 1))
    check(*model_of("Pad", [x, np.array([0, 1, 0, 0])], fixed=1), [text("", "a", "", "b", shape=(2, 2))])
    check(*model_of("Trilu", [text(*"abcd", shape=(2, 2))]), [text("a", "b", "", "d", shape=(2, 2))])


def test_unique_rows() -> None:
    """NumPy, and so the reference evaluator, does not sort rows of text."""
    model, feeds = model_of("Unique", [text(*"babbba", shape=(3, 2))], outputs=4, axis=0)
    places = (np.array(v) for v in ([0, 1], [0, 1, 0], [2, 1]))
    check(model, feeds, [text(*"babb", shape=(2, 2)), *places])


def test_split_of_a_tensor_and_of_parts_back() -> None:
    x = some_text((6, 2))
    model, feeds = model_of("Split", [x], outputs=3, num_outputs=3)
    check(model, feeds, list(np.split(x, 3)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int64, np.int8, np.uint8, bool])
def test_numbers_to_text_and_back(dtype: Any) -> None:
    rng = np.random.default_rng()
    special = [np.inf, -np.inf, np.nan, 0.0, 1e-7] if np.dtype(dtype).kind == "f" else [0, 1]
    x = np.concatenate([(rng.normal(size=20) * 50).astype(dtype), np.array(special, dtype)])
    there, feeds = model_of("Cast", [x], to=TensorProto.STRING)
    check(there, feeds)
    if dtype is not bool:
        written = x.astype(np.str_).astype(object)
        check(*model_of("Cast", [written], to=helper.np_dtype_to_tensor_dtype(x.dtype)), expected=[x])


def test_reading_numbers() -> None:
    x = text("1", "3.14", "-1e-5", "1E8", "+INF", "-inf", "NaN", "Infinity")
    values = [1, 3.14, -1e-5, 1e8, np.inf, -np.inf, np.nan, np.inf]
    check(*model_of("Cast", [x], to=TensorProto.FLOAT), expected=[np.float32(values)])
    check(*model_of("Cast", [text("0", "2", "7.9")], to=TensorProto.INT64), expected=[np.array([0, 2, 7])])
    with pytest.raises(ValueError, match="could not convert"):
        run(load_graph(model_of("Cast", [text("seven")], to=TensorProto.FLOAT)[0]), {"x0": text("seven")})


def test_no_arithmetic_on_text() -> None:
    with pytest.raises(ModelError, match=r"node 'it' .*add does not take text"):
        load_graph(model_of("Add", [text("a"), text("b")])[0])
    with pytest.raises(TypeRuleError, match="reduce_max does not take text"):
        ops.reduce_max(constant(text("a", "b")), axes=(0,))


def test_open_sizes() -> None:
    """Text and numbers in one graph, on sizes that only a call, and only the result, says."""
    nodes = [node("StringSplit", ["x"], ["parts", "n"], delimiter=","),
             node("Equal", ["parts", "empty"], ["blank"]),
             node("Cast", ["blank"], ["ones"], to=TensorProto.INT64), node("ReduceSum", ["ones"], ["blanks"]),
             node("Add", ["blanks", "n"], ["y"]), node("Transpose", ["parts"], ["turned"], perm=[1, 0])]
    model = make_model(nodes, {"x": (object, ("N",))}, ["y", "turned"], opset=20,
                       initializers={"empty": text("")})
    compiled = compile_graph(load_graph(model))
    for n in (3, 1, 6):
        x = some_text((n,))
        assert_equal(list(compiled(x)), reference(model, {"x": x}))


# --- the door

def test_kinds_of_arrays_that_are_taken() -> None:
    model, _ = model_of("StringConcat", [text("a", "bé"), text("x")])
    graph = load_graph(model)
    want = [text("ax", "béx")]
    given = [np.array(["a", "bé"]), np.array([b"a", "bé".encode()], object), text("a", "-", "bé")[::2]]
    if hasattr(np.dtypes, "StringDType"):
        given.append(np.array(["a", "bé"], np.dtypes.StringDType()))
    for x in given:
        for strategy in STRATEGIES:
            assert_equal(run(graph, {"x0": x, "x1": text("x")}, strategy), want)


@pytest.mark.parametrize(("array", "message"), [
    (np.array([1, "a"], object), "element 0 is a int"),
    (np.array([b"\xff"], object), "text is to be UTF-8"),
    (np.array([1.0, 2.0]), "expected string, got float64"),
])
def test_arrays_that_are_not_text(array: np.ndarray, message: str) -> None:
    graph = load_graph(model_of("StringConcat", [text("a", "b"), text("x")])[0])
    for strategy in STRATEGIES:
        with pytest.raises(SignatureError, match=message):
            run(graph, {"x0": array, "x1": text("x")}, strategy)


def test_text_where_numbers_are_expected() -> None:
    model, _ = model_of("Neg", [np.ones(2, np.float32)])
    with pytest.raises(SignatureError):
        run(load_graph(model), {"x0": text("a", "b")}, "interpret")
    with pytest.raises(SignatureError):
        run(load_graph(model), {"x0": text("a", "b")}, "native")


# --- text in files and in the text form

def test_broken_text_in_a_model() -> None:
    model, _ = model_of("StringConcat", [text("a"), text("x")], fixed=1)
    model.graph.initializer[0].string_data[0] = b"\xff\xfe"
    with pytest.raises(ModelError, match=r"initialiser 'x1' has text that is not UTF-8: b'\\xff\\xfe'"):
        load_graph(model)
    model.graph.initializer[0].string_data.append(b"more")
    with pytest.raises(ModelError, match="needs 1 strings and has 2"):
        load_graph(model)
    model, _ = model_of("RegexFullMatch", [text("a")], pattern=b"\xff")
    with pytest.raises(ModelError, match="attribute 'pattern' has text that is not UTF-8"):
        load_graph(model)
    model, _ = model_of("StringNormalizer", [text("a")], stopwords=["ok"])
    model.graph.node[0].attribute[0].strings[0] = b"\xff"
    with pytest.raises(ModelError, match="attribute 'stopwords' has text that is not UTF-8"):
        load_graph(model)


def test_constants_of_text() -> None:
    nodes = [node("Constant", [], ["a"], value_string="é, #'\"\\"),
             node("Constant", [], ["b"], value_strings=["x", "y"]),
             node("Concat", ["b", "z"], ["c"], axis=0), node("StringConcat", ["a", "c"], ["y"])]
    model = make_model(nodes, {"z": (object, (1,))}, ["y"], opset=20)
    graph = load_graph(model)
    check(model, {"z": text("w")}, [text(*("é, #'\"\\" + w for w in "xyw"))])
    again = parse_graph(print_graph(graph))
    assert again == graph
    assert_equal(list(again.evaluate(text("w"))), run(graph, {"z": text("w")}))


def test_text_is_shared_by_content() -> None:
    assert constant(text("a", "b")) is constant(np.array(["a", "b"]))
    assert constant(text("a", "b")) is not constant(text("a", "c"))
    assert constant(text("a", "b")).attributes.digest != constant(text("ab", "")).attributes.digest
    assert constant(text("a")).dtype is STRING is dtype_of("str") is dtype_of(np.dtype("U3"))


def test_large_constants_of_text() -> None:
    names = text(*(f"name {i}" for i in range(2000)))
    model, feeds = model_of("Gather", [names, np.array([5, -1])], axis=0)
    model, feeds = model_of("Concat", [some_text((2,)), names], axis=0, fixed=1)
    check(model, feeds, [np.concatenate([feeds["x0"], names])])


# --- images

@pytest.mark.parametrize("pixel_format", ["RGB", "BGR", "Grayscale"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_images(pixel_format: str, mode: str) -> None:
    image_module = pytest.importorskip("PIL.Image")
    import io
    pixels = np.random.default_rng().integers(0, 256, (5, 7, 3), np.uint8)
    image = image_module.fromarray(pixels).convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG")
    x = np.frombuffer(file.getvalue(), np.uint8)
    want = np.asarray(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    want = {"RGB": want, "BGR": want[..., ::-1], "Grayscale": want[..., None]}[pixel_format]
    model = make_model([node("ImageDecoder", ["x"], ["y"], pixel_format=pixel_format)],
                       {"x": (np.uint8, ("bytes",))}, ["y"], opset=20)
    check(model, {"x": x}, [want])


def test_bytes_that_are_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = model_of("ImageDecoder", [np.arange(9, dtype=np.uint8)])
    pytest.importorskip("PIL")
    with pytest.raises(PlanishError, match="9 bytes that are no image"):
        run(load_graph(model), feeds)
    with pytest.raises(ModelError, match="pixel_format 'HSV'"):
        load_graph(model_of("ImageDecoder", [np.zeros(1, np.uint8)], pixel_format="HSV")[0])
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(PlanishError, match="pip install 'planish\\[images\\]'"):
        load_graph(model)
    assert "planish[images]" in host_images.MISSING


def test_loops_run_no_host_functions() -> None:
    """What runs in Python can't stand in the body of a branch that the run takes."""
    ends = [onnx.ValueInfoProto(name=name) for name in "bc"]
    body = helper.make_graph([node("StringConcat", ["a", "a"], ["b"])], "body", [], ends[:1])
    other = helper.make_graph([node("Identity", ["a"], ["c"])], "other", [], ends[1:])
    model = make_model([node("If", ["p"], ["y"], then_branch=body, else_branch=other)],
                       {"p": (np.bool_, ()), "a": (object, (2,))}, ["y"], opset=20)
    with pytest.raises(UnsupportedOp):
        compile_graph(load_graph(model))
    graph = load_graph(model, constants={"p": True})
    assert_equal(run(graph, {"a": text("a", "b")}), [text("aa", "bb")])
