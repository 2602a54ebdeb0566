"""Reading models: what is accepted, and one clear line for what is not."""
from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from planish.capture.onnx import load_graph
from planish.errors import ModelError, PlanishError, UnreadableModel, UnsupportedDType, UnsupportedOp
from tests.capture.onnx.running import assert_same, check, make_model, reference, run

node = helper.make_node
X = {"x": np.ones(3, np.float32)}


def model_of(
    *nodes: Any, inputs: dict[str, Any] = X, outputs: tuple[str, ...] = ("y",), **keywords: Any
) -> Any:
    return make_model(nodes, inputs, list(outputs), **keywords)


def relu() -> Any:
    return model_of(node("Relu", ["x"], ["y"], name="act"))


def changed(model: Any, change: Any) -> Any:
    change(model)
    return model


# --- what is accepted

def test_path_bytes_and_proto(tmp_path: Path) -> None:
    model, path = relu(), tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    graphs = [
        load_graph(s) for s in (path, str(path), path.read_bytes(), bytearray(path.read_bytes()), model)
    ]
    assert len({g.outputs for g in graphs}) == 1
    assert graphs[0].name == "test"
    assert graphs[0].output_names == ("y",)
    note = graphs[0].note(graphs[0].outputs[0])
    assert (str(note.location), note.name) == ("m.onnx: act", "y")


def test_initialisers_are_constants_without_copies() -> None:
    weights = np.arange(4096, dtype=np.float32)
    graph = load_graph(
        model_of(node("Add", ["x", "w"], ["y"]), inputs={"x": weights}, initializers={"w": weights})
    )
    array = next(n for n in graph.nodes() if n.op.name == "constant").attributes.array
    assert not array.flags.writeable
    assert not array.flags.owndata  # a view of the file's own bytes
    np.testing.assert_array_equal(array, weights)


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float64",
        "float16",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "bool",
        "bfloat16",
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_every_dtype_of_initialisers(dtype: str, raw: bool) -> None:
    import ml_dtypes
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    values = np.array([0, 1, 1, 0, 3]).astype(numpy_dtype)
    tensor = numpy_helper.from_array(values, "w") if raw else helper.make_tensor(
        "w", helper.np_dtype_to_tensor_dtype(numpy_dtype), [5], values)
    assert tensor.HasField("raw_data") == raw
    model = model_of(node("Identity", ["w"], ["y"]))
    model.graph.initializer.append(tensor)
    got, = run(load_graph(model), X)
    assert got.dtype == numpy_dtype
    np.testing.assert_array_equal(got, values)


def test_initialiser_that_is_also_an_input() -> None:
    """IR versions before 4 list initialisers as inputs, too: constants here, and the note says so."""
    model = model_of(
        node("Add", ["x", "w"], ["y"]),
        inputs={"x": np.ones(3, np.float32), "w": np.ones(3, np.float32)},
        initializers={"w": np.full(3, 2, np.float32)},
        ir_version=3,
    )
    graph = load_graph(model)
    assert [n.attributes.name for n in graph.inputs] == ["x"]
    constant = next(n for n in graph.nodes() if n.op.name == "constant")
    assert graph.note(constant).rules == ("onnx: a default of the input, taken as constant",)
    np.testing.assert_array_equal(run(graph, X)[0], [3, 3, 3])


def test_empty_optional_operands_and_outputs() -> None:
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    model = model_of(
        node("LayerNormalization", ["x", "s", ""], ["y", "", "inverse"]),
        inputs={"x": x},
        outputs=("y", "inverse"),
        initializers={"s": np.ones(8, np.float32)},
    )
    check(model, {"x": x}, factor=16)


def test_functions_of_the_model() -> None:
    """Model-local functions are expanded, also one in another; attributes are passed on, with defaults."""
    square = helper.make_function(
        "own", "Square", ["a"], ["b"], [node("Mul", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    scale = node("Constant", [], ["f"])
    scale.attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="factor")
    outer = helper.make_function(
        "own",
        "Scaled",
        ["a", "missing"],
        ["c"],
        [
            node("Square", ["a"], ["b"], domain="own"),
            scale,
            node("Mul", ["b", "f"], ["m"]),
            node("Clip", ["m", "missing"], ["c"]),
        ],
        [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        attribute_protos=[helper.make_attribute("factor", 3.0)],
    )
    model = model_of(
        node("Scaled", ["x"], ["p"], domain="own"),
        node("Scaled", ["p"], ["y"], domain="own", factor=0.5),
        functions=[square, outer],
        domains={"own": 1},
        inputs={"x": (np.float32, (3,))},
    )
    graph = load_graph(model)
    x = np.array([1, -2, 3], np.float32)
    np.testing.assert_allclose(run(graph, {"x": x})[0], (3 * x * x) ** 2 * 0.5)


def test_a_standard_function_is_expanded() -> None:
    x = np.random.default_rng(0).normal(size=(2, 8)).astype(np.float32)
    check(model_of(node("CenterCropPad", ["x", "to"], ["y"]), inputs={"x": x}, opset=18,
                   initializers={"to": np.array([4, 5])}), {"x": x})


# --- sparse initialisers

def with_sparse(values: np.ndarray, indices: np.ndarray, dims: tuple[int, ...]) -> Any:
    """x + w, w sparse."""
    model = model_of(node("Add", ["x", "w"], ["y"]), inputs={"x": np.zeros(dims, np.float32)})
    parts = [onnx.numpy_helper.from_array(values, "w"), onnx.numpy_helper.from_array(indices)]
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(*parts, dims))
    return model


@pytest.mark.parametrize("indices", [[1, 5, 3], [[0, 1], [1, 2], [1, 0]]])
def test_sparse_initialisers_are_made_dense(indices: list[Any]) -> None:
    values, x = np.array([2, 3, 4], np.float32), np.random.default_rng().random((2, 3), np.float32)
    dense = np.array([[0, 2, 0], [4, 0, 3]], np.float32)
    graph = load_graph(with_sparse(values, np.array(indices), (2, 3)))
    np.testing.assert_array_equal(graph.evaluate(x)[0], x + dense)


@pytest.mark.parametrize(("indices", "dims", "message"), [
    ([1, 6, 3], (2, 3), r"indices outside \(2, 3\)"), ([1, -1, 3], (2, 3), "indices outside"),
    ([[0, 3], [1, 2], [1, 0]], (2, 3), "indices outside"), ([0, 1], (2, 3), r"values \(3,\), indices \(2,\)"),
    ([0, 1, 2], (1 << 20, 1 << 20), "not stored as a dense tensor")])
def test_sparse_initialisers_that_do_not_fit(indices: list[Any], dims: tuple[int, ...], message: str) -> None:
    model = with_sparse(np.ones(3, np.float32), np.array(indices), (2, 3))
    model.graph.sparse_initializer[0].dims[:] = dims
    with pytest.raises(ModelError, match=f"initialiser 'w'.*{message}"):
        load_graph(model)


# --- external data

def with_external_data(folder: Path, weights: np.ndarray, location: str = "w.bin", **entries: Any) -> Path:
    model = model_of(node("Add", ["x", "w"], ["y"]), inputs={"x": weights}, initializers={"w": weights})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


WEIGHTS = np.arange(8, dtype=np.float32)


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"\0" * 16 + WEIGHTS.tobytes())
    path = with_external_data(tmp_path, WEIGHTS, "sub/w.bin", offset=16, length=32)
    np.testing.assert_array_equal(run(load_graph(path), {"x": WEIGHTS})[0], WEIGHTS * 2)


def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    """Mapped, not read: the file has holes where nothing is looked at."""
    rows, columns = 2_200_000, 256
    with (tmp_path / "w.bin").open("wb") as file:
        file.seek(4 * (rows - 1) * columns)
        file.write(np.arange(columns, dtype=np.float32).tobytes())
    model = model_of(node("Gather", ["w", "i"], ["y"]), inputs={"i": np.zeros(2, np.int64)})
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[rows, columns])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    graph = load_graph(tmp_path / "m.onnx")
    array = next(n for n in graph.nodes() if n.op.name == "constant").attributes.array
    assert array.nbytes > 2 << 30 and not array.flags.owndata
    y, = run(graph, {"i": np.array([0, rows - 1])})
    np.testing.assert_array_equal(y, [np.zeros(columns), np.arange(columns)])


@pytest.mark.parametrize(("location", "message"), [
    ("../w.bin", "external data '../w.bin' is not a plain path inside the model's folder"),
    ("/etc/passwd", "external data '/etc/passwd' is not a plain path inside the model's folder"),
    ("C:w.bin", "external data 'C:w.bin' is not a plain path inside the model's folder"),
    ("a\\..\\w.bin", "external data 'a\\\\..\\\\w.bin' is not a plain path inside the model's folder"),
    ("", "external data '' is not a plain path inside the model's folder"),
    ("link.bin", "external data 'link.bin' goes through a link, 'link.bin'"),
    ("linked/w.bin", "external data 'linked/w.bin' goes through a link, 'linked'"),
    ("folder", "external data 'folder' is not a regular file"),
    ("none.bin", "external data file 'none.bin' is missing beside the model"),
])
def test_external_data_is_confined(location: str, message: str, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    (inside / "folder").mkdir(parents=True)
    (outside / "w.bin").write_bytes(WEIGHTS.tobytes())
    (inside / "link.bin").symlink_to(outside / "w.bin")
    (inside / "linked").symlink_to(outside)
    path = with_external_data(inside, WEIGHTS, location)
    with pytest.raises(ModelError, match=re.escape(message)):
        load_graph(path)


@pytest.mark.parametrize(("entries", "message"), [
    ({"length": 31}, "needs 32 bytes; its external data has 31"),
    ({"offset": 8}, "needs bytes 8 to 40 of w.bin, which has 32"),
    ({"offset": -1}, "offset of its external data is '-1', not a number of bytes"),
    ({"offset": 2**70}, "which has 32"),
])
def test_external_data_has_to_fit(entries: dict[str, int], message: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelError, match=re.escape(message)):
        load_graph(with_external_data(tmp_path, WEIGHTS, **entries))


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    data = with_external_data(tmp_path, WEIGHTS).read_bytes()
    with pytest.raises(ModelError, match="external data; load the model by its path, not as bytes"):
        load_graph(data)


# --- what is refused: the messages in full

def _set_dims(model: Any, *dims: int) -> None:
    model.graph.initializer[0].dims[:] = dims


def _initialised() -> Any:
    return model_of(node("Add", ["x", "w"], ["y"]), initializers={"w": np.ones(3, np.float32)})


REFUSED: dict[str, tuple[Any, type, str]] = {
    "no protobuf": (
        lambda: b"this is not a model",
        UnreadableModel,
        "model bytes is not an ONNX model, or is cut off: 19 bytes that do not parse",
    ),
    "empty": (
        lambda: b"",
        UnreadableModel,
        "model bytes holds no graph: it is not an ONNX model, or is cut off",
    ),
    "unwritten": (
        lambda: model_of(node("Add", ["x", "w"], ["y"], name="sum")),
        ModelError,
        "model: node 'sum' (Add -> 'y') reads 'w', which no input, initialiser or node gives",
    ),
    "not sorted": (
        lambda: model_of(node("Relu", ["a"], ["y"]), node("Neg", ["x"], ["a"], name="late")),
        ModelError,
        ("model: node (Relu -> 'y') reads 'a', which only a later node 'late' (Neg -> 'a') gives: "
         "the graph has a cycle or is not sorted"),
    ),
    "written twice": (
        lambda: model_of(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])),
        ModelError,
        "model: node (Neg -> 'y') writes 'y', which is written before",
    ),
    "no output": (
        lambda: model_of(node("Relu", ["x"], ["z"])),
        ModelError,
        "model: graph output 'y' is written by no node",
    ),
    "no opset": (
        lambda: changed(relu(), lambda m: m.ClearField("opset_import")),
        ModelError,
        "model does not say which opset of the default domain it uses",
    ),
    "old opset": (
        lambda: model_of(node("Cast", ["x"], ["y"], to=1), opset=5),
        ModelError,
        ("model uses opset 5, in which Cast has another meaning; the oldest supported is 6: "
         "convert it with onnx.version_converter"),
    ),
    "short initialiser": (
        lambda: changed(_initialised(), lambda m: _set_dims(m, 4)),
        ModelError,
        "model: initialiser 'w' needs 16 bytes and has 12",
    ),
    "huge initialiser": (
        lambda: changed(_initialised(), lambda m: _set_dims(m, 2**40, 2**40)),
        ModelError,
        f"model: initialiser 'w' needs {2**82} bytes and has 12",
    ),
    "negative initialiser": (
        lambda: changed(_initialised(), lambda m: _set_dims(m, -3)),
        ModelError,
        "model: initialiser 'w' has a negative size: (-3,)",
    ),
    "shapes": (
        lambda: model_of(
            node("Add", ["x", "x2"], ["y"], name="sum"), inputs={**X, "x2": np.ones(4, np.float32)}
        ),
        ModelError,
        ("model: node 'sum' (Add -> 'y'): add(f32[3], f32[4]): shapes (3) and (4) do not broadcast: "
         "sizes 3, 4 differ"),
    ),
    "dtypes": (
        lambda: model_of(node("Add", ["x", "x2"], ["y"]), inputs={**X, "x2": np.ones(3)}),
        ModelError,
        ("model: node (Add -> 'y'): add(f32[3], f64[3]): operands are to have one dtype, not f32 and f64; "
         "cast first"),
    ),
    "operand": (
        lambda: model_of(node("Add", ["x"], ["y"])),
        ModelError,
        "model: node (Add -> 'y'): add(f32[3]): takes 2 operands, not 1",
    ),
    "axis": (
        lambda: model_of(node("Softmax", ["x"], ["y"], axis=1)),
        ModelError,
        "model: node (Softmax -> 'y'): axis 1 is not one of the 1 axes",
    ),
    "reshape": (
        lambda: model_of(node("Reshape", ["x", "to"], ["y"]), initializers={"to": np.array([2, -1])}),
        ModelError,
        "model: node (Reshape -> 'y'): shape [2, 1] does not hold the 3 elements of shape (3,)",
    ),
    "rank": (
        lambda: changed(relu(), lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")),
        UnsupportedOp,
        ("model: input 'x' has no rank: the model does not say what it holds; say it: "
         "load_graph(..., types={name: a TensorType, a list of them, or None})"),
    ),
    "output dtype": (
        lambda: changed(
            relu(), lambda m: m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 11, [3]))
        ),
        ModelError,
        "model: output 'y' is declared float64 and computed float32",
    ),
    "complex": (
        lambda: model_of(node("Relu", ["x"], ["y"]), inputs={"x": (np.complex64, (3,))}),
        UnsupportedDType,
        "model: input 'x' has element type COMPLEX64, which planish does not have",
    ),
    "sequence": (
        lambda: changed(
            relu(), lambda m: m.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", 1, [3]))
        ),
        UnsupportedOp,
        ("model: input 'x' is a seq(tensor(float)): the model does not say what it holds; say it: "
         "load_graph(..., types={name: a TensorType, a list of them, or None})"),
    ),
    "several operators": (
        lambda: model_of(
            node("Twist", ["x"], ["a"], name="nz"),
            node("Whirl", ["x"], ["b"]),
            node("Whirl", ["b"], ["c"]),
            node("Fancy", ["x"], ["y"], domain="com.acme"),
            domains={"com.acme": 3},
        ),
        UnsupportedOp,
        ("model uses 3 operators that planish does not have:\n"
         "  Twist (domain 'ai.onnx', opset 17): node 'nz' (Twist -> 'a')\n"
         "  Whirl (domain 'ai.onnx', opset 17): node (Whirl -> 'b') and 1 more\n"
         "  Fancy (domain 'com.acme', opset 3): node (Fancy -> 'y')\n"
         "Export the model with other operators in their place, "
         "or take the part without them (onnx.utils.extract_model)."),
    ),
    "domain": (
        lambda: model_of(node("Fancy", ["x"], ["y"], domain="com.acme")),
        ModelError,
        "model: node (Fancy -> 'y') is of domain 'com.acme', whose version the model does not say",
    ),
    "more outputs": (
        lambda: model_of(node("Relu", ["x"], ["y", "i"]), inputs={"x": np.ones((1, 1, 4))}),
        UnsupportedOp,
        "model: node (Relu -> 'y', 'i'): its output 'i' is not supported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, kind, message = REFUSED[name]
    with pytest.raises(PlanishError) as caught:
        load_graph(make())
    assert type(caught.value) is kind
    assert str(caught.value) == message


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_graph(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="is a folder, not an ONNX file"):
        load_graph(tmp_path)


def test_recursive_function() -> None:
    loop = helper.make_function("own", "Loop", ["a"], ["b"], [node("Loop", ["a"], ["b"], domain="own")],
                                [helper.make_opsetid("own", 1)])
    with pytest.raises(ModelError, match="function 'Loop' calls itself"):
        load_graph(model_of(node("Loop", ["x"], ["y"], domain="own"), functions=[loop], domains={"own": 1}))


def test_without_onnx() -> None:
    """The module imports without the package onnx, and says how to get it."""
    code = ("import sys; sys.modules['onnx'] = None\n"
            "from planish.capture.onnx import load_graph\n"
            "try: load_graph('m.onnx')\n"
            "except Exception as error: print(type(error).__name__, error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        done.stdout.strip()
        == "PlanishError reading ONNX models needs the package onnx: pip install 'planish[onnx]'"
    )


def test_cut_off_and_mutated_files() -> None:
    """Whatever the bytes: a graph, or an error of ours."""
    rng = np.random.default_rng()
    data = _initialised().SerializeToString()
    for i in range(400):
        broken = bytearray(data[:rng.integers(len(data))] if i % 2 else data)
        for _ in range(rng.integers(4)):
            if broken:
                broken[rng.integers(len(broken))] = rng.integers(256)
        with suppress(PlanishError):
            load_graph(bytes(broken))


def test_reference_agrees_on_a_whole_model() -> None:
    x = np.random.default_rng(1).normal(size=(2, 4)).astype(np.float32)
    model = model_of(
        node("Gemm", ["x", "w", "b"], ["h"]),
        node("Relu", ["h"], ["r"]),
        node("Gemm", ["r", "v"], ["o"], transB=1),
        node("Softmax", ["o"], ["y"]),
        inputs={"x": x},
        initializers={
            "w": np.ones((4, 5), np.float32),
            "b": np.arange(5, dtype=np.float32),
            "v": np.ones((3, 5), np.float32),
        },
    )
    assert_same(run(load_graph(model), {"x": x}), reference(model, {"x": x}))
