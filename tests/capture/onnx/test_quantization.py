"""Casts of narrow dtypes, quantisation and quantised products, by the reference evaluator of ONNX."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from planish.capture.onnx import load_graph
from planish.errors import ModelError
from planish.ops.samples import random_array, special_values
from planish.types import FLOAT32, STORAGE, DType, dtype_of
from tests.capture.onnx.running import STRATEGIES, make_model, one_node, reference, run

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and overflow are the subject

INTEGERS = ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2"]
FLOATS8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
FLOAT4 = "float4_e2m1fn"


def number_of(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype_of(dtype).numpy)


def assert_equal(got: np.ndarray, expected: np.ndarray) -> None:
    """The same numbers; a NaN for a NaN."""
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def check_equal(model: Any, feeds: dict[str, np.ndarray], *expected: np.ndarray) -> None:
    """Under each strategy, the answer of the reference evaluator, or `expected`."""
    graph = load_graph(model)
    for strategy in STRATEGIES:
        for got, want in zip(run(graph, feeds, strategy), expected or reference(model, feeds), strict=True):
            assert_equal(got, np.asarray(want))


def dense(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng()
    values = rng.normal(size=3000) * 10.0 ** rng.integers(-6, 7, 3000)
    return np.concatenate([values.astype(dtype.numpy), special_values(dtype)])


# --- casts

@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", ["float32", "float16", "float64", "int32"])
def test_cast_to_floats_of_8_bits(source: str, saturate: int) -> None:
    x = dense(dtype_of(source)) if source != "int32" else np.arange(-70000, 70000, 13, np.int32)
    nodes = [helper.make_node("Cast", ["x"], [t], to=number_of(t), saturate=saturate) for t in FLOATS8]
    check_equal(make_model(nodes, {"x": x}, FLOATS8, opset=25), {"x": x})


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_cast_and_cast_like_round_trip(dtype: DType) -> None:
    """Every value is a float32, and comes back from it."""
    if dtype.bits == 6:
        pytest.skip("CastLike of opset 25 does not take it")
    x = special_values(dtype)
    nodes = [helper.make_node("Cast", ["x"], ["wide"], to=1),
             helper.make_node("CastLike", ["wide", "x"], ["y"])]
    x = x[np.isfinite(x)] if dtype.is_float else x  # infinity saturates
    check_equal(make_model(nodes, {"x": x}, ["wide", "y"], opset=25), {"x": x}, x.astype(np.float32), x)


E8M0_MODES = [(mode, saturate) for mode in ("up", "nearest", "down") for saturate in (0, 1)]


@pytest.mark.parametrize("mode, saturate", E8M0_MODES)
def test_cast_to_e8m0(mode: str, saturate: int) -> None:
    rng = np.random.default_rng()
    powers = [rng.uniform(-126, 126, 3000), np.arange(-126, 127)]
    x = np.concatenate([2.0 ** np.concatenate(powers), [1.5, 3, 6, np.nan]])
    model, feeds = one_node("Cast", [x.astype(np.float32)], opset=25, to=number_of("float8_e8m0fnu"),
                            saturate=saturate, round_mode=mode)
    check_equal(model, feeds)


@pytest.mark.parametrize("mode, saturate, expected", [
    ("up", 1, [0, np.nan, np.inf, 1e-40, 2.0 ** -127, 2.0 ** -127 * 1.01, 1.7e38, 1.8e38]),
    ("nearest", 0, [0, np.nan, np.inf, 1e-40, 2.0 ** -127, 2.0 ** -127 * 1.49, 2.5e38, 2.6e38])])
def test_ends_of_e8m0(mode: str, saturate: int, expected: list[float]) -> None:
    """By the table of the operator; the reference evaluator makes infinity NaN."""
    least, most = 2.0 ** -127, 2.0 ** 127
    wanted = {1: [least, np.nan, most, least, least, 2 * least, most, most],
              0: [np.nan, np.nan, np.nan, np.nan, least, least, most, np.nan]}[saturate]
    model, feeds = one_node("Cast", [np.array(expected, np.float32)], opset=25, saturate=saturate,
                            round_mode=mode, to=number_of("float8_e8m0fnu"))
    check_equal(model, feeds, np.array(wanted).astype(ml_dtypes.float8_e8m0fnu))


def test_bitcasts() -> None:
    x = special_values(dtype_of("float8_e4m3fn"))
    model, feeds = one_node("BitCast", [x], opset=26, to=number_of("uint8"))
    check_equal(model, feeds, x.view(np.uint8))
    model, feeds = one_node("BitCast", [x.view(np.int8)], opset=26, to=number_of("float8_e5m2"))
    check_equal(model, feeds, x.view(ml_dtypes.float8_e5m2))


# --- tensors in files

@pytest.mark.parametrize("where", ["raw", "fields", "external"])
@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_tensors(dtype: DType, where: str, tmp_path: Path) -> None:
    """An odd number of elements; those of less than 8 bits are packed."""
    every = special_values(dtype)
    finite = every[np.isfinite(every)] if dtype.is_float else every  # make_tensor saturates infinity
    values = np.random.default_rng().choice(finite, (3, 5))
    tensor = numpy_helper.from_array(values, "w")
    if where == "fields":
        tensor = helper.make_tensor("w", tensor.data_type, values.shape, values)
        values = numpy_helper.to_array(tensor)  # make_tensor writes 2^-126 for 2^-127 (e8m0)
    model = make_model([helper.make_node("Identity", ["w"], ["y"])], {"x": np.zeros(3, np.float32)}, ["y"],
                       opset=25)
    model.graph.initializer.append(tensor)
    source: Any = model
    if where == "external":
        source = tmp_path / "model.onnx"
        onnx.save(model, source, save_as_external_data=True, location="weights", size_threshold=0)
    for strategy in STRATEGIES:
        got, = run(load_graph(source), {"x": np.zeros(3, np.float32)}, strategy)
        assert_equal(got, values)


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float6_e2m3fn"])
def test_too_few_bytes(dtype: str) -> None:
    values = random_array(np.random.default_rng(), dtype_of(dtype), (9,))
    tensor = numpy_helper.from_array(values, "w")
    tensor.raw_data = tensor.raw_data[:-1]
    model = make_model([helper.make_node("Identity", ["w"], ["y"])], {"x": np.zeros(3, np.float32)}, ["y"])
    model.graph.initializer.append(tensor)
    bytes_ = -(-9 * dtype_of(dtype).bits // 8)
    with pytest.raises(ModelError, match=f"'w' needs {bytes_} bytes and has {bytes_ - 1}"):
        load_graph(model)


def test_movement_of_constants() -> None:
    """What is computed while the model is read, too; a shape may be a cast of one."""
    w, sizes = (np.array(v).astype(k) for v, k in (([2, -3, 1], ml_dtypes.int4), ([2, 3], ml_dtypes.uint4)))
    made = [helper.make_node("Concat", ["w", "w"], ["a"], axis=0),
            helper.make_node("Gather", ["w", "i"], ["b"]),
            helper.make_node("Cast", ["sizes"], ["s"], to=7), helper.make_node("Reshape", ["x", "s"], ["c"])]
    model = make_model(made, {"x": np.zeros(6, np.float32)}, ["a", "b", "c"], opset=25,
                       initializers={"w": w, "i": np.array([2, 0]), "sizes": sizes})
    x = np.arange(6, dtype=np.float32)
    check_equal(model, {"x": x}, np.concatenate([w, w]), w[[2, 0]], x.reshape(2, 3))
    model = make_model([helper.make_node("Add", ["w", "w"], ["a"])], {"x": x}, ["a"], initializers={"w": w})
    with pytest.raises(ModelError, match="i4 is for storage only: cast it"):
        load_graph(model)


# --- QuantizeLinear, DequantizeLinear

SHAPE = (3, 10, 4)
LAYOUTS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "tensor": ((), {}),
    "axis": ((10,), {"axis": 1}),
    "last axis": ((4,), {"axis": -1}),
    "blocks": ((3, 5, 4), {"axis": 1, "block_size": 2}),
    "blocks, the last cut off": ((3, 3, 4), {"axis": -2, "block_size": 4}),
    "blocks along the rows": ((1, 10, 4), {"axis": 0, "block_size": 3}),
}


# Those of each size and kind in every layout, the others in a few.
STORED = [(dtype, layout) for i, dtype in enumerate([*INTEGERS, *FLOATS8, FLOAT4])
          for j, layout in enumerate(LAYOUTS)
          if dtype in ("int8", "uint16", "uint4", "uint2", "float8_e4m3fn", FLOAT4) or (i + j) % 3 == 0]


def scales(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return np.asarray(rng.uniform(0.05, 2, shape)).astype(dtype_of(dtype).numpy)


def zero_points(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype_of(dtype).is_float:
        return np.zeros(shape, dtype_of(dtype).numpy)
    info = ml_dtypes.iinfo(dtype_of(dtype).numpy)
    low, high = max(info.min, -100), min(info.max, 100)
    return np.asarray(rng.integers(low, high, shape, endpoint=True)).astype(dtype_of(dtype).numpy)


@pytest.mark.parametrize(("dtype", "layout"), STORED)
def test_quantize(dtype: str, layout: str) -> None:
    rng = np.random.default_rng()
    shape, attributes = LAYOUTS[layout]
    x = (rng.normal(size=SHAPE) * rng.choice([1, 10, 1000], SHAPE)).astype(np.float32)
    operands = [x, scales(rng, shape), zero_points(rng, shape, dtype)]
    check_equal(*one_node("QuantizeLinear", operands, opset=25, **attributes))


@pytest.mark.parametrize(("dtype", "layout"), STORED)
def test_dequantize(dtype: str, layout: str) -> None:
    rng = np.random.default_rng()
    shape, attributes = LAYOUTS[layout]
    x = random_array(rng, dtype_of(dtype), SHAPE)
    scale, zero = scales(rng, shape, rng.choice(["float32", "float16"])), zero_points(rng, shape, dtype)
    operands = [x, scale] + [zero] * (dtype != FLOAT4)
    check_equal(*one_node("DequantizeLinear", operands, opset=25, **attributes))


@pytest.mark.parametrize("x_dtype, scale_dtype, precision", [
    ("float16", "float16", None), ("float32", "float16", "float16"), ("float16", "float32", None),
    ("float32", "float32", "float16"), ("float16", "float16", "float32")])
@pytest.mark.parametrize("dtype", ["int8", "uint4", "float8_e4m3fn"])
def test_precision_of_the_quotient(dtype: str, x_dtype: str, scale_dtype: str, precision: str | None) -> None:
    rng = np.random.default_rng()
    x = (rng.normal(size=(40, 10)) * 10).astype(x_dtype)
    attributes = {} if precision is None else {"precision": number_of(precision)}
    check_equal(*one_node("QuantizeLinear", [x, scales(rng, (), scale_dtype)], opset=25,
                          output_dtype=number_of(dtype), **attributes))


@pytest.mark.parametrize("dtype", FLOATS8)
def test_quantize_without_saturation(dtype: str) -> None:
    x = dense(FLOAT32)
    check_equal(*one_node("QuantizeLinear", [x, np.float32(0.7)], opset=25, output_dtype=number_of(dtype),
                          saturate=0))


def test_output_dtype_and_scales_that_are_powers_of_two() -> None:
    """Microscaling: floats of 4 bits in blocks of 32, the scales float8_e8m0fnu."""
    rng = np.random.default_rng()
    x = random_array(rng, dtype_of(FLOAT4), (6, 96))
    scale = (2.0 ** rng.integers(-9, 9, (6, 3))).astype(ml_dtypes.float8_e8m0fnu)
    for to in ("float32", "float16", "bfloat16"):
        model, feeds = one_node("DequantizeLinear", [x, scale], opset=25, axis=1, block_size=32,
                                output_dtype=number_of(to))
        expected = x.astype(np.float32) * np.repeat(scale.astype(np.float32), 32, axis=1)
        check_equal(model, feeds, expected.astype(dtype_of(to).numpy))
    model, _ = one_node("DequantizeLinear", [x, scale], opset=25, axis=1, block_size=32)
    with pytest.raises(ModelError, match="its result can't be float8_e8m0fnu; output_dtype is to say"):
        load_graph(model)


def test_blocks_of_an_open_size() -> None:
    """One graph for every number of blocks."""
    rng = np.random.default_rng()
    inputs = {"x": (np.uint8, ["rows", "n"]), "scale": (np.float32, ["rows", "blocks"])}
    made = helper.make_node("DequantizeLinear", ["x", "scale"], ["y"], axis=1, block_size=4)
    graph = load_graph(make_model([made], inputs, ["y"], opset=25))
    for rows, n in ((3, 8), (2, 10), (1, 3)):
        x, scale = random_array(rng, dtype_of("uint8"), (rows, n)), scales(rng, (rows, -(-n // 4)))
        expected = x.astype(np.float32) * np.repeat(scale, 4, axis=1)[:, :n]
        for strategy in STRATEGIES:
            assert_equal(run(graph, {"x": x, "scale": scale}, strategy)[0], expected)


@pytest.mark.parametrize("operands, attributes, message", [
    ([(4, 6), (4, 3)], {}, "are per block, and there is no block_size"),
    ([(4, 6), (3,)], {"block_size": 2}, "blocks of 2 elements can't have scales of shape")])
def test_scales_that_do_not_fit(operands: list[tuple[int, ...]], attributes: dict[str, int],
                                message: str) -> None:
    x, scale = (np.ones(s, np.float32) for s in operands)
    model, _ = one_node("QuantizeLinear", [x, scale], opset=25, **attributes)
    with pytest.raises(ModelError, match=message):
        load_graph(model)


# --- products

def test_matmul_integer_with_zero_points_of_rows_and_columns() -> None:
    rng = np.random.default_rng()
    a, b = random_array(rng, dtype_of("uint8"), (2, 7, 40)), random_array(rng, dtype_of("int8"), (2, 40, 9))
    rows, columns = zero_points(rng, (2, 7, 1), "uint8"), zero_points(rng, (2, 1, 9), "int8")
    expected = (a.astype(np.int32) - rows) @ (b.astype(np.int32) - columns)
    check_equal(*one_node("MatMulInteger", [a, b, rows, columns]), expected)
    flat = (a[0].astype(np.int32) - rows[0]) @ (b[0].astype(np.int32) - columns[0])
    check_equal(*one_node("MatMulInteger", [a[0], b[0], rows[0, :, 0], columns[0, 0]]), flat)


@pytest.mark.parametrize("scale_dtype", ["float32", "float16", "bfloat16"])
def test_qlinear_matmul_per_row_and_column(scale_dtype: str) -> None:
    rng = np.random.default_rng()
    a, b = random_array(rng, dtype_of("int8"), (7, 20)), random_array(rng, dtype_of("int8"), (20, 9))
    az, bz = zero_points(rng, (7,), "int8"), zero_points(rng, (9,), "int8")
    a_scale, b_scale, y_scale = (scales(rng, s, scale_dtype) for s in ((7,), (9,), (1,)))
    y_zero = np.array([3], np.int8)
    total = (a.astype(np.int32) - az[:, None].astype(np.int32)) @ (b.astype(np.int32) - bz.astype(np.int32))
    factor = a_scale.astype(np.float32)[:, None] * b_scale.astype(np.float32) / y_scale.astype(np.float32)
    expected = np.clip(np.rint(total.astype(np.float32) * factor) + 3, -128, 127).astype(np.int8)
    operands = [a, a_scale, az, b, b_scale, bz, y_scale, y_zero]
    check_equal(*one_node("QLinearMatMul", operands, opset=21), expected)


def test_qlinear_matmul_of_floats_of_8_bits() -> None:
    rng = np.random.default_rng()
    kind = ml_dtypes.float8_e4m3fn
    a, b = (rng.normal(size=s).astype(kind) for s in ((7, 20), (20, 9)))
    zero = np.zeros((), kind)
    operands = [a, np.float32(0.5), zero, b, np.float32(2), zero, np.float32(0.25), zero]
    model, feeds = one_node("QLinearMatMul", operands, opset=21)
    total = a.astype(np.float64) @ b.astype(np.float64)  # exact: the products are multiples of 2 ** -18
    check_equal(model, feeds, np.clip(total * 4, -448, 448).astype(kind))
